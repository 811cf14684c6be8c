//! Damaged blocks of the own log are asked of the shard's other members, one after the other, as a driver would read
//! them, and given to the log, which takes only what matches the CRCs of its own entries. Blocks that may be history are
//! asked for as they are now and as they were at a version that sees them, by turns; and those that clones may read, of the
//! members of these, too.
//!
//! Invariants: what another member has newer or older than this one never gets into this log by way of mending. That
//! nobody has the blocks of a place is told once, however often the scrub finds them, until they are mended.

use crate::event::{Action, Mended};
use crate::host::Host;
use crate::timing;
use bytes::{Bytes, BytesMut};
use freebs_format::wire::{Message, ReadReply, ReadRequest, Refusal};
use freebs_format::{ExtentKind, Pin};
use freebs_lsvd::DamagedBlocks;
use freebs_types::{BLOCK, BlockRange, Nanos, Peer, Sequence, ShardId, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Damaged blocks that nobody has and that are known to be told.
const HOPELESS_MAX: usize = 4096;
/// Blocks that are asked for at once, each a piece of a few.
const AT_ONCE: usize = 8;
/// How often each member may answer in vain, and how often anybody is asked, before the scrub must find the damage
/// again. Members may be away for a while.
const ANSWERS: usize = 2;
const ASKS: usize = 600;
/// The same if somebody waits for the map, who can't be told of damaged blocks before others were asked.
const ASKS_AWAITED: usize = 30;

#[derive(Clone, Debug)]
struct Want {
    blocks: DamagedBlocks,
    /// Answers in vain.
    tries: usize,
    asks: usize,
    /// The question that is under way.
    asked: Option<Asked>,
    /// Not before this is anybody asked again.
    rest: Nanos,
}

/// A question to a member.
#[derive(Clone, Copy, Debug)]
struct Asked {
    to: Peer,
    at: Nanos,
    read: u64,
    /// The shard of which it is asked for the blocks.
    of: ShardId,
}

/// A shard whose members may have blocks, and the version at which; 0 for the present.
type Source = (ShardId, Version);

/// What is to be mended, by the number that the log gave it.
#[derive(Debug, Default)]
pub(crate) struct Mending {
    wants: BTreeMap<u64, Want>,
    /// Blocks of which it was told that nobody has them: shard, first block, number.
    hopeless: BTreeSet<(ShardId, u32, u32)>,
}

impl Mending {
    pub fn add(&mut self, all: Vec<DamagedBlocks>) {
        for blocks in all {
            self.wants.insert(blocks.id, Want { blocks, tries: 0, asks: 0, asked: None, rest: Nanos(0) });
        }
    }

    pub fn on_mended(&mut self, now: Nanos, id: u64, end: Mended) {
        match end {
            Mended::Done => {
                if let Some(w) = self.wants.remove(&id) {
                    self.hopeless.remove(&name(&w.blocks));
                }
            }
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

    /// Nobody has these blocks; whether that has not been told.
    fn is_news(&mut self, blocks: &DamagedBlocks) -> bool {
        if self.hopeless.len() >= HOPELESS_MAX {
            self.hopeless.clear();
        }
        self.hopeless.insert(name(blocks))
    }

    fn asked_as(&self, from: Peer, read: u64) -> Option<Want> {
        self.wants.values().find(|w| w.asked.is_some_and(|a| (a.to, a.read) == (from, read))).cloned()
    }
}

fn name(blocks: &DamagedBlocks) -> (ShardId, u32, u32) {
    (blocks.shard, blocks.range.start.0, blocks.range.len)
}

impl Host {
    /// Asks for what is due.
    pub(crate) fn mend_tick(&mut self) {
        let now = self.now;
        let late = |w: &Want| w.asked.is_some_and(|a| now.since(a.at) >= timing::MEND_AGAIN);
        let busy = self.mending.wants.values().filter(|w| w.asked.is_some() && !late(w)).count();
        let due = self.mending.wants.values().filter(|w| (w.asked.is_none() && w.rest <= now) || late(w));
        let due: Vec<u64> = due.map(|w| w.blocks.id).take(AT_ONCE.saturating_sub(busy)).collect();
        due.into_iter().for_each(|id| self.ask_for_blocks(id));
    }

    /// Those that may have damaged blocks, in the order in which they are asked: one member after the other, of each source.
    fn sources(&mut self, blocks: &DamagedBlocks) -> Vec<(Source, Peer)> {
        let own = [Some(Version(0)), Some(blocks.seen_at).filter(|v| v.0 > 0)].into_iter().flatten();
        let own = own.map(|v| (blocks.shard, v));
        let forks = blocks.forks.iter().map(|fork| (*fork, Version(0)));
        let of: Vec<(Source, Vec<Peer>)> = own
            .chain(forks)
            .map(|source| (source, self.with(source.0, |r, ctx| r.other_members(ctx)).unwrap_or_default()))
            .collect();
        let most = of.iter().map(|(_, members)| members.len()).max().unwrap_or_default();
        let turn = |n: usize| of.iter().filter_map(move |(source, members)| Some((*source, *members.get(n)?)));
        (0..most).flat_map(turn).collect()
    }

    fn ask_for_blocks(&mut self, id: u64) {
        let Want { blocks, tries, asks, .. } = self.mending.wants[&id].clone();
        let (shard, range) = (blocks.shard, blocks.range);
        if self.with(shard, |r, _| r.view.is_none() && r.info.is_none()) == Some(true) {
            // Nobody has told yet who there is to be asked.
            return self.mending.again(self.now, id, false);
        }
        let sources = self.sources(&blocks);
        let is_awaited = |h: &mut Self, of| h.with(of, |r, ctx| r.damage.is_awaited(ctx.now)) == Some(true);
        let is_awaited = is_awaited(self, shard) || blocks.forks.iter().any(|of| is_awaited(self, *of));
        let most = if is_awaited { ASKS_AWAITED } else { ASKS };
        let is_hopeless = tries >= ANSWERS * sources.len() || asks >= most;
        let asked = if is_hopeless { None } else { self.ask_member(sources[asks % sources.len()], range) };
        let want = self.mending.wants.get_mut(&id).expect("just read");
        want.asks += 1;
        want.asked = asked;
        if want.asked.is_none() {
            self.mending.wants.remove(&id);
            if self.mending.is_news(&blocks) {
                self.out.note(format!(
                    "shard {shard}: nobody has {} blocks at {} that are damaged here",
                    range.len, range.start
                ));
            }
            self.out.actions.push(Action::Unmended { id });
        }
    }

    fn ask_member(&mut self, ((of, version), to): (Source, Peer), range: BlockRange) -> Option<Asked> {
        self.with(of, |r, ctx| {
            let request = ReadRequest {
                shard: of,
                view: r.view_number(),
                generation: r.attach.generation,
                id: ctx.ticket(),
                // A member that lags may still have older data, which match an older entry.
                floor: if version.0 > 0 { Sequence(0) } else { r.committed },
                range,
                status_only: false,
                at: Pin { version, ..Pin::default() },
                since: Pin::default(),
            };
            if let Some(link) = ctx.peers.link(to) {
                ctx.out.send(link, Message::Read(request));
            }
            Asked { to, at: ctx.now, read: request.id, of }
        })
    }

    /// Whether an answer is one to a question of ours; if so the blocks go to the log.
    pub(crate) fn on_mending_reply(&mut self, from: Peer, reply: &ReadReply) {
        let Some(want) = self.mending.asked_as(from, reply.id) else { return };
        match content(reply, want.blocks.range.len) {
            Some(data) if want.asked.is_some_and(|a| a.of == reply.shard) => {
                self.out.actions.push(Action::Mend { blocks: want.blocks, data });
            }
            _ => self.mending.again(self.now, want.blocks.id, true),
        }
    }

    pub(crate) fn on_mending_refused(&mut self, from: Peer, read: u64, reason: Refusal) {
        if let Some(want) = self.mending.asked_as(from, read) {
            // One that does not keep the version may never have it.
            let is_vain = matches!(reason, Refusal::Corrupt | Refusal::NotFound);
            self.mending.again(self.now, want.blocks.id, is_vain);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Branch, Event, HostConfig, ShardInfo, ShardSnapshots};
    use crate::testing::SHARD;
    use freebs_format::wire::Piece;
    use freebs_types::{ClusterId, Generation, Hash32, NodeId, StartNumber, ViewNumber};

    fn host() -> Host {
        Host::new(HostConfig {
            cluster: ClusterId([1; 16]),
            me: Peer { node: NodeId(2), worker: 0 },
            start: StartNumber(1),
            workers: BTreeMap::new(),
            node_secret: Hash32::default(),
            host_key: freebs_secrets::HostKey::new(Hash32([2; 32])),
            early_pause: Nanos(0),
            mutant: None,
        })
    }

    /// Each pass of the scrub finds the same blocks again, and nobody has them: it was told each time.
    #[test]
    fn that_nobody_has_blocks_is_told_once_until_they_are_mended() {
        let (mut host, mut id) = (host(), 0);
        let mut find = |host: &mut Host, at: u32, end: Option<Mended>| {
            id += 1;
            let found =
                DamagedBlocks { id, shard: SHARD, range: BlockRange::new(at, 2), seen_at: Version(0), forks: vec![] };
            host.step(Nanos(id), Event::Damaged(vec![found]));
            end.into_iter().for_each(|end| host.step(Nanos(id), Event::Mended { id, end }));
            host.step(Nanos(id), Event::Tick);
            let actions = host.take_actions();
            let told = actions.iter().filter(|a| matches!(a, Action::Note(n) if n.text.contains("nobody has"))).count();
            let given_up = actions.iter().filter(|a| matches!(a, Action::Unmended { .. })).count();
            (told, given_up)
        };
        assert_eq!(find(&mut host, 5, None), (1, 1));
        assert_eq!(find(&mut host, 5, None), (0, 1), "it was told before");
        assert_eq!(find(&mut host, 9, None), (1, 1), "others were not");
        assert_eq!(find(&mut host, 5, Some(Mended::Done)), (0, 0));
        assert_eq!(find(&mut host, 5, None), (1, 1), "they are damaged anew");
        assert_eq!(find(&mut host, 9, None), (0, 1));
    }

    fn info(shard: ShardId, members: [u64; 2]) -> ShardInfo {
        ShardInfo {
            shard,
            members: members.map(NodeId).to_vec(),
            active: ViewNumber(2),
            known: ViewNumber(2),
            blocks: 1024,
            highest: ViewNumber(2),
            generation: Generation(1),
            has_keys: false,
            joining: Vec::new(),
            standing: Vec::new(),
            view_members: Vec::new(),
            volume: None,
            forced: None,
            branch: Branch::default(),
            snapshots: ShardSnapshots::default(),
            fork: None,
            flatten: false,
        }
    }

    /// A block that nothing but a clone reads was asked of the parent's members alone, as it is there now.
    #[test]
    fn blocks_that_clones_read_are_asked_of_their_members_too() {
        const CLONE: ShardId = ShardId { volume: freebs_types::VolumeId(9), index: 0 };
        let mut host = host();
        host.step(Nanos(1), Event::Shards(vec![info(SHARD, [2, 3]), info(CLONE, [2, 4])]));
        let (range, seen_at) = (BlockRange::new(5, 1), Version(7));
        let found = DamagedBlocks { id: 1, shard: SHARD, range, seen_at, forks: vec![CLONE] };
        host.step(Nanos(2), Event::Damaged(vec![found]));
        host.take_actions();
        let mut asked = Vec::new();
        for turn in 1..20u64 {
            host.step(Nanos(turn * 2 * timing::MEND_AGAIN.0), Event::Tick);
            let Some(a) = host.mending.wants.get(&1).map(|w| w.asked.expect("it was asked for")) else { break };
            asked.push((a.to.node.0, a.of));
            let pieces = vec![Piece { kind: ExtentKind::Data, blocks: 1, changed: false }];
            let data = vec![Bytes::from(vec![turn as u8; BLOCK])];
            host.on_mending_reply(a.to, &ReadReply { shard: a.of, id: a.read, pieces, crcs: vec![], data });
            let mends = host.take_actions().iter().filter(|a| matches!(a, Action::Mend { .. })).count();
            assert_eq!(mends, 1, "the log looks at what came");
            host.step(Nanos(turn), Event::Mended { id: 1, end: Mended::Useless });
        }
        let once = [(3, SHARD), (3, SHARD), (4, CLONE)];
        assert_eq!(asked, [once, once].concat(), "now and then, and in the clone, twice");
        assert!(host.take_actions().iter().any(|a| matches!(a, Action::Unmended { id: 1 })));
    }
}
