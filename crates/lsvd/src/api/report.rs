//! Findings on a device that nobody uses, as plain values.

use crate::{Finding, Lost};
use freebs_format::FrameKind;
use freebs_types::{
    BlockRange, ChunkId, ClusterId, DeviceId, Hash32, NodeId, Sequence, ShardId, StartNumber, Version, ViewNumber,
};

/// Damage that is told one by one; more is counted.
pub const DAMAGE_MAX: usize = 10_000;
/// Ranges of blocks that a loss names; more is counted.
pub const LOSS_RANGES_MAX: usize = 1_000;

/// Hears how far a tool has come, and of each frame that `inspect` finds.
pub trait Watch {
    /// `done` of `total` segments of this step.
    fn progress(&mut self, _step: &'static str, _done: u32, _total: u32) {}
    /// Called once per frame, in log order.
    fn frame(&mut self, _frame: &FrameInfo) {}
}

impl Watch for () {}

/// One copy of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyInfo {
    /// Byte on the device.
    pub at: u64,
    /// Why it can't be used, if so.
    pub error: Option<String>,
    /// Raised at every write; 0 if the copy can't be used.
    pub revision: u64,
    /// Start number in this copy; 0 if it can't be used.
    pub start: StartNumber,
}

/// Whose device it is, and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Both copies of the superblock.
    pub copies: Vec<CopyInfo>,
    /// Both copies are lost: what follows was guessed from appends, and node, worker, limit, start are not known.
    pub guessed: bool,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// Identity of the device.
    pub device: DeviceId,
    /// The node whose log it is.
    pub node: NodeId,
    /// Which worker's log it is, from 0.
    pub worker: u16,
    /// Workers of the node.
    pub workers: u16,
    /// The node's last start that reached the device.
    pub start: StartNumber,
    /// Wall clock of its creation, nanoseconds since 1970.
    pub created: u64,
    /// Bytes of the physical sector that the log was made for.
    pub sector: u32,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes that it may grow to, and bytes that it has.
    pub size_limit: u64,
    /// Bytes that it has now.
    pub bytes: u64,
    /// Whole segments that it has, and those that hold anything.
    pub segments: u32,
    /// Segments that hold anything.
    pub used_segments: u32,
    /// Bytes of an unfinished append at the end of the log; nobody was ever told that it is durable.
    pub torn_bytes: u64,
    /// Bytes of blocks that maps name, or may name again after a cut.
    pub live_bytes: u64,
}

/// The present use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// The one that appends go to next.
    Open,
    /// Full: nothing is appended to it any more.
    Closed,
    /// Nothing in it counts.
    Free,
    /// Holds pages of the map that a checkpoint names.
    Map,
    /// It should hold something, and no append in it can be found.
    Lost,
}

impl SegmentKind {
    /// The word that JSON and the CLI have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Closed => "closed",
            Self::Free => "free",
            Self::Map => "map",
            Self::Lost => "lost",
        }
    }
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Index of the segment.
    pub id: u32,
    /// Its present use.
    pub kind: SegmentKind,
    /// Its number in the order of opening; 0 if nothing in it counts.
    pub seq: u64,
    /// Byte on the device where it begins.
    pub byte: u64,
    /// Whether a valid index says what it holds.
    pub indexed: bool,
    /// Number of its first append; 0 if there is none.
    pub first_append: u64,
    /// Number of its last append; 0 if there is none.
    pub last_append: u64,
    /// Frames in it, local ones included.
    pub frames: u64,
    /// Shards that have frames in it.
    pub shards: u32,
    /// Bytes of data blocks of its frames, and those of them that a map names, or may name again after a cut.
    pub data_bytes: u64,
    /// Bytes of data blocks that a map names, or may name again after a cut.
    pub live_bytes: u64,
}

/// A run of frames of one shard (END section 3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    /// The chunk.
    pub chunk: ChunkId,
    /// Bytes of its blocks in the log, and those of them that the map names.
    pub bytes: u64,
    /// Bytes of its blocks that the map names.
    pub live_bytes: u64,
    /// Segments that its blocks lie in.
    pub segments: u32,
}

