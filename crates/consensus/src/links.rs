//! Requests and answers over messages, and the library's network trait on top.
//!
//! A message may be lost, late, or come twice; the asker waits for its time limit and no longer. An answer that nobody waits
//! for any more is dropped.

use crate::codec::put_entry;
use crate::limits;
use crate::log::Applied;
use crate::machine::Machine;
use crate::types::{Seat, Snapshot, Types, Vote};
use crate::wire::{Devices, Envelope, Message, Room};
use freebs_types::{ClusterId, Error, NodeId, Result, StartNumber};
use futures_util::future::{Either, select};
use openraft::error::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Where messages go. What can't be sent is dropped.
pub trait Network: 'static {
    /// Sends to a node; the seat's store is in the message.
    fn send(&self, to: Seat, message: Vec<u8>);

    /// How many times in a row the link to this node was closed by its end, or refused there: 0 while one is open. A link
    /// is opened only for something to send.
    fn refusals(&self, node: NodeId) -> u64 {
        let _ = node;
        0
    }

    /// From now on `tell` is called whenever the number of refusals of a node grows, once that is so.
    fn on_loss(&self, tell: Rc<dyn Fn(NodeId)>) {
        let _ = tell;
    }

    /// The start number that messages carry (rule V8), if it is another than that of the store: the one that is
    /// durable on the node's devices at this moment.
    fn start_number(&self) -> Option<StartNumber> {
        None
    }

    /// The state of the node's devices at this moment, which messages carry.
    fn devices(&self) -> Devices {
        Devices::Work
    }

    /// The room of the node's logs at this moment, which messages carry.
    fn room(&self) -> Room {
        Room::default()
    }
}

/// Our end of all links.
pub(crate) struct Links {
    network: Rc<dyn Network>,
    pub me: Seat,
    pub cluster: ClusterId,
    pub start: StartNumber,
    machine: Rc<RefCell<Machine>>,
    next: Cell<u64>,
    /// The seats that were asked, by the number of the request.
    waiting: RefCell<BTreeMap<u64, (Seat, oneshot::Sender<Message>)>>,
}

/// Takes the request out of those that wait, also when who asked has gone.
struct Waits<'a>(&'a Links, u64);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().remove(&self.1);
    }
}

impl Links {
    /// Requests are numbered from `first` on: another number at each start, so that an answer to a request of an
    /// earlier one finds nobody who waits for it.
    pub fn new(
        network: Rc<dyn Network>,
        (me, cluster, start): (Seat, ClusterId, StartNumber),
        machine: Rc<RefCell<Machine>>,
        first: u64,
    ) -> Self {
        Self { network, me, cluster, start, machine, next: Cell::new(first), waiting: RefCell::default() }
    }

    pub fn devices(&self) -> Devices {
        self.network.devices()
    }

    pub fn room(&self) -> Room {
        self.network.room()
    }

    /// Number of the founding that the state here comes from; 0 if nothing is known of any.
    pub fn founding(&self) -> u64 {
        self.machine.borrow().founding()
    }

    pub fn refusals(&self, node: NodeId) -> u64 {
        self.network.refusals(node)
    }

    pub fn on_loss(&self, tell: impl Fn(NodeId) + 'static) {
        self.network.on_loss(Rc::new(tell));
    }

    /// The start number that messages carry now.
    pub fn start(&self) -> StartNumber {
        self.network.start_number().unwrap_or(self.start)
    }

    pub fn send(&self, to: Seat, id: u64, message: &Message) -> Result<()> {
        let (start, founding, devices, room) = (self.start(), self.founding(), self.devices(), self.room());
        let envelope = Envelope { cluster: self.cluster, from: self.me, to, start, founding, devices, room, id };
        self.network.send(to, message.encode(envelope)?);
        Ok(())
    }

    /// Sends a request and waits for its answer.
    pub async fn call(&self, to: Seat, message: &Message, within: Duration) -> Result<Message> {
        self.call_again(to, message, within, 2 * within).await
    }

    /// As `call`, and sends the request again, under the same number, whenever `again` has passed: who was asked may
    /// have been started anew meanwhile, or the message lost with its connection.
    pub async fn call_again(&self, to: Seat, message: &Message, within: Duration, again: Duration) -> Result<Message> {
        let id = self.next.get();
        self.next.set(id.wrapping_add(1));
        let (tx, mut rx) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, (to, tx));
        let _waits = Waits(self, id);
        let no_answer = || Error::retry(format!("{to} did not answer"));
        let asked = async {
            loop {
                self.send(to, id, message)?;
                if let Ok(answer) = tokio::time::timeout(again, &mut rx).await {
                    return answer.map_err(|_| no_answer());
                }
            }
        };
        tokio::time::timeout(within, asked).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Gives an answer to who waits for it, if it is from who was asked.
    pub fn answer(&self, from: Seat, id: u64, message: Message) {
        let mut waiting = self.waiting.borrow_mut();
        let is_asked = |to: &Seat| to.node == from.node && (to.store == from.store || to.store == 0);
        if waiting.get(&id).is_some_and(|(to, _)| is_asked(to))
            && let Some((_, tx)) = waiting.remove(&id)
        {
            // Who asked may have gone a moment ago.
            let _ = tx.send(message);
        }
    }
}

