//! Machines of their own: network namespaces with an address each, in one network, and a shell on each.

use super::PATIENCE;
use super::cluster::{freebs, scratch};
use super::tools::{command, find, have, output, skip, told};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;

/// Ends what a shell prints for a line.
const MARK: &str = "::ended with ";

fn ip(args: &str) -> Result<(), String> {
    let out = output(command("ip").args(args.split_whitespace()), PATIENCE);
    if out.status.success() { Ok(()) } else { Err(format!("ip {args}: {}", told(&out))) }
}

/// A shell on a machine, with all that it has begun. The processes end with this value.
struct Shell {
    process: Child,
    input: ChildStdin,
    printed: BufReader<ChildStdout>,
}

impl Drop for Shell {
    fn drop(&mut self) {
        // SAFETY: a system call that takes no memory; the group is this shell's, whose process was not waited for before.
        unsafe { libc::kill(-(self.process.id() as i32), libc::SIGKILL) };
        let _ = self.process.wait();
    }
}

/// Machines, numbered from 0 on.
pub struct Machines {
    net: String,
    shells: Vec<Shell>,
    dir: TempDir,
}

impl Machines {
    /// So many; `None`, and a word of it, where that can't be.
    #[must_use]
    pub fn new(count: usize) -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        // SAFETY: it takes nothing and can't fail.
        if unsafe { libc::geteuid() } != 0 {
            skip("only root makes network namespaces");
            return None;
        }
        if !have(&["ip"]) {
            return None;
        }
        let net = format!("fb{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        if let Err(e) = ip(&format!("netns add {net}")) {
            skip(&format!("no network namespaces here: {e}"));
            return None;
        }
        let mut all = Self { net, shells: Vec::new(), dir: scratch() };
        all.wire(count).unwrap_or_else(|e| panic!("{e}"));
        for i in 0..count {
            let shell = all.shell(i);
            all.shells.push(shell);
        }
        Some(all)
    }

    fn wire(&self, count: usize) -> Result<(), String> {
        let net = &self.net;
        ip(&format!("-n {net} link add br0 type bridge"))?;
        ip(&format!("-n {net} link set br0 up"))?;
        for i in 0..count {
            let (name, address) = (self.name(i), Self::address(i));
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {net} link add port{i} type veth peer name eth0 netns {name}"))?;
            ip(&format!("-n {net} link set port{i} master br0 up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(())
    }

    fn name(&self, machine: usize) -> String {
        format!("{}-{machine}", self.net)
    }

    #[must_use]
    pub fn address(machine: usize) -> String {
        format!("192.0.2.{}", 11 + machine)
    }

    /// Where its shell is.
    #[must_use]
    pub fn dir(&self, machine: usize) -> PathBuf {
        self.dir.path().join(format!("machine{machine}"))
    }

    fn programs(&self) -> PathBuf {
        let programs = self.dir.path().join("programs");
        if !programs.is_dir() {
            std::fs::create_dir(&programs).expect("a directory");
            let program = std::fs::canonicalize(freebs().get_program()).expect("the program under test");
            std::os::unix::fs::symlink(program, programs.join("freebs")).expect("a link");
        }
        programs
    }

    /// A command that runs on a machine.
    fn on(&self, namespace: &str, program: &str) -> Command {
        let mut cmd = command("ip");
        let program = find(program).unwrap_or_else(|| PathBuf::from(program));
        cmd.args(["netns", "exec", namespace]).arg(program);
        let path = std::env::var("PATH").unwrap_or_default();
        cmd.env("PATH", format!("{}:{path}", self.programs().display())).env("FREEBS_SCRUB_RATE", "8M");
        cmd.process_group(0);
        cmd
    }

    fn log_file(&self, name: &str) -> File {
        File::options().create(true).append(true).open(self.dir.path().join(name)).expect("a log file")
    }

    fn shell(&self, machine: usize) -> Shell {
        let dir = self.dir(machine);
        std::fs::create_dir(&dir).expect("a directory");
        let mut cmd = self.on(&self.name(machine), "sh");
        cmd.current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        cmd.stderr(self.log_file(&format!("machine{machine}.log")));
        let mut process = cmd.spawn().expect("a shell");
        let (input, printed) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        Shell { process, input, printed: BufReader::new(printed) }
    }

    /// Runs a line in a machine's shell: what it printed. It has to end with status 0.
    #[track_caller]
    pub fn run(&mut self, machine: usize, line: &str) -> String {
        let (status, printed) = self.try_run(machine, line);
        assert_eq!(status, "0", "{line}\n{printed}\n{}", self.log());
        printed
    }

    /// The same, with whatever status.
    pub fn try_run(&mut self, machine: usize, line: &str) -> (String, String) {
        let shell = &mut self.shells[machine];
        writeln!(shell.input, "{line}\necho \"{MARK}$?\"").expect("the shell reads");
        let mut text = String::new();
        loop {
            let from = text.len();
            let read = shell.printed.read_line(&mut text).expect("the shell prints");
            assert!(read > 0, "the shell has ended: {line}");
            if let Some(status) = text[from..].trim_end().strip_prefix(MARK).map(str::to_owned) {
                text.truncate(from);
                return (status, text);
            }
        }
    }

    /// Copies a file from one machine's directory to another's.
    pub fn copy(&self, name: &str, from: usize, to: usize) {
        std::fs::copy(self.dir(from).join(name), self.dir(to).join(name)).expect("copied");
    }

    /// Takes a machine's cable out, or plugs it in again.
    pub fn plug(&self, machine: usize, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        ip(&format!("-n {} link set port{machine} {state}", self.net)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Keeps all that goes from one machine to another, until the value is dropped.
    #[must_use]
    pub fn tap(&self, to: &Path) -> Tap {
        let mut cmd = self.on(&self.net, "tcpdump");
        cmd.args(["-i", "br0", "-s", "0", "-U", "-Z", "root", "-w"]).arg(to);
        cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(self.log_file("tap.log"));
        let tap = Tap(cmd.spawn().expect("tcpdump"));
        super::tools::wait_for("the tap", || std::fs::metadata(to).is_ok_and(|m| m.len() > 0).then_some(()));
        tap
    }

    /// The ends of all logs.
    #[must_use]
    pub fn log(&self) -> String {
        let logs = super::cluster::files_below(self.dir.path(), &|p| p.extension().is_some_and(|e| e == "log"));
        let text = |p: &PathBuf| {
            let text = std::fs::read_to_string(p).unwrap_or_default();
            let from = text.char_indices().rev().nth(3000).map_or(0, |(i, _)| i);
            format!("--- {}\n{}\n", p.display(), &text[from..])
        };
        logs.iter().map(text).collect()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let count = self.shells.len();
        self.shells.clear();
        for name in (0..count).map(|i| self.name(i)).chain([self.net.clone()]) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// A program that keeps what goes by.
pub struct Tap(Child);

impl Tap {
    /// Ends it in good order, so that all of it is written.
    pub fn end(mut self) {
        // SAFETY: a system call that takes no memory, about a child that was not waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGINT) };
        let _ = super::tools::wait_at_most(&mut self.0, PATIENCE);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
