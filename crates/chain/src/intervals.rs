//! Intervals over several shards at the head of a chain (rules I1 to I4, S3).
//!
//! A prepared interval lies in one of the shard's last places (`freebs_format::interval_record`): its record and its data, as
//! ordinary blocks. So the set of what is prepared is a part of the map: it is in every log that has the frames, is learned,
//! cleaned, mended and read again after a start as all blocks are. A head reads it from its own log before it orders anything.
//!
//! Invariants:
//! - Nothing is ordered before the log has told what is prepared (I2).
//! - A prepare is refused, and never waits, if it meets another one, or if a cut waits or holds; a block that is prepared gets
//!   nothing but the outcome (I2).
//! - The deciding shard tells others only what is committed there; if it does not have an interval it records that as
//!   aborted first (I3).
//! - A shard that does not decide ends an interval only by the word of the deciding one, or of its own driver.
//! - What was decided is forgotten only when all participants have committed the outcome (I4).
//! - A new attachment is not answered while anything is prepared that another driver began: its floor lies behind the outcomes.
//! - No cut has anything prepared in front of it (S3).

use crate::event::{Action, FoundInterval, IntervalAsk, IntervalWord, Mutant};
use crate::head::Head;
use crate::replica::{Ctx, Replica};
use crate::timing;
use bytes::Bytes;
use freebs_format::wire::{IntervalPart, Refusal, Request, WriteRequest};
use freebs_format::{
    Extent, ExtentKind, IntervalId, IntervalRecord, IntervalState, UpdateDraft, UpdateKind, block_crcs, interval_data,
    interval_record,
};
use freebs_io::LinkId;
use freebs_types::{
    BLOCK, BlockRange, DriverId, IntervalNumber, Lba, Nanos, RequestNumber, Result, Sequence, ShardId, ViewNumber,
    limits,
};
use std::collections::{BTreeMap, BTreeSet};

/// Places that are emptied in one turn.
const FORGOTTEN_MAX: usize = 16;
/// Questions to other shards that a shard has under way.
const ASKING_MAX: usize = 16;

/// An interval that this shard's log has a place for.
#[derive(Debug)]
struct Held {
    record: IntervalRecord,
    /// The frame that made it what it is.
    sequence: Sequence,
    /// It is over here: as soon as that frame is committed, the place is free.
    is_over: bool,
    /// When this head heard of it.
    since: Nanos,
    /// When another shard was asked last, and whether the answer is still to come.
    asked_at: Option<Nanos>,
    is_asking: bool,
    /// Of one that is committed here: participants that are not known to have committed the outcome.
    open_at: BTreeSet<ShardId>,
    crcs: Vec<u32>,
    data: Vec<Bytes>,
}

impl Held {
    fn is_prepared(&self) -> bool {
        self.record.state == IntervalState::Prepared && !self.is_over
    }

    fn bytes(&self) -> usize {
        self.crcs.len() * BLOCK
    }

    fn meets(&self, extents: &[Extent]) -> bool {
        self.is_prepared() && self.record.extents.iter().any(|p| extents.iter().any(|e| e.range.overlaps(p.range)))
    }

    fn may_ask(&self, now: Nanos) -> bool {
        !self.is_asking && self.asked_at.is_none_or(|at| now.since(at) >= timing::INTERVALS_AGAIN)
    }

    /// Its driver says that it is over everywhere.
    fn is_passed(&self, lowest: (DriverId, IntervalNumber)) -> bool {
        self.record.state != IntervalState::Prepared
            && self.record.id.driver == lowest.0
            && self.record.id.number < lowest.1
    }
}

/// The intervals of a head in the present view.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    /// The log has told what there is.
    is_known: bool,
    asked_at: Option<Nanos>,
    is_asking: bool,
    places: BTreeMap<u32, Held>,
    /// The driver that spoke last of its intervals, and its lowest one that may not be over.
    lowest: (DriverId, IntervalNumber),
}

