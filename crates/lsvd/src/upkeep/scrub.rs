//! Scrub: closed segments are read from end to end, those under suspicion first, then the oldest, as slowly as the
//! caller wants, so that rot is found while there are still other copies. Live blocks that are damaged can be asked
//! for, and mended with bytes from elsewhere; what else is in a damaged segment is moved, so that it can be given up.
//!
//! Invariants:
//! - A step reads about as much as it is granted, and keeps nothing from being cleaned or used again. What was found
//!   in a segment counts only if the segment still has the number that it had when it was begun.
//! - Segments that are closed during a pass wait for the next one.
//! - A block is mended only by bytes that match the CRC of its own entry, and only if it still lives where the damage
//!   was found: both are looked at again when the frame is laid out (as for a move of cleaning).

use crate::api::report::{Damage, DamageKind};
use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::moves::{Move, Piece};
use crate::engine::queue::{Job, Queued};
use crate::engine::rot::Place;
use crate::log::gate::Gate;
use crate::log::scan::Window;
use crate::log::segments::SegmentState;
use crate::log::whole::{Known, check};
use crate::{DamagedBlocks, Finding, ScrubStep};
use bytes::Bytes;
use freebs_format::block_crc;
use freebs_format::disk::{PAGE_BYTES, SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use freebs_io::Device;
use freebs_types::{BLOCK, Error, ErrorKind, Result};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Mending moves on their way to the log at once.
const MENDING_MAX: u32 = 2;
/// Frames that are looked at before others get their turn.
const FRAMES_PER_STEP: usize = 64;

type Pass = Pin<Box<dyn Future<Output = Result<()>>>>;

/// Reads a log again and again, a step at a time.
pub struct Scrubber<D: Device> {
    engine: Engine<D>,
    gate: Rc<Gate>,
    found: Rc<RefCell<ScrubStep>>,
    pass: Option<Pass>,
}

impl<D: Device> Scrubber<D> {
    /// A scrub of the engine's log that has not begun.
    #[must_use]
    pub fn new(engine: Engine<D>) -> Self {
        Self { engine, gate: Rc::default(), found: Rc::default(), pass: None }
    }

    /// Whether a pass has begun that is not over.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.pass.is_some()
    }

    /// Reads on, about `bytes` bytes; what is read beyond them is taken off the next steps. What is found is told as
    /// events and counted, too. `DeviceFailed` once the device is poisoned.
    pub async fn step(&mut self, bytes: u64) -> Result<ScrubStep> {
        self.go_on(bytes, true).await
    }

    /// The same, but a new pass reads only segments under suspicion.
    pub async fn look_at_suspects(&mut self, bytes: u64) -> Result<ScrubStep> {
        self.go_on(bytes, false).await
    }

    async fn go_on(&mut self, bytes: u64, all: bool) -> Result<ScrubStep> {
        let Self { engine, gate, found, pass } = self;
        let pass = pass.get_or_insert_with(|| Box::pin(engine.clone().scrub_pass(all, gate.clone(), found.clone())));
        let end = gate.drive(bytes, pass).await;
        let mut step = std::mem::take(&mut *self.found.borrow_mut());
        step.bytes = self.gate.take_read();
        self.engine.inner.core.borrow_mut().counters.scrubbed_bytes += step.bytes;
        if let Some(end) = end {
            self.pass = None;
            end?;
            step.pass_complete = true;
        }
        Ok(step)
    }
}

impl Core {
    /// The segment to read next, and whether it comes in its turn: one under suspicion, or the oldest one that this pass
    /// has not read.
    fn next_to_scrub(&mut self, done: &mut u64, until: u64) -> Option<(u32, u64, bool)> {
        while let Some(id) = self.rot.next_suspect() {
            if self.segs.get(id).state == SegmentState::Closed {
                return Some((id, self.segs.get(id).seq, false));
            }
        }
        let closed = self.segs.used().filter(|(_, s)| s.state == SegmentState::Closed);
        let left = closed.map(|(id, s)| (id, s.seq)).filter(|(_, seq)| (*done + 1..until).contains(seq));
        let (id, seq) = left.min_by_key(|(_, seq)| *seq)?;
        *done = seq;
        Some((id, seq, true))
    }

    /// The findings of the scrub in a place: all that there is, but of a run of the map one page after the other.
    fn scrub_found(&mut self, place: Place, found: Vec<Finding>, step: &mut ScrubStep) {
        let told = match place {
            Place::Run(_) => found.iter().map(|f| u64::from(self.tell(place, "scrub: ", f))).sum(),
            _ => self.tell_found(place, "scrub: ", &found),
        };
        self.counters.scrub_findings += told;
        step.findings.extend(found);
    }
}

