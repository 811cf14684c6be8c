//! What a seat keeps: vote, log, how far it was committed, and a snapshot, in one file through the device trait.
//!
//! The file has two copies of a superblock and *areas*. The area in use begins with a batch that holds everything at
//! the moment it was made, and goes on with a batch for each change. When it is full, when a snapshot comes, and at
//! each start, a new area is written in free space, made durable, and then named by the superblocks.
//!
//! Invariants:
//! - Every change is on stable media when its call returns. One write is under way at a time, so a batch can only be
//!   torn if none follows it.
//! - What follows the last whole batch is what lay there before, or pages of the one next batch; anything else is
//!   damage, and then nothing of the store is used (DESIGN 9.7, 9.8; FAST'18 "Protocol-Aware Recovery").
//! - A failed write or sync poisons the store: every later call fails.
//! - The log is never purged beyond the snapshot that is on stable media.
//! - In memory is what is on stable media; what reads see was durable before.

use crate::codec::*;
use crate::limits;
use crate::machine::Machine;
use crate::mutant::Mutant;
use crate::pages::{self, PAGE_BYTES, Page, Place, UNIT_BYTES, UNIT_PAGES};
use crate::scan;
use crate::superblock::{SUPERBLOCK_BYTES, StoreSuperblock};
use crate::types::{Entry, LogId, Membership, Seat, SnapshotMeta, StoredMembership, Vote, log_id};
use freebs_control::State;
use freebs_control::codec::Fields;
use freebs_control::limits::NUMBER_MAX;
use freebs_io::{AlignedBuf, AnyDevice, Device, Durability, Random};
use freebs_types::{ClusterId, Error, NodeId, Result, StartNumber};
use openraft::EntryPayload;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Mutex, MutexGuard, Notify};

/// First page that an area may have; the superblocks lie before it.
pub const FIRST_PAGE: u32 = 2 * UNIT_PAGES;
/// The file grows in steps of this.
const GROW_BYTES: u64 = 1 << 20;
/// A write of a long batch is cut into pieces of this many pages.
const WRITE_PAGES: u32 = 2048;

/// Kinds of records.
pub mod kind {
    /// A vote.
    pub const VOTE: u16 = 1;
    /// A log entry; its index follows the last one.
    pub const ENTRY: u16 = 2;
    /// A log id: committed up to here; may be older than the truth.
    pub const COMMITTED: u16 = 3;
    /// An optional log id: all entries behind it are gone.
    pub const TRUNCATED: u16 = 4;
    /// A log id: all entries up to it are gone; never beyond the snapshot.
    pub const PURGED: u16 = 5;
    /// A snapshot: optional log id, stored membership, then the machine.
    pub const SNAPSHOT: u16 = 6;
}

/// A snapshot as it is kept and sent.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The last entry that is in it, and the membership as of that.
    pub meta: SnapshotMeta,
    /// The machine, as `Machine::encode` gives it.
    pub bytes: Rc<Vec<u8>>,
}

/// Everything that is kept, as it is in memory.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// The last vote that was given, or heard to be given by a majority; `None` before the first.
    pub vote: Option<Vote>,
    /// Committed up to here, at least.
    pub committed: Option<LogId>,
    /// The last entry that is no longer in the log; `None` if the log goes back to its beginning.
    pub purged: Option<LogId>,
    /// The log, by index, without a hole.
    pub entries: BTreeMap<u64, Entry>,
    /// The newest snapshot; `None` before the first.
    pub snapshot: Option<Kept>,
}

/// Who a store belongs to, and what may vary.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The cluster; a store of another one is refused.
    pub cluster: ClusterId,
    /// The node; a store of another one is refused.
    pub node: NodeId,
    /// The number of this opening, above all that were noted before, and noted durably as begun (rule V8, `SeatNote`).
    pub start: StartNumber,
    /// The opening that the store was used in last, as is noted outside of it; 0 if never. `start` must be noted so,
    /// durably, after the store was opened and before a seat works with it.
    pub noted: StartNumber,
    /// Bytes of log behind what an area begins with.
    pub room: u64,
    /// Breaks one rule, to prove that tests notice. Always `None` outside of tests.
    pub mutant: Option<Mutant>,
}

