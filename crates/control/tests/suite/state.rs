//! What each command does and refuses, one test per rule.

use freebs_control::{Ack, Command, CreateVolume, Outcome, State, rules};
use freebs_types::{
    ClusterId, ErrorKind, Generation, Hash32, HostPublic, NodeId, ShardId, StartNumber, ViewNumber, VolumeId,
};

const G: u64 = 1 << 30;
const T: u64 = 1 << 40;

fn register(node: u64, start: u64) -> Command {
    Command::RegisterNode {
        node: NodeId(node),
        name: format!("node{node}"),
        address: format!("127.0.0.1:{}", 7399 + node),
        workers: 1,
        start: StartNumber(start),
    }
}

fn cluster(nodes: u64) -> State {
    let mut s = State::new(ClusterId([7; 16]));
    for n in 1..=nodes {
        s.apply(register(n, 1)).unwrap();
    }
    s
}

fn create(name: &str, size: u64) -> CreateVolume {
    CreateVolume { name: name.into(), size, ..CreateVolume::default() }
}

fn kind(s: &mut State, c: Command) -> ErrorKind {
    let before = s.clone();
    let e = s.apply(c).unwrap_err();
    assert_eq!(*s, before, "a refused command changes nothing");
    e.kind
}

fn text(s: &mut State, c: CreateVolume) -> String {
    s.apply(Command::CreateVolume(c)).unwrap_err().to_string()
}

#[test]
fn defaults_of_a_volume() {
    let mut s = cluster(3);
    assert_eq!(
        s.apply(Command::CreateVolume(create("demo", 10 * G))).unwrap().outcome,
        Outcome::Created { volume: VolumeId(1) }
    );
    let v = s.volume_by_name("demo").unwrap();
    assert_eq!((v.copies, v.min_copies, v.ack, v.stripe, v.shards.len()), (3, 2, Ack::Majority, 1 << 20, 1));
    assert_eq!((v.shards[0].active, v.shards[0].pending, v.generation), (ViewNumber(0), None, Generation(0)));
    assert_eq!((v.quorum(3), v.quorum(2), v.quorum(1)), (2, 2, 1));
    let mut one = cluster(1);
    one.apply(Command::CreateVolume(create("demo", G))).unwrap();
    let v = one.volume_by_name("demo").unwrap();
    assert_eq!((v.copies, v.min_copies, v.quorum(1)), (1, 1, 1));
}

#[test]
fn shards_by_size() {
    let table = [
        (G, 1),
        (64 * G - 512, 1),
        (64 * G, 1),
        (64 * G + 512, 2),
        (200 * G, 4),
        (10 * T, 16),
        (16 * T, 17),
        (40 * T, 41),
    ];
    for (size, shards) in table {
        assert_eq!(rules::default_shards(size), shards, "{}", rules::format_size(size));
        rules::check_shards(size, 1 << 20, shards).unwrap();
    }
    assert!(rules::check_shards(3 * T, 1 << 20, 2).unwrap_err().to_string().contains("more --shards"));
    assert!(rules::check_shards(T, 1 << 20, 0).is_err());
    assert!(rules::check_shards(T, 1 << 20, 1).is_ok());
    assert!(rules::check_shards(T + 512, 1 << 20, 1).is_err());
    assert!(rules::check_shards(G, 1 << 20, 1025).is_err());
}

#[test]
fn bad_requests_say_the_way_out() {
    let mut s = cluster(3);
    s.apply(Command::CreateVolume(create("demo", G))).unwrap();
    for name in ["", "-x", ".x", "a b", "a/b", "ü", &"x".repeat(129), "a\n"] {
        assert!(text(&mut s, create(name, G)).contains("choose one such as"), "{name:?}");
    }
    assert!(text(&mut s, create("demo", G)).contains("already"));
    assert!(text(&mut s, create("x", 10)).contains("did you mean 10G"));
    assert!(text(&mut s, create("x", (1 << 20) + 5)).contains("the nearest are 1048576 and 1049088"));
    assert!(text(&mut s, CreateVolume { copies: Some(5), ..create("x", G) }).contains("--copies 3"));
    assert!(text(&mut s, CreateVolume { copies: Some(0), ..create("x", G) }).contains("1 to 7"));
    assert!(text(&mut s, CreateVolume { min_copies: Some(4), ..create("x", G) }).contains("(3)"));
    assert!(text(&mut s, CreateVolume { stripe: Some(100_000), ..create("x", G) }).contains("power of two"));
    assert!(text(&mut s, CreateVolume { shards: Some(2000), ..create("x", G) }).contains("1024"));
    assert_eq!(kind(&mut State::new(ClusterId([1; 16])), Command::CreateVolume(create("x", G))), ErrorKind::Retry);
}

