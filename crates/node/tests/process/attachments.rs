//! Who may use a volume: one gateway takes it from another under load, and from then on the other one gets errors only.

use crate::support::cluster::{Cluster, Setup, scratch};
use crate::support::control::request;
use crate::support::gateway::Gateway;
use crate::support::load::{Answers, block_of, number_of};
use crate::support::nbd::{Client, Op};
use crate::support::rng::Rng;
use crate::support::tools::{say, told, wait_for};
use crate::support::{Raised, Weight, full, turn};
use freebs_control::Command;
use freebs_control::api::{Reply, Request};
use freebs_types::Hash32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u32 = 4096;
/// Writes that the new one does while somebody is frozen, and again afterwards.
const SOME: u64 = 100;

/// A request, when it was sent, and whether its answer was a success.
struct Asked {
    /// The number that it wrote; `None` for a read.
    wrote: Option<u64>,
    sent: Instant,
    done: bool,
}

/// Writes numbers that go up, and reads, one after the other, until told to stop, or the connection ends. Successes are
/// counted.
fn use_volume(mut client: Client, at: u64, stop: &AtomicBool, successes: &Answers) -> Vec<Asked> {
    let mut all = Vec::new();
    for i in 1u64.. {
        let wrote = (i % 2 == 0).then_some(i);
        let op = match wrote {
            Some(i) => Op::Write { at, data: block_of(i), fua: false },
            None => Op::Read { at, len: BLOCK },
        };
        let sent = Instant::now();
        let Ok(result) = client.ask(&op) else { break };
        if result.is_ok() {
            successes.add();
        }
        all.push(Asked { wrote, sent, done: result.is_ok() });
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    all
}

/// The attachment moves to and fro. In turn nothing else happens, a member stands still, or the head does.
#[test]
fn who_lost_a_volume_gets_errors_only() {
    let _turn = turn(Weight::Light);
    let rounds = if full() { 100 } else { 6 };
    let mut rng = Rng::announced("attachments");
    let c = Cluster::up(Setup::default());
    let dir = scratch();
    let gateways = ["one", "two"].map(|name| Gateway::start(&c, dir.path(), name));
    let mut waits = Vec::new();
    for round in 0..rounds {
        let [old, new] = [&gateways[round % 2], &gateways[(round + 1) % 2]];
        let client = Client::attach(&old.place, "demo");
        let (stop, successes) = (AtomicBool::new(false), Answers::default());
        let (head, others) = c.chain("demo");
        let victim = match round % 3 {
            1 => Some(others[rng.below(2) as usize].clone()),
            2 => Some(head),
            _ => None,
        };
        let frozen = victim.map(|name| c.nodes().into_iter().find(|n| n.0 == name).expect("it is up").1);
        let at = round as u64 * u64::from(BLOCK);
        let (all, ready, took, found) = std::thread::scope(|s| {
            let load = s.spawn(|| use_volume(client, at, &stop, &successes));
            // Also when something here panics, so that the load ends.
            let raised = Raised(&stop);
            successes.more(20 + rng.below(100));
            frozen.iter().for_each(|pid| c.pause(*pid));
            let begun = Instant::now();
            let mut second = Client::attach(&new.place, "demo");
            let ready = Instant::now();
            let found = number_of(&second.read(at, BLOCK));
            let write = |second: &mut Client| (0..SOME).for_each(|i| second.write(64 << 20, &block_of(i)));
            write(&mut second);
            frozen.iter().for_each(|pid| c.resume(*pid));
            // Whoever was frozen and knows nothing of all that may answer now.
            c.wait_healthy("demo");
            write(&mut second);
            drop(raised);
            let all = load.join().expect("the load");
            assert_eq!(number_of(&second.read(64 << 20, BLOCK)), SOME - 1);
            assert_eq!(
                number_of(&second.read(at, BLOCK)),
                found,
                "round {round}: the old one wrote behind the new one's back"
            );
            (all, ready, ready - begun, found)
        });
        if let Some(a) = all.iter().find(|a| a.done && a.sent > ready) {
            let what = if a.wrote.is_some() { "write" } else { "read" };
            let sent = a.sent.saturating_duration_since(ready);
            panic!("round {round}: a {what} sent {sent:?} after the other was ready succeeded\n{}", c.log());
        }
        // An answer that came late may have been given in time. If it was not, the new one has not seen what it promised.
        let promised = all.iter().filter(|a| a.done).filter_map(|a| a.wrote).max();
        assert!(promised <= Some(found), "round {round}: {promised:?} was promised, {found} was found\n{}", c.log());
        assert!(all.iter().filter(|a| a.done).count() > 10, "round {round}: the old one did hardly anything");
        waits.push(took);
        c.wait_healthy("demo");
    }
    waits.sort();
    let (half, most) = (waits[waits.len() / 2].as_secs_f64(), waits[waits.len() - 1].as_secs_f64());
    say(&format!("measured: a volume taken over {rounds} times: median {half:.2} s, longest {most:.2} s"));
    c.verify("demo");
}

/// A gateway that was killed has the volume attached still. Started again it takes it up, once its own old leases have
/// ended.
#[test]
fn a_gateway_that_was_killed_takes_its_volume_up_again() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup::default());
    let mut client = Client::attach(&c.place, "demo");
    client.write(0, &[7; BLOCK as usize]);
    let killed = c.gateways()[0].1;
    c.kill(&[killed]);
    let begun = Instant::now();
    let mut client = Client::attach(&c.place, "demo");
    say(&format!("measured: gateway killed, volume in use again after {:.2} s", begun.elapsed().as_secs_f64()));
    assert_eq!(client.read(0, BLOCK), [7; BLOCK as usize]);
}

