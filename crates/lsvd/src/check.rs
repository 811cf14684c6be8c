//! Reading closed segments from end to end: what recovery and reads never look at (heads of frames, headers of
//! appends and live tables of segments whose index was good) is held against its checksums, and the index against
//! the appends.
//!
//! It changes nothing; what it finds is told as events, and fails the digest that asked for it.

use crate::scan::{Window, scan};
use crate::segments::SegmentState;
use crate::{Engine, EventKind, Finding};
use freebs_format::crc32c;
use freebs_format::disk::{IndexEntry, SegmentFooter};
use freebs_io::Device;
use freebs_types::{Error, Result, ShardId};
use std::collections::BTreeMap;

impl<D: Device> Engine<D> {
    /// Reads every closed segment that holds frames of a shard. `Corrupt`, with the first finding, if anything does
    /// not match; all findings are events.
    pub async fn check_segments(&self, shard: ShardId) -> Result<()> {
        let (geometry, list) = {
            let core = self.inner.core.borrow();
            core.shard(shard)?;
            let held = |s: &crate::segments::Segment| s.state == SegmentState::Closed && s.content.contains_key(&shard);
            let list: Vec<_> =
                core.segs.used().filter(|(_, s)| held(s)).map(|(id, s)| (id, s.seq, core.segs.guard(id))).collect();
            (core.geometry, list)
        };
        let mut first = None;
        for (id, seq, _guard) in list {
            let mut window = Window::new(&self.inner.device, geometry, id);
            for f in check_segment(&mut window, id, seq, geometry.segment_bytes as u32).await {
                let text = format!("segment {id}, byte {}: {}", f.offset, f.what);
                self.inner.core.borrow_mut().event(EventKind::Damage, text.clone());
                first.get_or_insert(text);
            }
        }
        match first {
            Some(text) => Err(Error::corrupt(format!("the log is damaged: {text}"))),
            None => Ok(()),
        }
    }
}

async fn check_segment<D: Device>(w: &mut Window<'_, D>, id: u32, seq: u64, segment_bytes: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |offset: u32, what: &str| {
        findings.push(Finding { segment: Some(id), offset: u64::from(offset), what: what.into() });
    };
    let tail = segment_bytes as usize - size_of::<SegmentFooter>();
    let footer = w
        .get(tail, size_of::<SegmentFooter>())
        .await
        .and_then(|b| SegmentFooter::decode(&b, u64::from(segment_bytes)).ok())
        .filter(|f| f.segment_seq.get() == seq && f.segment.get() == id);
    let Some(footer) = footer else {
        find(tail as u32, "the footer is damaged");
        return findings;
    };
    let (at, len) = (footer.index_at.get() as usize, footer.index_len.get() as usize);
    let index = w.get(at, len).await.filter(|b| crc32c(b) == footer.index_crc.get());
    let index = index.and_then(|b| IndexEntry::decode_all(b, footer.frames.get()).ok());
    if index.is_none() {
        find(at as u32, "the index is damaged");
    }
    let mut scan = scan(w, seq, footer.index_at.get()).await;
    scan.end_with(footer.last_append.get());
    for (_, at) in &scan.missing {
        find(*at, "an append can't be read");
    }
    if scan.appends.last().is_none_or(|a| a.number() != footer.last_append.get()) {
        find(scan.end, "the last append can't be read");
    }
    let mut indexed: BTreeMap<u32, IndexEntry> = index.iter().flatten().map(|e| (e.head_at, e.clone())).collect();
    for a in &scan.appends {
        if a.lost > 0 {
            find(a.at, "heads of frames are damaged");
        }
        if a.header.extra_len.get() > 0 && a.table.is_none() && a.lost == 0 {
            find(a.at, "the table of live segments is damaged");
        }
        if let Some(at) = a.bad_data {
            find(at, "a data block does not match its CRC");
        }
        for e in &a.entries {
            let known = indexed.remove(&e.head_at);
            if index.is_some() && known.is_none_or(|k| k.head.bytes() != e.head.bytes()) {
                find(e.head_at, "the head of a frame differs from the index");
            }
        }
    }
    findings
}
