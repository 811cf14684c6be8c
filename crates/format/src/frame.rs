//! Frames in memory: parsed heads, whole frames, and the builder that the head of a chain uses.
//!
//! Invariants: a `FrameHead` exists only if its checksums, lengths and counts agree; its extents lie inside a
//! shard and the CRC table has one entry per data block. A `Frame` has exactly the data its head names. Whether
//! the data match their CRCs is asked with `verify_data`.

use crate::bodies::{MarkBody, ViewBody};
use crate::header::{
    DIGEST_PREFIX, FEATURE_BRANCH, FEATURE_CLOSED, FEATURE_FLAT, FEATURE_FORK, FEATURE_GIVEN_UP, FEATURE_HISTORY,
    FEATURE_INTERVALS, FEATURE_LOST, FEATURE_PINS, FEATURE_SHARED, FEATURE_VOLUME, FEATURES, FRAME_MAGIC,
    FRAME_VERSION,
};
use crate::{
    ExtentDesc, ExtentKind, FrameDigest, FrameHeader, FrameKind, PinUpdate, UpdateDesc, UpdateKind, block_crc, crc32c,
    frame_digest, hide, token,
};
use bytes::{BufMut, Bytes, BytesMut};
use freebs_types::{
    BLOCK, BlockRange, ChunkId, ClusterId, DriverId, Error, Hash32, RequestNumber, Result, Sequence, ShardId, Version,
    ViewNumber, limits,
};
use zerocopy::{FromBytes, IntoBytes};

/// Versions, sequences and views in a header stay below this, so that counting on from them can't overflow.
const NUMBER_MAX: u64 = u64::MAX / 2;
/// Data blocks of a chunk before a frame; far above what a chunk holds, and far below what would overflow.
const CHUNK_OFFSET_MAX: u32 = 1 << 30;

/// One extent of an update, as callers speak of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The blocks' state: data, trimmed or zeroed.
    pub kind: ExtentKind,
    /// Blocks of the shard.
    pub range: BlockRange,
}

/// One update of a parsed data frame.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// The change that the update makes to its extents.
    pub kind: UpdateKind,
    /// Version of the shard after this update.
    pub version: Version,
    /// The driver that asked for the update.
    pub driver: DriverId,
    /// The driver's number of the request.
    pub number: RequestNumber,
    /// The driver's lowest request without an answer when it asked.
    pub lowest_open: RequestNumber,
    /// The update's word about versions that are kept; `None` for an update of blocks.
    pub pin: Option<PinUpdate>,
    extents: &'a [ExtentDesc],
    /// One CRC per data block, in order of the extents.
    pub crcs: &'a [zerocopy::little_endian::U32],
    /// Data blocks of this frame before this update.
    pub first_block: u32,
}

impl Update<'_> {
    /// The extents with the index, in blocks of this frame's data, where each one's data begin.
    pub fn extents(&self) -> impl Iterator<Item = (Extent, u32)> {
        let mut at = self.first_block;
        self.extents.iter().map(move |d| {
            let kind = ExtentKind::from_byte(d.kind).expect("checked when parsed");
            let here = at;
            if kind == ExtentKind::Data {
                at += d.blocks.get();
            }
            (Extent { kind, range: BlockRange { start: d.start(), len: d.blocks.get() } }, here)
        })
    }
}

/// A frame without its data: all that recovery, indexes and maps need.
#[derive(Clone, Debug)]
pub struct FrameHead {
    bytes: Bytes,
    header: FrameHeader,
}

/// What a frame tells of the one before it: all that is known of that one where it is no longer in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBefore {
    /// View that ordered it. If the frame that tells is a view frame, the view before that one.
    pub view: ViewNumber,
    /// Sequence of that frame: one less than that of the frame that tells.
    pub sequence: Sequence,
    /// Hash of `token`, as it stands in that frame's header.
    pub hid: Hash32,
    /// Access token of that frame: the `parent` of the frame that tells. `None` if that one begins a branch, and its
    /// `parent` is the `hid`.
    pub token: Option<Hash32>,
    /// Version after it.
    pub version: Version,
}

