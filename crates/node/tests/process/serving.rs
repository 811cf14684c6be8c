//! Ways of being served: unix sockets, a node's own NBD, several volumes and shards, requests of any bytes, limits.

use crate::support::cluster::{Cluster, Setup, scratch};
use crate::support::nbd::{Client, ENOSPC, ENOTSUP, Op, Place};
use crate::support::oracle::Oracle;
use crate::support::rng::Rng;
use crate::support::tools::{told, wait_for};
use crate::support::{Weight, full, shared, turn};
use std::process::Stdio;

fn exercise(c: &Cluster, volume: &str, base: u64, seed: u64) {
    let mut client = Client::attach(&c.place, volume);
    let mut oracle = Oracle::new(base, 8 << 20, Rng::new(seed));
    let (answers, wanted) = (oracle.answers.clone(), if full() { 100_000 } else { 3_000 });
    let done = oracle.run(&mut client, 32, || answers.count() >= wanted);
    assert!(done.unwrap_or_else(|e| panic!("{e}\n{}", c.log())), "the connection ended");
    assert_eq!(oracle.tally.errors, 0, "volume {volume}: {:?}", oracle.tally);
    oracle.read_all(&mut client).unwrap_or_else(|e| panic!("{e}\n{}", c.log()));
}

#[test]
fn a_unix_socket_serves_like_a_port() {
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(Setup { unix: true, ..Setup::default() });
    let line = c.ready_line().expect("ready");
    assert!(line.contains("nbd+unix:///demo?socket="), "{line}");
    exercise(&c, "demo", 0, 1);
    c.stop();
    c.start();
    exercise(&c, "demo", 32 << 20, 2);
    c.verify("demo");
}

#[test]
fn a_volume_of_several_shards_is_one_volume() {
    let _turn = turn(Weight::Loaded);
    let mut c = Cluster::up(Setup::default());
    c.json(&["volume", "create", "wide", "--size", "192M", "--shards", "4", "--stripe", "64K"]);
    let v = c.volume("wide");
    assert_eq!(v["shards"].as_array().expect("a list").len(), 4, "{v:#}");
    exercise(&c, "wide", 0, 3);
    let mut client = Client::connect(&c.place, "wide", true).expect("a client");
    // One request over all shards, some of them twice.
    let bytes: Vec<u8> = (0..1 << 20).map(|i: u32| (i / 512 * 7) as u8 | 1).collect();
    client.write((64 << 20) + 512, &bytes);
    assert_eq!(client.read((64 << 20) + 512, 1 << 20), bytes);
    assert_eq!(client.read(64 << 20, 512), [0; 512]);
    drop(client);
    c.verify("wide");
    c.stop();
    c.start();
    let mut client = Client::attach(&c.place, "wide");
    assert_eq!(client.read((64 << 20) + 512, 1 << 20), bytes);
}

/// A write into the part that a volume had just grown by got an error for good from a head that had not heard of the
/// new size yet; and a client that was connected could not use that part at all until it connected anew.
#[test]
fn what_a_volume_grows_by_is_of_use_at_once() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let mut client = c.client(&own);
    let end = |mib: u64| (mib << 20) - 4096;
    assert!(client.ask(&Op::Read { at: end(65), len: 4096 }).expect("a connection").is_err());
    for mib in 65..=80 {
        c.json(&["volume", "resize", &own, "--size", &format!("{mib}M")]);
        // The gateway hears of it in its own time.
        wait_for("the new part", || client.ask(&Op::Read { at: end(mib), len: 4096 }).expect("a connection").ok());
        client.write(end(mib), &[mib as u8; 4096]);
        assert_eq!(client.read(end(mib), 4096), [mib as u8; 4096]);
    }
    c.verify(&own);
}

