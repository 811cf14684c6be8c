//! What the device tools say, for programs. The names of fields and of kinds stay.

use freebs_format::FrameKind;
use freebs_lsvd::tool;
use freebs_types::{BlockRange, Sequence, ShardId};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
pub struct Copy {
    pub byte: u64,
    pub error: Option<String>,
    pub revision: u64,
    pub start: u64,
}

#[derive(Serialize)]
pub struct Device {
    pub path: String,
    pub cluster: String,
    pub device: String,
    pub node: u64,
    pub worker: u16,
    pub workers: u16,
    pub start: u64,
    pub created_ns: u64,
    pub sector: u32,
    pub segment_bytes: u64,
    pub size_limit: u64,
    pub bytes: u64,
    pub segments: u32,
    pub used_segments: u32,
    pub live_bytes: u64,
    pub torn_bytes: u64,
    /// Both superblocks are lost; node, worker, limit and start are not known.
    pub guessed: bool,
    pub superblocks: Vec<Copy>,
}

impl Device {
    fn new(path: &Path, d: &tool::DeviceInfo) -> Self {
        let copy =
            |c: &tool::CopyInfo| Copy { byte: c.at, error: c.error.clone(), revision: c.revision, start: c.start.0 };
        Self {
            path: path.display().to_string(),
            cluster: d.cluster.to_string(),
            device: d.device.to_string(),
            node: d.node.0,
            worker: d.worker,
            workers: d.workers,
            start: d.start.0,
            created_ns: d.created,
            sector: d.sector,
            segment_bytes: d.segment_bytes,
            size_limit: d.size_limit,
            bytes: d.bytes,
            segments: d.segments,
            used_segments: d.used_segments,
            live_bytes: d.live_bytes,
            torn_bytes: d.torn_bytes,
            guessed: d.guessed,
            superblocks: d.copies.iter().map(copy).collect(),
        }
    }
}

#[derive(Serialize)]
pub struct Segment {
    pub segment: u32,
    pub state: &'static str,
    pub number: u64,
    pub byte: u64,
    pub indexed: bool,
    pub first_append: u64,
    pub last_append: u64,
    pub frames: u64,
    pub shards: u32,
    pub data_bytes: u64,
    pub live_bytes: u64,
}

impl Segment {
    fn new(s: &tool::SegmentInfo) -> Self {
        Self {
            segment: s.id,
            state: s.kind.name(),
            number: s.seq,
            byte: s.byte,
            indexed: s.indexed,
            first_append: s.first_append,
            last_append: s.last_append,
            frames: s.frames,
            shards: s.shards,
            data_bytes: s.data_bytes,
            live_bytes: s.live_bytes,
        }
    }
}

#[derive(Serialize)]
pub struct Chunk {
    pub chunk: String,
    pub bytes: u64,
    pub live_bytes: u64,
    pub segments: u32,
}

/// Both ends included.
#[derive(Serialize)]
pub struct Sequences {
    pub from: u64,
    pub to: u64,
}

fn sequences(list: &[(Sequence, Sequence)]) -> Vec<Sequences> {
    list.iter().map(|(from, to)| Sequences { from: from.0, to: to.0 }).collect()
}

#[derive(Serialize)]
pub struct Digest {
    pub version: u64,
    pub sequence: u64,
    /// Content: equal on all replicas that agree.
    pub content: String,
    /// Everything that this log says of the shard.
    pub state: String,
    pub blocks: u64,
    pub data_blocks: u64,
}

impl Digest {
    fn new(d: &tool::StateDigest) -> Self {
        Self {
            version: d.version.0,
            sequence: d.sequence.0,
            content: d.content.to_string(),
            state: d.state.to_string(),
            blocks: d.blocks,
            data_blocks: d.data_blocks,
        }
    }
}

#[derive(Serialize)]
pub struct Shard {
    pub shard: String,
    pub view: u64,
    pub sequence: u64,
    pub version: u64,
    pub committed: u64,
    pub promised: u64,
    pub first_kept: u64,
    pub frames: u64,
    pub data_bytes: u64,
    pub live_bytes: u64,
    pub zero_blocks: u64,
    pub lost_sequences: Vec<Sequences>,
    /// Never there: the log began behind them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent_sequences: Option<Sequences>,
    pub suspect_tail: bool,
    pub digest: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<Chunk>>,
}

