//! Votes, log ids, memberships, proposals and entries as bytes, for records on disk and for messages.
//!
//! Fields in a fixed order, little-endian, nothing optional but behind a byte that says so. They always lie under a
//! checksum; what does not decode all the same is `Corrupt`. Decoding never panics, and allocates no more than the
//! bytes it was given warrant.

use crate::limits;
use crate::machine::Proposal;
use crate::types::{Entry, LogId, Membership, Seat, StoredMembership, Vote, log_id};
use freebs_control::Command;
use freebs_control::codec::Fields;
use freebs_types::{Error, NodeId, Result};
use openraft::EntryPayload;
use std::collections::BTreeSet;

pub(crate) fn damaged() -> Error {
    Error::corrupt("a record of the control plane's log can't be read")
}

pub(crate) fn put_seat(out: &mut Vec<u8>, seat: Seat) {
    out.extend(seat.node.0.to_le_bytes());
    out.extend(seat.store.to_le_bytes());
}

pub(crate) fn seat(f: &mut Fields<'_>) -> Result<Seat> {
    Ok(Seat { node: NodeId(f.u64()?), store: f.u64()? })
}

pub(crate) fn put_log_id(out: &mut Vec<u8>, id: &LogId) {
    out.extend(id.committed_leader_id().term.to_le_bytes());
    out.extend(id.index().to_le_bytes());
}

pub(crate) fn get_log_id(f: &mut Fields<'_>) -> Result<LogId> {
    let (term, index) = (f.u64()?, f.u64()?);
    if term.max(index) > freebs_control::limits::NUMBER_MAX {
        return Err(damaged());
    }
    Ok(log_id(term, index))
}

pub(crate) fn put_optional_log_id(out: &mut Vec<u8>, id: Option<&LogId>) {
    out.push(u8::from(id.is_some()));
    if let Some(id) = id {
        put_log_id(out, id);
    }
}

pub(crate) fn get_optional_log_id(f: &mut Fields<'_>) -> Result<Option<LogId>> {
    if f.flag()? { get_log_id(f).map(Some) } else { Ok(None) }
}

pub(crate) fn put_vote(out: &mut Vec<u8>, vote: &Vote) {
    out.extend(vote.leader_id.term.to_le_bytes());
    put_seat(out, vote.leader_id.voted_for);
    out.push(u8::from(vote.committed));
}

pub(crate) fn get_vote(f: &mut Fields<'_>) -> Result<Vote> {
    let (term, seat, committed) = (f.u64()?, seat(f)?, f.flag()?);
    if term > freebs_control::limits::NUMBER_MAX {
        return Err(damaged());
    }
    Ok(if committed { Vote::new_committed(term, seat) } else { Vote::new(term, seat) })
}

fn put_seats<'a>(out: &mut Vec<u8>, seats: impl ExactSizeIterator<Item = &'a Seat>) {
    out.extend((seats.len() as u16).to_le_bytes());
    seats.for_each(|s| put_seat(out, *s));
}

fn get_seats(f: &mut Fields<'_>, most: usize) -> Result<BTreeSet<Seat>> {
    let count = f.u16()? as usize;
    if count > most {
        return Err(damaged());
    }
    (0..count).map(|_| seat(f)).collect()
}

pub(crate) fn put_membership(out: &mut Vec<u8>, m: &Membership) {
    let configs = m.get_joint_config();
    out.push(configs.len() as u8);
    configs.iter().for_each(|c| put_seats(out, c.iter()));
    let all: Vec<Seat> = m.nodes().map(|(s, ())| *s).collect();
    put_seats(out, all.iter());
}

pub(crate) fn get_membership(f: &mut Fields<'_>) -> Result<Membership> {
    let configs = f.byte()?;
    if configs > 2 {
        return Err(damaged());
    }
    let configs: Vec<_> = (0..configs).map(|_| get_seats(f, limits::VOTERS_MAX)).collect::<Result<_>>()?;
    let all = get_seats(f, limits::SEATS_MAX)?;
    if configs.is_empty() {
        return if all.is_empty() { Ok(Membership::default()) } else { Err(damaged()) };
    }
    let nodes: std::collections::BTreeMap<Seat, ()> = all.into_iter().map(|s| (s, ())).collect();
    Membership::new(configs, nodes).map_err(|_| damaged())
}

pub(crate) fn put_stored_membership(out: &mut Vec<u8>, m: &StoredMembership) {
    put_optional_log_id(out, m.log_id().as_ref());
    put_membership(out, m.membership());
}

pub(crate) fn get_stored_membership(f: &mut Fields<'_>) -> Result<StoredMembership> {
    let (at, members) = (get_optional_log_id(f)?, get_membership(f)?);
    // Nobody votes only before the first entry.
    if at.is_some() && members.get_joint_config().is_empty() {
        return Err(damaged());
    }
    Ok(StoredMembership::new(at, members))
}

pub(crate) fn put_proposal(out: &mut Vec<u8>, p: &Proposal) -> Result<()> {
    match p {
        Proposal::OpenSession => out.push(1),
        Proposal::Command { session, number, floor, command } => {
            out.push(2);
            [*session, *number, *floor].iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(command.encode()?);
        }
    }
    Ok(())
}

/// The proposal in what is left of `f`.
pub(crate) fn get_proposal(f: &mut Fields<'_>) -> Result<Proposal> {
    match f.byte()? {
        1 => {
            f.end()?;
            Ok(Proposal::OpenSession)
        }
        2 => {
            let (session, number, floor) = (f.u64()?, f.u64()?, f.u64()?);
            let command = Box::new(Command::decode(f.take(f.0.len())?)?);
            Ok(Proposal::Command { session, number, floor, command })
        }
        _ => Err(damaged()),
    }
}

/// Appends an entry: its log id, its kind, and its proposal or membership. An error if the command is too large.
pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) -> Result<()> {
    put_log_id(out, &entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => out.push(0),
        EntryPayload::Normal(p) => {
            out.push(1);
            put_proposal(out, p)?;
        }
        EntryPayload::Membership(m) => {
            out.push(2);
            put_membership(out, m);
        }
    }
    Ok(())
}

/// The entry that `bytes` are.
pub fn get_entry(bytes: &[u8]) -> Result<Entry> {
    if bytes.len() > limits::ENTRY_BYTES_MAX {
        return Err(damaged());
    }
    let f = &mut Fields(bytes);
    let log_id = get_log_id(f)?;
    let payload = match f.byte()? {
        0 => EntryPayload::Blank,
        1 => EntryPayload::Normal(get_proposal(f)?),
        2 => EntryPayload::Membership(get_membership(f)?),
        _ => return Err(damaged()),
    };
    if matches!(&payload, EntryPayload::Membership(m) if m.get_joint_config().is_empty()) {
        return Err(damaged());
    }
    f.end()?;
    Ok(Entry { log_id, payload })
}
