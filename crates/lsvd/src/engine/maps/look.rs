//! Lookups: memory first, then the runs, reading pages as needed.
//!
//! Invariant: a view is of one moment. Pages that are missing are read, and the view is made again from the start;
//! what has been read already is kept for the call, so it comes to an end however small the cache is. What many blocks need is
//! looked up a part at a time, and again from the start if the runs change meanwhile.

use super::Io;
use super::flush::page_lost;
use crate::engine::core::Core;
use crate::engine::forks::LINE_MAX;
use crate::log::join::{join_all, yield_now};
use crate::log::segments::ReadGuard;
use crate::map::extents::{Extent, ExtentMap, Layer, Outcome};
use crate::map::levels::{Missing, Pages};
use crate::map::past;
use crate::map::run::{Place, Run};
use crate::shard::Shard;
use crate::shard::chunks;
use crate::shard::forks::ForkPoint;
use crate::shard::history::table::Table;
use crate::shard::history::{LAST, Reading, is_of_times};
use crate::{EventKind, RuleMutant};
use freebs_format::disk::PageHeader;
use freebs_format::{CarryBody, CarryEntry, ExtentKind, FrameHead, FrameKind};
use freebs_io::Device;
use freebs_types::{Error, ErrorKind, Fork, Result, Sequence, ShardId, Version, limits};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Blocks whose entries are looked up together, and the blocks of a part if there are more.
const LOOK_BLOCKS: u64 = 16_384;
const PART_BLOCKS: u32 = 4096;

/// Which entries are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// As the last durable frame left them.
    All,
    /// Those that no cut can take back.
    Committed,
    /// The state in force at a version that is kept.
    At(Version),
    /// The state in force at a version that forks read.
    Fork(ForkPoint),
    /// The state in force at a version that is kept for as long as it is read.
    Held(Reading),
}

struct Load {
    run: Rc<Run>,
    page: u32,
    at: Place,
    _guard: ReadGuard,
}

fn loads(core: &mut Core, missing: Missing) -> Vec<Load> {
    core.counters.map_reads += missing.len() as u64;
    let load = |(run, page): (Rc<Run>, u32)| {
        let at = run.places.find(page, 1);
        Load { _guard: core.segs.guard(at.segment), run, page, at }
    };
    missing.into_iter().map(load).collect()
}

