//! What is lost beyond nodes: all copies of the control state, and disks that come back as they once were.

use crate::cluster::Cluster;
use crate::device::{Content, Crash};
use crate::node::Node;
use crate::raft::SeatImage;
use freebs_agent::{add_device, survey_of};
use freebs_control::rebuild::{NodeName, NodeSurvey, Rebuilt, rebuild_with};
use freebs_control::{State, Volume};
use freebs_lsvd::tool;
use freebs_types::{Nanos, StartNumber, ViewNumber};
use std::rc::Rc;

/// Revisions go on so far above those of the lost state.
const REVISIONS: u64 = 1_000_000;

/// All nodes are down, every copy of the control state is lost, and it is made again from what their logs know (V9).
/// Now and then one node is left out; if that is too little, it is looked at, too.
pub fn lose_control(c: &Rc<Cluster>) {
    let opened = |v: &Volume| v.shards.iter().all(|s| s.active.0 > 0);
    if c.control.is_down()
        || c.nodes.iter().any(|n| n.is_held() || n.is_old.get() || n.damaged.get())
        || !c.control.volumes().iter().all(opened)
    {
        return;
    }
    let (crash, out) = {
        let mut luck = c.luck.borrow_mut();
        let crash = if luck.chance(0.5) { Crash::Kill } else { Crash::Power };
        (crash, luck.chance(0.4).then(|| luck.below(c.config.nodes)))
    };
    c.control.set_lost(true);
    for node in &c.nodes {
        node.kill(crash);
        node.hold(true);
        node.disks().iter().for_each(|d| d.stall(Nanos(0)));
    }
    let cluster = c.clone();
    tokio::task::spawn_local(async move {
        let without = out.map(|n| n as usize);
        if let Some(state) = made_again(&cluster, without).await {
            forget_branches(&cluster, &state);
            if let Some(seats) = cluster.control.seats() {
                seats.found_again(state.clone());
            }
            cluster.control.replace(state);
        }
        cluster.control.set_lost(false);
        for node in &cluster.nodes {
            node.hold(false);
            let (again, wait) = (node.clone(), cluster.luck.borrow_mut().spread(1_000_000, 500_000_000));
            cluster.world.after(Nanos(wait), move || again.start());
        }
        // Once more while views are being opened, some of which may be active by then.
        let mut luck = cluster.luck.borrow_mut();
        let again = luck.chance(0.4).then(|| Nanos(luck.spread(10_000_000, 1_500_000_000)));
        drop(luck);
        if let Some(wait) = again {
            let weak = Rc::downgrade(&cluster);
            cluster.world.after(wait, move || {
                if let Some(c) = weak.upgrade().filter(|c| !c.over.get()) {
                    c.world.count("control states lost twice in a row");
                    lose_control(&c);
                }
            });
        }
    });
}

/// Nobody knows any more up to where logs from before a branch are the same, so all of them begin anew (V10).
fn forget_branches(c: &Cluster, state: &State) {
    let mut witness = c.net.witness.borrow_mut();
    for volume in state.volumes() {
        for (shard, branch) in volume.shards.iter().filter_map(|s| Some((volume.shard_id(s.index), s.branch?))) {
            let before = ViewNumber(branch.view.0 - 1);
            c.nodes.iter().for_each(|n| witness.lose(n.id, shard, before));
        }
    }
}

async fn made_again(c: &Rc<Cluster>, without: Option<usize>) -> Option<State> {
    let mut surveys = Vec::new();
    for (i, node) in c.nodes.iter().enumerate() {
        match tool::survey(&node.disk.open(), &mut ()).await {
            Ok(found) if Some(i) != without => {
                let mut survey = survey_of(found.device.cluster, node.id);
                add_device(&mut survey, found);
                surveys.push(survey);
            }
            Ok(_) => {}
            Err(e) => c.world.violation(format!("node {} can't be looked at: {e}", node.id)),
        }
    }
    let all_seen = surveys.len() == c.nodes.len() && surveys.iter().all(|s| s.whole);
    let done = match rebuild(c, &surveys) {
        Ok(done) => done,
        Err(e) => {
            c.world.violation(format!("the control state can't be made again: {e} (V9)"));
            return None;
        }
    };
    c.world.say(|| format!("control: made again without {without:?}: {done:#?}"));
    let is_known = |v: &Volume| done.state.volume(v.id).is_some() || done.left.iter().any(|l| l.id == v.id);
    if done.left.is_empty() && (all_seen || c.control.volumes().iter().all(is_known)) {
        c.world.count(format!("control states made again{}", if all_seen { "" } else { ", with a node left out" }));
        compare(c, &done);
        return Some(done.state);
    }
    if all_seen {
        c.world.violation(format!("volumes are left out although all is there: {:?} (V9)", done.left));
        return None;
    }
    c.world.count("control states that needed a node that was left out");
    match without {
        Some(_) => Box::pin(made_again(c, None)).await,
        None => None,
    }
}

