//! Nodes of a cluster with an authority speak TLS with each other: who listens on the way reads nothing, and who can't show
//! that it is a member is refused.

use super::{BLOCK, Servers, Weight, done, edit, refused, start_refused, three, turn};
use crate::support::PATIENCE;
use crate::support::cluster::free_ports;
use crate::support::nbd::{Client, Op, Place};
use crate::support::tools::{output, skip, wait_for};
use bytes::BytesMut;
use freebs_format::keys::{KeyOf, SigningKeyFile};
use freebs_format::wire::{Hello, Message, Role};
use freebs_identity::{Caller, SigningKey, Tls, certify};
use freebs_types::{ClusterId, Hash32, HostPublic, NodeId, StartNumber};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use tokio_rustls::rustls;

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 0x16;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// All that went over taps, one entry for each direction of each connection.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Vec<u8>>>>);

impl Seen {
    /// True if any piece of the block went by as it is.
    fn has(&self, block: &[u8]) -> bool {
        let all = self.0.lock().expect("no panic");
        let has = |piece: &[u8]| all.iter().any(|bytes| bytes.windows(piece.len()).any(|w| w == piece));
        [0, BLOCK / 2, BLOCK - 64].into_iter().any(|at| has(&block[at..at + 64]))
    }

    /// Directions that began with a handshake, and all that had anything.
    fn counts(&self) -> (usize, usize) {
        let all = self.0.lock().expect("no panic");
        let encrypted = all.iter().filter(|bytes| bytes.first() == Some(&HANDSHAKE)).count();
        (encrypted, all.iter().filter(|bytes| !bytes.is_empty()).count())
    }
}

/// Passes on all that comes at one address to another, and keeps it; until it is dropped.
struct Tap(Arc<AtomicBool>);

impl Drop for Tap {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn tap(at: &str, to: String, seen: &Seen) -> Tap {
    let listener = TcpListener::bind(at).expect("the address is free");
    listener.set_nonblocking(true).expect("set");
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), seen.clone());
    let stopped = stop.clone();
    thread::spawn(move || {
        while !stopped.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((near, _)) => {
                    // Nobody is there while the node behind it does not run.
                    let Ok(far) = TcpStream::connect(&to) else { continue };
                    near.set_nonblocking(false).expect("set");
                    pass_on(&near, &far, &seen);
                    pass_on(&far, &near, &seen);
                }
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    });
    Tap(stop)
}

fn pass_on(from: &TcpStream, to: &TcpStream, seen: &Seen) {
    let (mut from, mut to) = (from.try_clone().expect("cloned"), to.try_clone().expect("cloned"));
    let _ = to.set_nodelay(true);
    let (all, mine) = {
        let mut all = seen.0.lock().expect("no panic");
        all.push(Vec::new());
        (seen.clone(), all.len() - 1)
    };
    thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            all.0.lock().expect("no panic")[mine].extend_from_slice(&bytes[..n]);
            if to.write_all(&bytes[..n]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

/// A block that looks like no other, the same in each run.
fn pattern() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..BLOCK).map(|_| next()).collect()
}

/// Writes the pattern by the first node's own NBD, and reads it from volumes with three copies.
fn write_the_pattern(s: &Servers) {
    let made = s.json(&["volume", "create", "data", "--size", "64M"]);
    assert_eq!(made["copies"].as_u64(), Some(3));
    let place = Place::Unix(s.dir().join("door.sock"));
    let mut client = wait_for("the node's NBD", || Client::connect(&place, "data", true).ok());
    for i in 0..32 {
        client.write(i << 20, &pattern());
    }
    assert!(matches!(client.ask(&Op::Flush), Ok(Ok(_))));
    for i in 0..32 {
        assert_eq!(client.read(i << 20, BLOCK as u32), pattern());
    }
}

/// Starts a node behind its tap, as its cluster file names it.
fn start_behind(s: &mut Servers, name: &str, file: &str, seen: &Seen) -> Tap {
    let real = format!("127.0.0.1:{}", free_ports(1));
    let tap = tap(&s.address(name), real.clone(), seen);
    let door = format!("unix:{}", s.dir().join("door.sock").display());
    let mut more = vec!["--cluster-file", file, "--name", name, "--listen", &real];
    if name == "a" {
        more.extend(["--nbd", &door]);
    }
    s.start_with(name, &more);
    tap
}