struct Writer {
    superblock: StoreSuperblock,
    next_page: u32,
    next_batch: u32,
    random: Box<dyn Random>,
    /// As it was last written.
    committed: Option<LogId>,
}

struct Inner {
    device: AnyDevice,
    options: Options,
    seat: Seat,
    writer: Mutex<Writer>,
    contents: RefCell<Contents>,
    poison: RefCell<Option<Error>>,
    /// Ends of snapshots that the library has been given and that are not installed yet, by number of the announcement.
    announced: RefCell<BTreeMap<u64, LogId>>,
    announcements: Cell<u64>,
    /// One of them has been installed, or will not be.
    settled: Notify,
}

/// A seat's store, on any device: consensus is compiled once, and a call of the control plane can pay for the table of
/// functions. Clones share it.
#[derive(Clone)]
pub struct Store(Rc<Inner>);

/// A snapshot that may be installed soon. Dropped once that has been done, or has failed.
pub struct Announced {
    store: Store,
    number: u64,
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.store.0.announced.borrow_mut().remove(&self.number);
        self.store.0.settled.notify_waiters();
    }
}

fn record(out: &mut Vec<u8>, kind: u16, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 6]);
    body(out);
    let len = u32::try_from(out.len() - at - 8).expect("records are far below 4 GiB");
    out[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
}

fn entry_record(out: &mut Vec<u8>, entry: &Entry) -> Result<()> {
    let mut bytes = Vec::new();
    put_entry(&mut bytes, entry)?;
    get_entry(&bytes).map_err(|_| unreadable("an entry"))?;
    record(out, kind::ENTRY, |o| o.extend(bytes));
    Ok(())
}

/// A record must be read again at the next start, or the seat is lost.
fn unreadable(what: &str) -> Error {
    Error::bug(format!(
        "{what} that could not be read again is not kept: its numbers or its size are above the maximum"
    ))
}

impl Contents {
    /// True if this seat has the only vote, by the newest membership that is kept.
    pub(crate) fn votes_alone(&self, me: Seat) -> bool {
        let in_log = self.entries.values().rev().find_map(|e| match &e.payload {
            EntryPayload::Membership(m) => Some(m),
            _ => None,
        });
        let newest = in_log.or_else(|| self.snapshot.as_ref().map(|s| s.meta.last_membership.membership()));
        newest.is_some_and(|m| m.voter_ids().all(|v| v == me) && m.voter_ids().next().is_some())
    }

    fn records(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        if let Some(s) = &self.snapshot {
            record(&mut out, kind::SNAPSHOT, |o| {
                put_optional_log_id(o, s.meta.last_log_id.as_ref());
                put_stored_membership(o, &s.meta.last_membership);
                o.extend(&s.bytes[..]);
            });
        }
        if let Some(id) = &self.purged {
            record(&mut out, kind::PURGED, |o| put_log_id(o, id));
        }
        if let Some(v) = &self.vote {
            record(&mut out, kind::VOTE, |o| put_vote(o, v));
        }
        for e in self.entries.values() {
            entry_record(&mut out, e)?;
        }
        if let Some(id) = &self.committed {
            record(&mut out, kind::COMMITTED, |o| put_log_id(o, id));
        }
        Ok(out)
    }

    /// The last entry that was ever in the log and was not truncated.
    #[must_use]
    pub fn last(&self) -> Option<LogId> {
        self.entries.last_key_value().map(|(_, e)| e.log_id).or(self.purged)
    }

    fn snapshot_end(&self) -> Option<LogId> {
        self.snapshot.as_ref().and_then(|s| s.meta.last_log_id)
    }

