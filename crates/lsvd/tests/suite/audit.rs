//! The audit of hash chains: ten views with cleaning between them are proven as far as their frames are there, and each
//! copy that somebody changed is found, with the place and the cause.

use crate::common::*;
use freebs_format::{ExtentKind, Frame, FrameKind};
use freebs_io::AnyDevice;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::audit::{Ask, Auditor, Break, Cause, Proof, Report};
use freebs_lsvd::tool::{self, FrameInfo, Watch};
use freebs_lsvd::{Base, CleanOptions, MarkChange, Record, Scrubber};
use freebs_types::{BLOCK, ErrorKind, Hash32, Lba, Sequence, ShardId, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};

const SHARD: ShardId = ShardId::new(1, 0);
const OTHER: ShardId = ShardId::new(2, 0);
const BLOCKS: u32 = 300;
const VIEWS: u64 = 10;

fn secret(view: u64) -> u8 {
    100 + view as u8
}

/// Frames of ten views: random writes, trims and zeroes. In two of the views blocks that are never written again, so
/// that cleaning leaves the segments of these views where they are.
fn history(per_view: usize) -> Vec<Frame> {
    let (mut rng, mut chain) = (Rng::new(5), Chain::new(SHARD));
    let mut frames = Vec::new();
    for view in 1..=VIEWS {
        frames.push(chain.publishing_view_frame(view, secret(view)));
        for _ in 0..per_view {
            chain.committed = chain.sequence;
            let mut ops: Vec<Op> = (0..1 + rng.below(2)).map(|_| Op::random(&mut rng, BLOCKS)).collect();
            if [3, 6].contains(&view) {
                let cold = BLOCKS + 8 * chain.sequence as u32;
                ops = vec![Op { extents: vec![(ExtentKind::Data, cold, 8)], fill: rng.next() >> 8 }];
            }
            frames.push(chain.frame(&ops));
        }
    }
    frames
}

/// A log that these frames were brought to, one after the other, with frames of another shard between them.
async fn log_of(frames: &[Frame], clean: bool) -> (MemoryDevice, Rig) {
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(40)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    let options = CleanOptions { enabled: clean, share_percent: 300, target_percent: 150, ..CleanOptions::default() };
    rig.engine.set_cleaning(options);
    let (mut rng, mut other) = (Rng::new(6), Chain::new(OTHER));
    for (i, f) in frames.iter().enumerate() {
        rig.append(Record::Frame(f.clone()));
        if i % 5 == 0 {
            rig.append(Record::Frame(other.frame(&[Op::random(&mut rng, 50)])));
        }
        rig.settle().await;
        rig.engine.committed(SHARD, f.head.seq());
        rig.engine.committed(OTHER, Sequence(other.sequence));
        if !clean {
            rig.engine.keep(SHARD, Sequence(1));
        }
    }
    (device, rig)
}

async fn audit_with(engine: &Engine, ask: Ask, step: u64) -> Report {
    let mut auditor = Auditor::new(engine.clone(), SHARD).unwrap();
    auditor.ask(ask);
    for _ in 0..1_000_000 {
        if let Some(report) = auditor.step(step).await.unwrap() {
            let p = auditor.progress();
            assert_eq!(p.done, p.total);
            return report;
        }
    }
    panic!("an audit comes to an end");
}

async fn audit(engine: &Engine) -> Report {
    audit_with(engine, Ask::default(), 1 << 20).await
}

/// Opens the device again and audits what is there.
async fn audit_again(device: &MemoryDevice) -> Report {
    let (engine, _) = open_log(device.clone(), &expect()).await.unwrap();
    audit(&engine).await
}

fn only_break(r: &Report) -> &Break {
    assert_eq!(r.break_count, 1, "{:#?}", r.breaks);
    &r.breaks[0]
}

/// Frames of the shard as they lie on a device.
#[derive(Default)]
struct Places(Vec<FrameInfo>);

impl Watch for Places {
    fn frame(&mut self, f: &FrameInfo) {
        if f.shard == SHARD && f.counts && !f.kind.is_local() {
            self.0.push(f.clone());
        }
    }
}

async fn places(device: &MemoryDevice) -> Vec<FrameInfo> {
    let mut found = Places::default();
    tool::inspect(&AnyDevice::new(device.clone()), &mut found).await.unwrap();
    found.0
}

/// A byte on the device of a byte in a segment.
fn byte_at(segment: u32, at: u32) -> usize {
    (freebs_format::disk::SEGMENTS_AT + u64::from(segment) * SEGMENT) as usize + at as usize
}

