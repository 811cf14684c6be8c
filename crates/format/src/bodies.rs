//! Bodies of the frames that carry no updates: view, attach, and the local ones, mark and carry.
//!
//! Each is a fixed struct followed by tables whose lengths the struct names; a body with bytes left over is refused.

use crate::description::{VolumeDescription, VolumeFixed};
use crate::pins::{self, Pin};
use crate::{ExtentKind, FrameHead, FrameKind};
use bytes::Bytes;
use freebs_types::{
    BlockRange, ChunkId, DriverId, Error, Fork, Generation, Hash32, HostPublic, Lba, NodeId, RequestNumber, Result,
    SEALED_SLICE_BYTES, SealedSlice, Sequence, ShardId, SnapshotId, StartNumber, Version, ViewNumber, limits,
};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A member of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node; no node is twice in a view.
    pub node: NodeId,
    /// Start number of the node when the view was made; binding for the head (W2).
    pub start: StartNumber,
    /// It may count in the view before it has everything of the views in front of it (rule V16).
    pub early: bool,
}

/// How the secret of a view is shared among its members (design note 17).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewSecret {
    /// So many slices are needed.
    pub threshold: u8,
    /// Public half of the key that the slices were sealed with.
    pub point: HostPublic,
    /// Secret of the view before, which nobody extends any more; zeroes if there was none.
    pub pred_secret: Hash32,
    /// In the order of the members.
    pub slices: Vec<SealedSlice>,
}

/// What a view frame says (rules V1, V5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewBody {
    /// The last active view before, 0 for the first. Of a branch, the view of the frame that it goes on from.
    pub pred: ViewNumber,
    /// Last sequence of the predecessor that counts, and its hid.
    pub seal_sequence: Sequence,
    /// `hid` of that frame; zeroes for the first view.
    pub seal_hid: Hash32,
    /// `hide(secret)` of this view.
    pub secret_hash: Hash32,
    /// Durable copies before a write is answered.
    pub quorum: u8,
    /// Least members of a view that orders requests.
    pub min_copies: u8,
    /// Attachment generation when the view was opened (rule V6); a lower one is refused.
    pub generation: Generation,
    /// Head first.
    pub members: Vec<Member>,
    /// `None` if the secret is derived from one that only the head has.
    pub shared: Option<Box<ViewSecret>>,
    /// `None` in frames of earlier versions.
    pub volume: Option<Box<VolumeDescription>>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ViewFixed {
    pub(crate) pred: U64,
    pub(crate) seal_sequence: U64,
    pub(crate) seal_hid: [u8; 32],
    pub(crate) secret_hash: [u8; 32],
    pub(crate) generation: U64,
    pub(crate) quorum: u8,
    pub(crate) min_copies: u8,
    pub(crate) members: U16,
    pub(crate) flags: U32,
}
const _: () = assert!(size_of::<ViewFixed>() == 96);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct MemberFixed {
    pub(crate) node: U64,
    pub(crate) start: U64,
    pub(crate) flags: U64,
    /// The member's slice of the view's secret, sealed for it; zeroes if the secret is not shared.
    pub(crate) slice: [u8; SEALED_SLICE_BYTES],
    pub(crate) reserved: [u8; 23],
}
const _: () = assert!(size_of::<MemberFixed>() == 96);

impl MemberFixed {
    fn read(&self) -> Member {
        let early = self.flags.get() & MEMBER_EARLY != 0;
        Member { node: NodeId(self.node.get()), start: StartNumber(self.start.get()), early }
    }
}

/// Flag of a member that may count early.
const MEMBER_EARLY: u64 = 1;

/// Behind the members of a view whose secret is shared.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SharedFixed {
    pub(crate) point: [u8; 32],
    pub(crate) pred_secret: [u8; 32],
    pub(crate) threshold: u8,
    pub(crate) reserved: [u8; 31],
}
const _: () = assert!(size_of::<SharedFixed>() == 96);

/// The volume is described at the end.
const VIEW_VOLUME: u32 = 1;

fn cut(what: &'static str) -> Error {
    Error::corrupt(what)
}

/// What is between the fixed struct and the description, and that.
fn split_volume<'a>(fixed: &ViewFixed, rest: &'a [u8]) -> Result<(&'a [u8], Option<&'a VolumeFixed>)> {
    match fixed.flags.get() {
        0 => Ok((rest, None)),
        VIEW_VOLUME => VolumeFixed::ref_from_suffix(rest)
            .map(|(rest, v)| (rest, Some(v)))
            .map_err(|_| cut("description of a volume is cut short")),
        _ => Err(cut("view with unknown flags")),
    }
}

