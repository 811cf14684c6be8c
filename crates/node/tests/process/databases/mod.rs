//! Databases at work on ext4 while snapshots are taken: each clone mounts, and its database recovers by itself and has
//! every transaction that was told to be committed before its snapshot.

mod postgres;
mod sqlite;

use crate::past::snapshot;
use crate::support::cluster::{Cluster, Setup};
use crate::support::image::{AsFile, Mounted};
use crate::support::tools::{KILLED_MAX, run, say, wait_at_most, wait_for};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const VOLUME: &str = "db";
const TOOLS: &[&str] = &["nbdfuse", "losetup", "mount", "umount", "mke2fs", "nbdcopy", "python3"];

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A program that commits one transaction after the other, and prints the number of each that is committed.
struct Writer {
    child: Child,
    committed: Arc<AtomicU64>,
    reads: Option<JoinHandle<()>>,
}

impl Writer {
    fn start(mut cmd: Command) -> Self {
        let mut child = cmd.stdout(Stdio::piped()).spawn().unwrap_or_else(|e| panic!("{cmd:?}: {e}"));
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let committed = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&committed);
        let reads = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                told.store(line.parse().unwrap_or_else(|e| panic!("{line:?}: {e}")), Ordering::Release);
            }
        });
        Self { child, committed, reads: Some(reads) }
    }

    /// The number of the last transaction that was told to be committed.
    fn committed(&self) -> u64 {
        self.committed.load(Ordering::Acquire)
    }

    /// Waits until some more are committed.
    fn goes_on(&mut self, more: u64) {
        let then = self.committed() + more;
        wait_for("more transactions", || {
            let ended = self.child.try_wait().expect("our own child");
            assert!(ended.is_none(), "the writer ended: {ended:?}");
            (self.committed() >= then).then_some(())
        });
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = wait_at_most(&mut self.child, KILLED_MAX);
        if let Some(reads) = self.reads.take() {
            let _ = reads.join();
        }
    }
}

/// A cluster with a volume that has an empty ext4 file system, and a place for it that every user may enter.
struct Rig {
    cluster: Cluster,
    /// Of all users, unlike a test's own directory.
    open: TempDir,
}

impl Rig {
    fn new(volume: &'static str, bytes: &str) -> Self {
        let cluster = Cluster::up(Setup { volume: Some(volume), device_size: "2G", ..Setup::default() });
        let image = cluster.dir().join("empty");
        run("mke2fs", ["-q", "-t", "ext4", "-b", "4096", text(&image), bytes]);
        run("nbdcopy", ["--flush", text(&image), &cluster.place.uri(VOLUME)]);
        let open = TempDir::with_prefix("freebs-db-").expect("a directory");
        run("chmod", ["0755", text(open.path())]);
        Self { cluster, open }
    }

    /// A volume as a mounted file system.
    fn mounted(&self, volume: &str) -> Disk {
        let file = AsFile::open(&self.cluster.dir().join(format!("{volume}.fuse")), &[&self.cluster.place.uri(volume)]);
        let mounted = Mounted::new(&file.path(), &self.open.path().join(volume));
        Disk { _mounted: mounted, _file: file }
    }

    /// Takes snapshots while transactions are committed; of each, how many were told to be committed when it was begun.
    fn snapshots(&self, writer: &mut Writer, count: usize) -> Vec<u64> {
        let mut at = vec![];
        for n in 0..count {
            // Anywhere in a transaction.
            writer.goes_on(3);
            std::thread::sleep(Duration::from_micros(1_370 * (n as u64 % 13)));
            at.push(writer.committed());
            snapshot(&self.cluster, VOLUME, &format!("s{n}"));
        }
        writer.goes_on(3);
        at
    }

    /// Makes a clone of each snapshot, asks `look` for the transactions in it, and holds them against what was told.
    fn check(&self, committed: &[u64], written: u64, look: impl Fn(&str, &Path) -> u64) {
        let mut behind = 0;
        for (n, &committed) in committed.iter().enumerate() {
            let (snapshot, name) = (format!("{VOLUME}@s{n}"), format!("clone{n}"));
            self.cluster.json(&["volume", "clone", &snapshot, &name]);
            let disk = self.mounted(&name);
            let found = look(&name, &self.open.path().join(&name));
            drop(disk);
            assert!(found >= committed, "{snapshot}: {committed} transactions were committed, {found} are there");
            assert!(found <= written, "{snapshot}: {written} transactions were written, {found} are there");
            behind = behind.max(found - committed);
            self.cluster.json(&["volume", "delete", &name]);
        }
        say(&format!(
            "{} snapshots from transaction {} to {} of {written}: none lacks one that was committed before it; at most \
             {behind} more",
            committed.len(),
            committed[0],
            committed[committed.len() - 1],
        ));
    }
}

/// A volume as a mounted file system, for as long as this value lives. Fields go in this order.
struct Disk {
    _mounted: Mounted,
    _file: AsFile,
}
