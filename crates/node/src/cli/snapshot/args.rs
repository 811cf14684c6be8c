//! The words of `freebs snapshot`.

use super::schedule;
use clap::{Args, Subcommand};
use freebs_control::rules;
use freebs_control::{Keep, Schedule};
use freebs_types::{Past, Version};
use std::time::{SystemTime, UNIX_EPOCH};

const CREATE_HELP: &str = "\
Examples:
  freebs snapshot create data                          named by the time
  freebs snapshot create data --name before-upgrade
  freebs snapshot create db,logs --name nightly        both at one instant
  freebs snapshot create data --at '2026-11-21 10:31:07'    as it was then, if it keeps its past
  freebs snapshot create data --at 10min                    as it was ten minutes ago
  freebs snapshot create data --version 1234                as the update with this version left it

A snapshot keeps a volume as it is at an instant: all that was answered before is in it, and nothing that was asked for
later. It is made while the volume is in use, copies nothing, and takes no space until blocks that it has are written anew.
Of several volumes, or one of several shards, writers wait while it is made: some milliseconds, 2 seconds at the very most.

A volume that keeps its past (`freebs volume retain`) has snapshots of it, too: of any tenth of a second, as the clocks of
the heads of its shards had it when updates were ordered. Of several shards that is one instant as far as these clocks agree.

Exit status: 0 it is there, on enough copies, 1 none was made, 2 not understood.";

const LIST_HELP: &str = "\
Examples:
  freebs snapshot list
  freebs snapshot list data --json

Some of those that could not be made are listed, too, with the reason.";

const DELETE_HELP: &str = "\
Examples:
  freebs snapshot delete data@nightly
  freebs snapshot delete data@monday data@tuesday

A snapshot of several volumes is deleted for each of them: the others keep it. What nothing else needs becomes free in the
background. Exit status: 0 all are deleted, 1 one of them was not, and those behind it were not tried, 2 not understood.";

const LOCK_HELP: &str = "\
Examples:
  freebs snapshot lock data@audit --until 2027-01-31
  freebs snapshot lock data@audit --until '2027-01-31 12:00:00'    in UTC, to the second
  freebs snapshot lock data@audit --until 90days

Nobody deletes it before, nor its volume. A lock can be made longer, and never shorter.";

const SCHEDULE_HELP: &str = "\
Examples:
  freebs snapshot schedule data --every 1h --keep 24h,7d,4w
  freebs snapshot schedule data --every 10m --keep 12,24h      the last twelve, and one for each of 24 hours
  freebs snapshot schedule data                                shows it
  freebs snapshot schedule data --off                          what is there stays

24h keeps the newest snapshot of each of the last 24 hours that have one, 7d of days (UTC), 4w of weeks; a number alone keeps
as many of the newest. What no rule keeps is deleted, unless it is locked. Only snapshots that the schedule has made count,
and are deleted; they are called auto-2026-11-21-100000 and so on. Times are multiples of --every since 1970; one that was
missed is made when it can be, if its time is not over. After `freebs control rebuild` schedules are to be given again.";

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Show which blocks changed between two snapshots of a volume
    Diff(super::super::diff::DiffArgs),
    /// Keep a volume, or several at one instant, as they are now
    #[command(after_help = CREATE_HELP)]
    Create(CreateArgs),
    /// List snapshots
    #[command(after_help = LIST_HELP)]
    List {
        /// Only of this volume
        volume: Option<String>,
    },
    /// Show one snapshot with what its shards keep
    Show {
        #[arg(value_name = "VOLUME@NAME", value_parser = place)]
        snapshot: Place,
    },
    /// Delete snapshots
    #[command(after_help = DELETE_HELP)]
    Delete {
        #[arg(value_name = "VOLUME@NAME", required = true, value_parser = place)]
        snapshots: Vec<Place>,
    },
    /// Make snapshots of a volume by themselves, and delete old ones of these
    #[command(after_help = SCHEDULE_HELP)]
    Schedule(ScheduleArgs),
    /// Let nobody delete a snapshot before a date
    #[command(after_help = LOCK_HELP)]
    Lock {
        #[arg(value_name = "VOLUME@NAME", value_parser = place)]
        snapshot: Place,
        /// A date, a date and time (UTC), or a time from now on
        #[arg(long, value_name = "DATE", value_parser = date)]
        until: u64,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// One volume, or several, separated by commas
    #[arg(value_name = "VOLUME[,VOLUME…]", required = true, value_delimiter = ',')]
    pub volumes: Vec<String>,

    /// The name that it is to have in each of them [default: the time, such as 2026-11-21-103107.042]
    #[arg(long, value_name = "NAME", value_parser = snapshot_name)]
    pub name: Option<String>,

    #[command(flatten)]
    pub past: PastArgs,
}

/// A place in the past of a volume; none of it is the present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args)]
#[group(multiple = false)]
pub struct PastArgs {
    /// As of a time in the past, in UTC, or so long ago; the volume has to keep its past
    #[arg(long, value_name = "TIME", value_parser = ago)]
    pub at: Option<u64>,

