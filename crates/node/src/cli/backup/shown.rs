//! `freebs backup list` and `show`.

use super::super::output::{Output, table};
use super::args::OneArgs;
use super::opened::{self, date};
use freebs_backup::{Details, Target, list as backups, open};
use freebs_control::rules::format_size;
use freebs_types::Result;
use serde::Serialize;
use std::process::ExitCode;

/// A backup for programs.
#[derive(Serialize)]
struct Backup {
    backup: String,
    /// The volume that it is of, perhaps with a snapshot.
    of: String,
    cluster: String,
    volume: u64,
    parent: Option<String>,
    /// When it was begun.
    time: String,
    /// Bytes of the volume.
    size: u64,
    /// Blocks of 512 KiB that are not zero, and bytes of their objects.
    blocks: u64,
    stored: u64,
    /// Those among them that no earlier backup had.
    new_blocks: u64,
    new_bytes: u64,
    locked_until: Option<String>,
}

fn backup(id: String, d: &Details) -> Backup {
    Backup {
        backup: id,
        of: d.name.clone(),
        cluster: d.cluster.to_string(),
        volume: d.volume.0,
        parent: (!d.parent.is_none()).then(|| d.parent.to_string()),
        time: date(d.time_ms),
        size: d.size,
        blocks: d.blocks,
        stored: d.stored_bytes,
        new_blocks: d.new_blocks,
        new_bytes: d.new_bytes,
        locked_until: (d.locked_until_ms > 0).then(|| date(d.locked_until_ms)),
    }
}

/// Digits that a table shows of a backup.
const DIGITS: usize = 12;

pub async fn list(target: &Target, output: &Output) -> Result<ExitCode> {
    #[derive(Serialize)]
    struct Damaged {
        backup: String,
        why: String,
    }
    #[derive(Serialize)]
    struct Shown {
        target: String,
        encrypted: bool,
        backups: Vec<Backup>,
        /// Manifests that can't be read.
        damaged: Vec<Damaged>,
    }
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for listed in backups(target).await?.backups {
        match listed.details {
            Ok(d) => whole.push(backup(listed.id.to_string(), &d)),
            Err(e) => damaged.push(Damaged { backup: listed.id.to_string(), why: e.to_string() }),
        }
    }
    let called = target.store().called().to_owned();
    let shown = Shown { target: called, encrypted: target.is_sealed(), backups: whole, damaged };
    output.show(&shown, |s| {
        let mut text = match s.backups.is_empty() {
            true => format!("no backups in {}\n", s.target),
            false => rows(&s.backups),
        };
        for d in &s.damaged {
            text.push_str(&format!("DAMAGED {}: {}\n", d.backup, d.why));
        }
        text
    });
    Ok(ExitCode::SUCCESS)
}

fn rows(backups: &[Backup]) -> String {
    let rows = backups.iter().map(|b| {
        vec![
            b.backup[..DIGITS].to_owned(),
            b.of.clone(),
            b.time.clone(),
            format_size(b.size),
            format_size(b.stored),
            format_size(b.new_bytes),
            b.locked_until.clone().unwrap_or_default(),
        ]
    });
    table(
        &["BACKUP", "OF", "BEGUN", "SIZE", "STORED", "NEW", "LOCKED UNTIL"],
        &["SIZE", "STORED", "NEW"],
        rows.collect(),
    )
}

pub async fn show(args: &OneArgs, output: &Output) -> Result<ExitCode> {
    let (target, id) = opened::one(args).await?;
    let manifest = open(&target, id).await?;
    output.show(&backup(id.to_string(), &manifest.details), |b| {
        let parent = b.parent.as_deref().unwrap_or("none: all blocks were stored");
        let locked = b.locked_until.as_deref().unwrap_or("not locked");
        format!(
            "backup        {}\nof            {} (volume {} of cluster {})\nbegun         {}\nsize          {}\n\
             blocks        {} that are not zero, {} stored\nnew           {} of them, {}\nparent        {parent}\n\
             locked until  {locked}\n",
            b.backup,
            b.of,
            b.volume,
            b.cluster,
            b.time,
            format_size(b.size),
            b.blocks,
            format_size(b.stored),
            b.new_blocks,
            format_size(b.new_bytes)
        )
    });
    Ok(ExitCode::SUCCESS)
}
