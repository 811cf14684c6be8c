//! Keys in the data directory: the node's, and where the cluster was begun, its authority's.

use crate::cluster_file::{self, ClusterFile};
use crate::conn::Identity;
use crate::files;
use freebs_format::keys::{KeyOf, SIGNING_KEY_BYTES, SigningKeyFile};
use freebs_identity::{CERTIFICATE_BYTES_MAX, SigningKey, Tls, certify, check_own};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, Hash32, NodeId, Result};
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

/// The key of a node that joins this cluster: one that was made before, or else a new one. Another cluster may know a node by
/// the key that it is, so that is never replaced.
pub fn joining_key(data: &Path, cluster: ClusterId) -> Result<SigningKey> {
    let path = data.join(name(KeyOf::Node));
    let there = files::read_limited(&path, SIGNING_KEY_BYTES)?;
    match there.and_then(|bytes| SigningKeyFile::cluster_of(&bytes, KeyOf::Node)) {
        Some(of) if of != cluster => Err(Error::invalid(format!(
            "{} is a node's key in the cluster {of}, and the token is of {cluster}; choose another directory with --data. If \
             no node of that cluster is to come back with the key, move it away",
            path.display()
        ))),
        _ => load_or_make(data, KeyOf::Node, cluster),
    }
}

/// Refuses a directory with keys, for a cluster that begins there: it makes keys of its own.
pub fn refuse_for_a_beginning(data: &Path) -> Result<()> {
    let Some(of) = found(data) else { return Ok(()) };
    let path = data.join(name(of));
    let known = files::read_limited(&path, SIGNING_KEY_BYTES).ok().flatten();
    let cluster = match known.and_then(|bytes| SigningKeyFile::cluster_of(&bytes, of)) {
        Some(cluster) => format!("of the cluster {cluster}"),
        None => "that can't be read".into(),
    };
    Err(Error::invalid(format!(
        "{} has the file {}, {cluster}, and no cluster.json, and another cluster would need another key; choose another \
         directory with --data. If `freebs cluster init` was cut off there, nobody knows the keys: then remove node-key and \
         authority-key. If not, keep them: there may be no other copy",
        data.display(),
        name(of)
    )))
}

/// The first key that lies in this data directory.
fn found(data: &Path) -> Option<KeyOf> {
    [KeyOf::Authority, KeyOf::Node].into_iter().find(|of| data.join(name(*of)).symlink_metadata().is_ok())
}

/// Refuses a directory with keys, for a start that knows of no cluster: it would begin another one there.
pub fn refuse_keys(data: &Path) -> Result<()> {
    match found(data) {
        Some(of) => Err(Error::invalid(format!(
            "{} has the file {} and no cluster.json: `freebs cluster init` or `freebs node join` did not come to its end \
             there. Run `freebs node join` again, put cluster.json back if there was one, or choose another directory with \
             --data",
            data.display(),
            name(of)
        ))),
        None => Ok(()),
    }
}

/// The file with the node's certificate.
const CERTIFICATE_FILE: &str = "node-certificate";

pub fn save_certificate(data: &Path, certificate: &[u8]) -> Result<()> {
    files::write_durably(&data.join(CERTIFICATE_FILE), certificate)
}

pub fn has_certificate(data: &Path) -> bool {
    data.join(CERTIFICATE_FILE).symlink_metadata().is_ok()
}

/// The identity of the node in this data directory; `None` if its cluster has no authority.
pub fn of_node(file: &ClusterFile, node: NodeId, data: &Path) -> Result<Option<Identity>> {
    let Some(authority) = file.authority else { return Ok(None) };
    let key = node_key(data, file.cluster)?;
    let path = data.join(CERTIFICATE_FILE);
    let certificate = match files::read_limited(&path, CERTIFICATE_BYTES_MAX)? {
        Some(certificate) => certificate,
        None => certify_again(data, file.cluster, node, &key)?,
    };
    check_own(&certificate, file.cluster, &authority, node, &key.public())
        .map_err(|e| Error { kind: e.kind, text: format!("{}: {}", path.display(), e.text).into() })?;
    let tls = Tls::new(file.cluster, &authority, &key, certificate)?;
    Ok(Some(Identity { cluster: file.cluster, node, tls }))
}

/// A certificate in place of one that is gone, where the authority's key is.
fn certify_again(data: &Path, cluster: ClusterId, node: NodeId, key: &SigningKey) -> Result<Vec<u8>> {
    let authority = load(data, KeyOf::Authority, cluster)?.ok_or_else(|| {
        Error::not_found(format!(
            "{} is gone, with which this node shows that it is a member; put it back from a copy, or have it again with a \
             token of `freebs cluster token`: `freebs node join HOST:PORT --data {}`, with the address of another node",
            data.join(CERTIFICATE_FILE).display(),
            data.display()
        ))
    })?;
    let certificate = certify(&authority, cluster, node, &key.public())?;
    save_certificate(data, &certificate)?;
    Ok(certificate)
}

/// The same by the cluster file in the directory, for commands and gateways beside a node.
pub fn of_directory(data: &Path) -> Result<Identity> {
    let none =
        || Error::invalid(format!("{} is no data directory of a node of a cluster with an authority", data.display()));
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
        assert_eq!(joining_key(data, cluster).unwrap().public(), key.public(), "it was made before");
        // Another cluster's is nobody's to remove, and what is damaged may be this one's.
        let refused = |bytes: &[u8], says: &str| {
            std::fs::write(data.join("node-key"), bytes).unwrap();
            for e in [joining_key(data, ClusterId([8; 16])).unwrap_err(), refuse_for_a_beginning(data).unwrap_err()] {
                assert!(e.text.contains(says) && e.text.contains("node-key"), "{e}");
            }
            assert_eq!(std::fs::read(data.join("node-key")).unwrap(), bytes);
        };
        refused(&std::fs::read(data.join("node-key")).unwrap(), "another directory with --data");
        std::fs::write(data.join("node-key"), b"rotten").unwrap();
        assert!(joining_key(data, cluster).is_err() && refuse_for_a_beginning(data).is_err());
        assert_eq!(std::fs::read(data.join("node-key")).unwrap(), b"rotten");
        let swapped = SigningKeyFile::encode(KeyOf::Node, cluster, &Hash32([1; 32]), &key.public());
        std::fs::write(data.join("node-key"), swapped).unwrap();
        assert!(node_key(data, cluster).unwrap_err().text.contains("do not belong together"));
        assert!(refuse_keys(data).unwrap_err().text.contains("node-key"));
        std::fs::remove_file(data.join("node-key")).unwrap();
        refuse_keys(data).unwrap();
        refuse_for_a_beginning(data).unwrap();
    }
}
