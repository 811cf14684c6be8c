//! The words of `freebs volume clone` and `freebs volume flatten`, and how much a clone reads from its parent.

use super::asked::{show, unexpected};
use super::output::Output;
use super::snapshot::args::{PastArgs, place_or_volume};
use super::values::volume_name;
use crate::admin::Client;
use crate::timing;
use clap::Args;
use freebs_control::api::{MemberState, Reply, Request, VolumeStatus};
use freebs_types::Result;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Instant;

pub const CLONE_HELP: &str = "\
Examples:
  freebs snapshot create data --name monday
  freebs volume clone data@monday test            a disk that begins as data was then
  freebs volume clone test@tuesday test2          a clone of a clone's snapshot
  freebs volume clone data --at 10min before      as it was ten minutes ago, if it keeps its past
  freebs volume flatten test                      makes it need data's log no more

A clone is a volume like others: it is written, resized, snapshotted and deleted by itself, and neither sees what is written
to the other. Nothing is copied: it takes no room until it is written, and is there at once, whatever its size. It has the size
that the volume had in the snapshot, its number of copies and its shards, on the same nodes at first. Snapshot and volume can
be deleted before it, in any order; what it needs of them stays.

Exit status: 0 it is there, 1 none was made, 2 not understood.";

pub const FLATTEN_HELP: &str = "\
Examples:
  freebs volume flatten test
  freebs volume flatten test --no-wait

A clone's copies read all blocks that were not written since from the volume that it was cloned from. Flattened they have
these as their own, which takes room, and nothing of the other volume is kept for them any more. It is done in the background,
by each node for itself, while the volume is used; this command says how many copies are left. Ctrl-C ends the command, and
not the work. A node that is away does its part when it is back.

Exit status: 0 all copies that are there are flat (or --no-wait was said), 1 failed, 2 not understood.";

#[derive(Debug, Args)]
pub struct CloneArgs {
    /// A snapshot; or a volume, with a moment of the past that it keeps
    #[arg(value_name = "VOLUME@NAME", value_parser = place_or_volume)]
    pub of: (String, Option<String>),

    /// The new volume: 1 to 128 letters, digits, '.', '_', '-'
    #[arg(value_parser = volume_name)]
    pub name: String,

    #[command(flatten)]
    pub past: PastArgs,

    /// Return at once, not when the volume can be used
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Debug, Args)]
pub struct FlattenArgs {
    pub name: String,

    /// Return at once, not when it is done
    #[arg(long)]
    pub no_wait: bool,
}

pub async fn flatten(client: &Client, args: FlattenArgs, output: &Output) -> Result<ExitCode> {
    let request = Request::VolumeFlatten { name: args.name.clone() };
    let Reply::Volume { volume, .. } = client.call(&request, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    let mut volume = show(client, &args.name).await.unwrap_or(volume);
    let mut told: Option<(usize, Instant)> = None;
    while !args.no_wait && Left::of(&volume).is_something() {
        let left = Left::of(&volume).count();
        let is_news = told.is_none_or(|(count, at)| count != left && at.elapsed() >= timing::PROGRESS_LINE_EVERY);
        if is_news {
            output.note(&format!("{left} of {} copies are not flat yet", Left::all(&volume)));
            told = Some((left, Instant::now()));
        }
        tokio::time::sleep(timing::FLAT_LOOK).await;
        volume = show(client, &args.name).await?;
    }
    output.show(&volume, flattened);
    Ok(ExitCode::SUCCESS)
}

fn flattened(v: &VolumeStatus) -> String {
    let left = Left::of(v);
    match (left.is_something(), left.away.is_empty()) {
        (true, _) => {
            format!("{} is being flattened: {} of {} copies are not flat yet", v.name, left.count(), Left::all(v))
        }
        (false, true) => format!("{} is flat: all that it has is its own", v.name),
        (false, false) => {
            let away: Vec<&str> = left.away.into_iter().collect();
            format!("{} is flat, but for what {} has, which can't be told now", v.name, away.join(", "))
        }
    }
}

/// Copies of a clone, one for each member of each shard, that are not flat.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left<'a> {
    /// They read from the parent.
    reading: usize,
    /// They have not come so far that it could be said.
    coming: usize,
    /// Nodes of those that can't be asked.
    away: BTreeSet<&'a str>,
}

