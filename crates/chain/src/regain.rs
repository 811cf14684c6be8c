//! History that a log lacks is had of another member: all of the past, piece by piece, beside everything else (design
//! note 33).
//!
//! Invariants:
//! - What the teller keeps is in force here before any piece is taken, and a piece is of a log that knows as committed
//!   what is committed here by then. So what a version needs is told, or is not let go of here any more.
//! - Only the mark at the end says that history is whole, and it is written when the last piece is durable. It says so of what
//!   was missing when the teller's pins came into force: what was missed since is had once more.
//! - Only a refusal says that a member has no more. Silence does not, and takes nothing away of what was had: the same piece is
//!   asked for again.
//! - One shard of a worker at a time.

use crate::event::{Action, NoteKind};
use crate::relearn::newer;
use crate::replica::{Ctx, Replica};
use crate::timing;
use freebs_format::wire::{MapPoint, Message, SyncMode, SyncReply, SyncRequest};
use freebs_io::LinkId;
use freebs_lsvd::{EventKind, KeptState, MarkChange, Record};
use freebs_types::{Nanos, Peer, Sequence, Version, ViewNumber};

/// A question that has no answer yet.
#[derive(Clone, Copy, Debug)]
struct Question {
    id: u64,
    to: Option<Peer>,
    view: ViewNumber,
    at: Nanos,
}

/// Where a transfer stands.
#[derive(Clone, Debug)]
struct Fetching {
    /// The teller knows at least this as committed.
    until: Sequence,
    from: MapPoint,
    /// Where the piece began that was taken last.
    piece: MapPoint,
    /// The piece or mark that is on its way to the disk; nothing is asked for meanwhile.
    writing: Option<u64>,
    /// The teller's pins and window are in force.
    is_told: bool,
    /// History was not whole below this version then.
    past: Version,
    /// Below this version no teller of a piece had all that it kept.
    whole_from: Version,
    /// The versions that the teller keeps that knew most frames as committed: what that one had given up it did not tell.
    kept: KeptState,
    /// The last piece is on its way.
    is_last: bool,
    /// The mark at the end is on its way.
    is_end: bool,
}

/// The state of having the past from others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Regain {
    asked: Option<Question>,
    fetching: Option<Fetching>,
    /// Which one of the others is asked: the same for as long as it answers.
    turn: usize,
    /// Questions since the last answer that brought something, and how many of them were refused.
    in_vain: usize,
    refused: usize,
    /// It was told that nobody has more.
    is_told: bool,
    /// Answers that came too late or never, one less for each that came: so many times twice as long is waited for the next.
    late: u32,
    rest_until: Nanos,
}

impl Regain {
    /// A question has no answer yet, or something is on its way to the disk.
    pub fn is_at_work(&self, now: Nanos) -> bool {
        let patience = Nanos(timing::PAST_AGAIN.0 << self.late);
        let asked = self.asked.is_some_and(|a| now.since(a.at) < patience);
        asked || self.fetching.as_ref().is_some_and(|f| f.writing.is_some())
    }
}

impl Regain {
    /// True if this node was put that question.
    pub fn is_asked(&self, peer: Peer, id: u64) -> bool {
        self.asked.is_some_and(|q| q.id == id && q.to == Some(peer))
    }
}

