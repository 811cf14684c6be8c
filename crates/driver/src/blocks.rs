//! Who may touch which blocks of a shard, and who waits for whom (rule R3).
//!
//! Everything that reads or writes blocks enters here first, in order of arrival, and leaves when its outcome is
//! known. An entry waits for every earlier one, waiting or not, that it overlaps and conflicts with:
//!
//! - reads go together with reads, whole-block writes with whole-block writes;
//! - a read and a write exclude each other. The read waits for the write because of R3; the write waits for the
//!   read because a member could otherwise show data that are not committed yet and may still be lost;
//! - a block that a write covers in part is read, changed and written: that is exclusive, against writes too;
//! - blocks of an interval over several shards are its own alone: once they are prepared nothing else is ordered there;
//! - a write that was given up stays, *stuck*, and excludes everything until its fate is known. That holds for
//!   later writes too: a copy of the old request that turns up late must not land on top of a newer write.
//!
//! Invariants: an entry waits only for earlier ones, so there is no deadlock; later ones wait for it even while it
//! waits, so nobody starves; what is not stuck and has waited for all is granted at once.

use crate::slab::{Key, Slab};
use freebs_types::BlockRange;
use std::collections::BTreeSet;

/// How blocks are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    /// `first` and `last`: that block is covered only in part.
    Write {
        first: bool,
        last: bool,
    },
    /// Nobody else uses them: they are prepared (I2).
    Alone,
}

/// Rules that a test may turn off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lenient {
    pub reads: bool,
    pub updates: bool,
}

struct Entry {
    range: BlockRange,
    how: Use,
    stuck: bool,
    /// Earlier entries that this one waits for.
    blockers: u32,
    /// Later entries that wait for this one.
    dependents: Vec<Key>,
    owner: Key,
}

/// Lengths are put into classes by powers of two, so that a search looks back no further than its class is long.
const CLASSES: usize = 30;

pub(crate) struct Blocks {
    entries: Slab<Entry>,
    /// (class, first block, entry).
    index: BTreeSet<(u8, u32, Key)>,
    counts: [u32; CLASSES],
    lenient: Lenient,
}

fn class(len: u32) -> u8 {
    len.next_power_of_two().trailing_zeros() as u8
}

impl Entry {
    fn partial(&self) -> impl Iterator<Item = BlockRange> + use<> {
        let (first, last) = match self.how {
            Use::Read | Use::Alone => (false, false),
            Use::Write { first, last } => (first, last),
        };
        let range = self.range;
        let one = move |wanted: bool, at: u32| wanted.then_some(BlockRange::new(at, 1));
        one(first, range.start.0).into_iter().chain(one(last, range.start.0 + (range.len - 1)))
    }

    fn conflicts(&self, other: &Self, lenient: Lenient) -> bool {
        if !self.range.overlaps(other.range) {
            return false;
        }
        if self.stuck || other.stuck {
            return true;
        }
        match (self.how, other.how) {
            (Use::Alone, _) | (_, Use::Alone) => true,
            (Use::Read, Use::Read) => false,
            (Use::Write { .. }, Use::Write { .. }) => {
                !lenient.updates
                    && (self.partial().any(|r| r.overlaps(other.range))
                        || other.partial().any(|r| r.overlaps(self.range)))
            }
            _ => !lenient.reads,
        }
    }
}

impl Blocks {
    pub fn new(lenient: Lenient) -> Self {
        Self { entries: Slab::new(), index: BTreeSet::new(), counts: [0; CLASSES], lenient }
    }

    /// Enters a range, which must not be empty. Returns the ticket, and whether it is granted already.
    pub fn enter(&mut self, range: BlockRange, how: Use, owner: Key) -> (Key, bool) {
        assert!(range.len > 0, "somebody uses no block");
        let entry = Entry { range, how, stuck: false, blockers: 0, dependents: Vec::new(), owner };
        let mut blockers = Vec::new();
        for c in (0..CLASSES as u8).filter(|c| self.counts[usize::from(*c)] > 0) {
            let from = range.start.0.saturating_sub((1u32 << c) - 1);
            let to = u32::try_from(range.end()).unwrap_or(u32::MAX);
            for (_, _, key) in self.index.range((c, from, Key::MIN)..(c, to, Key::MIN)) {
                if self.entries.get(*key).is_some_and(|e| entry.conflicts(e, self.lenient)) {
                    blockers.push(*key);
                }
            }
        }
        let count = blockers.len() as u32;
        let ticket = self.entries.insert(Entry { blockers: count, ..entry });
        for key in blockers {
            self.entries.get_mut(key).expect("was just found").dependents.push(ticket);
        }
        let c = class(range.len);
        self.counts[usize::from(c)] += 1;
        self.index.insert((c, range.start.0, ticket));
        (ticket, count == 0)
    }

    /// Leaves; the owners of entries that are granted by that are added to `granted`, in order of arrival.
    pub fn leave(&mut self, ticket: Key, granted: &mut impl Extend<Key>) {
        let Some(entry) = self.entries.remove(ticket) else { return };
        let c = class(entry.range.len);
        self.counts[usize::from(c)] -= 1;
        self.index.remove(&(c, entry.range.start.0, ticket));
        for key in entry.dependents {
            // An entry that has left meanwhile is not found any more.
            let Some(dependent) = self.entries.get_mut(key) else { continue };
            dependent.blockers -= 1;
            if dependent.blockers == 0 {
                granted.extend([dependent.owner]);
            }
        }
    }

