//! Shards of clones (design note 36): how one begins at a version of another shard that is here, and how it is made flat.
//!
//! Invariants:
//! - A replica of a clone's shard that may make its fork is there only when it is decided whether this log makes it. Until
//!   then it is a shard that nobody has heard of: it answers nothing, and counts for nothing.
//! - A log that has nothing but its fork is one without a frame of its own (V2).
//! - A log that can't make its fork learns the shard; but while no view of it is active there may be nobody to learn from. If
//!   it has nothing but promises, it makes the fork as soon as it can, and keeps them.
//! - A fork for which its log has lost what it reads from its parents has lost all frames up to the cut (E7).
//! - A shard that forks in this log read from, or are about to, does not leave it before they are flat.

use crate::event::{Action, ShardInfo};
use crate::host::Host;
use crate::replica::{Ctx, Replica, TailEntry, genesis};
use crate::timing;
use freebs_lsvd::{MarkChange, Record, fork_name, fork_token};
use freebs_types::{ClusterId, ErrorKind, Fork, Hash32, Nanos, NodeId, ShardId, ViewNumber};
use std::collections::BTreeMap;

/// One that is to be made.
struct Making {
    info: ShardInfo,
    fork: Fork,
    since: Nanos,
    /// When the log was asked last.
    asked: Nanos,
    /// Its mark is on its way to the disk.
    ticket: Option<u64>,
    /// The replica that was there, which has nothing but promises.
    before: Option<Box<Replica>>,
}

impl Making {
    /// No view below this is answered in.
    fn promised(&self) -> ViewNumber {
        self.before.as_ref().map(|r| r.promise()).unwrap_or_default()
    }

    /// The replica that was there, if there was one. What it had asked of the control plane was answered to nobody.
    fn into_replica(self) -> Option<Replica> {
        let mut replica = *self.before?;
        (replica.head, replica.proposing) = (None, false);
        Some(replica)
    }
}

/// Forks that are to be made by the log of a worker.
#[derive(Default)]
pub(crate) struct Forks(BTreeMap<ShardId, Making>);

impl Forks {
    /// True if one that is to be made reads from a shard.
    pub fn read_from(&self, parent: ShardId) -> bool {
        self.0.values().any(|m| m.fork.parent == parent)
    }

    /// The news of them.
    pub fn infos(&self) -> impl Iterator<Item = &ShardInfo> {
        self.0.values().map(|m| &m.info)
    }

    /// The shards that are to be made.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> {
        self.0.keys().copied()
    }
}

impl Host {
    /// News of a shard that is not here. If it is a clone's, the log is asked first whether it can make the fork.
    /// True if it waits for that.
    pub(crate) fn waits_for_fork(&mut self, info: &ShardInfo) -> bool {
        let (shard, now) = (info.shard, self.now);
        let mine = self.is_member(info);
        if let Some(making) = self.forks_mut().0.get_mut(&shard) {
            making.info = info.clone();
            if !mine {
                self.leave_fork(shard, info.active);
            }
            return true;
        }
        let Some(fork) = info.fork.filter(|_| self.is_unknown(shard) && mine) else { return false };
        let making = Making { info: info.clone(), fork, since: now, asked: now, ticket: None, before: None };
        self.forks_mut().0.insert(shard, making);
        self.out.actions.push(Action::CheckFork { shard, fork });
        true
    }

    /// The log has the parent's version, and may make the fork; or the reason for which it can't.
    pub(crate) fn on_fork_checked(&mut self, shard: ShardId, checked: Result<(), ErrorKind>) {
        if checked.is_ok() {
            self.make_of_bare(shard);
        }
        let cluster = self.cluster();
        let ticket = self.new_ticket();
        let now = self.now;
        let Some(making) = self.forks_mut().0.get_mut(&shard).filter(|m| m.ticket.is_none()) else { return };
        match checked {
            Ok(()) => {
                making.ticket = Some(ticket);
                let change = MarkChange::forked(cluster, &making.fork);
                self.out.actions.push(Action::Append(Record::Mark { shard, change, ticket }));
            }
            // The parent may be about to come, or to hear that the frame is committed, or to be mended.
            Err(_) if now.since(making.since) < timing::FORK_PATIENCE => {}
            Err(_) => self.learns_instead(shard),
        }
    }

