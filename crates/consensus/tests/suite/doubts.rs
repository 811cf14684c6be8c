//! Doubts: when a voter gives its leader up, and a node that is asked whether it can reach another one.

use freebs_consensus::doubts::{Doubts, Led, Turn};
use freebs_consensus::wire::{Envelope, Message};
use freebs_consensus::{Network, Options, Peer, Seat, Store, Timing};
use freebs_control::State;
use freebs_io::Random;
use freebs_io::faults::CrashDevice;
use freebs_types::*;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::LocalSet;

const CLUSTER: ClusterId = ClusterId([8; 16]);
const LEADER: Seat = Seat { node: NodeId(2), store: 5 };
const DOUBTED: NodeId = NodeId(3);

struct Counting(u64);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes.iter_mut().zip(self.0.to_le_bytes().iter().cycle()).for_each(|(b, n)| *b = *n);
    }
}

/// A network that was refused once by the node in doubt, and is again or is not.
struct Wire {
    refuses: Rc<Cell<bool>>,
    refusals: Cell<u64>,
    /// Every other attempt comes while the link rests, and is dropped.
    rests: Cell<bool>,
    said: Rc<RefCell<Vec<Message>>>,
}

impl Network for Wire {
    fn send(&self, to: Seat, message: Vec<u8>) {
        if to.node == LEADER.node {
            self.said.borrow_mut().push(Message::decode(&message).unwrap().1);
        }
        if to.node == DOUBTED && !self.rests.replace(!self.rests.get()) {
            self.refusals.set(if self.refuses.get() { self.refusals.get() + 1 } else { 0 });
        }
    }

    fn refusals(&self, node: NodeId) -> u64 {
        if node == DOUBTED { self.refusals.get() } else { 0 }
    }
}

/// What node 1 says when the leader asks it about node 3.
async fn asked(peer: &Peer, said: &RefCell<Vec<Message>>) -> Vec<Message> {
    said.borrow_mut().clear();
    let envelope = Envelope {
        cluster: CLUSTER,
        from: LEADER,
        to: peer.seat(),
        start: StartNumber(1),
        founding: 0,
        devices: freebs_consensus::Devices::Work,
        room: freebs_consensus::Room::default(),
        id: 0,
    };
    peer.receive(Message::Doubt(DOUBTED).encode(envelope).unwrap());
    tokio::time::sleep(Duration::from_millis(1000)).await;
    said.take()
}

/// Two nodes that have nothing to say to each other don't try. One had been refused by the other long ago, when that was
/// started anew, and said so when it was asked: with a single link that broke, a node that was well counted as failed.
#[test]
fn a_refusal_from_before_the_question_says_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let options = Options {
            cluster: CLUSTER,
            node: NodeId(1),
            start: StartNumber(1),
            noted: StartNumber(0),
            room: 64 << 10,
            mutant: None,
        };
        let device = CrashDevice::new(4096, 1 << 30);
        let store = Store::found(device, options, Box::new(Counting(0)), &State::new(CLUSTER)).await.unwrap();
        let (refuses, said) = (Rc::new(Cell::new(false)), Rc::new(RefCell::default()));
        let wire =
            Wire { refuses: refuses.clone(), refusals: Cell::new(1), rests: Cell::new(true), said: Rc::clone(&said) };
        let peer = Peer::start(store, wire, Timing::default(), BTreeSet::new(), 1, None).await.unwrap();
        assert!(asked(&peer, &said).await.is_empty(), "it is there again");
        refuses.set(true);
        let gone =
            |all: Vec<Message>| all.iter().filter(|m| matches!(m, Message::Gone { node: DOUBTED, term: 0 })).count();
        assert_eq!(gone(asked(&peer, &said).await), 1);
        assert_eq!(gone(asked(&peer, &said).await), 1, "and still is not");
        refuses.set(false);
        assert!(asked(&peer, &said).await.is_empty());
    });
}

const LED: Led = Led { by: LEADER, term: 7 };

fn voter(node: u64) -> Seat {
    Seat { node: NodeId(node), store: 5 }
}

fn voters<const N: usize>(nodes: [u64; N]) -> BTreeSet<Seat> {
    nodes.into_iter().map(voter).collect()
}

fn refused(d: &mut Doubts, now_ms: u64, nodes: &[u64]) {
    nodes.iter().for_each(|n| d.hear(now_ms, LED, voter(*n), (LEADER.node, LED.term), &[voters([1, 2, 3, 4, 5])]));
}

