//! Soft state made again from the log alone: for now, the indexes of closed segments.
//!
//! Recovery runs twice, as a start would and as if there were no index, so the report says whether they ever told
//! anything else than the log. With `write`, an index that is missing, damaged or wrong is written anew.
//!
//! Invariants: an index is written only for a closed segment whose appends were all read whole and whose last append
//! is known, and only behind that append. The newest segment is left to the node, which goes on in it. A damaged
//! segment gets no index, so that the next recovery sees the damage again (rule E7).

use super::opened::{firsts, open};
use super::state;
use super::verify::used;
use crate::api::report::{Action, DamageKind, IndexRebuild, IndexState, Rebuild, ShardRebuild, StateDigest, Watch};
use crate::engine::core::Core;
use crate::log::geometry::{Geometry, OpenSegment};
use crate::log::scan::Window;
use crate::log::whole::{SegmentCheck, check};
use bytes::BytesMut;
use freebs_format::disk::IndexEntry;
use freebs_io::{Device, Durability};
use freebs_types::{Error, Result, ShardId};
use std::collections::BTreeMap;

/// Makes the indexes of closed segments again, or only says what it would do. The caller has the device for itself.
pub async fn rebuild<D: Device>(device: &D, write: bool, watch: &mut dyn Watch) -> Result<Rebuild> {
    let mut opened = open(device).await?;
    if write && opened.info.guessed {
        return Err(Error::corrupt(
            "both copies of the superblock are lost, so nothing is written here; `freebs device verify` says what is \
             left, and the other copies of its volumes are on other nodes",
        ));
    }
    if write {
        // What a killed process left in the device's cache is made durable before anything is built on it.
        device.sync().await?;
    }
    let g = opened.geometry;
    watch.progress("recover", 0, 2);
    let (core, _) = opened.recover(device, true).await?;
    let before = digests(&core);
    watch.progress("recover", 1, 2);
    let (alone, report) = opened.recover(device, false).await?;
    watch.progress("recover", 2, 2);
    drop(core);
    let firsts = firsts(device, &g, alone.segs.len()).await;
    let mut indexes = Vec::new();
    let list = used(&alone, &firsts);
    let total = list.len() as u32;
    for (i, (id, known)) in list.into_iter().enumerate() {
        watch.progress("rebuild", i as u32, total);
        if known.newest {
            continue;
        }
        let found = check(&mut Window::new(device, g, id), &g, known).await;
        let next = firsts.get(&known.seq).map_or(u32::MAX, |f| f.segment);
        let index = one(device, &g, id, known.seq, found, next, write).await?;
        indexes.push(index);
    }
    watch.progress("rebuild", total, total);
    let mut after = digests(&alone);
    if write && indexes.iter().any(|i| i.action == Action::Write) {
        device.sync().await?;
        let (again, _) = opened.recover(device, true).await?;
        after = digests(&again);
    }
    let mut shards: BTreeMap<ShardId, ShardRebuild> = BTreeMap::new();
    let all = before.keys().chain(after.keys());
    shards.extend(
        all.map(|s| (*s, ShardRebuild { shard: *s, before: before.get(s).copied(), after: after.get(s).copied() })),
    );
    Ok(Rebuild {
        device: opened.info,
        written: write,
        indexes,
        shards: shards.into_values().collect(),
        recovery: report.damage,
    })
}

fn digests(core: &Core) -> BTreeMap<ShardId, StateDigest> {
    core.shards.iter().map(|(id, s)| (*id, state::digest(s))).collect()
}

/// What becomes of one closed segment's index.
async fn one<D: Device>(
    device: &D,
    g: &Geometry,
    id: u32,
    seq: u64,
    found: SegmentCheck,
    next: u32,
    write: bool,
) -> Result<IndexRebuild> {
    let differs = found.damage.iter().any(|d| d.kind == DamageKind::Mismatch);
    let index = match (found.closed, found.indexed) {
        (_, true) if differs => IndexState::Differs,
        (_, true) => IndexState::Sound,
        (true, false) => IndexState::Damaged,
        (false, false) => IndexState::Missing,
    };
    let mut open = open_segment(id, seq, &found);
    let room = g.index_room(open.index.len());
    let action = if index == IndexState::Sound {
        Action::Keep
    } else if let Some(why) = not_whole(&found) {
        Action::Leave(why)
    } else if found.end as usize + room > g.segment_bytes as usize {
        Action::Leave(format!("no room for an index of {room} bytes behind the last append"))
    } else {
        Action::Write
    };
    if write && action == Action::Write {
        let (byte, buf) = open.close_with(g, next);
        device.write(byte, buf, Durability::Durable).await.1.map_err(|e| e.at(format!("index of segment {id}")))?;
    }
    Ok(IndexRebuild { segment: id, seq, frames: found.of_appends.len() as u64, found: index, action })
}

/// The segment as it was when its last append had been written.
fn open_segment(id: u32, seq: u64, found: &SegmentCheck) -> OpenSegment {
    let mut index = BytesMut::new();
    found.of_appends.iter().for_each(|e: &IndexEntry| e.encode(&mut index));
    OpenSegment {
        id,
        seq,
        skipped: u8::try_from(seq.saturating_sub(found.before + 1)).unwrap_or(u8::MAX),
        at: found.end,
        index,
        frames: found.of_appends.len() as u32,
        first_append: found.first,
        last_append: found.last,
        last: None,
        lost: found.lost.clone(),
        for_records: false,
    }
}

/// Why the appends can't be taken for all of the segment, if so.
fn not_whole(found: &SegmentCheck) -> Option<String> {
    use DamageKind::{Footer, Index, Lost, Mismatch};
    let ours = |k: DamageKind| !matches!(k, Footer | Index | Lost | Mismatch);
    if let Some(d) = found.damage.iter().find(|d| ours(d.kind)) {
        return Some(format!("byte {} of the segment is damaged: {}", d.offset, d.what));
    }
    (!found.whole).then(|| "which append was its last is not known: the segment behind it was used again".to_owned())
}
