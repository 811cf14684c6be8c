//! The state: nodes, volumes, shards. Maps are ordered, and every entry carries the revision that last changed it.

use crate::limits;
use crate::placement::Loads;
use crate::snapshots::{Cut, Schedule, Snapshots};
use crate::tokens::Joining;
use freebs_format::VolumeDescription;
use freebs_types::{
    ClusterId, Error, Fork, Generation, Hash32, HostPublic, NodeId, Result, Sequence, ShardId, SnapshotId, StartNumber,
    Version, ViewNumber, VolumeId, limits as common,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A node as the cluster knows it: identity, not address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Number of the node, from the cluster file.
    pub id: NodeId,
    /// Name for people, unique in the cluster.
    pub name: String,
    /// Where peers, drivers and the CLI reach it: host and port.
    pub address: String,
    /// Workers of its device; a shard's worker follows from it, so it never changes.
    pub workers: u16,
    /// Highest start number it came with (rule V8); 0 if it never ran.
    pub start: StartNumber,
    /// What slices of secrets are sealed for; `None` until it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<HostPublic>,
    /// Public half of the node's key, if it has joined a cluster with an authority; it never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<HostPublic>,
    /// It is being emptied: nothing new comes to it, and others take its places.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drains: bool,
    /// If it drains: the node that takes its places, wherever it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heir: Option<NodeId>,
    /// It is being taken out of the cluster: it gives its vote up, and then it is removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retires: bool,
    /// Revision of the last change.
    pub changed: u64,
}

impl Node {
    /// A node of which no more is known.
    #[must_use]
    pub fn new(id: NodeId, (name, address): (String, String), workers: u16, start: StartNumber, changed: u64) -> Self {
        Self {
            id,
            name,
            address,
            workers,
            start,
            host_key: None,
            identity: None,
            drains: false,
            heir: None,
            retires: false,
            changed,
        }
    }
}

/// When a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ack {
    /// Durable on the majority of the chain.
    #[default]
    Majority,
    /// Durable on all members.
    All,
}

/// A view that was proposed and is not active yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Number of the pending view, above all that the shard ever had.
    pub view: ViewNumber,
    /// Start number of the head that proposed it: binding (rule W2).
    pub start: StartNumber,
}

/// The word of an operator that the active view may be left although too few of its members are there to seal it (rule
/// V10).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forced {
    /// All of these have to promise, and no others.
    pub survivors: Vec<NodeId>,
    /// Nothing is sealed below this frame.
    pub least: Sequence,
    /// The version with that frame, as the operator was told.
    pub version: Version,
    /// Other logs are known to be the same only up to this frame.
    pub same: Sequence,
    /// The highest committed frame that any answer named when the operator looked.
    #[serde(default)]
    pub known: Sequence,
    /// So many frames that the log which is gone on from has lost in its middle may be given up.
    #[serde(default)]
    pub gives_up: u64,
    /// Lost members that had everything. If the view is sealed as usual after all, they keep it for as long as others do.
    pub kept: Vec<NodeId>,
}

/// Where a shard went on by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// The newest view that was opened so.
    pub view: ViewNumber,
    /// Logs of older views are known to be the same only up to this frame.
    pub at: Sequence,
    /// The version that it went on from, as the operator was told; 0 if that is not known any more.
    #[serde(default)]
    pub version: Version,
}

/// One shard and its chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which shard of the volume, from 0.
    pub index: u32,
    /// The active view, 0 before the first.
    pub active: ViewNumber,
    /// Set in place of the view that is known to have been active (0: none) while `active` is what a rebuild goes on
    /// from and may never have become active (rule V9). `None`: it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known: Option<ViewNumber>,
    /// Start number of the head that opened the active view (rule W2).
    pub head_start: StartNumber,
    /// The head that opened it; `None` before the first, and if an earlier version saw it opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_by: Option<NodeId>,
    /// The view that is to follow the active one; `None` if none was proposed since.
    pub pending: Option<Pending>,
    /// Highest view number ever given out; the next one is above it.
    pub highest: ViewNumber,
    /// The chain, head first: of the active view, or of the one that is to follow it.
    pub members: Vec<NodeId>,
    /// Members of the active view, while `members` has others: these are the ones to seal it (rule V2). Else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub active_members: Vec<NodeId>,
    /// Members that are not known to have everything yet: they learn it from the others, and lead nothing (rule V7).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joining: Vec<NodeId>,
    /// Nodes that were members, and keep what they have until nobody is joining any more (rule V7).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keepers: Vec<NodeId>,
    /// Nodes that left a chain that became shorter, and keep what they have and their places, the first that left first (rule
    /// V13). One that is a member again stays here until it has everything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<NodeId>,
    /// Members that are joining and stand in for nodes that are away: they learn nothing for as long as these have their places (rule
    /// V21). The first that came first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub standing: Vec<NodeId>,
    /// Members of the active view that were joining when it became active, and are not known to have everything of it
    /// yet. The starts of their nodes were known by then, so an empty log of theirs is not one that was lost (V2, V8).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub learning: Vec<NodeId>,
    /// Members of the active view whose nodes were not looked at when the control state was made again: which start of
    /// theirs is the newest is not known, so what they have may be an old image, and seals nothing (V8).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<NodeId>,
    /// Set until the view that follows is active, if the active one may be left by force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<Forced>,
    /// `None` if it never went on by force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<Branch>,
}

