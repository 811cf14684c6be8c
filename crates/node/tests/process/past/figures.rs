//! How fast the past is read, beside the present.

use super::*;
use crate::support::tools::{have, run, say};
use crate::support::{Weight, shared, turn};
use std::time::{Duration, Instant};

#[test]
fn the_past_beside_the_present() {
    if !have(&["nbdcopy"]) {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let c = shared::cluster();
    let volume = c.volume("64M", &[]);
    let mut client = c.client(&volume);
    fill(&mut client, 0, &noise(1, 64 << 20));
    snapshot(&c, &volume, "s");
    // Half of it becomes history.
    for at in (0..64 * MIB).step_by(2 << 20) {
        client.write(at, &noise(at + 7, MIB as usize));
    }
    let (now, then) = (c.place.uri(&volume), c.place.uri(&format!("{volume}@s")));
    let mut best = [Duration::MAX; 2];
    for _ in 0..3 {
        for (uri, best) in [&now, &then].into_iter().zip(&mut best) {
            let begun = Instant::now();
            run("nbdcopy", [uri, "null:"]);
            *best = (*best).min(begun.elapsed());
        }
    }
    let rate = |t: Duration| 64.0 / t.as_secs_f64();
    say(&format!(
        "measured: nbdcopy of 64 MiB: the present {:.0} MiB/s, a snapshot {:.0} MiB/s",
        rate(best[0]),
        rate(best[1])
    ));
}
