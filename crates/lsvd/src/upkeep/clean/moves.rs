//! Moving live data: what of poor segments lives is read, held against its CRCs and appended again, in order of shard
//! and address, as local frames that give the blocks a new place. The map does not change, and nobody else notices.
//!
//! Invariants:
//! - What is live is asked when the frame is laid out, right before it is written, when all that was appended before
//!   has acted: a block is moved only if it is named and lies where it was read. So a shard that was deleted, a block
//!   that was overwritten, or one that a repair put elsewhere in the meantime stays as it is.
//! - Only what is committed is moved; a cut never meets a moved entry. So is what was learned of frames that this log does
//!   not have yet: it is of no frame here that could be cut, and was committed where it comes from. If it had to wait for
//!   the map's end, each piece would keep the whole segment that it lies in, and a device that is nearly full would never
//!   come to that end.
//! - Bytes are moved only if they match their CRC, or stand in for a block that was lost before it came here. A segment with
//!   a damaged live block stays.
//! - A place means the bytes that were read as long as the segment has the number that it had then. (A guard until
//!   the frame acts would do, too, but then writers could wait for the guard, and cleaning for writers.)

use crate::engine::Engine;
use crate::engine::append::Gather;
use crate::engine::cleaning::Need;
use crate::engine::core::Core;
use crate::engine::moves::{Move, Moves, Part, Piece, head_bytes, part_of};
use crate::engine::queue::{Job, Queued};
use crate::log::join::yield_now;
use crate::log::scan::{Window, lies_before, scan};
use crate::log::segments::ReadGuard;
use crate::shard::chunks;
use crate::{CARRY_ENTRIES_MAX, CleanMutant};
use bytes::Bytes;
use bytes::BytesMut;
use freebs_format::disk::{IndexEntry, SegmentFooter};
use freebs_format::{CarryBody, CarryEntry, ExtentKind, FrameHeader, FrameKind, block_crc, crc32c, is_lost_block};
use freebs_io::Device;
use freebs_types::{BLOCK, ErrorKind, Result};
use std::collections::VecDeque;

/// Bytes of one read.
const READ_BYTES: u32 = 512 << 10;
/// Dead bytes that are read along rather than making two reads.
const GAP_BYTES: u32 = 32 << 10;
/// Frames that are looked at before others get their turn.
const FRAMES_PER_STEP: usize = 64;
/// Blocks that are moved as one piece at most.
const PIECE_BLOCKS: u32 = 32;
/// Moves on their way to the log at once: one being written, one ready for the next append.
const OUTSTANDING_MAX: u32 = 2;

impl Core {
    /// The parts of a piece that live where it was read.
    pub fn live_parts(&self, p: &Piece) -> Vec<Part> {
        let mut out = Vec::new();
        let Some(shard) = self.shards.get(&p.shard) else { return out };
        let mutant = self.cleaning.options.mutant == Some(CleanMutant::MoveUncommitted);
        let may_be_cut = shard.may_cut(p.entry.sequence) && !mutant;
        if may_be_cut || self.segs.get(p.segment).seq != p.seq {
            return out;
        }
        shard.chunks.live_at(p.entry.chunk, p.run(), |first, n| out.push((first - p.entry.offset, n)));
        out
    }

