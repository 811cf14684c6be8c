//! All objects of backups held against their names, without restoring anything.

use crate::catalog;
use crate::format::{Entry, Id, Manifest, Name};
use crate::limits::{NAMED_MAX, REQUESTS_MAX};
use crate::seam::Watch;
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

/// Verifies one backup or all.
///
/// # Errors
/// Those of the store, and `NotFound` if the backup is not there. Damage is no error but a result.
pub async fn verify<W: Watch>(target: &Target, how: &Verifying, watch: &W) -> Result<Verified> {
    let mut done = Verified::default();
    let mut manifests = Vec::new();
    match how.backup {
        Some(id) => match catalog::open(target, id).await {
            Ok(m) => manifests.push(m),
            Err(e) if e.kind == ErrorKind::Corrupt => done.wrong(id, &e),
            Err(e) => return Err(e),
        },
        None => {
            for (id, found) in catalog::all(target).await? {
                match found {
                    Found::Ended => {}
                    Found::Manifest(m) => manifests.push(*m),
                    Found::Damaged(e) => done.wrong(id, &e),
                }
            }
        }
    }
    let mut lengths = BTreeMap::new();
    // Objects that were looked at; true if they were right.
    let mut seen: BTreeMap<(Id, Name), bool> = BTreeMap::new();
    for (nth, manifest) in manifests.iter().enumerate() {
        done.backups += 1;
        one(target, how, manifest, &mut lengths, &mut seen, &mut done, watch).await?;
        watch.reached(nth as u64 + 1);
    }
    Ok(done)
}

async fn one<W: Watch>(
    target: &Target,
    how: &Verifying,
    manifest: &Manifest,
    lengths: &mut BTreeMap<Id, Lengths>,
    seen: &mut BTreeMap<(Id, Name), bool>,
    done: &mut Verified,
    watch: &W,
) -> Result<()> {
    let mut stored_bytes = 0;
    for of in &manifest.pages {
        done.objects += u64::from(!seen.contains_key(&(of.object().owner, of.object().name)));
        let page = match target.page(manifest, of).await {
            Ok(page) => page,
            Err(e) if e.kind == ErrorKind::Corrupt => {
                done.wrong(manifest.id, &e);
                continue;
            }
            Err(e) => return Err(e),
        };
        if seen.insert((of.object().owner, of.object().name), true).is_none() {
            done.read += 1;
            done.read_bytes += u64::from(of.stored.get());
        }
        let mut look = Vec::new();
        for entry in page.blocks.values() {
            stored_bytes += u64::from(entry.stored);
            match seen.get(&(entry.owner, entry.name)) {
                Some(true) => {}
                Some(false) => drop(done.broken.insert(manifest.id)),
                None => {
                    done.objects += 1;
                    let of_owner = match lengths.entry(entry.owner) {
                        Slot::Occupied(there) => there.into_mut(),
                        Slot::Vacant(free) => free.insert(lengths_of(target, entry.owner).await?),
                    };
                    let is = of_owner.get(&entry.name).copied();
                    let right = is == Some(entry.stored.into());
                    seen.insert((entry.owner, entry.name), right);
                    let drawn = how.of_million >= 1_000_000 || target.random_u64() % 1_000_000 < how.of_million.into();
                    // One that is not right is read for its error.
                    look.extend((drawn || !right).then_some(*entry));
                }
            }
        }
        read(target, manifest, &look, seen, done, watch).await?;
    }
    if stored_bytes != manifest.details.stored_bytes && !done.broken.contains(&manifest.id) {
        done.wrong(
            manifest.id,
            &Error::corrupt(format!("the sums of manifest {} are not those of its pages", manifest.id)),
        );
    }
    Ok(())
}

async fn read<W: Watch>(
    target: &Target,
    manifest: &Manifest,
    look: &[Entry],
    seen: &mut BTreeMap<(Id, Name), bool>,
    done: &mut Verified,
    watch: &W,
) -> Result<()> {
    let contents = stream::iter(look).map(async |entry| {
        watch.pace(entry.stored.into()).await;
        match target.content(entry).await {
            Ok(_) => Ok::<_, Error>((entry, None)),
            Err(e) if e.kind == ErrorKind::Corrupt => Ok((entry, Some(e))),
            Err(e) => Err(e),
        }
    });
    let mut contents = contents.buffered(REQUESTS_MAX);
    while let Some((entry, wrong)) = contents.try_next().await? {
        done.read += 1;
        done.read_bytes += u64::from(entry.stored);
        watch.moved(entry.stored.into());
        if let Some(e) = &wrong {
            done.wrong(manifest.id, e);
        }
        seen.insert((entry.owner, entry.name), wrong.is_none());
    }
    Ok(())
}

async fn lengths_of(target: &Target, owner: Id) -> Result<Lengths> {
    let mut lengths = Lengths::new();
    let folder = format!("{BLOCKS}/{owner}");
    let listed = target.store().list(&folder, |listed| {
        lengths.extend(of_object_key(&listed.key).map(|(_, name)| (name, listed.bytes)));
        Ok(())
    });
    listed.await?;
    Ok(lengths)
}
