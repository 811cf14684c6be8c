//! The same block rots on all disks that have it, so that nobody can mend it: reads of it fail, and all else is as ever. A
//! copy that is made later has all but that block (design note 36).
//!
//! Invariant: only data of frames rot that each log with them knows to be committed, be it started again. What was lost of
//! others might have been answered, and no log could tell.

use crate::cluster::Cluster;
use crate::content;
use crate::device::Disk;
use crate::oracle::BLOCK_SECTORS;
use crate::world::World;
use freebs_control::Volume;
use freebs_format::disk::AppendHeader;
use freebs_format::{CarryBody, ExtentKind, FrameHead, FrameKind};
use freebs_types::{BLOCK, BlockRange, ErrorKind, NodeId, SECTOR, Sequence, ShardId, VolumeId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Blocks that are looked at before a fault is given up.
const TRIES: usize = 30;

/// A data block in a log.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Byte on the disk.
    at: u64,
    shard: ShardId,
    sequence: Sequence,
    /// It lies in an append before the last two. If what was answered a moment ago did not match its CRC, a start would
    /// take it for an append that was torn.
    is_old: bool,
}

/// The data blocks of a disk, and up to which frame each shard is known to be committed there.
#[derive(Default)]
struct Blocks {
    all: Vec<Block>,
    committed: BTreeMap<ShardId, Sequence>,
}

impl Blocks {
    fn of(disk: &Disk) -> Self {
        let (mut out, appends) = (Self::default(), disk.appends());
        let newest = appends.iter().map(|(_, h, _)| h.number.get()).max().unwrap_or_default();
        for (at, h, bytes) in appends {
            let is_old = h.number.get() + 1 < newest;
            let front = size_of::<AppendHeader>() + h.extra_len.get() as usize;
            let mut heads = bytes.slice(front.min(bytes.len())..);
            let mut data_at = at + u64::from(h.heads_len.get()).next_multiple_of(disk.sector());
            while let Ok(head) = FrameHead::parse(&mut heads) {
                out.take(&head, data_at, is_old);
                data_at += u64::from(head.header().data_len.get());
            }
        }
        out
    }

    fn take(&mut self, head: &FrameHead, data_at: u64, is_old: bool) {
        let (shard, blocks) = (head.shard(), head.header().data_blocks());
        let mut sequences = vec![head.seq(); blocks as usize];
        if head.kind() == FrameKind::Carry {
            let Ok(body) = CarryBody::decode(head.body(), blocks) else { return };
            let data = body.entries.iter().filter(|e| e.kind == ExtentKind::Data);
            sequences = data.flat_map(|e| e.crcs.iter().map(|_| e.sequence)).collect();
        }
        for (i, sequence) in (0..).zip(sequences) {
            self.all.push(Block { at: data_at + i * BLOCK as u64, shard, sequence, is_old });
        }
        if is_old {
            let known = self.committed.entry(shard).or_default();
            *known = head.header().committed_seq().max(*known);
        }
    }

    fn may_rot(&self, b: &Block) -> bool {
        b.is_old && self.committed.get(&b.shard).is_some_and(|known| b.sequence <= *known)
    }

    /// Where a block has these bytes in this sector of it; `None` if one of them must not rot.
    fn with(&self, disk: &Disk, sector: u64, bytes: &[u8]) -> Option<Vec<u64>> {
        let same = |b: &&Block| disk.stable(b.at + sector).is_some_and(|s| *s == *bytes);
        self.all.iter().filter(same).map(|b| self.may_rot(b).then_some(b.at + sector)).collect()
    }
}

