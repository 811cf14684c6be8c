//! Damage: every sector of everything that lives on a device is damaged, one at a time, in several ways.
//!
//! Whatever changes, no wrong byte is given out, no state is older than promised without a word, and nothing panics.
//! Damage to anything that counts is noticed by opening, reading everything and checking.

use super::live::{Book, Live, Verdict};
use super::story::Story;
use super::{TURNS, full, seeds};
use crate::common::{Rng, SEGMENT, create_log, local, shape};
use freebs_format::disk::{AppendHeader, LiveTable, SEGMENTS_AT, SUPERBLOCK_AT, SegmentFooter};
use freebs_io::Device;
use freebs_io::faults::{CrashDevice, FaultDevice, Rot, RotDevice, Survives};
use freebs_lsvd::Scrubber;
use freebs_types::{ErrorKind, SegmentId, Sequence};
use std::ops::Range;
use std::rc::Rc;

const SECTOR: u64 = 512;
const SHARDS: u64 = 3;
const SEGMENTS: u64 = 10;

/// A device with history, closed in good order.
pub struct Image {
    device: CrashDevice,
    stories: Vec<Story>,
    /// Bytes that count, in order.
    live: Vec<Range<u64>>,
    segments: usize,
    /// Blocks that cleaning moved.
    moved: u64,
}

#[derive(Default, Debug)]
pub struct Tally {
    looks: u64,
    refused: u64,
    on_opening: u64,
    on_reading: u64,
    on_checking: u64,
    on_scrubbing: u64,
    harmless: u64,
    unsaid: u64,
}

pub async fn made(seed: u64, steps: u64) -> Image {
    let mut rng = Rng::new(seed);
    let device = CrashDevice::new(SECTOR as usize, 1 << 27);
    create_log(device.clone(), &shape(SEGMENTS)).await.expect("a device without faults");
    let book = Book::new(SHARDS);
    let mut moved = 0;
    for _ in 0..2 {
        let mut live = Live::open(device.clone(), book.clone()).await.expect("opens");
        live.start();
        live.play(&mut rng, steps / 2, || false).await.expect("plays");
        live.settle().await.expect("settles");
        moved += live.moved();
        live.close().await.expect("closes");
    }
    let bytes = device.read(0, device.len() as usize).await.expect("reads");
    let (live, segments) = live_bytes(&bytes);
    let stories = book.stories.take();
    Image { device, stories, live, segments, moved }
}

/// The bytes that count, by the format alone: superblocks, and the appends, indexes and footers of the segments that
/// the newest live table names; and the number of these.
fn live_bytes(bytes: &[u8]) -> (Vec<Range<u64>>, usize) {
    let mut live: Vec<Range<u64>> = SUPERBLOCK_AT.iter().map(|at| *at..at + 256).collect();
    let segment = |id: u32| &bytes[(SEGMENTS_AT + u64::from(id) * SEGMENT) as usize..][..SEGMENT as usize];
    let count = ((bytes.len() as u64 - SEGMENTS_AT) / SEGMENT) as u32;
    let header = |id: u32, at: usize| {
        let h = AppendHeader::decode(segment(id).get(at..at + size_of::<AppendHeader>())?).ok()?;
        (h.segment.get() == id && h.offset.get() as usize == at).then_some(h)
    };
    let seq = |id: &u32| header(*id, 0).map_or(0, |h| h.segment_seq.get());
    let newest = (0..count).max_by_key(seq).expect("the log has a segment");
    let first = header(newest, 0).expect("the newest segment has an append");
    let table_at = size_of::<AppendHeader>();
    let table = LiveTable { bits: segment(newest)[table_at..table_at + first.extra_len.get() as usize].to_vec() };
    let used: Vec<u32> = (0..count).filter(|id| *id == newest || table.contains(SegmentId(*id))).collect();
    for id in &used {
        let base = SEGMENTS_AT + u64::from(*id) * SEGMENT;
        let tail = SEGMENT as usize - size_of::<SegmentFooter>();
        let footer = SegmentFooter::decode(&segment(*id)[SEGMENT as usize - SECTOR as usize..], SEGMENT).ok();
        let footer = footer.filter(|f| f.segment_seq.get() == seq(id));
        let mut at = 0;
        while let Some(h) = header(*id, at).filter(|h| h.segment_seq.get() == seq(id)) {
            let front = (h.heads_len.get() as usize).next_multiple_of(SECTOR as usize);
            // The last append of all, if it has no frames: without it nothing is lost but the proof of the one before.
            if *id == newest
                && footer.is_none()
                && h.frames.get() == 0
                && header(*id, at + h.total(SECTOR as usize)).is_none()
            {
                break;
            }
            live.push(base + at as u64..base + at as u64 + u64::from(h.heads_len.get()));
            let data = base + (at + front) as u64;
            live.push(data..data + u64::from(h.data_len.get()));
            at += h.total(SECTOR as usize);
        }
        if let Some(f) = footer {
            let index = base + u64::from(f.index_at.get());
            live.push(index..index + u64::from(f.index_len.get()));
            live.push(base + tail as u64..base + SEGMENT);
        }
    }
    live.retain(|r| !r.is_empty());
    live.sort_by_key(|r| r.start);
    (live, used.len())
}

