//! What goes into a host and what comes out of it.

use bytes::Bytes;
use freebs_format::wire::{FrameName, Message, ReadRequest, SyncRequest};
use freebs_format::{CarryBody, Frame, FrameHead, IntervalId, IntervalRecord, Pin, VolumeDescription};
use freebs_io::LinkId;
use freebs_lsvd::{DamagedBlocks, Durable, EventKind, KeptState, MapPlace, PastVersion, Record, TimesAbove};
use freebs_secrets::HostKey;
use freebs_types::{
    ClusterId, Error, ErrorKind, Fork, Generation, Hash32, HostPublic, Moment, NodeId, Past, Peer, Result, Sequence,
    ShardId, SnapshotId, StartNumber, Version, ViewNumber,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Who a host is.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The cluster; what belongs to another one is refused.
    pub cluster: ClusterId,
    /// This node, and this worker of it.
    pub me: Peer,
    /// The node's start number: heads are named with it (W2).
    pub start: StartNumber,
    /// Workers of each node, to find a shard's worker there.
    pub workers: BTreeMap<NodeId, u16>,
    /// Secrets of views that have no slices are derived from this one.
    pub node_secret: Hash32,
    /// Opens this node's slices.
    pub host_key: HostKey,
    /// A rule left out on purpose, to prove that tests notice. `None` outside of tests.
    pub mutant: Option<Mutant>,
}

