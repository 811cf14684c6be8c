//! Reading ahead: who reads one range behind the other gets the next ones from one larger read.
//!
//! Invariants: a window holds what the map says of its blocks now: it is dropped when one of them is written, and
//! never made of blocks that had something newer over them, or that were written while it was read. At most
//! `STREAMS_MAX` windows of `WINDOW_BLOCKS` are held.

use bytes::Bytes;
use freebs_format::ExtentKind;
use freebs_lsvd::ReadOut;
use freebs_types::{BLOCK, BlockRange};

/// Readers that are followed at once.
const STREAMS_MAX: usize = 4;
/// Blocks of a window: large enough that the medium streams, small enough that the first reader does not wait long.
const WINDOW_BLOCKS: u32 = 256;
/// Reads in a row before a reader counts as sequential.
const RUN_MIN: u32 = 2;

/// Blocks one behind the other: address, number, and their bytes (none for zeroes).
pub(crate) type Run = (u32, u32, Option<Bytes>);

#[derive(Debug, Default)]
struct Stream {
    /// Where the next read begins if the reader goes on.
    next: u32,
    runs: u32,
    used: u64,
    window: Option<(BlockRange, Vec<Run>)>,
}

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    streams: Vec<Stream>,
    clock: u64,
    changes: u64,
}

impl Ahead {
    /// What a window has of a range, if it has all of it.
    pub fn get(&mut self, range: BlockRange) -> Option<Vec<Run>> {
        let (start, end) = (range.start.0, range.end());
        let inside = |w: &(BlockRange, Vec<Run>)| w.0.start.0 <= start && end <= w.0.end();
        let s = self.streams.iter_mut().find(|s| s.window.as_ref().is_some_and(inside))?;
        self.clock += 1;
        (s.used, s.next, s.runs) = (self.clock, end as u32, s.runs + 1);
        let (window, runs) = s.window.as_ref().expect("just seen");
        let out = clip(runs, start, end as u32);
        if end == window.end() {
            s.window = None;
        }
        Some(out)
    }

    /// Notes a read that no window had. Gives the range to read instead: more, if the reader is sequential.
    pub fn plan(&mut self, range: BlockRange, blocks: u32) -> BlockRange {
        self.clock += 1;
        let (start, end) = (range.start.0, range.end() as u32);
        let known = self.streams.iter().position(|s| s.next == start);
        let i = known.unwrap_or_else(|| {
            if self.streams.len() < STREAMS_MAX {
                self.streams.push(Stream::default());
                return self.streams.len() - 1;
            }
            let oldest = (0..STREAMS_MAX).min_by_key(|i| self.streams[*i].used).expect("there are some");
            self.streams[oldest] = Stream::default();
            oldest
        });
        let s = &mut self.streams[i];
        s.runs = if known.is_some() { s.runs + 1 } else { 0 };
        (s.next, s.used) = (end, self.clock);
        if s.runs < RUN_MIN || range.len >= WINDOW_BLOCKS {
            return range;
        }
        BlockRange { len: WINDOW_BLOCKS.min(blocks - start), ..range }
    }

    /// Keeps what was read behind the reader's own range.
    pub fn keep(&mut self, range: BlockRange, window: BlockRange, runs: &[Run]) {
        let (start, end) = (range.end() as u32, window.end() as u32);
        if let Some(s) = self.streams.iter_mut().find(|s| s.next == start) {
            s.window = Some((BlockRange::new(start, end - start), clip(runs, start, end)));
        }
    }

    /// How often blocks were written: what was read before the last time may be old.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// These blocks are written: what was read of them is old.
    pub fn written(&mut self, range: BlockRange) {
        self.changes += 1;
        for s in &mut self.streams {
            s.window.take_if(|w| w.0.overlaps(range));
        }
    }
}

fn clip(runs: &[Run], start: u32, end: u32) -> Vec<Run> {
    let mut out = Vec::new();
    let first = runs.partition_point(|(a, n, _)| a + n <= start);
    for (a, n, data) in runs[first..].iter().take_while(|r| r.0 < end) {
        let (from, to) = ((*a).max(start), (a + n).min(end));
        let part = |d: &Bytes| d.slice((from - a) as usize * BLOCK..(to - a) as usize * BLOCK);
        out.push((from, to - from, data.as_ref().map(part)));
    }
    out
}

/// What the engine has read, as runs.
pub(crate) fn runs(range: BlockRange, out: &ReadOut) -> Vec<Run> {
    let (mut at, mut list) = (range.start.0, Vec::with_capacity(out.pieces.len()));
    let (mut data, mut rest) = (out.data.iter(), Bytes::new());
    for p in &out.pieces {
        let end = at + p.blocks;
        if p.kind != ExtentKind::Data {
            list.push((at, p.blocks, None));
            at = end;
        }
        while at < end {
            if rest.is_empty() {
                rest = data.next().cloned().expect("as many blocks as the pieces name");
            }
            let n = ((rest.len() / BLOCK) as u32).min(end - at);
            list.push((at, n, Some(rest.split_to(n as usize * BLOCK))));
            at += n;
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(range: BlockRange) -> Vec<Run> {
        range_blocks(range).map(|b| (b, 1, Some(Bytes::from(vec![b as u8; BLOCK])))).collect()
    }
    fn range_blocks(r: BlockRange) -> impl Iterator<Item = u32> {
        r.start.0..r.end() as u32
    }

    #[test]
    fn a_sequential_reader_is_noticed_and_served_until_it_is_written_to() {
        let mut a = Ahead::default();
        let r = |start| BlockRange::new(start, 10);
        assert_eq!(a.plan(r(0), 1000), r(0));
        assert_eq!(a.plan(r(10), 1000), r(10));
        let window = a.plan(r(20), 1000);
        assert_eq!(window, BlockRange::new(20, 256));
        a.keep(r(20), window, &all(window));
        let got = a.get(r(30)).expect("read ahead");
        assert_eq!(got.iter().map(|(b, n, d)| (*b, *n, d.as_ref().unwrap()[0])).next(), Some((30, 1, 30)));
        a.written(BlockRange::new(300, 10));
        assert!(a.get(r(40)).is_some());
        a.written(BlockRange::new(275, 1));
        assert!(a.get(r(50)).is_none(), "its last block was written");
        assert_eq!(a.plan(r(50), 100), BlockRange::new(50, 50), "a window ends with the disk");
    }

    #[test]
    fn random_readers_get_what_they_ask_for() {
        let mut a = Ahead::default();
        for i in 0..100 {
            let r = BlockRange::new(i * 37 % 1000, 1);
            assert!(a.get(r).is_none());
            assert_eq!(a.plan(r, 2000), r);
        }
        assert!(a.streams.len() <= STREAMS_MAX);
    }
}
