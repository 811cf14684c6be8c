//! What happened, one line each: what the control plane decided, and what nodes noticed themselves.
//!
//! What the control plane decided follows from each command and the states around it, so every node tells the same of
//! it, and whoever gathers from several nodes knows by revision, kind and shard what is the same event.

use crate::command::{Command, NewNode, RecoverShard};
use crate::rules::{self, format_date};
use crate::snapshots::{Schedule, Snapshot, Stage};
use crate::state::{Holder, Node, Origin, Shard, State, Volume};
use freebs_types::{Hash32, NodeId, ShardId, StartNumber, ViewNumber};
use serde::{Deserialize, Serialize};

/// Bytes of an event's text; a longer one is cut.
pub const EVENT_TEXT_BYTES_MAX: usize = 512;
/// Events of one answer.
pub const EVENTS_PAGE_MAX: usize = 2000;

/// What kind of thing happened. Names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A node was added, has started, or has another address.
    Node,
    /// The leader of the control plane takes a node for failed.
    NodeFailed,
    /// Another node leads the control plane, or none does.
    Leader,
    /// A volume was made, empty or as a clone.
    VolumeCreated,
    /// A volume became larger.
    VolumeResized,
    /// A volume has another name.
    VolumeRenamed,
    /// A clone is to have all that it reads from its parent as its own.
    Flattening,
    /// A volume was deleted.
    VolumeDeleted,
    /// A snapshot is complete.
    SnapshotMade,
    /// A snapshot could not be made.
    SnapshotFailed,
    /// A snapshot was deleted.
    SnapshotDeleted,
    /// A snapshot is not deleted before a date.
    SnapshotLocked,
    /// Snapshots of a volume are made by themselves, or are not any more.
    SnapshotsScheduled,
    /// A volume that nobody had was attached.
    Attached,
    /// Attached, in place of somebody else who had it.
    TakenOver,
    /// A driver gave its volume back.
    Detached,
    /// A shard has another head.
    HeadMoved,
    /// A shard has another member in place of one that was gone for too long.
    MemberReplaced,
    /// New members of a shard have everything.
    MemberComplete,
    /// A member has left a shard's chain, which could answer nothing without it.
    MemberLeft,
    /// A member that had left has everything again.
    MemberBack,
    /// A shard is to go on by force: what only lost members have is lost.
    Forced,
    /// Another part of a volume's past is kept.
    Retained,
    /// A view is active: its head orders writes from then on.
    ViewActive,
    /// The log found damage.
    Damage,
    /// The log did not believe something that it was given.
    Refused,
    /// The device is full, or nearly.
    Space,
    /// Damaged blocks were replaced by another member's.
    Mended,
    /// A shard has no head that orders, and what it waits for.
    Waits,
    /// A token that one node can join with was made, used or revoked.
    Token,
    /// Something of a node has ended, and works again after a restart at the earliest.
    Fault,
}

impl EventKind {
    /// The word that JSON and the CLI have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::NodeFailed => "node_failed",
            Self::Leader => "leader",
            Self::VolumeCreated => "volume_created",
            Self::VolumeResized => "volume_resized",
            Self::VolumeRenamed => "volume_renamed",
            Self::Flattening => "flattening",
            Self::Retained => "retained",
            Self::VolumeDeleted => "volume_deleted",
            Self::SnapshotMade => "snapshot_made",
            Self::SnapshotFailed => "snapshot_failed",
            Self::SnapshotDeleted => "snapshot_deleted",
            Self::SnapshotLocked => "snapshot_locked",
            Self::SnapshotsScheduled => "snapshots_scheduled",
            Self::Attached => "attached",
            Self::TakenOver => "taken_over",
            Self::Detached => "detached",
            Self::HeadMoved => "head_moved",
            Self::MemberReplaced => "member_replaced",
            Self::MemberComplete => "member_complete",
            Self::MemberLeft => "member_left",
            Self::MemberBack => "member_back",
            Self::Forced => "forced",
            Self::ViewActive => "view_active",
            Self::Damage => "damage",
            Self::Refused => "refused",
            Self::Space => "space",
            Self::Mended => "mended",
            Self::Waits => "waits",
            Self::Token => "token",
            Self::Fault => "fault",
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The kind of event.
    pub kind: EventKind,
    /// Revision of the control state that has it, of what the control plane decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Name of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Volume and index, as in `1.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<String>,
    /// Name of the node that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// What, and why, for people.
    pub text: String,
}

