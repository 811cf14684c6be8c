//! The right to a volume: who gets it, what is asked again, and what goes back.

use super::{Plane, SHARD, cluster, now, open};
use freebs_agent::{Answer, Asking, Attachment, Commands, Lapse, Right, in_place_of_lapsed, refused, timing};
use freebs_control::{Command, Done, Holder, Outcome, State};
use freebs_driver::Action;
use freebs_types::{DriverId, Error, ErrorKind, Generation, Hash32, Nanos, NodeId, Result, ViewNumber};

fn host(n: u8) -> Holder {
    Holder { identity: Hash32([n; 32]), name: format!("host-{n}") }
}

/// Asks once, with what is known here.
fn ask(plane: &Plane, asking: &mut Asking, at: Nanos) -> Answer {
    let command = asking.question(&plane.state()).unwrap();
    asking.answer(at, now(plane.submit(command)))
}

fn right(plane: &Plane, who: &Holder, force: bool) -> Right {
    match ask(plane, &mut Asking::new(SHARD.volume, who.clone(), force, Nanos(0)), Nanos(0)) {
        Answer::Right(right) => right,
        other => panic!("{other:?}"),
    }
}

fn detach(plane: &Plane, command: Option<Command>) {
    now(plane.submit(command.unwrap())).unwrap();
}

/// It is nobody's then, and whether its driver has ended is not known.
fn given_back_unsettled(plane: &Plane, right: Right) {
    let Right { volume, generation, .. } = right;
    detach(plane, Some(Command::DetachVolume { volume, generation, settled: false }));
}

#[test]
fn a_volume_that_is_nobodys_is_had_at_once_and_its_driver_begins_with_the_state() {
    let mut state = cluster();
    let view = open(&mut state);
    let plane = Plane::new(state);
    let right = right(&plane, &host(1), false);
    assert_eq!((right.generation, right.alone, &right.taken_from), (Generation(1), true, &None));
    let config = right.driver(&plane.state(), &host(1), DriverId(7), Some(NodeId(2))).unwrap();
    assert_eq!((config.generation, config.alone, config.identity), (Generation(1), true, host(1).identity));
    assert_eq!((config.volume.id, config.volume.shards[0].view, config.workers.len()), (SHARD.volume, view, 4));
    assert_eq!((config.driver, config.local, config.mutant), (DriverId(7), Some(NodeId(2)), None));
}

#[test]
fn another_ones_volume_is_had_by_force_only_and_ones_own_again() {
    let plane = Plane::new(cluster());
    right(&plane, &host(1), false);
    let mut asking = Asking::new(SHARD.volume, host(2), false, Nanos(0));
    assert!(matches!(ask(&plane, &mut asking, Nanos(0)), Answer::Never(e) if e.kind == ErrorKind::Busy));
    let again = right(&plane, &host(1), false);
    assert_eq!((again.generation, again.alone, again.taken_from), (Generation(2), false, None));
    let forced = right(&plane, &host(2), true);
    let from = Some("host-1".to_owned());
    assert_eq!((forced.generation, forced.alone, forced.taken_from), (Generation(3), false, from));
}

/// The answer was lost, and the question is asked again: a late copy of the first one must not fence the driver that the
/// second one makes.
#[test]
fn a_late_copy_of_a_question_does_nothing() {
    let plane = Plane::new(cluster());
    let mut asking = Asking::new(SHARD.volume, host(1), true, Nanos(0));
    let first = asking.question(&plane.state()).unwrap();
    assert_eq!(asking.seen(), plane.state().revision());
    let lost = asking.answer(Nanos(0), Err(Error::retry("lost")));
    assert!(matches!(lost, Answer::Again(_)), "{lost:?}");
    let Answer::Right(right) = ask(&plane, &mut asking, Nanos(0)) else { panic!() };
    let late = now(plane.submit(first));
    assert_eq!(late.map_err(|e| e.kind), Err(ErrorKind::Retry));
    assert_eq!(plane.state().volume(SHARD.volume).unwrap().generation, right.generation);
}

