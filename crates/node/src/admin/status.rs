//! The cluster put together: what the control state says, and what each node says of its own replicas.

use super::client::Client;
use super::service::Service;
use crate::timing;
use freebs_agent::Lapse;
use freebs_control::api::{
    GatewayInfo, MemberReport, MemberState, NodeInfo, NodeStatus, OriginStatus, ReplicaDigest, Reply, Request,
    ShardDigest, ShardReport, ShardStatus, ShardVerification, Status, Verification, VolumeState, VolumeStatus,
};
use freebs_control::recover::Logs;
use freebs_control::{Node, Shard, State, Volume};
use freebs_types::{Error, ErrorKind, NodeId, Result, ShardId, Version, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Shards that are verified at a time.
const VERIFY_SHARDS: usize = 4;

type Replicas = BTreeMap<(NodeId, ShardId), ShardStatus>;

/// What one node answered.
struct Answer {
    info: NodeInfo,
    shards: Vec<ShardStatus>,
}

/// Connects to a node, which says who it is.
async fn meet(node: &Node) -> Result<(Client, NodeInfo)> {
    let client = Client::connect_to(node).await?;
    let Reply::Node(info) = client.call(&Request::NodeInfo, timing::NODE_ANSWER_MAX).await? else {
        return Err(Error::corrupt("a node answered something else"));
    };
    if info.id != node.id {
        return Err(Error::retry(format!("at {} is {} and not {}", node.address, info.name, node.name)));
    }
    Ok((client, info))
}

/// An error unless the node answers.
pub(super) async fn is_there(node: &Node) -> Result<()> {
    let met = tokio::time::timeout(timing::NODE_ANSWER_MAX, meet(node)).await;
    met.unwrap_or_else(|_| Err(Error::retry(format!("{} does not answer", node.address)))).map(|_| ())
}

async fn ask(node: &Node, volume: Option<VolumeId>) -> Result<Answer> {
    let (client, info) = meet(node).await?;
    let mut shards: Vec<ShardStatus> = Vec::new();
    loop {
        let after = shards.last().map(|s| s.shard);
        let request = Request::ShardStatus { volume, after };
        let Reply::Shards { shards: page, more } = client.call(&request, timing::NODE_ANSWER_MAX).await? else {
            return Err(Error::corrupt("a node answered something else"));
        };
        let moves_on = page.last().map(|s| s.shard) > after;
        shards.extend(page);
        if !more || !moves_on {
            return Ok(Answer { info, shards });
        }
    }
}

/// Asks all nodes at once; those that do not answer in time are missing in the result.
async fn ask_all(service: &Service, state: &State, volume: Option<VolumeId>) -> BTreeMap<NodeId, Answer> {
    let mut others = JoinSet::new();
    for node in state.nodes().filter(|n| n.id != service.me().id) {
        let node = Arc::clone(node);
        others.spawn(async move {
            let answer = tokio::time::timeout(timing::NODE_ANSWER_MAX, ask(&node, volume)).await;
            (node.id, answer.unwrap_or_else(|_| Err(Error::retry("no answer in time"))))
        });
    }
    let mut answers = BTreeMap::new();
    let shards = service.local.shards(volume).await;
    answers.insert(service.me().id, Answer { info: service.info(), shards });
    while let Some(joined) = others.join_next().await {
        match joined {
            Ok((id, Ok(answer))) => {
                answers.insert(id, answer);
            }
            Ok((id, Err(e))) => tracing::debug!("node {id} did not say how it is: {e}"),
            Err(e) => tracing::debug!("asking a node failed: {e}"),
        }
    }
    answers
}

/// One shard for people and programs, and whether it can be written and is whole.
pub(super) fn report(
    state: &State,
    volume: &Volume,
    shard: &Shard,
    replicas: &BTreeMap<NodeId, Option<&ShardStatus>>,
) -> (ShardReport, VolumeState) {
    let name = |id: NodeId| state.node(id).map_or_else(|| id.to_string(), |n| n.name.clone());
    let mut active = 0;
    let mut early = 0;
    let mut head_active = false;
    let mut members = Vec::new();
    for (i, node) in shard.members.iter().enumerate() {
        let (version, member) = match replicas.get(node) {
            None => (Version(0), MemberState::Down),
            Some(None) => (Version(0), MemberState::Missing),
            // A member of an older view has not heard of the active one yet.
            Some(Some(s)) if s.state == MemberState::Active && s.view != shard.active => {
                (s.version, MemberState::Opening)
            }
            Some(Some(s)) if shard.joining.contains(node) && s.state != MemberState::Failed => {
                (s.version, MemberState::Joining)
            }
            Some(Some(s)) => (s.version, s.state),
        };
        if member == MemberState::Active {
            active += 1;
            head_active |= i == 0;
        }
        // One that holds the view counts, whatever it lacks in front of that (V16).
        let holds = replicas.get(node).copied().flatten().is_some_and(|s| s.view == shard.active);
        early += usize::from(member == MemberState::Joining && holds);
        let told = replicas.get(node).copied().flatten();
        let (pins, whole_from) = told.map_or((0, Version(0)), |s| (s.pins, s.whole_from));
        let reads_from_parent = told.is_some_and(|s| s.reads_from.is_some());
        members.push(MemberReport { node: name(*node), version, pins, whole_from, reads_from_parent, state: member });
    }
    let usable = head_active && shard.active.0 > 0 && active + early >= volume.quorum(shard.members.len());
    // A chain that is shorter than it is to be has fewer copies of what is written (V11).
    let has_its_copies = shard.members.len() >= usize::from(volume.copies);
    let verdict = match (usable, active == shard.members.len() && has_its_copies) {
        (true, true) => VolumeState::Ready,
        (true, false) => VolumeState::Degraded,
        (false, _) => VolumeState::Paused,
    };
    let head = shard.head().map(name).unwrap_or_default();
    let id = volume.shard_id(shard.index).to_string();
    let names = |of: &[NodeId]| of.iter().map(|n| name(*n)).collect();
    let (joining, keepers, away) = (names(&shard.joining), names(&shard.keepers), names(&shard.away));
    let standing = names(&shard.standing);
    let waits = shard.head().and_then(|n| replicas.get(&n).copied().flatten()?.waits.clone());
    let (forced, branch) = (shard.forced.is_some(), shard.branch);
    // All survivors that were named have to promise (V10).
    let can_promise = |n: &&NodeId| matches!(replicas.get(n), Some(Some(s)) if s.state != MemberState::Failed);
    let survivors = shard.forced.iter().flat_map(|f| &f.survivors);
    let waits_for = survivors.filter(|n| !can_promise(n)).map(|n| name(*n)).collect();
    let past = shard.head().and_then(|n| replicas.get(&n).copied().flatten()?.past);
    let view = shard.active;
    let report = ShardReport {
        id,
        view,
        head,
        members,
        joining,
        keepers,
        away,
        standing,
        waits,
        forced,
        waits_for,
        branch,
        past,
    };
    (report, verdict)
}

fn volume_status(state: &State, volume: &Volume, answers: &BTreeMap<NodeId, Answer>, all: &Replicas) -> VolumeStatus {
    let mut verdict = VolumeState::Ready;
    let mut shards = Vec::with_capacity(volume.shards.len());
    for shard in &volume.shards {
        let id = volume.shard_id(shard.index);
        let survivors = shard.forced.iter().flat_map(|f| &f.survivors);
        let replicas = shard
            .members
            .iter()
            .chain(survivors)
            .filter(|n| answers.contains_key(n))
            .map(|n| (*n, all.get(&(*n, id))))
            .collect::<BTreeMap<_, _>>();
        let (report, state) = report(state, volume, shard, &replicas);
        verdict = match (verdict, state) {
            (VolumeState::Paused, _) | (_, VolumeState::Paused) => VolumeState::Paused,
            (VolumeState::Degraded, _) | (_, VolumeState::Degraded) => VolumeState::Degraded,
            _ => VolumeState::Ready,
        };
        shards.push(report);
    }
    of_volume(state, volume, verdict, shards)
}

/// A volume with all that the control state says of it, and these reports of its shards.
pub(super) fn of_volume(
    state: &State,
    volume: &Volume,
    verdict: VolumeState,
    shards: Vec<ShardReport>,
) -> VolumeStatus {
    let snapshots = state.kept_snapshots(volume.id).len();
    let origin = volume.origin.as_ref().map(|o| OriginStatus::new(state, o));
    VolumeStatus { snapshots, origin, ..VolumeStatus::new(volume, verdict, shards) }
}

fn replicas(answers: &BTreeMap<NodeId, Answer>) -> Replicas {
    let all = answers.iter().flat_map(|(id, a)| a.shards.iter().map(|s| ((*id, s.shard), s.clone())));
    all.collect()
}

/// Nodes that take connections, among those that did not answer: they are there, and stand still.
async fn silent(state: &State, answers: &BTreeMap<NodeId, Answer>) -> BTreeSet<NodeId> {
    let mut tried = JoinSet::new();
    for node in state.nodes().filter(|n| !answers.contains_key(&n.id)) {
        let node = Arc::clone(node);
        tried.spawn(async move {
            let connected = TcpStream::connect(node.address.as_str());
            let is_there = tokio::time::timeout(timing::NODE_ANSWER_MAX, connected).await.is_ok_and(|c| c.is_ok());
            is_there.then_some(node.id)
        });
    }
    let mut silent = BTreeSet::new();
    while let Some(joined) = tried.join_next().await {
        silent.extend(joined.ok().flatten());
    }
    silent
}

/// The logs of a volume, as all nodes that answer tell of them, and those that are there and tell nothing.
pub(super) async fn logs(service: &Service, state: &State, volume: VolumeId) -> (Logs, BTreeSet<NodeId>) {
    let answers = ask_all(service, state, Some(volume)).await;
    let silent = silent(state, &answers).await;
    let logs = |a: Answer| a.shards.into_iter().filter_map(|s| Some((s.shard, s.log?))).collect();
    (answers.into_iter().map(|(node, a)| (node, logs(a))).collect(), silent)
}

/// All volumes, or the one named.
pub(super) async fn volumes(service: &Service, name: Option<&str>) -> Result<Vec<VolumeStatus>> {
    let state = service.state()?;
    let only = name.map(|n| state.need(n).cloned()).transpose()?;
    let answers = ask_all(service, &state, only.as_ref().map(|v| v.id)).await;
    let all = replicas(&answers);
    let show = |v: &Volume| volume_status(&state, v, &answers, &all);
    Ok(match only {
        Some(v) => vec![show(&v)],
        None => state.volumes().map(|v| show(v)).collect(),
    })
}

pub(super) async fn status(service: &Service) -> Result<Status> {
    let state = service.state()?;
    let answers = ask_all(service, &state, None).await;
    let all = replicas(&answers);
    let node = |n: &Arc<Node>| {
        let info = answers.get(&n.id).map(|a| &a.info);
        // One that has joined gets copies only once it was taken in.
        let is_up = info.is_some() && (n.start.0 > 0 || !state.has_authority());
        NodeStatus {
            id: n.id,
            name: n.name.clone(),
            pid: info.map(|i| i.pid),
            address: n.address.clone(),
            state: if is_up { "up" } else { "down" }.into(),
            start: info.map_or(n.start, |i| i.start),
            workers: n.workers,
            leads: info.is_some_and(|i| i.leads),
            votes: info.is_some_and(|i| i.votes),
            drains: n.drains,
            shards: state.shards_at(n.id) as u64,
        }
    };
    let mut gateways: Vec<GatewayInfo> = answers.values().flat_map(|a| a.info.gateways.clone()).collect();
    gateways.sort_by(|a, b| (&a.name, a.pid).cmp(&(&b.name, b.pid)));
    gateways.dedup();
    Ok(Status {
        cluster: state.cluster(),
        revision: state.revision(),
        nodes: state.nodes().map(node).collect(),
        gateways,
        volumes: state.volumes().map(|v| volume_status(&state, v, &answers, &all)).collect(),
    })
}

/// The driver's lease, as each replica of a volume that answers has it.
pub(super) async fn lapses(service: &Service, state: &State, volume: VolumeId) -> BTreeMap<(NodeId, ShardId), Lapse> {
    let answers = ask_all(service, state, Some(volume)).await;
    replicas(&answers).into_iter().map(|(of, s)| (of, (s.view, s.lapsed))).collect()
}

/// The digests of all replicas of a volume at equal versions. While they move (or are missing) it asks again, until
/// `wait` has passed.
pub(super) async fn verify(service: &Service, name: &str, wait: Duration) -> Result<Verification> {
    let state = service.state()?;
    let volume = state.need(name)?.clone();
    let deadline = Instant::now() + wait;
    let mut shards = Vec::new();
    for part in volume.shards.chunks(VERIFY_SHARDS) {
        shards.extend(verify_part(service, &volume, part, deadline).await?);
    }
    Ok(Verification { volume: volume.name.clone(), agree: shards.iter().all(|s| s.agree), shards })
}

async fn verify_part(
    service: &Service,
    volume: &Volume,
    part: &[Shard],
    deadline: Instant,
) -> Result<Vec<ShardVerification>> {
    let mut done: BTreeMap<u32, ShardVerification> = BTreeMap::new();
    let mut open: Vec<&Shard> = part.iter().collect();
    loop {
        let state = service.state()?;
        let mut asked = JoinSet::new();
        let mut own = Vec::new();
        for shard in &open {
            let id = volume.shard_id(shard.index);
            for node in &shard.members {
                if *node == service.me().id {
                    own.push((id, *node));
                } else if let Some(known) = state.node(*node).cloned() {
                    asked.spawn(async move { ((id, known.id), ask_digest(&known, id).await) });
                }
            }
        }
        let mut found: BTreeMap<(ShardId, NodeId), Digested> = BTreeMap::new();
        for (id, node) in own {
            found.insert((id, node), service.local.digest(id).await.map_err(NoDigest::Answered));
        }
        while let Some(joined) = asked.join_next().await {
            let (key, digest) = joined.map_err(|e| Error::bug(format!("asking for a digest failed: {e}")))?;
            found.insert(key, digest);
        }
        open.retain(|shard| {
            let seen = compare(&state, volume, shard, &found);
            // The same difference at the same versions twice is none that passes.
            let is_settled = seen.agree || (differs(&seen) && done.get(&shard.index) == Some(&seen));
            done.insert(shard.index, seen);
            !is_settled
        });
        if open.is_empty() || Instant::now() + timing::VERIFY_AGAIN > deadline {
            return Ok(done.into_values().collect());
        }
        tokio::time::sleep(timing::VERIFY_AGAIN).await;
    }
}

/// Why there is no digest of a replica.
#[derive(Clone)]
enum NoDigest {
    /// Its node could not be asked.
    Unreached(Error),
    /// It was asked.
    Answered(Error),
}

type Digested = std::result::Result<ShardDigest, NoDigest>;

impl NoDigest {
    /// The fault of this node's replica, in words for people.
    fn of(&self, node: &str) -> String {
        match self {
            Self::Unreached(_) => format!("{node} can't be reached: it is stopped, or cut off"),
            Self::Answered(e) => match e.kind {
                ErrorKind::Corrupt => format!("the replica of {node} is damaged"),
                ErrorKind::NotFound => format!("{node} has no replica"),
                ErrorKind::Retry => format!("{node} did not answer"),
                _ => format!("{node} can't read its replica ({e})"),
            },
        }
    }
}

async fn ask_digest(node: &Node, shard: ShardId) -> Digested {
    let client = Client::connect_to(node).await.map_err(NoDigest::Unreached)?;
    match client.call(&Request::ShardDigest { shard }, timing::DIGEST_MAX).await {
        Ok(Reply::Digest(d)) if d.shard == shard => Ok(d),
        // Not the replica: another node's answer, or one of another version.
        Ok(_) => Err(NoDigest::Answered(Error::retry("the node answered something else"))),
        Err(e) => Err(NoDigest::Answered(e)),
    }
}

/// All replicas answered with one version, and yet not with one digest.
fn differs(v: &ShardVerification) -> bool {
    let first = v.replicas.first().and_then(|r| r.version);
    first.is_some() && v.replicas.iter().all(|r| r.version == first) && !v.agree
}

fn compare(
    state: &State,
    volume: &Volume,
    shard: &Shard,
    found: &BTreeMap<(ShardId, NodeId), Digested>,
) -> ShardVerification {
    let id = volume.shard_id(shard.index);
    let mut replicas = Vec::new();
    let mut missing = Vec::new();
    for node in &shard.members {
        let name = state.node(*node).map_or_else(|| node.to_string(), |n| n.name.clone());
        let e = match found.get(&(id, *node)) {
            Some(Ok(d)) => {
                let (version, digest) = (Some(d.version), Some(d.digest));
                replicas.push(ReplicaDigest { node: name, version, digest, error: None });
                continue;
            }
            Some(Err(e)) => e.clone(),
            None => NoDigest::Answered(Error::not_found("unknown node")),
        };
        missing.push(e.of(&name));
        let (NoDigest::Unreached(e) | NoDigest::Answered(e)) = e;
        replicas.push(ReplicaDigest { node: name, version: None, digest: None, error: Some(e.to_string()) });
    }
    let same = |f: fn(&ReplicaDigest, &ReplicaDigest) -> bool| replicas.windows(2).all(|w| f(&w[0], &w[1]));
    let problem = if !missing.is_empty() {
        missing.join("; ")
    } else if !same(|a, b| a.version == b.version) {
        "the replicas were never seen at one version: they are being written, or one does not catch up".into()
    } else if !same(|a, b| a.digest == b.digest) {
        "the replicas differ".into()
    } else {
        String::new()
    };
    ShardVerification { id: id.to_string(), agree: problem.is_empty(), problem, replicas }
}
