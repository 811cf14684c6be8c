//! Times of the control plane that its callers keep to, too. Those of consensus are in `freebs-consensus`.

/// Milliseconds that a `Watch` waits before it answers with nothing new. Longer saves a question now and then; shorter
/// notices a peer sooner that is gone without closing its connection, since a watcher gives up only some time after it.
pub const WATCH_MS: u64 = 10_000;
