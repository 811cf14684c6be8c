//! What a device knows of its shards' views: from such surveys of all nodes the control state is made again (rule V9).

use super::opened::open;
use crate::Finding;
use crate::api::report::{DeviceInfo, Watch};
use freebs_format::{FrameHead, ViewBody};
use freebs_io::Device;
use freebs_types::{Generation, Result, Sequence, ShardId, ViewNumber};

/// What is known of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSurvey {
    /// The shard.
    pub shard: ShardId,
    /// No view below this is served any more (rule V2).
    pub promised: ViewNumber,
    /// Views whose frames are in the log, and what these say, in order: the newest one, those that a cut may still
    /// take, and one before these.
    pub views: Vec<(ViewNumber, Sequence, ViewBody)>,
    /// Highest attachment generation that is in the log.
    pub generation: Generation,
    /// Its last frame; 0 for an empty log.
    pub last: Sequence,
    /// Known to be committed up to here.
    pub committed: Sequence,
    /// It did not begin in the middle, no frame of it is known to be lost, none may be missing at its end (rule E7), and none was given up by
    /// force for a branch of which it does not know whether it is active (V10).
    pub whole: bool,
    /// Damage may have taken a promise that nothing later in the log tells of (rule V2). That is no frame.
    pub promise_lost: bool,
}

/// What is known of all shards on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Whose device it is.
    pub device: DeviceInfo,
    /// All shards that are not deleted, in order.
    pub shards: Vec<ShardSurvey>,
    /// What the next start of the node would report as damage.
    pub recovery: Vec<Finding>,
}

/// Looks at the shards of a device as a start of its node would find them. Writes nothing. An error means that the
/// device can't be understood at all.
pub async fn survey<D: Device>(device: &D, watch: &mut dyn Watch) -> Result<Survey> {
    watch.progress("survey", 0, 1);
    let mut opened = open(device).await?;
    let (core, report) = opened.recover(device, true).await?;
    watch.progress("survey", 1, 1);
    let shards = core.shards.values().map(|s| {
        let state = s.state();
        let read = |(at, frame): &(Sequence, FrameHead)| {
            ViewBody::decode(frame.body()).map(|body| (frame.view(), *at, body)).map_err(|e| e.at(s.id))
        };
        let views: Vec<_> = s.views.iter().map(read).collect::<Result<_>>()?;
        let is_over = |v: &&(ViewNumber, Sequence, ViewBody)| v.0 > state.given_up && v.1 <= state.committed;
        let has_given_up = state.given_up.0 > 0 && !views.iter().any(|v| is_over(&v));
        let of_view = views.last().map(|v| v.2.generation).unwrap_or_default();
        Ok(ShardSurvey {
            shard: state.shard,
            promised: state.promised,
            views,
            generation: state.attach.generation.max(of_view),
            last: state.last.sequence,
            committed: state.committed,
            whole: state.holes.is_empty() && state.absent.is_none() && !state.suspect_tail && !has_given_up,
            promise_lost: state.promise_lost,
        })
    });
    let shards = shards.collect::<Result<_>>()?;
    Ok(Survey { shards, device: opened.info, recovery: report.damage })
}
