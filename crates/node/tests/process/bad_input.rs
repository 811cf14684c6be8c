//! What a user can get wrong: each has an exit status, a reason and a way out, and nothing is lost by it.

use crate::support::cluster::{Cluster, Setup, freebs, scratch};
use crate::support::device;
use crate::support::nbd::Client;
use crate::support::tools::{self, told};
use crate::support::{PATIENCE, Weight, shared, turn};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::{Command, Output};

fn say(cmd: &mut Command) -> Output {
    tools::output(cmd, PATIENCE)
}

/// The command ends with this status and says these words.
fn refused(out: &Output, status: i32, words: &[&str]) {
    let text = told(out);
    assert_eq!(out.status.code(), Some(status), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not said: {text}");
    }
}

#[test]
fn bad_words_are_usage_errors() {
    let usage: &[(&[&str], &[&str])] = &[
        (&["nonsense"], &["nonsense"]),
        (&["up", "--nodes", "0"], &["--nodes"]),
        (&["up", "--device-size", "20 apples"], &["--device-size"]),
        (&["up", "--map-cache", "1M"], &["--map-cache", "16M to 1T"]),
        (&["node", "--map-cache", "lots"], &["--map-cache", "512M"]),
        (&["up", "--volume", "demo"], &["NAME:SIZE"]),
        (&["up", "--volume", "../x:1G"], &["--volume"]),
        (&["up", "--volume", "demo:100"], &["--volume"]),
        (&["up", "--nbd", "0.0.0.0:10809"], &["loopback", "unix:"]),
        (&["gateway", "--nbd", "192.0.2.1:10809"], &["loopback", "unix:"]),
        (&["node", "--nbd", "[::]:10809"], &["loopback", "unix:"]),
        (&["volume", "create", "x"], &["--size"]),
        (&["volume", "create", "a/b", "--size", "1G"], &["name"]),
        (&["volume", "create", "", "--size", "1G"], &["name"]),
        (&["volume", "create", &"n".repeat(129), "--size", "1G"], &["128"]),
        (&["volume", "create", "x", "--size", "0"], &["size"]),
        (&["volume", "create", "x", "--size", "1000"], &["1M"]),
        (&["volume", "create", "x", "--size", "10000001"], &["512"]),
        (&["volume", "create", "x", "--size", "-1G"], &["-1"]),
        (&["volume", "create", "x", "--size", "99999999999999999999G"], &["--size"]),
        (&["volume", "create", "x", "--size", "1G", "--copies", "0"], &["--copies"]),
        (&["volume", "create", "x", "--size", "1G", "--ack", "none"], &["majority", "all"]),
        (&["volume", "create", "x", "--size", "1G", "--shards", "5000"], &["--shards"]),
        (&["volume", "import", "x"], &["FILE"]),
        (&["volume", "import", "x", "y", "--format", "vhd"], &["raw, qcow2"]),
        (&["volume", "export", "x"], &["FILE"]),
        (&["volume", "rename", "x", "a/b"], &["name"]),
        (&["status", "--cluster", "nowhere"], &["HOST:PORT"]),
    ];
    for (args, words) in usage {
        // Nobody listens at port 1: these are refused before anybody is asked.
        let out = say(freebs().env("FREEBS_CLUSTER", "127.0.0.1:1").args(*args));
        println!("{args:?}");
        refused(&out, 2, words);
    }
}

#[test]
fn a_cluster_that_is_not_there_is_said_so() {
    let out = say(freebs().args(["status", "--cluster", "127.0.0.1:1"]));
    refused(&out, 1, &["127.0.0.1:1", "freebs up"]);
    let out = say(freebs().args(["status", "--json", "--cluster", "127.0.0.1:1"]));
    let error: serde_json::Value = serde_json::from_slice(&out.stdout).expect("an error is JSON, too");
    assert!(error["error"]["kind"].is_string() && error["error"]["text"].is_string(), "{error:#}");
    assert_eq!(out.status.code(), Some(1));
}

#[test]
fn volumes_that_can_not_be_are_refused_by_a_running_cluster() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let create = |args: &[&str]| c.cli(&[&["volume", "create"], args].concat());
    refused(&create(&[&own, "--size", "1G"]), 1, &[&own, "already"]);
    refused(&create(&["x", "--size", "1G", "--copies", "5"]), 1, &["copies", "nodes"]);
    let out = create(&["x", "--size", "1G", "--copies", "2", "--min-copies", "3"]);
    assert!(matches!(out.status.code(), Some(1 | 2)), "{}", told(&out));
    let out = create(&["x", "--size", "1G", "--stripe", "3000"]);
    assert!(matches!(out.status.code(), Some(1 | 2)), "{}", told(&out));
    refused(&c.cli(&["volume", "show", "nobody"]), 1, &["nobody"]);
    refused(&c.cli(&["volume", "delete", "nobody"]), 1, &["nobody"]);
    refused(&c.cli(&["volume", "verify", "nobody"]), 1, &["nobody"]);
    refused(&c.cli(&["volume", "resize", &own, "--size", "1M"]), 1, &["smaller"]);
    // An attached volume is not deleted by mistake.
    let client = c.client(&own);
    refused(&c.cli(&["volume", "delete", &own]), 1, &["--force"]);
    drop(client);
    let data = c.data();
    refused(&c.cli(&["node", "stop", "nobody", "--data", data.to_str().unwrap()]), 1, &["nobody"]);
    refused(&c.cli(&["node", "stop", "node2", "--data", "/nowhere/at/all"]), 1, &["--data"]);
    refused(&c.cli(&["node", "stop", "nobody"]), 1, &["nobody"]);
    let nowhere = c.cli(&["node", "stop", "node2", "--cluster", "127.0.0.1:1"]);
    refused(&nowhere, 1, &["127.0.0.1:1", "freebs up", "SIGTERM"]);
    let list = c.json(&["volume", "list"]);
    let named = |name: &str| list["volumes"].as_array().expect("a list").iter().filter(|v| v["name"] == name).count();
    assert_eq!((named("x"), named("nobody"), named(&own)), (0, 0, 1), "{list:#}");
}

