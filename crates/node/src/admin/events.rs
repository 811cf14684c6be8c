//! Events of the whole cluster, gathered from its nodes.

use super::client::Client;
use super::service::Service;
use crate::events::merge;
use crate::timing;
use freebs_control::Node;
use freebs_control::api::{EventsOf, Reply, Request};
use freebs_control::events::{EVENTS_PAGE_MAX, Event};
use freebs_types::{Error, Result};
use std::sync::Arc;
use tokio::task::JoinSet;

async fn ask(node: &Node, of: EventsOf) -> Result<Vec<Event>> {
    let client = Client::connect_to(node).await?;
    match client.call(&Request::Events(of), timing::NODE_ANSWER_MAX).await? {
        Reply::Events { events, .. } => Ok(events),
        _ => Err(Error::corrupt("a node answered something else")),
    }
}

/// The newest events that are asked for, of all nodes or of this one alone.
pub(super) async fn events(service: &Service, of: EventsOf) -> Result<Reply> {
    let mut all = service.events.find(&of);
    let mut missing = Vec::new();
    if !of.here {
        let state = service.state()?;
        let mut asked = JoinSet::new();
        for node in state.nodes().filter(|n| n.id != service.me().id) {
            let (node, of) = (Arc::clone(node), EventsOf { here: true, ..of.clone() });
            asked.spawn(async move {
                let answer = tokio::time::timeout(timing::NODE_ANSWER_MAX, ask(&node, of)).await;
                (node.name.clone(), answer.unwrap_or_else(|_| Err(Error::retry("no answer in time"))))
            });
        }
        while let Some(joined) = asked.join_next().await {
            match joined {
                Ok((_, Ok(events))) => all.extend(events),
                Ok((name, Err(e))) => {
                    tracing::debug!("{name} did not say what happened: {e}");
                    missing.push(name);
                }
                Err(e) => tracing::debug!("asking a node failed: {e}"),
            }
        }
        missing.sort();
    }
    Ok(Reply::Events { events: merge(all, of.limit.min(EVENTS_PAGE_MAX)), missing })
}
