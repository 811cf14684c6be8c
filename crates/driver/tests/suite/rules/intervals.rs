//! Consistency intervals: one update for several changes, its blocks taken at once, its place in the answer.

use super::script::{MIB, Script, news, peer, shard};
use bytes::Bytes;
use freebs_driver::{
    Action, Change, Event, INTERVAL_BYTES_MAX, INTERVAL_CHANGES_MAX, INTERVAL_RUNS_MAX, Mutant, Op, Placed, Reply,
};
use freebs_format::wire::Message;
use freebs_types::{ErrorKind, Sequence, ViewNumber};

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
    let mut s = Script::new(2, None);
    let (kind, why) = refused(&mut s, vec![write(0, 4096, 1), write(MIB, 4096, 1)]);
    assert!(kind == ErrorKind::Invalid && why.contains("several shards"), "{why}");
}

#[test]
fn an_empty_interval_is_committed_at_once() {
    let mut s = Script::ready(None);
    let mut out = Vec::new();
    s.driver.step(s.now, Event::Client { token: 1, op: Op::Interval { changes: [].into() } }, &mut out);
    assert!(matches!(&out[..], [Action::Done { token: 1, result: Ok(Reply::Committed(placed)) }] if placed.is_empty()));
}
