//! `freebs volume attach` and `detach`: a volume is attached before clients come, taken from another host, and given
//! back.

use crate::support::cluster::{Cluster, Setup, scratch};
use crate::support::gateway::Gateway;
use crate::support::nbd::{Client, Op};
use crate::support::tools::{say, told, wait_for};
use crate::support::{PATIENCE, Weight, shared, turn};
use serde_json::Value;
use std::process::Output;
use std::time::Instant;

const BLOCK: usize = 4096;
const EIO: u32 = 5;
const ESHUTDOWN: u32 = 108;

/// The command ends with status 1 and says these words.
fn refused(out: &Output, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(1), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

/// The holder of a volume, and the newest generation.
fn holder(c: &Cluster, volume: &str) -> (Option<String>, u64) {
    let v = c.json(&["volume", "show", volume]);
    (v["attached"].as_str().map(str::to_owned), v["generation"].as_u64().expect("a number"))
}

/// Texts of a volume's events of a kind, oldest first.
fn events(c: &Cluster, volume: &str, kind: &str) -> Vec<String> {
    let out = c.cli(&["events", "--json", "--volume", volume]);
    let lines = String::from_utf8(out.stdout).expect("text");
    let all = lines.lines().map(|l| serde_json::from_str::<Value>(l).expect("an object on each line"));
    all.filter(|e| e["kind"] == kind).map(|e| e["text"].as_str().expect("a text").to_owned()).collect()
}

/// True if a request has no success: an error, or a connection that ended.
fn fails(client: &mut Client) -> bool {
    !matches!(client.ask(&Op::Read { at: 0, len: BLOCK as u32 }), Ok(Ok(_)))
}

#[test]
fn a_volume_stays_attached_from_attach_to_detach() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    assert_eq!(holder(&c, &own), (None, 0));
    let first = c.json(&["volume", "attach", &own]);
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let expected = serde_json::json!({
        "volume": own, "gateway": "gateway", "host": hostname.trim(), "generation": 1,
        "uri": c.place.uri(&own), "taken_from": null,
    });
    assert_eq!(first, expected);
    assert_eq!(holder(&c, &own), (Some("gateway".into()), 1));
    assert_eq!(c.json(&["volume", "attach", &own, "--force"]), first, "it is attached here already");
    // Clients come and go, and it stays.
    let mut client = c.client(&own);
    client.write(0, &[7; BLOCK]);
    refused(&c.cli(&["volume", "detach", &own]), &["gateway: 1 client uses it here", "--force"]);
    client.write(0, &[8; BLOCK]);
    drop(client);
    let detached = wait_for("the end of the client", || {
        let out = c.cli(&["volume", "detach", &own, "--json"]);
        out.status.success().then(|| serde_json::from_slice::<Value>(&out.stdout).expect("JSON"))
    });
    assert_eq!(detached, serde_json::json!({ "volume": own, "detached_from": "gateway", "generation": 1 }));
    assert_eq!(holder(&c, &own), (None, 1));
    let again = c.json(&["volume", "detach", &own]);
    assert_eq!(again, serde_json::json!({ "volume": own, "detached_from": null, "generation": 1 }));
    // A client alone attaches it, and the last one that leaves gives it back, as ever.
    let mut client = c.client(&own);
    assert_eq!(client.read(0, BLOCK as u32), [8; BLOCK]);
    assert_eq!(holder(&c, &own), (Some("gateway".into()), 2));
    drop(client);
    wait_for("the end of the attachment", || (holder(&c, &own) == (None, 2)).then_some(()));
    assert_eq!(events(&c, &own, "attached"), ["by gateway (generation 1)", "by gateway (generation 2)"]);
    assert_eq!(events(&c, &own, "detached"), ["by gateway", "by gateway"]);
}

/// All that was asked is answered, done or refused, then the connection ends; a client that connects anew finds all that
/// was done.
#[test]
fn clients_of_a_volume_that_is_detached_by_force_are_told() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let mut client = c.client(&own);
    let data = vec![9; 1 << 20];
    let asked: Vec<u64> = (0..8)
        .map(|i| client.send(&Op::Write { at: i << 20, data: data.clone(), fua: false }).expect("a connection"))
        .collect();
    let detached = c.json(&["volume", "detach", &own, "--force"]);
    assert_eq!((&detached["detached_from"], &detached["generation"]), (&"gateway".into(), &1.into()));
    assert_eq!(holder(&c, &own), (None, 1));
    let mut done = Vec::new();
    for _ in &asked {
        let answer = client.answer(PATIENCE).expect("an answer to each").expect("in time");
        let at = asked.iter().position(|cookie| *cookie == answer.cookie).expect("one that was asked") as u64;
        match answer.result {
            Ok(_) => done.push(at << 20),
            Err(code) => assert!([EIO, ESHUTDOWN].contains(&code), "error {code}\n{}", c.log()),
        }
    }
    assert!(client.answer(PATIENCE).is_err(), "the connection has ended");
    let mut client = c.client(&own);
    done.iter().for_each(|at| assert_eq!(client.read(*at, 1 << 20), data));
}

