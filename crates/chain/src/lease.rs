//! Leases that a member gives to the driver of the present attachment (L1, L2).
//!
//! A driver answers its client only while it holds leases of A members. A member gives none to a driver of an older
//! generation than it knows, and tells the driver of a newer one how long those may still run that it gave before.
//! Leases are the member's, not a view's: one that was given in an earlier view is reported in a later one.
//!
//! Invariants: `granted` and `older` are never earlier than the end of any lease given here, as far as the clocks keep
//! to their drift; no lease is given before the attach frame of its generation is durable in this log.

use crate::event::Mutant;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::ViewBody;
use freebs_format::wire::{Leased, Message, Refusal, Request};
use freebs_io::LinkId;
use freebs_types::{DriverId, Generation, Nanos, Sequence};

/// Until when leases of this member may run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Leases {
    /// Leases of the present generation.
    granted: Nanos,
    /// Leases of older ones.
    older: Nanos,
    /// Until when the driver of the present one may be silent.
    quiet: Nanos,
    /// Set by the first step: what was given before it is not known.
    begun: bool,
    /// The attach frame of the present generation, 0 if it is not in this log behind what was durable at the start.
    attached_at: Sequence,
    /// The newest generation that was given out, and since when its driver could have come here.
    given_out: (Generation, Nanos),
}

impl Leases {
    /// Leases that an earlier process of this node gave may still run, and so may those that members of a view gave
    /// in which this one was none.
    pub fn begin(&mut self, now: Nanos) {
        if !std::mem::replace(&mut self.begun, true) {
            self.assume(now);
        }
    }

    fn assume(&mut self, now: Nanos) {
        self.granted = self.granted.max(now.plus(timing::LEASE));
        self.older = self.older.max(now.plus(timing::LEASE));
    }

    /// A higher generation is known: no more leases for those before it.
    pub fn raise(&mut self) {
        self.older = self.older.max(self.granted);
        self.granted = Nanos(0);
    }

    /// Whether a cut may take the attach frame; one that was there at the start may lie anywhere.
    pub fn may_be_cut(&self, to: Sequence) -> bool {
        self.attached_at == Sequence(0) || self.attached_at > to
    }

    pub fn attached_at(&mut self, sequence: Sequence) {
        self.attached_at = sequence;
    }

    /// The control plane gave this generation out.
    pub fn given_out(&mut self, generation: Generation, now: Nanos) {
        if generation > self.given_out.0 {
            self.given_out = (generation, now);
        }
    }

    /// Drivers can come from now on.
    pub fn wait_for_all(&mut self, now: Nanos) {
        self.wait_for_driver(now);
        self.given_out.1 = now;
    }

    /// From now on the driver could have leases, and has this long to ask.
    pub fn wait_for_driver(&mut self, now: Nanos) {
        self.quiet = now.plus(timing::LEASE);
    }
}

/// True if a quorum of the view before and one of the next need not have a member in common (L6).
pub(crate) fn quorums_are_apart(before: &ViewBody, next: &ViewBody) -> bool {
    usize::from(before.quorum) + usize::from(next.quorum) <= before.members.len()
}

impl Replica {
    /// This node was no member of the view before, or missed it: others may have given leases, and may not be asked any
    /// more.
    pub(crate) fn assume_leases(&mut self, now: Nanos) {
        self.leases.assume(now);
    }

    /// A driver asks for the right to answer its client for a while. Who can't have it now gets no answer, and asks again.
    pub fn on_lease(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: LinkId,
        (generation, driver): (Generation, DriverId),
        stamp: Nanos,
    ) {
        let anyone = ctx.mutant(Mutant::LeasesToAnyone);
        if generation < self.attach.generation && !anyone {
            self.refuse(ctx, link, Request::Attach, Refusal::Fenced);
            return;
        }
        let is_its = generation == self.attach.generation && driver == self.attach.driver && driver != DriverId(0);
        if is_its {
            self.leases.wait_for_driver(ctx.now);
        }
        let is_granted = is_its && self.may_lease(ctx.config.mutant) || anyone && self.active_known && self.serves();
        if !is_granted {
            return;
        }
        let is_unpromised = self.view_number() >= self.promise() || ctx.mutant(Mutant::LeasesPastPromises);
        assert!(is_unpromised, "nothing is lent in a view below a promise (V2)");
        self.leases.granted = self.leases.granted.max(ctx.now.plus(timing::LEASE));
        let older_ms = self.leases.older.since(ctx.now).0.div_ceil(1_000_000);
        let older_ms = u32::try_from(older_ms).unwrap_or(u32::MAX);
        let older_ms = if ctx.mutant(Mutant::OlderLeasesUntold) { 0 } else { older_ms };
        let leased = Leased { shard: self.id, view: self.view_number(), generation, stamp, older_ms };
        ctx.out.send(link, Message::Leased(leased));
    }

    /// Whether the driver of the present attachment would get a lease.
    fn may_lease(&self, mutant: Option<Mutant>) -> bool {
        let skips = |m| mutant == Some(m);
        // What was lost may have been a newer attachment, but not if it lies in front of this one: generations rise.
        let at = self.leases.attached_at;
        let is_durable = at <= self.durable && !self.damage.is_there_behind(at);
        // A promise ends what is known of the view, too.
        let is_past = skips(Mutant::LeasesPastPromises) && self.promise() > self.view_number();
        let is_active = self.active_known || is_past || skips(Mutant::LeasesInPendingViews);
        let may_serve = self.serves() || is_past;
        let is_known = self.attach.driver != DriverId(0) && (is_durable || skips(Mutant::LeasesBeforeDurable));
        is_active && may_serve && is_known
    }

    /// The present generation, if its driver could have a lease here, has none, and has not asked for as long as one
    /// lasts. One that has just attached, or whose shard has a new view, is given that time first; one that is alive
    /// asks once a second. Of a generation whose driver never came that is so after `DRIVER_COMES` in an active view.
    pub fn lapsed(&self, now: Nanos) -> Option<Generation> {
        let (newest, since) = self.leases.given_out;
        let is_known =
            newest < self.attach.generation || newest == self.attach.generation && self.attach.driver != DriverId(0);
        if !is_known {
            let could_come = self.active_known && self.serves() && now >= since.plus(timing::DRIVER_COMES);
            return Some(newest).filter(|g| could_come && *g > Generation(0));
        }
        let is_silent = self.may_lease(None) && !self.is_leased(now) && self.leases.quiet <= now;
        is_silent.then_some(self.attach.generation)
    }

    /// A driver goes: it answers nobody any more.
    pub fn on_detach(&mut self, link: LinkId, generation: Generation, driver: DriverId) {
        self.clients.remove(&link);
        if generation == self.attach.generation && driver == self.attach.driver {
            self.leases.granted = Nanos(0);
            self.leases.quiet = Nanos(0);
        }
    }

    /// Whether a lease of the present generation may run.
    pub fn is_leased(&self, now: Nanos) -> bool {
        self.leases.granted > now
    }
}