impl Shard {
    /// A new one with this chain.
    pub(crate) fn new(index: u32, members: Vec<NodeId>) -> Self {
        Self {
            index,
            active: ViewNumber(0),
            known: None,
            head_start: StartNumber(0),
            opened_by: None,
            pending: None,
            highest: ViewNumber(0),
            members,
            active_members: Vec::new(),
            joining: Vec::new(),
            keepers: Vec::new(),
            away: Vec::new(),
            standing: Vec::new(),
            learning: Vec::new(),
            unseen: Vec::new(),
            forced: None,
            branch: None,
        }
    }

    /// The head. `None` only in a state that was damaged, which decoding refuses.
    #[must_use]
    pub fn head(&self) -> Option<NodeId> {
        self.members.first().copied()
    }

    /// The newest view that is known to have been active. It is `active`, but after a rebuild that was not sure (V9).
    #[must_use]
    pub fn known(&self) -> ViewNumber {
        self.known.unwrap_or(self.active)
    }

    /// Members of the active view.
    #[must_use]
    pub fn view_members(&self) -> &[NodeId] {
        if self.active_members.is_empty() { &self.members } else { &self.active_members }
    }

    /// Whether a node has to keep what it has of this shard.
    #[must_use]
    pub fn is_kept_by(&self, node: NodeId) -> bool {
        [&self.members, &self.active_members, &self.keepers, &self.away].iter().any(|of| of.contains(&node))
    }
}

/// Whether nobody is named twice, and there are no more than a chain can have.
fn is_chain(nodes: &[NodeId]) -> bool {
    let mut all = nodes.to_vec();
    all.sort_unstable();
    all.dedup();
    all.len() == nodes.len() && all.len() <= common::CHAIN_MEMBERS_MAX
}

impl Shard {
    fn members_are_possible(&self) -> bool {
        let is_number = |s: Sequence| s.0 <= limits::NUMBER_MAX;
        let is_word = |f: &Forced| {
            [&f.survivors, &f.kept].iter().all(|nodes| is_chain(nodes))
                && [f.least, f.same, f.known].into_iter().all(is_number)
        };
        let of_nodes = [&self.members, &self.active_members, &self.joining, &self.keepers, &self.away];
        !self.members.is_empty()
            && of_nodes.iter().chain(&[&self.learning, &self.unseen]).all(|of| is_chain(of))
            && self.away.iter().all(|n| !self.members.contains(n) || self.joining.contains(n))
            && self.learning.iter().chain(&self.unseen).all(|n| self.view_members().contains(n))
            && self.joining.iter().all(|n| self.members.contains(n))
            && is_chain(&self.standing)
            && self.standing.iter().all(|n| self.joining.contains(n))
            && self.joining.len() < self.members.len()
            && !self.keepers.iter().any(|n| self.members.contains(n))
            && self.forced.as_ref().is_none_or(is_word)
            && self.branch.is_none_or(|b| b.view <= self.active && is_number(b.at))
    }
}

/// Who has a volume attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Hash of the persistent identity.
    pub identity: Hash32,
    /// A name for people.
    pub name: String,
}

/// The snapshot that a volume was cloned from. It stays as it was, whatever becomes of the snapshot and of its volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The snapshot's volume.
    pub volume: VolumeId,
    /// The name that it had.
    pub volume_name: String,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Its name.
    pub snapshot_name: String,
    /// By index of the shards: each begins at the cut of the same one of that volume.
    pub cuts: Vec<Cut>,
    /// Its members are to have all that they read from that volume's as their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flatten: bool,
}

