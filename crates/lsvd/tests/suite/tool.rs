//! The device tools: a sound device is said to be sound, each kind of damage is named with what it costs, soft state is
//! made again from the log alone, and no bytes whatever make a tool panic.

use crate::common::*;
use freebs_format::disk::AppendHeader;
use freebs_io::Device;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::tool::{
    Action, Damage, DamageKind, FrameInfo, IndexState, Inspection, Rebuild, SegmentKind, Verification, Watch, inspect,
    rebuild, verify,
};
use freebs_lsvd::{CleanOptions, Record};
use freebs_types::{ErrorKind, Sequence, ShardId};
use std::cell::RefCell;

const FIRST: usize = 1 << 20;
const SEG: usize = SEGMENT as usize;
const BLOCKS: u32 = 400;

/// A device with several closed segments, trims, zeroes, and two shards.
struct Image {
    bytes: Vec<u8>,
    chains: Vec<Chain>,
    models: Vec<Model>,
}

fn load(bytes: &[u8]) -> MemoryDevice {
    let device = MemoryDevice::new(512, 1 << 30);
    device.poke(|b| b.extend_from_slice(bytes));
    device
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let bytes = RefCell::new(Vec::new());
    device.poke(|b| bytes.borrow_mut().clone_from(b));
    bytes.into_inner()
}

/// A device with history, where everything stays where it was written.
async fn image(seed: u64, steps: u64) -> Image {
    lived(seed, steps, CleanOptions { enabled: false, ..CleanOptions::default() }).await
}

async fn lived(seed: u64, steps: u64, cleaning: CleanOptions) -> Image {
    let mut rng = Rng::new(seed);
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(40)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    rig.engine.set_cleaning(cleaning);
    let mut chains: Vec<Chain> = (1..=2).map(|i| Chain::new(ShardId::new(i, 0))).collect();
    let mut models = vec![Model::new(); 2];
    for i in 0..steps {
        let n = rng.below(2) as usize;
        chains[n].committed = chains[n].sequence.saturating_sub(2);
        let op = Op::random(&mut rng, BLOCKS);
        op.apply(&mut models[n]);
        rig.append(Record::Frame(chains[n].frame(&[op])));
        if i == steps / 2 {
            rig.append(Record::Frame(chains[n].view_frame(2, 4)));
        }
        if rng.chance(70) {
            rig.settle().await;
        }
    }
    rig.settle().await;
    assert_eq!(rig.engine.counters().cleaned_bytes > 0, cleaning.enabled, "{cleaning:?}");
    rig.stop().await;
    Image { bytes: bytes_of(&device), chains, models }
}

#[derive(Default)]
struct Frames {
    all: Vec<FrameInfo>,
    steps: u32,
}

impl Watch for Frames {
    fn progress(&mut self, _step: &'static str, done: u32, total: u32) {
        assert!(done <= total);
        self.steps += 1;
    }
    fn frame(&mut self, frame: &FrameInfo) {
        self.all.push(frame.clone());
    }
}

async fn look(bytes: &[u8]) -> (Inspection, Vec<FrameInfo>) {
    let (device, mut frames) = (load(bytes), Frames::default());
    let found = inspect(&erased(&device), &mut frames).await.unwrap();
    assert!(bytes_of(&device) == bytes, "inspect writes nothing");
    assert!(frames.steps > 1);
    (found, frames.all)
}

async fn check(bytes: &[u8]) -> Verification {
    let device = load(bytes);
    let found = verify(&erased(&device), &mut ()).await.unwrap();
    assert!(bytes_of(&device) == bytes, "verify writes nothing");
    found
}

/// Verifies a changed image.
async fn changed(image: &Image, change: impl FnOnce(&mut Vec<u8>)) -> Verification {
    let mut bytes = image.bytes.clone();
    change(&mut bytes);
    check(&bytes).await
}

fn kinds(v: &Verification) -> Vec<DamageKind> {
    let mut kinds: Vec<_> = v.damage.iter().map(|d| d.kind).collect();
    kinds.dedup();
    kinds
}

