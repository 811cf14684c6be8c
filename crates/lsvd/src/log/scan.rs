//! Reading a segment append by append: what recovery does where no index helps.
//!
//! Invariants: an append counts only at its own place (device, segment, offset, segment's number) with a rising
//! number and a start that does not fall, so neither stale nor misplaced bytes pass for one. A frame counts only if
//! its own checksums match. What an append repeats of the one before it stands for that one's heads where the two
//! differ: it was written when the one before was durable.

use crate::log::gate::{Gate, READ_BYTES};
use crate::log::geometry::Geometry;
use bytes::{Bytes, BytesMut};
use freebs_format::disk::{
    APPEND_MAGIC, APPEND_REPAIR, AppendHeader, IndexEntry, LOG_NUMBER_END, LiveTable, Repeat, SegmentFooter,
};
use freebs_format::{CarryBody, FrameHead, FrameKind, block_crc, crc32c, is_lost_block};
use freebs_io::Device;
use freebs_types::BLOCK;
use std::ops::Range;

const HEADER: usize = size_of::<AppendHeader>();
/// Bytes that are read ahead at first: a look at a header or a footer must not cost a megabyte.
const WINDOW_FIRST: usize = 32 << 10;
/// Bytes that are read ahead at most, by somebody who reads on and on.
const WINDOW_MAX: usize = 1 << 20;

/// Reads of one segment, through a window that doubles while reads go on where it ends. Bytes that can't be read are
/// `None`, and `unread` says so.
pub(crate) struct Window<'a, D> {
    device: &'a D,
    geometry: Geometry,
    pub segment: u32,
    start: usize,
    bytes: Bytes,
    ahead: usize,
    /// The device could not read the bytes that were asked for last: what they are is not known.
    pub unread: bool,
    gate: Option<&'a Gate>,
}

impl<'a, D: Device> Window<'a, D> {
    pub fn new(device: &'a D, geometry: Geometry, segment: u32) -> Self {
        let (start, bytes, ahead) = (0, Bytes::new(), WINDOW_FIRST);
        Self { device, geometry, segment, start, bytes, ahead, unread: false, gate: None }
    }

    /// One that reads as slowly as it is let through.
    pub fn paced(device: &'a D, geometry: Geometry, segment: u32, gate: &'a Gate) -> Self {
        Self { gate: Some(gate), ..Self::new(device, geometry, segment) }
    }

    pub fn segment_bytes(&self) -> u64 {
        self.geometry.segment_bytes
    }

    pub fn device_id(&self) -> [u8; 16] {
        self.geometry.device.0
    }

    /// `len` bytes from byte `at` of the segment.
    pub async fn get(&mut self, at: usize, len: usize) -> Option<Bytes> {
        let range = self.load(at, len).await?;
        Some(self.bytes.slice(range))
    }

    /// As `get`, for a look that keeps nothing.
    async fn peek(&mut self, at: usize, len: usize) -> Option<&[u8]> {
        let range = self.load(at, len).await?;
        Some(&self.bytes[range])
    }

    /// Has `len` bytes from byte `at` in the window; their place there.
    async fn load(&mut self, at: usize, len: usize) -> Option<Range<usize>> {
        self.unread = false;
        let end = at.checked_add(len).filter(|e| *e <= self.geometry.segment_bytes as usize)?;
        let window = self.start..self.start + self.bytes.len();
        if at < window.start || end > window.end {
            let goes_on = !self.bytes.is_empty() && (window.start..=window.end).contains(&at);
            self.ahead = if goes_on { (self.ahead * 2).min(WINDOW_MAX) } else { WINDOW_FIRST };
            let sector = self.geometry.sector;
            let from = at / sector * sector;
            let least = end.next_multiple_of(sector) - from;
            let ahead = self.gate.map_or(self.ahead, |_| READ_BYTES);
            let more = least.max(ahead).min(self.geometry.segment_bytes as usize - from);
            let byte = self.geometry.byte(self.segment, from as u32);
            if let Some(gate) = self.gate {
                gate.pass(more).await;
            }
            let mut read = self.device.read(byte, more).await;
            if read.is_err() && more > least {
                // A bad spot behind what is asked for must not hide it.
                read = self.device.read(byte, least).await;
            }
            self.unread = read.is_err();
            self.bytes = read.ok()?.freeze();
            self.start = from;
        }
        Some(at - self.start..end - self.start)
    }
}

