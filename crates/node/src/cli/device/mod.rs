//! `freebs device …`: the engine's tools on a file or block device that no node uses.
//!
//! Invariant: `inspect`, `verify` and a dry run open the device for reading only, so the kernel refuses every write.

mod json;
mod text;

use super::args::{DeviceCommand, InspectArgs};
use super::output::Output;
use crate::timing;
use freebs_format::disk::{SUPERBLOCK_AT, SUPERBLOCK_BYTES, Superblock};
use freebs_io::Device;
use freebs_io::linux::ring::Ring;
use freebs_io::linux::{DeviceOptions, FileDevice};
use freebs_lsvd::tool::{self, FrameInfo, Watch};
use freebs_types::{Error, ErrorKind, Result, ShardId};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Exit status of `recover` when something is lost and was not accepted.
const NOT_ACCEPTED: u8 = 3;
/// Bytes of frames that are gathered before they are written.
const FRAMES_BYTES: usize = 64 << 10;

pub fn run(command: DeviceCommand, output: &Output) -> Result<ExitCode> {
    local(async {
        match command {
            DeviceCommand::Inspect(args) => inspect(&args, output).await,
            DeviceCommand::Verify { path, shard } => verify(&path, shard, output).await,
            DeviceCommand::Rebuild { path, write } => rebuild(&path, write, output).await,
            DeviceCommand::Recover { path, accept_loss } => recover(&path, accept_loss, output).await,
        }
    })
}

/// A small runtime whose tasks stay on this thread, as devices need it.
pub(super) fn local<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    super::block_on(async { tokio::task::LocalSet::new().run_until(work).await })
}

async fn inspect(args: &InspectArgs, output: &Output) -> Result<ExitCode> {
    let device = open(&args.path, true).await?;
    let mut watch = Watcher::new(output, args.frames, args.shard);
    let found = tool::inspect(&device, &mut watch).await.map_err(|e| e.at(args.path.display()))?;
    watch.finish();
    if let Some(shard) = args.shard.filter(|s| found.shards.iter().all(|x| x.shard != *s)) {
        return Err(no_shard(shard, found.shards.iter().map(|s| s.shard)));
    }
    let shown = json::Inspection::new(&args.path, &found, args.segments, args.shard);
    output.show(&shown, text::inspection);
    Ok(ExitCode::SUCCESS)
}

async fn verify(path: &Path, shard: Option<ShardId>, output: &Output) -> Result<ExitCode> {
    let device = open(path, true).await?;
    let mut watch = Watcher::new(output, false, None);
    let found = tool::verify(&device, &mut watch).await.map_err(|e| e.at(path.display()))?;
    watch.finish();
    output.show(&json::Verification::new(path, &found, shard), text::verification);
    Ok(ExitCode::from(u8::from(!found.is_sound())))
}

async fn rebuild(path: &Path, write: bool, output: &Output) -> Result<ExitCode> {
    let device = open(path, !write).await?;
    let mut watch = Watcher::new(output, false, None);
    let done = tool::rebuild(&device, write, &mut watch).await.map_err(|e| e.at(path.display()))?;
    watch.finish();
    output.show(&json::Rebuild::new(path, &done), text::rebuild);
    Ok(ExitCode::from(u8::from(!done.is_complete())))
}

async fn recover(path: &Path, accept: bool, output: &Output) -> Result<ExitCode> {
    let device = open(path, !accept).await?;
    let mut watch = Watcher::new(output, false, None);
    let done = tool::recover(&device, accept, &mut watch).await.map_err(|e| e.at(path.display()))?;
    watch.finish();
    output.show(&json::Losses::new(path, &done), text::losses);
    let open = !done.lost.is_empty() && !done.accepted;
    Ok(ExitCode::from(if open { NOT_ACCEPTED } else { 0 }))
}

fn no_shard(shard: ShardId, there: impl Iterator<Item = ShardId>) -> Error {
    let there: Vec<String> = there.map(|s| s.to_string()).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    Error::not_found(format!("no shard {shard} on this device; it has {there}"))
}

