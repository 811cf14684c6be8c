//! A node's own files: what they say of its membership is held against the control state, and kept up to date.
//!
//! Invariants: the word that this node founds the cluster is gone, durably, before anybody else can have a part in it. A
//! node of a cluster with an authority runs only with the files of that cluster, and with its own key.

use crate::admin::{Authority, Plane};
use crate::cluster_file::Kept;
use crate::identity;
use crate::options::NodeOptions;
use crate::timing;
use freebs_control::cluster_file::ClusterPeer;
use freebs_control::{ControlPlane, State};
use freebs_types::{Error, NodeId, Result};

/// A node, as its files know it.
pub struct Membership {
    node: NodeId,
    authority: Option<Authority>,
    /// `None` if the file is not this node's alone.
    kept: Option<Kept>,
    /// As the file is to name it, once the cluster knows it there.
    me: crate::cluster_file::ClusterNode,
}

impl Membership {
    /// Of a node that has its address.
    pub fn of(options: &NodeOptions) -> Result<Self> {
        let cluster = &options.cluster;
        if cluster.authority.is_none() {
            options.keep_address()?;
        }
        let authority = match cluster.authority {
            Some(key) => {
                let identity = identity::node_key(&options.data, cluster.cluster)?.public();
                Some(Authority { key, identity })
            }
            None => None,
        };
        let is_own = authority.is_some() && cluster.nodes.len() == 1;
        let me = cluster.first().clone();
        let kept = is_own.then(|| options.kept.clone());
        Ok(Self { node: options.node, authority, kept, me })
    }

    pub fn authority(&self) -> Option<Authority> {
        self.authority
    }

    /// Holds what is here against a control state, which may know nothing yet.
    pub fn check(&self, state: &State) -> Result<()> {
        if state.revision() == 0 {
            return Ok(());
        }
        state.check_removed(self.node)?;
        let Some(authority) = state.joining().authority() else {
            return match self.authority {
                Some(_) => Err(Error::invalid(
                    "the cluster file names an authority, and the cluster has none: its nodes are those of a cluster file",
                )),
                None => Ok(()),
            };
        };
        let Some(mine) = self.authority else {
            return Err(Error::invalid(format!(
                "the cluster has an authority ({authority}), and the cluster file names none; start the node with the \
                 cluster.json of its data directory"
            )));
        };
        if mine.key != authority {
            return Err(Error::invalid(format!(
                "the cluster file names another authority ({}) than the cluster has ({authority}); start the node with \
                 the cluster.json of its data directory",
                mine.key
            )));
        }
        // A state that was made again from the logs knows no keys.
        let known = state.node(self.node).and_then(|n| n.identity);
        if let Some(known) = known.filter(|known| *known != mine.identity) {
            return Err(Error::invalid(format!(
                "the cluster knows this node by another key ({known}) than its node-key has ({}); put the right node-key \
                 back",
                mine.identity
            )));
        }
        Ok(())
    }

    /// The same with one that this node takes for the newest: it has all members that were noted before. `Corrupt` if not.
    pub fn check_newest(&self, state: &State) -> Result<()> {
        self.check(state)?;
        let peers = self.kept.as_ref().map(Kept::peers).unwrap_or_default();
        match peers.iter().find(|p| state.node(p.id).is_none() && !state.is_removed(p.id)) {
            Some(lacks) => {
                let alone = self.kept.as_ref().is_some_and(Kept::had_only_vote);
                let way = if alone {
                    "This node had the only vote, so no other one can go on: if the newest directory is lost, make the state \
                     again (`freebs control rebuild`)"
                } else {
                    "If only control.store and control.note are old, move both away: this node learns from the others then"
                };
                Err(Error::corrupt(format!(
                    "the control state does not know {} (node {}), which this node's cluster.json names as a member: it is \
                     an old copy. Put the newest data directory back. {way}",
                    lacks.name, lacks.id
                )))
            }
            None => Ok(()),
        }
    }

    /// The seat has its store, so the cluster is founded: from now on this node never does that again.
    pub fn begin(&self, plane: &Plane) -> Result<()> {
        // The control state may be old here, and knows nothing at a first start: it is looked at again.
        self.check(&plane.state())?;
        self.kept.iter().try_for_each(|kept| kept.change(|file| file.founds = false))?;
        self.keep_peers(plane);
        Ok(())
    }

    /// The cluster has taken the node in: it knows where this node is, and that its devices are there.
    pub fn taken_in(&self) {
        let keep = |kept: &Kept| {
            kept.change(|file| {
                file.nodes = vec![self.me.clone()];
                file.set_up = true;
            })
        };
        if let Err(e) = self.kept.as_ref().map_or(Ok(()), keep) {
            tracing::warn!("the cluster file is not up to date: {e}");
        }
    }

    /// Notes who else is a member, now and whenever that changes, as long as the runtime lives.
    fn keep_peers(&self, plane: &Plane) {
        let Some(kept) = self.kept.clone() else { return };
        let (node, plane) = (self.node, plane.clone());
        tokio::task::spawn_local(async move {
            let mut state = plane.ready().await;
            loop {
                let (kept, known) = (kept.clone(), state.clone());
                let only_vote = plane.has_only_vote();
                let written = tokio::task::spawn_blocking(move || note_peers(&kept, node, &known, only_vote)).await;
                if let Ok(Err(e)) = written {
                    tracing::warn!("other members are not noted: {e}");
                    tokio::time::sleep(timing::PEERS_AGAIN).await;
                    state = plane.state();
                    continue;
                }
                state = tokio::select! {
                    newer = plane.changed(state.revision()) => newer,
                    () = other_votes(&plane, only_vote) => plane.state(),
                };
            }
        });
    }
}

