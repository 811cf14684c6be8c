//! Losses that are met when a fork is flat already, or by forks of forks (rule E10). What was lost is never read as what lies
//! below it, and what was not lost is read.

use crate::common::*;
use crate::crash_device::crash_device;
use crate::damage::FIRST;
use crate::forks::{LIMIT, SEGMENTS};
use crate::forks_lost::{Told, bytes_of, data, learned, open, right_or_lost, write_back};
use crate::history::{TINY, erase_checkpoints};
use freebs_format::disk::AppendHeader;
use freebs_format::{ExtentKind, Frame, UpdateKind};
use freebs_io::faults::CrashDevice;
use freebs_lsvd::{Durable, KeptState, Learned, MarkChange, Options, Record, fork_token};
use freebs_types::{BlockRange, ErrorKind, Fork, Lba, Sequence, ShardId, Version, ViewNumber};
use std::collections::BTreeMap;

pub const A: ShardId = ShardId::new(1, 0);
pub const C: ShardId = ShardId::new(2, 0);
const D: ShardId = ShardId::new(3, 0);
pub const OTHER: ShardId = ShardId::new(4, 0);
pub const BLOCKS: u32 = 4;

/// A log in which each record has an append of its own.
pub struct Log {
    pub device: CrashDevice,
    pub options: Options,
    pub rig: Rig,
}

/// The appends on a device that their headers tell of, by number: where, and which lengths.
pub fn appends(bytes: &[u8]) -> BTreeMap<u64, (usize, AppendHeader)> {
    let mut out: BTreeMap<u64, (usize, AppendHeader)> = BTreeMap::new();
    for at in (FIRST..bytes.len() - 512).step_by(512).filter(|at| &bytes[*at..at + 4] == b"FBAP") {
        let Ok(h) = AppendHeader::decode(&bytes[at..at + size_of::<AppendHeader>()]) else { continue };
        if h.offset.get() as usize == (at - FIRST) % SEGMENT as usize {
            let known = out.entry(h.number.get()).or_insert((at, h));
            if known.1.segment_seq.get() < h.segment_seq.get() {
                *known = (at, h);
            }
        }
    }
    out
}

impl Log {
    pub async fn new(options: Options) -> Self {
        let device = crash_device(LIMIT, 5);
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let rig = open(&device, options).await;
        Self { device, options, rig }
    }

    /// Gives back the number of its append.
    pub async fn put(&self, record: Record) -> u64 {
        self.rig.append(record);
        self.rig.settle().await;
        *appends(&bytes_of(&self.device).await).last_key_value().unwrap().0
    }

    pub async fn frame(&self, frame: Frame) -> u64 {
        self.put(Record::Frame(frame)).await
    }

    async fn has_append(&self, number: u64) -> bool {
        appends(&bytes_of(&self.device).await).contains_key(&number)
    }

    /// The append that a mark is in.
    pub async fn mark(&self, shard: ShardId, change: MarkChange) -> u64 {
        self.put(Record::Mark { shard, change, ticket: 5 }).await
    }

    /// Pins the last version of a chain, and makes a fork there.
    pub async fn fork(&self, parent: &mut Chain, shard: ShardId) -> (Chain, Fork) {
        self.frame(parent.pins(&[(UpdateKind::Snapshot, 0)])).await;
        self.rig.engine.committed(parent.shard, Sequence(parent.sequence));
        let fork = Fork {
            parent: parent.shard,
            snapshot: pin(parent.version).snapshot,
            version: Version(parent.version),
            sequence: Sequence(parent.sequence),
        };
        self.mark(shard, MarkChange::forked(CLUSTER, &fork)).await;
        assert_eq!(self.rig.engine.state(shard).unwrap().fork, Some(fork));
        let chain = Chain {
            id: fork_token(CLUSTER, &fork),
            view: ViewNumber(0),
            sequence: parent.sequence,
            version: parent.version,
            committed: parent.sequence,
            ..Chain::new(shard)
        };
        (chain, fork)
    }

    /// The snapshot that a fork is of is deleted, and a block of it is written over.
    async fn write_over(&self, parent: &mut Chain, fork: &Fork, op: Op) {
        self.frame(parent.pins(&[(UpdateKind::Release, fork.version.0)])).await;
        self.frame(parent.frame(&[op])).await;
        self.commit(parent);
    }

    pub fn commit(&self, chain: &mut Chain) {
        chain.committed = chain.sequence;
        self.rig.engine.committed(chain.shard, Sequence(chain.sequence));
    }

    /// The blocks that a fork reads from its parents go into its own log. Gives back the append of it.
    pub async fn bring(&self, shard: ShardId) -> u64 {
        let (body, data, next) = self.rig.engine.inherited_entries(shard, Lba(0), 1 << 20).await.unwrap();
        assert!(next.is_none() && !body.entries.is_empty());
        self.put(Record::Carry { shard, body, data, ticket: 6 }).await
    }

    pub async fn again(self) -> Self {
        self.rig.stop().await;
        let rig = open(&self.device, self.options).await;
        Self { rig, ..self }
    }

