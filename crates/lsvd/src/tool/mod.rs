//! Tools for a device that nobody uses: what is on it, whether all of it is right, and making its soft state again.
//!
//! They work on a damaged device and say what is lost. `inspect` and `verify` only read. `rebuild` writes indexes of
//! closed segments, and only behind the appends of a segment that it has read whole.
//!
//! Invariants: bytes are understood by the code that recovery and reads use, so a tool and a node never disagree.
//! Nothing on a device makes a tool panic, or hold more than its maps, one segment and its named maxima.

mod inspect;
mod opened;
mod rebuild;
pub(crate) mod segment;
mod state;
mod survey;
mod verify;

pub use inspect::inspect;
pub use rebuild::rebuild;
pub use survey::{ShardSurvey, Survey, survey};
pub use verify::verify;

use crate::Finding;
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
    pub revision: u64,
    pub start: StartNumber,
}

/// Whose device it is, and its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub copies: Vec<CopyInfo>,
    /// Both copies are lost: what follows was guessed from appends, and node, worker, limit, start are not known.
    pub guessed: bool,
    pub cluster: ClusterId,
    pub device: DeviceId,
    pub node: NodeId,
    pub worker: u16,
    pub workers: u16,
    pub start: StartNumber,
    /// Wall clock of its creation, nanoseconds since 1970.
    pub created: u64,
    pub sector: u32,
    pub segment_bytes: u64,
    /// Bytes that it may grow to, and bytes that it has.
    pub size_limit: u64,
    pub bytes: u64,
    /// Whole segments that it has, and those that hold anything.
    pub segments: u32,
    pub used_segments: u32,
    /// Bytes of an unfinished append at the end of the log; nobody was ever told that it is durable.
    pub torn_bytes: u64,
    /// Bytes of blocks that maps name, or may name again after a cut.
    pub live_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// The one that appends go to next.
    Open,
    Closed,
    /// Nothing in it counts.
    Free,
    /// Holds pages of the map that a checkpoint names.
    Map,
    /// It should hold something, and no append in it can be found.
    Lost,
}

impl SegmentKind {
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
    pub id: u32,
    pub kind: SegmentKind,
    /// Its number in the order of opening; 0 if nothing in it counts.
    pub seq: u64,
    /// Byte on the device where it begins.
    pub byte: u64,
    /// Whether a valid index says what it holds.
    pub indexed: bool,
    pub first_append: u64,
    pub last_append: u64,
    pub frames: u64,
    pub shards: u32,
    /// Bytes of data blocks of its frames, and those of them that a map names, or may name again after a cut.
    pub data_bytes: u64,
    pub live_bytes: u64,
}

/// A run of frames of one shard (END section 3.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    pub chunk: ChunkId,
    /// Bytes of its blocks in the log, and those of them that the map names.
    pub bytes: u64,
    pub live_bytes: u64,
    pub segments: u32,
}

/// One shard as recovery would give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    pub shard: ShardId,
    pub view: ViewNumber,
    pub sequence: Sequence,
    pub version: Version,
    pub committed: Sequence,
    pub promised: ViewNumber,
    /// From here on the log has its frames without a gap.
    pub first_kept: Sequence,
    /// Frames in the log, local ones included.
    pub frames: u64,
    /// Bytes of their data, and those of them that the map names.
    pub data_bytes: u64,
    pub live_bytes: u64,
    /// Blocks that read as zeroes because they were written so.
    pub zero_blocks: u64,
    pub chunks: Vec<ChunkInfo>,
    /// Frames that are lost, both ends included.
    pub holes: Vec<(Sequence, Sequence)>,
    /// Frames behind the last one may be lost.
    pub suspect_tail: bool,
    pub digest: StateDigest,
}

/// One frame in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    pub segment: u32,
    /// Bytes in the segment where head and data begin.
    pub head_at: u32,
    pub data_at: u32,
    pub append: u64,
    pub kind: FrameKind,
    pub repair: bool,
    /// Whether the shard counts it as its frame of that sequence. Local frames always do.
    pub counts: bool,
    pub shard: ShardId,
    pub view: ViewNumber,
    pub sequence: Sequence,
    pub first_version: Version,
    pub updates: u32,
    pub chunk: ChunkId,
    pub chunk_offset: u32,
    pub head_bytes: u32,
    pub data_bytes: u32,
    pub hid: Hash32,
}

/// What `inspect` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    pub device: DeviceInfo,
    pub segments: Vec<SegmentInfo>,
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
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Segment => "segment",
            Self::Append => "append",
            Self::Heads => "heads",
            Self::Data => "data",
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
    pub kind: DamageKind,
    /// `None` for the superblock.
    pub segment: Option<u32>,
    /// Byte in the segment, or on the device if there is no segment.
    pub offset: u64,
    /// The same place as a byte on the device, and how many bytes are hit as far as that is known.
    pub byte: u64,
    pub bytes: u64,
    /// Whose it is, if that is known.
    pub shard: Option<ShardId>,
    pub sequence: Option<Sequence>,
    /// Block addresses of the shard that the bytes belong to.
    pub blocks: Vec<BlockRange>,
    /// Something that counts can't be had from this device any more. If not, the same is said elsewhere on it, or
    /// nothing names it.
    pub lost: bool,
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
    pub block_count: u64,
    /// Blocks that are whole and not served, because a lost frame may have written them anew.
    pub doubtful_blocks: u64,
}

impl Loss {
    pub fn is_none(&self) -> bool {
        self.sequences.is_empty() && !self.suspect_tail && self.block_count == 0
    }
}

/// How much `verify` has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub segments: u64,
    pub indexes: u64,
    pub appends: u64,
    pub frames: u64,
    /// Frames whose `parent` was held against the frame before.
    pub links: u64,
    /// Data blocks of all frames, and those of them that maps name.
    pub blocks: u64,
    pub live_blocks: u64,
}

/// What `verify` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    pub device: DeviceInfo,
    pub checked: Checked,
    /// The first `DAMAGE_MAX` damaged places, and how many there are in all.
    pub damage: Vec<Damage>,
    pub damage_count: u64,
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
    pub version: Version,
    pub sequence: Sequence,
    /// Content, as `Engine::digest` gives it: the same on every replica that agrees.
    pub content: Hash32,
    /// Everything that this log says of the shard, places included: the same only from the same log.
    pub state: Hash32,
    /// Blocks that are data or zero.
    pub blocks: u64,
    pub data_blocks: u64,
}

/// What was found of a segment's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    Sound,
    Missing,
    Damaged,
    /// Whole, but it does not say what the appends say.
    Differs,
}

impl IndexState {
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
    Keep,
    /// It is made anew, or would be with `write`.
    Write,
    /// It can't be made anew, and why.
    Leave(String),
}

/// The index of one closed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRebuild {
    pub segment: u32,
    pub seq: u64,
    pub frames: u64,
    pub found: IndexState,
    pub action: Action,
}

/// A shard's state as a start would give it, before and from the log alone; `None` if it is not known then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardRebuild {
    pub shard: ShardId,
    pub before: Option<StateDigest>,
    pub after: Option<StateDigest>,
}

/// What `rebuild` found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuild {
    pub device: DeviceInfo,
    /// Whether anything may have been written.
    pub written: bool,
    pub indexes: Vec<IndexRebuild>,
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
