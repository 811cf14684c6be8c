//! Parents that lose what their forks read (rule E10): frames that are given up, learned as a map, or gone with all of the
//! shard. A fork reads what was there, or it reads nothing at that block; never what lies below it.

use crate::common::*;
use crate::crash_device::crash_device;
use crate::damage::{lose, places};
use crate::forks::{LIMIT, SEGMENTS, Tree, commit};
use crate::history::{LEFT_OUT, TINY, eager, erase_checkpoints};
use crate::unread::rot;
use bytes::Bytes;
use freebs_format::{CarryBody, ExtentKind, UpdateKind};
use freebs_io::faults::CrashDevice;
use freebs_io::memory::MemoryDevice;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::{Base, KeptState, Learned, Lost, MapPlace, MarkChange, Options, Record};
use freebs_types::{BLOCK, BlockRange, ErrorKind, Fork, Result, Sequence, ShardId, Version, ViewNumber};

/// Turns that a call of the device takes at most.
const TURNS: u64 = 3;
const PIECE: usize = 24 << 10;

/// The word of a peer on a shard that it has all of.
pub struct Told {
    shard: ShardId,
    kept: KeptState,
    pieces: Vec<(CarryBody, Vec<Bytes>)>,
    base: Base,
}

impl Told {
    /// Everything, the entries of parents included; an error if some are lost.
    pub async fn by(rig: &Rig, shard: ShardId) -> Result<Self> {
        let (kept, state) = (rig.engine.kept_state(shard)?, rig.engine.state(shard).expect("it has versions"));
        let (mut place, mut pieces, none) = (Some(MapPlace::default()), Vec::new(), Sequence(0));
        while let Some(at) = place {
            let piece = rig.engine.entries_with_past(shard, at, none, none, state.last.sequence, PIECE).await?;
            let (body, data, next) = piece;
            if !body.entries.is_empty() {
                pieces.push((body, data));
            }
            place = next;
        }
        let base = Base {
            since: none,
            tip: none,
            last: state.last,
            parent: state.parent,
            digest: state.digest,
            version: state.version,
            committed: state.last.sequence,
            view_frame: None,
            attach: Default::default(),
            requests: Default::default(),
            open_chunk: state.open_chunk,
        };
        Ok(Self { shard, kept, pieces, base })
    }

    /// The same as the state that a log goes on from, of which it has frames up to `since` and some up to `tip`.
    pub fn goes_on(&self, since: Sequence, tip: Sequence) -> MarkChange {
        let base = Base { since, tip, ..self.base.clone() };
        MarkChange { base: Some(Box::new(base)), trusted: true, ..MarkChange::default() }
    }

    fn mark(&self, change: MarkChange) -> Record {
        let change = MarkChange { kept: Some(Box::new(self.kept.clone())), ..change };
        Record::Mark { shard: self.shard, change, ticket: 1 }
    }

    /// All of it goes into a log, and the mark at the end.
    pub async fn give(&self, rig: &Rig, change: MarkChange) {
        rig.append(self.mark(MarkChange::default()));
        for (body, data) in self.pieces.clone() {
            rig.append(Record::Carry { shard: self.shard, body, data, ticket: 2 });
        }
        rig.append(self.mark(change));
        rig.settle().await;
        rig.engine.committed(self.shard, self.base.last.sequence);
    }
}

/// Entries of lost frames come as a map.
pub fn learned(since: Sequence, upto: Sequence) -> MarkChange {
    let learned = Learned { since, upto, ..Learned::default() };
    MarkChange { learned: Some(Box::new(learned)), trusted: true, ..MarkChange::default() }
}

/// A log with damage.
pub async fn open(device: &CrashDevice, options: Options) -> Rig {
    let rig = Rig::open_without(LEFT_OUT.get(), device.clone(), options).await.unwrap();
    rig.engine.set_cleaning(eager());
    rig
}

pub async fn bytes_of(device: &CrashDevice) -> AlignedBuf {
    device.read(0, device.len() as usize).await.unwrap()
}

pub async fn write_back(device: &CrashDevice, bytes: AlignedBuf) {
    device.write(0, bytes, Durability::Durable).await.1.unwrap();
}

/// The same device after the heads of an append are lost, one of the open segment rather.
async fn damaged(device: &CrashDevice, rng: &mut Rng) -> CrashDevice {
    let device = device.copy();
    let mut bytes = bytes_of(&device).await;
    let kind = if rng.chance(70) { "head of open" } else { "head" };
    let heads: Vec<_> = places(&bytes).into_iter().filter(|p| p.0 == kind).collect();
    for _ in 0..heads.len().min(8) {
        let (_, at, len) = heads[rng.below(heads.len() as u64) as usize];
        if lose(&mut bytes, (at, len)) {
            break;
        }
    }
    write_back(&device, bytes).await;
    if rng.chance(60) {
        erase_checkpoints(&device).await;
    }
    device.pace_widely(rng.next(), TURNS);
    device
}

