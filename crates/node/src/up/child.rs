//! One supervised process: started, started again when it dies, stopped on request.

use crate::files;
use crate::timing;
use freebs_types::{Error, Result};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::process::{Child as Process, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// After so many quick ends the user hears why.
const QUICK_FAILURES: u32 = 3;
/// And again after so many more (a minute at the longest delay).
const QUICK_FAILURES_AGAIN: u32 = 12;
/// A log that is larger at a start is put aside.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Asks a child to stop when all are stopped; see `cli::signals`.
const STOP_WITH_ALL: libc::c_int = libc::SIGUSR1;
/// How much of a log's end is searched for its last words.
const LOG_TAIL_BYTES: u64 = 8 << 10;

/// What to run.
#[derive(Clone, Debug)]
pub struct Spec {
    pub name: String,
    pub args: Vec<OsString>,
    /// Where it will answer, if it does.
    pub address: Option<String>,
    pub log: PathBuf,
}

/// Something that people should hear.
#[derive(Debug)]
pub struct Event {
    pub name: String,
    pub text: String,
    pub log: PathBuf,
    /// It does not come up, whatever is tried.
    pub keeps_failing: bool,
}

enum Order {
    Start(oneshot::Sender<Result<u32>>),
    /// Stop it and leave it down.
    Stop(oneshot::Sender<()>),
    /// Stop it and end.
    ShutDown(oneshot::Sender<()>),
}

/// A supervised process.
pub struct Child {
    handle: Handle,
    /// The process id, 0 while there is none.
    pid: Arc<AtomicU32>,
}

/// What orders go through.
#[derive(Clone)]
pub struct Handle {
    name: String,
    pub address: Option<String>,
    orders: mpsc::Sender<Order>,
}

impl Child {
    /// Starts it and keeps it running. Belongs on the main thread: children die with the thread that started them.
    pub fn start(spec: Spec, restart: bool, events: mpsc::Sender<Event>) -> Self {
        let (orders, queue) = mpsc::channel(16);
        let pid = Arc::new(AtomicU32::new(0));
        let handle = Handle { name: spec.name.clone(), address: spec.address.clone(), orders };
        let keeper = Keeper { spec, restart, events, orders: queue, pid: pid.clone(), quick: 0 };
        tokio::spawn(keeper.run());
        Self { handle, pid }
    }

    pub fn name(&self) -> &str {
        &self.handle.name
    }

    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    pub async fn shut_down(&self) {
        self.handle.shut_down().await;
    }

    /// At once, without asking it.
    pub fn kill(&self) {
        let pid = self.pid.load(Ordering::Relaxed);
        if pid != 0 {
            send_signal(pid, libc::SIGKILL);
        }
    }
}

impl Handle {
    /// Its process id, once it runs.
    pub async fn start(&self) -> Result<u32> {
        let (tell, told) = oneshot::channel();
        let gone = || Error::retry("freebs up is stopping");
        self.orders.send(Order::Start(tell)).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())?
    }

    /// Returns when it is down.
    pub async fn stop(&self) -> Result<()> {
        let (tell, told) = oneshot::channel();
        let gone = || Error::retry("freebs up is stopping");
        self.orders.send(Order::Stop(tell)).await.map_err(|_| gone())?;
        told.await.map_err(|_| gone())
    }

    pub async fn shut_down(&self) {
        let (tell, told) = oneshot::channel();
        if self.orders.send(Order::ShutDown(tell)).await.is_ok() {
            let _ = told.await;
        }
    }
}

struct Keeper {
    spec: Spec,
    restart: bool,
    events: mpsc::Sender<Event>,
    orders: mpsc::Receiver<Order>,
    pid: Arc<AtomicU32>,
    /// Ends shortly after the start, in a row.
    quick: u32,
}

/// What comes after a while of running or waiting.
enum Next {
    Run,
    /// Run, and tell who asked for it.
    RunFor(oneshot::Sender<Result<u32>>),
    Down,
    End,
}

