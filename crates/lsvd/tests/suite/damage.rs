//! Damage: whatever bit or sector changes, no wrong byte is given out, nothing panics, and what was hit is found; and
//! what is lost can be put back.

use crate::common::*;
use core::mem::offset_of;
use freebs_format::disk::{APPEND_MAGIC, AppendHeader, SUPERBLOCK_AT, Superblock};
use freebs_format::{ExtentKind, Frame, FrameHeader, crc32c};
use freebs_io::memory::MemoryDevice;
use freebs_io::{Device, faults};
use freebs_lsvd::{CleanOptions, Durable, Learned, MarkChange, Record};
use freebs_types::{BlockRange, ErrorKind, Lba, Result, Sequence, ShardId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zerocopy::IntoBytes;

pub const BLOCKS: u32 = 120;
pub const SHARDS: u64 = 3;
pub const FIRST: usize = 1 << 20;

/// A device with history, and what is on it.
pub struct Image {
    pub bytes: Vec<u8>,
    /// Per shard: frames and the model after each; index 0 is the empty shard.
    pub history: Vec<Vec<(Option<Frame>, Model, Chain)>>,
}

pub fn load(bytes: &[u8]) -> MemoryDevice {
    let device = MemoryDevice::new(512, 1 << 30);
    device.poke(|b| b.extend_from_slice(bytes));
    device
}

async fn image(seed: u64, steps: u64) -> Image {
    image_with(seed, steps, false).await
}

pub async fn image_with(seed: u64, steps: u64, cleaning: bool) -> Image {
    let mut rng = Rng::new(seed);
    let device = MemoryDevice::new(512, 1 << 30);
    create_log(device.clone(), &shape(40)).await.unwrap();
    let rig = Rig::open(device.clone()).await.unwrap();
    // Everything stays where it was written, so that there is much to be damaged; or as much as can be is moved.
    let eager =
        CleanOptions { share_percent: 300, target_percent: 100, batch_bytes: 2 << 20, ..CleanOptions::default() };
    rig.engine.set_cleaning(CleanOptions { enabled: cleaning, ..eager });
    let mut history: Vec<Vec<_>> =
        (1..=SHARDS).map(|i| vec![(None, Model::new(), Chain::new(ShardId::new(i, 0)))]).collect();
    for _ in 0..steps {
        let h = &mut history[rng.below(SHARDS) as usize];
        let (_, mut model, mut chain) = h.last().unwrap().clone();
        chain.committed = chain.sequence.saturating_sub(3);
        let op = Op::random(&mut rng, BLOCKS);
        op.apply(&mut model);
        let frame = chain.frame(&[op]);
        rig.append(Record::Frame(frame.clone()));
        if cleaning {
            rig.engine.committed(chain.shard, Sequence(chain.committed));
        }
        h.push((Some(frame), model, chain));
        if rng.chance(60) {
            rig.settle().await;
        }
    }
    rig.settle().await;
    assert!(!cleaning || rig.engine.counters().carried > 0, "nothing was moved");
    rig.stop().await;
    let bytes = RefCell::new(Vec::new());
    device.poke(|b| bytes.borrow_mut().clone_from(b));
    Image { bytes: bytes.into_inner(), history }
}

#[derive(Default, Debug)]
pub struct Outcome {
    refused: u32,
    reported: u32,
    pub on_read: u32,
    on_frames: u32,
    unseen: u32,
}

/// Opens a changed image and looks at everything. No answer may be wrong.
pub async fn look(image: &Image, bytes: &[u8], what: &str, out: &mut Outcome) {
    let rig = match Rig::open(load(bytes)).await {
        Ok(rig) => rig,
        Err(e) => {
            assert_eq!(e.kind, ErrorKind::Corrupt, "{what}: {e}");
            out.refused += 1;
            return;
        }
    };
    rig.engine.check();
    let reported = !rig.report.damage.is_empty();
    let (mut on_read, mut on_frames) = (false, false);
    for h in &image.history {
        let (_, newest, chain) = h.last().unwrap();
        let st = rig.engine.state(chain.shard);
        let last = st.as_ref().map_or(0, |s| s.last.sequence.0);
        let suspect = st.as_ref().is_none_or(|s| s.suspect_tail);
        assert!(last == chain.sequence || (suspect && reported), "{what}: a lost tail is said to be one");
        let model = if last == chain.sequence { newest } else { &h[last as usize].1 };
        for b in 0..BLOCKS {
            match read_block(&rig, chain.shard, b).await {
                Ok(cell) => {
                    let right = model.get(&b).copied().unwrap_or(Cell8::Trim);
                    assert_eq!(cell, right, "{what}: shard {}, block {b}", chain.shard);
                }
                Err(e) => {
                    assert!(e.kind == ErrorKind::Corrupt || st.is_none(), "{what}: {e}");
                    on_read = true;
                }
            }
        }
        for s in 1..=last {
            match rig.engine.frame(chain.shard, Sequence(s)).await {
                Ok(f) => {
                    let was = h[s as usize].0.as_ref().unwrap();
                    assert_eq!(f.head.bytes(), was.head.bytes(), "{what}");
                    assert_eq!(f.data.concat(), was.data.concat(), "{what}");
                }
                Err(e) => on_frames |= e.kind == ErrorKind::Corrupt,
            }
        }
    }
    out.reported += u32::from(reported);
    out.on_read += u32::from(on_read);
    out.on_frames += u32::from(on_frames);
    out.unseen += u32::from(!reported && !on_read && !on_frames);
    rig.kill();
}

async fn read_block(rig: &Rig, shard: ShardId, b: u32) -> Result<Cell8> {
    let out = rig.engine.read(shard, BlockRange { start: Lba(b), len: 1 }).await?;
    Ok(match out.pieces[0].kind {
        ExtentKind::Trim => Cell8::Trim,
        ExtentKind::Zero => Cell8::Zero,
        ExtentKind::Data => {
            let fill = u64::from_le_bytes(out.data[0][..8].try_into().unwrap());
            assert_eq!(out.data[0], block(fill));
            Cell8::Data(fill)
        }
    })
}

/// Places in an image of each kind of structure.
pub fn places(bytes: &[u8]) -> Vec<(&'static str, usize, usize)> {
    let mut out = vec![("superblock", 0, 256), ("superblock", 512 << 10, 256)];
    let segments = (bytes.len() - FIRST) / SEGMENT as usize;
    for s in 0..segments {
        let base = FIRST + s * SEGMENT as usize;
        let seg = &bytes[base..base + SEGMENT as usize];
        let word = |at: usize| u32::from_le_bytes(seg[at..at + 4].try_into().unwrap()) as usize;
        let closed = &seg[SEGMENT as usize - FOOTER..][..4] == b"FBIX";
        let mut at = 0;
        while &seg[at..at + 4] == b"FBAP" {
            // Header fields by their offsets: heads_len 56, extra_len 60, data_len 64.
            let (heads, extra, data) = (word(at + 56), word(at + 60), word(at + 64));
            let front = heads.next_multiple_of(512);
            let last = seg[at + front + data..].get(..4) != Some(b"FBAP");
            let kind = match closed {
                true => "append header",
                false if last => "last append header",
                false => "append header of open",
            };
            out.push((kind, base + at, HEADER));
            if at == 0 {
                out.push(("live table", base + at + HEADER, extra));
            }
            if heads > HEADER + extra {
                out.push((
                    if closed { "head" } else { "head of open" },
                    base + at + HEADER + extra,
                    heads - HEADER - extra,
                ));
            }
            if data > 0 {
                out.push((if closed { "data" } else { "data of open" }, base + at + front, data));
            }
            at += front + data;
        }
        if closed {
            let footer = SEGMENT as usize - FOOTER;
            let (index_at, index_len) = (word(footer + 56), word(footer + 60));
            out.push(("index", base + index_at, index_len));
            out.push(("footer", base + footer, FOOTER));
        }
    }
    out
}

/// Destroys heads, and the header of the append behind them, which repeats them: nothing tells what they were. `false` if
/// there are not two appends behind them: an end that is damaged looks like a torn one.
pub fn lose(bytes: &mut [u8], (at, len): (usize, usize)) -> bool {
    let headers = places(bytes).into_iter().filter(|p| p.0.contains("append header")).map(|p| p.1);
    let behind: Vec<usize> = headers.filter(|h| *h > at && *h / SEGMENT as usize == at / SEGMENT as usize).collect();
    if behind.len() < 2 {
        return false;
    }
    bytes[at] ^= 1;
    bytes[at + len / 2] ^= 1;
    bytes[behind[0]..behind[0] + 512].fill(0);
    true
}

/// Loses the heads of one kind that are chosen by chance.
fn lose_any(bytes: &mut [u8], kind: &str, rng: &mut Rng) -> usize {
    let heads: Vec<_> = places(bytes).into_iter().filter(|p| p.0 == kind).collect();
    loop {
        let (_, at, len) = heads[rng.below(heads.len() as u64) as usize];
        if lose(bytes, (at, len)) {
            return at;
        }
    }
}

#[test]
fn a_flipped_bit_is_found_or_harmless() {
    local(async {
        let mut rng = Rng::new(77);
        let image = image(1, 250).await;
        let mut out = Outcome::default();
        look(&image, &image.bytes, "as it was", &mut out).await;
        assert_eq!(out.unseen, 1, "{out:?}");
        let places = places(&image.bytes);
        for kind in [
            "superblock",
            "append header",
            "live table",
            "head",
            "head of open",
            "data",
            "data of open",
            "index",
            "footer",
        ] {
            let of_kind: Vec<_> = places.iter().filter(|p| p.0 == kind).collect();
            assert!(!of_kind.is_empty(), "the image has no {kind}");
            let mut out = Outcome::default();
            let n = 24;
            for _ in 0..n {
                let (_, at, len) = of_kind[rng.below(of_kind.len() as u64) as usize];
                let (byte, bit) = (at + rng.below(*len as u64) as usize, rng.below(8));
                let mut bytes = image.bytes.clone();
                bytes[byte] ^= 1 << bit;
                look(&image, &bytes, &format!("{kind} at byte {byte}, bit {bit}"), &mut out).await;
            }
            println!("{kind}: {out:?}");
            // What is never read because something better says the same need not be found on opening.
            let harmless = matches!(kind, "append header" | "live table" | "data" | "head");
            assert!(harmless || out.unseen == 0, "{kind}: {out:?}");
        }
    });
}

#[test]
fn a_lost_sector_is_found_or_harmless() {
    local(async {
        let mut rng = Rng::new(78);
        let image = image(2, 250).await;
        let mut out = Outcome::default();
        for i in 0..150 {
            let sector = if i < 100 {
                rng.below((image.bytes.len() / 512) as u64) as usize
            } else {
                // The ends of segments are where the structures are.
                let s = rng.below(((image.bytes.len() - FIRST) / SEGMENT as usize) as u64) as usize;
                let base = (FIRST + s * SEGMENT as usize) / 512;
                base + if rng.chance(50) { 0 } else { SEGMENT as usize / 512 - 1 }
            };
            let mut bytes = image.bytes.clone();
            let old = bytes[sector * 512..sector * 512 + 512].to_vec();
            match rng.below(3) {
                0 => bytes[sector * 512..sector * 512 + 512].fill(0),
                1 => bytes[sector * 512..sector * 512 + 512].iter_mut().for_each(|b| *b = rng.next() as u8),
                _ => {
                    // A misdirected write: another sector's bytes.
                    let from = rng.below((bytes.len() / 512) as u64) as usize * 512;
                    bytes.copy_within(from..from + 512, sector * 512);
                }
            }
            if old == bytes[sector * 512..sector * 512 + 512] {
                continue;
            }
            look(&image, &bytes, &format!("sector {sector}"), &mut out).await;
        }
        println!("{out:?}");
        assert!(out.reported + out.on_read + out.on_frames > 20, "{out:?}");
    });
}

/// Several sectors at once: from an append to its segment's end, or these two alone; with blocks that were moved. Not in
/// the newest segment: that its last appends were ever there nobody could tell.
#[test]
fn a_lost_stretch_is_found_or_harmless() {
    for seed in 0..3 {
        local(async move {
            let mut rng = Rng::new(79 + seed);
            let image = image_with(100 + seed, 400, true).await;
            let mut out = Outcome::default();
            look(&image, &image.bytes, "as it was", &mut out).await;
            assert_eq!(out.unseen, 1, "{out:?}");
            let places = places(&image.bytes);
            let starts = (FIRST..image.bytes.len()).step_by(SEGMENT as usize);
            let number =
                |at: &usize| AppendHeader::decode(&image.bytes[*at..at + HEADER]).map_or(0, |h| h.segment_seq.get());
            let newest = starts.max_by_key(number).unwrap();
            let older = |at: usize| !(newest..newest + SEGMENT as usize).contains(&at);
            let places: Vec<_> =
                places.iter().filter(|p| matches!(p.0, "append header" | "head" | "index") && older(p.1)).collect();
            let mut out = Outcome::default();
            for i in 0..60 {
                let at = places[rng.below(places.len() as u64) as usize].1 / 512 * 512;
                let end = (at / SEGMENT as usize + 1) * SEGMENT as usize;
                let mut bytes = image.bytes.clone();
                let parts = if i % 2 == 0 { vec![(at, end)] } else { vec![(at, at + 512), (end - 512, end)] };
                parts.iter().for_each(|(from, to)| bytes[*from..*to].fill(0xee));
                look(&image, &bytes, &format!("{parts:?}"), &mut out).await;
            }
            println!("{out:?}");
            // Segments that were given up are among them: nobody misses what is in those.
            assert!(out.reported > 15 && out.on_read > 15, "{out:?}");
        });
    }
}

#[test]
fn both_superblocks_gone_is_said_with_the_way_out() {
    local(async {
        let image = image(3, 5).await;
        let mut bytes = image.bytes.clone();
        bytes[100] ^= 1;
        let dev = load(&bytes);
        assert_eq!(Rig::open(dev.clone()).await.unwrap().report.damage.len(), 1);
        // The start mended it, and wrote both.
        dev.poke(|b| assert_eq!(b[..256], b[512 << 10..][..256]));
        dev.poke(|b| b[(512 << 10) + 100] ^= 1);
        assert_eq!(Rig::open(dev).await.unwrap().report.damage.len(), 1);
        bytes[(512 << 10) + 100] ^= 1;
        let error = Rig::open(load(&bytes)).await.err().unwrap();
        assert!(error.kind == ErrorKind::Corrupt && error.text.contains("fresh device"), "{error}");
    });
}

/// Heads of one append are destroyed, and those that repeat them: its shard has a hole, older blocks are not served, and the
/// frame, put back, heals it for good. So it does for a frame that is known and has lost its own head.
#[test]
fn a_hole_is_filled_by_the_lost_frame() {
    for seed in 0..12 {
        local(async move {
            let mut rng = Rng::new(seed);
            let image = image(10 + seed, 120).await;
            let mut bytes = image.bytes.clone();
            lose_any(&mut bytes, "head of open", &mut rng);
            let dev = load(&bytes);
            let mut rig = Rig::open(dev.clone()).await.unwrap();
            assert!(!rig.report.damage.is_empty());
            let mut mended = false;
            for h in &image.history {
                let (_, model, chain) = h.last().unwrap();
                let st = rig.engine.state(chain.shard).unwrap();
                for (a, b) in &st.holes {
                    assert!(rig.read_all(chain.shard, BLOCKS).await.is_err(), "a hole hides older blocks");
                    assert_eq!(rig.engine.digest(chain.shard).await.unwrap_err().kind, ErrorKind::Corrupt);
                    for s in a.0..=b.0 {
                        rig.append(Record::Repair(h[s as usize].0.clone().unwrap()));
                        mended = true;
                    }
                }
                for s in st.last.sequence.0 + 1..=chain.sequence {
                    assert!(st.suspect_tail);
                    rig.append(Record::Frame(h[s as usize].0.clone().unwrap()));
                    mended = true;
                }
                rig.settle().await;
                rig.engine.check();
                let st = rig.engine.state(chain.shard).unwrap();
                assert!(st.holes.is_empty() && st.last == chain.name());
                assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS));
            }
            assert!(mended, "something was lost");
            for start in 0..2 {
                rig.stop().await;
                rig = Rig::open(dev.clone()).await.unwrap();
                rig.engine.check();
                for h in &image.history {
                    let (_, model, chain) = h.last().unwrap();
                    let st = rig.engine.state(chain.shard).unwrap();
                    assert!(st.holes.is_empty() && st.last == chain.name(), "{:?}", st.holes);
                    assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS));
                    for s in 1..=chain.sequence {
                        if start == 0 && rig.engine.frame(chain.shard, Sequence(s)).await.is_err() {
                            rig.append(Record::Repair(h[s as usize].0.clone().unwrap()));
                            rig.settle().await;
                        }
                        rig.engine.frame(chain.shard, Sequence(s)).await.unwrap();
                    }
                }
            }
        });
    }
}

