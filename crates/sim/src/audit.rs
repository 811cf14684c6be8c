//! The audit of a shard's members at the end of a run: nothing is broken, and all have one history (`freebs verify`).

use freebs_io::Device;
use freebs_lsvd::Engine;
use freebs_lsvd::audit::{Auditor, Cause, Report};
use freebs_types::{Hash32, NodeId, Sequence, ShardId};
use std::collections::BTreeMap;

/// Bytes of one step.
const STEP_BYTES: u64 = 1 << 20;

/// Audits one member's log. The error says what is broken. `was_damaged`: of the disk something was lost, and it may
/// be that not all of it has been put back; but what is there is of the chain in any case.
pub async fn check<D: Device>(engine: &Engine<D>, shard: ShardId, was_damaged: bool) -> Result<Report, String> {
    let mut auditor = Auditor::new(engine.clone(), shard).map_err(|e| e.to_string())?;
    let report = loop {
        if let Some(report) = auditor.step(STEP_BYTES).await.map_err(|e| e.to_string())? {
            break report;
        }
    };
    let is_excused = |cause| was_damaged && matches!(cause, Cause::Altered | Cause::Removed);
    match report.breaks.iter().find(|b| !is_excused(b.cause)) {
        Some(b) => Err(format!("{b:?} of {} breaks; ranges: {:?}", report.break_count, report.ranges)),
        None => Ok(report),
    }
}

/// Compares members: frames that both know to be committed are the same.
pub fn compare(reports: &[(NodeId, Report)]) -> Result<(), String> {
    let mut seen: BTreeMap<Sequence, (NodeId, Hash32)> = BTreeMap::new();
    for (node, r) in reports {
        for (s, hid) in r.samples.iter().filter(|(s, _)| *s <= r.committed) {
            let (other, first) = *seen.entry(*s).or_insert((*node, *hid));
            if first != *hid {
                return Err(format!("nodes {other} and {node} have different frames {s}"));
            }
        }
    }
    Ok(())
}
