//! Copies go by zone and room; copies and heads move.

use freebs_control::{Ack, Command, CreateVolume, Measured, Move, Shard, State};
use freebs_types::{ClusterId, ErrorKind, NodeId, ShardId, StartNumber, VolumeId};
use std::collections::BTreeSet;

const G: u64 = 1 << 30;
const NONE: BTreeSet<NodeId> = BTreeSet::new();

fn nodes(zones: &[&str], rooms: &[u64]) -> State {
    let mut s = State::new(ClusterId([7; 16]));
    for (n, zone) in (1..).zip(zones) {
        let (node, start) = (NodeId(n), StartNumber(1));
        let (name, address) = (format!("node{n}"), format!("h{n}:1"));
        s.apply(Command::RegisterNode { node, name, address, workers: 1, start }).unwrap();
        s.apply(Command::PlaceNode { node, zone: Some((*zone).into()), weight: None }).unwrap();
    }
    for (n, room) in (1..).zip(rooms) {
        measure(&mut s, n, *room, 0);
    }
    s
}

fn measure(s: &mut State, node: u64, room_bytes: u64, used_percent: u8) {
    let of = vec![Measured { node: NodeId(node), start: StartNumber(1), room_bytes, used_percent }];
    s.apply(Command::MeasureNodes { of }).unwrap();
}

fn create(s: &mut State, name: &str, size: u64, copies: u8, shards: u32) -> VolumeId {
    let (copies, shards) = (Some(copies), Some(shards));
    let new = CreateVolume { name: name.into(), size, copies, shards, ack: Ack::Majority, ..CreateVolume::default() };
    s.apply(Command::CreateVolume(new)).unwrap();
    let id = s.need(name).unwrap().id;
    (0..shards.unwrap()).for_each(|index| open(s, ShardId { volume: id, index }));
    id
}

fn shard(s: &State, id: ShardId) -> Shard {
    s.shard(id).unwrap().clone()
}

/// The head opens the view that follows, and all members have everything.
fn open(s: &mut State, id: ShardId) {
    let sh = shard(s, id);
    let node = sh.head().unwrap();
    s.apply(Command::ProposeView { shard: id, active: sh.active, node, start: StartNumber(1) }).unwrap();
    let (view, generation) = (shard(s, id).highest, s.volume(id.volume).unwrap().generation);
    s.apply(Command::ActivateView { shard: id, view, generation }).unwrap();
    let sh = shard(s, id);
    let nodes = [sh.joining, sh.learning].concat();
    s.apply(Command::MembersComplete { shard: id, view: sh.active, nodes }).unwrap();
}

/// Carries a copy's move out to its end.
fn carry_out(s: &mut State, m: Move) {
    s.apply(Command::MoveCopy { shard: m.shard, from: m.from, to: m.to }).unwrap();
    let copies = usize::from(s.volume(m.shard.volume).unwrap().copies);
    assert_eq!(shard(s, m.shard).members.len(), copies + 1, "one more, and none less");
    open(s, m.shard);
    s.apply(Command::DrainChains { away: Vec::new() }).unwrap();
    open(s, m.shard);
    let sh = shard(s, m.shard);
    assert!(!sh.members.contains(&m.from) && sh.members.contains(&m.to) && sh.leaves.is_none(), "{sh:?}");
    assert_eq!(sh.members.len(), copies);
    assert!(!sh.is_kept_by(m.from), "it frees what it had");
}

fn copies_at(s: &State, node: u64) -> usize {
    s.volumes().flat_map(|v| &v.shards).filter(|sh| sh.members.contains(&NodeId(node))).count()
}

#[test]
fn copies_go_to_different_zones() {
    for (zones, copies, different) in [
        (vec!["a", "a", "b", "b", "c", "c"], 3, 3),
        (vec!["a", "a", "a", "b"], 3, 2),
        (vec!["a", "a", "a", "a", "b", "c"], 3, 3),
        (vec!["a", "b", "a"], 2, 2),
    ] {
        let mut s = nodes(&zones, &[]);
        let id = create(&mut s, "v", 16 * G, copies, 8);
        for sh in &s.volume(id).unwrap().shards {
            let of: BTreeSet<&str> = sh.members.iter().map(|n| zones[n.0 as usize - 1]).collect();
            assert_eq!(of.len(), different, "{zones:?}: {:?}", sh.members);
        }
    }
}

