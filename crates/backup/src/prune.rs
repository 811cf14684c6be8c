//! Objects that nothing needs any more are taken away.
//!
//! Invariants, whatever the clocks say and however long anybody stands still:
//! - An object is deleted only if its owner has ended (there is a manifest or a note in the place of its manifest), and no
//!   manifest that is left names it. Nobody can come to need such an object: a create names what it stored itself, and what
//!   manifests named that it read after it had written its note.
//! - A deleted backup's manifest is replaced only while no create is under way that could have read it.
//! - A prune that meets what another one does meanwhile ends without having deleted anything.
//! - A create that is taken for dead can't end well any more: a note is in the place of its manifest.
//!
//! Time decides only which creates are taken for dead, and which notes in the places of manifests are older than anybody
//! stands still, by the store's clock alone.

use crate::catalog;
use crate::format::{Entry, Id, Manifest, Name, note};
use crate::limits::{NOTES_KEPT_MS, REQUESTS_MAX};
use crate::store::Part;
use crate::target::{ALIVE, BACKUPS, BLOCKS, CREATES, DELETED, Found, MARKER, Seen, Target, key, of_object_key};
use freebs_types::{Error, ErrorKind, Result};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::IntoBytes;

/// A rule left out on purpose, to prove that tests notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Creates that are under way do not count.
    IgnoresCreates,
    /// A create that is taken for dead is not told.
    LeavesDeadCreates,
    /// Owners that have not ended are as good as any.
    OwnersNotAsked,
    /// Creates are looked at before notes of deletion.
    CreatesFirst,
}

/// How to prune.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pruning {
    /// A create of which nothing was heard for longer is taken for dead, milliseconds.
    pub grace_ms: u64,
    /// Say what would be taken away, and take nothing.
    pub is_dry: bool,
    /// `None` outside of tests.
    pub mutant: Option<Mutant>,
}

/// The result of a prune.
#[derive(Clone, Debug, Default)]
pub struct Pruned {
    /// Objects that were taken away, and their bytes.
    pub objects: u64,
    /// Bytes of the objects that were taken away.
    pub bytes: u64,
    /// Objects that are needed, or may be.
    pub kept: u64,
    /// Deleted backups whose manifests were taken away.
    pub backups: u64,
    /// Deleted backups that stay until no create is under way. If the manifest of one is damaged, all else stays, too.
    pub waiting: u64,
    /// Notes in the places of manifests that were taken away, because they were old.
    pub notes: u64,
    /// Creates that were taken for dead.
    pub given_up: Vec<Id>,
    /// Creates that are under way.
    pub under_way: Vec<Id>,
}

/// An object among those that are needed, in 8 bytes: two that have the same are both kept.
fn mark(owner: Id, name: Name) -> u64 {
    let first = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    first(&owner.0) ^ first(&name.0)
}

/// Takes away the objects that no backup names, and the manifests of deleted backups.
///
/// # Errors
/// Those of the store; `Corrupt` if a manifest or a page is damaged, so that it can't be known what is needed.
pub async fn prune(target: &Target, how: &Pruning) -> Result<Pruned> {
    let mut done = Pruned::default();
    // The order matters: notes of deletion, creates, manifests.
    if how.mutant == Some(Mutant::CreatesFirst) {
        done.under_way = creates(target, how, &mut done.given_up).await?;
    }
    let deleted: BTreeSet<Id> = target.ids(DELETED).await?.into_keys().collect();
    if how.mutant != Some(Mutant::CreatesFirst) {
        done.under_way = creates(target, how, &mut done.given_up).await?;
    }
    let there = manifests_of(target).await?;
    let mut manifests = Vec::new();
    let mut going = Vec::new();
    let mut ended: BTreeSet<Id> = there.notes.keys().copied().collect();
    let may_go = done.under_way.is_empty() || how.mutant == Some(Mutant::IgnoresCreates);
    // True if it can't be known what a create that is under way may have read.
    let mut is_unknown = false;
    going.extend(there.notes.keys().filter(|id| deleted.contains(*id)).map(|id| (*id, false)));
    for (id, found) in there.manifests {
        ended.insert(id);
        match found {
            Found::Ended => return Err(another()),
            _ if deleted.contains(&id) && may_go => going.push((id, true)),
            Found::Manifest(m) => {
                done.waiting += u64::from(deleted.contains(&id));
                manifests.push(*m);
            }
            Found::Damaged(_) if deleted.contains(&id) => {
                done.waiting += 1;
                is_unknown = true;
            }
            Found::Damaged(e) => return Err(unknown(id, &e)),
        }
    }
    let needed = needed(target, &manifests).await?;
    let now_ms = if how.is_dry || there.notes.is_empty() { 0 } else { store_time(target).await? };
    target.check_same().await?;
    // A manifest goes before what it names does.
    for (id, has_manifest) in going {
        done.backups += u64::from(has_manifest);
        if !how.is_dry {
            if has_manifest {
                target.put_note(BACKUPS, id, note::GONE, 0, [0; 32]).await?;
            }
            target.store().delete(&key(DELETED, id)).await?;
        }
    }
    let sweep = Sweep { target, how, notes: &there.notes, ended: &ended, needed: &needed, all_stays: is_unknown };
    let owners = sweep.run(&mut done).await?;
    let is_old = |seen: &Seen| now_ms.saturating_sub(seen.modified_ms) > NOTES_KEPT_MS;
    for (id, seen) in &there.notes {
        if is_old(seen) && !owners.contains(id) {
            target.store().delete(&key(BACKUPS, *id)).await?;
            done.notes += 1;
        }
    }
    Ok(done)
}

