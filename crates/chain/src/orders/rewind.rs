//! A head with a real log, for twelve minutes of a simulated clock: drawn times and versions of the last ten are what a plain
//! list of the writes says, to the single update; others are refused.

use super::cuts::{pins, words};
use super::window::asks;
use super::*;
use crate::event::{CutWord, PastAsk, ShardSnapshots, UnderWay};
use freebs_format::PinUpdate;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::{Engine, Expect, Options, Shape};
use freebs_types::{DeviceId, Moment, Past, SnapshotId};
use std::sync::Arc;

const BLOCKS: u32 = 64;
const RETAIN_MS: u64 = 600_000;
const NOW_MS: u64 = 1_795_000_000_000;
/// Drawn places: more of them would find nothing else.
const PLACES: usize = 500;

/// A write that was ordered: the moment that the shard's clock had, its version, blocks and what they have.
#[derive(Clone, Copy)]
struct Write {
    moment: Moment,
    version: u64,
    range: BlockRange,
    fill: u8,
}

fn below(seed: &mut u64, n: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    (*seed >> 33) % n
}

/// The head, its log, and the frames of which it has been given.
struct Pair {
    s: Scene,
    engine: Engine<MemoryDevice>,
    given: usize,
    /// The window that the state says, and the snapshot under way.
    snapshot: Option<UnderWay>,
}

impl Pair {
    async fn new(options: Options) -> Self {
        let (cluster, node) = (config(1, None).cluster, NodeId(1));
        let shape = Shape {
            cluster,
            node,
            device: DeviceId([9; 16]),
            worker: 0,
            workers: 1,
            segment_bytes: 1 << 20,
            size_limit: 120 << 20,
            wall: 1,
        };
        let device = MemoryDevice::new(512, 128 << 20);
        Engine::create(device.clone(), &shape).await.unwrap();
        let expect = Expect { cluster, node, worker: 0, workers: 1 };
        let (engine, _) = Engine::open_with(device, &expect, options).await.unwrap();
        let writer = engine.clone();
        tokio::task::spawn_local(async move { writer.run().await });
        let s = leading_at(NOW_MS * 1_000_000, Ok(Found::Window(None)));
        Self { s, engine, given: 0, snapshot: None }
    }

    /// All that was ordered becomes durable on both members, and the log answers what it is asked.
    async fn settle(&mut self, mut actions: Vec<Action>) -> Vec<Action> {
        let mut done = 0;
        loop {
            for frame in self.s.log[self.given..].iter().cloned() {
                self.engine.append(Record::Frame(frame));
            }
            self.given = self.s.log.len();
            let last = self.s.r.last.sequence;
            while self.engine.state(SHARD).map(|s| s.last.sequence) != Some(last) {
                tokio::task::yield_now().await;
            }
            actions.extend(self.s.both_durable());
            self.engine.committed(SHARD, self.s.r.committed);
            let asked: Vec<PastAsk> = asks(&actions[done..]);
            done = actions.len();
            if asked.is_empty() && self.given == self.s.log.len() {
                return actions;
            }
            for ask in asked {
                let found = match ask.wanted {
                    Wanted::Window => self.engine.history(SHARD).map(|h| Found::Window(h.retain)),
                    Wanted::Begin => self.engine.times_begin(SHARD, ask.now).await.map(Found::Begin),
                    Wanted::At { past, snapshot } => {
                        let asked = (ask.now, ask.last);
                        self.engine.find_past(SHARD, past, asked, snapshot).await.map(Found::Version)
                    }
                    Wanted::Room { above, from } => {
                        self.engine.times_above(SHARD, above, (from, ask.now)).await.map(Found::Times)
                    }
                };
                actions.extend(self.s.play(|r, ctx| r.on_past_found(ctx, ask, found)).1);
            }
        }
    }

    async fn told(&mut self, under_way: Option<UnderWay>) -> Vec<Action> {
        self.snapshot = under_way;
        let kept = Arc::new(under_way.iter().map(|u| u.id).collect());
        let as_of = ViewNumber(2);
        let snapshots = ShardSnapshots { kept, under_way, spared: SnapshotId(0), as_of, retain_ms: Some(RETAIN_MS) };
        self.s.r.info = Some(ShardInfo { snapshots, ..info(u64::from(BLOCKS)) });
        let actions = self.s.play(|r, ctx| r.see_to_snapshots(ctx)).1;
        self.settle(actions).await
    }

