//! Messages between seats over TCP: one connection from each node to each other one, for what it has to say; answers
//! come on the other one's.
//!
//! What can't be sent now is dropped, as a network may do: the seats ask again. A queue holds at most `QUEUE_BYTES_MAX`.

use super::server::{read_message, write_message};
use crate::conn::{self, NodeConn};
use crate::fill::Fill;
use crate::timing;
use bytes::{Bytes, BytesMut};
use freebs_consensus::{Devices, Network, Room, Seat};
use freebs_control::State;
use freebs_control::api::Reply;
use freebs_format::wire::{Hello, Message, Role};
use freebs_io::linux::Pulse;
use freebs_types::{ClusterId, Error, ErrorKind, NodeId, Result, StartNumber, limits};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// What a `Control` message on such a connection holds: a message of a seat, or where its node is.
pub(super) const MESSAGE: u64 = 0;
pub(super) const ADDRESS: u64 = 1;
/// Messages and bytes that wait for one node.
const QUEUE_MAX: usize = 256;
const QUEUE_BYTES_MAX: usize = 8 << 20;

/// Where one node may be.
#[derive(Default)]
struct Places {
    /// As it says itself, on its connection to this one: also before it is known to the control plane.
    heard: Option<String>,
    /// As this node was told at its start.
    told: Option<String>,
    /// As it has registered.
    registered: Option<String>,
}

/// Where nodes are.
#[derive(Clone, Default)]
pub(super) struct Book {
    places: Rc<RefCell<BTreeMap<NodeId, Places>>>,
    /// Who was reached under one of their addresses is of another cluster.
    foreign: Rc<RefCell<Option<Error>>>,
    /// Others of the cluster say that this node was removed from it.
    removed: Rc<RefCell<BTreeMap<NodeId, Error>>>,
    state: Rc<RefCell<Arc<State>>>,
}

impl Book {
    /// Takes in where nodes have registered.
    pub fn learn(&self, state: &Arc<State>) {
        *self.state.borrow_mut() = state.clone();
        let mut book = self.places.borrow_mut();
        book.retain(|node, _| !state.is_removed(*node));
        for node in state.nodes() {
            book.entry(node.id).or_default().registered = Some(node.address.clone());
        }
    }

    /// Takes in where a node says that it is.
    pub fn hear(&self, node: NodeId, address: String) {
        let mut book = self.places.borrow_mut();
        if book.len() < 2 * limits::NODES_MAX || book.contains_key(&node) {
            book.entry(node).or_default().heard = Some(address);
        }
    }

    /// The control state as this node knows it.
    fn state(&self) -> Arc<State> {
        self.state.borrow().clone()
    }

    /// What was heard of another cluster, if anything was.
    pub fn foreign(&self) -> Option<Error> {
        self.foreign.borrow().clone()
    }

    /// The words of others by which this node was removed, if most of those that are known here say so: one that somebody has taken
    /// over must not end the others.
    pub fn removed(&self, me: NodeId) -> Option<Error> {
        let told = self.removed.borrow();
        let others = self.state.borrow().nodes().filter(|n| n.id != me).count();
        told.values().next().filter(|_| 2 * told.len() > others).cloned()
    }

    /// True if that node has registered, as is known here.
    fn is_member(&self, node: NodeId) -> bool {
        self.places.borrow().get(&node).is_some_and(|p| p.registered.is_some())
    }

    fn of(&self, node: NodeId) -> Vec<String> {
        let book = self.places.borrow();
        let Some(p) = book.get(&node) else { return Vec::new() };
        let mut all: Vec<String> = [&p.heard, &p.told, &p.registered].into_iter().flatten().cloned().collect();
        all.dedup();
        all
    }
}

struct Queue {
    messages: mpsc::Sender<Vec<u8>>,
    bytes: Rc<Cell<usize>>,
}

/// The state of this node's devices, as its messages say it.
#[derive(Clone, Default)]
pub(super) struct Health {
    /// The cluster has taken the node in.
    pub works: Rc<Cell<bool>>,
    pub pulse: Pulse,
    pub fill: Fill,
}

impl Health {
    pub fn devices(&self) -> Devices {
        match self.works.get() {
            _ if self.pulse.silent_for() >= timing::DEVICE_SILENT => Devices::Silent,
            true => Devices::Work,
            false => Devices::Begin,
        }
    }
}

