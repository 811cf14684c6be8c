//! Rules left out, one at a time, of which a run of the simulator has no occasion: what each of them keeps from happening
//! happens then.

use super::*;
use freebs_format::Pin;
use freebs_format::wire::ReadRequest;

/// V1: today no chain becomes shorter than the least copies, for members only take the places of others. Another version may
/// open such a view; its writes wait.
#[test]
fn a_chain_that_is_too_short_orders_no_write() {
    for mutant in [None, Some(Mutant::ShortChainsOrder)] {
        let mut s = leading();
        s.mutant = mutant;
        let set_least = |s: &mut Scene, copies| s.r.view.iter_mut().for_each(|v| v.body.min_copies = copies);
        set_least(&mut s, 4);
        let before = s.r.last.sequence;
        let refused = reason(&s.write(true, 1, 1, 1));
        assert_eq!(refused, if mutant.is_some() { None } else { Some(Refusal::NotReady) });
        assert_eq!(s.r.last.sequence > before, mutant.is_some());
        set_least(&mut s, 3);
        assert_eq!(reason(&s.write(true, 2, 1, 1)), None);
    }
}

/// R1 at the member: what is asked for with a floor above what is durable here is not read.
#[test]
fn a_read_above_what_is_durable_is_refused() {
    for mutant in [None, Some(Mutant::FloorIgnored)] {
        let mut s = leading();
        s.mutant = mutant;
        let (view, generation, durable) = (s.r.view_number(), s.r.attach.generation, s.r.durable);
        for (floor, is_read) in [(durable, true), (durable.next(), mutant.is_some())] {
            let range = BlockRange::new(0, 1);
            let (id, status_only, at, since) = (1, false, Pin::default(), Pin::default());
            let request = ReadRequest { shard: SHARD, view, generation, id, floor, range, status_only, at, since };
            let (_, actions) = s.play(|r, ctx| r.on_read(ctx, DRIVER, request));
            let reads = actions.iter().any(|a| matches!(a, Action::Read { .. }));
            assert_eq!((reads, reason(&actions)), (is_read, (!is_read).then_some(Refusal::NotReady)));
        }
    }
}

/// A member whose full device was behind named frames before its committed one. Who had given all of them up took the
/// oldest for all that is in common, and the member, asked to cut what is committed, stopped for good.
#[test]
fn a_member_names_nothing_before_its_last_committed_frame() {
    let (mut s, mut c) = (Scene::new(2), Chain::new());
    s.take(c.open(1));
    for _ in 2..=4 {
        s.take(c.data(BLOCK));
    }
    c.committed = 3;
    s.take(c.plain());
    assert_eq!(s.r.committed, Sequence(3));
    let names: Vec<u64> = s.r.names().iter().map(|n| n.sequence.0).collect();
    assert_eq!(names, [5, 4, 3]);
}