    fn passes(&mut self, ms: u64) {
        self.s.now = self.s.now.plus(Nanos::from_millis(ms));
        self.s.wall += ms * 1_000_000;
    }

    async fn ticks(&mut self) {
        let actions = self.s.play(|r, ctx| r.head_tick(ctx)).1;
        self.settle(actions).await;
    }

    /// A write or trim; several may come in one turn.
    fn writes(&mut self, number: u64, range: BlockRange, fill: u8) {
        let kind = if fill == 0 { (UpdateKind::Trim, ExtentKind::Trim) } else { (UpdateKind::Write, ExtentKind::Data) };
        let data = Bytes::from(vec![fill; if fill == 0 { 0 } else { range.len as usize * BLOCK }]);
        let w = WriteRequest {
            kind: kind.0,
            extents: vec![Extent { kind: kind.1, range }],
            crcs: data.chunks(BLOCK).map(block_crc).collect(),
            data: Some(data).filter(|d| !d.is_empty()).into_iter().collect(),
            ..request(number, number, 1)
        };
        let actions = self.s.play(|r, ctx| r.on_write(ctx, DRIVER, w)).1;
        assert!(reason(&actions).is_none(), "{actions:?}");
    }

    /// The snapshot of a place in the past: its version, or the reason for which there is none.
    async fn snapshot(&mut self, id: u64, past: Past) -> std::result::Result<Version, String> {
        let id = SnapshotId(id);
        let u =
            UnderWay { id, is_alone: true, is_decided: false, reported: None, is_confirmed: false, past: Some(past) };
        let mut actions = self.told(Some(u)).await;
        self.passes(300);
        actions.extend(self.s.play(|r, ctx| r.head_tick(ctx)).1);
        let actions = self.settle(actions).await;
        let fails = |w: &&CutWord| if let CutWord::Fails { why, .. } = w { Some(why.clone()) } else { None };
        let why = words(&actions).iter().find_map(fails);
        let found = pins(&actions).into_iter().find_map(|(own, pin)| match pin {
            PinUpdate::Past(pin) => Some(pin.version),
            PinUpdate::Snapshot(_) => Some(own),
            _ => None,
        });
        match (found, why) {
            (Some(version), None) => {
                let cut = |w: &&CutWord| matches!(w, CutWord::Cut { version: v, .. } if *v == version);
                assert!(words(&actions).iter().any(cut), "it is reported: {:?}", words(&actions));
                Ok(version)
            }
            (None, Some(why)) => Err(why),
            other => panic!("{past:?}: {other:?}"),
        }
    }

    async fn read(&self, version: Version) -> Vec<u8> {
        let out = self.engine.read_at(SHARD, version, BlockRange::new(0, BLOCKS)).await.unwrap();
        let (mut blocks, mut data) = (Vec::new(), out.data.concat());
        for piece in out.pieces {
            for _ in 0..piece.blocks {
                let fill = if piece.kind == ExtentKind::Data { data[0] } else { 0 };
                if piece.kind == ExtentKind::Data {
                    assert!(data[..BLOCK].iter().all(|b| *b == fill));
                    data.drain(..BLOCK);
                }
                blocks.push(fill);
            }
        }
        blocks
    }
}

/// The blocks behind the writes of which `is_in` says that they count.
fn model(writes: &[Write], is_in: impl Fn(&Write) -> bool) -> Vec<u8> {
    let mut blocks = vec![0; BLOCKS as usize];
    for w in writes.iter().filter(|w| is_in(w)) {
        blocks[w.range.start.0 as usize..w.range.end() as usize].fill(w.fill);
    }
    blocks
}

