//! History that is larger than its memory: in runs, and what becomes of it there.

use crate::common::*;
use crate::copies::{base_at, keeps, mark};
use crate::crash_device::crash_device;
use crate::history::{erase_checkpoints, open};
use freebs_format::{ExtentKind, UpdateKind};
use freebs_io::faults::CrashDevice;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::{MapPlace, MarkChange, Options, Record};
use freebs_types::{BLOCK, ErrorKind, Sequence, ShardId, Version, ViewNumber};

const SHARD: ShardId = ShardId::new(1, 0);
/// A few dozen superseded extents fit.
const SMALL: Options = Options { map_bytes: 64 << 10, checkpoint_bytes: 1 << 40 };

struct Log {
    rig: Rig,
    device: CrashDevice,
    chain: Chain,
}

impl Log {
    async fn new() -> Self {
        let device = crash_device(40 << 20, 1);
        create_log(device.clone(), &shape(30)).await.unwrap();
        Self { rig: open(&device, SMALL).await, device, chain: Chain::new(SHARD) }
    }

    /// Writes a block; the content tells which time it is.
    fn write(&mut self, block: u32, n: u64) {
        let op = Op { extents: vec![(ExtentKind::Data, block, 1)], fill: n * 1000 };
        self.rig.append(Record::Frame(self.chain.frame(&[op])));
    }

    fn pin(&mut self, op: (UpdateKind, u64)) -> u64 {
        self.rig.append(Record::Frame(self.chain.pins(&[op])));
        self.chain.version
    }

    /// Commits all, and lets the engine do what is due.
    async fn settle(&self) {
        self.rig.settle().await;
        self.rig.engine.committed(SHARD, Sequence(self.chain.sequence));
        for _ in 0..3000 {
            tokio::task::yield_now().await;
        }
        self.rig.engine.check();
        self.rig.engine.check_past().await.unwrap();
    }

    /// Stops, and begins again with the log alone.
    async fn again(self) -> Self {
        let Self { rig, device, chain } = self;
        rig.stop().await;
        erase_checkpoints(&device).await;
        Self { rig: open(&device, SMALL).await, device, chain }
    }

    fn kept(&self) -> u64 {
        self.rig.engine.history(SHARD).unwrap().extents
    }

    fn live(&self) -> u64 {
        self.rig.engine.space().live_bytes / BLOCK as u64
    }
}

/// All history was in memory, however much of it there was.
#[test]
fn memory_has_a_part_of_the_history_and_every_version_is_read() {
    local(async {
        let mut log = Log::new().await;
        log.pin((UpdateKind::Retain, 0));
        for n in 0..1200u64 {
            log.write((n * 7 % 40) as u32, n);
            if n % 50 == 0 {
                log.settle().await;
            }
        }
        log.settle().await;
        for turn in 0..2 {
            assert_eq!((log.kept(), log.live()), (1160, 1200), "turn {turn}");
            let in_memory = log.rig.engine.past_in_memory(SHARD);
            assert!(in_memory < 100, "{in_memory} of 1160 extents are in memory");
            for n in [40, 41, 399, 700, 1198] {
                let then = log.rig.read_version(SHARD, Some(Version(n + 2)), 40).await.unwrap();
                let block = (n * 7 % 40) as u32;
                assert_eq!(then[&block], Cell8::Data(n * 1000 + u64::from(block)), "write {n}");
            }
            log = log.again().await;
            log.settle().await;
        }
        log.rig.stop().await;
    });
}

/// A member that learns keeps history in memory until it is committed there; it stayed there behind that.
#[test]
fn history_that_was_learned_goes_into_runs_when_it_is_committed() {
    local(async {
        let mut log = Log::new().await;
        log.pin((UpdateKind::Retain, 0));
        (0..1200u64).for_each(|n| log.write((n % 40) as u32, n));
        log.settle().await;
        let device = crash_device(40 << 20, 2);
        create_log(device.clone(), &shape(30)).await.unwrap();
        let rig = open(&device, SMALL).await;
        let base = base_at(&log.rig, 0, log.chain.sequence).await;
        let (upto, kept) = (base.last.sequence, log.rig.engine.kept_state(SHARD).unwrap());
        rig.append(keeps(kept.clone()));
        let mut place = Some(MapPlace::default());
        while let Some(at) = place {
            let none = Sequence(0);
            let (body, data, next) = log.rig.engine.entries_with_past(SHARD, at, none, none, upto, 32).await.unwrap();
            if !body.entries.is_empty() {
                rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
            }
            rig.settle().await;
            place = next;
        }
        assert!(rig.engine.past_in_memory(SHARD) > 1000, "{}", rig.engine.past_in_memory(SHARD));
        rig.append(mark(MarkChange {
            base: Some(Box::new(base)),
            kept: Some(Box::new(kept)),
            ..MarkChange::default()
        }));
        rig.settle().await;
        for _ in 0..3000 {
            tokio::task::yield_now().await;
        }
        let in_memory = rig.engine.past_in_memory(SHARD);
        assert!(in_memory < 100, "{in_memory} extents are in memory");
        let then = rig.read_version(SHARD, Some(Version(702)), 40).await.unwrap();
        assert_eq!(then[&20], Cell8::Data(700 * 1000 + 20));
        rig.stop().await;
        log.rig.stop().await;
    });
}

