//! A shard's state for callers.

use crate::ShardState;
use crate::shard::Shard;
use freebs_format::ViewBody;
use freebs_types::Sequence;

impl Shard {
    pub fn state(&self) -> ShardState {
        let view = self.views.last().and_then(|(s, f)| Some((*s, ViewBody::decode(f.body()).ok()?)));
        let before = self.views.split_last().map_or(&[][..], |(_, before)| before);
        let views_before = before.iter().filter_map(|(s, f)| Some((f.view(), *s, ViewBody::decode(f.body()).ok()?)));
        ShardState {
            shard: self.id,
            last: self.tip.name,
            parent: self.tip.parent,
            digest: self.tip.digest,
            version: self.tip.version,
            committed: self.committed,
            promised: self.promised,
            secret: self.secret,
            view,
            views_before: views_before.collect(),
            attach: self.attaches.last().map(|a| a.1).unwrap_or_default(),
            requests: self.requests.clone(),
            holes: self.holes.iter().map(|h| (Sequence(h.from), Sequence(h.to))).collect(),
            absent: self.absent,
            suspect_tail: self.suspect,
            promise_lost: self.promise_lost,
            given_up: self.given_up,
            whole_from: self.history.whole_from,
            fork: self.fork,
            ahead: Some(self.ahead.max(self.history.pins.as_of))
                .filter(|s| *s > self.tip.name.sequence)
                .unwrap_or_default(),
            first_kept: self.first_kept(),
            open_chunk: (self.tip.chunk, self.tip.chunk_blocks),
        }
    }
}
