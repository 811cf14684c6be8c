//! Seats, followers, clients and services together over loopback, with made-up replicas.

mod left;

use super::plane::FollowerOptions;
use super::server::{read_message, serve_hello, turn_away, write_message};
use super::{Client, LocalFuture, LocalNode, Me, Plane, SeatOptions, Service};
use crate::events::EventLog;
use bytes::BytesMut;
use freebs_consensus::Seat;
use freebs_consensus::wire::{Envelope, Message as SeatMessage};
use freebs_control::api::{
    GatewayInfo, IntervalAnswer, IntervalQuestion, MemberState, Reply, Request, ShardDigest, ShardStatus, Status,
    Verification, VolumeState,
};
use freebs_control::audit::{AuditGo, AuditOf, AuditState};
use freebs_control::{Ack, Command, ControlPlane, CreateVolume, Outcome, State};
use freebs_format::wire::{Hello, Message, Role};
use freebs_types::{
    ClusterId, Error, ErrorKind, Generation, Hash32, NodeId, Result, Sequence, ShardId, StartNumber, Version,
    ViewNumber, VolumeId,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub(super) const CLUSTER: ClusterId = ClusterId([9; 16]);
pub(super) const MAX: Duration = Duration::from_secs(20);

/// Replicas of a node as a test wants them.
#[derive(Default)]
pub(super) struct Fake {
    shards: Mutex<BTreeMap<ShardId, (ShardStatus, Hash32)>>,
    /// Volumes that were to be taken from their holders, and whether by force.
    pub(super) expelled: Mutex<Vec<(VolumeId, bool)>>,
}

impl Fake {
    fn set(&self, shard: ShardId, view: u64, version: u64, digest: u8, state: MemberState) {
        let status = ShardStatus {
            shard,
            view: ViewNumber(view),
            head: NodeId(1),
            version: Version(version),
            sequence: Sequence(version + 1),
            durable: Sequence(version + 1),
            state,
            lapsed: None,
            pins: 0,
            waits: None,
            whole_from: Version(0),
            reads_from: None,
            past: None,
            log: None,
        };
        self.shards.lock().unwrap().insert(shard, (status, Hash32([digest; 32])));
    }
}

impl LocalNode for Fake {
    fn shards(&self, volume: Option<VolumeId>) -> LocalFuture<'_, Vec<ShardStatus>> {
        let shards = self.shards.lock().unwrap();
        let found = shards.values().filter(|(s, _)| volume.is_none_or(|v| s.shard.volume == v));
        let found = found.map(|(s, _)| s.clone()).collect();
        Box::pin(async move { found })
    }

    fn expel(&self, volume: VolumeId, force: bool) -> LocalFuture<'_, Result<()>> {
        self.expelled.lock().unwrap().push((volume, force));
        Box::pin(async move { if force { Ok(()) } else { Err(Error::busy("somebody is there")) } })
    }

    /// Begins with what is durable, and is over at once.
    fn audit(&self, of: AuditOf) -> LocalFuture<'_, Result<AuditState>> {
        let found = self.shards.lock().unwrap().get(&of.shard).cloned();
        Box::pin(async move {
            let (s, _) = found.ok_or_else(|| Error::not_found("no such shard here"))?;
            Ok(match of.go {
                None => AuditState::Ready { committed: s.durable },
                Some(go) => AuditState::Reading { done: go.at.len() as u32, total: 7 },
            })
        })
    }

    fn digest(&self, shard: ShardId) -> LocalFuture<'_, Result<ShardDigest>> {
        let found = self.shards.lock().unwrap().get(&shard).cloned();
        Box::pin(async move {
            let (s, digest) = found.ok_or_else(|| Error::not_found("no such shard here"))?;
            if s.state == MemberState::Failed {
                return Err(Error::corrupt(format!("shard {shard} has lost frames")));
            }
            Ok(ShardDigest { shard, view: s.view, version: s.version, digest })
        })
    }

    fn ask_interval(&self, of: IntervalQuestion) -> LocalFuture<'_, Result<IntervalAnswer>> {
        let is_here = self.shards.lock().unwrap().contains_key(&of.at);
        let answer = if of.decides { IntervalAnswer::Aborted } else { IntervalAnswer::Over };
        Box::pin(async move { if is_here { Ok(answer) } else { Err(Error::retry("no such head here")) } })
    }
}

pub(super) struct Node {
    pub(super) plane: Plane,
    pub(super) service: Arc<Service>,
    pub(super) fake: Arc<Fake>,
    address: String,
    accepting: JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn member(id: u64, address: &str, start: u64) -> Command {
    Command::RegisterNode {
        node: NodeId(id),
        name: format!("node{id}"),
        address: address.into(),
        workers: 1,
        start: StartNumber(start),
    }
}

/// A node says that it is there with this start number, which its devices have then.
pub(super) async fn register(node: &Node, id: u64, start: u64) {
    node.plane.started(StartNumber(start)).await;
    node.plane.submit(member(id, &node.address, start)).await.unwrap();
}

fn serve_node(id: u64, listener: TcpListener, plane: Plane) -> Node {
    let address = listener.local_addr().unwrap().to_string();
    let fake = Arc::new(Fake::default());
    let me = Me {
        cluster: CLUSTER,
        id: NodeId(id),
        name: format!("node{id}"),
        address: address.clone(),
        start: StartNumber(1),
        workers: 1,
    };
    let events = plane.events().expect("a seat has them");
    let service = Service::new(me, plane.clone(), fake.clone(), events);
    let serving = service.clone();
    let accepting = tokio::spawn(async move {
        // All connections end with the node, as they do when a process dies.
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_hello(stream, serving.clone()));
        }
    });
    Node { plane, service, fake, address, accepting }
}