impl Intervals {
    /// True until the log has told what is prepared.
    pub fn are_unknown(&self) -> bool {
        !self.is_known
    }

    fn find(&self, id: &IntervalId) -> Option<u32> {
        self.places.iter().find(|(_, h)| h.record.id == *id).map(|(place, _)| *place)
    }

    fn asking(&self) -> usize {
        self.places.values().filter(|h| h.is_asking).count()
    }

    fn prepared_bytes(&self) -> usize {
        self.places.values().filter(|h| h.is_prepared()).map(Held::bytes).sum()
    }

    /// The lowest place that is free, or that nobody needs any more.
    fn free(&self) -> Option<u32> {
        (0..limits::SHARD_INTERVALS).find(|p| self.places.get(p).is_none_or(|h| h.is_passed(self.lowest)))
    }

    fn prepared_by_others(&self, driver: DriverId) -> bool {
        self.places.values().any(|h| h.is_prepared() && h.record.owner != driver)
    }

    fn has_prepared(&self) -> bool {
        self.places.values().any(Held::is_prepared)
    }
}

/// Blocks at an address, with their CRCs.
fn put_blocks(draft: &mut UpdateDraft, at: Lba, data: &Bytes) {
    draft
        .extents
        .push(Extent { kind: ExtentKind::Data, range: BlockRange { start: at, len: (data.len() / BLOCK) as u32 } });
    block_crcs(data, &mut draft.crcs);
    draft.data.push(data.clone());
}

fn put_trim(draft: &mut UpdateDraft, start: Lba, end: u32) {
    if start.0 < end {
        let range = BlockRange { start, len: end - start.0 };
        draft.extents.push(Extent { kind: ExtentKind::Trim, range });
    }
}

/// The asker of an update: driver, number, lowest open number; zeroes for the head itself.
type Of = (DriverId, RequestNumber, RequestNumber);
const OWN: Of = (DriverId(0), RequestNumber(0), RequestNumber(0));

fn draft(kind: UpdateKind, (driver, number, lowest_open): Of) -> UpdateDraft {
    let (extents, crcs, data) = (Vec::new(), Vec::new(), Vec::new());
    UpdateDraft { kind, driver, number, lowest_open, extents, crcs, data }
}

/// Whether a request to prepare these changes makes sense for this shard.
fn is_possible(shard: ShardId, changes: &UpdateDraft, part: &IntervalPart) -> bool {
    let all = &part.participants;
    (1..=limits::INTERVAL_SHARDS_MAX).contains(&all.len())
        && all.is_sorted_by(|a, b| a < b)
        && all.contains(&shard)
        && all.contains(&part.id.decider)
        && changes.extents.len() <= limits::INTERVAL_EXTENTS_MAX
        && changes.data_bytes() <= limits::INTERVAL_DATA_BYTES_MAX
        && changes.check(limits::SHARD_VOLUME_BLOCKS_MAX).is_ok()
}

impl Replica {
    fn intervals(&self) -> Option<&Intervals> {
        self.head.as_ref().map(|h| &h.intervals)
    }

    /// A snapshot of the present is to be cut here and is not yet.
    fn is_to_be_cut(&self) -> bool {
        let under_way = self.info.as_ref().and_then(|i| i.snapshots.under_way).filter(|_| self.is_told_of_snapshots());
        let is_cut = self.head.as_ref().is_some_and(|h| h.cuts.is_taken());
        under_way.is_some_and(|u| !u.is_decided && u.reported.is_none() && u.past.is_none()) && !is_cut
    }

    /// S3: true while a cut waits for what is prepared. What waits to be prepared is refused, so that the wait ends.
    pub fn waits_for_intervals(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if ctx.mutant(Mutant::CutsThroughIntervals) {
            return false;
        }
        let waiting = self.head.as_mut().map(|h| h.take_waiting_prepares()).unwrap_or_default();
        for (link, w) in waiting {
            self.refuse_for_good(ctx, link, (w.number, w.lowest_open), Refusal::Aborted);
        }
        self.intervals().is_some_and(|i| !i.is_known || i.has_prepared())
    }