impl Replica {
    /// Asks another member for a piece of the past, if history is not whole here.
    pub fn regain_tick(&mut self, ctx: &mut Ctx<'_>) {
        if self.whole_from == Version(0) {
            self.regain = Regain::default();
            return;
        }
        if self.damage.is_there() {
            // Frames that are put back may pin versions of before, and the pieces so far were chosen without these.
            self.regain.fetching = None;
        }
        // A map, or frames, that are learned come first; and a log with holes does not know yet what it lacks.
        let is_level = self.asking.is_none() && !self.damage.is_there() && !self.lacks_some() && self.stopped.is_none();
        if !is_level || self.regain.is_at_work(ctx.now) || !self.has_room_for_piece(ctx) || self.view.is_none() {
            return;
        }
        if self.regain.asked.take().is_some() {
            self.regain.late = (self.regain.late + 1).min(timing::PAST_LATE_MAX);
            self.regain_not_had(ctx, false);
        }
        let others = self.past_tellers(ctx);
        if others.is_empty() || ctx.now < self.regain.rest_until {
            return;
        }
        let link = others[self.regain.turn % others.len()];
        let until = self.committed.min(self.durable);
        let fresh = Fetching {
            until,
            from: MapPoint::BEGIN,
            piece: MapPoint::BEGIN,
            writing: None,
            is_told: false,
            past: Version(0),
            whole_from: Version(0),
            kept: KeptState::default(),
            is_last: false,
            is_end: false,
        };
        let fetching = self.regain.fetching.get_or_insert(fresh);
        let (until, map_from) = (fetching.until, fetching.from);
        let view = self.view_number().max(self.promise());
        let (id, shard) = (ctx.ticket(), self.id);
        self.regain.asked = Some(Question { id, to: ctx.peers.owner(link), view, at: ctx.now });
        let (names, past) = (Vec::new(), self.whole_from);
        let request = SyncRequest {
            early: false,
            lacks: false,
            shard,
            view,
            id,
            names,
            until,
            map_from,
            map_since: until,
            lost: true,
            fetch: false,
            past,
        };
        ctx.out.send(link, Message::Sync(request));
    }

    /// Links to the other members that are there.
    fn past_tellers(&self, ctx: &Ctx<'_>) -> Vec<LinkId> {
        self.other_members(ctx).into_iter().filter_map(|to| ctx.peers.link(to)).collect()
    }

    /// The member that was asked has nothing, or was silent. When all have refused there is a pause.
    fn regain_not_had(&mut self, ctx: &mut Ctx<'_>, is_refused: bool) {
        let others = self.past_tellers(ctx).len().max(1);
        let r = &mut self.regain;
        (r.turn, r.in_vain, r.refused) = ((r.turn + 1) % others, r.in_vain + 1, r.refused + usize::from(is_refused));
        if r.in_vain < others {
            return;
        }
        let have_all = r.refused == r.in_vain;
        (r.in_vain, r.refused) = (0, 0);
        if !have_all {
            return;
        }
        r.rest_until = ctx.now.plus(timing::PAST_PAUSE);
        if !std::mem::replace(&mut r.is_told, true) {
            let from = self.whole_from;
            let text = format!("history is not whole below version {from}, and no member has more of it");
            ctx.out.tell(NoteKind::Log(EventKind::Damage), self.id, &text);
        }
    }

    /// True if the answer is one to a question for the past; then what it brings goes into the log.
    pub fn take_regained(&mut self, ctx: &mut Ctx<'_>, reply: &SyncReply) -> bool {
        if self.regain.asked.is_none_or(|a| (a.id, a.view) != (reply.id, reply.view)) {
            return false;
        }
        self.regain.asked = None;
        let Some(mut f) = self.regain.fetching.take() else { return true };
        let is_piece = matches!(reply.mode, SyncMode::Map | SyncMode::MapEnd);
        let carry = reply.frames.first().filter(|c| is_piece && c.head.seq() == f.until && c.head.shard() == self.id);
        let Some((carry, kept)) = carry.and_then(|c| Some((c, self.kept_with(ctx, reply)?))) else {
            self.regain.fetching = Some(f);
            self.regain_not_had(ctx, true);
            return true;
        };
        f.whole_from = f.whole_from.max(kept.whole_from);
        f.kept = newer(Some(f.kept), kept);
        if !f.is_told {
            // The piece is asked for again, of a log that knows what is committed here when this is in force.
            f.writing = Some(self.say_kept(ctx, f.kept.clone()));
        } else {
            let Some(ticket) = self.take_carry(ctx, carry, false) else {
                self.regain.fetching = Some(f);
                self.regain_not_had(ctx, true);
                return true;
            };
            (f.piece, f.from, f.writing) = (f.from, reply.map_next, ticket);
            f.is_last = reply.mode == SyncMode::MapEnd;
        }
        let r = &mut self.regain;
        (r.in_vain, r.refused, r.is_told, r.late) = (0, 0, false, r.late.saturating_sub(1));
        let is_written = f.writing.is_none();
        self.regain.fetching = Some(f);
        if is_written {
            self.regain_goes_on(ctx);
        }
        true
    }

