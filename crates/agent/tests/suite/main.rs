//! The news of a worker when the control state changes, and the views that it opens.

mod attach;
mod dial;
mod follow;
mod links;
mod register;
mod snapshots;
mod start;
mod status;

use freebs_agent::{Commands, News, Port, Shards, news_of};
use freebs_chain::{Begins, Branch, ControlPort, Forced};
use freebs_control::{Command, CreateVolume, Done, Outcome, RecoverShard, State};
use freebs_driver::Event;
use freebs_types::{
    ClusterId, Error, ErrorKind, Generation, NodeId, Peer, Result, Sequence, ShardId, StartNumber, Version, ViewNumber,
    VolumeId,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };

/// Nodes 1 to 4 with two workers each, and a volume of three copies.
fn cluster() -> State {
    let mut s = State::new(ClusterId([7; 16]));
    for n in 1..=4 {
        register(&mut s, n, 1);
    }
    let new = CreateVolume { name: "demo".into(), size: 1 << 30, copies: Some(3), ..CreateVolume::default() };
    let done = s.apply(Command::CreateVolume(new)).unwrap();
    assert_eq!(done.outcome, Outcome::Created { volume: SHARD.volume });
    s
}

fn register(s: &mut State, n: u64, start: u64) {
    s.apply(Command::RegisterNode {
        node: NodeId(n),
        name: format!("node{n}"),
        address: format!("127.0.0.1:{}", 7399 + n),
        workers: 2,
        start: StartNumber(start),
    })
    .unwrap();
}

fn head(s: &State) -> NodeId {
    s.shard(SHARD).unwrap().head().unwrap()
}

fn open(s: &mut State) -> ViewNumber {
    let (node, active) = (head(s), s.shard(SHARD).unwrap().active);
    let proposal = Command::ProposeView { shard: SHARD, active, node, start: StartNumber(1) };
    let Outcome::Proposed { view, generation, .. } = s.apply(proposal).unwrap().outcome else { panic!() };
    s.apply(Command::ActivateView { shard: SHARD, view, generation }).unwrap();
    view
}

/// A control plane whose state here is old until a command was answered.
#[derive(Clone)]
struct Plane(Rc<RefCell<State>>, Rc<RefCell<State>>);

impl Plane {
    fn new(state: State) -> Self {
        Self(Rc::new(RefCell::new(state.clone())), Rc::new(RefCell::new(state)))
    }
}

impl Commands for Plane {
    async fn submit(&self, command: Command) -> Result<Done> {
        let done = self.0.borrow_mut().apply(command);
        self.1.replace(self.0.borrow().clone());
        done
    }

    fn state(&self) -> Arc<State> {
        Arc::new(self.1.borrow().clone())
    }

    async fn changed(&self, _: u64) -> Arc<State> {
        std::future::pending().await
    }
}

