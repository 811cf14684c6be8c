//! Runs of history against one table that has everything: written, merged, looked through, and looked up.

use super::look::Which;
use super::past::PastMergeOf;
use super::*;
use crate::Options;
use crate::log::geometry::Geometry;
use crate::map::extents::{Crcs, Layer};
use crate::map::tally::Count;
use crate::shard::Shard;
use crate::shard::history::pins::Kept;
use crate::shard::history::table::{Judge, Table};
use freebs_format::ExtentKind;
use freebs_io::memory::MemoryDevice;
use freebs_types::{ChunkId, ClusterId, Sequence, ShardId, SnapshotId, StartNumber};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BLOCKS: u32 = 60;
const VERSIONS: u64 = 40;

fn id(n: u64) -> ShardId {
    ShardId::new(n, 0)
}

/// Two shards that keep all versions.
fn device() -> (MemoryDevice, RefCell<Core>) {
    let geometry = Geometry {
        cluster: ClusterId([1; 16]),
        device: DeviceId([2; 16]),
        start: StartNumber(1),
        sector: 4096,
        segment_bytes: 1 << 20,
        limit_segments: 40,
    };
    let mut core = Core::new(geometry, 0, Options { map_bytes: 1 << 20, checkpoint_bytes: 1 << 40 });
    for n in 1..=2 {
        let mut s = Shard::new(id(n), core.maps.new_slot(id(n)));
        s.history.pins.kept.retain = Some(Version(1));
        (s.committed, s.tip.version) = (Sequence(100), Version(100));
        core.shards.insert(id(n), s);
    }
    (MemoryDevice::new(4096, 1 << 30), RefCell::new(core))
}

/// The extent of a version there; it is the same wherever it is told again.
fn extent(start: u32, len: u32, version: u64, home: u32) -> Extent {
    let kind = ExtentKind::from_byte(1 + (version % 3) as u8).unwrap();
    let data = kind == ExtentKind::Data;
    let table: Vec<u32> = (start..start + len).map(|b| version as u32 * 1000 + b).collect();
    Extent {
        len,
        kind,
        version: Version(version),
        sequence: Sequence(version),
        chunk: if data { ChunkId::new(1, version as u32) } else { ChunkId::default() },
        offset: if data { start } else { home },
        crcs: if data { Crcs::Many { table: table.into(), at: 0 } } else { Crcs::None },
    }
}

/// Block and version: end, ordinal or home, CRC.
type Blocks = BTreeMap<(u32, u64), (u64, u32, Option<u32>)>;

fn blocks<'a>(layers: impl Iterator<Item = (u32, &'a Layer)>) -> Blocks {
    let each = |(a, l): (u32, &Layer)| {
        let l = l.clone();
        (0..l.e.len).map(move |i| {
            let ordinal = if l.e.is_data() { l.e.offset + i } else { l.e.offset };
            ((a + i, l.e.version.0), (l.to.0, ordinal, l.e.crcs.slice(l.e.len).get(i as usize).copied()))
        })
    };
    layers.flat_map(each).collect()
}

/// Shard, first block, length, version, how many versions it was in force, whether it was recorded, and where.
type Told = (u64, u32, u32, u64, u64, bool, u32);

fn told() -> impl Strategy<Value = Told> {
    (1u64..3, 0..BLOCKS - 1, 1u32..12, 1..VERSIONS, 1u64..9, any::<bool>(), 0u32..30)
}

async fn tell(core: &RefCell<Core>, all: &mut [Table], list: &[Told]) {
    for (shard, start, len, version, more, recorded, home) in list.iter().copied() {
        let e = extent(start, len.min(BLOCKS - start), version, home);
        let to = Version(version + more);
        let Core { shards, segs, .. } = &mut *core.borrow_mut();
        shards.get_mut(&id(shard)).unwrap().supersede(start, &e, to, recorded, segs);
        let judge = &mut Judge { needs: &|_, _| true, gone: &mut |_| (), recorded, is_below: false, level: 0 };
        all[shard as usize - 1].insert(start, &e, to, judge);
    }
}

async fn compare(io: Io<'_, MemoryDevice>, all: &[Table]) {
    for (n, table) in all.iter().enumerate() {
        let shard = id(n as u64 + 1);
        let want = blocks(table.iter());
        for (from, to) in [(0, BLOCKS), (7, 8), (20, 41)] {
            let seen = io.with_layers(shard, (from, to), |_, _, layers| Ok(blocks(layers.iter()))).await.unwrap();
            let want: Blocks = want.range((from, 0)..(to, 0)).map(|(k, v)| (*k, *v)).collect();
            assert_eq!(seen, want, "layers of [{from}, {to})");
        }
        for v in [1, 5, 13, 22, VERSIONS + 20] {
            let found = io.with_own_view(shard, (0, BLOCKS), Which::At(Version(v)), |_, _, view| {
                let in_force = view.iter().flat_map(|(a, e)| (a..a + e.len).map(move |b| (b, e.version.0)));
                Ok(in_force.collect::<BTreeMap<u32, u64>>())
            });
            let newest = want.range(..).filter(|((_, w), _)| *w <= v).map(|((b, w), _)| (*b, *w));
            assert_eq!(found.await.unwrap(), newest.collect::<BTreeMap<u32, u64>>(), "version {v}");
        }
        for at in 0..BLOCKS {
            let next = want.keys().map(|k| k.0).find(|b| *b >= at);
            assert_eq!(io.next_own_entry(shard, at).await.unwrap(), next);
        }
        let h = &io.core.borrow().shards[&shard].history;
        assert!(h.below.is_any() || h.memory.len() as usize >= table.len().min(1));
    }
}

