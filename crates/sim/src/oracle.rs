//! What every read may return: the contract of a virtual disk, held against everything that clients did and saw.
//!
//! Each sector is a register whose writes have values of their own, and zero. For such a register a run is
//! linearizable exactly if the *zones* of its values agree (Gibbons and Korach, "Testing shared memories", 1997):
//! the zone of a value lies between the first end and the last beginning of its write and of the reads that
//! returned it. If the first end comes first, the register held the value all that time (a forward zone): two such
//! zones never overlap, and no other value's whole life lies inside one.
//!
//! On top of it come the rules that make a disk out of registers:
//! - An unanswered write took effect before its successor's attachment was ready, or never (CONTRACT 9, rule R2). So
//!   its first end is that moment if it is ever seen.
//! - A write that was given up with an error is decided before any later read of it is answered (R3).
//! - One update of one shard is there as a whole or not at all (CONTRACT 8), and a read shows an instant of all that an
//!   update may touch at once (CONTRACT 7). An interval is one update, however far apart its changes are (`together`).
//!
//! Order is that of events, not of the clock. Zeroes have no name: a read of zeroes counts for the one zeroing write
//! (or the beginning) that it can have been, and for none while there are several. A clone's sector begins with what the
//! snapshot had there, which is known from the first read that shows it, and stays the same; all of these together are the
//! instant of the snapshot. Once an attachment is ready nothing
//! older may succeed (CONTRACT 14); what older ones read while it is not ready is not judged.

mod together;

use crate::content::Value;
use crate::world::World;
use freebs_types::{BLOCK, Generation, SECTOR, VolumeId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = (BLOCK / SECTOR) as u64;

/// A place in the order of events.
pub type Stamp = u64;

/// Between the question for a snapshot and its answer.
pub type Instant = (Stamp, Stamp);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    Done(Stamp),
    /// The client was told that it failed; it may have happened all the same.
    Failed(Stamp),
}

/// Sectors that get data, or zeroes, by one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    pub first: u64,
    pub count: u64,
    pub zero: bool,
}

impl Touched {
    fn sectors(&self) -> Range<u64> {
        self.first..self.first + self.count
    }
}

impl fmt::Display for Touched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sectors {}+{}{}", self.first, self.count, if self.zero { ", zeroes" } else { "" })
    }
}

#[derive(Clone, Debug)]
struct Write {
    generation: Generation,
    /// One run, or those of an interval, in order.
    runs: Vec<Touched>,
    is_interval: bool,
    begun: Stamp,
    end: End,
    /// First end of a read that returned it in any sector, if that tells of all of them.
    seen: Option<Stamp>,
}

impl Write {
    fn covers(&self, sector: u64) -> bool {
        self.runs.iter().any(|r| r.sectors().contains(&sector))
    }
}

/// One write as one sector saw it, with the reads that returned it.
#[derive(Clone, Debug)]
struct Cluster {
    write: Value,
    /// It made the sector read as zeroes.
    zero: bool,
    begun: Stamp,
    /// First end of a read that returned it.
    seen: Option<Stamp>,
    /// Last beginning of a read that returned it.
    last_read: Stamp,
    /// A read has shown that it never happened here.
    dead: bool,
    /// The shard went on by force before this generation: whether it happened is open again, whatever was answered.
    forced: Option<Generation>,
}

/// True for the sectors of a shard.
type Sectors = Box<dyn Fn(u64) -> bool>;

#[derive(Default)]
struct Volume {
    sectors: BTreeMap<u64, Vec<Cluster>>,
    writes: BTreeMap<Value, Write>,
    /// By generation, when its attachment was asked for and when it was past the barrier.
    generations: BTreeMap<Generation, (Stamp, Option<Stamp>)>,
    /// Bytes of one update at most, aligned.
    group: u64,
    /// Shards that went on by force: the first generation behind that, and whether a sector is theirs. The writes of
    /// older drivers there may be lost, whenever they are answered, and reads of these drivers are not judged any more.
    forced: Vec<(Stamp, Generation, Sectors)>,
    /// The volume whose snapshot it was cloned from, and the instant of that.
    origin: Option<(VolumeId, Instant)>,
}

/// The beginning of a sector: zeroes, or what a snapshot had there.
fn beginning() -> Cluster {
    Cluster { write: 0, zero: true, begun: 0, seen: Some(0), last_read: 0, dead: false, forced: None }
}

