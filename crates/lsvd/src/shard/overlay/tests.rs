//! Entries that are held above the map, until no frame writes their blocks.

use super::*;
use freebs_types::Version;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn zero(home: u32) -> Extent {
    Extent {
        len: 3,
        kind: ExtentKind::Zero,
        version: Version(8),
        sequence: Sequence(10),
        chunk: ChunkId::default(),
        offset: home,
        crcs: Crcs::None,
    }
}

fn frame(sequence: u64, entries: Vec<(u32, Extent)>) -> Uncommitted {
    Uncommitted { sequence: Sequence(sequence), before: Tip::default(), pins: Vec::new(), entries, append: sequence }
}

/// A zero was learned ahead of its frame, then the frame came and was committed while others were not. The learned
/// one went on being held, where nothing above it told so: the record of it was carried to another segment again
/// and again, for the held one stood where it had been, and the writer never did anything else.
#[test]
fn what_came_ahead_of_its_frame_is_not_held_behind_it() {
    let mut o = Overlay::default();
    o.hold(77, zero(1), Some(5));
    o.put(frame(10, vec![(77, zero(2))]));
    o.put(frame(11, Vec::new()));
    let done = o.commit(Sequence(10)).unwrap();
    assert_eq!((done.entries.len(), done.covered.len(), done.again.len()), (1, 0, 1));
    assert_eq!((done.again[0].0, done.again[0].1.len), (77, 3));
    assert!(o.map.range(77, 80).next().is_none());
    assert_eq!(o.held().count(), 0);
}

/// The parts that the frame does not write go on being held, and so do those that another one writes.
#[test]
fn only_what_no_frame_writes_any_more_is_let_go() {
    let newer = |len| Extent { sequence: Sequence(11), version: Version(9), ..zero(2) }.piece(0, len);
    let mut o = Overlay::default();
    o.put(frame(9, vec![(77, Extent { sequence: Sequence(9), version: Version(7), ..zero(2) })]));
    o.put(frame(11, vec![(79, newer(2))]));
    o.hold(77, zero(1), Some(5));
    o.hold(80, zero(1).piece(0, 1), Some(6));
    o.check();
    let done = o.commit(Sequence(9)).unwrap();
    let again: Vec<_> = done.again.iter().map(|(a, e)| (*a, e.len)).collect();
    assert_eq!((again, done.covered.len()), (vec![(77, 3)], 0), "all that is newer than the frame goes down");
    assert_eq!(o.held().map(|(a, e)| (a, e.len)).collect::<Vec<_>>(), [(79, 1), (80, 1)]);
    assert_eq!(o.map.range(0, 100).map(|(a, e, _, len)| (a, len, e.sequence.0)).collect::<Vec<_>>(), [(79, 2, 11)]);
    // A cut brings back what the frame had covered, and lets go of it.
    assert!(o.cut(Sequence(10)).is_some());
    assert_eq!(o.rebuild().iter().map(|(a, e)| (*a, e.len)).collect::<Vec<_>>(), [(79, 1), (80, 1)]);
    assert!(o.held().next().is_none() && o.map.is_empty());
}

/// An entry that was recorded again while it was held was held twice, and the first record was the one that counted.
#[test]
fn the_last_record_of_what_is_held_counts() {
    let mut o = Overlay::default();
    o.put(frame(11, vec![(70, Extent { sequence: Sequence(11), version: Version(9), ..zero(4) }.piece(0, 3))]));
    o.hold(70, zero(1), Some(5));
    o.hold(70, zero(2), Some(7));
    o.hold(71, zero(3).piece(0, 1), Some(8));
    let list =
        |o: &Overlay| o.held.iter().map(|(a, h)| (a, h.extent.len, h.extent.offset, h.append)).collect::<Vec<_>>();
    assert_eq!(list(&o), [(70, 1, 2, 7), (71, 1, 3, 8), (72, 1, 2, 7)]);
    // An entry that is said to be in the map below is held only: it is not there before a checkpoint has it from the log.
    o.hold(72, zero(2).piece(0, 1), None);
    assert_eq!(list(&o), [(70, 1, 2, 7), (71, 1, 3, 8), (72, 1, 2, 7)]);
    let done = o.commit(Sequence(11)).unwrap();
    let mut covered: Vec<_> = done.covered.iter().map(|(a, e, by)| (*a, e.len, e.offset, by.0)).collect();
    covered.sort_unstable();
    assert_eq!(covered, [(70, 1, 2, 9), (71, 1, 3, 9), (72, 1, 2, 9)]);
}

/// An event of an overlay, with numbers that are brought into their ranges when it does.
#[derive(Clone, Debug)]
enum Step {
    /// The next frame, with these extents.
    Put(Vec<(u32, u32)>),
    /// A committed entry of the frame that is so many before the last one, or behind it.
    Hold {
        start: u32,
        len: u32,
        before: u64,
    },
    Commit(u64),
    Cut(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => prop::collection::vec((0u32..40, 1u32..10), 0..4).prop_map(Step::Put),
        4 => (0u32..40, 1u32..12, 0u64..8).prop_map(|(start, len, before)| Step::Hold { start, len, before }),
        3 => (0u64..4).prop_map(Step::Commit),
        1 => (0u64..4).prop_map(Step::Cut),
    ]
}

