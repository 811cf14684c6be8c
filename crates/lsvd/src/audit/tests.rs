//! The walk on made-up histories: what is proven, and what every change of one frame breaks.

use super::walk::{Fact, Known, Walk};
use super::{Ask, Branch, Cause, Place, Proof, Report};
use crate::FrameName;
use bytes::Bytes;
use freebs_format::{
    ClosedView, Extent, ExtentKind, Frame, FrameBuilder, FrameHead, FrameKind, FrameMeta, Member, UpdateDraft,
    UpdateKind, ViewBody, ViewSecret, block_crc, hide,
};
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DriverId, Generation, Hash32, HostPublic, NodeId, RequestNumber, Sequence,
    ShardId, StartNumber, Version, ViewNumber,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const SHARD: ShardId = ShardId::new(1, 0);
/// Frames of a made-up segment.
const PER_SEGMENT: u64 = 7;

fn secret(view: u64) -> Hash32 {
    let mut secret = [100; 32];
    secret[..8].copy_from_slice(&view.to_le_bytes());
    Hash32(secret)
}

/// The maker of a history.
#[derive(Clone, Default)]
struct Maker {
    view: u64,
    sequence: u64,
    version: u64,
    token: Hash32,
    /// Used in place of the view's secret.
    other_secret: Option<Hash32>,
    /// Published in place of the secret of the view before.
    lie: Option<Hash32>,
    /// Views go on by force.
    by_force: bool,
}

impl Maker {
    fn meta(&self) -> FrameMeta {
        FrameMeta {
            cluster: ClusterId([7; 16]),
            shard: SHARD,
            view: ViewNumber(self.view),
            chunk: ChunkId::new(self.view, 0),
            chunk_offset: 0,
            sequence: Sequence(self.sequence + 1),
            first_version: Version(self.version),
            committed: Sequence(0),
            wall: 0,
        }
    }

    fn secret(&self) -> Hash32 {
        self.other_secret.unwrap_or(secret(self.view))
    }

    fn made(&mut self, (frame, token): (Frame, Hash32)) -> Frame {
        (self.token, self.sequence) = (token, self.sequence + 1);
        frame
    }

    fn open(&mut self) -> Frame {
        let pred = self.view;
        let published = if pred == 0 || self.by_force { Hash32::default() } else { self.lie.unwrap_or(secret(pred)) };
        self.view += 1;
        let shared = ViewSecret {
            threshold: 1,
            point: HostPublic([0; 32]),
            pred_secret: published,
            slices: vec![<_>::default()],
        };
        let body = ViewBody {
            pred: ViewNumber(pred),
            seal_sequence: Sequence(self.sequence),
            seal_hid: if pred == 0 { Hash32::default() } else { hide(&self.token) },
            secret_hash: hide(&secret(self.view)),
            quorum: 1,
            min_copies: 1,
            generation: Generation(1),
            members: vec![Member { node: NodeId(1), start: StartNumber(1), early: false }],
            shared: Some(Box::new(shared)),
            volume: None,
        };
        let (meta, secret) = (self.meta(), self.secret());
        let parent = if self.by_force { body.seal_hid } else { self.token };
        let made = FrameBuilder::special(&meta, FrameKind::View, &body.encode(), &secret, &parent);
        self.made(made)
    }

    fn data(&mut self, fill: u8) -> Frame {
        let block = Bytes::from(vec![fill; BLOCK]);
        let mut b = FrameBuilder::new();
        b.push(UpdateDraft {
            kind: UpdateKind::Write,
            driver: DriverId(1),
            number: RequestNumber(self.version + 1),
            lowest_open: RequestNumber(1),
            extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(0, 1) }],
            crcs: vec![block_crc(&block)],
            data: vec![block],
        });
        let meta = FrameMeta { first_version: Version(self.version + 1), ..self.meta() };
        let made = b.build(&meta, &self.secret(), &self.token);
        self.version += 1;
        self.made(made)
    }

    fn name(&self) -> FrameName {
        FrameName { view: ViewNumber(self.view), sequence: Sequence(self.sequence), hid: hide(&self.token) }
    }
}

