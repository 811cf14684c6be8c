//! The inside of a disk: engine, head and unfinished tasks, moved on by whoever holds the lock.
//!
//! Invariants: nothing here blocks or makes a system call; what the medium has to do is taken out as `Work` and
//! performed without the lock. What is settled is durable.

use crate::ahead::Ahead;
use crate::confined::{Confined, Task};
use crate::description::Description;
use crate::head::Head;
use crate::timing;
use freebs_format::{PinUpdate, UpdateDraft};
use freebs_io::linux::{LentDevice, Which};
use freebs_lsvd::{Durable, Engine, Listener, Record};
use freebs_types::{Error, Result, Sequence, ShardId, limits};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Polls of the engine's writer in one turn, so that a turn ends although work goes on.
const POLLS_MAX: u32 = 64;

/// What the engine's writer has told since the last turn.
#[derive(Default)]
struct Heard {
    done: RefCell<Vec<Durable>>,
    failed: RefCell<Option<Error>>,
}

impl Listener for Heard {
    fn durable(&self, done: &mut Vec<Durable>) {
        self.done.borrow_mut().append(done);
    }
    fn failed(&self, error: &Error) {
        *self.failed.borrow_mut() = Some(error.clone());
    }
}

/// Segments that the record of a trim leaves for the log's own records.
const RESERVE_FOR_TRIMS: u32 = 3;
/// Segments for which the file system has room set aside: what trims leave alone, and what is ordered when it gets
/// full, which may end two segments, with what cleaning moves meanwhile.
const HEADROOM_SEGMENTS: u64 = RESERVE_FOR_TRIMS as u64 + 3;

pub(crate) struct Inside {
    pub device: LentDevice,
    pub engine: Engine<LentDevice>,
    writer: Task<Result<()>>,
    heard: Rc<Heard>,
    pub head: Head,
    pub ahead: Ahead,
    pub about: Head,
    pub description: Description,
    pub failed: Option<Error>,
    /// Somebody waits for this version to become durable.
    pub wanted: u64,
    /// Nothing is packed for now, so that more comes together.
    pub hold: bool,
    /// Tickets of records other than frames.
    tickets: u64,
    pub tickets_done: BTreeMap<u64, Result<()>>,
    next_task: u64,
    tasks: BTreeMap<u64, Box<dyn Any + Send>>,
    /// Something was ordered that nobody waits for, and the keeper does not know.
    pub unattended: bool,
    /// Blocks of which only a part is being written: nobody else writes them meanwhile.
    pub busy: BTreeSet<u32>,
    /// From where on frames are kept, by who reads them.
    keeps: BTreeMap<u64, Sequence>,
    /// Of which version's map the blocks up to where were put since the disk was opened.
    pub filled: Option<(u64, u32)>,
    window: usize,
    /// The file system is to be asked again for room.
    pub ask_room: bool,
    /// Free segments, and whether there may be more soon, when that was news last.
    room: (u32, bool),
    /// Time between checkpoints of the log, and when the last one was asked for.
    pub checkpoint_every: Duration,
    checkpoint: Option<Instant>,
}

impl Inside {
    pub fn new(
        device: LentDevice,
        engine: Engine<LentDevice>,
        head: Head,
        about: Head,
        description: Description,
    ) -> Self {
        let heard = Rc::new(Heard::default());
        engine.set_listener(heard.clone());
        let runner = engine.clone();
        device.set_headroom(HEADROOM_SEGMENTS * engine.space().segment_bytes);
        let window = (engine.space().segment_bytes as usize).min(limits::SHARD_WINDOW_BYTES);
        Self {
            device,
            engine,
            writer: Task::new(async move { runner.run().await }),
            heard,
            head,
            ahead: Ahead::default(),
            about,
            description,
            failed: None,
            wanted: 0,
            hold: false,
            tickets: 0,
            tickets_done: BTreeMap::new(),
            next_task: 1,
            tasks: BTreeMap::new(),
            unattended: false,
            busy: BTreeSet::new(),
            keeps: BTreeMap::new(),
            filled: None,
            window,
            ask_room: true,
            room: (0, false),
            checkpoint_every: timing::CHECKPOINT_EVERY,
            checkpoint: None,
        }
    }

    /// Asks for a checkpoint when it is time. To be called when something was written.
    pub fn see_to_checkpoints(&mut self, now: Instant) {
        if now.duration_since(*self.checkpoint.get_or_insert(now)) >= self.checkpoint_every {
            self.checkpoint = Some(now);
            self.engine.want_checkpoint();
        }
    }

    /// Moves everything on as far as it goes without the medium. True if something became durable, has failed, or there
    /// is another amount of room.
    pub fn turn(&mut self) -> bool {
        let mut news = false;
        for _ in 0..POLLS_MAX {
            let idle = !self.device.is_writing();
            if idle && !self.hold && self.head.has_unpacked() && self.wanted > self.head.packed() {
                self.pack();
            }
            if !self.writer.is_woken() {
                break;
            }
            if let Some(end) = self.writer.step() {
                if let Err(e) = end {
                    self.failed.get_or_insert(e);
                }
                news = true;
            }
            news |= self.hear();
        }
        let s = self.engine.space();
        let room = (s.free_segments, s.more_soon);
        news | (std::mem::replace(&mut self.room, room) != room)
    }