fn of_kind(v: &Verification, kind: DamageKind) -> &Damage {
    v.damage.iter().find(|d| d.kind == kind).unwrap_or_else(|| panic!("no {kind:?}: {:#?}", v.damage))
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Byte on the device of a byte of a segment.
fn at(segment: u32, byte: u32) -> usize {
    FIRST + segment as usize * SEG + byte as usize
}

/// A frame with data in the middle of the last closed segment, or of the open one.
fn pick<'a>(found: &Inspection, frames: &'a [FrameInfo], closed: bool) -> &'a FrameInfo {
    let want = if closed { SegmentKind::Closed } else { SegmentKind::Open };
    let s = found.segments.iter().filter(|s| s.kind == want).max_by_key(|s| s.seq).unwrap();
    let of = frames.iter().filter(|f| f.segment == s.id && f.data_bytes > 0 && f.head_at > 4096 && f.counts);
    let of: Vec<_> = of.collect();
    of[of.len() / 2]
}

#[test]
fn a_sound_device_is_sound_and_adds_up() {
    local(async {
        adds_up(&image(1, 500).await, false).await;
        let eager = CleanOptions { share_percent: 300, target_percent: 100, ..CleanOptions::default() };
        adds_up(&lived(1, 500, eager).await, true).await;
    });
}

async fn adds_up(image: &Image, cleaned: bool) {
    let (found, frames) = look(&image.bytes).await;
    let v = check(&image.bytes).await;
    assert!(v.is_sound(), "{:#?} {:?} {:?}", v.damage, v.losses, v.recovery);
    assert_eq!(v.checked.frames, frames.len() as u64);
    assert_eq!(v.checked.blocks * 4096, frames.iter().map(|f| u64::from(f.data_bytes)).sum::<u64>());
    let sequences: u64 = image.chains.iter().map(|c| c.sequence).sum();
    let whole = cleaned || v.checked.links + 20 > sequences;
    assert!(whole && v.checked.links <= sequences, "{:?} of {sequences}", v.checked);
    assert!(v.checked.segments > 4 && v.checked.indexes == v.checked.segments - 1);

    let used: Vec<_> = found.segments.iter().filter(|s| s.kind != SegmentKind::Free).collect();
    assert_eq!(used.len(), found.device.used_segments as usize);
    assert_eq!(used.iter().filter(|s| s.kind == SegmentKind::Open && !s.indexed).count(), 1);
    assert!(used.iter().all(|s| s.kind == SegmentKind::Open || s.indexed));
    assert_eq!(used.iter().map(|s| s.live_bytes).sum::<u64>(), found.device.live_bytes);
    // What an uncommitted frame displaced is live, too.
    assert_eq!(v.checked.live_blocks * 4096, found.shards.iter().map(|s| s.live_bytes).sum::<u64>());
    assert!(found.device.live_bytes > v.checked.live_blocks * 4096);
    assert_eq!(found.device.start.0, 1, "looking is no start");
    let engine = Rig::open(load(&image.bytes)).await.unwrap();
    for ((s, chain), model) in found.shards.iter().zip(&image.chains).zip(&image.models) {
        assert_eq!((s.shard, s.sequence.0, s.version.0), (chain.shard, chain.sequence, chain.version));
        let count = |f: fn(&Cell8) -> bool| model.values().filter(|c| f(c)).count() as u64;
        assert_eq!(s.live_bytes, 4096 * count(|c| matches!(c, Cell8::Data(_))));
        assert_eq!(s.zero_blocks, count(|c| matches!(c, Cell8::Zero)));
        assert_eq!(s.chunks.iter().map(|c| c.live_bytes).sum::<u64>(), s.live_bytes);
        assert_eq!(s.chunks.iter().map(|c| c.bytes).sum::<u64>(), s.data_bytes);
        let digest = engine.engine.digest(s.shard).await.unwrap();
        assert_eq!((digest.hash, digest.blocks), (s.digest.content, s.digest.blocks), "what replicas compare");
    }
}

