//! A named maximum for everything a client can make the server hold, count or wait for.
//!
//! Invariant: every length from the wire is held against one of these before anything is allocated, awaited or
//! subtracted from. The handshake happens before a client is known, so its limits are tight; a connection in
//! transmission may use its window and no more.

use freebs_types::{BLOCK, SECTOR, limits};

/// Bytes of any string of the protocol (export names, queries, descriptions). The protocol sets it.
pub const STRING_BYTES_MAX: usize = 4096;
/// Bytes of an export name that can exist here. A longer one, though valid, is answered "unknown" without a look-up.
/// It has room for a snapshot, `VOLUME@NAME`.
pub const NAME_BYTES_MAX: usize = 2 * limits::VOLUME_NAME_BYTES_MAX + 1;
/// Bytes of an option that are read whole: a name and a query of full length, and many info requests beside them.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;
/// Bytes of an option that are skipped (unknown, refused, too big to be read). Past it the connection ends: the longest
/// option any client sends is a few hundred bytes, and skipping 4 GiB would keep the connection busy for minutes.
pub const OPTION_SKIP_BYTES_MAX: u32 = 64 << 10;
/// Options in one handshake that are no question about an export. nbdinfo and qemu send fewer than 20.
pub const OPTIONS_MAX: u32 = 64;
/// Questions about exports in one handshake (INFO, LIST_META_CONTEXT, SET_META_CONTEXT): four for each volume that a
/// cluster can have. nbdinfo asks two about each. They are cheap: each is one look-up by name.
pub const EXPORT_OPTIONS_MAX: u32 = 4 * limits::VOLUMES_MAX as u32;
/// Bytes of a question about an export that are not counted: a full name, and more requests than there are kinds of.
pub const EXPORT_OPTION_FREE_BYTES: u32 = 512;
/// Bytes a client may send before transmission, without `EXPORT_OPTION_FREE_BYTES` of each question about an export.
/// The usual handshake is under 1 KiB.
pub const HANDSHAKE_BYTES_MAX: u64 = 256 << 10;
/// Unsent reply bytes past which no further option is looked at. A client has to await each reply anyway; one that does
/// not can't make the server pile up lists.
pub const HANDSHAKE_UNSENT_BYTES_MAX: usize = 64 << 10;
/// Queries in one meta context option. There is one context, so even a client that knows dozens of them fits.
pub const META_QUERIES_MAX: u32 = 64;
/// Names in the answer to LIST; clients give up at about as many.
pub const LIST_EXPORTS_MAX: usize = 10_000;
/// Bytes of the answer to LIST: full names with short descriptions for most of `LIST_EXPORTS_MAX`.
pub const LIST_BYTES_MAX: usize = 2 << 20;
/// Bytes of the text beside an error.
pub const ERROR_TEXT_BYTES_MAX: usize = 256;

/// The smallest request, and what offsets and lengths are multiples of, for clients that ask for it. The protocol has a
/// server take any bytes from those that do not.
pub const BLOCK_SIZE_MIN: u32 = SECTOR as u32;
/// The request size from which nothing has to be read to be written.
pub const BLOCK_SIZE_PREFERRED: u32 = BLOCK as u32;
/// Bytes of data in one request or reply. The protocol asks that this much never be taken for an attack, and clients
/// split what is longer.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Requests of a connection that are not answered yet.
pub const REQUESTS_MAX: usize = limits::DRIVER_REQUESTS_MAX;
/// Bytes in flight of a connection: data of unanswered reads and writes, and replies not sent yet. One largest request
/// is always let in when nothing else is in flight.
pub const WINDOW_BYTES_MAX: usize = limits::DRIVER_WINDOW_BYTES;
/// Extents in one block status reply (128 KiB compact, 256 KiB extended). A client asks again behind the last one.
pub const BLOCK_STATUS_EXTENTS_MAX: usize = 16 << 10;
/// Zeroes beside data in a read reply become a hole chunk from this length on; fewer are cheaper sent as data.
pub const HOLE_BYTES_MIN: u64 = BLOCK as u64;
/// Bytes asked for at once while something is skipped; the caller need not reserve room for what is thrown away.
pub const SKIP_STEP_BYTES: usize = 64 << 10;

/// Limits of one session. The default is the constants above; tests use smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`OPTIONS_MAX`].
    pub options_max: u32,
    /// See [`EXPORT_OPTIONS_MAX`].
    pub export_options_max: u32,
    /// See [`HANDSHAKE_BYTES_MAX`].
    pub handshake_bytes_max: u64,
    /// See [`PAYLOAD_BYTES_MAX`]; at least [`BLOCK_SIZE_PREFERRED`].
    pub payload_bytes_max: u32,
    /// See [`REQUESTS_MAX`]; at least 1.
    pub requests_max: usize,
    /// See [`WINDOW_BYTES_MAX`].
    pub window_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            options_max: OPTIONS_MAX,
            export_options_max: EXPORT_OPTIONS_MAX,
            handshake_bytes_max: HANDSHAKE_BYTES_MAX,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            requests_max: REQUESTS_MAX,
            window_bytes_max: WINDOW_BYTES_MAX,
        }
    }
}

const _: () = assert!(OPTION_BYTES_MAX <= OPTION_SKIP_BYTES_MAX);
const _: () = assert!(NAME_BYTES_MAX <= STRING_BYTES_MAX && STRING_BYTES_MAX < OPTION_BYTES_MAX as usize);
const _: () = assert!(BLOCK_STATUS_EXTENTS_MAX <= 1 << 20, "the protocol asks for no more in one chunk");
