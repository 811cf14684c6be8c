//! The store alone, against power cuts at every call, failing calls, and damage of every sector.
//!
//! The story: a fixed script of votes, entries, truncations, snapshots. After every step it is noted what is then
//! promised. What is found after a cut must be what was promised by the last step that had returned, or that and the
//! step under way; and damage must be reported, never be taken for a shorter log.

use freebs_consensus::machine::{Machine, Proposal};
use freebs_consensus::store::{Contents, FIRST_PAGE, Kept};
use freebs_consensus::superblock::StoreSuperblock;
use freebs_consensus::types::{Entry, Membership, SnapshotMeta, StoredMembership, Vote, log_id};
use freebs_consensus::{Mutant, Options, Seat, Store};
use freebs_control::Command;
use freebs_io::faults::{Call, CrashDevice, Failure, FaultDevice, Lie, PowerCut, Rot, RotDevice, Survives};
use freebs_io::memory::MemoryDevice;
use freebs_io::{Device, Random};
use freebs_types::*;
use openraft::EntryPayload;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

struct Counting(u64);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.chunks_mut(8).for_each(|c| c.copy_from_slice(&self.0.to_le_bytes()[..c.len()]));
    }
}

const CLUSTER: ClusterId = ClusterId([3; 16]);

/// Those of the start after `start`.
fn options(start: u64, mutant: Option<Mutant>) -> Options {
    let (start, noted) = (StartNumber(start + 1), StartNumber(start));
    Options { cluster: CLUSTER, node: NodeId(2), start, noted, room: 12 << 10, mutant }
}

fn random(seed: u64) -> Box<dyn Random> {
    Box::new(Counting(seed))
}

fn block_on<T>(f: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(f)
}

/// What is promised, without bytes of snapshots.
type Promise = (Option<Vote>, Option<u64>, BTreeMap<u64, Entry>, Option<u64>);

fn promise(c: &Contents) -> Promise {
    let snapshot = c.snapshot.as_ref().and_then(|s| s.meta.last_log_id).map(|l| l.index());
    (c.vote, c.purged.map(|p| p.index()), c.entries.clone(), snapshot)
}

fn entry(term: u64, index: u64) -> Entry {
    let payload = match index % 3 {
        0 => EntryPayload::Blank,
        1 => {
            let seats: BTreeMap<Seat, ()> = (1..4).map(|n| (Seat { node: NodeId(n), store: n * 77 }, ())).collect();
            EntryPayload::Membership(Membership::new(vec![seats.keys().copied().collect()], seats).unwrap())
        }
        _ => {
            let command = Box::new(Command::ResizeVolume { volume: VolumeId(index), size: term << 20 });
            EntryPayload::Normal(Proposal::Command { session: 1, number: index, floor: 1, command })
        }
    };
    Entry { log_id: log_id(term, index), payload }
}

fn kept(term: u64, index: u64) -> Kept {
    let mut machine = Machine::new(CLUSTER);
    machine.applied = Some(log_id(term, index));
    let last_membership = StoredMembership::default();
    Kept { meta: SnapshotMeta { last_log_id: machine.applied, last_membership }, bytes: Rc::new(machine.encode()) }
}

/// One step of the script. More than one area is filled by it.
async fn step(store: &Store, n: u64) -> Result<()> {
    let seat = Seat { node: NodeId(1 + n % 3), store: 5 };
    let next = store.read(|c| c.last().map_or(0, |l| l.index() + 1));
    let term = 1 + n / 8;
    match n % 8 {
        0 => store.save_vote(Vote::new(term, seat)).await,
        1 => store.save_vote(Vote::new_committed(term, seat)).await,
        2 | 4 => store.append((next..next + 3).map(|i| entry(term, i)).collect()).await,
        3 => store.truncate_after(Some(log_id(term, next.saturating_sub(2)))).await,
        5 if n % 16 == 5 => store.save_snapshot(kept(term, next.saturating_sub(2)), false).await,
        5 => store.save_snapshot(kept(term, next + 5), true).await,
        6 => store.purge(log_id(term, next.saturating_sub(4))).await,
        _ => store.append(vec![entry(term, next)]).await,
    }
}

