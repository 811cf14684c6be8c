//! Stories of leaders that are gone, or only seem so, in simulated time: how soon another one leads and decides, and that
//! none is deposed who works.

use super::world::{Luck, World, sleep, told, world};
use freebs_consensus::types::Randomness;
use freebs_consensus::{Mutant, Seat};
use freebs_control::{Command, CreateVolume};
use freebs_types::NodeId;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Seeds of each story.
const SEEDS: std::ops::Range<u64> = 0..20;
/// Milliseconds in which a closed connection is confirmed, another seat elected, and that known. The first in turn may
/// lack what another one has, which comes next, a heartbeat (100 ms) later.
const LEADS_MS: u64 = 200;
/// The same until the shards of the dead leader have other heads.
const DECIDES_MS: u64 = 400;

/// A cluster at work, with shards that begin at each of its nodes.
pub(super) async fn at_work(seed: u64, count: u64, mutant: Option<Mutant>) -> Rc<World> {
    let w = world(count, Luck(seed), mutant);
    (0..w.count()).for_each(|n| w.boot(n));
    w.set_up().await;
    let peer = w.peer(0).expect("it runs");
    for i in 0..4 * count {
        let new = CreateVolume { name: format!("more{i}"), size: 1 << 30, ..CreateVolume::default() };
        Randomness::scope(i, peer.submit(Command::CreateVolume(new))).await.expect("nothing is in its way");
    }
    // Votes are given to those that were taken in.
    sleep(3000).await;
    let heads: BTreeSet<NodeId> = heads(&w).into_iter().collect();
    assert_eq!(heads.len() as u64, count, "each node has a shard to lose");
    w
}

/// The heads of all shards, as some node that runs knows them.
pub(super) fn heads(w: &World) -> Vec<NodeId> {
    let peer = (0..w.count()).find_map(|n| w.peer(n)).expect("one runs");
    let state = peer.state();
    state.volumes().flat_map(|v| v.shards.iter().filter_map(|s| s.head())).collect()
}

/// The seat that leads by its own word, and its term; the newest, if there are several.
pub(super) fn leader(w: &World) -> Option<(Seat, u64)> {
    let by_own_word = |n: usize| {
        let peer = w.peer(n)?;
        let (leader, term) = peer.leader();
        leader.filter(|l| *l == peer.seat()).map(|l| (l, term))
    };
    (0..w.count()).filter_map(by_own_word).max_by_key(|(_, term)| *term)
}

pub(super) fn index(seat: Seat) -> usize {
    seat.node.0 as usize - 1
}

/// Milliseconds until that is so.
pub(super) async fn until(most_ms: u64, mut is_so: impl FnMut() -> bool) -> u64 {
    for ms in 0..most_ms {
        if is_so() {
            return ms;
        }
        sleep(1).await;
    }
    panic!("it is not so after {most_ms} ms");
}

/// Kills the leader, and others with it: milliseconds until another one leads and until it has taken all of them for failed,
/// and the terms that it took. If it was the leader alone, no shard has it for its head then: of those of others too few
/// members may be left.
async fn killed(seed: u64, count: u64, others: usize, power: bool) -> (u64, u64, u64) {
    let w = at_work(seed, count, None).await;
    let (old, term) = leader(&w).expect("somebody leads");
    // The first in order of the others, whose turn it is to stand at once.
    let dead: Vec<usize> =
        [index(old)].into_iter().chain((0..w.count()).filter(|n| *n != index(old)).take(others)).collect();
    for node in &dead {
        w.kill(*node, power).await;
    }
    let leads = until(5000, || leader(&w).is_some_and(|(l, _)| l != old)).await;
    let wanted: BTreeSet<NodeId> = dead.iter().map(|n| NodeId(*n as u64 + 1)).collect();
    let is_done = || w.failed() == wanted && (others > 0 || !heads(&w).contains(&old.node));
    let decides = leads + until(5000, is_done).await;
    let (_, now) = leader(&w).expect("somebody leads");
    (leads, decides, now - term)
}