#[test]
fn attaching_what_or_where_it_can_not_be_says_the_way_out() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    refused(&c.cli(&["volume", "attach", "nobody"]), &["nobody", "volume list"]);
    refused(&c.cli(&["volume", "detach", "nobody", "--force"]), &["nobody", "volume list"]);
    refused(&c.cli(&["volume", "attach", &own, "--gateway", "nobody"]), &["nobody", "there is gateway"]);
    let nodes_only = c.cli(&["volume", "attach", &own, "--json", "--gateway", "nobody"]);
    let error: Value = serde_json::from_slice(&nodes_only.stdout).expect("an error is JSON, too");
    assert_eq!(error["error"]["kind"], "not_found");
    assert_eq!(c.cli(&["volume", "attach"]).status.code(), Some(2));
}

/// Two hosts, as the control plane sees them.
#[test]
fn a_volume_is_taken_from_another_host_by_force_only() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup::default());
    let dir = scratch();
    let old = Gateway::start_as(&c, dir.path(), "old", "one host");
    let new = Gateway::start_as(&c, dir.path(), "new", "another host");
    let mut client = Client::attach(&old.place, "demo");
    client.write(0, &[7; BLOCK]);
    let taken = holder(&c, "demo");
    assert_eq!(taken.0.as_deref(), Some("old"));
    wait_for("the other gateway", || c.gateways().iter().any(|g| g.0 == "new").then_some(()));
    refused(&c.cli(&["volume", "attach", "demo"]), &["several", "--gateway", "gateway, new, old"]);
    let attach = ["volume", "attach", "demo", "--gateway", "new"];
    let socket = format!("unix:{}", dir.path().join("old").display());
    refused(&c.cli(&attach), &["'demo' is attached by old", &socket, " since 20", "--force if that host is gone"]);
    assert_eq!(client.read(0, BLOCK as u32), [7; BLOCK], "whoever has it is not disturbed");
    let attached = c.json(&[&attach[..], &["--force"]].concat());
    assert_eq!(attached["taken_from"], "old");
    assert_eq!(holder(&c, "demo"), (Some("new".into()), taken.1 + 1));
    assert!(fails(&mut client), "it was taken from this one\n{}", c.log());
    assert!(Client::connect(&old.place, "demo", true).is_err(), "and it is not given back to whoever connects there");
    let mut client = Client::attach(&new.place, "demo");
    assert_eq!(client.read(0, BLOCK as u32), [7; BLOCK]);
    drop(client);
    // From whatever host: the command asks all of this one.
    let detached = c.json(&["volume", "detach", "demo", "--force"]);
    assert_eq!(detached["detached_from"], "new");
    let mut client = Client::attach(&old.place, "demo");
    assert_eq!(client.read(0, BLOCK as u32), [7; BLOCK]);
    let text = format!("by new (generation {}), from old, forced", taken.1 + 1);
    assert_eq!(events(&c, "demo", "taken_over"), [text]);
}

/// The host that has a volume stands still, or is gone: a node ends the attachment in its place.
#[test]
fn a_volume_is_detached_from_a_host_that_is_not_there() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup::default());
    let dir = scratch();
    let mut old = Gateway::start_as(&c, dir.path(), "old", "one host");
    let mut client = Client::attach(&old.place, "demo");
    client.write(0, &[7; BLOCK]);
    let (_, generation) = holder(&c, "demo");
    c.pause(old.pid());
    let detached = c.json(&["volume", "detach", "demo", "--force"]);
    let expected = serde_json::json!({ "volume": "demo", "detached_from": "old", "generation": generation });
    assert_eq!(detached, expected);
    assert_eq!(holder(&c, "demo"), (None, generation + 1));
    c.resume(old.pid());
    assert!(fails(&mut client), "it awakes, and has nothing to say\n{}", c.log());
    let forced = events(&c, "demo", "taken_over").pop().expect("it was taken over");
    assert!(forced.ends_with("from old, forced"), "{forced}");
    // Without force, once it is known to be gone.
    let mut client = Client::attach(&old.place, "demo");
    assert_eq!(client.read(0, BLOCK as u32), [7; BLOCK]);
    client.write(0, &[8; BLOCK]);
    old.kill();
    let begun = Instant::now();
    wait_for("the end of its leases", || {
        let out = c.cli(&["volume", "detach", "demo"]);
        if !out.status.success() {
            refused(&out, &["attached by old", "--force if that host is gone"]);
        }
        out.status.success().then_some(())
    });
    say(&format!("measured: detached from a host {:.1} s after it had gone", begun.elapsed().as_secs_f64()));
    let lapsed = events(&c, "demo", "taken_over").pop().expect("it was taken over");
    assert!(lapsed.ends_with("from old, whose attachment had lapsed"), "{lapsed}");
    assert_eq!(holder(&c, "demo").0, None);
    let mut client = Client::attach(&c.place, "demo");
    assert_eq!(client.read(0, BLOCK as u32), [8; BLOCK]);
}

