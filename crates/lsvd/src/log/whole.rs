//! One segment, read from end to end: every append's heads, every frame's data and digest, index and footer, and one
//! against the other.
//!
//! Invariants: each byte is read once, except where something is wrong. What is reported lies in the segment. A torn
//! end that recovery would take off is no damage.

use crate::api::report::{Damage, DamageKind};
use crate::log::geometry::Geometry;
use crate::log::lost::LostAppends;
use crate::log::scan::{Scan, Window, data_crcs, read_index, repeat_behind, scan_with};
use bytes::Bytes;
use freebs_format::disk::{IndexEntry, SegmentFooter};
use freebs_format::{CarryBody, ExtentKind, Frame, FrameHead, FrameKind, block_crc, is_lost_block};
use freebs_io::Device;
use freebs_types::{BLOCK, BlockRange, Lba};
use std::collections::BTreeMap;

const FOOTER: usize = size_of::<SegmentFooter>();

/// What is known of a segment before it is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub seq: u64,
    /// The segment that was opened last: it need not have an index, and its end may be torn.
    pub newest: bool,
    /// First append of the segment that was opened next, if that is known.
    pub next_first: Option<u64>,
}

/// What a segment's check gave.
#[derive(Default)]
pub(crate) struct SegmentCheck {
    pub damage: Vec<Damage>,
    /// All frames that are known, from the index or, without one, from the appends.
    pub entries: Vec<IndexEntry>,
    /// Data blocks that were read and match what their frames say: byte in the segment, CRC.
    pub good: BTreeMap<u32, u32>,
    /// Those that don't: byte in the segment, and which damage.
    pub bad: BTreeMap<u32, usize>,
    /// Its footer is whole; its index, too.
    pub closed: bool,
    pub indexed: bool,
    pub appends: u64,
    /// Number of the segment that was opened right before it.
    pub before: u64,
    /// First and last append; 0 if there is none.
    pub first: u64,
    pub last: u64,
    /// Byte behind the last append.
    pub end: u32,
    /// Appends that were lost when the segment was closed.
    pub lost: LostAppends,
    pub table: Option<freebs_format::disk::LiveTable>,
    /// All appends are here from the first to the last one of the segment, and match their checksums.
    pub whole: bool,
    /// Frames of the appends, in order: what an index of the segment would say.
    pub of_appends: Vec<IndexEntry>,
}

/// A block or digest that is wrong, before it is known whether its append counts.
struct Wrong {
    entry: IndexEntry,
    /// Blocks of its data; `None` for the digest.
    block: Option<u32>,
    /// It is as it was written, and stands in for a block that was lost before.
    was_lost: bool,
}

/// Looks at frames as they are read.
#[derive(Default)]
struct Looker {
    good: BTreeMap<u32, u32>,
    wrong: Vec<Wrong>,
    /// Frames whose data can't be read at once.
    unread: Vec<IndexEntry>,
}

impl Looker {
    fn look(&mut self, e: &IndexEntry, data: Option<&Bytes>) {
        let Some(data) = data else {
            self.unread.push(e.clone());
            return;
        };
        let crcs = data_crcs(&e.head);
        let mut right = true;
        for (i, block) in data.chunks_exact(BLOCK).enumerate() {
            right &= self.block(e, i as u32, Some(block), &crcs);
        }
        let parts = if data.is_empty() { vec![] } else { vec![data.clone()] };
        let digest = Frame::new(e.head.clone(), parts).and_then(|f| f.verify_digest());
        if right && digest.is_err() {
            self.wrong.push(Wrong { entry: e.clone(), block: None, was_lost: false });
        }
    }

    /// True if a block is as it was written.
    fn block(&mut self, e: &IndexEntry, i: u32, bytes: Option<&[u8]>, crcs: &[u32]) -> bool {
        let crc = bytes.map(block_crc);
        // Local frames without a table of CRCs have no data that anything names.
        let right = crc.is_some() && crcs.get(i as usize).is_none_or(|c| Some(*c) == crc);
        if let Some(crc) = crc.filter(|_| right) {
            self.good.insert(e.data_at + i * BLOCK as u32, crc);
            return true;
        }
        let stands_in = |(b, crc): (&[u8], &u32)| e.head.kind() == FrameKind::Carry && is_lost_block(b, *crc);
        let was_lost = bytes.zip(crcs.get(i as usize)).is_some_and(stands_in);
        self.wrong.push(Wrong { entry: e.clone(), block: Some(i), was_lost });
        was_lost
    }
}

