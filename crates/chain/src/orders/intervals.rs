//! Intervals over several shards at a head: what it refuses, decides, tells and forgets (rules I1 to I4, S3).

use super::cuts::{ordered, pins};
use super::*;
use crate::event::{FoundInterval, IntervalAsk, IntervalWord, ShardSnapshots, UnderWay};
use crate::timing;
use freebs_format::wire::IntervalPart;
use freebs_format::{IntervalId, IntervalRecord, IntervalState, interval_data, interval_record};
use freebs_types::{IntervalNumber, SnapshotId, limits};

const OTHER: ShardId = ShardId { volume: VolumeId(1), index: 1 };

/// Interval with this number; `decider`: this shard decides.
fn id(number: u64, decides: bool) -> IntervalId {
    let decider = if decides { SHARD } else { OTHER };
    IntervalId { decider, driver: DriverId(9), number: IntervalNumber(number) }
}

fn about(kind: UpdateKind, number: u64, id: IntervalId) -> WriteRequest {
    let mut w = request(number, 1, 1);
    (w.kind, w.extents, w.crcs, w.data) = (kind, Vec::new(), Vec::new(), Vec::new());
    w.interval = Some(Box::new(IntervalPart { id, lowest_open: IntervalNumber(1), participants: Vec::new() }));
    w
}

/// A request to prepare a write of this block.
fn prepare(number: u64, id: IntervalId, block: u32) -> WriteRequest {
    let plain = request(number, 1, 1);
    let part = IntervalPart { id, lowest_open: IntervalNumber(1), participants: vec![SHARD, OTHER] };
    let range = BlockRange::new(block, 1);
    let extents = vec![Extent { kind: ExtentKind::Data, range }];
    WriteRequest { kind: UpdateKind::Prepare, interval: Some(Box::new(part)), extents, ..plain }
}

impl Scene {
    fn asks_for(&mut self, w: WriteRequest) -> Vec<Action> {
        self.play(|r, ctx| {
            r.on_write(ctx, DRIVER, w);
            r.pack(ctx);
        })
        .1
    }

    /// Prepared by the driver, and durable on both.
    fn prepares(&mut self, number: u64, id: IntervalId, block: u32) {
        let actions = self.asks_for(prepare(number, id, block));
        assert_eq!(ordered(&actions), [number], "{actions:?}");
        self.both_durable();
    }

    fn is_asked(&mut self, id: IntervalId, decides: bool) -> Option<IntervalWord> {
        self.play(|r, ctx| r.on_interval_ask(ctx, &IntervalAsk { at: SHARD, id, decides })).0
    }

    fn waits(&mut self, ms: u64) -> Vec<Action> {
        self.now = self.now.plus(Nanos::from_millis(ms));
        self.play(|r, ctx| r.head_tick(ctx)).1
    }

    fn answered(&mut self, id: IntervalId, word: IntervalWord) -> Vec<Action> {
        let ask =
            IntervalAsk { at: OTHER, id, decides: matches!(word, IntervalWord::Committed | IntervalWord::Aborted) };
        let view = self.r.view_number();
        self.play(|r, ctx| r.on_interval_word(ctx, view, &ask, Ok(word))).1
    }
}

/// The updates of intervals in appended frames: kind, and what they do to which block.
fn updates(actions: &[Action]) -> Vec<(UpdateKind, Vec<(ExtentKind, u32)>)> {
    let mut all = Vec::new();
    for action in actions {
        let Action::Append(Record::Frame(frame)) = action else { continue };
        let of = |u: freebs_format::Update<'_>| u.extents().map(|(e, _)| (e.kind, e.range.start.0)).collect();
        all.extend(frame.head.updates().map(|u| (u.kind, of(u))));
    }
    all
}

fn questions(actions: &[Action]) -> Vec<IntervalAsk> {
    actions.iter().filter_map(|a| if let Action::AskInterval { ask, .. } = a { Some(*ask) } else { None }).collect()
}

fn told(actions: &[Action]) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for action in actions {
        if let Action::Send { message: Message::Ordered { items, .. }, .. } = action {
            all.extend(items.iter().map(|(n, s)| (n.0, s.0)));
        }
    }
    all
}