impl ViewBody {
    /// The body as it stands in a view frame: `ViewFixed`, members, and what `shared` and `volume` add.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let fixed = ViewFixed {
            pred: self.pred.0.into(),
            seal_sequence: self.seal_sequence.0.into(),
            seal_hid: self.seal_hid.0,
            secret_hash: self.secret_hash.0,
            generation: self.generation.0.into(),
            quorum: self.quorum,
            min_copies: self.min_copies,
            members: (self.members.len() as u16).into(),
            flags: self.volume.as_ref().map_or(0, |_| VIEW_VOLUME).into(),
        };
        let mut out = fixed.as_bytes().to_vec();
        for (i, m) in self.members.iter().enumerate() {
            let slice = self.shared.as_ref().and_then(|s| s.slices.get(i)).copied().unwrap_or_default().0;
            let (node, start) = (m.node.0.into(), m.start.0.into());
            let flags = if m.early { MEMBER_EARLY } else { 0 }.into();
            let m = MemberFixed { node, start, flags, slice, reserved: [0; 23] };
            out.extend_from_slice(m.as_bytes());
        }
        if let Some(s) = &self.shared {
            let (point, pred_secret) = (s.point.0, s.pred_secret.0);
            let fixed = SharedFixed { point, pred_secret, threshold: s.threshold, reserved: [0; 31] };
            out.extend_from_slice(fixed.as_bytes());
        }
        if let Some(v) = &self.volume {
            out.extend_from_slice(v.fixed().as_bytes());
        }
        out
    }

    /// The same for who only wants to know the members.
    #[must_use]
    pub fn without_slices(&self) -> Self {
        Self { shared: None, volume: None, members: self.members.clone(), ..*self }
    }

    /// Whether a body says how its secret is shared.
    pub(crate) fn names_slices(body: &[u8]) -> bool {
        let Ok((fixed, rest)) = ViewFixed::ref_from_prefix(body) else { return false };
        let members = split_volume(fixed, rest).map_or(0, |(rest, _)| rest.len());
        members == (fixed.members.get() as usize + 1) * size_of::<MemberFixed>()
    }

    /// The frame that a body names as the seal, and the view that it follows.
    pub(crate) fn seal_of(body: &[u8]) -> Option<(ViewNumber, Sequence, Hash32)> {
        let (fixed, _) = ViewFixed::ref_from_prefix(body).ok()?;
        Some((ViewNumber(fixed.pred.get()), Sequence(fixed.seal_sequence.get()), Hash32(fixed.seal_hid)))
    }

    /// Whether a body describes the volume.
    pub(crate) fn names_volume(body: &[u8]) -> bool {
        ViewFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.flags.get() & VIEW_VOLUME != 0)
    }

    /// True if a body has members that may count early.
    pub(crate) fn names_early(body: &[u8]) -> bool {
        let Ok((fixed, rest)) = ViewFixed::ref_from_prefix(body) else { return false };
        let members = <[MemberFixed]>::ref_from_prefix_with_elems(rest, fixed.members.get() as usize);
        members.is_ok_and(|(m, _)| m.iter().any(|m| m.flags.get() & MEMBER_EARLY != 0))
    }

    /// True if a body names a branch.
    pub(crate) fn names_branch(body: &[u8]) -> bool {
        let split = ViewFixed::ref_from_prefix(body).ok().and_then(|(fixed, rest)| split_volume(fixed, rest).ok());
        split.and_then(|(_, volume)| volume).is_some_and(|v| v.branch.get() > 0)
    }

    /// Reads a body. `Corrupt` if lengths do not fit, members or quorum are impossible, or a flag is not known.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let (fixed, rest) = ViewFixed::ref_from_prefix(body).map_err(|_| cut("view body is cut short"))?;
        let (rest, volume) = split_volume(fixed, rest)?;
        let n = fixed.members.get() as usize;
        let (members, rest) =
            <[MemberFixed]>::ref_from_prefix_with_elems(rest, n).map_err(|_| cut("view members are cut short"))?;
        if n == 0 || n > limits::CHAIN_MEMBERS_MAX || !(1..=n).contains(&(fixed.quorum as usize)) {
            return Err(cut("view with an impossible number of members"));
        }
        let shared = match rest.len() {
            0 => None,
            _ => {
                let s = SharedFixed::ref_from_bytes(rest).map_err(|_| cut("slices of a view are cut short"))?;
                if !(1..=n).contains(&(s.threshold as usize)) {
                    return Err(cut("view with an impossible number of slices"));
                }
                Some(Box::new(ViewSecret {
                    threshold: s.threshold,
                    point: HostPublic(s.point),
                    pred_secret: Hash32(s.pred_secret),
                    slices: members.iter().map(|m| SealedSlice(m.slice)).collect(),
                }))
            }
        };
        Ok(Self {
            pred: ViewNumber(fixed.pred.get()),
            seal_sequence: Sequence(fixed.seal_sequence.get()),
            seal_hid: Hash32(fixed.seal_hid),
            secret_hash: Hash32(fixed.secret_hash),
            quorum: fixed.quorum,
            min_copies: fixed.min_copies,
            generation: Generation(fixed.generation.get()),
            members: members.iter().map(MemberFixed::read).collect(),
            shared,
            volume: volume.map(VolumeDescription::of).transpose()?.map(Box::new),
        })
    }
}

