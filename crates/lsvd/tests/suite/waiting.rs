//! The writer waits for readers without turning in circles.

use crate::common::*;
use freebs_format::ExtentKind;
use freebs_io::memory::MemoryDevice;
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_lsvd::Record;
use freebs_types::{BlockRange, Result, Sequence, ShardId};
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use tokio::sync::Notify;
use tokio::task::yield_now;

/// A device whose reads, or writes, stand still while the gate is shut.
#[derive(Clone)]
pub struct Gated {
    below: MemoryDevice,
    shut: Rc<Cell<bool>>,
    shut_to_writes: Rc<Cell<bool>>,
    opened: Rc<Notify>,
}

impl Gated {
    /// One with open gates.
    pub fn new(below: MemoryDevice) -> Self {
        Self { below, shut: Rc::default(), shut_to_writes: Rc::default(), opened: Rc::default() }
    }

    /// Shuts the gate to writes, or opens it.
    pub fn shut_to_writes(&self, is_so: bool) {
        self.shut_to_writes.set(is_so);
        self.opened.notify_waiters();
    }
}

impl Device for Gated {
    fn sector(&self) -> usize {
        self.below.sector()
    }
    fn len(&self) -> u64 {
        self.below.len()
    }
    async fn read(&self, at: u64, len: usize) -> Result<AlignedBuf> {
        while self.shut.get() {
            self.opened.notified().await;
        }
        self.below.read(at, len).await
    }
    async fn write(&self, at: u64, buf: AlignedBuf, durability: Durability) -> (AlignedBuf, Result<()>) {
        while self.shut_to_writes.get() {
            self.opened.notified().await;
        }
        self.below.write(at, buf, durability).await
    }
    async fn sync(&self) -> Result<()> {
        self.below.sync().await
    }
    async fn set_len(&self, len: u64) -> Result<()> {
        self.below.set_len(len).await
    }
    async fn punch(&self, at: u64, len: u64) -> Result<()> {
        self.below.punch(at, len).await
    }
    async fn prewrite(&self, at: u64, len: u64) -> Result<()> {
        self.below.prewrite(at, len).await
    }
}

async fn readers_hold_all_that_is_free() {
    let device = Gated::new(MemoryDevice::new(512, 1 << 30));
    let (shut, opened) = (device.shut.clone(), device.opened.clone());
    create_log(device.clone(), &shape(8)).await.unwrap();
    let (engine, _) = open_log(device, &expect()).await.unwrap();
    let heard = Rc::new(Heard::default());
    engine.set_listener(heard.clone());
    let polls = Rc::new(Cell::new(0));
    let (writer, turns) = (engine.clone(), polls.clone());
    tokio::task::spawn_local(async move {
        let mut run = pin!(writer.run());
        poll_fn(|cx| {
            turns.set(turns.get() + 1);
            run.as_mut().poll(cx)
        })
        .await
    });

    let shard = ShardId::new(1, 0);
    let mut chain = Chain::new(shard);
    let mut sent = 0;
    shut.set(true);
    // The same blocks again and again: each segment that closes is soon free, and a read holds it.
    for fill in 0..400 {
        let op = Op { extents: vec![(ExtentKind::Data, 0, 24)], fill };
        engine.append(Record::Frame(chain.frame(&[op])));
        sent += 1;
        for _ in 0..20 {
            yield_now().await;
        }
        if heard.count.get() < sent {
            break;
        }
        chain.committed = chain.sequence;
        engine.committed(shard, Sequence(chain.committed));
        let reader = engine.clone();
        tokio::task::spawn_local(async move { reader.read(shard, BlockRange::new(0, 1)).await.map(drop) });
        yield_now().await;
    }
    assert!(heard.count.get() < sent, "the writer should wait for a reader here");
    let before = polls.get();
    for _ in 0..1000 {
        yield_now().await;
    }
    assert!(polls.get() - before < 5, "{} turns while there is nothing to do", polls.get() - before);

    shut.set(false);
    opened.notify_waiters();
    for _ in 0..1000 {
        yield_now().await;
    }
    assert_eq!(heard.count.get(), sent, "the last reader that goes lets the writer go on");
}

#[test]
fn a_writer_that_waits_for_readers_does_not_spin() {
    local(readers_hold_all_that_is_free());
}

/// A small device with three segments that are nearly full of what lives. A frame waited for cleaning, which freed a
/// segment; the frame did not fit what was left of the open one, so the free one was opened for it, and there it waited
/// again, because there was a free one less. Cleaning filled the new segment, and so on, until it had moved all that it
/// ever may: on a slow disk that took longer than anybody waits.
#[test]
fn who_waited_for_a_segment_gets_into_it() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(8)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut c = Chain::new(ShardId::new(1, 0));
        let mut write = |at: u32, len: u32| {
            c.committed = c.sequence;
            c.frame(&[Op { extents: vec![(ExtentKind::Data, at, len)], fill: 7 }])
        };
        let mut model = Model::new();
        for i in 0..15 {
            rig.append(Record::Frame(write(i * 44, 44)));
            rig.settle().await;
            rig.engine.committed(ShardId::new(1, 0), Sequence(u64::from(i) + 1));
            Op { extents: vec![(ExtentKind::Data, i * 44, 44)], fill: 7 }.apply(&mut model);
        }
        let c = rig.engine.counters();
        rig.engine.check();
        assert_eq!(rig.read_all(ShardId::new(1, 0), 660).await.unwrap(), full(&model, 660));
        assert!(c.cleaned_bytes > 0, "nobody waited");
        assert!(c.cleaned_bytes <= 2 * SEGMENT, "{} bytes were moved for two frames", c.cleaned_bytes);
    });
}
