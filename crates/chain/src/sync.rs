//! SYNC (rule E3): who lags names its own last frames and gets what follows the newest common one.
//!
//! The asker always states its own end, so an answer can be late, doubled or lost without harm; what differs behind
//! the common frame is cut before anything is appended.

use crate::event::{Action, SyncSource};
use crate::learn::Learning;
use crate::open::Phase;
use crate::replica::{Ctx, Replica, weight};
use crate::timing;
use freebs_format::Frame;
use freebs_format::wire::{FrameName, MapPoint, Message, SyncMode, SyncReply, SyncRequest};
use freebs_io::LinkId;
use freebs_lsvd::KeptState;
use freebs_types::{ErrorKind, Hash32, Nanos, Peer, Sequence, Version, ViewNumber};

/// Names in one request: the tail is dense, so that the common frame is found exactly.
const NAMES_MAX: usize = 8192;
/// Who has nothing gets the map if there are more frames than these: much of what they brought is written over.
const FRAMES_FEW: u64 = 64;
/// Data bytes in one answer.
pub(crate) const ANSWER_BYTES: usize = 1 << 20;

/// A request of ours that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    pub id: u64,
    pub to: Peer,
    /// The view in whose name we ask: the open one, or the one that this node is opening.
    pub view: ViewNumber,
    pub until: Sequence,
    /// The end of our log when we named it: what was appended since, the answerer could not compare.
    pub named: Sequence,
    pub at: Nanos,
    /// Questions before this one that had no answer in time.
    pub tries: u32,
    /// All of the past is wanted with a map.
    pub past: Version,
    /// Set while the map is learned.
    pub map: Option<Learning>,
}

/// Names without a hash are of frames that the asker knows to be committed, and has lost.
pub(crate) fn is_said_committed(name: &FrameName) -> bool {
    name.hid == Hash32::default()
}

impl Asking {
    fn is_late(&self, now: Nanos) -> bool {
        let holds = self.map.is_some_and(|m| m.hold.is_some());
        !holds && now.since(self.at) >= Nanos(timing::SYNC_AGAIN.0 << self.tries.min(5))
    }
}

impl Replica {
    /// Asks the head of the view for what is missing.
    pub fn ask_head(&mut self, ctx: &mut Ctx<'_>) {
        let Some(head) = self.head_node().filter(|h| *h != ctx.config.me.node) else { return };
        let view = self.view_number().max(self.promise());
        let to = ctx.peer(head, self.id);
        self.ask(ctx, to, view, Sequence(u64::MAX));
    }

    pub fn ask(&mut self, ctx: &mut Ctx<'_>, to: Peer, view: ViewNumber, until: Sequence) {
        let same = |a: &Asking| a.to == to && a.view == view && !a.is_late(ctx.now);
        let is_left = self.info.as_ref().is_some_and(|i| self.is_left_by_force(i, view));
        if self.stopped.is_some() || is_left || self.asking.as_ref().is_some_and(same) {
            return;
        }
        self.request(ctx, to, view, until, None);
    }

    pub fn ask_map(&mut self, ctx: &mut Ctx<'_>, to: Peer, view: ViewNumber, map: Learning) {
        self.request(ctx, to, view, map.upto, Some(map));
    }

    fn request(&mut self, ctx: &mut Ctx<'_>, to: Peer, view: ViewNumber, until: Sequence, map: Option<Learning>) {
        (self.map_end, self.map_piece) = (None, None);
        if map.is_none() {
            // A mark from before may be on its way still, and may be refused.
            self.told_kept = KeptState::default();
        }
        let id = ctx.ticket();
        let tries = self.asking.filter(|a| a.to == to && a.view == view).map_or(0, |a| a.tries + 1);
        let past = map.map_or(self.whole_from, |m| m.past);
        self.asking = Some(Asking { id, to, view, until, named: self.last.sequence, at: ctx.now, tries, past, map });
        // While the own disk is behind, the answer would only be dropped: asked again by `retry_asking`.
        if self.is_stuffed() {
            return;
        }
        let Some(link) = ctx.peers.link(to) else { return };
        let names = self.names();
        let (map_from, map_since) = map.map_or((MapPoint::NONE, Sequence(0)), |m| (m.from, m.since));
        let fetch = self.fetching_for() == Some(view);
        let (shard, lost, lacks) = (self.id, false, self.lacks_some());
        let early = map.is_none() && !fetch && self.would_begin_early(ctx.config.me.node);
        let request =
            SyncRequest { shard, view, id, names, until, map_from, map_since, lost, fetch, past, early, lacks };
        ctx.out.send(link, Message::Sync(request));
    }

