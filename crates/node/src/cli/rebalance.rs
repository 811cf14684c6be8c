//! `freebs cluster rebalance`: heads are spread over the nodes. Copies stay where they are.

use super::asked::{connect, orders_at, unexpected};
use super::output::{Output, table};
use crate::admin::Client;
use crate::timing;
use clap::Args;
use freebs_control::api::{MemberState, Reply, Request, Status};
use freebs_types::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

const HELP: &str = "\
Examples:
  freebs cluster rebalance             moves heads, one after the other
  freebs cluster rebalance --dry-run   shows which

Each shard has a head, which orders its writes. Heads do not go back by themselves when a node returns, so they gather on those
that were there. This moves them until no node has two more than another one that could have one of them; each move costs a pause
of some tens of milliseconds. Copies stay where they are.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct RebalanceArgs {
    /// Show the moves, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// A head that moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Move {
    volume: String,
    shard: u32,
    from: String,
    to: String,
}

#[derive(Serialize)]
struct Moves {
    moves: Vec<Move>,
    /// They were made.
    done: bool,
}

pub async fn run(args: &RebalanceArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    let Reply::Status(status) = client.call(&Request::Status, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    let moves = plan(&status);
    if !args.dry_run {
        for (i, m) in moves.iter().enumerate() {
            say(&format!("{} of {}: {} is to be head of shard {} of {}", i + 1, moves.len(), m.to, m.shard, m.volume));
            carry_out(&client, m).await?;
        }
        say("");
    }
    output.show(&Moves { moves, done: !args.dry_run }, text);
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
    }
}

fn text(m: &Moves) -> String {
    if m.moves.is_empty() {
        return "heads are spread as well as their chains allow".into();
    }
    let rows = m.moves.iter().map(|m| vec![m.volume.clone(), m.shard.to_string(), m.from.clone(), m.to.clone()]);
    table(&["VOLUME", "SHARD", "FROM", "TO"], &["SHARD"], rows.collect())
}

async fn carry_out(client: &Client, m: &Move) -> Result<()> {
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

/// From the node with most heads to one with at least two fewer, for as long as there is a shard that both are whole members of.
fn plan(status: &Status) -> Vec<Move> {
    let nodes = status.nodes.iter().filter(|n| n.state == "up" && !n.drains);
    let mut heads: BTreeMap<&str, usize> = nodes.map(|n| (n.name.as_str(), 0)).collect();
    let mut shards = Vec::new();
    for v in &status.volumes {
        for (index, s) in v.shards.iter().enumerate() {
            let is_whole = |name: &str| s.members.iter().any(|m| m.node == name && m.state == MemberState::Active);
            if let Some(n) = heads.get_mut(s.head.as_str()).filter(|_| is_whole(&s.head)) {
                *n += 1;
                let others: Vec<&str> = s.members.iter().map(|m| m.node.as_str()).filter(|n| is_whole(n)).collect();
                shards.push((v.name.as_str(), index as u32, s.head.as_str(), others));
            }
        }
    }
    let mut moves = Vec::new();
    let best = |heads: &BTreeMap<&str, usize>, of: &(&str, u32, &str, Vec<&str>)| {
        let to = of.3.iter().filter_map(|n| Some((*heads.get(n)?, *n))).min()?;
        let gain = heads.get(of.2)?.saturating_sub(to.0);
        (gain >= 2).then(|| (gain, to.1.to_owned()))
    };
    // Each shard moves once at most: the one that gains most comes next.
    while !shards.is_empty() {
        let found = shards.iter().enumerate().filter_map(|(i, s)| best(&heads, s).map(|(gain, to)| (gain, i, to)));
        let Some((_, i, to)) = found.max_by_key(|(gain, i, _)| (*gain, std::cmp::Reverse(*i))) else { break };
        let (volume, shard, from, _) = shards.remove(i);
        *heads.get_mut(from).expect("it has this head") -= 1;
        *heads.get_mut(to.as_str()).expect("found there") += 1;
        moves.push(Move { volume: volume.into(), shard, from: from.into(), to });
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Nodes a, b, c, and shards of one volume, each with its chain.
    fn status(down: &str, chains: &[&str]) -> Status {
        let node = |name: &str| {
            json!({ "id": 1, "name": name, "pid": 1, "address": "h:1", "state": if name == down { "down" } else { "up" },
                "start": 1, "workers": 1, "leads": false, "votes": true })
        };
        let shard = |(i, chain): (usize, &&str)| {
            let state = |n: &str| if n == down { "down" } else { "active" };
            let members: Vec<_> = chain
                .chars()
                .map(|n| n.to_string())
                .map(|n| json!({ "node": n, "version": 0, "state": state(&n) }))
                .collect();
            json!({ "id": format!("1.{i}"), "view": 1, "head": chain[..1], "members": members })
        };
        let volume = json!({ "id": 1, "name": "v", "size": 4096, "copies": 3, "ack": "majority", "min_copies": 1,
            "stripe": 65536, "shards": chains.iter().enumerate().map(shard).collect::<Vec<_>>(), "state": "ready",
            "generation": 0 });
        let nodes: Vec<_> = ["a", "b", "c"].map(node).to_vec();
        let all =
            json!({ "cluster": "07".repeat(16), "revision": 1, "nodes": nodes, "gateways": [], "volumes": [volume] });
        serde_json::from_value(all).unwrap()
    }

    fn heads_after(down: &str, chains: &[&str]) -> Vec<usize> {
        let moves = plan(&status(down, chains));
        let mut heads: Vec<char> = chains.iter().map(|c| c.chars().next().unwrap()).collect();
        for m in &moves {
            assert!(chains[m.shard as usize].contains(&m.to) && m.from == heads[m.shard as usize].to_string());
            heads[m.shard as usize] = m.to.chars().next().unwrap();
        }
        ['a', 'b', 'c'].map(|n| heads.iter().filter(|h| **h == n).count()).to_vec()
    }

    #[test]
    fn heads_are_spread_as_far_as_chains_allow() {
        assert_eq!(heads_after("", &["abc"; 6]), [2, 2, 2]);
        assert_eq!(heads_after("", &["abc", "bca", "cab"]), [1, 1, 1]);
        assert_eq!(heads_after("", &["abc"; 2]), [1, 1, 0]);
        assert_eq!(heads_after("", &["ab"; 6]), [3, 3, 0], "c has nothing");
        assert_eq!(heads_after("c", &["abc"; 6]), [3, 3, 0], "c is down");
        assert_eq!(heads_after("", &[]), [0, 0, 0]);
    }
}