/// Forks that read something of a parent behind a frame, but for what is told, may have lost it.
fn doubt(t: &mut Tree, rig: &Rig, parent: ShardId, behind: Sequence, told: bool) {
    let whole_from = rig.engine.whole_from(parent).map_or(u64::MAX, |v| v.0);
    let pins = t.lines.get(&parent).map(|l| l.pins.clone()).unwrap_or_default();
    let is_told = |f: &Fork| told && pins.contains_key(&f.version.0) && f.version.0 >= whole_from;
    let forks = rig.engine.forks().into_iter().filter(|(_, f)| f.parent == parent && f.sequence > behind);
    t.unsure.extend(forks.filter(|(_, f)| !is_told(f)).map(|(shard, _)| shard));
}

/// An append is lost: who has the only copy accepts that, or a peer tells what the frames had placed.
pub async fn append_lost(t: &mut Tree, rig: Rig, device: CrashDevice, options: Options) -> (Rig, CrashDevice) {
    let all = tell_all(t, &rig).await;
    rig.kill();
    for _ in 0..=TURNS {
        tokio::task::yield_now().await;
    }
    let device = damaged(&device, &mut t.rng).await;
    let accepts = t.rng.chance(50);
    if accepts {
        let opened = open_log_without(LEFT_OUT.get(), device.clone(), &expect(), options).await;
        let engine = opened.unwrap().0;
        let lost = engine.lost();
        engine.accept_loss().await.unwrap();
        let rig = open(&device, options).await;
        lost.iter().for_each(|l| gave_up(t, &rig, l));
        forget_unknown(t, &rig);
        return (rig, device);
    }
    let rig = open(&device, options).await;
    mend_all(t, &rig, &all).await;
    (rig, device)
}

/// The words of peers on all shards, as far as they can be told.
pub async fn tell_all(t: &Tree, rig: &Rig) -> Vec<Told> {
    let mut all = Vec::new();
    for shard in t.lines.keys() {
        all.extend(Told::by(rig, *shard).await.ok());
    }
    all
}

/// Peers tell shards their losses; of a shard that can't be had again nothing is known.
pub async fn mend_all(t: &mut Tree, rig: &Rig, all: &[Told]) {
    for lost in rig.engine.lost() {
        match all.iter().find(|told| told.shard == lost.shard && t.lines.contains_key(&lost.shard)) {
            Some(told) => mend(t, rig, told, &lost).await,
            None => gave_up(t, rig, &lost),
        }
    }
    forget_unknown(t, rig);
}

/// Anything may be left of a shard; its forks in front of the loss have all that they read.
fn gave_up(t: &mut Tree, rig: &Rig, lost: &Lost) {
    let behind = lost.frames.first().map_or(lost.last, |f| Sequence(f.0.0 - 1));
    t.lines.remove(&lost.shard);
    t.unopened.remove(&lost.shard);
    doubt(t, rig, lost.shard, behind, false);
}

/// A shard of which the log has nothing any more, or not all and does not know it: its mark was lost.
fn forget_unknown(t: &mut Tree, rig: &Rig) {
    let is_there = |shard: &ShardId| rig.engine.state(*shard).is_some();
    let gone: Vec<ShardId> = t.lines.keys().copied().filter(|s| !is_there(s)).collect();
    for shard in gone {
        t.lines.remove(&shard);
        t.unopened.remove(&shard);
        doubt(t, rig, shard, Sequence(0), false);
    }
}

async fn mend(t: &mut Tree, rig: &Rig, told: &Told, lost: &Lost) {
    let frames = lost.frames.first().zip(lost.frames.last()).map(|(a, b)| (Sequence(a.0.0 - 1), b.1));
    let is_short = lost.last < told.base.last.sequence;
    match frames {
        None if !is_short => {
            let change = MarkChange { trusted: true, ..MarkChange::default() };
            rig.append(Record::Mark { shard: lost.shard, change, ticket: 3 });
            rig.settle().await;
            return;
        }
        Some((since, upto)) if !is_short => told.give(rig, learned(since, upto)).await,
        _ => told.give(rig, told.goes_on(frames.map_or(lost.last, |f| f.0), lost.last)).await,
    }
    doubt(t, rig, lost.shard, frames.map_or(lost.last, |f| f.0), true);
}

