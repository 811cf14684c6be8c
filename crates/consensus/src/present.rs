//! Whether a seat that votes alone, as it knows, is the present one: a pure function of its store and of what another one knows
//! (rule V8).
//!
//! Numbers alone don't say it: an old image that is started while nobody can tell counts on, and so has numbers that others gave,
//! too. So the logs decide. Nothing is ever committed without the only voter, and voters are never fewer than they were. So who
//! votes alone has all that anybody knows to be committed, and others vote only by entries that it has.

use crate::sound::agrees;
use crate::store::Contents;
use crate::types::{LogId, Seat};
use crate::wire::Known;
use freebs_types::StartNumber;

/// What comes of it for a seat that votes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing that it does not know.
    Nothing,
    /// It is not known yet who leads: it is asked again before it does.
    Waits,
    /// Its node was seen with this start, which is later than its own.
    OldStart(StartNumber),
    /// It lacks what was decided: its store is an old image.
    OldStore,
}

/// Judges a seat that votes alone by its store, and whose messages carry `start`.
#[must_use]
pub fn judge(me: Seat, start: StartNumber, here: &Contents, known: &Known) -> Verdict {
    if start < known.start {
        return Verdict::OldStart(known.start);
    }
    let lacks =
        |id: &LogId| here.last().is_none_or(|last| last.index() < id.index()) || agrees(id, here, None).is_err();
    if known.committed.is_some_and(|id| lacks(&id)) {
        return Verdict::OldStore;
    }
    let is_voter = |other: &Seat| known.members.membership().voter_ids().any(|v| v == *other);
    let has_voters = known.members.membership().voter_ids().next().is_some();
    let others_vote = known.members.membership().voter_ids().any(|v| v != me);
    let at = *known.members.log_id();
    match () {
        () if others_vote && at <= known.committed => Verdict::OldStore,
        // Who has the longer log may lead, and then it is known whether that was committed.
        () if others_vote && at > here.last() => Verdict::Waits,
        // It follows a seat that can lead only where others vote.
        () if has_voters && known.leader.is_some_and(|leader| leader != me && is_voter(&leader)) => Verdict::Waits,
        () => Verdict::Nothing,
    }
}
