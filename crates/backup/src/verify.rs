//! All objects of backups held against their names, without restoring anything.

use crate::catalog;
use crate::format::{Entry, Id, Manifest, Name, Page};
use crate::limits::{BLOCK_BYTES, NAMED_MAX, PAGE_COVERS, REQUESTS_MAX};
use crate::seam::Watch;
use crate::store::Part;
use crate::target::{BLOCKS, Found, Target, of_object_key};
use freebs_types::{Error, ErrorKind, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};

/// Backups to verify, and how much of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verifying {
    /// This backup only.
    pub backup: Option<Id>,
    /// Read so many of a million blocks, drawn at random; of the others only that they are there, with their length.
    pub of_million: u32,
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// The backup that needs it; another one may, too.
    pub backup: Id,
    /// The object, and what is wrong with it.
    pub text: String,
}

/// The result of a verification.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// Backups that were looked at.
    pub backups: u64,
    /// Objects that they need.
    pub objects: u64,
    /// Objects that were read, and their bytes.
    pub read: u64,
    /// Bytes of the objects that were read.
    pub read_bytes: u64,
    /// Objects and manifests that are damaged or missing.
    pub wrong: u64,
    /// The first of them.
    pub named: Vec<Wrong>,
    /// Backups that can't be restored.
    pub broken: BTreeSet<Id>,
}

impl Verified {
    fn wrong(&mut self, backup: Id, e: &Error) {
        self.wrong += 1;
        self.broken.insert(backup);
        if self.named.len() < NAMED_MAX {
            self.named.push(Wrong { backup, text: e.to_string() });
        }
    }
}

/// The lengths of all objects of an owner.
type Lengths = BTreeMap<Name, u64>;

/// All that is known of an object.
#[derive(Clone, Copy)]
struct Known {
    is_right: bool,
    /// Bytes of its content; zero if it was not read.
    plain: u32,
}

/// Verifies one backup or all.
///
/// # Errors
/// Those of the store, and `NotFound` if the backup is not there. Damage is no error but a result.
pub async fn verify<W: Watch>(target: &Target, how: &Verifying, watch: &W) -> Result<Verified> {
    let (lengths, seen, reached_bytes) = Default::default();
    let mut run = Run { target, how, watch, lengths, seen, reached_bytes, done: Verified::default() };
    if let Some(id) = how.backup {
        match catalog::open(target, id).await {
            Ok(manifest) => run.one(&manifest).await?,
            Err(e) if e.kind == ErrorKind::Corrupt => run.done.wrong(id, &e),
            Err(e) => return Err(e),
        }
        return Ok(run.done);
    }
    for id in catalog::ids(target).await? {
        // One manifest is in memory at a time.
        for (id, found) in catalog::read(target, vec![id], |found| found).await? {
            match found {
                Found::Ended => {}
                Found::Manifest(manifest) => run.one(&manifest).await?,
                Found::Damaged(e) => run.done.wrong(id, &e),
            }
        }
    }
    Ok(run.done)
}

struct Run<'a, W> {
    target: &'a Target,
    how: &'a Verifying,
    watch: &'a W,
    lengths: BTreeMap<Id, Lengths>,
    /// Objects that were looked at.
    seen: BTreeMap<(Id, Name), Known>,
    /// Bytes of the objects that the backups so far are of, those that they share more than once.
    reached_bytes: u64,
    done: Verified,
}

