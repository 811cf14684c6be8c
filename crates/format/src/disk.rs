//! Structures of a device: superblock, append header, segment table, segment index.
//!
//! A device begins with `SEGMENTS_AT` bytes of which the superblock's two copies use two places; then come
//! segments of equal size. A segment is a row of appends and, once closed, an index at its end. Each append is
//! header, extra bytes (in a segment's first append the table of live segments, in the others what the append before
//! held), all frame heads, padding to the sector, then all data blocks in order of the heads.

use crate::{FrameHead, crc32c, pack, packed_len_max, unpack};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use freebs_types::{
    ClusterId, DeviceId, Error, Hash32, HostPublic, NodeId, Result, SegmentId, SegmentSeq, StartNumber, limits,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 4] = *b"FBSB";
/// The first bytes of an append.
pub const APPEND_MAGIC: [u8; 4] = *b"FBAP";
/// The first bytes of a segment's footer.
pub const FOOTER_MAGIC: [u8; 4] = *b"FBIX";
/// The first bytes of a page of a map segment.
pub const PAGE_MAGIC: [u8; 4] = *b"FBMP";
/// The first bytes of a checkpoint's slot.
pub const CHECKPOINT_MAGIC: [u8; 4] = *b"FBCP";
/// The first bytes of a page of openings.
pub const OPENINGS_MAGIC: [u8; 4] = *b"FBOP";
/// The first bytes of the file `host-key`.
pub const HOST_KEY_MAGIC: [u8; 4] = *b"FBHK";
/// Version of all structures of a device but frames, which have their own.
pub const DISK_VERSION: u16 = 2;
/// Version of the file `host-key`.
pub const HOST_KEY_VERSION: u16 = 1;

/// Bytes of the file `host-key`.
pub const HOST_KEY_BYTES: usize = 128;

/// Where the two copies of the superblock lie, far enough apart that one bad spot does not take both.
pub const SUPERBLOCK_AT: [u64; 2] = [0, 512 << 10];
/// Bytes that a copy occupies, whatever the sector.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Where the two slots of checkpoints lie: behind the superblock's copies, each in a piece of the same size.
pub const CHECKPOINT_AT: [u64; 2] = [64 << 10, (512 + 64) << 10];
/// Where the two pages of openings lie: behind the slots of checkpoints, in the same way.
pub const OPENINGS_AT: [u64; 2] = [128 << 10, (512 + 128) << 10];
/// Where segments begin.
pub const SEGMENTS_AT: u64 = 1 << 20;
/// Most segments of a device: its live table still fits the first append of the smallest segment.
pub const SEGMENTS_MAX: u32 = 1 << 20;

/// Identity and shape of a device. The only thing that is ever overwritten in place.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// Always `FBSB`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Always 256.
    pub length: U16,
    /// Feature bits: none yet.
    pub features: U32,
    /// Bytes of the physical sector that the log was made for.
    pub sector: U32,
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// Identity of the device.
    pub device: [u8; 16],
    /// Number of the node.
    pub node: U64,
    /// Which worker's log this is, and of how many.
    pub worker: U16,
    /// Workers of the node.
    pub workers: U16,
    /// Zero.
    pub reserved0: U32,
    /// Bytes of a segment, a multiple of 4,096 from 1 MiB (8 MiB for nodes) to 1 GiB.
    pub segment_bytes: U64,
    /// Bytes that the device may grow to.
    pub size_limit: U64,
    /// Raised at every write of the superblock; the valid copy with the higher number counts.
    pub revision: U64,
    /// Raised at every start of the node (rule V8).
    pub start: U64,
    /// Wall clock of the creation, nanoseconds since 1970.
    pub created: U64,
    /// Zero.
    pub reserved: [u8; 148],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<Superblock>() == 256);

impl Superblock {
    /// The highest revision and start number that a copy may have.
    pub const NUMBER_MAX: u64 = u64::MAX / 2;

    /// The superblock as one zero-padded sector-sized piece, with its checksum set.
    #[must_use]
    pub fn encode(mut self) -> Vec<u8> {
        self.crc = crc32c(&self.as_bytes()[..252]).into();
        let mut out = self.as_bytes().to_vec();
        out.resize(SUPERBLOCK_BYTES, 0);
        out
    }

