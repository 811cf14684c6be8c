//! `freebs snapshot …`

pub mod args;
pub mod schedule;

use super::asked::{connect, unexpected};
use super::output::{Output, table};
use crate::admin::Client;
use crate::events::now_ms;
use crate::timing;
use args::{CreateArgs, Place, ScheduleArgs, SnapshotCommand};
use freebs_control::Stage;
use freebs_control::api::{Reply, Request, SnapshotStatus};
use freebs_control::rules::{format_date, format_size};
use freebs_types::{Past, Result, SnapshotId};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;

pub async fn run(command: SnapshotCommand, cluster: &str, output: &Output) -> Result<ExitCode> {
    let client = connect(cluster).await?;
    match command {
        SnapshotCommand::Diff(args) => super::diff::run(&client, args, cluster, output).await,
        SnapshotCommand::Create(args) => create(&client, args, output).await,
        SnapshotCommand::List { volume } => list(&client, volume, output).await,
        SnapshotCommand::Show { snapshot } => {
            let Place { volume, name } = snapshot;
            let shown = one(&client, Request::SnapshotShow { volume, name }).await?;
            output.show(&shown, details);
            Ok(ExitCode::SUCCESS)
        }
        SnapshotCommand::Delete { snapshots } => delete(&client, snapshots, output).await,
        SnapshotCommand::Schedule(args) => schedule(&client, args, output).await,
        SnapshotCommand::Lock { snapshot, until } => {
            let Place { volume, name } = snapshot.clone();
            let locked = one(&client, Request::SnapshotLock { volume, name, until_ms: until }).await?;
            output.show(&locked, |s| format!("{snapshot} is locked until {}", format_date(s.locked_until_ms)));
            Ok(ExitCode::SUCCESS)
        }
    }
}

pub async fn one(client: &Client, request: Request) -> Result<SnapshotStatus> {
    match client.call(&request, timing::SNAPSHOT_CALL_MAX).await? {
        Reply::Snapshot(snapshot) => Ok(snapshot),
        _ => Err(unexpected()),
    }
}

/// Makes a snapshot of a place in a volume's past, under this name.
pub async fn of_past(client: &Client, volume: &str, past: Past, name: &str) -> Result<SnapshotStatus> {
    let (volumes, name) = (vec![volume.to_owned()], Some(name.to_owned()));
    one(client, Request::SnapshotCreate { volumes, name, past: Some(past) }).await
}

pub async fn delete_one(client: &Client, volume: &str, name: &str) -> Result<()> {
    let request = Request::SnapshotDelete { volume: volume.to_owned(), name: name.to_owned() };
    match client.call(&request, timing::CALL_MAX).await? {
        Reply::Deleted => Ok(()),
        _ => Err(unexpected()),
    }
}

async fn create(client: &Client, args: CreateArgs, output: &Output) -> Result<ExitCode> {
    let begun = Instant::now();
    let snapshot =
        one(client, Request::SnapshotCreate { volumes: args.volumes, name: args.name, past: args.past.place() })
            .await?;
    let ms = begun.elapsed().as_secs_f64() * 1000.0;
    output.show(&snapshot, |s| {
        let of = s.past.map(|p| format!(", of {}", past(p))).unwrap_or_default();
        format!("created {}{of} in {ms:.1} ms", places(s))
    });
    Ok(ExitCode::SUCCESS)
}

async fn schedule(client: &Client, args: ScheduleArgs, output: &Output) -> Result<ExitCode> {
    let volume = args.volume.clone();
    let request = match args.wanted() {
        Some(schedule) => Request::SnapshotSchedule { volume, schedule },
        None => Request::VolumeShow { name: volume },
    };
    let Reply::Volume { volume, .. } = client.call(&request, timing::CALL_MAX).await? else {
        return Err(unexpected());
    };
    #[derive(Serialize)]
    struct Scheduled {
        volume: String,
        schedule: Option<freebs_control::Schedule>,
    }
    output.show(&Scheduled { volume: volume.name, schedule: volume.schedule }, |s| match &s.schedule {
        Some(schedule) => format!("{}: {}", s.volume, schedule),
        None => format!("{} has no schedule", s.volume),
    });
    Ok(ExitCode::SUCCESS)
}

/// `data@nightly`, or `db@nightly, logs@nightly`.
fn places(s: &SnapshotStatus) -> String {
    let places: Vec<String> = s.volumes.iter().map(|v| format!("{}@{}", v.name, s.name)).collect();
    places.join(", ")
}

