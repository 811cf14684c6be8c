//! Reading the log back: frames by sequence (SYNC), names of frames, map entries (SYNC by map), digests.
//!
//! Invariants: a frame is given out only if it is the one that the index names and all its data match their CRCs;
//! map entries only if no cut can take them back. Only to who makes a copy entries are told whose data nobody has.

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::maps::look::Which;
use crate::log::join::join_all;
use crate::log::join::yield_now;
use crate::log::scan::Window;
use crate::log::segments::ReadGuard;
use crate::log::whole::repeated_head;
use crate::map::extents::Layer;
use crate::map::extents::{Extent, ExtentMap};
use crate::read::blocks::Plan;
use crate::shard::Shard;
use crate::shard::frames::FramePlace;
use crate::shard::history::table::{LayerName, Table};
use crate::shard::history::{LAST, Reading, is_of_times};
use crate::shard::unfit::{ENTRIES_WINDOW, TIMES_WINDOW};
use crate::{CARRY_ENTRIES_MAX, Digest, FrameName, MapPlace, RuleMutant};
use bytes::Bytes;
use freebs_format::{CarryBody, CarryEntry, ExtentKind, Frame, FrameHead};
use freebs_io::Device;
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Hash32, Lba, Result, Sequence, ShardId, Version, limits};

/// Frames that one call reads at most.
const FRAMES_MAX: usize = 1024;
/// Heads that lie within so many bytes are read at once.
const HEADS_WINDOW: u32 = 256 << 10;
/// Bytes between two heads that are read with them.
const HEADS_GAP: u32 = 64 << 10;
/// Blocks of the map that one step of a digest looks at, and reads.
const DIGEST_WINDOW: u32 = 256;
/// Times that a digest is begun, if each time what it is of was cut off meanwhile.
const DIGEST_TRIES: u32 = 4;

/// Bytes of a segment: its id, the first one, and the one behind the last.
type Span = (u32, u32, u32);

/// The head, if it is the one that the index names.
fn the_one(head: FrameHead, shard: ShardId, sequence: Sequence, place: &FramePlace) -> Result<FrameHead> {
    let hid = u64::from_le_bytes(head.header().hid[..8].try_into().expect("eight bytes"));
    let is_it = (head.shard(), head.seq(), hid) == (shard, sequence, place.hid);
    is_it.then_some(head).ok_or_else(|| Error::corrupt("another frame lies in its place"))
}

/// Map entries, their data, and the place to go on from if there are more.
pub type Gathered<P> = (CarryBody, Vec<Bytes>, Option<P>);

