//! Checkpoints: the memory tables flushed, a manifest of all else, and a slot that names it.
//!
//! Invariants: a slot is written only when everything that it names is on stable media; the two slots are written in
//! turn, so the older checkpoint stays whole meanwhile. What either names is not written over (rule E5). A checkpoint
//! that can't be read costs time, never data: there is the other one, and the log.

pub mod manifest;

use crate::engine::core::Core;
use crate::engine::maps::merge::Merge;
use crate::engine::maps::write::{LAYER_FENCE_BYTES, LAYER_FENCES, Pages};
use crate::engine::maps::{Io, pause};
use crate::engine::recover::table::{KnownSegment, TableOfSegments};
use crate::log::join::join_all;
use crate::log::place::NUMBER_MAX;
use crate::log::segments::SegmentState;
use crate::log::tomb_list::TombList;
use crate::map::extents::{Extent, ExtentMap};
use crate::map::levels::Kept;
use crate::map::run::{Beside, Members, PastRun, Place, Places, Run};
use crate::map::tally::COUNT_BYTES;
use crate::shard::Shard;
use crate::shard::history::pins::Pins;
use crate::{Finding, RuleMutant};
use freebs_format::disk::{
    CHECKPOINT_AT, CHECKPOINT_BYTES, CHECKPOINT_EXTENTS_MAX, CheckpointSlot, MANIFEST_BYTES_MAX, PAGE_BODY_BYTES,
    PAGE_BYTES, PAGE_FENCES, PAGE_LAYER_FENCES, PAGE_MANIFEST, PAGE_TALLIES, PageHeader, PageName, PagesFixed,
};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{Error, ErrorKind, Result, Sequence, ShardId, Version};
use manifest::{Begun, Manifest, Out, Reader, SegmentItem, SegmentPart};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Elements of lists (runs of chunks, trims and shards of segments, superseded extents) that go into a manifest in one step;
/// of a chunk all of them, which is four times as many at most.
const STEP: usize = 2048;
/// Pages that are read at once.
const READ_PAGES: u32 = 32;

/// The checkpoints that slots name, or why nothing comes of one; with the numbers of the slots.
type Slots = Vec<(usize, Result<(CheckpointSlot, Manifest, Vec<Place>)>)>;

/// A manifest on its way to the device.
struct ManifestWriter {
    out: Out,
    pages: Pages,
    bytes: u64,
}

impl ManifestWriter {
    /// Writes whole pages; all that is there at the end.
    async fn drain<D: Device>(&mut self, io: Io<'_, D>, end: bool) -> Result<()> {
        while let Some(piece) = self.out.piece(PAGE_BODY_BYTES, end)? {
            let bytes = self.bytes + piece.len() as u64;
            if bytes > MANIFEST_BYTES_MAX || self.pages.places.list().len() >= CHECKPOINT_EXTENTS_MAX {
                return Err(Error::no_space("a manifest that is too large, or in too many pieces"));
            }
            self.pages.add(PAGE_MANIFEST, piece, 0);
            self.bytes = bytes;
            if self.pages.is_full() {
                self.pages.write(io).await?;
            }
        }
        if end {
            self.pages.write(io).await?;
        }
        pause().await;
        Ok(())
    }
}

