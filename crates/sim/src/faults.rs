//! Faults strike: when is drawn before the run, where when it happens. Each has its odds in the configuration.

use crate::cluster::Cluster;
use crate::device::Crash;
use crate::forced;
use crate::leader::is_given_up;
use crate::lost;
use crate::network::Place;
use crate::node::{Node, WALL_BEGINS};
use crate::snapshots;
use freebs_chain::ShardStatus;
use freebs_control::{Command, Shard};
use freebs_types::{Nanos, NodeId, ShardId};
use std::rc::Rc;

/// What faults wait for: names of messages as they arrive, answers to clients, drivers that become ready.
const MOMENTS: [&str; 14] = [
    "answer",
    "answer",
    "ready",
    "frames",
    "frames",
    "write",
    "durable",
    "ordered",
    "seal",
    "seal answer",
    "sync reply",
    "nudge",
    "read",
    "read reply",
];

/// Puts all faults of a run into the queue.
pub fn schedule(cluster: &Rc<Cluster>) {
    let load = cluster.config.load;
    for (name, per_second) in cluster.config.odds.list() {
        if per_second == 0.0 && cluster.config.odds.is_newer(name) {
            continue;
        }
        let expected = per_second * load.0 as f64 / 1e9;
        let (mut count, mut times) = (expected as u64, Vec::new());
        let mut luck = cluster.luck.borrow_mut();
        count += u64::from(luck.chance(expected.fract()));
        for _ in 0..count {
            times.push(Nanos(luck.below(load.0)));
        }
        drop(luck);
        // Leaving out one kind of fault leaves the times of the others as they are.
        if cluster.config.less.without.contains(name) {
            continue;
        }
        for at in times {
            let c = cluster.clone();
            cluster.world.after(at, move || aim(&c, name));
        }
    }
}

/// Half of the faults wait for a moment in which something is half done.
fn aim(c: &Rc<Cluster>, name: &'static str) {
    let mut luck = c.luck.borrow_mut();
    let moment = luck.chance(0.5).then(|| luck.pick(&MOMENTS).copied()).flatten();
    let pass = luck.below(4);
    drop(luck);
    let cluster = c.clone();
    let job = move || {
        if !cluster.over.get() {
            cluster.world.say(|| format!("fault: {name}"));
            cluster.world.count(format!("fault {name}"));
            cluster.world.trace(0x50, name.len() as u64, u64::from(name.as_bytes()[0]));
            strike(&cluster, name);
        }
    };
    match moment {
        Some(moment) => c.world.when(moment, pass, job),
        None => c.world.after(Nanos(0), job),
    }
}

fn ms(c: &Cluster, low: u64, high: u64) -> Nanos {
    Nanos(c.luck.borrow_mut().spread(low * 1_000_000, high * 1_000_000))
}

fn some_node(c: &Cluster) -> Option<Rc<Node>> {
    c.luck.borrow_mut().pick(&c.nodes).cloned()
}

fn strike(c: &Rc<Cluster>, name: &str) {
    match name {
        "kill_node" => each(c, false, Crash::Kill),
        "power_node" => each(c, false, Crash::Power),
        "kill_all" => each(c, true, Crash::Kill),
        "power_all" => each(c, true, Crash::Power),
        "pause_node" => pause_node(c, 10, 2000),
        "pause_long" => pause_node(c, 1200, 5000),
        "break_link" => break_link(c),
        "cut" => cut(c),
        "kill_gateway" | "take_over" | "leave_gateway" | "pause_gateway" => gateway(c, name),
        "slow_disk" | "stall_disk" | "fail_write" => disk(c, name),
        "rot" => rot(c),
        "lose_append" => lose_append(c),
        "move_head" => move_head(c),
        "fail_over" => fail_over(c),
        "leave_node" => leave_node(c),
        "suspend_host" => suspend_host(c),
        "lag_seat" => drop(tokio::task::spawn_local(lag_seat(c.clone()))),
        "lose_control" => lost::lose_control(c),
        "old_image" => lost::old_image(c),
        "kill_leader" => kill_leader(c),
        "lose_members" => forced::lose_members(c),
        "snapshot" => snapshots::take(c),
        "drain_node" => drain_node(c),
        "control_down" => {
            c.control.set_down(true);
            let (cluster, wait) = (c.clone(), ms(c, 20, 1500));
            c.world.after(wait, move || cluster.control.set_down(false));
        }
        "lose_answer" => {
            let n = c.luck.borrow_mut().below(3);
            c.control.lose_answer(n);
        }
        "jump_clock" => {
            let wall = c.luck.borrow_mut().below(u64::MAX / 2);
            // By years in most runs, by seconds and minutes where times are asked for.
            let keeps = c.config.volumes.iter().any(|v| v.retain_ms.is_some());
            let near = keeps.then(|| WALL_BEGINS + c.luck.borrow_mut().spread(1_000_000, 2_000_000_000_000));
            if let Some(node) = some_node(c) {
                node.jump(near.filter(|at| at % 4 > 0).unwrap_or(wall));
            }
        }
        _ => {}
    }
}