/// Where an append of a segment begins.
fn header(bytes: &[u8], segment: u32, append: u64) -> usize {
    let is_it = |at: &usize| {
        let h = AppendHeader::decode(&bytes[*at..*at + size_of::<AppendHeader>()]);
        h.is_ok_and(|h| h.number.get() == append)
    };
    (0..SEG as u32 / 512).map(|sector| at(segment, sector * 512)).find(is_it).unwrap()
}

/// Makes the checksums of the append there right again.
fn reseal(bytes: &mut [u8], at: usize) {
    let (heads, header) = (word(bytes, at + 56), size_of::<AppendHeader>());
    let crc = freebs_format::crc32c(&bytes[at + header..at + heads]);
    bytes[at + header - 8..at + header - 4].copy_from_slice(&crc.to_le_bytes());
    let crc = freebs_format::crc32c(&bytes[at..at + header - 4]);
    bytes[at + header - 4..at + header].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn each_kind_of_damage_is_named_with_what_it_costs() {
    local(async {
        let image = image(2, 500).await;
        let (found, frames) = look(&image.bytes).await;
        let (old, new) = (pick(&found, &frames, true), pick(&found, &frames, false));
        let footer = at(old.segment, (SEG - FOOTER) as u32);

        // One copy of the superblock: nothing is lost.
        let v = changed(&image, |b| b[300] ^= 1).await;
        assert!(v.is_sound(), "behind the structure nothing counts");
        let v = changed(&image, |b| b[100] ^= 1).await;
        assert_eq!(kinds(&v), [DamageKind::Superblock]);
        let d = &v.damage[0];
        assert_eq!((d.segment, d.byte, d.lost), (None, 0, false));
        assert!(v.losses.is_empty() && !v.is_sound());

        // Index and footer: the appends say the same.
        let v = changed(&image, |b| b[footer] ^= 1).await;
        assert_eq!(kinds(&v), [DamageKind::Footer]);
        assert!(!v.damage[0].lost && v.losses.is_empty() && v.recovery.len() == 1);
        let index = at(old.segment, word(&image.bytes, footer + 56) as u32);
        let v = changed(&image, |b| b[index + 40] ^= 1).await;
        assert_eq!(kinds(&v), [DamageKind::Index]);
        assert_eq!(v.damage[0].byte, index as u64);
        assert!(!v.damage[0].lost && v.losses.is_empty());

        // A head in a closed segment: the index says the same.
        let v = changed(&image, |b| b[at(old.segment, old.head_at) + 30] ^= 1).await;
        assert_eq!(kinds(&v), [DamageKind::Heads]);
        assert!(!v.damage[0].lost && v.losses.is_empty() && v.recovery.is_empty());

        // A head in the open one: the append behind it says the same. Without that one, too, its frame is lost, and
        // everything older is in doubt; or it was the shard's last.
        let mut holes = 0;
        let mut appends = frames.iter().filter(|f| f.segment == new.segment).map(|f| f.append).collect::<Vec<_>>();
        appends.dedup();
        for f in frames.iter().filter(|f| f.segment == new.segment && !f.kind.is_local()) {
            let v = changed(&image, |b| b[at(f.segment, f.head_at) + 30] ^= 1).await;
            assert_eq!(kinds(&v), [DamageKind::Heads]);
            assert!(!v.damage[0].lost && v.losses.is_empty() && !v.recovery.is_empty());
            if f.append == *appends.last().unwrap() {
                continue;
            }
            let behind = header(&image.bytes, f.segment, f.append + 1);
            let v = changed(&image, |b| {
                b[at(f.segment, f.head_at) + 30] ^= 1;
                b[behind + 50] ^= 1;
            })
            .await;
            assert_eq!(kinds(&v), [DamageKind::Heads, DamageKind::Append]);
            assert!(of_kind(&v, DamageKind::Heads).lost && !of_kind(&v, DamageKind::Append).lost);
            assert!(!v.recovery.is_empty());
            let (_, loss) = v.losses.iter().find(|(s, _)| *s == f.shard).unwrap();
            let hole = loss.sequences.iter().any(|(a, b)| *a <= f.sequence && f.sequence <= *b);
            assert!(hole || loss.suspect_tail, "{loss:?}");
            assert_eq!(loss.doubtful_blocks > 0, !loss.sequences.is_empty());
            holes += u32::from(hole);
        }
        assert!(holes > 0);
    });
}

#[test]
fn damaged_data_are_named_by_shard_sequence_and_address() {
    local(async {
        let image = image(3, 500).await;
        let (_, frames) = look(&image.bytes).await;
        let rig = Rig::open(load(&image.bytes)).await.unwrap();
        let (mut live, mut dead) = (0, 0);
        for f in frames.iter().filter(|f| f.data_bytes > 0).step_by(17) {
            let block = (f.data_bytes / 4096 - 1) * 4096;
            let byte = at(f.segment, f.data_at + block + 99);
            let v = changed(&image, |b| b[byte] ^= 64).await;
            assert_eq!(kinds(&v), [DamageKind::Data], "{f:?}");
            let d = &v.damage[0];
            assert_eq!((d.segment, d.offset, d.bytes), (Some(f.segment), u64::from(f.data_at + block), 4096));
            assert_eq!((d.shard, d.sequence, d.byte), (Some(f.shard), Some(f.sequence), (byte - 99) as u64));
            let [range] = d.blocks[..] else { panic!("one block: {d:?}") };
            assert_eq!(range.len, 1);
            // The engine agrees: that block, and only that, can't be read any more, if anything names it.
            let mut bytes = image.bytes.clone();
            bytes[byte] ^= 64;
            let hit = Rig::open(load(&bytes)).await.unwrap();
            let read = hit.engine.read(f.shard, range).await;
            assert_eq!(read.is_err(), d.lost, "{range:?}");
            hit.kill();
            if d.lost {
                live += 1;
                let (_, loss) = v.losses.iter().find(|(s, _)| *s == f.shard).unwrap();
                assert_eq!((loss.block_count, &loss.blocks), (1, &d.blocks));
                assert!(rig.engine.read(f.shard, range).await.is_ok());
            } else {
                dead += 1;
                assert!(v.losses.is_empty(), "nothing names it");
            }
        }
        assert!(live > 3 && dead > 3, "{live} live, {dead} dead");
        rig.kill();
    });
}

#[test]
fn lost_appends_and_segments_are_named() {
    local(async {
        let image = image(4, 500).await;
        let (found, frames) = look(&image.bytes).await;
        let (old, new) = (pick(&found, &frames, true), pick(&found, &frames, false));
        let header = |f: &FrameInfo| header(&image.bytes, f.segment, f.append);
        let v = changed(&image, |b| b[header(old) + 50] ^= 2).await;
        assert_eq!(kinds(&v), [DamageKind::Append]);
        assert!(!v.damage[0].lost && v.losses.is_empty(), "the index has its frames: {:?}", v.damage);
        assert_eq!(v.damage[0].byte, header(old) as u64);
        let v = changed(&image, |b| b[header(new) + 50] ^= 2).await;
        assert_eq!(kinds(&v), [DamageKind::Append]);
        assert!(!v.damage[0].lost && v.losses.is_empty() && !v.recovery.is_empty(), "the one behind it has its frames");

        // All of a segment: its shards have holes.
        let v = changed(&image, |b| b[at(old.segment, 0)..at(old.segment + 1, 0)].fill(0)).await;
        let d = of_kind(&v, DamageKind::Segment);
        assert_eq!((d.segment, d.bytes, d.lost), (Some(old.segment), SEGMENT, true));
        let (_, loss) = v.losses.iter().find(|(s, _)| *s == old.shard).unwrap();
        assert!(loss.sequences.iter().any(|(a, b)| *a <= old.sequence && old.sequence <= *b), "{loss:?}");
        let (again, _) = {
            let mut bytes = image.bytes.clone();
            bytes[at(old.segment, 0)..at(old.segment + 1, 0)].fill(0);
            look(&bytes).await
        };
        assert_eq!(again.segments[old.segment as usize].kind, SegmentKind::Lost);
        assert!(again.shards.iter().any(|s| !s.holes.is_empty()));
    });
}

/// A frame whose checksums were all made again after a change: only its digest tells.
#[test]
fn a_frame_that_was_made_up_is_noticed() {
    local(async {
        let image = image(5, 400).await;
        let (found, frames) = look(&image.bytes).await;
        let open = found.segments.iter().find(|s| s.kind == SegmentKind::Open).unwrap().id;
        let goes_on = |f: &FrameInfo| frames.iter().any(|g| g.shard == f.shard && g.sequence.0 == f.sequence.0 + 1);
        let f = frames.iter().find(|f| f.segment == open && f.data_bytes > 0 && f.counts && goes_on(f)).unwrap();
        let forge = |field: usize| {
            let mut bytes = image.bytes.clone();
            let head = at(f.segment, f.head_at);
            bytes[head + field] ^= 1;
            let crc = freebs_format::crc32c(&bytes[head..head + 252]);
            bytes[head + 252..head + 256].copy_from_slice(&crc.to_le_bytes());
            let append = header(&bytes, f.segment, f.append);
            reseal(&mut bytes, append);
            // The one behind it no longer says otherwise.
            let behind = header(&bytes, f.segment, f.append + 1);
            bytes[behind + HEADER] ^= 1;
            reseal(&mut bytes, behind);
            bytes
        };
        // The time of the head, which the digest covers.
        let v = check(&forge(96)).await;
        assert_eq!(kinds(&v), [DamageKind::Digest], "{:?}", v.damage);
        assert_eq!((v.damage[0].shard, v.damage[0].sequence), (Some(f.shard), Some(f.sequence)));
        // Its parent, which only the frame before tells.
        let v = check(&forge(112)).await;
        assert_eq!(kinds(&v), [DamageKind::Chain], "{:?}", v.damage);
        assert_eq!((v.damage[0].shard, v.damage[0].sequence), (Some(f.shard), Some(f.sequence)));
        // Its own hash, which the next one tells.
        let v = check(&forge(144)).await;
        assert_eq!(kinds(&v), [DamageKind::Chain], "{:?}", v.damage);
        assert_eq!(v.damage[0].sequence, Some(Sequence(f.sequence.0 + 1)));
    });
}

/// An index that is whole and of another time (a lost write) says other things than the appends.
#[test]
fn an_index_that_lies_is_noticed_and_made_anew() {
    local(async {
        let image = image(6, 400).await;
        let (found, frames) = look(&image.bytes).await;
        let f = pick(&found, &frames, true);
        let mut bytes = image.bytes.clone();
        let footer = at(f.segment, (SEG - FOOTER) as u32);
        let (start, len) = (at(f.segment, word(&bytes, footer + 56) as u32), word(&bytes, footer + 60));
        // The flags of the first entry's append.
        bytes[start + 16] ^= 1;
        let crc = freebs_format::crc32c(&bytes[start..start + len]);
        bytes[footer + 68..footer + 72].copy_from_slice(&crc.to_le_bytes());
        let crc = freebs_format::crc32c(&bytes[footer..footer + FOOTER - 4]);
        bytes[footer + FOOTER - 4..footer + FOOTER].copy_from_slice(&crc.to_le_bytes());
        let v = check(&bytes).await;
        assert!(v.damage.iter().any(|d| d.kind == DamageKind::Mismatch && d.segment == Some(f.segment)));
        let device = load(&bytes);
        let done = rebuild(&erased(&device), true, &mut ()).await.unwrap();
        let index = done.indexes.iter().find(|i| i.segment == f.segment).unwrap();
        assert_eq!((index.found, &index.action), (IndexState::Differs, &Action::Write));
        assert!(bytes_of(&device) == image.bytes, "byte for byte as it was");
    });
}

#[test]
fn without_any_superblock_the_log_is_still_understood() {
    local(async {
        let image = image(7, 400).await;
        let good = look(&image.bytes).await.0;
        let mut bytes = image.bytes.clone();
        bytes[..FIRST].fill(0);
        let (found, _) = look(&bytes).await;
        assert!(found.device.guessed && !good.device.guessed);
        assert_eq!((found.device.segment_bytes, found.device.sector), (SEGMENT, 512));
        assert_eq!((found.device.cluster, found.device.device), (CLUSTER, good.device.device));
        assert_eq!((&found.segments, &found.shards), (&good.segments, &good.shards));
        let v = check(&bytes).await;
        assert_eq!(kinds(&v), [DamageKind::Superblock]);
        assert!(v.damage.iter().all(|d| d.lost) && v.damage.len() == 2);
        let e = rebuild(&load(&bytes), true, &mut ()).await.unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt);
        assert!(rebuild(&load(&bytes), false, &mut ()).await.is_ok());
    });
}