fn flip(device: &MemoryDevice, byte: usize) {
    device.poke(|b| b[byte] ^= 0x10);
}

#[test]
fn ten_views_are_proven_as_far_as_their_frames_are_there() {
    local(async {
        let frames = history(60);
        let last = frames.last().unwrap().head.seq().0;
        let (device, rig) = log_of(&frames, true).await;
        assert!(rig.engine.counters().segments_freed > 3, "cleaning has given up segments");
        let r = audit(&rig.engine).await;
        assert!(r.is_sound(), "{:#?}", r.breaks);
        assert_eq!(r.proven + r.linked + r.summarised, last);
        assert!(r.proven > 30 && r.summarised > 60, "{:?}", r.ranges);
        assert!(r.ranges.iter().filter(|x| x.proof == Proof::Summarised).count() > 1, "{:?}", r.ranges);
        let end = r.ranges.last().unwrap();
        let of_end = end.last.0 - end.first.0 + 1;
        assert_eq!(r.linked, of_end, "the secrets of all other views are known: {:?}", r.ranges);
        assert_eq!(end.first_view, ViewNumber(VIEWS));
        assert_eq!((end.proof, end.last.0, end.last_view), (Proof::Linked, last, ViewNumber(VIEWS)));
        assert!(r.ranges.windows(2).all(|w| w[0].last.next() == w[1].first), "{:?}", r.ranges);
        assert!(r.ranges.windows(2).all(|w| w[0].last_version.next() == w[1].first_version), "{:?}", r.ranges);
        rig.stop().await;

        // A log that is read back says the same, in steps of any size, from the log and from a checkpoint.
        for checkpoint in [false, true] {
            let (engine, report) = open_log(device.clone(), &expect()).await.unwrap();
            assert_eq!(report.checkpoint > 0, checkpoint);
            for step in [10_000, 300_000, u64::MAX] {
                let again = audit_with(&engine, Ask::default(), step).await;
                assert_eq!((&again.ranges, &again.samples), (&r.ranges, &r.samples));
            }
            engine.checkpoint().await.unwrap();
        }
    });
}

#[test]
fn without_cleaning_every_frame_of_a_closed_view_is_proven() {
    local(async {
        let frames = history(20);
        let (device, rig) = log_of(&frames, false).await;
        let r = audit(&rig.engine).await;
        assert!(r.is_sound(), "{:#?}", r.breaks);
        assert_eq!((r.proven, r.linked, r.summarised), (9 * 21, 21, 0));
        assert_eq!(r.published.len(), 9);
        assert_eq!(r.samples.last(), Some(&(Sequence(210), frames[209].header().hid())));
        rig.stop().await;
        assert_eq!(audit_again(&device).await.ranges, r.ranges);
    });
}

#[test]
fn one_altered_byte_is_found_in_its_frame() {
    local(async {
        let frames = history(60);
        let (device, rig) = log_of(&frames, true).await;
        rig.stop().await;
        let sound = audit_again(&device).await;
        assert!(sound.is_sound());
        let is_proven =
            |s: Sequence| sound.ranges.iter().any(|r| r.proof == Proof::Proven && r.first <= s && s <= r.last);
        let there = places(&device).await;
        let newest = there
            .iter()
            .map(|f| f.segment)
            .max_by_key(|id| there.iter().filter(|f| f.segment == *id).map(|f| f.append).max());
        // Of a closed segment: what is at the end of the log may be taken for torn.
        let closed: Vec<&FrameInfo> =
            there.iter().filter(|f| Some(f.segment) != newest && is_proven(f.sequence) && f.data_bytes > 0).collect();
        for f in closed.iter().step_by(closed.len() / 4) {
            let data = byte_at(f.segment, f.data_at) + f.data_bytes as usize / 2;
            let head = byte_at(f.segment, f.head_at) + 200;
            for byte in [data, head] {
                flip(&device, byte);
                let r = audit_again(&device).await;
                let b = only_break(&r);
                assert_eq!((b.cause, b.first, b.last, b.view), (Cause::Altered, f.sequence, f.sequence, f.view));
                let place = b.place.unwrap();
                assert_eq!((place.segment, place.offset), (f.segment, f.head_at));
                assert_eq!(place.byte as usize, byte_at(f.segment, f.head_at));
                assert_eq!(r.proven, sound.proven - 1, "all others are proven as before");
                flip(&device, byte);
            }
        }
        assert!(audit_again(&device).await.is_sound());
    });
}

