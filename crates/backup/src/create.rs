//! A backup is made.
//!
//! Invariants:
//! - Blocks first, then pages, then the manifest, which is put under a name that has none. Nothing of a create that ended
//!   before is in a list.
//! - An object is named only if this backup stored it, or if a manifest named it that was read after the note of this create
//!   was written (`docs/design/0032-backups.md` says why prune never takes such an object).

use crate::catalog;
use crate::format::{Details, Entry, Id, Manifest, Moment, Name, Page, PageRef, blocks_of, note};
use crate::limits::{
    BACKUPS_MAX, BLOCK_BYTES, PAGE_BLOCKS, PAGE_COVERS, REMEMBERED_MAX, REQUESTS_MAX, VOLUME_BYTES_MAX,
};
use crate::seam::{Source, Watch};
use crate::store::Part;
use crate::target::{ALIVE, BACKUPS, BLOCKS, CREATES, Found, Target, key, object_key, of_object_key};
use freebs_types::{ClusterId, Error, ErrorKind, Result, VolumeId};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// An order for a backup.
#[derive(Clone, Debug)]
pub struct Order {
    /// Identity of the cluster.
    pub cluster: ClusterId,
    /// The volume's number in it.
    pub volume: VolumeId,
    /// How people call what is backed up: a volume's name, perhaps with that of a snapshot.
    pub name: String,
    /// Now: milliseconds since 1970.
    pub now_ms: u64,
    /// Not deleted before: milliseconds since 1970; zero: at any time.
    pub locked_until_ms: u64,
    /// Store all blocks again, whatever earlier backups have.
    pub full: bool,
}

/// A backup that was made.
#[derive(Clone, Debug)]
pub struct Created {
    /// The manifest.
    pub manifest: Manifest,
    /// Bytes that were read from the source.
    pub read_bytes: u64,
    /// Bytes that were sent to the target in this run.
    pub sent_bytes: u64,
    /// Blocks and pages that an earlier run had stored.
    pub resumed: u64,
}

/// An object that this backup has stored.
#[derive(Clone, Copy)]
struct Stored {
    bytes: u32,
    /// In an earlier run, and not met in this one.
    is_earlier: bool,
}

/// The objects that this backup has stored, in this run or one before.
struct Own {
    names: BTreeMap<Name, Stored>,
    /// False if there are more of them.
    is_whole: bool,
}

struct Create<'a, S, W> {
    target: &'a Target,
    source: &'a S,
    watch: &'a W,
    id: Id,
    parent: Option<Manifest>,
    own: RefCell<Own>,
    read: Cell<u64>,
    sent: Cell<u64>,
    resumed: Cell<u64>,
    /// False once the source could not tell what changed since the parent.
    can_tell: Cell<bool>,
}

/// Sums over pages.
#[derive(Default)]
struct Sums {
    blocks: u64,
    stored_bytes: u64,
    new_blocks: u64,
    new_bytes: u64,
}

/// Makes a backup, or goes on with one of the same volume that was interrupted.
///
/// # Errors
/// Those of source and store; `Retry` if prune gave the backup up while nothing was heard of it; `Busy` if somebody else
/// finished it. What was stored is not sent again by the next one.
pub async fn create<S: Source, W: Watch>(target: &Target, source: &S, order: &Order, watch: &W) -> Result<Created> {
    let size = source.size();
    if size == 0 || size > VOLUME_BYTES_MAX {
        return Err(Error::invalid(format!(
            "a disk of {size} bytes can't be backed up; the largest has {VOLUME_BYTES_MAX}"
        )));
    }
    let subject = target.subject(order.cluster, order.volume);
    let (id, is_resumed) = match interrupted(target, subject).await? {
        Some(id) => (id, true),
        None => (target.new_id(), false),
    };
    let alive = async || target.put_note(ALIVE, id, note::ALIVE, order.now_ms, subject).await;
    // From here on prune heeds this create; what it reads of other backups stays.
    let is_heeded = match is_resumed {
        true => {
            alive().await?;
            target.store().has(&key(CREATES, id)).await?
        }
        false => target.put_first_note(CREATES, id, note::CREATE, order.now_ms, subject).await?,
    };
    if !is_heeded {
        return Err(why_ended(target, id).await?);
    }
    let own = if is_resumed { own(target, id).await? } else { Own { names: BTreeMap::new(), is_whole: true } };
    if is_resumed {
        let stored = own.names.len();
        watch.note(&format!("going on with backup {id}, which was interrupted: {stored} objects are there already"));
    }
    let parent = parent(target, order, watch).await?;
    let (read, sent, resumed) = Default::default();
    let create = Create {
        target,
        source,
        watch,
        id,
        parent,
        own: RefCell::new(own),
        read,
        sent,
        resumed,
        can_tell: Cell::new(true),
    };
    let mut sums = Sums::default();
    let mut pages = Vec::new();
    for page in 0..blocks_of(size).div_ceil(PAGE_BLOCKS.into()) {
        pages.extend(create.page(page as u32, &mut sums, &alive).await?);
    }
    watch.reached(size);
    let parent = create.parent.as_ref().map_or(Id::NONE, |p| p.id);
    let details = Details {
        cluster: order.cluster,
        volume: order.volume,
        name: order.name.clone(),
        parent,
        time_ms: order.now_ms,
        size,
        blocks: sums.blocks,
        stored_bytes: sums.stored_bytes,
        new_blocks: sums.new_blocks,
        new_bytes: sums.new_bytes,
        locked_until_ms: order.locked_until_ms,
        moment: source.moment(),
    };
    let manifest = Manifest { id, details, pages };
    let manifest_bytes = commit(target, &manifest, is_resumed).await?;
    let sent_bytes = create.sent.get() + manifest_bytes;
    Ok(Created { manifest, read_bytes: create.read.get(), sent_bytes, resumed: create.resumed.get() })
}