/// A history: frames in the order of the log.
#[derive(Clone)]
struct Story {
    facts: Vec<Fact>,
    last: (FrameName, Version),
    released: u64,
    closed: Vec<ClosedView>,
    ask: Ask,
}

fn released(to: u64) -> Known {
    Known { released: Sequence(to), ..Known::default() }
}

fn place(n: u64) -> Place {
    Place { segment: (n / PER_SEGMENT) as u32, offset: (n % PER_SEGMENT * 4096) as u32, byte: n * 4096 }
}

fn fact(head: &FrameHead) -> Fact {
    let s = head.seq().0;
    Fact::of(head, (place(s), s / PER_SEGMENT), false, None)
}

/// Views of four updates each, with their frames.
fn history(views: u64, change: impl Fn(&mut Maker)) -> Story {
    let (mut m, mut facts) = (Maker::default(), Vec::new());
    for _ in 0..views {
        change(&mut m);
        facts.push(fact(&m.open().head));
        for i in 0..4 {
            change(&mut m);
            facts.push(fact(&m.data(i).head));
        }
    }
    Story { facts, last: (m.name(), Version(m.version)), released: 0, closed: vec![], ask: Ask::default() }
}

impl Story {
    fn walk(&self) -> Walk {
        let known = Known { closed: self.closed.clone(), ..released(self.released) };
        let mut walk = Walk::new(SHARD, self.last, known, self.ask.clone());
        self.facts.iter().rev().for_each(|f| walk.frame(f.clone()));
        walk
    }

    fn audit(&self) -> Report {
        self.walk().finish().expect("few repairs")
    }

    /// Leaves frames out, by their sequence.
    fn without(mut self, gone: impl Fn(u64) -> bool) -> Self {
        self.facts.retain(|f| !gone(f.sequence()));
        self
    }
}

fn ranges(r: &Report) -> Vec<(Proof, u64, u64)> {
    r.ranges.iter().map(|x| (x.proof, x.first.0, x.last.0)).collect()
}

fn first_break(r: &Report) -> (Cause, u64, u64) {
    let b = r.breaks.first().expect("a break");
    (b.cause, b.first.0, b.last.0)
}

#[test]
fn closed_views_are_proven_and_the_open_one_is_linked() {
    let r = history(10, |_| ()).audit();
    assert!(r.is_sound(), "{r:?}");
    assert_eq!(ranges(&r), [(Proof::Proven, 1, 45), (Proof::Linked, 46, 50)]);
    let versions: Vec<_> = r.ranges.iter().map(|x| (x.first_version.0, x.last_version.0)).collect();
    assert_eq!(versions, [(1, 36), (37, 40)]);
    let views: Vec<_> = r.ranges.iter().map(|x| (x.first_view.0, x.last_view.0)).collect();
    assert_eq!(views, [(1, 9), (10, 10)]);
    assert_eq!((r.proven, r.linked, r.summarised), (45, 5, 0));
    assert_eq!(r.published.first(), Some(&(ViewNumber(9), secret(9))));
    assert_eq!((r.published.len(), r.unknown), (9, vec![ViewNumber(10)]));
    assert_eq!(r.samples.len(), 50);
}

/// V10: a view that went on by force follows the frame that it names, and whoever made it need not have known its token. That
/// is no break, and is told; the secret of the view before was never published.
#[test]
fn a_view_that_went_on_by_force_is_told_and_is_no_break() {
    let s = history(4, |m| m.by_force = m.view == 2 && m.sequence == 10);
    let r = s.audit();
    assert!(r.is_sound(), "{r:?}");
    let parts = [(Proof::Proven, 1, 5), (Proof::Linked, 6, 10), (Proof::Proven, 11, 15), (Proof::Linked, 16, 20)];
    assert_eq!(ranges(&r), parts);
    assert_eq!(r.branches, [Branch { view: ViewNumber(3), sequence: Sequence(11), version: Version(8) }]);
    assert_eq!(history(4, |_| ()).audit().branches, []);
    // A frame in front of it that is another one is a break as ever.
    let mut other = s.clone();
    other.facts[9] = history(2, |m| m.other_secret = (m.sequence == 9).then_some(secret(77))).facts[9].clone();
    assert_eq!(first_break(&other.audit()), (Cause::Unlinked, 10, 10));
}

