//! Stories of a seat that votes alone, as it knows: an old image of it has nobody to be outvoted by (rule V8).

use super::leaders::leader;
use super::world::{CLUSTER, Luck, World, sleep, told, world};
use freebs_consensus::types::Randomness;
use freebs_control::Command;
use freebs_control::rebuild::{NodeName, rebuild};
use freebs_types::{ErrorKind, NodeId, StartNumber};
use std::rc::Rc;

/// Seeds of each story.
const SEEDS: std::ops::Range<u64> = 0..20;

/// The cluster's fate while its founder was not looked at.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// The others got votes.
    Votes,
    /// All that was decided was lost, and another node has founded the cluster anew, with what was made again.
    Anew,
}

/// A start of the founder is known to the second node.
async fn register(w: &World, start: u64) {
    let (name, address, start) = ("data1".into(), "h1:1".into(), StartNumber(start));
    let started = Command::RegisterNode { node: NodeId(1), name, address, workers: 1, start };
    Randomness::scope(1, w.peer(1).expect("it runs").submit(started)).await.expect("nothing is in its way");
}

/// Three nodes, and in the first one the store that it had when it voted alone. Since then it was started again, as the others
/// know; now it is down.
async fn with_an_old_founder(seed: u64, since: Since) -> Rc<World> {
    let w = world(3, Luck(seed), None);
    w.boot(0);
    sleep(2000).await;
    let old = w.image(0);
    match since {
        Since::Votes => {
            (1..3).for_each(|n| w.boot(n));
            w.set_up().await;
            sleep(4000).await;
            assert_eq!(w.peer(0).expect("it runs").voters(), 3);
            register(&w, 9).await;
            w.kill(0, false).await;
        }
        Since::Anew => {
            w.kill(0, false).await;
            for n in [1, 2] {
                w.put_in(n, w.image(n));
                w.boot(n);
            }
            sleep(100).await;
            let founder = w.peer(1).expect("it runs");
            Randomness::scope(seed, founder.found()).await.expect("nobody else did");
            sleep(3000).await;
            register(&w, 9).await;
        }
    }
    sleep(3000).await;
    w.put_in(0, old);
    w
}

/// True if the first node leads by its own word.
fn first_leads(w: &World) -> bool {
    w.peer(0).is_some_and(|p| p.leader().0 == Some(p.seat()))
}

/// The old image led by itself at once: the only vote was its own. It took numbers, and named heads, beside the others.
#[test]
fn who_voted_alone_asks_the_others_before_it_leads() {
    for (seed, since) in SEEDS.flat_map(|seed| [(seed, Since::Votes), (seed, Since::Anew)]) {
        told(async {
            let w = with_an_old_founder(seed, since).await;
            let others = leader(&w);
            w.boot(0);
            for _ in 0..500 {
                sleep(10).await;
                assert!(!first_leads(&w), "seed {seed}, {since:?}: an old image leads");
            }
            let e = w.peer(0).expect("it runs").catch_up().await.expect_err("it has heard that it is old");
            assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
            assert_eq!(leader(&w), others, "seed {seed}, {since:?}");
        });
    }
}

/// Where nobody is there who could tell, it goes on, as the newest store does: who votes alone needs nobody. Once it hears that
/// it is old it decides nothing more.
#[test]
fn who_voted_alone_stops_when_it_hears_that_it_is_old() {
    for (seed, since) in SEEDS.flat_map(|seed| [(seed, Since::Votes), (seed, Since::Anew)]) {
        told(async {
            let w = with_an_old_founder(seed, since).await;
            let ways = [(1, 2), (1, 3), (2, 1), (3, 1)];
            w.cut.borrow_mut().extend(ways);
            w.boot(0);
            sleep(2000).await;
            assert!(first_leads(&w), "seed {seed}, {since:?}");
            let peer = w.peer(0).expect("it runs");
            assert!(peer.confirm_leadership().await && peer.check_outdated().is_ok());
            w.cut.borrow_mut().clear();
            sleep(3000).await;
            assert!(!peer.confirm_leadership().await, "seed {seed}, {since:?}");
            assert_eq!(peer.check_outdated().expect_err("it was told").kind, ErrorKind::Corrupt);
        });
    }
}

