//! `sim SEED`: runs the simulated cluster and says what went wrong, with the command that repeats it.

use clap::Parser;
use freebs_sim::{Config, Mutants, mutant_by_name, mutant_names, run};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// A whole cluster in one thread under one seed.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// The (first) seed.
    seed: u64,
    /// How many seeds to run, one after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Only seeds whose run is of this kind.
    #[arg(long)]
    profile: Option<String>,
    /// Leave out a rule, to see it noticed.
    #[arg(long, value_parser = parse_mutant)]
    mutant: Option<Mutants>,
    /// Print every event.
    #[arg(long)]
    verbose: bool,
    /// Say how often things happened.
    #[arg(long)]
    counts: bool,
    /// Go on after a seed that failed.
    #[arg(long)]
    all: bool,
}

fn parse_mutant(name: &str) -> Result<Mutants, String> {
    mutant_by_name(name).ok_or_else(|| format!("there is no mutant {name}; there are {}", mutant_names().join(", ")))
}

fn main() -> ExitCode {
    let options = Options::parse();
    let mutants = options.mutant.unwrap_or_default();
    let mut failed = 0u64;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let of_kind = |seed: &u64| options.profile.as_ref().is_none_or(|p| Config::draw(*seed).profile == p);
    for seed in (options.seed..u64::MAX).filter(of_kind).take(options.seeds as usize) {
        let o = run(seed, mutants, options.verbose);
        for (name, n) in &o.counts {
            *counts.entry(name.clone()).or_default() += n;
        }
        if options.verbose || options.seeds == 1 {
            let time = o.time.millis();
            println!(
                "seed {seed} ({}): {} events, {} writes, {} reads, {time} ms simulated, trace {:016x}",
                o.profile, o.events, o.writes, o.reads, o.trace
            );
        }
        if !o.is_good() {
            failed += 1;
            println!("seed {seed} ({}) FAILED", o.profile);
            for v in &o.violations {
                println!("  {v}");
            }
            println!("  repeat with: {}", o.replay(mutants));
            if !options.all {
                break;
            }
        }
    }
    if options.counts {
        for (name, n) in counts {
            println!("{n:>10} {name}");
        }
    }
    println!("{} of {} seeds failed", failed, options.seeds);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