    /// Takes the records of a batch in; refuses those that can't follow what is there.
    pub(crate) fn replay(&mut self, batch: &[u8]) -> Result<()> {
        let f = &mut Fields(batch);
        while !f.0.is_empty() {
            let (kind, zero, len) = (f.u16()?, f.u16()?, f.u32()? as usize);
            let mut body = Fields(f.take(len)?);
            if zero != 0 {
                return Err(damaged());
            }
            self.record(kind, &mut body)?;
        }
        Ok(())
    }

    fn record(&mut self, kind: u16, body: &mut Fields<'_>) -> Result<()> {
        match kind {
            kind::VOTE => self.vote = Some(get_vote(body)?),
            kind::ENTRY => {
                let entry = get_entry(body.take(body.0.len())?)?;
                let index = entry.log_id.index();
                if index != self.last().map_or(0, |l| l.index() + 1) {
                    return Err(Error::corrupt("the control plane's log has a hole"));
                }
                self.entries.insert(index, entry);
            }
            kind::COMMITTED => self.committed = Some(get_log_id(body)?),
            kind::TRUNCATED => self.truncate(get_optional_log_id(body)?),
            kind::PURGED => {
                let id = get_log_id(body)?;
                if self.snapshot_end() < Some(id) {
                    return Err(Error::corrupt("the control plane's log was purged beyond its snapshot"));
                }
                self.purge(id);
            }
            kind::SNAPSHOT => {
                let (last_log_id, last_membership) = (get_optional_log_id(body)?, get_stored_membership(body)?);
                let bytes = Rc::new(body.take(body.0.len())?.to_vec());
                self.snapshot = Some(Kept { meta: SnapshotMeta { last_log_id, last_membership }, bytes });
            }
            _ => return Err(damaged()),
        }
        body.end()
    }

    fn truncate(&mut self, after: Option<LogId>) {
        self.entries.split_off(&after.map_or(0, |l| l.index() + 1));
    }

    fn purge(&mut self, upto: LogId) {
        if self.purged < Some(upto) {
            self.purged = Some(upto);
            self.entries = self.entries.split_off(&(upto.index() + 1));
        }
    }
}

impl Store {
    /// Makes a store on a blank device: a new seat. `Invalid` if the device is not blank.
    pub async fn create(device: impl Device, options: Options, mut random: Box<dyn Random>) -> Result<Self> {
        let device = AnyDevice::new(device);
        if device.len() > 0 && scan::superblocks(&device).await?.is_some() {
            return Err(Error::invalid("there is a control store already; it is never made anew over an old one"));
        }
        let store = random.next_u64() | 1;
        let superblock = StoreSuperblock::new(options.cluster, options.node, store);
        Self::start(device, options, superblock, Contents::default(), random).await
    }

    /// Makes a store on a blank device, as the only voter of a cluster that has this state: what a cluster begins with,
    /// in one step. Only ever called once for a cluster.
    pub async fn found(
        device: impl Device,
        options: Options,
        mut random: Box<dyn Random>,
        state: &State,
    ) -> Result<Self> {
        let device = AnyDevice::new(device);
        if device.len() > 0 && scan::superblocks(&device).await?.is_some() {
            return Err(Error::invalid("there is a control store already; it is never made anew over an old one"));
        }
        if state.cluster() != options.cluster {
            return Err(Error::invalid("the state to begin with is of another cluster"));
        }
        let store = random.next_u64() | 1;
        let seat = Seat { node: options.node, store };
        let first = log_id(0, 0);
        let members = Membership::new(vec![[seat].into()], BTreeMap::from([(seat, ())]));
        let members = members.map_err(|e| Error::bug(format!("a cluster of one: {e}")))?;
        let mut machine = Machine::new(options.cluster);
        machine.state = Arc::new(state.clone());
        machine.applied = Some(first);
        machine.membership = StoredMembership::new(Some(first), members);
        let meta = SnapshotMeta { last_log_id: Some(first), last_membership: machine.membership.clone() };
        let snapshot = Some(Kept { meta, bytes: Rc::new(machine.encode()) });
        let contents = Contents { purged: Some(first), committed: Some(first), snapshot, ..Contents::default() };
        let superblock = StoreSuperblock::new(options.cluster, options.node, store);
        Self::start(device, options, superblock, contents, random).await
    }

