//! `freebs volume rollback` and `freebs volume rewind`: a volume gets back what it had in a snapshot, or at a moment of the past
//! that it keeps, of which a snapshot is made for the time that this takes.
//!
//! The command attaches the volume itself, and writes what changed since as it was; so snapshots, the differences between them
//! and backups go on as with any writes.
//!
//! Invariants: while the volume is a mixture it has a name that says so, and nobody else has it; it gets its own name when
//! all is durable. The snapshot of the present is complete before the volume gets that name, and so before the first write;
//! once that name was asked for, this command does not delete it.

pub mod args;

use super::image::progress::Progress;
use super::image::target::{Doing, data_in, find, in_use, rename, temporary};
use super::image::writes::Writes;
use super::output::Output;
use super::signals::Stop;
use super::snapshot::{self, past};
use crate::admin::{Client, ROLLING_BACK, name_of_time};
use crate::attached::{Attached, AttachedPast};
use crate::events::now_ms;
use crate::timing;
use args::{HowArgs, RewindArgs, RollbackArgs};
use freebs_control::Stage;
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

/// Names of snapshots that keep the present, and of those of mixtures; behind them is the time.
const KEPT: &str = "before-rollback-";
const MIXTURE: &str = "rolling-back-";
const ROLLBACK: Doing = Doing { suffix: ROLLING_BACK, word: "rollback", of: "snapshot", one: "a snapshot" };
/// Bytes of a read.
const READ_BYTES: u64 = 1 << 20;

#[derive(Serialize)]
struct RolledBack {
    volume: String,
    snapshot: String,
    /// The place in the past that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    past: Option<Past>,
    /// The snapshot that has what was there before, if it was kept by this command.
    before: Option<String>,
    /// Bytes that had changed, and bytes of data that were written for them.
    changed: u64,
    written: u64,
    seconds: f64,
}

/// Where a volume goes back to.
enum To {
    Snapshot(String),
    Past(Past),
}

pub async fn rollback(client: &Client, addresses: &[String], args: RollbackArgs, output: &Output) -> Result<ExitCode> {
    let to = To::Snapshot(args.snapshot.name);
    run(client, addresses, (&args.snapshot.volume, to), args.how, output).await
}

pub async fn rewind(client: &Client, addresses: &[String], args: RewindArgs, output: &Output) -> Result<ExitCode> {
    let to = To::Past(args.place());
    run(client, addresses, (&args.name, to), args.how, output).await
}

async fn run(
    client: &Client,
    addresses: &[String],
    (name, to): (&str, To),
    how: HowArgs,
    output: &Output,
) -> Result<ExitCode> {
    let mut stop = Stop::new()?;
    let mut rolling = Rolling::find(client, name).await?;
    rolling.may_go_to(&to).await?;
    let attached = rolling.attach(addresses).await?;
    let rolled = tokio::select! {
        rolled = rolling.roll(&attached, addresses, (&to, how), output) => rolled,
        () = stop.wait() => Err(Error::retry("the rollback was stopped")),
    };
    let ended = match rolled {
        Ok(done) => match rolling.is_called(name).await {
            Ok(()) => {
                rolling.forget_then(output).await;
                Ok(done)
            }
            Err(e) => Err(e),
        },
        Err(e) => Err(rolling.gave_up(e, &to).await),
    };
    attached.close().await;
    output.show(&ended?, text);
    Ok(ExitCode::SUCCESS)
}

fn text(done: &RolledBack) -> String {
    let to = match done.past {
        Some(place) => format!("rewound {} to {}", done.volume, past(place)),
        None => format!("rolled {0} back to {0}@{1}", done.volume, done.snapshot),
    };
    let before = done.before.as_ref().map(|b| format!("; what it had before is {}@{b}", done.volume));
    format!(
        "{to}: {} had changed, {} of data written in {:.1} s{}",
        format_size(done.changed),
        format_size(done.written),
        done.seconds,
        before.unwrap_or_default()
    )
}

