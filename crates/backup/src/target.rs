//! A target: a store with a marker, and the names of what is in it.
//!
//! | key | what |
//! | --- | --- |
//! | `freebs-backup` | the marker |
//! | `freebs-backup-copy` | the marker once more |
//! | `backups/ID` | a manifest, or a note in its place: none will be there any more |
//! | `creates/ID` | a note: a create is under way, or was; written once |
//! | `alive/ID` | a note: when anything was heard of that create, written again and again |
//! | `deleted/ID` | a note: the backup is deleted |
//! | `blocks/OWNER/XX/NAME` | an object that the backup OWNER stored; XX are the first digits of its name |

use crate::format::{Entry, Id, Manifest, Marker, Name, Note, Page, PageRef, note};
use crate::keys::Keys;
use crate::limits::{MANIFEST_BYTES_MAX, NOTES_MAX, OBJECT_BYTES_MAX, SMALL_BYTES_MAX};
use crate::pack::{name_of, unpack};
use crate::store::{Listed, Part, Store};
use freebs_io::Random;
use freebs_types::{ClusterId, Error, ErrorKind, Result, VolumeId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use zerocopy::IntoBytes;

/// Key of the marker.
pub const MARKER: &str = "freebs-backup";
/// Key of its copy: without a marker nothing of a target can be read.
pub const MARKER_COPY: &str = "freebs-backup-copy";
pub(crate) const BACKUPS: &str = "backups";
pub(crate) const CREATES: &str = "creates";
pub(crate) const ALIVE: &str = "alive";
pub(crate) const DELETED: &str = "deleted";
pub(crate) const BLOCKS: &str = "blocks";

/// A target that is open.
pub struct Target {
    store: Store,
    id: Id,
    keys: Option<Keys>,
    random: RefCell<Box<dyn Random>>,
    is_new: bool,
}

/// An object of a folder whose objects are named by backups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its bytes.
    pub(crate) bytes: u64,
    /// When it was written: milliseconds since 1970, by the clock of the store.
    pub(crate) modified_ms: u64,
}

impl Seen {
    /// True if it has the length of a note, which no manifest has. Whatever it says, there is no manifest.
    pub(crate) fn is_note(self) -> bool {
        self.bytes == size_of::<Note>() as u64
    }
}

/// An object that is in the place of a manifest.
#[derive(Clone, Debug)]
pub enum Found {
    /// The manifest.
    Manifest(Box<Manifest>),
    /// There is none any more: it was given up, or deleted.
    Ended,
    /// It can't be read, for this reason.
    Damaged(Error),
}

impl Target {
    /// Opens a target; makes it if `make` and the place is empty.
    ///
    /// # Errors
    /// `NotFound` if there is no target; `Invalid` if there is something else, if the target is of another version, or if a
    /// key is missing, another one, or one too many.
    pub async fn open(store: Store, keys: Option<Keys>, mut random: Box<dyn Random>, make: bool) -> Result<Self> {
        let called = store.called().to_owned();
        let mut is_new = false;
        let mut found = marker(&store).await?;
        if found.is_none() {
            let other = store.any().await?;
            match other {
                _ if !make => return Err(no_target(&called)),
                Some(other) => {
                    return Err(Error::invalid(format!(
                        "{called} has other things in it ('{other}'), and no backups; name an empty or a new directory or \
                         prefix"
                    )));
                }
                None => {}
            }
            let mut id = Id::NONE;
            random.fill(&mut id.0);
            let marker = Marker::new(id, keys.as_ref().map_or(Id::NONE, Keys::id));
            is_new = store.put_new(MARKER, marker.as_bytes().to_vec()).await?;
            // If somebody else was faster, it is their target.
            found = self::marker(&store).await?;
        }
        let marker = found.ok_or_else(|| no_target(&called))?;
        match (&keys, marker.key()) {
            (None, Id::NONE) => {}
            (None, key) => {
                return Err(Error::invalid(format!(
                    "the backups in {called} are encrypted (with the key {key}); name its file with --key"
                )));
            }
            (Some(_), Id::NONE) => {
                return Err(Error::invalid(format!(
                    "the backups in {called} are not encrypted; leave out --key, or choose another target for encrypted ones"
                )));
            }
            (Some(keys), key) if keys.id() != key => {
                return Err(Error::invalid(format!(
                    "the backups in {called} are encrypted with the key {key}, and this is the key {}; name the right file \
                     with --key",
                    keys.id()
                )));
            }
            (Some(_), _) => {}
        }
        if make {
            mend_markers(&store, &marker).await?;
        }
        Ok(Self { store, id: marker.target(), keys, random: RefCell::new(random), is_new })
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }

