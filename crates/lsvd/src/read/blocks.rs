//! Reading blocks: from the map to places, from places to verified bytes.
//!
//! Invariants: bytes leave only after their CRC matched (invariant 4). A block whose entry is older than a lost frame
//! is not served: that frame may have written it. What is being read is not written over.

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::maps::look::Which;
use crate::log::join::join_all;
use crate::log::segments::ReadGuard;
use crate::map::extents::{Extent, ExtentMap};
use crate::shard::Shard;
use crate::shard::chunks::Run;
use crate::{Piece, ReadOut};
use bytes::Bytes;
use freebs_format::{ExtentKind, block_crc};
use freebs_io::Device;
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Lba, Result, Sequence, ShardId, Version, limits};

/// Blocks of the map that one step of `block_status` looks at.
const STATUS_WINDOW: u32 = 4096;

/// Blocks one behind the other in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub segment: u32,
    pub at: u32,
    pub blocks: u32,
}

/// Spans of data blocks with their CRCs, and guards for their segments.
#[derive(Default)]
pub(crate) struct Plan {
    pub spans: Vec<Span>,
    pub crcs: Vec<u32>,
    /// Addresses, for messages: each data block's, as runs.
    pub lbas: Vec<(u32, u32)>,
    guards: Vec<(u32, ReadGuard)>,
}

impl Plan {
    /// Adds a span whose segment is guarded already.
    pub fn join(&mut self, s: Span) {
        match self.spans.last_mut() {
            Some(last) if last.segment == s.segment && last.at + last.blocks * BLOCK as u32 == s.at => {
                last.blocks += s.blocks;
            }
            _ => self.spans.push(s),
        }
    }

    fn span(&mut self, s: Span, core: &Core) {
        if !self.guards.iter().rev().any(|(g, _)| *g == s.segment) {
            self.guards.push((s.segment, core.segs.guard(s.segment)));
        }
        self.join(s);
    }

    /// Adds a data extent's piece.
    pub fn data(&mut self, core: &Core, shard: &Shard, lba: u32, e: &Extent, skip: u32, len: u32) -> Result<()> {
        let mut each = |r: Run| self.span(Span { segment: r.segment, at: r.at, blocks: r.count }, core);
        let all = core.places(shard, e.chunk, (e.offset + skip, len), &mut each);
        if !all {
            return Err(Error::corrupt(format!("shard {}, block {lba}: its chunk {} has no place", shard.id, e.chunk)));
        }
        self.crcs.extend_from_slice(&e.crcs.slice(e.len)[skip as usize..(skip + len) as usize]);
        self.lbas.push((lba, len));
        Ok(())
    }

    fn lba_of(&self, mut block: u32) -> u32 {
        for (lba, len) in &self.lbas {
            if block < *len {
                return lba + block;
            }
            block -= len;
        }
        0
    }
}

pub(crate) fn check_range(range: BlockRange) -> Result<()> {
    if range.end() > limits::SHARD_BLOCKS_MAX {
        return Err(Error::invalid("blocks outside any shard"));
    }
    Ok(())
}

/// Kinds of blocks in order; what was never written is a trim.
fn pieces(view: &ExtentMap, range: BlockRange, mut each: impl FnMut(ExtentKind, u32, Option<&Extent>, u32)) {
    let (mut at, end) = (range.start.0, range.end() as u32);
    for (a, e) in view.iter() {
        if a > at {
            each(ExtentKind::Trim, at, None, a - at);
        }
        each(e.kind, a, Some(e), e.len);
        at = a + e.len;
    }
    if at < end {
        each(ExtentKind::Trim, at, None, end - at);
    }
}

fn push_piece(out: &mut Vec<Piece>, kind: ExtentKind, blocks: u32, changed: bool) {
    match out.last_mut() {
        Some(p) if (p.kind, p.changed) == (kind, changed) => p.blocks += blocks,
        _ => out.push(Piece { kind, blocks, changed }),
    }
}

/// True if a frame that is lost, the last one of them being `hole`, may have written over an entry, or where there is none.
fn may_be_stale(hole: Option<Sequence>, e: Option<&Extent>) -> bool {
    hole.is_some_and(|h| e.is_none_or(|e| e.sequence <= h))
}

fn plan_read(core: &Core, s: &Shard, view: &ExtentMap, range: BlockRange) -> Result<(ReadOut, Plan)> {
    let (mut out, mut plan, mut wrong) = (ReadOut::default(), Plan::default(), None);
    let hole = core.last_hole(s);
    pieces(view, range, |kind, lba, e, len| {
        if may_be_stale(hole, e) {
            wrong.get_or_insert_with(|| {
                Error::corrupt(format!("shard {}, block {lba}: frames that may have written it are lost", s.id))
            });
        }
        push_piece(&mut out.pieces, kind, len, false);
        if let (ExtentKind::Data, Some(e)) = (kind, e)
            && let Err(e) = plan.data(core, s, lba, e, 0, len)
        {
            wrong.get_or_insert(e);
        }
    });
    match wrong {
        Some(e) => Err(e),
        None => Ok((out, plan)),
    }
}

