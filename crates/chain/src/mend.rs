//! Damaged blocks of the own log are asked of the shard's other members, one after the other, as a driver would read
//! them, and given to the log, which takes only what matches the CRCs of its own entries.
//!
//! Invariant: what another member has newer or older than this one never gets into this log by way of mending.

use crate::event::{Action, Mended};
use crate::host::Host;
use crate::timing;
use bytes::{Bytes, BytesMut};
use freebs_format::ExtentKind;
use freebs_format::wire::{Message, ReadReply, ReadRequest, Refusal};
use freebs_lsvd::DamagedBlocks;
use freebs_types::{BLOCK, Nanos, Peer};
use std::collections::BTreeMap;

/// Blocks that are asked for at once, each a piece of a few.
const AT_ONCE: usize = 8;
/// How often each member may answer in vain, and how often anybody is asked, before the scrub must find the damage
/// again. Members may be away for a while.
const ANSWERS: usize = 2;
const ASKS: usize = 600;

#[derive(Clone, Copy, Debug)]
struct Want {
    blocks: DamagedBlocks,
    /// Answers in vain.
    tries: usize,
    asks: usize,
    /// Whom, when, and under which number.
    asked: Option<(Peer, Nanos, u64)>,
    /// Not before this is anybody asked again.
    rest: Nanos,
}

/// What is to be mended, by the number that the log gave it.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    wants: BTreeMap<u64, Want>,
}

impl Mending {
    pub fn add(&mut self, all: Vec<DamagedBlocks>) {
        for blocks in all {
            self.wants.insert(blocks.id, Want { blocks, tries: 0, asks: 0, asked: None, rest: Nanos(0) });
        }
    }

    pub fn on_mended(&mut self, now: Nanos, id: u64, end: Mended) {
        match end {
            Mended::Done => drop(self.wants.remove(&id)),
            Mended::Useless => self.again(now, id, true),
            Mended::Later => self.again(now, id, false),
        }
    }

    /// The next member is asked after a moment.
    fn again(&mut self, now: Nanos, id: u64, in_vain: bool) {
        if let Some(w) = self.wants.get_mut(&id) {
            (w.asked, w.rest) = (None, Nanos(now.0 + timing::MEND_AGAIN.0));
            w.tries += usize::from(in_vain);
        }
    }

    fn asked_as(&self, from: Peer, read: u64) -> Option<Want> {
        self.wants.values().find(|w| w.asked.is_some_and(|(p, _, id)| (p, id) == (from, read))).copied()
    }
}

impl Host {
    /// Asks for what is due.
    pub(crate) fn mend_tick(&mut self) {
        let now = self.now;
        let late = |w: &Want| w.asked.is_some_and(|(_, at, _)| now.since(at) >= timing::MEND_AGAIN);
        let busy = self.mending.wants.values().filter(|w| w.asked.is_some() && !late(w)).count();
        let due = self.mending.wants.values().filter(|w| (w.asked.is_none() && w.rest <= now) || late(w));
        let due: Vec<u64> = due.map(|w| w.blocks.id).take(AT_ONCE.saturating_sub(busy)).collect();
        due.into_iter().for_each(|id| self.ask_for_blocks(id));
    }

    fn ask_for_blocks(&mut self, id: u64) {
        let want = self.mending.wants[&id];
        let DamagedBlocks { shard, range, .. } = want.blocks;
        let asked = self.with(shard, |r, ctx| {
            let me = ctx.config.me.node;
            let view = r.view.as_ref()?;
            let others: Vec<Peer> =
                view.body.members.iter().filter(|m| m.node != me).map(|m| ctx.peer(m.node, shard)).collect();
            if want.tries >= ANSWERS * others.len() || want.asks >= ASKS {
                return None;
            }
            let to = others[want.asks % others.len()];
            let request = ReadRequest {
                shard,
                view: r.view_number(),
                generation: r.attach.generation,
                id: ctx.ticket(),
                // A member that lags may still have older data, which match an older entry.
                floor: r.committed,
                range,
                status_only: false,
            };
            if let Some(link) = ctx.peers.link(to) {
                ctx.out.send(link, Message::Read(request));
            }
            Some((to, ctx.now, request.id))
        });
        let want = self.mending.wants.get_mut(&id).expect("just read");
        want.asks += 1;
        want.asked = asked.flatten();
        if want.asked.is_none() {
            self.mending.wants.remove(&id);
            self.out.note(format!(
                "shard {shard}: nobody has {} blocks at {} that are damaged here",
                range.len, range.start
            ));
            self.out.actions.push(Action::Unmended { id });
        }
    }

    /// Whether an answer is one to a question of ours; if so the blocks go to the log.
    pub(crate) fn on_mending_reply(&mut self, from: Peer, reply: &ReadReply) {
        let Some(want) = self.mending.asked_as(from, reply.id) else { return };
        match content(reply, want.blocks.range.len) {
            Some(data) if reply.shard == want.blocks.shard => {
                self.out.actions.push(Action::Mend { blocks: want.blocks, data });
            }
            _ => self.mending.again(self.now, want.blocks.id, true),
        }
    }

    pub(crate) fn on_mending_refused(&mut self, from: Peer, read: u64, reason: Refusal) {
        if let Some(want) = self.mending.asked_as(from, read) {
            self.mending.again(self.now, want.blocks.id, reason == Refusal::Corrupt);
        }
    }
}

/// The blocks of an answer one behind the other; what is no data there is zeroes here, and matches nothing.
fn content(reply: &ReadReply, blocks: u32) -> Option<Bytes> {
    let sum: u64 = reply.pieces.iter().map(|p| u64::from(p.blocks)).sum();
    if sum != u64::from(blocks) {
        return None;
    }
    let mut out = BytesMut::with_capacity(blocks as usize * BLOCK);
    let mut data = reply.data.iter().flat_map(|d| d.chunks_exact(BLOCK));
    for p in &reply.pieces {
        for _ in 0..p.blocks {
            match p.kind {
                ExtentKind::Data => out.extend_from_slice(data.next()?),
                _ => out.resize(out.len() + BLOCK, 0),
            }
        }
    }
    Some(out.freeze())
}
