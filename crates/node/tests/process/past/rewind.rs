//! A volume that keeps its past: snapshots and clones of moments and of versions, and rewinds, against plain copies of
//! what it had.

use super::*;
use crate::support::cluster::Setup;
use crate::support::nbd::Op;
use crate::support::tools::wait_for;
use crate::support::{Weight, rounds, shared, turn};
use serde_json::Value;
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BYTES: u64 = 8 << 20;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

fn date(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

/// A volume and what it has, and had.
struct Kept {
    bytes: Vec<u8>,
    /// By the moment, in milliseconds since 1970.
    then: Vec<(u64, Vec<u8>)>,
    rng: Rng,
}

impl Kept {
    fn new(seed: u64) -> Self {
        Self { bytes: vec![0; BYTES as usize], then: Vec::new(), rng: Rng::new(seed) }
    }

    /// A write, zeroes or a trim somewhere.
    fn change(&mut self, client: &mut Client) {
        let blocks = BYTES / 4096;
        let (at, count) = (self.rng.below(blocks), 1 + self.rng.below(48));
        let (at, len) = (at * 4096, count.min(blocks - at) * 4096);
        let data = match self.rng.below(8) {
            0 => {
                assert_eq!(client.ask(&Op::Trim { at, len: len as u32 }).expect("an answer"), Ok(vec![]));
                vec![0; len as usize]
            }
            1 => {
                let data = vec![0; len as usize];
                client.write(at, &data);
                data
            }
            _ => {
                let data = noise(self.rng.next(), len as usize);
                client.write(at, &data);
                data
            }
        };
        self.bytes[at as usize..][..data.len()].copy_from_slice(&data);
    }

    /// A tenth of a second in which nothing is written passes; what there was at its begin is remembered.
    fn moment(&mut self) -> u64 {
        let moment = now_ms().next_multiple_of(100);
        wait_for("the moment", || (now_ms() > moment).then_some(()));
        self.then.push((moment, self.bytes.clone()));
        moment
    }

    fn at(&self, moment: u64) -> &[u8] {
        &self.then.iter().find(|(m, _)| *m == moment).expect("a moment").1
    }
}

fn found(c: &Cluster, export: &str) -> Vec<u8> {
    read_all(&mut Client::connect(&c.place, export, true).unwrap_or_else(|e| panic!("{export}: {e}\n{}", c.log())))
}

#[track_caller]
fn same(c: &Cluster, export: &str, want: &[u8], when: &str) {
    let differ = differ(&found(c, export), want);
    assert_eq!(differ, None, "{export} is not what it should be, {when}");
}

#[track_caller]
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

/// The window has begun on all shards.
fn keeps_from_now(c: &Cluster, volume: &str) {
    wait_for("the window", || {
        let name = format!("probe-{}", now_ms());
        let out = c.cli(&["snapshot", "create", volume, "--at", &date(now_ms() - 200), "--name", &name]);
        out.status.success().then(|| c.cli(&["snapshot", "delete", &format!("{volume}@{name}")]))
    });
}

/// Gives the volume back: the gateway does so a moment after its last client has left.
fn quiet(c: &Cluster, volume: &str) {
    wait_for("it is nobody's", || c.volume(volume)["attached"].is_null().then_some(()));
}

#[test]
fn any_moment_can_be_read_cloned_and_gone_back_to() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &["--shards", "3", "--stripe", "64K", "--retain", "1h"]);
    keeps_from_now(&c, &volume);
    let mut kept = Kept::new(7);
    let mut client = c.client(&volume);
    for _ in 0..rounds(8, 60) {
        for _ in 0..1 + kept.rng.below(6) {
            kept.change(&mut client);
        }
        kept.moment();
    }
    let moments: Vec<u64> = kept.then.iter().map(|(m, _)| *m).collect();
    for (n, moment) in moments.iter().enumerate().rev().step_by(3) {
        let name = format!("{volume}@m{n}");
        let made = c.json(&["snapshot", "create", &volume, "--at", &date(*moment), "--name", &format!("m{n}")]);
        assert_eq!(made["past"]["time_ms"], *moment, "{made}");
        same(&c, &name, kept.at(*moment), "a snapshot of the past");
    }
    // A clone needs no snapshot that stays.
    let (clone, third) = (format!("{volume}-clone"), moments[2]);
    c.json(&["volume", "clone", &volume, &clone, "--at", &date(third)]);
    same(&c, &clone, kept.at(third), "a clone of the past");
    let names = c.json(&["snapshot", "list", &volume]).to_string();
    assert!(!names.contains("clone-"), "{names}");

    // Back, and forth again to what was kept.
    drop(client);
    quiet(&c, &volume);
    let last = kept.bytes.clone();
    let done = c.json(&["volume", "rewind", &volume, "--to", &date(third)]);
    same(&c, &volume, kept.at(third), "rewound");
    let before = done["before"].as_str().expect("the present is kept").to_owned();
    same(&c, &format!("{volume}@{before}"), &last, "what was there before");
    quiet(&c, &volume);
    let done = c.json(&["volume", "rollback", &format!("{volume}@{before}"), "--discard-present"]);
    assert!(done["before"].is_null() && done["changed"].as_u64() > Some(0), "{done}");
    same(&c, &volume, &last, "rolled back");
    // The way back is in the window, too.
    let fourth = moments[4];
    c.json(&["snapshot", "create", &volume, "--at", &date(fourth), "--name", "later"]);
    same(&c, &format!("{volume}@later"), kept.at(fourth), "after all that");
    c.verify(&volume);
}