/// Somebody who can make checksums takes a frame out: all that is left is sound by itself.
#[test]
fn one_removed_frame_is_missed() {
    local(async {
        let frames = history(20);
        for gone in [30, 64, 126, 208] {
            let mut left = frames.clone();
            let taken = left.remove(gone);
            let (device, rig) = log_of(&left, false).await;
            let r = audit(&rig.engine).await;
            let b = only_break(&r);
            assert_eq!((b.cause, b.first, b.last), (Cause::Removed, taken.head.seq(), taken.head.seq()));
            assert_eq!(r.proven + r.linked, 209);
            rig.stop().await;
            assert_eq!(only_break(&audit_again(&device).await).first, taken.head.seq());
        }
    });
}

/// Nobody had the frame any more, and what it had placed was learned of other members.
#[test]
fn a_frame_whose_entries_were_learned_is_summarised() {
    local(async {
        let mut frames = history(20);
        let taken = frames.remove(64);
        let (device, rig) = log_of(&frames, false).await;
        let learned = freebs_lsvd::Learned {
            since: Sequence(taken.head.seq().0 - 1),
            upto: taken.head.seq(),
            ..freebs_lsvd::Learned::default()
        };
        let mark = |learned: freebs_lsvd::Learned| {
            let change = MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() };
            Record::Mark { shard: SHARD, change, ticket: 1 }
        };
        rig.append(mark(learned.clone()));
        rig.settle().await;
        assert!(rig.engine.state(SHARD).unwrap().holes.is_empty());
        let r = audit(&rig.engine).await;
        assert!(r.is_sound(), "what was learned in its place is no break: {:?}", r.breaks);
        assert_eq!(r.summarised, 1);
        rig.stop().await;
        assert!(audit_again(&device).await.is_sound());
    });
}

/// A head that died with frames that nobody else has, and came back when the others had cleaned: it learns a map.
struct Returned {
    device: MemoryDevice,
    rig: Rig,
    chain: Chain,
    other: Chain,
}

/// Written by the branch, and by nobody else.
const BRANCH_ONLY: u32 = 900;
/// The last frame that both have, and the last one of the map.
const COMMON: u64 = 8;
const MAP_END: u64 = 30;

fn data(start: u32, len: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, start, len)], fill: fill << 32 }
}

impl Returned {
    /// With a branch of so many frames. A segment ends behind the branch, and one behind the map.
    async fn new(branch: u64) -> Self {
        let (mut chain, mut other) = (Chain::new(SHARD), Chain::new(OTHER));
        let (_, theirs) = log_of(&[], false).await;
        let (device, rig) = log_of(&[], false).await;
        let mut both = vec![chain.publishing_view_frame(1, secret(1))];
        both.extend((1..COMMON).map(|i| chain.frame(&[data(500 + i as u32, 1, i)])));
        let mut cut = chain.clone();
        both.iter().for_each(|f| theirs.append(Record::Frame(f.clone())));
        both.into_iter().for_each(|f| rig.append(Record::Frame(f)));
        (0..branch).for_each(|i| rig.append(Record::Frame(cut.frame(&[data(BRANCH_ONLY, 1, 90 + i)]))));
        rig.append(Record::Frame(other.frame(&[data(0, 230, 1)])));
        rig.settle().await;
        theirs.append(Record::Frame(chain.publishing_view_frame(2, secret(2))));
        while chain.sequence < MAP_END {
            theirs.append(Record::Frame(chain.frame(&[data(chain.sequence as u32, 1, 3)])));
        }
        theirs.settle().await;
        theirs.engine.committed(SHARD, Sequence(MAP_END));
        rig.append(Record::Cut { shard: SHARD, to: Sequence(COMMON) });
        let mut from = Some(Lba(0));
        while let Some(at) = from {
            let (body, data, next) = theirs.engine.entries(SHARD, at, Sequence(COMMON), 1 << 18).await.unwrap();
            rig.append(Record::Carry { shard: SHARD, body, data, ticket: 1 });
            from = next;
        }
        let (last, view) = (Sequence(MAP_END), Sequence(COMMON + 1));
        let h = *theirs.engine.frame(SHARD, last).await.unwrap().header();
        let base = Base {
            since: Sequence(COMMON),
            tip: Sequence(COMMON),
            last: chain.name(),
            parent: h.parent_token(),
            digest: h.digest(),
            version: h.last_version(),
            committed: last,
            view_frame: Some(theirs.engine.frame(SHARD, view).await.unwrap().head),
            attach: Default::default(),
            requests: Default::default(),
            open_chunk: (h.chunk(), h.chunk_offset.get() + h.data_blocks()),
        };
        let change = MarkChange { base: Some(Box::new(base)), ..MarkChange::default() };
        rig.append(Record::Mark { shard: SHARD, change, ticket: 2 });
        rig.append(Record::Frame(other.frame(&[data(300, 230, 2)])));
        rig.settle().await;
        theirs.stop().await;
        Self { device, rig, chain, other }
    }

