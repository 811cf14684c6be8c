//! What clients of a volume do: a few hot blocks that everybody fights for, some wide requests, some of everything.

use crate::intervals::{Change, Intervals};
use crate::oracle::BLOCK_SECTORS;
use crate::rng::Rng;
use freebs_types::Nanos;
use std::collections::VecDeque;

/// Writes that are remembered.
const RECENT: usize = 4;

/// One request, in sectors.
#[derive(Clone, Debug)]
pub enum Wish {
    Read {
        first: u64,
        count: u64,
    },
    Write {
        first: u64,
        count: u64,
        fua: bool,
    },
    /// Data that happen to be zeroes.
    WriteZeroes {
        first: u64,
        count: u64,
    },
    Trim {
        first: u64,
        count: u64,
    },
    Zero {
        first: u64,
        count: u64,
        may_trim: bool,
    },
    /// All of them together.
    Interval(Vec<Change>),
    Flush,
    Status {
        first: u64,
        count: u64,
    },
}

/// Shares of the kinds of requests, out of their sum.
#[derive(Clone, Debug)]
pub struct Mix {
    pub read: u64,
    pub write_block: u64,
    pub write_part: u64,
    pub write_some: u64,
    pub write_wide: u64,
    pub write_zeroes: u64,
    pub trim: u64,
    pub zero: u64,
    pub flush: u64,
    pub status: u64,
}

impl Mix {
    /// Every seed has likings of its own.
    #[must_use]
    pub fn draw(luck: &mut Rng) -> Self {
        let mut some = |low: u64, high: u64| luck.range(low, high);
        Self {
            read: some(10, 40),
            write_block: some(20, 50),
            write_part: some(0, 30),
            write_some: some(0, 15),
            write_wide: some(0, 3),
            write_zeroes: some(0, 4),
            trim: some(0, 10),
            zero: some(0, 8),
            flush: some(0, 4),
            status: some(0, 4),
        }
    }

    fn shares(&self) -> [u64; 10] {
        [
            self.read,
            self.write_block,
            self.write_part,
            self.write_some,
            self.write_wide,
            self.write_zeroes,
            self.trim,
            self.zero,
            self.flush,
            self.status,
        ]
    }
}

/// The clients of one volume, over all gateways that serve it one after the other.
pub struct Workload {
    luck: Rng,
    mix: Mix,
    /// First sectors of hot blocks.
    hot: Vec<u64>,
    pub sectors: u64,
    /// Requests at a time.
    pub depth: usize,
    think_max: Nanos,
    /// Requests still to be made.
    pub left: u64,
    /// Wide writes go anywhere, not only around hot blocks.
    everywhere: bool,
    /// The last few writes: reads like to look at what is being written.
    recent: VecDeque<(u64, u64)>,
    /// Writes that failed: their client wants to know what is there.
    failed: VecDeque<(u64, u64)>,
    /// Odds that a new gateway first reads everything.
    scan: f64,
    intervals: Option<Intervals>,
}

impl Workload {
    /// `stripe` in sectors: some hot blocks lie at its borders.
    #[must_use]
    pub fn draw(mut luck: Rng, sectors: u64, stripe: u64, requests: u64) -> Self {
        let blocks = sectors / BLOCK_SECTORS;
        let mut hot = Vec::new();
        let groups = luck.range(1, 4);
        for _ in 0..groups {
            let at = if luck.chance(0.5) {
                luck.below(blocks)
            } else {
                luck.range(1, (sectors / stripe).max(2) - 1) * stripe / BLOCK_SECTORS
            };
            let run = luck.range(1, 5);
            let begin = at.saturating_sub(luck.below(run + 1));
            hot.extend((begin..begin + run).filter(|b| *b < blocks).map(|b| b * BLOCK_SECTORS));
        }
        hot.sort_unstable();
        hot.dedup();
        let mix = Mix::draw(&mut luck);
        let depth = luck.spread(1, 12) as usize;
        let think_max = Nanos(luck.spread(100_000, 40_000_000));
        let scan = if luck.chance(0.5) { 0.7 } else { 0.1 };
        Self {
            luck,
            mix,
            hot,
            sectors,
            depth,
            think_max,
            left: requests,
            everywhere: false,
            recent: VecDeque::new(),
            failed: VecDeque::new(),
            scan,
            intervals: None,
        }
    }

    /// In half of the volumes some of what is changed is changed in intervals. `stripe` in sectors.
    pub fn may_have_intervals(&mut self, luck: Rng, stripe: u64, shards: u64) {
        self.intervals =
            Intervals::draw(luck, &self.hot, self.sectors, if shards > 1 { stripe } else { self.sectors }, shards);
    }

    /// Everybody wants the same one or two blocks, all the time.
    pub fn crowd(&mut self) {
        let keep = self.luck.range(1, 2) as usize;
        self.hot.truncate(keep);
        self.depth = self.luck.range(6, 16) as usize;
        self.think_max = Nanos(2_000_000);
        self.mix.read = 60;
    }

