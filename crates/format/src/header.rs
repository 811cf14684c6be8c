//! The fixed structs of a frame's head: header, update description, extent description.

use freebs_types::{ChunkId, ClusterId, Hash32, Lba, Sequence, ShardId, Version, ViewNumber, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"FBFR";
pub const FRAME_VERSION: u16 = 1;
/// Feature bit of a frame that tells of pinned versions: updates of the kinds `Snapshot`, `Release` and `Retain`, and
/// marks that name any. A reader without it would let go of what the pins keep. Bit 1 said the same of pins without the
/// numbers of their snapshots, and is refused.
pub const FEATURE_PINS: u32 = 64;
/// Feature bit of a view frame whose secret is shared among the members. A reader without it would follow such a view
/// with a secret that its members can't put together.
pub const FEATURE_SHARED: u32 = 2;
/// Feature bit of a view frame that describes the volume. A reader without it would take the description for members.
pub const FEATURE_VOLUME: u32 = 4;
/// Feature bit of a mark that has secrets of closed views. A reader without it would take them for pinned versions.
pub const FEATURE_CLOSED: u32 = 8;
/// Feature bit of a view frame that names a branch. A reader without it would go on with a log that was lost by force.
pub const FEATURE_BRANCH: u32 = 16;
/// Feature bit of a mark of a log that has given up lost frames by force. A reader without it would take the log for whole.
pub const FEATURE_GIVEN_UP: u32 = 32;
/// Feature bit of a mark that says from which version on history is whole, or as of which frame versions are kept. A
/// reader without it would serve versions that are not all there.
pub const FEATURE_HISTORY: u32 = 128;
/// Feature bit of a mark of a shard that reads from a parent. A reader without it would take what is not there for zeroes.
pub const FEATURE_FORK: u32 = 256;
/// Feature bit of a mark that names versions which clones read and which are lost. A reader without it would serve clones what
/// lies below these.
pub const FEATURE_LOST: u32 = 512;
/// Feature bit of a mark of a clone's shard that reads from no parent any more. A reader without it would not miss what is lost of
/// that.
pub const FEATURE_FLAT: u32 = 1024;
/// Feature bit of a data frame with an update that prepares, commits or aborts an interval. A head without it would not
/// know that these blocks wait for a decision.
pub const FEATURE_INTERVALS: u32 = 2048;
/// All feature bits that this version knows.
pub(crate) const FEATURES: u32 = FEATURE_PINS
    | FEATURE_SHARED
    | FEATURE_VOLUME
    | FEATURE_CLOSED
    | FEATURE_BRANCH
    | FEATURE_GIVEN_UP
    | FEATURE_HISTORY
    | FEATURE_FORK
    | FEATURE_LOST
    | FEATURE_FLAT
    | FEATURE_INTERVALS;
/// Bytes of the header that the digest covers; behind them come the hashes themselves.
pub const DIGEST_PREFIX: usize = 112;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Updates.
    Data = 1,
    /// Opens a view: members, quorum, the seal of the view before.
    View = 2,
    /// Says that a chunk is sealed (reserved; chunks are sealed by the view that follows, for now).
    Seal = 3,
    /// Changes the holders of chunks (reserved).
    Holders = 4,
    /// A new attachment generation.
    Attach = 5,
    /// Local to a node, outside the sequence: the shard's state (promise, secret, request numbers, view).
    Mark = 6,
    /// Local to a node, outside the sequence: map entries with the places they have in their chunks.
    Carry = 7,
}

impl FrameKind {
    /// The kind with this number; `None` for a number that this version does not know.
    pub fn from_byte(b: u8) -> Option<Self> {
        [Self::Data, Self::View, Self::Seal, Self::Holders, Self::Attach, Self::Mark, Self::Carry]
            .into_iter()
            .find(|k| *k as u8 == b)
    }

    /// Local frames belong to a node's log and not to the shard's sequence; they never travel as chain frames.
    #[must_use]
    pub fn is_local(self) -> bool {
        matches!(self, Self::Mark | Self::Carry)
    }
}

