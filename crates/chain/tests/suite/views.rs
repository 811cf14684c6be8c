//! Views with another head: what is committed comes along, and who has not gathered enough slices can't go on.

use super::*;
use freebs_format::wire::Given;
use freebs_format::{FrameBuilder, FrameKind, FrameMeta, ViewBody, hide, token};
use freebs_types::{ChunkId, Slice, Version};

const DRIVER: LinkId = LinkId(100);

impl Story {
    /// The control plane names another head, and all nodes that `hear` it know.
    pub fn move_head(&mut self, to: u64, hear: &[u64]) {
        self.chain.retain(|n| *n != NodeId(to));
        self.chain.insert(0, NodeId(to));
        self.pending = None;
        hear.iter().for_each(|n| self.tell(*n));
        self.wait(100);
    }

    /// The node says nothing any more and hears nothing.
    fn isolate(&mut self, n: u64) {
        for other in self.members.keys().copied().filter(|o| *o != n).collect::<Vec<_>>() {
            self.cut.extend([(n, other), (other, n)]);
            self.link(n, other, false);
        }
    }

    fn rejoin(&mut self, n: u64) {
        self.cut.clear();
        for other in self.members.keys().copied().filter(|o| *o != n).collect::<Vec<_>>() {
            self.link(n, other, true);
        }
        self.settle();
    }

    /// A driver attaches at the head and writes one block with this number.
    pub fn write(&mut self, head: u64, number: u64) {
        let (view, generation, driver) = (self.status(head).view, self.generation.next(), DriverId(9));
        let identity = Hash32([9; 32]);
        let attach = Message::Attach { shard: SHARD, view, generation, driver, identity };
        self.step(head, Event::Message { from: DRIVER, message: attach });
        let write = self.write_message(head, number);
        self.step(head, Event::Message { from: DRIVER, message: write });
        self.wait(40);
    }

    fn write_message(&self, head: u64, number: u64) -> Message {
        let (view, generation, driver) = (self.status(head).view, self.generation.next(), DriverId(9));
        let data = Bytes::from(vec![number as u8; BLOCK]);
        Message::Write(WriteRequest {
            shard: SHARD,
            view,
            generation,
            driver,
            number: RequestNumber(number),
            lowest_open: RequestNumber(1),
            kind: UpdateKind::Write,
            interval: None,
            extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(0, 1) }],
            crcs: vec![block_crc(&data)],
            data: vec![data],
        })
    }

    pub fn numbers(&self, n: u64) -> Vec<u64> {
        let log = self.members[&n].log.values();
        log.flat_map(|f| f.head.updates().map(|u| u.number.0).collect::<Vec<_>>()).collect()
    }

    fn newest_view(&self, n: u64) -> Frame {
        let views = self.members[&n].log.values().filter(|f| f.head.kind() == FrameKind::View);
        views.last().expect("a view was opened").clone()
    }

    pub fn says(&self, n: u64, text: &str) -> bool {
        self.members[&n].notes.iter().any(|t| t.contains(text))
    }

    /// Everybody that is not cut off holds the same log, and its secrets are as published.
    fn check(&self, nodes: &[u64]) {
        for n in nodes {
            let names = |n: &u64| -> Vec<_> { self.members[n].log.values().map(|f| f.header().hid()).collect() };
            assert_eq!(names(n), names(&nodes[0]), "node {n}");
            let log: Vec<&Frame> = self.members[n].log.values().collect();
            for pair in log.windows(2) {
                assert_eq!(hide(&pair[1].header().parent_token()), pair[0].header().hid(), "node {n}");
                let shared = ViewBody::decode(pair[1].head.body()).ok().and_then(|b| b.shared);
                let Some(shared) = shared.filter(|_| pair[1].head.kind() == FrameKind::View) else { continue };
                let h = pair[0].header();
                assert_eq!(token(&shared.pred_secret, &h.parent_token(), &h.digest()), pair[1].header().parent_token());
            }
        }
    }
}

