//! The control plane stands still, or loses its leader, while volumes are in use and others come and go; or that leader is
//! the head of the volume in use, too.

use super::figures::Figures;
use super::rig::{Moments, NODES, Rig, SOME, VOLUME, all_voting, another_head, five, start_node};
use crate::support::cluster::Cluster;
use crate::support::load::Answers;
use crate::support::plane::{Shown, agreed, churn, create, ms, settled};
use crate::support::tools::{KILLED_MAX, say, told, wait_at_most, wait_for};
use crate::support::{PATIENCE, Raised, Weight, full, rounds, turn};
use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// How three of the five nodes go.
#[derive(Clone, Copy, Debug)]
enum Gone {
    Frozen,
    Killed,
}

/// Three of five seats are gone, and with them their nodes, one of which is a member that is not the head (in turn the
/// middle one and the last): nobody decides anything, and the two members that are left go on.
fn without_a_majority(c: &Cluster, round: usize, how: Gone, away: Duration, writes: &Answers) -> Moments {
    let nodes = settled(c, NODES);
    let (head, others) = c.chain(VOLUME);
    let stays = [&head, &others[round % 2]];
    let (left, gone): (Vec<&Shown>, Vec<&Shown>) = nodes.iter().partition(|n| stays.contains(&&n.0));
    assert_eq!((left.len(), gone.len()), (2, 3));
    let hit = Instant::now();
    match how {
        Gone::Frozen => gone.iter().for_each(|n| c.pause(n.1)),
        Gone::Killed => c.kill(&gone.iter().map(|n| n.1).collect::<Vec<_>>()),
    }
    writes.more(SOME);
    // What a leader that was stopped had under way may still be decided by nobody.
    std::thread::sleep((away / 2).saturating_sub(hit.elapsed()));
    let name = format!("undecided{round}");
    let mut cmd = c.freebs();
    cmd.env("FREEBS_CLUSTER", &left[0].2).args(["volume", "create", &name, "--size", "64M", "--copies", "1"]);
    cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut asked = cmd.spawn().expect("it starts");
    std::thread::sleep(away.saturating_sub(hit.elapsed()).max(away / 2));
    writes.more(SOME);
    let ended = asked.try_wait().expect("our own child");
    let back = Instant::now();
    match how {
        Gone::Frozen => gone.iter().for_each(|n| c.resume(n.1)),
        Gone::Killed => gone.iter().for_each(|n| start_node(c, &n.0, n.1)),
    }
    assert!(!ended.is_some_and(|s| s.success()), "two of five must not decide\n{}", c.log());
    // It may be done now, or not any more.
    if wait_at_most(&mut asked, PATIENCE).is_none() {
        let _ = asked.kill();
        let _ = wait_at_most(&mut asked, KILLED_MAX);
    }
    Moments { hit, back }
}

#[test]
fn reads_and_writes_do_not_notice_that_nothing_is_decided() {
    let _turn = turn(Weight::Loaded);
    let c = five(&["--no-restart"]);
    let mut rig = Rig::on(&c, "no majority of seats");
    let seconds = if full() { 30 } else { 2 };
    let figures = |how: &str| Figures::new(format!("no control plane for {seconds} s, {how}")).longest_asked(0.1);
    let mut all = [(Gone::Frozen, figures("its nodes stopped")), (Gone::Killed, figures("its nodes killed"))];
    let rounds = rounds(4, 20);
    for round in 0..rounds {
        let (how, figures) = &mut all[round / 2 % 2];
        let away = Duration::from_secs(seconds);
        figures.add(rig.round(|writes| without_a_majority(&c, round, *how, away, writes)));
        // From then on the control plane decides again.
        let took = create(&c, None, &format!("decided{round}"), "3");
        say(&format!("round {round}: a volume was created within {:.3} s", took.as_secs_f64()));
    }
    let [(_, frozen), (_, killed)] = &all;
    rig.end(&[frozen, killed]);
    let names = agreed(&c, &settled(&c, NODES));
    assert!((0..rounds).all(|i| names.contains(&format!("decided{i}"))), "{names:?}");
}