/// Other members may have followed this view already, and published its secret.
#[test]
fn a_secret_from_elsewhere_proves_the_newest_view_here() {
    let mut s = history(3, |_| ());
    s.ask.secrets = BTreeMap::from([(ViewNumber(3), secret(3))]);
    assert_eq!(ranges(&s.audit()), [(Proof::Proven, 1, 15)]);
    assert_eq!(s.audit().unfit, []);
    assert_eq!(s.audit().unknown, []);
}

/// A member's word is all that there is of the secret, and is wrong. Honest members' logs were forged then, it said.
#[test]
fn a_wrong_word_from_elsewhere_breaks_nothing() {
    let lie = |view| BTreeMap::from([(ViewNumber(view), secret(99))]);
    let unfit = |view| vec![(ViewNumber(view), secret(99))];
    let s = Story { ask: Ask { secrets: lie(3), ..Ask::default() }, ..history(3, |_| ()) };
    let r = s.audit();
    assert!(r.is_sound(), "{:?}", r.breaks);
    assert_eq!(ranges(&r), [(Proof::Proven, 1, 10), (Proof::Linked, 11, 15)]);
    assert_eq!((r.unknown, r.unfit), (vec![ViewNumber(3)], unfit(3)));

    // With frames of the view given up, its own among them or not.
    for (views, gone) in [(3, 14..16), (3, 7..14), (5, 7..21)] {
        let with = |secrets| {
            let ask = Ask { secrets, ..Ask::default() };
            let s = Story { ask, released: 20, ..history(views, |_| ()) };
            s.without(|s| gone.contains(&s)).audit()
        };
        let (r, without) = (with(lie(views)), with(BTreeMap::new()));
        assert!(r.is_sound(), "{gone:?}: {:?}", r.breaks);
        assert_eq!(ranges(&r), ranges(&without), "{gone:?}");
        assert_eq!((r.linked, r.proven, r.summarised), (without.linked, without.proven, without.summarised));
        assert_eq!((r.unknown, r.unfit), (without.unknown, unfit(views)), "{gone:?}");
    }

    // Of a view whose secret is here it changes nothing.
    let s = Story { ask: Ask { secrets: lie(2), ..Ask::default() }, ..history(3, |_| ()) };
    let r = s.audit();
    assert_eq!((r.break_count, r.proven, r.unfit), (0, 10, unfit(2)));
}

/// None of a view's frames was made with the secret that another member published; its own frame says that it is the one.
#[test]
fn a_right_word_from_elsewhere_finds_a_view_that_is_forged_as_a_whole() {
    let forge = |m: &mut Maker| m.other_secret = (m.sequence >= 10).then_some(Hash32([1; 32]));
    let mut s = history(3, forge);
    assert!(s.audit().is_sound());
    s.ask.secrets = BTreeMap::from([(ViewNumber(3), secret(3))]);
    let r = s.audit();
    assert_eq!((r.break_count, r.proven, r.linked, r.unfit.len()), (5, 10, 0, 0), "{:?}", r.breaks);
    assert_eq!((first_break(&r), r.unknown), ((Cause::Forged, 11, 11), vec![]));

    // With more frames than are told.
    let (mut m, mut facts) = (Maker::default(), Vec::new());
    for i in 0..500 {
        forge(&mut m);
        let frame = if [0, 100, 200].contains(&i) { m.open() } else { m.data(1) };
        facts.push(fact(&frame.head));
    }
    let s = Story { facts, last: (m.name(), Version(m.version)), ..s };
    let r = s.audit();
    assert_eq!((r.break_count, r.breaks.len(), first_break(&r)), (490, super::BREAKS_MAX, (Cause::Forged, 11, 11)));
}

