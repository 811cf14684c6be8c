//! Which nodes have failed, as the leader sees it, and what is to be done: pure, with the time as a number.
//!
//! - A node that was silent for four heartbeats of the design's length has failed (`fail_ms`).
//! - One whose link was closed by its end, and can't be opened again, has failed as soon as another node says the same
//!   of it. A process that was killed is noticed in this way after moments.
//! - One that led, and was given up by most voters for that (`doubts`), has failed for the next leader from the beginning.
//! - A shard whose head does not open a view, although it was named or started long ago, is given to the next member,
//!   each time after a longer while: that head may lack more than it can fetch soon, or its device may have failed.
//! - A node whose device does not answer has failed as soon as it says so itself; one that was started again, as long as its
//!   devices are not in use (`Devices`).
//! - A node that was silent for much longer is gone (`gone_ms`): other nodes take its places in the chains. That is
//!   late, because a new member learns all that the others have, and a node that comes back lacks little. So is one whose
//!   devices were of no use for that long, however often it was started and heard.
//! - A snapshot that does not come to an end within `SNAPSHOT_MS` fails, or it would keep others out, and be made when its
//!   volume is back, long after whoever asked for it was told that there is none.
//! - A chain that can answer nothing without members that have failed becomes shorter (V11); and one to which a failed node
//!   was to come goes on without it (V14), as one does that has to open a view before those that come have everything. A node
//!   that was never started since the control state was made again has failed when a leader has waited for it for a while.
//! - Where a member was silent for as long as that takes, however its failure was noticed, a node to spare stands in for it (V21):
//!   a process that was killed may be back by then.
//! - A chain that is shorter than its volume is to have it gets another member as soon as a node is to spare. Those that left
//!   it come first, and their places are kept until they are gone (V13); who had failed is heard for a while before (`returns`).
//!
//! A verdict that is wrong costs a view change and nothing else: what a node that only seemed to have failed goes on
//! to say is refused by the members that promised (rules V2, V6).

use crate::mutant::Mutant;
use crate::returns::Returns;
use crate::timing;
use crate::wire::Devices;
use freebs_control::{Command, Shard, State, limits};
use freebs_types::{NodeId, ShardId, SnapshotId, StartNumber, ViewNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Shards whose heads are watched.
const WATCHED_MAX: usize = 1 << 16;

/// A node as the leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The node.
    pub node: NodeId,
    /// As it is registered.
    pub start: StartNumber,
    /// Milliseconds since it was heard, as heartbeats count them.
    pub silent_ms: u64,
    /// Its end has closed the link, and no new one could be opened.
    pub lost: bool,
    /// The state of its devices, as it said last.
    pub devices: Devices,
    /// Milliseconds since it was heard while they worked; as `silent_ms` if they do.
    pub idle_ms: u64,
    /// They have worked in this lead.
    pub has_worked: bool,
}

impl Look {
    /// True if its devices are of no use to others, by its own word. One that begins is given the time that a head is given,
    /// unless it worked before: then it has been away, or was never told of as away (`down`).
    fn is_idle(&self, down: bool, fail_ms: u64) -> bool {
        match self.devices {
            Devices::Work => false,
            Devices::Begin => down || self.idle_ms >= if self.has_worked { fail_ms } else { timing::OPEN_MS },
            Devices::Silent => true,
        }
    }
}

/// A shard whose head has not opened its view yet.
#[derive(Clone, Copy, Debug)]
struct Opening {
    head: NodeId,
    /// The view that the new one follows.
    active: ViewNumber,
    since_ms: u64,
    patience_ms: u64,
}

