//! `get_writes` and `put_writes` (FreEBS sections 4.2 and 4.3): what one disk has since a version, applied to another.
//!
//! As long as the log has the frames since that version, they are sent as they are. Else the map is sent: all entries
//! above the version, then the frames that were written meanwhile (rule E3).
//!
//! Invariants: only what is durable is sent. Before a disk takes an entry of the map, its description says how far the
//! content reaches with it, and nothing is served below that version: the newer entries may have come from a transfer
//! that broke off, or from another disk of the history. A version is reached by a map only with all its pieces.
//! Applying anything twice changes nothing.

use crate::blocks::Span;
use crate::disk::Disk;
use crate::inside::Inside;
use crate::open::{CONTENT, CreateOptions};
use crate::piece::{Kind, Piece, entries, join};
use crate::shared::Step;
use bytes::Bytes;
use freebs_format::{
    CarryBody, CarryEntry, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta, PinUpdate, UpdateDraft, UpdateKind,
};
use freebs_lsvd::{CARRY_ENTRIES_MAX, Record};
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DriverId, Error, ErrorKind, Hash32, Lba, RequestNumber, Result, Sequence,
    Version, ViewNumber,
};
use std::path::Path;

/// Bytes of data that a piece aims at; one frame may be larger.
const PIECE_DATA_BYTES: usize = 4 << 20;
/// Versions lie below this.
const VERSIONS_MAX: u64 = 1 << 62;

enum Phase {
    Frames(Sequence),
    Map { at: Lba, to: u64, to_sequence: Sequence },
    End,
}

/// The writes of a disk since a version: pieces of a stream, each at most `PIECE_BYTES_MAX` bytes, to be given to
/// `put_writes` of another disk in this order. The log keeps what is still to be sent while this lives.
pub struct Writes {
    disk: Disk,
    id: u64,
    since: u64,
    /// The version that the stream leads to, at least.
    until: u64,
    phase: Phase,
}

impl Drop for Writes {
    fn drop(&mut self) {
        if let Ok(inside) = self.disk.shared().lock().inside() {
            inside.keep(self.id, None);
        }
    }
}

impl Iterator for Writes {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let piece = match self.phase {
            Phase::End => return None,
            Phase::Frames(_) if self.since >= self.until => return None,
            Phase::Frames(from) => self.frames(from),
            Phase::Map { at, to, to_sequence } => self.map(at, to, to_sequence),
        };
        if piece.is_err() {
            self.phase = Phase::End;
        }
        Some(piece.map(|p| p.encode()))
    }
}

impl Writes {
    fn piece(&self, kind: Kind, to: u64, frames: Vec<Frame>) -> Result<Piece> {
        let mut g = self.disk.shared().lock();
        let d = &g.inside()?.description;
        Ok(Piece { kind, history: d.history, size: d.size, since: self.since, to, frames })
    }

    fn frames(&mut self, from: Sequence) -> Result<Piece> {
        let shared = self.disk.shared();
        let read = shared
            .run(shared.lock(), move |engine| async move { engine.frames(CONTENT, from, PIECE_DATA_BYTES).await })?;
        let frames = read.map_err(|e| match e.kind {
            ErrorKind::NotFound => Error::retry("the log gave up frames that were to be sent; begin again"),
            _ => e,
        })?;
        let next = frames.last().map_or(from, |f| f.head.seq().next());
        let to = frames.last().map_or(self.since, |f| f.header().last_version().0);
        let frames = frames.into_iter().filter(|f| f.head.kind() == FrameKind::Data).collect();
        let piece = self.piece(Kind::Frames, to, frames)?;
        (self.since, self.phase) = (to, Phase::Frames(next));
        if let Ok(inside) = self.disk.shared().lock().inside() {
            inside.keep(self.id, Some(next));
        }
        Ok(piece)
    }

    /// Entries above the version. Trims, too, whoever asks: a disk at version 0 may have blocks of a transfer that broke
    /// off, and a clean copy must know what was trimmed when it is asked for what came behind a version.
    fn map(&mut self, at: Lba, to: u64, to_sequence: Sequence) -> Result<Piece> {
        let (shared, since) = (self.disk.shared(), Version(self.since));
        let (body, data, next) = shared.run(shared.lock(), move |engine| async move {
            engine.entries_above(CONTENT, at, since, PIECE_DATA_BYTES).await
        })??;
        let settled = { shared.lock().inside()?.head.durable() };
        let frame = carry(&body, data, to);
        match next {
            Some(next) => {
                self.phase = Phase::Map { at: next, to, to_sequence };
                self.piece(Kind::Map { from: at.0, next: next.0 }, to, vec![frame])
            }
            None => {
                let piece = self.piece(Kind::MapEnd { from: at.0, settled }, to, vec![frame])?;
                (self.since, self.until) = (to, settled);
                self.phase = Phase::Frames(to_sequence.next());
                Ok(piece)
            }
        }
    }
}