/// What an attach frame says: from here on only this generation counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachBody {
    /// The generation that is valid from this frame on.
    pub generation: Generation,
    /// The driver that attached.
    pub driver: DriverId,
    /// Hash of the persistent identity of who attached.
    pub identity: Hash32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct AttachFixed {
    pub(crate) generation: U64,
    pub(crate) driver: U64,
    pub(crate) identity: [u8; 32],
    pub(crate) reserved: [u8; 16],
}
const _: () = assert!(size_of::<AttachFixed>() == 64);

impl AttachBody {
    /// The body as it stands in an attach frame: one `AttachFixed`.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let fixed = AttachFixed {
            generation: self.generation.0.into(),
            driver: self.driver.0.into(),
            identity: self.identity.0,
            reserved: [0; 16],
        };
        fixed.as_bytes().to_vec()
    }

    /// Reads a body. `Corrupt` if its length is another.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let fixed = AttachFixed::ref_from_bytes(body).map_err(|_| cut("attach body has a wrong length"))?;
        Ok(Self {
            generation: Generation(fixed.generation.get()),
            driver: DriverId(fixed.driver.get()),
            identity: Hash32(fixed.identity),
        })
    }
}

/// A driver's lowest request number without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFloor {
    /// The driver that tells.
    pub driver: DriverId,
    /// Every request of this driver below this number was answered: nothing of it has to be remembered.
    pub lowest_open: RequestNumber,
}

/// One applied request (rule W3): where it was ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEntry {
    /// The driver that asked.
    pub driver: DriverId,
    /// The number that it gave the request.
    pub number: RequestNumber,
    /// Sequence of the frame that holds the request's update.
    pub sequence: Sequence,
}

/// The table of request numbers as bytes carry it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// At most one per driver: what it answered is no longer among `entries`.
    pub floors: Vec<RequestFloor>,
    /// Requests at or above their driver's floor that were applied.
    pub entries: Vec<RequestEntry>,
}

/// A view that another one followed, and the secret that this other one published (Lithium section 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedView {
    /// The view.
    pub view: ViewNumber,
    /// The frame that published it: that of the next view, so the last frame of this one is the one before.
    pub published: Sequence,
    /// The secret.
    pub secret: Hash32,
}

/// A shard's state in one node's log, so that segments before it may be given up. Local, never sent.
#[derive(Clone, Debug, Default)]
pub struct MarkBody {
    /// No view below this is served any more (rule V2).
    pub promised: ViewNumber,
    /// View whose secret this is; 0 for none. Lies in clear until secrets are shared.
    pub secret_view: ViewNumber,
    /// Secret of `secret_view`; zeroes if that is 0.
    pub secret: Hash32,
    /// Highest sequence known committed.
    pub committed: Sequence,
    /// Latest attachment.
    pub attach: AttachBody,
    /// View of the shard's last frame; its sequence and `hid` are in the frame's header.
    pub last_view: ViewNumber,
    /// `parent` and digest of the shard's last frame, from which a new head makes its token.
    pub last_parent: Hash32,
    /// Digest of that frame.
    pub last_digest: Hash32,
    /// Frames up to here may be missing from the log: their segments were given up after this state was taken.
    pub released: Sequence,
    /// Set when the shard was deleted, or left this node: nothing of it before this mark counts, and nothing is left of
    /// it but a promise, if `promised` is not 0.
    pub deleted: bool,
    /// Set while damage may have taken frames behind the shard's last one (rule E7).
    pub suspect_tail: bool,
    /// Set when the map behind `learned_since` up to this state was learned from a peer: gaps in the sequence there are
    /// no loss.
    pub whole: bool,
    /// Entries placed behind `learned_since` and up to `learned_upto` were learned from a peer, because the frames that
    /// placed them are lost and nobody has them any more. Both 0 if that never happened. Of a `whole` state the second is
    /// the last frame that stays in front of the map: what lies behind it here was cut; 0 if that is not known.
    pub learned_since: Sequence,
    /// See `learned_since`.
    pub learned_upto: Sequence,
    /// None of what was learned lies in an append before this one; 0 if that is not known.
    pub learned_from_append: u64,
    /// Set when what it read from its parents was brought by then: it is no fork any more. Marks behind it in its segment repeat
    /// that.
    pub flat: Option<Flat>,
    /// Lost frames were given up by force when this view was left (rule V10); 0 if that never happened.
    pub given_up: ViewNumber,
    /// The frame head of the newest view frame, if there is one.
    pub view_frame: Option<FrameHead>,
    /// Requests that were applied up to this state, so that a repeat is answered and not applied again.
    pub requests: Requests,
    /// Versions that were pinned when what is committed was (rule E6), in order.
    pub pins: Vec<Pin>,
    /// First version of the retention window then; 0 for none.
    pub retain: Version,
    /// The frame that window and pins are as of, whether it was seen or not; `None`: the committed one.
    pub kept_as_of: Option<Sequence>,
    /// Kept versions below this are not all there; 0 if all are.
    pub whole_from: Version,
    /// Set when all of the past was learned: `whole_from` holds whatever was missing before.
    pub whole_past: bool,
    /// Versions that clones read from this shard, and that are not there any more, in order (rule E10).
    pub lost: Vec<Version>,
    /// Where the shard begins, if it is a clone's that reads from its parent what it does not have.
    pub fork: Option<Fork>,
    /// Frames behind the first and up to the second were never in this log, nor what they brought: it began behind them
    /// (rule V17). The newest mark says how it is.
    pub absent: Option<(Sequence, Sequence)>,
    /// Closed views of which the log still has frames, in order, so that the frames can be audited when those that
    /// published the secrets are given up.
    pub closed: Vec<ClosedView>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct MarkFixed {
    pub(crate) promised: U64,
    pub(crate) secret_view: U64,
    pub(crate) secret: [u8; 32],
    pub(crate) committed: U64,
    pub(crate) last_view: U64,
    pub(crate) released: U64,
    pub(crate) last_parent: [u8; 32],
    pub(crate) last_digest: [u8; 32],
    pub(crate) attach: AttachFixed,
    pub(crate) flags: U32,
    pub(crate) view_frame_len: U32,
    pub(crate) floors: U32,
    pub(crate) entries: U32,
    pub(crate) retain: U64,
    pub(crate) pins: U32,
    pub(crate) closed: U32,
    pub(crate) given_up: U64,
}
const _: () = assert!(size_of::<MarkFixed>() == 240);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FloorFixed {
    pub(crate) driver: U64,
    pub(crate) lowest_open: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct EntryFixed {
    pub(crate) driver: U64,
    pub(crate) number: U64,
    pub(crate) sequence: U64,
}

/// One of a mark's closed views.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ClosedFixed {
    pub(crate) view: U64,
    pub(crate) published: U64,
    pub(crate) secret: [u8; 32],
}
const _: () = assert!(size_of::<ClosedFixed>() == CLOSED_VIEW_BYTES);

impl ClosedFixed {
    fn read(&self) -> ClosedView {
        ClosedView {
            view: ViewNumber(self.view.get()),
            published: Sequence(self.published.get()),
            secret: Hash32(self.secret),
        }
    }
}

/// Bytes of a closed view in a mark.
pub const CLOSED_VIEW_BYTES: usize = 48;

/// At the end of a mark that says what was learned.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LearnedFixed {
    pub(crate) since: U64,
    pub(crate) upto: U64,
    pub(crate) from_append: U64,
}
const _: () = assert!(size_of::<LearnedFixed>() == 24);