/// The node has lost its host key: it has nothing to give but what is published.
fn keep_slice(lost: bool, m: &mut Message) {
    if let Message::SealAnswer(a) = m
        && lost
        && matches!(a.given, Given::Slice(_))
    {
        a.given = Given::Nothing;
    }
}

#[test]
fn another_member_becomes_head_without_loss() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.write(1, 1);
    s.write(1, 2);
    assert_eq!(s.status(1).state, "active");
    let body = ViewBody::decode(s.newest_view(1).head.body()).unwrap();
    assert_eq!(body.shared.as_ref().map(|x| (x.threshold, x.slices.len())), Some((2, 3)));
    s.isolate(1);
    s.move_head(3, &[2, 3]);
    s.wait(300);
    assert_eq!((s.status(3).state, s.status(2).state), ("active", "following"));
    assert_eq!(s.numbers(3), [1, 2]);
    s.write(3, 3);
    // The old head took a write that nobody else has, and comes back.
    s.write(1, 4);
    assert_eq!(s.numbers(1), [1, 2, 4]);
    s.rejoin(1);
    s.tell(1);
    s.wait(500);
    assert!(!s.status(1).is_head);
    assert_eq!(s.numbers(1), [1, 2, 3], "what was never committed is cut");
    s.check(&[1, 2, 3]);
}

/// The old head hears of the new one before the control plane tells it, and orders nothing any more.
#[test]
fn a_head_yields_to_who_asks_for_its_promise() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.write(1, 1);
    s.move_head(2, &[2, 3]);
    assert_eq!(s.status(2).state, "active");
    s.write(1, 2);
    s.wait(500);
    assert_eq!(s.numbers(1), [1]);
    assert_eq!(s.status(1).view, s.status(2).view);
    s.write(2, 3);
    s.check(&[1, 2, 3]);
    // It goes on asking for a view of its own until it hears why it gets none, and is not heard.
    s.tell(1);
    assert!(!s.status(1).is_head);
    assert_eq!(s.status(2).state, "active");
    // And back again.
    s.move_head(1, &[1, 2, 3]);
    s.wait(300);
    s.write(1, 4);
    assert_eq!(s.numbers(3), [1, 3, 4]);
    s.check(&[1, 2, 3]);
}

/// View 2, with head 1, that node 3 has nothing of.
fn missed_by_the_third() -> Story {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.isolate(3);
    s.move_head(2, &[1, 2]);
    s.move_head(1, &[1, 2]);
    s.write(1, 1);
    assert_eq!((s.status(1).view, s.status(3).view, s.numbers(2)), (ViewNumber(3), ViewNumber(1), vec![1]));
    s
}

/// The longest log is not the new head's: it is fetched, with the view frame that has the own slice.
#[test]
fn a_head_that_missed_the_whole_view_fetches_its_slice() {
    let mut s = missed_by_the_third();
    s.cut.clear();
    s.isolate(1);
    s.link(2, 3, true);
    s.move_head(3, &[2, 3]);
    s.wait(1000);
    assert_eq!(s.status(3).state, "active", "{:?}", s.members[&3].notes);
    assert_eq!(s.numbers(3), [1]);
    s.check(&[2, 3]);
}

/// A member that missed the view has no slice in its log, and gives it all the same: the head sends it along. Else two
/// good copies would not be enough where two promises are.
#[test]
fn a_member_without_the_view_frame_gives_its_slice() {
    let mut s = missed_by_the_third();
    s.cut.clear();
    s.isolate(1);
    s.link(2, 3, true);
    s.move_head(2, &[2, 3]);
    s.wait(500);
    assert_eq!(s.status(2).state, "active", "{:?}", s.members[&2].notes);
    assert_eq!(s.numbers(3), [1]);
    s.check(&[2, 3]);
}