    /// I2: a request that prepares is refused at once while a cut waits for others, or holds.
    pub fn refuses_prepare(&self, w: &WriteRequest, ctx: &Ctx<'_>) -> bool {
        let is_held = self.is_to_be_cut() || self.head.as_ref().is_some_and(|h| h.cuts.holds());
        w.kind == UpdateKind::Prepare && is_held && !ctx.mutant(Mutant::CutsThroughIntervals)
    }

    /// True while a new attachment has to wait for the outcome of what others began.
    pub fn has_intervals_of_others(&self, ctx: &Ctx<'_>) -> bool {
        let driver = self.attach.driver;
        self.intervals().is_none_or(|i| !i.is_known || i.prepared_by_others(driver))
            && !ctx.mutant(Mutant::AttachesPastIntervals)
    }

    /// True if an update would change a block that waits for an outcome (I2).
    pub fn meets_prepared(&self, w: &WriteRequest, ctx: &Ctx<'_>) -> bool {
        !w.kind.is_interval()
            && !ctx.mutant(Mutant::WritesOverPrepared)
            && self.intervals().is_some_and(|i| i.places.values().any(|h| h.meets(&w.extents)))
    }

    /// A driver's request about an interval, whose turn it is.
    pub fn admit_interval(&mut self, ctx: &mut Ctx<'_>, link: LinkId, w: WriteRequest) {
        let Some(part) = w.interval.clone() else {
            return self.refuse_for_good(ctx, link, (w.number, w.lowest_open), Refusal::Invalid);
        };
        if let Some(h) = self.head.as_mut()
            && part.id.driver == w.driver
        {
            let before = if h.intervals.lowest.0 == w.driver { h.intervals.lowest.1 } else { IntervalNumber(0) };
            h.intervals.lowest = (w.driver, before.max(part.lowest_open));
        }
        match w.kind {
            UpdateKind::Prepare => self.prepare(ctx, link, w, *part),
            _ => self.outcome(ctx, link, &w, &part),
        }
    }

    fn prepare(&mut self, ctx: &mut Ctx<'_>, link: LinkId, w: WriteRequest, part: IntervalPart) {
        let of = (w.number, w.lowest_open);
        let (extents, crcs, data) = (w.extents.clone(), w.crcs.clone(), w.data.clone());
        let changes = UpdateDraft { extents, crcs, data, ..draft(UpdateKind::Write, OWN) };
        if !is_possible(self.id, &changes, &part) {
            return self.refuse_for_good(ctx, link, of, Refusal::Invalid);
        }
        if self.info.as_ref().is_some_and(|i| changes.check(i.blocks).is_err()) {
            // The volume may have grown, and this node not heard of it yet.
            return self.refuse(ctx, link, Request::Write(w.number), Refusal::NotReady);
        }
        let bytes = changes.data_bytes();
        let Some(i) = self.intervals() else { return };
        let meets = i.places.values().any(|h| h.meets(&w.extents));
        if meets && ctx.mutant(Mutant::PreparesWait) {
            self.head.iter_mut().for_each(|h| h.wait_in_front(link, w.clone()));
            return;
        }
        let place = i.free().filter(|_| !meets && i.find(&part.id).is_none());
        let has_room = i.prepared_bytes() + bytes <= limits::SHARD_PREPARED_BYTES_MAX;
        let Some(place) = place.filter(|_| has_room && !self.refuses_prepare(&w, ctx)) else {
            return self.refuse_for_good(ctx, link, of, Refusal::Aborted);
        };
        let record = IntervalRecord {
            state: IntervalState::Prepared,
            id: part.id,
            shard: self.id,
            owner: w.driver,
            participants: part.participants,
            extents: w.extents,
        };
        let mut draft = draft(UpdateKind::Prepare, (w.driver, w.number, w.lowest_open));
        put_blocks(&mut draft, interval_record(place).start, &record.encode());
        if bytes > 0 {
            let range = BlockRange { start: interval_data(place), len: (bytes / BLOCK) as u32 };
            draft.extents.push(Extent { kind: ExtentKind::Data, range });
            draft.crcs.extend_from_slice(&w.crcs);
            draft.data.extend(w.data.iter().cloned());
        }
        let sequence = self.gather(ctx, draft, Some((link, w.number)));
        self.hold(place, record, sequence, ctx.now, (w.crcs, w.data));
    }