/// In a mark that says more of what is kept; behind the closed views.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct KeptFixed {
    pub(crate) as_of: U64,
    pub(crate) whole_from: U64,
}
const _: () = assert!(size_of::<KeptFixed>() == 16);

/// Behind the versions, 8 bytes each, that a mark names as lost to clones; these follow the closed views.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LostFixed {
    pub(crate) versions: U32,
    pub(crate) reserved: U32,
}
const _: () = assert!(size_of::<LostFixed>() == 8);

/// Bytes of a version that is lost to clones, in a mark.
pub const LOST_VERSION_BYTES: usize = 8;

/// How a clone's shard came to have all that it read from its parents: entries in front of its mark brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flat {
    /// They brought what frames up to this one had placed: the one that it began at, or one behind it.
    pub upto: Sequence,
    /// None of these entries lies in an append before this one; 0 if there was nothing to bring.
    pub from_append: u64,
    /// None lies behind this one; 0 like the other.
    pub to_append: u64,
}

impl Flat {
    /// True if it names appends that can be.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        (self.from_append == 0) == (self.to_append == 0) && self.from_append <= self.to_append
    }
}

/// In a mark of a clone's shard that reads from no parent any more; behind the lost versions, in front of all else there.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FlatFixed {
    pub(crate) upto: U64,
    pub(crate) from_append: U64,
    pub(crate) to_append: U64,
}
const _: () = assert!(size_of::<FlatFixed>() == FLAT_BYTES);

/// Bytes of the word, in a mark, that a shard is flat.
pub const FLAT_BYTES: usize = 24;

/// In a mark of a shard that reads from a parent; behind the closed views and lost versions, in front of all else there.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ForkFixed {
    pub(crate) volume: U64,
    pub(crate) index: U32,
    pub(crate) reserved: U32,
    pub(crate) snapshot: U64,
    pub(crate) version: U64,
    pub(crate) sequence: U64,
}
const _: () = assert!(size_of::<ForkFixed>() == FORK_BYTES);

/// Bytes of the word of a parent in a mark.
pub const FORK_BYTES: usize = 40;

impl ForkFixed {
    fn of(fork: &Fork) -> Self {
        Self {
            volume: fork.parent.volume.0.into(),
            index: fork.parent.index.into(),
            reserved: 0.into(),
            snapshot: fork.snapshot.0.into(),
            version: fork.version.0.into(),
            sequence: fork.sequence.0.into(),
        }
    }

