//! The backups of a target: listed, found, deleted.

use crate::format::{Details, Id, Manifest, note};
use crate::limits::REQUESTS_MAX;
use crate::target::{BACKUPS, DELETED, Found, Target, key};
use freebs_types::{Error, Result};
use futures_util::{StreamExt, TryStreamExt, stream};

/// A backup as a list has it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its identity.
    pub id: Id,
    /// The volume that it is of, or why that can't be read.
    pub details: Result<Details>,
}

/// The backups in a target.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// The backups that are whole and not deleted, the oldest first; behind them those that can't be read.
    pub backups: Vec<Listed>,
}

/// The backups of a target that are not deleted, with what is in the place of their manifests.
pub(crate) async fn all(target: &Target) -> Result<Vec<(Id, Found)>> {
    // Notes of deletion first: prune takes a note away when the manifest is gone.
    let deleted = target.ids(DELETED).await?;
    let there: Vec<Id> = target.ids(BACKUPS).await?.into_keys().filter(|id| !deleted.contains_key(id)).collect();
    read(target, there).await
}

/// The objects in the places of these manifests.
pub(crate) async fn read(target: &Target, ids: Vec<Id>) -> Result<Vec<(Id, Found)>> {
    let found = stream::iter(ids).map(async |id| Ok::<_, Error>((id, target.find(id).await?)));
    let found: Vec<(Id, Option<Found>)> = found.buffered(REQUESTS_MAX).try_collect().await?;
    Ok(found.into_iter().filter_map(|(id, found)| Some((id, found?))).collect())
}

/// The backups of a target.
///
/// # Errors
/// If the store can't be read.
pub async fn list(target: &Target) -> Result<Catalog> {
    let mut backups: Vec<Listed> = Vec::new();
    for (id, found) in all(target).await? {
        match found {
            Found::Ended => {}
            Found::Manifest(m) => backups.push(Listed { id, details: Ok(m.details) }),
            Found::Damaged(e) => backups.push(Listed { id, details: Err(e) }),
        }
    }
    let order = |b: &Listed| (b.details.is_err(), b.details.as_ref().map_or(0, |d| d.time_ms), b.id);
    backups.sort_by_key(order);
    Ok(Catalog { backups })
}

/// The identity of the one backup that begins with these digits.
///
/// # Errors
/// `NotFound` if there is none, `Invalid` if there are several.
pub async fn resolve(target: &Target, digits: &str) -> Result<Id> {
    let deleted = target.ids(DELETED).await?;
    let all = target.ids(BACKUPS).await?;
    let mut fits = Vec::new();
    for id in all.into_keys().filter(|id| id.to_string().starts_with(digits) && !deleted.contains_key(id)) {
        if !matches!(target.find(id).await?, None | Some(Found::Ended)) {
            fits.push(id);
        }
    }
    match fits.as_slice() {
        [id] => Ok(*id),
        [] => Err(Error::not_found(format!(
            "there is no backup {digits} in {}; `freebs backup list` shows those that are there",
            target.store().called()
        ))),
        _ => Err(Error::invalid(format!("{} backups begin with {digits}; give more digits", fits.len()))),
    }
}

/// The manifest of a backup that is not deleted.
///
/// # Errors
/// `NotFound` if there is none, `Corrupt` if it is damaged.
pub async fn open(target: &Target, backup: Id) -> Result<Manifest> {
    let gone = || Error::not_found(format!("there is no backup {backup} in {}", target.store().called()));
    if target.store().has(&key(DELETED, backup)).await? {
        return Err(gone());
    }
    match target.find(backup).await? {
        None | Some(Found::Ended) => Err(gone()),
        Some(Found::Manifest(manifest)) => Ok(*manifest),
        Some(Found::Damaged(e)) => Err(e),
    }
}

/// Deletes a backup: lists do not show it any more, and prune takes what nothing else needs.
///
/// # Errors
/// `Busy` if it is locked at `now_ms`; `Corrupt` if its manifest is damaged, so that its lock is not known, unless `force`.
pub async fn delete(target: &Target, backup: Id, now_ms: u64, force: bool) -> Result<()> {
    match open(target, backup).await {
        Ok(manifest) => check_lock(&manifest, now_ms)?,
        Err(e) if e.kind == freebs_types::ErrorKind::Corrupt && force => {}
        Err(e) if e.kind == freebs_types::ErrorKind::Corrupt => {
            let text = format!("{e}; whether it is locked can't be known: --force deletes it all the same");
            return Err(Error::corrupt(text));
        }
        Err(e) => return Err(e),
    }
    target.put_note(DELETED, backup, note::DELETED, now_ms, [0; 32]).await
}

/// Refuses a backup that is locked.
fn check_lock(manifest: &Manifest, now_ms: u64) -> Result<()> {
    if manifest.details.locked_until_ms > now_ms {
        return Err(Error::busy(format!("backup {} is locked, and can't be deleted before its date", manifest.id)));
    }
    Ok(())
}