/// The map entries that frames from `since` to `upto` placed, out of a whole copy of the log, as a peer gives them.
async fn relearn(rig: &Rig, good: &Rig, chain: &Chain, since: u64, upto: u64) {
    let (mut from, shard) = (Some(Lba(0)), chain.shard);
    while let Some(at) = from {
        let got = good.engine.entries_between(shard, at, Sequence(since), Sequence(upto), 40_000).await;
        let (body, data, next) = got.unwrap();
        if !body.entries.is_empty() {
            rig.append(Record::Carry { shard, body, data, ticket: 0 });
        }
        from = next;
    }
    let learned = Learned { since: Sequence(since), upto: Sequence(upto), ..Learned::default() };
    let change = MarkChange { learned: Some(Box::new(learned)), ..MarkChange::default() };
    rig.append(Record::Mark { shard, change, ticket: 0 });
    rig.settle().await;
}

/// Heads of one append are destroyed with those that repeat them, and nobody has its frames any more: what they had placed
/// is learned from a copy, and is there at the next starts, too. Blocks that cleaning had moved into the append come back the same way.
async fn hole_is_learned(seed: u64, cleaning: bool) -> bool {
    let mut rng = Rng::new(seed);
    let image = image_with(10 + seed, if cleaning { 400 } else { 120 }, cleaning).await;
    let mut bytes = image.bytes.clone();
    let at = lose_any(&mut bytes, if cleaning { "head" } else { "head of open" }, &mut rng);
    if cleaning {
        // Its index goes, too.
        let end = (at / SEGMENT as usize + 1) * SEGMENT as usize;
        bytes[end - 512..end].fill(0xee);
    }
    let dev = load(&bytes);
    let good = Rig::open(load(&image.bytes)).await.unwrap();
    let mut rig = Rig::open(dev.clone()).await.unwrap();
    let mut learned = false;
    for start in 0..3 {
        for h in &image.history {
            let (_, model, chain) = h.last().unwrap();
            good.engine.committed(chain.shard, Sequence(chain.sequence));
            let st = rig.engine.state(chain.shard).unwrap();
            if let (Some(first), Some(last)) = (st.holes.first(), st.holes.last()) {
                assert!(start == 0 || cleaning, "start {start}: what was learned is missed again: {:?}", st.holes);
                assert!(rig.read_all(chain.shard, BLOCKS).await.is_err(), "a hole hides older blocks");
                // What was learned from a sequence on says nothing of what is lost before it.
                if last.1 < st.last.sequence {
                    relearn(&rig, &good, chain, last.1.0, st.last.sequence.0).await;
                    assert_eq!(rig.engine.state(chain.shard).unwrap().holes, st.holes);
                }
                relearn(&rig, &good, chain, first.0.0 - 1, last.1.0).await;
                learned = true;
            }
            for s in st.last.sequence.0 + 1..=chain.sequence {
                assert!(st.suspect_tail);
                rig.append(Record::Frame(h[s as usize].0.clone().unwrap()));
            }
            rig.settle().await;
            rig.engine.check();
            let st = rig.engine.state(chain.shard).unwrap();
            assert!(st.holes.is_empty() && st.last == chain.name(), "{:?}", st.holes);
            assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS));
        }
        rig.stop().await;
        rig = Rig::open(dev.clone()).await.unwrap();
        rig.engine.check();
    }
    learned
}

