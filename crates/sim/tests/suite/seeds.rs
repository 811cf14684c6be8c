//! Good code passes every seed, and a seed is a run: the same one gives the same course. Seeds that once failed are kept.

use freebs_sim::{Config, Less, Mutants, Outcome, mutant_by_name, run, run_config, shrink};
use std::path::Path;

/// First seed of those that always run. Other ones: `cargo xtask sim SEED --seeds N`.
const FIRST: u64 = 1_000_000;
/// Seeds, and in the long form.
const SEEDS: (u64, u64) = (500, 5000);
/// Mutants that fail many seeds, and where those are looked for.
const SHRINKABLE: [&str; 2] = ["AnswersBeforeDurable", "RepeatsAreApplied"];
const SHRINKABLE_FIRST: u64 = 2_000_000;
/// Seeds that fail and are tried: some have nothing that can be left out.
const SHRINKABLE_TRIES: usize = 6;

fn assert_good(o: &Outcome) {
    let (seed, again) = (o.seed, o.replay(Mutants::default()));
    assert!(o.is_good(), "seed {seed} ({}): {:#?}\n{again}", o.profile, o.violations);
}

#[test]
fn five_hundred_seeds() {
    let (mut events, mut writes, mut reads, mut intervals, mut n) = (0, 0, 0, 0, 0);
    for seed in freebs_testing::seeds(SEEDS.0, SEEDS.1) {
        let o = run(FIRST + seed, Mutants::default(), false);
        assert_good(&o);
        (events, writes, reads, n) = (events + o.events, writes + o.writes, reads + o.reads, n + 1);
        intervals += o.counts.get("intervals").unwrap_or(&0);
    }
    println!("{n} seeds, {events} events, {writes} writes ({intervals} intervals begun) and {reads} reads judged");
    // A run that does nothing would pass as well.
    assert!(n < 25 || (events > 1000 * n && writes > 50 * n && reads > 25 * n && intervals > n));
}

#[test]
fn the_same_seed_takes_the_same_course() {
    for seed in FIRST..FIRST + 10 {
        let (a, b) = (run(seed, Mutants::default(), false), run(seed, Mutants::default(), false));
        assert_eq!((a.trace, a.events, a.time), (b.trace, b.events, b.time), "seed {seed}");
        assert_ne!(a.trace, run(seed + 1000, Mutants::default(), false).trace);
    }
}

/// A kept seed: `seed N`, perhaps `options` of a smaller run, an empty line, and the story.
fn kept(text: &str) -> Option<(u64, Less, &str)> {
    let (head, story) = text.split_once("\n\n")?;
    let mut lines = head.lines();
    let seed = lines.next()?.strip_prefix("seed ")?.parse().ok()?;
    let less = match lines.next() {
        Some(line) => Less::parse(line.strip_prefix("options ")?).ok()?,
        None => Less::default(),
    };
    (lines.next().is_none() && story.trim().len() > 40).then_some((seed, less, story))
}

#[test]
fn kept_seeds_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let mut n = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let Some((seed, less, story)) = kept(&text) else { panic!("{} is no kept seed", path.display()) };
        assert_eq!(path.file_name().unwrap().to_str(), Some(format!("{seed}.txt").as_str()));
        let o = run_config(less.of(Config::draw(seed)), Mutants::default(), false);
        assert!(
            o.is_good() && o.events > 500,
            "once again: {story}{:#?}\n{}",
            o.violations,
            o.replay(Mutants::default())
        );
        n += 1;
    }
    assert!(n > 0, "seeds are kept in {}", folder.display());
}

#[test]
fn what_is_no_kept_seed_is_refused() {
    let story = "A story that says in some words what went wrong.";
    assert!(kept(&format!("seed 7\n\n{story}")).is_some());
    let (seed, less, _) = kept(&format!("seed 7\noptions --without rot --until 1.5s\n\n{story}")).unwrap();
    assert_eq!((seed, less.to_string().as_str()), (7, "--without rot --until 1.500s"));
    for text in ["", "seed 7\n\nshort", "seed x\n\n", "seed 7\noptions --until\n\n", "7\n\n", "seed 7\nmore\n\n"] {
        assert!(kept(&format!("{text}{}", if text.ends_with("\n\n") { story } else { "" })).is_none(), "{text}");
    }
}

/// A run that a mutant fails gets smaller, fails still and in the same way, and is what its options say.
#[test]
fn a_failing_seed_is_made_smaller() {
    for name in SHRINKABLE {
        let mutants = mutant_by_name(name).unwrap();
        let fails = |seed: &u64| !run(*seed, mutants, false).is_good();
        let tried = (SHRINKABLE_FIRST..SHRINKABLE_FIRST + 500).filter(fails).take(SHRINKABLE_TRIES);
        let smaller = |seed: u64| {
            let whole = run(seed, mutants, false).events;
            let small = shrink(seed, &Less::default(), mutants, 200).expect("it fails");
            println!("{name}: {seed} {} ({} runs), {} events of {whole}", small.less, small.runs, small.outcome.events);
            assert!(small.runs <= 200 && !small.outcome.is_good());
            let is_less = !small.less.without.is_empty() && small.less.until.is_some();
            (is_less && small.outcome.events < whole).then_some((seed, small))
        };
        let mut tried = tried.map(smaller);
        let (seed, small) = tried.find_map(|s| s).unwrap_or_else(|| panic!("no seed of {name} gets smaller"));
        // Faults that are left out do not strike.
        for fault in &small.less.without {
            assert!(!small.outcome.counts.contains_key(&format!("fault {fault}")), "{fault}");
        }
        let options = Less::parse(&small.less.to_string()).unwrap();
        let again = run_config(options.of(Config::draw(seed)), mutants, false);
        assert_eq!((again.trace, &again.violations), (small.outcome.trace, &small.outcome.violations));
        assert!(small.outcome.replay(mutants).contains(&small.less.to_string()));
        // It is the mutant that fails.
        assert_good(&run_config(options.of(Config::draw(seed)), Mutants::default(), false));
    }
}

#[test]
fn a_seed_that_does_not_fail_has_nothing_to_be_made_smaller() {
    assert!(shrink(FIRST, &Less::default(), Mutants::default(), 10).is_none());
}

/// Leaving out nothing leaves the run as it is; leaving out more than there is does, too.
#[test]
fn less_of_nothing_is_the_same_run() {
    let more = Less::parse("--until 100s --volumes 9").unwrap();
    for seed in FIRST..FIRST + 3 {
        let whole = run(seed, Mutants::default(), false).trace;
        assert_eq!(whole, run_config(more.of(Config::draw(seed)), Mutants::default(), false).trace);
        let short = Less::parse("--until 0.2s").unwrap();
        assert_ne!(whole, run_config(short.of(Config::draw(seed)), Mutants::default(), false).trace);
    }
}