/// What a node told, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Wall clock of the node that tells it, milliseconds since 1970.
    pub time_ms: u64,
    /// Name of the node that tells it.
    pub node: String,
    /// The event.
    #[serde(flatten)]
    pub told: Told,
}

impl Told {
    /// An event of this kind, about nothing yet. A text above `EVENT_TEXT_BYTES_MAX` is cut.
    #[must_use]
    pub fn new(kind: EventKind, text: impl Into<String>) -> Self {
        let mut text = text.into();
        text.truncate(text.floor_char_boundary(EVENT_TEXT_BYTES_MAX));
        Self { kind, revision: None, volume: None, shard: None, about: None, text }
    }

    /// The same event, about this node.
    #[must_use]
    pub fn about(self, node: impl Into<String>) -> Self {
        Self { about: Some(node.into()), ..self }
    }

    fn decided(self, revision: u64) -> Self {
        Self { revision: Some(revision), ..self }
    }

    fn of(self, volume: &Volume) -> Self {
        Self { volume: Some(volume.name.clone()), ..self }
    }
}

fn name(state: &State, node: NodeId) -> String {
    state.node(node).map_or_else(|| node.to_string(), |n| n.name.clone())
}

/// What a command did that led from one state to the next; nothing if it was refused or changed nothing.
#[must_use]
pub fn told(before: &State, command: &Command, now: &State) -> Vec<Told> {
    if before.revision() == now.revision() {
        return Vec::new();
    }
    let mut out = of_command(before, command, now);
    out.extend(of_snapshots(before, now));
    out
}

fn removed(before: &State, now: &State, node: NodeId) -> Option<Told> {
    let gone = before.node(node).filter(|_| now.node(node).is_none())?;
    Some(Told::new(EventKind::Node, "was removed from the cluster").about(gone.name.clone()))
}

fn retires(node: &Node) -> Told {
    Told::new(EventKind::Node, "is being taken out of the cluster: it gives its vote up").about(node.name.clone())
}

fn drained(node: &Node, drains: bool) -> Told {
    let text = if drains { "is being emptied: others take its places" } else { "is not being emptied any more" };
    Told::new(EventKind::Node, text).about(node.name.clone())
}