/// What an update does. Seven is a reserved number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UpdateKind {
    /// Data, and zeroes among them. Has extents.
    Write = 1,
    /// The blocks read as zeroes and count as never written.
    Trim = 2,
    /// The blocks read as zeroes and count as written.
    Zero = 3,
    /// Puts record and data of an interval into a place of the shard (`interval`). Has extents, as a write.
    Prepare = 4,
    /// Puts the data of a prepared interval where they belong, and empties its place; in the deciding shard the record stays.
    Commit = 5,
    /// Empties the place of an interval; in the deciding shard the record stays.
    Abort = 6,
    /// Reserved: nothing makes such an update yet.
    Relocate = 7,
    /// Pins the version that it has itself (rule E6), for the snapshot with the number `base`. No extents.
    Snapshot = 8,
    /// Gives up the pin of its `base`, or the retention window if that is 0. No extents.
    Release = 9,
    /// Begins the retention window at its `base`, or moves it up to there: every version from there on is kept. No
    /// extents.
    Retain = 10,
    /// Pins the version `past`, which is kept, for the snapshot with the number `base`. No extents.
    Past = 11,
}

impl UpdateKind {
    /// The kind with this number; `None` for a number that this version does not know.
    pub fn from_byte(b: u8) -> Option<Self> {
        Some(match b {
            1 => Self::Write,
            2 => Self::Trim,
            3 => Self::Zero,
            4 => Self::Prepare,
            5 => Self::Commit,
            6 => Self::Abort,
            7 => Self::Relocate,
            8 => Self::Snapshot,
            9 => Self::Release,
            10 => Self::Retain,
            11 => Self::Past,
            _ => return None,
        })
    }

    /// True for kinds that have a number and nothing else yet: no frame may have an update of such a kind. When one gets a
    /// meaning it gets a feature bit, too; a reader that does not know the kind would take the update for a write.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        self == Self::Relocate
    }

    /// True for updates of intervals over several shards. To the log they are writes.
    #[must_use]
    pub fn is_interval(self) -> bool {
        matches!(self, Self::Prepare | Self::Commit | Self::Abort)
    }

    /// True for updates that say which versions are kept, and change no block.
    #[must_use]
    pub fn is_pin(self) -> bool {
        matches!(self, Self::Snapshot | Self::Release | Self::Retain | Self::Past)
    }
}

/// What an extent holds. A write's all-zero blocks are `Zero` extents: recorded, not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ExtentKind {
    /// Blocks with data, in the data of the frame.
    Data = 1,
    /// Never written, or trimmed: no data.
    Trim = 2,
    /// Zeroes: no data.
    Zero = 3,
}

impl ExtentKind {
    /// The kind with this number; `None` for a number that this version does not know.
    pub fn from_byte(b: u8) -> Option<Self> {
        [Self::Data, Self::Trim, Self::Zero].into_iter().find(|k| *k as u8 == b)
    }
}

/// The fixed header of every frame, on disk and on the wire.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    /// Always `FBFR`.
    pub magic: [u8; 4],
    /// Always 1.
    pub version: U16,
    /// A `FrameKind`.
    pub kind: u8,
    /// Zero.
    pub flags: u8,
    /// Feature bits a reader must know.
    pub features: U32,
    /// Bytes of header and body.
    pub head_len: U32,
    /// Bytes of data behind the head, whole blocks.
    pub data_len: U32,
    /// Updates in a data frame, else 0.
    pub updates: U32,
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// Number of the volume.
    pub volume: U64,
    /// Index of the shard in its volume.
    pub shard: U32,
    /// Chunk of the data: its counter within its view.
    pub chunk_counter: U32,
    /// Number of the view.
    pub view: U64,
    /// Chunk of the data: the view that opened it.
    pub chunk_view: U64,
    /// Number of the frame in its shard, +1 for each.
    pub sequence: U64,
    /// Version of the first update; of a frame without updates, the shard's last version.
    pub first_version: U64,
    /// Highest sequence that the head knew to be committed (W5).
    pub committed: U64,
    /// Wall clock of the head, nanoseconds since 1970.
    pub wall: U64,
    /// Data blocks of the chunk before this frame.
    pub chunk_offset: U32,
    /// Reserved for encryption; zero.
    pub key_id: U32,
    /// Access token of the frame before; zeroes for the first frame and for local ones.
    pub parent: [u8; 32],
    /// Hash of this frame's access token.
    pub hid: [u8; 32],
    /// Digest of the frame.
    pub digest: [u8; 32],
    /// Reserved for encryption; zero.
    pub tag: [u8; 16],
    /// Zero.
    pub reserved: [u8; 24],
    /// CRC-32C of the body.
    pub body_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<FrameHeader>() == 256);

