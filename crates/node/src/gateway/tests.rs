//! The handshake over sockets, with a control plane that only knows names.

use super::*;
use crate::runtime::Command;
use freebs_control::{Command as Change, CreateVolume, Done, Outcome, State};
use freebs_io::linux::net::Stream;
use freebs_types::{ClusterId, Generation, Hash32, StartNumber, VolumeId};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Instant;

struct Names(watch::Receiver<Arc<State>>);

impl ControlPlane for Names {
    async fn submit(&self, change: Change) -> Result<Done> {
        match change {
            // A first attachment to anything that is not there for sure.
            Change::AttachVolume { .. } if self.state().volumes().count() == 1 => {
                let outcome = Outcome::Attached { generation: Generation(1), alone: true };
                Ok(Done { outcome, revision: self.state().revision() })
            }
            Change::AttachVolume { .. } => Err(Error::retry("no leader answers")),
            _ => Err(Error::invalid("nothing changes here")),
        }
    }

    fn state(&self) -> Arc<State> {
        self.0.borrow().clone()
    }

    async fn changed(&self, since: u64) -> Arc<State> {
        let mut news = self.0.clone();
        if let Ok(state) = news.wait_for(|state| state.revision() > since).await {
            return state.clone();
        }
        // Nobody makes anything any more.
        std::future::pending().await
    }
}

/// A volume that is called so.
fn create(state: &mut State, name: String) {
    state.apply(Change::CreateVolume(CreateVolume { name, size: 1 << 20, ..CreateVolume::default() })).unwrap();
}

/// A control plane with this number of volumes, whose names have 124 bytes.
fn many(volumes: usize) -> Names {
    Names(watch::channel(Arc::new(with_volumes(volumes))).1)
}

fn with_volumes(volumes: usize) -> State {
    let mut state = State::new(ClusterId([1; 16]));
    let node = Change::RegisterNode {
        node: NodeId(1),
        name: "n1".into(),
        address: "127.0.0.1:7400".into(),
        workers: 1,
        start: StartNumber(1),
    };
    state.apply(node).unwrap();
    for n in 0..volumes {
        create(&mut state, format!("{n:0>124}"));
    }
    state
}

static NO_WORKERS: Workers = Workers { node: NodeId(0), commands: Vec::new() };
/// Client flags.
const HELLO: [u8; 4] = 3u32.to_be_bytes();
const LIST: u32 = 3;
const INFO: u32 = 6;
const GO: u32 = 7;

fn option(kind: u32) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &kind.to_be_bytes(), &[0; 4]].concat()
}

/// An option about an export, without any request for information.
fn about(kind: u32, name: &str) -> Vec<u8> {
    let len = name.len() as u32;
    [&b"IHAVEOPT"[..], &kind.to_be_bytes(), &(len + 6).to_be_bytes(), &len.to_be_bytes(), name.as_bytes(), &[0; 2]]
        .concat()
}

/// The kind of the next reply, and the bytes of its data.
async fn reply(from: &mut UnixStream) -> (u32, u32) {
    let (kind, text) = told(from).await;
    (kind, text.len() as u32)
}

/// The kind of the next reply, and its data.
async fn told(from: &mut UnixStream) -> (u32, Vec<u8>) {
    let mut head = [0; 20];
    from.read_exact(&mut head).await.expect("a reply");
    let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    let mut data = vec![0; field(16) as usize];
    from.read_exact(&mut data).await.expect("the reply's data");
    (field(12), data)
}

/// A gateway on a socket in `dir`, with these places and times, for as long as the tasks of this thread run.
fn start(dir: &Path, names: Names, workers: Workers, places: [usize; 2], times: Times) -> std::path::PathBuf {
    let at = dir.join("nbd");
    let address = Address::Unix(at.clone());
    let control = Arc::new(names);
    let places = Places::new(places[0], places[1]);
    tokio::task::spawn_local(async move {
        let listener = Listener::bind(&address).await.expect("a socket");
        accept_all(listener, control, workers, places, times).await;
    });
    at
}

