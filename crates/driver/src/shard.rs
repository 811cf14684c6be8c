//! One shard as the driver sees it: the view, the attachment, the barrier, and what is durable where.
//!
//! Invariants: `view` never goes back. `members`, `quorum` and `floor` belong to `view`; durable sequences that
//! were said of another view are not in `members` (W4). `passed` is set once the attach frame of this driver is
//! committed (R2). It then stays: the frame is in every later view, and behind it come only this driver's updates.

use crate::blocks::{Blocks, Lenient};
use crate::members::{Backoff, Member};
use crate::slab::Key;
use crate::timers::Timer;
use crate::writes::Sent;
use crate::{Action, Driver, Mutant, ShardSpec, VolumeSpec, timing};
use freebs_format::wire::{DurableItem, Message, Refusal, Refused, Request, ViewNews};
use freebs_types::{Generation, Nanos, NodeId, Peer, RequestNumber, Sequence, ShardId, ViewNumber, limits};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far the head has taken this driver's attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// No link to the head.
    Idle,
    /// Refused; to be asked again soon.
    Wait,
    Asked,
    Done,
}

pub(crate) struct Shard {
    pub id: ShardId,
    pub view: ViewNumber,
    /// A member has told of this view, so members, quorum and floor are right.
    pub known: bool,
    pub quorum: usize,
    pub members: Vec<Member>,

    pub attach: Attach,
    /// The view that `Attach` names; follows what the head said when it refused.
    attach_view: ViewNumber,
    pub attach_due: Option<Nanos>,
    pub attach_backoff: Backoff,
    pub follow_due: Option<Nanos>,
    /// Highest view that anybody has named.
    rumour: ViewNumber,
    /// Sequence of the attach frame in this view, once the head has told.
    pub barrier: Option<Sequence>,
    pub passed: bool,
    /// When members are asked for leases again.
    pub lease_due: Option<Nanos>,
    /// Leases of older generations may run until then, as members have said (L3).
    pub older_until: Nanos,

    /// Durable on the ack quorum, in this view.
    pub committed: Sequence,
    /// A member that is read from has at least this (R1).
    pub floor: Sequence,

    /// Parts that were admitted and have not ended.
    pub parts: usize,
    pub blocks: Blocks,
    /// Next number for an update. A number is taken when an update is first sent.
    pub next_number: RequestNumber,
    /// Updates that were sent and whose fate is not known, in order of their numbers.
    pub writes: BTreeMap<RequestNumber, Sent>,
    /// Those of them that the head has ordered in this view.
    pub ordered: BTreeSet<(Sequence, RequestNumber)>,
    /// Parts that wait for the attachment to send their update.
    pub outbox: VecDeque<Key>,
    pub stall_due: Option<Nanos>,
    /// First of `ordered` when that was last looked at.
    pub stall_mark: Option<(Sequence, RequestNumber)>,
    /// Fetches that found no member.
    pub waiting: Vec<Key>,
    pub reads_due: Option<Nanos>,
}

impl Shard {
    pub fn new(spec: &ShardSpec, workers: &BTreeMap<NodeId, u16>, mutant: Option<Mutant>) -> Self {
        let lenient =
            Lenient { reads: mutant == Some(Mutant::NoReadWait), updates: mutant == Some(Mutant::SharedUpdates) };
        Self {
            id: spec.id,
            view: spec.view,
            known: false,
            quorum: 0,
            members: Member::list(&spec.members, spec.id, workers),
            attach: Attach::Idle,
            attach_view: spec.view,
            attach_due: None,
            attach_backoff: Backoff::default(),
            follow_due: None,
            rumour: spec.view,
            barrier: None,
            passed: false,
            lease_due: None,
            older_until: Nanos(0),
            committed: Sequence(0),
            floor: Sequence(0),
            parts: 0,
            blocks: Blocks::new(lenient),
            next_number: RequestNumber(1),
            writes: BTreeMap::new(),
            ordered: BTreeSet::new(),
            outbox: VecDeque::new(),
            stall_due: None,
            stall_mark: None,
            waiting: Vec::new(),
            reads_due: None,
        }
    }

    pub fn attached(&self) -> bool {
        self.attach == Attach::Done
    }

    pub fn is_head(&self, peer: Peer) -> bool {
        self.members.first().is_some_and(|m| m.peer == peer)
    }

    pub fn position(&self, peer: Peer) -> Option<usize> {
        self.members.iter().position(|m| m.peer == peer)
    }

    pub fn member_of(&mut self, node: NodeId) -> Option<&mut Member> {
        self.members.iter_mut().find(|m| m.node == node)
    }