/// One append, found.
pub(crate) struct Found {
    pub at: u32,
    pub header: AppendHeader,
    pub entries: Vec<IndexEntry>,
    /// Frames whose heads can't be read.
    pub lost: u32,
    /// Live table and heads match their common checksum.
    pub heads_match: bool,
    /// Place of the first data block that does not match its CRC.
    pub bad_data: Option<u32>,
    /// A part of it can't be read. It may have been whole.
    pub unread: bool,
    /// A part of it can be read, and is not what was to be written.
    pub differs: bool,
    /// The live table, in a segment's first append.
    pub table: Option<LiveTable>,
    /// It is known from the append behind it: its own heads are lost, or not those that were written.
    pub mended: bool,
    /// Nothing of itself was found, not even its header.
    pub gone: bool,
    /// The blocks that cleaning had copied into it are not known: the one behind it does not repeat them.
    pub copies_lost: bool,
    /// Its word on the append before it.
    repeat: Option<Repeat>,
}

impl Found {
    /// Frames may all be readable and yet not those of this append: sectors of one that tore at the same place before,
    /// and was taken off, can lie between its own. Only the checksum over all heads tells.
    pub fn is_whole(&self) -> bool {
        self.lost == 0 && self.heads_match && self.bad_data.is_none()
    }
    /// True if what is bad of it was never written, if it is the last one. A sector that can't be read may be either.
    fn is_torn(&self) -> bool {
        self.differs || !self.unread
    }
    pub fn number(&self) -> u64 {
        self.header.number.get()
    }
}

impl Found {
    fn new(at: usize, header: AppendHeader) -> Self {
        let (entries, table, repeat) = (Vec::new(), None, None);
        let (lost, heads_match, bad_data) = (0, false, None);
        let (unread, differs, mended, gone, copies_lost) = (false, false, false, false, false);
        Self {
            at: at as u32,
            header,
            entries,
            lost,
            heads_match,
            bad_data,
            unread,
            differs,
            table,
            mended,
            gone,
            copies_lost,
            repeat,
        }
    }

    /// An append of which nothing but what the one behind it repeats is left.
    fn of_repeat(at: usize, repeat: &Repeat, behind: &AppendHeader) -> Self {
        let number = repeat.append;
        let mut header = *behind;
        (header.number, header.offset, header.durable) = (number.into(), (at as u32).into(), (number - 1).into());
        header.frames = (repeat.entries.len() as u32).saturating_add(repeat.copies).into();
        Self { gone: true, ..Self::new(at, header) }
    }

    /// The copies at its front, if they are those that were written, as the append behind it says.
    fn copies_as(&self, repeat: &Repeat) -> Option<&[IndexEntry]> {
        let copies = self.entries.get(..repeat.copies as usize)?;
        let mut bytes = BytesMut::new();
        copies.iter().for_each(|e| e.encode(&mut bytes));
        (crc32c(&bytes) == repeat.copies_crc).then_some(copies)
    }

    /// True if its heads are those that were written, as the append behind it says.
    fn is_as(&self, repeat: &Repeat) -> bool {
        let same = |a: &IndexEntry, b: &IndexEntry| a.head_at == b.head_at && a.head.bytes() == b.head.bytes();
        let rest = |copies: &[IndexEntry]| {
            let rest = &self.entries[copies.len()..];
            rest.len() == repeat.entries.len() && rest.iter().zip(&repeat.entries).all(|(a, b)| same(a, b))
        };
        self.lost == 0 && self.heads_match && self.copies_as(repeat).is_some_and(rest)
    }

