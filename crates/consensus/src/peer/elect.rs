//! A leader that is gone: voters that are refused by it say so to each other, give it up, and stand for election in turn.
//!
//! The decision is in [`crate::doubts`]; here are the questions, the answers, and the library.
//!
//! A seat that votes alone, as it knows, leads without asking anybody: also if its store is an old image, and others vote by
//! now, or the control state was made again elsewhere (rule V8). So it asks the other nodes first. Who knows of a later start
//! of its node says so, and who knows of another seat that leads, or votes, says that: the store is old then, for nobody
//! leads without the only vote, and voters never become fewer. Who knows of none, or is not there, does not stand in its way.
//! For the same reason such a seat gives its vote to nobody, and follows nobody. That the leader, or a vote, is another one
//! counts only once it is committed: a seat that votes alone may have lost an entry that it had sent already.

use super::Peer;
use crate::doubts::{Led, Turn};
use crate::reach::Attempt;
use crate::timing;
use crate::types::{Seat, Vote};
use crate::wire::{Envelope, Message};
use freebs_types::{NodeId, StartNumber};
use futures_util::future::{Either, join_all, select};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

/// Times that a seat stands although the leader that it gave up is back. The library held its vote to that leader no longer,
/// and does so again only in another term.
const TIMES_WHEN_BACK: usize = 2;

impl Peer {
    /// The leader that this seat follows, and who votes; none if it leads itself, or has no vote.
    fn followed(&self) -> Option<(Led, Vec<BTreeSet<Seat>>)> {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        let by = m.current_leader.filter(|l| *l != self.seat())?;
        let voters = m.membership_config.membership().get_joint_config();
        let has_vote = voters.iter().any(|set| set.contains(&self.seat()));
        has_vote.then(|| (Led { by, term: m.current_term }, voters.clone()))
    }

    /// As a seat that does not lead: doubts the leader if the link there is lost.
    pub(super) fn look_after_leader(&self) {
        let Some((led, voters)) = self.followed() else { return };
        let lost = self.0.links.refusals(led.by.node) > 0 || self.is_silent(led.by.node);
        let is_due = self.0.doubts.borrow_mut().look(self.now_ms(), led, self.seat(), lost);
        if is_due {
            self.tell_voters(led, &voters, &Message::Doubt(led.by.node));
            let peer = self.clone();
            self.spawn(async move {
                if peer.is_refused_by(led.by.node).await {
                    peer.say_refused(led.by.node);
                }
            });
        }
    }

    fn tell_voters(&self, led: Led, voters: &[BTreeSet<Seat>], message: &Message) {
        let others: BTreeSet<&Seat> = voters.iter().flatten().collect();
        for other in others.into_iter().filter(|s| s.node != led.by.node && s.node != self.seat().node) {
            // If it is lost, it is said again.
            let _ = self.0.links.send(*other, 0, message);
        }
    }

    /// This seat was refused just now. If it is the leader that it can't reach, all voters hear of it; true then.
    pub(super) fn say_refused(&self, node: NodeId) -> bool {
        let Some((led, voters)) = self.followed().filter(|(led, _)| led.by.node == node) else { return false };
        self.tell_voters(led, &voters, &Message::Gone { node, term: led.term });
        self.hear_refused(self.seat(), node, led.term);
        true
    }

    /// A voter, perhaps this one, was refused at a node, in the term in which that led as the voter knew; 0 if it says none.
    pub(super) fn hear_refused(&self, from: Seat, node: NodeId, term: u64) {
        let Some((led, voters)) = self.followed() else { return };
        let now = self.now_ms();
        let turn = {
            let mut doubts = self.0.doubts.borrow_mut();
            doubts.hear(now, led, from, (node, term), &voters);
            doubts.verdict(now, self.seat(), &voters)
        };
        if let Some(turn) = turn {
            let start = self.state().node(led.by.node).map_or(StartNumber(0), |n| n.start);
            self.0.lookout.borrow_mut().give_up(now, led.by.node, start);
            let peer = self.clone();
            self.spawn(async move { peer.stand_in_turn(led, turn).await });
        }
    }

    async fn stand_in_turn(&self, led: Led, turn: Turn) {
        let heartbeats = |n: u64| tokio::time::sleep(Duration::from_millis(n * self.0.timing.heartbeat_ms));
        // To the library it is as if the leader had said that it hands over: its vote is held to no longer. Who is to lead
        // then is open, so no seat is named that would stand without being asked for pre-votes.
        let handed_over = TransferLeaderRequest::new(Vote::new_committed(led.term, led.by), led.by, None);
        // Without it votes are given later.
        let _ = self.0.raft.handle_transfer_leader(handed_over).await;
        heartbeats(turn.first).await;
        let mut left = TIMES_WHEN_BACK;
        while left > 0 && self.leader() == (Some(led.by), led.term) {
            if !self.0.doubts.borrow().has_given_up(led) {
                left -= 1;
            }
            let _ = self.0.raft.trigger().elect(true).await;
            heartbeats(turn.every).await;
        }
        self.0.doubts.borrow_mut().ended(led);
    }

    /// Wakes what is done at each heartbeat whenever another seat leads.
    pub(super) async fn hear_of_leaders(self) {
        let mut metrics = self.0.raft.metrics();
        let mut known = None;
        while metrics.next().await {
            let leader = metrics.now().current_leader;
            if leader != known {
                known = leader;
                self.0.woken.notify_one();
            }
        }
    }