    /// `NotFound` if no superblock was ever here, `Corrupt` if one was, `Invalid` if it is of another format.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (sb, _) = Self::read_from_prefix(bytes).map_err(|_| Error::corrupt("superblock is cut short"))?;
        if sb.crc.get() != crc32c(&sb.as_bytes()[..252]) {
            let what = if sb.magic == SUPERBLOCK_MAGIC {
                Error::corrupt("superblock does not match its checksum")
            } else {
                Error::not_found("no freebs superblock here")
            };
            return Err(what);
        }
        if sb.magic != SUPERBLOCK_MAGIC {
            return Err(Error::not_found("no freebs superblock here"));
        }
        if sb.version.get() < DISK_VERSION {
            return Err(Error::invalid(
                "the device has the format of an earlier freebs; take its volumes out with that one (`freebs volume export`)",
            ));
        }
        if sb.version.get() > DISK_VERSION || sb.features.get() != 0 {
            return Err(Error::invalid("the device has a newer format; use a newer freebs"));
        }
        let sector = sb.sector.get();
        let segment = sb.segment_bytes.get();
        if !(512..=4096).contains(&sector)
            || !sector.is_power_of_two()
            || !(limits::SEGMENT_BYTES_MIN..=1 << 30).contains(&segment)
            || !segment.is_multiple_of(4096)
            // They are counted on from here.
            || [sb.revision, sb.start].iter().any(|n| n.get() > Self::NUMBER_MAX)
        {
            return Err(Error::corrupt("superblock with an impossible shape"));
        }
        Ok(sb)
    }

    /// The cluster that the device belongs to.
    pub fn cluster_id(&self) -> ClusterId {
        ClusterId(self.cluster)
    }
    /// This device, drawn when it was made.
    pub fn device_id(&self) -> DeviceId {
        DeviceId(self.device)
    }
    /// The node whose log this is.
    pub fn node_id(&self) -> NodeId {
        NodeId(self.node.get())
    }
    /// The last start of the node that reached this device (rule V8).
    pub fn start_number(&self) -> StartNumber {
        StartNumber(self.start.get())
    }
}

/// The file `host-key` beside the log: the key pair that slices of secrets are sealed for.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct HostKeyFile {
    /// Always `FBHK`.
    pub magic: [u8; 4],
    /// Always 1.
    pub version: U16,
    /// Always 128.
    pub length: U16,
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// Number of the node.
    pub node: U64,
    /// Secret half of the key pair, in clear.
    pub secret: [u8; 32],
    /// Public half, which has to belong to `secret`.
    pub public: [u8; 32],
    /// Zero.
    pub reserved: [u8; 28],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<HostKeyFile>() == HOST_KEY_BYTES);

impl HostKeyFile {
    /// The file's bytes, with its checksum set.
    #[must_use]
    pub fn encode(cluster: ClusterId, node: NodeId, secret: &Hash32, public: &HostPublic) -> [u8; HOST_KEY_BYTES] {
        let mut file = Self {
            magic: HOST_KEY_MAGIC,
            version: HOST_KEY_VERSION.into(),
            length: (HOST_KEY_BYTES as u16).into(),
            cluster: cluster.0,
            node: node.0.into(),
            secret: secret.0,
            public: public.0,
            reserved: [0; 28],
            crc: 0.into(),
        };
        file.crc = crc32c(&file.as_bytes()[..HOST_KEY_BYTES - 4]).into();
        file.as_bytes().try_into().expect("of this length")
    }

    /// The secret half, and the public one that has to belong to it.
    pub fn decode(bytes: &[u8], cluster: ClusterId, node: NodeId) -> Result<(Hash32, HostPublic)> {
        let file = Self::ref_from_bytes(bytes).map_err(|_| Error::corrupt("a host key of another length"))?;
        if file.magic != HOST_KEY_MAGIC || file.crc.get() != crc32c(&bytes[..HOST_KEY_BYTES - 4]) {
            return Err(Error::corrupt("a host key that does not match its checksum"));
        }
        if file.version.get() != HOST_KEY_VERSION || file.length.get() as usize != HOST_KEY_BYTES {
            return Err(Error::invalid("a host key of a newer format; use a newer freebs"));
        }
        if file.cluster != cluster.0 || file.node.get() != node.0 {
            return Err(Error::corrupt("the host key of another node"));
        }
        Ok((Hash32(file.secret), HostPublic(file.public)))
    }
}

/// Appends that are lost together: first and last; both 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LostStretch {
    /// Number of the first one.
    pub from: U64,
    /// Number of the last one.
    pub to: U64,
}
const _: () = assert!(size_of::<LostStretch>() == 16);

/// Stretches of lost appends that a segment's footer names, at most.
pub const LOST_STRETCHES_MAX: usize = 8;

impl LostStretch {
    /// Appends from one up to another.
    #[must_use]
    pub fn new((from, to): (u64, u64)) -> Self {
        Self { from: from.into(), to: to.into() }
    }

    /// First and last append, if any is lost.
    #[must_use]
    pub fn appends(&self) -> Option<(u64, u64)> {
        (self.to.get() > 0).then(|| (self.from.get(), self.to.get()))
    }

    fn is_possible(&self) -> bool {
        let (from, to) = (self.from.get(), self.to.get());
        (from == 0) == (to == 0) && from <= to && to < LOG_NUMBER_END
    }
}

