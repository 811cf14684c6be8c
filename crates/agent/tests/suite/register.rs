//! A node says that it is there until it is heard, or refused.

use super::{Plane, cluster, now};
use freebs_agent::{Commands, Pause, Registration, timing};
use freebs_control::Command;
use freebs_types::{Error, ErrorKind, HostPublic, NodeId, StartNumber};

const KEY: HostPublic = HostPublic([3; 32]);

fn registration(start: u64) -> Registration {
    let (node, start) = (NodeId(2), StartNumber(start));
    let (name, address) = ("node2".to_owned(), "127.0.0.1:7401".to_owned());
    Registration::new(node, start, Command::RegisterNode { node, name, address, workers: 2, start }, Some(KEY))
}

#[test]
fn a_start_and_a_key_are_said_in_this_order() {
    let (plane, mut r) = (Plane::new(cluster()), registration(5));
    while let Some(command) = r.question() {
        assert_eq!(r.answer(now(plane.submit(command))), Ok(None));
    }
    let state = plane.state();
    let node = state.node(NodeId(2)).unwrap();
    assert_eq!((node.start, node.host_key), (StartNumber(5), Some(KEY)));
}

#[test]
fn what_may_pass_is_waited_for_and_said_again() {
    let mut r = registration(5);
    let first = r.question();
    for (why, time) in [
        (Error::retry("nobody leads"), timing::REGISTER_AGAIN),
        (Error::no_space("the disk is full"), timing::REGISTER_UNWRITTEN_AGAIN),
        (Error::os("can't write"), timing::REGISTER_UNWRITTEN_AGAIN),
    ] {
        assert_eq!(r.answer(Err(why.clone())), Ok(Some(Pause { why, time })));
        assert_eq!(r.question(), first);
    }
}

/// Rule V8: an older start than is known.
#[test]
fn who_is_refused_hears_so() {
    let (plane, mut r) = (Plane::new(cluster()), registration(0));
    let answer = now(plane.submit(r.question().unwrap()));
    assert_eq!(r.answer(answer).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
}
