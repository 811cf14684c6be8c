//! The words of `freebs backup`.

use super::super::snapshot::args::place as snapshot_place;
use super::super::values::{ShapeArgs, size, volume_name, volume_size};
use clap::{Args, Subcommand};
use freebs_backup::Place;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BACKUP_HELP: &str = "\
Examples:
  freebs backup create data /srv/backups               blocks that the last backup has are not stored again
  freebs backup create data@nightly /srv/backups       a snapshot that is there
  freebs backup create data s3://bucket/prefix --rate 50M
  freebs backup list /srv/backups
  freebs backup verify /srv/backups
  freebs backup restore /srv/backups 3f09 data2        a new volume
  freebs backup delete /srv/backups 3f09
  freebs backup prune /srv/backups

A target is a directory, or s3://BUCKET/PREFIX with the usual variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_REGION, AWS_ENDPOINT_URL. Backups are named by 32 hexadecimal digits; some of the first ones are enough. Several
volumes and clusters may share a target.";

const CREATE_HELP: &str = "\
The volume may be in use: what is backed up is a snapshot. Without @SNAP one is made, backup-…, and stays, in place of the one
of the backup before: with it the next backup reads only what was written since. Where that snapshot was deleted all data are
read; blocks of 512 KiB that the newest backup of the same volume has at the same place are not sent again in either case. A
backup that was stopped or killed is in no list; the next one of the same volume goes on with it, and what is there is not
sent again.

Exit status: 0 all of it is durable in the target, 1 failed, 2 not understood.";

const VERIFY_HELP: &str = "\
Every object is read and held against the hash that it is named by. With --sample only some are read; of the others it is
looked whether they are there and have their length.

Exit status: 0 all is as it should be, 1 something is damaged or missing, or failed, 2 not understood.";

const RESTORE_HELP: &str = "\
While it is under way the volume is called NAME.restoring, and NAME only when all of it is durable. A restore that fails or
is stopped deletes a new volume again. One that is killed leaves NAME.restoring; --force begins anew in that.";

const PRUNE_HELP: &str = "\
Takes away what no backup needs: objects of deleted backups, and of such as were given up. It may run beside backups that
are under way, on other hosts, too. While any is, manifests of deleted backups stay; a later prune takes them.";

#[derive(Debug, Subcommand)]
#[command(after_help = BACKUP_HELP)]
pub enum BackupCommand {
    /// Back a volume up: what has changed since its last backup
    #[command(after_help = CREATE_HELP)]
    Create(CreateArgs),
    /// List the backups of a target
    List(TargetArgs),
    /// Show one backup
    Show(OneArgs),
    /// Hold the objects of backups against their names, without restoring
    #[command(after_help = VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Make a volume of a backup
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreArgs),
    /// Delete a backup; prune then frees what no other one needs
    Delete(DeleteArgs),
    /// Free what no backup needs
    #[command(after_help = PRUNE_HELP)]
    Prune(PruneArgs),
    /// Make a key for encrypted backups
    Key {
        /// The file to make; without it encrypted backups can't be read, so keep a copy elsewhere
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct TargetArgs {
    /// A directory, or s3://BUCKET/PREFIX
    #[arg(value_parser = place)]
    pub target: Place,

    /// The key file of an encrypted target; a new target is encrypted with it
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct OneArgs {
    #[command(flatten)]
    pub target: TargetArgs,

    /// The backup: its first digits, four or more
    #[arg(value_parser = digits)]
    pub backup: String,
}

#[derive(Debug, Args)]
pub struct PaceArgs {
    /// Read or write at most so much of the volume in a second: 50M, 50MiB/s
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<u64>,

    /// Tell how far it is where standard error is no terminal, too; with --json as objects on standard output
    #[arg(long)]
    pub progress: bool,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The volume, or a snapshot of it
    #[arg(value_name = "VOLUME[@SNAP]", value_parser = source)]
    pub source: SourceArg,

    #[command(flatten)]
    pub target: TargetArgs,

    /// Store all blocks again, whatever earlier backups have
    #[arg(long)]
    pub full: bool,

    /// Not to be deleted before: 2027-01-31, 2027-01-31T12:00:00Z, or a time from now: 30days
    #[arg(long, value_name = "DATE", value_parser = until)]
    pub lock_until: Option<SystemTime>,

    #[command(flatten)]
    pub pace: PaceArgs,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    pub target: TargetArgs,

    /// Only this backup [default: all of the target]
    #[arg(value_parser = digits)]
    pub backup: Option<String>,

    /// Read only some of the blocks, drawn at random: 10%
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub sample: Option<u32>,

    #[command(flatten)]
    pub pace: PaceArgs,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    pub one: OneArgs,

    /// The volume: one that is to be made, or an empty one that is there
    #[arg(value_parser = volume_name)]
    pub name: String,

    /// Size of a new volume, at least the backup's [default: the backup's]
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    pub size: Option<u64>,

    #[command(flatten)]
    pub shape: ShapeArgs,

    /// Also into a volume that is not empty, whose data are lost, or into what an interrupted restore has left
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    pub pace: PaceArgs,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub one: OneArgs,

    /// Also one whose manifest is damaged, so that its lock is not known
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct PruneArgs {
    #[command(flatten)]
    pub target: TargetArgs,

    /// A backup that was begun, and of which nothing was heard for so long, is given up: it can't end well any more
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "1day")]
    pub grace: Duration,

    /// Say what would be freed, and free nothing
    #[arg(long)]
    pub dry_run: bool,
}

fn place(text: &str) -> Result<Place, String> {
    Place::parse(text).map_err(|e| e.to_string())
}

/// A volume, or a snapshot of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceArg {
    pub volume: String,
    pub snapshot: Option<String>,
}

