//! Stories of nodes that are heard and whose devices are of no use: each seat says with its messages how they are.

use super::leaders::{at_work, heads, index, leader, until};
use super::world::{World, sleep, told};
use freebs_consensus::{Devices, Mutant};
use freebs_types::NodeId;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Seeds of each story.
const SEEDS: std::ops::Range<u64> = 0..20;
/// Milliseconds until the shards of a node that says that its device does not answer have other heads: a heartbeat, an
/// election if it leads, and the order.
const DECIDES_MS: u64 = 500;

fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

fn members(w: &World) -> BTreeSet<NodeId> {
    let state = w.peer(0).expect("it runs").state();
    state.volumes().flat_map(|v| v.shards.iter().flat_map(|s| s.members.clone())).collect()
}

/// The first node that does not lead, of those that stories leave alone least.
fn follower(w: &World) -> usize {
    let (led, _) = leader(w).expect("somebody leads");
    (1..w.count()).find(|n| *n != index(led)).expect("there are three")
}

/// A device does not answer any more, at the leader or at another node: milliseconds until its shards have other heads.
async fn silent(seed: u64, leads: bool, mutant: Option<Mutant>) -> u64 {
    let w = at_work(seed, 3, mutant).await;
    let (old, _) = leader(&w).expect("somebody leads");
    let node = if leads { index(old) } else { follower(&w) };
    w.say_devices(node, Devices::Silent);
    let decides = until(3000, || !heads(&w).contains(&id(node))).await;
    for _ in 0..100 {
        sleep(50).await;
        assert!(leader(&w).is_some_and(|(l, _)| index(l) != node), "seed {seed}: it leads, and can write nothing");
        assert!(!heads(&w).contains(&id(node)), "seed {seed}: it is a head again");
    }
    w.say_devices(node, Devices::Work);
    sleep(3000).await;
    assert_eq!(w.failed(), BTreeSet::from([id(node)]), "seed {seed}");
    w.check().await;
    decides
}

/// It answered heartbeats, so it was there.
#[test]
fn a_node_whose_device_does_not_answer_has_failed() {
    for (seed, leads) in SEEDS.flat_map(|seed| [(seed, false), (seed, true)]) {
        let ms = told(silent(seed, leads, None));
        assert!(ms <= DECIDES_MS, "seed {seed}, {leads}: {ms} ms");
    }
    let story = || told(silent(1, false, Some(Mutant::HeardIsEnough)));
    assert!(catch_unwind(AssertUnwindSafe(story)).is_err());
}

/// One disk below all of them, or a machine that stands still: nobody is better than the others.
#[test]
fn where_all_devices_are_silent_nothing_is_decided() {
    for seed in SEEDS {
        told(async {
            let w = at_work(seed, 3, None).await;
            let (before, led) = (heads(&w), leader(&w));
            for how in [Devices::Silent, Devices::Work] {
                // Operations are not asked at the same moment everywhere.
                for node in 0..3 {
                    w.say_devices(node, how);
                    sleep(50).await;
                }
                let sent = w.sent();
                sleep(3000).await;
                assert_eq!((heads(&w), leader(&w)), (before.clone(), led), "seed {seed}: {how:?}");
                assert!(w.sent() - sent < 1000, "seed {seed}, {how:?}: {} messages", w.sent() - sent);
            }
            assert_eq!(w.failed(), BTreeSet::new());
            w.check().await;
        });
    }
}

/// The others heard that its device did not answer, and not that it did again: the next leader took it for failed at once.
#[test]
fn an_old_word_about_a_device_is_forgotten() {
    for seed in SEEDS {
        told(async {
            let w = at_work(seed, 4, None).await;
            let (led, _) = leader(&w).expect("somebody leads");
            let votes = |n: &usize| w.peer(*n).is_some_and(|p| p.votes());
            let learner = (0..4).find(|n| !votes(n)).expect("one of four has no vote");
            w.say_devices(learner, Devices::Silent);
            sleep(2000).await;
            w.say_devices(learner, Devices::Work);
            sleep(3000).await;
            w.forget_failed();
            w.kill(index(led), false).await;
            sleep(3000).await;
            assert!(leader(&w).is_some_and(|(l, _)| l != led), "seed {seed}");
            assert_eq!(w.failed(), [led.node].into(), "seed {seed}");
            w.check().await;
        });
    }
}

/// Its device takes no writes, so it ends at each start, and is started again, and heard each time.
async fn never_at_work(seed: u64, mutant: Option<Mutant>) {
    let w = at_work(seed, 4, mutant).await;
    let node = follower(&w);
    assert!(members(&w).contains(&id(node)));
    w.say_devices(node, Devices::Begin);
    for _ in 0..8 {
        w.kill(node, false).await;
        sleep(200).await;
        w.boot(node);
        sleep(1500).await;
        assert!(!heads(&w).contains(&id(node)), "seed {seed}: a node that only begins is a head");
    }
    assert!(!members(&w).contains(&id(node)), "seed {seed}: its places are not given to others");
    w.check().await;
}

#[test]
fn a_node_that_ends_at_each_start_is_gone_at_last() {
    for seed in SEEDS {
        told(never_at_work(seed, None));
    }
    let story = || told(never_at_work(1, Some(Mutant::HeardIsEnough)));
    assert!(catch_unwind(AssertUnwindSafe(story)).is_err());
}

/// A whole cluster begins, and some take longer than others: they are waited for as a head is.
#[test]
fn nodes_that_begin_with_their_leader_have_time() {
    for seed in SEEDS {
        told(async {
            let w = at_work(seed, 3, None).await;
            let before = heads(&w);
            for node in 0..3 {
                w.kill(node, true).await;
                w.say_devices(node, Devices::Begin);
            }
            (0..3).for_each(|n| w.boot(n));
            sleep(4000).await;
            assert!(leader(&w).is_some(), "seed {seed}");
            (0..3).for_each(|n| w.say_devices(n, Devices::Work));
            sleep(2000).await;
            assert_eq!((heads(&w), w.failed()), (before, BTreeSet::new()), "seed {seed}");
            w.check().await;
        });
    }
}
