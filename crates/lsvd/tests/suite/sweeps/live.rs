//! An engine under a generated workload, with the stories of its shards; and the comparison of the two.
//!
//! Whatever is wrong comes back as a text, so that mutants can be counted; nothing here panics on a wrong engine but
//! the engine's own check of its counts.

use super::story::{BLOCKS, Cell, Kind, Pins, Story};
use crate::common::{Engine, Op, Rng, expect, open_log_without, pin};
use freebs_format::ExtentKind;
use freebs_io::Device;
use freebs_lsvd::{CleanOptions, Durable, Listener, MarkChange, OpenReport, Options, ReadOut, Record, RuleMutant};
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Lba, Result, Sequence, ShardId, Version, ViewNumber};
use std::cell::{Cell as Slot, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use tokio::task::JoinHandle;

pub type Verdict<T = ()> = std::result::Result<T, String>;

/// The stories of a device, and what its log has said.
#[derive(Default)]
pub struct Book {
    pub stories: RefCell<Vec<Story>>,
    pub failed: RefCell<Option<Error>>,
    wrong: RefCell<Option<String>>,
    pub answers: Slot<u64>,
    /// The maps have hardly any memory.
    pub tiny: Slot<bool>,
}

/// Tables of a few dozen entries, a cache of one page.
const TINY: Options = Options { map_bytes: 8 << 10, checkpoint_bytes: 1 << 20 };

thread_local! {
    /// The rule that engines of this test do without.
    pub static LEFT_OUT: Slot<Option<RuleMutant>> = const { Slot::new(None) };
}

impl Book {
    pub fn new(shards: u64) -> Rc<Self> {
        Self::with((1..=shards).map(|i| Story::new(ShardId::new(i, 0))).collect())
    }

    pub fn with(stories: Vec<Story>) -> Rc<Self> {
        Rc::new(Self { stories: RefCell::new(stories), ..Self::default() })
    }

    fn hear(&self, d: &Durable) -> Verdict {
        let shard = match d {
            Durable::Frame { shard, .. }
            | Durable::Repair { shard, .. }
            | Durable::Mark { shard, .. }
            | Durable::Carry { shard, .. }
            | Durable::NoRoom { shard, .. }
            | Durable::Unrepaired { shard, .. }
            | Durable::Unlearned { shard, .. }
            | Durable::Refused { shard, .. }
            | Durable::Cut { shard, .. }
            | Durable::Forget { shard } => *shard,
        };
        if self.failed.borrow().is_some() {
            return Err(format!("{d:?} was answered after the log had failed"));
        }
        self.answers.set(self.answers.get() + 1);
        let mut stories = self.stories.borrow_mut();
        stories.iter_mut().find(|s| s.shard == shard).ok_or("an unknown shard")?.hear(d)
    }
}

impl Listener for Book {
    fn durable(&self, done: &mut Vec<Durable>) {
        for d in done.drain(..) {
            if let Err(e) = self.hear(&d) {
                self.wrong.borrow_mut().get_or_insert(e);
            }
        }
    }
    fn failed(&self, error: &Error) {
        if self.failed.replace(Some(error.clone())).is_some() {
            self.wrong.borrow_mut().get_or_insert("a failure was told twice".into());
        }
    }
}

pub struct Live {
    pub engine: Engine,
    pub report: OpenReport,
    pub book: Rc<Book>,
    task: Option<JoinHandle<Result<()>>>,
}

impl Live {
    /// Opens a log, without its writer.
    pub async fn open(device: impl Device, book: Rc<Book>) -> Result<Self> {
        let options = if book.tiny.get() { TINY } else { Options::of_workers(1) };
        let (engine, report) = open_log_without(LEFT_OUT.get(), device, &expect(), options).await?;
        *book.failed.borrow_mut() = None;
        engine.set_listener(book.clone());
        // Small logs must be cleaned often.
        engine.set_cleaning(CleanOptions { share_percent: 300, target_percent: 100, ..CleanOptions::default() });
        Ok(Self { engine, report, book, task: None })
    }

    pub fn start(&mut self) {
        let writer = self.engine.clone();
        self.task = Some(tokio::task::spawn_local(async move { writer.run().await }));
    }

    /// Closes and compares: nothing that was answered is open, and the log ended well.
    pub async fn close(mut self) -> Verdict {
        let closed = self.engine.close().await;
        let ended = match self.task.take() {
            Some(task) => task.await.map_err(|e| format!("the writer panicked: {e}"))?,
            None => Ok(()),
        };
        match (closed, ended) {
            (Ok(()), Ok(())) => self.wrong(),
            (Err(e), _) | (_, Err(e)) => Err(format!("close: {e}")),
        }
    }

    /// Stops in the middle of whatever is going on.
    pub async fn kill(mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }

    pub fn wrong(&self) -> Verdict {
        self.book.wrong.borrow().clone().map_or(Ok(()), Err)
    }

    /// Blocks that cleaning has moved since the start.
    pub fn moved(&self) -> u64 {
        self.engine.counters().cleaned_bytes / BLOCK as u64
    }

    pub fn has_failed(&self) -> bool {
        self.book.failed.borrow().is_some()
    }

    /// Waits until all is answered or the log has failed.
    pub async fn settle(&self) -> Verdict {
        for _ in 0..200_000 {
            self.wrong()?;
            if self.has_failed() || self.book.stories.borrow().iter().all(Story::is_settled) {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
        Err("records wait for ever".into())
    }

    /// After an undamaged recovery: each shard is as a step left it that may be. The stories go on from there.
    /// A read that failed once, with an excuse, is made again.
    pub async fn take_stock(&self, excused: impl Fn() -> bool) -> Verdict {
        if !self.report.damage.is_empty() {
            return Err(format!("damage: {:?}", &self.report.damage[..self.report.damage.len().min(3)]));
        }
        self.nothing_lost(excused).await
    }

    /// As `take_stock`, whatever recovery has reported: it lost nothing by it.
    pub async fn nothing_lost(&self, excused: impl Fn() -> bool) -> Verdict {
        let known: Vec<ShardId> = self.book.stories.borrow().iter().map(|s| s.shard).collect();
        if let Some(foreign) = self.engine.shards().iter().find(|s| !known.contains(s)) {
            return Err(format!("shard {foreign} was never there"));
        }
        for (i, shard) in known.into_iter().enumerate() {
            let st = self.engine.state(shard);
            let n = {
                let story = &self.book.stories.borrow()[i];
                if let Some(st) = st.as_ref().filter(|s| !s.holes.is_empty() || s.suspect_tail) {
                    return Err(format!("shard {shard}: holes {:?}, suspect {}", st.holes, st.suspect_tail));
                }
                story.find(st.as_ref(), false)?
            };
            let committed = st.as_ref().map_or(0, |s| s.committed.0);
            self.book.stories.borrow_mut()[i].back_to(n, committed);
            if st.is_some() {
                let mut read = self.compare(i, 0, BLOCKS).await?;
                if read.is_err() && excused() {
                    read = self.compare(i, 0, BLOCKS).await?;
                }
                read.map_err(|e| format!("shard {shard} can't be read: {e}"))?;
                let pins = self.book.stories.borrow()[i].now().pins.clone();
                self.same_pins(shard, &pins, &excused).await?;
            }
        }
        self.sound()
    }

    /// The snapshots are those of a step, and show what they must.
    async fn same_pins(&self, shard: ShardId, pins: &Pins, excused: &impl Fn() -> bool) -> Verdict {
        let known = self.engine.history(shard).map_err(|e| e.to_string())?;
        if !known.pins.iter().copied().eq(pins.keys().map(|v| pin(*v))) {
            return Err(format!("shard {shard}: snapshots {:?}, not {:?}", known.pins, pins.keys()));
        }
        for (v, cells) in pins {
            let whole = BlockRange { start: Lba(0), len: BLOCKS };
            let mut out = self.engine.read_at(shard, Version(*v), whole).await;
            if out.is_err() && excused() {
                out = self.engine.read_at(shard, Version(*v), whole).await;
            }
            let out = out.map_err(|e| format!("shard {shard}, version {v}, can't be read: {e}"))?;
            same(&out, cells).map_err(|b| format!("shard {shard}, version {v}, block {b}: wrong data"))?;
        }
        Ok(())
    }

    /// Old versions after damage: right, or said to be damaged, or not there at all.
    async fn right_or_refused(&self, shard: ShardId, pins: &Pins) -> Verdict<bool> {
        let mut refused = false;
        for (v, cells) in pins {
            for b in 0..BLOCKS {
                match self.engine.read_at(shard, Version(*v), BlockRange { start: Lba(b), len: 1 }).await {
                    Ok(out) => same(&out, &cells[b as usize..=b as usize])
                        .map_err(|_| format!("shard {shard}, version {v}, block {b}: wrong data"))?,
                    Err(e) if matches!(e.kind, ErrorKind::Corrupt | ErrorKind::NotFound) => refused = true,
                    Err(e) => return Err(format!("shard {shard}: {e}")),
                }
            }
        }
        Ok(refused)
    }

    /// After a recovery that may have lost something: whatever is given out is right for a state that once was; and a
    /// state older than promised is said to be one. Tells whether anything was noticed at all.
    pub async fn nothing_wrong(&self, rng: &mut Rng) -> Verdict<bool> {
        let mut noticed = !self.report.damage.is_empty();
        let count = self.book.stories.borrow().len();
        for i in 0..count {
            let (shard, cells) = {
                let story = &self.book.stories.borrow()[i];
                let st = self.engine.state(story.shard);
                let n = story.find(st.as_ref(), true)?;
                let said = st.as_ref().is_none_or(|s| s.suspect_tail || !s.holes.is_empty());
                if n < story.floor && story.find(st.as_ref(), false).is_err() && !(said && noticed) {
                    return Err(format!("shard {}: step {n} of {}, and nothing is said", story.shard, story.floor));
                }
                (story.shard, st.map(|_| (story.steps[n].cells.clone(), story.steps[n].pins.clone())))
            };
            let Some((cells, pins)) = cells else { continue };
            noticed |= self.right_or_refused(shard, &pins).await?;
            // Whole ranges first: block by block only where something is wrong.
            let mut ranges = vec![(0, BLOCKS)];
            while let Some((start, len)) = ranges.pop() {
                match self.engine.read(shard, BlockRange { start: Lba(start), len }).await {
                    Ok(out) => same(&out, &cells[start as usize..(start + len) as usize])
                        .map_err(|b| format!("shard {shard}, block {}: wrong data", start as usize + b))?,
                    Err(e) if e.kind != ErrorKind::Corrupt => return Err(format!("shard {shard}: {e}")),
                    Err(_) if len > 1 => {
                        noticed = true;
                        let cut = 1 + rng.below(u64::from(len) - 1) as u32;
                        ranges.extend([(start, cut), (start + cut, len - cut)]);
                    }
                    Err(_) => noticed = true,
                }
            }
        }
        Ok(noticed)
    }

    /// The engine's counts of what is live are right.
    pub fn sound(&self) -> Verdict {
        let checked = catch_unwind(AssertUnwindSafe(|| self.engine.check()));
        checked.map_err(|e| {
            let text = e.downcast_ref::<String>().cloned();
            format!("the engine's counts are wrong: {}", text.unwrap_or_default())
        })
    }

    /// Reads a range of a story's shard as it is now. An error of the engine is the inner one.
    pub async fn compare(&self, story: usize, start: u32, len: u32) -> Verdict<Result<()>> {
        let (shard, before, cells) = {
            let s = &self.book.stories.borrow()[story];
            (s.shard, s.heard, s.now().cells.clone())
        };
        let range = start as usize..(start + len) as usize;
        let out = self.engine.read(shard, BlockRange { start: Lba(start), len }).await;
        let s = &self.book.stories.borrow()[story];
        // Only where pages of the map must be read first, a read may see what was written after it had begun: all of
        // one step, whichever it is.
        let since = if self.book.tiny.get() { &s.steps[before + 1..=s.heard] } else { &[] };
        let out = match out {
            Ok(out) => out,
            Err(e) if e.kind == ErrorKind::NotFound && since.iter().any(|s| !s.present) => return Ok(Ok(())),
            Err(e) => return Ok(Err(e)),
        };
        match same(&out, &cells[range.clone()]) {
            Err(b) if since.iter().all(|s| same(&out, &s.cells[range.clone()]).is_err()) => {
                Err(format!("shard {shard}, block {}: wrong data", start as usize + b))
            }
            _ => Ok(Ok(())),
        }
    }

    /// Every shard by its digest, which reads all that is closed.
    pub async fn digests(&self) -> Result<()> {
        for shard in self.engine.shards() {
            self.engine.digest(shard).await?;
        }
        Ok(())
    }

    /// Does `steps` things to the shards. An engine's error on reading is a fault only if `excused` says no.
    pub async fn play(&self, rng: &mut Rng, steps: u64, excused: impl Fn() -> bool) -> Verdict {
        for _ in 0..steps {
            self.act(rng, &excused).await?;
            for _ in 0..rng.below(4) {
                tokio::task::yield_now().await;
            }
            self.wrong()?;
        }
        Ok(())
    }

    async fn act(&self, rng: &mut Rng, excused: &impl Fn() -> bool) -> Verdict {
        let i = {
            let n = self.book.stories.borrow().len() as u64;
            rng.below(n) as usize
        };
        if rng.chance(5) {
            self.engine.want_checkpoint();
        }
        let what = rng.below(100);
        match what {
            0..=6 => self.look(rng, i, excused).await?,
            7..=10 => {
                self.engine.flush_idle();
            }
            11..=14 => self.carry(rng, i, excused).await?,
            _ => {
                let mut stories = self.book.stories.borrow_mut();
                let story = &mut stories[i];
                self.commit(rng, story);
                for record in records(rng, story, what) {
                    self.engine.append(record);
                }
            }
        }
        Ok(())
    }

    /// Says that some of what is durable is committed, if nothing on its way cuts it.
    fn commit(&self, rng: &mut Rng, story: &mut Story) {
        if story.heard >= story.straight && story.now().present && rng.chance(70) {
            let to = story.now().chain.sequence.saturating_sub(rng.below(5));
            if to > story.committed {
                story.committed = to;
                self.engine.committed(story.shard, Sequence(to));
            }
        }
    }

    async fn look(&self, rng: &mut Rng, i: usize, excused: &impl Fn() -> bool) -> Verdict {
        if !self.book.stories.borrow()[i].now().present || self.has_failed() {
            return Ok(());
        }
        let start = rng.below(u64::from(BLOCKS)) as u32;
        let len = 1 + rng.below(u64::from(BLOCKS - start)) as u32;
        match self.compare(i, start, len).await? {
            Err(e) if !excused() => Err(format!("a read failed: {e}")),
            _ => Ok(()),
        }
    }

    /// Places some of the shard's entries anew, as repair does.
    async fn carry(&self, rng: &mut Rng, i: usize, excused: &impl Fn() -> bool) -> Verdict {
        let shard = {
            let stories = self.book.stories.borrow();
            let s = &stories[i];
            if !s.is_settled() || !s.now().present || s.last().kind == Kind::Cut || self.has_failed() {
                return Ok(());
            }
            s.shard
        };
        let from = Lba(rng.below(u64::from(BLOCKS)) as u32);
        match self.engine.entries(shard, from, Sequence(0), 64 << 10).await {
            Ok((body, data, _)) if !body.entries.is_empty() => {
                self.book.stories.borrow_mut()[i].carry();
                self.engine.append(Record::Carry { shard, body, data, ticket: 2 });
                Ok(())
            }
            Err(e) if !excused() => Err(format!("entries: {e}")),
            _ => Ok(()),
        }
    }
}

/// The next records of a shard.
fn records(rng: &mut Rng, story: &mut Story, what: u64) -> Vec<Record> {
    let shard = story.shard;
    if story.last().kind == Kind::Cut {
        return vec![Record::Frame(story.view())];
    }
    match what {
        15..=17 => vec![Record::Frame(story.view()), Record::Frame(story.attach())],
        18..=20 => {
            let targets = story.cut_targets();
            if targets.is_empty() {
                return Vec::new();
            }
            let to = story.cut(targets[rng.below(targets.len() as u64) as usize]);
            vec![Record::Cut { shard, to }]
        }
        21..=23 => {
            let promised = story.views + rng.below(3);
            story.mark(promised);
            let change = MarkChange { promised: Some(ViewNumber(promised)), ..MarkChange::default() };
            vec![Record::Mark { shard, change, ticket: 1 }]
        }
        25..=29 if story.last().present && freebs_testing::full() => vec![Record::Frame(story.pin(what > 27))],
        24 if story.last().present => {
            let promised = if story.lives.is_multiple_of(2) { story.views + 1 } else { 0 };
            story.forget(promised);
            vec![Record::Forget { shard, promised: ViewNumber(promised) }]
        }
        _ => {
            let ops: Vec<Op> = (0..[1, 1, 1, 2, 8][rng.below(5) as usize]).map(|_| Op::random(rng, BLOCKS)).collect();
            vec![Record::Frame(story.write(&ops))]
        }
    }
}

/// Whether what was read is what should be there; else the first block that is not.
pub fn same(out: &ReadOut, cells: &[Cell]) -> std::result::Result<(), usize> {
    let mut data = out.data.iter().flat_map(|d| d.chunks_exact(BLOCK));
    let kinds = out.pieces.iter().flat_map(|p| (0..p.blocks).map(|_| p.kind));
    let mut n = 0;
    for (kind, cell) in kinds.zip(cells) {
        let right = match (kind, cell) {
            (ExtentKind::Trim, Cell::Trim) | (ExtentKind::Zero, Cell::Zero) => true,
            (ExtentKind::Data, Cell::Data(bytes)) => data.next() == Some(&bytes[..]),
            _ => false,
        };
        if !right {
            return Err(n);
        }
        n += 1;
    }
    if n == cells.len() { Ok(()) } else { Err(n) }
}