/// A node without enough slices can't extend the chain, and says so; the members take nothing of what it makes up.
#[test]
fn fewer_slices_than_the_threshold_are_not_enough() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.write(1, 1);
    let before = s.newest_view(2);
    // Node 2 has promised, and its key is lost: it has nothing to give.
    s.isolate(1);
    s.tampers = |from, m| keep_slice(from == 2, m);
    s.move_head(3, &[2, 3]);
    s.wait(1000);
    assert_eq!(s.status(3).state, "opening");
    assert!(s.says(3, "1 of 2 slices"), "{:?}", s.members[&3].notes);
    assert_eq!(s.newest_view(3).header().hid(), before.header().hid());
    // With the third member's slice there are enough.
    s.rejoin(1);
    s.wait(1000);
    assert_eq!(s.status(3).state, "active", "{:?}", s.members[&3].notes);
    s.check(&[1, 2, 3]);
}

/// A slice that was altered on the way, or by a member that lies, is noticed.
#[test]
fn an_altered_slice_extends_nothing() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.write(1, 1);
    s.isolate(1);
    s.tampers = |_, m| {
        if let Message::SealAnswer(a) = m
            && let Given::Slice(Slice(bytes)) = &mut a.given
        {
            bytes[20] ^= 1;
        }
    };
    s.move_head(3, &[2, 3]);
    s.wait(500);
    assert_eq!(s.status(3).state, "opening");
    assert!(s.says(3, "can't be followed"), "{:?}", s.members[&3].notes);
    s.check(&[2, 3]);
}

/// The token can't be guessed: a frame whose parent does not hash to the last `hid` is refused, whoever sends it.
#[test]
fn members_refuse_a_forged_continuation() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.write(1, 1);
    let (view, last) = (s.status(2).view, s.status(2).last);
    let meta = |sequence: Sequence| FrameMeta {
        cluster: ClusterId([7; 16]),
        shard: SHARD,
        view,
        chunk: ChunkId { view, counter: 0 },
        chunk_offset: 1,
        sequence,
        first_version: Version(1),
        committed: last.sequence,
        wall: 0,
    };
    let newest = s.members[&2].log.last_key_value().map(|(_, f)| *f.header()).unwrap();
    for secret in [Hash32::default(), Hash32([7; 32])] {
        for parent in [token(&secret, &newest.parent_token(), &newest.digest()), newest.hid(), newest.parent_token()] {
            let forged = FrameBuilder::special(&meta(last.sequence.next()), FrameKind::Seal, &[], &secret, &parent).0;
            let message = Message::Frames { forward: Vec::new(), frames: vec![forged] };
            s.step(2, Event::Message { from: LinkId(1), message });
            s.settle();
            assert_eq!(s.status(2).last, last);
        }
    }
    assert!(s.says(2, "does not continue this log"));
}

/// A pending view never became active. Its frame is cut, and the view before it is followed by what it published.
#[test]
fn a_pending_view_gives_way_to_the_next() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.write(1, 1);
    s.refuses = Some(Error::retry("the control plane is not to be reached"));
    s.move_head(2, &[1, 2, 3]);
    s.wait(200);
    assert_eq!((s.status(2).state, s.status(2).view), ("opening", ViewNumber(2)));
    s.refuses = None;
    // The head of the pending view is gone, and so are the slices' holders' needs: its frame published the secret.
    s.isolate(2);
    s.tampers = |from, m| keep_slice(from == 1, m);
    s.move_head(3, &[1, 3]);
    s.wait(500);
    assert_eq!(s.status(3).state, "active", "{:?}", s.members[&3].notes);
    assert_eq!(s.numbers(3), [1]);
    let body = ViewBody::decode(s.newest_view(3).head.body()).unwrap();
    assert_eq!(body.pred, ViewNumber(1), "the last active view is the predecessor");
    s.rejoin(2);
    s.tell(2);
    s.wait(500);
    s.check(&[1, 2, 3]);
}

