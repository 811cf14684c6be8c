//! The leader of the control plane makes the snapshots that schedules ask for, and deletes those that no rule keeps.
//!
//! Invariants: only snapshots that a schedule named are deleted, and none that is locked or not complete; a volume that is a
//! mixture, as a rollback leaves it, gets none.

use super::service::Service;
use super::snapshots::{self, ROLLING_BACK};
use crate::events::now_ms;
use crate::timing;
use freebs_control::{Command, ControlPlane, Schedule, State, Volume};
use freebs_types::{Result, VolumeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;

/// Snapshots that are being made at a time: one of a volume that is paused takes as long as one may.
const AT_A_TIME: usize = 16;

/// The last snapshot that was made of each volume, so that one that was deleted by hand is not made again at once.
type Made = BTreeMap<VolumeId, String>;

/// Looks at all schedules, again and again, for as long as the service lives.
pub async fn keep(service: Weak<Service>) {
    let mut done = Made::new();
    loop {
        tokio::time::sleep(timing::SCHEDULE_LOOK).await;
        let Some(service) = service.upgrade() else { return };
        if !service.plane.leads() {
            done.clear();
            continue;
        }
        let Ok(state) = service.state() else { continue };
        make(&service, &state, &mut done).await;
        if let Ok(state) = service.state() {
            let_go(&service, &state).await;
        }
    }
}

/// The volumes that have a schedule, and whose content is one that a snapshot may have.
fn scheduled(state: &State) -> impl Iterator<Item = (&Volume, &Schedule)> {
    let volumes = state.volumes().map(|v| &**v).filter(|v| !v.name.ends_with(ROLLING_BACK));
    volumes.filter_map(|v| v.schedule.as_ref().map(|s| (v, s)))
}

async fn make(service: &Arc<Service>, state: &State, done: &mut Made) {
    done.retain(|id, _| state.volume(*id).is_some());
    let mut under_way: JoinSet<(VolumeId, String, String, Result<()>)> = JoinSet::new();
    let mut ended = Vec::new();
    for (volume, schedule) in scheduled(state) {
        let names = state.snapshots_of(volume.id).filter(|s| !s.has_failed()).map(|s| s.name.as_str());
        let Some(name) = schedule.due(names, now_ms()).filter(|n| done.get(&volume.id) != Some(n)) else { continue };
        if under_way.len() >= AT_A_TIME {
            ended.extend(under_way.join_next().await);
        }
        let (service, id, of) = (service.clone(), volume.id, volume.name.clone());
        under_way.spawn(async move {
            let made = snapshots::make(&service, std::slice::from_ref(&of), name.clone(), None).await.map(|_| ());
            (id, of, name, made)
        });
    }
    while let Some(one) = under_way.join_next().await {
        ended.push(one);
    }
    for (id, of, name, made) in ended.into_iter().flatten() {
        match made {
            Ok(()) => _ = done.insert(id, name),
            // It is tried again at the next look, for as long as its time lasts.
            Err(e) => tracing::warn!(volume = of, snapshot = name, "the snapshot that its schedule asks for: {e}"),
        }
    }
}

async fn let_go(service: &Service, state: &State) {
    for (volume, schedule) in scheduled(state) {
        let of: Vec<_> = state.snapshots_of(volume.id).filter(|s| s.is_complete()).collect();
        for name in schedule.expired(of.iter().map(|s| s.name.as_str())) {
            let is_locked = of.iter().any(|s| s.name == name && s.locked_until_ms > now_ms());
            if is_locked {
                continue;
            }
            let command = Command::DeleteSnapshot { volume: volume.id, name: name.to_owned(), now_ms: now_ms() };
            if let Err(e) = service.plane.submit(command).await {
                tracing::warn!(volume = volume.name, snapshot = name, "its schedule keeps it no longer: {e}");
            }
        }
    }
}