/// The volume was nobody's then, and the old host's driver answered its clients.
#[test]
fn a_host_that_stops_keeps_what_it_has_taken_and_can_not_use_yet() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup { nodes: 5, ..Setup::default() });
    c.wait_healthy("demo");
    let dir = scratch();
    let old = Gateway::start_as(&c, dir.path(), "old", "one host");
    let mut new = Gateway::start_as(&c, dir.path(), "new", "another host");
    let mut client = Client::attach(&old.place, "demo");
    client.write(0, &[7; BLOCK]);
    let (_, generation) = holder(&c, "demo");
    wait_for("the other gateway", || c.gateways().iter().any(|g| g.0 == "new").then_some(()));
    let (_, others) = c.chain("demo");
    let pids: Vec<u32> = c.nodes().into_iter().filter(|n| others.contains(&n.0)).map(|n| n.1).collect();
    pids.iter().for_each(|pid| c.pause(*pid));
    std::thread::scope(|s| {
        let attaching = s.spawn(|| c.cli(&["volume", "attach", "demo", "--gateway", "new", "--force"]));
        let taken = (Some("new".into()), generation + 1);
        wait_for("the attachment", || (holder(&c, "demo") == taken).then_some(()));
        new.stop();
        assert_eq!(holder(&c, "demo"), taken);
        refused(&c.cli(&["volume", "delete", "demo"]), &["attached by new"]);
        assert!(!attaching.join().expect("it ends").status.success());
    });
    pids.iter().for_each(|pid| c.resume(*pid));
    let detached = c.json(&["volume", "detach", "demo", "--force"]);
    assert_eq!(detached["detached_from"], "new");
    assert!(fails(&mut client), "it was taken from this one\n{}", c.log());
    let mut client = Client::attach(&old.place, "demo");
    assert_eq!(client.read(0, BLOCK as u32), [7; BLOCK]);
}

/// It was given back then, with the old host still at work: `detach` said that it was nobody's, and clients anywhere
/// took it from those of the old one.
#[test]
fn a_volume_whose_taking_is_late_is_given_back_when_the_old_host_has_ended() {
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup { nodes: 5, ..Setup::default() });
    c.wait_healthy("demo");
    let dir = scratch();
    let old = Gateway::start_as(&c, dir.path(), "old", "one host");
    let _new = Gateway::start_as(&c, dir.path(), "new", "another host");
    let mut client = Client::attach(&old.place, "demo");
    client.write(0, &[7; BLOCK]);
    let (_, generation) = holder(&c, "demo");
    wait_for("the other gateway", || c.gateways().iter().any(|g| g.0 == "new").then_some(()));
    // Two of the three members stand still: nobody can wait for the old host's leases.
    let (_, others) = c.chain("demo");
    let pids: Vec<u32> = c.nodes().into_iter().filter(|n| others.contains(&n.0)).map(|n| n.1).collect();
    assert_eq!(pids.len(), 2);
    pids.iter().for_each(|pid| c.pause(*pid));
    let attach = ["volume", "attach", "demo", "--gateway", "new", "--force"];
    refused(&c.cli(&attach), &["too few members of the volume answer"]);
    assert_eq!(holder(&c, "demo"), (Some("new".into()), generation + 1), "it goes on");
    pids.iter().for_each(|pid| c.resume(*pid));
    wait_for("the end of the attachment", || (holder(&c, "demo") == (None, generation + 1)).then_some(()));
    assert!(fails(&mut client), "it was taken from this one\n{}", c.log());
    let detached = c.json(&["volume", "detach", "demo"]);
    let expected = serde_json::json!({ "volume": "demo", "detached_from": null, "generation": generation + 1 });
    assert_eq!(detached, expected);
    let mut client = Client::attach(&old.place, "demo");
    assert_eq!(client.read(0, BLOCK as u32), [7; BLOCK]);
}
