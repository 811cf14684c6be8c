//! What the device tools say, for people.

use super::json::{
    Blocks, Chunk, Damage, Device, Finding, Frame, Inspection, Loss, Losses, Rebuild, Segment, Sequences, Shard,
    Verification,
};
use crate::cli::output::table;
use freebs_control::rules::format_size;
use std::fmt::Write;

/// Damaged places and ranges that are shown; `--json` has more.
const ROWS_MAX: usize = 50;
const RANGES_MAX: usize = 8;

pub const FRAME_HEADER: &str = "SEGMENT       BYTE    APPEND  KIND    SHARD         VIEW     SEQUENCE      VERSION  \
                                UPDATES     DATA  CHUNK         STATE";

pub fn frame(f: &Frame) -> String {
    let state = match (f.counts, f.repair) {
        (true, _) if f.branch => "branch",
        (true, true) => "repair",
        (true, false) => "counts",
        (false, _) => "superseded",
    };
    format!(
        "{:>7} {:>10} {:>9}  {:<7} {:<10} {:>7} {:>12} {:>12}  {:>7} {:>8}  {:<13} {state}",
        f.segment,
        f.head_at,
        f.append,
        f.kind,
        f.shard,
        f.view,
        f.sequence,
        f.first_version,
        f.updates,
        format_size(u64::from(f.data_bytes)),
        f.chunk
    )
}

fn percent(part: u64, of: u64) -> String {
    match of {
        0 => "-".into(),
        _ => format!("{}%", u128::from(part) * 100 / u128::from(of)),
    }
}

fn header(d: &Device) -> String {
    let mut text = String::new();
    if d.guessed {
        let _ = writeln!(
            text,
            "both superblocks are lost: the shape is guessed from the log; node, worker, limit and start are not known"
        );
    } else {
        let _ = writeln!(
            text,
            "device {} of node {}, worker {} of {}, cluster {}",
            d.device, d.node, d.worker, d.workers, d.cluster
        );
    }
    let _ = writeln!(
        text,
        "{} in {} segments of {} ({} used, {} live); it may grow to {}; sectors of {}; started {} times",
        format_size(d.bytes),
        d.segments,
        format_size(d.segment_bytes),
        d.used_segments,
        format_size(d.live_bytes),
        if d.size_limit == 0 { "-".into() } else { format_size(d.size_limit) },
        d.sector,
        d.start
    );
    for (i, c) in d.superblocks.iter().enumerate() {
        if let Some(e) = &c.error {
            let _ = writeln!(text, "superblock {} at byte {}: {e}", i + 1, c.byte);
        }
    }
    if d.torn_bytes > 0 {
        let _ = writeln!(
            text,
            "{} bytes of an unfinished append at the end of the log are left out; nobody was told that they are durable",
            d.torn_bytes
        );
    }
    text
}

fn recovery(list: &[Finding]) -> String {
    let mut text = String::new();
    if !list.is_empty() {
        text.push_str("\nthe next start of the node will report:\n");
    }
    for f in list.iter().take(ROWS_MAX) {
        let place = f.segment.map_or_else(|| "superblock".to_owned(), |s| format!("segment {s}"));
        let _ = writeln!(text, "  {place}, byte {}: {}", f.offset, f.what);
    }
    more(&mut text, list.len() as u64);
    text
}

fn more(text: &mut String, count: u64) {
    if let Some(n) = count.checked_sub(ROWS_MAX as u64).filter(|n| *n > 0) {
        let _ = writeln!(text, "  … and {n} more; --json lists them");
    }
}

