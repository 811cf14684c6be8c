//! Closing a log leaves nothing behind that could still act: every call that changes the device has returned, whatever
//! it was for, or the next start would find what it writes in the place of something newer.

use crate::common::*;
use freebs_io::memory::MemoryDevice;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::{CleanOptions, Options, Record};
use freebs_types::{Error, ErrorKind, Result, Sequence, ShardId};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::task::yield_now;

const SHARD: ShardId = ShardId::new(1, 0);
const BLOCKS: u32 = 200;
/// Tables of a few dozen entries, a checkpoint for each segment or so.
const TINY: Options = Options { map_bytes: 8 << 10, checkpoint_bytes: 1 << 20 };
/// Where checkpoints and superblocks end and segments begin.
const FRONT: u64 = freebs_format::disk::SEGMENTS_AT;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Append,
    Page,
    Slot,
    Sync,
    Length,
    Punch,
    Prewrite,
}

#[derive(Default)]
struct State {
    rng: u64,
    next: u64,
    /// Calls that were begun and have not returned; one whose future was dropped never does.
    flying: RefCell<BTreeMap<u64, Call>>,
    /// The next call of that kind fails.
    fails: Cell<Option<Call>>,
}

/// A device whose calls take a few turns, and that knows which are under way.
#[derive(Clone)]
struct Slow {
    below: MemoryDevice,
    state: Rc<RefCell<State>>,
}

impl Slow {
    fn new(seed: u64) -> Self {
        let state = State { rng: Rng::new(seed).0, ..State::default() };
        Self { below: MemoryDevice::new(512, 1 << 30), state: Rc::new(RefCell::new(state)) }
    }

    fn flying(&self) -> Vec<Call> {
        self.state.borrow().flying.borrow().values().copied().collect()
    }

    async fn call<T>(&self, call: Call, work: impl Future<Output = Result<T>>) -> Result<T> {
        let (number, turns) = {
            let mut s = self.state.borrow_mut();
            let mut rng = Rng(s.rng);
            (s.next, s.rng) = (s.next + 1, rng.next());
            let number = s.next;
            s.flying.borrow_mut().insert(number, call);
            let seldom = matches!(call, Call::Length | Call::Punch | Call::Prewrite);
            (number, rng.below(if seldom { 120 } else { 30 }))
        };
        for _ in 0..turns {
            yield_now().await;
        }
        let fails = self.state.borrow().fails.get() == Some(call);
        let done = if fails {
            self.state.borrow().fails.set(None);
            Err(Error::os("injected"))
        } else {
            work.await
        };
        self.state.borrow().flying.borrow_mut().remove(&number);
        done
    }
}

impl Device for Slow {
    fn sector(&self) -> usize {
        self.below.sector()
    }
    fn len(&self) -> u64 {
        self.below.len()
    }
    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        yield_now().await;
        self.below.read(at, len).await
    }
    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        let call = match durability {
            _ if at < FRONT => Call::Slot,
            Durability::Cached => Call::Page,
            Durability::Durable => Call::Append,
        };
        let done = RefCell::new(None);
        let work = async {
            let (buf, result) = self.below.write(at, buf, durability).await;
            *done.borrow_mut() = Some(buf);
            result
        };
        let result = self.call(call, work).await;
        (done.into_inner().unwrap_or_else(|| AlignedBuf::zeroed(512)), result)
    }
    async fn sync(&self) -> Result<()> {
        self.call(Call::Sync, self.below.sync()).await
    }
    async fn set_len(&self, len: u64) -> Result<()> {
        self.call(Call::Length, self.below.set_len(len)).await
    }
    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.call(Call::Punch, self.below.punch(at, len)).await
    }
    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.call(Call::Prewrite, self.below.prewrite(at, len)).await
    }
}

/// A log that is written, cleaned and covered by checkpoints, up to some moment.
struct Busy {
    rig: Rig,
    chain: Chain,
    model: Model,
}

impl Busy {
    async fn new(device: &Slow, rng: &mut Rng) -> Self {
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open_with(device.clone(), TINY).await.unwrap();
        let eager = CleanOptions { share_percent: 300, target_percent: 100, ..CleanOptions::default() };
        rig.engine.set_cleaning(eager);
        let mut busy = Self { rig, chain: Chain::new(SHARD), model: Model::new() };
        for _ in 0..1 + rng.below(3) {
            busy.write(rng).await;
            if rng.chance(50) {
                // Nobody writes for a while; what is free goes back.
                for _ in 0..rng.below(2000) {
                    yield_now().await;
                }
                busy.rig.engine.flush_idle();
            }
        }
        for _ in 0..rng.below(60) {
            yield_now().await;
        }
        busy
    }