    async fn go_on(&mut self, op: Op) {
        self.chain.committed = self.chain.sequence;
        self.rig.append(Record::Frame(self.chain.frame(&[op])));
        self.rig.settle().await;
    }
}

#[test]
fn frames_that_a_map_has_cut_are_in_no_audit() {
    for branch in [2, MAP_END - COMMON, MAP_END] {
        local(async move {
            let mut r = Returned::new(branch).await;
            for i in 0..5 {
                r.go_on(data(100 + i, 1, 7)).await;
            }
            // Secrets that others published.
            let ask = || Ask { secrets: BTreeMap::from([(ViewNumber(1), Hash32([secret(1); 32]))]), ..Ask::default() };
            let found = audit_with(&r.rig.engine, ask(), 1 << 20).await;
            assert!(found.is_sound(), "{branch}: {:#?}", found.breaks);
            let told: Vec<_> = found.ranges.iter().map(|x| (x.proof, x.first.0, x.last.0)).collect();
            let want = [(Proof::Proven, 1, COMMON), (Proof::Summarised, COMMON + 1, MAP_END)];
            assert_eq!(told[..2], want, "{branch}");
            assert_eq!(told[2..], [(Proof::Linked, MAP_END + 1, MAP_END + 5)], "{branch}");
            assert!(found.samples.iter().all(|(s, _)| s.0 <= COMMON || s.0 > MAP_END), "{branch}");
            r.rig.stop().await;
            let (engine, _) = open_log(r.device.clone(), &expect()).await.unwrap();
            assert_eq!(audit_with(&engine, ask(), 1 << 20).await.ranges, found.ranges);
        });
    }
}

/// The mark at the end of a map is all that says that the branch was cut. Its segment may be given up when nothing in it is
/// live any more; a start that still finds the branch, and no mark, would put it under the map.
#[test]
fn a_mark_that_cuts_stays_as_long_as_what_it_cuts() {
    local(async {
        let mut r = Returned::new(2).await;
        let all = r.rig.read_all(SHARD, BRANCH_ONLY + 10).await.unwrap();
        assert_eq!(all.get(&BRANCH_ONLY), Some(&Cell8::Trim));
        // All that the segment of the map holds is written anew, here and in the other shard.
        r.go_on(data(0, 60, 8)).await;
        r.rig.append(Record::Frame(r.other.frame(&[data(300, 230, 9)])));
        for i in 0..20 {
            r.go_on(data(200, 100, 10 + i)).await;
            r.rig.engine.committed(SHARD, Sequence(r.chain.sequence));
            r.rig.engine.committed(OTHER, Sequence(r.other.sequence));
        }
        let all = r.rig.read_all(SHARD, BRANCH_ONLY + 10).await.unwrap();
        assert!(r.rig.engine.counters().segments_freed > 1, "{:?}", r.rig.engine.counters());
        r.rig.stop().await;
        let rig = Rig::open(r.device.clone()).await.unwrap();
        assert_eq!(rig.report.damage, []);
        let mut after = rig.read_all(SHARD, BRANCH_ONLY + 10).await.unwrap();
        after.retain(|block, cell| all.get(block) != Some(cell));
        assert_eq!(after, Model::new(), "blocks that a start has changed");
        rig.stop().await;
    });
}

