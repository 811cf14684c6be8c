//! The cluster file: which nodes a cluster begins with, and where a node that starts may find the others.
//!
//! Its first node founds the cluster, once. From then on the control plane says who the nodes are; the file says which
//! of them this machine runs, and with what. Paths in it are relative to the file.

use crate::files;
use freebs_control::cluster_file::CLUSTER_FILE_BYTES_MAX;
pub use freebs_control::cluster_file::{ClusterFile, ClusterNode};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Result};
use std::path::{Path, PathBuf};

/// A new cluster with a new identity.
#[must_use]
pub fn begin(nodes: Vec<ClusterNode>) -> ClusterFile {
    let mut id = [0; 16];
    OsRandom.fill(&mut id);
    ClusterFile::new(ClusterId(id), nodes)
}

/// The file at `path`, checked; `None` if there is none. Data directories come back as full paths.
pub fn load(path: &Path) -> Result<Option<ClusterFile>> {
    let Some(bytes) = files::read_limited(path, CLUSTER_FILE_BYTES_MAX)? else { return Ok(None) };
    let mut file =
        ClusterFile::decode(&bytes).map_err(|e| e.at(format_args!("the cluster file {}", path.display())))?;
    let base = path.parent().unwrap_or(Path::new("."));
    for node in &mut file.nodes {
        node.data = base.join(&node.data);
    }
    Ok(Some(file))
}

/// Writes the file durably, with data directories relative to it where they lie below.
pub fn save(file: &ClusterFile, path: &Path) -> Result<()> {
    let mut file = file.clone();
    let base = path.parent().unwrap_or(Path::new("."));
    for node in &mut file.nodes {
        if let Ok(short) = node.data.strip_prefix(base) {
            node.data = if short.as_os_str().is_empty() { PathBuf::from(".") } else { short.to_owned() };
        }
    }
    files::write_durably(path, &file.encode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::NodeId;

    fn node(id: u64) -> ClusterNode {
        ClusterNode {
            id: NodeId(id),
            name: format!("node{id}"),
            address: format!("127.0.0.1:{}", 7400 + id),
            data: format!("/somewhere/node{id}").into(),
            workers: 1,
        }
    }

    #[test]
    fn a_cluster_file_comes_back_also_from_another_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.json");
        assert_eq!(load(&path).unwrap(), None);
        let mut file = begin(vec![node(1), node(2)]);
        file.nodes[0].data = dir.path().join("node1");
        save(&file, &path).unwrap();
        assert_eq!(load(&path).unwrap().unwrap(), file);
        let other = tempfile::tempdir().unwrap();
        let moved = other.path().join("cluster.json");
        std::fs::copy(&path, &moved).unwrap();
        assert_eq!(load(&moved).unwrap().unwrap().nodes[0].data, other.path().join("node1"));
    }

    #[test]
    fn what_can_not_be_a_cluster_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.json");
        let refused = |nodes: Vec<ClusterNode>| {
            save(&begin(nodes), &path).unwrap();
            load(&path).unwrap_err().to_string()
        };
        assert!(refused(vec![]).contains("1 to 1024"));
        assert!(refused(vec![node(1), node(1)]).contains("another node's"));
        assert!(refused(vec![node(0)]).contains("is 0"));
        assert!(refused(vec![ClusterNode { address: "here".into(), ..node(1) }]).contains("HOST:PORT"));
        assert!(refused(vec![ClusterNode { workers: 3, ..node(1) }]).contains("1, 2, 4 or 8"));
        std::fs::write(&path, b"{").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("can't be read"));
    }
}