/// One shard as recovery would give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    /// The shard.
    pub shard: ShardId,
    /// View of its last frame.
    pub view: ViewNumber,
    /// Its last frame; 0 for an empty log.
    pub sequence: Sequence,
    /// Version after its last frame.
    pub version: Version,
    /// Known to be committed up to here.
    pub committed: Sequence,
    /// No view below this is served any more (rule V2).
    pub promised: ViewNumber,
    /// From here on the log has its frames without a gap.
    pub first_kept: Sequence,
    /// Frames in the log, local ones included.
    pub frames: u64,
    /// Bytes of their data, and those of them that the map names.
    pub data_bytes: u64,
    /// Bytes of data that the map names.
    pub live_bytes: u64,
    /// Blocks that read as zeroes because they were written so.
    pub zero_blocks: u64,
    /// Chunks that it has blocks of.
    pub chunks: Vec<ChunkInfo>,
    /// Frames that are lost, both ends included.
    pub holes: Vec<(Sequence, Sequence)>,
    /// Frames behind the first and up to the second were never here: the log began behind them.
    pub absent: Option<(Sequence, Sequence)>,
    /// Frames behind the last one may be lost.
    pub suspect_tail: bool,
    /// The state in a few bytes.
    pub digest: StateDigest,
}

/// One frame in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// Index of the segment that it lies in.
    pub segment: u32,
    /// Bytes in the segment where head and data begin.
    pub head_at: u32,
    /// Byte in the segment where its data begin.
    pub data_at: u32,
    /// Number of the append that it lies in.
    pub append: u64,
    /// The kind of frame.
    pub kind: FrameKind,
    /// Its append fills holes or replaces damaged copies.
    pub repair: bool,
    /// Whether the shard counts it as its frame of that sequence. Local frames always do.
    pub counts: bool,
    /// The shard.
    pub shard: ShardId,
    /// The view that ordered it; of a local frame, that of the shard's last frame.
    pub view: ViewNumber,
    /// Its number; of a local frame, that of the shard's last frame.
    pub sequence: Sequence,
    /// Version of its first update; without updates, the shard's last version.
    pub first_version: Version,
    /// Updates in it.
    pub updates: u32,
    /// The chunk that its data belong to.
    pub chunk: ChunkId,
    /// Data blocks of that chunk before this frame.
    pub chunk_offset: u32,
    /// Bytes of header and body.
    pub head_bytes: u32,
    /// Bytes of data.
    pub data_bytes: u32,
    /// Hash of its access token; of a local frame, that of the shard's last frame.
    pub hid: Hash32,
    /// It begins a branch: the shard went on by force here (V10).
    pub branch: bool,
}

/// What `inspect` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Whose device it is.
    pub device: DeviceInfo,
    /// All whole segments of the device, in order.
    pub segments: Vec<SegmentInfo>,
    /// All shards that are not deleted, in order.
    pub shards: Vec<ShardInfo>,
    /// What the next start of the node would report as damage.
    pub recovery: Vec<Finding>,
}

/// What is damaged. The names are for programs, and stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamageKind {
    /// A copy of the superblock.
    Superblock,
    /// A whole segment that should hold something.
    Segment,
    /// An append whose header can't be found where it must be.
    Append,
    /// Heads of frames, or the live table, in an append.
    Heads,
    /// A data block of a frame.
    Data,
    /// A data block that nobody could read any more when this copy was made: a stand-in is here, whole.
    Lost,
    /// A frame whose digest is not that of its bytes.
    Digest,
    /// A frame that is not the one that the frame before it was followed by.
    Chain,
    /// The last bytes of a closed segment.
    Footer,
    /// The index of a closed segment.
    Index,
    /// An index that is whole and differs from the appends.
    Mismatch,
    /// A block that the map names and that is not where it should be.
    Block,
    /// A checkpoint, or a page of the map that one names. The next start takes longer.
    Map,
}

impl DamageKind {
    /// The word that JSON and the CLI have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Segment => "segment",
            Self::Append => "append",
            Self::Heads => "heads",
            Self::Data => "data",
            Self::Lost => "lost",
            Self::Digest => "digest",
            Self::Chain => "chain",
            Self::Footer => "footer",
            Self::Index => "index",
            Self::Mismatch => "mismatch",
            Self::Block => "block",
            Self::Map => "map",
        }
    }
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The damaged blocks.
    pub kind: DamageKind,
    /// `None` for the superblock.
    pub segment: Option<u32>,
    /// Byte in the segment, or on the device if there is no segment.
    pub offset: u64,
    /// The same place as a byte on the device, and how many bytes are hit as far as that is known.
    pub byte: u64,
    /// Bytes that are hit, as far as that is known; else 0.
    pub bytes: u64,
    /// Whose it is, if that is known.
    pub shard: Option<ShardId>,
    /// Number of the frame that is hit, if that is known.
    pub sequence: Option<Sequence>,
    /// Block addresses of the shard that the bytes belong to.
    pub blocks: Vec<BlockRange>,
    /// Something that counts can't be had from this device any more. If not, the same is said elsewhere on it, or
    /// nothing names it.
    pub lost: bool,
    /// The damage in words, for people.
    pub what: String,
}