#[test]
fn what_is_no_log_is_said_so() {
    local(async {
        for bytes in [vec![], vec![0; FIRST], vec![0; FIRST + 3 * SEG], vec![7; FIRST + SEG]] {
            let e = verify(&load(&bytes), &mut ()).await.unwrap_err();
            assert_eq!(e.kind, ErrorKind::NotFound, "{} bytes: {e}", bytes.len());
        }
        let image = image(8, 20).await;
        let e = verify(&load(&image.bytes[..8192]), &mut ()).await.unwrap_err();
        assert!(e.kind == ErrorKind::Corrupt && e.text.contains("8192"), "{e}");
        let mut bytes = image.bytes.clone();
        for copy in [0, 512 << 10] {
            bytes[copy + 4] = 9;
            let crc = freebs_format::crc32c(&bytes[copy..copy + 252]);
            bytes[copy + 252..copy + 256].copy_from_slice(&crc.to_le_bytes());
        }
        let e = inspect(&load(&bytes), &mut ()).await.unwrap_err();
        assert!(e.kind == ErrorKind::Invalid && e.text.contains("newer"), "{e}");
    });
}

/// Destroys the indexes of all closed segments; whose segments they were.
fn destroy_indexes(found: &Inspection, bytes: &mut [u8], rng: &mut Rng) -> Vec<u32> {
    let closed: Vec<u32> = found.segments.iter().filter(|s| s.indexed).map(|s| s.id).collect();
    for id in &closed {
        let footer = at(*id, (SEG - FOOTER) as u32);
        let index = at(*id, word(bytes, footer + 56) as u32);
        match rng.below(3) {
            0 => bytes[index..at(*id + 1, 0)].fill(0),
            1 => bytes[footer..footer + FOOTER].fill(0xff),
            _ => bytes[index + 1] ^= 1,
        }
    }
    closed
}

