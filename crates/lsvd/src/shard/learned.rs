//! Frames of which only the map entries are here, learned from a peer: they are not missed, and nothing else is
//! forgiven for it.
//!
//! Invariants (rules E3, E7):
//! - A mark that says so stands behind the carries with the entries. It takes away the holes between the sequence from
//!   which entries were asked for and the one up to which they came; older holes stay.
//! - If an append that may have held some of these carries is lost, alone or with its segment, the mark takes nothing
//!   away.

use crate::Learned;
use crate::shard::Shard;
use crate::shard::holes::Hole;
use freebs_format::{FrameHead, MarkBody};
use freebs_types::Sequence;

impl Shard {
    /// Whether of the map that came before a mark a part may be lost; `damaged` is the highest lost append before it.
    /// That a whole segment is lost says nothing of when, except that it was opened before those that name it: a map that
    /// came later counts, or nothing could ever be mended, and one that came earlier must be learned once more.
    pub fn lost_since(&self, body: &MarkBody, damaged: u64, unlearned: u64) -> bool {
        match body.learned_from_append {
            0 => self.may_miss(damaged),
            first => unlearned >= first,
        }
    }

    /// What a mark at sequence `s` says was learned.
    pub fn take_learned(&mut self, s: Sequence, body: &MarkBody, lost_since: bool) {
        let (since, upto) = match (body.whole, body.learned_upto) {
            (true, _) => (body.learned_since.0, s.0),
            (false, Sequence(0)) => return,
            (false, upto) => (body.learned_since.0, upto.0),
        };
        if lost_since {
            if body.whole {
                (self.moved, self.missed) = (s.0, 0);
            }
            return;
        }
        // What was moved and lost is a hole before the learned ones are taken away.
        self.miss_moved();
        let old = std::mem::take(&mut self.holes);
        for h in old {
            let before = Hole { to: h.to.min(since), ..h };
            let behind = Hole { from: h.from.max(upto.saturating_add(1)), ..h };
            self.holes.extend([before, behind].into_iter().filter(|h| h.from <= h.to));
        }
        if since == 0 && upto >= self.moved {
            (self.moved, self.missed) = (0, 0);
        }
    }

    /// Puts what was learned into a mark at the shard's last frame. That may be cut yet, and the mark with it; so it
    /// tells nothing of requests behind it.
    pub fn learned_body(&self, learned: &Learned, body: &mut MarkBody) {
        let mut requests = learned.requests.clone();
        requests.cut(self.tip.name.sequence);
        let mut all = self.requests.clone();
        all.merge(&requests.to_format());
        body.requests = all.to_format();
        if learned.attach.generation > body.attach.generation {
            body.attach = learned.attach;
        }
        // What follows a view's frame here may be of a branch that was cut where the view was opened (V4).
        let is_ours = |f: &FrameHead| {
            learned.since < f.seq()
                && f.seq() <= learned.upto
                && f.view() == self.tip.name.view
                && body.view_frame.as_ref().is_none_or(|own| own.seq() < f.seq())
        };
        if let Some(f) = learned.view_frame.as_ref().filter(|f| is_ours(f)) {
            body.view_frame = Some(f.clone());
        }
        (body.learned_since, body.learned_upto) = (learned.since, learned.upto);
        body.given_up = body.given_up.max(learned.given_up);
        body.released = body.released.max(learned.upto);
    }
}