    /// True if it was made just now.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// True if its objects are sealed.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.keys.is_some()
    }

    /// The store that it is in.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.keys.as_ref()
    }

    pub(crate) fn new_id(&self) -> Id {
        let mut id = Id::NONE;
        self.random.borrow_mut().fill(&mut id.0);
        id
    }

    pub(crate) fn new_nonce(&self) -> [u8; 12] {
        let mut nonce = [0; 12];
        self.random.borrow_mut().fill(&mut nonce);
        nonce
    }

    pub(crate) fn random_u64(&self) -> u64 {
        self.random.borrow_mut().next_u64()
    }

    pub(crate) fn pack(&self, plain: &[u8], name: Name) -> Result<Vec<u8>> {
        crate::pack::pack(plain, name, self.id, self.keys(), &mut **self.random.borrow_mut())
    }

    pub(crate) fn name_of(&self, plain: &[u8]) -> Name {
        name_of(plain, self.keys())
    }

    /// The word for a volume of a cluster in notes, which tells nothing where names tell nothing.
    pub(crate) fn subject(&self, cluster: ClusterId, volume: VolumeId) -> [u8; 32] {
        self.name_of(&[&cluster.0[..], &volume.0.to_le_bytes()].concat()).0
    }

    /// Refuses to go on with a target that has become another one.
    pub(crate) async fn check_same(&self) -> Result<()> {
        let same = match marker(&self.store).await {
            Ok(there) => there.is_some_and(|m| m.target() == self.id),
            Err(e) if matches!(e.kind, ErrorKind::Corrupt | ErrorKind::Invalid) => false,
            Err(e) => return Err(e),
        };
        same.then_some(()).ok_or_else(|| {
            Error::retry(format!(
                "{} is not the target any more that it was (its marker '{MARKER}' is gone or another one): somebody changed \
                 it, or it was unmounted; see that it is there, and begin again",
                self.store.called()
            ))
        })
    }

    /// Writes a note where none is; `false` if one is there. A note whose being there counts is never written again: a
    /// listing that goes on meanwhile may show neither the old nor the new one.
    pub(crate) async fn put_first_note(
        &self,
        folder: &str,
        backup: Id,
        kind: u16,
        time_ms: u64,
        subject: [u8; 32],
    ) -> Result<bool> {
        let note = Note::new(self.id, backup, kind, time_ms, subject);
        self.store.put_new(&key(folder, backup), note.as_bytes().to_vec()).await
    }

    /// Writes a note, in place of one that is there.
    pub(crate) async fn put_note(
        &self,
        folder: &str,
        backup: Id,
        kind: u16,
        time_ms: u64,
        subject: [u8; 32],
    ) -> Result<()> {
        let note = Note::new(self.id, backup, kind, time_ms, subject);
        self.store.put(&key(folder, backup), note.as_bytes().to_vec()).await
    }

    /// The note of a backup; `None` if it is not there.
    pub(crate) async fn note(&self, folder: &str, backup: Id) -> Result<Option<Note>> {
        let key = key(folder, backup);
        let Some(bytes) = self.store.get(&key, SMALL_BYTES_MAX).await? else { return Ok(None) };
        Note::decode(&bytes, self.id, backup).map(Some).map_err(|e| e.at(format!("{} '{key}'", self.store.called())))
    }

    /// The objects of a folder that have the identity of a backup as their name, in order.
    pub(crate) async fn ids(&self, folder: &str) -> Result<BTreeMap<Id, Seen>> {
        let mut ids = BTreeMap::new();
        let list = self.store.list(folder, &[Part::Id], |Listed { last, bytes, modified_ms, .. }| {
            ids.extend(Id::parse(&last).map(|id| (id, Seen { bytes, modified_ms })));
            if ids.len() > NOTES_MAX {
                return Err(Error::invalid(format!(
                    "more than {NOTES_MAX} objects in '{folder}'; use several targets"
                )));
            }
            Ok(())
        });
        list.await?;
        Ok(ids)
    }

    /// Takes the notes of a create away that has ended: the one that counts is the last.
    pub(crate) async fn forget_create(&self, backup: Id) -> Result<()> {
        self.store.delete(&key(ALIVE, backup)).await?;
        self.store.delete(&key(CREATES, backup)).await
    }

    /// The object in the place of a manifest; `None` if nothing is.
    pub(crate) async fn find(&self, backup: Id) -> Result<Option<Found>> {
        let key = key(BACKUPS, backup);
        let bytes = match self.store.get(&key, MANIFEST_BYTES_MAX).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            Err(e) if e.kind == ErrorKind::Corrupt => return Ok(Some(Found::Damaged(e))),
            Err(e) => return Err(e),
        };
        let place = |e: Error| e.at(format!("{} '{key}'", self.store.called()));
        if Note::is_one(&bytes) {
            let ended = Note::decode(&bytes, self.id, backup).map_err(place);
            return Ok(Some(match ended {
                Ok(n) if matches!(n.kind.get(), note::GIVEN_UP | note::GONE) => Found::Ended,
                Ok(_) => Found::Damaged(Error::corrupt(format!("{} '{key}' is no manifest", self.store.called()))),
                Err(e) => Found::Damaged(e),
            }));
        }
        Ok(Some(match Manifest::decode(&bytes, self.id, backup, self.keys()) {
            Ok(manifest) => Found::Manifest(Box::new(manifest)),
            Err(e) => Found::Damaged(place(e)),
        }))
    }

    /// The content of an object. The error names it, and says the way out. Its length does not count: another version of
    /// zstd may have packed the same content in another run of the same backup.
    ///
    /// # Errors
    /// `Corrupt` if it is missing or damaged.
    pub(crate) async fn content(&self, entry: &Entry) -> Result<Vec<u8>> {
        let key = object_key(entry.owner, entry.name);
        let place = || format!("{} '{key}'", self.store.called());
        let object = self.store.get(&key, OBJECT_BYTES_MAX).await?;
        let object = object.ok_or_else(|| Error::corrupt("the object is missing").at(place()))?;
        unpack(&object, entry.name, self.id, self.keys()).map_err(|e| e.at(place()))
    }

    /// The error for an object that is right, and not of the length of the block that it stands for.
    pub(crate) fn not_the_block(&self, entry: &Entry) -> Error {
        let key = object_key(entry.owner, entry.name);
        Error::corrupt(format!("{} '{key}' is not the block that the page names", self.store.called()))
    }

    /// A page of a manifest.
    ///
    /// # Errors
    /// `Corrupt` if its object is missing or damaged, or it does not fit the manifest.
    pub(crate) async fn page(&self, manifest: &Manifest, of: &PageRef) -> Result<Page> {
        let entry = of.object();
        let content = self.content(&entry).await?;
        let place = || format!("{} '{}'", self.store.called(), object_key(entry.owner, entry.name));
        let page = Page::decode(&content).map_err(|e| e.at(place()))?;
        let last = page.blocks.keys().next_back().copied().unwrap_or(0);
        let last = u64::from(page.page) * u64::from(crate::limits::PAGE_BLOCKS) + u64::from(last);
        let fits = page.page == of.page.get()
            && page.blocks.len() == of.entries.get() as usize
            && last < crate::format::blocks_of(manifest.details.size);
        fits.then_some(page)
            .ok_or_else(|| Error::corrupt("the page is not the one that the manifest names").at(place()))
    }
}

