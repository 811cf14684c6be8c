//! Makes forks flat (design note 36), one at a time, in the background: those that are to be, those that read through too
//! many others, and those whose parent is to leave this log. What leaves waits for them.

use crate::event::{ControlPort, Event, Note, NoteKind, ShardInfo};
use crate::timing;
use crate::worker::Worker;
use freebs_format::wire::Message;
use freebs_io::{Clock, Device, Outbox};
use freebs_lsvd::{Durable, MarkChange, Record};
use freebs_types::{Error, Lba, Result, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;

/// Shards that a read may pass through beside its own, before a fork is made flat.
const DEPTH_MAX: usize = 8;
/// Bytes of data of a piece.
const PIECE_BYTES: usize = 1 << 20;

/// The work on a worker's forks that is under way.
#[derive(Default)]
pub(crate) struct Flattening {
    /// News by which shards end here that forks still read from.
    ends: BTreeMap<ShardId, Event>,
    /// The ticket of a piece that is being written, and who waits for it.
    writing: Option<(u64, oneshot::Sender<Result<()>>)>,
}

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// Puts news off by which a shard ends here, if forks read from it. True if so.
    pub(crate) fn put_off(&self, shard: ShardId, event: Event) -> bool {
        let waits = self.engine().is_read_by_forks(shard);
        if waits {
            let mut flattening = self.flattening();
            let is_gone = matches!(flattening.ends.get(&shard), Some(Event::Gone(_)));
            if !is_gone {
                flattening.ends.insert(shard, event);
            }
        }
        waits
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
        let Some((ticket, _)) = self.flattening().writing.as_ref().map(|(t, _)| (*t, ())) else { return };
        let end = done.iter().find_map(|d| match d {
            Durable::Carry { ticket: t, .. } | Durable::Mark { ticket: t, .. } if *t == ticket => Some(Ok(())),
            Durable::NoRoom { ticket: t, .. } if *t == ticket => Some(Err(Error::no_space("the device is full"))),
            Durable::Unlearned { ticket: t, why, .. } if *t == ticket => Some(Err(Error::corrupt(*why))),
            _ => None,
        });
        if let Some(end) = end
            && let Some((_, tell)) = self.flattening().writing.take()
        {
            // The task that waited may have given up.
            let _ = tell.send(end);
        }
    }

    pub(crate) async fn run_flatten(self) {
        let mut told = BTreeSet::new();
        loop {
            tokio::time::sleep(timing::FLATTEN_EVERY).await;
            self.end_what_waits();
            let Some(shard) = self.to_flatten() else { continue };
            match self.flatten(shard).await {
                Ok(blocks) => {
                    let text = format!("shard {shard}: it reads from no parent any more; {blocks} blocks were copied");
                    (self.notes())(&Note::new(NoteKind::Trace, Some(shard), text));
                    told.remove(&shard);
                }
                Err(e) => {
                    if told.insert(shard) {
                        let text = format!("shard {shard}: it can't be made flat yet: {e}");
                        (self.notes())(&Note::new(NoteKind::Trace, Some(shard), text));
                    }
                    tokio::time::sleep(timing::FLATTEN_AGAIN).await;
                }
            }
        }
    }

    /// Shards that waited for their forks end.
    fn end_what_waits(&self) {
        let is_free = |shard: &ShardId| !self.engine().is_read_by_forks(*shard);
        let free: Vec<ShardId> = self.flattening().ends.keys().copied().filter(is_free).collect();
        for shard in free {
            let event = self.flattening().ends.remove(&shard);
            event.into_iter().for_each(|event| self.step(event));
        }
    }

    /// The next fork that is to be made flat.
    fn to_flatten(&self) -> Option<ShardId> {
        let engine = self.engine();
        let forks = engine.shards().into_iter().filter_map(|s| Some((s, engine.state(s)?.fork?)));
        let is_wanted = |shard: ShardId, parent: ShardId| {
            let parent_ends = self.flattening().ends.contains_key(&parent);
            parent_ends || self.is_to_be_flat(shard) || engine.depth(shard) > DEPTH_MAX
        };
        forks.filter(|(s, f)| is_wanted(*s, f.parent)).map(|(s, _)| s).next()
    }

    /// Copies what a fork reads from its parents. Gives back how many blocks.
    async fn flatten(&self, shard: ShardId) -> Result<u64> {
        let (mut at, mut blocks) = (Some(Lba(0)), 0);
        while let Some(from) = at {
            let (body, data, next) = self.engine().inherited_entries(shard, from, PIECE_BYTES).await?;
            if !body.entries.is_empty() {
                blocks += data.iter().map(|d| d.len() as u64).sum::<u64>() / freebs_types::BLOCK as u64;
                self.write(shard, |ticket| Record::Carry { shard, body, data, ticket }).await?;
                tokio::time::sleep(timing::FLATTEN_PAUSE).await;
            }
            at = next;
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

    /// True if news makes a log begin anew.
    pub(crate) fn begins_anew(&self, info: &ShardInfo) -> bool {
        self.is_member(info) && self.replica(info.shard).is_some_and(|r| r.is_of_lost_branch(info, self.me()))
    }

    /// True if the control plane wants a fork to be flat.
    pub(crate) fn is_to_be_flat(&self, shard: ShardId) -> bool {
        let info = self.replica(shard).and_then(|r| r.info.as_ref());
        info.is_some_and(|i| i.flatten)
    }
}
