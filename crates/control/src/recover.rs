//! Going on without members that are lost for good (rule V10): which shards can't go on with those that are left, what is
//! lost if they go on from the best log there is, and the command that does it. Pure functions of the state and of what
//! nodes say of their logs.
//!
//! Invariants: a shard that can be sealed as usual is not forced, and one that can go on by itself gets no command; a
//! command names all that was seen, and is refused if anything of it is another by now; of what was forced a lost member
//! keeps nothing, so it comes back as a new one; nobody learns from a log that gives up lost frames before the branch is
//! active.

use crate::apply::shard_of;
use crate::command::{Command, Outcome, RecoverShard};
use crate::placement::Places;
use crate::state::{Branch, Forced, Shard, State, Volume};
use freebs_types::{Error, NodeId, Result, Sequence, ShardId, StartNumber, Version, ViewNumber, limits as common};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A node's word on its log of a shard: the part that counts when the active view is left (rule V2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// The active view as the node knows it.
    pub active: ViewNumber,
    /// The log has the frame of that view, and so all that was before it.
    pub has_view: bool,
    /// The last frame that counts. Of a log that has lost frames, the last one that it can go on from by force.
    pub last: Sequence,
    /// The view of that frame.
    pub last_view: ViewNumber,
    /// Version with that frame.
    pub version: Version,
    /// Highest sequence that it knows to be committed.
    pub committed: Sequence,
    /// Frames that were lost to damage.
    pub lost: u64,
    /// Lost frames of it were given up by force, and no branch that says so is active yet.
    #[serde(default)]
    pub has_given_up: bool,
    /// Frames behind the last one may be lost.
    pub is_suspect: bool,
    /// It is out of use until the node starts again.
    pub is_stopped: bool,
    /// This head has all logs that it needs, and too few slices of the view's secret.
    pub lacks_secret: bool,
}

/// Logs of the nodes that answered.
pub type Logs = BTreeMap<NodeId, BTreeMap<ShardId, LogStatus>>;

/// The findings of `freebs volume recover`, and its decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Name of the volume.
    pub volume: String,
    /// It was decided that the shards go on by force.
    pub decided: bool,
    /// In the order of their index.
    pub shards: Vec<ShardRecovery>,
    /// Names exactly what would be decided: with another one nothing is. Empty if there is nothing to be decided.
    #[serde(default)]
    pub word: String,
}

/// The need of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// It goes on by itself with the members that are there.
    Nothing,
    /// All that was answered is there, and too few members are: it goes on when others take the places of the lost.
    Members,
    /// It can't be sealed with the members that are there: it goes on by force only.
    Force,
    /// It can't go on by force either; `why` says what is missing.
    Help,
}

/// One shard in `Recovery`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecovery {
    /// Volume and index, as in `1.0`.
    pub id: String,
    /// The active view.
    pub view: ViewNumber,
    /// Its need.
    pub need: Need,
    /// Why it can't go on even so, for people; empty if it can.
    pub why: String,
    /// Members whose answers the view is sealed with, at least.
    pub needed: usize,
    /// Members whose answers count.
    pub counting: usize,
    /// The highest committed sequence that anybody names.
    pub committed: Sequence,
    /// Members of the active view, and others that have something of the shard.
    pub logs: Vec<MemberLog>,
    /// How it would go on, or does; `None` if there is nothing to be done.
    pub plan: Option<Plan>,
}

/// One log in `ShardRecovery`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberLog {
    /// Name of the node.
    pub node: String,
    /// It is a member of the active view.
    pub is_member: bool,
    /// Its answer counts as usual.
    pub counts: bool,
    /// Why not, for people; empty if it does.
    pub why: String,
    /// `None` if the node does not answer, or has nothing of the shard.
    pub log: Option<LogStatus>,
}