#[test]
fn data_count_from_the_commit_on() {
    for decides in [true, false] {
        let mut s = leading();
        let (record, data, id) = (interval_record(0).start.0, interval_data(0).0, id(1, decides));
        let actions = s.asks_for(prepare(1, id, 40));
        let put = vec![(ExtentKind::Data, record), (ExtentKind::Data, data)];
        assert_eq!(updates(&actions), [(UpdateKind::Prepare, put)]);
        s.both_durable();
        let actions = s.asks_for(about(UpdateKind::Commit, 2, id));
        // The deciding shard keeps the record.
        let (of_record, sequence) = (if decides { ExtentKind::Data } else { ExtentKind::Trim }, s.r.last.sequence.0);
        let all = vec![(ExtentKind::Data, 40), (of_record, record), (ExtentKind::Trim, data)];
        assert_eq!(updates(&actions), [(UpdateKind::Commit, all)]);
        assert_eq!(told(&actions), [(2, sequence)]);
        let Some(Action::Append(Record::Frame(frame))) = actions.iter().find(|a| matches!(a, Action::Append(_))) else {
            panic!("{actions:?}")
        };
        assert_eq!(frame.data.concat()[..BLOCK], [7; BLOCK], "the data that were prepared");
        assert!(frame.verify_data().is_ok());
        s.both_durable();
        // A repeat, also under another number, is told where it is.
        for number in [2, 3] {
            assert_eq!(told(&s.asks_for(about(UpdateKind::Commit, number, id))), [(number, sequence)]);
        }
        assert_eq!(reason(&s.write(true, 4, 1, 1)), None);
    }
}

