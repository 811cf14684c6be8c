//! Links to other workers: which are up, and when each was last heard.

use freebs_io::LinkId;
use freebs_types::{Nanos, Peer};
use std::collections::BTreeMap;

/// Peers that are kept in mind beyond those with a link, at most: anybody may name itself a peer.
const KNOWN_MAX: usize = 4096;

#[derive(Debug, Default)]
struct Known {
    /// Newest last; the newest is used.
    links: Vec<LinkId>,
    heard: Nanos,
}

/// All links to members. Invariant: every link in `owner` is in its peer's list, and the other way round.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    peers: BTreeMap<Peer, Known>,
    owner: BTreeMap<LinkId, Peer>,
}

impl Peers {
    pub fn up(&mut self, link: LinkId, peer: Peer, now: Nanos) {
        if self.peers.len() >= KNOWN_MAX {
            self.peers.retain(|_, known| !known.links.is_empty());
        }
        let known = self.peers.entry(peer).or_default();
        known.links.push(link);
        known.heard = now;
        self.owner.insert(link, peer);
    }

    /// The peer, and whether this was its last link.
    pub fn down(&mut self, link: LinkId) -> Option<(Peer, bool)> {
        let peer = self.owner.remove(&link)?;
        let known = self.peers.get_mut(&peer)?;
        known.links.retain(|l| *l != link);
        Some((peer, known.links.is_empty()))
    }

    pub fn heard(&mut self, link: LinkId, now: Nanos) -> Option<Peer> {
        let peer = *self.owner.get(&link)?;
        if let Some(known) = self.peers.get_mut(&peer) {
            known.heard = now;
        }
        Some(peer)
    }

    pub fn owner(&self, link: LinkId) -> Option<Peer> {
        self.owner.get(&link).copied()
    }

    pub fn link(&self, peer: Peer) -> Option<LinkId> {
        self.peers.get(&peer)?.links.last().copied()
    }

    pub fn last_heard(&self, peer: Peer) -> Nanos {
        self.peers.get(&peer).map(|k| k.heard).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::NodeId;

    #[test]
    fn who_comes_and_goes_is_forgotten_and_who_is_there_is_not() {
        let mut peers = Peers::default();
        let peer = |n: u64| Peer { node: NodeId(n), worker: 0 };
        for n in 1..=3 * KNOWN_MAX as u64 {
            peers.up(LinkId(n), peer(n), Nanos(n));
            if n > 10 {
                assert_eq!(peers.down(LinkId(n)), Some((peer(n), true)));
            }
            assert!(peers.peers.len() <= KNOWN_MAX + 1);
        }
        for n in 1..=10 {
            assert_eq!((peers.link(peer(n)), peers.last_heard(peer(n))), (Some(LinkId(n)), Nanos(n)));
        }
    }
}