/// Nothing here waits.
fn now<T>(work: impl Future<Output = T>) -> T {
    match std::pin::pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn each_shard_is_of_one_worker_of_each_member_and_told_once() {
    let state = cluster();
    let members = state.shard(SHARD).unwrap().members.clone();
    for n in 1..=4 {
        let mut told = 0;
        for worker in 0..2 {
            let mut shards = Shards::new(Peer { node: NodeId(n), worker }, 2);
            let news = shards.on_state(&state, &[], &[]);
            assert_eq!((news.left, news.gone), (vec![], vec![]));
            assert!(news.changed.iter().all(|i| i.shard == SHARD && i.members == members));
            told += news.changed.len();
            assert_eq!(shards.on_state(&state, &[], &[]), News::default(), "nothing is new in the same state");
        }
        assert_eq!(told, usize::from(members.contains(&NodeId(n))));
    }
}

#[test]
fn a_shard_whose_view_is_another_is_told_again() {
    let mut state = cluster();
    let me = Peer::of(head(&state), SHARD, 2);
    let mut shards = Shards::new(me, 2);
    shards.on_state(&state, &[], &[]);
    let view = open(&mut state);
    let news = shards.on_state(&state, &[SHARD], &[]);
    assert_eq!(news.changed.iter().map(|i| (i.active, i.highest)).collect::<Vec<_>>(), [(view, view)]);
}

/// V10: who opens a view by force is told who survives, and all members are told that a branch may come, and later which.
#[test]
fn a_shard_that_goes_on_by_force_is_told_with_its_branch() {
    let mut state = cluster();
    let first = open(&mut state);
    let members = state.shard(SHARD).unwrap().members.clone();
    let spare = (1..=4).map(NodeId).find(|n| !members.contains(n)).unwrap();
    let start = |n: NodeId| (n, StartNumber(1));
    let (survivor, lost) = (members[1], [members[0], members[2]]);
    let word = Some(Forced { survivors: vec![survivor], least: Sequence(9), known: Sequence(8), gives_up: 0 });
    let how = RecoverShard {
        shard: SHARD,
        active: first,
        by_force: true,
        members: members.clone(),
        survivors: vec![start(survivor)],
        lost: lost.map(start).to_vec(),
        chain: vec![survivor, spare],
        least: Sequence(9),
        version: Version(7),
        known: Sequence(8),
        gives_up: 0,
        same: Sequence(8),
        learn: vec![],
    };
    let mut shards = Shards::new(Peer::of(spare, SHARD, 2), 2);
    shards.on_state(&state, &[], &[]);
    let left = |n: NodeId, s: &State| Shards::new(Peer::of(n, SHARD, 2), 2).on_state(s, &[SHARD], &[]).left;
    state.apply(Command::RecoverShard(how)).unwrap();
    assert_eq!(left(lost[0], &state), [], "until there is another copy it may have the only one");
    let told = |shards: &mut Shards, state: &State| {
        let info = shards.on_state(state, &[], &[]).changed.remove(0);
        (info.forced, info.branch, info.volume.unwrap().branch)
    };
    assert_eq!(told(&mut shards, &state), (word.clone(), Branch::default(), ViewNumber(0)));
    let plane = Plane::new(state);
    let opened = now(Port::new(plane.clone(), survivor).propose(SHARD, first, StartNumber(1))).unwrap();
    assert_eq!(opened.forced, word);
    assert_eq!(opened.volume.unwrap().branch, ViewNumber(0), "its frame says more if it begins a branch");
    now(Port::new(plane.clone(), survivor).activate(SHARD, opened.view, opened.generation, Begins::Branch)).unwrap();
    let branch = Branch { view: opened.view, at: Sequence(8) };
    assert_eq!(told(&mut shards, &plane.state()), (None, branch, opened.view));
    assert_eq!(left(lost[0], &plane.state()), [(SHARD, opened.view)]);
}

/// A state that does not know a volume says nothing of it: it may be an old one, or one that was lost and made again.
#[test]
fn what_is_here_goes_only_by_a_word_of_the_control_state() {
    let mut state = cluster();
    let outside = (1..=4).map(NodeId).find(|n| !state.shard(SHARD).unwrap().is_kept_by(*n)).unwrap();
    let mut shards = Shards::new(Peer::of(outside, SHARD, 2), 2);
    let unknown = ShardId { volume: VolumeId(9), index: 0 };
    let here = [SHARD, unknown];
    assert_eq!(shards.on_state(&state, &here, &[]), News { left: vec![(SHARD, ViewNumber(0))], ..News::default() });
    let active = open(&mut state);
    assert_eq!(shards.on_state(&state, &here, &[]).left, [(SHARD, active)], "for who may be in a newer view");
    state.apply(Command::DeleteVolume { volume: SHARD.volume, force: false }).unwrap();
    assert_eq!(shards.on_state(&state, &here, &[]), News { gone: vec![SHARD], ..News::default() });
    // Of a shard that was left a promise is still here.
    assert_eq!(shards.on_state(&state, &[unknown], &[SHARD]), News { gone: vec![SHARD], ..News::default() });
}

#[test]
fn a_proposal_names_the_newest_view_that_anybody_here_knows() {
    let mut state = cluster();
    let first = open(&mut state);
    let (me, plane) = (head(&state), Plane::new(state));
    let port = Port::new(plane.clone(), me);
    let opened = now(port.propose(SHARD, ViewNumber(0), StartNumber(1))).unwrap();
    let pending = plane.state().shard(SHARD).unwrap().pending.unwrap();
    assert_eq!((opened.view, opened.pred, opened.members[0]), (pending.view, first, me));
    assert_eq!((opened.quorum, opened.pred_quorum, opened.pred_members.len()), (2, 2, 3));
    now(port.activate(SHARD, opened.view, opened.generation, Begins::Nothing)).unwrap();
    assert_eq!(plane.state().shard(SHARD).unwrap().active, opened.view);
}

/// Between the answer and the look at the state another head was named: members and quorum would be of another plan.
#[test]
fn a_view_that_is_not_pending_any_more_is_not_opened() {
    struct Late(Plane);
    impl Commands for Late {
        async fn submit(&self, command: Command) -> Result<Done> {
            let done = self.0.submit(command).await?;
            let s = self.0.state();
            let (shard, to) = (s.shard(SHARD).unwrap(), s.shard(SHARD).unwrap().members[1]);
            let other = Command::ReplaceHead { shard: SHARD, head: head(&s), active: shard.active, node: to };
            self.0.submit(other).await?;
            Ok(done)
        }

        fn state(&self) -> Arc<State> {
            self.0.state()
        }

        async fn changed(&self, since: u64) -> Arc<State> {
            self.0.changed(since).await
        }
    }
    let mut state = cluster();
    let active = open(&mut state);
    let me = head(&state);
    let port = Port::new(Late(Plane::new(state)), me);
    let refused = now(port.propose(SHARD, active, StartNumber(1))).map(|o| o.view);
    assert_eq!(refused.map_err(|e: Error| e.kind), Err(ErrorKind::Retry));
}

#[test]
fn only_a_head_hands_over() {
    let mut state = cluster();
    open(&mut state);
    let members = state.shard(SHARD).unwrap().members.clone();
    let plane = Plane::new(state);
    now(Port::new(plane.clone(), members[1]).hand_over(SHARD, members[2])).unwrap();
    assert_eq!(head(&plane.state()), members[0]);
    now(Port::new(plane.clone(), members[0]).hand_over(SHARD, members[1])).unwrap();
    assert_eq!(head(&plane.state()), members[1]);
}

#[test]
fn drivers_hear_of_the_active_view_and_of_the_end() {
    let mut state = cluster();
    let view = open(&mut state);
    let news = news_of(&state, &state, SHARD.volume);
    let [Event::Workers(workers), Event::Started(renewed), Event::Volume(spec)] = news else { panic!() };
    assert_eq!((workers.len(), workers[&NodeId(1)], renewed), (4, 2, vec![]));
    assert_eq!(spec.shards.iter().map(|s| (s.view, s.members.len())).collect::<Vec<_>>(), [(view, 3)]);
    let earlier = state.clone();
    register(&mut state, 3, 2);
    state.apply(Command::DeleteVolume { volume: SHARD.volume, force: false }).unwrap();
    let [Event::Workers(_), Event::Started(renewed), Event::Close] = news_of(&earlier, &state, SHARD.volume) else {
        panic!()
    };
    assert_eq!(renewed, [NodeId(3)]);
    assert_eq!(state.volume(SHARD.volume).map(|v| v.generation), None::<Generation>);
}