    /// Opens the store of `options.node`. `NotFound` on a blank device. `Corrupt` if anything in it is damaged, is of
    /// another node, or is older than the node's device says (rule V8): it must not vote, and a new one must be made.
    pub async fn open(device: impl Device, options: Options, random: Box<dyn Random>) -> Result<Self> {
        let device = AnyDevice::new(device);
        let blank = || Error::not_found("there is no control store on this device");
        if device.len() == 0 {
            return Err(blank());
        }
        // A process that was killed may have left writes in the device's cache. What is read here decides which area
        // may be written over, so it must be on stable media before.
        device.sync().await?;
        let superblock = scan::superblocks(&device).await?.ok_or_else(blank)?;
        scan::check_owner(&superblock, &options)?;
        let contents = scan::area(&device, &superblock, options.mutant).await?;
        Self::start(device, options, superblock, contents, random).await
    }

    /// Begins this start of the node: all that is there goes into a new area, with the new start number, and with
    /// that nothing of a torn batch is left.
    async fn start(
        device: AnyDevice,
        options: Options,
        mut superblock: StoreSuperblock,
        contents: Contents,
        random: Box<dyn Random>,
    ) -> Result<Self> {
        superblock.start = options.start.0.into();
        let seat = Seat { node: options.node, store: superblock.store.get() };
        let writer = Mutex::new(Writer { superblock, next_page: 0, next_batch: 0, random, committed: None });
        let contents = RefCell::new(contents);
        let poison = RefCell::default();
        let (announced, announcements, settled) = (RefCell::default(), Cell::default(), Notify::new());
        let inner = Inner { device, options, seat, writer, contents, poison, announced, announcements, settled };
        let store = Self(Rc::new(inner));
        let records = store.0.contents.borrow().records()?;
        let mut writer = store.0.writer.lock().await;
        store.0.new_area(&mut writer, &records).await?;
        drop(writer);
        Ok(store)
    }