#[test]
fn copies_go_by_room_and_weight() {
    // Twice the room, twice the copies.
    let mut s = nodes(&[""; 4], &[100 * G, 100 * G, 200 * G, 200 * G]);
    create(&mut s, "v", 48 * G, 1, 12);
    assert_eq!([1, 2, 3, 4].map(|n| copies_at(&s, n)).iter().sum::<usize>(), 12);
    // The single copy is the head, and heads go evenly; of two copies the second goes by room.
    let mut s = nodes(&[""; 4], &[100 * G, 100 * G, 400 * G, 400 * G]);
    create(&mut s, "v", 40 * G, 2, 10);
    let found = [1, 2, 3, 4].map(|n| copies_at(&s, n));
    assert!(found[0] + found[1] < found[2] + found[3], "{found:?}");
    // A weight of 0: nothing.
    let mut s = nodes(&[""; 4], &[100 * G; 4]);
    s.apply(Command::PlaceNode { node: NodeId(2), zone: None, weight: Some(0) }).unwrap();
    create(&mut s, "v", 40 * G, 3, 10);
    assert_eq!(copies_at(&s, 2), 0);
    // One that is full, and one that is filling up.
    let mut s = nodes(&[""; 4], &[100 * G; 4]);
    measure(&mut s, 1, 100 * G, 97);
    measure(&mut s, 2, 100 * G, 86);
    create(&mut s, "two", 8 * G, 2, 4);
    assert_eq!([copies_at(&s, 1), copies_at(&s, 2)], [0, 1].map(|n| n * copies_at(&s, 2)));
    create(&mut s, "four", 8 * G, 4, 1);
    assert_eq!(copies_at(&s, 1), 1, "a full node is better than none");
}

#[test]
fn a_copy_moves_and_never_are_there_fewer() {
    let mut s = nodes(&[""; 5], &[100 * G; 5]);
    let volume = create(&mut s, "v", G, 3, 1);
    let id = ShardId { volume, index: 0 };
    let before = shard(&s, id).members;
    let to = (1..=5).map(NodeId).find(|n| !before.contains(n)).unwrap();
    for (from, to, kind) in [
        (to, before[0], ErrorKind::Invalid),
        (before[0], before[1], ErrorKind::Invalid),
        (before[0], NodeId(9), ErrorKind::NotFound),
    ] {
        let e = s.apply(Command::MoveCopy { shard: id, from, to }).unwrap_err();
        assert_eq!(e.kind, kind, "{e}");
    }
    carry_out(&mut s, Move { shard: id, from: before[2], to });
    // Also the head's.
    let head = shard(&s, id).members[0];
    carry_out(&mut s, Move { shard: id, from: head, to: before[2] });
    // Not while another change is under way.
    let sh = shard(&s, id);
    let to = (1..=5).map(NodeId).find(|n| !sh.members.contains(n)).unwrap();
    s.apply(Command::MoveCopy { shard: id, from: sh.members[1], to }).unwrap();
    s.apply(Command::MoveCopy { shard: id, from: sh.members[1], to }).unwrap();
    let e = s.apply(Command::MoveCopy { shard: id, from: sh.members[2], to }).unwrap_err();
    assert!(matches!(e.kind, ErrorKind::Retry | ErrorKind::Invalid), "{e}");
    // The one that comes fails, while the view with it is being opened: all is as it was.
    let (active, node) = (sh.active, sh.members[0]);
    s.apply(Command::ProposeView { shard: id, active, node, start: StartNumber(1) }).unwrap();
    s.apply(Command::LeaveChains { failed: vec![(to, StartNumber(1))], shards: Vec::new() }).unwrap();
    let after = shard(&s, id);
    assert_eq!((after.members, after.leaves), (sh.members, None));
    let bytes = s.encode();
    assert_eq!(State::decode(&bytes).unwrap().encode(), bytes);
}

