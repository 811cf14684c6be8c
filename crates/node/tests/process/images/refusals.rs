//! Images and volumes that can't be: an exit status, a reason and the way out, and nothing is left behind.

use super::*;
use crate::support::cluster::Setup;
use crate::support::tools::{first_difference, have, wait_for};
use crate::support::{Weight, shared, turn};
use std::os::unix::fs::MetadataExt;

#[test]
fn images_that_can_not_be_read_say_why() {
    if !have(&["qemu-img"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let plain = raw(c.dir().join("r.img"), 8 * MIB, &[(0, 1 << 20), (4 * MIB, 1 << 20)]);
    let at = |name: &str| c.dir().join(name);
    let whole = converted(&plain, at("r.qcow2"), "");
    run("qemu-img", ["create", "-f", "qcow2", "-b", text(&whole), "-F", "qcow2", text(&at("r.overlay"))]);
    run("qemu-img", ["convert", "-f", "raw", "-O", "vmdk", text(&plain), text(&at("r.vmdk"))]);
    let bytes = std::fs::read(&whole).expect("just made");
    std::fs::write(at("r.cut"), &bytes[..bytes.len() - 700_000]).expect("room");
    std::fs::write(at("r.head"), &bytes[..50]).expect("room");
    std::fs::write(at("r.empty"), b"").expect("room");
    let packed = converted(&plain, at("r.packed"), "-c");
    let mut spoilt = std::fs::read(&packed).expect("just made");
    let end = spoilt.len();
    spoilt[end - 300_000..].fill(0xee);
    std::fs::write(at("r.spoilt"), &spoilt).expect("room");
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("r.overlay", &[], &["backing file", "qemu-img convert"]),
        ("r.vmdk", &[], &["a VMDK image", "qemu-img convert", "--format raw"]),
        ("r.cut", &[], &["cut short", "copy it again"]),
        ("r.head", &[], &["cut short"]),
        ("r.empty", &[], &["is empty"]),
        ("r.spoilt", &[], &["can't be unpacked", "qemu-img check"]),
        ("r.none", &[], &["r.none", "No such file"]),
        ("r.img", &["--format", "qcow2"], &["no qcow2 image"]),
        ("r.img", &["--size", "4M"], &["does not fit", "--size"]),
        (".", &[], &["directory"]),
        ("-", &[], &["--size"]),
        ("-", &["--size", "4M", "--format", "qcow2"], &["name a file"]),
    ];
    for (file, more, words) in cases {
        let out = c.cli(&[&["volume", "import", "refused", file], *more].concat());
        println!("{file} {more:?}");
        refused(&out, words);
        assert_eq!(volumes(&c, "refused"), Vec::<String>::new(), "{file} {more:?}");
    }
    let out = c.cli(&["volume", "import", "refused", "r.cut", "--json"]);
    let error: Value = serde_json::from_slice(&out.stdout).expect("an error is JSON, too");
    assert_eq!(error["error"]["kind"], "corrupt");
    // Taken as it is, an image is bytes like any others.
    import(&c, "taken", &at("r.vmdk"), &["--format", "raw"]);
    let long = "n".repeat(119);
    refused(&c.cli(&["volume", "import", &long, text(&plain)]), &["at most 118"]);
}

#[test]
fn a_volume_that_does_not_fit_says_so() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("4M", &[]);
    let image = raw(c.dir().join("fit.img"), 8 * MIB, &[(0, 4096)]);
    let import = |more: &[&str]| c.cli(&[&["volume", "import", &own, text(&image)], more].concat());
    refused(&import(&[]), &["does not fit", "volume resize"]);
    c.json(&["volume", "resize", &own, "--size", "16M"]);
    refused(&import(&["--size", "8M"]), &["is there already", "leave out --size"]);
    refused(&import(&["--copies", "2"]), &["is there already", "leave out"]);
    assert!(import(&["--size", "16M"]).status.success());
    refused(&c.cli(&["volume", "export", "nobody", "x.img"]), &["nobody", "volume list"]);
    // More than was said comes through a pipe.
    let mut cmd = c.freebs();
    cmd.args(["volume", "import", "more", "-", "--size", "4M"]).stdin(File::open(&image).expect("it is there"));
    refused(&cmd.output().expect("it runs"), &["more than", "larger --size"]);
    assert_eq!(volumes(&c, "more"), Vec::<String>::new());
}