fn own_file(s: &Servers, name: &str) -> String {
    s.data(name).join("cluster.json").to_str().expect("a text").to_owned()
}

#[test]
fn what_joined_nodes_say_can_not_be_read_on_the_way() {
    let _turn = turn(Weight::Loaded);
    let (mut s, seen) = (Servers::begin(3), Seen::default());
    // It has founded the cluster, and others reach it at its tap from now on.
    s.kill("a");
    let own = own_file(&s, "a");
    let mut taps = vec![start_behind(&mut s, "a", &own, &seen)];
    s.wait_up(1);
    for (i, name) in ["b", "c"].into_iter().enumerate() {
        done(&s.join("a", &s.token("10min"), name, &[]));
        let file = own_file(&s, name);
        taps.push(start_behind(&mut s, name, &file, &seen));
        s.wait_up(i + 2);
    }
    write_the_pattern(&s);
    let (encrypted, all) = seen.counts();
    // Commands speak plain, on this machine.
    assert!(encrypted >= 8 && encrypted < all, "{encrypted} of {all}");
    assert!(!seen.has(&pattern()), "the pattern went over the wire as it is");
    assert!(seen.0.lock().expect("no panic").iter().map(Vec::len).sum::<usize>() > 2 * 32 * BLOCK);
}

/// The same look at a cluster without an authority finds it, or it would prove nothing.
#[test]
fn the_same_look_finds_what_is_plain() {
    let _turn = turn(Weight::Loaded);
    let (mut s, seen) = (Servers::none(3), Seen::default());
    let node = |(i, name): (usize, &&str)| {
        let data = s.data(name);
        json!({ "id": i + 1, "name": name, "address": s.address(name), "data": data.to_str(), "workers": 1 })
    };
    let nodes: Vec<Value> = NAMES.iter().enumerate().map(node).collect();
    let path = s.dir().join("all.json");
    let file = json!({
        "version": 1, "cluster": "07".repeat(16), "nodes": nodes, "device_size": 1 << 30, "segment_bytes": 8 << 20,
    });
    std::fs::write(&path, file.to_string()).expect("written");
    let path = path.to_str().expect("a text").to_owned();
    let _taps: Vec<Tap> = NAMES.iter().map(|name| start_behind(&mut s, name, &path, &seen)).collect();
    s.wait_up(3);
    write_the_pattern(&s);
    assert!(seen.has(&pattern()));
    assert_eq!(seen.counts().0, 0);
}

pub fn hello_from(cluster: ClusterId, role: Role, node: u64) -> Vec<u8> {
    let mut out = BytesMut::new();
    let (node, start) = (NodeId(node), StartNumber(9));
    Message::Hello(Hello { cluster, role, node, start, from_worker: 0, to_worker: 0 }).encode(&mut out);
    out.to_vec()
}