    /// Takes what the append behind it repeats. That does not say what cleaning copied.
    async fn mend<D: Device>(&mut self, w: &mut Window<'_, D>, repeat: Repeat, look: Look<'_>) {
        let copies = self.copies_as(&repeat).map(<[_]>::to_vec);
        self.copies_lost = copies.is_none();
        let mut entries = copies.unwrap_or_default();
        entries.extend(repeat.entries);
        let seen = std::mem::replace(&mut self.entries, entries);
        (self.lost, self.heads_match, self.bad_data, self.mended) = (0, true, None, true);
        self.table = repeat.table.or(self.table.take());
        self.hold_data(w, &seen, look).await;
    }

    /// Holds the data of its frames against their CRCs. Those of frames that were seen already are not shown again.
    async fn hold_data<D: Device>(&mut self, w: &mut Window<'_, D>, seen: &[IndexEntry], look: Look<'_>) {
        let entries = std::mem::take(&mut self.entries);
        for e in &entries {
            let (data_at, len) = (e.data_at as usize, e.head.header().data_len.get() as usize);
            let bytes = w.get(data_at, len).await;
            if !seen.iter().any(|s| s.head_at == e.head_at && s.head.bytes() == e.head.bytes()) {
                look(e, bytes.as_ref());
            }
            let bad = match bytes {
                Some(bytes) => {
                    let bad = first_bad(&e.head, &bytes);
                    self.differs |= bad.is_some();
                    bad
                }
                None => self.hold_blocks(w, e).await,
            };
            if let Some(block) = bad {
                self.bad_data = self.bad_data.or(Some((data_at + block * BLOCK) as u32));
            }
        }
        self.entries = entries;
    }

    /// The same for data that can't be read at once, block by block. Gives back the first block that is not there.
    async fn hold_blocks<D: Device>(&mut self, w: &mut Window<'_, D>, e: &IndexEntry) -> Option<usize> {
        let (crcs, mut first) = (data_crcs(&e.head), None);
        for i in 0..e.head.header().data_blocks() as usize {
            let block = w.get(e.data_at as usize + i * BLOCK, BLOCK).await;
            let differs = block.as_ref().is_some_and(|b| crcs.get(i).is_some_and(|c| !is_as_written(&e.head, b, *c)));
            self.unread |= block.is_none() && w.unread;
            self.differs |= differs;
            if block.is_none() || differs {
                first = first.or(Some(i));
            }
        }
        first
    }
}

/// What a segment's scan gave.
#[derive(Default)]
pub(crate) struct Scan {
    pub appends: Vec<Found>,
    /// Appends that are missing: the highest number, and the byte where they would be.
    pub missing: Vec<(u64, u32)>,
    /// Byte behind the last append.
    pub end: u32,
    /// The bytes there can't be read: they may be one more append.
    pub end_unread: bool,
    /// The highest append known durable.
    pub durable: u64,
}

impl Scan {
    /// Forgets what lies behind append `last`, which a segment was closed with: torn appends, never told durable, that
    /// recovery took off and that nothing has overwritten.
    pub fn end_with(&mut self, last: u64) {
        if let Some(i) = self.appends.iter().position(|a| a.number() > last) {
            self.end = self.appends[i].at;
            self.appends.truncate(i);
        }
        self.missing.retain(|(number, _)| *number <= last);
        self.end_unread = false;
    }

    /// As `end_with`, where only the first append of the segment that was opened next is known. `None` if that one was
    /// itself given up and this segment went on: a whole append with its number or a later one is here.
    pub fn end_before(&mut self, next: u64) -> Option<u64> {
        let last = next.checked_sub(1)?;
        if self.appends.iter().any(|a| a.number() > last && a.is_whole()) {
            return None;
        }
        self.end_with(last);
        Some(last)
    }

