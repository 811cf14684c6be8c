//! One append: what of the queue goes into it, and how its bytes lie.
//!
//! Invariants: an append lies in one segment and leaves room for the segment's index; all its frames are repairs or
//! none is; a cut is never inside, nor anything behind a shard's end. A mark with what a peer keeps is alone in its append:
//! it is made of all that lies before it, and so is what comes behind. Each append but a segment's first one repeats what
//! the append before it held, so its own heads are few enough to be repeated by the next one.

use crate::engine::core::Core;
use crate::engine::core::finding;
use crate::engine::moves::Moves;
use crate::engine::queue::{Job, Queued};
use crate::engine::stand_ins::{has_stand_ins, stand_ins};
use crate::log::geometry::{Geometry, LastAppend, OpenSegment};
use crate::log::place::At;
use crate::shard::unfit;
use crate::{Durable, MarkChange, Record, Unrepaired};
use freebs_format::disk::{
    APPEND_DATA_BYTES_MAX, APPEND_HEADS_BYTES_MAX, APPEND_REPAIR, APPEND_REPEATS, AppendHeader, IndexEntry, LiveTable,
    LostStretch, REPEAT_BYTES_MAX, Repeat, SegmentFooter,
};
use freebs_format::{Frame, FrameHead, crc32c};
use freebs_io::AlignedBuf;
use freebs_types::{Error, Result, SegmentId, limits};
use zerocopy::IntoBytes;

/// Bytes of data after which an append is closed although more is waiting, so that a single answer does not wait
/// for a whole queue.
const BATCH_DATA_BYTES: usize = 2 << 20;
const _: () = assert!(BATCH_DATA_BYTES + limits::FRAME_DATA_BYTES_MAX <= APPEND_DATA_BYTES_MAX);
const HEADER: usize = size_of::<AppendHeader>();

/// A frame of an append, and who is told when it is durable.
pub(crate) struct Op {
    pub head: FrameHead,
    pub at: At,
    pub done: Option<Durable>,
    /// It is one of those that let a round of segments be given up.
    pub frees: bool,
}

/// An append on its way.
pub(crate) struct Batch {
    pub byte: u64,
    pub ops: Vec<Op>,
    pub repair: bool,
    pub number: u64,
    /// Segments that the live table in this append leaves out.
    pub given: Option<Vec<u32>>,
    /// The live table, in a segment's first append.
    table: Vec<u8>,
    /// Frames at its front that cleaning made of what other segments hold. The next append does not repeat them: as long
    /// as it may have to stand for this one, these segments are there, too.
    copies: u32,
    /// Moves that have been written with it, to the end.
    moves_done: Moves,
    /// Blocks that cleaning moves, and the sum of their ages.
    moved: (u64, u64),
}

pub(crate) enum Next {
    Wait,
    Write(Batch, AlignedBuf),
    /// The open segment has no room for the next record, or there is none.
    Rotate,
    /// Something has come to its end without being written.
    Done(Durable),
    Fail(Error),
}

/// The part that the front of the queue has in the append that is being gathered.
enum Front {
    Joins,
    /// It was taken out of the queue, and the next one is looked at.
    Left,
    /// It waits until the append is written.
    Ends,
    /// Nothing is gathered yet, and this is done first.
    First(Next),
}

/// The append that is being gathered.
#[derive(Default)]
pub(crate) struct Gather {
    frames: Vec<(Frame, Option<Durable>, bool)>,
    heads: usize,
    index: usize,
    data: usize,
    repair: bool,
    idle: bool,
    /// Nothing goes behind what is there.
    ends: bool,
    /// Frames at the front that cleaning made of what other segments hold.
    copies: u32,
    pub moves_done: Moves,
    pub moved: (u64, u64),
}

impl Gather {
    /// Adds a local frame that was found to fit, with blocks that are moved; `is_copy` if their old places are as good.
    pub fn push(&mut self, frame: Frame, is_copy: bool) {
        self.copies += u32::from(is_copy && self.frames.len() == self.copies as usize);
        let head = frame.head.bytes().len();
        self.heads += head;
        self.index += IndexEntry::encoded_len_max(head);
        self.data += frame.data_bytes();
        self.frames.push((frame, None, false));
    }
}