#[test]
fn it_is_asked_for_as_long_as_the_limit_says_and_not_after_a_refusal() {
    let plane = Plane::new(cluster());
    let begun = Nanos::from_millis(5);
    let mut asking = Asking::new(SHARD.volume, host(1), false, begun);
    asking.question(&plane.state()).unwrap();
    let retry = || -> Result<Done> { Err(Error::retry("nobody leads")) };
    let end = begun.plus(timing::ATTACH_ASK_LIMIT);
    assert_eq!(asking.answer(end, retry()), Answer::Again(Error::retry("nobody leads")));
    assert_eq!(asking.answer(end.plus(Nanos(1)), retry()), Answer::Never(Error::retry("nobody leads")));
    let gone = Error::not_found("the volume was deleted");
    assert_eq!(asking.answer(begun, Err(gone.clone())), Answer::Never(gone));
    let other = Done { revision: 1, outcome: Outcome::Detached };
    assert!(matches!(asking.answer(begun, Ok(other)), Answer::Never(e) if e.kind == ErrorKind::Bug));
    let mut unknown = Asking::new(freebs_types::VolumeId(9), host(1), false, begun);
    assert_eq!(unknown.question(&plane.state()).unwrap_err().kind, ErrorKind::NotFound);
}

/// An attachment that was never ready has not waited for the leases of those before it (L3).
#[test]
fn only_what_was_ready_is_given_back_as_settled() {
    let plane = Plane::new(cluster());
    given_back_unsettled(&plane, right(&plane, &host(1), false));
    let mut hasty = Attachment::new(right(&plane, &host(1), false));
    assert!(!hasty.is_ready() && !hasty.is_over() && hasty.may_end());
    detach(&plane, hasty.end());
    assert!(hasty.is_over() && !hasty.is_ready());
    let next = right(&plane, &host(2), false);
    assert!(!next.alone, "somebody may hold leases still");
    let mut patient = Attachment::new(next);
    assert!(patient.note(&Action::Ready) && patient.is_ready() && !patient.is_over());
    assert!(patient.note(&Action::Closed) && patient.is_over());
    detach(&plane, patient.end());
    // There was nobody to wait for.
    let mut alone = Attachment::new(right(&plane, &host(1), false));
    detach(&plane, alone.end());
    assert!(right(&plane, &host(1), false).alone);
}

/// Clients that are told to go get the answers to what they had asked, if these come in time.
#[test]
fn an_attachment_that_is_let_go_waits_for_its_last_answers() {
    let plane = Plane::new(cluster());
    let at = |ms| Nanos::from_millis(1000 + ms);
    let limit = timing::LEAVE_MAX.millis();
    let mut used = Attachment::new(right(&plane, &host(1), false));
    used.note(&Action::Ready);
    assert!(used.leaves_by().is_none() && !used.has_left(at(0), 0), "nobody has told it to go");
    used.leave(at(0));
    assert!(!used.has_left(at(0), 1) && used.has_left(at(0), 0));
    // Told once more, it has no more time.
    used.leave(at(limit - 1));
    assert!(!used.has_left(at(limit - 1), 1) && used.has_left(at(limit), 1));
    assert_eq!(used.leaves_by(), Some(at(limit)));
    // One that was never ready has answered nobody yet.
    let mut hasty = Attachment::new(right(&plane, &host(1), false));
    hasty.leave(at(0));
    assert!(hasty.has_left(at(0), 1));
}

