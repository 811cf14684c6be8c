//! Leases: the right to answer, which members lend for a while (rules L1 to L3).
//!
//! Another driver may take the volume over while this one knows nothing of it. So this one gives a success to a client
//! only while A members of the view have said not long ago that they know of nobody newer (L1), and is ready only
//! when the leases have ended that those members gave to older generations (L3). What has ended without leases is held
//! back and answered when they are there again; its limit goes on. Errors need no lease.
//!
//! Invariants: a lease is a member's and not a view's, so it stays when the view changes and the member is in the new
//! one; but one that was given in a view that this driver does not know yet is none, for its quorum may be another one;
//! a lease counts from the time of asking, by this driver's clock; there is one timer per shard, always in the future.

use crate::members::Backoff;
use crate::requests::Request;
use crate::shard::Shard;
use crate::timers::Timer;
use crate::{Action, Driver, Mutant, timing};
use freebs_format::wire::{Leased, Message};
use freebs_types::timing::CLOCK_DRIFT_ONE_IN;
use freebs_types::{Nanos, Peer};

/// What a member has lent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lease {
    /// 0 for none.
    pub until: Nanos,
    /// The last stamp that it was sent.
    asked: Option<Nanos>,
    /// It is not asked before this time.
    rest_until: Nanos,
    backoff: Backoff,
}

impl Lease {
    /// A new link: what was asked over the old one will not be answered.
    pub fn link_up(&mut self) {
        (self.rest_until, self.backoff) = (Nanos(0), Backoff::default());
    }

    fn due(&self) -> Nanos {
        self.rest_until.max(self.until.since(timing::LEASE_RENEW_LEFT))
    }

    /// A stamp of ours, not older than a lease is long.
    fn fits(&self, stamp: Nanos, now: Nanos) -> bool {
        stamp <= now && stamp.plus(timing::LEASE) > now && self.asked.is_some_and(|asked| stamp <= asked)
    }
}

impl Shard {
    /// The member has the attach frame, as far as is known, so it may lend.
    fn may_lend(&self, m: usize) -> bool {
        let durable = self.members[m].durable;
        self.known && durable.is_some_and(|d| self.passed || self.barrier.is_some_and(|b| b <= d))
    }
}

impl Driver {
    /// A mutant of L1; and of R2, which leases would cover: who has them has an attach frame that A members hold.
    fn needs_no_lease(&self) -> bool {
        self.mutated(Mutant::AnswerWithoutLease) || self.mutated(Mutant::NoBarrier)
    }

    /// L1: A members of the present view have lent.
    fn held(&self, s: usize) -> bool {
        let shard = &self.shards[s];
        let held = shard.members.iter().filter(|m| m.lease.until > self.now).count();
        let needed = if self.mutated(Mutant::OneLeaseIsEnough) { 1 } else { shard.quorum };
        (shard.known && shard.quorum > 0 && held >= needed) || self.needs_no_lease()
    }

    /// Whether a success may be given now: there are leases in every shard that the request has touched, or in one
    /// if it has touched none. L3: before this driver is ready, older ones may still answer.
    fn may_answer(&self, request: &Request) -> bool {
        let mut touched = request.shards().peekable();
        let held = match touched.peek() {
            Some(_) => touched.all(|s| self.held(s)),
            None => (0..self.shards.len()).any(|s| self.held(s)),
        };
        held && (self.ready || self.needs_no_lease())
    }

    /// Everything that the request wanted has been done: its client hears of it, now or when there are leases again.
    pub(crate) fn answer(&mut self, id: u64, out: &mut Vec<Action>) {
        let Some(request) = self.requests.get(&id) else { return };
        if request.failed() || self.may_answer(request) {
            return self.reply(id, out);
        }
        let place = self.next_held;
        self.next_held += 1;
        self.held_back.insert(place, id);
        if let Some(request) = self.requests.get_mut(&id) {
            request.held = Some(place);
        }
    }