/// Head of one append: one write of the log.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AppendHeader {
    /// Always `FBAP`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// `APPEND_REPAIR`, `APPEND_REPEATS`, both or 0.
    pub flags: u8,
    /// Numbers right before `segment_seq` that no segment has, because torn appends alone had them; 255 for more, too.
    pub skipped: u8,
    /// Identity of the device.
    pub device: [u8; 16],
    /// Index of the segment that the append lies in.
    pub segment: U32,
    /// Bytes from the segment's start, so that a misdirected write is recognised.
    pub offset: U32,
    /// Number of the segment in the order of opening, 1 and up.
    pub segment_seq: U64,
    /// Number of this append, +1 for each on this device.
    pub number: U64,
    /// All appends up to this number were durable when this one was written (rule E7).
    pub durable: U64,
    /// Bytes of header, extra and heads, without padding.
    pub heads_len: U32,
    /// Bytes of the live table in a segment's first append; of the repeat in one that has it; else 0.
    pub extra_len: U32,
    /// Bytes of data blocks.
    pub data_len: U32,
    /// Number of frames whose heads it holds.
    pub frames: U32,
    /// Start number of the writer. It never falls along a log, so what a torn end left behind is recognised.
    pub start: U64,
    /// The last appends that were known to be lost together when this one was written.
    pub lost: LostStretch,
    /// CRC-32C of extra and heads.
    pub heads_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<AppendHeader>() == 104);

/// Flag of an append and of its index entries: the frames fill holes or replace damaged copies. They never imply
/// that the frames behind them in sequence were cut.
pub const APPEND_REPAIR: u16 = 1;
/// Flag of an append: its extra bytes are a [`Repeat`] of the append before it.
pub const APPEND_REPEATS: u16 = 2;

/// Numbers of segments' uses and of appends are below this, so that counting on from one never overflows.
pub const LOG_NUMBER_END: u64 = u64::MAX / 2;
/// Bytes of all heads of one append, at most.
pub const APPEND_HEADS_BYTES_MAX: usize = 1 << 20;
/// Bytes of data of one append, at most (a single frame may reach its own maximum).
pub const APPEND_DATA_BYTES_MAX: usize = 8 << 20;

impl AppendHeader {
    /// Sets magic, version and both checksums. `extra_and_heads` are the bytes that follow the header on the device.
    pub fn finish(&mut self, extra_and_heads: &[u8]) {
        self.magic = APPEND_MAGIC;
        self.version = DISK_VERSION.into();
        self.heads_crc = crc32c(extra_and_heads).into();
        self.crc = crc32c(&self.as_bytes()[..100]).into();
    }

    /// The header at the start of `bytes`. Identity is the caller's to compare.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (h, _) = Self::read_from_prefix(bytes).map_err(|_| Error::corrupt("append header is cut short"))?;
        if h.magic != APPEND_MAGIC || h.crc.get() != crc32c(&h.as_bytes()[..100]) {
            return Err(Error::corrupt("no valid append header here"));
        }
        if h.version.get() != DISK_VERSION {
            return Err(Error::invalid("append of a newer format; use a newer freebs"));
        }
        let (heads, extra) = (h.heads_len.get() as usize, h.extra_len.get() as usize);
        if heads < size_of::<Self>() + extra
            || heads > APPEND_HEADS_BYTES_MAX
            || h.data_len.get() as usize > APPEND_DATA_BYTES_MAX
            || !h.data_len.get().is_multiple_of(freebs_types::BLOCK as u32)
        {
            return Err(Error::corrupt("append header with impossible lengths"));
        }
        if [h.segment_seq, h.number].iter().any(|n| n.get() >= LOG_NUMBER_END) || !h.lost.is_possible() {
            return Err(Error::corrupt("append header with numbers that could not be counted on from"));
        }
        Ok(h)
    }

    /// Bytes of the whole append for a sector size.
    pub fn total(&self, sector: usize) -> usize {
        (self.heads_len.get() as usize).next_multiple_of(sector) + self.data_len.get() as usize
    }

    /// Number of the segment in the order of opening, as a number of its own type.
    pub fn seq(&self) -> SegmentSeq {
        SegmentSeq(self.segment_seq.get())
    }

    /// The number of the segment that was opened right before this one; 0 if it is the first one.
    #[must_use]
    pub fn seq_before(&self) -> u64 {
        self.segment_seq.get().saturating_sub(1 + u64::from(self.skipped))
    }

    /// True if the frames fill holes or replace damaged copies.
    #[must_use]
    pub fn is_repair(&self) -> bool {
        self.flags & APPEND_REPAIR as u8 != 0
    }

    /// True if the extra bytes are a [`Repeat`].
    #[must_use]
    pub fn repeats(&self) -> bool {
        self.flags & APPEND_REPEATS as u8 != 0
    }
}

