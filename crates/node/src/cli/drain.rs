//! `freebs node drain`: a node is emptied, so that it can be taken away.

use super::asked::{connect, unexpected};
use super::output::Output;
use crate::admin::Client;
use crate::timing;
use clap::Args;
use freebs_control::api::{DrainStatus, Reply, Request};
use freebs_types::{Error, ErrorKind, Result};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

const HELP: &str = "\
Examples:
  freebs node drain node4           others take its places; `freebs status` shows how far that is
  freebs node drain node4 --wait    ends once it has nothing left that others need
  freebs node drain node4 --undo    it gets copies again as others do

Volumes go on meanwhile, with as many copies as before: a node leaves a chain only once another one has everything. Refused if
there would be too few nodes for all copies. A node that is down is replaced after half a minute, without the wait of
--replace-after. It keeps its vote in the control plane, and the key that tokens are made with, if it has these.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct DrainArgs {
    /// Its name, as `freebs status` shows it
    pub name: String,

    /// Wait until it has nothing left that others need
    #[arg(long, conflicts_with = "undo")]
    pub wait: bool,

    /// It is a node as others again
    #[arg(long)]
    pub undo: bool,
}

pub async fn run(args: DrainArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    let mut known = ask(&client, &args.name, !args.undo, None).await?;
    if args.wait {
        known = wait(cluster, client, &args.name, known).await?;
    }
    output.show(&known, |s| match (s.drains, s.shards) {
        (false, _) => format!("{} is not being emptied", s.node),
        (true, 0) => format!("{} has no copy that others need", s.node),
        (true, n) => format!("{} is being emptied: {}; `freebs status` shows how many are left", s.node, left(n)),
    });
    Ok(ExitCode::SUCCESS)
}

fn left(shards: u64) -> String {
    if shards == 1 { "1 copy is left".into() } else { format!("{shards} copies are left") }
}

pub(super) async fn ask(client: &Client, name: &str, drains: bool, heir: Option<&str>) -> Result<DrainStatus> {
    let request = Request::NodeDrain { name: name.into(), drains, heir: heir.map(Into::into) };
    match client.call(&request, timing::CALL_MAX).await? {
        Reply::Draining(status) => Ok(status),
        _ => Err(unexpected()),
    }
}

/// Looks until nothing is left. The node that is asked may be the one that is stopped next: then another one is.
pub(super) async fn wait(cluster: &str, mut client: Client, name: &str, mut known: DrainStatus) -> Result<DrainStatus> {
    while known.shards > 0 {
        progress(&format!("{name}: {}", left(known.shards)));
        tokio::time::sleep(timing::DRAIN_LOOK).await;
        match look(&client, name).await {
            Ok(now) if !now.drains => {
                progress("");
                return Err(Error::fenced(format!("{name} is not being emptied any more: somebody has said --undo")));
            }
            Ok(now) => known = now,
            Err(e) if e.kind == ErrorKind::Retry => client = connect(cluster).await.unwrap_or(client),
            Err(e) => return Err(e),
        }
    }
    progress("");
    Ok(known)
}

async fn look(client: &Client, name: &str) -> Result<DrainStatus> {
    let Reply::Status(status) = client.call(&Request::Status, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    let node = status.nodes.into_iter().find(|n| n.name == name);
    let node = node.ok_or_else(|| Error::retry(format!("{name} is not known there yet")))?;
    Ok(DrainStatus { node: node.name, drains: node.drains, shards: node.shards })
}

fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }
}
