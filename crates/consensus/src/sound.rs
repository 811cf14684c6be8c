//! The rules for a message before the library hears of it.
//!
//! The library takes it that its peers are of its own kind. Where they are not, it asserts (in a release that ends the
//! node, since a panic aborts), stops for good, or keeps what can't be read again:
//! - `append_entries`: the vote is a leader's; the entries follow the one before without a gap, and no term is below
//!   that before it or above the leader's (`following_handler`, `log_id_list`); what is committed here is not another
//!   entry (`log_state_reader`); what is said to be committed is in the log (`run_save_committed_and_apply` unwraps);
//! - `install_full_snapshot`: the vote is a leader's; the last entry is none of a later term (asserted), and is behind
//!   what is committed here (asserted); the bytes can be read and are of that entry, for an error of the state machine
//!   ends the library;
//! - `vote`, `pre_vote`: the vote is a candidate's. In any message, a vote in the receiver's own name makes it a leader,
//!   or a candidate, that nobody has elected (`vote_handler`, `establish_handler`);
//! - answers to `append_entries`: no conflict where nothing was to come before (`into_stream_result` unwraps), and
//!   nothing is taken in part (`links`);
//! - terms and indexes are counted on from, and a store refuses those above `NUMBER_MAX`.
//!
//! The first part of this file needs the message alone and is part of decoding it; the second one knows the receiver. What
//! is right by what the receiver has committed is looked at when the library is about to deal with the message, and nothing
//! else is dealt with in between that may commit more (`Peer::follow`).

use crate::limits::{LOG_INDEX_MAX, TERM_MAX, TERMS_AHEAD_MAX};
use crate::machine::Machine;
use crate::store::Contents;
use crate::types::{Entry, LogId, Seat, SnapshotMeta, Types, Vote};
use crate::wire::Message;
use freebs_types::{ClusterId, Error, Result};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest};
use std::borrow::Cow;

fn refused<T>(why: impl Into<Cow<'static, str>>) -> Result<T> {
    Err(Error::corrupt(why))
}

fn term_of(id: &LogId) -> u64 {
    id.committed_leader_id().term
}

/// A vote as others may send it.
pub(crate) fn vote(v: Vote) -> Result<Vote> {
    match v.leader_id.term {
        term if term > TERM_MAX => refused(format!("a vote of term {term}; the highest is {TERM_MAX} (TERM_MAX)")),
        _ => Ok(v),
    }
}

/// The place of an entry as others may send it.
pub(crate) fn place(id: LogId) -> Result<LogId> {
    if term_of(&id) > TERM_MAX {
        return refused(format!("an entry of term {}; the highest is {TERM_MAX} (TERM_MAX)", term_of(&id)));
    }
    match id.index() {
        i if i > LOG_INDEX_MAX => refused(format!("an entry at {i}; the last one is {LOG_INDEX_MAX} (LOG_INDEX_MAX)")),
        _ => Ok(id),
    }
}

fn is_of(vote: &Vote, id: &LogId, what: &str) -> Result<()> {
    match vote.leader_id.term {
        term if term_of(id) > term => refused(format!("{what} of term {}, from term {term}", term_of(id))),
        _ => Ok(()),
    }
}

fn is_led(vote: &Vote) -> Result<()> {
    if vote.committed { Ok(()) } else { refused("entries or a snapshot of a seat that does not lead") }
}

/// A candidate's question.
pub(crate) fn asked(r: &VoteRequest<Types>) -> Result<()> {
    if r.vote.committed {
        return refused("a seat that leads asks for votes");
    }
    r.last_log_id.iter().try_for_each(|last| is_of(&r.vote, last, "a last entry"))
}

/// A leader's entries: one log with what is before and what is committed.
pub(crate) fn entries(r: &AppendEntriesRequest<Types>) -> Result<()> {
    is_led(&r.vote)?;
    let mut before = r.prev_log_id;
    r.prev_log_id.iter().try_for_each(|prev| is_of(&r.vote, prev, "an entry"))?;
    for e in &r.entries {
        place(e.log_id)?;
        is_of(&r.vote, &e.log_id, "an entry")?;
        if e.log_id.index() != before.map_or(0, |b| b.index() + 1) {
            return refused(format!("an entry at {} that does not follow the one before", e.log_id.index()));
        }
        if before.is_some_and(|b| term_of(&b) > term_of(&e.log_id)) {
            return refused(format!("an entry at {} of a term below the one before", e.log_id.index()));
        }
        before = Some(e.log_id);
    }
    let Some(committed) = r.leader_commit else { return Ok(()) };
    is_of(&r.vote, &committed, "a committed entry")?;
    let named = r.prev_log_id.into_iter().chain(r.entries.iter().map(|e| e.log_id));
    for id in named {
        let (terms, places) = (term_of(&id).cmp(&term_of(&committed)), id.index().cmp(&committed.index()));
        if terms != places && (places.is_eq() || terms == places.reverse()) {
            return refused(format!("the entry at {} is committed, and is another one", committed.index()));
        }
    }
    Ok(())
}