/// Rules that the simulator can leave out (each must be caught there).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// W1: a head takes requests of other views, and of drivers that are not attached.
    RequestsOfAnyone,
    /// W2: a restarted head goes on in its old view without a new one.
    HeadOrdersAfterRestart,
    /// W3: a repeated request is applied again.
    RepeatsAreApplied,
    /// W4: a member names frames as durable that it only received.
    AnswersBeforeDurable,
    /// W5: frames and heartbeats name nothing as committed.
    CommittedUntold,
    /// W5: heartbeats name what the head has ordered, in place of what it knows to be committed.
    OrderedIsCommitted,
    /// W6: a member appends what does not follow its own last frame.
    GapsAreSkipped,
    /// R1: a member answers reads below the floor that was asked for.
    FloorIgnored,
    /// R2: the head names no floor at attachment.
    NoAttachBarrier,
    /// V1: a head takes other members into the view that it is in.
    MembersChangeInView,
    /// V1: the quorum is one of the members that are there.
    QuorumOfThoseThere,
    /// V1: a majority is the quorum, whatever the volume asks for.
    MajorityIsEnough,
    /// V1: a chain shorter than the least copies orders requests.
    ShortChainsOrder,
    /// V2: the promise is kept in memory only.
    PromiseNotDurable,
    /// V2: with a shard that it has left a node forgets what it promised.
    PromisesGo,
    /// V7: a control state that is older than the log here makes the node leave the shard.
    LeavesByOldStates,
    /// V2: one answer is enough to seal.
    SealAlone,
    /// V2: the head seals its own log and asks nobody.
    ShortestLogWins,
    /// V5: the view becomes active before a quorum holds its view frame.
    ActiveTooEarly,
    /// V1: a quorum of one, durable at the head only.
    QuorumOfOne,
    /// W7: the head looks at the room of its own log only.
    MembersRoomIgnored,
    /// V2: a head opens a view with a secret of its own in place of the one it should have gathered.
    SecretMadeUp,
    /// V2: a head that is asked to promise a view of another head's goes on with its own.
    HeadDoesNotStepDown,
    /// V2: an empty log counts, whoever's it is.
    EmptyLogsCount,
    /// V3: a log below a committed sequence that an answer names is sealed.
    SealsBelowCommitted,
    /// V4: frames of a pending view that never became active count.
    PendingFramesCount,
    /// L2: a member gives leases to drivers of older generations, too.
    LeasesToAnyone,
    /// L2: a member gives leases in a view that is not known to be active.
    LeasesInPendingViews,
    /// L2: a member that has promised a view gives leases in the one before.
    LeasesPastPromises,
    /// L2: a member gives leases before the generation that they are for is durable in its log.
    LeasesBeforeDurable,
    /// L2: a member does not say how long leases of older generations may run.
    OlderLeasesUntold,
    /// L2: drivers of older generations are told of durable frames as before.
    OlderDriversAnswered,
    /// L3: a member that has missed views does not reckon with leases that were given in them.
    ForeignLeasesUnknown,
    /// L6: who enters a view takes it that somebody there knows of each lease of the one before.
    QuorumsApart,
    /// V12: answers of nodes count for the seal of a view that they are no members of.
    LeftOnesSeal,
    /// A head that has been named others as members stops in its view before there is another one.
    PlansStopOrders,
    /// V7: a head says of new members that they have everything before they do.
    CompleteTooEarly,
    /// V7: who is to learn a map gets the state that goes with it, and nothing of the map.
    LearnsTheStateOnly,
    /// V10: who goes on by force continues the chain by its token where it can, so nobody sees the break.
    BranchNamesTheToken,
    /// V10: members that have everything begin anew, too, if they hear of a branch before they have its frame.
    SurvivorsBeginAnew,
    /// V10: who comes back from what was lost goes on with its log as if that were of the branch.
    LostLogsGoOn,
    /// V10: who goes on by force does so from the last frame that is known to be committed, and not from the end of the log.
    ForcedFromCommitted,
    /// V10: who goes on by force needs nobody's promise but its own.
    ForcedAlone,
    /// V10: a member that was taken for lost is back with more than was told of, and is passed over.
    BackPassedOver,
    /// V10: a log that has given up lost frames counts as one that never lost any.
    GivenUpCounts,
    /// S1: a head orders on behind its cut.
    OrdersBehindCuts,
    /// S1: a head reports its cut before that is committed.
    CutsBeforeCommitted,
    /// S2: a head that would not wait any more says that it had held.
    ConfirmsWithoutHold,
    /// E6: a head gives up pins of snapshots that are there.
    ReleasesWhatIsKept,
    /// A log that has promised a view of a clone, and has nothing else, never makes its fork.
    ForksGivenUp,
    /// V2: a head names no member of a clone's first view that lacks what the clone begins with.
    LateForksUntold,
    /// E10: a shard leaves a log that is about to make a fork of it.
    ForksToComeUnread,
    /// A node asks for no links of a shard whose fork its log is about to make.
    ForksToComeAlone,
    /// E7: a fork goes on as it is when its log has lost what it reads from its parents.
    OrphansGoOn,
    /// A fork that can't be made flat has the next turn, too.
    TurnsStay,
    /// I2: a new head takes it that nothing is prepared.
    PreparedForgotten,
    /// I2: a prepare that meets another one waits for its outcome.
    PreparesWait,
    /// I2: writes change blocks that are prepared.
    WritesOverPrepared,
    /// I3: the deciding shard tells of an outcome that is not committed.
    DecisionsUncommitted,
    /// I3: the deciding shard says of an interval that it does not have that it was aborted, and does not record it.
    AbortsUnrecorded,
    /// I4: the deciding shard forgets what it decided before all participants have it.
    DecisionsForgotten,
    /// R2, I2: a driver is answered while intervals of the one before it wait for their outcome.
    AttachesPastIntervals,
    /// S3: a shard is cut while something is prepared.
    CutsThroughIntervals,
}

/// Where the history of a shard last went on by force (V10). Zeroes if that never happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    /// The view that began the branch, and was active.
    pub view: ViewNumber,
    /// Logs of older views are known to be the same only up to this frame.
    pub at: Sequence,
}

/// The word of an operator that a view is left although too few of its members are there to seal it (V10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forced {
    /// All of these have to promise, and no others. The head is one of them.
    pub survivors: Vec<NodeId>,
    /// Nothing is sealed below this frame: the operator was told that it is there.
    pub least: Sequence,
    /// The highest committed frame that any answer named when the operator looked.
    pub known: Sequence,
    /// Lost frames in the middle of the head's log, of which the operator was told: it may give up so many, and is alone in
    /// its chain then. 0: none, and it may be one of several.
    pub gives_up: u64,
}

/// A snapshot that is being made, as a shard's head is to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// The snapshot.
    pub id: SnapshotId,
    /// No other shard is in it: nothing has to be held.
    pub is_alone: bool,
    /// The cuts of all its shards are reported.
    pub is_decided: bool,
    /// The view of this shard's cut, once that is reported.
    pub reported: Option<ViewNumber>,
    /// Its head had held until it heard that all are reported.
    pub is_confirmed: bool,
    /// The place in the past that it is of; `None` if it is of the present.
    pub past: Option<Past>,
}