    /// It starts after a power cut, and the heads of these appends are gone, and the checkpoints.
    pub async fn without(self, lost: &[u64]) -> Self {
        self.rig.kill();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let device = self.device.copy();
        let mut bytes = bytes_of(&device).await;
        let all = appends(&bytes);
        for number in lost {
            let (at, h) = all[number];
            let (next, behind) = all[&(number + 1)];
            assert_eq!(h.segment_seq, behind.segment_seq, "the segment is open");
            let (front, len) = (HEADER + h.extra_len.get() as usize, h.heads_len.get() as usize);
            bytes[at + front] ^= 1;
            bytes[at + front + (len - front) / 2] ^= 1;
            bytes[next..next + 512].fill(0);
        }
        write_back(&device, bytes).await;
        erase_checkpoints(&device).await;
        let rig = open(&device, self.options).await;
        Self { rig, device, ..self }
    }
}

pub fn flat() -> MarkChange {
    MarkChange { flat: true, ..MarkChange::default() }
}

/// A parent with a block that only its fork reads as it was; and what the fork reads.
pub async fn parent_and_fork(log: &Log) -> (Chain, Chain, Fork, Model) {
    let mut a = Chain::new(A);
    log.frame(a.frame(&[data(0, 100)])).await;
    log.frame(a.frame(&[data(1, 200)])).await;
    let (c, fork) = log.fork(&mut a, C).await;
    log.write_over(&mut a, &fork, data(1, 300)).await;
    let mut model = Model::new();
    [data(0, 100), data(1, 200)].iter().for_each(|op| op.apply(&mut model));
    assert_eq!(right_or_lost(&log.rig, C, None, &model, BLOCKS).await, 0);
    (a, c, fork, model)
}

/// Frames that have nothing to do with a fork, each in an append of its own. Gives back the last append.
pub async fn others(log: &Log, other: &mut Chain, count: u32) -> u64 {
    let mut last = 0;
    for n in 0..count {
        last = log.frame(other.frame(&[data(n % BLOCKS, 7)])).await;
    }
    last
}

/// The fork misses what it was made flat by, or has all of it, at each start from the log alone, and from a checkpoint.
pub async fn keeps_to_that(mut log: Log, other: &mut Chain, lost_upto: Option<Sequence>, model: &Model) {
    let holes: Vec<_> = lost_upto.map(|upto| (Sequence(1), upto)).into_iter().collect();
    for start in 0..4 {
        let state = log.rig.engine.state(C).unwrap();
        assert_eq!((state.fork, &state.holes), (None, &holes), "start {start}");
        let lost = right_or_lost(&log.rig, C, None, model, BLOCKS).await;
        assert_eq!(lost > 0, lost_upto.is_some(), "start {start}: {lost} blocks can't be read");
        if start == 1 {
            log.rig.engine.checkpoint().await.unwrap();
        }
        if start == 2 {
            erase_checkpoints(&log.device).await;
        }
        others(&log, other, 1).await;
        log = log.again().await;
    }
    log.rig.stop().await;
}

/// The append with what a fork was made flat by is lost, and with it the mark or not.
async fn flat_by_what_is_lost(options: Options, and_mark: bool, in_two_goes: bool) {
    let mut log = Log::new(options).await;
    let (_, _, fork, model) = parent_and_fork(&log).await;
    let mut other = Chain::new(OTHER);
    let mut carry = log.bring(C).await;
    if in_two_goes {
        // The mark goes into the same segment. What was brought is brought once more.
        log = log.without(&[]).await;
        carry = log.bring(C).await;
    }
    let mark = log.mark(C, flat()).await;
    if and_mark {
        others(&log, &mut other, 3).await;
        log.mark(C, MarkChange::default()).await;
    }
    others(&log, &mut other, 3).await;
    let lost = if and_mark { vec![carry, mark] } else { vec![carry] };
    log = log.without(&lost).await;
    keeps_to_that(log, &mut other, Some(fork.sequence), &model).await;
}

#[test]
fn a_fork_is_not_flat_by_entries_that_are_lost() {
    for options in [TINY, Options::of_workers(1)] {
        for and_mark in [false, true] {
            for in_two_goes in [false, true] {
                local(flat_by_what_is_lost(options, and_mark, in_two_goes));
            }
        }
    }
}

/// A map of what lies behind the fork's beginning comes later: with the word that it is flat, or behind it. It brought nothing of
/// what the fork read, but ended it as if it had.
async fn flat_and_a_map_of_later(options: Options, at_once: bool) {
    let mut log = Log::new(options).await;
    let (_, _, fork, model) = parent_and_fork(&log).await;
    let mut other = Chain::new(OTHER);
    let map = Told::by(&log.rig, C).await.unwrap().goes_on(fork.sequence, fork.sequence);
    let carry = log.bring(C).await;
    let mut lost = vec![carry];
    if at_once {
        others(&log, &mut other, 3).await;
        log.mark(C, map.clone()).await;
        log.mark(C, MarkChange { flat: true, ..map }).await;
    } else {
        lost.push(log.mark(C, flat()).await);
        others(&log, &mut other, 3).await;
        log.mark(C, map).await;
    }
    others(&log, &mut other, 3).await;
    log = log.without(&lost).await;
    keeps_to_that(log, &mut other, Some(fork.sequence), &model).await;
}

