//! `cargo xtask ci`: everything that must hold before a change is taken. `.ci/run` calls it on a fresh machine.
//!
//! Tests wait for disks, clocks and each other; the lints, which wait for nobody, run beside them once they are built.
//!
//! Invariant: it ends well only if every step that was asked for was done and ended well. The first step that fails ends
//! it; only the licences may be left out, where the program for them lacks, and that is said.

use crate::beside::Beside;
use crate::call::Call;
use crate::count::Counts;
use crate::options::Options;
use crate::watched::watched;
use crate::{Bad, Done, root};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A test run that takes longer hangs.
const TESTS_MAX: Duration = Duration::from_secs(3600);
/// Where the lines of the tests are kept, from the top of the tree.
const LOG: &str = "target/ci-tests.log";
/// Where the lines of lints that run beside tests are kept.
const LINTS_LOG: &str = "target/ci-lints.log";
/// How a line begins that says that everything is built, and tests start.
const BUILT: &str = "     Running ";

/// A part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `cargo fmt --check`.
    Format,
    /// clippy, with warnings as errors.
    Lints,
    /// cargo-deny, where it is installed.
    Licences,
    /// The test command of the README.
    Tests,
}

impl Step {
    /// All steps, in the order in which they are done.
    pub const ALL: [Self; 4] = [Self::Format, Self::Lints, Self::Licences, Self::Tests];

    /// The name behind `--step`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Lints => "lints",
            Self::Licences => "licences",
            Self::Tests => "tests",
        }
    }

    /// The command that it is. Tests are those of the README; all of them run, so that the count is of all.
    #[must_use]
    pub fn call(self) -> Call {
        Call::new(match self {
            Self::Format => "cargo fmt --all --check",
            Self::Lints => "cargo clippy --workspace --all-targets --locked -- -D warnings",
            Self::Licences => "cargo deny --locked check --hide-inclusion-graph bans licenses sources",
            Self::Tests => "cargo test --workspace --locked --no-fail-fast",
        })
    }

    fn of_name(name: &str) -> Result<Self, Bad> {
        let names = Self::ALL.map(Self::name).join(", ");
        let wrong = || Bad::NotUnderstood(format!("there is no step {name}; there are {names}"));
        Self::ALL.into_iter().find(|s| s.name() == name).ok_or_else(wrong)
    }
}

/// Runs the steps that the options name, or all.
///
/// # Errors
/// If one fails, or the options are not understood.
pub fn run(mut options: Options) -> Done {
    let is_dry = options.flag("--dry-run");
    let named = options.values("--step")?;
    options.end()?;
    let mut steps = named.iter().map(|name| Step::of_name(name)).collect::<Result<Vec<_>, _>>()?;
    if steps.is_empty() {
        steps.extend(Step::ALL);
    }
    if is_dry {
        for step in steps {
            println!("{:>8}  {}", step.name(), step.call());
        }
        return Ok(());
    }
    all(&steps)
}

fn all(steps: &[Step]) -> Done {
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut last = String::new();
    let together = steps.contains(&Step::Lints) && steps.contains(&Step::Tests);
    let mut lints = together.then(|| Beside::new(Step::Lints.call(), LINTS_LOG));
    for step in &in_order(steps) {
        println!("\n== {} ({} s)", step.name(), begun.elapsed().as_secs());
        let step_begun = Instant::now();
        let done = match step {
            Step::Tests => tests(&mut last, lints.as_mut()),
            Step::Lints => lints.as_mut().map_or_else(|| step.call().run(), Beside::end),
            Step::Licences if !has_deny() => {
                println!(
                    "left out: cargo-deny is not installed, and building it takes longer than everything else here"
                );
                Ok(())
            }
            _ => step.call().run(),
        };
        times.push(format!("{:>8} {:>6.1} s", step.name(), step_begun.elapsed().as_secs_f64()));
        if let Err(bad) = done {
            if let Some(lints) = lints.as_mut().filter(|l| *step == Step::Tests && l.is_begun())
                && lints.end().is_err()
            {
                println!("lints failed, too");
            }
            println!("\n{}", times.join("\n"));
            println!("{} failed; cargo xtask ci --step {} repeats it\n{last}", step.name(), step.name());
            return Err(bad);
        }
    }
    println!("\n== done ({} s)\n{}", begun.elapsed().as_secs(), times.join("\n"));
    if !last.is_empty() {
        println!("{last}");
    }
    Ok(())
}

/// The steps in the order in which they end: lints that run beside tests are looked at after these.
fn in_order(steps: &[Step]) -> Vec<Step> {
    let mut steps = steps.to_vec();
    if steps.contains(&Step::Tests) {
        steps.sort_by_key(|s| match s {
            Step::Format | Step::Licences => 0,
            Step::Tests => 1,
            Step::Lints => 2,
        });
    }
    steps
}

fn has_deny() -> bool {
    let mut version = Call::new("cargo deny --version").command();
    version.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// Runs the tests, and lints beside them; `last` is what is to be said at the very end.
fn tests(last: &mut String, mut lints: Option<&mut Beside>) -> Done {
    let call = Step::Tests.call();
    let path = root().join(LOG);
    let log = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::File::create(&path));
    let log = log.map_err(|e| {
        eprintln!("{} can't be written: {e}", path.display());
        Bad::Failed
    })?;
    let mut counts = Counts::default();
    let done = watched(&call, Some(TESTS_MAX), Some(log), |line| {
        counts.line(line);
        if let Some(lints) = lints.as_mut().filter(|_| line.starts_with(BUILT)) {
            lints.begin();
        }
    });
    let verdict = counts.verdict(done.is_ok());
    *last = [counts.notes().join("\n"), verdict.line].join("\n").trim_start().to_owned();
    if verdict.is_good {
        return Ok(());
    }
    call.failed(&done.err().unwrap_or_else(|| "tests failed".into()));
    Err(Bad::Failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_are_known_by_name() {
        for step in Step::ALL {
            assert_eq!(Step::of_name(step.name()), Ok(step));
        }
        assert!(matches!(Step::of_name("tea"), Err(Bad::NotUnderstood(_))));
    }

    /// The test command is the one that the README names.
    #[test]
    fn the_tests_are_those_of_the_readme() {
        let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
        assert!(readme.lines().any(|l| l == "    cargo test --workspace"));
        assert_eq!(Step::Tests.call().to_string(), "cargo test --workspace --locked --no-fail-fast");
    }
}
