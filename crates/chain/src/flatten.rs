//! Makes forks flat (design note 36), one at a time, in the background: those that are to be, those that read through too
//! many others, and those whose parent is to leave this log. What leaves waits for them.

#[cfg(test)]
mod tests;

use crate::event::{ControlPort, Event, Mutant, Note, NoteKind, ShardInfo};
use crate::timing;
use crate::worker::Worker;
use freebs_format::wire::Message;
use freebs_io::{Clock, Device, Outbox};
use freebs_lsvd::{Durable, MarkChange, Record};
use freebs_types::{Error, ErrorKind, Fork, Lba, Nanos, Result, ShardId, ViewNumber};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Shards that a read may pass through beside its own, before a fork is made flat.
const DEPTH_MAX: usize = 8;
/// Bytes of data of a piece.
const PIECE_BYTES: usize = 1 << 20;
/// This part of a device is left to clients when forks are made flat.
const LEFT_TO_CLIENTS: u32 = 20;

/// The work on a worker's forks that is under way.
#[derive(Default)]
pub(crate) struct Flattening {
    /// News by which shards end here that forks still read from.
    ends: BTreeMap<ShardId, Event>,
    /// The ticket of a piece that is being written, and who waits for it.
    writing: Option<(u64, oneshot::Sender<Result<()>>)>,
    turns: Turns,
}

/// The thing that waits for a fork to be flat, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wanted {
    /// The log of its parent is to begin anew: until then that member is away from its shard.
    News,
    /// Its parent is to go: until then it takes room.
    End,
    /// Somebody asked for it, or it reads through too many others.
    Itself,
}

/// The order in which forks are made flat. One that fails rests for itself, and the others go on.
#[derive(Default)]
struct Turns {
    last: Option<ShardId>,
    tried: BTreeMap<ShardId, Tried>,
}

/// A fork that could not be made flat.
#[derive(Debug)]
struct Tried {
    rests_until: Nanos,
    /// In a row without a piece that was brought.
    times: u32,
    /// The kind of the error that people were told of.
    told: Option<ErrorKind>,
    /// The reason.
    why: String,
    /// Everything in front of this block was brought.
    at: Lba,
}

impl Turns {
    /// The next one of those that are wanted and do not rest: of the most urgent ones the first behind the one before.
    fn next(&self, now: Nanos, wanted: &BTreeMap<ShardId, Wanted>) -> Option<ShardId> {
        let rests = |shard: &ShardId| self.tried.get(shard).is_some_and(|t| now < t.rests_until);
        let order = |(shard, by): &(ShardId, Wanted)| (*by, Some(*shard) <= self.last, *shard);
        let all = wanted.iter().map(|(shard, by)| (*shard, *by)).filter(|(shard, _)| !rests(shard));
        all.min_by_key(order).map(|(shard, _)| shard)
    }

    /// The block that a fork's next try begins at.
    fn begins_at(&self, shard: ShardId) -> Lba {
        self.tried.get(&shard).map_or(Lba(0), |t| t.at)
    }

