//! The cluster file: which nodes a cluster begins with, and where a node that starts may find the others.
//!
//! Its first node founds the cluster, once; in a cluster with an authority the one whose file says so. From then on the control plane says who the nodes are; the file says which
//! of them this machine runs, and with what. Paths in it are relative to the file.

use crate::{files, headroom};
use freebs_control::cluster_file::CLUSTER_FILE_BYTES_MAX;
pub use freebs_control::cluster_file::{ClusterFile, ClusterNode, ClusterPeer};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Writes the file durably, with data directories relative to it where they lie below. `Invalid` if it could not be read
/// again.
pub fn save(file: &ClusterFile, path: &Path) -> Result<()> {
    file.check()?;
    let mut file = file.clone();
    let base = path.parent().unwrap_or(Path::new("."));
    for node in &mut file.nodes {
        if let Ok(short) = node.data.strip_prefix(base) {
            node.data = if short.as_os_str().is_empty() { PathBuf::from(".") } else { short.to_owned() };
        }
    }
    files::write_durably(path, &file.encode())
}

/// The cluster file of the node that runs here, which it keeps up to date. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kept(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// With true if that is what lies on disk.
    file: Mutex<(ClusterFile, bool)>,
}

impl Kept {
    /// One that was read, or that is yet to be written.
    #[must_use]
    pub fn new(path: PathBuf, file: ClusterFile, is_there: bool) -> Self {
        Self(Arc::new(Inner { path, file: Mutex::new((file, is_there)) }))
    }

    /// The other members that it names.
    #[must_use]
    pub fn peers(&self) -> Vec<ClusterPeer> {
        self.0.file.lock().unwrap_or_else(PoisonError::into_inner).0.peers.clone()
    }

    /// The node had the only vote when it was noted last.
    #[must_use]
    pub fn had_only_vote(&self) -> bool {
        self.0.file.lock().unwrap_or_else(PoisonError::into_inner).0.only_vote
    }

    /// Writes the file if that makes another one of it, or if it was not written yet.
    pub fn change(&self, how: impl FnOnce(&mut ClusterFile)) -> Result<()> {
        let mut known = self.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut file = known.0.clone();
        how(&mut file);
        if file != known.0 || !known.1 {
            headroom::with_room(&self.0.path, || save(&file, &self.0.path))?;
            *known = (file, true);
        }
        Ok(())
    }
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
            let file = begin(nodes);
            let e = save(&file, &path).unwrap_err();
            assert!(!path.exists(), "what can't be read again is not written");
            std::fs::write(&path, file.encode()).unwrap();
            assert!(load(&path).unwrap_err().text.contains(&*e.text));
            std::fs::remove_file(&path).unwrap();
            e.to_string()
        };
        assert!(refused(vec![]).contains("1 to 1024"));
        assert!(refused(vec![node(1), node(1)]).contains("another node's"));
        assert!(refused(vec![node(0)]).contains("is 0"));
        assert!(refused(vec![ClusterNode { address: "here".into(), ..node(1) }]).contains("HOST:PORT"));
        assert!(refused(vec![ClusterNode { workers: 3, ..node(1) }]).contains("1, 2, 4 or 8"));
        std::fs::write(&path, b"{").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("can't be read"));
    }

    fn peer_at(port: u16) -> ClusterPeer {
        let address = format!("127.0.0.1:{port}");
        ClusterPeer { id: NodeId(2), name: format!("at{port}"), address, workers: 1, has_run: false }
    }

    /// A peer that had moved made a file that no start could read.
    #[test]
    fn peers_are_hints_and_one_node_founds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.json");
        let peer = |id: u64, port: u16| freebs_control::cluster_file::ClusterPeer {
            id: NodeId(id),
            name: format!("node{id}"),
            address: format!("127.0.0.1:{port}"),
            workers: 1,
            has_run: true,
        };
        let mut file = begin(vec![node(1)]);
        file.authority = Some(freebs_types::HostPublic([1; 32]));
        file.peers = vec![peer(1, 7499), peer(2, 7401), peer(3, 7403), peer(3, 7404), peer(0, 7405)];
        file.peers.push(freebs_control::cluster_file::ClusterPeer { workers: 3, ..peer(4, 7406) });
        save(&file, &path).unwrap();
        assert_eq!(load(&path).unwrap().unwrap().peers, [peer(3, 7403)]);
        let refused = |how: &dyn Fn(&mut ClusterFile)| {
            let mut file = ClusterFile { founds: true, peers: vec![], ..file.clone() };
            save(&file, &path).unwrap();
            how(&mut file);
            save(&file, &path).unwrap_err();
        };
        refused(&|f| f.peers = vec![peer(2, 7402)]);
        refused(&|f| f.set_up = true);
        refused(&|f| f.authority = None);
        refused(&|f| f.nodes.push(node(2)));
        refused(&|f| f.nodes[0].id = NodeId(u64::MAX));
    }

    /// The only vote was put aside with its store, and a node that has none was waited for.
    #[test]
    fn of_two_nodes_only_one_votes() {
        let peer =
            |id: u64, has_run| ClusterPeer { has_run, ..ClusterPeer { id: NodeId(id), ..peer_at(7400 + id as u16) } };
        let with = |only_vote, peers: &[ClusterPeer]| {
            let mut file = begin(vec![node(1)]);
            file.authority = Some(freebs_types::HostPublic([1; 32]));
            (file.only_vote, file.peers) = (only_vote, peers.to_vec());
            file.can_be_without()
        };
        assert!(!with(true, &[]) && !with(true, &[peer(2, true)]) && !with(false, &[peer(2, false)]));
        assert!(!with(true, &[peer(2, true), peer(3, false)]), "that one never ran");
        assert!(with(false, &[peer(2, true)]), "the other one votes");
        assert!(!with(true, &[peer(2, true), peer(3, true)]), "one was away when the other one came");
        assert!(with(false, &[peer(2, true), peer(3, true)]), "each of three has a vote");
        assert!(begin(vec![node(1)]).can_be_without(), "the file of `freebs up` names all");
    }

    #[test]
    fn the_file_of_a_node_is_written_when_it_is_another_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.json");
        let file = begin(vec![node(1)]);
        let kept = Kept::new(path.clone(), file.clone(), true);
        kept.change(|f| f.set_up = false).unwrap();
        assert!(!path.exists(), "it is as it was");
        kept.change(|f| f.set_up = true).unwrap();
        assert_eq!(load(&path).unwrap().unwrap(), ClusterFile { set_up: true, ..file.clone() });
        assert!(kept.change(|f| f.nodes.clear()).is_err());
        std::fs::remove_file(&path).unwrap();
        kept.change(|f| f.set_up = true).unwrap();
        assert!(!path.exists(), "what was refused has changed nothing");
        Kept::new(path.clone(), file, false).change(|_| {}).unwrap();
        assert!(path.exists(), "it was not there yet");
    }
}