/// A zone: first end and last beginning.
#[derive(Clone, Copy, Debug)]
struct Zone {
    f: Stamp,
    s: Stamp,
}

impl Zone {
    fn is_forward(self) -> bool {
        self.f < self.s
    }

    /// Whether two different values can't have had both zones.
    fn conflicts(self, other: Zone) -> bool {
        match (self.is_forward(), other.is_forward()) {
            (true, true) => self.f.max(other.f) < self.s.min(other.s),
            (true, false) => self.f < other.s && other.f < self.s,
            (false, true) => other.f < self.s && self.f < other.s,
            (false, false) => false,
        }
    }
}

impl Volume {
    /// When the first generation behind `g` was ready.
    fn superseded(&self, g: Generation) -> Option<Stamp> {
        self.generations.range(g.next()..).filter_map(|(_, (_, ready))| *ready).min()
    }

    fn zone(&self, c: &Cluster) -> Option<Zone> {
        if let Some(generation) = c.forced {
            let ready = self.generations.range(generation..).filter_map(|(_, (_, ready))| *ready).min();
            let seen = c.seen?;
            return Some(Zone { f: ready.map_or(seen, |t| seen.min(t)), s: c.begun.max(c.last_read) });
        }
        let Some(w) = self.writes.get(&c.write) else {
            // The beginning: zeroes that were always there.
            return Some(Zone { f: 0, s: c.last_read });
        };
        let done = match w.end {
            End::Done(at) => Some(at),
            _ => None,
        };
        let f = [done, c.seen, w.seen].into_iter().flatten().min()?;
        // What happened at all happened before the next attachment was ready.
        let f = self.superseded(w.generation).map_or(f, |t| f.min(t));
        Some(Zone { f, s: c.begun.max(c.last_read) })
    }

    fn name(&self, c: &Cluster) -> String {
        match self.writes.get(&c.write) {
            None => format!("the beginning (zeroes, {:?})", self.zone(c)),
            Some(w) => format!(
                "{} {} of generation {} ({}, begun {}, {:?}, seen {:?}, last read {}, zone {:?})",
                if w.is_interval { "interval" } else { "write" },
                c.write,
                w.generation,
                w.runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
                w.begun,
                w.end,
                c.seen,
                c.last_read,
                self.zone(c)
            ),
        }
    }

    /// A cluster that `changed` can't live with.
    fn conflict(&self, all: &[Cluster], changed: usize, zone: Zone) -> Option<usize> {
        let mine = all[changed].zero;
        (0..all.len()).find(|i| {
            *i != changed && !(mine && all[*i].zero) && self.zone(&all[*i]).is_some_and(|z| z.conflicts(zone))
        })
    }
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub volume: VolumeId,
    pub generation: Generation,
    pub begun: Stamp,
}

/// The judge of a run.
pub struct Oracle {
    world: Rc<World>,
    stamp: Cell<Stamp>,
    next: Cell<Value>,
    volumes: RefCell<BTreeMap<VolumeId, Volume>>,
    reads: Cell<u64>,
    writes: Cell<u64>,
}

impl Oracle {
    #[must_use]
    pub fn new(world: &Rc<World>) -> Rc<Self> {
        Rc::new(Self {
            world: world.clone(),
            stamp: Cell::new(1),
            next: Cell::new(0),
            volumes: RefCell::default(),
            reads: Cell::new(0),
            writes: Cell::new(0),
        })
    }

    pub fn add_volume(&self, volume: VolumeId, group_bytes: u64) {
        let v = Volume { group: group_bytes / SECTOR as u64, ..Volume::default() };
        self.volumes.borrow_mut().insert(volume, v);
    }

    /// A clone of an instant of another volume.
    pub fn add_clone(&self, volume: VolumeId, group_bytes: u64, origin: (VolumeId, Instant)) {
        self.add_volume(volume, group_bytes);
        if let Some(v) = self.volumes.borrow_mut().get_mut(&volume) {
            v.origin = Some(origin);
        }
    }

    /// The volumes whose writes may be read from one: itself, and what it was cloned from.
    #[must_use]
    pub fn sources(&self, volume: VolumeId) -> Vec<VolumeId> {
        let origin = self.volumes.borrow().get(&volume).and_then(|v| v.origin);
        [volume].into_iter().chain(origin.map(|o| o.0)).collect()
    }