/// Nothing bounded history in memory once a page of a run was lost: it can't be written out, and the window was not made shorter.
#[test]
fn behind_a_lost_page_memory_says_that_the_window_takes_too_much() {
    local(async {
        let mut log = Log::new().await;
        log.pin((UpdateKind::Retain, 0));
        (0..1200u64).for_each(|n| log.write((n % 40) as u32, n));
        log.settle().await;
        assert!(log.rig.engine.past_pages() > 4);
        log.rig.engine.checkpoint().await.unwrap();
        log.rig.stop().await;
        // Of the pages nothing is in memory.
        log.rig = open(&log.device, SMALL).await;
        assert!(lose_pages(&log.device).await > 4);
        let mut lost = false;
        for n in 2..1200 {
            lost |=
                log.rig.read_version(SHARD, Some(Version(n)), 40).await.is_err_and(|e| e.kind == ErrorKind::Corrupt);
        }
        assert!(lost, "a page is read again");
        assert_eq!(log.rig.engine.past_over(), [], "most of it is in runs");
        (0..1200u64).for_each(|n| log.write((n % 40) as u32, n));
        log.rig.settle().await;
        log.rig.engine.committed(SHARD, Sequence(log.chain.sequence));
        for _ in 0..3000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.rig.engine.past_over(), [SHARD]);
        assert!(log.rig.engine.waits_for_start(), "the log makes the map anew");
        log = log.again().await;
        log.settle().await;
        assert_eq!((log.kept(), log.rig.engine.past_over(), log.rig.engine.waits_for_start()), (2360, vec![], false));
        log.rig.stop().await;
    });
}

/// Zeroes all pages of runs.
async fn lose_pages(device: &CrashDevice) -> usize {
    let mut lost = 0;
    for at in (0..device.len()).step_by(4096) {
        let page = device.read(at, 4096).await.unwrap();
        if page.starts_with(b"FBMP") {
            let (_, done) = device.write(at, AlignedBuf::zeroed(4096), Durability::Durable).await;
            done.unwrap();
            lost += 1;
        }
    }
    lost
}

/// Nothing was looked for in runs after a start, though what they had was given up while the log was read.
#[test]
fn what_was_given_up_in_the_log_is_free_after_a_start() {
    local(async {
        let mut log = Log::new().await;
        (0..40).for_each(|b| log.write(b, 1));
        let first = log.pin((UpdateKind::Snapshot, 0));
        (0..40).for_each(|b| log.write(b, 2));
        log.settle().await;
        assert_eq!((log.kept(), log.live()), (40, 80));
        log.pin((UpdateKind::Release, first));
        log.pin((UpdateKind::Snapshot, 0));
        (0..40).for_each(|b| log.write(b, 3));
        log.settle().await;
        assert_eq!((log.kept(), log.live()), (40, 80), "what the first one kept is free");
        log = log.again().await;
        log.settle().await;
        assert_eq!((log.kept(), log.live()), (40, 80));
        log.rig.stop().await;
    });
}

/// A window that was bounded by bytes was given up as a whole, as versions are counted many together.
#[test]
fn a_window_in_runs_is_bounded_by_bytes_in_proportion() {
    local(async {
        let mut log = Log::new().await;
        log.pin((UpdateKind::Retain, 0));
        (0..900).for_each(|n| log.write(n % 8, u64::from(n)));
        log.settle().await;
        let from = log.rig.engine.retain_from(SHARD, u64::MAX, 450 * BLOCK as u64).unwrap().unwrap();
        assert!((300..700).contains(&from.0), "{from}");
        log.pin((UpdateKind::Retain, from.0));
        log.settle().await;
        assert!(log.kept() <= 900 - from.0 + 900 / 8, "{} are kept from {from} on", log.kept());
        log.pin((UpdateKind::Release, 0));
        log.settle().await;
        assert_eq!((log.kept(), log.live()), (0, 8));
        log.rig.stop().await;
    });
}

/// A shard that is deleted takes its part of the runs with it.
#[test]
fn the_runs_of_a_shard_that_is_gone_are_given_up() {
    local(async {
        let mut log = Log::new().await;
        log.pin((UpdateKind::Retain, 0));
        (0..600).for_each(|n| log.write(n % 8, u64::from(n)));
        log.settle().await;
        assert!(log.rig.engine.past_pages() > 0);
        assert_eq!(log.kept(), 592);
        log.rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        log.rig.settle().await;
        for _ in 0..3000 {
            tokio::task::yield_now().await;
        }
        assert_eq!((log.live(), log.rig.engine.past_pages()), (0, 0));
        log.rig.stop().await;
    });
}
