//! File system images made of real files, and volumes mounted without a driver in the kernel: nbdfuse shows the volume
//! as a file, a loop device makes it a disk.

use super::tools::{self, command, run, wait_for};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Where the files of a tree come from, in this order.
const SOURCES: &[&str] = &["/usr/share", "/usr/lib", "/usr/bin", "/usr/include", "/usr/sbin"];
/// Files of a tree, at most: many small ones make the copy of the tree the longest part of the test.
const FILES_MAX: u64 = 60_000;

/// Copies at least `bytes` bytes of this machine's own files to `to`.
pub fn tree(to: &Path, bytes: u64) {
    let mut budget = (bytes, FILES_MAX);
    fs::create_dir_all(to).expect("a directory");
    for source in SOURCES.iter().map(Path::new).filter(|p| p.is_dir()) {
        let under = to.join(source.file_name().expect("sources have names"));
        copy(source, &under, &mut budget);
    }
    assert!(budget.0 == 0, "this machine has too few files for a tree of {bytes} bytes");
}

fn copy(from: &Path, to: &Path, budget: &mut (u64, u64)) {
    fs::create_dir_all(to).expect("a directory");
    let mut entries: Vec<_> = fs::read_dir(from).into_iter().flatten().flatten().collect();
    entries.sort_by_key(|e| e.file_name());
    for entry in entries {
        if budget.0 == 0 {
            return;
        }
        let Ok(kind) = entry.file_type() else { continue };
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&path, &target, budget);
        } else if kind.is_symlink() {
            if let Ok(link) = fs::read_link(&path) {
                let _ = std::os::unix::fs::symlink(link, target);
            }
        } else if kind.is_file() {
            let size = entry.metadata().map_or(0, |m| m.size());
            // The last files are chosen for their size, so that the tree gets its bytes before it gets too many files.
            if (budget.1 > 0 || size > 256 << 10) && fs::copy(&path, &target).is_ok() {
                *budget = (budget.0.saturating_sub(size), budget.1.saturating_sub(1));
            }
        }
    }
}

/// An ext4 image of a tree; its size in bytes.
pub fn ext4(tree: &Path, image: &Path, tree_bytes: u64) -> u64 {
    let size = (tree_bytes * 5 / 4 + (64 << 20)).next_multiple_of(1 << 20);
    let blocks = format!("{}k", size >> 10);
    let args = ["-q", "-t", "ext4", "-b", "4096", "-E", "root_owner=0:0", "-d"].map(OsStr::new);
    run("mke2fs", args.into_iter().chain([tree.as_os_str(), image.as_os_str(), OsStr::new(&blocks)]));
    fs::metadata(image).expect("an image").len()
}

/// A volume as a file, for as long as this value lives.
pub struct AsFile {
    dir: PathBuf,
    child: Child,
}

impl AsFile {
    /// The volume behind `source`: a URI, or `[ command … ]` for a server that nbdfuse starts itself.
    pub fn open(dir: &Path, source: &[&str]) -> Self {
        fs::create_dir_all(dir).expect("a directory");
        let mut cmd = command("nbdfuse");
        cmd.arg(dir.join("volume")).args(source).stdin(Stdio::null());
        let child = cmd.spawn().unwrap_or_else(|e| panic!("{cmd:?}: {e}"));
        let mut this = Self { dir: dir.to_owned(), child };
        wait_for("nbdfuse", || {
            let ended = this.child.try_wait().expect("our own child");
            assert!(ended.is_none(), "nbdfuse ended: {ended:?}");
            this.path().exists().then_some(())
        });
        this
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join("volume")
    }
}

impl Drop for AsFile {
    fn drop(&mut self) {
        tools::tidies(command("fusermount3").arg("-u").arg(&self.dir).stderr(Stdio::null()));
        if tools::wait_at_most(&mut self.child, tools::KILLED_MAX).is_some() {
            return;
        }
        tools::tidies(command("fusermount3").args(["-u", "-z"]).arg(&self.dir));
        let _ = self.child.kill();
        let _ = tools::wait_at_most(&mut self.child, tools::KILLED_MAX);
    }
}

/// A file as a mounted ext4 file system, for as long as this value lives.
pub struct Mounted {
    at: PathBuf,
    device: String,
}

impl Mounted {
    pub fn new(file: &Path, at: &Path) -> Self {
        fs::create_dir_all(at).expect("a directory");
        let file = file.to_str().expect("a plain path");
        let device = run("losetup", ["--find", "--show", file]).trim().to_owned();
        let this = Self { at: at.to_owned(), device };
        run("mount", ["-t", "ext4", &this.device, at.to_str().expect("a plain path")]);
        this
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !tools::tidies(command("umount").arg(&self.at)) {
            tools::tidies(command("umount").arg("-l").arg(&self.at));
        }
        tools::tidies(command("losetup").args(["-d", &self.device]));
    }
}

/// Both trees have the same names, contents and links.
pub fn assert_same_tree(a: &Path, b: &Path) {
    let mut cmd = command("diff");
    cmd.args(["-r", "-q", "--no-dereference", "-x", "lost+found"]).args([a, b]);
    let out = tools::output(&mut cmd, tools::TOOL_TIME_MAX);
    assert!(out.status.success(), "the trees differ: {}", tools::told(&out));
}