    /// The end of this log, newest first. The last name is that of the last committed frame: that one all have in common,
    /// and where it was given up or is lost, its sequence alone says enough. None is of a frame before it, or who has given
    /// up all of them would take that one for all that is in common, and nothing that is committed is ever cut.
    pub(crate) fn names(&self) -> Vec<FrameName> {
        let open = self.tail.range(self.committed..).rev();
        let mut names: Vec<FrameName> = open.take(NAMES_MAX - 1).map(|(_, t)| t.name).collect();
        if names.last().is_none_or(|n| n.sequence > self.committed) {
            names.push(FrameName { sequence: self.committed, ..FrameName::default() });
        }
        names
    }

    pub fn retry_asking(&mut self, ctx: &mut Ctx<'_>) {
        if let Some(a) = self.asking.filter(|a| a.is_late(ctx.now)) {
            self.request(ctx, a.to, a.view, a.until, a.map);
        }
    }

    /// Another member asks. As head: in the open view. As anyone: for the head of a view that this log promised, and up to a
    /// named end in the view that this log is in.
    pub fn on_sync(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: SyncRequest) {
        if r.lost {
            self.feed_lost(ctx, link, r);
            return;
        }
        let as_head = r.view == self.view_number() && self.is_open_head();
        let has_promised = r.view == self.promised && self.promising.is_none();
        // The head of the view may lack what it once had: it asks its members, who need not have promised the view.
        let as_member = r.view == self.view_number() && !r.map_from.is_some() && self.serves();
        let to_the_end = r.until.0 == u64::MAX;
        if self.stopped.is_some() || !(as_head || (!to_the_end && (has_promised || as_member))) {
            self.refuse_sync(ctx, link, &r);
            return;
        }
        if as_head && self.puts_off_early(ctx, link, &r) {
            self.refuse_sync(ctx, link, &r);
            return;
        }
        if r.map_from.is_some() {
            let since = r.map_since;
            self.feed_by_map(ctx, link, r, since);
            return;
        }
        let mut known = None;
        for n in r.names.iter().filter(|n| n.sequence <= self.last.sequence) {
            let own = self.tail.get(&n.sequence).map(|t| t.name.hid);
            if own == Some(n.hid) || n.sequence.0 == 0 || (is_said_committed(n) && n.sequence <= self.committed) {
                known = Some(n.sequence);
            }
            if known.is_some() || own.is_none() {
                break;
            }
        }
        let is_blank = known == Some(Sequence(0)) && r.until.0 == u64::MAX;
        if is_blank && self.committed.0 > FRAMES_FEW && self.is_active_head() {
            self.feed_by_map(ctx, link, r, Sequence(0));
            return;
        }
        match known {
            Some(common) if common >= self.durable => {
                self.answer_sync(ctx, link, &r, SyncSource { common, frames: Ok(Vec::new()) });
            }
            known_common => ctx.out.actions.push(Action::SyncRead { link, request: r, known_common }),
        }
    }

    pub fn refuse_sync(&self, ctx: &mut Ctx<'_>, link: LinkId, r: &SyncRequest) {
        ctx.out.send(link, Message::SyncReply(SyncReply::refused(r)));
    }

