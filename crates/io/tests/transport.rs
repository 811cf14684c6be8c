//! Links over TCP with and without TLS, unix sockets, and inside a worker.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "tests of the edge touch real sockets")]

mod any_server;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use freebs_io::linux::net::{
    Address, Encoder, Handler, LinkStream, Listener, LooseLink, Stream, Transport, Wire, connect, fresh_link,
};
use freebs_io::{LinkId, Outbox};
use freebs_types::{Error, ErrorKind, Result, limits};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::LocalSet;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// A number and some bytes: length (4), number (8), payload. A length of `u32::MAX` is garbage.
struct Numbered;
type Letter = (u64, Bytes);
const HEADER: usize = 12;

impl Wire for Numbered {
    type Message = Letter;

    fn wanted(bytes: &[u8]) -> Result<usize> {
        match bytes.first_chunk::<4>().map(|b| u32::from_le_bytes(*b)) {
            None => Ok(HEADER),
            Some(u32::MAX) => Err(Error::corrupt("garbage")),
            Some(len) => Ok(HEADER + len as usize),
        }
    }

    fn decode(buf: &mut BytesMut) -> Result<Option<Letter>> {
        let wanted = Self::wanted(buf)?;
        if buf.len() < wanted {
            return Ok(None);
        }
        let mut bytes = buf.split_to(wanted).freeze();
        bytes.advance(4);
        Ok(Some((bytes.get_u64_le(), bytes)))
    }

    fn encode((number, payload): Letter, out: &mut Encoder) {
        assert_ne!(number, NEVER_ENCODED);
        out.head().put_u32_le(payload.len() as u32);
        out.head().put_u64_le(number);
        out.put(payload);
    }

    fn weight(message: &Letter) -> usize {
        32 + message.1.len()
    }
}

const NEVER_ENCODED: u64 = u64::MAX - 1;

/// What a handler saw.
#[derive(Default)]
struct Log {
    batches: RefCell<Vec<(LinkId, Vec<Letter>)>>,
    closed: RefCell<Vec<(LinkId, Error)>>,
    /// Called in the middle of a batch.
    #[allow(clippy::type_complexity, reason = "one hook of a test")]
    hook: RefCell<Option<Box<dyn Fn(LinkId, &[Letter])>>>,
    busy: Cell<bool>,
}

impl Handler<Letter> for Log {
    fn on_messages(&self, link: LinkId, messages: &mut Vec<Letter>) {
        assert!(!self.busy.replace(true), "called from inside itself");
        if let Some(hook) = &*self.hook.borrow() {
            hook(link, messages);
        }
        self.batches.borrow_mut().push((link, std::mem::take(messages)));
        self.busy.set(false);
    }

    fn on_closed(&self, link: LinkId, why: Error) {
        assert!(!self.busy.get(), "called from inside on_messages");
        self.closed.borrow_mut().push((link, why));
    }
}

impl Log {
    fn letters(&self, link: LinkId) -> Vec<Letter> {
        let batches = self.batches.borrow();
        batches.iter().filter(|(l, _)| *l == link).flat_map(|(_, m)| m.iter().cloned()).collect()
    }

    fn count(&self, link: LinkId) -> usize {
        self.batches.borrow().iter().filter(|(l, _)| *l == link).map(|(_, m)| m.len()).sum()
    }

    fn why(&self, link: LinkId) -> Option<Error> {
        self.closed.borrow().iter().find(|(l, _)| *l == link).map(|(_, e)| e.clone())
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap_or_else(|_| panic!("no {what}"));
}

fn worker<F: Future>(body: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, body)
}

fn start() -> (Transport<Numbered>, Rc<Log>) {
    let (transport, log) = (Transport::start(), Rc::new(Log::default()));
    transport.set_handler(log.clone());
    (transport, log)
}

async fn tcp_pair() -> (Stream, Stream) {
    let listener = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).await.unwrap();
    let address = listener.address().unwrap();
    let (near, far) = tokio::join!(connect(&address, Duration::from_secs(5)), listener.accept());
    (near.unwrap(), far.unwrap())
}

