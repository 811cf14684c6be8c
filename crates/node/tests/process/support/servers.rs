//! A cluster of nodes that join one after the other, each a process with a data directory of its own.

use super::PATIENCE;
use super::cluster::{free_ports, freebs, scratch};
use super::nbd::Place;
use super::tools::{self, told, wait_for};
use serde_json::Value;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Its nodes are called a, b, c and so on. The processes end with this value.
pub struct Servers {
    dir: TempDir,
    host: String,
    base: u16,
    processes: Vec<(String, Child)>,
}

const SIZES: [&str; 6] = ["--workers", "1", "--device-size", "1G", "--segment-size", "8M"];

impl Servers {
    /// No cluster yet, with room for so many nodes.
    #[must_use]
    pub fn none(most: u16) -> Self {
        Self { dir: scratch(), host: "127.0.0.1".into(), base: free_ports(most + 1), processes: Vec::new() }
    }

    /// A cluster whose first node runs, at another address of this machine.
    #[must_use]
    pub fn begin_at(host: &str, most: u16) -> Self {
        let mut servers = Self::none(most);
        host.clone_into(&mut servers.host);
        let out = servers.init("a");
        assert!(out.status.success(), "{}", told(&out));
        servers.run_first()
    }

    /// A cluster whose first node, a, was made and never ran, with room for so many.
    #[must_use]
    pub fn made(most: u16) -> Self {
        let servers = Self::none(most);
        let out = servers.init("a");
        assert!(out.status.success(), "{}", told(&out));
        servers
    }

    /// The same, whose first node runs.
    #[must_use]
    pub fn begin(most: u16) -> Self {
        Self::made(most).run_first()
    }

    fn run_first(mut self) -> Self {
        self.start("a");
        self.wait_up(1);
        self
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[must_use]
    pub fn data(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Where a node of this name listens.
    #[must_use]
    pub fn address(&self, name: &str) -> String {
        format!("{}:{}", self.host, self.base + u16::from(name.as_bytes()[0] - b'a'))
    }

    /// A command that asks any of the nodes.
    #[must_use]
    pub fn freebs(&self) -> Command {
        let mut cmd = freebs();
        let nodes = self.processes.iter().filter(|(name, _)| name.len() == 1);
        let mut all: Vec<_> = nodes.map(|(name, _)| self.address(name)).collect();
        if all.is_empty() {
            all.push(self.address("a"));
        }
        cmd.env("FREEBS_CLUSTER", all.join(",")).env("FREEBS_SCRUB_RATE", "8M").current_dir(self.dir());
        if self.host != "127.0.0.1" && self.data("a").join("cluster.json").exists() {
            cmd.env("FREEBS_AS_NODE", self.data("a"));
        }
        cmd
    }

    pub fn cli(&self, args: &[&str]) -> Output {
        tools::output(self.freebs().args(args), PATIENCE)
    }

    /// A command that must succeed, as JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let out = self.cli(&[args, &["--json"]].concat());
        assert!(out.status.success(), "freebs {args:?}: {}\n{}", told(&out), self.log());
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("freebs {args:?}: {e}: {}", told(&out)))
    }

    pub fn init(&self, name: &str) -> Output {
        let data = self.data(name);
        let address = self.address(name);
        let mut cmd = self.freebs();
        cmd.args(["cluster", "init", "--name", name, "--listen", &address]).args(SIZES).arg("--data").arg(data);
        tools::output(&mut cmd, PATIENCE)
    }

    #[must_use]
    pub fn token(&self, expires: &str) -> String {
        let made = self.json(&["cluster", "token", "--expires", expires]);
        made["token"].as_str().expect("a text").to_owned()
    }

    /// A node of this name asks one of another to join.
    pub fn join(&self, by: &str, token: &str, name: &str, more: &[&str]) -> Output {
        self.join_at(&self.address(by), token, name, more)
    }

    /// The same, of whoever is at that address.
    pub fn join_at(&self, at: &str, token: &str, name: &str, more: &[&str]) -> Output {
        let mut cmd = self.freebs();
        cmd.args(["node", "join", at, "--name", name]).args(SIZES).args(more);
        if !more.contains(&"--listen") {
            cmd.args(["--listen", &self.address(name)]);
        }
        if !more.contains(&"--data") {
            cmd.arg("--data").arg(self.data(name));
        }
        tools::output(cmd.env("FREEBS_TOKEN", token), PATIENCE)
    }