type Key = (Version, Sequence);

/// Each block for itself.
#[derive(Default)]
struct Naive {
    frames: Vec<(u64, BTreeMap<u32, Key>)>,
    held: BTreeMap<u32, Key>,
}

impl Naive {
    fn is_written(&self, block: u32) -> bool {
        self.frames.iter().any(|(_, blocks)| blocks.contains_key(&block))
    }

    /// Takes what is held for no frame.
    fn let_go(&mut self) -> Vec<(u32, Key)> {
        let gone: Vec<_> = self.held.iter().filter(|(b, _)| !self.is_written(**b)).map(|(b, key)| (*b, *key)).collect();
        self.held.retain(|b, _| gone.iter().all(|(g, _)| g != b));
        gone
    }

    fn map(&self) -> BTreeMap<u32, Key> {
        let mut out = self.held.clone();
        for (b, key) in self.frames.iter().flat_map(|(_, blocks)| blocks) {
            let top = out.entry(*b).or_insert(*key);
            *top = (*top).max(*key);
        }
        out
    }
}

fn blocks<'a>(list: impl Iterator<Item = (u32, &'a Extent)>) -> BTreeMap<u32, Key> {
    let mut out = BTreeMap::new();
    for (a, e) in list {
        for b in a..a + e.len {
            assert!(out.insert(b, e.key()).is_none_or(|k| k == e.key()), "block {b} twice");
        }
    }
    out
}

fn entry(len: u32, version: u64, sequence: u64) -> Extent {
    Extent { len, version: Version(version), sequence: Sequence(sequence), ..zero(0) }
}

fn play(steps: Vec<Step>) {
    let (mut o, mut naive, mut last, mut committed) = (Overlay::default(), Naive::default(), 10, 10);
    for (i, step) in steps.into_iter().enumerate() {
        match step {
            Step::Put(extents) => {
                last += 1;
                let mut list: Vec<(u32, Extent)> = Vec::new();
                for (i, (a, len)) in (0..).zip(extents) {
                    // Updates of one frame don't meet here.
                    if list.iter().all(|(b, e)| a + len <= *b || b + e.len <= a) {
                        list.push((a, entry(len, 10 * last + i, last)));
                    }
                }
                let of = list.iter().flat_map(|(a, e)| (*a..a + e.len).map(|b| (b, e.key()))).collect();
                naive.frames.push((last, of));
                o.put(frame(last, list));
            }
            Step::Hold { start, len, before } => {
                let e = entry(len, 10 * (last + 2 - before), last + 2 - before);
                for (from, to, is_written) in o.parts(start, start + len) {
                    (from..to).for_each(|b| assert_eq!(is_written, naive.is_written(b), "block {b}"));
                    // A part that something newer covers is not held.
                    let free = |b: &u32| is_written && naive.held.get(b).is_none_or(|k| *k <= e.key());
                    for b in (from..to).filter(free).collect::<Vec<_>>() {
                        o.hold(b, e.piece(b - start, 1), Some(i as u64));
                        naive.held.insert(b, e.key());
                    }
                }
            }
            Step::Commit(more) => {
                committed = (committed + more).min(last);
                while let Some(done) = o.commit(Sequence(committed)) {
                    let (_, of) = naive.frames.remove(0);
                    let over = |b: &u32| of.get(b).copied();
                    let covered: BTreeMap<u32, Key> = naive
                        .held
                        .iter()
                        .filter(|(b, k)| over(b).is_some_and(|f| **k < f))
                        .map(|(b, k)| (*b, *k))
                        .collect();
                    let again: BTreeMap<u32, Key> = naive
                        .held
                        .iter()
                        .filter(|(b, k)| over(b).is_some_and(|f| **k >= f))
                        .map(|(b, k)| (*b, *k))
                        .collect();
                    naive.held.retain(|b, k| over(b).is_none_or(|f| *k > f));
                    naive.let_go();
                    assert_eq!(blocks(done.covered.iter().map(|(a, e, _)| (*a, e))), covered);
                    assert_eq!(blocks(done.again.iter().map(|(a, e)| (*a, e))), again);
                }
            }
            Step::Cut(back) => {
                let to = last.saturating_sub(back).max(committed);
                while o.cut(Sequence(to)).is_some() {}
                naive.frames.retain(|(s, _)| *s <= to);
                let gone: BTreeMap<u32, Key> = naive.let_go().into_iter().collect();
                assert_eq!(blocks(o.rebuild().iter().map(|(a, e)| (*a, e))), gone);
                last = to;
            }
        }
        o.check();
        assert_eq!(blocks(o.held()), naive.held);
        assert_eq!(blocks(o.map.range(0, 100).map(|(a, e, ..)| (a, e))), naive.map());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// The entries held and shown are those that each block for itself would have.
    #[test]
    fn is_the_naive_overlay(steps in prop::collection::vec(step(), 1..60)) {
        play(steps);
    }
}