fn same_state(r: &Rebuild) {
    assert!(!r.shards.is_empty());
    for s in &r.shards {
        assert!(s.before.is_some() && s.before == s.after, "{s:?}");
    }
}

#[test]
fn rebuild_gives_the_same_state_and_the_same_bytes() {
    for seed in 0..6 {
        local(async move {
            let image = image(20 + seed, 500).await;
            let (found, _) = look(&image.bytes).await;
            let whole = rebuild(&load(&image.bytes), false, &mut ()).await.unwrap();
            assert!(whole.is_complete() && whole.indexes.iter().all(|i| i.action == Action::Keep));
            same_state(&whole);
            let mut bytes = image.bytes.clone();
            let closed = destroy_indexes(&found, &mut bytes, &mut Rng::new(seed));
            let device = load(&bytes);
            let dry = rebuild(&erased(&device), false, &mut ()).await.unwrap();
            assert!(bytes_of(&device) == bytes, "a dry run writes nothing");
            assert!(!dry.written && dry.is_complete());
            let done = rebuild(&erased(&device), true, &mut ()).await.unwrap();
            assert!(done.written && done.is_complete());
            for r in [&dry, &done] {
                same_state(r);
                let anew: Vec<u32> =
                    r.indexes.iter().filter(|i| i.action == Action::Write).map(|i| i.segment).collect();
                let mut wanted = closed.clone();
                wanted.sort_by_key(|id| found.segments[*id as usize].seq);
                assert_eq!(anew, wanted);
                let digests = |r: &Rebuild| r.shards.iter().map(|s| s.after).collect::<Vec<_>>();
                assert_eq!(digests(r), digests(&whole), "as before anything was destroyed");
            }
            assert!(bytes_of(&device) == image.bytes, "byte for byte as the node had written them");
            assert!(check(&bytes_of(&device)).await.is_sound());
            let rig = Rig::open(device).await.unwrap();
            assert!(rig.report.damage.is_empty());
            for (chain, model) in image.chains.iter().zip(&image.models) {
                assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS));
            }
            rig.kill();
        });
    }
}