/// Reads all of a segment that counts.
pub(crate) async fn check<D: Device>(w: &mut Window<'_, D>, g: &Geometry, known: Known) -> SegmentCheck {
    let mut out = SegmentCheck::default();
    let footer = footer(w, g, known.seq).await;
    let index = match &footer {
        Some(f) => read_index(w, f).await,
        None => None,
    };
    (out.closed, out.indexed) = (footer.is_some(), index.is_some());
    footer.iter().flat_map(SegmentFooter::lost).for_each(|(from, to)| out.lost.add(from, to));
    out.before = footer.as_ref().map_or(known.seq.saturating_sub(1), SegmentFooter::seq_before);
    let limit = footer.map_or(g.segment_bytes as u32, |f| f.index_at.get());
    let mut looker = Looker::default();
    let mut scan = scan_with(w, known.seq, limit, &mut |e, data| looker.look(e, data)).await;
    let last = end(&mut scan, footer.as_ref(), index.is_some(), known);
    let mut found = Gathered { out, g, segment: w.segment };
    found.ends(&scan, footer.as_ref(), index.is_some(), known, last);
    found.heads(&scan, index.is_some(), known.newest);
    found.out.whole = found.out.damage.iter().all(|d| matches!(d.kind, DamageKind::Footer | DamageKind::Index))
        && (known.newest || last.is_some())
        && scan.is_whole()
        && scan.appends.first().is_some_and(|a| a.at == 0);
    found.numbers(&scan);
    let counted = scan.appends.last().map_or(0, |a| a.number());
    looker.wrong.retain(|x| x.entry.append <= counted);
    looker.unread.retain(|e| e.append <= counted);
    let of_appends: Vec<IndexEntry> = scan.appends.iter_mut().flat_map(|a| std::mem::take(&mut a.entries)).collect();
    if let Some(index) = &index {
        for e in found.against(index, &of_appends, &scan) {
            let data = w.get(e.data_at as usize, e.head.header().data_len.get() as usize).await;
            looker.look(&e, data.as_ref());
        }
    }
    for e in std::mem::take(&mut looker.unread) {
        let crcs = data_crcs(&e.head);
        for i in 0..e.head.header().data_blocks() {
            let bytes = w.get(e.data_at as usize + i as usize * BLOCK, BLOCK).await;
            looker.block(&e, i, bytes.as_deref(), &crcs);
        }
    }
    found.wrong(looker.wrong);
    let mut out = found.out;
    out.good = looker.good;
    out.table = scan.appends.first_mut().filter(|a| a.at == 0).and_then(|a| a.table.take());
    out.entries = index.unwrap_or_else(|| of_appends.clone());
    out.of_appends = of_appends;
    out
}

/// The footer that belongs to this use of the segment.
pub(crate) async fn footer<D: Device>(w: &mut Window<'_, D>, g: &Geometry, seq: u64) -> Option<SegmentFooter> {
    let tail = w.get(g.segment_bytes as usize - FOOTER, FOOTER).await?;
    let f = SegmentFooter::decode(&tail, g.segment_bytes).ok()?;
    let ours = f.device == g.device.0
        && f.segment.get() == w.segment
        && f.segment_seq.get() == seq
        && (f.index_at.get() as usize).is_multiple_of(g.sector);
    ours.then_some(f)
}

/// The head at byte `head_at` of a segment, for one that can't be read there: the index has it, or the append behind it.
pub(crate) async fn repeated_head<D: Device>(
    w: &mut Window<'_, D>,
    g: &Geometry,
    (seq, head_at): (u64, u32),
) -> Option<FrameHead> {
    let index = match footer(w, g, seq).await {
        Some(f) => read_index(w, &f).await,
        None => None,
    };
    let is_it = |e: &IndexEntry| e.head_at == head_at;
    if let Some(e) = index.into_iter().flatten().find(is_it) {
        return Some(e.head);
    }
    repeat_behind(w, seq, head_at).await?.entries.into_iter().find(is_it).map(|e| e.head)
}

