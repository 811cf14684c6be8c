//! The disk as the head of a chain of one member: it gives versions, packs frames, and knows what is durable.
//!
//! Invariants: versions are given in order, +1 for each update, and become durable in that order. A frame is built
//! once and never changed. Every start opens a view of its own (rule W2), whose secret is derived from the disk's.

use crate::overlay::Overlay;
use bytes::{Bytes, BytesMut};
use freebs_format::{
    Extent, ExtentKind, Frame, FrameBuilder, FrameKind, FrameMeta, Member, PinUpdate, UpdateDraft, ViewBody, hide,
    token,
};
use freebs_lsvd::ShardState;
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DriverId, Error, Generation, Hash32, NodeId, RequestNumber, Result,
    Sequence, ShardId, StartNumber, Version, ViewNumber, limits,
};
use std::collections::VecDeque;

/// The one node of a disk.
pub(crate) const NODE: NodeId = NodeId(1);
/// Memory that an update takes besides its data, about.
const UPDATE_COST: usize = 512;

/// A frame that is not durable yet.
struct Pending {
    sequence: Sequence,
    last_version: u64,
    cost: usize,
    extents: Vec<BlockRange>,
    /// Version of each extent.
    versions: Vec<u64>,
}

/// What has been gathered for the next frame.
#[derive(Default)]
struct Open {
    cost: usize,
    extents: Vec<BlockRange>,
    versions: Vec<u64>,
}

pub(crate) struct Head {
    cluster: ClusterId,
    pub shard: ShardId,
    disk_secret: Hash32,
    view: ViewNumber,
    secret: Hash32,
    token: Hash32,
    chunk: ChunkId,
    offset: u32,
    /// Of the last frame and the last update that were ordered.
    sequence: u64,
    version: u64,
    /// Of the last update in a frame.
    packed: u64,
    durable: u64,
    durable_sequence: u64,
    builder: FrameBuilder,
    open: Open,
    pending: VecDeque<Pending>,
    cost: usize,
    pub overlay: Overlay,
}

/// The secret of a view.
fn view_secret(disk_secret: &Hash32, shard: ShardId, view: ViewNumber) -> Hash32 {
    let mut h = blake3::Hasher::new_keyed(&disk_secret.0);
    h.update(&shard.volume.0.to_le_bytes());
    h.update(&shard.index.to_le_bytes());
    h.update(&view.0.to_le_bytes());
    Hash32(*h.finalize().as_bytes())
}

impl Head {
    /// Goes on behind what was recovered, if anything. `Corrupt` if the secret is not the one of this log.
    pub fn new(cluster: ClusterId, shard: ShardId, secret: Hash32, state: Option<&ShardState>) -> Result<Self> {
        let mut head = Self {
            cluster,
            shard,
            disk_secret: secret,
            view: ViewNumber(0),
            secret: Hash32::default(),
            token: Hash32::default(),
            chunk: ChunkId::default(),
            offset: 0,
            sequence: 0,
            version: 0,
            packed: 0,
            durable: 0,
            durable_sequence: 0,
            builder: FrameBuilder::new(),
            open: Open::default(),
            pending: VecDeque::new(),
            cost: 0,
            overlay: Overlay::default(),
        };
        if let Some(s) = state.filter(|s| s.last.sequence.0 > 0) {
            head.view = s.last.view;
            head.token = token(&view_secret(&secret, shard, s.last.view), &s.parent, &s.digest);
            if hide(&head.token) != s.last.hid {
                return Err(Error::corrupt("the disk's secret does not continue its log"));
            }
            (head.sequence, head.version) = (s.last.sequence.0, s.version.0);
            (head.packed, head.durable, head.durable_sequence) = (head.version, head.version, head.sequence);
        }
        Ok(head)
    }

    pub fn version(&self) -> u64 {
        self.version
    }
    pub fn durable(&self) -> u64 {
        self.durable
    }
    pub fn sequence(&self) -> Sequence {
        Sequence(self.sequence)
    }
    pub fn durable_sequence(&self) -> Sequence {
        Sequence(self.durable_sequence)
    }
    /// Bytes of memory that wait to become durable, about.
    pub fn cost(&self) -> usize {
        self.cost + self.open.cost
    }
    pub fn has_unpacked(&self) -> bool {
        !self.builder.is_empty()
    }
    /// Last update that is in a frame.
    pub fn packed(&self) -> u64 {
        self.packed
    }

