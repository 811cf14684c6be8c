//! Reads of the past: blocks as they were at a version that is kept, for anybody who asks.
//!
//! The data in force at a kept version never change, whoever is the head and whoever has the volume attached. So a read of
//! it needs no view, generation or lease, and lends nothing: any copy answers that has the version.
//!
//! Invariants:
//! - A member answers only what is committed and durable in its own log (W4, E4), so no cut can take back what it showed;
//!   and only versions that its log keeps (E6), with all that they see: history must be whole down to them. A snapshot that is named has to be the one that the
//!   version is kept for: a log that was left by force (V10) has other data at the same numbers.
//! - A member that lacks something refuses, and says what to do: `NotReady` and `Corrupt` (ask another one), `NotFound` (it
//!   does not keep this version, or not this shard).
//! - A question costs no more than one for the present: the same limits hold.

use crate::event::{Action, ControlPort};
use crate::member::range_refusal;
use crate::replica::{Ctx, Replica};
use crate::worker::{Found, Worker};
use freebs_format::wire::{Message, ReadRequest, Refusal, Request};
use freebs_io::{Clock, Device, LinkId, Outbox};
use freebs_types::{Result, Version};

/// True for a request for the past.
pub(crate) fn is_of_the_past(r: &ReadRequest) -> bool {
    r.at.version.0 > 0 || r.since.version.0 > 0
}

impl Replica {
    /// A read of the past: whoever asks, in whatever view this member is.
    pub fn on_read_past(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: ReadRequest) {
        match self.past_refusal(&r) {
            Some(reason) => self.refuse(ctx, link, Request::Read(r.id), reason),
            None => ctx.out.actions.push(Action::Read { link, request: r }),
        }
    }

    /// Why this member does not look a read of the past up.
    fn past_refusal(&self, r: &ReadRequest) -> Option<Refusal> {
        let (version, since) = (r.at.version, r.since.version);
        if version.0 == 0 || since.0 > 0 && (!r.status_only || since > version) {
            return Some(Refusal::Invalid);
        }
        if let Some(reason) = range_refusal(r) {
            return Some(reason);
        }
        let safe = self.committed.min(self.durable);
        let committed = self.tail.get(&self.committed).map_or(Version(0), |t| t.version);
        let is_durable = safe >= r.floor && self.durable >= self.committed;
        let has_it = self.stopped.is_none() && is_durable && committed >= version;
        if !has_it {
            return Some(Refusal::NotReady);
        }
        // The log says the same when it is asked, with what it knows by then.
        let is_lacking = |v: Version| v.0 > 0 && v < self.whole_from && v < self.version;
        (is_lacking(version) || is_lacking(since)).then_some(Refusal::Corrupt)
    }
}

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// The blocks at a version, from the log. `NotFound` if it does not keep it, or for another snapshot than is asked for.
    pub(crate) async fn look_up_past(&self, r: &ReadRequest) -> Result<Found> {
        let found = self.look_up_version(r).await?;
        // The log may have gone on elsewhere by force while it was read (V10), with other data at the same version.
        for pin in [r.at, r.since].into_iter().filter(|p| p.snapshot.0 > 0) {
            self.engine().check_pin(r.shard, pin)?;
        }
        Ok(found)
    }

    async fn look_up_version(&self, r: &ReadRequest) -> Result<Found> {
        let (engine, version) = (self.engine(), r.at.version);
        if !r.status_only {
            let out = engine.read_at(r.shard, version, r.range).await?;
            return Ok((out.pieces, out.crcs, out.data));
        }
        let pieces = match r.since.version {
            Version(0) => engine.block_status_at(r.shard, version, r.range).await?,
            since => engine.changes_at(r.shard, version, since, r.range).await?,
        };
        Ok((pieces, Vec::new(), Vec::new()))
    }
}
