//! `sim SEED`: runs the simulated cluster and says what went wrong, with the command that repeats it.

use clap::Parser;
use freebs_sim::{Config, Less, Mutants, Outcome, mutant_by_name, mutant_names, run_config, shrink};
use freebs_types::Nanos;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Runs that a failing seed is made smaller with, at most.
const SHRINK_RUNS_MAX: u64 = 300;

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
    /// Only seeds in which the nodes keep the control state themselves.
    #[arg(long)]
    seats: bool,
    /// Leave out a rule, to see it noticed.
    #[arg(long, value_parser = parse_mutant)]
    mutant: Option<Mutants>,
    /// Leave out faults: names, or first words of several (power: power_node and power_all).
    #[arg(long, value_name = "FAULTS")]
    without: Option<String>,
    /// End load and faults earlier, such as 1.5s.
    #[arg(long, value_name = "TIME", value_parser = freebs_sim::parse_time)]
    until: Option<Nanos>,
    /// Only the first volumes.
    #[arg(long, value_parser = freebs_sim::parse_volumes)]
    volumes: Option<usize>,
    /// Make a run that fails smaller, by the three options above.
    #[arg(long)]
    shrink: bool,
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

fn less(options: &Options) -> Result<Less, String> {
    let mut less = Less { until: options.until, volumes: options.volumes, ..Less::default() };
    options.without.iter().flat_map(|names| names.split(',')).try_for_each(|name| less.leave_out(name))?;
    Ok(less)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let less = match less(&options) {
        Ok(less) => less,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    let mutants = options.mutant.unwrap_or_default();
    let (mut done, mut failed) = (0u64, 0u64);
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let of_kind = |seed: &u64| options.profile.as_ref().is_none_or(|p| Config::draw(*seed).profile == p);
    let of_seats = |seed: &u64| !options.seats || Config::draw(*seed).has_seats;
    for seed in (options.seed..u64::MAX).filter(of_kind).filter(of_seats).take(options.seeds as usize) {
        let o = run_config(less.of(Config::draw(seed)), mutants, options.verbose);
        done += 1;
        add(&mut counts, &o);
        if options.verbose || options.seeds == 1 {
            let time = o.time.millis();
            println!(
                "seed {seed} ({}): {} events, {} writes, {} reads, {time} ms simulated, trace {:016x}",
                o.profile, o.events, o.writes, o.reads, o.trace
            );
        }
        if !o.is_good() {
            failed += 1;
            tell(&o, mutants);
            if options.shrink {
                smaller(seed, &less, mutants);
            }
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
    println!("{failed} of {done} seeds failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn add(counts: &mut BTreeMap<String, u64>, o: &Outcome) {
    let whole = [("= seeds", 1), ("= events", o.events), ("= writes judged", o.writes), ("= reads judged", o.reads)];
    let whole = whole.into_iter().chain([("= ms simulated", o.time.millis())]).map(|(name, n)| (name.to_owned(), n));
    for (name, n) in whole.chain(o.counts.clone()) {
        *counts.entry(name).or_default() += n;
    }
}

fn tell(o: &Outcome, mutants: Mutants) {
    println!("seed {} ({}) FAILED", o.seed, o.profile);
    for v in &o.violations {
        println!("  {v}");
    }
    println!("  repeat with: {}", o.replay(mutants));
}

fn smaller(seed: u64, less: &Less, mutants: Mutants) {
    let hook = std::panic::take_hook();
    // Runs that end with the panic that is looked for say nothing new.
    std::panic::set_hook(Box::new(|_| {}));
    let shrunk = shrink(seed, less, mutants, SHRINK_RUNS_MAX);
    std::panic::set_hook(hook);
    let Some(s) = shrunk else { return };
    println!("  shrunk in {} runs to: {}", s.runs, s.less);
    for v in &s.outcome.violations {
        println!("    {v}");
    }
    println!("  repeat the smaller one with: {}", s.outcome.replay(mutants));
}
