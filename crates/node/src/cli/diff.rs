//! `freebs snapshot diff`: the blocks that changed between two snapshots of a volume.

use super::asked::show;
use super::output::Output;
use super::snapshot::args::{Place, place};
use crate::admin::Client;
use crate::attached::{Attached, AttachedPast};
use clap::Args;
use freebs_control::rules::format_size;
use freebs_driver::{Op, Reply, STATUS_BYTES_MAX};
use freebs_format::Pin;
use freebs_types::{Error, Result};
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;

pub const DIFF_HELP: &str = "\
Examples:
  freebs snapshot diff data@monday data@tuesday
  freebs snapshot diff data@monday                     to the newest snapshot of the volume
  freebs snapshot diff data@monday data@tuesday --json | jq '.ranges[]'

A range is told if something was written, trimmed or zeroed in it since the earlier snapshot, with the same content, too. All
else is the same in both. NBD clients are told the same by the meta context freebs:changed-since:NAME of the later one.

Exit status: 0 the answer is whole, 1 failed, 2 not understood.";

#[derive(Debug, Args)]
#[command(after_help = DIFF_HELP)]
pub struct DiffArgs {
    /// The earlier snapshot: VOLUME@NAME
    #[arg(value_name = "FROM", value_parser = place)]
    pub from: Place,

    /// The later one, of the same volume [default: the newest]
    #[arg(value_name = "TO", value_parser = place)]
    pub to: Option<Place>,
}

/// A run of bytes that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Range {
    offset: u64,
    bytes: u64,
    /// It reads as zeroes in the later one.
    zero: bool,
}

#[derive(Serialize)]
struct Diff {
    from: String,
    to: String,
    /// Bytes of the later one.
    size: u64,
    /// Bytes of all ranges.
    changed: u64,
    ranges: Vec<Range>,
}

pub async fn run(client: &Client, args: DiffArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    // Tasks of the reader's edge stay on this thread.
    let diff = tokio::task::LocalSet::new().run_until(find(client, args, cluster)).await?;
    output.show(&diff, |d| {
        let line = |r: &Range| format!("{:>16} {:>14}{}\n", r.offset, r.bytes, if r.zero { "  zero" } else { "" });
        let head = format!("{:>16} {:>14}\n", "OFFSET", "BYTES");
        let body: String = d.ranges.iter().map(line).collect();
        let (n, noun) = (d.ranges.len(), if d.ranges.len() == 1 { "range" } else { "ranges" });
        format!("{head}{body}{} of {} changed, {n} {noun}", format_size(d.changed), format_size(d.size))
    });
    Ok(ExitCode::SUCCESS)
}

async fn find(client: &Client, args: DiffArgs, cluster: &str) -> Result<Diff> {
    let from = args.from;
    if let Some(to) = args.to.as_ref().filter(|to| to.volume != from.volume) {
        let why = format!(
            "{} and {} are different volumes; only snapshots of one have something in common",
            from.volume, to.volume
        );
        return Err(Error::invalid(why));
    }
    let volume = show(client, &from.volume).await?.id;
    let addresses: Vec<String> = cluster.split(',').map(str::to_owned).collect();
    let at = client.welcome().cluster;
    // Without a later one the earlier one is opened, which knows of all.
    let named = args.to.map_or_else(|| from.name.clone(), |to| to.name);
    let mut past = Attached::open_past(&addresses, at, "diff", volume, &named).await?;
    if named == from.name {
        let newest = past.newest();
        past.reader.close().await;
        if newest == from.name {
            return Err(Error::invalid(format!("{} is the newest snapshot; name an earlier one first", from.name)));
        }
        past = Attached::open_past(&addresses, at, "diff", volume, &newest).await?;
    }
    let ranges = match past.since(&from.name) {
        Ok(since) => changes(&past, &since).await,
        Err(e) => Err(e),
    };
    let (to, size) = (past.snapshot.name.clone(), past.size);
    past.reader.close().await;
    let (ranges, of) = (ranges?, &from.volume);
    let changed = ranges.iter().map(|r| r.bytes).sum();
    Ok(Diff { from: format!("{of}@{}", from.name), to: format!("{of}@{to}"), size, changed, ranges })
}

async fn changes(past: &AttachedPast, since: &Arc<[Pin]>) -> Result<Vec<Range>> {
    let (mut ranges, mut at): (Vec<Range>, u64) = (Vec::new(), 0);
    while at < past.size {
        let len = (past.size - at).min(STATUS_BYTES_MAX);
        let op = Op::Changes { offset: at, len, since: since.clone() };
        let Reply::Status(runs) = past.reader.ask(op).await? else {
            return Err(Error::bug("a question for changes had another answer"));
        };
        let before = at;
        for run in runs {
            if run.changed {
                match ranges.last_mut() {
                    Some(last) if last.offset + last.bytes == at && last.zero == run.zero => last.bytes += run.bytes,
                    _ => ranges.push(Range { offset: at, bytes: run.bytes, zero: run.zero }),
                }
            }
            at += run.bytes;
        }
        if at == before {
            return Err(Error::bug("an answer to what changed covers nothing"));
        }
    }
    Ok(ranges)
}
