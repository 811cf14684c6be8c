//! `freebs events`: what happened, and why.

use super::args::EventsArgs;
use super::asked::{connect, unexpected};
use super::output::{Output, table};
use crate::events::now_ms;
use crate::timing;
use freebs_control::api::{EventsOf, Reply, Request};
use freebs_control::events::{EVENTS_PAGE_MAX, Event};
use freebs_types::Result;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

pub async fn run(args: EventsArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let mut of = EventsOf {
        limit: args.limit,
        since_ms: args.since.map_or(0, |d| now_ms().saturating_sub(d.as_millis() as u64)),
        volume: args.volume,
        node: args.node,
        here: false,
    };
    let mut client = connect(cluster).await?;
    let (mut shown, missing) = ask(&client, &of).await?;
    if !missing.is_empty() {
        let text = format!("{} did not answer: what only they noticed is missing", missing.join(", "));
        output.note(&text);
    }
    show(&shown, output);
    if !args.follow {
        return Ok(ExitCode::SUCCESS);
    }
    of.limit = EVENTS_PAGE_MAX;
    loop {
        tokio::time::sleep(timing::EVENTS_LOOK).await;
        let newest = shown.iter().map(|e| e.time_ms).max().unwrap_or(of.since_ms);
        of.since_ms = of.since_ms.max(newest.saturating_sub(timing::EVENTS_LATE_MS));
        shown.retain(|e| e.time_ms >= of.since_ms);
        let Ok((found, _)) = ask(&client, &of).await else {
            // The node that was asked may be the one that something happens to.
            if let Ok(other) = connect(cluster).await {
                client = other;
            }
            continue;
        };
        let new: Vec<Event> = found.into_iter().filter(|e| !shown.iter().any(|s| is_same(s, e))).collect();
        show(&new, output);
        shown.extend(new);
    }
}

/// Another node's word of the same decision is nothing new.
fn is_same(a: &Event, b: &Event) -> bool {
    match (a.told.revision, b.told.revision) {
        (Some(_), Some(_)) => a.told == b.told,
        _ => a == b,
    }
}

async fn ask(client: &crate::admin::Client, of: &EventsOf) -> Result<(Vec<Event>, Vec<String>)> {
    match client.call(&Request::Events(of.clone()), timing::CALL_MAX).await? {
        Reply::Events { events, missing } => Ok((events, missing)),
        _ => Err(unexpected()),
    }
}

/// A table for people, an object on a line for each event for programs.
fn show(events: &[Event], output: &Output) {
    if output.json {
        let lines = events.iter().map(|e| serde_json::to_string(e).expect("events have only what JSON can say") + "\n");
        return output.raw(lines.collect::<String>().as_bytes());
    }
    let rows = events.iter().map(|e| {
        let time = humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(e.time_ms)).to_string();
        let of = match (&e.told.volume, &e.told.shard, &e.told.about) {
            (Some(v), Some(s), _) => format!("{v} {s}"),
            (Some(v), None, _) => v.clone(),
            (None, Some(s), _) => s.clone(),
            (None, None, about) => about.clone().unwrap_or_default(),
        };
        vec![time, e.node.clone(), e.told.kind.name().into(), of, e.told.text.clone()]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        output.raw(table(&["TIME", "TOLD BY", "EVENT", "OF", "WHAT"], &[], rows).as_bytes());
    }
}
