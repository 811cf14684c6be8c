//! Going on by force (V10): what the survivors have stays, the break is in the log, and what was lost does not come back.

use super::*;
use freebs_format::wire::Given;
use freebs_format::{FrameKind, hide};

impl Story {
    /// Nodes 1, 2 and 3 have writes 1 and 2; 4 and 5 are to spare.
    fn of_three(mutant: Option<Mutant>) -> Self {
        let mut s = Self::among(5, 3, 2, mutant);
        s.wait(100);
        s.write(1, 1);
        s.write(1, 2);
        s
    }

    /// These nodes reach each other, and nobody reaches the others.
    pub fn connect(&mut self, nodes: &[u64]) {
        let all: Vec<u64> = self.members.keys().copied().collect();
        self.cut.clear();
        for (i, a) in all.iter().enumerate() {
            for b in &all[i + 1..] {
                let up = nodes.contains(a) && nodes.contains(b);
                if !up {
                    self.cut.extend([(*a, *b), (*b, *a)]);
                }
                self.link(*a, *b, up);
            }
        }
        self.settle();
    }

    /// An operator says that the survivors go on, head first, with new members behind them.
    fn force(&mut self, survivors: &[u64], new: &[u64], hear: &[u64]) {
        survivors.iter().for_each(|n| self.tell(*n));
        self.active_members = self.view_members().to_vec();
        let best = self.status(survivors[0]);
        let least = best.log.last.sequence;
        self.same = if best.log.has_view { least } else { best.committed.min(least) };
        let nodes = |of: &[u64]| of.iter().copied().map(NodeId).collect::<Vec<_>>();
        (self.joining, self.chain) = (nodes(new), nodes(&[survivors, new].concat()));
        let known = survivors.iter().map(|n| self.status(*n).committed).max().unwrap_or_default();
        self.forced = Some(Forced { survivors: nodes(survivors), least, known, gives_up: 0 });
        self.generation = self.generation.next().next();
        self.pending = None;
        hear.iter().for_each(|n| self.tell(*n));
    }

    /// The frame of the newest view, and the one before it.
    fn break_in(&self, n: u64) -> (Frame, Frame) {
        let log: Vec<&Frame> = self.members[&n].log.values().collect();
        let at = log.iter().rposition(|f| f.head.kind() == FrameKind::View).expect("a view was opened");
        (log[at - 1].clone(), log[at].clone())
    }
}

