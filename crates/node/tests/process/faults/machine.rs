//! How late the machine itself is: somebody who only syncs 4 KiB now and then has to wait, too, if the disk or the
//! processors are busy with other things. A stall that is not much longer is not the volume's.

use crate::support::{Raised, full};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// In the long form, whose figures count, and in the short one.
const EVERY: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(30)];

fn every() -> Duration {
    if full() { EVERY[0] } else { EVERY[1] }
}

/// Syncs until it is told to stop; from when on, and how long each sync took, with what it was late for it.
pub fn watch(file: &Path, stop: &AtomicBool) -> Vec<(Instant, Duration)> {
    let file = File::create(file).expect("a file");
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        std::thread::sleep(every());
        file.write_all_at(&[7; 4096], 0).and_then(|()| file.sync_data()).expect("a file on a sound disk");
        all.push((begun, begun.elapsed().saturating_sub(every())));
    }
    all
}

/// Runs something beside the watch; its result, and the longest wait that the machine itself made from a moment on.
pub fn beside<T>(file: &Path, run: impl FnOnce() -> (T, Instant)) -> (T, Duration) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let watch = s.spawn(|| watch(file, &stop));
        let raised = Raised(&stop);
        let (result, from) = run();
        drop(raised);
        let all = watch.join().expect("the watch");
        let late = all.iter().filter(|(begun, took)| *begun + every() + *took > from).map(|(_, took)| *took);
        (result, late.max().unwrap_or_default())
    })
}
