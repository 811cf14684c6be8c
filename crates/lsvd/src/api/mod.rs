//! What goes into the engine and what comes out of it: plain values, no behaviour.

pub mod loss;
pub mod report;
pub mod requests;

use bytes::Bytes;
pub use freebs_format::wire::{FrameName, Piece};
use freebs_format::{AttachBody, CarryBody, Frame, FrameHead, Pin, ViewBody, hide};
use freebs_types::{
    BlockRange, ChunkId, ClusterId, DeviceId, Error, Fork, Hash32, Lba, Moment, NodeId, Sequence, ShardId, SnapshotId,
    StartNumber, Version, ViewNumber,
};
pub use loss::Lost;
use requests::RequestTable;

/// Shape and identity of a device that is to be made.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The cluster that it is to belong to.
    pub cluster: ClusterId,
    /// The node whose log it is to be.
    pub node: NodeId,
    /// Identity of the device, random.
    pub device: DeviceId,
    /// Which worker's log this is, and of how many.
    pub worker: u16,
    /// Workers of the node; fixed for the life of the device, since shards lie on workers by their number.
    pub workers: u16,
    /// Bytes of a segment: a multiple of 4,096 from `limits::SEGMENT_BYTES_MIN` to 1 GiB.
    pub segment_bytes: u64,
    /// Bytes that the device may grow to.
    pub size_limit: u64,
    /// Wall clock, for people.
    pub wall: u64,
}

/// Whose device `open` is to find.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// The cluster; a device of another one is refused.
    pub cluster: ClusterId,
    /// The node; a device of another one is refused.
    pub node: NodeId,
    /// Which worker's log it has to be.
    pub worker: u16,
    /// Workers that the node has to have been made with.
    pub workers: u16,
}

/// What a node chooses for the log engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of memory for the maps of all shards: recent changes, what tells runs apart, pages read lately.
    pub map_bytes: usize,
    /// Bytes of log after which a checkpoint is made, whatever the time.
    pub checkpoint_bytes: u64,
}

impl Options {
    /// Everything in memory, and no checkpoints: for tools, which write nothing.
    pub(crate) const UNBOUNDED: Self = Self { map_bytes: usize::MAX, checkpoint_bytes: u64::MAX };

    /// Bytes for the maps of a node, all workers together, if nothing is said: for a few million extents.
    pub const NODE_MAP_BYTES: u64 = 256 << 20;
    /// With less, each of eight workers would have less than a few hundred pages and entries to work with.
    pub const NODE_MAP_BYTES_MIN: u64 = 16 << 20;
    /// More than the maps of the largest device take.
    pub const NODE_MAP_BYTES_MAX: u64 = 1 << 40;

    /// The share of one of so many workers in the default of a node.
    #[must_use]
    pub fn of_workers(workers: u16) -> Self {
        Self::of_node(Self::NODE_MAP_BYTES, workers)
    }

    /// The share of one of so many workers in a node that has so many bytes for its maps. Less than
    /// `NODE_MAP_BYTES_MIN` counts as that, and more than `NODE_MAP_BYTES_MAX` as that.
    #[must_use]
    pub fn of_node(map_bytes: u64, workers: u16) -> Self {
        let bytes = map_bytes.clamp(Self::NODE_MAP_BYTES_MIN, Self::NODE_MAP_BYTES_MAX) / u64::from(workers.max(1));
        Self { map_bytes: usize::try_from(bytes).unwrap_or(usize::MAX - 1), checkpoint_bytes: 512 << 20 }
    }

    /// Whether a node can be told to have so many bytes for its maps.
    pub fn check_map_bytes(map_bytes: u64) -> Result<(), Error> {
        if (Self::NODE_MAP_BYTES_MIN..=Self::NODE_MAP_BYTES_MAX).contains(&map_bytes) {
            return Ok(());
        }
        Err(Error::invalid(format!("a map cache has 16M to 1T, not {map_bytes} bytes")))
    }
}

/// One thing that is not as it should be on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `None` for the superblock.
    pub segment: Option<u32>,
    /// Byte in the segment (on the device, for the superblock).
    pub offset: u64,
    /// Finding, for people.
    pub what: String,
}

