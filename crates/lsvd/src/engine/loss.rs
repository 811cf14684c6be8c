//! Frames that a log has lost for good, if there is no other copy to ask: they are named, and a mark in the log says that
//! they are taken for lost.
//!
//! Invariants: the mark claims nothing. It ends what recovery refuses for the sake of frames that may come back, and the
//! blocks that they may have written are as older frames left them. It says that frames were given up by force, so the
//! log answers no seal as if it were whole (rules V2 and V10).

use super::Engine;
use crate::shard::Shard;
use crate::{Learned, Lost, MarkChange, Record};
use freebs_io::Device;
use freebs_types::{Result, Sequence, ShardId, ViewNumber};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Frames that a shard misses, or may miss.
pub(crate) fn lost_of(s: &Shard) -> Option<Lost> {
    let frames: Vec<_> = s.holes.iter().map(|h| (Sequence(h.from), Sequence(h.to))).collect();
    let (last, version) = (s.tip.name.sequence, s.tip.version);
    s.is_wounded().then_some(Lost { shard: s.id, last, version, tail: s.suspect, frames })
}

impl<D: Device> Engine<D> {
    /// Frames that are lost of each shard, or may be, in order of the shards.
    pub fn lost(&self) -> Vec<Lost> {
        self.inner.core.borrow().shards.values().filter_map(lost_of).collect()
    }

    /// The highest view that the shard's log knows of; 1 at least.
    fn last_view(&self, shard: ShardId) -> ViewNumber {
        let core = self.inner.core.borrow();
        let view = core.shards.get(&shard).map_or(ViewNumber(0), |s| s.promised.max(s.tip.name.view));
        view.max(ViewNumber(1))
    }

    /// Takes all of `lost` for lost, for good, and closes the log. Only for a log that is the only copy: a member of a
    /// chain asks the others. The writer must not have been started.
    pub async fn accept_loss(&self) -> Result<()> {
        for lost in self.lost() {
            // Nothing is released for a tail: of what is behind the last frame nothing is known.
            let range = lost.frames.first().zip(lost.frames.last());
            let (since, upto) = range.map_or((Sequence(0), Sequence(0)), |(first, last)| (first.0, last.1));
            let since = Sequence(since.0.saturating_sub(1));
            let learned = Learned { since, upto, given_up: self.last_view(lost.shard), ..Learned::default() };
            let change = MarkChange { trusted: true, learned: Some(Box::new(learned)), ..MarkChange::default() };
            self.append(Record::Mark { shard: lost.shard, change, ticket: 0 });
        }
        let (mut run, mut close) = (pin!(self.run()), pin!(self.close()));
        let (mut ran, mut closed) = (None, None);
        poll_fn(|cx| {
            if ran.is_none()
                && let Poll::Ready(end) = run.as_mut().poll(cx)
            {
                ran = Some(end);
            }
            if closed.is_none()
                && let Poll::Ready(end) = close.as_mut().poll(cx)
            {
                closed = Some(end);
            }
            if ran.is_some() && closed.is_some() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        closed.expect("it is over")
    }
}
