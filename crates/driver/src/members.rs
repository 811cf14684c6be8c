//! Members of shards and the links to them.
//!
//! Invariants: there is a link entry for each peer that is a member of a shard, and only for those; `Connect` is
//! asked once, and again only after the answer was `LinkDown` and a back-off has passed, or news have come of the peer:
//! a view that names it, or a start of its node.

use crate::leases::Lease;
use crate::shard::Attach;
use crate::timers::Timer;
use crate::{Action, Driver, timing};
use freebs_types::{Nanos, NodeId, Peer, Sequence, ShardId, limits};
use std::collections::{BTreeMap, BTreeSet};

/// Pauses from `BACK_OFF_MIN_MS` on, doubling to `BACK_OFF_MAX_MS`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    pub fn next(&mut self) -> Nanos {
        let ms = (timing::BACK_OFF_MIN_MS << self.0).min(timing::BACK_OFF_MAX_MS);
        self.0 = (self.0 + 1).min(6);
        Nanos::from_millis(ms)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Connecting,
    Up,
    Down,
}

pub(crate) struct Link {
    pub(crate) state: LinkState,
    pub(crate) backoff: Backoff,
    pub(crate) due: Option<Nanos>,
}

impl Link {
    /// One that was just asked for.
    pub fn wanted() -> Self {
        Self { state: LinkState::Connecting, backoff: Backoff::default(), due: None }
    }

    pub fn is_up(&self) -> bool {
        self.state == LinkState::Up
    }
}

/// A member of a view.
pub(crate) struct Member {
    pub node: NodeId,
    pub peer: Peer,
    /// Its durable sequence in the shard's view, `None` until it has said so there.
    pub durable: Option<Sequence>,
    /// When it was last asked to be followed.
    pub asked: Option<Nanos>,
    pub lease: Lease,
    /// Reads without an answer.
    pub reads: u32,
    /// It refused a read: no further ones before this time.
    pub rest_until: Nanos,
    pub rest: Backoff,
    /// It was silent for too long on a read.
    pub silence: Option<Silence>,
}

/// A member that left a read without an answer: others are asked first, until it answers in time again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    /// From then on a read asks it, too, beside another member.
    pub probe_at: Nanos,
    /// The last attempt at it, and when that was made.
    pub asked: Option<(u64, Nanos)>,
}

impl Member {
    /// Members of a view, head first.
    pub fn list(nodes: &[NodeId], shard: ShardId, workers: &BTreeMap<NodeId, u16>) -> Vec<Self> {
        let member = |node: &NodeId| Self {
            node: *node,
            peer: peer(*node, shard, workers),
            durable: None,
            asked: None,
            lease: Lease::default(),
            reads: 0,
            rest_until: Nanos(0),
            rest: Backoff::default(),
            silence: None,
        };
        nodes.iter().take(limits::CHAIN_MEMBERS_MAX).map(member).collect()
    }
}

pub(crate) fn peer(node: NodeId, shard: ShardId, workers: &BTreeMap<NodeId, u16>) -> Peer {
    Peer::of(node, shard, workers.get(&node).copied().unwrap_or(1))
}

impl Driver {
    pub(crate) fn is_up(&self, peer: Peer) -> bool {
        self.links.get(&peer).is_some_and(Link::is_up)
    }

    /// Asks for a link unless there is one or one is on its way. Returns whether it is up.
    pub(crate) fn want_link(&mut self, peer: Peer, out: &mut Vec<Action>) -> bool {
        if let Some(link) = self.links.get(&peer) {
            return link.is_up();
        }
        self.links.insert(peer, Link::wanted());
        out.push(Action::Connect(peer));
        false
    }