    /// Node and store: the identity under which this store votes.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.0.seat
    }

    /// The start number of this start.
    #[must_use]
    pub fn start_number(&self) -> StartNumber {
        self.0.options.start
    }

    /// The cluster that the store belongs to.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.0.options.cluster
    }

    /// The rule that is broken, in tests.
    #[must_use]
    pub fn mutant(&self) -> Option<Mutant> {
        self.0.options.mutant
    }

    /// Looks at what is kept.
    pub fn read<T>(&self, look: impl FnOnce(&Contents) -> T) -> T {
        look(&self.0.contents.borrow())
    }

    /// Why the store can't be used any more, if it can't.
    #[must_use]
    pub fn poison(&self) -> Option<Error> {
        self.0.poison.borrow().clone()
    }

    /// Makes a change durable, then lets it be seen.
    async fn change(&self, durability: Durability, records: Vec<u8>, apply: impl FnOnce(&mut Contents)) -> Result<()> {
        let mut writer = self.0.writer.lock().await;
        self.write(&mut writer, durability, records, apply).await
    }

    async fn write(
        &self,
        writer: &mut Writer,
        durability: Durability,
        mut records: Vec<u8>,
        apply: impl FnOnce(&mut Contents),
    ) -> Result<()> {
        let committed = self.read(|c| c.committed);
        if let Some(id) = committed.filter(|_| writer.committed != committed) {
            record(&mut records, kind::COMMITTED, |o| put_log_id(o, &id));
            writer.committed = committed;
        }
        self.0.append(writer, &records, durability).await?;
        apply(&mut self.0.contents.borrow_mut());
        Ok(())
    }

    /// Keeps a vote. Durable when it returns; an error poisons the store.
    pub async fn save_vote(&self, vote: Vote) -> Result<()> {
        if self.0.options.mutant == Some(Mutant::VoteNotSynced) {
            self.0.contents.borrow_mut().vote = Some(vote);
            return Ok(());
        }
        let mut records = Vec::new();
        record(&mut records, kind::VOTE, |o| put_vote(o, &vote));
        if vote.leader_id.term > NUMBER_MAX {
            return self.0.poisoned(Err(unreadable("a vote")));
        }
        self.change(Durability::Durable, records, |c| c.vote = Some(vote)).await
    }

    /// Remembers how far the log is committed. It becomes durable with the next change: after a crash it may be older,
    /// and then what lies behind it is applied when the cluster says again that it is committed.
    pub fn save_committed(&self, committed: LogId) {
        self.0.contents.borrow_mut().committed = Some(committed);
    }

    /// Says that the library is given a snapshot with this end. It may append behind it before it has had it installed.
    #[must_use]
    pub fn announce(&self, end: LogId) -> Announced {
        let number = self.0.announcements.get();
        self.0.announcements.set(number + 1);
        self.0.announced.borrow_mut().insert(number, end);
        Announced { store: self.clone(), number }
    }

    /// A snapshot with this end has been installed, or can't be.
    pub fn settle(&self, end: Option<LogId>) {
        self.0.announced.borrow_mut().retain(|_, e| Some(*e) != end);
        self.0.settled.notify_waiters();
    }

    /// Appends entries that follow the last one, or the end of a snapshot that has been announced: then once that has
    /// been installed. Others, and such as could not be read again, poison the store: nothing that may come later makes
    /// them right.
    pub async fn append(&self, entries: Vec<Entry>) -> Result<()> {
        let mut records = Vec::new();
        for e in &entries {
            let done = entry_record(&mut records, e);
            self.0.poisoned(done)?;
        }
        if entries.is_empty() {
            return Ok(());
        }
        let mut writer = self.writer_behind_log(&entries).await?;
        let early = self.0.options.mutant == Some(Mutant::EntryNotSynced);
        let durability = if early { Durability::Cached } else { Durability::Durable };
        self.write(&mut writer, durability, records, |c| {
            c.entries.extend(entries.into_iter().map(|e| (e.log_id.index(), e)));
        })
        .await
    }

    /// The right to write, once the log ends where these entries begin.
    async fn writer_behind_log(&self, entries: &[Entry]) -> Result<MutexGuard<'_, Writer>> {
        let first = entries[0].log_id.index();
        let in_order = entries.iter().zip(first..).all(|(e, index)| e.log_id.index() == index);
        loop {
            let settled = self.0.settled.notified();
            // A change under way may be of the log's end.
            let writer = self.0.writer.lock().await;
            let next = self.read(|c| c.last().map_or(0, |l| l.index() + 1));
            if in_order && first == next {
                return Ok(writer);
            }
            let is_behind = |end: &LogId| next <= end.index() && end.index() + 1 == first;
            if !(in_order && self.0.announced.borrow().values().any(is_behind)) {
                let text =
                    format!("entries from {first} on do not follow each other, or the log, whose next one is {next}");
                return self.0.poisoned(Err(Error::bug(text)));
            }
            drop(writer);
            settled.await;
        }
    }

    /// Gives up all entries behind `after`, or all of them. Durable when it returns; an error poisons the store.
    pub async fn truncate_after(&self, after: Option<LogId>) -> Result<()> {
        let mut records = Vec::new();
        record(&mut records, kind::TRUNCATED, |o| put_optional_log_id(o, after.as_ref()));
        self.change(Durability::Durable, records, |c| c.truncate(after)).await
    }

    /// Purges the log up to what the durable snapshot covers. A snapshot that is being installed purges by itself.
    pub async fn purge(&self, upto: LogId) -> Result<()> {
        let upto = match self.0.options.mutant {
            Some(Mutant::PurgeBeforeSnapshot) => Some(upto),
            _ => self.read(Contents::snapshot_end).map(|end| end.min(upto)),
        };
        let Some(upto) = upto.filter(|u| self.read(|c| c.purged) < Some(*u)) else { return Ok(()) };
        let mut records = Vec::new();
        record(&mut records, kind::PURGED, |o| put_log_id(o, &upto));
        self.change(Durability::Durable, records, |c| c.purge(upto)).await
    }

    /// Keeps a snapshot instead of the one before. One that comes from a leader (`installed`) replaces the log up to
    /// its end, in the same step.
    pub async fn save_snapshot(&self, snapshot: Kept, installed: bool) -> Result<()> {
        let mut writer = self.0.writer.lock().await;
        let mut next = self.0.contents.borrow().clone();
        if next.snapshot_end() >= snapshot.meta.last_log_id {
            return Ok(());
        }
        let end = snapshot.meta.last_log_id;
        if end.is_some_and(|e| e.index() > NUMBER_MAX) || snapshot.bytes.len() > limits::SNAPSHOT_BYTES_MAX {
            return self.0.poisoned(Err(unreadable("a snapshot")));
        }
        next.snapshot = Some(snapshot);
        if let (Some(end), true) = (end, installed) {
            let follows = next.entries.get(&end.index()).is_some_and(|e| e.log_id == end);
            if !follows {
                next.entries.clear();
            }
            next.purge(end);
            next.committed = next.committed.max(Some(end));
        }
        if self.0.options.mutant == Some(Mutant::PurgeBeforeSnapshot) {
            // The snapshot is only in memory until something else makes a new area.
            *self.0.contents.borrow_mut() = next;
        } else {
            let records = next.records()?;
            self.0.new_area(&mut writer, &records).await?;
            *self.0.contents.borrow_mut() = next;
        }
        Ok(())
    }
}

