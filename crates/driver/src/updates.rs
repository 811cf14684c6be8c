//! From a client's bytes to an update: sub-block edges are filled up, all-zero blocks are recorded and not sent,
//! CRCs are made. Pure functions.
//!
//! Invariant: the same part gives the same update every time, so a repeat is the request it repeats (W3).

use bytes::{Buf, Bytes};
use freebs_format::{Extent, ExtentKind, UpdateKind, block_crcs, is_zero};
use freebs_types::{BLOCK, BlockRange};

/// What a part writes.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Slices of the client's buffer, in the shard's order. They meet at multiples of a block.
    Data(Vec<Bytes>),
    /// Trim or Zero.
    Void(ExtentKind),
}

/// Whole blocks, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    Data(Bytes),
    Void(ExtentKind, u32),
}

/// Tables of a `WriteRequest`.
pub(crate) struct Update {
    pub kind: UpdateKind,
    pub extents: Vec<Extent>,
    pub crcs: Vec<u32>,
    pub data: Vec<Bytes>,
}

/// Which blocks at the ends of a range of `blocks` blocks are covered in part only, by `len` bytes that begin
/// `skip` bytes into it. If it is one block, the first end stands for both.
pub(crate) fn edges(blocks: u32, skip: usize, len: u64) -> (bool, bool) {
    let end_is_partial = !(skip as u64 + len).is_multiple_of(BLOCK as u64);
    if blocks == 1 { (skip > 0 || end_is_partial, false) } else { (skip > 0, end_is_partial) }
}

/// Puts the old contents of the edge blocks under the new bytes. Both are whole blocks.
pub(crate) fn merge(
    content: &Content,
    blocks: u32,
    skip: usize,
    len: u64,
    first: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
) -> Vec<Blocks> {
    let mut out = Vec::with_capacity(3);
    let mut middle = blocks - u32::from(first.is_some()) - u32::from(last.is_some());
    let mut new = match content {
        Content::Data(slices) => Source::Data(slices.iter().cloned().collect()),
        Content::Void(kind) => Source::Void(*kind),
    };
    if let Some(mut block) = first {
        let end = BLOCK.min(skip.saturating_add(usize::try_from(len).unwrap_or(BLOCK)));
        new.fill(&mut block[skip..end]);
        out.push(Blocks::Data(block.into()));
    }
    match &mut new {
        Source::Void(kind) => {
            if middle > 0 {
                out.push(Blocks::Void(*kind, middle));
            }
        }
        Source::Data(slices) => {
            while middle > 0 {
                let mut slice = slices.pop_front().expect("the slices cover the blocks");
                let whole = slice.len().min(middle as usize * BLOCK) / BLOCK * BLOCK;
                if whole > 0 {
                    middle -= (whole / BLOCK) as u32;
                    out.push(Blocks::Data(slice.split_to(whole)));
                }
                if !slice.is_empty() {
                    slices.push_front(slice);
                }
            }
        }
    }
    if let Some(mut block) = last {
        let end = ((skip as u64 + len) % BLOCK as u64) as usize;
        new.fill(&mut block[..end]);
        out.push(Blocks::Data(block.into()));
    }
    out
}

enum Source {
    Data(std::collections::VecDeque<Bytes>),
    Void(ExtentKind),
}

impl Source {
    fn fill(&mut self, mut to: &mut [u8]) {
        match self {
            Self::Void(_) => to.fill(0),
            Self::Data(slices) => {
                while !to.is_empty() {
                    let slice = slices.front_mut().expect("the slices cover the edges");
                    let n = slice.len().min(to.len());
                    let (now, rest) = to.split_at_mut(n);
                    slice.copy_to_slice(now);
                    to = rest;
                    if slice.is_empty() {
                        slices.pop_front();
                    }
                }
            }
        }
    }
}