/// The first that is answered; `None` if the other side closed the connection.
fn answer(mut stream: impl Read) -> Option<Message> {
    let mut buf = BytesMut::new();
    loop {
        if let Some(message) = Message::decode(&mut buf).expect("a message") {
            return Some(message);
        }
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(0) => return None,
            Ok(n) => buf.extend_from_slice(&bytes[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => panic!("no answer in time"),
            Err(_) => return None,
        }
    }
}

pub fn dial(at: &str) -> TcpStream {
    let stream = TcpStream::connect(at).expect("it listens");
    stream.set_read_timeout(Some(crate::support::PATIENCE)).expect("set");
    stream
}

/// Says a hello with TLS, and hears the answer.
fn say(at: &str, caller: &Caller, hello: &[u8]) -> Option<Message> {
    let tls = rustls::ClientConnection::new(caller.config(), caller.any_node()).expect("a client");
    let mut stream = rustls::StreamOwned::new(tls, dial(at));
    // A refusal is heard at the first read, or write.
    stream.write_all(hello).ok()?;
    answer(stream)
}

fn said(s: &Servers, words: &str) {
    wait_for("the reason", || s.log().contains(words).then_some(()));
}

struct Known {
    cluster: ClusterId,
    authority: SigningKey,
}

/// The files beside the first node.
fn known(s: &Servers) -> Known {
    let file: Value =
        serde_json::from_slice(&std::fs::read(s.data("a").join("cluster.json")).expect("a file")).unwrap();
    let cluster: ClusterId = serde_json::from_value(file["cluster"].clone()).expect("a cluster");
    let bytes = std::fs::read(s.data("a").join("authority-key")).expect("a key");
    let (seed, _) = SigningKeyFile::decode(&bytes, KeyOf::Authority, cluster).expect("a key");
    Known { cluster, authority: SigningKey::new(&seed).expect("a key") }
}

/// A certificate of the key of one node for another number, which the authority would never make.
pub fn certified(s: &Servers, node: u64, key_of: &str) -> Vec<u8> {
    let k = known(s);
    let bytes = std::fs::read(s.data(key_of).join("node-key")).expect("a key");
    let (_, public) = SigningKeyFile::decode(&bytes, KeyOf::Node, k.cluster).expect("a key");
    certify(&k.authority, k.cluster, NodeId(node), &public).expect("certified")
}

/// Somebody who has all that a node had.
pub struct Rogue(Caller);

impl Rogue {
    /// A connection as that node, which is given up if nothing comes for a while.
    pub fn connect(&self, at: &str) -> impl Read + Write + use<> {
        let tls = rustls::ClientConnection::new(self.0.config(), self.0.any_node()).expect("a client");
        let stream = dial(at);
        stream.set_read_timeout(Some(Duration::from_millis(150))).expect("set");
        rustls::StreamOwned::new(tls, stream)
    }
}

/// The cluster, and somebody with the key and the certificate of one of its nodes.
pub fn member(s: &Servers, name: &str, node: u64) -> (ClusterId, Rogue) {
    let k = known(s);
    let bytes = std::fs::read(s.data(name).join("node-key")).expect("a key");
    let (seed, public) = SigningKeyFile::decode(&bytes, KeyOf::Node, k.cluster).expect("a key");
    let certificate = certify(&k.authority, k.cluster, NodeId(node), &public).expect("certified");
    let key = SigningKey::new(&seed).expect("a key");
    let tls = Tls::new(k.cluster, &k.authority.public(), &key, certificate).expect("a key");
    (k.cluster, Rogue(tls.caller().clone()))
}

fn key(byte: u8) -> SigningKey {
    SigningKey::new(&Hash32([byte; 32])).expect("a key")
}

/// A caller that believes this cluster's nodes, with a certificate of an authority for its own key as a node's.
fn caller(known: &Known, by: &SigningKey, cluster: ClusterId, node: u64) -> Caller {
    let certificate = certify(by, cluster, NodeId(node), &key(7).public()).expect("certified");
    let authority: HostPublic = known.authority.public();
    Tls::new(known.cluster, &authority, &key(7), certificate).expect("a key").caller().clone()
}

#[test]
fn who_is_no_member_is_refused_by_each_door() {
    let _turn = turn(Weight::Light);
    let mut s = Servers::begin(2);
    done(&s.join("a", &s.token("10min"), "b", &[]));
    s.start("b");
    s.wait_up(2);
    let (k, at) = (known(&s), s.address("a"));
    // Plain: commands alone are heard, and nobody who says that it is a node.
    let plain = |role, node| {
        let mut stream = dial(&at);
        stream.write_all(&hello_from(k.cluster, role, node)).expect("said");
        answer(stream)
    };
    assert!(matches!(plain(Role::Control, 0), Some(Message::Welcome(_))));
    assert!(plain(Role::Node, 2).is_none() && plain(Role::Driver, 2).is_none());
    for role in [Role::Seat, Role::Control] {
        assert!(matches!(plain(role, 2), Some(Message::ControlReply { .. })), "{role:?}");
    }
    said(&s, "was refused: it speaks no TLS");
    let events = s.cli(&["events"]);
    assert!(String::from_utf8_lossy(&events.stdout).contains("it speaks no TLS"), "{events:?}");
    // Of another authority, or another cluster: there is no answer at all.
    for bad in [caller(&k, &key(1), k.cluster, 2), caller(&k, &k.authority, ClusterId([8; 16]), 2)] {
        for role in [Role::Node, Role::Seat, Role::Control, Role::Driver] {
            assert!(say(&at, &bad, &hello_from(k.cluster, role, 2)).is_none(), "{role:?}");
        }
    }
    // Certified once, and not with the key that the cluster knows the member by; or as another node.
    let welcome = |answer: Option<Message>| matches!(answer, Some(Message::Welcome(_)));
    let (stolen, unknown) = (caller(&k, &k.authority, k.cluster, 2), caller(&k, &k.authority, k.cluster, 9));
    for role in [Role::Node, Role::Seat, Role::Control, Role::Driver] {
        assert!(!welcome(say(&at, &stolen, &hello_from(k.cluster, role, 2))), "{role:?}");
        assert!(!welcome(say(&at, &unknown, &hello_from(k.cluster, role, 2))), "{role:?}");
    }
    // Without a certificate one thing may be asked for.
    let nobody = Caller::to_join(k.cluster, &k.authority.public()).expect("a caller");
    assert!(welcome(say(&at, &nobody, &hello_from(k.cluster, Role::Control, 0))));
    assert!(!welcome(say(&at, &nobody, &hello_from(k.cluster, Role::Node, 2))));
    s.wait_up(2);
}

/// An address of this machine that is no loopback, if it has one.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| ip.to_string())
}

