//! A volume is taken by force from a gateway that is there, and in use: from the return of `freebs volume attach --force`
//! on, none of its requests has a success.

use crate::support::cluster::{Cluster, Setup, scratch};
use crate::support::gateway::Gateway;
use crate::support::load::{Answers, block_of, number_of};
use crate::support::nbd::{Client, Op};
use crate::support::rng::Rng;
use crate::support::tools::say;
use crate::support::{PATIENCE, Raised, Weight, rounds, turn};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u32 = 4096;
/// Connections of the old one, each with a block of its own.
const CLIENTS: u64 = 3;
/// Between a failed request and the next one.
const AFTER_AN_ERROR: Duration = Duration::from_millis(1);
/// Failed requests of each client behind the attach, so that it is known to have tried.
const FAILURES: u64 = 50;
/// Times in a row that a gateway may have been stopped in the moment between its decision and its answer.
const UNSURE_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The number that was written.
    Write(u64),
    Read,
    Flush,
}

/// A request of the old one's clients: monotonic times of its sending and its answer.
#[derive(Clone, Copy, Debug)]
struct Asked {
    what: What,
    sent: Instant,
    answered: Instant,
    success: bool,
}

/// Successes of requests that were sent when the other one had the volume already, or the old one stood still. There must
/// be none. A request that was sent before may have been answered before, too, and its answer read late.
fn stolen(all: &[Asked], since: Instant) -> Vec<Asked> {
    all.iter().filter(|a| a.success && a.sent >= since).copied().collect()
}

/// Successes that were read after the attach had `returned`, of requests that were sent before `since`; how late the last
/// one was.
fn late(all: &[Asked], since: Instant, returned: Instant) -> (usize, Duration) {
    let late = all.iter().filter(|a| a.success && a.sent < since && a.answered > returned);
    late.fold((0, Duration::ZERO), |(n, most), a| (n + 1, most.max(a.answered - returned)))
}