/// What the leader keeps in mind. A new leader begins with an empty one, or with the one that led before it (`inherit`).
#[derive(Debug, Default)]
pub struct Failures {
    /// When others were last asked about a node, in which start of it, and when one last agreed.
    asked: BTreeMap<NodeId, (u64, StartNumber)>,
    agreed: BTreeMap<NodeId, u64>,
    opening: BTreeMap<ShardId, Opening>,
    /// The revision of which `opening` was made.
    looked_through: Option<u64>,
    /// For these failed nodes nothing was left to move in the state of this revision: it need not be gone through
    /// again at each heartbeat.
    settled: Option<(u64, BTreeSet<NodeId>)>,
    /// The same of chains that become shorter, and while nodes that were never started are waited for.
    left: Option<(u64, BTreeSet<NodeId>, bool)>,
    /// When this leader first decided anything.
    begun_ms: Option<u64>,
    /// The same of those that are gone.
    replaced: Option<(u64, BTreeSet<NodeId>, BTreeSet<NodeId>)>,
    /// The same of chains that are too short, and all nodes that are away.
    extended: Option<(u64, BTreeSet<NodeId>, BTreeSet<NodeId>)>,
    /// The same of nodes that are being emptied, and all nodes that are away.
    drained: Option<(u64, BTreeSet<NodeId>)>,
    returns: Returns,
    /// Nodes that had failed at the last look.
    down: BTreeSet<NodeId>,
    /// Those of them that were of no use for the time after which silence is a failure: others stand in for them.
    silent: BTreeSet<NodeId>,
    /// The same as `settled` of stand-ins, and all nodes that are away.
    stood_in: Option<(u64, BTreeSet<NodeId>, BTreeSet<NodeId>)>,
    /// Milliseconds for which the place of a node that left a chain is kept; as long as it is not gone, if that is not known.
    kept_ms: Option<u64>,
    mutant: Option<Mutant>,
    /// Snapshots that are being made, and since when this leader has known it.
    under_way: BTreeMap<SnapshotId, u64>,
}

impl Failures {
    /// Of a new leader, who keeps the places of nodes that left chains for so many milliseconds. `mutant`: the rule that is left
    /// out.
    #[must_use]
    pub fn new(kept_ms: u64, mutant: Option<Mutant>) -> Self {
        Self { kept_ms: Some(kept_ms), mutant, ..Self::default() }
    }

    /// Another node can't reach this one either.
    pub fn agree(&mut self, node: NodeId, now_ms: u64) {
        if self.asked.contains_key(&node) {
            self.agreed.insert(node, now_ms);
        }
    }

    /// A new leader's first one: `node`, in this start of it, was given up at that time by most voters when it led.
    pub fn inherit(&mut self, at_ms: u64, node: NodeId, start: StartNumber) {
        self.asked.insert(node, (at_ms, start));
        self.agreed.insert(node, at_ms);
    }

    /// Nodes that have failed, and those that others are to be asked about now.
    pub fn look(&mut self, now_ms: u64, nodes: &[Look], fail_ms: u64) -> (BTreeSet<NodeId>, Vec<NodeId>) {
        let (mut failed, mut ask) = (BTreeSet::new(), Vec::new());
        for n in nodes {
            // It is back, or was started again: what was said of it before counts no more.
            if !n.lost || self.asked.get(&n.node).is_some_and(|(_, start)| *start != n.start) {
                self.asked.remove(&n.node);
                self.agreed.remove(&n.node);
            }
            let is_agreed = self.agreed.get(&n.node).is_some_and(|at| now_ms - at <= timing::AGREED_MS);
            let is_idle = n.is_idle(self.down.contains(&n.node), fail_ms);
            if n.silent_ms >= fail_ms || is_agreed || is_idle {
                failed.insert(n.node);
            } else if n.lost && self.asked.get(&n.node).is_none_or(|(at, _)| now_ms - at >= timing::DOUBT_AGAIN_MS) {
                self.asked.insert(n.node, (now_ms, n.start));
                ask.push(n.node);
            }
        }
        self.returns.look(now_ms, nodes, &failed, fail_ms);
        self.down.clone_from(&failed);
        let is_silent = |n: &&Look| failed.contains(&n.node) && n.idle_ms >= fail_ms;
        self.silent = nodes.iter().filter(is_silent).map(|n| n.node).collect();
        (failed, ask)
    }

    /// Those of the nodes that have failed that are gone. Others take the places of one that is being emptied anyway, so it is
    /// waited for for less long.
    #[must_use]
    pub fn gone(nodes: &[Look], gone_ms: u64, drains: impl Fn(NodeId) -> bool) -> BTreeSet<NodeId> {
        let most = |n: &Look| if drains(n.node) { gone_ms.min(timing::DRAINED_GONE_MS) } else { gone_ms };
        nodes.iter().filter(|n| n.idle_ms >= most(n)).map(|n| n.node).collect()
    }

