//! The word of a node on another one that it is asked about.

use freebs_consensus::reach::Attempt;
use freebs_types::NodeId;

const ME: NodeId = NodeId(1);
const OTHER: NodeId = NodeId(2);

#[test]
fn nobody_has_a_word_on_itself() {
    assert_eq!(Attempt::new(ME, ME, 0), None);
    assert!(Attempt::new(ME, OTHER, 0).is_some());
}

#[test]
fn a_refusal_from_before_the_question_says_nothing() {
    let attempt = Attempt::new(ME, OTHER, 3).unwrap();
    assert_eq!([0, 3, 4].map(|refusals| attempt.is_refused(refusals)), [false, false, true]);
}

#[test]
fn one_that_is_silent_is_tried_for_a_while() {
    let mut attempt = Attempt::new(ME, OTHER, 0).unwrap();
    let mut times = 0;
    while attempt.is_open() {
        assert!(!attempt.is_refused(0));
        attempt.tried();
        times += 1;
    }
    assert_eq!(times, 10);
    attempt.tried();
    assert!(!attempt.is_open() && attempt.is_refused(1));
}
