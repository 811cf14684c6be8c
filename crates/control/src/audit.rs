//! The audit of a volume's hash chains (`freebs verify`): what a member says of its own log, and what the members
//! together prove. Field names are stable.
//!
//! Each member audits its own log. Who asks starts an audit at all members of a shard, tells each of them at which
//! sequences the others can be compared with it, asks how far they are, and compares what they found. A view's secret
//! that one member's log has lost may be in another's: an audit can be told such secrets.

use freebs_types::{Hash32, Sequence, ShardId, Version, ViewNumber};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Which audit is asked for, and what it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditOf {
    /// The shard.
    pub shard: ShardId,
    /// Number of the audit, random: the same one asks again for the same audit.
    pub run: u64,
    /// Lets the audit begin. Without it a new one waits, and says what it begins with.
    #[serde(default)]
    pub go: Option<AuditGo>,
}

/// Things that an audit is told when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditGo {
    /// Sequences whose `hid` is wanted.
    pub at: Vec<Sequence>,
    /// Secrets of closed views, as other members' logs published them.
    pub secrets: Vec<(ViewNumber, Hash32)>,
}

/// How far an audit is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum AuditState {
    /// It waits for what it is to be told.
    Ready {
        /// The last frame that this member knows to be committed: others have the same one.
        committed: Sequence,
    },
    /// It reads.
    Reading {
        /// Segments that were read.
        done: u32,
        /// Segments in all.
        total: u32,
    },
    /// It has come to its end.
    Done(Box<MemberAudit>),
}

/// The certainty of a range of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditProof {
    /// The frames are not in the log any more.
    Summarised,
    /// Each frame fits its digest and is named by the one behind it. The secret of its view is not known.
    Linked,
    /// Each frame was made with the secret of its view, which is published.
    Proven,
}

impl AuditProof {
    /// The word that JSON and the CLI have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Summarised => "summarised",
            Self::Linked => "linked",
            Self::Proven => "proven",
        }
    }
}

/// Frames one behind the other of which the same is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRange {
    /// How sure the audit is of them.
    pub proof: AuditProof,
    /// Version of their first update.
    pub first_version: Version,
    /// Version of their last update; below `first_version` if they have none.
    pub last_version: Version,
    /// The first frame.
    pub first: Sequence,
    /// The last frame.
    pub last: Sequence,
    /// View of the first frame.
    pub first_view: ViewNumber,
    /// View of the last frame.
    pub last_view: ViewNumber,
}

/// A break in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditBreak {
    /// `altered`, `removed`, `unlinked`, `forged`, `secret` or `branch`.
    pub cause: String,
    /// View of the frame, or of the one behind those that are missing.
    pub view: ViewNumber,
    /// The first frame that it is about.
    pub first: Sequence,
    /// The last frame that it is about.
    pub last: Sequence,
    /// Version after that frame, as the log says it.
    pub version: Version,
    /// Segment of the node's device; `None` if the place is not known.
    pub segment: Option<u32>,
    /// Byte in that segment.
    pub offset: Option<u32>,
    /// The same place as a byte on the device.
    pub byte: Option<u64>,
    /// The break in words, for people.
    pub what: String,
}

/// A view that went on by force (`freebs volume recover`), as a member's log shows it. This is no break of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditBranch {
    /// The view.
    pub view: ViewNumber,
    /// Its first frame.
    pub sequence: Sequence,
    /// Version before that frame: what was written later, before the view, is lost.
    pub version: Version,
}

/// A member's finding of its own log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberAudit {
    /// The last version when the audit began.
    pub version: Version,
    /// The last frame then.
    pub sequence: Sequence,
    /// The last frame that the member knew to be committed then.
    pub committed: Sequence,
    /// From the oldest to the newest. Frames of a break are in none of them.
    pub ranges: Vec<AuditRange>,
    /// The oldest ranges were told together, as what is proven least of them.
    #[serde(default)]
    pub folded: bool,
    /// From the oldest to the newest; the oldest one is always told.
    pub breaks: Vec<AuditBreak>,
    /// Breaks in all.
    pub break_count: u64,
    /// Views that went on by force, from the oldest to the newest; the newest ones are always told.
    #[serde(default)]
    pub branches: Vec<AuditBranch>,
    /// Frames that are proven.
    pub proven: u64,
    /// Frames that are linked and not proven.
    pub linked: u64,
    /// Frames that are not in the log any more.
    pub summarised: u64,
    /// Frames with damaged blocks, which have been put back elsewhere in the log: with these they are what was written.
    #[serde(default)]
    pub mended: u64,
    /// Segments that were read.
    pub segments: u32,
    /// Bytes that were read.
    pub bytes: u64,
    /// Frames and their `hid`, to be compared with other members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<(Sequence, Hash32)>,
    /// Secrets of closed views that this log publishes, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<(ViewNumber, Hash32)>,
    /// Views with frames here whose secret is not known, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<ViewNumber>,
    /// Secrets that the audit was told and that do not fit what this log has of their views, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfit: Vec<(ViewNumber, Hash32)>,
}