#[test]
fn a_map_of_what_came_later_makes_no_fork_flat() {
    for options in [TINY, Options::of_workers(1)] {
        for at_once in [false, true] {
            local(flat_and_a_map_of_later(options, at_once));
        }
    }
}

/// A loss is not of what a fork was made flat by: its mark alone, something that came in between, or something on either side.
/// Each of these was taken for it.
#[test]
fn a_fork_is_flat_if_none_of_its_entries_is_lost() {
    for which in 0..4 {
        local(async move {
            let mut log = Log::new(TINY).await;
            let mut other = Chain::new(OTHER);
            let before = others(&log, &mut other, 1).await;
            let (_, _, _, model) = parent_and_fork(&log).await;
            log.bring(C).await;
            let between = others(&log, &mut other, 4).await - 2;
            let mark = log.mark(C, flat()).await;
            let behind = others(&log, &mut other, 4).await - 2;
            log.mark(C, MarkChange::default()).await;
            others(&log, &mut other, 3).await;
            let lost = [vec![mark], vec![between], vec![before, behind], vec![between, mark]][which].clone();
            log = log.without(&lost).await;
            keeps_to_that(log, &mut other, None, &model).await;
        });
    }
}

/// A parent has no entry left, as all that it had is lost: nothing was asked for, and its fork counted as flat.
#[test]
fn a_fork_is_not_flat_by_a_parent_that_has_lost_all() {
    for is_given_up in [false, true] {
        local(async move {
            let log = Log::new(TINY).await;
            let (mut a, mut other) = (Chain::new(A), Chain::new(OTHER));
            others(&log, &mut other, 1).await;
            let lost = log.frame(a.frame(&[data(0, 100)])).await;
            log.fork(&mut a, C).await;
            others(&log, &mut other, 3).await;
            let log = log.without(&[lost]).await;
            if is_given_up {
                let given_up = Learned { upto: Sequence(1), given_up: ViewNumber(9), ..Learned::default() };
                log.mark(A, MarkChange { learned: Some(Box::new(given_up)), ..MarkChange::default() }).await;
            }
            assert_eq!(log.rig.engine.state(A).unwrap().holes.is_empty(), is_given_up);
            let e = log.rig.engine.inherited_entries(C, Lba(0), 1 << 20).await.unwrap_err();
            assert_eq!(e.kind, ErrorKind::Corrupt, "given up {is_given_up}: {e}");
            log.rig.stop().await;
        });
    }
}

/// The log is the only copy, and what a fork was made flat by is lost and taken for lost. That is no news at later starts; what a
/// fork of the fork read stays lost to it.
async fn accepted(options: Options, and_mark: bool) {
    let mut log = Log::new(options).await;
    let (_, mut c, _, model) = parent_and_fork(&log).await;
    let mut other = Chain::new(OTHER);
    log.frame(c.view_frame(2, 9)).await;
    log.frame(c.frame(&[data(3, 400)])).await;
    log.fork(&mut c, D).await;
    let mut lost = vec![log.bring(C).await];
    let mark = log.mark(C, flat()).await;
    if and_mark {
        lost.push(mark);
        others(&log, &mut other, 3).await;
        log.mark(C, MarkChange::default()).await;
    }
    others(&log, &mut other, 3).await;
    log = log.without(&lost).await;
    assert!(right_or_lost(&log.rig, C, None, &model, 2).await > 0);
    log.rig.stop().await;
    erase_checkpoints(&log.device).await;
    let (engine, _) = open_log_with(log.device.clone(), &expect(), options).await.unwrap();
    assert!(engine.lost().iter().any(|l| l.shard == C && l.frames[0].0 == Sequence(1)));
    engine.accept_loss().await.unwrap();
    log.rig = open(&log.device, options).await;
    for start in 0..4 {
        let state = log.rig.engine.state(C).unwrap();
        assert_eq!((state.fork, &state.holes[..], state.given_up.0 > 0), (None, &[][..], true), "start {start}");
        let left = log.rig.read_all(C, BLOCKS + 1).await.unwrap();
        let own = [(3, Cell8::Data(403)), (4, Cell8::Data(404))];
        assert_eq!(left, (0..3).map(|b| (b, Cell8::Trim)).chain(own).collect(), "start {start}");
        assert_eq!(log.rig.read_all(D, BLOCKS).await.unwrap_err().kind, ErrorKind::Corrupt, "start {start}");
        assert_eq!(log.rig.engine.inherited_entries(D, Lba(0), 1 << 20).await.unwrap_err().kind, ErrorKind::Corrupt);
        if start == 1 {
            log.rig.engine.checkpoint().await.unwrap();
        }
        if start == 2 {
            erase_checkpoints(&log.device).await;
        }
        others(&log, &mut other, 1).await;
        log = log.again().await;
    }
    log.rig.stop().await;
}

#[test]
fn what_a_fork_was_made_flat_by_is_taken_for_lost() {
    for options in [TINY, Options::of_workers(1)] {
        for and_mark in [false, true] {
            local(accepted(options, and_mark));
        }
    }
}

