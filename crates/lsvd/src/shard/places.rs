//! Where the blocks of one chunk lie: as runs, or, where these are short, as a table with a cell for each block.
//!
//! Invariants: runs are sorted and don't overlap. A run takes 16 bytes and a cell 4, so a chunk whose blocks were each
//! appended alone, or moved, takes a quarter; it is a table while that is smaller. Both forms say the same.

use crate::log::geometry::Geometry;
use freebs_format::disk::SEGMENTS_MAX;

/// Blocks `[first, first + count)` of a chunk lie one behind the other at byte `at` of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: u32,
    pub count: u32,
    pub segment: u32,
    pub at: u32,
}

pub(crate) const BLOCK: u32 = freebs_types::BLOCK as u32;

impl Run {
    pub fn end(&self) -> u32 {
        self.first + self.count
    }
    pub fn piece(&self, from: u32, to: u32) -> Self {
        Self { first: from, count: to - from, segment: self.segment, at: self.at + (from - self.first) * BLOCK }
    }
    /// True if the other one goes on where this one ends.
    fn goes_on(&self, next: &Self) -> bool {
        self.end() == next.first && self.segment == next.segment && self.at + self.count * BLOCK == next.at
    }
}

/// How a place becomes a number of 32 bits: the sectors of all segments in a row. With none of it there are no tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packing {
    pub sector: u32,
    /// Sectors of a segment; 0 where they don't fit the numbers.
    pub per_segment: u32,
}

impl Packing {
    /// A device may have more segments than its limit allows, if that was lowered: such places have no cell.
    pub fn of(geometry: &Geometry) -> Self {
        let per_segment = geometry.segment_bytes / geometry.sector as u64;
        let all = per_segment * u64::from(geometry.limit_segments.min(SEGMENTS_MAX));
        let per_segment = if all < u64::from(u32::MAX) { per_segment as u32 } else { 0 };
        Self { sector: geometry.sector as u32, per_segment }
    }

    /// True if it can be that of tables, as a device has it.
    pub fn is_sound(self) -> bool {
        let bytes = u64::from(self.sector) * u64::from(self.per_segment);
        self.sector.is_power_of_two() && (512..=BLOCK).contains(&self.sector) && (1..=1 << 30).contains(&bytes)
    }

    /// The cell of a block; 0 says that there is none. `None` if the place can't be said that way.
    fn cell(self, segment: u32, at: u32) -> Option<u32> {
        if self.per_segment == 0 || !at.is_multiple_of(self.sector) || at / self.sector >= self.per_segment {
            return None;
        }
        segment.checked_mul(self.per_segment)?.checked_add(at / self.sector + 1)
    }

    /// True if all blocks of a run have cells.
    fn fits(self, r: &Run) -> bool {
        let last = r.at.checked_add((r.count - 1) * BLOCK);
        last.is_some_and(|last| self.cell(r.segment, r.at).is_some() && self.cell(r.segment, last).is_some())
    }

    /// Segment and byte.
    fn place(self, cell: u32) -> (u32, u32) {
        let n = cell - 1;
        (n / self.per_segment, n % self.per_segment * self.sector)
    }
}

/// Runs below this number are not worth a table.
const RUNS_MIN: usize = 32;
/// Cells by which a table grows at a time.
const CELLS_STEP: usize = 512;

#[derive(Clone, Debug)]
pub(crate) enum BlockPlaces {
    Runs(Vec<Run>),
    /// One cell for each block from `first` on.
    Cells {
        first: u32,
        cells: Vec<u32>,
    },
}

impl Default for BlockPlaces {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl BlockPlaces {
    /// Elements that it takes: runs or, at four for one, cells.
    pub fn size(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.len(),
            Self::Cells { cells, .. } => cells.len() / 4,
        }
    }

    /// Calls `each` for the places of a range, in order.
    pub fn each(&self, packing: Packing, first: u32, end: u32, mut each: impl FnMut(Run)) {
        match self {
            Self::Runs(runs) => {
                for r in &runs[runs.partition_point(|r| r.end() <= first)..] {
                    if r.first >= end {
                        return;
                    }
                    each(r.piece(r.first.max(first), r.end().min(end)));
                }
            }
            Self::Cells { first: base, cells } => {
                let (from, to) = (first.max(*base), end.min(*base + cells.len() as u32));
                let mut open: Option<Run> = None;
                for at in from..to {
                    let cell = cells[(at - base) as usize];
                    if cell == 0 {
                        open.take().into_iter().for_each(&mut each);
                        continue;
                    }
                    let (segment, byte) = packing.place(cell);
                    let next = Run { first: at, count: 1, segment, at: byte };
                    match open.as_mut().filter(|o| o.goes_on(&next)) {
                        Some(o) => o.count += 1,
                        None => open.replace(next).into_iter().for_each(&mut each),
                    }
                }
                open.into_iter().for_each(each);
            }
        }
    }

