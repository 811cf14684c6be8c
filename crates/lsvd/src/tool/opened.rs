//! A device as tools see it: its superblock (or a guess, if both copies are lost) and what recovery makes of its log.
//!
//! Invariants: nothing is written, and the start number stays. A guess is made only from appends that lie in their own
//! place, and only if all of them agree.

use crate::api::report::{CopyInfo, DeviceInfo};
use crate::engine::core::Core;
use crate::engine::maps::Io;
use crate::engine::recover::{recover_in_memory, segments_of};
use crate::log::geometry::Geometry;
use crate::log::scan::{Window, read_append};
use crate::log::superblock;
use crate::upkeep::checkpoint::Audit;
use crate::{OpenReport, Options};
use freebs_format::disk::{
    APPEND_MAGIC, AppendHeader, SEGMENTS_AT, SUPERBLOCK_AT, SUPERBLOCK_BYTES, SegmentFooter, Superblock,
};
use freebs_io::Device;
use freebs_types::{BLOCK, ClusterId, DeviceId, Error, ErrorKind, NodeId, Result, StartNumber, limits};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Bytes at the front of the device that a guess looks at: more than two of the largest segments.
const GUESS_BYTES_MAX: u64 = 3 << 30;
/// As many of a device that does not look like ours at all.
const GUESS_BYTES_FOREIGN: u64 = 256 << 20;
/// Bytes of one read of a guess.
const GUESS_STEP: usize = 1 << 20;
/// Appends after which a guess is sure.
const GUESS_APPENDS: usize = 256;

/// A device and its log.
pub(super) struct Opened {
    pub geometry: Geometry,
    pub info: DeviceInfo,
}

/// Reads both copies of the superblock. `NotFound` if there is no log here, `Invalid` if it is of another format,
/// `Corrupt` if both copies are lost and too little is left to go on without.
pub(super) async fn open<D: Device>(device: &D) -> Result<Opened> {
    let mut copies = Vec::new();
    for at in SUPERBLOCK_AT {
        let there = device.len() >= at + SUPERBLOCK_BYTES as u64;
        let copy = match there {
            true => device.read(at, SUPERBLOCK_BYTES).await.and_then(|bytes| Superblock::decode(&bytes)),
            false => Err(Error::corrupt("the device ends before it")),
        };
        copies.push(match copy {
            Ok(sb) => CopyInfo { at, error: None, revision: sb.revision.get(), start: sb.start_number() },
            Err(e) => CopyInfo { at, error: Some(e.text.into_owned()), revision: 0, start: StartNumber(0) },
        });
    }
    match superblock::load(device, &mut Vec::new()).await {
        Ok((sb, _)) => {
            let device_sector = device.sector();
            if device_sector > sb.sector.get() as usize {
                return Err(Error::invalid(format!(
                    "the log was made for sectors of {} bytes and is read in pieces of {device_sector}",
                    sb.sector.get()
                )));
            }
            Ok(known(device, &sb, copies))
        }
        Err(e) if e.kind == ErrorKind::Invalid => Err(e),
        Err(e) => {
            let most = if e.kind == ErrorKind::NotFound { GUESS_BYTES_FOREIGN } else { GUESS_BYTES_MAX };
            match guess(device, most).await {
                Some(geometry) => Ok(guessed(device, geometry, copies)),
                None => Err(e),
            }
        }
    }
}

fn known<D: Device>(device: &D, sb: &Superblock, copies: Vec<CopyInfo>) -> Opened {
    let geometry = Geometry {
        cluster: sb.cluster_id(),
        device: sb.device_id(),
        start: sb.start_number(),
        sector: sb.sector.get() as usize,
        segment_bytes: sb.segment_bytes.get(),
        limit_segments: Geometry::limit(sb.size_limit.get(), sb.segment_bytes.get()),
    };
    let info = DeviceInfo {
        node: sb.node_id(),
        worker: sb.worker.get(),
        workers: sb.workers.get(),
        created: sb.created.get(),
        size_limit: sb.size_limit.get(),
        ..guessed(device, geometry, copies).info
    };
    Opened { geometry, info: DeviceInfo { guessed: false, ..info } }
}