#[test]
fn an_altered_frame_breaks_the_chain_where_it_is() {
    let mut s = history(3, |_| ());
    s.facts[7] = s.facts[7].clone().altered("a bit has turned");
    let r = s.audit();
    assert_eq!((first_break(&r), r.break_count), ((Cause::Altered, 8, 8), 1));
    assert_eq!(r.breaks[0].place, Some(place(8)));
    assert_eq!(ranges(&r), [(Proof::Proven, 1, 7), (Proof::Proven, 9, 10), (Proof::Linked, 11, 15)]);
}

#[test]
fn frames_that_were_given_up_are_summarised_and_others_are_missed() {
    // Segments 1 and 2 are gone: frames 7 to 20.
    let gone = |s: u64| (7..21).contains(&s);
    let mut s = history(5, |_| ()).without(gone);
    let r = s.audit();
    assert_eq!((first_break(&r), r.break_count), ((Cause::Removed, 7, 20), 1), "nothing says that they were given up");
    s.released = 20;
    let r = s.audit();
    assert!(r.is_sound(), "{r:?}");
    // Frame 6 opened view 2, whose secret was published by frame 11.
    let told = [(Proof::Proven, 1, 5), (Proof::Linked, 6, 6), (Proof::Summarised, 7, 20), (Proof::Linked, 21, 25)];
    assert_eq!(ranges(&r), told);
    assert_eq!(r.ranges[2].first_version.0, 5);
    assert_eq!(r.unknown, [ViewNumber(5), ViewNumber(2)]);
    s.ask.secrets = BTreeMap::from([(ViewNumber(2), secret(2))]);
    assert_eq!(ranges(&s.audit())[0], (Proof::Proven, 1, 6), "another member knows it");

    let beginning = history(5, |_| ()).without(|s| s < 7);
    assert_eq!(first_break(&beginning.audit()), (Cause::Removed, 1, 6));
    let beginning = Story { released: 6, ..beginning };
    assert_eq!(ranges(&beginning.audit())[0], (Proof::Summarised, 1, 6));
}

/// The frame that published a secret is gone, and the log has kept the secret.
#[test]
fn a_secret_that_the_log_kept_proves_frames_whose_next_view_is_gone() {
    let gone = |s: u64| (7..21).contains(&s);
    let kept = |secret| ClosedView { view: ViewNumber(2), published: Sequence(11), secret };
    let s = Story { released: 20, closed: vec![kept(secret(2))], ..history(5, |_| ()).without(gone) };
    let r = s.audit();
    assert!(r.is_sound(), "{r:?}");
    assert_eq!(ranges(&r)[..2], [(Proof::Proven, 1, 6), (Proof::Summarised, 7, 20)]);
    assert_eq!(r.published.iter().map(|p| p.0.0).collect::<Vec<_>>(), [4, 2, 1]);
    let s = Story { closed: vec![kept(secret(77))], ..s };
    let r = s.audit();
    assert_eq!(first_break(&r), (Cause::Secret, 6, 6));
    // A secret that is kept beside the frame itself changes nothing.
    let both = Story { closed: vec![kept(secret(2))], ..history(5, |_| ()) };
    assert_eq!((both.audit().is_sound(), both.audit().proven, both.audit().published.len()), (true, 20, 4));
}

/// All that a mark said of the shard before lies behind the mark that says that the shard was deleted.
#[test]
fn a_shard_that_was_deleted_and_came_back_begins_where_it_came_back() {
    let s = Story { released: 12, ..history(4, |_| ()) };
    let mut walk = Walk::new(SHARD, s.last, released(12), Ask::default());
    for f in s.facts.iter().rev() {
        if f.sequence() == 12 {
            walk.end();
        }
        walk.frame(f.clone());
    }
    let r = walk.finish().expect("no repairs");
    assert_eq!(ranges(&r), [(Proof::Summarised, 1, 12), (Proof::Proven, 13, 15), (Proof::Linked, 16, 20)]);
}