/// The beginning of a repeat; the live table and the entries follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RepeatFixed {
    /// Number of the append that is repeated.
    pub append: U64,
    /// Bytes of its live table; 0 but for a segment's first append.
    pub table_len: U32,
    /// Number of its frames that are repeated.
    pub frames: U32,
    /// Number of the frames in front of those. They say again what segments hold that are still there.
    pub copies: U32,
    /// CRC-32C of these, as an index would name them.
    pub copies_crc: U32,
    /// CRC-32C of live table and entries.
    pub body_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<RepeatFixed>() == 32);

/// Bytes of a repeat, at most: the append that has it still has room for the largest head.
pub const REPEAT_BYTES_MAX: usize = APPEND_HEADS_BYTES_MAX - size_of::<AppendHeader>() - limits::FRAME_HEAD_BYTES_MAX;

/// The word of an append on the one before it in its segment: all that is lost if the heads of that one are.
#[derive(Clone, Debug)]
pub struct Repeat {
    /// Number of the append that is repeated.
    pub append: u64,
    /// Its live table, if it was its segment's first one.
    pub table: Option<LiveTable>,
    /// The number of its first frames, which are not repeated: what cleaning copied out of other segments.
    pub copies: u32,
    /// CRC-32C of these frames, as an index would name them.
    pub copies_crc: u32,
    /// Its other frames, as an index would name them.
    pub entries: Vec<IndexEntry>,
}

impl Repeat {
    /// Bytes that a repeat takes.
    #[must_use]
    pub const fn encoded_len(table_len: usize, entries_len: usize) -> usize {
        size_of::<RepeatFixed>() + table_len + entries_len
    }

    /// Writes a repeat of `append` to exactly its bytes: live table, number and CRC of the copies in front, and the other
    /// frames as `frames` encoded index entries.
    pub fn encode(out: &mut [u8], append: u64, table: &[u8], copies: (u32, u32), (frames, entries): (u32, &[u8])) {
        let (fixed, body) = out.split_at_mut(size_of::<RepeatFixed>());
        body[..table.len()].copy_from_slice(table);
        body[table.len()..].copy_from_slice(entries);
        let mut f = RepeatFixed {
            append: append.into(),
            table_len: (table.len() as u32).into(),
            frames: frames.into(),
            copies: copies.0.into(),
            copies_crc: copies.1.into(),
            body_crc: crc32c(body).into(),
            crc: 0.into(),
        };
        f.crc = crc32c(&f.as_bytes()[..28]).into();
        fixed.copy_from_slice(f.as_bytes());
    }

    /// The repeat in the extra bytes of an append.
    pub fn decode(mut bytes: Bytes) -> Result<Self> {
        let f = RepeatFixed::read_from_prefix(&bytes).map_err(|_| Error::corrupt("repeat is cut short"))?.0;
        if f.crc.get() != crc32c(&f.as_bytes()[..28]) {
            return Err(Error::corrupt("repeat does not match its checksum"));
        }
        bytes.advance(size_of::<RepeatFixed>());
        let table_len = f.table_len.get() as usize;
        if f.body_crc.get() != crc32c(&bytes) || table_len > bytes.len() {
            return Err(Error::corrupt("repeat does not match its checksum"));
        }
        let table = bytes.split_to(table_len);
        let table = (table_len > 0).then(|| LiveTable { bits: table.to_vec() });
        let entries = IndexEntry::decode_all(bytes, f.frames.get(), APPEND_HEADS_BYTES_MAX)?;
        if entries.iter().any(|e| e.append != f.append.get()) {
            return Err(Error::corrupt("repeat with frames of another append"));
        }
        let (copies, copies_crc) = (f.copies.get(), f.copies_crc.get());
        Ok(Self { append: f.append.get(), table, copies, copies_crc, entries })
    }
}

/// The table in a segment's first append: which segments held anything when this one was opened.
/// One bit per segment, little end first; the new segment's own bit is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveTable {
    /// One bit per segment of the device, lowest bit of the first byte first.
    pub bits: Vec<u8>,
}

impl LiveTable {
    /// The table for a device of `segments` segments. Panics if one in `live` is not below that.
    pub fn new(live: impl Iterator<Item = SegmentId>, segments: u32) -> Self {
        let mut bits = vec![0u8; segments.div_ceil(8) as usize];
        for s in live {
            bits[s.0 as usize / 8] |= 1 << (s.0 % 8);
        }
        Self { bits }
    }

    /// True if the segment held anything; `false` for segments past the end of the table.
    pub fn contains(&self, s: SegmentId) -> bool {
        self.bits.get(s.0 as usize / 8).is_some_and(|b| b & (1 << (s.0 % 8)) != 0)
    }

    /// The segments that held anything, in order of their index.
    pub fn iter(&self) -> impl Iterator<Item = SegmentId> {
        (0..self.bits.len() as u32 * 8).map(SegmentId).filter(|s| self.contains(*s))
    }
}