    /// The commands that are due, if any: shorter chains where those that have failed are needed, other heads for them, or for
    /// one that does not open its view, and other members for those that are gone. Who is not in `failed` counts as there.
    pub fn decide(
        &mut self,
        now_ms: u64,
        state: &State,
        failed: &BTreeSet<NodeId>,
        gone: &BTreeSet<NodeId>,
    ) -> Vec<Command> {
        self.watch(now_ms, state);
        let mut commands = self.abandoned(now_ms, state);
        commands.extend(self.leave(now_ms, state, failed));
        commands.extend(self.go_on(state));
        commands.extend(self.stand_in(now_ms, state, failed, gone));
        commands.extend(self.fail_over(state, failed));
        commands.extend(self.late(now_ms, state, failed));
        if commands.is_empty() {
            // Heads first: a chain changes its members under one that is there.
            commands.extend(self.replace(state, failed, gone));
        }
        if commands.is_empty() {
            commands.extend(self.extend(now_ms, state, failed, gone));
        }
        if commands.is_empty() {
            commands.extend(self.drain(now_ms, state, failed, gone));
        }
        commands
    }

    /// Snapshots that are to fail. Should the order be lost, it is given again with the next look.
    fn abandoned(&mut self, now_ms: u64, state: &State) -> Vec<Command> {
        let before = std::mem::take(&mut self.under_way);
        let since = |id| (id, before.get(&id).copied().unwrap_or(now_ms));
        self.under_way = state.snapshots_under_way().map(since).collect();
        let is_late = |(_, since): &(&SnapshotId, &u64)| now_ms - **since >= timing::SNAPSHOT_MS;
        let late = self.under_way.iter().filter(is_late);
        late.map(|(id, _)| Command::FailSnapshot { snapshot: *id, why: "a shard of it did not come".into() }).collect()
    }

    /// Members for chains that are too short: those that are back, and others as far as there are nodes to spare.
    fn extend(
        &mut self,
        now_ms: u64,
        state: &State,
        failed: &BTreeSet<NodeId>,
        gone: &BTreeSet<NodeId>,
    ) -> Option<Command> {
        let held = if self.mutant == Some(Mutant::BackAtOnce) { BTreeSet::new() } else { self.returns.held(now_ms) };
        let away: BTreeSet<NodeId> = failed.union(gone).chain(&held).copied().collect();
        // Nor is a place kept for one that comes and goes, and never stays for long enough.
        let missed = self.kept_ms.map_or(BTreeSet::new(), |ms| self.returns.missed(now_ms, ms));
        let never = never_started(state);
        let awaited = away.union(&never).filter(|n| !gone.contains(n) && !missed.contains(n));
        let waited: BTreeSet<NodeId> = awaited.copied().collect();
        let same = |(revision, a, w): &(u64, BTreeSet<NodeId>, BTreeSet<NodeId>)| {
            *revision == state.revision() && *a == away && *w == waited
        };
        if self.extended.as_ref().is_some_and(same) || self.mutant == Some(Mutant::NeverBack) {
            return None;
        }
        // One command names only so many nodes, and whoever is not named may come.
        let is_done = || state.extensions(&away, &waited).is_empty() && state.settlers(&away, &waited).is_empty();
        if away.len() > limits::FAILED_NODES_MAX || is_done() {
            self.extended = Some((state.revision(), away, waited));
            return None;
        }
        // Only of nodes that left a chain any places are kept.
        let left = state.away_nodes();
        let waited = waited.intersection(&left).copied().take(limits::FAILED_NODES_MAX).collect();
        Some(Command::ExtendChains { away: named(state, &away), waited: named(state, &waited) })
    }

    /// Stand-ins for those that have failed, in one command. A node that was killed is given as long as one that is silent: it may be
    /// back by then.
    fn stand_in(
        &mut self,
        now_ms: u64,
        state: &State,
        failed: &BTreeSet<NodeId>,
        gone: &BTreeSet<NodeId>,
    ) -> Option<Command> {
        let silent: BTreeSet<NodeId> = self.silent.intersection(failed).copied().collect();
        let held = self.returns.held(now_ms);
        let away: BTreeSet<NodeId> = failed.union(gone).chain(&held).filter(|n| !silent.contains(n)).copied().collect();
        let now = (state.revision(), silent, away);
        if self.stood_in.as_ref() == Some(&now) || self.mutant == Some(Mutant::NobodyStandsIn) {
            return None;
        }
        // One command names only so many, and whoever is not named may stand in.
        let is_too_much = now.1.len() + now.2.len() > limits::FAILED_NODES_MAX;
        if is_too_much || state.stand_ins(&now.1, &now.2).is_empty() {
            self.stood_in = Some(now);
            return None;
        }
        Some(Command::StandIn { failed: named(state, &now.1), away: named(state, &now.2) })
    }

