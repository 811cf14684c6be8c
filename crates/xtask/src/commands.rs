//! The commands: their names, their help, and what they call.

use crate::call::Call;
use crate::count::Counts;
use crate::options::Options;
use crate::watched::watched;
use crate::{Bad, Done, ci, daily, mutants};

/// A command.
#[derive(Clone, Copy)]
pub struct Command {
    /// The first word of the call.
    pub name: &'static str,
    /// How it is written, behind the name.
    pub usage: &'static str,
    /// Its purpose, in a line.
    pub about: &'static str,
    /// About how long it takes on two cores, when what it needs is built.
    pub time: &'static str,
    /// Everything else there is to know.
    pub more: &'static str,
    run: fn(Options) -> Done,
}

/// All commands, in the order of the help text.
pub const COMMANDS: [Command; 10] = [
    Command {
        name: "ci",
        usage: "[--step NAME]... [--dry-run]",
        about: "all that must hold before a change is taken",
        time: "tens of minutes; --step format 2 s",
        more: "\
Steps: format, lints, licences, tests. The first one that fails ends it. Lints run beside the tests, with what these
leave of the processors, once all is built; `--step lints` runs them alone. It says how long each step took; the last
line counts tests: N passed, N failed, N skipped. The tests are `cargo test --workspace`; their lines are kept in
target/ci-tests.log. `.ci/run` installs what the tests call, on Debian and as root, and then runs this.

    --step NAME   only this step; may be given several times
    --dry-run     print the commands of the steps, and run none",
        run: ci::run,
    },
    Command {
        name: "test",
        usage: "[NAME] [--full]",
        about: "the tests whose names contain NAME, of all crates, or all tests",
        time: "as long as those tests",
        more: "\
Options:
    --full   the long forms (FREEBS_FULL=1), which docs/testing.md lists",
        run: test,
    },
    Command {
        name: "sim",
        usage: "SEED [--seeds N] [--verbose] [...] | --minutes M [--first SEED]",
        about: "the simulator: one seed, some, or new ones for M minutes on all cores",
        time: "a seed 0.1 s, or M minutes",
        more: "\
Options:
    --seeds N         this many seeds, one after the other
    --verbose         print every event
    --counts          say how often things happened
    --all             go on after a seed that failed
    --profile NAME    only seeds whose run is of this kind
    --seats           only seeds in which the nodes keep the control state themselves
    --mutant NAME     leave out a rule, to see it noticed
    --without FAULTS  leave out faults: names, or first words of several (power: power_node and power_all)
    --until TIME      end load and faults earlier, such as 1.5s
    --volumes N       only the first volumes
    --shrink          make a run that fails smaller, by the three options before

    --minutes M       one process for each core; what they counted is summed at the end. Seeds that fail are made
                      smaller and kept in target/sim-failed.
    --first SEED      the first seed; without it every day has seeds of its own",
        run: daily::run,
    },
    Command {
        name: "mutants",
        usage: "[CRATE] [--write]",
        about: "hunts for seeds that catch each mutant, and prints them as tables",
        time: "tens of minutes",
        more: "\
Tests begin with the seeds of these tables, so that they catch each mutant at once. A line `stale: ...` of a test says
that a table is to be made anew.

    CRATE     sim, consensus, driver or lsvd; without it all of them
    --write   write the tables",
        run: mutants::run,
    },
    Command {
        name: "faults",
        usage: "[NAME]",
        about: "repeats faults of nodes and of the control plane on a cluster of processes, in their long form",
        time: "an hour or more",
        more: "\
Options:
    NAME   only tests whose names contain it, such as nodes

It prints how long clients had to wait. `FREEBS_ROUNDS` says how often each fault is repeated.",
        run: faults,
    },
    Command {
        name: "cluster",
        usage: "[OPTION]...",
        about: "starts a cluster of this build on this machine; Ctrl-C stops it",
        time: "until it is stopped",
        more: "\
Options are those of `freebs up`; `cargo run --release -- up --help` lists them. Data go to ./freebs-data.",
        run: |o| Call::new("cargo run --release -p freebs-node -- up").with(o.rest()).here().run_with_usage(),
    },
    Command {
        name: "bench",
        usage: "[OPTION]...",
        about: "measures this build beside other servers",
        time: "15 minutes; less with fewer jobs",
        more: "Options are those of bench/run; bench/README.md describes them.",
        run: bench,
    },
    Command {
        name: "fuzz",
        usage: "TARGET [--runs N | --seconds S]",
        about: "runs a fuzz target on the stable compiler",
        time: "as long as it is told",
        more: "Other options go to the runner in crates/fuzz, too.",
        run: fuzz,
    },
    Command {
        name: "bless",
        usage: "",
        about: "writes the golden bytes of formats and messages anew, while a version is not out",
        time: "seconds",
        more: "It prints which files differ then from what is committed.",
        run: bless,
    },
    Command {
        name: "docs",
        usage: "",
        about: "builds the documentation without a warning, and checks tables and links of docs",
        time: "a minute",
        more: "The pages are in target/doc.",
        run: docs,
    },
];

