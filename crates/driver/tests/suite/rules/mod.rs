//! One script per rule: events in, and what the driver does about them as lines that read like a log.

mod intervals;
mod leases;
mod script;

use self::script::{GENERATION, MIB, Script, news, peer, shard};
use freebs_driver::{Event, Mutant, Op, ShardSpec, StatusRun, VolumeSpec};
use freebs_format::wire::{DurableItem, Message, Piece as WirePiece, ReadReply, Refusal, Refused, Request};
use freebs_format::{ExtentKind, UpdateKind};
use freebs_types::{Generation, NodeId, Peer, RequestNumber, Sequence, ViewNumber, VolumeId};

#[test]
fn starts_by_attaching_and_r2_holds_reads_back() {
    let mut s = Script::new(1, None);
    s.sees(&["connect n1", "connect n2", "connect n3"]);
    s.read(1, 0, 4096);
    s.write(2, 8192, 4096, 7);
    s.step(Event::LinkDown(peer(3)));
    s.step(Event::LinkUp(peer(1)));
    s.step(Event::LinkUp(peer(2)));
    s.sees(&["n1 <- attach v1", "n2 <- follow"]);
    // Writes may go as soon as the head has taken the attachment; the barrier is for reads.
    s.attached(1, 1, 1, 5);
    s.sees(&["n1 <- write #1 v1 open 1 [2+1]"]);
    s.durable(1, 1, 5);
    s.durable(2, 1, 4);
    s.sees(&[]);
    s.durable(2, 1, 5);
    s.sees(&["n2 <- read r0 v1 floor 5 [0+1]", "ready"]);
    s.answer(0, &[None]);
    s.sees(&["done 1: 4096x0"]);
}

#[test]
fn w4_a_write_is_done_when_a_members_have_it_in_one_view() {
    let mut s = Script::ready(None);
    s.write(1, 0, 4096, 1);
    s.write(2, 4096, 4096, 2);
    s.sees(&["n1 <- write #1 v1 open 1 [0+1]", "n1 <- write #2 v1 open 1 [1+1]"]);
    // Members may answer before the head has said where the request lies.
    s.durable(2, 1, 3);
    s.durable(3, 1, 3);
    s.sees(&[]);
    s.ordered(1, 1, &[(1, 3), (2, 4)]);
    s.sees(&["done 1"]);
    // A stale view, a view that is not known, a repeat, a lower number: none of them counts.
    s.durable(2, 0, 9);
    s.durable(2, 1, 2);
    s.ordered(1, 1, &[(1, 9)]);
    s.durable(1, 1, 4);
    s.sees(&[]);
    s.durable(3, 1, 4);
    s.sees(&["done 2"]);
}

#[test]
fn w4_sequences_of_two_views_are_never_put_together() {
    for mutant in [None, Some(Mutant::CountAcrossViews)] {
        let mut s = Script::ready(mutant);
        s.write(1, 0, 4096, 1);
        s.ordered(1, 1, &[(1, 3)]);
        s.durable(1, 1, 3);
        s.from(2, Message::View(news(0, 2, &[2, 1, 3], 3)));
        s.attached_at(0, 2, 2, &[2, 1, 3], 3, 4);
        s.lines.clear();
        // Node 2 has the view frame at 3, and that is not the write that node 1 had at 3.
        s.durable(2, 2, 3);
        let wrong = s.lines.iter().any(|l| l == "done 1");
        assert_eq!(wrong, mutant.is_some());
    }
}

#[test]
fn a_new_view_gets_every_open_write_again_in_order() {
    let mut s = Script::ready(None);
    s.write(1, 0, 4096, 1);
    s.write(2, 8192, 4096, 2);
    s.write(3, 16384, 4096, 3);
    s.ordered(1, 1, &[(1, 3), (2, 4)]);
    s.durable(1, 1, 3);
    s.durable(3, 1, 3);
    s.lines.clear();
    s.step(Event::LinkDown(peer(1)));
    s.write(4, 0, 4096, 4);
    s.sees(&[]);
    s.from(2, Message::View(news(0, 2, &[2, 3], 4)));
    s.sees(&["n2 <- attach v2", "n3 <- follow"]);
    s.attached_at(0, 2, 2, &[2, 3], 4, 5);
    s.sees(&["n2 <- write #2 v2 open 2 [2+1]", "n2 <- write #3 v2 open 2 [4+1]", "n2 <- write #4 v2 open 2 [0+1]"]);
    // W3: the old view's number 2 was in the log already; its place there is what counts now.
    s.ordered(2, 2, &[(2, 4), (3, 6), (4, 7)]);
    s.durable(2, 2, 7);
    s.sees(&[]);
    s.durable(3, 2, 6);
    s.sees(&["done 2", "done 3"]);
    // An answer of the old head counts no more.
    s.ordered(1, 1, &[(4, 1)]);
    s.durable(3, 2, 7);
    s.sees(&["done 4"]);
}

