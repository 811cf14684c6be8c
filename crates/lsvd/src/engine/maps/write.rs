//! Writing a run: entries in order become pages, pages become batches of one write each.
//!
//! Pages are written without waiting for stable media: a run is soft state, and counts after a restart only once a
//! checkpoint names it, which is written behind a sync.

use super::Io;
use crate::map::extents::{Extent, Layer};
use crate::map::page::{DATA_BLOCKS_MAX, OTHER_BLOCKS_MAX, PageBuilder, key};
use crate::map::run::{Beside, Members, PastRun, Place, Places, Run};
use crate::map::tally::COUNT_BYTES;
use freebs_format::disk::{
    PAGE_BODY_BYTES, PAGE_BYTES, PAGE_ENTRIES, PAGE_FENCES, PAGE_LAYER_FENCES, PAGE_LAYERS, PAGE_TALLIES, PageHeader,
    PageName,
};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{DeviceId, Error, Result};

/// Pages of one write.
const BATCH_PAGES: usize = 32;

/// Pages that gather for the next write, and where the earlier ones went.
pub(crate) struct Pages {
    device: DeviceId,
    number: u64,
    buf: Option<AlignedBuf>,
    /// Pages in `buf`.
    count: usize,
    pub places: Places,
}

impl Pages {
    pub fn new(device: DeviceId, number: u64) -> Self {
        Self { device, number, buf: None, count: 0, places: Places::default() }
    }

    pub fn add(&mut self, kind: u16, body: &[u8], count: u32) {
        let buf = self.buf.get_or_insert_with(|| AlignedBuf::zeroed(BATCH_PAGES * PAGE_BYTES));
        let page = &mut buf[self.count * PAGE_BYTES..(self.count + 1) * PAGE_BYTES];
        page[size_of::<PageHeader>()..][..body.len()].copy_from_slice(body);
        page[size_of::<PageHeader>() + body.len()..].fill(0);
        let number = self.places.pages + self.count as u32;
        PageHeader::seal(
            page,
            PageName { device: self.device, kind, run: self.number, page: number },
            count,
            body.len(),
        );
        self.count += 1;
    }

    pub fn is_full(&self) -> bool {
        self.count == BATCH_PAGES
    }

    /// Writes what has gathered.
    pub async fn write<D: Device>(&mut self, io: Io<'_, D>) -> Result<()> {
        let mut from = 0;
        while from < self.count {
            let at = io.room(self.number, (self.count - from) as u32).await?;
            let n = at.count as usize;
            let whole = self.buf.take().ok_or_else(|| Error::bug("pages without a buffer"))?;
            let (buf, done) = if from == 0 && n == BATCH_PAGES {
                io.write_pages(at, whole, Durability::Cached).await
            } else {
                let mut part = AlignedBuf::zeroed(n * PAGE_BYTES);
                part.copy_from_slice(&whole[from * PAGE_BYTES..(from + n) * PAGE_BYTES]);
                let (_, done) = io.write_pages(at, part, Durability::Cached).await;
                (whole, done)
            };
            self.buf = Some(buf);
            done?;
            self.places.push(at);
            from += n;
        }
        self.count = 0;
        Ok(())
    }
}

/// A run that is being written.
pub(crate) struct RunWriter {
    pages: Pages,
    page: PageBuilder,
    run: Run,
}

impl RunWriter {
    pub fn new(device: DeviceId, number: u64, members: bool) -> Self {
        let beside = if members { Beside::Members(Members::default()) } else { Beside::Nothing };
        let run = Run { number, beside, ..Run::default() };
        Self { pages: Pages::new(device, number), page: PageBuilder::default(), run }
    }

    /// Adds an entry behind the others. Writes when enough has gathered.
    pub async fn push<D: Device>(&mut self, io: Io<'_, D>, slot: u32, start: u32, e: &Extent) -> Result<()> {
        let most = if e.is_data() { DATA_BLOCKS_MAX } else { OTHER_BLOCKS_MAX };
        let mut skip = 0;
        while skip < e.len {
            let len = (e.len - skip).min(most);
            if len == e.len {
                self.add(slot, start, e)
            } else {
                self.add(slot, start + skip, &e.piece(skip, len))
            }
            skip += len;
            if self.pages.is_full() {
                self.pages.write(io).await?;
            }
        }
        Ok(())
    }

    fn add(&mut self, slot: u32, start: u32, e: &Extent) {
        if !self.page.push(slot, start, e) {
            self.end_page();
            assert!(self.page.push(slot, start, e), "an entry of limited size fits an empty page");
        }
        if self.page.count == 1 {
            self.run.fences.push(key(slot, start));
        }
        if let Beside::Members(m) = &mut self.run.beside {
            assert!(m.push(slot, start, e.len), "entries of a run come in order and are short");
        }
        self.run.entries += 1;
    }

