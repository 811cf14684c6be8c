//! Shards that a node has left, or that it has never been told of: what it promised stays, and no peer's word makes a
//! replica (V2).

use super::*;
use crate::event::Event;
use freebs_lsvd::{Durable, ShardState};

/// The present chain is nodes 1 to 3 in view 1; node 4 takes the place of node 1, and node 2 is the one that is played.
struct Node {
    host: Host,
    mutant: Option<Mutant>,
    now: Nanos,
    tickets: Vec<u64>,
    /// The promises that the log has.
    promised: ViewNumber,
}

impl Node {
    fn new(mutant: Option<Mutant>) -> Self {
        let host = Host::new(config(2, mutant));
        let mut n = Self { host, mutant, now: Nanos::from_millis(1), tickets: Vec::new(), promised: ViewNumber(0) };
        n.link_up();
        n
    }

    fn link_up(&mut self) {
        for n in [1, 3, 4] {
            self.step(Event::LinkUp { link: LinkId(n), who: Who::Member(peer(n)) });
        }
    }

    /// Its messages, and to whom.
    fn step(&mut self, event: Event) -> Vec<(u64, Message)> {
        self.host.step(self.now, event);
        self.host.end_turn(self.now);
        let mut said = Vec::new();
        for action in self.host.take_actions() {
            match action {
                Action::Send { to, message } => said.push((to.0, message)),
                Action::Append(Record::Mark { change, ticket, .. }) => {
                    self.promised = change.promised.unwrap_or_default().max(self.promised);
                    self.tickets.push(ticket);
                }
                Action::Append(Record::Forget { promised, .. }) => self.promised = promised,
                _ => {}
            }
        }
        said
    }

    fn hears(&mut self, from: u64, message: Message) -> Vec<(u64, Message)> {
        self.step(Event::Message { from: LinkId(from), message })
    }

    fn told(&mut self, members: [u64; 3], active: u64) -> Vec<(u64, Message)> {
        let info = ShardInfo {
            shard: SHARD,
            members: members.map(NodeId).to_vec(),
            active: ViewNumber(active),
            known: ViewNumber(active),
            blocks: 1024,
            highest: ViewNumber(active),
            generation: Generation(0),
            has_keys: false,
            joining: Vec::new(),
            standing: Vec::new(),
            view_members: Vec::new(),
            volume: None,
            forced: None,
            branch: Branch::default(),
            snapshots: ShardSnapshots::default(),
            fork: None,
            flatten: false,
        };
        self.step(Event::Shards(vec![info]))
    }

    /// Node 1 feeds it in its view, as if it had asked, and it holds that durably. What it says then.
    fn fed_by_node_1(&mut self) -> Vec<(u64, Message)> {
        self.fed_in(1)
    }

    /// The same in this view, the last one of as many.
    fn fed_in(&mut self, view: u64) -> Vec<(u64, Message)> {
        let view = ViewNumber(view);
        let mut said = self.hears(1, Message::Nudge { shard: SHARD, view });
        let mut chain = Chain::new();
        let mut frames: Vec<Frame> = (1..=view.0).map(|v| chain.open(v)).collect();
        frames.push(chain.plain());
        let asked: Vec<SyncRequest> =
            said.iter().filter_map(|(_, m)| if let Message::Sync(r) = m { Some(r.clone()) } else { None }).collect();
        for r in asked {
            let (mode, common) = (SyncMode::Level, Sequence(0));
            let frames = frames.clone();
            let reply = SyncReply { shard: SHARD, view, id: r.id, mode, common, map_next: MapPoint::NONE, frames };
            said.extend(self.hears(1, Message::SyncReply(reply)));
        }
        for f in &frames {
            let (view, sequence) = (f.head.view(), f.head.seq());
            said.extend(self.step(Event::Durable(vec![Durable::Frame { shard: SHARD, view, sequence }])));
        }
        self.now = self.now.plus(Nanos::from_millis(10));
        said.extend(self.step(Event::Tick));
        said
    }

    /// Node 3 opens view 2.
    fn promises(&mut self) {
        let seal = Message::Seal { shard: SHARD, view: ViewNumber(2), pred: ViewNumber(1), slice: None };
        let mut said = self.hears(3, seal);
        if let Some(ticket) = self.tickets.pop() {
            said.extend(self.step(Event::Durable(vec![Durable::Mark { shard: SHARD, ticket }])));
        }
        let promise = |m: &Message| matches!(m, Message::SealAnswer(a) if a.promised == ViewNumber(2));
        assert!(said.iter().any(|(to, m)| *to == 3 && promise(m)), "{said:?}");
    }