#[test]
fn a_hole_is_filled_by_what_is_left_of_its_frames() {
    for cleaning in [false, true] {
        let learned = Rc::new(Cell::new(0));
        for seed in 0..24 {
            let learned = learned.clone();
            local(async move { learned.set(learned.get() + u32::from(hole_is_learned(seed, cleaning).await)) });
        }
        assert!(learned.get() >= 6, "cleaning {cleaning}: {} of 24 had holes", learned.get());
    }
}

/// A data block is destroyed: it is not served, and a new copy of its frame, or of its map entry, heals it.
#[test]
fn a_bad_block_is_mended_by_frame_or_by_entry() {
    for seed in 0..12 {
        local(async move {
            let mut rng = Rng::new(seed);
            let image = image(30 + seed, 150).await;
            let places = places(&image.bytes);
            let data: Vec<_> = places.iter().filter(|p| p.0.starts_with("data")).collect();
            let (mut bytes, mut hit) = (image.bytes.clone(), Vec::new());
            for _ in 0..6 {
                let (_, at, len) = data[rng.below(data.len() as u64) as usize];
                bytes[at + rng.below(*len as u64) as usize] ^= 16;
                hit.push(*at);
            }
            let good = Rig::open(load(&image.bytes)).await.unwrap();
            let dev = load(&bytes);
            let mut rig = Rig::open(dev.clone()).await.unwrap();
            for h in &image.history {
                let (_, model, chain) = h.last().unwrap();
                for s in 1..=chain.sequence {
                    if rng.chance(50) && rig.engine.frame(chain.shard, Sequence(s)).await.is_err() {
                        rig.append(Record::Repair(h[s as usize].0.clone().unwrap()));
                        rig.settle().await;
                    }
                }
                for b in 0..BLOCKS {
                    if read_block(&rig, chain.shard, b).await.is_err() {
                        // The entry with its place and data, from a peer that has it.
                        good.engine.committed(chain.shard, Sequence(chain.sequence));
                        let (mut body, data, _) =
                            good.engine.entries(chain.shard, Lba(b), Sequence(0), 4096).await.unwrap();
                        body.entries.truncate(1);
                        assert_eq!((body.entries[0].range.start.0, data.len()), (b, 1));
                        rig.append(Record::Carry { shard: chain.shard, body, data, ticket: 0 });
                        rig.settle().await;
                        rig.engine.check();
                        read_block(&rig, chain.shard, b).await.unwrap();
                    }
                }
                rig.engine.check();
                assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS));
            }
            assert!(rig.engine.counters().crc_errors > 0 || !rig.report.damage.is_empty() || hit.is_empty());
            rig.stop().await;
            rig = Rig::open(dev).await.unwrap();
            rig.engine.check();
            for h in &image.history {
                let (_, model, chain) = h.last().unwrap();
                assert_eq!(rig.read_all(chain.shard, BLOCKS).await.unwrap(), full(model, BLOCKS));
            }
        });
    }
}