fn guessed<D: Device>(device: &D, geometry: Geometry, copies: Vec<CopyInfo>) -> Opened {
    let info = DeviceInfo {
        copies,
        guessed: true,
        cluster: geometry.cluster,
        device: geometry.device,
        node: NodeId(0),
        worker: 0,
        workers: 0,
        start: geometry.start,
        created: 0,
        sector: geometry.sector as u32,
        segment_bytes: geometry.segment_bytes,
        size_limit: 0,
        bytes: device.len(),
        segments: segments_of(device, geometry),
        used_segments: 0,
        torn_bytes: 0,
        live_bytes: 0,
    };
    Opened { geometry, info }
}

impl Opened {
    /// Every page of every checkpoint, read and checked.
    pub async fn audit<D: Device>(&self, device: &D) -> Audit {
        let core = Core::new(self.geometry, segments_of(device, self.geometry), Options::UNBOUNDED);
        Io { device, core: &RefCell::new(core), alone: true }.audit().await
    }

    /// What recovery makes of the log, with or without the indexes of closed segments. Nothing is written.
    pub async fn recover<D: Device>(&mut self, device: &D, indexes: bool) -> Result<(Core, OpenReport)> {
        let mut report = OpenReport::default();
        if device.len() < SEGMENTS_AT {
            return Err(Error::corrupt(format!("the device is cut short: only {} bytes of it are left", device.len())));
        }
        let core = recover_in_memory(device, self.geometry, &mut report, indexes).await?;
        self.info.used_segments = core.segs.used_count;
        self.info.torn_bytes = report.torn_bytes;
        self.info.live_bytes = core.segs.live_blocks * BLOCK as u64;
        Ok((core, report))
    }
}

/// The first append of a segment.
#[derive(Clone, Copy)]
pub(super) struct First {
    pub segment: u32,
    seq: u64,
    pub append: u64,
}

/// By a segment's number: the first append of the one that was opened next. Also of segments that no longer count, as
/// long as nothing was written over it.
pub(super) async fn firsts<D: Device>(device: &D, g: &Geometry, segments: u32) -> BTreeMap<u64, First> {
    let mut out: BTreeMap<u64, First> = BTreeMap::new();
    for id in 0..segments {
        let Ok(bytes) = device.read(g.byte(id, 0), g.sector).await else { continue };
        let Ok(h) = AppendHeader::decode(&bytes) else { continue };
        if h.device == g.device.0 && h.segment.get() == id && h.offset.get() == 0 {
            let first = First { segment: id, seq: h.segment_seq.get(), append: h.number.get() };
            // Of two that were opened behind the same one, the first had a torn append alone.
            let known = out.entry(h.seq_before()).or_insert(first);
            *known = if first.seq > known.seq { first } else { *known };
        }
    }
    out
}

/// An append that lies somewhere, whatever the geometry.
struct Clue {
    at: u64,
    header: AppendHeader,
}

