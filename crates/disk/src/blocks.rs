//! From bytes at an offset to updates of whole blocks, and back.

use bytes::Bytes;
use freebs_format::{Extent, ExtentKind, UpdateDraft, UpdateKind, block_crcs, is_zero};
use freebs_types::{BLOCK, BlockRange, DriverId, Error, RequestNumber, Result, SECTOR};

/// What becomes of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content<'a> {
    Data(&'a [u8]),
    Zero,
    Trim,
}

/// Bytes `[offset, offset + len)` of a disk, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub offset: u64,
    pub len: u64,
}

const B: u64 = BLOCK as u64;

impl Span {
    /// `Invalid` unless the range consists of whole sectors inside the disk.
    pub fn check(offset: u64, len: u64, size: u64) -> Result<()> {
        if !(offset | len).is_multiple_of(SECTOR as u64) {
            return Err(Error::invalid(format!("{len} bytes at {offset} are not whole 512-byte sectors")));
        }
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(Error::invalid(format!("{len} bytes at {offset} reach beyond the disk's {size} bytes"))),
        }
    }

    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
    pub fn blocks(&self) -> BlockRange {
        let first = self.offset / B;
        BlockRange::new(first as u32, (self.end().div_ceil(B) - first) as u32)
    }

    /// Blocks of which the range has only a part: the rest has to stay as it is.
    pub fn edges(&self, size: u64) -> Vec<u32> {
        let b = self.blocks();
        let last = b.end() as u32 - 1;
        let mut out = Vec::new();
        if !self.offset.is_multiple_of(B) {
            out.push(b.start.0);
        }
        // Behind the disk's end there is nothing to keep.
        if !self.end().is_multiple_of(B) && self.end() < size && out.last() != Some(&last) {
            out.push(last);
        }
        out
    }

    /// Pieces of at most `max` bytes that end at block boundaries.
    pub fn pieces(self, max: u64) -> impl Iterator<Item = Span> {
        let mut at = self.offset;
        std::iter::from_fn(move || {
            let end = ((at / B * B) + max).min(self.end());
            let piece = (at < end).then(|| Span { offset: at, len: end - at });
            at = end;
            piece
        })
    }
}

/// The update that writes `content` over a span. `edges` are the present bytes of the span's edge blocks, in order.
pub(crate) fn draft(span: Span, content: Content<'_>, edges: &[Vec<u8>], size: u64) -> UpdateDraft {
    let blocks = span.blocks();
    let mut d = UpdateDraft {
        kind: match content {
            Content::Data(_) => UpdateKind::Write,
            Content::Zero => UpdateKind::Zero,
            Content::Trim => UpdateKind::Trim,
        },
        driver: DriverId(0),
        number: RequestNumber(0),
        lowest_open: RequestNumber(0),
        extents: Vec::new(),
        crcs: Vec::new(),
        data: Vec::new(),
    };
    if let Content::Data(bytes) = content {
        if span.offset.is_multiple_of(B) && span.len.is_multiple_of(B) {
            put(&mut d, blocks.start.0, bytes);
            return d;
        }
        let whole = merge(span, bytes, edges, size);
        put(&mut d, blocks.start.0, &whole);
        return d;
    }
    let kind = if content == Content::Zero { ExtentKind::Zero } else { ExtentKind::Trim };
    let names = span.edges(size);
    let (mut start, mut end) = (blocks.start.0, blocks.end() as u32);
    let zeroes = vec![0u8; BLOCK];
    let mut parts = Vec::new();
    for (lba, old) in names.iter().zip(edges) {
        let at = u64::from(*lba) * B;
        let (from, to) = (span.offset.max(at), span.end().min(at + B));
        let mut block = old.clone();
        block[(from - at) as usize..(to - at) as usize].copy_from_slice(&zeroes[..(to - from) as usize]);
        parts.push((*lba, block));
        (start, end) = if *lba == start { (start + 1, end) } else { (start, end - 1) };
    }
    for (lba, block) in &parts {
        put(&mut d, *lba, block);
    }
    if start < end {
        d.extents.push(Extent { kind, range: BlockRange::new(start, end - start) });
    }
    d
}

/// New bytes with what stays around them.
fn merge(span: Span, bytes: &[u8], edges: &[Vec<u8>], size: u64) -> Vec<u8> {
    let blocks = span.blocks();
    let mut whole = vec![0u8; blocks.len as usize * BLOCK];
    for (lba, old) in span.edges(size).iter().zip(edges) {
        let at = (lba - blocks.start.0) as usize * BLOCK;
        whole[at..at + BLOCK].copy_from_slice(old);
    }
    let at = (span.offset % B) as usize;
    whole[at..at + bytes.len()].copy_from_slice(bytes);
    whole
}