impl MemberAudit {
    /// Secrets that another audit of this log has to be told: this log has lost them, and other members know them.
    #[must_use]
    pub fn lacks(&self, known: &BTreeMap<ViewNumber, Hash32>) -> Vec<(ViewNumber, Hash32)> {
        self.unknown.iter().filter_map(|view| Some((*view, *known.get(view)?))).collect()
    }

    /// A branch needs no token, so it is the control state that knows of it. One in this log that is newer than `newest`, the
    /// newest one there (0 if there is none), was begun by nobody who might: a break. What is not committed may be cut yet.
    #[must_use]
    pub fn with_branches_known(mut self, newest: ViewNumber) -> Self {
        let committed = self.committed;
        let is_unsaid = |b: &&AuditBranch| b.view > newest && b.sequence <= committed;
        let breaks = self.branches.iter().filter(is_unsaid).map(|b| AuditBreak {
            cause: "branch".into(),
            view: b.view,
            first: b.sequence,
            last: b.sequence,
            version: b.version,
            segment: None,
            offset: None,
            byte: None,
            what: "the view goes on as by force, and the control state does not know that it did".into(),
        });
        let breaks: Vec<AuditBreak> = breaks.collect();
        self.break_count += breaks.len() as u64;
        self.breaks.extend(breaks);
        self.breaks.sort_by_key(|b| b.first);
        self
    }

    /// The same for people and programs, without what is only to be compared.
    #[must_use]
    pub fn shown(mut self) -> Self {
        (self.samples, self.published, self.unknown) = (Vec::new(), Vec::new(), Vec::new());
        self.unfit = Vec::new();
        self
    }
}

/// Secrets that members' logs published, of each view the one that most of them have.
#[must_use]
pub fn secrets<'a>(members: impl Iterator<Item = &'a MemberAudit>) -> BTreeMap<ViewNumber, Hash32> {
    let mut count: BTreeMap<ViewNumber, BTreeMap<Hash32, usize>> = BTreeMap::new();
    for (view, secret) in members.flat_map(|m| &m.published) {
        *count.entry(*view).or_default().entry(*secret).or_default() += 1;
    }
    let most = |of: BTreeMap<Hash32, usize>| of.into_iter().max_by_key(|(_, n)| *n).map(|(secret, _)| secret);
    count.into_iter().filter_map(|(view, of)| Some((view, most(of)?))).collect()
}

/// Members that have different frames of one number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The first frame that was compared and found to differ: the histories part at it or before it.
    pub sequence: Sequence,
    /// The last frame before it that was compared and found to be the same; 0 if there is none.
    pub same_to: Sequence,
    /// Members that do not have what most have; all of them if no frame is had by most.
    pub nodes: Vec<String>,
}

/// A comparison of members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// The last frame that at least two members have, and all that were compared have the same; 0 if there is none.
    pub same_to: Sequence,
    /// Members whose frames were compared with another's.
    pub nodes: Vec<String>,
    /// Set if they do not agree.
    pub difference: Option<Difference>,
}

