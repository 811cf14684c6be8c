//! Clones: volumes that begin with what a snapshot has of another one (`docs/design/0036`).
//!
//! Each shard of a clone forks from the same shard of the snapshot's volume, on the members that this one has, and its views
//! are numbered above those that were given out there. Nothing of the other volume is changed.
//!
//! Invariants:
//! - a clone's shards lie on the workers of its parent's, on each node;
//! - until the first view of each of its shards is active, snapshot and volume stay: a member that heard of the deletion
//!   first would have nothing to begin with. From then on as many members as answer a write have what they need;
//! - members that need not have the parent's history are joining from the start: they lead nothing before they have learned.
//!   So are those that the head of the first view names as having none, from its activation on.

use crate::command::Outcome;
use crate::limits;
use crate::placement::Places;
use crate::snapshots::{Cut, Snapshot, Stage};
use crate::state::{Origin, Shard, State, Volume, lie_alike};
use freebs_types::{Error, Generation, NodeId, Result, SnapshotId, VolumeId};

impl Shard {
    /// The first view of a clone's shard is to be active, and these members do not have what it begins with: they learn it.
    pub(crate) fn begin_without(&mut self, lack: &[NodeId]) {
        if self.active.0 > 0 {
            return;
        }
        let is_new = |n: &&NodeId| lack.contains(n) && !self.joining.contains(n);
        let new: Vec<NodeId> = self.members.iter().skip(1).filter(is_new).copied().collect();
        self.joining.extend(new);
        let joining = &self.joining;
        self.members.sort_by_key(|n| joining.contains(n));
    }
}

impl State {
    pub(crate) fn clone_volume(&mut self, of: VolumeId, snapshot: &str, name: String) -> Result<Outcome> {
        let source = self.volume_to_change(of)?;
        self.may_be_created(&name)?;
        let (found, size, cuts) = self.to_be_cloned(&source, snapshot)?;
        self.has_room_for(source.shards.len())?;
        let origin = Origin {
            volume: of,
            volume_name: source.name.clone(),
            snapshot: found,
            snapshot_name: snapshot.to_owned(),
            cuts,
            flatten: false,
        };
        let id = self.number_of_clone(of)?;
        let mut places = Places::new(self);
        let shards = source.shards.iter().map(|s| self.cloned(&source, s, &mut places)).collect();
        let (generation, settled, holder, origin) = (Generation(0), Generation(0), None, Some(origin));
        let clone = Volume { id, name, size, shards, generation, settled, holder, origin, schedule: None, ..source };
        // Records of snapshots in bytes of disk or network may not fit their volumes.
        clone.check()?;
        self.last_volume = id;
        self.commit(clone);
        Ok(Outcome::Created { volume: id })
    }

    /// The snapshot of a volume, the size that this has in it, and its cuts, if it can be cloned.
    fn to_be_cloned(&self, of: &Volume, name: &str) -> Result<(SnapshotId, u64, Vec<Cut>)> {
        let failed = || self.snapshots_of(of.id).filter(|s| s.name == name).last().map(|s| &**s);
        let Some(found) = self.snapshot(of.id, name).or_else(failed) else {
            return Err(crate::snapshots::no_such(of, name));
        };
        let place = || format!("{}@{name}", of.name);
        match &found.stage {
            Stage::Complete => {}
            Stage::Gathering | Stage::Decided => {
                return Err(Error::busy(format!(
                    "the snapshot '{}' is being made; clone it when it is there (`freebs snapshot list {}`)",
                    place(),
                    of.name
                )));
            }
            Stage::Failed { why } => {
                return Err(Error::invalid(format!(
                    "the snapshot '{}' was not made ({why}), so there is nothing to clone; make another one",
                    place()
                )));
            }
        }
        let part = found.of(of.id).and_then(|v| Some((v.size, v.cuts.iter().copied().collect::<Option<Vec<Cut>>>()?)));
        let (size, cuts) = part.ok_or_else(|| Error::bug("a complete snapshot lacks cuts"))?;
        Ok((found.id, size, cuts))
    }

    /// Above all that were given out, and on the workers of the other one's shards.
    fn number_of_clone(&self, of: VolumeId) -> Result<VolumeId> {
        let mut id = self.last_volume.next();
        while !lie_alike(id, of) {
            id = id.next();
        }
        match id.0 <= limits::NUMBER_MAX {
            true => Ok(id),
            false => Err(Error::no_space("the numbers of volumes have run out")),
        }
    }

    /// A clone's shard before its first view. Its members are those of the other one's that have everything, head first,
    /// then those that learn it, and then those that carry least. If those that have everything are too few to answer in such
    /// a chain, nobody could ever learn from them: then they are the chain, if they may be (V11), and others come to it.
    fn cloned(&self, of: &Volume, from: &Shard, places: &mut Places<'_>) -> Shard {
        let learns = |n: &NodeId| from.joining.contains(n);
        let copies = usize::from(of.copies);
        let mut members: Vec<NodeId> = from.members.iter().copied().filter(|n| !learns(n)).take(copies).collect();
        let whole = members.len();
        let is_shorter = whole < of.quorum(copies) && whole >= usize::from(of.min_copies);
        let copies = if is_shorter { whole } else { copies };
        members.extend(from.members.iter().copied().filter(learns).take(copies - whole));
        places.fill(&mut members, self.places(), copies, of.shard_bytes());
        places.loads.add_chain(&members, of.shard_bytes());
        let joining = members[whole..].to_vec();
        Shard { highest: from.highest, joining, ..Shard::new(from.index, members) }
    }

    pub(crate) fn flatten_volume(&mut self, id: VolumeId) -> Result<Outcome> {
        let mut volume = self.volume_to_change(id)?;
        let Some(origin) = volume.origin.as_mut() else {
            return Err(Error::invalid(format!(
                "volume '{}' is no clone: all that it has is its own (`freebs volume clone` makes clones)",
                volume.name
            )));
        };
        if !origin.flatten {
            origin.flatten = true;
            self.commit(volume);
        }
        Ok(Outcome::Noted)
    }

    /// Refuses while a clone of a volume, or only of one of its snapshots, has shards that have not begun.
    pub(crate) fn may_leave_clones(&self, of: &Volume, snapshot: Option<&Snapshot>) -> Result<()> {
        let is_of = |o: &Origin| o.volume == of.id && snapshot.is_none_or(|s| s.id == o.snapshot);
        let is_unbegun = |v: &&std::sync::Arc<Volume>| {
            v.origin.as_ref().is_some_and(is_of) && v.shards.iter().any(|s| s.active.0 == 0)
        };
        match self.volumes().find(is_unbegun) {
            None => Ok(()),
            Some(clone) => Err(Error::busy(format!(
                "volume '{}' is being cloned from '{}@{}', and has not begun yet: try it again when `freebs volume show {}` \
                 says that it can be used, or delete that one first",
                clone.name,
                of.name,
                clone.origin.as_ref().map_or("", |o| &o.snapshot_name),
                clone.name
            ))),
        }
    }
}