/// FAST_ZERO was offered and ignored: zeroes of parts of blocks were read, changed and written.
#[test]
fn a_fast_zero_is_fast_or_refused() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let mut client = c.client(&own);
    client.write(0, &[7; 16384]);
    for (at, len) in [(512, 4096), (0, 512), (4096, 4608)] {
        assert_eq!(client.ask(&Op::FastZero { at, len }).expect("a connection"), Err(ENOTSUP));
        client.ask(&Op::Zero { at: at + 16384, len, fua: false }).expect("a connection").expect("a slow one");
    }
    assert_eq!(client.read(0, 16384), [7; 16384]);
    client.ask(&Op::FastZero { at: 4096, len: 8192 }).expect("a connection").expect("whole blocks");
    assert_eq!(client.read(0, 16384), [[7; 4096], [0; 4096], [0; 4096], [7; 4096]].concat());
}

#[test]
fn volumes_of_all_copies_live_side_by_side() {
    let _turn = turn(Weight::Loaded);
    let c = shared::cluster();
    for (name, copies) in [("one", "1"), ("two", "2"), ("three", "3")] {
        c.json(&["volume", "create", name, "--size", "48M", "--copies", copies]);
    }
    std::thread::scope(|s| {
        for (i, name) in ["one", "two", "three"].into_iter().enumerate() {
            let c: &Cluster = &c;
            s.spawn(move || exercise(c, name, 0, 10 + i as u64));
        }
    });
    for name in ["one", "two", "three"] {
        c.verify(name);
    }
}

#[test]
fn parts_of_blocks_and_simple_replies() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let client = Client::connect(&c.place, &own, false).expect("a client without structured replies");
    as_a_plain_vector(client, 512);
}

/// The client does not ask for block sizes, so it may use any bytes; those of fewer than 512 were refused. Stripes end
/// within its requests.
#[test]
fn any_bytes_of_a_volume_of_several_shards() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &["--shards", "3", "--stripe", "64K"]);
    as_a_plain_vector(c.client(&own), 1);
    c.verify(&own);
}

/// Reads, writes and zeroes whose places and lengths are multiples of `unit`, one after the other.
fn as_a_plain_vector(mut client: Client, unit: usize) {
    let mut model = vec![0u8; 1 << 20];
    let mut rng = Rng::new(5);
    for round in 0..400u32 {
        let len = unit * (1 + rng.below(12_288 / unit as u64) as usize);
        let at = unit * rng.below((model.len() - len) as u64 / unit as u64) as usize;
        match rng.below(4) {
            0 => {
                let zero = Op::Zero { at: at as u64, len: len as u32, fua: false };
                client.ask(&zero).expect("connected").expect("zeroes");
                model[at..at + len].fill(0);
            }
            1 => assert_eq!(client.read(at as u64, len as u32), model[at..at + len], "round {round}"),
            _ => {
                let bytes = vec![round as u8 | 1; len];
                client.write(at as u64, &bytes);
                model[at..at + len].copy_from_slice(&bytes);
            }
        }
    }
    assert_eq!(client.read(0, 1 << 20), model);
}

#[test]
fn two_connections_see_each_other() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let mut a = c.client(&own);
    let mut b = c.client(&own);
    assert_eq!(a.flags & 1 << 8, 1 << 8, "multi-conn is offered");
    for i in 0..200u64 {
        let (x, y) = if i % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
        x.write(4096 * (i % 8), &[i as u8; 4096]);
        assert_eq!(y.read(4096 * (i % 8), 4096), [i as u8; 4096]);
    }
    assert_eq!(a.ask(&Op::Flush).expect("connected"), Ok(vec![]));
}

#[test]
fn requests_beyond_the_end_are_refused_and_harm_nothing() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("16M", &[]);
    let mut client = c.client(&own);
    let size = client.size;
    assert_eq!(size, 16 << 20);
    for op in [
        Op::Read { at: size, len: 512 },
        Op::Write { at: size - 512, data: vec![1; 1024], fua: false },
        Op::Trim { at: u64::MAX - 511, len: 512 },
        Op::Zero { at: size - 512, len: 1024, fua: false },
        Op::Read { at: size - 1, len: 2 },
    ] {
        assert!(client.ask(&op).expect("the connection lives on").is_err(), "{op:?}");
    }
    client.write(size - 512, &[9; 512]);
    assert_eq!(client.read(size - 512, 512), [9; 512]);
    assert!(Client::connect(&c.place, "no-such-volume", true).is_err());
}

