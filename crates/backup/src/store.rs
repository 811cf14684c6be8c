//! An object store, as this crate uses it.
//!
//! Invariants:
//! - No more is taken from the store than the caller's maximum, whatever it sends.
//! - [`Store::put_new`] says that the bytes are there if they are, also when the answer to an earlier attempt was lost and
//!   the repeated one met the object of the first; and that others are there only if they are.
//! - An object that is said to be missing in a directory is missing there, and not because it was unmounted.

use crate::directory::{Directory, Walk, blocking};
use crate::format::{Id, Name};
use crate::limits::CONFLICTS_MAX;
use bytes::Bytes;
use freebs_types::{Error, ErrorKind, Result};
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use std::sync::Arc;

/// An object as a listing has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The last part of its key.
    pub last: String,
    /// Its whole key.
    pub key: String,
    /// Its bytes.
    pub bytes: u64,
    /// When it was written: milliseconds since 1970, by the clock of the store.
    pub modified_ms: u64,
}

/// A part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The identity of a backup.
    Id,
    /// The first two digits of a name.
    Digits,
    /// The name of a content.
    Name,
}

impl Part {
    /// True if this is one.
    pub(crate) fn fits(self, text: &str) -> bool {
        match self {
            Self::Id => Id::parse(text).is_some(),
            Self::Digits => text.len() == 2 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')),
            Self::Name => Name::parse(text).is_some(),
        }
    }
}

/// An object store, and how it is called in errors.
#[derive(Clone)]
pub struct Store {
    inner: Arc<dyn ObjectStore>,
    called: String,
    /// The directory that it is, if it is one.
    directory: Option<Arc<Directory>>,
}

impl Store {
    /// A store that people call so.
    pub fn new(inner: Arc<dyn ObjectStore>, called: impl Into<String>) -> Self {
        Self { inner, called: called.into(), directory: None }
    }

    /// One that is this directory.
    pub(crate) fn in_directory(self, directory: Directory) -> Self {
        Self { directory: Some(Arc::new(directory)), ..self }
    }

    /// How people call it.
    #[must_use]
    pub fn called(&self) -> &str {
        &self.called
    }

    fn error(&self, doing: &str, key: &str, e: &object_store::Error) -> Error {
        explain(&format!("{} {doing} '{key}'", self.called), e)
    }

