//! Words that only some of the members may say: one that somebody has taken over must not stop the others, nor cut what they have.
//!
//! A frame that continues a log shows by its token that a head made one like it, whoever passes it on: of what lies behind its checksums
//! only the head could say more, and an audit does. All else here is believed for who says it. Of a newer view than this log's a member
//! may be the head before the control plane has said so here; then this node asks it, but lets nothing go that is committed.

use crate::replica::{Ctx, Replica};
use freebs_format::Frame;
use freebs_format::wire::{HeartbeatItem, SyncMode, SyncReply};
use freebs_io::LinkId;
use freebs_types::{NodeId, Peer, ViewNumber};

impl Replica {
    fn is_head(&self, node: NodeId) -> bool {
        self.view.as_ref().and_then(|v| v.body.members.first()).is_some_and(|m| m.node == node)
    }

    /// A frame that a member sent, or passed on. One that differs from this log's stops the replica (W6) if the head of the view
    /// says it; of anybody else's word the head is asked.
    pub fn hear_frame(&mut self, ctx: &mut Ctx<'_>, from: Peer, frame: Frame) {
        let h = frame.header();
        let is_ours = h.view_number() == self.view_number().max(self.promise()) && self.stopped.is_none();
        let differs = is_ours && self.tail.get(&h.seq()).is_some_and(|k| k.name.hid != h.hid());
        if differs && !self.is_head(from.node) {
            ctx.out.note(format!("shard {}: frame {} of node {} is none of the head's", self.id, h.seq(), from.node));
            self.ask_head(ctx);
            return;
        }
        self.on_frame(ctx, frame);
    }

    /// True if the node may be the head of that view, as far as is known here.
    fn may_lead(&self, node: NodeId, view: ViewNumber) -> bool {
        if view == self.view_number() {
            return self.is_head(node);
        }
        self.info.as_ref().is_some_and(|i| i.members.first() == Some(&node))
    }

    /// The end of the log, as its head says it.
    pub fn hear_heartbeat(&mut self, ctx: &mut Ctx<'_>, from: Peer, item: &HeartbeatItem) {
        if item.view > self.view_number() || self.may_lead(from.node, item.view) {
            self.on_heartbeat(ctx, from, item);
        }
    }

    /// The head wants to be asked.
    pub fn hear_nudge(&mut self, ctx: &mut Ctx<'_>, from: Peer, link: LinkId, view: ViewNumber) {
        if view > self.view_number() || self.may_lead(from.node, view) {
            self.on_nudge(ctx, link, view);
        }
    }

    /// An answer, of the node that was asked.
    pub fn hear_sync_reply(&mut self, ctx: &mut Ctx<'_>, from: Peer, reply: SyncReply) {
        // Frames that are put back, and what is regained of the past, cut nothing: they lie in front of what is committed.
        let is_for_end = self.asking.is_some_and(|a| a.id == reply.id && a.to == from);
        let is_asked = is_for_end || self.damage.is_asked(from, reply.id) || self.regain.is_asked(from, reply.id);
        let cuts = matches!(reply.mode, SyncMode::Frames | SyncMode::Level) && reply.common < self.committed;
        if is_for_end && cuts && !self.may_lead(from.node, reply.view) {
            ctx.out.note(format!("shard {}: node {} does not have what is committed", self.id, from.node));
            self.asking = self.asking.filter(|a| a.id != reply.id);
        } else if is_asked {
            self.on_sync_reply(ctx, reply);
        }
    }
}