/// The tails of all shards were compared with those of others.
async fn trust_all(log: &Log) {
    let is_suspect = |s: &ShardId| log.rig.engine.state(*s).is_some_and(|s| s.suspect_tail);
    for shard in [A, C, D, OTHER].into_iter().filter(is_suspect) {
        log.mark(shard, MarkChange { trusted: true, ..MarkChange::default() }).await;
    }
}

/// A fork has lost what it was made flat by, and the log goes on for a long time: the marks that tell of it must not go.
#[test]
fn a_fork_misses_what_it_lost_however_long_the_log_goes_on() {
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let mut log = Log::new(options).await;
            let (_, _, fork, model) = parent_and_fork(&log).await;
            let mut other = Chain::new(OTHER);
            let carry = log.bring(C).await;
            log.mark(C, flat()).await;
            let behind = others(&log, &mut other, 3).await;
            log = log.without(&[carry]).await;
            trust_all(&log).await;
            let state = log.rig.engine.state(C).unwrap();
            assert_eq!((state.suspect_tail, &state.holes[..]), (false, &[(Sequence(1), fork.sequence)][..]));
            for _ in 0..200 {
                fill(&log, &mut other, 100).await;
            }
            assert!(log.has_append(behind).await && !is_open_at(&log, behind).await, "{:?}", log.rig.engine.lost());
            log = log.without(&[]).await;
            keeps_to_that(log, &mut other, Some(fork.sequence), &model).await;
        });
    }
}

/// How a parent comes to have other things than those that it had for its fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anew {
    /// It ended, and a map came.
    Map,
    /// It ended, and other frames came.
    Frames,
    /// The same, and these came when the word was lost.
    Late,
    /// A map came in place of a lost frame.
    Learned,
    /// It is as it was.
    Same,
}

/// Frames of another parent of that name.
async fn other_frames(log: &Log) -> Chain {
    let mut a = Chain::new(A);
    for fill in [100, 600, 700, 800] {
        log.frame(a.frame(&[data(1, fill)])).await;
    }
    log.commit(&mut a);
    a
}

/// Through restarts with checkpoints and without, the fork is one, and can't read blocks if it misses something.
async fn misses(mut log: Log, other: &mut Chain, model: &Model, is_missing: bool, when: &str) {
    for start in 0..4 {
        assert!(log.rig.engine.state(C).unwrap().fork.is_some());
        let lost = right_or_lost(&log.rig, C, None, model, BLOCKS).await;
        assert_eq!(lost > 0, is_missing, "{when}, start {start}: {lost} blocks can't be read");
        assert_eq!(log.rig.engine.check_inherited(C).is_ok(), lost == 0, "{when}, start {start}");
        if start == 1 {
            log.rig.engine.checkpoint().await.unwrap();
        }
        if start == 2 {
            erase_checkpoints(&log.device).await;
        }
        others(&log, other, 1).await;
        log = log.again().await;
    }
    log.rig.stop().await;
}

/// A fork was flat when its parent lost what it had read, so nobody named that as lost. Then the word that it is flat is lost with
/// what it was made flat by: it is a fork again.
async fn fork_again(options: Options, anew: Anew, and_carry: bool, goes_on: bool) {
    let mut log = Log::new(options).await;
    let (mut a, _, _, model) = parent_and_fork(&log).await;
    let mut other = Chain::new(OTHER);
    log.commit(&mut a);
    let told = Told::by(&log.rig, A).await.unwrap();
    // The segment in which it ends is one with nothing else of it.
    while anew == Anew::Late && goes_on && is_open_at(&log, 2).await {
        fill(&log, &mut other, 100).await;
    }
    let carry = log.bring(C).await;
    let mark = log.mark(C, flat()).await;
    others(&log, &mut other, 3).await;
    match anew {
        Anew::Map => {
            log.put(Record::Forget { shard: A, promised: ViewNumber(0) }).await;
            told.give(&log.rig, told.goes_on(Sequence(0), Sequence(0))).await;
        }
        Anew::Frames | Anew::Late => {
            log.put(Record::Forget { shard: A, promised: ViewNumber(0) }).await;
            if anew == Anew::Frames {
                other_frames(&log).await;
            }
        }
        Anew::Learned => {
            log = log.without(&[2]).await;
            told.give(&log.rig, learned(Sequence(1), Sequence(2))).await;
            assert!(log.rig.engine.state(A).unwrap().holes.is_empty());
        }
        Anew::Same => {}
    }
    others(&log, &mut other, 3).await;
    let lost = if and_carry { vec![carry, mark] } else { vec![mark] };
    log = log.without(&lost).await;
    if anew == Anew::Late {
        while goes_on && is_open_at(&log, mark + 4).await {
            fill(&log, &mut other, 100).await;
        }
        // Blocks that nobody writes over keep the segment of the frames.
        a = other_frames(&log).await;
        fill(&log, &mut a, 200).await;
    }
    if goes_on {
        // The segments that tell of it go.
        trust_all(&log).await;
        for _ in 0..200 {
            fill(&log, &mut other, 100).await;
            if anew == Anew::Late && !log.has_append(mark + 4).await {
                break;
            }
        }
        let is_there = log.has_append(mark + 4).await;
        assert!(anew != Anew::Late || !is_there, "{:?}", log.rig.engine.lost());
        log = log.without(&[]).await;
    }
    let when = format!("{anew:?}, goes on {goes_on}");
    misses(log, &mut other, &model, anew != Anew::Same, &when).await;
}

