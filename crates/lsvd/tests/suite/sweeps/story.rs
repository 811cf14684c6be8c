//! What each shard was told, step by step, and what it must hold after each step: the naive model of the sweeps.
//!
//! A story is a row of steps, one for each record of the shard in the order of the log. After a crash a shard must be
//! as some step left it: one at or behind the last that was said to be durable, and none that was never sent.

use crate::common::{Chain, Op};
use bytes::Bytes;
use freebs_format::{ExtentKind, Frame, UpdateKind};
use freebs_lsvd::{Durable, ShardState};
use freebs_types::{BLOCK, Sequence, ShardId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Blocks of every shard.
pub const BLOCKS: u32 = 48;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Trim,
    Zero,
    Data(Bytes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Start,
    Frame,
    Mark,
    Carry,
    Cut,
    Forget,
}

/// Content at pinned versions.
pub type Pins = BTreeMap<u64, Rc<Vec<Cell>>>;

/// A shard after a record.
pub struct Step {
    pub kind: Kind,
    pub present: bool,
    pub chain: Chain,
    pub cells: Rc<Vec<Cell>>,
    pub promised: u64,
    /// Snapshots, with what they must show.
    pub pins: Rc<Pins>,
    /// Steps of the frames that the last one follows from, itself included.
    pub branch: Vec<usize>,
}

#[derive(Clone)]
pub struct Story {
    pub shard: ShardId,
    pub steps: Vec<Rc<Step>>,
    /// Steps that were answered.
    pub heard: usize,
    /// The last step that a crash must leave.
    pub floor: usize,
    /// What the engine was told to be committed.
    pub committed: u64,
    /// Steps from here on extend the branch only.
    pub straight: usize,
    /// The highest view so far, whatever became of it: a view's chunks are never used twice.
    pub views: u64,
    pub lives: u64,
}

impl Story {
    pub fn new(shard: ShardId) -> Self {
        let start = Step {
            kind: Kind::Start,
            present: false,
            chain: Chain::new(shard),
            cells: Rc::new(vec![Cell::Trim; BLOCKS as usize]),
            promised: 0,
            pins: Rc::default(),
            branch: Vec::new(),
        };
        Self { shard, steps: vec![Rc::new(start)], heard: 0, floor: 0, committed: 0, straight: 0, views: 1, lives: 0 }
    }

    pub fn last(&self) -> &Step {
        self.steps.last().expect("a story has a start")
    }
    pub fn now(&self) -> &Step {
        &self.steps[self.heard]
    }
    pub fn is_settled(&self) -> bool {
        self.heard + 1 == self.steps.len()
    }

    fn push(&mut self, kind: Kind, chain: Chain, cells: Rc<Vec<Cell>>, branch: Vec<usize>) {
        let last = self.last();
        let (promised, present, pins) = (last.promised, kind != Kind::Forget, last.pins.clone());
        self.steps.push(Rc::new(Step { kind, present, chain, cells, promised, pins, branch }));
    }

    /// The chain for the next frame.
    fn chain(&self) -> Chain {
        let mut c = self.last().chain.clone();
        c.committed = self.committed.min(c.sequence);
        c.low = c.requests.saturating_sub(20) + 1;
        c
    }

    pub fn write(&mut self, ops: &[Op]) -> Frame {
        let mut chain = self.chain();
        let frame = chain.frame(ops);
        let mut cells = (*self.last().cells).clone();
        let mut data =
            frame.data.iter().flat_map(|d| (0..d.len() / BLOCK).map(|i| d.slice(i * BLOCK..(i + 1) * BLOCK)));
        for (kind, start, len) in ops.iter().flat_map(|o| &o.extents) {
            for b in *start..start + len {
                cells[b as usize] = match kind {
                    ExtentKind::Trim => Cell::Trim,
                    ExtentKind::Zero => Cell::Zero,
                    ExtentKind::Data => Cell::Data(data.next().expect("a block for each")),
                };
            }
        }
        let mut branch = self.last().branch.clone();
        branch.push(self.steps.len());
        self.push(Kind::Frame, chain, Rc::new(cells), branch);
        frame
    }

    fn set_pins(&mut self, pins: Rc<Pins>) {
        let step = self.steps.last_mut().expect("a story has a start");
        Rc::get_mut(step).expect("just made").pins = pins;
    }

    /// Takes a snapshot, or gives the oldest one up if there are some.
    pub fn pin(&mut self, drop: bool) -> Frame {
        let mut chain = self.chain();
        let mut pins = (*self.last().pins).clone();
        let old = pins.keys().next().copied().filter(|_| drop || pins.len() > 3);
        let frame = match old {
            Some(v) => {
                pins.remove(&v);
                chain.pins(&[(UpdateKind::Release, v)])
            }
            None => {
                pins.insert(chain.version + 1, self.last().cells.clone());
                chain.pins(&[(UpdateKind::Snapshot, 0)])
            }
        };
        let (cells, mut branch) = (self.last().cells.clone(), self.last().branch.clone());
        branch.push(self.steps.len());
        self.push(Kind::Frame, chain, cells, branch);
        self.set_pins(Rc::new(pins));
        frame
    }

    /// Opens the next view where the story is.
    pub fn view(&mut self) -> Frame {
        self.views += 1;
        let mut chain = self.chain();
        let frame = chain.view_frame(self.views, self.views as u8);
        let (cells, mut branch) = (self.last().cells.clone(), self.last().branch.clone());
        branch.push(self.steps.len());
        self.push(Kind::Frame, chain, cells, branch);
        frame
    }

    pub fn attach(&mut self) -> Frame {
        let mut chain = self.chain();
        let frame = chain.attach_frame(self.views);
        let (cells, mut branch) = (self.last().cells.clone(), self.last().branch.clone());
        branch.push(self.steps.len());
        self.push(Kind::Frame, chain, cells, branch);
        frame
    }

    pub fn mark(&mut self, promised: u64) {
        let l = self.last();
        let step = Step {
            kind: Kind::Mark,
            present: true,
            chain: l.chain.clone(),
            cells: l.cells.clone(),
            promised: l.promised.max(promised),
            pins: l.pins.clone(),
            branch: l.branch.clone(),
        };
        self.steps.push(Rc::new(step));
    }

    pub fn carry(&mut self) {
        let (chain, cells, branch) = (self.last().chain.clone(), self.last().cells.clone(), self.last().branch.clone());
        self.push(Kind::Carry, chain, cells, branch);
    }

    /// Steps that a cut may go back to.
    pub fn cut_targets(&self) -> Vec<usize> {
        let here = self.last().chain.sequence;
        let at = |i: &usize| self.steps[*i].chain.sequence;
        let may = |i: &usize| at(i) >= self.committed.max(1) && at(i) < here;
        self.last().branch.iter().copied().filter(may).collect()
    }

    /// Goes back to an earlier step; its sequence.
    pub fn cut(&mut self, target: usize) -> Sequence {
        let t = self.steps[target].clone();
        self.straight = self.steps.len();
        self.push(Kind::Cut, t.chain.clone(), t.cells.clone(), t.branch.clone());
        self.set_pins(t.pins.clone());
        Sequence(t.chain.sequence)
    }

    /// Nothing is left but a promise, if one is to stay.
    pub fn forget(&mut self, promised: u64) {
        self.lives += 1;
        let mut chain = Chain::new(self.shard);
        chain.chunk.counter = (self.lives * 500) as u32;
        self.straight = self.steps.len();
        self.committed = 0;
        let step = Step {
            kind: Kind::Forget,
            present: promised > 0,
            chain,
            cells: Rc::new(vec![Cell::Trim; BLOCKS as usize]),
            promised,
            pins: Rc::default(),
            branch: Vec::new(),
        };
        self.steps.push(Rc::new(step));
    }

    /// An answer from the log.
    pub fn hear(&mut self, done: &Durable) -> Result<(), String> {
        let Some(step) = self.steps.get(self.heard + 1) else {
            return Err(format!("shard {}: an answer to nothing: {done:?}", self.shard));
        };
        let right = match (step.kind, done) {
            (Kind::Frame, Durable::Frame { sequence, .. }) => sequence.0 == step.chain.sequence,
            (Kind::Cut, Durable::Cut { to, .. }) => to.0 == step.chain.sequence,
            (Kind::Mark, Durable::Mark { .. })
            | (Kind::Carry, Durable::Carry { .. })
            | (Kind::Forget, Durable::Forget { .. }) => true,
            _ => false,
        };
        if !right {
            return Err(format!("shard {}: {done:?} is no answer to a {:?}", self.shard, step.kind));
        }
        self.heard += 1;
        // A cut is not written; the next record says it.
        if step.kind != Kind::Cut {
            self.floor = self.heard;
        }
        Ok(())
    }

    /// Whether the engine's state is that of a step.
    fn is(&self, n: usize, st: Option<&ShardState>, promises: bool) -> bool {
        let step = &self.steps[n];
        match st {
            None => !step.present,
            Some(st) if !step.present || (promises && st.promised.0 < step.promised) => false,
            Some(st) if step.chain.sequence == 0 => st.last.sequence.0 == 0,
            Some(st) => st.last == step.chain.name() && st.version.0 == step.chain.version,
        }
    }

    /// The step that the engine's state is that of; an older one than the floor only if `older`, where marks may be
    /// lost, too.
    pub fn find(&self, st: Option<&ShardState>, older: bool) -> Result<usize, String> {
        let least = if older { 0 } else { self.floor };
        if let Some(n) = (least..self.steps.len()).rev().find(|n| self.is(*n, st, !older)) {
            return Ok(n);
        }
        let what = st.map(|s| (s.last.view, s.last.sequence, s.version, s.promised));
        let (floor, last) = (&self.steps[self.floor].chain, &self.last().chain);
        Err(format!(
            "shard {}: {what:?} is no state that may be; promised is step {} (sequence {}), sent {} ({})",
            self.shard,
            self.floor,
            floor.sequence,
            self.steps.len() - 1,
            last.sequence
        ))
    }

    /// The story goes on from step `n`, which is what is there.
    pub fn back_to(&mut self, n: usize, committed: u64) {
        self.steps.truncate(n + 1);
        (self.heard, self.floor, self.straight) = (n, n, n);
        self.committed = if self.last().present { self.committed.max(committed) } else { 0 };
    }
}
