//! The words of `freebs volume rollback` and `freebs volume rewind`.

use super::super::snapshot::args::{Place, ago, place};
use clap::Args;
use freebs_types::{Past, Version};

pub const ROLLBACK_HELP: &str = "\
Examples:
  freebs volume rollback data@monday
  freebs volume rollback data@monday --discard-present

The volume gets back the content that it had in the snapshot; all its snapshots stay, those made since, too. What it has now is
kept as one more, data@before-rollback-TIME, unless you say otherwise. Blocks that changed since are copied back, and take room
like others that are written. For a volume that is there at once make a clone: `freebs volume clone`.

Nobody may have the volume attached. Until it is done it is called data.rolling-back, so that nobody takes a mixture for
either; if the command is interrupted, the same command goes on with it.

Exit status: 0 the volume is as it was in the snapshot, 1 failed, 2 not understood.";

pub const REWIND_HELP: &str = "\
Examples:
  freebs volume retain data 24h                              from now on
  freebs volume rewind data --to 10min                       ten minutes back
  freebs volume rewind data --to '2026-11-21 10:31:07.5'     UTC, to a tenth of a second
  freebs volume rewind data --version 1234                   to a single update, of a volume of one shard

A rollback to a moment of the time that the volume keeps (`freebs volume retain`); `freebs volume history data` shows what
there is. Times are those of the clocks of the shards' heads. To look before: `freebs volume clone data --at 10min look`.

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

    /// A time in the past, in UTC, or so long ago
    #[arg(long, value_name = "TIME", value_parser = ago, required_unless_present = "version", conflicts_with = "version")]
    pub to: Option<u64>,

    /// A version in the past, of a volume of one shard
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub version: Option<u64>,

    #[command(flatten)]
    pub how: HowArgs,
}

impl RewindArgs {
    /// The place that is named.
    pub fn place(&self) -> Past {
        self.to.map_or(Past::Version(Version(self.version.unwrap_or_default())), Past::TimeMs)
    }
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
