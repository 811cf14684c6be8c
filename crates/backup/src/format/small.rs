//! The small objects: the marker of a target, and notes.

use super::{Id, VERSION, check_start, damaged};
use crate::limits::{BLOCK_BYTES, PAGE_BLOCKS};
use freebs_format::crc32c;
use freebs_types::Result;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The object that says that a place is a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Marker {
    /// Always `FBKT`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Bytes of this struct.
    pub length: U16,
    /// Identity of the target, random.
    pub target: [u8; 16],
    /// Identity of the key that all objects are sealed with; zero if they are not.
    pub key: [u8; 16],
    /// Bytes of a block.
    pub block_bytes: U32,
    /// Blocks that a page covers.
    pub page_blocks: U32,
    /// Zero.
    pub reserved: [u8; 12],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<Marker>() == 64);

impl Marker {
    /// The first bytes.
    pub const MAGIC: [u8; 4] = *b"FBKT";

    /// The marker of a new target.
    #[must_use]
    pub fn new(target: Id, key: Id) -> Self {
        let mut marker = Self {
            magic: Self::MAGIC,
            version: VERSION.into(),
            length: (size_of::<Self>() as u16).into(),
            target: target.0,
            key: key.0,
            block_bytes: (BLOCK_BYTES as u32).into(),
            page_blocks: PAGE_BLOCKS.into(),
            reserved: [0; 12],
            crc: 0.into(),
        };
        marker.crc = crc32c(&marker.as_bytes()[..60]).into();
        marker
    }

    /// # Errors
    /// If these are not the bytes of one, or it is damaged, or of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "marker of a backup target";
        let (marker, rest) = Self::read_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is cut short"))?;
        // The version first: the marker of another one may be longer.
        check_start(WHAT, (marker.magic, marker.version.get(), marker.length.get()), Self::MAGIC, size_of::<Self>())?;
        if marker.crc.get() != crc32c(&bytes[..60]) || !rest.is_empty() {
            return Err(damaged(WHAT, "its checksum is wrong"));
        }
        let same = marker.block_bytes.get() == BLOCK_BYTES as u32 && marker.page_blocks.get() == PAGE_BLOCKS;
        if !same || marker.reserved != [0; 12] {
            return Err(damaged(WHAT, "it says what no program writes"));
        }
        Ok(marker)
    }

    /// Identity of the target.
    #[must_use]
    pub fn target(&self) -> Id {
        Id(self.target)
    }

    /// Identity of the key; none if nothing is sealed.
    #[must_use]
    pub fn key(&self) -> Id {
        Id(self.key)
    }
}

/// The kinds of notes.
pub mod note {
    /// A create is under way, or was.
    pub const CREATE: u16 = 1;
    /// In the place of a manifest: the create was given up, and none will be there.
    pub const GIVEN_UP: u16 = 2;
    /// Beside a manifest: the backup is deleted, and `list` does not show it.
    pub const DELETED: u16 = 3;
    /// In the place of a manifest: the backup was deleted, and prune has taken the manifest away.
    pub const GONE: u16 = 4;
    /// The create was alive when this was written: its age is what counts.
    pub const ALIVE: u16 = 5;
}

/// A small object about one backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Note {
    /// Always `FBKN`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Bytes of this struct.
    pub length: U16,
    /// Identity of the target.
    pub target: [u8; 16],
    /// The backup that it is about.
    pub backup: [u8; 16],
    /// Its kind, see [`note`].
    pub kind: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// Milliseconds since 1970, by the clock of the writer.
    pub time_ms: U64,
    /// The name (see [`super::Name`]) of cluster and volume; zero but in a note of a create.
    pub subject: [u8; 32],
    /// Zero.
    pub reserved_2: [u8; 36],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<Note>() == 128);

impl Note {
    /// The first bytes.
    pub const MAGIC: [u8; 4] = *b"FBKN";

    /// A note with its checksum.
    #[must_use]
    pub fn new(target: Id, backup: Id, kind: u16, time_ms: u64, subject: [u8; 32]) -> Self {
        let mut note = Self {
            magic: Self::MAGIC,
            version: VERSION.into(),
            length: (size_of::<Self>() as u16).into(),
            target: target.0,
            backup: backup.0,
            kind: kind.into(),
            reserved: [0; 6],
            time_ms: time_ms.into(),
            subject,
            reserved_2: [0; 36],
            crc: 0.into(),
        };
        note.crc = crc32c(&note.as_bytes()[..124]).into();
        note
    }

    /// True if some bytes begin as a note does.
    #[must_use]
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&Self::MAGIC)
    }

    /// # Errors
    /// If these are not the bytes of a note of this target and backup, or it is damaged, or of another version.
    pub fn decode(bytes: &[u8], target: Id, backup: Id) -> Result<Self> {
        const WHAT: &str = "note";
        let (note, rest) = Self::read_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is cut short"))?;
        if note.crc.get() != crc32c(&bytes[..124]) || !rest.is_empty() {
            return Err(damaged(WHAT, "its checksum is wrong"));
        }
        check_start(WHAT, (note.magic, note.version.get(), note.length.get()), Self::MAGIC, size_of::<Self>())?;
        if note.target != target.0 || note.backup != backup.0 {
            return Err(damaged(WHAT, "it is of another backup"));
        }
        if !(note::CREATE..=note::ALIVE).contains(&note.kind.get())
            || note.reserved != [0; 6]
            || note.reserved_2 != [0; 36]
        {
            return Err(damaged(WHAT, "it says what no program writes"));
        }
        Ok(note)
    }
}
