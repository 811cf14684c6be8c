//! Links between members: who dials whom, and when again.

use freebs_agent::{Dialler, caller, check_start, dials, timing};
use freebs_chain::Who;
use freebs_control::{Command, State};
use freebs_format::wire::Role;
use freebs_io::LinkId;
use freebs_types::{ClusterId, ErrorKind, Nanos, NodeId, Peer, StartNumber, limits};
use std::collections::BTreeSet;

const ME: Peer = Peer { node: NodeId(2), worker: 0 };

fn peer(node: u64) -> Peer {
    Peer { node: NodeId(node), worker: 1 }
}

fn peers(nodes: &[u64]) -> BTreeSet<Peer> {
    nodes.iter().map(|n| peer(*n)).collect()
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Milliseconds of the next pauses, from this time on, if the member does not answer.
fn pauses(d: &mut Dialler, mut at: Nanos, n: usize) -> Vec<u64> {
    let mut all = Vec::new();
    for _ in 0..n {
        d.failed(at, peer(3));
        let next = d.next().unwrap();
        all.push(next.since(at).millis());
        assert_eq!(d.due(Nanos(next.0 - 1)), []);
        assert_eq!(d.due(next), [peer(3)]);
        at = next;
    }
    all
}

#[test]
fn of_two_members_the_lower_one_dials() {
    for (a, b) in [(1, 2), (2, 7)] {
        assert!(dials(peer(a), peer(b)) && !dials(peer(b), peer(a)));
    }
    assert!(!dials(peer(0), peer(1)) && !dials(peer(1), peer(1)), "a gateway is no member, nor is oneself another one");
    let mut d = Dialler::new(ME);
    d.want(ms(0), &peers(&[1, 2, 3, 4]));
    assert_eq!(d.due(ms(0)), [peer(3), peer(4)]);
    assert_eq!((d.due(ms(9)), d.next()), (vec![], None), "each is dialled once at a time");
}

#[test]
fn a_member_that_is_silent_is_tried_less_and_less_often() {
    let mut d = Dialler::new(ME);
    d.want(ms(0), &peers(&[3]));
    assert_eq!(d.due(ms(0)), [peer(3)]);
    assert_eq!(pauses(&mut d, ms(0), 7), [20, 40, 80, 160, 320, 500, 500]);
}

/// After all nodes had died, a member that had been tried for a second was tried each half a second only, also when the
/// control plane had told that it was back.
#[test]
fn news_of_a_member_end_the_pause_and_the_next_ones_are_short_again() {
    let mut d = Dialler::new(ME);
    d.want(ms(0), &peers(&[3]));
    d.due(ms(0));
    pauses(&mut d, ms(0), 7);
    d.failed(ms(5000), peer(3));
    d.hear_of(ms(5003), &[NodeId(4)]);
    assert_eq!(d.due(ms(5003)), []);
    d.hear_of(ms(5003), &[NodeId(3)]);
    assert_eq!(d.due(ms(5003)), [peer(3)]);
    assert_eq!(pauses(&mut d, ms(5004), 2), [20, 40]);
    // Heard during an attempt: if that fails, the next one comes soon.
    d.hear_of(ms(6000), &[NodeId(3)]);
    assert_eq!(pauses(&mut d, ms(6000), 2), [20, 40]);
}

#[test]
fn a_link_that_lasted_is_replaced_at_once_and_one_that_did_not_later() {
    let (mut d, link) = (Dialler::new(ME), LinkId(7));
    d.want(ms(0), &peers(&[3]));
    d.due(ms(0));
    d.opened(ms(0), peer(3), link);
    assert_eq!(d.next(), None);
    d.closed(ms(100), LinkId(8));
    assert_eq!(d.next(), None, "a link that is not its own");
    d.closed(ms(0).plus(timing::LINK_STEADY), link);
    assert_eq!(d.due(ms(1000)), [peer(3)]);
    d.opened(ms(1000), peer(3), link);
    d.closed(ms(1999), link);
    assert_eq!(d.due(ms(1999)), []);
    assert_eq!(d.next(), Some(ms(1999 + 320)));
    assert_eq!(d.due(ms(2319)), [peer(3)]);
    assert_eq!(pauses(&mut d, ms(2319), 2), [500, 500]);
    // It answered, and whatever was wrong has passed.
    d.opened(ms(9000), peer(3), link);
    d.closed(ms(10_000), link);
    assert_eq!(d.due(ms(10_000)), [peer(3)]);
    assert_eq!(pauses(&mut d, ms(10_000), 1), [20]);
}

/// The end of a link was heard before its beginning. It counted as open for ever, and the member was never dialled again.
#[test]
fn a_link_that_closes_before_it_is_told_of_is_closed() {
    let (mut d, link) = (Dialler::new(ME), LinkId(7));
    d.want(ms(0), &peers(&[3, 4]));
    assert_eq!(d.due(ms(0)), [peer(3), peer(4)]);
    d.closed(ms(10), link);
    d.opened(ms(11), peer(3), link);
    assert_eq!(d.next(), Some(ms(11 + 320)), "it lasted only a moment");
    assert_eq!(d.due(ms(331)), [peer(3)]);
    // Others that close meanwhile take nothing from it, and it is remembered for no longer than it may be told of.
    for n in 0..5000 {
        d.closed(ms(400), LinkId(100 + n));
    }
    d.opened(ms(401), peer(3), LinkId(5099));
    assert_eq!(d.next(), Some(ms(401 + 320)));
    d.failed(ms(401), peer(4));
    let at = d.next().unwrap();
    assert_eq!(d.due(at), [peer(4)]);
    d.opened(at, peer(4), LinkId(5000));
    assert_eq!(d.next(), Some(ms(401 + 320)), "nobody was dialled any more when it could have been told of");
}

/// A node that has left its chains for good was dialled twice a second for as long as this process ran.
#[test]
fn who_is_wanted_no_more_is_not_dialled() {
    let (mut d, link) = (Dialler::new(ME), LinkId(7));
    d.want(ms(0), &peers(&[3, 4, 5]));
    d.due(ms(0));
    d.opened(ms(0), peer(3), link);
    d.failed(ms(0), peer(4));
    d.want(ms(1), &peers(&[]));
    d.failed(ms(2), peer(5));
    assert_eq!((d.next(), d.due(ms(99_999))), (None, vec![]));
    // A link that is open stays, and is found again.
    d.want(ms(100_000), &peers(&[3, 4]));
    assert_eq!(d.due(ms(100_000)), [peer(4)]);
    d.want(ms(100_001), &peers(&[]));
    d.closed(ms(100_002), link);
    assert_eq!(d.next(), None);
    d.want(ms(100_003), &peers(&[3]));
    assert_eq!(d.due(ms(100_003)), [peer(3)]);
}

#[test]
fn a_link_is_taken_of_members_that_would_open_it_and_of_drivers() {
    let me = peer(2);
    let of = |from: Peer, role| match caller(me, from, role) {
        Ok(Who::Member(peer)) => Ok(Some(peer)),
        Ok(Who::Driver) => Ok(None),
        Err(e) => Err(e.kind),
    };
    assert_eq!(of(peer(1), Role::Node), Ok(Some(peer(1))));
    let worker = limits::WORKERS_MAX as u16;
    // One that is opened from here, this node itself, a gateway, and a worker that no node has.
    for from in [peer(3), peer(2), peer(0), Peer { worker, ..peer(1) }] {
        assert_eq!(of(from, Role::Node), Err(ErrorKind::Invalid), "{from}");
    }
    for from in [peer(0), peer(1), peer(3)] {
        assert_eq!(of(from, Role::Driver), Ok(None));
    }
}

#[test]
fn a_link_of_an_earlier_start_is_none() {
    let mut known = State::new(ClusterId([7; 16]));
    let (name, address, start) = ("node1".into(), "h1:1".into(), StartNumber(5));
    known.apply(Command::RegisterNode { node: NodeId(1), name, address, workers: 1, start }).unwrap();
    let of = |node: u64, start: u64| check_start(&known, NodeId(node), StartNumber(start)).map_err(|e| e.kind);
    assert_eq!(of(1, 4), Err(ErrorKind::Corrupt));
    // It may have registered a later one, which is not known yet.
    for (node, start) in [(1, 5), (1, 6), (2, 0)] {
        assert_eq!(of(node, start), Ok(()));
    }
}