/// The last bytes of a closed segment; the index lies right before it, aligned to a sector.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SegmentFooter {
    /// Always `FBIX`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// As in the headers of its appends.
    pub skipped: U16,
    /// Identity of the device.
    pub device: [u8; 16],
    /// Index of the segment.
    pub segment: U32,
    /// Entries in the index.
    pub frames: U32,
    /// Number of the segment in the order of opening.
    pub segment_seq: U64,
    /// Number of its first append.
    pub first_append: U64,
    /// Number of its last append; all of them are durable.
    pub last_append: U64,
    /// Byte in the segment where the index begins (a sector boundary), and its length.
    pub index_at: U32,
    /// Bytes of the index.
    pub index_len: U32,
    /// The segment that was chosen to be opened next, `u32::MAX` if none: what it held no longer counts.
    pub next: U32,
    /// CRC-32C of the index.
    pub index_crc: U32,
    /// Appends of which something was lost for good when the segment was closed, in order, with none of them beside
    /// another, then none. The last ones may lie behind `last_append`. If no place is left, the last stretch may be
    /// several, with what lies between them.
    pub lost: [LostStretch; LOST_STRETCHES_MAX],
    /// Zero.
    pub reserved: [u8; 4],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<SegmentFooter>() == 208);

impl SegmentFooter {
    /// Sets magic, version, the index' length and both checksums. `index` lies right before the footer.
    pub fn finish(&mut self, index: &[u8]) {
        self.magic = FOOTER_MAGIC;
        self.version = DISK_VERSION.into();
        self.index_len = (index.len() as u32).into();
        self.index_crc = crc32c(index).into();
        self.crc = crc32c(&self.as_bytes()[..204]).into();
    }

    /// The footer in the last bytes of `tail`.
    pub fn decode(tail: &[u8], segment_bytes: u64) -> Result<Self> {
        let (_, f) = Self::read_from_suffix(tail).map_err(|_| Error::corrupt("segment footer is cut short"))?;
        if f.magic != FOOTER_MAGIC || f.crc.get() != crc32c(&f.as_bytes()[..204]) {
            return Err(Error::corrupt("no valid segment footer here"));
        }
        if f.version.get() != DISK_VERSION {
            return Err(Error::invalid("segment index of a newer format; use a newer freebs"));
        }
        let end = u64::from(f.index_at.get()) + u64::from(f.index_len.get()) + size_of::<Self>() as u64;
        if end > segment_bytes {
            return Err(Error::corrupt("segment footer with impossible lengths"));
        }
        let in_order = |s: &[LostStretch]| match (s[0].appends(), s[1].appends()) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some((_, to)), Some((from, _))) => to + 1 < from,
        };
        if !f.lost.iter().all(LostStretch::is_possible) || !f.lost.windows(2).all(in_order) {
            return Err(Error::corrupt("segment footer with an impossible loss"));
        }
        Ok(f)
    }

    /// First and last append of each stretch that was lost.
    pub fn lost(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.lost.iter().filter_map(LostStretch::appends)
    }

    /// As `lost`, but for a stretch that may have what was not lost in it.
    pub fn known_lost(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.lost().take(LOST_STRETCHES_MAX - 1)
    }

    /// Its last append, also if that is lost.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.lost().map(|s| s.1).fold(self.last_append.get(), u64::max)
    }

    /// The number of the segment that was opened right before this one; 0 if it is the first one.
    #[must_use]
    pub fn seq_before(&self) -> u64 {
        self.segment_seq.get().saturating_sub(1 + u64::from(self.skipped.get()))
    }
}

/// What an entry of a segment index begins with; the frame's head follows, packed.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct IndexFixed {
    /// Byte in the segment where the head lies.
    pub head_at: U32,
    /// Byte in the segment where the data begin.
    pub data_at: U32,
    /// Number of the append.
    pub append: U64,
    /// Flags of that append.
    pub flags: U16,
    /// Zero.
    pub reserved: U16,
    /// Bytes of the head before it was packed.
    pub head_len: U32,
}
const _: () = assert!(size_of::<IndexFixed>() == INDEX_ENTRY_FIXED);

/// Bytes of an index entry before the head.
pub const INDEX_ENTRY_FIXED: usize = 24;

/// One entry of a segment index: where the frame lies in the segment, and its head.
#[derive(Clone, Debug)]
pub struct IndexEntry {
    /// Byte in the segment where the head lies.
    pub head_at: u32,
    /// Byte in the segment where the frame's data begin.
    pub data_at: u32,
    /// Number of the append that holds the frame.
    pub append: u64,
    /// The flags of that append.
    pub flags: u16,
    /// The frame's head, as it stands in that append.
    pub head: FrameHead,
}

impl IndexEntry {
    /// Bytes that an entry for a head of `head_len` bytes takes, at most.
    #[must_use]
    pub const fn encoded_len_max(head_len: usize) -> usize {
        INDEX_ENTRY_FIXED + packed_len_max(head_len)
    }