impl<D: Device> Io<'_, D> {
    /// Reads pages into the cache and into `have`.
    async fn load(&self, loads: Vec<Load>, have: &mut Pages) -> Result<()> {
        let device = self.device_id();
        let reads = loads.iter().map(|l| async move {
            let read = async || {
                let bytes = self.read_pages(l.at).await?;
                PageHeader::open(&bytes, l.run.name(device, l.page))?;
                Ok(bytes)
            };
            match read().await {
                // A page that is lost costs a start, so a device that stumbled once is asked again.
                Err(_) => read().await,
                done => done,
            }
        });
        for (l, bytes) in loads.iter().zip(join_all(reads.collect()).await) {
            let bytes = bytes.map_err(|e| self.lost(&e))?;
            let key = (l.run.number, l.page);
            self.core.borrow_mut().maps.cache.put(key, bytes.clone());
            have.insert(key, bytes);
        }
        Ok(())
    }

    /// A page of the map can't be read: no checkpoint may name it any more.
    fn lost(&self, e: &freebs_types::Error) -> freebs_types::Error {
        let e = page_lost(e, "a page of the map is lost; the next start makes the map anew");
        let mut core = self.core.borrow_mut();
        if !core.maps.damaged && e.kind == freebs_types::ErrorKind::Corrupt {
            core.maps.damaged = true;
            core.event(EventKind::Damage, e.text.clone());
            core.map_wake.notify_one();
        }
        e
    }

    /// Lets `f` see the entries of `[start, end)`, at one moment. A fork's are those of its parents, too, where it has none.
    pub async fn with_view<R>(
        &self,
        shard: ShardId,
        range: (u32, u32),
        which: Which,
        f: impl FnOnce(&Core, &Shard, &ExtentMap) -> Result<R>,
    ) -> Result<R> {
        let mut f = Some(f);
        loop {
            let holes = self.holes_below(shard);
            let below = self.inherited(shard, range).await?;
            let done = self.with_own_view(shard, range, which, |core, s, view| {
                let Some(below) = below else { return f.take().map(|f| f(core, s, view)).transpose() };
                if core.holes_below(shard) != holes {
                    return Ok(None);
                }
                let (mut all, mut out) = (below, Outcome::default());
                view.iter().for_each(|(a, e)| all.insert(a, e.clone(), &mut out));
                f.take().map(|f| f(core, s, &all)).transpose()
            });
            if let Some(seen) = done.await? {
                return Ok(seen);
            }
        }
    }

    /// The holes of a fork's parents that it sees through. The parents' entries do not change but where one of these is filled: what
    /// was looked up before and after that is of two moments.
    pub fn holes_below(&self, shard: ShardId) -> Vec<(ShardId, u64, u64)> {
        self.core.borrow().holes_below(shard)
    }

    /// The entries of `[start, end)` that a fork reads from its parents; `None` of a shard that is none.
    pub async fn inherited(&self, shard: ShardId, range: (u32, u32)) -> Result<Option<ExtentMap>> {
        // Times are those of each shard's own head.
        let range = (range.0, range.1.min(limits::SHARD_BLOCKS_MAX as u32));
        loop {
            if range.0 >= range.1 {
                return Ok(None);
            }
            let line: Vec<Fork> = self.core.borrow().line(shard).collect();
            if line.is_empty() {
                return Ok(None);
            }
            if line.len() >= LINE_MAX {
                return Err(Error::corrupt(format!("shard {shard} reads through more than {LINE_MAX} others")));
            }
            match self.inherited_through(&line, range).await {
                Ok(all) => return Ok(Some(all)),
                Err(e) if self.is_line(shard, &line) => {
                    let is_gone = e.kind == ErrorKind::NotFound;
                    let gone = || Error::corrupt(format!("shard {shard} reads from a shard that is gone: {e}"));
                    return Err(if is_gone { gone() } else { e });
                }
                // One of them became flat meanwhile, and what was behind it may be kept no more.
                Err(_) => {}
            }
        }
    }

    fn is_line(&self, shard: ShardId, line: &[Fork]) -> bool {
        self.core.borrow().line(shard).eq(line.iter().copied())
    }

    async fn inherited_through(&self, line: &[Fork], range: (u32, u32)) -> Result<ExtentMap> {
        let (mut all, mut out) = (ExtentMap::default(), Outcome::default());
        for fork in line {
            let add = |_: &Core, _: &Shard, view: &ExtentMap| {
                view.iter().for_each(|(a, e)| all.insert(a, e.clone(), &mut out));
                Ok(())
            };
            self.with_own_view(fork.parent, range, Which::Fork(ForkPoint::of(fork)), add).await?;
        }
        Ok(all)
    }

    /// Lets `f` see the entries of `[start, end)` that a shard has itself, at one moment.
    pub async fn with_own_view<R>(
        &self,
        shard: ShardId,
        (start, end): (u32, u32),
        which: Which,
        f: impl FnOnce(&Core, &Shard, &ExtentMap) -> Result<R>,
    ) -> Result<R> {
        let mut have = Pages::new();
        self.core.borrow_mut().counters.map_lookups += 1;
        loop {
            let loads = {
                let core = &mut *self.core.borrow_mut();
                let s = core.shard(shard)?;
                let mut view = match which {
                    Which::All => s.view(start, end),
                    Which::Committed => s.committed_view(start, end),
                    Which::At(version) => {
                        s.check_version(version)?;
                        s.view_at(start, end, version)
                    }
                    Which::Fork(point) => {
                        if !core.segs.leaves_out(RuleMutant::ForksForgotten) {
                            s.check_fork(&point)?;
                        }
                        s.view_at(start, end, point.version)
                    }
                    Which::Held(r) if s.is_reading(r) => s.view_at(start, end, r.version),
                    Which::Held(_) => return Err(Error::retry("the end of the shard was cut while it was read")),
                };
                let slot = s.slot;
                let runs = core.maps.levels();
                let (device, range) = (core.geometry.device, (start, end));
                let missing = match which {
                    Which::At(version)
                    | Which::Fork(ForkPoint { version, .. })
                    | Which::Held(Reading { version, .. }) => {
                        let mut missing = core.maps.fill_at(device, &runs, slot, range, version, &mut view, &have)?;
                        missing.append(&mut core.fill_past(shard, range, version, &mut view, &have)?);
                        missing
                    }
                    _ => core.maps.fill(device, &runs, slot, range, &mut view, &have)?,
                };
                if missing.is_empty() {
                    return f(core, core.shard(shard)?, &view);
                }
                loads(core, missing)
            };
            self.load(loads, &mut have).await?;
        }
    }

    /// Calls `each` for the trims and zeroes of a range, recorded in a segment, that something newer covers and that a
    /// version which is kept sees.
    pub async fn covered_tombs(
        &self,
        shard: ShardId,
        segment: u32,
        range: (u32, u32),
        each: impl FnMut(u32, &Extent),
    ) -> Result<()> {
        self.with_layers(shard, range, |_, s, layers| {
            s.covered_tombs(segment, layers, each);
            Ok(())
        })
        .await
    }

    /// Lets `f` see all committed entries of `[start, end)`, one above the other, at one moment. Of the uppermost ones
    /// nothing is known that took their place.
    pub async fn with_layers<R>(
        &self,
        shard: ShardId,
        (start, end): (u32, u32),
        f: impl FnOnce(&Core, &Shard, Table) -> Result<R>,
    ) -> Result<R> {
        let mut have = Pages::new();
        loop {
            let loads = {
                let core = &mut *self.core.borrow_mut();
                let slot = core.shard(shard)?.slot;
                let (mut runs, device) = (core.maps.levels(), core.geometry.device);
                // The newest comes last, so that it says where a record lies.
                runs.reverse();
                let (mut layers, mut missing) = (Table::default(), Missing::new());
                let put = |a, e| layers.put_back(a, &Layer { e, to: LAST, found: false, level: 0 });
                core.maps.each_of(device, &runs, slot, (start, end), &have, &mut missing, put)?;
                let mut past = Table::default();
                let put = |a, l: Layer| past.put_back(a, &l);
                missing.append(&mut past::each_past(&mut core.maps, device, slot, &[(start, end)], None, &have, put)?);
                if missing.is_empty() {
                    let s = core.shard(shard)?;
                    s.layers(start, end, past).iter().for_each(|(a, l)| layers.put_back(a, l));
                    return f(core, s, layers);
                }
                loads(core, missing)
            };
            self.load(loads, &mut have).await?;
        }
    }

    /// The first block from `at` on that has an entry, or that may read one from a parent.
    pub async fn next_entry(&self, shard: ShardId, at: u32) -> Result<Option<u32>> {
        let own = self.next_own_entry(shard, at).await?;
        Ok(own.into_iter().chain(self.next_inherited_entry(shard, at).await?).min())
    }

    /// The first block from `at` on that a fork may read from a parent.
    pub async fn next_inherited_entry(&self, shard: ShardId, at: u32) -> Result<Option<u32>> {
        'line: loop {
            let line: Vec<Fork> = self.core.borrow().line(shard).collect();
            let mut next = None;
            for fork in &line {
                match self.next_own_entry(fork.parent, at).await {
                    Ok(found) => next = next.into_iter().chain(found.filter(|a| !is_of_times(*a))).min(),
                    Err(e) if self.is_line(shard, &line) => return Err(e),
                    Err(_) => continue 'line,
                }
            }
            return Ok(next);
        }
    }

    /// The first block from `at` on that has an entry of the shard itself.
    pub async fn next_own_entry(&self, shard: ShardId, at: u32) -> Result<Option<u32>> {
        let mut have = Pages::new();
        loop {
            let loads = {
                let core = &mut *self.core.borrow_mut();
                let s = core.shard(shard)?;
                let (memory, slot) = (s.next_entry(at), s.slot);
                let runs = core.maps.levels();
                let (found, mut missing) = core.maps.next(core.geometry.device, &runs, slot, at, &have)?;
                let (past, mut more) = past::next_past(&mut core.maps, core.geometry.device, slot, at, &have)?;
                missing.append(&mut more);
                let found = found.into_iter().chain(past).min();
                if missing.is_empty() {
                    return Ok(memory.into_iter().chain(found).min());
                }
                loads(core, missing)
            };
            self.load(loads, &mut have).await?;
        }
    }

    /// Looks up what frames that need not be the newest will meet, so that they can be applied in one step right
    /// behind this. Nothing may wait in between.
    pub async fn resolve(&self, frames: &[(&FrameHead, bool)]) -> Result<()> {
        if self.core.borrow().maps.nothing_below() {
            return Ok(());
        }
        let is_large = blocks_of(&late_ranges(&self.core.borrow(), frames, false)) > LOOK_BLOCKS;
        if is_large { self.resolve_in_parts(frames).await } else { self.resolve_at_once(frames).await }
    }

    /// The same for so many blocks that neither their pages nor all their entries are to be in memory together: of each part
    /// only entries are kept that are not older than what is to be applied. Others do not matter there.
    async fn resolve_in_parts(&self, frames: &[(&FrameHead, bool)]) -> Result<()> {
        'moment: loop {
            let (ranges, oldest, runs) = {
                let core = self.core.borrow();
                (late_ranges(&core, frames, true), oldest(&core, frames), core.maps.levels())
            };
            let mut below: BTreeMap<ShardId, ExtentMap> = BTreeMap::new();
            for (id, list) in &ranges {
                let Some(slot) = self.core.borrow().shards.get(id).map(|s| s.slot) else { continue };
                let (all, oldest) = (below.entry(*id).or_default(), oldest.get(id).copied().unwrap_or_default());
                for part in list.iter().flat_map(|(start, end)| parts(*start, *end)) {
                    let Some(view) = self.run_view(&runs, slot, part).await? else { continue 'moment };
                    let newer = view.iter().filter(|(_, e)| e.key() >= oldest);
                    newer.for_each(|(a, e)| all.insert(a, e.clone(), &mut Outcome::default()));
                    yield_now().await;
                }
            }
            let core = &mut *self.core.borrow_mut();
            if !are_levels(core, &runs) {
                continue;
            }
            for (id, view) in below {
                core.shards.get_mut(&id).expect("nothing is applied meanwhile").below = view;
                core.maps.looked.push(id);
            }
            return Ok(());
        }
    }

    /// The entries of a stretch of blocks in these runs; `None` if they are not the map's any more.
    async fn run_view(&self, runs: &[Rc<Run>], slot: u32, range: (u32, u32)) -> Result<Option<ExtentMap>> {
        let mut have = Pages::new();
        loop {
            let loads = {
                let core = &mut *self.core.borrow_mut();
                if !are_levels(core, runs) {
                    return Ok(None);
                }
                let mut view = ExtentMap::default();
                let missing = core.maps.fill(core.geometry.device, runs, slot, range, &mut view, &have)?;
                if missing.is_empty() {
                    return Ok(Some(view));
                }
                loads(core, missing)
            };
            self.load(loads, &mut have).await?;
        }
    }

    async fn resolve_at_once(&self, frames: &[(&FrameHead, bool)]) -> Result<()> {
        let mut have = Pages::new();
        loop {
            let loads = {
                let core = &mut *self.core.borrow_mut();
                let ranges = late_ranges(core, frames, false);
                let (mut below, mut all) = (Vec::new(), Missing::new());
                let runs = core.maps.levels();
                for (id, list) in &ranges {
                    let Some(slot) = core.shards.get(id).map(|s| s.slot) else { continue };
                    let mut view = ExtentMap::default();
                    for range in list {
                        let missing = core.maps.fill(core.geometry.device, &runs, slot, *range, &mut view, &have)?;
                        all.extend(missing);
                    }
                    below.push((*id, view));
                }
                if all.is_empty() {
                    for (id, view) in below {
                        core.shards.get_mut(&id).expect("just seen").below = view;
                        core.maps.looked.push(id);
                    }
                    return Ok(());
                }
                all.sort_by_key(|(r, p)| (r.number, *p));
                all.dedup_by_key(|(r, p)| (r.number, *p));
                loads(core, all)
            };
            self.load(loads, &mut have).await?;
        }
    }

    /// Forgets what was looked up for frames that have been applied.
    pub fn resolved(&self) {
        let core = &mut *self.core.borrow_mut();
        for id in core.maps.looked.drain(..) {
            if let Some(s) = core.shards.get_mut(&id) {
                s.below = ExtentMap::default();
            }
        }
    }
}

