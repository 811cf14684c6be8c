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
    let key = SigningKey::new(seed)?;
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
    let key = SigningKey::new(seed)?;
    let bytes = SigningKeyFile::encode(of, cluster, &key.seed(), &key.public());
    files::write_durably(&data.join(name(of)), &bytes)?;
    Ok(key)
}

/// Removes keys of a directory that no cluster knows.
pub fn forget(data: &Path) -> Result<()> {
    for of in [KeyOf::Node, KeyOf::Authority] {
        let path = data.join(name(of));
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(files::os_error("remove", &path, &e)),
        }
    }
    Ok(())
}

/// The node's key. One that is lost can't be made anew: the cluster knows the node by it.
pub fn node_key(data: &Path, cluster: ClusterId) -> Result<SigningKey> {
    load(data, KeyOf::Node, cluster)?.ok_or_else(|| {
        Error::not_found(format!(
            "{} is gone, by which the cluster knows this node; put it back from a copy, or join again with an empty data \
             directory",
            data.join(name(KeyOf::Node)).display()
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
        assert!(node_key(data, cluster).unwrap_err().text.contains("join again"));
        let key = load_or_make(data, KeyOf::Node, cluster).unwrap();
        assert_eq!(load_or_make(data, KeyOf::Node, cluster).unwrap().public(), key.public());
        assert_eq!(node_key(data, cluster).unwrap().public(), key.public());
        assert!(load(data, KeyOf::Authority, cluster).unwrap().is_none());
        let e = load(data, KeyOf::Node, ClusterId([8; 16])).unwrap_err();
        assert!(e.text.contains("node-key") && e.text.contains("another cluster"), "{e}");
        let swapped = SigningKeyFile::encode(KeyOf::Node, cluster, &Hash32([1; 32]), &key.public());
        std::fs::write(data.join("node-key"), swapped).unwrap();
        assert!(node_key(data, cluster).unwrap_err().text.contains("do not belong together"));
    }
}