/// Frames were given up behind the damage, so the log says "released up to here"; that must not hide what damage took
/// before it.
#[test]
fn released_frames_do_not_hide_lost_ones() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        rig.engine.set_cleaning(CleanOptions { enabled: false, ..CleanOptions::default() });
        let (mut chain, mut model) = (Chain::new(ShardId::new(1, 0)), Model::new());
        for i in 0..2500u32 {
            chain.committed = chain.sequence;
            let extent = if i < 180 { (ExtentKind::Data, i * 7 % 60, 1) } else { (ExtentKind::Data, 100, 4) };
            let op = Op { extents: vec![extent], fill: u64::from(i) * 1000 };
            op.apply(&mut model);
            rig.append(Record::Frame(chain.frame(&[op])));
            rig.settle().await;
        }
        assert!(rig.engine.counters().segments_freed > 3);
        rig.stop().await;
        let bytes = RefCell::new(Vec::new());
        device.poke(|b| bytes.borrow_mut().clone_from(b));
        let bytes = bytes.into_inner();
        let in_first = |kind: &str| -> Vec<(usize, usize)> {
            let of_kind = places(&bytes).into_iter().filter(|p| p.0 == kind && p.1 < FIRST + SEGMENT as usize);
            of_kind.map(|p| (p.1, p.2)).collect()
        };
        for lost in [150, 160, 170] {
            let dev = load(&bytes);
            let (footer, head) = (in_first("footer")[0], in_first("head")[lost]);
            dev.poke(|b| {
                assert!(lose(b, head));
                b[footer.0] ^= 1;
            });
            let rig = Rig::open(dev).await.unwrap();
            let st = rig.engine.state(chain.shard).unwrap();
            assert_eq!(st.holes, [(Sequence(lost as u64 + 1), Sequence(lost as u64 + 1))]);
            let block = lost as u32 * 7 % 60;
            assert_eq!(read_block(&rig, chain.shard, block).await.unwrap_err().kind, ErrorKind::Corrupt);
            assert_eq!(read_block(&rig, chain.shard, 101).await.unwrap(), model[&101], "newer blocks are served");
        }
    });
}

