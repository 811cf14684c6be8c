//! The whole device against its checksums and hashes, and what its damage costs.
//!
//! Both copies of the superblock; every segment that counts, from end to end; each frame against the one before it;
//! each block that a map names against the map's CRC. What is lost is said per shard: frames, the tail, blocks.

use super::opened::{First, Opened, firsts, open};
use crate::api::report::{Checked, DAMAGE_MAX, Damage, DamageKind, LOSS_RANGES_MAX, Loss, Verification, Watch};
use crate::engine::core::Core;
use crate::log::geometry::Geometry;
use crate::log::scan::Window;
use crate::log::whole::{Known, SegmentCheck, check, push_block};
use crate::map::extents::Crcs;
use crate::shard::Shard;
use freebs_format::block_crc;
use freebs_format::disk::{IndexEntry, LiveTable};
use freebs_io::Device;
use freebs_types::{BLOCK, BlockRange, Result, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of a map that lie one behind the other in a segment.
struct Live {
    at: u32,
    blocks: u32,
    shard: ShardId,
    lba: u32,
    crcs: Crcs,
    /// Of how many blocks `crcs` is, and how many of them come before these.
    of: u32,
    skip: u32,
}

struct Verifier {
    geometry: Geometry,
    checked: Checked,
    damage: Vec<Damage>,
    damage_count: u64,
    losses: BTreeMap<ShardId, Loss>,
}

/// Reads everything that counts on a device. Writes nothing. An error means that the device can't be understood at all.
pub async fn verify<D: Device>(device: &D, watch: &mut dyn Watch) -> Result<Verification> {
    let mut opened = open(device).await?;
    let (core, report) = opened.recover(device, true).await?;
    let mut v = Verifier {
        geometry: opened.geometry,
        checked: Checked::default(),
        damage: Vec::new(),
        damage_count: 0,
        losses: BTreeMap::new(),
    };
    v.superblock(&opened);
    let mut live = live(&core);
    v.homeless(&mut live);
    let list = used(&core, &firsts(device, &v.geometry, core.segs.len()).await);
    let total = list.len() as u32;
    let mut before: Option<(u64, u64)> = None;
    let mut table = None;
    for (i, (id, known)) in list.into_iter().enumerate() {
        watch.progress("verify", i as u32, total);
        let mut w = Window::new(device, v.geometry, id);
        let found = check(&mut w, &v.geometry, known).await;
        if let Some((last, seq)) = before
            && seq == found.before
            && found.first > last + 1
        {
            v.gap(id, last + 1, found.first - 1);
        }
        before = (found.last > 0).then_some((found.last, known.seq));
        table = found.table.clone().or(table);
        v.segment(&core, id, found, live.remove(&id).unwrap_or_default(), &mut w).await;
    }
    watch.progress("verify", total, total);
    v.lost_segments(&core, table.as_ref());
    v.shards(&core);
    for f in opened.audit(device).await.wrong {
        let bytes = freebs_format::disk::PAGE_BYTES as u64;
        v.plain(DamageKind::Map, f.segment, f.offset, bytes, false, f.what);
    }
    v.damage.sort_by_key(|d| (d.segment, d.offset, d.kind));
    Ok(Verification {
        device: opened.info,
        checked: v.checked,
        damage: v.damage,
        damage_count: v.damage_count,
        losses: v.losses.into_iter().filter(|(_, l)| !l.is_none()).collect(),
        recovery: report.damage,
    })
}

/// Segments that count in the order of their numbers, with what each one's neighbour says of it.
pub(super) fn used(core: &Core, firsts: &BTreeMap<u64, First>) -> Vec<(u32, Known)> {
    let mut list: Vec<(u64, u32)> = core.segs.used().map(|(id, s)| (s.seq, id)).collect();
    list.sort_unstable();
    let newest = list.last().map_or(0, |(seq, _)| *seq);
    let next = |seq: u64| firsts.get(&seq).map(|f| f.append);
    list.into_iter().map(|(seq, id)| (id, Known { seq, newest: seq == newest, next_first: next(seq) })).collect()
}

/// Blocks that maps name, by segment. `u32::MAX` stands for those without a place.
fn live(core: &Core) -> BTreeMap<u32, Vec<Live>> {
    let mut out: BTreeMap<u32, Vec<Live>> = BTreeMap::new();
    for (id, shard) in &core.shards {
        let view = shard.view(0, u32::MAX);
        let old = shard.history.memory.iter().map(|(lba, l)| (lba, &l.e));
        for (lba, e) in view.iter().chain(old).filter(|(_, e)| e.is_data()) {
            let piece = |at, blocks, skip| Live {
                at,
                blocks,
                shard: *id,
                lba: lba + skip,
                crcs: e.crcs.clone(),
                of: e.len,
                skip,
            };
            let mut placed = 0;
            let all = shard.chunks.lookup(e.chunk, e.offset, e.len, |r| {
                out.entry(r.segment).or_default().push(piece(r.at, r.count, r.first - e.offset));
                placed += r.count;
            });
            if !all {
                out.entry(u32::MAX).or_default().push(piece(0, e.len - placed, 0));
            }
        }
    }
    out
}

/// Whether a frame is the one that its shard counts.
pub(super) fn counts(shard: &Shard, segment: u32, e: &IndexEntry) -> bool {
    shard.frames.get(e.head.seq()).is_some_and(|p| (p.segment, p.head_at) == (segment, e.head_at))
}

impl Verifier {
    fn push(&mut self, d: Damage) {
        self.damage_count += 1;
        if self.damage.len() < DAMAGE_MAX {
            self.damage.push(d);
        }
    }

    fn plain(&mut self, kind: DamageKind, segment: Option<u32>, offset: u64, bytes: u64, lost: bool, what: String) {
        let byte = segment.map_or(offset, |s| self.geometry.byte(s, 0) + offset);
        let (shard, sequence, blocks) = (None, None, Vec::new());
        self.push(Damage { kind, segment, offset, byte, bytes, shard, sequence, blocks, lost, what });
    }

    fn superblock(&mut self, opened: &Opened) {
        for c in &opened.info.copies {
            let lost = opened.info.guessed;
            match &c.error {
                Some(e) => self.plain(DamageKind::Superblock, None, c.at, 256, lost, e.clone()),
                None if c.start != opened.info.start => {
                    let what = format!("this copy is of start {}, the other one of {}", c.start, opened.info.start);
                    self.plain(DamageKind::Superblock, None, c.at, 256, false, what);
                }
                None => {}
            }
        }
    }

    fn gap(&mut self, id: u32, from: u64, to: u64) {
        let what = format!("appends {from} to {to} are missing between this segment and the one before");
        self.plain(DamageKind::Append, Some(id), 0, 0, true, what);
    }

    fn homeless(&mut self, live: &mut BTreeMap<u32, Vec<Live>>) {
        for l in live.remove(&u32::MAX).unwrap_or_default() {
            let blocks = vec![BlockRange::new(l.lba, l.of)];
            self.lose(l.shard, l.lba, l.blocks);
            let what = format!("{} of these blocks are nowhere on the device", l.blocks);
            let (segment, shard) = (None, Some(l.shard));
            let (kind, sequence) = (DamageKind::Block, None);
            self.push(Damage {
                kind,
                segment,
                offset: 0,
                byte: 0,
                bytes: 0,
                shard,
                sequence,
                blocks,
                lost: true,
                what,
            });
        }
    }

    fn lose(&mut self, shard: ShardId, lba: u32, blocks: u32) {
        let loss = self.losses.entry(shard).or_default();
        loss.block_count += u64::from(blocks);
        for lba in lba..lba + blocks {
            if loss.blocks.len() == LOSS_RANGES_MAX && loss.blocks.last().is_none_or(|r| r.end() != u64::from(lba)) {
                return;
            }
            push_block(&mut loss.blocks, lba);
        }
    }

    /// One segment's findings, its frames against their neighbours, and the blocks that maps name in it.
    async fn segment<D: Device>(
        &mut self,
        core: &Core,
        id: u32,
        mut found: SegmentCheck,
        mut live: Vec<Live>,
        w: &mut Window<'_, D>,
    ) {
        self.checked.segments += 1;
        self.checked.indexes += u64::from(found.indexed);
        self.checked.appends += found.appends;
        self.checked.frames += found.entries.len() as u64;
        self.checked.blocks += (found.good.len() + found.bad.len()) as u64;
        for e in &found.entries {
            self.link(core, id, e);
        }
        live.sort_by_key(|l| l.at);
        for l in &live {
            self.live(id, l, &mut found, w).await;
        }
        found.damage.into_iter().for_each(|d| self.push(d));
    }

    /// Holds a frame's `parent` against the frame before it, if both count.
    fn link(&mut self, core: &Core, id: u32, e: &IndexEntry) {
        let (head, h) = (&e.head, e.head.header());
        let Some(shard) = core.shards.get(&head.shard()).filter(|_| !head.kind().is_local()) else { return };
        if !counts(shard, id, e) {
            return;
        }
        let right = match head.seq().0 {
            0 => return,
            1 => h.parent == [0; 32],
            s => {
                let Some(before) = shard.frames.get(freebs_types::Sequence(s - 1)) else { return };
                // A branch names the public hash of the frame that it goes on from (V10).
                head.before().hid.0[..8] == before.hid.to_le_bytes()
            }
        };
        self.checked.links += 1;
        if !right {
            let what = "the frame does not follow the one before it: its parent has another hash".to_owned();
            let (segment, offset) = (Some(id), u64::from(e.head_at));
            let byte = self.geometry.byte(id, e.head_at);
            self.push(Damage {
                kind: DamageKind::Chain,
                segment,
                offset,
                byte,
                bytes: head.bytes().len() as u64,
                shard: Some(head.shard()),
                sequence: Some(head.seq()),
                blocks: Vec::new(),
                lost: true,
                what,
            });
        }
    }

    /// Blocks that a map names: each is where its frame says, with the map's CRC; or it is read for itself.
    async fn live<D: Device>(&mut self, id: u32, l: &Live, found: &mut SegmentCheck, w: &mut Window<'_, D>) {
        let crcs = l.crcs.slice(l.of);
        let mut wrong: Vec<(u32, u32)> = Vec::new();
        for i in 0..l.blocks {
            let at = l.at + i * BLOCK as u32;
            let crc = crcs.get((l.skip + i) as usize).copied();
            self.checked.live_blocks += 1;
            if crc.is_some() && found.good.get(&at).copied() == crc {
                continue;
            }
            if let Some(d) = found.bad.get(&at) {
                found.damage[*d].lost = true;
            } else {
                let bytes = w.get(at as usize, BLOCK).await;
                if bytes.is_some_and(|b| Some(block_crc(&b)) == crc) {
                    continue;
                }
                wrong.push((at, l.lba + i));
            }
            self.lose(l.shard, l.lba + i, 1);
        }
        if let Some((at, _)) = wrong.first() {
            let mut blocks = Vec::new();
            wrong.iter().for_each(|(_, lba)| push_block(&mut blocks, *lba));
            let what = "blocks that the map names do not match the map's CRC, or can't be read".to_owned();
            self.push(Damage {
                kind: DamageKind::Block,
                segment: Some(id),
                offset: u64::from(*at),
                byte: self.geometry.byte(id, *at),
                bytes: (wrong.len() * BLOCK) as u64,
                shard: Some(l.shard),
                sequence: None,
                blocks,
                lost: true,
                what,
            });
        }
    }

    /// Segments that the newest live table names and that hold nothing that can be understood.
    fn lost_segments(&mut self, core: &Core, table: Option<&LiveTable>) {
        for id in lost(core, table) {
            let bytes = self.geometry.segment_bytes;
            let what = "it should hold frames, and no append in it can be found".to_owned();
            self.plain(DamageKind::Segment, Some(id), 0, bytes, true, what);
        }
    }

    /// What recovery does not know of each shard.
    fn shards(&mut self, core: &Core) {
        for (id, shard) in &core.shards {
            let state = shard.state();
            let hole = shard.holes.iter().map(|h| h.to).max();
            if state.holes.is_empty() && !state.suspect_tail {
                continue;
            }
            let loss = self.losses.entry(*id).or_default();
            loss.suspect_tail = state.suspect_tail;
            let view = shard.view(0, u32::MAX);
            let doubtful = view.iter().filter(|(_, e)| hole.is_some_and(|h| e.sequence.0 <= h));
            loss.doubtful_blocks = doubtful.map(|(_, e)| u64::from(e.len)).sum();
            loss.sequences = state.holes;
        }
    }
}

/// Segments that a live table names and that recovery did not find.
pub(super) fn lost(core: &Core, table: Option<&LiveTable>) -> BTreeSet<u32> {
    let found = |id: u32| id < core.segs.len() && core.segs.get(id).is_used();
    table.into_iter().flat_map(LiveTable::iter).map(|s| s.0).filter(|id| !found(*id)).collect()
}