    /// The control plane says that others have everything in this view, which is active.
    fn leaves(&mut self, active: u64) {
        self.step(Event::Left { shard: SHARD, active: ViewNumber(active) });
    }

    /// Its process starts again, with what the log has.
    fn restarts(&mut self) {
        self.host = Host::new(config(2, self.mutant));
        if self.promised.0 > 0 {
            let state = ShardState { shard: SHARD, promised: self.promised, ..ShardState::default() };
            self.host.add(Replica::recovered(&state, Vec::new(), None, Damage::default()));
        }
        self.link_up();
    }
}

fn durable_answers(said: &[(u64, Message)]) -> usize {
    said.iter().filter(|(_, m)| matches!(m, Message::Durable(_))).count()
}

/// Members 2 and 3 had promised view 2, and node 2 was replaced later and forgot the shard with its promise. Then the
/// head of view 1, which had been asleep since, woke up: node 2, blank again, followed it and was its quorum, beside
/// that of the present view. It must not, started again or not, whatever an old control state says that it is told.
#[test]
fn what_was_promised_stays_when_the_shard_is_left() {
    for (mutant, restarts) in [(None, false), (None, true), (Some(Mutant::PromisesGo), true)] {
        let mut n = Node::new(mutant);
        n.told([1, 2, 3], 1);
        assert!(durable_answers(&n.fed_by_node_1()) > 0, "a member as any other");
        n.promises();
        assert_eq!(n.promised, ViewNumber(2));
        n.leaves(2);
        assert!(n.host.shards().is_empty());
        if restarts {
            n.restarts();
        }
        // The newest state that this node knows may be an old one.
        n.told([1, 2, 3], 1);
        let answers = durable_answers(&n.fed_by_node_1());
        assert_eq!(answers > 0, mutant.is_some(), "answers in a view below the promise");
    }
}

/// A node was no member any more and was made one again in the next view, all before its copy of the control state had
/// heard of either. The head fed it in that view, and it answered. Then it heard of the state in between, forgot what it
/// had answered, and its empty log was one of those that seal that view.
#[test]
fn a_state_that_is_older_than_the_log_takes_nothing_from_it() {
    for mutant in [None, Some(Mutant::LeavesByOldStates)] {
        let mut n = Node::new(mutant);
        n.told([1, 2, 3], 1);
        assert!(durable_answers(&n.fed_in(2)) > 0);
        n.leaves(1);
        assert_eq!(n.host.shards() == [SHARD], mutant.is_none());
        // It may answer again when view 3 is opened, and has promised that.
        let mut n = Node::new(mutant);
        n.told([1, 2, 3], 1);
        n.promises();
        n.leaves(1);
        assert_eq!(n.host.shards() == [SHARD], mutant.is_none());
        n.leaves(2);
        assert!(n.host.shards().is_empty(), "the state that is as new as the log is obeyed");
    }
}

#[test]
fn a_shard_that_was_deleted_leaves_nothing() {
    let mut n = Node::new(None);
    n.told([1, 2, 3], 1);
    n.promises();
    n.leaves(2);
    assert_eq!((n.host.left_shards(), n.promised), (vec![SHARD], ViewNumber(2)));
    n.step(Event::Gone(SHARD));
    assert_eq!((n.host.left_shards(), n.promised), (vec![], ViewNumber(0)));
}

/// The head had not heard yet that the volume was deleted, and invited a member that had: the member made the shard
/// anew, took its frames, and kept them for ever. And whoever could connect made replicas of shards that never were.
#[test]
fn a_replica_is_made_by_the_control_plane_only() {
    let mut n = Node::new(None);
    assert!(n.fed_by_node_1().is_empty());
    let seal = Message::Seal { shard: SHARD, view: ViewNumber(2), pred: ViewNumber(1), slice: None };
    assert!(n.hears(3, seal).is_empty());
    assert!(n.host.shards().is_empty() && n.tickets.is_empty());
    // The invitation came first, and is followed as soon as the control plane has spoken.
    let said = n.told([1, 2, 3], 1);
    assert!(matches!(&said[..], [(1, Message::Sync(_))]), "{said:?}");
    n.step(Event::Gone(SHARD));
    assert!(n.fed_by_node_1().is_empty());
    assert!(n.host.shards().is_empty());
}