/// Writes numbers that go up, reads and flushes, one after the other, whether they fail or not, until told to stop or
/// the connection ends.
fn use_volume(mut client: Client, at: u64, stop: &AtomicBool, successes: &Answers, failures: &Answers) -> Vec<Asked> {
    let mut all = Vec::new();
    for i in 1u64.. {
        let (what, op) = match i % 3 {
            0 => (What::Write(i), Op::Write { at, data: block_of(i), fua: false }),
            1 => (What::Read, Op::Read { at, len: BLOCK }),
            _ => (What::Flush, Op::Flush),
        };
        let sent = Instant::now();
        let Ok(result) = client.ask(&op) else { break };
        all.push(Asked { what, sent, answered: Instant::now(), success: result.is_ok() });
        if result.is_ok() {
            successes.add();
        } else {
            failures.add();
            std::thread::sleep(AFTER_AN_ERROR);
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    all
}

/// Three requests at once, by a client that has asked nothing yet, before anybody is let go that stands still.
fn send_all(client: &mut Client, at: u64) -> Vec<(u64, What, Instant)> {
    let write = Op::Write { at, data: block_of(u64::MAX), fua: false };
    let all = [(What::Flush, Op::Flush), (What::Read, Op::Read { at, len: BLOCK }), (What::Write(u64::MAX), write)];
    let sent = all.into_iter().map(|(what, op)| {
        let sent = Instant::now();
        client.send(&op).ok().map(|cookie| (cookie, what, sent))
    });
    sent.flatten().collect()
}

/// Their answers; none of a connection that ended.
fn take_all(client: &mut Client, sent: &[(u64, What, Instant)]) -> Vec<Asked> {
    let mut all = Vec::new();
    while all.len() < sent.len() {
        let Ok(answer) = client.answer(PATIENCE) else { break };
        let answer = answer.expect("an answer in time");
        let of = sent.iter().find(|(cookie, ..)| *cookie == answer.cookie).expect("one that was asked");
        all.push(Asked { what: of.1, sent: of.2, answered: Instant::now(), success: answer.result.is_ok() });
    }
    all
}

/// Times of a round: the command was given, with whoever was to stand still standing still, and had returned.
struct Times {
    begun: Instant,
    returned: Instant,
}

/// One round: the volume goes from `old` to `new` by force while `frozen` stands still. All that the old one's clients
/// asked, and when.
fn round(
    c: &Cluster,
    old: &Gateway,
    new: (&str, &Gateway),
    frozen: Option<u32>,
    calm: u64,
) -> (Vec<Vec<Asked>>, Times) {
    let clients: Vec<Client> = (0..CLIENTS).map(|_| Client::attach(&old.place, "demo")).collect();
    let mut last = Client::attach(&old.place, "demo");
    let (stop, successes) = (AtomicBool::new(false), Answers::default());
    let failures: Vec<Answers> = (0..CLIENTS).map(|_| Answers::default()).collect();
    let mut newest = Vec::new();
    let (all, times) = std::thread::scope(|s| {
        let (stop, successes) = (&stop, &successes);
        let load = |(i, client): (u64, Client)| {
            let failures = &failures[i as usize];
            s.spawn(move || use_volume(client, i * u64::from(BLOCK), stop, successes, failures))
        };
        let loads: Vec<_> = (0..).zip(clients).map(load).collect();
        // Also when something here panics, so that the load ends.
        let raised = Raised(stop);
        successes.more(calm);
        frozen.iter().for_each(|pid| c.pause(*pid));
        let begun = Instant::now();
        let attached = c.json(&["volume", "attach", "demo", "--force", "--gateway", new.0]);
        let returned = Instant::now();
        assert_ne!(attached["taken_from"], serde_json::Value::Null, "{attached}");
        let mut second = Client::attach(&new.1.place, "demo");
        newest.extend((0..CLIENTS).map(|i| number_of(&second.read(i * u64::from(BLOCK), BLOCK))));
        (0..50).for_each(|i| second.write(64 << 20, &block_of(i)));
        let sent = send_all(&mut last, CLIENTS * u64::from(BLOCK));
        frozen.iter().for_each(|pid| c.resume(*pid));
        let asked_last = take_all(&mut last, &sent);
        // One that was frozen, and knows nothing of all that, may answer now.
        c.wait_healthy("demo");
        failures.iter().for_each(|f| f.more(FAILURES));
        for (i, found) in (0..).zip(&newest) {
            let now = number_of(&second.read(i * u64::from(BLOCK), BLOCK));
            assert_eq!(now, *found, "the old one wrote behind the new one's back\n{}", c.log());
        }
        drop(raised);
        let mut all: Vec<_> = loads.into_iter().map(|l| l.join().expect("the load")).collect();
        all.push(asked_last);
        (all, Times { begun, returned })
    });
    let asked_last = all.last().map_or(0, Vec::len);
    assert!(frozen.is_none() || asked_last > 0, "the old one was asked nothing while somebody stood still");
    for (all, found) in all.iter().zip(newest) {
        let written = all.iter().filter(|a| a.success).filter_map(|a| match a.what {
            What::Write(n) => Some(n),
            What::Read | What::Flush => None,
        });
        let promised = written.max().unwrap_or(0);
        assert!(promised <= found, "{promised} was promised, and the new one found {found}\n{}", c.log());
    }
    (all, times)
}

/// The process that stands still while the volume is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Still {
    Nobody,
    Member,
    Head,
    /// The old gateway itself: it awakes with requests before it, and has heard of nothing.
    Gateway,
}

/// In turn, and the same once more when the old gateway was stopped between its decision to answer and the sending: those
/// successes are of the time before, but look from here like the ones of a gateway that awakes and does not look at its
/// leases. Such a one would do it each time.
#[test]
fn a_volume_that_is_taken_by_force_answers_its_old_clients_nothing_any_more() {
    let _turn = turn(Weight::Light);
    let rounds = rounds(4, 30);
    let mut rng = Rng::announced("forced attachments");
    let c = Cluster::up(Setup::default());
    let dir = scratch();
    let names = ["one", "two"];
    let gateways = names.map(|name| Gateway::start_as(&c, dir.path(), name, name));
    let turns = [Still::Nobody, Still::Member, Still::Head, Still::Gateway];
    let mut left: VecDeque<Still> = turns.into_iter().cycle().take(rounds).collect();
    let (mut waits, mut before, mut behind, mut unsure) = (Vec::new(), 0, (0, Duration::ZERO), 0);
    while let Some(still) = left.pop_front() {
        let round = waits.len();
        let (old, new) = (round % 2, (round + 1) % 2);
        c.wait_healthy("demo");
        let (head, others) = c.chain("demo");
        let pid = |name: &str| c.nodes().into_iter().find(|n| n.0 == name).expect("it is up").1;
        let frozen = match still {
            Still::Nobody => None,
            Still::Member => Some(pid(&others[rng.below(2) as usize])),
            Still::Head => Some(pid(&head)),
            Still::Gateway => Some(gateways[old].pid()),
        };
        let calm = 60 + rng.below(200);
        let (all, times) = self::round(&c, &gateways[old], (names[new], &gateways[new]), frozen, calm);
        let since = if still == Still::Gateway { times.begun } else { times.returned };
        let mut found = (0, Duration::ZERO);
        for all in all {
            if let Some(a) = stolen(&all, since).first() {
                let after = a.answered - times.returned;
                panic!("round {round}, {still:?}: {:?} succeeded {after:?} after the attach\n{}", a.what, c.log());
            }
            let (n, most) = late(&all, since, times.returned);
            found = (found.0 + n, found.1.max(most));
            before += all.iter().filter(|a| a.success).count();
        }
        behind = (behind.0 + found.0, behind.1.max(found.1));
        if still == Still::Gateway {
            unsure = if found.0 > 0 { unsure + 1 } else { 0 };
            assert!(unsure < UNSURE_MAX, "{found:?} successes, each time that the old one awoke\n{}", c.log());
            if unsure > 0 {
                left.push_front(still);
            }
        }
        waits.push(times.returned - times.begun);
    }
    waits.sort();
    let (half, most) = (waits[waits.len() / 2].as_secs_f64(), waits[waits.len() - 1].as_secs_f64());
    say(&format!(
        "measured: a volume taken by force {} times: median {half:.2} s, longest {most:.2} s; {before} successes of \
         the old one, {} of them read after the attach had returned (the last one {:.1} ms), none sent after it",
        waits.len(),
        behind.0,
        behind.1.as_secs_f64() * 1000.0
    ));
    c.json(&["volume", "detach", "demo"]);
    c.verify("demo");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check above sees each kind of request that succeeds when it must not, and nothing else.
    #[test]
    fn one_success_too_many_is_seen() {
        let at = |ms: u64| BEGUN.with(|b| *b + Duration::from_millis(ms));
        thread_local!(static BEGUN: Instant = Instant::now());
        let asked = |what, sent, answered, success| Asked { what, sent: at(sent), answered: at(answered), success };
        let sound = [
            asked(What::Write(3), 0, 10, true),
            asked(What::Read, 90, 120, true),
            asked(What::Flush, 95, 150, false),
            asked(What::Write(6), 110, 130, false),
        ];
        assert!(stolen(&sound, at(100)).is_empty());
        assert_eq!(stolen(&sound, at(80)).len(), 1, "sent while the old one stood still");
        assert_eq!(late(&sound, at(100), at(100)), (1, Duration::from_millis(20)));
        assert_eq!(late(&sound, at(80), at(100)), (0, Duration::ZERO));
        for what in [What::Write(9), What::Read, What::Flush] {
            let mut all = sound.to_vec();
            all.push(asked(what, 101, 102, true));
            let found = stolen(&all, at(100));
            assert_eq!(found.iter().map(|a| a.what).collect::<Vec<_>>(), [what]);
        }
    }
}
