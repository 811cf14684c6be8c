//! Snapshots as clients see them.

use super::*;
use crate::support::nbd::Op;
use crate::support::tools::{have, run};
use crate::support::{Weight, shared, turn};

const EPERM: u32 = 1;
const EIO: u32 = 5;

/// nbdinfo, nbdcopy, qemu-img and the command read a snapshot, several at once, while the volume is written all over.
#[test]
fn a_snapshot_stays_what_it_was_while_the_volume_is_overwritten() {
    if !have(TOOLS) {
        return;
    }
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("64M", &["--shards", "3", "--stripe", "64K"]);
    let data = noise(1, 24 << 20);
    let mut client = c.client(&volume);
    fill(&mut client, MIB, &data);
    snapshot(&c, &volume, "s");
    let mut want = vec![0; 64 << 20];
    want[MIB as usize..][..data.len()].copy_from_slice(&data);
    let image = c.dir().join(format!("{volume}.want"));
    std::fs::write(&image, &want).expect("room");
    let uri = c.place.uri(&format!("{volume}@s"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let writes = s.spawn(|| overwrite(&mut client, 32 << 20, &stop));
        let info = run("nbdinfo", ["--json", &uri]);
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        let export = &info["exports"][0];
        assert_eq!(export["export-size"], 64 << 20, "{info}");
        assert_eq!((&export["is_read_only"], &export["can_multi_conn"]), (&true.into(), &true.into()), "{info}");
        let map = run("nbdinfo", ["--map", "--totals", &uri]);
        let data_bytes: u64 = map
            .lines()
            .find(|l| l.contains("data"))
            .map_or(0, |l| l.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number"));
        assert_eq!(data_bytes, 24 << 20, "{map}");
        let copies: Vec<_> = ["nbdcopy", "qemu-img", "freebs"].map(|p| c.dir().join(format!("{volume}.{p}"))).into();
        run("nbdcopy", ["--connections=4", &uri, text(&copies[0])]);
        run("qemu-img", ["convert", "-f", "raw", "-O", "raw", &uri, text(&copies[1])]);
        let exported = c.json(&["volume", "export", &format!("{volume}@s"), text(&copies[2])]);
        assert_eq!((&exported["size"], &exported["data"]), (&(64 << 20).into(), &(24 << 20).into()), "{exported}");
        for copy in &copies {
            let found = std::fs::read(copy).expect("a copy");
            assert_eq!(differ(&found, &want), None, "{}", copy.display());
        }
        run("qemu-img", ["compare", "-f", "raw", "-F", "raw", text(&image), &uri]);
        stop.store(true, Ordering::Relaxed);
        assert!(writes.join().expect("the writer") >= 32);
    });
    let mut reader = Client::connect(&c.place, &format!("{volume}@s"), true).expect("it is open to all");
    assert_eq!(differ(&read_all(&mut reader), &want), None);
    assert_ne!(differ(&read_all(&mut client), &want), None, "the present is another");
    let exports = c.exports();
    assert!(exports.contains(&format!("{volume}@s")) && exports.contains(&volume), "{exports:?}");
}

#[test]
fn a_snapshot_takes_no_changes() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &[]);
    c.client(&volume).write(0, &[5; 8192]);
    snapshot(&c, &volume, "s");
    let mut reader = Client::connect(&c.place, &format!("{volume}@s"), true).expect("a snapshot");
    for op in [
        Op::Write { at: 0, data: vec![1; 4096], fua: false },
        Op::Trim { at: 0, len: 4096 },
        Op::Zero { at: 0, len: 4096, fua: false },
    ] {
        assert_eq!(reader.ask(&op).expect("an answer"), Err(EPERM), "{op:?}");
    }
    assert_eq!(reader.ask(&Op::Flush).expect("an answer"), Ok(vec![]));
    assert_eq!(reader.read(100, 9000), [vec![5; 8092], vec![0; 908]].concat());
    for wrong in [format!("{volume}@t"), "none@s".into(), format!("{volume}@"), format!("{volume}@s@s")] {
        assert!(Client::connect(&c.place, &wrong, true).is_err(), "{wrong}");
    }
}

/// A volume that has grown since is as large as it was in a snapshot of before.
#[test]
fn a_snapshot_keeps_its_size() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &[]);
    c.client(&volume).write((8 << 20) - 4096, &[7; 4096]);
    snapshot(&c, &volume, "small");
    c.json(&["volume", "resize", &volume, "--size", "16M"]);
    c.client(&volume).write(12 << 20, &[8; 4096]);
    let mut reader = Client::connect(&c.place, &format!("{volume}@small"), true).expect("a snapshot");
    assert_eq!(reader.size, 8 << 20);
    assert_eq!(reader.read((8 << 20) - 4096, 4096), [7; 4096]);
}

/// A reader of a snapshot that is deleted gets errors from then on, at once; and nobody else gets in.
#[test]
fn a_snapshot_that_is_deleted_gives_errors_to_its_readers() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let volume = c.volume("8M", &[]);
    let mut client = c.client(&volume);
    client.write(0, &[1; 65536]);
    snapshot(&c, &volume, "gone");
    client.write(0, &[2; 65536]);
    let export = format!("{volume}@gone");
    let mut reader = Client::connect(&c.place, &export, true).expect("a snapshot");
    assert_eq!(reader.read(0, 65536), [1; 65536]);
    c.json(&["snapshot", "delete", &export]);
    let read = Op::Read { at: 0, len: 65536 };
    let error = crate::support::tools::wait_for("an error for its reader", || {
        reader.ask(&read).expect("the connection stays").err()
    });
    assert_eq!(error, EIO);
    assert_eq!(reader.ask(&read).expect("an answer"), Err(EIO), "for good");
    assert!(Client::connect(&c.place, &export, true).is_err());
    let out = c.cli(&["volume", "export", &export, text(&c.dir().join("gone.img"))]);
    assert_eq!(out.status.code(), Some(1), "{}", told(&out));
    assert!(told(&out).contains("there is no snapshot"), "{}", told(&out));
    assert_eq!(client.read(0, 4096), [2; 4096]);
}
