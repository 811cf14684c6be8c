//! Live blocks on their way to the end of the log.

use crate::shard::chunks::Run;
use bytes::Bytes;
use freebs_format::disk::IndexEntry;
use freebs_format::{CarryEntry, FrameHeader};
use freebs_types::{BLOCK, BlockRange, Lba, ShardId};
use std::collections::VecDeque;

/// Live blocks with one entry, one behind the other at byte `at` of a segment.
#[derive(Debug)]
pub(crate) struct Piece {
    pub shard: ShardId,
    pub entry: CarryEntry,
    pub segment: u32,
    /// Number of the segment in the order of opening.
    pub seq: u64,
    pub at: u32,
    pub data: Bytes,
}

/// Pieces that are appended at once.
#[derive(Debug)]
pub(crate) struct Move {
    pub pieces: VecDeque<Piece>,
    /// It brings bytes from elsewhere, and is none of cleaning's.
    pub mends: bool,
}

/// Moves that are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moves {
    pub cleaning: u32,
    pub mending: u32,
}

impl Moves {
    pub fn count(&mut self, m: &Move) {
        *(if m.mends { &mut self.mending } else { &mut self.cleaning }) += 1;
    }
}

/// The part of a piece that is moved: blocks to skip, and how many.
pub(crate) type Part = (u32, u32);

impl Piece {
    pub fn shard(&self) -> ShardId {
        self.shard
    }
    pub fn range(&self) -> BlockRange {
        self.entry.range
    }
    pub fn crcs(&self) -> &[u32] {
        &self.entry.crcs
    }
    /// Byte of its segment.
    pub fn at(&self) -> u32 {
        self.at
    }
    /// The place that no other piece has: segment, its number, byte in it.
    pub fn place(&self) -> (u32, u64, u32) {
        (self.segment, self.seq, self.at)
    }

    /// The same piece with its bytes.
    pub fn with_data(&self, data: &Bytes) -> Self {
        Self { entry: self.entry.clone(), data: data.clone(), ..*self }
    }

    /// The parts of it of which each block, by its byte in the segment, is chosen.
    pub fn runs_of(&self, chosen: impl Fn(u32) -> bool) -> Vec<Self> {
        let mut runs: Vec<Part> = Vec::new();
        for i in (0..self.entry.range.len).filter(|i| chosen(self.at + i * BLOCK as u32)) {
            match runs.last_mut() {
                Some((skip, len)) if *skip + *len == i => *len += 1,
                _ => runs.push((i, 1)),
            }
        }
        let part = |run: Part| {
            let entry = part_of(&self.entry, run.0, run.1);
            let data = if self.data.is_empty() { Bytes::new() } else { self.part(run).1 };
            Self { entry, at: self.at + run.0 * BLOCK as u32, data, ..*self }
        };
        runs.into_iter().map(part).collect()
    }

    pub fn run(&self) -> Run {
        Run { first: self.entry.offset, count: self.entry.range.len, segment: self.segment, at: self.at }
    }

    pub fn part(&self, (skip, len): Part) -> (CarryEntry, Bytes) {
        let (from, to) = (skip as usize * BLOCK, (skip + len) as usize * BLOCK);
        (part_of(&self.entry, skip, len), self.data.slice(from..to))
    }
}

impl Move {
    pub fn mending(pieces: Vec<Piece>) -> Self {
        Self { pieces: pieces.into(), mends: true }
    }

    /// Blocks that it mends.
    pub fn mends(&self) -> u64 {
        self.pieces.iter().filter(|_| self.mends).map(|p| u64::from(p.entry.range.len)).sum()
    }
}

pub(crate) fn part_of(e: &CarryEntry, skip: u32, len: u32) -> CarryEntry {
    CarryEntry {
        kind: e.kind,
        range: BlockRange { start: Lba(e.range.start.0 + skip), len },
        version: e.version,
        sequence: e.sequence,
        chunk: e.chunk,
        offset: e.offset + skip,
        crcs: e.crcs[skip as usize..(skip + len) as usize].to_vec(),
    }
}

/// Bytes of a carry's head and of its index entry.
pub(crate) fn head_bytes(entries: usize, crcs: usize) -> (usize, usize) {
    let head = size_of::<FrameHeader>() + 8 + entries * freebs_format::CARRY_ENTRY_BYTES + crcs * 4;
    (head, IndexEntry::encoded_len_max(head))
}