impl<D: Device> Engine<D> {
    async fn scrub_pass(self, all: bool, gate: Rc<Gate>, found: Rc<RefCell<ScrubStep>>) -> Result<()> {
        self.inner.core.borrow_mut().forget_told();
        let until = if all { self.inner.core.borrow().next_seq } else { 0 };
        let mut done = 0;
        loop {
            let next = {
                let mut core = self.inner.core.borrow_mut();
                if let Some(e) = core.failed.as_ref().filter(|_| core.is_poisoned()) {
                    return Err(e.clone());
                }
                core.next_to_scrub(&mut done, until)
            };
            let Some((id, seq, in_turn)) = next else { break };
            self.scrub_segment((id, seq), in_turn, &gate, &found).await;
        }
        if !all {
            return Ok(());
        }
        self.scrub_runs(&gate, &found).await;
        self.scrub_superblock(&gate, &found).await;
        Ok(())
    }

    async fn scrub_segment(&self, (id, seq): (u32, u64), in_turn: bool, gate: &Gate, found: &RefCell<ScrubStep>) {
        let geometry = self.inner.core.borrow().geometry;
        let mut window = Window::paced(&self.inner.device, geometry, id, gate);
        let known = Known { seq, newest: false, next_first: None };
        let checked = check(&mut window, &geometry, known).await;
        let mut pieces = Vec::new();
        for (i, e) in checked.entries.iter().enumerate().filter(|_| !checked.bad.is_empty()) {
            if i % FRAMES_PER_STEP == 0 {
                crate::log::join::yield_now().await;
            }
            let core = self.inner.core.borrow();
            if !core.is_still(id, seq) {
                return;
            }
            core.pieces_of(e, id, &mut pieces);
        }
        let mut core = self.inner.core.borrow_mut();
        // Of a device that is out of use nothing is damaged.
        if !core.is_still(id, seq) || core.is_poisoned() {
            return;
        }
        core.counters.scrubbed_segments += 1;
        // Stand-ins for lost blocks can be moved, but do not get better by that.
        let is_rotten = checked.damage.iter().any(|d| d.kind != DamageKind::Lost);
        let is_new = is_rotten && core.rot.is_news(id, seq);
        let mut step = found.borrow_mut();
        let live: Vec<Piece> = pieces.iter().flat_map(|p| p.runs_of(|at| checked.bad.contains_key(&at))).collect();
        let places = live.iter().flat_map(|p| (p.at()..).step_by(BLOCK).take(p.range().len as usize));
        let of_live: BTreeSet<usize> = places.filter_map(|at| checked.bad.get(&at).copied()).collect();
        // Where a lost block is dead, or mended, nothing is wrong with what stood in for it.
        let counts = |(i, d): &(usize, Damage)| d.kind != DamageKind::Lost || of_live.contains(i);
        let findings = checked.damage.into_iter().enumerate().filter(counts);
        let findings = findings.map(|(_, d)| Finding { segment: d.segment, offset: d.offset, what: d.what });
        core.scrub_found(Place::Segment(id, seq), findings.collect(), &mut step);
        let before = step.damaged_blocks;
        for part in live {
            step.damaged_blocks += u64::from(part.range().len);
            core.rot.want(part);
        }
        // A block that could not be moved may have died since. Under suspicion alone, cleaning and the scrub could call each
        // other again and again.
        let none = in_turn && step.damaged_blocks == before;
        let was_kept = none && core.segs.get_mut(id).damaged.take().is_some();
        if is_new || was_kept {
            core.look_at_rotten();
        }
    }

    /// Pages of the map that lookups may ask for, as long as they are those of a level: a run that was merged gives its
    /// pages up.
    async fn scrub_runs(&self, gate: &Gate, found: &RefCell<ScrubStep>) {
        let runs = self.inner.core.borrow().maps.asked();
        for run in runs {
            let is_level = |core: &Core| core.maps.asked().iter().any(|r| r.number == run.number);
            for page in 0..run.places.pages {
                gate.pass(PAGE_BYTES).await;
                let at = run.places.find(page, 1);
                let _guard = {
                    let core = self.inner.core.borrow();
                    if !is_level(&core) {
                        break;
                    }
                    core.segs.guard(at.segment)
                };
                let checked = self.io().audit_page(&run, page, run.fences.len() as u32).await;
                let Err(e) = checked else { continue };
                let mut core = self.inner.core.borrow_mut();
                if !is_level(&core) {
                    break;
                }
                if core.is_poisoned() || e.kind == ErrorKind::DeviceFailed {
                    return;
                }
                core.maps.damaged = true;
                let what = format!("page {page} of run {} of the map: {}", run.number, e.text);
                let offset = u64::from(at.page) * PAGE_BYTES as u64;
                let finding = Finding { segment: Some(at.segment), offset, what };
                core.scrub_found(Place::Run(run.number), vec![finding], &mut found.borrow_mut());
                drop(core);
                self.inner.map_wake.notify_one();
            }
        }
    }

