//! The state made again from what nodes' logs know, after all copies of it were lost (rule V9).
//!
//! Of each shard the highest view counts that can have become active: a view does when as many of its members hold its
//! frame as answer a write (A), so it can have if those that are seen to hold it and those of whom nothing is known are
//! A together. It counts only if so many were seen to hold it that each answered write is on one of them (all but
//! A − 1); holding the frame is holding all before it. Whether it was active does not matter then: it sealed the one
//! before it, which answers nothing any more.
//!
//! There may be later views that only nodes hold that were not looked at. With fewer of those than the least quorum that a
//! chain of the volume can have, none became active (rule V15): a later chain may be shorter than the one that is seen. With
//! more, it would have sealed the newest active view, so all but A − 1 of that view's members would have promised it: where
//! A of them have promised nothing above, there is none. The view that was found is known to have been active if something
//! of it was committed; else the one before it must have as many such members, too. An operator may say that what only
//! these nodes have is lost for good, of all of them: then there is no later view.
//!
//! A view that counts because it *can* have become active need not have. It is what is gone on from, and the newest one
//! that is known to have been active stands beside it (`Shard::known`): another rebuild, which sees more or other nodes,
//! may go on from there. Until a view has become active again, nothing may be done that only an active view allows.
//!
//! Invariants: a shard for which that is not certain is left out, and said. No number is given out twice: views go on
//! above every promise that was seen and at least at the revision, which is above what a node may have promised that was
//! not looked at; attachments above all that were seen, and volumes as
//! views: a node that was not looked at may be the only one with a volume, and would take what it has for the new one's. Who is not known to hold
//! everything of a view is joining (rule V7), so it leads nothing and counts for nothing before it has learned.

use crate::state::{Ack, Branch, Node, Pending, Shard, State, Volume};
use crate::{Mutant, limits, rules};
use freebs_format::ViewBody;
use freebs_types::{
    ClusterId, Error, Generation, NodeId, Result, Sequence, ShardId, SnapshotId, StartNumber, Version, ViewNumber,
    VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A volume as a view frame describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSurvey {
    /// Name of the volume.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Shards of the volume.
    pub shards: u32,
    /// Copies that it was made with.
    pub copies: u8,
    /// Least members of a view that orders requests.
    pub min_copies: u8,
    /// When a write is answered.
    pub ack: Ack,
    /// Milliseconds of its past that are kept; 0 for none.
    #[serde(default)]
    pub retain_ms: u64,
}

/// What a view frame says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewSurvey {
    /// The view that the frame opened.
    pub view: ViewNumber,
    /// Of the frame.
    pub sequence: Sequence,
    /// The last active view before it, 0 for none.
    pub pred: ViewNumber,
    /// Durable copies before a write is answered (A).
    pub quorum: u8,
    /// Head first.
    pub members: Vec<NodeId>,
    /// Start number of the head.
    pub head_start: StartNumber,
    /// `None` in frames of earlier versions.
    pub volume: Option<VolumeSurvey>,
    /// The newest view of the shard that began a branch, 0 for none.
    #[serde(default)]
    pub branch: ViewNumber,
}

impl ViewSurvey {
    /// What the view frame with this body at `sequence` says.
    #[must_use]
    pub fn of(view: ViewNumber, sequence: Sequence, body: &ViewBody) -> Self {
        let volume = body.volume.as_deref().map(|d| VolumeSurvey {
            name: d.name.clone(),
            size: d.size,
            stripe: d.stripe,
            shards: d.shards,
            copies: d.copies,
            min_copies: d.min_copies,
            ack: if d.all { Ack::All } else { Ack::Majority },
            retain_ms: d.retain_ms,
        });
        Self {
            view,
            sequence,
            pred: body.pred,
            quorum: body.quorum,
            members: body.members.iter().map(|m| m.node).collect(),
            head_start: body.members.first().map(|m| m.start).unwrap_or_default(),
            volume,
            branch: body.volume.as_deref().map(|d| d.branch).unwrap_or_default(),
        }
    }
}

/// A shard on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardSurvey {
    /// The shard.
    pub shard: ShardId,
    /// No view below this is served any more (rule V2).
    pub promised: ViewNumber,
    /// Highest attachment generation in its log.
    pub generation: Generation,
    /// Last sequence in its log, 0 for an empty one.
    pub last: Sequence,
    /// Highest sequence that it knows to be committed.
    pub committed: Sequence,
    /// Nothing of its log is known to be lost.
    pub whole: bool,
    /// It may have promised a view above `promised`, and lost that.
    pub promise_lost: bool,
    /// Views whose frames it has, in order: the newest one, those that a cut may still take, and one before these.
    pub views: Vec<ViewSurvey>,
}