impl Keeper {
    async fn run(mut self) {
        let mut next = Next::Run;
        loop {
            next = match next {
                Next::End => return,
                Next::Run => self.life(None).await,
                Next::RunFor(tell) => self.life(Some(tell)).await,
                Next::Down => match self.orders.recv().await {
                    None => Next::End,
                    Some(Order::Start(tell)) => {
                        self.quick = 0;
                        Next::RunFor(tell)
                    }
                    Some(Order::Stop(tell)) => {
                        let _ = tell.send(());
                        Next::Down
                    }
                    Some(Order::ShutDown(tell)) => {
                        let _ = tell.send(());
                        Next::End
                    }
                },
            };
        }
    }

    /// From one start to the next decision.
    async fn life(&mut self, asked: Option<oneshot::Sender<Result<u32>>>) -> Next {
        let begun = Instant::now();
        let mut process = match spawn(&self.spec) {
            Ok(p) => p,
            Err(e) => {
                let is_asked = asked.is_some();
                if let Some(tell) = asked {
                    let _ = tell.send(Err(e.clone()));
                }
                self.quick += 1;
                self.tell(format!("{} can't be started: {e}", self.spec.name), true).await;
                return if is_asked || !self.restart { Next::Down } else { self.pause().await };
            }
        };
        let pid = process.id().unwrap_or_default();
        self.pid.store(pid, Ordering::Relaxed);
        if let Some(tell) = asked {
            let _ = tell.send(Ok(pid));
        }
        loop {
            let order = tokio::select! {
                ended = process.wait() => {
                    self.pid.store(0, Ordering::Relaxed);
                    return self.ended(ended.ok(), begun.elapsed()).await;
                }
                order = self.orders.recv() => order,
            };
            match order {
                Some(Order::Start(tell)) => {
                    let _ = tell.send(Ok(pid));
                }
                Some(Order::Stop(tell)) => {
                    terminate(&mut process, libc::SIGTERM).await;
                    self.pid.store(0, Ordering::Relaxed);
                    let _ = tell.send(());
                    return Next::Down;
                }
                Some(Order::ShutDown(tell)) => {
                    terminate(&mut process, STOP_WITH_ALL).await;
                    let _ = tell.send(());
                    return Next::End;
                }
                None => {
                    terminate(&mut process, STOP_WITH_ALL).await;
                    return Next::End;
                }
            }
        }
    }

    async fn ended(&mut self, status: Option<ExitStatus>, lasted: Duration) -> Next {
        let name = &self.spec.name;
        let how = status.map_or_else(|| "ended".into(), describe);
        if !self.restart {
            let words = last_words(&self.spec.log).filter(|_| lasted < timing::QUICK_END);
            let why = words.map(|w| format!(": {w}")).unwrap_or_default();
            self.tell(format!("{name} {how}{why}; it stays down (--no-restart)"), lasted < timing::QUICK_END).await;
            return Next::Down;
        }
        if lasted >= timing::QUICK_END {
            self.quick = 0;
            self.tell(format!("{name} {how}; it is started again"), false).await;
            return Next::Run;
        }
        self.quick += 1;
        if self.quick < QUICK_FAILURES {
            self.tell(format!("{name} {how} right after its start; it is started again"), false).await;
        } else if self.quick == QUICK_FAILURES || self.quick.is_multiple_of(QUICK_FAILURES_AGAIN) {
            // Who was killed from outside had no last words.
            let was_killed = status.is_some_and(|s| s.signal() == Some(libc::SIGKILL));
            let words = last_words(&self.spec.log).filter(|_| !was_killed);
            let words = words.map(|w| format!(" Its last words: {w}.")).unwrap_or_default();
            let text = format!(
                "{name} {how}, {} times in a row right after its start.{words} It is tried again every few seconds \
                 (log: {})",
                self.quick,
                self.spec.log.display()
            );
            self.tell(text, true).await;
        }
        self.pause().await
    }

    /// Waits before the next start, longer each time.
    async fn pause(&mut self) -> Next {
        let doublings = self.quick.saturating_sub(1).min(10);
        let delay = (timing::RESTART_DELAY_MIN * (1 << doublings)).min(timing::RESTART_DELAY_MAX);
        let order = tokio::select! {
            () = tokio::time::sleep(delay) => return Next::Run,
            order = self.orders.recv() => order,
        };
        match order {
            // Whoever asks for a start gets the next attempt, at once.
            Some(Order::Start(tell)) => Next::RunFor(tell),
            Some(Order::Stop(tell)) => {
                let _ = tell.send(());
                Next::Down
            }
            Some(Order::ShutDown(tell)) => {
                let _ = tell.send(());
                Next::End
            }
            None => Next::End,
        }
    }