/// A hole among frames that may be cut yet, and the chain goes on elsewhere right behind the frame in front of it. That
/// frame was taken for lost, too, and no copy of it was ever for a hole. What was cut off with the hole may have been
/// told durable and be the chain's: until the tail was compared it is suspect, also after a restart.
#[test]
fn a_hole_that_is_cut_off_leaves_the_tail_suspect() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let write = |c: &mut Chain, fill| c.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 1)], fill }]);
        let mut c = Chain::new(ShardId::new(1, 0));
        let front: Vec<_> = (1..=3).map(|i| write(&mut c, i)).collect();
        let mut other = c.clone();
        other.secret = freebs_types::Hash32([4; 32]);
        write(&mut c, 4);
        let behind = write(&mut c, 5);
        front.into_iter().chain([behind]).for_each(|f| rig.append(Record::Frame(f)));
        rig.settle().await;
        let st = rig.engine.state(c.shard).unwrap();
        assert_eq!((&st.holes[..], st.suspect_tail), (&[(Sequence(4), Sequence(4))][..], false));
        rig.append(Record::Cut { shard: c.shard, to: Sequence(3) });
        rig.append(Record::Frame(write(&mut other, 6)));
        // A mark of the same append, which says nothing of a comparison.
        let promise = freebs_lsvd::MarkChange { promised: Some(freebs_types::ViewNumber(9)), ..Default::default() };
        rig.append(Record::Mark { shard: c.shard, change: promise, ticket: 0 });
        rig.settle().await;
        let is_cut = |rig: &Rig| {
            let st = rig.engine.state(other.shard).unwrap();
            assert_eq!((&st.holes[..], st.suspect_tail, st.last), (&[][..], true, other.name()));
        };
        is_cut(&rig);
        rig.engine.check();
        rig.kill();
        let rig = Rig::open(device.clone()).await.unwrap();
        is_cut(&rig);
        let trusted = freebs_lsvd::MarkChange { trusted: true, ..Default::default() };
        rig.append(Record::Mark { shard: c.shard, change: trusted, ticket: 1 });
        rig.settle().await;
        rig.stop().await;
        let rig = Rig::open(device).await.unwrap();
        assert!(!rig.engine.state(c.shard).unwrap().suspect_tail);
        assert!(read_block(&rig, c.shard, 0).await.is_ok());
    });
}

