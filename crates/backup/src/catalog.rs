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

/// The backups of a target that are not deleted. Notes in the places of manifests cost no request.
pub(crate) async fn ids(target: &Target) -> Result<Vec<Id>> {
    // Notes of deletion first: prune takes a note away when the manifest is gone.
    let deleted = target.ids(DELETED).await?;
    let there = target.ids(BACKUPS).await?.into_iter();
    Ok(there.filter(|(id, seen)| !seen.is_note() && !deleted.contains_key(id)).map(|(id, _)| id).collect())
}

/// The objects in the places of these manifests, all of which were listed, as `of` makes them.
pub(crate) async fn read<T>(target: &Target, ids: Vec<Id>, of: impl Fn(Found) -> T) -> Result<Vec<(Id, T)>> {
    let found = stream::iter(ids).map(async |id| {
        let found = target.find(id).await?.ok_or_else(|| vanished(target, id))?;
        Ok::<_, Error>((id, of(found)))
    });
    found.buffered(REQUESTS_MAX).try_collect().await
}

fn vanished(target: &Target, id: Id) -> Error {
    Error::retry(format!(
        "{} lists backup {id}, and then it is not there: the target was changed by hand, or taken away for a moment; begin \
         again",
        target.store().called()
    ))
}

/// The details of these backups, or why they can't be read; of those that have ended meanwhile nothing.
pub(crate) async fn details(target: &Target, ids: Vec<Id>) -> Result<Vec<Listed>> {
    let of = |found| match found {
        Found::Ended => None,
        Found::Manifest(m) => Some(Ok(m.details)),
        Found::Damaged(e) => Some(Err(e)),
    };
    let read = read(target, ids, of).await?;
    Ok(read.into_iter().filter_map(|(id, details)| Some(Listed { id, details: details? })).collect())
}

/// The backups of a target.
///
/// # Errors
/// If the store can't be read.
pub async fn list(target: &Target) -> Result<Catalog> {
    let mut backups = details(target, ids(target).await?).await?;
    let order = |b: &Listed| (b.details.is_err(), b.details.as_ref().map_or(0, |d| d.time_ms), b.id);
    backups.sort_by_key(order);
    Ok(Catalog { backups })
}

/// The identity of the one backup that begins with these digits.
///
/// # Errors
/// `NotFound` if there is none, `Invalid` if there are several.
pub async fn resolve(target: &Target, digits: &str) -> Result<Id> {
    let mut fits = Vec::new();
    for id in ids(target).await?.into_iter().filter(|id| id.to_string().starts_with(digits)) {
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
    // If one is there, somebody else has deleted it just now.
    target.put_first_note(DELETED, backup, note::DELETED, now_ms, [0; 32]).await.map(drop)
}

/// Refuses a backup that is locked.
fn check_lock(manifest: &Manifest, now_ms: u64) -> Result<()> {
    if manifest.details.locked_until_ms > now_ms {
        return Err(Error::busy(format!("backup {} is locked, and can't be deleted before its date", manifest.id)));
    }
    Ok(())
}