    pub fn start(&mut self, name: &str) {
        self.start_with(name, &[]);
    }

    pub fn start_with(&mut self, name: &str, more: &[&str]) {
        let log = File::options().create(true).append(true).open(self.dir().join(format!("{name}.log")));
        let log = log.expect("a log file");
        let mut cmd = self.freebs();
        cmd.arg("node")
            .arg("--data")
            .arg(self.data(name))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.spawn(name, cmd);
    }

    /// Starts a gateway of all nodes; where it serves.
    pub fn gateway(&mut self, name: &str) -> Place {
        let socket = self.dir().join(format!("{name}.sock"));
        let log = File::create(self.dir().join(format!("{name}.log"))).expect("a log file");
        let mut cmd = self.freebs();
        cmd.args(["gateway", "--name", name, "--nbd", &format!("unix:{}", socket.display())]);
        cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.spawn(name, cmd);
        Place::Unix(socket)
    }

    fn spawn(&mut self, name: &str, mut cmd: Command) {
        // SAFETY: between fork and exec it makes one system call that takes no memory of ours.
        unsafe {
            cmd.pre_exec(|| {
                // A test that is killed takes its processes along.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        self.processes.push((name.to_owned(), cmd.spawn().expect("it starts")));
    }

    /// The number of the process of a node.
    #[must_use]
    pub fn pid(&self, name: &str) -> u32 {
        self.processes.iter().find(|(n, _)| n == name).expect("it runs").1.id()
    }

    /// Ends a process at once.
    pub fn kill(&mut self, name: &str) {
        let at = self.processes.iter().position(|(n, _)| n == name).expect("it runs");
        let (_, mut process) = self.processes.remove(at);
        let _ = process.kill();
        let _ = process.wait();
    }

    /// How a process ended that ends by itself.
    pub fn wait_ended(&mut self, name: &str) -> Option<i32> {
        let at = self.processes.iter().position(|(n, _)| n == name).expect("it runs");
        let status = tools::wait_at_most(&mut self.processes[at].1, PATIENCE);
        let (_, _) = self.processes.remove(at);
        status.unwrap_or_else(|| panic!("{name} goes on\n{}", self.log())).code()
    }

    /// Waits until so many nodes are up, of which one leads, and as many vote as there should be; all nodes by name.
    pub fn wait_up(&self, nodes: usize) -> Vec<Value> {
        let votes = [0, 1, 1, 3, 3, 5][nodes.min(5)];
        let mut last = String::new();
        wait_for_or(&mut last, |last| {
            let out = self.cli(&["status", "--json"]);
            *last = told(&out);
            let status: Value = serde_json::from_slice(&out.stdout).ok()?;
            let all = status["nodes"].as_array()?.clone();
            let count = |key: &str| all.iter().filter(|n| n[key] == true).count();
            let up = all.iter().filter(|n| n["state"] == "up").count();
            (up == nodes && count("leads") == 1 && count("votes") == votes).then_some(all)
        })
        .unwrap_or_else(|| panic!("{nodes} nodes, and their votes: {last}\n{}", self.log()))
    }

    /// The ends of all logs.
    #[must_use]
    pub fn log(&self) -> String {
        let logs = super::cluster::files_below(self.dir(), &|p| p.extension().is_some_and(|e| e == "log"));
        let text = |p: &PathBuf| {
            let text = std::fs::read_to_string(p).unwrap_or_default();
            let from = text.char_indices().rev().nth(3000).map_or(0, |(i, _)| i);
            format!("--- {}\n{}\n", p.display(), &text[from..])
        };
        logs.iter().map(text).collect()
    }

    /// Waits until a volume has all its copies.
    pub fn wait_healthy(&self, volume: &str) {
        wait_for("all members active", || {
            let v = self.json(&["volume", "show", volume]);
            let shards = v["shards"].as_array()?.clone();
            let active = |s: &Value| s["members"].as_array().is_some_and(|m| m.iter().all(|m| m["state"] == "active"));
            shards.iter().all(active).then_some(())
        });
    }
}

fn wait_for_or<T>(last: &mut String, mut look: impl FnMut(&mut String) -> Option<T>) -> Option<T> {
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(found) = look(last) {
            return Some(found);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    None
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (_, process) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