/// All that the devices of a node know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSurvey {
    /// The cluster that the devices belong to.
    pub cluster: ClusterId,
    /// The node whose devices they are.
    pub node: NodeId,
    /// Highest start number on its devices.
    pub start: StartNumber,
    /// All its devices were read, and no damage was found.
    pub whole: bool,
    /// Everything on its devices that is not deleted.
    pub shards: Vec<ShardSurvey>,
}

/// A node as the cluster file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// Number of the node.
    pub node: NodeId,
    /// Name for people.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// Workers of the node.
    pub workers: u16,
}

/// A volume that is back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Back {
    /// Number of the volume, as before.
    pub id: VolumeId,
    /// Name that it has now.
    pub name: String,
    /// The name that it had, if another volume has that now.
    pub was: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Shards of the volume, all of which are back.
    pub shards: u32,
    /// Copies that have to learn from the others first.
    pub joining: usize,
    /// Nodes that may have had what was answered later, and whose loss was accepted.
    #[serde(skip)]
    pub given_up: Vec<NodeId>,
}

/// A volume that is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    /// Number of the volume.
    pub id: VolumeId,
    /// If any log says it.
    pub name: Option<String>,
    /// Why, for people.
    pub why: String,
    /// Nodes that were not looked at, or have lost something, and may hold a later view than any that was seen. Nothing
    /// else is in the way if their logs are added, or what only they have is given up.
    #[serde(skip)]
    pub missing: Vec<NodeId>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// The state, ready to be written.
    pub state: State,
    /// Volumes that are in it.
    pub back: Vec<Back>,
    /// Volumes that only some log knows of; their data stay where they are.
    pub left: Vec<Left>,
    /// Numbers that may be wrong, the highest one first.
    pub lone: Vec<Lone>,
}

/// A number that one node alone names, far above the clock and all that others name: its log may be damaged, or lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lone {
    /// The node that names it.
    pub node: NodeId,
    /// The shard that it is of.
    pub shard: ShardId,
    /// A view, a promise, or the volume's id.
    pub number: u64,
    /// The numbers of the whole state begin above it. If not, only those of its own shard do.
    pub followed: bool,
}

/// Numbers go on so far above the highest that was seen. One that was given out and left no trace, because nobody who had
/// it came to write it down, is below.
const NUMBERS_LEFT: u64 = 1000;
/// Revisions to a generation, at least: drivers live on when nodes die, and one that was given a generation since another
/// rebuild may not have shown it to anybody. Revisions are milliseconds; nobody attaches a thousand times a second.
const REVISIONS_A_GENERATION: u64 = 1000;

/// Numbers from here on are those of a state that was made by a rebuild: they began with the clock's milliseconds. No
/// cluster counts so far, and every clock is past it since 2004.
const REBUILT_FROM: u64 = 1 << 40;
/// Above the highest number of another rebuild's state this one's begin so far, wherever the clock is. No state has as
/// many changes.
const REBUILDS_APART: u64 = 1 << 40;
/// A number from here on is none that a rebuild gave, and nothing but its own shard begins above it; unless another node
/// names such numbers, too. Then a rebuild did, which had followed a wrong one from below.
const REBUILT_UNTIL: u64 = limits::NUMBER_MAX / 2;
/// Nothing could begin above numbers from here on, whoever names them.
const REBUILT_MOST: u64 = limits::NUMBER_MAX - 2 * REBUILDS_APART;

/// What all nodes know of one shard.
type OfShard<'a> = BTreeMap<NodeId, &'a ShardSurvey>;

/// What was looked at.
struct Seen<'a> {
    /// By volume and shard.
    shards: BTreeMap<VolumeId, BTreeMap<u32, OfShard<'a>>>,
    /// All nodes of the cluster, and whether all that they had was read.
    nodes: BTreeMap<NodeId, bool>,
    /// The nodes of which there is a survey.
    looked_at: BTreeSet<NodeId>,
    /// All that only these have is given up.
    accepted: &'a BTreeSet<NodeId>,
    /// Of the state that is made.
    revision: u64,
    mutant: Option<Mutant>,
}