/// A lost frame was put back when the frames behind it were committed by now, and others behind these were not. These
/// were taken to follow what was put back: when they were cut, as those of a view that never became active, the log was
/// back at the lost frame, and missed all that is committed behind it.
#[test]
fn a_cut_does_not_go_back_to_a_frame_that_was_put_back() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let write = |c: &mut Chain, fill| c.frame(&[Op { extents: vec![(ExtentKind::Data, fill as u32, 1)], fill }]);
        let mut c = Chain::new(ShardId::new(1, 0));
        let mut frames: Vec<_> = (1..=8).map(|i| write(&mut c, i)).collect();
        let mut branch = c.clone();
        branch.secret = freebs_types::Hash32([4; 32]);
        let mut lost = frames.drain(3..5).collect::<Vec<_>>().into_iter();
        frames.into_iter().for_each(|f| rig.append(Record::Frame(f)));
        rig.settle().await;
        let holes = |rig: &Rig| rig.engine.state(ShardId::new(1, 0)).unwrap().holes;
        assert_eq!(holes(&rig), [(Sequence(4), Sequence(5))]);
        rig.engine.committed(c.shard, Sequence(8));
        rig.append(Record::Frame(write(&mut branch, 9)));
        rig.append(Record::Repair(lost.next().unwrap()));
        rig.settle().await;
        assert_eq!(holes(&rig), [(Sequence(5), Sequence(5))]);
        rig.append(Record::Repair(lost.next().unwrap()));
        rig.append(Record::Cut { shard: c.shard, to: Sequence(8) });
        rig.settle().await;
        let st = rig.engine.state(c.shard).unwrap();
        assert_eq!((st.last, st.holes, st.version.0), (c.name(), vec![], 8));
        rig.append(Record::Frame(write(&mut c, 19)));
        rig.settle().await;
        let is_whole = async |rig: &Rig| {
            let st = rig.engine.state(ShardId::new(1, 0)).unwrap();
            assert_eq!((st.holes, st.last.sequence.0, st.suspect_tail), (vec![], 9, false));
            for block in [1, 4, 5, 8, 19] {
                assert_eq!(read_block(rig, st.shard, block).await.unwrap(), Cell8::Data(2 * u64::from(block)));
            }
            rig.engine.check();
        };
        is_whole(&rig).await;
        rig.kill();
        is_whole(&Rig::open(device).await.unwrap()).await;
    });
}

/// Two frames of a shard lay in one append; the head of the second was damaged. The first one had come through, so the
/// shard's end was taken for whole, although its last frame was lost: a gap within an append is one, too.
#[test]
fn a_lost_frame_behind_another_in_its_append_is_missed() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let write = |c: &mut Chain| Record::Frame(c.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 1)], fill: 7 }]));
        let (mut last, mut gap) = (Chain::new(ShardId::new(1, 0)), Chain::new(ShardId::new(2, 0)));
        [&mut last, &mut gap].into_iter().for_each(|c| rig.append(write(c)));
        rig.settle().await;
        // One append: a frame of each shard, and then one more of each, whose heads will be lost.
        for _ in 0..2 {
            [&mut last, &mut gap].into_iter().for_each(|c| rig.append(write(c)));
        }
        rig.settle().await;
        rig.append(write(&mut gap));
        rig.settle().await;
        rig.stop().await;
        let bytes = RefCell::new(Vec::new());
        device.poke(|b| bytes.borrow_mut().clone_from(b));
        let mut bytes = bytes.into_inner();
        let heads: Vec<_> = places(&bytes).into_iter().filter(|p| p.0 == "head of open").collect();
        // And the header of the one behind it, which repeats them.
        let (_, at, len) = heads[1];
        bytes[at + len / 2 + 9] ^= 1;
        let behind = places(&bytes).into_iter().find(|p| p.0.contains("append header") && p.1 > at).unwrap().1;
        bytes[behind] ^= 1;
        let rig = Rig::open(load(&bytes)).await.unwrap();
        assert_eq!(rig.report.damage.len(), 2, "{:?}", rig.report.damage);
        let st = rig.engine.state(last.shard).unwrap();
        assert_eq!((st.last.sequence.0, st.suspect_tail), (2, true), "its last frame is not there, and that is said");
        let st = rig.engine.state(gap.shard).unwrap();
        assert_eq!((st.last.sequence.0, &st.holes[..]), (4, &[(Sequence(3), Sequence(3))][..]));
        assert!(read_block(&rig, gap.shard, 5).await.is_err());
    });
}

