//! The types that the consensus library is used with.
//!
//! A voter is a [`Seat`]: a node together with the store in which it keeps votes and log. A node whose store is lost
//! comes back in a new seat, as a learner, and its old seat, which may have voted, is never believed to be it.

use crate::machine::{Answer, Proposal};
use crate::runtime::OneThread;
use core::fmt;
use freebs_types::NodeId;
use openraft::vote::leader_id_std;
use openraft_rt::deterministic_rng::DeterministicRng;

/// A node and its store. The number of a store is random, made with it, and never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seat {
    /// The node.
    pub node: NodeId,
    /// Random number of the store; 0 in an address means whichever store the node has.
    pub store: u64,
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}.{:08x}", self.node, self.store & 0xffff_ffff)
    }
}

openraft::declare_raft_types!(
    /// What the library is instantiated with: one leader per term, and randomness that comes from a seed.
    pub Types:
        D = Proposal,
        R = Answer,
        NodeId = Seat,
        Node = (),
        Term = u64,
        LeaderId = leader_id_std::LeaderId<u64, Seat>,
        AsyncRuntime = DeterministicRng<OneThread>,
);

type Committed = leader_id_std::CommittedLeaderId<u64>;
/// Term and index of an entry.
pub type LogId = openraft::LogId<Committed>;
/// A term, and the seat that is voted for in it.
pub type Vote = openraft::Vote<leader_id_std::LeaderId<u64, Seat>>;
/// An entry of the log: a proposal, a membership, or nothing.
pub type Entry = openraft::Entry<Committed, openraft::EntryPayload<Proposal, Seat, ()>>;
/// The sets of voters (two of them during a change), and all members.
pub type Membership = openraft::Membership<Seat, ()>;
/// A membership, and the entry that it came with.
pub type StoredMembership = openraft::StoredMembership<Committed, Seat, ()>;
/// The state that a snapshot has: the last entry in it, and the membership as of that.
pub type SnapshotMeta = openraft::SnapshotMeta<Committed, Seat, ()>;
/// A snapshot as the library hands it around; its bytes are shared, not copied.
pub type Snapshot = openraft::Snapshot<Committed, Seat, (), std::rc::Rc<Vec<u8>>>;
/// All chance that the library takes, from one seed.
pub type Randomness = DeterministicRng<OneThread>;

/// The log id of a term and an index.
#[must_use]
pub fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(leader_id_std::CommittedLeaderId::new(term), index)
}

/// An error as the library wants it from storage.
pub(crate) fn io_error(e: freebs_types::Error) -> std::io::Error {
    std::io::Error::other(e)
}
