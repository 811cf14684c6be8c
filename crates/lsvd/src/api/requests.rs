//! The table of request numbers (rule W3): which requests of which driver are in the log, and where.
//!
//! Invariants: it is a function of the log; entries lie at or above their driver's floor; there are at most
//! `DRIVERS_MAX` drivers and `ENTRIES_MAX` entries (the drivers heard of longest ago go first), so that the table
//! always fits a mark.

use freebs_format::{RequestEntry, RequestFloor, Requests};
use freebs_types::{DriverId, RequestNumber, Sequence, limits};
use std::collections::BTreeMap;

/// Drivers that a shard remembers.
pub const DRIVERS_MAX: usize = 64;
/// Entries of all drivers of a shard: 192 KiB in a mark.
pub const ENTRIES_MAX: usize = 8192;

/// What the table knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The driver has said that it has the answer.
    Below,
    /// Ordered in this frame.
    At(Sequence),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Driver {
    floor: RequestNumber,
    entries: BTreeMap<RequestNumber, Sequence>,
    /// Sequence of its newest request.
    used: Sequence,
}

/// Floors and entries of the drivers of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTable {
    drivers: BTreeMap<DriverId, Driver>,
    entries: usize,
}

impl RequestTable {
    /// Notes that a request was ordered in frame `sequence`. Frames come in order.
    pub fn apply(&mut self, driver: DriverId, number: RequestNumber, lowest_open: RequestNumber, sequence: Sequence) {
        if driver.0 == 0 {
            return;
        }
        let d = self.drivers.entry(driver).or_default();
        d.used = d.used.max(sequence);
        if lowest_open > d.floor {
            d.floor = lowest_open;
            let kept = d.entries.split_off(&lowest_open);
            self.entries -= d.entries.len();
            d.entries = kept;
        }
        if number >= d.floor && d.entries.insert(number, sequence).is_none() {
            self.entries += 1;
            if d.entries.len() > limits::DRIVER_REQUESTS_MAX {
                let (first, _) = d.entries.pop_first().expect("not empty");
                d.floor = first.next();
                self.entries -= 1;
            }
        }
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.drivers.len() > DRIVERS_MAX || self.entries > ENTRIES_MAX {
            let oldest = self.drivers.iter().min_by_key(|(id, d)| (d.used, **id)).map(|(id, _)| *id);
            let Some(gone) = oldest.and_then(|id| self.drivers.remove(&id)) else { return };
            self.entries -= gone.entries.len();
        }
        assert!(self.drivers.len() <= DRIVERS_MAX && self.entries <= ENTRIES_MAX, "the table fits a mark");
    }

    /// What is known of a request; `None` if it was never ordered.
    #[must_use]
    pub fn lookup(&self, driver: DriverId, number: RequestNumber) -> Option<Seen> {
        let d = self.drivers.get(&driver)?;
        if number < d.floor {
            return Some(Seen::Below);
        }
        d.entries.get(&number).map(|s| Seen::At(*s))
    }

    /// Takes back what frames behind `to` brought. Floors stay: the driver has said that it asks no more below.
    pub fn cut(&mut self, to: Sequence) {
        let mut left = 0;
        self.drivers.retain(|_, d| {
            d.entries.retain(|_, s| *s <= to);
            d.used = d.used.min(to);
            left += d.entries.len();
            !d.entries.is_empty() || d.floor.0 > 0
        });
        assert!(left <= self.entries, "a cut brings nothing");
        self.entries = left;
    }

    /// Requests that are remembered, of all drivers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries
    }
    /// True if no driver is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.drivers.is_empty()
    }
    /// Bytes that the table takes in a mark.
    #[must_use]
    pub(crate) fn encoded_len(&self) -> usize {
        self.drivers.len() * 16 + self.entries * 24
    }

    /// The table as a mark carries it.
    #[must_use]
    pub fn to_format(&self) -> Requests {
        let floors = self.drivers.iter().map(|(id, d)| RequestFloor { driver: *id, lowest_open: d.floor }).collect();
        let entries = self
            .drivers
            .iter()
            .flat_map(|(id, d)| d.entries.iter().map(|(n, s)| RequestEntry { driver: *id, number: *n, sequence: *s }))
            .collect();
        Requests { floors, entries }
    }

    /// Adds what another table of the same log knows.
    pub fn merge(&mut self, r: &Requests) {
        for f in &r.floors {
            let d = self.drivers.entry(f.driver).or_default();
            if f.lowest_open > d.floor {
                d.floor = f.lowest_open;
                let kept = d.entries.split_off(&f.lowest_open);
                self.entries -= d.entries.len();
                d.entries = kept;
            }
        }
        for e in &r.entries {
            let known = self.drivers.get(&e.driver).is_some_and(|d| d.entries.contains_key(&e.number));
            if !known {
                self.apply(e.driver, e.number, RequestNumber(0), e.sequence);
            }
        }
        self.shrink();
    }

    /// The table that these bytes carried, held to the maxima.
    #[must_use]
    pub fn from_format(r: &Requests) -> Self {
        let mut t = Self::default();
        let mut entries: Vec<&RequestEntry> = r.entries.iter().collect();
        entries.sort_by_key(|e| (e.sequence, e.driver, e.number));
        for f in &r.floors {
            t.drivers.entry(f.driver).or_default().floor = f.lowest_open;
        }
        for e in entries {
            t.apply(e.driver, e.number, RequestNumber(0), e.sequence);
        }
        t.shrink();
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(t: &mut RequestTable, d: u64, n: u64, low: u64, s: u64) {
        t.apply(DriverId(d), RequestNumber(n), RequestNumber(low), Sequence(s));
    }
    fn look(t: &RequestTable, d: u64, n: u64) -> Option<Seen> {
        t.lookup(DriverId(d), RequestNumber(n))
    }

    #[test]
    fn repeats_are_found_until_the_driver_has_its_answer() {
        let mut t = RequestTable::default();
        apply(&mut t, 7, 1, 1, 10);
        apply(&mut t, 7, 2, 1, 11);
        assert_eq!(look(&t, 7, 1), Some(Seen::At(Sequence(10))));
        assert_eq!(look(&t, 7, 3), None);
        assert_eq!(look(&t, 8, 1), None);
        apply(&mut t, 7, 3, 2, 12);
        assert_eq!(look(&t, 7, 1), Some(Seen::Below));
        assert_eq!(RequestTable::from_format(&t.to_format()), t);
        t.cut(Sequence(11));
        assert_eq!(look(&t, 7, 3), None, "a request that was cut is unknown again");
        assert_eq!(look(&t, 7, 2), Some(Seen::At(Sequence(11))));
        assert_eq!(t.len(), 1);
    }

    #[test]
    fn stays_within_its_maxima_and_drops_the_oldest_driver() {
        let mut t = RequestTable::default();
        for d in 1..=100 {
            for n in 1..=200 {
                apply(&mut t, d, n, 1, d * 1000 + n);
            }
            assert!(t.len() <= ENTRIES_MAX);
        }
        assert_eq!(look(&t, 1, 1), None);
        assert_eq!(look(&t, 100, 200), Some(Seen::At(Sequence(100_200))));
        for n in 1..=5000 {
            apply(&mut t, 200, n, 1, 200_000 + n);
        }
        assert_eq!(look(&t, 200, 1), Some(Seen::Below));
        assert_eq!(t.to_format().entries.iter().filter(|e| e.driver.0 == 200).count(), limits::DRIVER_REQUESTS_MAX);
    }
}
