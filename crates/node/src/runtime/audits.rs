//! Audits of hash chains on one worker: each is begun, asked how far it is, and forgotten when nobody asks any more.
//!
//! Invariants: at most `AUDITS_MAX` are under way. They take turns: of all of them together one reads a piece, and behind
//! each piece is a pause, so that the data path goes before. A report is kept until nobody has asked for it for
//! `timing::AUDIT_KEPT`, or until there are `REPORTS_MAX` newer ones.

use crate::timing;
use freebs_control::audit::{AuditBranch, AuditBreak, AuditOf, AuditProof, AuditRange, AuditState, MemberAudit};
use freebs_io::Device;
use freebs_lsvd::Engine;
use freebs_lsvd::audit::{Ask, Auditor, Proof, Report};
use freebs_types::{Error, Result, ShardId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Instant;
use tokio::sync::Mutex;

/// Audits of one worker that are under way.
const AUDITS_MAX: usize = 8;
/// Audits that are over and whose reports are kept, so that an answer that got lost can be asked for again. A report has
/// half a megabyte at most.
const REPORTS_MAX: usize = 16;
/// Bytes that one piece of work reads.
const STEP_BYTES: u64 = 1 << 20;

enum Work<D: Device> {
    Ready(Box<Auditor<D>>),
    Reading { done: u32, total: u32 },
    Done(Result<Box<MemberAudit>>),
}

struct Job<D: Device> {
    work: Rc<RefCell<Work<D>>>,
    asked: Instant,
}

impl<D: Device> Job<D> {
    fn is_over(&self) -> bool {
        matches!(*self.work.borrow(), Work::Done(_))
    }
}

/// The audits of a worker.
pub struct Audits<D: Device> {
    jobs: RefCell<BTreeMap<(u64, ShardId), Job<D>>>,
    /// Held by the audit that reads, and in the pause behind it. Who asks for it first gets it first.
    turn: Rc<Mutex<()>>,
}

impl<D: Device> Default for Audits<D> {
    fn default() -> Self {
        Self { jobs: RefCell::default(), turn: Rc::default() }
    }
}

impl<D: Device> Audits<D> {
    /// Begins an audit, lets it go on, or says how far it is. `NotFound` if the shard is not here, `Retry` if there are
    /// too many audits.
    pub fn ask(&self, engine: &Engine<D>, of: AuditOf) -> Result<AuditState> {
        let now = Instant::now();
        let mut jobs = self.jobs.borrow_mut();
        jobs.retain(|_, job| now.duration_since(job.asked) < timing::AUDIT_KEPT);
        let key = (of.run, of.shard);
        if !jobs.contains_key(&key) {
            if jobs.values().filter(|job| !job.is_over()).count() >= AUDITS_MAX {
                return Err(Error::retry(format!(
                    "{AUDITS_MAX} audits are under way here; try again when one is over"
                )));
            }
            while jobs.values().filter(|job| job.is_over()).count() >= REPORTS_MAX {
                let over = jobs.iter().filter(|(_, job)| job.is_over());
                let Some(oldest) = over.min_by_key(|(_, job)| job.asked).map(|(key, _)| *key) else { break };
                jobs.remove(&oldest);
            }
            let auditor = Box::new(Auditor::new(engine.clone(), of.shard)?);
            jobs.insert(key, Job { work: Rc::new(RefCell::new(Work::Ready(auditor))), asked: now });
        }
        let Some(job) = jobs.get_mut(&key) else { return Err(Error::bug("an audit was just made")) };
        job.asked = now;
        if let Some(go) = of.go {
            let mut work = job.work.borrow_mut();
            if let Work::Ready(auditor) = &*work {
                let p = auditor.progress();
                let reading = Work::Reading { done: p.done, total: p.total };
                if let Work::Ready(mut auditor) = std::mem::replace(&mut *work, reading) {
                    auditor.ask(Ask { at: go.at.into_iter().collect(), secrets: go.secrets.into_iter().collect() });
                    tokio::task::spawn_local(run(auditor, Rc::downgrade(&job.work), self.turn.clone()));
                }
            }
        }
        match &*job.work.borrow() {
            Work::Ready(auditor) => Ok(AuditState::Ready { committed: auditor.committed() }),
            Work::Reading { done, total } => Ok(AuditState::Reading { done: *done, total: *total }),
            Work::Done(report) => report.clone().map(AuditState::Done),
        }
    }
}

/// Works until the audit is over, or forgotten.
async fn run<D: Device>(mut auditor: Box<Auditor<D>>, work: Weak<RefCell<Work<D>>>, turn: Rc<Mutex<()>>) {
    loop {
        let _turn = turn.lock().await;
        if work.strong_count() == 0 {
            return;
        }
        let end = match auditor.step(STEP_BYTES).await {
            Ok(None) => None,
            Ok(Some(report)) => Some(Ok(Box::new(of_report(report)))),
            Err(e) => Some(Err(e)),
        };
        let is_over = end.is_some();
        let p = auditor.progress();
        if let Some(work) = work.upgrade() {
            *work.borrow_mut() = match end {
                Some(end) => Work::Done(end),
                None => Work::Reading { done: p.done, total: p.total },
            };
        }
        tokio::time::sleep(timing::AUDIT_PAUSE).await;
        if is_over {
            return;
        }
    }
}

fn of_report(r: Report) -> MemberAudit {
    let proof = |p: Proof| match p {
        Proof::Summarised => AuditProof::Summarised,
        Proof::Linked => AuditProof::Linked,
        Proof::Proven => AuditProof::Proven,
    };
    let range = |x: &freebs_lsvd::audit::Range| AuditRange {
        proof: proof(x.proof),
        first_version: x.first_version,
        last_version: x.last_version,
        first: x.first,
        last: x.last,
        first_view: x.first_view,
        last_view: x.last_view,
    };
    let branch = |b: freebs_lsvd::audit::Branch| AuditBranch { view: b.view, sequence: b.sequence, version: b.version };
    let broken = |b: freebs_lsvd::audit::Break| AuditBreak {
        cause: b.cause.name().to_owned(),
        view: b.view,
        first: b.first,
        last: b.last,
        version: b.version,
        segment: b.place.map(|p| p.segment),
        offset: b.place.map(|p| p.offset),
        byte: b.place.map(|p| p.byte),
        what: b.what,
    };
    MemberAudit {
        version: r.version,
        sequence: r.last.sequence,
        committed: r.committed,
        ranges: r.ranges.iter().map(range).collect(),
        folded: r.folded,
        breaks: r.breaks.into_iter().map(broken).collect(),
        break_count: r.break_count,
        branches: r.branches.into_iter().map(branch).collect(),
        proven: r.proven,
        linked: r.linked,
        summarised: r.summarised,
        mended: r.mended,
        segments: r.segments,
        bytes: r.bytes,
        samples: r.samples,
        published: r.published,
        unknown: r.unknown,
        unfit: r.unfit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::audit::AuditGo;
    use freebs_io::memory::MemoryDevice;
    use freebs_lsvd::{Expect, MarkChange, Record, Shape};
    use freebs_types::{ClusterId, DeviceId, ErrorKind, NodeId, Sequence, ViewNumber};
    use std::time::Duration;

    const SHARDS: u32 = 20;
    const SEGMENT: u64 = 1 << 20;

    /// A worker's log with shards of which it has nothing but a promise.
    async fn engine() -> Engine<MemoryDevice> {
        let cluster = ClusterId([7; 16]);
        let device = MemoryDevice::new(4096, 1 << 30);
        let shape = Shape {
            cluster,
            node: NodeId(1),
            device: DeviceId([9; 16]),
            worker: 0,
            workers: 1,
            segment_bytes: SEGMENT,
            size_limit: 41 * SEGMENT,
            wall: 1,
        };
        Engine::create(device.clone(), &shape).await.expect("a device");
        let expect = Expect { cluster, node: NodeId(1), worker: 0, workers: 1 };
        let (engine, _) = Engine::open(device, &expect).await.expect("a log");
        let writer = engine.clone();
        tokio::task::spawn_local(async move { writer.run().await });
        for i in 0..SHARDS {
            let change = MarkChange { promised: Some(ViewNumber(1)), ..MarkChange::default() };
            engine.append(Record::Mark { shard: ShardId::new(1, i), change, ticket: u64::from(i) });
        }
        while engine.state(ShardId::new(1, SHARDS - 1)).is_none() {
            tokio::task::yield_now().await;
        }
        engine
    }

    fn local(work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        tokio::task::LocalSet::new().block_on(&runtime, work);
    }

    fn of(run: u64, shard: u32, go: bool) -> AuditOf {
        AuditOf { shard: ShardId::new(1, shard), run, go: go.then(AuditGo::default) }
    }

    async fn end(audits: &Audits<MemoryDevice>, engine: &Engine<MemoryDevice>, run: u64, shard: u32) {
        loop {
            match audits.ask(engine, of(run, shard, true)).expect("an audit") {
                AuditState::Done(report) => return assert_eq!(report.break_count, 0),
                AuditState::Reading { .. } => tokio::time::sleep(Duration::from_millis(1)).await,
                ready @ AuditState::Ready { .. } => panic!("it was told to go on: {ready:?}"),
            }
        }
    }

    /// A volume of a terabyte has sixteen shards, which may all be of one worker, and `verify` takes them one after the
    /// other. Audits that were over kept the ninth one from beginning.
    #[test]
    fn audits_that_are_over_keep_no_others_from_beginning() {
        local(async {
            let (engine, audits) = (engine().await, Audits::default());
            let ready = AuditState::Ready { committed: Sequence(0) };
            for shard in 0..SHARDS {
                assert_eq!(audits.ask(&engine, of(5, shard, false)), Ok(ready.clone()), "shard {shard}");
                end(&audits, &engine, 5, shard).await;
                end(&audits, &engine, 5, shard).await;
            }
            let kept: Vec<u32> = audits.jobs.borrow().keys().map(|(_, shard)| shard.index).collect();
            assert_eq!(kept, (SHARDS - REPORTS_MAX as u32..SHARDS).collect::<Vec<_>>(), "the oldest ones went");

            // Of those that are under way there is an end.
            for shard in 0..AUDITS_MAX as u32 {
                assert_eq!(audits.ask(&engine, of(6, shard, false)), Ok(ready.clone()));
            }
            let full = |run| audits.ask(&engine, of(run, 9, false)).map_err(|e| e.kind);
            assert_eq!(full(6), Err(ErrorKind::Retry));
            end(&audits, &engine, 6, 3).await;
            assert_eq!(full(6), Ok(ready));
        });
    }

    /// Each audit paused behind its own pieces only: eight of them took eight times as much of the worker.
    #[test]
    fn audits_take_turns_and_pause_behind_each_piece() {
        local(async {
            let (engine, audits) = (engine().await, Audits::default());
            let begun = Instant::now();
            for shard in 0..AUDITS_MAX as u32 {
                let state = audits.ask(&engine, of(5, shard, true));
                assert_eq!(state, Ok(AuditState::Reading { done: 0, total: 1 }));
            }
            for shard in 0..AUDITS_MAX as u32 {
                end(&audits, &engine, 5, shard).await;
            }
            let pauses = timing::AUDIT_PAUSE * (AUDITS_MAX as u32 - 1);
            assert!(begun.elapsed() >= pauses, "{:?} for {AUDITS_MAX} pieces", begun.elapsed());
        });
    }
}