/// Twelve minutes of writes and rest, with a clock that stands still now and then.
async fn lived(p: &mut Pair, seed: &mut u64) -> (Vec<Write>, Moment) {
    p.told(None).await;
    p.ticks().await;
    let begun = Moment::at_wall(p.s.wall).next();
    let (mut writes, mut number) = (Vec::new(), 0);
    let until = p.s.wall + 720_000 * 1_000_000;
    while p.s.wall < until {
        let pause = if below(seed, 40) == 0 { 4000 } else { 250 };
        p.passes(below(seed, pause));
        if below(seed, 50) == 0 {
            // It is set back a little; it goes on when it has caught up.
            p.s.wall -= below(seed, 3000) * 1_000_000;
        }
        for _ in 0..1 + below(seed, 3) {
            number += 1;
            let start = below(seed, u64::from(BLOCKS)) as u32;
            let range = BlockRange::new(start, 1 + below(seed, u64::from(BLOCKS - start).min(6)) as u32);
            let fill = if below(seed, 8) == 0 { 0 } else { 1 + below(seed, 255) as u8 };
            p.writes(number, range, fill);
            let moment = Moment::at_wall(p.s.play(|r, ctx| r.wall(ctx)).0);
            writes.push(Write { moment, version: 0, range, fill });
            p.passes(below(seed, 60));
        }
        p.s.play(|r, ctx| r.pack(ctx));
        // Versions are those of the log, where moments and what is kept have some of their own.
        let mut versions = p.s.log.iter().rev().flat_map(|f| {
            let own: Vec<_> = f.head.updates().filter(|u| u.driver == DriverId(9)).map(|u| u.version.0).collect();
            own.into_iter().rev()
        });
        let new = writes.iter_mut().rev().take_while(|w| w.version == 0);
        new.for_each(|w| w.version = versions.next().expect("each write is ordered"));
        p.ticks().await;
    }
    (writes, begun)
}

#[test]
fn drawn_times_and_versions_of_ten_minutes_are_exact() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let (mut p, mut seed) = (Pair::new(Options::of_workers(1)).await, 77);
        let (writes, begun) = lived(&mut p, &mut seed).await;
        let first = p.s.r.window_begins();
        let begins = Moment::from_ms(p.s.r.past_status().and_then(|s| s.from_ms).expect("it has moved"));
        assert!(begins > begun && writes.len() > 3000, "{begins:?} {} writes", writes.len());
        let (mut times, mut versions, mut refused) = (0, 0, 0);
        for n in 0..PLACES {
            let now = Moment::at_wall(p.s.play(|r, ctx| r.wall(ctx)).0);
            let all = now.ms() - begun.ms();
            let (past, want) = if n % 3 == 0 {
                let version = Version(1 + below(&mut seed, p.s.r.version.0));
                let is_there = version >= first;
                (Past::Version(version), is_there.then(|| model(&writes, |w| w.version <= version.0)))
            } else {
                let ms = begun.ms() - 5000 + below(&mut seed, all + 5000);
                let (at, is_there) = (Moment::from_ms(ms), Moment::from_ms(ms) >= begins);
                (Past::TimeMs(ms), is_there.then(|| model(&writes, |w| w.moment < at)))
            };
            match (p.snapshot(1000 + n as u64, past).await, want) {
                (Ok(version), Some(want)) => {
                    assert_eq!(p.read(version).await, want, "{past:?} is version {version}");
                    *if n % 3 == 0 { &mut versions } else { &mut times } += 1;
                }
                (Err(why), None) => {
                    assert!(why.contains("keeps versions"), "{why}");
                    refused += 1;
                }
                (found, want) => panic!("{past:?}: {found:?}, the window begins at {begins:?}; {}", want.is_some()),
            }
            // It is gone, and its pin with it.
            p.told(None).await;
            let kept = p.engine.history(SHARD).unwrap().pins;
            let actions = p.s.play(|r, ctx| r.on_pins(ctx, &kept)).1;
            p.settle(actions).await;
            assert!(p.engine.history(SHARD).unwrap().pins.is_empty());
        }
        println!("{times} times and {versions} versions were exact, {refused} places were refused");
        assert!(times > 200 && versions > 80 && refused > 30);
        p.engine.check();
    });
}