impl<W: Watch> Run<'_, W> {
    async fn one(&mut self, manifest: &Manifest) -> Result<()> {
        self.done.backups += 1;
        let mut stored_bytes = 0;
        for of in &manifest.pages {
            let object = of.object();
            let is_first = !self.seen.contains_key(&(object.owner, object.name));
            self.done.objects += u64::from(is_first);
            let page = match self.target.page(manifest, of).await {
                Ok(page) => page,
                Err(e) if e.kind == ErrorKind::Corrupt => {
                    self.done.wrong(manifest.id, &e);
                    continue;
                }
                Err(e) => return Err(e),
            };
            if is_first {
                self.done.read += 1;
                self.done.read_bytes += u64::from(of.stored.get());
                // A page has one form.
                let plain = page.encode().len() as u32;
                self.seen.insert((object.owner, object.name), Known { is_right: true, plain });
            }
            let page_bytes: u64 = page.blocks.values().map(|e| u64::from(e.stored)).sum();
            stored_bytes += page_bytes;
            self.blocks(manifest, &page).await?;
            self.reached_bytes = self.reached_bytes.saturating_add(page_bytes);
            self.watch.reached(self.reached_bytes);
        }
        if stored_bytes != manifest.details.stored_bytes && !self.done.broken.contains(&manifest.id) {
            let e = Error::corrupt(format!("the sums of manifest {} are not those of its pages", manifest.id));
            self.done.wrong(manifest.id, &e);
        }
        Ok(())
    }

    /// The blocks of a page.
    async fn blocks(&mut self, manifest: &Manifest, page: &Page) -> Result<()> {
        let mut look = Vec::new();
        for entry in page.blocks.values() {
            match self.seen.entry((entry.owner, entry.name)) {
                Slot::Occupied(known) if known.get().is_right => {}
                Slot::Occupied(_) => drop(self.done.broken.insert(manifest.id)),
                Slot::Vacant(free) => {
                    free.insert(Known { is_right: true, plain: 0 });
                    self.done.objects += 1;
                    let of_owner = match self.lengths.entry(entry.owner) {
                        Slot::Occupied(there) => there.into_mut(),
                        Slot::Vacant(free) => free.insert(lengths_of(self.target, entry.owner).await?),
                    };
                    let is_stored = of_owner.get(&entry.name) == Some(&entry.stored.into());
                    let of_million = self.how.of_million;
                    let is_drawn = of_million >= 1_000_000 || self.target.random_u64() % 1_000_000 < of_million.into();
                    // One that has another length is read, as is one that is missing, for its error.
                    look.extend((is_drawn || !is_stored).then_some(*entry));
                }
            }
        }
        self.read(manifest, &look).await?;
        for (block, entry) in &page.blocks {
            let at = u64::from(page.page) * PAGE_COVERS + u64::from(*block) * BLOCK_BYTES as u64;
            let len = (manifest.details.size - at).min(BLOCK_BYTES as u64);
            let known = self.seen.get(&(entry.owner, entry.name));
            if known.is_some_and(|k| k.is_right && k.plain != 0 && u64::from(k.plain) != len) {
                self.done.wrong(manifest.id, &self.target.not_the_block(entry));
            }
        }
        Ok(())
    }

    async fn read(&mut self, manifest: &Manifest, look: &[Entry]) -> Result<()> {
        let (target, watch) = (self.target, self.watch);
        let contents = stream::iter(look).map(async |entry| {
            watch.pace(entry.stored.into()).await;
            match target.content(entry).await {
                Ok(plain) => Ok::<_, Error>((entry, Ok(plain.len() as u32))),
                Err(e) if e.kind == ErrorKind::Corrupt => Ok((entry, Err(e))),
                Err(e) => Err(e),
            }
        });
        let mut contents = contents.buffered(REQUESTS_MAX);
        while let Some((entry, read)) = contents.try_next().await? {
            self.done.read += 1;
            self.done.read_bytes += u64::from(entry.stored);
            watch.moved(entry.stored.into());
            if let Err(e) = &read {
                self.done.wrong(manifest.id, e);
            }
            let known = Known { is_right: read.is_ok(), plain: read.unwrap_or(0) };
            self.seen.insert((entry.owner, entry.name), known);
        }
        Ok(())
    }
}

async fn lengths_of(target: &Target, owner: Id) -> Result<Lengths> {
    let mut lengths = Lengths::new();
    let folder = format!("{BLOCKS}/{owner}");
    let listed = target.store().list(&folder, &[Part::Digits, Part::Name], |listed| {
        lengths.extend(of_object_key(&listed.key).map(|(_, name)| (name, listed.bytes)));
        Ok(())
    });
    listed.await?;
    Ok(lengths)
}