    /// Drops everything that is open, for good.
    pub fn forget(&mut self) {
        self.attach = Attach::Idle;
        self.parts = 0;
        self.blocks = Blocks::new(Lenient::default());
        self.writes.clear();
        self.ordered.clear();
        self.outbox.clear();
        self.waiting.clear();
        (self.attach_due, self.follow_due, self.stall_due, self.reads_due) = (None, None, None, None);
        self.lease_due = None;
    }

    /// The sequence that A members of this view have (W4): the A-th largest.
    fn quorum_sequence(&self) -> Sequence {
        let mut durable = [Sequence(0); limits::CHAIN_MEMBERS_MAX];
        for (to, m) in durable.iter_mut().zip(&self.members) {
            *to = m.durable.unwrap_or_default();
        }
        assert!(self.quorum <= self.members.len() || !self.known, "a quorum is one of the members");
        durable.sort_unstable_by(|a, b| b.cmp(a));
        if self.known && self.quorum > 0 { durable[self.quorum - 1] } else { Sequence(0) }
    }
}

impl Driver {
    /// News of a view, from whichever member. `answered`: the head that has just taken the attachment with it.
    fn learn(&mut self, news: &ViewNews, answered: Option<Peer>, out: &mut Vec<Action>) {
        let Some(&s) = self.by_id.get(&news.shard) else { return };
        let shard = &self.shards[s];
        let (n, quorum) = (news.body.members.len(), usize::from(news.body.quorum));
        if n > limits::CHAIN_MEMBERS_MAX || !(1..=n).contains(&quorum) {
            return;
        }
        if news.view < shard.view || (news.view == shard.view && shard.known) {
            return;
        }
        let nodes: Vec<_> = news.body.members.iter().map(|m| m.node).collect();
        // What the control plane had named may be right already; then everybody has been greeted.
        let right = news.view == shard.view && shard.members.iter().map(|m| &m.node).eq(&nodes);
        if !right {
            self.adopt(s, news.view, &nodes);
        }
        let no_barrier = self.mutated(Mutant::NoBarrier);
        let shard = &mut self.shards[s];
        shard.known = true;
        shard.quorum = quorum;
        // Everything that was answered in an earlier view lies before the view frame.
        shard.floor = news.sequence;
        shard.passed |= no_barrier;
        if answered.is_some_and(|peer| shard.is_head(peer)) {
            shard.attach = Attach::Asked;
        }
        if !right {
            self.contact_anew(s, out);
        }
        self.become_ready(out);
        self.release(out);
        self.committed(s, out);
        self.wake_reads(s, out);
        self.tend_leases(s, out);
    }

    pub(crate) fn news(&mut self, news: &ViewNews, out: &mut Vec<Action>) {
        self.learn(news, None, out);
    }

    /// Takes a view in place of the present one, or the same one with its members put right.
    fn adopt(&mut self, s: usize, view: ViewNumber, nodes: &[NodeId]) {
        let mix = self.mutated(Mutant::CountAcrossViews);
        let shard = &mut self.shards[s];
        let same = view == shard.view;
        assert!(view >= shard.view, "a view is never taken back");
        let mut members = Member::list(nodes, shard.id, &self.workers);
        for m in &mut members {
            if let Some(old) = shard.members.iter().find(|o| o.node == m.node) {
                m.reads = old.reads;
                // A lease is the member's word, whatever the view.
                m.lease = old.lease;
                // W4: what was durable in another view says nothing here.
                m.durable = if same || mix { old.durable } else { None };
            }
        }
        shard.members = members;
        shard.view = view;
        shard.attach = Attach::Idle;
        shard.attach_view = view;
        shard.attach_backoff = Backoff::default();
        self.timers.disarm(&mut shard.attach_due, Timer::Attach(s));
        if !same {
            self.counters.view_changes += u64::from(shard.known);
            shard.known = false;
            shard.quorum = 0;
            shard.barrier = None;
            if !mix {
                shard.committed = Sequence(0);
                shard.floor = Sequence(0);
                shard.ordered.clear();
                shard.writes.values_mut().for_each(|w| w.sequence = None);
            }
        }
        self.prune_links();
    }

    /// The control plane's word: a new size, or views that nobody has told of yet.
    pub(crate) fn volume_changed(&mut self, spec: &VolumeSpec, out: &mut Vec<Action>) {
        if spec.id != self.volume || spec.shards.len() != self.shards.len() {
            return;
        }
        if let Ok(layout) = &mut self.layout
            && let Ok(new) = crate::stripe::Layout::new(spec.size, spec.stripe, spec.shards.len())
        {
            layout.size = new.size;
        }
        for shard in &spec.shards {
            let Some(&s) = self.by_id.get(&shard.id) else { continue };
            if shard.view > self.shards[s].view {
                self.adopt(s, shard.view, &shard.members);
                self.contact_anew(s, out);
                self.tend_leases(s, out);
            }
        }
    }

