//! A cluster of `freebs up`, as these tests need it. The programs are those that lie beside this test.

use serde_json::Value;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest that anything here may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A program of this build: `freebs`, or `examples/NAME`.
pub fn program(name: &str) -> PathBuf {
    let me = std::env::current_exe().expect("this test is a file");
    let built = me.parent().and_then(Path::parent).expect("it lies in deps").join(name);
    assert!(built.is_file(), "{} is not there: `cargo build --workspace --examples --bins`", built.display());
    built
}

/// One cluster at a time: they share the machine.
static TURN: Mutex<()> = Mutex::new(());

pub struct Nodes {
    dir: TempDir,
    base: u16,
    up: Child,
    _turn: MutexGuard<'static, ()>,
}

fn free_ports(count: u16) -> u16 {
    let first = 31_000 + (std::process::id() % 90) as u16 * 10;
    let is_free = |base: &u16| (*base..base + count).all(|p| TcpListener::bind(("127.0.0.1", p)).is_ok());
    (0..500).map(|i| first + i % 40 * count).find(is_free).expect("free ports in a row")
}

impl Nodes {
    /// Three nodes and the volume `demo` of 64 MiB.
    pub fn up() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir =
            tempfile::Builder::new().prefix("client-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let base = free_ports(4);
        let file = |name: &str| std::fs::File::create(dir.path().join(name)).expect("a log file");
        let mut up = Command::new(program("freebs"));
        up.args(["up", "--nodes", "3", "--device-size", "1G", "--segment-size", "8M", "--volume", "demo:64M"]);
        up.args(["--listen", &format!("127.0.0.1:{base}"), "--nbd", &format!("127.0.0.1:{}", base + 3)]);
        up.arg("--data").arg(dir.path().join("data"));
        up.stdin(Stdio::null()).stdout(file("up.out")).stderr(file("up.err"));
        // SAFETY: between fork and exec it makes one system call that takes no memory of ours.
        unsafe {
            up.pre_exec(|| {
                // A test that is killed takes its cluster along.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        let nodes = Self { up: up.spawn().expect("freebs starts"), dir, base, _turn: turn };
        let begun = Instant::now();
        while !nodes.printed().lines().any(|l| l.starts_with("ready")) {
            assert!(begun.elapsed() < PATIENCE, "not ready: {}", nodes.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        nodes
    }

    fn printed(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("up.out")).unwrap_or_default()
    }

    fn log(&self) -> String {
        self.printed() + &std::fs::read_to_string(self.dir.path().join("up.err")).unwrap_or_default()
    }

    pub fn addresses(&self) -> Vec<String> {
        (0..3).map(|i| format!("127.0.0.1:{}", self.base + i)).collect()
    }

    /// A `freebs` command that must succeed.
    pub fn cli(&self, args: &[&str]) -> Vec<u8> {
        let mut command = Command::new(program("freebs"));
        let out = command.arg("--cluster").arg(self.addresses().join(",")).args(args).output().expect("freebs runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "freebs {args:?}: {said}\n{}", self.log());
        out.stdout
    }

    /// Kills the node that heads the first shard of a volume; `freebs up` starts it again.
    pub fn kill_head(&self, volume: &str) {
        let status: Value = serde_json::from_slice(&self.cli(&["status", "--json"])).expect("JSON");
        let all = |list: &str| status[list].as_array().expect("a list").clone();
        let volume = all("volumes").into_iter().find(|v| v["name"] == volume).expect("the volume");
        let head = volume["shards"][0]["head"].clone();
        let node = all("nodes").into_iter().find(|n| n["name"] == head).expect("the head");
        let pid = node["pid"].as_u64().expect("it is up") as i32;
        let parent = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let is_ours = parent.lines().any(|l| *l == format!("PPid:\t{}", self.up.id()));
        assert!(is_ours, "process {pid} is none of this cluster: {parent}");
        // SAFETY: it takes two numbers, and the process is a child of the one started here.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        // SAFETY: it takes two numbers, and the process is our child.
        unsafe { libc::kill(self.up.id() as i32, libc::SIGINT) };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && matches!(self.up.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}