    fn read(&self) -> Result<Fork> {
        let (version, sequence) = (self.version.get(), self.sequence.get());
        let is_in_bounds = |n: u64| (1..pins::KEPT_MAX).contains(&n);
        if !is_in_bounds(version) || !is_in_bounds(sequence) || self.reserved.get() != 0 {
            return Err(cut("mark of a fork that makes no sense"));
        }
        let parent = ShardId::new(self.volume.get(), self.index.get());
        let (version, sequence) = (Version(version), Sequence(sequence));
        Ok(Fork { parent, snapshot: SnapshotId(self.snapshot.get()), version, sequence })
    }
}

/// Frames of which a mark says that they were never in its log.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct AbsentFixed {
    pub(crate) since: U64,
    pub(crate) upto: U64,
}
const _: () = assert!(size_of::<AbsentFixed>() == ABSENT_BYTES);

impl AbsentFixed {
    fn of((since, upto): &(Sequence, Sequence)) -> Self {
        Self { since: since.0.into(), upto: upto.0.into() }
    }
}

/// Bytes of the word of frames that were never there in a mark.
pub const ABSENT_BYTES: usize = 16;

const MARK_DELETED: u32 = 1;
const MARK_SUSPECT: u32 = 2;
const MARK_WHOLE: u32 = 4;
const MARK_LEARNED: u32 = 8;
const MARK_HISTORY: u32 = 16;
const MARK_WHOLE_PAST: u32 = 32;
const MARK_FORK: u32 = 64;
const MARK_LOST: u32 = 128;
const MARK_FLAT: u32 = 256;
const MARK_ABSENT: u32 = 512;

impl MarkBody {
    fn tells_learned(&self) -> bool {
        (self.learned_since, self.learned_upto, self.learned_from_append) != (Sequence(0), Sequence(0), 0)
    }

    fn tells_history(&self) -> bool {
        self.kept_as_of.is_some() || self.whole_from.0 > 0 || self.whole_past
    }

