//! Recovery: from the bytes of a device to the state that its frames make.
//!
//! The newest segment's live table says which segments count; closed ones are known by their index, the rest is
//! scanned; then all frames are applied in log order. Segments whose ends are blank are not read: most are holes.
//!
//! Invariants (rule E7): an unfinished append is a torn tail only if a part of it can be read and is not what was to be
//! written, and no append with a higher number, and no word of a later one, says that it was durable. An end that the
//! device can't read may be an append that was durable. What is lost of an append is taken from
//! the one behind it, which repeats it. Anything else is damage: what is behind it is kept, shards with a gap there get a
//! hole, and shards that could have lost their last frame a suspect tail. The segment's footer and later appends name it, so
//! that the next recovery misses the same. Blocks that cleaning had moved into an append of the open segment are still where
//! they were. If a segment was opened behind the append by somebody who did not know, they leave no gap, and frames that
//! were given up are missed again.

pub mod table;

use crate::engine::core::Core;
use crate::engine::maps::Io;
use crate::log::geometry::{Geometry, LastAppend, OpenSegment};
use crate::log::join::join_all;
use crate::log::lost::LostAppends;
use crate::log::openings::{Opened, footer_in};
use crate::log::place::At;
use crate::log::scan::{Found, Scan, Window, find_seq, read_append, read_index, scan};
use crate::log::segments::SegmentState;
use crate::shard::Shard;
use crate::shard::history::Hints;
use crate::{Finding, OpenReport, Options, RuleMutant};
use bytes::BytesMut;
use freebs_format::crc32c;
use freebs_format::disk::{
    APPEND_REPAIR, AppendHeader, CHECKPOINT_AT, IndexEntry, LOG_NUMBER_END, LiveTable, PageHeader, REPEAT_BYTES_MAX,
    Repeat, SEGMENTS_AT, SEGMENTS_MAX, SegmentFooter,
};
use freebs_io::Device;
use freebs_types::{Error, ErrorKind, Result, SegmentId, ShardId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Findings of one recovery that are told one by one.
const FINDINGS_MAX: usize = 1000;

/// What the first and last sector of a segment say.
#[derive(Clone, Copy)]
struct Survey {
    id: u32,
    seq: u64,
    /// Number of the segment that was opened right before it.
    before: u64,
    /// Number of its first append.
    first: Option<u64>,
    footer: Option<SegmentFooter>,
    /// The appends that its first one says are lost.
    lost: Option<(u64, u64)>,
    /// What is wrong with it; said only if the segment counts.
    wrong: Option<&'static str>,
    /// Its last append, if a manifest says so: it is closed and covered, and none of its bytes was read. Else 0.
    covered: u64,
}

impl Survey {
    /// A segment that a manifest says is closed, covered and whole. Which one was opened right before it, and which
    /// append its first one says is lost, is asked only where something is wrong, and then all segments are read.
    fn covered(id: u32, seq: u64, first: u64, last: u64) -> Self {
        let (before, first) = (seq.saturating_sub(1), Some(first));
        Self { id, seq, before, first, footer: None, lost: None, wrong: None, covered: last }
    }
}

struct Recovery<'a, D> {
    device: &'a D,
    geometry: Geometry,
    report: &'a mut OpenReport,
    core: RefCell<Core>,
    from: From,
    /// By a segment's number: the first append of the one that was opened next, also if that no longer counts.
    next_firsts: BTreeMap<u64, u64>,
    /// Last append of the segment before, and that segment's number.
    before: Option<(u64, u64)>,
    last_append: u64,
    /// What the checkpoint covers of each shard, and of those that it does not have.
    covered: BTreeMap<ShardId, u64>,
    covered_rest: u64,
    /// The segment that was open. What cleaning moved into its appends lies where it was, too: its live table still names
    /// the segments that were emptied.
    open: Option<u32>,
    /// By a segment's number: the appends that the first one of the segment that was opened next says are lost.
    said_lost: BTreeMap<u64, (u64, u64)>,
    /// Lost appends of the segment that is scanned, of which it or the next one says so: that was known while it was open.
    known: LostAppends,
    /// Appends that are lost in the segment that was open.
    lost_in_open: LostAppends,
    /// A whole segment is lost: any gap may be damage.
    segment_lost: bool,
    /// A slot of a checkpoint said that appends up to here were durable.
    known_durable: u64,
    /// Where the log goes on as the newest segment says, if it can't be read there: the next segment may have been begun.
    unread: Option<u32>,
    /// A mark told of a version that is kept after something was let go of that it may need.
    late: bool,
    /// Revision of the checkpoint whose table took the place of asking all segments; 0 if they were asked.
    table_of: u64,
}

/// What recovery makes the state from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// A checkpoint, if there is a good one, and the log behind it.
    Checkpoint,
    /// The log alone.
    Log,
    /// The log alone, in memory: nothing is written.
    Memory,
    /// As `Memory`, from the appends alone, as if no segment had an index.
    Appends,
}