/// The network of one seat.
pub(super) struct SeatLinks {
    cluster: ClusterId,
    node: NodeId,
    /// Where this node is.
    mine: String,
    start: Rc<Cell<StartNumber>>,
    health: Health,
    book: Book,
    queues: RefCell<BTreeMap<NodeId, Queue>>,
    lost: Lost,
}

/// Called for each.
type Tell = Rc<dyn Fn(NodeId)>;

/// Links that the other end has closed or refused.
#[derive(Clone, Default)]
struct Lost {
    /// The number of times, until a new one is open.
    times: Rc<RefCell<BTreeMap<NodeId, u64>>>,
    tell: Rc<OnceCell<Tell>>,
}

impl Lost {
    fn add(&self, node: NodeId) {
        *self.times.borrow_mut().entry(node).or_default() += 1;
        if let Some(tell) = self.tell.get() {
            tell(node);
        }
    }
}

impl SeatLinks {
    pub fn new(
        cluster: ClusterId,
        node: NodeId,
        addresses: BTreeMap<NodeId, String>,
        start: Rc<Cell<StartNumber>>,
        health: Health,
    ) -> Self {
        let mine = addresses.get(&node).cloned().unwrap_or_default();
        let places = addresses.into_iter().map(|(n, a)| (n, Places { told: Some(a), ..Places::default() })).collect();
        let book = Book { places: Rc::new(RefCell::new(places)), ..Book::default() };
        Self { cluster, node, mine, start, health, book, queues: RefCell::default(), lost: Lost::default() }
    }

    pub fn book(&self) -> Book {
        self.book.clone()
    }
}

impl Network for SeatLinks {
    fn send(&self, to: Seat, message: Vec<u8>) {
        let mut queues = self.queues.borrow_mut();
        let queue = queues.entry(to.node).or_insert_with(|| {
            let (messages, queue) = mpsc::channel(QUEUE_MAX);
            let bytes = Rc::new(Cell::new(0));
            let link = Link {
                cluster: self.cluster,
                node: self.node,
                mine: self.mine.clone(),
                to: to.node,
                start: self.start.clone(),
                book: self.book.clone(),
                queue,
                bytes: bytes.clone(),
                lost: self.lost.clone(),
                unknown_since: None,
            };
            tokio::task::spawn_local(link.run());
            Queue { messages, bytes }
        });
        let len = message.len();
        if queue.bytes.get() + len <= QUEUE_BYTES_MAX && queue.messages.try_send(message).is_ok() {
            queue.bytes.set(queue.bytes.get() + len);
        }
    }

    fn start_number(&self) -> Option<StartNumber> {
        Some(self.start.get())
    }

    fn devices(&self) -> Devices {
        self.health.devices()
    }

    fn room(&self) -> Room {
        self.health.fill.room()
    }

    fn refusals(&self, node: NodeId) -> u64 {
        self.lost.times.borrow().get(&node).copied().unwrap_or(0)
    }

    fn on_loss(&self, tell: Rc<dyn Fn(NodeId)>) {
        // A network belongs to one seat.
        let _ = self.lost.tell.set(tell);
    }
}

/// The connection to one node.
struct Link {
    cluster: ClusterId,
    node: NodeId,
    mine: String,
    to: NodeId,
    start: Rc<Cell<StartNumber>>,
    book: Book,
    queue: mpsc::Receiver<Vec<u8>>,
    bytes: Rc<Cell<usize>>,
    lost: Lost,
    /// The other node says since then that this one, which is a member, is none.
    unknown_since: Option<Instant>,
}

/// Why a link could not be opened, or has ended.
enum End {
    /// The other side closed it, or refuses one: its process has ended.
    Lost(Error),
    /// The other side is of another cluster.
    Stranger(Error),
    /// The other side, at this address, says that this node is no member.
    Unknown(Error, String),
    /// The other side says that this node was removed.
    Removed(Error),
    Other(Error),
}

impl End {
    fn of_io(e: &std::io::Error) -> Self {
        if conn::is_refusal(e) {
            return Self::Stranger(Error::invalid(e.to_string()));
        }
        let error = Error::retry(crate::files::plain(e));
        match e.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                Self::Lost(error)
            }
            _ => Self::Other(error),
        }
    }

    fn at(self, address: &str) -> Self {
        match self {
            Self::Stranger(e) => Self::Stranger(e.at(format_args!("the node at {address}"))),
            other => other,
        }
    }
}

