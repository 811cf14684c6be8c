//! A backup is written to a disk.
//!
//! Invariant: only bytes whose hash is right are written, and what stops it is an error: a disk that was not restored whole
//! is never reported as one that was.

use crate::format::{Entry, Manifest};
use crate::limits::{BLOCK_BYTES, PAGE_COVERS, REQUESTS_MAX};
use crate::seam::{Sink, Watch};
use crate::target::Target;
use bytes::Bytes;
use freebs_types::{Error, ErrorKind, Result};
use futures_util::{StreamExt, TryStreamExt, stream};

/// The result of a restore.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restored {
    /// Bytes that were written; all others are zeroes.
    pub written_bytes: u64,
    /// Bytes that were fetched.
    pub fetched_bytes: u64,
}

/// Writes all of a backup; it is durable when this has returned.
///
/// # Errors
/// `Invalid` if the disk is smaller; `Corrupt` if an object is missing or damaged; those of store and sink.
pub async fn restore<S: Sink, W: Watch>(target: &Target, manifest: &Manifest, sink: &S, watch: &W) -> Result<Restored> {
    let size = manifest.details.size;
    if sink.size() < size {
        return Err(Error::invalid(format!(
            "the backup is of a disk of {size} bytes and does not fit one of {}; give a larger --size",
            sink.size()
        )));
    }
    if !sink.is_blank() {
        let mut at = 0;
        while at < sink.size() {
            let to = (at + PAGE_COVERS).min(sink.size());
            sink.zero(at..to).await?;
            at = to;
        }
    }
    let mut done = Restored::default();
    for of in &manifest.pages {
        let page = target.page(manifest, of).await.map_err(|e| with_way_out(e, manifest))?;
        done.fetched_bytes += u64::from(of.stored.get());
        let from = u64::from(page.page) * PAGE_COVERS;
        let mut blocks = stream::iter(&page.blocks)
            .map(async |(block, entry)| {
                let at = from + u64::from(*block) * BLOCK_BYTES as u64;
                let written = self::block(target, sink, watch, entry, at, size).await;
                written.map(|w| (at, entry.stored, w)).map_err(|e| with_way_out(e, manifest))
            })
            .buffered(REQUESTS_MAX);
        while let Some((at, stored, written)) = blocks.try_next().await? {
            done.fetched_bytes += u64::from(stored);
            done.written_bytes += written;
            watch.moved(written);
            watch.reached(at);
        }
    }
    sink.flush().await?;
    watch.reached(size);
    Ok(done)
}

/// Writes a block without its zeroes; the bytes that were written.
async fn block<S: Sink, W: Watch>(
    target: &Target,
    sink: &S,
    watch: &W,
    entry: &Entry,
    at: u64,
    size: u64,
) -> Result<u64> {
    let len = (size - at).min(BLOCK_BYTES as u64);
    watch.pace(len).await;
    let plain = Bytes::from(target.content(entry).await?);
    if plain.len() as u64 != len {
        return Err(target.not_the_block(entry));
    }
    let mut written = 0;
    for run in freebs_image::runs(&plain) {
        sink.write(at + run.from as u64, plain.slice(run.from..run.to)).await?;
        written += (run.to - run.from) as u64;
    }
    Ok(written)
}

fn with_way_out(e: Error, manifest: &Manifest) -> Error {
    if e.kind != ErrorKind::Corrupt {
        return e;
    }
    Error::corrupt(format!(
        "{e}. Backup {} can't be restored without it. `freebs backup verify` says which backups are whole: restore one of \
         them; put the object back if a copy of the target has it; and make a new backup with --full, which stores all \
         blocks again",
        manifest.id
    ))
}
