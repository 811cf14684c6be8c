//! Rules left out on purpose, by name.

use crate::cluster::Mutants;
use freebs_chain::Mutant as Chain;
use freebs_consensus::Mutant as Seats;
use freebs_control::Mutant as Control;
use freebs_driver::Mutant as Driver;

/// Mutants of the chain. Some are not among them, and the tests of `chain` notice them. `LeasesToAnyone` (L2) and
/// `ForeignLeasesUnknown` (L3): an older driver here hears of a newer one from some member before it can use such a lease.
/// `RequestsOfAnyone` (W1): for the same reason one run in hundreds shows it. `PlansStopOrders`: nothing is wrong with what
/// a head does that stops for too long. `EmptyLogsCount` (V2): no disk that was lost gets to answer here (V8).
/// `ShortChainsOrder` (V1): no chain becomes shorter than it may be. `LeasesInPendingViews`, `LeasesBeforeDurable`, `OlderLeasesUntold` and
/// `OlderDriversAnswered` (L2): an older driver that lives has its answers before a newer one gives its first success, or is
/// fenced by another member; 300 seeds show none of them.
/// `BranchNamesTheToken` (V10): a log that hides the break is as good as any other to those who go on from it.
/// `LostLogsGoOn` (V10): it takes a lost member that knew of more committed frames than the best log has, and is to be a
/// member again; a story of `chain` tells it. `SurvivorsBeginAnew` (V10): a chain that goes on by force has two survivors
/// only where four or five copies were, and one of them would have to be late. `ForcedAlone` (V10): for the same reason.
/// `BackPassedOver` (V10): a member would have to be back between the operator's look and the seal, and to have more.
/// `ForksGivenUp`: all members would have to be late for their forks at once. `LateForksUntold` (V2): the late member would have
/// to be named head while it still learns. `ForksToComeUnread` (E10), `ForksToComeAlone`, `OrphansGoOn` (E7), `TurnsStay`: a
/// parent would have to go between a clone's command and its fork, and clones of two parents that go to lie on one node.
/// `GivenUpCounts` (V10): it would have to be back in the ten seconds before frames are given up.
/// `QuorumsApart` (L6): no chain here has six members. `LeftOnesSeal` (V12): heads ask nobody but the members.
pub const CHAIN: [Chain; 37] = [
    Chain::HeadOrdersAfterRestart,
    Chain::RepeatsAreApplied,
    Chain::AnswersBeforeDurable,
    Chain::CommittedUntold,
    Chain::OrderedIsCommitted,
    Chain::GapsAreSkipped,
    Chain::FloorIgnored,
    Chain::NoAttachBarrier,
    Chain::MembersChangeInView,
    Chain::QuorumOfThoseThere,
    Chain::MajorityIsEnough,
    Chain::PromiseNotDurable,
    Chain::PromisesGo,
    Chain::LeavesByOldStates,
    Chain::SealAlone,
    Chain::ShortestLogWins,
    Chain::ActiveTooEarly,
    Chain::QuorumOfOne,
    Chain::MembersRoomIgnored,
    Chain::SecretMadeUp,
    Chain::HeadDoesNotStepDown,
    Chain::SealsBelowCommitted,
    Chain::PendingFramesCount,
    Chain::LeasesPastPromises,
    Chain::CompleteTooEarly,
    Chain::LearnsTheStateOnly,
    Chain::ForcedFromCommitted,
    Chain::OrdersBehindCuts,
    Chain::CutsBeforeCommitted,
    Chain::ConfirmsWithoutHold,
    Chain::ReleasesWhatIsKept,
    Chain::PreparedForgotten,
    Chain::DecisionsUncommitted,
    Chain::AbortsUnrecorded,
    Chain::DecisionsForgotten,
    Chain::AttachesPastIntervals,
    Chain::CutsThroughIntervals,
];

