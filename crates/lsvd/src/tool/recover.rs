//! Frames that a log has lost for good, named; and taken for lost, if that is wanted in so many words.
//!
//! Invariant: without `accept` nothing is written. With it the log is opened as a start of its node would, and gets a mark
//! for each shard that misses something.

use super::opened::open;
use super::{Losses, Watch};
use crate::engine::loss::lost_of;
use crate::{Engine, Expect, Lost};
use freebs_io::Device;
use freebs_types::{Error, Result};

/// Says what is lost on a device, or may be; with `accept` it is taken for lost, so that the rest can be used. The caller
/// has the device for itself. `Corrupt` if something is to be accepted and both copies of the superblock are lost.
pub async fn recover<D: Device + Clone>(device: &D, accept: bool, watch: &mut dyn Watch) -> Result<Losses> {
    watch.progress("recover", 0, 1);
    let mut opened = open(device).await?;
    let (core, report) = opened.recover(device, true).await?;
    watch.progress("recover", 1, 1);
    let lost: Vec<Lost> = core.shards.values().filter_map(lost_of).collect();
    drop(core);
    let accepted = accept && !lost.is_empty();
    if accepted {
        if opened.info.guessed {
            return Err(Error::corrupt("both copies of the superblock are lost, so nothing is written here"));
        }
        let info = &opened.info;
        let expect = Expect { cluster: info.cluster, node: info.node, worker: info.worker, workers: info.workers };
        let (engine, _) = Engine::open(device.clone(), &expect).await?;
        engine.accept_loss().await?;
    }
    Ok(Losses { device: opened.info, lost, accepted, recovery: report.damage })
}
