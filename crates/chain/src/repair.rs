//! What a replica does about damage in its own log (rule E7): frames that were lost are fetched and put back, and a
//! tail that may have lost frames is compared with the chain's before it is trusted again.
//!
//! Invariant: nothing is cut because of damage; until it is mended the replica's seal answers do not count.

use crate::event::Action;
use crate::replica::{Ctx, Replica};
use crate::sync::Asking;
use freebs_format::hide;
use freebs_format::wire::{FrameName, Message, SyncMode, SyncReply, SyncRequest};
use freebs_lsvd::{MarkChange, Record};
use freebs_types::{Nanos, Peer, Sequence, ViewNumber};

const PATIENCE: Nanos = Nanos::from_millis(500);
/// When all others have refused, they are asked again after this time; the next time after twice as long, and so on
/// three times: they may have given the frames up, and asked at every tick they would log nothing else.
const PAUSE: Nanos = Nanos::from_millis(500);

/// A range of frames that damage took, after `before`, up to and with `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    pub before: FrameName,
    pub until: Sequence,
}

/// What is known of the damage.
#[derive(Clone, Debug, Default)]
pub(crate) struct Damage {
    pub holes: Vec<Hole>,
    /// Frames behind the last one may be missing.
    pub suspect_tail: bool,
    asking: Option<Asking>,
    /// The mark that says that the tail was compared is on its way.
    trusting: bool,
    tried: usize,
    /// Refusals since the last frame that came, and nobody is asked before this time.
    refused: usize,
    pause_until: Nanos,
    /// Who refused in this view may not in the next one.
    asked_in: ViewNumber,
}

impl Damage {
    pub fn new(holes: Vec<Hole>, suspect_tail: bool) -> Self {
        Self { holes, suspect_tail, ..Self::default() }
    }

    pub fn is_there(&self) -> bool {
        self.suspect_tail || !self.holes.is_empty()
    }
}

impl Replica {
    /// Asks another member for the first hole's frames.
    pub fn repair_tick(&mut self, ctx: &mut Ctx<'_>) {
        let Some(hole) = self.damage.holes.first().copied() else { return };
        let asked = self.damage.asking.is_some_and(|a| ctx.now.since(a.at) < PATIENCE);
        let view = self.view_number().max(self.promise());
        if view != self.damage.asked_in {
            (self.damage.refused, self.damage.pause_until, self.damage.asked_in) = (0, Nanos(0), view);
        }
        if asked || ctx.now < self.damage.pause_until || self.view.is_none() {
            return;
        }
        let me = ctx.config.me.node;
        let others: Vec<Peer> = self
            .view
            .iter()
            .flat_map(|v| &v.body.members)
            .filter(|m| m.node != me)
            .map(|m| ctx.peer(m.node, self.id))
            .collect();
        if others.is_empty() {
            return;
        }
        let to = others[self.damage.tried % others.len()];
        self.damage.tried += 1;
        let id = ctx.ticket();
        self.damage.asking = Some(Asking {
            id,
            to,
            view,
            until: hole.until,
            named: self.last.sequence,
            at: ctx.now,
            tries: 0,
            map: None,
        });
        let Some(link) = ctx.peers.link(to) else { return };
        let request = SyncRequest {
            shard: self.id,
            view,
            id,
            names: vec![hole.before],
            until: hole.until,
            map_from: 0,
            map_since: Sequence(0),
        };
        ctx.out.send(link, Message::Sync(request));
    }

    /// Whether the answer is one to a repair; if so its frames go into the log beside the others.
    pub fn take_repairs(&mut self, ctx: &mut Ctx<'_>, reply: &SyncReply) -> bool {
        let Some(asking) = self.damage.asking.filter(|a| a.id == reply.id && a.view == reply.view) else {
            return false;
        };
        self.damage.asking = None;
        if reply.mode == SyncMode::Refused {
            self.repair_refused(ctx);
            return true;
        }
        let Some(hole) = self.damage.holes.first_mut() else { return true };
        for f in &reply.frames {
            let follows =
                f.head.seq() == hole.before.sequence.next() && hide(&f.header().parent_token()) == hole.before.hid;
            if !follows || f.head.seq() > asking.until || f.verify_data().is_err() || f.verify_digest().is_err() {
                return true;
            }
            let h = f.header();
            self.damage.refused = 0;
            hole.before = FrameName { view: h.view_number(), sequence: h.seq(), hid: h.hid() };
            ctx.out.actions.push(Action::Append(Record::Repair(f.clone())));
        }
        if hole.before.sequence >= hole.until {
            ctx.out.note(format!("shard {}: lost frames up to {} were fetched again", self.id, hole.until));
            self.damage.holes.remove(0);
        }
        true
    }

    /// One member has no frames for the hole, or does not know the view yet: the next one is asked at once, and all of
    /// them again after a pause.
    fn repair_refused(&mut self, ctx: &mut Ctx<'_>) {
        let others = self.view.as_ref().map_or(1, |v| v.body.members.len().saturating_sub(1).max(1));
        self.damage.refused += 1;
        if !self.damage.refused.is_multiple_of(others) {
            return;
        }
        let rounds = self.damage.refused / others;
        self.damage.pause_until = ctx.now.plus(Nanos(PAUSE.0 << (rounds - 1).min(3)));
        if rounds == 1
            && let Some(hole) = self.damage.holes.first()
        {
            let (from, until) = (hole.before.sequence.next(), hole.until);
            ctx.out.note(format!("shard {}: no member gives the lost frames from {from} to {until} now", self.id));
        }
    }

    /// The tail was compared with the chain's: nothing is missing behind it.
    pub fn trust_tail(&mut self, ctx: &mut Ctx<'_>) {
        if !self.damage.suspect_tail || self.damage.trusting {
            return;
        }
        self.damage.trusting = true;
        let ticket = ctx.ticket();
        self.damage.suspect_tail = false;
        let change = MarkChange { trusted: true, ..MarkChange::default() };
        ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
    }
}