    /// Completes an answer: frames from the log, then those that are not durable here yet. If that reaches the end,
    /// the asker is level, and gets every later frame from its head as it is made.
    pub fn answer_sync(&mut self, ctx: &mut Ctx<'_>, link: LinkId, r: &SyncRequest, source: SyncSource) {
        let mut frames = match source.frames {
            Ok(f) => f,
            Err(e) if e.kind == ErrorKind::NotFound && (r.until.0 == u64::MAX || r.fetch) => {
                self.feed_by_map(ctx, link, r.clone(), source.common);
                return;
            }
            Err(e) => {
                ctx.out.note(format!("shard {}: can't feed a member from {}: {e}", self.id, source.common));
                let first = source.common.next();
                // Entries that a committed frame brought, and that are still in force, can be given without it.
                if e.kind == ErrorKind::Corrupt && first <= self.committed && (r.until.0 == u64::MAX || r.fetch) {
                    self.feed_by_map(ctx, link, r.clone(), source.common);
                    return;
                }
                self.refuse_sync(ctx, link, r);
                if e.kind == ErrorKind::Corrupt {
                    self.lost_frame(ctx, first);
                }
                return;
            }
        };
        // The log may have been cut since these frames were read.
        frames.retain(|f| self.tail.get(&f.head.seq()).is_none_or(|t| t.name.hid == f.header().hid()));
        let mut at = frames.last().map_or(source.common, |f| f.head.seq());
        // Heads count, too: many trims are small in data and large in heads.
        let weight = |f: &Frame| f.data_bytes() + f.head.bytes().len();
        let mut bytes: usize = frames.iter().map(weight).sum();
        for f in &self.recent {
            if f.head.seq() == at.next() && bytes < ANSWER_BYTES {
                at = f.head.seq();
                bytes += weight(f);
                frames.push(f.clone());
            }
        }
        frames.retain(|f| f.head.seq() <= r.until);
        // A hole is filled with what is committed. What is not may be of another branch than the asker's log, who finds
        // that out if he gets all of it at once.
        if r.until.0 < u64::MAX && !r.fetch && at < r.until {
            frames.retain(|f| f.head.seq() <= self.committed.min(self.durable));
            if frames.is_empty() {
                self.refuse_sync(ctx, link, r);
                return;
            }
        }
        let end = self.last.sequence.min(r.until);
        let level = at >= end;
        let reply = SyncReply {
            shard: self.id,
            view: r.view,
            id: r.id,
            mode: if level { SyncMode::Level } else { SyncMode::Frames },
            common: source.common,
            map_next: MapPoint::NONE,
            frames,
        };
        ctx.out.send(link, Message::SyncReply(reply));
        // Who mends a hole asks up to its end only, and may lack what is behind.
        if level && r.view == self.view_number() && r.until.0 == u64::MAX {
            self.member_is_level(ctx, link, r.lacks);
        }
    }

