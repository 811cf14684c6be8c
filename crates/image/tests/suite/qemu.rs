//! Against QEMU's own tools.

use crate::common::{difference, disk, image, read_back};
use freebs_types::ErrorKind;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A disk of some megabytes: long data, single blocks, a tail that is not a whole cluster.
fn some_disk() -> Vec<u8> {
    disk(
        (9 << 20) + 3 * 512,
        &[(0, 1 << 20, 1), (2 << 20, 4096, 2), (3 << 20, 65_536, 3), (5_000_000, 900_000, 4), (9 << 20, 1536, 5)],
    )
}

/// True if `qemu-img` is there. Without it a test is skipped, and fails in CI, which installs it.
fn have_qemu_img() -> bool {
    if Command::new("qemu-img").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return true;
    }
    assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "qemu-img is missing; .ci/run installs it");
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    let _ = writeln!(std::io::stderr().lock(), "\nskipped: {test}: qemu-img is missing");
    false
}

fn qemu_img(args: &[&str]) -> String {
    let out = Command::new("qemu-img").args(args).output().expect("qemu-img runs");
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "qemu-img {args:?}: {}\n{said}", out.status);
    said
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).expect("a file");
        self.name(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain path").to_owned()
    }
}

fn read(path: &Path) -> freebs_types::Result<(Vec<u8>, u64)> {
    let bytes = std::fs::read(path).expect("qemu-img made it");
    read_back(&bytes[..])
}

#[test]
fn qemu_finds_nothing_wrong_in_what_was_written() {
    if !have_qemu_img() {
        return;
    }
    let dir = Dir::new();
    let disks = [some_disk(), disk(1 << 20, &[]), disk(512, &[(0, 512, 9)]), disk(40 << 20, &[(0, 40 << 20, 1)])];
    for (i, disk) in disks.iter().enumerate() {
        let raw = dir.put(&format!("{i}.raw"), disk);
        let written = dir.put(&format!("{i}.qcow2"), &image(disk, 1 << 20));
        let said = qemu_img(&["check", "-f", "qcow2", &written]);
        assert!(said.contains("No errors were found"), "{said}");
        assert!(!said.contains("leaked"), "{said}");
        qemu_img(&["compare", "-f", "raw", "-F", "qcow2", &raw, &written]);
    }
}

/// Every shape of image that qemu-img makes of one disk is read as that disk.
#[test]
fn images_that_qemu_made_are_read() {
    if !have_qemu_img() {
        return;
    }
    let dir = Dir::new();
    let disk = some_disk();
    let raw = dir.put("raw", &disk);
    let plain = ["", "-o compat=0.10", "-o cluster_size=512", "-o cluster_size=4k", "-o cluster_size=2M"];
    let others = [
        "-c",
        "-c -o compression_type=zstd",
        "-c -o cluster_size=512",
        "-c -o cluster_size=2M,compression_type=zstd",
        "-c -o compat=0.10,cluster_size=2M",
        "-o preallocation=metadata",
        "-o preallocation=full -S 0",
        "-o refcount_bits=1",
        "-o lazy_refcounts=on",
        "-S 0",
    ];
    for (i, how) in plain.iter().chain(&others).enumerate() {
        let out = dir.name(&format!("{i}.qcow2"));
        let mut args = vec!["convert", "-f", "raw", "-O", "qcow2"];
        args.extend(how.split_whitespace());
        args.extend([&raw[..], &out]);
        qemu_img(&args);
        let (back, moved) = read(Path::new(&out)).unwrap_or_else(|e| panic!("{how}: {e}"));
        assert_eq!(difference(&disk, &back), None, "{how}");
        if !how.contains("-S 0") && !how.contains("2M") && !how.contains("preallocation") {
            assert!(moved < 3 << 20, "{how}: holes were read as data, {moved} bytes");
        }
    }
}

/// Snapshots inside an image, and a disk that was resized in it, are not in the way.
#[test]
fn the_present_state_of_an_image_with_snapshots_is_read() {
    if !have_qemu_img() {
        return;
    }
    let dir = Dir::new();
    let disk = some_disk();
    let raw = dir.put("raw", &disk);
    let out = dir.name("image");
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &raw, &out]);
    qemu_img(&["snapshot", "-c", "one", &out]);
    qemu_img(&["resize", "-f", "qcow2", &out, "2G"]);
    let bytes = std::fs::read(&out).unwrap();
    let mut reader = freebs_image::qcow2::Reader::open(&bytes[..]).unwrap();
    assert_eq!((reader.header().snapshots, reader.header().size), (1, 2 << 30));
    let mut at = 0;
    while let Some(piece) = reader.next_piece().unwrap() {
        if let freebs_image::Body::Data(data) = &piece.body {
            let there = &disk[piece.at as usize..][..data.len().min(disk.len() - piece.at as usize)];
            assert_eq!(difference(there, &data[..there.len()]), None);
        }
        at += piece.body.len();
    }
    assert_eq!(at, 2 << 30);
}

#[test]
fn images_of_qemu_that_need_more_are_refused() {
    if !have_qemu_img() {
        return;
    }
    let dir = Dir::new();
    let raw = dir.put("raw", &some_disk());
    let (base, overlay) = (dir.name("base"), dir.name("overlay"));
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", &raw, &base]);
    qemu_img(&["create", "-f", "qcow2", "-b", &base, "-F", "qcow2", &overlay]);
    let (outside, data) = (dir.name("outside"), dir.name("data"));
    qemu_img(&["create", "-f", "qcow2", "-o", &format!("data_file={data},data_file_raw=on"), &outside, "4M"]);
    // An encrypted one is not made here: how long its key takes is measured first, which a busy machine can fail.
    let sub = dir.name("sub");
    qemu_img(&["create", "-f", "qcow2", "-o", "extended_l2=on", &sub, "4M"]);
    let expected = [(overlay, "backing file"), (outside, "external data file"), (sub, "extended_l2")];
    for (path, word) in expected {
        let e = read(Path::new(&path)).expect_err(word);
        assert!(e.kind == ErrorKind::Invalid && e.text.contains(word), "{path}: {e}");
    }
}