fn seat_options(dir: &Path, id: u64, addresses: &[String]) -> SeatOptions {
    let data = dir.join(format!("node{id}"));
    std::fs::create_dir_all(&data).unwrap();
    SeatOptions {
        cluster: CLUSTER,
        node: NodeId(id),
        events: EventLog::open(&data, &format!("node{id}")),
        data,
        members: addresses.iter().zip(1..).map(|(a, id)| member(id, a, 0)).collect(),
        peers: BTreeMap::new(),
        authority: None,
        founder: id == 1,
        is_alone: false,
        was_in_use: false,
        came_with: StartNumber(0),
        replace_after: Duration::from_secs(600),
        pulse: freebs_io::linux::Pulse::default(),
    }
}

/// Nodes with their seats below `dir`; the first founds the cluster.
pub(super) async fn cluster(dir: &Path, nodes: u64) -> Vec<Node> {
    let mut listeners = Vec::new();
    for _ in 0..nodes {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let mut out = Vec::new();
    // The founder asks the others first, which are there to say that they know nothing.
    for (id, listener) in (1..).zip(listeners).collect::<Vec<_>>().into_iter().rev() {
        let plane = Plane::seat(seat_options(dir, id, &addresses)).await.unwrap();
        out.insert(0, serve_node(id, listener, plane));
    }
    for node in &out {
        node.plane.newest().await.unwrap();
        node.plane.taken_in().await;
    }
    out
}

/// The first node of a cluster that nodes join with tokens.
pub(super) async fn first_of_all(dir: &Path, authority: super::Authority) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = [listener.local_addr().unwrap().to_string()];
    let options = SeatOptions { authority: Some(authority), ..seat_options(dir, 1, &addresses) };
    let node = serve_node(1, listener, Plane::seat(options).await.unwrap());
    node.plane.newest().await.unwrap();
    register(&node, 1, 1).await;
    node
}

fn follow(addresses: &[String]) -> Plane {
    Plane::follow(FollowerOptions { cluster: Some(CLUSTER), addresses: addresses.to_vec() }).unwrap()
}

pub(super) fn create(name: &str) -> CreateVolume {
    CreateVolume { name: name.into(), size: 1 << 30, ..CreateVolume::default() }
}

/// Waits until all nodes know what the first one knows.
pub(super) async fn level(nodes: &[Node]) {
    let revision = nodes[0].plane.state().revision();
    for node in nodes {
        while node.plane.state().revision() < revision {
            node.plane.changed(node.plane.state().revision()).await;
        }
    }
}

pub(super) async fn ask(node: &Node, request: Request) -> Result<Reply> {
    Client::connect(&node.address).await?.call(&request, MAX).await
}

async fn status(node: &Node) -> Status {
    match ask(node, Request::Status).await.unwrap() {
        Reply::Status(s) => s,
        other => panic!("{other:?}"),
    }
}

async fn verify(node: &Node, name: &str, wait_ms: u64) -> Verification {
    match ask(node, Request::VolumeVerify { name: name.into(), wait_ms }).await.unwrap() {
        Reply::Verified(v) => v,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn any_node_takes_commands_and_all_see_them() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    for (i, node) in nodes.iter().enumerate() {
        let name = format!("v{i}");
        let reply = ask(node, Request::VolumeCreate(create(&name))).await.unwrap();
        let Reply::Volume { volume, notes } = reply else { panic!("{reply:?}") };
        assert_eq!((volume.name.as_str(), volume.copies, notes.len()), (name.as_str(), 3, 0));
        assert!(node.plane.state().volume_by_name(&name).is_some(), "who asked sees it at once");
        let shown = ask(node, Request::VolumeShow { name: name.clone() }).await.unwrap();
        assert!(matches!(shown, Reply::Volume { .. }));
    }
    level(&nodes).await;
    let e = ask(&nodes[2], Request::VolumeCreate(create("v0"))).await.unwrap_err();
    assert!(e.kind == ErrorKind::Invalid && e.text.contains("already"), "{e}");
    let two = CreateVolume { copies: Some(2), ..create("two") };
    let Reply::Volume { notes, .. } = ask(&nodes[1], Request::VolumeCreate(two)).await.unwrap() else { panic!() };
    assert!(notes[0].contains("pauses while one of them is lost"));
    let of = |name: &str, copies, min, ack| CreateVolume {
        copies: Some(copies),
        min_copies: Some(min),
        ack,
        ..create(name)
    };
    for (new, told) in [
        (of("alone", 2, 1, Ack::Majority), "goes on with the other alone"),
        (of("all", 3, 2, Ack::All), "done without after about a second, down to 2"),
        (of("always", 3, 3, Ack::All), "pauses while one of them is lost"),
    ] {
        let Reply::Volume { notes, .. } = ask(&nodes[1], Request::VolumeCreate(new)).await.unwrap() else { panic!() };
        assert!(notes.len() == 1 && notes[0].contains(told), "{notes:?}");
    }
    ask(&nodes[1], Request::VolumeResize { name: "v0".into(), size: 2 << 30 }).await.unwrap();
    ask(&nodes[2], Request::VolumeDelete { name: "v1".into(), force: false, with_snapshots: false }).await.unwrap();
    level(&nodes).await;
    let e = ask(&nodes[0], Request::VolumeShow { name: "v1".into() }).await.unwrap_err();
    assert!(e.kind == ErrorKind::NotFound && e.text.contains("volume list"), "{e}");
    for node in &nodes {
        assert!(node.plane.state().volumes().eq(nodes[0].plane.state().volumes()));
        assert_eq!(node.plane.state().volume_by_name("v0").unwrap().size, 2 << 30);
    }
}

/// A volume was created at one node, and another one, whose copy of the state lagged, said that there is none; or it took
/// the name for that of a volume that had been deleted.
#[tokio::test]
async fn what_one_node_has_answered_is_known_to_all() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    for i in 0..30 {
        let [at, then] = [&nodes[i % 3], &nodes[(i + 1 + i / 3 % 2) % 3]];
        ask(at, Request::VolumeCreate(create("v"))).await.unwrap();
        let reply = match i % 3 {
            0 => ask(then, Request::VolumeShow { name: "v".into() }).await,
            1 => ask(then, Request::VolumeResize { name: "v".into(), size: 2 << 30 }).await,
            _ => ask(then, Request::VolumeMoveHead { name: "v".into(), node: "node1".into(), shard: None }).await,
        };
        assert!(matches!(reply, Ok(Reply::Volume { .. })), "round {i}: {reply:?}");
        ask(then, Request::VolumeDelete { name: "v".into(), force: false, with_snapshots: false }).await.unwrap();
    }
    let revision = nodes[0].plane.state().revision();
    let e = ask(&nodes[0], Request::VolumeShow { name: "never".into() }).await.unwrap_err();
    assert!(e.kind == ErrorKind::NotFound && e.text.contains("volume list"), "{e}");
    assert_eq!(nodes[0].plane.state().revision(), revision, "asking changes nothing");
}