    fn flags(&self) -> u32 {
        let bits = [
            (self.deleted, MARK_DELETED),
            (self.suspect_tail, MARK_SUSPECT),
            (self.whole, MARK_WHOLE),
            (self.tells_learned(), MARK_LEARNED),
            (self.tells_history(), MARK_HISTORY),
            (self.whole_past, MARK_WHOLE_PAST),
            (self.fork.is_some(), MARK_FORK),
            (!self.lost.is_empty(), MARK_LOST),
            (self.flat.is_some(), MARK_FLAT),
            (self.absent.is_some(), MARK_ABSENT),
        ];
        bits.iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit)
    }

    /// The body as it stands in a mark frame: `MarkFixed`, then the view frame's head and the tables.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let view = self.view_frame.as_ref().map(|f| f.bytes().clone()).unwrap_or_default();
        let attach = AttachFixed {
            generation: self.attach.generation.0.into(),
            driver: self.attach.driver.0.into(),
            identity: self.attach.identity.0,
            reserved: [0; 16],
        };
        let fixed = MarkFixed {
            promised: self.promised.0.into(),
            secret_view: self.secret_view.0.into(),
            secret: self.secret.0,
            committed: self.committed.0.into(),
            last_view: self.last_view.0.into(),
            released: self.released.0.into(),
            last_parent: self.last_parent.0,
            last_digest: self.last_digest.0,
            attach,
            flags: self.flags().into(),
            view_frame_len: (view.len() as u32).into(),
            floors: (self.requests.floors.len() as u32).into(),
            entries: (self.requests.entries.len() as u32).into(),
            retain: self.retain.0.into(),
            pins: (self.pins.len() as u32).into(),
            closed: (self.closed.len() as u32).into(),
            given_up: self.given_up.0.into(),
        };
        let mut out = fixed.as_bytes().to_vec();
        out.extend_from_slice(&view);
        for f in &self.requests.floors {
            let f = FloorFixed { driver: f.driver.0.into(), lowest_open: f.lowest_open.0.into() };
            out.extend_from_slice(f.as_bytes());
        }
        for e in &self.requests.entries {
            let e = EntryFixed { driver: e.driver.0.into(), number: e.number.0.into(), sequence: e.sequence.0.into() };
            out.extend_from_slice(e.as_bytes());
        }
        pins::encode(&self.pins, &mut out);
        for c in &self.closed {
            let c = ClosedFixed { view: c.view.0.into(), published: c.published.0.into(), secret: c.secret.0 };
            out.extend_from_slice(c.as_bytes());
        }
        if !self.lost.is_empty() {
            self.lost.iter().for_each(|v| out.extend_from_slice(&v.0.to_le_bytes()));
            let fixed = LostFixed { versions: (self.lost.len() as u32).into(), reserved: 0.into() };
            out.extend_from_slice(fixed.as_bytes());
        }
        if let Some(flat) = &self.flat {
            let (from_append, to_append) = (flat.from_append.into(), flat.to_append.into());
            let fixed = FlatFixed { upto: flat.upto.0.into(), from_append, to_append };
            out.extend_from_slice(fixed.as_bytes());
        }
        if let Some(fork) = &self.fork {
            out.extend_from_slice(ForkFixed::of(fork).as_bytes());
        }
        if self.tells_history() {
            let as_of = self.kept_as_of.unwrap_or(self.committed).0.into();
            out.extend_from_slice(KeptFixed { as_of, whole_from: self.whole_from.0.into() }.as_bytes());
        }
        if self.tells_learned() {
            let learned = LearnedFixed {
                since: self.learned_since.0.into(),
                upto: self.learned_upto.0.into(),
                from_append: self.learned_from_append.into(),
            };
            out.extend_from_slice(learned.as_bytes());
        }
        self.absent.iter().for_each(|absent| out.extend_from_slice(AbsentFixed::of(absent).as_bytes()));
        out
    }

    /// Whether a body says that anything is pinned, or kept for a while.
    pub(crate) fn names_pins(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.pins.get() > 0 || f.retain.get() > 0)
    }

    /// True if a body says more of what is kept than which versions.
    pub(crate) fn names_history(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.flags.get() & MARK_HISTORY != 0)
    }

    /// True if a body names a parent.
    pub(crate) fn names_fork(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.flags.get() & MARK_FORK != 0)
    }

    /// True if a body says that its shard has all that it read from its parents.
    pub(crate) fn names_flat(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.flags.get() & MARK_FLAT != 0)
    }

    /// True if a body names frames that were never in its log.
    pub(crate) fn names_absent(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.flags.get() & MARK_ABSENT != 0)
    }

    /// True if a body names versions that are lost to clones.
    pub(crate) fn names_lost(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.flags.get() & MARK_LOST != 0)
    }

    /// True if a body has secrets of closed views.
    pub(crate) fn names_closed(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.closed.get() > 0)
    }

    /// True if a body says that lost frames were given up.
    pub(crate) fn names_given_up(body: &[u8]) -> bool {
        MarkFixed::ref_from_prefix(body).is_ok_and(|(f, _)| f.given_up.get() > 0)
    }

    /// Reads a body. `Corrupt` if lengths or counts do not fit, or the view frame in it is damaged.
    pub fn decode(body: &[u8]) -> Result<Self> {
        let (fixed, rest) = MarkFixed::ref_from_prefix(body).map_err(|_| cut("mark body is cut short"))?;
        let view_len = fixed.view_frame_len.get() as usize;
        let (view, rest) = rest.split_at_checked(view_len).ok_or_else(|| cut("mark's view frame is cut short"))?;
        let view_frame = Self::view_frame(view)?;
        let (floors, rest) = <[FloorFixed]>::ref_from_prefix_with_elems(rest, fixed.floors.get() as usize)
            .map_err(|_| cut("mark's request table is cut short"))?;
        let (entries, rest) = <[EntryFixed]>::ref_from_prefix_with_elems(rest, fixed.entries.get() as usize)
            .map_err(|_| cut("mark's request table is cut short"))?;
        let (rest, absent) = Self::absent_behind(rest, fixed.flags.get())?;
        let (rest, learned) = match fixed.flags.get() & MARK_LEARNED {
            0 => (rest, None),
            _ => LearnedFixed::ref_from_suffix(rest)
                .map(|(rest, learned)| (rest, Some(learned)))
                .map_err(|_| cut("what a mark learned is cut short"))?,
        };
        let (rest, history) = match fixed.flags.get() & MARK_HISTORY {
            0 => (rest, None),
            _ => KeptFixed::ref_from_suffix(rest)
                .map(|(rest, history)| (rest, Some(history)))
                .map_err(|_| cut("what a mark says of history is cut short"))?,
        };
        let (rest, fork) = Self::fork_behind(rest, fixed.flags.get())?;
        let (rest, flat) = Self::flat_behind(rest, fixed.flags.get())?;
        let (rest, lost) = Self::lost_behind(rest, fixed.flags.get())?;
        let committed = Sequence(fixed.committed.get());
        let closed = fixed.closed.get() as usize;
        let (rest, closed) = <[ClosedFixed]>::ref_from_suffix_with_elems(rest, closed)
            .map_err(|_| cut("mark's closed views are cut short"))?;
        if closed.len() > limits::CLOSED_VIEWS_MAX || !closed.is_sorted_by(|a, b| a.view.get() < b.view.get()) {
            return Err(cut("mark with closed views that make no sense"));
        }
        let pins = pins::decode(rest, fixed.pins.get() as usize)?;
        Self::check_numbers(fixed, history)?;
        Ok(Self {
            promised: ViewNumber(fixed.promised.get()),
            secret_view: ViewNumber(fixed.secret_view.get()),
            secret: Hash32(fixed.secret),
            committed,
            last_view: ViewNumber(fixed.last_view.get()),
            released: Sequence(fixed.released.get()),
            last_parent: Hash32(fixed.last_parent),
            last_digest: Hash32(fixed.last_digest),
            attach: AttachBody {
                generation: Generation(fixed.attach.generation.get()),
                driver: DriverId(fixed.attach.driver.get()),
                identity: Hash32(fixed.attach.identity),
            },
            deleted: fixed.flags.get() & MARK_DELETED != 0,
            suspect_tail: fixed.flags.get() & MARK_SUSPECT != 0,
            whole: fixed.flags.get() & MARK_WHOLE != 0,
            learned_since: Sequence(learned.map_or(0, |l| l.since.get())),
            learned_upto: Sequence(learned.map_or(0, |l| l.upto.get())),
            learned_from_append: learned.map_or(0, |l| l.from_append.get()),
            flat,
            given_up: ViewNumber(fixed.given_up.get()),
            view_frame,
            requests: requests(floors, entries),
            pins,
            retain: Version(fixed.retain.get()),
            kept_as_of: history.map(|h| Sequence(h.as_of.get())).filter(|s| *s != committed),
            whole_from: Version(history.map_or(0, |h| h.whole_from.get())),
            whole_past: fixed.flags.get() & MARK_WHOLE_PAST != 0,
            lost,
            fork,
            absent,
            closed: closed.iter().map(ClosedFixed::read).collect(),
        })
    }

    /// The parent that a body names at its end, and the bytes in front of that.
    fn fork_behind(rest: &[u8], flags: u32) -> Result<(&[u8], Option<Fork>)> {
        if flags & MARK_FORK == 0 {
            return Ok((rest, None));
        }
        let (rest, fork) = ForkFixed::ref_from_suffix(rest).map_err(|_| cut("mark of a fork is cut short"))?;
        Ok((rest, Some(fork.read()?)))
    }

    /// The word on how its shard became flat, at the end of a body, and the bytes in front of that.
    fn flat_behind(rest: &[u8], flags: u32) -> Result<(&[u8], Option<Flat>)> {
        if flags & MARK_FLAT == 0 {
            return Ok((rest, None));
        }
        let (rest, fixed) = FlatFixed::ref_from_suffix(rest).map_err(|_| cut("mark of a flat shard is cut short"))?;
        let (from_append, to_append) = (fixed.from_append.get(), fixed.to_append.get());
        let flat = Flat { upto: Sequence(fixed.upto.get()), from_append, to_append };
        match flat.upto.0 < pins::KEPT_MAX && flat.is_possible() {
            true => Ok((rest, Some(flat))),
            false => Err(cut("mark of a flat shard that makes no sense")),
        }
    }

    /// The frames that a body says were never in its log, at its end, and the bytes in front of that.
    fn absent_behind(rest: &[u8], flags: u32) -> Result<(&[u8], Option<(Sequence, Sequence)>)> {
        if flags & MARK_ABSENT == 0 {
            return Ok((rest, None));
        }
        let (rest, fixed) =
            AbsentFixed::ref_from_suffix(rest).map_err(|_| cut("mark of a log that begins late is cut short"))?;
        let (since, upto) = (fixed.since.get(), fixed.upto.get());
        match since < upto && upto < pins::KEPT_MAX {
            true => Ok((rest, Some((Sequence(since), Sequence(upto))))),
            false => Err(cut("mark of a log that begins late and makes no sense")),
        }
    }

    /// The versions that a body names as lost to clones at its end, and the bytes in front of them.
    fn lost_behind(rest: &[u8], flags: u32) -> Result<(&[u8], Vec<Version>)> {
        if flags & MARK_LOST == 0 {
            return Ok((rest, Vec::new()));
        }
        let short = || cut("mark's lost versions are cut short");
        let (rest, fixed) = LostFixed::ref_from_suffix(rest).map_err(|_| short())?;
        let count = fixed.versions.get() as usize;
        if fixed.reserved.get() != 0 || !(1..=limits::LOST_VERSIONS_MAX).contains(&count) {
            return Err(cut("mark with an impossible number of lost versions"));
        }
        let (rest, lost) = <[U64]>::ref_from_suffix_with_elems(rest, count).map_err(|_| short())?;
        let is_sorted = lost.is_sorted_by(|a, b| a.get() < b.get());
        if !is_sorted || lost.iter().any(|v| !(1..pins::KEPT_MAX).contains(&v.get())) {
            return Err(cut("mark with lost versions that make no sense"));
        }
        Ok((rest, lost.iter().map(|v| Version(v.get())).collect()))
    }

    fn check_numbers(fixed: &MarkFixed, history: Option<&KeptFixed>) -> Result<()> {
        let (as_of, whole_from) = history.map_or((0, 0), |h| (h.as_of.get(), h.whole_from.get()));
        let numbers = [fixed.retain.get(), fixed.committed.get(), as_of, whole_from];
        match numbers.iter().any(|n| *n >= pins::KEPT_MAX) {
            true => Err(cut("mark with an impossible number")),
            false => Ok(()),
        }
    }

    /// The view frame of a mark, if its place is not empty.
    fn view_frame(bytes: &[u8]) -> Result<Option<FrameHead>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut view = Bytes::copy_from_slice(bytes);
        let head = FrameHead::parse(&mut view)?;
        if head.kind() != FrameKind::View || !view.is_empty() {
            return Err(cut("mark with something else in the place of its view frame"));
        }
        Ok(Some(head))
    }
}

