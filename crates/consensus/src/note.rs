//! What a node notes of its control store outside of it, so that a blank or older one is told (rule V8).
//!
//! Each opening of the store has a number. It is noted as *begun* before the store is touched, and as *used* after the
//! store has it durably and before a seat works with it. So the store's own number lies between the two; one that has
//! less is an old image, and one that is blank while an opening was used is a loss. So the note decides, too, with which
//! store a start goes on whose own can't be used: it never votes as the seat that it was.

use freebs_format::crc32c;
use freebs_types::{ClusterId, Error, ErrorKind, NodeId, Result, StartNumber};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a note.
pub const NOTE_MAGIC: [u8; 4] = *b"FBCN";
/// Version of the note.
pub const NOTE_VERSION: u16 = 1;
/// Bytes of the note.
pub const NOTE_BYTES: usize = 64;

/// The way on of a start that can't open the store on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instead<S> {
    /// It founds the cluster with this, unless another node knows a state of it: then it is [`Instead::New`].
    Found(S),
    /// A new seat: a blank store, as a learner.
    New,
    /// The same, and what is on the disk is put aside.
    PutAside,
    /// The state is gone, and no other node has it: the node stops.
    Lost,
    /// It is not the store that is wrong, so a later start may be able to open it: the node stops.
    Fails,
}

/// The note, a file of its own that is replaced whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SeatNote {
    /// Always `FBCN`.
    pub magic: [u8; 4],
    /// Always 1 (`NOTE_VERSION`).
    pub version: U16,
    /// Bytes of this struct.
    pub length: U16,
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// The node whose seat it is about.
    pub node: U64,
    /// The last opening that was begun.
    pub begun: U64,
    /// The last opening that a seat worked in; 0 if none did.
    pub used: U64,
    /// Zero.
    pub reserved: [u8; 12],
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<SeatNote>() == NOTE_BYTES);

impl SeatNote {
    /// Of a node that never had a store.
    #[must_use]
    pub fn new(cluster: ClusterId, node: NodeId) -> Self {
        Self {
            magic: NOTE_MAGIC,
            version: NOTE_VERSION.into(),
            length: (NOTE_BYTES as u16).into(),
            cluster: cluster.0,
            node: node.0.into(),
            begun: 0.into(),
            used: 0.into(),
            reserved: [0; 12],
            crc: 0.into(),
        }
    }

    /// The note with the next opening begun.
    #[must_use]
    pub fn begin(mut self) -> Self {
        self.begun = (self.begun.get() + 1).into();
        self
    }

    /// The note once the store has the opening that was begun.
    #[must_use]
    pub fn in_use(mut self) -> Self {
        self.used = self.begun;
        self
    }

    /// `begun`, as a start number.
    #[must_use]
    pub fn begun(&self) -> StartNumber {
        StartNumber(self.begun.get())
    }

    /// `used`, as a start number.
    #[must_use]
    pub fn used(&self) -> StartNumber {
        StartNumber(self.used.get())
    }

    /// The way on when the store could not be opened, for that reason, once the opening was begun. `has_others`: other
    /// nodes are in the cluster. `founds`: a blank node's state to found the cluster with, if it is the one to do that.
    pub fn instead<S>(
        &self,
        why: ErrorKind,
        has_others: bool,
        founds: impl FnOnce() -> Result<Option<S>>,
    ) -> Result<Instead<S>> {
        let is_blank = why == ErrorKind::NotFound;
        if is_blank && self.used().0 == 0 {
            return Ok(match founds()? {
                Some(state) => Instead::Found(state),
                None if has_others => Instead::New,
                None => Instead::Lost,
            });
        }
        Ok(match (is_blank || why == ErrorKind::Corrupt, has_others) {
            (true, true) => Instead::PutAside,
            (true, false) => Instead::Lost,
            (false, _) => Instead::Fails,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(mut self) -> [u8; NOTE_BYTES] {
        self.crc = crc32c(&self.as_bytes()[..NOTE_BYTES - 4]).into();
        let mut bytes = [0; NOTE_BYTES];
        bytes.copy_from_slice(self.as_bytes());
        bytes
    }

    /// The note in `bytes`, of this node of this cluster.
    pub fn decode(bytes: &[u8], cluster: ClusterId, node: NodeId) -> Result<Self> {
        let bad = |what: &str| Error::corrupt(format!("the note of the control store {what}"));
        let note = Self::read_from_bytes(bytes).map_err(|_| bad("has a wrong length"))?;
        if note.magic != NOTE_MAGIC || note.crc.get() != crc32c(&bytes[..NOTE_BYTES - 4]) {
            return Err(bad("is damaged"));
        }
        if note.version.get() != NOTE_VERSION || note.length.get() as usize != NOTE_BYTES {
            return Err(Error::invalid("the note of the control store has a newer format; use a newer freebs"));
        }
        if note.cluster != cluster.0 || note.node.get() != node.0 {
            return Err(bad("belongs to another node or cluster"));
        }
        // Numbers that no node reaches; above them the next one could not be given.
        if note.used.get() > note.begun.get() || note.begun.get() >= u64::from(u32::MAX) {
            return Err(bad("has impossible numbers"));
        }
        Ok(note)
    }
}