/// The shape of a device without a superblock, from its appends: each names its segment and its byte there, so two
/// that lie in different segments give the size of all. `None` if there are too few, or they don't agree.
async fn guess<D: Device>(device: &D, most: u64) -> Option<Geometry> {
    let clues = clues(device, most).await;
    let id = clues.first()?.header.device;
    if clues.iter().any(|c| c.header.device != id) {
        return None;
    }
    let segment_bytes = match clues.iter().filter(|c| c.header.segment.get() > 0).find_map(segment_bytes) {
        Some(bytes) => bytes,
        // Only the first segment was ever used, so only its least size matters.
        None => default_segment(device, &clues)?,
    };
    let in_place = |c: &Clue| {
        let h = &c.header;
        c.at == SEGMENTS_AT + u64::from(h.segment.get()) * segment_bytes + u64::from(h.offset.get())
    };
    if !clues.iter().all(in_place) {
        return None;
    }
    let segments = (device.len().saturating_sub(SEGMENTS_AT) / segment_bytes).min(u64::from(u32::MAX)) as u32;
    let mut geometry = Geometry {
        cluster: ClusterId::default(),
        device: DeviceId(id),
        start: clues.iter().map(|c| StartNumber(c.header.start.get())).max()?,
        sector: sector(&clues, device.sector()),
        segment_bytes,
        limit_segments: segments,
    };
    for c in clues.iter().filter(|c| c.header.frames.get() > 0) {
        let mut w = Window::new(device, geometry, c.header.segment.get());
        let found = read_append(&mut w, c.header.offset.get() as usize, c.header, &mut |_, _| ()).await;
        if let Some(e) = found.entries.first() {
            geometry.cluster = e.head.header().cluster_id();
            return Some(geometry);
        }
    }
    None
}

/// Valid headers of appends near the front of the device.
async fn clues<D: Device>(device: &D, most: u64) -> Vec<Clue> {
    let mut clues: Vec<Clue> = Vec::new();
    let end = device.len().min(most);
    let mut at = SEGMENTS_AT;
    while at < end {
        let len = (end - at).min(GUESS_STEP as u64) as usize / device.sector() * device.sector();
        if len == 0 {
            break;
        }
        if let Ok(bytes) = device.read(at, len).await {
            for (i, sector) in bytes.chunks(512).enumerate().filter(|(_, s)| s.starts_with(&APPEND_MAGIC)) {
                if let Ok(header) = AppendHeader::decode(sector) {
                    clues.push(Clue { at: at + i as u64 * 512, header });
                }
            }
        }
        if clues.len() >= GUESS_APPENDS && clues.iter().any(|c| c.header.segment.get() > 0) {
            break;
        }
        at += len as u64;
    }
    clues
}

fn segment_bytes(c: &Clue) -> Option<u64> {
    let before = c.at.checked_sub(SEGMENTS_AT)?.checked_sub(u64::from(c.header.offset.get()))?;
    let segment = u64::from(c.header.segment.get());
    let bytes = before / segment;
    let fits = before % segment == 0
        && (limits::SEGMENT_BYTES_MIN..=1 << 30).contains(&bytes)
        && bytes.is_multiple_of(BLOCK as u64);
    fits.then_some(bytes)
}

/// The default size, if the device is made of such pieces and the appends fit one.
fn default_segment<D: Device>(device: &D, clues: &[Clue]) -> Option<u64> {
    let bytes = device.len() - SEGMENTS_AT;
    let last = clues.iter().map(|c| c.at - SEGMENTS_AT).max()?;
    let fits = |size: &u64| bytes.is_multiple_of(*size) && last + size_of::<SegmentFooter>() as u64 <= *size;
    let sizes = std::iter::once(limits::SEGMENT_BYTES).chain((20..=30).map(|n| 1u64 << n));
    sizes.into_iter().find(fits).or_else(|| (bytes <= 1 << 30 && bytes > 0).then_some(bytes / 4096 * 4096))
}

/// The sector that most neighbours agree on: an append ends where the next one begins.
fn sector(clues: &[Clue], least: usize) -> usize {
    let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
    for pair in clues.windows(2) {
        let (a, b) = (&pair[0], &pair[1]);
        for sector in [512, 1024, 2048, 4096] {
            let follows = b.header.number.get() == a.header.number.get().saturating_add(1);
            let meets = a.at + a.header.total(sector) as u64 == b.at;
            *votes.entry(sector).or_default() += usize::from(follows && meets);
        }
    }
    votes.into_iter().max_by_key(|(sector, n)| (*n, *sector)).map_or(4096, |(sector, _)| sector).max(least)
}