/// Exclusive attachment holds for the command as for any other driver.
#[test]
fn a_volume_that_is_in_use_is_left_alone() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("64M", &[]);
    let image = raw(c.dir().join("use.img"), MIB, &[(0, 4096)]);
    let file = c.dir().join("use.out");
    let mut client = c.client(&own);
    client.write(0, &[7; 4096]);
    let out = c.cli(&["volume", "export", &own, text(&file)]);
    refused(&out, &["attached by gateway", "disconnect its clients there", &format!("volume detach {own}")]);
    assert!(!file.exists());
    refused(&c.cli(&["volume", "import", &own, text(&image), "--force"]), &["attached by gateway", "disconnect"]);
    client.write(4096, &[8; 4096]);
    assert_eq!(client.read(0, 8192), [[7; 4096], [8; 4096]].concat());
    assert_eq!(volumes(&c, &own), [own.as_str()]);
    drop(client);
    wait_for("the end of the attachment", || shown(&c, &own)["attached"].is_null().then_some(()));
    export(&c, &own, &file, &[]);
}

#[test]
fn a_file_that_is_there_is_left_alone() {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let own = c.volume("4M", &[]);
    let dir = c.dir().join("there");
    std::fs::create_dir(&dir).expect("a directory");
    let file = dir.join("a.img");
    std::fs::write(&file, b"mine").expect("room");
    let inode = std::fs::metadata(&file).expect("just written").ino();
    refused(&c.cli(&["volume", "export", &own, text(&file)]), &["is there already", "--force"]);
    refused(&c.cli(&["volume", "export", &own, text(&dir)]), &["is no file"]);
    refused(&c.cli(&["volume", "export", &own, text(&dir.join("none/a.img"))]), &["none"]);
    refused(&c.cli(&["volume", "export", &own, "-", "--format", "qcow2"]), &["name a file"]);
    refused(&c.cli(&["volume", "export", &own, "-", "--json"]), &["leave out --json"]);
    let now = std::fs::metadata(&file).expect("it is there");
    assert_eq!((std::fs::read(&file).expect("it is there"), now.ino()), (b"mine".to_vec(), inode));
    export(&c, &own, &file, &["--force"]);
    assert_eq!(std::fs::metadata(&file).expect("it is there").len(), 4 * MIB);
    let left: Vec<_> =
        std::fs::read_dir(&dir).expect("it is there").map(|e| e.expect("readable").file_name()).collect();
    assert_eq!(left, ["a.img"]);
}

/// The cluster has too little room: it says so, the volume is taken away again, and its room is there for others.
#[test]
fn a_full_cluster_refuses_and_forgets() {
    let _turn = turn(Weight::Loaded);
    let c = Cluster::up(Setup { device_size: "128M", volume: None, ..Setup::default() });
    let image = raw(c.dir().join("large.img"), 256 * MIB, &[(0, 256 << 20)]);
    let out = c.cli(&["volume", "import", "large", text(&image), "--json"]);
    refused(&out, &["are full", "delete what is not needed", "was not made"]);
    let error: Value = serde_json::from_slice(&out.stdout).expect("an error is JSON, too");
    assert_eq!(error["error"]["kind"], "no_space");
    assert_eq!(volumes(&c, "large"), Vec::<String>::new());
    let small = raw(c.dir().join("small.img"), 16 * MIB, &[(0, 16 << 20)]);
    wait_for("room", || c.cli(&["volume", "import", "small", text(&small)]).status.success().then_some(()));
    let back = c.dir().join("small.back");
    export(&c, "small", &back, &[]);
    assert_eq!(first_difference(&small, &back, 16 * MIB), None);
}