pub(crate) async fn recover<D: Device>(
    device: &D,
    geometry: Geometry,
    (options, mutant): (Options, Option<RuleMutant>),
    report: &mut OpenReport,
) -> Result<Core> {
    // A checkpoint may turn out to be damaged only when one of its pages is needed. Then the log alone is read; and so it
    // is where anything else is damaged, because then the log alone knows what is missed.
    let mut findings = Vec::new();
    let (first, mut known_durable, mut avoid) = (report.clone(), 0, BTreeSet::new());
    let mut ways = VecDeque::from([(From::Checkpoint, true), (From::Log, false)]);
    let mut hints: Option<Hints> = None;
    while let Some((from, table)) = ways.pop_front() {
        *report = first.clone();
        let mut r = Recovery::new(device, geometry, options, report, from);
        r.known_durable = known_durable;
        r.core.get_mut().segs.mutant = mutant;
        r.core.get_mut().maps.avoid = std::mem::take(&mut avoid);
        r.core.get_mut().hints = hints.clone().unwrap_or_default();
        let done = r.all(table).await;
        avoid.clone_from(&r.core.get_mut().maps.avoid);
        if r.is_astray() {
            ways.push_front((from, false));
            continue;
        }
        let lost = r.core.get_mut().maps.damaged || done.as_ref().is_err_and(|e| e.kind == ErrorKind::Corrupt);
        let begun = done.is_ok() && r.report.checkpoint > 0;
        let cut_short = r.covered_rest > r.last_append;
        known_durable = known_durable.max(r.known_durable);
        if from == From::Checkpoint && begun && !lost && (cut_short || r.report.damage.len() > first.damage.len()) {
            known_durable = known_durable.max(r.covered_rest);
            findings.extend(r.report.damage[first.damage.len()..].iter().filter(|f| f.segment.is_none()).cloned());
            continue;
        }
        if from == From::Checkpoint && lost {
            let what = "a page of the map is lost; the log was read from its beginning".to_owned();
            findings.push(Finding { segment: None, offset: CHECKPOINT_AT[0], what });
            continue;
        }
        done?;
        let late = r.late;
        let mut core = r.core.into_inner();
        if late && hints.is_none() {
            // What was let go of is pinned, as a mark said later. Now that is known from the start.
            hints = Some(core.keeps());
            ways.push_front((from, table));
            continue;
        }
        core.maps.durable = known_durable;
        core.maps.stale = [0, 1].map(|i| core.maps.kept[i].is_none());
        findings.retain(|f| !report.damage.contains(f));
        report.damage.append(&mut findings);
        return Ok(core);
    }
    Err(Error::bug("the log alone needs no page of the map"))
}

/// The state in memory, from the log alone, and from what slots of checkpoints say of its end.
/// Nothing is written.
pub(crate) async fn recover_in_memory<D: Device>(
    device: &D,
    geometry: Geometry,
    report: &mut OpenReport,
    indexes: bool,
) -> Result<Core> {
    let from = if indexes { From::Memory } else { From::Appends };
    let (first, mut hints) = (report.clone(), None);
    loop {
        *report = first.clone();
        let mut r = Recovery::new(device, geometry, Options::UNBOUNDED, report, from);
        r.core.get_mut().hints = hints.clone().unwrap_or_default();
        r.all(false).await?;
        let late = r.late;
        let core = r.core.into_inner();
        if !late || hints.is_some() {
            return Ok(core);
        }
        hints = Some(core.keeps());
    }
}

impl<'a, D: Device> Recovery<'a, D> {
    fn new(device: &'a D, geometry: Geometry, options: Options, report: &'a mut OpenReport, from: From) -> Self {
        let core = RefCell::new(Core::new(geometry, segments_of(device, geometry), options));
        Self {
            device,
            geometry,
            report,
            core,
            from,
            next_firsts: BTreeMap::new(),
            before: None,
            last_append: 0,
            covered: BTreeMap::new(),
            covered_rest: 0,
            open: None,
            said_lost: BTreeMap::new(),
            known: LostAppends::default(),
            lost_in_open: LostAppends::default(),
            segment_lost: false,
            known_durable: 0,
            unread: None,
            late: false,
            table_of: 0,
        }
    }
}

/// Whole segments that the device has room for now.
pub(crate) fn segments_of<D: Device>(device: &D, geometry: Geometry) -> u32 {
    let bytes = device.len().saturating_sub(SEGMENTS_AT);
    (bytes / geometry.segment_bytes).min(u64::from(SEGMENTS_MAX)) as u32
}

