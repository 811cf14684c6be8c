//! An NBD server as a state machine: bytes in, bytes out. No socket, no task, no clock.
//!
//! A [`Session`] is the server's side of one connection. The caller reads into a buffer and calls [`Session::receive`]
//! until it has to wait; each [`Event`] is answered, at once or later and in any order; what is to be sent gathers in
//! [`Session::output`]. Data is not copied: a write's bytes are split off the read buffer, a read's bytes are handed to
//! the vectored write as they came from the store.
//!
//! Spoken: the fixed newstyle handshake (EXPORT_NAME, ABORT, LIST, INFO, GO, STRUCTURED_REPLY, EXTENDED_HEADERS,
//! LIST_META_CONTEXT, SET_META_CONTEXT with `base:allocation`; STARTTLS is refused), then READ, WRITE, DISC, FLUSH,
//! TRIM, CACHE, WRITE_ZEROES and BLOCK_STATUS, with simple or structured replies or extended headers.
//!
//! # What the caller sees to
//! - Time: a handshake ([`Session::in_handshake`]) that takes longer than some ten seconds should be cut, unless it asks
//!   about many exports ([`Session::exports_asked`]), and so should a client that takes no output for minutes. The number
//!   of connections is the caller's to limit, too.
//! - Backpressure: read from the client only while [`Session::wanted`] is not 0.
//! - After an error: send what output there is if the client takes it at once, and close.
//! - After [`Event::Disconnect`]: answer what is in flight, and close when [`Session::is_finished`].
//! - When the connection breaks: drop the session. Tickets that are still open are dropped as their requests end.
//!
//! # Example
//! A read-only export of zeroes, and a client that chooses it, reads a block and leaves.
//!
//! ```
//! use bytes::{Buf, BytesMut};
//! use freebs_nbd::{Event, ExportInfo, Limits, NbdErrno, Op, ReadPiece, Session, Step, Wait};
//!
//! let mut session = Session::new(Limits::default());
//! let mut input = BytesMut::new();
//! input.extend_from_slice(&[0, 0, 0, 3]); // client flags: fixed newstyle, no padding
//! input.extend_from_slice(b"IHAVEOPT\0\0\0\x01\0\0\0\x04void"); // EXPORT_NAME "void"
//! let mut request = [0; 28];
//! request[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes()); // READ of 4096 bytes at 0
//! request[24..].copy_from_slice(&4096u32.to_be_bytes());
//! input.extend_from_slice(&request);
//! request[7] = 2; // DISC
//! input.extend_from_slice(&request);
//!
//! loop {
//!     match session.receive(&mut input).expect("a client that keeps to the protocol") {
//!         Step::Event(Event::Lookup { name, .. }) => session.export(Ok(ExportInfo {
//!             name,
//!             description: String::new(),
//!             size: 1 << 30,
//!             read_only: true,
//!             multi_conn: true,
//!             changed_since: Vec::new(),
//!         })),
//!         Step::Event(Event::Request { ticket, op: Op::Read { len, .. } }) => {
//!             session.reply_read(ticket, &mut [ReadPiece::Zero(len.into())]);
//!         }
//!         Step::Event(Event::Request { ticket, .. }) => session.reply_error(ticket, NbdErrno::NotSup),
//!         Step::Event(_) => {}
//!         Step::Wait(Wait::Closed) => break,
//!         // Here a server waits for its socket: to send `output`, or to read `wanted` bytes or more.
//!         Step::Wait(wait) => panic!("{wait:?}"),
//!     }
//! }
//! // The greeting, size and flags, the header of the reply, the data.
//! assert_eq!(session.output().remaining(), 18 + 10 + 16 + 4096);
//! session.output().advance(18 + 10 + 16 + 4096);
//! assert!(session.is_finished());
//! ```

mod event;
mod handshake;
pub mod limits;
mod output;
mod session;
mod transmission;
mod wire;

pub use event::{
    Event, ExportInfo, Extent, Op, Purpose, ReadPiece, Refusal, RefusalReason, SessionError, Step, Ticket, Wait,
};
pub use limits::Limits;
pub use output::Output;
pub use session::Session;
pub use wire::NbdErrno;

/// The export that the empty name stands for: the only one, if there is just one.
///
/// ```
/// assert_eq!(freebs_nbd::default_export(["a"]), Some("a"));
/// assert_eq!(freebs_nbd::default_export(["a", "b"]), None);
/// ```
pub fn default_export<T>(exports: impl IntoIterator<Item = T>) -> Option<T> {
    let mut exports = exports.into_iter();
    let only = exports.next();
    if exports.next().is_some() { None } else { only }
}
