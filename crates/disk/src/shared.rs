//! The lock, and who moves the disk on: the caller that waits, or the keeper when several wait.
//!
//! A durable write at depth one is performed by its own caller, from the copy to the answer: no other thread is
//! woken. When writes come from many threads, the keeper (a thread of the disk) takes charge: it performs one append
//! while the next one gathers. A second thread, the grower, prepares segments, which takes long.
//!
//! Invariants: at most one append is under way. A panic under the lock ends the disk. Whoever leaves the lock with work undone that is not its own has
//! woken somebody for it. No thread is woken with the lock held.

use crate::confined::Confined;
use crate::inside::Inside;
use crate::timing;
use freebs_io::linux::{LentDevice, Which, Work};
use freebs_lsvd::Engine;
use freebs_types::{Error, Result};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LockResult, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Since when nothing was appended, and whether the engine was told.
struct Quiet {
    appends: u64,
    since: Instant,
    told: bool,
}

/// A thread that waits for something.
pub(crate) struct Waiter {
    thread: Thread,
    rung: AtomicU8,
}

const QUIET: u8 = 0;
/// What it waits for may be there.
const LOOK: u8 = 1;
/// Its version is durable: there is nothing to look for.
const DURABLE: u8 = 2;

thread_local! {
    static MINE: Arc<Waiter> = Arc::new(Waiter::new());
}

/// The calling thread's; a fresh one at the end of a thread, when its own is gone.
fn mine() -> Arc<Waiter> {
    MINE.try_with(Arc::clone).unwrap_or_else(|_| Arc::new(Waiter::new()))
}

impl Waiter {
    fn new() -> Self {
        Self { thread: std::thread::current(), rung: AtomicU8::new(QUIET) }
    }
    fn ring(&self, with: u8) {
        self.rung.store(with, Ordering::Release);
        self.thread.unpark();
    }
    fn wait(&self) -> u8 {
        loop {
            match self.rung.swap(QUIET, Ordering::Acquire) {
                QUIET => std::thread::park(),
                with => return with,
            }
        }
    }
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// This version to be durable.
    Durable(u64),
    /// Anything to change: room, a block that is let go, a ticket.
    Change,
}

/// Whether a wait is over.
pub(crate) enum Step<T> {
    Done(Result<T>),
    /// Not before this version is durable; then it is over, with this.
    Durable(u64, T),
    /// Not before something changes.
    Change,
}

pub(crate) struct State {
    /// None once the disk is closed or broken.
    pub inside: Option<Confined<Inside>>,
    /// A thread panicked in the middle of a change: nothing of the inside was believed, and it was let go.
    broken: bool,
    waiters: Vec<(For, Arc<Waiter>)>,
    /// To be rung once the lock is left.
    rings: Vec<(u8, Arc<Waiter>)>,
    /// An append is being performed.
    leading: bool,
    /// The keeper performs appends.
    in_charge: bool,
    /// The keeper sleeps until it is called, and has to be when the log has grown.
    deep: bool,
    /// It is to be called once the lock is left.
    call_keeper: bool,
    stop: bool,
    /// Waiters that the last append has answered.
    answered: usize,
    /// Those that wait for `Change` are to look again.
    pub changed: bool,
}

fn gone(broken: bool) -> Error {
    if broken {
        return Error::bug("a mistake in this library has ended the disk; open it again");
    }
    Error::invalid("the disk is closed")
}

pub(crate) struct Shared {
    state: Mutex<State>,
    keeper: Condvar,
    grower: Condvar,
    /// Updates ordered so far, to see from outside the lock whether more come.
    arrivals: AtomicU64,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) type Guard<'a> = MutexGuard<'a, State>;

fn ring(rings: &[(u8, Arc<Waiter>)]) {
    rings.iter().for_each(|(with, w)| w.ring(*with));
}

impl State {
    pub fn inside(&mut self) -> Result<&mut Inside> {
        let broken = self.broken;
        self.inside.as_mut().map(|c| &mut c.0).ok_or_else(|| gone(broken))
    }

