//! What lies where in a node's device file, so that a test can damage exactly what it means to.

use super::cluster::files_below;
use freebs_format::disk::{AppendHeader, SEGMENTS_AT, SUPERBLOCK_AT, SUPERBLOCK_MAGIC, SegmentFooter, Superblock};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of one kind, all of them live and covered by a checksum.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub kind: Kind,
    pub at: u64,
    pub len: u64,
    /// It lies in a segment that ends with an index: what the index repeats is read from there.
    pub indexed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    FirstSuperblock,
    SecondSuperblock,
    AppendHeader,
    LiveTable,
    FrameHeads,
    Data,
    Index,
    Footer,
}

/// The device files below a node's data directory.
pub fn files(data: &Path) -> Vec<PathBuf> {
    let is_device = |path: &Path| {
        let mut magic = [0; 4];
        File::open(path).and_then(|mut f| f.read_exact(&mut magic)).is_ok() && magic == SUPERBLOCK_MAGIC
    };
    let mut found = files_below(data, &is_device);
    found.sort();
    found
}

/// All pieces of a device that was closed.
pub fn pieces(path: &Path) -> Vec<Piece> {
    let file = File::open(path).expect("a device file");
    let len = file.metadata().expect("its size").len();
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, 0).expect("a superblock");
    let sb = Superblock::decode(&bytes).expect("a whole superblock");
    let covered = size_of::<Superblock>() as u64;
    let mut found = vec![
        Piece { kind: Kind::FirstSuperblock, at: SUPERBLOCK_AT[0], len: covered, indexed: false },
        Piece { kind: Kind::SecondSuperblock, at: SUPERBLOCK_AT[1], len: covered, indexed: false },
    ];
    let segment = sb.segment_bytes.get();
    let mut bytes = vec![0; segment as usize];
    let mut at = SEGMENTS_AT;
    while at + segment <= len {
        file.read_exact_at(&mut bytes, at).expect("a segment");
        of_segment(&bytes, at, sb.sector.get() as usize, &mut found);
        at += segment;
    }
    found
}

fn of_segment(bytes: &[u8], base: u64, sector: usize, found: &mut Vec<Piece>) {
    let Ok(first) = AppendHeader::decode(bytes) else { return };
    let footer = SegmentFooter::decode(bytes, bytes.len() as u64).ok();
    let footer = footer.filter(|f| f.segment_seq.get() == first.seq().0);
    let mut piece = |kind, at: usize, len: usize| {
        if len > 0 {
            found.push(Piece { kind, at: base + at as u64, len: len as u64, indexed: footer.is_some() });
        }
    };
    let (mut at, mut number) = (0, first.number.get());
    while at + sector <= bytes.len() {
        let Ok(header) = AppendHeader::decode(&bytes[at..]) else { break };
        if header.seq() != first.seq() || header.number.get() != number || at + header.total(sector) > bytes.len() {
            break;
        }
        number += 1;
        let (fixed, extra) = (size_of::<AppendHeader>(), header.extra_len.get() as usize);
        let (heads, data) = (header.heads_len.get() as usize, header.data_len.get() as usize);
        // One without frames only says that the append before it was durable: without it, that is not known.
        if header.frames.get() > 0 {
            piece(Kind::AppendHeader, at, fixed);
        }
        if at == 0 {
            piece(Kind::LiveTable, at + fixed, extra);
        }
        piece(Kind::FrameHeads, at + fixed + extra, heads - fixed - extra);
        piece(Kind::Data, at + heads.next_multiple_of(sector), data);
        at += header.total(sector);
    }
    if let Some(footer) = footer {
        let fixed = size_of::<SegmentFooter>();
        piece(Kind::Footer, bytes.len() - fixed, fixed);
        piece(Kind::Index, footer.index_at.get() as usize, footer.index_len.get() as usize);
    }
}

/// Turns one bit over.
pub fn flip(path: &Path, at: u64, bit: u8) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a device file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    byte[0] ^= 1 << bit;
    file.write_all_at(&byte, at).expect("a byte");
    file.sync_all().expect("a sync");
}