#[test]
fn a_data_directory_that_can_not_be_used() {
    let _turn = turn(Weight::Light);
    let c = Cluster::prepare(Setup::default());
    std::fs::write(c.data(), b"a file").expect("a file");
    refused(&say(&mut c.up_command()), 1, &["--data"]);
    std::fs::remove_file(c.data()).expect("just made");

    // SAFETY: it takes nothing and can't fail.
    if unsafe { libc::geteuid() } != 0 {
        let locked = c.data();
        std::fs::create_dir(&locked).expect("a directory");
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o500)).expect("it is ours");
        refused(&say(&mut c.up_command()), 1, &["--data", "permission"]);
        std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o700)).expect("it is ours");
        std::fs::remove_dir(&locked).expect("it is empty");
    } else if std::path::Path::new("/proc/self").exists() {
        // Root may write anywhere but where nothing can be written.
        let mut cmd = c.freebs();
        cmd.args(["up", "--data", "/proc/freebs-data", "--listen", &c.address()]);
        refused(&say(&mut cmd), 1, &["--data"]);
    }
    // A directory in use.
    let mut running = Cluster::up(Setup::default());
    let mut second = c.freebs();
    second.args(["up", "--listen", &c.address(), "--data"]).arg(running.data());
    refused(&say(&mut second), 1, &["in use", "--data"]);
    running.verify("demo");
    running.stop();
    assert!(c.processes().is_empty(), "a refused start leaves nothing behind");
}

#[test]
fn ports_that_are_taken() {
    let _turn = turn(Weight::Light);
    let c = Cluster::prepare(Setup::default());
    let holder = TcpListener::bind(c.address()).expect("a free port");
    refused(&say(&mut c.up_command()), 1, &[&c.address(), "taken", "--listen"]);
    drop(holder);
    let crate::support::nbd::Place::Tcp(nbd) = &c.place else { panic!("a port") };
    let holder = TcpListener::bind(nbd).expect("a free port");
    refused(&say(&mut c.up_command()), 1, &[nbd, "taken", "--nbd"]);
    drop(holder);
    assert!(c.processes().is_empty(), "a refused start leaves nothing behind");
    // Nothing stands in the way of another try.
    let mut c = c;
    c.start();
    c.verify("demo");
}

/// A cluster of one node that holds something, stopped.
fn stopped() -> Cluster {
    let mut c = Cluster::up(Setup { nodes: 1, volume: Some("demo:64M"), ..Setup::default() });
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    client.write(0, &[5; 65536]);
    drop(client);
    c.stop();
    c
}

#[test]
fn a_foreign_or_damaged_device_file_is_refused_and_left_alone() {
    let _turn = turn(Weight::Light);
    let mut c = stopped();
    let file = device::files(&c.data()).into_iter().next().expect("a device");
    let good = c.dir().join("good");
    std::fs::copy(&file, &good).expect("a copy");
    let name = file.file_name().expect("a name").to_str().expect("a plain name").to_owned();

    // Not a device at all.
    std::fs::write(&file, vec![b'x'; 8 << 20]).expect("a file");
    refused(&say(&mut c.up_command()), 1, &[&name]);
    assert_eq!(std::fs::read(&file).expect("a file"), vec![b'x'; 8 << 20], "it was not ours to write to");

    // Both superblocks damaged.
    std::fs::copy(&good, &file).expect("a copy");
    device::flip(&file, 40, 3);
    device::flip(&file, (512 << 10) + 40, 3);
    let before = std::fs::read(&file).expect("a file");
    refused(&say(&mut c.up_command()), 1, &[&name, "superblock"]);
    assert!(std::fs::read(&file).expect("a file") == before, "a damaged device was written to");

    // Another cluster's device.
    let other = stopped();
    let foreign = device::files(&other.data()).into_iter().next().expect("a device");
    std::fs::copy(&foreign, &file).expect("a copy");
    refused(&say(&mut c.up_command()), 1, &[&name, "cluster"]);
    assert!(std::fs::read(&file).expect("a file") == std::fs::read(&foreign).expect("a file"), "it was written to");

    // Cut off.
    std::fs::copy(&good, &file).expect("a copy");
    let cut = std::fs::File::options().write(true).open(&file).expect("a file");
    cut.set_len(1000).expect("it is ours");
    refused(&say(&mut c.up_command()), 1, &[&name]);

    // With the right one everything is there again.
    std::fs::copy(&good, &file).expect("a copy");
    c.start();
    let mut client = Client::connect(&c.place, "demo", true).expect("a client");
    assert_eq!(client.read(0, 65536), [5; 65536]);
    drop(client);
    c.verify("demo");
    c.stop();
}