    /// Asks the directory, if it is one.
    async fn ask<T: Send + 'static>(
        &self,
        doing: &str,
        key: &str,
        work: impl FnOnce(&Arc<Directory>, &str) -> std::io::Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let Some(directory) = self.directory.clone() else { return Ok(None) };
        let asked = key.to_owned();
        blocking(move || work(&directory, &asked)).await.map(Some).map_err(|e| self.io_error(doing, key, e))
    }

    fn io_error(&self, doing: &str, key: &str, e: std::io::Error) -> Error {
        self.error(doing, key, &object_store::Error::Generic { store: "directory", source: e.into() })
    }

    async fn missing(&self, key: &str) -> Result<()> {
        self.ask("can't look at", key, |d, key| d.check_missing(key)).await.map(drop)
    }

    /// Refuses to write where the directory is another one than it was.
    async fn writable(&self, key: &str) -> Result<()> {
        self.ask("can't write", key, |d, _| d.check()).await.map(drop)
    }

    /// An object of at most `most` bytes; `None` if it is not there.
    pub async fn get(&self, key: &str, most: usize) -> Result<Option<Vec<u8>>> {
        let got = match self.inner.get(&Path::from(key)).await {
            Ok(got) => got,
            Err(object_store::Error::NotFound { .. }) => return self.missing(key).await.map(|()| None),
            Err(e) => return Err(self.error("can't read", key, &e)),
        };
        let large = || Error::corrupt(format!("{}: '{key}' is larger than any such object can be", self.called));
        let said = got.meta.size;
        if said > most as u64 {
            return Err(large());
        }
        let mut bytes = Vec::with_capacity(said as usize);
        let mut pieces = got.into_stream();
        while let Some(piece) = pieces.try_next().await.map_err(|e| self.error("can't read", key, &e))? {
            if bytes.len() + piece.len() > most {
                return Err(large());
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(bytes))
    }

    /// Writes an object, in place of one that is there. It is durable when this has returned.
    pub async fn put(&self, key: &str, bytes: impl Into<Bytes>) -> Result<()> {
        self.writable(key).await?;
        let put = self.inner.put(&Path::from(key), PutPayload::from_bytes(bytes.into())).await;
        put.map(|_| ()).map_err(|e| self.error("can't write", key, &e))
    }

    /// Writes an object that is not there; `false` if there is another one under its name.
    ///
    /// # Errors
    /// `Retry` if the store says again and again that there is one, and there is none: S3 says so of a request that meets
    /// another one for the same key, whether that one comes to anything or not.
    pub async fn put_new(&self, key: &str, bytes: impl Into<Bytes>) -> Result<bool> {
        let bytes = bytes.into();
        self.writable(key).await?;
        for _ in 0..CONFLICTS_MAX {
            let how = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match self.inner.put_opts(&Path::from(key), PutPayload::from_bytes(bytes.clone()), how).await {
                Ok(_) => return Ok(true),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {}
                Err(e) => return Err(self.error("can't write", key, &e)),
            }
            match self.get(key, bytes.len()).await {
                Ok(Some(there)) => return Ok(there == bytes),
                Ok(None) => {}
                // It is larger, so another one.
                Err(e) if e.kind == ErrorKind::Corrupt => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Err(Error::retry(format!(
            "{} can't write '{key}': it says that another request for it is under way, and nothing comes of that one; begin \
             again",
            self.called
        )))
    }

    /// True if there is an object of this name.
    pub async fn has(&self, key: &str) -> Result<bool> {
        self.head(key).await.map(|l| l.is_some())
    }

    /// An object without its bytes.
    pub async fn head(&self, key: &str) -> Result<Option<Listed>> {
        match self.inner.head(&Path::from(key)).await {
            Ok(meta) => Ok(Some(listed(&meta))),
            Err(object_store::Error::NotFound { .. }) => self.missing(key).await.map(|()| None),
            Err(e) => Err(self.error("can't look at", key, &e)),
        }
    }

    /// Calls `each` with the objects whose keys are `folder` and then these parts, in any order.
    pub(crate) async fn list(
        &self,
        folder: &str,
        parts: &'static [Part],
        mut each: impl FnMut(Listed) -> Result<()>,
    ) -> Result<()> {
        const DOING: &str = "can't list";
        if let Some(walk) = self.ask(DOING, folder, move |d, folder| d.walk(folder, parts)).await? {
            let mut walk: Walk = walk;
            loop {
                let work = move || walk.batch().map(|batch| (walk, batch));
                let (back, batch) = blocking(work).await.map_err(|e| self.io_error(DOING, folder, e))?;
                if batch.is_empty() {
                    return Ok(());
                }
                batch.into_iter().try_for_each(&mut each)?;
                walk = back;
            }
        }
        let prefix = Path::from(folder);
        let mut found = self.inner.list(Some(&prefix));
        while let Some(meta) = found.try_next().await.map_err(|e| self.error(DOING, folder, &e))? {
            let listed = listed(&meta);
            let rest = listed.key.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
            let fits = |rest: &str| {
                rest.split('/').count() == parts.len() && rest.split('/').zip(parts).all(|(text, part)| part.fits(text))
            };
            if rest.is_some_and(fits) {
                each(listed)?;
            }
        }
        Ok(())
    }

    /// Names of the folders in a folder that are such parts, in order.
    pub(crate) async fn folders(&self, folder: &str, part: Part) -> Result<Vec<String>> {
        if let Some(names) = self.ask("can't list", folder, move |d, folder| d.folders(folder, part)).await? {
            return Ok(names);
        }
        let prefix = Path::from(folder);
        let found = self.inner.list_with_delimiter(Some(&prefix)).await;
        let found = found.map_err(|e| self.error("can't list", folder, &e))?;
        let names = found.common_prefixes.iter().filter_map(|p| p.filename().map(str::to_owned));
        let mut names: Vec<String> = names.filter(|name| part.fits(name)).collect();
        names.sort();
        Ok(names)
    }

    /// The name of something that is at the top, if anything is but what a new file system has.
    pub async fn any(&self) -> Result<Option<String>> {
        if let Some(any) = self.ask("can't list", "", |d, _| d.any()).await? {
            return Ok(any);
        }
        let found = self.inner.list_with_delimiter(None).await.map_err(|e| self.error("can't list", "", &e))?;
        let objects = found.objects.iter().map(|o| &o.location);
        Ok(objects.chain(&found.common_prefixes).map(ToString::to_string).next())
    }

    /// Makes the entries of a folder durable, with `deep` those of its folders, too: a put of somebody who was killed may have
    /// ended between its rename and the sync of the directory. Those of this client are durable already.
    pub(crate) async fn sync(&self, folder: &str, deep: Option<Part>) -> Result<()> {
        self.ask("can't sync", folder, move |d, folder| d.sync(folder, deep)).await.map(drop)
    }

    /// Deletes an object, if it is there.
    pub async fn delete(&self, key: &str) -> Result<()> {
        match self.inner.delete(&Path::from(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.error("can't delete", key, &e)),
        }
    }
}

fn listed(meta: &object_store::ObjectMeta) -> Listed {
    Listed {
        last: meta.location.filename().unwrap_or_default().to_owned(),
        key: meta.location.to_string(),
        bytes: meta.size,
        modified_ms: u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0),
    }
}

/// An error in one line; of an answer of S3 the code and the sentence.
fn in_a_line(text: &str) -> String {
    let part = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(inner, _)| inner)
    };
    let said = match (part("Code"), part("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => text.to_owned(),
    };
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An error of a store with the way out, as far as it is known.
pub(crate) fn explain(what: &str, e: &object_store::Error) -> Error {
    use std::io::ErrorKind as Io;
    let mut io = None;
    let mut source: Option<&dyn std::error::Error> = Some(e);
    let mut deepest = e.to_string();
    while let Some(inner) = source {
        io = io.or_else(|| inner.downcast_ref::<std::io::Error>().map(std::io::Error::kind));
        deepest = inner.to_string();
        source = inner.source();
    }
    let deepest = in_a_line(&deepest);
    match (e, io) {
        (_, Some(Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge)) => Error::no_space(format!(
            "{what}: the target is full ({deepest}). Make room there, or delete backups and prune it; then begin again: \
             what is there already is not sent again"
        )),
        (_, Some(Io::ReadOnlyFilesystem)) => {
            Error::os(format!("{what}: the target is read-only ({deepest}); make it writable, or choose another one"))
        }
        (object_store::Error::PermissionDenied { .. }, _) | (_, Some(Io::PermissionDenied)) => Error::os(format!(
            "{what}: not permitted ({deepest}); check who may write there, or the credentials (AWS_ACCESS_KEY_ID, \
             AWS_SECRET_ACCESS_KEY)"
        )),
        (object_store::Error::Unauthenticated { .. }, _) => Error::os(format!(
            "{what}: the credentials are not accepted ({deepest}); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )),
        (object_store::Error::NotFound { .. }, _) => Error::not_found(format!(
            "{what}: it is not there ({deepest}); is the target still mounted, or the bucket there?"
        )),
        (object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. }, _) => {
            Error::invalid(format!(
                "{what}: the store can't do that ({deepest}); a backup needs puts of objects that are not there yet"
            ))
        }
        _ => Error::retry(format!("{what}: {deepest}; see that the target is there, and begin again")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_s3_is_told_in_one_line() {
        let xml =
            "404: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>There is\n none.</Message></Error>";
        assert_eq!(in_a_line(xml), "NoSuchBucket: There is none.");
        assert_eq!(in_a_line("<Code>Slow</Code>"), "Slow");
        assert_eq!(in_a_line("a\n b <Code>"), "a b <Code>");
    }
}