    fn hold(
        &mut self,
        place: u32,
        record: IntervalRecord,
        sequence: Sequence,
        now: Nanos,
        (crcs, data): (Vec<u32>, Vec<Bytes>),
    ) {
        let open_at = match record.state {
            IntervalState::Committed => record.participants.iter().copied().filter(|s| *s != self.id).collect(),
            _ => BTreeSet::new(),
        };
        let (asked_at, is_asking, is_over) = (None, false, false);
        let held = Held { record, sequence, is_over, since: now, asked_at, is_asking, open_at, crcs, data };
        if let Some(h) = self.head.as_mut() {
            h.intervals.places.insert(place, held);
        }
    }

    /// A commit or abort that the driver asks for. What is known already is answered as a repeat is.
    fn outcome(&mut self, ctx: &mut Ctx<'_>, link: LinkId, w: &WriteRequest, part: &IntervalPart) {
        let (id, commits, last) = (part.id, w.kind == UpdateKind::Commit, self.last.sequence);
        let Some(i) = self.intervals() else { return };
        let place = i.find(&id);
        let held = place.and_then(|p| i.places.get(&p));
        let decides = id.decider == self.id;
        let is_known = match held.map(|h| (h.record.state, h.is_over)) {
            Some((IntervalState::Prepared, false)) => None,
            Some((IntervalState::Committed, _)) => Some(commits),
            Some((IntervalState::Aborted, _)) => Some(!commits),
            // Over, and it was its outcome that was asked for: there is one only.
            Some((IntervalState::Prepared, true)) | None => Some(!(decides && commits)),
        };
        match (is_known, place) {
            (None, Some(place)) => {
                let of = (w.driver, w.number, w.lowest_open);
                self.order_outcome(ctx, place, commits, of, Some((link, w.number)));
            }
            (Some(true), _) => {
                let sequence = held.map_or(last, |h| h.sequence);
                ctx.out.ordered(link, self.id, self.view_number(), (w.number, sequence));
            }
            _ => self.refuse_for_good(ctx, link, (w.number, w.lowest_open), Refusal::Aborted),
        }
    }

    /// Puts the outcome of a prepared interval into the next frame.
    fn order_outcome(
        &mut self,
        ctx: &mut Ctx<'_>,
        place: u32,
        commits: bool,
        of: Of,
        asked: Option<(LinkId, RequestNumber)>,
    ) {
        let own = self.id;
        let Some(held) = self.head.as_mut().and_then(|h| h.intervals.places.get_mut(&place)) else { return };
        assert!(held.is_prepared(), "an interval has one outcome (I1)");
        let decides = held.record.id.decider == own;
        let mut draft = draft(if commits { UpdateKind::Commit } else { UpdateKind::Abort }, of);
        if commits {
            draft.extents.extend_from_slice(&held.record.extents);
            draft.crcs = std::mem::take(&mut held.crcs);
            draft.data = std::mem::take(&mut held.data);
        }
        let (mut start, data) = (interval_record(place).start, interval_data(place));
        let (record_end, data_end) = (start.0 + held.record.blocks(), data.0 + held.record.data_blocks());
        (held.crcs, held.data) = (Vec::new(), Vec::new());
        if decides {
            held.record.state = if commits { IntervalState::Committed } else { IntervalState::Aborted };
            held.record.extents = Vec::new();
            held.open_at = held.record.participants.iter().copied().filter(|s| *s != own && commits).collect();
            (held.asked_at, held.is_asking) = (None, false);
            put_blocks(&mut draft, start, &held.record.encode());
            start = Lba(start.0 + 1);
        }
        held.is_over = !decides;
        put_trim(&mut draft, start, record_end);
        put_trim(&mut draft, data, data_end);
        let sequence = self.gather(ctx, draft, asked);
        if let Some(held) = self.head.as_mut().and_then(|h| h.intervals.places.get_mut(&place)) {
            held.sequence = sequence;
        }
    }

