//! A key-value store on a volume, killed at random points: both keys of a pair or neither, no answered pair lost, and the count
//! agrees. The store is any program that has the commands of the example `kv`.

use crate::support::Nodes;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const ROUNDS: u64 = 8;

/// The program with these words of its command line; it has the volume `demo`.
pub type Store<'a> = &'a dyn Fn(&[&str]) -> Command;

/// The output of a program that has succeeded.
pub fn said(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Runs the load until it is killed; the last number that it has printed.
fn killed_after(kv: Store<'_>, wait: Duration) -> Option<u64> {
    let mut child = kv(&["load"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let first = lines.next().expect("it puts a pair").expect("a line");
    std::thread::sleep(wait);
    child.kill().expect("it runs");
    child.wait().expect("our child");
    let last = lines.map_while(Result::ok).filter_map(|l| l.parse().ok()).last();
    last.or(first.parse().ok())
}

/// The whole story, on a cluster whose volume `demo` is empty.
pub fn survives_kills(nodes: &Nodes, kv: Store<'_>) {
    let run = |args: &[&str]| said(&kv(args).output().expect("it runs"));
    let fails = |args: &[&str]| kv(args).output().expect("it runs").status.code() == Some(1);
    assert!(fails(&["get", "apple"]), "get begins none");
    run(&["put", "apple", "red", "plum", "blue"]);
    assert_eq!(run(&["get", "plum"]), "blue\n");
    run(&["del", "plum"]);
    assert!(fails(&["get", "plum"]));
    let mut answered = 0;
    for round in 0..ROUNDS {
        let wait = Duration::from_millis(37 * round * (1 + u64::from(std::process::id()) % 7));
        let last = killed_after(kv, wait).expect("a number");
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
