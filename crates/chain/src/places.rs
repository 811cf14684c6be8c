//! The shard's places of intervals as its log has them, for the head.

use crate::event::{ControlPort, FoundInterval, IntervalAsk, IntervalWord};
use crate::worker::Worker;
use bytes::Bytes;
use freebs_format::wire::Message;
use freebs_format::{ExtentKind, IntervalRecord, IntervalState, interval_data, interval_record, interval_records};
use freebs_io::{Clock, Device, Outbox};
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Result, ShardId, limits};

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// All that the places have. `alone`: what is damaged is left out, since no other log may have it.
    pub(crate) async fn list_intervals(&self, shard: ShardId, alone: bool) -> Result<Vec<FoundInterval>> {
        let read = match self.0.engine.read(shard, interval_records()).await {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) if alone && e.kind == ErrorKind::Corrupt => return self.list_one_by_one(shard).await,
            other => other?,
        };
        let mut found = Vec::new();
        let (mut at, mut data) = (0, Bytes::from(read.data.concat()));
        for piece in read.pieces {
            if piece.kind == ExtentKind::Data {
                let blocks = data.split_to(piece.blocks as usize * BLOCK);
                for (i, at) in (at..at + piece.blocks).enumerate() {
                    if at % limits::INTERVAL_RECORD_BLOCKS_MAX == 0
                        && let Some(record) = IntervalRecord::decode(&blocks[i * BLOCK..])?
                    {
                        found.push((at / limits::INTERVAL_RECORD_BLOCKS_MAX, record));
                    }
                }
            }
            at += piece.blocks;
        }
        let mut all = Vec::new();
        for (place, record) in found {
            match self.data_of(shard, place, &record).await {
                Ok((crcs, data)) => all.push(FoundInterval { place, record, crcs, data }),
                Err(e) if alone && e.kind == ErrorKind::Corrupt => self.is_lost(shard, place, &e),
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    fn is_lost(&self, shard: ShardId, place: u32, e: &Error) {
        self.trace(format!("shard {shard}: place {place} of intervals is lost: {e}"));
    }

    /// The same, each place by itself, of a log in which some can't be read.
    async fn list_one_by_one(&self, shard: ShardId) -> Result<Vec<FoundInterval>> {
        let mut all = Vec::new();
        for place in 0..limits::SHARD_INTERVALS {
            match self.list_one(shard, place).await {
                Ok(found) => all.extend(found),
                Err(e) if e.kind == ErrorKind::Corrupt => self.is_lost(shard, place, &e),
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    async fn list_one(&self, shard: ShardId, place: u32) -> Result<Option<FoundInterval>> {
        let read = self.0.engine.read(shard, interval_record(place)).await?;
        let Some(record) = IntervalRecord::decode(&read.data.concat())? else { return Ok(None) };
        let (crcs, data) = self.data_of(shard, place, &record).await?;
        Ok(Some(FoundInterval { place, record, crcs, data }))
    }

    /// The data of a prepared interval, with their CRCs.
    async fn data_of(&self, shard: ShardId, place: u32, record: &IntervalRecord) -> Result<(Vec<u32>, Vec<Bytes>)> {
        let blocks = record.data_blocks();
        if record.state != IntervalState::Prepared || record.shard != shard || blocks == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let range = BlockRange { start: interval_data(place), len: blocks };
        let read = self.0.engine.read(shard, range).await?;
        if read.crcs.len() != blocks as usize {
            return Err(Error::corrupt(format!("shard {shard}: data of place {place} of intervals are not there")));
        }
        Ok((read.crcs, read.data))
    }

    /// Another shard's head asks the head of one that is here. `Retry` if it is not, or can't say it now.
    pub fn on_interval_ask(&self, ask: &IntervalAsk) -> Result<IntervalWord> {
        self.answer_interval(ask).ok_or_else(|| Error::retry("the head of that shard can't say it now"))
    }
}