#[test]
fn volumes_grow_and_never_shrink() {
    let mut s = cluster(1);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    let resize = |size| Command::ResizeVolume { volume: VolumeId(1), size };
    assert_eq!(s.apply(resize(2 * G)).unwrap().outcome, Outcome::Resized { size: 2 * G });
    assert_eq!(kind(&mut s, resize(G)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, resize(2 * T)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, resize(3 * G + 1)), ErrorKind::Invalid);
    let revision = s.revision();
    s.apply(resize(2 * G)).unwrap();
    assert_eq!(s.revision(), revision, "a repeat changes nothing");
}

#[test]
fn a_volume_that_is_renamed_is_the_same_volume() {
    let mut s = cluster(1);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    s.apply(Command::CreateVolume(create("b", G))).unwrap();
    let rename = |name: &str| Command::RenameVolume { volume: VolumeId(1), name: name.into() };
    assert!(s.apply(rename("b")).unwrap_err().text.contains("'b' already"));
    assert_eq!(kind(&mut s, rename("no/name")), ErrorKind::Invalid);
    let nobody = Command::RenameVolume { volume: VolumeId(9), name: "x".into() };
    assert_eq!(kind(&mut s, nobody), ErrorKind::NotFound);
    assert_eq!(s.apply(rename("c")).unwrap().outcome, Outcome::Named);
    assert_eq!(s.need("c").unwrap().id, VolumeId(1));
    assert_eq!(s.need("a").unwrap_err().kind, ErrorKind::NotFound);
    let revision = s.revision();
    s.apply(rename("c")).unwrap();
    assert_eq!(s.revision(), revision, "a repeat changes nothing");
    s.apply(Command::CreateVolume(create("a", G))).expect("the old name is free");
    assert_eq!(s.need("c").unwrap().description().name, "c", "the next view frame says it");
}

#[test]
fn heads_and_copies_are_spread_evenly() {
    let mut s = cluster(5);
    for i in 0..50 {
        let c = CreateVolume { copies: Some(3), shards: Some(1 + i % 4), ..create(&format!("v{i}"), G) };
        s.apply(Command::CreateVolume(c)).unwrap();
    }
    let (mut heads, mut copies) = ([0; 6], [0; 6]);
    for shard in s.volumes().flat_map(|v| &v.shards) {
        heads[shard.members[0].0 as usize] += 1;
        shard.members.iter().for_each(|m| copies[m.0 as usize] += 1);
    }
    let spread = |x: &[i32]| x.iter().max().unwrap() - x.iter().min().unwrap();
    assert!(spread(&heads[1..]) <= 1, "{heads:?}");
    assert!(spread(&copies[1..]) <= 2, "{copies:?}");
}