/// The snapshots that a shard is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardSnapshots {
    /// All that have not failed.
    pub kept: Arc<BTreeSet<SnapshotId>>,
    /// The one of these that is being made.
    pub under_way: Option<UnderWay>,
    /// Pins of snapshots up to this number are kept although the state has no record of them.
    pub spared: SnapshotId,
    /// Milliseconds of the past that is kept whole, 0 for none; `None` if the state does not say, so that what is kept stays.
    pub retain_ms: Option<u64>,
    /// The active view in the state that says all this. What a node knows besides does not raise it: that state may have
    /// been before the snapshots of a newer view, and before reports of cuts in the view before that one.
    pub as_of: ViewNumber,
}

/// What the control plane says of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    /// The shard.
    pub shard: ShardId,
    /// Head first.
    pub members: Vec<NodeId>,
    /// The active view, 0 before the first.
    pub active: ViewNumber,
    /// The newest view that is known to have been active. A rebuild may have gone on from one that never was (V9).
    pub known: ViewNumber,
    /// Blocks that the shard may address.
    pub blocks: u64,
    /// Highest view number that was given out.
    pub highest: ViewNumber,
    /// Highest attachment generation that was given out.
    pub generation: Generation,
    /// All members have named a host key, so the secret of a new view has slices.
    pub has_keys: bool,
    /// Members that are not known to have everything yet (V7).
    pub joining: Vec<NodeId>,
    /// Members of the active view, who seal it.
    pub view_members: Vec<NodeId>,
    /// What the view frame is to say of the volume (V9); `None` if it need not.
    pub volume: Option<Arc<VolumeDescription>>,
    /// The view that is to follow the active one may begin a branch (V10).
    pub forced: Option<Forced>,
    /// The newest branch.
    pub branch: Branch,
    /// Snapshots that it is in.
    pub snapshots: ShardSnapshots,
    /// Where it begins, if it is a clone's.
    pub fork: Option<Fork>,
    /// It is to have all that it reads from its parent as its own.
    pub flatten: bool,
}

/// A question of a head to its log about the past that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastAsk {
    /// The shard.
    pub shard: ShardId,
    /// The head's view.
    pub view: ViewNumber,
    /// The newest moment that counts.
    pub now: Moment,
    /// The newest version that counts.
    pub last: Version,
    /// The question itself.
    pub wanted: Wanted,
}

/// Questions of a head about the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first version of the retention window, if there is one.
    Window,
    /// The moment at which it begins.
    Begin,
    /// The version at a place in the past.
    At {
        /// The place.
        past: Past,
        /// The snapshot that it is for; `None` if the window is to begin there.
        snapshot: Option<SnapshotId>,
    },
    /// The times that are told if the window begins at a version so that it takes less memory.
    Room {
        /// The version.
        above: Version,
        /// The moment from which on times are told now.
        from: Moment,
    },
}

/// The answer to `Wanted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The first version of the retention window; `None` if there is none.
    Window(Option<Version>),
    /// The first moment that is told; `None` if none is.
    Begin(Option<Moment>),
    /// The version at the place.
    Version(PastVersion),
    /// The times that are told above the version.
    Times(TimesAbove),
}

/// The past of a shard, as its head knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastStatus {
    /// The first version of its retention window.
    pub first: Version,
    /// From when on times are told, milliseconds since 1970; `None` if none are yet.
    pub from_ms: Option<u64>,
    /// It is shorter than it should be, for want of memory.
    pub is_short: bool,
}

/// A head's word on a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutWord {
    /// The shard is cut: the frame that pins this version is committed (S1).
    Cut {
        /// The shard.
        shard: ShardId,
        /// The snapshot.
        snapshot: SnapshotId,
        /// The active view, in which it was ordered.
        view: ViewNumber,
        /// The version that is pinned.
        version: Version,
        /// The frame.
        sequence: Sequence,
    },
    /// Nothing was ordered behind the cut before it was heard that all are reported (S2).
    Held {
        /// The shard.
        shard: ShardId,
        /// The snapshot.
        snapshot: SnapshotId,
        /// The view of the cut.
        view: ViewNumber,
    },
    /// It can't be completed.
    Fails {
        /// The snapshot.
        snapshot: SnapshotId,
        /// For people.
        why: String,
    },
}

