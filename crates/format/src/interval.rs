//! Intervals over several shards: how a shard's blocks tell of them, and how a driver's requests name them.
//!
//! A shard's last addresses are *places*: blocks for a record each, and behind those of all records blocks for the data of each. An
//! update that prepares an interval writes its record and its data to a free place; the one that commits it writes the data
//! where they belong, and trims the place; one that aborts it only trims. In the deciding shard the record stays, and says which
//! of the two it was.
//!
//! Invariant: a record names its own shard, so what a clone sees of its parent's places is none of its own.

use crate::{Extent, ExtentDesc, ExtentKind, crc32c};
use bytes::Bytes;
use freebs_types::{BLOCK, BlockRange, DriverId, Error, IntervalNumber, Lba, Result, ShardId, VolumeId, limits};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of an interval's record.
pub const INTERVAL_MAGIC: [u8; 4] = *b"FBIV";
/// Version of the record.
const INTERVAL_VERSION: u16 = 1;

/// The name of an interval: the shard that decides, and a number of the driver that began it there. Each attempt has another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct IntervalId {
    /// The shard whose log decides.
    pub decider: ShardId,
    /// The driver that has the deciding shard's volume.
    pub driver: DriverId,
    /// That driver's number of the attempt.
    pub number: IntervalNumber,
}

/// How far an interval is in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IntervalState {
    /// Its data are there and do not count yet.
    Prepared = 1,
    /// In the deciding shard: it counts.
    Committed = 2,
    /// In the deciding shard: it does not count, and never will.
    Aborted = 3,
}

impl IntervalState {
    /// The state with this number; `None` for one that this version does not know.
    #[must_use]
    pub fn from_byte(b: u8) -> Option<Self> {
        [Self::Prepared, Self::Committed, Self::Aborted].into_iter().find(|s| *s as u8 == b)
    }
}

/// The record of an interval, in the first blocks of its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntervalRecord {
    /// How far it is here.
    pub state: IntervalState,
    /// Its name.
    pub id: IntervalId,
    /// The shard that has the record.
    pub shard: ShardId,
    /// The driver that has this shard's volume, and prepared it here; 0 if nobody has.
    pub owner: DriverId,
    /// All shards that it changes, in order, the deciding one among them; at most `limits::INTERVAL_SHARDS_MAX`. None of an
    /// interval that was aborted before it came.
    pub participants: Vec<ShardId>,
    /// What it changes in this shard, at most `limits::INTERVAL_EXTENTS_MAX`; its data lie in the place, in this order. None once
    /// it is decided.
    pub extents: Vec<Extent>,
}

/// The record's fixed part.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RecordFixed {
    pub(crate) magic: [u8; 4],
    pub(crate) version: U16,
    pub(crate) state: u8,
    pub(crate) flags: u8,
    pub(crate) volume: U64,
    pub(crate) decider_volume: U64,
    pub(crate) driver: U64,
    pub(crate) number: U64,
    pub(crate) owner: U64,
    pub(crate) shard: U32,
    pub(crate) decider_shard: U32,
    pub(crate) participants: U16,
    pub(crate) extents: U16,
    pub(crate) reserved: [u8; 16],
    pub(crate) crc: U32,
}
const _: () = assert!(size_of::<RecordFixed>() == 80);

/// A shard in a list of participants.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ParticipantDesc {
    pub(crate) volume: U64,
    pub(crate) shard: U32,
    pub(crate) reserved: U32,
}
const _: () = assert!(size_of::<ParticipantDesc>() == 16);

const _: () = assert!(
    size_of::<RecordFixed>()
        + limits::INTERVAL_SHARDS_MAX * size_of::<ParticipantDesc>()
        + limits::INTERVAL_EXTENTS_MAX * size_of::<ExtentDesc>()
        <= limits::INTERVAL_RECORD_BLOCKS_MAX as usize * BLOCK
);
// A record without extents is one block.
const _: () = assert!(size_of::<RecordFixed>() + limits::INTERVAL_SHARDS_MAX * size_of::<ParticipantDesc>() <= BLOCK);
const _: () = assert!(limits::INTERVAL_DATA_BYTES_MAX / BLOCK <= limits::INTERVAL_PLACE_BLOCKS as usize);

fn bad(what: &'static str) -> Error {
    Error::corrupt(what)
}

/// The blocks of a place's record, as many as one may have.
#[must_use]
pub fn interval_record(place: u32) -> BlockRange {
    assert!(place < limits::SHARD_INTERVALS, "a shard has no more places of intervals");
    let start = limits::SHARD_VOLUME_BLOCKS_MAX as u32 + place * limits::INTERVAL_RECORD_BLOCKS_MAX;
    BlockRange::new(start, limits::INTERVAL_RECORD_BLOCKS_MAX)
}

/// The blocks of all records.
#[must_use]
pub fn interval_records() -> BlockRange {
    BlockRange { len: limits::SHARD_INTERVALS * limits::INTERVAL_RECORD_BLOCKS_MAX, ..interval_record(0) }
}

/// The first block of a place's data.
#[must_use]
pub fn interval_data(place: u32) -> Lba {
    assert!(place < limits::SHARD_INTERVALS, "a shard has no more places of intervals");
    Lba(interval_records().end() as u32 + place * limits::INTERVAL_PLACE_BLOCKS)
}

pub(crate) fn put_participants(shards: &[ShardId], out: &mut Vec<u8>) {
    for s in shards {
        let desc = ParticipantDesc { volume: s.volume.0.into(), shard: s.index.into(), reserved: 0.into() };
        out.extend_from_slice(desc.as_bytes());
    }
}

