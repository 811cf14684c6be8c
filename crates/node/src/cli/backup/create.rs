//! `freebs backup create`.

use super::super::asked::{show, unexpected};
use super::super::output::Output;
use super::super::signals::Stop;
use super::args::CreateArgs;
use super::opened::{date, millis};
use super::past::Past;
use super::watch::Watcher;
use crate::admin::Client;
use crate::attached::Attached;
use crate::timing;
use freebs_backup::{Created, Order, Target, create};
use freebs_control::api::{Reply, Request, VolumeStatus};
use freebs_control::rules::format_size;
use freebs_types::{Error, Result};
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

#[derive(Serialize)]
struct Shown {
    backup: String,
    volume: String,
    /// The snapshot that was read.
    snapshot: String,
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
    let volume = show(client, &args.source.volume).await?;
    let mut stop = Stop::new()?;
    // Snapshots of other targets have other names, so that each has one to compare with.
    let prefix = format!("backup-{}-", &target.id().to_string()[..8]);
    let own = match &args.source.snapshot {
        Some(_) => None,
        None => Some(make(client, &volume.name, &prefix).await?),
    };
    let snapshot = args.source.snapshot.as_ref().or(own.as_ref()).expect("given, or made just now");
    let done = tokio::select! {
        done = back_up(client, addresses, &target, &args, (&volume, snapshot, &prefix), output) => done,
        () = stop.wait() => Err(stopped()),
    };
    let needless = match (&done, own.clone()) {
        (Ok(done), Some(_)) => done.older.clone(),
        (Err(_), Some(own)) => vec![own],
        (_, None) => Vec::new(),
    };
    for name in needless {
        delete(client, &volume.name, name, output).await;
    }
    let done = done?;
    let details = &done.created.manifest.details;
    let shown = Shown {
        backup: done.created.manifest.id.to_string(),
        volume: args.source.to_string(),
        snapshot: snapshot.clone(),
        target: target.store().called().to_owned(),
        parent: (!details.parent.is_none()).then(|| details.parent.to_string()),
        size: details.size,
        blocks: details.blocks,
        new_blocks: details.new_blocks,
        new_bytes: details.new_bytes,
        read: done.created.read_bytes,
        sent: done.created.sent_bytes,
        resumed: done.created.resumed,
        locked_until: args.lock_until.map(|t| date(millis(t))),
        seconds: done.took.as_secs_f64(),
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

/// Makes a snapshot whose name begins so; its name.
async fn make(client: &Client, volume: &str, prefix: &str) -> Result<String> {
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let name = format!("{prefix}{}", now.replace([':', '-', '.'], ""));
    let request = Request::SnapshotCreate { volumes: vec![volume.to_owned()], name: Some(name), past: None };
    match client.call(&request, timing::SNAPSHOT_CALL_MAX).await? {
        Reply::Snapshot(made) => Ok(made.name),
        _ => Err(unexpected()),
    }
}

/// A snapshot that is left costs space and nothing else, so it is no error.
async fn delete(client: &Client, volume: &str, name: String, output: &Output) {
    let request = Request::SnapshotDelete { volume: volume.to_owned(), name: name.clone() };
    if let Err(e) = client.call(&request, timing::CALL_MAX).await {
        output.note(&format!("the snapshot {volume}@{name} is left, and needed no more: {e}"));
    }
}

/// A backup that was made of a snapshot.
struct Done {
    created: Created,
    took: Duration,
    /// Snapshots of earlier backups to the same target.
    older: Vec<String>,
}

async fn back_up(
    client: &Client,
    addresses: &[String],
    target: &Target,
    args: &CreateArgs,
    (volume, snapshot, prefix): (&VolumeStatus, &str, &str),
    output: &Output,
) -> Result<Done> {
    let cluster = client.welcome().cluster;
    let past = Attached::open_past(addresses, cluster, "backup", volume.id, snapshot).await?;
    let order = Order {
        cluster,
        volume: volume.id,
        name: args.source.to_string(),
        now_ms: millis(SystemTime::now()),
        locked_until_ms: args.lock_until.map_or(0, millis),
        full: args.full,
    };
    let label = format!("backup of {}", args.source);
    let watch = Watcher::start(label, past.size, args.pace.rate, args.pace.progress, output);
    let created = create(target, &Past(&past), &order, &watch).await;
    let (_, took) = watch.so_far();
    drop(watch);
    let older = past.older(prefix);
    past.reader.close().await;
    Ok(Done { created: created?, took, older })
}

fn stopped() -> Error {
    Error::retry("the backup was stopped, and is in no list; the next one goes on: what is stored is not sent again")
}