    /// Answer to `Attach` (from the head, with a floor) or to `Follow`.
    pub(crate) fn attached(
        &mut self,
        from: Peer,
        news: &ViewNews,
        generation: Generation,
        floor: Sequence,
        out: &mut Vec<Action>,
    ) {
        if generation > self.generation {
            return self.fence(out);
        }
        let takes = floor > Sequence(0) && generation == self.generation;
        self.learn(news, takes.then_some(from), out);
        let Some(&s) = self.by_id.get(&news.shard) else { return };
        let shard = &mut self.shards[s];
        if !takes || news.view != shard.view || !shard.known || !shard.is_head(from) {
            return;
        }
        let again = shard.attach == Attach::Done;
        shard.attach = Attach::Done;
        if shard.passed {
            self.timers.disarm(&mut shard.attach_due, Timer::Attach(s));
        } else {
            // R2: nothing is read before the attach frame is on A members.
            shard.barrier = shard.barrier.max(Some(floor));
            shard.floor = shard.floor.max(floor);
            self.timers.arm(&mut shard.attach_due, self.now.plus(timing::ASK_AGAIN), Timer::Attach(s));
        }
        if !again {
            self.resend_all(s, out);
        }
        self.send_waiting(s, out);
        self.committed(s, out);
    }

    /// Asks the head for the attachment, now.
    pub(crate) fn attach_now(&mut self, s: usize, out: &mut Vec<Action>) {
        let shard = &mut self.shards[s];
        let Some(head) = shard.members.first() else { return };
        let to = head.peer;
        if !self.links.get(&to).is_some_and(|l| l.is_up()) {
            return;
        }
        if shard.attach != Attach::Done {
            shard.attach = Attach::Asked;
        }
        self.timers.arm(&mut shard.attach_due, self.now.plus(timing::ASK_AGAIN), Timer::Attach(s));
        let message = Message::Attach {
            shard: shard.id,
            view: shard.attach_view,
            generation: self.generation,
            driver: self.driver,
            identity: self.identity,
        };
        out.push(Action::Send { to, message });
    }

    pub(crate) fn attach_again(&mut self, s: usize, out: &mut Vec<Action>) {
        let shard = &mut self.shards[s];
        shard.attach_due = None;
        if shard.attach != Attach::Done || !shard.passed {
            self.attach_now(s, out);
        }
    }

    /// The head does not take requests as things are: ask again after a back-off, then repeat what is open.
    pub(crate) fn reattach(&mut self, s: usize) {
        let shard = &mut self.shards[s];
        if shard.attach == Attach::Wait || shard.attach == Attach::Idle {
            return;
        }
        shard.attach = Attach::Wait;
        let at = self.now.plus(shard.attach_backoff.next());
        self.timers.arm(&mut shard.attach_due, at, Timer::Attach(s));
    }

    /// The same for a view that is new here: its members have just agreed on it, so they are there.
    fn contact_anew(&mut self, s: usize, out: &mut Vec<Action>) {
        let members: Vec<Peer> = self.shards[s].members.iter().map(|m| m.peer).collect();
        members.into_iter().for_each(|peer| self.connect_now(peer, out));
        self.contact(s, out);
    }

    /// Opens links to all members and speaks to those that have one.
    pub(crate) fn contact(&mut self, s: usize, out: &mut Vec<Action>) {
        for m in 0..self.shards[s].members.len() {
            let peer = self.shards[s].members[m].peer;
            if self.want_link(peer, out) {
                self.greet(s, m, out);
            }
        }
    }

    /// What a member is told when the link comes up, or when it has become a member.
    pub(crate) fn greet(&mut self, s: usize, m: usize, out: &mut Vec<Action>) {
        let shard = &mut self.shards[s];
        if shard.follow_due.is_none() {
            self.timers.arm(&mut shard.follow_due, self.now.plus(timing::ASK_AGAIN), Timer::Follow(s));
        }
        if m > 0 {
            self.follow(s, m, out);
        } else if shard.attach == Attach::Idle {
            self.attach_now(s, out);
        }
    }

    fn follow(&mut self, s: usize, m: usize, out: &mut Vec<Action>) {
        let shard = &mut self.shards[s];
        let member = &mut shard.members[m];
        member.asked = Some(self.now);
        let message = Message::Follow { shard: shard.id, generation: self.generation, driver: self.driver };
        out.push(Action::Send { to: member.peer, message });
    }