/// A carry frame for the way. Places and sequences mean nothing to another disk, versions do.
fn carry(body: &CarryBody, data: Vec<Bytes>, version: u64) -> Frame {
    let meta = FrameMeta {
        cluster: ClusterId::default(),
        shard: CONTENT,
        view: ViewNumber(0),
        chunk: ChunkId::default(),
        chunk_offset: 0,
        sequence: Sequence(0),
        first_version: Version(version),
        committed: Sequence(0),
        wall: 0,
    };
    FrameBuilder::local(&meta, FrameKind::Carry, &body.encode(), data, &Hash32::default())
}

impl Disk {
    /// What was written since a version, made durable first. `Invalid` for a version that does not exist yet.
    pub fn get_writes(&self, since: Version) -> Result<Writes> {
        self.writes(since, false)
    }

    /// `by_map`: even if there are frames, so that nothing superseded is sent.
    fn writes(&self, since: Version, by_map: bool) -> Result<Writes> {
        let until = self.fsync()?.0;
        if since.0 > until {
            return Err(Error::invalid(format!("version {since} does not exist yet: the disk is at {until}")));
        }
        let shared = self.shared();
        let mut g = shared.lock();
        let inside = g.inside()?;
        if inside.description.filling_to > inside.head.version() {
            return Err(Error::retry("the disk is between two versions and has nothing to give before that is over"));
        }
        let (id, base) = (inside.ticket(), inside.description.base);
        let (to, to_sequence) = (inside.head.durable(), inside.head.durable_sequence());
        // Until it is known where to begin, nothing is given up.
        inside.keep(id, Some(Sequence(1)));
        let mut writes = Writes { disk: self.clone(), id, since: since.0, until: to, phase: Phase::End };
        if since.0 == to {
            shared.leave(g);
            return Ok(writes);
        }
        let mut begin = None;
        if !by_map && since.0 >= base {
            begin = shared.run(g, move |engine| async move { engine.frame_behind(CONTENT, since).await })??;
        } else {
            shared.leave(g);
        }
        let mut g = shared.lock();
        let inside = g.inside()?;
        writes.phase = match begin {
            Some(from) => {
                inside.keep(id, Some(from));
                Phase::Frames(from)
            }
            None => {
                inside.keep(id, Some(to_sequence.next()));
                Phase::Map { at: Lba(0), to, to_sequence }
            }
        };
        shared.leave(g);
        Ok(writes)
    }

    /// Applies pieces that `get_writes` of another disk of the same size gave, in their order, as often as one likes.
    /// Gives the version that the disk has of that history then, not one of a write that came behind it meanwhile;
    /// durable with the next `fsync`. `Invalid` if they do not fit what is here.
    ///
    /// An empty disk becomes a copy: one of the other's history. A copy that is written to otherwise gets a history
    /// of its own, and takes nothing from the old one any more.
    pub fn put_writes(&self, stream: &[u8]) -> Result<Version> {
        let _alone = self.putting();
        let mut rest = stream;
        let mut reached = None;
        while !rest.is_empty() {
            let piece = Piece::decode(&mut rest)?;
            let had = self.fits(&piece)?;
            reached = Some(match piece.kind {
                Kind::Frames => {
                    self.put_frames(&piece)?;
                    had.max(piece.to)
                }
                Kind::Map { from, next } => {
                    self.put_map(&piece, from, next)?;
                    had
                }
                Kind::MapEnd { from, settled } => {
                    self.put_map(&piece, from, u32::MAX)?;
                    self.end_map(&piece, settled)?;
                    had.max(piece.to)
                }
            });
        }
        reached.map_or_else(|| self.version(), |v| Ok(Version(v)))
    }

    /// Whether a piece belongs here; makes an empty disk a copy. Gives the version before it.
    fn fits(&self, piece: &Piece) -> Result<u64> {
        if piece.size != self.size() {
            let text = format!("the writes are of a disk of {} bytes, this one has {}", piece.size, self.size());
            return Err(Error::invalid(text));
        }
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        let (version, d) = (inside.head.version(), &mut inside.description);
        if d.history == piece.history {
            if piece.since > version {
                return Err(Error::invalid(format!(
                    "the writes begin behind version {}, this disk is at {version}: some are missing",
                    piece.since
                )));
            }
            return Ok(version);
        }
        if version > 0 || d.filling_to > 0 || piece.since > 0 {
            return Err(Error::invalid("the writes are of another history than this disk"));
        }
        (d.history, d.copy) = (piece.history, true);
        self.is_now_a_copy();
        self.describe(g)?;
        Ok(version)
    }

