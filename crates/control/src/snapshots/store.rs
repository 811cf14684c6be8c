//! All snapshots, and what is found of them quickly.

use super::{Snapshot, Stage};
use crate::limits;
use freebs_types::{SnapshotId, VolumeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The snapshots of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshots {
    /// Highest number ever given to one.
    last: SnapshotId,
    /// Pins of snapshots up to this number are kept although there is no record of them: the state was made again.
    spared: SnapshotId,
    records: BTreeMap<SnapshotId, Arc<Snapshot>>,
    /// Records that are gone by the revision that let them go, oldest first, at most `TOMBSTONES_MAX`.
    gone: VecDeque<(u64, SnapshotId)>,
    /// Derived from `records`, as what follows: those that have not failed, by their names.
    names: BTreeMap<VolumeId, Arc<BTreeMap<String, SnapshotId>>>,
    /// Those that have not failed.
    kept: BTreeMap<VolumeId, Arc<BTreeSet<SnapshotId>>>,
    under_way: BTreeMap<VolumeId, SnapshotId>,
    failed: BTreeSet<SnapshotId>,
    /// Cuts of all.
    cuts: usize,
}

impl Snapshots {
    pub fn last(&self) -> SnapshotId {
        self.last
    }

    pub fn spared(&self) -> SnapshotId {
        self.spared
    }

    /// The state was made again: numbers go on above this one, and what has one up to it is kept by logs.
    pub fn spare(&mut self, upto: SnapshotId) {
        self.last = self.last.max(upto);
        self.spared = self.spared.max(upto);
    }

    pub fn next_id(&self) -> SnapshotId {
        self.last.next()
    }

    pub fn get(&self, id: SnapshotId) -> Option<&Arc<Snapshot>> {
        self.records.get(&id)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Snapshot>> {
        self.records.values()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn named(&self, volume: VolumeId, name: &str) -> Option<&Arc<Snapshot>> {
        self.records.get(self.names.get(&volume)?.get(name)?)
    }

    pub fn kept(&self, volume: VolumeId) -> Option<&Arc<BTreeSet<SnapshotId>>> {
        self.kept.get(&volume)
    }

    pub fn under_way(&self, volume: VolumeId) -> Option<&Arc<Snapshot>> {
        self.records.get(self.under_way.get(&volume)?)
    }

    /// Those that are being made, some of them more than once.
    pub fn all_under_way(&self) -> impl Iterator<Item = SnapshotId> {
        self.under_way.values().copied()
    }

    pub fn failed(&self) -> &BTreeSet<SnapshotId> {
        &self.failed
    }

    pub fn cuts(&self) -> usize {
        self.cuts
    }

    pub fn gone(&self) -> impl ExactSizeIterator<Item = &(u64, SnapshotId)> + DoubleEndedIterator {
        self.gone.iter()
    }

    /// Puts a record in, in place of the one with its number if there is one.
    pub fn put(&mut self, snapshot: Snapshot) {
        self.take_out(snapshot.id);
        self.last = self.last.max(snapshot.id);
        self.cuts += snapshot.weight();
        for of in &snapshot.volumes {
            match &snapshot.stage {
                Stage::Failed { .. } => continue,
                Stage::Gathering | Stage::Decided => {
                    self.under_way.insert(of.volume, snapshot.id);
                }
                Stage::Complete => {}
            }
            let names = Arc::make_mut(self.names.entry(of.volume).or_default());
            names.insert(snapshot.name.clone(), snapshot.id);
            Arc::make_mut(self.kept.entry(of.volume).or_default()).insert(snapshot.id);
        }
        if snapshot.has_failed() {
            self.failed.insert(snapshot.id);
        }
        self.records.insert(snapshot.id, Arc::new(snapshot));
    }

    fn take_out(&mut self, id: SnapshotId) -> bool {
        let Some(old) = self.records.remove(&id) else { return false };
        self.cuts -= old.weight();
        self.failed.remove(&id);
        for of in &old.volumes {
            if let Some(names) = self.names.get_mut(&of.volume).filter(|n| n.get(&old.name) == Some(&id)) {
                Arc::make_mut(names).remove(&old.name);
                if names.is_empty() {
                    self.names.remove(&of.volume);
                }
            }
            if self.under_way.get(&of.volume) == Some(&id) {
                self.under_way.remove(&of.volume);
            }
            if let Some(kept) = self.kept.get_mut(&of.volume) {
                Arc::make_mut(kept).remove(&id);
                if kept.is_empty() {
                    self.kept.remove(&of.volume);
                }
            }
        }
        true
    }

    /// Lets a record go and remembers it, at this revision. The revision of the oldest one that is not remembered any more, if
    /// there was no room.
    pub fn bury(&mut self, revision: u64, id: SnapshotId) -> Option<u64> {
        self.take_out(id);
        if self.gone.iter().all(|(_, g)| *g != id) {
            self.gone.push_back((revision, id));
        }
        let is_over = self.gone.len() > limits::TOMBSTONES_MAX;
        if is_over { self.gone.pop_front().map(|(revision, _)| revision) } else { None }
    }

    /// Only these are there, at the side of a watcher that had missed too much.
    pub fn retain(&mut self, alive: &BTreeSet<SnapshotId>) {
        let gone: Vec<_> = self.records.keys().filter(|id| !alive.contains(id)).copied().collect();
        gone.into_iter().for_each(|id| _ = self.take_out(id));
    }

    /// The begin of a state that is read from bytes; records follow by `put`.
    pub fn restored(last: SnapshotId, spared: SnapshotId, gone: Vec<(u64, SnapshotId)>) -> Self {
        Self { last, spared, gone: gone.into(), ..Self::default() }
    }
}
