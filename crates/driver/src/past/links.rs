//! The links to the nodes that may have the past of a shard, and the choice of the next one to ask.
//!
//! Invariants: there is a link entry for each peer that is a member of a shard, and only for those; `Connect` is asked once,
//! and again only after the answer was `LinkDown` and a back-off has passed, or news have come of the peer.

use super::Past;
use super::fetch::Fetch;
use super::member::{MEMBERS_MAX, list};
use crate::members::{Backoff, Link, LinkState, peer};
use crate::reads::OUTSTANDING_MAX;
use crate::slab::Key;
use crate::timers::Timer;
use crate::{Action, VolumeSpec};
use freebs_types::{Nanos, NodeId, Peer};
use std::collections::{BTreeMap, BTreeSet};

impl Past {
    pub(super) fn is_up(&self, peer: Peer) -> bool {
        self.links.get(&peer).is_some_and(Link::is_up)
    }

    /// True if a fetch may ask a member now: one that it has not asked in this round.
    pub(super) fn may_ask(&self, fetch: &Fetch, m: usize) -> bool {
        let member = &self.shards[fetch.shard].members[m];
        (fetch.tried | fetch.useless()) & (1 << m) == 0 && self.now >= member.rest_until && self.is_up(member.peer)
    }

    /// The member to ask: the local one, else who has least to do, in turn. Reads of the past come in bulk, so all members
    /// are used.
    pub(super) fn choose(&mut self, key: Key) -> Option<usize> {
        let fetch = self.fetches.get(key)?;
        let members = &self.shards[fetch.shard].members;
        let n = members.len();
        let in_turn = || (0..n).map(|i| (self.turn + i) % n).filter(|m| self.may_ask(fetch, *m));
        let awake = || in_turn().filter(|m| members[*m].silence.is_none());
        let is_local = |m: &usize| Some(members[*m].node) == self.local && members[*m].reads < OUTSTANDING_MAX;
        let chosen = awake()
            .find(is_local)
            .or_else(|| awake().min_by_key(|m| members[*m].reads))
            .or_else(|| in_turn().min_by_key(|m| members[*m].reads));
        self.turn = self.turn.wrapping_add(1);
        chosen
    }

    /// Lets a fetch wait for members, and try again after a time if there is one to wait for.
    pub(super) fn wait(&mut self, key: Key, again: Option<Nanos>) {
        let Some(fetch) = self.fetches.get_mut(key) else { return };
        self.timers.disarm(&mut fetch.due, Timer::Hedge(key));
        let s = fetch.shard;
        let shard = &mut self.shards[s];
        if !std::mem::replace(&mut fetch.waiting, true) {
            shard.waiting.push(key);
        }
        let rested = shard.members.iter().map(|m| m.rest_until).filter(|t| *t > self.now).min();
        let at = [again.map(|d| self.now.plus(d)), rested].into_iter().flatten().min();
        if let Some(at) = at
            && shard.due.is_none_or(|due| at < due)
        {
            self.timers.arm(&mut shard.due, at, Timer::Reads(s));
        }
    }

    pub(super) fn reads_again(&mut self, s: usize, out: &mut Vec<Action>) {
        self.shards[s].due = None;
        self.wake_reads(s, out);
    }

    /// Something has changed that fetches without a member may have waited for.
    fn wake_reads(&mut self, s: usize, out: &mut Vec<Action>) {
        for key in std::mem::take(&mut self.shards[s].waiting) {
            if let Some(fetch) = self.fetches.get_mut(key) {
                fetch.waiting = false;
                self.go_on(key, out);
            }
        }
    }

    /// Asks for links to all members that have none.
    pub(super) fn contact(&mut self, out: &mut Vec<Action>) {
        let wanted: BTreeSet<_> = self.shards.iter().flat_map(|s| s.members.iter().map(|m| m.peer)).collect();
        for peer in wanted {
            if let std::collections::btree_map::Entry::Vacant(e) = self.links.entry(peer) {
                e.insert(Link::wanted());
                out.push(Action::Connect(peer));
            }
        }
    }

    /// Forgets links to who is no member any more.
    fn prune_links(&mut self) {
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

    pub(super) fn link_up(&mut self, peer: Peer, out: &mut Vec<Action>) {
        if self.is_up(peer) {
            // A new link in place of one whose end was not told.
            self.link_down(peer, out);
        }
        let Some(link) = self.links.get_mut(&peer) else { return };
        self.timers.disarm(&mut link.due, Timer::Connect(peer));
        link.state = LinkState::Up;
        for s in 0..self.shards.len() {
            if let Some(member) = self.shards[s].members.iter_mut().find(|m| m.peer == peer) {
                (member.rest_until, member.silence) = (Nanos(0), None);
                self.wake_reads(s, out);
            }
        }
    }

    pub(super) fn link_down(&mut self, peer: Peer, out: &mut Vec<Action>) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let was_up = link.is_up();
        link.state = LinkState::Down;
        let at = self.now.plus(link.backoff.next());
        self.timers.arm(&mut link.due, at, Timer::Connect(peer));
        if was_up {
            for fetch in self.lose_attempts(peer) {
                self.go_on(fetch, out);
            }
        }
    }

    pub(super) fn connect_again(&mut self, peer: Peer, out: &mut Vec<Action>) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        link.due = None;
        if link.state == LinkState::Down {
            link.state = LinkState::Connecting;
            out.push(Action::Connect(peer));
        }
    }

    /// These nodes were started anew: links to them that are down are opened at once.
    pub(super) fn nodes_started(&mut self, nodes: &[NodeId], out: &mut Vec<Action>) {
        let peers: Vec<Peer> = self.links.keys().filter(|p| nodes.contains(&p.node)).copied().collect();
        for peer in peers {
            let Some(link) = self.links.get_mut(&peer).filter(|l| !l.is_up()) else { continue };
            link.backoff = Backoff::default();
            self.timers.disarm(&mut link.due, Timer::Connect(peer));
            self.connect_again(peer, out);
        }
    }

    /// The link carries messages, so the next time that it breaks is the first time again.
    pub(super) fn heard(&mut self, peer: Peer) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.backoff = Backoff::default();
        }
    }

    /// Other nodes have copies now. What the volume's size and stripe are today is not of the snapshot.
    pub(super) fn members_changed(&mut self, spec: &VolumeSpec, out: &mut Vec<Action>) {
        if spec.id != self.volume {
            return;
        }
        for new in &spec.shards {
            let Some(&s) = self.by_id.get(&new.id) else { continue };
            let shard = &mut self.shards[s];
            let is_same = shard.members.iter().map(|m| m.node).eq(new.members.iter().take(MEMBERS_MAX).copied());
            if !is_same {
                let mut before = std::mem::take(&mut shard.members);
                shard.members = list(&new.members, new.id, &self.workers);
                for member in &mut shard.members {
                    if let Some(at) = before.iter().position(|b| b.node == member.node) {
                        *member = before.swap_remove(at);
                    }
                }
                shard.epoch += 1;
            }
        }
        self.members_moved(out);
    }

    pub(super) fn workers_changed(&mut self, workers: BTreeMap<NodeId, u16>, out: &mut Vec<Action>) {
        self.workers = workers;
        for shard in &mut self.shards {
            for member in &mut shard.members {
                member.peer = peer(member.node, shard.id, &self.workers);
            }
        }
        self.members_moved(out);
    }

    fn members_moved(&mut self, out: &mut Vec<Action>) {
        if self.over.is_some() {
            return;
        }
        self.prune_links();
        self.contact(out);
        (0..self.shards.len()).for_each(|s| self.wake_reads(s, out));
    }
}