/// The leader dies; then at least some commands are done without it, and the supervisor starts it again.
fn leader_killed(c: &Cluster, times: &Mutex<Vec<Duration>>) -> Moments {
    let leader = settled(c, NODES).swap_remove(0);
    let count = || times.lock().expect("not poisoned").len();
    let before = count();
    let hit = Instant::now();
    c.kill(&[leader.1]);
    wait_for("commands behind the kill", || (count() >= before + 6).then_some(()));
    let again = || c.nodes().iter().any(|n| n.0 == leader.0 && n.1 != leader.1).then_some(());
    wait_for("the killed node", again);
    Moments { hit, back: Instant::now() }
}

#[test]
fn leaders_of_five_killed_while_volumes_come_and_go() {
    let _turn = turn(Weight::Loaded);
    let c = five(&[]);
    let mut rig = Rig::on(&c, "kills of leaders");
    let mut figures = Figures::new("leader of the control plane killed while volumes come and go");
    let (stop, times) = (AtomicBool::new(false), Mutex::new(vec![]));
    let mut wanted = std::thread::scope(|s| {
        let clients = ["a", "b"].map(|who| s.spawn(|| churn(&c, who, "3", &stop, &times)));
        let _raised = Raised(&stop);
        for _ in 0..rounds(7, 50) {
            figures.add(rig.round(|_| leader_killed(&c, &times)));
        }
        drop(_raised);
        clients.into_iter().flat_map(|t| t.join().expect("a client")).collect::<BTreeSet<_>>()
    });
    wanted.insert(VOLUME.into());
    assert_eq!(agreed(&c, &settled(&c, NODES)), wanted, "volumes were lost, or came back");
    let times = &mut times.into_inner().expect("not poisoned");
    say(&format!("measured: {} commands under kills of the leader: {}", times.len(), ms(times)));
    rig.end(&[&figures]);
}

/// Nodes where each is a member of every chain, so that whichever leads can be the head.
const EACH_A_MEMBER: usize = 3;

/// The leader is made head of the volume, and dies as both. It comes back once others have gone on as leader and as head.
fn leading_head_killed(c: &Cluster, away: Duration, writes: &Answers) -> Moments {
    let (leader, pid, _) = settled(c, EACH_A_MEMBER).swap_remove(0);
    let (head, _) = c.chain(VOLUME);
    if head != leader {
        let out = c.cli(&["volume", "move-head", VOLUME, &leader]);
        assert!(out.status.success(), "{}\n{}", told(&out), c.log());
        another_head(c, &head, writes);
    }
    assert_eq!(c.chain(VOLUME).0, leader, "it heads the volume\n{}", c.log());
    let hit = Instant::now();
    c.kill(&[pid]);
    another_head(c, &leader, writes);
    std::thread::sleep(away.saturating_sub(hit.elapsed()));
    let back = Instant::now();
    start_node(c, &leader, pid);
    Moments { hit, back }
}

/// Clients stood still for 1.2 s, and for 0.1 to 0.2 s if another node led.
#[test]
fn heads_that_lead_the_control_plane_killed_again_and_again() {
    let _turn = turn(Weight::Loaded);
    let c = all_voting(EACH_A_MEMBER, &["--no-restart"]);
    let mut rig = Rig::on(&c, "kills of heads that lead");
    let away = Duration::from_secs(if full() { 2 } else { 0 });
    let mut figures = Figures::new("head that leads the control plane killed").median_asked(0.4).longest_asked(0.8);
    for _ in 0..rounds(3, 10) {
        figures.add(rig.round(|writes| leading_head_killed(&c, away, writes)));
    }
    rig.end(&[&figures]);
}
