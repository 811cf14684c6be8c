//! Messages between seats: a header of 96 bytes and a body.
//!
//! Every message names the cluster, who sends it in which start, and whom it is for, so that nothing that was meant
//! for an older store of a node, or comes from an old image of one, is taken in. Nothing that arrives can panic a
//! node, or make it allocate more than `MESSAGE_BYTES_MAX`. `docs/formats/control.md` has the byte map.

use crate::codec::{get_optional_log_id as any_log_id, get_stored_membership as any_members, get_vote as any_vote, *};
use crate::limits;
use crate::machine::{Answer, Proposal};
use crate::sound;
use crate::types::{LogId, Seat, SnapshotMeta, StoredMembership, Types, Vote};
use freebs_control::codec::{Fields, decode_result, encode_result};
use freebs_format::crc32c;
use freebs_types::{ClusterId, Error, NodeId, Result, StartNumber};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a message between seats.
pub const MESSAGE_MAGIC: [u8; 4] = *b"FBCM";
/// Version of these messages.
pub const MESSAGE_VERSION: u16 = 4;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 104;

/// The version of a message between seats that is of another one than these. It stands at the same place in all of them, and
/// the checksum does not, so it is looked at first.
#[must_use]
pub fn other_version(bytes: &[u8]) -> Option<u16> {
    let version = bytes.strip_prefix(&MESSAGE_MAGIC)?.first_chunk()?;
    Some(u16::from_le_bytes(*version)).filter(|v| *v != MESSAGE_VERSION)
}

/// The node that a message says it is from, unread otherwise; `None` if it is too short to be one.
#[must_use]
pub fn sender(bytes: &[u8]) -> Option<NodeId> {
    let (head, _) = SeatHeader::ref_from_prefix(bytes).ok()?;
    Some(NodeId(head.from_node.get()))
}

/// Head of a message; the body follows at once.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SeatHeader {
    /// Always `FBCM`.
    pub magic: [u8; 4],
    /// Always 3.
    pub version: U16,
    /// One of `kind`.
    pub kind: U16,
    /// Bytes of header and body.
    pub total_len: U32,
    /// CRC-32C of the body.
    pub body_crc: U32,
    /// Identity of the cluster.
    pub cluster: [u8; 16],
    /// The sender's node.
    pub from_node: U64,
    /// The sender's store.
    pub from_store: U64,
    /// The receiver's node.
    pub to_node: U64,
    /// 0: whichever store the node has.
    pub to_store: U64,
    /// Number of the request, for its answer.
    pub id: U64,
    /// Start number of the sender (rule V8).
    pub start: U64,
    /// Number of the founding that the sender's state comes from; 0 if it has none yet.
    pub founding: U64,
    /// Bytes that the sender's logs take; 0 if that is not known.
    pub room_bytes: U64,
    /// One of `Devices`.
    pub devices: U16,
    /// Hundredths of `room_bytes` that live data take, at most 100; with the highest bit, if a replica there lacks anything.
    pub used_percent: U16,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<SeatHeader>() == HEADER_BYTES);

/// Kinds of messages.
pub mod kind {
    /// `Message::Append`.
    pub const APPEND: u16 = 1;
    /// `Message::AppendReply`.
    pub const APPEND_REPLY: u16 = 2;
    /// `Message::Vote`.
    pub const VOTE: u16 = 3;
    /// `Message::PreVote`.
    pub const PRE_VOTE: u16 = 4;
    /// `Message::VoteReply`.
    pub const VOTE_REPLY: u16 = 5;
    /// `Message::Piece`.
    pub const PIECE: u16 = 6;
    /// `Message::PieceReply`.
    pub const PIECE_REPLY: u16 = 7;
    /// `Message::Propose`.
    pub const PROPOSE: u16 = 8;
    /// `Message::ProposeReply`.
    pub const PROPOSE_REPLY: u16 = 9;
    /// `Message::Join`.
    pub const JOIN: u16 = 10;
    /// `Message::Refused`.
    pub const REFUSED: u16 = 11;
    /// `Message::Outdated`.
    pub const OUTDATED: u16 = 12;
    /// `Message::Doubt`.
    pub const DOUBT: u16 = 13;
    /// `Message::Gone`.
    pub const GONE: u16 = 14;
    /// `Message::Here`.
    pub const HERE: u16 = 15;
}