pub fn inspection(i: &Inspection) -> String {
    let mut text = header(&i.device);
    text.push('\n');
    if i.shards.is_empty() {
        text.push_str("no shard\n");
    } else {
        let names = ["SHARD", "VIEW", "SEQUENCE", "VERSION", "FRAMES", "DATA", "LIVE", "RATIO", "DAMAGE"];
        text.push_str(&table(&names, &names[1..8], i.shards.iter().map(shard_row).collect()));
    }
    for chunks in i.shards.iter().filter_map(|s| s.chunks.as_ref()) {
        let names = ["CHUNK", "SEGMENTS", "DATA", "LIVE", "RATIO"];
        text.push('\n');
        text.push_str(&table(&names, &names[1..], chunks.iter().map(chunk_row).collect()));
    }
    if let Some(segments) = &i.segments {
        let names = ["SEGMENT", "STATE", "NUMBER", "INDEX", "APPENDS", "FRAMES", "SHARDS", "DATA", "LIVE", "RATIO"];
        let right = ["SEGMENT", "NUMBER", "APPENDS", "FRAMES", "SHARDS", "DATA", "LIVE", "RATIO"];
        text.push('\n');
        text.push_str(&table(&names, &right, segments.iter().map(segment_row).collect()));
    }
    text.push_str(&recovery(&i.recovery));
    text
}

fn shard_row(s: &Shard) -> Vec<String> {
    let damage = match (s.lost_sequences.is_empty(), s.suspect_tail) {
        (true, false) => s.absent_sequences.as_ref().map_or("-".to_owned(), |a| format!("began behind frame {}", a.to)),
        (true, true) => "tail in doubt".to_owned(),
        (false, _) => format!("frames lost: {}", sequences(&s.lost_sequences)),
    };
    vec![
        s.shard.clone(),
        s.view.to_string(),
        s.sequence.to_string(),
        s.version.to_string(),
        s.frames.to_string(),
        format_size(s.data_bytes),
        format_size(s.live_bytes),
        percent(s.live_bytes, s.data_bytes),
        damage,
    ]
}

fn chunk_row(c: &Chunk) -> Vec<String> {
    vec![
        c.chunk.clone(),
        c.segments.to_string(),
        format_size(c.bytes),
        format_size(c.live_bytes),
        percent(c.live_bytes, c.bytes),
    ]
}

fn segment_row(s: &Segment) -> Vec<String> {
    let appends = if s.last_append == 0 { "-".into() } else { format!("{}-{}", s.first_append, s.last_append) };
    let index = match (s.state, s.indexed) {
        (_, true) => "yes",
        ("closed", false) => "NO",
        _ => "-",
    };
    vec![
        s.segment.to_string(),
        s.state.into(),
        if s.number == 0 { "-".into() } else { s.number.to_string() },
        index.into(),
        appends,
        s.frames.to_string(),
        s.shards.to_string(),
        format_size(s.data_bytes),
        format_size(s.live_bytes),
        percent(s.live_bytes, s.data_bytes),
    ]
}

fn sequences(list: &[Sequences]) -> String {
    let shown = list.iter().take(RANGES_MAX).map(|s| match s.from == s.to {
        true => s.from.to_string(),
        false => format!("{}-{}", s.from, s.to),
    });
    let dots = (list.len() > RANGES_MAX).then(|| "…".to_owned());
    shown.chain(dots).collect::<Vec<_>>().join(", ")
}

fn blocks(list: &[Blocks]) -> String {
    let shown = list.iter().take(RANGES_MAX).map(|b| match b.count {
        1 => b.start.to_string(),
        n => format!("{}-{}", b.start, u64::from(b.start) + u64::from(n) - 1),
    });
    let dots = (list.len() > RANGES_MAX).then(|| "…".to_owned());
    shown.chain(dots).collect::<Vec<_>>().join(", ")
}

fn damage_row(d: &Damage) -> Vec<String> {
    let dash = || "-".to_owned();
    vec![
        d.segment.map_or_else(dash, |s| s.to_string()),
        d.offset.to_string(),
        d.kind.into(),
        d.shard.clone().unwrap_or_else(dash),
        d.sequence.map_or_else(dash, |s| s.to_string()),
        if d.blocks.is_empty() { dash() } else { blocks(&d.blocks) },
        if d.lost { "yes" } else { "no" }.into(),
        d.what.clone(),
    ]
}

fn loss(l: &Loss) -> String {
    let mut parts = Vec::new();
    if !l.sequences.is_empty() {
        parts.push(format!("frames {}", sequences(&l.sequences)));
    }
    if l.suspect_tail {
        parts.push("perhaps frames behind the last one".to_owned());
    }
    if l.block_count > 0 {
        parts.push(format!("{} block(s): {}", l.block_count, blocks(&l.blocks)));
    }
    if l.doubtful_blocks > 0 {
        parts.push(format!("{} older block(s) that lost frames may have written anew", l.doubtful_blocks));
    }
    format!("  shard {}: {}\n", l.shard, parts.join("; "))
}