/// W2 and V6: who may propose, which view may become active.
#[test]
fn views_are_opened_by_their_head_in_its_present_start() {
    let mut s = cluster(3);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    let shard = ShardId::new(1, 0);
    let head = s.shard(shard).unwrap().head().unwrap();
    let other = NodeId(head.0 % 3 + 1);
    let propose = |node, start, active| Command::ProposeView {
        shard,
        active: ViewNumber(active),
        node,
        start: StartNumber(start),
    };
    let activate =
        |view, generation| Command::ActivateView { shard, view: ViewNumber(view), generation: Generation(generation) };
    let proposed = |view, pred, generation| Outcome::Proposed {
        view: ViewNumber(view),
        pred: ViewNumber(pred),
        generation: Generation(generation),
    };
    assert_eq!(kind(&mut s, propose(other, 1, 0)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, propose(head, 2, 0)), ErrorKind::Retry);
    assert_eq!(kind(&mut s, activate(0, 0)), ErrorKind::Fenced);
    assert_eq!(s.apply(propose(head, 1, 0)).unwrap().outcome, proposed(1, 0, 0));
    // The head starts again: its older proposal is replaced, and its older self refused.
    s.apply(register(head.0, 2)).unwrap();
    assert_eq!(kind(&mut s, propose(head, 1, 0)), ErrorKind::Fenced);
    assert_eq!(s.apply(propose(head, 2, 0)).unwrap().outcome, proposed(2, 0, 0));
    assert_eq!(kind(&mut s, activate(1, 0)), ErrorKind::Fenced);
    // An attachment between proposal and activation: the view frame has an old generation in it. Asking again would
    // never help (a head once did so for ever): only a new proposal does.
    let attach = Command::AttachVolume {
        volume: VolumeId(1),
        identity: Hash32([1; 32]),
        name: "gateway".into(),
        force: false,
        since: None,
        lapsed: false,
    };
    s.apply(attach).unwrap();
    assert_eq!(kind(&mut s, activate(2, 0)), ErrorKind::Fenced);
    assert_eq!(s.apply(activate(2, 1)).unwrap().outcome, Outcome::Activated);
    assert_eq!(s.apply(activate(2, 1)).unwrap().outcome, Outcome::Activated, "a repeat is no error");
    let sh = s.shard(shard).unwrap();
    assert_eq!((sh.active, sh.head_start, sh.pending), (ViewNumber(2), StartNumber(2), None));
    assert_eq!(kind(&mut s, propose(head, 2, 0)), ErrorKind::Retry);
    assert_eq!(kind(&mut s, propose(head, 2, 1)), ErrorKind::Retry);
    assert_eq!(s.apply(propose(head, 2, 2)).unwrap().outcome, proposed(3, 2, 1));
    assert_eq!(s.shard(shard).unwrap().active, ViewNumber(2), "the predecessor stays until the new one is active");
}

/// A head that was moved away can't make its view active, and the new one is asked for from then on.
#[test]
fn a_head_is_moved_to_another_member() {
    let mut s = cluster(4);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    let shard = ShardId::new(1, 0);
    let members = s.shard(shard).unwrap().members.clone();
    let start = StartNumber(1);
    let propose = |node, active| Command::ProposeView { shard, active: ViewNumber(active), node, start };
    let activate = |view| Command::ActivateView { shard, view: ViewNumber(view), generation: Generation(0) };
    s.apply(propose(members[0], 0)).unwrap();
    s.apply(activate(1)).unwrap();
    s.apply(propose(members[0], 1)).unwrap();
    let outside = (1..=4).map(NodeId).find(|n| !members.contains(n)).unwrap();
    assert_eq!(kind(&mut s, Command::MoveHead { shard, node: outside }), ErrorKind::Invalid);
    let done = s.apply(Command::MoveHead { shard, node: members[2] }).unwrap();
    assert_eq!(done.outcome, Outcome::Moved);
    assert_eq!(s.shard(shard).unwrap().members, [members[2], members[0], members[1]]);
    let again = s.apply(Command::MoveHead { shard, node: members[2] }).unwrap();
    assert_eq!(again.revision, done.revision, "a repeat changes nothing");
    assert_eq!(kind(&mut s, activate(2)), ErrorKind::Fenced, "V6");
    assert_eq!(kind(&mut s, propose(members[0], 1)), ErrorKind::Invalid);
    let outcome = s.apply(propose(members[2], 1)).unwrap().outcome;
    let expected = Outcome::Proposed { view: ViewNumber(3), pred: ViewNumber(1), generation: Generation(0) };
    assert_eq!(outcome, expected);
    assert_eq!(s.apply(activate(3)).unwrap().outcome, Outcome::Activated);
}