/// A volume that is rolled back.
struct Rolling<'a> {
    client: &'a Client,
    name: &'a str,
    /// An earlier rollback was interrupted.
    was_left: bool,
    /// As it is called now.
    volume: VolumeStatus,
    /// The snapshots of the past and of the present that this command makes.
    then: Option<String>,
    before: Option<String>,
    /// The name of a mixture was asked for: the volume may get it later than this command hears of it.
    may_be_renamed: bool,
}

impl<'a> Rolling<'a> {
    async fn find(client: &'a Client, name: &'a str) -> Result<Self> {
        let temporary = temporary(name, ROLLBACK)?;
        let (volume, was_left) = match (find(client, name).await?, find(client, &temporary).await?) {
            (Some(volume), None) => (volume, false),
            (None, Some(left)) => (left, true),
            (None, None) => {
                return Err(Error::not_found(format!("there is no volume '{name}'; `freebs volume list` shows all")));
            }
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "there are both a volume '{name}' and '{temporary}', which an interrupted rollback has left; give one of \
                     them another name with `freebs volume rename`"
                )));
            }
        };
        let may_be_renamed = was_left;
        Ok(Self { client, name, was_left, volume, then: None, before: None, may_be_renamed })
    }

    /// Refuses a place that can't be gone back to.
    async fn may_go_to(&self, to: &To) -> Result<()> {
        let To::Snapshot(name) = to else {
            if !self.was_left {
                return Ok(());
            }
            return Err(Error::busy(format!(
                "a rollback of '{0}' is under way, or was interrupted: '{1}' is a mixture. `freebs snapshot list {1}` shows to \
                 what, and `freebs volume rollback {0}@…` goes on with it",
                self.name, self.volume.name
            )));
        };
        let volume = self.volume.name.clone();
        let show = Request::SnapshotShow { volume, name: name.to_owned() };
        match snapshot::one(self.client, show).await?.stage {
            Stage::Complete => Ok(()),
            Stage::Gathering | Stage::Decided => Err(Error::busy("the snapshot is being made; try it again")),
            Stage::Failed { why } => Err(Error::invalid(format!("the snapshot was not made: {why}"))),
        }
    }

    async fn attach(&self, addresses: &[String]) -> Result<Attached> {
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
        // The one that had it may have been another rollback.
        let now = find(self.client, &self.volume.name).await;
        if now.as_ref().is_ok_and(|v| v.as_ref().is_some_and(|v| v.id == self.volume.id)) {
            return Ok(attached);
        }
        attached.close().await;
        now?;
        Err(Error::retry(format!("the volume '{}' got another name meanwhile; try it again", self.volume.name)))
    }

    /// Gives the volume, and no other one, a name.
    async fn is_called(&mut self, name: &str) -> Result<()> {
        let renamed = rename(self.client, &self.volume.name, name).await?;
        if renamed.id != self.volume.id {
            rename(self.client, name, &self.volume.name).await?;
            return Err(Error::retry(format!("another volume is called '{}' now; try it again", self.volume.name)));
        }
        self.volume = renamed;
        Ok(())
    }

    /// Makes the snapshot of the present, and writes back what changed since the other one.
    async fn roll(
        &mut self,
        attached: &Attached,
        addresses: &[String],
        (to, how): (&To, HowArgs),
        output: &Output,
    ) -> Result<RolledBack> {
        let (place, snapshot) = match to {
            To::Snapshot(name) => (None, name.clone()),
            To::Past(place) => {
                let name = format!("rewind-{}", name_of_time(now_ms()));
                self.then = Some(name.clone());
                snapshot::of_past(self.client, &self.volume.name, *place, &name).await?;
                (Some(*place), name)
            }
        };
        let is_kept = !how.discard_present && !self.was_left;
        let name = format!("{}{}", if is_kept { KEPT } else { MIXTURE }, name_of_time(now_ms()));
        let volumes = vec![self.volume.name.clone()];
        self.before = Some(name.clone());
        snapshot::one(self.client, Request::SnapshotCreate { volumes, name: Some(name.clone()), past: None }).await?;
        if !self.was_left {
            self.may_be_renamed = true;
            self.is_called(&temporary(self.name, ROLLBACK)?).await?;
        }
        let cluster = self.client.welcome().cluster;
        let now = Attached::open_past(addresses, cluster, ROLLBACK.word, self.volume.id, &name).await?;
        let then = Attached::open_past(addresses, cluster, ROLLBACK.word, self.volume.id, &snapshot).await;
        let then = match then {
            Ok(then) => then,
            Err(e) => {
                now.reader.close().await;
                return Err(e);
            }
        };
        let label = format!("rollback of {}", self.name);
        let progress = Progress::start(label, self.volume.size, how.progress, output);
        let changed = copy(attached, (&now, &then), self.volume.size, &progress).await;
        let (written, took) = progress.so_far();
        drop(progress);
        now.reader.close().await;
        then.reader.close().await;
        let changed = changed?;
        self.forget_mixtures().await?;
        Ok(RolledBack {
            volume: self.name.to_owned(),
            snapshot,
            past: place,
            before: Some(name).filter(|_| is_kept),
            changed,
            written,
            seconds: took.as_secs_f64(),
        })
    }

    /// Deletes the snapshots of mixtures, also those that interrupted rollbacks have left.
    async fn forget_mixtures(&self) -> Result<()> {
        for s in snapshot::all(self.client, Some(&self.volume.name)).await? {
            if s.name.strip_prefix(MIXTURE).is_some_and(is_time) && s.locked_until_ms <= now_ms() {
                snapshot::delete_one(self.client, &self.volume.name, &s.name).await?;
            }
        }
        Ok(())
    }

    /// Deletes the snapshot of the past that this command made: the volume has what it has.
    async fn forget_then(&self, output: &Output) {
        let Some(then) = &self.then else { return };
        if let Err(e) = snapshot::delete_one(self.client, self.name, then).await {
            output.note(&format!("the snapshot {}@{then} is not needed any more, and is still there: {e}", self.name));
        }
    }

    /// The rollback ended before its end. The error says what is left.
    async fn gave_up(&self, e: Error, to: &To) -> Error {
        let snapshot = match to {
            To::Snapshot(name) => name,
            To::Past(_) => self.then.as_deref().unwrap_or_default(),
        };
        let place = format!("{}@{snapshot}", self.name);
        if !self.may_be_renamed {
            // Nothing was written.
            for made in self.then.iter().chain(&self.before) {
                let _ = snapshot::delete_one(self.client, self.name, made).await;
            }
            return e;
        }
        if self.volume.name == self.name {
            let text = format!(
                "{e}; nothing was written, but the volume may be called '{}{}' now: `freebs volume rollback {place}` goes on \
                 with it, `freebs volume rename` gives it its name back",
                self.name, ROLLBACK.suffix
            );
            return Error { text: text.into(), ..e };
        }
        let called = &self.volume.name;
        let text = format!(
            "{e}; the volume is called '{called}', because it may be a mixture: `freebs volume rollback {place}` goes on with \
             it, and `freebs snapshot list {called}` shows to what it can go back instead"
        );
        Error { text: text.into(), ..e }
    }
}

/// True for what `name_of_time` gives.
fn is_time(text: &str) -> bool {
    let like = name_of_time(0);
    let digits_alike = |(a, b): (u8, u8)| if b.is_ascii_digit() { a.is_ascii_digit() } else { a == b };
    text.len() == like.len() && text.bytes().zip(like.bytes()).all(digits_alike)
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
            // Blocks that the volume had not yet are not there.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_times_are_those_of_mixtures() {
        assert!(is_time(&name_of_time(0)) && is_time(&name_of_time(1_764_180_000_123)));
        for other in ["", "tuesday", "1970-01-01-000000.00x", "1970-01-01-000000.0000", "1970-01-01_000000.000"] {
            assert!(!is_time(other), "{other}");
        }
    }
}
