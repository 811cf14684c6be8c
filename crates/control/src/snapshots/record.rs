//! One snapshot: of a volume, or of several at one instant.

use crate::limits;
use freebs_types::{
    Error, Past, Result, Sequence, ShardId, SnapshotId, Version, ViewNumber, VolumeId, limits as common,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The place in the order of a shard's updates at which a snapshot has it: everything up to this version is in it, and
/// nothing behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(ViewNumber, Version, Sequence)", into = "(ViewNumber, Version, Sequence)")]
pub struct Cut {
    /// The view in which its head ordered it.
    pub view: ViewNumber,
    /// The version that is pinned.
    pub version: Version,
    /// The frame with that version, which is committed.
    pub sequence: Sequence,
}

impl From<(ViewNumber, Version, Sequence)> for Cut {
    fn from((view, version, sequence): (ViewNumber, Version, Sequence)) -> Self {
        Self { view, version, sequence }
    }
}

impl From<Cut> for (ViewNumber, Version, Sequence) {
    fn from(cut: Cut) -> Self {
        (cut.view, cut.version, cut.sequence)
    }
}

/// A volume in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotVolume {
    /// The volume.
    pub volume: VolumeId,
    /// Its size when the snapshot was begun, bytes.
    pub size: u64,
    /// By index of its shards; `None` until its head has reported it. Empty if the snapshot has failed.
    pub cuts: Vec<Option<Cut>>,
}

/// How far a snapshot is (rules S1, S2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum Stage {
    /// Heads cut their shards, hold, and report.
    Gathering,
    /// All have reported. Heads that have held until now say so.
    Decided,
    /// All had held: the cuts are one instant, and are kept.
    Complete,
    /// It is none, and nothing of it is kept.
    Failed {
        /// For people.
        why: String,
    },
}

/// A snapshot of one volume or of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Never used twice.
    pub id: SnapshotId,
    /// The name that it has in each of its volumes.
    pub name: String,
    /// Milliseconds since 1970, by the clock of who asked for it.
    pub created_ms: u64,
    /// The place in the past of its volumes that it is of; `None` if it is of the time when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub past: Option<Past>,
    /// In the order of their numbers; those that were deleted since are not there any more. Never empty.
    pub volumes: Vec<SnapshotVolume>,
    /// How far it is.
    #[serde(flatten)]
    pub stage: Stage,
    /// Shards whose report, and then whose word that their heads had held, is missing.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub waits_for: BTreeSet<ShardId>,
    /// Not deleted before this time, milliseconds since 1970. 0: it may be deleted.
    #[serde(default)]
    pub locked_until_ms: u64,
    /// Revision of the last change.
    pub changed: u64,
}

impl Snapshot {
    /// Heads are still at work on it.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::Gathering | Stage::Decided)
    }

    /// It can be read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.stage == Stage::Complete
    }

    /// It is none, and never will be.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.stage, Stage::Failed { .. })
    }

    /// Its part of a volume; `None` if it is not of that one.
    #[must_use]
    pub fn of(&self, volume: VolumeId) -> Option<&SnapshotVolume> {
        let at = self.volumes.binary_search_by_key(&volume, |v| v.volume).ok()?;
        Some(&self.volumes[at])
    }

    /// The cut of a shard, once it is reported.
    #[must_use]
    pub fn cut(&self, shard: ShardId) -> Option<Cut> {
        *self.of(shard.volume)?.cuts.get(shard.index as usize)?
    }

    /// All its shards.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> {
        let of = |v: &SnapshotVolume| {
            let volume = v.volume;
            (0..v.cuts.len() as u32).map(move |index| ShardId { volume, index })
        };
        self.volumes.iter().flat_map(of)
    }

    /// Cuts that are kept for it, or will be.
    pub(super) fn weight(&self) -> usize {
        self.volumes.iter().map(|v| v.cuts.len()).sum()
    }

    /// Sets the cut of a shard that it has.
    pub(super) fn set_cut(&mut self, shard: ShardId, cut: Cut) {
        let of = self.volumes.iter_mut().find(|v| v.volume == shard.volume);
        if let Some(place) = of.and_then(|v| v.cuts.get_mut(shard.index as usize)) {
            *place = Some(cut);
        }
    }

    /// Refuses bytes of disk or network that can be no snapshot at all.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::corrupt(format!("snapshot {}: {what}", self.id)));
        crate::rules::check_name("snapshot", &self.name).map_err(|e| Error::corrupt(e.text))?;
        if self.id.0 == 0 || self.id.0 > limits::NUMBER_MAX {
            return bad("an impossible number");
        }
        let is_sorted = self.volumes.is_sorted_by(|a, b| a.volume < b.volume);
        if self.volumes.is_empty() || self.volumes.len() > limits::SNAPSHOT_VOLUMES_MAX || !is_sorted {
            return bad("impossible volumes");
        }
        let has_shards = |v: &SnapshotVolume| v.cuts.len() <= common::VOLUME_SHARDS_MAX as usize;
        if !self.volumes.iter().all(has_shards) || self.weight() > limits::SNAPSHOT_SHARDS_MAX {
            return bad("impossible shards");
        }
        let has = |s: &ShardId| self.of(s.volume).is_some_and(|v| (s.index as usize) < v.cuts.len());
        if !self.waits_for.iter().all(has) {
            return bad("it waits for shards that it does not have");
        }
        let is_cut = |s: ShardId| self.cut(s).is_some();
        let is_possible = match &self.stage {
            Stage::Gathering => self.shards().all(|s| is_cut(s) != self.waits_for.contains(&s)),
            Stage::Decided => !self.waits_for.is_empty() && self.shards().all(is_cut),
            Stage::Complete => self.waits_for.is_empty() && self.weight() > 0 && self.shards().all(is_cut),
            Stage::Failed { why } => {
                self.waits_for.is_empty() && self.weight() == 0 && why.len() <= limits::SNAPSHOT_WHY_BYTES_MAX
            }
        };
        if is_possible { Ok(()) } else { bad("cuts that do not fit its stage") }
    }
}