    /// Asks those again that have said nothing of this view; all of them while the head does not answer, because
    /// one of them may know of a newer view.
    pub(crate) fn follow_again(&mut self, s: usize, out: &mut Vec<Action>) {
        self.shards[s].follow_due = None;
        let mut again = false;
        for m in 0..self.shards[s].members.len() {
            let shard = &self.shards[s];
            let lost = shard.attach != Attach::Done || !shard.passed || shard.rumour > shard.view;
            let member = &shard.members[m];
            let silent = member.durable.is_none();
            if !self.is_up(member.peer) || !(silent || lost) {
                continue;
            }
            again = true;
            if m > 0 || shard.rumour > shard.view {
                self.follow(s, m, out);
            } else if silent && shard.attach == Attach::Done {
                self.attach_now(s, out);
            }
        }
        if again {
            let shard = &mut self.shards[s];
            self.timers.arm(&mut shard.follow_due, self.now.plus(timing::ASK_AGAIN), Timer::Follow(s));
        }
    }

    /// Speaks to every member again: something that should have come has not.
    pub(crate) fn ask_all(&mut self, s: usize, out: &mut Vec<Action>) {
        for m in 0..self.shards[s].members.len() {
            if !self.is_up(self.shards[s].members[m].peer) {
                continue;
            }
            if m > 0 {
                self.follow(s, m, out);
            } else if self.shards[s].attached() {
                self.attach_now(s, out);
            }
        }
    }

    /// A member has named a view that is not known here: its answer will bring the news. Who is taken for the head need
    /// not be one any more, and then tells nothing to who wants to attach.
    pub(crate) fn ask_news(&mut self, s: usize, from: Peer, view: ViewNumber, out: &mut Vec<Action>) {
        let shard = &mut self.shards[s];
        let Some(m) = shard.position(from) else { return };
        shard.rumour = shard.rumour.max(view);
        if m == 0 {
            self.reattach(s);
        }
        let shard = &mut self.shards[s];
        let soon = shard.members[m].asked.map(|t| t.plus(timing::VIEW_ASK_GAP));
        match soon {
            // It was asked a moment ago, perhaps before it knew.
            Some(at) if self.now < at => {
                if shard.follow_due.is_none_or(|due| at < due) {
                    self.timers.arm(&mut shard.follow_due, at, Timer::Follow(s));
                }
            }
            _ => self.follow(s, m, out),
        }
    }

    pub(crate) fn durable(&mut self, from: Peer, items: &[DurableItem], out: &mut Vec<Action>) {
        for item in items {
            let Some(&s) = self.by_id.get(&item.shard) else { continue };
            let shard = &mut self.shards[s];
            let Some(m) = shard.position(from) else { continue };
            // W4: answers count within one view only.
            if item.view != shard.view && self.mutant != Some(Mutant::CountAcrossViews) {
                if item.view > shard.view {
                    self.ask_news(s, from, item.view, out);
                }
                continue;
            }
            let member = &shard.members[m];
            if member.durable.is_none_or(|d| d < item.sequence) {
                let first = member.durable.is_none() || !shard.passed;
                shard.members[m].durable = Some(item.sequence);
                self.committed(s, out);
                self.wake_reads(s, out);
                if first {
                    self.tend_leases(s, out);
                }
            }
        }
    }

    /// Looks how far A members are, and ends what that ends.
    fn committed(&mut self, s: usize, out: &mut Vec<Action>) {
        let shard = &mut self.shards[s];
        shard.committed = shard.committed.max(shard.quorum_sequence());
        self.end_writes(s, out);
        let shard = &mut self.shards[s];
        if !shard.passed && shard.barrier.is_some_and(|b| b <= shard.committed) {
            shard.passed = true;
            // While the head refuses, the timer is there to ask it again.
            if shard.attach == Attach::Done {
                self.timers.disarm(&mut shard.attach_due, Timer::Attach(s));
            }
            self.wake_reads(s, out);
            self.become_ready(out);
            self.tend_leases(s, out);
        }
    }

    pub(crate) fn refused(&mut self, from: Peer, refused: Refused, out: &mut Vec<Action>) {
        let Some(&s) = self.by_id.get(&refused.shard) else { return };
        if refused.reason == Refusal::Fenced && refused.generation > self.generation {
            return self.fence(out);
        }
        if refused.view > self.shards[s].view {
            self.ask_news(s, from, refused.view, out);
        }
        match refused.request {
            Request::Attach => {
                let shard = &mut self.shards[s];
                if shard.is_head(from) {
                    if refused.reason == Refusal::WrongView && refused.view > ViewNumber(0) {
                        shard.attach_view = refused.view;
                    }
                    self.reattach(s);
                }
            }
            Request::Write(number) => self.write_refused(from, s, number, refused.reason, out),
            Request::Read(id) => self.read_refused(from, s, id, refused.reason, out),
        }
    }

    /// Tells the members that this driver goes.
    pub(crate) fn detach(&self, out: &mut Vec<Action>) {
        for shard in &self.shards {
            for m in shard.members.iter().filter(|m| self.is_up(m.peer)) {
                let (generation, driver) = (self.generation, self.driver);
                out.push(Action::Send { to: m.peer, message: Message::Detach { shard: shard.id, generation, driver } });
            }
        }
    }
}