/// One bit of a block changes on all disks that have the block.
pub fn everywhere(c: &Rc<Cluster>) {
    let logs: Vec<(Rc<_>, Blocks)> = c.nodes.iter().map(|n| (n.clone(), Blocks::of(&n.disk))).collect();
    for _ in 0..TRIES {
        let picked = {
            let mut luck = c.luck.borrow_mut();
            let Some((node, blocks)) = luck.pick(&logs) else { return };
            let Some(block) = luck.pick(&blocks.all).copied().filter(|b| blocks.may_rot(b)) else { continue };
            let sector = luck.below(BLOCK as u64 / node.disk.sector()) * node.disk.sector();
            let bit = luck.below(8 * node.disk.sector());
            node.disk.stable(block.at + sector).map(|bytes| (sector, bytes, bit))
        };
        let Some((sector, bytes, bit)) = picked else { continue };
        let Some((volume, lba)) = bytes.chunks_exact(SECTOR).find_map(content::place) else { continue };
        let places = logs.iter().map(|(node, blocks)| Some((node, blocks.with(&node.disk, sector, &bytes)?)));
        let Some(places) = places.collect::<Option<Vec<_>>>() else { continue };
        let places: Vec<_> = places.into_iter().filter(|(_, at)| !at.is_empty()).collect();
        for (node, at) in &places {
            at.iter().for_each(|at| node.disk.flip(*at, bit));
            node.is_rotten.set(true);
        }
        let (volume, block) = (VolumeId(volume), lba / BLOCK_SECTORS);
        c.oracle.rots(volume, block);
        c.world.count("blocks that rot on all disks that have them");
        c.world.say(|| {
            let at: Vec<(NodeId, &Vec<u64>)> = places.iter().map(|(n, at)| (n.id, at)).collect();
            format!("fault: bit {bit} of a sector of volume {volume} block {block} changes everywhere: {at:?}")
        });
        return;
    }
    c.world.count("no block was found that may rot everywhere");
}

/// Content of a block at a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    Data(u32),
    Lost,
}

/// The members of a shard have the same in each block, or can't read it, if it is one that has rotted everywhere.
pub async fn compare(c: &Cluster, volume: &Volume, index: u32) {
    let shard = volume.shard_id(index);
    let mut seen: BTreeMap<u64, (NodeId, Held)> = BTreeMap::new();
    let mut lost = 0;
    for m in &volume.shards[index as usize].members {
        let Some(worker) = c.node(m.0).and_then(|n| n.worker()) else { continue };
        for at in 0..volume.shard_blocks() {
            let held = match worker.engine().read(shard, BlockRange::new(at as u32, 1)).await {
                Ok(o) => match o.crcs.first() {
                    Some(crc) => Held::Data(*crc),
                    None => Held::Nothing,
                },
                Err(e) if e.kind == ErrorKind::Corrupt => Held::Lost,
                Err(e) => return c.world.violation(format!("shard {shard} block {at} at node {m}: {e}")),
            };
            if held == Held::Lost {
                lost += 1;
                check_lost(&c.world, c.oracle.has_rot(volume.id, of_volume(volume, index, at), 1), (shard, at, *m));
                continue;
            }
            let (other, first) = seen.entry(at).or_insert_with(|| (*m, held.clone()));
            if *first != held {
                let text = format!("shard {shard} block {at}: node {other} has {first:?}, node {m} has {held:?}");
                return c.world.violation(text);
            }
        }
    }
    c.world.count(format!("shards with {} lost blocks at the end", if lost > 0 { "some" } else { "no" }));
}

/// True if a shard had blocks that were lost everywhere.
pub fn has_lost(c: &Cluster, volume: &Volume, index: u32) -> bool {
    (0..volume.shard_blocks()).any(|at| c.oracle.has_rot(volume.id, of_volume(volume, index, at), 1))
}

fn check_lost(world: &World, is_known: bool, (shard, at, node): (ShardId, u64, NodeId)) {
    if !is_known {
        world.violation(format!("shard {shard} block {at} can't be read at node {node}, and nobody damaged it"));
    }
}

/// The first sector in its volume of a block of a shard.
fn of_volume(volume: &Volume, index: u32, at: u64) -> u64 {
    let stripe = volume.stripe / BLOCK as u64;
    let global = (at / stripe * volume.shards.len() as u64 + u64::from(index)) * stripe + at % stripe;
    global * BLOCK_SECTORS
}
