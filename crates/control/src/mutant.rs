//! Rules left out on purpose, so that tests can show that they would notice.

/// One rule that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// V1: new members come first.
    NewMembersFirst,
    /// V1: who is joining may lead.
    LearnersLead,
    /// V1: a head of an older start gets a number.
    OldStartsPropose,
    /// V6: whatever view is said to be ready becomes active, pending or not.
    ActivatesAnyView,
    /// V6, L3: a view that does not have the present attachment generation in it becomes active.
    OldGenerationsActive,
    /// V7: who was said to be complete in an earlier view is so in the present one.
    CompleteForEver,
    /// V7: former members let go of what they have as soon as another view is active.
    KeepersLetGo,
    /// V8: who comes with a lower start number than was seen is taken for the present node.
    OldImagesRegister,
    /// V9: of a shard the oldest view that was seen counts.
    OldestViewRebuilt,
    /// V9: what is gone on from is taken for active, whether it can be known or not.
    RebuiltIsActive,
    /// V9: numbers go on behind those of views; what was promised above is forgotten.
    PromisesForgotten,
    /// V11: a chain of fewer than min copies is planned.
    LeavesBelowLeast,
    /// V11: a chain is planned although too few are there to seal the view before it.
    LeavesUnsealed,
    /// V11: members that still learn are in the shorter chain, and count for whether it is needed.
    LearnersStay,
    /// V13: who leaves a chain that becomes shorter keeps nothing, and no place is kept for it.
    AwayForgotten,
    /// V14: who is to come to a chain, and fails, stays in the plan.
    ComingHoldsUp,
    /// V21: nodes stand in although fewer members that have everything are left than the volume is to have at least.
    StandsInForTooMany,
    /// V15: as many answers are taken to be behind any later view as the one that was found asks for.
    LeastIsOwn,
    /// V10: the view that follows an operator's word is taken for a branch, although its frame is none.
    SealsAreBranches,
    /// S1: a cut counts whatever view it was made in.
    OldViewsReport,
    /// S2: a snapshot that is not confirmed goes on when another view of one of its shards is active.
    SnapshotsOutliveViews,
}