    pub fn on_sync_reply(&mut self, ctx: &mut Ctx<'_>, reply: SyncReply) {
        if self.take_repairs(ctx, &reply) || self.take_regained(ctx, &reply) {
            return;
        }
        let Some(asking) = self.asking.filter(|a| a.id == reply.id && a.view == reply.view) else { return };
        if self.promise() > asking.view || self.stopped.is_some() {
            self.asking = None;
            return;
        }
        // One answer to a question: while what it brought is on its way to the disk, nothing is asked.
        if asking.map.is_some_and(|m| m.hold.is_some()) {
            return;
        }
        match reply.mode {
            SyncMode::Frames | SyncMode::Level => {}
            SyncMode::Map | SyncMode::MapEnd => return self.on_map_reply(ctx, asking, reply),
            SyncMode::State => return self.on_state_reply(ctx, asking, &reply),
            // Asked again after a while by `retry_asking`; for a map from its beginning, because the state that it
            // was to end with may be forgotten.
            SyncMode::Refused => {
                let until = self.wanted_until();
                if let Some(a) = self.asking.as_mut().filter(|a| a.map.is_some()) {
                    (a.map, a.until) = (None, until);
                }
                return;
            }
        }
        // Live frames may have come since we asked, and they may be committed by now: only a common frame below what
        // we named says that our log differs.
        if reply.common < asking.named.min(self.last.sequence) {
            self.cut(ctx, reply.common);
        }
        let mut took = true;
        for f in reply.frames {
            if f.head.seq() > self.last.sequence && !self.may_take(ctx, &f) {
                // Asked again when the disk has caught up, or there is room.
                let is_full = !self.is_stuffed() && !ctx.more_soon;
                self.is_full |= is_full;
                self.asking = None;
                if is_full {
                    self.has_no_room_to_fetch(ctx);
                }
                return;
            }
            took = took && self.on_synced_frame(ctx, f, asking.view);
            self.fetch_gets_on(ctx.now);
        }
        self.asking = None;
        if self.stopped.is_some() || !took {
            return;
        }
        if reply.mode == SyncMode::Frames {
            self.ask(ctx, asking.to, asking.view, asking.until);
            return;
        }
        self.is_full = false;
        self.drop_stale_gap();
        self.trust_tail(ctx);
        // Nothing may have been missing: then no append will tell the head how far this log is.
        self.answer_durable(ctx);
        if self.fetching_for().is_some() {
            self.on_fetched(ctx);
        }
        let waiting: Vec<Frame> = std::mem::take(&mut self.gap).into_values().collect();
        self.gap_bytes = 0;
        for f in waiting {
            self.on_frame(ctx, f);
        }
    }

    fn drop_stale_gap(&mut self) {
        let (last, view) = (self.last.sequence, self.view_number());
        self.gap.retain(|s, f| *s > last && f.head.view() == view);
        self.gap_bytes = self.gap.values().map(weight).sum();
    }

    /// Frames behind the end of the longest log of the predecessor are not fetched for a new view.
    pub(crate) fn wanted_until(&self) -> Sequence {
        match self.head.as_ref().map(|h| &h.phase) {
            Some(Phase::Fetching { seal, .. }) => seal.sequence,
            _ => Sequence(u64::MAX),
        }
    }

