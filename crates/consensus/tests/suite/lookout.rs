//! The leader's look at the nodes: since when silence counts, who is asked, and how long orders are on their way.

use crate::failures::{cluster, volume};
use freebs_consensus::doubts::Led;
use freebs_consensus::lookout::{Findings, Lookout, Sight};
use freebs_consensus::{Room, Seat, Timing};
use freebs_control::{Command, State};
use freebs_types::{NodeId, StartNumber};

const LEAD: Led = Led { by: Seat { node: NodeId(1), store: 9 }, term: 4 };

/// The findings of the leader on node 1 at that time; `seen` are the other nodes, from 2 on.
fn look(l: &mut Lookout, now_ms: u64, state: &State, seen: &[Sight]) -> Findings {
    look_in(LEAD, l, now_ms, state, seen)
}

fn look_in(lead: Led, l: &mut Lookout, now_ms: u64, state: &State, seen: &[Sight]) -> Findings {
    l.look(now_ms, &Timing::default(), state, (lead, Room::default()), |node| {
        assert_ne!(node, lead.by.node, "the leader is there");
        seen[node.0 as usize - 2]
    })
}

fn heard(heard_ms: u64) -> Sight {
    Sight { heard_ms, worked_ms: heard_ms, ..Sight::default() }
}

fn lost(heard_ms: u64) -> Sight {
    Sight { lost: true, ..heard(heard_ms) }
}

/// Nodes that are taken for failed, with the reasons.
fn failed(findings: &Findings) -> Vec<(u64, String)> {
    let failed = findings.orders.iter().flat_map(|o| o.failed());
    failed.map(|(node, why)| (node.0, why.clone())).collect()
}

fn names(findings: &Findings) -> Vec<u64> {
    failed(findings).into_iter().map(|(node, _)| node).collect()
}

fn orders(findings: &Findings) -> Vec<Command> {
    findings.orders.iter().flat_map(|o| o.left()).cloned().collect()
}

/// A cluster of five nodes, each of which is head of something.
fn busy() -> State {
    let mut s = cluster(5);
    (0..20).for_each(|i| drop(volume(&mut s, &format!("v{i}"))));
    s
}

#[test]
fn silence_counts_from_the_begin_of_a_lead() {
    let (mut l, s) = (Lookout::default(), busy());
    l.follow(Some(NodeId(5)));
    assert_eq!(l.leads_since(), None);
    let silent = [heard(0), heard(0), heard(0), heard(49_990)];
    assert_eq!(look(&mut l, 50_000, &s, &silent), Findings::default());
    assert_eq!(l.leads_since(), Some(50_000));
    assert_eq!(look(&mut l, 50_900, &s, &silent), Findings::default());
    // Of the one that led before it was known all the time when it was heard.
    let found = look(&mut l, 50_990, &s, &silent);
    assert_eq!(names(&found), [5]);
    assert_eq!(failed(&found)[0].1, "has failed: nothing was heard of it for 1000 ms");
    l.settle(LEAD);
    let there = [heard(51_000), heard(51_000), heard(0), heard(51_000)];
    assert_eq!(names(&look(&mut l, 51_000, &s, &there)), [4]);
}

/// A node that led, and was silent for long when it was replaced, has the time to answer like any other.
#[test]
fn who_led_before_can_answer_first() {
    let (mut l, s) = (Lookout::default(), busy());
    l.follow(Some(NodeId(5)));
    l.follow(None);
    let seen = [heard(9000), heard(9000), heard(9000), heard(2000)];
    assert_eq!(look(&mut l, 9000, &s, &seen), Findings::default());
    assert_eq!(look(&mut l, 9199, &s, &seen), Findings::default());
    assert_eq!(names(&look(&mut l, 9200, &s, &seen)), [5]);
}

#[test]
fn others_that_are_there_are_asked_about_one_that_is_lost() {
    let (mut l, s) = (Lookout::default(), busy());
    assert_eq!(look(&mut l, 1000, &s, &[heard(1000); 4]), Findings::default());
    let seen = [heard(1000), lost(1000), heard(1000), lost(1000)];
    let ask: Vec<_> = [(2, 3), (4, 3), (2, 5), (4, 5)].map(|(a, b)| (NodeId(a), NodeId(b))).into();
    assert_eq!(look(&mut l, 1500, &s, &seen), Findings { ask, ..Findings::default() });
    l.agree(1505, NodeId(3), NodeId(3));
    l.agree(1505, NodeId(5), NodeId(5));
    assert_eq!(look(&mut l, 1506, &s, &seen), Findings::default(), "nobody has a word on itself");
    l.agree(1510, NodeId(2), NodeId(3));
    let found = look(&mut l, 1600, &s, &seen);
    assert_eq!(orders(&found), [Command::FailOver { nodes: vec![(NodeId(3), StartNumber(3))] }]);
    let why = "has failed: its connections are closed, and another node can't reach it either";
    assert_eq!(failed(&found), [(3, why.to_owned())]);
    assert_eq!(found.orders.unwrap().lead(), LEAD);
}

