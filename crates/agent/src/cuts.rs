//! Snapshots between the control state and the heads of a worker: the news for them, and their words.
//!
//! Invariants: all that a worker's heads say of one snapshot at a time is one command, as far as it fits; a state that is
//! older than one that was heard says nothing of snapshots, for what it does not have may only not have been begun.

use freebs_chain::{CutWord, ShardSnapshots, UnderWay};
use freebs_control::{Command, Cut, Snapshot, Stage, State, limits};
use freebs_types::{ShardId, SnapshotId, ViewNumber};
use std::collections::BTreeMap;

/// The words on one snapshot.
#[derive(Default)]
struct Said {
    cuts: Vec<(ShardId, Cut)>,
    held: Vec<(ShardId, ViewNumber)>,
    fails: Option<String>,
}

/// Words of heads as commands, in the order of snapshots: reports, then confirmations, then failures.
pub(crate) fn commands_of(words: Vec<CutWord>) -> Vec<Command> {
    let mut all: BTreeMap<SnapshotId, Said> = BTreeMap::new();
    for word in words {
        match word {
            CutWord::Cut { shard, snapshot, view, version, sequence } => {
                all.entry(snapshot).or_default().cuts.push((shard, Cut { view, version, sequence }));
            }
            CutWord::Held { shard, snapshot, view } => all.entry(snapshot).or_default().held.push((shard, view)),
            CutWord::Fails { snapshot, why } => {
                all.entry(snapshot).or_default().fails.get_or_insert(why);
            }
        }
    }
    let mut commands = Vec::new();
    for (snapshot, said) in all {
        let cuts = said.cuts.chunks(limits::CUTS_OF_COMMAND_MAX);
        commands.extend(cuts.map(|cuts| Command::ReportCuts { snapshot, cuts: cuts.to_vec() }));
        let held = said.held.chunks(limits::CUTS_OF_COMMAND_MAX);
        commands.extend(held.map(|held| Command::ConfirmCuts { snapshot, held: held.to_vec() }));
        commands.extend(said.fails.map(|why| Command::FailSnapshot { snapshot, why }));
    }
    commands
}

/// The snapshots of a shard, for its head.
pub(crate) fn snapshots_of(state: &State, shard: ShardId) -> ShardSnapshots {
    ShardSnapshots {
        kept: state.kept_snapshots(shard.volume),
        under_way: state.snapshot_under_way(shard.volume).map(|s| under_way(s, shard)),
        spared: state.spared_snapshots(),
        retain_ms: state.volume(shard.volume).map(|v| v.retain_ms),
        as_of: state.shard(shard).map(|s| s.active).unwrap_or_default(),
    }
}

/// Of a shard of which no state has told yet that counts: all that its log keeps stays.
pub(crate) fn nothing_known() -> ShardSnapshots {
    ShardSnapshots { spared: SnapshotId(u64::MAX), ..ShardSnapshots::default() }
}

fn under_way(s: &Snapshot, shard: ShardId) -> UnderWay {
    let is_decided = s.stage == Stage::Decided;
    UnderWay {
        id: s.id,
        is_alone: s.shards().nth(1).is_none(),
        is_decided,
        reported: s.cut(shard).map(|c| c.view),
        is_confirmed: is_decided && !s.waits_for.contains(&shard),
        past: s.past,
    }
}