/// The control plane's answer to a proposal: the pending view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Number of the pending view, above all that the shard ever had.
    pub view: ViewNumber,
    /// Last active view, 0 for none.
    pub pred: ViewNumber,
    /// Members of the pending view, head first.
    pub members: Vec<NodeId>,
    /// Durable copies before a write is answered in it (A).
    pub quorum: u8,
    /// Least members of a view that orders requests.
    pub min_copies: u8,
    /// Members of the predecessor, and its quorum: `len − A + 1` answers of theirs seal it (V2).
    pub pred_members: Vec<NodeId>,
    /// Ack quorum of the predecessor; 0 if there is none.
    pub pred_quorum: u8,
    /// Members of the predecessor that were new in it, and are not known to have everything: an empty log of theirs was
    /// not lost, so it counts (V2).
    pub pred_learning: Vec<NodeId>,
    /// Members of the predecessor whose devices may be old images: what they say of it does not count (V2, V8).
    pub pred_unseen: Vec<NodeId>,
    /// Set if the predecessor may be left by force.
    pub forced: Option<Forced>,
    /// The volume's attachment generation, for the view frame (V6).
    pub generation: Generation,
    /// Host keys of the members that have named one.
    pub keys: BTreeMap<NodeId, HostPublic>,
    /// What the volume is, for the view frame (V9).
    pub volume: Option<Box<VolumeDescription>>,
}

/// The thing that a view begins, beside itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begins {
    /// It follows the view before, or is the first one of an empty shard.
    Nothing,
    /// A branch: its frame says that it goes on by force (V10).
    Branch,
    /// A clone's shard, and not all members are known to have what that begins with.
    Clone {
        /// These are not: they learn it.
        learning: Vec<NodeId>,
    },
}

/// An interval that a log has in one of the shard's places.
#[derive(Clone, Debug)]
pub struct FoundInterval {
    /// The place.
    pub place: u32,
    /// Its record; it may be that of another shard, which this one was cloned from.
    pub record: IntervalRecord,
    /// One for each block of its data; none if it is not prepared.
    pub crcs: Vec<u32>,
    /// Those blocks.
    pub data: Vec<Bytes>,
}

/// A question of a shard's head to that of another one about an interval over both (I3, I4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalAsk {
    /// The shard that is asked.
    pub at: ShardId,
    /// The interval.
    pub id: IntervalId,
    /// It is the deciding one, and is to say how it ended; else whether it is over there.
    pub decides: bool,
}

/// The answer to an [`IntervalAsk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntervalWord {
    /// It counts: that is committed.
    Committed,
    /// It does not count, and never will: that is committed.
    Aborted,
    /// Of a participant: it is prepared there, or its outcome is not committed.
    Open,
    /// Of a participant: nothing of it waits there any more.
    Over,
}

/// What a worker asks of the control plane, and of other nodes.
#[allow(async_fn_in_trait, reason = "one thread per worker: futures need not be Send")]
pub trait ControlPort: 'static {
    /// Commits a pending view with the members that the shard is to have (rule V6 numbers it).
    async fn propose(&self, shard: ShardId, active: ViewNumber, start: StartNumber) -> Result<Opened>;
    /// Makes the pending view active; refused if it is not the pending one any more.
    /// `generation` is the one in its view frame: an attachment that came since refuses it, too.
    async fn activate(&self, shard: ShardId, view: ViewNumber, generation: Generation, begins: Begins) -> Result<()>;
    /// Makes another member the head, if this node still is.
    async fn hand_over(&self, shard: ShardId, to: NodeId) -> Result<()>;
    /// These members of the active view have everything (V7).
    async fn complete(&self, shard: ShardId, view: ViewNumber, nodes: Vec<NodeId>) -> Result<()>;
    /// Words of heads on snapshots. What is not taken in is said again.
    async fn cuts(&self, words: Vec<CutWord>) -> Result<()>;
    /// Asks the head of another shard about an interval. `Retry` if it does not answer, or can't say it now.
    async fn ask_interval(&self, ask: IntervalAsk) -> Result<IntervalWord>;
}

/// Who is at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A worker of a node.
    Member(Peer),
    /// A driver.
    Driver,
}