/// What of one shard can't be had from this device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Frames, both ends included.
    pub sequences: Vec<(Sequence, Sequence)>,
    /// Frames behind the last one may be lost.
    pub suspect_tail: bool,
    /// Blocks whose bytes are damaged: the first `LOSS_RANGES_MAX` ranges, and how many blocks in all.
    pub blocks: Vec<BlockRange>,
    /// Blocks whose bytes are damaged, all of them.
    pub block_count: u64,
    /// Blocks that are whole and not served, because a lost frame may have written them anew.
    pub doubtful_blocks: u64,
}

impl Loss {
    /// True if nothing is lost. Doubtful blocks alone are no loss of their own.
    pub fn is_none(&self) -> bool {
        self.sequences.is_empty() && !self.suspect_tail && self.block_count == 0
    }
}

/// How much `verify` has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Segments of the log that were read.
    pub segments: u64,
    /// Indexes of closed segments that were held against the appends.
    pub indexes: u64,
    /// Appends that were read.
    pub appends: u64,
    /// Frames that were read.
    pub frames: u64,
    /// Frames whose `parent` was held against the frame before.
    pub links: u64,
    /// Data blocks of all frames, and those of them that maps name.
    pub blocks: u64,
    /// Data blocks that maps name.
    pub live_blocks: u64,
}

/// What `verify` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// Whose device it is.
    pub device: DeviceInfo,
    /// How much was looked at.
    pub checked: Checked,
    /// The first `DAMAGE_MAX` damaged places, and how many there are in all.
    pub damage: Vec<Damage>,
    /// Damaged places in all.
    pub damage_count: u64,
    /// Shards that have lost something, and what.
    pub losses: Vec<(ShardId, Loss)>,
    /// What the next start of the node would report as damage.
    pub recovery: Vec<Finding>,
}

impl Verification {
    /// Whether everything that counts is as it was written.
    pub fn is_sound(&self) -> bool {
        self.damage_count == 0 && self.losses.is_empty() && self.recovery.is_empty()
    }
}

/// A shard's state in a few bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateDigest {
    /// Version after the last frame.
    pub version: Version,
    /// The last frame.
    pub sequence: Sequence,
    /// Content, as `Engine::digest` gives it: the same on every replica that agrees.
    pub content: Hash32,
    /// Everything that this log says of the shard, places included: the same only from the same log.
    pub state: Hash32,
    /// Blocks that are data or zero.
    pub blocks: u64,
    /// Those of them that are data.
    pub data_blocks: u64,
}

/// What was found of a segment's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// It is whole, and says what the appends say.
    Sound,
    /// There is none.
    Missing,
    /// There is one, and its bytes are not what was written.
    Damaged,
    /// Whole, but it does not say what the appends say.
    Differs,
}

impl IndexState {
    /// The word that JSON and the CLI have for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::Missing => "missing",
            Self::Damaged => "damaged",
            Self::Differs => "differs",
        }
    }
}

/// What becomes of a segment's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is right, and stays as it is.
    Keep,
    /// It is made anew, or would be with `write`.
    Write,
    /// It can't be made anew, and why.
    Leave(String),
}

/// The index of one closed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRebuild {
    /// Index of the segment.
    pub segment: u32,
    /// Its number in the order of opening.
    pub seq: u64,
    /// Frames that its appends hold, and that the index should have.
    pub frames: u64,
    /// The state in which it was found.
    pub found: IndexState,
    /// The action for it.
    pub action: Action,
}

/// A shard's state as a start would give it, before and from the log alone; `None` if it is not known then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRebuild {
    /// The shard.
    pub shard: ShardId,
    /// With the soft state that was there.
    pub before: Option<StateDigest>,
    /// From the log alone.
    pub after: Option<StateDigest>,
}

/// What `rebuild` found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuild {
    /// Whose device it is.
    pub device: DeviceInfo,
    /// Whether anything may have been written.
    pub written: bool,
    /// All closed segments, in order.
    pub indexes: Vec<IndexRebuild>,
    /// All shards that were or are known, in order.
    pub shards: Vec<ShardRebuild>,
    /// What recovery from the log alone reports as damage.
    pub recovery: Vec<Finding>,
}

impl Rebuild {
    /// Whether every index is or would be right now, and every shard the same as before.
    pub fn is_complete(&self) -> bool {
        let left = self.indexes.iter().any(|i| matches!(i.action, Action::Leave(_)));
        !left && self.recovery.is_empty() && self.shards.iter().all(|s| s.before == s.after)
    }
}

/// The findings of `recover`, and its deeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Losses {
    /// The device.
    pub device: DeviceInfo,
    /// Frames that each shard misses, or may miss; shards that miss nothing are left out.
    pub lost: Vec<Lost>,
    /// True if that was taken for lost.
    pub accepted: bool,
    /// Damage, as recovery reports it.
    pub recovery: Vec<Finding>,
}
