//! An interval in a shard: its changes laid over one another and cut into segments. Pure functions.
//!
//! Invariants: the segments of a plan are in the shard's order and share no block; a block that is covered in part
//! only is a segment of its own, which is read first; a segment becomes one extent at most, unless its zeroes are
//! left out and there is room in the update's table. The same plan gives the same update every time (W3).

use crate::blocks::Use;
use crate::stripe::Layout;
use crate::updates::Blocks;
use bytes::Bytes;
use freebs_format::ExtentKind;
use freebs_types::{BLOCK, BlockRange, Error, Result, Sequence, ShardId, ViewNumber, limits};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of the blocks that get data by one interval, in each shard. Blocks that are covered in part count whole.
pub const INTERVAL_BYTES_MAX: usize = limits::UPDATE_DATA_BYTES_MAX;
/// Runs of blocks that one interval changes in each shard. A block that is covered in part is a run of its own.
pub const INTERVAL_RUNS_MAX: usize = limits::UPDATE_EXTENTS_MAX;
/// Changes in one interval.
pub const INTERVAL_CHANGES_MAX: usize = 4096;
/// Bytes of the blocks that get data by one interval in all of its shards.
pub const INTERVAL_TOTAL_BYTES_MAX: usize = 64 << 20;
/// Shards that one interval changes.
pub const INTERVAL_SHARDS_MAX: usize = limits::INTERVAL_SHARDS_MAX;

const _: () = assert!(INTERVAL_BYTES_MAX <= limits::DRIVER_WINDOW_BYTES);

/// One change of an interval. Offsets and lengths are bytes and need no alignment; of changes that overlap the later
/// one counts.
#[derive(Clone, Debug)]
pub enum Change {
    /// Writes bytes.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// The range reads as zeroes afterwards and may count as a hole.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Writes zeroes.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// The place in a shard's log that an interval has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The shard.
    pub shard: ShardId,
    /// The view in which it was found durable on A members.
    pub view: ViewNumber,
    /// Its frame, counted in that view's log.
    pub sequence: Sequence,
}

#[derive(Clone, Debug)]
enum Source {
    Data(Bytes),
    Void(ExtentKind),
}

impl Source {
    /// The bytes from `skip` on, `len` of them.
    fn cut(&self, skip: u64, len: u64) -> Self {
        match self {
            Self::Data(data) => Self::Data(data.slice(skip as usize..(skip + len) as usize)),
            Self::Void(kind) => Self::Void(*kind),
        }
    }
}

/// Byte ranges of a shard that don't overlap: first byte, behind the last, and the contents.
#[derive(Default)]
struct Overlay(BTreeMap<u64, (u64, Source)>);

impl Overlay {
    fn put(&mut self, start: u64, end: u64, source: Source) {
        let before = self.0.range(..start).next_back().filter(|(_, (e, _))| *e > start).map(|(s, _)| *s);
        let under: Vec<u64> = before.into_iter().chain(self.0.range(start..end).map(|(s, _)| *s)).collect();
        for s in under {
            let Some((e, old)) = self.0.remove(&s) else { continue };
            if s < start {
                self.0.insert(s, (start, old.cut(0, start - s)));
            }
            if e > end {
                self.0.insert(end, (e, old.cut(end - s, e - end)));
            }
        }
        self.0.insert(start, (end, source));
    }
}

/// New bytes of a block that is covered by several pieces, or in part only.
#[derive(Clone, Debug, Default)]
struct Patch {
    pieces: Vec<(usize, usize, Source)>,
}

impl Patch {
    fn is_whole(&self) -> bool {
        self.pieces.iter().map(|(from, to, _)| to - from).sum::<usize>() == BLOCK
    }

    fn apply(&self, mut block: Vec<u8>) -> Bytes {
        for (from, to, source) in &self.pieces {
            match source {
                Source::Data(data) => block[*from..*to].copy_from_slice(data),
                Source::Void(_) => block[*from..*to].fill(0),
            }
        }
        block.into()
    }
}

#[derive(Clone, Debug)]
enum New {
    Whole(Blocks),
    /// The old bytes have to be read.
    Patched(Patch),
}

/// A run of blocks and what becomes of it.
#[derive(Clone, Debug)]
struct Segment {
    range: BlockRange,
    new: New,
}

/// An interval in one shard.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    shard: usize,
    segments: Vec<Segment>,
}

