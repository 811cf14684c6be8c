//! A node says that it is there until it is heard, or refused.

use super::{Plane, cluster, now};
use freebs_agent::{About, CameWith, Commands, Pause, Registration, timing};
use freebs_control::{Command, Done, State};
use freebs_types::{Error, ErrorKind, HostPublic, NodeId, Result, StartNumber};
use std::cell::Cell;
use std::sync::Arc;

const KEY: HostPublic = HostPublic([3; 32]);

fn registration(start: u64) -> Registration {
    let state = State::new(cluster().cluster());
    let numbers = vec![StartNumber(start - 1)];
    let begun = CameWith::new(NodeId(2), numbers).number(&state).unwrap().written();
    let (name, address) = ("node2".to_owned(), "127.0.0.1:7401".to_owned());
    begun.registration(About { name, address, workers: 2, key: Some(KEY) })
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
    let mut state = cluster();
    super::register(&mut state, 2, 4);
    let (plane, mut r) = (Plane::new(state), registration(3));
    let answer = now(plane.submit(r.question().unwrap()));
    assert_eq!(r.answer(answer).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
}

/// A control plane that loses the first answers to each command.
struct Flaky(Plane, Cell<u32>);

impl Commands for Flaky {
    async fn submit(&self, command: Command) -> Result<Done> {
        let done = self.0.submit(command).await;
        self.1.set(self.1.get() + 1);
        if self.1.get().is_multiple_of(3) { done } else { Err(Error::retry("no answer")) }
    }

    fn state(&self) -> Arc<State> {
        self.0.state()
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        self.0.changed(since).await
    }
}

/// Each is said until it was heard, and only then is the node taken in.
#[test]
fn a_node_is_taken_in_when_all_was_heard() {
    let (plane, pauses) = (Flaky(Plane::new(cluster()), Cell::new(0)), Cell::new(0));
    let pause = async |again: Pause| {
        assert_eq!(again.time, timing::REGISTER_AGAIN);
        pauses.set(pauses.get() + 1);
    };
    now(registration(5).say(&plane, pause)).unwrap();
    assert_eq!(pauses.get(), 4, "two for each of two");
    let state = plane.state();
    let node = state.node(NodeId(2)).unwrap();
    assert_eq!((node.start, node.host_key), (StartNumber(5), Some(KEY)));
}