/// Hundreds of commands at once through a follower are all answered, each once.
#[tokio::test]
async fn many_commands_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 2).await;
    let mut creating = tokio::task::JoinSet::new();
    for i in 0..300 {
        let plane = nodes[i % 2].plane.clone();
        creating.spawn(async move { plane.submit(Command::CreateVolume(create(&format!("v{}", i % 200)))).await });
    }
    let results = creating.join_all().await;
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 200);
    assert!(results.iter().filter_map(|r| r.as_ref().err()).all(|e| e.kind == ErrorKind::Invalid));
    assert_eq!(nodes[0].plane.state().volumes().len(), 200);
}

#[tokio::test]
async fn views_and_attachments_go_through_the_plane() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    nodes[2].plane.submit(Command::CreateVolume(create("a"))).await.unwrap();
    level(&nodes).await;
    let shard = ShardId::new(1, 0);
    let head = nodes[2].plane.state().shard(shard).unwrap().head().unwrap();
    let node = &nodes[head.0 as usize - 1];
    let propose = Command::ProposeView { shard, active: ViewNumber(0), node: head, start: StartNumber(4) };
    assert_eq!(node.plane.submit(propose.clone()).await.unwrap_err().kind, ErrorKind::Retry);
    register(node, head.0, 4).await;
    let done = node.plane.submit(propose).await.unwrap();
    let expected = Outcome::Proposed { view: ViewNumber(1), pred: ViewNumber(0), generation: Generation(0) };
    assert_eq!(done.outcome, expected);
    let activate = Command::ActivateView { shard, view: ViewNumber(1), generation: Generation(0) };
    node.plane.submit(activate).await.unwrap();
    assert_eq!(node.plane.state().shard(shard).unwrap().active, ViewNumber(1));
    let attach = Command::AttachVolume {
        volume: VolumeId(1),
        identity: Hash32([1; 32]),
        name: "gateway".into(),
        force: false,
        since: None,
        lapsed: false,
    };
    let done = nodes[1].plane.submit(attach).await.unwrap();
    assert_eq!(done.outcome, Outcome::Attached { generation: Generation(1), alone: true });
}

/// Somebody else's volume can be had when so many members say that its driver is gone that it has lost its quorum.
#[tokio::test]
async fn a_lapsed_attachment_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    ask(&nodes[0], Request::VolumeCreate(create("demo"))).await.unwrap();
    level(&nodes).await;
    let gateway = follow(&[nodes[1].address.clone()]);
    gateway.ready().await;
    let attach = |who: u8| Command::AttachVolume {
        volume: VolumeId(1),
        identity: Hash32([who; 32]),
        name: format!("gateway{who}"),
        force: false,
        since: None,
        lapsed: false,
    };
    let shard = ShardId { volume: VolumeId(1), index: 0 };
    let say = |node: usize, generation: Option<u64>| {
        let fake = &nodes[node].fake;
        fake.set(shard, 0, 1, 0, MemberState::Active);
        fake.shards.lock().unwrap().get_mut(&shard).unwrap().0.lapsed = generation.map(Generation);
    };
    gateway.submit(attach(1)).await.unwrap();
    (0..3).for_each(|n| say(n, None));
    assert_eq!(gateway.submit(attach(2)).await.unwrap_err().kind, ErrorKind::Busy);
    say(0, Some(1));
    say(1, Some(0));
    say(2, Some(2));
    assert_eq!(gateway.submit(attach(2)).await.unwrap_err().kind, ErrorKind::Busy, "one member of three");
    say(1, Some(1));
    say(2, None);
    let done = gateway.submit(attach(2)).await.unwrap();
    assert_eq!(done.outcome, Outcome::Attached { generation: Generation(2), alone: false });
    assert_eq!(nodes[2].plane.submit(attach(3)).await.unwrap_err().kind, ErrorKind::Busy, "the new one is no other's");
}