impl Link {
    async fn run(mut self) {
        let mut attempt = 0;
        while let Some(first) = self.next().await {
            let addresses = self.book.of(self.to);
            if let Some(address) = addresses.get(attempt % addresses.len().max(1)) {
                match self.connect(address).await {
                    Ok(stream) => {
                        // One that refused this node may just have begun to lead, and not know all members yet: this one does.
                        self.book.foreign.take();
                        self.book.removed.borrow_mut().remove(&self.to);
                        self.lost.times.borrow_mut().remove(&self.to);
                        self.unknown_since = None;
                        let since = Instant::now();
                        let end = self.serve(stream, first).await;
                        let e = self.note_end(end);
                        tracing::debug!("the seat's link to node {} ended: {e}", self.to);
                        if since.elapsed() >= timing::SEAT_STEADY {
                            continue;
                        }
                    }
                    Err(end) => {
                        let e = self.note_end(end);
                        tracing::trace!("node {} can't be reached at {address}: {e}", self.to);
                        attempt += 1;
                    }
                }
            }
            tokio::time::sleep(timing::SEAT_AGAIN).await;
            while let Ok(message) = self.queue.try_recv() {
                self.bytes.set(self.bytes.get() - message.len());
            }
        }
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        let message = self.queue.recv().await?;
        self.bytes.set(self.bytes.get() - message.len());
        Some(message)
    }

    fn note_end(&mut self, end: End) -> Error {
        match end {
            End::Lost(e) => {
                self.lost.add(self.to);
                e
            }
            // One that begins to lead may not know all members yet.
            End::Unknown(e, _)
                if self.book.is_member(self.node)
                    && self.unknown_since.get_or_insert_with(Instant::now).elapsed() < timing::UNKNOWN_MAX =>
            {
                e
            }
            End::Unknown(_, address) if self.book.is_member(self.node) => {
                self.note_end(End::Stranger(Error::invalid(format!(
                    "the node at {address} leads a cluster of this name that does not know this node, which is a member: \
                     it runs on an old copy of its data directory, or founded the cluster a second time; stop it. This \
                     node's data are to be kept"
                ))))
            }
            End::Stranger(e) | End::Unknown(e, _) => {
                if self.book.foreign.replace(Some(e.clone())).is_none() {
                    tracing::warn!("{e}");
                }
                e
            }
            End::Removed(e) => {
                self.book.removed.borrow_mut().insert(self.to, e.clone());
                e
            }
            End::Other(e) => e,
        }
    }

    async fn connect(&self, address: &str) -> Result<NodeConn, End> {
        let connect = async {
            let failed = |e: io::Error| End::of_io(&e).at(address);
            let refused = |e: Error| End::Stranger(e.at(format_args!("the node at {address}")));
            let broke = |e: Error| if e.kind == ErrorKind::Invalid { refused(e) } else { End::Other(e) };
            let mut stream = NodeConn::connect(address).await.map_err(failed)?;
            let hello = Hello {
                cluster: self.cluster,
                role: Role::Seat,
                node: self.node,
                start: self.start.get(),
                from_worker: 0,
                to_worker: 0,
            };
            write_message(&mut stream, &Message::Hello(hello)).await.map_err(failed)?;
            let mut buf = BytesMut::new();
            match read_message(&mut stream, &mut buf).await.map_err(broke)? {
                Some(Message::Welcome(w)) if w.cluster == self.cluster && w.node == self.to => {
                    stream.check_dialled(self.to, &self.book.state()).map_err(refused)?;
                }
                Some(Message::Welcome(w)) if w.cluster != self.cluster => {
                    return Err(End::Stranger(Error::invalid(format!(
                        "{address} belongs to another cluster ({}), and this node to {}; check the addresses and the \
                         cluster's name in the cluster file",
                        w.cluster, self.cluster
                    ))));
                }
                Some(Message::ControlReply { body, .. }) => {
                    let why = Reply::decode(&body).err().unwrap_or_else(|| Error::retry("another node")).at(address);
                    return Err(match why.kind {
                        ErrorKind::Invalid => End::Unknown(why, address.to_owned()),
                        // It does not take this node for the member that it says it is.
                        ErrorKind::Fenced => {
                            stream.check_dialled(self.to, &self.book.state()).map_err(refused)?;
                            End::Removed(Error::invalid(why.text))
                        }
                        ErrorKind::Corrupt => End::Stranger(Error::invalid(why.text)),
                        _ => End::Other(why),
                    });
                }
                _ => return Err(End::Other(Error::retry("another node"))),
            }
            let here = Message::Control { id: ADDRESS, body: Bytes::from(self.mine.clone()) };
            write_message(&mut stream, &here).await.map_err(failed)?;
            Ok(stream)
        };
        tokio::time::timeout(timing::SEAT_CONNECT_MAX, connect)
            .await
            .unwrap_or_else(|_| Err(End::Other(Error::retry("no answer"))))
    }

