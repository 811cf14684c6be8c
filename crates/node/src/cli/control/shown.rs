//! What `freebs control rebuild` says, as tables and as JSON.

use super::super::output::table;
use super::gather::Gathered;
use crate::cluster_file::ClusterFile;
use freebs_control::rebuild::{Back, Left, Rebuilt};
use freebs_control::rules::format_size;
use freebs_types::NodeId;
use serde::Serialize;

#[derive(Serialize)]
pub struct Rebuild {
    cluster: String,
    /// Where the state is now; nothing was written without it.
    written_to: Option<String>,
    revision: u64,
    nodes: Vec<Node>,
    volumes: Vec<Volume>,
    left_out: Vec<LeftOut>,
    /// Numbers that may be wrong.
    lone_numbers: Vec<LoneNumber>,
}

#[derive(Serialize)]
struct Volume {
    #[serde(flatten)]
    back: Back,
    /// Names of nodes that may have had later data, which are given up.
    given_up: Vec<String>,
}

#[derive(Serialize)]
struct LeftOut {
    #[serde(flatten)]
    left: Left,
    /// Names of nodes that may have later data, and were not looked at or have lost something.
    missing: Vec<String>,
}

/// A number that one node alone names, far above all others.
#[derive(Serialize)]
struct LoneNumber {
    node: String,
    /// Volume and index, as in `1.0`.
    shard: String,
    number: u64,
    /// The numbers of all volumes begin above it.
    followed: bool,
}

#[derive(Serialize)]
struct Node {
    name: String,
    /// Its logs were looked at.
    read: bool,
    /// And nothing of them is known to be lost.
    whole: bool,
    shards: usize,
}

impl Rebuild {
    pub fn new(file: &ClusterFile, gathered: &Gathered, done: &Rebuilt, written: bool) -> Self {
        let nodes = file.nodes.iter().map(|n| {
            let survey = gathered.surveys.iter().find(|s| s.node == n.id);
            Node {
                name: n.name.clone(),
                read: survey.is_some(),
                whole: survey.is_some_and(|s| s.whole && s.shards.iter().all(|s| s.whole)),
                shards: survey.map_or(0, |s| s.shards.len()),
            }
        });
        let name =
            |id: NodeId| file.nodes.iter().find(|n| n.id == id).map_or_else(|| id.to_string(), |n| n.name.clone());
        let named = |of: &[NodeId]| of.iter().map(|n| name(*n)).collect();
        let back = done.back.iter().map(|b| Volume { given_up: named(&b.given_up), back: b.clone() });
        let left = done.left.iter().map(|l| LeftOut { missing: named(&l.missing), left: l.clone() });
        let lone = done.lone.iter().map(|l| {
            let node = name(l.node);
            LoneNumber { node, shard: l.shard.to_string(), number: l.number, followed: l.followed }
        });
        Self {
            cluster: file.cluster.to_string(),
            written_to: written.then(|| file.first().name.clone()),
            revision: done.state.revision(),
            nodes: nodes.collect(),
            volumes: back.collect(),
            left_out: left.collect(),
            lone_numbers: lone.collect(),
        }
    }
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.into()
}

