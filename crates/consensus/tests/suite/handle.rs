//! One node alone, by the same code: a seat in a thread of its own, used through the trait by another thread, and the
//! same cluster after a restart. Real time, memory devices.

#![allow(clippy::disallowed_methods, reason = "a thread as a node has it")]

use freebs_consensus::handle::{Handle, handle};
use freebs_consensus::{Network, Options, Peer, Seat, Store, Timing};
use freebs_control::{Command, ControlPlane, CreateVolume, Outcome, State};
use freebs_io::Random;
use freebs_io::faults::CrashDevice;
use freebs_types::*;
use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use tokio::task::LocalSet;

struct Nobody;

impl Network for Nobody {
    fn send(&self, to: Seat, _: Vec<u8>) {
        panic!("a node alone has nobody to send to, not {to}");
    }
}

struct Counting(u64);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes.iter_mut().zip(self.0.to_le_bytes().iter().cycle()).for_each(|(b, n)| *b = *n);
    }
}

const CLUSTER: ClusterId = ClusterId([8; 16]);

/// What the cluster has before it begins.
fn before() -> State {
    let mut state = State::new(CLUSTER);
    for id in 1..=3 {
        let (name, address) = (format!("n{id}"), format!("h:{id}"));
        let node = Command::RegisterNode { node: NodeId(id), name, address, workers: 1, start: StartNumber(0) };
        state.apply(node).unwrap();
    }
    state
}

/// Runs a seat until `stop` is dropped; twice on the same device, as two starts.
fn seat(desks: mpsc::Receiver<(freebs_consensus::handle::Desk, tokio::sync::oneshot::Receiver<()>)>) {
    let device = CrashDevice::new(4096, 1 << 30);
    for start in 0..2 {
        let (desk, stop) = desks.recv().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let device = device.clone();
        LocalSet::new().block_on(&runtime, async move {
            let options = Options {
                cluster: CLUSTER,
                node: NodeId(1),
                start: StartNumber(start + 1),
                noted: StartNumber(start),
                room: 64 << 10,
                mutant: None,
            };
            let random = Box::new(Counting(start * 1000));
            let store = match start {
                0 => Store::found(device, options, random, &before()).await.unwrap(),
                _ => Store::open(device, options, random).await.unwrap(),
            };
            let timing = Timing { heartbeat_ms: 20, election_ms: 120, ..Timing::default() };
            let peer = Peer::start(store, Nobody, timing, BTreeSet::new(), start, None).await.unwrap();
            let founder = peer.clone();
            peer.spawn(async move { founder.stand().await });
            let leader = peer.clone();
            let serve = desk.serve(peer);
            tokio::select! {
                () = serve => panic!("the handle is still there"),
                _ = stop => {}
            }
            leader.check().unwrap();
        });
    }
}

fn new_desk(
    desks: &mpsc::Sender<(freebs_consensus::handle::Desk, tokio::sync::oneshot::Receiver<()>)>,
) -> (Handle, tokio::sync::oneshot::Sender<()>) {
    let (tx, rx) = tokio::sync::oneshot::channel();
    let (handle, desk) = handle(Arc::new(State::new(CLUSTER)));
    desks.send((desk, rx)).unwrap();
    (handle, tx)
}

#[test]
fn one_node_alone_is_a_cluster() {
    let (desks, served) = mpsc::channel();
    let thread = std::thread::spawn(move || seat(served));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (control, stop) = new_desk(&desks);
    runtime.block_on(async {
        let node = Command::RegisterNode {
            node: NodeId(1),
            name: "n1".into(),
            address: "h:1".into(),
            workers: 1,
            start: StartNumber(1),
        };
        control.submit(node).await.unwrap();
        assert_eq!(control.state().nodes().len(), 3, "it goes on from the state that it was founded with");
        let new = CreateVolume { name: "v".into(), size: 1 << 30, ..CreateVolume::default() };
        let new = CreateVolume { copies: Some(3), ..new };
        let done = control.submit(Command::CreateVolume(new.clone())).await.unwrap();
        assert_eq!(done.outcome, Outcome::Created { volume: VolumeId(1) });
        assert!(control.state().volume(VolumeId(1)).is_some(), "what is answered is seen");
        let again = control.submit(Command::CreateVolume(new)).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Invalid, "the state machine's own refusal comes through");
    });
    let revision = control.state().revision();
    drop(stop);
    let (control, stop) = new_desk(&desks);
    runtime.block_on(async {
        let state = control.changed(0).await;
        let done = control.submit(Command::DeleteVolume { volume: VolumeId(1), force: false }).await.unwrap();
        assert!(state.revision() <= revision && done.revision == revision + 1, "nothing was lost");
    });
    drop(stop);
    thread.join().unwrap();
}
