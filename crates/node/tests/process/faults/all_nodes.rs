//! All nodes die at once, under load.

use super::figures::Figures;
use super::rig::{Moments, NODES, Rig, five};
use crate::support::load::{all_up, pids};
use crate::support::{alone, rounds};
use std::time::{Duration, Instant};

/// A process that ends sooner after its start is not started again at once.
const LONG_LIFE: Duration = Duration::from_millis(2100);

/// The supervisor starts them again; nobody else does anything.
#[test]
fn five_nodes_killed_at_once_again_and_again_come_back_with_everything() {
    let _turn = alone();
    let c = five(&[]);
    let mut rig = Rig::on(&c, "kills of all five nodes");
    let mut all = [
        Figures::new("all nodes killed at once"),
        Figures::new("all nodes killed at once, moments after they were started again"),
    ];
    for round in 0..rounds(2, 50) {
        let figures = &mut all[round % 2];
        figures.add(rig.round(|| {
            if round % 2 == 0 {
                std::thread::sleep(LONG_LIFE);
            }
            let before = pids(&c);
            assert_eq!(before.len(), NODES);
            let hit = Instant::now();
            c.kill(&before);
            all_up(&c, NODES, &before);
            Moments { hit, back: Instant::now() }
        }));
    }
    rig.end(&[&all[0], &all[1]]);
}
