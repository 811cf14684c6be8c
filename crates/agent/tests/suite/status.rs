//! The words of a node's devices when a control state is made again.

use freebs_agent::{add_device, survey_of};
use freebs_lsvd::Finding;
use freebs_lsvd::tool::{DeviceInfo, ShardSurvey, Survey};
use freebs_types::{ClusterId, DeviceId, Generation, NodeId, Sequence, ShardId, StartNumber, ViewNumber};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn device(start: u64, shard: u32, guessed: bool) -> Survey {
    let device = DeviceInfo {
        copies: vec![],
        guessed,
        cluster: CLUSTER,
        device: DeviceId([1; 16]),
        node: NodeId(2),
        worker: 0,
        workers: 2,
        start: StartNumber(start),
        created: 0,
        sector: 4096,
        segment_bytes: 1 << 20,
        size_limit: 1 << 30,
        bytes: 1 << 30,
        segments: 2,
        used_segments: 1,
        torn_bytes: 0,
        live_bytes: 0,
    };
    let shard = ShardSurvey {
        shard: ShardId::new(1, shard),
        promised: ViewNumber(4),
        views: vec![],
        generation: Generation(3),
        last: Sequence(9),
        committed: Sequence(8),
        whole: true,
        promise_lost: shard == 1,
    };
    Survey { device, shards: vec![shard], recovery: vec![] }
}

#[test]
fn devices_of_a_node_are_one_survey() {
    let mut all = survey_of(CLUSTER, NodeId(2));
    assert_eq!((all.whole, all.start), (true, StartNumber(0)));
    add_device(&mut all, device(6, 0, false));
    add_device(&mut all, device(5, 1, false));
    assert_eq!((all.whole, all.start, all.shards.len()), (true, StartNumber(6), 2));
    let s = &all.shards[1];
    assert_eq!((s.shard, s.promised, s.generation), (ShardId::new(1, 1), ViewNumber(4), Generation(3)));
    assert_eq!((s.last, s.committed, s.whole, s.promise_lost), (Sequence(9), Sequence(8), true, true));
}

/// The views that a rebuild may call active rest on it: a log whose device was guessed may be another one's.
#[test]
fn a_device_that_is_guessed_or_damaged_makes_the_node_less_than_whole() {
    let mut guessed = survey_of(CLUSTER, NodeId(2));
    add_device(&mut guessed, device(6, 0, true));
    assert!(!guessed.whole && !guessed.shards[0].whole);
    let mut damaged = survey_of(CLUSTER, NodeId(2));
    let found = Finding { segment: Some(1), offset: 0, what: "damaged".into() };
    add_device(&mut damaged, Survey { recovery: vec![found], ..device(6, 0, false) });
    assert!(!damaged.whole && damaged.shards[0].whole);
    add_device(&mut damaged, device(7, 1, false));
    assert!(!damaged.whole, "and it stays so");
}