/// What recovery found.
#[derive(Clone, Debug, Default)]
pub struct OpenReport {
    /// Number of this start, above all before (rule V8).
    pub start: StartNumber,
    /// Shards that the log has.
    pub shards: usize,
    /// The checkpoint that was begun with; 0 if all of the log was read.
    pub checkpoint: u64,
    /// Frames that count and were read, local ones included.
    pub frames: u64,
    /// Appends that were read one by one, because no segment index covers them.
    pub appends: u64,
    /// Segments that hold anything.
    pub segments: u32,
    /// Bytes of an unfinished append at the end of the log; nobody was ever told that it is durable.
    pub torn_bytes: u64,
    /// Places of the log that can't be read, or are not as they should be.
    pub damage: Vec<Finding>,
}

/// A shard as its last durable frame left it.
#[derive(Clone, Debug, Default)]
pub struct ShardState {
    /// The shard.
    pub shard: ShardId,
    /// The last frame that counts.
    pub last: FrameName,
    /// `parent` and digest of the last frame: with the view's secret they give its access token.
    pub parent: Hash32,
    /// Digest of the last frame.
    pub digest: Hash32,
    /// Version after the last frame.
    pub version: Version,
    /// Known to be committed up to here: never cut.
    pub committed: Sequence,
    /// No view below this is served any more (rule V2).
    pub promised: ViewNumber,
    /// Secret of a view, and that view; `None` if this node never had one.
    pub secret: Option<(ViewNumber, Hash32)>,
    /// Newest view frame that counts, its sequence and what it says.
    pub view: Option<(Sequence, ViewBody)>,
    /// Those before it, the oldest first: the newest one that no cut takes, and all behind it.
    pub views_before: Vec<(ViewNumber, Sequence, ViewBody)>,
    /// The last attachment; generation 0 before the first.
    pub attach: AttachBody,
    /// Requests that were applied, so that a repeat is not applied again (W3).
    pub requests: RequestTable,
    /// Ranges of sequences, both ends included, whose frames were lost to damage.
    pub holes: Vec<(Sequence, Sequence)>,
    /// Frames behind the first and up to the second were never here, nor what they brought: the log began behind them
    /// (rule V17). That is no damage.
    pub absent: Option<(Sequence, Sequence)>,
    /// Set if damage may have taken frames behind the last one (rule E7): a seal answer does not count.
    pub suspect_tail: bool,
    /// Set if damage may have taken a promise that nothing later in the log tells of (rule V2).
    pub promise_lost: bool,
    /// Lost frames were given up by force when this view was left (rule V10); 0 if that never happened.
    pub given_up: ViewNumber,
    /// Kept versions below this are not all there; 0 if all are.
    pub whole_from: Version,
    /// Where it begins, if it reads from a parent what it has no entry for.
    pub fork: Option<Fork>,
    /// A peer has told of what frames up to here brought, or keep, and the last frame is before that; else 0.
    pub ahead: Sequence,
    /// From here on `frames` can serve without a gap.
    pub first_kept: Sequence,
    /// Chunk of the last data and its blocks so far.
    pub open_chunk: (ChunkId, u32),
}

/// The token that stands for the frame in front of a fork's own. It is no secret: no frame of a view is made with it but
/// the first one.
#[must_use]
pub fn fork_token(cluster: ClusterId, fork: &Fork) -> Hash32 {
    let mut hasher = blake3::Hasher::new_derive_key("freebs 2026-11 the beginning of a clone's shard");
    hasher.update(&cluster.0);
    let numbers =
        [fork.parent.volume.0, u64::from(fork.parent.index), fork.snapshot.0, fork.version.0, fork.sequence.0];
    for n in numbers {
        hasher.update(&n.to_le_bytes());
    }
    Hash32(*hasher.finalize().as_bytes())
}

/// The name of the last frame in front of a fork's own: of view 0, and told from all others by what it was cloned from.
#[must_use]
pub fn fork_name(cluster: ClusterId, fork: &Fork) -> FrameName {
    FrameName { view: ViewNumber(0), sequence: fork.sequence, hid: hide(&fork_token(cluster, fork)) }
}