#[tokio::test]
async fn status_puts_the_cluster_together() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    ask(&nodes[1], Request::VolumeCreate(create("demo"))).await.unwrap();
    level(&nodes).await;
    let s = status(&nodes[2]).await;
    assert_eq!(s.volumes[0].state, VolumeState::Paused);
    assert!(s.volumes[0].shards[0].members.iter().all(|m| m.state == MemberState::Missing));
    assert!(s.nodes.iter().all(|n| n.state == "up" && n.pid == Some(std::process::id())));
    let shard = ShardId::new(1, 0);
    let head = nodes[0].plane.state().shard(shard).unwrap().head().unwrap();
    register(&nodes[head.0 as usize - 1], head.0, 1).await;
    let propose = Command::ProposeView { shard, active: ViewNumber(0), node: head, start: StartNumber(1) };
    nodes[0].plane.submit(propose).await.unwrap();
    let activate = Command::ActivateView { shard, view: ViewNumber(1), generation: Generation(0) };
    nodes[0].plane.submit(activate).await.unwrap();
    nodes.iter().for_each(|n| n.fake.set(shard, 1, 42, 1, MemberState::Active));
    level(&nodes).await;
    let s = status(&nodes[1]).await;
    assert_eq!(s.volumes[0].state, VolumeState::Ready);
    assert_eq!(s.volumes[0].shards[0].head, format!("node{head}"));
    assert_eq!(s.volumes[0].shards[0].members[0].version, Version(42));
    // A member that lags: degraded. One more: too few.
    let members = nodes[0].plane.state().shard(shard).unwrap().members.clone();
    nodes[members[2].0 as usize - 1].fake.set(shard, 1, 40, 1, MemberState::Syncing);
    assert_eq!(status(&nodes[0]).await.volumes[0].state, VolumeState::Degraded);
    nodes[members[1].0 as usize - 1].fake.set(shard, 0, 40, 1, MemberState::Active);
    let s = status(&nodes[0]).await;
    assert_eq!(s.volumes[0].state, VolumeState::Paused);
    assert_eq!(s.volumes[0].shards[0].members[1].state, MemberState::Opening, "active in another view is not active");
    let json = serde_json::to_value(&s).unwrap();
    for path in [
        "/nodes/0/name",
        "/nodes/0/pid",
        "/nodes/0/address",
        "/nodes/0/state",
        "/volumes/0/name",
        "/volumes/0/size",
        "/volumes/0/copies",
        "/volumes/0/shards/0/id",
        "/volumes/0/shards/0/view",
        "/volumes/0/shards/0/head",
        "/volumes/0/shards/0/members/0/node",
        "/volumes/0/shards/0/members/0/version",
        "/volumes/0/shards/0/members/0/state",
        "/gateways",
    ] {
        assert!(json.pointer(path).is_some(), "{path}");
    }
}

#[tokio::test]
async fn verify_finds_agreement_difference_and_absence() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    ask(&nodes[0], Request::VolumeCreate(CreateVolume { shards: Some(6), ..create("a") })).await.unwrap();
    let shards: Vec<ShardId> = (0..6).map(|i| ShardId::new(1, i)).collect();
    let set = |node: usize, shard: usize, version, digest| {
        nodes[node].fake.set(shards[shard], 1, version, digest, MemberState::Active);
    };
    (0..6).for_each(|s| (0..3).for_each(|n| set(n, s, 10 + s as u64, s as u8)));
    level(&nodes).await;
    let found = verify(&nodes[1], "a", 0).await;
    assert!(found.agree && found.shards.len() == 6, "{found:?}");
    // One replica differs at the same version.
    set(2, 5, 15, 99);
    let found = verify(&nodes[0], "a", 10_000).await;
    assert!(!found.agree && found.shards[4].agree && found.shards[5].problem.contains("differ"), "{found:?}");
    // It is behind, and catches up while the others wait for it.
    set(2, 5, 14, 5);
    let found = verify(&nodes[0], "a", 0).await;
    assert!(!found.agree && found.shards[5].problem.contains("never seen at one version"), "{found:?}");
    let (fake, shard) = (nodes[2].fake.clone(), shards[5]);
    let later = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        fake.set(shard, 1, 15, 5, MemberState::Active);
    });
    assert!(verify(&nodes[0], "a", 10_000).await.agree);
    later.await.unwrap();
    // It is gone.
    nodes[2].fake.shards.lock().unwrap().remove(&shards[0]);
    let found = verify(&nodes[1], "a", 0).await;
    assert!(!found.agree && found.shards[0].problem == "node3 has no replica", "{found:?}");
    let e = ask(&nodes[0], Request::VolumeVerify { name: "b".into(), wait_ms: 0 }).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::NotFound);
}

