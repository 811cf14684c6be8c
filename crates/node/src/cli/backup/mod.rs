//! `freebs backup …`: volumes backed up to a directory or S3, and restored. The work is done by `freebs-backup`; here are
//! its words, source, sink and clock.
//!
//! The folder: `args`, `opened` (a target, and a backup of it), `create`, `restore`, `shown` (list and show), `kept`
//! (verify, delete, prune, key), `past` (a snapshot as a source), `volume` (a volume as a sink), `watch`.

pub mod args;
mod create;
mod kept;
mod opened;
mod past;
mod restore;
mod shown;
mod volume;
mod watch;

use super::asked::connect;
use super::image::{addresses, on_this_thread};
use super::output::Output;
use args::BackupCommand;
use freebs_types::Result;
use std::process::ExitCode;

pub async fn run(command: BackupCommand, cluster: &str, output: &Output) -> Result<ExitCode> {
    match command {
        BackupCommand::Create(args) => {
            // Before a cluster is asked: most mistakes are in the target.
            let target = opened::open(&args.target, true).await?;
            let client = connect(cluster).await?;
            on_this_thread(create::run(&client, &addresses(cluster), target, args, output)).await
        }
        BackupCommand::Restore(args) => {
            let target = opened::open(&args.one.target, false).await?;
            let client = connect(cluster).await?;
            on_this_thread(restore::run(&client, &addresses(cluster), target, args, output)).await
        }
        BackupCommand::List(args) => shown::list(&opened::open(&args, false).await?, output).await,
        BackupCommand::Show(args) => shown::show(&args, output).await,
        BackupCommand::Verify(args) => on_this_thread(kept::verify(args, output)).await,
        BackupCommand::Delete(args) => kept::delete(&args, output).await,
        BackupCommand::Prune(args) => kept::prune(&args, output).await,
        BackupCommand::Key { file } => kept::key(&file, output),
    }
}
