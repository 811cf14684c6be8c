//! Reads of the past: who answers them, and who does not.

use super::*;
use freebs_format::Pin;
use freebs_format::wire::ReadRequest;
use freebs_types::limits;

fn pin(version: u64) -> Pin {
    Pin { version: Version(version), ..Pin::default() }
}

/// Of the first block at a version, committed with this frame.
fn past(version: u64, floor: u64) -> ReadRequest {
    ReadRequest {
        shard: SHARD,
        view: ViewNumber(0),
        generation: Generation(0),
        id: 1,
        floor: Sequence(floor),
        range: BlockRange::new(0, 1),
        status_only: false,
        at: pin(version),
        since: Pin::default(),
    }
}

/// The refusal of a read; none, if it is looked up.
fn refused(s: &mut Scene, request: ReadRequest) -> Option<Refusal> {
    let (_, actions) = s.play(|r, ctx| r.on_read(ctx, DRIVER, request));
    let is_read = actions.iter().any(|a| matches!(a, Action::Read { .. }));
    let refusal = reason(&actions);
    assert_ne!(is_read, refusal.is_some(), "one answer");
    refusal
}

/// A frame with one update, which has this version.
fn version(chain: &mut Chain, version: u64) -> Frame {
    let data = Bytes::from(vec![version as u8; BLOCK]);
    let mut builder = FrameBuilder::new();
    builder.push(UpdateDraft {
        kind: UpdateKind::Write,
        driver: DriverId(1),
        number: RequestNumber(version),
        lowest_open: RequestNumber(1),
        extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(0, 1) }],
        crcs: vec![block_crc(&data)],
        data: vec![data],
    });
    let meta = FrameMeta { first_version: Version(version), ..chain.meta() };
    let made = builder.build(&meta, &chain.secret(), &chain.token);
    chain.put(made)
}

/// A scene with two updates, of which the first one is committed.
fn one_of_two_committed() -> (Scene, u64) {
    let (mut s, mut chain) = (Scene::new(2), Chain::new());
    s.take(chain.open(1));
    let frames = [version(&mut chain, 1), version(&mut chain, 2)];
    let committed = frames[0].head.seq();
    frames.into_iter().for_each(|f| s.take(f));
    let last = s.r.last.sequence;
    s.play(|r, ctx| {
        r.on_frame_durable(ctx, last);
        r.note_committed(ctx, committed);
    });
    (s, committed.0)
}

/// No view, generation or lease is asked for: the volume may be attached by anybody, in a view that this member is not in
/// any more. Another one may lead it, or nobody.
#[test]
fn a_member_answers_whoever_has_the_volume() {
    let (mut s, committed) = one_of_two_committed();
    s.r.attach.generation = Generation(9);
    s.r.promised = ViewNumber(7);
    assert!(!s.r.serves());
    let (first, second) = (s.r.tail[&Sequence(committed)].version.0, s.r.version.0);
    assert_eq!(refused(&mut s, past(first, committed)), None);
    assert_eq!(refused(&mut s, past(first, 0)), None);
    assert_eq!(refused(&mut s, past(second, 0)), Some(Refusal::NotReady), "a cut may still take it back");
    assert_eq!(refused(&mut s, past(first, committed + 1)), Some(Refusal::NotReady), "its frame is not committed here");
    s.r.durable = Sequence(committed - 1);
    assert_eq!(refused(&mut s, past(first, 0)), Some(Refusal::NotReady), "not durable here yet");
    s.r.durable = s.r.last.sequence;
    s.r.stopped = Some("a frame differs".into());
    assert_eq!(refused(&mut s, past(first, committed)), Some(Refusal::NotReady));
}