    fn put_frames(&self, piece: &Piece) -> Result<()> {
        let mut expected = piece.since + 1;
        for frame in &piece.frames {
            let data = join(&frame.data);
            for u in frame.head.updates() {
                // A frame may begin with updates that the asker has.
                if u.version.0 < expected && u.version.0 > piece.since || u.version.0 > expected {
                    return Err(Error::corrupt("versions of a piece are not in order"));
                }
                if u.version.0 == expected {
                    expected += 1;
                }
                let draft = again(&u, &data, self.size())?;
                self.put_update(draft, u.pin, u.version.0, piece)?;
            }
        }
        if expected != piece.to + 1 {
            return Err(Error::corrupt("a piece ends at another version than it says"));
        }
        Ok(())
    }

    /// Orders an update under the version that it has elsewhere; one that is here already is left out.
    fn put_update(&self, draft: UpdateDraft, pin: Option<PinUpdate>, version: u64, piece: &Piece) -> Result<()> {
        if draft.data_bytes() as u64 > self.update_bytes() {
            return Err(Error::invalid("an update is larger than a segment of this disk takes"));
        }
        let bytes = draft.data_bytes();
        let mut draft = Some(draft);
        self.shared().drive(self.shared().lock(), |inside| {
            let next = inside.head.version() + 1;
            let fit = inside.alive().and_then(|()| follows(inside, piece));
            if version < next || fit.is_err() {
                return Step::Done(fit);
            }
            let fit = match inside.check_space(bytes) {
                Ok(fit) => fit,
                Err(e) => return Step::Done(Err(e)),
            };
            if version > next {
                return Step::Done(Err(Error::invalid(format!("version {version} does not follow {}", next - 1))));
            }
            if !fit || !inside.has_room() || !inside.busy.is_empty() {
                inside.wanted = inside.wanted.max(inside.head.version());
                return Step::Change;
            }
            match (draft.take(), pin) {
                (Some(_), Some(pin)) => inside.order_pin(pin, false),
                (Some(d), None) => inside.order(d, false),
                (None, _) => version,
            };
            Step::Done(Ok(()))
        })
    }

    /// Takes the entries of the blocks from `from` up to `next`.
    fn put_map(&self, piece: &Piece, from: u32, next: u32) -> Result<()> {
        let mut parsed = Vec::new();
        for frame in &piece.frames {
            parsed.extend(entries(frame)?);
        }
        let blocks = self.size().div_ceil(BLOCK as u64);
        let outside = |e: &CarryEntry| e.range.end() > blocks || e.range.start.0 < from || e.range.end() > next.into();
        if parsed.iter().any(|(e, _)| outside(e) || e.version.0 >= VERSIONS_MAX) {
            return Err(Error::corrupt("carried entries outside the blocks that the piece names"));
        }
        if piece.to <= self.version()?.0 {
            return Ok(());
        }
        // What is here is durable before it is mixed with what is newer, and whoever opens the disk then is told.
        self.fsync()?;
        self.wait_for_room()?;
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        follows(inside, piece)?;
        let known = inside.filled.filter(|(to, _)| *to == piece.to).map_or(0, |(_, next)| next);
        if from > known {
            return Err(Error::invalid("pieces of the map are missing before this one; begin again"));
        }
        let highest = parsed.iter().map(|(e, _)| e.version.0).max().unwrap_or(0).max(piece.to);
        if inside.description.filling_to < highest {
            inside.description.filling_to = highest;
            self.describe(g)?;
        } else {
            drop(g);
        }
        for (body, data) in self.split(parsed) {
            self.carry(body, data)?;
        }
        self.shared().lock().inside()?.filled = Some((piece.to, next.max(known)));
        Ok(())
    }

    /// Entries as carries that fit a segment here.
    fn split(&self, parsed: Vec<(CarryEntry, Bytes)>) -> Vec<(CarryBody, Vec<Bytes>)> {
        let max = self.update_bytes() as usize / BLOCK;
        let mut out: Vec<(CarryBody, Vec<Bytes>)> = Vec::new();
        let mut blocks = max;
        for (mut e, mut data) in parsed {
            while e.range.len > 0 {
                if blocks == max || out.last().is_none_or(|(b, _)| b.entries.len() == CARRY_ENTRIES_MAX) {
                    out.push(Default::default());
                    blocks = 0;
                }
                let (body, parts) = out.last_mut().expect("just pushed");
                if e.kind != ExtentKind::Data {
                    body.entries.push(e.clone());
                    break;
                }
                let n = (e.range.len as usize).min(max - blocks);
                blocks += n;
                let rest = e.crcs.split_off(n);
                let range = BlockRange::new(e.range.start.0, n as u32);
                body.entries.push(CarryEntry { range, crcs: std::mem::replace(&mut e.crcs, rest), ..e.clone() });
                parts.push(data.split_to(n * BLOCK));
                e.range = BlockRange::new(e.range.start.0 + n as u32, e.range.len - n as u32);
            }
        }
        out
    }