    /// Appends the entry to an index that is being made.
    pub fn encode(&self, out: &mut BytesMut) {
        let fixed = IndexFixed {
            head_at: self.head_at.into(),
            data_at: self.data_at.into(),
            append: self.append.into(),
            flags: self.flags.into(),
            reserved: 0.into(),
            head_len: (self.head.bytes().len() as u32).into(),
        };
        out.put_slice(fixed.as_bytes());
        pack(self.head.bytes(), out);
    }

    /// Takes the first entry off an index whose checksum was found right.
    pub fn decode_next(index: &mut Bytes) -> Result<Self> {
        let fixed = *IndexFixed::ref_from_prefix(index).map_err(|_| Error::corrupt("segment index is cut short"))?.0;
        index.advance(INDEX_ENTRY_FIXED);
        let len = fixed.head_len.get() as usize;
        if len > limits::FRAME_HEAD_BYTES_MAX {
            return Err(Error::corrupt("segment index with a head above the maximum"));
        }
        let mut bytes = unpack(index, len)?;
        let head = FrameHead::parse(&mut bytes)?;
        if !bytes.is_empty() {
            return Err(Error::corrupt("segment index with more than a head"));
        }
        Ok(Self {
            head_at: fixed.head_at.get(),
            data_at: fixed.data_at.get(),
            append: fixed.append.get(),
            flags: fixed.flags.get(),
            head,
        })
    }

    /// All entries of an index whose checksum was found right. Their heads have `heads_max` bytes at most: unpacked they
    /// may be many times what the index is.
    pub fn decode_all(mut index: Bytes, frames: u32, heads_max: usize) -> Result<Vec<Self>> {
        let (mut out, mut room) = (Vec::new(), heads_max);
        while !index.is_empty() {
            let entry = Self::decode_next(&mut index)?;
            let left = room.checked_sub(entry.head.bytes().len());
            room = left.ok_or_else(|| Error::corrupt("segment index with more heads than there is room for"))?;
            out.push(entry);
        }
        if out.len() == frames as usize { Ok(out) } else { Err(Error::corrupt("segment index misses frames")) }
    }
}

/// Bytes of a page of a map segment.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a page behind its header.
pub const PAGE_BODY_BYTES: usize = PAGE_BYTES - size_of::<PageHeader>();
/// Kind of pages with entries of a run.
pub const PAGE_ENTRIES: u16 = 1;
/// Kind of pages with fences of a run: one for each page of entries.
pub const PAGE_FENCES: u16 = 2;
/// Kind of pages with a part of a manifest.
pub const PAGE_MANIFEST: u16 = 3;
/// Kind of pages with superseded extents: those of a run of history.
pub const PAGE_LAYERS: u16 = 4;
/// Kind of pages with fences of a run of history.
pub const PAGE_LAYER_FENCES: u16 = 5;
/// Kind of pages with counts of a run of history.
pub const PAGE_TALLIES: u16 = 6;

/// What each page of a map segment begins with.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageHeader {
    /// Always `FBMP`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// One of the kinds of pages, `PAGE_ENTRIES` to `PAGE_TALLIES`.
    pub kind: U16,
    /// Identity of the device.
    pub device: [u8; 16],
    /// Number of the run or manifest, and of the page in it.
    pub run: U64,
    /// Number of the page in it.
    pub page: U32,
    /// Entries in the page; fences, or 0.
    pub count: U32,
    /// Bytes of the body that mean something.
    pub used: U32,
    /// Zero.
    pub reserved: [u8; 12],
    /// CRC-32C of these bytes.
    pub body_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<PageHeader>() == 64);

/// Whose page is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName {
    /// The device that the page lies on.
    pub device: DeviceId,
    /// One of the kinds of pages, `PAGE_ENTRIES` to `PAGE_TALLIES`.
    pub kind: u16,
    /// Number of the run or manifest.
    pub run: u64,
    /// Index of the page in that run or manifest, from 0.
    pub page: u32,
}

impl PageHeader {
    /// Writes the header over the first bytes of a page whose body is there already.
    pub fn seal(page: &mut [u8], name: PageName, count: u32, used: usize) {
        let (head, body) = page.split_at_mut(size_of::<Self>());
        let mut h = Self {
            magic: PAGE_MAGIC,
            version: DISK_VERSION.into(),
            kind: name.kind.into(),
            device: name.device.0,
            run: name.run.into(),
            page: name.page.into(),
            count: count.into(),
            used: (used as u32).into(),
            reserved: [0; 12],
            body_crc: crc32c(&body[..used]).into(),
            crc: 0.into(),
        };
        h.crc = crc32c(&h.as_bytes()[..60]).into();
        head.copy_from_slice(h.as_bytes());
    }