impl Update {
    /// Nothing: what is asked for needs none.
    pub fn nothing() -> Self {
        Self { kind: UpdateKind::Write, extents: Vec::new(), crcs: Vec::new(), data: Vec::new() }
    }

    /// `wanted` is the kind that the client asked for: an update that has other extents, too, is a write.
    pub fn build(start: u32, blocks: &[Blocks], wanted: UpdateKind) -> Self {
        let mut update = Self { kind: wanted, extents: Vec::with_capacity(1), crcs: Vec::new(), data: Vec::new() };
        let mut at = start;
        for chunk in blocks {
            match chunk {
                Blocks::Void(kind, n) => update.extent(*kind, &mut at, *n),
                Blocks::Data(bytes) => update.add(bytes, &mut at),
            }
        }
        let own = match wanted {
            UpdateKind::Trim => Some(ExtentKind::Trim),
            UpdateKind::Zero => Some(ExtentKind::Zero),
            _ => None,
        };
        if own.is_some_and(|kind| update.extents.iter().any(|e| e.kind != kind)) {
            update.kind = UpdateKind::Write;
        }
        update
    }

    /// Several runs, each with its first block, in order. Zeroes are left out unless that makes more than `most` extents.
    pub fn scattered(runs: &[(u32, Blocks)], most: usize) -> Self {
        let mut update = Self { kind: UpdateKind::Write, extents: Vec::new(), crcs: Vec::new(), data: Vec::new() };
        for (start, blocks) in runs {
            match blocks {
                Blocks::Void(kind, n) => update.extent(*kind, &mut start.clone(), *n),
                Blocks::Data(bytes) => update.add(bytes, &mut start.clone()),
            }
        }
        if update.extents.len() <= most {
            return update;
        }
        update = Self { kind: UpdateKind::Write, extents: Vec::new(), crcs: Vec::new(), data: Vec::new() };
        for (start, blocks) in runs {
            match blocks {
                Blocks::Void(kind, n) => update.extent(*kind, &mut start.clone(), *n),
                Blocks::Data(bytes) => {
                    update.extent(ExtentKind::Data, &mut start.clone(), (bytes.len() / BLOCK) as u32);
                    block_crcs(bytes, &mut update.crcs);
                    update.data.push(bytes.clone());
                }
            }
        }
        update
    }

    fn extent(&mut self, kind: ExtentKind, at: &mut u32, blocks: u32) {
        match self.extents.last_mut() {
            Some(last) if last.kind == kind && last.range.end() == u64::from(*at) => last.range.len += blocks,
            _ => self.extents.push(Extent { kind, range: BlockRange::new(*at, blocks) }),
        }
        *at += blocks;
    }

