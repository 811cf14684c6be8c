//! A witness on the wire: rules of the protocol that can be seen from the messages alone, whoever breaks them.
//!
//! - V2: a node that promised a view in an answer to a seal still knows it after a restart, and whatever becomes of its
//!   replica it answers nothing in a view below: no durable answer, no lease, no read. As long as its process lives, the
//!   same holds of a view for which it asks others for seals (it has promised that first itself), and of one in which it
//!   gave a durable answer.
//! - V2: who has said that it holds a view's frame does not answer its seal with an empty log, unless it says that it has
//!   lost something.
//! - W4: what a node told durable in a view is there after a restart.
//! - W4, W5: what a head calls committed in its view was told durable by a quorum of the view's members.
//! - V7: no node leaves a shard by a control state that is older than a view in which it gave a durable answer.
//! - V5, V6: a view that is to become active was told durable by its quorum.

use freebs_format::wire::Message;
use freebs_format::{Frame, FrameKind, ViewBody};
use freebs_types::{NodeId, Sequence, ShardId, ViewNumber};
use std::collections::BTreeMap;

struct View {
    sequence: Sequence,
    quorum: usize,
    members: Vec<NodeId>,
}

/// What was said so far.
#[derive(Default)]
pub struct Witness {
    promises: BTreeMap<(NodeId, ShardId), ViewNumber>,
    /// Views that the present process of a node has promised, or is in, whether or not that was durable when it said so.
    entered: BTreeMap<(NodeId, ShardId), ViewNumber>,
    views: BTreeMap<(ShardId, ViewNumber), View>,
    /// How far each member said that it is durable in a view.
    durable: BTreeMap<(ShardId, ViewNumber, NodeId), Sequence>,
    /// The same, also of those who have left since: what was committed stays so.
    said: BTreeMap<(ShardId, ViewNumber, NodeId), Sequence>,
    /// The newest view of what a node had that a shard went on without, by force.
    lost: BTreeMap<(NodeId, ShardId), ViewNumber>,
    /// Views of reads that were asked for, by connection, its end that asked, shard and id.
    reads: BTreeMap<(u64, usize, ShardId, u64), ViewNumber>,
}

impl Witness {
    /// Somebody sends a message at an end of a connection.
    pub fn note_question(&mut self, (connection, end): (u64, usize), message: &Message) {
        if let Message::Read(r) = message {
            self.reads.insert((connection, end, r.shard, r.id), r.view);
        }
    }

    /// An answer of a node in a view.
    fn may_answer(&self, node: NodeId, shard: ShardId, view: ViewNumber, what: &str) -> Result<(), String> {
        let entered = self.entered.get(&(node, shard)).copied().unwrap_or_default();
        let promised = self.promised(node, shard).max(entered);
        if view >= promised {
            return Ok(());
        }
        Err(format!("node {node} gives a {what} in view {view} of shard {shard}, and it promised view {promised} (V2)"))
    }

    fn enter(&mut self, node: NodeId, shard: ShardId, view: ViewNumber) {
        let known = self.entered.entry((node, shard)).or_default();
        *known = (*known).max(view);
    }

    /// A process of the node begins. A promise that it told nobody may not have been durable.
    pub fn started(&mut self, node: NodeId) {
        self.entered.retain(|(n, _), _| *n != node);
    }