impl Seen<'_> {
    /// Whether it is certain what a node holds of a shard.
    fn is_known(&self, of: &OfShard<'_>, node: NodeId) -> bool {
        of.get(&node).map_or_else(|| self.nodes.get(&node).copied().unwrap_or(false), |s| s.whole)
    }

    /// Nodes of which that is not certain.
    fn unknown(&self, of: &OfShard<'_>) -> Vec<NodeId> {
        self.nodes.keys().copied().filter(|n| !self.is_known(of, *n)).collect()
    }
}

/// Why a volume is left out.
struct Refusal {
    why: String,
    /// See `Left`.
    missing: Vec<NodeId>,
}

impl<T: Into<String>> From<T> for Refusal {
    fn from(why: T) -> Self {
        Self { why: why.into(), missing: Vec::new() }
    }
}

/// The revision to begin with, and numbers that may be wrong. The clock is above all that was counted from zero. Where
/// another rebuild has been, whose clock may have been ahead of this one, it is above what that one's state may have come to.
fn begin_above(surveys: &[NodeSurvey], clock: u64) -> (u64, Vec<Lone>) {
    let highest_of = |s: &ShardSurvey| {
        let views = s.views.iter().map(|v| v.view.0);
        views.chain([s.promised.0, s.shard.volume.0]).filter(|n| *n >= REBUILT_FROM).max()
    };
    let of_node = |n: &NodeSurvey| n.shards.iter().filter_map(|s| Some((s.shard, highest_of(s)?))).collect::<Vec<_>>();
    let named: BTreeMap<NodeId, Vec<(ShardId, u64)>> = surveys.iter().map(|n| (n.node, of_node(n))).collect();
    let highest = |of: &Vec<(ShardId, u64)>| of.iter().map(|(_, number)| *number).max();
    let (mut begin, mut lone) = (clock, Vec::new());
    for (node, of) in &named {
        let others = named.iter().filter(|(n, _)| *n != node).filter_map(|(_, of)| highest(of)).max();
        for (shard, number) in of.iter().copied() {
            let is_alone = others.is_none_or(|other| other.saturating_add(REBUILDS_APART) <= number);
            let followed = number < REBUILT_UNTIL || (!is_alone && number < REBUILT_MOST);
            if followed {
                begin = begin.max(number + REBUILDS_APART);
            }
            let is_far = number > clock.saturating_add(REBUILDS_APART);
            if !followed || (is_alone && is_far && surveys.len() > 1) {
                lone.push(Lone { node: *node, shard, number, followed });
            }
        }
    }
    lone.sort_by_key(|l| (std::cmp::Reverse(l.number), l.node, l.shard));
    (begin, lone)
}

/// Makes the state of a cluster of these nodes. Its revision is at least `clock`, in milliseconds since 1970: above every
/// one that a lost state counted; watchers take what is above it for new.
pub fn rebuild(cluster: ClusterId, nodes: &[NodeName], surveys: &[NodeSurvey], clock: u64) -> Result<Rebuilt> {
    rebuild_accepting(cluster, nodes, surveys, clock, &BTreeSet::new())
}

/// The same, if an operator says that what only `accepted` may have is lost for good: later views, and all that was answered
/// in them. It counts where nothing else is in the way.
pub fn rebuild_accepting(
    cluster: ClusterId,
    nodes: &[NodeName],
    surveys: &[NodeSurvey],
    clock: u64,
    accepted: &BTreeSet<NodeId>,
) -> Result<Rebuilt> {
    make(cluster, nodes, surveys, clock, (accepted, None))
}

/// The same with a rule left out, for tests.
#[doc(hidden)]
pub fn rebuild_with(
    cluster: ClusterId,
    nodes: &[NodeName],
    surveys: &[NodeSurvey],
    clock: u64,
    mutant: Option<Mutant>,
) -> Result<Rebuilt> {
    make(cluster, nodes, surveys, clock, (&BTreeSet::new(), mutant))
}

