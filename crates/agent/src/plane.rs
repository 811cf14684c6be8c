//! The control plane as one thread of a node or gateway sees it.

use freebs_chain::{IntervalAsk, IntervalWord};
use freebs_control::api::{IntervalAnswer, IntervalQuestion};
use freebs_control::{Command, ControlPlane, Done, State};
use freebs_types::{Error, NodeId, Result};
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

    /// Asks the head of a shard on that node about an interval, with nothing of the control plane but the way to it. `Retry` if
    /// it does not answer, or can't say it now.
    async fn ask_interval(&self, node: NodeId, ask: IntervalAsk) -> Result<IntervalWord> {
        Err(Error::retry(format!("node {node} can't be asked about shard {} from here", ask.at)))
    }
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

    async fn ask_interval(&self, node: NodeId, ask: IntervalAsk) -> Result<IntervalWord> {
        let IntervalAsk { at, id, decides } = ask;
        let (decider, driver, number) = (id.decider, id.driver.0, id.number.0);
        let answer = C::ask_interval(self, node, IntervalQuestion { at, decider, driver, number, decides }).await?;
        Ok(match answer {
            IntervalAnswer::Committed => IntervalWord::Committed,
            IntervalAnswer::Aborted => IntervalWord::Aborted,
            IntervalAnswer::Open => IntervalWord::Open,
            IntervalAnswer::Over => IntervalWord::Over,
        })
    }
}