async fn story(rounds: Vec<(Vec<Told>, u8)>) {
    let (device, core) = device();
    let io = Io { device: &device, core: &core, alone: true };
    let mut all = vec![Table::default(), Table::default()];
    for (list, what) in rounds {
        tell(&core, &mut all, &list).await;
        if what > 0 {
            io.flush_past().await.unwrap();
            assert!(core.borrow().shards.values().all(|s| s.history.memory.is_empty()));
        }
        match what {
            2 => io.merge_past(PastMergeOf::Young).await.unwrap(),
            3 => io.merge_past(PastMergeOf::All).await.unwrap(),
            4 => io.look_through_past().await.unwrap(),
            _ => {}
        }
        compare(io, &all).await;
    }
    io.merge_past(PastMergeOf::All).await.unwrap();
    compare(io, &all).await;
    end(io, &all).await;
}

/// Of what only pinned versions need nothing else stays; and when nothing is kept any more, nothing does.
async fn end(io: Io<'_, MemoryDevice>, all: &[Table]) {
    io.flush_past().await.unwrap();
    let pins = Kept { pins: [7, 19].map(|v| (Version(v), SnapshotId(0))).into(), retain: None };
    for kept in [pins, Kept::default()] {
        io.core.borrow_mut().shards.values_mut().for_each(|s| s.history.pins.kept = kept.clone());
        io.merge_past(PastMergeOf::All).await.unwrap();
        for (n, table) in all.iter().enumerate() {
            let layers = |_: &Core, _: &Shard, layers: Table| Ok(blocks(layers.iter()));
            let seen = io.with_layers(id(n as u64 + 1), (0, BLOCKS), layers).await.unwrap();
            let needed = table.iter().filter(|(_, l)| kept.needs(l.e.version, l.to));
            assert_eq!(seen, blocks(needed));
        }
    }
    let core = io.core.borrow();
    assert!(core.maps.past.is_empty() && core.maps.past.of(1) == Count::default());
    assert!(core.maps.segments.iter().all(|id| core.maps.open.is_some_and(|o| o.0 == *id)), "no segment is held");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn is_the_table_that_has_everything(
        rounds in prop::collection::vec((prop::collection::vec(told(), 0..25), 0u8..5), 1..9),
    ) {
        local(story(rounds));
    }

    /// Blocks of their own that are written again and again: their layers pass from the runs one by one.
    #[test]
    fn a_block_that_is_written_again_and_again_is_the_same(
        rounds in prop::collection::vec((prop::collection::vec((0u32..3, 1..VERSIONS, 1u64..4, any::<bool>(), 0u32..9), 0..30), 0u8..5), 1..9),
    ) {
        let one = |(b, v, more, recorded, home): (u32, u64, u64, bool, u32)| (1, b * 3, 1, v, more, recorded, home);
        local(story(rounds.into_iter().map(|(l, what)| (l.into_iter().map(one).collect(), what)).collect()));
    }
}

fn local(f: impl Future<Output = ()>) {
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&rt, f);
}

/// A block with thousands of versions: of a run as many pages are read as are needed, not all that have the block.
#[test]
fn a_version_of_a_busy_block_is_found_on_few_pages() {
    let (device, core) = device();
    let io = Io { device: &device, core: &core, alone: true };
    local(async {
        const LAST: u64 = 6000;
        {
            let Core { shards, segs, .. } = &mut *core.borrow_mut();
            let s = shards.get_mut(&id(1)).unwrap();
            (s.committed, s.tip.version) = (Sequence(LAST + 9), Version(LAST + 9));
            for v in 1..=LAST {
                s.supersede(9, &extent(9, 1, v, 1), Version(v + 1), true, segs);
            }
            s.supersede(0, &extent(0, 1, 1, 1), Version(2), true, segs);
            s.supersede(30, &extent(30, 1, 1, 1), Version(2), true, segs);
        }
        io.flush_past().await.unwrap();
        let pages = core.borrow().maps.past.young[0].fences.len();
        assert!(pages >= 8, "{pages}");
        for v in [1, 2, 777, 3000, LAST - 1, LAST] {
            let before = core.borrow().counters.map_reads;
            let found = io.with_own_view(id(1), (9, 10), Which::At(Version(v)), |_, _, view| {
                Ok(view.iter().map(|(_, e)| e.version.0).collect::<Vec<_>>())
            });
            assert_eq!(found.await.unwrap(), [v]);
            let reads = core.borrow().counters.map_reads - before;
            assert!(reads <= 2, "{reads} pages of {pages} for version {v}");
        }
    });
}
