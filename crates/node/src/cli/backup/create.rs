//! `freebs backup create`.

use super::super::asked::show;
use super::super::image::target::in_use;
use super::super::output::Output;
use super::super::signals::Stop;
use super::args::CreateArgs;
use super::opened::{date, millis};
use super::volume::Volume;
use super::watch::Watcher;
use crate::admin::Client;
use crate::attached::Attached;
use freebs_backup::{Order, Target, create};
use freebs_control::api::VolumeStatus;
use freebs_control::rules::format_size;
use freebs_types::{Error, ErrorKind, Result};
use serde::Serialize;
use std::process::ExitCode;
use std::time::SystemTime;

#[derive(Serialize)]
struct Shown {
    backup: String,
    volume: String,
    target: String,
    /// The backup that has what was not stored again.
    parent: Option<String>,
    /// Bytes of the volume.
    size: u64,
    /// Blocks of 512 KiB that are not zero.
    blocks: u64,
    new_blocks: u64,
    /// Bytes of the objects that no earlier backup has.
    new_bytes: u64,
    /// Bytes that were read from the volume.
    read: u64,
    /// Bytes that were sent to the target in this run.
    sent: u64,
    /// Objects that an interrupted run had stored.
    resumed: u64,
    locked_until: Option<String>,
    seconds: f64,
}

pub async fn run(
    client: &Client,
    addresses: &[String],
    target: Target,
    args: CreateArgs,
    output: &Output,
) -> Result<ExitCode> {
    if target.is_new() {
        output.note(&format!("{} is empty: a new target was made there", target.store().called()));
    }
    let volume = show(client, &args.name).await?;
    let mut stop = Stop::new()?;
    let attached = attach(client, addresses, &volume, &mut stop).await?;
    let order = Order {
        cluster: client.welcome().cluster,
        volume: volume.id,
        name: args.name.clone(),
        now_ms: millis(SystemTime::now()),
        locked_until_ms: args.lock_until.map_or(0, millis),
        full: args.full,
    };
    let label = format!("backup of {}", args.name);
    let watch = Watcher::start(label, volume.size, args.pace.rate, args.pace.progress, output);
    let source = Volume { attached: &attached, size: volume.size };
    let created = tokio::select! {
        created = create(&target, &source, &order, &watch) => created,
        () = stop.wait() => Err(stopped()),
    };
    let (_, took) = watch.so_far();
    drop(watch);
    attached.close().await;
    let created = created?;
    let details = &created.manifest.details;
    let shown = Shown {
        backup: created.manifest.id.to_string(),
        volume: args.name,
        target: target.store().called().to_owned(),
        parent: (!details.parent.is_none()).then(|| details.parent.to_string()),
        size: details.size,
        blocks: details.blocks,
        new_blocks: details.new_blocks,
        new_bytes: details.new_bytes,
        read: created.read_bytes,
        sent: created.sent_bytes,
        resumed: created.resumed,
        locked_until: args.lock_until.map(|t| date(millis(t))),
        seconds: took.as_secs_f64(),
    };
    output.show(&shown, |s| {
        format!(
            "backup {} of {}: {}, {} of data read, {} of {} blocks are new, {} sent in {:.1} s",
            s.backup,
            s.volume,
            format_size(s.size),
            format_size(s.read),
            s.new_blocks,
            s.blocks,
            format_size(s.sent),
            s.seconds
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// The volume, for this process alone.
async fn attach(client: &Client, addresses: &[String], volume: &VolumeStatus, stop: &mut Stop) -> Result<Attached> {
    let attached = tokio::select! {
        attached = Attached::open(addresses, client.welcome().cluster, "backup", volume.id) => attached,
        () = stop.wait() => return Err(stopped()),
    };
    match attached {
        Err(e) if e.kind == ErrorKind::Busy => Err(in_use(client, &volume.name, e).await),
        other => other,
    }
}

fn stopped() -> Error {
    Error::retry("the backup was stopped, and is in no list; the next one goes on: what is stored is not sent again")
}