    /// Answers what was held back, in order of ending, as far as there are leases now.
    pub(crate) fn release(&mut self, out: &mut Vec<Action>) {
        if self.held_back.is_empty() || !(0..self.shards.len()).any(|s| self.held(s)) {
            return;
        }
        let may = |id: &u64| self.requests.get(id).is_some_and(|r| self.may_answer(r));
        let ids: Vec<u64> = self.held_back.values().filter(|id| may(id)).copied().collect();
        ids.into_iter().for_each(|id| self.reply(id, out));
    }

    /// R2 and L3: every shard is past the barrier, A members have lent, and what they lent to others has ended.
    pub(crate) fn become_ready(&mut self, out: &mut Vec<Action>) {
        let waits = !self.alone && !self.mutated(Mutant::OlderNotWaitedFor);
        let ended = |shard: &Shard| !waits || shard.older_until <= self.now;
        if !self.ready && self.shards.iter().enumerate().all(|(s, shard)| shard.passed && self.held(s) && ended(shard))
        {
            self.ready = true;
            out.push(Action::Ready);
            self.release(out);
        }
    }

    /// Asks the members that are due, all in one go, and sets the timer for the next.
    pub(crate) fn tend_leases(&mut self, s: usize, out: &mut Vec<Action>) {
        let now = self.now;
        let older = self.shards[s].older_until;
        let mut next = (!self.ready && !self.alone && older > now).then_some(older);
        for m in 0..self.shards[s].members.len() {
            let to = self.shards[s].members[m].peer;
            if !self.shards[s].may_lend(m) || !self.is_up(to) {
                continue;
            }
            let shard = &mut self.shards[s];
            let lease = &mut shard.members[m].lease;
            if lease.due() <= now {
                (lease.asked, lease.rest_until) =
                    (Some(now), now.plus(lease.backoff.next().max(timing::LEASE_ASK_AGAIN)));
                let (generation, driver) = (self.generation, self.driver);
                let message = Message::Lease { shard: shard.id, generation, driver, stamp: now };
                out.push(Action::Send { to, message });
            }
            let due = lease.due();
            next = Some(next.map_or(due, |n| n.min(due)));
        }
        let slot = &mut self.shards[s].lease_due;
        match next {
            Some(at) => self.timers.arm(slot, at, Timer::Lease(s)),
            None => self.timers.disarm(slot, Timer::Lease(s)),
        }
    }

    /// The timer: a lease is to be asked for, or those of older generations have ended.
    pub(crate) fn leases_due(&mut self, s: usize, out: &mut Vec<Action>) {
        self.shards[s].lease_due = None;
        self.become_ready(out);
        self.tend_leases(s, out);
    }

    pub(crate) fn leased(&mut self, from: Peer, leased: Leased, out: &mut Vec<Action>) {
        let Some(&s) = self.by_id.get(&leased.shard) else { return };
        let (now, ready) = (self.now, self.ready);
        let shard = &mut self.shards[s];
        let Some(m) = shard.position(from) else { return };
        if leased.generation != self.generation {
            return;
        }
        if !ready {
            // Also if the lease itself comes too late: the member knows of older ones. Its clock may be slow.
            let ms = u64::from(leased.older_ms);
            let longest = Nanos::from_millis(ms + (2 * ms).div_ceil(CLOCK_DRIFT_ONE_IN));
            shard.older_until = shard.older_until.max(if ms > 0 { now.plus(longest) } else { Nanos(0) });
        }
        if leased.view > shard.view && self.mutant != Some(Mutant::LeasesOfAnyView) {
            // It counts in the view that it was given in: asked for again when that is known.
            let lease = &mut shard.members[m].lease;
            (lease.rest_until, lease.backoff) = (now.plus(timing::LEASE_ASK_AGAIN), Backoff::default());
            self.ask_news(s, from, leased.view, out);
            return self.tend_leases(s, out);
        }
        let lease = &mut shard.members[m].lease;
        if lease.fits(leased.stamp, now) {
            lease.until = lease.until.max(leased.stamp.plus(timing::LEASE));
            lease.backoff = Backoff::default();
        }
        self.become_ready(out);
        self.release(out);
        self.tend_leases(s, out);
    }
}
