//! The shard's places of intervals as its log has them, for the head.

use crate::event::{ControlPort, FoundInterval, IntervalAsk, IntervalWord};
use crate::worker::Worker;
use freebs_format::wire::Message;
use freebs_format::{ExtentKind, IntervalRecord, IntervalState, interval_data, interval_place};
use freebs_io::{Clock, Device, Outbox};
use freebs_types::{BlockRange, Error, ErrorKind, Result, ShardId, limits};

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// All that the places have. `alone`: what is damaged is left out, since no other log may have it.
    pub(crate) async fn list_intervals(&self, shard: ShardId, alone: bool) -> Result<Vec<FoundInterval>> {
        let end = limits::SHARD_INTERVALS * limits::INTERVAL_PLACE_BLOCKS;
        let all = BlockRange { start: interval_place(0).start, len: end };
        let pieces = match self.0.engine.block_status(shard, all).await {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        let (mut at, mut next) = (0, 0);
        for piece in pieces {
            let (from, until) = (at, at + piece.blocks);
            at = until;
            if piece.kind != ExtentKind::Data {
                continue;
            }
            for place in next.max(from / limits::INTERVAL_PLACE_BLOCKS)..until.div_ceil(limits::INTERVAL_PLACE_BLOCKS) {
                next = place + 1;
                match self.interval_in(shard, place).await {
                    Ok(interval) => found.extend(interval),
                    Err(e) if alone && e.kind == ErrorKind::Corrupt => {
                        self.trace(format!("shard {shard}: place {place} of intervals is lost: {e}"));
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(found)
    }

    async fn interval_in(&self, shard: ShardId, place: u32) -> Result<Option<FoundInterval>> {
        let len = limits::INTERVAL_RECORD_BLOCKS_MAX as u32;
        let read = self.0.engine.read(shard, BlockRange { start: interval_place(place).start, len }).await?;
        if read.pieces.first().is_none_or(|p| p.kind != ExtentKind::Data) {
            return Ok(None);
        }
        let Some(record) = IntervalRecord::decode(&read.data.concat())? else { return Ok(None) };
        let (mut crcs, mut data) = (Vec::new(), Vec::new());
        let blocks = record.data_blocks();
        if record.state == IntervalState::Prepared && record.shard == shard && blocks > 0 {
            let range = BlockRange { start: interval_data(place), len: blocks };
            let read = self.0.engine.read(shard, range).await?;
            if read.crcs.len() != blocks as usize {
                return Err(Error::corrupt(format!("shard {shard}: data of place {place} of intervals are not there")));
            }
            (crcs, data) = (read.crcs, read.data);
        }
        Ok(Some(FoundInterval { place, record, crcs, data }))
    }

    /// Another shard's head asks the head of one that is here. `Retry` if it is not, or can't say it now.
    pub fn on_interval_ask(&self, ask: &IntervalAsk) -> Result<IntervalWord> {
        self.answer_interval(ask).ok_or_else(|| Error::retry("the head of that shard can't say it now"))
    }
}