    /// All of the volume is written, until there is no room for more.
    pub fn fill(&mut self) {
        self.everywhere = true;
        self.mix.write_wide = 60;
        self.think_max = Nanos(10_000_000);
    }

    pub fn think(&mut self) -> Nanos {
        Nanos(self.luck.below(self.think_max.0))
    }

    pub fn wants_scan(&mut self) -> bool {
        self.luck.chance(self.scan)
    }

    /// A write was answered with an error.
    pub fn failed(&mut self, first: u64, count: u64) {
        if self.failed.len() < RECENT {
            self.failed.push_back((first, count.min(64)));
        }
    }

    /// A hot block, or now and then any.
    fn block(&mut self) -> u64 {
        if self.luck.chance(0.9)
            && let Some(at) = self.luck.pick(&self.hot)
        {
            return *at;
        }
        self.luck.below(self.sectors / BLOCK_SECTORS) * BLOCK_SECTORS
    }

    /// Around a hot block, `count` sectors at most, inside the volume.
    fn around(&mut self, before: u64, count: u64) -> (u64, u64) {
        let first = self.block().saturating_sub(self.luck.below(before + 1));
        (first, count.clamp(1, self.sectors - first))
    }

    fn part(&mut self) -> (u64, u64) {
        let at = self.block() + self.luck.below(BLOCK_SECTORS);
        let longest = if self.luck.chance(0.2) { 3 * BLOCK_SECTORS } else { BLOCK_SECTORS - 1 };
        let count = self.luck.range(1, longest);
        (at, count.min(self.sectors - at))
    }

    /// Whole blocks or any sectors.
    fn stretch(&mut self) -> (u64, u64) {
        match self.luck.below(4) {
            0 => self.part(),
            1 => {
                let count = self.luck.spread(BLOCK_SECTORS, 512);
                self.around(64, count)
            }
            _ => {
                let blocks = self.luck.range(1, 3);
                let (first, count) = self.around(0, blocks * BLOCK_SECTORS);
                (first, count)
            }
        }
    }

    /// The next request, while there are any.
    pub fn next(&mut self) -> Option<Wish> {
        self.left = self.left.checked_sub(1)?;
        if let Some((first, count)) = self.failed.pop_front() {
            return Some(Wish::Read { first, count });
        }
        if let Some(changes) = self.intervals.as_mut().and_then(Intervals::next) {
            let place = changes.first().map(|c| (c.first, c.count.min(64)));
            place.into_iter().for_each(|p| self.remember(p));
            return Some(Wish::Interval(changes));
        }
        let shares = self.mix.shares();
        let mut at = self.luck.below(shares.iter().sum());
        let kind = shares.iter().position(|s| {
            let hit = at < *s;
            at = at.saturating_sub(*s);
            hit
        });
        let wish = self.wish(kind.unwrap_or(0));
        if let Wish::Write { first, count, .. } | Wish::Trim { first, count } | Wish::Zero { first, count, .. } = wish {
            self.remember((first, count.min(64)));
        }
        Some(wish)
    }

    fn remember(&mut self, place: (u64, u64)) {
        self.recent.push_back(place);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    fn wish(&mut self, kind: usize) -> Wish {
        let fua = self.luck.chance(0.1);
        match kind {
            1 => Wish::Write { first: self.block(), count: BLOCK_SECTORS, fua },
            2 => {
                let (first, count) = self.part();
                Wish::Write { first, count, fua }
            }
            3 => {
                let blocks = self.luck.range(2, 16);
                let before = self.luck.below(8) * BLOCK_SECTORS;
                let at = self.block().saturating_sub(before);
                let count = (blocks * BLOCK_SECTORS).min(self.sectors - at);
                Wish::Write { first: at, count, fua }
            }
            4 => {
                let longest = self.luck.spread(64, 1024);
                let (first, count) = match self.everywhere {
                    true => {
                        let count = longest.min(self.sectors);
                        (self.luck.below(self.sectors - count + 1), count)
                    }
                    false => self.around(512, longest),
                };
                Wish::Write { first, count, fua }
            }
            5 => {
                let (first, count) = self.stretch();
                Wish::WriteZeroes { first, count }
            }
            6 => {
                let (first, count) = self.stretch();
                Wish::Trim { first, count }
            }
            7 => {
                let (first, count) = self.stretch();
                Wish::Zero { first, count, may_trim: self.luck.chance(0.5) }
            }
            8 => Wish::Flush,
            9 => {
                let count = self.luck.spread(BLOCK_SECTORS, self.sectors);
                let (first, count) = self.around(256, count);
                Wish::Status { first, count }
            }
            _ => {
                let last = self.luck.below(self.recent.len() as u64) as usize;
                if let Some((first, count)) = self.recent.get(last).copied().filter(|_| self.luck.chance(0.5)) {
                    return Wish::Read { first, count };
                }
                let (first, count) = if self.luck.chance(0.1) {
                    let count = self.luck.spread(8, 1024);
                    self.around(256, count)
                } else {
                    self.stretch()
                };
                Wish::Read { first, count }
            }
        }
    }
}