/// Where a sync answer comes from: frames read from the log.
#[derive(Clone, Debug)]
pub struct SyncSource {
    /// The last frame that both have.
    pub common: Sequence,
    /// Durable frames behind it, or why there are none.
    pub frames: Result<Vec<Frame>>,
}

/// A piece of a map: entries, their data, and where the next piece begins.
pub type MapPiece = (CarryBody, Vec<Bytes>, Option<MapPlace>);

/// Where an answer by map comes from.
#[derive(Clone, Debug)]
pub struct MapSource {
    /// Entries that were placed by frames up to this one are left out: the asker has them.
    pub since: Sequence,
    /// Entries up to this frame are in it.
    pub upto: Sequence,
    /// The frame of the view that was in force at `upto`.
    pub view_frame: Option<Box<FrameHead>>,
    /// The versions that were kept when the piece had been read.
    pub kept: KeptState,
    /// Entries and their data, or why there are none.
    pub piece: Result<MapPiece>,
}

/// What became of blocks of another member for damaged ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mended {
    /// They are on their way to the log, or not needed any more.
    Done,
    /// They are not what was written here.
    Useless,
    /// The log takes none now.
    Later,
}

/// What happens to a host.
#[derive(Debug)]
pub enum Event {
    /// A message came in.
    Message {
        /// The link that it came on.
        from: LinkId,
        /// The message.
        message: Message,
    },
    /// A link is open.
    LinkUp {
        /// Its number, which no other link of the process ever has.
        link: LinkId,
        /// The other end.
        who: Who,
    },
    /// A link is gone, and with it all that was under way on it.
    LinkDown {
        /// Its number.
        link: LinkId,
    },
    /// From the log engine, in log order.
    Durable(Vec<Durable>),
    /// The answer to `Action::CheckFork`: the fork can be made, or why not. `NotFound` may be another one later.
    ForkChecked {
        /// The shard that is to be made.
        shard: ShardId,
        /// Of the log.
        result: Result<(), ErrorKind>,
    },
    /// The log has lost, for good, something that this fork reads from its parents.
    Orphaned(ShardId),
    /// Live blocks that are damaged in this log.
    Damaged(Vec<DamagedBlocks>),
    /// What the log made of blocks that another member had.
    Mended {
        /// Number of the blocks, as `Damaged` named them.
        id: u64,
        /// The end that they came to.
        end: Mended,
    },
    /// The device is out of use until the node starts again: all replicas stop.
    EngineFailed(Error),
    /// News from the control plane: shards that are new or changed.
    Shards(Vec<ShardInfo>),
    /// By a control state, this node is no member of the shard any more, and those that are have everything (V7).
    Left {
        /// The shard.
        shard: ShardId,
        /// The active view in that state, which may be older than the log here.
        active: ViewNumber,
    },
    /// The volume was deleted.
    Gone(ShardId),
    /// Workers of each node have become known or changed.
    Workers(BTreeMap<NodeId, u16>),
    /// The answer to `Action::Propose`.
    Proposed {
        /// The shard.
        shard: ShardId,
        /// The pending view, or why there is none.
        result: Result<Opened>,
        /// Random, and used for nothing else: the view's secret comes from it.
        seed: Hash32,
    },
    /// The answer to `Action::Activate`.
    Activated {
        /// The shard.
        shard: ShardId,
        /// The view that was to become active.
        view: ViewNumber,
        /// `Ok` if it is active; `Fenced` if it can't be any more.
        result: Result<()>,
    },
    /// The answer to `Action::SyncRead`.
    SyncRead {
        /// The link of the asker.
        link: LinkId,
        /// As it was in the action.
        request: SyncRequest,
        /// The answer of the log.
        source: SyncSource,
    },
    /// The answer to `Action::MapRead`.
    MapRead {
        /// The link of the asker.
        link: LinkId,
        /// As it was in the action.
        request: SyncRequest,
        /// The answer of the map.
        source: MapSource,
    },
    /// The answer to `Action::ListPins`: the pins of the log, oldest first, as the last durable frame left them.
    Pins {
        /// The shard.
        shard: ShardId,
        /// With the snapshots that they are of.
        pins: Vec<Pin>,
    },
    /// The answer to `Action::FindPast`.
    PastFound {
        /// As it was in the action.
        ask: PastAsk,
        /// The answer; `NotFound` if it is not kept, another error if it has to be asked again.
        found: Result<Found>,
    },
    /// The answer to `Action::ListIntervals`.
    Intervals {
        /// The shard.
        shard: ShardId,
        /// As it was in the action.
        view: ViewNumber,
        /// All that the shard's places have, or why that can't be read now.
        found: Result<Vec<FoundInterval>>,
    },
    /// The answer to `Action::AskInterval`.
    IntervalWord {
        /// The shard that asked.
        shard: ShardId,
        /// As it was in the action.
        view: ViewNumber,
        /// As it was in the action.
        ask: IntervalAsk,
        /// The answer, if one came.
        word: Result<IntervalWord>,
    },
    /// Time has passed; wanted about every 20 ms.
    Tick,
}