impl FrameBefore {
    /// The `parent` of the frame that tells: the token of the frame before it, or the `hid` where a branch begins.
    #[must_use]
    pub fn parent(&self) -> Hash32 {
        self.token.unwrap_or(self.hid)
    }
}

fn corrupt(what: &'static str) -> Error {
    Error::corrupt(what)
}

impl FrameHead {
    /// Bytes that the head at the start of `bytes` wants, if its header is whole and valid.
    pub fn peek(bytes: &[u8]) -> Result<FrameHeader> {
        let (header, _) = FrameHeader::read_from_prefix(bytes).map_err(|_| corrupt("frame header is cut short"))?;
        if header.magic != FRAME_MAGIC {
            return Err(corrupt("no frame header here"));
        }
        if header.crc.get() != crc32c(&header.as_bytes()[..252]) {
            return Err(corrupt("frame header does not match its checksum"));
        }
        if header.version.get() != FRAME_VERSION || header.features.get() & !FEATURES != 0 {
            return Err(Error::invalid("frame of a newer format; use a newer freebs"));
        }
        let (head, data) = (header.head_len.get() as usize, header.data_len.get() as usize);
        if !(256..=limits::FRAME_HEAD_BYTES_MAX).contains(&head)
            || data > limits::FRAME_DATA_BYTES_MAX
            || !data.is_multiple_of(BLOCK)
            || header.updates.get() as usize > limits::FRAME_UPDATES_MAX
            || [header.first_version, header.sequence, header.committed, header.view]
                .iter()
                .any(|n| n.get() > NUMBER_MAX)
            || header.chunk_offset.get() > CHUNK_OFFSET_MAX
            || FrameKind::from_byte(header.kind).is_none()
        {
            return Err(corrupt("frame header with impossible lengths"));
        }
        Ok(header)
    }

    /// Takes the head off the front of `bytes`, which may go on behind it.
    pub fn parse(bytes: &mut Bytes) -> Result<Self> {
        let header = Self::peek(bytes)?;
        let len = header.head_len.get() as usize;
        if bytes.len() < len {
            return Err(corrupt("frame head is cut short"));
        }
        if crc32c(&bytes[256..len]) != header.body_crc.get() {
            return Err(corrupt("frame body does not match its checksum"));
        }
        let head = Self { bytes: bytes.split_to(len), header };
        if header.frame_kind() == FrameKind::Data {
            head.check_updates()?;
        } else if header.updates.get() != 0 || (!header.frame_kind().is_local() && header.data_len.get() != 0) {
            return Err(corrupt("updates in a frame that has none"));
        }
        let has_slices = header.frame_kind() == FrameKind::View && ViewBody::names_slices(head.body());
        if has_slices != (header.features.get() & FEATURE_SHARED != 0) {
            return Err(corrupt("slices in a frame that says it has none, or none in one that says it has some"));
        }
        let has_volume = header.frame_kind() == FrameKind::View && ViewBody::names_volume(head.body());
        if has_volume != (header.features.get() & FEATURE_VOLUME != 0) {
            return Err(corrupt("a view frame that says wrongly whether it describes the volume"));
        }
        let has_branch = header.frame_kind() == FrameKind::View && ViewBody::names_branch(head.body());
        if has_branch != (header.features.get() & FEATURE_BRANCH != 0) {
            return Err(corrupt("a view frame that says wrongly whether it names a branch"));
        }
        Ok(head)
    }

