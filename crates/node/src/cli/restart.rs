//! `freebs cluster restart`: all nodes of a local cluster are started again, one after the other.

use super::asked::{answers, connect, unexpected};
use super::output::Output;
use super::values::DEFAULT_DATA;
use crate::admin::Client;
use crate::options::DEFAULT_CLUSTER;
use crate::timing;
use crate::up::socket::{self, Reply as UpReply, Request as UpRequest};
use clap::Args;
use freebs_control::api::{NodeStatus, Reply, Request, Status, VolumeState};
use freebs_types::{Error, Result, StartNumber};
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
Example:
  freebs cluster restart

For a cluster that `freebs up` runs. Each node hands its heads over, ends, and is started again; the next one follows once it is
there and all volumes have their copies. Clients go on, but those of volumes with a single copy wait while its node is away.
Refused while a node is down or a volume lacks a copy.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct RestartArgs {
    /// The data directory of the `freebs up` that runs it [default: the one that runs a node at the --cluster address,
    /// else that of ./freebs-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

#[derive(Serialize)]
struct Restarted {
    nodes: Vec<String>,
}

/// The cluster as it was found.
struct Found {
    /// Addresses of all nodes, for `connect`: the one that is asked may be the one that is away.
    addresses: String,
    /// In the order in which they are started again.
    nodes: Vec<NodeStatus>,
    /// Volumes that had all their copies.
    ready: BTreeSet<String>,
}

pub async fn run(args: RestartArgs, named: Option<&str>, output: &Output) -> Result<ExitCode> {
    let found = look(named.unwrap_or(DEFAULT_CLUSTER)).await?;
    let count = found.nodes.len();
    let mut done = Vec::new();
    for (i, node) in found.nodes.iter().enumerate() {
        say(&format!("{} ({} of {count}): stops", node.name, i + 1));
        restart(&args, named, node).await?;
        say(&format!("{} ({} of {count}): waits for all copies", node.name, i + 1));
        wait(&found, node).await?;
        done.push(node.name.clone());
    }
    say("");
    output.show(&Restarted { nodes: done }, |r| format!("{} were started again", r.nodes.join(", ")));
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }
}

async fn status(client: &Client) -> Result<Status> {
    match client.call(&Request::Status, timing::CALL_MAX).await? {
        Reply::Status(status) => Ok(status),
        _ => Err(unexpected()),
    }
}

/// The leader of the control plane comes last, so that another one leads once.
async fn look(cluster: &str) -> Result<Found> {
    let status = status(&connect(cluster).await?).await?;
    if let Some(down) = status.nodes.iter().find(|n| n.state != "up") {
        return Err(Error::retry(format!("{} is down: start it first, or others would be missed with it", down.name)));
    }
    if let Some(v) = status.volumes.iter().find(|v| v.state == VolumeState::Paused || v.state == VolumeState::Degraded)
    {
        return Err(Error::retry(format!("{} lacks a copy; wait until `freebs status` shows that it has all", v.name)));
    }
    let addresses = status.nodes.iter().map(|n| n.address.as_str()).collect::<Vec<_>>().join(",");
    let ready = status.volumes.iter().filter(|v| v.state == VolumeState::Ready).map(|v| v.name.clone()).collect();
    let mut nodes = status.nodes;
    nodes.sort_by_key(|n| n.leads);
    Ok(Found { addresses, nodes, ready })
}

async fn restart(args: &RestartArgs, named: Option<&str>, node: &NodeStatus) -> Result<()> {
    let usual = (Path::new(DEFAULT_DATA), DEFAULT_CLUSTER);
    let name = || node.name.clone();
    for request in [UpRequest::Stop { node: name() }, UpRequest::Start { node: name() }] {
        let is_start = matches!(request, UpRequest::Start { .. });
        let UpReply { address, .. } = socket::ask(args.data.as_deref(), named, usual, &request)?;
        if let Some(address) = address.filter(|_| is_start) {
            answers(&node.name, &address).await?;
        }
    }
    Ok(())
}

/// Waits until the node's new start is there, and the volumes have all their copies again.
async fn wait(found: &Found, node: &NodeStatus) -> Result<()> {
    let is_so = async {
        loop {
            if let Ok(client) = connect(&found.addresses).await
                && let Ok(now) = status(&client).await
                && is_back(found, &now, node)
            {
                return;
            }
            tokio::time::sleep(timing::RESTART_LOOK).await;
        }
    };
    tokio::time::timeout(timing::RESTART_MAX, is_so).await.map_err(|_| {
        Error::retry(format!(
            "{} was started again, and volumes lack copies still; `freebs status` shows which. The nodes behind it were \
             left alone: run the command again once all have their copies",
            node.name
        ))
    })
}

fn is_back(found: &Found, now: &Status, node: &NodeStatus) -> bool {
    let has_begun = |n: &NodeStatus| n.id == node.id && n.state == "up" && n.start > StartNumber(node.start.0);
    let lacks = now.volumes.iter().any(|v| found.ready.contains(&v.name) && v.state != VolumeState::Ready);
    now.nodes.iter().any(has_begun) && !lacks
}