/// What a host wants done, in this order.
#[derive(Debug)]
pub enum Action {
    /// Send a message. If the link is gone, nothing happens.
    Send {
        /// The link.
        to: LinkId,
        /// The message; those of one link in this order.
        message: Message,
    },
    /// Give a record to the log engine; `Event::Durable` follows.
    Append(Record),
    /// Ask the log engine whether it can make a fork; `Event::ForkChecked` follows.
    CheckFork {
        /// The shard that is to be made.
        shard: ShardId,
        /// Where it begins.
        fork: Fork,
    },
    /// Tell the log engine how far a shard is committed.
    Committed {
        /// The shard.
        shard: ShardId,
        /// Everything up to this frame.
        sequence: Sequence,
    },
    /// Tell the log engine which frames of a shard others may still ask for.
    Keep {
        /// The shard.
        shard: ShardId,
        /// Frames from this one on are kept.
        from: Sequence,
    },
    /// Answer this read from the log engine.
    Read {
        /// The link of the asker.
        link: LinkId,
        /// The request, which was checked.
        request: ReadRequest,
    },
    /// Find the common frame among these names (the first that the log has with that hash), read what follows it,
    /// and come back with `Event::SyncRead`.
    SyncRead {
        /// The link of the asker.
        link: LinkId,
        /// The request with the names.
        request: SyncRequest,
        /// The common frame, if the host knows it already; `None` if the log has to find it.
        known_common: Option<Sequence>,
    },
    /// Read map entries placed after `since` and up to `upto`, from `after` on, and those below them that kept versions see
    /// and that were placed after `past`; and come back with `Event::MapRead`.
    MapRead {
        /// The link of the asker.
        link: LinkId,
        /// The request.
        request: SyncRequest,
        /// Entries that were placed by frames up to this one are left out.
        since: Sequence,
        /// Entries that were placed by frames behind this one are left out.
        upto: Sequence,
        /// Superseded entries that were placed by frames up to this one are left out.
        past: Sequence,
        /// Where the transfer goes on.
        after: MapPlace,
    },
    /// Ask the control plane for a pending view; `Event::Proposed` follows.
    Propose {
        /// The shard.
        shard: ShardId,
        /// The active view, as this host knows it.
        active: ViewNumber,
    },
    /// Ask the control plane to make the pending view active; `Event::Activated` follows.
    Activate {
        /// The shard.
        shard: ShardId,
        /// The pending view.
        view: ViewNumber,
        /// The attachment generation in its view frame.
        generation: Generation,
        /// The thing that its frame begins.
        begins: Begins,
    },
    /// This node can't be the head; `to` can.
    HandOver {
        /// The shard.
        shard: ShardId,
        /// A member that can be head.
        to: NodeId,
    },
    /// These members of the view have everything.
    Complete {
        /// The shard.
        shard: ShardId,
        /// The active view.
        view: ViewNumber,
        /// Those members.
        nodes: Vec<NodeId>,
    },
    /// Tell the control plane this of a snapshot.
    Cut(CutWord),
    /// Come back with `Event::Pins`.
    ListPins {
        /// The shard.
        shard: ShardId,
    },
    /// Come back with `Event::PastFound`.
    FindPast(PastAsk),
    /// Read the shard's places of intervals, as the last durable frame left them, and come back with `Event::Intervals`.
    ListIntervals {
        /// The shard.
        shard: ShardId,
        /// The head's view.
        view: ViewNumber,
        /// No other member may have what can't be read here: it is left out.
        alone: bool,
    },
    /// Ask another shard's head, and come back with `Event::IntervalWord`.
    AskInterval {
        /// The shard that asks.
        shard: ShardId,
        /// Its head's view.
        view: ViewNumber,
        /// The question.
        ask: IntervalAsk,
    },
    /// Blocks of another member for damaged ones.
    Mend {
        /// The damaged blocks.
        blocks: DamagedBlocks,
        /// Its blocks as the other member has them, whole blocks.
        data: Bytes,
    },
    /// Nobody has them.
    Unmended {
        /// Number of the blocks, as `Event::Damaged` named them.
        id: u64,
    },
    /// Something worth a line in the log.
    Note(Note),
}