/// The marker of a store, or its copy if the marker is missing or damaged.
async fn marker(store: &Store) -> Result<Option<Marker>> {
    let mut damaged = None;
    for key in [MARKER, MARKER_COPY] {
        let read = match store.get(key, SMALL_BYTES_MAX).await {
            Ok(None) => continue,
            Ok(Some(bytes)) => Marker::decode(&bytes).map_err(|e| e.at(format!("{} '{key}'", store.called()))),
            Err(e) => Err(e),
        };
        match read {
            Ok(marker) => return Ok(Some(marker)),
            Err(e) if e.kind == ErrorKind::Corrupt => damaged = damaged.or(Some(e)),
            Err(e) => return Err(e),
        }
    }
    damaged.map_or(Ok(None), Err)
}

/// Writes those of the two copies that are missing or damaged.
async fn mend_markers(store: &Store, marker: &Marker) -> Result<()> {
    for key in [MARKER, MARKER_COPY] {
        let is_well = match store.get(key, SMALL_BYTES_MAX).await {
            Ok(there) => there.is_some_and(|bytes| bytes == marker.as_bytes()),
            Err(e) if e.kind == ErrorKind::Corrupt => false,
            Err(e) => return Err(e),
        };
        if !is_well {
            store.put(key, marker.as_bytes().to_vec()).await?;
        }
    }
    Ok(())
}

fn no_target(called: &str) -> Error {
    Error::not_found(format!(
        "there are no backups in {called}: it has no marker '{MARKER}'; is it the right place, and mounted?"
    ))
}

/// Key of an object about a backup.
pub(crate) fn key(folder: &str, backup: Id) -> String {
    format!("{folder}/{backup}")
}

/// Key of an object.
#[must_use]
pub fn object_key(owner: Id, name: Name) -> String {
    format!("{BLOCKS}/{owner}/{:02x}/{name}", name.0[0])
}

/// The owner and name in the key of an object; `None` if it is the key of something else.
pub(crate) fn of_object_key(key: &str) -> Option<(Id, Name)> {
    let mut parts = key.split('/').skip(1);
    let (owner, name) = (Id::parse(parts.next()?)?, Name::parse(parts.nth(1)?)?);
    (object_key(owner, name) == key).then_some((owner, name))
}
