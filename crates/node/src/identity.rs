//! Keys in the data directory: the node's, and where the cluster was begun, its authority's.

use crate::cluster_file::{self, ClusterFile};
use crate::conn::Identity;
use crate::files;
use freebs_format::keys::{KeyOf, SIGNING_KEY_BYTES, SigningKeyFile};
use freebs_identity::{CERTIFICATE_BYTES_MAX, SigningKey, Tls};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, Hash32, NodeId, Result};
use std::path::Path;
use std::sync::Arc;

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

/// The file with the node's certificate.
const CERTIFICATE_FILE: &str = "node-certificate";

pub fn save_certificate(data: &Path, certificate: &[u8]) -> Result<()> {
    files::write_durably(&data.join(CERTIFICATE_FILE), certificate)
}

/// The identity of the node in this data directory; `None` if its cluster has no authority.
pub fn of_node(file: &ClusterFile, node: NodeId, data: &Path) -> Result<Option<Identity>> {
    let Some(authority) = file.authority else { return Ok(None) };
    let key = node_key(data, file.cluster)?;
    let path = data.join(CERTIFICATE_FILE);
    let certificate = files::read_limited(&path, CERTIFICATE_BYTES_MAX)?.ok_or_else(|| {
        Error::not_found(format!("{} is gone; put it back from a copy, or join again", path.display()))
    })?;
    let tls = Tls::new(file.cluster, &authority, &key, certificate)?;
    let authority = load(data, KeyOf::Authority, file.cluster)?.map(Arc::new);
    Ok(Some(Identity { cluster: file.cluster, node, tls, authority }))
}

/// The same by the cluster file in the directory, for commands and gateways beside a node.
pub fn of_directory(data: &Path) -> Result<Identity> {
    let none = || {
        Error::invalid(format!("{} is no data directory of a node of a cluster with an authority", data.display()))
    };
    let file = cluster_file::load(&data.join("cluster.json"))?.ok_or_else(none)?;
    of_node(&file, file.first().id, data)?.ok_or_else(none)
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn from_hex(text: &str) -> Result<Vec<u8>> {
    let bad = || Error::corrupt("a certificate that is no hexadecimal text");
    if text.len() > 2 * CERTIFICATE_BYTES_MAX || !text.is_ascii() || !text.len().is_multiple_of(2) {
        return Err(bad());
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).map_err(|_| bad())).collect()
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