/// Another one led after 0.85 to 1 s, because the others held to the dead one for half a second and waited for as long
/// again; and it asked around anew whether that had failed.
#[test]
fn a_killed_leader_is_replaced_and_its_shards_are_given_to_others_at_once() {
    for count in [3, 5] {
        for seed in SEEDS {
            let (leads, decides, terms) = told(killed(seed, count, 0, false));
            println!("{count} nodes, seed {seed}: leads after {leads} ms, decides after {decides} ms");
            assert!(leads <= LEADS_MS && decides <= DECIDES_MS, "{count} nodes, seed {seed}: {leads}, {decides} ms");
            assert_eq!(terms, 1, "{count} nodes, seed {seed}: votes were split");
        }
    }
}

/// The seat in turn may be dead, too: the next one waits for no more than its own turn.
#[test]
fn a_leader_that_dies_with_the_next_in_order_is_replaced_by_the_one_after() {
    for seed in SEEDS {
        let (leads, decides, terms) = told(killed(seed, 5, 1, false));
        assert!(leads <= LEADS_MS + 100 && decides <= DECIDES_MS + 200, "seed {seed}: {leads}, {decides} ms");
        assert_eq!(terms, 1, "seed {seed}: votes were split");
    }
}

/// Nobody says that it is not there: it is waited for.
#[test]
fn a_leader_without_power_is_replaced_once_it_was_silent_for_long_enough() {
    for seed in SEEDS {
        let (leads, ..) = told(killed(seed, 3, 0, true));
        assert!((600..2500).contains(&leads), "seed {seed}: {leads} ms");
    }
}

/// Breaks the links of some voters to the leader, so that they stay refused there, and looks what becomes of it.
async fn broken(seed: u64, count: u64, links: usize) {
    let w = at_work(seed, count, None).await;
    let before = leader(&w).expect("somebody leads");
    let to = before.0.node.0;
    for from in (1..=count).filter(|n| *n != to).take(links) {
        w.break_link((from, to)).await;
    }
    for _ in 0..200 {
        sleep(100).await;
        assert_eq!(leader(&w), Some(before), "{count} nodes, seed {seed}: a leader that works was deposed");
    }
    let peer = w.peer(before.0.node.0 as usize - 1).expect("it runs");
    let new = CreateVolume { name: "late".into(), size: 1 << 30, ..CreateVolume::default() };
    Randomness::scope(seed, peer.submit(Command::CreateVolume(new))).await.expect("it decides");
}

#[test]
fn a_leader_stays_while_no_more_than_a_minority_is_refused_by_it() {
    for seed in SEEDS {
        told(broken(seed, 3, 1));
        told(broken(seed, 5, 2));
    }
}

/// A leader that no voter but itself can send to is not answered, so it decides nothing. The others heard it say that it was
/// there, and held to it for ever.
#[test]
fn a_leader_that_refuses_most_voters_is_given_up() {
    for seed in SEEDS {
        told(async {
            let w = at_work(seed, 3, None).await;
            let (old, term) = leader(&w).expect("somebody leads");
            for from in (1..=3).filter(|n| *n != old.node.0) {
                w.break_link((from, old.node.0)).await;
            }
            until(1000, || leader(&w).is_some_and(|(l, t)| l != old && t == term + 1)).await;
            w.broken.borrow_mut().clear();
            sleep(3000).await;
            let (now, _) = leader(&w).expect("somebody leads");
            let known: BTreeSet<_> = (0..3).filter_map(|n| w.peer(n)?.leader().0).collect();
            assert_eq!(known, [now].into(), "seed {seed}: they agree");
        });
    }
}

