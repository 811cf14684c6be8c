//! Messages that no seat of ours sends, and records that none keeps: they are refused, the seat goes on, and its store
//! can be opened again.
//!
//! The story: a vote of the highest term that can be read was kept, and the next election's could not be read at the
//! next start: all seats were lost. Entries behind a gap were waited for, for ever, while the seat said that all was
//! well. A snapshot against what is committed, or a vote in the receiver's own name, met assertions of the library.

use freebs_consensus::machine::Machine;
use freebs_consensus::store::Kept;
use freebs_consensus::types::{Entry, LogId, Membership, SnapshotMeta, StoredMembership, Vote, log_id};
use freebs_consensus::wire::{Envelope, Message};
use freebs_consensus::{Network, Options, Peer, Seat, Store, Timing, limits};
use freebs_control::limits::NUMBER_MAX;
use freebs_io::Random;
use freebs_io::faults::CrashDevice;
use freebs_types::*;
use openraft::EntryPayload;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::LocalSet;

const CLUSTER: ClusterId = ClusterId([8; 16]);
const ME: NodeId = NodeId(1);
const OTHER: Seat = Seat { node: NodeId(2), store: 5 };
const THIRD: Seat = Seat { node: NodeId(3), store: 7 };

struct Counting(u64);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes.iter_mut().zip(self.0.to_le_bytes().iter().cycle()).for_each(|(b, n)| *b = *n);
    }
}

fn options(start: u64) -> Options {
    let (start, noted) = (StartNumber(start + 1), StartNumber(start));
    Options { cluster: CLUSTER, node: ME, start, noted, room: 64 << 10, mutant: None }
}

fn block_on<T>(f: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, f)
}

async fn within<T>(f: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(60), f).await.ok()
}

fn blank(term: u64, index: u64) -> Entry {
    Entry { log_id: log_id(term, index), payload: EntryPayload::Blank }
}

fn membership(seats: impl IntoIterator<Item = Seat>) -> Membership {
    let all: BTreeMap<Seat, ()> = seats.into_iter().map(|s| (s, ())).collect();
    Membership::new(vec![all.keys().copied().take(3).collect()], all).unwrap()
}

fn of_members(term: u64, index: u64, seats: impl IntoIterator<Item = Seat>) -> Entry {
    Entry { log_id: log_id(term, index), payload: EntryPayload::Membership(membership(seats)) }
}

fn append(vote: Vote, prev: Option<LogId>, entries: Vec<Entry>, commit: Option<LogId>) -> Message {
    Message::Append(AppendEntriesRequest { vote, prev_log_id: prev, entries, leader_commit: commit })
}

/// A snapshot of an empty machine at this entry, in one piece.
fn piece(vote: Vote, at: LogId) -> Message {
    let mut machine = Machine::new(CLUSTER);
    machine.applied = Some(at);
    machine.membership = StoredMembership::new(Some(log_id(1, 0)), membership([OTHER, THIRD]));
    let bytes = machine.encode();
    let meta = SnapshotMeta { last_log_id: Some(at), last_membership: machine.membership };
    Message::Piece { vote, meta, offset: 0, total: bytes.len() as u64, bytes }
}

/// Entries behind a gap never come to be in order by waiting.
#[test]
fn a_store_does_not_wait_for_what_never_comes() {
    block_on(async {
        let device = CrashDevice::new(4096, 1 << 30);
        let store = Store::create(device.clone(), options(0), Box::new(Counting(1))).await.unwrap();
        store.append(vec![blank(1, 0)]).await.unwrap();
        for wrong in [vec![blank(1, 7)], vec![blank(1, 1), blank(1, 3)], vec![blank(1, 0)]] {
            let store = Store::open(device.copy(), options(1), Box::new(Counting(2))).await.unwrap();
            let done = within(store.append(wrong)).await.expect("it waits for ever");
            assert!(done.is_err() && store.poison().is_some(), "{done:?}, and all is said to be well");
            assert!(store.append(vec![blank(1, 1)]).await.is_err());
        }
        drop(store);
        let store = Store::open(device, options(1), Box::new(Counting(2))).await.unwrap();
        assert_eq!(store.read(|c| c.last()), Some(log_id(1, 0)));
    });
}