/// The objects in the places of manifests.
struct There {
    /// Those that were not notes when they were listed.
    manifests: Vec<(Id, Found)>,
    notes: BTreeMap<Id, Seen>,
}

/// The objects in the places of manifests. They are listed twice. A create may have ended, and another prune may have taken
/// away the deleted backup that it had read, between two looks of one listing; then the first one shows a manifest where the
/// second one shows none any more, or the second one shows the new backup.
async fn manifests_of(target: &Target) -> Result<There> {
    let before = target.ids(BACKUPS).await?;
    let now = target.ids(BACKUPS).await?;
    let is_another = |(id, before): (&Id, &Seen)| match now.get(id) {
        Some(now) => now.is_note() && !before.is_note(),
        // Another prune may have taken away an old note.
        None => !before.is_note(),
    };
    if before.iter().any(is_another) {
        return Err(another());
    }
    let (notes, manifests): (BTreeMap<Id, Seen>, BTreeMap<Id, Seen>) =
        now.into_iter().partition(|(_, seen)| seen.is_note());
    let manifests = catalog::read(target, manifests.into_keys().collect(), |found| found).await?;
    Ok(There { manifests, notes })
}

fn another() -> Error {
    Error::retry("another prune of this target is under way; no object was taken away; try again when it has ended")
}

fn unknown(id: Id, e: &Error) -> Error {
    Error::corrupt(format!(
        "{e}; so it can't be known what backup {id} needs, and no object was taken away. `freebs backup delete` it (with \
         --force if its manifest is damaged), then prune again"
    ))
}

/// The creates that are under way. Those that are dead are given up, those that have ended forgotten.
async fn creates(target: &Target, how: &Pruning, given_up: &mut Vec<Id>) -> Result<Vec<Id>> {
    if how.mutant == Some(Mutant::IgnoresCreates) {
        return Ok(Vec::new());
    }
    let listed = target.ids(CREATES).await?;
    if !how.is_dry {
        for id in target.ids(ALIVE).await?.into_keys().filter(|id| !listed.contains_key(id)) {
            // Somebody went on with a create that another process has ended meanwhile; or it was begun behind the listing.
            if !target.store().has(&key(CREATES, id)).await? {
                target.store().delete(&key(ALIVE, id)).await?;
            }
        }
    }
    if listed.is_empty() {
        if !how.is_dry {
            // A prune that was killed may have left it.
            target.store().delete(&clock_key()).await?;
        }
        return Ok(Vec::new());
    }
    let now_ms = store_time(target).await?;
    let mut under_way = Vec::new();
    for (id, begun) in listed {
        let has_ended = target.store().has(&key(BACKUPS, id)).await?;
        if !has_ended {
            // Not of a listing: that may leave out what is written again.
            let alive = target.store().head(&key(ALIVE, id)).await?;
            let heard_ms = alive.map_or(0, |l| l.modified_ms).max(begun.modified_ms);
            if now_ms.saturating_sub(heard_ms) <= how.grace_ms {
                under_way.push(id);
                continue;
            }
            if !give_up(target, how, id).await? {
                // It came to its end just now.
                continue;
            }
            given_up.push(id);
        }
        if !how.is_dry {
            target.forget_create(id).await?;
        }
    }
    Ok(under_way)
}

/// Sees to it that no manifest of a create can come any more; `false` if there is one.
async fn give_up(target: &Target, how: &Pruning, id: Id) -> Result<bool> {
    if how.is_dry || how.mutant == Some(Mutant::LeavesDeadCreates) {
        return Ok(true);
    }
    let note = crate::format::Note::new(target.id(), id, note::GIVEN_UP, 0, [0; 32]);
    target.store().put_new(&key(BACKUPS, id), note.as_bytes().to_vec()).await
}