/// A parent ends here, and is learned anew.
pub async fn parent_gone(t: &mut Tree, rig: &Rig) {
    commit(t, rig).await;
    let parents = rig.engine.forks().into_iter().map(|(_, f)| f.parent);
    let parents: Vec<ShardId> = parents.filter(|p| t.lines.contains_key(p) && !t.unopened.contains_key(p)).collect();
    if parents.is_empty() {
        return;
    }
    let shard = parents[t.rng.below(parents.len() as u64) as usize];
    let Ok(told) = Told::by(rig, shard).await else { return };
    rig.append(Record::Forget { shard, promised: ViewNumber(t.rng.below(2) * t.next_view) });
    rig.settle().await;
    if t.rng.chance(30) {
        let _ = rig.engine.checkpoint().await;
    }
    told.give(rig, told.goes_on(Sequence(0), Sequence(0))).await;
    doubt(t, rig, shard, Sequence(0), true);
}

/// Blocks of a shard that can be read are right; how many can't.
pub async fn right_or_lost(rig: &Rig, shard: ShardId, version: Option<Version>, model: &Model, blocks: u32) -> u64 {
    let mut lost = 0;
    for b in 0..blocks {
        let range = BlockRange::new(b, 1);
        let read = match version {
            None => rig.engine.read(shard, range).await,
            Some(v) => rig.engine.read_at(shard, v, range).await,
        };
        let found = match read {
            Err(e) => {
                assert_eq!(e.kind, ErrorKind::Corrupt, "shard {shard}, block {b}: {e}");
                lost += 1;
                continue;
            }
            Ok(out) => match out.pieces[0].kind {
                ExtentKind::Data => Cell8::Data(u64::from_le_bytes(out.data[0][..8].try_into().unwrap())),
                ExtentKind::Trim => Cell8::Trim,
                ExtentKind::Zero => Cell8::Zero,
            },
        };
        assert_eq!(found, model.get(&b).copied().unwrap_or(Cell8::Trim), "block {b} of shard {shard} at {version:?}");
    }
    lost
}

const A: ShardId = ShardId::new(1, 0);
const C: ShardId = ShardId::new(2, 0);
const OTHER: ShardId = ShardId::new(3, 0);

