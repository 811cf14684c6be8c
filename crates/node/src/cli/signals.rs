//! Signals that ask a process to stop.

use freebs_types::{Error, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP.
pub struct Stop([Signal; 3]);

impl Stop {
    /// From here on the signals come here and no longer end the process by themselves. Needs a runtime.
    pub fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Error::os(format!("can't listen for signals: {e}")));
        Ok(Self([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?]))
    }

    /// Waits for the next one.
    pub async fn wait(&mut self) {
        let [a, b, c] = &mut self.0;
        tokio::select! {
            _ = a.recv() => {}
            _ = b.recv() => {}
            _ = c.recv() => {}
        }
    }
}