/// A volume is refused to another client host for as long as the one that has it is there, idle or not. When that one
/// is gone for good, the other one gets it without anybody's help, and finds what was written.
#[test]
fn a_host_that_is_gone_loses_its_volumes_to_who_asks() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup::default());
    let dir = scratch();
    let mut old = Gateway::start_as(&c, dir.path(), "old", "one host");
    let new = Gateway::start_as(&c, dir.path(), "new", "another host");
    let mut client = Client::attach(&old.place, "demo");
    client.write(0, &[7; BLOCK as usize]);
    // The other gateway knows the volume, and is refused.
    let begun = Instant::now();
    let mut refused = 0;
    while begun.elapsed() < Duration::from_secs(5) {
        match Client::connect(&new.place, "demo", true) {
            Ok(_) => panic!("it was taken from an idle client after {:?}\n{}", begun.elapsed(), c.log()),
            Err(_) => refused += 1,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(refused > 5, "asked in vain {refused} times");
    assert_eq!(client.read(0, BLOCK), [7; BLOCK as usize], "whoever has it is not disturbed");
    old.kill();
    let begun = Instant::now();
    let mut client = Client::attach(&new.place, "demo");
    say(&format!("measured: a host is gone, another one has its volume after {:.2} s", begun.elapsed().as_secs_f64()));
    assert_eq!(client.read(0, BLOCK), [7; BLOCK as usize]);
    client.write(0, &[8; BLOCK as usize]);
    let out = c.cli(&["events", "--volume", "demo"]);
    let events = String::from_utf8_lossy(&out.stdout);
    assert!(events.contains("taken_over") && events.contains("from old, whose attachment had lapsed"), "{events}");
    drop(client);
    c.verify("demo");
}

/// A driver was given a generation, and died before any node heard from it. Others are refused until it could have come,
/// and then have the volume without being told to use force.
#[test]
fn an_attachment_whose_driver_never_came_ends() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup::default());
    c.wait_healthy("demo");
    let mut client = Client::attach(&c.place, "demo");
    client.write(0, &[1; 4096]);
    drop(client);
    wait_for("the volume is nobody's", || c.volume("demo")["attached"].is_null().then_some(()));
    let volume = serde_json::from_value(c.volume("demo")["id"].clone()).expect("a number");
    let command = Command::AttachVolume {
        volume,
        identity: Hash32([7; 32]),
        name: "ghost".into(),
        force: false,
        since: None,
        lapsed: false,
    };
    let reply = request(&c.address(), &Request::Submit { command });
    assert!(matches!(reply, Ok(Reply::Done(_))), "{reply:?}");
    let detach = || c.cli(&["volume", "detach", "demo"]);
    let refused = detach();
    assert_eq!(refused.status.code(), Some(1), "it may be on its way: {}", told(&refused));
    assert!(told(&refused).contains("ghost"), "{}", told(&refused));
    wait_for("it has lapsed", || detach().status.success().then_some(()));
    let mut client = Client::attach(&c.place, "demo");
    assert_eq!(client.read(0, 4096), [1; 4096]);
    client.write(4096, &[2; 4096]);
    drop(client);
    c.verify("demo");
}