/// The request table of a mark.
fn requests(floors: &[FloorFixed], entries: &[EntryFixed]) -> Requests {
    let floor = |f: &FloorFixed| RequestFloor {
        driver: DriverId(f.driver.get()),
        lowest_open: RequestNumber(f.lowest_open.get()),
    };
    let entry = |e: &EntryFixed| RequestEntry {
        driver: DriverId(e.driver.get()),
        number: RequestNumber(e.number.get()),
        sequence: Sequence(e.sequence.get()),
    };
    Requests { floors: floors.iter().map(floor).collect(), entries: entries.iter().map(entry).collect() }
}

/// One map entry with its place (rule E2): it merges by (version, sequence).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarryEntry {
    /// The blocks' state: data, trimmed or zeroed.
    pub kind: ExtentKind,
    /// Blocks of the shard that the entry is about; never empty.
    pub range: BlockRange,
    /// Version of the update that wrote them.
    pub version: Version,
    /// Sequence of the frame that placed it.
    pub sequence: Sequence,
    /// Place of its first block; meaningless unless `kind` is `Data`.
    pub chunk: ChunkId,
    /// Block of `chunk` where the data of the entry's first block lie; meaningless unless `kind` is `Data`.
    pub offset: u32,
    /// One per block if `kind` is `Data`, else none.
    pub crcs: Vec<u32>,
}

