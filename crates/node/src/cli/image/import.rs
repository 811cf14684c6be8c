//! `freebs volume import`.

use super::super::output::Output;
use super::super::signals::Stop;
use super::args::{ImportArgs, is_standard};
use super::input::{Incoming, Pieces};
use super::progress::Progress;
use super::target::{Doing, Target, Wanted};
use crate::admin::Client;
use crate::attached::Attached;
use bytes::Bytes;
use freebs_control::rules::format_size;
use freebs_driver::Op;
use freebs_image::{Body, runs};
use freebs_types::{Error, Result};
use serde::Serialize;
use std::process::ExitCode;
use tokio::task::JoinSet;

/// An import in words.
const IMPORT: Doing = Doing { suffix: ".importing", word: "import", of: "image", one: "an image" };

/// Writes on their way at once, and their bytes: enough for a network of some milliseconds, half of a driver's window.
const WRITES_MAX: usize = 64;
const WRITES_BYTES_MAX: u64 = 16 << 20;

#[derive(Serialize)]
struct Imported {
    volume: String,
    /// Bytes of the volume.
    size: u64,
    file: String,
    format: &'static str,
    /// Bytes that were written; all others of the volume read as zeroes.
    data: u64,
    seconds: f64,
}

pub async fn run(client: &Client, addresses: &[String], args: ImportArgs, output: &Output) -> Result<ExitCode> {
    let input = Incoming::open(&args)?;
    if let Some(note) = &input.note {
        output.note(note);
    }
    let (format, image) = (input.format.name(), input.size);
    // From here on a signal ends the import in good order.
    let mut stop = Stop::new()?;
    let wanted = Wanted { name: &args.name, size: args.size, shape: args.shape, force: args.force, doing: IMPORT };
    let mut target = Target::find(client, addresses, wanted, image).await?;
    let of = image.unwrap_or(target.volume.size);
    let progress = Progress::start(format!("import of {}", args.name), of, args.progress, output);
    let filled = tokio::select! {
        filled = fill(&mut target, input, &progress) => filled,
        () = stop.wait() => Err(Error::retry("the import was stopped")),
    };
    let (data, took) = progress.so_far();
    drop(progress);
    if let Err(e) = filled {
        return Err(target.give_up(e).await);
    }
    let volume = target.complete().await?;
    let file = if is_standard(&args.file) { "standard input".into() } else { args.file.display().to_string() };
    let seconds = took.as_secs_f64();
    let imported = Imported { volume: volume.name, size: volume.size, file, format, data, seconds };
    output.show(&imported, |i| {
        format!(
            "imported {} ({}) into {}: {}, {} of data written in {:.1} s",
            i.file,
            i.format,
            i.volume,
            format_size(i.size),
            format_size(i.data),
            i.seconds
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// Copies all of the image; it is durable when this has returned.
async fn fill(target: &mut Target<'_>, input: Incoming, progress: &Progress) -> Result<()> {
    let size = target.volume.size;
    let to = target.prepare().await?;
    copy(to, size, input.start()?, progress).await?;
    to.ask(Op::Flush).await.map(|_| ())
}

async fn copy(to: &Attached, size: u64, mut pieces: Pieces, progress: &Progress) -> Result<()> {
    let mut writes = Writes { to, on_their_way: JoinSet::new(), bytes: 0 };
    loop {
        let broken = || Error::bug("the image's reader ended without a word");
        let Some(piece) = pieces.recv().await.ok_or_else(broken)?? else { break };
        let end = piece.at + piece.body.len();
        if end > size {
            return Err(Error::invalid(format!(
                "there is more than the {size} bytes that the volume has; give a larger --size"
            )));
        }
        if let Body::Data(data) = piece.body {
            let data = Bytes::from(data);
            for run in runs(&data) {
                writes.put(piece.at + run.from as u64, data.slice(run.from..run.to)).await?;
                progress.moved((run.to - run.from) as u64);
            }
        }
        progress.reached(end);
    }
    writes.finish().await
}

/// Writes on their way.
struct Writes<'a> {
    to: &'a Attached,
    on_their_way: JoinSet<Result<u64>>,
    bytes: u64,
}

impl Writes<'_> {
    async fn put(&mut self, offset: u64, data: Bytes) -> Result<()> {
        let len = data.len() as u64;
        while self.on_their_way.len() >= WRITES_MAX
            || (!self.on_their_way.is_empty() && self.bytes + len > WRITES_BYTES_MAX)
        {
            self.next().await?;
        }
        let answer = self.to.ask(Op::Write { offset, data, fua: false });
        self.bytes += len;
        self.on_their_way.spawn_local(async move { answer.await.map(|_| len) });
        Ok(())
    }

    /// Waits for one of them; false if there is none.
    async fn next(&mut self) -> Result<bool> {
        let Some(done) = self.on_their_way.join_next().await else { return Ok(false) };
        self.bytes -= done.map_err(|e| Error::bug(format!("a write ended without an answer: {e}")))??;
        Ok(true)
    }

    async fn finish(mut self) -> Result<()> {
        while self.next().await? {}
        Ok(())
    }
}