#[test]
fn w3_the_same_number_after_a_broken_link() {
    for mutant in [None, Some(Mutant::NewNumberOnRepeat)] {
        let mut s = Script::ready(mutant);
        s.write(1, 0, 4096, 1);
        s.sees(&["n1 <- write #1 v1 open 1 [0+1]"]);
        let first = s.last_write.take().unwrap();
        s.step(Event::LinkDown(peer(1)));
        s.wait(10);
        s.step(Event::LinkUp(peer(1)));
        s.sees(&["connect n1", "n1 <- attach v1"]);
        s.attached(1, 1, 1, 2);
        if mutant.is_some() {
            s.sees(&["n1 <- write #2 v1 open 2 [0+1]"]);
            continue;
        }
        s.sees(&["n1 <- write #1 v1 open 1 [0+1]"]);
        let again = s.last_write.take().unwrap();
        assert_eq!((first.crcs, first.data, first.extents), (again.crcs, again.data, again.extents));
        s.ordered(1, 1, &[(1, 3)]);
        s.durable(1, 1, 3);
        s.durable(2, 1, 3);
        s.sees(&["done 1"]);
        assert_eq!(s.driver.info().counters.retries, 1);
    }
}

#[test]
fn refusals_of_a_head_that_is_not_ready_are_waited_out() {
    let mut s = Script::ready(None);
    s.write(1, 0, 4096, 1);
    s.write(2, 4096, 4096, 1);
    s.lines.clear();
    s.refuse(1, Request::Write(RequestNumber(1)), Refusal::NotReady, 1);
    s.refuse(1, Request::Write(RequestNumber(2)), Refusal::NotReady, 1);
    s.write(3, 8192, 4096, 1);
    s.wait(9);
    s.sees(&[]);
    s.wait(1);
    s.sees(&["n1 <- attach v1"]);
    s.refuse(1, Request::Attach, Refusal::NotReady, 1);
    s.wait(19);
    s.sees(&[]);
    s.wait(1);
    s.sees(&["n1 <- attach v1"]);
    // The head has moved on: the next question names its view.
    s.refuse(1, Request::Attach, Refusal::WrongView, 2);
    s.wait(40);
    s.sees(&["n1 <- follow", "n1 <- attach v2"]);
    s.attached(1, 2, 3, 4);
    s.sees(&[
        "n2 <- follow",
        "n3 <- follow",
        "n1 <- write #1 v2 open 1 [0+1]",
        "n1 <- write #2 v2 open 1 [1+1]",
        "n1 <- write #3 v2 open 1 [2+1]",
    ]);
}