/// The library may append behind a snapshot before the task that installs it has begun. Nothing is wrong then.
#[test]
fn a_store_waits_for_a_snapshot_that_is_on_its_way() {
    let kept = || {
        let Message::Piece { meta, bytes, .. } = piece(Vote::new_committed(3, OTHER), log_id(3, 9)) else { panic!() };
        Kept { meta, bytes: Rc::new(bytes) }
    };
    block_on(async {
        for (what, is_installed) in [("it comes", true), ("it can't be installed", false), ("it is given up", false)] {
            let device = CrashDevice::new(4096, 1 << 30);
            let store = Store::create(device.clone(), options(0), Box::new(Counting(1))).await.unwrap();
            let announced = store.announce(log_id(3, 9));
            let behind = tokio::task::spawn_local(store_append(store.clone(), blank(3, 10)));
            tokio::task::yield_now().await;
            assert!(store.poison().is_none() && !behind.is_finished(), "{what}: it did not wait");
            match what {
                "it comes" => store.save_snapshot(kept(), true).await.unwrap(),
                "it can't be installed" => store.settle(Some(log_id(3, 9))),
                _ => drop(announced),
            }
            if is_installed {
                store.settle(Some(log_id(3, 9)));
            }
            let done = within(behind).await.expect("it waits for ever").unwrap();
            assert_eq!(done.is_ok(), is_installed, "{what}: {done:?}");
            assert_eq!(store.poison().is_none(), is_installed, "{what}");
            drop(store);
            let store = Store::open(device, options(1), Box::new(Counting(2))).await.unwrap();
            assert_eq!(store.read(|c| c.last()), is_installed.then_some(log_id(3, 10)), "{what}");
        }
        // Another one than that behind it is wrong at once.
        let store = Store::create(CrashDevice::new(4096, 1 << 30), options(0), Box::new(Counting(1))).await.unwrap();
        let _announced = store.announce(log_id(3, 9));
        let done = within(store.append(vec![blank(3, 11)])).await.expect("it waits for ever");
        assert!(done.is_err() && store.poison().is_some(), "{done:?}");
    });
}

async fn store_append(store: Store, entry: Entry) -> Result<()> {
    store.append(vec![entry]).await
}

/// A record that could not be read again is not written.
#[test]
fn a_store_keeps_nothing_that_can_not_be_read() {
    let many = (0..=limits::SEATS_MAX as u64).map(|n| Seat { node: NodeId(n + 1), store: n });
    let large = of_members(1, 0, many);
    block_on(async {
        for what in 0..3 {
            let device = CrashDevice::new(4096, 1 << 30);
            let store = Store::create(device.clone(), options(0), Box::new(Counting(1))).await.unwrap();
            let done = match what {
                0 => store.save_vote(Vote::new(NUMBER_MAX + 1, OTHER)).await,
                1 => store.append(vec![large.clone()]).await,
                _ => {
                    let machine = Machine::new(CLUSTER);
                    let meta = SnapshotMeta {
                        last_log_id: Some(log_id(1, NUMBER_MAX + 1)),
                        last_membership: StoredMembership::default(),
                    };
                    store.save_snapshot(Kept { meta, bytes: Rc::new(machine.encode()) }, true).await
                }
            };
            drop(store);
            let opened = Store::open(device, options(1), Box::new(Counting(2))).await;
            assert!(done.is_err() && opened.is_ok(), "{what}: {done:?}, then {:?}", opened.err());
        }
    });
}

fn refused(m: &Message) -> Option<String> {
    let to = Seat { node: ME, store: 1 };
    let envelope = Envelope {
        cluster: CLUSTER,
        from: OTHER,
        to,
        start: StartNumber(1),
        founding: 0,
        devices: freebs_consensus::Devices::Work,
        room: freebs_consensus::Room::default(),
        id: 1,
    };
    Message::decode(&m.encode(envelope).unwrap()).err().map(|e| e.to_string())
}