    /// I3: an interval of which nothing is here is aborted for good.
    fn record_abort(&mut self, ctx: &mut Ctx<'_>, id: IntervalId) {
        let Some(place) = self.intervals().and_then(Intervals::free) else { return };
        let record = IntervalRecord {
            state: IntervalState::Aborted,
            id,
            shard: self.id,
            owner: DriverId(0),
            participants: Vec::new(),
            extents: Vec::new(),
        };
        let mut draft = draft(UpdateKind::Abort, OWN);
        put_blocks(&mut draft, interval_record(place).start, &record.encode());
        let sequence = self.gather(ctx, draft, None);
        self.hold(place, record, sequence, ctx.now, (Vec::new(), Vec::new()));
        self.pack(ctx);
    }

    /// Adds an update to the next frame, and gives its sequence.
    fn gather(&mut self, ctx: &mut Ctx<'_>, draft: UpdateDraft, asked: Option<(LinkId, RequestNumber)>) -> Sequence {
        assert!(draft.check(limits::SHARD_BLOCKS_MAX).is_ok(), "updates of intervals are within the limits of one");
        self.add_to_frame(ctx, draft, asked);
        self.last.sequence.next()
    }

    /// True if a head may order something of its own now.
    fn may_order_outcomes(&self, ctx: &Ctx<'_>) -> bool {
        self.is_active_head() && !self.is_stuffed() && !self.holds() && !self.is_too_short(ctx)
    }

    /// Asks the log what is prepared, and sees to what waits for an outcome. Called whenever something may have changed.
    pub fn see_to_intervals(&mut self, ctx: &mut Ctx<'_>) {
        let now = ctx.now;
        let is_there = self.view.as_ref().is_some_and(|v| self.durable >= v.sequence);
        let (shard, view, is_open) = (self.id, self.view_number(), self.is_open_head());
        let alone = self.view.as_ref().is_some_and(|v| v.body.members.len() == 1);
        let Some(i) = self.head.as_mut().map(|h| &mut h.intervals).filter(|_| is_open && is_there) else { return };
        if i.are_unknown() {
            let is_due = i.asked_at.is_none_or(|at| now.since(at) >= timing::INTERVALS_AGAIN);
            if ctx.config.mutant == Some(Mutant::PreparedForgotten) {
                return self.on_intervals(ctx, view, Ok(Vec::new()));
            }
            if is_due && !i.is_asking {
                (i.asked_at, i.is_asking) = (Some(now), true);
                ctx.out.actions.push(Action::ListIntervals { shard, view, alone });
            }
            return;
        }
        let committed = self.committed;
        i.places.retain(|_, h| !h.is_over || h.sequence > committed);
        if i.places.is_empty() || !self.may_order_outcomes(ctx) {
            return;
        }
        self.end_the_silent(ctx);
        self.forget_the_decided(ctx);
    }

