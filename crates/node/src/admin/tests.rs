//! Keeper, followers, clients and services together over loopback, with made-up replicas.

use super::plane::{FollowerOptions, KeeperOptions};
use super::server::serve_hello;
use super::{Client, LocalFuture, LocalNode, Me, Plane, Service};
use bytes::BytesMut;
use freebs_control::api::{
    GatewayInfo, MemberState, Reply, Request, ShardDigest, ShardStatus, Status, Verification, VolumeState,
};
use freebs_control::{Command, ControlPlane, CreateVolume, Outcome};
use freebs_types::{
    ClusterId, Error, ErrorKind, Generation, Hash32, NodeId, Result, Sequence, ShardId, StartNumber, Version,
    ViewNumber, VolumeId,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

const CLUSTER: ClusterId = ClusterId([9; 16]);
const MAX: Duration = Duration::from_secs(20);

/// Replicas of a node as a test wants them.
#[derive(Default)]
struct Fake {
    shards: Mutex<BTreeMap<ShardId, (ShardStatus, Hash32)>>,
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

    fn digest(&self, shard: ShardId) -> LocalFuture<'_, Result<ShardDigest>> {
        let found = self.shards.lock().unwrap().get(&shard).cloned();
        Box::pin(async move {
            let (s, digest) = found.ok_or_else(|| Error::not_found("no such shard here"))?;
            Ok(ShardDigest { shard, view: s.view, version: s.version, digest })
        })
    }
}

struct Node {
    plane: Plane,
    fake: Arc<Fake>,
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
        keeper: id == 1,
    };
    let service = Service::new(me, plane.clone(), fake.clone());
    let accepting = tokio::spawn(async move {
        // All connections end with the node, as they do when a process dies.
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve_hello(stream, service.clone()));
        }
    });
    Node { plane, fake, address, accepting }
}

