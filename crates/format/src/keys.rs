//! Keys of nodes and of a cluster's authority in files, and tokens to join with.
//!
//! Invariant: what has another checksum, cluster or kind than is wanted is no key and no token.

use crate::crc32c;
use core::fmt;
use freebs_types::{ClusterId, Error, Hash32, HostPublic, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const VERSION: u16 = 1;
/// Bytes of a file with a key pair.
pub const SIGNING_KEY_BYTES: usize = 128;
/// Bytes of a token.
pub const JOIN_TOKEN_BYTES: usize = 96;
/// Bytes of a token's secret.
pub const JOIN_SECRET_BYTES: usize = 24;
const JOIN_TOKEN_MAGIC: [u8; 4] = *b"FBJT";

/// The owner of a key pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOf {
    /// A node's.
    Node,
    /// That of the cluster's authority.
    Authority,
}

impl KeyOf {
    fn magic(self) -> [u8; 4] {
        match self {
            Self::Node => *b"FBNK",
            Self::Authority => *b"FBAK",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Node => "a node's key",
            Self::Authority => "an authority's key",
        }
    }
}

/// The file `node-key` or `authority-key` of a data directory: a key pair for signatures (Ed25519).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SigningKeyFile {
    /// `FBNK` for a node, `FBAK` for an authority.
    pub magic: [u8; 4],
    /// Always 1.
    pub version: U16,
    /// Always 128.
    pub length: U16,
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// The secret half, in clear.
    pub seed: [u8; 32],
    /// The public half, which has to belong to `seed`.
    pub public: [u8; 32],
    /// Zero.
    pub reserved: [u8; 36],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<SigningKeyFile>() == SIGNING_KEY_BYTES);

impl SigningKeyFile {
    /// The file's bytes, with its checksum set.
    #[must_use]
    pub fn encode(of: KeyOf, cluster: ClusterId, seed: &Hash32, public: &HostPublic) -> [u8; SIGNING_KEY_BYTES] {
        let mut file = Self {
            magic: of.magic(),
            version: VERSION.into(),
            length: (SIGNING_KEY_BYTES as u16).into(),
            cluster: cluster.0,
            seed: seed.0,
            public: public.0,
            reserved: [0; 36],
            crc: 0.into(),
        };
        file.crc = crc32c(&file.as_bytes()[..SIGNING_KEY_BYTES - 4]).into();
        file.as_bytes().try_into().expect("of this length")
    }

    /// The cluster whose such a file this is; `None` if it is damaged, or no such file.
    #[must_use]
    pub fn cluster_of(bytes: &[u8], of: KeyOf) -> Option<ClusterId> {
        let file = Self::ref_from_bytes(bytes).ok()?;
        let is_whole = file.magic == of.magic() && file.crc.get() == crc32c(&bytes[..SIGNING_KEY_BYTES - 4]);
        is_whole.then_some(ClusterId(file.cluster))
    }

    /// The secret half, and the public one that has to belong to it.
    pub fn decode(bytes: &[u8], of: KeyOf, cluster: ClusterId) -> Result<(Hash32, HostPublic)> {
        let name = of.name();
        let Ok(file) = Self::ref_from_bytes(bytes) else {
            return Err(Error::corrupt(format!("{name} of another length")));
        };
        if file.magic != of.magic() || file.crc.get() != crc32c(&bytes[..SIGNING_KEY_BYTES - 4]) {
            return Err(Error::corrupt(format!("{name} that does not match its checksum")));
        }
        if file.version.get() != VERSION || file.length.get() as usize != SIGNING_KEY_BYTES {
            return Err(Error::invalid(format!("{name} of a newer format; use a newer freebs")));
        }
        if file.cluster != cluster.0 {
            return Err(Error::corrupt(format!("{name} of another cluster")));
        }
        Ok((Hash32(file.seed), HostPublic(file.public)))
    }
}

/// A token that one node joins a cluster with.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// The cluster.
    pub cluster: ClusterId,
    /// Public half of the key of the cluster's authority.
    pub authority: HostPublic,
    /// The right to join.
    pub secret: [u8; JOIN_SECRET_BYTES],
    /// Milliseconds since 1970.
    pub expires_ms: u64,
}

/// The secret is not for logs.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken of {}, until {}", self.cluster, self.expires_ms)
    }
}

/// A token's bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct JoinTokenFixed {
    pub(crate) magic: [u8; 4],
    pub(crate) version: U16,
    pub(crate) length: U16,
    pub(crate) cluster: [u8; 16],
    pub(crate) authority: [u8; 32],
    pub(crate) secret: [u8; JOIN_SECRET_BYTES],
    pub(crate) expires_ms: U64,
    pub(crate) reserved: [u8; 4],
    pub(crate) crc: U32,
}
const _: () = assert!(size_of::<JoinTokenFixed>() == JOIN_TOKEN_BYTES);

impl JoinToken {
    fn bytes(&self) -> [u8; JOIN_TOKEN_BYTES] {
        let mut fixed = JoinTokenFixed {
            magic: JOIN_TOKEN_MAGIC,
            version: VERSION.into(),
            length: (JOIN_TOKEN_BYTES as u16).into(),
            cluster: self.cluster.0,
            authority: self.authority.0,
            secret: self.secret,
            expires_ms: self.expires_ms.into(),
            reserved: [0; 4],
            crc: 0.into(),
        };
        fixed.crc = crc32c(&fixed.as_bytes()[..JOIN_TOKEN_BYTES - 4]).into();
        fixed.as_bytes().try_into().expect("of this length")
    }

    /// The hash that the control state knows it by.
    #[must_use]
    pub fn hash(&self) -> Hash32 {
        Hash32(blake3::derive_key("freebs 2026-11 secret of a join token", &self.secret))
    }

    /// The token as people carry it: its bytes as hexadecimal digits.
    #[must_use]
    pub fn text(&self) -> String {
        self.bytes().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The token of such a text; `Invalid` if it is none, or not whole.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim().as_bytes();
        let bad = |why: &str| {
            Error::invalid(format!(
                "this is no token to join with: {why}; take all of what `freebs cluster token` has printed"
            ))
        };
        if text.len() != 2 * JOIN_TOKEN_BYTES {
            return Err(bad(&format!("it has {} characters, not {}", text.len(), 2 * JOIN_TOKEN_BYTES)));
        }
        let mut bytes = [0; JOIN_TOKEN_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(bad("it has other characters than 0 to 9 and a to f"));
            };
            *byte = (high << 4 | low) as u8;
        }
        let fixed = JoinTokenFixed::ref_from_bytes(&bytes).map_err(|_| Error::bug("a token of another length"))?;
        if fixed.magic != JOIN_TOKEN_MAGIC || fixed.crc.get() != crc32c(&bytes[..JOIN_TOKEN_BYTES - 4]) {
            return Err(bad("it does not match its checksum"));
        }
        if fixed.version.get() != VERSION || usize::from(fixed.length.get()) != JOIN_TOKEN_BYTES {
            return Err(Error::invalid("this token is of a newer freebs; use a newer one here"));
        }
        Ok(Self {
            cluster: ClusterId(fixed.cluster),
            authority: HostPublic(fixed.authority),
            secret: fixed.secret,
            expires_ms: fixed.expires_ms.get(),
        })
    }
}