/// The create of this volume that was begun and not ended, if there is one. Notes of those that ended are taken away.
async fn interrupted(target: &Target, subject: [u8; 32]) -> Result<Option<Id>> {
    let mut found = None;
    for id in target.ids(CREATES).await?.into_keys() {
        match target.note(CREATES, id).await {
            Ok(Some(note)) if note.subject == subject => {}
            // A damaged one stays, for prune.
            Ok(_) => continue,
            Err(e) if e.kind == ErrorKind::Corrupt => continue,
            Err(e) => return Err(e),
        }
        if target.store().has(&key(BACKUPS, id)).await? {
            target.forget_create(id).await?;
        } else {
            found = Some(id);
        }
    }
    Ok(found)
}

/// The objects that a backup has stored.
async fn own(target: &Target, id: Id) -> Result<Own> {
    let mut own = Own { names: BTreeMap::new(), is_whole: true };
    let folder = format!("{BLOCKS}/{id}");
    let listed = target.store().list(&folder, &[Part::Digits, Part::Name], |listed| {
        let Some((owner, name)) = of_object_key(&listed.key) else { return Ok(()) };
        // An object that can't be one was damaged by somebody, and is stored again.
        if owner == id && Entry::fits(listed.bytes) {
            own.is_whole &= own.names.len() < REMEMBERED_MAX;
            if own.is_whole {
                own.names.insert(name, Stored { bytes: listed.bytes as u32, is_earlier: true });
            }
        }
        Ok(())
    });
    listed.await?;
    Ok(own)
}

/// The newest backup of the same volume, unless all is to be stored again.
async fn parent<W: Watch>(target: &Target, order: &Order, watch: &W) -> Result<Option<Manifest>> {
    let ids = catalog::ids(target).await?;
    if ids.len() >= BACKUPS_MAX {
        return Err(Error::invalid(format!(
            "{} has {} backups, and no target has more than {BACKUPS_MAX}; delete some, or use several targets",
            target.store().called(),
            ids.len()
        )));
    }
    if order.full {
        return Ok(None);
    }
    let mut newest = None;
    for listed in catalog::details(target, ids).await? {
        match listed.details {
            Err(e) => watch.note(&format!("backup {} is left aside: {e}", listed.id)),
            Ok(d) if (d.cluster, d.volume) == (order.cluster, order.volume) => {
                newest = newest.max(Some((d.time_ms, listed.id)));
            }
            Ok(_) => {}
        }
    }
    let Some((_, newest)) = newest else { return Ok(None) };
    match target.find(newest).await? {
        Some(Found::Manifest(m)) => Ok(Some(*m)),
        // It was deleted and pruned meanwhile, or can't be read any more: all is stored again.
        _ => Ok(None),
    }
}