    /// Takes what of the move at the front of the queue is still live, of one shard, into the append, as much as
    /// fits. `false` if nothing does.
    pub fn gather_move(&mut self, g: &mut Gather) -> bool {
        let Some(Queued::Job(Job::Move(mut m))) = self.queue.pop_front() else { unreachable!("the caller looked") };
        let mut body = CarryBody::default();
        let (mut data, mut blocks, mut births, mut crcs) = (Vec::new(), 0u32, 0u64, 0usize);
        let segment_blocks = self.geometry.segment_bytes / BLOCK as u64;
        let mut shard = None;
        let mut full = false;
        while let Some(p) = m.pieces.pop_front() {
            if *shard.get_or_insert(p.shard) != p.shard {
                if body.entries.is_empty() {
                    shard = Some(p.shard);
                } else {
                    m.pieces.push_front(p);
                    break;
                }
            }
            let parts = match self.cleaning.options.mutant {
                Some(CleanMutant::LiveBeforeRead) => vec![(0, p.entry.range.len)],
                _ => self.live_parts(&p),
            };
            let birth = self.segs.get(p.segment).birth(segment_blocks);
            let mut left = Vec::new();
            for (skip, len) in parts {
                let fits = |n: &u32| {
                    let entries = body.entries.len() + 1;
                    let (head, index) = head_bytes(entries, crcs + *n as usize);
                    let data = (blocks + n) as usize * BLOCK;
                    !full && entries <= CARRY_ENTRIES_MAX && self.fits(g, head, index, data)
                };
                let n = (1..=len).rev().find(fits).unwrap_or(0);
                if n > 0 {
                    let (entry, bytes) = p.part((skip, n));
                    append_entry(&mut body, entry);
                    data.push(bytes);
                    (blocks, crcs, births) = (blocks + n, crcs + n as usize, births + u64::from(n) * birth);
                }
                if n < len {
                    full = true;
                    left.push((skip + n, len - n));
                }
            }
            for part in left.into_iter().rev() {
                let (entry, data) = p.part(part);
                let at = p.at + part.0 * BLOCK as u32;
                m.pieces.push_front(Piece { entry, at, data, ..p });
            }
            if full {
                break;
            }
        }
        let (done, mends) = (m.pieces.is_empty(), m.mends);
        assert!(body.entries.len() <= CARRY_ENTRIES_MAX, "a carry has at most so many entries as fit a frame");
        assert_eq!(
            data.iter().map(Bytes::len).sum::<usize>(),
            blocks as usize * BLOCK,
            "each moved block has its bytes"
        );
        if done {
            g.moves_done.count(&m);
        } else {
            self.queue.push_front(Queued::Job(Job::Move(m)));
        }
        if let (Some(shard), false) = (shard, body.entries.is_empty()) {
            g.moved = (g.moved.0 + u64::from(blocks), g.moved.1 + births);
            let frame = self.carry_frame(shard, &body, data);
            g.push(frame, !mends);
            return true;
        }
        done
    }

    /// Moves that were asked for have acted, or there was nothing left to move.
    pub fn moves_done(&mut self, done: Moves) {
        if done.cleaning > 0 {
            assert!(done.cleaning <= self.cleaning.outstanding, "moves end once");
            self.cleaning.outstanding -= done.cleaning;
            self.cleaning.wake.notify_one();
        }
        self.mends_done(done.mending);
    }

    /// Blocks that a frame of a segment holds and that live there, without their data.
    pub fn pieces_of(&self, e: &IndexEntry, segment: u32, out: &mut Vec<Piece>) {
        let (h, shard, seq) = (e.head.header(), e.head.shard(), self.segs.get(segment).seq);
        if !chunks::fits(h.chunk_offset.get(), h.data_blocks()) && e.head.kind() == FrameKind::Data {
            return;
        }
        let mut push = |entry: CarryEntry, at: u32| {
            if !chunks::fits(entry.offset, entry.range.len) {
                return;
            }
            let piece = Piece { shard, entry, segment, seq, at, data: Bytes::new() };
            for (skip, len) in self.live_parts(&piece) {
                for from in (skip..skip + len).step_by(PIECE_BLOCKS as usize) {
                    let entry = part_of(&piece.entry, from, PIECE_BLOCKS.min(skip + len - from));
                    out.push(Piece { entry, at: at + from * BLOCK as u32, data: Bytes::new(), ..piece });
                }
            }
        };
        match e.head.kind() {
            FrameKind::Data => data_entries(&e.head, h, |entry, block| push(entry, e.data_at + block * BLOCK as u32)),
            FrameKind::Carry => {
                let Ok(body) = CarryBody::decode(e.head.body(), h.data_blocks()) else { return };
                let mut at = e.data_at;
                for entry in body.entries.into_iter().filter(|e| e.kind == ExtentKind::Data) {
                    let bytes = entry.range.len * BLOCK as u32;
                    push(entry, at);
                    at += bytes;
                }
            }
            _ => {}
        }
    }
}