#[test]
fn nothing_more_is_ordered_while_orders_are_on_their_way() {
    let (mut l, s) = (Lookout::default(), busy());
    let seen = [heard(5000), heard(5000), heard(0), heard(5000)];
    look(&mut l, 1000, &s, &seen);
    assert_eq!(names(&look(&mut l, 5000, &s, &seen)), [4]);
    assert_eq!(look(&mut l, 5100, &s, &[heard(0); 4]), Findings::default());
    l.settle(Led { term: 3, ..LEAD });
    assert_eq!(look(&mut l, 5150, &s, &seen), Findings::default(), "those of an earlier lead are others");
    l.settle(LEAD);
    assert_eq!(names(&look(&mut l, 5200, &s, &seen)), [4], "they were dropped, so they are given again");
}

/// The same seat leads again, and did not notice between two looks that it led no more: what it knew is old, what it ordered
/// ends with the lead before.
#[test]
fn another_term_is_another_lead() {
    let (mut l, s) = (Lookout::default(), busy());
    let seen = [heard(5000), heard(5000), heard(0), lost(5000)];
    look(&mut l, 1000, &s, &seen);
    assert_eq!(names(&look(&mut l, 5000, &s, &seen)), [4]);
    let next = Led { term: 6, ..LEAD };
    let found = look_in(next, &mut l, 5100, &s, &seen);
    assert_eq!((names(&found), l.leads_since()), (vec![], Some(5100)));
    assert!(!found.ask.is_empty(), "others are asked anew");
    let there = [heard(6100), heard(6100), heard(0), heard(6100)];
    assert_eq!(names(&look_in(next, &mut l, 6100, &s, &there)), [4]);
    l.settle(LEAD);
    assert_eq!(look_in(next, &mut l, 6200, &s, &there), Findings::default(), "its own are on their way");
    l.settle(next);
    assert_eq!(names(&look_in(next, &mut l, 6300, &s, &there)), [4]);
}

/// The first failure of a new leader is the one that it leads for.
#[test]
fn a_leader_that_was_given_up_has_failed_for_the_next_one_from_the_beginning() {
    let (mut l, s) = (Lookout::default(), busy());
    l.follow(Some(NodeId(5)));
    l.give_up(7000, NodeId(5), StartNumber(3));
    let seen = [heard(7000), heard(7000), heard(7000), lost(6990)];
    assert_eq!(names(&look(&mut l, 7020, &s, &seen)), [5]);
    // It is told once: a later lead of this seat finds out for itself.
    l.settle(LEAD);
    l.follow(Some(NodeId(2)));
    assert_eq!(look(&mut l, 7100, &s, &seen).orders, None);
    assert_eq!(l.leads_since(), Some(7100));
}

/// The leader's node was given up, and was started again before the next one led, which had no link to it yet. The start that
/// nobody had given up was taken for failed: a change of views for nothing.
#[test]
fn a_leader_that_was_given_up_and_started_again_has_not_failed() {
    let (mut l, mut s) = (Lookout::default(), busy());
    l.follow(Some(NodeId(5)));
    l.give_up(7000, NodeId(5), StartNumber(3));
    let address = s.node(NodeId(5)).unwrap().address.clone();
    let again =
        Command::RegisterNode { node: NodeId(5), name: "n5".into(), address, workers: 1, start: StartNumber(4) };
    s.apply(again).unwrap();
    let seen = [heard(7000), heard(7000), heard(7000), lost(6990)];
    let found = look(&mut l, 7020, &s, &seen);
    assert_eq!(found.orders, None);
    assert!(found.ask.contains(&(NodeId(2), NodeId(5))), "others are asked about the new start");
}

#[test]
fn one_that_never_ran_has_no_say() {
    let (mut l, mut s) = (Lookout::default(), busy());
    let (name, address) = ("n6".to_owned(), "10.0.0.6:7400".to_owned());
    let new = Command::RegisterNode { node: NodeId(6), name, address, workers: 1, start: StartNumber(0) };
    s.apply(new).unwrap();
    // Seen are nodes 2 to 5 only.
    assert_eq!(look(&mut l, 1000, &s, &[heard(1000); 4]), Findings::default());
}
