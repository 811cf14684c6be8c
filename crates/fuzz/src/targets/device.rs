//! An engine's start, and the tools, on a device with forged structures.

use super::image::{BLOCKS, expect, forged, image, local};
use crate::cow::CowDevice;
use crate::input::Input;
use crate::signal;
use freebs_format::block_crc;
use freebs_io::Device;
use freebs_lsvd::tool::{inspect, rebuild, survey, verify};
use freebs_lsvd::{Engine, MarkChange, Options, Record};
use freebs_types::{BLOCK, BlockRange, Error, ErrorKind, Sequence};

pub const WORDS: &[&[u8]] = &[
    &[0xff; 8],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    &[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0],
    &[0; 8],
    &[1, 0, 0, 0, 0, 0, 0, 0],
];

/// Shards that are looked at, and turns that a writer gets.
const SHARDS: usize = 4;
const TURNS: usize = 50;

fn fine(e: &Error) {
    assert!(!matches!(e.kind, ErrorKind::Bug), "damage is no bug of the program: {e:?}");
}

/// All counts are always right. Blocks that maps name are live where one source tells of both, the log. Maps, places and
/// live tables that come of different ones are each believed for their checksums, and may be forged to contradict each
/// other; no start reads everything to find out, but a read does.
fn in_itself_right(engine: &Engine<CowDevice>, checkpoint: bool) {
    if checkpoint { engine.check_counts() } else { engine.check() }
}

/// True for a start that has no number left, because one was forged that is close to the last.
pub(super) fn is_worn(e: &Error) -> bool {
    e.text.contains("numbers that can't be counted on from")
}

/// Results of a start, and of reads behind it: what every start is to find. That is also which damage the log has, and that
/// tails are suspect (rule E7); but not what was wrong with superblock and checkpoints, for a start writes these anew.
async fn found(device: &CowDevice, options: Options) -> Result<(Engine<CowDevice>, bool, Vec<String>), Error> {
    let (engine, report) = Engine::open_with(device.clone(), &expect(), options).await?;
    signal::saw("shards", report.shards as u64);
    signal::saw("checkpoint", report.checkpoint);
    signal::saw("torn", report.torn_bytes);
    for d in &report.damage {
        signal::ended::<()>("damage", &Err(Error::corrupt(d.what.clone())));
    }
    in_itself_right(&engine, report.checkpoint > 0);
    let mut said: Vec<String> =
        report.damage.iter().filter(|d| d.segment.is_some()).map(|d| format!("{d:?}")).collect();
    for shard in engine.shards().into_iter().take(SHARDS) {
        let state = engine.state(shard).expect("it is in the list");
        said.push(format!("{:?} {:?}", engine.tip(shard), engine.promised(shard)));
        said.push(format!("holes {:?}, suspect {}", state.holes, state.suspect_tail));
        let range = BlockRange::new(0, BLOCKS);
        let read = engine.read(shard, range).await;
        signal::ended("read", &read);
        if let Ok(read) = &read {
            let blocks: Vec<&[u8]> = read.data.iter().flat_map(|d| d.chunks_exact(BLOCK)).collect();
            assert_eq!(read.pieces.iter().map(|p| p.blocks).sum::<u32>(), BLOCKS);
            assert_eq!(blocks.len(), read.crcs.len());
            for (block, crc) in blocks.iter().zip(&read.crcs) {
                assert_eq!(block_crc(block), *crc, "what is served was checked");
            }
            assert_eq!(engine.block_status(shard, range).await.as_ref(), Ok(&read.pieces));
        }
        read.as_ref().err().into_iter().for_each(fine);
        let content = engine.content(shard).await;
        signal::ended("content", &content);
        content.as_ref().err().into_iter().for_each(fine);
        said.push(format!("{content:?}").chars().take(200).collect());
        for at in [state.last.sequence, Sequence(1)] {
            let frame = engine.frame(shard, at).await;
            signal::ended("a frame of the log", &frame);
            if let Ok(frame) = frame {
                assert!(frame.head.seq() == at && frame.head.shard() == shard);
                super::frames::checked_frame(&frame);
            }
        }
    }
    Ok((engine, report.checkpoint > 0, said))
}