/// Where a shard's sequence goes on after its map was learned from a peer: as if all frames up to here were here.
#[derive(Clone, Debug)]
pub struct Base {
    /// The carries in front of the mark have what was placed behind this.
    pub since: Sequence,
    /// The last frame of the log that stays in front of the map, also if it is not durable yet. What lies behind it was
    /// cut, which nothing else in the log says: a start would put it under the map.
    pub tip: Sequence,
    /// The frame that the state is as of.
    pub last: FrameName,
    /// `parent` of that frame.
    pub parent: Hash32,
    /// Digest of that frame.
    pub digest: Hash32,
    /// Version after that frame.
    pub version: Version,
    /// Known to be committed up to here.
    pub committed: Sequence,
    /// Head of the newest view frame; `None` if there is none.
    pub view_frame: Option<FrameHead>,
    /// The last attachment.
    pub attach: AttachBody,
    /// Requests that were applied.
    pub requests: RequestTable,
    /// The chunk that further data go to, and its blocks so far.
    pub open_chunk: (ChunkId, u32),
}

/// What a mark changes; what is left at its default stays.
#[derive(Clone, Debug, Default)]
pub struct MarkChange {
    /// Raises the promise; a lower one than before changes nothing.
    pub promised: Option<ViewNumber>,
    /// Replaces the secret, unless the one there is of a newer view.
    pub secret: Option<(ViewNumber, Hash32)>,
    /// The shard jumps to this state (the end of SYNC by map). A lower sequence than the shard's changes nothing.
    pub base: Option<Box<Base>>,
    /// With `base`: of what frames behind its `since` placed nothing is here yet. The log goes on from the state all the same
    /// (rule V17), and admits it.
    pub early: bool,
    /// The tail was compared with the chain's: clears `suspect_tail`.
    pub trusted: bool,
    /// Entries of lost frames were learned: these frames are not missed any more.
    pub learned: Option<Box<Learned>>,
    /// A peer says which versions are kept. In force before anything that is brought behind it.
    pub kept: Option<Box<KeptState>>,
    /// From here on it reads from a parent what it has no entry for.
    pub fork: Option<Fork>,
    /// It has all of that itself now: carries before the mark brought it, since the engine was opened.
    pub flat: bool,
}

impl MarkChange {
    /// Makes a shard that begins at a version of another one (design note 36). The log before its first frame has a name
    /// that is the same wherever the fork is made.
    #[must_use]
    pub fn forked(cluster: ClusterId, fork: &Fork) -> Self {
        let last = fork_name(cluster, fork);
        let base = Base {
            since: Sequence(0),
            tip: Sequence(0),
            last,
            parent: fork_token(cluster, fork),
            digest: Hash32::default(),
            version: fork.version,
            committed: last.sequence,
            view_frame: None,
            attach: AttachBody::default(),
            requests: RequestTable::default(),
            open_chunk: (ChunkId::default(), 0),
        };
        Self { base: Some(Box::new(base)), fork: Some(*fork), ..Self::default() }
    }

    /// Whether it says that carries before it have what frames would have brought.
    pub(crate) fn has_learned(&self) -> bool {
        self.base.is_some() || self.learned.is_some()
    }

    /// The frames that it gives up by force, if it does.
    pub(crate) fn gives_up(&self) -> Option<&Learned> {
        self.learned.as_deref().filter(|l| l.given_up.0 > 0)
    }
}

/// What was learned in place of lost frames that nobody has any more (rules E3, E7): the carries in front of the mark
/// have all map entries that frames behind `since` up to `upto` placed and that are still in force; and this what else
/// such frames may have said, from a state that is committed and not older than `upto`.
#[derive(Clone, Debug, Default)]
pub struct Learned {
    /// Frames up to this one are here.
    pub since: Sequence,
    /// The last lost frame.
    pub upto: Sequence,
    /// Head of the newest view frame among them; `None` if there is none.
    pub view_frame: Option<FrameHead>,
    /// The last attachment.
    pub attach: AttachBody,
    /// Requests that were applied.
    pub requests: RequestTable,
    /// Nothing was learned: the frames are given up by force when this view is left (rule V10). Else 0.
    pub given_up: ViewNumber,
}