impl Image {
    /// Sectors that hold anything that counts.
    fn sectors(&self) -> Vec<u64> {
        let all = self.live.iter().flat_map(|r| r.start / SECTOR..r.end.div_ceil(SECTOR));
        let mut all: Vec<u64> = all.map(|s| s * SECTOR).collect();
        all.dedup();
        all
    }

    /// A bit of a sector that counts.
    fn bit(&self, sector: u64, rng: &mut Rng) -> u64 {
        let inside = |r: &&Range<u64>| r.start < sector + SECTOR && r.end > sector;
        let ranges: Vec<_> = self.live.iter().filter(inside).collect();
        let r = ranges[rng.below(ranges.len() as u64) as usize];
        let (from, to) = (r.start.max(sector) - sector, r.end.min(sector + SECTOR) - sector);
        8 * from + rng.below(8 * (to - from))
    }

    /// Whether bytes that count differ from what they were, in a sector.
    async fn hurts(&self, other: &CrashDevice, sector: u64) -> bool {
        let mine = self.device.read(sector, SECTOR as usize).await.expect("reads");
        let theirs = other.read(sector, SECTOR as usize).await.expect("reads");
        let part = |r: &Range<u64>| {
            let (from, to) = (r.start.max(sector), r.end.min(sector + SECTOR));
            from < to && {
                let range = (from - sector) as usize..(to - sector) as usize;
                mine[range.clone()] != theirs[range]
            }
        };
        self.live.iter().any(part)
    }

    /// Opens what a device has become, reads everything and checks everything. Whether anything was noticed.
    async fn look(&self, device: impl Device, rng: &mut Rng, tally: &mut Tally) -> Verdict<bool> {
        look(device, self.stories.clone(), rng, tally).await
    }
}

async fn look(device: impl Device, stories: Vec<Story>, rng: &mut Rng, tally: &mut Tally) -> Verdict<bool> {
    tally.looks += 1;
    let live = match Live::open(device, Book::with(stories)).await {
        Ok(live) => live,
        Err(e) if e.kind == ErrorKind::Corrupt => {
            tally.refused += 1;
            return Ok(true);
        }
        Err(e) => return Err(format!("open: {:?}: {e}", e.kind)),
    };
    live.sound()?;
    let opening = !live.report.damage.is_empty();
    let reading = live.nothing_wrong(rng).await? || !frames(&live).await?;
    let checking = !opening && !reading && live.digests().await.is_err();
    tally.on_opening += u64::from(opening);
    tally.on_reading += u64::from(!opening && reading);
    tally.on_checking += u64::from(checking);
    // Shards may have been deleted since the newest live table was written. A segment that it names and that held nothing
    // else is of no shard that is left: no digest asks for it, only who reads everything.
    let scrubbing = !opening && !reading && !checking && scrub(&live).await?;
    tally.on_scrubbing += u64::from(scrubbing);
    let noticed = opening || reading || checking || scrubbing;
    tally.harmless += u64::from(!noticed);
    if noticed && live.engine.events().is_empty() {
        return Err("what was noticed is no event".into());
    }
    Ok(noticed)
}

/// Reads every closed segment; whether anything is wrong there.
async fn scrub(live: &Live) -> Verdict<bool> {
    let mut scrubber = Scrubber::new(live.engine.clone());
    loop {
        let step = scrubber.step(u64::MAX).await.map_err(|e| format!("scrub: {e}"))?;
        if !step.findings.is_empty() || step.pass_complete {
            return Ok(!step.findings.is_empty());
        }
    }
}

