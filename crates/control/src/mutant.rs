//! Rules left out on purpose, so that tests can show that they would notice.

/// One rule that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// V6: whatever view is said to be ready becomes active, pending or not.
    ActivatesAnyView,
    /// V8: who comes with a lower start number than was seen is taken for the present node.
    OldImagesRegister,
    /// V9: of a shard the oldest view that was seen counts.
    OldestViewRebuilt,
    /// V9: what is gone on from is taken for active, whether it can be known or not.
    RebuiltIsActive,
    /// V9: numbers go on behind those of views; what was promised above is forgotten.
    PromisesForgotten,
}
