//! Keys in the data directory: the node's, and where the cluster was begun, its authority's.

use crate::files;
use freebs_format::keys::{KeyOf, SIGNING_KEY_BYTES, SigningKeyFile};
use freebs_identity::SigningKey;
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, Hash32, Result};
use std::path::Path;

fn name(of: KeyOf) -> &'static str {
    match of {
        KeyOf::Node => "node-key",
        KeyOf::Authority => "authority-key",
    }
}

/// The key in this data directory, if there is one.
pub fn load(data: &Path, of: KeyOf, cluster: ClusterId) -> Result<Option<SigningKey>> {
    let path = data.join(name(of));
    let Some(bytes) = files::read_limited(&path, SIGNING_KEY_BYTES)? else { return Ok(None) };
    let damaged = |e: Error| Error { kind: e.kind, text: format!("{}: {}", path.display(), e.text).into() };
    let (seed, public) = SigningKeyFile::decode(&bytes, of, cluster).map_err(damaged)?;
    let key = SigningKey::new(&seed)?;
    if key.public() != public {
        return Err(damaged(Error::corrupt("its halves do not belong together; put it back from a copy")));
    }
    Ok(Some(key))
}

/// The key in this data directory, made now if there is none.
pub fn load_or_make(data: &Path, of: KeyOf, cluster: ClusterId) -> Result<SigningKey> {
    if let Some(key) = load(data, of, cluster)? {
        return Ok(key);
    }
    let mut seed = Hash32::default();
    OsRandom.fill(&mut seed.0);
    let key = SigningKey::new(&seed)?;
    let bytes = SigningKeyFile::encode(of, cluster, &seed, &key.public());
    files::write_durably(&data.join(name(of)), &bytes)?;
    Ok(key)
}

/// The key of a node that joins this cluster. One of another cluster was left by an attempt that joined nothing.
pub fn joining_key(data: &Path, cluster: ClusterId) -> Result<SigningKey> {
    let path = data.join(name(KeyOf::Node));
    let there = files::read_limited(&path, SIGNING_KEY_BYTES)?;
    if there.is_some_and(|bytes| SigningKeyFile::cluster_of(&bytes, KeyOf::Node).is_some_and(|of| of != cluster)) {
        forget(data, &[KeyOf::Node])?;
    }
    load_or_make(data, KeyOf::Node, cluster)
}

/// Removes keys of a directory that no cluster knows.
pub fn forget(data: &Path, all: &[KeyOf]) -> Result<()> {
    for path in all.iter().map(|of| data.join(name(*of))) {
        for path in [files::beside(&path), path] {
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(files::os_error("remove", &path, &e)),
            }
        }
    }
    files::sync_directory(data)
}

/// Refuses a directory with keys, for a start that knows of no cluster: it would begin another one there.
pub fn refuse_keys(data: &Path) -> Result<()> {
    let found = [KeyOf::Node, KeyOf::Authority].into_iter().find(|of| data.join(name(*of)).symlink_metadata().is_ok());
    match found {
        Some(of) => Err(Error::invalid(format!(
            "{} has the file {} and no cluster.json: `freebs cluster init` or `freebs node join` did not come to its end \
             there. Run that again, put cluster.json back if there was one, or choose another directory with --data",
            data.display(),
            name(of)
        ))),
        None => Ok(()),
    }
}

/// The node's key. One that is lost can't be made anew: the cluster knows the node by it.
pub fn node_key(data: &Path, cluster: ClusterId) -> Result<SigningKey> {
    load(data, KeyOf::Node, cluster)?.ok_or_else(|| {
        Error::not_found(format!(
            "{} is gone, by which the cluster knows this node; put it back from a copy. Without one this machine can join \
             only as another node, with an empty data directory: what lies in {} is of no use to that one{}",
            data.join(name(KeyOf::Node)).display(),
            data.display(),
            match data.join(name(KeyOf::Authority)).exists() {
                true => ", but for authority-key, which is the cluster's only one: keep it",
                false => "",
            }
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_made_once_and_belong_to_their_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let (data, cluster) = (dir.path(), ClusterId([7; 16]));
        assert!(node_key(data, cluster).unwrap_err().text.contains("put it back"));
        let key = load_or_make(data, KeyOf::Node, cluster).unwrap();
        assert_eq!(load_or_make(data, KeyOf::Node, cluster).unwrap().public(), key.public());
        assert_eq!(node_key(data, cluster).unwrap().public(), key.public());
        assert!(load(data, KeyOf::Authority, cluster).unwrap().is_none());
        let e = load(data, KeyOf::Node, ClusterId([8; 16])).unwrap_err();
        assert!(e.text.contains("node-key") && e.text.contains("another cluster"), "{e}");
        // Another cluster's is left over; what is damaged may be this one's.
        let other = joining_key(data, ClusterId([8; 16])).unwrap();
        assert_ne!(other.public(), key.public());
        assert_eq!(joining_key(data, ClusterId([8; 16])).unwrap().public(), other.public());
        std::fs::write(data.join("node-key"), b"rotten").unwrap();
        assert!(joining_key(data, ClusterId([8; 16])).is_err());
        assert_eq!(std::fs::read(data.join("node-key")).unwrap(), b"rotten");
        let swapped = SigningKeyFile::encode(KeyOf::Node, cluster, &Hash32([1; 32]), &key.public());
        std::fs::write(data.join("node-key"), swapped).unwrap();
        assert!(node_key(data, cluster).unwrap_err().text.contains("do not belong together"));
        assert!(refuse_keys(data).unwrap_err().text.contains("node-key"));
        std::fs::write(data.join("node-key.tmp"), b"half").unwrap();
        forget(data, &[KeyOf::Node]).unwrap();
        refuse_keys(data).unwrap();
        assert_eq!(std::fs::read_dir(data).unwrap().count(), 0, "nor the half of one");
    }
}
