//! The words of `freebs volume rollback` and `freebs volume rewind`.

use super::super::snapshot::args::{PastArgs, Place, place};
use clap::Args;

pub const ROLLBACK_HELP: &str = "\
Examples:
  freebs volume rollback data@monday
  freebs volume rollback data@monday --discard-present

The volume gets back the content that it had in the snapshot; all its snapshots stay, those made since, too. What it has now is
kept as one more, data@before-rollback-TIME, unless you say otherwise. Only blocks that changed since are copied, on the nodes'
devices they take room like others that are written. For a copy that is there at once make a clone: `freebs volume clone`.

Nobody may have the volume attached. Until it is done it is called data.rolling-back, so that nobody takes a mixture for
either; if the command is interrupted, the same command goes on with it.

Exit status: 0 the volume is as it was in the snapshot, 1 failed, 2 not understood.";

pub const REWIND_HELP: &str = "\
Examples:
  freebs volume retain data 24h                              from now on
  freebs volume rewind data --at 10min                       ten minutes back
  freebs volume rewind data --at '2026-11-21 10:31:07.5'     UTC, to a tenth of a second
  freebs volume rewind data --version 1234                   to a single update, of a volume of one shard

A rollback to a moment of the time that the volume keeps (`freebs volume retain`). Times are those of the clocks of the shards'
heads. To look before: `freebs volume clone data --at 10min look`.

Exit status: 0 the volume is as it was then, 1 failed, 2 not understood.";

#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// A snapshot of the volume
    #[arg(value_name = "VOLUME@NAME", value_parser = place)]
    pub snapshot: Place,

    #[command(flatten)]
    pub how: HowArgs,
}

#[derive(Debug, Args)]
pub struct RewindArgs {
    pub name: String,

    #[command(flatten)]
    pub past: PastArgs,

    #[command(flatten)]
    pub how: HowArgs,
}

#[derive(Clone, Copy, Debug, Args)]
pub struct HowArgs {
    /// Keep no snapshot of what the volume has now
    #[arg(long)]
    pub discard_present: bool,

    /// Say how far it is, also where standard error is no terminal
    #[arg(long)]
    pub progress: bool,
}