    fn say_kept(&mut self, ctx: &mut Ctx<'_>, kept: KeptState) -> u64 {
        let ticket = ctx.ticket();
        let change = MarkChange { kept: Some(Box::new(kept)), ..MarkChange::default() };
        ctx.out.actions.push(Action::Append(Record::Mark { shard: self.id, change, ticket }));
        ticket
    }

    /// Nothing of it is on its way to the disk any more.
    fn regain_goes_on(&mut self, ctx: &mut Ctx<'_>) {
        let Some(mut f) = self.regain.fetching.take() else { return };
        if std::mem::take(&mut f.is_last) {
            let kept = KeptState { whole_from: f.whole_from, past: f.past, ..f.kept.clone() };
            (f.writing, f.is_end) = (Some(self.say_kept(ctx, kept)), true);
        }
        self.regain.fetching = Some(f);
        self.regain_tick(ctx);
    }

    /// A piece of the past, or a mark beside it, is durable.
    pub fn on_regained_durable(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        let committed = self.committed.min(self.durable);
        let Some(f) = self.regain.fetching.as_mut().filter(|f| f.writing == Some(ticket)) else { return };
        f.writing = None;
        if f.is_end {
            self.regain.fetching = None;
            let text = match self.whole_from {
                Version(0) => "history is whole again".to_owned(),
                from => format!("history is whole from version {from} on; no member has more of it"),
            };
            ctx.out.tell(NoteKind::Mended, self.id, &text);
            return;
        }
        if !f.is_told {
            (f.is_told, f.until, f.past) = (true, committed, self.whole_from);
        }
        self.regain_goes_on(ctx);
    }