impl Origin {
    /// `VOLUME@NAME`, as they were called then.
    #[must_use]
    pub fn place(&self) -> String {
        format!("{}@{}", self.volume_name, self.snapshot_name)
    }

    /// True if it can be the origin of that volume.
    fn is_possible(&self, of: &Volume) -> bool {
        let is_number = |n: u64| n > 0 && n <= limits::NUMBER_MAX;
        let is_before = |(cut, shard): (&Cut, &Shard)| {
            let numbers = [cut.view.0, cut.version.0, cut.sequence.0];
            let is_new = shard.active.0 == 0 || shard.active > cut.view;
            numbers.into_iter().all(is_number) && cut.view <= shard.highest && is_new
        };
        let names = [&self.volume_name, &self.snapshot_name];
        let ids = [self.volume.0, self.snapshot.0];
        names.into_iter().all(|name| crate::rules::check_name("origin", name).is_ok())
            && ids.into_iter().all(is_number)
            && self.volume < of.id
            && lie_alike(self.volume, of.id)
            && self.cuts.len() == of.shards.len()
            && self.cuts.iter().zip(&of.shards).all(is_before)
    }
}

/// True if the shards of both volumes lie on the same workers, on each node: these follow from the sum of volume and index.
pub(crate) fn lie_alike(a: VolumeId, b: VolumeId) -> bool {
    a.0 % common::WORKERS_MAX as u64 == b.0 % common::WORKERS_MAX as u64
}

/// A virtual disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Number of the volume, never used twice.
    pub id: VolumeId,
    /// Name of the volume, unique in the cluster; 1 to 128 bytes.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Wanted length of the chains.
    pub copies: u8,
    /// When a write is answered.
    pub ack: Ack,
    /// Least members of a view that orders requests.
    pub min_copies: u8,
    /// Bytes of a stripe, a power of two.
    pub stripe: u64,
    /// Milliseconds of its past that are kept, version by version; 0 for none.
    #[serde(default)]
    pub retain_ms: u64,
    /// In the order of their index; never empty.
    pub shards: Vec<Shard>,
    /// Attachment generation, raised by each attach; 0 before the first.
    pub generation: Generation,
    /// No driver of this generation or an older one can hold a lease: its driver gave it back. 0 if that is not known.
    #[serde(default)]
    pub settled: Generation,
    /// The holder of the attachment; `None` if nobody has it.
    pub holder: Option<Holder>,
    /// The snapshot that it was cloned from. `None` if it is no clone, or if the control state was made again since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Snapshots that are made by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Revision of the last change.
    pub changed: u64,
}

impl Volume {
    /// Durable copies before a write is answered, in a chain of `len` members (rule V1). 0 members have none.
    #[must_use]
    pub fn quorum(&self, len: usize) -> usize {
        let wanted = match self.ack {
            Ack::Majority => len / 2 + 1,
            Ack::All => len,
        };
        len.min(wanted.max(self.min_copies as usize))
    }

    /// What view frames are to say of it (rule V9).
    #[must_use]
    pub fn description(&self) -> VolumeDescription {
        VolumeDescription {
            name: self.name.clone(),
            size: self.size,
            stripe: self.stripe,
            shards: self.shards.len() as u32,
            copies: self.copies,
            min_copies: self.min_copies,
            all: self.ack == Ack::All,
            retain_ms: self.retain_ms,
            branch: ViewNumber(0),
        }
    }

    /// The description for view frames of one of its shards that begin no branch.
    #[must_use]
    pub fn description_of(&self, shard: &Shard) -> VolumeDescription {
        VolumeDescription { branch: shard.branch.map(|b| b.view).unwrap_or_default(), ..self.description() }
    }

    /// 4 KiB blocks that the fullest shard (the first) must address for this size: whole stripes dealt in turn.
    #[must_use]
    pub fn shard_blocks(&self) -> u64 {
        blocks_per_shard(self.size, self.stripe, self.shards.len() as u64)
    }

    /// The shard with this index; `None` past the last one.
    #[must_use]
    pub fn shard(&self, index: u32) -> Option<&Shard> {
        self.shards.get(index as usize)
    }