/// All shards of a failed head get their next member in one command, and only while it is the start that failed.
#[test]
fn heads_of_a_failed_node_go_to_the_next_member() {
    let mut s = cluster(5);
    let wide = CreateVolume { shards: Some(8), ..create("a", 512 * G) };
    s.apply(Command::CreateVolume(wide)).unwrap();
    s.apply(Command::CreateVolume(CreateVolume { copies: Some(1), ..create("b", G) })).unwrap();
    s.apply(Command::CreateVolume(CreateVolume { copies: Some(2), ..create("c", G) })).unwrap();
    let chains = |s: &State| -> Vec<Vec<NodeId>> {
        s.volumes().flat_map(|v| v.shards.iter().map(|s| s.members.clone())).collect()
    };
    let before = chains(&s);
    let revision = s.revision();
    let fail = |nodes: &[(u64, u64)]| Command::FailOver {
        nodes: nodes.iter().map(|(n, start)| (NodeId(*n), StartNumber(*start))).collect(),
    };
    s.apply(fail(&[(1, 7), (9, 1)])).unwrap();
    assert_eq!(s.revision(), revision, "another start, and a node that nobody knows");
    s.apply(fail(&[(1, 1), (2, 1)])).unwrap();
    for (old, new) in before.iter().zip(chains(&s)) {
        let is_gone = |n: &NodeId| n.0 <= 2;
        let (gone, left): (Vec<NodeId>, Vec<NodeId>) = old.iter().copied().partition(is_gone);
        // Of three copies two are needed, of two both.
        if !is_gone(&old[0]) || left.len() < 2 {
            assert_eq!(*old, new);
        } else {
            assert_eq!([left, gone].concat(), new);
        }
    }
    assert!(before.iter().zip(chains(&s)).any(|(old, new)| *old != new));
    let failed = [NodeId(1), NodeId(2)].into();
    assert!(s.heads_without(&failed).is_empty(), "whoever could be moved was");
    let revision = s.revision();
    s.apply(fail(&[(1, 1), (2, 1)])).unwrap();
    assert_eq!(s.revision(), revision, "a repeat changes nothing");
    let most: Vec<(u64, u64)> = (1..=57).map(|n| (n, 1)).collect();
    assert_eq!(kind(&mut s, fail(&most)), ErrorKind::Invalid);
}

/// A member that is gone is replaced by a node to spare: the old members seal the old view, the new one learns, and only
/// then those that were members before may forget.
#[test]
fn members_that_are_gone_are_replaced() {
    let mut s = cluster(5);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    let (shard, start) = (ShardId::new(1, 0), StartNumber(1));
    let [a, b, c] = s.shard(shard).unwrap().members[..] else { panic!("three copies") };
    let activate = |view| Command::ActivateView { shard, view: ViewNumber(view), generation: Generation(0) };
    let propose = |node, active| Command::ProposeView { shard, active: ViewNumber(active), node, start };
    let replace = |gone: &[NodeId], failed: &[NodeId]| {
        let of = |nodes: &[NodeId]| nodes.iter().map(|n| (*n, start)).collect();
        Command::ReplaceMembers { gone: of(gone), failed: of(failed) }
    };
    let complete =
        |view, nodes: &[NodeId]| Command::MembersComplete { shard, view: ViewNumber(view), nodes: nodes.to_vec() };
    s.apply(propose(a, 0)).unwrap();
    s.apply(activate(1)).unwrap();
    let [d, e] = (1..=5).map(NodeId).filter(|n| ![a, b, c].contains(n)).collect::<Vec<_>>()[..] else { panic!("five") };

    let before = s.clone();
    let later = Command::ReplaceMembers { gone: vec![(b, StartNumber(2))], failed: Vec::new() };
    s.apply(later).unwrap();
    s.apply(replace(&[b, c], &[])).unwrap();
    s.apply(replace(&[b], &[d, e])).unwrap();
    assert_eq!(s, before, "another start; too few are left; nobody is to spare");

    s.apply(replace(&[b], &[d])).unwrap();
    let of = |s: &State| s.shard(shard).unwrap().clone();
    let now = of(&s);
    assert_eq!((now.members.clone(), now.view_members().to_vec()), (vec![a, c, e], vec![a, b, c]));
    assert_eq!((now.joining.clone(), now.keepers.clone()), (vec![e], vec![b]));
    assert_eq!(kind(&mut s, Command::MoveHead { shard, node: e }), ErrorKind::Retry, "it has nothing yet");
    assert_eq!(kind(&mut s, complete(1, &[e])), ErrorKind::Fenced, "it is no member of view 1");
    assert_eq!(s.encode()[4], 3);
    assert_eq!(State::decode(&s.encode()).unwrap(), s);

    // Before its view is active it goes, too; the one that was there before is back, and has the most.
    s.apply(propose(a, 1)).unwrap();
    s.apply(replace(&[e], &[])).unwrap();
    assert_eq!(kind(&mut s, activate(2)), ErrorKind::Fenced, "V6");
    let now = of(&s);
    assert_eq!((now.members.clone(), now.joining, now.keepers), (vec![a, c, b], vec![b], vec![]));
    s.apply(replace(&[b], &[e])).unwrap();
    let now = of(&s);
    assert_eq!((now.members.clone(), now.view_members().to_vec()), (vec![a, c, d], vec![a, b, c]), "V2");
    s.apply(propose(a, 1)).unwrap();
    s.apply(activate(3)).unwrap();
    let now = of(&s);
    assert_eq!((now.view_members().to_vec(), now.joining.clone()), (vec![a, c, d], vec![d]));
    // Of those that are left, who has everything is head first.
    s.apply(Command::FailOver { nodes: vec![(a, start)] }).unwrap();
    assert_eq!(of(&s).members, [c, d, a]);
    s.apply(propose(c, 3)).unwrap();
    assert_eq!(kind(&mut s, complete(4, &[d])), ErrorKind::Fenced, "view 4 is not active yet");
    s.apply(activate(4)).unwrap();
    let revision = s.apply(complete(4, &[d])).unwrap().revision;
    assert_eq!(s.apply(complete(4, &[d])).unwrap().revision, revision, "a repeat changes nothing");
    let now = of(&s);
    assert!(now.joining.is_empty() && now.keepers.is_empty() && !now.is_kept_by(b));
    assert_eq!(s.encode()[4], 1);
}