#[test]
fn a_leader_is_given_up_when_most_voters_are_refused_and_this_one_is_among_them() {
    let five = [voters([1, 2, 3, 4, 5])];
    // Voters that were refused, in order, and if voter 3 gives the leader up at that word.
    let turn = Turn { first: 1, every: 4 };
    let cases: [(&str, &[(u64, bool)]); 4] = [
        ("a second one is no majority of five", &[(3, false), (1, false), (4, true)]),
        ("told once", &[(3, false), (1, false), (4, true), (5, false)]),
        ("who reaches it holds to it", &[(1, false), (4, false), (5, false), (3, true)]),
        ("neither it nor who has no vote counts", &[(3, false), (2, false), (9, false), (1, false), (5, true)]),
    ];
    for (what, said) in cases {
        let mut d = Doubts::default();
        for (n, gives_up) in said {
            refused(&mut d, 100, &[*n]);
            assert_eq!(d.verdict(100, voter(3), &five), gives_up.then_some(turn), "{what}: {n}");
        }
        assert!(d.has_given_up(LED) && !d.has_given_up(Led { term: 8, ..LED }));
    }
    // Of three, two are most. While the voters change, both sets count; and each has a turn of its own.
    let three = [voters([1, 2, 3])];
    let both = [voters([1, 2, 3]), voters([2, 3, 4])];
    let mut d = Doubts::default();
    refused(&mut d, 100, &[1, 3]);
    assert_eq!(d.verdict(100, voter(1), &both), None);
    assert_eq!(d.verdict(100, voter(1), &three), Some(Turn { first: 0, every: 2 }));
    refused(&mut d, 100, &[4]);
    assert_eq!(d.verdict(100, voter(1), &both), None, "it has given it up already");
    for (me, first) in [(1, 0), (3, 1), (4, 2)] {
        let mut d = Doubts::default();
        refused(&mut d, 100, &[1, 3, 4]);
        assert_eq!(d.verdict(100, voter(me), &both), Some(Turn { first, every: 3 }));
    }
    assert_eq!(Doubts::default().verdict(100, voter(1), &three), None);
}

#[test]
fn what_was_said_of_a_leader_ends_with_its_time_its_term_and_its_return() {
    let three = [voters([1, 2, 3])];
    let mut d = Doubts::default();
    refused(&mut d, 100, &[3]);
    refused(&mut d, 1101, &[1]);
    assert_eq!(d.verdict(1101, voter(1), &three), None, "voter 3 said so more than a second ago");
    let mut d = Doubts::default();
    refused(&mut d, 100, &[3]);
    d.hear(100, Led { term: 8, ..LED }, voter(1), (LEADER.node, 8), &three);
    assert_eq!(d.verdict(100, voter(1), &three), None, "that was an earlier term");
    let mut d = Doubts::default();
    refused(&mut d, 100, &[1]);
    d.hear(100, LED, voter(3), (NodeId(4), LED.term), &three);
    assert_eq!(d.verdict(100, voter(1), &three), None, "that was about another node");
    // A word that was on its way for long is about the lead in which it was said.
    let mut d = Doubts::default();
    refused(&mut d, 100, &[1]);
    d.hear(100, LED, voter(3), (LEADER.node, 6), &three);
    assert_eq!(d.verdict(100, voter(1), &three), None, "said in an earlier term, and heard in this one");
    d.hear(100, LED, voter(3), (LEADER.node, 0), &three);
    assert!(d.verdict(100, voter(1), &three).is_some(), "who is asked, or of an earlier version, names no term");
    // It is there again: this voter's own refusal is one of before.
    let mut d = Doubts::default();
    refused(&mut d, 100, &[1, 3]);
    assert!(d.verdict(100, voter(1), &three).is_some() && d.has_given_up(LED));
    assert!(!d.look(200, LED, voter(1), false));
    assert!(!d.has_given_up(LED));
    assert_eq!(d.verdict(200, voter(1), &three), None);
    refused(&mut d, 300, &[1]);
    assert_eq!(d.verdict(300, voter(1), &three), None, "and gone again: it stands as before, and not twice");
    assert!(d.has_given_up(LED));
    d.ended(Led { term: 6, ..LED });
    assert_eq!(d.verdict(300, voter(1), &three), None, "that one had stood against an earlier leader");
    d.ended(LED);
    assert!(d.verdict(300, voter(1), &three).is_some());
}

/// A node that spoke as many seats took the room of voters' words.
#[test]
fn words_of_strangers_and_of_long_ago_take_no_room() {
    let three = [voters([1, 2, 3])];
    let mut d = Doubts::default();
    for store in 0..4096 {
        d.hear(100, LED, Seat { node: NodeId(9), store }, (LEADER.node, LED.term), &three);
        d.hear(100, LED, Seat { node: NodeId(1), store: 100 + store }, (LEADER.node, LED.term), &three);
    }
    assert_eq!(format!("{d:?}").matches("Seat").count(), 1, "the leader: {d:?}");
    refused(&mut d, 100, &[4]);
    refused(&mut d, 1101, &[1, 3]);
    assert_eq!(format!("{d:?}").matches("Seat").count(), 3, "the leader, and two voters: {d:?}");
    assert!(d.verdict(1101, voter(1), &three).is_some());
}

#[test]
fn the_others_are_asked_when_the_link_is_lost_and_now_and_then_while_it_is() {
    let mut d = Doubts::default();
    let asked: Vec<u64> = (0..10).map(|i| 100 * i).filter(|at| d.look(*at, LED, voter(1), *at >= 200)).collect();
    assert_eq!(asked, [200, 500, 800]);
    assert!(!d.look(1000, LED, voter(1), false));
    assert!(d.look(1100, LED, voter(1), true), "it was lost anew");
    assert!(d.look(1200, Led { term: 8, ..LED }, voter(1), true), "and so was the next one");
}
