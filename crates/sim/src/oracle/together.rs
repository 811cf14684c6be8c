//! Sectors that change together: all those of one update. A picture of an instant, as a snapshot is one, or the part of a read
//! that one member answers at once, has all of an update or nothing of it.
//!
//! Of an update that shows somewhere in a picture all other sectors are looked at that belong to it: each has it, or
//! what can have come behind it. Something else came before if it was over when the update was begun, or if it touched a
//! sector itself where the update shows.
//!
//! Invariant: where a shard went on by force nothing is concluded from older writes.

use super::{Cluster, Oracle, Volume, Write};
use crate::content::Value;
use freebs_types::VolumeId;
use std::collections::{BTreeMap, BTreeSet};

impl Write {
    /// The sectors of it that are one update with this one: all of an interval; else those of its group.
    pub(super) fn update_around(&self, sector: u64, group: u64) -> impl Iterator<Item = u64> {
        let begin = sector / group * group;
        let all = if self.is_interval { 0..u64::MAX } else { begin..begin + group };
        self.runs.iter().flat_map(move |r| r.first.max(all.start)..(r.first + r.count).min(all.end))
    }

    fn is_one_update(&self, a: u64, b: u64, group: u64) -> bool {
        self.covers(a) && self.covers(b) && (self.is_interval || a / group == b / group)
    }
}

impl Oracle {
    /// An interval was answered as aborted: nobody ever sees anything of it.
    pub fn never(&self, volume: VolumeId, write: Value) {
        let mut volumes = self.volumes.borrow_mut();
        let Some(v) = volumes.get_mut(&volume) else { return };
        let Some(w) = v.writes.get(&write) else { return };
        if w.seen.is_some() {
            self.world.violation(format!("volume {volume}: write {write} was answered as aborted, and has been read"));
        }
        for c in v.sectors.values_mut().flatten().filter(|c| c.write == write) {
            c.dead = true;
        }
    }
}

impl Volume {
    /// Looks at a picture: sectors with what they have. The text says which update is torn.
    pub(super) fn torn(&self, picture: &BTreeMap<u64, Value>) -> Option<String> {
        // By update, the sectors that show it.
        let mut updates: BTreeMap<(Value, u64), Vec<u64>> = BTreeMap::new();
        for (sector, value) in picture {
            let Some(w) = self.writes.get(value) else { continue };
            let unit = if w.is_interval { 0 } else { sector / self.group };
            updates.entry((*value, unit)).or_default().push(*sector);
        }
        updates.iter().find_map(|((update, _), shown)| self.torn_update(picture, *update, shown))
    }