    /// True if somebody wrote to a sector, or tried.
    #[must_use]
    pub fn is_written(&self, volume: VolumeId, sector: u64) -> bool {
        self.volumes.borrow().get(&volume).and_then(|v| v.sectors.get(&sector)).is_some_and(|all| all.len() > 1)
    }

    /// The next place in the order of events.
    pub fn stamp(&self) -> Stamp {
        self.stamp.set(self.stamp.get() + 1);
        self.stamp.get()
    }

    /// Reads and writes that were judged.
    #[must_use]
    pub fn judged(&self) -> (u64, u64) {
        (self.reads.get(), self.writes.get())
    }

    /// A generation was given out; its attachment was asked for at `asked`.
    pub fn attached(&self, volume: VolumeId, generation: Generation, asked: Stamp) {
        if let Some(v) = self.volumes.borrow_mut().get_mut(&volume) {
            v.generations.insert(generation, (asked, None));
        }
    }

    /// The driver of a generation is past the barrier on all shards.
    pub fn ready(&self, volume: VolumeId, generation: Generation) {
        let now = self.stamp();
        if let Some(v) = self.volumes.borrow_mut().get_mut(&volume)
            && let Some((_, ready)) = v.generations.get_mut(&generation)
        {
            ready.get_or_insert(now);
        }
    }

    /// A shard with these sectors goes on by force (V10), and attachments before this generation are over. What was
    /// written before may be there or not, whatever was answered, but what is there from then on stays.
    pub fn forced(&self, volume: VolumeId, generation: Generation, is_in: impl Fn(u64) -> bool + 'static) {
        let now = self.stamp();
        let mut volumes = self.volumes.borrow_mut();
        let Some(v) = volumes.get_mut(&volume) else { return };
        let writes = &v.writes;
        let is_older = |c: &&mut Cluster| writes.get(&c.write).is_none_or(|w| w.generation < generation);
        for (_, all) in v.sectors.iter_mut().filter(|(s, _)| is_in(**s)) {
            for c in all.iter_mut().filter(is_older) {
                *c = Cluster {
                    write: c.write,
                    zero: c.zero,
                    begun: now,
                    seen: None,
                    last_read: 0,
                    dead: false,
                    forced: Some(generation),
                };
            }
        }
        v.forced.push((now, generation, Box::new(is_in)));
    }

    /// A write begins; `zero` for trims, zeroes, and data that are zeroes.
    pub fn begin_write(&self, volume: VolumeId, generation: Generation, first: u64, count: u64, zero: bool) -> Value {
        self.begin((volume, generation), vec![Touched { first, count, zero }], false)
    }

    /// An interval begins: all of these sectors, in order and none twice, or none of them.
    pub fn begin_interval(&self, volume: VolumeId, generation: Generation, runs: Vec<Touched>) -> Value {
        self.begin((volume, generation), runs, true)
    }

    fn begin(&self, (volume, generation): (VolumeId, Generation), runs: Vec<Touched>, is_interval: bool) -> Value {
        let id = self.next.get() + 1;
        self.next.set(id);
        let begun = self.stamp();
        if let Some(v) = self.volumes.borrow_mut().get_mut(&volume) {
            for (s, zero) in runs.iter().flat_map(|r| r.sectors().map(|s| (s, r.zero))) {
                let start = || vec![beginning()];
                let over = v.forced.iter().rev().find(|(_, g, is_in)| generation < *g && is_in(s));
                let forced = over.map(|(_, g, _)| *g);
                let c = Cluster { write: id, zero, begun, seen: None, last_read: 0, dead: false, forced };
                v.sectors.entry(s).or_insert_with(start).push(c);
            }
            v.writes.insert(id, Write { generation, runs, is_interval, begun, end: End::Open, seen: None });
        }
        id
    }

