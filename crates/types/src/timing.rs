//! Times that more than one crate keeps to: what a member grants, a driver relies on. Times of one crate stand in its
//! own `timing.rs`.

/// Milliseconds. A link that is silent this long while something is outstanding is passed over: the head stops waiting
/// for it, and a member asks for the frames that did not come. Far above a round trip and a device's slow sync (a few
/// ms), so a healthy member is not passed over; far below what a client notices as a stall.
pub const LINK_SILENCE_MS: u64 = 50;
/// Milliseconds. A lease lets a driver answer its client this long, counted from the driver's asking (L1); the member
/// that gave it counts from its answer. A new attachment by force may have to wait for all of it, so it is short. Even
/// shorter, a pause of a member or of the network would make its driver hold answers back.
pub const LEASE_MS: u64 = 2000;
/// Clocks of nodes and drivers run too fast or too slow by at most one part in this many. Quartz is off by less than
/// one part in 10,000; the rest is for virtual machines and for clocks that are being slewed.
pub const CLOCK_DRIFT_ONE_IN: u64 = 100;
