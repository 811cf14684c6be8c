//! Runs against a naive array: levels written one after the other, looked up, and merged.

use super::look::Which;
use super::*;
use crate::Options;
use crate::log::geometry::Geometry;
use crate::map::extents::{Crcs, Outcome};
use crate::map::run::Run;
use crate::shard::Shard;
use freebs_format::ExtentKind;
use freebs_io::memory::MemoryDevice;
use freebs_types::{ChunkId, ClusterId, Sequence, ShardId, StartNumber};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

const SEGMENT: u64 = 1 << 20;
const BLOCKS: u32 = 300;

fn device() -> (MemoryDevice, RefCell<Core>) {
    let geometry = Geometry {
        cluster: ClusterId([1; 16]),
        device: DeviceId([2; 16]),
        start: StartNumber(1),
        sector: 4096,
        segment_bytes: SEGMENT,
        limit_segments: 40,
    };
    let mut core = Core::new(geometry, 0, Options { map_bytes: 1 << 20, checkpoint_bytes: 1 << 40 });
    core.maps.resident = false;
    for id in 1..=2 {
        let (shard, slot) = (ShardId::new(id, 0), core.maps.new_slot(ShardId::new(id, 0)));
        core.shards.insert(shard, Shard::new(shard, slot));
    }
    (MemoryDevice::new(4096, 1 << 30), RefCell::new(core))
}

/// Per block: version, kind, ordinal or home, CRC.
type Cell = (u64, u8, u32, Option<u32>);
type Model = BTreeMap<(u32, u32), Cell>;

fn extent(kind: u8, len: u32, version: u64) -> Extent {
    let kind = ExtentKind::from_byte(kind).unwrap();
    let data = kind == ExtentKind::Data;
    let table: Vec<u32> = (0..len).map(|i| version as u32 * 1000 + i).collect();
    Extent {
        len,
        kind,
        version: Version(version),
        sequence: Sequence(version / 2),
        chunk: if data { ChunkId::new(1, version as u32) } else { ChunkId::default() },
        offset: if data { version as u32 % 7 } else { version as u32 % 30 },
        crcs: if data { Crcs::Many { table: table.into(), at: 0 } } else { Crcs::None },
    }
}

fn cells(slot: u32, start: u32, e: &Extent) -> impl Iterator<Item = ((u32, u32), Cell)> {
    (0..e.len).map(move |i| {
        let crc = e.crcs.slice(e.len).get(i as usize).copied();
        let ordinal = if e.is_data() { e.offset + i } else { e.offset };
        ((slot, start + i), (e.version.0, e.kind as u8, ordinal, crc))
    })
}

async fn all<D: Device>(io: Io<'_, D>) -> Model {
    let mut out = Model::new();
    let shards: Vec<ShardId> = io.core.borrow().shards.keys().copied().collect();
    for id in shards {
        let mut at = 0;
        while let Some(from) = io.next_entry(id, at).await.unwrap() {
            assert!(from >= at);
            at = from + 37;
            io.with_view(id, (from, at), Which::Committed, |_, s, view| {
                out.extend(view.iter().flat_map(|(a, e)| cells(s.slot, a, e)));
                Ok(())
            })
            .await
            .unwrap();
        }
    }
    out
}

async fn story(levels: Vec<Vec<(u32, u32, u32, u8)>>, merges: Vec<bool>) {
    let (device, core) = device();
    let io = Io { device: &device, core: &core, alone: true };
    let (mut model, mut version) = (Model::new(), 0);
    for (level, merge) in levels.iter().zip(merges) {
        for (shard, start, len, kind) in level {
            version += 1;
            let e = extent(*kind, *len, version);
            let core = &mut *core.borrow_mut();
            let s = core.shards.get_mut(&ShardId::new(u64::from(*shard), 0)).unwrap();
            model.extend(cells(s.slot, *start, &e));
            s.map.insert(*start, e, &mut Outcome::default());
        }
        io.flush(|_, _| ()).await.unwrap();
        assert_eq!(all(io).await, model);
        if merge {
            io.merge().await.unwrap();
            assert!(core.borrow().maps.young.len() <= 1);
            assert_eq!(all(io).await, model);
        }
        assert!(core.borrow().shards.values().all(|s| s.map.is_empty() && s.frozen.is_none()));
    }
    // Two merges leave what is live in one place, and the segments of all else are ready again.
    io.merge().await.unwrap();
    assert_eq!(all(io).await, model);
    let core = core.borrow();
    let named: BTreeSet<u32> = core.maps.runs().flat_map(|r| r.places.list()).map(|p| p.segment).collect();
    assert!(core.segs.map_count as usize <= named.len() + 1, "{} of {}", named.len(), core.segs.map_count);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn levels_are_the_naive_array(
        levels in prop::collection::vec(
            prop::collection::vec((1u32..=2, 0..BLOCKS, 1u32..20, 1u8..=3), 0..80), 1..8),
        merges in prop::collection::vec(prop::bool::weighted(0.3), 8),
    ) {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        rt.block_on(story(levels, merges));
    }
}

