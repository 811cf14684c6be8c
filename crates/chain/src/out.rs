//! What one turn brings together: one message of frames and one of durable answers for each link.

use crate::event::{Action, Note, NoteKind};
use crate::peers::Peers;
use crate::timing;
use freebs_format::Frame;
use freebs_format::wire::{DurableItem, HeartbeatItem, Message};
use freebs_io::LinkId;
use freebs_types::{Nanos, NodeId, Peer, RequestNumber, Sequence, ShardId, ViewNumber};
use std::collections::BTreeMap;

/// Data bytes that go into one message of frames before another is begun.
const FRAMES_BYTES_SOFT_MAX: usize = 1 << 20;
/// Frames in one message.
const FRAMES_MAX: usize = 512;

#[derive(Debug, Default)]
struct ForPeer {
    /// Runs of frames with one route, in order.
    frames: Vec<(Vec<NodeId>, Vec<Frame>)>,
    answers: BTreeMap<ShardId, DurableItem>,
    /// When the oldest answer came.
    since: Option<Nanos>,
    heartbeats: Vec<HeartbeatItem>,
}

impl ForPeer {
    /// All that was gathered, as messages: answers, frames, heartbeats.
    fn send(&mut self, to: LinkId, actions: &mut Vec<Action>) {
        let mut send = |message| actions.push(Action::Send { to, message });
        self.since = None;
        let answers = std::mem::take(&mut self.answers);
        if !answers.is_empty() {
            send(Message::Durable(answers.into_values().collect()));
        }
        for (forward, frames) in std::mem::take(&mut self.frames) {
            for frames in portions(frames) {
                send(Message::Frames { forward: forward.clone(), frames });
            }
        }
        let heartbeats = std::mem::take(&mut self.heartbeats);
        if !heartbeats.is_empty() {
            send(Message::Heartbeat(heartbeats));
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Out {
    pub actions: Vec<Action>,
    /// One for each peer with a link, and for others as long as something is gathered for them.
    peers: BTreeMap<Peer, ForPeer>,
    durable: BTreeMap<LinkId, Vec<DurableItem>>,
    ordered: BTreeMap<(LinkId, ShardId, ViewNumber), Vec<(RequestNumber, Sequence)>>,
}

impl Out {
    pub fn send(&mut self, to: LinkId, message: Message) {
        self.actions.push(Action::Send { to, message });
    }

    pub fn note(&mut self, text: String) {
        self.actions.push(Action::Note(Note::new(NoteKind::Trace, None, text)));
    }

    /// Something that people are told of a shard even if they do not read logs.
    pub fn tell(&mut self, kind: NoteKind, shard: ShardId, text: &str) {
        let text = format!("shard {shard}: {text}");
        self.actions.push(Action::Note(Note::new(kind, Some(shard), text)));
    }

    /// A frame for `peer`, which passes it on along `route`.
    pub fn frame(&mut self, peer: Peer, route: &[NodeId], frame: Frame) {
        let queue = &mut self.peers.entry(peer).or_default().frames;
        match queue.last_mut() {
            Some((r, frames)) if r == route => frames.push(frame),
            _ => queue.push((route.to_vec(), vec![frame])),
        }
    }

    /// A durable answer for the head, sent with the next message or after a short while.
    pub fn answer_head(&mut self, peer: Peer, item: DurableItem, now: Nanos) {
        let p = self.peers.entry(peer).or_default();
        p.answers.insert(item.shard, item);
        p.since.get_or_insert(now);
    }

    pub fn heartbeat(&mut self, peer: Peer, item: HeartbeatItem) {
        self.peers.entry(peer).or_default().heartbeats.push(item);
    }

    /// A durable answer for a driver; of several in one turn only the last is sent.
    pub fn answer_driver(&mut self, link: LinkId, item: DurableItem) {
        let items = self.durable.entry(link).or_default();
        match items.iter_mut().find(|i| i.shard == item.shard && i.view == item.view) {
            Some(i) => i.sequence = i.sequence.max(item.sequence),
            None => items.push(item),
        }
    }

    /// What was gathered for a driver that has no right to it any more.
    pub fn forget(&mut self, link: LinkId, shard: ShardId) {
        if let Some(items) = self.durable.get_mut(&link) {
            items.retain(|i| i.shard != shard);
            if items.is_empty() {
                self.durable.remove(&link);
            }
        }
        self.ordered.retain(|(l, s, _), _| (*l, *s) != (link, shard));
    }

    /// Drops a shard's durable answers that were gathered: they would come after a promise that they do not know of.
    pub fn forget_answers(&mut self, shard: ShardId) {
        self.durable.retain(|_, items| {
            items.retain(|i| i.shard != shard);
            !items.is_empty()
        });
        self.peers.values_mut().for_each(|p| p.answers.retain(|s, _| *s != shard));
    }

    pub fn ordered(&mut self, link: LinkId, shard: ShardId, view: ViewNumber, item: (RequestNumber, Sequence)) {
        self.ordered.entry((link, shard, view)).or_default().push(item);
    }

    /// Ends the turn: everything gathered becomes messages. Answers to heads may wait for company.
    pub fn flush(&mut self, now: Nanos, peers: &Peers) {
        for ((link, shard, view), items) in std::mem::take(&mut self.ordered) {
            self.actions.push(Action::Send { to: link, message: Message::Ordered { shard, view, items } });
        }
        for (link, items) in std::mem::take(&mut self.durable) {
            self.actions.push(Action::Send { to: link, message: Message::Durable(items) });
        }
        let actions = &mut self.actions;
        self.peers.retain(|peer, p| {
            let link = peers.link(*peer);
            let due = p.since.is_some_and(|s| now.since(s) >= timing::HEAD_ANSWER_DELAY);
            if p.frames.is_empty() && p.heartbeats.is_empty() && !due {
                return link.is_some() || p.since.is_some();
            }
            let Some(to) = link else { return false };
            p.send(to, actions);
            true
        });
    }

    /// Peers that something is gathered for, or may be again soon.
    #[cfg(test)]
    pub fn gathers_for(&self) -> usize {
        self.peers.len()
    }

    /// When a waiting answer is due.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.peers.values().filter_map(|p| p.since).min().map(|s| s.plus(timing::HEAD_ANSWER_DELAY))
    }
}

/// Cuts a run of frames into messages of bounded size.
fn portions(frames: Vec<Frame>) -> Vec<Vec<Frame>> {
    let mut out: Vec<Vec<Frame>> = Vec::new();
    let mut bytes = 0;
    for f in frames {
        let len = f.data_bytes() + f.head.bytes().len();
        match out.last_mut() {
            Some(run) if bytes + len <= FRAMES_BYTES_SOFT_MAX && run.len() < FRAMES_MAX => {
                bytes += len;
                run.push(f);
            }
            _ => {
                bytes = len;
                out.push(vec![f]);
            }
        }
    }
    out
}