    /// Forgets everything from the first damage on, as if it had torn: what rule E7 forbids, for its mutant.
    pub fn cut_at_damage(&mut self) {
        let gap = self.missing.iter().map(|m| m.1).min().unwrap_or(u32::MAX);
        if let Some(i) = self.appends.iter().position(|a| !a.is_whole() || a.mended || a.at > gap) {
            self.end = self.appends[i].at.min(gap);
            self.appends.truncate(i);
        }
        self.missing.clear();
        (self.durable, self.end_unread) = (0, false);
    }

    /// Takes off an unfinished append at the end of the log, of which nobody was ever told that it is durable. A part of
    /// it can be read and is not what was to be written. One of which only can't be read what is bad is none, nor is any
    /// in front of an end that can't be read: the append may have been whole, and what lies there may say that it was
    /// durable.
    pub fn take_torn(&mut self) -> Option<Found> {
        let (durable, unread) = (self.durable, self.end_unread);
        let torn = self.appends.pop_if(|a| !a.is_whole() && a.is_torn() && !unread && a.number() > durable)?;
        self.end = torn.at;
        Some(torn)
    }

    /// Puts what an append repeats of the one before it in the place of that one, if it differs or is missing.
    async fn mend<D: Device>(&mut self, w: &mut Window<'_, D>, repeat: Repeat, behind: &AppendHeader, look: Look<'_>) {
        let number = repeat.append;
        if let Some(before) = self.appends.last_mut().filter(|a| a.number() == number) {
            if !before.is_as(&repeat) {
                before.mend(w, repeat, look).await;
            }
            return;
        }
        let Some((_, at)) = self.missing.pop_if(|(missing, _)| *missing == number) else { return };
        let before = self.appends.last().map(Found::number);
        let first = repeat.table.is_some();
        // Where it begins is known if it is the only one that is missing there.
        let mut place = at as usize;
        if number > 1 && before.map_or(!first, |n| number - 1 > n) {
            self.missing.push((number - 1, at));
            let sector = w.geometry.sector;
            place = repeat.entries.first().map_or(place, |e| e.head_at as usize / sector * sector).max(place);
        }
        let mut found = Found::of_repeat(place, &repeat, behind);
        found.mend(w, repeat, look).await;
        self.appends.push(found);
    }

    /// Whether nothing between the first append and the last one is missing or damaged.
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty() && self.appends.iter().all(|a| a.is_whole() && !a.copies_lost)
    }
}

/// Who looks at the frames of appends while they are read: the frame, and its data if they can be read.
pub(crate) type Look<'a> = &'a mut dyn FnMut(&IndexEntry, Option<&Bytes>);

/// The entries of a closed segment's index; `None` if it can't be read, does not match its checksum, or speaks of
/// places where nothing can be.
pub(crate) async fn read_index<D: Device>(w: &mut Window<'_, D>, f: &SegmentFooter) -> Option<Vec<IndexEntry>> {
    let (at, len) = (f.index_at.get() as usize, f.index_len.get() as usize);
    let index = w.get(at, len).await.filter(|b| crc32c(b) == f.index_crc.get())?;
    let entries = IndexEntry::decode_all(index, f.frames.get(), at).ok()?;
    entries.iter().all(|e| lies_before(e, f.index_at.get())).then_some(entries)
}

/// Whether a frame's head and data lie before byte `end` of their segment.
pub(crate) fn lies_before(e: &IndexEntry, end: u32) -> bool {
    let inside = |from: u32, len: usize| from as usize + len <= end as usize;
    inside(e.head_at, e.head.bytes().len()) && inside(e.data_at, e.head.header().data_len.get() as usize)
}

/// The number of this segment and that of the one before it, as the append header with the highest one says: it tells
/// whose bytes lie here if the first sector does not.
pub(crate) async fn find_seq<D: Device>(w: &mut Window<'_, D>) -> Option<(u64, u64)> {
    let mut best = None;
    let sector = w.geometry.sector;
    for at in (0..w.geometry.segment_bytes as usize).step_by(sector) {
        if let Some(h) = header_at(w, at).await {
            best = best.max(Some((h.segment_seq.get(), h.seq_before())));
        }
    }
    best
}

