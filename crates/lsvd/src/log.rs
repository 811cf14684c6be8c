//! Reading the log back: frames by sequence (SYNC), names of frames, map entries (SYNC by map), digests.
//!
//! Invariants: a frame is given out only if it is the one that the index names and all its data match their CRCs;
//! map entries only if no cut can take them back.

use crate::core::Core;
use crate::engine::Engine;
use crate::frames::FramePlace;
use crate::join::join_all;
use crate::map::{Extent, ExtentMap};
use crate::read::Plan;
use crate::runs::look::Which;
use crate::segments::ReadGuard;
use crate::shard::Shard;
use crate::{CARRY_ENTRIES_MAX, Digest, FrameName, RuleMutant};
use bytes::Bytes;
use freebs_format::{CarryBody, CarryEntry, ExtentKind, Frame, FrameHead};
use freebs_io::Device;
use freebs_types::{BLOCK, BlockRange, Error, Hash32, Lba, Result, Sequence, ShardId, Version, limits};

/// Frames that one call reads at most.
const FRAMES_MAX: usize = 1024;
/// Heads that lie within so many bytes are read at once.
const HEADS_WINDOW: u32 = 256 << 10;
/// Blocks of the map that one step of `entries` looks at.
const ENTRIES_WINDOW: u32 = 4096;
/// Blocks of the map that one step of a digest looks at, and reads.
const DIGEST_WINDOW: u32 = 256;

impl<D: Device> Engine<D> {
    /// One frame, from the log.
    pub async fn frame(&self, shard: ShardId, sequence: Sequence) -> Result<Frame> {
        let mut frames = self.frames(shard, sequence, 0).await?;
        frames.pop().ok_or_else(|| Error::bug("frames gives at least one"))
    }

    /// Consecutive frames from `from` on: at least one, then as many as fit `max_bytes`; fewer where one is missing
    /// or damaged. `NotFound` if `from` itself is not there.
    pub async fn frames(&self, shard: ShardId, from: Sequence, max_bytes: usize) -> Result<Vec<Frame>> {
        let (places, guards) = {
            let core = self.inner.core.borrow();
            let s = core.shard(shard)?;
            let mut bytes = 0;
            let fits = |p: &(Sequence, FramePlace)| {
                let before = bytes;
                bytes += (p.1.head_len + p.1.data_len) as usize;
                before == 0 || bytes <= max_bytes
            };
            let places: Vec<_> = s.frames.from(from).take(FRAMES_MAX).take_while(fits).collect();
            if places.is_empty() {
                return Err(Error::not_found(format!("shard {shard}: frame {from} is not in the log")));
            }
            let guards = guards(&core, places.iter().map(|p| p.1.segment));
            (places, guards)
        };
        let heads = self.heads(shard, &places).await;
        let whole = heads.iter().take_while(|h| h.is_ok()).count();
        let mut error = None;
        let mut good: Vec<FrameHead> = Vec::with_capacity(whole);
        for (h, (_, p)) in heads.into_iter().zip(&places) {
            match h {
                Ok(h) => good.push(h),
                Err(e) => {
                    error = Some((e, (p.segment, p.head_at)));
                    break;
                }
            }
        }
        let data = self.data(&places[..whole]).await;
        drop(guards);
        let mut out = Vec::with_capacity(whole);
        for ((head, data), (s, p)) in good.into_iter().zip(data).zip(&places) {
            let frame = data.and_then(|d| Frame::new(head, if d.is_empty() { vec![] } else { vec![d] }));
            let frame = frame.and_then(|f| f.verify_data().map(|()| f));
            match frame {
                Ok(f) => out.push(f),
                Err(e) => {
                    error = Some((e.at(format!("shard {shard}, frame {s}")), (p.segment, p.data_at)));
                    break;
                }
            }
        }
        match error {
            Some((e, at)) => {
                self.inner.core.borrow_mut().crc_error(at, &e.text);
                if out.is_empty() { Err(Error::corrupt(e.text)) } else { Ok(out) }
            }
            None => Ok(out),
        }
    }

    async fn heads(&self, shard: ShardId, places: &[(Sequence, FramePlace)]) -> Vec<Result<FrameHead>> {
        let mut groups: Vec<(u32, u32, u32)> = Vec::new();
        let mut group_of = Vec::with_capacity(places.len());
        for (_, p) in places {
            let end = p.head_at + p.head_len;
            match groups.last_mut() {
                Some((segment, from, to))
                    if *segment == p.segment
                        && p.head_at >= *to
                        && end - *from <= HEADS_WINDOW
                        && p.head_at - *to < 65536 =>
                {
                    *to = end;
                }
                _ => groups.push((p.segment, p.head_at, end)),
            }
            group_of.push(groups.len() - 1);
        }
        let reads = groups.iter().map(|(segment, from, to)| self.read_bytes(*segment, *from, (to - from) as usize));
        let read = join_all(reads.collect()).await;
        places
            .iter()
            .zip(group_of)
            .map(|((s, p), g)| {
                let place = format!("shard {shard}, frame {s}");
                let bytes = read[g].clone().map_err(|e| e.at(&place))?;
                let from = (p.head_at - groups[g].1) as usize;
                let mut bytes = bytes.slice(from..from + p.head_len as usize);
                let head = FrameHead::parse(&mut bytes).map_err(|e| e.at(&place))?;
                let hid = u64::from_le_bytes(head.header().hid[..8].try_into().expect("eight bytes"));
                if head.shard() != shard || head.seq() != *s || hid != p.hid {
                    return Err(Error::corrupt("another frame lies in its place").at(&place));
                }
                Ok(head)
            })
            .collect()
    }