/// A message that no state of the receiver makes right is refused when it is decoded.
#[test]
fn impossible_messages_are_not_decoded() {
    let (led, asked) = (Vote::new_committed(3, OTHER), Vote::new(3, OTHER));
    let at = |term, index| Some(log_id(term, index));
    let two = || vec![blank(2, 5), blank(3, 6)];
    let good = [
        append(led, at(2, 4), two(), at(2, 5)),
        append(led, at(2, 4), two(), at(3, 900)),
        append(led, None, vec![], at(2, 5)),
        append(led, None, vec![of_members(0, 0, [OTHER])], None),
        Message::Vote(VoteRequest::new(asked, at(2, 9))),
        piece(led, log_id(3, 9)),
    ];
    for m in good {
        assert_eq!(refused(&m), None, "{m:?}");
    }
    let high = Vote::new(NUMBER_MAX, OTHER);
    let no_members = Entry { log_id: log_id(1, 0), payload: EntryPayload::Membership(Membership::default()) };
    let Message::Piece { meta, bytes, .. } = piece(led, log_id(3, 9)) else { panic!() };
    let later = StoredMembership::new(at(3, 10), membership([OTHER]));
    let of_meta = |meta: SnapshotMeta| Message::Piece { vote: led, meta, offset: 0, total: 9, bytes: vec![] };
    let bad = [
        ("a vote of a term near the end", Message::Vote(VoteRequest::new(high, None))),
        ("and of a leader", append(Vote::new_committed(NUMBER_MAX, OTHER), None, vec![], None)),
        ("and in an answer", Message::AppendReply(AppendEntriesResponse::HigherVote(high))),
        ("and with a vote that is not given", Message::VoteReply(VoteResponse::new(high, None, false))),
        ("and with a snapshot's end", Message::PieceReply { have: 1, vote: Some(high) }),
        ("a leader that is none yet", append(asked, None, vec![], None)),
        ("a snapshot of a leader that is none yet", piece(asked, log_id(3, 9))),
        ("a candidate that leads", Message::Vote(VoteRequest::new(led, None))),
        ("that would lead", Message::PreVote(VoteRequest::new(led, None))),
        ("a log beyond the candidate's term", Message::Vote(VoteRequest::new(asked, at(4, 1)))),
        ("entries behind a gap", append(led, at(2, 4), vec![blank(3, 6)], None)),
        ("entries with a gap", append(led, at(2, 4), vec![blank(2, 5), blank(3, 7)], None)),
        ("entries that go back in terms", append(led, at(2, 4), vec![blank(3, 5), blank(2, 6)], None)),
        ("an entry older than the one before", append(led, at(2, 4), vec![blank(1, 5)], None)),
        ("entries beyond the leader's term", append(led, at(2, 4), vec![blank(4, 5)], None)),
        ("one before beyond the leader's term", append(led, at(4, 4), vec![], None)),
        ("committed beyond the leader's term", append(led, at(2, 4), two(), at(4, 9))),
        ("committed is another entry", append(led, at(2, 4), two(), at(3, 5))),
        ("committed is another one before", append(led, at(2, 4), two(), at(1, 4))),
        ("committed before in a later term", append(led, at(2, 4), vec![], at(3, 3))),
        ("committed behind in an earlier term", append(led, at(2, 4), two(), at(2, 9))),
        ("a membership of nobody", append(led, None, vec![no_members], None)),
        ("an index near the end", piece(led, log_id(3, NUMBER_MAX))),
        ("a snapshot beyond the leader's term", piece(led, log_id(4, 9))),
        ("a snapshot of nothing", of_meta(SnapshotMeta { last_log_id: None, ..meta.clone() })),
        (
            "a snapshot of no members",
            of_meta(SnapshotMeta { last_membership: StoredMembership::default(), ..meta.clone() }),
        ),
        ("a snapshot of later members", of_meta(SnapshotMeta { last_membership: later, ..meta })),
    ];
    assert!(!bytes.is_empty());
    let taken: Vec<&str> = bad.iter().filter(|(_, m)| refused(m).is_none()).map(|(what, _)| *what).collect();
    assert!(taken.is_empty(), "{taken:#?}");
    for (what, m) in &bad {
        println!("{what}: {}", refused(m).unwrap());
    }
}

struct Wire(Rc<RefCell<Vec<Message>>>);

impl Network for Wire {
    fn send(&self, to: Seat, message: Vec<u8>) {
        if to == OTHER {
            self.0.borrow_mut().push(Message::decode(&message).unwrap().1);
        }
    }
}

struct Scene {
    peer: Peer,
    said: Rc<RefCell<Vec<Message>>>,
    device: CrashDevice,
}

impl Scene {
    /// A seat that follows `OTHER` in term 3: it has entries 0 to 4 of terms 1 to 3, of which 0 to 3 are committed.
    async fn new() -> Self {
        let device = CrashDevice::new(4096, 1 << 30);
        let store = Store::create(device.clone(), options(0), Box::new(Counting(1))).await.unwrap();
        let said = Rc::new(RefCell::new(Vec::new()));
        let wire = Wire(said.clone());
        let peer = Peer::start(store, wire, Timing::default(), BTreeSet::new(), 1, None).await.unwrap();
        let scene = Self { peer, said, device };
        let log = vec![of_members(1, 0, [OTHER, THIRD, scene.peer.seat()]), blank(1, 1), blank(2, 2), blank(2, 3)];
        let log = [log, vec![blank(3, 4)]].concat();
        let taken = scene.hears(append(Vote::new_committed(3, OTHER), None, log, Some(log_id(2, 3)))).await;
        assert!(matches!(&taken[..], [Message::AppendReply(AppendEntriesResponse::Success)]), "{taken:?}");
        assert_eq!(scene.applied(), Some(log_id(2, 3)));
        scene
    }