/// The newest store of who votes alone is back soon, whether the other node is there or not.
#[test]
fn who_votes_alone_waits_for_nobody_for_long() {
    for seed in SEEDS {
        told(async {
            let w = world(2, Luck(seed), None);
            (0..2).for_each(|n| w.boot(n));
            w.set_up().await;
            for other in [true, false] {
                if !other {
                    w.kill(1, false).await;
                }
                w.kill(0, false).await;
                sleep(500).await;
                w.boot(0);
                sleep(if other { 200 } else { 500 }).await;
                assert!(first_leads(&w), "seed {seed}: {other}");
            }
            w.check().await;
        });
    }
}

fn error_of(w: &World, node: usize) -> Option<String> {
    w.peer(node)
        .expect("it runs")
        .check_outdated()
        .err()
        .inspect(|e| assert_eq!(e.kind, ErrorKind::Corrupt))
        .map(|e| e.text.into_owned())
}

/// The old image is started while nobody can tell, and so has the number that its node is registered with, or a higher one. Since
/// the number was all that was compared, it led beside the others for good.
#[test]
fn a_number_that_was_raised_alone_does_not_make_an_old_image_the_present_one() {
    for (seed, starts) in SEEDS.flat_map(|seed| [(seed, 1), (seed, 4)]) {
        told(async {
            let w = world(3, Luck(seed), None);
            w.boot(0);
            sleep(2000).await;
            let old = w.image(0);
            (1..3).for_each(|n| w.boot(n));
            w.set_up().await;
            sleep(4000).await;
            assert_eq!(w.peer(0).expect("it runs").voters(), 3);
            // As the image will come.
            register(&w, 2).await;
            for n in 0..3 {
                w.kill(n, seed % 2 == 0).await;
            }
            w.put_in(0, old);
            for start in 0..starts {
                if start > 0 {
                    w.kill(0, false).await;
                }
                w.boot(0);
                sleep(1000).await;
                assert!(first_leads(&w), "seed {seed}");
            }
            (1..3).for_each(|n| w.boot(n));
            sleep(5000).await;
            assert!(!first_leads(&w), "seed {seed}: an old image leads");
            assert!(error_of(&w, 0).is_some_and(|e| e.contains("old image")), "seed {seed}");
            let leader = leader(&w);
            assert!(leader.is_some() && w.peer(1).expect("it runs").voters() == 3, "seed {seed}");
        });
    }
}

/// With two nodes one votes for life: each image of it is one of a seat that votes alone. The other node has what came later.
#[test]
fn the_other_one_of_two_nodes_tells_an_old_image() {
    for (seed, is_first) in SEEDS.flat_map(|seed| [(seed, true), (seed, false)]) {
        told(async {
            let w = world(2, Luck(seed), None);
            (0..2).for_each(|n| w.boot(n));
            w.set_up().await;
            sleep(500).await;
            let old = w.image(0);
            register(&w, 2).await;
            sleep(500).await;
            for n in 0..2 {
                w.kill(n, seed % 2 == 0).await;
            }
            w.put_in(0, old);
            if is_first {
                w.boot(0);
                sleep(1000).await;
                assert!(first_leads(&w), "seed {seed}");
                w.boot(1);
            } else {
                w.boot(1);
                w.boot(0);
            }
            for _ in 0..300 {
                sleep(10).await;
                assert!(is_first || !first_leads(&w), "seed {seed}");
            }
            assert!(!first_leads(&w), "seed {seed}: an old image leads");
            assert!(error_of(&w, 0).is_some_and(|e| e.contains("old image")), "seed {seed}");
            assert_eq!(error_of(&w, 1), None);
        });
    }
}

/// The cluster as node 2 founds it after the state was lost, of which the first node has the newest store; it is down.
async fn with_a_founder_left_out(seed: u64) -> Rc<World> {
    let w = world(3, Luck(seed), None);
    w.boot(0);
    w.set_up().await;
    assert_eq!(w.peer(0).expect("it runs").voters(), 1);
    w.kill(0, false).await;
    w.put_in(0, w.image(0));
    let node = |n: u64| NodeName { node: NodeId(n), name: format!("data{n}"), address: format!("h{n}:1"), workers: 1 };
    let rebuilt = rebuild(CLUSTER, &[1, 2, 3].map(node), &[], 1 << 41).expect("there is nothing");
    w.wipe_out(1, Some(rebuilt.state));
    w.wipe_out(2, None);
    w
}

