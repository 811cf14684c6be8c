//! A device in memory that knows what a power cut may leave of it.
//!
//! Invariants (the model):
//! - Reads see whatever has returned. What is on stable media is apart: durable writes that returned, everything that
//!   had returned before a sync that returned began, and lengths that were set.
//! - At a power cut everything else is *unsynced*: each of its sectors is old, or new, or as some unsynced write in
//!   between left it. A sector itself never tears.
//! - An unsynced write never undoes a durable one that began after it had returned.
//! - Calls that change something are numbered from 1. Each is a point to cut at: it is under way then.
//!
//! An image of a cut shares its pages with the device, so that hundreds of thousands can be looked at.

use super::luck::{Luck, turn};
use super::pages::Pages;
use crate::{AlignedBuf, Device, Durability};
use freebs_types::{Error, Result};
use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;

/// What of the unsynced is there after a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Only what was synced before the cut.
    Nothing,
    /// All that was written, as if it had been synced.
    Everything,
    /// Each write whole or not at all, by seed.
    Some(u64),
    /// As `Some`, but one of them (if there is any) is torn: sectors of it are there and others are not.
    Torn(u64),
    /// Each write by itself: not at all, whole, or each sector of it with odds of 1 in 2 or 19 in 20, by seed.
    Shredded(u64),
}

/// Promises that a bad device breaks. A test that passes on such a device tests nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Durable writes are only cached; syncs are true.
    Durable,
    /// Syncs do nothing; durable writes are true.
    Sync,
    /// Lengths that were set are only cached.
    Length,
}

#[derive(Clone)]
enum Change {
    Write(Rc<[u8]>),
    /// Prewritten or punched.
    Zero(u64),
    Len {
        from: u64,
        to: u64,
    },
}

#[derive(Clone)]
struct Unsynced {
    id: u64,
    at: u64,
    change: Change,
    /// By sector, where a later durable write lies over it; empty if nowhere.
    hidden: Vec<bool>,
}

impl Unsynced {
    fn bytes(&self) -> u64 {
        match &self.change {
            Change::Write(b) => b.len() as u64,
            Change::Zero(len) => *len,
            Change::Len { .. } => 0,
        }
    }

    /// Notes that `len` bytes at `at` are newer on stable media.
    fn hide(&mut self, at: u64, len: u64, sector: u64) {
        let (from, to) = (at.max(self.at), (at + len).min(self.at + self.bytes()));
        if from < to {
            self.hidden.resize((self.bytes() / sector) as usize, false);
            self.hidden[((from - self.at) / sector) as usize..((to - self.at) / sector) as usize].fill(true);
        }
    }

    /// Lets it act on `pages`, as far as `there` says so of a sector.
    fn apply(&self, pages: &mut Pages, sector: u64, mut there: impl FnMut(u64) -> bool) {
        let data = match &self.change {
            Change::Len { to, .. } => return pages.set_len(*to),
            Change::Write(data) => Some(data),
            Change::Zero(_) => None,
        };
        let count = self.bytes() / sector;
        let mut takes = |i: u64, len: u64| {
            let inside = self.at + (i + 1) * sector <= len;
            inside && !self.hidden.get(i as usize).is_some_and(|h| *h) && there(i)
        };
        let mut i = 0;
        while i < count {
            let first = i;
            while i < count && takes(i, pages.len()) {
                i += 1;
            }
            let (at, range) = (self.at + first * sector, (first * sector) as usize..(i * sector) as usize);
            match data {
                Some(data) => pages.write(at, &data[range]),
                None => pages.zero(at, range.len() as u64),
            }
            i += 1;
        }
    }
}

/// Hears of every call that changes something, with what a power cut at that moment would find.
type Hook = Rc<dyn Fn(u64, PowerCut)>;

struct State {
    sector: u64,
    limit: u64,
    stable: Pages,
    /// What reads see.
    seen: Pages,
    /// Returned, in that order, and not promised.
    cached: Vec<Unsynced>,
    /// Not returned.
    flying: Vec<Unsynced>,
    calls: u64,
    pace: Option<(Luck, u64)>,
    /// Turns are those of the whole runtime, not only of the tasks that are ready.
    wide: bool,
    stop_at: u64,
    lie: Option<Lie>,
    hook: Option<Hook>,
}

/// Memory behind the device trait that can lose its power. Clones share the bytes.
#[derive(Clone)]
pub struct CrashDevice(Rc<RefCell<State>>);

/// A device at the moment when its power goes.
#[derive(Clone)]
pub struct PowerCut {
    sector: u64,
    limit: u64,
    stable: Pages,
    unsynced: Vec<Unsynced>,
}