impl<D: Device> Engine<D> {
    /// The frame of the view that was in force at frame `at`, if that is still known: it is from the committed one on.
    pub fn view_frame(&self, shard: ShardId, at: Sequence) -> Option<FrameHead> {
        let core = self.inner.core.borrow();
        let views = &core.shard(shard).ok()?.views;
        views.iter().rev().find(|(s, _)| *s <= at).map(|(_, f)| f.clone())
    }

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
        let mut out = Vec::with_capacity(whole);
        for ((head, data), (s, p)) in good.into_iter().zip(data).zip(&places) {
            let whole = |data: Bytes| {
                let frame = Frame::new(head.clone(), if data.is_empty() { vec![] } else { vec![data] })?;
                frame.verify_data().map(|()| frame)
            };
            let mut frame = data.and_then(&whole);
            if frame.as_ref().is_err_and(|e| e.kind == ErrorKind::Corrupt)
                && let Some(data) = self.put_back(&head, p).await
            {
                frame = whole(data);
            }
            match frame {
                Ok(f) => out.push(f),
                Err(e) => {
                    error = Some((e.at(format!("shard {shard}, frame {s}")), (p.segment, p.data_at)));
                    break;
                }
            }
        }
        drop(guards);
        match error {
            Some((e, at)) => {
                let mut core = self.inner.core.borrow_mut();
                core.suspect(at.0);
                core.crc_error(at, &e.text);
                if out.is_empty() { Err(Error::corrupt(e.text)) } else { Ok(out) }
            }
            None => Ok(out),
        }
    }

    /// The heads of frames, up to the first one that is lost. One that can't be read where it lies, or is not the one that was
    /// written, is taken from where it is said again.
    async fn heads(&self, shard: ShardId, places: &[(Sequence, FramePlace)]) -> Vec<Result<FrameHead>> {
        let ranges: Vec<Span> = places.iter().map(|(_, p)| (p.segment, p.head_at, p.head_at + p.head_len)).collect();
        let are_near =
            |a: &Span, b: &Span| a.0 == b.0 && b.1 >= a.2 && b.2 - a.1 <= HEADS_WINDOW && b.1 - a.2 < HEADS_GAP;
        let read = self.spans(&ranges, are_near).await;
        let mut out = Vec::with_capacity(places.len());
        for ((s, p), bytes) in places.iter().zip(read) {
            let head = bytes.and_then(|mut b| FrameHead::parse(&mut b)).and_then(|h| the_one(h, shard, *s, p));
            let head = match head {
                Ok(head) => Ok(head),
                Err(e) => self.repeated(shard, *s, p).await.ok_or_else(|| e.at(format!("shard {shard}, frame {s}"))),
            };
            let is_lost = head.is_err();
            out.push(head);
            if is_lost {
                break;
            }
        }
        out
    }

    /// The head of a frame as the index of its segment says it, or the append behind its own.
    async fn repeated(&self, shard: ShardId, sequence: Sequence, place: &FramePlace) -> Option<FrameHead> {
        let (geometry, seq) = {
            let mut core = self.inner.core.borrow_mut();
            core.suspect(place.segment);
            (core.geometry, core.segs.get(place.segment).seq)
        };
        let mut window = Window::new(&self.inner.device, geometry, place.segment);
        let head = repeated_head(&mut window, &geometry, (seq, place.head_at)).await?;
        the_one(head, shard, sequence, place).ok()
    }

    /// The data of each frame, neighbours read together.
    async fn data(&self, places: &[(Sequence, FramePlace)]) -> Vec<Result<Bytes>> {
        let range = |p: &FramePlace| (p.segment, p.data_at, p.data_at + p.data_len);
        let ranges: Vec<Span> = places.iter().map(|(_, p)| range(p)).collect();
        self.spans(&ranges, |a, b| a.0 == b.0 && a.2 == b.1).await
    }

    /// Bytes of segments, those that are `near` each other at once. A bad spot in one of them is none of the others.
    async fn spans(&self, spans: &[Span], near: impl Fn(&Span, &Span) -> bool) -> Vec<Result<Bytes>> {
        let mut groups: Vec<Span> = Vec::new();
        let mut group_of = Vec::with_capacity(spans.len());
        for span in spans {
            match groups.last_mut() {
                Some(group) if near(group, span) => group.2 = span.2,
                _ => groups.push(*span),
            }
            group_of.push(groups.len() - 1);
        }
        let read = join_all(groups.iter().map(|g| self.span(*g)).collect()).await;
        let mut out = Vec::with_capacity(spans.len());
        for (span, g) in spans.iter().zip(group_of) {
            let from = groups[g].1;
            out.push(match &read[g] {
                Ok(bytes) => Ok(bytes.slice((span.1 - from) as usize..(span.2 - from) as usize)),
                Err(_) if groups[g] != *span => self.span(*span).await,
                Err(e) => Err(e.clone()),
            });
        }
        out
    }

    async fn span(&self, (segment, from, to): Span) -> Result<Bytes> {
        if from == to {
            return Ok(Bytes::new());
        }
        self.read_bytes(segment, from, (to - from) as usize).await
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
        let asked = Asked { since, upto, above: None, past: None };
        let (body, data, next) =
            self.gather(shard, MapPlace { lba: from, ..MapPlace::default() }, asked, max_bytes).await?;
        Ok((body, data, next.map(|n| n.lba)))
    }

    /// As `entries_between`, and below the entries in force those that a kept version sees and that were placed behind
    /// `past` (design note 33). For who makes a copy: where a block can't be read and nobody has it, what stands in for it is
    /// told (design note 36). `Corrupt` if others may have it: they are asked, and so is this, later.
    pub async fn entries_with_past(
        &self,
        shard: ShardId,
        from: MapPlace,
        since: Sequence,
        past: Sequence,
        upto: Sequence,
        max_bytes: usize,
    ) -> Result<(CarryBody, Vec<Bytes>, Option<MapPlace>)> {
        let asked = Asked { since, upto, above: None, past: Some(past) };
        self.gather(shard, from, asked, max_bytes).await
    }

    /// As `entries`, of those above a version, whenever they were placed. `Corrupt` if a lost frame may have had some.
    pub async fn entries_above(
        &self,
        shard: ShardId,
        from: Lba,
        version: Version,
        max_bytes: usize,
    ) -> Result<(CarryBody, Vec<Bytes>, Option<Lba>)> {
        let since = self.lost_before(shard, version).await?;
        let asked = Asked { since, upto: Sequence(u64::MAX), above: Some(version), past: None };
        let (body, data, next) =
            self.gather(shard, MapPlace { lba: from, ..MapPlace::default() }, asked, max_bytes).await?;
        Ok((body, data, next.map(|n| n.lba)))
    }

    async fn gather(
        &self,
        shard: ShardId,
        from: MapPlace,
        asked: Asked,
        max_bytes: usize,
    ) -> Result<(CarryBody, Vec<Bytes>, Option<MapPlace>)> {
        let mut g = Gather::new(asked, self.max_blocks(max_bytes));
        let (mut at, mut next) = (from.lba.0, None);
        while let Some(start) = self.io().next_entry(shard, at).await? {
            if at > from.lba.0 {
                yield_now().await;
            }
            let window = if is_of_times(start) { TIMES_WINDOW } else { ENTRIES_WINDOW };
            let mut end = start.saturating_add(window).min(limits::SHARD_ADDRESSES as u32);
            if !is_of_times(start) {
                end = end.min(limits::SHARD_BLOCKS_MAX as u32);
            }
            let keeps = self.inner.core.borrow().shard(shard)?.keeps_history();
            if asked.past.is_some() && keeps && !is_of_times(start) {
                end = end.min(start + g.max_blocks);
                end = self.inner.core.borrow().past_end(shard, start, end, CARRY_ENTRIES_MAX)?;
                let resumed = Some(from).filter(|f| start == f.lba.0 && f.blocks > 0);
                // Blocks that the last piece did not look at begin with their first entry.
                end = resumed.map_or(end, |f| end.min(start.saturating_add(f.blocks)));
                let behind = resumed.map(|f| f.behind).unwrap_or_default();
                let holes = self.io().holes_below(shard);
                let below = self.io().inherited(shard, (start, end)).await?.unwrap_or_default();
                let step = |core: &Core, s: &Shard, mut layers: Table| {
                    core.check_holes_below(shard, &holes)?;
                    let told = below.iter().filter(|_| !core.segs.leaves_out(RuleMutant::InheritedUntold));
                    told.for_each(|(a, e)| {
                        layers.put_back(a, &Layer { e: e.clone(), to: LAST, found: false, level: 0 })
                    });
                    g.layers(core, s, &layers, (start, behind))
                };
                next = self.io().with_layers(shard, (start, end), step).await?;
            } else {
                let step = |core: &Core, s: &Shard, view: &ExtentMap| g.window(core, s, view);
                next = self.io().with_view(shard, (start, end), Which::Committed, step).await?;
            }
            if next.is_some() {
                break;
            }
            at = end;
        }
        self.inner.core.borrow().no_holes(shard, asked)?;
        let data = match asked.past {
            Some(_) => self.fetch_for_copy(shard, &g.body, &g.plan).await?,
            None => self.fetch(shard, &g.plan).await?,
        };
        Ok((g.body, data, next))
    }

    /// Entries that a fork has from its parents; those that its own frames cover are left out, unless its history may need them.
    /// Not those that carries brought: they may lie in front of a loss of which nothing tells.
    pub(super) async fn gather_inherited(&self, shard: ShardId, from: Lba, max_bytes: usize) -> Result<Gathered<Lba>> {
        let asked = Asked { since: Sequence(0), upto: Sequence(u64::MAX), above: None, past: None };
        let mut g = Gather::new(asked, self.max_blocks(max_bytes));
        let (mut at, mut next) = (from.0, None);
        while let Some(start) = self.io().next_inherited_entry(shard, at).await? {
            if at > from.0 {
                yield_now().await;
            }
            let end = start.saturating_add(ENTRIES_WINDOW).min(limits::SHARD_BLOCKS_MAX as u32);
            let holes = self.io().holes_below(shard);
            let below = self.io().inherited(shard, (start, end)).await?.unwrap_or_default();
            let step = |core: &Core, s: &Shard, own: &ExtentMap| {
                core.check_holes_below(shard, &holes)?;
                let cut = s.fork.map_or(Sequence(0), |f| f.sequence);
                let mut view = below;
                if !s.keeps_history() {
                    let newer = own.iter().filter(|(_, e)| e.sequence > cut);
                    newer.for_each(|(a, e)| drop(view.take(a, a + e.len, |_| true)));
                }
                g.window(core, s, &view)
            };
            next = self.io().with_own_view(shard, (start, end), Which::Committed, step).await?;
            if next.is_some() {
                break;
            }
            at = end;
        }
        if next.is_none() {
            // A parent that has lost all of it has no entry to ask for.
            let core = self.inner.core.borrow();
            core.check_line(shard)?;
            core.no_holes(shard, asked)?;
        }
        let data = self.fetch(shard, &g.plan).await?;
        Ok((g.body, data, next.map(|n| n.lba)))
    }

    /// The last lost frame that is known to have had nothing above a version, as the frame behind it tells; 0 if none is.
    async fn lost_before(&self, shard: ShardId, version: Version) -> Result<Sequence> {
        let ends: Vec<u64> = self.inner.core.borrow().shard(shard)?.missing().map(|(_, to)| to).collect();
        let mut upto = Sequence(0);
        for to in ends {
            match self.frame(shard, Sequence(to).next()).await {
                Ok(f) if f.head.before().version <= version => upto = upto.max(Sequence(to)),
                _ => {}
            }
        }
        Ok(upto)
    }

    fn max_blocks(&self, max_bytes: usize) -> u32 {
        let max = crate::engine::append::frame_data_max(&self.inner.core.borrow());
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
        for _ in 1..DIGEST_TRIES {
            match self.held_content(shard).await {
                Err(e) if e.kind == ErrorKind::Retry => {}
                end => return end,
            }
        }
        self.held_content(shard).await
    }

    /// The content of one moment, part by part: what is written meanwhile is none of it. `Retry` if that moment was cut off.
    async fn held_content(&self, shard: ShardId) -> Result<Digest> {
        let held = Held::new(self, shard)?;
        let (mut sum, mut at) = (Sum::default(), 0);
        while let Some(start) = self.io().next_entry(shard, at).await? {
            // Times may be told anew meanwhile, and are of no version.
            if is_of_times(start) {
                break;
            }
            at = start.saturating_add(DIGEST_WINDOW).min(limits::SHARD_BLOCKS_MAX as u32);
            let part = |core: &Core, s: &Shard, view: &ExtentMap| {
                let mut plan = Plan::default();
                for (a, e) in view.iter().filter(|(_, e)| e.kind != ExtentKind::Trim) {
                    sum.add(a, e);
                    if e.is_data() {
                        plan.data(core, s, a, e, 0, e.len)?;
                    }
                }
                Ok(plan)
            };
            let plan = self.io().with_view(shard, (start, at), Which::Held(held.reading), part).await?;
            self.fetch(shard, &plan).await?;
            yield_now().await;
        }
        if !self.inner.core.borrow().shard(shard)?.is_reading(held.reading) {
            return Err(Error::retry("the end of the shard was cut while it was read"));
        }
        Ok(sum.finish(held.reading.version, held.reading.sequence))
    }
}

