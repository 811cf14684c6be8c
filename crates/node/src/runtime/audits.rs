//! Audits of hash chains on one worker: each is begun, asked how far it is, and forgotten when nobody asks any more.
//!
//! Invariants: at most `AUDITS_MAX` at a time, each with one piece of work at a time and a pause behind each, so that
//! the data path goes before; a report is kept until nobody has asked for it for `timing::AUDIT_KEPT`.

use crate::timing;
use freebs_control::audit::{AuditBreak, AuditOf, AuditProof, AuditRange, AuditState, MemberAudit};
use freebs_io::Device;
use freebs_lsvd::Engine;
use freebs_lsvd::audit::{Ask, Auditor, Proof, Report};
use freebs_types::{Error, Result, ShardId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Instant;

/// Audits of one worker that are not forgotten yet.
const AUDITS_MAX: usize = 8;
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

/// The audits of a worker.
pub struct Audits<D: Device>(RefCell<BTreeMap<(u64, ShardId), Job<D>>>);

impl<D: Device> Default for Audits<D> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<D: Device> Audits<D> {
    /// Begins an audit, lets it go on, or says how far it is. `NotFound` if the shard is not here, `Retry` if there are
    /// too many audits.
    pub fn ask(&self, engine: &Engine<D>, of: AuditOf) -> Result<AuditState> {
        let now = Instant::now();
        let mut jobs = self.0.borrow_mut();
        jobs.retain(|_, job| now.duration_since(job.asked) < timing::AUDIT_KEPT);
        let key = (of.run, of.shard);
        if !jobs.contains_key(&key) {
            if jobs.len() >= AUDITS_MAX {
                return Err(Error::retry(format!(
                    "{AUDITS_MAX} audits are under way here; try again when one is over"
                )));
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
                    tokio::task::spawn_local(run(auditor, Rc::downgrade(&job.work)));
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
async fn run<D: Device>(mut auditor: Box<Auditor<D>>, work: Weak<RefCell<Work<D>>>) {
    loop {
        let end = match auditor.step(STEP_BYTES).await {
            Ok(None) => None,
            Ok(Some(report)) => Some(Ok(Box::new(of_report(report)))),
            Err(e) => Some(Err(e)),
        };
        let Some(work) = work.upgrade() else { return };
        let p = auditor.progress();
        let is_over = end.is_some();
        *work.borrow_mut() = match end {
            Some(end) => Work::Done(end),
            None => Work::Reading { done: p.done, total: p.total },
        };
        drop(work);
        if is_over {
            return;
        }
        tokio::time::sleep(timing::AUDIT_PAUSE).await;
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
        proven: r.proven,
        linked: r.linked,
        summarised: r.summarised,
        segments: r.segments,
        bytes: r.bytes,
        samples: r.samples,
        published: r.published,
        unknown: r.unknown,
    }
}