    /// A log that has nothing but promises can make its fork by now.
    fn make_of_bare(&mut self, shard: ShardId) {
        let Some(fork) = self.replica(shard).and_then(Replica::may_fork_yet) else { return };
        let Some(replica) = self.take_bare(shard) else { return };
        let Some(info) = replica.info.clone() else { return };
        let (since, before) = (self.now, Some(Box::new(replica)));
        let making = Making { info, fork, since, asked: since, ticket: None, before };
        self.forks_mut().0.insert(shard, making);
    }

    /// A log came with a fork for which it has lost what that reads from its parents. One without a frame of its own begins
    /// anew; what another one has stays, and it learns from others what it lacks.
    pub(crate) fn add_orphan(&mut self, mut replica: Replica, fork: &Fork) {
        let shard = replica.id;
        self.out.note(orphaned(shard));
        if replica.is_empty_log() {
            return self.end_with(shard, replica.promise());
        }
        replica.damage.lose_parents(genesis(), fork_name(self.cluster(), fork));
        self.add(replica);
    }

    /// The same has happened to one that is here, and has no frame of its own.
    pub(crate) fn on_orphaned(&mut self, shard: ShardId) {
        let Some(replica) = self.replica(shard).filter(|r| r.is_empty_log()) else { return };
        let (promised, info) = (replica.promise(), replica.info.clone());
        self.out.note(orphaned(shard));
        self.end_with(shard, promised);
        info.into_iter().for_each(|info| self.on_info(info));
    }

    /// Forks that can't be made yet are looked at again.
    pub(crate) fn fork_tick(&mut self) {
        let now = self.now;
        let is_due = |m: &Making| m.ticket.is_none() && now.since(m.asked) >= timing::FORK_AGAIN;
        let mut again = Vec::new();
        for (shard, m) in self.forks_mut().0.iter_mut().filter(|(_, m)| is_due(m)) {
            m.asked = now;
            again.push(Action::CheckFork { shard: *shard, fork: m.fork });
        }
        again.extend(self.bare_forks(now).into_iter().map(|(shard, fork)| Action::CheckFork { shard, fork }));
        self.out.actions.extend(again);
    }

    /// A mark is durable. True if it was that of a fork.
    pub(crate) fn on_fork_durable(&mut self, shard: ShardId, ticket: u64) -> bool {
        let is_its = |m: &Making| m.ticket == Some(ticket);
        let Some(making) =
            self.forks_mut().0.get(&shard).is_some_and(is_its).then(|| self.forks_mut().0.remove(&shard)).flatten()
        else {
            return false;
        };
        let (cluster, fork, info) = (self.cluster(), making.fork, making.info.clone());
        let replica = making.into_replica().unwrap_or_else(|| Replica::empty(shard));
        self.add(replica.begun_at(cluster, &fork));
        self.on_info(info);
        true
    }

    /// The parent has given the version up in the meantime. True if that is said of a fork.
    pub(crate) fn on_fork_refused(&mut self, shard: ShardId, ticket: u64) -> bool {
        let is_its = self.forks_mut().0.get(&shard).is_some_and(|m| m.ticket == Some(ticket));
        if is_its {
            self.learns_instead(shard);
        }
        is_its
    }

    /// The device has no room for a fork's mark: it is tried again.
    pub(crate) fn on_no_room_for_fork(&mut self, shard: ShardId, ticket: u64) {
        let now = self.now;
        let of = self.forks_mut().0.get_mut(&shard).filter(|m| m.ticket == Some(ticket));
        of.into_iter().for_each(|m| (m.ticket, m.asked) = (None, now));
    }

    /// The volume was deleted. True if a fork was to be made.
    pub(crate) fn forget_fork(&mut self, shard: ShardId) -> bool {
        self.forks_mut().0.remove(&shard).is_some()
    }

