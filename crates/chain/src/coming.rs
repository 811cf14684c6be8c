//! Members that come to a view beside those that it has, all of which stay: they learn everything in the view that is active,
//! and then the next one follows, with them in it. So nothing stands still for the hours that learning may take.
//!
//! Invariants: a node that is to come answers nothing in a view that it is no member of, and counts for nothing; it takes
//! that view's frames only if the control plane names it as a member of the next one.

use crate::event::ShardInfo;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::wire::Message;
use freebs_io::LinkId;
use freebs_types::{Nanos, NodeId, ViewNumber};
use std::collections::BTreeMap;

/// The head's knowledge of those that are to come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coming {
    /// They had everything at this time, and their links have held since. It counts for a while: they get nothing by themselves.
    level: BTreeMap<NodeId, Nanos>,
    /// When the others were last invited.
    invited: Nanos,
}

impl ShardInfo {
    /// Nodes that come to the members of the active view; none if any of these leaves.
    fn coming(&self) -> Vec<NodeId> {
        let is_new = |n: &&NodeId| !self.view_members.contains(n) && self.joining.contains(n);
        let new: Vec<NodeId> = self.members.iter().filter(is_new).copied().collect();
        let stays = self.view_members.iter().all(|n| self.members.contains(n));
        let grows = stays && self.members.len() == self.view_members.len() + new.len();
        if grows { new } else { Vec::new() }
    }
}

impl Replica {
    /// True if others are to come to the view that this head has, and have not everything yet. They are invited.
    pub(crate) fn waits_for_coming(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Some(info) = self.info.as_ref().filter(|i| i.active == self.view_number()) else { return false };
        let coming = info.coming();
        let (view, now) = (self.view_number(), ctx.now);
        let Some(h) = self.head.as_mut() else { return false };
        h.coming.level.retain(|n, at| coming.contains(n) && now.since(*at) < timing::LEVEL_COUNTS);
        let late: Vec<NodeId> = coming.into_iter().filter(|n| !h.coming.level.contains_key(n)).collect();
        if !late.is_empty() && (h.coming.invited == Nanos(0) || now.since(h.coming.invited) >= timing::NUDGE_EVERY) {
            h.coming.invited = now;
            let links: Vec<LinkId> = late.iter().filter_map(|n| ctx.peers.link(ctx.peer(*n, self.id))).collect();
            links.into_iter().for_each(|link| ctx.out.send(link, Message::Nudge { shard: self.id, view }));
        }
        !late.is_empty()
    }

    /// A node that is no member of the view has everything in it by now.
    pub(crate) fn coming_is_level(&mut self, now: Nanos, node: NodeId) {
        let comes = self.info.as_ref().is_some_and(|i| i.coming().contains(&node));
        if let Some(h) = self.head.as_mut().filter(|_| comes) {
            h.coming.level.insert(node, now);
        }
    }

    /// The frames that a node lacks that could not be reached for a while is not known.
    pub(crate) fn coming_is_away(&mut self, node: NodeId) {
        if let Some(h) = self.head.as_mut() {
            h.coming.level.remove(&node);
        }
    }

    /// True if this node is to come to that view, which is active.
    pub(crate) fn comes_to(&self, view: ViewNumber, me: NodeId) -> bool {
        self.info.as_ref().is_some_and(|i| view <= i.known && i.coming().contains(&me))
    }
}