/// As long as a member has not named its key the secret is derived, as it always was: its head can follow itself.
#[test]
fn without_all_host_keys_only_the_head_follows_itself() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.keys.remove(&NodeId(3));
    s.move_head(2, &[1, 2, 3]);
    s.wait(200);
    s.write(2, 1);
    assert!(ViewBody::decode(s.newest_view(2).head.body()).unwrap().shared.is_none());
    // By now all have keys.
    s.keys.insert(NodeId(3), host_key(3).public());
    s.isolate(2);
    s.move_head(1, &[1, 3]);
    s.wait(300);
    assert_eq!(s.status(1).state, "opening");
    assert!(s.says(1, "only the node that was its head"), "{:?}", s.members[&1].notes);
    // The old head comes back and gives what it had derived, and from then on others can follow.
    s.rejoin(2);
    s.tell(2);
    s.wait(500);
    assert_eq!(s.status(1).state, "active", "{:?}", s.members[&1].notes);
    s.isolate(1);
    s.move_head(3, &[2, 3]);
    s.wait(300);
    assert_eq!((s.status(3).state, s.numbers(3)), ("active", vec![1]));
    s.check(&[2, 3]);
}

/// The head of a view without slices lost its power before the view frame was durable there, and the view became active by the
/// others. Nobody else can derive the secret, and the head gave nothing of a view that its log did not have: the shard
/// stood still with every copy there (seed 7017411 of the simulator).
#[test]
fn the_head_of_a_view_without_slices_gives_its_secret_without_the_frame() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.keys.remove(&NodeId(3));
    s.members.get_mut(&2).unwrap().holds_back = true;
    s.move_head(2, &[1, 2, 3]);
    s.members.get_mut(&2).unwrap().holds_back = false;
    s.wait(300);
    assert_eq!((s.active, s.status(2).state), (ViewNumber(2), "active"), "{:?}", s.members[&2].notes);
    assert!(ViewBody::decode(s.newest_view(1).head.body()).unwrap().shared.is_none());
    s.isolate(2);
    let workers = (1..=3).map(|n| (NodeId(n), 1)).collect();
    s.members.insert(2, Member::blank(2, workers, None));
    s.move_head(1, &[1, 3]);
    s.wait(300);
    assert_eq!(s.status(1).state, "opening");
    s.rejoin(2);
    s.tell(2);
    s.wait(500);
    assert_eq!(s.status(1).state, "active", "{:?}", s.members[&1].notes);
    s.check(&[1, 3]);
}

/// Nobody gets a slice of a view that may still order frames: the promise comes first, and is durable.
#[test]
fn a_slice_goes_with_a_durable_promise_only() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.members.get_mut(&2).unwrap().holds_back = true;
    let ask = |view: u64| Message::Seal { shard: SHARD, view: ViewNumber(view), pred: ViewNumber(1), slice: None };
    let given = |s: &mut Story, view| {
        s.step(2, Event::Message { from: LinkId(3), message: ask(view) });
        let m = s.members.get_mut(&2).unwrap();
        m.host.end_turn(s.now);
        s.carry_out(2);
        let answers = s.on_the_way.drain(..).filter_map(|(_, _, m)| match m {
            Message::SealAnswer(a) => Some(a),
            _ => None,
        });
        answers.map(|a| a.given).collect::<Vec<_>>()
    };
    assert_eq!(given(&mut s, 5), [], "not before it is durable");
    assert_eq!(given(&mut s, 1), [Given::Nothing], "a view that may order frames");
    let done: Vec<Durable> = s.members.get_mut(&2).unwrap().waiting.drain(..).collect();
    s.step(2, Event::Durable(done));
    assert!(matches!(given(&mut s, 5)[..], [Given::Slice(_), Given::Slice(_)]));
    assert_eq!(given(&mut s, 4), [Given::Nothing], "a higher promise stands");
}

/// A view that was opened before the last member had named its key is followed by one with slices as soon as it has.
#[test]
fn slices_are_made_as_soon_as_all_have_keys() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.keys.remove(&NodeId(3));
    s.move_head(2, &[1, 2, 3]);
    s.write(2, 1);
    let shared = |s: &Story| ViewBody::decode(s.newest_view(2).head.body()).unwrap().shared.is_some();
    assert!(!shared(&s));
    s.wait(500);
    let view = s.status(2).view;
    s.keys.insert(NodeId(3), host_key(3).public());
    s.tell(2);
    s.wait(500);
    assert!(shared(&s) && s.status(2).view == view.next());
    s.wait(1000);
    assert_eq!(s.status(2).view, view.next(), "once");
    s.write(2, 2);
    s.isolate(2);
    s.move_head(1, &[1, 3]);
    s.wait(300);
    assert_eq!((s.status(1).state, s.numbers(1)), ("active", vec![1, 2]));
    s.check(&[1, 3]);
}