    /// The copies of the superblock come last.
    async fn scrub_superblock(&self, gate: &Gate, found: &RefCell<ScrubStep>) {
        let revision = self.superblock().revision.get();
        let mut bad = Vec::new();
        for at in SUPERBLOCK_AT {
            gate.pass(SUPERBLOCK_BYTES).await;
            let read = self.inner.device.read(at, SUPERBLOCK_BYTES).await;
            let good = read.is_ok_and(|b| Superblock::decode(&b).is_ok_and(|sb| sb.revision.get() == revision));
            if !good {
                let what = "a copy of the superblock is damaged, or an old one".into();
                bad.push(Finding { segment: None, offset: at, what });
            }
        }
        let mut core = self.inner.core.borrow_mut();
        if !core.is_poisoned() {
            core.scrub_found(Place::Superblock, bad, &mut found.borrow_mut());
        }
    }

    /// Whether somebody met damage in a segment that the scrub has not looked at since.
    pub fn has_suspects(&self) -> bool {
        self.inner.core.borrow().rot.has_suspects()
    }

    /// Damaged live blocks that were found since the last call, each to be asked for elsewhere and to be given to
    /// `mend` or `unmended`. At most `max` of them.
    pub fn take_damaged(&self, max: usize) -> Vec<DamagedBlocks> {
        let mut core = self.inner.core.borrow_mut();
        let mut out = Vec::new();
        for id in core.rot.take_fresh(max) {
            let lives = core.still_wants(id);
            if let Some(p) = core.rot.wanted(id).filter(|_| lives) {
                let (shard, range, version) = (p.shard(), p.range(), p.entry.version);
                let seen_at = core.shard(shard).ok().and_then(|s| s.first_seen(version)).unwrap_or_default();
                out.push(DamagedBlocks { id, shard, range, seen_at, forks: core.readers_of(shard, version) });
            }
        }
        out
    }

    /// Gives damaged blocks a new place with these bytes, whole blocks for the range that was asked for. Blocks that
    /// are not what was written here (they may have been overwritten since) are left alone. Gives the number of
    /// blocks that are on their way to the log; 0 if none is needed any more. `Retry` if others are on their way and
    /// `NoSpace` if there is no room: not now. `Corrupt` if not one block fits.
    pub fn mend(&self, id: u64, data: &Bytes) -> Result<u32> {
        let mut core = self.inner.core.borrow_mut();
        if let Some(e) = &core.failed {
            return Err(e.clone());
        }
        let lives = core.still_wants(id);
        let Some(piece) = core.rot.wanted(id).filter(|_| lives) else { return Ok(0) };
        if data.len() != piece.range().len as usize * BLOCK {
            return Err(Error::invalid("another number of blocks than was asked for"));
        }
        let right: Vec<bool> =
            data.chunks_exact(BLOCK).zip(piece.crcs()).map(|(b, crc)| block_crc(b) == *crc).collect();
        let start = piece.at();
        let fits = |at: u32| right[(at - start) as usize / BLOCK];
        let pieces: Vec<Piece> = piece.with_data(data).runs_of(fits);
        if pieces.is_empty() {
            return Err(Error::corrupt("none of the blocks is what was written here"));
        }
        if core.rot.mending() >= MENDING_MAX {
            return Err(Error::retry("other blocks are being mended"));
        }
        // Mending must leave cleaning the segments that it needs. On a full device, where heads refuse, that is there still, and other
        // copies may be gone before there is room again.
        let bytes = 2 * data.len() as u64;
        if core.free_segments() <= core.last_segments() + 1 || core.room() <= core.geometry.segment_bytes + bytes {
            return Err(Error::no_space("no room to mend blocks"));
        }
        let blocks = pieces.iter().map(|p| p.range().len).sum();
        core.rot.mends(id);
        core.counters.mended_blocks += u64::from(blocks);
        // In front, as all moves: what is live is looked up when everything that was appended before has acted.
        core.queue.push_front(Queued::Job(Job::Move(Move::mending(pieces))));
        drop(core);
        self.inner.ring();
        Ok(blocks)
    }

    /// Nobody has these blocks: they are asked for again when the scrub finds them again. Until then who makes a copy is
    /// told that they are lost.
    pub fn unmended(&self, id: u64) {
        let mut core = self.inner.core.borrow_mut();
        core.give_up_blocks(id);
        core.stops_waiting(id);
    }
}