    fn meta(&mut self, first_version: u64, blocks: u32) -> FrameMeta {
        if self.offset + blocks > limits::CHUNK_BLOCKS_MAX {
            (self.chunk.counter, self.offset) = (self.chunk.counter + 1, 0);
        }
        FrameMeta {
            cluster: self.cluster,
            shard: self.shard,
            view: self.view,
            chunk: self.chunk,
            chunk_offset: self.offset,
            sequence: Sequence(self.sequence + 1),
            first_version: Version(first_version),
            committed: Sequence(self.durable_sequence),
            wall: 0,
        }
    }

    /// Places of `blocks` blocks in the open chunk, for data that come without a frame of the sequence.
    pub fn place(&mut self, blocks: u32) -> (ChunkId, u32) {
        let meta = self.meta(self.version, blocks);
        self.offset += blocks;
        (meta.chunk, meta.chunk_offset)
    }

    /// Opens the next view. The shard's version becomes `version`, which is at least the last one.
    pub fn open_view(&mut self, start: StartNumber, version: u64) -> Frame {
        assert!(self.builder.is_empty() && version >= self.version, "a view is opened between updates");
        let pred = self.view;
        self.view = pred.next();
        let secret = view_secret(&self.disk_secret, self.shard, self.view);
        let body = ViewBody {
            pred,
            seal_sequence: Sequence(self.sequence),
            seal_hid: if self.sequence == 0 { hide(&Hash32::default()) } else { hide(&self.token) },
            secret_hash: hide(&secret),
            quorum: 1,
            min_copies: 1,
            generation: Generation(0),
            members: vec![Member { node: NODE, start, early: false }],
            shared: None,
            volume: None,
        };
        (self.chunk, self.offset) = (ChunkId { view: self.view, counter: 0 }, 0);
        let meta = self.meta(version, 0);
        let (frame, token) = FrameBuilder::special(&meta, FrameKind::View, &body.encode(), &secret, &self.token);
        (self.secret, self.token, self.version) = (secret, token, version);
        self.ordered(&frame, version);
        frame
    }

    fn ordered(&mut self, frame: &Frame, last_version: u64) {
        self.sequence += 1;
        self.packed = last_version;
        self.offset += frame.header().data_blocks();
        let open = std::mem::take(&mut self.open);
        self.cost += open.cost;
        self.pending.push_back(Pending {
            sequence: frame.head.seq(),
            last_version,
            cost: open.cost,
            extents: open.extents,
            versions: open.versions,
        });
    }

    /// Orders an update: gives its version, and a frame if the gathered ones had to be packed to make room.
    pub fn push(&mut self, draft: UpdateDraft) -> Option<Frame> {
        let full = if self.builder.fits(&draft) { None } else { self.pack() };
        self.version += 1;
        self.open.cost += draft.data_bytes() + UPDATE_COST + 64 * draft.extents.len();
        let mut data = draft.data.iter();
        let mut rest = Bytes::new();
        for Extent { kind, range } in &draft.extents {
            let bytes = (*kind == ExtentKind::Data).then(|| {
                if rest.is_empty() {
                    rest = data.next().cloned().unwrap_or_default();
                }
                rest.split_to(range.len as usize * BLOCK)
            });
            self.overlay.put(*range, self.version, bytes);
            self.open.extents.push(*range);
            self.open.versions.push(self.version);
        }
        self.builder.push(draft);
        full
    }

    /// Orders an update about versions (rule E6).
    pub fn push_pin(&mut self, pin: PinUpdate) -> Option<Frame> {
        let of = (DriverId(0), RequestNumber(0), RequestNumber(0));
        let full = if self.builder.updates().len() < limits::FRAME_UPDATES_MAX { None } else { self.pack() };
        self.version += 1;
        self.open.cost += UPDATE_COST;
        self.builder.push_pin(pin, of);
        full
    }

    /// Makes a frame of what was gathered.
    pub fn pack(&mut self) -> Option<Frame> {
        if self.builder.is_empty() {
            return None;
        }
        let mut builder = joined(std::mem::take(&mut self.builder));
        let blocks = (builder.data_bytes() / BLOCK) as u32;
        let meta = self.meta(self.packed + 1, blocks);
        let (frame, token) = builder.build(&meta, &self.secret, &self.token);
        self.token = token;
        self.builder = builder;
        self.ordered(&frame, self.version);
        Some(frame)
    }

    /// Everything up to this frame is durable.
    pub fn settle(&mut self, to: Sequence) {
        self.durable_sequence = self.durable_sequence.max(to.0);
        while self.pending.front().is_some_and(|p| p.sequence <= to) {
            let p = self.pending.pop_front().expect("just seen");
            for (range, version) in p.extents.iter().zip(&p.versions) {
                self.overlay.settle(*range, *version);
            }
            self.cost -= p.cost;
            self.durable = p.last_version;
        }
    }
}

