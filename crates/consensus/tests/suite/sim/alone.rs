//! Stories of a seat that votes alone, as it knows: an old image of it has nobody to be outvoted by (rule V8).

use super::leaders::leader;
use super::world::{Luck, World, sleep, told, world};
use freebs_consensus::Mutant;
use freebs_consensus::types::Randomness;
use freebs_control::Command;
use freebs_types::{ErrorKind, NodeId, StartNumber};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Seeds of each story.
const SEEDS: std::ops::Range<u64> = 0..20;

/// Each seed with each fate, and with and without a later start that the others know.
fn stories() -> impl Iterator<Item = (u64, Since, bool)> {
    let fates = [Since::Votes, Since::Anew].into_iter().flat_map(|since| [(since, true), (since, false)]);
    SEEDS.flat_map(move |seed| fates.clone().map(move |(since, later)| (seed, since, later)))
}

/// The cluster's fate while its founder was not looked at.
#[derive(Clone, Copy, Debug)]
enum Since {
    /// The others got votes.
    Votes,
    /// All that was decided was lost, and another node has founded the cluster anew, with what was made again.
    Anew,
}

/// The newest start of the founder is known to the second node.
async fn register(w: &World) {
    let (name, address, start) = ("data1".into(), "h1:1".into(), StartNumber(9));
    let started = Command::RegisterNode { node: NodeId(1), name, address, workers: 1, start };
    Randomness::scope(1, w.peer(1).expect("it runs").submit(started)).await.expect("nothing is in its way");
}

/// Three nodes, and in the first one the store that it had when it voted alone. Since then it was started again, if the others
/// know a later start; else the store is of the very start that they know. Now it is down.
async fn with_an_old_founder(seed: u64, since: Since, later: bool) -> Rc<World> {
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
            if later {
                register(&w).await;
            }
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
            if later {
                register(&w).await;
            }
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
    for (seed, since, later) in stories() {
        told(async {
            let w = with_an_old_founder(seed, since, later).await;
            let others = leader(&w);
            w.boot(0);
            for _ in 0..500 {
                sleep(10).await;
                assert!(!first_leads(&w), "seed {seed}, {since:?}, {later}: an old image leads");
            }
            let e = w.peer(0).expect("it runs").catch_up().await.expect_err("it has heard that it is old");
            assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
            assert_eq!(leader(&w), others, "seed {seed}, {since:?}, {later}");
            w.check().await;
        });
    }
}

/// All begin at the same time, so nobody leads who could be named. That the others vote is what tells.
#[test]
fn who_voted_alone_asks_those_that_begin_with_it() {
    for seed in SEEDS {
        told(async {
            let w = with_an_old_founder(seed, Since::Votes, false).await;
            for node in [1, 2] {
                w.kill(node, true).await;
            }
            (0..3).for_each(|n| w.boot(n));
            for _ in 0..500 {
                sleep(10).await;
                assert!(!first_leads(&w), "seed {seed}: an old image leads");
            }
            let e = w.peer(0).expect("it runs").check_outdated().expect_err("it has heard that it is old");
            assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
            assert!(matches!(leader(&w), Some((l, _)) if l.node != NodeId(1)), "seed {seed}: the others go on");
            w.check().await;
        });
    }
}

/// Where nobody is there who could tell, it goes on, as the newest store does: who votes alone needs nobody. Once it hears that
/// it is old it decides nothing more.
#[test]
fn who_voted_alone_stops_when_it_hears_that_it_is_old() {
    for (seed, since, later) in stories() {
        told(async {
            let w = with_an_old_founder(seed, since, later).await;
            let ways = [(1, 2), (1, 3), (2, 1), (3, 1)];
            w.cut.borrow_mut().extend(ways);
            w.boot(0);
            sleep(2000).await;
            assert!(first_leads(&w), "seed {seed}, {since:?}, {later}");
            let peer = w.peer(0).expect("it runs");
            assert!(peer.confirm_leadership().await && peer.check_outdated().is_ok());
            w.cut.borrow_mut().clear();
            sleep(3000).await;
            assert!(!peer.confirm_leadership().await, "seed {seed}, {since:?}, {later}");
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

/// The state was made again on the first node, and nodes that had a part in the one before come back with their stores: one of
/// three, whom nobody follows, or two, who could lead each other. The founder ended whenever it was told who voted before, and
/// the others went on beside it.
#[test]
fn who_founded_the_cluster_again_is_not_old() {
    for (seed, back) in SEEDS.flat_map(|seed| [(seed, 2..3), (seed, 1..3)]) {
        told(founded_again(seed, back, None));
    }
    let noticed = |back: Range<usize>| {
        let story = founded_again(3, back, Some(Mutant::EveryFoundingIsHeard));
        catch_unwind(AssertUnwindSafe(|| told(story))).is_err()
    };
    assert!(noticed(2..3) && noticed(1..3));
}

async fn founded_again(seed: u64, back: Range<usize>, mutant: Option<Mutant>) {
    let w = world(3, Luck(seed), mutant);
    (0..3).for_each(|n| w.boot(n));
    w.set_up().await;
    sleep(4000).await;
    assert_eq!(w.peer(0).expect("it runs").voters(), 3);
    for n in 0..3 {
        w.kill(n, false).await;
    }
    w.make_again(0, seed).await;
    w.boot(0);
    sleep(1500).await;
    assert!(first_leads(&w), "seed {seed}");
    back.clone().for_each(|n| w.boot(n));
    for _ in 0..500 {
        sleep(10).await;
        assert!(first_leads(&w), "seed {seed}: {back:?} ended who founded the cluster again");
    }
    let founder = w.peer(0).expect("it runs");
    assert!(founder.confirm_leadership().await && founder.check_outdated().is_ok(), "seed {seed}: {back:?}");
    for n in back {
        let old = w.peer(n).expect("it runs");
        let e = old.check_outdated().expect_err("it was told");
        assert!(e.text.contains("made again"), "{e}");
        assert!(!old.confirm_leadership().await, "seed {seed}: node {n} decides");
    }
    w.check().await;
}