/// Keeps the last version of a shard for as long as it lives.
struct Held<'a, D: Device> {
    engine: &'a Engine<D>,
    shard: ShardId,
    slot: u32,
    reading: Reading,
}

impl<'a, D: Device> Held<'a, D> {
    fn new(engine: &'a Engine<D>, shard: ShardId) -> Result<Self> {
        let core = &mut *engine.inner.core.borrow_mut();
        let lost = core.last_hole(core.shard(shard)?);
        let s = core.shards.get_mut(&shard).expect("just seen");
        if lost.is_some() {
            return Err(Error::corrupt(format!("shard {shard} has lost frames; it has no digest before repair")));
        }
        Ok(Self { engine, shard, slot: s.slot, reading: s.begin_reading() })
    }
}

impl<D: Device> Drop for Held<'_, D> {
    fn drop(&mut self) {
        let Core { shards, segs, map_wake, .. } = &mut *self.engine.inner.core.borrow_mut();
        if let Some(s) = shards.get_mut(&self.shard).filter(|s| s.slot == self.slot) {
            s.end_reading(self.reading, segs);
            map_wake.notify_one();
        }
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
    if s.missing().any(|(from, to)| from <= upto.0 && since.0 < to) {
        return Err(Error::corrupt(format!("shard {} has lost frames; its map can't be learned before repair", s.id)));
    }
    Ok(())
}