    fn applied(&self) -> Option<LogId> {
        self.peer.machine(|m| m.applied)
    }

    /// Its answers.
    async fn hears(&self, m: Message) -> Vec<Message> {
        self.hears_at_once([m]).await
    }

    fn receives(&self, from: Seat, m: &Message) {
        let envelope = Envelope {
            cluster: CLUSTER,
            from,
            to: self.peer.seat(),
            start: StartNumber(1),
            founding: 0,
            devices: freebs_consensus::Devices::Work,
            room: freebs_consensus::Room::default(),
            id: 1,
        };
        self.peer.receive(m.encode(envelope).unwrap());
    }

    /// Its answers to messages that are all there before it has dealt with any of them.
    async fn hears_at_once(&self, all: impl IntoIterator<Item = Message>) -> Vec<Message> {
        self.said.borrow_mut().clear();
        all.into_iter().for_each(|m| self.receives(OTHER, &m));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let is_answer = |m: &Message| m.is_reply();
        self.said.take().into_iter().filter(is_answer).collect()
    }

    /// It goes on as before, and its store can be opened.
    async fn goes_on(&self, what: &str) {
        self.peer.check().unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(self.applied() == Some(log_id(2, 3)), "{what}: {:?}", self.applied());
        let next = append(Vote::new_committed(3, OTHER), Some(log_id(3, 4)), vec![blank(3, 5)], Some(log_id(3, 5)));
        let taken = self.hears(next).await;
        assert!(matches!(&taken[..], [Message::AppendReply(AppendEntriesResponse::Success)]), "{what}: {taken:?}");
        assert!(self.applied() == Some(log_id(3, 5)), "{what}: {}", self.peer.describe());
        let opened = Store::open(self.device.copy(), options(1), Box::new(Counting(2))).await;
        assert!(opened.is_ok(), "{what}: {:?}", opened.err());
    }
}

/// Messages that are wrong only for this receiver, or from this sender.
fn wrong_here(me: Seat) -> Vec<(&'static str, Message)> {
    let led = Vote::new_committed(3, OTHER);
    let at = |term, index| Some(log_id(term, index));
    let broken = |m: Message| match m {
        Message::Piece { vote, meta, offset, total, mut bytes } => {
            bytes[40] ^= 0xff;
            Message::Piece { vote, meta, offset, total, bytes }
        }
        other => other,
    };
    let moved = |m: Message| match m {
        Message::Piece { vote, mut meta, offset, total, bytes } => {
            meta.last_log_id = Some(log_id(3, 10));
            Message::Piece { vote, meta, offset, total, bytes }
        }
        other => other,
    };
    vec![
        ("it leads itself", append(Vote::new_committed(4, me), at(3, 4), vec![], None)),
        ("somebody else leads", append(Vote::new_committed(4, THIRD), at(3, 4), vec![], None)),
        ("a vote for itself", Message::Vote(VoteRequest::new(Vote::new(9, me), at(3, 9)))),
        ("a vote for somebody else", Message::Vote(VoteRequest::new(Vote::new(9, THIRD), at(3, 9)))),
        ("its own snapshot", piece(Vote::new_committed(4, me), log_id(3, 9))),
        ("a term out of reach", append(Vote::new_committed(1 << 40, OTHER), at(3, 4), vec![], None)),
        ("a snapshot instead of what is committed", piece(led, log_id(3, 2))),
        ("another entry where it is committed", append(led, at(3, 2), vec![blank(3, 3)], None)),
        ("another one before", append(led, at(1, 2), vec![blank(1, 3), blank(1, 4)], None)),
        ("a snapshot that can't be read", broken(piece(led, log_id(3, 9)))),
        ("a snapshot of another entry", moved(piece(led, log_id(3, 9)))),
    ]
}

#[test]
fn a_seat_goes_on_after_messages_that_are_wrong() {
    let kinds = wrong_here(THIRD).len();
    for i in 0..kinds {
        block_on(async {
            let scene = Scene::new().await;
            let (what, m) = wrong_here(scene.peer.seat()).swap_remove(i);
            let answer = scene.hears(m).await;
            assert!(answer.is_empty(), "{what}: {answer:?}");
            let why = scene.peer.describe();
            let why = why.split_once("; refused from n2.00000005: ").unwrap_or_else(|| panic!("{what}: {why}")).1;
            println!("{what}: {why}");
            scene.goes_on(what).await;
        });
    }
}

