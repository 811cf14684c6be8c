//! Map entries as bytes of a page: each says how it differs from the one before it.
//!
//! An entry is one byte of flags, then varints: how many slots further (if any), blocks between it and the end of the
//! one before, its length (unless 1), the change of version and of sequence; for data, the change of the chunk's view
//! (if any) and counter, the block in the chunk, and four bytes of CRC per block; else the segment that records it.
//! A superseded extent has behind all that the number of versions at which it was in force.
//!
//! Invariants: entries lie in order of (slot, address) and don't overlap; every page begins anew, so it is read by
//! itself. Superseded extents lie in cells: those of one have the same blocks, and come in order of (version, sequence).
//! Bytes that don't fit these rules are refused, whatever the checksum says.

use crate::log::place::NUMBER_MAX;
use crate::log::place::fits;
use crate::map::extents::{Crcs, Extent, Layer};
use freebs_format::ExtentKind;
use freebs_format::disk::{PAGE_BODY_BYTES, SEGMENTS_MAX};
use freebs_types::{BlockRange, ChunkId, Error, Result, Sequence, Version};

/// Blocks of one data entry: its CRCs leave room for others in the page.
pub(crate) const DATA_BLOCKS_MAX: u32 = 512;
/// Blocks of an entry without data: its length fits 16 bits.
pub(crate) const OTHER_BLOCKS_MAX: u32 = 65_535;
/// Bytes of an entry at most, CRCs aside.
const FIXED_MAX: usize = 1 + 10 * 9;
const _: () = assert!(FIXED_MAX + 4 * DATA_BLOCKS_MAX as usize <= PAGE_BODY_BYTES);

const KIND: u8 = 3;
const NEW_SLOT: u8 = 4;
const ONE: u8 = 8;
const SAME_VIEW: u8 = 16;
/// It has the blocks of the one before it.
const SAME_CELL: u8 = 32;
/// It is a superseded extent.
const LAYER: u8 = 64;
/// That one was met in a level of the map.
const FOUND: u8 = 128;

/// Where an entry lies: slot of its shard, and address; in order of the run.
pub(crate) fn key(slot: u32, at: u32) -> u64 {
    u64::from(slot) << 32 | u64::from(at)
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 128 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put_change(out: &mut Vec<u8>, from: u64, to: u64) {
    let change = to.wrapping_sub(from) as i64;
    put(out, ((change << 1) ^ (change >> 63)) as u64);
}

fn get(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (b, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(b & 127).checked_shl(shift)?;
        if b & 128 == 0 {
            return Some(n);
        }
    }
    None
}

fn get_change(bytes: &mut &[u8], from: u64) -> Option<u64> {
    let n = get(bytes)?;
    Some(from.wrapping_add((n >> 1) ^ (n & 1).wrapping_neg()))
}

/// What the next entry is told against.
#[derive(Clone, Copy, Default)]
struct Last {
    slot: u32,
    start: u32,
    end: u32,
    version: u64,
    sequence: u64,
    view: u64,
    counter: u32,
}

impl Last {
    fn is(slot: u32, start: u32, e: &Extent, before: Self) -> Self {
        let (view, counter) =
            if e.is_data() { (e.chunk.view.0, e.chunk.counter) } else { (before.view, before.counter) };
        Self { slot, start, end: start + e.len, version: e.version.0, sequence: e.sequence.0, view, counter }
    }
}

/// The body of a page that is being filled.
#[derive(Default)]
pub(crate) struct PageBuilder {
    pub body: Vec<u8>,
    pub count: u32,
    last: Last,
}

impl PageBuilder {
    /// Adds an entry of at most `DATA_BLOCKS_MAX` or `OTHER_BLOCKS_MAX` blocks; `false` if the page is full.
    pub fn push(&mut self, slot: u32, start: u32, e: &Extent) -> bool {
        self.put(slot, start, e, None)
    }

    /// Adds a superseded extent of at most as many blocks: of the cell of the one before it, or of one behind that.
    pub fn push_layer(&mut self, slot: u32, start: u32, l: &Layer) -> bool {
        self.put(slot, start, &l.e, Some(l))
    }

    fn put(&mut self, slot: u32, start: u32, e: &Extent, layer: Option<&Layer>) -> bool {
        let before = self.body.len();
        let last = self.last;
        let is_same_cell = layer.is_some() && (slot, start, start + e.len) == (last.slot, last.start, last.end);
        let mut flags = e.kind as u8;
        flags |= if slot == last.slot { 0 } else { NEW_SLOT };
        flags |= if e.len == 1 { ONE } else { 0 };
        flags |= if e.is_data() && e.chunk.view.0 == last.view { SAME_VIEW } else { 0 };
        flags |= if is_same_cell { SAME_CELL } else { 0 };
        flags |= layer.map_or(0, |l| LAYER | if l.found { FOUND } else { 0 });
        let out = &mut self.body;
        out.push(flags);
        let mut end = last.end;
        if slot != last.slot {
            put(out, u64::from(slot - last.slot));
            end = 0;
        }
        if !is_same_cell {
            put(out, u64::from(start - end));
            if e.len != 1 {
                put(out, u64::from(e.len));
            }
        }
        put_change(out, last.version, e.version.0);
        put_change(out, last.sequence, e.sequence.0);
        if e.is_data() {
            if e.chunk.view.0 != last.view {
                put_change(out, last.view, e.chunk.view.0);
            }
            put_change(out, u64::from(last.counter), u64::from(e.chunk.counter));
            put(out, u64::from(e.offset));
            out.extend(e.crcs.slice(e.len).iter().flat_map(|c| c.to_le_bytes()));
        } else {
            put(out, u64::from(e.offset));
        }
        if let Some(l) = layer {
            put(out, l.to.0 - e.version.0);
        }
        if out.len() > PAGE_BODY_BYTES {
            out.truncate(before);
            return false;
        }
        self.count += 1;
        self.last = Last::is(slot, start, e, last);
        true
    }
}

/// Entries of a page, one by one, as (slot, address, entry).
pub(crate) struct PageReader<'a> {
    rest: &'a [u8],
    left: u32,
    last: Last,
    layers: bool,
}