/// Cleaning gives up whole segments: a frame that is missing between two others of one segment was taken out, and so
/// was one at its edge, if the segment beside it is there.
#[test]
fn a_frame_taken_out_of_a_segment_is_missed_although_it_may_be_given_up() {
    for edge in [13, 14] {
        let s = Story { released: 25, ..history(6, |_| ()).without(|s| s == edge) };
        assert_eq!(first_break(&s.audit()), (Cause::Removed, edge, edge));
    }
    let s = Story { released: 25, ..history(6, |_| ()).without(|s| s == 10) };
    let r = s.audit();
    assert_eq!((first_break(&r), r.break_count), ((Cause::Removed, 10, 10), 1));
    // Unless its entries were learned.
    let mut walk = Walk::new(SHARD, s.last, released(25), Ask::default());
    walk.learned(Sequence(9), Sequence(10));
    s.facts.iter().rev().for_each(|f| walk.frame(f.clone()));
    assert!(walk.finish().expect("no repairs").is_sound());
    let walk = |since, upto| {
        let mut walk = Walk::new(SHARD, s.last, released(25), Ask::default());
        walk.learned(Sequence(since), Sequence(upto));
        s.facts.iter().rev().for_each(|f| walk.frame(f.clone()));
        walk.finish().expect("no repairs").break_count
    };
    assert_eq!((walk(10, 12), walk(3, 9)), (1, 1), "what was learned is something else");
}

/// A member that learns, and is left behind again before it counts, learns what came meanwhile.
#[test]
fn frames_that_were_learned_one_part_after_the_other_are_not_missed() {
    let s = Story { released: 25, ..history(6, |_| ()).without(|s| (9..12).contains(&s)) };
    let breaks = |parts: &[(u64, u64)]| {
        let mut walk = Walk::new(SHARD, s.last, released(25), Ask::default());
        parts.iter().for_each(|(since, upto)| walk.learned(Sequence(*since), Sequence(*upto)));
        s.facts.iter().rev().for_each(|f| walk.frame(f.clone()));
        walk.finish().expect("no repairs").break_count
    };
    assert_eq!((breaks(&[(8, 9), (9, 11)]), breaks(&[(10, 20), (8, 10)])), (0, 0));
    assert_eq!((breaks(&[]), breaks(&[(8, 9), (10, 11)]), breaks(&[(9, 11)])), (1, 1, 1));
}

#[test]
fn lost_frames_that_the_node_knows_of_are_a_break_whatever_was_given_up() {
    let s = history(4, |_| ()).without(|s| (7..14).contains(&s));
    let holes = vec![(Sequence(8), Sequence(9))];
    let mut walk = Walk::new(SHARD, s.last, Known { holes, ..released(20) }, Ask::default());
    s.facts.iter().rev().for_each(|f| walk.frame(f.clone()));
    let r = walk.finish().expect("no repairs");
    assert_eq!(first_break(&r), (Cause::Removed, 7, 13));
    assert!(r.breaks[0].what.contains("asks other members"), "{}", r.breaks[0].what);
}

/// The forger has everything that is public: parent, versions, checksums. The frame behind follows the forged one.
#[test]
fn frames_made_without_the_secret_are_found_once_it_is_published() {
    let forge = |m: &mut Maker| m.other_secret = (m.view == 2 && m.sequence == 8).then_some(Hash32([1; 32]));
    let r = history(4, forge).audit();
    assert_eq!((first_break(&r), r.break_count), ((Cause::Forged, 9, 9), 1));
    assert_eq!(ranges(&r), [(Proof::Proven, 1, 8), (Proof::Proven, 10, 15), (Proof::Linked, 16, 20)]);

    // In the newest view nothing tells, until another member publishes the secret.
    let forge = |m: &mut Maker| m.other_secret = (m.view == 4 && m.sequence == 19).then_some(Hash32([1; 32]));
    let mut s = history(4, forge);
    assert!(s.audit().is_sound());
    s.ask.secrets = BTreeMap::from([(ViewNumber(4), secret(4))]);
    assert_eq!(first_break(&s.audit()), (Cause::Forged, 20, 20));
}

#[test]
fn another_frame_in_the_place_of_one_is_not_what_the_next_one_follows() {
    let (mut s, mut other) = (history(3, |_| ()), Maker::default());
    other.open();
    (0..2).for_each(|i| drop(other.data(i)));
    let replaced = fact(&other.data(77).head);
    assert_eq!(replaced.sequence(), 4);
    s.facts[3] = replaced;
    let r = s.audit();
    assert_eq!((first_break(&r), r.break_count), ((Cause::Unlinked, 4, 4), 1), "it was made with the secret, and yet");
    assert_eq!(r.proven, 10);
}