#[test]
fn a_fork_that_is_one_again_reads_nothing_that_its_parent_lost_meanwhile() {
    for options in [TINY, Options::of_workers(1)] {
        for anew in [Anew::Map, Anew::Frames, Anew::Late, Anew::Learned, Anew::Same] {
            for (and_carry, goes_on) in [(true, false), (true, true), (false, true)] {
                local(fork_again(options, anew, and_carry, goes_on));
            }
        }
    }
}

/// Something is lost behind the mark of a fork, and of its parent, too. A peer tells all that the parent's pin needs: the fork reads
/// on, at later starts, too.
#[test]
fn a_fork_that_was_thought_of_reads_on() {
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let mut log = Log::new(options).await;
            let (mut a, mut other) = (Chain::new(A), Chain::new(OTHER));
            log.frame(a.frame(&[data(0, 100)])).await;
            log.frame(a.frame(&[data(1, 200)])).await;
            log.fork(&mut a, C).await;
            others(&log, &mut other, 1).await;
            let lost = log.frame(a.frame(&[data(1, 300)])).await;
            log.frame(a.frame(&[data(3, 400)])).await;
            log.commit(&mut a);
            let told = Told::by(&log.rig, A).await.unwrap();
            others(&log, &mut other, 3).await;
            log = log.without(&[lost]).await;
            assert_eq!(log.rig.engine.state(A).unwrap().holes.len(), 1);
            told.give(&log.rig, learned(Sequence(3), Sequence(4))).await;
            let mut model = Model::new();
            [data(0, 100), data(1, 200)].iter().for_each(|op| op.apply(&mut model));
            for start in 0..4 {
                let lost = right_or_lost(&log.rig, C, None, &model, BLOCKS).await;
                assert_eq!(lost, 0, "start {start}");
                log.rig.engine.check_inherited(C).unwrap();
                others(&log, &mut other, 1).await;
                log = log.again().await;
                erase_checkpoints(&log.device).await;
            }
            log.rig.stop().await;
        });
    }
}

/// Something that came behind the entries is lost, and that is known, when it goes on to be made flat; these are lost only then,
/// in a segment that is open still. What was brought before a start was relied on.
#[test]
fn a_fork_does_not_rely_on_what_was_brought_before_a_known_loss() {
    for options in [TINY, Options::of_workers(1)] {
        for which in 0..3 {
            local(async move {
                let mut log = Log::new(options).await;
                let (_, _, fork, model) = parent_and_fork(&log).await;
                let mut other = Chain::new(OTHER);
                let first = log.bring(C).await;
                let unrelated = others(&log, &mut other, 6).await - 3;
                log = log.without(&[unrelated]).await;
                let second = log.bring(C).await;
                log.mark(C, flat()).await;
                others(&log, &mut other, 3).await;
                let lost = [vec![first], vec![second], vec![first, second]][which].clone();
                log = log.without(&lost).await;
                let lost_upto = Some(fork.sequence).filter(|_| which > 0);
                keeps_to_that(log, &mut other, lost_upto, &model).await;
            });
        }
    }
}

/// A loss from before a fork was made flat, or one that has nothing to do with it, takes nothing from it.
#[test]
fn a_fork_is_flat_whatever_else_is_lost() {
    for is_known in [false, true] {
        local(async move {
            let mut log = Log::new(TINY).await;
            let mut other = Chain::new(OTHER);
            let mut unrelated = others(&log, &mut other, 1).await;
            let (_, _, _, model) = parent_and_fork(&log).await;
            if is_known {
                // It is found, and the start after that begins with a checkpoint, and knows nothing of it.
                unrelated = others(&log, &mut other, 6).await - 3;
                log = log.without(&[unrelated]).await;
                others(&log, &mut other, 3).await;
                log.rig.engine.checkpoint().await.unwrap();
                log = log.again().await;
            }
            log.bring(C).await;
            log.mark(C, flat()).await;
            others(&log, &mut other, 3).await;
            log = log.without(if is_known { &[] } else { std::slice::from_ref(&unrelated) }).await;
            keeps_to_that(log, &mut other, None, &model).await;
        });
    }
}

/// An append is lost behind the mark that made a fork flat, in the same segment or in a later one. That is known, and a mark
/// comes behind it.
async fn flat_before_a_loss(options: Options, is_in_next: bool) {
    let mut log = Log::new(options).await;
    let (_, _, _, model) = parent_and_fork(&log).await;
    let mut other = Chain::new(OTHER);
    log.bring(C).await;
    let mark = log.mark(C, flat()).await;
    while is_in_next && is_open_at(&log, mark).await {
        fill(&log, &mut other, 100).await;
    }
    let unrelated = others(&log, &mut other, 6).await - 3;
    log = log.without(&[unrelated]).await;
    log.mark(C, MarkChange::default()).await;
    others(&log, &mut other, 3).await;
    keeps_to_that(log.without(&[]).await, &mut other, None, &model).await;
}