impl<'a> PageReader<'a> {
    pub fn new(body: &'a [u8], count: u32) -> Self {
        Self { rest: body, left: count, last: Last::default(), layers: false }
    }

    /// Of a page of superseded extents: `next_layer` gives these.
    pub fn of_layers(body: &'a [u8], count: u32) -> Self {
        Self { layers: true, ..Self::new(body, count) }
    }

    /// The next superseded extent.
    pub fn next_layer(&mut self) -> Option<Result<(u32, u32, Layer)>> {
        let found = self.rest.first().is_some_and(|f| f & FOUND != 0);
        let next = self.next()?;
        let to = next.as_ref().ok().and_then(|(_, _, e)| {
            let to = e.version.0.checked_add(get(&mut self.rest)?).filter(|v| *v < NUMBER_MAX)?;
            Some(Version(to))
        });
        if to.is_none() {
            self.left = 0;
        }
        Some(next.and_then(|(slot, start, e)| match to {
            Some(to) => Ok((slot, start, Layer { e, to, found, level: 0 })),
            None => Err(Error::corrupt("page of history with an impossible entry")),
        }))
    }

    fn entry(&mut self) -> Option<(u32, u32, Extent)> {
        let (r, last) = (&mut self.rest, self.last);
        let (flags, rest) = r.split_first()?;
        *r = rest;
        let is_same_cell = flags & SAME_CELL != 0;
        let is_one = if self.layers { flags & LAYER != 0 } else { flags & (LAYER | FOUND | SAME_CELL) == 0 };
        if !is_one || (is_same_cell && (flags & NEW_SLOT != 0 || last.end == last.start)) {
            return None;
        }
        let (mut slot, mut end) = (last.slot, last.end);
        if flags & NEW_SLOT != 0 {
            slot = slot.checked_add(u32::try_from(get(r)?).ok().filter(|s| *s > 0)?)?;
            end = 0;
        }
        let kind = ExtentKind::from_byte(flags & KIND)?;
        let (start, len) = if is_same_cell {
            (last.start, last.end - last.start)
        } else {
            let start = end.checked_add(u32::try_from(get(r)?).ok()?)?;
            (start, if flags & ONE != 0 { 1 } else { u32::try_from(get(r)?).ok()? })
        };
        let data = kind == ExtentKind::Data;
        let most = if data { DATA_BLOCKS_MAX } else { OTHER_BLOCKS_MAX };
        // Superseded entries of times are no history.
        if len == 0 || len > most || !BlockRange::new(start, len).is_in_shard(data || self.layers) {
            return None;
        }
        let version = get_change(r, last.version).filter(|v| *v < NUMBER_MAX)?;
        let sequence = get_change(r, last.sequence).filter(|s| *s < NUMBER_MAX)?;
        if is_same_cell && (version, sequence) <= (last.version, last.sequence) {
            return None;
        }
        let mut chunk = ChunkId::default();
        let (mut crcs, mut at) = (Crcs::None, last);
        if data {
            at.view = if flags & SAME_VIEW != 0 { last.view } else { get_change(r, last.view)? };
            at.counter = u32::try_from(get_change(r, u64::from(last.counter))?).ok()?;
            chunk = ChunkId::new(at.view, at.counter);
        }
        let offset = u32::try_from(get(r)?).ok()?;
        if data {
            if !fits(offset, len) {
                return None;
            }
            let (bytes, rest) = r.split_at_checked(len as usize * 4)?;
            *r = rest;
            let mut each = bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four bytes")));
            crcs = if len == 1 { Crcs::One(each.next()?) } else { Crcs::Many { table: each.collect(), at: 0 } };
        } else if offset >= SEGMENTS_MAX {
            return None;
        }
        let e = Extent { len, kind, version: Version(version), sequence: Sequence(sequence), chunk, offset, crcs };
        self.last = Last::is(slot, start, &e, at);
        Some((slot, start, e))
    }
}