    /// Nothing of the inside is believed any more.
    fn break_off(&mut self) {
        (self.broken, self.stop) = (true, true);
        self.ring_all();
        let inside = self.inside.take();
        // What is half changed may well panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(inside)));
    }

    /// Moves the disk on and notes who is to be woken for it. True if there is news.
    fn turn(&mut self) -> bool {
        let Some(inside) = self.inside.as_mut().map(|c| &mut c.0) else {
            self.ring_all();
            return true;
        };
        let news = inside.turn();
        if !news && !self.changed {
            return false;
        }
        self.changed = false;
        if inside.failed.is_some() {
            self.ring_all();
            return true;
        }
        let durable = inside.head.durable();
        let rings = &mut self.rings;
        let before = rings.len();
        self.waiters.retain(|(what, w)| {
            let with = match what {
                For::Durable(v) if *v > durable => return true,
                For::Durable(_) => DURABLE,
                For::Change => LOOK,
            };
            rings.push((with, w.clone()));
            false
        });
        self.answered += self.rings.len() - before;
        true
    }

    /// Whether the grower is needed.
    fn wants_space(&self) -> bool {
        self.inside.as_ref().is_some_and(|c| c.0.ask_room || c.0.device.has(Which::Space))
    }

    fn ring_all(&mut self) {
        self.rings.extend(self.waiters.drain(..).map(|(_, w)| (LOOK, w)));
    }
}

