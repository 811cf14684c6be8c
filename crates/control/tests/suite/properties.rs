//! Random commands keep the invariants; bytes and pages say the same as the state; nothing mutated panics.

use freebs_control::api::{Reply, Request};
use freebs_control::{Ack, Command, CreateVolume, Cut, Group, Keep, RecoverShard, Schedule, Shard, State, Volume};
use freebs_types::{
    ClusterId, Generation, Hash32, HostPublic, NodeId, Past, Sequence, ShardId, SnapshotId, StartNumber, Version,
    ViewNumber, VolumeId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Any command, each kind as often as another.
fn command() -> impl Strategy<Value = Command> {
    prop_oneof![4 => of_nodes(), 5 => of_volumes(), 5 => of_shards(), 4 => of_snapshots()]
}

fn of_snapshots() -> impl Strategy<Value = Command> {
    let volume = (0u64..20).prop_map(VolumeId);
    let name = (0u8..3).prop_map(|n| format!("s{n}"));
    let snapshot = (0u64..6).prop_map(SnapshotId);
    prop_oneof![
        2 => (volume.clone(), name.clone(), 0u64..9).prop_map(|(volume, name, created_ms)| Command::BeginSnapshot {
            name,
            volumes: vec![volume],
            created_ms,
            past: (created_ms == 8).then_some(Past::TimeMs(3)),
        }),
        3 => snapshot.clone().prop_map(|snapshot| Command::ReportCuts { snapshot, cuts: Vec::new() }),
        2 => snapshot.prop_map(|snapshot| Command::ConfirmCuts { snapshot, held: Vec::new() }),
        1 => (volume.clone(), name.clone()).prop_map(|(volume, name)| Command::DeleteSnapshot { volume, name, now_ms: 1 }),
        3 => (volume.clone(), name, 0u8..6).prop_map(|(volume, snapshot, n)| Command::CloneVolume {
            volume,
            snapshot,
            name: format!("v{n}")
        }),
        1 => volume.clone().prop_map(|volume| Command::FlattenVolume { volume }),
        1 => (volume, 0u64..3, 0u32..3).prop_map(|(volume, minutes, count)| Command::ScheduleSnapshots {
            volume,
            schedule: (minutes > 0)
                .then(|| Schedule { every_ms: minutes * 60_000, keep: vec![Keep { by: Group::Hour, count }] }),
        }),
    ]
}

fn of_nodes() -> impl Strategy<Value = Command> {
    prop_oneof![
        (0u64..6, 1u16..4, 0u64..5).prop_map(|(n, workers, start)| Command::RegisterNode {
            node: NodeId(n),
            name: format!("n{}", n % 5),
            address: "127.0.0.1:7400".into(),
            workers: workers.min(2),
            start: StartNumber(start),
        }),
        (0u64..6, 0u64..5, any::<u8>()).prop_map(|(node, start, key)| Command::NameHostKey {
            node: NodeId(node),
            start: StartNumber(start),
            key: HostPublic([key; 32]),
        }),
        proptest::collection::vec((0u64..6, 0u64..4), 0..3).prop_map(|nodes| Command::FailOver {
            nodes: nodes.into_iter().map(|(n, s)| (NodeId(n), StartNumber(s))).collect()
        }),
        proptest::collection::vec((0u64..6, 0u64..4), 0..3).prop_map(|nodes| {
            let away: Vec<_> = nodes.into_iter().map(|(n, s)| (NodeId(n), StartNumber(s))).collect();
            let waited = away.iter().skip(1).copied().collect();
            Command::ExtendChains { away, waited }
        }),
        proptest::collection::vec((0u64..6, 0u64..4), 0..3).prop_map(|nodes| {
            let mut failed: Vec<_> = nodes.into_iter().map(|(n, s)| (NodeId(n), StartNumber(s))).collect();
            let away = failed.split_off(failed.len().min(2));
            Command::StandIn { failed, away }
        }),
        (proptest::collection::vec((0u64..6, 0u64..4), 0..4), 0u64..8).prop_map(|(nodes, view)| Command::LeaveChains {
            failed: nodes.into_iter().map(|(n, s)| (NodeId(n), StartNumber(s))).collect(),
            shards: (view < 3).then_some((ShardId::new(1, 0), ViewNumber(view))).into_iter().collect(),
        }),
        (proptest::collection::vec((0u64..6, 0u64..4), 0..3), proptest::collection::vec((0u64..6, 0u64..4), 0..2))
            .prop_map(|(gone, failed)| {
                let nodes = |of: Vec<(u64, u64)>| of.into_iter().map(|(n, s)| (NodeId(n), StartNumber(s))).collect();
                Command::ReplaceMembers { gone: nodes(gone), failed: nodes(failed) }
            }),
    ]
}

fn of_volumes() -> impl Strategy<Value = Command> {
    let volume = (0u64..12).prop_map(VolumeId);
    let size = prop_oneof![Just(1u64 << 30), 0u64..1 << 45, (0u64..1 << 12).prop_map(|n| n << 28)];
    prop_oneof![
        (0u8..6, size.clone(), proptest::option::of(0u8..4), proptest::option::of(1u32..4), any::<(bool, bool)>())
            .prop_map(|(name, size, copies, shards, (all, alone))| Command::CreateVolume(CreateVolume {
                name: format!("v{name}"),
                size,
                copies,
                ack: if all { Ack::All } else { Ack::Majority },
                min_copies: alone.then_some(1),
                shards,
                ..CreateVolume::default()
            })),
        (volume.clone(), any::<bool>()).prop_map(|(volume, force)| Command::DeleteVolume { volume, force }),
        (volume.clone(), size).prop_map(|(volume, size)| Command::ResizeVolume { volume, size }),
        (volume.clone(), 0u8..8).prop_map(|(volume, name)| Command::RenameVolume { volume, name: format!("v{name}") }),
        (volume.clone(), 0u8..3, any::<bool>(), 0u64..9).prop_map(|(volume, who, force, since)| {
            Command::AttachVolume {
                volume,
                identity: Hash32([who; 32]),
                name: format!("g{who}"),
                force,
                since: (since < 6).then_some(Generation(since)),
                lapsed: since % 2 == 0 && since < 6,
            }
        }),
        (volume, 0u64..4).prop_map(|(volume, generation)| Command::DetachVolume {
            volume,
            generation: Generation(generation),
            settled: generation % 2 == 0
        }),
    ]
}

fn of_shards() -> impl Strategy<Value = Command> {
    let shard = (0u64..12, 0u32..4).prop_map(|(v, i)| ShardId::new(v, i));
    prop_oneof![
        (shard.clone(), 0u64..6, 1u64..6, 0u64..5).prop_map(|(shard, active, node, start)| Command::ProposeView {
            shard,
            active: ViewNumber(active),
            node: NodeId(node),
            start: StartNumber(start),
        }),
        (shard.clone(), 0u64..8, 0u64..4).prop_map(|(shard, view, generation)| Command::ActivateView {
            shard,
            view: ViewNumber(view),
            generation: Generation(generation),
        }),
        (shard.clone(), 0u64..8, 0u64..4).prop_map(|(shard, view, generation)| Command::ActivateBranch {
            shard,
            view: ViewNumber(view),
            generation: Generation(generation),
        }),
        (shard.clone(), 0u64..8, 0u64..4, proptest::collection::vec(0u64..6, 0..4)).prop_map(
            |(shard, view, generation, learning)| Command::ActivateClone {
                shard,
                view: ViewNumber(view),
                generation: Generation(generation),
                learning: learning.into_iter().map(NodeId).collect(),
            }
        ),
        (shard, 0u64..6).prop_map(|(shard, node)| Command::MoveHead { shard, node: NodeId(node) }),
        (0u64..6, 0u64..3, 0u64..6).prop_map(|(head, active, node)| Command::ReplaceHead {
            shard: ShardId::new(1, 0),
            head: NodeId(head),
            active: ViewNumber(active),
            node: NodeId(node)
        }),
        (0u64..6, proptest::collection::vec(0u64..6, 0..4)).prop_map(|(view, nodes)| Command::MembersComplete {
            shard: ShardId::new(1, 0),
            view: ViewNumber(view),
            nodes: nodes.into_iter().map(NodeId).collect()
        }),
        (proptest::collection::vec(1u64..6, 0..3), proptest::collection::vec(1u64..6, 0..4), 0u64..9).prop_map(
            |(survivors, chain, least)| {
                let ids = |of: &[u64]| of.iter().copied().map(NodeId).collect::<Vec<_>>();
                Command::RecoverShard(RecoverShard {
                    shard: ShardId::new(1, 0),
                    active: ViewNumber(least),
                    by_force: least % 3 > 0,
                    members: ids(&chain),
                    survivors: ids(&survivors).into_iter().map(|n| (n, StartNumber(least))).collect(),
                    lost: Vec::new(),
                    chain: ids(&chain),
                    least: Sequence(least),
                    version: Version(least),
                    known: Sequence(least + 1),
                    gives_up: if survivors.len() == 1 && chain.len() == 1 { least % 3 } else { 0 },
                    same: Sequence(least / 2),
                    learn: ids(&chain).into_iter().skip(1).filter(|n| n.0 > least).collect(),
                })
            }
        ),
    ]
}

/// As it would be asked for: one or two members survive, and others take the places of the rest.
fn aim_force(s: &State, how: RecoverShard) -> RecoverShard {
    let Some(sh) = s.shard(how.shard) else { return how };
    let with_start = |of: Vec<NodeId>| of.into_iter().map(|n| (n, s.node(n).unwrap().start)).collect();
    let of_view = sh.view_members();
    let survivors = of_view[..how.survivors.len().clamp(1, of_view.len())].to_vec();
    let all: BTreeSet<NodeId> = of_view.iter().chain(&sh.members).copied().collect();
    let lost: Vec<NodeId> = all.into_iter().filter(|n| !survivors.contains(n)).collect();
    let mut chain = vec![survivors[0]];
    chain.extend(survivors.iter().skip(1).take(usize::from(!how.least.0.is_multiple_of(2))));
    let others = s.nodes().filter(|n| n.start.0 > 0).map(|n| n.id);
    chain.extend(others.filter(|n| !survivors.contains(n) && !lost.contains(n)).take(2));
    let (active, members) = (sh.active, sh.members.clone());
    chain.truncate(if how.gives_up > 0 { 1 } else { chain.len() });
    let learn = chain.iter().skip(1).filter(|_| how.least.0 > 4).copied().collect();
    RecoverShard { active, members, survivors: with_start(survivors), lost: with_start(lost), chain, learn, ..how }
}

fn at_present(s: &State, of: Vec<(NodeId, StartNumber)>) -> Vec<(NodeId, StartNumber)> {
    of.into_iter().map(|(n, start)| (n, s.node(n).map_or(start, |n| n.start))).collect()
}

/// The cuts of a snapshot that is under way, or a clone of one that is there.
fn aim_snapshots(s: &State, c: &Command) -> Option<Command> {
    if let Command::CloneVolume { name, .. } = c {
        let found = s.snapshots().find(|s| s.is_complete())?;
        let (volume, snapshot) = (found.volumes[0].volume, found.name.clone());
        return Some(Command::CloneVolume { volume, snapshot, name: name.clone() });
    }
    let snapshot = s.snapshots_under_way().next()?;
    let shards: Vec<ShardId> = s.snapshot_record(snapshot)?.shards().collect();
    let active = |id: ShardId| (id, s.shard(id).map(|s| s.active).unwrap_or_default());
    let views = shards.into_iter().map(active);
    let cut = |(id, view)| (id, Cut { view, version: Version(7), sequence: Sequence(8) });
    Some(match c {
        Command::ReportCuts { .. } => Command::ReportCuts { snapshot, cuts: views.map(cut).collect() },
        _ => Command::ConfirmCuts { snapshot, held: views.collect() },
    })
}

/// The pending view of a shard and the present generation, if it is there.
fn aim_view(s: &State, shard: ShardId, view: ViewNumber, generation: Generation) -> (ViewNumber, Generation) {
    let pending = s.shard(shard).and_then(|s| s.pending).map_or(view, |p| p.view);
    (pending, s.volume(shard.volume).map_or(generation, |v| v.generation))
}

/// Turns some commands into ones that hit: the head's own proposal, the pending view, the present generation.
fn aim(s: &State, c: Command, aim: bool) -> Command {
    if !aim {
        return c;
    }
    match c {
        Command::ProposeView { shard, active, node, start } => match s.shard(shard) {
            Some(sh) => {
                let node = sh.head().unwrap();
                Command::ProposeView { shard, active: sh.active, node, start: s.node(node).unwrap().start }
            }
            None => Command::ProposeView { shard, active, node, start },
        },
        Command::ActivateView { shard, view, generation } => {
            let (view, generation) = aim_view(s, shard, view, generation);
            Command::ActivateView { shard, view, generation }
        }
        Command::ActivateBranch { shard, view, generation } => {
            let (view, generation) = aim_view(s, shard, view, generation);
            Command::ActivateBranch { shard, view, generation }
        }
        Command::ActivateClone { shard, view, generation, learning } => {
            let (view, generation) = aim_view(s, shard, view, generation);
            Command::ActivateClone { shard, view, generation, learning }
        }
        Command::ExtendChains { away, waited } => {
            Command::ExtendChains { away: at_present(s, away), waited: at_present(s, waited) }
        }
        Command::StandIn { failed, away } => {
            Command::StandIn { failed: at_present(s, failed), away: at_present(s, away) }
        }
        Command::LeaveChains { failed, shards } => {
            let active = |(id, view)| (id, s.shard(id).map_or(view, |s| s.active));
            Command::LeaveChains { failed: at_present(s, failed), shards: shards.into_iter().map(active).collect() }
        }
        Command::ReplaceMembers { gone, failed } => {
            Command::ReplaceMembers { gone: at_present(s, gone), failed: at_present(s, failed) }
        }
        Command::MembersComplete { shard, view, nodes } => match s.shard(shard) {
            Some(sh) => Command::MembersComplete { shard, view: sh.active, nodes: sh.joining.clone() },
            None => Command::MembersComplete { shard, view, nodes },
        },
        Command::RecoverShard(how) => Command::RecoverShard(aim_force(s, how)),
        Command::ReportCuts { .. } | Command::ConfirmCuts { .. } | Command::CloneVolume { .. } => {
            aim_snapshots(s, &c).unwrap_or(c)
        }
        other => other,
    }
}

/// A clone has a shard for each of its parent's, on the same workers, and views above those that the parent had given out
/// by then. Until all its shards have begun there is all that they need for that.
fn check_clone(s: &State, v: &Volume) {
    let Some(origin) = &v.origin else { return };
    assert_eq!(origin.volume.0 % 8, v.id.0 % 8, "it lies where its parent does");
    assert_eq!(origin.cuts.len(), v.shards.len());
    for (cut, shard) in origin.cuts.iter().zip(&v.shards) {
        assert!(shard.highest >= cut.view && (shard.active.0 == 0 || shard.active > cut.view));
        let fork = v.fork(shard.index).expect("it is a clone's");
        assert_eq!((fork.parent, fork.version), (ShardId { volume: origin.volume, index: shard.index }, cut.version));
    }
    if v.shards.iter().any(|s| s.active.0 == 0) {
        assert!(s.kept_snapshots(origin.volume).contains(&origin.snapshot), "it can begin");
    }
}

/// What may only grow, per volume and shard.
#[derive(Default)]
struct Seen {
    ids: BTreeSet<VolumeId>,
    gone: BTreeSet<VolumeId>,
    views: BTreeMap<ShardId, (ViewNumber, ViewNumber)>,
    generations: BTreeMap<VolumeId, Generation>,
    sizes: BTreeMap<VolumeId, u64>,
    starts: BTreeMap<NodeId, StartNumber>,
    proposed: BTreeSet<(ShardId, ViewNumber)>,
    /// Who had everything of a shard, in the state before.
    whole: BTreeMap<ShardId, BTreeSet<NodeId>>,
    /// Members of active views.
    members: BTreeMap<(ShardId, ViewNumber), BTreeSet<NodeId>>,
    /// Shards that went on without lost members, by force or not, and those whose chains became shorter.
    recovered: BTreeSet<ShardId>,
    /// Shards in which nodes stood in.
    stood: BTreeSet<ShardId>,
    /// Newest branches.
    branches: BTreeMap<ShardId, (ViewNumber, Sequence)>,
    revision: u64,
}

impl Seen {
    /// Who seals a view is always who was in it (V2); only who has everything leads; and as long as somebody learns,
    /// nobody that had everything may forget it (V7).
    fn check_members(&mut self, id: ShardId, sh: &Shard, is_clone: bool) {
        let of_view: BTreeSet<NodeId> = sh.view_members().iter().copied().collect();
        if sh.active.0 > 0 {
            assert_eq!(self.members.entry((id, sh.active)).or_insert_with(|| of_view.clone()), &of_view, "V2");
        }
        assert!(!sh.joining.contains(&sh.head().unwrap()), "V1");
        assert!(sh.learning.iter().all(|n| of_view.contains(n)), "V2");
        assert!(!sh.active_members.is_empty() || sh.learning.iter().all(|n| sh.joining.contains(n)), "V2");
        let before = self.whole.entry(id).or_default();
        if !sh.joining.is_empty() || !sh.active_members.is_empty() {
            assert!(before.iter().all(|n| sh.is_kept_by(*n)), "V7");
        }
        assert!(sh.away.iter().all(|n| !sh.members.contains(n) || sh.joining.contains(n)), "V13");
        assert!(sh.away.is_empty() || sh.active.0 > 0, "V13");
        assert!(sh.standing.iter().all(|n| sh.joining.contains(n)), "V21");
        let holders = sh.members.iter().chain(&sh.active_members).chain(&sh.keepers);
        // A clone has something to keep from the start.
        let has_past = sh.active.0 > 0 || is_clone;
        *before = holders.filter(|n| has_past && !sh.joining.contains(n)).copied().collect();
        if let Some(forced) = &sh.forced {
            // Nobody counts on nodes that are lost for good (V10).
            before.retain(|n| forced.survivors.contains(n) || sh.keepers.contains(n));
            assert!(sh.active.0 > 0 && forced.survivors.contains(&sh.head().unwrap()), "V10");
        }
        if let Some(branch) = sh.branch {
            let (view, at) = self.branches.insert(id, (branch.view, branch.at)).unwrap_or((branch.view, branch.at));
            assert!(branch.view >= view && branch.at <= at && branch.view <= sh.active, "V10");
        } else {
            assert!(!self.branches.contains_key(&id), "a branch is not forgotten (V10)");
        }
    }

    fn check(&mut self, s: &State) {
        assert!(s.revision() >= self.revision);
        self.revision = s.revision();
        let names: BTreeSet<&str> = s.volumes().map(|v| v.name.as_str()).collect();
        assert_eq!(names.len(), s.volumes().len(), "names are unique");
        let node_names: BTreeSet<&str> = s.nodes().map(|n| n.name.as_str()).collect();
        assert_eq!(node_names.len(), s.nodes().len(), "names of nodes are unique");
        for n in s.nodes() {
            let start = self.starts.entry(n.id).or_default();
            assert!(n.start >= *start, "start numbers only grow (V8)");
            *start = n.start;
        }
        for v in s.volumes() {
            assert_eq!(s.volume_by_name(&v.name).unwrap().id, v.id);
            assert!(!self.gone.contains(&v.id), "an id is never used again");
            self.ids.insert(v.id);
            assert!(v.generation >= *self.generations.entry(v.id).or_default());
            self.generations.insert(v.id, v.generation);
            assert!(v.size >= *self.sizes.entry(v.id).or_default());
            self.sizes.insert(v.id, v.size);
            check_clone(s, v);
            let has_standing = |s: &&Shard| !s.standing.is_empty();
            self.stood.extend(v.shards.iter().filter(has_standing).map(|s| v.shard_id(s.index)));
            let lengths = usize::from(v.min_copies)..=usize::from(v.copies);
            // Who is back comes before its stand-in leaves (V21).
            let has_both =
                |s: &Shard| s.members.len() == lengths.end() + 1 && self.stood.contains(&v.shard_id(s.index));
            // Only a chain that was recovered, or left by failed members, may be shorter than the volume is to have it.
            let is_long =
                |s: &Shard| s.members.len() == *lengths.end() || self.recovered.contains(&v.shard_id(s.index));
            assert!(v.shards.iter().all(|s| has_both(s) || (lengths.contains(&s.members.len()) && is_long(s))), "V1");
            for sh in &v.shards {
                let id = v.shard_id(sh.index);
                let (highest, active) = self.views.entry(id).or_default();
                assert!(sh.highest >= *highest && sh.active >= *active, "views only grow");
                if sh.active > *active {
                    assert!(self.proposed.contains(&(id, sh.active)), "only what was pending becomes active (V6)");
                }
                (*highest, *active) = (sh.highest, sh.active);
                self.check_members(id, sh, v.origin.is_some());
                self.proposed.extend(sh.pending.map(|p| (id, p.view)));
            }
        }
        let alive: BTreeSet<VolumeId> = s.volumes().map(|v| v.id).collect();
        self.gone.extend(self.ids.iter().filter(|id| !alive.contains(id)));
    }
}

fn follow(follower: &mut State, leader: &State) {
    loop {
        let page = leader.changes_since(follower.revision());
        let more = page.more;
        let json = Reply::encode(Ok(Reply::Changes(page)));
        let Ok(Reply::Changes(page)) = Reply::decode(&json) else { panic!("a page comes back as it was") };
        follower.take_in(page).unwrap();
        if !more {
            break;
        }
    }
    assert_eq!(follower.revision(), leader.revision());
    assert!(follower.nodes().eq(leader.nodes()));
    assert!(follower.volumes().eq(leader.volumes()));
}

proptest! {
    #[test]
    fn random_commands_keep_the_invariants(commands in proptest::collection::vec((command(), any::<bool>(), 0u8..4), 1..120)) {
        let cluster = ClusterId([3; 16]);
        let (mut s, mut twin, mut follower) = (State::new(cluster), State::new(cluster), State::new(cluster));
        let mut seen = Seen::default();
        for (c, hit, look) in commands {
            let c = aim(&s, c, hit);
            let Ok(Request::Submit { command }) = Request::decode(&Request::Submit { command: c.clone() }.encode()) else {
                panic!("a command comes back as it was");
            };
            prop_assert_eq!(&command, &c);
            let before = s.clone();
            let recovered = if let Command::RecoverShard(how) = &c { Some(how.shard) } else { None };
            let leaves = matches!(c, Command::LeaveChains { .. });
            let done = s.apply(c);
            seen.recovered.extend(recovered.filter(|_| done.is_ok()));
            let left = before.volumes().flat_map(|v| v.shards.iter().map(|sh| v.shard_id(sh.index)));
            // A clone of one of these may be as short.
            let is_clone = |v: &&std::sync::Arc<Volume>| before.volume(v.id).is_none() && v.origin.is_some();
            let short = |v: &Volume, sh: &Shard| sh.members.len() < usize::from(v.copies);
            let clones = s.volumes().filter(is_clone);
            let clones = clones.flat_map(|v| v.shards.iter().filter(|sh| short(v, sh)).map(|sh| v.shard_id(sh.index)));
            seen.recovered.extend(clones.collect::<Vec<_>>());
            let is_shorter = |id: &ShardId| {
                let len = |s: &State| s.shard(*id).map_or(0, |sh| sh.members.len());
                leaves && len(&s) < len(&before)
            };
            seen.recovered.extend(left.filter(is_shorter));
            prop_assert_eq!(&done, &twin.apply(command), "the same commands give the same");
            if done.is_err() {
                prop_assert_eq!(&s, &before, "a refused command changes nothing");
            }
            seen.check(&s);
            if look == 0 {
                follow(&mut follower, &s);
            }
        }
        follow(&mut follower, &s);
        prop_assert_eq!(&State::decode(&s.encode()).unwrap(), &s);
        prop_assert_eq!(&s, &twin);
        // A watcher that knows a future which was lost gets everything anew.
        let mut lost = State::new(cluster);
        follow(&mut lost, &s);
        let older = State::new(cluster);
        follow(&mut lost, &older);
    }

    #[test]
    fn mutated_state_is_refused_and_never_panics(
        commands in proptest::collection::vec(command(), 1..30), at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>()
    ) {
        let mut s = State::new(ClusterId([3; 16]));
        for c in commands {
            let _ = s.apply(c);
        }
        let good = s.encode();
        let mut bad = good.clone();
        let i = at.index(bad.len());
        bad[i] ^= 1 << bit;
        prop_assert!(State::decode(&bad).is_err(), "bit {} of byte {}", bit, i);
        prop_assert!(State::decode(&good[..cut.index(good.len())]).is_err());
    }

    #[test]
    fn wild_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = State::decode(&bytes);
        let _ = Request::decode(&bytes);
        let _ = Reply::decode(&bytes);
    }

    /// A body whose checksums are right and whose fields were changed is checked, too.
    #[test]
    fn a_body_with_wrong_fields_never_panics(
        commands in proptest::collection::vec(command(), 1..40), at in any::<prop::sample::Index>(), digit in b'0'..=b'9'
    ) {
        let mut s = State::new(ClusterId([3; 16]));
        for c in commands {
            let _ = s.apply(c);
        }
        let page = Reply::encode(Ok(Reply::Changes(s.changes_since(0))));
        let mut bad = page.clone();
        let digits: Vec<usize> = (0..bad.len()).filter(|i| bad[*i].is_ascii_digit()).collect();
        bad[digits[at.index(digits.len())]] = digit;
        if let Ok(Reply::Changes(page)) = Reply::decode(&bad) {
            let mut follower = State::new(ClusterId([3; 16]));
            if follower.take_in(page).is_ok() {
                let _ = follower.encode();
                let _ = follower.changes_since(0);
            }
        }
    }
}