impl<D: Device> Recovery<'_, D> {
    fn finding(&mut self, segment: u32, offset: u32, what: impl Into<String>) {
        let segs = &mut self.core.get_mut().segs;
        if segment < segs.len() {
            segs.get_mut(segment).evidence = true;
        }
        self.found(Finding { segment: Some(segment), offset: u64::from(offset), what: what.into() });
    }

    fn found(&mut self, f: Finding) {
        if self.report.damage.len() < FINDINGS_MAX {
            self.report.damage.push(f);
        }
    }

    /// Every segment is asked what it is, unless there is a `table` to go by.
    async fn all(&mut self, table: bool) -> Result<()> {
        let writes = matches!(self.from, From::Checkpoint | From::Log);
        if writes {
            self.core.get_mut().opened = Opened::load(self.device, &self.geometry).await;
        }
        let known = if table { self.by_table().await } else { None };
        let mut surveys = match known {
            Some(known) => known,
            None => self.ask_all().await,
        };
        if self.from == From::Appends {
            surveys.values_mut().for_each(|s: &mut Survey| s.footer = None);
        } else {
            self.look_behind(&mut surveys).await;
        }
        let found = self.newest(&mut surveys).await;
        // Of two that were opened behind the same one, the first had a torn append alone.
        self.next_firsts = surveys.values().filter_map(|s| Some((s.before, s.first?))).collect();
        let next_seq = surveys.last_key_value().map_or(0, |(seq, _)| *seq) + 1;
        self.core.get_mut().next_seq = next_seq;
        if writes {
            self.note_opened(&surveys, next_seq);
        }
        let Some((newest, mut tail)) = found else {
            self.free(&surveys);
            self.ask_slots().await;
            self.nothing_left().await;
            return Ok(());
        };
        self.open = tail.as_ref().map(|_| newest.id);
        self.said_lost.extend(surveys.values().filter_map(|s| Some((s.before, s.lost?))));
        self.core.get_mut().last_seq = newest.seq;
        let table = tail.as_ref().and_then(|scan| scan.appends.first()?.table.clone());
        let used = self.used(&mut surveys, newest, table).await;
        for s in &used {
            if let Some(what) = s.wrong {
                self.finding(s.id, 0, what);
            }
            self.core.get_mut().segs.found(s.id, s.seq);
        }
        // Where a whole segment is missed, the log alone tells what was in it.
        match self.from {
            From::Checkpoint if !self.segment_lost => self.checkpoint(&used).await,
            _ => self.ask_slots().await,
        }
        if self.is_astray() {
            return Ok(());
        }
        self.free(&surveys);
        if self.segment_lost {
            self.core.get_mut().damaged = u64::MAX;
        }
        for s in used {
            match tail.take_if(|_| s.seq == newest.seq) {
                Some(scan) => self.tail(s, scan).await?,
                None => self.closed(s).await?,
            }
        }
        self.finish(newest.id);
        Ok(())
    }

    async fn ask_all(&self) -> BTreeMap<u64, Survey> {
        let (segments, last, mut surveys) = {
            let core = self.core.borrow();
            (core.segs.len(), core.opened.last(), BTreeMap::new())
        };
        // Of a segment that was used for the map before, and whose first append is lost, live tables and the footer of the
        // segment before tell, or the pages of openings.
        let look = |id: u32| match self.from {
            From::Appends => Look::All,
            _ if last.contains(&Some(id)) => Look::LogOrMap,
            _ => Look::Log,
        };
        for ids in (0..segments).collect::<Vec<_>>().chunks(64) {
            let looks = ids.iter().map(|id| survey(self.device, self.geometry, *id, look(*id))).collect();
            surveys.extend(join_all(looks).await.into_iter().flatten().map(|s| (s.seq, s)));
        }
        surveys
    }

    /// Begins with the newest checkpoint that is whole, and keeps the other one (rule E5).
    async fn checkpoint(&mut self, used: &[Survey]) {
        let used: BTreeMap<u32, u64> = used.iter().map(|s| (s.id, s.seq)).collect();
        for (i, found) in self.io().slots().await {
            let (slot, manifest, places) = match found {
                Ok(found) => found,
                Err(e) => {
                    self.found(Finding { segment: None, offset: CHECKPOINT_AT[i], what: format!("checkpoint: {e}") });
                    continue;
                }
            };
            let (revision, written) = (slot.revision.get(), manifest.written);
            let named = manifest.runs.iter().flat_map(|(r, ..)| r.places.list()).chain(&places);
            self.core.get_mut().maps.avoid.extend(named.map(|p| p.segment));
            if !self.core.get_mut().keep_checkpoint(i, &slot, &manifest, places) || self.report.checkpoint > 0 {
                continue;
            }
            let whole = if manifest.is_part { self.io().whole_manifest(i).await } else { Ok(manifest) };
            let begun = match whole {
                Ok(manifest) => self.io().begin_with(manifest, &used).await,
                Err(e) => Err(e),
            };
            match begun {
                Ok(covered) => {
                    (self.covered, self.covered_rest) = (covered, written);
                    self.report.checkpoint = revision;
                }
                Err(e) => {
                    self.core.get_mut().maps.kept[i] = None;
                    self.found(Finding { segment: None, offset: CHECKPOINT_AT[i], what: format!("checkpoint: {e}") });
                }
            }
        }
        self.core.get_mut().sweep_map();
        self.known_durable = self.known_durable.max(self.core.get_mut().maps.durable);
    }

    /// The words of the slots on the end of the log, where none of their checkpoints is begun with: a tool that reads the
    /// log alone has to miss the same as a start.
    async fn ask_slots(&mut self) {
        let said = self.io().said_durable().await;
        self.known_durable = said.into_iter().fold(self.known_durable, u64::max);
    }

    /// Whether nothing up to an append is news.
    fn is_covered(&self, append: u64) -> bool {
        append <= self.covered_rest && self.covered.values().all(|c| append <= *c)
    }

    /// A segment whose ends are blank, or of a use before, may still be the newest one, if its first append was lost.
    /// The one before says where the log went on; if nothing is there yet, it will go on there (see `Segments::said`).
    async fn look_behind(&mut self, surveys: &mut BTreeMap<u64, Survey>) {
        let said = surveys.last_key_value().and_then(|(seq, s)| Some((*seq, self.next_of(s)?)));
        let Some((newest, next)) = said else { return };
        match self.inside(next).await {
            Some(s) if s.seq > newest => {
                surveys.retain(|_, old| old.id != next);
                surveys.insert(s.seq, s);
            }
            _ => {}
        }
    }

    /// The segment that was opened after this one, as its footer says, or the openings of one that was not read.
    fn next_of(&self, s: &Survey) -> Option<u32> {
        let core = self.core.borrow();
        s.footer.map(|f| f.next.get()).or_else(|| core.opened.find(s.seq + 1).filter(|_| s.covered > 0))
    }

    /// The log goes on there, and nothing that counts was found there yet.
    async fn goes_on(&mut self, next: u32, closed: bool) {
        self.core.get_mut().segs.said = Some(next);
        if closed && next < self.core.get_mut().segs.len() {
            let mut w = Window::new(self.device, self.geometry, next);
            self.unread = (w.get(0, size_of::<AppendHeader>()).await.is_none() && w.unread).then_some(next);
        }
    }

    /// A segment that nobody has asked yet: one that was given up when a checkpoint was made is not in its table. Else as
    /// the appends inside of it name it.
    async fn unasked(&self, id: u32) -> Option<Survey> {
        let there = id < self.core.borrow().segs.len() && self.table_of > 0;
        let asked = if there { survey(self.device, self.geometry, id, Look::LogOrMap).await } else { None };
        match asked {
            Some(found) => Some(found),
            None => self.inside(id).await,
        }
    }

    /// A segment as the appends inside of it name it.
    async fn inside(&self, id: u32) -> Option<Survey> {
        if id >= self.core.borrow().segs.len() {
            return None;
        }
        let (seq, before) = find_seq(&mut Window::new(self.device, self.geometry, id)).await?;
        Some(Survey { id, seq, before, first: None, footer: None, lost: None, wrong: None, covered: 0 })
    }

    /// Free segments that were closed once are whole. Of the others nothing is known: they may be holes.
    fn free(&mut self, surveys: &BTreeMap<u64, Survey>) {
        let whole: BTreeSet<u32> = surveys.values().filter(|s| s.footer.is_some()).map(|s| s.id).collect();
        for id in 0..self.core.get_mut().segs.len() {
            if self.core.get_mut().segs.get(id).state == SegmentState::Ready && !whole.contains(&id) {
                self.core.get_mut().segs.set_state(id, SegmentState::Bare);
            }
        }
    }

    /// The newest segment with a durable append, and its appends if it has no index. Those of an unfinished append at
    /// the end of the log are taken off.
    async fn newest(&mut self, surveys: &mut BTreeMap<u64, Survey>) -> Option<(Survey, Option<Scan>)> {
        let mut torn = None;
        for mut s in surveys.values().rev().copied().collect::<Vec<_>>() {
            if s.covered > 0 {
                if let Some(next) = self.next_of(&s) {
                    self.goes_on(next, true).await;
                }
                return Some((s, None));
            }
            loop {
                if let Some(f) = &s.footer
                    && self.index(s.id, f).await.is_some()
                {
                    self.goes_on(f.next.get(), true).await;
                    return Some((s, None));
                }
                let found = self.scan_end(s).await;
                if !found.appends.is_empty() {
                    // A segment that has a footer names the next one; else that is where one was begun.
                    if let Some(next) = s.footer.map(|f| f.next.get()).or(torn) {
                        self.goes_on(next, false).await;
                    }
                    return Some((s, Some(found)));
                }
                // The torn bytes may be all that is left of the first append that was written over it.
                match self.inside(s.id).await {
                    Some(over) if over.seq > s.seq => {
                        surveys.retain(|_, old| old.id != s.id);
                        surveys.insert(over.seq, over);
                        s = over;
                    }
                    _ => break,
                }
            }
            torn = Some(s.id);
        }
        None
    }

    /// The appends of a segment that may be the newest one, without an unfinished one at the end.
    async fn scan_end(&mut self, s: Survey) -> Scan {
        // Its index may have been cut short when it was closed; what it would have said is in the appends. That it
        // was begun says that they are durable.
        let limit = s.footer.map_or(self.geometry.segment_bytes as u32, |f| f.index_at.get());
        let mut w = Window::new(self.device, self.geometry, s.id);
        let mut found = scan(&mut w, s.seq, limit).await;
        found.durable = found.durable.max(s.footer.map_or(0, |f| f.last_append.get()));
        self.report.appends += found.appends.len() as u64;
        if self.core.get_mut().segs.leaves_out(RuleMutant::DamageIsTorn) {
            found.cut_at_damage();
        }
        // Rule E7: this is never done to an append that is known durable.
        if let Some(last) = found.take_torn() {
            self.report.torn_bytes += last.header.total(self.geometry.sector) as u64;
        }
        found
    }

    /// The segments that count, by number: those of the newest live table, and the newest one itself.
    async fn used(
        &mut self,
        surveys: &mut BTreeMap<u64, Survey>,
        newest: Survey,
        mut repeated: Option<LiveTable>,
    ) -> Vec<Survey> {
        let mut used: Vec<Survey> = vec![newest];
        let mut at = newest;
        let table = loop {
            if let Some(table) = repeated.take().or(self.table(at).await) {
                break Some(table);
            }
            self.finding(at.id, 0, "the table of live segments can't be read");
            // The segment before was closed when this one was opened, and all that its table names is still there.
            match surveys.get(&at.before) {
                Some(before) => {
                    used.push(*before);
                    at = *before;
                }
                None => break None,
            }
        };
        let known: BTreeSet<u64> = used.iter().map(|s| s.seq).collect();
        let mut found = BTreeSet::new();
        for s in surveys.values().filter(|s| s.seq < at.seq && !known.contains(&s.seq)) {
            let counts = table.as_ref().is_none_or(|t| t.contains(SegmentId(s.id)));
            if counts {
                found.insert(s.id);
                used.push(*s);
            }
        }
        for lost in table.iter().flat_map(LiveTable::iter).filter(|s| !found.contains(&s.0)) {
            // One that was used again since, which no log does, is lost as it was.
            let is_used_again = used.iter().any(|s| s.id == lost.0);
            let found = self.unasked(lost.0).await.filter(|s| s.seq < at.seq && !known.contains(&s.seq));
            if let Some(s) = found.filter(|_| !is_used_again) {
                used.push(s);
                continue;
            }
            self.finding(lost.0, 0, "the whole segment is lost: no append in it can be found");
            self.segment_lost = true;
            let upto = self.appends_before(lost, at, surveys).await;
            let core = self.core.get_mut();
            core.lost.add(1, upto);
            let segs = &mut self.core.get_mut().segs;
            if lost.0 < segs.len() && used.iter().all(|s| s.id != lost.0) {
                segs.set_state(lost.0, SegmentState::Lost);
            }
        }
        used.sort_by_key(|s| s.seq);
        used
    }

    /// The last append that a segment may have held which is lost. It was opened before the one whose live table names it,
    /// and before each segment that came right before that one and names it, too: had it been given up and opened again
    /// in between, the table of one of them would lack it.
    async fn appends_before(&self, lost: SegmentId, mut at: Survey, surveys: &BTreeMap<u64, Survey>) -> u64 {
        let mut upto = u64::MAX;
        while self.table(at).await.is_some_and(|t| t.contains(lost)) {
            let first = at.first.or_else(|| Some(at.footer?.first_append.get()));
            upto = first.map_or(upto, |first| first.saturating_sub(1));
            let Some(before) = surveys.get(&at.before) else { break };
            at = *before;
        }
        upto
    }

    async fn table(&self, s: Survey) -> Option<LiveTable> {
        let mut w = Window::new(self.device, self.geometry, s.id);
        let bytes = w.get(0, size_of::<AppendHeader>()).await?;
        let h = AppendHeader::decode(&bytes).ok()?;
        let ours = h.device == self.geometry.device.0 && h.segment_seq.get() == s.seq && h.offset.get() == 0;
        if !ours || h.total(self.geometry.sector) > self.geometry.segment_bytes as usize {
            return None;
        }
        read_append(&mut w, 0, h, &mut |_, _| ()).await.table
    }

    /// A segment that was closed: by its index, or by its appends if that is damaged.
    async fn closed(&mut self, s: Survey) -> Result<()> {
        if s.covered > 0 {
            self.ends_with(s, s.covered);
            return Ok(());
        }
        if let Some(f) = s.footer.filter(|f| self.is_covered(f.last())) {
            self.core.get_mut().segs.get_mut(s.id).appends = (f.first_append.get(), f.last());
            self.ends_with(s, f.last());
            return Ok(());
        }
        if let Some(f) = s.footer {
            match self.index(s.id, &f).await {
                Some(entries) => {
                    self.begins_with(s, f.first_append.get());
                    let mut lost = f.lost().peekable();
                    for e in &entries {
                        while let Some(stretch) = lost.next_if(|(from, _)| e.append > *from) {
                            self.misses(s.id, 0, stretch);
                        }
                        self.apply(s.id, e).await?;
                    }
                    lost.for_each(|stretch| self.misses(s.id, 0, stretch));
                    // The last place may have several, and what lies between them is not known to be lost.
                    f.known_lost().for_each(|(from, to)| self.core.get_mut().knows_lost(from, to));
                    self.core.get_mut().segs.get_mut(s.id).appends = (f.first_append.get(), f.last());
                    self.ends_with(s, f.last());
                    return Ok(());
                }
                None => self.finding(s.id, f.index_at.get(), "the segment's index does not match its checksum"),
            }
        } else if self.from != From::Appends {
            self.finding(s.id, self.geometry.segment_bytes as u32 - 1, "the segment's index can't be found");
        }
        let limit = s.footer.map_or(self.geometry.segment_bytes as u32, |f| f.index_at.get());
        let mut w = Window::new(self.device, self.geometry, s.id);
        let mut found = scan(&mut w, s.seq, limit).await;
        // Where the footer is lost, the segment that was opened next tells what this one was closed with.
        let end = match (s.footer, self.next_firsts.get(&s.seq)) {
            (Some(f), _) => {
                found.end_with(f.last_append.get());
                Some(f.last())
            }
            (None, Some(next)) => found.end_before(*next),
            (None, None) => None,
        };
        self.report.appends += found.appends.len() as u64;
        self.scanned(s, &found).await?;
        if let Some(last) = end.filter(|last| *last > self.last_append) {
            self.lost(s.id, found.end, (self.last_append + 1, last));
            self.ends_with(s, last);
        }
        Ok(())
    }

    async fn index(&self, id: u32, f: &SegmentFooter) -> Option<Vec<IndexEntry>> {
        read_index(&mut Window::new(self.device, self.geometry, id), f).await
    }

    /// The newest segment, which was open. Goes on in it if it is whole.
    async fn tail(&mut self, s: Survey, found: Scan) -> Result<()> {
        self.scanned(s, &found).await?;
        let last = found.appends.last().expect("newest segments have an append");
        let (first, last_number) = (found.appends[0].number(), last.number());
        // A slot of a checkpoint says the same as a later append would; without a footer the log did not go on elsewhere.
        let said = if s.footer.is_none() { self.known_durable } else { 0 };
        let upto = found.durable.max(said).max(last_number + u64::from(found.end_unread));
        let cut_short = upto > last_number;
        if cut_short {
            self.lost(s.id, found.end, (last_number + 1, upto));
            self.last_append = upto;
        }
        self.core.get_mut().proven = last.entries.is_empty();
        let (mut index, mut frames, mut index_at) = (BytesMut::new(), 0, 0);
        for a in &found.appends {
            index_at = index.len();
            a.entries.iter().for_each(|e| e.encode(&mut index));
            frames += a.entries.len() as u32;
        }
        let room = self.geometry.index_room(index.len());
        if found.end as usize + room > self.geometry.segment_bytes as usize {
            return Ok(());
        }
        // The bytes at a lost end stay as they are: nothing is written there, and the segment is closed. So do those of a torn
        // append that says what the one before it held, as nothing else does before there is an index.
        let stays = cut_short || last.mended;
        let full = (self.geometry.segment_bytes as usize - room) as u32;
        let bits = last.table.as_ref().map_or(Vec::new(), |t| t.bits.clone());
        let table = last.table.as_ref().map_or(0, |t| t.bits.len());
        let is_short = Repeat::encoded_len(table, index.len() - index_at) <= REPEAT_BYTES_MAX;
        let is_known = last.lost == 0 && last.heads_match && !cut_short && is_short;
        let last_frames = last.entries.len() as u32;
        self.core.get_mut().segs.set_state(s.id, SegmentState::Open);
        self.core.get_mut().stale_footer = s.footer.is_some() && !cut_short;
        self.core.get_mut().open = Some(OpenSegment {
            id: s.id,
            seq: s.seq,
            skipped: u8::try_from(s.seq.saturating_sub(s.before + 1)).unwrap_or(u8::MAX),
            at: if stays { full } else { found.end },
            index,
            frames,
            first_append: first,
            last_append: last_number,
            last: is_known.then(|| LastAppend {
                append: last_number,
                index_at,
                frames: last_frames,
                copies: (0, crc32c(&[])),
                table: bits,
            }),
            lost: self.lost_in_open.clone(),
            for_records: false,
        });
        Ok(())
    }

    async fn scanned(&mut self, s: Survey, found: &Scan) -> Result<()> {
        self.known = LostAppends::default();
        let said = found.appends.iter().filter_map(|a| a.header.lost.appends());
        let said = said.chain(self.said_lost.get(&s.seq).copied());
        let said = said.chain(s.footer.iter().flat_map(SegmentFooter::known_lost));
        said.for_each(|(from, to)| self.known.add(from, to));
        let mut missing = found.missing.iter().peekable();
        for (i, a) in found.appends.iter().enumerate() {
            while let Some((number, at)) = missing.next_if(|(n, _)| *n < a.number()) {
                let before = i.checked_sub(1).map_or(self.last_append, |i| found.appends[i].number());
                self.lost(s.id, *at, (before + 1, *number));
            }
            if i == 0 && found.missing.first().is_none_or(|(n, _)| *n > a.number()) {
                self.begins_with(s, a.number());
            }
            self.append(s.id, a).await?;
        }
        if let Some(a) = found.appends.last() {
            self.ends_with(s, a.number());
        }
        Ok(())
    }

    async fn append(&mut self, id: u32, a: &Found) -> Result<()> {
        if a.mended {
            let what =
                format!("append {} can't be read, or only in part; the one behind it says what it held", a.number());
            self.finding(id, a.at, what);
        }
        if a.copies_lost {
            self.copies_lost(id, a.at, a.number());
        }
        if let Some(at) = a.bad_data {
            self.finding(id, at, "a data block does not match its CRC");
        }
        for e in &a.entries {
            self.apply(id, e).await?;
        }
        if a.lost > 0 {
            self.lost(id, a.at, (a.number(), a.number()));
        }
        Ok(())
    }

    /// Notes that appends of a segment that is scanned, from one up to `number`, can't be read, and nothing repeats them.
    fn lost(&mut self, id: u32, at: u32, (first, number): (u64, u64)) {
        let open = self.open == Some(id);
        if open {
            self.lost_in_open.add(first.min(number), number);
        }
        // One beside those that were known may have been lost since.
        self.note_lost(id, at, (first, number), !open && !self.known.has_all(first.min(number), number));
    }

    /// Notes that copies in an append are lost: it is known but for what cleaning wrote there. If its segment was open,
    /// or that was known while it was, then the segments that were copied from are there. From now on each append says
    /// that it does not rely on this one.
    fn copies_lost(&mut self, id: u32, at: u32, number: u64) {
        if self.open == Some(id) || self.known.has_all(number, number) {
            self.core.get_mut().knows_lost(number, number);
        } else {
            self.note_lost(id, at, (number, number), true);
        }
    }

    /// Notes that appends from one up to `number` are missed.
    fn misses(&mut self, id: u32, at: u32, (first, number): (u64, u64)) {
        self.finding(id, at, format!("append {number} can't be read, or only in part"));
        let core = self.core.get_mut();
        core.damaged = core.damaged.max(number);
        core.lost.add(first.min(number), number);
    }

    /// Notes that appends from one up to `number` are lost. If a segment was opened since by somebody who did not know, then what
    /// cleaning had moved into them may lie nowhere else.
    fn note_lost(&mut self, id: u32, at: u32, (first, number): (u64, u64), relied_on: bool) {
        self.misses(id, at, (first, number));
        let core = self.core.get_mut();
        if number < LOG_NUMBER_END {
            core.knows_lost(first.min(number), number);
        }
        if relied_on {
            core.shards.values_mut().for_each(Shard::lost_append);
        }
    }

    fn begins_with(&mut self, s: Survey, number: u64) {
        if let Some((last, seq)) = self.before
            && seq == s.before
            && number > last + 1
        {
            // That it was not there may be known to the segment's first append.
            let known = s.lost.is_some_and(|(from, to)| from <= last + 1 && to == number - 1);
            self.note_lost(s.id, 0, (last + 1, number - 1), !known);
        }
    }

    fn ends_with(&mut self, s: Survey, number: u64) {
        self.core.get_mut().segs.get_mut(s.id).seal();
        self.before = Some((number, s.seq));
        self.last_append = self.last_append.max(number);
    }

    fn io(&self) -> Io<'_, D> {
        Io { device: self.device, core: &self.core, alone: true }
    }

    async fn apply(&mut self, id: u32, e: &IndexEntry) -> Result<()> {
        let at = At { segment: id, head_at: e.head_at, data_at: e.data_at, append: e.append };
        let repair = e.flags & APPEND_REPAIR != 0;
        if e.append <= self.covered.get(&e.head.shard()).copied().unwrap_or(self.covered_rest) {
            return Ok(());
        }
        let carry = e.head.kind() == freebs_format::FrameKind::Carry;
        let as_of = self.core.get_mut().shards.get(&e.head.shard()).map_or(0, |s| s.as_of);
        if e.append <= as_of && !carry {
            return Ok(());
        }
        self.report.frames += 1;
        self.core.get_mut().tell_committed(e.append - 1);
        self.core.get_mut().replaying = e.append;
        self.io().resolve(&[(&e.head, repair)]).await?;
        if let Err(f) = self.core.get_mut().apply_entry(&e.head, at, repair) {
            self.found(f);
            self.core.get_mut().lost_frame(&e.head, at);
        }
        self.io().resolved();
        if matches!(self.from, From::Memory | From::Appends) {
            return Ok(());
        }
        // A log larger than memory is read in memory.
        self.io().upkeep().await
    }

    /// No append is left at all, which is right only in a log that never had a durable one.
    async fn nothing_left(&mut self) {
        let mut durable = self.known_durable;
        // The first append of all lies where the first segment begins.
        let mut w = Window::new(self.device, self.geometry, 0);
        if self.core.get_mut().segs.len() > 0 && w.get(0, size_of::<AppendHeader>()).await.is_none() && w.unread {
            let what = "the first append of the log can't be read, if there was one".to_owned();
            self.finding(0, 0, what);
            durable = durable.max(1);
        }
        if self.known_durable > 0 {
            let what = format!("the log is lost: it had {durable} appends, and none can be found");
            self.found(Finding { segment: None, offset: CHECKPOINT_AT[0], what });
        }
        self.core.get_mut().next_append = durable + 1;
    }

    fn finish(&mut self, newest: u32) {
        if self.known_durable > self.last_append {
            self.note_lost(newest, 0, (self.last_append + 1, self.known_durable), true);
            self.last_append = self.known_durable;
            let core = self.core.get_mut();
            if let Some(open) = core.open.take() {
                core.segs.set_state(open.id, SegmentState::Closed);
            }
        }
        if let Some(next) = self.unread.take() {
            // The bytes that can't be read there may be a segment's first append, and the only one that was written there. So
            // nothing was written over that it moved.
            self.note_lost(next, 0, (self.last_append + 1, self.last_append + 1), false);
            self.last_append += 1;
        }
        self.core.get_mut().tell_committed(u64::MAX);
        let damaged = self.core.get_mut().damaged;
        let mut left = Vec::new();
        let Core { shards, segs, .. } = self.core.get_mut();
        for s in shards.values_mut() {
            s.suspect |= s.may_miss(damaged);
            s.promise_lost |= s.may_miss_promise(damaged);
            s.replayed();
            self.late |= s.history.late;
            s.history_replayed(segs);
            if s.forget_orphans() {
                left.push(s.id);
            }
        }
        for shard in left {
            let what = format!("shard {shard}: repair of a frame that never was here");
            self.found(Finding { segment: None, offset: 0, what });
        }
        self.core.get_mut().note_unsure_forks();
        (self.core.get_mut().damaged, self.core.get_mut().lost) = (0, LostAppends::default());
        self.core.get_mut().replaying = u64::MAX;
        self.core.get_mut().next_append = self.last_append + 1;
        self.report.shards = self.core.get_mut().shards.len();
        self.report.segments = self.core.get_mut().segs.used_count;
        debug_assert!(self.core.get_mut().segs.get(newest).is_used());
    }
}

