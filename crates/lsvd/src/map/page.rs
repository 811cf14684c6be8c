//! Map entries as bytes of a page: each says how it differs from the one before it.
//!
//! An entry is one byte of flags, then varints: how many slots further (if any), blocks between it and the end of the
//! one before, its length (unless 1), the change of version and of sequence; for data, the change of the chunk's view
//! (if any) and counter, the block in the chunk, and four bytes of CRC per block; else the segment that records it.
//!
//! Invariants: entries lie in order of (slot, address) and don't overlap; every page begins anew, so it is read by
//! itself. What does not fit these rules is refused, whatever its checksum says.

use crate::log::place::NUMBER_MAX;
use crate::log::place::fits;
use crate::map::extents::{Crcs, Extent};
use freebs_format::ExtentKind;
use freebs_format::disk::{PAGE_BODY_BYTES, SEGMENTS_MAX};
use freebs_types::{BlockRange, ChunkId, Error, Result, Sequence, Version};

/// Blocks of one data entry: its CRCs leave room for others in the page.
pub(crate) const DATA_BLOCKS_MAX: u32 = 512;
/// Blocks of an entry without data: its length fits 16 bits.
pub(crate) const OTHER_BLOCKS_MAX: u32 = 65_535;
/// Bytes of an entry at most, CRCs aside.
const FIXED_MAX: usize = 1 + 10 * 8;
const _: () = assert!(FIXED_MAX + 4 * DATA_BLOCKS_MAX as usize <= PAGE_BODY_BYTES);

const KIND: u8 = 3;
const NEW_SLOT: u8 = 4;
const ONE: u8 = 8;
const SAME_VIEW: u8 = 16;

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
        Self { slot, end: start + e.len, version: e.version.0, sequence: e.sequence.0, view, counter }
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
        let before = self.body.len();
        let last = self.last;
        let mut flags = e.kind as u8;
        flags |= if slot == last.slot { 0 } else { NEW_SLOT };
        flags |= if e.len == 1 { ONE } else { 0 };
        flags |= if e.is_data() && e.chunk.view.0 == last.view { SAME_VIEW } else { 0 };
        let out = &mut self.body;
        out.push(flags);
        let mut end = last.end;
        if slot != last.slot {
            put(out, u64::from(slot - last.slot));
            end = 0;
        }
        put(out, u64::from(start - end));
        if e.len != 1 {
            put(out, u64::from(e.len));
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
}

impl<'a> PageReader<'a> {
    pub fn new(body: &'a [u8], count: u32) -> Self {
        Self { rest: body, left: count, last: Last::default() }
    }

    fn entry(&mut self) -> Option<(u32, u32, Extent)> {
        let (r, last) = (&mut self.rest, self.last);
        let (flags, rest) = r.split_first()?;
        *r = rest;
        let (mut slot, mut end) = (last.slot, last.end);
        if flags & NEW_SLOT != 0 {
            slot = slot.checked_add(u32::try_from(get(r)?).ok().filter(|s| *s > 0)?)?;
            end = 0;
        }
        let kind = ExtentKind::from_byte(flags & KIND)?;
        let start = end.checked_add(u32::try_from(get(r)?).ok()?)?;
        let len = if flags & ONE != 0 { 1 } else { u32::try_from(get(r)?).ok()? };
        let data = kind == ExtentKind::Data;
        let most = if data { DATA_BLOCKS_MAX } else { OTHER_BLOCKS_MAX };
        if len == 0 || len > most || !BlockRange::new(start, len).is_in_shard(data) {
            return None;
        }
        let version = get_change(r, last.version).filter(|v| *v < NUMBER_MAX)?;
        let sequence = get_change(r, last.sequence).filter(|s| *s < NUMBER_MAX)?;
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