/// The same updates with their data in one run: the digest over many small pieces takes more than twice the time.
fn joined(builder: FrameBuilder) -> FrameBuilder {
    if builder.updates().len() < 2 {
        return builder;
    }
    let mut all = BytesMut::with_capacity(builder.data_bytes());
    builder.updates().iter().flat_map(|u| &u.data).for_each(|d| all.extend_from_slice(d));
    let mut all = Some(all.freeze()).filter(|d| !d.is_empty());
    let mut out = FrameBuilder::new();
    for (i, u) in builder.updates().iter().enumerate() {
        if let Some(pin) = builder.pin(i) {
            out.push_pin(pin, (u.driver, u.number, u.lowest_open));
            continue;
        }
        let data = all.take().into_iter().collect();
        out.push(UpdateDraft { data, extents: u.extents.clone(), crcs: u.crcs.clone(), ..*u });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_format::UpdateKind;
    use freebs_types::SnapshotId;

    fn draft(lba: u32, blocks: u32) -> UpdateDraft {
        let data = vec![7u8; blocks as usize * BLOCK];
        let mut crcs = Vec::new();
        freebs_format::block_crcs(&data, &mut crcs);
        UpdateDraft {
            kind: UpdateKind::Write,
            driver: DriverId(0),
            number: RequestNumber(0),
            lowest_open: RequestNumber(0),
            extents: vec![Extent { kind: ExtentKind::Data, range: BlockRange::new(lba, blocks) }],
            crcs,
            data: vec![data.into()],
        }
    }

    #[test]
    fn versions_count_updates_and_frames_hold_many() {
        let mut h = Head::new(ClusterId([1; 16]), ShardId::new(1, 0), Hash32([2; 32]), None).unwrap();
        let view = h.open_view(StartNumber(1), 0);
        assert_eq!((view.head.seq(), h.version()), (Sequence(1), 0));
        for i in 0..3 {
            assert!(h.push(draft(i, 1)).is_none());
        }
        let frame = h.pack().unwrap();
        assert_eq!((frame.header().first_version.get(), frame.header().last_version()), (1, Version(3)));
        assert!(h.pack().is_none());
        frame.verify_digest().unwrap();
        frame.verify_data().unwrap();
        assert_eq!((h.version(), h.durable(), h.packed()), (3, 0, 3));
        assert!(!h.overlay.is_empty() && h.cost() > 3 * BLOCK);
        h.settle(Sequence(2));
        assert_eq!((h.durable(), h.cost()), (3, 0));
        assert!(h.overlay.is_empty());
        assert!(h.push(draft(0, 60)).is_none());
        let full = h.push(draft(0, 60)).expect("the first one fills a frame");
        assert_eq!(full.header().last_version(), Version(4));
    }

    #[test]
    fn what_is_said_about_versions_stays_with_its_update() {
        let mut h = Head::new(ClusterId([1; 16]), ShardId::new(1, 0), Hash32([2; 32]), None).unwrap();
        h.open_view(StartNumber(1), 0);
        h.push(draft(0, 1));
        h.push_pin(PinUpdate::Snapshot(SnapshotId(0)));
        h.push(draft(1, 2));
        h.push_pin(PinUpdate::Release(Version(2)));
        let frame = h.pack().unwrap();
        frame.verify_data().unwrap();
        let said: Vec<_> =
            frame.head.updates().map(|u| (u.kind, u.version.0, u.pin.map_or(0, PinUpdate::base))).collect();
        use UpdateKind::{Release, Snapshot, Write};
        assert_eq!(said, [(Write, 1, 0), (Snapshot, 2, 0), (Write, 3, 0), (Release, 4, 2)]);
    }

    #[test]
    fn chunks_end_at_their_maximum() {
        let mut h = Head::new(ClusterId([1; 16]), ShardId::new(1, 0), Hash32([2; 32]), None).unwrap();
        h.open_view(StartNumber(1), 0);
        let mut last = (0, 0);
        for _ in 0..9 {
            h.push(draft(0, 1000));
            let f = h.pack().unwrap();
            let c = (f.header().chunk().counter, f.header().chunk_offset.get());
            assert!(c.1 + 1000 <= limits::CHUNK_BLOCKS_MAX);
            assert!(c > last || c == (0, 0));
            last = c;
        }
        assert_eq!(last, (2, 0));
    }
}