impl<D: Device> Engine<D> {
    /// Reads blocks as the last durable frame left them. `Corrupt` names the first block that is damaged or may be
    /// out of date; `NotFound` if the shard is unknown. At most `limits::READ_BLOCKS_MAX` blocks.
    pub async fn read(&self, shard: ShardId, range: BlockRange) -> Result<ReadOut> {
        self.read_which(shard, range, Which::All).await
    }

    pub(crate) async fn read_which(&self, shard: ShardId, range: BlockRange, which: Which) -> Result<ReadOut> {
        check_range(range)?;
        if range.len > limits::READ_BLOCKS_MAX {
            return Err(Error::invalid("a read has at most 1,024 blocks"));
        }
        self.inner.core.borrow_mut().counters.reads += 1;
        let plan = |core: &Core, s: &Shard, view: &ExtentMap| plan_read(core, s, view, range);
        let bounds = (range.start.0, range.end() as u32);
        let (mut out, plan) = self.io().with_view(shard, bounds, which, plan).await?;
        out.data = self.fetch(shard, &plan).await?;
        out.crcs = plan.crcs;
        Ok(out)
    }

    /// Kinds of blocks without their data. A block that frames which are lost may have written counts as data: to read it
    /// fails, and nothing is taken for zeroes that may not be.
    pub async fn block_status(&self, shard: ShardId, range: BlockRange) -> Result<Vec<Piece>> {
        self.status_which(shard, range, Which::All, None).await
    }

    /// `since`: pieces say what changed behind this version, which has to be kept.
    pub(crate) async fn status_which(
        &self,
        shard: ShardId,
        range: BlockRange,
        which: Which,
        since: Option<Version>,
    ) -> Result<Vec<Piece>> {
        check_range(range)?;
        let (mut out, mut at) = (Vec::new(), range.start.0);
        while u64::from(at) < range.end() {
            let part = BlockRange { start: Lba(at), len: (range.end() as u32 - at).min(STATUS_WINDOW) };
            let bounds = (at, part.end() as u32);
            let kinds = |core: &Core, s: &Shard, view: &ExtentMap| {
                since.map_or(Ok(()), |v| s.check_version(v))?;
                let hole = core.last_hole(s);
                pieces(view, part, |kind, _, e, len| {
                    let is_stale = may_be_stale(hole, e);
                    let kind = if is_stale { ExtentKind::Data } else { kind };
                    let changed = since.is_some_and(|v| is_stale || e.is_some_and(|e| e.version > v));
                    push_piece(&mut out, kind, len, changed);
                });
                Ok(())
            };
            self.io().with_view(shard, bounds, which, kinds).await?;
            at += part.len;
        }
        Ok(out)
    }

    /// The bytes of a plan, one read per span, each block held against its CRC.
    pub(crate) async fn fetch(&self, shard: ShardId, plan: &Plan) -> Result<Vec<Bytes>> {
        if plan.spans.is_empty() {
            return Ok(Vec::new());
        }
        let reads = plan.spans.iter().map(|s| self.read_bytes(s.segment, s.at, s.blocks as usize * BLOCK));
        let read = join_all(reads.collect()).await;
        let mut out = Vec::with_capacity(read.len());
        let (mut block, mut bad) = (0usize, None);
        for (bytes, span) in read.into_iter().zip(&plan.spans) {
            match bytes {
                Ok(bytes) => {
                    let crcs = &plan.crcs[block..];
                    let wrong = bytes.chunks_exact(BLOCK).zip(crcs).position(|(b, c)| block_crc(b) != *c);
                    let at = |w: usize| (span.segment, span.at + (w * BLOCK) as u32);
                    bad = bad.or(wrong.map(|w| (w + block, at(w), "does not match its CRC".to_owned())));
                    out.push(bytes);
                }
                // Nothing is wrong with the blocks: the device is out of use until it is opened again.
                Err(e) if e.kind == ErrorKind::DeviceFailed => return Err(e),
                Err(e) => bad = bad.or(Some((block, (span.segment, span.at), format!("can't be read: {e}")))),
            }
            block += span.blocks as usize;
        }
        let mut core = self.inner.core.borrow_mut();
        core.counters.read_bytes += (block * BLOCK) as u64;
        if let Some((block, at, what)) = bad {
            if !core.is_given_up(at.0, at.1) {
                core.suspect(at.0);
            }
            let text = format!("shard {shard}, block {}: {what}", plan.lba_of(block as u32));
            core.crc_error(at, &text);
            return Err(Error::corrupt(text));
        }
        Ok(out)
    }

    /// Bytes of a segment, from a read that is widened to whole sectors. The caller holds a guard.
    pub(crate) async fn read_bytes(&self, segment: u32, at: u32, len: usize) -> Result<Bytes> {
        let geometry = self.inner.core.borrow().geometry;
        let sector = geometry.sector;
        let from = at as usize / sector * sector;
        let end = (at as usize + len).next_multiple_of(sector);
        let buf = self.inner.device.read(geometry.byte(segment, from as u32), end - from).await?.freeze();
        Ok(if buf.len() == len { buf } else { buf.slice(at as usize - from..at as usize - from + len) })
    }
}
