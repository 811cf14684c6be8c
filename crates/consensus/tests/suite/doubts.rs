//! A node that is asked whether it can reach another one.

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
    let envelope = Envelope { cluster: CLUSTER, from: LEADER, to: peer.seat(), start: StartNumber(1), id: 0 };
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
        let gone = |all: Vec<Message>| all.iter().filter(|m| matches!(m, Message::Gone(DOUBTED))).count();
        assert_eq!(gone(asked(&peer, &said).await), 1);
        assert_eq!(gone(asked(&peer, &said).await), 1, "and still is not");
        refuses.set(false);
        assert!(asked(&peer, &said).await.is_empty());
    });
}
