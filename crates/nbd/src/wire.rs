//! The numbers of the NBD protocol, the request header, and the shapes of every reply header.
//!
//! All integers are big-endian. Invariant: a header is built on the stack in its whole length and then copied once, so
//! a reply can't be half a header. Nothing here decides anything.

use core::fmt;
use freebs_types::{Error, ErrorKind};

/// "NBDMAGIC", the first eight bytes of a server.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT", second word of the greeting and first of each option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub const GREETING_BYTES: usize = 18;
pub const CLIENT_FLAGS_BYTES: usize = 4;
pub const OPTION_HEADER_BYTES: usize = 16;
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
pub const REQUEST_BYTES: usize = 28;
pub const EXTENDED_REQUEST_BYTES: usize = 32;
pub const SIMPLE_REPLY_BYTES: usize = 16;
pub const STRUCTURED_REPLY_BYTES: usize = 20;
pub const EXTENDED_REPLY_BYTES: usize = 32;
/// Zeroes that end the answer to EXPORT_NAME unless the client waived them.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Handshake flags; the client's have the same bits.
pub mod handshake_flag {
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options a client sends.
pub mod opt {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Kinds of reply to an option; errors have the top bit.
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    pub const ERR_POLICY: u32 = 0x8000_0002;
    pub const ERR_INVALID: u32 = 0x8000_0003;
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    pub const ERR_SHUTDOWN: u32 = 0x8000_0007;
    pub const ERR_TOO_BIG: u32 = 0x8000_0009;
    pub const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;
}

/// Kinds of information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub mod flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands.
pub mod cmd {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a command.
pub mod cmd_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Flags and types of a structured or extended reply chunk.
pub mod chunk {
    pub const FLAG_DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = 0x8001;
}

/// States of an extent in `base:allocation`.
pub mod state {
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// States of an extent in `freebs:changed-since:NAME`.
pub mod changed {
    pub const CHANGED: u32 = 1 << 0;
}

/// The meta contexts, and their numbers on this server. The second one has the name of an earlier export behind it.
pub const META_ALLOCATION: &str = "base:allocation";
pub const META_ALLOCATION_ID: u32 = 1;
pub const META_CHANGED_SINCE: &str = "freebs:changed-since:";
pub const META_CHANGED_SINCE_ID: u32 = 2;
/// The namespace of this server's own ones.
pub const META_OWN: &str = "freebs:";

/// Errors that a reply to a request can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NbdErrno {
    /// A change of a read-only export.
    Perm = 1,
    /// This request was not completed.
    Io = 5,
    /// No memory; better not used, clients seldom expect it.
    NoMem = 12,
    /// The request is wrong in itself.
    Inval = 22,
    /// No space, or a write past the end.
    NoSpace = 28,
    /// The length is more than can be served in one request.
    Overflow = 75,
    /// A fast zero that would not be fast; for nothing else.
    NotSup = 95,
    /// The server is going down; the client has to disconnect.
    Shutdown = 108,
}

impl From<ErrorKind> for NbdErrno {
    /// Everything that is neither a lack of space nor the client's own mistake is an I/O error: a client can do nothing
    /// else about it, and "shutdown" would make it leave.
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::Invalid => Self::Inval,
            _ => Self::Io,
        }
    }
}

impl From<&Error> for NbdErrno {
    fn from(error: &Error) -> Self {
        error.kind.into()
    }
}

impl fmt::Display for NbdErrno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Perm => "EPERM",
            Self::Io => "EIO",
            Self::NoMem => "ENOMEM",
            Self::Inval => "EINVAL",
            Self::NoSpace => "ENOSPC",
            Self::Overflow => "EOVERFLOW",
            Self::NotSup => "ENOTSUP",
            Self::Shutdown => "ESHUTDOWN",
        })
    }
}

/// The header of a request, compact or extended. In an extended one the length counts the payload if the flag
/// PAYLOAD_LEN is set, else the bytes of the export concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub magic: u32,
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub len: u64,
}