/// V2: whose empty log counts for the seal of a view is a matter of that view, whatever the chain is to be next.
#[test]
fn who_is_new_in_the_active_view_is_known() {
    let mut s = cluster(5);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    let (shard, start) = (ShardId::new(1, 0), StartNumber(1));
    let [a, b, c] = s.shard(shard).unwrap().members[..] else { panic!("three copies") };
    let [d, e] = (1..=5).map(NodeId).filter(|n| ![a, b, c].contains(n)).collect::<Vec<_>>()[..] else { panic!("five") };
    let open = |s: &mut State, view| {
        let sh = s.shard(shard).unwrap().clone();
        s.apply(Command::ProposeView { shard, active: sh.active, node: sh.head().unwrap(), start }).unwrap();
        s.apply(Command::ActivateView { shard, view: ViewNumber(view), generation: Generation(0) }).unwrap();
        s.shard(shard).unwrap().clone()
    };
    let replace = |gone: NodeId, failed: NodeId| Command::ReplaceMembers {
        gone: vec![(gone, start)],
        failed: vec![(failed, start)],
    };
    assert_eq!(open(&mut s, 1).learning, []);
    s.apply(replace(c, e)).unwrap();
    assert_eq!(s.shard(shard).unwrap().learning, [], "nobody is new in view 1");
    let now = open(&mut s, 2);
    assert_eq!((now.members, now.learning, now.keepers), (vec![a, b, d], vec![d], vec![c]));
    // A plan without the new member, and one with it again.
    s.apply(replace(d, e)).unwrap();
    let now = s.shard(shard).unwrap().clone();
    assert_eq!((now.members, now.joining, now.learning), (vec![a, b, c], vec![c], vec![d]));
    assert_eq!(State::decode(&s.encode()).unwrap(), s);
    assert_eq!(open(&mut s, 3).learning, [c]);
    s.apply(Command::MembersComplete { shard, view: ViewNumber(3), nodes: vec![c] }).unwrap();
    let now = s.shard(shard).unwrap().clone();
    assert!(now.joining.is_empty() && now.learning.is_empty() && now.keepers.is_empty());
}

/// The shards of a lost node are learned a few at a time.
#[test]
fn only_so_many_shards_are_learned_at_a_time() {
    let mut s = cluster(4);
    let start = StartNumber(1);
    for i in 0..3 {
        let wide = CreateVolume { shards: Some(16), ..create(&format!("v{i}"), 1024 * G) };
        s.apply(Command::CreateVolume(wide)).unwrap();
    }
    let all: Vec<(ShardId, Vec<NodeId>)> = s
        .volumes()
        .flat_map(|v| v.shards.iter().map(|s| (v.shard_id(s.index), s.members.clone())).collect::<Vec<_>>())
        .collect();
    let open = |s: &mut State, shard: ShardId| {
        let sh = s.shard(shard).unwrap().clone();
        let propose = Command::ProposeView { shard, active: sh.active, node: sh.head().unwrap(), start };
        let Outcome::Proposed { view, .. } = s.apply(propose).unwrap().outcome else { panic!() };
        s.apply(Command::ActivateView { shard, view, generation: Generation(0) }).unwrap();
        view
    };
    for (shard, _) in &all {
        open(&mut s, *shard);
    }
    let lost = NodeId(2);
    let affected = all.iter().filter(|(_, m)| m.contains(&lost)).count();
    s.apply(Command::FailOver { nodes: vec![(lost, start)] }).unwrap();
    let mut rounds = Vec::new();
    loop {
        s.apply(Command::ReplaceMembers { gone: vec![(lost, start)], failed: Vec::new() }).unwrap();
        let joining: Vec<ShardId> =
            all.iter().map(|(id, _)| *id).filter(|id| !s.shard(*id).unwrap().joining.is_empty()).collect();
        if joining.is_empty() {
            break;
        }
        rounds.push(joining.len());
        for shard in joining {
            let view = open(&mut s, shard);
            let nodes = s.shard(shard).unwrap().joining.clone();
            s.apply(Command::MembersComplete { shard, view, nodes }).unwrap();
        }
    }
    assert_eq!(rounds.iter().sum::<usize>(), affected);
    assert!(rounds.iter().all(|n| *n <= freebs_control::limits::JOINING_SHARDS_MAX) && rounds.len() > 1, "{rounds:?}");
    assert!(all.iter().all(|(id, _)| !s.shard(*id).unwrap().members.contains(&lost)));
}

