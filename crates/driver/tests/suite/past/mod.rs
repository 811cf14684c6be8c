//! The reader of the past: scripts of its rules, and worlds of members with faults.

mod script;
mod worlds;

use self::script::{MIB, Script, cut, peer, pin};
use freebs_driver::{Event, Op, ShardSpec, VolumeSpec};
use freebs_format::Pin;
use freebs_format::wire::Refusal;
use freebs_types::{Error, ErrorKind, NodeId, Peer, ViewNumber, VolumeId};
use std::collections::BTreeMap;

#[test]
fn it_asks_for_the_cut_and_nothing_else() {
    let mut s = Script::new(1);
    s.sees(&["connect n1", "connect n2", "connect n3"]);
    s.read(1, 0, 4096);
    s.sees(&[]);
    s.step(Event::LinkUp(peer(2)));
    s.sees(&["n2 <- read r0 @50 floor 60 [0+1]"]);
    s.answer(0, &[Some(7)]);
    s.sees(&["done 1: 4096x7"]);
    // Bytes need not be aligned.
    s.read(2, 4000, 200);
    s.sees(&["n2 <- read r1 @50 floor 60 [0+2]"]);
    s.answer(1, &[Some(1), None]);
    s.sees(&["done 2: 96x1 104x0"]);
}

#[test]
fn work_is_spread_over_all_members() {
    let mut s = Script::ready(1);
    (0..6).for_each(|n| s.read(n, n * 4096, 4096));
    let mut asked: Vec<u64> = s.reads.iter().map(|(_, p, _)| p.node.0).collect();
    asked.sort_unstable();
    assert_eq!(asked, [1, 1, 2, 2, 3, 3]);
}