    /// The next steps for nodes that are being emptied, and for chains that are too long.
    fn drain(
        &mut self,
        now_ms: u64,
        state: &State,
        failed: &BTreeSet<NodeId>,
        gone: &BTreeSet<NodeId>,
    ) -> Option<Command> {
        let away: BTreeSet<NodeId> = failed.union(gone).copied().chain(self.returns.held(now_ms)).collect();
        let now = (state.revision(), away);
        if self.drained.as_ref() == Some(&now) {
            return None;
        }
        // One command names only so many, and whoever is not named may come.
        if now.1.len() > limits::FAILED_NODES_MAX || state.drain_steps(&now.1).is_empty() {
            self.drained = Some(now);
            return None;
        }
        Some(Command::DrainChains { away: named(state, &now.1) })
    }

    /// Shorter chains where those that have failed are needed, all in one command.
    fn leave(&mut self, now_ms: u64, state: &State, failed: &BTreeSet<NodeId>) -> Option<Command> {
        let begun_ms = *self.begun_ms.get_or_insert(now_ms);
        // One that was never started since the control state was made again may be about to be.
        let waits = now_ms - begun_ms < timing::OPEN_MS;
        let now = (state.revision(), failed.clone(), waits);
        if self.left.as_ref() == Some(&now) || self.mutant == Some(Mutant::ChainsStay) {
            return None;
        }
        let mut leaving = state.leavers(failed);
        let all = leaving.len();
        let has_failed = |id: ShardId| state.shard(id).is_some_and(|s| !failed_of(s, failed).is_empty());
        leaving.retain(|l| !waits || has_failed(l.shard));
        if leaving.is_empty() {
            self.left = Some(now);
            return None;
        }
        if failed.len() <= limits::FAILED_NODES_MAX && leaving.len() == all {
            return Some(Command::LeaveChains { failed: named(state, failed), shards: Vec::new() });
        }
        // One command names only so many, and whoever is not named counts as there: as many chains as can be named with all that
        // have failed in them, and only these. The others follow.
        let (mut nodes, mut shards) = (BTreeSet::new(), Vec::new());
        for of in leaving.iter().take(limits::LEFT_SHARDS_MAX) {
            let Some(shard) = state.shard(of.shard) else { continue };
            let more: BTreeSet<NodeId> = nodes.union(&failed_of(shard, failed)).copied().collect();
            if more.len() <= limits::FAILED_NODES_MAX {
                nodes = more;
                shards.push((of.shard, shard.active));
            }
        }
        Some(Command::LeaveChains { failed: named(state, &nodes), shards })
    }

    /// Chains to which others come, and that have to open a view before these have everything: it does not wait for them (V14).
    fn go_on(&self, state: &State) -> Option<Command> {
        let waits = self.opening.iter().filter(|(id, _)| state.without_those_coming(**id).is_some());
        let shards: Vec<_> = waits.map(|(id, o)| (*id, o.active)).take(limits::LEFT_SHARDS_MAX).collect();
        let is_wanted = !shards.is_empty() && self.mutant != Some(Mutant::ChainsStay);
        is_wanted.then_some(Command::LeaveChains { failed: Vec::new(), shards })
    }

    /// Other members in place of those that are gone, as far as there are nodes to spare.
    fn replace(&mut self, state: &State, failed: &BTreeSet<NodeId>, gone: &BTreeSet<NodeId>) -> Option<Command> {
        let same = |(revision, all, of): &(u64, BTreeSet<NodeId>, BTreeSet<NodeId>)| {
            *revision == state.revision() && all == failed && of == gone
        };
        if gone.is_empty() || self.replaced.as_ref().is_some_and(same) {
            return None;
        }
        let replaced = state.replacements(gone, failed).into_iter().map(|(_, old, _)| old);
        let retracted = state.retractions(gone).into_iter().map(|(_, new)| new);
        let leave: BTreeSet<NodeId> = replaced.chain(retracted).collect();
        if leave.is_empty() {
            self.replaced = Some((state.revision(), failed.clone(), gone.clone()));
            return None;
        }
        let named = |of: &BTreeSet<NodeId>, most: usize| -> Vec<(NodeId, StartNumber)> {
            of.iter().filter_map(|n| Some((*n, state.node(*n)?.start))).take(most).collect()
        };
        let others: BTreeSet<NodeId> = failed.union(gone).copied().filter(|n| !leave.contains(n)).collect();
        // All that have failed are named, or a place may go to one of them.
        let failed = named(&others, limits::FAILED_NODES_MAX.saturating_sub(1));
        let gone = named(&leave, limits::FAILED_NODES_MAX - failed.len());
        Some(Command::ReplaceMembers { gone, failed })
    }