/// The blocks of a data frame: first one and end of each extent.
fn data_ranges(head: &FrameHead) -> impl Iterator<Item = (u32, u32)> {
    let list = head.updates().flat_map(|u| u.extents().collect::<Vec<_>>());
    list.map(|(e, _)| (e.range.start.0, e.range.end() as u32))
}

/// Blocks, as stretches that don't touch.
#[derive(Default)]
struct Spans(BTreeMap<u32, u32>);

impl Spans {
    fn add(&mut self, mut start: u32, mut end: u32) {
        let touched = |all: &BTreeMap<u32, u32>, start, end| {
            all.range(..=end).next_back().filter(|s| *s.1 >= start).map(|s| (*s.0, *s.1))
        };
        while let Some((from, to)) = touched(&self.0, start, end) {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    fn overlaps(&self, start: u32, end: u32) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, to)| *to > start)
    }
}

/// True if the map lies in these runs.
fn are_levels(core: &Core, runs: &[Rc<Run>]) -> bool {
    core.maps.levels().iter().map(|r| r.number).eq(runs.iter().map(|r| r.number))
}

/// Stretches of a range that are looked up one by one.
fn parts(start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    (start..end).step_by(PART_BLOCKS as usize).map(move |at| (at, at.saturating_add(PART_BLOCKS).min(end)))
}