    /// A node sends a message at an end of a connection. The error says which rule it breaks.
    pub fn hear(&mut self, node: NodeId, (connection, end): (u64, usize), message: &Message) -> Result<(), String> {
        match message {
            Message::Seal { shard, view, .. } => self.enter(node, *shard, *view),
            Message::SealAnswer(a) if a.promised == a.view => {
                if a.last.sequence == Sequence(0) && !a.damaged && self.has_opened(node, a.shard, a.pred) {
                    let text = format!("node {node} has an empty log of shard {}", a.shard);
                    return Err(format!("{text}, and told that it holds view {} (V2)", a.pred));
                }
                let known = self.promises.entry((node, a.shard)).or_default();
                *known = (*known).max(a.view);
            }
            Message::Durable(items) => {
                for i in items {
                    self.may_answer(node, i.shard, i.view, "durable answer")?;
                    self.enter(node, i.shard, i.view);
                    for of in [&mut self.durable, &mut self.said] {
                        let known = of.entry((i.shard, i.view, node)).or_default();
                        *known = (*known).max(i.sequence);
                    }
                }
            }
            Message::Leased(l) => self.may_answer(node, l.shard, l.view, "lease")?,
            Message::ReadReply(r) => {
                if let Some(view) = self.reads.remove(&(connection, 1 - end, r.shard, r.id)) {
                    self.may_answer(node, r.shard, view, "read")?;
                }
            }
            Message::Frames { frames, .. } => frames.iter().for_each(|f| self.note_view(f)),
            Message::SyncReply(r) => r.frames.iter().for_each(|f| self.note_view(f)),
            Message::Heartbeat(items) => {
                for i in items {
                    let Some(v) = self.views.get(&(i.shard, i.view)).filter(|v| v.sequence <= i.committed) else {
                        continue;
                    };
                    if !self.holds(v, i.shard, i.view, i.committed, node) {
                        let (shard, view, quorum) = (i.shard, i.view, v.quorum);
                        let text =
                            format!("node {node} calls {} of shard {shard} committed in view {view}", i.committed);
                        return Err(format!("{text}, and no {quorum} members said that they have it"));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn note_view(&mut self, frame: &Frame) {
        let h = frame.header();
        if frame.head.kind() != FrameKind::View {
            return;
        }
        if let Ok(body) = ViewBody::decode(frame.head.body()) {
            let members = body.members.iter().map(|m| m.node).collect();
            let view = View { sequence: h.seq(), quorum: usize::from(body.quorum), members };
            self.views.insert((frame.head.shard(), h.view_number()), view);
        }
    }

    /// Whether a quorum has said that it is durable up to `sequence`; the head speaks for itself.
    fn holds(&self, v: &View, shard: ShardId, view: ViewNumber, sequence: Sequence, head: NodeId) -> bool {
        let has = |m: &&NodeId| **m == head || self.said.get(&(shard, view, **m)).is_some_and(|d| *d >= sequence);
        v.members.iter().filter(has).count() >= v.quorum
    }

    /// The head of a pending view says that its quorum has it.
    pub fn may_be_active(&self, shard: ShardId, view: ViewNumber, head: NodeId, quorum: usize) -> bool {
        match self.views.get(&(shard, view)) {
            Some(v) => self.holds(v, shard, view, v.sequence, head),
            // Its view frame was sent to nobody.
            None => quorum <= 1,
        }
    }

    /// Whether a node has said that it holds a view's frame, and so everything before it.
    pub fn has_opened(&self, node: NodeId, shard: ShardId, view: ViewNumber) -> bool {
        let told = self.durable.get(&(shard, view, node)).filter(|_| !self.is_lost(node, shard, view));
        let holds = |v: &View| told.is_some_and(|d| *d >= v.sequence);
        self.views.get(&(shard, view)).is_some_and(holds)
    }

    /// By a control state in which this view is active, the node has left the shard: if it comes back to it, it begins
    /// anew. What it promised stays, and what it has said in newer views: that state knows nothing of them.
    pub fn left(&mut self, node: NodeId, shard: ShardId, active: ViewNumber) {
        self.durable.retain(|(s, v, n), _| (*s, *n) != (shard, node) || *v > active);
    }

    /// The newest view above this one in which a node has said that it is durable, of those that count: of a view that never
    /// became active nothing does (V4).
    pub fn told_above(
        &self,
        node: NodeId,
        shard: ShardId,
        view: ViewNumber,
        counts: impl Fn(ViewNumber) -> bool,
    ) -> Option<ViewNumber> {
        let told = self.durable.keys().filter(|(s, v, n)| (*s, *n) == (shard, node) && *v > view && counts(*v));
        told.map(|(_, v, _)| *v).max()
    }

    /// How far a node has said that it is durable in a view, since it last came to the shard.
    pub fn told_durable(&self, node: NodeId, shard: ShardId, view: ViewNumber) -> Sequence {
        let told = self.durable.get(&(shard, view, node)).filter(|_| !self.is_lost(node, shard, view));
        told.copied().unwrap_or_default()
    }

    /// The shard goes on by force, and not with what this node has: it need not have what it had of views up to this one any
    /// more, but for what it promised (V10).
    pub fn lose(&mut self, node: NodeId, shard: ShardId, view: ViewNumber) {
        self.lost.insert((node, shard), view);
    }

    fn is_lost(&self, node: NodeId, shard: ShardId, view: ViewNumber) -> bool {
        self.lost.get(&(node, shard)).is_some_and(|lost| view <= *lost)
    }

    /// Shards of which a node has promised views, and the highest one of each.
    pub fn promises(&self, node: NodeId) -> impl Iterator<Item = (ShardId, ViewNumber)> {
        self.promises.iter().filter(move |((n, _), _)| *n == node).map(|((_, shard), view)| (*shard, *view))
    }

    /// What a node has promised in answers to seals.
    pub fn promised(&self, node: NodeId, shard: ShardId) -> ViewNumber {
        self.promises.get(&(node, shard)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_format::Pin;
    use freebs_format::wire::{
        DurableItem, FrameName, Given, HeartbeatItem, Leased, ReadReply, ReadRequest, SealAnswer,
    };
    use freebs_types::{BlockRange, Generation, Lba, Nanos, VolumeId};

    const NODE: NodeId = NodeId(2);
    const SHARD: ShardId = ShardId { volume: VolumeId(1), index: 0 };
    /// The connection on which the node answers, and its end of it.
    const HERE: (u64, usize) = (7, 1);

    fn seal_answer(view: u64, promised: u64) -> Message {
        Message::SealAnswer(SealAnswer {
            shard: SHARD,
            view: ViewNumber(view),
            pred: ViewNumber(1),
            last: FrameName::default(),
            has_pred: true,
            committed: Sequence(0),
            damaged: true,
            promised: ViewNumber(promised),
            given: Given::Nothing,
        })
    }

    fn durable(view: u64) -> Message {
        let item = DurableItem { shard: SHARD, view: ViewNumber(view), sequence: Sequence(1), room: None };
        Message::Durable(vec![item])
    }

    fn leased(view: u64) -> Message {
        let (view, generation, stamp) = (ViewNumber(view), Generation(1), Nanos(0));
        Message::Leased(Leased { shard: SHARD, view, generation, stamp, older_ms: 0 })
    }

    /// A read is asked for in a view, and its answer.
    fn read(w: &mut Witness, view: u64, id: u64) -> Message {
        let (view, generation, floor) = (ViewNumber(view), Generation(1), Sequence(0));
        let range = BlockRange { start: Lba(0), len: 1 };
        let (status_only, at, since) = (false, Pin::default(), Pin::default());
        let asked = ReadRequest { shard: SHARD, view, generation, id, floor, range, status_only, at, since };
        w.note_question((HERE.0, 1 - HERE.1), &Message::Read(asked));
        Message::ReadReply(ReadReply { shard: SHARD, id, pieces: vec![], crcs: vec![], data: vec![] })
    }

    /// The answers in this view that are flagged.
    fn flagged(w: &mut Witness, view: u64) -> Vec<&'static str> {
        let answers = [("lease", leased(view)), ("read", read(w, view, view)), ("durable", durable(view))];
        answers.into_iter().filter(|(_, m)| w.hear(NODE, HERE, m).is_err()).map(|(name, _)| name).collect()
    }

    #[test]
    fn answers_below_a_promise_are_flagged_over_restarts_too() {
        let mut w = Witness::default();
        assert_eq!(flagged(&mut w, 1), [""; 0]);
        w.hear(NODE, HERE, &seal_answer(3, 3)).unwrap();
        assert_eq!(w.promised(NODE, SHARD), ViewNumber(3));
        for _ in 0..2 {
            assert_eq!(flagged(&mut w, 2), ["lease", "read", "durable"]);
            // The fate of the replica changes nothing.
            w.left(NODE, SHARD, ViewNumber(9));
            w.started(NODE);
        }
        assert_eq!(flagged(&mut w, 3), [""; 0]);
        w.hear(NodeId(3), HERE, &durable(2)).unwrap();
        // One that was asked for a view says which higher one it has promised.
        w.hear(NODE, HERE, &seal_answer(4, 9)).unwrap();
        assert_eq!(w.promised(NODE, SHARD), ViewNumber(3));
    }

    #[test]
    fn a_head_that_asks_for_seals_has_promised_itself_for_as_long_as_it_lives() {
        let mut w = Witness::default();
        let seal = Message::Seal { shard: SHARD, view: ViewNumber(3), pred: ViewNumber(1), slice: None };
        w.hear(NODE, HERE, &seal).unwrap();
        assert_eq!(flagged(&mut w, 2), ["lease", "read", "durable"]);
        w.started(NODE);
        assert_eq!(flagged(&mut w, 2), [""; 0], "it may have died before its promise was durable");
        assert_eq!(w.promised(NODE, SHARD), ViewNumber(0));
    }

    #[test]
    fn an_older_state_takes_back_nothing_of_newer_views() {
        let mut w = Witness::default();
        for view in [1, 3] {
            w.hear(NODE, HERE, &durable(view)).unwrap();
        }
        w.hear(NodeId(3), HERE, &durable(9)).unwrap();
        assert_eq!(w.told_above(NODE, SHARD, ViewNumber(2), |_| true), Some(ViewNumber(3)));
        w.left(NODE, SHARD, ViewNumber(2));
        let told = |w: &Witness, view| w.told_durable(NODE, SHARD, ViewNumber(view));
        assert_eq!((told(&w, 1), told(&w, 3)), (Sequence(0), Sequence(1)));
        assert_eq!(w.told_above(NODE, SHARD, ViewNumber(3), |_| true), None);
        assert_eq!(w.told_above(NODE, SHARD, ViewNumber(2), |_| false), None);
    }

    /// A head stood still, and its chain went on without it and the others, which have left meanwhile. It goes on, and says what
    /// was committed before.
    #[test]
    fn what_was_committed_stays_so_when_members_leave() {
        let mut w = Witness::default();
        let members = vec![NodeId(1), NODE, NodeId(3)];
        w.views.insert((SHARD, ViewNumber(2)), View { sequence: Sequence(1), quorum: 2, members });
        let (view, committed) = (ViewNumber(2), Sequence(1));
        let item = HeartbeatItem { shard: SHARD, view, last: committed, committed, keep: committed };
        let told = Message::Heartbeat(vec![item]);
        assert!(w.hear(NodeId(1), HERE, &told).is_err(), "nobody else has said so");
        w.hear(NODE, HERE, &durable(2)).unwrap();
        w.left(NODE, SHARD, ViewNumber(5));
        w.hear(NodeId(1), HERE, &told).unwrap();
    }

    #[test]
    fn who_is_in_a_view_answers_in_none_below() {
        let mut w = Witness::default();
        w.hear(NODE, HERE, &durable(3)).unwrap();
        assert_eq!(flagged(&mut w, 2), ["lease", "read", "durable"]);
        assert_eq!(flagged(&mut w, 4), [""; 0]);
        assert_eq!(flagged(&mut w, 3), ["lease", "read", "durable"]);
    }
}