/// Nothing had been written for a while when somebody asked for a time; what was written while the log had not all yet was in the
/// answer.
#[test]
fn what_is_written_while_a_time_is_looked_up_is_not_of_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut p = Pair::new(Options::of_workers(1)).await;
        p.told(None).await;
        p.ticks().await;
        p.passes(1000);
        p.writes(1, BlockRange::new(0, 1), 1);
        p.s.play(|r, ctx| r.pack(ctx));
        p.ticks().await;
        p.passes(2000);
        let past = Past::TimeMs(p.s.wall / 1_000_000 - 500);
        // A frame that changes nothing is not durable yet when the snapshot is heard of.
        let release = PinUpdate::Release(Version(1));
        p.s.play(|r, ctx| r.order_pin(ctx, release));
        let id = SnapshotId(9);
        let (kept, as_of) = (Arc::new([id].into()), ViewNumber(2));
        let u =
            UnderWay { id, is_alone: true, is_decided: false, reported: None, is_confirmed: false, past: Some(past) };
        let (under_way, spared) = (Some(u), SnapshotId(0));
        let snapshots = ShardSnapshots { kept, under_way, spared, as_of, retain_ms: Some(RETAIN_MS) };
        p.s.r.info = Some(ShardInfo { snapshots, ..info(u64::from(BLOCKS)) });
        let heard = p.s.play(|r, ctx| r.see_to_snapshots(ctx)).1;
        assert!(asks(&heard).is_empty());
        p.passes(300);
        p.writes(2, BlockRange::new(1, 1), 2);
        p.s.play(|r, ctx| r.pack(ctx));
        let actions = p.settle(heard).await;
        let version = pins(&actions).into_iter().find_map(|(_, pin)| match pin {
            PinUpdate::Past(pin) => Some(pin.version),
            _ => None,
        });
        let blocks = p.read(version.expect("it is pinned")).await;
        assert_eq!(blocks[..2], [1, 0]);
    });
}

/// All that was written within the window stayed in memory, however much that was.
#[test]
fn a_window_has_as_much_memory_as_there_is_and_tells_what_it_keeps() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let options = Options { map_bytes: 64 << 10, checkpoint_bytes: 1 << 20 };
        let (mut p, mut seed) = (Pair::new(options).await, 78);
        // There is no room for it beside memory.
        p.engine.refuse_past();
        p.told(None).await;
        p.ticks().await;
        let (mut most, mut writes) = (0, Vec::new());
        for number in 1..=4000 {
            p.passes(100);
            let range = BlockRange::new(below(&mut seed, 60) as u32, 1 + below(&mut seed, 4) as u32);
            let fill = 1 + below(&mut seed, 255) as u8;
            p.writes(number, range, fill);
            writes.push(Write { moment: Moment::at_wall(p.s.wall), version: 0, range, fill });
            p.s.play(|r, ctx| r.pack(ctx));
            p.ticks().await;
            if number % 10 == 0 {
                p.s.r.past_over = p.engine.past_over().contains(&SHARD);
            }
            most = most.max(p.engine.history(SHARD).unwrap().extents);
        }
        // Half of what the maps have, and what came before the window had moved.
        assert!((100..600).contains(&most), "{most} extents of 112 bytes in 32 KiB");
        let status = p.s.r.past_status().unwrap();
        assert!(status.is_short);
        let (begins, now) = (status.from_ms.unwrap(), p.s.wall / 1_000_000);
        assert!(begins > now - RETAIN_MS / 2 && begins < now - 5000, "{} ms are kept", now - begins);
        for (n, ms) in [begins - 100, begins, begins + 1000, now - 400].into_iter().enumerate() {
            match p.snapshot(2000 + n as u64, Past::TimeMs(ms)).await {
                Ok(version) => assert_eq!(p.read(version).await, model(&writes, |w| w.moment < Moment::from_ms(ms))),
                Err(why) => assert!(n == 0 && why.contains("keeps versions"), "{why}"),
            }
            assert!(n > 0 || !p.engine.history(SHARD).unwrap().pins.iter().any(|p| p.snapshot == SnapshotId(2000)));
            p.told(None).await;
        }
    });
}
