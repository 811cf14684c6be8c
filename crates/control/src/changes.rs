//! What changed since a revision, for watchers, in pages that fit a message.
//!
//! Every command changes nodes, volumes or snapshots, each under a revision of its own, so the changes since a revision are
//! those entries whose own revision is higher, in that order, and a page may end after any of them. Deleted volumes
//! are remembered one by one for a while; a watcher that comes from further back gets the list of those that live.

use crate::limits;
use crate::snapshots::Snapshot;
use crate::state::{Node, State, Volume};
use freebs_types::{ClusterId, Error, NodeId, Result, SnapshotId, VolumeId, limits as common};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One page of changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The cluster whose state it is.
    pub cluster: ClusterId,
    /// What the watcher has seen once it has taken these in.
    pub revision: u64,
    /// More pages follow at once.
    pub more: bool,
    /// Nodes that changed.
    pub nodes: Vec<Node>,
    /// Volumes that changed, with all their shards.
    pub volumes: Vec<Volume>,
    /// Volumes that are gone.
    pub deleted: Vec<VolumeId>,
    /// Snapshots that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<Snapshot>,
    /// Snapshots that are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deleted_snapshots: Vec<SnapshotId>,
    /// All volumes and nodes there are, if the watcher came from too far back for `deleted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive: Option<(Vec<NodeId>, Vec<VolumeId>)>,
    /// All snapshots there are, then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alive_snapshots: Option<Vec<SnapshotId>>,
    /// See [`State::spared_snapshots`].
    #[serde(default)]
    pub spared_snapshots: SnapshotId,
}

enum Item<'a> {
    Node(&'a Arc<Node>),
    Volume(&'a Arc<Volume>),
    Snapshot(&'a Arc<Snapshot>),
}

impl State {
    /// One page of what changed since `since`. A watcher whose revision is not of this state's past (it is higher)
    /// gets everything.
    #[must_use]
    pub fn changes_since(&self, since: u64) -> Changes {
        let foreign = since > self.revision;
        let since = if foreign { 0 } else { since };
        let mut items: Vec<(u64, Item<'_>)> = Vec::new();
        items.extend(self.nodes.values().filter(|n| n.changed > since).map(|n| (n.changed, Item::Node(n))));
        items.extend(self.volumes.values().filter(|v| v.changed > since).map(|v| (v.changed, Item::Volume(v))));
        items.extend(self.snapshots().filter(|s| s.changed > since).map(|s| (s.changed, Item::Snapshot(s))));
        items.sort_unstable_by_key(|(changed, _)| *changed);
        let spared_snapshots = self.spared_snapshots();
        let mut page =
            Changes { cluster: self.cluster, revision: self.revision, spared_snapshots, ..Changes::default() };
        if foreign || since < self.forgotten {
            page.alive = Some((self.nodes.keys().copied().collect(), self.volumes.keys().copied().collect()));
            page.alive_snapshots = Some(self.snapshots().map(|s| s.id).collect());
        } else {
            page.deleted_snapshots = self.snapshots.gone().filter(|(r, _)| *r > since).map(|(_, id)| *id).collect();
            page.deleted = self.deleted.iter().filter(|(r, _)| *r > since).map(|(_, id)| *id).collect();
        }
        let mut weight = 0;
        for (changed, item) in items {
            weight += match &item {
                Item::Node(_) => 1,
                Item::Volume(v) => 1 + v.shards.len(),
                Item::Snapshot(s) => 1 + s.shards().count(),
            };
            if weight > limits::PAGE_WEIGHT_MAX {
                page.more = true;
                break;
            }
            page.revision = changed;
            match item {
                Item::Node(n) => page.nodes.push((**n).clone()),
                Item::Volume(v) => page.volumes.push((**v).clone()),
                Item::Snapshot(s) => page.snapshots.push((**s).clone()),
            }
        }
        if !page.more {
            page.revision = self.revision;
        }
        page
    }

    /// Takes a page in, at the watcher's side. Refuses what can't be, and is then as before.
    pub fn take_in(&mut self, page: Changes) -> Result<()> {
        if page.cluster != self.cluster {
            return Err(Error::corrupt("changes of another cluster"));
        }
        page.nodes.iter().try_for_each(Node::check)?;
        page.volumes.iter().try_for_each(Volume::check)?;
        page.snapshots.iter().try_for_each(Snapshot::check)?;
        if self.nodes.len() + page.nodes.len() > 2 * common::NODES_MAX
            || self.volumes.len() + page.volumes.len() > 2 * common::VOLUMES_MAX
            || self.snapshots().len() + page.snapshots.len() > 2 * limits::SNAPSHOTS_TOTAL_MAX
        {
            return Err(Error::corrupt("changes beyond what a cluster can hold"));
        }
        if page.spared_snapshots.0 > limits::NUMBER_MAX {
            return Err(Error::corrupt("changes with a number that no snapshot has"));
        }
        if page.spared_snapshots > self.spared_snapshots() {
            self.snapshots_mut().spare(page.spared_snapshots);
        }
        if let Some((nodes, volumes)) = page.alive {
            let (nodes, volumes): (BTreeSet<_>, BTreeSet<_>) =
                (nodes.into_iter().collect(), volumes.into_iter().collect());
            self.nodes.retain(|id, _| nodes.contains(id));
            let gone: Vec<_> = self.volumes.keys().filter(|id| !volumes.contains(id)).copied().collect();
            gone.into_iter().for_each(|id| self.drop_volume(id));
        }
        if let Some(alive) = page.alive_snapshots {
            self.snapshots_mut().retain(&alive.into_iter().collect());
        }
        for id in page.deleted_snapshots {
            let forgotten = self.snapshots_mut().bury(page.revision, id);
            self.forgotten = self.forgotten.max(forgotten.unwrap_or_default());
        }
        for id in page.deleted {
            self.drop_volume(id);
            if !self.deleted.iter().any(|(_, d)| *d == id) {
                self.bury(id);
            }
        }
        for node in page.nodes {
            self.nodes.insert(node.id, Arc::new(node));
        }
        for volume in page.volumes {
            self.last_volume = self.last_volume.max(volume.id);
            self.put_volume(volume);
        }
        for snapshot in page.snapshots {
            self.snapshots_mut().put(snapshot);
        }
        self.revision = page.revision;
        Ok(())
    }
}