    /// It was brought up to this block and then failed. True if people have to be told.
    fn failed(&mut self, now: Nanos, shard: ShardId, at: Lba, e: &Error) -> bool {
        let before = self.tried.remove(&shard);
        let got_on = before.as_ref().is_none_or(|t| t.at < at);
        let times = before.as_ref().filter(|_| !got_on).map_or(0, |t| t.times + 1);
        let told = before.and_then(|t| t.told);
        let pause = Nanos(timing::FLATTEN_AGAIN.0 << times.min(timing::FLATTEN_TRIES_MAX));
        let is_news = told != Some(e.kind) && e.kind != ErrorKind::Retry;
        let told = if is_news { Some(e.kind) } else { told };
        self.tried.insert(shard, Tried { rests_until: now.plus(pause), times, told, why: e.to_string(), at });
        is_news
    }
}

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// The news of a control state: shards that are new or changed, those that this node leaves, each with the view that is active,
    /// and those that were deleted. The first are told first: forks of a shard that ends may be among them.
    pub fn on_state(&self, changed: Vec<ShardInfo>, left: &[(ShardId, ViewNumber)], gone: &[ShardId]) {
        if !changed.is_empty() {
            self.on_shards(changed);
        }
        left.iter().for_each(|(shard, active)| self.on_left(*shard, *active));
        gone.iter().for_each(|shard| self.on_gone(*shard));
    }

    /// Puts news off by which a shard ends here, if forks read from it or are about to. True if so.
    pub(crate) fn put_off(&self, shard: ShardId, event: Event) -> bool {
        let waits = self.is_read(shard);
        if waits {
            let mut flattening = self.flattening();
            let is_gone = matches!(flattening.ends.get(&shard), Some(Event::Gone(_)));
            if !is_gone {
                flattening.ends.insert(shard, event);
            }
        }
        waits
    }

    /// True if forks of this log read from a shard, or the mark of one is on its way.
    fn is_read(&self, shard: ShardId) -> bool {
        self.engine().is_read_by_forks(shard) || self.is_to_be_read(shard)
    }

    /// News of shards, without those by which a log begins anew that forks still read from.
    pub(crate) fn without_ends(&self, mut infos: Vec<ShardInfo>) -> Vec<ShardInfo> {
        infos.retain(|info| {
            self.flattening().ends.remove(&info.shard);
            !(self.begins_anew(info) && self.put_off(info.shard, Event::Shards(vec![info.clone()])))
        });
        infos
    }

    /// The log's answers to pieces.
    pub(crate) fn hear_of_pieces(&self, done: &[Durable]) {
        let mut flattening = self.flattening();
        for d in done {
            if let Durable::Forget { shard } = d {
                flattening.turns.tried.remove(shard);
            }
        }
        let Some(ticket) = flattening.writing.as_ref().map(|(ticket, _)| *ticket) else { return };
        let end = done.iter().find_map(|d| match d {
            Durable::Carry { ticket: t, .. } | Durable::Mark { ticket: t, .. } if *t == ticket => Some(Ok(())),
            Durable::NoRoom { ticket: t, .. } if *t == ticket => Some(Err(Error::no_space("the device is full"))),
            Durable::Unlearned { ticket: t, why, .. } if *t == ticket => Some(Err(Error::corrupt(*why))),
            _ => None,
        });
        if let Some(end) = end
            && let Some((_, tell)) = flattening.writing.take()
        {
            // The task that waited may have given up.
            let _ = tell.send(end);
        }
    }

    pub(crate) async fn run_flatten(self) {
        loop {
            tokio::time::sleep(timing::FLATTEN_EVERY).await;
            self.end_orphans();
            self.end_what_waits();
            let Some(shard) = self.to_flatten() else { continue };
            let mut at = self.flattening().turns.begins_at(shard);
            let done = self.flatten(shard, &mut at).await;
            self.flattening().turns.last = Some(shard);
            match done {
                Ok(blocks) => {
                    self.flattening().turns.tried.remove(&shard);
                    let text = format!("shard {shard}: it reads from no parent any more; {blocks} blocks were copied");
                    (self.notes())(&Note::new(NoteKind::Trace, Some(shard), text));
                }
                Err(_) if self.leaves_out(Mutant::TurnsStay) => self.flattening().turns = Turns::default(),
                Err(e) => {
                    let is_news = self.flattening().turns.failed(self.now(), shard, at, &e);
                    let text = format!("shard {shard}: {}", waits_to_be_flat(&e.to_string()));
                    let kind = if is_news { NoteKind::Waits } else { NoteKind::Trace };
                    (self.notes())(&Note::new(kind, Some(shard), text));
                }
            }
        }
    }

    /// Forks for which the log has lost what they read begin anew, unless they have frames of their own: these are to be kept, and
    /// the next start sees to them.
    fn end_orphans(&self) {
        let engine = self.engine();
        let is_orphan = |shard: &ShardId| self.is_orphan(*shard) && !self.has_own_frames(*shard);
        let orphans: Vec<ShardId> = engine.forks().into_iter().map(|(shard, _)| shard).filter(is_orphan).collect();
        orphans.into_iter().for_each(|shard| self.step(Event::Orphaned(shard)));
    }

    /// True if the log has lost, for good, something that a fork reads from its parents.
    pub(crate) fn is_orphan(&self, fork: ShardId) -> bool {
        self.engine().check_inherited(fork).is_err() && !self.leaves_out(Mutant::OrphansGoOn)
    }

    /// Shards that waited for their forks end.
    fn end_what_waits(&self) {
        let waiting: Vec<ShardId> = self.flattening().ends.keys().copied().collect();
        for shard in waiting.into_iter().filter(|shard| !self.is_read(*shard)) {
            let event = self.flattening().ends.remove(&shard);
            event.into_iter().for_each(|event| self.step(event));
        }
    }

    /// The next fork that is to be made flat.
    fn to_flatten(&self) -> Option<ShardId> {
        let forks = self.forks();
        self.flattening().turns.tried.retain(|shard, _| forks.contains_key(shard));
        let wanted = forks.into_iter().filter_map(|(shard, fork)| Some((shard, self.wanted(shard, &fork)?))).collect();
        self.flattening().turns.next(self.now(), &wanted)
    }

    /// Shards of this log that read from a parent.
    pub(crate) fn forks(&self) -> BTreeMap<ShardId, Fork> {
        self.engine().forks().into_iter().collect()
    }

    fn wanted(&self, shard: ShardId, fork: &Fork) -> Option<Wanted> {
        let by_parent = self.flattening().ends.get(&fork.parent).map(|end| match end {
            Event::Shards(_) => Wanted::News,
            _ => Wanted::End,
        });
        let by_itself = || self.is_to_be_flat(shard) || self.engine().depth(shard) > DEPTH_MAX;
        by_parent.or_else(|| by_itself().then_some(Wanted::Itself))
    }

    /// The reason for which a fork that is to be flat is not, for people.
    pub(crate) fn why_not_flat(&self, shard: ShardId) -> Option<String> {
        self.flattening().turns.tried.get(&shard).map(|t| waits_to_be_flat(&t.why))
    }

    /// An error if the room that is left is the clients'.
    fn has_room_to_flatten(&self) -> Result<()> {
        let space = self.engine().space();
        let left = space.reserve_segments + space.limit_segments.div_ceil(LEFT_TO_CLIENTS);
        match space.free_segments > left {
            true => Ok(()),
            false => Err(Error::no_space("the room that is left on the device is kept for clients")),
        }
    }

    /// Copies what a fork reads from its parents, from a block on, and moves that block. Gives back how many blocks it
    /// copied.
    async fn flatten(&self, shard: ShardId, at: &mut Lba) -> Result<u64> {
        let mut blocks = 0;
        loop {
            let (body, data, next) = self.engine().inherited_entries(shard, *at, PIECE_BYTES).await?;
            if !body.entries.is_empty() {
                self.has_room_to_flatten()?;
                blocks += data.iter().map(|d| d.len() as u64).sum::<u64>() / freebs_types::BLOCK as u64;
                self.write(shard, |ticket| Record::Carry { shard, body, data, ticket }).await?;
                tokio::time::sleep(timing::FLATTEN_PAUSE).await;
            }
            let Some(next) = next else { break };
            *at = next;
        }
        let change = MarkChange { flat: true, ..MarkChange::default() };
        self.write(shard, |ticket| Record::Mark { shard, change, ticket }).await?;
        Ok(blocks)
    }

    /// Gives the log a record of a shard that is still here, and waits until it is durable.
    async fn write(&self, shard: ShardId, record: impl FnOnce(u64) -> Record) -> Result<()> {
        // Behind the end of the shard the record would make it anew.
        let ticket = self.ticket_of(shard).ok_or_else(|| Error::retry("the shard is not here any more"))?;
        let (tell, told) = oneshot::channel();
        self.flattening().writing = Some((ticket, tell));
        self.engine().append(record(ticket));
        let late = || Error::retry("the log does not get on");
        let end = tokio::time::timeout(timing::FLATTEN_PATIENCE, told).await.map_err(|_| late())?;
        end.map_err(|_| late())?
    }
}

impl crate::host::Host {
    /// A ticket for a record of a shard that has a replica here.
    pub(crate) fn ticket_of(&mut self, shard: ShardId) -> Option<u64> {
        self.has(shard).then(|| self.new_ticket())
    }

    /// True if the control plane wants a fork to be flat.
    pub(crate) fn is_to_be_flat(&self, shard: ShardId) -> bool {
        let info = self.replica(shard).and_then(|r| r.info.as_ref());
        info.is_some_and(|i| i.flatten)
    }
}

fn waits_to_be_flat(why: &str) -> String {
    format!("it waits to be flat: {why}")
}