impl Plan {
    /// One for each shard that the interval changes, in order.
    pub fn all(layout: &Layout, changes: &[Change]) -> Result<Vec<Self>> {
        if changes.len() > INTERVAL_CHANGES_MAX {
            return Err(Error::invalid("the interval has more than 4,096 changes: make it smaller"));
        }
        let mut overlays: BTreeMap<usize, Overlay> = BTreeMap::new();
        for change in changes {
            let (offset, len, source) = match change {
                Change::Write { offset, data } => (*offset, data.len() as u64, Source::Data(data.clone())),
                Change::Trim { offset, len } => (*offset, *len, Source::Void(ExtentKind::Trim)),
                Change::Zero { offset, len } => (*offset, *len, Source::Void(ExtentKind::Zero)),
            };
            if !layout.holds(offset, len) {
                return Err(Error::invalid("the interval reaches beyond the end of the volume"));
            }
            let mut runs = 0;
            for (at, n, s) in layout.runs(offset, offset + len) {
                runs += 1;
                if runs > STRIPES_MAX {
                    return Err(Error::invalid("a change of the interval goes over too many stripes: make it smaller"));
                }
                let start = layout.address(at);
                overlays.entry(s).or_default().put(start, start + n, source.cut(at - offset, n));
            }
        }
        let plans: Vec<Self> = overlays.into_iter().map(|(shard, o)| Self { shard, segments: segments(o) }).collect();
        check(&plans)?;
        Ok(plans)
    }

    pub fn shard(&self) -> usize {
        self.shard
    }

    /// How its blocks are used.
    pub fn uses(&self) -> Vec<(BlockRange, Use)> {
        let how = |s: &Segment| Use::Write { first: matches!(s.new, New::Patched(_)), last: false };
        self.segments.iter().map(|s| (s.range, how(s))).collect()
    }

    /// Bytes of blocks that get data.
    pub fn data_bytes(&self) -> usize {
        let bytes = |s: &Segment| match &s.new {
            New::Whole(Blocks::Void(..)) => 0,
            _ => s.range.len as usize * BLOCK,
        };
        self.segments.iter().map(bytes).sum()
    }

    pub fn split(mut self) -> Vec<Self> {
        let behind = self.segments.split_off(self.segments.len() / 2);
        let two = [self.segments, behind].into_iter().filter(|s| !s.is_empty());
        two.map(|segments| Self { shard: self.shard, segments }).collect()
    }
}

/// Stripes that one change goes over at most: a trim may be as long as the volume.
const STRIPES_MAX: usize = INTERVAL_SHARDS_MAX * INTERVAL_RUNS_MAX;

/// Whether the plans of an interval are within its limits.
fn check(plans: &[Plan]) -> Result<()> {
    if plans.len() > INTERVAL_SHARDS_MAX {
        return Err(Error::invalid("the interval changes more than 64 shards: make it smaller"));
    }
    let is_one = plans.len() == 1;
    if plans.iter().any(|p| p.segments.len() > INTERVAL_RUNS_MAX) {
        return Err(Error::invalid("the interval changes more than 1,024 runs of blocks: make it smaller"));
    }
    if plans.iter().any(|p| p.data_bytes() > INTERVAL_BYTES_MAX) {
        return Err(Error::invalid("the interval changes more than 4 MiB of data: make it smaller"));
    }
    let fits = |p: &Plan| {
        p.segments.len() <= limits::INTERVAL_EXTENTS_MAX && p.data_bytes() <= limits::INTERVAL_DATA_BYTES_MAX
    };
    if !is_one && !plans.iter().all(fits) {
        return Err(Error::invalid(
            "the interval changes more than 1,020 runs of blocks, or 4 MiB less 16 KiB of data, of one of its shards: make \
             it smaller",
        ));
    }
    if plans.iter().map(Plan::data_bytes).sum::<usize>() > INTERVAL_TOTAL_BYTES_MAX {
        return Err(Error::invalid("the interval changes more than 64 MiB of data: make it smaller"));
    }
    Ok(())
}

/// Cuts an overlay into runs of whole blocks, and single blocks that are made of pieces.
fn segments(overlay: Overlay) -> Vec<Segment> {
    let block = BLOCK as u64;
    let mut whole: Vec<Segment> = Vec::new();
    let mut patches: BTreeMap<u32, Patch> = BTreeMap::new();
    for (start, (end, source)) in overlay.0 {
        let (first, last) = (start.div_ceil(block), end / block);
        let mut patch = |from: u64, to: u64| {
            if from < to {
                let at = from / block;
                let within = |byte: u64| (byte - at * block) as usize;
                let piece = (within(from), within(to), source.cut(from - start, to - from));
                patches.entry(at as u32).or_default().pieces.push(piece);
            }
        };
        if first > last {
            patch(start, end);
            continue;
        }
        patch(start, first * block);
        patch(last * block, end);
        if first < last {
            let range = BlockRange::new(first as u32, (last - first) as u32);
            let new = match source.cut(first * block - start, (last - first) * block) {
                Source::Data(data) => Blocks::Data(data),
                Source::Void(kind) => Blocks::Void(kind, range.len),
            };
            whole.push(Segment { range, new: New::Whole(new) });
        }
    }
    for (at, patch) in patches {
        let new =
            if patch.is_whole() { New::Whole(Blocks::Data(patch.apply(vec![0; BLOCK]))) } else { New::Patched(patch) };
        whole.push(Segment { range: BlockRange::new(at, 1), new });
    }
    whole.sort_unstable_by_key(|s| s.range.start.0);
    whole
}