/// A client that has taken the greeting.
async fn greeted(at: &Path) -> UnixStream {
    let begun = Instant::now();
    let mut client = loop {
        match UnixStream::connect(at).await {
            Ok(client) => break client,
            Err(e) => assert!(begun.elapsed() < Duration::from_secs(10), "{e}"),
        }
        tokio::task::yield_now().await;
    };
    let greeting = async { client.read_exact(&mut [0; 18]).await };
    tokio::time::timeout(Duration::from_secs(3), greeting).await.expect("a greeting within 3 s").expect("a greeting");
    client
}

/// True if the gateway has let this client go, or does so soon.
async fn is_let_go(client: &mut UnixStream, within: Duration) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(within, client.read_to_end(&mut rest)).await.is_ok()
}

async fn local<T>(test: impl Future<Output = T>) -> T {
    tokio::task::LocalSet::new().run_until(test).await
}

/// A LIST of more than 64 KiB fills what a session may hold unsent, so it looks at no further option until that is
/// sent. The gateway took this for the end and closed the connection.
#[tokio::test]
async fn a_long_list_is_followed_by_more_options() {
    const VOLUMES: usize = 600;
    let (mut client, server) = tokio::net::UnixStream::pair().unwrap();
    let (place, handshake) = Places::new(1, 1).take().await.unwrap();
    let names = many(VOLUMES);
    let times = Times { handshake: timing::HANDSHAKE_LIMIT, attach: Duration::from_secs(1) };
    let serving = shake_hands(Stream::Unix(server), place, &handshake, &names, &NO_WORKERS, times);
    let asking = async {
        client.read_exact(&mut [0; 18]).await.unwrap();
        // Options may come before the answer to the one before.
        client.write_all(&[&3u32.to_be_bytes()[..], &option(3), &option(3), &option(2)].concat()).await.unwrap();
        for _ in 0..2 {
            let mut bytes = 0;
            for _ in 0..VOLUMES {
                let (kind, len) = reply(&mut client).await;
                assert_eq!(kind, 2, "a name");
                bytes += len;
            }
            assert!(bytes > 64 << 10, "{bytes} bytes are too few for this test");
            assert_eq!(reply(&mut client).await, (1, 0));
        }
        assert_eq!(reply(&mut client).await, (1, 0), "the answer to ABORT");
    };
    let (served, ()) = tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(serving, asking) })
        .await
        .expect("both ends come to their end");
    served.expect("a handshake that ended in good order");
}

/// 256 clients that said nothing, or next to nothing, kept every new one out for 50 s, and could do so again and again.
#[tokio::test]
async fn slow_handshakes_do_not_keep_new_clients_out() {
    let times = Times { handshake: timing::HANDSHAKE_LIMIT, attach: Duration::from_secs(1) };
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let at = start(dir.path(), many(1), NO_WORKERS.clone(), [HANDSHAKES_MAX, CONNECTIONS_MAX], times);
        let mut slow = Vec::new();
        for _ in 0..HANDSHAKES_MAX {
            let mut client = greeted(&at).await;
            client.write_all(&HELLO[..2]).await.unwrap();
            slow.push(client);
        }
        let mut new = greeted(&at).await;
        new.write_all(&[&HELLO[..], &option(LIST)].concat()).await.unwrap();
        assert_eq!((reply(&mut new).await.0, reply(&mut new).await.0), (2, 1));
        // The oldest gave way, and nobody else.
        assert!(is_let_go(&mut slow[0], Duration::from_secs(3)).await);
        assert!(!is_let_go(&mut slow[1], Duration::from_millis(50)).await);
    })
    .await;
}