/// Some blocks are written, with no regard to what was in them.
pub async fn fill(log: &Log, chain: &mut Chain, blocks: u32) {
    let op = Op { extents: vec![(ExtentKind::Data, 0, blocks)], fill: 9 << 32 };
    log.rig.append(Record::Frame(chain.frame(&[op])));
    log.rig.settle().await;
    chain.committed = chain.sequence;
    log.rig.engine.committed(chain.shard, Sequence(chain.sequence));
}

/// True if the segment with an append is the one that the last append is in.
pub async fn is_open_at(log: &Log, number: u64) -> bool {
    let all = appends(&bytes_of(&log.device).await);
    all[&number].1.segment_seq == all.last_key_value().unwrap().1.1.segment_seq
}

#[test]
fn a_fork_stays_flat_whatever_is_lost_later() {
    for options in [TINY, Options::of_workers(1)] {
        for is_in_next in [false, true] {
            local(flat_before_a_loss(options, is_in_next));
        }
    }
}

/// The segment with the mark that made a fork flat was given up, and the one with the mark that made it was not. What was lost in
/// between was nothing of the fork's.
#[test]
fn a_fork_is_flat_when_the_mark_that_said_so_is_gone() {
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let mut log = Log::new(options).await;
            let (_, _, _, model) = parent_and_fork(&log).await;
            let (mut stays, mut other) = (Chain::new(D), Chain::new(OTHER));
            let made = log.mark(C, MarkChange::default()).await;
            // Blocks that nobody writes over keep that segment.
            fill(&log, &mut stays, 200).await;
            while is_open_at(&log, made).await {
                fill(&log, &mut other, 20).await;
            }
            log.bring(C).await;
            let mark = log.mark(C, flat()).await;
            let frame = other.frame(&[data(0, 7)]);
            let unrelated = log.frame(frame.clone()).await;
            others(&log, &mut other, 3).await;
            log = log.without(&[unrelated]).await;
            log.put(Record::Repair(frame)).await;
            // Tails that may have lost something keep the segment with the damage.
            trust_all(&log).await;
            assert_eq!(log.rig.engine.lost().len(), 0);
            for _ in 0..600 {
                fill(&log, &mut other, 100).await;
                if !log.has_append(mark).await {
                    break;
                }
            }
            let there = (log.has_append(made).await, log.has_append(mark).await);
            let counters = log.rig.engine.counters();
            assert_eq!(there, (true, false), "{counters:?}");
            others(&log, &mut other, 3).await;
            keeps_to_that(log.without(&[]).await, &mut other, None, &model).await;
        });
    }
}

/// The frame that a fork's block is from is lost, and a peer has it no more: what the fork read is lost, for good.
async fn lose_what_a_fork_reads(log: Log, a: &mut Chain) -> Log {
    log.commit(a);
    let told = Told::by(&log.rig, A).await.unwrap();
    let log = log.without(&[2]).await;
    assert_eq!(log.rig.engine.state(A).unwrap().holes, [(Sequence(2), Sequence(2))]);
    told.give(&log.rig, learned(Sequence(1), Sequence(2))).await;
    assert!(log.rig.engine.state(A).unwrap().holes.is_empty());
    log
}

/// A fork with frames of its own learns what it lost from a copy, which tells what is in force there and what its own pins
/// need. A fork of this one needs more than that, if nothing pins its version any more.
async fn learned_below_a_fork(options: Options, is_pinned: bool) {
    let log = Log::new(options).await;
    let mut other = Chain::new(OTHER);
    let (mut a, mut c, _, model) = parent_and_fork(&log).await;
    let cut = Sequence(c.sequence);
    log.frame(c.view_frame(2, 9)).await;
    log.frame(c.frame(&[data(3, 400)])).await;
    let mut read = model;
    data(3, 400).apply(&mut read);
    let (mut d, second) = log.fork(&mut c, D).await;
    log.frame(d.view_frame(3, 9)).await;
    log.commit(&mut d);
    match is_pinned {
        false => log.write_over(&mut c, &second, data(1, 500)).await,
        true => drop(log.frame(c.frame(&[data(1, 500)])).await),
    }
    log.commit(&mut c);
    let copy = Told::by(&log.rig, C).await.unwrap();
    for n in 0..3 {
        log.frame(other.frame(&[data(n, 7)])).await;
    }
    let mut log = lose_what_a_fork_reads(log, &mut a).await;
    for shard in [C, D] {
        assert_eq!(log.rig.engine.check_inherited(shard).unwrap_err().kind, ErrorKind::Corrupt);
    }
    copy.give(&log.rig, MarkChange { flat: true, ..learned(Sequence(0), cut) }).await;
    for start in 0..4 {
        assert_eq!(log.rig.engine.state(C).unwrap().fork, None);
        assert_eq!(log.rig.read_all(C, BLOCKS).await.unwrap()[&1], Cell8::Data(501));
        assert_eq!(log.rig.engine.state(D).unwrap().fork, Some(second));
        let lost = right_or_lost(&log.rig, D, None, &read, BLOCKS).await;
        assert_eq!(lost == 0, is_pinned, "start {start}: {lost} blocks can't be read");
        assert_eq!(log.rig.engine.check_inherited(D).is_ok(), is_pinned);
        if start == 1 {
            log.rig.engine.checkpoint().await.unwrap();
        }
        if start == 2 {
            erase_checkpoints(&log.device).await;
        }
        log.frame(other.frame(&[data(start, 7)])).await;
        log = log.again().await;
    }
    log.rig.stop().await;
}

