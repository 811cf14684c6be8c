//! The request to stop: SIGTERM, or Ctrl-C.

use tokio::signal::unix::{SignalKind, signal};

/// Returns once this process was asked to stop.
pub async fn requested() {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
        // Without handlers the signals end the process by themselves.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