/// The power went when a segment had been closed, and its footer said where the log goes on. After the restart it went
/// on in another one, and whoever lost that one's first append found neither: the rest of it was never looked for, and
/// what it held was gone without a word. The same if the segment still began with an append of its use before.
#[test]
fn a_lost_first_append_is_missed_wherever_the_log_was_stopped() {
    local(async {
        let device = faults::CrashDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(12)).await.unwrap();
        let moments: Rc<RefCell<Vec<faults::PowerCut>>> = Rc::default();
        let rig = Rig::open(device.clone()).await.unwrap();
        let to = moments.clone();
        device.on_call(move |_, cut| to.borrow_mut().push(cut));
        let shard = ShardId::new(1, 0);
        let mut chain = Chain::new(shard);
        for i in 0..150 {
            rig.append(Record::Frame(chain.frame(&[Op { extents: vec![(ExtentKind::Data, i % 2, 60)], fill: 7 }])));
            rig.settle().await;
            chain.committed = chain.sequence;
            rig.engine.committed(shard, Sequence(chain.committed));
        }
        assert!(rig.engine.counters().segments_freed > 3, "segments are used again");
        let (mut stopped, mut again) = (0, 0);
        for cut in moments.take().into_iter().skip(20) {
            let device = cut.image(faults::Survives::Nothing);
            let rig = Rig::open(device.clone()).await.unwrap();
            assert!(rig.report.damage.is_empty());
            let mut other = Chain::new(ShardId::new(2, 0));
            let opened = |rig: &Rig| rig.engine.counters().segments_opened;
            while opened(&rig) == 0 || other.sequence < 2 {
                rig.append(Record::Frame(other.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 60)], fill: 8 }])));
                rig.settle().await;
            }
            rig.append(Record::Frame(other.frame(&[Op { extents: vec![(ExtentKind::Data, 0, 1)], fill: 8 }])));
            rig.settle().await;
            let one = opened(&rig) == 1;
            rig.stop().await;
            // The newest segment's first append goes.
            let bytes = device.read(0, device.len() as usize).await.unwrap().to_vec();
            let header = |at: usize| AppendHeader::decode(&bytes[at..at + size_of::<AppendHeader>()]).ok();
            let starts = (FIRST..bytes.len()).step_by(SEGMENT as usize);
            let newest = starts.max_by_key(|at| header(*at).map_or(0, |h| h.segment_seq.get())).unwrap();
            stopped += u64::from(one);
            for old in [false, true] {
                let mut bytes = bytes.clone();
                let mut first = header(newest).unwrap();
                bytes[newest..newest + 512].fill(0);
                if old {
                    first.segment_seq = 1.into();
                    first.finish(&[]);
                    bytes[newest..newest + size_of::<AppendHeader>()].copy_from_slice(first.as_bytes());
                    again += 1;
                }
                let rig = Rig::open(load(&bytes)).await.unwrap();
                assert!(!rig.report.damage.is_empty(), "the first append at {newest} is lost, old {old}");
            }
        }
        assert!(stopped > 20 && again > 100, "{stopped} {again}");
    });
}

/// A block of a chunk is written once. A frame that says otherwise does not count, and what could have come behind the
/// last frame that does is not taken for all there was (rule E7).
#[test]
fn a_frame_over_written_blocks_of_its_chunk_does_not_count() {
    let write = |lba: u32| Op { extents: vec![(ExtentKind::Data, lba, 4)], fill: 7 + u64::from(lba) };
    for (counter, offset, marked) in [(1, 0, false), (1, 7, true), (0, 50, true)] {
        local(async move {
            let device = MemoryDevice::new(512, 1 << 30);
            create_log(device.clone(), &shape(40)).await.unwrap();
            let rig = Rig::open(device.clone()).await.unwrap();
            let mut chain = Chain::new(ShardId::new(1, 0));
            chain.chunk.counter = 1;
            for i in 0..2 {
                rig.append(Record::Frame(chain.frame(&[write(10 * i)])));
            }
            rig.settle().await;
            let good = rig.engine.digest(chain.shard).await.unwrap();
            let mut other = chain.clone();
            (other.chunk.counter, other.offset) = (counter, offset);
            // It is durable, and does not count.
            rig.append(Record::Frame(other.frame(&[write(100)])));
            if marked {
                rig.append(Record::Mark { shard: chain.shard, change: MarkChange::default(), ticket: 1 });
            }
            rig.settle().await;
            rig.stop().await;
            for _ in 0..2 {
                let rig = Rig::open(device.clone()).await.unwrap();
                rig.engine.check();
                let what = rig.report.damage.iter().map(|d| &d.what[..]).collect::<String>();
                assert!(what.contains("blocks of its chunk that were written before"), "{what}");
                let state = rig.engine.state(chain.shard).unwrap();
                assert!(state.suspect_tail && state.last == chain.name());
                assert_eq!(rig.engine.digest(chain.shard).await.unwrap(), good);
                rig.kill();
            }
            // The frame that is really the next one takes its place.
            let rig = Rig::open(device.clone()).await.unwrap();
            let mut chain = chain.clone();
            rig.append(Record::Frame(chain.frame(&[write(0), write(100)])));
            rig.settle().await;
            rig.engine.committed(chain.shard, Sequence(chain.sequence));
            rig.engine.check();
            rig.stop().await;
            let rig = Rig::open(device.clone()).await.unwrap();
            rig.engine.check();
            assert_eq!(rig.engine.state(chain.shard).unwrap().last, chain.name());
            let found = rig.read_all(chain.shard, BLOCKS).await.unwrap();
            let mut model = Model::new();
            [0, 10, 0, 100].iter().for_each(|lba| write(*lba).apply(&mut model));
            assert_eq!(found, full(&model, BLOCKS));
        });
    }
}