/// That an entry is committed which is another one here says nothing; the rest of the message counts.
#[test]
fn what_is_committed_is_only_what_is_here() {
    block_on(async {
        let scene = Scene::new().await;
        let answer = scene.hears(append(Vote::new_committed(3, OTHER), None, vec![], Some(log_id(2, 4)))).await;
        assert!(matches!(&answer[..], [Message::AppendReply(AppendEntriesResponse::Success)]), "{answer:?}");
        scene.goes_on("committed in another term").await;
    });
}

/// Two messages, each of them right for the seat before it has heard the other one: what the first one commits is not
/// taken back by the second, in whichever order they come. Seen ends of the node: an assertion of the library for the
/// snapshot, and an entry that was applied and is gone for the entries.
#[test]
fn two_messages_at_once_are_as_one_after_the_other() {
    let (led, later) = (Vote::new_committed(3, OTHER), Vote::new_committed(4, OTHER));
    let commits = || append(led, Some(log_id(3, 4)), vec![], Some(log_id(3, 4)));
    let others = [
        ("a snapshot of another entry", piece(later, log_id(4, 4))),
        ("another entry", append(later, Some(log_id(2, 3)), vec![blank(4, 4)], None)),
        ("another one before", append(later, Some(log_id(4, 4)), vec![], None)),
    ];
    for (what, other) in others {
        for commits_first in [true, false] {
            let what = format!("{what}, {}", if commits_first { "then" } else { "first" });
            block_on(async {
                let scene = Scene::new().await;
                let both = [commits(), other.clone()];
                let both: Vec<Message> = if commits_first { both.into() } else { both.into_iter().rev().collect() };
                scene.hears_at_once(both).await;
                scene.peer.check().unwrap_or_else(|e| panic!("{what}: {e}"));
                let (applied, last, led_in) = (scene.applied(), scene.peer.describe(), scene.peer.leader().1);
                println!("{what}: {applied:?}; {last}");
                if applied == Some(log_id(3, 4)) {
                    let next = append(later, applied, vec![blank(4, 5)], Some(log_id(4, 5)));
                    let taken = scene.hears(next).await;
                    let is_taken = matches!(&taken[..], [Message::AppendReply(AppendEntriesResponse::Success)]);
                    assert!(is_taken && scene.applied() == Some(log_id(4, 5)), "{what}: {taken:?}, {last}");
                }
                assert!(applied == Some(log_id(3, 4)) || !commits_first, "{what}: {last}");
                // A sender whose message is refused has not taken the place of the leader either.
                assert!(!commits_first || led_in == 3, "{what}: term {led_in}");
                let opened = Store::open(scene.device.copy(), options(1), Box::new(Counting(2))).await;
                let kept = opened.unwrap_or_else(|e| panic!("{what}: {e}")).read(|c| (c.committed, c.last()));
                assert!(kept.0 <= kept.1, "{what}: {kept:?}");
            });
        }
    }
}

/// The library appends behind a snapshot that it has been given, whether the store has it by then or not.
#[test]
fn entries_right_behind_a_snapshot_are_taken() {
    let led = Vote::new_committed(3, OTHER);
    block_on(async {
        let scene = Scene::new().await;
        let behind = append(led, Some(log_id(3, 9)), vec![blank(3, 10)], Some(log_id(3, 10)));
        scene.hears_at_once([piece(led, log_id(3, 9)), behind]).await;
        scene.peer.check().unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(scene.applied(), Some(log_id(3, 10)), "{}", scene.peer.describe());
    });
}

/// Each question takes a while, and one node asked so many that nobody else was heard: not the leader, nor who wants a vote.
#[test]
fn one_node_that_asks_for_much_leaves_room_for_others() {
    block_on(async {
        let scene = Scene::new().await;
        for store in 0..900 {
            scene.receives(Seat { store: 100 + store % 8, ..THIRD }, &Message::Doubt(NodeId(9)));
        }
        tokio::task::yield_now().await;
        scene.goes_on("beside many questions").await;
        // They have an end, and then it is heard as before.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let asks = VoteRequest::new(Vote::new(4, THIRD), Some(log_id(3, 9)));
        scene.receives(THIRD, &Message::Vote(asks));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(scene.peer.leader(), (None, 4), "{}", scene.peer.describe());
    });
}