/// Every closed segment of the shards is read. That costs the most, so it is done once.
async fn read_all(engine: &Engine<CowDevice>) {
    for shard in engine.shards().into_iter().take(SHARDS) {
        let checked = engine.check_segments(shard).await;
        signal::ended("check", &checked);
        checked.err().iter().for_each(fine);
    }
}

/// A writer gets some turns, with a mark for each shard to write.
async fn written(engine: &Engine<CowDevice>, checkpoint: bool) {
    for shard in engine.shards().into_iter().take(SHARDS) {
        engine.append(Record::Mark { shard, change: MarkChange::default(), ticket: 1 });
    }
    let writer = engine.clone();
    let task = tokio::task::spawn_local(async move { writer.run().await });
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
    }
    in_itself_right(engine, checkpoint);
    task.abort();
    if let Err(e) = task.await
        && e.is_panic()
    {
        std::panic::resume_unwind(e.into_panic());
    }
}

/// Opens, looks, opens again, writes, and opens once more.
pub fn open(data: &[u8]) {
    let input = Input::of(data);
    let image = image(input.choice & 1 == 1);
    let device = forged(image, input.rest);
    // With memory for everything, or with none.
    let options = if input.choice & 2 == 0 { image.options() } else { Options::of_workers(1) };
    local(async {
        let first = found(&device, options).await;
        signal::ended("open", &first.as_ref().map(|_| ()).map_err(Clone::clone));
        let (engine, _, said) = match first {
            Ok(found) => found,
            Err(e) => return fine(&e),
        };
        read_all(&engine).await;
        drop(engine);
        let (engine, checkpoint, again) = match found(&device, options).await {
            Err(e) if is_worn(&e) => return,
            second => second.expect("what opened opens again"),
        };
        assert_eq!(again, said, "a second start finds the same");
        written(&engine, checkpoint).await;
        drop(engine);
        match found(&device, options).await {
            Ok(_) => {}
            Err(e) if is_worn(&e) => {}
            Err(e) => panic!("what opened and was written to opens again: {e}"),
        }
    });
}

/// The tools on the same.
pub fn tools(data: &[u8]) {
    let input = Input::of(data);
    let image = image(input.choice & 1 == 1);
    let device = forged(image, input.rest);
    let before = device.fingerprint();
    local(async {
        let seen = inspect(&device, &mut ()).await;
        let checked = verify(&device, &mut ()).await;
        let surveyed = survey(&device, &mut ()).await;
        let dry = rebuild(&device, false, &mut ()).await;
        signal::ended("inspect", &seen);
        signal::ended("survey", &surveyed);
        signal::ended("rebuild", &dry);
        assert_eq!(seen.is_ok(), checked.is_ok());
        if let (Ok(seen), Ok(checked)) = (&seen, &checked) {
            assert_eq!(seen.recovery, checked.recovery);
            assert_eq!(seen.device, checked.device);
            assert!(checked.damage.len() as u64 <= checked.damage_count);
            for d in &checked.damage {
                signal::saw(d.kind.name(), 0);
            }
        }
        seen.as_ref().err().into_iter().for_each(fine);
        surveyed.as_ref().err().into_iter().for_each(fine);
        dry.as_ref().err().into_iter().for_each(fine);
        assert!(device.fingerprint() == before && device.len() <= super::image::LIMIT, "nothing was written");
    });
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    use super::image::edit;
    for target in ["device", "device-tools"] {
        for spilled in [0, 1] {
            out.add(target, format!("whole-{spilled}"), Input::bytes(false, 0, spilled, &[]));
            for what in 0..14 {
                let edits: Vec<u8> =
                    (0..2).flat_map(|i| edit(what, 7, 3 + i * 7, 40 + u32::from(i) * 600, 5)).collect();
                out.add(target, format!("edit-{what}-{spilled}"), Input::bytes(false, 0, spilled, &edits));
            }
        }
    }
}
