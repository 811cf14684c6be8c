//! Nodes are asked: one that answers, how a volume is, and who has it.

use crate::admin::Client;
use crate::timing;
use freebs_control::api::{EventsOf, GatewayInfo, MemberState, Reply, Request, ShardReport, VolumeStatus};
use freebs_control::events::{EVENTS_PAGE_MAX, Event, EventKind};
use freebs_types::{Error, ErrorKind, Result};
use std::time::{Duration, UNIX_EPOCH};

/// A connection to the first of the `--cluster` addresses that answers.
pub async fn connect(cluster: &str) -> Result<Client> {
    let addresses: Vec<String> = cluster.split(',').map(str::to_owned).collect();
    Client::connect_any(&addresses).await.map_err(|e| Error {
        kind: e.kind,
        text: format!(
            "{e}. Is the cluster running? `freebs up` starts one here; --cluster HOST:PORT names another node of it"
        )
        .into(),
    })
}

pub async fn show(client: &Client, name: &str) -> Result<VolumeStatus> {
    match client.call(&Request::VolumeShow { name: name.into() }, timing::CALL_MAX).await? {
        Reply::Volume { volume, .. } => Ok(volume),
        _ => Err(unexpected()),
    }
}

/// The volume as soon as it is as wanted, or as it is when the wait is over.
pub async fn wait_until(
    client: &Client,
    mut volume: VolumeStatus,
    is_done: impl Fn(&VolumeStatus) -> bool,
) -> VolumeStatus {
    let ask = async {
        loop {
            if let Ok(v) = show(client, &volume.name).await {
                volume = v;
            }
            if is_done(&volume) {
                return;
            }
            tokio::time::sleep(timing::USABLE_LOOK).await;
        }
    };
    let _ = tokio::time::timeout(timing::USABLE_MAX, ask).await;
    volume
}

/// Returns once that node, which was started just now, answers there.
pub async fn answers(name: &str, address: &str) -> Result<()> {
    let ask = async {
        loop {
            match Client::connect(address).await {
                Ok(_) => return,
                Err(_) => tokio::time::sleep(timing::START_LOOK).await,
            }
        }
    };
    tokio::time::timeout(timing::START_MAX, ask).await.map_err(|_| Error {
        kind: ErrorKind::Retry,
        text: format!("{name} was started and does not answer at {address} yet; its log says why").into(),
    })
}

/// True once a node orders in that shard, and the others have followed; false if it does not in time.
pub async fn orders_at(client: &Client, volume: VolumeStatus, node: &str, shard: u32) -> bool {
    let volume = wait_until(client, volume, |v| leads(v, node, Some(shard)) && is_settled(v)).await;
    leads(&volume, node, Some(shard))
}

/// True if the node is head of the shard, or of all shards that it is a member of, and orders there.
pub fn leads(v: &VolumeStatus, node: &str, shard: Option<u32>) -> bool {
    let is_asked_for = |s: &&ShardReport| match shard {
        Some(index) => s.id.ends_with(&format!(".{index}")),
        None => s.members.iter().any(|m| m.node == node),
    };
    let orders =
        |s: &ShardReport| s.head == node && s.members.iter().any(|m| m.node == node && m.state == MemberState::Active);
    v.shards.iter().filter(is_asked_for).all(orders)
}

/// True if all members have followed, but for those that do not answer: they may be away for long.
pub fn is_settled(v: &VolumeStatus) -> bool {
    let has_followed = |s: MemberState| matches!(s, MemberState::Active | MemberState::Down | MemberState::Failed);
    v.shards.iter().flat_map(|s| &s.members).all(|m| has_followed(m.state))
}

pub fn unexpected() -> Error {
    Error::invalid("the node answered something else than was asked; is it of another version?")
}