#[test]
fn a_published_secret_that_is_not_the_views_is_a_break() {
    let lie = |m: &mut Maker| m.lie = (m.view == 2).then_some(Hash32([5; 32]));
    let mut s = history(4, lie);
    let r = s.audit();
    assert_eq!(first_break(&r), (Cause::Secret, 6, 6), "{:?}", r.breaks);
    // Another member knows the right one: the frames are proven, and only the lie is told.
    s.ask.secrets = BTreeMap::from([(ViewNumber(2), secret(2))]);
    let r = s.audit();
    assert_eq!((first_break(&r), r.break_count), ((Cause::Secret, 11, 11), 1));
    assert_eq!(r.proven, 15);
}

#[test]
fn frames_of_a_branch_that_was_cut_are_left_aside() {
    let (mut m, mut facts) = (Maker::default(), Vec::new());
    facts.push(fact(&m.open().head));
    (0..6).for_each(|i| facts.push(fact(&m.data(i).head)));
    let mut branch = m.clone();
    (0..3).for_each(|i| facts.push(fact(&branch.data(90 + i).head)));
    // The next head did not see them.
    facts.push(fact(&m.open().head));
    (0..6).for_each(|i| facts.push(fact(&m.data(i).head)));
    let s = Story { facts, last: (m.name(), Version(m.version)), released: 0, closed: vec![], ask: Ask::default() };
    let r = s.audit();
    assert!(r.is_sound(), "{r:?}");
    assert_eq!(ranges(&r), [(Proof::Proven, 1, 7), (Proof::Linked, 8, 14)]);
}

/// A member was brought frames once more, and stopped before it had all of them: those from before count again.
#[test]
fn frames_that_were_brought_once_more_are_no_gap() {
    let mut s = history(3, |_| ());
    let again: Vec<Fact> = s.facts[4..7].to_vec();
    s.facts.splice(10..10, again);
    let r = s.audit();
    assert!(r.is_sound(), "{:?}", r.breaks);
    assert_eq!(ranges(&r), [(Proof::Proven, 1, 10), (Proof::Linked, 11, 15)]);
    // If the frame that has to come next is not in front of them, it is missing.
    s.facts.retain(|f| f.sequence() != 10);
    let (cause, _, last) = first_break(&s.audit());
    assert_eq!((cause, last), (Cause::Removed, 10));
}

/// Frames of a branch that was cut are left aside also where the frames that took their place were given up, but for the
/// first one: that one stays as long as they do.
#[test]
fn frames_of_a_cut_branch_in_front_of_a_gap_are_left_aside() {
    let (mut m, mut facts) = (Maker::default(), Vec::new());
    facts.push(fact(&m.open().head));
    (0..6).for_each(|i| facts.push(fact(&m.data(i).head)));
    let mut branch = m.clone();
    (0..5).for_each(|i| facts.push(fact(&branch.data(90 + i).head)));
    facts.push(fact(&m.open().head).opened_in(5));
    (0..8).for_each(|i| facts.push(fact(&m.data(i).head).opened_in(7)));
    for gone in [9..10, 9..11, 9..12, 9..13, 9..14] {
        let mut facts = facts.clone();
        facts.retain(|f| !(gone.contains(&f.sequence()) && f.is_opened_in(7)));
        let s =
            Story { facts, last: (m.name(), Version(m.version)), released: 16, closed: vec![], ask: Ask::default() };
        let r = s.audit();
        assert!(r.is_sound(), "{gone:?}: {:?}", r.breaks);
        let told = [(Proof::Proven, 1, 7), (Proof::Linked, 8, 8), (Proof::Summarised, 9, gone.end - 1)];
        assert_eq!(ranges(&r)[..3], told);
    }
}

