//! The cluster file: which nodes a cluster begins with, and where a node that starts may find the others.
//!
//! Its first node founds the cluster, once. From then on the control plane says who the nodes are; the file says which
//! of them this machine runs, and with what. Paths in it are relative to the file.

use crate::files;
use freebs_control::rules;
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, NodeId, Result, limits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Bytes of a cluster file.
const CLUSTER_FILE_BYTES_MAX: usize = 1 << 20;
const CLUSTER_FILE_VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    pub version: u32,
    pub cluster: ClusterId,
    pub nodes: Vec<ClusterNode>,
    /// Bytes of each node's device, for nodes that are not told otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_size: Option<u64>,
    /// Bytes of the segments of each node's device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_bytes: Option<u64>,
    /// Volumes were usable once: from then on the control state is somewhere, and is not begun anew.
    #[serde(default)]
    pub set_up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterNode {
    pub id: NodeId,
    pub name: String,
    /// Host and port that others reach it at.
    pub address: String,
    /// Its data directory.
    pub data: PathBuf,
    pub workers: u16,
}

impl ClusterFile {
    /// A new cluster with a new identity.
    #[must_use]
    pub fn new(nodes: Vec<ClusterNode>) -> Self {
        let mut id = [0; 16];
        OsRandom.fill(&mut id);
        Self {
            version: CLUSTER_FILE_VERSION,
            cluster: ClusterId(id),
            nodes,
            device_size: None,
            segment_bytes: None,
            set_up: false,
        }
    }

    /// The file at `path`, checked; `None` if there is none. Data directories come back as full paths.
    pub fn load(path: &Path) -> Result<Option<Self>> {
        let Some(bytes) = files::read_limited(path, CLUSTER_FILE_BYTES_MAX)? else { return Ok(None) };
        let mut file: Self = serde_json::from_slice(&bytes)
            .map_err(|e| Error::corrupt(format!("the cluster file {} can't be read: {e}", path.display())))?;
        file.check().map_err(|e| e.at(path.display()))?;
        let base = path.parent().unwrap_or(Path::new("."));
        for node in &mut file.nodes {
            node.data = base.join(&node.data);
        }
        Ok(Some(file))
    }

    /// Writes the file durably, with data directories relative to it where they lie below.
    pub fn save(&self, path: &Path) -> Result<()> {
        let mut file = self.clone();
        let base = path.parent().unwrap_or(Path::new("."));
        for node in &mut file.nodes {
            if let Ok(short) = node.data.strip_prefix(base) {
                node.data = if short.as_os_str().is_empty() { PathBuf::from(".") } else { short.to_owned() };
            }
        }
        let mut json = serde_json::to_vec_pretty(&file).expect("a cluster file has only what JSON can say");
        json.push(b'\n');
        files::write_durably(path, &json)
    }

    fn check(&self) -> Result<()> {
        if self.version != CLUSTER_FILE_VERSION {
            return Err(Error::invalid(format!(
                "the cluster file has version {}, this freebs knows {CLUSTER_FILE_VERSION}; use a newer freebs",
                self.version
            )));
        }
        if self.nodes.is_empty() || self.nodes.len() > limits::NODES_MAX {
            return Err(Error::invalid(format!("a cluster file names 1 to {} nodes", limits::NODES_MAX)));
        }
        let (mut ids, mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for n in &self.nodes {
            rules::check_node(&n.name, &n.address, n.workers)?;
            if n.id.0 == 0 || !ids.insert(n.id) || !names.insert(&n.name) || !addresses.insert(&n.address) {
                return Err(Error::invalid(format!(
                    "node {} ({}) has an id, name or address that is 0 or another node's, too",
                    n.name, n.id
                )));
            }
        }
        Ok(())
    }

    /// The node that founds the cluster.
    #[must_use]
    pub fn first(&self) -> &ClusterNode {
        &self.nodes[0]
    }

    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&ClusterNode> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// Its nodes' names for messages.
    #[must_use]
    pub fn names(&self) -> String {
        self.nodes.iter().map(|n| n.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(ClusterFile::load(&path).unwrap(), None);
        let mut file = ClusterFile::new(vec![node(1), node(2)]);
        file.nodes[0].data = dir.path().join("node1");
        file.save(&path).unwrap();
        assert_eq!(ClusterFile::load(&path).unwrap().unwrap(), file);
        let other = tempfile::tempdir().unwrap();
        let moved = other.path().join("cluster.json");
        std::fs::copy(&path, &moved).unwrap();
        assert_eq!(ClusterFile::load(&moved).unwrap().unwrap().nodes[0].data, other.path().join("node1"));
    }

    #[test]
    fn what_can_not_be_a_cluster_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.json");
        let refused = |nodes: Vec<ClusterNode>| {
            ClusterFile::new(nodes).save(&path).unwrap();
            ClusterFile::load(&path).unwrap_err().to_string()
        };
        assert!(refused(vec![]).contains("1 to 1024"));
        assert!(refused(vec![node(1), node(1)]).contains("another node's"));
        assert!(refused(vec![node(0)]).contains("is 0"));
        assert!(refused(vec![ClusterNode { address: "here".into(), ..node(1) }]).contains("HOST:PORT"));
        assert!(refused(vec![ClusterNode { workers: 3, ..node(1) }]).contains("1, 2, 4 or 8"));
        std::fs::write(&path, b"{").unwrap();
        assert!(ClusterFile::load(&path).unwrap_err().to_string().contains("can't be read"));
    }
}