/// Compares what members have of one shard. Only what all of the compared knew to be committed has to be the same.
#[must_use]
pub fn compare(members: &[(&str, &MemberAudit)]) -> Comparison {
    let mut frames: BTreeMap<Sequence, Vec<(&str, Hash32)>> = BTreeMap::new();
    for (node, m) in members {
        for (s, hid) in m.samples.iter().filter(|(s, _)| *s <= m.committed) {
            frames.entry(*s).or_default().push((node, *hid));
        }
    }
    let (mut out, mut nodes) = (Comparison::default(), BTreeSet::new());
    for (s, of) in frames.into_iter().filter(|(_, of)| of.len() > 1) {
        nodes.extend(of.iter().map(|(node, _)| *node));
        if of.iter().all(|(_, hid)| *hid == of[0].1) {
            if out.difference.is_none() {
                out.same_to = s;
            }
            continue;
        }
        let votes = |hid: &Hash32| of.iter().filter(|(_, other)| other == hid).count();
        let is_odd = |(_, hid): &&(&str, Hash32)| 2 * votes(hid) <= of.len();
        let same_to = out.same_to;
        out.difference.get_or_insert_with(|| {
            let nodes = of.iter().filter(is_odd).map(|(node, _)| (*node).to_owned()).collect();
            Difference { sequence: s, same_to, nodes }
        });
    }
    out.nodes = nodes.into_iter().map(str::to_owned).collect();
    out
}

/// A secret that members published and that does not fit what another one's log has of its view. No break: nobody's log
/// says which of them is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfitSecret {
    /// The view.
    pub view: ViewNumber,
    /// Members that published the secret.
    pub published_by: Vec<String>,
    /// Members whose frames of the view were not made with it.
    pub unfit_at: Vec<String>,
}

/// The secrets that did not fit, by view, with those who published them and those whose frames they do not fit.
#[must_use]
pub fn unfit(members: &[(&str, &MemberAudit)]) -> Vec<UnfitSecret> {
    let words: BTreeSet<&(ViewNumber, Hash32)> = members.iter().flat_map(|(_, m)| &m.unfit).collect();
    let named = |has: &dyn Fn(&MemberAudit) -> bool| {
        members.iter().filter(|(_, m)| has(m)).map(|(node, _)| (*node).to_owned()).collect()
    };
    let one = |word: &(ViewNumber, Hash32)| UnfitSecret {
        view: word.0,
        published_by: named(&|m| m.published.contains(word)),
        unfit_at: named(&|m| m.unfit.contains(word)),
    };
    words.into_iter().map(one).collect()
}

/// The audit of a member, or why there is none; by the name of its node.
pub type Audited = (String, Result<MemberAudit, String>);

/// One member of a shard, as `freebs verify` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedMember {
    /// Name of the node.
    pub node: String,
    /// It was audited, and there is no break.
    pub sound: bool,
    /// Why it could not be audited.
    pub error: Option<String>,
    /// Its finding; `None` if it could not be asked.
    pub audit: Option<MemberAudit>,
}

/// One shard, as `freebs verify` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditedShard {
    /// Volume and index, as in `1.0`.
    pub id: String,
    /// One per member.
    pub members: Vec<AuditedMember>,
    /// Its members compared.
    pub comparison: Comparison,
    /// Secrets that some members published, and that do not fit what others have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unfit: Vec<UnfitSecret>,
}

/// The finding of `freebs verify`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeAudit {
    /// Name of the volume.
    pub volume: String,
    /// No member that was audited has a break, and none differs from another.
    pub sound: bool,
    /// All members of all shards were audited.
    pub complete: bool,
    /// In the order of their index.
    pub shards: Vec<AuditedShard>,
}

impl VolumeAudit {
    /// Puts together the members of each shard.
    #[must_use]
    pub fn new(volume: String, shards: Vec<(String, Vec<Audited>)>) -> Self {
        let shard = |(id, members): (String, Vec<Audited>)| {
            let audited: Vec<(&str, &MemberAudit)> =
                members.iter().filter_map(|(node, m)| Some((node.as_str(), m.as_ref().ok()?))).collect();
            let (comparison, unfit) = (compare(&audited), unfit(&audited));
            let members = members.into_iter().map(|(node, m)| match m {
                Ok(m) => AuditedMember { node, sound: m.break_count == 0, error: None, audit: Some(m.shown()) },
                Err(e) => AuditedMember { node, sound: false, error: Some(e), audit: None },
            });
            AuditedShard { id, members: members.collect(), comparison, unfit }
        };
        let shards: Vec<AuditedShard> = shards.into_iter().map(shard).collect();
        let members = || shards.iter().flat_map(|s| &s.members);
        let breaks = members().any(|m| m.audit.as_ref().is_some_and(|a| a.break_count > 0));
        let sound = !breaks && shards.iter().all(|s| s.comparison.difference.is_none());
        let complete = members().all(|m| m.audit.is_some());
        Self { volume, sound, complete, shards }
    }
}
