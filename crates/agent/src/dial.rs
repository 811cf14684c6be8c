//! Links between members: whom this worker opens one to, and when again.
//!
//! Invariants:
//! - Of two members the one with the lower node id opens the link; the other one takes none that it would have to open.
//! - A member that is wanted is dialled, or has a link, or its next attempt has a time. Each pause is twice as long as the
//!   one before, until there are news of the member.
//! - A member that is wanted no more is not dialled again.
//! - Whoever dials may hear that a link is closed before it tells of it: such a link is closed.

use crate::timing;
use freebs_chain::Who;
use freebs_control::State;
use freebs_format::wire::Role;
use freebs_io::LinkId;
use freebs_types::{Error, Nanos, NodeId, Peer, Result, StartNumber, limits};
use std::collections::{BTreeMap, BTreeSet};

/// A link that lasted only a moment counts as so many attempts that failed: whatever ended it may end the next one, too.
/// The pause is 320 ms then, and the next ones 500.
const FAILED_AT_ONCE: u32 = 4;
/// Links that closed while members were being dialled and that are remembered: more than can have come to be in that time.
const ENDED_MAX: usize = 1024;

/// How a member is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The next attempt is made at this time.
    Due(Nanos),
    Dialling,
    Open {
        link: LinkId,
        since: Nanos,
    },
}

#[derive(Clone, Copy, Debug)]
struct Member {
    way: Way,
    /// Attempts that failed since the last news.
    failed: u32,
    wanted: bool,
}

/// The links that one worker opens to other members.
#[derive(Debug)]
pub struct Dialler {
    me: Peer,
    members: BTreeMap<Peer, Member>,
    /// Links that closed and were not open here, as long as somebody is being dialled: one of them may be told of later.
    /// The newest, by their numbers, are kept.
    ended: BTreeSet<LinkId>,
}

/// True if the first of two members opens the link between them. Node 0 is a gateway, which is no member.
#[must_use]
pub fn dials(from: Peer, to: Peer) -> bool {
    from.node.0 > 0 && from.node < to.node
}

/// The peer that opens a link to `me`, and says that it is `from` in this role. An error if it can't be true.
pub fn caller(me: Peer, from: Peer, role: Role) -> Result<Who> {
    match role {
        Role::Node if dials(from, me) && usize::from(from.worker) < limits::WORKERS_MAX => Ok(Who::Member(from)),
        Role::Node => Err(Error::invalid(format!("{from} is no member that would connect here"))),
        _ => Ok(Who::Driver),
    }
}

/// `Corrupt` if a node that is at the other end of a link has registered a later start than the one that it comes with: it runs
/// on an old image, or has ended since (rule V8).
pub fn check_start(known: &State, node: NodeId, start: StartNumber) -> Result<()> {
    match known.node(node).map(|n| n.start).filter(|registered| start < *registered) {
        None => Ok(()),
        Some(registered) => {
            Err(Error::corrupt(format!("node {node} comes with start number {start}, and was seen with {registered}")))
        }
    }
}

impl Dialler {
    /// For this worker, which has no links yet.
    #[must_use]
    pub fn new(me: Peer) -> Self {
        Self { me, members: BTreeMap::new(), ended: BTreeSet::new() }
    }

    /// The members that a link is wanted to by now, as the worker says it.
    pub fn want(&mut self, now: Nanos, wanted: &BTreeSet<Peer>) {
        for (peer, member) in &mut self.members {
            member.wanted = wanted.contains(peer);
        }
        // A link that is open stays until it breaks.
        self.members.retain(|_, m| m.wanted || !matches!(m.way, Way::Due(_)));
        for peer in wanted.iter().filter(|p| dials(self.me, **p)) {
            let new = Member { way: Way::Due(now), failed: 0, wanted: true };
            self.members.entry(*peer).or_insert(new);
        }
    }

    /// These nodes may answer now: members there that have no link are dialled at once, and their pauses begin with the
    /// shortest again.
    pub fn hear_of(&mut self, now: Nanos, nodes: &[NodeId]) {
        for (_, member) in self.members.iter_mut().filter(|(peer, _)| nodes.contains(&peer.node)) {
            member.failed = 0;
            if let Way::Due(at) = &mut member.way {
                *at = now.min(*at);
            }
        }
    }

    /// The members that are to be dialled now. Each needs an answer: [`Self::opened`] or [`Self::failed`].
    pub fn due(&mut self, now: Nanos) -> Vec<Peer> {
        let mut due = Vec::new();
        for (peer, member) in &mut self.members {
            if matches!(member.way, Way::Due(at) if at <= now) {
                member.way = Way::Dialling;
                due.push(*peer);
            }
        }
        due
    }

    /// The time of the next attempt, if one is to be made.
    #[must_use]
    pub fn next(&self) -> Option<Nanos> {
        let at = |m: &Member| match m.way {
            Way::Due(at) => Some(at),
            _ => None,
        };
        self.members.values().filter_map(at).min()
    }

    /// A member has answered.
    pub fn opened(&mut self, now: Nanos, peer: Peer, link: LinkId) {
        if let Some(member) = self.members.get_mut(&peer) {
            member.way = Way::Open { link, since: now };
        }
        if self.ended.contains(&link) {
            self.closed(now, link);
        }
        self.forget_ended();
    }

    /// A member has not answered.
    pub fn failed(&mut self, now: Nanos, peer: Peer) {
        self.try_again(peer, |member| now.plus(member.pause()));
        self.forget_ended();
    }

    /// A link that was opened here is gone.
    pub fn closed(&mut self, now: Nanos, link: LinkId) {
        let is_it = |m: &Member| matches!(m.way, Way::Open { link: l, .. } if l == link);
        let Some((peer, Way::Open { since, .. })) =
            self.members.iter().find(|(_, m)| is_it(m)).map(|(p, m)| (*p, m.way))
        else {
            self.ended.insert(link);
            if self.ended.len() > ENDED_MAX {
                self.ended.pop_first();
            }
            return self.forget_ended();
        };
        let is_steady = now.since(since) >= timing::LINK_STEADY;
        self.try_again(peer, |member| {
            member.failed = if is_steady { 0 } else { FAILED_AT_ONCE };
            if is_steady { now } else { now.plus(member.pause()) }
        });
    }

    fn forget_ended(&mut self) {
        if self.members.values().all(|m| m.way != Way::Dialling) {
            self.ended.clear();
        }
    }

    fn try_again(&mut self, peer: Peer, at: impl FnOnce(&mut Member) -> Nanos) {
        let Some(member) = self.members.get_mut(&peer) else { return };
        member.way = Way::Due(at(member));
        if !member.wanted {
            self.members.remove(&peer);
        }
    }
}

impl Member {
    fn pause(&mut self) -> Nanos {
        let pause = timing::LINK_BACK_OFF_MIN.0 << self.failed.min(16);
        self.failed = self.failed.saturating_add(1);
        Nanos(pause.min(timing::LINK_BACK_OFF_MAX.0))
    }
}