/// Adds whole blocks: zeroes are recorded, not stored.
fn put(d: &mut UpdateDraft, lba: u32, bytes: &[u8]) {
    let n = (bytes.len() / BLOCK) as u32;
    let zero = |b: u32| is_zero(&bytes[b as usize * BLOCK..(b as usize + 1) * BLOCK]);
    let mut at = 0;
    while at < n {
        let is = zero(at);
        let end = (at + 1..n).find(|b| zero(*b) != is).unwrap_or(n);
        let range = BlockRange::new(lba + at, end - at);
        if is {
            d.extents.push(Extent { kind: ExtentKind::Zero, range });
        } else {
            let run = &bytes[at as usize * BLOCK..end as usize * BLOCK];
            block_crcs(run, &mut d.crcs);
            d.data.push(Bytes::copy_from_slice(run));
            d.extents.push(Extent { kind: ExtentKind::Data, range });
        }
        at = end;
    }
}

/// The caller's buffer for a span: takes bytes of whole blocks, keeps what the span has of them.
pub(crate) struct Sink<'a> {
    pub span: Span,
    pub buf: &'a mut [u8],
}

impl Sink<'_> {
    fn part(&mut self, lba: u32, len: usize) -> Option<(&mut [u8], usize)> {
        let at = u64::from(lba) * B;
        let (from, to) = (self.span.offset.max(at), self.span.end().min(at + len as u64));
        if from >= to {
            return None;
        }
        let mine = (from - self.span.offset) as usize..(to - self.span.offset) as usize;
        Some((&mut self.buf[mine], (from - at) as usize))
    }

    pub fn put(&mut self, lba: u32, bytes: &[u8]) {
        if let Some((to, skip)) = self.part(lba, bytes.len()) {
            let n = to.len();
            to.copy_from_slice(&bytes[skip..skip + n]);
        }
    }
    pub fn zero(&mut self, lba: u32, blocks: u32) {
        if let Some((to, _)) = self.part(lba, blocks as usize * BLOCK) {
            to.fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_know_their_blocks_and_edges() {
        let size = 10 * B - 512;
        let s = |offset, len| Span { offset, len };
        assert_eq!(s(512, 512).edges(size), [0]);
        assert_eq!(s(0, 4096).edges(size), [] as [u32; 0]);
        assert_eq!(s(512, 8192).edges(size), [0, 2]);
        assert_eq!(s(4096, 4608).edges(size), [2]);
        assert_eq!(s(9 * B, B - 512).edges(size), [] as [u32; 0], "the disk ends there");
        assert_eq!(s(512, 8192).blocks(), BlockRange::new(0, 3));
        let p: Vec<_> = s(512, 3 * B).pieces(B).collect();
        assert_eq!(p, [s(512, B - 512), s(B, B), s(2 * B, B), s(3 * B, 512)]);
        assert!(Span::check(0, 512, size).is_ok() && Span::check(size, 0, size).is_ok());
        for bad in [(1, 512), (0, 100), (size, 512), (u64::MAX - 511, 1024)] {
            assert!(Span::check(bad.0, bad.1, size).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn zero_blocks_are_recorded_and_edges_stay() {
        let mut bytes = vec![0u8; 4 * BLOCK];
        bytes[BLOCK] = 1;
        let d = draft(Span { offset: 0, len: 4 * B }, Content::Data(&bytes), &[], 100 * B);
        let kinds: Vec<_> = d.extents.iter().map(|e| (e.kind, e.range.start.0, e.range.len)).collect();
        assert_eq!(kinds, [(ExtentKind::Zero, 0, 1), (ExtentKind::Data, 1, 1), (ExtentKind::Zero, 2, 2)]);
        d.check(100).unwrap();
        let d = draft(Span { offset: 512, len: 2 * B }, Content::Trim, &[vec![7; BLOCK], vec![8; BLOCK]], 100 * B);
        d.check(100).unwrap();
        let kinds: Vec<_> = d.extents.iter().map(|e| (e.kind, e.range.start.0, e.range.len)).collect();
        assert_eq!(kinds, [(ExtentKind::Data, 0, 1), (ExtentKind::Data, 2, 1), (ExtentKind::Trim, 1, 1)]);
        assert_eq!((d.data[0][511], d.data[0][512], d.data[1][511], d.data[1][512]), (7, 0, 0, 8));
    }
}
