//! `freebs volume attach` and `freebs volume detach`: which process has a volume, before clients come and after they went.

use super::args::{AttachArgs, DetachArgs};
use super::cluster::unexpected;
use super::output::Output;
use super::volume::show;
use crate::admin::Client;
use crate::gateway::asked::{Reply as Answer, Request as Asked, There};
use crate::options::host_name;
use crate::timing;
use freebs_control::api::{EventsOf, GatewayInfo, Reply, Request, VolumeStatus};
use freebs_control::events::{EVENTS_PAGE_MAX, Event, EventKind};
use freebs_types::{Error, ErrorKind, Generation, Result};
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

#[derive(Serialize)]
struct Attached {
    volume: String,
    gateway: String,
    host: String,
    generation: Generation,
    uri: String,
    taken_from: Option<String>,
}

pub async fn attach(client: &Client, args: AttachArgs, output: &Output) -> Result<ExitCode> {
    let AttachArgs { name, force, gateway } = args;
    let volume = show(client, &name).await?;
    let there = one_of(here(client).await?, gateway.as_deref())?;
    let gateway = there.me.name.clone();
    match ask(there, Asked::Attach { volume: volume.id, force }).await {
        Ok(Answer::Attached { generation, uri, taken_from }) => {
            let shown = Attached { volume: name, gateway, host: host_name(), generation, uri, taken_from };
            output.show(&shown, attached);
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => Err(unexpected()),
        Err(e) if e.kind == ErrorKind::Busy => Err(explain(client, &name, e).await),
        Err(e) => Err(e.at(gateway)),
    }
}

fn attached(a: &Attached) -> String {
    let Attached { volume, gateway, host, generation, uri, taken_from } = a;
    let mut text = format!("{volume} is attached by {gateway} on {host} (generation {generation}): {uri}\n");
    if let Some(old) = taken_from {
        text.push_str(&format!("it was taken from {old}, whose clients get errors until they connect anew\n"));
    }
    text
}

#[derive(Serialize)]
struct Detached {
    volume: String,
    /// `None` if nobody had it.
    detached_from: Option<String>,
    generation: Generation,
}

pub async fn detach(client: &Client, args: DetachArgs, output: &Output) -> Result<ExitCode> {
    let DetachArgs { name, force } = args;
    let volume = show(client, &name).await?;
    for there in here(client).await?.0 {
        let gateway = there.me.name.clone();
        match ask(there, Asked::Detach { volume: volume.id, force }).await {
            Ok(Answer::Detached { generation: Some(generation) }) => {
                return Ok(told(Detached { volume: name, detached_from: Some(gateway), generation }, output));
            }
            Ok(Answer::Detached { generation: None }) => {}
            Ok(_) => return Err(unexpected()),
            Err(e) => return Err(e.at(gateway)),
        }
    }
    let request = Request::VolumeDetach { name: name.clone(), force };
    match client.call(&request, timing::ATTACH_CALL_MAX).await {
        Ok(Reply::Detached { from, generation }) => {
            Ok(told(Detached { volume: name, detached_from: from, generation }, output))
        }
        Ok(_) => Err(unexpected()),
        Err(e) if e.kind == ErrorKind::Busy => Err(explain(client, &name, e).await),
        Err(e) => Err(e),
    }
}

fn told(shown: Detached, output: &Output) -> ExitCode {
    output.show(&shown, |d| match &d.detached_from {
        Some(from) => format!("{} is detached from {from}", d.volume),
        None => format!("{} is not attached", d.volume),
    });
    ExitCode::SUCCESS
}

/// Processes of this host that serve NBD for the cluster, and why others could not be asked.
async fn here(client: &Client) -> Result<(Vec<There>, Vec<Error>)> {
    let cluster = client.welcome().cluster;
    let found = tokio::task::spawn_blocking(move || There::all(cluster)).await;
    found.map_err(|e| Error::bug(format!("looking for gateways failed: {e}")))
}

async fn ask(there: There, request: Asked) -> Result<Answer> {
    let asked = tokio::task::spawn_blocking(move || there.ask(&request)).await;
    asked.map_err(|e| Error::bug(format!("asking a gateway failed: {e}")))?
}

/// The one that is meant: the one of that name, or the only one.
fn one_of((mut there, errors): (Vec<There>, Vec<Error>), name: Option<&str>) -> Result<There> {
    let names: Vec<String> = there.iter().map(|t| t.me.name.clone()).collect();
    if let Some(name) = name {
        there.retain(|t| t.me.name == name);
    }
    match (there.len(), name) {
        (1, _) => Ok(there.remove(0)),
        (0, Some(name)) if !names.is_empty() => Err(Error::not_found(format!(
            "nothing on this host that serves NBD for this cluster is called {name}; there is {}",
            names.join(", ")
        ))),
        (0, _) => {
            let why: String = errors.iter().map(|e| format!(" (one could not be asked: {e})")).collect();
            Err(Error::not_found(format!(
                "nothing on this host serves NBD for this cluster{why}; start `freebs gateway` here, or run this command \
                 on the host of the clients"
            )))
        }
        (_, None) => Err(Error::invalid(format!(
            "several processes on this host serve NBD for this cluster; say with --gateway which one is meant: {}",
            names.join(", ")
        ))),
        (_, Some(name)) => Err(Error::invalid(format!(
            "several processes on this host are called {name}; start them with another --name each"
        ))),
    }
}

/// The refusal in other words, with all that is known of the one who has the volume.
async fn explain(client: &Client, name: &str, e: Error) -> Error {
    let Ok(volume) = show(client, name).await else { return e };
    let Some(holder) = &volume.attached else { return e };
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
    Error::busy(format!(
        "volume '{name}' is attached by {holder}{at}{since}; disconnect its clients there, or ask again with --force if \
         that host is gone"
    ))
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
