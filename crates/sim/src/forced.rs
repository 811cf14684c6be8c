//! So many members of a shard are lost for good that it can't go on by itself, and an operator says so (V10): by the code
//! that a real one asks (`freebs_control::recover`). Later the lost ones turn up all the same, with all that they had; in
//! some runs not before all shards that were to go on by force have done so.
//!
//! The oracle is told when a branch becomes active, and not before: then older writes may be lost, those that are there when
//! the volume is attached again have to stay, and nothing that is answered from then on may be lost. If a view is sealed as
//! usual after all nothing may. The branch goes on from no less than the operator was told.

use crate::cluster::Cluster;
use crate::device::Crash;
use crate::node::Node;
use freebs_agent::log_status;
use freebs_control::recover::{Logs, Need, look};
use freebs_control::{Command, RecoverShard, State, Volume};
use freebs_format::ViewBody;
use freebs_format::wire::FrameName;
use freebs_types::{Generation, Nanos, NodeId, SECTOR, Sequence, ShardId, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The operator looks again whether anything is left to be done.
const LOOK_AGAIN: Duration = Duration::from_millis(300);
/// Shards that need more nodes than there are wait for these to come up.
const LOOKS_MAX: usize = 20;

/// A members of a shard, or all but one, die, and stay away until others have their places.
pub fn lose_members(c: &Rc<Cluster>) {
    let volumes = c.control.volumes();
    let are_open = volumes.iter().all(|v| v.shards.iter().all(|s| s.active.0 > 0));
    let is_damaged = |n: &NodeId| c.node(n.0).is_some_and(|n| n.damaged.get());
    let is_away = |n: &Rc<Node>| n.is_held() || n.is_old.get() || (n.damaged.get() && !c.config.has_loss);
    if c.control.is_down() || !are_open || c.nodes.iter().any(is_away) {
        return;
    }
    let (lost, crash, wait, back) = {
        let mut luck = c.luck.borrow_mut();
        let Some(volume) = luck.pick(&volumes).filter(|v| v.copies > 1) else { return };
        let Some(shard) = luck.pick(&volume.shards) else { return };
        let (kept, mut left): (Vec<NodeId>, Vec<NodeId>) = shard.view_members().iter().partition(|n| is_damaged(n));
        let mut lost = BTreeSet::new();
        while lost.len() < volume.quorum(shard.view_members().len()) && left.len() + kept.len() > 1 && !left.is_empty()
        {
            let at = luck.below(left.len() as u64) as usize;
            lost.insert(left.remove(at));
        }
        let crash = if luck.chance(0.5) { Crash::Kill } else { Crash::Power };
        (lost, crash, luck.spread(20_000_000, 1_500_000_000), luck.spread(1_000_000, 2_000_000_000))
    };
    c.world.say(|| format!("fault: nodes {lost:?} are lost for good"));
    for node in lost.iter().filter_map(|n| c.node(n.0)) {
        node.kill(crash);
        node.hold(true);
    }
    let cluster = c.clone();
    let is_patient = c.luck.borrow_mut().chance(0.5);
    c.world.after(Nanos(wait), move || {
        tokio::task::spawn_local(async move {
            operate(&cluster).await;
            while is_patient && is_forced(&cluster) {
                tokio::time::sleep(LOOK_AGAIN).await;
                operate(&cluster).await;
            }
            let again = cluster.clone();
            cluster.world.after(Nanos(back), move || come_back(&again, &lost));
        });
    });
}

/// A shard is to go on by force, and has not yet.
fn is_forced(c: &Cluster) -> bool {
    c.control.volumes().iter().any(|v| v.shards.iter().any(|s| s.forced.is_some()))
}

/// They were not lost after all. If a shard has not gone on by then, the operator looks again: they may have more.
fn come_back(c: &Rc<Cluster>, lost: &BTreeSet<NodeId>) {
    for node in lost.iter().filter_map(|n| c.node(n.0)) {
        node.hold(false);
        node.start();
    }
    let cluster = c.clone();
    tokio::task::spawn_local(async move {
        while is_forced(&cluster) {
            tokio::time::sleep(LOOK_AGAIN).await;
            operate(&cluster).await;
        }
    });
}

/// The word for a shard that the operator gave last.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// The first generation of the volume behind it.
    generation: Generation,
    /// Where the best log ended, with its last frame; this was kept, he was told.
    least: Sequence,
    last: Option<FrameName>,
    gives_up: bool,
}

/// Words that were given.
pub type Words = BTreeMap<ShardId, Word>;

