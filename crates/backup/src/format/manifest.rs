//! The manifest of a backup: what it is of, and the pages of its table of contents.

use super::{Entry, Id, Moment, Name, VERSION, check_start, damaged};
use crate::keys::{Keys, sha256};
use crate::limits::{
    BLOCK_BYTES, MANIFEST_BYTES_MAX, OBJECT_BYTES_MAX, OBJECT_BYTES_MIN, PAGE_BLOCKS, PAGES_MAX, SOURCE_NAME_BYTES_MAX,
    TAG_BYTES, VOLUME_BYTES_MAX,
};
use freebs_format::crc32c;
use freebs_types::{ClusterId, Error, Result, VolumeId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a manifest. Its body follows: details and pages, sealed if the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ManifestHeader {
    /// Always `FBKM`.
    pub magic: [u8; 4],
    /// Always 2.
    pub version: U16,
    /// Bytes of this struct.
    pub length: U16,
    /// Identity of the target.
    pub target: [u8; 16],
    /// Identity of the backup.
    pub backup: [u8; 16],
    /// Identity of the key that the body is sealed with; zero if it is not.
    pub key: [u8; 16],
    /// Random, if it is sealed; else zero.
    pub nonce: [u8; 12],
    /// Bytes that follow this struct.
    pub body_bytes: U32,
    /// Zero.
    pub reserved: [u8; 20],
    /// SHA-256 of the bytes before this field, and of the body.
    pub seal: [u8; 32],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<ManifestHeader>() == 128);
/// Bytes of the header before its seal.
const BEFORE_SEAL: usize = 92;

/// The volume that the backup is of. It opens the plain body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ManifestDetails {
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// The volume's number in it.
    pub volume: U64,
    /// The backup whose blocks were not stored again; zero if there was none.
    pub parent: [u8; 16],
    /// When it was begun: milliseconds since 1970, by the clock of its maker.
    pub time_ms: U64,
    /// Bytes of the volume.
    pub size: U64,
    /// Blocks that are not zero.
    pub blocks: U64,
    /// Bytes of their objects.
    pub stored_bytes: U64,
    /// Blocks that were not in the parent.
    pub new_blocks: U64,
    /// Bytes of their objects and of new pages.
    pub new_bytes: U64,
    /// Not deleted before: milliseconds since 1970; zero if it may be deleted at any time.
    pub locked_until_ms: U64,
    /// The moment of the volume, in words of the source.
    pub moment: [u8; 32],
    /// Pages behind this struct.
    pub pages: U32,
    /// Bytes of the name.
    pub name_bytes: U16,
    /// Zero.
    pub reserved: [u8; 122],
    /// The name of what was backed up, in UTF-8, then zeroes.
    pub name: [u8; 256],
}
const _: () = assert!(size_of::<ManifestDetails>() == 512);

/// A page of the table of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageRef {
    /// Which page of the volume, from 0, in ascending order.
    pub page: U32,
    /// Entries of the page.
    pub entries: U32,
    /// Bytes of the object.
    pub stored: U32,
    /// Zero.
    pub reserved: [u8; 4],
    /// The backup that stored it.
    pub owner: [u8; 16],
    /// Name of the object.
    pub name: [u8; 32],
}
const _: () = assert!(size_of::<PageRef>() == 64);

impl PageRef {
    /// A reference to an object that holds a page.
    #[must_use]
    pub fn new(page: u32, entries: u32, object: Entry) -> Self {
        let (owner, name) = (object.owner.0, object.name.0);
        Self { page: page.into(), entries: entries.into(), stored: object.stored.into(), reserved: [0; 4], owner, name }
    }

    /// The object that holds it.
    #[must_use]
    pub fn object(&self) -> Entry {
        Entry { owner: Id(self.owner), name: Name(self.name), stored: self.stored.get() }
    }
}

