//! The shard's places of intervals as its log has them, for the head.

use crate::event::{ControlPort, FoundInterval, IntervalAsk, IntervalWord};
use crate::worker::Worker;
use bytes::Bytes;
use freebs_format::wire::Message;
use freebs_format::{ExtentKind, IntervalRecord, IntervalState, interval_data, interval_record, interval_records};
use freebs_io::{Clock, Device, Outbox};
use freebs_lsvd::Engine;
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Result, ShardId, limits};

/// The places of a shard in a log.
struct Places<'a, D: Device> {
    engine: &'a Engine<D>,
    shard: ShardId,
    /// What is damaged is left out, since no other log may have it.
    alone: bool,
    note: &'a dyn Fn(String),
}

impl<D: Device> Places<'_, D> {
    async fn list(&self) -> Result<Vec<FoundInterval>> {
        let (shard, alone) = (self.shard, self.alone);
        let read = match self.engine.read(shard, interval_records()).await {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) if alone && e.kind == ErrorKind::Corrupt => return self.list_one_by_one().await,
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
            match self.data_of(place, &record).await {
                Ok((crcs, data)) => all.push(FoundInterval { place, record, crcs, data }),
                Err(e) if alone && e.kind == ErrorKind::Corrupt => self.is_lost(place, &e),
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    fn is_lost(&self, place: u32, e: &Error) {
        (self.note)(format!("shard {}: place {place} of intervals is lost: {e}", self.shard));
    }

    /// The same, each place by itself, of a log in which some can't be read.
    async fn list_one_by_one(&self) -> Result<Vec<FoundInterval>> {
        let mut all = Vec::new();
        for place in 0..limits::SHARD_INTERVALS {
            match self.list_one(place).await {
                Ok(found) => all.extend(found),
                Err(e) if e.kind == ErrorKind::Corrupt => self.is_lost(place, &e),
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    async fn list_one(&self, place: u32) -> Result<Option<FoundInterval>> {
        let read = self.engine.read(self.shard, interval_record(place)).await?;
        let Some(record) = IntervalRecord::decode(&read.data.concat())? else { return Ok(None) };
        let (crcs, data) = self.data_of(place, &record).await?;
        Ok(Some(FoundInterval { place, record, crcs, data }))
    }

    /// The data of a prepared interval, with their CRCs.
    async fn data_of(&self, place: u32, record: &IntervalRecord) -> Result<(Vec<u32>, Vec<Bytes>)> {
        let (shard, blocks) = (self.shard, record.data_blocks());
        if record.state != IntervalState::Prepared || record.shard != shard || blocks == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let range = BlockRange { start: interval_data(place), len: blocks };
        let read = self.engine.read(shard, range).await?;
        if read.crcs.len() != blocks as usize {
            return Err(Error::corrupt(format!("shard {shard}: data of place {place} of intervals are not there")));
        }
        Ok((read.crcs, read.data))
    }
}

impl<D: Device, O: Outbox<Message>, P: ControlPort, K: Clock> Worker<D, O, P, K> {
    /// All that the places have. `alone`: what is damaged is left out, since no other log may have it.
    pub(crate) async fn list_intervals(&self, shard: ShardId, alone: bool) -> Result<Vec<FoundInterval>> {
        Places { engine: &self.0.engine, shard, alone, note: &|text| self.trace(text) }.list().await
    }

    /// Another shard's head asks the head of one that is here. `Retry` if it is not, or can't say it now.
    pub fn on_interval_ask(&self, ask: &IntervalAsk) -> Result<IntervalWord> {
        self.answer_interval(ask).ok_or_else(|| Error::retry("the head of that shard can't say it now"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copies::{Log, blank, open};
    use freebs_format::{Extent, IntervalId, UpdateDraft, UpdateKind, block_crcs};
    use freebs_io::memory::MemoryDevice;
    use freebs_lsvd::Record;
    use freebs_types::{DriverId, IntervalNumber, RequestNumber, Sequence};

    const SHARD: ShardId = ShardId::new(1, 0);

    /// Of an interval that writes two blocks; with many extents the record takes several blocks.
    fn record(shard: ShardId, number: u64, extents: u32) -> IntervalRecord {
        let kind = |i| if i < 2 { ExtentKind::Data } else { ExtentKind::Zero };
        let extent = |i| Extent { kind: kind(i), range: BlockRange::new(2 * i, 1) };
        IntervalRecord {
            state: IntervalState::Prepared,
            id: IntervalId { decider: SHARD, driver: DriverId(3), number: IntervalNumber(number) },
            shard,
            owner: DriverId(3),
            participants: vec![SHARD, ShardId::new(1, 1)],
            extents: (0..extents).map(extent).collect(),
        }
    }

    fn put(place: u32, record: &IntervalRecord) -> UpdateDraft {
        let (fixed, data) =
            (record.encode(), Bytes::from(vec![(place as u8).wrapping_add(1); record.data_blocks() as usize * BLOCK]));
        let mut crcs = Vec::new();
        [&fixed, &data].into_iter().for_each(|b| block_crcs(b, &mut crcs));
        let at = |start, bytes: &Bytes| Extent {
            kind: ExtentKind::Data,
            range: BlockRange { start, len: (bytes.len() / BLOCK) as u32 },
        };
        let mut extents = vec![at(interval_record(place).start, &fixed)];
        extents.extend(Some(at(interval_data(place), &data)).filter(|e| e.range.len > 0));
        let (driver, number) = (DriverId(3), RequestNumber(u64::from(place) + 1));
        UpdateDraft {
            kind: UpdateKind::Prepare,
            driver,
            number,
            lowest_open: number,
            extents,
            crcs,
            data: vec![fixed, data],
        }
    }

    async fn list(device: &MemoryDevice, alone: bool) -> Result<Vec<FoundInterval>> {
        let engine = open(device, 1).await;
        Places { engine: &engine, shard: SHARD, alone, note: &|_| {} }.list().await
    }

    /// A log that was written, and closed.
    async fn with(all: &[(u32, IntervalRecord)]) -> MemoryDevice {
        let device = blank(1).await;
        let engine = open(&device, 1).await;
        let writer = engine.clone();
        let task = tokio::task::spawn_local(async move { writer.run().await });
        let mut log = Log::new(SHARD);
        engine.append(Record::Frame(log.open()));
        engine.append(Record::Frame(log.write(0, 9)));
        for (place, record) in all {
            engine.append(Record::Frame(log.put(put(*place, record))));
        }
        engine.committed(SHARD, Sequence(log.sequence));
        engine.close().await.unwrap();
        task.await.unwrap().unwrap();
        device
    }

    /// I2: the set of what is prepared is what the log has, also after a start.
    #[test]
    fn a_log_tells_what_its_places_have() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            assert!(list(&blank(1).await, false).await.unwrap().is_empty(), "a shard that is not there");
            let decided =
                IntervalRecord { state: IntervalState::Committed, extents: Vec::new(), ..record(SHARD, 3, 1) };
            let all = [
                (0, record(SHARD, 1, 3)),
                (7, record(SHARD, 2, 700)),
                (9, decided),
                (255, record(ShardId::new(8, 0), 4, 2)),
            ];
            let device = with(&all).await;
            let found = list(&device, false).await.unwrap();
            assert_eq!(found.iter().map(|f| (f.place, f.record.clone())).collect::<Vec<_>>(), all);
            for (f, blocks) in found.iter().zip([2, 2, 0, 0]) {
                let data = f.data.concat();
                assert_eq!((f.crcs.len(), data.len()), (blocks, blocks * BLOCK), "place {}", f.place);
                assert!(data.iter().all(|b| *b == (f.place as u8).wrapping_add(1)));
            }
            // Another start, and one without the data of the second.
            assert_eq!(list(&device, false).await.unwrap().len(), 4);
            device.poke(|bytes| {
                let block = bytes.chunks_mut(512).position(|s| s.iter().all(|b| *b == 8)).unwrap();
                bytes[block * 512 + 9] ^= 1;
            });
            assert_eq!(list(&device, false).await.unwrap_err().kind, ErrorKind::Corrupt, "others may have it");
            let left: Vec<u32> = list(&device, true).await.unwrap().iter().map(|f| f.place).collect();
            assert_eq!(left, [0, 9, 255]);
            // And without the record of the first.
            device.poke(|bytes| {
                let at = bytes.windows(4).position(|w| w == freebs_format::INTERVAL_MAGIC).unwrap();
                bytes[at + 20] ^= 1;
            });
            assert!(list(&device, false).await.is_err());
            let left: Vec<u32> = list(&device, true).await.unwrap().iter().map(|f| f.place).collect();
            assert_eq!(left, [9, 255]);
        });
    }
}