/// Reads all frames back. Those that come are the ones that went in; whether all came.
async fn frames(live: &Live) -> Verdict<bool> {
    let stories = live.book.stories.borrow().clone();
    let mut all = true;
    for story in &stories {
        let Some(st) = live.engine.state(story.shard) else { continue };
        let mut next = st.first_kept;
        while next <= st.last.sequence {
            let frames = match live.engine.frames(story.shard, next, 1 << 20).await {
                Ok(frames) => frames,
                Err(e) if e.kind == ErrorKind::Corrupt || e.kind == ErrorKind::NotFound => {
                    all = false;
                    next = Sequence(next.0 + 1);
                    continue;
                }
                Err(e) => return Err(format!("frames: {e}")),
            };
            for f in frames {
                let known = |s: &&Rc<super::story::Step>| s.chain.name().hid == f.header().hid() && s.present;
                if f.head.seq() != next || !story.steps.iter().any(|s| known(&s)) {
                    return Err(format!("shard {}, frame {next}: not what was sent", story.shard));
                }
                next = Sequence(next.0 + 1);
            }
        }
    }
    Ok(all)
}

/// Damages one sector; whether that was noticed, or made no difference to anything that counts.
async fn damaged(image: &Image, sector: u64, rot: Rot, rng: &mut Rng, tally: &mut Tally) -> Verdict<bool> {
    let device = image.device.copy();
    let changed = RotDevice::new(device.clone()).rot(sector, rot).await.map_err(|e| e.to_string())?;
    if !changed || !image.hurts(&device, sector).await {
        return Ok(true);
    }
    image.look(device, rng, tally).await
}

pub async fn sweep(image: &Image, part: u64, parts: u64, tally: &mut Tally) -> Verdict {
    let mut rng = Rng::new(part);
    let sectors = image.sectors();
    for sector in sectors.iter().copied().skip(part as usize).step_by(parts as usize) {
        let kinds = [Rot::Flip(image.bit(sector, &mut rng)), Rot::Zero, Rot::Garbage(rng.next())];
        for rot in kinds {
            let done = damaged(image, sector, rot, &mut rng, tally).await;
            let place = format!("{rot:?} of the sector at {sector} ({})", sector.saturating_sub(SEGMENTS_AT) % SEGMENT);
            match done {
                Ok(true) => {}
                Ok(false) => return Err(format!("{place} was not noticed")),
                Err(e) => return Err(format!("{place}: {e}")),
            }
        }
    }
    Ok(())
}

fn part(part: u64, parts: u64) {
    for seed in seeds(1, 12, 0, 1) {
        local(async {
            let mut tally = Tally::default();
            let image = made(seed, 110).await;
            assert!(image.segments >= 3, "several segments: {}", image.segments);
            assert!(seed > 0 || image.moved > 50, "{} blocks were moved", image.moved);
            if let Err(e) = sweep(&image, part, parts, &mut tally).await {
                panic!("seed {seed}: {e}");
            }
            println!(
                "measured: corruption sweep, seed {seed}, part {part}: {} of {} sectors in {} segments, {} blocks \
                 moved, {tally:?}",
                image.sectors().len() as u64 / parts,
                image.sectors().len(),
                image.segments,
                image.moved
            );
            assert_eq!(tally.harmless, 0);
        });
    }
}

#[test]
fn damage_to_even_sectors_is_noticed() {
    part(0, 2);
}

#[test]
fn damage_to_odd_sectors_is_noticed() {
    part(1, 2);
}

#[test]
fn swapped_sectors_and_copies_of_others_are_noticed() {
    local(async {
        let (image, mut rng, mut tally) = (made(50, 80).await, Rng::new(50), Tally::default());
        let sectors = image.sectors();
        let any = |rng: &mut Rng| sectors[rng.below(sectors.len() as u64) as usize];
        for i in 0..if full() { 20_000 } else { 1500 } {
            let (a, b) = (any(&mut rng), any(&mut rng));
            let device = image.device.copy();
            let rot = RotDevice::new(device.clone());
            match i % 2 {
                0 => rot.swap(a, b).await.unwrap(),
                _ => rot.rot(a, Rot::CopyOf(b)).await.unwrap(),
            };
            if image.hurts(&device, a).await || image.hurts(&device, b).await {
                match image.look(device, &mut rng, &mut tally).await {
                    Ok(noticed) => assert!(noticed, "sectors at {a} and {b}, {i}"),
                    Err(e) => panic!("sectors at {a} and {b}, {i}: {e}"),
                }
            }
        }
        println!("measured: swapped sectors: {tally:?}");
        assert!(tally.looks > 1000, "{tally:?}");
    });
}