fn make(
    cluster: ClusterId,
    nodes: &[NodeName],
    surveys: &[NodeSurvey],
    clock: u64,
    (accepted, mutant): (&BTreeSet<NodeId>, Option<Mutant>),
) -> Result<Rebuilt> {
    let (revision, lone) = begin_above(surveys, clock);
    let mut state = State::made_again(cluster, revision);
    let revision = state.revision;
    // Each snapshot was begun under a revision of its own, so none has a number above. What logs keep for them stays.
    state.snapshots_mut().spare(SnapshotId(revision));
    let mut starts: BTreeMap<NodeId, &NodeSurvey> = BTreeMap::new();
    for s in surveys {
        if s.cluster != cluster {
            return Err(Error::invalid(format!("node {} is of the cluster {}, not of {cluster}", s.node, s.cluster)));
        }
        if !nodes.iter().any(|n| n.node == s.node) {
            return Err(Error::invalid(format!("node {} is not named in the cluster file; add it there", s.node)));
        }
        if starts.insert(s.node, s).is_some() {
            return Err(Error::invalid(format!("node {} was given twice", s.node)));
        }
    }
    for n in nodes {
        let start = starts.get(&n.node).map_or(StartNumber(0), |s| s.start);
        let place = (n.name.clone(), n.address.clone());
        let node = Node::new(n.node, place, n.workers, start, revision);
        node.check()?;
        state.nodes.insert(node.id, Arc::new(node));
    }
    let whole = nodes.iter().map(|n| (n.node, starts.get(&n.node).is_some_and(|s| s.whole))).collect();
    let looked_at = starts.keys().copied().collect();
    let mut seen = Seen { shards: BTreeMap::new(), nodes: whole, looked_at, accepted, revision, mutant };
    for (s, shard) in surveys.iter().flat_map(|s| s.shards.iter().map(move |shard| (s, shard))) {
        let of_volume = seen.shards.entry(shard.shard.volume).or_default();
        of_volume.entry(shard.shard.index).or_default().insert(s.node, shard);
    }
    let highest_volume = seen.shards.keys().max().copied().unwrap_or_default();
    // A node that was not looked at may have volumes that nobody else has.
    state.last_volume = VolumeId(highest_volume.0.saturating_add(NUMBERS_LEFT).max(revision));
    let (mut back, mut left) = (Vec::new(), Vec::new());
    // The newest of two volumes of one name keeps it.
    for (id, shards) in seen.shards.iter().rev() {
        match volume(&state, *id, shards, &seen) {
            Ok((volume, was, given_up)) => {
                back.push(Back {
                    id: *id,
                    name: volume.name.clone(),
                    was,
                    size: volume.size,
                    shards: volume.shards.len() as u32,
                    joining: volume.shards.iter().map(|s| s.joining.len()).sum(),
                    given_up,
                });
                state.put_volume(volume);
            }
            Err(Refusal { why, missing }) => {
                left.push(Left { id: *id, name: described(shards).map(|d| d.name.clone()), why, missing });
            }
        }
    }
    back.reverse();
    left.reverse();
    // What a state may be is said in one place.
    State::decode(&state.encode())?;
    Ok(Rebuilt { state, back, left, lone })
}

/// What the newest frames say of the volume. Sizes only grow.
fn described<'a>(shards: &BTreeMap<u32, OfShard<'a>>) -> Option<&'a VolumeSurvey> {
    let views = shards.values().flat_map(|of| of.values()).flat_map(|s| &s.views);
    let all = views.filter_map(|v| v.volume.as_ref());
    all.max_by_key(|d| d.size)
}

/// Milliseconds of the past that a volume keeps. Each shard's newest view says it, and views of different shards can't be compared;
/// of what they say the longest counts: the heads let go of what is older, and a rebuild is no time for that.
fn retained(shards: &BTreeMap<u32, OfShard<'_>>) -> u64 {
    let newest = |of: &OfShard<'_>| {
        let views = of.values().flat_map(|s| &s.views);
        let described = views.filter_map(|v| Some((v.view, v.volume.as_ref()?.retain_ms)));
        described.max_by_key(|(view, _)| *view).map(|(_, ms)| ms)
    };
    let longest = shards.values().filter_map(newest).max().unwrap_or(0);
    match longest {
        0 => 0,
        ms => ms.clamp(limits::RETAIN_MS_MIN, freebs_types::limits::RETAIN_MS_MAX),
    }
}