impl Inner {
    fn check(&self) -> Result<()> {
        match &*self.poison.borrow() {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }

    fn poisoned<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(e) = &result {
            let text = format!("the control store failed, and is not used any more until it is opened again: {e}");
            self.poison.borrow_mut().get_or_insert(Error::device_failed(text));
        }
        result
    }

    async fn append(&self, writer: &mut Writer, records: &[u8], durability: Durability) -> Result<()> {
        self.check()?;
        let end = writer.superblock.first_page.get() + writer.superblock.pages.get();
        if writer.next_page + pages::pages_of(records.len()) > end {
            let all = self.contents.borrow().records()?;
            let room = pages::pages_of(records.len());
            self.new_area_with_room(writer, &all, room).await?;
        }
        let result = self.batch(writer, records, durability).await;
        self.poisoned(result)
    }

    /// Writes the next batch of the area.
    async fn batch(&self, writer: &mut Writer, records: &[u8], durability: Durability) -> Result<()> {
        let count = pages::pages_of(records.len());
        let (store, area) = (writer.superblock.store.get(), writer.superblock.area.get());
        let mut done = 0;
        while done < count {
            let some = WRITE_PAGES.min(count - done);
            let mut buf = AlignedBuf::zeroed(some as usize * PAGE_BYTES);
            for (i, out) in buf.chunks_exact_mut(PAGE_BYTES).enumerate() {
                let index = done + i as u32;
                let place = Place { store, area, page: writer.next_page + index };
                pages::stamp(out, place, writer.next_batch, records, index);
            }
            let at = u64::from(writer.next_page + done) * PAGE_BYTES as u64;
            // A batch of several writes is durable by a sync behind them all.
            let durability = if count > WRITE_PAGES { Durability::Cached } else { durability };
            self.device.write(at, buf, durability).await.1?;
            done += some;
        }
        if count > WRITE_PAGES {
            self.device.sync().await?;
        }
        writer.next_page += count;
        writer.next_batch += 1;
        Ok(())
    }

    async fn new_area(&self, writer: &mut Writer, records: &[u8]) -> Result<()> {
        self.new_area_with_room(writer, records, 0).await
    }

