//! Identities and running numbers. All are little newtypes, so that a view is never taken for a version.

use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        pub struct $name(pub $inner);

        impl $name {
            /// The number that follows. Panics on overflow, which no run can reach.
            #[must_use]
            pub const fn next(self) -> Self {
                match self.0.checked_add(1) {
                    Some(n) => Self(n),
                    None => panic!(concat!(stringify!($name), " overflow")),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// One node: identity, not address. 1 and up; 0 means "none".
    NodeId(u64)
);
number!(
    /// One volume; never used twice in a cluster. 1 and up; 0 means "none".
    VolumeId(u64)
);
number!(
    /// A numbered chain of one shard. 1 and up; 0 means "no view yet".
    ViewNumber(u64)
);
number!(
    /// Update number of a shard, +1 for each update. 0 is the empty shard.
    Version(u64)
);
number!(
    /// One snapshot of a volume or of several; never used twice in a cluster. 1 and up; 0 for a pin that belongs to no
    /// numbered snapshot, as in the library.
    SnapshotId(u64)
);
number!(
    /// Frame number of a shard, +1 for each frame, with or without updates. 0 is the empty log.
    Sequence(u64)
);
number!(
    /// The right to use a volume: the higher one is the only valid one. 0 means "never attached".
    Generation(u64)
);
number!(
    /// A driver, new and random at every start of a driver.
    DriverId(u64)
);
number!(
    /// Number of a request of one driver to one shard, +1 for each, from 1.
    RequestNumber(u64)
);
number!(
    /// A driver's number of an interval over several shards, +1 for each attempt. 1 and up; 0 means "none".
    IntervalNumber(u64)
);
number!(
    /// Raised at every start of a node or gateway, kept in the superblock (nodes) or in the control plane.
    StartNumber(u64)
);
number!(
    /// Index of a 16 MiB piece of a device's log.
    SegmentId(u32)
);
number!(
    /// Order in which segments of a device were opened, 1 and up. A reused segment gets a new one.
    SegmentSeq(u64)
);

/// The part of a volume that one log orders. `index` counts from 0 over all stripe sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ShardId {
    /// The volume that it is a part of.
    pub volume: VolumeId,
    /// Which shard of the volume, from 0.
    pub index: u32,
}

impl ShardId {
    /// The shard `index` of the volume with this number.
    #[must_use]
    pub const fn new(volume: u64, index: u32) -> Self {
        Self { volume: VolumeId(volume), index }
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.volume, self.index)
    }
}

/// A run of frames of one shard, named by the view that opened it and a counter in it (rule E8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId {
    /// The view that opened the chunk.
    pub view: ViewNumber,
    /// Which chunk of that view, from 0.
    pub counter: u32,
}

impl ChunkId {
    /// The chunk `counter` of the view with this number.
    #[must_use]
    pub const fn new(view: u64, counter: u32) -> Self {
        Self { view: ViewNumber(view), counter }
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.view, self.counter)
    }
}

/// One worker of a node: who a shard's messages go to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The node; 0 for a gateway, which is none.
    pub node: NodeId,
    /// Index of the worker in its node, from 0; below `limits::WORKERS_MAX`.
    pub worker: u16,
}

impl Peer {
    /// The worker of `node`, which has `workers` of them, that a shard lives on. Fixed for the life of a device.
    #[must_use]
    pub const fn of(node: NodeId, shard: ShardId, workers: u16) -> Self {
        let workers = if workers == 0 { 1 } else { workers as u64 };
        Self { node, worker: (shard.volume.0.wrapping_add(shard.index as u64) % workers) as u16 }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}/{}", self.node, self.worker)
    }
}

macro_rules! bytes_id {
    ($(#[$doc:meta])* $name:ident($n:literal)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $n]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                for b in self.0 {
                    write!(f, "{b:02x}")?;
                }
                Ok(())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}(", stringify!($name))?;
                for b in &self.0[..4] {
                    write!(f, "{b:02x}")?;
                }
                write!(f, "…)")
            }
        }
    };
}

bytes_id!(
    /// A cluster, random at its creation. In every header, so that a foreign byte is recognised.
    ClusterId(16)
);
bytes_id!(
    /// A device, random at its creation.
    DeviceId(16)
);
bytes_id!(
    /// The public half of a node's host key (X25519): slices of secrets are sealed for it.
    HostPublic(32)
);
bytes_id!(
    /// A BLAKE3 hash: a digest, a public `hid`, an access token `id`, or a view secret.
    Hash32(32)
);