fn of_command(before: &State, command: &Command, now: &State) -> Vec<Told> {
    let at = now.revision();
    let one = |t: Option<Told>| t.into_iter().map(|t| t.decided(at)).collect();
    match command {
        Command::RegisterNode { node, .. } => one(registered(before, now, *node)),
        Command::CreateVolume(new) => one(now.volume_by_name(&new.name).map(|v| created(v))),
        Command::CloneVolume { name, .. } => one(now.volume_by_name(name).map(|v| created(v))),
        Command::FlattenVolume { volume } => one(now.volume(*volume).map(|v| {
            let place = v.origin.as_ref().map(Origin::place).unwrap_or_default();
            Told::new(EventKind::Flattening, format!("it gets what it reads from {place} as its own")).of(v)
        })),
        Command::ResizeVolume { volume, .. } => one(now.volume(*volume).map(|v| resized(before, v))),
        Command::RetainVolume { volume, .. } => one(now.volume(*volume).map(|v| retained(v))),
        Command::RenameVolume { volume, .. } => one(now.volume(*volume).map(|v| renamed(before, v))),
        Command::DeleteVolume { volume, force } | Command::DeleteVolumeAndSnapshots { volume, force, .. } => {
            one(before.volume(*volume).map(|v| {
                let how = match (&v.holder, force) {
                    (Some(h), true) => format!("although it was attached by {} (forced)", h.name),
                    _ => "asked for".into(),
                };
                Told::new(EventKind::VolumeDeleted, how).of(v)
            }))
        }
        Command::AttachVolume { volume, force, .. } => one(now.volume(*volume).and_then(|v| {
            let old = before.volume(*volume).and_then(|old| old.holder.clone());
            Some(attached(v, old.as_ref(), v.holder.as_ref()?, *force))
        })),
        Command::DetachVolume { volume, .. } => one(now.volume(*volume).and_then(|v| {
            let old = before.volume(*volume)?.holder.clone()?;
            Some(Told::new(EventKind::Detached, format!("by {}", old.name)).of(v))
        })),
        Command::ActivateView { shard, view, .. }
        | Command::ActivateBranch { shard, view, .. }
        | Command::ActivateClone { shard, view, .. } => one(view_active(before, now, *shard, *view)),
        Command::MoveHead { .. } => heads(before, now, "asked for"),
        Command::ReplaceHead { .. } => heads(before, now, "the old one could not go on"),
        Command::FailOver { .. } => heads(before, now, "the old one has failed, or is being stopped"),
        Command::ReplaceMembers { .. } | Command::ExtendChains { .. } => {
            members(before, now, "has been gone for too long")
        }
        Command::LeaveChains { failed, .. } => left(before, now, failed),
        Command::StandIn { .. } => stood_in(before, now),
        Command::DrainChains { .. } => members(before, now, "is being emptied"),
        Command::RetireNode { node } => one(now.node(*node).filter(|n| n.changed == at).map(|n| retires(n))),
        Command::RemoveNode { node } => one(removed(before, now, *node)),
        Command::DrainNode { node, drains, .. } => one(now.node(*node).map(|n| drained(n, *drains))),
        Command::RecoverShard(how) => forced(before, now, how),
        Command::MembersComplete { shard, nodes, .. } => complete(before, now, *shard, nodes),
        Command::AddNode(new) => joined(before, now, new),
        Command::MakeToken { token, expires_ms, .. } => one(Some(Told::new(
            EventKind::Token,
            format!("a token was made, {}: good for one node, until {}", short(*token), format_date(*expires_ms)),
        ))),
        Command::RevokeTokens { tokens } => revoked(before, now, tokens),
        Command::ProposeView { .. } | Command::NameHostKey { .. } => Vec::new(),
        // Any command may decide the fate of a snapshot.
        Command::BeginSnapshot { .. }
        | Command::ReportCuts { .. }
        | Command::ConfirmCuts { .. }
        | Command::FailSnapshot { .. }
        | Command::DeleteSnapshot { .. }
        | Command::LockSnapshot { .. } => Vec::new(),
        Command::ScheduleSnapshots { volume, .. } => one(now.volume(*volume).map(|v| {
            let text = v.schedule.as_ref().map_or_else(|| "none any more".into(), Schedule::to_string);
            Told::new(EventKind::SnapshotsScheduled, text).of(v)
        })),
    }
}

/// Members that have everything: new ones, and those that are back.
fn complete(before: &State, now: &State, shard: ShardId, nodes: &[NodeId]) -> Vec<Told> {
    let Some((old, volume)) = before.shard(shard).zip(now.volume(shard.volume)) else { return Vec::new() };
    let learned = nodes.iter().filter(|n| old.joining.contains(n));
    let (back, new): (Vec<NodeId>, Vec<NodeId>) = learned.partition(|n| old.away.contains(n));
    let told = |kind, of: &[NodeId], text: &str| {
        let names = of.iter().map(|n| name(now, *n)).collect::<Vec<_>>().join(", ");
        let t = Told::new(kind, format!("{names} {text}")).of(volume).decided(now.revision());
        (!of.is_empty()).then_some(Told { shard: Some(shard.to_string()), about: Some(names), ..t })
    };
    let new = told(EventKind::MemberComplete, &new, "has everything");
    new.into_iter().chain(told(EventKind::MemberBack, &back, "is back, and has everything")).collect()
}

/// Said of a member that leaves a chain.
const FAILED: &str = "has failed, and nothing could be answered without it";
/// Said of one that is there, and leaves with another one that has failed.
const LEARNS: &str = "has not everything yet: the chain goes on with those that have";

