//! A shard's state as digests: what recovery made of it, without reading a data block.

use crate::MarkChange;
use crate::api::report::StateDigest;
use crate::read::frames::Sum;
use crate::shard::Shard;
use freebs_types::{Hash32, Sequence};

/// Digests of a shard's map and of everything else that is known of it.
pub(super) fn digest(shard: &Shard) -> StateDigest {
    let mut sum = Sum::default();
    let mut all = blake3::Hasher::new();
    let (tip, body) = shard.mark_body(&MarkChange::default(), Sequence(0));
    let encoded = body.encode();
    all.update(&(encoded.len() as u64).to_le_bytes());
    all.update(&encoded);
    let mut number = |n: u64| {
        all.update(&n.to_le_bytes());
    };
    [tip.name.view.0, tip.name.sequence.0, tip.version.0, shard.first_kept().0].into_iter().for_each(&mut number);
    [tip.chunk.view.0, u64::from(tip.chunk.counter), u64::from(tip.chunk_blocks)].into_iter().for_each(&mut number);
    let holes = shard.state().holes;
    number(holes.len() as u64);
    for (from, to) in holes {
        [from.0, to.0].into_iter().for_each(&mut number);
    }
    // Of what is kept of older versions, how long it was in force is not state: more may be known of it or less.
    for (at, l) in shard.history.memory.iter() {
        let e = &l.e;
        [u64::from(at), u64::from(e.len), e.kind as u64, e.version.0, e.sequence.0].into_iter().for_each(&mut number);
        e.crcs.slice(e.len).iter().for_each(|c| number(u64::from(*c)));
    }
    for (at, e) in shard.view(0, u32::MAX).iter() {
        // What was trimmed is no content, but it is state.
        if e.kind != freebs_format::ExtentKind::Trim {
            sum.add(at, e);
        }
        let head = [u64::from(at), u64::from(e.len), e.kind as u64, e.version.0, e.sequence.0];
        head.into_iter().for_each(&mut number);
        if e.is_data() {
            e.crcs.slice(e.len).iter().for_each(|c| number(u64::from(*c)));
            shard.chunks.lookup(e.chunk, e.offset, e.len, |run| {
                [run.segment, run.at, run.count].into_iter().for_each(|n| number(u64::from(n)));
            });
        } else {
            number(u64::from(e.offset));
        }
    }
    let content = sum.finish(tip.version, tip.name.sequence);
    let mut last = all;
    last.update(&tip.name.hid.0);
    StateDigest {
        version: content.version,
        sequence: content.sequence,
        content: content.hash,
        state: Hash32(*last.finalize().as_bytes()),
        blocks: content.blocks,
        data_blocks: content.data_blocks,
    }
}