    /// From now on everything that comes waits for this entry.
    pub fn stick(&mut self, ticket: Key) {
        if let Some(entry) = self.entries.get_mut(ticket) {
            entry.stuck = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: Use = Use::Write { first: false, last: false };
    const PART: Use = Use::Write { first: true, last: false };

    fn owners(n: usize) -> Vec<Key> {
        let mut slab = Slab::new();
        (0..n).map(|_| slab.insert(())).collect()
    }

    #[test]
    fn reads_wait_for_writes_and_keep_their_place() {
        let mut blocks = Blocks::new(Lenient::default());
        let o = owners(4);
        let at = BlockRange::new(8, 4);
        let (write, granted) = blocks.enter(at, WHOLE, o[0]);
        assert!(granted);
        let (_read, granted) = blocks.enter(BlockRange::new(11, 4), Use::Read, o[1]);
        assert!(!granted, "R3");
        assert!(!blocks.enter(at, WHOLE, o[2]).1, "the read is not overtaken");
        assert!(blocks.enter(BlockRange::new(0, 8), WHOLE, o[3]).1);
        let mut free = Vec::new();
        blocks.leave(write, &mut free);
        assert_eq!(free, [o[1]]);
    }

    #[test]
    fn partial_blocks_are_exclusive_and_the_middle_is_not() {
        let mut blocks = Blocks::new(Lenient::default());
        let o = owners(4);
        assert!(blocks.enter(BlockRange::new(0, 4), Use::Write { first: true, last: true }, o[0]).1);
        assert!(blocks.enter(BlockRange::new(1, 2), WHOLE, o[1]).1);
        assert!(!blocks.enter(BlockRange::new(3, 2), WHOLE, o[2]).1);
        assert!(!blocks.enter(BlockRange::new(2, 1), PART, o[3]).1);
    }

    #[test]
    fn what_was_given_up_blocks_writes_too() {
        let mut blocks = Blocks::new(Lenient::default());
        let o = owners(3);
        let (old, _) = blocks.enter(BlockRange::new(5, 1), WHOLE, o[0]);
        blocks.stick(old);
        assert!(!blocks.enter(BlockRange::new(5, 1), WHOLE, o[1]).1);
        let mut free = Vec::new();
        blocks.leave(old, &mut free);
        assert_eq!(free, [o[1]]);
    }

    fn usage() -> impl Strategy<Value = Use> {
        prop_oneof![
            Just(Use::Read),
            Just(Use::Alone),
            (any::<bool>(), any::<bool>()).prop_map(|(first, last)| Use::Write { first, last })
        ]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter(u32, u32, Use),
        Leave(usize),
        Stick(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u32..40, 1u32..20, usage()).prop_map(|(a, n, u)| Step::Enter(a, n, u)),
            3 => any::<prop::sample::Index>().prop_map(|i| Step::Leave(i.index(1 << 20))),
            1 => any::<prop::sample::Index>().prop_map(|i| Step::Stick(i.index(1 << 20))),
        ]
    }

    /// The naive model: all entries in order of arrival, each block looked at by itself.
    struct Naive {
        ticket: Key,
        owner: Key,
        range: BlockRange,
        how: Use,
        waits: Vec<Key>,
        stuck: bool,
    }

    impl Naive {
        fn mode(&self, block: u32) -> Option<u8> {
            if !self.range.overlaps(BlockRange::new(block, 1)) {
                return None;
            }
            let last_block = (self.range.end() - 1) as u32;
            Some(match self.how {
                _ if self.stuck => 2,
                Use::Alone => 2,
                Use::Read => 0,
                Use::Write { first, last }
                    if (first && block == self.range.start.0) || (last && block == last_block) =>
                {
                    2
                }
                Use::Write { .. } => 1,
            })
        }
    }

    proptest! {
        #[test]
        fn agrees_with_looking_at_every_block(steps in prop::collection::vec(step(), 1..80)) {
            let mut blocks = Blocks::new(Lenient::default());
            let mut all: Vec<Naive> = Vec::new();
            let keys = owners(100);
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Enter(start, len, how) => {
                        let range = BlockRange::new(start, len);
                        let (ticket, granted) = blocks.enter(range, how, keys[n]);
                        let mut new = Naive { ticket, owner: keys[n], range, how, waits: vec![], stuck: false };
                        new.waits = all
                            .iter()
                            .filter(|e| (0..64).any(|b| match (e.mode(b), new.mode(b)) {
                                (Some(x), Some(y)) => x != y || x == 2,
                                _ => false,
                            }))
                            .map(|e| e.ticket)
                            .collect();
                        prop_assert_eq!(granted, new.waits.is_empty());
                        all.push(new);
                    }
                    Step::Leave(i) if !all.is_empty() => {
                        let gone = all.remove(i % all.len());
                        let mut wanted = Vec::new();
                        for e in &mut all {
                            if e.waits.contains(&gone.ticket) {
                                e.waits.retain(|w| *w != gone.ticket);
                                if e.waits.is_empty() { wanted.push(e.owner) }
                            }
                        }
                        let mut granted = Vec::new();
                        blocks.leave(gone.ticket, &mut granted);
                        prop_assert_eq!(granted, wanted);
                    }
                    Step::Stick(i) if !all.is_empty() => {
                        let i = i % all.len();
                        if all[i].waits.is_empty() && all[i].how != Use::Read {
                            all[i].stuck = true;
                            blocks.stick(all[i].ticket);
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}