impl Shared {
    pub fn start(inside: Inside) -> Result<Arc<Self>> {
        let shared = Arc::new(Self {
            state: Mutex::new(State {
                inside: Some(Confined(inside)),
                broken: false,
                waiters: Vec::new(),
                rings: Vec::new(),
                leading: false,
                in_charge: false,
                deep: false,
                call_keeper: false,
                stop: false,
                answered: 0,
                changed: false,
            }),
            keeper: Condvar::new(),
            grower: Condvar::new(),
            arrivals: AtomicU64::new(0),
            threads: Mutex::default(),
        });
        for (name, run) in [("lsvd-keeper", Self::keep as fn(&Self)), ("lsvd-grower", Self::grow as fn(&Self))] {
            let me = shared.clone();
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&me));
            match thread {
                Ok(t) => shared.threads.lock().unwrap_or_else(PoisonError::into_inner).push(t),
                Err(e) => {
                    shared.stop();
                    return Err(Error::os(format!("no thread for the disk: {e}")));
                }
            }
        }
        Ok(shared)
    }

    pub fn lock(&self) -> Guard<'_> {
        self.mend(self.state.lock())
    }

    /// A thread that panics under the lock may leave anything behind, so it ends the disk for all.
    fn mend<'a>(&self, locked: LockResult<Guard<'a>>) -> Guard<'a> {
        locked.unwrap_or_else(|poisoned| {
            let mut g = poisoned.into_inner();
            self.state.clear_poison();
            self.break_off(&mut g);
            g
        })
    }

    fn break_off(&self, g: &mut State) {
        g.break_off();
        self.keeper.notify_all();
        self.grower.notify_all();
    }

    /// An update was ordered.
    pub fn arrived(&self) {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves the lock: hands on what has to be done, and wakes those whose wait is over.
    pub fn leave(&self, mut g: Guard<'_>) {
        g.turn();
        let mut keeper = std::mem::take(&mut g.call_keeper);
        let (in_charge, leading, grower) = (g.in_charge, g.leading, g.wants_space());
        if let Some(Confined(inside)) = &mut g.inside {
            // Reads that a task asked for are performed by whoever runs it; others are the engine's own.
            let work = inside.has_writes() || inside.device.has(Which::ReadsOf(0)) || inside.is_woken();
            // Whoever performs an append comes back to the lock and sees to what is there.
            keeper |= !in_charge && !leading && (work || inside.unattended);
            inside.unattended &= !keeper && !in_charge;
        }
        let rings = std::mem::take(&mut g.rings);
        drop(g);
        if keeper {
            self.keeper.notify_one();
        }
        if grower {
            self.grower.notify_one();
        }
        ring(&rings);
    }

    /// Performs work without the lock.
    fn perform<'a>(&'a self, mut g: Guard<'a>, work: Work) -> Guard<'a> {
        let rings = std::mem::take(&mut g.rings);
        let grower = g.wants_space();
        drop(g);
        if grower {
            self.grower.notify_one();
        }
        ring(&rings);
        let done = catch_unwind(AssertUnwindSafe(|| work.perform()));
        let mut g = self.lock();
        let done = match done {
            Ok(done) => done,
            Err(panic) => {
                // Nobody would ever hear of the end of this work.
                self.break_off(&mut g);
                self.leave(g);
                resume_unwind(panic)
            }
        };
        if let Some(Confined(inside)) = &mut g.inside {
            inside.device.complete(done);
            inside.see_to_checkpoints(Instant::now());
        }
        g
    }

    /// Waits until `ready` is done, and moves the disk on meanwhile.
    pub fn drive<'a, T>(&'a self, mut g: Guard<'a>, mut ready: impl FnMut(&mut Inside) -> Step<T>) -> Result<T> {
        loop {
            g.turn();
            let broken = g.broken;
            let Some(Confined(inside)) = &mut g.inside else {
                self.leave(g);
                return Err(gone(broken));
            };
            let (what, end) = match ready(inside) {
                Step::Done(end) => (For::Change, Some(end)),
                Step::Durable(v, end) if inside.head.durable() >= v => (For::Change, Some(Ok(end))),
                Step::Durable(v, end) => (For::Durable(v), Some(Ok(end))),
                Step::Change => (For::Change, None),
            };
            let end = match (what, end) {
                (For::Change, Some(end)) => {
                    self.end_wait(g);
                    return end;
                }
                (_, end) => end,
            };
            if let Err(e) = inside.alive() {
                self.leave(g);
                return Err(e);
            }
            // What `ready` has ordered may need a turn before there is work for it. News of that turn may be what it
            // waits for, and is not told to who is not among the waiters yet.
            if g.turn() {
                continue;
            }
            let (leading, in_charge) = (g.leading, g.in_charge);
            let Some(Confined(inside)) = &mut g.inside else { continue };
            if !leading
                && !in_charge
                && let Some(work) = inside.device.take(Which::Writes)
            {
                (g.leading, g.answered) = (true, 0);
                g = self.perform(g, work);
                (g.leading, g.answered) = (false, 1);
                continue;
            }
            let me = mine();
            g.waiters.push((what, me.clone()));
            self.leave(g);
            if me.wait() == DURABLE
                && let Some(end) = end
            {
                return end;
            }
            g = self.lock();
        }
    }

    fn end_wait(&self, mut g: Guard<'_>) {
        // Several waited for the append that ended this wait: from here on the keeper performs them.
        if g.answered > 1 && !g.in_charge {
            (g.in_charge, g.answered, g.call_keeper) = (true, 0, true);
        }
        if std::mem::take(&mut g.deep) {
            g.call_keeper = true;
        }
        self.leave(g);
    }

    /// Waits until those who were answered have come again, or for a moment.
    fn gather(&self, wanted: usize) {
        let (before, begun) = (self.arrivals.load(Ordering::Relaxed), Instant::now());
        while begun.elapsed() < timing::GATHER_MAX {
            std::thread::yield_now();
            if self.arrivals.load(Ordering::Relaxed) - before >= wanted as u64 {
                return;
            }
        }
    }

    /// The keeper's life.
    fn keep(&self) {
        let mut g = self.lock();
        let mut quiet = Quiet { appends: 0, since: Instant::now(), told: false };
        loop {
            g.turn();
            if g.stop {
                g.in_charge = false;
                self.leave(g);
                return;
            }
            let leading = g.leading;
            let Some(Confined(inside)) = &mut g.inside else {
                g = self.mend(self.keeper.wait(g));
                continue;
            };
            let work = if leading { None } else { inside.device.take(Which::Writes) };
            if let Some(work) = work {
                (g.leading, g.in_charge, g.answered) = (true, true, 0);
                g = self.perform(g, work);
                g.leading = false;
                g = self.after_append(g);
                continue;
            }
            if let Some(work) = inside.device.take(Which::ReadsOf(0)) {
                g = self.perform(g, work);
                continue;
            }
            g.in_charge = false;
            g = self.sleep(g, &mut quiet);
        }
    }

    /// Lets those whom an append has answered come again before the next one is laid out.
    fn after_append<'a>(&'a self, mut g: Guard<'a>) -> Guard<'a> {
        if let Some(Confined(inside)) = &mut g.inside {
            inside.hold = true;
        }
        g.turn();
        let answered = std::mem::take(&mut g.answered);
        if answered > 1 {
            let rings = std::mem::take(&mut g.rings);
            drop(g);
            ring(&rings);
            self.gather(answered);
            g = self.lock();
        }
        if let Some(Confined(inside)) = &mut g.inside {
            inside.hold = false;
        }
        g
    }

    /// Waits to be called, or until a time has passed: true then.
    fn doze<'a>(&self, g: Guard<'a>, time: Duration) -> (Guard<'a>, bool) {
        match self.keeper.wait_timeout(g, time) {
            Ok((g, end)) => (g, end.timed_out()),
            Err(poisoned) => (self.mend(Err(PoisonError::new(poisoned.into_inner().0))), false),
        }
    }

    /// The keeper has nothing to perform: it sleeps until it is called, or until something is due.
    fn sleep<'a>(&'a self, mut g: Guard<'a>, quiet: &mut Quiet) -> Guard<'a> {
        let rings = std::mem::take(&mut g.rings);
        if !rings.is_empty() {
            drop(g);
            ring(&rings);
            return self.lock();
        }
        if g.wants_space() {
            // It does not take the lock before we sleep.
            self.grower.notify_one();
        }
        let leading = g.leading;
        let Some(Confined(inside)) = &mut g.inside else { return g };
        if inside.is_woken() || (inside.has_writes() && !leading) {
            return g;
        }
        if inside.head.has_unpacked() && inside.failed.is_none() {
            let version = inside.head.version();
            let (mut g, timed_out) = self.doze(g, timing::WRITE_BEHIND);
            if timed_out && let Some(Confined(inside)) = &mut g.inside {
                inside.wanted = inside.wanted.max(version);
            }
            return g;
        }
        let appends = inside.engine.counters().appends;
        if quiet.appends != appends {
            *quiet = Quiet { appends, since: Instant::now(), told: false };
        }
        let waited = quiet.since.elapsed();
        if waited < timing::MARK_AFTER_IDLE {
            return self.doze(g, timing::MARK_AFTER_IDLE - waited).0;
        }
        if !std::mem::replace(&mut quiet.told, true) {
            // The engine is woken by it every time, so it is told once.
            inside.engine.flush_idle();
            return g;
        }
        g.deep = true;
        self.mend(self.keeper.wait(g))
    }

    /// The grower's life.
    fn grow(&self) {
        let mut g = self.lock();
        loop {
            if g.stop {
                return;
            }
            let work = g.inside.as_mut().and_then(|Confined(inside)| {
                let work = inside.device.take(Which::Space);
                work.or_else(|| if std::mem::take(&mut inside.ask_room) { inside.device.ask_room() } else { None })
            });
            let Some(work) = work else {
                g = self.mend(self.grower.wait(g));
                continue;
            };
            g = self.perform(g, work);
            self.leave(g);
            g = self.lock();
        }
    }

    /// Ends the threads; what they were doing is done.
    pub fn stop(&self) {
        let mut g = self.lock();
        g.stop = true;
        g.ring_all();
        self.keeper.notify_all();
        self.grower.notify_all();
        self.leave(g);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for t in threads {
            let _ = t.join();
        }
    }

    /// Lets the file go, and tells those who have come since the threads ended.
    pub fn let_go(&self) {
        let mut g = self.lock();
        let gone = g.inside.take();
        self.leave(g);
        drop(gone);
    }

    /// Runs a task of the engine to its end; its reads are performed here.
    pub fn run<'a, T: Send + 'static, F: Future<Output = T> + 'static>(
        &'a self,
        mut g: Guard<'a>,
        make: impl FnOnce(Engine<LentDevice>) -> F + Send,
    ) -> Result<T> {
        let id = match g.inside() {
            Ok(inside) => inside.spawn(make),
            Err(e) => {
                self.leave(g);
                return Err(e);
            }
        };
        loop {
            let broken = g.broken;
            let Some(Confined(inside)) = &mut g.inside else {
                self.leave(g);
                return Err(gone(broken));
            };
            if let Some(out) = inside.step::<T>(id) {
                self.leave(g);
                return Ok(out);
            }
            let mut works = Vec::new();
            while let Some(w) = inside.device.take(Which::ReadsOf(id)) {
                works.push(w);
            }
            self.leave(g);
            if works.is_empty() {
                std::thread::yield_now();
            }
            let done = Work::perform_all(works);
            g = self.lock();
            if let Some(Confined(inside)) = &mut g.inside {
                done.into_iter().for_each(|d| inside.device.complete(d));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;
    use freebs_types::ErrorKind;

    /// A mistake under the lock must not leave a half-changed engine to the next caller, nor anybody waiting.
    #[test]
    fn a_panic_under_the_lock_ends_the_disk_for_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let disk = Disk::create(&path, 1 << 20).unwrap();
        disk.write_durable(&[1; 4096], 0).unwrap();
        let waiting = disk.clone();
        std::thread::scope(|s| {
            let waiter = s.spawn(move || {
                let shared = waiting.shared();
                shared.drive(shared.lock(), |_| Step::<()>::Change).unwrap_err().kind
            });
            while disk.shared().lock().waiters.is_empty() {
                std::thread::yield_now();
            }
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let shared = disk.shared();
                shared.drive(shared.lock(), |_| -> Step<()> { panic!("a mistake") })
            }));
            assert!(panic.is_err());
            assert_eq!(disk.write(&[2; 4096], 0).unwrap_err().kind, ErrorKind::Bug);
            assert_eq!(waiter.join().unwrap(), ErrorKind::Bug);
        });
        assert_eq!(disk.read(&mut [0; 512], 0).unwrap_err().kind, ErrorKind::Bug);
        assert_eq!(disk.fsync().unwrap_err().kind, ErrorKind::Bug);
        drop(disk);
        let mut block = [0; 4096];
        let disk = Disk::open(&path).unwrap();
        disk.read(&mut block, 0).unwrap();
        assert_eq!(block, [1; 4096]);
    }

    fn until(shared: &Shared, what: &str, is: impl Fn(&State) -> bool) {
        let begun = Instant::now();
        while !is(&shared.lock()) {
            assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Who began to wait after the threads of the disk had ended, but before it was let go, was never told.
    #[test]
    fn whoever_waits_at_the_end_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::create(dir.path().join("disk"), 1 << 20).unwrap();
        let (shared, other) = (disk.shared().clone(), disk.shared().clone());
        shared.stop();
        let waiter = std::thread::spawn(move || other.drive(other.lock(), |_| Step::<()>::Change).unwrap_err().kind);
        until(&shared, "a waiter", |g| !g.waiters.is_empty());
        shared.let_go();
        assert_eq!(waiter.join().unwrap(), ErrorKind::Invalid);
    }

    /// Several were told of something else than an append, while a caller performed one: the keeper was put in charge
    /// but not called, and as it slept without an alarm nobody performed appends any more.
    #[test]
    fn the_keeper_is_called_when_it_is_put_in_charge() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::create(dir.path().join("disk"), 1 << 20).unwrap();
        let shared = disk.shared();
        until(shared, "the keeper's sleep", |g| g.deep);
        let mut g = shared.lock();
        (g.leading, g.answered) = (true, 2);
        shared.end_wait(g);
        shared.lock().leading = false;
        until(shared, "the keeper", |g| !g.in_charge);
        disk.write_durable(&[1; 4096], 0).unwrap();
    }
}