    /// As of a version in the past; the volume has to keep its past, and to have one shard
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub version: Option<u64>,
}

impl PastArgs {
    pub fn place(self) -> Option<Past> {
        self.at.map(Past::TimeMs).or(self.version.map(|v| Past::Version(Version(v))))
    }
}

#[derive(Debug, Args)]
pub struct ScheduleArgs {
    pub volume: String,

    /// Time between two, in whole minutes: 10m, 1h, 1day
    #[arg(long, value_name = "TIME", value_parser = schedule::every, requires = "keep", conflicts_with = "off")]
    pub every: Option<u64>,

    /// Which of them stay: so many of the last ones (12), or one for each hour, day or week (24h,7d,4w)
    #[arg(long, value_name = "RULES", value_delimiter = ',', value_parser = schedule::keep, requires = "every")]
    pub keep: Vec<Keep>,

    /// No schedule any more
    #[arg(long)]
    pub off: bool,
}

impl ScheduleArgs {
    /// The schedule that the volume is to have, or none; `None` if nothing is to change.
    pub fn wanted(self) -> Option<Option<Schedule>> {
        match self.every {
            Some(every_ms) => Some(Some(Schedule { every_ms, keep: self.keep })),
            None => self.off.then_some(None),
        }
    }
}

/// A snapshot of a volume: `VOLUME@NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub volume: String,
    pub name: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.volume, self.name)
    }
}

fn snapshot_name(text: &str) -> Result<String, String> {
    rules::check_name("snapshot", text).map(|()| text.to_owned()).map_err(|e| e.to_string())
}

/// `VOLUME@NAME`, or a volume alone.
pub fn place_or_volume(text: &str) -> Result<(String, Option<String>), String> {
    if text.contains('@') {
        return place(text).map(|p| (p.volume, Some(p.name)));
    }
    rules::check_name("volume", text).map(|()| (text.to_owned(), None)).map_err(|e| e.to_string())
}

pub fn place(text: &str) -> Result<Place, String> {
    let parts = text.split_once('@').filter(|(volume, name)| !volume.is_empty() && !name.is_empty());
    let (volume, name) = parts.ok_or("write VOLUME@NAME, such as data@nightly")?;
    rules::check_name("volume", volume).map_err(|e| e.to_string())?;
    Ok(Place { volume: volume.to_owned(), name: snapshot_name(name)? })
}

/// A time that has come, or so long ago, in milliseconds since 1970.
pub fn ago(text: &str) -> Result<u64, String> {
    let bad = |_| format!("'{text}' is no time; write '2026-11-21 10:31:07' (UTC), 2026-11-21T10:31:07.5Z, or 10min");
    let time = match humantime::parse_duration(text) {
        Ok(span) => SystemTime::now().checked_sub(span).unwrap_or(UNIX_EPOCH),
        Err(_) => humantime::parse_rfc3339_weak(text).map_err(bad)?,
    };
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(since.as_millis() as u64)
}

/// Milliseconds since 1970.
fn date(text: &str) -> Result<u64, String> {
    let day = format!("{text} 00:00:00");
    let time = humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339_weak(&day));
    let span = || humantime::parse_duration(text).ok().and_then(|d| SystemTime::now().checked_add(d));
    let time = time
        .ok()
        .or_else(span)
        .ok_or_else(|| format!("'{text}' is no date; write 2027-01-31, '2027-01-31 12:00:00' or 90days"))?;
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| "a date after 1970".to_owned())?;
    u64::try_from(since.as_millis()).map_err(|_| "a date before the year 9999".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_by_volume_and_name() {
        let found = place("data@a.b").unwrap();
        assert_eq!(
            (found.volume.as_str(), found.name.as_str(), found.to_string().as_str()),
            ("data", "a.b", "data@a.b")
        );
        for wrong in ["data", "data@", "@x", "a/b@x", "data@x@y", "data@-x"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_of_the_past_are_dates_and_spans() {
        assert_eq!(ago("1970-01-02 00:00:01.25"), Ok(86_401_250));
        assert_eq!(ago("1970-01-02T00:00:01Z"), Ok(86_401_000));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!((now - 600_000 - 60_000..=now - 600_000).contains(&ago("10min").unwrap()));
        assert!(ago("yesterday").unwrap_err().contains("10min"));
    }

    #[test]
    fn dates_are_days_times_and_spans() {
        assert_eq!(date("1970-01-02"), Ok(86_400_000));
        assert_eq!(date("1970-01-02 00:00:01"), Ok(86_401_000));
        assert_eq!(date("1970-01-02T00:00:01Z"), Ok(86_401_000));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!(date("2days").unwrap() >= now + 2 * 86_400_000);
        for wrong in ["tomorrow", "500000000000years"] {
            assert!(date(wrong).unwrap_err().contains("90days"), "{wrong}");
        }
    }
}