/// A head did not hear that another node was head for a while and gathered promises. It was head again by then, went on
/// in its own view, and nobody took its frames any more.
#[test]
fn a_head_that_was_overtaken_opens_a_newer_view() {
    let mut s = Story::new(3, 2);
    s.wait(100);
    s.write(1, 1);
    s.isolate(1);
    s.refuses = Some(Error::retry("the control plane is not to be reached"));
    s.move_head(3, &[2, 3]);
    s.wait(200);
    assert_eq!((s.status(3).state, s.status(2).view), ("opening", ViewNumber(2)));
    s.refuses = None;
    s.rejoin(1);
    s.move_head(1, &[1, 2, 3]);
    s.wait(1000);
    assert_eq!((s.status(1).state, s.status(1).view), ("active", ViewNumber(3)));
    s.write(1, 2);
    assert_eq!(s.numbers(3), [1, 2]);
    s.check(&[1, 2, 3]);
}

/// A volume was resized, and the control plane's leader died right after that. The head had stopped when it heard of the
/// new size, to open a view that says it, and got no number for that view: nothing was written until there was another
/// leader, though nobody had promised anything.
#[test]
fn a_planned_view_waits_for_the_control_plane_and_writes_do_not() {
    for mutant in [None, Some(Mutant::PlansStopOrders)] {
        let mut s = Story::with(3, 2, mutant);
        s.wait(100);
        s.write(1, 1);
        assert_eq!(s.numbers(1), [1], "{:?}", s.members[&1].notes);
        s.volume = Some(VolumeDescription {
            name: "v".into(),
            size: 2 << 20,
            stripe: 1 << 20,
            shards: 1,
            copies: 3,
            min_copies: 2,
            all: false,
            retain_ms: 0,
            branch: ViewNumber(0),
        });
        s.silent = Some(Vec::new());
        s.tell(1);
        s.wait(40);
        s.write(1, 2);
        s.wait(1000);
        assert_eq!(s.silent, Some(vec![1]), "it asks once");
        assert_eq!(s.numbers(2).contains(&2), mutant.is_none(), "while it waits for the number");
        if mutant.is_some() {
            continue;
        }
        let (view, nobody) = (s.active, || Err(Error::retry("no leader")));
        for (failed, number) in [(1, 3), (2, 4)] {
            // A number was given out, and the answer with it was lost.
            s.highest = s.highest.next();
            s.tell(1);
            s.step(1, Event::Proposed { shard: SHARD, result: nobody(), seed: Hash32::default() });
            s.write(1, number);
            s.wait(2000);
            assert_eq!(s.silent.as_ref().map(Vec::len), Some(failed + 1), "it asks again after a while");
        }
        assert_eq!((s.active, s.numbers(3)), (view, vec![1, 2, 3, 4]));
        assert_eq!(s.status(3).committed, s.status(1).last.sequence);
        // There is a leader. What comes in the same turn is ordered before the promise, and what comes later behind the
        // view's frame.
        s.silent = None;
        let write = s.write_message(1, 5);
        s.step(1, Event::Message { from: DRIVER, message: write });
        s.answer_proposal(1);
        let write = s.write_message(1, 6);
        s.step(1, Event::Message { from: DRIVER, message: write });
        s.wait(500);
        assert_eq!((s.active, s.numbers(2)), (ViewNumber(view.0 + 3), vec![1, 2, 3, 4, 5]));
        s.write(1, 6);
        assert_eq!(s.numbers(2), [1, 2, 3, 4, 5, 6]);
        assert_eq!(s.newest_view(2).header().view_number(), s.active);
        s.check(&[1, 2, 3]);
    }
}

