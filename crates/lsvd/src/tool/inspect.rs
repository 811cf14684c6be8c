//! What is on a device: whose it is, its segments, shards and frames, and how much of them is live.
//!
//! Closed segments are known by their indexes, as when a node starts, so little is read; `verify` reads it all.

use super::opened::{firsts, open};
use super::state;
use super::verify::{counts, lost, used};
use crate::api::report::{ChunkInfo, FrameInfo, Inspection, SegmentInfo, SegmentKind, ShardInfo, Watch};
use crate::engine::core::Core;
use crate::log::geometry::Geometry;
use crate::log::scan::{Window, read_append, read_index};
use crate::log::segments::SegmentState;
use crate::log::whole::{Known, check};
use freebs_format::disk::{APPEND_REPAIR, AppendHeader, IndexEntry, LiveTable, SegmentFooter};
use freebs_format::{CarryBody, ExtentKind, FrameKind};
use freebs_io::Device;
use freebs_types::{BLOCK, ChunkId, Result, ShardId};
use std::collections::{BTreeMap, BTreeSet};

/// What the frames of a shard add up to.
#[derive(Default)]
struct Sum {
    frames: u64,
    data_bytes: u64,
    chunks: BTreeMap<ChunkId, (u64, BTreeSet<u32>)>,
}

/// What is known of a segment without reading its data, if it has a good index.
struct Content {
    entries: Vec<IndexEntry>,
    indexed: bool,
    first: u64,
    last: u64,
    table: Option<LiveTable>,
}

/// Looks at a device. Writes nothing. An error means that the device can't be understood at all.
pub async fn inspect<D: Device>(device: &D, watch: &mut dyn Watch) -> Result<Inspection> {
    let mut opened = open(device).await?;
    let (core, report) = opened.recover(device, true).await?;
    let g = opened.geometry;
    let mut segments: BTreeMap<u32, SegmentInfo> =
        (0..core.segs.len()).map(|id| (id, free(&g, id, SegmentKind::Free))).collect();
    let mut sums: BTreeMap<ShardId, Sum> = BTreeMap::new();
    let mut table = None;
    let list = used(&core, &firsts(device, &g, core.segs.len()).await);
    let total = list.len() as u32;
    for (i, (id, known)) in list.into_iter().enumerate() {
        watch.progress("inspect", i as u32, total);
        let content = content(device, &g, id, known).await;
        segments.insert(id, segment(&core, &g, id, known, &content));
        for e in &content.entries {
            watch.frame(&frame(&core, id, e));
            add(sums.entry(e.head.shard()).or_default(), id, e);
        }
        table = content.table.or(table);
    }
    watch.progress("inspect", total, total);
    for id in opened.audit(device).await.segments {
        if segments.get(&id).is_some_and(|s| s.kind == SegmentKind::Free) {
            segments.insert(id, free(&g, id, SegmentKind::Map));
        }
    }
    for id in lost(&core, table.as_ref()) {
        segments.insert(id, free(&g, id, SegmentKind::Lost));
    }
    let shards = core.shards.keys().map(|id| shard(&core, *id, sums.remove(id).unwrap_or_default())).collect();
    let recovery = report.damage;
    Ok(Inspection { device: opened.info, segments: segments.into_values().collect(), shards, recovery })
}

fn free(g: &Geometry, id: u32, kind: SegmentKind) -> SegmentInfo {
    SegmentInfo {
        id,
        kind,
        seq: 0,
        byte: g.byte(id, 0),
        indexed: false,
        first_append: 0,
        last_append: 0,
        frames: 0,
        shards: 0,
        data_bytes: 0,
        live_bytes: 0,
    }
}

async fn content<D: Device>(device: &D, g: &Geometry, id: u32, known: Known) -> Content {
    let mut w = Window::new(device, *g, id);
    let tail = g.segment_bytes as usize - size_of::<SegmentFooter>();
    let footer = w.get(tail, size_of::<SegmentFooter>()).await;
    let footer = footer.and_then(|b| SegmentFooter::decode(&b, g.segment_bytes).ok());
    let footer = footer.filter(|f| f.device == g.device.0 && f.segment.get() == id && f.segment_seq.get() == known.seq);
    if let Some(f) = footer
        && let Some(entries) = read_index(&mut w, &f).await
    {
        let table = first_table(&mut w, g, known.seq).await;
        return Content { entries, indexed: true, first: f.first_append.get(), last: f.last_append.get(), table };
    }
    let found = check(&mut w, g, known).await;
    Content { entries: found.entries, indexed: false, first: found.first, last: found.last, table: found.table }
}

