//! `freebs volume rollback` and `freebs volume rewind`: a volume gets back what it had.
//!
//! The command attaches the volume itself, and writes what changed since as it was; so snapshots, backups and the retention
//! window go on as with any writes.
//!
//! Invariants: while the volume is a mixture it has a name that says so, and nobody else has it; it gets its own name when
//! all is durable. The snapshot of the present is complete before the first write.

pub mod args;

use super::asked::show;
use super::image::progress::Progress;
use super::image::target::{Doing, data_in, find, in_use, rename, temporary};
use super::image::writes::Writes;
use super::output::Output;
use super::signals::Stop;
use super::snapshot::{self, past};
use crate::admin::Client;
use crate::attached::{Attached, AttachedPast};
use crate::timing;
use args::{HowArgs, RewindArgs, RollbackArgs};
use freebs_control::api::{Request, VolumeStatus};
use freebs_control::rules::format_size;
use freebs_driver::{Op, Piece, Reply as Answer, STATUS_BYTES_MAX};
use freebs_format::Pin;
use freebs_types::{Error, ErrorKind, Past, Result};
use serde::Serialize;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const ROLLBACK: Doing = Doing { suffix: ".rolling-back", word: "rollback", of: "snapshot", one: "a snapshot" };
/// Bytes of a read.
const READ_BYTES: u64 = 1 << 20;

#[derive(Serialize)]
struct RolledBack {
    volume: String,
    snapshot: String,
    /// The place in the past that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    past: Option<Past>,
    /// The snapshot that has what was there before, if it was kept.
    before: Option<String>,
    /// Bytes that had changed, and bytes of data that were written for them.
    changed: u64,
    written: u64,
    seconds: f64,
}

pub async fn rollback(client: &Client, addresses: &[String], args: RollbackArgs, output: &Output) -> Result<ExitCode> {
    let done = run(client, addresses, (&args.snapshot.volume, &args.snapshot.name), args.how, output).await?;
    output.show(&done, text);
    Ok(ExitCode::SUCCESS)
}

pub async fn rewind(client: &Client, addresses: &[String], args: RewindArgs, output: &Output) -> Result<ExitCode> {
    let Some(to) = args.past.place() else {
        return Err(Error::invalid("say where to: --at TIME, or --version N"));
    };
    let name = args.name.as_str();
    if let Err(e) = show(client, name).await {
        return Err(match find(client, &temporary(name, ROLLBACK)?).await? {
            None => e,
            Some(left) => Error::busy(format!(
                "a rollback of '{name}' is under way, or was interrupted: '{0}' is a mixture. `freebs snapshot list {0}` shows \
                 to what, and `freebs volume rollback {name}@…` goes on with it",
                left.name
            )),
        });
    }
    let snapshot = snapshot::of_past(client, name, to, "rewind").await?;
    let done = run(client, addresses, (name, &snapshot), args.how, output).await?;
    // It has what the volume has now.
    snapshot::delete_one(client, name, &snapshot).await?;
    output.show(&RolledBack { past: Some(to), ..done }, text);
    Ok(ExitCode::SUCCESS)
}

fn text(done: &RolledBack) -> String {
    let to = match done.past {
        Some(place) => format!("rewound {} to {}", done.volume, past(place)),
        None => format!("rolled {} back to {}@{}", done.volume, done.volume, done.snapshot),
    };
    let before = match &done.before {
        Some(name) => format!("; what it had before is {}@{name}", done.volume),
        None => String::new(),
    };
    let (changed, written) = (format_size(done.changed), format_size(done.written));
    format!("{to}: {changed} had changed, {written} of data written in {:.1} s{before}", done.seconds)
}

/// A volume that is rolled back.
struct Rolling<'a> {
    client: &'a Client,
    name: &'a str,
    /// An earlier rollback was interrupted.
    was_left: bool,
    volume: VolumeStatus,
}

