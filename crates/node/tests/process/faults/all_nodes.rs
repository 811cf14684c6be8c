//! All nodes die at once, under load.

use super::figures::Figures;
use super::rig::{Moments, NODES, Rig, five};
use crate::support::load::{all_up, pids};
use crate::support::{alone, rounds};
use std::time::Instant;

/// The supervisor starts them again; nobody else does anything.
#[test]
fn five_nodes_killed_at_once_again_and_again_come_back_with_everything() {
    let _turn = alone();
    let c = five(&[]);
    let mut rig = Rig::on(&c, "kills of all five nodes");
    let mut figures = Figures::new("all nodes killed at once");
    for _ in 0..rounds(2, 50) {
        figures.add(rig.round(|| {
            let before = pids(&c);
            assert_eq!(before.len(), NODES);
            let hit = Instant::now();
            c.kill(&before);
            all_up(&c, NODES, &before);
            Moments { hit, back: Instant::now() }
        }));
    }
    rig.end(&[&figures]);
}