/// How a shard goes on without what is lost, and what that costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The node whose log is gone on from; it is the head.
    pub head: String,
    /// Where that log ends: all up to this frame is kept.
    pub sequence: Sequence,
    /// The version with that frame.
    pub version: Version,
    /// The view of that frame. If it is not the active one, all that was written in the active one is lost.
    pub view: ViewNumber,
    /// Committed frames that are known to be lost behind that: from this one on, up to `committed`. 0 for none.
    pub lost_from: Sequence,
    /// Frames that are lost in the middle of that log, and are given up.
    pub lost_inside: u64,
    /// Such frames were given up before, by an earlier word.
    #[serde(default)]
    pub has_given_up: bool,
    /// Nodes that are taken for lost for good.
    pub lost: Vec<String>,
    /// If so many of `lost` are back with their logs, it goes on by itself.
    pub back: usize,
    /// The chain from then on, head first.
    pub members: Vec<String>,
    /// Those of them that are new, and learn everything from the head.
    pub new: Vec<String>,
}

impl Plan {
    /// True if something that was committed is known to be lost.
    #[must_use]
    pub fn loses(&self) -> bool {
        self.lost_from.0 > 0 || self.lost_inside > 0 || self.has_given_up
    }
}

impl LogStatus {
    /// Nothing in the middle of it is lost, as far as is known.
    fn is_whole(&self) -> bool {
        self.lost == 0 && !self.has_given_up
    }

    /// Why an answer with this log does not count for the seal of a view, if so. `never_had`: the member was new in it.
    fn flaw(&self, active: ViewNumber, never_had: bool) -> Option<String> {
        match () {
            () if self.active != active => Some(format!("has not heard of view {active} yet")),
            () if self.is_stopped => Some("its log is out of use until it starts again".into()),
            () if self.lost > 0 => Some(format!("{} frames of its log are lost", self.lost)),
            () if self.has_given_up => Some("lost frames of it were given up by force".into()),
            () if self.is_suspect => Some("the end of its log may be lost".into()),
            // The log of a clone's shard that has only its beginning has no frame of a view either.
            () if self.last_view.0 == 0 && !self.has_view && !never_had => {
                Some("its log is empty, perhaps lost".into())
            }
            () => None,
        }
    }
}

/// One shard that is looked at.
struct Look<'a> {
    state: &'a State,
    volume: &'a Volume,
    shard: &'a Shard,
    id: ShardId,
    logs: &'a Logs,
    silent: &'a BTreeSet<NodeId>,
}

