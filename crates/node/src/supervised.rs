//! Words to the service manager that started this process, if one did and wants them (`Type=notify` of systemd).

use sd_notify::NotifyState;

/// The process does its work from now on.
pub fn is_up() {
    tell(NotifyState::Ready);
}

/// It has begun to stop.
pub fn is_stopping() {
    tell(NotifyState::Stopping);
}

/// Nothing depends on it: who does not hear it waits for longer, and says so.
fn tell(state: NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[state]) {
        tracing::debug!("the service manager could not be told: {e}");
    }
}