/// True if it is alone in its append: it changes what is kept, or missing, and each mark says what that was when it was laid out.
fn is_alone(queued: &Queued) -> bool {
    let Queued::Record(Record::Mark { change, .. }) = queued else { return false };
    change.kept.is_some() || change.early || change.gives_up().is_some() || change.fork.is_some() || change.flat
}

/// Bytes of the live table that a segment's first append carries.
fn table_len(core: &Core, open: &OpenSegment) -> usize {
    if open.first_append == 0 { core.segs.len().div_ceil(8) as usize } else { 0 }
}

/// Bytes between header and heads: the live table, or the repeat of the append before.
fn extra_len(core: &Core, open: &OpenSegment) -> usize {
    let repeat = |last: &LastAppend| Repeat::encoded_len(last.table.len(), open.index.len() - last.index_at);
    table_len(core, open) + open.last.as_ref().map_or(0, repeat)
}

/// True if the next append can repeat one whose index entries take `index` bytes.
fn is_repeatable(core: &Core, open: &OpenSegment, index: usize) -> bool {
    Repeat::encoded_len(table_len(core, open), index) <= REPEAT_BYTES_MAX
}

/// Data bytes that a frame may have so that it fits a fresh segment with the largest head.
pub(crate) fn frame_data_max(core: &Core) -> usize {
    let g = &core.geometry;
    let head = limits::FRAME_HEAD_BYTES_MAX;
    let table = g.limit_segments.div_ceil(8) as usize;
    let front = (HEADER + table + head).next_multiple_of(g.sector);
    let back = g.index_room(IndexEntry::encoded_len_max(head));
    let room = (g.segment_bytes as usize).saturating_sub(front + back);
    room.min(limits::FRAME_DATA_BYTES_MAX) / freebs_types::BLOCK * freebs_types::BLOCK
}

impl Core {
    /// Decides what the writer does next.
    pub fn next(&mut self, spare: &mut Option<AlignedBuf>) -> Next {
        if let Some(e) = &self.failed {
            return Next::Fail(e.clone());
        }
        if std::mem::take(&mut self.no_segment)
            && let Some(done) = self.refuse()
        {
            return Next::Done(done);
        }
        let mut g = Gather::default();
        while !self.queue.is_empty() {
            match self.look_at_front(&mut g) {
                Front::Joins => {}
                Front::Left => continue,
                Front::Ends => break,
                Front::First(next) => return next,
            }
            match self.gather(&mut g) {
                Ok(true) => {}
                Ok(false) if g.frames.is_empty() && self.end_records_segment() => {}
                Ok(false) if g.frames.is_empty() => return Next::Rotate,
                Ok(false) => break,
                Err(e) => return Next::Fail(e),
            }
            if g.ends {
                break;
            }
        }
        if g.frames.is_empty() && !g.idle {
            return Next::Wait;
        }
        if g.idle {
            // The index of a closed segment proves its last append as well as a later append would.
            match &self.open {
                Some(o) if (o.first_append > 0 || self.rolled) && self.has_room(o, &g, 0, 0, 0) => {}
                Some(o) if o.first_append > 0 && self.may_open() => return Next::Rotate,
                _ => return Next::Wait,
            }
        }
        assert!(!g.idle || g.frames.is_empty(), "an append that only proves the one before it has no frames");
        let (batch, buf) = self.lay_out(g, spare);
        Next::Write(batch, buf)
    }

