//! Programs that tests call, and words for what a test has to say beside pass and fail.

use super::PATIENCE;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest that a called program may take before it is ended and the test fails.
pub const TOOL_TIME_MAX: Duration = Duration::from_secs(300);

/// Prints a line past the test runner's capture, so that numbers and reasons are seen of passing tests, too.
pub fn say(text: &str) {
    let line = format!("\n{text}\n");
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Says that a test could not be done here. The runner of `.ci/run` counts these lines.
pub fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    say(&format!("skipped: {test}: {why}"));
}

fn ci() -> bool {
    std::env::var_os("CI").is_some_and(|v| v == "true")
}

/// Debian's programs of PostgreSQL, by version.
const POSTGRESQL: &str = "/usr/lib/postgresql";

/// Where a program is, looked for in `FREEBS_TOOLS`, `PATH` and the system's directories.
pub fn find(name: &str) -> Option<PathBuf> {
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin");
    let mut dirs = vec![PathBuf::from(tools)];
    dirs.extend(std::env::var_os("FREEBS_TOOLS").map(PathBuf::from));
    dirs.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    dirs.extend(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    let versions = std::fs::read_dir(POSTGRESQL).into_iter().flatten().flatten();
    dirs.extend(versions.map(|version| version.path().join("bin")));
    dirs.into_iter().map(|d| d.join(name)).find(|p| p.is_file())
}

/// Whether all these programs are there. One that is missing skips the test, and fails it in CI, which installs them.
pub fn have(names: &[&str]) -> bool {
    let missing: Vec<_> = names.iter().filter(|n| find(n).is_none()).copied().collect();
    if missing.is_empty() {
        return true;
    }
    assert!(!ci(), "programs are missing: {missing:?}; .ci/run installs them");
    skip(&format!("programs are missing: {}", missing.join(", ")));
    false
}

/// Whether file systems can be mounted here: `/dev/fuse`, loop devices and the right to use them.
pub fn can_mount() -> bool {
    // SAFETY: it takes nothing and can't fail.
    let root = unsafe { libc::geteuid() } == 0;
    let why = if !root {
        "mounting needs root"
    } else if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        "no /dev/fuse"
    } else if File::options().read(true).write(true).open("/dev/loop-control").is_err() {
        "no loop devices"
    } else {
        return true;
    };
    skip(why);
    false
}

/// A command for a program of ours or of the system.
pub fn command(name: &str) -> Command {
    Command::new(find(name).unwrap_or_else(|| name.into()))
}

/// Longest that a killed process may take to go.
pub const KILLED_MAX: Duration = Duration::from_secs(10);

/// How a process ended, if it does in this time.
pub fn wait_at_most(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

/// Runs a program that cleans up, for a while; whether it did. It never panics, so values that go may call it.
pub fn tidies(cmd: &mut Command) -> bool {
    let Ok(mut child) = cmd.stdin(Stdio::null()).spawn() else { return false };
    let status = wait_at_most(&mut child, KILLED_MAX);
    if status.is_none() {
        let _ = child.kill();
        let _ = wait_at_most(&mut child, KILLED_MAX);
    }
    status.is_some_and(|s| s.success())
}

/// What a program said and how it ended, within a time.
pub fn output(cmd: &mut Command, limit: Duration) -> Output {
    // Pipes would fill up and hold the program, files don't.
    let mut files = [tempfile::tempfile().expect("a temporary file"), tempfile::tempfile().expect("a temporary file")];
    cmd.stdin(Stdio::null());
    cmd.stdout(files[0].try_clone().expect("one more descriptor"));
    cmd.stderr(files[1].try_clone().expect("one more descriptor"));
    let mut child = cmd.spawn().unwrap_or_else(|e| panic!("{cmd:?}: {e}"));
    let begun = Instant::now();
    let mut ended = false;
    let status = loop {
        match child.try_wait().expect("our own child") {
            Some(status) => break status,
            None if begun.elapsed() > limit => {
                let _ = child.kill();
                ended = true;
                // One that hangs in the kernel does not even end when it is killed.
                break wait_at_most(&mut child, KILLED_MAX)
                    .unwrap_or_else(|| panic!("{cmd:?} took longer than {limit:?} and can't be ended"));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let [stdout, stderr] = [0, 1].map(|i| {
        let mut bytes = Vec::new();
        files[i].rewind().and_then(|()| files[i].read_to_end(&mut bytes)).expect("a readable temporary file");
        bytes
    });
    let out = Output { status, stdout, stderr };
    assert!(!ended, "{cmd:?} took longer than {limit:?} and was ended\n{}", told(&out));
    out
}

/// Both outputs of a program, for a message.
pub fn told(out: &Output) -> String {
    let tail = |b: &[u8]| {
        let text = String::from_utf8_lossy(b).into_owned();
        let from = text.char_indices().rev().nth(4000).map_or(0, |(i, _)| i);
        text[from..].to_owned()
    };
    format!("{}\nstdout: {}\nstderr: {}", out.status, tail(&out.stdout), tail(&out.stderr))
}

/// Runs a program that must succeed; what it printed.
pub fn run<I, S>(name: &str, args: I) -> String
where
    I: IntoIterator<Item = S>,
    S: AsRef<OsStr>,
{
    let mut cmd = command(name);
    cmd.args(args);
    let out = output(&mut cmd, TOOL_TIME_MAX);
    assert!(out.status.success(), "{cmd:?} failed: {}", told(&out));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Between two looks, at first and in the end: many looks are a command, and cost more than what they look for.
const LOOK_AGAIN: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(80)];

/// Waits until `done` gives something.
pub fn wait_for<T>(what: &str, done: impl FnMut() -> Option<T>) -> T {
    wait_within(PATIENCE, what, done)
}

/// Waits for something that may take longer than most.
pub fn wait_within<T>(limit: Duration, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    let mut pause = LOOK_AGAIN[0];
    loop {
        if let Some(found) = done() {
            return found;
        }
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK_AGAIN[1]);
    }
}

/// Where two files first differ in their first `len` bytes.
pub fn first_difference(a: &Path, b: &Path, len: u64) -> Option<u64> {
    let mut files = [a, b].map(|p| File::open(p).unwrap_or_else(|e| panic!("{}: {e}", p.display())));
    let (mut x, mut y) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    while at < len {
        let n = (len - at).min(1 << 20) as usize;
        files[0].read_exact(&mut x[..n]).expect("the first file is long enough");
        files[1].read_exact(&mut y[..n]).expect("the second file is long enough");
        if x[..n] != y[..n] {
            return Some(at + x[..n].iter().zip(&y[..n]).position(|(p, q)| p != q).expect("they differ") as u64);
        }
        at += n as u64;
    }
    None
}