/// A damaged segment gets no index, whatever else is wrong with it; and data are never written over.
#[test]
fn rebuild_leaves_damaged_segments_alone() {
    local(async {
        let image = image(30, 500).await;
        let (found, frames) = look(&image.bytes).await;
        let f = pick(&found, &frames, true);
        for hit in [at(f.segment, f.head_at) + 30, at(f.segment, f.data_at) + 5] {
            let mut bytes = image.bytes.clone();
            destroy_indexes(&found, &mut bytes, &mut Rng::new(1));
            bytes[hit] ^= 1;
            let device = load(&bytes);
            let done = rebuild(&erased(&device), true, &mut ()).await.unwrap();
            assert!(!done.is_complete());
            for i in &done.indexes {
                let left = matches!(i.action, Action::Leave(_));
                assert_eq!(left, i.segment == f.segment, "{i:?}");
            }
            let now = bytes_of(&device);
            let (from, to) = (at(f.segment, 0), at(f.segment + 1, 0));
            assert!(now[from..to] == bytes[from..to], "nothing of it was touched");
            assert!(now[..FIRST] == bytes[..FIRST], "no start was counted");
            let rig = Rig::open(device).await.unwrap();
            assert!(!rig.report.damage.is_empty(), "the next recovery sees it again");
            rig.kill();
        }
    });
}