/// What a merge drops is told once per block that has a newer entry, and never for what stays.
#[tokio::test]
async fn a_merge_tells_what_is_superseded() {
    let (device, core) = device();
    let io = Io { device: &device, core: &core, alone: true };
    let mut runs = VecDeque::new();
    // Oldest first; the middle one has a copy of an entry of the oldest.
    for level in
        [vec![(0, extent(1, 10, 1)), (20, extent(1, 4, 2))], vec![(0, extent(1, 10, 1))], vec![(3, extent(1, 2, 9))]]
    {
        let mut w = write::RunWriter::new(io.device_id(), core.borrow_mut().maps.new_run(), true);
        for (a, e) in level {
            w.push(io, 1, a, &e).await.unwrap();
        }
        runs.push_front(Rc::new(w.finish(io).await.unwrap().unwrap()));
    }
    let mut merge = merge::Merge::new(runs.into_iter());
    let (mut stays, mut gone) = (Vec::new(), Vec::new());
    while let Some((_, a, e)) = merge.next(io, |_, _, e, _| gone.push((e.version.0, e.offset, e.len))).await.unwrap() {
        stays.push((a, e.version.0, e.offset, e.len));
    }
    assert_eq!(stays, [(0, 1, 1, 3), (3, 9, 2, 2), (5, 1, 6, 5), (20, 2, 2, 4)]);
    assert_eq!(gone, [(1, 4, 2), (1, 4, 2)], "both copies are covered");
}

#[tokio::test]
async fn a_damaged_page_is_told_and_stops_the_merging() {
    let (device, core) = device();
    let io = Io { device: &device, core: &core, alone: true };
    let id = ShardId::new(1, 0);
    for n in 0..3 {
        let at = 10 * n;
        core.borrow_mut().shards.get_mut(&id).unwrap().map.insert(
            at,
            extent(1, 4, u64::from(n) + 1),
            &mut Outcome::default(),
        );
        io.flush(|_, _| ()).await.unwrap();
    }
    let at = {
        let core = core.borrow();
        let p = core.maps.young[1].places.find(0, 1);
        core.geometry.byte(p.segment, p.page * 4096 + 70) as usize
    };
    device.poke(|b| b[at] ^= 4);
    let look = async |at| io.with_view(id, (at, at + 4), Which::All, |_, _, v| Ok(v.iter().count())).await;
    assert_eq!(look(0).await.unwrap(), 1);
    assert_eq!(look(20).await.unwrap(), 1);
    let e = look(10).await.unwrap_err();
    assert_eq!(e.kind, freebs_types::ErrorKind::Corrupt, "{e}");
    assert!(core.borrow().maps.damaged && !io.wants_merge());
    assert!(io.merge().await.is_err(), "nothing is merged without a page");
    assert_eq!(look(0).await.unwrap(), 1, "what was there stays");
}

/// Each page begins anew, and two of them are out of order though their checksums are right. To load such a run ended the process.
#[tokio::test]
async fn a_run_with_pages_out_of_order_is_refused() {
    let (device, core) = device();
    let io = Io { device: &device, core: &core, alone: true };
    for seconds in [vec![(1, 5)], vec![(1, 30)], vec![(1, 40), (2, 0)]] {
        let mut w = write::RunWriter::new(io.device_id(), core.borrow_mut().maps.new_run(), false);
        for a in [0, 30] {
            w.push(io, 1, a, &extent(1, 10, 1)).await.unwrap();
        }
        w.end_page();
        let is_sound = seconds[0].1 == 40;
        for (slot, a) in seconds {
            w.push(io, slot, a, &extent(1, 2, 2)).await.unwrap();
        }
        let run = w.finish(io).await.unwrap().unwrap();
        assert!(run.fences.is_sorted() && run.fences.len() == 2);
        let named = Run { number: run.number, places: run.places.clone(), entries: run.entries, ..Run::default() };
        let loaded = io.load_run(named, true, 2).await.map(|_| ()).map_err(|e| e.kind);
        let mut merge = merge::Merge::new(std::iter::once(Rc::new(run)));
        let merged = loop {
            match merge.next(io, |_, _, _, _| ()).await {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(()),
                Err(e) => break Err(e.kind),
            }
        };
        let expected = if is_sound { Ok(()) } else { Err(freebs_types::ErrorKind::Corrupt) };
        assert_eq!((loaded, merged), (expected, expected));
    }
}
