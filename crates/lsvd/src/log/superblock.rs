//! The two copies of the superblock: making them, choosing between them, raising the start number (rule V8).
//!
//! Invariants: the copies are never written both at once, and the worse one goes first, so one of them is always
//! whole. The valid copy with the higher revision counts.

use crate::{Expect, Finding, Shape};
use freebs_format::disk::{
    DISK_VERSION, SEGMENTS_AT, SUPERBLOCK_AT, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, SegmentFooter, Superblock,
};
use freebs_io::{AlignedBuf, Device, Durability};
use freebs_types::{Error, ErrorKind, Result, StartNumber, limits};

fn check_shape(sector: usize, shape: &Shape) -> Result<()> {
    let bytes = shape.segment_bytes;
    if !(limits::SEGMENT_BYTES_MIN..=1 << 30).contains(&bytes) || !bytes.is_multiple_of(4096) {
        return Err(Error::invalid("a segment has 1 MiB to 1 GiB, a multiple of 4,096 bytes"));
    }
    if !sector.is_power_of_two() || !(512..=4096).contains(&sector) {
        return Err(Error::invalid(format!("a device with sectors of {sector} bytes can't be used")));
    }
    let least = SEGMENTS_AT + 8 * bytes;
    if shape.size_limit < least {
        return Err(Error::invalid(format!("the device must be allowed at least {least} bytes (eight segments)")));
    }
    const _: () = assert!(size_of::<SegmentFooter>() <= 512);
    Ok(())
}

/// Writes both copies on an empty device.
pub(crate) async fn create<D: Device>(device: &D, shape: &Shape) -> Result<()> {
    check_shape(device.sector(), shape)?;
    let there = device.len().min(SEGMENTS_AT) as usize / device.sector() * device.sector();
    if there > 0 {
        let old = device.read(0, there).await?;
        for at in SUPERBLOCK_AT.iter().map(|a| *a as usize).filter(|a| a + SUPERBLOCK_BYTES <= there) {
            match Superblock::decode(&old[at..at + SUPERBLOCK_BYTES]) {
                Err(e) if e.kind == ErrorKind::NotFound => {}
                _ => return Err(Error::invalid("the device has a freebs log already; open it, or use another path")),
            }
        }
        if old.iter().any(|b| *b != 0) {
            return Err(Error::invalid("the device holds something that is not freebs's; clear it, or use another"));
        }
    }
    if device.len() < SEGMENTS_AT {
        device.set_len(SEGMENTS_AT).await?;
    }
    let sb = Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: DISK_VERSION.into(),
        length: (size_of::<Superblock>() as u16).into(),
        features: 0.into(),
        sector: (device.sector() as u32).into(),
        cluster: shape.cluster.0,
        device: shape.device.0,
        node: shape.node.0.into(),
        worker: shape.worker.into(),
        workers: shape.workers.into(),
        reserved0: 0.into(),
        segment_bytes: shape.segment_bytes.into(),
        size_limit: shape.size_limit.into(),
        revision: 1.into(),
        start: 0.into(),
        created: shape.wall.into(),
        reserved: [0; 148],
        crc: 0.into(),
    };
    for at in SUPERBLOCK_AT {
        write(device, at, sb).await?;
    }
    device.sync().await
}

async fn write<D: Device>(device: &D, at: u64, sb: Superblock) -> Result<()> {
    let mut buf = AlignedBuf::zeroed(SUPERBLOCK_BYTES);
    buf.copy_from_slice(&sb.encode());
    device.write(at, buf, Durability::Durable).await.1
}

/// The superblock that counts, and the places of the copies, the worse one first.
pub(crate) async fn load<D: Device>(device: &D, damage: &mut Vec<Finding>) -> Result<(Superblock, [u64; 2])> {
    if device.len() < SEGMENTS_AT {
        return Err(match device.len() {
            0 => Error::not_found("no freebs log here: the device is empty"),
            n => Error::corrupt(format!("the device is cut short: only {n} bytes of it are left")),
        });
    }
    let mut found = Vec::new();
    for at in SUPERBLOCK_AT {
        let copy = match device.read(at, SUPERBLOCK_BYTES).await {
            Ok(bytes) => Superblock::decode(&bytes),
            Err(e) => Err(e),
        };
        found.push((at, copy));
    }
    if found.iter().all(|(_, c)| c.as_ref().is_err_and(|e| e.kind == ErrorKind::NotFound)) {
        return Err(Error::not_found("no freebs log here: the device has no superblock"));
    }
    if let Some(newer) = found.iter().find_map(|(_, c)| c.as_ref().err().filter(|e| e.kind == ErrorKind::Invalid)) {
        return Err(newer.clone());
    }
    for (at, copy) in &found {
        if let Err(e) = copy {
            damage.push(Finding { segment: None, offset: *at, what: format!("copy of the superblock: {e}") });
        }
    }
    found.sort_by_key(|(_, c)| c.as_ref().map_or(0, |sb| sb.revision.get()));
    let order = [found[0].0, found[1].0];
    match found.pop() {
        Some((_, Ok(sb))) => Ok((sb, order)),
        _ => Err(Error::corrupt(
            "both copies of the superblock are damaged; let this node learn its volumes anew on a fresh device, or \
             restore the first 1 MiB from a backup",
        )),
    }
}

/// Whether this is the device that the caller means.
pub(crate) fn check(sb: &Superblock, sector: usize, expect: &Expect) -> Result<()> {
    let text = if sb.cluster_id() != expect.cluster {
        format!("the device belongs to cluster {}, not to {}", sb.cluster_id(), expect.cluster)
    } else if sb.node_id() != expect.node {
        format!("the device belongs to node {}, not to node {}", sb.node_id(), expect.node)
    } else if (sb.worker.get(), sb.workers.get()) != (expect.worker, expect.workers) {
        format!(
            "the device is the log of worker {} of {}, not of worker {} of {}; start the node with as many workers \
             as before",
            sb.worker.get(),
            sb.workers.get(),
            expect.worker,
            expect.workers
        )
    } else if sector > sb.sector.get() as usize {
        format!("the log was made for sectors of {} bytes, the device has {sector}", sb.sector.get())
    } else {
        return Ok(());
    };
    Err(Error::invalid(text))
}

/// Writes both copies with the start number raised to this one.
pub(crate) async fn raise<D: Device>(
    device: &D,
    mut sb: Superblock,
    order: [u64; 2],
    start: StartNumber,
) -> Result<Superblock> {
    if start <= sb.start_number() || start.0 == u64::MAX {
        return Err(Error::bug(format!("a start number is raised from {} to {start}", sb.start_number())));
    }
    // Behind these no copy would be read any more.
    let end = Superblock::NUMBER_MAX;
    if sb.revision.get() >= end || start.0 > end {
        return Err(Error::corrupt("superblock with numbers that can't be counted on from"));
    }
    sb.revision = (sb.revision.get() + 1).into();
    sb.start = start.0.into();
    for at in order {
        write(device, at, sb).await?;
    }
    Ok(sb)
}
