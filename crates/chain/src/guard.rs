//! Words that only some of the members may say: one that somebody has taken over must not stop the others, nor cut what they have.
//!
//! A frame that continues a log shows by its token that a head made it, whoever passes it on. All else here is believed for who
//! says it.

use crate::replica::{Ctx, Replica};
use freebs_format::Frame;
use freebs_format::wire::{HeartbeatItem, SyncReply};
use freebs_types::{NodeId, Peer};

impl Replica {
    fn is_head(&self, node: NodeId) -> bool {
        self.view.as_ref().and_then(|v| v.body.members.first()).is_some_and(|m| m.node == node)
    }

    /// A frame that a member sent, or passed on. One that differs from this log's stops the replica (W6) if the head of the view
    /// says it; of anybody else's word the head is asked.
    pub fn hear_frame(&mut self, ctx: &mut Ctx<'_>, from: Peer, frame: Frame) {
        let h = frame.header();
        let is_ours = h.view_number() == self.view_number() && self.stopped.is_none();
        let differs = is_ours && self.tail.get(&h.seq()).is_some_and(|k| k.name.hid != h.hid());
        if differs && !self.is_head(from.node) {
            ctx.out.note(format!("shard {}: frame {} of node {} is none of the head's", self.id, h.seq(), from.node));
            self.ask_head(ctx);
            return;
        }
        self.on_frame(ctx, frame);
    }

    /// The end of the log, as its head says it; a member of another view says only that there is one.
    pub fn hear_heartbeat(&mut self, ctx: &mut Ctx<'_>, from: Peer, item: &HeartbeatItem) {
        if item.view != self.view_number() || self.is_head(from.node) {
            self.on_heartbeat(ctx, from, item);
        }
    }

    /// An answer, of the node that was asked.
    pub fn hear_sync_reply(&mut self, ctx: &mut Ctx<'_>, from: Peer, reply: SyncReply) {
        let is_asked = self.asking.is_some_and(|a| a.id == reply.id && a.to == from)
            || self.damage.is_asked(from, reply.id)
            || self.regain.is_asked(from, reply.id);
        if is_asked {
            self.on_sync_reply(ctx, reply);
        }
    }
}
