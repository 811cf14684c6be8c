//! All nodes die at once, under load.

use super::figures::Figures;
use super::rig::{Moments, NODES, Rig, five};
use crate::support::load::{all_up, pids};
use crate::support::{Weight, rounds, turn};
use std::time::{Duration, Instant};

/// A process that ends sooner after its start is not started again at once: `freebs up` waits then.
const LONG_LIFE: Duration = Duration::from_millis(2100);

/// The supervisor starts them again; nobody else does anything.
#[test]
fn five_nodes_killed_at_once_again_and_again_come_back_with_everything() {
    let _turn = turn(Weight::Loaded);
    let mut c = five(&[]);
    let mut rig = Rig::on(&c, "kills of all five nodes");
    let mut all = [
        Figures::new("all nodes killed at once"),
        Figures::new("all nodes killed at once, moments after they were started again"),
    ];
    let mut up_since = Instant::now();
    for round in 0..rounds(5, 50) {
        let figures = &mut all[round % 2];
        figures.add(rig.round(|_| {
            if round % 2 == 0 {
                std::thread::sleep(LONG_LIFE.saturating_sub(up_since.elapsed()));
            }
            let before = pids(&c);
            assert_eq!(before.len(), NODES);
            let hit = Instant::now();
            c.kill(&before);
            all_up(&c, NODES, &before);
            up_since = Instant::now();
            Moments { hit, back: up_since }
        }));
    }
    let mut known = rig.end(&[&all[0], &all[1]]);
    c.stop();
    c.start();
    known.check(&c);
}