/// One message.
#[derive(Clone, Debug)]
pub enum Message {
    /// Leader to others: entries that follow one that they are to have, none in a heartbeat.
    Append(AppendEntriesRequest<Types>),
    /// The entries were taken, up to where, or why not.
    AppendReply(AppendEntriesResponse<Types>),
    /// A candidate asks for a vote in a new term.
    Vote(VoteRequest<Types>),
    /// The same, asked without raising the term: would the vote be given?
    PreVote(VoteRequest<Types>),
    /// The answer to both.
    VoteReply(VoteResponse<Types>),
    /// A piece of a snapshot, in order.
    Piece {
        /// The leader's vote.
        vote: Vote,
        /// The last entry in the snapshot, and the membership as of that.
        meta: SnapshotMeta,
        /// First byte of the piece in the machine's bytes.
        offset: u64,
        /// Bytes of the whole machine.
        total: u64,
        /// The piece, at most 256 KiB.
        bytes: Vec<u8>,
    },
    /// Bytes that are there; with the last piece, the vote of who has installed it.
    PieceReply {
        /// Bytes from the start that the receiver has; the next piece begins there.
        have: u64,
        /// The receiver's vote once it has installed the snapshot; `None` before.
        vote: Option<Vote>,
    },
    /// To the leader.
    Propose(Proposal),
    /// The answer to `Propose`, once the entry is applied at the leader.
    ProposeReply(Answer),
    /// The sender wants to be a learner.
    Join,
    /// Not done; the leader is (perhaps) somebody else. To `Here` with a number, which a seat asks that votes alone: one that
    /// leads or votes beside it, if any does.
    Refused(Option<Seat>),
    /// The receiver's node is registered with this start number, and its messages carry a lower one (rule V8).
    Outdated(StartNumber),
    /// The sender can't reach this node; can the receiver?
    Doubt(NodeId),
    /// The sender can't reach this node: the answer to `Doubt`, to all voters if the node is that of their leader.
    Gone {
        /// The node that can't be reached.
        node: NodeId,
        /// The term in which it leads, as the sender knows; 0 if it does not, or if the sender is of an earlier version.
        term: u64,
    },
    /// Nothing is asked: it is sent to see whether it arrives.
    Here,
}

/// The state of a node's devices, as its seat says it with each message. A seat may be heard while they do nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum Devices {
    /// The cluster has taken the node in, and they answer.
    #[default]
    Work = 0,
    /// They are not in use yet: the node is recovering what they have, or has not been taken in.
    Begin = 1,
    /// A write, a sync or a read has waited for too long.
    Silent = 2,
}

impl Devices {
    fn of(field: u16) -> Result<Self> {
        match field {
            0 => Ok(Self::Work),
            1 => Ok(Self::Begin),
            2 => Ok(Self::Silent),
            _ => Err(refused("a message of devices in a state that there is not")),
        }
    }
}

/// The room that the logs of a node have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes that they take; 0 if that is not known.
    pub bytes: u64,
    /// Hundredths of them that live data take, at most 100.
    pub used_percent: u8,
    /// No replica there is known to lack anything.
    pub is_level: bool,
}

impl Room {
    /// Set where a replica lacks something.
    const LACKS: u16 = 1 << 15;

    fn of(bytes: u64, field: u16) -> Result<Self> {
        match u8::try_from(field & !Self::LACKS) {
            Ok(used_percent @ ..=100) => Ok(Self { bytes, used_percent, is_level: field & Self::LACKS == 0 }),
            _ => Err(refused("a message of a node with more data than room")),
        }
    }

    fn field(self) -> u16 {
        u16::from(self.used_percent) | if self.is_level { 0 } else { Self::LACKS }
    }
}

