//! Rules left out on purpose, by name, so that the tests can show that they would notice.

/// One rule left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A vote is answered when it is in memory; it is on stable media with the next area.
    VoteNotSynced,
    /// A log entry is acknowledged before it is on stable media.
    EntryNotSynced,
    /// The log is purged up to a snapshot that is not on stable media.
    PurgeBeforeSnapshot,
    /// A command that comes a second time is applied a second time.
    RepeatsAreApplied,
    /// Every start numbers its requests from 1 on.
    RequestsNumberedAnew,
    /// L5: who believes to lead decides without a quorum that says so, and goes on with it when another one leads.
    LeaderUnconfirmed,
    /// Messages of seats whose state comes from another founding are heard.
    EveryFoundingIsHeard,
    /// A node that is heard is there, however its devices are.
    HeardIsEnough,
    /// V11: no chain becomes shorter.
    ChainsStay,
    /// V13: nobody comes back to a chain that became shorter, nor does another node.
    NeverBack,
    /// V21: nobody stands in for members that have failed.
    NobodyStandsIn,
    /// V14: who had failed may come back to a chain as soon as it is heard, however often it has failed.
    BackAtOnce,
    /// E7: the first page that is not whole ends the log, whatever lies behind it.
    DamageIsATornTail,
}