pub fn data(at: u32, fill: u64) -> Op {
    Op { extents: vec![(ExtentKind::Data, at, 2)], fill }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Course {
    /// The frames are lost, and the loss is accepted.
    Accepted,
    /// A map comes in their place, from a peer that keeps the version no more.
    Learned,
    /// All of the parent ended here, and it came back.
    Gone,
}

/// The device as a power cut leaves it, without the heads of this append of the open segment, and without checkpoints.
async fn without_append(device: &CrashDevice, number: u64) -> CrashDevice {
    let device = device.copy();
    let mut bytes = bytes_of(&device).await;
    let heads: Vec<_> = places(&bytes).into_iter().filter(|p| p.0 == "head of open").collect();
    assert!(lose(&mut bytes, (heads[number as usize - 1].1, heads[number as usize - 1].2)));
    write_back(&device, bytes).await;
    erase_checkpoints(&device).await;
    device
}

/// The clone is whole, or says that it is not, after each start.
async fn stays_so(rig: &Rig, model: &Model, (course, is_pinned, is_whole): (Course, bool, bool), start: u32) {
    assert!(rig.engine.state(A).unwrap().holes.is_empty(), "{course:?}, start {start}");
    let lost = right_or_lost(rig, C, None, model, 4).await;
    assert_eq!(lost == 0, is_whole, "{course:?}, pinned {is_pinned}, start {start}: {lost} blocks can't be read");
    assert_eq!(rig.engine.check_inherited(C).is_ok(), is_whole);
    assert_eq!(rig.engine.is_read_by_forks(A), is_whole || (is_pinned && course == Course::Learned));
}

/// A block is written at the version that a fork reads, and again behind it; the frame of the first write is lost.
async fn plain(course: Course, is_pinned: bool, options: Options) {
    let mut device = crash_device(LIMIT, 5);
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let mut rig = open(&device, options).await;
    let (mut chain, mut other) = (Chain::new(A), Chain::new(OTHER));
    let put = async |rig: &Rig, frame| {
        rig.append(Record::Frame(frame));
        rig.settle().await;
    };
    put(&rig, chain.frame(&[data(0, 100)])).await;
    put(&rig, chain.frame(&[data(1, 200)])).await;
    let written = chain.sequence;
    put(&rig, other.frame(&[data(0, 7)])).await;
    put(&rig, chain.pins(&[(UpdateKind::Snapshot, 0)])).await;
    let p = pin(chain.version);
    let fork = Fork { parent: A, snapshot: p.snapshot, version: p.version, sequence: Sequence(chain.sequence) };
    rig.engine.committed(A, fork.sequence);
    rig.append(Record::Mark { shard: C, change: MarkChange::forked(CLUSTER, &fork), ticket: 5 });
    rig.settle().await;
    if !is_pinned {
        put(&rig, chain.pins(&[(UpdateKind::Release, fork.version.0)])).await;
    }
    put(&rig, chain.frame(&[data(1, 300)])).await;
    (chain.committed, other.committed) = (chain.sequence, other.sequence);
    rig.engine.committed(A, Sequence(chain.sequence));
    let told = Told::by(&rig, A).await.unwrap();
    let mut model = Model::new();
    [data(0, 100), data(1, 200)].iter().for_each(|op| op.apply(&mut model));
    assert_eq!(right_or_lost(&rig, C, None, &model, 4).await, 0);
    if course == Course::Gone {
        rig.append(Record::Forget { shard: A, promised: ViewNumber(0) });
        rig.settle().await;
        told.give(&rig, told.goes_on(Sequence(0), Sequence(0))).await;
    } else {
        rig.kill();
        for _ in 0..=TURNS {
            tokio::task::yield_now().await;
        }
        device = without_append(&device, written).await;
        if course == Course::Accepted {
            let (engine, _) = open_log_with(device.clone(), &expect(), options).await.unwrap();
            assert_eq!(engine.lost().iter().map(|l| l.shard).collect::<Vec<_>>(), [A]);
            engine.accept_loss().await.unwrap();
        }
        rig = open(&device, options).await;
        if course == Course::Learned {
            assert_eq!(rig.engine.state(A).unwrap().holes, [(Sequence(written), Sequence(written))]);
            assert_eq!(rig.read_all(C, 4).await.unwrap_err().kind, ErrorKind::Corrupt);
            told.give(&rig, learned(Sequence(written - 1), Sequence(written))).await;
        }
    }
    // All that a pin needs was told; versions that a fork alone needs are lost, and stay so.
    let is_whole = is_pinned && course != Course::Accepted && rig.engine.whole_from(A).unwrap() <= fork.version;
    for start in 0..4 {
        stays_so(&rig, &model, (course, is_pinned, is_whole), start).await;
        if start > 0 {
            rig.engine.checkpoint().await.unwrap();
        }
        put(&rig, other.frame(&[data(start, 7)])).await;
        rig.stop().await;
        if start == 2 {
            erase_checkpoints(&device).await;
        }
        rig = open(&device, options).await;
    }
    rig.stop().await;
}

#[test]
fn a_clone_never_reads_what_lies_below_a_version_that_is_lost() {
    for course in [Course::Accepted, Course::Learned, Course::Gone] {
        for is_pinned in [false, true] {
            for options in [TINY, Options::of_workers(1)] {
                local(plain(course, is_pinned, options));
            }
        }
    }
}

/// The end of the parent was lost with what a fork reads. Another frame in the place of that one makes no such version again.
#[test]
fn another_frame_in_the_place_of_what_a_fork_reads_brings_nothing_back() {
    local(async {
        let device = crash_device(LIMIT, 5);
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let mut rig = open(&device, TINY).await;
        let mut chain = Chain::new(A);
        let put = async |rig: &Rig, frame| {
            rig.append(Record::Frame(frame));
            rig.settle().await;
        };
        put(&rig, chain.frame(&[data(0, 100)])).await;
        let before = chain.clone();
        put(&rig, chain.pins(&[(UpdateKind::Snapshot, 0)])).await;
        let fork = Fork {
            parent: A,
            snapshot: pin(chain.version).snapshot,
            version: Version(chain.version),
            sequence: Sequence(chain.sequence),
        };
        rig.engine.committed(A, fork.sequence);
        rig.append(Record::Mark { shard: C, change: MarkChange::forked(CLUSTER, &fork), ticket: 5 });
        rig.append(Record::Forget { shard: A, promised: ViewNumber(0) });
        rig.settle().await;
        // The same frames bring it back, and others do not.
        let mut first = Chain::new(A);
        put(&rig, first.frame(&[data(0, 100)])).await;
        assert_eq!(rig.read_all(C, 1).await.unwrap_err().kind, ErrorKind::Corrupt);
        let mut same = before.clone();
        put(&rig, same.pins(&[(UpdateKind::Snapshot, 0)])).await;
        assert_eq!(rig.read_all(C, 1).await.unwrap()[&0], Cell8::Data(100));
        rig.append(Record::Forget { shard: A, promised: ViewNumber(0) });
        let mut first = Chain::new(A);
        rig.append(Record::Frame(first.frame(&[data(0, 100)])));
        let mut different = before;
        rig.append(Record::Frame(different.frame(&[data(0, 500)])));
        rig.append(Record::Frame(different.frame(&[data(1, 600)])));
        rig.settle().await;
        for start in 0..3 {
            assert_eq!(rig.engine.state(A).unwrap().last, different.name());
            assert_eq!(rig.read_all(C, 1).await.unwrap_err().kind, ErrorKind::Corrupt, "start {start}");
            if start == 1 {
                rig.engine.checkpoint().await.unwrap();
            }
            rig.stop().await;
            rig = open(&device, TINY).await;
        }
        rig.stop().await;
    });
}

/// A log with a parent, a fork of a version that nothing else keeps, and a write behind it over what the fork reads.
async fn with_fork(device: &MemoryDevice) -> (Rig, Fork) {
    create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    let mut chain = Chain::new(A);
    rig.append(Record::Frame(chain.frame(&[data(0, 100), data(4, 200)])));
    rig.append(Record::Frame(chain.pins(&[(UpdateKind::Snapshot, 0)])));
    let fork = Fork {
        parent: A,
        snapshot: pin(chain.version).snapshot,
        version: Version(chain.version),
        sequence: Sequence(chain.sequence),
    };
    rig.settle().await;
    rig.engine.committed(A, fork.sequence);
    rig.append(Record::Mark { shard: C, change: MarkChange::forked(CLUSTER, &fork), ticket: 5 });
    rig.append(Record::Frame(chain.pins(&[(UpdateKind::Release, fork.version.0)])));
    rig.append(Record::Frame(chain.frame(&[data(0, 300)])));
    rig.settle().await;
    rig.engine.committed(A, Sequence(chain.sequence));
    (rig, fork)
}

/// Rot in a block that nothing but a clone reads was asked of the parent's members as it is now there, who could not have what
/// matches; and what a copy of the clone met, in the name of the clone, of nobody.
#[test]
fn damage_in_what_only_a_clone_reads_is_mended_from_its_copies() {
    local(async {
        let [device, other] = [(), ()].map(|()| MemoryDevice::new(4096, LIMIT));
        let ((rig, fork), (peer, _)) = (with_fork(&device).await, with_fork(&other).await);
        rot(&device, 101);
        let one = BlockRange::new(1, 1);
        assert_eq!(rig.engine.read(C, one).await.unwrap_err().kind, ErrorKind::Corrupt);
        let copy =
            || rig.engine.entries_with_past(C, MapPlace::default(), Sequence(0), Sequence(0), fork.sequence, 1 << 20);
        assert_eq!(copy().await.unwrap_err().kind, ErrorKind::Corrupt);
        let found = rig.engine.take_damaged(9);
        let named: Vec<_> = found.iter().map(|d| (d.shard, d.range, d.seen_at, d.forks.clone())).collect();
        assert_eq!(named, [(A, one, fork.version, vec![C])], "it lies in the parent");
        // A member with the same fork, and one that has the clone alone.
        let then = peer.engine.read_at(A, fork.version, one).await.unwrap().data.concat();
        let of_clone = peer.engine.read(C, one).await.unwrap().data.concat();
        assert_eq!((&then[..], &of_clone[..]), (&block(101)[..], &block(101)[..]));
        let other = peer.engine.read_at(A, Version(1), one).await.unwrap_err();
        assert_eq!(other.kind, ErrorKind::NotFound, "nobody reads that");
        assert_eq!(rig.engine.mend(found[0].id, &then.into()).unwrap(), 1);
        rig.settle().await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(rig.engine.read(C, one).await.unwrap().data.concat(), block(101));
        assert_eq!(copy().await.unwrap().1.concat(), peer_copy(&peer, &fork).await);
        rig.engine.check();

        // Nobody has it: the copy says so.
        rot(&device, 100);
        assert!(copy().await.is_err());
        rig.engine.take_damaged(9).iter().for_each(|d| rig.engine.unmended(d.id));
        let (body, data, _) = copy().await.unwrap();
        assert_eq!(body.entries.iter().map(|e| e.range.len).sum::<u32>(), 4);
        assert_ne!(data.concat()[..BLOCK], block(100)[..]);
        rig.stop().await;
        peer.stop().await;
    });
}

async fn peer_copy(peer: &Rig, fork: &Fork) -> Vec<u8> {
    let copy = peer.engine.entries_with_past(C, MapPlace::default(), Sequence(0), Sequence(0), fork.sequence, 1 << 20);
    copy.await.unwrap().1.concat()
}
