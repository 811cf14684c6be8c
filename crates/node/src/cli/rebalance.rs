//! `freebs cluster rebalance`: copies and heads are spread over the nodes.

use super::asked::{connect, orders_at, unexpected};
use super::copies::{move_all, say};
use super::output::{Output, table};
use crate::admin::Client;
use crate::timing;
use clap::Args;
use freebs_control::api::{MoveStatus, Reply, Request, Status};
use freebs_types::{Error, Result};
use serde::Serialize;
use std::process::ExitCode;

const HELP: &str = "\
Examples:
  freebs cluster rebalance             moves copies, then heads
  freebs cluster rebalance --dry-run   shows which
  freebs cluster rebalance --heads     heads alone, which takes seconds

First copies: out of zones that have two of one shard, and from nodes whose room is taken more to those where it is taken less, for
as long as that makes it more even. A copy is made on the new node before the old one goes, so there are as many as before at any
time; the command may be stopped, and goes on where it was when it is run again. Then heads, which order the writes of their
shards, until no node has two more than another one that could have one of them; each costs a pause of some tens of milliseconds.

Nodes that are down take no part. A node that is back after it had failed, or is new, gets heads by itself after a while; copies
move by themselves only away from a node that is full.";

/// Plans that one command carries out.
const ROUNDS_MAX: usize = 64;

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct RebalanceArgs {
    /// Show the moves, and do nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Move no copies
    #[arg(long)]
    pub heads: bool,
}

#[derive(Serialize)]
struct Moves {
    copies: Vec<MoveStatus>,
    heads: Vec<MoveStatus>,
    /// Moves that were not made, each with the reason.
    left: Vec<String>,
    /// They were made.
    done: bool,
}

pub async fn run(args: &RebalanceArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    let (copies, heads) = plan(&client).await?;
    let copies = if args.heads { Vec::new() } else { copies };
    if args.dry_run {
        output.show(&Moves { copies, heads, left: Vec::new(), done: false }, text);
        return Ok(ExitCode::SUCCESS);
    }
    let (mut moved, mut left, mut next) = (Vec::new(), Vec::new(), copies);
    // A shard's copies move one after the other, so one plan may not be all.
    for _ in 0..ROUNDS_MAX {
        if next.is_empty() || !left.is_empty() {
            break;
        }
        left = move_all(&client, &next).await?;
        moved.append(&mut next);
        next = plan(&client).await?.0;
    }
    // Whoever has come to a chain may lead it.
    let heads = if moved.is_empty() { heads } else { plan(&client).await?.1 };
    for (i, m) in heads.iter().enumerate() {
        say(&format!("head {} of {}: {} for shard {} of {}", i + 1, heads.len(), m.to, m.shard, m.volume));
        move_head(&client, m).await?;
    }
    say("");
    let is_done = left.is_empty();
    output.show(&Moves { copies: moved, heads, left, done: is_done }, text);
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Copies and heads that are to move, by the nodes that are up.
async fn plan(client: &Client) -> Result<(Vec<MoveStatus>, Vec<MoveStatus>)> {
    let Reply::Status(status) = client.call(&Request::Status, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    match client.call(&Request::SpreadPlan { avoid: down(&status) }, timing::CALL_MAX).await? {
        Reply::Spread { copies, heads } => Ok((copies, heads)),
        _ => Err(unexpected()),
    }
}

fn down(status: &Status) -> Vec<String> {
    status.nodes.iter().filter(|n| n.state != "up").map(|n| n.name.clone()).collect()
}

fn text(m: &Moves) -> String {
    if m.copies.is_empty() && m.heads.is_empty() {
        return "copies and heads are spread as well as they can be".into();
    }
    let row = |what: &str, m: &MoveStatus| {
        vec![what.into(), m.volume.clone(), m.shard.to_string(), m.from.clone(), m.to.clone()]
    };
    let rows = m.copies.iter().map(|m| row("copy", m)).chain(m.heads.iter().map(|m| row("head", m)));
    let mut out = table(&["MOVES", "VOLUME", "SHARD", "FROM", "TO"], &["SHARD"], rows.collect());
    m.left.iter().for_each(|why| out.push_str(&format!("{why}\n")));
    out
}

async fn move_head(client: &Client, m: &MoveStatus) -> Result<()> {
    let request = Request::VolumeMoveHead { name: m.volume.clone(), node: m.to.clone(), shard: Some(m.shard) };
    let Reply::Volume { volume, .. } = client.call(&request, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    if orders_at(client, volume, &m.to, m.shard).await {
        return Ok(());
    }
    Err(Error::retry(format!(
        "{} is to be head of shard {} of volume {}, and has not opened its view yet; the moves behind it were left. `freebs \
         volume show {}` says how it comes along",
        m.to, m.shard, m.volume, m.volume
    )))
}
