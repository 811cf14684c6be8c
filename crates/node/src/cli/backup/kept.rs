//! `freebs backup verify`, `delete`, `prune` and `key`.

use super::super::output::Output;
use super::args::{DeleteArgs, PruneArgs, VerifyArgs};
use super::opened::{self, millis};
use super::watch::Watcher;
use freebs_backup::{Id, Keys, Pruning, Verified, Verifying};
use freebs_control::rules::format_size;
use freebs_io::linux::OsRandom;
use freebs_types::{Error, Result};
use serde::Serialize;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

fn texts(ids: impl IntoIterator<Item = Id>) -> Vec<String> {
    ids.into_iter().map(|id| id.to_string()).collect()
}

pub async fn verify(args: VerifyArgs, output: &Output) -> Result<ExitCode> {
    #[derive(Serialize)]
    struct Wrong {
        backup: String,
        text: String,
    }
    #[derive(Serialize)]
    struct Shown {
        backups: u64,
        objects: u64,
        read: u64,
        read_bytes: u64,
        /// Objects and manifests that are damaged or missing; the first thousand are named.
        damaged: u64,
        named: Vec<Wrong>,
        /// Backups that can't be restored.
        broken: Vec<String>,
        seconds: f64,
    }
    let target = opened::open(&args.target, false).await?;
    let backup = match &args.backup {
        Some(digits) => Some(freebs_backup::resolve(&target, digits).await?),
        None => None,
    };
    let of_million = args.sample.unwrap_or(1_000_000);
    let listed = freebs_backup::list(&target).await?.backups;
    let of = listed.iter().filter(|b| backup.is_none_or(|id| id == b.id)).flat_map(|b| &b.details);
    let of = of.map(|d| d.stored_bytes).sum();
    let watch = Watcher::start("verify".into(), of, args.pace.rate, args.pace.progress, output);
    let done: Verified = freebs_backup::verify(&target, &Verifying { backup, of_million }, &watch).await?;
    let (_, took) = watch.so_far();
    drop(watch);
    let named = done.named.iter().map(|w| Wrong { backup: w.backup.to_string(), text: w.text.clone() }).collect();
    let shown = Shown {
        backups: done.backups,
        objects: done.objects,
        read: done.read,
        read_bytes: done.read_bytes,
        damaged: done.wrong,
        named,
        broken: texts(done.broken),
        seconds: took.as_secs_f64(),
    };
    output.show(&shown, |s| {
        let mut text = format!(
            "{} backups need {} objects; {} were read ({}) in {:.1} s; {} are damaged or missing\n",
            s.backups,
            s.objects,
            s.read,
            format_size(s.read_bytes),
            s.seconds,
            s.damaged
        );
        for w in &s.named {
            text.push_str(&format!("DAMAGED {}\n", w.text));
        }
        for b in &s.broken {
            text.push_str(&format!("BROKEN backup {b}\n"));
        }
        if s.damaged > 0 {
            text.push_str(
                "Broken backups can't be restored. Put the objects back if a copy of the target has them; and make new \
                 backups with --full, which store all blocks again.\n",
            );
        }
        text
    });
    Ok(if shown.damaged == 0 && shown.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

pub async fn delete(args: &DeleteArgs, output: &Output) -> Result<ExitCode> {
    #[derive(Serialize)]
    struct Shown {
        deleted: String,
    }
    let (target, id) = opened::one(&args.one).await?;
    freebs_backup::delete(&target, id, millis(SystemTime::now()), args.force).await?;
    output.show(&Shown { deleted: id.to_string() }, |s| {
        format!("deleted backup {}; `freebs backup prune` frees what no other one needs", s.deleted)
    });
    Ok(ExitCode::SUCCESS)
}

pub async fn prune(args: &PruneArgs, output: &Output) -> Result<ExitCode> {
    #[derive(Serialize)]
    struct Shown {
        dry_run: bool,
        /// Objects that were freed, or would be, and their bytes.
        objects: u64,
        bytes: u64,
        kept: u64,
        /// Deleted backups whose manifests were freed, and those that wait for backups that are under way.
        backups: u64,
        waiting: u64,
        given_up: Vec<String>,
        under_way: Vec<String>,
    }
    let target = opened::open(&args.target, false).await?;
    let grace_ms = u64::try_from(args.grace.as_millis()).unwrap_or(u64::MAX);
    let how = Pruning { grace_ms, is_dry: args.dry_run, mutant: None };
    let done = freebs_backup::prune(&target, &how).await?;
    let shown = Shown {
        dry_run: args.dry_run,
        objects: done.objects,
        bytes: done.bytes,
        kept: done.kept,
        backups: done.backups,
        waiting: done.waiting,
        given_up: texts(done.given_up),
        under_way: texts(done.under_way),
    };
    output.show(&shown, |s| {
        let would = if s.dry_run { "would free" } else { "freed" };
        let mut text = format!("{would} {} objects ({}); {} are needed\n", s.objects, format_size(s.bytes), s.kept);
        for id in &s.given_up {
            text.push_str(&format!("gave up backup {id}, which was begun and of which nothing was heard for long\n"));
        }
        for id in &s.under_way {
            text.push_str(&format!("backup {id} is under way, or was interrupted not long ago: its objects stay\n"));
        }
        if s.waiting > 0 {
            text.push_str(&format!("{} deleted backups stay until none is under way: prune again then\n", s.waiting));
        }
        text
    });
    Ok(ExitCode::SUCCESS)
}

pub fn key(file: &Path, output: &Output) -> Result<ExitCode> {
    #[derive(Serialize)]
    struct Shown {
        file: String,
        key: String,
    }
    let text = Keys::new_file(&mut OsRandom);
    let shown = file.display();
    let unmade = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::AlreadyExists => {
            Error::invalid(format!("{shown} is there already, and may be the key of backups; choose another name"))
        }
        _ => Error::os(format!("can't make the key file {shown}: {e}")),
    };
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map_err(unmade)?;
    out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(unmade)?;
    let key = Keys::of_file(&text)?.id().to_string();
    output.show(&Shown { file: shown.to_string(), key }, |s| {
        format!(
            "made the key {} in {}; without this file encrypted backups can't be read: keep a copy elsewhere",
            s.key, s.file
        )
    });
    Ok(ExitCode::SUCCESS)
}