/// Most voters have given the leader up, and it is back after this many milliseconds: the terms that follow from it, and those
/// that follow from a voter, either of them, that does not hear of the leader for a while.
async fn back_after(seed: u64, ms: u64) -> (u64, u64) {
    let w = at_work(seed, 3, None).await;
    let (old, term) = leader(&w).expect("somebody leads");
    for from in (1..=3).filter(|n| *n != old.node.0) {
        w.break_link((from, old.node.0)).await;
    }
    sleep(ms).await;
    w.broken.borrow_mut().clear();
    sleep(1000).await;
    let (now, settled) = leader(&w).expect("somebody leads");
    for deaf in (1..=3).filter(|n| *n != now.node.0) {
        w.cut.borrow_mut().extend([(now.node.0, deaf), (deaf, now.node.0)]);
        sleep(1500).await;
        w.cut.borrow_mut().clear();
        sleep(1000).await;
    }
    (settled - term, leader(&w).expect("somebody leads").1 - settled)
}

/// A voter that gave the leader up votes for anybody until the term is over. The leader was back before anybody had stood, so
/// nobody did, and later one voter that did not hear of it for half a second deposed it.
#[test]
fn a_leader_that_is_back_when_most_have_given_it_up_leads_in_no_term_of_before() {
    for ms in [20, 60] {
        for seed in SEEDS {
            assert_eq!(told(back_after(seed, ms)), (1, 0), "seed {seed}: back after {ms} ms");
        }
    }
}

/// A leader that is cut off with one other hears of nobody else, and takes them for failed. It must not decide that: not
/// then, and not when it hears of the others again, one of whom leads by then (L5).
async fn cut_off(seed: u64, mutant: Option<Mutant>) {
    let w = at_work(seed, 5, mutant).await;
    let (old, _) = leader(&w).expect("somebody leads");
    let with = if old.node.0 == 1 { 2 } else { 1 };
    let (inside, outside): (Vec<u64>, Vec<u64>) = (1..=5).partition(|n| [old.node.0, with].contains(n));
    for (a, b) in inside.iter().flat_map(|a| outside.iter().map(|b| (*a, *b))) {
        w.cut.borrow_mut().extend([(a, b), (b, a)]);
    }
    sleep(4000).await;
    w.cut.borrow_mut().clear();
    sleep(5000).await;
    w.check().await;
    assert!(leader(&w).is_some_and(|(l, _)| outside.contains(&l.node.0)), "another one leads");
    let failed: BTreeSet<NodeId> = inside.into_iter().map(NodeId).collect();
    assert_eq!(w.failed(), failed, "only who was cut off had failed");
}

#[test]
fn l5_a_leader_that_is_cut_off_decides_nothing() {
    for seed in SEEDS {
        told(cut_off(seed, None));
    }
    for seed in SEEDS.take(3) {
        let noticed = catch_unwind(AssertUnwindSafe(|| told(cut_off(seed, Some(Mutant::LeaderUnconfirmed)))));
        assert!(noticed.is_err(), "seed {seed}: without the rule nothing is seen");
    }
}

/// A leader that had confirmed that it led was cut off before its order was in the log. It went on to give it, and seconds
/// later gave it to the next leader.
#[test]
fn l5_an_order_ends_with_the_lead_of_who_gives_it() {
    for seed in SEEDS {
        told(async {
            let w = at_work(seed, 5, None).await;
            let (old, _) = leader(&w).expect("somebody leads");
            let others: Vec<u64> = (1..=5).filter(|n| *n != old.node.0).collect();
            let (here, ways) = (Rc::downgrade(&w), others.clone());
            w.peer(index(old)).expect("it runs").tell_failures(move |_, _| {
                let w = here.upgrade().expect("the world goes on");
                w.cut.borrow_mut().extend(ways.iter().flat_map(|n| [(*n, old.node.0), (old.node.0, *n)]));
            });
            w.kill(others[0] as usize - 1, false).await;
            sleep(3000).await;
            assert!(!w.cut.borrow().is_empty(), "seed {seed}: it had decided");
            w.cut.borrow_mut().clear();
            sleep(5000).await;
            w.check().await;
            assert!(leader(&w).is_some_and(|(l, _)| l != old), "another one leads");
        });
    }
}
