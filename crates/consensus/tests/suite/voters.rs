//! Who votes: a table, and a cluster of pure numbers that must come to rest with the right voters.

use freebs_consensus::Seat;
use freebs_consensus::voters::{Change, Seen, count_of, next_change};
use freebs_types::NodeId;
use proptest::prelude::*;
use std::collections::BTreeSet;

const GONE: u64 = 60_000;

fn seat(node: u64, store: u64) -> Seat {
    Seat { node: NodeId(node), store }
}

fn seen(node: u64, store: u64, voter: bool, silent_ms: u64) -> Seen {
    Seen { seat: seat(node, store), voter, silent_ms, caught_up: true, retires: false }
}

fn change(seats: &[Seen]) -> Option<Vec<u64>> {
    match next_change(seats, seat(1, 1), GONE)? {
        Change::Voters(v) => Some(v.iter().map(|s| s.node.0 * 10 + s.store).collect()),
        Change::Forget(s) => Some(vec![0, s.node.0 * 10 + s.store]),
    }
}

/// What it is about, the seats, and the change: `node * 10 + store` of the voters, or 0 and who is forgotten.
type Case = (&'static str, Vec<Seen>, Option<Vec<u64>>);

#[test]
fn a_table_of_changes() {
    let leader = seen(1, 1, true, 0);
    let l = |n| seen(n, 1, false, 0);
    let v = |n| seen(n, 1, true, 0);
    let gone = |n, voter| seen(n, 1, voter, GONE);
    let late = Seen { caught_up: false, ..l(3) };
    let out = |n, voter| Seen { retires: true, ..seen(n, 1, voter, 0) };
    let cases: [Case; 25] = [
        ("one node", vec![leader], None),
        ("two nodes: one voter", vec![leader, l(2)], None),
        ("three", vec![leader, l(2), l(3)], Some(vec![11, 21, 31])),
        ("one of them is not there yet", vec![leader, l(2), late], None),
        ("four: three voters", vec![leader, v(2), v(3), l(4)], None),
        ("five", vec![leader, v(2), v(3), l(4), l(5)], Some(vec![11, 21, 31, 41, 51])),
        ("more", vec![leader, v(2), v(3), v(4), v(5), l(6), l(7)], None),
        ("one is gone", vec![leader, v(2), gone(3, true), l(4)], Some(vec![11, 21, 41])),
        ("nobody to replace it", vec![leader, v(2), gone(3, true)], None),
        (
            "a store was lost",
            vec![leader, v(2), seen(3, 1, true, 500), seen(3, 2, false, 0), l(4)],
            Some(vec![11, 21, 32]),
        ),
        ("and is forgotten", vec![leader, v(2), seen(3, 1, false, GONE), seen(3, 2, true, 0)], Some(vec![0, 31])),
        ("one retires, and another one is there", vec![leader, v(2), out(3, true), l(4)], Some(vec![11, 21, 41])),
        ("and is forgotten", vec![leader, v(2), v(4), out(3, false)], Some(vec![0, 31])),
        ("one of five retires: three", vec![leader, v(2), v(3), v(4), out(5, true)], Some(vec![11, 21, 31])),
        ("one of five, and one is gone", vec![leader, gone(2, true), v(3), v(4), out(5, true)], Some(vec![11, 31, 41])),
        ("one of five, and two are gone", vec![leader, gone(2, true), gone(3, true), v(4), out(5, true)], None),
        (
            "one of five, and one was not heard just now",
            { vec![leader, seen(2, 1, true, 3000), v(3), v(4), out(5, true)] },
            Some(vec![11, 31, 41]),
        ),
        (
            "one of five, and two were not heard just now",
            { vec![leader, seen(2, 1, true, 3000), seen(3, 1, true, 3000), v(4), out(5, true)] },
            None,
        ),
        (
            "who is to vote in its place was not heard just now",
            vec![leader, v(2), out(3, true), seen(4, 1, false, 3000)],
            None,
        ),
        (
            "one that retires, and one that is gone: that one first",
            { vec![leader, gone(2, true), out(3, true), l(4)] },
            Some(vec![11, 31, 41]),
        ),
        ("the leader retires", vec![Seen { retires: true, ..leader }, v(2), v(3), l(4)], Some(vec![21, 31, 41])),
        ("the only vote stays where it is", vec![Seen { retires: true, ..leader }, l(2)], None),
        ("the leader retires, and nobody else is there", vec![Seen { retires: true, ..leader }, v(2), v(3)], None),
        ("one of three: never fewer", vec![leader, v(2), out(3, true)], None),
        ("a new store of which nothing is known yet", vec![leader, v(2), v(3), seen(3, 2, false, 0)], None),
    ];
    for (what, seats, wanted) in cases {
        assert_eq!(change(&seats), wanted, "{what}");
    }
}

proptest! {
    /// Applied again and again to nodes that stay as they are, it comes to rest: with 1, 3 or 5 voters, as many as
    /// there are nodes for, all of them there if there are enough, the leader among them; and no step loses a voter
    /// that is there.
    #[test]
    fn it_comes_to_rest(nodes in proptest::collection::vec((any::<bool>(), any::<bool>(), 1u64..3), 1..12)) {
        let mut seats = vec![seen(1, 1, true, 0)];
        for (i, (silent, voter, store)) in nodes.iter().enumerate() {
            let silent_ms = if *silent { GONE + 1 } else { 10 };
            let voters = seats.iter().filter(|s| s.voter).count();
            seats.push(seen(2 + i as u64 / 2, store * 2 + i as u64 % 2, *voter && voters < 3, silent_ms));
        }
        if seats.iter().filter(|s| s.voter).count() == 2 {
            seats.iter_mut().skip(1).for_each(|s| s.voter = false);
        }
        let mut steps = 0;
        while let Some(change) = next_change(&seats, seat(1, 1), GONE) {
            steps += 1;
            prop_assert!(steps < 40, "it never rests");
            match change {
                Change::Voters(voters) => {
                    let before: BTreeSet<Seat> = seats.iter().filter(|s| s.voter).map(|s| s.seat).collect();
                    prop_assert!(voters.contains(&seat(1, 1)) && voters.len() >= before.len());
                    prop_assert!(before.difference(&voters).count() <= 1, "one at a time");
                    prop_assert!(matches!(voters.len(), 1 | 3 | 5));
                    seats.iter_mut().for_each(|s| s.voter = voters.contains(&s.seat));
                }
                Change::Forget(gone) => {
                    prop_assert!(seats.iter().any(|s| s.seat == gone && !s.voter));
                    seats.retain(|s| s.seat != gone);
                }
            }
        }
        let there: BTreeSet<u64> = seats.iter().filter(|s| s.silent_ms < GONE).map(|s| s.seat.node.0).collect();
        let voting: BTreeSet<u64> = seats.iter().filter(|s| s.voter && s.silent_ms < GONE).map(|s| s.seat.node.0).collect();
        let voters = seats.iter().filter(|s| s.voter).count();
        prop_assert!(voting.len() >= voters.min(there.len()), "{seats:?}");
        prop_assert!(voters >= count_of(there.len()), "{seats:?}");
    }
}