async fn header_at<D: Device>(w: &mut Window<'_, D>, at: usize) -> Option<AppendHeader> {
    let bytes = w.peek(at, HEADER).await?;
    if bytes[..4] != APPEND_MAGIC {
        return None;
    }
    let h = AppendHeader::decode(bytes).ok()?;
    let ours = h.device == w.geometry.device.0
        && h.segment.get() == w.segment
        && h.offset.get() as usize == at
        && (1..LOG_NUMBER_END).contains(&h.segment_seq.get())
        && h.number.get() < LOG_NUMBER_END
        && at + h.total(w.geometry.sector) <= w.geometry.segment_bytes as usize;
    ours.then_some(h)
}

/// Whether `h` can follow the append before it.
fn follows(h: &AppendHeader, seq: u64, last: Option<(u64, u64)>) -> bool {
    let (number, start) = (h.number.get(), h.start.get());
    h.segment_seq.get() == seq && number > 0 && last.is_none_or(|(n, s)| number > n && start >= s)
}

/// All appends of number `seq` in a segment, up to byte `limit`.
pub(crate) async fn scan<D: Device>(w: &mut Window<'_, D>, seq: u64, limit: u32) -> Scan {
    scan_with(w, seq, limit, &mut |_, _| ()).await
}

/// As `scan`, with somebody who looks at each frame.
pub(crate) async fn scan_with<D: Device>(w: &mut Window<'_, D>, seq: u64, limit: u32, look: Look<'_>) -> Scan {
    let mut out = Scan::default();
    let mut last: Option<(u64, u64)> = None;
    let (mut at, limit, sector) = (0usize, limit as usize, w.geometry.sector);
    while at < limit {
        let mut next = header_at(w, at).await.filter(|h| follows(h, seq, last));
        let (bad, unread) = (at, w.unread);
        while next.is_none() {
            at += sector;
            if at >= limit {
                break;
            }
            next = header_at(w, at).await.filter(|h| follows(h, seq, last));
        }
        let Some(h) = next else {
            out.end_unread = unread;
            break;
        };
        let number = h.number.get();
        // The numbers of a segment's appends have no gap, and none but the first one's place is at its beginning.
        if number > 1 && last.map_or(at > 0, |(n, _)| number - 1 > n) {
            out.missing.push((number - 1, bad as u32));
        }
        out.durable = out.durable.max(h.durable.get().min(number));
        let mut found = read_append(w, at, h, look).await;
        if let Some(repeat) = found.repeat.take() {
            out.mend(w, repeat, &h, look).await;
        }
        at += h.total(sector);
        out.end = at as u32;
        last = Some((number, h.start.get()));
        out.appends.push(found);
    }
    out
}

/// The repeat of an append at `at`, from the bytes between its header and its heads.
fn repeat_in(h: &AppendHeader, at: usize, bytes: Bytes) -> Option<Repeat> {
    let before = |r: &Repeat| r.append > 0 && r.append.checked_add(1) == Some(h.number.get());
    let repeat = Repeat::decode(bytes).ok().filter(|_| h.repeats()).filter(before)?;
    repeat.entries.iter().all(|e| lies_before(e, at as u32)).then_some(repeat)
}

/// The repeat of the first append behind byte `at` of a segment. Each sector behind that byte is looked at until there is
/// one.
pub(crate) async fn repeat_behind<D: Device>(w: &mut Window<'_, D>, seq: u64, at: u32) -> Option<Repeat> {
    let sector = w.geometry.sector;
    let from = (at as usize / sector + 1) * sector;
    for at in (from..w.geometry.segment_bytes as usize).step_by(sector) {
        if let Some(h) = header_at(w, at).await.filter(|h| follows(h, seq, None)) {
            let between = w.get(at + HEADER, h.extra_len.get() as usize).await?;
            return repeat_in(&h, at, Bytes::copy_from_slice(&between));
        }
    }
    None
}