fn unix_pair() -> (Stream, Stream) {
    let (a, b) = UnixStream::pair().unwrap();
    (Stream::Unix(a), Stream::Unix(b))
}

/// Both sides behind the handshake.
async fn shaken() -> (client::TlsStream<TcpStream>, server::TlsStream<TcpStream>) {
    let (near, far) = tcp_pair().await;
    let (Stream::Tcp(near), Stream::Tcp(far)) = (near, far) else { unreachable!("they are TCP") };
    let (connector, acceptor) = (TlsConnector::from(any_server::client()), TlsAcceptor::from(any_server::server()));
    let name = any_server::name();
    let (near, far) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
    (near.unwrap(), far.unwrap())
}

fn encrypted(near: client::TlsStream<TcpStream>) -> LinkStream {
    let (stream, tls) = near.into_inner();
    LinkStream::encrypted(stream, tls.into())
}

async fn tls_pair() -> (LinkStream, LinkStream) {
    let (near, far) = shaken().await;
    let (stream, tls) = far.into_inner();
    (encrypted(near), LinkStream::encrypted(stream, tls.into()))
}

fn adopt(transport: &Transport<Numbered>, stream: impl Into<LinkStream>) -> LinkId {
    let link = fresh_link();
    transport.adopt(stream, link, BytesMut::new());
    link
}

/// Links at both ends of the same stream, once for each kind of stream.
async fn both_ends(transport: &Transport<Numbered>) -> Vec<(LinkId, LinkId)> {
    let (tcp, unix, (near, far)) = (tcp_pair().await, unix_pair(), tls_pair().await);
    let mut all = [tcp, unix].map(|(a, b)| (adopt(transport, a), adopt(transport, b))).to_vec();
    all.push((adopt(transport, near), adopt(transport, far)));
    all
}

fn payload(number: u64, len: usize) -> Bytes {
    Bytes::from((0..len).map(|i| (number as usize + i * 31) as u8).collect::<Vec<u8>>())
}

#[test]
fn messages_arrive_whole_and_in_order_in_both_directions() {
    worker(async {
        let (transport, log) = start();
        let lens = [0, 16, 511, 512, 513, 4096, 70_000, 3, 300_000];
        for (a, b) in both_ends(&transport).await {
            for i in 0..2000_u64 {
                transport.send(a, (i, payload(i, lens[i as usize % lens.len()])));
                transport.send(b, (i, payload(i + 1, 40)));
                if i % 37 == 0 {
                    tokio::task::yield_now().await;
                }
                if i % 200 == 199 {
                    until("room", || transport.queued(a) < 8 << 20).await;
                }
            }
            until("messages", || log.count(b) == 2000 && log.count(a) == 2000).await;
            for (i, (number, bytes)) in (0..).zip(log.letters(b)) {
                assert!(number == i && bytes == payload(i, lens[i as usize % lens.len()]), "letter {i}");
            }
            assert!((0..).zip(log.letters(a)).all(|(i, (n, bytes))| n == i && bytes == payload(i + 1, 40)));
            assert_eq!((transport.queued(a), transport.queued(b)), (0, 0));
        }
        assert!(log.closed.borrow().is_empty());
    });
}

#[test]
fn what_a_turn_sends_is_one_write_and_one_batch() {
    worker(async {
        let (transport, log) = start();
        for (a, b) in both_ends(&transport).await {
            transport.send(a, (0, Bytes::new()));
            until("the first", || log.count(b) == 1).await;
            let before = transport.counts();
            for i in 1..=32 {
                transport.send(a, (i, payload(i, 1000)));
            }
            until("the others", || log.count(b) == 33).await;
            let after = transport.counts();
            assert_eq!(after.writes - before.writes, 1);
            assert_eq!(after.batches_received - before.batches_received, 1);
            assert_eq!(after.messages_sent - before.messages_sent, 32);
        }
    });
}