/// Runs the command of these words.
///
/// # Errors
/// If it fails or is not understood.
pub fn run(words: &[String]) -> Done {
    let wants_help = |w: &String| w == "--help" || w == "-h";
    let (name, rest) = match words.split_first() {
        None => {
            print!("{}", overview());
            return Err(Bad::NotUnderstood("a command is needed".into()));
        }
        Some((first, _)) if wants_help(first) || first == "help" => {
            print!("{}", overview());
            return Ok(());
        }
        Some(found) => found,
    };
    let Some(command) = COMMANDS.iter().find(|c| c.name == name) else {
        return Err(Bad::NotUnderstood(format!("there is no command '{name}'")));
    };
    if rest.iter().take_while(|w| *w != "--").any(wants_help) {
        print!("{}", help(command));
        return Ok(());
    }
    (command.run)(Options::new(rest))
}

/// The help of all.
#[must_use]
pub fn overview() -> String {
    let mut text = String::from("One command for each thing that a developer does.\n\n");
    for c in &COMMANDS {
        text += &format!("  cargo xtask {}\n", format!("{} {}", c.name, c.usage).trim_end());
        text += &format!("      {} ({})\n", c.about, c.time);
    }
    text + "\n`cargo xtask COMMAND --help` says more. Times are for two cores, with everything built.\n\
            Exit status: 0 fine, 1 failed, 2 not understood. What fails prints the command that repeats it.\n"
}

/// The help of one command.
#[must_use]
pub fn help(c: &Command) -> String {
    let usage = format!("{} {}", c.name, c.usage);
    format!("cargo xtask {}\n\n{}.\nTime: {}.\n\n{}\n", usage.trim_end(), c.about, c.time, c.more)
}

fn test(mut options: Options) -> Done {
    let full = options.flag("--full");
    let name = options.word();
    options.end()?;
    let call = Call::new("cargo test --workspace --no-fail-fast");
    let call = match name {
        // Documentation tests have no names that anybody looks for.
        Some(name) => call.with(["--lib", "--bins", "--tests", "--", &name]),
        None => call,
    };
    tests(&if full { call.env("FREEBS_FULL", "1") } else { call })
}

fn faults(mut options: Options) -> Done {
    let name = options.word();
    options.end()?;
    let name = name.map_or("faults".to_owned(), |n| format!("faults::{n}"));
    tests(&Call::new("cargo test --release -p freebs-node --test process").with([name]).env("FREEBS_FULL", "1"))
}

fn bench(options: Options) -> Done {
    let rest = options.rest();
    Call::new("cargo build --release -p freebs-node").run()?;
    Call::new("bench/run").with(rest).run_with_usage()
}

fn fuzz(mut options: Options) -> Done {
    let Some(target) = options.word() else {
        return Err(Bad::NotUnderstood("fuzz needs the name of a target".into()));
    };
    Call::new("cargo run --profile fuzz -p freebs-fuzz --").with([target]).with(options.rest()).run_with_usage()
}

fn bless(options: Options) -> Done {
    options.end()?;
    for (package, test) in [("freebs-format", "golden"), ("freebs-consensus", "formats"), ("freebs-fuzz", "seeds")] {
        tests(&Call::new("cargo test --test suite -p").with([package, test]).env("FREEBS_BLESS", "1"))?;
    }
    println!("files that differ from what is committed:");
    Call::new("git status --short -- *.hex crates/fuzz/corpus").run()
}

fn docs(options: Options) -> Done {
    options.end()?;
    Call::new("cargo doc --workspace --no-deps --locked").env("RUSTDOCFLAGS", "-D warnings").run()?;
    Call::new("cargo test --workspace --locked --doc").run()?;
    tests(&Call::new("cargo test --locked -p freebs-format --test suite docs"))?;
    tests(&Call::new("cargo test --locked -p freebs-tidy --test suite"))?;
    tests(&Call::new("cargo test --locked -p freebs-xtask --test suite"))
}

/// Runs tests. A name that no test has is a failure, too.
fn tests(call: &Call) -> Done {
    let mut counts = Counts::default();
    let how = match watched(call, None, None, |line| counts.line(line)) {
        Ok(()) if counts.has_passed() => return Ok(()),
        Ok(()) => "no test has such a name".to_owned(),
        Err(how) => how,
    };
    call.failed(&how);
    Err(Bad::Failed)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tests_that_do_not_run_have_failed() {
        let run = |script: &str| tests(&Call::new("sh -c").with([script]));
        assert_eq!(run("echo 'test result: ok. 1 passed; 0 failed; 0 ignored'"), Ok(()));
        assert_eq!(run("echo 'test result: ok. 0 passed; 0 failed; 0 ignored'"), Err(Bad::Failed));
        assert_eq!(run("echo 'test result: ok. 1 passed; 0 failed; 0 ignored'; exit 101"), Err(Bad::Failed));
    }

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_is_not_known_is_not_understood() {
        for text in [
            "",
            "tea",
            "ci --what",
            "ci --step tea",
            "test a b",
            "fuzz",
            "sim --minutes x",
            "sim --minutes 0",
            "mutants tea",
        ] {
            assert!(matches!(run(&words(text)), Err(Bad::NotUnderstood(_))), "{text}");
        }
    }

    #[test]
    fn every_command_has_help() {
        assert_eq!(run(&words("--help")), Ok(()));
        for c in &COMMANDS {
            assert_eq!(run(&words(&format!("{} --help", c.name))), Ok(()));
            assert!(overview().contains(c.name) && !c.about.is_empty() && !c.time.is_empty() && !c.more.is_empty());
        }
    }
}
