//! The log of a replica, read at the end of a run: one unbroken history in which every request has its place once.

use crate::content::Value;
use freebs_format::{Frame, FrameKind, ViewBody, hide, token};
use freebs_io::Device;
use freebs_lsvd::Engine;
use freebs_types::{BLOCK, DriverId, ErrorKind, Hash32, RequestNumber, SECTOR, Sequence, ShardId, Version};
use std::collections::BTreeMap;

/// Bytes read from the log in one go.
const PORTION: usize = 4 << 20;

/// Walks through all frames that are still there. The error says what does not fit. `was_damaged`: of the disk something
/// was lost. What lives is mended then, and read by others; a frame with dead data that can't be read goes when its
/// segment has been emptied, and until then the log can't tell what is in it.
pub async fn check<D: Device>(engine: &Engine<D>, shard: ShardId, was_damaged: bool) -> Result<(), String> {
    let Some(state) = engine.state(shard) else { return Err("is not there".into()) };
    let mut at = Sequence(state.first_kept.0.max(1));
    let mut before: Option<(Sequence, Version, Hash32)> = None;
    let mut last_hashes = None;
    // By driver and number, and by the write that filled whole blocks (rule W3).
    let mut requests: BTreeMap<(DriverId, RequestNumber), Sequence> = BTreeMap::new();
    let mut contents: BTreeMap<(u32, Value), Sequence> = BTreeMap::new();
    while at <= state.last.sequence {
        let frames = match engine.frames(shard, at, PORTION).await {
            Ok(frames) => frames,
            Err(e) => {
                // The log goes on meanwhile: cleaning may just have given up the segment that comes next.
                let kept = engine.state(shard).map_or(at, |s| s.first_kept);
                let skips = was_damaged && e.kind == ErrorKind::Corrupt;
                if !skips && (e.kind != ErrorKind::NotFound || kept <= at) {
                    return Err(format!("frame {at}: {e}"));
                }
                at = if skips { at.next() } else { kept };
                (before, last_hashes) = (None, None);
                continue;
            }
        };
        if frames.is_empty() {
            return Err(format!("ends before frame {at} of {}", state.last.sequence));
        }
        for f in frames {
            let h = f.header();
            let s = h.seq();
            if s != at {
                return Err(format!("frame {s} stands at {at}"));
            }
            if let Some((hid, parent, digest)) = last_hashes.filter(|_| f.head.kind() == FrameKind::View) {
                published_fits(&f, hid, parent, digest)?;
            }
            last_hashes = Some((h.hid(), h.parent_token(), h.digest()));
            if let Some((_, version, hid)) = before {
                let first = if f.head.kind() == FrameKind::Data { version.next() } else { version };
                if f.head.before().hid != hid || h.first_version.get() != first.0 {
                    return Err(format!("frame {s} does not continue the one before"));
                }
            }
            f.verify_data().map_err(|e| format!("frame {s}: {e}"))?;
            if f.head.kind() == FrameKind::Data {
                let data = f.data.concat();
                for u in f.head.updates() {
                    // Nobody asked for updates that a head orders by itself.
                    let is_request = u.driver.0 > 0;
                    if let Some(other) = requests.insert((u.driver, u.number), s).filter(|_| is_request) {
                        return Err(format!("request {} is in frame {other} and in frame {s} (W3)", u.number));
                    }
                    let start = u.extents().next().map_or(0, |(e, _)| e.range.start.0);
                    let bytes = u.crcs.len() * BLOCK;
                    let from = u.first_block as usize * BLOCK;
                    let Some(write) = data.get(from..from + bytes).and_then(whole_write) else { continue };
                    if let Some(other) = contents.insert((start, write), s) {
                        return Err(format!("write {write} is in frame {other} and again in frame {s} (W3)"));
                    }
                }
            }
            before = Some((s, h.last_version(), h.hid()));
            at = at.next();
        }
    }
    Ok(())
}

/// A view frame publishes the secret that the frame before it was made with, if the view is shared (section 6).
fn published_fits(f: &Frame, hid: Hash32, parent: Hash32, digest: Hash32) -> Result<(), String> {
    let body = ViewBody::decode(f.head.body()).map_err(|e| e.to_string())?;
    let Some(shared) = body.shared else { return Ok(()) };
    let id = token(&shared.pred_secret, &parent, &digest);
    let fits = id == f.header().parent_token() && hide(&id) == hid;
    // Who follows a frame that it has given up may not know the secret.
    if fits || shared.pred_secret == Hash32::default() {
        return Ok(());
    }
    Err(format!("frame {} publishes a secret that the frame before it was not made with", f.head.seq()))
}

/// The write that put all of these sectors there, if it is one.
fn whole_write(data: &[u8]) -> Option<Value> {
    let name = |sector: &[u8]| sector[..8].try_into().map(u64::from_le_bytes).ok().filter(|n| *n > 0);
    let mut sectors = data.chunks_exact(SECTOR).map(name);
    let first = sectors.next()??;
    sectors.all(|n| n == Some(first)).then_some(Value::try_from(first).ok()?)
}