    /// The blocks of `run` lie there. `lives(first, end)` says whether what is left of an older run is worth keeping.
    pub fn put(&mut self, packing: Packing, run: Run, lives: impl Fn(u32, u32) -> bool) {
        if !matches!(self, Self::Runs(_)) && !packing.fits(&run) {
            self.become_runs(packing);
        }
        match self {
            Self::Runs(runs) => put_run(runs, run, lives),
            Self::Cells { first, cells } => {
                let below = first.saturating_sub(run.first);
                if below > 0 {
                    cells.splice(..0, std::iter::repeat_n(0, below as usize));
                    *first = run.first;
                }
                let to = (run.end() - *first) as usize;
                if cells.len() < to {
                    if cells.capacity() < to {
                        cells.reserve_exact(to.next_multiple_of(CELLS_STEP) - cells.len());
                    }
                    cells.resize(to, 0);
                }
                let from = (run.first - *first) as usize;
                let base = packing.cell(run.segment, run.at).expect("fits, as was asked");
                let step = BLOCK / packing.sector;
                for (i, cell) in (0u32..).zip(&mut cells[from..to]) {
                    *cell = base + i * step;
                }
            }
        }
        self.pack(packing);
    }

    /// Takes out what lies in a range and has no block that lives.
    pub fn drop_dead(&mut self, first: u32, end: u32, lives: impl Fn(u32, u32) -> bool) {
        match self {
            Self::Runs(runs) => {
                let mut i = runs.partition_point(|r| r.end() <= first);
                while let Some(r) = runs.get(i).filter(|r| r.first < end) {
                    if lives(r.first, r.end()) {
                        i += 1;
                    } else {
                        runs.remove(i);
                    }
                }
            }
            Self::Cells { first: base, cells } => {
                let (from, to) = (first.max(*base), end.min(*base + cells.len() as u32));
                for at in (from..to).filter(|at| !lives(*at, at + 1)) {
                    cells[(at - *base) as usize] = 0;
                }
            }
        }
    }

    /// Forgets places in segments that `keep` does not name.
    pub fn retain(&mut self, packing: Packing, keep: impl Fn(u32) -> bool) {
        match self {
            Self::Runs(runs) => runs.retain(|r| keep(r.segment)),
            Self::Cells { cells, .. } => {
                cells.iter_mut().filter(|c| **c > 0 && !keep(packing.place(**c).0)).for_each(|c| *c = 0);
            }
        }
    }

    /// A table, if that is smaller.
    fn pack(&mut self, packing: Packing) {
        let Self::Runs(runs) = self else { return };
        if packing.per_segment == 0 {
            return;
        }
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return };
        let span = (last.end() - first.first) as usize;
        let smaller = runs.len() >= RUNS_MIN && span * 5 < runs.len() * size_of::<Run>();
        if !smaller || !runs.iter().all(|r| packing.fits(r)) {
            return;
        }
        let first = first.first;
        let mut cells = Vec::new();
        cells.reserve_exact(span.next_multiple_of(CELLS_STEP));
        cells.resize(span, 0);
        let step = BLOCK / packing.sector;
        for r in runs.iter() {
            let base = packing.cell(r.segment, r.at).expect("fits, as was asked");
            for i in 0..r.count {
                cells[(r.first - first + i) as usize] = base + i * step;
            }
        }
        *self = Self::Cells { first, cells };
    }

    /// Runs again, if so few blocks live that these are smaller.
    pub fn unpack(&mut self, packing: Packing, live: u32) {
        if matches!(self, Self::Cells { cells, .. } if live as usize * 8 < cells.len()) {
            self.become_runs(packing);
        }
    }

    /// Takes over what was packed in another way.
    pub fn repack(&mut self, was: Packing, now: Packing) {
        if was != now {
            self.become_runs(was);
            self.pack(now);
        }
    }

    fn become_runs(&mut self, packing: Packing) {
        let mut runs = Vec::new();
        self.each(packing, 0, u32::MAX, |r| runs.push(r));
        *self = Self::Runs(runs);
    }
}

fn put_run(runs: &mut Vec<Run>, run: Run, lives: impl Fn(u32, u32) -> bool) {
    if let Some(last) = runs.last_mut()
        && last.goes_on(&run)
    {
        last.count += run.count;
        return;
    }
    let from = runs.partition_point(|r| r.end() <= run.first);
    let to = runs.partition_point(|r| r.first < run.end());
    if from == to {
        runs.insert(from, run);
        assert_sorted(runs, from, 1);
        return;
    }
    let (left, right) = (runs[from], runs[to - 1]);
    let mut new = Vec::with_capacity(3);
    if left.first < run.first && lives(left.first, run.first) {
        new.push(left.piece(left.first, run.first));
    }
    new.push(run);
    if right.end() > run.end() && lives(run.end(), right.end()) {
        new.push(right.piece(run.end(), right.end()));
    }
    let n = new.len();
    runs.splice(from..to, new);
    assert_sorted(runs, from, n);
}

/// The runs that were put in, and their neighbours, are in order.
fn assert_sorted(runs: &[Run], from: usize, n: usize) {
    let around = &runs[from.saturating_sub(1)..(from + n + 1).min(runs.len())];
    assert!(around.iter().all(|r| r.count > 0), "a run has a block");
    assert!(around.is_sorted_by(|a, b| a.end() <= b.first), "the runs of a chunk don't overlap");
}
