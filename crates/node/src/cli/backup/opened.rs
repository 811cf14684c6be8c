//! A target that a command names, and a backup in it.

use super::args::{OneArgs, TargetArgs};
use freebs_backup::{Id, Keys, Manifest, Target, keys};
use freebs_io::linux::OsRandom;
use freebs_types::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Opens a target. With `make` it is made if the place is empty.
pub async fn open(args: &TargetArgs, make: bool) -> Result<Target> {
    let keys = args.key.as_deref().map(read_key).transpose()?;
    let store = args.target.open(make)?;
    Target::open(store, keys, Box::new(OsRandom), make).await
}

fn read_key(path: &Path) -> Result<Keys> {
    let shown = path.display();
    let unread = |e: std::io::Error| Error::os(format!("can't read the key file {shown}: {e}"));
    let mut text = String::new();
    let file = File::open(path).map_err(unread)?;
    file.take(keys::KEY_FILE_BYTES_MAX as u64).read_to_string(&mut text).map_err(unread)?;
    Keys::of_file(&text).map_err(|e| e.at(shown))
}

/// A target and the backup of it that the digits name.
pub async fn one(args: &OneArgs) -> Result<(Target, Id)> {
    let target = open(&args.target, false).await?;
    let id = freebs_backup::resolve(&target, &args.backup).await?;
    Ok((target, id))
}

/// The manifest of the backup that the digits name.
pub async fn manifest(target: &Target, digits: &str) -> Result<Manifest> {
    freebs_backup::open(target, freebs_backup::resolve(target, digits).await?).await
}

/// Milliseconds since 1970.
pub fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Such a time for people and programs, to the second.
pub fn date(millis: u64) -> String {
    // The time of a manifest may lie beyond all calendars.
    let latest = 253_402_300_799_000;
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(millis.min(latest))).to_string()
}