/// A branch has become active.
pub fn on_branch(c: &Weak<Cluster>, shard: ShardId, view: ViewNumber) {
    let Some(c) = c.upgrade() else { return };
    c.world.count("branches that became active");
    let Some(word) = c.words.borrow().get(&shard).copied() else {
        c.world.violation(format!("view {view} of shard {shard} goes on by force, and nobody said so"));
        return;
    };
    let Some(volume) = c.control.volume(shard.volume) else { return };
    tell(&c, &volume, shard.index, word.generation);
    let head = volume.shard(shard.index).and_then(|s| s.head()).and_then(|n| c.node(n.0));
    let frame = head.and_then(|n| n.worker()?.engine().view_frame(shard, Sequence(u64::MAX)));
    let Some(body) = frame.filter(|f| f.view() == view).and_then(|f| ViewBody::decode(f.body()).ok()) else { return };
    let seal = (body.seal_sequence, body.seal_hid);
    let is_another = !word.gives_up && word.last.is_some_and(|l| l.sequence == seal.0 && l.hid != seal.1);
    c.world.count("branches that were looked at");
    if seal.0 < word.least || is_another {
        c.world.violation(format!(
            "view {view} of shard {shard} goes on from frame {}, and not as was said: {word:?}",
            seal.0
        ));
    }
}

/// `freebs volume recover --accept-loss` for all volumes, until nothing is left to be done.
async fn operate(c: &Rc<Cluster>) {
    for _ in 0..LOOKS_MAX {
        let logs = logs(c);
        let mut left = false;
        for volume in c.control.volumes() {
            let found = c.control.with_state(|s| look(s, &volume, &logs, &BTreeSet::new()));
            for (shard, command) in found {
                left |= shard.need != Need::Nothing;
                if let Some(Command::RecoverShard(how)) = command.filter(|_| !c.control.is_down()) {
                    let revision = || c.control.with_state(State::revision);
                    let before = revision();
                    let done = c.control.apply(Command::RecoverShard(how.clone()));
                    c.world.say(|| format!("control: {how:?} -> {done:?}"));
                    c.world.trace(0x53, u64::from(done.is_ok()), u64::from(how.shard.index));
                    // The same word once more changes nothing: the view that is pending may become active yet.
                    if done.is_ok() && revision() != before {
                        say(c, &volume, &how);
                        may_begin_anew(c, &volume, &how);
                    }
                }
            }
        }
        if !left {
            return;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Whoever does not go on from the frame of the branch may have to begin anew, survivors too.
fn may_begin_anew(c: &Cluster, volume: &Volume, how: &RecoverShard) {
    let highest = volume.shard(how.shard.index).map(|s| s.highest).unwrap_or_default();
    let others = c.nodes.iter().map(|n| n.id).filter(|n| how.by_force && how.chain.first() != Some(n));
    let mut witness = c.net.witness.borrow_mut();
    others.for_each(|n| witness.lose(n, how.shard, highest));
}

/// The word is given, and remembered until a branch is active.
fn say(c: &Cluster, volume: &Volume, how: &RecoverShard) {
    if !how.by_force {
        c.world.count("shards whose lost members were replaced");
        return;
    }
    c.world.count("shards that were to go on by force");
    let generation = c.control.volume(volume.id).map(|v| v.generation).unwrap_or_default();
    let status =
        how.chain.first().and_then(|n| c.node(n.0)?.worker()?.status().into_iter().find(|s| s.shard == how.shard));
    let last = status.map(|s| s.log.last).filter(|l| l.sequence == how.least);
    let word = Word { generation, least: how.least, last, gives_up: how.gives_up > 0 };
    c.words.borrow_mut().insert(how.shard, word);
}

/// The oracle hears of a branch.
fn tell(c: &Cluster, volume: &Volume, index: u32, generation: Generation) {
    c.world.count("shards that went on by force");
    let (sectors, shards) = (volume.stripe / SECTOR as u64, volume.shards.len() as u64);
    c.oracle.forced(volume.id, generation, move |sector| shards == 1 || sector / sectors % shards == u64::from(index));
}

/// The logs of the nodes that run, as these tell of them.
fn logs(c: &Cluster) -> Logs {
    let of = |node: &Rc<Node>| {
        let statuses = node.worker()?.status();
        Some((node.id, statuses.iter().map(|s| (s.shard, log_status(s))).collect()))
    };
    c.nodes.iter().filter(|n| n.runs()).filter_map(of).collect()
}
