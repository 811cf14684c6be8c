//! A gateway of its own, beside the one that a cluster starts.

use super::cluster::Cluster;
use super::nbd::Place;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Stdio};

/// A process that serves NBD on a unix socket. It carries the cluster's token, and ends with this value.
pub struct Gateway {
    process: Child,
    pub place: Place,
}

impl Gateway {
    /// Starts it; all that are started here have the same right to volumes. Its socket and its log lie in `dir`.
    #[must_use]
    pub fn start(c: &Cluster, dir: &Path, name: &str) -> Self {
        Self::start_as(c, dir, name, "the same host")
    }

    /// Starts it with an identity of its own.
    #[must_use]
    pub fn start_as(c: &Cluster, dir: &Path, name: &str, identity: &str) -> Self {
        let socket = dir.join(name);
        let listen = format!("unix:{}", socket.display());
        let log = File::create(dir.join(format!("{name}.log"))).expect("a log file");
        let mut cmd = c.freebs();
        cmd.args(["gateway", "--name", name, "--identity", identity, "--nbd", &listen]);
        let process = cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("it starts");
        Self { process, place: Place::Unix(socket) }
    }
}

impl Gateway {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(&mut self) {
        // SAFETY: it takes two numbers; the process is this value's, and was not waited for.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        self.process.wait().expect("it ends");
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}
