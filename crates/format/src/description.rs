//! What a view frame says of the volume that the shard is part of, so that the control state can be made again from the
//! nodes' logs (rule V9).

use freebs_types::{Error, Result, ViewNumber, limits};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A volume as it was when a view of one of its shards was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDescription {
    /// 1 to 128 bytes.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Number of shards in all stripe sets.
    pub shards: u32,
    /// Copies that it was made with.
    pub copies: u8,
    /// Least members of a view that orders requests, as the volume was made with.
    pub min_copies: u8,
    /// A write is answered when it is durable on all members, not on the majority.
    pub all: bool,
    /// Milliseconds of its past that are kept; 0 for none.
    pub retain_ms: u64,
    /// Of this shard: the newest view that began a branch (V10), 0 for none.
    pub branch: ViewNumber,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct VolumeFixed {
    pub(crate) size: U64,
    pub(crate) stripe: U64,
    pub(crate) shards: U32,
    pub(crate) copies: u8,
    pub(crate) min_copies: u8,
    pub(crate) all: u8,
    pub(crate) name_len: u8,
    pub(crate) name: [u8; limits::VOLUME_NAME_BYTES_MAX],
    pub(crate) branch: U64,
    pub(crate) retain: U64,
}
const _: () = assert!(size_of::<VolumeFixed>() == 168);

impl VolumeDescription {
    /// True if both describe the same volume, whatever became of the shard.
    #[must_use]
    pub fn is_same_volume(&self, other: &Self) -> bool {
        self == &Self { branch: self.branch, ..other.clone() }
    }

    pub(crate) fn fixed(&self) -> VolumeFixed {
        let mut name = [0; limits::VOLUME_NAME_BYTES_MAX];
        let len = self.name.len().min(name.len());
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        VolumeFixed {
            size: self.size.into(),
            stripe: self.stripe.into(),
            shards: self.shards.into(),
            copies: self.copies,
            min_copies: self.min_copies,
            all: self.all.into(),
            name_len: len as u8,
            name,
            branch: self.branch.0.into(),
            retain: self.retain_ms.into(),
        }
    }

    /// Whether a volume can be so is asked by who makes a state of it.
    pub(crate) fn of(fixed: &VolumeFixed) -> Result<Self> {
        let bad = || Error::corrupt("view with a description of its volume that makes no sense");
        let (name, rest) = fixed.name.split_at_checked(usize::from(fixed.name_len)).ok_or_else(bad)?;
        let name = core::str::from_utf8(name).map_err(|_| bad())?;
        if name.is_empty() || rest.iter().any(|b| *b != 0) || fixed.all > 1 {
            return Err(bad());
        }
        Ok(Self {
            name: name.to_owned(),
            size: fixed.size.get(),
            stripe: fixed.stripe.get(),
            shards: fixed.shards.get(),
            copies: fixed.copies,
            min_copies: fixed.min_copies,
            all: fixed.all == 1,
            retain_ms: fixed.retain.get(),
            branch: ViewNumber(fixed.branch.get()),
        })
    }
}