/// What can be put into the log. Order of calls is order in the log and of durability.
#[derive(Clone, Debug)]
pub enum Record {
    /// The next frame of its shard. One with a sequence at or below the last one cuts back to it first, if its
    /// `hid` differs; it is ignored if its `hid` is the same.
    Frame(Frame),
    /// Fills a hole, or replaces a damaged copy of a frame that is there; never cuts.
    Repair(Frame),
    /// The shard's state with these changes; makes the shard if it is unknown.
    Mark {
        /// The shard.
        shard: ShardId,
        /// The changes.
        change: MarkChange,
        /// The caller's number, which comes back with `Durable::Mark`.
        ticket: u64,
    },
    /// Map entries with their places, and the data of those that have any (SYNC by map, repair of blocks).
    /// At most `CARRY_ENTRIES_MAX` entries and `limits::FRAME_DATA_BYTES_MAX` of data.
    Carry {
        /// The shard.
        shard: ShardId,
        /// The entries.
        body: CarryBody,
        /// Data of the entries that have any, in order, whole blocks each.
        data: Vec<Bytes>,
        /// The caller's number, which comes back with `Durable::Carry`.
        ticket: u64,
    },
    /// Frames behind `to` stop counting. Never below what is committed.
    Cut {
        /// The shard.
        shard: ShardId,
        /// The last frame that stays.
        to: Sequence,
    },
    /// The shard was deleted, or is not this node's any more: everything of it is freed.
    Forget {
        /// The shard.
        shard: ShardId,
        /// If it is not 0, the shard stays as one that is empty and has promised this view, whatever was promised before.
        promised: ViewNumber,
    },
}

/// What has become durable and visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// A frame, and all before it.
    Frame {
        /// The shard.
        shard: ShardId,
        /// The view that ordered the frame.
        view: ViewNumber,
        /// Its number.
        sequence: Sequence,
    },
    /// A frame that was missing, or damaged, is there.
    Repair {
        /// The shard.
        shard: ShardId,
        /// Its number.
        sequence: Sequence,
    },
    /// A mark is written and in force.
    Mark {
        /// The shard.
        shard: ShardId,
        /// As the record had it.
        ticket: u64,
    },
    /// A carry is written and in the map.
    Carry {
        /// The shard.
        shard: ShardId,
        /// As the record had it.
        ticket: u64,
    },
    /// A carry, or a mark other than that of a learned map, that is not written, because the device is full. It may be
    /// brought again later.
    NoRoom {
        /// The shard.
        shard: ShardId,
        /// As the record had it.
        ticket: u64,
    },
    /// A repair that is not written.
    Unrepaired {
        /// The shard.
        shard: ShardId,
        /// Number of the frame.
        sequence: Sequence,
        /// Why.
        why: Unrepaired,
    },
    /// A frame that does not count, or a mark that is not in force: the log can't have it here. What is brought behind it
    /// may be written, and does not follow what is here; whoever brought it does not know this log.
    Refused {
        /// The shard.
        shard: ShardId,
        /// Number of the frame; of a mark, that of the frame in front of it.
        sequence: Sequence,
        /// Why, for people.
        why: &'static str,
    },
    /// A carry that is not in the map, and never can be; or the mark of a fork whose parent does not keep the version.
    Unlearned {
        /// The shard.
        shard: ShardId,
        /// As the record had it.
        ticket: u64,
        /// Why, for people.
        why: &'static str,
    },
    /// Not written, but in force; the log says so with the next frame.
    Cut {
        /// The shard.
        shard: ShardId,
        /// The last frame that stays.
        to: Sequence,
    },
    /// The shard is gone; what it held is free.
    Forget {
        /// The shard.
        shard: ShardId,
    },
}

/// Why a repair is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrepaired {
    /// The device is full. It may be brought again later.
    NoRoom,
    /// Nothing is missed at its place.
    NotMissed,
    /// Another frame is at its place.
    Differs,
    /// It makes no sense, or is larger than a segment of this log takes.
    Unfit,
}

