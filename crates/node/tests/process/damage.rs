//! One bit of one replica's device turns over while everything is down.
//!
//! Whatever the bit belongs to, no wrong byte may reach a client, and somebody must notice.

use crate::support::cluster::{Cluster, Setup};
use crate::support::device::{self, Kind, Piece};
use crate::support::nbd::Client;
use crate::support::rng::Rng;
use crate::support::tools::{run, say, told, wait_for};
use crate::support::{Weight, full, turn};
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes that are written, each block once, so that all of them are live.
const BYTES: u64 = 24 << 20;

fn expected() -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    Rng::new(7).fill(&mut bytes);
    bytes
}

fn fill(c: &Cluster, bytes: &[u8]) {
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let mut rng = Rng::new(8);
    let (mut at, mut step) = (0, 4096);
    while at < bytes.len() {
        let end = (at + step).min(bytes.len());
        client.write(at as u64, &bytes[at..end]);
        at = end;
        step = [4096, 8192, 65536, 1 << 20][rng.below(4) as usize];
    }
}

/// Reads everything, several times over, so that each replica is asked for most of it.
fn read_back(c: &Cluster, bytes: &[u8]) {
    let mut client = Client::attach(&c.place, "demo");
    for (round, step) in [1 << 20, 4096 * 7, 1 << 16].into_iter().enumerate() {
        for (i, want) in bytes.chunks(step).enumerate() {
            let at = (i * step) as u64;
            let got = client.read(at, want.len() as u32);
            if got != want {
                let first = got.iter().zip(want).position(|(a, b)| a != b).expect("they differ");
                panic!("round {round}: wrong byte at {}\n{}", at + first as u64, c.log());
            }
        }
    }
}

/// What a node or the supervisor said about damage since the start.
fn noticed(c: &Cluster) -> Vec<String> {
    let words = ["crc", "corrupt", "damage", "checksum", "repair", "superblock", "torn_bytes"];
    let nothing = ["damage=0", "torn_bytes=0"];
    let says = |line: &&str| {
        let mut line = line.to_lowercase();
        nothing.iter().for_each(|n| line = line.replace(n, ""));
        words.iter().any(|w| line.contains(w))
    };
    c.logs().lines().filter(says).map(str::to_owned).collect()
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    let (from, to) = (from.to_str().expect("a plain path"), to.to_str().expect("a plain path"));
    run("cp", ["-a", "--sparse=always", from, to]);
}

/// A bit of a piece of this kind. Of what an index repeats the index is what is used, so such kinds are taken from the
/// segment that has none yet.
fn choose(pieces: &[Piece], kind: Kind, rng: &mut Rng) -> Option<(u64, u8)> {
    let repeated = matches!(kind, Kind::AppendHeader | Kind::FrameHeads | Kind::LiveTable);
    let of_kind: Vec<_> = pieces.iter().filter(|p| p.kind == kind && !(repeated && p.indexed)).collect();
    if of_kind.is_empty() {
        return None;
    }
    let piece = of_kind[rng.below(of_kind.len() as u64) as usize];
    Some((piece.at + rng.below(piece.len), rng.below(8) as u8))
}

#[test]
fn one_flipped_bit_is_noticed_and_never_served() {
    let _turn = turn(Weight::Light);
    let setup = Setup { device_size: "512M", segment_size: "8M", volume: Some("demo:64M"), ..Setup::default() };
    let mut c = Cluster::up(setup);
    let bytes = expected();
    fill(&c, &bytes);
    c.verify("demo");
    let (head, others) = c.chain("demo");
    c.stop();
    let pristine = c.dir().join("pristine");
    std::fs::remove_dir_all(c.data().join("logs")).expect("logs");
    copy(&c.data(), &pristine);

    use Kind::{AppendHeader, Data, FirstSuperblock, Footer, FrameHeads, Index, LiveTable, SecondSuperblock};
    let mut cases = vec![(Data, &head), (FrameHeads, &others[0]), (FirstSuperblock, &others[1]), (Index, &others[0])];
    if full() {
        cases.extend([
            (Data, &others[0]),
            (Data, &others[1]),
            (AppendHeader, &head),
            (Footer, &others[1]),
            (SecondSuperblock, &head),
            (LiveTable, &others[0]),
        ]);
    }
    let mut rng = Rng::announced("bit flips");
    let mut unseen = vec![];
    for (kind, node) in cases {
        copy(&pristine, &c.data());
        let file = device::files(&c.data().join(node)).into_iter().next().expect("the node's device");
        let (at, bit) = choose(&device::pieces(&file), kind, &mut rng).unwrap_or_else(|| panic!("no {kind:?}"));
        device::flip(&file, at, bit);
        let what = format!("{kind:?} of {node}: bit {bit} of byte {at}");
        c.start();
        read_back(&c, &bytes);
        let out = c.cli(&["volume", "verify", "demo", "--wait", "10"]);
        let log = noticed(&c);
        say(&format!("{what}: verify {}, logs: {log:#?}", told(&out)));
        if out.status.success() && log.is_empty() {
            say(&c.log());
            unseen.push(what);
        }
        read_back(&c, &bytes);
        c.stop();
    }
    assert!(unseen.is_empty(), "nobody noticed: {unseen:#?}");
}

