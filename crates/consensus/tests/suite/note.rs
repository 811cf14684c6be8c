//! The store that a start goes on with when its own can't be used (rule V8).

use freebs_consensus::note::{Instead, SeatNote};
use freebs_types::{ClusterId, Error, ErrorKind, NodeId};

/// Of an opening that was begun, behind one that a seat worked in or behind none.
fn note(was_used: bool) -> SeatNote {
    let new = SeatNote::new(ClusterId([1; 16]), NodeId(2)).begin();
    if was_used { new.in_use().begin() } else { new }
}

fn instead(was_used: bool, why: ErrorKind, has_others: bool, founds: bool) -> Instead<&'static str> {
    note(was_used).instead(why, has_others, || Ok(founds.then_some("state"))).unwrap()
}

#[test]
fn a_blank_node_founds_the_cluster_or_learns() {
    for has_others in [true, false] {
        assert_eq!(instead(false, ErrorKind::NotFound, has_others, true), Instead::Found("state"));
    }
    assert_eq!(instead(false, ErrorKind::NotFound, true, false), Instead::New);
    assert_eq!(instead(false, ErrorKind::NotFound, false, false), Instead::Lost, "the cluster was in use before");
}

/// A store that is lost or damaged after a seat worked with it: founding again would begin the same cluster a second time, and
/// with an older store the seat would have forgotten its votes.
#[test]
fn a_store_that_was_used_is_never_begun_anew_as_the_same_seat() {
    for why in [ErrorKind::NotFound, ErrorKind::Corrupt] {
        for founds in [true, false] {
            assert_eq!(instead(true, why, true, founds), Instead::PutAside, "{why:?}");
            assert_eq!(instead(true, why, false, founds), Instead::Lost, "{why:?}");
        }
    }
    // The data there were never used, but is more than nothing.
    assert_eq!(instead(false, ErrorKind::Corrupt, true, true), Instead::PutAside);
}

#[test]
fn what_may_pass_is_no_reason_for_a_new_seat() {
    for why in [ErrorKind::DeviceFailed, ErrorKind::Busy, ErrorKind::Os, ErrorKind::NoSpace, ErrorKind::Invalid] {
        assert_eq!(instead(true, why, true, true), Instead::Fails, "{why:?}");
        assert_eq!(instead(false, why, true, true), Instead::Fails, "{why:?}");
    }
}

#[test]
fn a_state_that_can_not_be_read_founds_nothing() {
    let broken = || Err::<Option<()>, _>(Error::corrupt("both copies are damaged"));
    assert_eq!(note(false).instead(ErrorKind::NotFound, true, broken).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
    assert!(note(true).instead(ErrorKind::NotFound, true, broken).is_ok(), "nobody asks for it");
}