/// Hears what the log has done; called from the writer only, in log order, with nothing of the engine borrowed.
pub trait Listener {
    /// The map has been updated already. Every record is answered here once, unless the log fails before. Whoever takes
    /// entries out with `drain` spares an allocation.
    fn durable(&self, done: &mut Vec<Durable>);
    /// Once, at the end: nothing more will be appended. `NoSpace` or `DeviceFailed`, or `Invalid` and `Bug` for a
    /// record that can't be stored.
    fn failed(&self, error: &Error);
}

/// What `read` found: pieces in order, and of the data pieces the CRCs and the blocks.
#[derive(Clone, Debug, Default)]
pub struct ReadOut {
    /// In order of address; together the range that was asked for.
    pub pieces: Vec<Piece>,
    /// One per data block.
    pub crcs: Vec<u32>,
    /// Whole blocks each.
    pub data: Vec<Bytes>,
}

/// A version of the past that a shard keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastVersion {
    /// In the retention window.
    pub version: Version,
    /// The snapshot that pins it, if one does.
    pub pinned: Option<SnapshotId>,
    /// Of a time, the first moment from there on in which anything was ordered; `None` if nothing was.
    pub next: Option<Moment>,
}

/// The times that are told if versions of a retention window are let go of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimesAbove {
    /// As before: nothing is told of the time of these versions.
    Same,
    /// Times from this moment on.
    From(Moment),
    /// Nothing.
    None,
}

/// Which versions of a shard are kept beside the last one, and what that costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryState {
    /// Pinned versions and their snapshots, lowest version first. At most `limits::SHARD_PINS_MAX`.
    pub pins: Vec<Pin>,
    /// First version of the retention window; each from there on is kept.
    pub retain: Option<Version>,
    /// Kept versions below this are not all there, and can't be read; 0 if all are.
    pub whole_from: Version,
    /// Superseded extents that are kept for them, as far as they are known to be superseded, and the bytes of their data.
    pub extents: u64,
    /// Bytes of the data of those extents.
    pub bytes: u64,
}

impl HistoryState {
    /// Whether a version is kept.
    #[must_use]
    pub fn has(&self, version: Version) -> bool {
        self.pins.binary_search_by_key(&version, |p| p.version).is_ok() || self.retain.is_some_and(|r| r <= version)
    }
}

/// The versions that a log keeps beside the last one, as it is told to a peer that learns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptState {
    /// Pinned versions and their snapshots, lowest version first.
    pub pins: Vec<Pin>,
    /// First version of the retention window.
    pub retain: Option<Version>,
    /// The frame that this is as of: what frames up to it say of versions is in it.
    pub as_of: Sequence,
    /// Kept versions below this are not all there; 0 if all are.
    pub whole_from: Version,
    /// Not 0: all of the past was brought, which was asked for because not all of it was here below this version. Then
    /// `whole_from` holds here, too, unless history is missing here from a higher one on by now.
    pub past: Version,
}

/// Where a peer's reading of a map goes on: at an address, behind the entry of a version and sequence there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapPlace {
    /// The address.
    pub lba: Lba,
    /// Version and sequence of the last entry of it that was told; zeroes before the first.
    pub behind: (Version, Sequence),
    /// Blocks from the address on of which entries up to that one were told. Of those behind them none was, although an
    /// entry may reach further: a piece looks at a part of the map. 0 before the first.
    pub blocks: u32,
}

/// Live blocks that are damaged here, to be asked for elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedBlocks {
    /// What `Engine::mend` knows them by.
    pub id: u64,
    /// The shard.
    pub shard: ShardId,
    /// Block addresses in the shard.
    pub range: BlockRange,
    /// If they are history, a version that is kept, or that a clone reads, sees them, and this is the first one. 0: none, so
    /// they are in force now.
    pub seen_at: Version,
    /// Shards of clones that may read them, at the same addresses: their members may have them, too.
    pub forks: Vec<ShardId>,
}