/// Where a message comes from and goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The cluster of the sender; a message of another one is dropped.
    pub cluster: ClusterId,
    /// The sender.
    pub from: Seat,
    /// The receiver; store 0 means whichever store the node has.
    pub to: Seat,
    /// Start number that is durable on the sender's devices (rule V8).
    pub start: StartNumber,
    /// Number of the founding that the sender's state comes from; 0 if it has none yet. Seats hear only those of the same.
    pub founding: u64,
    /// The state of the sender's devices.
    pub devices: Devices,
    /// The room of the sender's logs.
    pub room: Room,
    /// Number of the request, the same in its answer; 0 if no answer is wanted.
    pub id: u64,
}

fn refused(what: &'static str) -> Error {
    Error::corrupt(what)
}

/// A vote, within what others may name.
fn get_vote(f: &mut Fields<'_>) -> Result<Vote> {
    sound::vote(any_vote(f)?)
}

fn get_optional_log_id(f: &mut Fields<'_>) -> Result<Option<LogId>> {
    any_log_id(f)?.map(sound::place).transpose()
}

fn get_stored_membership(f: &mut Fields<'_>) -> Result<StoredMembership> {
    let members = any_members(f)?;
    members.log_id().map(sound::place).transpose()?;
    Ok(members)
}

fn put_vote_request(out: &mut Vec<u8>, r: &VoteRequest<Types>) {
    put_vote(out, &r.vote);
    put_optional_log_id(out, r.last_log_id.as_ref());
    out.push(u8::from(r.leadership_transfer));
}

fn vote_request(f: &mut Fields<'_>) -> Result<VoteRequest<Types>> {
    let mut r = VoteRequest::new(get_vote(f)?, get_optional_log_id(f)?);
    r.leadership_transfer = f.flag()?;
    sound::asked(&r)?;
    Ok(r)
}

fn put_append(out: &mut Vec<u8>, r: &AppendEntriesRequest<Types>) -> Result<()> {
    put_vote(out, &r.vote);
    put_optional_log_id(out, r.prev_log_id.as_ref());
    put_optional_log_id(out, r.leader_commit.as_ref());
    out.extend((r.entries.len() as u32).to_le_bytes());
    for e in &r.entries {
        let at = out.len();
        out.extend([0; 4]);
        put_entry(out, e)?;
        let len = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
    Ok(())
}

fn append(f: &mut Fields<'_>) -> Result<AppendEntriesRequest<Types>> {
    let (vote, prev_log_id, leader_commit) = (get_vote(f)?, get_optional_log_id(f)?, get_optional_log_id(f)?);
    let count = f.u32()?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let len = f.u32()? as usize;
        entries.push(get_entry(f.take(len)?)?);
    }
    let r = AppendEntriesRequest { vote, prev_log_id, entries, leader_commit };
    sound::entries(&r)?;
    Ok(r)
}

fn put_append_reply(out: &mut Vec<u8>, r: &AppendEntriesResponse<Types>) {
    match r {
        AppendEntriesResponse::Success => out.push(0),
        AppendEntriesResponse::PartialSuccess(id) => {
            out.push(1);
            put_optional_log_id(out, id.as_ref());
        }
        AppendEntriesResponse::Conflict => out.push(2),
        AppendEntriesResponse::HigherVote(v) => {
            out.push(3);
            put_vote(out, v);
        }
    }
}

fn append_reply(f: &mut Fields<'_>) -> Result<AppendEntriesResponse<Types>> {
    Ok(match f.byte()? {
        0 => AppendEntriesResponse::Success,
        1 => AppendEntriesResponse::PartialSuccess(get_optional_log_id(f)?),
        2 => AppendEntriesResponse::Conflict,
        3 => AppendEntriesResponse::HigherVote(get_vote(f)?),
        _ => return Err(damaged()),
    })
}

fn put_answer(out: &mut Vec<u8>, a: &Answer) {
    match a {
        Answer::Nothing => out.push(0),
        Answer::Session(n) => {
            out.push(1);
            out.extend(n.to_le_bytes());
        }
        Answer::Done(r) => {
            out.push(2);
            out.extend(encode_result(r));
        }
        Answer::NoSession => out.push(3),
    }
}

fn answer(f: &mut Fields<'_>) -> Result<Answer> {
    Ok(match f.byte()? {
        0 => Answer::Nothing,
        1 => Answer::Session(f.u64()?),
        2 => Answer::Done(decode_result(f.take(f.0.len())?)?),
        3 => Answer::NoSession,
        _ => return Err(damaged()),
    })
}