const STEPS: u64 = 48;

/// Runs the script and notes after each step what is promised, and the calls of the device until then.
async fn script(device: &CrashDevice, mutant: Option<Mutant>) -> Result<Vec<(u64, Promise)>> {
    let store = Store::create(device.clone(), options(0, mutant), random(1)).await?;
    let mut promised = vec![(device.calls(), store.read(promise))];
    for n in 0..STEPS {
        step(&store, n).await?;
        promised.push((device.calls(), store.read(promise)));
    }
    Ok(promised)
}

/// Opens every image of every cut; the first thing that is wrong.
fn sweep(mutant: Option<Mutant>, lie: Option<Lie>) -> Result<u64, String> {
    let device = CrashDevice::new(4096, 1 << 30);
    lie.into_iter().for_each(|l| device.lie(l));
    let cuts: Rc<RefCell<Vec<(u64, PowerCut)>>> = Rc::default();
    let seen = cuts.clone();
    device.on_call(move |call, cut| seen.borrow_mut().push((call, cut)));
    let promised = block_on(script(&device, mutant)).unwrap();
    let mut images = 0;
    for (call, cut) in cuts.borrow().iter() {
        // Before the first promise there may be no store yet.
        let Some(done) = promised.iter().rposition(|(calls, _)| calls < call) else { continue };
        let survives = [Survives::Nothing, Survives::Everything, Survives::Torn(*call), Survives::Torn(call * 31)];
        for how in survives.into_iter().chain((0..4).map(|s| Survives::Torn(call * 97 + s))) {
            images += 1;
            let opened = block_on(Store::open(cut.image(how), options(1, mutant), random(call * 7 + 1)));
            let store = opened.map_err(|e| format!("call {call}, {how:?}: {e}"))?;
            let found = store.read(promise);
            let next = promised.get(done + 1).map(|p| &p.1);
            if found != promised[done].1 && Some(&found) != next {
                return Err(format!("call {call}, {how:?}: neither step {done} nor the next"));
            }
        }
    }
    Ok(images)
}

#[test]
fn every_cut_leaves_what_was_promised() {
    let images = sweep(None, None).unwrap();
    println!("{images} images of power cuts");
    assert!(images > 400);
}

#[test]
fn the_sweep_would_notice() {
    for mutant in [Mutant::VoteNotSynced, Mutant::EntryNotSynced, Mutant::PurgeBeforeSnapshot] {
        println!("{mutant:?}: {}", sweep(Some(mutant), None).expect_err("it is caught"));
    }
    println!("a device that lies: {}", sweep(None, Some(Lie::Durable)).expect_err("it is caught"));
}

#[test]
fn a_store_opened_again_goes_on_and_stays_small() {
    let device = MemoryDevice::new(512, 1 << 30);
    block_on(async {
        let mut store = Store::create(device.clone(), options(0, None), random(1)).await.unwrap();
        let seat = store.seat();
        for start in 1..60 {
            for n in 0..STEPS {
                // Terms and indexes of the script only grow, so it can be run again and again.
                step(&store, (start - 1) * STEPS + n).await.unwrap();
            }
            let promised = store.read(promise);
            store = Store::open(device.clone(), options(start, None), random(start + 1)).await.unwrap();
            assert_eq!(store.read(promise), promised);
            assert_eq!((store.seat(), store.start_number()), (seat, StartNumber(start + 1)));
        }
    });
    assert!(device.len() <= 2 << 20, "{} bytes", device.len());
}

