//! What a client may see, per sector of 512 bytes.
//!
//! Every write fills its sectors with its own number and their addresses, so what a read returns names the write it
//! comes from. At the end the history of each sector is held against an atomic register, exactly: the operations of
//! one value span a zone from the earliest end to the latest start; a history is linearizable if no two forward
//! zones overlap and no backward zone lies inside a forward one (Gibbons and Korach, "Testing shared memories",
//! 1997). Zeroes come from many operations, so a read of zeroes is a zone of its own, and is held besides against
//! the writes it must have missed.
//!
//! A write that failed may have happened or not. The first operation that began after its failure was told, and
//! succeeded, finds its fate fixed: what happens, happens before it.

use std::collections::{BTreeMap, BTreeSet};

pub const SECTOR: usize = 512;
const NEVER: u64 = u64::MAX;

/// 0 is zeroes.
pub type Value = u64;

#[derive(Clone, Copy, Debug)]
struct Write {
    value: Value,
    start: u64,
    /// `NEVER` if it failed, and when that was told.
    end: u64,
    failed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Read {
    value: Value,
    start: u64,
    end: u64,
}

#[derive(Default)]
struct History {
    writes: Vec<Write>,
    reads: Vec<Read>,
}

/// A write under way.
pub struct Pending {
    value: Value,
    first: u64,
    sectors: u64,
    start: u64,
}

#[derive(Default)]
pub struct Oracle {
    clock: u64,
    sectors: BTreeMap<u64, History>,
    /// Sectors of each value, to find torn blocks.
    covers: BTreeMap<Value, (u64, u64)>,
    next_value: Value,
    pub errors: Vec<String>,
    pub reads: u64,
    pub writes: u64,
    pub failed: u64,
}

/// The bytes of a sector that was written with a value.
fn pattern(value: Value, sector: u64) -> [u8; 16] {
    let mut out = [0; 16];
    if value != 0 {
        out[..8].copy_from_slice(&(value << 20 | 0xfee).to_le_bytes());
        out[8..].copy_from_slice(&(sector + 1).to_le_bytes());
    }
    out
}

impl Oracle {
    pub fn tick(&mut self) -> u64 {
        // Odd times stay free for what lies just before something.
        self.clock += 2;
        self.clock
    }

    /// A write of new bytes, or of zeroes.
    pub fn write(&mut self, offset: u64, len: u64, zero: bool) -> (Pending, Vec<u8>) {
        self.next_value += 1;
        let value = if zero { 0 } else { self.next_value };
        let first = offset / SECTOR as u64;
        let sectors = len / SECTOR as u64;
        if !zero {
            self.covers.insert(value, (first, first + sectors));
        }
        let data = (first..first + sectors).flat_map(|s| pattern(value, s).repeat(SECTOR / 16)).collect();
        (Pending { value, first, sectors, start: self.tick() }, data)
    }

    pub fn wrote(&mut self, p: &Pending, ok: bool) {
        let now = self.tick();
        if ok {
            self.writes += 1
        } else {
            self.failed += 1
        }
        let (end, failed) = if ok { (now, NEVER) } else { (NEVER, now) };
        for s in p.first..p.first + p.sectors {
            let history = self.sectors.entry(s).or_default();
            history.writes.push(Write { value: p.value, start: p.start, end, failed });
        }
    }

    /// A read that began at `start` has brought these bytes.
    pub fn read(&mut self, offset: u64, start: u64, data: &[u8]) {
        let end = self.tick();
        self.reads += 1;
        let first = offset / SECTOR as u64;
        let mut values = Vec::new();
        for (i, bytes) in data.chunks_exact(SECTOR).enumerate() {
            let sector = first + i as u64;
            let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            let value = word >> 20;
            let wanted = pattern(value, sector);
            if (value == 0 && word != 0) || !bytes.chunks_exact(16).all(|c| c == wanted) {
                self.errors.push(format!("sector {sector}: bytes that nobody wrote: {:?}", &bytes[..16]));
                return;
            }
            self.sectors.entry(sector).or_default().reads.push(Read { value, start, end });
            values.push((sector, value));
        }
        self.torn(&values);
    }

    /// Sectors that are known to read as zeroes.
    pub fn zeroes(&mut self, offset: u64, len: u64, start: u64) {
        let end = self.tick();
        for sector in offset.div_ceil(SECTOR as u64)..(offset + len) / SECTOR as u64 {
            self.sectors.entry(sector).or_default().reads.push(Read { value: 0, start, end });
        }
    }

    /// Two writes that both cover two sectors of a block must not share them.
    fn torn(&mut self, values: &[(u64, Value)]) {
        for (i, (s1, v1)) in values.iter().enumerate() {
            for (s2, v2) in values[i + 1..].iter().take_while(|(s2, _)| s1 / 8 == s2 / 8) {
                let covers = |v: &Value, s: &u64| self.covers.get(v).is_some_and(|(a, b)| (a..b).contains(&s));
                if v1 != v2 && covers(v1, s2) && covers(v2, s1) {
                    self.errors.push(format!("block {}: torn between writes {v1} and {v2}", s1 / 8));
                    return;
                }
            }
        }
    }

