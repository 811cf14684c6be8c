//! The page on a cluster of three machines, run as it stands there, on machines of their own; and what goes by between them.

use crate::pages::{Line, kind, lines};
use crate::support::machines::Machines;
use crate::support::tools::{have, wait_for};
use crate::support::{Weight, turn};
use serde_json::Value;

const PAGE: &str = include_str!("../../../../../docs/cluster.md");
/// Parts of the page, the machines on which their lines are run, and how many nodes are there and vote then.
const PARTS: [(&str, usize, usize, usize); 4] = [
    ("## The first machine", 0, 1, 1),
    ("## The second machine", 1, 2, 1),
    ("## The third machine", 2, 3, 3),
    ("## A volume", 1, 3, 3),
];

fn part(title: &str) -> Vec<Line> {
    let begin = PAGE.lines().position(|l| l == title).unwrap_or_else(|| panic!("no part '{title}'"));
    let end = begin + 1 + PAGE.lines().skip(begin + 1).take_while(|l| !l.starts_with("## ")).count();
    lines(PAGE).into_iter().filter(|l| (begin + 1..=end).contains(&l.number)).collect()
}

fn run(m: &mut Machines, machine: usize, line: &Line) {
    let here = line.command.replace("/srv/freebs", &m.dir(machine).join("data").display().to_string());
    let printed = m.run(machine, &here);
    if let Some(shown) = &line.shown {
        assert_eq!(kind(&printed), kind(shown), "line {}: {here}", line.number);
    }
}

fn wait_up(m: &mut Machines, nodes: usize, votes: usize) {
    wait_for("nodes", || {
        let (_, text) = m.try_run(0, "freebs status --json");
        let status: Value = serde_json::from_str(&text).ok()?;
        let all = status["nodes"].as_array()?;
        let up = all.iter().filter(|n| n["state"] == "up").count();
        ((up, all.iter().filter(|n| n["votes"] == true).count()) == (nodes, votes)).then_some(())
    });
}

fn follow_the_page(m: &mut Machines) {
    for (title, machine, nodes, votes) in PARTS {
        let lines = part(title);
        assert!(lines.len() >= 3, "{title}: {lines:?}");
        lines.iter().for_each(|l| run(m, machine, l));
        wait_up(m, nodes, votes);
        if machine == 0 {
            m.copy("token-b", 0, 1);
            m.copy("token-c", 0, 2);
        }
    }
}

#[test]
fn the_page_goes_from_three_machines_to_a_cluster() {
    let _turn = turn(Weight::Loaded);
    if !have(&["nbdcopy", "tcpdump"]) {
        return;
    }
    let Some(mut m) = Machines::new(3) else { return };
    let kept = m.dir(0).join("tap.pcap");
    let tap = m.tap(&kept);
    follow_the_page(&mut m);
    tap.end();
    // All that was written came to all three, and no piece of it went by as it is.
    let (went_by, disk) =
        (std::fs::read(&kept).expect("a file"), std::fs::read(m.dir(1).join("disk.img")).expect("a file"));
    assert!(went_by.len() > 2 * disk.len(), "{} bytes went by", went_by.len());
    let pieces: std::collections::HashSet<&[u8]> = disk.chunks_exact(4096).map(|block| &block[..64]).collect();
    assert!(!went_by.windows(64).any(|w| pieces.contains(w)), "a block went over the wire as it is");
    assert!(went_by.windows(3).any(|w| w == [0x16, 3, 1]), "no handshake of TLS was seen");
}

/// A machine that is lost, and comes back, while somebody writes on another one.
#[test]
fn a_machine_without_its_cable_is_gone_on_without() {
    let _turn = turn(Weight::Loaded);
    if !have(&["nbdcopy"]) {
        return;
    }
    let Some(mut m) = Machines::new(3) else { return };
    follow_the_page(&mut m);
    // The first machine is the one with the authority, and perhaps the head.
    m.plug(0, false);
    m.run(1, "head -c 8M /dev/urandom > disk.img && nbdcopy disk.img nbd://127.0.0.1:10809/data");
    let (status, _) = m.try_run(0, "timeout 5 freebs volume create alone --size 64M");
    assert_ne!(status, "0", "it decides nothing alone");
    m.plug(0, true);
    wait_up(&mut m, 3, 3);
    m.run(1, "nbdcopy nbd://127.0.0.1:10809/data copy.img && cmp -n 8M disk.img copy.img");
    wait_for("all members active", || {
        let (_, text) = m.try_run(0, "freebs volume show data --json");
        let v: Value = serde_json::from_str(&text).ok()?;
        let members = v["shards"][0]["members"].as_array()?.clone();
        (members.len() == 3 && members.iter().all(|n| n["state"] == "active")).then_some(())
    });
    m.run(2, "freebs volume verify data");
}