impl Look<'_> {
    fn name(&self, node: NodeId) -> String {
        self.state.node(node).map_or_else(|| node.to_string(), |n| n.name.clone())
    }

    fn log(&self, node: NodeId) -> Option<&LogStatus> {
        self.logs.get(&node)?.get(&self.id)
    }

    fn is_member(&self, node: NodeId) -> bool {
        self.shard.view_members().contains(&node)
    }

    fn flaw(&self, node: NodeId) -> Option<String> {
        match (self.logs.get(&node), self.log(node)) {
            (None, _) => Some("does not answer".into()),
            (Some(_), None) => Some("has nothing of the shard".into()),
            _ if self.shard.unseen.contains(&node) => {
                Some("what it has may be old: it was not looked at when the control state was made again".into())
            }
            (_, Some(log)) => log.flaw(self.shard.active, self.shard.learning.contains(&node)),
        }
    }

    /// Nodes that may have something: members of the view, and those that keep what they had.
    fn nodes(&self) -> Vec<NodeId> {
        let members = self.shard.view_members();
        let is_one = |n: &&NodeId| !members.contains(n) && self.log(**n).is_some();
        let keepers = self.keepers();
        members.iter().chain(keepers.iter().filter(is_one)).copied().collect()
    }

    /// Nodes that keep what they have and are no members.
    fn keepers(&self) -> Vec<NodeId> {
        let away =
            self.shard.away.iter().filter(|n| !self.shard.members.contains(n) && !self.shard.keepers.contains(n));
        self.shard.keepers.iter().chain(away).copied().collect()
    }

    /// Members that can promise.
    fn survivors(&self) -> Vec<NodeId> {
        let can_promise = |n: &NodeId| self.log(*n).is_some_and(|l| !l.is_stopped);
        self.shard.view_members().iter().copied().filter(can_promise).collect()
    }

    /// The highest committed frame that anybody names. A log of before the view says nothing of that: it may be of what was
    /// given up by force, and sequences of different histories are not compared (W4).
    fn committed(&self) -> Sequence {
        let any_has_view = self.nodes().into_iter().any(|n| self.log(n).is_some_and(|l| l.has_view));
        let names = |n: &NodeId| self.log(*n).filter(|l| l.has_view || !any_has_view).map(|l| l.committed);
        self.nodes().iter().filter_map(names).max().unwrap_or_default()
    }

    fn counting(&self) -> Vec<NodeId> {
        self.shard.view_members().iter().copied().filter(|n| self.flaw(*n).is_none()).collect()
    }

    fn needed(&self) -> usize {
        let len = self.shard.view_members().len();
        len + 1 - self.volume.quorum(len).clamp(1, len)
    }

    /// True if the view can be sealed as usual (V2, V3), as far as is seen.
    fn can_be_sealed(&self) -> bool {
        if self.shard.active.0 == 0 {
            return true;
        }
        let counting = self.counting();
        let ends = counting.iter().filter_map(|n| self.log(*n)).filter(|l| l.has_view).map(|l| l.last);
        let lacks_secret = self.nodes().into_iter().filter_map(|n| self.log(n)).any(|l| l.lacks_secret);
        counting.len() >= self.needed() && ends.max().is_some_and(|end| end >= self.committed()) && !lacks_secret
    }

    /// True if as many members answer as a view needs to become active, those included that learn, and the head may lead: one
    /// that gave frames up goes on by force only.
    fn has_members(&self) -> bool {
        let leads = |n: &NodeId| !self.log(*n).is_some_and(|l| l.has_given_up);
        let has_log = |n: &NodeId| self.log(*n).map_or(self.shard.joining.contains(n), |l| !l.is_stopped);
        let present = self.shard.members.iter().filter(|n| self.logs.contains_key(n) && has_log(n)).count();
        self.shard.members.first().is_none_or(leads) && present >= self.volume.quorum(self.shard.members.len())
    }

    /// The survivor whose log is gone on from. By force, one that has the view's frame has all that was before it; if
    /// nobody has, all of the view is lost, and who has most of those before it counts. A log that has lost frames counts
    /// only if there is no other.
    fn best(&self, by_force: bool) -> Option<(NodeId, LogStatus)> {
        let may_be_empty = self.shard.active.0 == 0 && self.volume.origin.is_none();
        let all: Vec<(NodeId, LogStatus)> = self
            .nodes()
            .into_iter()
            .filter_map(|n| Some((n, *self.log(n)?)))
            .filter(|(_, l)| !l.is_stopped && (l.last.0 > 0 || may_be_empty))
            .collect();
        let counting = self.counting();
        let counts = |(n, _): &&(NodeId, LogStatus)| by_force || counting.contains(n);
        let of_view = |(n, l): &&(NodeId, LogStatus)| l.has_view && self.is_member(*n);
        let rank = |at: usize, l: &LogStatus| (l.is_whole(), l.last_view, l.last, std::cmp::Reverse(at));
        let better = |of: Vec<(NodeId, LogStatus)>| {
            of.into_iter().enumerate().max_by_key(|(at, (_, l))| rank(*at, l)).map(|(_, found)| found)
        };
        let best = better(all.iter().filter(of_view).filter(counts).copied().collect());
        best.or_else(|| better(all).filter(|_| by_force))
    }

    /// The chain that goes on from this log: who can follow it, and then new members where there are nodes to spare.
    fn chain(&self, best: (NodeId, LogStatus), places: &Places<'_>) -> Vec<NodeId> {
        let can_follow = |n: &NodeId| self.log(*n).is_none_or(|l| l.is_whole() && l.committed <= best.1.last);
        let survivors = self.survivors();
        let learns = |n: &NodeId| self.shard.joining.contains(n) && self.logs.contains_key(n);
        let stays = |n: &&NodeId| **n != best.0 && (survivors.contains(n) || learns(n)) && can_follow(n);
        let others = self.shard.view_members().iter().filter(|n| !self.shard.members.contains(n));
        let named: Vec<NodeId> = self.shard.members.iter().chain(others).copied().collect();
        let mut chain = vec![best.0];
        chain.extend(named.iter().filter(stays));
        chain.sort_by_key(|n| *n != best.0 && self.shard.joining.contains(n));
        let is_sound = |of: &BTreeMap<ShardId, LogStatus>| of.values().all(|l| !l.is_stopped);
        let is_named = |n: &NodeId| *n == best.0 || named.contains(n);
        let is_spare = |n: &NodeId| self.logs.get(n).is_some_and(is_sound) && !is_named(n) && can_follow(n);
        let started = self.state.nodes().filter(|n| n.start.0 > 0).map(|n| n.id);
        let mut spare: Vec<NodeId> = started.filter(is_spare).collect();
        let has_some = self.keepers();
        let bytes = self.volume.shard_bytes();
        spare.sort_by_key(|n| (!has_some.contains(n), places.rank(*n, &chain, bytes)));
        let wanted = usize::from(self.volume.copies).max(self.shard.members.len());
        chain.truncate(wanted);
        chain.extend(spare.into_iter().take(wanted.saturating_sub(chain.len())));
        chain
    }

    /// The frame up to which logs of lost members are the same as this one, whatever they know to be committed. Of a log of
    /// an older view the end may have been cut since; and lost frames that are given up are there in other logs.
    fn same_up_to(&self, best: &LogStatus) -> Sequence {
        match (best.is_whole(), best.has_view) {
            (true, true) => best.last,
            (true, false) => best.committed.min(best.last),
            (false, _) => Sequence(0),
        }
    }

    /// How it goes on, or why it can't.
    fn plan(&self, by_force: bool, places: &Places<'_>) -> std::result::Result<(Plan, RecoverShard), String> {
        let active = self.shard.active;
        let learns = |n: &NodeId| self.shard.joining.contains(n) || self.shard.learning.contains(n);
        let is_late = |n: &&NodeId| match self.log(**n) {
            Some(log) => log.active != active,
            None => self.logs.contains_key(n) && !learns(n),
        };
        if let Some(n) = self.shard.view_members().iter().chain(&self.shard.members).find(is_late) {
            return Err(format!("{} has not heard of view {active} yet; ask again", self.name(*n)));
        }
        let is_silent = |n: &&NodeId| self.silent.contains(n) && !self.logs.contains_key(n);
        let silent_one = |n: NodeId| {
            let name = self.name(n);
            format!(
                "{name} is there, and does not say what it has; ask again, or stop it if what it has is lost for good"
            )
        };
        if let Some(n) = self.shard.view_members().iter().chain(&self.shard.members).find(is_silent) {
            return Err(silent_one(*n));
        }
        let nobody = "nobody who answers has anything of it: start a node that has, even an old one";
        let best = self.best(by_force).ok_or(nobody)?;
        // If nobody has the view, the best log is one of those before it, and a keeper may have a better one.
        let keepers = self.keepers();
        let keeper = keepers.iter().find(|n| by_force && !best.1.has_view && is_silent(n));
        if let Some(n) = keeper {
            return Err(silent_one(*n));
        }
        let mut chain = self.chain(best, places);
        let least = usize::from(self.volume.min_copies);
        if chain.len() < least {
            return Err(format!("it needs {least} members, and {} can be had; start other nodes first", chain.len()));
        }
        let gives_up = if by_force && !best.1.is_whole() { best.1.lost.max(1) } else { 0 };
        if gives_up > 0 {
            chain.truncate(1);
        }
        let mut survivors = self.survivors();
        survivors.extend(Some(best.0).filter(|n| !survivors.contains(n)));
        let named = self.shard.view_members().iter().chain(&self.shard.members);
        let lost: BTreeSet<NodeId> = named.copied().filter(|n| !survivors.contains(n) && !chain.contains(n)).collect();
        let start = |n: &NodeId| (*n, self.state.node(*n).map(|n| n.start).unwrap_or_default());
        // Where the view is sealed as usual, all logs are one history.
        let same = self.same_up_to(&best.1);
        let is_another = |n: &&NodeId| by_force && self.log(**n).is_some_and(|l| l.committed > same);
        let command = RecoverShard {
            shard: self.id,
            active,
            by_force,
            members: self.shard.members.clone(),
            survivors: survivors.iter().map(start).collect(),
            lost: lost.iter().map(start).collect(),
            chain: chain.clone(),
            least: best.1.last,
            version: best.1.version,
            known: self.committed(),
            gives_up,
            same,
            learn: chain.iter().filter(|n| **n != best.0 && is_another(n)).copied().collect(),
        };
        Ok((self.shown(by_force, best, &chain, &lost), command))
    }

    /// The plan for people and programs.
    fn shown(&self, by_force: bool, best: (NodeId, LogStatus), chain: &[NodeId], lost: &BTreeSet<NodeId>) -> Plan {
        let is_new = |n: &&NodeId| !self.shard.members.contains(n);
        let committed = self.committed();
        let missing = match by_force {
            true => self.needed().saturating_sub(self.counting().len()),
            false => {
                let present = self.shard.members.iter().filter(|n| self.log(**n).is_some()).count();
                self.volume.quorum(self.shard.members.len()).saturating_sub(present)
            }
        };
        Plan {
            head: self.name(best.0),
            sequence: best.1.last,
            version: best.1.version,
            view: best.1.last_view,
            lost_from: if committed > best.1.last { best.1.last.next() } else { Sequence(0) },
            lost_inside: if by_force { best.1.lost } else { 0 },
            has_given_up: by_force && best.1.has_given_up,
            lost: lost.iter().map(|n| self.name(*n)).collect(),
            back: missing.max(1),
            members: chain.iter().map(|n| self.name(*n)).collect(),
            new: chain.iter().filter(is_new).map(|n| self.name(*n)).collect(),
        }
    }

    fn found(&self, places: &Places<'_>) -> (ShardRecovery, Option<RecoverShard>) {
        let logs = self.nodes().into_iter().map(|n| {
            let (is_member, flaw) = (self.is_member(n), self.flaw(n));
            let why = flaw.or_else(|| (!is_member).then(|| "is no member any more".into())).unwrap_or_default();
            MemberLog { node: self.name(n), is_member, counts: why.is_empty(), why, log: self.log(n).copied() }
        });
        let mut found = ShardRecovery {
            id: self.id.to_string(),
            view: self.shard.active,
            need: Need::Nothing,
            why: String::new(),
            needed: self.needed(),
            counting: self.counting().len(),
            committed: self.committed(),
            logs: logs.collect(),
            plan: None,
        };
        let need = match (self.can_be_sealed(), self.has_members()) {
            (false, _) => Need::Force,
            (true, false) => Need::Members,
            (true, true) => return (found, None),
        };
        match self.plan(need == Need::Force, places) {
            Ok((plan, command)) => {
                (found.need, found.plan) = (need, Some(plan));
                (found, Some(command))
            }
            Err(why) => {
                (found.need, found.why) = (Need::Help, why);
                (found, None)
            }
        }
    }
}

