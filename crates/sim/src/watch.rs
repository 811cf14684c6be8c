//! A witness on the wire: rules of the protocol that can be seen from the messages alone, whoever breaks them.
//!
//! - V2: a node that promised a view in an answer to a seal still knows it after a restart, and whatever becomes of its
//!   replica it answers nothing in a view below: no durable answer, no lease, no read.
//! - V2: who has said that it holds a view's frame does not answer its seal with an empty log, unless it says that it has
//!   lost something.
//! - W4: what a node told durable in a view is there after a restart.
//! - W4, W5: what a head calls committed in its view was told durable by a quorum of the view's members.
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
    views: BTreeMap<(ShardId, ViewNumber), View>,
    /// How far each member said that it is durable in a view.
    durable: BTreeMap<(ShardId, ViewNumber, NodeId), Sequence>,
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
        let promised = self.promised(node, shard);
        if view >= promised {
            return Ok(());
        }
        Err(format!("node {node} gives a {what} in view {view} of shard {shard}, and it promised view {promised} (V2)"))
    }

    /// A node sends a message at an end of a connection. The error says which rule it breaks.
    pub fn hear(&mut self, node: NodeId, (connection, end): (u64, usize), message: &Message) -> Result<(), String> {
        match message {
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
                    let known = self.durable.entry((i.shard, i.view, node)).or_default();
                    *known = (*known).max(i.sequence);
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
        let has = |m: &&NodeId| **m == head || self.durable.get(&(shard, view, **m)).is_some_and(|d| *d >= sequence);
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
        let told = self.durable.get(&(shard, view, node));
        self.views.get(&(shard, view)).is_some_and(|v| told.is_some_and(|d| *d >= v.sequence))
    }

    /// By a control state in which this view is active, the node has left the shard: if it comes back to it, it begins
    /// anew. What it promised stays, and what it has said in newer views: that state knows nothing of them.
    pub fn left(&mut self, node: NodeId, shard: ShardId, active: ViewNumber) {
        self.durable.retain(|(s, v, n), _| (*s, *n) != (shard, node) || *v > active);
    }

    /// How far a node has said that it is durable in a view, since it last came to the shard.
    pub fn told_durable(&self, node: NodeId, shard: ShardId, view: ViewNumber) -> Sequence {
        self.durable.get(&(shard, view, node)).copied().unwrap_or_default()
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