/// Also when no more connections are let in at all: those that wait for a volume give way last.
#[tokio::test]
async fn handshakes_give_way_when_all_connections_are_taken() {
    let times = Times { handshake: timing::HANDSHAKE_LIMIT, attach: Duration::from_secs(60) };
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let (commands, _never_answered) = mpsc::unbounded_channel();
        let workers = Workers { node: NodeId(0), commands: vec![commands] };
        let at = start(dir.path(), many(1), workers, [8, 3], times);
        let mut waiting = greeted(&at).await;
        waiting.write_all(&[&HELLO[..], &about(GO, "")].concat()).await.unwrap();
        let mut slow = [greeted(&at).await, greeted(&at).await];
        let mut more = greeted(&at).await;
        assert!(is_let_go(&mut slow[0], Duration::from_secs(3)).await);
        assert!(!is_let_go(&mut waiting, Duration::from_millis(50)).await);
        // All others are at it, so the one that waits for its volume has to go.
        for client in [&mut slow[1], &mut more] {
            client.write_all(&[&HELLO[..], &about(GO, "")].concat()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _last = greeted(&at).await;
        assert!(is_let_go(&mut waiting, Duration::from_secs(3)).await);
    })
    .await;
}

/// The limit was one for each read, and one of 50 s for all.
#[tokio::test]
async fn a_client_that_trickles_has_no_more_time_than_others() {
    let limit = Duration::from_millis(400);
    let times = Times { handshake: limit, attach: Duration::from_secs(1) };
    let (mut client, server) = UnixStream::pair().unwrap();
    let (place, handshake) = Places::new(1, 1).take().await.unwrap();
    let names = many(1);
    let begun = Instant::now();
    let serving = shake_hands(Stream::Unix(server), place, &handshake, &names, &NO_WORKERS, times);
    let trickle = async {
        for byte in [&HELLO[..], &option(99).repeat(8)].concat() {
            if client.write_all(&[byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(limit / 10).await;
        }
    };
    let (served, ()) = tokio::join!(serving, trickle);
    assert!(served.unwrap_err().text.contains("too long"));
    let took = begun.elapsed();
    assert!(took >= limit && took < limit * 3, "{took:?}");
}

/// Whoever asks about many exports may take longer: that much for each.
#[tokio::test]
async fn a_walk_of_many_exports_has_its_own_time() {
    const VOLUMES: usize = 40;
    let limit = Duration::from_millis(300);
    let times = Times { handshake: limit, attach: Duration::from_secs(1) };
    let (mut client, server) = UnixStream::pair().unwrap();
    let (place, handshake) = Places::new(1, 1).take().await.unwrap();
    let names = many(VOLUMES);
    let serving = shake_hands(Stream::Unix(server), place, &handshake, &names, &NO_WORKERS, times);
    let walk = async {
        client.read_exact(&mut [0; 18]).await.unwrap();
        client.write_all(&HELLO).await.unwrap();
        for n in 0..VOLUMES {
            client.write_all(&about(INFO, &format!("{n:0>124}"))).await.unwrap();
            // Its size, block sizes, the end.
            for kind in [3, 3, 1] {
                assert_eq!(reply(&mut client).await.0, kind);
            }
            tokio::time::sleep(timing::HANDSHAKE_QUESTION / 8).await;
        }
        client.write_all(&option(2)).await.unwrap();
    };
    let begun = Instant::now();
    let (served, ()) = tokio::join!(serving, walk);
    served.expect("a walk that came to its end");
    assert!(begun.elapsed() > limit, "{:?} is too fast for this test", begun.elapsed());
}

/// The refusal that a client gets which asks for the first of so many volumes, and the time until it came.
async fn asked_in_vain(volumes: usize, attach: Duration) -> (String, Duration) {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let names = many(volumes);
        let spec = WorkerSpec {
            cluster: ClusterId([1; 16]),
            me: Peer { node: NodeId(0), worker: 0 },
            workers: 1,
            identity: Hash32([7; 32]),
            name: "test".into(),
            control: Arc::new(Names(names.0.clone())),
            disk: None,
            busy_poll: Duration::ZERO,
        };
        let handle = start_worker(spec).await.expect("a worker");
        let workers = Workers { node: NodeId(0), commands: vec![handle.commands.clone()] };
        let times = Times { handshake: timing::HANDSHAKE_LIMIT, attach };
        let at = start(dir.path(), names, workers, [8, 8], times);
        let mut client = greeted(&at).await;
        let begun = Instant::now();
        client.write_all(&[&HELLO[..], &about(GO, &format!("{:0>124}", 0))].concat()).await.unwrap();
        let (kind, text) = told(&mut client).await;
        let took = begun.elapsed();
        assert!(kind & 1 << 31 != 0, "a refusal, not {kind}");
        // The client is still welcome.
        client.write_all(&option(LIST)).await.unwrap();
        assert_eq!(reply(&mut client).await.0, 2);
        stop_workers(&[handle]).await;
        (String::from_utf8(text).unwrap(), took)
    })
    .await
}