/// Which segments are looked at from end to end when they are asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Those whose ends say something, but not what they should, and that don't begin with a page of the map.
    Log,
    /// Those that do, too: the log may have gone on there, and its first append may be lost.
    LogOrMap,
    /// All of them.
    All,
}

/// Asks a segment what it is: by its ends, and by all of it if it is one to `look` at.
async fn survey<D: Device>(device: &D, geometry: Geometry, id: u32, look: Look) -> Option<Survey> {
    let sector = geometry.sector;
    let at = |byte: u32| geometry.byte(id, byte);
    let first = device.read(at(0), sector).await.ok();
    let last = device.read(at(geometry.segment_bytes as u32 - sector as u32), sector).await.ok();
    let written = |b: &Option<freebs_io::AlignedBuf>| b.as_ref().is_none_or(|b| b.iter().any(|b| *b != 0));
    let header = first
        .as_ref()
        .and_then(|b| AppendHeader::decode(b).ok())
        .filter(|h| h.device == geometry.device.0 && h.segment.get() == id && h.offset.get() == 0)
        // Number 0 is that of no segment: there is none before it, and whoever asks for that would get itself.
        .filter(|h| (1..LOG_NUMBER_END).contains(&h.segment_seq.get()));
    let footer = last.as_ref().and_then(|b| footer_in(b, &geometry, id)).filter(|f| {
        (1..LOG_NUMBER_END).contains(&f.segment_seq.get())
            && f.last_append.get() < LOG_NUMBER_END
            && (f.index_at.get() as usize).is_multiple_of(sector)
    });
    let map = look == Look::Log && first.as_ref().is_some_and(|b| PageHeader::is_of(b, geometry.device));
    let looks = look == Look::All || (header.is_none() && !map && (written(&first) || written(&last)));
    let inside = if looks { find_seq(&mut Window::new(device, geometry, id)).await } else { None };
    // What begins the segment may be of its use before.
    let header = header.filter(|h| inside.is_none_or(|(seq, _)| h.segment_seq.get() >= seq));
    let first_of = |seq: u64| header.as_ref().filter(|h| h.segment_seq.get() == seq).map(|h| h.number.get());
    let lost_of = |seq: u64| header.as_ref().filter(|h| h.segment_seq.get() == seq).and_then(|h| h.lost.appends());
    let known = header.as_ref().map(|h| (h.segment_seq.get(), h.seq_before())).or(inside);
    match (known, footer) {
        (None, None) => None,
        (None, Some(f)) => {
            let wrong = Some("no append is left, only the index");
            let (seq, before) = (f.segment_seq.get(), f.seq_before());
            Some(Survey { id, seq, before, first: None, footer, lost: None, wrong, covered: 0 })
        }
        (Some((seq, _)), Some(f)) if f.segment_seq.get() >= seq => {
            let first = header.is_some() && f.segment_seq.get() == seq;
            let wrong = (!first).then_some("the first append can't be read");
            let (seq, before) = (f.segment_seq.get(), f.seq_before());
            Some(Survey { id, seq, before, first: first_of(seq), footer, lost: lost_of(seq), wrong, covered: 0 })
        }
        // The index is that of the segment's use before.
        (Some((seq, before)), _) => {
            let (first, lost) = (first_of(seq), lost_of(seq));
            Some(Survey { id, seq, before, first, footer: None, lost, wrong: None, covered: 0 })
        }
    }
}