    /// The view that this node is opening and fetches a longer log for.
    fn fetching_for(&self) -> Option<ViewNumber> {
        match self.head.as_ref().map(|h| &h.phase) {
            Some(Phase::Fetching { view, .. }) => Some(*view),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peers;
    use crate::repair::{Damage, Hole};
    use crate::testing::{SHARD, appends, frames, map_end, reply, step, step_at};
    use freebs_types::NodeId;

    /// A member asked at frame 3. Before the answer came the head had fed it 4 and 5 and called them committed; the
    /// answer, made at 4, knew only of 3. The member took it for an order to cut behind 3, which is committed, and
    /// stopped for good.
    #[test]
    fn frames_that_overtake_an_answer_are_not_cut() {
        let mut r = Replica::empty(SHARD);
        let all = frames(5, 4);
        step(&mut r, |r, ctx| {
            for f in &all[..3] {
                assert!(r.on_synced_frame(ctx, f.clone(), ViewNumber(1)));
            }
            r.ask(ctx, Peer { node: NodeId(1), worker: 0 }, ViewNumber(1), Sequence(u64::MAX));
            r.on_frame(ctx, all[3].clone());
            r.on_frame(ctx, all[4].clone());
            assert_eq!(r.committed, Sequence(4));
            r.on_sync_reply(ctx, reply(3, SyncMode::Level, vec![all[3].clone()]));
        });
        assert_eq!(r.stopped, None);
        assert_eq!(r.last.sequence, Sequence(5));
        assert!(r.asking.is_none());
    }

    /// A member named frames 3 to 5, of which 3 was committed. Before the map came, the head, that had given all of them up,
    /// called 5 committed. The member took the map from 3 on for an order to cut behind 3, and stopped for good.
    #[test]
    fn frames_that_are_committed_before_the_map_comes_are_not_cut() {
        let mut r = Replica::empty(SHARD);
        let all = frames(7, 3);
        step(&mut r, |r, ctx| {
            for f in &all[..5] {
                assert!(r.on_synced_frame(ctx, f.clone(), ViewNumber(1)));
            }
            r.ask(ctx, Peer { node: NodeId(1), worker: 0 }, ViewNumber(1), Sequence(u64::MAX));
            assert_eq!(r.names().last().map(|n| n.sequence), Some(Sequence(3)));
            r.note_committed(ctx, Sequence(5));
            ctx.out.actions.clear();
            r.on_sync_reply(ctx, map_end(3, &all[6], &all[0].head));
            assert_eq!(appends(&ctx.out.actions), ["base"]);
        });
        assert_eq!(r.stopped, None);
        assert_eq!((r.last.sequence, r.committed), (Sequence(7), Sequence(7)));
    }

    /// Members that had given the lost frames up were asked for them at every tick, and each time logged that.
    #[test]
    fn lost_frames_that_nobody_has_are_asked_for_now_and_then() {
        let mut r = Replica::empty(SHARD);
        let all = frames(5, 4);
        let mut peers = Peers::default();
        peers.up(LinkId(1), Peer { node: NodeId(1), worker: 0 }, Nanos(0));
        let mut tickets = 7;
        let (mut asked, mut notes) = (Vec::new(), 0);
        step(&mut r, |r, ctx| assert!(all.iter().all(|f| r.on_synced_frame(ctx, f.clone(), ViewNumber(1)))));
        let before = crate::replica::genesis();
        r.damage = Damage::new(vec![Hole { before, until: Sequence(2), end: None }], false);
        for ms in (1000..21_000).step_by(20) {
            step_at(Nanos::from_millis(ms), &peers, &mut tickets, &mut r, |r, ctx| {
                r.repair_tick(ctx);
                let sent = std::mem::take(&mut ctx.out.actions);
                let requests = sent.into_iter().filter_map(|a| match a {
                    Action::Send { message: Message::Sync(q), .. } => Some(q),
                    _ => None,
                });
                for q in requests {
                    // What is left of them nobody has, either.
                    if q.lost {
                        assert_eq!((q.map_since, q.until), (Sequence(0), Sequence(2)));
                        r.on_sync_reply(ctx, SyncReply { id: q.id, ..reply(0, SyncMode::Refused, Vec::new()) });
                        continue;
                    }
                    asked.push(ms);
                    // The last one is told that the frames are there again.
                    let mode = if asked.len() < 6 { SyncMode::Refused } else { SyncMode::Frames };
                    let frames = if asked.len() < 6 { Vec::new() } else { all[..2].to_vec() };
                    r.on_sync_reply(ctx, SyncReply { id: q.id, ..reply(0, mode, frames) });
                }
                let is_note = |a: &&Action| matches!(a, Action::Note(n) if n.text.contains("no member"));
                notes += ctx.out.actions.iter().filter(is_note).count();
            });
        }
        let pauses: Vec<u64> = asked.windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(pauses, [520, 1020, 2020, 4020, 4020]);
        assert_eq!(notes, 1);
        assert!(r.damage.is_there(), "only what is durable counts");
        step(&mut r, |r, ctx| r.on_repair_durable(ctx, Sequence(2)));
        assert!(!r.damage.is_there(), "they are put back as soon as somebody has them");
    }

    #[test]
    fn what_differs_from_the_answer_is_cut() {
        let mut r = Replica::empty(SHARD);
        let all = frames(5, 2);
        step(&mut r, |r, ctx| {
            for f in &all {
                assert!(r.on_synced_frame(ctx, f.clone(), ViewNumber(1)));
            }
            r.ask(ctx, Peer { node: NodeId(1), worker: 0 }, ViewNumber(1), Sequence(u64::MAX));
            r.on_sync_reply(ctx, reply(3, SyncMode::Level, vec![]));
        });
        assert_eq!(r.stopped, None);
        assert_eq!(r.last.sequence, Sequence(3));
    }
}