/// Chains that became shorter, and plans that became longer again.
fn left(before: &State, now: &State, failed: &[(NodeId, StartNumber)]) -> Vec<Told> {
    let failed = before.still(failed);
    let is_gone = |n: &NodeId| failed.contains(n) || before.node(*n).is_none_or(|n| n.start.0 == 0);
    let mut out = Vec::new();
    for volume in now.volumes().filter(|v| v.changed > before.revision()) {
        for shard in &volume.shards {
            let id = volume.shard_id(shard.index);
            let Some(old) = before.shard(id) else { continue };
            let mut tell = |kind, node: NodeId, why: &str| {
                let node = name(now, node);
                let t = Told::new(kind, format!("{node} {why}")).of(volume).decided(volume.changed);
                out.push(Told { shard: Some(id.to_string()), about: Some(node), ..t });
            };
            let was_one = |n: &&NodeId| old.view_members().contains(n) && !shard.members.contains(n);
            for node in old.members.iter().filter(was_one) {
                tell(EventKind::MemberLeft, *node, if is_gone(node) { FAILED } else { LEARNS });
            }
            let is_back = |n: &&NodeId| old.view_members().contains(n) && !old.members.contains(n);
            for node in shard.members.iter().filter(is_back) {
                tell(EventKind::MemberBack, *node, "is back before the chain without it could answer anything");
            }
        }
    }
    out.extend(heads(before, now, "the old one has failed, or is being stopped"));
    out
}

/// Nodes that stand in for members that have failed, and those that left.
fn stood_in(before: &State, now: &State) -> Vec<Told> {
    let mut out = Vec::new();
    for volume in now.volumes().filter(|v| v.changed > before.revision()) {
        for shard in &volume.shards {
            let id = volume.shard_id(shard.index);
            let Some(old) = before.shard(id) else { continue };
            let names = |of: &[NodeId], not: &[NodeId]| {
                let names = of.iter().filter(|n| !not.contains(n)).map(|n| name(now, *n));
                names.collect::<Vec<_>>().join(", ")
            };
            let (gone, new) = (names(&old.members, &shard.members), names(&shard.members, &old.members));
            let mut tell = |kind, node: String, text: String| {
                let t = Told::new(kind, text).of(volume).decided(volume.changed);
                out.push(Told { shard: Some(id.to_string()), about: Some(node), ..t });
            };
            if !gone.is_empty() {
                tell(EventKind::MemberLeft, gone.clone(), format!("{gone} has failed; its place is kept"));
            }
            if !new.is_empty() {
                tell(
                    EventKind::MemberReplaced,
                    new.clone(),
                    format!("{new} stands in for {gone}: it counts for new writes"),
                );
            }
        }
    }
    out.extend(heads(before, now, "the old one has failed, or is being stopped"));
    out
}

/// Digits of a token's hash that people know it by.
pub const TOKEN_ID_DIGITS: usize = 12;

fn short(token: Hash32) -> String {
    token.to_string().chars().take(TOKEN_ID_DIGITS).collect()
}

fn joined(before: &State, now: &State, new: &NewNode) -> Vec<Told> {
    let Some(node) = now.nodes().find(|n| n.identity == Some(new.identity)) else { return Vec::new() };
    let told = |kind, text: String| Told::new(kind, text).about(node.name.clone()).decided(now.revision());
    let mut out = Vec::new();
    if before.node(node.id) != Some(node) {
        let text = format!("has joined with the token {}, to be at {}", short(new.token), node.address);
        out.push(told(EventKind::Node, text));
    }
    let used = |s: &State| s.joining().token(&new.token).and_then(|t| t.used_by);
    if used(before) != used(now) {
        out.push(told(EventKind::Token, format!("the token {} was used", short(new.token))));
    }
    out
}

fn revoked(before: &State, now: &State, tokens: &[Hash32]) -> Vec<Told> {
    let gone = tokens.iter().filter(|t| before.joining().token(t).is_some() && now.joining().token(t).is_none());
    let text = |t: &Hash32| format!("the token {} was revoked", short(*t));
    gone.map(|t| Told::new(EventKind::Token, text(t)).decided(now.revision())).collect()
}

fn resized(before: &State, v: &Volume) -> Told {
    let old = before.volume(v.id).map_or(0, |old| old.size);
    Told::new(EventKind::VolumeResized, format!("from {old} to {} bytes", v.size)).of(v)
}