    /// Decides about the front of the queue, and takes it out if it does not join the append.
    fn look_at_front(&mut self, g: &mut Gather) -> Front {
        let nothing = g.frames.is_empty();
        let Some(front) = self.queue.front() else { return Front::Ends };
        if self.holds_back(front) {
            return if nothing { Front::First(self.hold_back()) } else { Front::Ends };
        }
        match front {
            Queued::Record(Record::Cut { shard, to }) if nothing => {
                let (shard, to) = (*shard, *to);
                self.queue.pop_front();
                Front::First(Next::Done(self.apply_cut(shard, to)))
            }
            Queued::Record(Record::Cut { .. }) => Front::Ends,
            first if (is_alone(first) || has_stand_ins(first)) && !nothing => Front::Ends,
            Queued::Record(record) => match self.refusal(record) {
                None => Front::Joins,
                Some(_) if !nothing => Front::Ends,
                Some((answer, what)) => {
                    self.queue.pop_front();
                    self.event(crate::EventKind::Refused, what);
                    Front::First(Next::Done(answer))
                }
            },
            Queued::Idle => {
                self.queue.pop_front();
                g.idle = nothing && self.queue.is_empty();
                Front::Left
            }
            Queued::Roll if !nothing => Front::Ends,
            Queued::Roll => {
                self.queue.pop_front();
                self.rolled = self.may_open()
                    && self.segs.ready().is_some()
                    && self.open.as_ref().is_some_and(|o| o.first_append > 0);
                if !self.rolled {
                    return Front::Left;
                }
                self.queue.push_front(Queued::Idle);
                Front::First(Next::Rotate)
            }
            _ => Front::Joins,
        }
    }

    /// What to do when the next record must wait for free segments.
    fn hold_back(&mut self) -> Next {
        if self.waits_for_room() || self.asks_again() {
            return Next::Wait;
        }
        match self.refuse() {
            Some(done) => Next::Done(done),
            None => Next::Fail(self.full()),
        }
    }

    /// The answer to a record that is not written, if it must not be, and what is to be said of it.
    fn refusal(&self, record: &Record) -> Option<(Durable, String)> {
        match record {
            Record::Frame(f) => {
                let (shard, sequence) = (f.head.shard(), f.head.seq());
                let usurps = || self.shards.get(&shard).is_some_and(|s| s.is_usurped_by(&f.head, &self.segs));
                let why = self.unfit_frame(f).or_else(|| usurps().then_some(unfit::USURPS))?;
                Some((Durable::Refused { shard, sequence, why }, format!("shard {shard}, sequence {sequence}: {why}")))
            }
            Record::Repair(f) => {
                let (shard, sequence) = (f.head.shard(), f.head.seq());
                let drops = || self.shards.get(&shard).map_or(Some(Unrepaired::NotMissed), |s| s.is_not_for(&f.head));
                let why = self.unfit_frame(f).map(|_| Unrepaired::Unfit).or_else(drops)?;
                let what = format!("shard {shard}: frame {sequence} is no repair of what is here");
                Some((Durable::Unrepaired { shard, sequence, why }, what))
            }
            Record::Carry { shard, body, data, ticket } => {
                // Without some of its blocks there may be more entries.
                let entries = body.entries.len() + stand_ins(data);
                let data = data.iter().map(bytes::Bytes::len).sum();
                let head = crate::engine::moves::head_bytes(entries, data / freebs_types::BLOCK).0;
                let why = unfit::carry(body, data).or_else(|| self.too_large(head, data))?;
                let answer = Durable::Unlearned { shard: *shard, ticket: *ticket, why };
                Some((answer, format!("shard {shard}: map entries are not taken: {why}")))
            }
            Record::Mark { shard, change: MarkChange { fork: Some(fork), .. }, ticket } if !self.may_fork(fork) => {
                let why = "the parent does not keep the version any more";
                let answer = Durable::Unlearned { shard: *shard, ticket: *ticket, why };
                Some((answer, format!("shard {shard} is no clone of shard {}: {why}", fork.parent)))
            }
            Record::Mark { .. } | Record::Cut { .. } | Record::Forget { .. } => None,
        }
    }

