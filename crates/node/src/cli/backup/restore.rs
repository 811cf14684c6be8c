//! `freebs backup restore`.

use super::super::image::target::{self, Doing, Wanted};
use super::super::output::Output;
use super::super::signals::Stop;
use super::args::RestoreArgs;
use super::opened;
use super::volume::Volume;
use super::watch::Watcher;
use crate::admin::Client;
use freebs_backup::{Manifest, Restored, Target, restore};
use freebs_control::rules::format_size;
use freebs_types::{Error, Result};
use serde::Serialize;
use std::process::ExitCode;

/// A restore in words.
const RESTORE: Doing = Doing { suffix: ".restoring", word: "restore", of: "backup", one: "a backup" };

#[derive(Serialize)]
struct Shown {
    volume: String,
    backup: String,
    /// Bytes of the volume.
    size: u64,
    /// Bytes that were written; all others of the volume read as zeroes.
    data: u64,
    /// Bytes that came from the target.
    fetched: u64,
    seconds: f64,
}

pub async fn run(
    client: &Client,
    addresses: &[String],
    from: Target,
    args: RestoreArgs,
    output: &Output,
) -> Result<ExitCode> {
    let manifest = opened::manifest(&from, &args.one.backup).await?;
    let mut stop = Stop::new()?;
    let wanted = Wanted { name: &args.name, size: args.size, shape: args.shape, force: args.force, doing: RESTORE };
    let mut to = target::Target::find(client, addresses, wanted, Some(manifest.details.size)).await?;
    let label = format!("restore of {}", args.name);
    let watch = Watcher::start(label, manifest.details.size, args.pace.rate, args.pace.progress, output);
    let restored = tokio::select! {
        restored = fill(&mut to, &from, &manifest, &watch) => restored,
        () = stop.wait() => Err(Error::retry("the restore was stopped")),
    };
    let (_, took) = watch.so_far();
    drop(watch);
    let restored = match restored {
        Ok(restored) => restored,
        Err(e) => return Err(to.give_up(e).await),
    };
    let volume = to.complete().await?;
    let shown = Shown {
        volume: volume.name,
        backup: manifest.id.to_string(),
        size: volume.size,
        data: restored.written_bytes,
        fetched: restored.fetched_bytes,
        seconds: took.as_secs_f64(),
    };
    output.show(&shown, |s| {
        format!(
            "restored backup {} into {}: {}, {} of data written, {} fetched in {:.1} s",
            s.backup,
            s.volume,
            format_size(s.size),
            format_size(s.data),
            format_size(s.fetched),
            s.seconds
        )
    });
    Ok(ExitCode::SUCCESS)
}

async fn fill(
    to: &mut target::Target<'_>,
    from: &Target,
    manifest: &Manifest,
    watch: &Watcher<'_>,
) -> Result<Restored> {
    let size = to.volume.size;
    let attached = to.prepare().await?;
    restore(from, manifest, &Volume { attached, size }, watch).await
}