/// The forger has a member's log, all that is public, and right checksums, but not the secret of the view.
#[test]
fn a_forged_continuation_is_found_when_the_secret_is_known() {
    local(async {
        let frames = history(20);
        let (_, rig) = log_of(&frames, false).await;
        let sound = audit(&rig.engine).await;
        rig.stop().await;
        // In the middle of view 5 the forger goes on alone. The next frame names the token of the one before.
        let k = 95;
        let at = &frames[k];
        assert_eq!(at.head.view(), ViewNumber(5));
        let mut forger = Chain::new(SHARD);
        forger.view = at.head.view();
        forger.secret = Hash32([1; 32]);
        forger.id = frames[k + 1].header().parent_token();
        (forger.sequence, forger.version) = (at.head.seq().0, at.header().last_version().0);
        forger.chunk = at.header().chunk();
        (forger.offset, forger.committed) = (at.header().chunk_offset.get() + at.header().data_blocks(), k as u64);
        let mut copy = frames[..=k].to_vec();
        let op = Op { extents: vec![(ExtentKind::Data, 7, 2)], fill: 666 };
        copy.extend((0..3).map(|_| forger.frame(std::slice::from_ref(&op))));
        let first = copy[k + 1].head.seq();
        assert!(copy[k + 1].verify_digest().is_ok() && copy[k + 1].verify_data().is_ok());

        // By itself the log is sound: its view is open there, and nobody has published its secret.
        let (device, rig) = log_of(&copy, false).await;
        let r = audit(&rig.engine).await;
        assert!(r.is_sound(), "{:?}", r.breaks);
        assert_eq!((r.unknown.clone(), r.linked), (vec![ViewNumber(5)], 21 - 9 + 3));
        // The others have another frame there,
        let hid = |r: &Report| r.samples.iter().find(|s| s.0 == first).map(|s| s.1);
        assert!(hid(&r).is_some() && hid(&r) != hid(&sound));
        // and they know the secret.
        let secrets: BTreeMap<_, _> = sound.published.iter().copied().collect();
        let r = audit_with(&rig.engine, Ask { at: BTreeSet::new(), secrets }, 1 << 20).await;
        let causes: BTreeSet<Cause> = r.breaks.iter().map(|b| b.cause).collect();
        assert_eq!((r.break_count, causes), (3, BTreeSet::from([Cause::Forged])));
        assert_eq!((r.breaks[0].first, r.breaks[0].view), (first, ViewNumber(5)));
        assert_eq!(r.proven, first.0 - 1);
        rig.stop().await;

        // The forger opens the next view, too, and has to publish a secret for it: the right one, which is public.
        forger.secret = Hash32([secret(5); 32]);
        copy.push(forger.publishing_view_frame(6, 77));
        drop(device);
        let (_, rig) = log_of(&copy, false).await;
        let r = audit(&rig.engine).await;
        assert_eq!((r.break_count, r.breaks[0].cause, r.breaks[0].first), (3, Cause::Forged, first));
        rig.stop().await;
    });
}

/// The audit goes on for long, and the log meanwhile: frames come, segments are given up and used again.
#[test]
fn an_audit_beside_writes_and_cleaning_is_sound() {
    local(async {
        let frames = history(60);
        let (first, rest) = frames.split_at(400);
        let (_, rig) = log_of(first, true).await;
        let before = rig.engine.counters();
        let mut auditor = Auditor::new(rig.engine.clone(), SHARD).unwrap();
        let (mut rest, mut report, mut steps) = (rest.iter(), None, 0);
        while report.is_none() {
            report = auditor.step(8 << 10).await.unwrap();
            steps += 1;
            if let Some(f) = rest.next() {
                rig.append(Record::Frame(f.clone()));
                rig.settle().await;
                rig.engine.committed(SHARD, f.head.seq());
            }
        }
        let (r, after) = (report.unwrap(), rig.engine.counters());
        assert!(r.is_sound(), "{:#?}", r.breaks);
        assert_eq!(r.proven + r.linked + r.summarised, 400);
        assert!(steps > 50 && after.segments_freed > before.segments_freed + 1, "{steps} steps");
        rig.stop().await;
    });
}

/// A step reads what it is granted, and one read more.
#[test]
fn steps_are_small() {
    local(async {
        let mut chain = Chain::new(SHARD);
        let mut frames = vec![chain.publishing_view_frame(1, 101)];
        for i in 0..6 {
            frames.push(chain.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 150)], fill: i }]));
        }
        let (_, rig) = log_of(&frames, false).await;
        let mut auditor = Auditor::new(rig.engine.clone(), SHARD).unwrap();
        let mut steps = 0;
        let report = loop {
            match auditor.step(4096).await.unwrap() {
                Some(report) => break report,
                None => steps += 1,
            }
        };
        assert!(report.is_sound());
        assert!(steps as u64 >= report.bytes / (256 << 10) / 2, "{steps} steps for {} bytes", report.bytes);
        assert!(report.bytes >= 6 * 150 * BLOCK as u64);
        rig.stop().await;
    });
}