/// What a failed head had pending can't become active any more.
#[test]
fn a_failed_head_does_not_make_its_view_active() {
    let mut s = cluster(3);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    let shard = ShardId::new(1, 0);
    let members = s.shard(shard).unwrap().members.clone();
    let start = StartNumber(1);
    s.apply(Command::ProposeView { shard, active: ViewNumber(0), node: members[0], start }).unwrap();
    s.apply(Command::FailOver { nodes: vec![(members[0], start)] }).unwrap();
    assert_eq!(s.shard(shard).unwrap().members, [members[1], members[2], members[0]]);
    let activate = Command::ActivateView { shard, view: ViewNumber(1), generation: Generation(0) };
    assert_eq!(kind(&mut s, activate), ErrorKind::Fenced, "V6");
}

#[test]
fn host_keys_are_named_by_the_present_start() {
    let mut s = cluster(1);
    let name =
        |start, key| Command::NameHostKey { node: NodeId(1), start: StartNumber(start), key: HostPublic([key; 32]) };
    assert_eq!(s.encode()[4], 1, "what an earlier version reads");
    assert_eq!(kind(&mut s, name(2, 7)), ErrorKind::Retry);
    let done = s.apply(name(1, 7)).unwrap();
    assert_eq!(s.apply(name(1, 7)).unwrap().revision, done.revision);
    s.apply(register(1, 2)).unwrap();
    assert_eq!(s.node(NodeId(1)).unwrap().host_key, Some(HostPublic([7; 32])), "a start does not take it away");
    assert_eq!(kind(&mut s, name(1, 8)), ErrorKind::Retry);
    s.apply(name(2, 9)).unwrap();
    assert_eq!(s.encode()[4], 2);
    let s = State::decode(&s.encode()).unwrap();
    assert_eq!(s.node(NodeId(1)).unwrap().host_key, Some(HostPublic([9; 32])));
}

#[test]
fn attachments_are_exclusive_and_generations_grow() {
    let mut s = cluster(1);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    let attach = |who: u8, force| Command::AttachVolume {
        volume: VolumeId(1),
        identity: Hash32([who; 32]),
        name: format!("gateway-{who}"),
        force,
        since: None,
        lapsed: false,
    };
    let early = Command::AttachVolume {
        volume: VolumeId(1),
        identity: Hash32([1; 32]),
        name: "gateway-1".into(),
        force: true,
        since: Some(Generation(1)),
        lapsed: false,
    };
    assert_eq!(s.apply(early.clone()).unwrap_err().kind, ErrorKind::Retry, "not of that generation");
    let attached = |g, alone| Outcome::Attached { generation: Generation(g), alone };
    assert_eq!(s.apply(attach(1, false)).unwrap().outcome, attached(1, true));
    // One request in two copies, of which the second comes late.
    assert_eq!(s.apply(early.clone()).unwrap().outcome, attached(2, false));
    assert_eq!(kind(&mut s, early), ErrorKind::Retry);
    assert_eq!(
        s.apply(attach(1, false)).unwrap().outcome,
        attached(3, false),
        "the same identity comes back without force"
    );
    assert_eq!(kind(&mut s, attach(2, false)), ErrorKind::Busy);
    assert_eq!(kind(&mut s, Command::DeleteVolume { volume: VolumeId(1), force: false }), ErrorKind::Busy);
    assert_eq!(s.apply(attach(2, true)).unwrap().outcome, attached(4, false));
    // A late detach of the first one takes nothing from the second.
    let detach = |s: &mut State, g, settled| {
        s.apply(Command::DetachVolume { volume: VolumeId(1), generation: Generation(g), settled }).unwrap();
        s.volume(VolumeId(1)).unwrap().holder.is_none()
    };
    assert!(!detach(&mut s, 3, true));
    assert!(detach(&mut s, 4, false));
    let delete = Command::DeleteVolume { volume: VolumeId(1), force: false };
    let e = s.apply(delete.clone()).unwrap_err();
    assert!(
        e.kind == ErrorKind::Busy && ["freebs volume detach a", "--force"].iter().all(|w| e.text.contains(w)),
        "{e}"
    );
    assert_eq!(
        s.apply(attach(1, false)).unwrap().outcome,
        attached(5, false),
        "the third had not waited for the first"
    );
    assert!(detach(&mut s, 5, true));
    let mut given_back = s.clone();
    given_back.apply(delete).expect("nobody can be there");
    assert_eq!(s.apply(attach(2, false)).unwrap().outcome, attached(6, true));
}