impl<D: Device> Io<'_, D> {
    /// Makes a checkpoint, unless nothing has been appended since the last one, or what lives needs the segment that it
    /// would take, or the log has to say something of its forks first, which no checkpoint has.
    pub async fn checkpoint(&self) -> Result<()> {
        let (device, number, begun) = {
            let mut core = self.core.borrow_mut();
            if core.maps.damaged {
                return Err(Error::corrupt("a page of the map is lost; the next start makes the map anew"));
            }
            core.maps.since = 0;
            if core.segs.leaves_out(RuleMutant::CheckpointCommits) {
                let Core { shards, segs, .. } = &mut *core;
                shards.values_mut().for_each(|s| s.set_committed(s.tip.name.sequence, segs));
            }
            let newest = core.maps.kept.iter().flatten().map(|k| k.written).max();
            let is_new = newest != Some(core.next_append - 1);
            if !is_new || core.has_no_room_for_a_map() || core.has_to_tell() {
                return Ok(());
            }
            let begun = Begun { written: core.next_append - 1, opened: core.next_seq - 1 };
            (core.geometry.device, core.maps.new_run(), begun)
        };
        let mut w = ManifestWriter { out: Out::default(), pages: Pages::new(device, number), bytes: 0 };
        let done = self.write_checkpoint(&mut w, number, begun).await;
        let mut core = self.core.borrow_mut();
        core.maps.written(number);
        core.sweep_map();
        // What waited for the older checkpoint may go.
        let blocked = std::mem::take(&mut core.segs.blocked);
        core.segs.candidates.extend(blocked);
        done
    }

    async fn write_checkpoint(&self, w: &mut ManifestWriter, number: u64, begun: Begun) -> Result<()> {
        let written = begun.written;
        let mut covered = written;
        let note = |shard: &Shard, append| {
            covered = covered.min(w.out.shard(shard, append));
            w.out.pins(shard, false);
            w.out.closed(shard);
            w.out.lost_to_forks(shard);
            w.out.fork(shard);
            w.out.absent(shard);
        };
        self.flush(note).await?;
        let runs = {
            let core = self.core.borrow();
            let (maps, past) = (&core.maps, &core.maps.past);
            maps.young.iter().chain(&past.young).for_each(|r| w.out.run(r, false));
            maps.old.iter().chain(&past.old).for_each(|r| w.out.run(r, true));
            maps.runs().chain(past.runs()).cloned().collect()
        };
        w.drain(*self, false).await?;
        self.write_segments(w).await?;
        // Behind the map, which may have what took its place by then; and before the chunks, which may say by then that
        // nothing needs it any more.
        self.write_history(w).await?;
        self.write_chunks(w).await?;
        {
            let core = self.core.borrow();
            core.shards.values().for_each(|s| w.out.pins(s, true));
            core.shards.values().for_each(|s| w.out.committed(s));
            w.out.finish(begun, core.next_append - 1, core.maps.next_run, core.maps.next_slot);
        }
        w.drain(*self, true).await?;
        let list = w.pages.places.list().to_vec();
        if list.len() > CHECKPOINT_EXTENTS_MAX || w.bytes > MANIFEST_BYTES_MAX {
            return Err(Error::no_space("a manifest that is too large, or in too many pieces"));
        }
        self.device.sync().await.map_err(|e| Error::device_failed(format!("sync of a checkpoint: {e}")))?;
        let revision = 1 + self.core.borrow().maps.kept.iter().flatten().map(|k| k.revision).max().unwrap_or(0);
        self.write_slot(revision, number, w.bytes, &list, written).await?;
        let kept = Kept { revision, runs, manifest: list, covered, written };
        let mut core = self.core.borrow_mut();
        core.maps.kept[(revision % 2) as usize] = Some(kept);
        core.maps.had_checkpoint = true;
        core.counters.checkpoints += 1;
        Ok(())
    }

    async fn write_segments(&self, w: &mut ManifestWriter) -> Result<()> {
        let (mut id, mut part) = (0, SegmentPart::default());
        loop {
            let is_end = {
                let core = self.core.borrow();
                let mut left = STEP;
                while left > 0 && id < core.segs.len() {
                    let s = core.segs.get(id);
                    let from = Some(part).filter(|p| p.seq == s.seq).unwrap_or_default();
                    let (n, next) = if s.is_used() { w.out.segment(id, s, from, left) } else { (0, None) };
                    id += u32::from(next.is_none());
                    (part, left) = (next.unwrap_or_default(), left.saturating_sub(n + 1));
                }
                id == core.segs.len()
            };
            w.drain(*self, false).await?;
            if is_end {
                return Ok(());
            }
        }
    }

    async fn write_history(&self, w: &mut ManifestWriter) -> Result<()> {
        let shards: Vec<ShardId> = self.core.borrow().shards.keys().copied().collect();
        for id in shards {
            let mut last = None;
            loop {
                last = self.core.borrow().shards.get(&id).and_then(|s| w.out.history(s, last, STEP));
                w.drain(*self, false).await?;
                if last.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn write_chunks(&self, w: &mut ManifestWriter) -> Result<()> {
        let shards: Vec<ShardId> = self.core.borrow().shards.keys().copied().collect();
        for id in shards {
            let mut last = None;
            loop {
                last = match self.core.borrow().shards.get(&id) {
                    Some(s) => w.out.chunks(s.slot, &s.chunks, last, STEP),
                    None => None,
                };
                if last.is_none() {
                    break;
                }
                w.drain(*self, false).await?;
            }
        }
        Ok(())
    }

    async fn write_slot(&self, revision: u64, manifest: u64, bytes: u64, list: &[Place], durable: u64) -> Result<()> {
        let extent = |p: &Place| PagesFixed { segment: p.segment.into(), page: p.page.into(), count: p.count.into() };
        let extents: Vec<PagesFixed> = list.iter().map(extent).collect();
        let slot = CheckpointSlot {
            magic: [0; 4],
            version: 0.into(),
            length: 0.into(),
            device: self.device_id().0,
            revision: revision.into(),
            manifest: manifest.into(),
            bytes: bytes.into(),
            extents: 0.into(),
            durable: durable.into(),
            reserved: [0; 28],
            extents_crc: 0.into(),
            crc: 0.into(),
        };
        self.put_slot((revision % 2) as usize, &slot.encode(&extents)).await?;
        let maps = &mut self.core.borrow_mut().maps;
        maps.durable = maps.durable.max(durable);
        Ok(())
    }

    /// Writes a slot over with one that names no checkpoint. What it said of the end of the log stays (rule E7).
    async fn empty_slot(&self, i: usize) -> Result<()> {
        let durable = self.core.borrow().maps.durable;
        if durable == 0 {
            return self.put_slot(i, &[0; CHECKPOINT_BYTES]).await;
        }
        self.write_slot(i as u64, 0, 0, &[], durable).await
    }

    async fn put_slot(&self, i: usize, bytes: &[u8]) -> Result<()> {
        let mut buf = AlignedBuf::zeroed(CHECKPOINT_BYTES);
        buf.copy_from_slice(bytes);
        self.core.borrow_mut().counters.map_bytes += CHECKPOINT_BYTES as u64;
        let (_, done) = self.device.write(CHECKPOINT_AT[i], buf, Durability::Durable).await;
        done.map_err(|e| Error::device_failed(format!("write of a checkpoint: {e}")))
    }

    /// After a page was lost no checkpoint may be begun with.
    pub async fn forget_checkpoints(&self) -> Result<()> {
        for i in self.slot_order().await {
            let there = self.core.borrow().maps.kept[i].is_some();
            if there {
                self.empty_slot(i).await?;
                let mut core = self.core.borrow_mut();
                core.maps.kept[i] = None;
                core.sweep_map();
            }
        }
        Ok(())
    }

    /// Empties slots that nobody keeps: what they name may be written over.
    pub async fn erase_stale(&self) -> Result<()> {
        for i in self.slot_order().await {
            let stale = std::mem::take(&mut self.core.borrow_mut().maps.stale[i]);
            if stale {
                self.empty_slot(i).await?;
            }
        }
        self.core.borrow_mut().maps.avoid.clear();
        Ok(())
    }

    async fn read_slot(&self, i: usize) -> Result<(CheckpointSlot, Vec<PagesFixed>)> {
        let bytes = self.device.read(CHECKPOINT_AT[i], CHECKPOINT_BYTES).await?;
        CheckpointSlot::decode(&bytes, self.device_id())
    }

    /// The append that each slot says was durable; 0 if it does not say, or what can't be.
    pub async fn said_durable(&self) -> [u64; 2] {
        let mut said = [0; 2];
        for (i, said) in said.iter_mut().enumerate() {
            *said = self.read_slot(i).await.map_or(0, |(slot, _)| durable(&slot));
        }
        said
    }

    /// The order in which both slots may be written over: what the last one says of the end of the log is in the first one
    /// by then.
    async fn slot_order(&self) -> [usize; 2] {
        if self.core.borrow().maps.durable == 0 {
            return [0, 1];
        }
        let [a, b] = self.said_durable().await;
        if a < b { [0, 1] } else { [1, 0] }
    }

    /// The checkpoints that the slots name, the newest first, and of the others what tells what they name; and notes the
    /// ends of the log that they tell. One that can't be read may have been cut short by a power failure, so that is told
    /// only if both can't: they are never written together.
    pub async fn slots(&self) -> Slots {
        let (mut out, mut bad, mut named) = (Slots::new(), Slots::new(), Vec::new());
        for i in 0..CHECKPOINT_AT.len() {
            match self.read_slot(i).await {
                Err(e) if e.kind == ErrorKind::NotFound => {}
                Err(e) => bad.push((i, Err(e))),
                Ok((slot, extents)) => {
                    let maps = &mut self.core.borrow_mut().maps;
                    maps.durable = maps.durable.max(durable(&slot));
                    if !extents.is_empty() {
                        named.push((i, slot, extents));
                    }
                }
            }
        }
        if bad.len() == CHECKPOINT_AT.len() {
            return bad;
        }
        named.sort_by_key(|(_, slot, _)| std::cmp::Reverse(slot.revision.get()));
        for (i, slot, extents) in named {
            // The tables of one are enough memory: a start begins with the newest that is whole.
            let whole = out.iter().all(|(_, found)| found.is_err());
            let manifest = self.read_manifest(&slot, &extents, whole).await;
            let named = |e: Error| e.at(format!("checkpoint {}", slot.revision));
            out.push((i, manifest.map_err(named).map(|(m, places)| (slot, m, places))));
        }
        out.sort_by_key(|(_, r)| std::cmp::Reverse(r.as_ref().map_or(0, |(s, ..)| s.revision.get())));
        out
    }

    /// The log as the newest checkpoint has it; `None` without one that is whole.
    pub async fn table(&self) -> Option<TableOfSegments> {
        let mut named = Vec::new();
        for i in 0..CHECKPOINT_AT.len() {
            let found = self.read_slot(i).await.ok();
            named.extend(found.filter(|(_, extents)| !extents.is_empty()));
        }
        let (slot, extents) = named.into_iter().max_by_key(|(slot, _)| slot.revision.get())?;
        let (m, _) = self.read_manifest(&slot, &extents, false).await.ok()?;
        let (revision, opened, covered) = (slot.revision.get(), m.opened, m.covered());
        let known = |s: SegmentItem| KnownSegment { id: s.id, seq: s.seq, appends: s.appends, evidence: s.evidence };
        Some(TableOfSegments { revision, opened, covered, segments: m.segments.into_iter().map(known).collect() })
    }

    /// All of the manifest of a slot of which not all was kept.
    pub async fn whole_manifest(&self, i: usize) -> Result<Manifest> {
        let (slot, extents) = self.read_slot(i).await?;
        Ok(self.read_manifest(&slot, &extents, true).await?.0)
    }

    /// Reads every page that the slots name; gives back how many, their segments, and what is wrong.
    pub async fn audit(&self) -> Audit {
        let mut out = Audit::default();
        for (i, found) in self.slots().await {
            let at = Finding { segment: None, offset: CHECKPOINT_AT[i], what: String::new() };
            match found {
                Err(e) => out.wrong.push(Finding { what: e.text.into_owned(), ..at }),
                Ok((_, m, places)) => {
                    out.pages += places.iter().map(|p| u64::from(p.count)).sum::<u64>();
                    out.segments.extend(places.iter().map(|p| p.segment));
                    for (run, _, pages) in m.runs {
                        let (number, places) = (run.number, run.places.clone());
                        out.segments.extend(places.list().iter().map(|p| p.segment));
                        out.pages += u64::from(places.pages);
                        for page in 0..places.pages {
                            if let Err(e) = self.audit_page(&run, page, pages).await {
                                let p = places.find(page, 1);
                                let offset = u64::from(p.page) * PAGE_BYTES as u64;
                                let what = format!("page {page} of run {number} of the map: {}", e.text);
                                out.wrong.push(Finding { segment: Some(p.segment), offset, what });
                            }
                        }
                    }
                }
            }
        }
        // Both checkpoints may name the same run.
        out.wrong.sort_by_key(|f| (f.segment, f.offset));
        out.wrong.dedup();
        out
    }

    pub async fn audit_page(&self, run: &Run, page: u32, entries: u32) -> Result<()> {
        let at = run.places.find(page, 1);
        if u64::from(at.segment) >= u64::from(self.core.borrow().segs.len()) {
            return Err(Error::corrupt("it lies behind the end of the device"));
        }
        let bytes = self.read_pages(at).await?;
        let kind = match (run.past(), page < entries) {
            (None, true) => return run.entries_of(self.device_id(), page, &bytes, |_, _, _| ()),
            (Some(_), true) => return run.layers_of(self.device_id(), page, &bytes, |_, _, _| ()),
            (None, false) => PAGE_FENCES,
            (Some(_), false) => past_kind(page, entries),
        };
        let name = PageName { kind, ..run.name(self.device_id(), page) };
        PageHeader::open(&bytes, name).map(|_| ())
    }

    async fn read_manifest(
        &self,
        slot: &CheckpointSlot,
        extents: &[PagesFixed],
        whole: bool,
    ) -> Result<(Manifest, Vec<Place>)> {
        let mut places = Places::default();
        let pages = self.core.borrow().geometry.segment_bytes / PAGE_BYTES as u64;
        for e in extents {
            let p = Place { segment: e.segment.get(), page: e.page.get(), count: e.count.get() };
            let fits = p.count > 0 && u64::from(p.page) + u64::from(p.count) <= pages;
            if !fits || p.segment >= self.core.borrow().segs.len() {
                return Err(Error::corrupt("checkpoint with an impossible place"));
            }
            places.push(p);
        }
        let (mut bytes, mut reader) = (0, Reader::new(whole));
        self.read_all(
            &places,
            0..places.pages,
            |page| (PAGE_MANIFEST, slot.manifest.get(), page),
            |_, body| {
                bytes += body.len() as u64;
                reader.push(body)
            },
        )
        .await?;
        if bytes != slot.bytes.get() {
            return Err(Error::corrupt("manifest of another length"));
        }
        Ok((reader.finish()?, places.list().to_vec()))
    }

    /// Reads pages in order.
    async fn read_all(
        &self,
        places: &Places,
        pages: std::ops::Range<u32>,
        name: impl Fn(u32) -> (u16, u64, u32),
        mut each: impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (device, mut page) = (self.device_id(), pages.start);
        while page < pages.end {
            let at = places.find(page, READ_PAGES.min(pages.end - page));
            let bytes = self.read_pages(at).await?;
            for part in bytes.chunks_exact(PAGE_BYTES) {
                let (kind, run, number) = name(page);
                let (count, body) = PageHeader::open(part, PageName { device, kind, run, page: number })?;
                each(count, body)?;
                page += 1;
            }
        }
        Ok(())
    }

    fn check_places(&self, run: &Run) -> Result<()> {
        let core = self.core.borrow();
        let (segments, most) = (core.segs.len(), core.geometry.segment_bytes / PAGE_BYTES as u64);
        let fits = |p: &Place| p.segment < segments && u64::from(p.page) + u64::from(p.count) <= most;
        let fit = run.places.list().iter().all(fits);
        if fit { Ok(()) } else { Err(Error::corrupt("run in an impossible place")) }
    }

    /// Fences, and for a young run members, of a run that a manifest names.
    pub(crate) async fn load_run(&self, mut run: Run, members: bool, pages: u32) -> Result<Run> {
        self.check_places(&run)?;
        let (mut fences, number, places) = (Vec::new(), run.number, run.places.clone());
        self.read_all(
            &places,
            pages..places.pages,
            |p| (PAGE_FENCES, number, p),
            |_, body| {
                fences.extend(body.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes"))));
                Ok(())
            },
        )
        .await?;
        if fences.len() != pages as usize || !fences.is_sorted() {
            return Err(Error::corrupt("run with fences that don't fit it"));
        }
        run.fences = fences;
        if members {
            let mut members = Members::default();
            let name = |p| (freebs_format::disk::PAGE_ENTRIES, number, p);
            self.read_all(&places, 0..pages, name, |count, body| {
                for e in crate::map::page::PageReader::new(body, count) {
                    let (slot, start, e) = e?;
                    if !members.push(slot, start, e.len) {
                        return Err(Error::corrupt("run with entries out of order"));
                    }
                }
                Ok(())
            })
            .await?;
            members.shrink();
            run.beside = Beside::Members(members);
        }
        Ok(run)
    }

    /// Fences and counts of a run of history that a manifest names.
    async fn load_past(&self, mut run: Run, pages: u32) -> Result<Run> {
        self.check_places(&run)?;
        let (mut past, number, places) = (PastRun::default(), run.number, run.places.clone());
        let senseless = || Error::corrupt("run of history with fences or counts that don't fit it");
        let name = |p| (past_kind(p, pages), number, p);
        let (mut left, mut fences) = (pages as usize, Vec::new());
        self.read_all(&places, pages..places.pages, name, |count, body| {
            if left == 0 {
                let each = body.chunks_exact(COUNT_BYTES).map(|b| past.tallies.decode(b));
                return each.collect::<Option<()>>().ok_or_else(senseless);
            }
            left = left.checked_sub(count as usize).filter(|_| count > 0).ok_or_else(senseless)?;
            for pair in body.chunks_exact(LAYER_FENCE_BYTES) {
                let (fence, begun) = pair.split_at(LAYER_FENCE_BYTES / 2);
                let number = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("eight bytes"));
                fences.push(number(fence));
                past.begun.push(number(begun));
            }
            Ok(())
        })
        .await?;
        let counted = past.tallies.slots().map(|(_, n)| n.layers).fold(0, u64::saturating_add);
        let is_sound = fences.len() == pages as usize && fences.is_sorted() && past.begun.first() == Some(&0);
        if !is_sound || counted != run.entries {
            return Err(senseless());
        }
        (run.fences, run.beside) = (fences, Beside::Past(past));
        Ok(run)
    }

    /// Begins with a checkpoint: the runs are levels, and the shards are what they were. `used` has the segments of the
    /// log that count, with their numbers. Nothing has changed after an error.
    pub async fn begin_with(&self, mut m: Manifest, used: &BTreeMap<u32, u64>) -> Result<BTreeMap<ShardId, u64>> {
        let places = m.runs.iter().flat_map(|(r, ..)| r.places.list());
        if places.into_iter().any(|p| used.contains_key(&p.segment)) {
            return Err(Error::corrupt("a run lies in a segment of the log"));
        }
        let is_past = |(r, ..): &(Run, bool, u32)| r.past().is_some();
        let (past, runs): (Vec<_>, Vec<_>) = std::mem::take(&mut m.runs).into_iter().partition(is_past);
        let resident = self.core.borrow().maps.fits_memory(&runs);
        let loads = runs.into_iter().map(|(run, old, pages)| async move {
            // Nothing is looked up in runs of maps that are in memory.
            (self.load_run(run, !old && !resident, pages).await, old)
        });
        let (mut young, mut top) = (Vec::new(), None);
        for (run, old) in join_all(loads.collect()).await {
            let run = Rc::new(run?);
            if old { top = Some(run) } else { young.push(run) }
        }
        let (mut past_young, mut past_old) = (Vec::new(), None);
        for (run, old, pages) in past {
            let run = Rc::new(self.load_past(run, pages).await?);
            if old { past_old = Some(run) } else { past_young.push(run) }
        }
        let loaded =
            if resident { self.load_maps(young.iter().chain(&top).cloned()).await? } else { Loaded::default() };
        let core = &mut *self.core.borrow_mut();
        core.maps.resident = resident;
        (core.maps.young, core.maps.old) = (young.into(), top);
        (core.maps.past.young, core.maps.past.old) = (past_young.into(), past_old);
        let covered = core.put_back(m, used);
        core.past_changed();
        for (slot, map) in loaded.maps {
            if let Some(s) = core.maps.slots.get(&slot).and_then(|id| core.shards.get_mut(id)) {
                (s.map, s.flushed) = (map, s.committed);
                core.maps.grown += s.map.bytes();
            }
        }
        loaded.gone.iter().for_each(|(slot, a, e, by)| core.superseded(*slot, *a, e, *by));
        Ok(covered)
    }

    /// Takes what runs have into memory.
    async fn load_maps(&self, runs: impl Iterator<Item = Rc<Run>>) -> Result<Loaded> {
        let (mut merge, mut out) = (Merge::new(runs), Loaded::default());
        let Loaded { maps, gone } = &mut out;
        while let Some((slot, a, e)) = merge.next(*self, |slot, a, e, by| gone.push((slot, a, e, by))).await? {
            maps.entry(slot).or_default().push(a, e);
        }
        Ok(out)
    }
}

/// The kind of a page of a run of history behind those with layers: first the fences, then the counts.
fn past_kind(page: u32, pages: u32) -> u16 {
    let fences = pages.div_ceil(LAYER_FENCES as u32);
    if page < pages + fences { PAGE_LAYER_FENCES } else { PAGE_TALLIES }
}

/// The append that a slot says was durable; 0 if it says none, or one that can't be.
fn durable(slot: &CheckpointSlot) -> u64 {
    Some(slot.durable.get()).filter(|n| *n < NUMBER_MAX).unwrap_or(0)
}

/// What a look at all pages of all checkpoints found.
#[derive(Default)]
pub(crate) struct Audit {
    pub pages: u64,
    pub segments: BTreeSet<u32>,
    pub wrong: Vec<Finding>,
}

/// Maps by slot, and what of the runs they came from nothing names any more.
#[derive(Default)]
struct Loaded {
    maps: BTreeMap<u32, ExtentMap>,
    gone: Vec<(u32, u32, Extent, Version)>,
}

impl Core {
    /// Shards, segments and chunks as a manifest has them; gives back up to which append each shard is covered.
    fn put_back(&mut self, m: Manifest, used: &BTreeMap<u32, u64>) -> BTreeMap<ShardId, u64> {
        self.maps.next_run = self.maps.next_run.max(m.next_run);
        self.maps.next_slot = self.maps.next_slot.max(m.next_slot);
        let mut covered = BTreeMap::new();
        for (s, append) in m.shards {
            covered.insert(s.id, append);
            self.maps.slots.insert(s.slot, s.id);
            // One that was deleted and made anew while the checkpoint was written has two slots in it.
            if let Some(before) = self.shards.insert(s.id, s) {
                self.maps.slots.remove(&before.slot);
            }
        }
        let by_counter = self.segs.leaves_out(RuleMutant::ChunkIsCounter);
        let packing = self.packing();
        self.shards.values_mut().for_each(|s| {
            (s.sure_from, s.chunks.by_counter, s.chunks.packing) = (m.last, by_counter, packing);
        });
        let committed = m.committed.into_iter();
        let committed = committed.filter_map(|(slot, to)| Some((*self.maps.slots.get(&slot)?, slot, to)));
        self.maps.committed = (m.last, committed.collect());
        let known = self.put_back_segments(m.segments, used);
        self.shards.values_mut().for_each(|s| s.frames.keep_segments(|id| known.contains(&id)));
        for c in m.chunks {
            let Some(id) = self.maps.slots.get(&c.slot) else { continue };
            let Some(s) = self.shards.get_mut(id) else { continue };
            let segs = &mut self.segs;
            // Places in segments that were given up since are of blocks that nothing names any more.
            let (mut places, packing) = c.places;
            places.retain(packing, |id| known.contains(&id));
            s.chunks.import(c.id, (places, packing), c.words, |seg, n| segs.count_live(seg, n));
        }
        for p in m.pins {
            let Some(s) = self.maps.slots.get(&p.slot).and_then(|id| self.shards.get_mut(id)) else { continue };
            s.history.below.was_loose(p.is_loose);
            if p.later {
                s.history.hint.join(&p.kept);
            } else {
                s.history.pins = Pins::new(p.kept, p.as_of);
                s.history.whole_from = p.whole_from;
            }
        }
        for (slot, list) in m.closed {
            let shard = self.maps.slots.get(&slot).and_then(|id| self.shards.get_mut(id));
            shard.into_iter().for_each(|s| s.closed.merge(&list));
        }
        for (slot, lost) in m.lost {
            let shard = self.maps.slots.get(&slot).and_then(|id| self.shards.get_mut(id));
            shard.into_iter().for_each(|s| s.history.lost_to_forks.add(lost.iter().copied()));
        }
        for (slot, fork) in m.forks {
            let Some(s) = self.maps.slots.get(&slot).and_then(|id| self.shards.get_mut(id)) else { continue };
            s.fork = Some(fork);
            let id = s.id;
            self.fork_changed(id, None);
        }
        for (slot, ended) in m.flats {
            let shard = self.maps.slots.get(&slot).and_then(|id| self.shards.get_mut(id));
            shard.into_iter().for_each(|s| s.set_ended(ended));
        }
        self.put_back_absent(&m.absent);
        for (slot, at, layer) in m.history {
            let Some(s) = self.maps.slots.get(&slot).and_then(|id| self.shards.get_mut(id)) else { continue };
            s.history.memory.put_back(at, &layer);
        }
        for (id, hint) in &self.hints {
            self.shards.get_mut(id).into_iter().for_each(|s| s.history.hint.join(hint));
        }
        covered
    }

    fn put_back_absent(&mut self, absent: &[(u32, (Sequence, Sequence))]) {
        for (slot, absent) in absent {
            let shard = self.maps.slots.get(slot).and_then(|id| self.shards.get_mut(id));
            shard.into_iter().for_each(|s| s.absent = Some(*absent));
        }
    }

    /// Segments as a manifest has them, those that count; gives back which ones it has.
    fn put_back_segments(&mut self, segments: Vec<SegmentItem>, used: &BTreeMap<u32, u64>) -> BTreeSet<u32> {
        let mut known = BTreeSet::new();
        for s in segments.into_iter().filter(|s| used.get(&s.id) == Some(&s.seq)) {
            known.insert(s.id);
            let seg = self.segs.get_mut(s.id);
            (seg.appends, seg.forgets) = (s.appends, s.forgets);
            if s.in_index > 0 {
                seg.tomb_list = TombList::of_index(s.in_index);
            }
            s.tombs.into_iter().for_each(|(shard, start, len)| seg.tomb_list.add(shard, start, len));
            seg.evidence |= s.evidence;
            seg.pins.extend(s.pins.into_iter().filter(|p| used.contains_key(p)));
            if !s.content.is_empty() {
                seg.content = s.content;
            }
        }
        known
    }

    /// Segments that a checkpoint names are not used for anything else.
    pub fn keep_checkpoint(&mut self, i: usize, slot: &CheckpointSlot, m: &Manifest, manifest: Vec<Place>) -> bool {
        let runs = m.runs.iter().map(|(r, ..)| Run { number: r.number, places: r.places.clone(), ..Run::default() });
        let runs: Vec<Rc<Run>> = runs.map(Rc::new).collect();
        let places = || runs.iter().flat_map(|r| r.places.list()).chain(&manifest);
        let ids: BTreeSet<u32> = places().map(|p| p.segment).collect();
        let free = |id: &u32| {
            *id < self.segs.len() && matches!(self.segs.get(*id).state, SegmentState::Ready | SegmentState::Map)
        };
        if !ids.iter().all(free) {
            return false;
        }
        for id in ids {
            if self.segs.get(id).state == SegmentState::Ready {
                self.segs.set_state(id, SegmentState::Map);
                self.segs.map_count += 1;
                self.maps.found(id);
            }
        }
        let (covered, written) = (m.covered(), m.written);
        self.maps.kept[i] = Some(Kept { revision: slot.revision.get(), runs, manifest, covered, written });
        self.maps.had_checkpoint = true;
        self.maps.next_run = self.maps.next_run.max(m.next_run).max(slot.manifest.get() + 1);
        true
    }
}