impl Iterator for PageReader<'_> {
    type Item = Result<(u32, u32, Extent)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let e = self.entry();
        if e.is_none() {
            self.left = 0;
        }
        Some(e.ok_or_else(|| Error::corrupt("page of the map with an impossible entry")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arb() -> impl Strategy<Value = Vec<(u32, u32, Extent)>> {
        let one = (0u32..3, 0u32..50, 1u32..600, 1u8..=3, 0..NUMBER_MAX, 0..NUMBER_MAX, any::<u64>(), any::<u32>());
        prop::collection::vec((one, 0u32..4096), 1..60).prop_map(|list| {
            let (mut slot, mut end, mut out) = (1, 0, Vec::new());
            for ((skip, gap, len, kind, version, sequence, view, counter), offset) in list {
                if skip == 2 {
                    (slot, end) = (slot + 1 + gap, 0);
                }
                let kind = ExtentKind::from_byte(kind).unwrap();
                let data = kind == ExtentKind::Data;
                let len = if gap % 3 == 0 { 1 } else { len.min(DATA_BLOCKS_MAX) };
                let table: Vec<u32> = (0..len).map(|i| i.wrapping_mul(counter)).collect();
                let e = Extent {
                    len,
                    kind,
                    version: Version(version),
                    sequence: Sequence(sequence),
                    chunk: if data { ChunkId::new(view, counter) } else { ChunkId::default() },
                    offset,
                    crcs: if data { Crcs::Many { table: table.into(), at: 0 } } else { Crcs::None },
                };
                out.push((slot, end + gap, e));
                end += gap + len;
            }
            out
        })
    }

    type Flat = (u32, u32, u32, ExtentKind, (Version, Sequence), ChunkId, u32, Vec<u32>);
    fn flat(slot: u32, start: u32, e: &Extent) -> Flat {
        (slot, start, e.len, e.kind, e.key(), e.chunk, e.offset, e.crcs.slice(e.len).to_vec())
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(list in arb()) {
            let mut b = PageBuilder::default();
            let fit = list.iter().take_while(|(s, a, e)| b.push(*s, *a, e)).count();
            prop_assert!(fit > 0 && b.body.len() <= PAGE_BODY_BYTES);
            let got: Vec<_> = PageReader::new(&b.body, b.count).map(|r| r.map(|(s, a, e)| flat(s, a, &e)).unwrap()).collect();
            let want: Vec<_> = list[..fit].iter().map(|(s, a, e)| flat(*s, *a, e)).collect();
            prop_assert_eq!(got, want);
        }

        /// Whatever the bytes are: no panic, an end, and entries in order.
        #[test]
        fn bytes_can_do_no_harm(mut list in arb(), flips in prop::collection::vec((any::<u16>(), any::<u8>()), 0..6)) {
            list.truncate(20);
            let mut b = PageBuilder::default();
            list.iter().take_while(|(s, a, e)| b.push(*s, *a, e)).count();
            for (at, x) in flips {
                let n = b.body.len();
                b.body[at as usize % n] ^= x;
            }
            let mut last = 0;
            for r in PageReader::new(&b.body, b.count) {
                let Ok((s, a, e)) = r else { break };
                prop_assert!(key(s, a) >= last);
                last = key(s, a + e.len);
            }
        }
    }

    fn layers() -> impl Strategy<Value = Vec<(u32, u32, Layer)>> {
        let versions = prop::collection::btree_set(0..NUMBER_MAX / 2, 1..5);
        prop::collection::vec((arb(), versions, any::<bool>()), 1..3).prop_map(|list| {
            let cells = list.into_iter().next().unwrap_or_default();
            let (cells, versions, found) = cells;
            let layer = |e: &Extent, v: u64| Layer {
                e: Extent { version: Version(v), ..e.clone() },
                to: Version(v + e.sequence.0 % 5000),
                found: found && v.is_multiple_of(2),
                level: 0,
            };
            let each =
                |(s, a, e): (u32, u32, Extent)| versions.iter().map(|v| (s, a, layer(&e, *v))).collect::<Vec<_>>();
            cells.into_iter().flat_map(each).collect()
        })
    }

    fn layers_of(b: &PageBuilder) -> (Vec<(u32, u32, Layer)>, bool) {
        let (mut r, mut out) = (PageReader::of_layers(&b.body, b.count), Vec::new());
        loop {
            match r.next_layer() {
                Some(Ok(l)) => out.push(l),
                end => return (out, end.is_none()),
            }
        }
    }

    proptest! {
        #[test]
        fn layers_that_go_in_come_out(list in layers()) {
            let mut b = PageBuilder::default();
            let fit = list.iter().take_while(|(s, a, l)| b.push_layer(*s, *a, l)).count();
            let (got, is_end) = layers_of(&b);
            let flat = |(s, a, l): &(u32, u32, Layer)| (flat(*s, *a, &l.e), l.to, l.found);
            prop_assert!(is_end && fit > 0);
            prop_assert_eq!(got.iter().map(flat).collect::<Vec<_>>(), list[..fit].iter().map(flat).collect::<Vec<_>>());
            prop_assert!(PageReader::new(&b.body, b.count).next().is_none_or(|e| e.is_err()), "no entries in force");
        }

        /// No bytes make a panic, or an endless page; cells and versions come in order.
        #[test]
        fn bytes_can_do_no_harm_to_layers(list in layers(), flips in prop::collection::vec((any::<u16>(), any::<u8>()), 0..6)) {
            let mut b = PageBuilder::default();
            list.iter().take(20).take_while(|(s, a, l)| b.push_layer(*s, *a, l)).count();
            for (at, x) in flips {
                let n = b.body.len();
                b.body[at as usize % n] ^= x;
            }
            let mut last = (0, 0, Default::default());
            for (s, a, l) in layers_of(&b).0 {
                let is_same = (key(s, a), l.e.len) == (last.0, last.1) && l.e.key() > last.2;
                prop_assert!(is_same || key(s, a) >= last.0 + u64::from(last.1));
                prop_assert!(l.to >= l.e.version);
                last = (key(s, a), l.e.len, l.e.key());
            }
        }
    }

    #[test]
    fn a_block_of_its_own_takes_few_bytes() {
        let mut b = PageBuilder::default();
        let mut n = 0u64;
        // Blocks in random order of four million writes, sixteen to a frame, a tenth of them written.
        loop {
            let version = (n * 2_654_435_761) % 4_000_000;
            let e = Extent {
                len: 1,
                kind: ExtentKind::Data,
                version: Version(version),
                sequence: Sequence(version / 16),
                chunk: ChunkId::new(7, (version / 4096) as u32),
                offset: (version % 4096) as u32,
                crcs: Crcs::One(n as u32),
            };
            if !b.push(1, (n * 10 + n % 7) as u32, &e) {
                break;
            }
            n += 1;
        }
        let each = PAGE_BODY_BYTES as f64 / n as f64;
        assert!(each < 22.0, "{each} bytes an entry");
    }
}