    pub fn end_write(&self, volume: VolumeId, write: Value, ok: bool) {
        let now = self.stamp();
        let mut volumes = self.volumes.borrow_mut();
        let Some(v) = volumes.get_mut(&volume) else { return };
        let Some(w) = v.writes.get_mut(&write) else { return };
        w.end = if ok { End::Done(now) } else { End::Failed(now) };
        let w = w.clone();
        if !ok {
            return;
        }
        self.writes.set(self.writes.get() + 1);
        if v.superseded(w.generation).is_some() {
            let text = format!("a write of generation {} succeeded after a newer one was ready", w.generation);
            self.world.violation(format!("volume {volume}: {text} (write {write})"));
        }
        for s in w.runs.iter().flat_map(Touched::sectors) {
            let Some(all) = v.sectors.get(&s) else { continue };
            let Some(mine) = all.iter().position(|c| c.write == write && c.forced.is_none()) else { continue };
            if all[mine].dead {
                let text = format!("volume {volume} sector {s}: {} was answered", v.name(&all[mine]));
                self.world.violation(format!("{text}, but a read has shown that it never happened"));
                return;
            }
            if self.check(volume, v, s, mine, "was answered") {
                return;
            }
        }
    }

    /// Judges the sectors of a snapshot: it is an instant between these two if nothing is missing that was answered
    /// before something was begun that is there, or before the snapshot was asked for; and nothing is there that was begun
    /// when it was complete.
    pub fn check_snapshot(&self, (asked, done): (Stamp, Stamp), values: &[(VolumeId, u64, Value)]) {
        let volumes = self.volumes.borrow();
        let mut missing: Option<(Stamp, String)> = None;
        let mut newest: Option<(Stamp, String)> = None;
        for (volume, sector, value) in values {
            let Some((v, all)) = volumes.get(volume).and_then(|v| Some((v, v.sectors.get(sector)?))) else { continue };
            let has_zeroes = all.iter().any(|c| c.write != 0 && c.zero);
            let own = v.writes.get(value);
            let name = |what: Value| format!("write {what} of volume {volume} sector {sector}");
            if let Some(w) = own.filter(|w| newest.as_ref().is_none_or(|n| w.begun > n.0)) {
                newest = Some((w.begun, name(*value)));
            }
            // Zeroes may be those of any write of zeroes; what was never answered may have happened at any time.
            let end = match (*value, own.map(|w| w.end)) {
                (0, _) if has_zeroes => continue,
                (0, _) => 0,
                // The beginning of a clone.
                (_, None) if all[0].write == *value => 0,
                (_, Some(End::Done(at))) => at,
                _ => continue,
            };
            // All that a shard had before it went on by force may be lost to what comes behind.
            let may_be_lost =
                |w: &Write| v.forced.iter().any(|(at, g, is_in)| *at < done && w.generation < *g && is_in(*sector));
            for c in all {
                let Some(w) = v.writes.get(&c.write).filter(|w| w.begun > end && !may_be_lost(w)) else { continue };
                if let End::Done(at) = w.end
                    && missing.as_ref().is_none_or(|m| at < m.0)
                {
                    missing = Some((at, name(c.write)));
                }
            }
        }
        if let Some((at, what)) = &missing
            && *at < asked
        {
            self.world.violation(format!("a snapshot lacks {what}, which was answered before it was asked for"));
        }
        if let Some((at, what)) = &newest
            && *at > done
        {
            self.world.violation(format!("a snapshot has {what}, which was begun when it was complete"));
        }
        if let (Some((end, old)), Some((begun, new))) = (&missing, &newest)
            && end < begun
        {
            self.world
                .violation(format!("a snapshot is no instant (S1): it has {new}, and lacks {old}, answered before"));
        }
        let mut of_volumes: BTreeMap<VolumeId, BTreeMap<u64, Value>> = BTreeMap::new();
        for (volume, sector, value) in values {
            of_volumes.entry(*volume).or_default().insert(*sector, *value);
        }
        for (volume, shown) in &of_volumes {
            let Some(v) = volumes.get(volume) else { continue };
            if let Some(why) = v.torn(shown) {
                self.world.violation(format!("a snapshot of volume {volume}: {why}"));
            }
        }
    }

    /// Judges what was read of the beginnings of clones: of each it is the instant that it was cloned of.
    pub fn check_clones(&self) {
        let mut clones = Vec::new();
        for v in self.volumes.borrow().values() {
            let Some((root, instant)) = v.origin else { continue };
            let known = v.sectors.iter().filter(|(_, all)| all[0].write != 0 || all[0].last_read > 0);
            clones.push((instant, known.map(|(s, all)| (root, *s, all[0].write)).collect::<Vec<_>>()));
        }
        clones.into_iter().for_each(|(instant, values)| self.check_snapshot(instant, &values));
    }