/// Takes off what recovery would take off, by the same rules; gives back the segment's last append, if it is known.
fn end(scan: &mut Scan, footer: Option<&SegmentFooter>, indexed: bool, known: Known) -> Option<u64> {
    let last = footer.map(|f| f.last_append.get());
    if known.newest && !indexed {
        scan.durable = scan.durable.max(last.unwrap_or(0));
        scan.take_torn();
    }
    match (last, known.next_first) {
        (Some(last), _) => {
            scan.end_with(last);
            Some(last)
        }
        (None, Some(next)) => scan.end_before(next),
        (None, None) if known.newest => {
            let there = scan.appends.last().map_or(0, |a| a.number());
            Some(scan.durable.max(there + u64::from(scan.end_unread)))
        }
        (None, None) => None,
    }
}

/// Damage being gathered.
struct Gathered<'a> {
    out: SegmentCheck,
    g: &'a Geometry,
    segment: u32,
}

impl Gathered<'_> {
    fn damage(&mut self, kind: DamageKind, offset: u32, bytes: usize, lost: bool, what: impl Into<String>) {
        self.out.damage.push(Damage {
            kind,
            segment: Some(self.segment),
            offset: u64::from(offset),
            byte: self.g.byte(self.segment, offset),
            bytes: bytes as u64,
            shard: None,
            sequence: None,
            blocks: Vec::new(),
            lost,
            what: what.into(),
        });
    }

    /// Footer, index, and appends that are missing.
    fn ends(&mut self, scan: &Scan, footer: Option<&SegmentFooter>, indexed: bool, known: Known, last: Option<u64>) {
        match footer {
            None if !known.newest => {
                let at = self.g.segment_bytes as usize - FOOTER;
                self.damage(DamageKind::Footer, at as u32, FOOTER, false, "the footer of a closed segment is missing");
            }
            // One that was being written when the node ended is no damage: the node goes on in that segment.
            Some(f) if !indexed && !known.newest => {
                let (at, len) = (f.index_at.get(), f.index_len.get() as usize);
                self.damage(DamageKind::Index, at, len, false, "the index does not match its checksum");
            }
            _ => {}
        }
        let lost = !indexed;
        for (number, at) in &scan.missing {
            let next = scan.appends.iter().find(|a| a.number() > *number).map_or(scan.end, |a| a.at);
            let what = format!("no append can be found here; numbers up to {number} are missing");
            self.damage(DamageKind::Append, *at, next.saturating_sub(*at) as usize, lost, what);
        }
        let there = scan.appends.last().map_or(0, |a| a.number());
        if let Some(last) = last.filter(|last| *last > there) {
            let what = format!("the last append of the segment, number {last}, can't be found");
            self.damage(DamageKind::Append, scan.end, 0, lost, what);
        }
    }

    fn heads(&mut self, scan: &Scan, indexed: bool, newest: bool) {
        for a in &scan.appends {
            let len = a.header.heads_len.get() as usize;
            if a.mended {
                let what = format!("append {} is damaged; the one behind it says what it held", a.number());
                let kind = if a.gone { DamageKind::Append } else { DamageKind::Heads };
                // Its copies may be of segments that are gone, if another one was opened since.
                let lost = a.copies_lost && !indexed && !newest;
                self.damage(kind, a.at, if a.gone { 0 } else { len }, lost, what);
            } else if a.lost > 0 {
                let what = format!("heads of {} frames of append {} are damaged", a.lost, a.number());
                self.damage(DamageKind::Heads, a.at, len, !indexed, what);
            } else if !a.heads_match {
                let what = format!("append {} does not match its checksum; its frames do", a.number());
                self.damage(DamageKind::Heads, a.at, len, false, what);
            }
        }
    }

    fn numbers(&mut self, scan: &Scan) {
        self.out.appends = scan.appends.len() as u64;
        self.out.first = scan.appends.first().map_or(0, |a| a.number());
        self.out.before = scan.appends.first().map_or(self.out.before, |a| a.header.seq_before());
        self.out.last = scan.appends.last().map_or(0, |a| a.number());
        self.out.end = scan.end;
    }

    /// Holds the index against the appends; gives back the frames that only the index has, because their appends are
    /// damaged.
    fn against(&mut self, index: &[IndexEntry], of_appends: &[IndexEntry], scan: &Scan) -> Vec<IndexEntry> {
        let mut seen: BTreeMap<u32, &IndexEntry> = of_appends.iter().map(|e| (e.head_at, e)).collect();
        let mut only = Vec::new();
        for e in index {
            let place = match seen.remove(&e.head_at) {
                Some(known) if same(known, e) => continue,
                Some(_) => Some("the index has another frame here than the append"),
                None => {
                    let of = scan.appends.iter().take_while(|a| a.at <= e.head_at).last();
                    let whole =
                        of.is_some_and(|a| a.lost == 0 && e.head_at < a.at + a.header.total(self.g.sector) as u32);
                    whole.then_some("the index has a frame that the append has not")
                }
            };
            match place {
                Some(what) => self.mismatch(e, what),
                None => only.push(e.clone()),
            }
        }
        for e in seen.into_values() {
            self.mismatch(e, "the append has a frame that the index has not");
        }
        only
    }

    fn mismatch(&mut self, e: &IndexEntry, what: &str) {
        self.damage(DamageKind::Mismatch, e.head_at, e.head.bytes().len(), true, what);
        self.name(e);
    }

    /// Says whose the last damage is.
    fn name(&mut self, e: &IndexEntry) {
        let d = self.out.damage.last_mut().expect("just added");
        (d.shard, d.sequence) = (Some(e.head.shard()), Some(e.head.seq()));
    }

    /// Damage of blocks and digests; neighbours in a frame are one.
    fn wrong(&mut self, mut wrong: Vec<Wrong>) {
        wrong.sort_by_key(|x| (x.entry.head_at, x.block));
        let mut before: Option<(u32, u32, bool)> = None;
        for x in wrong {
            let e = &x.entry;
            let Some(i) = x.block else {
                let len = e.head.bytes().len();
                self.damage(DamageKind::Digest, e.head_at, len, true, "the frame does not match its digest");
                self.name(e);
                before = None;
                continue;
            };
            let at = e.data_at + i * BLOCK as u32;
            if before != Some((e.head_at, i.wrapping_sub(1), x.was_lost)) {
                let (kind, what) = match x.was_lost {
                    true => (DamageKind::Lost, "data that nobody had when this copy was made"),
                    false => (DamageKind::Data, "data do not match their CRC, or can't be read"),
                };
                self.damage(kind, at, 0, false, what);
                self.name(e);
            }
            let d = self.out.damage.len() - 1;
            self.out.bad.insert(at, d);
            let damage = &mut self.out.damage[d];
            damage.bytes += BLOCK as u64;
            if let Some(lba) = address(&e.head, i) {
                push_block(&mut damage.blocks, lba);
            }
            before = Some((e.head_at, i, x.was_lost));
        }
    }
}