    /// Waits while cleaning may make room; an error if there is none.
    fn wait_for_room(&self) -> Result<()> {
        self.shared().drive(self.shared().lock(), |inside| match inside.check_space(BLOCK) {
            Ok(true) => Step::Done(Ok(())),
            Ok(false) => Step::Change,
            Err(e) => Step::Done(Err(e)),
        })
    }

    /// Puts entries into the map, with places of this disk, and waits for them.
    fn carry(&self, mut body: CarryBody, data: Vec<Bytes>) -> Result<()> {
        self.wait_for_room()?;
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        let blocks: u32 = body.entries.iter().map(|e| e.crcs.len() as u32).sum();
        let (chunk, mut offset) = inside.head.place(blocks);
        let sequence = inside.head.sequence();
        for e in &mut body.entries {
            (e.sequence, e.chunk, e.offset) = (sequence, chunk, 0);
            if e.kind == ExtentKind::Data {
                e.offset = offset;
                offset += e.range.len;
            }
        }
        body.entries.iter().for_each(|e| inside.ahead.written(e.range));
        let ticket = inside.ticket();
        inside.engine.append(Record::Carry { shard: inside.shard(), body, data, ticket });
        self.shared().drive(g, |inside| inside.tickets_done.remove(&ticket).map_or(Step::Change, Step::Done))
    }

    /// The map is whole: the disk's version jumps, by a view of its own.
    fn end_map(&self, piece: &Piece, settled: u64) -> Result<()> {
        let to = piece.to;
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        if to <= inside.head.version() {
            return Ok(());
        }
        // An entry that came before may be newer than all that this map has.
        (inside.description.base, inside.description.filling_to) = (to, settled.max(inside.description.filling_to));
        inside.filled = None;
        self.describe(g)?;
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        let start = inside.engine.start();
        let frame = inside.head.open_view(start, to);
        let sequence = frame.head.seq();
        inside.engine.append(Record::Frame(frame));
        self.shared().drive(g, |inside: &mut Inside| match inside.head.durable_sequence() >= sequence {
            true => Step::Done(Ok(())),
            false => Step::Change,
        })
    }

    /// How this disk was made.
    fn shape(&self) -> Result<CreateOptions> {
        let mut g = self.shared().lock();
        let inside = g.inside()?;
        let sb = inside.engine.superblock();
        Ok(CreateOptions {
            log_bytes: Some(sb.size_limit.get()),
            segment_bytes: sb.segment_bytes.get(),
            buffered: !inside.device.is_direct(),
            map_bytes: None,
        })
    }

    /// Writes a new disk at a path with this one's content and version and nothing superseded (FreEBS section 4.3,
    /// `cleanup`). The disk may be written to meanwhile; what is durable when the last piece is read is in the copy.
    /// On an error the new file may be there, unfinished.
    pub fn cleanup_into(&self, path: impl AsRef<Path>) -> Result<Version> {
        let copy = Disk::create_with(path, self.size(), &self.shape()?)?;
        for piece in self.writes(Version(0), true)? {
            copy.put_writes(&piece?)?;
        }
        let version = copy.fsync()?;
        copy.close()?;
        Ok(version)
    }
}

/// `Invalid` if the disk has left the history of the piece: somebody wrote to it.
fn follows(inside: &Inside, piece: &Piece) -> Result<()> {
    if inside.description.history == piece.history {
        return Ok(());
    }
    Err(Error::invalid("the disk has been written to meanwhile, and has a history of its own now"))
}

/// The draft of an update that has been ordered elsewhere.
fn again(u: &freebs_format::Update<'_>, data: &Bytes, size: u64) -> Result<UpdateDraft> {
    if !u.kind.is_pin() && !matches!(u.kind, UpdateKind::Write | UpdateKind::Trim | UpdateKind::Zero) {
        return Err(Error::invalid("an update of a kind that this disk does not know"));
    }
    let mut draft = UpdateDraft {
        kind: u.kind,
        driver: DriverId(0),
        number: RequestNumber(0),
        lowest_open: RequestNumber(0),
        extents: Vec::new(),
        crcs: u.crcs.iter().map(|c| c.get()).collect(),
        data: Vec::new(),
    };
    for (e, first) in u.extents() {
        draft.extents.push(e);
        if e.kind == ExtentKind::Data {
            draft.data.push(data.slice(first as usize * BLOCK..(first + e.range.len) as usize * BLOCK));
        }
    }
    if !u.kind.is_pin() {
        draft.check(Span { offset: 0, len: size }.blocks().end())?;
    }
    Ok(draft)
}