impl PowerCut {
    /// Changes that may or may not be there afterwards.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// The device as it is found when the power is back.
    #[must_use]
    pub fn image(&self, survives: Survives) -> CrashDevice {
        let mut pages = self.stable.clone();
        let (mut luck, mut torn) = (Luck::new(0), usize::MAX);
        match survives {
            Survives::Some(seed) | Survives::Shredded(seed) => luck = Luck::new(seed),
            Survives::Torn(seed) => {
                luck = Luck::new(seed);
                torn = luck.below(self.unsynced.len().max(1) as u64) as usize;
            }
            Survives::Nothing | Survives::Everything => {}
        }
        for (i, u) in self.unsynced.iter().enumerate() {
            if let Survives::Shredded(_) = survives {
                shred(u, &mut pages, self.sector, &mut luck);
                continue;
            }
            let there = match survives {
                Survives::Nothing => false,
                Survives::Everything => true,
                Survives::Some(_) | Survives::Torn(_) | Survives::Shredded(_) => luck.coin(),
            };
            if i == torn {
                tear(u, &mut pages, self.sector, &mut luck);
            } else if there {
                u.apply(&mut pages, self.sector, |_| true);
            }
        }
        CrashDevice::of(pages, self.sector, self.limit)
    }
}

/// Part of a change: its first sectors, its last ones, all but one, or any.
fn tear(u: &Unsynced, pages: &mut Pages, sector: u64, luck: &mut Luck) {
    if let Change::Len { from, to } = u.change {
        let (low, high) = (from.min(to), from.max(to));
        return pages.set_len(low + luck.below((high - low) / sector + 1) * sector);
    }
    let (mode, edge) = (luck.below(4), luck.below((u.bytes() / sector).max(1)));
    u.apply(pages, sector, |i| match mode {
        0 => i < edge,
        1 => i >= edge,
        2 => i != edge,
        _ => luck.coin(),
    });
}

/// A change of which any sectors are there; all or none of them as often as some.
fn shred(u: &Unsynced, pages: &mut Pages, sector: u64, luck: &mut Luck) {
    let twentieths = [0, 20, 10, 19][luck.below(4) as usize];
    match u.change {
        Change::Len { .. } => tear(u, pages, sector, luck),
        _ => u.apply(pages, sector, |_| luck.below(20) < twentieths),
    }
}

impl CrashDevice {
    /// An empty device with `sector`-byte sectors that can grow to `limit` bytes.
    #[must_use]
    pub fn new(sector: usize, limit: u64) -> Self {
        Self::of(Pages::default(), sector as u64, limit)
    }

    fn of(pages: Pages, sector: u64, limit: u64) -> Self {
        Self(Rc::new(RefCell::new(State {
            sector,
            limit,
            stable: pages.clone(),
            seen: pages,
            cached: Vec::new(),
            flying: Vec::new(),
            calls: 0,
            pace: None,
            wide: false,
            stop_at: u64::MAX,
            lie: None,
            hook: None,
        })))
    }

    /// From now on each call takes up to `most` turns (polls of its future), by seed, so that calls overlap.
    pub fn pace(&self, seed: u64, most: u64) {
        self.0.borrow_mut().pace = Some((Luck::new(seed), most));
    }

    /// As [`Self::pace`], in turns of the whole runtime: whoever started it gets its turn between two of them. (A task
    /// that only wakes itself is polled again before that one, which then never sees a call under way.)
    pub fn pace_widely(&self, seed: u64, most: u64) {
        self.pace(seed, most);
        self.0.borrow_mut().wide = true;
    }

    /// From now on it breaks a promise.
    pub fn lie(&self, lie: Lie) {
        self.0.borrow_mut().lie = Some(lie);
    }

    /// Bytes that it can grow to from now on.
    pub fn set_limit(&self, limit: u64) {
        self.0.borrow_mut().limit = limit;
    }

    /// Call `n` and those that begin after it are under way for ever: the power goes then. Reads go on.
    pub fn stop_at(&self, n: u64) {
        self.0.borrow_mut().stop_at = n;
    }

    /// Has `hook` called at every call that changes something, when it is under way.
    pub fn on_call(&self, hook: impl Fn(u64, PowerCut) + 'static) {
        self.0.borrow_mut().hook = Some(Rc::new(hook));
    }