    fn torn_update(&self, picture: &BTreeMap<u64, Value>, update: Value, shown: &[u64]) -> Option<String> {
        let w = self.writes.get(&update)?;
        // Other updates that touch no sector where this one shows.
        let mut apart = BTreeSet::new();
        for sector in w.update_around(shown[0], self.group) {
            let Some(value) = picture.get(&sector).filter(|v| **v != update) else { continue };
            let Some(all) = self.sectors.get(&sector) else { continue };
            let Some(mine) = all.iter().find(|c| c.write == update) else { continue };
            if all.iter().any(|c| c.forced.is_some()) {
                continue;
            }
            let mut may_be_later = |c: &Cluster| {
                if self.zone(c).is_some_and(|z| z.f < mine.begun) {
                    return false;
                }
                let (Some(other), key) = (self.writes.get(&c.write), (c.write, sector / self.group)) else {
                    return true;
                };
                if apart.contains(&key) {
                    return true;
                }
                let is_apart = !shown.iter().any(|b| other.is_one_update(sector, *b, self.group));
                is_apart && apart.insert(key)
            };
            let fits = match *value {
                0 => {
                    all.iter().any(|c| c.zero && c.write == update)
                        || all.iter().filter(|c| c.zero).any(&mut may_be_later)
                }
                _ => all.iter().filter(|c| c.write == *value).any(&mut may_be_later),
            };
            if !fits {
                let (name, at) = (self.name(mine), shown[0]);
                return Some(format!(
                    "{name} is torn: sector {at} has it, sector {sector} has {value}, which is older"
                ));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::Touched;
    use super::super::tests::{G1, G2, V, is_caught, read, with, write};
    use super::super::{Oracle, Stamp};
    use crate::content::Value;

    fn run(first: u64, zero: bool) -> Touched {
        Touched { first, count: 8, zero }
    }

    /// Blocks 0 and 4000, and zeroes in block 1.
    fn begin(o: &Oracle) -> Value {
        o.begin_interval(V, G1, vec![run(0, false), run(8, true), run(4000 * 8, false)])
    }

    fn next_driver(o: &Oracle) {
        o.attached(V, G2, o.stamp());
        o.ready(V, G2);
    }

    fn snapshot(o: &Oracle, asked: Stamp, values: &[(u64, Value)]) {
        let sectors = values.iter().flat_map(|(first, value)| (*first..first + 8).map(|s| (V, s, *value)));
        o.check_snapshot((asked, o.stamp()), &sectors.collect::<Vec<_>>());
    }

    #[test]
    fn all_of_an_interval_or_nothing_passes() {
        let found = with(|o| {
            let (a, b, c) = (write(o, 0, 8), write(o, 8, 8), write(o, 4000 * 8, 8));
            let x = begin(o);
            let asked = o.stamp();
            next_driver(o);
            read(o, G2, 0, &[a; 8]);
            read(o, G2, 4000 * 8, &[c; 8]);
            snapshot(o, asked, &[(0, a), (8, b), (32000, c)]);
            let _ = x;
        });
        assert_eq!(found, Vec::<String>::new());
        let found = with(|o| {
            let (_, asked) = (write(o, 0, 8), o.stamp());
            let x = begin(o);
            // Beside it, and the driver says which came first by what it reads.
            let y = o.begin_write(V, G1, 8, 8, false);
            o.end_write(V, x, true);
            o.end_write(V, y, true);
            read(o, G1, 0, &[[x; 8], [y; 8]].concat());
            snapshot(o, asked, &[(0, x), (8, 0), (32000, x)]);
            snapshot(o, asked, &[(0, x), (8, y), (32000, x)]);
        });
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn half_of_an_unanswered_interval_is_caught() {
        // A read buries it that is followed by one of the other half, or has shown all of it.
        for (has_first, word) in [(false, "torn"), (true, "against")] {
            is_caught(word, |o| {
                let (a, c) = (write(o, 0, 8), write(o, 4000 * 8, 8));
                let x = begin(o);
                next_driver(o);
                read(o, G2, 0, &[if has_first { x } else { a }; 8]);
                read(o, G2, 4000 * 8, &[if has_first { c } else { x }; 8]);
            });
        }
        // The block that it was to make zeroes of has the old data.
        is_caught("against", |o| {
            let b = write(o, 8, 8);
            let x = begin(o);
            next_driver(o);
            read(o, G2, 0, &[[x; 8], [b; 8]].concat());
        });
        // Its other half is older by what was seen of it.
        is_caught("against", |o| {
            let b = write(o, 8, 8);
            let x = begin(o);
            read(o, G1, 0, &[x; 8]);
            read(o, G1, 8, &[b; 8]);
        });
    }

    #[test]
    fn a_picture_between_two_halves_is_caught() {
        is_caught("torn", |o| {
            let (_, asked, c) = (write(o, 0, 8), o.stamp(), write(o, 4000 * 8, 8));
            let x = begin(o);
            snapshot(o, asked, &[(0, x), (32000, c)]);
            o.end_write(V, x, true);
        });
        // Each is there where the other one is not.
        is_caught("torn", |o| {
            let asked = o.stamp();
            let (x, y) = (begin(o), begin(o));
            snapshot(o, asked, &[(0, x), (32000, y)]);
            o.end_write(V, x, true);
            o.end_write(V, y, true);
        });
        is_caught("torn", |o| {
            let asked = o.stamp();
            let x = begin(o);
            snapshot(o, asked, &[(0, 0), (32000, x)]);
            o.end_write(V, x, true);
        });
    }
}