    /// Why no log could have a frame, or this one can't store it.
    fn unfit_frame(&self, f: &Frame) -> Option<&'static str> {
        if f.header().cluster_id() != self.geometry.cluster {
            return Some("frame of another cluster");
        }
        unfit::frame(&f.head).or_else(|| self.too_large(f.head.bytes().len(), f.data_bytes()))
    }

    /// Why a record of so many bytes of head and data can't be stored, if so.
    fn too_large(&self, head: usize, data: usize) -> Option<&'static str> {
        if head > limits::FRAME_HEAD_BYTES_MAX || data > limits::FRAME_DATA_BYTES_MAX {
            return Some("record above the maxima");
        }
        let table = self.geometry.limit_segments.div_ceil(8) as usize;
        let front = (HEADER + table + head).next_multiple_of(self.geometry.sector);
        let back = self.geometry.index_room(IndexEntry::encoded_len_max(head));
        let fits = front + data + back <= self.geometry.segment_bytes as usize;
        (!fits).then_some("record that is larger than a segment of this log takes")
    }

    /// Whether what is next may be refused, and how. Who learns, repairs or promises can wait for room; the log must not
    /// end for it. The state at the end of a learned map is not refused: who brought it has gone on from there.
    pub fn may_refuse(&self) -> Option<(Durable, &'static str)> {
        match self.queue.iter().find(|q| !matches!(q, Queued::Suspect(_))) {
            Some(Queued::Record(Record::Carry { shard, ticket, .. })) => {
                Some((Durable::NoRoom { shard: *shard, ticket: *ticket }, "what it learns"))
            }
            Some(Queued::Record(Record::Mark { shard, change, ticket }))
                if change.base.is_none() || change.fork.is_some() =>
            {
                Some((Durable::NoRoom { shard: *shard, ticket: *ticket }, "a mark"))
            }
            Some(Queued::Record(Record::Repair(f))) => {
                let (shard, sequence, why) = (f.head.shard(), f.head.seq(), Unrepaired::NoRoom);
                Some((Durable::Unrepaired { shard, sequence, why }, "a frame that was lost"))
            }
            _ => None,
        }
    }

    fn refuse(&mut self) -> Option<Durable> {
        let (done, what) = self.may_refuse()?;
        self.take_marks_back();
        self.queue.pop_front();
        if let Durable::NoRoom { shard, .. } | Durable::Unrepaired { shard, .. } = &done {
            self.event(crate::EventKind::Space, format!("shard {shard}: no room for {what}"));
        }
        Some(done)
    }

    /// Marks that were put in front of something that is not appended now come in front of what is next instead.
    pub fn take_marks_back(&mut self) {
        while let Some(Queued::Suspect(shard)) = self.queue.pop_front_if(|q| matches!(q, Queued::Suspect(_))) {
            self.forks.has_to_say(shard);
        }
    }

    /// The device is full.
    pub fn full(&mut self) -> Error {
        let text = "the device is full: no segment of its log is free";
        self.event(crate::EventKind::Space, text);
        Error::no_space(text)
    }

    /// True if one more local frame fits the append and its segment.
    pub fn fits(&self, g: &Gather, head: usize, index: usize, data: usize) -> bool {
        let Some(open) = &self.open else { return false };
        let heads_max = APPEND_HEADS_BYTES_MAX - HEADER - extra_len(self, open);
        head <= limits::FRAME_HEAD_BYTES_MAX
            && g.data + data <= BATCH_DATA_BYTES
            && g.heads + head <= heads_max
            && is_repeatable(self, open, g.index + index)
            && self.has_room(open, g, head, index, data)
    }

    fn has_room(&self, open: &OpenSegment, g: &Gather, head: usize, index: usize, data: usize) -> bool {
        let front = (HEADER + extra_len(self, open) + g.heads + head).next_multiple_of(self.geometry.sector);
        let back = self.geometry.index_room(open.index.len() + g.index + index);
        open.at as usize + front + g.data + data + back <= self.geometry.segment_bytes as usize
    }

    /// Moves the front of the queue into the append, if it fits.
    fn gather(&mut self, g: &mut Gather) -> Result<bool> {
        if self.open.is_none() {
            return Ok(false);
        }
        self.tell_lost_to_forks();
        if matches!(self.queue.front(), Some(Queued::Job(Job::Move(_)))) {
            let moved = !g.repair && self.gather_move(g);
            if g.frames.is_empty() {
                // Nothing of it lives any more: there is nothing to wait for.
                let done = std::mem::take(&mut g.moves_done);
                self.moves_done(done);
            }
            return Ok(moved);
        }
        self.tell_suspect();
        let Some(open) = &self.open else { return Ok(false) };
        let front = self.queue.front().expect("the caller looked");
        let repair = matches!(front, Queued::Record(Record::Repair(_)));
        let ends = is_alone(front) || matches!(front, Queued::Record(Record::Forget { .. }));
        if !g.frames.is_empty() && repair != g.repair {
            return Ok(false);
        }
        let mut local = None;
        let (frame, done, frees) = match front {
            Queued::Record(Record::Frame(f)) => {
                let h = f.header();
                (f, Some(Durable::Frame { shard: f.head.shard(), view: h.view_number(), sequence: h.seq() }), false)
            }
            Queued::Record(Record::Repair(f)) => {
                (f, Some(Durable::Repair { shard: f.head.shard(), sequence: f.head.seq() }), false)
            }
            other => {
                let (frame, done, frees) = self.local(other);
                (&*local.insert(frame), done, frees)
            }
        };
        let (head, data) = (frame.head.bytes().len(), frame.data_bytes());
        let index = IndexEntry::encoded_len_max(head);
        let heads_max = APPEND_HEADS_BYTES_MAX - HEADER - extra_len(self, open);
        let many = g.heads + head > heads_max || !is_repeatable(self, open, g.index + index);
        let full = !g.frames.is_empty() && (g.data + data > BATCH_DATA_BYTES || many);
        if full || !self.has_room(open, g, head, index, data) {
            let fresh = open.first_append == 0 && g.frames.is_empty();
            if fresh || data > limits::FRAME_DATA_BYTES_MAX || head > limits::FRAME_HEAD_BYTES_MAX {
                let shard = frame.head.shard();
                return Err(Error::invalid(format!("shard {shard}: a record of {data} bytes does not fit a segment")));
            }
            return Ok(false);
        }
        if head > limits::FRAME_HEAD_BYTES_MAX || data > limits::FRAME_DATA_BYTES_MAX {
            return Err(Error::invalid(format!("shard {}: a record above the maxima", frame.head.shard())));
        }
        self.note_marks();
        let frame = match (self.queue.pop_front(), local) {
            (Some(Queued::Record(Record::Frame(f) | Record::Repair(f))), _) => f,
            (_, local) => local.expect("made above for everything that is not a frame"),
        };
        assert!(!g.ends, "nothing lies behind what ends an append");
        g.copies += u32::from(frees && g.frames.len() == g.copies as usize);
        g.frames.push((frame, done, frees));
        (g.heads, g.index, g.data, g.repair) = (g.heads + head, g.index + index, g.data + data, repair);
        g.ends = ends;
        Ok(true)
    }

    /// Losses to forks that were found when the log was replayed are said in a mark in front of all else: the segments that tell of
    /// them may go, and a start from a checkpoint does not ask them. So is that a fork which may have been flat is one.
    fn tell_lost_to_forks(&mut self) {
        let next = match self.queue.front() {
            Some(Queued::Record(Record::Frame(f) | Record::Repair(f))) => Some(f.head.shard()),
            _ => None,
        };
        let shards = &self.shards;
        let parent = self.forks.take_untold(|p| shards.contains_key(p) || next == Some(*p));
        let said = parent.into_iter().chain(self.forks.take_unsure());
        said.for_each(|shard| self.queue.push_front(Queued::Suspect(shard)));
    }

    /// In front of the first frame behind a tail that may have lost some goes a mark that says so: from the frame alone
    /// the next start would take the log for whole (E7). And in front of one that takes the place of what a fork reads (E10).
    fn tell_suspect(&mut self) {
        let Some(Queued::Record(Record::Frame(f) | Record::Repair(f))) = self.queue.front() else { return };
        let shard = f.head.shard();
        let is_lost = match self.shards.get_mut(&shard) {
            Some(s) => s.loses_forks_by(&f.head),
            None => self.forks.loses_by(&f.head),
        };
        if is_lost {
            return self.queue.push_front(Queued::Suspect(shard));
        }
        let Some(Queued::Record(Record::Frame(_))) = self.queue.front() else { return };
        let Some(s) = self.shards.get_mut(&shard).filter(|s| s.suspect && !s.suspect_told) else { return };
        s.suspect_told = true;
        self.queue.push_front(Queued::Suspect(shard));
    }

    /// A map that is learned begins with the first carry that the caller brings, and ends with the mark that says so. A
    /// tail is suspect until a mark says that it was compared. A fork is known from its mark on, durable or not.
    fn note_marks(&mut self) {
        match self.queue.front() {
            Some(Queued::Record(Record::Carry { shard, body, .. })) => {
                let fork = self.shards.get(shard).and_then(|s| s.fork);
                let inherited = fork.is_some_and(|f| body.entries.iter().any(|e| e.sequence <= f.sequence));
                self.brought.carry(*shard, self.next_append, inherited);
            }
            Some(Queued::Record(Record::Mark { shard, change, .. })) => {
                self.brought.told(*shard, change);
                // Marks that come behind it in the same append are not to say otherwise.
                if let Some(s) = self.shards.get_mut(shard).filter(|_| change.trusted) {
                    s.suspect = false;
                }
                if let Some(fork) = change.fork {
                    let shard = *shard;
                    self.fork_comes(shard, &fork);
                }
            }
            Some(Queued::Record(Record::Forget { shard, .. })) => self.brought.forget(*shard),
            _ => {}
        }
    }

    /// The local frame of a record that the caller did not bring as a frame.
    fn local(&self, queued: &Queued) -> (Frame, Option<Durable>, bool) {
        match queued {
            Queued::Record(Record::Mark { shard, change, ticket }) => {
                let frame = self.mark_frame(*shard, change, freebs_types::Sequence(0));
                (frame, Some(Durable::Mark { shard: *shard, ticket: *ticket }), false)
            }
            Queued::Record(Record::Carry { shard, body, data, ticket }) => {
                let frame = match self.without_known(*shard, body, data) {
                    Some((body, data)) => self.carry_frame(*shard, &body, data),
                    None => self.carry_frame(*shard, body, data.clone()),
                };
                (frame, Some(Durable::Carry { shard: *shard, ticket: *ticket }), false)
            }
            Queued::Record(Record::Forget { shard, promised }) => {
                (self.deleted_frame(*shard, *promised), Some(Durable::Forget { shard: *shard }), false)
            }
            Queued::Job(Job::Mark { shard, released }) => {
                (self.mark_frame(*shard, &crate::MarkChange::default(), *released), None, true)
            }
            Queued::Suspect(shard) => {
                (self.mark_frame(*shard, &crate::MarkChange::default(), freebs_types::Sequence(0)), None, false)
            }
            Queued::Job(Job::Carry { shard, body }) => (self.carry_frame(*shard, body, Vec::new()), None, true),
            Queued::Record(Record::Frame(_) | Record::Repair(_) | Record::Cut { .. })
            | Queued::Job(Job::Move(_))
            | Queued::Idle
            | Queued::Roll => {
                unreachable!("handled by the callers")
            }
        }
    }

    /// Lays the append out; the only copy of the data that the engine makes.
    fn lay_out(&mut self, g: Gather, spare: &mut Option<AlignedBuf>) -> (Batch, AlignedBuf) {
        let sector = self.geometry.sector;
        let open = self.open.as_ref().expect("checked when gathered");
        let extra = extra_len(self, open);
        let heads_len = HEADER + extra + g.heads;
        let front = heads_len.next_multiple_of(sector);
        let mut buf = match spare.take() {
            Some(b) if b.capacity() >= front + g.data => b,
            _ => AlignedBuf::zeroed(front + g.data),
        };
        buf.set_len(front + g.data);
        let given = (open.first_append == 0).then(|| self.segs.given());
        let number = self.next_append;
        let (repeats, table) = self.lay_out_extra(open, &mut buf[HEADER..HEADER + extra]);
        let flag = |is_set: bool, flag: u16| if is_set { flag as u8 } else { 0 };
        let flags = flag(g.repair, APPEND_REPAIR) | flag(repeats, APPEND_REPEATS);
        let (mut head_at, mut data_at) = (HEADER + extra, front);
        let mut ops = Vec::with_capacity(g.frames.len());
        for (frame, done, frees) in g.frames {
            let head = frame.head.bytes();
            buf[head_at..head_at + head.len()].copy_from_slice(head);
            let at = At {
                segment: open.id,
                head_at: open.at + head_at as u32,
                data_at: open.at + data_at as u32,
                append: number,
            };
            head_at += head.len();
            for d in &frame.data {
                buf[data_at..data_at + d.len()].copy_from_slice(d);
                data_at += d.len();
            }
            ops.push(Op { head: frame.head, at, done, frees });
        }
        assert!(head_at == heads_len && data_at == buf.len(), "the bytes of an append are those that were gathered");
        let behind = self.geometry.index_room(open.index.len() + g.index);
        let end = open.at as usize + buf.len();
        assert!(end + behind <= self.geometry.segment_bytes as usize, "an append leaves room for the segment's index");
        buf[heads_len..front].fill(0);
        let mut header = AppendHeader {
            magic: [0; 4],
            version: 0.into(),
            flags,
            skipped: open.skipped,
            device: self.geometry.device.0,
            segment: open.id.into(),
            offset: open.at.into(),
            segment_seq: open.seq.into(),
            number: number.into(),
            durable: (number - 1).into(),
            heads_len: (heads_len as u32).into(),
            extra_len: (extra as u32).into(),
            data_len: (g.data as u32).into(),
            frames: (ops.len() as u32).into(),
            start: self.geometry.start.0.into(),
            lost: self.known_lost.map_or(LostStretch::default(), LostStretch::new),
            heads_crc: 0.into(),
            crc: 0.into(),
        };
        header.finish(&buf[HEADER..heads_len]);
        buf[..HEADER].copy_from_slice(header.as_bytes());
        let byte = self.geometry.byte(open.id, open.at);
        let Gather { repair, copies, moves_done, moved, .. } = g;
        (Batch { byte, ops, repair, number, given, table, copies, moves_done, moved }, buf)
    }

    /// Lays out the repeat or the live table of the next append. Gives back whether it is a repeat, and the table.
    fn lay_out_extra(&self, open: &OpenSegment, out: &mut [u8]) -> (bool, Vec<u8>) {
        if let Some(last) = &open.last {
            let repeated = (last.frames, &open.index[last.index_at..]);
            Repeat::encode(out, last.append, &last.table, last.copies, repeated);
            return (true, Vec::new());
        }
        if open.first_append > 0 {
            return (false, Vec::new());
        }
        let live = self.segs.named().filter(|i| *i != open.id).map(SegmentId);
        let table = LiveTable::new(live, self.segs.len()).bits;
        out.copy_from_slice(&table);
        (false, table)
    }

    /// A durable append: moves the end of the log, then lets the frames act in order.
    pub fn written(&mut self, mut batch: Batch, len: usize, done: &mut Vec<Durable>) {
        let open = self.open.as_mut().expect("the append went there");
        assert_eq!(batch.number, self.next_append, "one append is in flight at a time");
        assert_eq!(batch.byte, self.geometry.byte(open.id, open.at), "an append lies at the end of the log");
        assert!(open.last_append < batch.number, "appends are numbered in order");
        open.at += len as u32;
        open.first_append = if open.first_append == 0 { batch.number } else { open.first_append };
        open.last_append = batch.number;
        open.frames += batch.ops.len() as u32;
        open.add_last(&mut batch);
        let (id, seq) = (open.id, open.seq);
        let (blocks, births) = batch.moved;
        let moved = &mut self.segs.get_mut(id).moved;
        *moved = (moved.0 + blocks, moved.1 + births);
        self.counters.cleaned_bytes += blocks * freebs_types::BLOCK as u64;
        self.next_append = batch.number + 1;
        self.proven = batch.ops.is_empty();
        self.rolled = false;
        self.counters.appends += 1;
        self.counters.append_bytes += len as u64;
        self.maps.since += len as u64;
        if let Some(given) = &batch.given {
            self.segs.table_durable(given, seq);
            self.map_wake.notify_one();
        }
        let heals = batch.repair || batch.ops.iter().any(|op| matches!(op.done, Some(Durable::Mark { .. })));
        // What cleaning writes itself earns it nothing.
        let own = |op: &&Op| op.done.is_none();
        let op_len = |op: &Op| op.head.bytes().len() + op.head.header().data_len.get() as usize;
        let own_bytes: usize = batch.ops.iter().filter(own).map(op_len).sum();
        let others = if batch.ops.iter().all(|op| own(&op)) { 0 } else { len.saturating_sub(own_bytes) };
        for op in batch.ops {
            self.counters.frames += 1;
            self.counters.data_bytes += u64::from(op.head.header().data_len.get());
            match self.try_apply(&op.head, op.at, batch.repair) {
                Ok(()) => done.extend(op.done),
                Err(why) => {
                    self.event(crate::EventKind::Refused, finding(&op.head, op.at, why).what);
                    done.extend(op.done.map(|d| Self::refused(d, &op.head, why)));
                }
            }
            if op.frees {
                self.counters.carried += 1;
                self.job_done();
            }
        }
        self.moves_done(batch.moves_done);
        if heals {
            // Blocks that were missed may be here now.
            self.no_longer_held();
        }
        self.earn(blocks, others as u64);
    }

    /// The answer in place of this one to something that is written and does not count: else the next frame's end would
    /// stand for it.
    fn refused(done: Durable, head: &FrameHead, why: &'static str) -> Durable {
        let (shard, sequence) = (head.shard(), head.seq());
        match done {
            Durable::Repair { .. } => Durable::Unrepaired { shard, sequence, why: Unrepaired::Differs },
            Durable::Carry { shard, ticket } => Durable::Unlearned { shard, ticket, why },
            _ => Durable::Refused { shard, sequence, why },
        }
    }

    /// Index and footer of the open segment, and where they go. `None` if nothing was appended to it.
    pub fn index(&mut self, next: u32) -> Option<(u64, AlignedBuf)> {
        let open = self.open.as_mut().filter(|o| o.first_append > 0)?;
        Some(open.close_with(&self.geometry, next))
    }
}