/// The data entries of a data frame, each with the block of the frame's data where it begins.
fn data_entries(head: &freebs_format::FrameHead, h: &FrameHeader, mut each: impl FnMut(CarryEntry, u32)) {
    for u in head.updates() {
        for (x, first) in u.extents().filter(|(x, _)| x.kind == ExtentKind::Data) {
            let from = (first - u.first_block) as usize;
            let crcs = &u.crcs[from..from + x.range.len as usize];
            let entry = CarryEntry {
                kind: x.kind,
                range: x.range,
                version: u.version,
                sequence: head.seq(),
                chunk: h.chunk(),
                offset: h.chunk_offset.get() + first,
                crcs: crcs.iter().map(|c| c.get()).collect(),
            };
            each(entry, first);
        }
    }
}

/// Adds an entry, to the one before it if it goes on there.
fn append_entry(body: &mut CarryBody, e: CarryEntry) {
    if let Some(last) = body.entries.last_mut() {
        let end = last.range.end() == u64::from(e.range.start.0) && last.offset + last.range.len == e.offset;
        if end && (last.version, last.sequence, last.chunk) == (e.version, e.sequence, e.chunk) {
            last.range.len += e.range.len;
            last.crcs.extend(e.crcs);
            return;
        }
    }
    body.entries.push(e);
}

/// Why a segment can't be emptied now.
struct Kept;

impl<D: Device> Engine<D> {
    /// Cleans as long as the log is written.
    pub(crate) async fn clean_loop(&self) -> Result<()> {
        let wake = self.inner.core.borrow().cleaning.wake.clone();
        loop {
            let victims = {
                let mut core = self.inner.core.borrow_mut();
                let hoped = core.hope();
                let victims = core.choose();
                core.cleaning.busy = !victims.is_empty();
                if victims.is_empty() && hoped {
                    // Who waits for cleaning hears that there is nothing to wait for.
                    self.inner.ring();
                }
                victims
            };
            if victims.is_empty() {
                wake.notified().await;
                continue;
            }
            self.clean_pass(victims).await;
            self.inner.core.borrow_mut().cleaning.busy = false;
            self.inner.ring();
        }
    }

    /// Empties these segments, as far as that can be done.
    async fn clean_pass(&self, victims: Vec<u32>) {
        let (guards, seqs): (Vec<ReadGuard>, Vec<u64>) = {
            let mut core = self.inner.core.borrow_mut();
            victims.iter().for_each(|v| core.segs.get_mut(*v).cleaning = true);
            victims.iter().map(|v| (core.segs.guard(*v), core.segs.get(*v).seq)).unzip()
        };
        let (mut pieces, mut kept) = (Vec::new(), Vec::new());
        for v in &victims {
            let found = match self.inventory(*v).await {
                Ok(found) => self.read_pieces(*v, found).await,
                Err(kept) => Err(kept),
            };
            match found {
                Ok(found) => pieces.extend(found),
                Err(Kept) => {
                    let mut core = self.inner.core.borrow_mut();
                    let newest = core.next_seq;
                    core.segs.get_mut(*v).damaged = Some(newest);
                    kept.push(*v);
                }
            }
        }
        drop(guards);
        pieces.sort_by_key(|p| (p.shard, p.entry.range.start));
        let mut pieces = VecDeque::from(pieces);
        let mut rest = pieces.iter().map(|p| p.data.len() as u64).sum();
        while !pieces.is_empty() && self.move_some(&mut pieces, &mut rest).await {}
        let wake = self.inner.core.borrow().cleaning.wake.clone();
        while self.inner.core.borrow().cleaning.outstanding > 0 && self.inner.core.borrow().failed.is_none() {
            wake.notified().await;
        }
        let mut core = self.inner.core.borrow_mut();
        core.cleaning.burst = false;
        let newest = core.next_seq;
        for (v, seq) in victims.into_iter().zip(seqs) {
            let s = core.segs.get_mut(v);
            s.cleaning = false;
            // What was kept may have been mended in the meantime.
            if kept.contains(&v) {
                continue;
            }
            // Unless it was given up in the meantime.
            if s.live > 0 && s.seq == seq {
                s.stuck = Some((s.live, newest));
            } else {
                core.counters.cleaned_segments += 1;
            }
        }
    }