impl Story {
    /// The control plane names other members, head first, of which some are new; all nodes that `hear` it know.
    pub fn replace(&mut self, chain: &[u64], joining: &[u64], hear: &[u64]) {
        self.active_members = self.view_members().to_vec();
        let nodes = |of: &[u64]| of.iter().copied().map(NodeId).collect();
        (self.chain, self.joining) = (nodes(chain), nodes(joining));
        self.pending = None;
        hear.iter().for_each(|n| self.tell(*n));
        self.wait(100);
    }

    /// Nodes 1 and 2 have all of a view of 1, 2 and 4, and 4 has nothing yet. Node 3 has what was before it.
    fn with_a_new_member() -> Self {
        let mut s = Self::among(4, 3, 2, None);
        s.wait(100);
        s.write(1, 1);
        s.isolate(3);
        s.isolate(4);
        s.replace(&[1, 2, 4], &[4], &[1, 2, 4]);
        s.write(1, 2);
        assert_eq!((s.status(1).state, s.status(1).view, s.active), ("active", ViewNumber(2), ViewNumber(2)));
        assert_eq!((s.numbers(2), s.numbers(3), s.numbers(4)), (vec![1, 2], vec![1], vec![]));
        s
    }
}

/// A member was replaced, and the head was lost before the new member had anything. The other one had every write; it could
/// not seal, because an empty log did not count, and the new one could not learn, because there was no head.
#[test]
fn a_new_member_with_nothing_yet_is_one_of_those_that_seal() {
    for is_new in [true, false] {
        let mut s = Story::with_a_new_member();
        s.cut.clear();
        s.isolate(1);
        s.link(2, 4, true);
        // After a rebuild nobody knows what the log was before.
        s.learning.retain(|_| is_new);
        s.replace(&[2, 4, 1], &[4], &[2, 4]);
        s.wait(3000);
        if !is_new {
            assert_eq!((s.status(2).state, s.numbers(4)), ("opening", vec![]));
            continue;
        }
        assert_eq!((s.status(2).state, s.numbers(4)), ("active", vec![1, 2]), "{:?}", s.members[&2].notes);
        s.write(2, 3);
        assert_eq!(s.numbers(4), [1, 2, 3]);
        // The frames that the old head ordered alone are not in it.
        s.write(1, 9);
        s.cut.clear();
        [2, 3, 4].iter().for_each(|n| s.link(1, *n, true));
        s.tell(1);
        s.wait(500);
        assert_eq!(s.numbers(1), [1, 2, 3]);
        s.check(&[1, 2, 4]);
    }
}

/// The same, and the one that was replaced is back, and takes the place of the lost head.
#[test]
fn a_former_member_takes_the_place_of_a_lost_head() {
    let mut s = Story::with_a_new_member();
    s.cut.clear();
    s.isolate(1);
    for (a, b) in [(2, 3), (2, 4), (3, 4)] {
        s.link(a, b, true);
    }
    s.replace(&[2, 3, 4], &[3, 4], &[2, 3, 4]);
    s.wait(1000);
    assert_eq!(s.status(2).state, "active", "{:?}", s.members[&2].notes);
    s.write(2, 3);
    assert_eq!((s.numbers(3), s.numbers(4)), (vec![1, 2, 3], vec![1, 2, 3]));
    s.check(&[2, 3, 4]);
}

/// A chain of one gets a second member, or one of three of which all have to answer a third. The head opened the next view at once,
/// and nothing was answered until the new member had learned everything; if it was away, for ever.
#[test]
fn a_chain_that_grows_goes_on_meanwhile() {
    let mut s = Story::among(4, 1, 1, None);
    s.wait(100);
    (1..=20).for_each(|n| s.write(1, n));
    s.connect(&[1]);
    s.quorum = 2;
    s.replace(&[1, 4], &[4], &[1, 4]);
    s.wait(3000);
    s.write(1, 21);
    let status = s.status(1);
    assert_eq!((status.state, status.view), ("active", ViewNumber(1)), "{:?}", s.members[&1].notes);
    assert_eq!(status.committed, status.last.sequence);
    // It is there, and has not learned anything yet.
    s.tampers = |from, m| match m {
        Message::Sync(r) if from == 4 => r.shard = ShardId::new(99, 0),
        _ => {}
    };
    s.connect(&[1, 4]);
    s.wait(500);
    s.write(1, 22);
    let status = s.status(1);
    assert_eq!((status.view, status.committed), (ViewNumber(1), status.last.sequence));
    s.tampers = |_, _| {};
    s.wait(5000);
    assert_eq!((s.status(1).state, s.status(4).state), ("active", "following"), "{:?}", s.members[&4].notes);
    assert_eq!((s.active.0 > 1, s.numbers(4)), (true, (1..=22).collect()));
    s.write(1, 23);
    assert_eq!(s.numbers(4).last(), Some(&23));
}