/// What a step of the scrub did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStep {
    /// Bytes that were read.
    pub bytes: u64,
    /// Damage in the bytes that were read.
    pub findings: Vec<Finding>,
    /// Live blocks among what is damaged.
    pub damaged_blocks: u64,
    /// Everything was read once: the next step begins anew.
    pub pass_complete: bool,
}

/// Content of a shard in a few bytes; equal content gives equal digests whatever the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Version that the content is as of.
    pub version: Version,
    /// Frame that the content is as of.
    pub sequence: Sequence,
    /// Hash over addresses and bytes of all blocks that are data or zero.
    pub hash: Hash32,
    /// Blocks that are data or zero.
    pub blocks: u64,
    /// Those of them that are data.
    pub data_blocks: u64,
}

/// Room on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments that the device can have.
    pub limit_segments: u32,
    /// Segments that hold anything.
    pub used_segments: u32,
    /// Segments that the device can have beyond those.
    pub free_segments: u32,
    /// A head orders no writes when `free_segments` is not above this (rule W7).
    pub reserve_segments: u32,
    /// What others' frames may be given of the free ones: the log goes on without these.
    pub spare_segments: u32,
    /// Cleaning is at work, or may find something to do, or what it has emptied is being given up: more may be free soon.
    pub more_soon: bool,
    /// Bytes of blocks that maps name, or may name again after a cut.
    pub live_bytes: u64,
    /// A write or sync has failed: the device is out of use until it is opened again.
    pub poisoned: bool,
}

/// What has been counted since `open`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes of the log, one a turn.
    pub appends: u64,
    /// Bytes of those writes, padding included.
    pub append_bytes: u64,
    /// Frames in those writes, local ones included.
    pub frames: u64,
    /// Bytes of data blocks in those writes, those that cleaning moved included.
    pub data_bytes: u64,
    /// Calls of `Engine::read`.
    pub reads: u64,
    /// Bytes of data that reads took from the device.
    pub read_bytes: u64,
    /// Blocks whose bytes did not match their CRC.
    pub crc_errors: u64,
    /// Events of the kind `Damage`.
    pub damage: u64,
    /// Segments that were begun.
    pub segments_opened: u64,
    /// Segments that nothing counts in any more.
    pub segments_freed: u64,
    /// Local frames that the engine wrote to free segments.
    pub carried: u64,
    /// Lookups in the map, pages that they read, and bytes written for the map, checkpoints included.
    pub map_lookups: u64,
    /// Pages of the map that had to be read from the device.
    pub map_reads: u64,
    /// Bytes written for runs of the map and for checkpoints.
    pub map_bytes: u64,
    /// Checkpoints that were made.
    pub checkpoints: u64,
    /// Bytes of segment indexes.
    pub index_bytes: u64,
    /// Segments that cleaning emptied, bytes of live data that it moved, and bytes that it read for that.
    pub cleaned_segments: u64,
    /// Bytes of live data that cleaning moved.
    pub cleaned_bytes: u64,
    /// Bytes that cleaning read for that.
    pub clean_read_bytes: u64,
    /// Segments given back to the file system, and those filled with zeroes before they are used again.
    pub punched_segments: u64,
    /// Segments that were filled with zeroes ahead of their use.
    pub prewritten_segments: u64,
    /// Closed segments that the scrub has read to the end, bytes that it read, and damage that it found.
    pub scrubbed_segments: u64,
    /// Bytes that the scrub has read.
    pub scrubbed_bytes: u64,
    /// Damaged places that the scrub has found.
    pub scrub_findings: u64,
    /// Damaged blocks that got a new place with bytes from elsewhere.
    pub mended_blocks: u64,
}

impl Counters {
    /// Bytes written to the log for each byte of data that was brought to it, in thousandths; 0 before there is any.
    #[must_use]
    pub fn write_amplification_permille(&self) -> u64 {
        let brought = self.data_bytes - self.cleaned_bytes;
        ((self.append_bytes + self.index_bytes) * 1000).checked_div(brought).unwrap_or(0)
    }
}

