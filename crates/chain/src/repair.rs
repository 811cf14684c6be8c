//! What a replica does about damage in its own log (rule E7): frames that were lost are fetched and put back, and a
//! tail that may have lost frames is compared with the chain's before it is trusted again.
//!
//! Invariant: nothing is cut because of damage; until it is mended the replica's seal answers do not count.

use crate::event::Action;
use crate::replica::{Ctx, Replica};
use crate::sync::Asking;
use freebs_format::wire::{FrameName, Message, SyncRequest};
use freebs_format::{Frame, hide};
use freebs_lsvd::{MarkChange, Record};
use freebs_types::{Nanos, Peer, Sequence, ViewNumber};

const PATIENCE: Nanos = Nanos::from_millis(500);

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
        if self.damage.asking.is_some_and(|a| ctx.now.since(a.at) < PATIENCE) || self.view.is_none() {
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
        let view = self.view_number().max(self.promise());
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
    pub fn take_repairs(&mut self, ctx: &mut Ctx<'_>, id: u64, view: ViewNumber, frames: &[Frame]) -> bool {
        let Some(asking) = self.damage.asking.filter(|a| a.id == id && a.view == view) else { return false };
        self.damage.asking = None;
        let Some(hole) = self.damage.holes.first_mut() else { return true };
        for f in frames {
            let follows =
                f.head.seq() == hole.before.sequence.next() && hide(&f.header().parent_token()) == hole.before.hid;
            if !follows || f.head.seq() > asking.until || f.verify_data().is_err() || f.verify_digest().is_err() {
                return true;
            }
            let h = f.header();
            hole.before = FrameName { view: h.view_number(), sequence: h.seq(), hid: h.hid() };
            ctx.out.actions.push(Action::Append(Record::Repair(f.clone())));
        }
        if hole.before.sequence >= hole.until {
            ctx.out.note(format!("shard {}: lost frames up to {} were fetched again", self.id, hole.until));
            self.damage.holes.remove(0);
        }
        true
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