#[test]
fn sectors_that_can_not_be_read_are_noticed() {
    local(async {
        let (image, mut rng, mut tally) = (made(51, 90).await, Rng::new(51), Tally::default());
        let step = if full() { 1 } else { 5 };
        for sector in image.sectors().into_iter().step_by(step) {
            let device = FaultDevice::new(image.device.copy());
            device.spoil(sector);
            match image.look(device, &mut rng, &mut tally).await {
                Ok(noticed) => assert!(noticed, "the sector at {sector} ({})", (sector - SEGMENTS_AT) % SEGMENT),
                Err(e) => panic!("the sector at {sector}: {e}"),
            }
        }
        println!("measured: unreadable sectors: {tally:?}");
    });
}

/// Where the appends of the open segment lie, and how many bytes of heads they have.
async fn open_appends(image: &Image) -> Vec<(u64, u64)> {
    let bytes = image.device.read(0, image.device.len() as usize).await.expect("reads");
    let header = |at: u64| AppendHeader::decode(bytes.get(at as usize..)?).ok();
    let starts = (SEGMENTS_AT..bytes.len() as u64).step_by(SEGMENT as usize);
    let newest = starts.max_by_key(|at| header(*at).map_or(0, |h| h.segment_seq.get())).expect("a segment");
    let seq = header(newest).expect("the newest segment has an append").segment_seq;
    let (mut out, mut at) = (Vec::new(), newest);
    while let Some(h) = header(at).filter(|h| h.segment_seq == seq) {
        out.push((at, u64::from(h.heads_len.get())));
        at += h.total(SECTOR as usize) as u64;
    }
    out
}

/// The heads of one append are damaged: that is told, and nothing is lost. Neither is it when the log has gone on, was
/// cleaned and had a checkpoint, at several starts.
async fn life_goes_on(image: &Image, hurt: &CrashDevice, seed: u64) -> Verdict {
    let (mut rng, book) = (Rng::new(seed), Book::with(image.stories.clone()));
    for start in 0..3 {
        let at = |e: String| format!("start {start}: {e}");
        let mut live = Live::open(hurt.clone(), book.clone()).await.map_err(|e| at(e.to_string()))?;
        if start == 0 && live.report.damage.is_empty() {
            return Err("nothing was told".into());
        }
        live.nothing_lost(|| false).await.map_err(at)?;
        frames(&live).await.map_err(at)?;
        live.start();
        if start > 0 {
            live.play(&mut rng, 50, || false).await.map_err(at)?;
            live.engine.want_checkpoint();
        }
        live.settle().await.map_err(at)?;
        live.close().await.map_err(at)?;
    }
    Ok(())
}

#[test]
fn damaged_heads_of_the_open_segment_cost_nothing() {
    let (mut looks, mut moved) = (0, 0);
    for seed in seeds(4, 60, 0, 1) {
        local(async {
            let image = made(seed + 300, 110).await;
            moved += image.moved;
            // The last one is the proof, of which nothing tells.
            let open = open_appends(&image).await;
            for (at, len) in &open[..open.len() - 1] {
                let sectors = at / SECTOR..(at + len).div_ceil(SECTOR);
                for sector in sectors.map(|s| s * SECTOR) {
                    let rots = [Rot::Zero, Rot::Garbage(sector), Rot::Flip(Rng::new(sector).below(8 * SECTOR))];
                    for rot in rots.into_iter().take(if full() { 3 } else { 1 + (looks % 2) as usize }) {
                        let device = image.device.copy();
                        let changed = RotDevice::new(device.clone()).rot(sector, rot).await.unwrap();
                        if !changed || !image.hurts(&device, sector).await {
                            continue;
                        }
                        looks += 1;
                        if let Err(e) = life_goes_on(&image, &device, looks).await {
                            panic!("seed {seed}, append at {at:x}, {rot:?} of the sector at {sector:x}: {e}");
                        }
                    }
                }
            }
        });
    }
    println!("measured: {looks} damaged sectors of heads in open segments, {moved} blocks were moved");
    assert!(looks > 50 && moved > 0, "{looks} {moved}");
}

