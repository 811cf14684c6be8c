//! Shards of clones (design note 36): how one begins at a version of another shard that is here, and how it is made flat.
//!
//! Invariants:
//! - A replica of a clone's shard is there only when it is decided whether this log makes the fork. Until then it is a
//!   shard that nobody has heard of: it answers nothing, and counts for nothing.
//! - A log that has nothing but its fork is one without a frame of its own (V2).
//! - A shard that forks in this log read from does not leave it before they are flat.

use crate::event::{Action, ShardInfo};
use crate::host::Host;
use crate::replica::{Replica, TailEntry};
use crate::timing;
use freebs_lsvd::{MarkChange, Record, fork_name, fork_token};
use freebs_types::{ClusterId, ErrorKind, Fork, Hash32, Nanos, ShardId, ViewNumber};
use std::collections::BTreeMap;

/// One that is to be made.
struct Making {
    info: ShardInfo,
    fork: Fork,
    since: Nanos,
    /// Its mark is on its way to the disk.
    ticket: Option<u64>,
}

/// Forks that are to be made by the log of a worker.
#[derive(Default)]
pub(crate) struct Forks(BTreeMap<ShardId, Making>);

impl Host {
    /// News of a shard that is not here. If it is a clone's, the log is asked first whether it can make the fork.
    /// True if it waits for that.
    pub(crate) fn waits_for_fork(&mut self, info: &ShardInfo) -> bool {
        let (shard, now) = (info.shard, self.now);
        if let Some(making) = self.forks_mut().0.get_mut(&shard) {
            making.info = info.clone();
            return true;
        }
        let Some(fork) = info.fork.filter(|_| self.is_unknown(shard) && self.is_member(info)) else { return false };
        self.forks_mut().0.insert(shard, Making { info: info.clone(), fork, since: now, ticket: None });
        self.out.actions.push(Action::CheckFork { shard, fork });
        true
    }

    /// The log has the parent's version, and may make the fork; or the reason for which it can't.
    pub(crate) fn on_fork_checked(&mut self, shard: ShardId, checked: Result<(), ErrorKind>) {
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
            // The parent may be about to come, or to hear that the frame is committed.
            Err(ErrorKind::NotFound) if now.since(making.since) < timing::FORK_PATIENCE => {}
            Err(_) => self.learns_instead(shard),
        }
    }

    /// Forks that can't be made yet are looked at again.
    pub(crate) fn fork_tick(&mut self) {
        let waiting = self.forks_mut().0.iter().filter(|(_, m)| m.ticket.is_none());
        let again: Vec<Action> = waiting.map(|(shard, m)| Action::CheckFork { shard: *shard, fork: m.fork }).collect();
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
        self.add(Replica::forked(shard, self.cluster(), &making.fork));
        self.on_info(making.info);
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
        self.forks_mut()
            .0
            .get_mut(&shard)
            .filter(|m| m.ticket == Some(ticket))
            .into_iter()
            .for_each(|m| m.ticket = None);
    }

    /// The volume was deleted, or this node is no member. True if a fork was to be made.
    pub(crate) fn forget_fork(&mut self, shard: ShardId) -> bool {
        self.forks_mut().0.remove(&shard).is_some()
    }

    /// The log can't make the fork: it learns the shard from others, as it would any other one.
    fn learns_instead(&mut self, shard: ShardId) {
        let Some(making) = self.forks_mut().0.remove(&shard) else { return };
        self.out.note(format!("shard {shard}: its parent's version is not whole here; it is learned from others"));
        self.ensure(shard);
        self.on_info(making.info);
    }
}

impl Replica {
    /// A log that has nothing but its fork.
    pub fn forked(id: ShardId, cluster: ClusterId, fork: &Fork) -> Self {
        let mut r = Self::empty(id);
        let name = fork_name(cluster, fork);
        let entry = TailEntry {
            name,
            version: fork.version,
            parent: Hash32::default(),
            digest: Hash32::default(),
            token: Some(fork_token(cluster, fork)),
            wall: 0,
        };
        r.tail = [(name.sequence, entry)].into();
        (r.last, r.begins, r.version) = (name, name, fork.version);
        (r.durable, r.committed) = (name.sequence, name.sequence);
        r
    }

    /// True if a log of the shard begins at a fork, and this one does not reach it: it can't open the first view.
    pub fn lacks_its_fork(&self) -> bool {
        let fork = self.info.as_ref().and_then(|i| i.fork);
        fork.is_some_and(|f| self.active() == ViewNumber(0) && self.last.sequence < f.sequence)
    }
}
