//! Which node a gateway follows.

use freebs_agent::Following;
use freebs_types::ErrorKind;

fn order(f: Following, count: usize) -> Vec<usize> {
    f.order(count).collect()
}

#[test]
fn whoever_was_left_comes_last() {
    let mut f = Following::new(1);
    assert_eq!(order(f, 3), [1, 2, 0]);
    f.follow(1, 3);
    assert_eq!(order(f, 3), [2, 0, 1]);
    // Node 2 does not answer.
    f.follow(0, 3);
    assert_eq!(order(f, 3), [1, 2, 0]);
}

#[test]
fn all_have_a_turn_however_many_there_are() {
    let mut f = Following::default();
    assert!(order(f, 0).is_empty());
    f.follow(0, 1);
    assert_eq!((order(f, 1), order(f, 4)), (vec![0], vec![0, 1, 2, 3]));
    assert_eq!(order(Following::new(7), 3), [1, 2, 0]);
    for _ in 0..5 {
        f.follow(order(f, 4)[0], 4);
    }
    assert_eq!(order(f, 4), [1, 2, 3, 0]);
}

#[test]
fn a_state_never_gets_older() {
    assert_eq!([6, 5].map(|offered| Following::check(5, offered)), [Ok(()), Ok(())]);
    assert_eq!(Following::check(5, 4).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
}