/// The volume that a backup is of, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// Identity of the cluster.
    pub cluster: ClusterId,
    /// The volume's number in it.
    pub volume: VolumeId,
    /// A volume's name, perhaps with that of a snapshot.
    pub name: String,
    /// The backup whose blocks were not stored again.
    pub parent: Id,
    /// When it was begun: milliseconds since 1970, by the clock of its maker.
    pub time_ms: u64,
    /// Bytes of the volume.
    pub size: u64,
    /// Blocks that are not zero.
    pub blocks: u64,
    /// Bytes of their objects.
    pub stored_bytes: u64,
    /// Blocks that were not in the parent.
    pub new_blocks: u64,
    /// Bytes of their objects and of new pages.
    pub new_bytes: u64,
    /// Not deleted before: milliseconds since 1970; zero: at any time.
    pub locked_until_ms: u64,
    /// The moment of the volume.
    pub moment: Moment,
}

/// A manifest in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The backup.
    pub id: Id,
    /// The volume that it is of.
    pub details: Details,
    /// Pages of its table of contents; those that are missing have zeroes only.
    pub pages: Vec<PageRef>,
}

const WHAT: &str = "manifest of the backup";

/// True for a text that can be shown to people and programs as it is.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-@:+".contains(c))
}

/// The blocks of a volume of this size.
pub(crate) fn blocks_of(size: u64) -> u64 {
    size.div_ceil(BLOCK_BYTES as u64)
}

impl Manifest {
    /// The bytes. `seal`: the key of a sealed target and a random nonce.
    ///
    /// # Errors
    /// If the name of what was backed up can't be in one.
    pub fn encode(&self, target: Id, seal: Option<(&Keys, [u8; 12])>) -> Result<Vec<u8>> {
        let d = &self.details;
        if d.name.len() > SOURCE_NAME_BYTES_MAX || !is_name(&d.name) {
            return Err(Error::invalid(format!("'{}' can't be the name of what is backed up", d.name.escape_debug())));
        }
        let mut name = [0; 256];
        name[..d.name.len()].copy_from_slice(d.name.as_bytes());
        let details = ManifestDetails {
            cluster: d.cluster.0,
            volume: d.volume.0.into(),
            parent: d.parent.0,
            time_ms: d.time_ms.into(),
            size: d.size.into(),
            blocks: d.blocks.into(),
            stored_bytes: d.stored_bytes.into(),
            new_blocks: d.new_blocks.into(),
            new_bytes: d.new_bytes.into(),
            locked_until_ms: d.locked_until_ms.into(),
            moment: d.moment.0,
            pages: (self.pages.len() as u32).into(),
            name_bytes: (d.name.len() as u16).into(),
            reserved: [0; 122],
            name,
        };
        let mut body = [details.as_bytes(), self.pages.as_bytes()].concat();
        let tag = if seal.is_some() { TAG_BYTES } else { 0 };
        let mut header = ManifestHeader {
            magic: Self::MAGIC,
            version: VERSION.into(),
            length: (size_of::<ManifestHeader>() as u16).into(),
            target: target.0,
            backup: self.id.0,
            key: seal.map_or(Id::NONE, |(keys, _)| keys.id()).0,
            nonce: seal.map_or([0; 12], |(_, nonce)| nonce),
            body_bytes: ((body.len() + tag) as u32).into(),
            reserved: [0; 20],
            seal: [0; 32],
            crc: 0.into(),
        };
        if let Some((keys, nonce)) = seal {
            keys.seal_manifest(self.id, nonce, &header.as_bytes()[..BEFORE_SEAL], &mut body)?;
        }
        header.seal = sha256(&[&header.as_bytes()[..BEFORE_SEAL], &body]);
        header.crc = crc32c(&header.as_bytes()[..124]).into();
        Ok([header.as_bytes(), &body].concat())
    }

    /// The first bytes.
    pub const MAGIC: [u8; 4] = *b"FBKM";