#[test]
fn ids_are_not_used_again() {
    let mut s = cluster(1);
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    s.apply(Command::DeleteVolume { volume: VolumeId(1), force: false }).unwrap();
    assert_eq!(kind(&mut s, Command::DeleteVolume { volume: VolumeId(1), force: false }), ErrorKind::NotFound);
    let mut s = State::decode(&s.encode()).unwrap();
    s.apply(Command::CreateVolume(create("a", G))).unwrap();
    assert_eq!(s.volume_by_name("a").unwrap().id, VolumeId(2));
}

/// V8, and what makes a shard's worker.
#[test]
fn nodes_come_back_with_higher_starts_and_the_same_workers() {
    let mut s = cluster(2);
    s.apply(register(1, 5)).unwrap();
    assert_eq!(kind(&mut s, register(1, 4)), ErrorKind::Corrupt);
    let revision = s.revision();
    s.apply(register(1, 5)).unwrap();
    assert_eq!(s.revision(), revision, "a repeat");
    let other = |node, name: &str, address: &str, workers, start| Command::RegisterNode {
        node: NodeId(node),
        name: name.into(),
        address: address.into(),
        workers,
        start: StartNumber(start),
    };
    assert_eq!(kind(&mut s, other(1, "node1", "127.0.0.1:1", 2, 6)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, other(1, "node2", "127.0.0.1:1", 1, 6)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, other(3, "node3", "nowhere", 1, 1)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, other(3, "node3", "127.0.0.1:1", 3, 1)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, other(0, "node3", "127.0.0.1:1", 1, 1)), ErrorKind::Invalid);
    assert_eq!(kind(&mut s, other(1, "node1", "127.0.0.1:9", 1, 5)), ErrorKind::Corrupt, "it runs elsewhere");
    s.apply(other(1, "node1", "127.0.0.1:9", 1, 6)).unwrap();
    assert_eq!(s.node(NodeId(1)).unwrap().address, "127.0.0.1:9");
}

/// V8: an image that was one start old was raised to the number that the node was seen with, and taken for the present
/// device. And a node's workers came with numbers of their own once one of them was raised alone; the node registered
/// the lowest, and the volumes of the others never opened a view again.
#[test]
fn a_node_starts_with_one_number_above_all_that_were_seen() {
    let mut s = cluster(2);
    let of = |s: &State, came_with: &[u64]| {
        let came_with: Vec<_> = came_with.iter().map(|n| StartNumber(*n)).collect();
        s.next_start(NodeId(1), &came_with).map(|n| n.0).map_err(|e| e.kind)
    };
    assert_eq!(of(&State::new(ClusterId([1; 16])), &[0, 0]), Ok(1), "a node that nobody knows");
    s.apply(register(1, 5)).unwrap();
    assert_eq!(of(&s, &[5, 5]), Ok(6));
    assert_eq!(of(&s, &[5, 8]), Ok(9), "one device was raised alone");
    assert_eq!(of(&s, &[4]), Err(ErrorKind::Corrupt), "one start old");
    assert_eq!(of(&s, &[5, 4]), Err(ErrorKind::Corrupt));
    assert_eq!(of(&s, &[0]), Err(ErrorKind::Corrupt), "blank");
    assert_eq!(of(&s, &[u64::MAX - 1]), Err(ErrorKind::Corrupt));
}