/// Makes clients for the library.
pub(crate) struct Clients {
    pub links: Rc<Links>,
    /// How long it is waited for that entries were taken. The library would wait for no more than a heartbeat, and a
    /// disk may need longer to sync them.
    pub answer: Duration,
}

impl RaftNetworkFactory<Types> for Clients {
    type Network = Client;

    async fn new_client(&mut self, target: Seat, (): &()) -> Client {
        Client { links: self.links.clone(), to: target, answer: self.answer }
    }
}

pub(crate) struct Client {
    links: Rc<Links>,
    to: Seat,
    answer: Duration,
}

fn unreachable(e: &Error) -> Unreachable<Types> {
    Unreachable::new(e)
}

fn network(e: &Error) -> RPCError<Types> {
    RPCError::Network(NetworkError::new(e))
}

fn strange() -> Error {
    Error::corrupt("an answer of another kind than was asked for")
}

/// As many of the first entries as fit a message; at least one.
fn cut(entries: &mut Vec<crate::types::Entry>) -> Result<()> {
    let (mut bytes, mut fit) = (Vec::new(), 0);
    for e in entries.iter() {
        put_entry(&mut bytes, e)?;
        if fit > 0 && bytes.len() + 4 * fit > limits::APPEND_BYTES_SOFT_MAX {
            break;
        }
        fit += 1;
    }
    entries.truncate(fit);
    Ok(())
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = Rc<Vec<u8>>;

    async fn append_entries(
        &mut self,
        mut rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let all = rpc.entries.len();
        cut(&mut rpc.entries).map_err(|e| network(&e))?;
        let last = rpc.entries.last().map(|e| e.log_id).filter(|_| rpc.entries.len() < all);
        let within = if rpc.entries.is_empty() { option.soft_ttl() } else { self.answer };
        let follows_none = rpc.prev_log_id.is_none();
        match self.links.call(self.to, &Message::Append(rpc), within).await {
            Ok(Message::AppendReply(AppendEntriesResponse::Success)) if last.is_some() => {
                Ok(AppendEntriesResponse::PartialSuccess(last))
            }
            // A seat takes all or nothing, and nothing before the first entry can be another one.
            Ok(Message::AppendReply(AppendEntriesResponse::PartialSuccess(_))) => Err(network(&strange())),
            Ok(Message::AppendReply(AppendEntriesResponse::Conflict)) if follows_none => Err(network(&strange())),
            Ok(Message::AppendReply(r)) => Ok(r),
            Ok(_) => Err(network(&strange())),
            Err(e) => Err(RPCError::Unreachable(unreachable(&e))),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_for_vote(Message::Vote(rpc), option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_for_vote(Message::PreVote(rpc), option).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let send = pin!(self.send_snapshot(vote, snapshot, option.soft_ttl()));
        match select(send, pin!(cancel)).await {
            Either::Left((done, _)) => done.map_err(|e| StreamingError::Unreachable(unreachable(&e))),
            Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }
}

impl Client {
    async fn ask_for_vote(
        &mut self,
        request: Message,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.links.call(self.to, &request, option.soft_ttl()).await {
            Ok(Message::VoteReply(r)) => Ok(r),
            Ok(_) => Err(network(&strange())),
            Err(e) => Err(RPCError::Unreachable(unreachable(&e))),
        }
    }

    /// Sends a snapshot piece by piece, each once the one before has arrived.
    async fn send_snapshot(&self, vote: Vote, snapshot: Snapshot, within: Duration) -> Result<SnapshotResponse<Types>> {
        let total = snapshot.snapshot.len();
        let mut offset = 0;
        loop {
            let end = (offset + limits::PIECE_BYTES).min(total);
            let piece = Message::Piece {
                vote,
                meta: snapshot.meta.clone(),
                offset: offset as u64,
                total: total as u64,
                bytes: snapshot.snapshot[offset..end].to_vec(),
            };
            match self.links.call(self.to, &piece, within).await? {
                Message::PieceReply { vote: Some(vote), .. } => return Ok(SnapshotResponse::new(vote)),
                Message::PieceReply { have, vote: None } if have == end as u64 && end < total => offset = end,
                // It has forgotten what it had: from the start, when the library asks again.
                _ => return Err(Error::retry("a piece of a snapshot was not taken")),
            }
        }
    }
}

/// The library's node over our types.
pub(crate) type Raft = openraft::Raft<Types, Applied>;

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::NodeId;

    #[derive(Clone, Default)]
    struct Caught(Rc<RefCell<Vec<Vec<u8>>>>);

    impl Network for Caught {
        fn send(&self, _: Seat, message: Vec<u8>) {
            self.0.borrow_mut().push(message);
        }
    }

    const ME: Seat = Seat { node: NodeId(1), store: 5 };
    const OTHER: Seat = Seat { node: NodeId(2), store: 6 };

    fn links(sent: &Caught, start: u64, first: u64) -> Links {
        let cluster = ClusterId([1; 16]);
        let machine = Rc::new(RefCell::new(Machine::new(cluster)));
        Links::new(Rc::new(sent.clone()), (ME, cluster, StartNumber(start)), machine, first)
    }

    /// A follower's "taken" that is late by a whole start of the leader would be believed to be about other entries.
    #[tokio::test(start_paused = true)]
    async fn an_answer_to_a_request_of_an_earlier_start_is_nobodys() {
        let sent = Caught::default();
        let number = |i: usize| Message::decode(&sent.0.borrow()[i]).unwrap().0.id;
        let links = |start, first| links(&sent, start, first);
        let taken = || Message::AppendReply(AppendEntriesResponse::Success);
        let within = Duration::from_secs(1);
        let e = links(1, 1 << 40).call(OTHER, &Message::Join, within).await.unwrap_err();
        assert_eq!(e.kind, freebs_types::ErrorKind::Retry);
        // The next start, in which a request is under way when the late answer comes.
        let links = links(2, 1 << 50);
        let (asked, late) =
            (links.call(OTHER, &Message::Join, within), async { links.answer(OTHER, number(0), taken()) });
        assert!(tokio::join!(asked, late).0.is_err(), "nobody answered this one");
        let (asked, answer) =
            (links.call(OTHER, &Message::Join, within), async { links.answer(OTHER, number(2), taken()) });
        assert!(matches!(tokio::join!(asked, answer).0, Ok(Message::AppendReply(AppendEntriesResponse::Success))));
        links.answer(OTHER, number(2), taken());
        assert_eq!(BTreeMap::from([0, 1, 2].map(|i| (number(i), i))).len(), 3, "all have numbers of their own");
    }

    /// The library unwraps what was before the entries when it hears of a conflict, and believes what was taken in part.
    #[tokio::test(start_paused = true)]
    async fn impossible_answers_to_entries_are_errors() {
        for reply in [AppendEntriesResponse::Conflict, AppendEntriesResponse::PartialSuccess(None)] {
            let links = Rc::new(links(&Caught::default(), 1, 7));
            let mut client = Client { links: links.clone(), to: OTHER, answer: Duration::from_secs(1) };
            let vote = Vote::new_committed(1, ME);
            let rpc = AppendEntriesRequest { vote, prev_log_id: None, entries: vec![], leader_commit: None };
            let asked = client.append_entries(rpc, RPCOption::new(Duration::from_secs(1)));
            let (asked, ()) = tokio::join!(asked, async { links.answer(OTHER, 7, Message::AppendReply(reply)) });
            assert!(matches!(asked, Err(RPCError::Network(_))), "{asked:?}");
        }
        // Nor does a seat answer that was not asked.
        let links = links(&Caught::default(), 1, 7);
        let third = Seat { node: NodeId(3), ..OTHER };
        let asked = links.call(OTHER, &Message::Join, Duration::from_secs(1));
        let (asked, ()) = tokio::join!(asked, async { links.answer(third, 7, Message::Here) });
        assert!(asked.is_err(), "{asked:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_be_lost_is_sent_again_under_its_number_until_it_is_answered() {
        let sent = Caught::default();
        let links = links(&sent, 1, 7);
        let (within, again) = (Duration::from_millis(1000), Duration::from_millis(300));
        let answered = async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            links.answer(OTHER, 7, Message::Join);
        };
        let (asked, ()) = tokio::join!(links.call_again(OTHER, &Message::Join, within, again), answered);
        assert!(matches!(asked, Ok(Message::Join)));
        assert_eq!(sent.0.borrow().len(), 3);
        assert!(sent.0.borrow().iter().all(|m| Message::decode(m).unwrap().0.id == 7));
        assert!(links.call_again(OTHER, &Message::Join, within, again).await.is_err());
        assert_eq!(sent.0.borrow().len(), 7, "and no longer than it is waited for");
        assert!(links.waiting.borrow().is_empty());
    }
}
