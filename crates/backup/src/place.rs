//! A place that a target is in, as people write it: a directory, or a bucket of S3.

use crate::directory::{Directory, sync_entry};
use crate::store::{Store, explain};
use freebs_types::{Error, Result};
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A directory.
    Directory(PathBuf),
    /// A prefix of a bucket.
    S3 {
        /// The bucket.
        bucket: String,
        /// The prefix, without a slash at either end; may be empty.
        prefix: String,
    },
}

impl Place {
    /// # Errors
    /// If it is neither `s3://bucket[/prefix]` nor `file:///path` nor a path.
    pub fn parse(text: &str) -> Result<Self> {
        let usage = "a target is a directory (/srv/backups, file:///srv/backups) or s3://bucket/prefix";
        if let Some(rest) = text.strip_prefix("s3://") {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            let prefix = prefix.trim_matches('/').to_owned();
            if bucket.is_empty() || prefix.split('/').any(|part| part == "." || part == "..") || prefix.contains("//") {
                return Err(Error::invalid(format!("'{text}' names no bucket and prefix; {usage}")));
            }
            return Ok(Self::S3 { bucket: bucket.to_owned(), prefix });
        }
        let path = match text.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => path,
            Some(_) => return Err(Error::invalid(format!("'{text}' is no place for backups; {usage}"))),
            None => text,
        };
        if path.is_empty() {
            return Err(Error::invalid(format!("no target was named; {usage}")));
        }
        Ok(Self::Directory(path.into()))
    }

    /// The store there. With `make` a directory is made if it lacks, but not those above it: what is not mounted is not
    /// written into.
    ///
    /// # Errors
    /// If the directory can't be used, or the environment does not say how to reach the bucket.
    pub fn open(&self, make: bool) -> Result<Store> {
        match self {
            Self::Directory(path) => directory(path, make),
            Self::S3 { bucket, prefix } => s3(bucket, prefix),
        }
    }
}

fn directory(path: &std::path::Path, make: bool) -> Result<Store> {
    let shown = path.display();
    let is_new = make && !path.exists();
    if is_new {
        std::fs::create_dir(path).map_err(|e| {
            Error::os(format!("can't make the directory {shown}: {e}; is what it lies on mounted, and writable?"))
        })?;
    }
    if !path.is_dir() {
        let why = if path.exists() { "is no directory" } else { "is not there" };
        return Err(Error::not_found(format!("{shown} {why}; name a directory with backups, or s3://bucket/prefix")));
    }
    let unread = |e: std::io::Error| Error::os(format!("can't use the directory {shown}: {e}"));
    if make {
        // Whoever made it may have been killed before it was durable.
        sync_entry(path, is_new).map_err(unread)?;
    }
    let directory = Directory::open(path).map_err(unread)?;
    let store = LocalFileSystem::new_with_prefix(path).map_err(|e| explain(&shown.to_string(), &e))?;
    // Without it a power cut may take what was reported as written.
    let store = store.with_fsync(true).with_automatic_cleanup(true);
    Ok(Store::new(Arc::new(store), shown.to_string()).in_directory(directory))
}

fn s3(bucket: &str, prefix: &str) -> Result<Store> {
    // The first call decides for the whole process; another provider of the same process is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let called = format!("s3://{bucket}/{prefix}");
    let is_plain = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .is_some_and(|url| url.starts_with("http://"));
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
    if is_plain {
        builder = builder.with_allow_http(true);
    }
    let store = builder.build().map_err(|e| explain(&called, &e))?;
    Ok(match prefix.is_empty() {
        true => Store::new(Arc::new(store), called),
        false => Store::new(Arc::new(PrefixStore::new(store, prefix)), called),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_directory_or_a_bucket() {
        let s3 = |bucket: &str, prefix: &str| Place::S3 { bucket: bucket.into(), prefix: prefix.into() };
        assert_eq!(Place::parse("s3://b").unwrap(), s3("b", ""));
        assert_eq!(Place::parse("s3://b/p/q/").unwrap(), s3("b", "p/q"));
        assert_eq!(Place::parse("/srv/x").unwrap(), Place::Directory("/srv/x".into()));
        assert_eq!(Place::parse("file:///srv/x").unwrap(), Place::Directory("/srv/x".into()));
        assert_eq!(Place::parse("x").unwrap(), Place::Directory("x".into()));
        for text in ["", "s3://", "s3:///p", "s3://b/../c", "gs://b/p", "file://x", "http://x/y"] {
            let e = Place::parse(text).expect_err(text);
            assert!(e.text.contains("s3://bucket/prefix"), "{e}");
        }
    }
}
