//! What passes between a session and its caller: steps, look-ups and their answers, requests and their tickets.
//!
//! Invariant: a [`Ticket`] is neither copied nor made by hand, and a reply consumes it, so no request is answered twice.

use bytes::Bytes;
use core::fmt;
use std::borrow::Cow;

/// What one call of [`crate::Session::receive`] found.
#[derive(Debug)]
pub enum Step {
    /// Something for the caller to do. Call again afterwards: there may be more in the buffer.
    Event(Event),
    /// Nothing more can be done for now.
    Wait(Wait),
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At least this many more bytes from the client; reserve room for them, so that a large payload arrives in one piece.
    Bytes(usize),
    /// The caller's answer to [`Event::Lookup`] or [`Event::List`]. Don't read from the client meanwhile.
    Answer,
    /// Room in the window: answer requests or send output, then call again. Don't read from the client meanwhile.
    Window,
    /// The end. Answer what is open, send the output, close; see [`crate::Session::is_finished`].
    Closed,
}

/// Something for the caller to do.
#[derive(Debug)]
pub enum Event {
    /// Which export is this? Answer with [`crate::Session::export`], now or later.
    Lookup {
        /// At most [`crate::limits::NAME_BYTES_MAX`] bytes; empty for the default export ([`crate::default_export`]).
        name: String,
        /// Why the client names it: it says what a refusal can tell, and whether to attach.
        purpose: Purpose,
    },
    /// Which exports are there? Answer with [`crate::Session::list`] or [`crate::Session::refuse_list`].
    List,
    /// Transmission begins, with the export of this (canonical) name: the moment to hand the connection to its worker.
    Go {
        /// Name as [`ExportInfo::name`] gave it, not as the client wrote it.
        name: String,
    },
    /// Answer with one of the `reply_` functions.
    Request {
        /// The right to the one answer.
        ticket: Ticket,
        /// The request.
        op: Op,
    },
    /// The client has said good-bye. Open requests are still to be answered.
    Disconnect,
}

/// Why a client names an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It asks about it, and may choose another.
    Info,
    /// It wants to use it (GO). A caller that attaches the volume does so for this one and the next.
    Go,
    /// It wants to use it, in the old way that can't be told why not.
    ExportName,
    /// It asks which meta contexts there are for it, or chooses them.
    MetaContext,
}

/// An export, as a client is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// The canonical name, also when the client asked for the default export.
    pub name: String,
    /// For people; may be empty.
    pub description: String,
    /// Size in bytes. What lies behind the last whole sector of 512 can't be addressed and is left out.
    pub size: u64,
    /// Changes are refused with [`crate::NbdErrno::Perm`] before the caller sees them.
    pub read_only: bool,
    /// Flush and FUA hold across connections (contract 5).
    pub multi_conn: bool,
    /// Earlier exports since which it can tell what changed: a client may choose one of them as the meta context
    /// `freebs:changed-since:NAME`. Only looked at when it asks for meta contexts.
    pub changed_since: Vec<String>,
}

/// Why an export, or the list of them, is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of refusal, which the client's program sees.
    pub reason: RefusalReason,
    /// For people; the client shows it. Cut at [`crate::limits::ERROR_TEXT_BYTES_MAX`].
    pub text: Cow<'static, str>,
}

/// Why an export is refused, in the words that the protocol has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// There is no such export, or it can't be had now.
    Unknown,
    /// It is there, but not for this client.
    Policy,
    /// Not without TLS.
    TlsRequired,
    /// The server is going down.
    Shutdown,
}

impl Refusal {
    /// A refusal with a text for people.
    pub fn new(reason: RefusalReason, text: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, text: text.into() }
    }
}

/// A request's operation. Ranges lie within the export and are not empty. They are multiples of 512 bytes only if the
/// client asked for block sizes: the others get any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// At most the payload limit. `df`: the reply will be one chunk, whatever pieces it is given in.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// The client wants one chunk (DF).
        df: bool,
    },
    /// `data` is a part of the read buffer, at most the payload limit.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes to write.
        data: Bytes,
        /// The answer is to come after the data are durable.
        fua: bool,
    },
    /// Up to the whole export, as the next three.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The answer is to come after the change is durable.
        fua: bool,
    },
    /// `no_hole`: later writes there must find space. `fast`: fail with [`crate::NbdErrno::NotSup`] rather than be slow as a
    /// write.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The answer is to come after the change is durable.
        fua: bool,
        /// The blocks count as written.
        no_hole: bool,
        /// Slowness is worse than failure for this client.
        fast: bool,
    },
    /// A hint.
    Cache {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// `one`: a single extent is wanted.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The client wants one extent (REQ_ONE).
        one: bool,
    },
    /// What was answered before is to be durable.
    Flush,
}

