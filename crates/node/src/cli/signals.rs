//! Signals that ask a process to stop.

use freebs_types::{Error, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The stop that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// By SIGINT, SIGTERM or SIGHUP: others go on.
    Stop,
    /// By SIGUSR1: all nodes of the cluster are being stopped, so there is nobody to hand anything to.
    StopWithAll,
}

/// SIGINT, SIGTERM, SIGHUP and SIGUSR1.
pub struct Stop([Signal; 4]);

impl Stop {
    /// From here on the signals come here and no longer end the process by themselves. Needs a runtime.
    pub fn new() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|e| Error::os(format!("can't listen for signals: {e}")));
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
            listen(SignalKind::user_defined1())?,
        ]))
    }

    /// Waits for the next one.
    pub async fn wait(&mut self) {
        self.told().await;
    }

    /// Waits for the next one, and says which it is.
    pub async fn told(&mut self) -> Told {
        let [a, b, c, all] = &mut self.0;
        tokio::select! {
            _ = a.recv() => Told::Stop,
            _ = b.recv() => Told::Stop,
            _ = c.recv() => Told::Stop,
            _ = all.recv() => Told::StopWithAll,
        }
    }
}
