//! Snapshots as this node is asked for them: the attempts, the wait for their end, and lists.
//!
//! Invariants: of several answers one is given only when the state says it; an attempt that is given up is recorded as failed
//! first, so nothing half-made stays; a question that may have been heard is asked again as the same one.

use super::service::Service;
use crate::events::now_ms;
use crate::timing;
use freebs_control::api::{Reply, SnapshotStatus};
use freebs_control::{Command, ControlPlane, Outcome, Schedule, Snapshot, Stage, State, Volume};
use freebs_types::{Error, ErrorKind, Past, Result, SnapshotId, VolumeId};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::time::Instant;

/// Attempts of one question; each fails for a reason of its own (a head that moved, for one).
const ATTEMPTS: usize = 4;
/// Weight (snapshots and their volumes) of a page of a list, so that it fits a message.
const PAGE_WEIGHT: usize = 4096;

/// Behind the name of a volume that is a mixture: it is being rolled back, or an interrupted rollback has left it.
pub const ROLLING_BACK: &str = ".rolling-back";

/// As somebody asks for it.
pub(super) async fn create(
    service: &Service,
    names: &[String],
    name: Option<String>,
    past: Option<Past>,
) -> Result<Reply> {
    let name = name.unwrap_or_else(|| name_of_time(now_ms()));
    if Schedule::names(&name) {
        return Err(Error::invalid(format!(
            "the name '{name}' is as schedules give them, which delete what they have named; choose another name"
        )));
    }
    make(service, names, name, past).await
}

/// Makes a snapshot, in several attempts if need be, and returns when it is complete.
pub(super) async fn make(service: &Service, names: &[String], name: String, past: Option<Past>) -> Result<Reply> {
    let until = Instant::now() + timing::SNAPSHOT_MAX;
    let state = service.state()?;
    let volumes = names.iter().map(|n| state.need(n).map(|v| v.id)).collect::<Result<Vec<VolumeId>>>()?;
    let mut why = String::new();
    for _ in 0..ATTEMPTS {
        let id = begin(service, &name, &volumes, (past, until)).await?;
        let begun = Instant::now();
        match ended(service, id, until).await {
            Some(Ok(status)) => return Ok(Reply::Snapshot(status)),
            Some(Err(failed)) => {
                why = failed;
                if begun.elapsed() >= timing::SNAPSHOT_ATTEMPT_MAX {
                    break;
                }
            }
            None => {
                let state = service.state()?;
                why = waits_for(&state, id);
                service.plane.submit(Command::FailSnapshot { snapshot: id, why: why.clone() }).await?;
                // It may have been completed at that very moment.
                if let Some(Ok(status)) = ended(service, id, until).await {
                    return Ok(Reply::Snapshot(status));
                }
                break;
            }
        }
    }
    Err(Error::retry(format!(
        "no snapshot was made: {why}. Try it again; `freebs volume show {}` says how the volume is",
        names.first().map_or("NAME", String::as_str)
    )))
}

/// A name that says when it was made, and that a file may have, too.
pub fn name_of_time(ms: u64) -> String {
    let time = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string();
    time.replace(':', "").replace('T', "-").trim_end_matches('Z').to_owned()
}

/// Begins an attempt, once no other snapshot of the volumes is being made.
async fn begin(
    service: &Service,
    name: &str,
    volumes: &[VolumeId],
    (past, until): (Option<Past>, Instant),
) -> Result<SnapshotId> {
    let created_ms = now_ms();
    loop {
        let command = Command::BeginSnapshot { name: name.to_owned(), volumes: volumes.to_vec(), created_ms, past };
        let seen = service.plane.state().revision();
        match service.plane.submit(command).await {
            Ok(done) => match done.outcome {
                Outcome::SnapshotBegun { snapshot } => return Ok(snapshot),
                _ => return Err(Error::bug("a snapshot was begun with another outcome")),
            },
            Err(e) if matches!(e.kind, ErrorKind::Busy | ErrorKind::Retry) && Instant::now() < until => {
                let news = service.plane.changed(seen);
                let _ = tokio::time::timeout(timing::SNAPSHOT_LOOK, news).await;
            }
            Err(e) => return Err(e),
        }
    }
}