/// The live table in a segment's first append.
async fn first_table<D: Device>(w: &mut Window<'_, D>, g: &Geometry, seq: u64) -> Option<LiveTable> {
    let bytes = w.get(0, size_of::<AppendHeader>()).await?;
    let h = AppendHeader::decode(&bytes).ok()?;
    let ours = h.device == g.device.0 && h.segment.get() == w.segment && h.offset.get() == 0;
    let fits = h.total(g.sector) <= g.segment_bytes as usize;
    if !ours || !fits || h.segment_seq.get() != seq {
        return None;
    }
    read_append(w, 0, h, &mut |_, _| ()).await.table
}

fn segment(core: &Core, g: &Geometry, id: u32, known: Known, c: &Content) -> SegmentInfo {
    let s = core.segs.get(id);
    let shards: BTreeSet<ShardId> = c.entries.iter().map(|e| e.head.shard()).collect();
    SegmentInfo {
        kind: if s.state == SegmentState::Open { SegmentKind::Open } else { SegmentKind::Closed },
        seq: known.seq,
        indexed: c.indexed,
        first_append: c.first,
        last_append: c.last,
        frames: c.entries.len() as u64,
        shards: shards.len() as u32,
        data_bytes: c.entries.iter().map(|e| u64::from(e.head.header().data_len.get())).sum(),
        live_bytes: s.live * BLOCK as u64,
        ..free(g, id, SegmentKind::Closed)
    }
}

fn frame(core: &Core, id: u32, e: &IndexEntry) -> FrameInfo {
    let h = e.head.header();
    let local = e.head.kind().is_local();
    FrameInfo {
        segment: id,
        head_at: e.head_at,
        data_at: e.data_at,
        append: e.append,
        kind: e.head.kind(),
        repair: e.flags & APPEND_REPAIR != 0,
        counts: local || core.shards.get(&e.head.shard()).is_some_and(|s| counts(s, id, e)),
        shard: e.head.shard(),
        view: e.head.view(),
        sequence: e.head.seq(),
        first_version: freebs_types::Version(h.first_version.get()),
        updates: h.updates.get(),
        chunk: h.chunk(),
        chunk_offset: h.chunk_offset.get(),
        head_bytes: e.head.bytes().len() as u32,
        data_bytes: h.data_len.get(),
        hid: h.hid(),
        branch: e.head.is_branch(),
    }
}

fn add(sum: &mut Sum, id: u32, e: &IndexEntry) {
    let h = e.head.header();
    sum.frames += 1;
    sum.data_bytes += u64::from(h.data_len.get());
    let mut holds = |chunk: ChunkId, held: u64| {
        let (bytes, segments) = sum.chunks.entry(chunk).or_default();
        *bytes += held;
        segments.insert(id);
    };
    match e.head.kind() {
        FrameKind::Data if h.data_len.get() > 0 => holds(h.chunk(), u64::from(h.data_len.get())),
        FrameKind::Carry => {
            let entries = CarryBody::decode(e.head.body(), h.data_blocks()).map_or_else(|_| Vec::new(), |b| b.entries);
            for e in entries.iter().filter(|e| e.kind == ExtentKind::Data) {
                holds(e.chunk, u64::from(e.range.len) * BLOCK as u64);
            }
        }
        _ => {}
    }
}

fn shard(core: &Core, id: ShardId, sum: Sum) -> ShardInfo {
    let s = &core.shards[&id];
    let st = s.state();
    let mut live: BTreeMap<ChunkId, u64> = BTreeMap::new();
    let mut zero_blocks = 0;
    for (_, e) in s.view(0, u32::MAX).iter() {
        match e.kind {
            ExtentKind::Data => *live.entry(e.chunk).or_default() += u64::from(e.len) * BLOCK as u64,
            ExtentKind::Zero => zero_blocks += u64::from(e.len),
            ExtentKind::Trim => {}
        }
    }
    let live_bytes = live.values().sum();
    // What holds live blocks may have been lost.
    let carried = live.keys().filter(|c| !sum.chunks.contains_key(c)).map(|c| (*c, (0, BTreeSet::new())));
    let mut all: BTreeMap<ChunkId, (u64, BTreeSet<u32>)> = carried.collect();
    all.extend(sum.chunks);
    let chunks = all.into_iter().map(|(chunk, (bytes, segments))| ChunkInfo {
        chunk,
        bytes,
        live_bytes: live.get(&chunk).copied().unwrap_or(0),
        segments: segments.len() as u32,
    });
    ShardInfo {
        shard: id,
        view: st.last.view,
        sequence: st.last.sequence,
        version: st.version,
        committed: st.committed,
        promised: st.promised,
        first_kept: st.first_kept,
        frames: sum.frames,
        data_bytes: sum.data_bytes,
        live_bytes,
        zero_blocks,
        chunks: chunks.collect(),
        holes: st.holes,
        absent: st.absent,
        suspect_tail: st.suspect_tail,
        digest: state::digest(s),
    }
}