/// Mutants of the driver. `OlderNotWaitedFor` (L3), `LeasesOfAnyView` and `OneLeaseIsEnough` (L1) are not among them, for the
/// same reason; the tests of `driver` notice them.
pub const DRIVER: [Driver; 12] = [
    Driver::CountAcrossViews,
    Driver::NoReadFloor,
    Driver::NoBarrier,
    Driver::NoReadWait,
    Driver::ForgetGivenUp,
    Driver::SplitInterval,
    Driver::DecideEarly,
    Driver::SharedUpdates,
    Driver::NewNumberOnRepeat,
    Driver::AnswerOrdered,
    Driver::TrustBytes,
    Driver::AnswerWithoutLease,
];

/// Mutants of the control plane. `RebuiltIsActive` (V9) is not among them: it takes two losses of the control state during
/// one opening, which one run in thousands has; the tests of `control` go through all of them. Neither are `OldStartsPropose`
/// (V1): whoever proposed is dead before its next start registers; `CompleteForEver` and `KeepersLetGo` (V7): a member would
/// have to be lost for good while another one still learns; `LearnersLead` (V1): one run in hundreds moves a head while a
/// member learns. `NewMembersFirst` (V1): a new member that opens a view fetches all of the one before it first, which
/// takes longer and shows nothing wrong in hundreds of runs.
/// `LeavesBelowLeast`, `LeavesUnsealed` and `LearnersStay` (V11), `ComingHoldsUp` (V14) and `AwayForgotten` (V13): what they do
/// is late or dear, and nothing wrong; seldom by so much that clients would wait for as long as with `ChainsStay`.
/// `LeastIsOwn` (V15): no rebuild leaves out nodes of a chain that had become shorter.
/// `SealsAreBranches` (V10): the lost would have to be back between the operator's word and the seal.
pub const CONTROL: [Control; 7] = [
    Control::ActivatesAnyView,
    Control::OldGenerationsActive,
    Control::OldImagesRegister,
    Control::OldestViewRebuilt,
    Control::PromisesForgotten,
    Control::OldViewsReport,
    Control::SnapshotsOutliveViews,
];

/// Mutants of whoever leads the control plane, in runs with seats and without.
pub const LEADER: [Seats; 3] = [Seats::LeaderUnconfirmed, Seats::ChainsStay, Seats::NeverBack];

/// Mutants of the nodes' seats, for runs that have them. The tests of `consensus` hunt all; `tests/suite/raft.rs` shows that
/// these are noticed here, too.
pub const SEATS: [Seats; 2] = [Seats::EntryNotSynced, Seats::VoteNotSynced];

/// All mutants that are hunted in whatever runs there are, with their names.
#[must_use]
pub fn all() -> Vec<(String, Mutants)> {
    let chain = CHAIN.iter().map(|m| (format!("{m:?}"), Mutants { chain: Some(*m), ..Mutants::default() }));
    let driver = DRIVER.iter().map(|m| (format!("{m:?}"), Mutants { driver: Some(*m), ..Mutants::default() }));
    let control = CONTROL.iter().map(|m| (format!("{m:?}"), Mutants { control: Some(*m), ..Mutants::default() }));
    let leader = LEADER.iter().map(|m| (format!("{m:?}"), Mutants { seats: Some(*m), ..Mutants::default() }));
    chain.chain(driver).chain(control).chain(leader).collect()
}

fn all_and_seats() -> impl Iterator<Item = (String, Mutants)> {
    let seats = SEATS.iter().map(|m| (format!("{m:?}"), Mutants { seats: Some(*m), ..Mutants::default() }));
    all().into_iter().chain(seats)
}

/// The mutant of that name.
#[must_use]
pub fn mutant_by_name(name: &str) -> Option<Mutants> {
    all_and_seats().find(|(n, _)| n == name).map(|(_, m)| m)
}

/// Names of all mutants, as `--mutant` takes them.
#[must_use]
pub fn mutant_names() -> Vec<String> {
    all_and_seats().map(|(n, _)| n).collect()
}