impl FrameHeader {
    /// The shard that the frame belongs to.
    pub fn shard_id(&self) -> ShardId {
        ShardId { volume: VolumeId(self.volume.get()), index: self.shard.get() }
    }
    /// The cluster that the frame belongs to; the reader compares it with its own.
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId(self.cluster)
    }
    /// The view that ordered the frame; of a local frame, that of the shard's last frame.
    pub fn view_number(&self) -> ViewNumber {
        ViewNumber(self.view.get())
    }
    /// The chunk that the frame's data belong to.
    pub fn chunk(&self) -> ChunkId {
        ChunkId { view: ViewNumber(self.chunk_view.get()), counter: self.chunk_counter.get() }
    }
    /// Place of the frame in its shard; of a local frame, that of the shard's last frame.
    pub fn seq(&self) -> Sequence {
        Sequence(self.sequence.get())
    }
    /// Highest sequence that the head knew to be committed (W5).
    pub fn committed_seq(&self) -> Sequence {
        Sequence(self.committed.get())
    }
    /// Version after this frame.
    pub fn last_version(&self) -> Version {
        match self.updates.get() {
            0 => Version(self.first_version.get()),
            n => Version(self.first_version.get() + u64::from(n) - 1),
        }
    }
    /// Access token of the frame before; zeroes for the first frame and for local ones.
    pub fn parent_token(&self) -> Hash32 {
        Hash32(self.parent)
    }
    /// Hash of this frame's access token; of a local frame, that of the shard's last frame.
    pub fn hid(&self) -> Hash32 {
        Hash32(self.hid)
    }
    /// The digest as the header says it; `Frame::verify_digest` compares it with the bytes.
    pub fn digest(&self) -> Hash32 {
        Hash32(self.digest)
    }
    /// The kind; headers are only handed out after it was checked.
    pub fn frame_kind(&self) -> FrameKind {
        FrameKind::from_byte(self.kind).expect("checked when parsed")
    }
    /// Data blocks of the frame.
    pub fn data_blocks(&self) -> u32 {
        self.data_len.get() / freebs_types::BLOCK as u32
    }
}

/// One update of a data frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UpdateDesc {
    /// An `UpdateKind`.
    pub kind: u8,
    /// Zero.
    pub flags: u8,
    /// Number of extents.
    pub extents: U16,
    /// Data blocks of all its extents.
    pub blocks: U32,
    /// Number of the driver, random at its start.
    pub driver: U64,
    /// Number of the driver's request.
    pub number: U64,
    /// The driver's lowest request number without an answer.
    pub lowest_open: U64,
    /// The version that a `Release` or `Retain` is about; else 0.
    pub base: U64,
    /// The version that a `Past` pins; else 0.
    pub past: U64,
}
const _: () = assert!(size_of::<UpdateDesc>() == 48);

/// One extent of an update.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtentDesc {
    /// First block.
    pub lba: U32,
    /// Number of blocks.
    pub blocks: U32,
    /// An `ExtentKind`.
    pub kind: u8,
    /// Zero.
    pub flags: u8,
    /// Zero.
    pub reserved: U16,
}
const _: () = assert!(size_of::<ExtentDesc>() == 12);

impl ExtentDesc {
    pub(crate) fn of(e: &crate::Extent) -> Self {
        Self {
            lba: e.range.start.0.into(),
            blocks: e.range.len.into(),
            kind: e.kind as u8,
            flags: 0,
            reserved: 0.into(),
        }
    }

    /// First block of the extent.
    pub fn start(&self) -> Lba {
        Lba(self.lba.get())
    }
}