/// Names what these commands decide, in short: a hash of all of them. Empty if there are none.
pub fn word<'a>(commands: impl IntoIterator<Item = &'a Command>) -> Result<String> {
    let all: Vec<Vec<u8>> = commands.into_iter().map(Command::encode).collect::<Result<_>>()?;
    let hash = freebs_format::crc32c(&all.concat());
    Ok(if all.is_empty() { String::new() } else { format!("{hash:08x}") })
}

/// Findings on each shard of a volume, and the command for those that don't go on by themselves. Of the nodes that told
/// nothing those of `silent` are there all the same, so none of them is lost.
#[must_use]
pub fn look(
    state: &State,
    volume: &Volume,
    logs: &Logs,
    silent: &BTreeSet<NodeId>,
) -> Vec<(ShardRecovery, Option<Command>)> {
    let mut places = Places::new(state);
    let one = |shard: &Shard| {
        let id = volume.shard_id(shard.index);
        let (found, how) = Look { state, volume, shard, id, logs, silent }.found(&places);
        for n in how.iter().flat_map(|h| h.chain.iter().filter(|n| !shard.members.contains(n))) {
            places.loads.add_member(*n, volume.shard_bytes());
        }
        (found, how.map(Command::RecoverShard))
    };
    volume.shards.iter().map(one).collect()
}