/// A sentence that says who has a volume, where and since when, as far as that is known; `None` if nobody is known to.
pub async fn held_by(client: &Client, name: &str) -> Option<String> {
    let volume = show(client, name).await.ok()?;
    let holder = volume.attached.as_ref()?;
    let gateways = match client.call(&Request::Status, timing::CALL_MAX).await {
        Ok(Reply::Status(status)) => Some(status.gateways),
        _ => None,
    };
    let of = EventsOf { limit: EVENTS_PAGE_MAX, volume: Some(name.to_owned()), ..EventsOf::default() };
    let events = match client.call(&Request::Events(of), timing::CALL_MAX).await {
        Ok(Reply::Events { events, .. }) => events,
        _ => Vec::new(),
    };
    let (at, since) = (place_of(holder, gateways.as_deref()), since(&volume, &events));
    Some(format!("volume '{name}' is attached by {holder}{at}{since}"))
}

/// The hosts of a holder of this name, as far as nodes hear from it. `None`: nobody could be asked.
fn place_of(holder: &str, gateways: Option<&[GatewayInfo]>) -> String {
    let Some(gateways) = gateways else { return String::new() };
    let of = gateways.iter().filter(|g| g.name == holder);
    let places: Vec<String> = of
        .map(|g| if g.host.is_empty() { format!("at {}", g.nbd) } else { format!("on {}, at {}", g.host, g.nbd) })
        .collect();
    match places.is_empty() {
        true => " (no node hears from it now)".into(),
        false => format!(" ({})", places.join("; or ")),
    }
}

/// The time of a volume's present attachment, if an event still says it.
fn since(volume: &VolumeStatus, events: &[Event]) -> String {
    let generation = format!("(generation {})", volume.generation);
    let is_it = |e: &&Event| {
        matches!(e.told.kind, EventKind::Attached | EventKind::TakenOver) && e.told.text.contains(&generation)
    };
    let time = |e: &Event| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(e.time_ms));
    events.iter().rev().find(is_it).map_or_else(String::new, |e| format!(" since {}", time(e)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::events::Told;
    use freebs_types::Generation;

    fn gateway(name: &str, host: &str) -> GatewayInfo {
        GatewayInfo { name: name.into(), pid: 1, nbd: "127.0.0.1:10809".into(), host: host.into() }
    }

    #[test]
    fn a_refusal_says_where_the_holder_is_heard_from() {
        let all = [gateway("a", "one"), gateway("b", "two"), gateway("b", "")];
        assert_eq!(place_of("a", Some(&all)), " (on one, at 127.0.0.1:10809)");
        assert_eq!(place_of("b", Some(&all)), " (on two, at 127.0.0.1:10809; or at 127.0.0.1:10809)");
        assert_eq!(place_of("c", Some(&all)), " (no node hears from it now)");
        assert_eq!(place_of("a", None), "");
    }

    #[test]
    fn a_refusal_says_since_when_if_an_event_of_this_attachment_is_left() {
        let event = |time_ms, kind, text: &str| Event { time_ms, node: "n".into(), told: Told::new(kind, text) };
        let events = [
            event(1_000, EventKind::Attached, "by a (generation 3)"),
            event(2_000, EventKind::TakenOver, "by b (generation 4), from a, forced"),
            event(3_000, EventKind::Detached, "by b"),
            event(4_000, EventKind::Attached, "by b (generation 41)"),
        ];
        let volume = |generation| {
            let mut v: VolumeStatus = serde_json::from_value(serde_json::json!({
                "id": 1, "name": "v", "size": 1, "copies": 1, "ack": "majority", "min_copies": 1, "stripe": 4096,
                "state": "ready", "attached": "b", "shards": [],
            }))
            .unwrap();
            v.generation = Generation(generation);
            v
        };
        assert_eq!(since(&volume(4), &events), " since 1970-01-01T00:00:02Z");
        assert_eq!(since(&volume(3), &events), " since 1970-01-01T00:00:01Z");
        assert_eq!(since(&volume(5), &events), "");
    }
}