impl RequestHeader {
    #[must_use]
    pub fn compact(b: &[u8; REQUEST_BYTES]) -> Self {
        Self { len: u64::from(be32(b, 24)), ..Self::head(b) }
    }

    #[must_use]
    pub fn extended(b: &[u8; EXTENDED_REQUEST_BYTES]) -> Self {
        Self { len: be64(b, 24), ..Self::head(b) }
    }

    fn head(b: &[u8]) -> Self {
        Self {
            magic: be32(b, 0),
            flags: be16(b, 4),
            command: be16(b, 6),
            cookie: be64(b, 8),
            offset: be64(b, 16),
            len: 0,
        }
    }
}

/// The greeting every connection starts with.
#[must_use]
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut b = [0; GREETING_BYTES];
    put(&mut b, 0, &GREETING_MAGIC.to_be_bytes());
    put(&mut b, 8, &OPTION_MAGIC.to_be_bytes());
    put(&mut b, 16, &(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
    b
}

#[must_use]
pub fn option_reply(option: u32, kind: u32, len: u32) -> [u8; OPTION_REPLY_HEADER_BYTES] {
    let mut b = [0; OPTION_REPLY_HEADER_BYTES];
    put(&mut b, 0, &OPTION_REPLY_MAGIC.to_be_bytes());
    put(&mut b, 8, &option.to_be_bytes());
    put(&mut b, 12, &kind.to_be_bytes());
    put(&mut b, 16, &len.to_be_bytes());
    b
}

#[must_use]
pub fn simple_reply(error: u32, cookie: u64) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut b = [0; SIMPLE_REPLY_BYTES];
    put(&mut b, 0, &SIMPLE_REPLY_MAGIC.to_be_bytes());
    put(&mut b, 4, &error.to_be_bytes());
    put(&mut b, 8, &cookie.to_be_bytes());
    b
}

#[must_use]
pub fn structured_reply(flags: u16, kind: u16, cookie: u64, len: u32) -> [u8; STRUCTURED_REPLY_BYTES] {
    let mut b = [0; STRUCTURED_REPLY_BYTES];
    put(&mut b, 0, &STRUCTURED_REPLY_MAGIC.to_be_bytes());
    put(&mut b, 4, &flags.to_be_bytes());
    put(&mut b, 6, &kind.to_be_bytes());
    put(&mut b, 8, &cookie.to_be_bytes());
    put(&mut b, 16, &len.to_be_bytes());
    b
}

/// `offset` is that of the request, whatever the chunk speaks of.
#[must_use]
pub fn extended_reply(flags: u16, kind: u16, cookie: u64, offset: u64, len: u64) -> [u8; EXTENDED_REPLY_BYTES] {
    let mut b = [0; EXTENDED_REPLY_BYTES];
    put(&mut b, 0, &EXTENDED_REPLY_MAGIC.to_be_bytes());
    put(&mut b, 4, &flags.to_be_bytes());
    put(&mut b, 6, &kind.to_be_bytes());
    put(&mut b, 8, &cookie.to_be_bytes());
    put(&mut b, 16, &offset.to_be_bytes());
    put(&mut b, 24, &len.to_be_bytes());
    b
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The integer at a place that the caller knows to be there.
pub(crate) fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

pub(crate) fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

pub(crate) fn be64(b: &[u8], at: usize) -> u64 {
    u64::from(be32(b, at)) << 32 | u64::from(be32(b, at + 4))
}

/// Takes an option's body apart. Every step is checked against what is left; a step past the end is `None`.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.bytes(2).map(|b| be16(b, 0))
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.bytes(4).map(|b| be32(b, 0))
    }

    /// A string with its length before it.
    pub fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()?;
        let len = usize::try_from(len).ok()?;
        text(self.bytes(len)?)
    }
}

/// A string of the protocol: UTF-8 without NUL, at most [`crate::limits::STRING_BYTES_MAX`] bytes.
pub(crate) fn text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > crate::limits::STRING_BYTES_MAX || bytes.contains(&0) {
        return None;
    }
    core::str::from_utf8(bytes).ok()
}