    /// True if these bytes begin with the header of any page of a device.
    pub fn is_of(bytes: &[u8], device: DeviceId) -> bool {
        Self::ref_from_prefix(bytes).is_ok_and(|(h, _)| {
            h.magic == PAGE_MAGIC && h.device == device.0 && h.crc.get() == crc32c(&h.as_bytes()[..60])
        })
    }

    /// Count and body of the page that is meant; `Corrupt` if it is another one, or none.
    pub fn open(page: &[u8], name: PageName) -> Result<(u32, &[u8])> {
        let (h, body) = Self::ref_from_prefix(page).map_err(|_| Error::corrupt("page of the map is cut short"))?;
        if h.magic != PAGE_MAGIC || h.crc.get() != crc32c(&h.as_bytes()[..60]) {
            return Err(Error::corrupt("page of the map does not match its checksum"));
        }
        if h.version.get() != DISK_VERSION {
            return Err(Error::invalid("page of a newer format; use a newer freebs"));
        }
        let same = h.device == name.device.0
            && h.kind.get() == name.kind
            && h.run.get() == name.run
            && h.page.get() == name.page;
        if !same {
            return Err(Error::corrupt("another page lies where a page of the map should be"));
        }
        match body.get(..h.used.get() as usize) {
            Some(body) if crc32c(body) == h.body_crc.get() => Ok((h.count.get(), body)),
            _ => Err(Error::corrupt("page of the map does not match its checksum")),
        }
    }
}

/// Pages one behind the other in a map segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PagesFixed {
    /// Segment that holds the pages.
    pub segment: U32,
    /// First page in the segment, and how many.
    pub page: U32,
    /// Number of pages.
    pub count: U32,
}
const _: () = assert!(size_of::<PagesFixed>() == 12);

/// A slot of a checkpoint: where its manifest lies. `extents` times `PagesFixed` follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CheckpointSlot {
    /// Always `FBCP`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Always 96.
    pub length: U16,
    /// Identity of the device.
    pub device: [u8; 16],
    /// Raised by every checkpoint; the valid slot with the higher one counts.
    pub revision: U64,
    /// Number of the manifest.
    pub manifest: U64,
    /// Bytes of the manifest.
    pub bytes: U64,
    /// Stretches of pages that it lies in; 0 in a slot that names no checkpoint any more.
    pub extents: U32,
    /// An append that was durable when the slot was written, 0 if none is known: a log that ends before it is damaged.
    pub durable: U64,
    /// Zero.
    pub reserved: [u8; 28],
    /// CRC-32C of the extents.
    pub extents_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<CheckpointSlot>() == 96);

/// Bytes of a slot.
pub const CHECKPOINT_BYTES: usize = 4096;
/// Stretches of pages of one manifest, at most.
pub const CHECKPOINT_EXTENTS_MAX: usize = (CHECKPOINT_BYTES - size_of::<CheckpointSlot>()) / size_of::<PagesFixed>();
/// Bytes of a manifest, at most: it is read as a stream, and what it can be is bounded by its stretches of pages.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 30;

impl CheckpointSlot {
    /// The slot as a zero-padded piece, with its checksums set.
    #[must_use]
    pub fn encode(mut self, extents: &[PagesFixed]) -> Vec<u8> {
        assert!(extents.len() <= CHECKPOINT_EXTENTS_MAX, "the caller counts");
        self.magic = CHECKPOINT_MAGIC;
        self.version = DISK_VERSION.into();
        self.length = (size_of::<Self>() as u16).into();
        self.extents = (extents.len() as u32).into();
        self.extents_crc = crc32c(extents.as_bytes()).into();
        self.crc = crc32c(&self.as_bytes()[..92]).into();
        let mut out = self.as_bytes().to_vec();
        out.extend_from_slice(extents.as_bytes());
        out.resize(CHECKPOINT_BYTES, 0);
        out
    }

    /// `NotFound` if no checkpoint was ever here.
    pub fn decode(bytes: &[u8], device: DeviceId) -> Result<(Self, Vec<PagesFixed>)> {
        let (slot, rest) = Self::read_from_prefix(bytes).map_err(|_| Error::corrupt("checkpoint is cut short"))?;
        if slot.as_bytes().iter().all(|b| *b == 0) {
            return Err(Error::not_found("no checkpoint here"));
        }
        if slot.magic != CHECKPOINT_MAGIC || slot.crc.get() != crc32c(&slot.as_bytes()[..92]) {
            return Err(Error::corrupt("checkpoint does not match its checksum"));
        }
        if slot.version.get() != DISK_VERSION {
            return Err(Error::invalid("checkpoint of a newer format; use a newer freebs"));
        }
        let extents = slot.extents.get() as usize;
        let len = extents * size_of::<PagesFixed>();
        let list = rest.get(..len).filter(|_| extents <= CHECKPOINT_EXTENTS_MAX);
        let list = list.filter(|l| crc32c(l) == slot.extents_crc.get());
        match list {
            Some(l) if slot.device == device.0 && slot.bytes.get() <= MANIFEST_BYTES_MAX => {
                let list = l.chunks_exact(size_of::<PagesFixed>());
                let list = list.map(|c| PagesFixed::read_from_bytes(c).expect("exactly its bytes"));
                Ok((slot, list.collect()))
            }
            _ => Err(Error::corrupt("checkpoint of another device, or a damaged one")),
        }
    }
}