/// Node 1 keeps the state in `dir`, the others follow.
async fn cluster(dir: &Path, nodes: u64) -> Vec<Node> {
    let mut listeners = Vec::new();
    for _ in 0..nodes {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
    let members = addresses.iter().zip(1..).map(|(a, id)| member(id, a, 0)).collect();
    let keeper = Plane::keep(KeeperOptions { cluster: CLUSTER, data: dir.into(), may_create: true, members }).unwrap();
    let mut out = Vec::new();
    for (id, listener) in (1..).zip(listeners) {
        let plane = if id == 1 { keeper.clone() } else { follow(&addresses[..1], false) };
        out.push(serve_node(id, listener, plane));
    }
    for node in &out {
        node.plane.ready().await;
    }
    out
}

fn follow(addresses: &[String], any_node: bool) -> Plane {
    Plane::follow(FollowerOptions { cluster: Some(CLUSTER), addresses: addresses.to_vec(), any_node }).unwrap()
}

fn create(name: &str) -> CreateVolume {
    CreateVolume { name: name.into(), size: 1 << 30, ..CreateVolume::default() }
}

/// Waits until all nodes know what the keeper knows.
async fn level(nodes: &[Node]) {
    let revision = nodes[0].plane.state().revision();
    for node in nodes {
        while node.plane.state().revision() < revision {
            node.plane.changed(node.plane.state().revision()).await;
        }
    }
}

async fn ask(node: &Node, request: Request) -> Result<Reply> {
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
    ask(&nodes[1], Request::VolumeResize { name: "v0".into(), size: 2 << 30 }).await.unwrap();
    ask(&nodes[2], Request::VolumeDelete { name: "v1".into(), force: false }).await.unwrap();
    let e = ask(&nodes[0], Request::VolumeShow { name: "v1".into() }).await.unwrap_err();
    assert!(e.kind == ErrorKind::NotFound && e.text.contains("volume list"), "{e}");
    level(&nodes).await;
    for node in &nodes {
        assert!(node.plane.state().volumes().eq(nodes[0].plane.state().volumes()));
        assert_eq!(node.plane.state().volume_by_name("v0").unwrap().size, 2 << 30);
    }
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
    node.plane.submit(member(head.0, &node.address, 4)).await.unwrap();
    let done = node.plane.submit(propose).await.unwrap();
    let expected = Outcome::Proposed { view: ViewNumber(1), pred: ViewNumber(0), generation: Generation(0) };
    assert_eq!(done.outcome, expected);
    let activate = Command::ActivateView { shard, view: ViewNumber(1), generation: Generation(0) };
    node.plane.submit(activate).await.unwrap();
    assert_eq!(node.plane.state().shard(shard).unwrap().active, ViewNumber(1));
    let attach =
        Command::AttachVolume { volume: VolumeId(1), identity: Hash32([1; 32]), name: "gateway".into(), force: false };
    let done = nodes[1].plane.submit(attach).await.unwrap();
    assert_eq!(done.outcome, Outcome::Attached { generation: Generation(1) });
    let stranger = member(77, "127.0.0.1:1", 1);
    assert!(nodes[1].plane.submit(stranger).await.unwrap_err().text.contains("cluster file"));
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
    nodes[0].plane.submit(member(head.0, &nodes[head.0 as usize - 1].address, 1)).await.unwrap();
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
    assert!(!found.agree && found.shards[0].problem.contains("1 of 3 replicas"), "{found:?}");
    let e = ask(&nodes[0], Request::VolumeVerify { name: "b".into(), wait_ms: 0 }).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn reading_goes_on_while_the_keeper_is_down_and_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3).await;
    ask(&nodes[2], Request::VolumeCreate(create("a"))).await.unwrap();
    level(&nodes).await;
    let keeper = nodes.remove(0);
    let address = keeper.address.clone();
    drop(keeper);
    let s = status(&nodes[0]).await;
    assert_eq!((s.nodes[0].state.as_str(), s.nodes[0].pid, s.volumes.len()), ("down", None, 1));
    let e = ask(&nodes[1], Request::VolumeCreate(create("b"))).await.unwrap_err();
    assert_eq!(e.kind, ErrorKind::Retry, "{e}");
    // The keeper starts again on what its disk has; the others find it and go on.
    let members = vec![member(1, &address, 0), member(2, &nodes[0].address, 0), member(3, &nodes[1].address, 0)];
    let plane =
        Plane::keep(KeeperOptions { cluster: CLUSTER, data: dir.path().into(), may_create: false, members }).unwrap();
    assert!(plane.state().volume_by_name("a").is_some());
    // Somebody may have been given the port meanwhile, for an outgoing connection perhaps.
    let bound = async {
        loop {
            match TcpListener::bind(&address).await {
                Ok(listener) => break listener,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let listener = tokio::time::timeout(MAX, bound).await.expect("the port gets free");
    let _keeper = serve_node(1, listener, plane);
    let create_b = async {
        while ask(&nodes[1], Request::VolumeCreate(create("b"))).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(MAX, create_b).await.expect("the follower finds the keeper again");
    assert!(nodes[1].plane.state().volume_by_name("b").is_some());
}

#[tokio::test]
async fn gateways_are_listed_while_they_are_connected() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 2).await;
    // Its first address does not answer: nobody listens there.
    let gone = "127.0.0.1:1".to_owned();
    let gateway = follow(&[gone, nodes[1].address.clone()], true);
    gateway.ready().await;
    assert!(status(&nodes[0]).await.gateways.is_empty(), "not before it says that it serves");
    gateway.announce(GatewayInfo { name: "g".into(), pid: 7, nbd: "127.0.0.1:10809".into() });
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

#[tokio::test]
async fn a_foreign_cluster_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1).await;
    let other = Plane::follow(FollowerOptions {
        cluster: Some(ClusterId([1; 16])),
        addresses: vec![nodes[0].address.clone()],
        any_node: true,
    })
    .unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(500), other.ready()).await.is_err());
    let any =
        Plane::follow(FollowerOptions { cluster: None, addresses: vec![nodes[0].address.clone()], any_node: true })
            .unwrap();
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
    let nobody = GatewayInfo { name: "../../etc".into(), pid: 1, nbd: String::new() };
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

/// All nodes were killed. One that follows was back before the keeper, knew nothing, and said so to a gateway, which
/// took all volumes for deleted and failed every request.
#[tokio::test]
async fn a_follower_without_a_state_deletes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 1).await;
    nodes[0].plane.submit(Command::CreateVolume(create("a"))).await.unwrap();
    // Its keeper can't be reached: nobody listens at port 1.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    nodes.push(serve_node(2, listener, follow(&["127.0.0.1:1".into()], false)));
    let gateway = follow(&[nodes[0].address.clone(), nodes[1].address.clone()], false);
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

#[tokio::test]
async fn a_keeper_refuses_a_cluster_file_that_lost_or_renamed_a_member() {
    let dir = tempfile::tempdir().unwrap();
    let keep = |members: Vec<Command>| {
        Plane::keep(KeeperOptions { cluster: CLUSTER, data: dir.path().into(), may_create: true, members })
    };
    drop(keep(vec![member(1, "127.0.0.1:1", 0), member(2, "127.0.0.1:2", 0)]).unwrap());
    let e = keep(vec![member(1, "127.0.0.1:1", 0)]).unwrap_err();
    assert!(e.text.contains("node2"), "{e}");
    let renamed = Command::RegisterNode {
        node: NodeId(2),
        name: "other".into(),
        address: "127.0.0.1:2".into(),
        workers: 1,
        start: StartNumber(0),
    };
    let e = keep(vec![member(1, "127.0.0.1:1", 0), renamed]).unwrap_err();
    assert!(e.text.contains("put the name back"), "{e}");
    keep((1..4).map(|i| member(i, &format!("127.0.0.1:{i}"), 0)).collect()).unwrap();
}