impl Shard {
    /// The pending view becomes active, so an operator's word is used up. If it was opened by force, older logs can't be
    /// trusted any more. If it was sealed as usual nothing is lost: who had everything keeps it as any former member does.
    pub(crate) fn end_force(&mut self, view: ViewNumber, begins_branch: bool) {
        let Some(forced) = self.forced.take() else { return };
        if begins_branch {
            let at = self.branch.map_or(forced.same, |b| b.at.min(forced.same));
            self.branch = Some(Branch { view, at, version: forced.version });
        } else {
            self.keep(forced.kept);
        }
    }

    /// These nodes are to keep what they have, unless they are members.
    fn keep(&mut self, nodes: Vec<NodeId>) {
        for n in nodes {
            let is_one = self.members.contains(&n) || self.keepers.contains(&n);
            if !is_one && self.keepers.len() < common::CHAIN_MEMBERS_MAX {
                self.keepers.push(n);
            }
        }
    }
}

impl State {
    /// A pending view is void (V6). By force, whoever is attached is so no longer: what its driver was answered may be
    /// lost, and where lost members live on, it may be answered by them.
    pub(crate) fn recover_shard(&mut self, how: &RecoverShard) -> Result<Outcome> {
        let mut volume = self.volume_to_change(how.shard.volume)?;
        let is_same = |(n, start): &&(NodeId, StartNumber)| self.node(*n).is_some_and(|now| now.start == *start);
        let is_known = how.chain.iter().all(|n| self.node(*n).is_some_and(|n| n.start.0 > 0));
        let is_clone = volume.origin.is_some();
        let (copies, least, most) = (volume.copies, usize::from(volume.min_copies), usize::from(volume.copies));
        let s = shard_of(&mut volume, how.shard)?;
        if s.active != how.active || s.members != how.members {
            let text = format!("shard {} has another view or other members by now; look at it again", how.shard);
            return Err(Error::fenced(text));
        }
        if let Some((n, _)) = how.survivors.iter().chain(&how.lost).find(|n| !is_same(n)) {
            return Err(Error::fenced(format!("node {n} was started again meanwhile; look at the shard again")));
        }
        let is_said = |f: &Forced| {
            f.survivors == nodes_of(&how.survivors)
                && (f.least, f.version, f.known, f.gives_up) == (how.least, how.version, how.known, how.gives_up)
                && f.same <= how.same
        };
        let learns = |n: &NodeId| s.joining.contains(n);
        if s.members == how.chain
            && how.learn.iter().all(learns)
            && s.forced.as_ref().map_or(!how.by_force, |f| how.by_force && is_said(f))
        {
            return Ok(Outcome::Moved);
        }
        // A head that gives up lost frames is alone until that is certain, and may order nothing (V1).
        let lengths = if how.gives_up > 0 { 1..=1 } else { least..=most.max(s.members.len()) };
        let is_long_enough = lengths.contains(&how.chain.len());
        if !is_known || !is_long_enough || !s.may_go_on(how) {
            return Err(Error::invalid(format!("shard {} can't go on so", how.shard)));
        }
        s.go_on(how, copies, is_clone);
        if how.by_force {
            // A driver that has given the volume back has no lease, in whatever generation.
            let settles = volume.settled == volume.generation;
            volume.generation = volume.generation.next();
            volume.settled = if settles { volume.generation } else { volume.settled };
            volume.holder = None;
        }
        self.commit(volume);
        Ok(Outcome::Moved)
    }
}