/// All snapshots, or those of a volume, in the order in which they were begun.
pub async fn all(client: &Client, volume: Option<&str>) -> Result<Vec<SnapshotStatus>> {
    let mut all: Vec<SnapshotStatus> = Vec::new();
    loop {
        let after = all.last().map_or(SnapshotId(0), |s| s.id);
        let request = Request::SnapshotList { volume: volume.map(str::to_owned), after };
        let Reply::Snapshots { snapshots, more } = client.call(&request, timing::CALL_MAX).await? else {
            return Err(unexpected());
        };
        all.extend(snapshots);
        if !more {
            return Ok(all);
        }
    }
}

async fn list(client: &Client, volume: Option<String>, output: &Output) -> Result<ExitCode> {
    let all = all(client, volume.as_deref()).await?;
    #[derive(Serialize)]
    struct Shown {
        snapshots: Vec<SnapshotStatus>,
    }
    output.show(&Shown { snapshots: all }, |s| list_table(&s.snapshots, volume.as_deref()));
    Ok(ExitCode::SUCCESS)
}

fn list_table(all: &[SnapshotStatus], volume: Option<&str>) -> String {
    let row = |s: &SnapshotStatus, v: &freebs_control::api::SnapshotOf| {
        let locked = if s.locked_until_ms > now_ms() { format_date(s.locked_until_ms) } else { "-".into() };
        let others = s.volumes.iter().filter(|o| o.name != v.name).map(|o| o.name.as_str()).collect::<Vec<_>>();
        vec![
            format!("{}@{}", v.name, s.name),
            format_date(s.created_ms),
            format_size(v.size),
            stage(&s.stage),
            locked,
            if others.is_empty() { "-".into() } else { others.join(",") },
        ]
    };
    let of = |s: &SnapshotStatus| {
        let volumes = s.volumes.iter().filter(|v| volume.is_none_or(|name| v.name == name));
        volumes.map(|v| row(s, v)).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<String>> = all.iter().flat_map(of).collect();
    if rows.is_empty() {
        return "no snapshot; `freebs snapshot create VOLUME` makes one\n".into();
    }
    table(&["SNAPSHOT", "MADE", "SIZE", "STATE", "LOCKED UNTIL", "TOGETHER WITH"], &["SIZE"], rows)
}

/// A place in the past, for people.
pub fn past(past: Past) -> String {
    match past {
        Past::Version(v) => format!("version {v}"),
        Past::TimeMs(ms) => format!("{} by the clocks of the shards' heads", format_date(ms)),
    }
}

fn stage(stage: &Stage) -> String {
    match stage {
        Stage::Gathering | Stage::Decided => "being made".into(),
        Stage::Complete => "complete".into(),
        Stage::Failed { why } => format!("failed: {why}"),
    }
}

fn details(s: &SnapshotStatus) -> String {
    let mut text = format!("{}: {}, made {}\n", places(s), stage(&s.stage), format_date(s.created_ms));
    text.extend(s.past.map(|p| format!("as it was at {}\n", past(p))));
    if s.locked_until_ms > 0 {
        text.push_str(&format!("locked until {}\n", format_date(s.locked_until_ms)));
    }
    let mut rows = Vec::new();
    for v in &s.volumes {
        for (index, cut) in v.cuts.iter().enumerate() {
            let number = |of: fn(&freebs_control::Cut) -> u64| cut.as_ref().map_or("-".into(), |c| of(c).to_string());
            rows.push(vec![
                v.name.clone(),
                format_size(v.size),
                index.to_string(),
                number(|c| c.view.0),
                number(|c| c.version.0),
            ]);
        }
    }
    if !rows.is_empty() {
        let right = ["SIZE", "SHARD", "VIEW", "VERSION"];
        text.push_str(&table(&["VOLUME", "SIZE", "SHARD", "VIEW", "VERSION"], &right, rows));
    }
    text
}

async fn delete(client: &Client, snapshots: Vec<Place>, output: &Output) -> Result<ExitCode> {
    let mut deleted = Vec::new();
    for place in snapshots {
        match delete_one(client, &place.volume, &place.name).await {
            Ok(()) => deleted.push(place.to_string()),
            Err(e) if deleted.is_empty() => return Err(e),
            Err(e) => return Err(e.at(format!("{} deleted, {place} not", deleted.join(", ")))),
        }
    }
    #[derive(Serialize)]
    struct Shown {
        deleted: Vec<String>,
    }
    output.show(&Shown { deleted }, |s| format!("deleted {}", s.deleted.join(", ")));
    Ok(ExitCode::SUCCESS)
}