    async fn write(&mut self, rng: &mut Rng) {
        let Self { rig, chain, model } = self;
        for _ in 0..20 + rng.below(250) {
            let op = Op::random(rng, BLOCKS);
            op.apply(model);
            rig.append(Record::Frame(chain.frame(&[op])));
            if rng.chance(30) {
                rig.settle().await;
                chain.committed = chain.sequence;
                rig.engine.committed(SHARD, Sequence(chain.sequence));
            }
            if rng.chance(3) {
                rig.engine.want_checkpoint();
            }
            if rng.chance(5) {
                rig.engine.flush_idle();
            }
        }
    }
}

/// Gives back what was under way when the log was asked to close.
async fn closed(seed: u64) -> Vec<Call> {
    let (device, mut rng) = (Slow::new(seed), Rng::new(seed));
    let Busy { rig, model, .. } = Busy::new(&device, &mut rng).await;
    let was = device.flying();
    rig.engine.close().await.unwrap();
    assert_eq!(device.flying(), [], "under way after the log was closed");
    rig.task.await.unwrap().unwrap();
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!(device.flying(), [], "nothing is begun any more");
    let rig = Rig::open_with(device.clone(), TINY).await.unwrap();
    assert_eq!(rig.report.damage, []);
    assert_eq!(rig.read_all(SHARD, BLOCKS).await.unwrap(), full(&model, BLOCKS));
    rig.stop().await;
    was
}

#[test]
fn nothing_is_under_way_after_a_close() {
    let mut all: BTreeMap<Call, u32> = BTreeMap::new();
    for seed in 0..300 {
        println!("seed {seed}");
        local(async {
            for call in closed(seed).await {
                *all.entry(call).or_default() += 1;
            }
        });
    }
    println!("under way when the log was asked to close: {all:?}");
    let kinds = [Call::Append, Call::Page, Call::Slot, Call::Sync, Call::Length, Call::Punch, Call::Prewrite];
    for kind in kinds {
        assert!(all.contains_key(&kind), "{kind:?} was never under way");
    }
}

/// A log that fails ends the same way: who opens it again meets nothing of before.
async fn failed(seed: u64) {
    let (device, mut rng) = (Slow::new(seed), Rng::new(seed));
    let Busy { rig, mut chain, .. } = Busy::new(&device, &mut rng).await;
    let kind = [Call::Append, Call::Page, Call::Slot, Call::Sync, Call::Length][rng.below(5) as usize];
    device.state.borrow().fails.set(Some(kind));
    rig.engine.want_checkpoint();
    rig.append(Record::Frame(chain.frame(&[Op::random(&mut rng, BLOCKS)])));
    for _ in 0..rng.below(300) {
        yield_now().await;
    }
    let done = rig.engine.close().await;
    assert_eq!(device.flying(), [], "under way after the log was closed: {done:?}");
    let ended = rig.task.await.unwrap();
    if device.state.borrow().fails.get().is_none() {
        assert_eq!(ended.unwrap_err().kind, ErrorKind::DeviceFailed, "{kind:?}");
        assert_eq!(done.unwrap_err().kind, ErrorKind::DeviceFailed, "{kind:?}");
    }
}

#[test]
fn nothing_is_under_way_after_a_log_has_failed() {
    (0..100).for_each(|seed| {
        println!("seed {seed}");
        local(failed(seed));
    });
}

/// A checkpoint that is made without the writer is waited for, too.
#[test]
fn a_checkpoint_without_a_writer_is_waited_for() {
    for turns in 0..60 {
        local(async move {
            let device = Slow::new(turns);
            Busy::new(&device, &mut Rng::new(turns)).await.rig.stop().await;
            let (engine, _) = open_log_with(device.clone(), &expect(), TINY).await.unwrap();
            let other = engine.clone();
            let made = tokio::task::spawn_local(async move { other.checkpoint().await });
            for _ in 0..turns {
                yield_now().await;
            }
            engine.close().await.unwrap();
            assert_eq!(device.flying(), []);
            let begun = turns > 0;
            assert_eq!(made.is_finished(), begun);
            assert_eq!(made.await.unwrap().is_ok(), begun, "none is begun once the log is closed");
        });
    }
}