    fn check_updates(&self) -> Result<()> {
        let n = self.header.updates.get() as usize;
        let body = self.body();
        let (descs, rest) =
            <[UpdateDesc]>::ref_from_prefix_with_elems(body, n).map_err(|_| corrupt("update table is cut short"))?;
        let extents: usize = descs.iter().map(|d| d.extents.get() as usize).sum();
        let (table, crcs) = <[ExtentDesc]>::ref_from_prefix_with_elems(rest, extents)
            .map_err(|_| corrupt("extent table is cut short"))?;
        let blocks = self.header.data_blocks() as usize;
        if crcs.len() != blocks * 4 {
            return Err(corrupt("CRC table does not fit the data"));
        }
        let mut at = 0;
        let mut total = 0u64;
        for d in descs {
            let mine = &table[at..at + d.extents.get() as usize];
            at += mine.len();
            let mut data = 0u64;
            for e in mine {
                let kind = ExtentKind::from_byte(e.kind).ok_or_else(|| corrupt("unknown kind of extent"))?;
                let range = BlockRange::new(e.lba.get(), e.blocks.get());
                if e.blocks.get() == 0 || !range.is_in_shard(kind == ExtentKind::Data) {
                    return Err(corrupt("extent outside any shard"));
                }
                if kind == ExtentKind::Data {
                    data += u64::from(e.blocks.get());
                }
            }
            let kind = UpdateKind::from_byte(d.kind).filter(|k| !k.is_reserved());
            let kind =
                kind.ok_or_else(|| Error::invalid("update of a kind that is not known here; use a newer freebs"))?;
            if data != u64::from(d.blocks.get()) {
                return Err(corrupt("update does not fit its extents"));
            }
            if (kind.is_pin() && !mine.is_empty())
                || d.base.get() > NUMBER_MAX
                || !crate::pins::is_possible(kind, d.past.get())
            {
                return Err(corrupt("update that names no version or snapshot, or blocks with it"));
            }
            if kind.is_pin() && self.header.features.get() & FEATURE_PINS == 0 {
                return Err(corrupt("pinned version in a frame that says it has none"));
            }
            if kind.is_interval() && self.header.features.get() & FEATURE_INTERVALS == 0 {
                return Err(corrupt("update of an interval in a frame that says it has none"));
            }
            total += data;
        }
        if total != blocks as u64 {
            return Err(corrupt("updates do not fit the frame's data"));
        }
        Ok(())
    }

    /// The fixed part, whose checksum and lengths were checked.
    pub fn header(&self) -> &FrameHeader {
        &self.header
    }
    /// The kind of the frame: it decides how the body is read.
    pub fn kind(&self) -> FrameKind {
        self.header.frame_kind()
    }
    /// Header and body.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
    /// The bytes behind the header: tables of updates, or the body of the frame's kind.
    pub fn body(&self) -> &[u8] {
        &self.bytes[256..]
    }
    /// Place of the frame in its shard; of a local frame, that of the shard's last frame.
    pub fn seq(&self) -> Sequence {
        self.header.seq()
    }
    /// The shard that the frame belongs to.
    pub fn shard(&self) -> ShardId {
        self.header.shard_id()
    }
    /// The view that ordered the frame; of a local frame, that of the shard's last frame.
    pub fn view(&self) -> ViewNumber {
        self.header.view_number()
    }

    /// What this frame says of the one that it follows. A view frame follows one of the view before, and only a data
    /// frame counts the version on.
    pub fn before(&self) -> FrameBefore {
        let h = &self.header;
        let view = match self.kind() {
            FrameKind::View => ViewBody::seal_of(self.body()).map_or(self.view(), |(pred, ..)| pred),
            _ => self.view(),
        };
        let version = match self.kind() {
            FrameKind::Data => h.first_version.get().saturating_sub(1),
            _ => h.first_version.get(),
        };
        let token = h.parent_token();
        let (hid, token) = if self.is_branch() { (token, None) } else { (hide(&token), Some(token)) };
        let sequence = Sequence(self.seq().0.saturating_sub(1));
        FrameBefore { view, sequence, hid, token, version: Version(version) }
    }

    /// True if a branch begins here (rule V10): this is the frame of a view, and its `parent` is the public `hid` of the
    /// frame that it names as the seal. Anybody could make it, for no token was needed.
    pub fn is_branch(&self) -> bool {
        let seal = Some(self.kind()).filter(|k| *k == FrameKind::View).and_then(|_| ViewBody::seal_of(self.body()));
        seal.is_some_and(|(_, sequence, hid)| sequence.0 > 0 && hid == self.header.parent_token())
    }