/// Rule V8: an old image of the store, or of the device that it belongs to, is noticed; so is a foreign one.
#[test]
fn old_and_foreign_images_are_refused() {
    let device = CrashDevice::new(4096, 1 << 30);
    let open = |device: CrashDevice, o: Options| block_on(Store::open(device, o, random(9)));
    drop(block_on(Store::create(device.clone(), options(0, None), random(1))).unwrap());
    let yesterday = device.copy();
    drop(open(device.clone(), options(1, None)).unwrap());
    let unnoted = Options { noted: StartNumber(1), ..options(2, None) };
    let between = device.copy();
    drop(open(device.clone(), unnoted).expect("the start before did not get so far as to note it"));
    let kind = |r: Result<Store>| r.err().map(|e| e.kind);
    assert_eq!(kind(open(yesterday, options(3, None))), Some(ErrorKind::Corrupt));
    assert_eq!(kind(open(between, options(3, None))), Some(ErrorKind::Corrupt), "of a start that was not noted");
    assert_eq!(kind(open(device.copy(), options(1, None))), Some(ErrorKind::Corrupt), "the device is an old image");
    assert_eq!(kind(open(device.copy(), Options { node: NodeId(9), ..options(3, None) })), Some(ErrorKind::Corrupt));
    let other = Options { cluster: ClusterId([9; 16]), ..options(3, None) };
    assert_eq!(kind(open(device.copy(), other)), Some(ErrorKind::Corrupt));
    let blank = open(CrashDevice::new(4096, 1 << 20), options(3, None));
    assert_eq!(kind(blank), Some(ErrorKind::NotFound));
    let over = block_on(Store::create(device, options(3, None), random(1)));
    assert_eq!(kind(over), Some(ErrorKind::Invalid), "never over an old one");
}

#[test]
fn after_a_failed_call_nothing_goes() {
    for failure in [Failure::Io, Failure::Short, Failure::Late, Failure::NoSpace] {
        for call in 0..20 {
            let device = FaultDevice::new(CrashDevice::new(4096, 1 << 30));
            block_on(async {
                let store = Store::create(device.clone(), options(0, None), random(1)).await.unwrap();
                device.plan(Call::Write, call, failure);
                let mut failed = false;
                for n in 0..STEPS {
                    let before = store.read(promise);
                    let done = step(&store, n).await;
                    failed |= done.is_err();
                    if failed {
                        assert!(done.is_err() || n % 8 == 6, "step {n} after a failure");
                        assert_eq!(store.read(promise), before, "what failed is not seen");
                        assert_eq!(store.poison().unwrap().kind, ErrorKind::DeviceFailed);
                    }
                }
                assert!(failed && device.hits() == 1);
            });
        }
    }
}

/// Each sector of a store in use, with each kind of damage: it is noticed, or nothing that counts was in it. The last
/// batch, too: a torn write leaves something else.
fn damaged_sectors(mutant: Option<Mutant>) -> Result<(u64, u64), String> {
    let device = CrashDevice::new(4096, 1 << 30);
    let promised = block_on(script(&device, None)).unwrap();
    // A last batch that was zeroed as a whole is as one that was never written; nothing local can tell.
    let [.., (_, before), (_, promised)] = &promised[..] else { panic!("a longer script") };
    let (mut noticed, mut harmless) = (0, 0);
    for at in (0..device.len()).step_by(4096) {
        for rot in [Rot::Flip(at + 77), Rot::Flip(31_000), Rot::Garbage(at), Rot::CopyOf(16 << 10), Rot::Zero] {
            let rotten = RotDevice::new(device.copy());
            if !block_on(rotten.rot(at, rot)).unwrap() {
                continue;
            }
            match block_on(Store::open(rotten, options(1, mutant), random(5))) {
                Err(e) => {
                    assert_eq!(e.kind, ErrorKind::Corrupt, "{e}");
                    noticed += 1;
                }
                Ok(store) if store.read(promise) == *promised => harmless += 1,
                Ok(store) if rot == Rot::Zero && store.read(promise) == *before => harmless += 1,
                Ok(_) => return Err(format!("damage at byte {at} went unnoticed")),
            }
        }
    }
    Ok((noticed, harmless))
}

