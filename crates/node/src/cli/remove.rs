//! `freebs node remove` and `freebs node replace`: a node is taken out of the cluster for good.

use super::asked::{connect, unexpected};
use super::drain;
use super::output::Output;
use crate::admin::Client;
use crate::timing;
use clap::Args;
use freebs_control::api::{Reply, Request};
use freebs_types::{NodeId, Result};
use serde::Serialize;
use std::process::ExitCode;

const REMOVE_HELP: &str = "\
Example:
  freebs node drain node4 --wait    others take its places
  freebs node remove node4          it is a member no more: its process ends, and it is not taken in again

Refused while the node has a copy that others need, if the control plane would have too few votes, and for the node that
`freebs cluster init` has made, which has the key that nodes are certified with. Its machine can join again as a new node, with an
empty data directory. Clients that are attached at the node's own NBD lose their volumes.";

const REPLACE_HELP: &str = "\
Example:
  freebs node replace node4 node6    node6 takes the places of node4, which is removed then

The new node has joined before, and runs. Volumes go on meanwhile. A node that is down is replaced after half a minute, without
the wait of --replace-after. If this command is stopped, the copies still move; run it again to see the end.";

#[derive(Debug, Args)]
#[command(after_help = REMOVE_HELP)]
pub struct RemoveArgs {
    /// Its name, as `freebs status` shows it
    pub name: String,
}

#[derive(Debug, Args)]
#[command(after_help = REPLACE_HELP)]
pub struct ReplaceArgs {
    /// The node that goes: it may be down for good
    pub name: String,

    /// The node that takes its places
    pub new: String,
}

#[derive(Serialize)]
struct Removed<'a> {
    node: &'a str,
    id: NodeId,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_by: Option<&'a str>,
}

pub async fn remove(args: RemoveArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    let id = ask(&client, &args.name).await?;
    output.show(&Removed { node: &args.name, id, replaced_by: None }, |r| {
        format!("{} (node {}) is a member no more", r.node, r.id)
    });
    Ok(ExitCode::SUCCESS)
}

pub async fn replace(args: ReplaceArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    let known = drain::ask(&client, &args.name, true, Some(&args.new)).await?;
    drain::wait(cluster, client, &args.name, known).await?;
    // The node that was asked may be the one that goes.
    let id = ask(&connect(cluster).await?, &args.name).await?;
    output.show(&Removed { node: &args.name, id, replaced_by: Some(&args.new) }, |r| {
        format!("{} has taken the places of {} (node {}), which is a member no more", args.new, r.node, r.id)
    });
    Ok(ExitCode::SUCCESS)
}

async fn ask(client: &Client, name: &str) -> Result<NodeId> {
    match client.call(&Request::NodeRemove { name: name.into() }, timing::CALL_MAX).await? {
        Reply::Removed { node } => Ok(node),
        _ => Err(unexpected()),
    }
}
