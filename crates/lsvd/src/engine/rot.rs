//! Damage that is known and not mended.

use super::moves::Piece;
use std::collections::{BTreeMap, BTreeSet};

/// Damaged pieces that wait to be mended; what is found beyond them is found again by the next pass.
const WANTED_MAX: usize = 4096;

/// Damage that is known and not mended.
#[derive(Default)]
pub(crate) struct Rot {
    /// Segments in which somebody met damage: they are read first.
    pub suspects: BTreeSet<u32>,
    /// Segments with damage, and their numbers: they are emptied.
    pub rotten: BTreeMap<u32, u64>,
    /// Live blocks that are damaged, by the number under which they are asked for.
    pub wanted: BTreeMap<u64, Piece>,
    pub next_id: u64,
    /// Not yet given to who asks for them.
    pub fresh: BTreeSet<u64>,
    /// Mending moves on their way to the log.
    pub mending: u32,
}

impl Rot {
    pub fn suspect(&mut self, segment: u32) {
        // What is known to be damaged waits for mending, or for the next pass.
        if !self.rotten.contains_key(&segment) {
            self.suspects.insert(segment);
        }
    }

    pub fn mends_done(&mut self, moves: u32) {
        assert!(moves <= self.mending, "mending moves end once");
        self.mending -= moves;
    }

    pub fn want(&mut self, piece: Piece) {
        let known = |p: &Piece| p.place() == piece.place();
        if self.wanted.len() >= WANTED_MAX || self.wanted.values().any(known) {
            return;
        }
        self.next_id += 1;
        self.fresh.insert(self.next_id);
        self.wanted.insert(self.next_id, piece);
    }
}