fn renamed(before: &State, v: &Volume) -> Told {
    let old = before.volume(v.id).map_or("?", |old| &old.name);
    Told::new(EventKind::VolumeRenamed, format!("from {old}")).of(v)
}

fn retained(v: &Volume) -> Told {
    let text = match v.retain_ms {
        0 => "its past is not kept any more".to_owned(),
        ms => format!("the last {} are kept from now on", rules::format_span(ms)),
    };
    Told::new(EventKind::Retained, text).of(v)
}

fn view_active(before: &State, now: &State, shard: ShardId, view: ViewNumber) -> Option<Told> {
    let v = now.volume(shard.volume)?;
    let s = v.shard(shard.index)?;
    let head = name(now, s.head()?);
    let how = match s.branch.filter(|b| b.view == view) {
        Some(b) => format!(", by force, from version {} or a later one on", b.version),
        None if before.shard(shard).is_some_and(|s| s.forced.is_some()) => {
            ": the one before was sealed as usual after all, so nothing is lost".into()
        }
        None => String::new(),
    };
    let t = Told::new(EventKind::ViewActive, format!("view {view}, head {head}{how}")).of(v);
    Some(Told { shard: Some(shard.to_string()), about: Some(head), ..t })
}

/// Snapshots that came to an end, or are gone: once for each of their volumes.
fn of_snapshots(before: &State, now: &State) -> Vec<Told> {
    let mut out = Vec::new();
    let touched = now.snapshots_since(before);
    for new in touched.iter().filter_map(|id| now.snapshot_record(*id)) {
        let old = before.snapshot_record(new.id);
        let was_under_way = old.is_none_or(Snapshot::is_under_way);
        let told = match &new.stage {
            Stage::Complete if was_under_way => Told::new(EventKind::SnapshotMade, format!("@{}", new.name)),
            Stage::Failed { why } if was_under_way => {
                Told::new(EventKind::SnapshotFailed, format!("@{}: {why}", new.name))
            }
            _ if old.is_some_and(|old| old.locked_until_ms < new.locked_until_ms) => {
                let until = format_date(new.locked_until_ms);
                Told::new(EventKind::SnapshotLocked, format!("@{} until {until}", new.name))
            }
            _ => continue,
        };
        let volumes = new.volumes.iter().filter_map(|v| now.volume(v.volume));
        out.extend(volumes.map(|v| told.clone().of(v).decided(new.changed)));
    }
    let complete = touched.iter().filter_map(|id| before.snapshot_record(*id)).filter(|s| s.is_complete());
    for old in complete {
        let new = now.snapshot_record(old.id);
        let left = old.volumes.iter().filter(|v| new.is_none_or(|new| new.of(v.volume).is_none()));
        for volume in left.filter_map(|v| before.volume(v.volume)) {
            let told = Told::new(EventKind::SnapshotDeleted, format!("@{}", old.name));
            out.push(told.of(volume).decided(now.revision()));
        }
    }
    out
}

fn registered(before: &State, now: &State, node: NodeId) -> Option<Told> {
    let new = now.node(node)?;
    let old = before.node(node);
    let text = match old {
        None if new.start.0 == 0 => format!("added, at {}", new.address),
        Some(old) if old.start == new.start && old.address != new.address => {
            format!("is at {} now, was at {}", new.address, old.address)
        }
        Some(old) if old.start == new.start => return None,
        _ => format!("started, at {} (start {})", new.address, new.start),
    };
    Some(Told::new(EventKind::Node, text).about(new.name.clone()))
}

fn created(v: &Volume) -> Told {
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let (copies, shards) = (usize::from(v.copies), v.shards.len());
    let from = v.origin.as_ref().map(|o| format!("cloned from {}: ", o.place())).unwrap_or_default();
    let text = format!(
        "{from}{} bytes, {copies} cop{}, {shards} shard{}",
        v.size,
        if copies == 1 { "y" } else { "ies" },
        plural(shards)
    );
    Told::new(EventKind::VolumeCreated, text).of(v)
}