/// Nobody reads, and yet rot is found, mended from other copies, and gone from the device.
#[test]
fn what_rots_unread_is_mended_from_other_copies() {
    let _turn = turn(Weight::Light);
    let setup = Setup {
        device_size: "512M",
        segment_size: "8M",
        volume: Some("demo:64M"),
        scrub_rate: "512M",
        ..Setup::default()
    };
    let mut c = Cluster::up(setup);
    let bytes = expected();
    fill(&c, &bytes);
    c.verify("demo");
    let (head, others) = c.chain("demo");
    c.stop();
    let mut rng = Rng::announced("bits that rot unread");
    // Another block on each: two copies of everything are sound.
    let mut flipped = 0;
    for node in [&head, &others[0]] {
        let file = device::files(&c.data().join(node)).into_iter().next().expect("the node's device");
        let pieces: Vec<_> = device::pieces(&file).into_iter().filter(|p| p.kind == Kind::Data && p.indexed).collect();
        let (at, bit) = choose(&pieces, Kind::Data, &mut rng).expect("data in a closed segment");
        device::flip(&file, at, bit);
        flipped += 1;
    }
    c.start();
    let mended = || c.logs().matches("are mended").count();
    wait_for("the copies are mended", || (mended() >= flipped).then_some(()));
    // What verifies reads all closed segments, so the damaged ones must be gone, too.
    wait_for("no replica has damage", || {
        (c.cli(&["volume", "verify", "demo", "--wait", "10"]).status.success()).then_some(())
    });
    read_back(&c, &bytes);
    c.stop();
}

/// The lines on each damaged place, and how often.
fn told_of_places(c: &Cluster) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for line in c.logs().lines().filter(|line| line.contains(", byte ")) {
        let from = ["found at the start", "log: "].iter().filter_map(|words| line.find(words)).min();
        *found.entry(line[from.unwrap_or(0)..].to_owned()).or_default() += 1;
    }
    found
}

/// Two hundred bits turn over in one copy, in what lives and in what does not, and from then on nobody writes. All that
/// lives is mended, all that is damaged is given up, and meanwhile everybody who asks hears of it, but the log of the node
/// says it once.
#[test]
fn damage_is_gone_and_told_once_while_nobody_writes() {
    let _turn = turn(Weight::Light);
    let setup = Setup {
        device_size: "512M",
        segment_size: "8M",
        volume: Some("demo:64M"),
        scrub_rate: "512M",
        ..Setup::default()
    };
    let mut c = Cluster::up(setup);
    let bytes = expected();
    let mut older = bytes.clone();
    older.rotate_left(4096);
    fill(&c, &older);
    fill(&c, &bytes);
    c.verify("demo");
    let (_, others) = c.chain("demo");
    c.stop();
    let mut rng = Rng::announced("two hundred bits");
    let file = device::files(&c.data().join(&others[0])).into_iter().next().expect("the node's device");
    let pieces = device::pieces(&file);
    let of_kind = |kind| pieces.iter().filter(|p| p.kind == kind && p.indexed).collect::<Vec<_>>();
    let (data, indexes) = (of_kind(Kind::Data), of_kind(Kind::Index));
    for i in 0..200 {
        let list = if i % 50 == 0 { &indexes } else { &data };
        let piece = list[rng.below(list.len() as u64) as usize];
        device::flip(&file, piece.at + rng.below(piece.len), rng.below(8) as u8);
    }
    std::fs::remove_dir_all(c.data().join("logs")).expect("logs");
    c.start();
    let mut asked = 0;
    wait_for("no replica has damage", || {
        asked += 1;
        c.cli(&["volume", "verify", "demo", "--wait", "2"]).status.success().then_some(())
    });
    let told = told_of_places(&c);
    let lines: usize = told.values().sum();
    say(&format!("{lines} lines of {} damaged places; asked {asked} times", told.len()));
    assert!(told.len() >= 50, "200 bits were hardly noticed:\n{}", c.log());
    let repeated: Vec<_> = told.iter().filter(|(_, n)| **n > 1).collect();
    assert!(repeated.is_empty(), "told more than once: {repeated:#?}");
    read_back(&c, &bytes);
    c.stop();
}

/// Heads of old segments are lost in one copy, when all copies have long given up the frames: nobody can put them back.
/// What they had brought is learned of the others, and all copies agree again.
#[test]
fn what_lost_frames_had_brought_is_learned_from_other_copies() {
    let _turn = turn(Weight::Light);
    let setup = Setup { device_size: "192M", segment_size: "8M", volume: Some("demo:64M"), ..Setup::default() };
    let mut c = Cluster::up(setup);
    let bytes = expected();
    let mut older = bytes.clone();
    for round in 0..6 {
        older.rotate_left(4096 * (round + 1));
        fill(&c, &older);
    }
    fill(&c, &bytes);
    c.verify("demo");
    let (_, others) = c.chain("demo");
    c.stop();
    let mut rng = Rng::announced("lost heads");
    let file = device::files(&c.data().join(&others[0])).into_iter().next().expect("the node's device");
    let pieces = device::pieces(&file);
    // Of an append that is lost nothing counts, once the index that repeats its heads is lost, too, and the append behind
    // it, which does as well: of four in a row the first two.
    let mut flip = |p: &Piece| device::flip(&file, p.at + rng.below(p.len), rng.below(8) as u8);
    pieces.iter().filter(|p| p.kind == Kind::Index).for_each(&mut flip);
    let headers = pieces.iter().filter(|p| p.kind == Kind::AppendHeader && p.indexed);
    headers.enumerate().filter(|(i, _)| i % 4 < 2).for_each(|(_, p)| flip(p));
    c.start();
    let learned = || c.logs().matches("was learned again").count();
    wait_for("what is left of lost frames is learned", || (learned() > 0).then_some(()));
    wait_for("no replica has damage", || {
        (c.cli(&["volume", "verify", "demo", "--wait", "10"]).status.success()).then_some(())
    });
    read_back(&c, &bytes);
    c.stop();
}