#[test]
fn a_prepare_that_meets_another_is_refused_and_not_queued() {
    for mutant in [None, Some(Mutant::PreparesWait)] {
        let mut s = leading();
        s.mutant = mutant;
        s.prepares(1, id(1, true), 40);
        let actions = s.asks_for(prepare(2, id(2, false), 40));
        assert_eq!(reason(&actions), mutant.is_none().then_some(Refusal::Aborted));
        // No copy of it comes later.
        if mutant.is_none() {
            assert_eq!(reason(&s.asks_for(prepare(2, id(2, false), 50))), Some(Refusal::Aborted));
            assert_eq!(ordered(&s.asks_for(prepare(3, id(3, false), 41))), [3], "beside it");
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let wrong: [fn(&mut WriteRequest); 8] = [
        |w| w.interval = None,
        |w| w.interval.as_mut().unwrap().participants.clear(),
        |w| w.interval.as_mut().unwrap().participants = vec![OTHER],
        |w| w.interval.as_mut().unwrap().participants = vec![OTHER, SHARD],
        |w| w.interval.as_mut().unwrap().id.decider.index = 7,
        |w| w.extents[0].range = BlockRange::new(limits::SHARD_VOLUME_BLOCKS_MAX as u32, 1),
        |w| w.crcs.clear(),
        |w| w.extents.clear(),
    ];
    for (i, change) in wrong.into_iter().enumerate() {
        let mut s = leading();
        let mut w = prepare(1, id(1, true), 40);
        change(&mut w);
        assert_eq!(reason(&s.asks_for(w)), Some(Refusal::Invalid), "{i}");
    }
    // A volume that has grown, as far as this node knows it.
    let mut s = leading();
    s.r.info = Some(info(8));
    assert_eq!(reason(&s.asks_for(prepare(1, id(1, true), 40))), Some(Refusal::NotReady));
    // More than a head keeps in memory.
    let mut s = leading();
    let full = |number| {
        let blocks = limits::INTERVAL_DATA_BYTES_MAX / BLOCK;
        let large = request(number, 1, blocks);
        let range = BlockRange::new(2000 * number as u32, blocks as u32);
        let extents = vec![Extent { kind: ExtentKind::Data, range }];
        WriteRequest { extents, crcs: large.crcs, data: large.data, ..prepare(number, id(number, true), 0) }
    };
    for number in 1..=4 {
        assert_eq!(ordered(&s.asks_for(full(number))), [number]);
        s.both_durable();
    }
    assert_eq!(reason(&s.asks_for(full(5))), Some(Refusal::Aborted));
}

/// I2: what is prepared gets nothing but its outcome.
#[test]
fn writes_wait_for_what_is_prepared() {
    for mutant in [None, Some(Mutant::WritesOverPrepared)] {
        let mut s = leading();
        s.mutant = mutant;
        s.prepares(1, id(1, false), 0);
        assert_eq!(reason(&s.write(true, 2, 1, 1)), mutant.is_none().then_some(Refusal::NotReady));
        s.answered(id(1, false), IntervalWord::Aborted);
        assert_eq!(reason(&s.write(true, 3, 1, 1)), None);
    }
}

/// I3: a silent driver's interval is aborted by the deciding shard, and the others ask it.
#[test]
fn a_silent_driver_is_not_waited_for() {
    let mut s = leading();
    s.prepares(1, id(1, true), 40);
    s.prepares(2, id(2, false), 41);
    let patience = timing::INTERVAL_PATIENCE.millis();
    assert!(updates(&s.waits(patience - 1)).is_empty());
    let actions = s.waits(1);
    assert_eq!(updates(&actions).iter().map(|u| u.0).collect::<Vec<_>>(), [UpdateKind::Abort]);
    let ask = IntervalAsk { at: OTHER, id: id(2, false), decides: true };
    assert_eq!(questions(&actions), [ask]);
    assert!(questions(&s.waits(1000)).is_empty(), "one question at a time");
    s.play(|r, ctx| r.on_interval_word(ctx, ViewNumber(2), &ask, Err(freebs_types::Error::retry(""))));
    assert_eq!(questions(&s.waits(20)), [ask], "it did not answer");
    s.both_durable();
    // The driver comes after all.
    assert_eq!(reason(&s.asks_for(about(UpdateKind::Commit, 3, id(1, true)))), Some(Refusal::Aborted));
    let actions = s.answered(id(2, false), IntervalWord::Committed);
    assert_eq!(updates(&actions)[0].0, UpdateKind::Commit);
    let done = s.r.last.sequence.0;
    assert_eq!(told(&s.asks_for(about(UpdateKind::Commit, 4, id(2, false)))), [(4, done)]);
}

/// I3: only what is committed is told, and an abort is recorded first.
#[test]
fn the_deciding_shard_tells_what_is_committed() {
    for mutant in [None, Some(Mutant::DecisionsUncommitted)] {
        let mut s = leading();
        s.mutant = mutant;
        s.prepares(1, id(1, true), 40);
        assert_eq!(s.is_asked(id(1, true), true), None, "its driver may be about to decide");
        s.asks_for(about(UpdateKind::Commit, 2, id(1, true)));
        assert_eq!(s.is_asked(id(1, true), true), mutant.map(|_| IntervalWord::Committed));
        s.both_durable();
        assert_eq!(s.is_asked(id(1, true), true), Some(IntervalWord::Committed));
    }
    for mutant in [None, Some(Mutant::AbortsUnrecorded)] {
        let mut s = leading();
        s.mutant = mutant;
        let last = s.r.last.sequence;
        assert_eq!(s.is_asked(id(1, true), true), mutant.map(|_| IntervalWord::Aborted));
        assert_eq!(s.r.last.sequence > last, mutant.is_none(), "it is recorded");
        s.both_durable();
        assert_eq!(s.is_asked(id(1, true), true), Some(IntervalWord::Aborted));
        let late = reason(&s.asks_for(prepare(1, id(1, true), 40)));
        assert_eq!(late, mutant.is_none().then_some(Refusal::Aborted), "what comes late is nothing any more");
        assert_eq!(s.is_asked(id(9, false), true), None, "another shard decides that");
    }
}

/// R2: a new driver is answered when all is decided that the one before it began; and that one can't go on.
#[test]
fn an_attachment_waits_for_the_outcomes() {
    for mutant in [None, Some(Mutant::AttachesPastIntervals)] {
        let mut s = leading();
        s.mutant = mutant;
        s.r.info = Some(ShardInfo { generation: Generation(2), ..info(1024) });
        s.prepares(1, id(1, false), 40);
        let attach = |s: &mut Scene| {
            s.play(|r, ctx| r.on_attach(ctx, LinkId(101), DriverId(10), Generation(2), Hash32::default())).1
        };
        let is_answered = |actions: &[Action]| {
            actions.iter().any(|a| matches!(a, Action::Send { message: Message::Attached { .. }, .. }))
        };
        let actions = attach(&mut s);
        assert_eq!(is_answered(&actions), mutant.is_some());
        if mutant.is_some() {
            continue;
        }
        assert_eq!(questions(&actions).len(), 1, "it asks at once");
        assert_eq!(reason(&s.asks_for(about(UpdateKind::Commit, 2, id(1, false)))), Some(Refusal::Fenced));
        s.both_durable();
        assert!(!is_answered(&attach(&mut s)));
        s.answered(id(1, false), IntervalWord::Committed);
        let actions = attach(&mut s);
        let floor = actions.iter().find_map(|a| match a {
            Action::Send { message: Message::Attached { floor, .. }, .. } => Some(*floor),
            _ => None,
        });
        assert_eq!(floor, Some(s.r.last.sequence), "behind the outcome");
    }
}

/// I4: a decision is kept until its driver says that it is over, or until all others have it if that driver is gone.
#[test]
fn a_decision_is_kept_until_all_have_it() {
    for mutant in [None, Some(Mutant::DecisionsForgotten)] {
        let mut s = leading();
        s.mutant = mutant;
        s.r.info = Some(ShardInfo { generation: Generation(2), ..info(1024) });
        s.prepares(1, id(1, true), 40);
        s.asks_for(about(UpdateKind::Commit, 2, id(1, true)));
        s.both_durable();
        assert!(questions(&s.waits(60_000)).is_empty() && s.is_asked(id(1, true), true).is_some());
        s.play(|r, ctx| r.on_attach(ctx, LinkId(101), DriverId(10), Generation(2), Hash32::default()));
        s.both_durable();
        let actions = s.waits(20);
        let ask = IntervalAsk { at: OTHER, id: id(1, true), decides: false };
        if mutant.is_some() {
            assert_eq!(updates(&actions).len(), 1, "it is forgotten");
            continue;
        }
        assert_eq!(questions(&actions), [ask]);
        assert!(updates(&s.answered(id(1, true), IntervalWord::Open)).is_empty());
        assert_eq!(questions(&s.waits(timing::INTERVALS_AGAIN.millis())), [ask]);
        let actions = s.answered(id(1, true), IntervalWord::Over);
        let gone = vec![(ExtentKind::Trim, interval_record(0).start.0)];
        assert_eq!(updates(&actions), [(UpdateKind::Trim, gone)]);
    }
    // The driver that is here says it with its next one, which takes the place.
    let mut s = leading();
    s.prepares(1, id(1, true), 40);
    s.asks_for(about(UpdateKind::Commit, 2, id(1, true)));
    let mut w = prepare(3, id(2, true), 41);
    assert_eq!(updates(&s.asks_for(w.clone()))[0].1[0].1, interval_record(1).start.0);
    (w.number, w.extents[0].range) = (RequestNumber(4), BlockRange::new(50, 1));
    w.interval.iter_mut().for_each(|i| (i.id.number, i.lowest_open) = (IntervalNumber(3), IntervalNumber(2)));
    assert_eq!(updates(&s.asks_for(w))[0].1[0].1, interval_record(0).start.0);
}

#[test]
fn a_participant_is_asked_whether_it_is_over() {
    let mut s = leading();
    s.prepares(1, id(1, false), 40);
    assert_eq!(s.is_asked(id(1, false), false), Some(IntervalWord::Open));
    s.asks_for(about(UpdateKind::Commit, 2, id(1, false)));
    assert_eq!(s.is_asked(id(1, false), false), Some(IntervalWord::Open), "it is not committed");
    s.both_durable();
    assert_eq!(s.is_asked(id(1, false), false), Some(IntervalWord::Over));
}

/// I2: a new head knows from its log what is prepared before it orders anything.
#[test]
fn a_new_head_orders_nothing_before_its_log_has_told() {
    for mutant in [None, Some(Mutant::PreparedForgotten)] {
        let (mut s, good) = opening();
        s.mutant = mutant;
        s.play(|r, ctx| r.on_seal_answer(ctx, NodeId(2), good));
        let asked = s.both_durable();
        let ask = window::asks(&asked).pop().unwrap();
        let lists = |a: &Action| matches!(a, Action::ListIntervals { view: ViewNumber(2), alone: false, .. });
        assert_eq!(asked.iter().any(lists), mutant.is_none());
        s.play(|r, ctx| r.on_past_found(ctx, ask, Ok(Found::Window(None))));
        s.play(|r, ctx| r.on_activated(ctx, ViewNumber(2), Ok(())));
        let attach =
            |s: &mut Scene| s.play(|r, ctx| r.on_attach(ctx, DRIVER, DriverId(9), Generation(1), Hash32::default())).1;
        if mutant.is_some() {
            assert_eq!(reason(&attach(&mut s)), None);
            continue;
        }
        assert_eq!(reason(&attach(&mut s)), Some(Refusal::NotReady));
        let failed = Err(freebs_types::Error::corrupt(""));
        s.play(|r, ctx| r.on_intervals(ctx, ViewNumber(2), failed));
        assert!(s.waits(timing::INTERVALS_AGAIN.millis()).iter().any(lists), "it is asked again");
        let record = |shard, number, owner| IntervalRecord {
            state: IntervalState::Prepared,
            id: id(number, false),
            shard,
            owner: DriverId(owner),
            participants: vec![SHARD, OTHER],
            extents: vec![Extent { kind: ExtentKind::Zero, range: BlockRange::new(0, 1) }],
        };
        let found = |place, record| FoundInterval { place, record, crcs: Vec::new(), data: Vec::new() };
        // The second one is a parent's.
        let all = vec![found(3, record(SHARD, 1, 9)), found(4, record(OTHER, 2, 9)), found(5, record(SHARD, 3, 8))];
        s.play(|r, ctx| r.on_intervals(ctx, ViewNumber(2), Ok(all)));
        s.both_durable();
        assert_eq!(reason(&attach(&mut s)), Some(Refusal::NotReady), "another driver's");
        let actions = s.waits(20);
        assert!(questions(&actions).is_empty(), "it is asked about already");
        assert_eq!(updates(&s.answered(id(3, false), IntervalWord::Aborted))[0].0, UpdateKind::Abort);
        assert_eq!(reason(&attach(&mut s)), None);
        s.both_durable();
        assert_eq!(reason(&s.write(true, 1, 1, 1)), Some(Refusal::NotReady), "it is prepared");
        assert_eq!(ordered(&s.asks_for(about(UpdateKind::Commit, 2, id(1, false)))), [2]);
        s.both_durable();
        assert_eq!(reason(&s.write(true, 3, 1, 1)), None);
    }
}

/// S3: nothing undecided lies in front of a cut, and nothing is prepared while it waits or holds.
#[test]
fn a_cut_waits_for_outcomes() {
    let cut = |s: &mut Scene| {
        let id = SnapshotId(7);
        let under_way =
            UnderWay { id, is_alone: false, is_decided: false, reported: None, is_confirmed: false, past: None };
        let snapshots = ShardSnapshots {
            kept: std::sync::Arc::new([id].into()),
            under_way: Some(under_way),
            as_of: ViewNumber(2),
            ..ShardSnapshots::default()
        };
        s.r.info = Some(ShardInfo { snapshots, ..info(1024) });
        s.play(|r, ctx| {
            r.snapshots_changed();
            r.see_to_snapshots(ctx);
        })
        .1
    };
    for mutant in [None, Some(Mutant::CutsThroughIntervals)] {
        let mut s = leading();
        s.mutant = mutant;
        s.prepares(1, id(1, false), 40);
        assert_eq!(pins(&cut(&mut s)).len(), usize::from(mutant.is_some()));
        if mutant.is_some() {
            continue;
        }
        assert_eq!(reason(&s.asks_for(prepare(2, id(2, true), 41))), Some(Refusal::Aborted));
        assert_eq!(ordered(&s.write(true, 3, 1, 1)), [3], "writes go on");
        let actions = s.waits(timing::INTERVAL_PATIENCE_OF_CUTS.millis());
        assert_eq!(questions(&actions).len(), 1, "it does not wait long for the driver");
        let actions = s.answered(id(1, false), IntervalWord::Committed);
        assert_eq!((updates(&actions)[0].0, pins(&actions).len()), (UpdateKind::Commit, 1), "and then it is cut");
        assert_eq!(reason(&s.asks_for(prepare(4, id(3, true), 41))), Some(Refusal::Aborted), "it holds");
    }
    // What waits to be prepared is refused, too: others may wait for it.
    let mut s = leading();
    for n in 1..=4 {
        s.write(true, n, 1, 1024);
    }
    assert!(ordered(&s.asks_for(prepare(5, id(1, true), 5000))).is_empty(), "the window is full");
    assert_eq!(reason(&cut(&mut s)), Some(Refusal::Aborted));
}