impl Core {
    /// An error if a shard, or what it reads from its parents, has lost frames of those that are asked for.
    fn no_holes(&self, shard: ShardId, asked: Asked) -> Result<()> {
        no_holes(self.shard(shard)?, asked.first(), asked.upto)?;
        let mut below = self.line(shard).filter(|f| asked.first() < f.sequence);
        below.try_for_each(|f| no_holes(self.shard(f.parent)?, Sequence(0), asked.upto.min(f.sequence)))
    }
}

/// Which map entries are asked for.
#[derive(Clone, Copy)]
struct Asked {
    /// Frames up to here are of no concern.
    since: Sequence,
    upto: Sequence,
    /// Entries above this version, or (`None`) those that were placed behind `since`.
    above: Option<Version>,
    /// Superseded entries, too, that a kept version sees and that were placed behind this.
    past: Option<Sequence>,
}

impl Asked {
    /// No frame up to here is of any concern.
    fn first(&self) -> Sequence {
        self.past.map_or(self.since, |p| p.min(self.since))
    }

    fn has_past(&self, e: &Extent) -> bool {
        self.past.is_some_and(|p| p < e.sequence && e.sequence <= self.upto)
    }

    fn has(&self, e: &Extent) -> bool {
        let is_above = self.above.map_or(e.sequence > self.since, |v| e.version > v);
        is_above && e.sequence <= self.upto
    }
}