#[test]
fn tasks_that_are_ready_go_before_the_write() {
    worker(async {
        let (transport, log) = start();
        let (a, b) = both_ends(&transport).await[0];
        transport.send(a, (0, Bytes::new()));
        until("the first", || log.count(b) == 1).await;
        let before = transport.counts();
        for i in 0..10 {
            let transport = transport.clone();
            tokio::task::spawn_local(async move { transport.send(a, (i, Bytes::new())) });
        }
        until("ten more", || log.count(b) == 11).await;
        assert_eq!(transport.counts().writes - before.writes, 1);
    });
}

#[test]
fn the_largest_message_passes_and_a_larger_one_closes() {
    worker(async {
        let (transport, log) = start();
        for (a, b) in both_ends(&transport).await {
            let largest = payload(5, limits::MESSAGE_BYTES_MAX - HEADER);
            transport.send(a, (5, largest.clone()));
            transport.send(a, (6, Bytes::from_static(b"small")));
            until("both", || log.count(b) == 2).await;
            assert!(log.letters(b)[0].1 == largest);
            transport.send(a, (7, payload(5, limits::MESSAGE_BYTES_MAX - HEADER + 1)));
            until("the end", || log.why(b).is_some()).await;
            assert_eq!(log.why(b).unwrap().kind, ErrorKind::Corrupt);
            until("the end", || log.why(a).is_some()).await;
            assert_eq!((log.why(a).unwrap().kind, log.count(b)), (ErrorKind::Retry, 2));
        }
    });
}