/// Below the version from which on its history is whole a member lacks something that others may have (E6). What is in
/// force now is there, pinned or not.
#[test]
fn a_member_whose_history_is_not_whole_sends_to_others() {
    let (mut s, _) = one_of_two_committed();
    let last = s.r.last.sequence;
    s.play(|r, ctx| r.note_committed(ctx, last));
    let (first, second) = (past(1, 0), past(2, 0));
    let changes = ReadRequest { status_only: true, since: pin(1), ..second };
    for (whole_from, refuses) in [(0, [false; 3]), (1, [false; 3]), (2, [true, false, true]), (3, [true, false, true])]
    {
        s.r.whole_from = Version(whole_from);
        for (request, refuses) in [first, second, changes].into_iter().zip(refuses) {
            let expected = refuses.then_some(Refusal::Corrupt);
            assert_eq!(refused(&mut s, request), expected, "whole from {whole_from}: {request:?}");
        }
    }
}

#[test]
fn impossible_questions_cost_nothing() {
    let (mut s, committed) = one_of_two_committed();
    let version = s.r.tail[&Sequence(committed)].version.0;
    let good = ReadRequest { status_only: true, ..past(version, committed) };
    let range = |start, len| BlockRange { start: Lba(start), len };
    let changes = ReadRequest { since: pin(version), ..good };
    let edge = limits::SHARD_BLOCKS_MAX as u32 - 1;
    for possible in [
        good,
        changes,
        ReadRequest { range: range(0, limits::STATUS_BLOCKS_MAX), ..good },
        ReadRequest { range: range(edge, 1), ..good },
    ] {
        assert_eq!(refused(&mut s, possible), None, "{possible:?}");
    }
    for hostile in [
        ReadRequest { range: range(0, 0), ..good },
        ReadRequest { range: range(0, limits::STATUS_BLOCKS_MAX + 1), ..good },
        ReadRequest { range: range(0, limits::READ_BLOCKS_MAX + 1), status_only: false, ..good },
        ReadRequest { range: range(edge, 2), ..good },
        ReadRequest { range: range(u32::MAX, u32::MAX), ..good },
        ReadRequest { status_only: false, ..changes },
        ReadRequest { since: pin(version + 1), ..good },
        ReadRequest { at: pin(0), ..changes },
    ] {
        assert_eq!(refused(&mut s, hostile), Some(Refusal::Invalid), "{hostile:?}");
    }
    let far = ReadRequest { at: pin(u64::MAX), ..good };
    assert_eq!(refused(&mut s, far), Some(Refusal::NotReady));
    let floor = ReadRequest { floor: Sequence(u64::MAX), ..good };
    assert_eq!(refused(&mut s, floor), Some(Refusal::NotReady));
}

/// A member answered a question for a map twice: with versions that it keeps, which have to be durable first, and without any.
/// The second answer ended the process of who had asked.
#[test]
fn a_second_answer_is_not_taken_while_the_first_one_waits() {
    let mut chain = Chain::new();
    let view = chain.open(1);
    let last = chain.plain();
    let end = crate::testing::map_end(0, &last, &view.head);
    let mark = &end.frames[1];
    let mut state = freebs_format::MarkBody::decode(mark.head.body()).expect("made here");
    state.pins = vec![pin(2)];
    let meta = FrameMeta { sequence: last.head.seq(), ..chain.meta() };
    let hid = mark.header().hid();
    let kept = FrameBuilder::local(&meta, FrameKind::Mark, &state.encode(), Vec::new(), &hid);
    let first = SyncReply { frames: vec![end.frames[0].clone(), kept], ..end.clone() };
    let mut s = Scene::new(2);
    s.play(|r, ctx| r.ask(ctx, peer(1), ViewNumber(1), Sequence(u64::MAX)));
    let id = s.r.asking.expect("it asks").id;
    let mut answered = |reply: &SyncReply| {
        let (_, actions) = s.play(|r, ctx| r.on_sync_reply(ctx, SyncReply { id, ..reply.clone() }));
        crate::testing::appends(&actions)
    };
    assert_eq!(answered(&first), ["mark"]);
    assert_eq!(answered(&end), [""; 0]);
    assert_eq!(answered(&first), [""; 0]);
    let ticket = s.tickets;
    let (_, actions) = s.play(|r, ctx| r.on_kept_durable(ctx, ticket));
    assert_eq!(crate::testing::appends(&actions), ["base"], "the first one goes on");
}
