//! Intervals over several shards on their way: prepared in each, decided in the first one, and then committed in the others
//! (rules I1, I2).
//!
//! A group has a part in each of the shards. Each part is prepared by an update of its own, with a number of its own (W3);
//! so are the commit and the abort that follow. The group's number is the interval's, and each attempt has another one.
//!
//! Invariants: commit is asked for in the deciding shard only when all parts are prepared on A members, and in the others
//! only when it is durable there; the client is answered then. An attempt that was refused somewhere is aborted wherever it
//! may be prepared before there is another one, or an answer. Blocks are kept from before the first prepare until the outcome
//! is durable in their shard.

use crate::members::Backoff;
use crate::plan::{Placed, Plan};
use crate::slab::Key;
use crate::timers::Timer;
use crate::{Action, Driver, Mutant};
use freebs_format::IntervalId;
use freebs_format::UpdateKind;
use freebs_format::wire::IntervalPart;
use freebs_types::{Error, IntervalNumber, Nanos, Sequence, ViewNumber};

/// What a part of a group does in its shard now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Its old blocks are read, or it waits for the others.
    #[default]
    Nothing,
    Prepare,
    Prepared,
    Commit,
    Abort,
}

/// The step that a group is at.
#[derive(Debug)]
enum Step {
    /// Blocks are taken, and old contents read.
    Gather,
    Prepare,
    /// All is prepared, and the deciding shard was asked to commit.
    Decide,
    /// It is decided, and the other shards are told.
    Finish,
    /// It is undone where it was prepared, and tried again, or not.
    Abort {
        again: bool,
    },
    /// It is tried again at a time.
    Rest,
}

/// An interval over several shards.
pub(crate) struct Group {
    /// `None`: its client has its answer.
    request: Option<u64>,
    /// In the order of the shards; the first one decides.
    parts: Vec<Key>,
    step: Step,
    /// Parts that the step waits for.
    left: usize,
    number: IntervalNumber,
    participants: Vec<freebs_types::ShardId>,
    placed: Vec<Placed>,
    error: Option<Error>,
    due: Option<Nanos>,
    backoff: Backoff,
}

impl Driver {
    /// Takes the blocks of all plans in one step, so intervals and writes wait only for earlier ones.
    pub(crate) fn begin_group(&mut self, id: u64, plans: Vec<Plan>) {
        let mut participants: Vec<_> = plans.iter().map(|p| self.shards[p.shard()].id).collect();
        participants.sort_unstable();
        let group = self.groups.insert(Group {
            request: Some(id),
            parts: Vec::new(),
            step: Step::Gather,
            left: plans.len(),
            number: IntervalNumber(0),
            participants,
            placed: Vec::new(),
            error: None,
            due: None,
            backoff: Backoff::default(),
        });
        for plan in plans {
            let key = self.begin_plan(id, plan, true);
            if let Some(part) = self.parts.get_mut(key) {
                part.group = Some(group);
            }
            if let Some(g) = self.groups.get_mut(group) {
                g.parts.push(key);
            }
        }
        let of = |key: &Key| self.parts.get(*key).map(|p| self.shards[p.shard].id);
        if let Some(g) = self.groups.get(group) {
            let mut parts = g.parts.clone();
            parts.sort_by_key(of);
            if let Some(g) = self.groups.get_mut(group) {
                g.parts = parts;
            }
        }
    }

    /// All that one of its parts changes is known.
    pub(crate) fn part_gathered(&mut self, group: Key, out: &mut Vec<Action>) {
        let Some(g) = self.groups.get_mut(group) else { return };
        g.left -= 1;
        if g.left == 0 {
            self.prepare_group(group, out);
        }
    }

    fn prepare_group(&mut self, group: Key, out: &mut Vec<Action>) {
        let number = self.next_interval;
        self.next_interval = number.next();
        self.open_intervals.insert(number);
        let Some(g) = self.groups.get_mut(group) else { return };
        (g.number, g.step, g.left) = (number, Step::Prepare, g.parts.len());
        (g.error, g.placed) = (None, Vec::new());
        for key in g.parts.clone() {
            self.part_does(key, Doing::Prepare, out);
        }
    }