/// A member that has missed the newer view, but heard of it from the control plane, neither follows the older one nor
/// answers in it.
#[test]
fn what_is_known_to_be_dead_is_not_followed() {
    let mut n = Node::new(None);
    n.told([3, 2, 4], 2);
    assert!(n.fed_by_node_1().is_empty());
    let mut n = Node::new(None);
    n.told([1, 2, 3], 1);
    assert!(durable_answers(&n.fed_by_node_1()) > 0);
    let (last, committed, keep) = (Sequence(2), Sequence(2), Sequence(0));
    n.hears(1, Message::Heartbeat(vec![HeartbeatItem { shard: SHARD, view: ViewNumber(1), last, committed, keep }]));
    let follow = || Message::Follow { shard: SHARD, generation: Generation(0), driver: DriverId(9) };
    assert!(!n.hears(100, follow()).is_empty());
    n.told([3, 2, 4], 2);
    assert!(n.hears(100, follow()).is_empty(), "view 2 was active");
}

/// The log still had frames of a replica to write when the node left the shard and became a member anew. Their end was
/// taken for that of the new replica's frames, which were not durable yet.
#[test]
fn frames_of_a_former_replica_do_not_stand_for_those_of_the_next() {
    let mut n = Node::new(None);
    let frame = |sequence| Event::Durable(vec![Durable::Frame { shard: SHARD, view: ViewNumber(1), sequence }]);
    let feed = |n: &mut Node| {
        let said = n.hears(1, Message::Nudge { shard: SHARD, view: ViewNumber(1) });
        let [(1, Message::Sync(r))] = &said[..] else { panic!("{said:?}") };
        let (mode, common, view, mut chain) = (SyncMode::Level, Sequence(0), ViewNumber(1), Chain::new());
        let frames = vec![chain.open(1), chain.plain()];
        n.hears(
            1,
            Message::SyncReply(SyncReply {
                shard: SHARD,
                view,
                id: r.id,
                mode,
                common,
                map_next: MapPoint::NONE,
                frames,
            }),
        );
    };
    let durable = |n: &Node| n.host.status(SHARD).expect("a replica").durable;
    n.told([1, 2, 3], 1);
    feed(&mut n);
    n.step(frame(Sequence(1)));
    n.leaves(1);
    n.told([1, 2, 3], 1);
    feed(&mut n);
    n.step(frame(Sequence(2)));
    assert_eq!(durable(&n), Sequence(0), "a frame of the former one");
    n.step(Event::Durable(vec![Durable::Forget { shard: SHARD }]));
    n.step(frame(Sequence(1)));
    n.step(frame(Sequence(2)));
    assert_eq!(durable(&n), Sequence(2));
}

/// Anybody who connects may name any node as the next one on a frame's way: nothing is kept for a node without a link.
#[test]
fn frames_go_on_only_to_who_is_there() {
    let mut host = Host::new(config(3, None));
    host.step(Nanos(1), Event::LinkUp { link: LinkId(7), who: Who::Member(peer(2)) });
    let frame = Chain::new().open(1);
    let mut sent = Vec::new();
    for next in [2, 9, u64::MAX] {
        let message = Message::Frames { forward: vec![NodeId(next)], frames: vec![frame.clone()] };
        host.step(Nanos(2), Event::Message { from: LinkId(7), message });
        host.end_turn(Nanos(2));
        sent.push(
            host.take_actions()
                .iter()
                .filter(|a| matches!(a, Action::Send { message: Message::Frames { .. }, .. }))
                .count(),
        );
    }
    assert_eq!(sent, [1, 0, 0]);
    assert_eq!(host.gathers_for(), 1);
    // Nor for one that comes under another name each time, and goes.
    host.step(Nanos(3), Event::LinkDown { link: LinkId(7) });
    for n in 10..20 {
        let link = LinkId(n);
        host.step(Nanos(3), Event::LinkUp { link, who: Who::Member(peer(n)) });
        let message = Message::Frames { forward: vec![NodeId(n)], frames: vec![frame.clone()] };
        host.step(Nanos(3), Event::Message { from: link, message });
        host.end_turn(Nanos(3));
        host.step(Nanos(3), Event::LinkDown { link });
    }
    host.end_turn(Nanos(4));
    assert_eq!(host.gathers_for(), 0);
}
