//! `freebs node set`: the zone of a node, and how much of its room counts.

use super::asked::{connect, unexpected};
use super::output::Output;
use crate::timing;
use clap::{ArgGroup, Args};
use freebs_control::api::{NodeStatus, Reply, Request};
use freebs_control::limits::WEIGHT_MAX;
use freebs_types::Result;
use std::process::ExitCode;

const HELP: &str = "\
Examples:
  freebs node set node4 --zone rack-b   the copies of a shard go to different zones, as far as there are any
  freebs node set node4 --weight 50     it counts as one with half the room
  freebs node set node4 --weight 0      it gets no new copies; those that it has stay
  freebs node set node4 --zone ''       it is in no zone

Copies that are there stay where they are, until `freebs cluster rebalance` moves them.";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["zone", "weight"])))]
pub struct PlaceArgs {
    /// Its name, as `freebs status` shows it
    pub name: String,

    /// The rack, room or site that may fail together with it; '' for none
    #[arg(long)]
    pub zone: Option<String>,

    /// How much of its room counts, in hundredths
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u16).range(0..=i64::from(WEIGHT_MAX)))]
    pub weight: Option<u16>,
}

pub async fn run(args: PlaceArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    let request = Request::NodePlace { name: args.name, zone: args.zone, weight: args.weight };
    let Reply::Placed { node } = client.call(&request, timing::CALL_MAX).await? else { return Err(unexpected()) };
    output.show(&node, text);
    Ok(ExitCode::SUCCESS)
}

fn text(n: &NodeStatus) -> String {
    let zone = if n.zone.is_empty() { "in no zone".into() } else { format!("in zone {}", n.zone) };
    format!("{} is {zone}, with weight {}", n.name, n.weight)
}
