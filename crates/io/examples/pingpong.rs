//! Figures of the transport: requests of 4 KiB, answers of 16 bytes, at depth 1 and 32, over TCP and unix sockets.
//!
//! `cargo run --release -p freebs-io --example pingpong`
//! Both ends run in one thread, in two threads on one core, and in two threads on two cores.
#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a measurement of the edge")]

use bytes::{Buf, BufMut, Bytes, BytesMut};
use freebs_io::linux::net::{
    Address, Encoder, Handler, Listener, LooseStream, NetCounts, Stream, Transport, Wire, connect, fresh_link,
};
use freebs_io::{LinkId, Outbox};
use freebs_types::{Error, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::LocalSet;

const RUN: Duration = Duration::from_secs(2);
const REQUEST_BYTES: usize = 4096;
const HEADER: usize = 16;

/// Length (4), padding (4), number (8), payload.
struct PingPong;

impl Wire for PingPong {
    type Message = (u64, Bytes);

    fn wanted(bytes: &[u8]) -> Result<usize> {
        Ok(HEADER + bytes.first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b) as usize))
    }

    fn decode(buf: &mut BytesMut) -> Result<Option<(u64, Bytes)>> {
        let wanted = Self::wanted(buf)?;
        let mut bytes = buf.split_to(wanted).freeze();
        bytes.advance(8);
        Ok(Some((bytes.get_u64_le(), bytes)))
    }

    fn encode((number, payload): (u64, Bytes), out: &mut Encoder) {
        out.head().put_u64_le(payload.len() as u64);
        out.head().put_u64_le(number);
        out.put(payload);
    }

    fn weight(message: &(u64, Bytes)) -> usize {
        message.1.len()
    }
}

/// Answers requests, and sends the next one for each answer.
struct Player {
    transport: Transport<PingPong>,
    payload: Bytes,
    begun: RefCell<Vec<Instant>>,
    times: RefCell<Vec<Duration>>,
    open: Cell<usize>,
    end: Cell<Option<Instant>>,
    done: Notify,
}

impl Player {
    fn start() -> Rc<Self> {
        let transport = Transport::start();
        let player = Rc::new(Self {
            transport: transport.clone(),
            payload: Bytes::from(vec![0x5a; REQUEST_BYTES]),
            begun: RefCell::default(),
            times: RefCell::default(),
            open: Cell::new(0),
            end: Cell::new(None),
            done: Notify::new(),
        });
        transport.set_handler(player.clone());
        player
    }

    fn adopt(&self, stream: Stream) -> LinkId {
        let link = fresh_link();
        self.transport.adopt(stream, link, BytesMut::new());
        link
    }

    fn ask(&self, link: LinkId, number: u64) {
        self.begun.borrow_mut()[number as usize] = Instant::now();
        self.transport.send(link, (number, self.payload.clone()));
    }

    async fn play(&self, link: LinkId, depth: usize, name: &str) {
        let start = Instant::now();
        let before = self.transport.counts();
        *self.begun.borrow_mut() = vec![start; depth];
        self.times.borrow_mut().clear();
        self.end.set(Some(start + RUN));
        self.open.set(depth);
        (0..depth as u64).for_each(|number| self.ask(link, number));
        self.done.notified().await;
        self.report(name, depth, start.elapsed(), before);
    }

    fn report(&self, name: &str, depth: usize, elapsed: Duration, before: NetCounts) {
        let mut times = self.times.borrow_mut();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        let after = self.transport.counts();
        println!(
            "{name:<34} depth {depth:>2} {:>8.0}/s   p50 {:>6.1} µs   p99 {:>7.1} µs   {:>4.1} messages / write",
            times.len() as f64 / elapsed.as_secs_f64(),
            at(0.5),
            at(0.99),
            (after.messages_sent - before.messages_sent) as f64 / (after.writes - before.writes).max(1) as f64
        );
    }
}

impl Handler<(u64, Bytes)> for Player {
    fn on_messages(&self, link: LinkId, messages: &mut Vec<(u64, Bytes)>) {
        let now = Instant::now();
        for (number, payload) in messages.drain(..) {
            if !payload.is_empty() {
                self.transport.send(link, (number, Bytes::new()));
                continue;
            }
            self.times.borrow_mut().push(now - self.begun.borrow()[number as usize]);
            if self.end.get().is_some_and(|end| now < end) {
                self.ask(link, number);
                continue;
            }
            self.open.set(self.open.get() - 1);
            if self.open.get() == 0 {
                self.done.notify_one();
            }
        }
    }

    fn on_closed(&self, _: LinkId, _: Error) {
        self.done.notify_one();
    }
}

fn worker<F: Future>(core: usize, body: F) -> F::Output {
    // SAFETY: a plain set of processors, zeroed is empty.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    LocalSet::new().block_on(&runtime, body)
}

async fn pair(tcp: bool) -> (Stream, Stream) {
    if !tcp {
        let (a, b) = tokio::net::UnixStream::pair().expect("a pair of sockets");
        return (Stream::Unix(a), Stream::Unix(b));
    }
    let listener = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).await.expect("a port");
    let address = listener.address().expect("an address");
    let (a, b) = tokio::join!(connect(&address, Duration::from_secs(1)), listener.accept());
    (a.expect("a connection"), b.expect("a connection"))
}

fn serve(stream: LooseStream, core: usize) {
    worker(core, async {
        let player = Player::start();
        player.adopt(stream.fasten().expect("the stream is open"));
        player.done.notified().await;
        player.transport.shut_down();
    });
}

fn main() {
    for tcp in [true, false] {
        let kind = if tcp { "TCP" } else { "unix" };
        worker(0, async {
            let player = Player::start();
            let (a, b) = pair(tcp).await;
            let (near, _far) = (player.adopt(a), player.adopt(b));
            for depth in [1, 32] {
                player.play(near, depth, &format!("{kind}, one thread")).await;
            }
            player.transport.shut_down();
        });
        for (core, name) in [(0, "two threads, one core"), (1, "two threads, two cores")] {
            worker(0, async {
                let (a, b) = pair(tcp).await;
                let far = b.loosen().expect("the stream is open");
                let server = std::thread::spawn(move || serve(far, core));
                let player = Player::start();
                let near = player.adopt(a);
                for depth in [1, 32] {
                    player.play(near, depth, &format!("{kind}, {name}")).await;
                }
                player.transport.shut_down();
                drop(player);
                tokio::task::yield_now().await;
                tokio::task::spawn_blocking(move || server.join()).await.expect("joined").expect("no panic");
            });
        }
    }
    worker(0, async {
        let player = Player::start();
        let (a, _b) = player.transport.local_pair();
        for depth in [1, 32] {
            player.play(a, depth, "inside the worker").await;
            assert_eq!(player.transport.counts().writes, 0);
        }
    });
}
