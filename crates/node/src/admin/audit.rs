//! Audits of hash chains: this node's own, and those of other nodes for who asks here.

use super::client::Client;
use super::service::Service;
use crate::timing;
use freebs_control::api::{Reply, Request};
use freebs_control::audit::{AuditOf, AuditState};
use freebs_types::{Error, Result};

/// How far an audit is, here or at the node that is named.
pub(super) async fn audit(service: &Service, node: Option<String>, of: AuditOf) -> Result<AuditState> {
    let Some(name) = node.filter(|name| *name != service.me().name) else { return service.local.audit(of).await };
    let state = service.state()?;
    let node = state.nodes().find(|n| n.name == name);
    let node = node.ok_or_else(|| Error::not_found(format!("there is no node '{name}'")))?;
    let ask = async {
        let client = Client::connect_to(node).await?;
        client.call(&Request::ShardAudit { node: None, audit: of }, timing::NODE_ANSWER_MAX).await
    };
    let late = |_| Err(Error::retry(format!("{name} does not answer")));
    match tokio::time::timeout(timing::NODE_ANSWER_MAX, ask).await.unwrap_or_else(late)? {
        Reply::Audit(state) => Ok(state),
        _ => Err(Error::corrupt(format!("{name} answered something else; is it of another version?"))),
    }
}