impl Shard {
    fn new(s: &tool::ShardInfo, chunks: bool) -> Self {
        let chunk = |c: &tool::ChunkInfo| Chunk {
            chunk: c.chunk.to_string(),
            bytes: c.bytes,
            live_bytes: c.live_bytes,
            segments: c.segments,
        };
        Self {
            shard: s.shard.to_string(),
            view: s.view.0,
            sequence: s.sequence.0,
            version: s.version.0,
            committed: s.committed.0,
            promised: s.promised.0,
            first_kept: s.first_kept.0,
            frames: s.frames,
            data_bytes: s.data_bytes,
            live_bytes: s.live_bytes,
            zero_blocks: s.zero_blocks,
            lost_sequences: sequences(&s.holes),
            absent_sequences: s.absent.map(|(since, upto)| Sequences { from: since.0 + 1, to: upto.0 }),
            suspect_tail: s.suspect_tail,
            digest: Digest::new(&s.digest),
            chunks: chunks.then(|| s.chunks.iter().map(chunk).collect()),
        }
    }
}

/// What the next start of the node would report.
#[derive(Serialize)]
pub struct Finding {
    pub segment: Option<u32>,
    pub offset: u64,
    pub what: String,
}

fn findings(list: &[freebs_lsvd::Finding]) -> Vec<Finding> {
    list.iter().map(|f| Finding { segment: f.segment, offset: f.offset, what: f.what.clone() }).collect()
}

#[derive(Serialize)]
pub struct Inspection {
    pub device: Device,
    pub shards: Vec<Shard>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<Vec<Segment>>,
    pub recovery: Vec<Finding>,
}

impl Inspection {
    pub fn new(path: &Path, found: &tool::Inspection, segments: bool, shard: Option<ShardId>) -> Self {
        let shards = found.shards.iter().filter(|s| shard.is_none_or(|x| x == s.shard));
        Self {
            device: Device::new(path, &found.device),
            shards: shards.map(|s| Shard::new(s, shard.is_some())).collect(),
            segments: segments.then(|| found.segments.iter().map(Segment::new).collect()),
            recovery: findings(&found.recovery),
        }
    }
}

#[derive(Serialize)]
pub struct FrameLine {
    pub frame: Frame,
}

#[derive(Serialize)]
pub struct Frame {
    pub segment: u32,
    pub head_at: u32,
    pub data_at: u32,
    pub append: u64,
    pub kind: &'static str,
    pub repair: bool,
    pub counts: bool,
    pub shard: String,
    pub view: u64,
    pub sequence: u64,
    pub first_version: u64,
    pub updates: u32,
    pub chunk: String,
    pub chunk_offset: u32,
    pub head_bytes: u32,
    pub data_bytes: u32,
    pub hid: String,
    pub branch: bool,
}

fn kind(k: FrameKind) -> &'static str {
    match k {
        FrameKind::Data => "data",
        FrameKind::View => "view",
        FrameKind::Seal => "seal",
        FrameKind::Holders => "holders",
        FrameKind::Attach => "attach",
        FrameKind::Mark => "mark",
        FrameKind::Carry => "carry",
    }
}

impl Frame {
    pub fn new(f: &tool::FrameInfo) -> Self {
        Self {
            segment: f.segment,
            head_at: f.head_at,
            data_at: f.data_at,
            append: f.append,
            kind: kind(f.kind),
            repair: f.repair,
            counts: f.counts,
            shard: f.shard.to_string(),
            view: f.view.0,
            sequence: f.sequence.0,
            first_version: f.first_version.0,
            updates: f.updates,
            chunk: f.chunk.to_string(),
            chunk_offset: f.chunk_offset,
            head_bytes: f.head_bytes,
            data_bytes: f.data_bytes,
            hid: f.hid.to_string(),
            branch: f.branch,
        }
    }
}

#[derive(Serialize)]
pub struct Blocks {
    pub start: u32,
    pub count: u32,
}

fn blocks(list: &[BlockRange]) -> Vec<Blocks> {
    list.iter().map(|r| Blocks { start: r.start.0, count: r.len }).collect()
}

#[derive(Serialize)]
pub struct Damage {
    pub kind: &'static str,
    pub segment: Option<u32>,
    pub offset: u64,
    pub byte: u64,
    pub bytes: u64,
    pub shard: Option<String>,
    pub sequence: Option<u64>,
    pub blocks: Vec<Blocks>,
    pub lost: bool,
    pub what: String,
}

impl Damage {
    fn new(d: &tool::Damage) -> Self {
        Self {
            kind: d.kind.name(),
            segment: d.segment,
            offset: d.offset,
            byte: d.byte,
            bytes: d.bytes,
            shard: d.shard.map(|s| s.to_string()),
            sequence: d.sequence.map(|s| s.0),
            blocks: blocks(&d.blocks),
            lost: d.lost,
            what: d.what.clone(),
        }
    }
}

