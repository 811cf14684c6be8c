//! Commands about snapshots, applied to the state.

use super::{Cut, Schedule, Snapshot, SnapshotVolume, Snapshots, Stage};
use crate::command::Outcome;
use crate::mutant::Mutant;
use crate::state::{State, Volume};
use crate::{limits, rules};
use freebs_types::{Error, Past, Result, ShardId, SnapshotId, Version, ViewNumber, VolumeId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A date far ahead is a slip, and a lock can't be taken back.
const LOCK_MS_MAX: u64 = 100 * 366 * 24 * 3600 * 1000;

impl State {
    /// The snapshot that has this name in a volume, complete or under way. Those that have failed are passed over.
    #[must_use]
    pub fn snapshot(&self, volume: VolumeId, name: &str) -> Option<&Snapshot> {
        self.snapshots.named(volume, name).map(|s| &**s)
    }

    /// The record with this number; one that has failed stays for a while.
    #[must_use]
    pub fn snapshot_record(&self, id: SnapshotId) -> Option<&Snapshot> {
        self.snapshots.get(id).map(|s| &**s)
    }

    /// Records that are others than in an earlier state, or gone since. Most commands touch none, and look at none.
    pub(crate) fn snapshots_since(&self, earlier: &Self) -> BTreeSet<SnapshotId> {
        if Arc::ptr_eq(&self.snapshots, &earlier.snapshots) {
            return BTreeSet::new();
        }
        let since = earlier.revision;
        let changed = self.snapshots.iter().filter(|s| s.changed > since).map(|s| s.id);
        let gone = self.snapshots.gone().rev().take_while(|(revision, _)| *revision > since).map(|(_, id)| *id);
        changed.chain(gone).collect()
    }

    /// All records, in the order in which they were begun.
    pub fn snapshots(&self) -> impl ExactSizeIterator<Item = &Arc<Snapshot>> {
        self.snapshots.iter()
    }

    /// Records of a volume, in the order in which they were begun, with those that have failed.
    pub fn snapshots_of(&self, volume: VolumeId) -> impl Iterator<Item = &Arc<Snapshot>> {
        let mut ids: BTreeSet<SnapshotId> = self.snapshots.kept(volume).map(|ids| (**ids).clone()).unwrap_or_default();
        ids.extend(self.snapshots.failed());
        ids.into_iter().filter_map(|id| self.snapshots.get(id)).filter(move |s| s.of(volume).is_some())
    }

    /// Snapshots of a volume that have not failed: what logs keep for them is needed.
    #[must_use]
    pub fn kept_snapshots(&self, volume: VolumeId) -> Arc<BTreeSet<SnapshotId>> {
        self.snapshots.kept(volume).cloned().unwrap_or_default()
    }

    /// The one that heads of this volume are at work on.
    #[must_use]
    pub fn snapshot_under_way(&self, volume: VolumeId) -> Option<&Snapshot> {
        self.snapshots.under_way(volume).map(|s| &**s)
    }

    /// Those that are being made.
    pub fn snapshots_under_way(&self) -> impl Iterator<Item = SnapshotId> {
        self.snapshots.all_under_way()
    }

    /// Pins of snapshots up to this number stay in logs although nothing is known of them: the state was made again since. 0 if it never was.
    #[must_use]
    pub fn spared_snapshots(&self) -> SnapshotId {
        self.snapshots.spared()
    }

    pub(crate) fn snapshots_mut(&mut self) -> &mut Snapshots {
        Arc::make_mut(&mut self.snapshots)
    }

    fn commit_snapshot(&mut self, mut snapshot: Snapshot) {
        self.revision += 1;
        snapshot.changed = self.revision;
        assert!(snapshot.check().is_ok(), "a command leaves a snapshot as one may be: {:?}", snapshot.check());
        self.snapshots_mut().put(snapshot);
    }

    fn forget_snapshot(&mut self, id: SnapshotId) {
        self.revision += 1;
        let revision = self.revision;
        if let Some(forgotten) = self.snapshots_mut().bury(revision, id) {
            self.forgotten = self.forgotten.max(forgotten);
        }
    }

    pub(crate) fn begin_snapshot(
        &mut self,
        name: String,
        of: &[VolumeId],
        created_ms: u64,
        past: Option<Past>,
    ) -> Result<Outcome> {
        rules::check_name("snapshot", &name)?;
        let ids: BTreeSet<VolumeId> = of.iter().copied().collect();
        let is_this = |s: &&Arc<Snapshot>| {
            (&s.name, s.created_ms, s.past) == (&name, created_ms, past)
                && s.volumes.iter().map(|v| v.volume).eq(ids.iter().copied())
        };
        if let Some(known) = ids.first().and_then(|v| self.snapshots_of(*v).find(is_this)) {
            // The same question again.
            return Ok(Outcome::SnapshotBegun { snapshot: known.id });
        }
        if ids.is_empty() || ids.len() != of.len() || ids.len() > limits::SNAPSHOT_VOLUMES_MAX {
            let most = limits::SNAPSHOT_VOLUMES_MAX;
            return Err(Error::invalid(format!("a snapshot is of 1 to {most} volumes, each named once")));
        }
        let mut volumes = Vec::with_capacity(ids.len());
        for id in ids {
            let volume = self.volume_to_change(id)?;
            self.may_begin(&volume, &name)?;
            volumes.push(SnapshotVolume { volume: id, size: volume.size, cuts: vec![None; volume.shards.len()] });
        }
        let mut snapshot = Snapshot {
            id: self.snapshots.next_id(),
            name,
            created_ms,
            past,
            volumes,
            stage: Stage::Gathering,
            waits_for: BTreeSet::new(),
            locked_until_ms: 0,
            changed: 0,
        };
        snapshot.waits_for = snapshot.shards().collect();
        let shards = snapshot.weight();
        if shards > limits::SNAPSHOT_SHARDS_MAX {
            let most = limits::SNAPSHOT_SHARDS_MAX;
            return Err(Error::invalid(format!(
                "these volumes have {shards} shards, and a snapshot is of {most} at most; take fewer volumes at a time"
            )));
        }
        if self.snapshots.len() >= limits::SNAPSHOTS_TOTAL_MAX {
            let most = limits::SNAPSHOTS_TOTAL_MAX;
            return Err(Error::no_space(format!(
                "there are {most} snapshots in this cluster, which is the most; delete some first"
            )));
        }
        if self.snapshots.cuts() + shards > limits::SNAPSHOT_CUTS_TOTAL_MAX {
            return Err(Error::no_space(format!(
                "the snapshots of this cluster are of {} shards in all, which is the most; delete some first",
                self.snapshots.cuts()
            )));
        }
        if let Some(past) = past {
            self.may_be_of(past, &snapshot)?;
        }
        let id = snapshot.id;
        // Attempts that have failed make room for the next one with their name.
        let old: Vec<_> = self.failed_attempts(&snapshot);
        old.into_iter().for_each(|id| self.forget_snapshot(id));
        self.commit_snapshot(snapshot);
        Ok(Outcome::SnapshotBegun { snapshot: id })
    }

    /// Refuses a place in the past that no head could find.
    fn may_be_of(&self, past: Past, snapshot: &Snapshot) -> Result<()> {
        for volume in snapshot.volumes.iter().filter_map(|v| self.volume(v.volume)) {
            if volume.retain_ms == 0 {
                return Err(Error::invalid(format!(
                    "volume '{0}' keeps nothing of its past but snapshots; `freebs volume retain {0} 24h` makes it keep a \
                     day from now on",
                    volume.name
                )));
            }
        }
        match past {
            Past::Version(v) if snapshot.weight() > 1 => Err(Error::invalid(format!(
                "version {v} is one of a single shard, and there are {} here, which count for themselves; name a time",
                snapshot.weight()
            ))),
            Past::Version(Version(v)) if v == 0 || v > limits::NUMBER_MAX => {
                Err(Error::invalid(format!("there is no version {v}; they begin with 1")))
            }
            Past::TimeMs(ms) if ms > snapshot.created_ms => {
                Err(Error::invalid(format!("{} has not come yet", rules::format_date(ms))))
            }
            _ => Ok(()),
        }
    }

    fn failed_attempts(&self, new: &Snapshot) -> Vec<SnapshotId> {
        let of = |s: &Snapshot| s.volumes.iter().any(|v| new.of(v.volume).is_some());
        let failed = self.snapshots.failed().iter().filter_map(|id| self.snapshots.get(*id));
        failed.filter(|s| s.name == new.name && of(s)).map(|s| s.id).collect()
    }

    fn may_begin(&self, volume: &Volume, name: &str) -> Result<()> {
        if let Some(other) = self.snapshots.under_way(volume.id) {
            return Err(Error::busy(format!(
                "the snapshot '{}@{}' is being made; try it again when it is there (`freebs snapshot list {}`)",
                volume.name, other.name, volume.name
            )));
        }
        if self.snapshot(volume.id, name).is_some() {
            return Err(Error::invalid(format!(
                "there is a snapshot '{}@{name}' already; choose another name, or delete that one first",
                volume.name
            )));
        }
        let count = self.snapshots.kept(volume.id).map_or(0, |ids| ids.len());
        if count >= limits::SNAPSHOTS_OF_VOLUME_MAX {
            return Err(Error::no_space(format!(
                "volume '{}' has {count} snapshots, and can't have more; delete some (`freebs snapshot list {}` shows them)",
                volume.name, volume.name
            )));
        }
        Ok(())
    }

    /// Rule S1: a cut counts if the view that it was made in is the active one.
    pub(crate) fn report_cuts(
        &mut self,
        id: SnapshotId,
        cuts: &[(ShardId, Cut)],
        mutant: Option<Mutant>,
    ) -> Result<Outcome> {
        let Some(mut snapshot) = self.at_stage(id, &Stage::Gathering) else { return Ok(Outcome::Noted) };
        let before = snapshot.waits_for.len();
        for (shard, cut) in cuts {
            let active = self.shard(*shard).map(|s| s.active);
            let is_number = cut.version.0 <= limits::NUMBER_MAX && cut.sequence.0 <= limits::NUMBER_MAX;
            let counts = is_number && active == Some(cut.view) && cut.view.0 > 0;
            let counts = counts || mutant == Some(Mutant::OldViewsReport);
            if counts && snapshot.waits_for.remove(shard) {
                snapshot.set_cut(*shard, *cut);
            }
        }
        if snapshot.waits_for.len() == before {
            return Ok(Outcome::Noted);
        }
        if snapshot.waits_for.is_empty() {
            let shards: BTreeSet<ShardId> = snapshot.shards().collect();
            match shards.len() {
                // Nobody else is to be at the same instant.
                1 => snapshot.stage = Stage::Complete,
                _ => (snapshot.stage, snapshot.waits_for) = (Stage::Decided, shards),
            }
        }
        self.commit_snapshot(snapshot);
        Ok(Outcome::Noted)
    }

    /// Rule S2: these heads had held from their cuts until they heard that all are there.
    pub(crate) fn confirm_cuts(&mut self, id: SnapshotId, held: &[(ShardId, ViewNumber)]) -> Result<Outcome> {
        let Some(mut snapshot) = self.at_stage(id, &Stage::Decided) else { return Ok(Outcome::Noted) };
        let before = snapshot.waits_for.len();
        for (shard, view) in held {
            if snapshot.cut(*shard).is_some_and(|c| c.view == *view) {
                snapshot.waits_for.remove(shard);
            }
        }
        if snapshot.waits_for.len() < before {
            if snapshot.waits_for.is_empty() {
                snapshot.stage = Stage::Complete;
            }
            self.commit_snapshot(snapshot);
        }
        Ok(Outcome::Noted)
    }

    fn at_stage(&self, id: SnapshotId, stage: &Stage) -> Option<Snapshot> {
        self.snapshots.get(id).filter(|s| s.stage == *stage).map(|s| (**s).clone())
    }

    /// A snapshot that is complete, or has failed, stays as it is.
    pub(crate) fn fail_snapshot(&mut self, id: SnapshotId, why: &str) -> Result<Outcome> {
        let found = self.snapshots.get(id).filter(|s| s.is_under_way()).map(|s| (**s).clone());
        if let Some(mut snapshot) = found {
            let why = why[..why.floor_char_boundary(limits::SNAPSHOT_WHY_BYTES_MAX)].to_owned();
            snapshot.stage = Stage::Failed { why };
            snapshot.waits_for.clear();
            snapshot.volumes.iter_mut().for_each(|v| v.cuts.clear());
            self.commit_snapshot(snapshot);
            while self.snapshots.failed().len() > limits::SNAPSHOTS_FAILED_MAX {
                // Whoever asked for this one is to hear why it failed.
                let oldest = self.snapshots.failed().iter().find(|other| **other != id).copied();
                let oldest = oldest.expect("more than the maximum");
                self.forget_snapshot(oldest);
            }
        }
        Ok(Outcome::Noted)
    }

    /// Another view of a shard is active: its head can't know whether the one before had gone on from a cut that is reported
    /// and not confirmed (rule S2).
    pub(crate) fn fail_unconfirmed(&mut self, shard: ShardId, mutant: Option<Mutant>) {
        let Some(s) = self.snapshots.under_way(shard.volume) else { return };
        let is_confirmed = s.stage == Stage::Decided && !s.waits_for.contains(&shard);
        if s.cut(shard).is_none() || is_confirmed || mutant == Some(Mutant::SnapshotsOutliveViews) {
            return;
        }
        let id = s.id;
        let why = format!("shard {shard} got another view while the snapshot was being made");
        let failed = self.fail_snapshot(id, &why);
        assert!(failed.is_ok(), "nothing refuses to fail");
    }

    pub(crate) fn delete_snapshot(&mut self, volume: VolumeId, name: &str, now_ms: u64) -> Result<Outcome> {
        let of = self.volume_to_change(volume)?;
        let named = self.snapshots.named(volume, name).cloned();
        let found = named.or_else(|| self.snapshots_of(volume).find(|s| s.name == name).cloned());
        let Some(found) = found else { return Err(no_such(&of, name)) };
        may_delete(&of, &found, now_ms)?;
        self.may_leave_clones(&of, Some(&found))?;
        if found.is_under_way() {
            self.fail_snapshot(found.id, "it was deleted while it was being made")?;
        }
        self.leave_snapshot(found.id, volume);
        Ok(Outcome::Deleted)
    }

    /// The volume is not in that snapshot any more; with its last volume the record goes.
    fn leave_snapshot(&mut self, id: SnapshotId, volume: VolumeId) {
        let Some(mut snapshot) = self.snapshots.get(id).map(|s| (**s).clone()) else { return };
        snapshot.volumes.retain(|v| v.volume != volume);
        if snapshot.volumes.is_empty() {
            self.forget_snapshot(id);
        } else {
            self.commit_snapshot(snapshot);
        }
    }

    /// Refuses if a volume that is about to be deleted has snapshots that are wanted.
    pub(crate) fn may_lose_snapshots(&self, volume: &Volume, with_snapshots: Option<u64>) -> Result<()> {
        let kept = || self.snapshots_of(volume.id).filter(|s| !s.has_failed());
        let count = kept().count();
        match with_snapshots {
            Some(now_ms) => kept().try_for_each(|s| may_delete(volume, s, now_ms)),
            None if count > 0 => Err(Error::busy(format!(
                "volume '{}' has {count} snapshot{}, which would go with it; delete them first, or delete the volume \
                 --with-snapshots",
                volume.name,
                if count == 1 { "" } else { "s" }
            ))),
            None => Ok(()),
        }
    }

    /// The volume was deleted, and it may lose them.
    pub(crate) fn drop_snapshots(&mut self, volume: VolumeId) {
        let ids: Vec<SnapshotId> = self.snapshots_of(volume).map(|s| s.id).collect();
        for id in ids {
            let failed = self.fail_snapshot(id, "one of its volumes was deleted while it was being made");
            assert!(failed.is_ok(), "nothing refuses to fail");
            self.leave_snapshot(id, volume);
        }
    }

    /// Snapshots that the old schedule made stay until the new one's rules let them go.
    pub(crate) fn schedule_snapshots(&mut self, id: VolumeId, schedule: Option<Schedule>) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id)?;
        schedule.iter().try_for_each(Schedule::check)?;
        if volume.schedule != schedule {
            volume.schedule = schedule;
            self.commit(volume);
        }
        Ok(Outcome::Noted)
    }

    /// A lock can be made longer, and never shorter.
    pub(crate) fn lock_snapshot(
        &mut self,
        volume: VolumeId,
        name: &str,
        (until_ms, now_ms): (u64, u64),
    ) -> Result<Outcome> {
        let of = self.volume_to_change(volume)?;
        let Some(found) = self.snapshots.named(volume, name).filter(|s| s.is_complete()) else {
            return Err(no_such(&of, name));
        };
        if until_ms <= now_ms || until_ms - now_ms > LOCK_MS_MAX {
            return Err(Error::invalid("a snapshot is locked until a date ahead, at most 100 years from now"));
        }
        if until_ms < found.locked_until_ms {
            return Err(Error::invalid(format!(
                "snapshot '{}@{name}' is locked until {}, and a lock can't be made shorter",
                of.name,
                rules::format_date(found.locked_until_ms)
            )));
        }
        if until_ms > found.locked_until_ms {
            let locked = Snapshot { locked_until_ms: until_ms, ..(**found).clone() };
            self.commit_snapshot(locked);
        }
        Ok(Outcome::Noted)
    }
}

pub(crate) fn no_such(volume: &Volume, name: &str) -> Error {
    let shown: String = name.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect();
    let text = format!(
        "there is no snapshot '{}@{shown}'; `freebs snapshot list {}` shows those there are",
        volume.name, volume.name
    );
    Error::not_found(text)
}

fn may_delete(volume: &Volume, snapshot: &Snapshot, now_ms: u64) -> Result<()> {
    if snapshot.locked_until_ms <= now_ms {
        return Ok(());
    }
    Err(Error::busy(format!(
        "snapshot '{}@{}' is locked until {}, and can't be deleted before",
        volume.name,
        snapshot.name,
        rules::format_date(snapshot.locked_until_ms)
    )))
}