    pub fn check(&mut self) {
        let sectors = std::mem::take(&mut self.sectors);
        for (sector, mut history) in sectors {
            history.settle();
            if let Some(error) = history.visible().or_else(|| history.zones()) {
                self.errors.push(format!("sector {sector}: {error}"));
            }
        }
    }
}

impl History {
    /// Fixes the fate of failed writes, and drops those that nobody has seen.
    fn settle(&mut self) {
        let ended = self.writes.iter().filter(|w| w.end != NEVER).map(|w| w.start);
        let all: Vec<_> = ended.chain(self.reads.iter().map(|r| r.start)).collect();
        let seen: BTreeSet<_> = self.reads.iter().map(|r| r.value).collect();
        self.writes.retain(|w| w.end != NEVER || seen.contains(&w.value));
        for w in self.writes.iter_mut().filter(|w| w.end == NEVER) {
            let after = all.iter().filter(|start| **start > w.failed).map(|start| start - 1).min();
            // A write of zeroes can't be told from another one, so it keeps its freedom.
            w.end = if w.value == 0 { NEVER } else { after.unwrap_or(NEVER) };
        }
        // What was seen has happened.
        for w in self.writes.iter_mut().filter(|w| w.value != 0) {
            let seen = self.reads.iter().filter(|r| r.value == w.value).map(|r| r.end).min();
            w.end = w.end.min(seen.unwrap_or(NEVER));
        }
    }

    /// Each read returns something that was written before it ended and not overwritten before it began.
    fn visible(&self) -> Option<String> {
        for r in &self.reads {
            let fits =
                |start: u64, end: u64| start < r.end && !self.writes.iter().any(|o| end < o.start && o.end < r.start);
            let initial = r.value == 0 && fits(0, 0);
            if !initial && !self.writes.iter().any(|w| w.value == r.value && fits(w.start, w.end)) {
                return Some(format!("{r:?} returns what was overwritten, or was never written: {:?}", self.writes));
            }
        }
        None
    }

    fn zones(&self) -> Option<String> {
        // Per value: earliest end and latest start.
        let mut values: BTreeMap<Value, (u64, u64)> = BTreeMap::new();
        let mut backward: Vec<(u64, u64, Value)> = Vec::new();
        let ops = self.writes.iter().map(|w| (w.value, w.start, w.end));
        for (value, start, end) in ops.chain(self.reads.iter().map(|r| (r.value, r.start, r.end))) {
            if value == 0 {
                backward.push((start, end, 0));
            } else {
                let zone = values.entry(value).or_insert((NEVER, 0));
                *zone = (zone.0.min(end), zone.1.max(start));
            }
        }
        let mut forward = Vec::new();
        for (value, (end, start)) in values {
            if end < start { forward.push((end, start, value)) } else { backward.push((start, end, value)) }
        }
        forward.sort_unstable();
        for pair in forward.windows(2) {
            if pair[1].0 < pair[0].1 {
                return Some(format!("values {} and {} take turns: {pair:?}", pair[0].2, pair[1].2));
            }
        }
        for b in &backward {
            if let Some(f) = forward.iter().find(|f| f.0 < b.0 && b.1 < f.1) {
                return Some(format!("value {} comes back after {}: {f:?} around {b:?}", f.2, b.2));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ops: &[(&str, u64, u64, u64)]) -> bool {
        let mut history = History::default();
        for (what, value, start, end) in ops.iter().copied() {
            match what {
                "w" => history.writes.push(Write { value, start, end, failed: NEVER }),
                "f" => history.writes.push(Write { value, start, end: NEVER, failed: end }),
                _ => history.reads.push(Read { value, start, end }),
            }
        }
        history.settle();
        history.visible().or_else(|| history.zones()).is_none()
    }

    #[test]
    fn the_oracle_knows_right_from_wrong() {
        assert!(run(&[("r", 0, 1, 2), ("w", 1, 3, 6), ("r", 0, 4, 5), ("r", 1, 7, 8)]));
        assert!(!run(&[("w", 1, 1, 2), ("r", 0, 3, 4)]), "a lost write");
        assert!(!run(&[("w", 1, 1, 2), ("w", 2, 3, 4), ("r", 1, 5, 6)]), "a stale read");
        assert!(run(&[("w", 1, 1, 10), ("w", 2, 2, 9), ("r", 2, 3, 4), ("r", 1, 5, 6)]));
        assert!(!run(&[("w", 1, 1, 10), ("w", 2, 2, 9), ("r", 2, 3, 4), ("r", 1, 5, 6), ("r", 2, 7, 8)]), "a flip");
        assert!(!run(&[("w", 1, 1, 9), ("r", 1, 2, 3), ("r", 0, 4, 5)]), "new, then old again");
        assert!(run(&[("f", 1, 1, 2), ("r", 1, 3, 4), ("r", 1, 5, 6)]), "a failed write may have happened");
        assert!(!run(&[("f", 1, 1, 2), ("r", 0, 3, 4), ("r", 1, 5, 6)]), "but not later");
        assert!(!run(&[("f", 1, 1, 2), ("w", 2, 3, 4), ("r", 1, 5, 6)]), "nor on top of a newer one");
        assert!(!run(&[("r", 7, 1, 2)]), "out of nothing");
    }
}
