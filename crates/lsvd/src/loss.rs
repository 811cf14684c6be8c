//! What a log has lost for good, if there is no other copy to ask: it is said, and a mark in the log says that it is
//! taken so.
//!
//! Invariant: the mark claims nothing. It ends what recovery refuses for the sake of frames that may come back, and the
//! blocks that they may have written are as older frames left them.

use crate::engine::Engine;
use crate::shard::Shard;
use crate::{Learned, MarkChange, Record};
use freebs_io::Device;
use freebs_types::{Result, Sequence, ShardId, Version};
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// What one shard misses, or may miss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The shard.
    pub shard: ShardId,
    /// The last frame that is here, and the version behind it.
    pub last: Sequence,
    /// The version of the last update that is here.
    pub version: Version,
    /// Durable updates behind `version` may be lost.
    pub tail: bool,
    /// Frames that are lost, as ranges. Blocks that were not written behind them may be older than they were.
    pub frames: Vec<(Sequence, Sequence)>,
}

impl Lost {
    pub(crate) fn of(s: &Shard) -> Option<Self> {
        let frames: Vec<_> = s.holes.iter().map(|h| (Sequence(h.from), Sequence(h.to))).collect();
        let (last, version) = (s.tip.name.sequence, s.tip.version);
        s.is_wounded().then(|| Self { shard: s.id, last, version, tail: s.suspect, frames })
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tail {
            write!(f, "updates behind version {}, if there were any, are lost", self.version)?;
        }
        for (i, (from, to)) in self.frames.iter().enumerate() {
            let join = if self.tail || i > 0 { "; " } else { "" };
            write!(
                f,
                "{join}frames {from} to {to} are lost, and blocks not written behind them may be older than they were"
            )?;
        }
        Ok(())
    }
}

impl<D: Device> Engine<D> {
    /// What is lost of each shard, or may be, in order of the shards.
    pub fn lost(&self) -> Vec<Lost> {
        self.inner.core.borrow().shards.values().filter_map(Lost::of).collect()
    }

    /// Takes all of `lost` for lost, for good, and closes the log. Only for a log that is the only copy: a member of a
    /// chain asks the others. The writer must not have been started.
    pub async fn accept_loss(&self) -> Result<()> {
        for lost in self.lost() {
            let range = lost.frames.first().zip(lost.frames.last());
            let learned = range.map(|(first, last)| {
                let since = Sequence(first.0.0.saturating_sub(1));
                Box::new(Learned { since, upto: last.1, ..Learned::default() })
            });
            let change = MarkChange { trusted: true, learned, ..MarkChange::default() };
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