/// Reads fail in the middle (EIO): what is hit is named block by block, and the rest is read.
#[test]
fn unreadable_sectors_are_damage_of_their_blocks_only() {
    local(async {
        let image = image(9, 400).await;
        let (found, frames) = look(&image.bytes).await;
        let segment = found.segments.iter().find(|s| s.indexed).unwrap().id;
        let f = frames.iter().filter(|f| f.segment == segment).max_by_key(|f| f.data_bytes).unwrap();
        assert!(f.data_bytes >= 3 * 4096);
        let bad = at(segment, f.data_at + 4096) as u64;
        let device = BadSectors { inner: load(&image.bytes), from: bad, to: bad + 512 };
        let v = verify(&erased(&device), &mut ()).await.unwrap();
        assert_eq!(kinds(&v), [DamageKind::Data]);
        assert_eq!((v.damage[0].byte, v.damage[0].bytes, v.damage.len()), (bad, 4096, 1));
        assert_eq!(v.damage[0].sequence, Some(f.sequence));
    });
}

#[derive(Clone)]
struct BadSectors {
    inner: MemoryDevice,
    from: u64,
    to: u64,
}

impl Device for BadSectors {
    fn sector(&self) -> usize {
        self.inner.sector()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    async fn read(&self, at: u64, len: usize) -> freebs_types::Result<freebs_io::AlignedBuf> {
        if at < self.to && at + len as u64 > self.from {
            return Err(freebs_types::Error::os("EIO"));
        }
        self.inner.read(at, len).await
    }
    async fn write(
        &self,
        _at: u64,
        buf: freebs_io::AlignedBuf,
        _durability: freebs_io::Durability,
    ) -> (freebs_io::AlignedBuf, freebs_types::Result<()>) {
        (buf, Err(freebs_types::Error::bug("nothing is written here")))
    }
    async fn sync(&self) -> freebs_types::Result<()> {
        Err(freebs_types::Error::bug("nothing is written here"))
    }
    async fn set_len(&self, _len: u64) -> freebs_types::Result<()> {
        Err(freebs_types::Error::bug("nothing is written here"))
    }
    async fn punch(&self, _at: u64, _len: u64) -> freebs_types::Result<()> {
        Err(freebs_types::Error::bug("nothing is written here"))
    }
    async fn prewrite(&self, _at: u64, _len: u64) -> freebs_types::Result<()> {
        Err(freebs_types::Error::bug("nothing is written here"))
    }
}
