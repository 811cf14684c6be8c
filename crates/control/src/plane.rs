//! The control plane as nodes and gateways see it, whoever keeps it.

use crate::api::{IntervalAnswer, IntervalQuestion};
use crate::command::{Command, Done};
use crate::state::State;
use freebs_types::{Error, NodeId, Result};
use std::future::Future;
use std::sync::Arc;

/// Where commands are put in order, made durable and applied.
pub trait ControlPlane: Send + Sync + 'static {
    /// Has the command applied. On `Ok` it is durable, and `state()` shows it. `Retry` means that it is not known
    /// whether it was applied (no leader could be reached, or it did not answer): every command may be sent again.
    fn submit(&self, command: Command) -> impl Future<Output = Result<Done>> + Send;

    /// The newest state known here. It may lag behind the leader's; it never shows what is not durable.
    fn state(&self) -> Arc<State>;

    /// The newest state as soon as its revision is another than `since`.
    fn changed(&self, since: u64) -> impl Future<Output = Arc<State>> + Send;

    /// Asks that node about an interval; nothing else of the control plane is needed for it. `Retry` if it does not answer, or
    /// can't say it now.
    fn ask_interval(&self, node: NodeId, of: IntervalQuestion) -> impl Future<Output = Result<IntervalAnswer>> + Send {
        let why = Error::retry(format!("node {node} can't be asked about shard {} from here", of.at));
        std::future::ready(Err(why))
    }
}