    /// Its id within the volume as all messages name it.
    #[must_use]
    pub fn shard_id(&self, index: u32) -> ShardId {
        ShardId { volume: self.id, index }
    }

    /// The place where a shard begins, if this is a clone.
    #[must_use]
    pub fn fork(&self, index: u32) -> Option<Fork> {
        let origin = self.origin.as_ref()?;
        let cut = origin.cuts.get(index as usize)?;
        let parent = ShardId { volume: origin.volume, index };
        Some(Fork { parent, snapshot: origin.snapshot, version: cut.version, sequence: cut.sequence })
    }

    /// Whether what came from disk or network can be a volume at all.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |what: &str| Err(Error::corrupt(format!("volume {}: {what}", self.id)));
        crate::rules::check_name("volume", &self.name).map_err(|e| Error::corrupt(e.text))?;
        if self.id.0 == 0 || self.shards.is_empty() || self.shards.len() > common::VOLUME_SHARDS_MAX as usize {
            return bad("impossible id or number of shards");
        }
        if !crate::rules::stripe_is_valid(self.stripe) || self.size == 0 || self.size > 1 << 60 {
            return bad("impossible size or stripe");
        }
        if self.copies == 0 || self.min_copies == 0 || self.min_copies > self.copies {
            return bad("impossible number of copies");
        }
        if self.id.0 > limits::NUMBER_MAX || self.generation.0 > limits::NUMBER_MAX {
            return bad("impossible numbers");
        }
        for (i, s) in self.shards.iter().enumerate() {
            let pending_is_newest = s.pending.is_none_or(|p| p.view == s.highest && p.view > s.active);
            let is_known = s.known.is_none_or(|known| known < s.active);
            let has_order = s.highest.0 <= limits::NUMBER_MAX && s.active <= s.highest && is_known;
            if s.index as usize != i || !has_order || !pending_is_newest {
                return bad("a shard with impossible views");
            }
            if !s.members_are_possible() {
                return bad("a shard with impossible members");
            }
        }
        if self.schedule.as_ref().is_some_and(|s| s.check().is_err()) {
            return bad("an impossible schedule");
        }
        if !self.origin.as_ref().is_none_or(|o| o.is_possible(self)) {
            return bad("an impossible origin");
        }
        Ok(())
    }
}

impl Node {
    pub(crate) fn check(&self) -> Result<()> {
        if self.id.0 == 0 {
            return Err(Error::corrupt("a node without an id"));
        }
        crate::rules::check_node(&self.name, &self.address, self.workers).map_err(|e| Error::corrupt(e.text))
    }
}

/// Blocks of the fullest of `shards` shards for `size` bytes in stripes of `stripe` bytes.
pub(crate) fn blocks_per_shard(size: u64, stripe: u64, shards: u64) -> u64 {
    let block = freebs_types::BLOCK as u64;
    if shards <= 1 {
        return size.div_ceil(block);
    }
    let stripes = size.div_ceil(stripe.max(1)).div_ceil(shards);
    stripes.saturating_mul(stripe) / block
}

/// Number of the founding of a cluster whose state was never made again.
pub const FIRST_FOUNDING: u64 = 1;

/// Everything the control plane knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub(crate) cluster: ClusterId,
    /// See `founding`.
    founding: u64,
    /// Raised by every command that changed something.
    pub(crate) revision: u64,
    /// Highest id ever given to a volume.
    pub(crate) last_volume: VolumeId,
    pub(crate) nodes: BTreeMap<NodeId, Arc<Node>>,
    pub(crate) volumes: BTreeMap<VolumeId, Arc<Volume>>,
    /// Deleted volumes by the revision that deleted them, oldest first, at most `TOMBSTONES_MAX`.
    pub(crate) deleted: VecDeque<(u64, VolumeId)>,
    /// Deletions up to this revision are no longer in `deleted`.
    pub(crate) forgotten: u64,
    pub(crate) snapshots: Arc<Snapshots>,
    /// Not told to followers.
    joining: Arc<Joining>,
    /// Derived from `volumes`.
    pub(crate) names: BTreeMap<String, VolumeId>,
    /// Derived from `volumes`.
    pub(crate) loads: Loads,
}

impl State {
    /// The state of a new cluster.
    #[must_use]
    pub fn new(cluster: ClusterId) -> Self {
        Self { cluster, founding: FIRST_FOUNDING, ..Self::default() }
    }