#[test]
fn damage_is_never_a_shorter_log() {
    let (noticed, harmless) = damaged_sectors(None).unwrap();
    println!("{noticed} noticed, {harmless} harmless");
    assert!(noticed > 8 && harmless > 2, "copies of superblocks and old areas are harmless");
    println!("{}", damaged_sectors(Some(Mutant::DamageIsATornTail)).expect_err("it is caught"));
}

/// A write that was answered and never done, with another one behind it.
#[test]
fn a_lost_write_is_noticed() {
    let rotten = RotDevice::new(CrashDevice::new(4096, 1 << 30));
    block_on(async {
        let store = Store::create(rotten.clone(), options(0, None), random(1)).await.unwrap();
        step(&store, 0).await.unwrap();
        rotten.lose_write(0);
        step(&store, 2).await.unwrap();
        step(&store, 4).await.unwrap();
        let opened = Store::open(rotten, options(1, None), random(2)).await;
        assert_eq!(opened.err().map(|e| e.kind), Some(ErrorKind::Corrupt));
    });
}

/// The fuzzer changed a page that no area used. The start passed over it, and made its new area around it; the start
/// after that took it for damage of that area, and the seat was lost.
#[test]
fn rot_where_no_area_lies_does_not_count_later() {
    block_on(async {
        let device = MemoryDevice::new(512, 1 << 30);
        let store = Store::create(device.clone(), options(0, None), random(1)).await.unwrap();
        for index in 0..60 {
            store.append(vec![entry(1, index)]).await.unwrap();
        }
        drop(store);
        let store = Store::open(device.clone(), options(1, None), random(2)).await.unwrap();
        let before = store.read(promise);
        drop(store);
        let mut rotten = 0;
        device.poke(|b| {
            let s = StoreSuperblock::read(&b[..4096]).unwrap().unwrap();
            let area = s.first_page.get()..s.first_page.get() + s.pages.get();
            for page in (FIRST_PAGE..(b.len() / 512) as u32).filter(|p| !area.contains(p)) {
                let at = page as usize * 512;
                if b[at..at + 512].iter().any(|b| *b != 0) {
                    b[at + 300] ^= 1;
                    rotten += 1;
                }
            }
        });
        assert!(rotten > 20, "{rotten} pages of older areas");
        for start in 2..6 {
            let store = Store::open(device.clone(), options(start, None), random(start + 1)).await.unwrap();
            assert_eq!(store.read(promise), before, "start {start}");
        }
    });
}

/// The fuzzer opened a store with the last generation there is: the start wrote the next one into both superblocks, and
/// no later start could read them.
#[test]
fn a_store_whose_numbers_are_used_up_stays_as_it_is() {
    block_on(async {
        let device = MemoryDevice::new(512, 1 << 30);
        let store = Store::create(device.clone(), options(0, None), random(1)).await.unwrap();
        store.append(vec![entry(1, 0)]).await.unwrap();
        drop(store);
        let mut forged = vec![];
        device.poke(|b| {
            let mut s = StoreSuperblock::read(&b[..4096]).unwrap().unwrap();
            s.generation = freebs_control::limits::NUMBER_MAX.into();
            s.seal();
            for copy in [0, 4096] {
                b[copy..copy + size_of::<StoreSuperblock>()].copy_from_slice(zerocopy::IntoBytes::as_bytes(&s));
            }
            forged.clone_from(b);
        });
        for attempt in 0..2 {
            let opened = Store::open(device.clone(), options(1, None), random(2 + attempt)).await;
            let refused = opened.err().expect("a start needs another area");
            assert_eq!(refused.kind, ErrorKind::Corrupt);
            assert!(refused.text.contains("can't be counted on from"), "attempt {attempt}: {refused}");
        }
        device.poke(|b| assert!(*b == forged, "nothing was written"));
    });
}