fn blocks_of(ranges: &BTreeMap<ShardId, Vec<(u32, u32)>>) -> u64 {
    ranges.values().flatten().map(|(start, end)| u64::from(end.saturating_sub(*start))).sum()
}

/// No entry that frames bring, or repairs that wait for them, is older than this, of each shard.
fn oldest(core: &Core, frames: &[(&FrameHead, bool)]) -> BTreeMap<ShardId, (Version, Sequence)> {
    let mut out: BTreeMap<ShardId, (Version, Sequence)> = BTreeMap::new();
    let mut note = |id: ShardId, key: (Version, Sequence)| {
        let known = out.entry(id).or_insert(key);
        *known = key.min(*known);
    };
    let of_frame = |head: &FrameHead| (Version(head.header().first_version.get()), head.seq());
    for (head, _) in frames {
        let id = head.shard();
        let orphans = core.shards.get(&id).into_iter().flat_map(|s| s.orphans.values());
        orphans.for_each(|(head, _)| note(id, of_frame(head)));
        match head.kind() {
            FrameKind::Carry => {
                let Ok(body) = CarryBody::decode(head.body(), head.header().data_blocks()) else { continue };
                body.entries.iter().for_each(|e| note(id, (e.version, e.sequence)));
            }
            _ => note(id, of_frame(head)),
        }
    }
    out
}

