//! Forks and losses that are known: behind a checkpoint, in a segment that was closed since, and beside one that came later.

use crate::common::*;
use crate::damage::FIRST;
use crate::forks_line::{
    A, BLOCKS, C, Log, OTHER, appends, fill, flat, is_open_at, keeps_to_that, others, parent_and_fork,
};
use crate::forks_lost::{Told, bytes_of, data, open, right_or_lost, write_back};
use crate::history::{TINY, erase_checkpoints};
use freebs_lsvd::{MarkChange, Options, Record};
use freebs_types::{Sequence, ViewNumber};

impl Log {
    /// The segment of an append is closed, by nothing of a fork's or a parent's. Then there is a checkpoint, and the next start
    /// begins with it.
    async fn covered(self, other: &mut Chain, number: u64) -> Self {
        // Frames that may still be cut are in no checkpoint.
        for shard in self.rig.engine.shards() {
            self.rig.engine.committed(shard, self.rig.engine.state(shard).unwrap().last.sequence);
        }
        while is_open_at(&self, number).await {
            fill(&self, other, 100).await;
        }
        self.rig.engine.checkpoint().await.unwrap();
        let log = self.again().await;
        assert!(log.rig.report.checkpoint > 0, "it begins with the checkpoint: {:?}", log.rig.report);
        log
    }

    /// It starts after a power cut, and the first sectors of these appends are gone, and the index of their closed segment, and the
    /// checkpoints.
    async fn without_closed(self, lost: &[u64]) -> Self {
        self.rig.kill();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let device = self.device.copy();
        let mut bytes = bytes_of(&device).await;
        let all = appends(&bytes);
        for number in lost {
            let at = all[number].0;
            bytes[at..at + 512].fill(0);
            let end = FIRST + ((at - FIRST) / SEGMENT as usize + 1) * SEGMENT as usize;
            bytes[end - 512..end].fill(0);
        }
        write_back(&device, bytes).await;
        erase_checkpoints(&device).await;
        let rig = open(&device, self.options).await;
        Self { rig, device, ..self }
    }
}

/// A loss that had nothing to do with a fork or its parent is mended, and a checkpoint covers it. The start after that knows nothing
/// of it when the parent is learned anew. Later the log is read from its beginning: the fork had said in time that it is one.
#[test]
fn a_fork_that_was_thought_of_behind_a_checkpoint_reads_on() {
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let mut log = Log::new(options).await;
            let (mut a, mut other) = (Chain::new(A), Chain::new(OTHER));
            log.frame(a.frame(&[data(0, 100)])).await;
            log.frame(a.frame(&[data(1, 200)])).await;
            log.fork(&mut a, C).await;
            log.frame(a.frame(&[data(1, 300)])).await;
            log.commit(&mut a);
            let told = Told::by(&log.rig, A).await.unwrap();
            let frame = other.frame(&[data(0, 7)]);
            let lost = log.frame(frame.clone()).await;
            others(&log, &mut other, 3).await;
            log = log.without(&[lost]).await;
            log.put(Record::Repair(frame)).await;
            log = log.covered(&mut other, lost + 2).await;
            log.put(Record::Forget { shard: A, promised: ViewNumber(0) }).await;
            told.give(&log.rig, told.goes_on(Sequence(0), Sequence(0))).await;
            let mut model = Model::new();
            [data(0, 100), data(1, 200)].iter().for_each(|op| op.apply(&mut model));
            for start in 0..4 {
                assert_eq!(right_or_lost(&log.rig, C, None, &model, BLOCKS).await, 0, "start {start}");
                others(&log, &mut other, 1).await;
                log = log.again().await;
                erase_checkpoints(&log.device).await;
            }
            log.rig.stop().await;
        });
    }
}

/// Losses in front of what made a fork flat, and behind it, in one segment, take nothing from it: not when they are found, and not
/// when the segment is closed with them.
#[test]
fn a_fork_is_flat_between_two_losses() {
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let mut log = Log::new(options).await;
            let mut other = Chain::new(OTHER);
            let in_front = others(&log, &mut other, 6).await - 3;
            let (_, _, _, model) = parent_and_fork(&log).await;
            log.bring(C).await;
            let mark = log.mark(C, flat()).await;
            let behind = others(&log, &mut other, 6).await - 3;
            log = log.without(&[in_front, behind]).await;
            while is_open_at(&log, mark).await {
                fill(&log, &mut other, 100).await;
            }
            others(&log, &mut other, 3).await;
            keeps_to_that(log.without(&[]).await, &mut other, None, &model).await;
        });
    }
}

/// A loss is known when a fork's entries and the word that it is flat, right in front of it, are lost as well, together with the
/// index of their segment: later marks say that it is no fork.
#[test]
fn a_loss_beside_a_known_one_is_missed() {
    for options in [TINY, Options::of_workers(1)] {
        for is_known in [false, true] {
            local(async move {
                let mut log = Log::new(options).await;
                let (_, _, fork, model) = parent_and_fork(&log).await;
                let mut other = Chain::new(OTHER);
                let carry = log.bring(C).await;
                let mark = log.mark(C, flat()).await;
                let behind = mark + 1;
                assert_eq!(others(&log, &mut other, 6).await, behind + 5);
                if is_known {
                    log = log.without(&[behind]).await;
                }
                while is_open_at(&log, mark).await {
                    fill(&log, &mut other, 100).await;
                }
                log.mark(C, MarkChange::default()).await;
                others(&log, &mut other, 3).await;
                let log = log.without_closed(&[carry, mark, behind]).await;
                let state = log.rig.engine.state(C).unwrap();
                assert_eq!((state.fork, state.holes), (None, vec![(Sequence(1), fork.sequence)]), "known {is_known}");
                assert!(right_or_lost(&log.rig, C, None, &model, BLOCKS).await > 0, "known {is_known}");
                log.rig.stop().await;
            });
        }
    }
}