    /// True if something is wrong.
    fn check(&self, volume: VolumeId, v: &Volume, sector: u64, changed: usize, what: &str) -> bool {
        let Some(all) = v.sectors.get(&sector) else { return false };
        let Some(zone) = v.zone(&all[changed]) else { return false };
        let Some(other) = v.conflict(all, changed, zone) else { return false };
        let (a, b) = (v.name(&all[changed]), v.name(&all[other]));
        self.world.violation(format!("volume {volume} sector {sector}: {a} {what}, against {b}"));
        true
    }

    pub fn begin_read(&self, volume: VolumeId, generation: Generation) -> Reading {
        Reading { volume, generation, begun: self.stamp() }
    }

    /// A read returned these sectors.
    pub fn end_read(&self, reading: Reading, first: u64, values: &[Value]) {
        let now = self.stamp();
        let Reading { volume, generation, begun } = reading;
        let mut volumes = self.volumes.borrow_mut();
        let Some(v) = volumes.get_mut(&volume) else { return };
        if v.superseded(generation).is_some() {
            let text = format!("a read of generation {generation} succeeded after a newer one was ready");
            self.world.violation(format!("volume {volume}: {text} (sectors {first}+{})", values.len()));
            return;
        }
        let is_over = v.forced.iter().any(|(_, g, _)| *g > generation);
        if is_over || v.generations.range(generation.next()..).any(|(_, (asked, _))| *asked < now) {
            return;
        }
        self.reads.set(self.reads.get() + 1);
        for (s, value) in (first..).zip(values) {
            if !self.read_sector(v, reading, now, s, *value) {
                return;
            }
        }
        let mut groups: BTreeMap<u64, BTreeMap<u64, Value>> = BTreeMap::new();
        for (s, value) in (first..).zip(values) {
            groups.entry(s / v.group).or_default().insert(s, *value);
        }
        if let Some(why) = groups.values().find_map(|shown| v.torn(shown)) {
            self.world.violation(format!("volume {volume}, a read begun {begun}: {why}"));
        }
    }

    /// One sector of a read: false if it was wrong.
    fn read_sector(&self, v: &mut Volume, reading: Reading, now: Stamp, sector: u64, value: Value) -> bool {
        let Reading { volume, begun, .. } = reading;
        let place = format!("volume {volume} sector {sector}");
        if v.origin.is_some() {
            let first = &mut v.sectors.entry(sector).or_insert_with(|| vec![beginning()])[0];
            // The first read that shows what the snapshot had.
            if value != 0 && !v.writes.contains_key(&value) && (first.write, first.last_read) == (0, 0) {
                (first.write, first.zero) = (value, false);
            }
        }
        let Some(all) = v.sectors.get(&sector) else {
            if value != 0 {
                self.world.violation(format!("{place} was never written, and reads as write {value}"));
            }
            return value == 0;
        };
        let found = if value == 0 {
            match self.zero_candidates(v, all, begun, now).as_slice() {
                [] => {
                    let text: Vec<String> = all.iter().rev().take(6).map(|c| v.name(c)).collect();
                    self.world.violation(format!(
                        "{place} reads as zeroes (read {begun} to {now}), which nothing explains; newest: {text:#?}"
                    ));
                    return false;
                }
                [one] => Some(*one),
                _ => None,
            }
        } else {
            let found = all.iter().position(|c| c.write == value);
            if found.is_none() {
                self.world.violation(format!("{place} reads as write {value}, which never wrote there"));
                return false;
            }
            found
        };
        let Some(i) = found else { return true };
        if let Some(all) = v.sectors.get_mut(&sector) {
            let c = &mut all[i];
            c.seen = Some(c.seen.map_or(now, |s| s.min(now)));
            c.last_read = c.last_read.max(begun);
            if c.dead {
                let text = format!("{place}: {} is read", v.name(&v.sectors[&sector][i]));
                self.world.violation(format!("{text}, but an earlier read has shown that it never happened"));
                return false;
            }
            if let Some(w) = v.writes.get_mut(&c.write).filter(|w| w.is_interval && c.forced.is_none()) {
                w.seen = Some(w.seen.map_or(now, |s| s.min(now)));
            }
        }
        if self.check(volume, v, sector, i, &format!("is read ({begun} to {now})")) {
            return false;
        }
        self.bury(v, reading, sector, i)
    }