/// Any node can be asked for the audit of any other's replica.
#[tokio::test]
async fn an_audit_is_asked_for_at_any_node() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 3).await;
    ask(&nodes[0], Request::VolumeCreate(create("a"))).await.unwrap();
    level(&nodes).await;
    let shard = ShardId::new(1, 0);
    nodes[2].fake.set(shard, 1, 40, 1, MemberState::Active);
    let of = |node: Option<&str>, go: Option<AuditGo>| Request::ShardAudit {
        node: node.map(str::to_owned),
        audit: AuditOf { shard, run: 5, go },
    };
    let ready = Reply::Audit(AuditState::Ready { committed: Sequence(41) });
    for asked in [&nodes[0], &nodes[2]] {
        assert_eq!(ask(asked, of(Some("node3"), None)).await.unwrap(), ready);
    }
    assert_eq!(ask(&nodes[2], of(None, None)).await.unwrap(), ready);
    let go = AuditGo { at: vec![Sequence(3); 4], secrets: vec![(ViewNumber(2), Hash32([2; 32]))] };
    let reading = Reply::Audit(AuditState::Reading { done: 4, total: 7 });
    assert_eq!(ask(&nodes[0], of(Some("node3"), Some(go))).await.unwrap(), reading);
    assert_eq!(ask(&nodes[0], of(Some("node2"), None)).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(ask(&nodes[0], of(None, None)).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(ask(&nodes[0], of(Some("node9"), None)).await.unwrap_err().kind, ErrorKind::NotFound);
}

/// A replica that answered that it is damaged, and one whose node had been stopped, were both said not to have answered.
#[tokio::test]
async fn verify_says_what_is_wrong_with_each_replica() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3).await;
    ask(&nodes[0], Request::VolumeCreate(create("a"))).await.unwrap();
    level(&nodes).await;
    let shard = ShardId::new(1, 0);
    nodes.iter().for_each(|n| n.fake.set(shard, 1, 10, 1, MemberState::Active));
    nodes[1].fake.set(shard, 1, 10, 1, MemberState::Failed);
    let found = verify(&nodes[0], "a", 0).await;
    assert_eq!(found.shards[0].problem, "the replica of node2 is damaged");
    drop(nodes.pop());
    let found = verify(&nodes[0], "a", 0).await;
    let problem = &found.shards[0].problem;
    assert_eq!(problem, "the replica of node2 is damaged; node3 can't be reached: it is stopped, or cut off");
    nodes[1].fake.shards.lock().unwrap().clear();
    let found = verify(&nodes[0], "a", 0).await;
    assert!(found.shards[0].problem.starts_with("node2 has no replica; node3"), "{found:?}");
}

/// A head that was moved to a node that was down stood still there, and the command had said that all was done.
#[tokio::test]
async fn a_head_does_not_move_to_a_node_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3).await;
    ask(&nodes[0], Request::VolumeCreate(create("a"))).await.unwrap();
    level(&nodes).await;
    let to = |node: &str| Request::VolumeMoveHead { name: "a".into(), node: node.into(), shard: None };
    for node in ["node2", "node3", "node1"] {
        ask(&nodes[0], to(node)).await.unwrap();
    }
    drop(nodes.pop());
    let before = nodes[0].plane.state().volume_by_name("a").unwrap().shards.clone();
    for at in &nodes {
        let e = ask(at, to("node3")).await.unwrap_err();
        assert!(e.text.contains("node3") && e.text.contains("can't be reached"), "{e}");
    }
    assert_eq!(nodes[0].plane.state().volume_by_name("a").unwrap().shards, before);
    ask(&nodes[0], to("node2")).await.unwrap();
}

/// All that was said of a node without a control state was that it did not answer like a freebs node.
#[tokio::test]
async fn a_node_that_can_not_answer_yet_says_why() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepting = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hello = read_message(&mut stream, &mut BytesMut::new()).await.unwrap();
        assert!(matches!(hello, Some(Message::Hello(_))));
        turn_away(crate::conn::NodeConn::Plain(stream), crate::runtime::not_yet("node7", true, true)).await
    });
    let e = Client::connect(&address).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::Retry);
    assert!(e.text.starts_with(&address) && e.text.contains("node7 has no control state"), "{e}");
    assert!(e.text.contains("`freebs control rebuild`"), "{e}");
    assert!(accepting.await.unwrap().is_err());
    // Whoever never had one, or has it, needs no such advice.
    for (knows_nothing, was_in_use) in [(true, false), (false, true), (false, false)] {
        let e = crate::runtime::not_yet("node7", knows_nothing, was_in_use);
        assert!(e.text.contains("node7") && !e.text.contains("rebuild"), "{e}");
    }
}

/// Waits until so many nodes vote, as all of these know.
async fn voting(nodes: &[Node], voters: u64) {
    let all = async {
        while nodes.iter().any(|n| n.plane.port().unwrap().voters() != voters) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MAX, all).await.unwrap_or_else(|_| panic!("there are not {voters} voters"));
}

async fn created(node: &Node, name: &str) {
    let created = async {
        loop {
            match ask(node, Request::VolumeCreate(create(name))).await {
                Ok(_) => return,
                Err(e) => assert_eq!(e.kind, ErrorKind::Retry, "{e}"),
            }
        }
    };
    tokio::time::timeout(MAX, created).await.unwrap_or_else(|_| panic!("{name} can't be created"));
}

/// Listens at an address that a node had before. Somebody may have been given the port meanwhile, for an outgoing
/// connection perhaps.
async fn bound_again(address: &str) -> TcpListener {
    let bound = async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(MAX, bound).await.expect("the port gets free")
}

/// Returns once the seat of a node that was dropped has closed its store.
pub(super) async fn ended(data: &Path) {
    let closed = async {
        while std::fs::File::open(data.join("control.store")).unwrap().try_lock().is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MAX, closed).await.expect("its thread ends");
}

/// Starts node `id` of those again on what its disk has, at the address that it had.
async fn back(dir: &Path, id: u64, addresses: &[String]) -> Node {
    let plane = Plane::seat(SeatOptions { was_in_use: true, ..seat_options(dir, id, addresses) }).await.unwrap();
    let node = serve_node(id, bound_again(&addresses[id as usize - 1]).await, plane);
    tokio::time::timeout(MAX, node.plane.newest()).await.expect("it catches up").unwrap();
    node
}

