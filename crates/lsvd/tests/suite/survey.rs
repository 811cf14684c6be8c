//! What a device says of its shards' views, when nobody else is there to ask.

use crate::common::*;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::tool::survey;
use freebs_lsvd::{Learned, MarkChange, Record};
use freebs_types::{Generation, Sequence, ShardId, ViewNumber};

const FIRST: usize = 1 << 20;
const SHARD: ShardId = ShardId { volume: freebs_types::VolumeId(1), index: 0 };

async fn frames(rig: &Rig, chain: &mut Chain, rng: &mut Rng, count: u32) {
    for _ in 0..count {
        rig.append(Record::Frame(chain.frame(&[Op::random(rng, 200)])));
    }
    rig.settle().await;
}

/// Views 1, 4 and 6, of which frames of view 4 are committed, a generation, and a promise above all.
async fn device() -> (MemoryDevice, Chain) {
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(40)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    let (mut rng, mut chain) = (Rng::new(7), Chain::new(SHARD));
    rig.append(Record::Frame(chain.view_frame(1, 1)));
    frames(&rig, &mut chain, &mut rng, 3).await;
    rig.append(Record::Frame(chain.view_frame(4, 2)));
    rig.append(Record::Frame(chain.attach_frame(9)));
    frames(&rig, &mut chain, &mut rng, 2).await;
    chain.committed = chain.sequence - 1;
    frames(&rig, &mut chain, &mut rng, 1).await;
    rig.append(Record::Frame(chain.view_frame(6, 3)));
    rig.settle().await;
    let change = MarkChange { promised: Some(ViewNumber(11)), ..MarkChange::default() };
    rig.append(Record::Mark { shard: SHARD, change, ticket: 1 });
    rig.settle().await;
    rig.stop().await;
    (device, chain)
}

#[test]
fn views_promises_and_generations_are_told_and_nothing_is_written() {
    local(async {
        let (device, chain) = device().await;
        let mut before = Vec::new();
        device.poke(|b| before.clone_from(b));
        let found = survey(&device, &mut ()).await.unwrap();
        device.poke(|b| assert!(*b == before, "nothing was written"));
        assert!(found.recovery.is_empty() && found.shards.len() == 1);
        let s = &found.shards[0];
        assert_eq!((s.shard, s.promised, s.generation, s.whole), (SHARD, ViewNumber(11), Generation(9), true));
        assert_eq!((s.last, s.committed), (Sequence(chain.sequence), Sequence(chain.committed)));
        // View 1 is of no use any more: view 4 is committed.
        let views: Vec<_> = s.views.iter().map(|(n, at, body)| (n.0, at.0, body.pred.0)).collect();
        assert_eq!(views, [(4, 5, 1), (6, chain.sequence, 4)]);
    });
}

/// A frame in the middle is lost: the log is not whole, and says so.
#[test]
fn a_log_that_lost_something_is_not_whole() {
    local(async {
        let (device, _) = device().await;
        let mut bytes = Vec::new();
        device.poke(|b| bytes.clone_from(b));
        let appends: Vec<usize> =
            (FIRST..bytes.len()).step_by(512).filter(|at| bytes[*at..].starts_with(b"FBAP")).collect();
        assert!(appends.len() > 4, "{appends:?}");
        // Each with the one behind it, which repeats it.
        for two in appends.windows(3).map(|three| &three[..2]) {
            let at = two[0];
            let hurt = MemoryDevice::new(512, 1 << 30);
            hurt.poke(|b| b.extend_from_slice(&bytes));
            hurt.poke(|b| two.iter().for_each(|at| b[at + 50] ^= 1));
            let found = survey(&hurt, &mut ()).await.unwrap();
            assert!(!found.recovery.is_empty(), "append at {at}");
            assert!(found.shards.iter().all(|s| !s.whole), "append at {at}: {:?}", found.shards);
        }
    });
}

/// Lost frames of it were given up by force, and the control state was lost before a branch was active. A rebuild took the log
/// for a whole one: what it had lost was lost without anybody being told, and whole logs were cut back to it (V10).
#[test]
fn a_log_that_gave_frames_up_is_not_whole_before_its_branch_is_active() {
    local(async {
        let (device, mut chain) = device().await;
        let is_whole = async || survey(&device, &mut ()).await.unwrap().shards[0].whole;
        let rig = Rig::open(device.clone()).await.unwrap();
        let learned = Learned { since: Sequence(1), upto: Sequence(2), given_up: ViewNumber(6), ..Learned::default() };
        let change = MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() };
        rig.append(Record::Mark { shard: SHARD, change, ticket: 2 });
        rig.settle().await;
        rig.stop().await;
        assert!(!is_whole().await);
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.append(Record::Frame(chain.view_frame(7, 3)));
        rig.settle().await;
        rig.stop().await;
        assert!(!is_whole().await, "the branch may never become active");
        let rig = Rig::open(device.clone()).await.unwrap();
        chain.committed = chain.sequence;
        rig.append(Record::Frame(chain.frame(&[Op::random(&mut Rng::new(3), 200)])));
        rig.settle().await;
        rig.stop().await;
        assert!(is_whole().await);
    });
}