#[test]
fn a_fork_that_learns_what_it_lost_takes_nothing_for_what_its_own_forks_read() {
    for options in [TINY, Options::of_workers(1)] {
        for is_pinned in [false, true] {
            local(learned_below_a_fork(options, is_pinned));
        }
    }
}

/// A fork is a copy that counts. It is none if its parent lacks what that one reads.
#[test]
fn no_fork_is_made_of_one_that_has_lost_what_it_reads() {
    local(async {
        let log = Log::new(TINY).await;
        let mut other = Chain::new(OTHER);
        let (mut a, mut c, _, _) = parent_and_fork(&log).await;
        log.frame(c.view_frame(2, 9)).await;
        log.frame(c.pins(&[(UpdateKind::Snapshot, 0)])).await;
        log.commit(&mut c);
        let fork = Fork {
            parent: C,
            snapshot: pin(c.version).snapshot,
            version: Version(c.version),
            sequence: Sequence(c.sequence),
        };
        log.rig.engine.check_fork(&fork).unwrap();
        for n in 0..3 {
            log.frame(other.frame(&[data(n, 7)])).await;
        }
        log.commit(&mut a);
        let told = Told::by(&log.rig, A).await.unwrap();
        let log = log.without(&[2]).await;
        log.rig.engine.committed(C, fork.sequence);
        // It may be mended, or not.
        for is_learned in [false, true] {
            if is_learned {
                told.give(&log.rig, learned(Sequence(1), Sequence(2))).await;
            }
            let e = log.rig.engine.check_fork(&fork).unwrap_err();
            assert_eq!(e.kind, ErrorKind::Corrupt, "learned {is_learned}: {e}");
            log.rig.append(Record::Mark { shard: D, change: MarkChange::forked(CLUSTER, &fork), ticket: 8 });
            log.rig.settle().await;
            let done = log.rig.heard.done.borrow();
            assert!(matches!(done.last(), Some(Durable::Unlearned { shard, ticket: 8, .. }) if *shard == D));
            drop(done);
            assert!(log.rig.engine.state(D).is_none());
        }
        log.rig.stop().await;
    });
}

/// A frame that pins comes late, and what it needs may be gone from the parent's history: but not from what a fork reads, which
/// was there all the time. Nor does the mark that all of the past is here take anything from it.
#[test]
fn history_that_is_not_whole_takes_nothing_from_a_fork() {
    for options in [TINY, Options::of_workers(1)] {
        local(async move {
            let log = Log::new(options).await;
            let mut other = Chain::new(OTHER);
            let mut a = Chain::new(A);
            log.frame(a.frame(&[data(0, 100)])).await;
            log.frame(a.frame(&[data(1, 200)])).await;
            let pinning = a.clone().pins(&[(UpdateKind::Snapshot, 0)]);
            let (_, fork) = log.fork(&mut a, C).await;
            log.write_over(&mut a, &fork, data(1, 300)).await;
            let mut model = Model::new();
            [data(0, 100), data(1, 200)].iter().for_each(|op| op.apply(&mut model));
            for n in 0..3 {
                log.frame(other.frame(&[data(n, 7)])).await;
            }
            let kept = log.rig.engine.kept_state(A).unwrap();
            let mut log = log.without(&[3]).await;
            assert_eq!(log.rig.engine.state(A).unwrap().holes, [(fork.sequence, fork.sequence)]);
            log.put(Record::Repair(pinning)).await;
            let whole_from = log.rig.engine.whole_from(A).unwrap();
            assert!(log.rig.engine.state(A).unwrap().holes.is_empty() && whole_from > fork.version);
            assert_eq!(right_or_lost(&log.rig, C, None, &model, BLOCKS).await, 0);
            log.rig.engine.committed(A, Sequence(a.sequence));
            let past = KeptState { past: whole_from, whole_from: Version(0), ..kept };
            log.mark(A, MarkChange { kept: Some(Box::new(past)), ..MarkChange::default() }).await;
            assert_eq!(log.rig.engine.whole_from(A).unwrap(), Version(0));
            for start in 0..3 {
                assert_eq!(right_or_lost(&log.rig, C, None, &model, BLOCKS).await, 0, "start {start}");
                log.rig.engine.check_inherited(C).unwrap();
                if start == 1 {
                    log.rig.engine.checkpoint().await.unwrap();
                }
                log.frame(other.frame(&[data(start, 7)])).await;
                log = log.again().await;
            }
            log.rig.stop().await;
        });
    }
}