#[test]
fn a_move_is_kept_with_the_state() {
    let mut s = nodes(&["a", "b", "c", "d"], &[100 * G; 4]);
    let volume = create(&mut s, "v", G, 3, 1);
    let id = ShardId { volume, index: 0 };
    let members = shard(&s, id).members;
    let to = (1..=4).map(NodeId).find(|n| !members.contains(n)).unwrap();
    s.apply(Command::MoveCopy { shard: id, from: members[1], to }).unwrap();
    let again = State::decode(&s.encode()).unwrap();
    assert_eq!((shard(&again, id), again.node(to)), (shard(&s, id), s.node(to)));
    assert!(again.is_moving_from(members[1]));
}

#[test]
fn a_full_node_gives_its_largest_copy_to_one_with_room() {
    let mut s = nodes(&[""; 4], &[100 * G; 4]);
    let small = create(&mut s, "small", G, 3, 1);
    let large = create(&mut s, "large", 8 * G, 3, 1);
    let id = |volume| ShardId { volume, index: 0 };
    let both = (1..=4).find(|n| [small, large].iter().all(|v| shard(&s, id(*v)).members.contains(&NodeId(*n))));
    let full = NodeId(both.expect("of 3 copies on 4 nodes two share some"));
    measure(&mut s, full.0, 100 * G, 90);
    assert_eq!(s.relief(&NONE, full), None, "it is not full");
    measure(&mut s, full.0, 100 * G, 96);
    let m = s.relief(&NONE, full).expect("it is full");
    assert_eq!((m.shard, m.from), (id(large), full));
    // The others fill up, too: nothing is won.
    let others = (1..=4).map(NodeId).filter(|n| *n != full);
    others.for_each(|n| measure(&mut s, n.0, 100 * G, 88));
    assert_eq!(s.relief(&NONE, full), None);
}

#[test]
fn a_plan_evens_the_room_and_parts_what_shares_a_zone() {
    let mut s = nodes(&["", "", ""], &[100 * G; 3]);
    create(&mut s, "v", 60 * G, 2, 30);
    for n in 4..=6 {
        let (node, start, name, address) = (NodeId(n), StartNumber(1), format!("node{n}"), format!("h{n}:1"));
        s.apply(Command::RegisterNode { node, name, address, workers: 1, start }).unwrap();
        measure(&mut s, n, 100 * G, 0);
    }
    let plan = s.copy_moves(&NONE);
    assert_eq!(plan.len(), 30, "half of all 60 copies, and no more");
    assert!(plan.iter().all(|m| m.from.0 <= 3 && m.to.0 > 3), "{plan:?}");
    let away: BTreeSet<NodeId> = [NodeId(5)].into();
    assert!(s.copy_moves(&away).iter().all(|m| m.to != NodeId(5)));
    plan.into_iter().for_each(|m| carry_out(&mut s, m));
    assert_eq!([1, 2, 3, 4, 5, 6].map(|n| copies_at(&s, n)), [10; 6]);
    assert_eq!(s.copy_moves(&NONE), [], "it comes to rest");
    // Zones come later.
    for n in 1..=6 {
        let zone = Some(if n <= 4 { "a" } else { "b" }.to_owned());
        s.apply(Command::PlaceNode { node: NodeId(n), zone, weight: None }).unwrap();
    }
    for m in s.copy_moves(&NONE) {
        carry_out(&mut s, m);
    }
    let zone = |n: &NodeId| s.node(*n).unwrap().zone.clone();
    for sh in s.volumes().flat_map(|v| &v.shards) {
        assert_ne!(zone(&sh.members[0]), zone(&sh.members[1]), "{:?}", sh.members);
    }
}

#[test]
fn heads_are_spread_as_far_as_chains_allow() {
    let mut s = nodes(&[""; 3], &[]);
    let volume = create(&mut s, "v", 6 * G, 3, 6);
    for index in 0..6 {
        let id = ShardId { volume, index };
        s.apply(Command::MoveHead { shard: id, node: NodeId(1) }).unwrap();
        open(&mut s, id);
    }
    let only: BTreeSet<NodeId> = [NodeId(3)].into();
    let plan = s.head_moves(&NONE, Some(&only), 100);
    assert!(plan.len() == 3 && plan.iter().all(|m| m.to == NodeId(3)), "{plan:?}");
    let away = [NodeId(3)].into();
    assert!(s.head_moves(&away, Some(&only), 100).is_empty());
    let plan = s.head_moves(&NONE, None, 100);
    assert_eq!(s.head_moves(&NONE, None, 1), plan[..1]);
    for m in plan {
        s.apply(Command::MoveHead { shard: m.shard, node: m.to }).unwrap();
        open(&mut s, m.shard);
    }
    let heads = [1, 2, 3].map(|n| s.volumes().flat_map(|v| &v.shards).filter(|sh| sh.members[0].0 == n).count());
    assert_eq!(heads, [2, 2, 2]);
    assert!(s.head_moves(&NONE, None, 100).is_empty());
}