impl OpenSegment {
    /// Adds the frames of a durable append to the index, and notes what the next append repeats.
    fn add_last(&mut self, batch: &mut Batch) {
        let (begin, copies) = (self.index.len(), batch.copies as usize);
        let (front, rest) = batch.ops.split_at(copies);
        front.iter().for_each(|op| index_entry(op, batch.repair).encode(&mut self.index));
        let (index_at, crc) = (self.index.len(), crc32c(&self.index[begin..]));
        rest.iter().for_each(|op| index_entry(op, batch.repair).encode(&mut self.index));
        let (append, table) = (batch.number, std::mem::take(&mut batch.table));
        self.last =
            Some(LastAppend { append, index_at, frames: rest.len() as u32, copies: (batch.copies, crc), table });
    }

    /// Its index and footer, and the byte on the device where they go.
    pub fn close_with(&mut self, g: &Geometry, next: u32) -> (u64, AlignedBuf) {
        let index = std::mem::take(&mut self.index);
        let index_at = g.segment_bytes as usize - g.index_room(index.len());
        let mut buf = AlignedBuf::zeroed(g.segment_bytes as usize - index_at);
        buf[..index.len()].copy_from_slice(&index);
        let mut footer = SegmentFooter {
            magic: [0; 4],
            version: 0.into(),
            skipped: u16::from(self.skipped).into(),
            device: g.device.0,
            segment: self.id.into(),
            frames: self.frames.into(),
            segment_seq: self.seq.into(),
            first_append: self.first_append.into(),
            last_append: self.last_append.into(),
            index_at: (index_at as u32).into(),
            index_len: 0.into(),
            next: next.into(),
            index_crc: 0.into(),
            lost: self.lost.in_footer(),
            reserved: [0; 4],
            crc: 0.into(),
        };
        footer.finish(&index);
        let end = buf.len();
        buf[end - size_of::<SegmentFooter>()..].copy_from_slice(footer.as_bytes());
        (g.byte(self.id, index_at as u32), buf)
    }
}

/// The index entry of a frame.
pub(crate) fn index_entry(op: &Op, repair: bool) -> IndexEntry {
    IndexEntry {
        head_at: op.at.head_at,
        data_at: op.at.data_at,
        append: op.at.append,
        flags: if repair { APPEND_REPAIR } else { 0 },
        head: op.head.clone(),
    }
}