pub fn text(r: &Rebuild) -> String {
    let rows = r.nodes.iter().map(|n| vec![n.name.clone(), yes(n.read), yes(n.whole), n.shards.to_string()]);
    let mut text = table(&["NODE", "READ", "WHOLE", "SHARDS"], &["SHARDS"], rows.collect());
    text.push('\n');
    let back = r.volumes.iter().map(|Volume { back: v, .. }| {
        let name = v.was.as_ref().map_or_else(|| v.name.clone(), |was| format!("{} (was {was})", v.name));
        vec![name, v.id.to_string(), format_size(v.size), v.shards.to_string(), v.joining.to_string()]
    });
    let header = ["VOLUME", "ID", "SIZE", "SHARDS", "COPIES THAT LEARN"];
    if r.volumes.is_empty() {
        text.push_str("no volume\n");
    } else {
        text.push_str(&table(&header, &header[1..], back.collect()));
    }
    if !r.left_out.is_empty() {
        text.push('\n');
    }
    for LeftOut { left: l, missing } in &r.left_out {
        let name = l.name.as_ref().map_or_else(|| format!("volume {}", l.id), |n| format!("{n} (volume {})", l.id));
        text.push_str(&format!("left out: {name}: {}\n", l.why));
        if !missing.is_empty() {
            let accept: Vec<String> = missing.iter().map(|n| format!("--accept-loss {n}")).collect();
            text.push_str(&format!(
                "  Missing: {}. If what they have is lost for good, {} goes on without it.\n",
                missing.join(", "),
                accept.join(" ")
            ));
        }
    }
    for v in r.volumes.iter().filter(|v| !v.given_up.is_empty()) {
        text.push_str(&format!(
            "\n{}: what only {} may have is lost: later views, and all that was answered in them.\n",
            v.back.name,
            v.given_up.join(" and ")
        ));
    }
    for l in &r.lone_numbers {
        let (node, number) = (&l.node, l.number);
        let what = match l.followed {
            true => format!("{node} alone names the number {number}, and the numbers of all volumes begin above it"),
            false => {
                format!("{node} names the number {number}, which no rebuild gave, and only this shard begins above it")
            }
        };
        let advice = format!("Its log may be damaged; with --without {node} it does not count");
        text.push_str(&format!("\nshard {}: {what}. {advice}\n", l.shard));
    }
    text.push('\n');
    text.push_str(&ending(r));
    text
}

fn ending(r: &Rebuild) -> String {
    let Some(founder) = &r.written_to else {
        return "Nothing was written. With --write this becomes the control state of the cluster.".into();
    };
    let mut text = format!("Written to {founder}. Start {founder}, then the other nodes.");
    let unread: Vec<&str> = r.nodes.iter().filter(|n| !n.read).map(|n| n.name.as_str()).collect();
    if !unread.is_empty() {
        text.push_str(&format!(
            "\nBefore {} is started again: delete control.store and control.note in its data directory.",
            unread.join(" or ")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::VolumeId;

    #[test]
    fn whose_number_is_far_above_all_others_is_said() {
        let lone =
            |node: &str, followed| LoneNumber { node: node.into(), shard: "1.0".into(), number: 1 << 60, followed };
        let r = Rebuild {
            cluster: "c".into(),
            written_to: None,
            revision: 7,
            nodes: Vec::new(),
            volumes: Vec::new(),
            left_out: Vec::new(),
            lone_numbers: vec![lone("a", true), lone("b", false)],
        };
        let shown = text(&r);
        let first = "shard 1.0: a alone names the number 1152921504606846976, and the numbers of all volumes begin above it. Its \
                     log may be damaged; with --without a it does not count\n";
        assert!(shown.contains(first), "{shown}");
        assert!(shown.contains("shard 1.0: b names the number 1152921504606846976, which no rebuild gave"), "{shown}");
        assert!(!text(&Rebuild { lone_numbers: Vec::new(), ..r }).contains("number"));
    }

    #[test]
    fn whose_logs_are_missing_is_said_and_what_was_given_up() {
        let (id, why) = (VolumeId(1), "there may be a later view".into());
        let left = Left { id, name: Some("a".into()), why, missing: vec![] };
        let back = Back { id, name: "b".into(), was: None, size: 1, shards: 1, joining: 0, given_up: vec![] };
        let r = Rebuild {
            cluster: "c".into(),
            written_to: None,
            revision: 7,
            nodes: Vec::new(),
            volumes: vec![Volume { back, given_up: vec!["x".into()] }],
            left_out: vec![LeftOut { left, missing: vec!["y".into(), "z".into()] }],
            lone_numbers: Vec::new(),
        };
        let shown = text(&r);
        let way =
            "Missing: y, z. If what they have is lost for good, --accept-loss y --accept-loss z goes on without it.";
        assert!(shown.contains(way) && shown.contains("b: what only x may have is lost"), "{shown}");
        let json = serde_json::to_value(&r).expect("plain values");
        assert_eq!(
            (&json["left_out"][0]["missing"][1], &json["volumes"][0]["given_up"][0]),
            (&"z".into(), &"x".into())
        );
        assert_eq!((&json["left_out"][0]["name"], &json["volumes"][0]["name"]), (&"a".into(), &"b".into()));
    }
}