/// How an attempt ended, as soon as it has: as it is, or why it has failed. `None` if it has not in time.
async fn ended(
    service: &Service,
    id: SnapshotId,
    until: Instant,
) -> Option<std::result::Result<SnapshotStatus, String>> {
    let mut state = service.plane.state();
    loop {
        match state.snapshot_record(id).map(|s| (s, &s.stage)) {
            Some((s, Stage::Complete)) => return Some(Ok(SnapshotStatus::new(&state, s, true))),
            Some((_, Stage::Failed { why })) => return Some(Err(why.clone())),
            Some(_) => {}
            None => return Some(Err("it was deleted while it was being made".into())),
        }
        let news = service.plane.changed(state.revision());
        state = tokio::time::timeout_at(until, news).await.ok()?;
    }
}

/// The shards that did not come, for people.
fn waits_for(state: &State, id: SnapshotId) -> String {
    let Some(snapshot) = state.snapshot_record(id) else { return "it is gone".into() };
    let name = |v: VolumeId| state.volume(v).map_or_else(|| v.to_string(), |v| v.name.clone());
    let shards: Vec<String> =
        snapshot.waits_for.iter().take(4).map(|s| format!("{} (shard {s})", name(s.volume))).collect();
    let more = snapshot.waits_for.len().saturating_sub(shards.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the head of {}{more} did not answer in time; a volume that is paused can't be cut", shards.join(", "))
}

/// One page of all snapshots, or of those of a volume.
pub(super) fn list(service: &Service, volume: Option<&str>, after: SnapshotId) -> Result<Reply> {
    let state = service.state()?;
    let all: Vec<&Arc<Snapshot>> = match volume {
        Some(name) => state.snapshots_of(state.need(name)?.id).collect(),
        None => state.snapshots().collect(),
    };
    let (mut snapshots, mut weight) = (Vec::new(), 0);
    for s in all.into_iter().filter(|s| s.id > after) {
        weight += 1 + s.volumes.len();
        if weight > PAGE_WEIGHT {
            return Ok(Reply::Snapshots { snapshots, more: true });
        }
        snapshots.push(SnapshotStatus::new(&state, s, false));
    }
    Ok(Reply::Snapshots { snapshots, more: false })
}

/// The snapshot of that name; of those that have failed the last one, if there is no other.
fn find<'a>(state: &'a State, volume: &Volume, name: &str) -> Result<&'a Snapshot> {
    let failed = || state.snapshots_of(volume.id).filter(|s| s.name == name).last().map(|s| &**s);
    state.snapshot(volume.id, name).or_else(failed).ok_or_else(|| {
        Error::not_found(format!(
            "there is no snapshot '{}@{name}'; `freebs snapshot list {}` shows those there are",
            volume.name, volume.name
        ))
    })
}

pub(super) fn show(service: &Service, volume: &str, name: &str) -> Result<Reply> {
    let state = service.state()?;
    let found = find(&state, state.need(volume)?, name)?;
    Ok(Reply::Snapshot(SnapshotStatus::new(&state, found, true)))
}

pub(super) async fn delete(service: &Service, volume: &str, name: String) -> Result<Reply> {
    let volume = service.state()?.need(volume)?.id;
    service.plane.submit(Command::DeleteSnapshot { volume, name, now_ms: now_ms() }).await?;
    Ok(Reply::Deleted)
}

pub(super) async fn lock(service: &Service, volume: &str, name: String, until_ms: u64) -> Result<Reply> {
    let id = service.state()?.need(volume)?.id;
    let command = Command::LockSnapshot { volume: id, name: name.clone(), until_ms, now_ms: now_ms() };
    service.plane.submit(command).await?;
    show(service, volume, &name)
}

pub(super) async fn schedule(service: &Service, volume: &str, schedule: Option<Schedule>) -> Result<Reply> {
    let id = service.state()?.need(volume)?.id;
    service.plane.submit(Command::ScheduleSnapshots { volume: id, schedule }).await?;
    service.show_volume(volume).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_made_of_the_time_is_one() {
        let name = name_of_time(86_400_042);
        assert_eq!(name, "1970-01-02-000000.042");
        freebs_control::rules::check_name("snapshot", &name).unwrap();
    }
}
