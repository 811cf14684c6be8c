//! Devices that are nearly full, and full ones: writes wait while cleaning makes room, are refused when there is nothing
//! to gain, and are taken again as soon as something was trimmed.

use crate::support::cluster::{Cluster, Setup};
use crate::support::image::Mounted;
use crate::support::nbd::{Client, Op};
use crate::support::rng::Rng;
use crate::support::tools::{can_mount, have, run};
use crate::support::{Weight, turn};
use std::fs::File;
use std::os::unix::fs::FileExt;

const MIB: u64 = 1 << 20;
/// The answers that clients get from a device without room.
const ENOSPC: u32 = 28;

/// Three nodes with devices of 15 segments, each with one log.
fn up(volume: &'static str) -> Cluster {
    let more = ["--workers", "1"].map(str::to_owned).to_vec();
    Cluster::up(Setup { device_size: "128M", volume: Some(volume), more, ..Setup::default() })
}

/// 148 MiB lived on devices of 256 MiB, and the sixth MiB of overwrites was refused; a client that tried again got on.
#[test]
fn overwrites_go_on_on_devices_that_are_nearly_full() {
    let _turn = turn(Weight::Loaded);
    let c = up("demo:70M");
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let (parts, mut rng) = (70, Rng::new(12));
    let mut fills = vec![0; parts];
    for i in 0..3 * parts {
        let part = if i < 2 * parts { i % parts } else { rng.below(parts as u64) as usize };
        fills[part] = (i % 251) as u8 + 1;
        let op = Op::Write { at: part as u64 * MIB, data: vec![fills[part]; MIB as usize], fua: false };
        let end = client.ask(&op).expect("a connection");
        assert!(end.is_ok(), "write {i} to MiB {part}: {end:?}\n{}", c.log());
    }
    for (part, fill) in fills.iter().enumerate() {
        assert!(client.read(part as u64 * MIB, MIB as u32).iter().all(|b| b == fill), "MiB {part}");
    }
    drop(client);
    c.verify("demo");
}

/// A member that stands still is passed over, and finds that what it lacks was given up when it is back: it learns the map
/// on a device that has hardly more room than the volume takes, while writes go on.
#[test]
fn members_that_were_away_come_back_on_devices_that_are_nearly_full() {
    let _turn = turn(Weight::Loaded);
    let c = up("demo:70M");
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let (parts, mut rng) = (70, Rng::new(13));
    let mut fills = vec![0; parts];
    let mut away = None;
    for i in 0..4 * parts {
        let part = if i < parts { i } else { rng.below(parts as u64) as usize };
        fills[part] = (i % 251) as u8 + 1;
        let op = Op::Write { at: part as u64 * MIB, data: vec![fills[part]; MIB as usize], fua: false };
        let end = client.ask(&op).expect("a connection");
        assert!(end.is_ok(), "write {i} to MiB {part}: {end:?}\n{}", c.log());
        if i > parts && i % 40 == 0 {
            let (_, others) = c.chain("demo");
            away = Some(c.pid_of(&others[i / 40 % 2]));
            away.iter().for_each(|pid| c.pause(*pid));
        }
        if i % 40 == 25 {
            away.take().iter().for_each(|pid| c.resume(*pid));
        }
    }
    away.iter().for_each(|pid| c.resume(*pid));
    for (part, fill) in fills.iter().enumerate() {
        assert!(client.read(part as u64 * MIB, MIB as u32).iter().all(|b| b == fill), "MiB {part}");
    }
    drop(client);
    c.verify("demo");
}