    /// Calls that changed something, so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.0.borrow().calls
    }

    /// Whether every call that changes something has returned.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.0.borrow().flying.is_empty()
    }

    /// What a power cut would find now.
    #[must_use]
    pub fn cut(&self) -> PowerCut {
        let s = self.0.borrow();
        let unsynced = s.cached.iter().chain(&s.flying).cloned().collect();
        PowerCut { sector: s.sector, limit: s.limit, stable: s.stable.clone(), unsynced }
    }

    /// A device of its own with the bytes that reads see here, all of them stable.
    #[must_use]
    pub fn copy(&self) -> Self {
        let s = self.0.borrow();
        Self::of(s.seen.clone(), s.sector, s.limit)
    }

    /// The process that used the device is gone (at once, or having closed it), the power is not: what was under way is done, in part or not at
    /// all, by seed, and whatever was cached still is.
    pub fn kill(&self, seed: u64) {
        let mut s = self.0.borrow_mut();
        let (mut luck, sector) = (Luck::new(seed), s.sector);
        for mut u in std::mem::take(&mut s.flying) {
            let mode = luck.below(3);
            if mode == 0 {
                continue;
            }
            if mode == 1 && u.bytes() > 0 {
                u.hidden.resize((u.bytes() / sector) as usize, false);
                u.hidden.iter_mut().for_each(|h| *h |= luck.below(8) == 0);
            }
            u.apply(&mut s.seen, sector, |_| true);
            s.cached.push(u);
        }
    }

    async fn turns(&self) {
        let n = self.0.borrow_mut().pace.as_mut().map_or(0, |(luck, most)| luck.below(*most + 1));
        let wide = self.0.borrow().wide;
        for _ in 0..n {
            match wide {
                true => tokio::task::yield_now().await,
                false => turn().await,
            }
        }
    }

    /// Numbers a call and puts what it changes under way.
    async fn begin(&self, at: u64, change: Option<Change>) -> u64 {
        let (id, hook) = {
            let mut s = self.0.borrow_mut();
            s.calls += 1;
            let id = s.calls;
            s.flying.extend(change.map(|change| Unsynced { id, at, change, hidden: Vec::new() }));
            (id, s.hook.clone())
        };
        if let Some(hook) = hook {
            hook(id, self.cut());
        }
        if id >= self.0.borrow().stop_at {
            pending::<()>().await;
        }
        self.turns().await;
        id
    }

    /// Ends a call: what it changed is seen, and stable if `durable`.
    fn end(&self, id: u64, durable: bool) {
        let s = &mut *self.0.borrow_mut();
        // A call that a `kill` has dealt with is not there any more.
        let Some(i) = s.flying.iter().position(|u| u.id == id) else { return };
        let u = s.flying.remove(i);
        u.apply(&mut s.seen, s.sector, |_| true);
        if durable {
            if matches!(u.change, Change::Len { .. }) {
                s.cached.retain(|older| !matches!(older.change, Change::Len { .. }));
            }
            u.apply(&mut s.stable, s.sector, |_| true);
            for older in &mut s.cached {
                older.hide(u.at, u.bytes(), s.sector);
            }
        } else {
            s.cached.push(u);
        }
    }

    fn lies(&self, lie: Lie) -> bool {
        self.0.borrow().lie == Some(lie)
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        let s = self.0.borrow();
        if (at | len).is_multiple_of(s.sector) && at.checked_add(len).is_some_and(|end| end <= s.seen.len()) {
            return Ok(());
        }
        Err(Error::invalid(format!("device access of {len} bytes at {at} is out of range or not aligned")))
    }

    async fn zero(&self, at: u64, len: u64) -> Result<()> {
        self.check(at, len)?;
        let id = self.begin(at, Some(Change::Zero(len))).await;
        self.end(id, false);
        Ok(())
    }
}

impl Device for CrashDevice {
    fn sector(&self) -> usize {
        self.0.borrow().sector as usize
    }

    fn len(&self) -> u64 {
        self.0.borrow().seen.len()
    }

    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        self.check(at, len as u64)?;
        self.turns().await;
        let mut buf = AlignedBuf::zeroed(len);
        self.0.borrow().seen.read(at, &mut buf);
        Ok(buf)
    }

    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        if let Err(e) = self.check(at, buf.len() as u64) {
            return (buf, Err(e));
        }
        let id = self.begin(at, Some(Change::Write(Rc::from(&buf[..])))).await;
        self.end(id, durability == Durability::Durable && !self.lies(Lie::Durable));
        (buf, Ok(()))
    }

    async fn sync(&self) -> Result<()> {
        let covered: Vec<u64> = self.0.borrow().cached.iter().map(|u| u.id).collect();
        self.begin(0, None).await;
        if self.lies(Lie::Sync) {
            return Ok(());
        }
        let s = &mut *self.0.borrow_mut();
        for u in s.cached.extract_if(.., |u| covered.contains(&u.id)) {
            u.apply(&mut s.stable, s.sector, |_| true);
        }
        Ok(())
    }

    async fn set_len(&self, len: u64) -> Result<()> {
        let (from, sector, limit) = {
            let s = self.0.borrow();
            (s.seen.len(), s.sector, s.limit)
        };
        if !len.is_multiple_of(sector) {
            return Err(Error::invalid(format!("a length of {len} bytes is not aligned")));
        }
        if len > limit {
            return Err(Error::no_space("the device is at its limit"));
        }
        let id = self.begin(0, Some(Change::Len { from, to: len })).await;
        self.end(id, !self.lies(Lie::Length));
        Ok(())
    }

    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.zero(at, len).await
    }

    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.zero(at, len).await
    }
}