    /// The log did not take what came. The piece is asked for again later.
    pub fn regain_refused(&mut self, ctx: &mut Ctx<'_>, ticket: u64) {
        let Some(f) = self.regain.fetching.as_mut().filter(|f| f.writing == Some(ticket)) else { return };
        (f.from, f.writing, f.is_last, f.is_end) = (f.piece, None, false, false);
        self.regain.rest_until = ctx.now.plus(timing::FULL_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peers;
    use crate::repair::{Damage, Hole};
    use crate::testing::{Chain, SHARD, appends, frames, reply, step, step_at};
    use freebs_format::{CarryBody, CarryEntry, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta, MarkBody, Pin};
    use freebs_types::{BlockRange, ChunkId, NodeId, Peer, SnapshotId};

    const LACKS: Version = Version(7);

    /// A member of view 1 with five frames, four of them committed.
    fn lacking(r: &mut Replica) {
        step(r, |r, ctx| {
            for f in frames(5, 4) {
                assert!(r.on_synced_frame(ctx, f, ViewNumber(1)));
            }
            r.on_durable(ctx, Sequence(5));
        });
        assert_eq!(r.committed, Sequence(4));
        r.whole_from = LACKS;
    }

    fn peers() -> Peers {
        let mut peers = Peers::default();
        peers.up(LinkId(1), Peer { node: NodeId(1), worker: 0 }, Nanos(0));
        peers
    }

    /// A piece with one entry of the past, and what its teller keeps.
    fn piece(q: &SyncRequest, mode: SyncMode, pins: &[u64], whole_from: u64) -> SyncReply {
        piece_as_of(4, q, mode, pins, whole_from)
    }

    /// The same of one that knows so many frames as committed.
    fn piece_as_of(as_of: u64, q: &SyncRequest, mode: SyncMode, pins: &[u64], whole_from: u64) -> SyncReply {
        let entry = CarryEntry {
            kind: ExtentKind::Trim,
            range: BlockRange::new(3, 1),
            version: Version(2),
            sequence: Sequence(2),
            chunk: ChunkId::default(),
            offset: 0,
            crcs: Vec::new(),
        };
        let state = MarkBody {
            committed: Sequence(as_of),
            pins: pins.iter().map(|v| Pin { version: Version(*v), snapshot: SnapshotId(*v) }).collect(),
            whole_from: Version(whole_from),
            ..MarkBody::default()
        };
        let local = |kind, sequence, body: Vec<u8>| -> Frame {
            let meta = FrameMeta { sequence, ..Chain::new().meta(4) };
            FrameBuilder::local(&meta, kind, &body, Vec::new(), &freebs_types::Hash32::default())
        };
        let carry = local(FrameKind::Carry, q.until, CarryBody { entries: vec![entry] }.encode());
        let all = vec![carry, local(FrameKind::Mark, Sequence(4), state.encode())];
        let map_next = if mode == SyncMode::Map { MapPoint { from: 9, ..MapPoint::NONE } } else { MapPoint::NONE };
        SyncReply { id: q.id, view: q.view, map_next, ..reply(q.until.0, mode, all) }
    }

    /// The questions, and what goes into the log with its ticket.
    type Seen = (Vec<SyncRequest>, Vec<(String, u64, Option<KeptState>)>);

    fn seen(actions: &[Action]) -> Seen {
        let asked = actions.iter().filter_map(|a| match a {
            Action::Send { message: Message::Sync(q), .. } => Some(q.clone()),
            _ => None,
        });
        let written = actions.iter().filter_map(|a| match a {
            Action::Append(Record::Mark { change, ticket, .. }) => {
                Some(("mark".to_owned(), *ticket, change.kept.as_deref().cloned()))
            }
            Action::Append(Record::Carry { ticket, .. }) => Some(("carry".to_owned(), *ticket, None)),
            _ => None,
        });
        (asked.collect(), written.collect())
    }

    fn play(r: &mut Replica, ms: u64, tickets: &mut u64, act: impl FnOnce(&mut Replica, &mut Ctx<'_>)) -> Seen {
        let mut out = Seen::default();
        step_at(Nanos::from_millis(ms), &peers(), tickets, r, |r, ctx| {
            act(r, ctx);
            out = seen(&ctx.out.actions);
        });
        out
    }

    /// A teller's pins are in force before its pieces are asked for, and only the end says that history is whole.
    #[test]
    fn the_past_is_had_piece_by_piece() {
        let (mut r, mut tickets) = (Replica::empty(SHARD), 7);
        lacking(&mut r);
        let t = &mut tickets;
        let (asked, _) = play(&mut r, 10, t, |r, ctx| r.regain_tick(ctx));
        let q = &asked[0];
        assert_eq!((q.lost, q.past, q.until, q.map_from), (true, LACKS, Sequence(4), MapPoint::BEGIN));
        let again = play(&mut r, 20, t, |r, ctx| r.regain_tick(ctx));
        assert_eq!(again, Seen::default(), "one question at a time");
        // Of the first answer only what is kept is taken.
        let first = piece(q, SyncMode::Map, &[2, 5], 0);
        let (asked, written) = play(&mut r, 30, t, |r, ctx| r.on_sync_reply(ctx, first));
        assert_eq!((asked.len(), written.len(), written[0].0.as_str()), (0, 1, "mark"));
        let kept = written[0].2.clone().expect("what is kept");
        assert_eq!((kept.pins.len(), kept.as_of, kept.past), (2, Sequence(4), Version(0)));
        // More was committed until then: who is asked must know that, too. And more is missing.
        (r.committed, r.whole_from) = (Sequence(5), Version(8));
        let (asked, _) = play(&mut r, 40, t, |r, ctx| r.on_mark_durable(ctx, written[0].1));
        let q = &asked[0];
        assert_eq!((q.until, q.map_from), (Sequence(5), MapPoint::BEGIN));
        let next = piece(q, SyncMode::Map, &[2, 5], 0);
        let (asked, written) = play(&mut r, 50, t, |r, ctx| r.on_sync_reply(ctx, next));
        assert_eq!((asked.len(), written[0].0.as_str()), (0, "carry"));
        let (asked, _) = play(&mut r, 60, t, |r, ctx| r.on_regained_durable(ctx, written[0].1));
        let q = &asked[0];
        assert_eq!((q.until, q.map_from.from), (Sequence(5), 9));
        let end = piece(q, SyncMode::MapEnd, &[5], 0);
        let (_, written) = play(&mut r, 70, t, |r, ctx| r.on_sync_reply(ctx, end));
        assert_eq!(written[0].0, "carry");
        let (_, written) = play(&mut r, 80, t, |r, ctx| r.on_regained_durable(ctx, written[0].1));
        let kept = written[0].2.clone().expect("what is kept");
        assert_eq!((kept.pins.len(), kept.whole_from, kept.past), (1, Version(0), Version(8)));
        // The worker tells what the log has by then.
        r.whole_from = Version(0);
        let (asked, written) = play(&mut r, 90, t, |r, ctx| r.on_mark_durable(ctx, written[0].1));
        assert_eq!((asked.len(), written.len(), r.regain.fetching.is_none()), (0, 0, true));
    }

    /// The teller of the first pieces had given a version up. That of the last one has not heard of that, and names it.
    #[test]
    fn a_pin_that_a_teller_had_given_up_is_none_at_the_end() {
        let (mut r, mut tickets) = (Replica::empty(SHARD), 7);
        lacking(&mut r);
        let t = &mut tickets;
        let (asked, _) = play(&mut r, 10, t, |r, ctx| r.regain_tick(ctx));
        let first = piece_as_of(9, &asked[0], SyncMode::Map, &[5], 0);
        let (_, written) = play(&mut r, 20, t, |r, ctx| r.on_sync_reply(ctx, first));
        let (asked, _) = play(&mut r, 30, t, |r, ctx| r.on_mark_durable(ctx, written[0].1));
        let next = piece_as_of(9, &asked[0], SyncMode::Map, &[5], 0);
        let (_, written) = play(&mut r, 40, t, |r, ctx| r.on_sync_reply(ctx, next));
        let (asked, _) = play(&mut r, 50, t, |r, ctx| r.on_regained_durable(ctx, written[0].1));
        let end = piece(&asked[0], SyncMode::MapEnd, &[2, 5], 0);
        let (_, written) = play(&mut r, 60, t, |r, ctx| r.on_sync_reply(ctx, end));
        let (_, written) = play(&mut r, 70, t, |r, ctx| r.on_regained_durable(ctx, written[0].1));
        let kept = written[0].2.clone().expect("what is kept");
        let pins: Vec<u64> = kept.pins.iter().map(|p| p.version.0).collect();
        assert_eq!((pins, kept.as_of, kept.past), (vec![5], Sequence(9), LACKS));
    }

    /// Nobody has more: it is said once, and asked for again now and then.
    #[test]
    fn a_past_that_nobody_has_is_asked_for_now_and_then() {
        let (mut r, mut tickets) = (Replica::empty(SHARD), 7);
        lacking(&mut r);
        let (mut at, mut notes) = (Vec::new(), 0);
        for ms in (1000..100_000).step_by(20) {
            step_at(Nanos::from_millis(ms), &peers(), &mut tickets, &mut r, |r, ctx| {
                r.regain_tick(ctx);
                let (asked, _) = seen(&ctx.out.actions);
                for q in asked {
                    at.push(ms);
                    r.on_sync_reply(ctx, SyncReply { id: q.id, ..reply(0, SyncMode::Refused, Vec::new()) });
                }
                let is_note = |a: &&Action| matches!(a, Action::Note(n) if n.text.contains("no member has more"));
                notes += ctx.out.actions.iter().filter(is_note).count();
            });
        }
        assert_eq!((at, notes), (vec![1000, 31_000, 61_000, 91_000], 1));
    }

    /// One answer in many was late, and all that was had of the past was asked for from the beginning: with much of it that never
    /// ended. And it was said that no member has more.
    #[test]
    fn a_late_answer_takes_nothing_back() {
        let (mut r, mut tickets) = (Replica::empty(SHARD), 7);
        lacking(&mut r);
        let t = &mut tickets;
        let (asked, _) = play(&mut r, 10, t, |r, ctx| r.regain_tick(ctx));
        let first = piece(&asked[0], SyncMode::Map, &[2], 0);
        let (_, written) = play(&mut r, 20, t, |r, ctx| r.on_sync_reply(ctx, first));
        let (asked, _) = play(&mut r, 30, t, |r, ctx| r.on_mark_durable(ctx, written[0].1));
        let next = piece(&asked[0], SyncMode::Map, &[2], 0);
        let (_, written) = play(&mut r, 40, t, |r, ctx| r.on_sync_reply(ctx, next));
        let (asked, _) = play(&mut r, 50, t, |r, ctx| r.on_regained_durable(ctx, written[0].1));
        assert_eq!(asked[0].map_from.from, 9);
        // The second piece takes long, again and again, and then less than is waited for by now.
        let (mut late, mut notes) = (Vec::new(), 0);
        for ms in (60..20_000).step_by(20) {
            step_at(Nanos::from_millis(ms), &peers(), t, &mut r, |r, ctx| {
                r.regain_tick(ctx);
                late.extend(seen(&ctx.out.actions).0.into_iter().map(|q| (ms, q)));
                notes += ctx.out.actions.iter().filter(|a| matches!(a, Action::Note(_))).count();
            });
        }
        let at: Vec<u64> = late.iter().map(|(ms, _)| *ms).collect();
        assert_eq!((at, notes), (vec![2060, 6060, 14_060], 0));
        let (_, last) = late.pop().expect("it asks");
        assert_eq!((last.map_from.from, last.until), (9, Sequence(4)), "the same piece");
        let next = piece(&last, SyncMode::Map, &[2], 0);
        let (_, written) = play(&mut r, 21_000, t, |r, ctx| r.on_sync_reply(ctx, next));
        assert_eq!(written[0].0, "carry");
        // Nobody has more by now: that is no reason to begin anew either.
        let (asked, _) = play(&mut r, 21_010, t, |r, ctx| r.on_regained_durable(ctx, written[0].1));
        let refused = SyncReply { id: asked[0].id, ..reply(0, SyncMode::Refused, Vec::new()) };
        let (asked, _) = play(&mut r, 21_020, t, |r, ctx| {
            r.on_sync_reply(ctx, refused);
            r.regain_tick(ctx);
        });
        assert_eq!(asked.len(), 0, "there is a pause");
        let (asked, _) = play(&mut r, 52_000, t, |r, ctx| r.regain_tick(ctx));
        assert_eq!(asked[0].map_from.from, 9);
    }

    /// Of two tellers the one that answered is asked again, and who is silent is no reason to stop.
    #[test]
    fn who_answers_is_asked_again() {
        let (mut r, mut tickets) = (Replica::empty(SHARD), 7);
        lacking(&mut r);
        let mut peers = peers();
        peers.up(LinkId(3), Peer { node: NodeId(3), worker: 0 }, Nanos(0));
        let view = r.view.as_mut().expect("it is in view 1");
        let other = |n: u64| freebs_format::Member { node: NodeId(n), ..view.body.members[0] };
        view.body.members = [1, 2, 3].map(other).to_vec();
        let (mut to, mut at, mut open) = (Vec::new(), Vec::new(), None);
        for ms in (1000..9000).step_by(20) {
            step_at(Nanos::from_millis(ms), &peers, &mut tickets, &mut r, |r, ctx| {
                // The first one is silent.
                if let Some((_, q)) = open.take().filter(|(link, _)| *link == LinkId(3)) {
                    r.on_sync_reply(ctx, piece(&q, SyncMode::Map, &[2], 0));
                    let (_, written) = seen(&ctx.out.actions);
                    written.iter().for_each(|w| r.on_regained_durable(ctx, w.1));
                }
                r.regain_tick(ctx);
                for a in &ctx.out.actions {
                    let Action::Send { to: link, message: Message::Sync(q) } = a else { continue };
                    to.push(link.0);
                    at.push(ms);
                    open = Some((*link, q.clone()));
                }
            });
        }
        assert_eq!((to[0], at[0], to[1], at[1]), (1, 1000, 3, 3000));
        assert!(to.len() > 20 && to[1..].iter().all(|l| *l == 3), "{to:?}");
    }

    /// A device without room for the past is tried again later, from the beginning.
    #[test]
    fn a_past_that_has_no_room_is_asked_for_later() {
        let (mut r, mut tickets) = (Replica::empty(SHARD), 7);
        lacking(&mut r);
        let t = &mut tickets;
        let (asked, _) = play(&mut r, 10, t, |r, ctx| r.regain_tick(ctx));
        let first = piece(&asked[0], SyncMode::Map, &[2], 0);
        let (_, written) = play(&mut r, 20, t, |r, ctx| r.on_sync_reply(ctx, first));
        let (asked, _) = play(&mut r, 30, t, |r, ctx| {
            r.on_no_room(ctx, written[0].1);
            r.regain_tick(ctx);
        });
        assert_eq!(asked.len(), 0);
        let (asked, _) = play(&mut r, 3000, t, |r, ctx| r.regain_tick(ctx));
        assert_eq!((asked.len(), asked[0].map_from), (1, MapPoint::BEGIN));
    }

    /// Frames were put back while the past was had. Pins in them, and what these need, were not known to what had come.
    #[test]
    fn a_past_is_had_anew_when_frames_were_missing() {
        let (mut r, mut tickets) = (Replica::empty(SHARD), 7);
        lacking(&mut r);
        let t = &mut tickets;
        let (asked, _) = play(&mut r, 10, t, |r, ctx| r.regain_tick(ctx));
        let first = piece(&asked[0], SyncMode::Map, &[2, 5], 0);
        let (_, written) = play(&mut r, 20, t, |r, ctx| r.on_sync_reply(ctx, first));
        let (asked, _) = play(&mut r, 30, t, |r, ctx| r.on_mark_durable(ctx, written[0].1));
        let next = piece(&asked[0], SyncMode::Map, &[2, 5], 0);
        let (_, written) = play(&mut r, 40, t, |r, ctx| r.on_sync_reply(ctx, next));
        let hole = Hole { before: crate::replica::genesis(), until: Sequence(2), end: None };
        r.damage = Damage::new(vec![hole], false);
        let (asked, _) = play(&mut r, 50, t, |r, ctx| r.on_regained_durable(ctx, written[0].1));
        assert_eq!(asked.len(), 0);
        r.damage = Damage::default();
        let (asked, _) = play(&mut r, 60, t, |r, ctx| r.regain_tick(ctx));
        let again = piece(&asked[0], SyncMode::Map, &[2, 5], 0);
        let (_, written) = play(&mut r, 70, t, |r, ctx| r.on_sync_reply(ctx, again));
        assert_eq!((asked[0].map_from, written[0].0.as_str()), (MapPoint::BEGIN, "mark"));
    }

    /// Only a log that has more of the past than the asker, and misses nothing, tells of it.
    #[test]
    fn the_past_is_told_by_who_has_it() {
        let mut r = Replica::empty(SHARD);
        lacking(&mut r);
        let ask = |past: u64, until: u64| SyncRequest {
            early: false,
            lacks: false,
            shard: SHARD,
            view: ViewNumber(1),
            id: 3,
            names: Vec::new(),
            until: Sequence(until),
            map_from: MapPoint::BEGIN,
            map_since: Sequence(until),
            lost: true,
            fetch: false,
            past: Version(past),
        };
        let tells = |r: &mut Replica, past, until| {
            let mut read = false;
            step(r, |r, ctx| {
                r.on_sync(ctx, LinkId(1), ask(past, until));
                assert_eq!(appends(&ctx.out.actions), [""; 0]);
                read = ctx.out.actions.iter().any(|a| match a {
                    Action::MapRead { since, past, upto, .. } => {
                        assert_eq!((*since, *past, *upto), (Sequence(until), Sequence(0), Sequence(until)));
                        true
                    }
                    _ => false,
                });
            });
            read
        };
        assert!(!tells(&mut r, 7, 4), "it lacks the same");
        assert!(tells(&mut r, 8, 4), "it has what is of version 7");
        r.whole_from = Version(0);
        assert!(tells(&mut r, 1, 4));
        assert!(!tells(&mut r, 1, 5), "it does not know that frame 5 is committed");
        r.damage = Damage::new(vec![Hole { before: crate::replica::genesis(), until: Sequence(2), end: None }], false);
        assert!(!tells(&mut r, 1, 4), "frames are missing");
    }
}
