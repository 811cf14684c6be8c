//! No bytes whatever make a tool or recovery panic: random ones, real images with flips, cuts and exchanged sectors, and
//! images whose structures were forged with right checksums.

use crate::common::{Chain, FOOTER, HEADER, Op, Rig, Rng, SEGMENT, create_log, erased, local, shape};
use freebs_format::crc32c;
use freebs_io::memory::MemoryDevice;
use freebs_lsvd::Record;
use freebs_lsvd::tool::{inspect, rebuild, survey, verify};
use freebs_types::{Error, ErrorKind, ShardId};
use proptest::prelude::*;
use std::cell::RefCell;
use std::sync::OnceLock;

const FIRST: usize = 1 << 20;
const SEG: usize = SEGMENT as usize;

/// A small device with closed segments, trims, zeroes, carries, marks, a view and an attachment.
fn image() -> &'static Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let out = RefCell::new(Vec::new());
        local(async {
            let device = MemoryDevice::new(512, 1 << 30);
            create_log(device.clone(), &shape(16)).await.unwrap();
            let rig = Rig::open(device.clone()).await.unwrap();
            let mut rng = Rng::new(1);
            let mut chains: Vec<Chain> = (1..=2).map(|i| Chain::new(ShardId::new(i, 0))).collect();
            for c in &mut chains {
                rig.append(Record::Frame(c.view_frame(1, 3)));
                rig.append(Record::Frame(c.attach_frame(1)));
            }
            for i in 0..120 {
                let c = &mut chains[rng.below(2) as usize];
                c.committed = c.sequence.saturating_sub(2);
                rig.append(Record::Frame(c.frame(&[Op::random(&mut rng, 60), Op::random(&mut rng, 60)])));
                if i == 60 {
                    rig.append(Record::Mark { shard: c.shard, change: Default::default(), ticket: 1 });
                }
                if rng.chance(60) {
                    rig.settle().await;
                }
            }
            rig.settle().await;
            rig.stop().await;
            device.poke(|b| out.borrow_mut().clone_from(b));
        });
        out.into_inner()
    })
}

fn fine(e: &Error) {
    assert!(matches!(e.kind, ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Invalid), "{e:?}");
}

/// All tools, and a start, on these bytes.
fn all(bytes: &[u8]) {
    local(async {
        let device = MemoryDevice::new(512, 1 << 30);
        device.poke(|b| b.extend_from_slice(bytes));
        let seen = inspect(&erased(&device), &mut ()).await;
        let checked = verify(&erased(&device), &mut ()).await;
        assert_eq!(seen.is_ok(), checked.is_ok());
        survey(&device, &mut ()).await.err().iter().for_each(fine);
        if let (Ok(seen), Ok(checked)) = (&seen, &checked) {
            assert_eq!(seen.recovery, checked.recovery);
            assert_eq!(seen.device, checked.device);
            assert!(checked.damage.len() as u64 <= checked.damage_count);
        }
        device.poke(|b| assert!(b == bytes, "nothing was written"));
        seen.as_ref().err().into_iter().for_each(fine);
        let dry = rebuild(&erased(&device), false, &mut ()).await;
        let done = rebuild(&erased(&device), true, &mut ()).await;
        dry.as_ref().err().into_iter().for_each(fine);
        if let (Ok(dry), Ok(done)) = (&dry, &done) {
            assert_eq!(dry.indexes, done.indexes, "a dry run says what will be done");
            let again = rebuild(&erased(&device), false, &mut ()).await.unwrap();
            let sound = |r: &freebs_lsvd::tool::Rebuild| {
                r.indexes.iter().filter(|i| i.action != freebs_lsvd::tool::Action::Write).count()
            };
            assert_eq!(sound(&again), again.indexes.len(), "what was rebuilt is sound");
        }
        match Rig::open(device).await {
            Ok(rig) => rig.kill(),
            Err(e) => fine(&e),
        }
    });
}