    /// Zeroing writes that a read of zeroes can have met.
    fn zero_candidates(&self, v: &Volume, all: &[Cluster], begun: Stamp, now: Stamp) -> Vec<usize> {
        let fits = |i: &usize| {
            let c = &all[*i];
            if c.dead || !c.zero {
                return false;
            }
            let read = Cluster {
                seen: Some(c.seen.map_or(now, |s| s.min(now))),
                last_read: c.last_read.max(begun),
                ..c.clone()
            };
            v.zone(&read).is_some_and(|z| v.conflict(all, *i, z).is_none())
        };
        (0..all.len()).filter(fits).collect()
    }

    /// A read that returned something older than a decided write shows that this write never happened there.
    fn bury(&self, v: &mut Volume, reading: Reading, sector: u64, read: usize) -> bool {
        let Some(all) = v.sectors.get(&sector) else { return true };
        let Some(zone) = v.zone(&all[read]) else { return true };
        let ready = v.generations.get(&reading.generation).and_then(|(_, r)| *r);
        let is_decided = |w: &Write| match w.end {
            End::Done(_) => false,
            End::Failed(at) if w.generation == reading.generation => at < reading.begun,
            _ => w.generation < reading.generation && ready.is_some_and(|t| t < reading.begun),
        };
        let dead: Vec<usize> = (0..all.len())
            .filter(|i| {
                let c = &all[*i];
                *i != read
                    && !c.dead
                    && c.seen.is_none()
                    && zone.f < c.begun
                    && !c.zero
                    && v.writes.get(&c.write).is_some_and(is_decided)
            })
            .collect();
        let group = v.group;
        for i in dead {
            let write = v.sectors[&sector][i].write;
            if let Some(all) = v.sectors.get_mut(&sector) {
                all[i].dead = true;
            }
            if let Some(other) = seen_in_group(v, write, sector, group) {
                let name = v.name(&v.sectors[&sector][i]);
                self.world.violation(format!(
                    "volume {} sector {sector}: {name} is torn: sector {other} has it, this one does not",
                    reading.volume
                ));
                return false;
            }
        }
        // The other way round: what is seen here must not be dead next to it.
        let write = v.sectors[&sector][read].write;
        if let Some(other) = dead_in_group(v, write, sector, group) {
            let name = v.name(&v.sectors[&sector][read]);
            self.world.violation(format!(
                "volume {} sector {sector}: {name} is torn: sector {other} does not have it, this one does",
                reading.volume
            ));
            return false;
        }
        true
    }

    /// Everything once more at the end, when all ends are known.
    pub fn check_all(&self) {
        let volumes = self.volumes.borrow();
        for (id, v) in volumes.iter() {
            for (sector, all) in &v.sectors {
                for (i, one) in all.iter().enumerate() {
                    if v.zone(one).is_some_and(Zone::is_forward) && self.check(*id, v, *sector, i, "ended up") {
                        return;
                    }
                }
            }
        }
    }
}

fn seen_in_group(v: &Volume, write: Value, sector: u64, group: u64) -> Option<u64> {
    let w = v.writes.get(&write)?;
    let is_seen = |c: &Cluster| c.write == write && c.seen.is_some() && !c.zero;
    let has_seen = |s: &u64| v.sectors.get(s).is_some_and(|all| all.iter().any(is_seen));
    w.update_around(sector, group).find(has_seen)
}

