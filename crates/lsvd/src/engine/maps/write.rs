//! Writing a run: entries in order become pages, pages become batches of one write each.
//!
//! Pages are written without waiting for stable media: a run is soft state, and counts after a restart only once a
//! checkpoint names it, which is written behind a sync.

use super::Io;
use crate::map::extents::Extent;
use crate::map::page::{DATA_BLOCKS_MAX, OTHER_BLOCKS_MAX, PageBuilder, key};
use crate::map::run::{Members, Place, Places, Run};
use freebs_format::disk::{PAGE_BYTES, PAGE_ENTRIES, PAGE_FENCES, PageHeader, PageName};
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
        let run = Run { number, members: members.then(Members::default), ..Run::default() };
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
        if let Some(m) = &mut self.run.members {
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
        for part in fences.chunks(freebs_format::disk::PAGE_BODY_BYTES / 8 * 8) {
            if self.pages.is_full() {
                self.pages.write(io).await?;
            }
            self.pages.add(PAGE_FENCES, part, part.len() as u32 / 8);
        }
        self.pages.write(io).await?;
        self.run.places = self.pages.places;
        self.run.fences.shrink_to_fit();
        if let Some(m) = &mut self.run.members {
            m.shrink();
        }
        Ok(Some(self.run))
    }
}

/// For readers of places alone.
pub(crate) fn whole(p: &Place) -> usize {
    p.count as usize * PAGE_BYTES
}