/// One run in which a write goes astray; what the log says of itself then, and after a restart.
async fn astray(seed: u64, n: u64, lost: bool, tally: &mut Tally) -> Verdict<bool> {
    let mut rng = Rng::new(seed);
    let disk = CrashDevice::new(SECTOR as usize, 1 << 27);
    create_log(disk.clone(), &shape(SEGMENTS)).await.map_err(|e| e.to_string())?;
    disk.pace(seed, TURNS);
    let device = RotDevice::new(disk.clone());
    match lost {
        true => device.lose_write(n),
        false => device.misdirect_write(n, SEGMENTS_AT + Rng::new(n).below(2 * SEGMENT / SECTOR) * SECTOR),
    }
    let book = Book::new(SHARDS);
    let hit = || device.hits() > 0;
    for _ in 0..2 {
        let mut live = match Live::open(device.clone(), book.clone()).await {
            Ok(live) => live,
            Err(e) if hit() && e.kind == ErrorKind::Corrupt => return Ok(true),
            Err(e) => return Err(format!("open: {e}")),
        };
        if live.nothing_wrong(&mut rng).await? && !hit() {
            return Err("damage where there is none".into());
        }
        if live.take_stock(|| false).await.is_err() && hit() {
            break;
        }
        live.start();
        live.play(&mut rng, 45, hit).await?;
        live.settle().await?;
        live.close().await?;
    }
    if !hit() {
        return Ok(false);
    }
    let stories = book.stories.borrow().clone();
    look(disk, stories, &mut rng, tally).await.map(|_| true)
}

async fn all_astray(seed: u64, lost: bool, tally: &mut Tally) -> Verdict {
    for n in 0.. {
        match astray(seed, n, lost, tally).await {
            Ok(true) => {}
            Ok(false) => break,
            // A proof (an append without frames) that strays into the very append that it was to prove leaves what a
            // power cut leaves: an unfinished end, and no word of a later one.
            Err(e) if !lost && e.contains("nothing is said") => tally.unsaid += 1,
            Err(e) => return Err(format!("write {n} of seed {seed}, lost {lost}: {e}")),
        }
    }
    Ok(())
}

#[test]
fn lost_and_misdirected_writes_never_give_wrong_data() {
    let mut tally = Tally::default();
    for seed in 0..if full() { 200 } else { 9 } {
        local(async {
            for lost in [true, false] {
                if let Err(e) = all_astray(seed, lost, &mut tally).await {
                    panic!("{e}");
                }
            }
        });
    }
    println!("measured: lost and misdirected writes: {tally:?}");
    assert!(tally.looks > 500 && tally.unsaid * 100 < tally.looks, "{tally:?}");
    assert!(tally.on_opening + tally.on_reading + tally.on_checking > tally.looks / 2, "{tally:?}");
}

/// The sweep must be able to fail. A device that went back as a whole to an earlier moment has no damage at all: only
/// the comparison with what was promised shows it. And who only opens and reads does not notice all damage.
#[test]
fn what_no_checksum_shows_is_found_by_comparison() {
    local(async {
        let mut rng = Rng::new(7);
        let device = CrashDevice::new(SECTOR as usize, 1 << 27);
        create_log(device.clone(), &shape(SEGMENTS)).await.unwrap();
        let book = Book::new(SHARDS);
        let mut live = Live::open(device.clone(), book.clone()).await.unwrap();
        live.start();
        live.play(&mut rng, 30, || false).await.unwrap();
        live.settle().await.unwrap();
        let before = device.cut().image(Survives::Everything);
        live.play(&mut rng, 30, || false).await.unwrap();
        live.settle().await.unwrap();
        let stories = book.stories.borrow().clone();
        let error = look(before, stories, &mut rng, &mut Tally::default()).await.unwrap_err();
        assert!(error.contains("nothing is said"), "{error}");

        let (image, mut unseen) = (made(52, 90).await, 0);
        for sector in image.sectors().into_iter().step_by(40) {
            let device = image.device.copy();
            RotDevice::new(device.clone()).rot(sector, Rot::Garbage(sector)).await.unwrap();
            let Ok(live) = Live::open(device, Book::with(image.stories.clone())).await else { continue };
            unseen += u64::from(!live.nothing_wrong(&mut rng).await.unwrap());
        }
        assert!(unseen > 5, "{unseen} damaged sectors are not noticed without the check");
    });
}
