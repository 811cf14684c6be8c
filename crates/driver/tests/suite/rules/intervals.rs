//! Consistency intervals: one update for several changes, its blocks taken at once, its place in the answer.

use super::script::{GENERATION, MIB, Script, news, peer, shard};
use bytes::Bytes;
use freebs_driver::{
    Action, Change, Event, INTERVAL_BYTES_MAX, INTERVAL_CHANGES_MAX, INTERVAL_RUNS_MAX, Mutant, Op, Placed, Reply,
};
use freebs_format::wire::{DurableItem, Message, Refusal, Refused, Request};
use freebs_types::{ErrorKind, RequestNumber, Sequence, ViewNumber};

fn write(offset: u64, len: usize, fill: u8) -> Change {
    Change::Write { offset, data: Bytes::from(vec![fill; len]) }
}

fn interval(s: &mut Script, token: u64, changes: Vec<Change>) {
    s.step(Event::Client { token, op: Op::Interval { changes: changes.into() } });
}

/// The error that an interval gets at once.
fn refused(s: &mut Script, changes: Vec<Change>) -> (ErrorKind, String) {
    let mut out = Vec::new();
    s.driver.step(s.now, Event::Client { token: 9, op: Op::Interval { changes: changes.into() } }, &mut out);
    match &out[..] {
        [Action::Done { token: 9, result: Err(e) }] => (e.kind, e.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn scattered_changes_are_one_update() {
    for mutant in [None, Some(Mutant::SplitInterval)] {
        let mut s = Script::ready(mutant);
        let trim = Change::Trim { offset: 40_960, len: 8192 };
        let zero = Change::Zero { offset: 65_536, len: 4096 };
        interval(&mut s, 1, vec![write(81_920, 4096, 1), write(0, 8192, 2), trim, zero, write(4096, 4096, 3)]);
        if mutant.is_some() {
            assert_eq!(s.lines.len(), 2, "the mutant is seen");
            continue;
        }
        s.sees(&["n1 <- write #1 v1 open 1 [0+2 t10+2 z16+1 20+1]"]);
        let bytes = s.last_write.take().unwrap().data.concat();
        assert!(bytes[..4096].iter().all(|b| *b == 2), "the first write's first block");
        assert!(bytes[4096..8192].iter().all(|b| *b == 3), "the later change counts");
        // A read of either end waits for it (R3).
        s.read(2, 81_920, 4096);
        s.read(3, 0, 4096);
        s.sees(&[]);
        s.ordered(1, 1, &[(1, 3)]);
        s.durable(1, 1, 3);
        s.sees(&[]);
        s.durable(2, 1, 3);
        assert_eq!(s.lines.len(), 3, "{:?}", s.lines);
        let placed = Placed { shard: shard(0), view: ViewNumber(1), sequence: Sequence(3) };
        assert!(s.lines.contains(&format!("done 1: {:?}", [placed])), "{:?}", s.lines);
    }
}

#[test]
fn edges_are_read_first_and_held() {
    let mut s = Script::ready(None);
    interval(&mut s, 1, vec![write(512, 512, 5), write(8192 + 4000, 200, 6), write(40_960, 4096, 7)]);
    s.sees(&["n2 <- read r0 v1 floor 2 [0+1]", "n2 <- read r1 v1 floor 2 [2+1]"]);
    // A write of a block in part of the same block, and a whole one: both wait.
    s.write(2, 0, 512, 8);
    s.write(3, 8192, 4096, 9);
    s.sees(&[]);
    s.answer(1, &[Some(2)]);
    s.sees(&["n2 <- read r2 v1 floor 2 [3+1]"]);
    s.answer(0, &[None]);
    s.sees(&[]);
    s.answer(2, &[Some(3)]);
    s.sees(&["n1 <- write #1 v1 open 1 [0+1 2+2 10+1]"]);
    let bytes = s.last_write.take().unwrap().data.concat();
    let at = |block: usize, byte: usize| bytes[block * 4096 + byte];
    assert_eq!([at(0, 511), at(0, 512), at(0, 1023), at(0, 1024)], [0, 5, 5, 0]);
    assert_eq!([at(1, 3999), at(1, 4000), at(2, 103), at(2, 104)], [2, 6, 6, 3]);
    assert_eq!([at(3, 0), at(3, 4095)], [7, 7]);
    s.ordered(1, 1, &[(1, 3)]);
    s.durable(1, 1, 3);
    s.durable(2, 1, 3);
    assert!(s.lines.iter().any(|l| l.contains("write #2")), "{:?}", s.lines);
}

#[test]
fn crossing_intervals_go_one_after_the_other() {
    let mut s = Script::ready(None);
    interval(&mut s, 1, vec![write(0, 100, 1), write(40_960, 100, 1)]);
    s.lines.clear();
    interval(&mut s, 2, vec![write(40_960, 100, 2), write(0, 100, 2)]);
    interval(&mut s, 3, vec![write(40_960, 100, 3), write(81_920, 100, 3)]);
    s.sees(&[]);
    s.answer(0, &[None]);
    s.answer(1, &[None]);
    s.sees(&["n1 <- write #1 v1 open 1 [0+1 10+1]"]);
    s.ordered(1, 1, &[(1, 3)]);
    s.durable(1, 1, 3);
    s.durable(2, 1, 3);
    let reads = s.lines.iter().filter(|l| l.contains("<- read")).count();
    assert_eq!(reads, 2, "only the second has its blocks: {:?}", s.lines);
}

#[test]
fn w3_a_lost_answer_is_repeated_and_learned_in_the_new_view() {
    let mut s = Script::ready(None);
    interval(&mut s, 1, vec![write(0, 4096, 1), write(40_960, 4096, 1)]);
    let first = s.last_write.take().unwrap();
    s.lines.clear();
    s.step(Event::LinkDown(peer(1)));
    s.from(2, Message::View(news(0, 2, &[2, 3], 4)));
    s.attached_at(0, 2, 2, &[2, 3], 4, 5);
    let again = s.last_write.take().expect("it is repeated");
    assert_eq!(
        (first.number, first.extents, first.crcs, first.data),
        (again.number, again.extents, again.crcs, again.data)
    );
    s.ordered(2, 2, &[(1, 3)]);
    s.durable(2, 2, 5);
    s.lines.clear();
    s.durable(3, 2, 5);
    let placed = Placed { shard: shard(0), view: ViewNumber(2), sequence: Sequence(3) };
    assert!(s.lines.contains(&format!("done 1: {:?}", [placed])), "{:?}", s.lines);
}

#[test]
fn a_given_up_interval_keeps_all_of_its_blocks() {
    for mutant in [None, Some(Mutant::ForgetGivenUp)] {
        let mut s = Script::ready(mutant);
        interval(&mut s, 1, vec![write(0, 4096, 1), write(40_960, 4096, 1)]);
        s.lines.clear();
        s.wait(60_000);
        assert!(s.lines.iter().any(|l| l == "done 1: Retry"), "{:?}", s.lines);
        s.lines.clear();
        for (token, offset) in [(2, 0), (3, 40_960)] {
            s.write(token, offset, 4096, 2);
            let sent = s.lines.iter().any(|l| l.contains(&format!("[{}+1]", offset / 4096)));
            assert_eq!(sent, mutant.is_some(), "{:?}", s.lines);
        }
    }
}

#[test]
fn what_is_too_much_is_refused() {
    let mut s = Script::ready(None);
    let (kind, why) = refused(&mut s, vec![write(64 * MIB - 100, 101, 1)]);
    assert!(kind == ErrorKind::Invalid && why.contains("beyond the end"), "{why}");
    let (kind, why) = refused(&mut s, vec![write(1, INTERVAL_BYTES_MAX, 1)]);
    assert!(kind == ErrorKind::Invalid && why.contains("4 MiB"), "{why}");
    let many = |n: usize| (0..n as u64).map(|i| write(i * 8192, 4096, 1)).collect::<Vec<_>>();
    let (kind, why) = refused(&mut s, many(INTERVAL_RUNS_MAX + 1));
    assert!(kind == ErrorKind::Invalid && why.contains("1,024 runs"), "{why}");
    let same = (0..=INTERVAL_CHANGES_MAX).map(|_| write(0, 1, 1)).collect();
    let (kind, why) = refused(&mut s, same);
    assert!(kind == ErrorKind::Invalid && why.contains("4,096 changes"), "{why}");
    interval(&mut s, 1, many(INTERVAL_RUNS_MAX));
    assert_eq!(s.last_write.take().unwrap().extents.len(), INTERVAL_RUNS_MAX);
    // Data whose zero blocks, left out, would take more extents than there are.
    let mut s = Script::ready(None);
    let mut data = vec![0u8; INTERVAL_BYTES_MAX];
    (0..INTERVAL_BYTES_MAX).step_by(8192).for_each(|at| data[at] = 1);
    let far = Change::Trim { offset: 32 * MIB, len: 4096 };
    interval(&mut s, 1, vec![Change::Write { offset: 0, data: data.into() }, far]);
    let extents = s.last_write.take().unwrap().extents;
    assert!(extents.len() <= INTERVAL_RUNS_MAX);
    assert_eq!(extents.iter().map(|e| e.range.len).sum::<u32>(), 1025);
    // Over several shards there is less in each.
    let mut s = Script::new(2, None);
    let far = write(MIB, 4096, 1);
    let (kind, why) = refused(
        &mut s,
        vec![
            write(0, MIB as usize, 1),
            write(2 * MIB, MIB as usize, 1),
            far.clone(),
            write(4 * MIB, MIB as usize, 1),
            write(6 * MIB, MIB as usize, 1),
        ],
    );
    assert!(kind == ErrorKind::Invalid && why.contains("less 16 KiB"), "{why}");
    let mut scattered: Vec<Change> = (0..1021).map(|i| write(i / 128 * 2 * MIB + i % 128 * 8192, 4096, 1)).collect();
    scattered.push(far);
    let (kind, why) = refused(&mut s, scattered);
    assert!(kind == ErrorKind::Invalid && why.contains("1,020 runs"), "{why}");
}

#[test]
fn an_empty_interval_is_committed_at_once() {
    let mut s = Script::ready(None);
    let mut out = Vec::new();
    s.driver.step(s.now, Event::Client { token: 1, op: Op::Interval { changes: [].into() } }, &mut out);
    assert!(matches!(&out[..], [Action::Done { token: 1, result: Ok(Reply::Committed(placed)) }] if placed.is_empty()));
}

/// A driver of a volume with two shards, ready.
fn two_shards(mutant: Option<Mutant>) -> Script {
    let mut s = Script::new(2, mutant);
    (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
    for index in 0..2 {
        s.attached_at(index, 1, 1, &[1, 2, 3], 1, 2);
        durable(&mut s, index, 2);
    }
    assert!(s.driver.ready());
    s.lines.clear();
    s
}

/// A members have that shard's log up to this frame.
fn durable(s: &mut Script, index: u32, sequence: u64) {
    for n in 1..=2 {
        let (view, sequence) = (ViewNumber(1), Sequence(sequence));
        s.from(n, Message::Durable(vec![DurableItem { shard: shard(index), view, sequence, room: None }]));
    }
}

fn ordered(s: &mut Script, index: u32, number: u64, sequence: u64) {
    let items = vec![(RequestNumber(number), Sequence(sequence))];
    s.from(1, Message::Ordered { shard: shard(index), view: ViewNumber(1), items });
}

fn refuse(s: &mut Script, index: u32, number: u64, reason: Refusal) {
    let (shard, request) = (shard(index), Request::Write(RequestNumber(number)));
    let refused = Refused { shard, request, reason, view: ViewNumber(1), generation: GENERATION };
    s.from(1, Message::Refused(refused));
}

fn over_both(s: &mut Script, token: u64) {
    interval(s, token, vec![write(MIB, 4096, 2), write(0, 4096, 1)]);
}

/// I1: all is prepared, then the first shard decides, then the client has its answer, and the other shard hears of it.
#[test]
fn shards_prepare_the_first_one_decides() {
    for mutant in [None, Some(Mutant::DecideEarly)] {
        let mut s = two_shards(mutant);
        over_both(&mut s, 1);
        s.sees(&["n1 <- prepare s0 i1/1 #1 v1 open 1 [0+1]", "n1 <- prepare s1 i1/1 #1 v1 open 1 [0+1]"]);
        let part = s.last_write.take().unwrap().interval.unwrap();
        assert_eq!((part.id.decider, &part.participants[..]), (shard(0), &[shard(0), shard(1)][..]));
        ordered(&mut s, 0, 1, 3);
        ordered(&mut s, 1, 1, 3);
        s.sees(&[]);
        durable(&mut s, 0, 3);
        if mutant.is_some() {
            s.sees(&["n1 <- commit s0 i1/1 #2 v1 open 2 []"]);
            continue;
        }
        s.sees(&[]);
        // A read waits for it all the time (R3).
        s.read(7, MIB, 4096);
        durable(&mut s, 1, 3);
        s.sees(&["n1 <- commit s0 i1/1 #2 v1 open 2 []"]);
        ordered(&mut s, 0, 2, 4);
        s.sees(&[]);
        durable(&mut s, 0, 4);
        let placed =
            |index, sequence| Placed { shard: shard(index), view: ViewNumber(1), sequence: Sequence(sequence) };
        let done = format!("done 1: {:?}", [placed(0, 4), placed(1, 3)]);
        s.sees(&["n1 <- commit s1 i1/1 #2 v1 open 2 []", &done]);
        ordered(&mut s, 1, 2, 4);
        s.sees(&[]);
        durable(&mut s, 1, 4);
        s.sees(&["n1 <- read s1 r0 v1 floor 4 [0+1]"]);
        s.answer(0, &[Some(2)]);
        // The next one says that it is over.
        over_both(&mut s, 2);
        assert!(s.lines.iter().any(|l| l.starts_with("n1 <- prepare s0 i2/2 #3")), "{:?}", s.lines);
    }
}

/// An attempt that a shard refuses is undone in the others, and tried again while its blocks are kept.
#[test]
fn a_refused_attempt_is_undone_and_tried_again() {
    let mut s = two_shards(None);
    over_both(&mut s, 1);
    s.lines.clear();
    ordered(&mut s, 0, 1, 3);
    refuse(&mut s, 1, 1, Refusal::Aborted);
    s.sees(&[]);
    // What may still be prepared is awaited first.
    durable(&mut s, 0, 3);
    s.sees(&["n1 <- abort s0 i1/1 #2 v1 open 2 []"]);
    ordered(&mut s, 0, 2, 4);
    durable(&mut s, 0, 4);
    s.sees(&[]);
    s.write(2, 0, 4096, 9);
    s.sees(&[]);
    s.wait(10);
    s.sees(&["n1 <- prepare s0 i2/2 #3 v1 open 3 [0+1]", "n1 <- prepare s1 i2/2 #2 v1 open 2 [0+1]"]);
    // This time the decision is refused: heads have given the driver up.
    for index in 0..2 {
        ordered(&mut s, index, 3 - u64::from(index), 5);
        durable(&mut s, index, 5);
    }
    s.sees(&["n1 <- commit s0 i2/2 #4 v1 open 4 []"]);
    refuse(&mut s, 0, 4, Refusal::Aborted);
    s.sees(&["n1 <- abort s1 i2/2 #3 v1 open 3 []"]);
    // No other one can be tried in a shard that is full.
    ordered(&mut s, 1, 3, 6);
    durable(&mut s, 1, 6);
    s.wait(20);
    assert_eq!(s.lines.len(), 2);
    s.lines.clear();
    refuse(&mut s, 0, 5, Refusal::NoSpace);
    refuse(&mut s, 1, 4, Refusal::NoSpace);
    assert!(s.lines.contains(&"done 1: NoSpace".into()), "{:?}", s.lines);
    assert!(s.lines.iter().any(|l| l.starts_with("n1 <- write s0 #6")), "its blocks are free: {:?}", s.lines);
}

/// At the limit one that was not asked to be decided is aborted; of one that was it is not known.
#[test]
fn what_takes_too_long_is_aborted_if_it_can_be() {
    let mut s = two_shards(None);
    over_both(&mut s, 1);
    ordered(&mut s, 0, 1, 3);
    s.wait(60_000);
    assert!(s.lines.contains(&"done 1: Busy".into()), "{:?}", s.lines);
    s.lines.clear();
    durable(&mut s, 0, 3);
    assert!(s.lines.iter().any(|l| l.starts_with("n1 <- abort s0 i1/1 #2")), "{:?}", s.lines);

    let mut s = two_shards(None);
    over_both(&mut s, 1);
    for index in 0..2 {
        ordered(&mut s, index, 1, 3);
        durable(&mut s, index, 3);
    }
    s.wait(60_000);
    assert!(s.lines.contains(&"done 1: Retry".into()), "{:?}", s.lines);
    s.lines.clear();
    s.read(2, MIB, 4096);
    s.sees(&[]);
    ordered(&mut s, 0, 2, 4);
    durable(&mut s, 0, 4);
    assert!(s.lines.iter().any(|l| l.starts_with("n1 <- commit s1 i1/1 #2")), "it goes on: {:?}", s.lines);
}
