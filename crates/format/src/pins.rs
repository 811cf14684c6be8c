//! Pinned versions: what an update says of them, and how a mark lists them.

use crate::UpdateKind;
use freebs_types::{Error, Result, SnapshotId, Version, limits};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A version that is kept, and the snapshot that it is kept for (rule E6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pin {
    /// The version of the shard.
    pub version: Version,
    /// The snapshot whose cut that is; 0 if it has no number.
    pub snapshot: SnapshotId,
}

/// An update's word about versions that are kept (rule E6). The number is the update's `base`; a `Past` names its version
/// besides, as the update's `past`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinUpdate {
    /// Pins the version that the update has itself, for this snapshot.
    Snapshot(SnapshotId),
    /// Gives up the pin of this version; of version 0, the retention window.
    Release(Version),
    /// Begins the retention window at this version, or moves it up to there.
    Retain(Version),
    /// Pins a version of the past, which is kept.
    Past(Pin),
}

impl PinUpdate {
    /// The update of a kind that is about pins, with its `base` and `past`; `None` for other kinds.
    #[must_use]
    pub fn of(kind: UpdateKind, base: u64, past: u64) -> Option<Self> {
        match kind {
            UpdateKind::Snapshot => Some(Self::Snapshot(SnapshotId(base))),
            UpdateKind::Release => Some(Self::Release(Version(base))),
            UpdateKind::Retain => Some(Self::Retain(Version(base))),
            UpdateKind::Past => Some(Self::Past(Pin { version: Version(past), snapshot: SnapshotId(base) })),
            _ => None,
        }
    }

    /// The kind of the update.
    #[must_use]
    pub fn kind(self) -> UpdateKind {
        match self {
            Self::Snapshot(_) => UpdateKind::Snapshot,
            Self::Release(_) => UpdateKind::Release,
            Self::Retain(_) => UpdateKind::Retain,
            Self::Past(_) => UpdateKind::Past,
        }
    }

    /// The number that stands in the update.
    #[must_use]
    pub fn base(self) -> u64 {
        match self {
            Self::Snapshot(id) => id.0,
            Self::Release(v) | Self::Retain(v) => v.0,
            Self::Past(pin) => pin.snapshot.0,
        }
    }

    /// The version of the past that stands in the update; 0 in others than a `Past`.
    #[must_use]
    pub fn past(self) -> u64 {
        if let Self::Past(pin) = self { pin.version.0 } else { 0 }
    }
}

/// True if an update of a kind may name this version of the past.
pub(crate) fn is_possible(kind: UpdateKind, past: u64) -> bool {
    if kind == UpdateKind::Past { (1..KEPT_MAX).contains(&past) } else { past == 0 }
}

/// One of a mark's pins.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PinFixed {
    pub(crate) version: U64,
    pub(crate) snapshot: U64,
}
const _: () = assert!(size_of::<PinFixed>() == PIN_BYTES);

/// Versions and sequences that marks tell of history are below this: whoever works with them may add to them, and numbers that no
/// frame ever reaches would stand for good.
pub(crate) const KEPT_MAX: u64 = 1 << 62;

/// Bytes of a pin in a mark.
pub const PIN_BYTES: usize = 16;

/// The pins as they stand in a mark.
pub(crate) fn encode(pins: &[Pin], out: &mut Vec<u8>) {
    for p in pins {
        let fixed = PinFixed { version: p.version.0.into(), snapshot: p.snapshot.0.into() };
        out.extend_from_slice(fixed.as_bytes());
    }
}

/// Reads `count` pins. `Corrupt` if there are more or fewer bytes, too many of them, or versions that are 0,
/// too high, or don't rise.
pub(crate) fn decode(bytes: &[u8], count: usize) -> Result<Vec<Pin>> {
    let pins =
        <[PinFixed]>::ref_from_bytes(bytes).map_err(|_| Error::corrupt("mark's pinned versions are cut short"))?;
    if pins.len() != count
        || pins.len() > limits::SHARD_PINS_MAX
        || !pins.is_sorted_by(|a, b| a.version.get() < b.version.get())
        || pins.iter().any(|p| !(1..KEPT_MAX).contains(&p.version.get()))
    {
        return Err(Error::corrupt("mark with pinned versions that make no sense"));
    }
    let pin = |p: &PinFixed| Pin { version: Version(p.version.get()), snapshot: SnapshotId(p.snapshot.get()) };
    Ok(pins.iter().map(pin).collect())
}