/// Heads and data of the append whose header is at `at`, each held against its checksums.
pub(crate) async fn read_append<D: Device>(w: &mut Window<'_, D>, at: usize, h: AppendHeader, look: Look<'_>) -> Found {
    let (heads_len, extra) = (h.heads_len.get() as usize, h.extra_len.get() as usize);
    let mut found = Found::new(at, h);
    let repeats = h.repeats();
    let repeat = |bytes: Bytes| repeat_in(&h, at, bytes);
    let Some(heads) = w.get(at, heads_len).await else {
        (found.lost, found.unread) = (h.frames.get(), w.unread);
        let front = w.get(at, HEADER + extra).await;
        found.repeat = front.and_then(|b| repeat(Bytes::copy_from_slice(&b[HEADER..])));
        return found;
    };
    // Bytes of their own: what is kept of a segment must not keep all its windows.
    let heads = Bytes::copy_from_slice(&heads);
    found.heads_match = crc32c(&heads[HEADER..]) == h.heads_crc.get();
    found.differs = !found.heads_match;
    let between = heads.slice(HEADER..HEADER + extra);
    if found.heads_match && extra > 0 && !repeats {
        found.table = Some(LiveTable { bits: between.to_vec() });
    }
    found.repeat = repeat(between);
    let mut rest = heads.slice(HEADER + extra..);
    let front = heads_len.next_multiple_of(w.geometry.sector);
    let (mut head_at, mut data) = (HEADER + extra, 0usize);
    while found.entries.len() < h.frames.get() as usize {
        let Ok(head) = FrameHead::parse(&mut rest) else { break };
        let len = head.header().data_len.get() as usize;
        if data + len > h.data_len.get() as usize {
            break;
        }
        found.entries.push(IndexEntry {
            head_at: (at + head_at) as u32,
            data_at: (at + front + data) as u32,
            append: h.number.get(),
            flags: if h.is_repair() { APPEND_REPAIR } else { 0 },
            head: head.clone(),
        });
        head_at += head.bytes().len();
        data += len;
    }
    found.lost = h.frames.get() - found.entries.len() as u32;
    found.hold_data(w, &[], look).await;
    found
}

/// The first data block of a frame that does not match its CRC.
fn first_bad(head: &FrameHead, data: &[u8]) -> Option<usize> {
    if !matches!(head.kind(), FrameKind::Data | FrameKind::Carry) {
        return None;
    }
    let mut crcs = data_crcs(head).into_iter();
    data.chunks_exact(BLOCK).position(|b| crcs.next().is_none_or(|c| !is_as_written(head, b, c)))
}

/// True if a data block is what was written under this CRC: the block, or in a carry the stand-in for one that was lost.
fn is_as_written(head: &FrameHead, block: &[u8], crc: u32) -> bool {
    block_crc(block) == crc || (head.kind() == FrameKind::Carry && is_lost_block(block, crc))
}

/// What a frame says of its data blocks: one CRC for each.
pub(crate) fn data_crcs(head: &FrameHead) -> Vec<u32> {
    match head.kind() {
        FrameKind::Data => head.crcs().iter().map(|c| c.get()).collect(),
        FrameKind::Carry => {
            let body = CarryBody::decode(head.body(), head.header().data_blocks()).ok();
            body.into_iter().flat_map(|b| b.entries).flat_map(|e| e.crcs).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn what_a_torn_end_left_behind_does_not_follow_newer_appends() {
        let mut h = AppendHeader::new_zeroed();
        (h.segment_seq, h.number, h.start) = (4.into(), 12.into(), 2.into());
        assert!(follows(&h, 4, None));
        assert!(follows(&h, 4, Some((11, 2))));
        assert!(follows(&h, 4, Some((9, 1))), "with appends missing in between");
        assert!(!follows(&h, 4, Some((11, 3))), "written before the start that wrote the one before it");
        assert!(!follows(&h, 4, Some((12, 2))), "the same number again");
        assert!(!follows(&h, 5, Some((11, 2))), "of the segment's use before");
    }
}