    async fn tell(&self, text: String, keeps_failing: bool) {
        let event = Event { name: self.spec.name.clone(), text, log: self.spec.log.clone(), keeps_failing };
        let _ = self.events.send(event).await;
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(s), _) => format!("was killed by signal {s}"),
        (None, Some(c)) => format!("ended with exit status {c}"),
        (None, None) => "ended".into(),
    }
}

/// This program, also after its file was replaced or deleted.
fn program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        _ => PathBuf::from("/proc/self/exe"),
    }
}

fn spawn(spec: &Spec) -> Result<Process> {
    let log = open_log(&spec.log)?;
    let both = log.try_clone().map_err(|e| files::os_error("use", &spec.log, &e))?;
    let parent = std::process::id();
    let mut command = Command::new(program());
    // Its nodes speak plain, whoever somebody speaks as elsewhere.
    command.env_remove("FREEBS_AS_NODE");
    command.args(&spec.args).stdin(Stdio::null()).stdout(Stdio::from(log)).stderr(Stdio::from(both));
    // A group of its own: a Ctrl-C at the terminal is for the supervisor, which stops its children in order.
    command.process_group(0).kill_on_drop(true);
    let die_with_parent = move || {
        // SAFETY: prctl and getppid may be called between fork and exec.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // The parent may have died before the kernel was asked to watch it.
            if libc::getppid() as u32 != parent {
                libc::_exit(1);
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes two system calls and allocates nothing.
    unsafe { command.pre_exec(die_with_parent) };
    command.spawn().map_err(|e| Error::os(format!("the program can't be run: {}", files::plain(&e))))
}

fn open_log(path: &Path) -> Result<File> {
    if std::fs::metadata(path).is_ok_and(|m| m.len() > LOG_BYTES_MAX) {
        let mut old = path.as_os_str().to_owned();
        old.push(".old");
        std::fs::rename(path, &old).map_err(|e| files::os_error("put aside", path, &e))?;
    }
    OpenOptions::new().create(true).append(true).open(path).map_err(|e| files::os_error("write", path, &e))
}

fn send_signal(pid: u32, signal: libc::c_int) {
    // SAFETY: no memory is involved; the process is our child and not yet waited for, so the id is still its own.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}

/// The signal, then after a while SIGKILL; returns when it has ended.
async fn terminate(process: &mut Process, signal: libc::c_int) {
    if let Some(pid) = process.id() {
        send_signal(pid, signal);
    }
    if tokio::time::timeout(timing::STOP_GRACE, process.wait()).await.is_err() {
        let _ = process.kill().await;
    }
}

/// The last line of a log that says what went wrong: one of the program's own errors if there is one.
fn last_words(log: &Path) -> Option<String> {
    let mut f = File::open(log).ok()?;
    let len = f.metadata().ok()?.len();
    f.seek(SeekFrom::Start(len.saturating_sub(LOG_TAIL_BYTES))).ok()?;
    let mut tail = Vec::new();
    f.take(LOG_TAIL_BYTES).read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = tail.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let last = lines.last()?;
    let own = lines.iter().rev().take(5).find_map(|l| l.strip_prefix("freebs: "));
    Some(own.unwrap_or(last).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_are_the_programs_own_error() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        assert_eq!(last_words(&log), None);
        std::fs::write(&log, "").unwrap();
        assert_eq!(last_words(&log), None);
        std::fs::write(&log, "one\nfreebs: the port is taken\nlast\n\n").unwrap();
        assert_eq!(last_words(&log).unwrap(), "the port is taken");
        std::fs::write(&log, format!("{}\nthread panicked\n", "x".repeat(20_000))).unwrap();
        assert_eq!(last_words(&log).unwrap(), "thread panicked");
    }

    #[test]
    fn a_large_log_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        File::create(&log).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
        drop(open_log(&log).unwrap());
        assert_eq!(std::fs::metadata(&log).unwrap().len(), 0);
        assert!(dir.path().join("x.log.old").exists());
    }
}
