//! Consistency intervals on their way: several changes of a volume that become one update of one shard, so all of
//! them or none; or one in each of several shards (`group`).
//!
//! Invariants: an interval takes the blocks of all its segments in one step, so it and others wait only for earlier
//! ones; it reads old blocks only when all of its blocks are its own; it goes to the head as one update.

use crate::blocks::Use;
use crate::plan::{Change, Placed, Plan, Progress};
use crate::requests::{Part, Request, What, Work};
use crate::slab::Key;
use crate::{Action, Driver, Mutant, REQUESTS_MAX};
use freebs_types::{BLOCK, Error, Result, Sequence, ViewNumber};

impl Driver {
    pub(crate) fn interval(&mut self, token: u64, changes: &[Change], out: &mut Vec<Action>) -> Result<()> {
        let layout = self.layout.clone()?;
        let plans = Plan::all(&layout, changes)?;
        if self.requests.len() >= REQUESTS_MAX {
            return Err(Error::retry("too many requests wait already"));
        }
        let empty = plans.is_empty();
        let deadline = self.now.plus(self.request_limit);
        let request = Request::new(token, deadline, What::Interval(Some(plans)), 0, 0, layout.walk(0, 0, 1));
        let id = self.next_request;
        self.next_request += 1;
        self.requests.insert(id, request);
        if empty {
            self.answer(id, out);
        } else {
            self.admission.push_back(id);
        }
        Ok(())
    }

    /// Its turn has come: it takes its blocks.
    pub(crate) fn begin_interval(&mut self, id: u64, mut plans: Vec<Plan>) {
        if plans.len() > 1 {
            return self.begin_group(id, plans);
        }
        if self.mutated(Mutant::SplitInterval) {
            plans = plans.into_iter().flat_map(Plan::split).collect();
        }
        for plan in plans {
            self.begin_plan(id, plan, false);
        }
    }

    /// Takes the blocks of all segments at once, so intervals and writes wait only for earlier ones.
    pub(crate) fn begin_plan(&mut self, id: u64, plan: Plan, alone: bool) -> Key {
        let charge = plan.data_bytes().max(BLOCK);
        let (shard, ranges) = (plan.shard(), plan.uses());
        let progress = Progress::new(plan);
        let range = ranges.first().expect("a plan has segments").0;
        let key = self.insert_part(id, shard, range, 0, 0, Work::Interval(Box::new(progress)), charge);
        let mut tickets = Vec::with_capacity(ranges.len());
        let mut waiting = 0;
        for (range, how) in ranges {
            let how = if alone { Use::Alone } else { how };
            let (ticket, granted) = self.shards[shard].blocks.enter(range, how, key);
            tickets.push(ticket);
            waiting += usize::from(!granted);
        }
        let part = self.parts.get_mut(key).expect("was just inserted");
        part.tickets_from(tickets);
        if let Work::Interval(progress) = &mut part.work {
            progress.waits_for(waiting);
        }
        if waiting == 0 {
            self.runnable.push_back(key);
        }
        key
    }

    /// One ticket was granted, or none was waited for.
    pub(crate) fn run_interval(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(Part { work: Work::Interval(progress), number: None, .. }) = self.parts.get_mut(key) else { return };
        if !progress.granted() {
            return;
        }
        if progress.reads_nothing() {
            return self.enqueue_interval(key, out);
        }
        self.fetch_old(key, 0, out);
        self.fetch_old(key, 1, out);
    }

    fn fetch_old(&mut self, key: Key, slot: usize, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(key) else { return };
        let (shard, Work::Interval(progress)) = (part.shard, &mut part.work) else { return };
        let Some(range) = progress.next_old(slot) else { return };
        self.fetch(key, slot, shard, range, false, out);
    }

    /// An old block has come: the next one, or on to the head.
    pub(crate) fn interval_fetched(&mut self, key: Key, slot: usize, block: Vec<u8>, out: &mut Vec<Action>) {
        let Some(Part { work: Work::Interval(progress), .. }) = self.parts.get_mut(key) else { return };
        progress.bring(slot, block);
        self.fetch_old(key, slot, out);
        if self.parts.get(key).is_some_and(|p| p.fetches == [None; 2]) {
            self.enqueue_interval(key, out);
        }
    }

    fn enqueue_interval(&mut self, key: Key, out: &mut Vec<Action>) {
        let Some(part) = self.parts.get_mut(key) else { return };
        let (s, Work::Interval(progress)) = (part.shard, &part.work) else { return };
        part.work = Work::Scattered(progress.contents());
        if let Some(group) = part.group {
            return self.part_gathered(group, out);
        }
        self.shards[s].outbox.push_back(key);
        self.send_waiting(s, out);
    }

    /// Its update is durable on A members: the place goes into the answer.
    pub(crate) fn interval_placed(&mut self, key: Key, view: ViewNumber, sequence: Sequence) {
        let Some(Part { work: Work::Scattered(_), request: Some(id), shard, .. }) = self.parts.get(key) else { return };
        let placed = Placed { shard: self.shards[*shard].id, view, sequence };
        if let Some(request) = self.requests.get_mut(id) {
            request.place(placed);
        }
    }
}
