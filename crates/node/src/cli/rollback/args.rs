//! The words of `freebs volume rollback`.

use super::super::snapshot::args::{Place, place};
use clap::Args;

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

#[derive(Debug, Args)]
pub struct RollbackArgs {
    /// A snapshot of the volume
    #[arg(value_name = "VOLUME@NAME", value_parser = place)]
    pub snapshot: Place,

    /// Keep no snapshot of what the volume has now
    #[arg(long)]
    pub discard_present: bool,

    /// Say how far it is, also where standard error is no terminal
    #[arg(long)]
    pub progress: bool,
}