/// The story: a head dies with frames that nobody else has. The others go on and give up frames; then the node comes back
/// and learns a map. Nothing of the chain lies in place of the branch, so only the mark says that it was cut.
#[test]
fn frames_that_a_map_has_cut_are_left_aside() {
    for (branch, tip) in [(2, 5), (9, 5), (2, 7), (9, 7), (2, 0)] {
        let Story { mut facts, .. } = history(1, |_| ());
        let mut m = Maker::default();
        m.open();
        (0..4).for_each(|i| drop(m.data(i)));
        let mut other = m.clone();
        (0..branch).for_each(|i| facts.push(fact(&other.data(90 + i).head)));
        // Frames 6 to 12 of the chain; some of them may come as frames while the map is learned.
        let chain: Vec<Fact> = (0..7).map(|i| fact(&m.data(i).head)).collect();
        facts.extend(chain.into_iter().filter(|f| f.sequence() <= tip));
        let mark = facts.len();
        facts.push(fact(&m.open().head));
        (0..3).for_each(|i| facts.push(fact(&m.data(i).head)));
        let mut walk = Walk::new(SHARD, (m.name(), Version(m.version)), released(12), Ask::default());
        for (i, f) in facts.iter().enumerate().rev() {
            walk.frame(f.clone());
            if i == mark {
                walk.mapped(Sequence(5), Sequence(tip), Sequence(12));
            }
        }
        let r = walk.finish().expect("no repairs");
        assert!(r.is_sound(), "{branch} frames, {tip} stay: {:?}", r.breaks);
        let stay = tip.max(5);
        let told = [(Proof::Proven, 1, stay), (Proof::Summarised, stay + 1, 12), (Proof::Linked, 13, 16)];
        assert_eq!(ranges(&r), told, "{branch} frames, {tip} stay");
        let sampled: Vec<u64> = r.samples.iter().map(|s| s.0.0).collect();
        assert_eq!(sampled, (1..=stay).chain(13..=16).collect::<Vec<_>>());
    }
}

/// Frames that were damaged lie behind those that follow them, as copies.
#[test]
fn repaired_frames_are_taken_when_their_number_comes() {
    let mut s = history(4, |_| ());
    let copies: Vec<Fact> = [8, 3, 4].into_iter().map(|n: usize| s.facts[n - 1].clone().repaired()).collect();
    s.facts[7] = s.facts[7].clone().altered("rotten");
    s.facts.retain(|f| ![3, 4].contains(&f.sequence()));
    s.facts.extend(copies);
    let r = s.audit();
    assert!(r.is_sound(), "{r:?}");
    assert_eq!(r.proven, 15);
    // Without the frames behind them they stand alone, and are taken all the same.
    let s = Story { released: 20, ..s.without(|s| (5..14).contains(&s)) };
    let r = s.audit();
    assert_eq!(ranges(&r)[..2], [(Proof::Linked, 1, 4), (Proof::Summarised, 5, 13)]);
}

#[test]
fn too_many_repaired_frames_are_an_error_and_no_memory() {
    let s = history(1, |_| ());
    let name = FrameName { sequence: Sequence(1 << 40), ..s.last.0 };
    let mut walk = Walk::new(SHARD, (name, s.last.1), released(0), Ask::default());
    for n in 0..=super::WAITING_MAX as u64 {
        walk.frame(s.facts[0].clone().numbered(n + 2).repaired());
    }
    assert_eq!(walk.finish().unwrap_err().kind, freebs_types::ErrorKind::NoSpace);
}

#[test]
fn breaks_and_samples_are_bounded() {
    let mut s = history(800, |_| ());
    for f in s.facts.iter_mut().step_by(2) {
        *f = f.clone().altered("rotten");
    }
    s.ask.at = BTreeSet::from([Sequence(1), Sequence(3999)]);
    let r = s.audit();
    assert_eq!((r.break_count, r.breaks.len(), r.ranges.len(), r.folded), (2000, 100, 1000, true));
    assert_eq!(r.breaks[0].first, Sequence(1), "the oldest break is told");
    assert!(r.samples.len() <= super::SAMPLES_MAX && r.samples.iter().any(|s| s.0 == Sequence(3999)));
    assert_eq!(r.proven + r.linked, 2000);
    let many = history(1200, |_| ()).audit();
    assert!((1000..=super::SAMPLES_MAX).contains(&many.samples.len()), "{}", many.samples.len());
    assert_eq!((many.published.len(), many.proven), (super::SECRETS_MAX, 5995));
}