#[test]
fn bytes_that_trickle_in_become_messages() {
    worker(async {
        let (transport, log) = start();
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut encoded = BytesMut::new();
        for i in 0..5_u64 {
            encoded.put_u32_le(9);
            encoded.put_u64_le(i);
            encoded.put_slice(b"ninebytes");
        }
        let link = fresh_link();
        // One and a half messages were read before the stream was adopted.
        transport.adopt(Stream::Unix(near), link, encoded.split_to(30));
        until("the leftover", || log.count(link) == 1).await;
        for byte in encoded {
            far.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        until("the rest", || log.count(link) == 5).await;
        assert!((0..).zip(log.letters(link)).all(|(i, (n, bytes))| n == i && bytes == b"ninebytes"[..]));
        far.write_all(&[1, 2]).await.unwrap();
        drop(far);
        until("the end", || log.why(link).is_some()).await;
        assert!(log.why(link).unwrap().text.contains("in the middle"), "{:?}", log.why(link));
    });
}

#[test]
fn garbage_closes_the_link_after_the_good_messages() {
    worker(async {
        let (transport, log) = start();
        let (near, mut far) = UnixStream::pair().unwrap();
        let link = adopt(&transport, Stream::Unix(near));
        let mut bytes = BytesMut::new();
        bytes.put_u32_le(0);
        bytes.put_u64_le(42);
        bytes.put_slice(&[255; 64]);
        far.write_all(&bytes).await.unwrap();
        until("the end", || log.why(link).is_some()).await;
        assert_eq!((log.count(link), log.why(link).unwrap().kind), (1, ErrorKind::Corrupt));
        assert_eq!(transport.links(), 0);
        // The unread rest makes it a reset or an end, either way it is closed.
        assert!(matches!(far.read(&mut [0; 8]).await, Ok(0) | Err(_)));
    });
}

#[test]
fn a_paused_link_fills_up_and_goes_on_where_it_was() {
    worker(async {
        let (transport, log) = start();
        for (a, b) in both_ends(&transport).await {
            transport.send(a, (0, Bytes::new()));
            until("the first", || log.count(b) == 1).await;
            transport.pause(b);
            for i in 1..=256 {
                transport.send(a, (i, payload(i, 128 << 10)));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            let (seen, stuck) = (log.count(b), transport.queued(a));
            assert!(seen <= 2 && stuck > 0, "{seen} seen, {stuck} bytes wait");
            transport.resume(b);
            until("all", || log.count(b) == 257).await;
            assert!((0..).zip(log.letters(b)).skip(1).all(|(i, (n, bytes))| n == i && bytes == payload(i, 128 << 10)));
            assert_eq!(transport.queued(a), 0);
        }
    });
}

#[test]
fn a_link_that_does_not_keep_up_is_closed() {
    worker(async {
        let (transport, log) = start();
        for (a, b) in both_ends(&transport).await {
            transport.pause(b);
            let piece = payload(0, 1 << 20);
            for i in 0..80 {
                transport.send(a, (i, piece.clone()));
                assert!(transport.queued(a) <= limits::PEER_WINDOW_BYTES + (2 << 20));
            }
            assert!(log.why(a).is_none(), "never from inside send");
            until("the end", || log.why(a).is_some()).await;
            assert!(log.why(a).unwrap().text.contains("does not keep up"));
            assert_eq!(transport.queued(a), 0);
            transport.close(b);
        }
        assert_eq!(transport.links(), 0);
    });
}

#[test]
fn a_link_may_be_given_a_larger_window() {
    worker(async {
        let (transport, log) = start();
        for (a, b) in both_ends(&transport).await {
            transport.set_window(a, 2 * limits::PEER_WINDOW_BYTES);
            let piece = payload(0, 1 << 20);
            let enough = (limits::PEER_WINDOW_BYTES >> 20) as u64 + 20;
            (0..enough).for_each(|i| transport.send(a, (i, piece.clone())));
            until("all of it", || log.count(b) as u64 == enough).await;
            assert!(log.why(a).is_none());
            transport.close(a);
        }
    });
}

#[test]
fn closing_is_heard_at_the_other_end_only() {
    worker(async {
        let (transport, log) = start();
        for (a, b) in both_ends(&transport).await {
            transport.send(a, (1, Bytes::new()));
            until("the message", || log.count(b) == 1).await;
            transport.close(a);
            transport.close(a);
            transport.send(a, (2, Bytes::new()));
            until("the end", || log.why(b).is_some()).await;
            assert_eq!(log.why(b).unwrap().kind, ErrorKind::Retry);
            assert!(log.why(a).is_none() && log.count(b) == 1);
        }
        assert_eq!(transport.links(), 0);
    });
}

#[test]
fn a_finished_link_writes_what_it_has() {
    worker(async {
        let (transport, log) = start();
        let mut pairs = both_ends(&transport).await;
        pairs.push(transport.local_pair());
        for (a, b) in pairs {
            for i in 0..100 {
                transport.send(a, (i, payload(i, 100_000)));
            }
            transport.finish(a);
            transport.send(a, (100, Bytes::new()));
            until("the end", || log.why(b).is_some()).await;
            assert_eq!(log.count(b), 100);
            assert!(log.why(a).is_none());
        }
        assert_eq!(transport.links(), 0);
    });
}

#[test]
fn a_handler_may_close_and_send_from_inside() {
    worker(async {
        let (transport, log) = start();
        for (a, b) in both_ends(&transport).await {
            let inside = transport.clone();
            let hook = move |link, letters: &[Letter]| {
                if link == b && letters.iter().any(|(n, _)| *n == 2) {
                    inside.send(b, (9, Bytes::new()));
                    inside.close(b);
                }
            };
            *log.hook.borrow_mut() = Some(Box::new(hook));
            transport.send(a, (1, Bytes::new()));
            transport.send(a, (2, Bytes::new()));
            until("the end", || log.why(a).is_some()).await;
            assert!(log.why(b).is_none());
            assert_eq!(log.count(b), 2);
            log.hook.borrow_mut().take();
        }
    });
}

#[test]
fn a_side_that_hangs_up_while_we_wait_for_room_is_noticed() {
    worker(async {
        let (transport, log) = start();
        let plain = [tcp_pair().await, unix_pair()].map(|(near, far)| (near.into(), far.into()));
        for (near, far) in plain.into_iter().chain([tls_pair().await]) {
            let near: LinkStream = near;
            let link = adopt(&transport, near);
            // Paused, so that only the writing side can notice.
            transport.pause(link);
            for i in 0..200 {
                transport.send(link, (i, payload(i, 128 << 10)));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(transport.queued(link) > 0);
            drop(far);
            until("the end", || log.why(link).is_some()).await;
            assert_eq!(log.why(link).unwrap().kind, ErrorKind::Retry);
        }
    });
}

#[test]
fn local_links_neither_encode_nor_overtake() {
    worker(async {
        let (transport, log) = start();
        let (a, b) = transport.local_pair();
        let inside = transport.clone();
        let hook = move |link, letters: &[Letter]| {
            if link == b {
                letters.iter().for_each(|(_, bytes)| inside.send(b, (NEVER_ENCODED, bytes.clone())));
            }
        };
        *log.hook.borrow_mut() = Some(Box::new(hook));
        for i in 0..100 {
            transport.send(a, (NEVER_ENCODED, payload(i, 10)));
        }
        assert_eq!(log.count(b), 0, "never from inside send");
        assert!(transport.queued(a) > 1000);
        until("the answers", || log.count(a) == 100).await;
        assert!((0..).zip(log.letters(a)).all(|(i, (_, bytes))| bytes == payload(i, 10)));
        // One batch there, one batch back.
        assert_eq!(log.batches.borrow().len(), 2);
        assert_eq!(transport.counts().writes, 0);
        transport.close(a);
        until("the end", || log.why(b).is_some()).await;
        assert!(log.why(a).is_none());
        assert_eq!(transport.links(), 0);
    });
}

#[test]
fn local_links_pause_and_have_a_window_too() {
    worker(async {
        let (transport, log) = start();
        let (a, b) = transport.local_pair();
        transport.pause(b);
        transport.send(a, (1, Bytes::new()));
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(log.count(b), 0);
        transport.resume(b);
        until("the message", || log.count(b) == 1).await;
        transport.pause(b);
        let piece = payload(0, 1 << 20);
        for i in 0..70 {
            transport.send(a, (i, piece.clone()));
        }
        until("both ends", || log.why(a).is_some() && log.why(b).is_some()).await;
        assert_eq!((transport.links(), log.count(b)), (0, 1));
    });
}

/// Waits for a thread, but not for ever.
fn ends(thread: std::thread::JoinHandle<()>) {
    let begun = std::time::Instant::now();
    while !thread.is_finished() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the thread does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    thread.join().unwrap();
}

#[test]
fn a_stream_can_move_to_another_worker() {
    let pairs = worker(async {
        let (near, far) = tcp_pair().await;
        let loose = |(near, far): (LinkStream, LinkStream)| (near.loosen().unwrap(), far.loosen().unwrap());
        [loose((near.into(), far.into())), loose(tls_pair().await)]
    });
    pairs.into_iter().for_each(|(near, far)| moves(near, far));
}

fn moves(near: LooseLink, far: LooseLink) {
    let other = std::thread::spawn(move || {
        worker(async {
            let (transport, log) = start();
            let link = adopt(&transport, far.fasten().unwrap());
            until("the message", || log.count(link) == 1).await;
            transport.send(link, log.letters(link)[0].clone());
            until("the end", || log.why(link).is_some()).await;
        });
    });
    worker(async {
        let (transport, log) = start();
        let link = adopt(&transport, near.fasten().unwrap());
        transport.send(link, (7, payload(7, 7)));
        until("the echo", || log.letters(link) == [(7, payload(7, 7))]).await;
    });
    ends(other);
}

/// One message, as it is encoded.
fn letter(number: u64, bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), &number.to_le_bytes()[..], bytes].concat()
}

#[test]
fn keys_may_change_under_a_link_and_its_end_needs_no_word() {
    worker(async {
        let (transport, log) = start();
        let (near, mut far) = shaken().await;
        let link = adopt(&transport, encrypted(near));
        for i in 0..20 {
            far.get_mut().1.refresh_traffic_keys().unwrap();
            far.write_all(&letter(i, b"news")).await.unwrap();
            far.flush().await.unwrap();
            until("the message", || log.count(link) == i as usize + 1).await;
            transport.send(link, (i, Bytes::from_static(b"answer")));
            let mut answer = [0; 18];
            far.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer[..], letter(i, b"answer"));
        }
        drop(far);
        until("the end", || log.why(link).is_some()).await;
        assert_eq!(log.why(link).unwrap(), Error::retry("the other side closed the connection"));
    });
}

