//! `freebs volume import`.

use super::super::output::Output;
use super::super::signals::Stop;
use super::args::{ImportArgs, is_standard};
use super::input::{Incoming, Pieces};
use super::progress::Progress;
use super::target::{Doing, Target, Wanted};
use super::writes::Writes;
use crate::admin::Client;
use crate::attached::Attached;
use bytes::Bytes;
use freebs_control::rules::format_size;
use freebs_driver::Op;
use freebs_image::{Body, runs};
use freebs_types::{Error, Result};
use serde::Serialize;
use std::process::ExitCode;

/// An import in words.
const IMPORT: Doing = Doing { suffix: ".importing", word: "import", of: "image", one: "an image" };

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
    let mut writes = Writes::new(to);
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