impl<'a> Rolling<'a> {
    async fn find(client: &'a Client, name: &'a str) -> Result<Self> {
        let temporary = temporary(name, ROLLBACK)?;
        let (volume, was_left) = match (find(client, name).await?, find(client, &temporary).await?) {
            (Some(volume), None) => (volume, false),
            (None, Some(left)) => (left, true),
            (None, None) => return Err(Error::not_found(format!("there is no volume '{name}'"))),
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "there are both a volume '{name}' and '{temporary}', which an interrupted rollback has left; give one of \
                     them another name with `freebs volume rename`"
                )));
            }
        };
        Ok(Self { client, name, was_left, volume })
    }

    /// Attaches it; then it is called by the name of a mixture.
    async fn take(&mut self, addresses: &[String]) -> Result<Attached> {
        let (begun, cluster) = (Instant::now(), self.client.welcome().cluster);
        let patience = if self.was_left { timing::LEFT_MAX } else { timing::GIVEN_BACK_MAX };
        let attached = loop {
            match Attached::open(addresses, cluster, ROLLBACK.word, self.volume.id).await {
                // The one that left it may have been killed just now; and a gateway gives a volume back a moment after its
                // last client has left.
                Err(e) if e.kind == ErrorKind::Busy && begun.elapsed() < patience => {
                    tokio::time::sleep(timing::LEFT_LOOK).await;
                }
                Err(e) if e.kind == ErrorKind::Busy => return Err(in_use(self.client, &self.volume.name, e).await),
                other => break other?,
            }
        };
        if !self.was_left {
            match rename(self.client, self.name, &temporary(self.name, ROLLBACK)?).await {
                Ok(volume) => self.volume = volume,
                Err(e) => {
                    attached.close().await;
                    return Err(e);
                }
            }
        }
        Ok(attached)
    }
}

async fn run(
    client: &Client,
    addresses: &[String],
    (name, snapshot): (&str, &str),
    how: HowArgs,
    output: &Output,
) -> Result<RolledBack> {
    let mut stop = Stop::new()?;
    let mut rolling = Rolling::find(client, name).await?;
    let volume = rolling.volume.name.clone();
    let to = snapshot::one(client, Request::SnapshotShow { volume, name: snapshot.to_owned() }).await?;
    if to.stage != freebs_control::Stage::Complete {
        return Err(Error::invalid(format!("{name}@{snapshot} is not complete; `freebs snapshot show` says why")));
    }
    let attached = rolling.take(addresses).await?;
    let mut has_begun = rolling.was_left;
    let rolled = tokio::select! {
        rolled = roll(&rolling, &attached, addresses, (snapshot, how), &mut has_begun, output) => rolled,
        () = stop.wait() => Err(Error::retry("the rollback was stopped")),
    };
    let rolled = match rolled {
        Ok(rolled) => rolled,
        Err(e) if has_begun => {
            attached.close().await;
            let text = format!(
                "{e}; the volume is called '{}', because it may be a mixture of both: `freebs volume rollback {name}@{snapshot}` \
                 goes on with it",
                rolling.volume.name
            );
            return Err(Error { text: text.into(), ..e });
        }
        Err(e) => {
            let back = rename(client, &rolling.volume.name, name).await;
            attached.close().await;
            back?;
            return Err(e);
        }
    };
    let renamed = rename(client, &rolling.volume.name, name).await;
    attached.close().await;
    renamed?;
    Ok(rolled)
}

/// Makes the snapshot of the present, and writes back what changed since the other one.
async fn roll(
    rolling: &Rolling<'_>,
    attached: &Attached,
    addresses: &[String],
    (snapshot, how): (&str, HowArgs),
    has_begun: &mut bool,
    output: &Output,
) -> Result<RolledBack> {
    let (client, volume) = (rolling.client, &rolling.volume);
    let is_kept = !how.discard_present && !rolling.was_left;
    let before = format!("{}-{}", if is_kept { "before-rollback" } else { "rolling-back" }, snapshot::name_of_now());
    let make = Request::SnapshotCreate { volumes: vec![volume.name.clone()], name: Some(before.clone()), past: None };
    snapshot::one(client, make).await?;
    let cluster = client.welcome().cluster;
    let now = Attached::open_past(addresses, cluster, ROLLBACK.word, volume.id, &before).await?;
    let then = match Attached::open_past(addresses, cluster, ROLLBACK.word, volume.id, snapshot).await {
        Ok(then) => then,
        Err(e) => {
            now.reader.close().await;
            return Err(e);
        }
    };
    *has_begun = true;
    let progress = Progress::start(format!("rollback of {}", rolling.name), volume.size, how.progress, output);
    let copied = copy(attached, (&now, &then), volume.size, &progress).await;
    let (written, took) = progress.so_far();
    drop(progress);
    now.reader.close().await;
    then.reader.close().await;
    let changed = copied?;
    if !is_kept {
        snapshot::delete_one(client, &volume.name, &before).await?;
    }
    Ok(RolledBack {
        volume: rolling.name.to_owned(),
        snapshot: snapshot.to_owned(),
        past: None,
        before: Some(before).filter(|_| is_kept),
        changed,
        written,
        seconds: took.as_secs_f64(),
    })
}

