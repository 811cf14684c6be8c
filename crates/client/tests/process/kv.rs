//! The example `kv`, killed at random points: both keys of a pair or neither, no answered pair lost, and the count agrees.

use crate::support::{Nodes, program};
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const ROUNDS: u64 = 8;

fn kv(nodes: &Nodes, args: &[&str]) -> Command {
    let mut command = Command::new(program("examples/kv"));
    command.arg(nodes.addresses().join(",")).arg("demo").args(args);
    command
}

fn said(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs the load until it is killed; the last number that it has printed.
fn killed_after(nodes: &Nodes, wait: Duration) -> Option<u64> {
    let mut child = kv(nodes, &["load"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let first = lines.next().expect("it puts a pair").expect("a line");
    std::thread::sleep(wait);
    child.kill().expect("it runs");
    child.wait().expect("our child");
    let last = lines.map_while(Result::ok).filter_map(|l| l.parse().ok()).last();
    last.or(first.parse().ok())
}

#[test]
fn a_store_without_a_log_survives_kills() {
    let nodes = Nodes::up();
    let run = |args: &[&str]| said(&kv(&nodes, args).output().expect("it runs"));
    assert_eq!(kv(&nodes, &["get", "apple"]).output().expect("it runs").status.code(), Some(1), "get begins none");
    run(&["put", "apple", "red", "plum", "blue"]);
    assert_eq!(run(&["get", "plum"]), "blue\n");
    run(&["del", "plum"]);
    assert_eq!(kv(&nodes, &["get", "plum"]).output().expect("it runs").status.code(), Some(1));
    let mut answered = 0;
    for round in 0..ROUNDS {
        let wait = Duration::from_millis(37 * round * (1 + u64::from(std::process::id()) % 7));
        let last = killed_after(&nodes, wait).expect("a number");
        assert!(last >= answered, "it went back from {answered} to {last}");
        answered = last;
        let list = run(&["list"]);
        let value = |key: &str| list.lines().find_map(|l| l.strip_prefix(&format!("{key} "))?.parse::<u64>().ok());
        for n in 0..500 {
            assert_eq!(value(&format!("left-{n}")), value(&format!("right-{n}")), "pair {n} is torn in round {round}");
        }
        assert!(value(&format!("left-{}", last % 500)) >= Some(last), "pair {last} was answered, and is lost");
        let begin = value("begin").expect("it began");
        assert!(begin == last || begin == last + 1, "{last} was answered, and the store is at {begin}");
        assert!(run(&["check"]).ends_with("keys\n"));
    }
    assert!(answered > ROUNDS, "only {answered} pairs were put");
    nodes.cli(&["volume", "resize", "demo", "--size", "128M"]);
    assert!(run(&["get", "apple"]).starts_with("red"), "it is where it was");
    assert!(run(&["check"]).ends_with("keys\n"));
}