/// Shards of a list: `Corrupt` unless they are in order, and not too many.
pub(crate) fn participants(table: &[ParticipantDesc]) -> Result<Vec<ShardId>> {
    let shards: Vec<ShardId> =
        table.iter().map(|p| ShardId { volume: VolumeId(p.volume.get()), index: p.shard.get() }).collect();
    if shards.len() > limits::INTERVAL_SHARDS_MAX || !shards.is_sorted_by(|a, b| a < b) {
        return Err(bad("interval over shards that are too many, or not in order"));
    }
    Ok(shards)
}

impl IntervalRecord {
    /// The record as whole blocks.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut fixed = RecordFixed {
            magic: INTERVAL_MAGIC,
            version: INTERVAL_VERSION.into(),
            state: self.state as u8,
            flags: 0,
            volume: self.shard.volume.0.into(),
            decider_volume: self.id.decider.volume.0.into(),
            driver: self.id.driver.0.into(),
            number: self.id.number.0.into(),
            owner: self.owner.0.into(),
            shard: self.shard.index.into(),
            decider_shard: self.id.decider.index.into(),
            participants: (self.participants.len() as u16).into(),
            extents: (self.extents.len() as u16).into(),
            reserved: [0; 16],
            crc: 0.into(),
        };
        let mut tables = Vec::new();
        put_participants(&self.participants, &mut tables);
        for e in &self.extents {
            tables.extend_from_slice(ExtentDesc::of(e).as_bytes());
        }
        fixed.crc = Self::crc(&fixed, &tables).into();
        let mut out = fixed.as_bytes().to_vec();
        out.extend_from_slice(&tables);
        let len = out.len().next_multiple_of(BLOCK);
        assert!(len <= limits::INTERVAL_RECORD_BLOCKS_MAX as usize * BLOCK, "a record has its limits");
        out.resize(len, 0);
        out.into()
    }

    fn crc(fixed: &RecordFixed, tables: &[u8]) -> u32 {
        let head = &fixed.as_bytes()[..size_of::<RecordFixed>() - 4];
        crc32c(&[head, tables].concat())
    }

    /// Reads a record from the blocks at the beginning of a place. `None` if no record begins there; `Corrupt` if one does and
    /// makes no sense.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>> {
        let Ok((fixed, rest)) = RecordFixed::ref_from_prefix(bytes) else { return Ok(None) };
        if fixed.magic != INTERVAL_MAGIC {
            return Ok(None);
        }
        if fixed.version.get() != INTERVAL_VERSION || fixed.flags != 0 || fixed.reserved != [0; 16] {
            return Err(Error::invalid("record of an interval in a newer format; use a newer freebs"));
        }
        let short = || bad("record of an interval is cut short");
        let (shards, rest) = <[ParticipantDesc]>::ref_from_prefix_with_elems(rest, fixed.participants.get().into())
            .map_err(|_| short())?;
        let (extents, _) =
            <[ExtentDesc]>::ref_from_prefix_with_elems(rest, fixed.extents.get().into()).map_err(|_| short())?;
        if Self::crc(fixed, &[shards.as_bytes(), extents.as_bytes()].concat()) != fixed.crc.get() {
            return Err(bad("record of an interval does not match its checksum"));
        }
        let record = Self {
            state: IntervalState::from_byte(fixed.state).ok_or_else(|| bad("interval in an unknown state"))?,
            id: IntervalId {
                decider: ShardId { volume: VolumeId(fixed.decider_volume.get()), index: fixed.decider_shard.get() },
                driver: DriverId(fixed.driver.get()),
                number: IntervalNumber(fixed.number.get()),
            },
            shard: ShardId { volume: VolumeId(fixed.volume.get()), index: fixed.shard.get() },
            owner: DriverId(fixed.owner.get()),
            participants: participants(shards)?,
            extents: extents.iter().map(extent).collect::<Result<_>>()?,
        };
        record.check()?;
        Ok(Some(record))
    }

    /// Blocks that it takes itself.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        let tables =
            self.participants.len() * size_of::<ParticipantDesc>() + self.extents.len() * size_of::<ExtentDesc>();
        (size_of::<RecordFixed>() + tables).div_ceil(BLOCK) as u32
    }

    /// Blocks of data in its place.
    #[must_use]
    pub fn data_blocks(&self) -> u32 {
        self.extents.iter().filter(|e| e.kind == ExtentKind::Data).map(|e| e.range.len).sum()
    }

    fn check(&self) -> Result<()> {
        let blocks: u64 =
            self.extents.iter().filter(|e| e.kind == ExtentKind::Data).map(|e| u64::from(e.range.len)).sum();
        if self.extents.len() > limits::INTERVAL_EXTENTS_MAX
            || blocks > (limits::INTERVAL_DATA_BYTES_MAX / BLOCK) as u64
            || (self.state == IntervalState::Prepared) == self.extents.is_empty()
        {
            return Err(bad("record of an interval with impossible extents"));
        }
        Ok(())
    }
}

fn extent(d: &ExtentDesc) -> Result<Extent> {
    let kind = ExtentKind::from_byte(d.kind).ok_or_else(|| bad("unknown kind of extent"))?;
    let range = BlockRange { start: d.start(), len: d.blocks.get() };
    if range.len == 0 || range.end() > limits::SHARD_VOLUME_BLOCKS_MAX {
        return Err(bad("interval outside of any volume"));
    }
    Ok(Extent { kind, range })
}