/// What a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// What goes on; of use to whoever looks for the cause of something.
    Trace,
    /// The log noticed something.
    Log(EventKind),
    /// What was damaged or lost is whole again.
    Mended,
    /// A shard can't be opened, or a fork made flat, before something is there that is not.
    Waits,
    /// A shard keeps less of its past than it should.
    Past,
    /// A part of the worker has ended, until the node is started again.
    Ended,
}

/// A line for people.
#[derive(Clone, Debug)]
pub struct Note {
    /// The kind of note; it decides how loud the line is.
    pub kind: NoteKind,
    /// Set for all kinds but `Trace`, if it is about one shard.
    pub shard: Option<ShardId>,
    /// One line.
    pub text: String,
}

impl Note {
    /// A note.
    #[must_use]
    pub fn new(kind: NoteKind, shard: Option<ShardId>, text: String) -> Self {
        Self { kind, shard, text }
    }
}

/// State of one replica for people and programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStatus {
    /// The shard.
    pub shard: ShardId,
    /// The view that it is in, 0 for none.
    pub view: ViewNumber,
    /// Members as this host knows them, head first.
    pub members: Vec<NodeId>,
    /// True if this node orders the shard's updates.
    pub is_head: bool,
    /// `active`, `opening`, `following`, `syncing`, `full` (it lags, and has no room for what it lacks), `damaged`,
    /// `stopped`, `waiting`.
    pub state: &'static str,
    /// Last version that it holds.
    pub version: Version,
    /// Its last frame.
    pub last: FrameName,
    /// Durable up to this sequence.
    pub durable: Sequence,
    /// Committed up to this sequence, as far as it knows.
    pub committed: Sequence,
    /// Only at the head: what it knows of its members.
    pub chain: Vec<MemberStatus>,
    /// Links of drivers that are attached.
    pub clients: usize,
    /// The generation of an attachment that is of no use any more to who had it.
    pub lapsed: Option<Generation>,
    /// Versions that its log keeps for snapshots.
    pub pins: usize,
    /// Only at a head: the past that it keeps besides.
    pub past: Option<PastStatus>,
    /// Of a head that can't open its view, or a fork that can't be made flat: what it waits for, in words.
    pub waits: Option<String>,
    /// Kept versions below this are not all there; 0 if its history is whole.
    pub whole_from: Version,
    /// Where it begins, for as long as it reads from its parent what it does not have.
    pub fork: Option<Fork>,
    /// The part of its log that counts when the active view is left.
    pub log: LogStatus,
}

/// The part of a log that counts when the active view is left (V2, V10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// That view, as the control plane has told.
    pub active: ViewNumber,
    /// The log has the frame of that view, and so all that was before it.
    pub has_view: bool,
    /// The last frame that counts, and the version with it. Of a log that has lost frames, the last one that it can go
    /// on from by force.
    pub last: FrameName,
    /// See `last`.
    pub version: Version,
    /// The highest frame that is known to be committed, from what was told of frames that are not here, too.
    pub committed: Sequence,
    /// No view below this is served any more.
    pub promised: ViewNumber,
    /// Frames that were lost to damage.
    pub lost: u64,
    /// Lost frames were given up by force, and no view is active yet that says so.
    pub has_given_up: bool,
    /// Frames behind the last one may be lost.
    pub is_suspect: bool,
    /// It is out of use until the node starts again.
    pub is_stopped: bool,
    /// This head has all logs that it needs, and too few slices of the view's secret.
    pub lacks_secret: bool,
}

/// What a head knows of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member's node.
    pub node: NodeId,
    /// Durable up to this sequence, as the member has said.
    pub durable: Sequence,
    /// Not passed over: frames are sent to it.
    pub live: bool,
}
