//! Secrets of closed views of which the log still has frames, so that these can be audited when the frames that
//! published the secrets are given up (design note 26).
//!
//! Invariants: at most `limits::CLOSED_VIEWS_MAX` of a shard, the newest ones, in the order of their views. Each was
//! published by a view's frame of this log, or of the log that a map was learned from; one whose frame is cut goes with
//! it. One of whose view no frame is left is told by no mark.

use crate::log::segments::Segments;
use freebs_format::{ClosedView, FrameHead, FrameKind, ViewBody};
use freebs_types::{Hash32, Sequence, ShardId, limits};
use std::cell::Cell;

#[derive(Debug, Default)]
pub(crate) struct Closed {
    list: Vec<ClosedView>,
    /// A segment that had frames of the first view in the list when it was looked at last.
    witness: Cell<Option<u32>>,
}

impl Closed {
    pub fn list(&self) -> &[ClosedView] {
        &self.list
    }

    /// A view's frame publishes the secret of the view before it.
    pub fn note(&mut self, head: &FrameHead) {
        let Some(body) = Some(head).filter(|h| h.kind() == FrameKind::View).map(|h| ViewBody::decode(h.body())) else {
            return;
        };
        let Ok(ViewBody { pred, shared: Some(shared), .. }) = body else { return };
        if shared.pred_secret != Hash32::default() {
            self.insert(ClosedView { view: pred, published: head.seq(), secret: shared.pred_secret });
        }
    }

    /// Takes those of a mark or a checkpoint.
    pub fn merge(&mut self, of: &[ClosedView]) {
        of.iter().for_each(|c| self.insert(*c));
    }

    /// The newest frame that publishes a view's secret counts.
    fn insert(&mut self, c: ClosedView) {
        let i = self.list.partition_point(|x| x.view < c.view);
        match self.list.get_mut(i).filter(|x| x.view == c.view) {
            Some(x) if x.published <= c.published => *x = c,
            Some(_) => {}
            None => self.list.insert(i, c),
        }
        let many = self.list.len().saturating_sub(limits::CLOSED_VIEWS_MAX);
        self.list.drain(..many);
        assert!(self.list.len() <= limits::CLOSED_VIEWS_MAX, "only the newest ones are kept");
        let near = &self.list[i.saturating_sub(many + 1)..(i + 2).saturating_sub(many).min(self.list.len())];
        assert!(near.is_sorted_by(|a, b| a.view < b.view), "closed views lie in order, each once");
    }

    /// Frames behind `to` are cut.
    pub fn cut(&mut self, to: Sequence) {
        self.list.retain(|c| c.published <= to);
    }

    /// Those of whose views the log has frames. Some in the middle may have none.
    pub fn still(&self, shard: ShardId, segs: &Segments) -> &[ClosedView] {
        let has = |id: u32, c: &ClosedView| {
            let s = segs.get(id);
            let min = s.content.get(shard).map_or(Sequence(0), |content| content.min);
            s.is_used() && min.0 > 0 && min < c.published
        };
        for (i, c) in self.list.iter().enumerate() {
            // Each look at all segments finds one, or leaves a view out.
            if !self.witness.get().is_some_and(|id| id < segs.len() && has(id, c)) {
                self.witness.set(segs.used().map(|(id, _)| id).find(|id| has(*id, c)));
            }
            if self.witness.get().is_some() {
                return &self.list[i..];
            }
        }
        &[]
    }

    /// Forgets the others.
    pub fn prune(&mut self, shard: ShardId, segs: &Segments) {
        let gone = self.list.len() - self.still(shard, segs).len();
        self.list.drain(..gone);
    }

    /// Bytes that they take in a mark, at most.
    pub fn mark_bytes(&self) -> usize {
        self.list.len() * freebs_format::CLOSED_VIEW_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::ViewNumber;

    fn closed(view: u64, published: u64) -> ClosedView {
        ClosedView { view: ViewNumber(view), published: Sequence(published), secret: Hash32([view as u8; 32]) }
    }

    fn views(list: &[ClosedView]) -> Vec<u64> {
        list.iter().map(|c| c.view.0).collect()
    }

    #[test]
    fn the_newest_ones_are_kept_in_order_and_cut_with_their_frames() {
        let mut c = Closed::default();
        let max = limits::CLOSED_VIEWS_MAX as u64;
        c.merge(&(1..=max + 3).rev().map(|v| closed(v, v * 10)).collect::<Vec<_>>());
        assert_eq!((c.list.len() as u64, c.list[0].view.0), (max, 4));
        assert_eq!(c.mark_bytes(), 48 * max as usize);
        c.merge(&[closed(9, 89), closed(10, 101)]);
        assert_eq!(c.list[5..7], [closed(9, 90), closed(10, 101)]);
        c.cut(Sequence(61));
        assert_eq!(views(&c.list), [4, 5, 6]);
    }

    #[test]
    fn those_of_whose_views_nothing_is_left_are_left_out() {
        let (shard, mut segs) = (ShardId::new(1, 0), Segments::default());
        for id in 0..3 {
            segs.push();
            segs.open(id, u64::from(id) + 1);
            segs.note(id, shard, Some(Sequence(u64::from(id) * 10 + 5)));
        }
        let mut c = Closed::default();
        c.merge(&[closed(1, 4), closed(2, 9), closed(3, 12), closed(4, 20)]);
        // The first has frames up to 3; segment 0 has frames from 5 on.
        assert_eq!(views(c.still(shard, &segs)), [2, 3, 4]);
        assert_eq!(views(c.still(ShardId::new(2, 0), &segs)), [0; 0]);
        segs.close(0);
        segs.give_up(0);
        assert_eq!(views(c.still(shard, &segs)), [4]);
        c.prune(shard, &segs);
        assert_eq!(views(&c.list), [4]);
    }
}