    /// Puts the next move into the queue when cleaning may append. `false` if the log has ended.
    async fn move_some(&self, pieces: &mut VecDeque<Piece>, rest: &mut u64) -> bool {
        let wake = self.inner.core.borrow().cleaning.wake.clone();
        loop {
            {
                let mut core = self.inner.core.borrow_mut();
                if core.failed.is_some() || core.is_leaving() {
                    return false;
                }
                let small = (core.geometry.segment_bytes / 256).clamp(32 << 10, 128 << 10);
                let gently = core.cleaning.saves || matches!(core.need(), Need::Short(_));
                let most = if gently && !core.cleaning.idle { small } else { small * 4 };
                let mut bytes = 0;
                let fits = |p: &&Piece| {
                    bytes += p.data.len() as u64;
                    bytes <= most || bytes == p.data.len() as u64
                };
                let n = pieces.iter().take_while(fits).count();
                let bytes: u64 = pieces.iter().take(n).map(|p| p.data.len() as u64).sum();
                if core.cleaning.outstanding < OUTSTANDING_MAX && core.spend(bytes, *rest) {
                    *rest -= bytes;
                    let m = Move { pieces: pieces.drain(..n).collect(), mends: false };
                    core.cleaning.outstanding += 1;
                    core.queue.push_front(Queued::Job(Job::Move(m)));
                    self.inner.ring();
                    return true;
                }
            }
            wake.notified().await;
        }
    }

    /// The live blocks of a segment, in order of their place, without data.
    async fn inventory(&self, id: u32) -> Result<Vec<Piece>, Kept> {
        let (geometry, seq) = {
            let core = self.inner.core.borrow();
            (core.geometry, core.segs.get(id).seq)
        };
        let mut w = Window::new(&self.inner.device, geometry, id);
        let mut out = Vec::new();
        let footer = footer(&mut w, seq).await;
        let index_at = footer.as_ref().map_or(0, |f| f.index_at.get());
        let index = match &footer {
            Some(f) => {
                let bytes = w.get(f.index_at.get() as usize, f.index_len.get() as usize).await;
                bytes.filter(|b| crc32c(b) == f.index_crc.get())
            }
            None => None,
        };
        if let Some(mut index) = index {
            self.count_read(index.len() as u64);
            while !index.is_empty() {
                for _ in 0..FRAMES_PER_STEP {
                    if index.is_empty() {
                        break;
                    }
                    let Ok(e) = IndexEntry::decode_next(&mut index) else { return Err(Kept) };
                    if !lies_before(&e, index_at) {
                        return Err(Kept);
                    }
                    self.inner.core.borrow().pieces_of(&e, id, &mut out);
                }
                yield_now().await;
            }
        } else {
            let limit = footer.map_or(geometry.segment_bytes as u32, |f| f.index_at.get());
            let found = scan(&mut w, seq, limit).await;
            self.count_read(u64::from(found.end));
            for e in found.appends.iter().flat_map(|a| &a.entries) {
                self.inner.core.borrow().pieces_of(e, id, &mut out);
            }
        }
        out.sort_by_key(|p| p.at);
        Ok(out)
    }