pub fn verification(v: &Verification) -> String {
    let (c, d) = (&v.checked, &v.device);
    let mut text = header(d);
    let _ = writeln!(
        text,
        "read {} segments, {} indexes, {} appends, {} frames ({} held against the frame before), {} blocks ({} live)",
        c.segments, c.indexes, c.appends, c.frames, c.links, c.blocks, c.live_blocks
    );
    if v.sound {
        let _ = writeln!(text, "{}: sound", d.path);
        return text;
    }
    if !v.damage.is_empty() {
        text.push('\n');
        let names = ["SEGMENT", "BYTE", "KIND", "SHARD", "SEQUENCE", "BLOCKS", "LOST", "WHAT"];
        let rows = v.damage.iter().take(ROWS_MAX).map(damage_row).collect();
        text.push_str(&table(&names, &["SEGMENT", "BYTE", "SEQUENCE"], rows));
        more(&mut text, v.damage_count);
    }
    text.push('\n');
    if v.losses.is_empty() && v.damage.iter().all(|x| !x.lost) {
        text.push_str("nothing is lost: the same is said elsewhere on the device, or nothing names it\n");
    } else {
        text.push_str("what can't be had from this device any more:\n");
        v.losses.iter().for_each(|l| text.push_str(&loss(l)));
        if v.losses.is_empty() {
            text.push_str("  only what the lines above name; no shard misses a frame or a block\n");
        }
    }
    text.push_str(&recovery(&v.recovery));
    let _ = writeln!(text, "\n{}: damaged", d.path);
    text
}

pub fn rebuild(r: &Rebuild) -> String {
    let mut text = header(&r.device);
    let wanted = r.indexes.iter().filter(|i| i.action == "write").count();
    let kept = r.indexes.iter().filter(|i| i.action == "keep").count();
    let _ = writeln!(text, "{} closed segments, {kept} with a sound index", r.indexes.len());
    let others: Vec<_> = r.indexes.iter().filter(|i| i.action != "keep").collect();
    if !others.is_empty() {
        let rows = others.iter().map(|i| {
            let action = match i.action {
                "write" if r.written => "written".to_owned(),
                "write" => "would be written".to_owned(),
                _ => format!("left: {}", i.why.as_deref().unwrap_or("-")),
            };
            vec![i.segment.to_string(), i.number.to_string(), i.found.into(), i.frames.to_string(), action]
        });
        text.push('\n');
        let names = ["SEGMENT", "NUMBER", "INDEX", "FRAMES", "ACTION"];
        text.push_str(&table(&names, &["SEGMENT", "NUMBER", "FRAMES"], rows.take(ROWS_MAX).collect()));
        more(&mut text, others.len() as u64);
    }
    let short =
        |d: &Option<super::json::Digest>| d.as_ref().map_or_else(|| "-".to_owned(), |d| d.state[..16].to_owned());
    let rows = r.shards.iter().map(|s| {
        let of = s.after.as_ref().or(s.before.as_ref());
        vec![
            s.shard.clone(),
            of.map_or_else(|| "-".to_owned(), |d| d.version.to_string()),
            short(&s.before),
            short(&s.after),
            if s.same { "yes" } else { "NO" }.into(),
        ]
    });
    if !r.shards.is_empty() {
        text.push('\n');
        text.push_str(&table(&["SHARD", "VERSION", "BEFORE", "FROM THE LOG", "SAME"], &["VERSION"], rows.collect()));
    }
    text.push_str(&recovery(&r.recovery));
    text.push('\n');
    match (wanted, r.written) {
        (0, _) => text.push_str("nothing to write\n"),
        (n, true) => _ = writeln!(text, "{n} index(es) written"),
        (n, false) => _ = writeln!(text, "nothing was written; with --write {n} index(es) will be"),
    }
    text
}