#[test]
fn what_is_not_encrypted_ends_an_encrypted_link() {
    worker(async {
        let (transport, log) = start();
        let plain = letter(1, b"plain");
        // An encrypted record of garbage, and one that says that it is longer than any may be.
        let record = [&[0x17, 3, 3, 0, 64][..], &[9; 64]].concat();
        let long = [&[0x17, 3, 3, 0xff, 0xff][..], &[9; 70_000]].concat();
        for bytes in [plain, record, long] {
            let (near, far) = shaken().await;
            let link = adopt(&transport, encrypted(near));
            let (mut socket, _) = far.into_inner();
            socket.write_all(&bytes).await.unwrap();
            until("the end", || log.why(link).is_some()).await;
            let why = log.why(link).unwrap();
            assert!(why.kind == ErrorKind::Retry && why.text.contains("broke") && log.count(link) == 0, "{why}");
        }
        assert_eq!(transport.links(), 0);
    });
}

/// A member that sends records without content for ever has its link's turn only.
#[test]
fn what_brings_nothing_leaves_others_their_turn() {
    worker(async {
        let (transport, log) = start();
        let (near, far) = shaken().await;
        let link = adopt(&transport, encrypted(near));
        let (mut socket, mut tls) = far.into_inner();
        let flood = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            for _ in 0..20_000 {
                tls.refresh_traffic_keys().unwrap();
                tls.write_tls(&mut bytes).unwrap();
            }
            bytes
        });
        let bytes = tokio::task::spawn_blocking(|| flood.join().unwrap()).await.unwrap();
        let sent = tokio::task::spawn_local(async move { drop(socket.write_all(&bytes).await) });
        let begun = std::time::Instant::now();
        let (a, b) = transport.local_pair();
        for i in 0..20 {
            transport.send(a, (i, Bytes::new()));
            until("the message", || log.count(b) == i as usize + 1).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(10));
        until("the end of the flood", || sent.is_finished() || log.why(link).is_some()).await;
    });
}

