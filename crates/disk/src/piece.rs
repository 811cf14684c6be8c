//! Writes on their way from one disk to another: pieces of a stream, each whole in itself.
//!
//! A piece is a header and frames of the log format: data frames with updates in order of version, or carry frames
//! with entries of the map. Nothing of a piece is believed before its checksums matched, and nothing is allocated
//! that the bytes at hand do not pay for.

use bytes::{Bytes, BytesMut};
use freebs_format::{CarryBody, Frame, FrameHead, FrameKind, crc32c};
use freebs_types::{BLOCK, Error, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"FBSWRITE";
const FORMAT: u16 = 1;
const FRAMES: u8 = 1;
const MAP: u8 = 2;
const MAP_END: u8 = 3;
/// Bytes of a piece's header.
pub const PIECE_HEADER_BYTES: usize = 128;
/// Bytes of a piece, header included.
pub const PIECE_BYTES_MAX: usize = 16 << 20;
/// Frames in a piece.
const FRAMES_MAX: u32 = 1024;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U16,
    length: U16,
    kind: u8,
    reserved0: [u8; 3],
    history: [u8; 16],
    size: U64,
    since: U64,
    to: U64,
    settled: U64,
    body_len: U32,
    frames: U32,
    body_crc: U32,
    from: U32,
    next: U32,
    reserved: [u8; 40],
    crc: U32,
}
const _: () = assert!(size_of::<Header>() == PIECE_HEADER_BYTES);

/// What the frames of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Updates behind `since`, up to `to`.
    Frames,
    /// A part of the map: all entries behind `since` of the blocks from `from` up to `next`; more follow.
    Map { from: u32, next: u32 },
    /// The last part: with it the content is that of `to`, but for blocks that were written up to `settled`.
    MapEnd { from: u32, settled: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub kind: Kind,
    pub history: [u8; 16],
    /// Bytes of the disk that it comes from.
    pub size: u64,
    pub since: u64,
    pub to: u64,
    pub frames: Vec<Frame>,
}

fn corrupt(what: &'static str) -> Error {
    Error::corrupt(what).at("writes of another disk")
}

impl Piece {
    pub fn encode(&self) -> Vec<u8> {
        let body: usize = self.frames.iter().map(|f| f.head.bytes().len() + f.data_bytes()).sum();
        let mut out = Vec::with_capacity(PIECE_HEADER_BYTES + body);
        out.resize(PIECE_HEADER_BYTES, 0);
        for f in &self.frames {
            out.extend_from_slice(f.head.bytes());
            f.data.iter().for_each(|d| out.extend_from_slice(d));
        }
        assert!(out.len() <= PIECE_BYTES_MAX, "pieces are made below their maximum");
        let (kind, from, next, settled) = match self.kind {
            Kind::Frames => (FRAMES, 0, 0, 0),
            Kind::Map { from, next } => (MAP, from, next, 0),
            Kind::MapEnd { from, settled } => (MAP_END, from, 0, settled),
        };
        let mut h = Header {
            magic: MAGIC,
            version: FORMAT.into(),
            length: (PIECE_HEADER_BYTES as u16).into(),
            kind,
            reserved0: [0; 3],
            history: self.history,
            size: self.size.into(),
            since: self.since.into(),
            to: self.to.into(),
            settled: settled.into(),
            body_len: (body as u32).into(),
            frames: (self.frames.len() as u32).into(),
            body_crc: crc32c(&out[PIECE_HEADER_BYTES..]).into(),
            from: from.into(),
            next: next.into(),
            reserved: [0; 40],
            crc: 0.into(),
        };
        h.crc = crc32c(&h.as_bytes()[..PIECE_HEADER_BYTES - 4]).into();
        out[..PIECE_HEADER_BYTES].copy_from_slice(h.as_bytes());
        out
    }