fn rebuild(c: &Cluster, surveys: &[NodeSurvey]) -> freebs_types::Result<Rebuilt> {
    let (cluster, revision, names) = c.control.with_state(|s| {
        let name = |n: &std::sync::Arc<freebs_control::Node>| NodeName {
            node: n.id,
            name: n.name.clone(),
            address: n.address.clone(),
            workers: n.workers,
        };
        (s.cluster(), s.revision() + REVISIONS, s.nodes().map(name).collect::<Vec<_>>())
    });
    rebuild_with(cluster, &names, surveys, revision, c.control.mutant())
}

/// What was lost is known here: nothing may have gone back.
fn compare(c: &Cluster, done: &Rebuilt) {
    for old in c.control.volumes() {
        let Some(new) = done.state.volume(old.id) else {
            c.world.violation(format!("volume {} is not there any more (V9)", old.id));
            continue;
        };
        let shape = |v: &Volume| (v.name.clone(), v.size, v.stripe, v.copies, v.min_copies, v.ack, v.shards.len());
        if shape(new) != shape(&old) || new.generation < old.generation {
            c.world.violation(format!("a volume came back as another one (V9): {new:?}, it was {old:?}"));
        }
        for (was, is) in old.shards.iter().zip(&new.shards) {
            // A view that an earlier rebuild went on from without being sure may be gone back behind.
            let active = c.control.activated(old.shard_id(is.index)).max(was.known());
            if is.active < active {
                let text = format!("shard {}.{}: view {active} was active", old.id, is.index);
                c.world.violation(format!("{text}, and view {} was made again (V9)", is.active));
            }
            if is.known.is_some() {
                c.world.count("views gone on from that may not have been active");
            }
            let witness = c.net.witness.borrow();
            let promised = c.nodes.iter().map(|n| witness.promised(n.id, old.shard_id(is.index))).max();
            if promised.is_some_and(|p| p > is.highest) {
                let text = format!("shard {}.{}: view {promised:?} was promised", old.id, is.index);
                c.world.violation(format!("{text}, and numbers go on behind {} (V9)", is.highest));
            }
        }
    }
}

/// A node's disk as it is now is kept, and the node is started anew. Later the old disk is put in, or one with nothing on
/// it. The node has to be refused (V8); then it gets its own disk back.
pub fn old_image(c: &Rc<Cluster>) {
    let picked = c.luck.borrow_mut().pick(&c.nodes).cloned();
    let Some(node) = picked.filter(|n| n.runs() && n.worker().is_some() && !n.damaged.get() && !n.is_old.get()) else {
        return;
    };
    let (again, later, old) = {
        let mut luck = c.luck.borrow_mut();
        (luck.spread(1_000_000, 300_000_000), luck.spread(50_000_000, 1_500_000_000), luck.chance(0.7))
    };
    let seat = old.then(|| c.control.seats().and_then(|s| s.image(node.id))).flatten();
    let (image, seen) = (old.then(|| (node.disk.content(), seat)), start_of(c, &node));
    node.kill(Crash::Kill);
    let (cluster, one) = (c.clone(), node.clone());
    c.world.after(Nanos(again), move || one.start());
    c.world.after(Nanos(again + later), move || {
        // One that was not started since can't be told from the present one.
        if !cluster.over.get() && !node.is_held() && start_of(&cluster, &node) > seen && !node.is_old.get() {
            tokio::task::spawn_local(put_in(cluster, node, image));
        }
    });
}

fn start_of(c: &Cluster, node: &Node) -> StartNumber {
    c.control.with_state(|s| s.node(node.id).map(|n| n.start)).unwrap_or_default()
}

async fn put_in(c: Rc<Cluster>, node: Rc<Node>, image: Option<(Content, Option<SeatImage>)>) {
    let crash = if c.luck.borrow_mut().chance(0.5) { Crash::Kill } else { Crash::Power };
    node.kill(crash);
    node.is_old.set(true);
    node.hold(true);
    c.world.count(format!("{} disks put in", if image.is_some() { "old" } else { "blank" }));
    let is_blank = image.is_none();
    // A fault that waits for its write was aimed at the disk that is taken out.
    node.disk.fail_no_more();
    let (log, seat) = image.unwrap_or_default();
    let own = node.disk.swap(log);
    let seats = c.control.seats();
    // Among voters an old image is told by who has heard of a later start. If those are away, another one that lags and
    // the image are a majority that lacks what was decided; nothing in the world can tell that, so it is not demanded.
    let newest = start_of(&c, &node);
    let told = seats.as_ref().filter(|s| is_blank || s.all_others_know(node.id, newest));
    let own_seat = told.and_then(|s| s.swap(node.id, seat.unwrap_or_default()));
    if is_blank && let Err(e) = node.format().await {
        c.world.violation(format!("a blank disk can't be formatted: {e}"));
    }
    node.hold(false);
    node.start();
    let wait = Nanos(c.luck.borrow_mut().spread(50_000_000, 1_000_000_000));
    c.world.clone().after(wait, move || {
        node.kill(Crash::Kill);
        node.disk.swap(own);
        if let Some((seats, own)) = seats.zip(own_seat) {
            seats.swap(node.id, own);
        }
        node.is_old.set(false);
        node.start();
    });
}