/// Writes back all that changed from `then` to `now`; the bytes that had. All is durable when this has returned.
async fn copy(
    to: &Attached,
    (now, then): (&AttachedPast, &AttachedPast),
    size: u64,
    progress: &Progress,
) -> Result<u64> {
    let since = now.since(&then.snapshot.name)?;
    let mut writes = Writes::new(to);
    let (mut at, mut changed) = (0, 0);
    while at < now.size {
        for range in changes(now, &since, &mut at).await? {
            changed += range.end - range.start;
            // What the volume had not yet is not there.
            let end = range.end.min(then.size).max(range.start);
            put_back(then, range.start..end, &mut writes, progress).await?;
            zero(to, end..range.end).await?;
        }
        progress.reached(at);
    }
    writes.finish().await?;
    // It may have grown since the snapshot of the present.
    zero(to, now.size..size).await?;
    to.ask(Op::Flush).await?;
    Ok(changed)
}

/// Ranges that changed, from `at` on; it moves to the end of the answer.
async fn changes(now: &AttachedPast, since: &Arc<[Pin]>, at: &mut u64) -> Result<Vec<Range<u64>>> {
    let (before, len) = (*at, (now.size - *at).min(STATUS_BYTES_MAX));
    let op = Op::Changes { offset: *at, len, since: since.clone() };
    let Answer::Status(runs) = now.reader.ask(op).await? else {
        return Err(Error::bug("a question for changes had another answer"));
    };
    let mut out: Vec<Range<u64>> = Vec::new();
    for run in runs {
        let end = *at + run.bytes;
        match out.last_mut().filter(|last| last.end == *at && run.changed) {
            Some(last) => last.end = end,
            None => out.extend(Some(*at..end).filter(|_| run.changed)),
        }
        *at = end;
    }
    if *at == before {
        return Err(Error::bug("an answer to what changed covers nothing"));
    }
    Ok(out)
}

/// Writes a range as it was: data as data, all else as zeroes that need no room.
async fn put_back(then: &AttachedPast, range: Range<u64>, writes: &mut Writes<'_>, progress: &Progress) -> Result<()> {
    let mut parts: Vec<Range<u64>> = Vec::new();
    data_in(&then.reader, range.clone(), async |at, len| {
        parts.push(at..at + len);
        Ok(true)
    })
    .await?;
    let mut at = range.start;
    for part in parts {
        zero(writes.to(), at..part.start).await?;
        at = part.start;
        while at < part.end {
            let len = (part.end - at).min(READ_BYTES);
            let Answer::Read(pieces) = then.reader.ask(Op::Read { offset: at, len }).await? else {
                return Err(Error::bug("a read had another answer"));
            };
            for piece in pieces {
                let len = match piece {
                    Piece::Data(data) => {
                        let len = data.len() as u64;
                        writes.put(at, data).await?;
                        progress.moved(len);
                        len
                    }
                    Piece::Zero(len) => {
                        zero(writes.to(), at..at + len).await?;
                        len
                    }
                };
                at += len;
            }
        }
    }
    zero(writes.to(), at..range.end).await
}

async fn zero(to: &Attached, range: Range<u64>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    to.ask(Op::Zero { offset: range.start, len: range.end - range.start, may_trim: true }).await.map(|_| ())
}
