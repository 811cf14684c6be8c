//! `freebs status`, and `freebs node start|stop` on a local cluster.

use super::args::{DEFAULT_DATA, SwitchArgs};
use super::asked::{answers, connect, unexpected};
use super::output::{Output, table};
use super::volume::volume_table;
use crate::options::DEFAULT_CLUSTER;
use crate::timing;
use crate::up::socket::{self, Reply as UpReply, Request as UpRequest};
use freebs_control::api::{NodeStatus, Reply, Request, Status};
use freebs_control::rules::format_size;
use freebs_control::{FILLING_PERCENT, FULL_PERCENT};
use freebs_types::Result;
use serde::Serialize;
use std::path::Path;
use std::process::ExitCode;

pub async fn status(cluster: &str, output: &Output) -> Result<ExitCode> {
    let reply = connect(cluster).await?.call(&Request::Status, timing::CALL_MAX).await?;
    let Reply::Status(status) = reply else { return Err(unexpected()) };
    output.show(&status, people);
    Ok(ExitCode::SUCCESS)
}

fn people(s: &Status) -> String {
    let dash = || "-".to_string();
    let nodes = s.nodes.iter().map(|n| {
        let pid = n.pid.map_or_else(dash, |p| p.to_string());
        let control = match (n.pid.is_some(), n.leads, n.votes) {
            (false, ..) => "-",
            (_, true, _) => "leads",
            (_, _, true) => "votes",
            _ => "learns",
        };
        let state = match (n.drains, n.shards) {
            _ if n.retires => format!("{}, gives its vote up", n.state),
            (false, _) => n.state.clone(),
            (true, 0) => format!("{}, drained", n.state),
            (true, left) => format!("{}, draining ({left} left)", n.state),
        };
        vec![n.name.clone(), state, n.address.clone(), pid, n.workers.to_string(), control.into()]
    });
    let header = ["NODE", "STATE", "ADDRESS", "PID", "WORKERS", "CONTROL"];
    let mut out = table(&header, &["PID", "WORKERS"], nodes.collect());
    out.push('\n');
    out.push_str(&room(&s.nodes));
    out.push('\n');
    if s.gateways.is_empty() {
        out.push_str("no gateway\n");
    } else {
        let rows = s.gateways.iter().map(|g| vec![g.name.clone(), g.pid.to_string(), g.host.clone(), g.nbd.clone()]);
        out.push_str(&table(&["GATEWAY", "PID", "HOST", "NBD"], &["PID"], rows.collect()));
    }
    out.push('\n');
    out.push_str(&volume_table(&s.volumes));
    out
}

/// The room of all nodes, with a word on those that fill up.
fn room(nodes: &[NodeStatus]) -> String {
    let row = |n: &NodeStatus| {
        let zone = if n.zone.is_empty() { "-".to_owned() } else { n.zone.clone() };
        let (room, used) = match n.room_bytes {
            0 => ("-".to_owned(), "-".to_owned()),
            bytes => (format_size(bytes), format!("{} %", n.used_percent)),
        };
        let (copies, heads) = (n.copies.to_string(), n.heads.to_string());
        vec![n.name.clone(), zone, n.weight.to_string(), room, used, format_size(n.placed_bytes), copies, heads]
    };
    let header = ["NODE", "ZONE", "WEIGHT", "ROOM", "USED", "PROMISED", "COPIES", "HEADS"];
    let mut out = table(&header, &header[2..], nodes.iter().map(row).collect());
    for n in nodes.iter().filter(|n| n.used_percent >= FILLING_PERCENT) {
        let (name, used) = (&n.name, n.used_percent);
        out.push_str(&if used >= FULL_PERCENT {
            format!("{name} is full ({used} %): its copies go elsewhere if there is room; add a node, trim or delete\n")
        } else {
            format!("{name} fills up ({used} %): new copies go elsewhere; add a node, trim or delete\n")
        });
    }
    let all = |of: fn(&NodeStatus) -> u64| nodes.iter().map(of).fold(0, u64::saturating_add);
    let (room, promised) = (all(|n| n.room_bytes), all(|n| n.placed_bytes));
    if room > 0 && promised > room {
        let tenths = u128::from(promised) * 10 / u128::from(room);
        out.push_str(&format!(
            "volumes are promised {} of {} ({}.{} times): writes are refused once live data take all\n",
            format_size(promised),
            format_size(room),
            tenths / 10,
            tenths % 10
        ));
    }
    out
}

#[derive(Serialize)]
struct Switched {
    node: String,
    state: &'static str,
    pid: Option<u32>,
}

/// Has the supervisor start or stop one of its processes. `cluster` is what was said of where it is, if anything was.
pub fn node_switch(args: &SwitchArgs, cluster: Option<&str>, start: bool, output: &Output) -> Result<ExitCode> {
    let name = args.name.clone();
    let request = if start { UpRequest::Start { node: name.clone() } } else { UpRequest::Stop { node: name.clone() } };
    let usual = (Path::new(DEFAULT_DATA), DEFAULT_CLUSTER);
    let UpReply { pid, address } = socket::ask(args.data.as_deref(), cluster, usual, &request)?;
    if let (true, Some(address)) = (start, address) {
        super::block_on(answers(&name, &address))?;
    }
    let state = if start { "up" } else { "down" };
    let shown = Switched { node: name, state, pid };
    output.show(&shown, |s| match s.pid {
        Some(pid) => format!("{} is up (process {pid})", s.node),
        None => format!("{} is down; `freebs node start {}` starts it again", s.node, s.node),
    });
    Ok(ExitCode::SUCCESS)
}