    /// The frame's digest, begun: the data are still to come.
    #[must_use]
    pub fn begin_digest(&self) -> FrameDigest {
        FrameDigest::new(&self.bytes[..DIGEST_PREFIX], self.body())
    }

    /// The updates, none unless this is a data frame.
    pub fn updates(&self) -> impl Iterator<Item = Update<'_>> {
        let n = if self.kind() == FrameKind::Data { self.header.updates.get() as usize } else { 0 };
        let body = if n == 0 { &[][..] } else { self.body() };
        let (descs, rest) = <[UpdateDesc]>::ref_from_prefix_with_elems(body, n).expect("checked when parsed");
        let extents: usize = descs.iter().map(|d| d.extents.get() as usize).sum();
        let (mut table, crcs) = <[ExtentDesc]>::ref_from_prefix_with_elems(rest, extents).expect("checked when parsed");
        let mut crcs = <[zerocopy::little_endian::U32]>::ref_from_bytes(crcs).expect("checked when parsed");
        let first = self.header.first_version.get();
        let mut block = 0;
        descs.iter().enumerate().map(move |(i, d)| {
            let (mine, others) = table.split_at(d.extents.get() as usize);
            table = others;
            let (my_crcs, others) = crcs.split_at(d.blocks.get() as usize);
            crcs = others;
            let first_block = block;
            block += d.blocks.get();
            let kind = UpdateKind::from_byte(d.kind).expect("checked when parsed");
            Update {
                kind,
                version: Version(first + i as u64),
                driver: DriverId(d.driver.get()),
                number: RequestNumber(d.number.get()),
                lowest_open: RequestNumber(d.lowest_open.get()),
                pin: PinUpdate::of(kind, d.base.get(), d.past.get()),
                extents: mine,
                crcs: my_crcs,
                first_block,
            }
        })
    }

    /// CRCs of all data blocks of a data frame, in order.
    pub fn crcs(&self) -> &[zerocopy::little_endian::U32] {
        let tail = self.bytes.len() - self.header.data_blocks() as usize * 4;
        match self.kind() {
            FrameKind::Data => <[zerocopy::little_endian::U32]>::ref_from_bytes(&self.bytes[tail..]).expect("whole"),
            _ => &[],
        }
    }
}

/// A frame with its data.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Header and body.
    pub head: FrameHead,
    /// Whole blocks each; together `data_len` bytes.
    pub data: Vec<Bytes>,
}

impl Frame {
    /// Puts head and data together; `Corrupt` if the lengths do not fit.
    pub fn new(head: FrameHead, data: Vec<Bytes>) -> Result<Self> {
        let len: usize = data.iter().map(Bytes::len).sum();
        if len != head.header.data_len.get() as usize || data.iter().any(|d| !d.len().is_multiple_of(BLOCK)) {
            return Err(corrupt("frame data are cut short"));
        }
        Ok(Self { head, data })
    }

    /// The fixed part of the head.
    pub fn header(&self) -> &FrameHeader {
        &self.head.header
    }
    /// Bytes of data, whole blocks.
    pub fn data_bytes(&self) -> usize {
        self.head.header.data_len.get() as usize
    }

    /// Holds every data block against its CRC. Local frames carry their CRCs in their own body.
    pub fn verify_data(&self) -> Result<()> {
        if self.head.kind() != FrameKind::Data {
            return Ok(());
        }
        let mut crcs = self.head.crcs().iter();
        for block in self.data.iter().flat_map(|d| d.chunks_exact(BLOCK)) {
            if crcs.next().map(|c| c.get()) != Some(block_crc(block)) {
                return Err(corrupt("data block does not match its CRC"));
            }
        }
        Ok(())
    }

    /// Recomputes the BLAKE3 digest over header, body and data.
    pub fn verify_digest(&self) -> Result<()> {
        let digest = frame_digest(&self.head.bytes[..DIGEST_PREFIX], self.head.body(), &self.data);
        if digest == self.head.header.digest() { Ok(()) } else { Err(corrupt("frame does not match its digest")) }
    }
}

