//! Damage of two times: what is lost beside something that was known to be lost was relied on.

use crate::common::*;
use crate::damage::{BLOCKS, Image, Outcome, SHARDS, image_with, load, look};
use crate::repeats::{Open, open_appends};
use core::mem::offset_of;
use freebs_format::{FrameHeader, FrameKind};
use freebs_lsvd::{CleanOptions, MarkChange, Record};
use freebs_types::Sequence;

/// All that is missed is brought from elsewhere.
async fn put_back(rig: &Rig, image: &Image) {
    for h in &image.history {
        let chain = &h.last().unwrap().2;
        let state = rig.engine.state(chain.shard).unwrap();
        for s in state.holes.iter().flat_map(|(from, to)| from.0..=to.0) {
            rig.append(Record::Repair(h[s as usize].0.clone().unwrap()));
        }
        for (frame, ..) in &h[state.last.sequence.0 as usize + 1..] {
            rig.append(Record::Frame(frame.clone().unwrap()));
        }
        let change = MarkChange { trusted: true, ..MarkChange::default() };
        rig.append(Record::Mark { shard: chain.shard, change, ticket: 1 });
        rig.settle().await;
    }
    assert!(rig.engine.lost().is_empty());
}

/// More of a history. Nothing is moved any more, so that what was moved before stays where it is.
async fn goes_on(rig: &Rig, image: &mut Image, rng: &mut Rng, steps: u64) {
    rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
    for _ in 0..steps {
        let h = &mut image.history[rng.below(SHARDS) as usize];
        let (_, mut model, mut chain) = h.last().unwrap().clone();
        chain.committed = chain.sequence.saturating_sub(3);
        let op = Op::random(rng, BLOCKS);
        op.apply(&mut model);
        let frame = chain.frame(&[op]);
        rig.append(Record::Frame(frame.clone()));
        rig.settle().await;
        rig.engine.committed(chain.shard, Sequence(chain.committed));
        h.push((Some(frame), model, chain));
    }
}

/// Something of the open segment is lost, and that is known while the log goes on. Then appends beside it are lost, too, with or
/// without the index of their segment.
async fn two_losses(seed: u64, (out, moved): (&mut Outcome, &mut u32)) {
    let mut rng = Rng::new(9000 + seed);
    let mut image = image_with(200 + seed, 500, true).await;
    let open = open_appends(&image.bytes);
    if open.len() < 5 {
        return;
    }
    // The append behind it repeats it.
    // Right behind blocks that were moved, if there are any.
    let has_moved = |a: &Open| {
        let heads = &image.bytes[a.at + HEADER + a.header.extra_len.get() as usize..];
        heads[offset_of!(FrameHeader, kind)] == FrameKind::Carry as u8
    };
    let last = open.len() - 3;
    let behind_moved = open[1..last].iter().rposition(has_moved).map(|i| i + 2);
    *moved += u32::from(behind_moved.is_some());
    let lost = open[behind_moved.unwrap_or_else(|| 2 + rng.below(last as u64 - 1) as usize)];
    let extra = lost.header.extra_len.get() as usize;
    let behind = lost.at + lost.header.total(512);
    image.bytes[lost.at + HEADER + extra] ^= 1;
    image.bytes[lost.at + (HEADER + extra + lost.header.heads_len.get() as usize) / 2] ^= 1;
    image.bytes[behind..behind + 512].fill(0);
    let lost = lost.at;
    let device = load(&image.bytes);
    let rig = Rig::open(device.clone()).await.unwrap();
    assert!(!rig.report.damage.is_empty());
    put_back(&rig, &image).await;
    goes_on(&rig, &mut image, &mut rng, 400).await;
    rig.stop().await;
    device.poke(|b| image.bytes.clone_from(b));
    let base = lost / SEGMENT as usize * SEGMENT as usize;
    if open_appends(&image.bytes)[0].at == base {
        // It was given up, and is the newest one: that its last appends were ever there nobody could tell.
        return;
    }
    let in_front: Vec<usize> = (base..lost).step_by(512).filter(|at| image.bytes[*at..].starts_with(b"FBAP")).collect();
    // The last one is the append whose heads are lost.
    for count in 1..in_front.len().min(12) {
        for and_index in [true, false] {
            let mut bytes = image.bytes.clone();
            let first = in_front.len() - 1 - count;
            in_front[first..].iter().for_each(|at| bytes[*at..at + 512].fill(0));
            if and_index {
                bytes[base + SEGMENT as usize - 512..base + SEGMENT as usize].fill(0);
            }
            look(&image, &bytes, &format!("seed {seed}, {count} in front, index {and_index}"), out).await;
        }
    }
}

#[test]
fn losses_of_two_times_are_found_or_harmless() {
    let (mut out, mut moved) = (Outcome::default(), 0);
    for seed in 0..24 {
        local(two_losses(seed, (&mut out, &mut moved)));
    }
    println!("{out:?}, {moved} beside blocks that were moved");
    assert!(out.on_read > 20 && moved > 3, "{out:?}, {moved}");
}
