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
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Snapshots that are being made at a time: one of a volume that is paused takes as long as one may.
const AT_A_TIME: usize = 16;

/// A snapshot that fails is tried again after this time, then after twice as long, and so on this many times (64 s), for as
/// long as its slot lasts: a paused volume has none, and each try waits as long as one may.
const AGAIN: Duration = timing::SCHEDULE_LOOK;
const AGAIN_DOUBLED_MAX: u32 = 5;

/// The last snapshot that was asked for of a volume.
struct Asked {
    name: String,
    /// `None` if it was made: one that was deleted by hand is not made again at once.
    failure: Option<Failure>,
}

struct Failure {
    why: String,
    times: u32,
    again: Instant,
}

type Done = BTreeMap<VolumeId, Asked>;

impl Asked {
    /// True if a snapshot of this name is to be asked for.
    fn allows(&self, name: &str, now: Instant) -> bool {
        self.name != name || self.failure.as_ref().is_some_and(|f| now >= f.again)
    }

    /// The state behind an error. The same one is said once for each slot.
    fn failed(before: Option<&Self>, of: &str, name: String, why: String, now: Instant) -> Self {
        let same = before.filter(|b| b.name == name).and_then(|b| b.failure.as_ref());
        if same.is_none_or(|f| f.why != why) {
            tracing::warn!(volume = of, snapshot = name, "the snapshot that its schedule asks for: {why}");
        }
        let times = same.map_or(0, |f| f.times);
        let again = now + AGAIN * (1 << times.min(AGAIN_DOUBLED_MAX));
        Self { name, failure: Some(Failure { why, times: times + 1, again }) }
    }
}

/// Looks at all schedules, again and again, for as long as the service lives.
pub async fn keep(service: Weak<Service>) {
    let mut done = Done::new();
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

async fn make(service: &Arc<Service>, state: &State, done: &mut Done) {
    done.retain(|id, _| state.volume(*id).is_some());
    let mut under_way: JoinSet<(VolumeId, String, String, Result<()>)> = JoinSet::new();
    let mut ended = Vec::new();
    for (volume, schedule) in scheduled(state) {
        let names = state.snapshots_of(volume.id).filter(|s| !s.has_failed()).map(|s| s.name.as_str());
        let is_wanted = |name: &String| done.get(&volume.id).is_none_or(|d| d.allows(name, Instant::now()));
        let Some(name) = schedule.due(names, now_ms()).filter(is_wanted) else { continue };
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
        let asked = match made {
            Ok(()) => Asked { name, failure: None },
            Err(e) => Asked::failed(done.get(&id), &of, name, e.to_string(), Instant::now()),
        };
        done.insert(id, asked);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A volume that was paused for an hour was asked for its snapshot every two seconds, with a line in the log each time.
    #[test]
    fn a_snapshot_that_fails_is_asked_for_less_and_less() {
        let (begin, mut asked, mut tries) = (Instant::now(), None::<Asked>, 0);
        for look in 0..1800 {
            let now = begin + timing::SCHEDULE_LOOK * look;
            if asked.as_ref().is_none_or(|a| a.allows("auto-1", now)) {
                asked = Some(Asked::failed(asked.as_ref(), "web", "auto-1".into(), "paused".into(), now));
                tries += 1;
            }
        }
        assert!((40..70).contains(&tries), "{tries} in an hour");
        let asked = asked.expect("it was asked for");
        assert!(asked.allows("auto-2", begin), "the next slot begins anew");
        assert!(!Asked { name: "auto-2".into(), failure: None }.allows("auto-2", begin + AGAIN * 1000));
    }
}