/// Identity and place of a frame that is about to be built.
#[derive(Clone, Copy, Debug)]
pub struct FrameMeta {
    /// The cluster; it stands in every frame, so that a foreign one is recognised.
    pub cluster: ClusterId,
    /// The shard that the frame belongs to.
    pub shard: ShardId,
    /// The view that orders the frame.
    pub view: ViewNumber,
    /// The chunk that the frame's data belong to.
    pub chunk: ChunkId,
    /// Data blocks of that chunk before this frame.
    pub chunk_offset: u32,
    /// Number of the frame in its shard.
    pub sequence: Sequence,
    /// Version of the first update; of a frame without updates, the shard's last version.
    pub first_version: Version,
    /// Highest sequence that is known to be committed (W5).
    pub committed: Sequence,
    /// Wall clock, nanoseconds since 1970. For people: nothing is decided by it.
    pub wall: u64,
}

/// One update on its way into a frame.
#[derive(Clone, Debug)]
pub struct UpdateDraft {
    /// The change that the update makes to its extents.
    pub kind: UpdateKind,
    /// The driver that asks; 0 if no driver does.
    pub driver: DriverId,
    /// The driver's number of the request.
    pub number: RequestNumber,
    /// The driver's lowest request without an answer.
    pub lowest_open: RequestNumber,
    /// Blocks that it changes, in the order of `crcs` and `data`.
    pub extents: Vec<Extent>,
    /// One per data block.
    pub crcs: Vec<u32>,
    /// Whole blocks each.
    pub data: Vec<Bytes>,
}

impl UpdateDraft {
    /// Bytes of data, all pieces together.
    pub fn data_bytes(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }

    /// Whether extents, CRCs and data fit each other and the limits. What comes from a client is asked first.
    pub fn check(&self, shard_blocks: u64) -> Result<()> {
        let mut blocks = 0u64;
        for e in &self.extents {
            if e.range.len == 0 || e.range.end() > shard_blocks.min(limits::SHARD_BLOCKS_MAX) {
                return Err(Error::invalid("extent outside the shard"));
            }
            if e.kind == ExtentKind::Data {
                blocks += u64::from(e.range.len);
            }
        }
        let bytes = self.data_bytes();
        if self.extents.is_empty() || self.extents.len() > limits::UPDATE_EXTENTS_MAX {
            return Err(Error::invalid("an update has 1 to 1,024 extents"));
        }
        if bytes > limits::UPDATE_DATA_BYTES_MAX {
            return Err(Error::invalid("an update holds at most 4 MiB"));
        }
        if blocks != self.crcs.len() as u64
            || blocks * BLOCK as u64 != bytes as u64
            || self.data.iter().any(|d| !d.len().is_multiple_of(BLOCK))
        {
            return Err(Error::invalid("data, CRCs and extents of an update do not fit each other"));
        }
        Ok(())
    }
}

/// Builds frames: gathers updates, then seals the head with digest and token.
#[derive(Debug, Default)]
pub struct FrameBuilder {
    updates: Vec<UpdateDraft>,
    /// Updates about versions, by their place among the updates.
    pins: Vec<(usize, PinUpdate)>,
    data_bytes: usize,
    head_bytes: usize,
}