    fn count_read(&self, bytes: u64) {
        self.inner.core.borrow_mut().counters.clean_read_bytes += bytes;
    }

    /// Reads the data of pieces that are in order of their place.
    async fn read_pieces(&self, id: u32, mut pieces: Vec<Piece>) -> Result<Vec<Piece>, Kept> {
        let mut from = 0;
        while from < pieces.len() {
            let start = pieces[from].at;
            let (mut to, mut end) = (from, start);
            while let Some(p) = pieces.get(to) {
                let next = p.at + p.entry.range.len * BLOCK as u32;
                if to > from && (p.at > end + GAP_BYTES || next - start > READ_BYTES) {
                    break;
                }
                (to, end) = (to + 1, end.max(next));
            }
            let read = self.read_bytes(id, start, (end - start) as usize).await;
            self.count_read(u64::from(end - start));
            for p in &mut pieces[from..to] {
                let (at, len) = ((p.at - start) as usize, p.entry.range.len as usize * BLOCK);
                p.data = match &read {
                    Ok(bytes) => Bytes::copy_from_slice(&bytes[at..at + len]),
                    Err(e) if e.kind == ErrorKind::DeviceFailed => return Err(Kept),
                    Err(_) => self.read_blocks(id, p.at, p.entry.range.len).await,
                };
                let all = p.data.chunks_exact(BLOCK).zip(&p.entry.crcs).zip(0..);
                let is_bad = |b: &[u8], crc: u32| block_crc(b) != crc && !is_lost_block(b, crc);
                let bad: Vec<u32> = all.filter(|((b, crc), _)| is_bad(b, **crc)).map(|(_, i)| i).collect();
                let mut core = self.inner.core.borrow_mut();
                let trust = core.cleaning.options.mutant == Some(CleanMutant::TrustBytes);
                if !bad.is_empty() && (!trust || read.is_err()) {
                    // What has died in the meantime harms nobody, and is not moved.
                    let live = core.live_parts(p);
                    let lives = |b: &&u32| live.iter().any(|(skip, n)| (*skip..skip + n).contains(*b));
                    if let Some(block) = bad.iter().find(lives) {
                        let lba = p.entry.range.start.0 + block;
                        let place = format!("segment {id}, byte {}", p.at + block * BLOCK as u32);
                        let text = format!("shard {}, block {lba}: can't be moved, it is damaged ({place})", p.shard);
                        core.crc_error((id, p.at + block * BLOCK as u32), &text);
                        core.rot.suspect_again(id);
                        return Err(Kept);
                    }
                }
            }
            from = to;
            yield_now().await;
        }
        Ok(pieces)
    }

    /// Blocks one by one, because they can't be read together: what is lost may be something else that lay there. Zeroes
    /// for those that can't be read.
    pub(crate) async fn read_blocks(&self, id: u32, at: u32, blocks: u32) -> Bytes {
        let mut out = BytesMut::with_capacity(blocks as usize * BLOCK);
        for i in 0..blocks {
            match self.read_bytes(id, at + i * BLOCK as u32, BLOCK).await {
                Ok(bytes) => out.extend_from_slice(&bytes),
                Err(_) => out.resize(out.len() + BLOCK, 0),
            }
        }
        out.freeze()
    }
}

/// The footer of a segment, if it is that of its present use.
pub(crate) async fn footer<D: Device>(w: &mut Window<'_, D>, seq: u64) -> Option<SegmentFooter> {
    let bytes = w.segment_bytes();
    let tail = bytes as usize - size_of::<SegmentFooter>();
    let found = w.get(tail, size_of::<SegmentFooter>()).await?;
    let footer = SegmentFooter::decode(&found, bytes).ok()?;
    let ours = footer.device == w.device_id() && footer.segment.get() == w.segment;
    (ours && footer.segment_seq.get() == seq).then_some(footer)
}