/// Puts the manifest; its bytes.
async fn commit(target: &Target, manifest: &Manifest, is_resumed: bool) -> Result<u64> {
    let id = manifest.id;
    // Things that this run found there, and has not written, may not be durable: objects of a run before it, and directories
    // that somebody else had just made.
    let store = target.store();
    store.sync("", None).await?;
    store.sync(BLOCKS, None).await?;
    if is_resumed {
        store.sync(&format!("{BLOCKS}/{id}"), Some(Part::Digits)).await?;
    }
    target.check_same().await?;
    if !store.has(&key(CREATES, id)).await? {
        return Err(why_ended(target, id).await?);
    }
    let seal = target.keys().map(|keys| (keys, target.new_nonce()));
    let bytes = manifest.encode(target.id(), seal)?;
    let len = bytes.len() as u64;
    if !store.put_new(&key(BACKUPS, id), bytes).await? {
        return Err(why_ended(target, id).await?);
    }
    // They have no meaning any more; whoever finds them takes them away.
    let _ = target.forget_create(id).await;
    Ok(len)
}

/// Why a create can't come to its end any more.
async fn why_ended(target: &Target, id: Id) -> Result<Error> {
    Ok(match target.find(id).await? {
        Some(Found::Manifest(_)) => {
            Error::busy(format!("backup {id} was finished by another process that went on with it; it is whole"))
        }
        _ => Error::retry(format!(
            "backup {id} was given up by a prune, because nothing had been heard of it for longer than the prune's --grace; \
             begin again"
        )),
    })
}

/// Which blocks of a page are to be looked at.
struct Touched {
    blocks: Vec<bool>,
    /// True if the others are as in the parent; if not they are zeroes.
    others_kept: bool,
}