/// The state was lost but for a node that nobody had looked at. Its store is its newest one, and nobody knows of a later start: it
/// led what was lost beside what was made again.
#[test]
fn who_was_left_out_of_a_rebuild_stops_when_it_hears_of_it() {
    for (seed, is_cut) in SEEDS.flat_map(|seed| [(seed, false), (seed, true)]) {
        told(async {
            let w = with_a_founder_left_out(seed).await;
            (1..3).for_each(|n| w.boot(n));
            sleep(4000).await;
            let others = w.peer(1).expect("it runs").leader().0;
            assert!(others.is_some_and(|l| l.node == NodeId(2)), "seed {seed}");
            if is_cut {
                w.cut.borrow_mut().extend([(1, 2), (1, 3), (2, 1), (3, 1)]);
            }
            w.boot(0);
            for _ in 0..200 {
                sleep(10).await;
                assert!(is_cut || !first_leads(&w), "seed {seed}");
            }
            assert_eq!(first_leads(&w), is_cut, "seed {seed}");
            w.cut.borrow_mut().clear();
            sleep(3000).await;
            assert!(!first_leads(&w), "seed {seed}: it speaks for what was lost");
            let e = error_of(&w, 0);
            assert!(e.as_ref().is_some_and(|e| e.contains("control.store")), "seed {seed}: {e:?}");
            assert_eq!((error_of(&w, 1), error_of(&w, 2)), (None, None));
            assert_eq!(w.peer(2).expect("it runs").leader().0, others, "seed {seed}");
            // As that says.
            w.kill(0, false).await;
            w.wipe_out(0, None);
            w.boot(0);
            sleep(4000).await;
            assert_eq!(w.peer(0).expect("it runs").leader().0, others, "seed {seed}");
        });
    }
}

/// The same, with the one that was left out up first.
#[test]
fn who_was_left_out_and_is_up_first_stops_all_the_same() {
    for seed in SEEDS {
        told(async {
            let w = with_a_founder_left_out(seed).await;
            w.boot(0);
            sleep(1000).await;
            assert!(first_leads(&w), "seed {seed}");
            w.boot(1);
            sleep(3000).await;
            assert!(!first_leads(&w) && error_of(&w, 0).is_some(), "seed {seed}");
            assert_eq!(w.peer(1).expect("it runs").leader().0.map(|l| l.node), Some(NodeId(2)), "seed {seed}");
            assert_eq!(error_of(&w, 1), None);
        });
    }
}

/// A founder whose cluster file names itself alone knows the others from its store.
#[test]
fn who_is_told_of_nobody_asks_those_that_its_store_names() {
    for seed in SEEDS {
        told(async {
            let w = world(2, Luck(seed), None);
            (0..2).for_each(|n| w.boot(n));
            w.set_up().await;
            sleep(500).await;
            let old = w.image(0);
            register(&w, 9).await;
            sleep(500).await;
            w.kill(0, false).await;
            w.put_in(0, old);
            w.tell_of_none(0);
            w.boot(0);
            for _ in 0..200 {
                sleep(10).await;
                assert!(!first_leads(&w), "seed {seed}: an old image leads");
            }
            assert!(error_of(&w, 0).is_some(), "seed {seed}");
        });
    }
}

/// The founder dies while the others get votes, at any moment: with that in its own store or not, it is no old image.
#[test]
fn a_founder_that_dies_while_others_get_votes_goes_on() {
    for seed in 0..60 {
        told(async {
            let w = world(3, Luck(seed), None);
            (0..3).for_each(|n| w.boot(n));
            sleep(seed * 13).await;
            for n in 0..3 {
                w.kill(n, true).await;
            }
            (0..3).for_each(|n| w.boot(n));
            w.set_up().await;
            sleep(4000).await;
            assert!((0..3).all(|n| error_of(&w, n).is_none()), "seed {seed}");
            assert_eq!(w.peer(2).expect("it runs").voters(), 3, "seed {seed}");
            w.check().await;
        });
    }
}