#[test]
fn full_devices_refuse_writes_and_heal_by_trims() {
    let _turn = turn(Weight::Loaded);
    let c = up("demo:256M");
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let write = |client: &mut Client, at: u64| {
        let data = vec![(at / MIB % 251) as u8 + 1; MIB as usize];
        client.ask(&Op::Write { at, data, fua: false }).expect("a connection")
    };
    let mut full = 0;
    while write(&mut client, full).is_ok() {
        full += MIB;
    }
    assert!(full > 70 * MIB && full < 128 * MIB, "{} MiB\n{}", full / MIB, c.log());
    assert_eq!(write(&mut client, full), Err(ENOSPC));
    // Every third MiB goes; then as much is taken at the first try.
    for at in (0..full).step_by(3 * MIB as usize) {
        client.ask(&Op::Trim { at, len: MIB as u32 }).expect("a connection").expect("a trim");
    }
    for i in 0..full / MIB / 4 {
        let end = write(&mut client, full + i * MIB);
        assert!(end.is_ok(), "write {i} behind the trims: {end:?}\n{}", c.log());
    }
    assert!(client.read(0, MIB as u32).iter().all(|b| *b == 0));
    assert!(client.read(MIB, MIB as u32).iter().all(|b| *b == 2));
    drop(client);
    c.verify("demo");
}

/// Others have filled the file system under all nodes, long before their devices are as large as they may get: writes are
/// refused, and all that makes room is done, also behind a head that was killed. Trims waited for a minute and failed.
#[test]
fn a_file_system_that_others_have_filled_takes_what_makes_room() {
    if !have(&["losetup", "mount", "umount", "mke2fs"]) || !can_mount() {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let more = ["--workers", "1"].map(str::to_owned).to_vec();
    let mut c = Cluster::prepare(Setup { volume: Some("demo:512M"), more, ..Setup::default() });
    let image = c.dir().join("image");
    File::create(&image).and_then(|f| f.write_all_at(&[0], 600 * MIB - 1)).expect("a file");
    run("mke2fs", ["-q", "-t", "ext4", "-m", "0", image.to_str().expect("a plain path")]);
    let mounted = Mounted::new(&image, &c.data());
    std::fs::remove_dir(c.data().join("lost+found")).expect("an empty directory");
    c.start();
    c.json(&["volume", "create", "other", "--size", "16M"]);
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    let ask = |client: &mut Client, op: Op| client.ask(&op).expect("a connection").map(|_| ());
    let write = |at: u64| Op::Write { at, data: vec![(at / MIB % 251) as u8 + 1; MIB as usize], fua: false };
    for at in (0..40 * MIB).step_by(MIB as usize) {
        ask(&mut client, write(at)).expect("there is room");
    }
    // Somebody else's file takes what is left, to the last block.
    let stranger = File::create(c.data().join("stranger")).expect("a file");
    let (mut end, mut part) = (0, 64 * MIB);
    while part >= 4096 {
        match stranger.write_all_at(&vec![1; part as usize], end) {
            Ok(()) => end += part,
            Err(_) => part /= 2,
        }
    }
    stranger.sync_all().expect("what was written is there");
    let mut full = 40 * MIB;
    while ask(&mut client, write(full)).is_ok() {
        full += MIB;
    }
    assert_eq!(ask(&mut client, write(full)), Err(ENOSPC), "{}", c.log());
    let zero = Op::Zero { at: 0, len: MIB as u32, fua: true };
    ask(&mut client, zero).unwrap_or_else(|e| panic!("zeroes: error {e}\n{}", c.log()));
    c.json(&["volume", "delete", "other"]);
    let (head, _) = c.chain("demo");
    c.kill(&[c.pid_of(&head)]);
    for at in (MIB..full).step_by(2 * MIB as usize) {
        let trim = Op::Trim { at, len: MIB as u32 };
        ask(&mut client, trim).unwrap_or_else(|e| panic!("trim at {at}: error {e}\n{}", c.log()));
    }
    for n in 0..full / MIB / 8 {
        let end = ask(&mut client, write(full + n * MIB));
        assert!(end.is_ok(), "write {n} behind the trims: {end:?}\n{}", c.log());
    }
    assert!(client.read(0, 2 * MIB as u32).iter().all(|b| *b == 0));
    assert!(client.read(2 * MIB, MIB as u32).iter().all(|b| *b == 3));
    drop(client);
    // The node that was killed comes back, where nothing is free, or, if it needed more, as soon as there is room.
    std::fs::remove_file(c.data().join("stranger")).expect("it is there");
    drop(stranger);
    c.wait_healthy("demo");
    c.verify("demo");
    c.stop();
    drop(mounted);
}
