//! Reading what is told to who makes a copy: blocks that nobody has any more must not keep the others from being told.
//!
//! Invariants:
//! - A block that does not match its CRC never leaves: what stands in for it says that it is lost, and matches no CRC.
//! - It is told so only when everybody who may have it was asked (`Engine::unmended`). Until then who asks for the piece
//!   waits, and others are asked at once.

use crate::engine::Engine;
use crate::engine::moves::{Piece, part_of};
use crate::read::blocks::Plan;
use crate::shard::frames::FramePlace;
use bytes::{Bytes, BytesMut};

use freebs_format::{CarryBody, CarryEntry, FrameHead, block_crc, lost_block};
use freebs_io::Device;
use freebs_types::{BLOCK, Error, ErrorKind, Result, ShardId};

/// Blocks of an entry that lie one behind the other.
struct Part {
    entry: CarryEntry,
    segment: u32,
    at: u32,
}

impl<D: Device> Engine<D> {
    /// The data of a carry's entries, in order, with stand-ins for blocks that nobody has. `Corrupt` if others, too, can't be
    /// read: they are asked for.
    pub(crate) async fn fetch_for_copy(&self, shard: ShardId, body: &CarryBody, plan: &Plan) -> Result<Vec<Bytes>> {
        match self.fetch(shard, plan).await {
            Err(e) if e.kind == ErrorKind::Corrupt => {}
            end => return end,
        }
        let (mut out, mut missing) = (BytesMut::new(), false);
        for part in parts(body, plan) {
            let read = self.read_bytes(part.segment, part.at, part.entry.range.len as usize * BLOCK).await;
            let blocks = match read {
                Ok(bytes) => bytes,
                Err(e) if e.kind == ErrorKind::DeviceFailed => return Err(e),
                Err(_) => self.read_blocks(part.segment, part.at, part.entry.range.len).await,
            };
            missing |= !self.take_part(shard, part, &blocks, &mut out);
        }
        if missing {
            return Err(Error::corrupt(format!("shard {shard}: blocks are damaged, and others are asked for them")));
        }
        Ok(vec![out.freeze()])
    }

    /// Adds the blocks of a part. `false` if some are damaged that others may have.
    fn take_part(&self, shard: ShardId, part: Part, blocks: &Bytes, out: &mut BytesMut) -> bool {
        let mut core = self.inner.core.borrow_mut();
        let mut wanted = Vec::new();
        for ((block, crc), at) in blocks.chunks_exact(BLOCK).zip(&part.entry.crcs).zip((part.at..).step_by(BLOCK)) {
            if block_crc(block) == *crc {
                out.extend_from_slice(block);
                continue;
            }
            if !core.is_given_up(part.segment, at) {
                wanted.push(at);
            }
            out.extend_from_slice(&lost_block(*crc));
        }
        if wanted.is_empty() {
            return true;
        }
        let (segment, at) = (part.segment, part.at);
        // Blocks that a fork reads from a parent are damaged in the parent.
        let shard = core.owner_of(shard, part.entry.chunk, part.entry.offset, (segment, at));
        let seq = core.segs.get(segment).seq;
        let piece = Piece { shard, entry: part.entry, segment, seq, at, data: Bytes::new() };
        piece.runs_of(|at| wanted.contains(&at)).into_iter().for_each(|p| core.rot.want(p));
        false
    }
}

/// The entries of a plan by the places where they lie.
fn parts(body: &CarryBody, plan: &Plan) -> Vec<Part> {
    let mut out = Vec::new();
    let mut spans = plan.spans.iter().copied();
    let mut span = spans.next();
    for e in body.entries.iter().filter(|e| !e.crcs.is_empty()) {
        let mut skip = 0;
        while let Some(s) = span.as_mut().filter(|_| skip < e.range.len) {
            let len = s.blocks.min(e.range.len - skip);
            out.push(Part { entry: part_of(e, skip, len), segment: s.segment, at: s.at });
            (skip, s.at, s.blocks) = (skip + len, s.at + len * BLOCK as u32, s.blocks - len);
            if s.blocks == 0 {
                span = spans.next();
            }
        }
    }
    out
}

impl<D: Device> Engine<D> {
    /// The data of a frame with blocks that were put back for damaged ones, from where the chunk index has them now; `None`
    /// if some are nowhere. The caller holds a guard for the frame's own place.
    pub(crate) async fn put_back(&self, head: &FrameHead, own: &FramePlace) -> Option<Bytes> {
        let (h, mut out) = (head.header(), BytesMut::new());
        let blocks = self.read_blocks(own.segment, own.data_at, h.data_blocks()).await;
        for (i, (block, crc)) in (0..).zip(blocks.chunks_exact(BLOCK).zip(head.crcs())) {
            if block_crc(block) == crc.get() {
                out.extend_from_slice(block);
                continue;
            }
            let (mut place, offset) = (None, h.chunk_offset.get().saturating_add(i));
            let _guard = {
                let core = self.inner.core.borrow();
                let chunks = &core.shard(head.shard()).ok()?.chunks;
                chunks.lookup(h.chunk(), offset, 1, |run| place = Some((run.segment, run.at)));
                core.segs.guard(place?.0)
            };
            let (segment, at) = place?;
            let elsewhere = self.read_bytes(segment, at, BLOCK).await.ok()?;
            out.extend_from_slice(Some(elsewhere).filter(|b| block_crc(b) == crc.get())?.as_ref());
        }
        (out.len() == own.data_len as usize).then(|| out.freeze())
    }
}