/// Something that happens to one frame of a closed view.
#[derive(Clone, Copy, Debug)]
enum Change {
    Alter,
    Remove,
    Swap,
    Forge,
    Lie,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A sound history is found sound, and each change of one frame of it is found, whatever was given up around it.
    #[test]
    fn every_change_is_found(
        views in 2u64..8,
        at in 0.0f64..1.0,
        change in prop::sample::select(vec![Change::Alter, Change::Remove, Change::Swap, Change::Forge, Change::Lie]),
        gone in prop::collection::btree_set(0u64..6, 0..3),
    ) {
        let closed = (views - 1) * 5;
        let target = 1 + ((closed - 1) as f64 * at) as u64;
        // Of what is given up the newest view is none, and neither are the frame's segment, those beside it, and what
        // proves it.
        let proves = ((target - 1) / 5 + 1) * 5 + 1;
        let near = |s: u64, other: u64| (s / PER_SEGMENT).abs_diff(other / PER_SEGMENT) <= 1;
        let kept = |s: u64| near(s, target) || s / PER_SEGMENT == proves / PER_SEGMENT || s > closed;
        let segment_kept: BTreeSet<u64> = (1..=views * 5).filter(|s| kept(*s)).map(|s| s / PER_SEGMENT).collect();
        let is_gone = |s: u64| gone.contains(&(s / PER_SEGMENT)) && !segment_kept.contains(&(s / PER_SEGMENT));
        let view_of_target = (target - 1) / 5 + 1;
        let make = |m: &mut Maker| match change {
            Change::Forge => m.other_secret = (m.sequence + 1 == target).then_some(Hash32([1; 32])),
            Change::Lie => m.lie = (m.view == view_of_target).then_some(Hash32([1; 32])),
            _ => {}
        };
        let sound = Story { released: views * 5, ..history(views, |_| ()).without(is_gone) };
        let report = sound.audit();
        prop_assert!(report.is_sound(), "{:?}", report.breaks);
        prop_assert_eq!(report.proven + report.linked, sound.facts.len() as u64);
        prop_assert_eq!(report.proven + report.linked + report.summarised, views * 5);

        let mut s = Story { released: views * 5, ..history(views, make).without(is_gone) };
        let i = s.facts.iter().position(|f| f.sequence() == target).unwrap();
        match change {
            Change::Alter => s.facts[i] = s.facts[i].clone().altered("rotten"),
            Change::Remove => {
                // The very first one looks like one that was given up.
                prop_assume!(target > 1);
                drop(s.facts.remove(i));
            }
            Change::Swap => {
                let mut other = history(views, |m| m.other_secret = (m.sequence == 0).then_some(Hash32([9; 32])));
                s.facts[i] = other.facts.remove(target as usize - 1);
            }
            Change::Forge | Change::Lie => {}
        }
        let report = s.audit();
        prop_assert!(!report.is_sound());
        prop_assert!(report.breaks.iter().any(|b| b.first.0 <= proves && target <= b.last.0.max(proves)), "{:?}", report.breaks);
    }

    /// Frames in any order and number: no panic, and never more proven than there is.
    #[test]
    fn any_order_of_frames_is_judged(
        order in prop::collection::vec((0usize..25, any::<bool>(), any::<bool>()), 0..60),
        released in 0u64..30,
    ) {
        let mut s = Story { released, ..history(5, |_| ()) };
        let all = std::mem::take(&mut s.facts);
        s.facts = order.into_iter().map(|(i, repair, altered)| {
            let f = all[i].clone();
            let f = if repair { f.repaired() } else { f };
            if altered { f.altered("rotten") } else { f }
        }).collect();
        let r = s.audit();
        prop_assert!(r.proven <= 20 && r.linked <= 25 && r.summarised <= 25);
        let mut last = 0;
        for x in &r.ranges {
            prop_assert!(x.first.0 > last && x.first <= x.last);
            last = x.last.0;
        }
    }
}