#[tokio::test]
async fn any_node_may_die_and_most_decide() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3).await;
    let addresses: Vec<String> = nodes.iter().map(|n| n.address.clone()).collect();
    created(&nodes[2], "a").await;
    voting(&nodes, 3).await;
    assert_eq!(nodes.iter().filter(|n| n.plane.leads()).count(), 1);
    for id in 1..=3u64 {
        nodes.remove(id as usize - 1);
        created(&nodes[0], &format!("without-{id}")).await;
        let s = status(&nodes[1]).await;
        let gone = &s.nodes[id as usize - 1];
        assert_eq!((gone.state.as_str(), gone.pid), ("down", None));
        nodes.insert(id as usize - 1, back(dir.path(), id, &addresses).await);
        assert!(nodes[id as usize - 1].plane.state().volume_by_name(&format!("without-{id}")).is_some());
    }
    // Rule V8: a node that comes with less than it was seen with is not heard, and is told so.
    register(&nodes[1], 2, 5).await;
    drop(nodes.remove(1));
    tokio::time::sleep(Duration::from_millis(100)).await;
    let old = SeatOptions { came_with: StartNumber(4), was_in_use: true, ..seat_options(dir.path(), 2, &addresses) };
    let old = Plane::seat(old).await.unwrap();
    let old = serve_node(2, bound_again(&addresses[1]).await, old);
    let e = tokio::time::timeout(MAX, old.plane.newest()).await.expect("it is told").unwrap_err();
    assert!(e.kind == ErrorKind::Corrupt && e.text.contains("old image"), "{e}");
    drop(old);
    // One alone decides nothing, and still tells what it knows.
    nodes.drain(1..);
    let e = ask(&nodes[0], Request::VolumeCreate(create("alone"))).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::Retry, "{e}");
    assert_eq!(status(&nodes[0]).await.volumes.len(), 4);
    nodes.push(back(dir.path(), 3, &addresses).await);
    created(&nodes[1], "two").await;
    assert!(nodes[1].plane.state().volume_by_name("two").is_some());
}

#[tokio::test]
async fn five_vote_when_five_are_there_and_a_stranger_with_another_cluster_is_not_heard() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 5).await;
    voting(&nodes, 5).await;
    created(&nodes[4], "a").await;
    let other = tempfile::tempdir().unwrap();
    let addresses: Vec<String> = nodes.iter().map(|n| n.address.clone()).chain(["127.0.0.1:1".into()]).collect();
    let options = SeatOptions { cluster: ClusterId([1; 16]), ..seat_options(other.path(), 6, &addresses) };
    let stranger = Plane::seat(options).await.unwrap();
    let refused = tokio::time::timeout(MAX, stranger.newest()).await.expect("it is told").unwrap_err();
    let told = [CLUSTER, ClusterId([1; 16])].iter().all(|c| refused.text.contains(&c.to_string()));
    assert!(refused.kind == ErrorKind::Invalid && told, "{refused}");
    assert_eq!(nodes[0].plane.newest().await.unwrap().nodes().len(), 5, "nobody was taken in");
    // A node that was not there at the beginning, and belongs to the cluster, is.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut addresses = addresses;
    addresses[5] = listener.local_addr().unwrap().to_string();
    let late = Plane::seat(seat_options(dir.path(), 6, &addresses)).await.unwrap();
    let node = serve_node(6, listener, late);
    tokio::time::timeout(MAX, node.plane.newest()).await.expect("it learns the state").unwrap();
    register(&node, 6, 1).await;
    assert_eq!(nodes[0].plane.newest().await.unwrap().nodes().len(), 6);
}

/// A control store that is blank, lost, damaged or old is never believed.
#[tokio::test]
async fn a_store_that_is_not_the_present_one_gets_a_new_seat_or_stops_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3).await;
    let addresses: Vec<String> = nodes.iter().map(|n| n.address.clone()).collect();
    voting(&nodes, 3).await;
    let store = dir.path().join("node2/control.store");
    let old = std::fs::read(&store).unwrap();
    for round in 0..3 {
        drop(nodes.remove(1));
        created(&nodes[0], &format!("v{round}")).await;
        // The thread of the seat ends a moment later.
        tokio::time::sleep(Duration::from_millis(100)).await;
        match round {
            0 => std::fs::remove_file(&store).unwrap(),
            1 => std::fs::write(&store, &old).unwrap(),
            _ => {
                let mut bad = std::fs::read(&store).unwrap();
                bad[..8192].fill(7);
                std::fs::write(&store, bad).unwrap();
            }
        }
        nodes.insert(1, back(dir.path(), 2, &addresses).await);
        assert_eq!(nodes[1].plane.state().volumes().count(), round + 1);
        voting(&nodes, 3).await;
    }
    // Of a node alone nobody else has the state.
    let dir = tempfile::tempdir().unwrap();
    drop(cluster(dir.path(), 1).await);
    let (store, note) = (dir.path().join("node1/control.store"), dir.path().join("node1/control.note"));
    let old = std::fs::read(&store).unwrap();
    let again = async |came_with: u64| {
        let options = seat_options(dir.path(), 1, &addresses[..1]);
        Plane::seat(SeatOptions { came_with: StartNumber(came_with), ..options }).await.map(drop)
    };
    again(1).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let present = std::fs::read(&store).unwrap();
    for bytes in [&old[..], &[], &[0; 16384], &present[..present.len() / 2]] {
        std::fs::write(&store, bytes).unwrap();
        let e = again(1).await.unwrap_err();
        assert!(e.kind == ErrorKind::NotFound && e.text.contains("control state is gone"), "{e}");
        assert_eq!(std::fs::read(&store).unwrap(), bytes, "nothing was written to it");
    }
    // The note is gone, too; the devices ran before.
    std::fs::remove_file(&note).unwrap();
    std::fs::write(&store, []).unwrap();
    let e = again(1).await.unwrap_err();
    assert!(e.kind == ErrorKind::NotFound && e.text.contains("control state is gone"), "{e}");
}