fn nodes_of(of: &[(NodeId, StartNumber)]) -> Vec<NodeId> {
    of.iter().map(|n| n.0).collect()
}

impl Shard {
    /// True if it is said of all members what became of them, and the chain is one of those that are left.
    fn may_go_on(&self, how: &RecoverShard) -> bool {
        let (survivors, lost) = (nodes_of(&how.survivors), nodes_of(&how.lost));
        let named: BTreeSet<NodeId> = survivors.iter().chain(&lost).copied().collect();
        let chain: BTreeSet<NodeId> = how.chain.iter().copied().collect();
        // A member that learns is no survivor, and may go on learning.
        let is_said = |n: &NodeId| named.contains(n) || (chain.contains(n) && self.joining.contains(n));
        named.len() == survivors.len() + lost.len()
            && chain.len() == how.chain.len()
            && self.view_members().iter().chain(&self.members).all(is_said)
            && survivors.iter().all(|n| self.is_kept_by(*n))
            && how.chain.first().is_some_and(|head| survivors.contains(head))
            && !lost.iter().any(|n| chain.contains(n))
            && how.learn.iter().all(|n| chain.contains(n) && how.chain.first() != Some(n))
            && how.least.0 <= crate::limits::NUMBER_MAX
            && how.same <= how.least
            && (how.active.0 > 0 || !how.by_force)
            && (how.by_force || how.gives_up == 0)
            && how.gives_up <= crate::limits::NUMBER_MAX
            && how.known.0 <= crate::limits::NUMBER_MAX
    }

