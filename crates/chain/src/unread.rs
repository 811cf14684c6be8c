//! Pieces of the map with damaged blocks (design note 36): they are told when the blocks are mended, or when nobody has them.
//!
//! A learner keeps its place meanwhile: it hears nothing, and asks for the same piece again. One that may have it of others
//! is refused, and asks these.

use crate::replica::{Ctx, Replica};
use freebs_format::wire::SyncRequest;
use freebs_io::LinkId;
use freebs_types::{Error, ErrorKind, Sequence};

impl Replica {
    /// A piece of the map can't be told now.
    pub(crate) fn keep_waiting(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: &SyncRequest, why: &Error) {
        ctx.out.note(format!("shard {}: can't send the map: {why}", self.id));
        let is_damaged = why.kind == ErrorKind::Corrupt;
        if is_damaged {
            self.damage.is_asked_for(ctx.now);
        }
        if !is_damaged || r.lost {
            self.refuse_sync(ctx, link, r);
        }
    }

    /// True if the frame behind `common` can't be given as a frame any more, but what is left of it can: it was given up, or
    /// it is committed and has rotted.
    pub(crate) fn leads_to_map(&self, why: &Error, common: Sequence) -> bool {
        let is_committed = common < self.committed.min(self.durable);
        why.kind == ErrorKind::NotFound || (why.kind == ErrorKind::Corrupt && is_committed)
    }
}