fn attached(v: &Volume, old: Option<&Holder>, new: &Holder, force: bool) -> Told {
    let generation = v.generation;
    match old {
        Some(old) if old.identity != new.identity => {
            let how = if force { ", forced" } else { ", whose attachment had lapsed" };
            let text = format!("by {} (generation {generation}), from {}{how}", new.name, old.name);
            Told::new(EventKind::TakenOver, text).of(v)
        }
        Some(_) => Told::new(EventKind::Attached, format!("by {} again (generation {generation})", new.name)).of(v),
        None => Told::new(EventKind::Attached, format!("by {} (generation {generation})", new.name)).of(v),
    }
}

/// Which shards got another head. Each volume's changes have a revision of their own.
fn heads(before: &State, now: &State, why: &str) -> Vec<Told> {
    let mut out = Vec::new();
    for volume in now.volumes().filter(|v| v.changed > before.revision()) {
        for shard in &volume.shards {
            let id = volume.shard_id(shard.index);
            let old = before.shard(id).and_then(Shard::head);
            if let (Some(old), Some(new)) = (old, shard.head().filter(|new| Some(*new) != old)) {
                let (old, new) = (name(now, old), name(now, new));
                let t = Told::new(EventKind::HeadMoved, format!("head {new} in place of {old}: {why}")).of(volume);
                out.push(Told { shard: Some(id.to_string()), about: Some(old), ..t.decided(volume.changed) });
            }
        }
    }
    out
}

/// Which shards got other members, and with them perhaps another head.
fn members(before: &State, now: &State, why: &str) -> Vec<Told> {
    let mut out = Vec::new();
    for volume in now.volumes().filter(|v| v.changed > before.revision()) {
        for shard in &volume.shards {
            let id = volume.shard_id(shard.index);
            let Some(old) = before.shard(id) else { continue };
            let mut left = old.members.iter().filter(|n| !shard.members.contains(n));
            for came in shard.members.iter().filter(|n| !old.members.contains(n)) {
                let came = name(now, *came);
                let text = match left.next() {
                    Some(left) => format!("{came} in place of {}, which {why}", name(now, *left)),
                    None => format!("{came} besides the others, who were fewer than the volume is to have"),
                };
                let t = Told::new(EventKind::MemberReplaced, text).of(volume);
                out.push(Told { shard: Some(id.to_string()), about: Some(came), ..t.decided(volume.changed) });
            }
        }
    }
    out.extend(heads(before, now, &format!("the old one {why}")));
    out
}