fn same(a: &IndexEntry, b: &IndexEntry) -> bool {
    (a.data_at, a.append, a.flags) == (b.data_at, b.append, b.flags) && a.head.bytes() == b.head.bytes()
}

/// Adds a block to ranges that are in order.
pub(crate) fn push_block(ranges: &mut Vec<BlockRange>, lba: u32) {
    match ranges.last_mut() {
        Some(r) if r.end() == u64::from(lba) => r.len += 1,
        _ => ranges.push(BlockRange { start: Lba(lba), len: 1 }),
    }
}

/// Block address of the `i`-th data block of a frame.
fn address(head: &FrameHead, i: u32) -> Option<u32> {
    let inside = |start: u32, len: u32, first: u32| (first <= i && i - first < len).then(|| start + (i - first));
    if head.kind() == FrameKind::Carry {
        let body = CarryBody::decode(head.body(), head.header().data_blocks()).ok()?;
        let mut first = 0;
        return body.entries.iter().filter(|e| e.kind == ExtentKind::Data).find_map(|e| {
            let found = inside(e.range.start.0, e.range.len, first);
            first += e.range.len;
            found
        });
    }
    head.updates().find_map(|u| {
        let mut extents = u.extents().filter(|(e, _)| e.kind == ExtentKind::Data);
        extents.find_map(|(e, first)| inside(e.range.start.0, e.range.len, first))
    })
}
