//! The network as the cores see it: numbered links and an outbox.

use core::fmt;

/// One link (connection) of a worker; numbers are never used twice in a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "link {}", self.0)
    }
}

/// Where a worker puts what it wants to send. Sending never blocks and never fails visibly: what can't be
/// delivered is dropped together with its link, and the link's owner hears of that.
pub trait Outbox<M>: 'static {
    /// Sends `message` on the link `to`, in the order of the calls. If the link is gone, nothing happens.
    fn send(&self, to: LinkId, message: M);
}
