//! Pieces of the map with damaged blocks (design note 36): they are told when the blocks are mended, or when nobody has them.
//!
//! A learner keeps its place meanwhile: it hears nothing, and asks for the same piece again. One that may have it of others
//! is refused, and asks these.

use crate::replica::{Ctx, Replica};
use freebs_format::wire::SyncRequest;
use freebs_io::LinkId;
use freebs_types::{Error, ErrorKind};

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
}