    /// The data of each frame, neighbours read together.
    async fn data(&self, places: &[(Sequence, FramePlace)]) -> Vec<Result<Bytes>> {
        let mut groups: Vec<(u32, u32, u32)> = Vec::new();
        let mut group_of = Vec::with_capacity(places.len());
        for (_, p) in places {
            match groups.last_mut() {
                Some((segment, _, to)) if *segment == p.segment && *to == p.data_at => *to += p.data_len,
                _ => groups.push((p.segment, p.data_at, p.data_at + p.data_len)),
            }
            group_of.push(groups.len() - 1);
        }
        let reads = groups.iter().map(|(segment, from, to)| async move {
            if from == to {
                return Ok(Bytes::new());
            }
            self.read_bytes(*segment, *from, (to - from) as usize).await
        });
        let read = join_all(reads.collect()).await;
        places
            .iter()
            .zip(group_of)
            .map(|((_, p), g)| {
                let from = (p.data_at - groups[g].1) as usize;
                Ok(read[g].clone()?.slice(from..from + p.data_len as usize))
            })
            .collect()
    }

    /// View and `hid` of an older frame, to find the last common one.
    pub async fn name(&self, shard: ShardId, sequence: Sequence) -> Result<FrameName> {
        let (place, _guards) = {
            let core = self.inner.core.borrow();
            let s = core.shard(shard)?;
            if s.tip.name.sequence == sequence {
                return Ok(s.tip.name);
            }
            let gone = || Error::not_found(format!("shard {shard}: frame {sequence} is not in the log"));
            let place = s.frames.get(sequence).ok_or_else(gone)?;
            (place, guards(&core, [place.segment].into_iter()))
        };
        let mut heads = self.heads(shard, &[(sequence, place)]).await;
        let head = heads.pop().expect("one for one")?;
        Ok(FrameName { view: head.view(), sequence, hid: head.header().hid() })
    }

    /// Map entries from address `from` on that were placed behind `since` and that no cut can take back, with their
    /// data, in order of address; and where to go on, `None` at the end. What was overwritten in between turns up
    /// with its newer entry; entries merge (rule E2).
    pub async fn entries(
        &self,
        shard: ShardId,
        from: Lba,
        since: Sequence,
        max_bytes: usize,
    ) -> Result<(CarryBody, Vec<Bytes>, Option<Lba>)> {
        self.entries_between(shard, from, since, Sequence(u64::MAX), max_bytes).await
    }

    /// As `entries`, of those that were placed up to `upto`. `Corrupt` if frames in between are lost here.
    pub async fn entries_between(
        &self,
        shard: ShardId,
        from: Lba,
        since: Sequence,
        upto: Sequence,
        max_bytes: usize,
    ) -> Result<(CarryBody, Vec<Bytes>, Option<Lba>)> {
        let mut g = Gather { since, upto, max_blocks: self.max_blocks(max_bytes), ..Gather::default() };
        let (mut at, mut next) = (from.0, None);
        while let Some(start) = self.io().next_entry(shard, at).await? {
            let end = start.saturating_add(ENTRIES_WINDOW).min(limits::SHARD_BLOCKS_MAX as u32);
            let step = |core: &Core, s: &Shard, view: &ExtentMap| g.window(core, s, view);
            next = self.io().with_view(shard, (start, end), Which::Committed, step).await?;
            if next.is_some() {
                break;
            }
            at = end;
        }
        self.inner.core.borrow().shard(shard).and_then(|s| no_holes(s, since, upto))?;
        let data = self.fetch(shard, &g.plan).await?;
        Ok((g.body, data, next))
    }

    fn max_blocks(&self, max_bytes: usize) -> u32 {
        let max = crate::batch::frame_data_max(&self.inner.core.borrow());
        (max_bytes.min(max) / BLOCK).max(1) as u32
    }

    /// Content of the shard as its last durable frame left it, every live block and every closed segment of it read
    /// and checked.
    pub async fn digest(&self, shard: ShardId) -> Result<Digest> {
        self.check_segments(shard).await?;
        self.content(shard).await
    }