    /// The empty state of a cluster whose state is made again, and goes on from this revision.
    #[must_use]
    pub fn made_again(cluster: ClusterId, revision: u64) -> Self {
        let founding = revision.max(FIRST_FOUNDING + 1);
        Self { revision: founding, forgotten: founding, founding, ..Self::new(cluster) }
    }

    /// The cluster whose state it is.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Number of the founding that this state comes from: `FIRST_FOUNDING`, or for a state that was made again the revision
    /// that it began with. A higher one stands in place of all lower ones, and nothing is ever taken from one into another.
    #[must_use]
    pub fn founding(&self) -> u64 {
        self.founding
    }

    pub(crate) fn set_founding(&mut self, founding: u64) {
        self.founding = founding;
    }

    /// Raised by every command that changed something; what a watcher has seen is named by it.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How nodes come into this cluster. Followers know nothing of it.
    #[must_use]
    pub fn joining(&self) -> &Joining {
        &self.joining
    }

    pub(crate) fn joining_mut(&mut self) -> &mut Joining {
        Arc::make_mut(&mut self.joining)
    }

    /// Nodes in order of id.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    /// Nodes that have registered another start or address since that state, or were not in it: whoever waits to try them
    /// again need not wait.
    #[must_use]
    pub fn nodes_renewed_since(&self, earlier: &Self) -> Vec<NodeId> {
        let same = |new: &Node| {
            let old = earlier.node(new.id);
            old.is_some_and(|old| (old.start, &old.address) == (new.start, &new.address))
        };
        self.nodes().filter(|n| !same(n)).map(|n| n.id).collect()
    }

    /// Volumes in order of id.
    pub fn volumes(&self) -> impl ExactSizeIterator<Item = &Arc<Volume>> {
        self.volumes.values()
    }

    /// The node with this number, if it ever registered or the cluster was made with it.
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(&id)
    }

    /// The volume with this number, unless it was deleted.
    #[must_use]
    pub fn volume(&self, id: VolumeId) -> Option<&Arc<Volume>> {
        self.volumes.get(&id)
    }

    /// Whether this volume was here once and was deleted. False for one that is not known: its data stay where they
    /// are, because an old or lost state must not cost anybody a volume.
    #[must_use]
    pub fn was_deleted(&self, id: VolumeId) -> bool {
        !self.volumes.contains_key(&id) && self.deleted.iter().any(|(_, d)| *d == id)
    }

    /// The volume that has this name now.
    #[must_use]
    pub fn volume_by_name(&self, name: &str) -> Option<&Arc<Volume>> {
        self.names.get(name).and_then(|id| self.volumes.get(id))
    }

    /// The shard, if its volume is there and has so many.
    #[must_use]
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.volume(id.volume)?.shard(id.index)
    }

    /// The volume of that name, or an error that says so.
    pub fn need(&self, name: &str) -> Result<&Arc<Volume>> {
        self.volume_by_name(name).ok_or_else(|| {
            Error::not_found(format!("there is no volume '{name}'; `freebs volume list` shows those there are"))
        })
    }

    /// Puts a volume in, in place of the one with its id if there is one, and mends what is derived.
    pub(crate) fn put_volume(&mut self, volume: Volume) {
        if let Some(old) = self.volumes.get(&volume.id) {
            self.loads.remove(old);
            if old.name != volume.name && self.names.get(&old.name) == Some(&old.id) {
                self.names.remove(&old.name);
            }
        }
        self.loads.add(&volume);
        self.names.insert(volume.name.clone(), volume.id);
        self.volumes.insert(volume.id, Arc::new(volume));
    }

    /// Takes a volume out and remembers that it was there.
    pub(crate) fn drop_volume(&mut self, id: VolumeId) {
        if let Some(old) = self.volumes.remove(&id) {
            self.loads.remove(&old);
            if self.names.get(&old.name) == Some(&id) {
                self.names.remove(&old.name);
            }
        }
    }

    /// Remembers that a volume was deleted, for as long as there is room.
    pub(crate) fn bury(&mut self, id: VolumeId) {
        self.deleted.push_back((self.revision, id));
        while self.deleted.len() > limits::TOMBSTONES_MAX {
            let (revision, _) = self.deleted.pop_front().expect("longer than the maximum");
            self.forgotten = revision;
        }
    }

    /// Shards of all volumes.
    pub(crate) fn shards_total(&self) -> usize {
        self.loads.shards()
    }
}