/// The head refused a write just before the barrier was passed. Passing it stopped the timer that was to ask the
/// head again, and writes stood still for ever.
#[test]
fn a_refusal_before_the_barrier_is_waited_out_behind_it() {
    let mut s = Script::new(1, None);
    (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
    s.write(1, 0, 4096, 1);
    s.attached(1, 1, 1, 2);
    s.refuse(1, Request::Write(RequestNumber(1)), Refusal::NotReady, 1);
    (1..=2).for_each(|n| s.durable(n, 1, 2));
    assert!(s.driver.ready());
    s.lines.clear();
    s.wait(10);
    s.sees(&["n1 <- attach v1"]);
    s.attached(1, 1, 1, 2);
    s.sees(&["n1 <- write #1 v1 open 1 [0+1]"]);
}

#[test]
fn no_space_and_invalid_fail_one_request_and_fencing_fails_all() {
    let mut s = Script::ready(None);
    (1..=4).for_each(|t| s.write(t, t * 4096, 4096, 1));
    s.lines.clear();
    s.refuse(1, Request::Write(RequestNumber(1)), Refusal::NoSpace, 1);
    s.refuse(1, Request::Write(RequestNumber(2)), Refusal::Invalid, 1);
    s.sees(&["done 1: NoSpace", "done 2: Invalid"]);
    s.refuse(1, Request::Write(RequestNumber(3)), Refusal::Fenced, 1);
    s.sees(&["done 3: Fenced", "done 4: Fenced", "fenced"]);
    s.read(5, 0, 4096);
    s.step(Event::Client { token: 6, op: Op::Flush });
    s.attached(1, 1, 1, 2);
    s.sees(&["done 5: Fenced", "done 6: Fenced"]);
    s.step(Event::Close);
    s.step(Event::Close);
    s.sees(&["closed"]);
    assert_eq!(s.driver.next_deadline(), None);
}

#[test]
fn a_refusal_that_was_meant_for_an_earlier_driver_fences_nobody() {
    let mut s = Script::ready(None);
    let refused = Refused {
        shard: shard(0),
        request: Request::Attach,
        reason: Refusal::Fenced,
        view: ViewNumber(1),
        generation: GENERATION,
    };
    s.from(2, Message::Refused(refused));
    s.sees(&[]);
    s.from(1, Message::Attached { news: news(0, 1, &[1, 2, 3], 1), generation: Generation(9), floor: Sequence(9) });
    s.sees(&["fenced"]);
}

#[test]
fn r1_reads_go_only_where_all_completed_writes_are() {
    for mutant in [None, Some(Mutant::NoReadFloor)] {
        let mut s = Script::ready(mutant);
        s.read(1, 4096, 4096);
        let floor = if mutant.is_some() { 0 } else { 2 };
        s.sees(&[&format!("n2 <- read r0 v1 floor {floor} [1+1]")]);
        s.answer(0, &[Some(9)]);
        s.write(2, 0, 4096, 1);
        s.ordered(1, 1, &[(1, 3)]);
        s.durable(1, 1, 3);
        s.durable(3, 1, 3);
        s.lines.clear();
        s.read(3, 0, 4096);
        // Node 2, the usual one, does not have the write.
        let wanted = if mutant.is_some() { "n2 <- read r1 v1 floor 0 [0+1]" } else { "n3 <- read r1 v1 floor 3 [0+1]" };
        s.sees(&[wanted]);
    }
}

#[test]
fn reads_of_a_new_view_wait_for_a_member_that_has_the_view_frame() {
    let mut s = Script::ready(None);
    s.step(Event::LinkDown(peer(1)));
    s.from(2, Message::View(news(0, 2, &[2, 3], 7)));
    s.lines.clear();
    s.read(1, 0, 4096);
    s.durable(2, 2, 6);
    s.sees(&[]);
    s.durable(3, 2, 7);
    s.sees(&["n3 <- read r0 v2 floor 7 [0+1]"]);
}

#[test]
fn r3_a_read_waits_for_the_write_and_a_later_write_for_the_read() {
    let mut s = Script::ready(None);
    s.write(1, 0, 8192, 1);
    s.read(2, 4096, 8192);
    s.write(3, 8192, 4096, 2);
    s.read(4, 65536, 4096);
    s.sees(&["n1 <- write #1 v1 open 1 [0+2]", "n2 <- read r0 v1 floor 2 [16+1]"]);
    s.ordered(1, 1, &[(1, 3)]);
    s.durable(2, 1, 3);
    s.durable(3, 1, 3);
    s.sees(&["done 1", "n2 <- read r1 v1 floor 3 [1+2]"]);
    s.answer(1, &[Some(1), None]);
    s.sees(&["done 2: 4096x1 4096x0", "n1 <- write #2 v1 open 2 [2+1]"]);
}

#[test]
fn r3_a_write_that_was_given_up_keeps_its_blocks_until_its_fate_is_known() {
    for mutant in [None, Some(Mutant::ForgetGivenUp)] {
        let mut s = Script::ready(mutant);
        s.write(1, 0, 4096, 1);
        s.step(Event::LinkDown(peer(1)));
        s.wait(60_000);
        assert!(s.lines.contains(&"done 1: Retry".to_string()));
        s.lines.clear();
        s.read(2, 0, 4096);
        if mutant.is_some() {
            s.sees(&["n2 <- read r0 v1 floor 2 [0+1]"]);
            continue;
        }
        s.write(3, 0, 4096, 3);
        s.write(4, 4096, 4096, 4);
        s.sees(&[]);
        s.step(Event::LinkUp(peer(1)));
        s.attached(1, 1, 1, 2);
        // Its number stays open, so a copy of it is still known as such.
        s.sees(&["n1 <- attach v1", "n1 <- write #1 v1 open 1 [0+1]", "n1 <- write #2 v1 open 1 [1+1]"]);
        s.ordered(1, 1, &[(1, 3), (2, 4)]);
        s.durable(1, 1, 4);
        s.durable(2, 1, 4);
        s.sees(&["done 4", "n2 <- read r0 v1 floor 4 [0+1]"]);
        s.answer(0, &[Some(1)]);
        s.sees(&["done 2: 4096x1", "n1 <- write #3 v1 open 3 [0+1]"]);
        assert_eq!(s.driver.info().counters.given_up, 1);
    }
}

#[test]
fn what_was_never_sent_leaves_nothing_behind_when_it_is_out_of_time() {
    let mut s = Script::new(1, None);
    s.write(1, 0, 4096, 1);
    s.write(2, 512, 512, 1);
    s.read(3, 0, 4096);
    assert_eq!(s.driver.in_flight(), 3);
    s.wait(60_000);
    s.sees(&["connect n1", "connect n2", "connect n3", "done 1: Retry", "done 2: Retry", "done 3: Retry"]);
    let info = s.driver.info();
    assert_eq!((info.requests, info.bytes, info.shards[0].writes, info.counters.given_up), (0, 0, 0, 0));
}

#[test]
fn sub_block_writes_read_change_and_write_one_after_the_other() {
    let mut s = Script::ready(None);
    s.write(1, 512, 512, 1);
    s.write(2, 1024, 512, 2);
    s.sees(&["n2 <- read r0 v1 floor 2 [0+1]"]);
    s.answer(0, &[Some(9)]);
    s.sees(&["n1 <- write #1 v1 open 1 [0+1]"]);
    let block = s.last_write.take().unwrap().data.concat();
    assert!(block[..512].iter().all(|b| *b == 9) && block[512..1024].iter().all(|b| *b == 1));
    assert!(block[1024..].iter().all(|b| *b == 9));
    s.ordered(1, 1, &[(1, 3)]);
    s.durable(1, 1, 3);
    s.durable(3, 1, 3);
    s.sees(&["done 1", "n3 <- read r1 v1 floor 3 [0+1]"]);
}

#[test]
fn edges_and_middle_of_one_request_are_one_update() {
    let mut s = Script::ready(None);
    s.write(1, 3584, 512 + 8192 + 512, 5);
    s.sees(&["n2 <- read r0 v1 floor 2 [0+1]", "n2 <- read r1 v1 floor 2 [3+1]"]);
    s.answer(1, &[None]);
    s.answer(0, &[Some(8)]);
    s.sees(&["n1 <- write #1 v1 open 1 [0+4]"]);
    let bytes = s.last_write.take().unwrap().data.concat();
    assert!(bytes[..3584].iter().all(|b| *b == 8) && bytes[3584..12800].iter().all(|b| *b == 5));
    assert!(bytes[12800..].iter().all(|b| *b == 0));
}

#[test]
fn trims_and_zeroes() {
    let mut s = Script::ready(None);
    s.step(Event::Client { token: 1, op: Op::Trim { offset: 0, len: 64 * MIB } });
    s.step(Event::Client { token: 2, op: Op::Zero { offset: 0, len: 8192, may_trim: false } });
    s.step(Event::Client { token: 3, op: Op::Zero { offset: 65536, len: 8192, may_trim: true } });
    s.step(Event::Client { token: 4, op: Op::Write { offset: 131_072, data: vec![0; 8192].into(), fua: true } });
    s.sees(&[
        "n1 <- write #1 v1 open 1 [t0+16384]",
        "n1 <- write #2 v1 open 1 [z0+2]",
        "n1 <- write #3 v1 open 1 [t16+2]",
        "n1 <- write #4 v1 open 1 [z32+2]",
    ]);
    assert_eq!(s.last_write.as_ref().unwrap().kind, UpdateKind::Write);
    s.ordered(1, 1, &[(1, 3), (2, 4), (3, 5), (4, 6)]);
    s.durable(1, 1, 9);
    s.durable(2, 1, 9);
    s.lines.clear();
    s.step(Event::Client { token: 5, op: Op::Trim { offset: 2048, len: 8192 } });
    s.answer(0, &[Some(1)]);
    s.answer(1, &[Some(2)]);
    s.sees(&[
        "n2 <- read r0 v1 floor 6 [0+1]",
        "n2 <- read r1 v1 floor 6 [2+1]",
        "n1 <- write #5 v1 open 5 [0+1 t1+1 2+1]",
    ]);
}

#[test]
fn a_bad_block_comes_from_the_next_member() {
    for mutant in [None, Some(Mutant::TrustBytes)] {
        let mut s = Script::ready(mutant);
        s.read(1, 0, 4096);
        s.answer_with(0, &[Some(1)], 1);
        if mutant.is_some() {
            s.sees(&["n2 <- read r0 v1 floor 2 [0+1]", "done 1: 4096x1"]);
            continue;
        }
        s.sees(&["n2 <- read r0 v1 floor 2 [0+1]", "n3 <- read r1 v1 floor 2 [0+1]"]);
        // A wrong shape is as bad as a wrong byte.
        s.answer(1, &[Some(1), Some(1)]);
        s.sees(&["n1 <- read r2 v1 floor 2 [0+1]"]);
        s.answer(2, &[Some(4)]);
        s.sees(&["done 1: 4096x4"]);
        s.read(2, 0, 4096);
        (3..6).for_each(|n| s.answer_with(n, &[Some(1)], 7));
        assert_eq!(s.lines.last().unwrap(), "done 2: Corrupt");
        assert_eq!(s.driver.info().counters.crc_errors, 5);
    }
}

#[test]
fn refused_and_silent_members_are_passed_over() {
    let mut s = Script::ready(None);
    s.read(1, 0, 4096);
    let id = s.reads[0].0;
    s.refuse(2, Request::Read(id), Refusal::NotReady, 1);
    s.sees(&["n2 <- read r0 v1 floor 2 [0+1]", "n3 <- read r1 v1 floor 2 [0+1]"]);
    s.wait(199);
    s.sees(&[]);
    s.wait(1);
    s.sees(&["n1 <- read r2 v1 floor 2 [0+1]"]);
    // The first good answer counts, also if it is the late one; the other means nothing then.
    s.answer(1, &[Some(3)]);
    s.sees(&["done 1: 4096x3"]);
    s.answer(2, &[Some(4)]);
    s.sees(&[]);
    // The link breaks: at once elsewhere.
    s.read(2, 0, 4096);
    s.step(Event::LinkDown(peer(2)));
    s.sees(&["n2 <- read r3 v1 floor 2 [0+1]", "n1 <- read r4 v1 floor 2 [0+1]"]);
    // Everybody refuses, at last the one that was silent: again after a back-off.
    let id = s.reads[4].0;
    s.refuse(1, Request::Read(id), Refusal::NotReady, 1);
    let id = s.reads[5].0;
    s.refuse(3, Request::Read(id), Refusal::NotReady, 1);
    s.sees(&["n3 <- read r5 v1 floor 2 [0+1]"]);
    s.wait(10);
    assert!(s.lines.iter().any(|l| l.contains("read r6")), "{:?}", s.lines);
}

/// A frozen member that reads preferred was asked first by every read, and every read waited 200 ms for it, as long
/// as it was frozen: reads were some 400 times slower.
#[test]
fn a_frozen_member_is_waited_for_once() {
    let mut s = Script::ready(None);
    s.read(1, 0, 4096);
    s.wait(200);
    s.sees(&["n2 <- read r0 v1 floor 2 [0+1]", "n3 <- read r1 v1 floor 2 [0+1]"]);
    s.answer(1, &[Some(3)]);
    s.sees(&["done 1: 4096x3"]);
    s.read(2, 0, 4096);
    s.sees(&["n3 <- read r2 v1 floor 2 [0+1]"]);
    s.answer(2, &[Some(3)]);
    // Now and then it is asked, too, but the answer is another's.
    s.wait(500);
    s.lines.clear();
    s.read(3, 0, 4096);
    s.sees(&["n3 <- read r3 v1 floor 2 [0+1]", "n2 <- read r4 v1 floor 2 [0+1]"]);
    s.answer(3, &[Some(3)]);
    s.read(4, 0, 4096);
    s.sees(&["done 3: 4096x3", "n3 <- read r5 v1 floor 2 [0+1]"]);
    s.answer(5, &[Some(3)]);
    // A late answer is no reason to wait for it again.
    s.answer(0, &[Some(3)]);
    s.wait(200);
    s.answer(4, &[Some(3)]);
    s.wait(300);
    s.lines.clear();
    s.read(5, 0, 4096);
    s.sees(&["n3 <- read r6 v1 floor 2 [0+1]", "n2 <- read r7 v1 floor 2 [0+1]"]);
    s.answer(6, &[Some(3)]);
    s.wait(1);
    s.answer(7, &[Some(3)]);
    s.lines.clear();
    s.read(6, 0, 4096);
    s.sees(&["n2 <- read r8 v1 floor 2 [0+1]"]);
}

/// If nobody answers in time, nobody is passed over.
#[test]
fn members_that_are_all_slow_are_asked_in_turn() {
    let mut s = Script::ready(None);
    s.read(1, 0, 4096);
    (0..4).for_each(|_| s.wait(1600));
    s.answer(0, &[Some(3)]);
    s.lines.clear();
    s.read(2, 0, 4096);
    assert!(s.lines[0].starts_with("n2 <- read"), "{:?}", s.lines);
}

#[test]
fn the_local_member_is_preferred_until_it_has_too_much_to_do() {
    let mut s = Script::ready(None);
    (0..66).for_each(|i| s.read(i, i * 4096, 4096));
    let of = |n: u64| s.lines.iter().filter(|l| l.starts_with(&format!("n{n} "))).count();
    assert_eq!((of(1), of(2), of(3)), (0, 64, 2));
}

#[test]
fn a_lost_message_is_made_good() {
    let mut s = Script::ready(None);
    s.write(1, 0, 4096, 1);
    s.write(2, 4096, 4096, 1);
    s.ordered(1, 1, &[(1, 3)]);
    s.lines.clear();
    s.wait(1000);
    s.sees(&["n1 <- write #2 v1 open 1 [1+1]", "n1 <- attach v1", "n2 <- follow", "n3 <- follow"]);
    s.ordered(1, 1, &[(2, 4)]);
    s.wait(1000);
    // Ordered, but nobody has said that it is durable.
    s.sees(&["n1 <- attach v1", "n2 <- follow", "n3 <- follow"]);
}

#[test]
fn a_view_that_is_only_named_is_asked_for() {
    let mut s = Script::ready(None);
    s.durable(3, 2, 9);
    s.sees(&[]);
    s.wait(10);
    s.sees(&["n1 <- follow", "n2 <- follow", "n3 <- follow"]);
    s.wait(10);
    s.durable(3, 2, 10);
    s.sees(&["n3 <- follow"]);
    s.attached_at(0, 3, 2, &[3, 2], 8, 0);
    s.sees(&["n3 <- attach v2", "n2 <- follow"]);
    // Views never go back, and impossible ones are not looked at.
    s.from(2, Message::View(news(0, 1, &[2, 3], 4)));
    s.from(2, Message::View(news(0, 3, &[1, 2, 3, 4, 5, 6, 7, 8], 4)));
    let mut bad = news(0, 3, &[1, 2], 9);
    bad.body.quorum = 3;
    s.from(2, Message::View(bad));
    s.sees(&[]);
    assert_eq!(s.driver.info().shards[0].view, ViewNumber(2));
}

#[test]
fn several_shards_are_striped_and_answered_in_order() {
    let mut s = Script::new(2, None);
    (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
    for index in 0..2 {
        s.attached_at(index, 1, 1, &[1, 2, 3], 1, 2);
        for n in 1..=2 {
            let item = DurableItem { shard: shard(index), view: ViewNumber(1), sequence: Sequence(2), room: None };
            s.from(n, Message::Durable(vec![item]));
        }
    }
    assert_eq!(s.lines.pop().unwrap(), "ready");
    s.lines.clear();
    s.write(1, MIB - 4096, 3 * 4096, 1);
    s.sees(&["n1 <- write s0 #1 v1 open 1 [255+1]", "n1 <- write s1 #1 v1 open 1 [0+2]"]);
    s.read(2, 2 * MIB - 4096, 8192);
    s.sees(&["n1 <- read s1 r0 v1 floor 2 [255+1]", "n2 <- read s0 r1 v1 floor 2 [256+1]"]);
    s.answer(1, &[Some(6)]);
    s.answer(0, &[Some(5)]);
    s.sees(&["done 2: 4096x5 4096x6"]);
}

#[test]
fn status_tells_data_holes_and_zeroes() {
    let mut s = Script::ready(None);
    s.step(Event::Client { token: 1, op: Op::Status { offset: 512, len: 16384 } });
    s.sees(&["n2 <- read r0 v1 floor 2 [0+5]"]);
    let (id, from, shard) = s.reads[0];
    let piece = |kind, blocks| WirePiece { kind, blocks, changed: false };
    let pieces = vec![piece(ExtentKind::Trim, 2), piece(ExtentKind::Zero, 1), piece(ExtentKind::Data, 2)];
    let reply = ReadReply { shard, id, pieces, crcs: vec![], data: vec![] };
    s.step(Event::Message { from, message: Message::ReadReply(reply) });
    let run = |bytes, hole, zero| StatusRun { bytes, hole, zero, changed: false };
    let wanted = [run(7680, true, true), run(4096, false, true), run(4608, false, false)];
    s.sees(&[&format!("done 1: {wanted:?}")]);
}

#[test]
fn ranges_are_checked_and_nothing_is_nothing() {
    let mut s = Script::ready(None);
    s.read(1, 64 * MIB - 512, 1024);
    s.read(2, u64::MAX, 2);
    s.write(3, 64 * MIB, 0, 0);
    s.read(4, 0, 0);
    s.step(Event::Client { token: 5, op: Op::Flush });
    s.sees(&["done 1: Invalid", "done 2: Invalid", "done 3", "done 4: ", "done 5"]);
    let spec = |size, view| VolumeSpec {
        id: VolumeId(1),
        size,
        stripe: MIB,
        shards: vec![ShardSpec { id: shard(0), view: ViewNumber(view), members: vec![NodeId(3), NodeId(4)] }],
    };
    s.step(Event::Volume(spec(128 * MIB, 1)));
    s.write(6, 64 * MIB, 4096, 1);
    s.sees(&["n1 <- write #1 v1 open 1 [16384+1]"]);
    // The control plane knows of a view that no member has told of: its members are asked.
    s.step(Event::Volume(spec(128 * MIB, 4)));
    s.sees(&["n3 <- attach v4", "connect n4"]);
    s.attached_at(0, 3, 4, &[3, 4], 9, 10);
    s.sees(&["n3 <- write #1 v4 open 1 [16384+1]"]);
}

#[test]
fn windows_hold_and_later_requests_wait_their_turn() {
    let mut s = Script::ready(None);
    // One request is larger than the window of 32 MiB, and goes in pieces of 1 MiB.
    s.write(1, 4096, 40 << 20, 1);
    s.write(2, 50 * MIB, 4096, 2);
    assert_eq!(s.lines.len(), 32, "255 blocks and 31 MiB, then the small rest does not fit");
    assert!(s.driver.info().bytes <= 32 << 20);
    for n in 1..=42 {
        s.ordered(1, 1, &[(n, n + 2)]);
        s.durable(1, 1, n + 2);
        s.durable(2, 1, n + 2);
    }
    assert!(s.lines.contains(&"done 1".to_string()) && s.lines.last().unwrap() == "done 2");
    assert_eq!((s.driver.in_flight(), s.driver.info().bytes), (0, 0));
    s.lines.clear();
    (0..2000).for_each(|t| s.write(t, t * 4096, 4096, 1));
    assert_eq!((s.lines.len(), s.driver.in_flight()), (1024, 2000));
}

/// Members remember the last 1,024 numbers of a driver, counted from its lowest open one (W3).
#[test]
fn w3_numbers_do_not_run_away_from_the_lowest_open_one() {
    let mut s = Script::ready(None);
    (0..1024).for_each(|t| s.write(t, t * 4096, 4096, 1));
    (2..=1024).for_each(|n| s.ordered(1, 1, &[(n, n + 2)]));
    (1..=2).for_each(|n| s.durable(n, 1, 1026));
    assert_eq!(s.driver.in_flight(), 1);
    s.lines.clear();
    s.write(2000, 4096, 4096, 1);
    s.write(2001, 8192, 4096, 1);
    s.sees(&[]);
    s.ordered(1, 1, &[(1, 3)]);
    s.sees(&["done 0", "n1 <- write #1025 v1 open 1025 [1+1]", "n1 <- write #1026 v1 open 1025 [2+1]"]);
}

#[test]
fn closing_fails_what_is_open_and_tells_the_members() {
    let mut s = Script::ready(None);
    s.write(1, 0, 4096, 1);
    s.read(2, 4096, 4096);
    s.lines.clear();
    s.step(Event::Close);
    s.sees(&["n1 <- detach", "n2 <- detach", "n3 <- detach", "done 1: Retry", "done 2: Retry", "closed"]);
    s.read(3, 0, 4096);
    s.sees(&["done 3: Retry"]);
}

#[test]
fn workers_decide_whom_a_shard_lives_on() {
    let mut s = Script::ready(None);
    s.step(Event::Workers((1..=3).map(|n| (NodeId(n), 1)).collect()));
    s.sees(&[]);
    let workers = (1..=3).map(|n| (NodeId(n), 4)).collect();
    s.step(Event::Workers(workers));
    s.sees(&["connect n1", "connect n2", "connect n3"]);
    let p = Peer { node: NodeId(1), worker: 1 };
    s.step(Event::LinkUp(p));
    s.sees(&["n1 <- attach v1"]);
    // The links of before are nobody's.
    s.durable(1, 1, 99);
    assert_eq!(s.driver.info().shards[0].members[0].durable, Some(Sequence(2)));
}

/// The times at which node 1 is dialled from now on, each attempt being refused at once, until 3 s have passed.
fn dialled(s: &mut Script) -> Vec<u64> {
    let begun = s.now.millis();
    let mut at = Vec::new();
    while s.now.millis() < begun + 3000 {
        if s.lines.iter().any(|l| l == "connect n1") {
            at.push(s.now.millis() - begun);
            s.lines.clear();
            s.step(Event::LinkDown(peer(1)));
            s.lines.retain(|l| l == "connect n1");
        } else {
            s.wait(1);
        }
    }
    s.lines.clear();
    at
}

/// All nodes had died. Its driver had tried them for a second and then tried each half a second, and went on with that when
/// the control plane told of their new view: the volume stood still for up to half a second more than it had to.
#[test]
fn news_of_a_peer_end_the_pause_before_it_is_dialled_again() {
    let spec = |view| VolumeSpec {
        id: VolumeId(1),
        size: 64 * MIB,
        stripe: MIB,
        shards: vec![ShardSpec { id: shard(0), view: ViewNumber(view), members: vec![NodeId(1), NodeId(2)] }],
    };
    let told = [
        ("a view of the control plane", Event::Volume(spec(2))),
        ("a view of a member", Event::Message { from: peer(2), message: Message::View(news(0, 2, &[2, 1], 3)) }),
        ("a start of its node", Event::Started(vec![NodeId(9), NodeId(1)])),
    ];
    for (what, event) in told {
        let mut s = Script::ready(None);
        s.step(Event::LinkDown(peer(1)));
        assert_eq!(dialled(&mut s), [10, 30, 70, 150, 310, 630, 1130, 1630, 2130, 2630], "{what}");
        // Nothing is due for half a second.
        s.wait(150);
        s.sees(&["connect n1"]);
        s.step(Event::LinkDown(peer(1)));
        s.wait(1);
        s.sees(&[]);
        s.step(event);
        assert_eq!(dialled(&mut s)[..5], [0, 10, 30, 70, 150], "{what}");
    }
    // Old news, and news of others, end no pause; nor is a link that is up opened again.
    for event in [Event::Volume(spec(1)), Event::Started(vec![NodeId(2), NodeId(9)]), Event::Tick] {
        let mut s = Script::ready(None);
        s.step(Event::LinkDown(peer(1)));
        dialled(&mut s);
        s.step(event);
        s.sees(&[]);
    }
}