impl<S: Source, W: Watch> Create<'_, S, W> {
    /// Backs up the part of the disk that a page covers. `None` if it has zeroes only.
    async fn page(&self, page: u32, sums: &mut Sums, alive: &impl AsyncFn() -> Result<()>) -> Result<Option<PageRef>> {
        let from = u64::from(page) * PAGE_COVERS;
        let size = self.source.size();
        let to = (from + PAGE_COVERS).min(size);
        let (before_ref, before) = self.before(page).await?;
        let touched = self.touched(from..to, before.is_some() || before_ref.is_none()).await?;
        let before = before.unwrap_or_default();
        let mut now = Page { page, blocks: BTreeMap::new() };
        if touched.others_kept {
            let kept = before.blocks.iter().filter(|(b, _)| touched.blocks.get(usize::from(**b)) == Some(&false));
            now.blocks.extend(kept.map(|(b, e)| (*b, *e)));
        }
        let look: Vec<u16> = (0..touched.blocks.len()).filter(|b| touched.blocks[*b]).map(|b| b as u16).collect();
        let mut blocks = stream::iter(look)
            .map(async |block| {
                let at = from + u64::from(block) * BLOCK_BYTES as u64;
                let range = at..(at + BLOCK_BYTES as u64).min(size);
                Ok::<_, Error>((block, self.block(range, before.blocks.get(&block)).await?))
            })
            .buffered(REQUESTS_MAX);
        while let Some((block, entry)) = blocks.try_next().await? {
            now.blocks.extend(entry.map(|e| (block, e)));
            self.watch.reached(from + u64::from(block) * BLOCK_BYTES as u64);
            if self.watch.is_due() {
                alive().await?;
            }
        }
        self.watch.reached(to);
        // A page without blocks takes its time as well.
        if self.watch.is_due() {
            alive().await?;
        }
        if now.blocks.is_empty() {
            return Ok(None);
        }
        for (block, entry) in &now.blocks {
            sums.blocks += 1;
            sums.stored_bytes += u64::from(entry.stored);
            if before.blocks.get(block) != Some(entry) {
                sums.new_blocks += 1;
                sums.new_bytes += u64::from(entry.stored);
            }
        }
        let entries = now.blocks.len() as u32;
        if let Some(before_ref) = before_ref.filter(|_| now == before) {
            return Ok(Some(before_ref));
        }
        let content = now.encode();
        let object = self.store(&content, self.target.name_of(&content)).await?;
        sums.new_bytes += u64::from(object.stored);
        Ok(Some(PageRef::new(page, entries, object)))
    }

    /// The parent's page, if it has one and it can be read.
    async fn before(&self, page: u32) -> Result<(Option<PageRef>, Option<Page>)> {
        let Some(parent) = &self.parent else { return Ok((None, None)) };
        let Some(before) = parent.page(page) else { return Ok((None, None)) };
        match self.target.page(parent, before).await {
            Ok(read) => Ok((Some(*before), Some(read))),
            Err(e) if e.kind == ErrorKind::Corrupt => {
                self.watch.note(&format!("{e}; the blocks that it names are stored again"));
                Ok((Some(*before), None))
            }
            Err(e) => Err(e),
        }
    }

    /// `parent_known`: the parent's page was read, or the parent has zeroes only there.
    async fn touched(&self, range: std::ops::Range<u64>, parent_known: bool) -> Result<Touched> {
        let block = BLOCK_BYTES as u64;
        let mut since: Option<Moment> = self
            .parent
            .as_ref()
            .filter(|p| parent_known && self.can_tell.get() && p.details.size <= self.source.size())
            .map(|p| p.details.moment)
            .filter(|m| !m.is_none() && self.source.can_tell_since(m));
        let mut blocks = vec![false; (range.end - range.start).div_ceil(block) as usize];
        let mark = |part: std::ops::Range<u64>, blocks: &mut [bool]| {
            let (from, to) = (part.start.max(range.start), part.end.min(range.end));
            if from < to {
                let (first, last) = ((from - range.start) / block, (to - 1 - range.start) / block);
                blocks[first as usize..=last as usize].fill(true);
            }
        };
        match self.source.extents(range.clone(), since.as_ref(), &mut |part| mark(part, &mut blocks)).await {
            // Blocks that are damaged themselves can't be read either, and end it.
            Err(e) if since.is_some() && matches!(e.kind, ErrorKind::NotFound | ErrorKind::Corrupt) => {
                self.watch.note(&format!("what changed since the backup before can't be told, so all is read: {e}"));
                self.can_tell.set(false);
                since = None;
                blocks.fill(false);
                self.source.extents(range.clone(), None, &mut |part| mark(part, &mut blocks)).await?;
            }
            told => told?,
        }
        // The last block of a volume that has grown is another one.
        if let Some(parent) = self.parent.as_ref().filter(|p| since.is_some() && p.details.size != self.source.size()) {
            let end = parent.details.size;
            if !end.is_multiple_of(block) {
                mark(end - end % block..end, &mut blocks);
            }
        }
        Ok(Touched { blocks, others_kept: since.is_some() })
    }

    /// Reads a block; stores it if it is not zero and not there yet.
    async fn block(&self, range: std::ops::Range<u64>, before: Option<&Entry>) -> Result<Option<Entry>> {
        let len = range.end - range.start;
        self.watch.pace(len).await;
        let pieces = self.source.read(range).await?;
        let mut plain = Vec::with_capacity(len as usize);
        pieces.iter().for_each(|p| plain.extend_from_slice(p));
        if plain.len() as u64 != len {
            return Err(Error::bug("a read has not the bytes that were asked for"));
        }
        self.read.set(self.read.get() + len);
        self.watch.moved(len);
        if freebs_image::runs(&plain).is_empty() {
            return Ok(None);
        }
        let name = self.target.name_of(&plain);
        if let Some(before) = before.filter(|b| b.name == name) {
            return Ok(Some(*before));
        }
        self.store(&plain, name).await.map(Some)
    }

    /// Stores a content, unless this backup has.
    async fn store(&self, plain: &[u8], name: Name) -> Result<Entry> {
        let entry = |stored| Entry { owner: self.id, name, stored };
        if let Some(stored) = self.own.borrow_mut().names.get_mut(&name) {
            let is_earlier = std::mem::take(&mut stored.is_earlier);
            self.resumed.set(self.resumed.get() + u64::from(is_earlier));
            return Ok(entry(stored.bytes));
        }
        let key = object_key(self.id, name);
        if !self.own.borrow().is_whole {
            let there = self.target.store().head(&key).await?.filter(|l| Entry::fits(l.bytes));
            if let Some(there) = there {
                self.resumed.set(self.resumed.get() + 1);
                return Ok(entry(there.bytes as u32));
            }
        }
        let object = self.target.pack(plain, name)?;
        let stored = object.len() as u32;
        {
            // Before it is there: if it can't be put, the whole create ends.
            let own = &mut *self.own.borrow_mut();
            match own.names.len() < REMEMBERED_MAX {
                true => drop(own.names.insert(name, Stored { bytes: stored, is_earlier: false })),
                false => own.is_whole = false,
            }
        }
        self.target.store().put(&key, object).await?;
        self.sent.set(self.sent.get() + u64::from(stored));
        Ok(entry(stored))
    }
}