/// One node dies, or all do; each starts again in its own time.
fn each(c: &Rc<Cluster>, all: bool, crash: Crash) {
    let victims = if all { c.nodes.clone() } else { some_node(c).into_iter().collect() };
    for node in victims {
        node.kill(crash);
        start_again(c, node);
    }
}

/// The node that leads the control plane dies, and another one leads; at once if the voters notice that.
fn kill_leader(c: &Rc<Cluster>) {
    let seats = c.control.seats();
    let leading = match &seats {
        Some(seats) => seats.leader().and_then(|n| c.node(n.0)).cloned(),
        None => some_node(c),
    };
    let Some(node) = leading.filter(|n| n.runs() && !c.control.is_down()) else { return };
    node.kill(Crash::Kill);
    start_again(c, node.clone());
    if seats.is_some() {
        return;
    }
    match is_given_up(c, &node) {
        true => c.control.lose_leader(node.id),
        false => c.control.set_down(true),
    }
    let (cluster, wait) = (c.clone(), ms(c, 5, 150));
    c.world.after(wait, move || cluster.control.set_down(false));
}

fn start_again(c: &Rc<Cluster>, node: Rc<Node>) {
    let wait = Nanos(c.luck.borrow_mut().spread(c.config.restart_min.0, c.config.restart_max.0));
    c.world.after(wait, move || node.start());
}

/// A node goes away for so long that its places are given to others; half of them come back when all is over.
fn leave_node(c: &Rc<Cluster>) {
    let Some(node) = some_node(c) else { return };
    let (crash, back) = {
        let mut luck = c.luck.borrow_mut();
        (if luck.chance(0.5) { Crash::Kill } else { Crash::Power }, luck.chance(0.5))
    };
    node.kill(crash);
    let left = Nanos(c.config.until.0.saturating_sub(c.world.now().0));
    let wait = if back { c.config.gone.plus(ms(c, 100, 2500)) } else { left.plus(ms(c, 1, 500)) };
    c.world.after(wait, move || node.start());
}

/// A host is suspended for longer than its node's places are kept, with whatever its gateway has in flight.
fn suspend_host(c: &Rc<Cluster>) {
    let Some(node) = some_node(c) else { return };
    let index = c.luck.borrow_mut().below(c.volume_count() as u64) as usize;
    let gateway = c.current(index);
    node.pause(true);
    if let Some(g) = &gateway {
        g.pause(true);
    }
    let wait = c.config.gone.plus(ms(c, 100, 4000));
    c.world.after(wait, move || {
        node.pause(false);
        if let Some(g) = gateway {
            g.pause(false);
        }
    });
}

/// A member stands still until its place is another's who has everything, and then a second one goes, so that it may be
/// taken again. Its seat hears of all that late, one state after the other, while its replica follows the head.
async fn lag_seat(c: Rc<Cluster>) {
    let Some((shard, _, late)) = some_chain(&c) else { return };
    let Some(node) = c.node(late.0).filter(|n| n.runs()).cloned() else { return };
    let chain = |look: fn(&Shard, NodeId) -> bool| {
        let cluster = c.clone();
        move || cluster.control.with_state(|s| s.shard(shard).is_some_and(|s| look(s, late)))
    };
    let limit = c.config.gone.plus(Nanos::from_millis(2000));
    node.pause(true);
    c.control.lag(late, true);
    let is_replaced = happens(&c, limit, chain(|s, late| !s.members.contains(&late) && s.joining.is_empty())).await;
    node.pause(false);
    let members = c.control.with_state(|s| s.shard(shard).map(|s| s.members.clone())).unwrap_or_default();
    let second = members.last().filter(|_| is_replaced && members.len() > 1).and_then(|m| c.node(m.0).cloned());
    if let Some(second) = second {
        second.kill(Crash::Kill);
        happens(&c, limit, chain(|s, late| s.members.contains(&late) && s.active_members.is_empty())).await;
        start_again(&c, second);
    }
    let more = ms(&c, 20, 1000);
    c.control.sleep(more).await;
    c.control.lag(late, false);
}