    /// Begins a new area with `records`, which are everything, in space that the present one does not use.
    async fn new_area_with_room(&self, writer: &mut Writer, records: &[u8], least: u32) -> Result<()> {
        self.check()?;
        let result = self.try_new_area(writer, records, least).await;
        self.poisoned(result)
    }

    /// Blanks what is rotten between `from` and the end of a new area. It was nobody's until now; the next start would
    /// take it for damage of this area.
    async fn clear_rot(&self, area: &StoreSuperblock, from: u32) -> Result<()> {
        let end = area.first_page.get() + area.pages.get();
        for first in (from..end).step_by(WRITE_PAGES as usize) {
            let (at, count) = (u64::from(first) * PAGE_BYTES as u64, WRITE_PAGES.min(end - first) as usize);
            let Ok(bytes) = self.device.read(at, count * PAGE_BYTES).await else {
                // Whichever page can't be read, none of them is of use.
                self.device.write(at, AlignedBuf::zeroed(count * PAGE_BYTES), Durability::Durable).await.1?;
                continue;
            };
            for (unit, at) in bytes.chunks_exact(UNIT_BYTES).zip((at..).step_by(UNIT_BYTES)) {
                let mut pages = ((at / PAGE_BYTES as u64) as u32..).zip(unit.chunks_exact(PAGE_BYTES));
                if pages.any(|(page, bytes)| look_at(area, page, bytes) == Page::Damaged) {
                    self.device.write(at, AlignedBuf::zeroed(UNIT_BYTES), Durability::Durable).await.1?;
                }
            }
        }
        Ok(())
    }

    async fn try_new_area(&self, writer: &mut Writer, records: &[u8], least: u32) -> Result<()> {
        let first_batch = pages::pages_of(records.len());
        let room = (self.options.room / PAGE_BYTES as u64) as u32;
        let size = first_batch + room.max(least).next_multiple_of(UNIT_PAGES);
        let old = writer.superblock;
        // A superblock with the number behind this one would never be read.
        if old.generation.get() >= NUMBER_MAX {
            return Err(Error::corrupt("a superblock of the control store with numbers that can't be counted on from"));
        }
        let before = old.first_page.get().saturating_sub(FIRST_PAGE);
        let behind = old.first_page.get() + old.pages.get();
        let first_page = if behind == 0 || before >= size { FIRST_PAGE } else { behind };
        let end = u64::from(first_page + size) * PAGE_BYTES as u64;
        if end > limits::STORE_BYTES_MAX {
            return Err(Error::no_space("the control store is at its maximum"));
        }
        if end > self.device.len() {
            // The next start takes as much behind the first one, and is not to fail where others have filled the file system.
            let next = if behind == 0 { u64::from(size) * PAGE_BYTES as u64 } else { 0 };
            let len = (end + next).next_multiple_of(GROW_BYTES);
            self.device.set_len(len.min(limits::STORE_BYTES_MAX)).await?;
        }
        writer.superblock.generation = (old.generation.get() + 1).into();
        writer.superblock.area = writer.random.next_u64().into();
        writer.superblock.first_page = first_page.into();
        writer.superblock.pages = size.into();
        writer.superblock.first_batch = first_batch.into();
        writer.superblock.seal();
        self.clear_rot(&writer.superblock, first_page + first_batch).await?;
        (writer.next_page, writer.next_batch) = (first_page, 0);
        self.batch(writer, records, Durability::Durable).await?;
        for copy in 0..2 {
            let mut buf = AlignedBuf::zeroed(UNIT_BYTES);
            buf[..SUPERBLOCK_BYTES].copy_from_slice(zerocopy::IntoBytes::as_bytes(&writer.superblock));
            self.device.write(copy * UNIT_BYTES as u64, buf, Durability::Durable).await.1?;
        }
        Ok(())
    }
}

/// What a page is, for the scan.
pub(crate) fn look_at(superblock: &StoreSuperblock, page: u32, bytes: &[u8]) -> Page {
    pages::look(bytes, Place { store: superblock.store.get(), area: superblock.area.get(), page })
}
