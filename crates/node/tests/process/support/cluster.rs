//! A cluster as a user starts it: `freebs up` with its nodes and gateway as processes of their own.
//!
//! Invariant: each process of a cluster carries the cluster's token in its environment, and only processes that carry
//! it are ended. When a cluster is dropped none of them is left.

use super::PATIENCE;
use super::nbd::Place;
use super::tools::{self, say, wait_for};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const TOKEN: &str = "FREEBS_TEST_CLUSTER";
/// Twice ten seconds are what the product allows itself in the worst case: the gateway first, then the nodes.
const STOP_MAX: Duration = PATIENCE;

/// The program under test.
#[must_use]
pub fn freebs() -> Command {
    Command::new(std::env::var_os("FREEBS_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_freebs").into()))
}

/// How a cluster is started.
#[derive(Clone, Debug)]
pub struct Setup {
    pub nodes: u16,
    /// It has ports for so many, if that are more.
    pub grows_to: u16,
    pub device_size: &'static str,
    pub segment_size: &'static str,
    /// `NAME:SIZE`
    pub volume: Option<&'static str>,
    pub unix: bool,
    /// Bytes a second of each node's scrub.
    pub scrub_rate: &'static str,
    pub more: Vec<String>,
    /// Of all its processes.
    pub env: Vec<(String, String)>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: 3,
            grows_to: 0,
            device_size: "1G",
            segment_size: "8M",
            volume: Some("demo:256M"),
            unix: false,
            scrub_rate: "8M",
            more: vec![],
            env: vec![],
        }
    }
}

pub struct Cluster {
    setup: Setup,
    dir: TempDir,
    base: u16,
    pub place: Place,
    token: String,
    up: Option<Child>,
    /// Nodes that stand still, by name.
    paused: Mutex<BTreeSet<String>>,
    /// How long the last start took until `ready`.
    pub ready_after: Duration,
}

/// A row of free ports on loopback, below those that the system gives to connections.
pub fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let spread = (std::process::id() % 900) as u16 * 10;
    for _ in 0..500 {
        let base = 21_000 + (spread + NEXT.fetch_add(count, Ordering::Relaxed)) % 9_000;
        if (base..base + count).all(|p| TcpListener::bind(("127.0.0.1", p)).is_ok()) {
            return base;
        }
    }
    panic!("no {count} free ports in a row");
}