    /// Sends until the connection ends; why it did.
    async fn serve(&mut self, stream: NodeConn, first: Vec<u8>) -> End {
        let (mut read, mut write) = tokio::io::split(stream);
        let mut message = first;
        let mut nothing = BytesMut::new();
        loop {
            let whole = Message::Control { id: MESSAGE, body: Bytes::from(message) };
            match tokio::time::timeout(timing::SEAT_WRITE_MAX, write_message(&mut write, &whole)).await {
                Ok(Ok(())) => {}
                Ok(Err(e)) => return End::of_io(&e),
                Err(_) => return End::Other(Error::retry("nobody reads")),
            }
            message = tokio::select! {
                next = self.next() => match next {
                    Some(next) => next,
                    None => return End::Other(Error::retry("the seat has stopped")),
                },
                // The other side says nothing here: whatever comes is the end.
                end = read_message(&mut read, &mut nothing) => {
                    return End::Lost(end.err().unwrap_or_else(|| Error::retry("closed by the other side")));
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::Command;

    const CLUSTER: ClusterId = ClusterId([7; 16]);

    /// The link of node 2 to node 1, and the state that node 2 knows: with itself, or with the first node alone.
    fn link(is_member: bool) -> Link {
        let mut state = State::new(CLUSTER);
        for node in 1..=if is_member { 2 } else { 1 } {
            let (name, address) = (format!("n{node}"), format!("127.0.0.1:{}", 7399 + node));
            let register =
                Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(1) };
            state.apply(register).expect("a node");
        }
        let book = Book::default();
        book.learn(&Arc::new(state));
        let (_, queue) = mpsc::channel(1);
        Link {
            cluster: CLUSTER,
            node: NodeId(2),
            mine: "127.0.0.1:7401".into(),
            to: NodeId(1),
            start: Rc::default(),
            book,
            queue,
            bytes: Rc::default(),
            lost: Lost::default(),
            unknown_since: None,
        }
    }

    /// As a leader says it that does not know node 2.
    fn unknown() -> End {
        let mut state = State::new(CLUSTER);
        let (name, address) = ("n1".to_owned(), "127.0.0.1:7400".to_owned());
        let register = Command::RegisterNode { node: NodeId(1), name, address, workers: 1, start: StartNumber(1) };
        state.apply(register).expect("a node");
        let key = freebs_types::HostPublic([9; 32]);
        state.begin_authority(key, NodeId(1), key).expect("an authority");
        End::Unknown(state.check_member(NodeId(2)).expect_err("it knows only itself"), "127.0.0.1:7400".into())
    }

    /// A member with all its data was told to join with an empty directory, by a first node that ran on an old copy of its own.
    #[test]
    fn a_member_is_not_told_to_throw_its_data_away() {
        let mut member = link(true);
        // A node that begins to lead may not know all members yet.
        member.note_end(unknown());
        assert!(member.book.foreign().is_none() && member.unknown_since.is_some());
        member.unknown_since = Instant::now().checked_sub(timing::UNKNOWN_MAX);
        member.note_end(unknown());
        let told = member.book.foreign().expect("it is told now").text;
        for words in ["127.0.0.1:7400", "old copy", "stop it", "data are to be kept"] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert!(!told.contains("empty data directory") && !told.contains("join"), "{told}");
        // A node that was never taken in has nothing to lose, and needs a token.
        let mut stranger = link(false);
        stranger.note_end(unknown());
        let told = stranger.book.foreign().expect("it is told at once").text;
        assert!(told.contains("freebs cluster token") && told.contains("empty data directory"), "{told}");
    }
}