impl std::fmt::Display for SourceArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.volume),
            None => f.write_str(&self.volume),
        }
    }
}

fn source(text: &str) -> Result<SourceArg, String> {
    if text.contains('@') {
        let place = snapshot_place(text)?;
        return Ok(SourceArg { volume: place.volume, snapshot: Some(place.name) });
    }
    volume_name(text).map(|volume| SourceArg { volume, snapshot: None })
}

fn digits(text: &str) -> Result<String, String> {
    let is_one = (4..=32).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let usage =
        "a backup is named by its first digits, from 4 to 32 of 0 to 9 and a to f; `freebs backup list` shows them";
    is_one.then(|| text.to_owned()).ok_or_else(|| usage.to_owned())
}

/// The slowest rate: less is a backup that never ends.
const RATE_MIN: u64 = 64 << 10;

fn rate(text: &str) -> Result<u64, String> {
    let bare = text.strip_suffix("/s").unwrap_or(text);
    let bare = bare.strip_suffix("iB").unwrap_or(bare);
    match size(bare) {
        Ok(rate) if rate >= RATE_MIN => Ok(rate),
        Ok(_) => Err("a rate is at least 64K".into()),
        Err(_) => Err("a rate is bytes a second, as 50M or 50MiB/s".into()),
    }
}

fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    let number = number.ok().filter(|n| (0.0..=100.0).contains(n));
    number.map(|n| (n * 10_000.0).round() as u32).ok_or_else(|| "a part is from 0% to 100%".into())
}

fn until(text: &str) -> Result<SystemTime, String> {
    let usage = "a date is 2027-01-31, 2027-01-31T12:00:00Z, or a time from now as 30days";
    let date = humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339(&format!("{text}T00:00:00Z")));
    let then = match (date, humantime::parse_duration(text)) {
        (Ok(date), _) => date,
        (_, Ok(span)) => SystemTime::now().checked_add(span).ok_or(usage)?,
        _ => return Err(usage.into()),
    };
    if then <= SystemTime::now() || then < UNIX_EPOCH {
        return Err(format!("{text} is over; {usage}"));
    }
    Ok(then)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(subcommand)]
        command: BackupCommand,
    }

    fn parse(line: &str) -> Result<BackupCommand, String> {
        let words = std::iter::once("backup").chain(line.split_whitespace());
        Words::try_parse_from(words).map(|w| w.command).map_err(|e| e.to_string())
    }

    #[test]
    fn a_create_names_a_volume_and_a_target() {
        let line = "create data s3://b/p --key k --full --lock-until 2999-01-31 --rate 50MiB/s --progress";
        let Ok(BackupCommand::Create(a)) = parse(line) else { panic!("create") };
        assert_eq!((a.source.to_string().as_str(), a.pace.rate, a.full), ("data", Some(50 << 20), true));
        let Ok(BackupCommand::Create(of)) = parse("create data@monday /x") else { panic!("create") };
        assert_eq!((of.source.volume.as_str(), of.source.snapshot.as_deref()), ("data", Some("monday")));
        assert!(matches!(a.target.target, Place::S3 { .. }) && a.target.key == Some("k".into()) && a.pace.progress);
        assert_eq!(a.lock_until, Some(humantime::parse_rfc3339("2999-01-31T00:00:00Z").unwrap()));
        for (line, word) in [
            ("create data", "<TARGET>"),
            ("create a/b /x", "data-1"),
            ("create a@ /x", "VOLUME@NAME"),
            ("create a gs://x/y", "s3://bucket/prefix"),
            ("create a /x --rate 1K", "at least 64K"),
            ("create a /x --rate fast", "50MiB/s"),
            ("create a /x --lock-until 2020-01-01", "is over"),
            ("create a /x --lock-until soon", "30days"),
        ] {
            let said = parse(line).expect_err(line);
            assert!(said.contains(word), "{line}: {said}");
        }
    }

    #[test]
    fn other_commands_name_a_target_and_perhaps_a_backup() {
        let Ok(BackupCommand::Verify(a)) = parse("verify /x 3f09 --sample 12.5%") else { panic!("verify") };
        assert_eq!((a.backup.as_deref(), a.sample), (Some("3f09"), Some(125_000)));
        let Ok(BackupCommand::Restore(a)) = parse("restore /x 3f09 data --copies 2 --size 10G --force") else {
            panic!("restore")
        };
        assert!(a.one.backup == "3f09" && a.name == "data" && a.force && a.shape.copies == Some(2));
        let Ok(BackupCommand::Prune(a)) = parse("prune /x --grace 2h --dry-run") else { panic!("prune") };
        assert!(a.grace == Duration::from_secs(7200) && a.dry_run);
        let Ok(BackupCommand::Prune(a)) = parse("prune /x") else { panic!("prune") };
        assert_eq!(a.grace, Duration::from_secs(24 * 3600));
        assert!(parse("list /x").is_ok() && parse("show /x 3f09").is_ok() && parse("key f").is_ok());
        assert!(parse("delete /x 3f09 --force").is_ok());
        for line in ["show /x 3f", "show /x 3F09", "show /x data", "verify /x --sample 101%", "prune /x --grace soon"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