    /// Forgets links to who is no member any more.
    pub(crate) fn prune_links(&mut self) {
        let wanted: BTreeSet<_> = self.shards.iter().flat_map(|s| s.members.iter().map(|m| m.peer)).collect();
        let gone: Vec<_> = self.links.keys().filter(|p| !wanted.contains(p)).copied().collect();
        for peer in gone {
            if let Some(mut link) = self.links.remove(&peer) {
                self.timers.disarm(&mut link.due, Timer::Connect(peer));
            }
            for fetch in self.lose_attempts(peer) {
                self.wait(fetch, None);
            }
        }
    }

    pub(crate) fn link_up(&mut self, peer: Peer, out: &mut Vec<Action>) {
        if self.links.get(&peer).is_some_and(Link::is_up) {
            // A new link in place of one whose end was not told.
            self.link_down(peer, out);
        }
        let Some(link) = self.links.get_mut(&peer) else { return };
        self.timers.disarm(&mut link.due, Timer::Connect(peer));
        link.state = LinkState::Up;
        for s in 0..self.shards.len() {
            if let Some(m) = self.shards[s].position(peer) {
                let member = &mut self.shards[s].members[m];
                (member.rest_until, member.silence) = (Nanos(0), None);
                member.lease.link_up();
                self.greet(s, m, out);
                self.tend_leases(s, out);
                self.wake_reads(s, out);
            }
        }
    }

    pub(crate) fn link_down(&mut self, peer: Peer, out: &mut Vec<Action>) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let was_up = link.is_up();
        link.state = LinkState::Down;
        let at = self.now.plus(link.backoff.next());
        self.timers.arm(&mut link.due, at, Timer::Connect(peer));
        if !was_up {
            return;
        }
        for s in 0..self.shards.len() {
            let shard = &mut self.shards[s];
            if shard.is_head(peer) {
                shard.attach = Attach::Idle;
                self.timers.disarm(&mut shard.attach_due, Timer::Attach(s));
            }
        }
        for fetch in self.lose_attempts(peer) {
            self.go_on(fetch, out);
        }
    }

    pub(crate) fn connect_again(&mut self, peer: Peer, out: &mut Vec<Action>) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.due = None;
        if link.state == LinkState::Down {
            link.state = LinkState::Connecting;
            out.push(Action::Connect(peer));
        }
    }

    /// News have come of this peer, so it may answer now: if its link is down, it is opened at once. If that fails, or one
    /// is being opened, the pauses begin with the shortest again.
    pub(crate) fn connect_now(&mut self, peer: Peer, out: &mut Vec<Action>) {
        let Some(link) = self.links.get_mut(&peer).filter(|l| !l.is_up()) else { return };
        link.backoff = Backoff::default();
        self.timers.disarm(&mut link.due, Timer::Connect(peer));
        self.connect_again(peer, out);
    }

    pub(crate) fn nodes_started(&mut self, nodes: &[NodeId], out: &mut Vec<Action>) {
        let peers: Vec<Peer> = self.links.keys().filter(|p| nodes.contains(&p.node)).copied().collect();
        peers.into_iter().for_each(|peer| self.connect_now(peer, out));
    }

    /// The link carries messages, so the next time it breaks is the first time again.
    pub(crate) fn heard(&mut self, peer: Peer) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.backoff = Backoff::default();
        }
    }

    pub(crate) fn workers_changed(&mut self, workers: BTreeMap<NodeId, u16>, out: &mut Vec<Action>) {
        self.workers = workers;
        let mut moved = Vec::new();
        for (s, shard) in self.shards.iter_mut().enumerate() {
            for (m, member) in shard.members.iter_mut().enumerate() {
                let new = peer(member.node, shard.id, &self.workers);
                if new == member.peer {
                    continue;
                }
                if m == 0 {
                    shard.attach = Attach::Idle;
                    self.timers.disarm(&mut shard.attach_due, Timer::Attach(s));
                }
                member.peer = new;
                moved.push(s);
            }
        }
        moved.dedup();
        self.prune_links();
        for s in moved {
            self.contact(s, out);
            self.wake_reads(s, out);
        }
    }
}