/// The entry and the members that a snapshot names.
pub(crate) fn snapshot(vote: &Vote, meta: &SnapshotMeta) -> Result<()> {
    is_led(vote)?;
    let Some(last) = meta.last_log_id else { return refused("a snapshot of nothing") };
    is_of(vote, &last, "a snapshot")?;
    match meta.last_membership.log_id() {
        Some(at) if at.index() <= last.index() && term_of(at) <= term_of(&last) => Ok(()),
        _ => refused("a snapshot whose members are not of its time"),
    }
}

/// The votes that a message brings, and whether they are the sender's own.
fn votes(m: &Message) -> Option<(Vote, bool)> {
    match m {
        Message::Append(r) => Some((r.vote, true)),
        Message::Vote(r) | Message::PreVote(r) => Some((r.vote, true)),
        Message::Piece { vote, .. } => Some((*vote, true)),
        Message::AppendReply(AppendEntriesResponse::HigherVote(vote)) => Some((*vote, false)),
        Message::VoteReply(r) => Some((r.vote, false)),
        Message::PieceReply { vote, .. } => vote.map(|v| (v, false)),
        _ => None,
    }
}

/// An error if a message of `from` can't be right for the seat that has these contents.
pub(crate) fn from(from: Seat, m: &Message, me: Seat, here: &Contents) -> Result<()> {
    if let Some((vote, is_own)) = votes(m) {
        let (seat, term) = (vote.leader_id.voted_for, vote.leader_id.term);
        let known = here.vote.map_or(0, |v| v.leader_id.term);
        if is_own && seat != from {
            return refused(format!("{from} speaks for {seat}"));
        }
        if seat == me && term > known {
            return refused(format!("a vote for this seat in term {term}; it has voted up to term {known}"));
        }
        if term > known.saturating_add(TERMS_AHEAD_MAX) {
            return refused(format!(
                "a vote of term {term}; known is {known}, and no more than {TERMS_AHEAD_MAX} were missed (TERMS_AHEAD_MAX)"
            ));
        }
    }
    match m {
        Message::Append(r) => agree(r, here, here.committed),
        _ => Ok(()),
    }
}

/// An error if one of the entries is not the one that is committed here, where `committed` is the last one.
pub(crate) fn agree(r: &AppendEntriesRequest<Types>, here: &Contents, committed: Option<LogId>) -> Result<()> {
    let ids = r.prev_log_id.into_iter().chain(r.entries.iter().map(|e| e.log_id));
    let mut ids = ids.filter(|id| committed.is_some_and(|c| id.index() <= c.index()));
    ids.try_for_each(|id| agrees(&id, here, committed))
}

/// An error if an entry is not the one that is committed here.
pub(crate) fn agrees(id: &LogId, here: &Contents, committed: Option<LogId>) -> Result<()> {
    let bound = [here.purged, committed].into_iter().flatten().filter(|b| b.index() >= id.index()).min();
    let same = match here.entries.get(&id.index()) {
        Some(e) => e.log_id == *id,
        None => bound.is_none_or(|b| *id <= b),
    };
    if same { Ok(()) } else { refused(format!("another entry than the one that is committed at {}", id.index())) }
}

/// The committed entry, if this seat has it once it has taken the entries; else it is not told.
pub(crate) fn known_committed(r: &AppendEntriesRequest<Types>, here: &Contents) -> Option<LogId> {
    let committed = r.leader_commit?;
    let at = |e: &Entry| (e.log_id.index() == committed.index()).then_some(e.log_id);
    let named = r.entries.iter().find_map(at).or(here.entries.get(&committed.index()).map(|e| e.log_id));
    match named {
        Some(id) => (id == committed).then_some(committed),
        // It is behind all that is here, or has been purged.
        None => {
            let last = r.entries.last().map(|e| e.log_id).or(here.last());
            let is_behind = last.is_none_or(|l| l.index() < committed.index() && term_of(&l) <= term_of(&committed));
            let is_purged = here.purged.is_some_and(|p| committed <= p);
            (is_behind || is_purged).then_some(committed)
        }
    }
}

/// An error if a snapshot can't take the place of what is committed here.
pub(crate) fn replaces(last: &LogId, committed: Option<&LogId>) -> Result<()> {
    match committed {
        Some(c) if last > c && last.index() <= c.index() => {
            refused(format!("a snapshot of another entry than the one that is committed at {}", last.index()))
        }
        _ => Ok(()),
    }
}

/// An error if the bytes of a snapshot can't be read, or are not what they came as.
pub(crate) fn is_of_its_place(bytes: &[u8], meta: &SnapshotMeta, cluster: ClusterId) -> Result<()> {
    let machine = Machine::decode(bytes, cluster)?;
    if machine.applied != meta.last_log_id || machine.membership != meta.last_membership {
        return refused("a snapshot is not of the entry that it came for");
    }
    Ok(())
}
