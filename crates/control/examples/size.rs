//! Work and memory of the control plane by the size of the cluster: `cargo run --release -p freebs-control --example size`.
//!
//! Each size has four times as many volumes and nodes as the one before, so the work that is linear in the volumes is four times
//! as much, and anything quadratic sixteen times.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "it measures")]

use freebs_control::{Command, CreateVolume, State};
use freebs_types::{ClusterId, NodeId, ShardId, StartNumber};
use std::collections::BTreeSet;
use std::time::Instant;

const SIZES: [(u64, u64); 3] = [(16, 625), (64, 2_500), (256, 10_000)];

fn register(node: u64, start: u64) -> Command {
    let (name, address) = (format!("node{node}"), format!("10.0.{}.{}:7400", node / 256, node % 256));
    Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(start) }
}

/// Bytes that this process has in memory.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn cluster(nodes: u64, volumes: u64) -> State {
    let mut s = State::new(ClusterId([7; 16]));
    for n in 1..=nodes {
        s.apply(register(n, 1)).expect("a node");
    }
    for v in 1..=volumes {
        let new =
            CreateVolume { name: format!("volume{v}"), size: 1 << 30, copies: Some(3), ..CreateVolume::default() };
        s.apply(Command::CreateVolume(new)).expect("a volume");
        open(&mut s, ShardId::new(v, 0));
    }
    s
}

/// The head opens the view that follows, and everybody has everything.
fn open(s: &mut State, shard: ShardId) {
    let sh = s.shard(shard).expect("a shard").clone();
    let node = sh.head().expect("a head");
    let start = s.node(node).expect("a node").start;
    s.apply(Command::ProposeView { shard, active: sh.active, node, start }).expect("proposed");
    let view = s.shard(shard).expect("a shard").highest;
    let generation = s.volume(shard.volume).expect("a volume").generation;
    s.apply(Command::ActivateView { shard, view, generation }).expect("active");
}

/// Does it, and notes the milliseconds that it took.
fn took<T>(rows: &mut Vec<(&'static str, f64)>, what: &'static str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    rows.push((what, begun.elapsed().as_secs_f64() * 1e3));
    done
}

fn measure(nodes: u64, volumes: u64) -> (Vec<(&'static str, f64)>, u64, usize) {
    let (before, mut rows) = (resident(), Vec::new());
    let mut s = took(&mut rows, "made", || cluster(nodes, volumes));
    let memory = resident().saturating_sub(before);
    let bytes = took(&mut rows, "encoded", || s.encode()).len();
    let failed = BTreeSet::from([NodeId(2)]);
    took(&mut rows, "look, one has failed", || (s.heads_without(&failed).len(), s.leavers(&failed).len()));
    let fail = Command::FailOver { nodes: vec![(NodeId(2), StartNumber(1))] };
    took(&mut rows, "its heads elsewhere", || s.apply(fail).expect("applied"));
    let moved: Vec<ShardId> = s.unopened().iter().map(|(shard, ..)| *shard).collect();
    took(&mut rows, "their views open", || moved.iter().for_each(|shard| open(&mut s, *shard)));
    took(&mut rows, "look, it is gone", || s.replacements(&failed, &failed).len());
    let gone = vec![(NodeId(2), StartNumber(1))];
    let replace = Command::ReplaceMembers { gone: gone.clone(), failed: Vec::new() };
    took(&mut rows, "16 members replaced", || s.apply(replace).expect("applied"));
    took(&mut rows, "a node joins", || s.apply(register(nodes + 1, 1)).expect("applied"));
    let since = s.revision() - 1;
    took(&mut rows, "a watcher hears of it", || s.changes_since(since).nodes.len());
    took(&mut rows, "look, nothing to do", || s.extensions(&BTreeSet::new(), &BTreeSet::new()).len());
    (rows, memory, bytes)
}

fn main() {
    let all: Vec<_> = SIZES.iter().map(|(nodes, volumes)| measure(*nodes, *volumes)).collect();
    let title = |(n, v): &(u64, u64)| format!("{n} nodes, {v} volumes");
    println!("{:24}{}", "", SIZES.iter().map(|s| format!("{:>26}", title(s))).collect::<String>());
    for (i, (what, _)) in all[0].0.iter().enumerate() {
        println!("{what:24}{}", all.iter().map(|a| format!("{:>23.2} ms", a.0[i].1)).collect::<String>());
    }
    println!("{:24}{}", "memory", all.iter().map(|a| format!("{:>22} KiB", a.1 >> 10)).collect::<String>());
    println!("{:24}{}", "encoded", all.iter().map(|a| format!("{:>22} KiB", a.2 >> 10)).collect::<String>());
}
