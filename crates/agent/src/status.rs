//! The words of a node on its logs to those who make a cluster whole again.

use freebs_chain::ShardStatus;
use freebs_control::rebuild::{NodeSurvey, ShardSurvey, ViewSurvey};
use freebs_control::recover::LogStatus;
use freebs_lsvd::tool;
use freebs_types::{ClusterId, NodeId, StartNumber};

/// A replica's log, for whoever is to go on without lost members (V10).
#[must_use]
pub fn log_status(s: &ShardStatus) -> LogStatus {
    LogStatus {
        active: s.log.active,
        has_view: s.log.has_view,
        last: s.log.last.sequence,
        last_view: s.log.last.view,
        version: s.log.version,
        committed: s.log.committed,
        lost: s.log.lost,
        has_given_up: s.log.has_given_up,
        is_suspect: s.log.is_suspect,
        is_stopped: s.log.is_stopped,
        lacks_secret: s.log.lacks_secret,
    }
}

/// A node of which no device was looked at yet.
#[must_use]
pub fn survey_of(cluster: ClusterId, node: NodeId) -> NodeSurvey {
    NodeSurvey { cluster, node, start: StartNumber(0), whole: true, shards: vec![] }
}

/// Adds what was found on one of its devices, for a control state that is made again (V9). One whose identity had to be
/// guessed, or that has damage, makes it less than whole.
pub fn add_device(survey: &mut NodeSurvey, found: tool::Survey) {
    let guessed = found.device.guessed;
    let shard = |s: tool::ShardSurvey| ShardSurvey {
        shard: s.shard,
        promised: s.promised,
        generation: s.generation,
        last: s.last,
        committed: s.committed,
        whole: s.whole && !guessed,
        promise_lost: s.promise_lost,
        views: s.views.iter().map(|(view, at, body)| ViewSurvey::of(*view, *at, body)).collect(),
    };
    survey.whole &= !guessed && found.recovery.is_empty();
    survey.start = survey.start.max(found.device.start);
    survey.shards.extend(found.shards.into_iter().map(shard));
}
