//! Reading a store at a start: superblocks, then the whole area, every page of it.

use crate::mutant::Mutant;
use crate::pages::{PAGE_BYTES, Page, STAMP_BYTES, UNIT_BYTES, UNIT_PAGES};
use crate::store::{Contents, FIRST_PAGE, Options, look_at};
use crate::superblock::StoreSuperblock;
use freebs_io::{AnyDevice, Device};
use freebs_types::{Error, Result};

/// Pages read at once.
const READ_PAGES: u32 = 2048;

/// The newest superblock; `None` if the device is blank.
pub async fn superblocks(device: &AnyDevice) -> Result<Option<StoreSuperblock>> {
    if device.len() < 2 * UNIT_BYTES as u64 {
        return Err(Error::corrupt("the control store is shorter than its superblocks"));
    }
    let mut copies = Vec::new();
    for copy in 0..2 {
        let read = device.read(copy * UNIT_BYTES as u64, UNIT_BYTES).await;
        copies.push(read.and_then(|bytes| StoreSuperblock::read(&bytes)));
    }
    let newest = copies.iter().filter_map(|c| c.as_ref().ok().copied().flatten()).max_by_key(|s| s.generation.get());
    match (newest, copies.into_iter().find_map(Result::err)) {
        // One copy is enough; but of one that is damaged while the other is blank nobody knows what it said.
        (Some(newest), _) => Ok(Some(newest)),
        (None, Some(e)) => Err(e),
        (None, None) => Ok(None),
    }
}

/// Refuses a store of another node or cluster, and one that is older or newer than the node's device (rule V8).
pub fn check_owner(superblock: &StoreSuperblock, options: &Options) -> Result<()> {
    if superblock.cluster != options.cluster.0 || superblock.node.get() != options.node.0 {
        return Err(Error::corrupt("the control store belongs to another node or cluster"));
    }
    let (store, start, noted) = (superblock.start().0, options.start.0, options.noted.0);
    if store < noted {
        let text = format!("the control store was last opened in start {store}, and was seen in {noted}: an old image");
        return Err(Error::corrupt(text));
    }
    // Each start raises the device's number before it opens the store.
    if store >= start {
        let text = format!("the control store was opened in start {store}, this is start {start}: an old image");
        return Err(Error::corrupt(format!("{text} of the device")));
    }
    Ok(())
}

struct Scan<'a> {
    device: &'a AnyDevice,
    superblock: &'a StoreSuperblock,
    /// What was read last, and the number of its first page.
    window: (u32, Vec<u8>),
    end: u32,
}

impl Scan<'_> {
    async fn page(&mut self, page: u32) -> Result<(Page, &[u8])> {
        let (first, bytes) = &self.window;
        let there = page >= *first && ((page - first) as usize) < bytes.len() / PAGE_BYTES;
        if !there {
            let count = READ_PAGES.min(self.end - page);
            let unit = page - page % UNIT_PAGES;
            let count = (count + page - unit).next_multiple_of(UNIT_PAGES).min(self.end - unit);
            let read = self.device.read(u64::from(unit) * PAGE_BYTES as u64, count as usize * PAGE_BYTES).await;
            let read = read.map_err(|e| Error::corrupt(format!("the control store can't be read: {e}")))?;
            self.window = (unit, read.to_vec());
        }
        let at = (page - self.window.0) as usize * PAGE_BYTES;
        let bytes = &self.window.1[at..at + PAGE_BYTES];
        Ok((look_at(self.superblock, page, bytes), bytes))
    }

    /// The records of the batch that begins at `at` and its pages; `None` if it is not whole. `Corrupt` if a page of
    /// it is damaged.
    async fn batch(&mut self, at: u32, number: u32) -> Result<Option<(Vec<u8>, u32)>> {
        let count = match self.page(at).await?.0 {
            Page::Here { batch, left, .. } if batch == number => left.checked_add(1),
            Page::Damaged => return Err(damage(at)),
            _ => return Ok(None),
        };
        let Some(count) = count.filter(|c| c.is_multiple_of(UNIT_PAGES) && *c <= self.end - at) else {
            return Err(damage(at));
        };
        let mut records = Vec::new();
        for i in 0..count {
            let (page, bytes) = self.page(at + i).await?;
            match page {
                Page::Here { batch, left, used } if batch == number && left == count - 1 - i => {
                    records.extend(&bytes[STAMP_BYTES..STAMP_BYTES + used]);
                }
                Page::Before => return Ok(None),
                _ => return Err(damage(at + i)),
            }
        }
        Ok(Some((records, count)))
    }
}

fn damage(page: u32) -> Error {
    Error::corrupt(format!("the control store is damaged at page {page}; it can't vote with what is left of it"))
}

/// What the area that the superblock names holds.
pub async fn area(device: &AnyDevice, superblock: &StoreSuperblock, mutant: Option<Mutant>) -> Result<Contents> {
    let (first, count) = (superblock.first_page.get(), superblock.pages.get());
    let end = first.checked_add(count).filter(|e| u64::from(*e) * PAGE_BYTES as u64 <= device.len());
    let Some(end) = end.filter(|_| first >= FIRST_PAGE && (first | count).is_multiple_of(UNIT_PAGES)) else {
        return Err(Error::corrupt("the control store is shorter than its area"));
    };
    let mut scan = Scan { device, superblock, window: (0, Vec::new()), end };
    let mut contents = Contents::default();
    let (mut at, mut number) = (first, 0);
    while at < end {
        let batch = match scan.batch(at, number).await {
            Err(_) if mutant == Some(Mutant::DamageIsATornTail) && number > 0 => return Ok(contents),
            other => other?,
        };
        match batch {
            Some((records, count)) => {
                contents.replay(&records)?;
                at += count;
                number += 1;
            }
            None if number == 0 => return Err(damage(at)),
            None => break,
        }
    }
    if mutant == Some(Mutant::DamageIsATornTail) {
        return Ok(contents);
    }
    // Behind the last whole batch there may be pieces of the next one, and nothing else of this area.
    for page in at..end {
        match scan.page(page).await?.0 {
            Page::Before => {}
            Page::Here { batch, .. } if batch == number => {}
            _ => return Err(damage(page)),
        }
    }
    Ok(contents)
}