/// A client heard nothing for 35 s, and then only that it had been too long.
#[tokio::test]
async fn a_client_hears_in_time_why_its_volume_can_not_be_used() {
    let wait = Duration::from_millis(700);
    // The only volume is given to us, and its node is not there.
    let (text, took) = asked_in_vain(1, wait).await;
    assert!(text.contains("too few members") && text.contains("nothing from n1"), "{text}");
    assert!(took >= wait && took < wait * 3, "{took:?}");
    let (text, took) = asked_in_vain(2, wait).await;
    assert!(text.contains("control plane: no leader answers"), "{text}");
    assert!(took >= wait && took < wait * 3, "{took:?}");
}

/// A worker gives up after a while. A client that was promised more goes on waiting.
#[tokio::test]
async fn whoever_waits_longer_is_tried_for_again() {
    let (commands, mut asked) = mpsc::unbounded_channel();
    let answers = async {
        for n in 0..3 {
            let Some(Command::Open { reply, .. }) = asked.recv().await else { panic!("the volume is asked for") };
            let result = if n < 2 { Err(Error::retry("not yet")) } else { Ok(Generation(5)) };
            assert!(reply.send(result).is_ok());
        }
    };
    let (opened, ()) = tokio::join!(handshake::open(&commands, VolumeId(1), Duration::from_secs(10)), answers);
    assert_eq!(opened, Ok(Generation(5)));
    // Somebody else has it: there is nothing to wait for.
    let answers = async {
        let Some(Command::Open { reply, .. }) = asked.recv().await else { panic!("the volume is asked for") };
        assert!(reply.send(Err(Error::busy("attached by another"))).is_ok());
    };
    let (opened, ()) = tokio::join!(handshake::open(&commands, VolumeId(1), Duration::from_secs(10)), answers);
    assert_eq!(opened.unwrap_err().text, "attached by another");
}

/// A client that made a volume through a node was told by a gateway that there is none: the gateway had not heard of it.
#[tokio::test]
async fn a_name_that_was_made_a_moment_ago_is_waited_for() {
    const INFO_REPLY: u32 = 3;
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let mut state = with_volumes(2);
        let (make, made) = watch::channel(Arc::new(state.clone()));
        let times = Times { handshake: timing::HANDSHAKE_LIMIT, attach: Duration::ZERO };
        let at = start(dir.path(), Names(made), NO_WORKERS.clone(), [8, 8], times);
        let mut client = greeted(&at).await;
        client.write_all(&[&HELLO[..], &about(INFO, "new")].concat()).await.unwrap();
        let early = tokio::time::timeout(timing::NAME_HEARD_OF_MAX / 4, told(&mut client)).await;
        assert!(early.is_err(), "an answer before there was news: {early:?}");
        // News of something else first.
        for name in ["another", "new"] {
            create(&mut state, name.into());
            make.send_replace(Arc::new(state.clone()));
            tokio::task::yield_now().await;
        }
        assert_eq!(told(&mut client).await.0, INFO_REPLY);
        while told(&mut client).await.0 == INFO_REPLY {}
        // One that nobody makes is refused in the end, and so is a snapshot.
        for name in ["none", "new@none"] {
            client.write_all(&about(INFO, name)).await.unwrap();
            let (kind, text) = told(&mut client).await;
            let text = String::from_utf8(text).unwrap();
            assert!(kind & 1 << 31 != 0 && text.contains("there is no"), "{name}: {kind} {text}");
        }
    })
    .await
}