/// Which segments of the log were opened last: `count` indexes of segments follow, one `u32` each. The last one is
/// that of the segment with number `newest`, the one before it has the number before, and so on. It is written before
/// anything is appended to a segment that is opened, and at each start. So is one that names the segment as `next`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Openings {
    /// Always `FBOP`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Always 96.
    pub length: U16,
    /// Identity of the device.
    pub device: [u8; 16],
    /// Raised by every write; the pages are written in turn, and an even one lies at the first place.
    pub revision: U64,
    /// Start of the node that wrote it. Under another one segments may have been opened of which nothing is here.
    pub start: U64,
    /// Number of the segment that was opened last; 0 if none was.
    pub newest: U64,
    /// Indexes of segments that follow.
    pub count: U32,
    /// The segment that is opened next, if any is: no other one is before another page says so. 2^32 - 1 for none.
    pub next: U32,
    /// Zero.
    pub reserved: [u8; 32],
    /// CRC-32C of the indexes.
    pub list_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<Openings>() == 96);

/// Bytes of a page of openings.
pub const OPENINGS_BYTES: usize = 4096;
/// Segments that one page names, at most.
pub const OPENINGS_MAX: usize = (OPENINGS_BYTES - size_of::<Openings>()) / 4;
/// In place of a segment's index where the number belongs to none that counts, or none is to be opened.
pub const OPENINGS_NONE: u32 = u32::MAX;

impl Openings {
    /// A page as a zero-padded piece. The segments of `list` have the numbers up to `newest`, and `next` is the one that
    /// is opened next.
    #[must_use]
    pub fn encode(
        device: DeviceId,
        (revision, start): (u64, StartNumber),
        (newest, list): (u64, &[u32]),
        next: Option<u32>,
    ) -> Vec<u8> {
        assert!(list.len() <= OPENINGS_MAX && list.len() as u64 <= newest, "the caller counts");
        let bytes: Vec<u8> = list.iter().flat_map(|id| id.to_le_bytes()).collect();
        let mut page = Self {
            magic: OPENINGS_MAGIC,
            version: DISK_VERSION.into(),
            length: (size_of::<Self>() as u16).into(),
            device: device.0,
            revision: revision.into(),
            start: start.0.into(),
            newest: newest.into(),
            count: (list.len() as u32).into(),
            next: next.unwrap_or(OPENINGS_NONE).into(),
            reserved: [0; 32],
            list_crc: crc32c(&bytes).into(),
            crc: 0.into(),
        };
        page.crc = crc32c(&page.as_bytes()[..92]).into();
        let mut out = page.as_bytes().to_vec();
        out.extend_from_slice(&bytes);
        out.resize(OPENINGS_BYTES, 0);
        out
    }

    /// The segment that is opened next, if one is.
    pub fn next(&self) -> Option<u32> {
        Some(self.next.get()).filter(|id| *id != OPENINGS_NONE)
    }

    /// The page, and the segments that it names as opened. `NotFound` if none was ever here.
    pub fn decode(bytes: &[u8], device: DeviceId) -> Result<(Self, Vec<u32>)> {
        let (page, rest) = Self::read_from_prefix(bytes).map_err(|_| Error::corrupt("openings are cut short"))?;
        if page.as_bytes().iter().all(|b| *b == 0) {
            return Err(Error::not_found("no openings here"));
        }
        if page.magic != OPENINGS_MAGIC || page.crc.get() != crc32c(&page.as_bytes()[..92]) {
            return Err(Error::corrupt("openings that do not match their checksum"));
        }
        if page.version.get() != DISK_VERSION {
            return Err(Error::invalid("openings of a newer format; use a newer freebs"));
        }
        let (count, newest) = (page.count.get() as usize, page.newest.get());
        let numbers = [page.revision, page.start, page.newest];
        let list = rest.get(..count.min(OPENINGS_MAX) * 4).filter(|l| crc32c(l) == page.list_crc.get());
        match list {
            Some(l)
                if page.device == device.0
                    && count <= OPENINGS_MAX
                    && count as u64 <= newest
                    && numbers.iter().all(|n| n.get() < LOG_NUMBER_END) =>
            {
                let list = l.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four bytes")));
                Ok((page, list.collect()))
            }
            _ => Err(Error::corrupt("openings of another device, or damaged ones")),
        }
    }
}