#[test]
fn the_local_member_is_preferred() {
    let mut s = Script::with(1, Some(NodeId(3)));
    (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
    (0..6).for_each(|n| s.read(n, n * 4096, 4096));
    assert!(s.reads.iter().all(|(_, p, _)| p.node == NodeId(3)));
}

#[test]
fn the_next_member_is_asked_on_refusal_damage_and_silence() {
    for trouble in 0..4 {
        let mut s = Script::ready(1);
        s.read(1, 0, 4096);
        let first = s.reads[0].1;
        match trouble {
            0 => s.refuse(0, Refusal::NotReady),
            1 => s.refuse(0, Refusal::NotFound),
            2 => s.answer_with(0, &[Some(9)], 1),
            _ => s.wait(250),
        }
        assert_eq!(s.reads.len(), 2, "{trouble}");
        assert_ne!(s.reads[1].1, first, "{trouble}");
        s.lines.clear();
        s.answer(1, &[Some(9)]);
        s.sees(&["done 1: 4096x9"]);
        // The first one's answer, if there is one, means nothing any more.
        s.answer(0, &[Some(8)]);
        s.sees(&[]);
        assert_eq!(s.past.failovers(), 1);
    }
}

#[test]
fn what_no_member_keeps_is_gone_and_said_at_once() {
    let mut s = Script::ready(1);
    s.read(1, 0, 4096);
    (0..3).for_each(|n| s.refuse(n, Refusal::NotFound));
    assert_eq!(s.lines.pop().as_deref(), Some("done 1: NotFound"));
    // One that has it damaged had it.
    s.read(2, 0, 4096);
    s.refuse(3, Refusal::NotFound);
    s.refuse(4, Refusal::Corrupt);
    s.answer_with(5, &[Some(1)], 1);
    assert_eq!(s.lines.pop().as_deref(), Some("done 2: Corrupt"));
}

#[test]
fn a_member_that_may_have_it_later_is_asked_again() {
    let mut s = Script::ready(1);
    s.read(1, 0, 4096);
    s.refuse(0, Refusal::NotFound);
    s.refuse(1, Refusal::NotFound);
    s.refuse(2, Refusal::NotReady);
    assert_eq!(s.reads.len(), 3);
    s.wait(1000);
    assert_eq!(s.reads.len(), 4);
    assert_eq!(s.reads[3].1, s.reads[2].1, "those without it are not asked again");
    s.answer(3, &[Some(2)]);
    assert_eq!(s.lines.pop().as_deref(), Some("done 1: 4096x2"));
}

#[test]
fn it_gives_up_at_the_limit_and_says_why() {
    let mut s = Script::ready(1);
    s.read(1, 0, 4096);
    s.wait(10_000);
    s.lines.clear();
    s.wait(50_000);
    assert!(s.lines.contains(&"done 1: Retry".into()), "{:?}", s.lines);
    // Links go away: nobody can be asked.
    let mut s = Script::ready(1);
    (1..=3).for_each(|n| s.step(Event::LinkDown(peer(n))));
    s.read(1, 0, 4096);
    assert!(s.reads.is_empty());
    s.wait(60_000);
    assert!(s.lines.contains(&"done 1: Retry".into()));
    // Whoever answered had it damaged.
    let mut s = Script::ready(1);
    s.read(1, 0, 4096);
    s.refuse(0, Refusal::Corrupt);
    s.wait(60_000);
    assert!(s.lines.contains(&"done 1: Corrupt".into()));
    assert_eq!(s.past.in_flight(), 0);
}

#[test]
fn status_and_changes_come_as_members_say_them() {
    let mut s = Script::ready(1);
    s.step(Event::Client { token: 1, op: Op::Status { offset: 4096, len: 12288 } });
    s.lines.clear();
    s.status(0, &[('d', 1, false), ('z', 1, false), ('t', 1, false)]);
    s.sees(&["done 1: 4096d 4096z 4096t"]);
    let since: std::sync::Arc<[Pin]> = vec![pin(40)].into();
    s.step(Event::Client { token: 2, op: Op::Changes { offset: 4096, len: 12288, since } });
    assert!(s.lines[0].ends_with("<- changes r1 @50 since 40 floor 60 [1+3]"), "{:?}", s.lines);
    s.lines.clear();
    s.status(1, &[('d', 1, true), ('d', 1, false), ('t', 1, true)]);
    s.sees(&["done 2: 4096d* 4096d 4096t*"]);
    for since in [vec![pin(51)], vec![pin(0)], vec![], vec![pin(1); 2]] {
        let op = Op::Changes { offset: 0, len: 4096, since: since.into() };
        s.step(Event::Client { token: 3, op });
        s.sees(&["done 3: Invalid"]);
    }
}

#[test]
fn stripes_go_to_their_shards_with_their_own_cuts() {
    let mut s = Script::ready(2);
    s.read(1, MIB - 4096, 8192);
    let lines: Vec<&str> = s.lines.iter().filter_map(|l| l.split_once("<- ").map(|l| l.1)).collect();
    assert_eq!(lines, ["read s0 r0 @50 floor 60 [255+1]", "read s1 r1 @51 floor 61 [0+1]"]);
    s.lines.clear();
    s.answer(1, &[Some(2)]);
    s.answer(0, &[Some(1)]);
    s.sees(&["done 1: 4096x1 4096x2"]);
}

#[test]
fn nothing_is_written() {
    let mut s = Script::ready(1);
    let data = vec![1; 4096].into();
    s.step(Event::Client { token: 1, op: Op::Write { offset: 0, data, fua: false } });
    s.step(Event::Client { token: 2, op: Op::Trim { offset: 0, len: 4096 } });
    s.step(Event::Client { token: 3, op: Op::Zero { offset: 0, len: 4096, may_trim: true } });
    s.step(Event::Client { token: 4, op: Op::Flush });
    s.step(Event::Client { token: 5, op: Op::Read { offset: 64 * MIB, len: 1 } });
    s.sees(&["done 1: Invalid", "done 2: Invalid", "done 3: Invalid", "done 4", "done 5: Invalid"]);
}

#[test]
fn a_snapshot_that_is_gone_ends_with_its_reason() {
    let mut s = Script::ready(1);
    s.read(1, 0, 4096);
    s.lines.clear();
    let mut out = Vec::new();
    s.past.end(Error::not_found("the snapshot was deleted"), &mut out);
    s.note(out);
    s.sees(&["done 1: NotFound", "closed"]);
    s.answer(0, &[Some(1)]);
    s.read(2, 0, 4096);
    s.sees(&["done 2: NotFound"]);
    assert_eq!(s.past.next_deadline(), None);
    s.step(Event::Close);
    s.sees(&[]);
}

#[test]
fn new_members_are_asked_and_old_ones_are_not() {
    let mut s = Script::ready(1);
    s.read(1, 0, 4096);
    (0..2).for_each(|n| s.refuse(n, Refusal::NotFound));
    s.refuse(2, Refusal::NotReady);
    s.lines.clear();
    let members = vec![NodeId(3), NodeId(4)];
    let shards = vec![ShardSpec { id: script::shard(0), view: ViewNumber(9), members }];
    // The volume has grown since, which is nothing to the snapshot.
    s.step(Event::Volume(VolumeSpec { id: VolumeId(1), size: 128 * MIB, stripe: MIB, shards }));
    s.sees(&["connect n4"]);
    s.step(Event::LinkUp(peer(4)));
    s.sees(&["n4 <- read r3 @50 floor 60 [0+1]"]);
    s.answer(3, &[Some(5)]);
    s.sees(&["done 1: 4096x5"]);
    s.read(2, 64 * MIB, 4096);
    s.sees(&["done 2: Invalid"]);
    // Another number of workers is another link.
    s.step(Event::Workers(BTreeMap::from([(NodeId(4), 2)])));
    s.sees(&["connect n4/1"]);
    s.step(Event::LinkUp(Peer { node: NodeId(4), worker: 1 }));
}

#[test]
fn memory_is_bounded_by_the_window() {
    let mut s = Script::ready(1);
    s.read(1, 0, 64 * MIB);
    let asked = |s: &Script| s.reads.len() as u64 * MIB;
    assert_eq!(asked(&s), freebs_driver::past::WINDOW_BYTES as u64);
    s.read(2, 0, 4096);
    let before = asked(&s);
    s.answer(0, &[None; 256]);
    assert_eq!(asked(&s), before + MIB, "one has ended, one more goes");
    let mut n = 1;
    while n < s.reads.len() {
        let blocks = if n == 64 { 1 } else { 256 };
        s.answer(n, &vec![None; blocks]);
        n += 1;
    }
    assert_eq!((s.past.in_flight(), s.reads.len()), (0, 65));
}

#[test]
fn numbers_of_questions_tell_who_asked() {
    let mut s = Script::ready(1);
    s.read(1, 0, 4096);
    assert_eq!(freebs_driver::past::Past::reader_of(s.reads[0].0), Some(script::NUMBER));
    assert_eq!(freebs_driver::past::Past::reader_of(5 << 48 | 77), None);
}

#[test]
fn a_snapshot_without_all_cuts_is_refused() {
    for cuts in [vec![cut(0)], vec![], vec![cut(0), freebs_driver::past::Cut::default()]] {
        let mut s = Script::of(2, cuts, None);
        s.lines.clear();
        s.read(1, 0, 4096);
        s.sees(&[&format!("done 1: {:?}", ErrorKind::Invalid)]);
    }
}