    fn fail_over(&mut self, state: &State, failed: &BTreeSet<NodeId>) -> Option<Command> {
        let is_settled =
            self.settled.as_ref().is_some_and(|(revision, of)| *revision == state.revision() && of == failed);
        if failed.is_empty() || is_settled {
            return None;
        }
        let moved = state.heads_without(failed);
        if moved.is_empty() {
            self.settled = Some((state.revision(), failed.clone()));
            return None;
        }
        // One command names only so many: heads first; the others only so that none of them becomes head.
        let heads: BTreeSet<NodeId> = moved.iter().map(|(_, head, _)| *head).collect();
        let all = heads.iter().chain(failed.iter().filter(|n| !heads.contains(n)));
        let nodes = all.filter_map(|n| Some((*n, state.node(*n)?.start))).take(limits::FAILED_NODES_MAX).collect();
        Some(Command::FailOver { nodes })
    }

    /// Takes in which shards have no head that has opened a view.
    fn watch(&mut self, now_ms: u64, state: &State) {
        if self.looked_through == Some(state.revision()) {
            return;
        }
        self.looked_through = Some(state.revision());
        self.returns.are_away(now_ms, &state.away_nodes(), &state.left_nodes());
        self.returns.were_never_started(now_ms, &never_started(state));
        let before = std::mem::take(&mut self.opening);
        for (shard, head, active) in state.unopened().into_iter().take(WATCHED_MAX) {
            let fresh = Opening { head, active, since_ms: now_ms, patience_ms: timing::OPEN_MS };
            let known = before.get(&shard).filter(|o| o.active == active);
            let opening = known.map_or(fresh, |o| if o.head == head { *o } else { Opening { head, ..*o } });
            let since_ms = if opening.head == known.map_or(head, |o| o.head) { opening.since_ms } else { now_ms };
            self.opening.insert(shard, Opening { since_ms, ..opening });
        }
    }

    /// Heads that take too long, each with the next member that is there. Should the order be lost, it is given again,
    /// after a longer time.
    fn late(&mut self, now_ms: u64, state: &State, failed: &BTreeSet<NodeId>) -> Vec<Command> {
        let mut commands = Vec::new();
        for (shard, o) in &mut self.opening {
            if now_ms - o.since_ms < o.patience_ms {
                continue;
            }
            o.since_ms = now_ms;
            // The members of a shorter plan may be unable to open it, and somebody is back who has everything.
            if let Some(of) = state.shard(*shard).filter(|_| state.regrown(*shard, failed).is_some()) {
                let failed = named(state, &failed_of(of, failed));
                commands.push(Command::LeaveChains { failed, shards: vec![(*shard, o.active)] });
                continue;
            }
            // If the head itself has failed, and so few are left that it stays, all there is to do is to wait.
            if let Some(node) = state.next_head(*shard, failed).filter(|_| !failed.contains(&o.head)) {
                o.patience_ms = (2 * o.patience_ms).min(timing::OPEN_MOST_MS);
                commands.push(Command::ReplaceHead { shard: *shard, head: o.head, active: o.active, node });
            }
        }
        commands
    }
}

/// Nodes that were not looked at when the control state was made again, and were not started since.
fn never_started(state: &State) -> BTreeSet<NodeId> {
    state.nodes().filter(|n| n.start.0 == 0).map(|n| n.id).collect()
}

/// The nodes as commands name them.
fn named(state: &State, nodes: &BTreeSet<NodeId>) -> Vec<(NodeId, StartNumber)> {
    nodes.iter().filter_map(|n| Some((*n, state.node(*n)?.start))).collect()
}

/// Those of the failed nodes on which a shard's next chain depends; no more than are in two chains.
fn failed_of(shard: &Shard, failed: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    shard.view_members().iter().chain(&shard.members).filter(|n| failed.contains(n)).copied().collect()
}