/// Opens a device that no node uses.
pub(super) async fn open(path: &Path, read_only: bool) -> Result<FileDevice> {
    let ring = Ring::start()?;
    let options = DeviceOptions { read_only, ..DeviceOptions::default() };
    let opened = FileDevice::open(&ring, path, options.clone()).map_err(|e| explain(path, e))?;
    let Some(sector) = sector(&opened).await.filter(|s| *s < opened.sector()) else { return Ok(opened) };
    // An image of a disk with smaller sectors: what was written by its sectors is read by them.
    drop(opened);
    let options = DeviceOptions { sector: Some(sector), buffered: true, ..options };
    FileDevice::open(&ring, path, options).map_err(|e| explain(path, e))
}

/// The sector that the log was made for, if a copy of the superblock says it.
async fn sector(device: &FileDevice) -> Option<usize> {
    for at in SUPERBLOCK_AT.into_iter().filter(|at| at + SUPERBLOCK_BYTES as u64 <= device.len()) {
        if let Ok(bytes) = device.read(at, SUPERBLOCK_BYTES).await
            && let Ok(sb) = Superblock::decode(&bytes)
        {
            return Some(sb.sector.get() as usize);
        }
    }
    None
}

fn explain(path: &Path, e: Error) -> Error {
    let name = path.display();
    let text = match e.kind {
        ErrorKind::Busy => format!(
            "{name} is in use, probably by its node; stop that one first (`freebs node stop NAME`, or Ctrl-C of \
             `freebs up`), because a log that is being written can't be judged"
        ),
        ErrorKind::NotFound => format!("{}; nodes keep theirs in DATA/log-0.freebs, log-1.freebs and so on", e.text),
        ErrorKind::Invalid if path.is_dir() => {
            format!("{name} is a directory; name the device in it: {name}/log-0.freebs, one for each worker")
        }
        _ => return e,
    };
    Error { kind: e.kind, text: text.into() }
}

/// Shows progress on a terminal, and frames as they come.
struct Watcher<'a> {
    output: &'a Output,
    frames: bool,
    shard: Option<ShardId>,
    lines: Vec<u8>,
    header: bool,
    terminal: bool,
    shown: bool,
    last: Instant,
}

impl<'a> Watcher<'a> {
    fn new(output: &'a Output, frames: bool, shard: Option<ShardId>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { output, frames, shard, lines: vec![], header: false, terminal, shown: false, last: Instant::now() }
    }

    fn line(&mut self, text: &str) {
        self.lines.extend_from_slice(text.as_bytes());
        self.lines.push(b'\n');
        if self.lines.len() > FRAMES_BYTES {
            self.output.raw(&std::mem::take(&mut self.lines));
        }
    }

    fn finish(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        if self.header {
            self.line("");
        }
        self.output.raw(&std::mem::take(&mut self.lines));
    }
}

impl Watch for Watcher<'_> {
    fn progress(&mut self, step: &'static str, done: u32, total: u32) {
        if self.terminal && !self.frames && self.last.elapsed() >= timing::PROGRESS_EVERY {
            self.last = Instant::now();
            self.shown = true;
            let _ = write!(std::io::stderr(), "\r\x1b[K{step}: segment {done} of {total}");
        }
    }

    fn frame(&mut self, frame: &FrameInfo) {
        if !self.frames || self.shard.is_some_and(|s| s != frame.shard) {
            return;
        }
        let shown = json::Frame::new(frame);
        if self.output.json {
            let text = serde_json::to_string(&json::FrameLine { frame: shown }).expect("plain values");
            self.line(&text);
            return;
        }
        if !self.header {
            self.header = true;
            self.line(text::FRAME_HEADER);
        }
        self.line(&text::frame(&shown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_opened_says_the_way_out() {
        let dir = tempfile::tempdir().unwrap();
        let open = |path: &Path| local(async { open(path, true).await.map(|_| ()) }).unwrap_err();
        assert!(open(dir.path()).text.contains("log-0.freebs"));
        assert!(open(&dir.path().join("none")).text.contains("does not exist"));
    }
}