    /// The log's word on what there is.
    pub fn on_intervals(&mut self, ctx: &mut Ctx<'_>, view: ViewNumber, found: Result<Vec<FoundInterval>>) {
        let (own, now, is_it) = (self.id, ctx.now, view == self.view_number() && self.is_open_head());
        let begins = self.view.as_ref().map(|v| v.sequence).unwrap_or_default();
        let Some(i) = self.head.as_mut().map(|h| &mut h.intervals).filter(|i| is_it && i.are_unknown()) else { return };
        i.is_asking = false;
        let found = match found {
            Ok(found) => found,
            Err(e) => {
                ctx.out.note(format!("shard {own}: its log can't tell yet what is prepared: {e}"));
                return;
            }
        };
        i.is_known = true;
        // A clone sees its parent's, too.
        for f in found.into_iter().filter(|f| f.record.shard == own) {
            self.hold(f.place, f.record, begins, now, (f.crcs, f.data));
        }
        self.see_to_intervals(ctx);
        self.release_window(ctx);
        self.pack(ctx);
        self.see_to_snapshots(ctx);
    }

    /// I3: what is prepared, and whose driver is silent or gone, gets its outcome.
    fn end_the_silent(&mut self, ctx: &mut Ctx<'_>) {
        let (own, driver, now, view) = (self.id, self.attach.driver, ctx.now, self.view_number());
        let patience = match self.is_to_be_cut() {
            true => timing::INTERVAL_PATIENCE_OF_CUTS,
            false => timing::INTERVAL_PATIENCE,
        };
        let mut aborted = Vec::new();
        let Some(i) = self.head.as_mut().map(|h| &mut h.intervals) else { return };
        let mut asking = i.asking();
        for (place, h) in i.places.iter_mut().filter(|(_, h)| h.is_prepared()) {
            if h.record.owner == driver && now.since(h.since) < patience {
                continue;
            }
            if h.record.id.decider == own {
                aborted.push(*place);
            } else if asking < ASKING_MAX && h.may_ask(now) {
                (h.asked_at, h.is_asking) = (Some(now), true);
                asking += 1;
                let ask = IntervalAsk { at: h.record.id.decider, id: h.record.id, decides: true };
                ctx.out.actions.push(Action::AskInterval { shard: own, view, ask });
            }
        }
        for place in aborted {
            self.order_outcome(ctx, place, false, OWN, None);
        }
        self.pack(ctx);
    }

    /// I4: what was committed for drivers that are gone is forgotten when all participants have committed it, and an abort when
    /// nobody has asked for it for a while: whoever asks later has it recorded again. That of the driver that is here is overwritten
    /// when it says so.
    fn forget_the_decided(&mut self, ctx: &mut Ctx<'_>) {
        let (own, driver, now, view) = (self.id, self.attach.driver, ctx.now, self.view_number());
        let forgets = ctx.mutant(Mutant::DecisionsForgotten);
        let committed = self.committed;
        let Some(i) = self.head.as_mut().map(|h| &mut h.intervals) else { return };
        let (mut gone, mut asking) = (Vec::new(), i.asking());
        for (place, h) in &mut i.places {
            let is_decided = h.record.state != IntervalState::Prepared && h.sequence <= committed;
            if !is_decided || h.record.id.driver == driver {
                continue;
            }
            let is_wanted = h.record.state == IntervalState::Aborted && now.since(h.since) < timing::ABORT_KEPT;
            if (h.open_at.is_empty() && !is_wanted) || forgets {
                gone.push(*place);
                continue;
            }
            let Some(at) = h.open_at.first().copied().filter(|_| asking < ASKING_MAX && h.may_ask(now)) else {
                continue;
            };
            (h.asked_at, h.is_asking) = (Some(now), true);
            asking += 1;
            let ask = IntervalAsk { at, id: h.record.id, decides: false };
            ctx.out.actions.push(Action::AskInterval { shard: own, view, ask });
        }
        let mut draft = draft(UpdateKind::Trim, OWN);
        for place in gone.into_iter().take(FORGOTTEN_MAX) {
            i.places.remove(&place);
            let start = interval_record(place).start;
            put_trim(&mut draft, start, start.0 + 1);
        }
        if !draft.extents.is_empty() {
            self.gather(ctx, draft, None);
            self.pack(ctx);
        }
    }