/// The founder's disk is replaced. It began the same cluster a second time, with the same numbers, while the others had
/// the state.
#[tokio::test]
async fn a_founder_that_lost_its_disk_learns_from_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3).await;
    let addresses: Vec<String> = nodes.iter().map(|n| n.address.clone()).collect();
    created(&nodes[0], "a").await;
    voting(&nodes, 3).await;
    drop(nodes.remove(0));
    created(&nodes[0], "b").await;
    ended(&dir.path().join("node1")).await;
    std::fs::remove_dir_all(dir.path().join("node1")).unwrap();
    let plane = Plane::seat(seat_options(dir.path(), 1, &addresses)).await.unwrap();
    let node = serve_node(1, bound_again(&addresses[0]).await, plane);
    tokio::time::timeout(MAX, node.plane.newest()).await.expect("it catches up").unwrap();
    assert!(node.plane.state().volume_by_name("a").is_some() && node.plane.state().volume_by_name("b").is_some());
}

/// What an earlier version kept on the first node is what the cluster goes on with, once.
#[tokio::test]
async fn the_state_of_an_earlier_version_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let listeners = [TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap()];
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let mut state = State::new(CLUSTER);
    state.apply(member(1, "127.0.0.1:1", 7)).unwrap();
    state.apply(member(2, "127.0.0.1:2", 3)).unwrap();
    state.apply(Command::CreateVolume(create("old"))).unwrap();
    let mut nodes = Vec::new();
    for (id, listener) in (1..).zip(listeners) {
        let options = seat_options(dir.path(), id, &addresses);
        if id == 1 {
            std::fs::write(options.data.join("control.state"), state.encode()).unwrap();
            std::fs::write(options.data.join("control.state.copy"), state.encode()).unwrap();
        }
        let came_with = StartNumber(if id == 1 { 7 } else { 3 });
        let plane = Plane::seat(SeatOptions { was_in_use: true, came_with, ..options }).await.unwrap();
        nodes.push(serve_node(id, listener, plane));
    }
    for node in &nodes {
        let found = tokio::time::timeout(MAX, node.plane.newest()).await.expect("it learns the state").unwrap();
        assert!(found.volumes().eq(state.volumes()) && found.nodes().eq(state.nodes()));
        assert_eq!(found.revision(), state.revision());
    }
    register(&nodes[1], 2, 4).await;
    created(&nodes[1], "new").await;
    drop(nodes);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!dir.path().join("node1/control.state").exists(), "nobody begins with it again");
    let options = SeatOptions { was_in_use: true, ..seat_options(dir.path(), 1, &addresses[..1]) };
    let again = Plane::seat(SeatOptions { came_with: StartNumber(8), ..options }).await.unwrap();
    assert!(tokio::time::timeout(MAX, again.newest()).await.unwrap().unwrap().volume_by_name("new").is_some());
}

#[tokio::test]
async fn gateways_are_listed_while_they_are_connected() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 2).await;
    // Its first address does not answer: nobody listens there.
    let gone = "127.0.0.1:1".to_owned();
    let gateway = follow(&[gone, nodes[1].address.clone()]);
    gateway.ready().await;
    assert!(status(&nodes[0]).await.gateways.is_empty(), "not before it says that it serves");
    gateway.announce(GatewayInfo { name: "g".into(), pid: 7, nbd: "127.0.0.1:10809".into(), host: "h".into() });
    let listed = async |wanted: usize| {
        while status(&nodes[0]).await.gateways.len() != wanted {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MAX, listed(1)).await.unwrap();
    gateway.submit(Command::CreateVolume(create("a"))).await.unwrap();
    assert!(gateway.state().volume_by_name("a").is_some());
    drop(gateway);
    tokio::time::timeout(MAX, listed(0)).await.unwrap();
}

/// A way to a node that can be made to stand still: connections stay open, and nothing comes through any more.
async fn relay(to: String) -> (String, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, frozen) = (listener.local_addr().unwrap().to_string(), Arc::new(AtomicBool::new(false)));
    let is_frozen = frozen.clone();
    tokio::spawn(async move {
        loop {
            let (near, _) = listener.accept().await.unwrap();
            let far = TcpStream::connect(&to).await.unwrap();
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            tokio::spawn(pass(near_in, far_out, is_frozen.clone()));
            tokio::spawn(pass(far_in, near_out, is_frozen.clone()));
        }
    });
    (address, frozen)
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, frozen: Arc<AtomicBool>) {
    let mut buf = vec![0; 4096];
    while let Ok(n) = from.read(&mut buf).await {
        if frozen.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if n == 0 || to.write_all(&buf[..n]).await.is_err() {
            return;
        }
    }
}