#[test]
fn sizes_as_text() {
    let good = [("10G", 10 * G), ("512M", 512 << 20), ("1t", T), ("4096", 4096), ("10GiB", 10 * G), ("7k", 7168)];
    for (text, bytes) in good {
        assert_eq!(rules::parse_size(text).unwrap(), bytes, "{text}");
    }
    for text in ["", "G", "10GB", "-1", "1.5G", "10 G", "99999999999P", "iB", "0x10", "+5"] {
        assert!(rules::parse_size(text).is_err(), "{text}");
    }
    let shown = [(10 * G, "10G"), (G + G / 2, "1.5G"), (4100, "4.0K"), (512, "512"), (T, "1T"), (0, "0")];
    for (bytes, text) in shown {
        assert_eq!(rules::format_size(bytes), text);
    }
}

#[test]
fn the_header_is_as_documented() {
    let bytes = State::new(ClusterId([0xab; 16])).encode();
    assert_eq!(&bytes[..8], b"FBCS\x01\x00\x40\x00");
    assert_eq!(bytes[8..24], [0xab; 16]);
    assert_eq!(bytes[24..32], [0; 8], "revision");
    assert_eq!(u64::from_le_bytes(bytes[32..40].try_into().unwrap()), bytes.len() as u64 - 64);
    assert_eq!(&bytes[64..], br#"{"last_volume":0,"forgotten":0,"nodes":[],"volumes":[],"deleted":[]}"#);
    let mut newer = bytes.clone();
    newer[4] = 2;
    assert_eq!(State::decode(&newer).unwrap_err().kind, ErrorKind::Corrupt, "the checksum comes first");
    assert!(State::decode(&bytes[..63]).is_err());
    assert!(State::decode(&[]).is_err());
}

#[test]
fn only_what_was_deleted_is_given_up() {
    let mut state = State::new(ClusterId([1; 16]));
    let node = Command::RegisterNode {
        node: NodeId(1),
        name: "a".into(),
        address: "127.0.0.1:1".into(),
        workers: 1,
        start: StartNumber(1),
    };
    state.apply(node).unwrap();
    let create = Command::CreateVolume(CreateVolume {
        name: "v".into(),
        size: 1 << 30,
        copies: Some(1),
        ..CreateVolume::default()
    });
    state.apply(create).unwrap();
    let id = state.volume_by_name("v").unwrap().id;
    assert!(!state.was_deleted(id));
    assert!(!state.was_deleted(VolumeId(id.0 + 1)), "a volume that nobody knows was not deleted");
    state.apply(Command::DeleteVolume { volume: id, force: false }).unwrap();
    assert!(state.was_deleted(id));

    let mut follower = State::new(ClusterId([1; 16]));
    follower.take_in(state.changes_since(0)).unwrap();
    assert!(follower.was_deleted(id), "who comes later hears of it, too");
}

#[test]
fn nodes_that_registered_anew_are_known_from_an_earlier_state() {
    let mut s = cluster(3);
    let before = s.clone();
    assert_eq!(s.nodes_renewed_since(&before), []);
    assert_eq!(s.nodes_renewed_since(&State::new(ClusterId([7; 16]))).len(), 3);
    s.apply(Command::CreateVolume(create("demo", G))).unwrap();
    assert_eq!(s.nodes_renewed_since(&before), [], "a volume is no node");
    s.apply(register(2, 2)).unwrap();
    assert_eq!(s.nodes_renewed_since(&before), [NodeId(2)]);
    let (node, name, address) = (NodeId(3), "node3".into(), "127.0.0.1:9000".into());
    s.apply(Command::RegisterNode { node, name, address, workers: 1, start: StartNumber(2) }).unwrap();
    s.apply(register(4, 1)).unwrap();
    assert_eq!(s.nodes_renewed_since(&before), [NodeId(2), NodeId(3), NodeId(4)]);
    assert_eq!(s.nodes_renewed_since(&s.clone()), []);
    // Its key is no news of where it is.
    let before = s.clone();
    s.apply(Command::NameHostKey { node: NodeId(2), start: StartNumber(2), key: HostPublic([1; 32]) }).unwrap();
    assert_eq!(s.nodes_renewed_since(&before), []);
}