pub fn losses(l: &Losses) -> String {
    let mut text = header(&l.device);
    for s in &l.lost {
        let _ = writeln!(text, "shard {}, here up to version {}: {}", s.shard, s.version, s.what);
    }
    text.push_str(&recovery(&l.recovery));
    text.push('\n');
    text.push_str(match (l.lost.is_empty(), l.accepted) {
        (true, _) => "nothing is lost\n",
        (false, true) => "that is taken for lost; the rest can be used\n",
        (false, false) => {
            "nothing was changed. If a shard has members on other nodes, start this one: it gets from them what is lost. \
             If this is the only copy, --accept-loss goes on without it\n"
        }
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::device::json::{Checked, Copy};

    fn device() -> Device {
        Device {
            path: "log".into(),
            cluster: "c".into(),
            device: "d".into(),
            node: 3,
            worker: 0,
            workers: 1,
            start: 2,
            created_ns: 0,
            sector: 4096,
            segment_bytes: 16 << 20,
            size_limit: 20 << 30,
            bytes: 49 << 20,
            segments: 3,
            used_segments: 2,
            live_bytes: 8 << 20,
            torn_bytes: 0,
            guessed: false,
            superblocks: vec![Copy { byte: 0, error: Some("it is bad".into()), revision: 0, start: 0 }],
        }
    }

    #[test]
    fn a_damaged_device_in_words() {
        let v = Verification {
            sound: false,
            device: device(),
            checked: Checked { segments: 2, indexes: 1, appends: 9, frames: 8, links: 7, blocks: 6, live_blocks: 5 },
            damage: vec![Damage {
                kind: "data",
                segment: Some(1),
                offset: 8192,
                byte: 17_833_984,
                bytes: 8192,
                shard: Some("1.0".into()),
                sequence: Some(12),
                blocks: vec![Blocks { start: 5, count: 2 }],
                lost: true,
                what: "bad".into(),
            }],
            damage_count: 1,
            losses: vec![Loss {
                shard: "1.0".into(),
                sequences: vec![Sequences { from: 3, to: 3 }, Sequences { from: 7, to: 9 }],
                suspect_tail: true,
                blocks: vec![Blocks { start: 5, count: 2 }],
                block_count: 2,
                doubtful_blocks: 4,
            }],
            recovery: vec![Finding { segment: Some(1), offset: 1, what: "gone".into() }],
        };
        let want = "\
device d of node 3, worker 0 of 1, cluster c
49M in 3 segments of 16M (2 used, 8M live); it may grow to 20G; sectors of 4096; started 2 times
superblock 1 at byte 0: it is bad
read 2 segments, 1 indexes, 9 appends, 8 frames (7 held against the frame before), 6 blocks (5 live)

SEGMENT  BYTE  KIND  SHARD  SEQUENCE  BLOCKS  LOST  WHAT
      1  8192  data  1.0          12  5-6     yes   bad

what can't be had from this device any more:
  shard 1.0: frames 3, 7-9; perhaps frames behind the last one; 2 block(s): 5-6; 4 older block(s) that lost frames may \
have written anew

the next start of the node will report:
  segment 1, byte 1: gone

log: damaged
";
        assert_eq!(verification(&v), want);
    }

    #[test]
    fn frames_line_up_with_their_header() {
        let f = Frame {
            segment: 1,
            head_at: 96,
            data_at: 4096,
            append: 7,
            kind: "data",
            repair: false,
            counts: false,
            shard: "1.0".into(),
            view: 2,
            sequence: 12,
            first_version: 11,
            updates: 1,
            chunk: "2-0".into(),
            chunk_offset: 0,
            head_bytes: 320,
            data_bytes: 8192,
            hid: "ab".into(),
            branch: false,
        };
        let line = frame(&f);
        for (word, value) in [("SEGMENT", "1"), ("APPEND", "7"), ("SEQUENCE", "12"), ("DATA", "8K")] {
            let end = FRAME_HEADER.find(word).unwrap() + word.len();
            assert!(line[..end].ends_with(value), "{word}\n{FRAME_HEADER}\n{line}");
        }
        assert_eq!(FRAME_HEADER.find("STATE"), line.find("superseded"));
    }
}