/// Waits until it is known otherwise whether this node has the only vote: votes change without a change of the state.
async fn other_votes(plane: &Plane, noted: Option<bool>) {
    while plane.has_only_vote().is_none_or(|now| Some(now) == noted) {
        tokio::time::sleep(timing::SEAT_LOOK).await;
    }
}

fn note_peers(kept: &Kept, node: NodeId, state: &State, only_vote: Option<bool>) -> Result<()> {
    let peers = state.nodes().filter(|n| n.id != node).map(|n| ClusterPeer::from(&**n));
    kept.change(|file| {
        file.only_vote = only_vote.unwrap_or(file.only_vote);
        file.note_peers(peers);
        file.peers.retain(|p| !state.is_removed(p.id));
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{self, ClusterFile, ClusterNode};
    use freebs_control::Command;
    use freebs_types::{ClusterId, HostPublic, StartNumber};

    const KEY: HostPublic = HostPublic([9; 32]);
    const MINE: HostPublic = HostPublic([1; 32]);

    fn register(node: u64) -> Command {
        let (name, address) = (format!("n{node}"), format!("127.0.0.1:{}", 7400 + node));
        Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(0) }
    }

    fn state(nodes: u64) -> State {
        let mut state = State::new(ClusterId([7; 16]));
        for n in 1..=nodes {
            state.apply(register(n)).unwrap();
        }
        state
    }

    fn membership(authority: Option<Authority>, listen: &str) -> Membership {
        let me = ClusterNode { id: NodeId(1), name: "n1".into(), address: listen.into(), data: ".".into(), workers: 1 };
        Membership { node: NodeId(1), authority, kept: None, me }
    }

    #[test]
    fn files_of_another_membership_are_refused() {
        let mut known = state(1);
        known.begin_authority(KEY, NodeId(1), MINE).unwrap();
        let here = |key, identity| membership(Some(Authority { key, identity }), "127.0.0.1:7400");
        here(KEY, MINE).check(&known).unwrap();
        let refused = |m: Membership, state: &State| m.check(state).unwrap_err().text.to_string();
        assert!(refused(here(HostPublic([8; 32]), MINE), &known).contains("another authority"));
        assert!(refused(here(KEY, HostPublic([2; 32])), &known).contains("another key"));
        assert!(refused(membership(None, "127.0.0.1:7400"), &known).contains("names none"));
        assert!(refused(here(KEY, MINE), &state(1)).contains("has none"));
        // Of a cluster without an authority nothing is asked, and a state that knows nothing says nothing.
        membership(None, "0.0.0.0:7400").check(&state(1)).unwrap();
        here(HostPublic([8; 32]), MINE).check(&State::new(ClusterId([7; 16]))).unwrap();
        // A state that was made again knows no keys of other nodes.
        let mut again = state(2);
        again.begin_authority(KEY, NodeId(2), HostPublic([5; 32])).unwrap();
        here(KEY, MINE).check(&again).unwrap();
    }

    #[test]
    fn an_old_state_takes_no_peer_away() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.json");
        let mut file = ClusterFile::new(ClusterId([7; 16]), vec![membership(None, "127.0.0.1:7400").me]);
        file.authority = Some(KEY);
        cluster_file::save(&file, &path).unwrap();
        let kept = Kept::new(path.clone(), file, true);
        let peers = || {
            let file = cluster_file::load(&path).unwrap().unwrap();
            file.peers.iter().map(|p| p.id.0).collect::<Vec<_>>()
        };
        note_peers(&kept, NodeId(1), &state(3), Some(true)).unwrap();
        assert_eq!(peers(), [2, 3]);
        // Also one that this node led by itself: it knew nobody any more then.
        note_peers(&kept, NodeId(1), &state(1), None).unwrap();
        assert_eq!(peers(), [2, 3]);
        assert!(cluster_file::load(&path).unwrap().unwrap().only_vote, "it is not known to be otherwise");
        let with = |nodes| {
            let mut known = state(nodes);
            known.begin_authority(KEY, NodeId(1), MINE).unwrap();
            let here = membership(Some(Authority { key: KEY, identity: MINE }), "127.0.0.1:7400");
            Membership { kept: Some(kept.clone()), ..here }.check_newest(&known)
        };
        with(3).unwrap();
        let e = with(1).unwrap_err();
        assert!(e.kind == freebs_types::ErrorKind::Corrupt && e.text.contains("n2 (node 2)"), "{e}");
        assert!(e.text.contains("control rebuild"), "nobody else has it: {e}");
        // A node that has run once has run, also by a state that is older.
        let ran = |start| {
            let mut state = state(2);
            let Command::RegisterNode { node, name, address, workers, .. } = register(3) else { unreachable!() };
            state.apply(Command::RegisterNode { node, name, address, workers, start: StartNumber(start) }).unwrap();
            note_peers(&kept, NodeId(1), &state, Some(false)).unwrap();
            kept.peers().iter().map(|p| p.has_run).collect::<Vec<_>>()
        };
        assert_eq!([ran(0), ran(4), ran(0)], [[false, false], [false, true], [false, true]]);
        assert!(with(1).unwrap_err().text.contains("learns from the others"));
    }
}
