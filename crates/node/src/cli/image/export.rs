//! `freebs volume export`.

use super::super::asked::show;
use super::super::output::Output;
use super::super::signals::Stop;
use super::args::{ExportArgs, FormatArg, is_standard};
use super::out::Out;
use super::progress::Progress;
use super::target::{data_of, in_use};
use crate::admin::Client;
use crate::attached::Attached;
use freebs_control::rules::format_size;
use freebs_driver::{Op, Reply};
use freebs_types::{Error, ErrorKind, Result};
use serde::Serialize;
use std::collections::VecDeque;
use std::pin::Pin;
use std::process::ExitCode;

/// Bytes of a read, and reads on their way at once.
const READ_BYTES: u64 = 1 << 20;
const READS_MAX: usize = 16;

#[derive(Serialize)]
struct Exported {
    volume: String,
    /// Bytes of the volume.
    size: u64,
    file: String,
    format: &'static str,
    /// Bytes that were read; all others are zeroes.
    data: u64,
    /// Bytes that were written to the file.
    written: u64,
    seconds: f64,
}

fn format_of(args: &ExportArgs) -> FormatArg {
    let is_qcow2 = args.file.extension().is_some_and(|e| e.eq_ignore_ascii_case("qcow2"));
    args.format.unwrap_or(if is_qcow2 { FormatArg::Qcow2 } else { FormatArg::Raw })
}

pub async fn run(client: &Client, addresses: &[String], args: ExportArgs, output: &Output) -> Result<ExitCode> {
    let to_standard = is_standard(&args.file);
    if to_standard && output.json {
        return Err(Error::invalid("standard output is the volume's; leave out --json, or name a file"));
    }
    let format = format_of(&args);
    let mut stop = Stop::new()?;
    let (from, size, out) = tokio::select! {
        opened = open(client, addresses, &args, format) => opened?,
        () = stop.wait() => return Err(stopped()),
    };
    let progress = Progress::start(format!("export of {}", args.name), size, args.progress, output);
    let copied = tokio::select! {
        copied = copy(&from, size, out, &progress) => copied,
        () = stop.wait() => Err(stopped()),
    };
    let (data, took) = progress.so_far();
    drop(progress);
    from.close().await;
    let (format, seconds) = (format.name(), took.as_secs_f64());
    let file = args.file.display().to_string();
    let exported = Exported { volume: args.name, size, file, format, data, written: copied?, seconds };
    if !to_standard {
        output.show(&exported, |e| {
            format!(
                "exported {} to {} ({}): {}, {} of data read in {:.1} s",
                e.volume,
                e.file,
                e.format,
                format_size(e.size),
                format_size(e.data),
                e.seconds
            )
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens what is to be exported, and the file: a volume that nobody has, or a snapshot of one, whoever has that.
async fn open(
    client: &Client,
    addresses: &[String],
    args: &ExportArgs,
    format: FormatArg,
) -> Result<(Attached, u64, Out)> {
    let cluster = client.welcome().cluster;
    if let Some((name, snapshot)) = args.name.split_once('@') {
        let volume = show(client, name).await?.id;
        let past = Attached::open_past(addresses, cluster, "export", volume, snapshot).await?;
        return match Out::start(&args.file, format, args.force, past.size) {
            Ok(out) => Ok((past.reader, past.size, out)),
            Err(e) => {
                past.reader.close().await;
                Err(e)
            }
        };
    }
    let volume = show(client, &args.name).await?;
    // Before the volume is attached: most mistakes are in the file's name.
    let out = Out::start(&args.file, format, args.force, volume.size)?;
    match Attached::open(addresses, cluster, "export", volume.id).await {
        Ok(from) => Ok((from, volume.size, out)),
        Err(e) if e.kind == ErrorKind::Busy => Err(in_use(client, &args.name, e).await),
        Err(e) => Err(e),
    }
}

fn stopped() -> Error {
    Error::retry("the export was stopped; no file was made")
}

type Answer = Pin<Box<dyn Future<Output = Result<Reply>>>>;

/// Copies the whole volume; the bytes that were written. The file is whole and durable when this has returned.
async fn copy(from: &Attached, size: u64, mut out: Out, progress: &Progress) -> Result<u64> {
    let mut reads: VecDeque<(u64, u64, Answer)> = VecDeque::new();
    data_of(from, size, async |offset, len| {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let len = (end - at).min(READ_BYTES - at % READ_BYTES);
            if reads.len() >= READS_MAX {
                next(&mut reads, &mut out, progress).await?;
            }
            reads.push_back((at, len, Box::pin(from.ask(Op::Read { offset: at, len }))));
            at += len;
        }
        Ok(true)
    })
    .await?;
    while next(&mut reads, &mut out, progress).await? {}
    progress.reached(size);
    out.finish().await
}

/// Takes the answer to the first read; false if there is none.
async fn next(reads: &mut VecDeque<(u64, u64, Answer)>, out: &mut Out, progress: &Progress) -> Result<bool> {
    let Some((at, len, answer)) = reads.pop_front() else { return Ok(false) };
    let Reply::Read(pieces) = answer.await? else { return Err(Error::bug("a read had another answer")) };
    out.data(at, pieces).await?;
    progress.moved(len);
    progress.reached(at + len);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_says_its_format() {
        let format = |file: &str, format| {
            format_of(&ExportArgs { name: "a".into(), file: file.into(), format, force: false, progress: false })
        };
        assert_eq!(format("a.qcow2", None), FormatArg::Qcow2);
        assert_eq!(format("a.QCOW2", None), FormatArg::Qcow2);
        assert_eq!(format("a.img", None), FormatArg::Raw);
        assert_eq!(format("qcow2", None), FormatArg::Raw);
        assert_eq!(format("a.qcow2", Some(FormatArg::Raw)), FormatArg::Raw);
        assert_eq!(format("-", None), FormatArg::Raw);
    }
}