#[derive(Serialize)]
pub struct Loss {
    pub shard: String,
    pub sequences: Vec<Sequences>,
    pub suspect_tail: bool,
    pub blocks: Vec<Blocks>,
    pub block_count: u64,
    pub doubtful_blocks: u64,
}

#[derive(Serialize)]
pub struct Checked {
    pub segments: u64,
    pub indexes: u64,
    pub appends: u64,
    pub frames: u64,
    pub links: u64,
    pub blocks: u64,
    pub live_blocks: u64,
}

#[derive(Serialize)]
pub struct Verification {
    pub sound: bool,
    pub device: Device,
    pub checked: Checked,
    pub damage: Vec<Damage>,
    pub damage_count: u64,
    pub losses: Vec<Loss>,
    pub recovery: Vec<Finding>,
}

impl Verification {
    pub fn new(path: &Path, v: &tool::Verification, shard: Option<ShardId>) -> Self {
        let wanted = |s: Option<ShardId>| shard.is_none() || s.is_none() || s == shard;
        let c = v.checked;
        let loss = |(shard, l): &(ShardId, tool::Loss)| Loss {
            shard: shard.to_string(),
            sequences: sequences(&l.sequences),
            suspect_tail: l.suspect_tail,
            blocks: blocks(&l.blocks),
            block_count: l.block_count,
            doubtful_blocks: l.doubtful_blocks,
        };
        Self {
            sound: v.is_sound(),
            device: Device::new(path, &v.device),
            checked: Checked {
                segments: c.segments,
                indexes: c.indexes,
                appends: c.appends,
                frames: c.frames,
                links: c.links,
                blocks: c.blocks,
                live_blocks: c.live_blocks,
            },
            damage: v.damage.iter().filter(|d| wanted(d.shard)).map(Damage::new).collect(),
            damage_count: v.damage_count,
            losses: v.losses.iter().filter(|(s, _)| wanted(Some(*s))).map(loss).collect(),
            recovery: findings(&v.recovery),
        }
    }
}

#[derive(Serialize)]
pub struct Index {
    pub segment: u32,
    pub number: u64,
    pub frames: u64,
    pub found: &'static str,
    pub action: &'static str,
    pub why: Option<String>,
}

#[derive(Serialize)]
pub struct ShardDigests {
    pub shard: String,
    pub same: bool,
    pub before: Option<Digest>,
    pub after: Option<Digest>,
}

#[derive(Serialize)]
pub struct Rebuild {
    pub complete: bool,
    pub written: bool,
    pub device: Device,
    pub indexes: Vec<Index>,
    pub shards: Vec<ShardDigests>,
    pub recovery: Vec<Finding>,
}

impl Rebuild {
    pub fn new(path: &Path, r: &tool::Rebuild) -> Self {
        let index = |i: &tool::IndexRebuild| {
            let (action, why) = match &i.action {
                tool::Action::Keep => ("keep", None),
                tool::Action::Write => ("write", None),
                tool::Action::Leave(why) => ("leave", Some(why.clone())),
            };
            Index { segment: i.segment, number: i.seq, frames: i.frames, found: i.found.name(), action, why }
        };
        let shard = |s: &tool::ShardRebuild| ShardDigests {
            shard: s.shard.to_string(),
            same: s.before == s.after,
            before: s.before.as_ref().map(Digest::new),
            after: s.after.as_ref().map(Digest::new),
        };
        Self {
            complete: r.is_complete(),
            written: r.written,
            device: Device::new(path, &r.device),
            indexes: r.indexes.iter().map(index).collect(),
            shards: r.shards.iter().map(shard).collect(),
            recovery: findings(&r.recovery),
        }
    }
}

#[derive(Serialize)]
pub struct ShardLost {
    pub shard: String,
    pub last: u64,
    pub version: u64,
    pub tail: bool,
    pub frames: Vec<[u64; 2]>,
    #[serde(skip)]
    pub what: String,
}

#[derive(Serialize)]
pub struct Losses {
    pub accepted: bool,
    pub device: Device,
    pub lost: Vec<ShardLost>,
    pub recovery: Vec<Finding>,
}

impl Losses {
    pub fn new(path: &Path, l: &tool::Losses) -> Self {
        let shard = |s: &freebs_lsvd::Lost| ShardLost {
            shard: s.shard.to_string(),
            last: s.last.0,
            version: s.version.0,
            tail: s.tail,
            frames: s.frames.iter().map(|(a, b)| [a.0, b.0]).collect(),
            what: s.to_string(),
        };
        Self {
            accepted: l.accepted,
            device: Device::new(path, &l.device),
            lost: l.lost.iter().map(shard).collect(),
            recovery: findings(&l.recovery),
        }
    }
}
