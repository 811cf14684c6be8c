//! Crashes of a log under a story: a device whose calls take a few turns, and what is found when the power is back.

use crate::common::Rng;
use freebs_io::faults::{CrashDevice, Survives};

const SECTOR: usize = 512;
/// Turns that a call takes at most: some are under way whenever a story stops.
const TURNS: u64 = 3;

/// An empty device that can grow to `limit` bytes.
pub fn crash_device(limit: u64, seed: u64) -> CrashDevice {
    let device = CrashDevice::new(SECTOR, limit);
    device.pace_widely(seed, TURNS);
    device
}

/// The device as it is found after a power cut, at the pace of before.
pub fn power_cut(device: &CrashDevice, rng: &mut Rng) -> CrashDevice {
    let found = device.cut().image(Survives::Shredded(rng.next()));
    found.pace_widely(rng.next(), TURNS);
    found
}