#[test]
fn a_shard_that_is_not_there_or_goes_away_is_an_error() {
    local(async {
        let frames = history(20);
        let (_, rig) = log_of(&frames, false).await;
        let e = Auditor::new(rig.engine.clone(), ShardId::new(9, 0)).err().unwrap();
        assert_eq!(e.kind, ErrorKind::NotFound);
        let mut auditor = Auditor::new(rig.engine.clone(), SHARD).unwrap();
        assert_eq!(auditor.step(1).await.unwrap(), None);
        rig.append(Record::Forget { shard: SHARD, promised: ViewNumber(0) });
        rig.settle().await;
        let end = loop {
            match auditor.step(1 << 20).await {
                Ok(None) => {}
                other => break other,
            }
        };
        assert_eq!(end.unwrap_err().kind, ErrorKind::NotFound);
        rig.stop().await;
    });
}

/// Frames that were damaged and put back lie behind those that follow them.
#[test]
fn frames_that_were_put_back_are_proven() {
    local(async {
        let frames = history(20);
        let mut left = frames.clone();
        let gone: Vec<Frame> = left.drain(60..63).collect();
        assert!(gone.iter().all(|f| f.head.kind() == FrameKind::Data));
        let (device, rig) = log_of(&left, false).await;
        assert_eq!(audit(&rig.engine).await.break_count, 1);
        for f in &gone {
            rig.append(Record::Repair(f.clone()));
        }
        rig.settle().await;
        let r = audit(&rig.engine).await;
        assert!(r.is_sound(), "{:?}", r.breaks);
        assert_eq!((r.proven, r.linked, r.summarised), (9 * 21, 21, 0));
        rig.stop().await;
        assert!(audit_again(&device).await.is_sound());
    });
}

/// The scrub finds what is damaged in closed segments.
async fn scrub(engine: &Engine) {
    let mut scrubber = Scrubber::new(engine.clone());
    while !scrubber.step(1 << 20).await.unwrap().pass_complete {}
}

/// The copy of another member was put back for damaged blocks. The history was called broken all the same, until their first
/// place was cleaned; nothing told damage that was mended from damage that was not.
#[test]
fn a_frame_whose_damaged_blocks_were_put_back_is_what_was_written() {
    local(async {
        let frames = history(60);
        let (device, rig) = log_of(&frames, false).await;
        let sound = audit(&rig.engine).await;
        assert_eq!((sound.is_sound(), sound.mended), (true, 0));
        // Blocks of view 3 that nobody wrote again.
        let there = places(&device).await;
        let f = there.iter().find(|f| f.view == ViewNumber(3) && f.data_bytes as usize == 8 * BLOCK).unwrap();
        let byte = |block: usize| byte_at(f.segment, f.data_at) + block * BLOCK + 77;
        flip(&device, byte(2));
        flip(&device, byte(5));
        scrub(&rig.engine).await;
        let r = audit(&rig.engine).await;
        let b = only_break(&r);
        assert_eq!((b.cause, b.first, r.mended), (Cause::Altered, f.sequence, 0));
        assert!(b.what.ends_with(": 2 of its blocks are damaged, of which 2 have not been put back"), "{}", b.what);

        let frame = frames.iter().find(|x| x.head.seq() == f.sequence).unwrap();
        let written = frame.data.concat();
        let first = frame.head.updates().next().unwrap().extents().next().unwrap().0.range.start.0;
        let wanted = rig.engine.take_damaged(10);
        assert_eq!(wanted.iter().map(|d| d.range.len).sum::<u32>(), 2);
        for d in wanted {
            let at = (d.range.start.0 - first) as usize * BLOCK;
            let good = written[at..at + d.range.len as usize * BLOCK].to_vec();
            assert_eq!(rig.engine.mend(d.id, &good.into()).unwrap(), d.range.len);
            rig.settle().await;
        }
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
        let r = audit(&rig.engine).await;
        assert!(r.is_sound(), "{:#?}", r.breaks);
        assert_eq!((r.mended, r.proven, &r.ranges), (1, sound.proven, &sound.ranges));

        // One more block of it is damaged, and that one is not put back.
        flip(&device, byte(7));
        let r = audit(&rig.engine).await;
        assert!(only_break(&r).what.ends_with(": 3 of its blocks are damaged, of which 1 have not been put back"));
        flip(&device, byte(7));
        rig.stop().await;
        assert_eq!(audit_again(&device).await.mended, 1, "it is known after a start, too");
    });
}