/// V8: an image one start old was taken for the present device, because it was raised to the number that its node was
/// seen with; an older one after as many refused starts as it lacked.
#[test]
fn an_old_image_of_a_device_is_refused_and_left_alone() {
    let _turn = turn(Weight::Light);
    let mut c = Cluster::up(Setup { volume: Some("demo:64M"), ..Setup::default() });
    let write = |c: &Cluster, fill: u8| {
        Client::attach(&c.place, "demo").write(0, &[fill; 65536]);
    };
    write(&c, 1);
    c.stop();
    let file = c.data().join("node3").join("log-0.freebs");
    let old = c.dir().join("old");
    std::fs::copy(&file, &old).expect("a copy");
    c.start();
    write(&c, 2);
    c.wait_healthy("demo");
    c.stop();
    let present = c.dir().join("present");
    std::fs::rename(&file, &present).expect("ours to move");
    std::fs::copy(&old, &file).expect("a copy");

    c.start();
    // The supervisor starts it again and again.
    tools::wait_for("refusals", || (c.log().matches("old image").count() >= 3).then_some(()));
    assert!(c.nodes().iter().all(|(name, _)| name != "node3"), "it serves: {:#}", c.status());
    let mut client = Client::attach(&c.place, "demo");
    assert_eq!(client.read(0, 65536), [2; 65536]);
    drop(client);
    c.stop();
    assert!(std::fs::read(&file).expect("a file") == std::fs::read(&old).expect("a file"), "it was written to");

    // The present one is taken.
    std::fs::rename(&present, &file).expect("ours to move");
    c.start();
    c.wait_healthy("demo");
    c.verify("demo");
    c.stop();
}

/// One worker's device was raised, and the next one could not be opened. From then on the node registered the lower
/// number, and the volumes of the worker with the higher one never opened a view again.
#[test]
fn a_start_that_fails_between_two_workers_costs_nothing() {
    let _turn = turn(Weight::Light);
    let more = vec!["--workers".into(), "2".into()];
    let mut c = Cluster::up(Setup { nodes: 1, volume: Some("demo:64M"), more, ..Setup::default() });
    for name in ["a", "b", "c"] {
        c.json(&["volume", "create", name, "--size", "64M", "--copies", "1"]);
    }
    c.stop();
    let second = std::fs::File::open(c.data().join("node1").join("log-1.freebs")).expect("a device");
    second.lock().expect("nobody has it");
    let mut node = c.freebs();
    node.arg("node").arg("--cluster-file").arg(c.data().join("cluster.json")).args(["--name", "node1"]);
    refused(&say(&mut node), 1, &["log-1"]);
    drop(second);
    c.start();
    for name in ["demo", "a", "b", "c"] {
        let mut client = Client::attach(&c.place, name);
        client.write(0, &[3; 4096]);
    }
    c.stop();
}

#[test]
fn a_device_that_is_gone_is_not_replaced_by_an_empty_one() {
    let _turn = turn(Weight::Light);
    let c = stopped();
    let file = device::files(&c.data()).into_iter().next().expect("a device");
    std::fs::remove_file(&file).expect("a file");
    let out = say(&mut c.up_command());
    assert_eq!(out.status.code(), Some(1), "the only copy is gone, and nobody said so: {}", told(&out));
}

#[test]
fn a_full_file_system_is_an_error_with_a_way_out() {
    if !tools::have(&["mount", "umount"]) || !tools::can_mount() {
        return;
    }
    let _turn = turn(Weight::Light);
    let dir = scratch();
    let at = dir.path().join("small");
    std::fs::create_dir(&at).expect("a directory");
    let image = dir.path().join("image");
    std::fs::File::create(&image).and_then(|f| f.write_all_at(&[0], (24 << 20) - 1)).expect("a file");
    tools::run("mke2fs", ["-q", "-t", "ext4", image.to_str().unwrap()]);
    let mounted = crate::support::image::Mounted::new(&image, &at);
    let c = Cluster::prepare(Setup::default());
    let mut cmd = c.freebs();
    let data = at.join("data");
    cmd.args(["up", "--device-size", "1G", "--listen", &c.address(), "--data"]).arg(&data);
    let out = tools::output(&mut cmd, PATIENCE);
    refused(&out, 1, &["space"]);
    assert!(c.processes().is_empty(), "a refused start leaves nothing behind");
    drop(mounted);
}