/// A node that stopped, or an NBD client that was tired of waiting, made the volume nobody's; the driver that it was taken
/// from went on answering, and anybody had it without force, or deleted it.
#[test]
fn what_was_somebodys_goes_back_only_when_that_one_has_ended() {
    for (who, force, may_end) in [(host(2), true, false), (host(1), false, false), (host(1), true, false)] {
        let plane = Plane::new(cluster());
        right(&plane, &host(1), false);
        let mut late = Attachment::new(right(&plane, &who, force));
        assert_eq!(late.may_end(), may_end, "{who:?} {force}");
        assert_eq!(late.end(), None, "{who:?} {force}");
        let mut ready = Attachment::new(right(&plane, &who, force));
        ready.note(&Action::Ready);
        assert!(ready.may_end());
        detach(&plane, ready.end());
        assert_eq!(plane.state().volume(SHARD.volume).unwrap().holder, None);
    }
    // A volume that was nobody's is that again, however it was asked for.
    for force in [false, true] {
        let plane = Plane::new(cluster());
        given_back_unsettled(&plane, right(&plane, &host(1), false));
        let mut early = Attachment::new(right(&plane, &host(2), force));
        assert!(early.may_end());
        detach(&plane, early.end());
        let state = plane.state();
        let volume = state.volume(SHARD.volume).unwrap();
        assert!(volume.holder.is_none() && volume.settled < volume.generation);
    }
}

#[test]
fn who_was_fenced_gives_nothing_back() {
    let plane = Plane::new(cluster());
    let [mut told, mut looked] = [(); 2].map(|()| Attachment::new(right(&plane, &host(1), false)));
    told.note(&Action::Ready);
    assert!(told.note(&Action::Fenced) && told.is_fenced() && told.is_over());
    assert_eq!(told.end(), None);
    looked.supersede();
    assert!(looked.is_fenced() && looked.is_over());
    assert_eq!(looked.end(), None);
}

/// Three members, of which two make a quorum: once two say that the lease has ended, one is left to lend.
#[test]
fn a_volume_whose_leases_have_ended_is_had_without_force() {
    let mut state = cluster();
    let view = open(&mut state);
    let plane = Plane::new(state);
    let generation = right(&plane, &host(1), false).generation;
    let state: &State = &plane.state();
    let members = state.shard(SHARD).unwrap().members.clone();
    let question = Asking::new(SHARD.volume, host(2), false, Nanos(0)).question(state).unwrap();
    let instead = |said: &[Lapse]| {
        let of = |n| members.iter().position(|m| *m == n).and_then(|i| said.get(i).copied());
        in_place_of_lapsed(question.clone(), state, |n, _| of(n))
    };
    let ended = (view, Some(generation));
    assert_eq!(instead(&[ended]), None);
    assert_eq!(instead(&[ended, (view, None), (view, None)]), None);
    assert_eq!(instead(&[ended, (view, Some(Generation(9)))]), None, "of another attachment");
    assert_eq!(instead(&[ended, (ViewNumber(9), Some(generation))]), None, "in another view");
    let instead = instead(&[ended, ended]).unwrap();
    // Replicas are asked only if that is why it was refused.
    let named = |answer: Result<Done>| refused(&question, &answer, state).map(|v| v.id);
    let busy = now(plane.submit(question.clone()));
    assert_eq!(named(busy.clone()), Some(SHARD.volume));
    assert_eq!([Err(Error::retry("nobody leads")), Err(Error::fenced("no"))].map(named), [None, None]);
    let detach = Command::DetachVolume { volume: SHARD.volume, generation, settled: true };
    assert_eq!(refused(&detach, &busy, state).map(|v| v.id), None, "nothing else is asked for again");
    assert!(matches!(&instead, Command::AttachVolume { since: Some(g), lapsed: true, .. } if *g == generation));
    // Somebody attached after the question: nothing was heard of that one.
    right(&plane, &host(1), false);
    assert_eq!(refused(&question, &busy, &plane.state()).map(|v| v.id), None);
    assert_eq!(in_place_of_lapsed(question, &plane.state(), |_, _| Some(ended)), None);
    assert_eq!(now(plane.submit(instead)).map_err(|e| e.kind), Err(ErrorKind::Retry));
}