/// An interval on its way: its blocks are taken, the old bytes of some are read, two at a time.
pub(crate) struct Progress {
    segments: Vec<Segment>,
    /// Tickets that are not granted yet.
    waiting: usize,
    /// Segments whose old block is wanted and not asked for yet.
    wanted: VecDeque<usize>,
    /// The segments that the two fetches are for.
    fetching: [usize; 2],
}

impl Progress {
    pub fn new(plan: Plan) -> Self {
        let wanted = (0..plan.segments.len()).filter(|i| matches!(plan.segments[*i].new, New::Patched(_))).collect();
        Self { wanted, waiting: 0, fetching: [0; 2], segments: plan.segments }
    }

    pub fn waits_for(&mut self, tickets: usize) {
        self.waiting = tickets;
    }

    /// One ticket was granted, or none was waited for. True if all blocks are taken now.
    pub fn granted(&mut self) -> bool {
        self.waiting = self.waiting.saturating_sub(1);
        self.waiting == 0
    }

    /// The next block that has to be read; it comes to this slot.
    pub fn next_old(&mut self, slot: usize) -> Option<BlockRange> {
        let segment = self.wanted.pop_front()?;
        self.fetching[slot] = segment;
        Some(self.segments[segment].range)
    }

    pub fn reads_nothing(&self) -> bool {
        self.wanted.is_empty()
    }

    pub fn bring(&mut self, slot: usize, block: Vec<u8>) {
        let segment = &mut self.segments[self.fetching[slot]];
        if let New::Patched(patch) = &segment.new {
            segment.new = New::Whole(Blocks::Data(patch.apply(block)));
        }
    }

    /// First blocks and contents, once nothing has to be read any more.
    pub fn contents(&self) -> Vec<(u32, Blocks)> {
        let ready = |s: &Segment| match &s.new {
            New::Whole(blocks) => (s.range.start.0, blocks.clone()),
            New::Patched(_) => unreachable!("all old blocks are there before the update is made"),
        };
        self.segments.iter().map(ready).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 32 * BLOCK as u64;

    fn change() -> impl Strategy<Value = Change> {
        let any_range = (0..SIZE, 0..3 * BLOCK as u64).prop_map(|(at, len)| (at, len.min(SIZE - at)));
        let whole = (0u64..32, 1u64..5).prop_map(|(at, n)| (at * BLOCK as u64, n.min(32 - at) * BLOCK as u64));
        (prop_oneof![any_range, whole], 0u8..4, 1u8..=255).prop_map(|((offset, len), what, fill)| match what {
            0 => Change::Trim { offset, len },
            1 => Change::Zero { offset, len },
            _ => Change::Write { offset, data: vec![fill; len as usize].into() },
        })
    }

    proptest! {
        #[test]
        fn a_plan_is_its_changes_one_after_the_other(changes in prop::collection::vec(change(), 0..12)) {
            let layout = Layout::new(SIZE, 0, 1).unwrap();
            let mut wanted = vec![0xee; SIZE as usize];
            let mut touched = vec![false; SIZE as usize];
            for change in &changes {
                let (at, new) = match change {
                    Change::Write { offset, data } => (*offset as usize, data.to_vec()),
                    Change::Trim { offset, len } | Change::Zero { offset, len } => {
                        (*offset as usize, vec![0; *len as usize])
                    }
                };
                wanted[at..at + new.len()].copy_from_slice(&new);
                touched[at..at + new.len()].fill(true);
            }
            let plan = Plan::all(&layout, &changes).unwrap();
            prop_assert_eq!(plan.is_empty(), !touched.contains(&true));
            prop_assert!(plan.len() <= 1);
            let mut seen = vec![0xee; SIZE as usize];
            let mut behind = 0;
            for segment in plan.into_iter().flat_map(|p| p.segments) {
                prop_assert!(u64::from(segment.range.start.0) >= behind, "in order, none twice");
                behind = segment.range.end();
                let at = segment.range.start.0 as usize * BLOCK;
                let all = at..at + segment.range.len as usize * BLOCK;
                prop_assert_eq!(touched[all.clone()].iter().all(|t| *t), matches!(segment.new, New::Whole(_)));
                let bytes = match segment.new {
                    New::Whole(Blocks::Data(data)) => data,
                    New::Whole(Blocks::Void(_, n)) => vec![0; n as usize * BLOCK].into(),
                    New::Patched(patch) => patch.apply(vec![0xee; BLOCK]),
                };
                seen[all].copy_from_slice(&bytes);
            }
            prop_assert!(seen == wanted, "bytes differ");
        }
    }
}
