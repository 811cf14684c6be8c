//! Copies that move to another node: `freebs volume move-copy`, and those of a plan.

use super::asked::{show, unexpected};
use super::output::Output;
use crate::admin::Client;
use crate::timing;
use clap::Args;
use freebs_control::api::{MoveStatus, Reply, Request};
use freebs_types::{Error, ErrorKind, Result};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

const HELP: &str = "\
Examples:
  freebs volume move-copy demo --from node1 --to node4
  freebs volume move-copy demo --from node1 --to node4 --shard 2
  freebs volume move-copy demo --from node1 --stop            it stays after all

The new node learns everything before the old one goes, so there are as many copies as before at any time, and clients go on. When
the command is stopped the copy still moves; `freebs volume show` says how far it is.";

/// Copies that move at a time: each loads those who have it.
const MOVING_MAX: usize = 4;

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct MoveCopyArgs {
    /// Name of the volume
    pub name: String,

    /// The node that has the copy
    #[arg(long, value_name = "NODE")]
    pub from: String,

    /// The node that is to have it
    #[arg(long, value_name = "NODE", required_unless_present = "stop")]
    pub to: Option<String>,

    /// It stays after all, if the other node has not everything yet
    #[arg(long, conflicts_with = "to")]
    pub stop: bool,

    /// Which shard, from 0
    #[arg(long, default_value_t = 0)]
    pub shard: u32,
}

pub async fn run(client: &Client, args: MoveCopyArgs, output: &Output) -> Result<ExitCode> {
    let to = args.to.unwrap_or_else(|| args.from.clone());
    let m = MoveStatus { volume: args.name, shard: args.shard, from: args.from, to };
    if m.from == m.to && !args.stop {
        return Err(Error::invalid(format!("{} has that copy already; name another node with --to", m.to)));
    }
    begin(client, &m).await?;
    if args.stop {
        let volume = show(client, &m.volume).await?;
        output.show(&volume, |_| format!("the copy of shard {} of {} stays at {}", m.shard, m.volume, m.from));
        return Ok(ExitCode::SUCCESS);
    }
    let word = format!("shard {} of {} moves from {} to {}", m.shard, m.volume, m.from, m.to);
    loop {
        say(&word);
        match stage(client, &m).await {
            Stage::Moves => tokio::time::sleep(timing::DRAIN_LOOK).await,
            Stage::Done => break,
            Stage::Dropped => {
                say("");
                return Err(Error::retry(dropped(&m)));
            }
        }
    }
    say("");
    let volume = show(client, &m.volume).await?;
    output.show(&volume, |_| format!("{} has the copy of shard {} of {} that {} had", m.to, m.shard, m.volume, m.from));
    Ok(ExitCode::SUCCESS)
}

/// A line of progress, in place of the one before.
pub(super) fn say(text: &str) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }
}

fn dropped(m: &MoveStatus) -> String {
    format!(
        "shard {} of {} does not move to {} now: the chain has changed otherwise; `freebs events` says how",
        m.shard, m.volume, m.to
    )
}

/// Has some of them move at a time, until all have, or can't now: the reasons of those.
pub(super) async fn move_all(client: &Client, copies: &[MoveStatus]) -> Result<Vec<String>> {
    let (mut waiting, mut moving, mut left) = (copies.iter(), Vec::new(), Vec::new());
    let mut done = 0;
    loop {
        while moving.len() < MOVING_MAX {
            let Some(m) = waiting.next() else { break };
            match begin(client, m).await {
                Ok(()) => moving.push(m),
                Err(e) if matches!(e.kind, ErrorKind::Retry | ErrorKind::Invalid | ErrorKind::NotFound) => {
                    left.push(format!("shard {} of {} does not move to {}: {}", m.shard, m.volume, m.to, e.text));
                }
                Err(e) => return Err(e),
            }
        }
        if moving.is_empty() {
            say("");
            return Ok(left);
        }
        say(&format!("copies: {done} of {} moved, {} on their way", copies.len(), moving.len()));
        tokio::time::sleep(timing::DRAIN_LOOK).await;
        let mut still = Vec::new();
        for m in moving {
            match stage(client, m).await {
                Stage::Moves => still.push(m),
                Stage::Done => done += 1,
                Stage::Dropped => left.push(dropped(m)),
            }
        }
        moving = still;
    }
}

enum Stage {
    Moves,
    Done,
    Dropped,
}

async fn begin(client: &Client, m: &MoveStatus) -> Result<()> {
    let (name, from, to) = (m.volume.clone(), m.from.clone(), m.to.clone());
    let request = Request::VolumeMoveCopy { name, shard: m.shard, from, to };
    match client.call(&request, timing::CALL_MAX).await? {
        Reply::Volume { .. } => Ok(()),
        _ => Err(unexpected()),
    }
}

/// A volume that was deleted has no copies left to move; while no node answers nothing is known.
async fn stage(client: &Client, m: &MoveStatus) -> Stage {
    let volume = match show(client, &m.volume).await {
        Ok(volume) => volume,
        Err(e) if e.kind == ErrorKind::NotFound => return Stage::Done,
        Err(_) => return Stage::Moves,
    };
    let Some(shard) = volume.shards.get(m.shard as usize) else { return Stage::Done };
    let is_member = |name: &str| shard.members.iter().any(|of| of.node == name);
    match (is_member(&m.from), is_member(&m.to)) {
        (false, _) if shard.keepers.contains(&m.from) => Stage::Moves,
        (false, _) => Stage::Done,
        (true, true) if shard.leaves.as_deref() == Some(&m.from) => Stage::Moves,
        (true, true) => Stage::Dropped,
        (true, false) => Stage::Dropped,
    }
}
