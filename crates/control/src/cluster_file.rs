//! The cluster file: which nodes a cluster begins with, and where a node that starts may find the others.

use crate::limits::NUMBER_MAX;
use crate::rules;
use crate::state::Node;
use freebs_types::{ClusterId, Error, HostPublic, NodeId, Result, limits};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Bytes of a cluster file.
pub const CLUSTER_FILE_BYTES_MAX: usize = 1 << 20;
const CLUSTER_FILE_VERSION: u32 = 1;

/// A cluster as it begins: its identity, its nodes, and the sizes of their devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// Version of the file's format: 1.
    pub version: u32,
    /// Identity of the cluster, drawn when it was made.
    pub cluster: ClusterId,
    /// Nodes that the cluster begins with, 1 to `NODES_MAX`; the first one founds it.
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
    /// Nodes that came to it later: whether they have run the control state alone knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub came_later: Vec<NodeId>,
    /// Public half of the key of the cluster's authority, if nodes join it with tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<HostPublic>,
    /// The node is to found the cluster, in which nobody else is yet. Taken out once that is done, so that it is done once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub founds: bool,
    /// In a cluster with an authority: other members, as this node last knew them. Where to ask; and a control state that lacks
    /// one of them is an old copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<ClusterPeer>,
    /// The node had the only vote when the peers were noted last: none of them can go on without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_vote: bool,
}

/// Another node, as one that joins is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterPeer {
    /// Number of the node.
    pub id: NodeId,
    /// Name of the node.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// Workers of the node.
    pub workers: u16,
    /// It has run: one that has joined and never ran may never come.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_run: bool,
}

impl From<&Node> for ClusterPeer {
    fn from(n: &Node) -> Self {
        let has_run = n.start.0 > 0;
        Self { id: n.id, name: n.name.clone(), address: n.address.clone(), workers: n.workers, has_run }
    }
}

/// A node as the cluster begins with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterNode {
    /// Number of the node, from 1 on, never another node's.
    pub id: NodeId,
    /// Name that people give it, unique in the cluster.
    pub name: String,
    /// Host and port that others reach it at.
    pub address: String,
    /// Its data directory.
    pub data: PathBuf,
    /// Workers of the node, each with a device log of its own; fixed when the node is made.
    pub workers: u16,
}

impl ClusterFile {
    /// A new cluster of this identity.
    #[must_use]
    pub fn new(cluster: ClusterId, nodes: Vec<ClusterNode>) -> Self {
        Self {
            version: CLUSTER_FILE_VERSION,
            cluster,
            nodes,
            device_size: None,
            segment_bytes: None,
            set_up: false,
            came_later: Vec::new(),
            authority: None,
            founds: false,
            peers: Vec::new(),
            only_vote: false,
        }
    }

    /// False if no other node has the control state and can go on with it: it would need this one's vote. Of three nodes that
    /// have run two may have none: one of them was away for long.
    #[must_use]
    pub fn can_be_without(&self) -> bool {
        self.authority.is_none() || (!self.only_vote && self.peers.iter().any(|p| p.has_run))
    }

    /// Notes the other members as a control state has them. Nobody is taken out, for no member ever leaves and a state that lacks
    /// one is older than the file; and who has run once has run.
    pub fn note_peers(&mut self, known: impl IntoIterator<Item = ClusterPeer>) {
        let mut peers: Vec<ClusterPeer> = known.into_iter().collect();
        for old in &self.peers {
            match peers.iter_mut().find(|p| p.id == old.id) {
                Some(new) => new.has_run |= old.has_run,
                None => peers.push(old.clone()),
            }
        }
        self.peers = peers;
    }

    /// The file in `bytes`, checked; data directories are as it names them. `Corrupt` if it is no JSON of this kind,
    /// `Invalid` if it says what no cluster can be.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > CLUSTER_FILE_BYTES_MAX {
            return Err(Error::corrupt("it is far too long"));
        }
        let mut file: Self =
            serde_json::from_slice(bytes).map_err(|e| Error::corrupt(format!("it can't be read: {e}")))?;
        file.check()?;
        file.drop_stale_peers();
        Ok(file)
    }

    /// Its bytes: JSON for people, and a line end.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec_pretty(self).expect("a cluster file has only what JSON can say");
        json.push(b'\n');
        json
    }

    /// Peers may have moved since, and this node may be where one of them was: such hints are of no use.
    fn drop_stale_peers(&mut self) {
        let mut seen: BTreeSet<NodeId> = self.nodes.iter().map(|n| n.id).collect();
        let mine: BTreeSet<String> = self.nodes.iter().map(|n| n.address.clone()).collect();
        self.peers.retain(|p| {
            let is_node = p.id.0 > 0 && rules::check_node(&p.name, &p.address, p.workers).is_ok();
            is_node && !mine.contains(&p.address) && seen.insert(p.id)
        });
    }

    /// `Invalid` if it says what no cluster can be.
    pub fn check(&self) -> Result<()> {
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
        if !self.peers.is_empty() && (self.authority.is_none() || self.nodes.len() > 1) {
            return Err(Error::invalid("only the cluster file of one node of a cluster with an authority names peers"));
        }
        if self.founds && (self.authority.is_none() || self.nodes.len() > 1 || self.set_up || !self.peers.is_empty()) {
            return Err(Error::invalid("only one node founds a cluster with an authority, before there are others"));
        }
        if self.authority.is_some() && self.nodes.iter().any(|n| n.id.0 > NUMBER_MAX) {
            return Err(Error::invalid("a node has an id that none can have"));
        }
        if self.peers.len() >= limits::NODES_MAX {
            return Err(Error::invalid(format!("a cluster has at most {} nodes", limits::NODES_MAX)));
        }
        for (id, name, address, workers) in self.nodes.iter().map(|n| (n.id, &n.name, &n.address, n.workers)) {
            rules::check_node(name, address, workers)?;
            if id.0 == 0 || !ids.insert(id) || !names.insert(name) || !addresses.insert(address) {
                return Err(Error::invalid(format!(
                    "node {name} ({id}) has an id, name or address that is 0 or another node's, too"
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

    /// The node of that number, if the cluster began with it.
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