#[test]
fn words_about_places_are_looked_at() {
    let mut s = nodes(&[""; 2], &[]);
    let place = |s: &mut State, node, zone: Option<&str>, weight| {
        s.apply(Command::PlaceNode { node: NodeId(node), zone: zone.map(Into::into), weight })
    };
    for (node, zone, weight, kind) in [
        (9, Some("a"), None, ErrorKind::NotFound),
        (1, Some("a b/c\n"), None, ErrorKind::Invalid),
        (1, None, Some(1001), ErrorKind::Invalid),
    ] {
        assert_eq!(place(&mut s, node, zone, weight).unwrap_err().kind, kind);
    }
    place(&mut s, 1, Some("rack-1"), Some(250)).unwrap();
    let revision = s.revision();
    place(&mut s, 1, Some("rack-1"), None).unwrap();
    assert_eq!(s.revision(), revision, "nothing is new");
    // A measure of an older start counts no more; a new start keeps zone, weight and measure.
    measure(&mut s, 1, 5 * G, 40);
    let (name, address) = ("node1".into(), "h1:1".into());
    s.apply(Command::RegisterNode { node: NodeId(1), name, address, workers: 1, start: StartNumber(2) }).unwrap();
    measure(&mut s, 1, 6 * G, 50);
    let n = s.node(NodeId(1)).unwrap();
    assert_eq!((n.zone.as_str(), n.weight, n.room_bytes, n.used_percent), ("rack-1", 250, 5 * G, 40));
}

#[test]
fn a_move_is_stopped_as_long_as_nobody_has_come() {
    let mut s = nodes(&[""; 4], &[100 * G; 4]);
    let volume = create(&mut s, "v", G, 3, 1);
    let id = ShardId { volume, index: 0 };
    let members = shard(&s, id).members;
    let (from, to) = (members[0], (1..=4).map(NodeId).find(|n| !members.contains(n)).unwrap());
    s.apply(Command::MoveCopy { shard: id, from, to }).unwrap();
    assert_eq!(s.hopeless_moves(), []);
    measure(&mut s, to.0, 100 * G, 96);
    assert_eq!(s.hopeless_moves(), [(id, from)]);
    s.apply(Command::MoveCopy { shard: id, from, to: from }).unwrap();
    let after = shard(&s, id);
    assert_eq!((after.members, after.leaves, after.joining), (members.clone(), None, vec![]));
    // Where the other one has everything it goes on.
    s.apply(Command::MoveCopy { shard: id, from, to }).unwrap();
    open(&mut s, id);
    s.apply(Command::MoveCopy { shard: id, from, to: from }).unwrap();
    assert_eq!(shard(&s, id).leaves, Some(from));
}

/// A good copy left while another member was down: two were there of three, though three had been.
#[test]
fn who_is_lost_leaves_in_place_of_a_copy_that_moves() {
    let mut s = nodes(&[""; 4], &[100 * G; 4]);
    let volume = create(&mut s, "v", G, 3, 1);
    let id = ShardId { volume, index: 0 };
    let members = shard(&s, id).members;
    let (from, to) = (members[0], (1..=4).map(NodeId).find(|n| !members.contains(n)).unwrap());
    s.apply(Command::MoveCopy { shard: id, from, to }).unwrap();
    open(&mut s, id);
    let lost = members[1];
    s.apply(Command::DrainChains { away: vec![(lost, StartNumber(1))] }).unwrap();
    open(&mut s, id);
    let after = shard(&s, id);
    assert!(
        !after.members.contains(&lost) && after.members.contains(&from) && after.members.contains(&to),
        "{after:?}"
    );
    assert_eq!((after.members.len(), after.leaves), (3, None));
}