/// Appends of the image: byte on the device.
fn appends() -> &'static Vec<usize> {
    static APPENDS: OnceLock<Vec<usize>> = OnceLock::new();
    APPENDS.get_or_init(|| {
        let bytes = image();
        (FIRST..bytes.len()).step_by(512).filter(|at| bytes[*at..].starts_with(b"FBAP")).collect()
    })
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn seal(bytes: &mut [u8], from: usize, to: usize, crc_at: usize) {
    let crc = crc32c(&bytes[from..to]);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn seal_append(bytes: &mut [u8], at: usize, heads: usize) {
    seal(bytes, at + HEADER, at + heads, at + HEADER - 8);
    seal(bytes, at, at + HEADER - 4, at + HEADER - 4);
}

/// Writes `value` over `len` bytes somewhere in one structure, and makes its checksums right again.
fn forge(bytes: &mut [u8], kind: u8, which: usize, field: usize, len: usize, value: u64) {
    // Where things are is asked of the image as it was, so one forgery does not hide another.
    let (good, appends) = (image(), appends());
    let append = appends[which % appends.len()];
    let (heads, extra) = (word(good, append + 56), word(good, append + 60));
    let footers: Vec<usize> =
        (FIRST + SEG - FOOTER..good.len()).step_by(SEG).filter(|at| good[*at..].starts_with(b"FBIX")).collect();
    let footer = footers[which % footers.len()];
    let (index_at, index_len) = (footer + FOOTER - SEG + word(good, footer + 56), word(good, footer + 60));
    let put = |bytes: &mut [u8], from: usize, room: usize| {
        let at = from + field % room.saturating_sub(len).max(1);
        bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    };
    match kind {
        0 => {
            put(bytes, append + 6, 82);
            seal(bytes, append, append + 92, append + 92);
        }
        1 | 2 => {
            let mut frames = vec![];
            let mut at = append + HEADER + extra;
            while at < append + heads {
                frames.push(at);
                at += word(good, at + 12);
            }
            if frames.is_empty() {
                return;
            }
            let frame = frames[field % frames.len()];
            let body = word(good, frame + 12);
            if kind == 1 {
                put(bytes, frame + 6, 240);
            } else if body > 256 + len {
                put(bytes, frame + 256, body - 256);
                seal(bytes, frame + 256, frame + body, frame + 248);
            }
            seal(bytes, frame, frame + 252, frame + 252);
            seal_append(bytes, append, heads);
        }
        3 => {
            put(bytes, footer + 24, 64);
            seal(bytes, footer, footer + 92, footer + 92);
        }
        4 => {
            // The fixed part of an entry: where its head and data are.
            let mut entries = vec![];
            let mut at = index_at;
            while at < index_at + index_len {
                entries.push(at);
                at += 24 + word(good, at + 24 + 12);
            }
            put(bytes, entries[field % entries.len()], 24);
            seal(bytes, index_at, index_at + index_len, footer + 68);
            seal(bytes, footer, footer + 92, footer + 92);
        }
        5 => {
            for copy in [0, 512 << 10] {
                put(bytes, copy + 12, 90);
                seal(bytes, copy, copy + 252, copy + 252);
            }
        }
        _ => {
            let first = appends.iter().filter(|a| (**a - FIRST).is_multiple_of(SEG)).nth(which % 3);
            let first = *first.unwrap_or(&append);
            let (heads, extra) = (word(good, first + 56), word(good, first + 60));
            put(bytes, first + HEADER, extra);
            seal_append(bytes, first, heads);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(len in 0usize..5_000, seed in any::<u64>(), magic in 0usize..4) {
        let mut rng = Rng::new(seed);
        let mut bytes = vec![0u8; len * 512];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&rng.next().to_le_bytes());
        }
        let words: [&[u8]; 4] = [b"", b"FBSB", b"FBAP", b"FBIX"];
        for at in (0..bytes.len()).step_by(4096) {
            bytes[at..at + words[magic].len()].copy_from_slice(words[magic]);
        }
        all(&bytes);
    }

    #[test]
    fn flips_cuts_and_exchanged_sectors(
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0u8..8), 0..20),
        swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
        ends in prop::collection::vec((any::<prop::sample::Index>(), 0usize..4096), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = image().clone();
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
        }
        for (a, b) in swaps {
            let (a, b) = (a.index(bytes.len() / 512) * 512, b.index(bytes.len() / 512) * 512);
            bytes.copy_within(a..a + 512, b);
        }
        for (append, more) in ends {
            let at = (append.get(appends()) + more).min(bytes.len() - 1);
            bytes[at] ^= 0x55;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(image().len() / 512) * 512);
        }
        all(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn forged_structures(
        forgeries in prop::collection::vec(
            (0u8..7, any::<usize>(), any::<usize>(), 1usize..9, prop_oneof![
                any::<u64>(), Just(u64::MAX), Just(0), Just(u64::from(u32::MAX)), Just(u64::MAX / 2 - 1), 0u64..20,
            ]),
            1..4,
        ),
    ) {
        let mut bytes = image().clone();
        for (kind, which, field, len, value) in forgeries {
            forge(&mut bytes, kind, which, field, len, value);
        }
        all(&bytes);
    }
}

/// A superblock whose start number can't be raised any more: the next start overflowed.
#[test]
fn a_superblock_with_the_highest_numbers_is_refused() {
    let mut bytes = image().clone();
    for (copy, field) in [(0, 80), (512 << 10, 88)] {
        bytes[copy + field..copy + field + 8].fill(0xff);
        seal(&mut bytes, copy, copy + 252, copy + 252);
    }
    all(&bytes);
}