/// The word of an operator, and the members from then on.
fn forced(before: &State, now: &State, how: &RecoverShard) -> Vec<Told> {
    let Some((volume, head)) = now.volume(how.shard.volume).zip(how.chain.first()) else { return Vec::new() };
    let lost = how.lost.iter().map(|(n, _)| name(now, *n)).collect::<Vec<_>>().join(", ");
    let head = name(now, *head);
    let text = format!(
        "by the word of an operator view {} is to go on from {head}, at version {} (sequence {}), without {lost}: what \
         only these have is lost unless they answer before that",
        how.active, how.version, how.least
    );
    let t = Told::new(EventKind::Forced, text).of(volume);
    let told = Told { shard: Some(how.shard.to_string()), about: Some(head), ..t.decided(volume.changed) };
    let mut out: Vec<Told> = Some(told).filter(|_| how.by_force).into_iter().collect();
    out.extend(members(before, now, "is lost"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{CreateVolume, Outcome};
    use freebs_types::{ClusterId, Generation, Hash32, ShardId, VolumeId};

    /// Applies a command; what is told of it, as kind and text.
    fn step(state: &mut State, command: &Command) -> Vec<(EventKind, String)> {
        let before = state.clone();
        let _ = state.apply(command.clone());
        told(&before, command, state).into_iter().map(|t| (t.kind, t.text)).collect()
    }

    fn register(node: u64, start: u64) -> Command {
        let address = format!("127.0.0.1:{}", 7400 + node);
        Command::RegisterNode {
            node: NodeId(node),
            name: format!("node{node}"),
            address,
            workers: 1,
            start: StartNumber(start),
        }
    }

    fn three() -> State {
        let mut state = State::new(ClusterId::default());
        (1..=3).for_each(|n| drop(step(&mut state, &register(n, 1))));
        let new = CreateVolume { name: "a".into(), size: 1 << 30, ..CreateVolume::default() };
        let told = step(&mut state, &Command::CreateVolume(new));
        assert_eq!(told, [(EventKind::VolumeCreated, "1073741824 bytes, 3 copies, 1 shard".into())]);
        state
    }

    #[test]
    fn nodes_are_told_when_they_start_and_not_when_they_say_so_again() {
        let mut state = State::new(ClusterId::default());
        assert_eq!(step(&mut state, &register(1, 0)), [(EventKind::Node, "added, at 127.0.0.1:7401".into())]);
        let started = (EventKind::Node, "started, at 127.0.0.1:7401 (start 1)".into());
        assert_eq!(step(&mut state, &register(1, 1)), [started]);
        assert_eq!(step(&mut state, &register(1, 1)), []);
    }

    #[test]
    fn who_has_a_volume_is_told_with_who_had_it() {
        let mut state = three();
        let attach = |who: u8, force: bool| Command::AttachVolume {
            volume: VolumeId(1),
            identity: Hash32([who; 32]),
            name: format!("gw{who}"),
            force,
            since: None,
            lapsed: false,
        };
        assert_eq!(step(&mut state, &attach(1, false)), [(EventKind::Attached, "by gw1 (generation 1)".into())]);
        assert_eq!(step(&mut state, &attach(1, false)), [(EventKind::Attached, "by gw1 again (generation 2)".into())]);
        assert_eq!(step(&mut state, &attach(2, false)), [], "it was refused");
        let text = "by gw2 (generation 3), from gw1, forced".into();
        assert_eq!(step(&mut state, &attach(2, true)), [(EventKind::TakenOver, text)]);
        let detach = |g| Command::DetachVolume { volume: VolumeId(1), generation: Generation(g), settled: true };
        assert_eq!(step(&mut state, &detach(2)), [], "a late one");
        assert_eq!(step(&mut state, &detach(3)), [(EventKind::Detached, "by gw2".into())]);
    }

    #[test]
    fn a_failed_head_is_told_for_each_shard_with_its_own_revision() {
        let mut state = three();
        let new = CreateVolume { name: "b".into(), size: 1 << 30, shards: Some(3), ..CreateVolume::default() };
        step(&mut state, &Command::CreateVolume(new));
        let before = state.clone();
        let failed = NodeId(1);
        let lost: usize = before.volumes().flat_map(|v| &v.shards).filter(|s| s.head() == Some(failed)).count();
        assert!(lost > 0, "it heads something");
        let command = Command::FailOver { nodes: vec![(failed, StartNumber(1))] };
        state.apply(command.clone()).unwrap();
        let events = told(&before, &command, &state);
        assert_eq!(events.len(), lost);
        for e in &events {
            assert_eq!((e.kind, e.about.as_deref()), (EventKind::HeadMoved, Some("node1")));
            let volume = state.need(e.volume.as_deref().unwrap()).unwrap();
            assert_eq!(e.revision, Some(volume.changed));
        }
    }

    #[test]
    fn an_active_view_is_told_with_its_head() {
        let mut state = three();
        let shard = ShardId { volume: VolumeId(1), index: 0 };
        let head = state.shard(shard).unwrap().head().unwrap();
        let propose = Command::ProposeView { shard, active: ViewNumber(0), node: head, start: StartNumber(1) };
        let Outcome::Proposed { view, generation, .. } = state.apply(propose).unwrap().outcome else { panic!() };
        let told = step(&mut state, &Command::ActivateView { shard, view, generation });
        assert_eq!(told, [(EventKind::ViewActive, format!("view {view}, head node{head}"))]);
    }

    #[test]
    fn an_event_is_one_flat_object() {
        let told = Told::new(EventKind::Leader, "é".repeat(EVENT_TEXT_BYTES_MAX)).about("node2");
        assert_eq!(told.text.len(), EVENT_TEXT_BYTES_MAX);
        let event = Event { time_ms: 7, node: "node1".into(), told: Told { text: "t".into(), ..told } };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(json, r#"{"time_ms":7,"node":"node1","kind":"leader","about":"node2","text":"t"}"#);
        assert_eq!(serde_json::from_str::<Event>(&json).unwrap(), event);
    }
}