    /// `is_clone`: there is something to learn before the first view, too.
    fn go_on(&mut self, how: &RecoverShard, copies: u8, is_clone: bool) {
        let (before, head) = (self.members.clone(), how.chain[0]);
        let is_learner = |n: &NodeId| !before.contains(n) || self.joining.contains(n) || how.learn.contains(n);
        let learners: Vec<NodeId> = how.chain.iter().filter(|n| **n != head && is_learner(n)).copied().collect();
        let had_everything = |n: &NodeId| before.contains(n) && !self.joining.contains(n);
        let (survivors, lost) = (nodes_of(&how.survivors), nodes_of(&how.lost));
        let mut kept: Vec<NodeId> = lost.into_iter().filter(had_everything).collect();
        let mut same = how.same;
        if let Some(f) = self.forced.take() {
            // By an earlier word frames may have been given up since.
            same = same.min(f.same);
            let others = f.kept.into_iter().filter(|n| !kept.contains(n) && !how.chain.contains(n));
            kept.extend(others.collect::<Vec<_>>());
        }
        self.members.clone_from(&how.chain);
        if self.active.0 > 0 && self.active_members.is_empty() {
            self.active_members = before;
        }
        let has_past = self.active.0 > 0 || is_clone;
        if has_past {
            self.joining = learners;
            let former = std::mem::take(&mut self.keepers);
            self.keep(former);
            self.keep(survivors.clone());
        }
        if how.by_force {
            // The lost are not wanted any more behind a branch, should they turn up.
            let (least, version, known, gives_up) = (how.least, how.version, how.known, how.gives_up);
            kept.truncate(common::CHAIN_MEMBERS_MAX);
            self.forced = Some(Forced { survivors, least, version, same, known, gives_up, kept });
        } else if has_past {
            self.keep(kept);
        }
        self.tidy_away();
        self.pending = None;
        self.stay(copies);
    }
}
