//! A page of a table of contents: where the blocks of 4 GiB of a volume are. It is stored as an object, so pages that did
//! not change are shared among backups as blocks are.

use super::{Id, Name, VERSION, check_start, damaged};
use crate::limits::{BLOCK_BYTES, OBJECT_BYTES_MAX, OBJECT_BYTES_MIN, PAGE_BLOCKS, PAGES_MAX};
use freebs_types::Result;
use std::collections::BTreeMap;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a page. Its owners and then its entries follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageHeader {
    /// Always `FBKP`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Bytes of this struct.
    pub length: U16,
    /// Which page of the volume, from 0.
    pub page: U32,
    /// Owners that follow, of 16 bytes each, in the order in which entries name them first.
    pub owners: U32,
    /// Entries that follow them.
    pub entries: U32,
    /// Zero.
    pub reserved: [u8; 12],
}
const _: () = assert!(size_of::<PageHeader>() == 32);

/// A block that is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockEntry {
    /// Which block of the page, from 0, in ascending order.
    pub block: U16,
    /// Which of the owners of the page.
    pub owner: U16,
    /// Bytes of the object.
    pub stored: U32,
    /// Name of the object.
    pub name: [u8; 32],
}
const _: () = assert!(size_of::<BlockEntry>() == 40);
const PAGE_BYTES_MAX: usize = size_of::<PageHeader>() + (16 + size_of::<BlockEntry>()) * PAGE_BLOCKS as usize;
const _: () = assert!(PAGE_BYTES_MAX <= BLOCK_BYTES, "a page is stored as an object");

/// An object, as a page or manifest names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The backup that stored it.
    pub owner: Id,
    /// Its name.
    pub name: Name,
    /// Its bytes.
    pub stored: u32,
}

impl Entry {
    /// True if an object may have this length.
    #[must_use]
    pub fn fits(stored: u64) -> bool {
        (OBJECT_BYTES_MIN as u64..=OBJECT_BYTES_MAX as u64).contains(&stored)
    }
}

/// A page in memory: at least one block, by its index in the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Which page of the volume.
    pub page: u32,
    /// The blocks that are not zero.
    pub blocks: BTreeMap<u16, Entry>,
}

impl Page {
    /// The bytes, at most 512 KiB.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut owners: Vec<Id> = Vec::new();
        let mut of: BTreeMap<Id, u16> = BTreeMap::new();
        let mut entries = Vec::with_capacity(self.blocks.len() * size_of::<BlockEntry>());
        for (block, entry) in &self.blocks {
            let owner = *of.entry(entry.owner).or_insert_with(|| {
                owners.push(entry.owner);
                (owners.len() - 1) as u16
            });
            let (block, owner, stored) = ((*block).into(), owner.into(), entry.stored.into());
            entries.extend(BlockEntry { block, owner, stored, name: entry.name.0 }.as_bytes());
        }
        let header = PageHeader {
            magic: Self::MAGIC,
            version: VERSION.into(),
            length: (size_of::<PageHeader>() as u16).into(),
            page: self.page.into(),
            owners: (owners.len() as u32).into(),
            entries: (self.blocks.len() as u32).into(),
            reserved: [0; 12],
        };
        let owners = owners.iter().flat_map(|o| o.0);
        header.as_bytes().iter().copied().chain(owners).chain(entries).collect()
    }

    /// The first bytes.
    pub const MAGIC: [u8; 4] = *b"FBKP";

    /// # Errors
    /// If these are not the bytes of a page.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        const WHAT: &str = "page of a table of contents";
        let (header, rest) = PageHeader::read_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is cut short"))?;
        let start = (header.magic, header.version.get(), header.length.get());
        check_start(WHAT, start, Self::MAGIC, size_of::<PageHeader>())?;
        let (owners, entries) = (header.owners.get() as usize, header.entries.get() as usize);
        let wrong = || damaged(WHAT, "it says what no program writes");
        let lengths = entries <= PAGE_BLOCKS as usize && (1..=entries).contains(&owners);
        if !lengths || rest.len() != 16 * owners + size_of::<BlockEntry>() * entries {
            return Err(damaged(WHAT, "it has not the length that it says"));
        }
        if header.page.get() >= PAGES_MAX || header.reserved != [0; 12] {
            return Err(wrong());
        }
        let (ids, table) = rest.split_at(16 * owners);
        let ids = <[[u8; 16]]>::ref_from_bytes(ids).map_err(|_| wrong())?;
        let table = <[BlockEntry]>::ref_from_bytes(table).map_err(|_| wrong())?;
        let (mut named, mut next) = (0, 0u32);
        let mut blocks = BTreeMap::new();
        for e in table {
            let (block, owner) = (u32::from(e.block.get()), usize::from(e.owner.get()));
            let is_new = owner == named;
            if block < next
                || block >= PAGE_BLOCKS
                || owner > named
                || owner >= owners
                || !Entry::fits(e.stored.get().into())
            {
                return Err(wrong());
            }
            // An owner has one place only.
            if is_new && ids[..named].contains(&ids[owner]) {
                return Err(wrong());
            }
            named += usize::from(is_new);
            next = block + 1;
            let entry = Entry { owner: Id(ids[owner]), name: Name(e.name), stored: e.stored.get() };
            blocks.insert(block as u16, entry);
        }
        if named != owners {
            return Err(wrong());
        }
        Ok(Self { page: header.page.get(), blocks })
    }
}