    /// Another shard's head asks. `None`: not now.
    pub fn on_interval_ask(&mut self, ctx: &mut Ctx<'_>, ask: &IntervalAsk) -> Option<IntervalWord> {
        if !self.is_active_head() || self.intervals().is_none_or(Intervals::are_unknown) {
            return None;
        }
        let (driver, now) = (self.attach.driver, ctx.now);
        let place = self.intervals()?.find(&ask.id);
        if let Some(h) = self.head.as_mut().and_then(|h| h.intervals.places.get_mut(&place?))
            && h.record.state == IntervalState::Aborted
        {
            // It may have to be told again.
            h.since = now;
        }
        let i = self.intervals()?;
        let held = place.and_then(|p| i.places.get(&p));
        if !ask.decides {
            let is_open = held.is_some_and(|h| h.is_prepared() || h.sequence > self.committed);
            return Some(if is_open { IntervalWord::Open } else { IntervalWord::Over });
        }
        let is_told = |h: &Held| h.sequence <= self.committed || ctx.mutant(Mutant::DecisionsUncommitted);
        let word = |h: &Held| match h.record.state {
            IntervalState::Committed => IntervalWord::Committed,
            _ => IntervalWord::Aborted,
        };
        match held {
            _ if ask.id.decider != self.id => None,
            Some(h) if !h.is_prepared() => is_told(h).then(|| word(h)),
            // Its driver may be about to decide.
            Some(h) if h.record.owner == driver && now.since(h.since) < timing::INTERVAL_PATIENCE => None,
            _ if ctx.mutant(Mutant::AbortsUnrecorded) => Some(IntervalWord::Aborted),
            _ if !self.may_order_outcomes(ctx) => None,
            _ => {
                match place {
                    Some(place) => self.order_outcome(ctx, place, false, OWN, None),
                    None => self.record_abort(ctx, ask.id),
                }
                self.pack(ctx);
                None
            }
        }
    }

    /// The answer of another shard's head, if it gave one.
    pub fn on_interval_word(
        &mut self,
        ctx: &mut Ctx<'_>,
        view: ViewNumber,
        ask: &IntervalAsk,
        word: Result<IntervalWord>,
    ) {
        let (is_it, may_order) = (view == self.view_number(), self.may_order_outcomes(ctx));
        let Some(i) = self.head.as_mut().map(|h| &mut h.intervals).filter(|_| is_it) else { return };
        let Some(place) = i.find(&ask.id) else { return };
        let Some(held) = i.places.get_mut(&place) else { return };
        held.is_asking = false;
        let is_prepared = held.is_prepared();
        match word {
            Ok(word @ (IntervalWord::Committed | IntervalWord::Aborted)) if is_prepared && ask.decides && may_order => {
                let commits = word == IntervalWord::Committed;
                self.order_outcome(ctx, place, commits, OWN, None);
                self.pack(ctx);
                self.see_to_snapshots(ctx);
            }
            Ok(IntervalWord::Over) if !ask.decides => {
                held.open_at.remove(&ask.at);
                held.asked_at = None;
                self.see_to_intervals(ctx);
            }
            _ => {}
        }
    }

    /// An attachment that can't be answered yet: it is asked for again.
    pub fn put_off_attach(&mut self, ctx: &mut Ctx<'_>, link: LinkId) {
        self.refuse(ctx, link, Request::Attach, Refusal::NotReady);
        self.see_to_intervals(ctx);
    }
}

impl Head {
    /// Requests to prepare that wait in the queue, out of it.
    fn take_waiting_prepares(&mut self) -> Vec<(LinkId, WriteRequest)> {
        self.take_waiting(|w| w.kind == UpdateKind::Prepare)
    }
}