    /// Adds whole blocks, cut into runs that are zero and runs that are not.
    fn add(&mut self, bytes: &Bytes, at: &mut u32) {
        let count = bytes.len() / BLOCK;
        self.crcs.reserve(count);
        let zero = |i: usize| is_zero(&bytes[i * BLOCK..(i + 1) * BLOCK]);
        let mut from = 0;
        let mut kind = zero(0);
        while from < count {
            let mut to = from + 1;
            let mut next = kind;
            while to < count {
                next = zero(to);
                if next != kind {
                    break;
                }
                to += 1;
            }
            let run = (to - from) as u32;
            if kind {
                self.extent(ExtentKind::Zero, at, run);
            } else {
                self.extent(ExtentKind::Data, at, run);
                let data = bytes.slice(from * BLOCK..to * BLOCK);
                block_crcs(&data, &mut self.crcs);
                self.data.push(data);
            }
            (from, kind) = (to, next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_format::block_crc;
    use proptest::prelude::*;

    fn flat(blocks: &[Blocks]) -> Vec<u8> {
        blocks
            .iter()
            .flat_map(|b| match b {
                Blocks::Data(d) => d.to_vec(),
                Blocks::Void(_, n) => vec![0; *n as usize * BLOCK],
            })
            .collect()
    }

    #[test]
    fn zero_blocks_are_recorded_and_not_sent() {
        let mut data = vec![0u8; 5 * BLOCK];
        data[BLOCK..2 * BLOCK].fill(7);
        data[2 * BLOCK + 9] = 1;
        let update = Update::build(10, &[Blocks::Data(data.clone().into())], UpdateKind::Write);
        let extents: Vec<_> = update.extents.iter().map(|e| (e.kind, e.range.start.0, e.range.len)).collect();
        assert_eq!(extents, [(ExtentKind::Zero, 10, 1), (ExtentKind::Data, 11, 2), (ExtentKind::Zero, 13, 2)]);
        assert_eq!(update.crcs, [block_crc(&data[BLOCK..2 * BLOCK]), block_crc(&data[2 * BLOCK..3 * BLOCK])]);
        assert_eq!(update.data.concat(), data[BLOCK..3 * BLOCK]);
    }

    #[test]
    fn a_trim_with_edges_is_a_write_with_a_trimmed_middle() {
        let old = vec![5u8; BLOCK];
        let len = 3 * BLOCK as u64;
        assert_eq!(edges(4, 512, len), (true, true));
        let blocks = merge(&Content::Void(ExtentKind::Trim), 4, 512, len, Some(old.clone()), Some(old));
        let update = Update::build(0, &blocks, UpdateKind::Trim);
        assert_eq!(update.kind, UpdateKind::Write);
        let kinds: Vec<_> = update.extents.iter().map(|e| (e.kind, e.range.len)).collect();
        assert_eq!(kinds, [(ExtentKind::Data, 1), (ExtentKind::Trim, 2), (ExtentKind::Data, 1)]);
        let bytes = update.data.concat();
        assert!(bytes[..512].iter().all(|b| *b == 5) && is_zero(&bytes[512..BLOCK + 512]));
        assert!(bytes[BLOCK + 512..].iter().all(|b| *b == 5));
        let whole = Update::build(3, &[Blocks::Void(ExtentKind::Trim, 9)], UpdateKind::Trim);
        assert_eq!((whole.kind, whole.extents.len()), (UpdateKind::Trim, 1));
    }

    proptest! {
        #[test]
        fn bytes_outside_never_change(
            skip in 0usize..BLOCK, len in 1u64..20_000, cuts in prop::collection::vec(any::<bool>(), 8), void: bool,
        ) {
            let blocks = (skip as u64 + len).div_ceil(BLOCK as u64) as u32;
            let all = blocks as usize * BLOCK;
            let new: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
            let mut wanted = vec![0xee; all];
            wanted[skip..skip + len as usize].copy_from_slice(&if void { vec![0; len as usize] } else { new.clone() });
            // Slices meet at block boundaries of the shard.
            let mut slices = Vec::new();
            let mut rest = Bytes::from(new);
            for (i, cut) in cuts.iter().enumerate() {
                let boundary = (i + 1) * BLOCK;
                let taken = len as usize - rest.len() + skip;
                if *cut && boundary > taken && boundary - taken < rest.len() {
                    slices.push(rest.split_to(boundary - taken));
                }
            }
            slices.push(rest);
            let content = if void { Content::Void(ExtentKind::Zero) } else { Content::Data(slices) };
            let (first, last) = edges(blocks, skip, len);
            let old = |wanted: bool| wanted.then(|| vec![0xee; BLOCK]);
            let merged = merge(&content, blocks, skip, len, old(first), old(last));
            prop_assert_eq!(flat(&merged), wanted);
            let update = Update::build(7, &merged, UpdateKind::Write);
            let total: u32 = update.extents.iter().map(|e| e.range.len).sum();
            prop_assert_eq!(total, blocks);
            prop_assert_eq!(update.crcs.len() * BLOCK, update.data.iter().map(Bytes::len).sum::<usize>());
        }
    }
}