/// The blocks of frames that come out of order. What is here is judged as it is in front of the append, and a frame as it
/// will be then: those in front of it in the same append have acted. `all`: those of entries that are here, too, so that it does
/// not matter what becomes of these meanwhile.
fn late_ranges(core: &Core, frames: &[(&FrameHead, bool)], all: bool) -> BTreeMap<ShardId, Vec<(u32, u32)>> {
    let mut out: BTreeMap<ShardId, Vec<(u32, u32)>> = BTreeMap::new();
    // The entries above the map by then: those that frames in front write, and those held above these.
    let mut above: BTreeMap<ShardId, Spans> = BTreeMap::new();
    let carries = frames.iter().rposition(|(head, _)| head.kind() == FrameKind::Carry).unwrap_or(0);
    for (i, (head, repair)) in frames.iter().enumerate() {
        let (id, ranges) = (head.shard(), out.contains_key(&head.shard()));
        if let Some(s) = core.shards.get(&id).filter(|s| !s.orphans.is_empty()) {
            // Repairs may be adopted by whatever comes next.
            let list = s.orphans.values().flat_map(|(head, _)| data_ranges(head));
            out.entry(id).or_default().extend(list);
        }
        match head.kind() {
            FrameKind::Carry => {
                let Ok(body) = CarryBody::decode(head.body(), head.header().data_blocks()) else { continue };
                // An earlier frame of the same append may free what it finds live now.
                let shard = core.shards.get(&id).filter(|_| frames.len() == 1 || !ranges);
                // What is held above uncommitted frames may reach further than these, and so do others above it then.
                let above = above.entry(id).or_default();
                let parts = |e: &CarryEntry| {
                    let (start, end) = (e.range.start.0, e.range.end() as u32);
                    match shard {
                        Some(s) if !all && !above.overlaps(start, end) && !s.is_over(start, end) => {
                            s.unknown(e, core.replaying)
                        }
                        _ => {
                            above.add(start, end);
                            vec![(start, end - start)]
                        }
                    }
                };
                // Trims and zeroes are as long as they are; only data have places in a chunk.
                let is_one = |e: &&CarryEntry| e.kind != ExtentKind::Data || chunks::fits(e.offset, e.range.len);
                let list = body.entries.iter().filter(is_one).flat_map(parts);
                out.entry(id).or_default().extend(list.map(|(a, n)| (a, a + n)));
            }
            FrameKind::Data => {
                let ahead = core.shards.get(&id).is_some_and(|s| head.seq() <= s.ahead);
                if *repair || ahead || ranges {
                    out.entry(id).or_default().extend(data_ranges(head));
                }
                if i < carries {
                    let above = above.entry(id).or_default();
                    data_ranges(head).for_each(|(start, end)| above.add(start, end));
                }
            }
            _ => {}
        }
    }
    out
}