    fn hear(&mut self) -> bool {
        if let Some(e) = self.heard.failed.borrow_mut().take() {
            self.failed.get_or_insert(e);
        }
        let done = std::mem::take(&mut *self.heard.done.borrow_mut());
        let mut news = self.failed.is_some();
        let mut reached: [Option<Sequence>; 2] = [None; 2];
        for d in done {
            news = true;
            match d {
                Durable::Frame { shard, sequence, .. } => {
                    reached[usize::from(shard != self.head.shard)] = Some(sequence);
                }
                Durable::Mark { ticket, .. } | Durable::Carry { ticket, .. } => {
                    self.tickets_done.insert(ticket, Ok(()));
                }
                Durable::NoRoom { ticket, .. } => {
                    let e = Error::no_space("the disk's log has no room for what it is given");
                    self.tickets_done.insert(ticket, Err(e));
                }
                Durable::Unlearned { ticket, why, .. } => {
                    let e = Error::corrupt(format!("the disk's log does not take what it is given: {why}"));
                    self.tickets_done.insert(ticket, Err(e));
                }
                Durable::Refused { sequence, why, .. } => {
                    let why = format!("the disk's log does not take frame {sequence} ({why}); open the disk again");
                    self.failed.get_or_insert(Error::bug(why));
                    return true;
                }
                _ => {}
            }
        }
        for (sequence, head) in reached.into_iter().zip([&mut self.head, &mut self.about]) {
            if let Some(s) = sequence {
                // One copy is the quorum: what is durable here is committed.
                self.engine.committed(head.shard, s);
                head.settle(s);
            }
        }
        news
    }

    pub fn pack(&mut self) {
        if let Some(frame) = self.head.pack() {
            self.engine.append(Record::Frame(frame));
        }
    }

    /// Whether the engine has something to do that needs no medium.
    pub fn is_woken(&self) -> bool {
        self.writer.is_woken()
    }

    /// The error that ended the disk, if one has.
    pub fn alive(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(e) => Err(e.clone()),
        }
    }

    /// Whether what is not durable yet leaves room for more.
    pub fn has_room(&self) -> bool {
        self.head.cost() < self.window
    }
    /// `NoSpace` if nothing may be ordered that takes space (rule W7), for so many bytes of data or, nearer to the end, for
    /// the record of a trim (none); false while cleaning, or what is on its way to the medium, may make room soon. It
    /// heals: whoever is refused for want of room on the file system has it asked again.
    pub fn check_space(&mut self, bytes: usize) -> Result<bool> {
        let s = self.engine.space();
        let least = if bytes > 0 { s.reserve_segments } else { RESERVE_FOR_TRIMS };
        let short = self.device.is_short();
        if s.free_segments > least && !(bytes > 0 && short) {
            // Data on their way to the last segment may fill it: what is left to trims must not be begun.
            let ahead = self.head.cost();
            let fills = bytes > 0 && ahead > 0 && (ahead + bytes) as u64 > s.segment_bytes / 4 * 3;
            if !fills || s.free_segments > least + 1 {
                return Ok(true);
            }
            self.wanted = self.head.version();
            return Ok(false);
        }
        if s.more_soon && !short {
            self.engine.look_for_room();
            return Ok(false);
        }
        if self.head.durable() < self.head.version() && !short {
            // A write on its way may replace something, and is committed as soon as it is durable.
            self.wanted = self.head.version();
            return Ok(false);
        }
        self.ask_room |= short;
        Err(Error::no_space(format!(
            "the log may not grow: {} of {} segments are in use{}; trim, clean up, free some space on the file system, \
             or make the disk with a larger log",
            s.used_segments,
            s.limit_segments,
            if short { ", and the file system is full" } else { "" }
        )))
    }

    /// Orders an update. Gives its version.
    pub fn order(&mut self, draft: UpdateDraft, awaited: bool) -> u64 {
        draft.extents.iter().for_each(|e| self.ahead.written(e.range));
        self.unattended |= !awaited && !self.head.has_unpacked();
        if let Some(full) = self.head.push(draft) {
            self.engine.append(Record::Frame(full));
        }
        if awaited {
            self.wanted = self.head.version();
        }
        self.head.version()
    }

    /// Orders an update about versions. Gives its version.
    pub fn order_pin(&mut self, pin: PinUpdate, awaited: bool) -> u64 {
        self.unattended |= !awaited && !self.head.has_unpacked();
        if let Some(full) = self.head.push_pin(pin) {
            self.engine.append(Record::Frame(full));
        }
        if awaited {
            self.wanted = self.head.version();
        }
        self.head.version()
    }

    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// A task of its own: what it asks of the device is found under this number.
    pub fn spawn<T: Send + 'static, F: Future<Output = T> + 'static>(
        &mut self,
        make: impl FnOnce(Engine<LentDevice>) -> F + Send,
    ) -> u64 {
        let id = self.next_task;
        self.next_task += 1;
        self.tasks.insert(id, Box::new(Confined(Task::new(make(self.engine.clone())))));
        id
    }

    /// Moves a task on; its outcome comes once. What it asks for meanwhile is its own.
    pub fn step<T: Send + 'static>(&mut self, id: u64) -> Option<T> {
        let task = self.tasks.get_mut(&id)?.downcast_mut::<Confined<Task<T>>>().expect("asked for as it was made");
        self.device.set_owner(id);
        let out = task.0.step();
        self.device.set_owner(0);
        if out.is_some() {
            self.tasks.remove(&id);
        }
        out
    }

    pub fn has_writes(&self) -> bool {
        self.device.has(Which::Writes)
    }

    /// Frames from here on stay in the log while somebody reads them.
    pub fn keep(&mut self, who: u64, from: Option<Sequence>) {
        match from {
            Some(s) => self.keeps.insert(who, s),
            None => self.keeps.remove(&who),
        };
        let from = self.keeps.values().min().copied().unwrap_or(Sequence(u64::MAX));
        self.engine.keep(self.head.shard, from);
    }

    pub fn shard(&self) -> ShardId {
        self.head.shard
    }
}