/// A frame that does not count was told to nobody, and the end of the one behind it was told as that of both.
#[test]
fn what_is_refused_is_told_before_what_lies_behind_it() {
    let write = |lba: u32| Op { extents: vec![(ExtentKind::Data, lba, 4)], fill: 7 };
    // Over blocks that are written; or another one at the place of one that is committed.
    for committed in [false, true] {
        local(async move {
            let device = MemoryDevice::new(512, 1 << 30);
            create_log(device.clone(), &shape(40)).await.unwrap();
            let rig = Rig::open(device.clone()).await.unwrap();
            let mut chain = Chain::new(ShardId::new(1, 0));
            rig.append(Record::Frame(chain.frame(&[write(0)])));
            let mut other = chain.clone();
            if committed {
                rig.append(Record::Frame(chain.frame(&[write(10)])));
            }
            rig.settle().await;
            rig.engine.committed(chain.shard, Sequence(chain.sequence));
            if !committed {
                other.offset = 0;
            }
            for lba in [20, 30] {
                rig.engine.append(Record::Frame(other.frame(&[write(lba)])));
            }
            let behind = |d: &Durable| matches!(d, Durable::Frame { sequence, .. } if sequence.0 == 3);
            for _ in 0..1_000_000 {
                if rig.heard.done.borrow().iter().any(behind) {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let done = rig.heard.done.borrow();
            let is_refused = |d: &Durable| matches!(d, Durable::Refused { sequence: Sequence(2), .. });
            let refused = done.iter().position(is_refused);
            assert!(refused < done.iter().position(behind) && refused.is_some(), "committed {committed}: {done:?}");
        });
    }
}

/// A lost mark leaves no gap. If it makes no sense, the tail is suspect.
#[test]
fn a_mark_that_makes_no_sense_leaves_a_suspect_tail() {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        create_log(device.clone(), &shape(40)).await.unwrap();
        let rig = Rig::open(device.clone()).await.unwrap();
        let mut chain = Chain::new(ShardId::new(1, 0));
        let op = Op { extents: vec![(ExtentKind::Data, 0, 1)], fill: 7 };
        rig.append(Record::Frame(chain.frame(&[op])));
        rig.settle().await;
        let appends = || {
            let mut out = Vec::new();
            device.poke(|b| {
                out = (FIRST..b.len()).step_by(512).filter(|at| b[*at..].starts_with(&APPEND_MAGIC)).collect()
            });
            out
        };
        let before: Vec<usize> = appends();
        rig.append(Record::Mark { shard: chain.shard, change: MarkChange::default(), ticket: 1 });
        rig.settle().await;
        rig.kill();
        let at = appends()[before.len()];
        device.poke(|b| {
            let mut header = AppendHeader::decode(&b[at..at + 512]).unwrap();
            let heads = size_of::<AppendHeader>()..header.heads_len.get() as usize;
            let mut all = b[at + heads.start..at + heads.end].to_vec();
            // The version that it names, then its checksum and that of all heads.
            let head = &mut all[header.extra_len.get() as usize..];
            head[offset_of!(FrameHeader, first_version)..][..8].copy_from_slice(&(1u64 << 62).to_le_bytes());
            let crc = crc32c(&head[..size_of::<FrameHeader>() - 4]);
            head[size_of::<FrameHeader>() - 4..size_of::<FrameHeader>()].copy_from_slice(&crc.to_le_bytes());
            header.finish(&all);
            b[at..at + heads.start].copy_from_slice(header.as_bytes());
            b[at + heads.start..at + heads.end].copy_from_slice(&all);
        });
        for _ in 0..2 {
            let rig = Rig::open(device.clone()).await.unwrap();
            assert_eq!(rig.report.damage.len(), 1);
            assert!(rig.engine.state(chain.shard).unwrap().suspect_tail);
            rig.kill();
        }
    });
}

/// No start writes a superblock that the next one can't read.
#[test]
fn a_superblock_at_the_end_of_its_numbers_is_refused_before_it_is_written() {
    for field in [offset_of!(Superblock, revision), offset_of!(Superblock, start)] {
        local(async {
            let device = MemoryDevice::new(512, 1 << 30);
            create_log(device.clone(), &shape(40)).await.unwrap();
            device.poke(|b| {
                for at in SUPERBLOCK_AT.map(|at| at as usize) {
                    b[at + field..][..8].copy_from_slice(&(Superblock::NUMBER_MAX - 1).to_le_bytes());
                    let crc = crc32c(&b[at..at + 252]);
                    b[at + 252..at + 256].copy_from_slice(&crc.to_le_bytes());
                }
            });
            Rig::open(device.clone()).await.unwrap().kill();
            for _ in 0..2 {
                let e = Rig::open(device.clone()).await.err().unwrap();
                assert_eq!(e.kind, ErrorKind::Corrupt);
                assert!(e.text.contains("counted on from"), "{e}");
            }
        });
    }
}