    /// A link was closed by its end, or refused there.
    pub(super) fn hear_of_loss(&self, node: NodeId) {
        self.0.lost.notify_waiters();
        // Each later one is an attempt that was refused.
        if self.0.links.refusals(node) == 1 {
            self.0.woken.notify_one();
        }
    }

    /// Tries to reach a node: true if it refuses this one now.
    pub(super) async fn is_refused_by(&self, node: NodeId) -> bool {
        let refusals = || self.0.links.refusals(node);
        let Some(mut attempt) = Attempt::new(self.seat().node, node, refusals()) else { return false };
        while attempt.is_open() {
            // A message that comes while a link rests after a failure is dropped, so it is said again.
            let _ = self.0.links.send(Seat { node, store: 0 }, 0, &Message::Here);
            let mut rest = pin!(tokio::time::sleep(timing::REACH_EVERY));
            loop {
                let lost = pin!(self.0.lost.notified());
                let is_over = matches!(select(rest.as_mut(), lost).await, Either::Left(_));
                if attempt.is_refused(refusals()) {
                    return true;
                }
                if is_over {
                    break;
                }
            }
            attempt.tried();
        }
        false
    }

    /// True if this seat has the only vote, as far as is committed.
    #[must_use]
    pub fn votes_alone(&self) -> bool {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        let voters: Vec<Seat> = m.committed_membership_config.membership().voter_ids().collect();
        voters == [self.seat()]
    }

    /// The other nodes that this one knows of.
    pub(super) fn others(&self) -> BTreeSet<NodeId> {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        let members = m.membership_config.membership().nodes().map(|(s, ())| s.node);
        let contacts = self.0.contacts.borrow();
        members.chain(contacts.iter().copied()).filter(|n| *n != self.seat().node).collect()
    }

    /// Asks all of them, and from then on elections are held, unless one of them has said that this store is old.
    pub(super) async fn ask_before_leading(self) {
        {
            let told = pin!(self.0.told.notified());
            let ask = |node| {
                let to = Seat { node, store: 0 };
                self.0.links.call_again(to, &Message::Here, timing::ALONE_ASKS, timing::ALONE_AGAIN)
            };
            let others = self.others();
            let asked = pin!(async {
                if others.is_empty() {
                    // Others may be there that this store does not know. They say something within a few heartbeats.
                    tokio::time::sleep(timing::ALONE_ASKS).await;
                }
                for answer in join_all(others.into_iter().map(ask)).await {
                    self.hear_rival(answer.ok());
                }
            });
            select(asked, told).await;
        }
        if self.check_outdated().is_ok() {
            self.0.raft.runtime_config().elect(true);
            self.0.asks.set(false);
            self.stand().await;
        }
    }

    /// As a leader that still has the only vote, as when it started: asks again, now and then.
    pub(super) fn ask_while_leading(&self) {
        if self.is_alone() && self.0.tick.get().is_multiple_of(timing::ALONE_LOOK_TICKS) {
            self.others().into_iter().for_each(|node| self.ask_for_rival(node));
        }
    }

    /// True if the only vote was this seat's at its start, and still is.
    pub(super) fn is_alone(&self) -> bool {
        // Before the library has said anything it knows of no voters.
        if self.0.alone.get() && self.voters() > 1 {
            self.0.alone.set(false);
        }
        self.0.alone.get()
    }

    /// One that leads or votes beside that seat, as is committed here, if the only vote is its own.
    pub(super) fn rival_of(&self, seat: Seat) -> Option<Seat> {
        let metrics = self.0.raft.metrics();
        let m = metrics.borrow_watched();
        let voters: BTreeSet<Seat> = m.committed_membership_config.membership().voter_ids().collect();
        let vote = voters.iter().copied().find(|v| *v != seat).filter(|_| voters.len() > 1);
        m.current_leader.filter(|l| *l != seat).or(vote)
    }

    /// Asks one node, unless that is under way.
    fn ask_for_rival(&self, node: NodeId) {
        if !self.0.asked.borrow_mut().insert(node) {
            return;
        }
        let peer = self.clone();
        self.spawn(async move {
            let to = Seat { node, store: 0 };
            let asked = peer.0.links.call_again(to, &Message::Here, timing::ALONE_ASKS, timing::ALONE_AGAIN);
            let answer = asked.await.ok();
            peer.0.asked.borrow_mut().remove(&node);
            peer.hear_rival(answer);
        });
    }

    fn hear_rival(&self, answer: Option<Message>) {
        if let Some(Message::Refused(Some(rival))) = answer
            && rival != self.seat()
            && self.is_alone()
        {
            self.0.rival.set(Some(rival));
            self.0.told.notify_waiters();
        }
    }

    /// As a seat that votes alone: false for a message that is not to be dealt with, because it is of one that leads or would
    /// like to, or is to another seat of this node.
    pub(super) fn may_be_heard(&self, e: &Envelope, message: &Message) -> bool {
        if !self.is_alone() {
            return true;
        }
        let is_mine = e.to == self.seat() || e.to.store == 0;
        match message {
            Message::Append(_) | Message::Piece { .. } => {
                self.hear_rival(Some(Message::Refused(Some(e.from))));
                return false;
            }
            // Of one that has joined since, as far as this store knows.
            Message::Vote(_) | Message::PreVote(_) => {
                self.ask_for_rival(e.from.node);
                return false;
            }
            Message::Join => self.ask_for_rival(e.from.node),
            _ => {}
        }
        is_mine
    }
}
