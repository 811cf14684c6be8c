//! The state as bytes: a fixed header with identity and checksums, then a JSON body.
//!
//! Decoding never panics and never allocates more than the bytes it was given warrant. What a checksum or the
//! identity catches is `Corrupt`, a newer format is `Invalid`.

use crate::limits;
use crate::snapshots::{Snapshot, SnapshotVolume, Snapshots};
use crate::state::{FIRST_FOUNDING, Node, State, Volume};
use crate::tokens::{Joining, Token};
use freebs_format::crc32c;
use freebs_types::{ClusterId, Error, HostPublic, NodeId, Result, SnapshotId, VolumeId, limits as common};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a state.
pub const STATE_MAGIC: [u8; 4] = *b"FBCS";
/// Host keys of nodes, and who opened a view, came with version 2; a state without host keys is still written as
/// version 1, whose readers pass over the other. Members that change came with version 3: a reader that passes over
/// them would ask the wrong ones. A state in which none are changing is written as before. Branches came with version 4: a
/// reader that passes over them would let a log that was lost go on.
/// Snapshots came with version 5: a reader that passes over them would have logs let go of what they are of. Clones came with
/// version 6: a reader that passes over them would begin them with nothing. Schedules of snapshots came with version 7: a
/// reader that passes over them would make none. Nodes that are away came with version 8: a reader that
/// passes over them would give places away, and have nodes free what they have. How nodes join came with version 9: a reader that passes
/// over it would take in anybody. Foundings came with version 10: a reader that passes over them would mix a state that was made
/// again with those before it. Nodes that drain came with version 11: a reader that passes over them would place copies there.
/// Nodes that were removed, and who takes the places of one that drains, came with version 12: a reader that passes over them would
/// take the first in again. Nodes that stand in came with version 13: a reader that passes over them would have them learn.
pub const STATE_VERSION: u16 = 13;
/// Bytes of the header before the body.
pub const STATE_HEADER_BYTES: usize = 64;

/// Header of the state's durable form; the body follows at once.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StateHeader {
    /// Always `FBCS`.
    pub magic: [u8; 4],
    /// Lowest version whose readers understand the body; at most `STATE_VERSION`.
    pub version: U16,
    /// Bytes of this header.
    pub length: U16,
    /// The cluster whose state it is.
    pub cluster: [u8; 16],
    /// Revision of the state.
    pub revision: U64,
    /// Bytes of the body.
    pub body_len: U64,
    /// Number of the founding; 0 for the first.
    pub founding: U64,
    /// Zero.
    pub reserved: [u8; 8],
    /// CRC-32C of the body.
    pub body_crc: U32,
    /// CRC-32C of the bytes before this field.
    pub crc: U32,
}
const _: () = assert!(size_of::<StateHeader>() == STATE_HEADER_BYTES);

#[derive(Serialize)]
struct BodyOut<'a> {
    last_volume: VolumeId,
    forgotten: u64,
    nodes: Vec<&'a Node>,
    volumes: Vec<&'a Volume>,
    deleted: Vec<(u64, VolumeId)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshots: Option<SnapshotsOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    joining: Option<JoiningOut<'a>>,
}

#[derive(Serialize)]
struct JoiningOut<'a> {
    authority: Option<HostPublic>,
    last_node: NodeId,
    tokens: Vec<&'a Token>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<NodeId>,
}

#[derive(Deserialize)]
struct JoiningIn {
    authority: Option<HostPublic>,
    last_node: NodeId,
    tokens: Vec<Token>,
    #[serde(default)]
    removed: Vec<NodeId>,
}

#[derive(Serialize)]
struct SnapshotsOut<'a> {
    last: SnapshotId,
    spared: SnapshotId,
    records: Vec<&'a Snapshot>,
    gone: Vec<(u64, SnapshotId)>,
}

#[derive(Deserialize)]
struct BodyIn {
    last_volume: VolumeId,
    forgotten: u64,
    nodes: Vec<Node>,
    volumes: Vec<Volume>,
    deleted: Vec<(u64, VolumeId)>,
    #[serde(default)]
    snapshots: Option<SnapshotsIn>,
    #[serde(default)]
    joining: Option<JoiningIn>,
}

