//! Other people's NBD clients and exercisers: fsx, qemu-io, nbdinfo, libnbd.

use crate::support::cluster::{Cluster, Setup};
use crate::support::image::AsFile;
use crate::support::tools::{self, can_mount, command, have, run, say};
use crate::support::{Weight, full, shared, turn};
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes of any length at any place need somebody who reads around them: the FUSE layer cuts writes at odd places, and
/// NBD's smallest block here is 512 bytes for clients that ask for it. nbdkit's blocksize filter does that; trims at odd places it may ignore, so
/// holes are punched in a run of whole sectors.
fn fsx(c: &Cluster, file: &Path, ops: u64, align: u32, punch: f32, seed: u64) {
    let conf = c.dir().join("fsx.toml");
    let text = format!(
        "blockmode = true\nnosizechecks = true\nflen = {}\n[opsize]\nmax = 65536\nalign = {align}\n[weights]\n\
         close_open = 0\ntruncate = 0\nread = 10\nwrite = 10\nmapread = 3\nmapwrite = 3\npunch_hole = {punch}\n\
         fsync = 0.5\nfdatasync = 0.5\n",
        8 << 20
    );
    std::fs::write(&conf, text).expect("a file");
    let mut cmd = command("fsx");
    cmd.arg("-f").arg(conf).arg("-P").arg(c.dir()).args(["-N", &ops.to_string(), "-S", &seed.to_string()]).arg(file);
    let begun = Instant::now();
    let out = tools::output(&mut cmd, Duration::from_secs(if full() { 3600 } else { 600 }));
    assert!(out.status.success(), "fsx, seed {seed}: {}\n{}", tools::told(&out), c.log());
    say(&format!("measured: fsx, {ops} operations aligned to {align} in {:.1} s", begun.elapsed().as_secs_f64()));
}

#[test]
fn fsx_finds_no_difference() {
    if !have(&["fsx", "nbdfuse", "nbdkit", "fusermount3"]) || !can_mount() {
        return;
    }
    let _turn = turn(Weight::Heavy);
    let mut c = Cluster::up(Setup::default());
    let ops = if full() { 50_000 } else { 1_000 };
    let uri = format!("uri={}", c.place.uri("demo"));
    let source = ["[", "nbdkit", "--exit-with-parent", "--filter=blocksize", "nbd", &uri, "minblock=512", "]"];
    let file = AsFile::open(&c.dir().join("fuse"), &source);
    fsx(&c, &file.path(), ops, 512, 2.0, 11);
    // Here it is mostly the filter that is at work.
    fsx(&c, &file.path(), ops / 2, 1, 0.0, 12);
    drop(file);
    c.verify("demo");
    c.stop();
}

fn qemu_io(uri: &str, commands: &[&str]) -> String {
    let mut cmd = command("qemu-io");
    cmd.args(["-f", "raw", "-d", "unmap"]);
    for c in commands {
        cmd.args(["-c", c]);
    }
    cmd.arg(uri);
    let out = tools::output(&mut cmd, tools::TOOL_TIME_MAX);
    let text = tools::told(&out);
    assert!(out.status.success(), "qemu-io {commands:?}: {text}");
    // It ends with 0 after a failed pattern, too.
    assert!(!text.contains("failed") && !text.contains("error"), "qemu-io {commands:?}: {text}");
    text
}