/// A gateway that followed a node which stood still waited for an answer to its watch, for 15 s, and for one to its
/// command, for 10 s, before it asked another node.
#[tokio::test]
async fn a_node_that_stands_still_is_not_followed_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 2).await;
    let (way, frozen) = relay(nodes[0].address.clone()).await;
    let gateway = follow(&[way, nodes[1].address.clone()]);
    gateway.ready().await;
    frozen.store(true, Ordering::Relaxed);
    let lost = gateway.submit(Command::CreateVolume(create("lost")));
    let lost = tokio::time::timeout(Duration::from_secs(8), lost).await.expect("an answer, soon");
    assert_eq!(lost.unwrap_err().kind, ErrorKind::Retry, "nobody knows whether it was done");
    let asked_again = async {
        while gateway.submit(Command::CreateVolume(create("new"))).await.is_err() {}
        while gateway.state().volume_by_name("new").is_none() {
            gateway.changed(gateway.state().revision()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(8), asked_again).await.expect("it follows the other node, soon");
}

/// Who does not know the cluster's identity is told which cluster is here, and not listened to, whatever it says.
#[tokio::test]
async fn who_does_not_know_the_cluster_is_not_listened_to() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1).await;
    for theirs in [ClusterId::default(), ClusterId([1; 16]), CLUSTER] {
        let mut stream = TcpStream::connect(&nodes[0].address).await.unwrap();
        let hello = Hello {
            cluster: theirs,
            role: Role::Seat,
            node: NodeId(7),
            start: StartNumber(0),
            from_worker: 0,
            to_worker: 0,
        };
        write_message(&mut stream, &Message::Hello(hello)).await.unwrap();
        let mut buf = BytesMut::new();
        let Some(Message::Welcome(w)) = read_message(&mut stream, &mut buf).await.unwrap() else { panic!("a welcome") };
        assert_eq!(w.cluster, CLUSTER);
        // The seat that wants to join says so in the right words; only one of the three is of this cluster.
        let envelope = Envelope {
            cluster: CLUSTER,
            from: Seat { node: NodeId(7), store: 1 },
            to: Seat { node: NodeId(1), store: 0 },
            start: StartNumber(0),
            founding: 0,
            devices: freebs_consensus::Devices::Work,
            id: 0,
        };
        let body = SeatMessage::Join.encode(envelope).unwrap().into();
        let _ = write_message(&mut stream, &Message::Control { id: 0, body }).await;
        let ended = tokio::time::timeout(Duration::from_secs(1), read_message(&mut stream, &mut buf)).await;
        assert_eq!(ended.is_ok(), theirs != CLUSTER, "only who is listened to stays connected");
    }
}

#[tokio::test]
async fn a_foreign_cluster_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1).await;
    let other =
        Plane::follow(FollowerOptions { cluster: Some(ClusterId([1; 16])), addresses: vec![nodes[0].address.clone()] })
            .unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(500), other.ready()).await.is_err());
    let any = Plane::follow(FollowerOptions { cluster: None, addresses: vec![nodes[0].address.clone()] }).unwrap();
    assert_eq!(any.ready().await.cluster(), CLUSTER);
}

#[tokio::test]
async fn wild_bytes_and_strange_requests_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1).await;
    let wild: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 200], &[255; 200], b"FBMS"];
    for bytes in wild {
        let mut stream = TcpStream::connect(&nodes[0].address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = BytesMut::new();
        let _ = stream.read_buf(&mut rest).await;
    }
    let client = Client::connect(&nodes[0].address).await.unwrap();
    let nobody = GatewayInfo { name: "../../etc".into(), pid: 1, nbd: String::new(), host: String::new() };
    assert_eq!(client.call(&Request::Announce(nobody), MAX).await.unwrap_err().kind, ErrorKind::Invalid);
    let long = Request::VolumeShow { name: "x".repeat(5 << 20) };
    assert_eq!(client.call(&long, MAX).await.unwrap_err().kind, ErrorKind::Invalid);
    assert!(matches!(client.call(&Request::NodeInfo, MAX).await.unwrap(), Reply::Node(_)), "it still serves");
    // Watching answers at once when there is something, and many waiting requests do not stop others.
    let Reply::Changes(page) = client.call(&Request::Watch { since: 0 }, MAX).await.unwrap() else { panic!() };
    assert_eq!((page.nodes.len(), page.cluster), (1, CLUSTER));
    let mut watching = Vec::new();
    for _ in 0..20 {
        let client = client.clone();
        let since = page.revision;
        watching.push(tokio::spawn(async move { client.call(&Request::Watch { since }, MAX).await }));
    }
    client.call(&Request::VolumeCreate(create("a")), MAX).await.unwrap();
    for w in watching {
        let Ok(Reply::Changes(page)) = w.await.unwrap() else { panic!("changes") };
        assert_eq!(page.volumes.len(), 1);
    }
}

/// All nodes were killed. One that had not learned the state was back first, knew nothing, and said so to a gateway,
/// which took all volumes for deleted and failed every request.
#[tokio::test]
async fn a_node_without_a_state_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 1).await;
    nodes[0].plane.submit(Command::CreateVolume(create("a"))).await.unwrap();
    // It reaches nobody: at port 1 there is nobody.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addresses = ["127.0.0.1:1".into(), listener.local_addr().unwrap().to_string()];
    let blank = Plane::seat(seat_options(dir.path(), 2, &addresses)).await.unwrap();
    nodes.push(serve_node(2, listener, blank));
    let gateway = follow(&[nodes[0].address.clone(), nodes[1].address.clone()]);
    while gateway.state().volumes().count() == 0 {
        gateway.changed(gateway.state().revision()).await;
    }
    let known = gateway.state().revision();
    nodes.remove(0);
    let blank = nodes[0].address.clone();
    let asked = Client::connect(&blank).await.unwrap();
    let watch = Request::Watch { since: known };
    let answer = tokio::time::timeout(Duration::from_secs(1), asked.call(&watch, MAX)).await;
    assert!(answer.is_err(), "it waits until it knows more: {answer:?}");
    assert_eq!(gateway.state().revision(), known);
    assert_eq!(gateway.state().volumes().count(), 1);
}

/// Nodes of two versions did not hear each other, and nothing said so.
#[tokio::test]
async fn a_node_whose_messages_are_of_another_version_is_told_of_now_and_then() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1).await;
    let port = nodes[0].plane.port().unwrap();
    let told: Vec<u64> = (1..10).filter(|_| port.drop_other(NodeId(2), 1).is_some()).collect();
    assert_eq!(told, [1, 2, 4, 8]);
    let e = port.drop_other(NodeId(3), 1).unwrap();
    let words = ["node 3", "version 1", "version 3", "same version of freebs on all nodes"];
    assert!(e.kind == ErrorKind::Invalid && words.iter().all(|w| e.text.contains(w)), "{e}");
}
