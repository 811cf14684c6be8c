//! Runs fuzz targets for as long as it is told, and keeps what they find.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a program that reads files and takes the time"
)]

use freebs_fuzz::execute::{Wrong, before_abort};
use freebs_fuzz::runner::{self, Finding, Length, Report};
use freebs_fuzz::{TARGETS, Target, corpus, memory, target};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

const USAGE: &str = "\
usage: freebs-fuzz --list
       freebs-fuzz TARGET [--runs N] [--seconds S] [--seed X]   (TARGET may be 'all')
       freebs-fuzz TARGET FILE...                               executes these inputs once each

Without --runs and --seconds, 1,000,000 runs. Findings are kept in crates/fuzz/findings/TARGET. The exit status is 1 if
there were any.";

/// The call, understood.
struct Asked {
    name: String,
    length: Length,
    seed: u64,
    files: Vec<String>,
}

fn asked(args: &[String]) -> Option<Asked> {
    let mut a = Asked {
        name: args.first()?.clone(),
        length: Length { runs: 1_000_000, seconds: None },
        seed: 1,
        files: vec![],
    };
    let (mut runs, mut rest) = (None, args[1..].iter());
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--runs" => runs = Some(rest.next()?.parse().ok()?),
            "--seconds" => a.length.seconds = Some(rest.next()?.parse().ok()?),
            "--seed" => a.seed = rest.next()?.parse().ok()?,
            option if option.starts_with('-') => return None,
            file => a.files.push(file.to_owned()),
        }
    }
    a.length.runs = runs.unwrap_or(if a.length.seconds.is_some() { u64::MAX } else { 1_000_000 });
    Some(a)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|a| a == "--list") {
        TARGETS.iter().for_each(|t| println!("{:18} {}", t.name, t.about));
        return ExitCode::SUCCESS;
    }
    let Some(asked) = asked(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if asked.name == "all" {
        return all(&args[1..]);
    }
    let Some(target) = target(&asked.name) else {
        eprintln!("there is no target '{}'; --list names them", asked.name);
        return ExitCode::from(2);
    };
    if !cfg!(debug_assertions) {
        eprintln!("note: built without checks of overflow; `cargo run --profile fuzz -p freebs-fuzz` has them");
    }
    if asked.files.is_empty() { long(target, &asked) } else { these(target, &asked.files) }
}

/// Every target in a process of its own, so that one that ends the process does not end the others.
fn all(args: &[String]) -> ExitCode {
    let me = std::env::current_exe().expect("a program knows where it is");
    let mut failed = Vec::new();
    for t in TARGETS {
        let status = Command::new(&me).arg(t.name).args(args).status().expect("a program can start itself");
        if !status.success() {
            failed.push(t.name);
        }
    }
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("targets with findings: {}", failed.join(", "));
    ExitCode::FAILURE
}

fn tell(target: &Target, wrong: &Wrong, data: &[u8]) {
    println!("{}: {wrong}", target.name);
    match corpus::keep_finding(target, data) {
        Ok(path) => {
            println!("  {} bytes kept in {}", data.len(), path.display());
            println!("  again: cargo run --profile fuzz -p freebs-fuzz -- {} {}", target.name, path.display());
        }
        Err(e) => println!("  can't be kept: {e}; its bytes are {data:02x?}"),
    }
}

/// Executes files once each.
fn these(target: &'static Target, files: &[String]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let data = match std::fs::read(file) {
            Ok(data) => data,
            Err(e) => {
                eprintln!("{file}: {e}");
                return ExitCode::from(2);
            }
        };
        let name = file.clone();
        before_abort(move |wrong| println!("{name}: {wrong}"));
        let (wrong, peak) = memory::peak_of(|| runner::once(target, &data));
        match wrong {
            None => println!("{file}: fine, {peak} bytes at a time (the bound is {})", (target.bound)(data.len())),
            Some(wrong) => {
                println!("{file}: {wrong}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

static EXECUTIONS: AtomicU64 = AtomicU64::new(0);

/// Ends the process if an execution does not end. What it was given is in the runner's thread, so the seed and the
/// number of the execution say it.
fn watch(name: &'static str, seed: u64) {
    std::thread::spawn(move || {
        let (mut last, mut same) = (0, 0);
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = EXECUTIONS.load(Ordering::Relaxed);
            same = if now == last { same + 1 } else { 0 };
            last = now;
            if same > 120 {
                println!("{name}: an execution behind number {now} with --seed {seed} does not end");
                std::process::exit(1);
            }
        }
    });
}

fn long(target: &'static Target, asked: &Asked) -> ExitCode {
    let kept = match corpus::kept(target) {
        Ok(kept) => kept.into_iter().map(|(_, data)| data).collect::<Vec<_>>(),
        Err(e) => {
            eprintln!("the corpus can't be read: {e}");
            return ExitCode::from(2);
        }
    };
    // Where a panic ends the process, this is the last that it says.
    before_abort(move |wrong| tell(target, wrong, &runner::current()));
    watch(target.name, asked.seed);
    let report = runner::run(target, &kept, asked.length, asked.seed, |r| {
        EXECUTIONS.store(r.executions, Ordering::Relaxed);
        if (r.seconds as u64).is_multiple_of(10) {
            eprintln!("{}: {}", target.name, line(r));
        }
    });
    println!("{}: {}", target.name, line(&report));
    for f in &report.findings {
        let short = runner::shorten(target, f, 2000);
        let wrong = runner::once(target, &short).unwrap_or_else(|| f.wrong.clone());
        tell(target, &wrong, &Finding { wrong: wrong.clone(), data: short }.data);
    }
    if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn line(r: &Report) -> String {
    format!(
        "{} executions in {:.0} s, {:.0}/s; {} things seen, {} inputs held; {} findings",
        r.executions,
        r.seconds,
        r.executions as f64 / r.seconds.max(0.001),
        r.seen,
        r.kept,
        r.findings.len()
    )
}