/// A directory on a real file system: the devices are opened with O_DIRECT.
#[must_use]
pub fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("cluster-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

impl Cluster {
    /// Starts a new cluster and waits until it is ready.
    #[must_use]
    pub fn up(setup: Setup) -> Self {
        let mut cluster = Self::prepare(setup);
        cluster.start();
        cluster
    }

    /// A cluster that was not started yet.
    #[must_use]
    pub fn prepare(setup: Setup) -> Self {
        let dir = scratch();
        let base = free_ports(setup.nodes.max(setup.grows_to) + 2);
        let place = if setup.unix {
            Place::Unix(std::env::temp_dir().join(format!("freebs-test-{}-{base}.sock", std::process::id())))
        } else {
            Place::Tcp(format!("127.0.0.1:{}", base + setup.nodes))
        };
        let token = format!("{}-{base}", std::process::id());
        Self { setup, dir, base, place, token, up: None, paused: Mutex::default(), ready_after: Duration::ZERO }
    }

    /// Where it keeps its data.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A place for a test's own files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.base)
    }

    /// A `freebs` command that talks to this cluster and carries its token.
    #[must_use]
    pub fn freebs(&self) -> Command {
        let mut cmd = freebs();
        // A node that stands still is asked last: commands take the first that answers.
        let paused = self.paused.lock().unwrap_or_else(|e| e.into_inner());
        let mut nodes: Vec<_> = (0..self.setup.nodes).collect();
        nodes.sort_by_key(|i| paused.contains(&format!("node{}", i + 1)));
        let nodes: Vec<_> = nodes.into_iter().map(|i| format!("127.0.0.1:{}", self.base + i)).collect();
        cmd.env("FREEBS_SCRUB_RATE", self.setup.scrub_rate).envs(self.setup.env.iter().cloned());
        cmd.env(TOKEN, &self.token).env("FREEBS_CLUSTER", nodes.join(",")).current_dir(self.dir.path());
        cmd
    }

    /// The command that starts it.
    #[must_use]
    pub fn up_command(&self) -> Command {
        let mut cmd = self.freebs();
        let s = &self.setup;
        let nbd = match &self.place {
            Place::Tcp(address) => address.clone(),
            Place::Unix(path) => format!("unix:{}", path.display()),
        };
        cmd.args(["up", "--nodes", &s.nodes.to_string(), "--device-size", s.device_size]);
        cmd.args(["--segment-size", s.segment_size, "--listen", &self.address(), "--nbd", &nbd]);
        cmd.arg("--data").arg(self.data());
        if let Some(volume) = s.volume {
            cmd.args(["--volume", volume]);
        }
        cmd.args(&s.more);
        cmd
    }

    /// Starts it, again or for the first time, and waits until it is ready.
    pub fn start(&mut self) {
        let begun = Instant::now();
        self.spawn();
        wait_for("ready", || {
            let ended = self.up.as_mut().expect("just started").try_wait().expect("our own child");
            assert!(ended.is_none(), "freebs up ended: {ended:?}\n{}", self.log());
            self.ready_line()
        });
        self.ready_after = begun.elapsed();
    }

    /// Starts it and waits for nothing.
    pub fn spawn(&mut self) {
        assert!(self.up.is_none(), "it runs");
        let file = |name: &str| fs::File::create(self.dir.path().join(name)).expect("a log file");
        let mut cmd = self.up_command();
        cmd.stdin(Stdio::null()).stdout(file("up.out")).stderr(file("up.err"));
        // SAFETY: between fork and exec it makes one system call that takes no memory of ours.
        unsafe {
            cmd.pre_exec(|| {
                // A test that is killed takes its cluster along.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                Ok(())
            });
        }
        self.up = Some(cmd.spawn().unwrap_or_else(|e| panic!("{cmd:?}: {e}")));
    }

    /// The line that says that volumes can be used.
    #[must_use]
    pub fn ready_line(&self) -> Option<String> {
        let out = fs::read_to_string(self.dir.path().join("up.out")).unwrap_or_default();
        out.lines().find(|l| l.starts_with("ready")).map(str::to_owned)
    }

    /// What it has printed, and the ends of its processes' logs.
    #[must_use]
    pub fn log(&self) -> String {
        let mut text = String::new();
        let mut show = |path: &Path| {
            let mut bytes = vec![];
            if fs::File::open(path).and_then(|mut f| f.read_to_end(&mut bytes)).is_ok() && !bytes.is_empty() {
                let from = bytes.len().saturating_sub(3000);
                text += &format!("--- {}\n{}\n", path.display(), String::from_utf8_lossy(&bytes[from..]));
            }
        };
        show(&self.dir.path().join("up.out"));
        show(&self.dir.path().join("up.err"));
        let mut logs = files_below(self.dir.path(), &|p| p.extension().is_some_and(|e| e == "log"));
        logs.sort();
        logs.iter().for_each(|p| show(p));
        text
    }

    /// All that its processes have logged since they were started first.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut paths = files_below(self.dir(), &|p| p.extension().is_some_and(|e| e == "log" || e == "err"));
        paths.sort();
        paths.iter().map(|p| fs::read_to_string(p).unwrap_or_default()).collect()
    }

    /// Runs a `freebs` command against it.
    pub fn cli(&self, args: &[&str]) -> Output {
        tools::output(self.freebs().args(args), PATIENCE)
    }

    /// A command that must succeed, as JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let mut all = args.to_vec();
        all.push("--json");
        let out = self.cli(&all);
        assert!(out.status.success(), "freebs {all:?}: {}\n{}", tools::told(&out), self.log());
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("freebs {all:?}: {e}: {}", tools::told(&out)))
    }

    /// The whole cluster; asked again for a while if nobody answers, because a test may just have killed who would.
    #[must_use]
    pub fn status(&self) -> Value {
        let mut last = None;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let out = self.cli(&["status", "--json"]);
            if out.status.success() {
                return serde_json::from_slice(&out.stdout).expect("status --json is JSON");
            }
            last = Some(out);
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("status: {}\n{}", tools::told(&last.expect("asked")), self.log());
    }

    /// A volume as `status` shows it.
    #[must_use]
    pub fn volume(&self, name: &str) -> Value {
        let status = self.status();
        let volumes = status["volumes"].as_array().expect("volumes is a list");
        volumes.iter().find(|v| v["name"] == name).unwrap_or_else(|| panic!("no volume {name}: {status:#}")).clone()
    }

    /// Process ids of the nodes, by name; those that are down are left out.
    #[must_use]
    pub fn nodes(&self) -> Vec<(String, u32)> {
        pids(&self.status()["nodes"])
    }

    #[must_use]
    pub fn gateways(&self) -> Vec<(String, u32)> {
        pids(&self.status()["gateways"])
    }

    /// The node that heads the first shard of a volume, and the others of its chain.
    #[must_use]
    pub fn chain(&self, volume: &str) -> (String, Vec<String>) {
        let v = self.volume(volume);
        let shard = &v["shards"][0];
        let head = shard["head"].as_str().expect("a head").to_owned();
        let members = shard["members"].as_array().expect("members is a list");
        let names = members.iter().map(|m| m["node"].as_str().expect("a name").to_owned());
        let others = names.filter(|n| *n != head).collect();
        (head, others)
    }

    /// Waits until all members of all shards of a volume are active.
    pub fn wait_healthy(&self, volume: &str) {
        let mut last = Value::Null;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            last = self.volume(volume);
            let shards = last["shards"].as_array().expect("shards is a list");
            let active = |s: &Value| s["members"].as_array().is_some_and(|m| m.iter().all(|m| m["state"] == "active"));
            if shards.iter().all(active) {
                return;
            }
            std::thread::sleep(Duration::from_millis(60));
        }
        panic!("{volume} is not healthy after {PATIENCE:?}: {last:#}\n{}", self.log());
    }

    /// `kill -9` of some of its processes at once.
    pub fn kill(&self, pids: &[u32]) {
        for &pid in pids {
            assert!(self.owns(pid), "process {pid} is not of this cluster");
        }
        for &pid in pids {
            signal(pid, libc::SIGKILL);
        }
    }

    /// Waits until the supervisor has seen that a process which was killed is gone.
    pub fn wait_gone(&self, pid: u32) {
        let stat = PathBuf::from(format!("/proc/{pid}/stat"));
        wait_for("the end of a killed process", || (!stat.exists()).then_some(()));
    }

    /// Sends a signal to one of its processes.
    pub fn tell(&self, pid: u32, signal_number: i32) {
        assert!(self.owns(pid), "process {pid} is not of this cluster");
        signal(pid, signal_number);
    }

    /// The process of a node that is up.
    pub fn pid_of(&self, node: &str) -> u32 {
        self.nodes().iter().find(|n| n.0 == node).unwrap_or_else(|| panic!("{node} is down\n{}", self.log())).1
    }

    pub fn pause(&self, pid: u32) {
        assert!(self.owns(pid), "process {pid} is not of this cluster");
        self.paused.lock().unwrap_or_else(|e| e.into_inner()).extend(name_of(pid));
        signal(pid, libc::SIGSTOP);
        // The signal is sent; threads that run on another core stop a moment later.
        let begun = std::time::Instant::now();
        while !stands_still(pid) {
            assert!(begun.elapsed() < PATIENCE, "process {pid} does not stop");
            std::thread::yield_now();
        }
    }

    pub fn resume(&self, pid: u32) {
        assert!(self.owns(pid), "process {pid} is not of this cluster");
        signal(pid, libc::SIGCONT);
        if let Some(name) = name_of(pid) {
            self.paused.lock().unwrap_or_else(|e| e.into_inner()).remove(&name);
        }
    }

    fn owns(&self, pid: u32) -> bool {
        let mine = format!("{TOKEN}={}", self.token);
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|e| e.split(|b| *b == 0).any(|v| v == mine.as_bytes()))
    }

    /// All processes that carry its token.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let names = fs::read_dir("/proc").expect("/proc").filter_map(|e| e.ok()?.file_name().into_string().ok());
        names.filter_map(|n| n.parse().ok()).filter(|pid| self.owns(*pid) && !zombie(*pid)).collect()
    }

    /// The process of a node, without asking any node.
    #[must_use]
    pub fn process_of(&self, node: &str) -> Option<u32> {
        self.processes().into_iter().find(|pid| name_of(*pid).as_deref() == Some(node))
    }

    /// The process that was started: `freebs up` itself.
    #[must_use]
    pub fn supervisor(&self) -> u32 {
        self.up.as_ref().expect("it runs").id()
    }

    /// Stops it as Ctrl-C does; it must end cleanly and leave no process.
    pub fn stop(&mut self) {
        self.stop_with(libc::SIGINT);
    }

    pub fn stop_with(&mut self, signal_number: i32) {
        let mut up = self.up.take().expect("it runs");
        signal(up.id(), signal_number);
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = up.try_wait().expect("our own child") {
                break status;
            }
            if begun.elapsed() > STOP_MAX {
                let left = self.processes();
                self.up = Some(up);
                panic!("not stopped after {STOP_MAX:?}; running: {left:?}\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let left = self.processes();
        assert!(left.is_empty(), "processes are left: {left:?}\n{}", self.log());
        assert!(status.success(), "freebs up ended with {status}\n{}", self.log());
    }

    /// `kill -9` of everything, the supervisor first, as a power failure of the machine's programs would.
    pub fn crash(&mut self) {
        if let Some(mut up) = self.up.take() {
            let _ = up.kill();
            let _ = tools::wait_at_most(&mut up, tools::KILLED_MAX);
        }
        self.sweep();
    }

    /// Waits until these processes have let go of their files. One that was killed is found no more before it has: its
    /// memory, and with it its arguments, goes first.
    pub fn wait_ended(&self, pids: &[u32]) {
        wait_for("the end of killed processes", || pids.iter().all(|pid| has_ended(*pid)).then_some(()));
    }

    /// `kill -9` of whatever of it still runs. What a killed process has asked of the disk is waited for before it ends.
    pub fn sweep(&self) {
        let (mut killed, begun) = (Vec::new(), Instant::now());
        while begun.elapsed() < Duration::from_secs(60) {
            let left = self.processes();
            if left.is_empty() && killed.iter().all(|pid| has_ended(*pid)) {
                return;
            }
            left.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
            killed.extend(left);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Asks all replicas of a volume for their digests; they must agree.
    pub fn verify(&self, volume: &str) {
        let out = self.cli(&["volume", "verify", volume]);
        assert!(out.status.success(), "replicas of {volume} disagree: {}\n{}", tools::told(&out), self.log());
    }
}

fn pids(list: &Value) -> Vec<(String, u32)> {
    let list = list.as_array().expect("a list");
    let one = |v: &Value| Some((v["name"].as_str()?.to_owned(), v["pid"].as_u64()? as u32));
    list.iter().filter_map(one).collect()
}

/// The name that a process was started with.
fn name_of(pid: u32) -> Option<String> {
    let args = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut args = args.split(|b| *b == 0).skip_while(|a| *a != b"--name").skip(1);
    args.next().map(|name| String::from_utf8_lossy(name).into_owned())
}

fn zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.trim_start().starts_with('Z'))
}

fn has_ended(pid: u32) -> bool {
    !PathBuf::from(format!("/proc/{pid}/stat")).exists() || zombie(pid)
}

fn signal(pid: u32, number: i32) {
    // SAFETY: it takes two numbers. Callers have made sure whose process it is.
    unsafe { libc::kill(pid as i32, number) };
}

/// All files below a directory that `wanted` lets through.
pub fn files_below(dir: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path, wanted));
        } else if wanted(&path) {
            found.push(path);
        }
    }
    found
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("the cluster's logs:\n{}", self.log()));
            if std::env::var_os("FREEBS_KEEP").is_some() {
                say(&format!("kept: {}", self.dir.path().display()));
                self.dir.disable_cleanup(true);
            }
        }
        if let Some(up) = &mut self.up {
            signal(up.id(), libc::SIGTERM);
            let begun = Instant::now();
            while begun.elapsed() < STOP_MAX && !matches!(up.try_wait(), Ok(Some(_)) | Err(_)) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.crash();
        if let Place::Unix(path) = &self.place {
            let _ = fs::remove_file(path);
        }
    }
}

/// True if no thread of the process runs any more.
fn stands_still(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
    };
    tasks.flatten().all(is_stopped)
}