fn volume(
    state: &State,
    id: VolumeId,
    shards: &BTreeMap<u32, OfShard<'_>>,
    seen: &Seen<'_>,
) -> std::result::Result<(Volume, Option<String>, Vec<NodeId>), Refusal> {
    let d = described(shards).ok_or("no view frame says what volume it is: no head of it ran in this version")?;
    let generation = shards.values().flat_map(|of| of.values()).map(|s| s.generation.0).max().unwrap_or_default();
    let mut made = Volume {
        id,
        name: d.name.clone(),
        size: d.size,
        copies: d.copies,
        ack: d.ack,
        min_copies: d.min_copies,
        stripe: d.stripe,
        retain_ms: retained(shards),
        shards: Vec::new(),
        generation: Generation(generation.saturating_add(NUMBERS_LEFT).max(state.revision / REVISIONS_A_GENERATION)),
        settled: Generation(0),
        holder: None,
        // Logs know where they begin, and not which snapshot that was.
        origin: None,
        // Logs know none.
        schedule: None,
        changed: state.revision,
    };
    if d.shards as usize > freebs_types::limits::VOLUME_SHARDS_MAX as usize {
        return Err(format!("its view frames speak of {} shards", d.shards).into());
    }
    let given_up = shards_of(&mut made, d.shards, shards, seen)?;
    let unknown =
        made.shards.iter().flat_map(|s| s.members.iter().chain(&s.keepers)).find(|n| state.node(**n).is_none());
    if let Some(n) = unknown {
        return Err(format!("node {n} is a member of it and not in the cluster file").into());
    }
    let was = state.volume_by_name(&made.name).is_some().then(|| made.name.clone());
    if was.is_some() {
        let kept: String = made.name.chars().take(freebs_types::limits::VOLUME_NAME_BYTES_MAX - 24).collect();
        made.name = format!("{kept}-{id}");
        if state.volume_by_name(&made.name).is_some() {
            return Err(format!("other volumes are called {} and {}", d.name, made.name).into());
        }
    }
    rules::check_shards(made.size, made.stripe, d.shards).and_then(|()| made.check()).map_err(|e| e.to_string())?;
    Ok((made, was, given_up))
}

/// Puts the shards in; the nodes whose later views are given up. If some wait for logs of other nodes only, all these are
/// named at once.
fn shards_of(
    made: &mut Volume,
    count: u32,
    shards: &BTreeMap<u32, OfShard<'_>>,
    seen: &Seen<'_>,
) -> std::result::Result<Vec<NodeId>, Refusal> {
    let (mut refusal, mut given_up) = (None::<Refusal>, BTreeSet::new());
    for index in 0..count {
        let of = shards.get(&index).ok_or_else(|| format!("shard {index} is on no device that was looked at"))?;
        match shard(index, (made, of), seen) {
            Ok((shard, without)) => {
                made.shards.push(shard);
                given_up.extend(without);
            }
            Err(Refusal { why, missing }) => {
                let why = format!("shard {index}: {why}");
                if missing.is_empty() {
                    return Err(why.into());
                }
                let all = refusal.get_or_insert(Refusal { why, missing: Vec::new() });
                all.missing.extend(missing);
                all.missing.sort_unstable();
                all.missing.dedup();
            }
        }
    }
    refusal.map_or_else(|| Ok(given_up.into_iter().collect()), Err)
}

/// All views that were seen, and how they follow each other.
struct Views<'a>(BTreeMap<ViewNumber, &'a ViewSurvey>);

impl<'a> Views<'a> {
    fn of(of: &OfShard<'a>) -> Self {
        Self(of.values().flat_map(|s| s.views.iter().map(|v| (v.view, v))).collect())
    }

    /// Whether a log goes through a view: it has its frame, or that of one that followed it.
    fn are_in(&self, log: &ShardSurvey, wanted: ViewNumber) -> bool {
        let Some(mut at) = log.views.last().map(|v| v.view) else { return false };
        while at > wanted && log.views.iter().all(|v| v.view != wanted) {
            match self.0.get(&at) {
                Some(v) if v.pred < at => at = v.pred,
                _ => return false,
            }
        }
        at >= wanted
    }

    /// Members that hold all of a view, and how many may.
    fn holders(&self, v: &ViewSurvey, of: &OfShard<'_>, seen: &Seen<'_>) -> (BTreeSet<NodeId>, usize) {
        let has = |n: &NodeId| of.get(n).is_some_and(|s| s.whole && self.are_in(s, v.view));
        let on: BTreeSet<NodeId> = v.members.iter().copied().filter(has).collect();
        let unknown = v.members.iter().filter(|n| !seen.is_known(of, **n)).count();
        let may = on.len() + unknown;
        (on, may)
    }