impl FrameBuilder {
    /// A builder without updates.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// True if no update was pushed since the last frame was built.
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }
    /// Bytes of data of all updates in it.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }
    /// The updates in it, in the order in which they get their versions.
    pub fn updates(&self) -> &[UpdateDraft] {
        &self.updates
    }

    /// Whether one more update fits, by the soft maximum for data and the hard ones for the rest.
    pub fn fits(&self, u: &UpdateDraft) -> bool {
        self.updates.is_empty()
            || (self.updates.len() < limits::FRAME_UPDATES_MAX
                && self.data_bytes + u.data_bytes() <= limits::FRAME_DATA_BYTES_SOFT_MAX
                && 256 + self.head_bytes + Self::head_len(u) <= limits::FRAME_HEAD_BYTES_MAX)
    }

    fn head_len(u: &UpdateDraft) -> usize {
        48 + 12 * u.extents.len() + 4 * u.crcs.len()
    }

    /// Adds an update. Whether there is room is asked before with `fits`.
    pub fn push(&mut self, u: UpdateDraft) {
        assert!(!u.kind.is_reserved(), "no reader takes a frame with an update of a reserved kind");
        self.data_bytes += u.data_bytes();
        self.head_bytes += Self::head_len(&u);
        self.updates.push(u);
    }

    /// Adds an update that says which versions are kept.
    pub fn push_pin(&mut self, pin: PinUpdate, of: (DriverId, RequestNumber, RequestNumber)) {
        let (driver, number, lowest_open) = of;
        self.pins.push((self.updates.len(), pin));
        let (extents, crcs, data) = (Vec::new(), Vec::new(), Vec::new());
        self.push(UpdateDraft { kind: pin.kind(), driver, number, lowest_open, extents, crcs, data });
    }

    /// An update's word about versions that are kept, by its place among the updates.
    pub fn pin(&self, i: usize) -> Option<PinUpdate> {
        self.pins.iter().find(|p| p.0 == i).map(|p| p.1)
    }

    /// Closes a data frame. Returns it with its access token, which only the head of the chain keeps.
    pub fn build(&mut self, meta: &FrameMeta, secret: &Hash32, parent: &Hash32) -> (Frame, Hash32) {
        let updates = std::mem::take(&mut self.updates);
        let mut pins = std::mem::take(&mut self.pins).into_iter().peekable();
        (self.data_bytes, self.head_bytes) = (0, 0);
        let mut body = BytesMut::new();
        for (i, u) in updates.iter().enumerate() {
            let pin = pins.next_if(|p| p.0 == i).map(|p| p.1);
            let desc = UpdateDesc {
                kind: u.kind as u8,
                flags: 0,
                extents: (u.extents.len() as u16).into(),
                blocks: (u.crcs.len() as u32).into(),
                driver: u.driver.0.into(),
                number: u.number.0.into(),
                lowest_open: u.lowest_open.0.into(),
                base: pin.map_or(0, PinUpdate::base).into(),
                past: pin.map_or(0, PinUpdate::past).into(),
            };
            body.put_slice(desc.as_bytes());
        }
        for e in updates.iter().flat_map(|u| &u.extents) {
            body.put_slice(ExtentDesc::of(e).as_bytes());
        }
        for c in updates.iter().flat_map(|u| &u.crcs) {
            body.put_u32_le(*c);
        }
        let count = updates.len() as u32;
        let data: Vec<Bytes> = updates.into_iter().flat_map(|u| u.data).collect();
        Self::seal(meta, FrameKind::Data, count, &body, data, Some((secret, parent)))
    }

    /// A frame without updates (view, attach).
    #[must_use]
    pub fn special(
        meta: &FrameMeta,
        kind: FrameKind,
        body: &[u8],
        secret: &Hash32,
        parent: &Hash32,
    ) -> (Frame, Hash32) {
        Self::seal(meta, kind, 0, body, Vec::new(), Some((secret, parent)))
    }

    /// A local frame (mark, carry): no place in the hash chain. `hid` is that of the shard's last frame.
    #[must_use]
    pub fn local(meta: &FrameMeta, kind: FrameKind, body: &[u8], data: Vec<Bytes>, last_hid: &Hash32) -> Frame {
        assert!(kind.is_local());
        let (mut frame, _) = Self::seal(meta, kind, 0, body, data, None);
        let mut bytes = BytesMut::from(&frame.head.bytes[..]);
        frame.head.header.hid = last_hid.0;
        frame.head.header.crc = crc32c(&frame.head.header.as_bytes()[..252]).into();
        bytes[..256].copy_from_slice(frame.head.header.as_bytes());
        frame.head.bytes = bytes.freeze();
        frame
    }

    /// What a reader must know to read this body.
    fn features(kind: FrameKind, updates: u32, body: &[u8]) -> u32 {
        let has = |which: fn(UpdateKind) -> bool| {
            <[UpdateDesc]>::ref_from_prefix_with_elems(body, updates as usize)
                .is_ok_and(|(descs, _)| descs.iter().any(|d| UpdateKind::from_byte(d.kind).is_some_and(which)))
        };
        let intervals = kind == FrameKind::Data && has(UpdateKind::is_interval);
        let pins = match kind {
            FrameKind::Data => has(UpdateKind::is_pin),
            FrameKind::Mark => MarkBody::names_pins(body),
            _ => false,
        };
        let slices = kind == FrameKind::View && ViewBody::names_slices(body);
        let volume = kind == FrameKind::View && ViewBody::names_volume(body);
        let closed = kind == FrameKind::Mark && MarkBody::names_closed(body);
        let branch = kind == FrameKind::View && ViewBody::names_branch(body);
        let given_up = kind == FrameKind::Mark && MarkBody::names_given_up(body);
        let history = kind == FrameKind::Mark && MarkBody::names_history(body);
        let fork = kind == FrameKind::Mark && MarkBody::names_fork(body);
        let lost = kind == FrameKind::Mark && MarkBody::names_lost(body);
        let flat = kind == FrameKind::Mark && MarkBody::names_flat(body);
        let bits = [
            (history, FEATURE_HISTORY),
            (flat, FEATURE_FLAT),
            (intervals, FEATURE_INTERVALS),
            (fork, FEATURE_FORK),
            (lost, FEATURE_LOST),
            (pins, FEATURE_PINS),
            (slices, FEATURE_SHARED),
            (volume, FEATURE_VOLUME),
            (closed, FEATURE_CLOSED),
            (branch, FEATURE_BRANCH),
            (given_up, FEATURE_GIVEN_UP),
        ];
        bits.into_iter().map(|(is_set, bit)| u32::from(is_set) * bit).sum()
    }

    fn seal(
        meta: &FrameMeta,
        kind: FrameKind,
        updates: u32,
        body: &[u8],
        data: Vec<Bytes>,
        chain: Option<(&Hash32, &Hash32)>,
    ) -> (Frame, Hash32) {
        let data_len: usize = data.iter().map(Bytes::len).sum();
        let mut header = FrameHeader {
            magic: FRAME_MAGIC,
            version: FRAME_VERSION.into(),
            kind: kind as u8,
            flags: 0,
            features: Self::features(kind, updates, body).into(),
            head_len: ((256 + body.len()) as u32).into(),
            data_len: (data_len as u32).into(),
            updates: updates.into(),
            cluster: meta.cluster.0,
            volume: meta.shard.volume.0.into(),
            shard: meta.shard.index.into(),
            chunk_counter: meta.chunk.counter.into(),
            view: meta.view.0.into(),
            chunk_view: meta.chunk.view.0.into(),
            sequence: meta.sequence.0.into(),
            first_version: meta.first_version.0.into(),
            committed: meta.committed.0.into(),
            wall: meta.wall.into(),
            chunk_offset: meta.chunk_offset.into(),
            key_id: 0.into(),
            parent: [0; 32],
            hid: [0; 32],
            digest: [0; 32],
            tag: [0; 16],
            reserved: [0; 24],
            body_crc: crc32c(body).into(),
            crc: 0.into(),
        };
        let digest = frame_digest(&header.as_bytes()[..DIGEST_PREFIX], body, &data);
        header.digest = digest.0;
        let mut id = Hash32::default();
        if let Some((secret, parent)) = chain {
            id = token(secret, parent, &digest);
            header.parent = parent.0;
            header.hid = hide(&id).0;
        }
        header.crc = crc32c(&header.as_bytes()[..252]).into();
        let mut bytes = BytesMut::with_capacity(256 + body.len());
        bytes.put_slice(header.as_bytes());
        bytes.put_slice(body);
        (Frame { head: FrameHead { bytes: bytes.freeze(), header }, data }, id)
    }
}