    /// As `digest`, whatever else is damaged in the segments that hold it.
    pub async fn content(&self, shard: ShardId) -> Result<Digest> {
        let (snap, version, sequence) = {
            let core = self.inner.core.borrow();
            let s = core.shard(shard)?;
            if s.last_hole().is_some() {
                return Err(Error::corrupt(format!("shard {shard} has lost frames; it has no digest before repair")));
            }
            (self.io().snapshot(shard)?, s.tip.version, s.tip.name.sequence)
        };
        let (mut sum, mut at) = (Sum::default(), 0);
        while let Some((view, start, end)) = self.io().window(&snap, at, DIGEST_WINDOW).await? {
            for (a, e) in view.iter().filter(|(_, e)| e.kind != ExtentKind::Trim) {
                sum.add(a, e);
            }
            // What is read and checked is what lies there now: an older block may be gone.
            let plan = |core: &Core, s: &Shard, view: &ExtentMap| {
                let mut plan = Plan::default();
                for (a, e) in view.iter().filter(|(_, e)| e.is_data()) {
                    plan.data(core, s, a, e, 0, e.len)?;
                }
                Ok(plan)
            };
            let plan = self.io().with_view(shard, (start, end), Which::All, plan).await?;
            self.fetch(shard, &plan).await?;
            at = end;
        }
        Ok(sum.finish(version, sequence))
    }
}

fn guards(core: &Core, segments: impl Iterator<Item = u32>) -> Vec<ReadGuard> {
    let mut ids: Vec<u32> = Vec::new();
    for s in segments {
        if ids.last() != Some(&s) {
            ids.push(s);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids.into_iter().map(|s| core.segs.guard(s)).collect()
}

fn no_holes(s: &Shard, since: Sequence, upto: Sequence) -> Result<()> {
    if s.holes.iter().any(|h| h.from <= upto.0 && since.0 < h.to) {
        return Err(Error::corrupt(format!("shard {} has lost frames; its map can't be learned before repair", s.id)));
    }
    Ok(())
}

/// Map entries that gather for a peer.
#[derive(Default)]
struct Gather {
    since: Sequence,
    upto: Sequence,
    max_blocks: u32,
    blocks: u32,
    body: CarryBody,
    plan: Plan,
}

impl Gather {
    /// Takes what fits of a window; gives back where to go on, if not all of it did.
    fn window(&mut self, core: &Core, s: &Shard, view: &ExtentMap) -> Result<Option<Lba>> {
        no_holes(s, self.since, self.upto)?;
        let (since, upto) = (self.since, self.upto);
        // Rule E3: trims and zeroes are told, too, or what they hide would stay where it is asked for.
        let untold = core.segs.leaves_out(RuleMutant::TrimsUntold);
        let is_asked = |e: &Extent| e.sequence > since && e.sequence <= upto && (e.is_data() || !untold);
        for (a, e) in view.iter().filter(|(_, e)| is_asked(e)) {
            if self.body.entries.len() == CARRY_ENTRIES_MAX || (e.is_data() && self.blocks == self.max_blocks) {
                return Ok(Some(Lba(a)));
            }
            let len = if e.is_data() { e.len.min(self.max_blocks - self.blocks) } else { e.len };
            self.body.entries.push(entry(a, e, len));
            if e.is_data() {
                self.plan.data(core, s, a, e, 0, len)?;
                self.blocks += len;
                if len < e.len {
                    return Ok(Some(Lba(a + len)));
                }
            }
        }
        Ok(None)
    }
}

fn entry(at: u32, e: &Extent, len: u32) -> CarryEntry {
    CarryEntry {
        kind: e.kind,
        range: BlockRange { start: Lba(at), len },
        version: e.version,
        sequence: e.sequence,
        chunk: e.chunk,
        offset: if e.is_data() { e.offset } else { 0 },
        crcs: e.crcs.slice(e.len).iter().take(if e.is_data() { len as usize } else { 0 }).copied().collect(),
    }
}

/// BLAKE3 over the longest runs of one kind and version, so that how entries are split makes no difference.
#[derive(Default)]
pub(crate) struct Sum {
    hasher: blake3::Hasher,
    run: Option<(u32, u32, ExtentKind, Version)>,
    crcs: Vec<u32>,
    blocks: u64,
    data_blocks: u64,
}

impl Sum {
    pub fn add(&mut self, at: u32, e: &Extent) {
        self.blocks += u64::from(e.len);
        match &mut self.run {
            Some((start, len, kind, version)) if *start + *len == at && *kind == e.kind && *version == e.version => {
                *len += e.len;
            }
            _ => {
                self.flush();
                self.run = Some((at, e.len, e.kind, e.version));
            }
        }
        if e.is_data() {
            self.data_blocks += u64::from(e.len);
            self.crcs.extend_from_slice(e.crcs.slice(e.len));
        }
    }

    fn flush(&mut self) {
        let Some((start, len, kind, version)) = self.run.take() else { return };
        let mut bytes = Vec::with_capacity(17 + self.crcs.len() * 4);
        bytes.extend_from_slice(&start.to_le_bytes());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.push(kind as u8);
        bytes.extend_from_slice(&version.0.to_le_bytes());
        bytes.extend(self.crcs.drain(..).flat_map(u32::to_le_bytes));
        self.hasher.update(&bytes);
    }

    pub fn finish(mut self, version: Version, sequence: Sequence) -> Digest {
        self.flush();
        let hash = Hash32(*self.hasher.finalize().as_bytes());
        Digest { version, sequence, hash, blocks: self.blocks, data_blocks: self.data_blocks }
    }
}