#[test]
fn connecting_and_listening_fail_with_reasons() {
    worker(async {
        let limit = Duration::from_millis(300);
        let dir = tempfile::TempDir::new().unwrap();
        let listener = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).await.unwrap();
        let address = listener.address().unwrap();
        assert_eq!(Listener::bind(&address).await.unwrap_err().kind, ErrorKind::Busy);
        drop(listener);
        let refused = connect(&address, limit).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Retry);
        assert!(refused.text.contains("is it running?"), "{refused}");

        let socket = Address::Unix(dir.path().join("socket"));
        assert_eq!(connect(&socket, limit).await.unwrap_err().kind, ErrorKind::Retry);
        let listener = Listener::bind(&socket).await.unwrap();
        assert_eq!(Listener::bind(&socket).await.unwrap_err().kind, ErrorKind::Busy);
        connect(&socket, limit).await.unwrap();
        drop(listener);
        assert!(!dir.path().join("socket").exists());
        // A socket file of a process that was killed is no hindrance; an ordinary file is.
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap());
        Listener::bind(&socket).await.unwrap();
        std::fs::write(dir.path().join("file"), b"precious").unwrap();
        let taken = Listener::bind(&Address::Unix(dir.path().join("file"))).await.unwrap_err();
        assert_eq!((taken.kind, std::fs::read(dir.path().join("file")).unwrap().len()), (ErrorKind::Busy, 8));

        // Full backlog: the connection is neither taken nor refused.
        let full = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: the descriptor is open, and no memory is involved.
        assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&full), 0) }, 0);
        let address = Address::Tcp(full.local_addr().unwrap().to_string());
        let mut kept: Vec<Stream> = Vec::new();
        let late = loop {
            match connect(&address, limit).await {
                Ok(stream) => kept.push(stream),
                Err(e) => break e,
            }
            assert!(kept.len() < 16);
        };
        assert!(late.kind == ErrorKind::Retry && late.text.contains("did not answer within 300 ms"), "{late}");
    });
}