/// How live data of poor segments are moved together, so that whole segments get free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanOptions {
    /// True if segments are cleaned at all. Without it a log that fills up takes no more writes.
    pub enabled: bool,
    /// Bytes that cleaning may append for 100 bytes that others append, while there is room. It gets more as free
    /// segments grow few, and all it needs when nobody else appends.
    pub share_percent: u32,
    /// Used segments, in percent of live data, that cleaning brings a log to although there is room.
    pub target_percent: u32,
    /// Live data of segments that are cleaned together, in memory meanwhile. More of them lie in better order after.
    pub batch_bytes: usize,
    #[doc(hidden)]
    pub mutant: Option<CleanMutant>,
}

impl Default for CleanOptions {
    fn default() -> Self {
        Self { enabled: true, share_percent: 25, target_percent: 110, batch_bytes: 16 << 20, mutant: None }
    }
}

/// Rules of cleaning that tests can leave out; each must be caught.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanMutant {
    /// What was live when a segment was chosen is moved, whatever happened since.
    LiveBeforeRead,
    /// Frames that may still be cut are moved, too.
    MoveUncommitted,
    /// Bytes are moved although they do not match their CRC.
    TrustBytes,
    /// E5: a segment goes back to the file system while the newest live table may still name it.
    PunchNamed,
    /// W7: no segments are kept back for cleaning: what others write may fill all that can be opened.
    NoReserve,
}

/// Rules of the log that tests can leave out, by `Engine::open_without`; each must be caught.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleMutant {
    /// E1: a segment is given up together with trims and zeroes that are in force.
    TrimsDie,
    /// E2: of two entries for a block the one that comes last wins, whatever their versions.
    LastComerWins,
    /// E3: a frame is known by its sequence alone, so that a tail of another branch stays.
    SequenceIsName,
    /// E3: who asks for entries placed since a frame is not told of trims and zeroes.
    TrimsUntold,
    /// E4: a checkpoint makes the frames that it finds committed.
    CheckpointCommits,
    /// E5: what a kept checkpoint names is used again as soon as the running engine is done with it.
    KeptUsedAgain,
    /// E5: a segment that is given up is used again while the newest durable live table still names it.
    GivenUsedAtOnce,
    /// E5: that a shard was deleted goes while a kept checkpoint still has the shard.
    DeletionsGo,
    /// E6: what only a pinned version needs goes as soon as something newer covers it.
    PinsForgotten,
    /// E6: a segment is given up together with trims and zeroes that only pinned versions see.
    PinnedTrimsDie,
    /// E6: a mark does not tell which versions are pinned, so that a pin goes with the segment of its frame.
    PinsUntold,
    /// E6: who learns the map is not told of entries that only a kept version sees.
    PastUntold,
    /// E6: a pin that the teller has released stays at who learns the map.
    ReleasedPinStays,
    /// E7: another frame in the place of a committed one cuts back to before it.
    CommittedIsCut,
    /// E7: what can't be read at the end of the log is a torn tail, whatever says that it was durable.
    DamageIsTorn,
    /// E8: a chunk is known by its counter, whatever view opened it.
    ChunkIsCounter,
    /// E10: a parent does not keep the versions that forks read.
    ForksForgotten,
    /// E10: a parent does not keep the version of a fork whose mark is on its way to the disk.
    ForksToComeForgotten,
    /// E10: a parent serves its forks whatever it has lost since.
    LostToForksUntold,
    /// E10: only the first mark of a fork says that it is one.
    ForksUntold,
    /// E10: who learns a fork's map is not told of what it reads from its parents.
    InheritedUntold,
}

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The log, or its soft state, is not as it should be.
    Damage,
    /// A block did not match its CRC.
    CrcError,
    /// A record was not believed, and not written.
    Refused,
    /// The device has no room, or will have none soon.
    Space,
}

/// Something for people and for repair.
#[derive(Clone, Debug)]
pub struct Event {
    /// The kind of event.
    pub kind: EventKind,
    /// The event in words, for people.
    pub text: String,
}

/// Entries in one carry, so that its head stays below `limits::FRAME_HEAD_BYTES_MAX` with a CRC for each block.
pub const CARRY_ENTRIES_MAX: usize = 2048;
