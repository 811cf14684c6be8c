//! Scripts of L1 to L3: the right to answer. Members lend nothing by themselves here.

use super::script::{GENERATION, MIB, Script, leased, news, peer, shard};
use freebs_driver::{Event, Mutant, Op};
use freebs_format::wire::{DurableItem, Message, Refusal, Request};
use freebs_types::{Generation, Nanos, Sequence, ViewNumber};

/// A lease runs for so long, as a driver counts.
const LENGTH: u64 = 1960;

/// Links up and attached at sequence 2, which all members have: they have been asked for leases.
fn asked(mutant: Option<Mutant>, alone: bool) -> Script {
    let mut s = Script::with(1, mutant, false, alone);
    (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
    s.attached(1, 1, 1, 2);
    s.lines.clear();
    (1..=3).for_each(|n| s.durable(n, 1, 2));
    s
}

/// Ready at time 0 with leases of nodes 1 and 2; node 3 has not answered.
fn ready() -> Script {
    let mut s = asked(None, false);
    (1..=2).for_each(|n| s.lends(n, 0));
    assert!(s.driver.ready());
    s.lines.clear();
    s
}

/// Write 1 is durable on A members.
fn written(s: &mut Script) {
    s.write(1, 0, 4096, 1);
    s.ordered(1, 1, &[(1, 3)]);
    (1..=2).for_each(|n| s.durable(n, 1, 3));
}

fn last_stamp(s: &Script) -> Nanos {
    s.asked.last().unwrap().2
}

fn lent(s: &Script) -> Vec<u64> {
    s.driver.info().shards[0].members.iter().filter(|m| m.lease).map(|m| m.node.0).collect()
}

#[test]
fn members_are_asked_when_they_have_the_attachment() {
    let mut s = Script::with(1, None, false, false);
    (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
    s.attached(1, 1, 1, 5);
    s.lines.clear();
    s.durable(1, 1, 4);
    s.sees(&[]);
    s.durable(1, 1, 5);
    s.sees(&["n1 <- lease"]);
    // The barrier has passed: whoever says anything in this view will have it.
    s.durable(3, 1, 5);
    s.sees(&["n3 <- lease"]);
    s.durable(2, 1, 4);
    s.sees(&["n2 <- lease"]);
}

#[test]
fn l1_ready_waits_for_leases_of_a_members() {
    for mutant in [None, Some(Mutant::AnswerWithoutLease), Some(Mutant::OneLeaseIsEnough)] {
        let mut s = asked(mutant, false);
        if mutant == Some(Mutant::AnswerWithoutLease) {
            assert!(s.driver.ready());
            continue;
        }
        s.sees(&["n1 <- lease", "n2 <- lease", "n3 <- lease"]);
        s.lends(3, 0);
        if mutant.is_some() {
            s.sees(&["ready"]);
            continue;
        }
        s.sees(&[]);
        // The same one twice is one.
        s.lends(3, 0);
        s.sees(&[]);
        s.lends(2, 0);
        s.sees(&["ready"]);
    }
}

#[test]
fn l1_no_success_without_leases_and_then_in_order_of_ending() {
    for mutant in [None, Some(Mutant::AnswerWithoutLease)] {
        let mut s = asked(mutant, false);
        (1..=2).for_each(|n| s.lends(n, 0));
        s.wait(LENGTH);
        s.lines.clear();
        s.write(1, 0, 4096, 1);
        s.write(2, 4096, 4096, 2);
        s.lines.clear();
        s.ordered(1, 1, &[(1, 3), (2, 4)]);
        (1..=2).for_each(|n| s.durable(n, 1, 4));
        s.step(Event::Client { token: 3, op: Op::Flush });
        s.read(4, 65536, 0);
        if mutant.is_some() {
            s.sees(&["done 1", "done 2", "done 3", "done 4: "]);
            continue;
        }
        s.sees(&[]);
        assert_eq!(s.driver.in_flight(), 4);
        // Their blocks are free, and what comes later goes on.
        s.read(5, 0, 4096);
        s.answer(0, &[Some(1)]);
        assert_eq!((s.driver.info().bytes, s.driver.info().shards[0].writes), (0, 0));
        s.lines.clear();
        // What is wrong is said at once.
        s.write(6, 64 * MIB, 4096, 1);
        s.sees(&["done 6: Invalid"]);
        s.lends(1, 0);
        s.sees(&[]);
        s.lends(3, 0);
        s.sees(&["done 1", "done 2", "done 3", "done 4: ", "done 5: 4096x1"]);
        assert_eq!(s.driver.in_flight(), 0);
    }
}

#[test]
fn l1_a_lease_ends_by_the_time_of_asking() {
    let mut s = asked(None, false);
    // The answers were long under way.
    s.wait(50);
    (1..=2).for_each(|n| s.lends(n, 0));
    s.wait(LENGTH - 51);
    assert_eq!(lent(&s), [1, 2]);
    s.step(Event::Client { token: 1, op: Op::Flush });
    assert_eq!(s.lines.last().unwrap(), "done 1");
    s.wait(1);
    assert!(lent(&s).is_empty());
    s.lines.clear();
    s.step(Event::Client { token: 2, op: Op::Flush });
    s.sees(&[]);
}

#[test]
fn leases_are_kept_by_asking_again_at_half() {
    let mut s = ready();
    s.lends(3, 0);
    s.wait(LENGTH / 2 - 1);
    s.sees(&[]);
    s.wait(1);
    s.sees(&["n1 <- lease", "n2 <- lease", "n3 <- lease"]);
    (1..=3).for_each(|n| s.lends(n, 0));
    for _ in 0..20 {
        s.wait(LENGTH / 2);
        s.sees(&["n1 <- lease", "n2 <- lease", "n3 <- lease"]);
        (1..=3).for_each(|n| s.lends(n, 0));
        assert_eq!(lent(&s), [1, 2, 3]);
    }
    // An idle volume keeps its leases, and does nothing else.
    let due = s.now.plus(Nanos::from_millis(LENGTH / 2));
    assert_eq!((s.driver.next_deadline(), s.lines.len()), (Some(due), 0));
}

#[test]
fn who_does_not_answer_is_asked_again_more_and_more_slowly() {
    let mut s = ready();
    let mut times = Vec::new();
    for _ in 0..300 {
        s.wait(10);
        times.extend(s.lines.drain(..).filter(|l| l == "n3 <- lease").map(|_| s.now.millis()));
    }
    assert_eq!(times, [100, 200, 300, 400, 560, 880, 1380, 1880, 2380, 2880]);
    // A refusal changes nothing.
    s.refuse(3, Request::Attach, Refusal::NotReady, 1);
    s.sees(&[]);
    // A new link is a new beginning.
    s.step(Event::LinkDown(peer(3)));
    s.wait(10);
    s.lines.clear();
    s.step(Event::LinkUp(peer(3)));
    s.sees(&["n3 <- follow", "n3 <- lease"]);
    s.lends(3, 0);
    assert_eq!(lent(&s), [3]);
}

#[test]
fn who_is_held_back_fails_at_its_limit() {
    let mut s = ready();
    s.wait(LENGTH);
    written(&mut s);
    s.lines.clear();
    s.wait(59_999);
    assert!(!s.lines.iter().any(|l| l.starts_with("done")));
    s.wait(1);
    assert!(s.lines.contains(&"done 1: Retry".to_string()), "{:?}", s.lines);
    let info = s.driver.info();
    assert_eq!((info.requests, info.bytes, info.counters.given_up), (0, 0, 0));
    s.lines.clear();
    (1..=3).for_each(|n| s.lends(n, 0));
    s.sees(&[]);
}

#[test]
fn who_is_held_back_fails_when_the_driver_ends() {
    for close in [true, false] {
        let mut s = ready();
        s.wait(LENGTH);
        written(&mut s);
        s.lines.clear();
        if close {
            s.step(Event::Close);
            s.sees(&["n1 <- detach", "n2 <- detach", "n3 <- detach", "done 1: Retry", "closed"]);
        } else {
            s.refuse(2, Request::Attach, Refusal::Fenced, 1);
            s.sees(&["done 1: Fenced", "fenced"]);
        }
        (1..=3).for_each(|n| s.lends(n, 0));
        s.wait(10_000);
        s.sees(&[]);
        assert_eq!(s.driver.next_deadline(), None);
    }
}

#[test]
fn l3_ready_waits_for_the_leases_of_older_generations() {
    for mutant in [None, Some(Mutant::OlderNotWaitedFor)] {
        let mut s = asked(mutant, false);
        s.write(1, 0, 4096, 1);
        s.ordered(1, 1, &[(1, 3)]);
        (1..=2).for_each(|n| s.durable(n, 1, 3));
        s.lines.clear();
        s.lends(1, 500);
        s.lends(2, 700);
        if mutant.is_some() {
            s.sees(&["ready", "done 1"]);
            continue;
        }
        // 700 ms by a clock that is slow, seen by one that is fast.
        s.sees(&[]);
        s.step(Event::Client { token: 2, op: Op::Flush });
        s.lends(3, 0);
        s.wait(713);
        s.sees(&[]);
        assert_eq!(s.driver.next_deadline(), Some(Nanos::from_millis(714)));
        s.wait(1);
        s.sees(&["ready", "done 1", "done 2"]);
        // Once ready, nothing of that kind is waited for.
        s.lends(1, 2000);
        s.step(Event::Client { token: 3, op: Op::Flush });
        s.sees(&["done 3"]);
    }
}

#[test]
fn l3_every_shard_is_waited_for() {
    let mut s = Script::with(2, None, false, false);
    (1..=3).for_each(|n| s.step(Event::LinkUp(peer(n))));
    for index in 0..2 {
        s.attached_at(index, 1, 1, &[1, 2, 3], 1, 2);
        s.lines.clear();
        for n in 1..=2 {
            let item = DurableItem { shard: shard(index), view: ViewNumber(1), sequence: Sequence(2), room: None };
            s.from(n, Message::Durable(vec![item]));
        }
        s.sees(&[&format!("n1 <- lease s{index}"), &format!("n2 <- lease s{index}")]);
        for n in 1..=2 {
            s.lends(n, if index == 0 { 1000 } else { 0 });
        }
    }
    assert!(!s.driver.ready());
    s.wait(979);
    s.sees(&[]);
    s.wait(1);
    s.lines.clear();
    for (n, index) in [(1, 0), (2, 0)] {
        let now = s.now;
        s.from(n, Message::Leased(leased(shard(index), now, 0)));
    }
    s.wait(39);
    assert!(!s.driver.ready());
    s.lines.clear();
    s.wait(1);
    // Node 3 has been silent all the time.
    assert_eq!(s.lines.last().unwrap(), "ready");
    // Shard 1 has lost its leases: a request is answered if its own shards have theirs; one of no shard needs any.
    s.wait(LENGTH - 1020);
    s.write(1, MIB - 4096, 8192, 1);
    s.write(2, 0, 4096, 1);
    s.step(Event::Client { token: 3, op: Op::Flush });
    s.lines.clear();
    for (index, items) in [(0, vec![(1, 3), (2, 4)]), (1, vec![(1, 3)])] {
        let items = items.into_iter().map(|(n, q)| (freebs_types::RequestNumber(n), Sequence(q))).collect();
        s.from(1, Message::Ordered { shard: shard(index), view: ViewNumber(1), items });
        for n in 1..=2 {
            let item = DurableItem { shard: shard(index), view: ViewNumber(1), sequence: Sequence(4), room: None };
            s.from(n, Message::Durable(vec![item]));
        }
    }
    s.sees(&["done 2"]);
    let stamp = s.now;
    (1..=2).for_each(|n| s.from(n, Message::Leased(leased(shard(1), stamp, 0))));
    s.sees(&["done 1"]);
}

#[test]
fn l3_who_is_alone_waits_for_nobody() {
    let mut s = asked(None, true);
    s.lines.clear();
    s.lends(1, 2000);
    s.lends(2, 2000);
    s.sees(&["ready"]);
    assert_eq!(s.driver.next_deadline(), Some(Nanos::from_millis(100)));
}

#[test]
fn stamps_that_are_not_ours_or_too_old_do_not_count() {
    let mut s = asked(None, false);
    s.lines.clear();
    let lend = |s: &mut Script, stamp: Nanos, change: fn(&mut freebs_format::wire::Leased)| {
        for n in 1..=3 {
            let mut answer = leased(shard(0), stamp, 0);
            change(&mut answer);
            s.from(n, Message::Leased(answer));
        }
        assert!(lent(s).is_empty());
    };
    // Not asked yet at that time, and from the future.
    s.wait(50);
    let now = s.now;
    lend(&mut s, now, |_| {});
    lend(&mut s, now.plus(Nanos(1)), |_| {});
    lend(&mut s, Nanos(u64::MAX), |l| l.older_ms = 0);
    lend(&mut s, Nanos(0), |l| l.generation = Generation(GENERATION.0 - 1));
    lend(&mut s, Nanos(0), |l| l.generation = Generation(GENERATION.0 + 1));
    lend(&mut s, Nanos(0), |l| l.shard = shard(1));
    s.from(9, Message::Leased(leased(shard(0), Nanos(0), 0)));
    s.wait(LENGTH - 50);
    lend(&mut s, Nanos(0), |_| {});
    assert!(!s.driver.ready());
    // An earlier one of ours is as good as the last.
    let earlier = last_stamp(&s);
    s.wait(1000);
    assert!(last_stamp(&s) > earlier);
    (2..=3).for_each(|n| s.from(n, Message::Leased(leased(shard(0), earlier, 0))));
    assert!(s.driver.ready());
}

/// A driver knew the chain 1, 2, 3, whose node 3 had been replaced while the driver could reach node 1 only: the chain
/// was 2, 1, 4 by then. Of node 1, which it took for the head, it had a lease of the newer view, of node 2, which knew
/// nothing, one of its own: a quorum of neither. It never asked the head for news, and read what others had overwritten.
#[test]
fn l1_a_lease_of_a_view_that_is_not_known_is_none() {
    for mutant in [None, Some(Mutant::LeasesOfAnyView)] {
        let mut s = asked(mutant, false);
        (1..=2).for_each(|n| s.lends(n, 0));
        s.wait(LENGTH);
        s.lines.clear();
        s.lends(2, 0);
        let newer = |s: &Script| {
            let stamp = s.asked.iter().rfind(|a| a.0 == 1).unwrap().2;
            Message::Leased(freebs_format::wire::Leased { view: ViewNumber(2), ..leased(shard(0), stamp, 0) })
        };
        let answer = newer(&s);
        s.from(1, answer);
        s.step(Event::Client { token: 1, op: Op::Flush });
        if mutant.is_some() {
            s.sees(&["done 1"]);
            continue;
        }
        assert_eq!(lent(&s), [2]);
        s.sees(&["n1 <- follow"]);
        // Once the view is known its lease is asked for again, and counts.
        s.from(1, Message::Attached { news: news(0, 2, &[2, 1, 4], 3), generation: GENERATION, floor: Sequence(0) });
        s.step(Event::LinkUp(peer(4)));
        s.attached_at(0, 2, 2, &[2, 1, 4], 3, 4);
        s.durable(1, 2, 4);
        s.wait(100);
        s.lines.clear();
        let answer = newer(&s);
        s.from(1, answer);
        s.sees(&["done 1"]);
    }
}

/// The head of the view that a driver knows was refused as such in a newer one, and told nothing: the driver attached to
/// it for as long as it could reach nobody else.
#[test]
fn a_former_head_is_asked_for_news() {
    let mut s = ready();
    s.refuse(1, Request::Attach, Refusal::NotReady, 2);
    s.sees(&["n1 <- follow"]);
    s.wait(1000);
    assert_eq!(s.lines.iter().filter(|l| *l == "n1 <- follow").count(), 1, "{:?}", s.lines);
}

#[test]
fn a_view_change_keeps_the_leases_of_members_that_stay() {
    let mut s = ready();
    s.from(2, Message::View(news(0, 2, &[2, 1, 3], 3)));
    assert_eq!(lent(&s), [2, 1]);
    s.lines.clear();
    s.step(Event::Client { token: 1, op: Op::Flush });
    s.sees(&["done 1"]);
    // Node 1 is a member no more, and what it has lent counts no more, also when it comes back.
    s.from(2, Message::View(news(0, 3, &[2, 3], 4)));
    s.lines.clear();
    s.step(Event::Client { token: 2, op: Op::Flush });
    s.sees(&[]);
    s.attached_at(0, 2, 3, &[2, 3], 4, 4);
    s.lines.clear();
    s.wait(100);
    s.sees(&[]);
    s.durable(3, 3, 4);
    s.sees(&["n3 <- lease"]);
    s.lends(3, 0);
    s.sees(&["done 2"]);
    s.from(2, Message::View(news(0, 4, &[2, 1, 3], 5)));
    assert_eq!(lent(&s), [2, 3]);
    // A smaller quorum may be enough at once.
    s.wait(LENGTH - 100);
    assert_eq!(lent(&s), [3]);
    s.step(Event::Client { token: 3, op: Op::Flush });
    s.lines.clear();
    s.from(2, Message::View(news(0, 5, &[3], 6)));
    assert!(s.lines.contains(&"done 3".to_string()), "{:?}", s.lines);
}