    pub(super) fn end_page(&mut self) {
        let page = std::mem::take(&mut self.page);
        self.pages.add(PAGE_ENTRIES, &page.body, page.count);
        self.page.body = page.body;
        self.page.body.clear();
    }

    /// The run, once its last pages are written; `None` if it has no entry.
    pub async fn finish<D: Device>(mut self, io: Io<'_, D>) -> Result<Option<Run>> {
        if self.page.count > 0 {
            self.end_page();
        }
        if self.run.entries == 0 {
            return Ok(None);
        }
        let fences: Vec<u8> = self.run.fences.iter().flat_map(|f| f.to_le_bytes()).collect();
        for part in fences.chunks(PAGE_BODY_BYTES / 8 * 8) {
            if self.pages.is_full() {
                self.pages.write(io).await?;
            }
            self.pages.add(PAGE_FENCES, part, part.len() as u32 / 8);
        }
        self.pages.write(io).await?;
        self.run.places = self.pages.places;
        self.run.fences.shrink_to_fit();
        if let Beside::Members(m) = &mut self.run.beside {
            m.shrink();
        }
        Ok(Some(self.run))
    }
}

/// Bytes of a fence of a run of history: the first cell of a page, and the version with which it goes on there.
pub(crate) const LAYER_FENCE_BYTES: usize = 16;
/// Fences of a run of history, and counts, that fit a page.
pub(crate) const LAYER_FENCES: usize = PAGE_BODY_BYTES / LAYER_FENCE_BYTES;
pub(crate) const COUNTS: usize = PAGE_BODY_BYTES / COUNT_BYTES;

/// A run of history that is being written.
pub(crate) struct LayerWriter {
    pages: Pages,
    page: PageBuilder,
    run: Run,
    past: PastRun,
    /// The cell of the last layer.
    last: Option<(u32, u32)>,
}

impl LayerWriter {
    pub fn new(device: DeviceId, number: u64) -> Self {
        let (run, past) = (Run { number, ..Run::default() }, PastRun::default());
        Self { pages: Pages::new(device, number), page: PageBuilder::default(), run, past, last: None }
    }

    /// Adds a layer behind the others. Writes when enough has gathered.
    pub async fn push<D: Device>(&mut self, io: Io<'_, D>, slot: u32, start: u32, l: &Layer) -> Result<()> {
        if !self.page.push_layer(slot, start, l) {
            self.end_page();
            assert!(self.page.push_layer(slot, start, l), "a layer of limited size fits an empty page");
        }
        if self.page.count == 1 {
            let goes_on = self.last == Some((slot, start));
            self.run.fences.push(key(slot, start));
            self.past.begun.push(if goes_on { l.e.version.0 } else { 0 });
        }
        self.last = Some((slot, start));
        self.past.tallies.note(slot, l);
        self.run.entries += 1;
        if self.pages.is_full() {
            self.pages.write(io).await?;
        }
        Ok(())
    }

    fn end_page(&mut self) {
        let page = std::mem::take(&mut self.page);
        self.pages.add(PAGE_LAYERS, &page.body, page.count);
        self.page.body = page.body;
        self.page.body.clear();
    }

    /// The run, once its last pages are written; `None` if it has no layer.
    pub async fn finish<D: Device>(mut self, io: Io<'_, D>) -> Result<Option<Run>> {
        if self.page.count > 0 {
            self.end_page();
        }
        if self.run.entries == 0 {
            return Ok(None);
        }
        let fences: Vec<(u64, u64)> = self.run.fences.iter().copied().zip(self.past.begun.iter().copied()).collect();
        for part in fences.chunks(LAYER_FENCES) {
            let bytes: Vec<u8> = part.iter().flat_map(|(f, v)| [f.to_le_bytes(), v.to_le_bytes()]).flatten().collect();
            self.add(io, PAGE_LAYER_FENCES, &bytes, part.len()).await?;
        }
        let counts: Vec<[u8; COUNT_BYTES]> = self.past.tallies.encode().collect();
        for part in counts.chunks(COUNTS) {
            self.add(io, PAGE_TALLIES, part.as_flattened(), part.len()).await?;
        }
        self.pages.write(io).await?;
        self.run.places = self.pages.places;
        self.run.fences.shrink_to_fit();
        self.past.begun.shrink_to_fit();
        self.run.beside = Beside::Past(self.past);
        Ok(Some(self.run))
    }

    async fn add<D: Device>(&mut self, io: Io<'_, D>, kind: u16, body: &[u8], count: usize) -> Result<()> {
        if self.pages.is_full() {
            self.pages.write(io).await?;
        }
        self.pages.add(kind, body, count as u32);
        Ok(())
    }
}

/// For readers of places alone.
pub(crate) fn whole(p: &Place) -> usize {
    p.count as usize * PAGE_BYTES
}