/// The versions of single writes, the heads of which are killed in between.
#[test]
fn single_updates_are_found_whatever_becomes_of_the_head() {
    let _turn = turn(Weight::Heavy);
    let c = Cluster::up(Setup { nodes: 3, ..Setup::default() });
    c.json(&["volume", "create", "v", "--size", "8M", "--retain", "1h"]);
    keeps_from_now(&c, "v");
    let mut kept = Kept::new(11);
    let mut client = Client::attach(&c.place, "v");
    let (mut moments, mut killed) = (Vec::new(), Vec::new());
    for round in 0..6 {
        for _ in 0..4 {
            kept.change(&mut client);
        }
        moments.push(kept.moment());
        if round % 2 == 1 && round < 4 {
            let (head, _) = c.chain("v");
            c.kill(&[c.pid_of(&head)]);
            killed.push(head);
            c.wait_healthy("v");
            std::thread::sleep(Duration::from_millis(300));
        }
    }
    for moment in &moments {
        let name = format!("m{moment}");
        c.json(&["snapshot", "create", "v", "--at", &date(*moment), "--name", &name]);
        same(&c, &format!("v@{name}"), kept.at(*moment), &format!("heads killed: {killed:?}"));
    }
    // One write more, between two versions that name what was in front of it and behind it.
    let version = |c: &Cluster| {
        let made = c.json(&["snapshot", "create", "v"]);
        let version = made["volumes"][0]["cuts"][0][1].as_u64().expect("a version");
        assert!(
            c.cli(&["snapshot", "delete", &format!("v@{}", made["name"].as_str().expect("a name"))]).status.success()
        );
        version
    };
    let (before, first) = (kept.bytes.clone(), version(&c));
    kept.change(&mut client);
    let second = version(&c);
    for (n, version) in (first..second).enumerate() {
        let made = c.json(&["snapshot", "create", "v", "--version", &version.to_string(), "--name", &format!("u{n}")]);
        assert_eq!(made["past"]["version"], version, "{made}");
        let export = format!("v@u{n}");
        let has = found(&c, &export);
        assert!(has == before || has == kept.bytes, "{export} is neither");
    }
    same(&c, "v@u0", &before, "in front of the write");
    same(&c, &format!("v@u{}", second - first - 1), &kept.bytes, "behind it");
}

#[test]
fn what_is_not_there_any_more_is_said() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let plain = c.volume("8M", &[]);
    let hint = format!("volume retain {plain} 24h");
    refused(&c.cli(&["snapshot", "create", &plain, "--at", "1min"]), &["keeps nothing of its past", &hint]);
    assert_eq!(c.cli(&["volume", "rewind", &plain]).status.code(), Some(2));
    refused(&c.cli(&["volume", "rewind", "none", "--to", "1min"]), &["none"]);
    let many = c.volume("8M", &["--shards", "2", "--retain", "1h"]);
    refused(&c.cli(&["snapshot", "create", &many, "--version", "5"]), &["single shard", "name a time"]);
    let volume = c.volume("8M", &["--retain", "1h"]);
    keeps_from_now(&c, &volume);
    let early = c.cli(&["snapshot", "create", &volume, "--at", "2020-01-01T00:00:00Z"]);
    refused(&early, &["keeps versions", "knows times from", "outside of that"]);
    refused(&c.cli(&["snapshot", "create", &volume, "--at", "2120-01-01T00:00:00Z"]), &["not come yet"]);
    refused(&c.cli(&["snapshot", "create", &volume, "--version", "123456"]), &["keeps versions", "version 123456"]);
    refused(&c.cli(&["volume", "rollback", &format!("{volume}@none")]), &["no snapshot"]);
    assert_eq!(c.cli(&["volume", "retain", &volume, "soon"]).status.code(), Some(2));
    refused(&c.cli(&["volume", "retain", &volume, "500ms"]), &["1 second to 35 days"]);
    refused(&c.cli(&["volume", "clone", &volume, "x"]), &["--at or --version"]);

    // Nothing half-made is left in lists, and who has the volume keeps it.
    let mut client = c.client(&volume);
    client.write(0, &noise(1, 4096));
    snapshot(&c, &volume, "s");
    client.write(0, &noise(2, 4096));
    refused(&c.cli(&["volume", "rollback", &format!("{volume}@s")]), &["attached by", "volume detach"]);
    assert_eq!(client.read(0, 4096), noise(2, 4096));
    let list = c.json(&["snapshot", "list", &volume]);
    let complete: Vec<&Value> =
        list["snapshots"].as_array().expect("a list").iter().filter(|s| s["stage"] == "complete").collect();
    assert_eq!(complete.len(), 1, "{list}");
    // Off, the past goes; snapshots stay.
    c.json(&["volume", "retain", &volume, "off"]);
    assert!(told(&c.cli(&["volume", "show", &volume])).contains("1 snapshot"));
    refused(&c.cli(&["snapshot", "create", &volume, "--at", "1s"]), &["keeps nothing of its past"]);
}