#[test]
fn nodes_beyond_loopback_are_asked_as_one_of_them() {
    let _turn = turn(Weight::Loaded);
    let Some(host) = own_address() else { return skip("this machine has no address but loopback") };
    let mut s = Servers::begin_at(&host, 3);
    for (i, name) in ["b", "c"].into_iter().enumerate() {
        done(&s.join("a", &s.token("10min"), name, &[]));
        s.start(name);
        s.wait_up(i + 2);
    }
    s.json(&["volume", "create", "data", "--size", "64M"]);
    let place = s.gateway("door");
    let mut client = wait_for("the gateway", || Client::connect(&place, "data", true).ok());
    client.write(0, &pattern());
    assert_eq!(client.read(0, BLOCK as u32), pattern());
    // Without a node's key the same command is told what it lacks.
    let mut plain = s.freebs();
    plain.env_remove("FREEBS_AS_NODE").arg("status");
    refused(&output(&mut plain, PATIENCE), &["speaks no TLS", "--as-node"]);
}

#[test]
fn a_node_of_another_cluster_is_refused_and_both_say_why() {
    let _turn = turn(Weight::Loaded);
    let (mut s, mut other) = (Servers::begin(2), Servers::begin(2));
    done(&other.join("a", &other.token("10min"), "b", &[]));
    other.start("b");
    other.wait_up(2);
    other.kill("b");
    other.kill("a");
    // Its first node is said to be where that of this cluster is.
    let here = s.address("a");
    edit(&other, "b", |file| file["peers"][0]["address"] = here.as_str().into());
    other.start("b");
    said(&other, "its certificate is none of this cluster's authority");
    said(&s, "was refused: it refuses this side's certificate");
    other.kill("b");
    done(&s.join("a", &s.token("10min"), "b", &[]));
    s.start("b");
    s.wait_up(2);
}

/// Nothing in the file is secret, and who has the node's key can have it again.
#[test]
fn a_lost_certificate_is_had_again_with_a_token() {
    let _turn = turn(Weight::Loaded);
    let mut s = three();
    s.kill("b");
    let path = s.data("b").join("node-certificate");
    let certificate = std::fs::read(&path).expect("a file");
    std::fs::remove_file(&path).expect("removed");
    start_refused(&s, "b", &[], &["node-certificate is gone", "freebs node join", "freebs cluster token"]);
    // Another node's directory is none, nor is one that lacks nothing.
    refused(&s.join("a", &s.token("10min"), "c", &[]), &["is the data directory of c"]);
    let token = s.token("10min");
    done(&s.join("c", &token, "b", &[]));
    assert_eq!(std::fs::read(&path).expect("a file"), certificate);
    s.start("b");
    assert_eq!(s.wait_up(3).len(), 3, "it is no new node");
    std::fs::remove_file(s.data("c").join("node-certificate")).expect("removed");
    s.kill("c");
    refused(&s.join("a", &token, "c", &[]), &["the token was used by b already"]);
}
