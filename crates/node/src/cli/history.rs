//! `freebs volume history`: how far the past reaches back that a volume keeps, and what marks it.

use super::asked::show;
use super::output::{Output, table};
use super::snapshot;
use crate::admin::Client;
use crate::events::now_ms;
use freebs_control::Stage;
use freebs_control::api::{ShardReport, VolumeStatus};
use freebs_control::rules::{format_date, format_span};
use freebs_types::{Error, Past, Result, Version};
use serde::Serialize;
use std::process::ExitCode;

/// Why a shard keeps less than it should.
pub const SHORT: &str = "keeps less of its past than it should, for want of memory: `--map-cache` gives it more";

#[derive(Debug, Serialize)]
struct History {
    volume: String,
    retain_ms: u64,
    shards: Vec<OfShard>,
    snapshots: Vec<Mark>,
}

#[derive(Debug, PartialEq, Serialize)]
struct OfShard {
    id: String,
    /// The first version that is kept, and when it was the last one; `None` if its head has not said so.
    first: Option<Version>,
    from_ms: Option<u64>,
    last: Version,
    /// Versions in a second, since then.
    per_second: Option<f64>,
    /// It keeps less than it should.
    is_short: bool,
}

#[derive(Debug, PartialEq, Serialize)]
struct Mark {
    name: String,
    /// The place that it is of, and when it was made.
    past: Option<Past>,
    created_ms: u64,
}

impl OfShard {
    fn new(s: &ShardReport, now_ms: u64) -> Self {
        let last = s.members.iter().find(|m| m.node == s.head).map_or(Version(0), |m| m.version);
        let rate = |first: Version, from_ms: u64| {
            let seconds = now_ms.saturating_sub(from_ms) as f64 / 1000.0;
            (seconds > 0.0).then(|| last.0.saturating_sub(first.0) as f64 / seconds)
        };
        Self {
            id: s.id.clone(),
            first: s.past.map(|p| p.first),
            from_ms: s.past.and_then(|p| p.from_ms),
            last,
            per_second: s.past.and_then(|p| rate(p.first, p.from_ms?)),
            is_short: s.past.is_some_and(|p| p.is_short),
        }
    }

    fn row(&self) -> Vec<String> {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        vec![
            self.id.clone(),
            or_none(self.from_ms.map(format_date)),
            or_none(self.first.map(|v| v.to_string())),
            self.last.to_string(),
            or_none(self.per_second.map(|n| format!("{n:.1}"))),
        ]
    }
}

pub async fn run(client: &Client, name: String, output: &Output) -> Result<ExitCode> {
    let volume = show(client, &name).await?;
    if volume.retain_ms == 0 {
        return Err(Error::invalid(format!(
            "volume '{name}' keeps nothing of its past but snapshots; `freebs volume retain {name} 24h` makes it keep a day \
             from now on"
        )));
    }
    let all = snapshot::all(client, Some(&name)).await?.into_iter().filter(|s| s.stage == Stage::Complete);
    let marks = all.map(|s| Mark { name: s.name, past: s.past, created_ms: s.created_ms }).collect();
    output.show(&history(&volume, marks, now_ms()), text);
    Ok(ExitCode::SUCCESS)
}

fn history(v: &VolumeStatus, snapshots: Vec<Mark>, now_ms: u64) -> History {
    let shards = v.shards.iter().map(|s| OfShard::new(s, now_ms)).collect();
    History { volume: v.name.clone(), retain_ms: v.retain_ms, shards, snapshots }
}

fn text(h: &History) -> String {
    let all: Option<Vec<u64>> = h.shards.iter().map(|s| s.from_ms).collect();
    let from = all.and_then(|times| times.into_iter().max());
    let from = from.map_or_else(
        || "not all its heads have said how far that is".into(),
        |ms| format!("back to {}", format_date(ms)),
    );
    let mut text = format!("{} keeps the last {} of its past: {from}\n", h.volume, format_span(h.retain_ms));
    let header = ["SHARD", "FROM", "FIRST VERSION", "LAST VERSION", "PER SECOND"];
    text.push_str(&table(&header, &header[2..], h.shards.iter().map(OfShard::row).collect()));
    for s in h.shards.iter().filter(|s| s.is_short) {
        text.push_str(&format!("shard {}: {SHORT}\n", s.id));
    }
    let of = |m: &Mark| m.past.map_or_else(|| format_date(m.created_ms), snapshot::past);
    let rows: Vec<Vec<String>> = h.snapshots.iter().map(|m| vec![m.name.clone(), of(m)]).collect();
    if !rows.is_empty() {
        text.push_str(&table(&["SNAPSHOT", "OF"], &[], rows));
    }
    text
}
