//! The control plane as one thread of a node or gateway sees it.

use freebs_control::{Command, ControlPlane, Done, State};
use freebs_types::Result;
use std::sync::Arc;

/// Where commands go, and where the state comes from. Each [`ControlPlane`] behind an `Arc` is one; the simulator has one
/// that stays on its thread.
#[allow(async_fn_in_trait, reason = "one thread per worker: futures need not be Send")]
pub trait Commands: 'static {
    /// Has the command applied, as [`ControlPlane::submit`].
    async fn submit(&self, command: Command) -> Result<Done>;

    /// The newest state known here, as [`ControlPlane::state`].
    fn state(&self) -> Arc<State>;

    /// The newest state as soon as its revision is another than `since`.
    async fn changed(&self, since: u64) -> Arc<State>;
}

impl<C: ControlPlane> Commands for Arc<C> {
    async fn submit(&self, command: Command) -> Result<Done> {
        C::submit(self, command).await
    }

    fn state(&self) -> Arc<State> {
        C::state(self)
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        C::changed(self, since).await
    }
}