/// Waits until something is so, or faults end, or this time has passed. True if it is so.
async fn happens(c: &Cluster, limit: Nanos, is_so: impl Fn() -> bool) -> bool {
    let until = c.world.now().plus(limit);
    while !c.over.get() && c.world.now() < until && !is_so() {
        c.control.sleep(Nanos::from_millis(10)).await;
    }
    !c.over.get() && is_so()
}

/// A shard, its head, and another of its members.
fn some_chain(c: &Cluster) -> Option<(ShardId, NodeId, NodeId)> {
    let volumes = c.control.volumes();
    let mut luck = c.luck.borrow_mut();
    let volume = luck.pick(&volumes)?;
    let shard = luck.pick(&volume.shards)?;
    let other = *luck.pick(shard.members.get(1..)?)?;
    Some((volume.shard_id(shard.index), shard.head()?, other))
}

/// The control plane names another head, whatever state that node is in.
fn move_head(c: &Rc<Cluster>) {
    if let Some((shard, _, to)) = some_chain(c).filter(|_| !c.control.is_down()) {
        name_head(c, shard, to);
    }
}

fn name_head(c: &Cluster, shard: ShardId, to: NodeId) {
    c.world.say(|| format!("control: node {to} is to be head of shard {shard}"));
    let command = Command::MoveHead { shard, node: to };
    if let Some(seats) = c.control.seats() {
        return seats.order(command);
    }
    let done = c.control.apply(command);
    c.world.trace(0x51, to.0, u64::from(done.is_ok()));
}

/// A node is to be emptied, whatever state it is in, or to be one as others again.
fn drain_node(c: &Rc<Cluster>) {
    let Some(node) = some_node(c).filter(|_| !c.control.is_down()).map(|n| n.id) else { return };
    let drains = c.luck.borrow_mut().chance(0.6);
    c.world.say(|| format!("control: node {node} drains: {drains}"));
    let command = Command::DrainNode { node, drains, heir: None };
    if let Some(seats) = c.control.seats() {
        return seats.order(command);
    }
    let done = c.control.apply(command);
    c.world.trace(0x56, node.0, u64::from(done.is_ok()));
}

fn fail_over(c: &Rc<Cluster>) {
    let Some((shard, head, to)) = some_chain(c) else { return };
    let Some(node) = c.node(head.0).cloned() else { return };
    node.kill(Crash::Kill);
    start_again(c, node);
    let (cluster, wait) = (c.clone(), ms(c, 1, 500));
    c.world.after(wait, move || {
        if !cluster.control.is_down() && !cluster.over.get() {
            name_head(&cluster, shard, to);
        }
    });
}

/// It takes between so many milliseconds.
fn pause_node(c: &Rc<Cluster>, least: u64, most: u64) {
    let Some(node) = some_node(c) else { return };
    node.pause(true);
    let wait = ms(c, least, most);
    c.world.after(wait, move || node.pause(false));
}

fn break_link(c: &Rc<Cluster>) {
    let all = c.net.connections();
    let one = c.luck.borrow_mut().pick(&all).copied();
    if let Some(id) = one {
        c.net.break_connection(id);
    }
}

/// Places where somebody lives, the control plane now and then included.
fn places(c: &Cluster) -> Vec<Place> {
    let mut out: Vec<Place> = c.nodes.iter().map(|n| Place::Node(n.id.0)).collect();
    out.extend(c.gateways().iter().filter(|g| !g.is_dead()).map(|g| Place::Gateway(g.id)));
    if c.luck.borrow_mut().chance(0.3) {
        out.push(Place::Control);
    }
    out
}

fn cut(c: &Rc<Cluster>) {
    let all = places(c);
    let mut luck = c.luck.borrow_mut();
    let Some(one) = luck.pick(&all).copied() else { return };
    let mut pairs: Vec<(Place, Place)> = Vec::new();
    let kind = luck.below(4);
    match kind {
        // One place is alone.
        0 => pairs.extend(all.iter().filter(|p| **p != one).flat_map(|p| [(one, *p), (*p, one)])),
        // Two halves.
        1 => {
            let side: Vec<bool> = all.iter().map(|_| luck.chance(0.5)).collect();
            for (a, left) in all.iter().zip(&side) {
                pairs.extend(all.iter().zip(&side).filter(|(_, r)| *r != left).map(|(b, _)| (*a, *b)));
            }
        }
        // Two places don't reach each other, though others reach both.
        2 => {
            if let Some(other) = luck.pick(&all).copied().filter(|o| *o != one) {
                pairs.extend([(one, other), (other, one)]);
            }
        }
        // One way only.
        _ => {
            let to_one = luck.chance(0.5);
            let way = |p: Place| if to_one { (p, one) } else { (one, p) };
            pairs.extend(all.iter().filter(|p| **p != one).map(|p| way(*p)));
        }
    }
    let flaps = if luck.chance(0.3) { luck.range(2, 6) } else { 1 };
    drop(luck);
    c.world.say(|| format!("fault: nothing passes {pairs:?}, {flaps} times"));
    flap(c, Rc::new(pairs), flaps);
}