#[test]
fn pages_are_cut_and_old_deletions_forgotten() {
    let mut s = State::new(ClusterId([3; 16]));
    let register = |n: u64| Command::RegisterNode {
        node: NodeId(n),
        name: format!("n{n}"),
        address: "127.0.0.1:7400".into(),
        workers: 1,
        start: StartNumber(1),
    };
    (1..4).for_each(|n| {
        s.apply(register(n)).unwrap();
    });
    let create = |i: u64| {
        Command::CreateVolume(CreateVolume {
            name: format!("v{i}"),
            size: 1 << 30,
            shards: Some(4),
            ..Default::default()
        })
    };
    (0..4000).for_each(|i| {
        s.apply(create(i)).unwrap();
    });
    assert!(s.changes_since(0).more);
    let mut follower = State::new(ClusterId([3; 16]));
    follower.take_in(s.changes_since(0)).unwrap();
    // Between two pages, some of what the watcher has is deleted, and more than is remembered.
    for i in 0..2000u64 {
        s.apply(Command::DeleteVolume { volume: VolumeId(i + 1), force: false }).unwrap();
    }
    follow(&mut follower, &s);
    let mut late = follower.clone();
    for i in 0..5000 {
        s.apply(create(10_000 + i)).unwrap();
        let id = s.volume_by_name(&format!("v{}", 10_000 + i)).unwrap().id;
        s.apply(Command::DeleteVolume { volume: id, force: false }).unwrap();
    }
    s.apply(Command::DeleteVolume { volume: VolumeId(3000), force: false }).unwrap();
    assert!(s.changes_since(late.revision()).alive.is_some());
    follow(&mut late, &s);
    assert!(Reply::encode(Ok(Reply::Changes(s.changes_since(0)))).len() < freebs_types::limits::CONTROL_BODY_BYTES_MAX);
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
}