/// Map entries that gather for a peer.
struct Gather {
    asked: Asked,
    max_blocks: u32,
    blocks: u32,
    body: CarryBody,
    plan: Plan,
}

impl Gather {
    fn new(asked: Asked, max_blocks: u32) -> Self {
        Self { asked, max_blocks, blocks: 0, body: CarryBody::default(), plan: Plan::default() }
    }

    /// Takes what fits of a window; gives back where to go on, if not all of it did.
    fn window(&mut self, core: &Core, s: &Shard, view: &ExtentMap) -> Result<Option<MapPlace>> {
        let place = |a| Some(MapPlace { lba: Lba(a), ..MapPlace::default() });
        core.no_holes(s.id, self.asked)?;
        // Rule E3: trims and zeroes are told, too, or what they hide would stay where it is asked for.
        let untold = core.segs.leaves_out(RuleMutant::TrimsUntold);
        let asked = self.asked;
        for (a, e) in view.iter().filter(|(_, e)| asked.has(e) && (e.is_data() || !untold)) {
            if self.body.entries.len() == CARRY_ENTRIES_MAX || (e.is_data() && self.blocks == self.max_blocks) {
                return Ok(place(a));
            }
            let len = if e.is_data() { e.len.min(self.max_blocks - self.blocks) } else { e.len };
            self.body.entries.push(entry(a, e, len));
            if e.is_data() {
                self.plan.data(core, s, a, e, 0, len)?;
                self.blocks += len;
                if len < e.len {
                    return Ok(place(a + len));
                }
            }
        }
        Ok(None)
    }

    /// The same of entries one above the other, from a block on and behind an entry there. They have at most as many
    /// blocks each as a piece may have.
    fn layers(&mut self, core: &Core, s: &Shard, layers: &Table, from: LayerName) -> Result<Option<MapPlace>> {
        core.no_holes(s.id, self.asked)?;
        let untold = core.segs.leaves_out(RuleMutant::TrimsUntold);
        let no_past = core.segs.leaves_out(RuleMutant::PastUntold);
        let (asked, kept) = (self.asked, &s.history.pins.kept);
        let is_asked = |l: &Layer| match l.to {
            LAST => asked.has(&l.e),
            to => asked.has_past(&l.e) && kept.needs(l.e.version, to) && !no_past,
        };
        let mut at = from;
        for (a, l) in layers.export(Some(from)) {
            if is_asked(l) && (l.e.is_data() || !untold) {
                let blocks = if l.e.is_data() { l.e.len } else { 0 };
                if self.body.entries.len() == CARRY_ENTRIES_MAX || self.blocks + blocks > self.max_blocks {
                    let place = MapPlace { lba: Lba(a), ..MapPlace::default() };
                    let told = MapPlace { behind: at.1, blocks: l.e.len, ..place };
                    let is_begun = a == at.0 && at.1 != Default::default();
                    return Ok(Some(if is_begun { told } else { place }));
                }
                self.body.entries.push(entry(a, &l.e, l.e.len));
                if l.e.is_data() {
                    self.plan.data(core, s, a, &l.e, 0, l.e.len)?;
                    self.blocks += blocks;
                }
            }
            at = (a, l.e.key());
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