    /// Sends what the part is to do next.
    fn part_does(&mut self, key: Key, doing: Doing, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(key) else { return };
        (part.doing, part.number) = (doing, None);
        let s = part.shard;
        self.shards[s].outbox.push_back(key);
        self.send_waiting(s, out);
    }

    /// The kind of a part's request, and what it says of its interval.
    pub(crate) fn interval_request(&self, group: Key, doing: Doing) -> Option<(UpdateKind, IntervalPart)> {
        let g = self.groups.get(group)?;
        let kind = match doing {
            Doing::Prepare => UpdateKind::Prepare,
            Doing::Commit => UpdateKind::Commit,
            Doing::Abort => UpdateKind::Abort,
            Doing::Nothing | Doing::Prepared => return None,
        };
        let id = IntervalId { decider: *g.participants.first()?, driver: self.driver, number: g.number };
        let lowest_open = self.open_intervals.first().copied().unwrap_or(self.next_interval);
        let participants = if doing == Doing::Prepare { g.participants.clone() } else { Vec::new() };
        Some((kind, IntervalPart { id, lowest_open, participants }))
    }

    /// What a part asked for is durable on A members.
    pub(crate) fn part_durable(
        &mut self,
        (group, key): (Key, Key),
        view: ViewNumber,
        sequence: Sequence,
        out: &mut Vec<Action>,
    ) {
        let early = self.mutated(Mutant::DecideEarly);
        let (Some(g), Some(part)) = (self.groups.get_mut(group), self.parts.get_mut(key)) else { return };
        let placed = Placed { shard: self.shards[part.shard].id, view, sequence };
        let does = part.doing;
        part.number = None;
        match (does, &g.step) {
            (Doing::Prepare, Step::Prepare) => {
                part.doing = Doing::Prepared;
                g.placed.push(placed);
                g.left -= 1;
                if g.left == 0 || (early && g.parts.first() == Some(&key)) {
                    self.decide(group, out);
                }
            }
            // It was too late to keep it from being prepared.
            (Doing::Prepare, _) => self.part_does(key, Doing::Abort, out),
            (Doing::Commit, Step::Decide) => {
                g.placed.retain(|p| p.shard != placed.shard);
                g.placed.push(placed);
                self.decided(group, key, out);
            }
            (Doing::Commit, Step::Finish) => {
                self.end_part(key, Ok(Vec::new()), out);
                self.group_went_on(group, out);
            }
            (Doing::Abort, _) => {
                part.doing = Doing::Nothing;
                self.group_went_on(group, out);
            }
            _ => {}
        }
    }

    /// I1: all of it is prepared on A members of each shard.
    fn decide(&mut self, group: Key, out: &mut Vec<Action>) {
        let Some(g) = self.groups.get_mut(group) else { return };
        g.step = Step::Decide;
        let decider = *g.parts.first().expect("a group has parts");
        self.part_does(decider, Doing::Commit, out);
    }

    /// I1: the decision is durable: that is the answer. The other shards hear of it.
    fn decided(&mut self, group: Key, decider: Key, out: &mut Vec<Action>) {
        let Some(g) = self.groups.get_mut(group) else { return };
        g.step = Step::Finish;
        let (request, mut placed) = (g.request.take(), std::mem::take(&mut g.placed));
        let others: Vec<Key> = g.parts.iter().copied().filter(|k| *k != decider).collect();
        g.left = others.len();
        placed.sort_unstable_by_key(|p| p.shard);
        for key in &others {
            if let Some(part) = self.parts.get_mut(*key) {
                part.request = None;
            }
            self.part_does(*key, Doing::Commit, out);
        }
        if let Some(request) = request {
            self.interval_decided(request, placed);
        }
        self.end_part(decider, Ok(Vec::new()), out);
    }

    /// One part less that the step waits for.
    fn group_went_on(&mut self, group: Key, out: &mut Vec<Action>) {
        let Some(g) = self.groups.get_mut(group) else { return };
        g.left -= 1;
        if g.left > 0 {
            return;
        }
        self.open_intervals.remove(&g.number);
        let Step::Abort { again } = g.step else {
            self.groups.remove(group);
            return;
        };
        if again && g.request.is_some() {
            g.step = Step::Rest;
            let at = self.now.plus(g.backoff.next());
            self.timers.arm(&mut g.due, at, Timer::Group(group));
            return;
        }
        self.end_group(group, out);
    }