/// A request's right to one answer. It holds a place in the window: one that is dropped keeps its place for the rest
/// of the connection.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request has to be answered"]
pub struct Ticket {
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) kind: TicketKind,
}

/// What kind of reply the request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketKind {
    Read { df: bool },
    Write,
    BlockStatus { one: bool },
    Other,
}

impl Ticket {
    /// The client's number for the request; two in flight may have the same one.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// First byte of the range that the request is about; 0 for a flush.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the range that the request is about; 0 for a flush.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a flush.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes it counts in the window: data only.
    pub(crate) fn window_bytes(&self) -> usize {
        match self.kind {
            TicketKind::Read { .. } | TicketKind::Write => self.len as usize,
            TicketKind::BlockStatus { .. } | TicketKind::Other => 0,
        }
    }
}

/// A part of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPiece {
    /// These bytes.
    Data(Bytes),
    /// This many bytes of zero.
    Zero(u64),
}

impl ReadPiece {
    /// Bytes of the export that the piece stands for.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Zero(count) => *count,
        }
    }

    /// True if it stands for none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Data whose bytes lie in one piece.
impl From<Bytes> for ReadPiece {
    fn from(bytes: Bytes) -> Self {
        Self::Data(bytes)
    }
}

/// A run of bytes in the same state, for a block status reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, 1 and up.
    pub len: u64,
    /// Nothing is stored there.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
    /// It changed since the export of [`crate::Session::changed_since`]. Not looked at without one.
    pub changed: bool,
}

impl Extent {
    /// A run that is stored, and may hold anything. It may have changed, too.
    #[must_use]
    pub const fn data(len: u64) -> Self {
        Self { len, hole: false, zero: false, changed: true }
    }

    /// Never written, or trimmed; it may have been since.
    #[must_use]
    pub const fn hole(len: u64) -> Self {
        Self { len, hole: true, zero: true, changed: true }
    }
}

/// Why a connection is cut. Its output may still be sent, then it has to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionError {
    /// The client's flags have bits that this server did not offer: these are all its flags.
    ClientFlags(u32),
    /// Another word stands where an option must begin.
    OptionMagic,
    /// An option's body is too long to be skipped (`OPTION_SKIP_BYTES_MAX`), or for a name (`STRING_BYTES_MAX`).
    OptionTooLong {
        /// Number of the option.
        option: u32,
        /// Bytes of the body that it announces.
        len: u32,
    },
    /// More options than [`crate::Limits::options_max`], or [`crate::Limits::export_options_max`].
    TooManyOptions,
    /// More bytes than [`crate::Limits::handshake_bytes_max`], all options together.
    HandshakeTooLong,
    /// The client chose its export with EXPORT_NAME, which knows no answer for "no".
    ExportRefused,
    /// Another word, this one, stands where a request must begin.
    RequestMagic(u32),
    /// A refused request carries more than [`crate::Limits::payload_bytes_max`]: its payload is not skipped.
    PayloadTooLong {
        /// Bytes of payload that the request announces.
        len: u64,
    },
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientFlags(flags) => write!(f, "unknown client flags {flags:#x}"),
            Self::OptionMagic => f.write_str("an option does not begin with its magic number"),
            Self::OptionTooLong { option, len } => write!(f, "option {option} has {len} bytes"),
            Self::TooManyOptions => f.write_str("too many options in one handshake"),
            Self::HandshakeTooLong => f.write_str("too many bytes in one handshake"),
            Self::ExportRefused => f.write_str("the export asked for with EXPORT_NAME was refused"),
            Self::RequestMagic(magic) => write!(f, "a request begins with {magic:#x}"),
            Self::PayloadTooLong { len } => write!(f, "a request carries {len} bytes of payload"),
        }
    }
}

impl std::error::Error for SessionError {}
