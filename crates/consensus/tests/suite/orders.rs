//! Rule L5: orders of a leader are given behind a quorum that says so, and end with the lead.

use freebs_consensus::doubts::Led;
use freebs_consensus::orders::{Orders, Step};
use freebs_consensus::{Mutant, Seat};
use freebs_control::Command;
use freebs_types::{NodeId, ShardId};

const LEAD: Led = Led { by: Seat { node: NodeId(1), store: 9 }, term: 4 };
const NEXT: Led = Led { by: Seat { node: NodeId(2), store: 8 }, term: 5 };

fn command(n: u64) -> Command {
    Command::MoveHead { shard: ShardId::new(1, 0), node: NodeId(n) }
}

fn orders(mutant: Option<Mutant>) -> Orders {
    Orders::new(LEAD, vec![command(2), command(3)], vec![(NodeId(5), "has failed".into())], mutant)
}

/// The answers given while a quorum answers this, and the leads are these, one for each step.
fn given(mut orders: Orders, goes_on: bool, leads: &[Option<Led>]) -> (Vec<Command>, usize) {
    let (mut given, mut told) = (Vec::new(), 0);
    for now in leads {
        match orders.next(*now) {
            Step::Confirm => told += orders.confirm(goes_on).len(),
            Step::Give(command) => given.push(command),
            Step::End => break,
        }
    }
    (given, told)
}

#[test]
fn they_are_given_in_order_behind_a_quorum_that_says_so() {
    let mut one = orders(None);
    assert_eq!((one.lead(), one.left().count(), one.failed().len()), (LEAD, 2, 1));
    assert_eq!(one.next(Some(LEAD)), Step::Confirm);
    assert_eq!(one.next(Some(LEAD)), Step::Confirm, "without an answer nothing is given");
    assert_eq!(one.confirm(true), [(NodeId(5), "has failed".to_owned())]);
    assert_eq!(one.next(Some(LEAD)), Step::Give(command(2)));
    assert_eq!(one.next(Some(LEAD)), Step::Give(command(3)));
    assert_eq!(one.next(Some(LEAD)), Step::End);
}

#[test]
fn who_is_not_confirmed_orders_nothing_and_people_hear_of_nothing() {
    let mut one = orders(None);
    assert_eq!((one.next(Some(LEAD)), one.confirm(false)), (Step::Confirm, vec![]));
    assert_eq!((one.failed().len(), one.next(Some(LEAD))), (0, Step::End), "it is not asked again and again");
    let (given, told) = given(orders(None), false, &[Some(LEAD); 5]);
    assert_eq!((given, told), (vec![], 0));
}

/// Another leader, another term of the same one, or nobody: each ends them, at whatever step.
#[test]
fn they_end_with_the_lead() {
    for now in [Some(NEXT), Some(Led { term: 6, ..LEAD }), None] {
        assert!(!orders(None).go_on(now));
        for before in 0..3 {
            let leads: Vec<Option<Led>> = std::iter::repeat_n(Some(LEAD), before).chain([now; 4]).collect();
            let (given, told) = given(orders(None), true, &leads);
            assert_eq!((given.len(), told), (before.saturating_sub(1), before.min(1)), "{now:?} after {before} steps");
        }
    }
}

#[test]
fn without_the_rule_they_go_on_for_ever() {
    let leads = [Some(NEXT), None, Some(NEXT), None];
    let given = given(orders(Some(Mutant::LeaderUnconfirmed)), false, &leads);
    assert_eq!(given, (vec![command(2), command(3)], 1));
    assert!(orders(Some(Mutant::LeaderUnconfirmed)).go_on(None));
}