/// Two of three members are lost. The third has all that was answered, and nobody can know that: it goes on by force, and
/// two new members learn what it has. It was the head, and knows the token, which is not to be used.
#[test]
fn the_last_survivor_goes_on_by_force() {
    for mutant in [None, Some(Mutant::BranchNamesTheToken)] {
        let mut s = Story::of_three(mutant);
        s.connect(&[1, 4, 5]);
        s.wait(1000);
        let before = s.status(1).view;
        s.force(&[1], &[4, 5], &[1, 4, 5]);
        s.wait(500);
        assert_eq!((s.status(1).state, s.status(4).state), ("active", "following"), "{:?}", s.members[&1].notes);
        assert_eq!((s.numbers(1), s.numbers(4), s.numbers(5)), (vec![1, 2], vec![1, 2], vec![1, 2]));
        assert!(s.status(1).view > before);
        let (last, begins) = s.break_in(1);
        assert_eq!(begins.head.is_branch(), mutant.is_none(), "V10");
        assert_eq!(begins.header().parent_token() == last.header().hid(), mutant.is_none(), "V10");
        assert_eq!(hide(&begins.header().parent_token()) == last.header().hid(), mutant.is_some(), "V10");
        if mutant.is_some() {
            continue;
        }
        s.write(1, 3);
        assert_eq!((s.numbers(4), s.numbers(5)), (vec![1, 2, 3], vec![1, 2, 3]));
        // The next view follows as any does: with a token.
        s.joining.clear();
        s.move_head(4, &[1, 4, 5]);
        s.wait(300);
        assert_eq!(s.status(4).state, "active", "{:?}", s.members[&4].notes);
        let (last, next) = s.break_in(4);
        assert!(!next.head.is_branch() && hide(&next.header().parent_token()) == last.header().hid());
        s.write(4, 4);
        assert_eq!((s.numbers(1), s.numbers(5)), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
    }
}

/// Members enough have answered after all, and the slice of one came a moment later than its answer. The break was made at once,
/// though nothing was lost: all others began anew.
#[test]
fn slices_that_are_late_are_waited_for() {
    for are_lost in [false, true] {
        let mut s = Story::of_three(None);
        s.connect(&[2, 3, 4, 5]);
        s.tampers = |from, m| match m {
            Message::SealAnswer(a) if from == 3 => a.given = Given::Nothing,
            _ => {}
        };
        s.force(&[2, 3], &[4], &[2, 3, 4]);
        s.wait(500);
        assert_eq!(s.status(2).state, "opening", "{:?}", s.members[&2].notes);
        if !are_lost {
            s.tampers = |_, _| {};
        }
        s.wait(1500);
        assert_eq!(s.status(2).state, "active", "{:?}", s.members[&2].notes);
        assert_eq!(s.break_in(2).1.head.is_branch(), are_lost);
        assert_eq!(s.numbers(4), [1, 2]);
    }
}

/// Slices are lost for good, and a node comes and goes all the time: one of another shard, or a member that says nothing. Each
/// of its links was waited for as if it were to bring a slice, so that the shard stayed shut for as long.
#[test]
fn who_comes_and_goes_does_not_keep_a_branch_shut() {
    for other in [1, 5] {
        let mut s = Story::of_three(None);
        s.connect(&[2, 3, 4]);
        s.tampers = |from, m| match m {
            Message::SealAnswer(a) if from == 3 => a.given = Given::Nothing,
            _ => {}
        };
        s.force(&[2, 3], &[4], &[2, 3, 4]);
        for _ in 0..10 {
            s.link(2, other, true);
            s.wait(200);
            s.link(2, other, false);
            s.wait(100);
        }
        assert_eq!(s.status(2).state, "active", "{other}: {:?}", s.members[&2].notes);
        assert!(s.break_in(2).1.head.is_branch());
    }
}

/// Without the operator's word nothing of this happens, and without the control plane's no member takes such a frame.
#[test]
fn nobody_goes_on_by_force_unasked() {
    let mut s = Story::of_three(None);
    s.connect(&[1, 4, 5]);
    s.replace(&[1, 4, 5], &[4, 5], &[1, 4, 5]);
    s.wait(5000);
    assert_eq!((s.active, s.numbers(4)), (ViewNumber(1), vec![]));
    s.force(&[1], &[4, 5], &[1]);
    s.wait(1000);
    assert_eq!(s.status(1).state, "opening", "{:?}", s.members[&4].notes);
    assert_eq!((s.status(4).view, s.numbers(4)), (ViewNumber(1), vec![1, 2]), "what was before is no branch");
    assert!(s.says(4, "does not fit its seal"), "{:?}", s.members[&4].notes);
    s.tell(4);
    s.wait(1000);
    assert_eq!(s.status(1).state, "active", "{:?}", s.members[&1].notes);
}

/// One of the members that were taken for lost is there after all: the usual rule is enough, and nothing is lost.
#[test]
fn who_is_there_after_all_is_heard() {
    let mut s = Story::of_three(None);
    s.connect(&[1, 2]);
    s.write(1, 3);
    assert_eq!((s.numbers(2), s.numbers(3)), (vec![1, 2, 3], vec![1, 2]));
    s.connect(&[2, 3, 4, 5]);
    // Its disk is slow, and its promise comes late.
    s.members.get_mut(&2).unwrap().holds_back = true;
    s.force(&[3], &[4, 5], &[3, 4, 5]);
    s.wait(500);
    assert_eq!(s.status(3).state, "opening", "{:?}", s.members[&3].notes);
    s.members.get_mut(&2).unwrap().holds_back = false;
    s.wait(2000);
    assert_eq!((s.status(3).state, s.numbers(3)), ("active", vec![1, 2, 3]), "{:?}", s.members[&3].notes);
    assert!(!s.break_in(3).1.head.is_branch());
}

/// It is not waited for without end.
#[test]
fn who_is_there_and_says_nothing_is_not_waited_for() {
    let mut s = Story::of_three(None);
    s.connect(&[2, 3, 4, 5]);
    s.members.get_mut(&2).unwrap().holds_back = true;
    s.force(&[3], &[4, 5], &[3, 4, 5]);
    s.wait(2000);
    assert_eq!((s.status(3).state, s.numbers(3)), ("active", vec![1, 2]), "{:?}", s.members[&3].notes);
    assert!(s.break_in(3).1.head.is_branch());
}

/// A survivor that had missed writes goes on. Whoever had more comes back, and is to be a member again: it has committed
/// frames that the chain does not have.
#[test]
fn what_was_lost_does_not_come_back() {
    for mutant in [None, Some(Mutant::LostLogsGoOn)] {
        let mut s = Story::of_three(mutant);
        s.connect(&[1, 3]);
        s.write(1, 3);
        s.write(1, 4);
        assert_eq!((s.numbers(3), s.numbers(2)), (vec![1, 2, 3, 4], vec![1, 2]));
        assert!(s.status(3).committed > s.status(2).last.sequence);
        s.connect(&[2, 4, 5]);
        s.force(&[2], &[4, 5], &[2, 4, 5]);
        s.wait(1000);
        assert_eq!((s.status(2).state, s.numbers(4)), ("active", vec![1, 2]), "{:?}", s.members[&2].notes);
        assert!(s.break_in(2).1.head.is_branch());
        s.write(2, 5);
        s.write(2, 6);
        // One of them is no member, and lets go of what it has; the other one takes a place.
        s.connect(&[1, 2, 3, 4, 5]);
        s.step(1, Event::Left { shard: SHARD, active: s.active });
        s.replace(&[2, 4, 3], &[3], &[2, 3, 4]);
        s.wait(2000);
        let ends = (s.status(3).state, s.numbers(3));
        if mutant.is_some() {
            assert_ne!(ends, ("following", vec![1, 2, 5, 6]));
            continue;
        }
        assert_eq!(ends, ("following", vec![1, 2, 5, 6]), "{:?}", s.members[&3].notes);
        assert_eq!(s.numbers(1), Vec::<u64>::new());
        assert_eq!((s.numbers(2), s.numbers(4)), (vec![1, 2, 5, 6], vec![1, 2, 5, 6]));
    }
}

/// Five members, of which two survive. The head that goes on by force is lost before its view is active, and the other one
/// does the same, from its own log.
#[test]
fn another_survivor_goes_on_from_before_a_branch_that_never_became_active() {
    let mut s = Story::among(7, 5, 3, None);
    s.wait(100);
    s.write(1, 1);
    s.write(1, 2);
    s.connect(&[1, 2, 6, 7]);
    s.refuses = Some(Error::retry("the control plane is not to be reached"));
    s.force(&[1, 2], &[6, 7], &[1, 2, 6, 7]);
    s.wait(1000);
    assert_eq!(s.status(1).state, "opening", "{:?}", s.members[&1].notes);
    let first = s.break_in(2).1;
    assert!(first.head.is_branch(), "{:?}", s.members[&2].notes);
    s.refuses = None;
    s.connect(&[2, 6, 7]);
    s.force(&[2], &[6, 7], &[2, 6, 7]);
    s.wait(3000);
    assert_eq!((s.status(2).state, s.numbers(7)), ("active", vec![1, 2]), "{:?}", s.members[&2].notes);
    let (last, begins) = s.break_in(2);
    assert!(begins.head.is_branch() && last.head.kind() != FrameKind::View);
    assert_eq!(begins.head.seq(), first.head.seq());
    s.write(2, 3);
    assert_eq!(s.numbers(6), [1, 2, 3]);
}

/// All members with the newest view are lost. Who was a member before it, and keeps what it had, goes on; all of that view
/// is lost.
#[test]
fn a_former_member_goes_on_from_what_it_kept() {
    let mut s = Story::of_three(None);
    s.connect(&[1, 2, 4]);
    s.replace(&[1, 2, 4], &[4], &[1, 2, 4]);
    s.write(1, 3);
    assert_eq!((s.active, s.numbers(4)), (ViewNumber(2), vec![1, 2, 3]));
    s.connect(&[3, 5]);
    s.force(&[3], &[5], &[3, 5]);
    s.wait(1000);
    assert_eq!((s.status(3).state, s.numbers(5)), ("active", vec![1, 2]), "{:?}", s.members[&3].notes);
    let (last, begins) = s.break_in(3);
    assert!(begins.head.is_branch() && last.head.view() == ViewNumber(1));
    // Another one of them does not come back with what it has of the lost view.
    s.connect(&[1, 3, 5]);
    s.replace(&[3, 5, 1], &[1], &[1, 3, 5]);
    s.wait(1000);
    s.write(3, 4);
    assert_eq!((s.status(1).state, s.numbers(1)), ("following", vec![1, 2, 4]), "{:?}", s.members[&1].notes);
}

/// The log of a former member ends with frames that were cut when the lost view was opened, and goes on from there. Members of
/// that view had others in their places, and knew them to be committed: they begin anew, however short their logs are.
#[test]
fn the_end_of_an_older_log_is_not_what_the_lost_view_had() {
    for is_trusted in [false, true] {
        let mut s = Story::of_three(None);
        s.move_head(3, &[1, 2, 3]);
        s.wait(300);
        s.connect(&[3]);
        (3..=9).for_each(|n| s.write(3, n));
        s.connect(&[1, 2, 4]);
        s.replace(&[1, 2, 4], &[4], &[1, 2, 4]);
        s.wait(1000);
        s.write(1, 10);
        assert_eq!((s.numbers(1), s.numbers(4)), (vec![1, 2, 10], vec![1, 2, 10]), "{:?}", s.members[&1].notes);
        s.connect(&[3, 5]);
        s.force(&[3], &[5], &[3, 5]);
        let least = s.status(3).log.last.sequence;
        assert!(s.same < s.status(1).committed && s.status(1).committed < least);
        if is_trusted {
            s.same = least;
        }
        s.wait(1000);
        assert_eq!((s.status(3).state, s.numbers(5)), ("active", (1..=9).collect()), "{:?}", s.members[&3].notes);
        s.connect(&[1, 3, 5]);
        s.replace(&[3, 5, 1], &[1], &[1, 3, 5]);
        s.wait(1000);
        s.write(3, 11);
        let ends = (s.status(1).state, s.numbers(1) == (1..=9).chain([11]).collect::<Vec<_>>());
        assert_eq!(ends == ("following", true), !is_trusted, "{ends:?}: {:?}", s.members[&1].notes);
    }
}

/// A survivor that was named dies before it has promised. The operator looks again, and leaves it out; the members stay.
#[test]
fn an_operator_names_fewer_survivors() {
    let mut s = Story::of_three(None);
    s.connect(&[1, 4, 5]);
    s.force(&[1], &[4, 5], &[]);
    let word = |survivors: &[u64], least| {
        let survivors = survivors.iter().copied().map(NodeId).collect();
        Some(Forced { survivors, least, known: least, gives_up: 0 })
    };
    let least = s.status(1).log.last.sequence;
    for (survivors, state) in [(&[1, 2][..], "opening"), (&[1], "active")] {
        s.forced = word(survivors, least);
        s.pending = None;
        [1, 4, 5].iter().for_each(|n| s.tell(*n));
        s.wait(3000);
        assert_eq!(s.status(1).state, state, "{:?}", s.members[&1].notes);
    }
    assert_eq!((s.numbers(4), s.numbers(5)), (vec![1, 2], vec![1, 2]));
}

/// A survivor in the chain is slow, and a view is active before it has the view's frame. It has everything of the view before,
/// so it cuts at the seal and keeps the rest: it was taken for one of those that were lost, and forgot all that it had, old
/// chunks too. Nobody learned them from anybody else. It happened even if the view was sealed as usual in the end.
#[test]
fn a_slow_survivor_keeps_what_it_has() {
    for (lost_are_back, mutant) in [(false, None), (true, None), (false, Some(Mutant::SurvivorsBeginAnew))] {
        let mut s = Story::of_three(mutant);
        s.connect(&[1, 2, 4]);
        s.force(&[1, 2], &[4], &[]);
        // Nobody knows how far older logs are the same, as after a rebuild.
        s.same = Sequence(0);
        if !lost_are_back {
            // It takes all three to seal the view as usual.
            s.seals_with = Some(3);
        }
        [1, 2, 4].iter().for_each(|n| s.tell(*n));
        // It promises, and what it asks for does not arrive.
        s.tampers = |from, m| match m {
            Message::Sync(r) if from == 2 => r.shard = ShardId::new(99, 0),
            _ => {}
        };
        s.wait(2000);
        assert_eq!((s.status(1).state, s.numbers(4)), ("active", vec![1, 2]), "{:?}", s.members[&1].notes);
        let begins = s.break_in(1).1;
        assert_eq!((begins.head.is_branch(), s.branch.view.0 > 0), (!lost_are_back, !lost_are_back));
        let old = s.status(2);
        assert!(old.view < s.active && old.committed > s.branch.at);
        s.tell(2);
        s.tampers = |_, _| {};
        // It asks again after longer and longer pauses.
        s.wait(5000);
        assert_eq!(s.says(2, "begins anew"), mutant.is_some(), "{:?}", s.members[&2].notes);
        s.write(1, 3);
        assert_eq!((s.status(2).state, s.numbers(2)), ("following", vec![1, 2, 3]), "{:?}", s.members[&2].notes);
    }
}

/// Of five members two are back, one of them after the operator has looked, and it has answered writes that the named one lacks.
/// The head went on from less than was there.
#[test]
fn who_is_back_after_the_operator_looked_is_seen() {
    let mut s = Story::among(7, 5, 3, None);
    s.wait(100);
    s.write(1, 1);
    s.connect(&[1, 2, 4]);
    s.write(1, 2);
    assert_eq!((s.numbers(2), s.numbers(3)), (vec![1, 2], vec![1]));
    s.connect(&[3, 6, 7]);
    s.force(&[3], &[6, 7], &[]);
    s.connect(&[2, 3, 6, 7]);
    [3, 6, 7].iter().for_each(|n| s.tell(*n));
    s.wait(5000);
    assert_eq!(s.status(3).state, "opening", "{:?}", s.members[&3].notes);
    let waits = s.status(3).waits.unwrap_or_default();
    assert!(waits.contains("node 2 is back"), "{waits}");
    // The operator looks again.
    s.force(&[2, 3], &[6, 7], &[2, 3, 6, 7]);
    s.wait(3000);
    assert_eq!((s.status(2).state, s.numbers(6)), ("active", vec![1, 2]), "{:?}", s.members[&2].notes);
}

/// New members had everything but the frame of the branch, and let that go: they heard of the operator's word only later. The
/// head took them for level, and nobody asked again.
#[test]
fn who_hears_of_the_word_late_follows_all_the_same() {
    let mut s = Story::of_three(None);
    s.connect(&[1, 4, 5]);
    s.force(&[1], &[4, 5], &[]);
    let word = s.forced.take();
    [4, 5].iter().for_each(|n| s.tell(*n));
    s.forced = word;
    s.tell(1);
    s.wait(3000);
    assert_eq!(s.status(1).state, "opening", "{:?}", s.members[&1].notes);
    let refused = |n: &String| n.contains("does not fit its seal");
    assert!(s.members[&4].notes.iter().any(refused), "{:?}", s.members[&4].notes);
    [4, 5].iter().for_each(|n| s.tell(*n));
    s.wait(2000);
    assert_eq!((s.status(1).state, s.status(4).state), ("active", "following"), "{:?}", s.members[&4].notes);
}