    /// True if something of it is known to be committed: only of a view that was active anybody says so.
    fn is_committed(&self, view: &ViewSurvey, of: &OfShard<'_>) -> bool {
        of.values().any(|s| self.are_in(s, view.view) && s.committed >= view.sequence)
    }

    /// The newest view up to this one that is known to have been active, whatever nodes hold that were not looked at: A of
    /// its members are seen to hold its frame, or something of it was committed.
    fn known(&self, upto: ViewNumber, of: &OfShard<'_>, seen: &Seen<'_>) -> ViewNumber {
        let on_enough = |v: &ViewSurvey| self.holders(v, of, seen).0.len() >= usize::from(v.quorum.max(1));
        let mut down = self.0.range(..=upto).rev().map(|(_, v)| *v);
        down.find(|v| on_enough(v) || self.is_committed(v, of)).map_or(ViewNumber(0), |v| v.view)
    }

    /// The newest branch up to this view, as the newest description has it: a branch that an older one names may never have
    /// been active. Nobody knows any more up to where older logs are the same.
    fn branch(&self, upto: ViewNumber) -> Option<Branch> {
        let newest = self.0.range(..=upto).rev().map(|(_, v)| *v).find(|v| v.volume.is_some())?;
        let view = newest.branch.min(upto);
        (view.0 > 0).then_some(Branch { view, at: Sequence(0), version: Version(0) })
    }

    /// True if no view behind this one can have become active, whatever these nodes hold (rule V15). `least`: the nodes that
    /// answer a write in the shortest chain that the volume can have.
    fn is_last(&self, view: &ViewSurvey, of: &OfShard<'_>, (unknown, least): (&[NodeId], usize)) -> bool {
        if unknown.len() < least {
            return true;
        }
        let is_held = |v: &ViewSurvey| {
            let silent = |n: &&NodeId| of.get(n).is_some_and(|s| s.whole && !s.promise_lost && s.promised <= view.view);
            v.members.iter().filter(silent).count() >= usize::from(v.quorum)
        };
        is_held(view)
            && (self.is_committed(view, of)
                || view.pred.0 == 0
                || self.0.get(&view.pred).is_some_and(|pred| is_held(pred)))
    }
}

/// Nodes that may have something of the shard, and are no members of the view: of one that has left it there is a promise only,
/// and one that was not looked at may have what the view before had.
fn keepers(view: &ViewSurvey, members: &[NodeId], of: &OfShard<'_>, seen: &Seen<'_>, views: &Views<'_>) -> Vec<NodeId> {
    let others = of.iter().filter(|(_, s)| s.last.0 > 0).map(|(n, _)| *n);
    let before = views.0.get(&view.pred).map_or(&[][..], |v| &v.members);
    let unknown = before.iter().copied().filter(|n| seen.nodes.contains_key(n) && !seen.is_known(of, *n));
    let all: BTreeSet<NodeId> = others.chain(unknown).filter(|n| !members.contains(n)).collect();
    // The one that has the newest of it comes last: it lacks least.
    let mut all: Vec<NodeId> = all.into_iter().collect();
    all.sort_by_key(|n| of.get(n).and_then(|s| s.views.last()).map(|v| v.view));
    let over = all.len().saturating_sub(freebs_types::limits::CHAIN_MEMBERS_MAX);
    all.into_iter().skip(over).take(freebs_types::limits::CHAIN_MEMBERS_MAX).collect()
}

/// An error unless each answered write of a view is on one of `on` members that are known to have all of it; `may`: so many may.
fn are_enough(view: &ViewSurvey, on: usize, may: usize) -> std::result::Result<(), String> {
    let wanted = (view.members.len() + 1).saturating_sub(usize::from(view.quorum));
    if on > 0 && on >= wanted {
        return Ok(());
    }
    Err(format!(
        "of view {}, which may have been active, {on} of {} copies are whole, and {wanted} are needed{}",
        view.view,
        view.members.len(),
        if may > on { "; more may be on nodes that were not looked at, add them" } else { "" }
    ))
}

/// Those that have something and are no members: as long as anybody learns all keep it (V7), and then those that have left a
/// chain that became shorter are away (V13).
fn others_of(
    volume: &Volume,
    members: &[NodeId],
    joining: &[NodeId],
    others: Vec<NodeId>,
) -> (Vec<NodeId>, Vec<NodeId>) {
    match joining.is_empty() {
        false => (others, Vec::new()),
        true if members.len() < usize::from(volume.copies) => (Vec::new(), others),
        true => (Vec::new(), Vec::new()),
    }
}