fn dead_in_group(v: &Volume, write: Value, sector: u64, group: u64) -> Option<u64> {
    let w = v.writes.get(&write).filter(|w| !matches!(w.end, End::Done(_)))?;
    let is_dead = |s: &u64| v.sectors.get(s).is_some_and(|all| all.iter().any(|c| c.write == write && c.dead));
    w.update_around(sector, group).find(is_dead)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const V: VolumeId = VolumeId(1);
    pub(super) const G1: Generation = Generation(1);
    pub(super) const G2: Generation = Generation(2);
    const G3: Generation = Generation(3);

    pub(super) fn with(test: impl FnOnce(&Oracle)) -> Vec<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let world = World::new(1, false);
            let oracle = Oracle::new(&world);
            oracle.add_volume(V, 1 << 20);
            oracle.attached(V, G1, 0);
            oracle.ready(V, G1);
            test(&oracle);
            oracle.check_all();
            world.take_violations()
        })
    }

    pub(super) fn write(o: &Oracle, first: u64, count: u64) -> Value {
        let w = o.begin_write(V, G1, first, count, false);
        o.end_write(V, w, true);
        w
    }

    pub(super) fn read(o: &Oracle, g: Generation, first: u64, values: &[Value]) {
        let r = o.begin_read(V, g);
        o.end_read(r, first, values);
    }

    pub(super) fn is_caught(word: &str, test: impl FnOnce(&Oracle)) {
        let found = with(test);
        assert!(found.iter().any(|v| v.contains(word)), "expected '{word}' in {found:?}");
    }

    #[test]
    fn what_a_good_disk_does_passes() {
        let found = with(|o| {
            read(o, G1, 0, &[0; 16]);
            let a = write(o, 0, 8);
            read(o, G1, 0, &[a; 8]);
            let b = o.begin_write(V, G1, 0, 8, false);
            let r = o.begin_read(V, G1);
            let c = o.begin_write(V, G1, 0, 8, false);
            o.end_read(r, 0, &[a; 8]);
            o.end_write(V, c, true);
            o.end_write(V, b, true);
            read(o, G1, 0, &[b; 8]);
            let z = o.begin_write(V, G1, 0, 4, true);
            o.end_write(V, z, true);
            read(o, G1, 0, &[0, 0, 0, 0, b, b, b, b]);
            // Unanswered, decided by the next attachment.
            let u = o.begin_write(V, G1, 0, 8, false);
            let w = o.begin_write(V, G1, 8, 8, false);
            o.attached(V, G2, o.stamp());
            o.ready(V, G2);
            read(o, G2, 0, &[u; 8]);
            read(o, G2, 8, &[0; 8]);
            read(o, G2, 8, &[0; 8]);
            let _ = w;
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_lost_write_is_caught() {
        is_caught("against", |o| {
            let a = write(o, 0, 8);
            write(o, 0, 8);
            read(o, G1, 0, &[a; 8]);
        });
        is_caught("nothing explains", |o| {
            write(o, 0, 8);
            read(o, G1, 0, &[0; 8]);
        });
    }

    #[test]
    fn an_undone_trim_is_caught() {
        is_caught("against", |o| {
            let a = write(o, 0, 8);
            let z = o.begin_write(V, G1, 0, 8, true);
            o.end_write(V, z, true);
            read(o, G1, 0, &[a; 8]);
        });
    }

    #[test]
    fn a_flip_flop_of_concurrent_writes_is_caught() {
        is_caught("against", |o| {
            let a = o.begin_write(V, G1, 0, 8, false);
            let b = o.begin_write(V, G1, 0, 8, false);
            read(o, G1, 0, &[a; 8]);
            read(o, G1, 0, &[b; 8]);
            read(o, G1, 0, &[a; 8]);
        });
    }

    #[test]
    fn an_unanswered_write_that_shows_up_after_the_first_read_is_caught() {
        for after in [false, true] {
            is_caught("", |o| {
                let a = write(o, 0, 8);
                let u = o.begin_write(V, G1, 0, 8, false);
                o.attached(V, G2, o.stamp());
                o.ready(V, G2);
                read(o, G2, 0, &[if after { u } else { a }; 8]);
                read(o, G2, 0, &[if after { a } else { u }; 8]);
            });
        }
    }

    #[test]
    fn a_failed_write_that_happens_after_a_read_is_caught() {
        is_caught("never happened", |o| {
            let a = write(o, 0, 8);
            let u = o.begin_write(V, G1, 0, 8, false);
            o.end_write(V, u, false);
            read(o, G1, 0, &[a; 8]);
            read(o, G1, 0, &[u; 8]);
        });
    }

    #[test]
    fn torn_blocks_and_updates_are_caught() {
        is_caught("torn", |o| {
            let a = o.begin_write(V, G1, 0, 8, false);
            let b = o.begin_write(V, G1, 0, 8, false);
            read(o, G1, 0, &[a, a, a, a, b, b, b, b]);
        });
        is_caught("torn", |o| {
            let a = o.begin_write(V, G1, 0, 8, false);
            read(o, G1, 0, &[a, a, a, a, 0, 0, 0, 0]);
        });
        is_caught("torn", |o| {
            let a = write(o, 0, 32);
            let u = o.begin_write(V, G1, 0, 32, false);
            o.attached(V, G2, o.stamp());
            o.ready(V, G2);
            read(o, G2, 0, &[a; 8]);
            read(o, G2, 16, &[u; 8]);
        });
    }

    #[test]
    fn a_write_of_a_fenced_generation_is_caught() {
        is_caught("newer one was ready", |o| {
            o.attached(V, G2, o.stamp());
            o.ready(V, G2);
            write(o, 0, 8);
        });
    }

    /// After force any of the older writes may be there; the one that is stays.
    #[test]
    fn after_force_one_of_the_older_writes_is_there_and_stays() {
        let forced = |o: &Oracle| {
            let (a, b) = (write(o, 0, 8), write(o, 0, 8));
            let c = o.begin_write(V, G1, 8, 8, false);
            o.forced(V, G2, |_| true);
            // An answer of before comes late.
            o.end_write(V, c, true);
            o.attached(V, G3, o.stamp());
            o.ready(V, G3);
            (a, b, c)
        };
        let found = with(|o| {
            let (a, _, _) = forced(o);
            read(o, G3, 0, &[a; 8]);
            read(o, G3, 0, &[a; 8]);
            read(o, G3, 8, &[0; 8]);
            let d = o.begin_write(V, G3, 0, 8, false);
            o.end_write(V, d, true);
            read(o, G3, 0, &[d; 8]);
        });
        assert_eq!(found, Vec::<String>::new());
        is_caught("against", |o| {
            let (a, b, _) = forced(o);
            read(o, G3, 0, &[a; 8]);
            read(o, G3, 0, &[b; 8]);
        });
        is_caught("", |o| {
            let (_, _, c) = forced(o);
            read(o, G3, 8, &[0; 8]);
            read(o, G3, 8, &[c; 8]);
        });
        is_caught("against", |o| {
            let (a, _, _) = forced(o);
            let d = o.begin_write(V, G3, 0, 8, false);
            o.end_write(V, d, true);
            read(o, G3, 0, &[a; 8]);
        });
        // Other shards lose nothing.
        is_caught("nothing explains", |o| {
            write(o, 0, 8);
            o.forced(V, G2, |s| s >= 8);
            o.attached(V, G3, o.stamp());
            o.ready(V, G3);
            read(o, G3, 0, &[0; 8]);
        });
    }

    /// A clone has what its snapshot had, until it is written to; and that is one instant.
    #[test]
    fn a_clone_begins_with_its_snapshot_and_goes_its_own_way() {
        const C: VolumeId = VolumeId(2);
        let cloned = |o: &Oracle| {
            let (a, b) = (write(o, 0, 8), write(o, 8, 8));
            let instant = (o.stamp(), o.stamp());
            let later = write(o, 0, 8);
            o.add_clone(C, 1 << 20, (V, instant));
            o.attached(C, G1, o.stamp());
            o.ready(C, G1);
            (a, b, later)
        };
        let of_clone = |o: &Oracle, first, values: &[Value]| o.end_read(o.begin_read(C, G1), first, values);
        let found = with(|o| {
            let (a, b, _) = cloned(o);
            of_clone(o, 0, &[a; 8]);
            let own = o.begin_write(C, G1, 0, 8, false);
            o.end_write(C, own, true);
            of_clone(o, 0, &[own; 8]);
            of_clone(o, 8, &[b; 8]);
            of_clone(o, 16, &[0; 8]);
            assert!(o.is_written(C, 0) && !o.is_written(C, 8));
            assert_eq!(o.sources(C), [C, V]);
            o.check_clones();
        });
        assert_eq!(found, Vec::<String>::new());
        is_caught("against", |o| {
            let (a, ..) = cloned(o);
            let own = o.begin_write(C, G1, 0, 8, false);
            o.end_write(C, own, true);
            of_clone(o, 0, &[a; 8]);
        });
        is_caught("never wrote there", |o| {
            let (a, _, later) = cloned(o);
            of_clone(o, 0, &[a; 8]);
            of_clone(o, 0, &[later; 8]);
        });
        is_caught("begun when it was complete", |o| {
            let (_, _, later) = cloned(o);
            of_clone(o, 0, &[later; 8]);
            o.check_clones();
        });
        is_caught("lacks", |o| {
            cloned(o);
            of_clone(o, 8, &[0; 8]);
            o.check_clones();
        });
    }

    #[test]
    fn a_lost_part_of_a_block_is_caught() {
        is_caught("against", |o| {
            let a = write(o, 0, 8);
            let s = write(o, 2, 1);
            read(o, G1, 0, &[a, a, a, a, a, a, a, a]);
            let _ = s;
        });
    }
}