    /// Takes one piece off the front, fully checked.
    pub fn decode(bytes: &mut &[u8]) -> Result<Self> {
        let (h, rest) = Header::read_from_prefix(bytes).map_err(|_| corrupt("the piece is cut short"))?;
        if h.magic != MAGIC {
            return Err(Error::invalid("these bytes are not writes of a disk"));
        }
        if h.crc.get() != crc32c(&h.as_bytes()[..PIECE_HEADER_BYTES - 4]) {
            return Err(corrupt("the header does not match its checksum"));
        }
        if h.version.get() != FORMAT || h.length.get() as usize != PIECE_HEADER_BYTES {
            return Err(Error::invalid("writes of a newer format; use a newer freebs"));
        }
        let len = h.body_len.get() as usize;
        let number_max = 1 << 62;
        if len > PIECE_BYTES_MAX - PIECE_HEADER_BYTES
            || h.frames.get() > FRAMES_MAX
            || [h.since, h.to, h.settled].iter().any(|v| v.get() >= number_max)
            || h.since.get() > h.to.get()
        {
            return Err(corrupt("a header with impossible numbers"));
        }
        let Some((body, rest)) = rest.split_at_checked(len) else { return Err(corrupt("the piece is cut short")) };
        if crc32c(body) != h.body_crc.get() {
            return Err(corrupt("the body does not match its checksum"));
        }
        let (from, next) = (h.from.get(), h.next.get());
        let kind = match h.kind {
            FRAMES => Kind::Frames,
            MAP if from <= next => Kind::Map { from, next },
            MAP_END if h.settled.get() >= h.to.get() => Kind::MapEnd { from, settled: h.settled.get() },
            _ => return Err(corrupt("an unknown kind of piece")),
        };
        let wanted = if kind == Kind::Frames { FrameKind::Data } else { FrameKind::Carry };
        let mut body = Bytes::copy_from_slice(body);
        let mut frames = Vec::new();
        for _ in 0..h.frames.get() {
            frames.push(frame(&mut body, wanted)?);
        }
        if !body.is_empty() {
            return Err(corrupt("the piece is longer than its frames"));
        }
        *bytes = rest;
        let (since, to) = (h.since.get(), h.to.get());
        Ok(Self { kind, history: h.history, size: h.size.get(), since, to, frames })
    }
}

fn frame(body: &mut Bytes, wanted: FrameKind) -> Result<Frame> {
    let head = FrameHead::parse(body)?;
    let len = head.header().data_len.get() as usize;
    if head.kind() != wanted {
        return Err(corrupt("a frame of another kind than the piece says"));
    }
    if body.len() < len {
        return Err(corrupt("frame data are cut short"));
    }
    let data = body.split_to(len);
    let frame = Frame::new(head, if len == 0 { vec![] } else { vec![data] })?;
    frame.verify_digest()?;
    frame.verify_data()?;
    Ok(frame)
}

/// The version behind which writes begin, as the first piece says.
pub fn first_version(stream: &[u8]) -> Result<freebs_types::Version> {
    match Header::read_from_prefix(stream) {
        Ok((h, _)) if h.magic == MAGIC => Ok(freebs_types::Version(h.since.get())),
        _ => Err(Error::invalid("these bytes are not writes of a disk")),
    }
}

/// Entries of a carry frame with the data of each, checked against their CRCs.
pub(crate) fn entries(frame: &Frame) -> Result<Vec<(freebs_format::CarryEntry, Bytes)>> {
    let body = CarryBody::decode(frame.head.body(), frame.header().data_blocks())?;
    let mut data = join(&frame.data);
    let mut out = Vec::with_capacity(body.entries.len());
    for e in body.entries {
        let mine = data.split_to(e.crcs.len() * BLOCK);
        if mine.chunks_exact(BLOCK).zip(&e.crcs).any(|(b, c)| freebs_format::block_crc(b) != *c) {
            return Err(corrupt("a carried block does not match its CRC"));
        }
        out.push((e, mine));
    }
    Ok(out)
}

/// One run of bytes; a copy only if there are several.
pub(crate) fn join(parts: &[Bytes]) -> Bytes {
    match parts {
        [] => Bytes::new(),
        [one] => one.clone(),
        many => {
            let mut all = BytesMut::with_capacity(many.iter().map(Bytes::len).sum());
            many.iter().for_each(|p| all.extend_from_slice(p));
            all.freeze()
        }
    }
}