fn clock_key() -> String {
    format!("{MARKER}-clock")
}

/// Now, by the clock of the store: that of an object that was just written.
async fn store_time(target: &Target) -> Result<u64> {
    let clock = clock_key();
    target.store().put(&clock, Vec::new()).await?;
    let now = target.store().head(&clock).await?;
    target.store().delete(&clock).await?;
    now.map(|l| l.modified_ms).ok_or_else(another)
}

/// The objects that manifests name, sorted.
async fn needed(target: &Target, manifests: &[Manifest]) -> Result<Vec<u64>> {
    let mut needed = Vec::new();
    let mut read = BTreeSet::new();
    for manifest in manifests {
        let new: Vec<_> = manifest.pages.iter().filter(|p| read.insert((p.owner, p.name))).copied().collect();
        let pages = stream::iter(new).map(async |of| {
            let page = target.page(manifest, &of).await;
            match page {
                Ok(page) => Ok((of.object(), page)),
                Err(e) if e.kind == ErrorKind::Corrupt => Err(match target.find(manifest.id).await? {
                    Some(Found::Manifest(_)) => unknown(manifest.id, &e),
                    _ => another(),
                }),
                Err(e) => Err(e),
            }
        });
        let mut pages = pages.buffered(REQUESTS_MAX);
        while let Some((object, page)) = pages.try_next().await? {
            let entries = page.blocks.values().copied().chain([object]);
            needed.extend(entries.map(|Entry { owner, name, .. }| mark(owner, name)));
        }
        needed.sort_unstable();
        needed.dedup();
    }
    Ok(needed)
}

/// Objects that are not needed are taken away.
struct Sweep<'a> {
    target: &'a Target,
    how: &'a Pruning,
    notes: &'a BTreeMap<Id, Seen>,
    ended: &'a BTreeSet<Id>,
    needed: &'a [u64],
    /// Nothing goes, because it can't be known what is needed.
    all_stays: bool,
}

impl Sweep<'_> {
    /// The owners that there are.
    async fn run(&self, done: &mut Pruned) -> Result<BTreeSet<Id>> {
        let owners = self.target.store().folders(BLOCKS, Part::Id).await?;
        let owners: BTreeSet<Id> = owners.iter().filter_map(|owner| Id::parse(owner)).collect();
        // The length of a note is enough for a list; not for taking objects away.
        let noted = owners.iter().filter(|id| self.notes.contains_key(*id)).copied().collect();
        for (id, found) in catalog::read(self.target, noted, |found| found).await? {
            match found {
                Found::Ended => {}
                Found::Damaged(e) => return Err(unknown(id, &e)),
                Found::Manifest(_) => return Err(another()),
            }
        }
        for owner in &owners {
            self.owner(*owner, done).await?;
        }
        Ok(owners)
    }

    async fn owner(&self, owner: Id, done: &mut Pruned) -> Result<()> {
        let (target, how) = (self.target, self.how);
        let is_known = self.ended.contains(&owner) || how.mutant == Some(Mutant::OwnersNotAsked);
        let may_go = !self.all_stays && (is_known || has_vanished(target, how, owner).await?);
        let mut garbage = Vec::new();
        let folder = format!("{BLOCKS}/{owner}");
        let listed = target.store().list(&folder, &[Part::Digits, Part::Name], |listed| {
            let Some((owner, name)) = of_object_key(&listed.key) else { return Ok(()) };
            if may_go && self.needed.binary_search(&mark(owner, name)).is_err() {
                garbage.push(listed);
            } else {
                done.kept += 1;
            }
            Ok(())
        });
        listed.await?;
        done.objects += garbage.len() as u64;
        done.bytes += garbage.iter().map(|l| l.bytes).sum::<u64>();
        if !how.is_dry && !garbage.is_empty() {
            target.check_same().await?;
            let deletes = stream::iter(garbage).map(async |l| target.store().delete(&l.key).await);
            deletes.buffer_unordered(REQUESTS_MAX).try_collect::<()>().await?;
        }
        Ok(())
    }
}

/// True if an owner without a manifest has no note of its create either: somebody took it away. It is given up.
async fn has_vanished(target: &Target, how: &Pruning, owner: Id) -> Result<bool> {
    if target.store().has(&key(CREATES, owner)).await? {
        return Ok(false);
    }
    // It may have ended since the manifests were read.
    if target.store().has(&key(BACKUPS, owner)).await? {
        return Ok(false);
    }
    give_up(target, how, owner).await
}
