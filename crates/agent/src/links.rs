//! Links of drivers to members: one to each, shared by all drivers of a worker.
//!
//! Invariants: a member is dialled by one at a time; each driver that asked for a link hears what became of it. A link whose
//! end is heard before it is told of is none.

use freebs_driver::Event;
use freebs_io::LinkId;
use freebs_types::Peer;
use std::collections::BTreeMap;

/// The links of the drivers of one worker.
#[derive(Debug, Default)]
pub struct DriverLinks {
    links: BTreeMap<Peer, Way>,
}

/// The way to a member.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A link is being opened. The newest one, by its number, that ended meanwhile may be that one.
    Opening {
        ended: Option<LinkId>,
    },
    Open(LinkId),
}

/// The next step for a driver that wants a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// There is one: the driver is to hear of it, by [`DriverLinks::news`].
    Open(LinkId),
    /// One is being opened; the driver will hear of it with the others.
    Opening,
    /// One is to be opened; [`DriverLinks::opened`] wants the answer.
    Dial,
}

impl DriverLinks {
    /// A driver wants a link to this member.
    pub fn want(&mut self, peer: Peer) -> Wanted {
        match self.links.get(&peer) {
            Some(Way::Open(link)) => Wanted::Open(*link),
            Some(Way::Opening { .. }) => Wanted::Opening,
            None => {
                self.links.insert(peer, Way::Opening { ended: None });
                Wanted::Dial
            }
        }
    }

    /// A link is there, or can't be had now. The event is for all drivers.
    pub fn opened(&mut self, peer: Peer, link: Option<LinkId>) -> Event {
        let has_ended =
            |link: &LinkId| matches!(self.links.get(&peer), Some(Way::Opening { ended: Some(ended) }) if ended == link);
        let link = link.filter(|l| !has_ended(l));
        match link {
            Some(link) => self.links.insert(peer, Way::Open(link)),
            None => self.links.remove(&peer),
        };
        if link.is_some() { Event::LinkUp(peer) } else { Event::LinkDown(peer) }
    }

    /// News for a driver that found this link open, a little later: it may be gone by then, and the driver would trust
    /// in it for ever.
    #[must_use]
    pub fn news(&self, peer: Peer, link: LinkId) -> Event {
        if self.link(peer) == Some(link) { Event::LinkUp(peer) } else { Event::LinkDown(peer) }
    }

    /// A link is gone. The event is for all drivers, unless another link is in its place.
    pub fn closed(&mut self, peer: Peer, link: LinkId) -> Option<Event> {
        if let Some(Way::Opening { ended }) = self.links.get_mut(&peer) {
            *ended = (*ended).max(Some(link));
        }
        if self.link(peer) != Some(link) {
            return None;
        }
        self.links.remove(&peer);
        Some(Event::LinkDown(peer))
    }

    /// The link to this member, if one is open.
    #[must_use]
    pub fn link(&self, peer: Peer) -> Option<LinkId> {
        match self.links.get(&peer) {
            Some(Way::Open(link)) => Some(*link),
            _ => None,
        }
    }

    /// All links that are open.
    pub fn open(&self) -> impl Iterator<Item = LinkId> {
        self.links.keys().filter_map(move |peer| self.link(*peer))
    }
}
