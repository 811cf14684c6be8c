//! The leader of the control plane stands still while volumes are created. What was answered is there, once, as all
//! nodes say. (Leaders that are killed: `faults`.)

use crate::support::cluster::{Cluster, Setup};
use crate::support::plane::{agreed, create, ms, settled};
use crate::support::tools::say;
use crate::support::{Weight, full, turn};
use std::collections::BTreeSet;

/// Nobody hears that its connections end, and nobody starts it again: the others have to notice.
#[test]
fn a_leader_that_stands_still_is_replaced() {
    let _turn = turn(Weight::Light);
    let rounds = if full() { 20 } else { 4 };
    let c = Cluster::up(Setup { volume: Some("demo:64M"), ..Setup::default() });
    let mut times = vec![];
    let mut wanted: BTreeSet<String> = ["demo".into()].into();
    for round in 0..rounds {
        let nodes = settled(&c, 3);
        c.pause(nodes[0].1);
        let name = format!("v{round}");
        // It is done while the leader stands still, or never.
        times.push(create(&c, Some(&nodes[1].2), &name, "1"));
        wanted.insert(name);
        c.resume(nodes[0].1);
        assert_eq!(agreed(&c, &nodes), wanted, "round {round}");
    }
    let told = ms(&mut times);
    say(&format!("measured: a volume created while the leader stands still: {told} (aimed at: a median of 1500 ms)"));
}