    /// # Errors
    /// If these are not the bytes of the manifest of this backup of this target, or the key is missing or another one.
    pub fn decode(bytes: &[u8], target: Id, backup: Id, keys: Option<&Keys>) -> Result<Self> {
        let (header, body) = ManifestHeader::read_from_prefix(bytes).map_err(|_| damaged(WHAT, "it is cut short"))?;
        if header.crc.get() != crc32c(&bytes[..124]) {
            return Err(damaged(WHAT, "the checksum of its header is wrong"));
        }
        let start = (header.magic, header.version.get(), header.length.get());
        check_start(WHAT, start, Self::MAGIC, size_of::<ManifestHeader>())?;
        if header.target != target.0 || header.backup != backup.0 {
            return Err(damaged(WHAT, "it is of another backup"));
        }
        if bytes.len() > MANIFEST_BYTES_MAX || body.len() != header.body_bytes.get() as usize {
            return Err(damaged(WHAT, "it has not the length that it says"));
        }
        if header.seal != sha256(&[&bytes[..BEFORE_SEAL], body]) {
            return Err(damaged(WHAT, "its hash is wrong"));
        }
        let is_sealed = header.key != [0; 16];
        if header.reserved != [0; 20] || (!is_sealed && header.nonce != [0; 12]) {
            return Err(damaged(WHAT, "its header says what no program writes"));
        }
        match (is_sealed, keys) {
            (false, None) => Self::of_body(backup, body),
            (true, Some(keys)) if keys.id().0 == header.key => {
                let plain = keys.open_manifest(backup, header.nonce, &bytes[..BEFORE_SEAL], body);
                Self::of_body(backup, &plain.ok_or_else(|| damaged(WHAT, "it was not made with this key"))?)
            }
            (true, _) => Err(damaged(WHAT, "it is sealed with another key than the target's")),
            (false, Some(_)) => Err(damaged(WHAT, "it is not sealed, and the target is")),
        }
    }

    fn of_body(id: Id, body: &[u8]) -> Result<Self> {
        let (d, rest) = ManifestDetails::read_from_prefix(body).map_err(|_| damaged(WHAT, "it is cut short"))?;
        let wrong = || damaged(WHAT, "it says what no program writes");
        let (size, pages) = (d.size.get(), d.pages.get());
        if pages > PAGES_MAX || rest.len() != size_of::<PageRef>() * pages as usize {
            return Err(damaged(WHAT, "it has not the length that it says"));
        }
        if size == 0 || size > VOLUME_BYTES_MAX || d.reserved != [0; 122] {
            return Err(wrong());
        }
        let len = usize::from(d.name_bytes.get());
        let name = d.name.get(..len).filter(|_| d.name[len..].iter().all(|b| *b == 0)).ok_or_else(wrong)?;
        let name = std::str::from_utf8(name).ok().filter(|n| is_name(n)).ok_or_else(wrong)?;
        let table = <[PageRef]>::ref_from_bytes(rest).map_err(|_| wrong())?;
        let (mut next, mut blocks) = (0u32, 0u64);
        for p in table {
            let (page, entries) = (p.page.get(), p.entries.get());
            let first = u64::from(page) * u64::from(PAGE_BLOCKS);
            let most = blocks_of(size).saturating_sub(first).min(PAGE_BLOCKS.into());
            let in_order = page >= next && page < PAGES_MAX;
            if !in_order
                || entries == 0
                || u64::from(entries) > most
                || !Entry::fits(p.stored.get().into())
                || p.reserved != [0; 4]
            {
                return Err(wrong());
            }
            next = page + 1;
            blocks += u64::from(entries);
        }
        if blocks != d.blocks.get() || d.new_blocks.get() > blocks {
            return Err(wrong());
        }
        let most = |objects: u64| objects * OBJECT_BYTES_MAX as u64;
        let stored = blocks * OBJECT_BYTES_MIN as u64..=most(blocks);
        if !stored.contains(&d.stored_bytes.get()) || d.new_bytes.get() > most(d.new_blocks.get() + u64::from(pages)) {
            return Err(wrong());
        }
        let details = Details {
            cluster: ClusterId(d.cluster),
            volume: VolumeId(d.volume.get()),
            name: name.to_owned(),
            parent: Id(d.parent),
            time_ms: d.time_ms.get(),
            size,
            blocks,
            stored_bytes: d.stored_bytes.get(),
            new_blocks: d.new_blocks.get(),
            new_bytes: d.new_bytes.get(),
            locked_until_ms: d.locked_until_ms.get(),
            moment: Moment(d.moment),
        };
        Ok(Self { id, details, pages: table.to_vec() })
    }

    /// The reference to a page, if it has any blocks.
    #[must_use]
    pub fn page(&self, page: u32) -> Option<&PageRef> {
        let at = self.pages.binary_search_by_key(&page, |p| p.page.get()).ok()?;
        self.pages.get(at)
    }
}