fn flap(c: &Rc<Cluster>, pairs: Rc<Vec<(Place, Place)>>, left: u64) {
    if left == 0 || c.over.get() {
        return;
    }
    for (a, b) in pairs.iter() {
        c.net.block(*a, *b);
    }
    let most = if left > 1 { 300 } else { 2500 };
    let (cluster, wait) = (c.clone(), ms(c, 20, most));
    c.world.after(wait, move || {
        for (a, b) in pairs.iter() {
            cluster.net.unblock(*a, *b);
        }
        let (again, wait) = (cluster.clone(), ms(&cluster, 10, 200));
        cluster.world.after(wait, move || flap(&again, pairs, left - 1));
    });
}

fn gateway(c: &Rc<Cluster>, name: &str) {
    let index = c.luck.borrow_mut().below(c.volume_count() as u64) as usize;
    let Some(current) = c.current(index) else { return };
    match name {
        "kill_gateway" => {
            // A new one attaches as soon as that is noticed.
            let all = c.gateways();
            let old = c.luck.borrow_mut().pick(&all).cloned();
            current.kill();
            if let Some(old) = old.filter(|o| o.is_fenced()) {
                old.kill();
            }
        }
        "take_over" if !c.is_attaching(index) => c.attach(index),
        "leave_gateway" => current.leave(),
        "pause_gateway" => {
            current.pause(true);
            let wait = ms(c, 10, 1500);
            c.world.after(wait, move || current.pause(false));
        }
        _ => {}
    }
}

fn disk(c: &Rc<Cluster>, name: &str) {
    let Some(node) = some_node(c) else { return };
    let now = c.world.now();
    match name {
        "slow_disk" => {
            let (time, factor) = (ms(c, 50, 2000), c.luck.borrow_mut().spread(10, 1000));
            let only_durable = c.luck.borrow_mut().chance(0.6);
            node.disks().iter().for_each(|d| d.slow_down(now.plus(time), factor, only_durable));
        }
        "stall_disk" => {
            let long = c.luck.borrow_mut().chance(0.1);
            let time = if long { ms(c, 5_000, 80_000) } else { ms(c, 50, 2000) };
            node.disks().iter().for_each(|d| d.stall(now.plus(time)));
        }
        _ => {
            let n = c.luck.borrow_mut().below(20);
            let disks = node.disks();
            let seat = disks.get(1).filter(|_| c.luck.borrow_mut().chance(0.3));
            seat.unwrap_or(&node.disk).fail_write(n);
            // Whoever looks after the process notices, and starts it again.
            let (cluster, wait) = (c.clone(), ms(c, 100, 1000));
            c.world.after(wait, move || {
                if node.has_failed() && !cluster.over.get() {
                    node.kill(Crash::Kill);
                    start_again(&cluster, node);
                }
            });
        }
    }
}

/// Only one node's disk is ever damaged in a run: copies elsewhere stay good.
fn damaged_node(c: &Cluster) -> Option<Rc<Node>> {
    let node = c.nodes.iter().find(|n| n.damaged.get()).cloned().or_else(|| some_node(c))?;
    node.damaged.set(true);
    Some(node)
}

/// Heads of frames are lost while their node is down.
fn lose_append(c: &Rc<Cluster>) {
    // A log that never had anything can't be told from one that was lost, too.
    let all = c.statuses();
    let is_there = |r: &Vec<_>| r.len() == 3 && r.iter().all(|(_, r): &(_, ShardStatus)| r.last.sequence.0 > 0);
    // Nor can a log that others still have to learn from be mended by them.
    let is_settled = |s: &Shard| s.joining.is_empty() && s.active_members.is_empty() && s.forced.is_none();
    let are_settled = c.control.volumes().iter().all(|v| v.shards.iter().all(is_settled));
    if all.is_empty() || !all.values().all(is_there) || !are_settled {
        return;
    }
    let Some(node) = damaged_node(c) else { return };
    node.kill(Crash::Kill);
    if let Some((at, number)) = node.disk.lose_append(c.config.segment_bytes) {
        c.world.say(|| format!("fault: append {number} of node {}, at {at}, is lost", node.id));
    }
    start_again(c, node);
}

fn rot(c: &Rc<Cluster>) {
    let Some(node) = damaged_node(c) else { return };
    if let Some(at) = node.disk.rot() {
        c.world.say(|| format!("fault: byte {at} of node {} changes", node.id));
    }
}