#[test]
fn qemu_io_writes_sectors_trims_and_zeroes() {
    if !have(&["qemu-io"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup::default());
    let uri = c.place.uri("demo");
    qemu_io(
        &uri,
        &[
            "write -P 0x11 0 1M",
            // Single sectors, at a block's begin, middle and end, and across two blocks.
            "write -P 0x22 4096 512",
            "write -P 0x33 9728 512",
            "write -P 0x44 16384 512",
            "write -P 0x55 19968 1024",
            "write -f -P 0x66 65536 4k",
            "flush",
        ],
    );
    let check = [
        "read -P 0x11 0 4096",
        "read -P 0x22 4096 512",
        "read -P 0x11 4608 5120",
        "read -P 0x33 9728 512",
        "read -P 0x11 10240 6144",
        "read -P 0x44 16384 512",
        "read -P 0x11 16896 3072",
        "read -P 0x55 19968 1024",
        "read -P 0x11 20992 44544",
        "read -P 0x66 65536 4096",
        "read -P 0x11 69632 978944",
        "read -P 0 1M 64k",
    ];
    qemu_io(&uri, &check);
    c.stop();
    c.start();
    qemu_io(&uri, &check);
    qemu_io(
        &uri,
        &[
            "discard 128k 64k",
            "read -P 0 128k 64k",
            "write -z 256k 64k",
            "read -P 0 256k 64k",
            "write -z -u 320k 4k",
            "read -P 0 320k 4k",
            // Zeroes of single sectors leave their neighbours alone.
            "write -z 400384 512",
            "read -P 0 400384 512",
            "read -P 0x11 399872 512",
            "read -P 0x11 400896 512",
            "write -P 0x77 131584 512",
            "read -P 0 128k 512",
            "read -P 0x77 131584 512",
            "read -P 0 132096 512",
            // At the very end of the volume.
            "write -P 0x88 268434944 512",
            "read -P 0x88 268434944 512",
        ],
    );
    // Many at once, over each other.
    let mut many: Vec<String> =
        (0..64).map(|i| format!("aio_write -q -P {} {} 6k", i + 1, 2048 * i + (2 << 20))).collect();
    many.push("aio_flush".into());
    many.extend((0..63).map(|i| format!("read -P {} {} 512", i + 1, 2048 * i + (2 << 20))).take(1));
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    qemu_io(&uri, &many);
    c.verify("demo");
}

/// It walks all of them in one handshake, which was cut off after 64 options ("invalid state: DEAD"). Over TCP it takes
/// 0.2 s for each, so this is longer than other handshakes may take.
#[test]
fn nbdinfo_lists_every_volume() {
    const VOLUMES: usize = 60;
    if !have(&["nbdinfo"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup { nodes: 1, ..Setup::default() });
    let mut names: Vec<String> = (0..VOLUMES).map(|n| format!("v{n}")).collect();
    for name in &names {
        c.json(&["volume", "create", name, "--size", "1M"]);
    }
    names.push("demo".into());
    names.sort_unstable();
    let all = c.place.uri("");
    let listed: serde_json::Value = serde_json::from_str(&run("nbdinfo", ["--json", "--list", &all])).expect("JSON");
    let exports = listed["exports"].as_array().expect("a list");
    let mut found: Vec<_> = exports.iter().map(|e| e["export-name"].as_str().expect("a name").to_owned()).collect();
    found.sort_unstable();
    assert_eq!(found, names);
    assert!(exports.iter().all(|e| e["export-size"].as_u64() >= Some(1 << 20)), "{listed:#}");
}

/// A client whose volume can't be used is told why, in time, and is served once it can be.
#[test]
fn qemu_is_told_why_a_volume_can_not_be_used() {
    if !have(&["qemu-io"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let c = Cluster::up(Setup { more: vec!["--no-restart".into()], ..Setup::default() });
    let uri = c.place.uri("demo");
    let nodes = c.nodes();
    nodes[1..].iter().for_each(|(_, pid)| c.pause(*pid));
    let begun = Instant::now();
    let mut cmd = command("qemu-io");
    let out = tools::output(cmd.args(["-f", "raw", "-c", "read 0 4k", &uri]), tools::TOOL_TIME_MAX);
    let (took, text) = (begun.elapsed(), tools::told(&out));
    assert!(!out.status.success() && text.contains("server reported: "), "{text}");
    assert!(took < Duration::from_secs(9), "{took:?}: {text}");
    let says_why = text.contains("waits for the control plane") || text.contains("too few members");
    assert!(says_why, "{text}\n{}", c.log());
    say(&format!("measured: qemu-io was told after {:.1} s", took.as_secs_f64()));
    nodes[1..].iter().for_each(|(_, pid)| c.resume(*pid));
    c.wait_healthy("demo");
    qemu_io(&uri, &["write -P 7 0 4k", "read -P 7 0 4k"]);
}

#[test]
fn nbdinfo_shows_what_is_offered_and_where_holes_are() {
    if !have(&["nbdinfo", "qemu-io"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let uri = c.place.uri(&own);
    qemu_io(
        &uri,
        &["write -P 1 1M 1M", "write -P 1 8M 64k", "write -P 1 10M 1M", "discard 10496k 256k", "write -z 11M 1M"],
    );
    let map: serde_json::Value = serde_json::from_str(&run("nbdinfo", ["--json", "--map", &uri])).expect("JSON");
    let mut data = vec![];
    for extent in map.as_array().expect("a list of extents") {
        let (at, len) = (extent["offset"].as_u64().unwrap(), extent["length"].as_u64().unwrap());
        match extent["type"].as_u64().unwrap() {
            0 => data.push((at >> 10, len >> 10)),
            t => assert_eq!(t & 2, 2, "what is no data reads as zeroes: {extent}"),
        }
    }
    // Neighbours may be told as several extents.
    let mut merged: Vec<(u64, u64)> = vec![];
    for (at, len) in data {
        match merged.last_mut() {
            Some(last) if last.0 + last.1 == at => last.1 += len,
            _ => merged.push((at, len)),
        }
    }
    assert_eq!(merged, [(1024, 1024), (8192, 64), (10240, 256), (10752, 512)], "{map:#}");

    let info: serde_json::Value = serde_json::from_str(&run("nbdinfo", ["--json", &uri])).expect("JSON");
    let export = &info["exports"][0];
    assert_eq!(info["structured"], true, "{info:#}");
    assert_eq!(export["export-size"], 64u64 << 20, "{info:#}");
    for can in ["can_multi_conn", "can_flush", "can_fua", "can_trim", "can_zero", "can_fast_zero", "can_cache"] {
        assert_eq!(export[can], true, "{can} in {info:#}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["block_size_minimum"], 512);
    let exports = c.exports();
    assert!(exports.contains(&own), "{exports:?}");
    // All of it as a sparse file.
    let back = c.dir().join("nbdinfo-back");
    run("nbdcopy", [&uri, back.to_str().unwrap()]);
    let bytes = std::fs::read(&back).expect("the copy");
    assert!(bytes[1 << 20..2 << 20].iter().all(|b| *b == 1) && bytes[..1 << 20].iter().all(|b| *b == 0));
}