/// A peer names the pin that a fork is of, and lacks some of what that needs.
#[test]
fn a_pin_that_is_not_whole_at_its_teller_brings_nothing_back() {
    local(async {
        let log = Log::new(TINY).await;
        let mut other = Chain::new(OTHER);
        let mut a = Chain::new(A);
        log.frame(a.frame(&[data(0, 100)])).await;
        log.frame(a.frame(&[data(1, 200)])).await;
        let (_, fork) = log.fork(&mut a, C).await;
        log.frame(a.frame(&[data(1, 300)])).await;
        log.commit(&mut a);
        for n in 0..3 {
            log.frame(other.frame(&[data(n, 7)])).await;
        }
        let mut kept = log.rig.engine.kept_state(A).unwrap();
        kept.whole_from = fork.version.next();
        let mut log = log.without(&[2]).await;
        let change = MarkChange { kept: Some(Box::new(kept)), ..learned(Sequence(1), Sequence(2)) };
        log.mark(A, change).await;
        let mut model = Model::new();
        [data(0, 100), data(1, 200)].iter().for_each(|op| op.apply(&mut model));
        for _ in 0..2 {
            assert!(right_or_lost(&log.rig, C, None, &model, BLOCKS).await > 0);
            log.frame(other.frame(&[data(0, 7)])).await;
            log = log.again().await;
        }
        log.rig.stop().await;
    });
}

/// Nobody has what a fork has lost, and it is given up by force: the fork is none any more, and its versions, and those that its
/// own forks read, are not taken for what is left.
#[test]
fn a_fork_goes_on_without_what_it_has_lost() {
    local(async {
        let log = Log::new(TINY).await;
        let mut other = Chain::new(OTHER);
        let (mut a, mut c, fork, model) = parent_and_fork(&log).await;
        log.frame(c.view_frame(2, 9)).await;
        log.frame(c.frame(&[data(3, 400)])).await;
        let (_, second) = log.fork(&mut c, D).await;
        log.frame(c.frame(&[data(3, 500)])).await;
        for n in 0..3 {
            log.frame(other.frame(&[data(n, 7)])).await;
        }
        let mut log = lose_what_a_fork_reads(log, &mut a).await;
        log.commit(&mut c);
        let given_up = Learned { upto: fork.sequence, given_up: ViewNumber(9), ..Learned::default() };
        let change = MarkChange { flat: true, learned: Some(Box::new(given_up)), ..MarkChange::default() };
        log.mark(C, change).await;
        for start in 0..3 {
            let state = log.rig.engine.state(C).unwrap();
            assert_eq!((state.fork, state.given_up, state.holes), (None, ViewNumber(9), vec![]));
            assert_eq!(log.rig.read_all(C, BLOCKS).await.unwrap()[&3], Cell8::Data(503));
            assert_eq!(log.rig.engine.kept_state(C).unwrap().pins, [], "start {start}");
            let e = log.rig.engine.read_at(C, second.version, BlockRange::new(1, 1)).await.unwrap_err();
            assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
            assert!(right_or_lost(&log.rig, D, None, &model, BLOCKS).await > 0);
            if start == 1 {
                log.rig.engine.checkpoint().await.unwrap();
            }
            log.frame(other.frame(&[data(start, 7)])).await;
            log = log.again().await;
        }
        log.rig.stop().await;
    });
}

/// A parent's lost frame came back between the look at the parent's entries and the one at the fork's own: the block was nowhere,
/// and nothing was missed any more, so it was read as zeroes.
#[test]
fn a_fork_is_read_as_of_one_moment_of_its_parents_holes() {
    const LAST: u32 = 1201;
    let zeroes = |chain: &mut Chain, part: u32| {
        let extents = (0..60).map(|n| (ExtentKind::Zero, (part * 60 + n) * 2, 1)).collect();
        chain.frame(&[Op { extents, fill: 0 }])
    };
    local(async {
        let mut log = Log::new(TINY).await;
        let mut a = Chain::new(A);
        for part in 0..20 {
            log.frame(zeroes(&mut a, part)).await;
        }
        let back = a.frame(&[data(LAST, 9)]);
        let lost = log.frame(back.clone()).await;
        log.commit(&mut a);
        let (mut c, _) = log.fork(&mut a, C).await;
        for part in 0..20 {
            log.frame(zeroes(&mut c, part)).await;
        }
        log.commit(&mut c);
        log = log.without(&[lost]).await;
        log.rig.engine.checkpoint().await.unwrap();
        log.rig.stop().await;
        let (mut missed, mut whole) = (0, 0);
        for turn in 0..120 {
            let device = log.device.copy();
            let rig = open(&device, TINY).await;
            device.pace_widely(turn, 3);
            let engine = rig.engine.clone();
            let reads = tokio::task::spawn_local(async move { engine.read(C, BlockRange::new(LAST, 1)).await });
            for _ in 0..turn / 3 {
                tokio::task::yield_now().await;
            }
            rig.append(Record::Repair(back.clone()));
            rig.settle().await;
            let now = rig.engine.read(C, BlockRange::new(LAST, 1)).await.unwrap().data.concat();
            assert!(now.iter().any(|b| *b != 0), "it is back");
            match reads.await.unwrap() {
                Ok(read) => {
                    assert_eq!(read.data.concat(), now, "turn {turn}: zeroes for what was lost");
                    whole += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind, ErrorKind::Corrupt, "turn {turn}: {e}");
                    missed += 1;
                }
            }
            rig.kill();
        }
        assert!(missed > 0 && whole > 0, "{missed} reads missed it, {whole} had it");
    });
}