    /// The pause after an attempt that was aborted is over.
    pub(crate) fn try_again(&mut self, group: Key, out: &mut Vec<Action>) {
        let Some(g) = self.groups.get_mut(group) else { return };
        g.due = None;
        if matches!(g.step, Step::Rest) {
            self.prepare_group(group, out);
        }
    }

    /// Nothing of it is anywhere, nor will be.
    fn end_group(&mut self, group: Key, out: &mut Vec<Action>) {
        let Some(mut g) = self.groups.remove(group) else { return };
        self.timers.disarm(&mut g.due, Timer::Group(group));
        let error = g.error.unwrap_or_else(late);
        for key in g.parts {
            self.end_part(key, Err(error.clone()), out);
        }
    }

    /// An old block of one of its parts can't be read: nothing was asked for yet.
    pub(crate) fn fail_group(&mut self, group: Key, error: Error, out: &mut Vec<Action>) {
        if let Some(g) = self.groups.get_mut(group) {
            assert!(matches!(g.step, Step::Gather), "old blocks are read before anything is asked for");
            g.error = Some(error);
        }
        self.end_group(group, out);
    }

    /// What a part asked for was refused for good. `again`: another attempt may do.
    pub(crate) fn part_refused(&mut self, (group, key): (Key, Key), error: Error, again: bool, out: &mut Vec<Action>) {
        let (Some(g), Some(part)) = (self.groups.get_mut(group), self.parts.get_mut(key)) else { return };
        let does = std::mem::take(&mut part.doing);
        part.number = None;
        match (does, &g.step) {
            (Doing::Prepare, Step::Prepare) | (Doing::Commit, Step::Decide) => {
                self.abort_group(group, error, again, out);
            }
            // Only if the shard is gone, with all that was there.
            (Doing::Commit, _) => {
                self.end_part(key, Ok(Vec::new()), out);
                self.group_went_on(group, out);
            }
            _ => self.group_went_on(group, out),
        }
    }

    /// Undoes what was prepared, and what may still be.
    fn abort_group(&mut self, group: Key, error: Error, again: bool, out: &mut Vec<Action>) {
        let Some(g) = self.groups.get_mut(group) else { return };
        (g.step, g.error) = (Step::Abort { again }, Some(error));
        // One more, so that it does not end on the way.
        g.left = g.parts.len() + 1;
        for key in g.parts.clone() {
            let Some(part) = self.parts.get_mut(key) else { continue };
            match part.doing {
                Doing::Prepared => self.part_does(key, Doing::Abort, out),
                // Its fate is awaited: it is aborted when it is prepared.
                Doing::Prepare if part.number.is_some() => {}
                _ => {
                    if part.doing == Doing::Prepare {
                        self.shards[part.shard].outbox.retain(|k| *k != key);
                    }
                    part.doing = Doing::Nothing;
                    self.group_went_on(group, out);
                }
            }
        }
        self.group_went_on(group, out);
    }

    /// Its client was told that it takes too long, and its parts are without a request. True if nothing of it will ever be.
    pub(crate) fn group_expired(&mut self, group: Key, out: &mut Vec<Action>) -> bool {
        let Some(g) = self.groups.get_mut(group) else { return true };
        g.request = None;
        match g.step {
            Step::Gather | Step::Rest => self.end_group(group, out),
            Step::Prepare => self.abort_group(group, late(), false, out),
            Step::Abort { .. } => {}
            Step::Decide | Step::Finish => return false,
        }
        true
    }

    /// The group of a request that is one.
    pub(crate) fn group_of(&self, parts: &[Key]) -> Option<Key> {
        parts.iter().find_map(|key| self.parts.get(*key)?.group)
    }

    fn interval_decided(&mut self, request: u64, placed: Vec<Placed>) {
        let Some(request) = self.requests.get_mut(&request) else { return };
        request.is_decided(placed);
    }
}

/// The error of an interval that was aborted because it took too long.
pub(crate) fn late() -> Error {
    Error::busy("the interval was aborted: not all of its shards could prepare it in time")
}