impl Message {
    fn kind(&self) -> u16 {
        match self {
            Self::Append(_) => kind::APPEND,
            Self::AppendReply(_) => kind::APPEND_REPLY,
            Self::Vote(_) => kind::VOTE,
            Self::PreVote(_) => kind::PRE_VOTE,
            Self::VoteReply(_) => kind::VOTE_REPLY,
            Self::Piece { .. } => kind::PIECE,
            Self::PieceReply { .. } => kind::PIECE_REPLY,
            Self::Propose(_) => kind::PROPOSE,
            Self::ProposeReply(_) => kind::PROPOSE_REPLY,
            Self::Join => kind::JOIN,
            Self::Refused(_) => kind::REFUSED,
            Self::Outdated(_) => kind::OUTDATED,
            Self::Doubt(_) => kind::DOUBT,
            Self::Gone { .. } => kind::GONE,
            Self::Here => kind::HERE,
        }
    }

    /// Whether it answers a request.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        matches!(
            self,
            Self::AppendReply(_)
                | Self::VoteReply(_)
                | Self::PieceReply { .. }
                | Self::ProposeReply(_)
                | Self::Refused(_)
        )
    }

    fn put_body(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::Append(r) => put_append(out, r)?,
            Self::AppendReply(r) => put_append_reply(out, r),
            Self::Vote(r) | Self::PreVote(r) => put_vote_request(out, r),
            Self::VoteReply(r) => {
                put_vote(out, &r.vote);
                out.push(u8::from(r.vote_granted));
                put_optional_log_id(out, r.last_log_id.as_ref());
            }
            Self::Piece { vote, meta, offset, total, bytes } => {
                put_vote(out, vote);
                put_optional_log_id(out, meta.last_log_id.as_ref());
                put_stored_membership(out, &meta.last_membership);
                out.extend(offset.to_le_bytes());
                out.extend(total.to_le_bytes());
                out.extend(bytes);
            }
            Self::PieceReply { have, vote } => {
                out.extend(have.to_le_bytes());
                out.push(u8::from(vote.is_some()));
                vote.iter().for_each(|v| put_vote(out, v));
            }
            Self::Propose(p) => put_proposal(out, p)?,
            Self::ProposeReply(a) => put_answer(out, a),
            Self::Join | Self::Here => {}
            Self::Doubt(node) => out.extend(node.0.to_le_bytes()),
            Self::Gone { node, term } => {
                out.extend(node.0.to_le_bytes());
                if *term > 0 {
                    out.extend(term.to_le_bytes());
                }
            }
            Self::Outdated(start) => out.extend(start.0.to_le_bytes()),
            Self::Refused(leader) => {
                out.push(u8::from(leader.is_some()));
                leader.iter().for_each(|s| put_seat(out, *s));
            }
        }
        Ok(())
    }

    fn body(kind: u16, f: &mut Fields<'_>) -> Result<Self> {
        let message = match kind {
            kind::APPEND => Self::Append(append(f)?),
            kind::APPEND_REPLY => Self::AppendReply(append_reply(f)?),
            kind::VOTE => Self::Vote(vote_request(f)?),
            kind::PRE_VOTE => Self::PreVote(vote_request(f)?),
            kind::VOTE_REPLY => {
                let (vote, granted): (Vote, bool) = (get_vote(f)?, f.flag()?);
                let last: Option<LogId> = get_optional_log_id(f)?;
                Self::VoteReply(VoteResponse::new(vote, last, granted))
            }
            kind::PIECE => {
                let vote = get_vote(f)?;
                let (last_log_id, last_membership) = (get_optional_log_id(f)?, get_stored_membership(f)?);
                let (offset, total) = (f.u64()?, f.u64()?);
                let bytes = f.take(f.0.len())?.to_vec();
                let end = offset.checked_add(bytes.len() as u64);
                if total > limits::SNAPSHOT_BYTES_MAX as u64
                    || bytes.len() > limits::PIECE_BYTES
                    || end.is_none_or(|e| e > total)
                {
                    return Err(refused("an impossible piece of a snapshot"));
                }
                let meta = SnapshotMeta { last_log_id, last_membership };
                sound::snapshot(&vote, &meta)?;
                Self::Piece { vote, meta, offset, total, bytes }
            }
            kind::PIECE_REPLY => {
                let have = f.u64()?;
                Self::PieceReply { have, vote: if f.flag()? { Some(get_vote(f)?) } else { None } }
            }
            kind::PROPOSE => Self::Propose(get_proposal(f)?),
            kind::PROPOSE_REPLY => Self::ProposeReply(answer(f)?),
            kind::JOIN => Self::Join,
            kind::OUTDATED => Self::Outdated(StartNumber(f.u64()?)),
            kind::DOUBT => Self::Doubt(NodeId(f.u64()?)),
            kind::GONE => {
                let (node, names_term) = (NodeId(f.u64()?), !f.0.is_empty());
                let term = if names_term { f.u64()? } else { 0 };
                if names_term && term == 0 {
                    return Err(refused("a term that there is not"));
                }
                Self::Gone { node, term }
            }
            kind::HERE => Self::Here,
            kind::REFUSED => Self::Refused(if f.flag()? { Some(seat(f)?) } else { None }),
            _ => return Err(refused("a message of an unknown kind")),
        };
        f.end()?;
        Ok(message)
    }

    /// The message as bytes.
    pub fn encode(&self, e: Envelope) -> Result<Vec<u8>> {
        let mut out = vec![0; HEADER_BYTES];
        self.put_body(&mut out)?;
        if out.len() > limits::MESSAGE_BYTES_MAX {
            return Err(Error::bug("a message of the control plane is longer than its maximum"));
        }
        let mut head = SeatHeader {
            magic: MESSAGE_MAGIC,
            version: MESSAGE_VERSION.into(),
            kind: self.kind().into(),
            total_len: (out.len() as u32).into(),
            body_crc: crc32c(&out[HEADER_BYTES..]).into(),
            cluster: e.cluster.0,
            from_node: e.from.node.0.into(),
            from_store: e.from.store.into(),
            to_node: e.to.node.0.into(),
            to_store: e.to.store.into(),
            id: e.id.into(),
            start: e.start.0.into(),
            founding: e.founding.into(),
            room_bytes: e.room.bytes.into(),
            devices: (e.devices as u16).into(),
            used_percent: e.room.field().into(),
            crc: 0.into(),
        };
        head.crc = crc32c(&head.as_bytes()[..HEADER_BYTES - 4]).into();
        out[..HEADER_BYTES].copy_from_slice(head.as_bytes());
        Ok(out)
    }

    /// The message that `bytes` are, and where it comes from.
    pub fn decode(bytes: &[u8]) -> Result<(Envelope, Self)> {
        if bytes.len() > limits::MESSAGE_BYTES_MAX {
            return Err(refused("a message longer than the maximum"));
        }
        if let Some(version) = other_version(bytes) {
            return Err(Error::invalid(format!(
                "a message of version {version}, and this freebs knows version {MESSAGE_VERSION} alone: run the same \
                 version of freebs on all nodes"
            )));
        }
        let (head, body) = SeatHeader::ref_from_prefix(bytes).map_err(|_| refused("a message that is cut short"))?;
        if head.magic != MESSAGE_MAGIC || head.crc.get() != crc32c(&head.as_bytes()[..HEADER_BYTES - 4]) {
            return Err(refused("this is no message of a control plane"));
        }
        if head.total_len.get() as usize != bytes.len() || head.body_crc.get() != crc32c(body) {
            return Err(refused("a message that does not match its length or checksum"));
        }
        let envelope = Envelope {
            cluster: ClusterId(head.cluster),
            from: Seat { node: NodeId(head.from_node.get()), store: head.from_store.get() },
            to: Seat { node: NodeId(head.to_node.get()), store: head.to_store.get() },
            start: StartNumber(head.start.get()),
            founding: head.founding.get(),
            devices: Devices::of(head.devices.get())?,
            room: Room::of(head.room_bytes.get(), head.used_percent.get())?,
            id: head.id.get(),
        };
        Ok((envelope, Self::body(head.kind.get(), &mut Fields(body))?))
    }
}
