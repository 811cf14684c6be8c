//! Files that hold a disk: qcow2 read and written, and which format a file is of. Bytes in, bytes out: no file, thread or
//! clock.
//!
//! Invariants:
//! - No image makes the reader panic, or hold more than [`READER_BYTES_MAX`], whatever its bytes are. Numbers of a file are
//!   checked before they are added, multiplied or believed.
//! - The reader hands out each byte of the disk once, in order, or ends with an error: an image that can't be read whole is
//!   never taken for a shorter or emptier one.
//! - An image that the writer has finished is whole and consistent: every cluster is referred to once, and its refcount says
//!   so. Before that its first bytes are zeroes, so nobody takes it for an image.
//!
//! The folder: `qcow2/header` (what a file says of itself), `qcow2/read`, `qcow2/unpack` (compressed clusters),
//! `qcow2/write`; `runs` (the parts of some bytes that are not zero).

pub mod qcow2;
mod runs;

pub use runs::{Run, runs};

use freebs_types::{Error, Result};

/// Bytes that a reader holds at a time, at most: a table, a cluster packed and unpacked, the first table of all, and what
/// unpacking needs.
pub const READER_BYTES_MAX: usize = 64 << 20;

/// Bytes of an image, by place. Reads do not change it.
pub trait Source {
    /// Bytes of the image.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes from `at` on. The caller keeps within `size`; a source that has become shorter since
    /// is an error.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<()>;
}

impl Source for &[u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let from = usize::try_from(at).ok().and_then(|from| self.get(from..)).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(from.ok_or_else(|| Error::bug("a read beyond the image"))?);
        Ok(())
    }
}

/// A file that is being written, by place. Bytes that nobody wrote read as zeroes.
pub trait Sink {
    /// Writes all of `bytes` at `at`.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
}

impl Sink for Vec<u8> {
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let at = usize::try_from(at).map_err(|_| Error::bug("a write beyond all memory"))?;
        let end = at + bytes.len();
        if self.len() < end {
            self.resize(end, 0);
        }
        self[at..end].copy_from_slice(bytes);
        Ok(())
    }
}

/// A part of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte, as the disk counts.
    pub at: u64,
    /// The bytes there.
    pub body: Body,
}

/// The bytes of a piece; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// This many zeroes.
    Zero(u64),
    /// These bytes, which may be zeroes as well.
    Data(Vec<u8>),
}

impl Body {
    /// Bytes of the disk that it stands for.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Zero(n) => *n,
            Self::Data(b) => b.len() as u64,
        }
    }

    /// Never true of what a reader hands out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A format, as the first bytes of a file tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Nothing that is known: the bytes are those of the disk.
    Raw,
    /// Read and written here.
    Qcow2,
    /// Another one, by its name; it is not read here.
    Other(&'static str),
}

/// Bytes that [`sniff`] looks at; fewer if the file has no more.
pub const SNIFF_BYTES: usize = 512;

/// The format of a file that begins with these bytes.
#[must_use]
pub fn sniff(first: &[u8]) -> Format {
    const VDI: [u8; 4] = [0x7f, 0x10, 0xda, 0xbe];
    match first {
        _ if first.starts_with(&qcow2::MAGIC) && first.get(4..8) == Some(&[0, 0, 0, 1]) => {
            Format::Other("qcow (version 1)")
        }
        _ if first.starts_with(&qcow2::MAGIC) => Format::Qcow2,
        _ if first.starts_with(b"KDMV") || first.starts_with(b"# Disk DescriptorFile") => Format::Other("VMDK"),
        _ if first.starts_with(b"vhdxfile") => Format::Other("VHDX"),
        _ if first.starts_with(b"conectix") => Format::Other("VHD"),
        _ if first.get(64..68) == Some(&VDI) => Format::Other("VDI"),
        _ if first.starts_with(b"QED\0") => Format::Other("QED"),
        _ => Format::Raw,
    }
}