/// Map entries; the data of the `Data` entries are the frame's data, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarryBody {
    /// In the order in which the frame's data follow each other.
    pub entries: Vec<CarryEntry>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CarryFixed {
    pub(crate) lba: U32,
    pub(crate) blocks: U32,
    pub(crate) version: U64,
    pub(crate) sequence: U64,
    pub(crate) chunk_view: U64,
    pub(crate) chunk_counter: U32,
    pub(crate) offset: U32,
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 7],
}
const _: () = assert!(size_of::<CarryFixed>() == CARRY_ENTRY_BYTES);

/// Bytes of a carried entry without its CRCs.
pub const CARRY_ENTRY_BYTES: usize = 48;

impl CarryBody {
    /// The body as it stands in a carry frame: the count, the entries, then all CRCs.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = (self.entries.len() as u64).to_le_bytes().to_vec();
        for e in &self.entries {
            let fixed = CarryFixed {
                lba: e.range.start.0.into(),
                blocks: e.range.len.into(),
                version: e.version.0.into(),
                sequence: e.sequence.0.into(),
                chunk_view: e.chunk.view.0.into(),
                chunk_counter: e.chunk.counter.into(),
                offset: e.offset.into(),
                kind: e.kind as u8,
                reserved: [0; 7],
            };
            out.extend_from_slice(fixed.as_bytes());
        }
        for c in self.entries.iter().flat_map(|e| &e.crcs) {
            out.extend_from_slice(&c.to_le_bytes());
        }
        out
    }

    /// Decodes and holds the entries against the number of data blocks in the frame.
    pub fn decode(body: &[u8], data_blocks: u32) -> Result<Self> {
        let (count, rest) = U64::ref_from_prefix(body).map_err(|_| cut("carry body is cut short"))?;
        let count = usize::try_from(count.get()).ok().filter(|n| *n <= rest.len() / 48);
        let count = count.ok_or_else(|| cut("carry table is cut short"))?;
        let (table, crcs) =
            <[CarryFixed]>::ref_from_prefix_with_elems(rest, count).map_err(|_| cut("carry table is cut short"))?;
        let mut crcs = <[U32]>::ref_from_bytes(crcs).map_err(|_| cut("carry CRCs are cut short"))?;
        if crcs.len() != data_blocks as usize {
            return Err(cut("carry CRCs do not fit the data"));
        }
        let mut entries = Vec::with_capacity(count);
        for f in table {
            let kind = ExtentKind::from_byte(f.kind).ok_or_else(|| cut("unknown kind of extent"))?;
            let range = BlockRange { start: Lba(f.lba.get()), len: f.blocks.get() };
            let end = u64::from(f.offset.get()) + u64::from(range.len);
            let is_data = kind == ExtentKind::Data;
            if range.len == 0 || !range.is_in_shard(is_data) || (is_data && end > 1 << 30) {
                return Err(cut("carried extent outside any shard"));
            }
            let n = if kind == ExtentKind::Data { range.len as usize } else { 0 };
            let (mine, others) = crcs.split_at_checked(n).ok_or_else(|| cut("carry CRCs do not fit"))?;
            crcs = others;
            entries.push(CarryEntry {
                kind,
                range,
                version: Version(f.version.get()),
                sequence: Sequence(f.sequence.get()),
                chunk: ChunkId { view: ViewNumber(f.chunk_view.get()), counter: f.chunk_counter.get() },
                offset: f.offset.get(),
                crcs: mine.iter().map(|c| c.get()).collect(),
            });
        }
        if crcs.is_empty() { Ok(Self { entries }) } else { Err(cut("carry CRCs do not fit")) }
    }
}