impl<'a> Left<'a> {
    fn of(v: &'a VolumeStatus) -> Self {
        let mut left = Self::default();
        for m in v.shards.iter().flat_map(|s| &s.members) {
            match m.state {
                MemberState::Down | MemberState::Failed => _ = left.away.insert(m.node.as_str()),
                _ if m.reads_from_parent => left.reading += 1,
                MemberState::Active => {}
                _ => left.coming += 1,
            }
        }
        left
    }

    fn all(v: &VolumeStatus) -> usize {
        v.shards.iter().map(|s| s.members.len()).sum()
    }

    fn count(&self) -> usize {
        self.reading + self.coming
    }

    fn is_something(&self) -> bool {
        self.count() > 0
    }
}

/// A line on where a volume comes from, if it is a clone.
pub fn origin(v: &VolumeStatus) -> Option<String> {
    let o = v.origin.as_ref()?;
    let place = format!("{}@{}", o.volume, o.snapshot);
    let reading = Left::of(v).reading;
    let all = Left::all(v);
    Some(match (reading, o.flatten) {
        (0, _) => format!("cloned from {place}\n"),
        (_, false) => format!("cloned from {place}, and reads from there in {reading} of {all} copies\n"),
        (_, true) => {
            format!("cloned from {place}, and reads from there in {reading} of {all} copies until these are flat\n")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::api::OriginStatus;
    use serde_json::json;

    fn volume(members: &[(&str, &str, bool)], flatten: bool) -> VolumeStatus {
        let members = members.iter().map(
            |(node, state, reads)| json!({"node": node, "version": 1, "state": state, "reads_from_parent": reads}),
        );
        let shard = json!({"id": "9.0", "view": 3, "head": "a", "members": members.collect::<Vec<_>>()});
        serde_json::from_value(json!({
            "id": 9, "name": "v", "size": 1 << 30, "copies": 3, "ack": "majority", "min_copies": 2, "stripe": 1 << 20,
            "state": "ready", "attached": null, "shards": [shard],
            "origin": {"volume": "data", "snapshot": "monday", "flatten": flatten},
        }))
        .expect("a volume")
    }

    #[test]
    fn a_clone_says_where_it_comes_from_and_how_much_it_reads_there() {
        let all = [("a", "active", true), ("b", "active", false), ("c", "down", false)];
        let mut v = volume(&all, false);
        assert_eq!(origin(&v).unwrap(), "cloned from data@monday, and reads from there in 1 of 3 copies\n");
        v.origin = Some(OriginStatus { flatten: true, ..v.origin.unwrap() });
        assert!(origin(&v).unwrap().ends_with("1 of 3 copies until these are flat\n"));
        v.shards[0].members[0].reads_from_parent = false;
        assert_eq!(origin(&v).unwrap(), "cloned from data@monday\n");
        v.origin = None;
        assert_eq!(origin(&v), None);
    }

    #[test]
    fn it_is_flat_when_all_that_are_there_say_so() {
        let table = [
            (
                [("a", "active", false), ("b", "active", true), ("c", "opening", false)],
                2,
                "2 of 3 copies are not flat yet",
            ),
            ([("a", "active", false), ("b", "active", false), ("c", "joining", false)], 1, "1 of 3 copies"),
            ([("a", "active", false), ("b", "active", false), ("c", "missing", false)], 1, "1 of 3 copies"),
            ([("a", "active", false), ("b", "active", false), ("c", "down", false)], 0, "but for what c has"),
            ([("a", "active", false), ("b", "active", false), ("c", "active", false)], 0, "v is flat: all"),
        ];
        for (members, count, text) in table {
            let v = volume(&members, true);
            assert_eq!(Left::of(&v).count(), count, "{members:?}");
            assert!(flattened(&v).contains(text), "{}", flattened(&v));
        }
    }
}