/// The shard, and the nodes without whose loss being accepted it would be left out.
fn shard(
    index: u32,
    (volume, of): (&Volume, &OfShard<'_>),
    seen: &Seen<'_>,
) -> std::result::Result<(Shard, Vec<NodeId>), Refusal> {
    let views = Views::of(of);
    let mut all = views.0.values().rev().map(|v| (*v, views.holders(v, of, seen)));
    let can_be_active = |(v, (_, may)): &(&ViewSurvey, (_, usize))| *may >= usize::from(v.quorum.max(1));
    let is_wrong = seen.mutant == Some(Mutant::OldestViewRebuilt);
    let found = if is_wrong { all.rfind(can_be_active) } else { all.find(can_be_active) };
    let Some((view, (on, may))) = found else {
        let newest = views.0.values().next_back().map(|v| (v.view, v.quorum, views.holders(v, of, seen).1));
        let why = newest.map_or_else(
            || "no view of it was ever opened".into(),
            |(v, a, n)| format!("no view is on enough of its members: of view {v} there are {n} of {a} copies"),
        );
        return Err(why.into());
    };
    are_enough(view, on.len(), may)?;
    let highest_promise = of.values().map(|s| s.promised).max().unwrap_or_default();
    let highest_view = views.0.last_key_value().map_or(ViewNumber(0), |(v, _)| *v);
    let highest = match seen.mutant {
        Some(Mutant::PromisesForgotten) => view.view,
        _ => ViewNumber(highest_promise.max(highest_view).0.saturating_add(NUMBERS_LEFT).max(seen.revision)),
    };
    let given_up = given_up(&views, view, (volume, of), seen)?;
    if highest.0 >= limits::NUMBER_MAX {
        return Err("its view numbers have run out".into());
    }
    let known = match seen.mutant {
        Some(Mutant::RebuiltIsActive) => view.view,
        _ => views.known(view.view, of, seen),
    };
    // Whoever holds the view's frame leads first, in the order of the chain.
    let (mut members, joining): (Vec<NodeId>, Vec<NodeId>) = view.members.iter().partition(|n| on.contains(n));
    members.extend(&joining);
    let others = keepers(view, &members, of, seen, &views);
    let (keepers, away) = others_of(volume, &members, &joining, others);
    let shard = Shard {
        index,
        active: view.view,
        known: (known < view.view).then_some(known),
        head_start: view.head_start,
        opened_by: view.members.first().copied(),
        pending: None::<Pending>,
        highest,
        members,
        active_members: Vec::new(),
        unseen: joining.iter().copied().filter(|n| !seen.looked_at.contains(n)).collect(),
        joining,
        keepers,
        away,
        standing: Vec::new(),
        // Whose disk was lost before is not known.
        learning: Vec::new(),
        forced: None,
        branch: views.branch(view.view),
    };
    Ok((shard, given_up))
}

/// The nodes that may hold a later view than this one, if the loss of what only these have was accepted, and it takes that to
/// go on from here.
fn given_up(
    views: &Views<'_>,
    view: &ViewSurvey,
    (volume, of): (&Volume, &OfShard<'_>),
    seen: &Seen<'_>,
) -> std::result::Result<Vec<NodeId>, Refusal> {
    let least = match seen.mutant {
        Some(Mutant::LeastIsOwn) => usize::from(view.quorum),
        _ => volume.quorum(usize::from(volume.min_copies)).min(usize::from(view.quorum)),
    };
    let unknown = seen.unknown(of);
    if views.is_last(view, of, (&unknown, least)) {
        return Ok(Vec::new());
    }
    let (accepted, missing): (Vec<NodeId>, Vec<NodeId>) = unknown.iter().partition(|n| seen.accepted.contains(n));
    // One of these may have all of a later view, and the others that answered in it are among the lost.
    if missing.is_empty() {
        return Ok(accepted);
    }
    let promised = of.values().map(|s| s.promised).max().unwrap_or_default();
    let why = format!(
        "there may be a later view than {} (promised is {promised}) on nodes that were not looked at, or that have lost \
         something; add them",
        view.view
    );
    Err(Refusal { why, missing })
}