/// The new member had everything, and then the control plane was silent for minutes. What was written meanwhile it did not get:
/// its view was opened as soon as there was a number, and all stood still until it had learned that, too.
#[test]
fn who_is_to_come_keeps_up_while_the_control_plane_is_silent() {
    let mut s = Story::among(2, 1, 1, None);
    s.wait(100);
    s.quorum = 2;
    s.silent = Some(Vec::new());
    s.replace(&[1, 2], &[2], &[1, 2]);
    s.wait(5000);
    assert_eq!(
        (s.silent.clone(), s.status(2).last.sequence),
        (Some(vec![1]), s.status(1).last.sequence),
        "it asks for the view"
    );
    for number in 1..=5 {
        s.write(1, number);
        s.wait(2000);
        assert_eq!(s.numbers(2), s.numbers(1), "{:?}", s.members[&1].notes);
    }
    assert_eq!(s.silent, Some(vec![1]));
    s.silent = None;
    s.answer_proposal(1);
    s.wait(100);
    assert_eq!((s.status(1).state, s.active), ("active", ViewNumber(2)), "{:?}", s.members[&1].notes);
}

/// The head took a write that nobody else has, and can't read it back. Its log was the longest, so each view that was
/// opened ended with that write: nobody could be given it, no view became active, and the shard stood still.
#[test]
fn a_log_that_can_not_give_its_last_frame_does_not_win() {
    for nodes in [3, 2] {
        let mut s = Story::new(nodes, 2);
        s.wait(100);
        s.write(1, 1);
        s.isolate(1);
        s.write(1, 2);
        let last = s.status(1).last.sequence;
        assert_eq!(s.numbers(1), [1, 2]);
        s.members.get_mut(&1).unwrap().unread.insert(last);
        // It is head again, in a view of its own; and so it is when another member is.
        s.rejoin(1);
        s.move_head(2, &[1, 2]);
        s.wait(1000);
        s.move_head(1, &(1..=nodes).collect::<Vec<_>>());
        s.wait(8000);
        assert_eq!(s.status(1).state, "active", "{nodes} nodes: {:?}", s.members[&1].notes);
        assert_eq!(s.numbers(1), [1], "the write was answered to nobody");
        s.write(1, 3);
        assert_eq!(s.status(1).committed, s.status(1).last.sequence);
        s.check(&(1..=nodes).collect::<Vec<_>>());
    }
}

/// The same write, and another member has it. It is fetched from there, and given to the third.
#[test]
fn a_frame_that_can_not_be_read_is_fetched_from_others() {
    let mut s = Story::new(3, 3);
    s.wait(100);
    s.write(1, 1);
    s.isolate(3);
    s.write(1, 2);
    let last = s.status(1).last.sequence;
    assert_eq!((s.numbers(1), s.numbers(2), s.numbers(3)), (vec![1, 2], vec![1, 2], vec![1]));
    s.members.get_mut(&1).unwrap().unread.insert(last);
    s.rejoin(3);
    s.wait(3000);
    assert!(s.members[&1].unread.is_empty(), "{:?}", s.members[&1].notes);
    assert_eq!((s.status(1).state, s.status(1).view, s.numbers(3)), ("active", ViewNumber(1), vec![1, 2]));
    s.write(1, 3);
    assert_eq!(s.status(1).committed, s.status(1).last.sequence);
    s.check(&[1, 2, 3]);
}