#[test]
fn a_full_device_refuses_writes_and_heals() {
    let _turn = turn(Weight::Loaded);
    let c =
        Cluster::up(Setup { device_size: "128M", segment_size: "8M", volume: Some("demo:256M"), ..Setup::default() });
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let mut rng = Rng::new(9);
    let mut block = vec![0; 1 << 18];
    let mut written = vec![];
    let mut refused = None;
    for i in 0..1024u64 {
        rng.fill(&mut block);
        match client.ask(&Op::Write { at: i << 18, data: block.clone(), fua: false }).expect("the connection lives on")
        {
            Ok(_) => written.push((i, block[..16].to_vec())),
            Err(code) => {
                refused = Some(code);
                break;
            }
        }
    }
    assert_eq!(refused, Some(ENOSPC), "after {} writes", written.len());
    assert!(written.len() > 100, "refused after {} writes only", written.len());
    // What was answered is there, and space that is given back can be written again.
    for (i, first) in &written {
        assert_eq!(client.read(i << 18, 4096)[..16], first[..]);
    }
    assert_eq!(client.ask(&Op::Flush).expect("connected"), Ok(vec![]));
    let all = written.len() as u32;
    for i in 0..all {
        client
            .ask(&Op::Trim { at: u64::from(i) << 18, len: 1 << 18 })
            .expect("connected")
            .expect("a trim needs no room");
    }
    wait_for("room after the trims", || {
        client.ask(&Op::Write { at: 0, data: block.clone(), fua: false }).expect("connected").ok()
    });
    for i in 0..64u64 {
        client.write(i << 18, &block);
    }
    assert_eq!(client.read(63 << 18, 1 << 18), block);
    drop(client);
    c.verify("demo");
}

#[test]
fn a_node_alone_serves_nbd_itself() {
    let _turn = turn(Weight::Light);
    // Its ports, token and cleaning up.
    let c = Cluster::prepare(Setup { nodes: 1, ..Setup::default() });
    let Place::Tcp(nbd) = &c.place else { panic!("a port") };
    let dir = scratch();
    let run = || {
        let mut cmd = c.freebs();
        cmd.args([
            "node",
            "--listen",
            &c.address(),
            "--nbd",
            nbd,
            "--device-size",
            "512M",
            "--segment-size",
            "8M",
            "--data",
        ]);
        cmd.arg(dir.path().join("data")).stdin(Stdio::null());
        let log = std::fs::File::options().create(true).append(true).open(c.dir().join("up.err")).expect("a log");
        cmd.stdout(log.try_clone().expect("one more")).stderr(log);
        cmd.spawn().expect("a node")
    };
    let end = |mut child: std::process::Child| {
        // SAFETY: it takes two numbers, and the process is our own child.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        wait_for("the node's end", || child.try_wait().expect("our own child"))
    };
    let child = run();
    wait_for("the node", || c.cli(&["status"]).status.success().then_some(()));
    let out = c.cli(&["volume", "create", "mine", "--size", "64M"]);
    assert!(out.status.success(), "{}\n{}", told(&out), c.log());
    exercise(&c, "mine", 0, 20);
    let mut client = Client::connect(&c.place, "mine", true).expect("a client");
    client.write(32 << 20, &[3; 8192]);
    drop(client);
    let status = end(child);
    assert!(status.success(), "the node ended with {status}\n{}", c.log());
    let child = run();
    let mut client = Client::attach(&c.place, "mine");
    assert_eq!(client.read(32 << 20, 8192), [3; 8192]);
    drop(client);
    c.verify("mine");
    end(child);
}
