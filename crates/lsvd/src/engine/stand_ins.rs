//! Stand-ins for lost blocks in map entries that are learned.
//!
//! Invariant: no stand-in takes the place of a block that is live here. A block of a chunk is written once, so what lives is
//! the block that its teller has lost. That is looked up when all that was appended before has acted.

use crate::engine::core::Core;
use crate::engine::moves::part_of;
use crate::engine::queue::Queued;
use crate::{CARRY_ENTRIES_MAX, Record};
use bytes::Bytes;
use freebs_format::{CARRY_ENTRY_BYTES, CarryBody, LOST_MAGIC, is_lost_block};
use freebs_types::{BLOCK, ShardId, limits};

const _: () = assert!(
    CARRY_ENTRIES_MAX * CARRY_ENTRY_BYTES + limits::FRAME_DATA_BYTES_MAX / BLOCK * (CARRY_ENTRY_BYTES + 4) + 512
        < limits::FRAME_HEAD_BYTES_MAX,
    "entries of an honest piece fit a head, however they are split"
);

/// Blocks that may be stand-ins.
pub(crate) fn stand_ins(data: &[Bytes]) -> usize {
    let blocks = data.iter().flat_map(|d| d.chunks(BLOCK));
    blocks.filter(|b| b.starts_with(&LOST_MAGIC)).count()
}

/// True if a record must be the first one in its append.
pub(crate) fn has_stand_ins(queued: &Queued) -> bool {
    matches!(queued, Queued::Record(Record::Carry { data, .. }) if stand_ins(data) > 0)
}

impl Core {
    /// A carry without stand-ins for blocks that are live here; `None` if it has none.
    pub fn without_known(&self, shard: ShardId, body: &CarryBody, data: &[Bytes]) -> Option<(CarryBody, Vec<Bytes>)> {
        let shard = self.shards.get(&shard).filter(|_| stand_ins(data) > 0)?;
        let mut blocks =
            data.iter().flat_map(|d| (0..d.len()).step_by(BLOCK).map(|at| d.slice(at..d.len().min(at + BLOCK))));
        let (mut out, mut kept) = (CarryBody::default(), Vec::new());
        for e in &body.entries {
            if e.crcs.is_empty() {
                out.entries.push(e.clone());
                continue;
            }
            let mut from = None;
            for (i, (crc, block)) in (0..).zip(e.crcs.iter().zip(&mut blocks)) {
                let is_known = is_lost_block(&block, *crc) && shard.chunks.all_live(e.chunk, e.offset + i, 1);
                if !is_known {
                    from.get_or_insert(i);
                    kept.push(block);
                } else if let Some(from) = from.take() {
                    out.entries.push(part_of(e, from, i - from));
                }
            }
            if let Some(from) = from {
                out.entries.push(part_of(e, from, e.range.len - from));
            }
        }
        Some((out, kept))
    }
}