    /// This node is no member of a shard any more, by a control state in which this view is active. True if its fork was
    /// to be made.
    pub(crate) fn leave_fork(&mut self, shard: ShardId, active: ViewNumber) -> bool {
        let Some(making) = self.forks_mut().0.remove(&shard) else { return false };
        self.end_with(shard, making.promised().max(active));
        true
    }

    /// The log can't make the fork: it learns the shard from others, as it would any other one.
    fn learns_instead(&mut self, shard: ShardId) {
        let Some(making) = self.forks_mut().0.remove(&shard) else { return };
        self.out.note(format!("shard {shard}: its parent's version is not whole here; it is learned from others"));
        let info = making.info.clone();
        match making.into_replica() {
            Some(replica) => self.add(replica),
            None => self.ensure(shard),
        }
        self.on_info(info);
    }
}

fn orphaned(shard: ShardId) -> String {
    format!("shard {shard}: this log has lost what it reads of the volume that it was cloned from; others are asked")
}

impl Replica {
    /// A log that has nothing but its fork.
    #[cfg(test)]
    pub fn forked(id: ShardId, cluster: ClusterId, fork: &Fork) -> Self {
        Self::empty(id).begun_at(cluster, fork)
    }

    /// This log, which has had nothing but promises, begins at the fork.
    fn begun_at(mut self, cluster: ClusterId, fork: &Fork) -> Self {
        let name = fork_name(cluster, fork);
        let entry = TailEntry {
            name,
            version: fork.version,
            parent: Hash32::default(),
            digest: Hash32::default(),
            token: Some(fork_token(cluster, fork)),
            wall: 0,
        };
        self.tail = [(name.sequence, entry)].into();
        (self.last, self.begins, self.version) = (name, name, fork.version);
        (self.durable, self.committed) = (name.sequence, name.sequence);
        self
    }

    /// The fork that this log may still make: it has nothing but promises, nothing is on its way to it, and no view of the
    /// shard is active, so there may be nobody to learn from.
    pub fn may_fork_yet(&self) -> Option<Fork> {
        let info = self.info.as_ref().filter(|i| i.active == ViewNumber(0))?;
        let has_nothing = self.last.sequence.0 == 0 && self.known_committed().0 == 0 && !self.damage.is_there();
        let learns = self.asking.is_some() || self.map_end.is_some() || self.map_piece.is_some();
        let is_busy = learns || self.learned.is_some() || self.promising.is_some() || self.cuts() > 0;
        let is_still = !is_busy && self.unwritten_bytes() == 0 && self.stopped.is_none();
        info.fork.filter(|_| has_nothing && is_still && self.me.is_some_and(|me| info.members.contains(&me)))
    }

    /// Members of the first view of a clone's shard that have not said so far that they have what it begins with: they learn it.
    pub fn late_for_fork(&self) -> Vec<NodeId> {
        let is_first = self.lacks_own_view() && self.info.as_ref().is_some_and(|i| i.fork.is_some());
        let (Some(h), Some(view)) = (self.head.as_ref().filter(|_| is_first), self.view.as_ref()) else {
            return Vec::new();
        };
        h.members.iter().filter(|m| Some(m.node) != self.me && m.durable < view.sequence).map(|m| m.node).collect()
    }

    /// True if a member that is there may say in a moment that it has what a clone begins with: who learns is told from who was only
    /// asked last.
    pub fn calls_the_roll(&self, ctx: &Ctx<'_>) -> bool {
        let Some(h) = self.head.as_ref().filter(|h| ctx.now.since(h.at) < timing::FORK_ROLL_CALL) else { return false };
        let late = self.late_for_fork();
        h.members.iter().any(|m| late.contains(&m.node) && ctx.peers.link(m.peer).is_some())
    }

    /// True if no view of the shard was ever active, as far as this node knows.
    fn lacks_own_view(&self) -> bool {
        self.active() == ViewNumber(0)
    }

    /// True if a log of the shard begins at a fork, and this one does not reach it: it can't open the first view.
    pub fn lacks_its_fork(&self) -> bool {
        let fork = self.info.as_ref().and_then(|i| i.fork);
        fork.is_some_and(|f| self.lacks_own_view() && self.last.sequence < f.sequence)
    }
}
