//! A witness of progress, in runs in which nodes do nothing worse than die, or stand still for a while: as long as enough
//! members that have everything are up, so that the chain could go on with them (V11), what clients ask is answered soon.
//!
//! Simulated time alone decides. A member that stops begins the time anew for its shards: it has to be noticed first. So does
//! another leader of the control plane, which knows nothing of who was silent before.

use crate::cluster::Cluster;
use crate::timing;
use freebs_chain::ShardStatus;
use freebs_control::{Shard, Volume};
use freebs_types::{Nanos, NodeId, ShardId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// The state at the last look.
#[derive(Default)]
struct Seen {
    up: BTreeSet<NodeId>,
    leader: Option<NodeId>,
    /// Since when a shard may go on, and no member of it has stopped.
    since: BTreeMap<ShardId, Nanos>,
    /// The longest that a client has waited for an answer since then.
    longest: Nanos,
}

/// Looks until faults are over.
pub async fn watch(c: Rc<Cluster>) {
    let mut seen = Seen::default();
    while !c.over.get() && !c.world.is_failed() {
        seen.look(&c);
        tokio::time::sleep(Duration::from_nanos(timing::PROGRESS_LOOK.0)).await;
    }
    c.world.say(|| format!("progress: nobody has waited for longer than {} ms", seen.longest.millis()));
    c.world.count(format!("runs in which the longest wait was of {} s", (seen.longest.millis() + 500) / 1000));
}

/// True if what is left of the active view's members can go on without the others: enough that have everything, and enough to
/// seal the view.
fn may_go_on(volume: &Volume, shard: &Shard, up: &BTreeSet<NodeId>) -> bool {
    let members = shard.view_members();
    let quorum = volume.quorum(members.len());
    let is_whole = |n: &NodeId| !shard.joining.contains(n) && !shard.learning.contains(n);
    let there = members.iter().filter(|n| up.contains(n));
    let whole = there.clone().filter(|n| is_whole(n)).count();
    let is_known = shard.active.0 > 0 && shard.forced.is_none() && shard.unseen.is_empty();
    is_known && whole >= usize::from(volume.min_copies).max(1) && there.count() + quorum > members.len()
}

/// True if enough members hold the active view, one at least that has everything and perhaps others that count early, and no other
/// view is to follow (V16).
fn goes_on(volume: &Volume, shard: &Shard, up: &BTreeSet<NodeId>, of: &[(NodeId, ShardStatus)]) -> bool {
    let holds = |n: &NodeId| up.contains(n) && of.iter().any(|(m, r)| m == n && r.view >= shard.active);
    let there: Vec<&NodeId> = shard.members.iter().filter(|n| holds(n)).collect();
    let is_known = shard.active.0 > 0 && shard.forced.is_none() && shard.unseen.is_empty();
    let is_whole = there.iter().any(|n| !shard.joining.contains(n));
    is_known && is_whole && shard.active_members.is_empty() && there.len() >= volume.quorum(shard.members.len())
}

/// A shard that has not all its copies, or one that does not have everything, or a member that is still to leave, if there is one. Nobody but a leader gives it any;
/// and a device that is full may have no room for them.
#[must_use]
pub fn short(c: &Cluster) -> Option<String> {
    if !c.config.has_leader || c.config.is_tight {
        return None;
    }
    let volumes = c.control.volumes();
    let shards = volumes.iter().flat_map(|v| v.shards.iter().map(move |s| (v, s)));
    let is_whole = |v: &Volume, s: &Shard| {
        s.members.len() == usize::from(v.copies) && s.joining.is_empty() && s.active_members.is_empty()
    };
    let mut short = shards.filter(|(v, s)| !is_whole(v, s) && !crate::clones::is_hopeless(c, v, s));
    let drains = || {
        let steps = c.control.snapshot().drain_steps(&BTreeSet::new());
        steps.first().map(|(shard, step)| format!("shard {shard}: {step:?} is still to be done"))
    };
    short.next().map(|(v, s)| format!("shard {}: {s:?}", v.shard_id(s.index))).or_else(drains)
}

impl Seen {
    fn look(&mut self, c: &Rc<Cluster>) {
        let now = c.world.now();
        let up: BTreeSet<NodeId> = c.nodes.iter().filter(|n| n.runs() && n.worker().is_some()).map(|n| n.id).collect();
        let fallen: BTreeSet<NodeId> = self.up.difference(&up).copied().collect();
        let (leader, leads) = match c.control.seats() {
            Some(seats) => (seats.leader(), seats.leader().is_some_and(|n| up.contains(&n))),
            None => (None, !c.control.is_down()),
        };
        if !leads || leader != self.leader {
            self.since.clear();
        }
        (self.up, self.leader) = (up, leader);
        let (volumes, statuses) = (c.control.volumes(), c.statuses());
        for v in volumes.iter().filter(|_| leads) {
            for s in &v.shards {
                let id = v.shard_id(s.index);
                let mut members = s.members.iter().chain(s.view_members());
                let replicas = statuses.get(&id).map_or(&[][..], |r| r);
                let may = may_go_on(v, s, &self.up) || goes_on(v, s, &self.up, replicas);
                if members.any(|n| fallen.contains(n)) || !may {
                    self.since.remove(&id);
                }
                if may {
                    self.since.entry(id).or_insert(now);
                }
            }
        }
        for g in (0..c.volume_count()).filter_map(|i| c.current(i)).filter(|g| g.is_ready() && !g.is_gone()) {
            let (Some(since), Some(asked)) = (self.since_of(&volumes, g.volume), g.oldest()) else { continue };
            let waited = now.since(since.max(asked));
            self.longest = self.longest.max(waited);
            if waited > timing::PROGRESS_MOST {
                let text = format!("volume {} answers nothing for {} ms", g.volume, waited.millis());
                c.world.violation(format!("{text}, and {:?} are up, which are enough (V11, V16)", self.up));
            }
        }
    }

    /// Since when all shards of a volume may go on.
    fn since_of(&self, volumes: &[Volume], volume: VolumeId) -> Option<Nanos> {
        let v = volumes.iter().find(|v| v.id == volume)?;
        let since = v.shards.iter().map(|s| self.since.get(&v.shard_id(s.index)).copied());
        since.collect::<Option<Vec<Nanos>>>()?.into_iter().max()
    }
}