#[derive(Deserialize)]
struct SnapshotsIn {
    last: SnapshotId,
    spared: SnapshotId,
    records: Vec<Snapshot>,
    gone: Vec<(u64, SnapshotId)>,
}

fn damaged(what: &'static str) -> Error {
    Error::corrupt(what)
}

impl State {
    /// The whole state as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = BodyOut {
            last_volume: self.last_volume,
            forgotten: self.forgotten,
            nodes: self.nodes.values().map(|n| &**n).collect(),
            volumes: self.volumes.values().map(|v| &**v).collect(),
            deleted: self.deleted.iter().copied().collect(),
            snapshots: Some(&*self.snapshots).filter(|s| s.last().0 > 0).map(|s| SnapshotsOut {
                last: s.last(),
                spared: s.spared(),
                records: s.iter().map(|s| &**s).collect(),
                gone: s.gone().copied().collect(),
            }),
            joining: Some(self.joining()).filter(|j| **j != Joining::default()).map(|j| JoiningOut {
                authority: j.authority(),
                last_node: j.last_node(),
                tokens: j.tokens().collect(),
                removed: j.removed().iter().copied().collect(),
            }),
        };
        let body_joins = body.joining.is_some();
        let mut out = vec![0; STATE_HEADER_BYTES];
        serde_json::to_writer(&mut out, &body).expect("a state has only what JSON can say");
        let body = &out[STATE_HEADER_BYTES..];
        let version = match () {
            () if self.has_standing() => STATE_VERSION,
            () if self.nodes.values().any(|n| n.heir.is_some() || n.retires) => 12,
            () if !self.joining().removed().is_empty() => 12,
            () if self.nodes.values().any(|n| n.drains) => 11,
            () if self.founding() != FIRST_FOUNDING => 10,
            () if body_joins => 9,
            () if self.has_away() => 8,
            () if self.volumes.values().any(|v| v.schedule.is_some()) => 7,
            () if self.volumes.values().any(|v| v.origin.is_some()) => 6,
            () if self.snapshots.last().0 > 0 => 5,
            () if self.has_branches() => 4,
            () if self.has_changing_members() => 3,
            () if self.nodes.values().any(|n| n.host_key.is_some()) => 2,
            () => 1,
        };
        let mut header = StateHeader {
            magic: STATE_MAGIC,
            version: version.into(),
            length: (STATE_HEADER_BYTES as u16).into(),
            cluster: self.cluster.0,
            revision: self.revision.into(),
            body_len: (body.len() as u64).into(),
            founding: if self.founding() == FIRST_FOUNDING { 0 } else { self.founding() }.into(),
            reserved: [0; 8],
            body_crc: crc32c(body).into(),
            crc: 0.into(),
        };
        header.crc = crc32c(&header.as_bytes()[..60]).into();
        out[..STATE_HEADER_BYTES].copy_from_slice(header.as_bytes());
        out
    }

    /// The state in `bytes`, all of it checked.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (header, body) =
            StateHeader::ref_from_prefix(bytes).map_err(|_| damaged("the control state is cut short"))?;
        if header.magic != STATE_MAGIC {
            return Err(damaged("this is no control state of freebs"));
        }
        if header.crc.get() != crc32c(&header.as_bytes()[..60]) {
            return Err(damaged("the control state's header does not match its checksum"));
        }
        if !(1..=STATE_VERSION).contains(&header.version.get()) || header.length.get() as usize != STATE_HEADER_BYTES {
            return Err(Error::invalid("the control state has a newer format; use a newer freebs"));
        }
        if header.body_len.get() != body.len() as u64 || body.len() > limits::STATE_BYTES_MAX {
            return Err(damaged("the control state has a wrong length"));
        }
        if header.body_crc.get() != crc32c(body) {
            return Err(damaged("the control state does not match its checksum"));
        }
        let body: BodyIn = serde_json::from_slice(body)
            .map_err(|e| Error::corrupt(format!("the control state can't be read: {e}")))?;
        let mut state = Self::from_body(ClusterId(header.cluster), header.revision.get(), body)?;
        state.set_founding(header.founding.get().max(FIRST_FOUNDING));
        if state.founding() > state.revision.max(FIRST_FOUNDING) {
            return Err(damaged("the control state has an impossible founding"));
        }
        Ok(state)
    }

    fn from_body(cluster: ClusterId, revision: u64, body: BodyIn) -> Result<Self> {
        let mut state = Self::new(cluster);
        (state.revision, state.last_volume) = (revision, body.last_volume);
        if body.nodes.len() > common::NODES_MAX
            || body.volumes.len() > common::VOLUMES_MAX
            || body.deleted.len() > limits::TOMBSTONES_MAX
            || revision.max(body.last_volume.0) > limits::NUMBER_MAX
        {
            return Err(damaged("the control state has more than a cluster can hold"));
        }
        let mut names = BTreeSet::new();
        for node in body.nodes {
            node.check()?;
            if node.changed > revision || !names.insert(node.name.clone()) {
                return Err(damaged("the control state has an impossible node"));
            }
            if state.nodes.insert(node.id, Arc::new(node)).is_some() {
                return Err(damaged("the control state has a node twice"));
            }
        }
        for volume in body.volumes {
            volume.check()?;
            let known = |s: &crate::state::Shard| {
                let all = s.members.iter().chain(&s.active_members).chain(&s.keepers).chain(&s.away);
                all.into_iter().all(|m| state.nodes.contains_key(m))
            };
            if volume.id > body.last_volume || volume.changed > revision || !volume.shards.iter().all(known) {
                return Err(damaged("the control state has an impossible volume"));
            }
            if state.names.contains_key(&volume.name) || state.volumes.contains_key(&volume.id) {
                return Err(damaged("the control state has a volume twice"));
            }
            state.put_volume(volume);
        }
        state.deleted = body.deleted.into();
        state.forgotten = body.forgotten;
        if let Some(snapshots) = body.snapshots {
            state.snapshots = Arc::new(state.snapshots_of_body(snapshots)?);
        }
        if let Some(joining) = body.joining {
            let JoiningIn { authority, last_node, tokens, removed } = joining;
            *state.joining_mut() = Joining::restored(authority, last_node, tokens, removed)?;
            if state.joining().removed().iter().any(|n| state.nodes.contains_key(n)) {
                return Err(damaged("the control state has a node that was removed"));
            }
        }
        Ok(state)
    }

    fn snapshots_of_body(&self, body: SnapshotsIn) -> Result<Snapshots> {
        let SnapshotsIn { last, spared, records, gone } = body;
        if gone.len() > limits::TOMBSTONES_MAX || last.0 > limits::NUMBER_MAX || spared > last {
            return Err(damaged("the control state has impossible snapshots"));
        }
        let mut all = Snapshots::restored(last, spared, gone);
        for snapshot in records {
            snapshot.check()?;
            let is_known = |v: &SnapshotVolume| {
                let volume = self.volumes.get(&v.volume);
                volume.is_some_and(|volume| snapshot.has_failed() || v.cuts.len() == volume.shards.len())
            };
            if snapshot.id > last || snapshot.changed > self.revision || !snapshot.volumes.iter().all(is_known) {
                return Err(damaged("the control state has an impossible snapshot"));
            }
            let is_other = |v: &SnapshotVolume| {
                let is_named = all.named(v.volume, &snapshot.name).is_some();
                !(is_named || snapshot.is_under_way() && all.under_way(v.volume).is_some())
            };
            if all.get(snapshot.id).is_some() || !(snapshot.has_failed() || snapshot.volumes.iter().all(is_other)) {
                return Err(damaged("the control state has a snapshot twice"));
            }
            all.put(snapshot);
        }
        let is_over = all.len() > limits::SNAPSHOTS_TOTAL_MAX || all.cuts() > limits::SNAPSHOT_CUTS_TOTAL_MAX;
        if is_over || all.failed().len() > limits::SNAPSHOTS_FAILED_MAX {
            return Err(damaged("the control state has more snapshots than a cluster can have"));
        }
        Ok(all)
    }
}
