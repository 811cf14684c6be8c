//! The lines of a test run, counted: tests that passed, failed, and could not be done here.

/// Lines that are worth repeating at the end begin with one of these.
const NOTES: [&str; 3] = ["measured: ", "skipped: ", "stale: "];

/// Counts of a test run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Tests that say so; the test runner takes them for passed.
    skipped: u64,
    /// Lines with the result of a test binary.
    results: u64,
    notes: Vec<String>,
}

/// The result of a whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// `N passed, N failed, N skipped`.
    pub line: String,
    /// All tests passed, and at least one was run.
    pub is_good: bool,
}

impl Counts {
    /// Takes in a line.
    pub fn line(&mut self, line: &str) {
        if NOTES.iter().any(|n| line.starts_with(n)) {
            self.notes.push(line.to_owned());
            self.skipped += u64::from(line.starts_with("skipped: "));
        }
        let Some(rest) = line.strip_prefix("test result:") else { return };
        self.results += 1;
        let words: Vec<&str> = rest.split_whitespace().collect();
        for pair in words.windows(2) {
            let [number, name] = pair else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match name.trim_end_matches(';') {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// Lines worth repeating, in their order.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// True if any test passed: a name that matches nothing has run none.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.passed > 0
    }

    /// The verdict on a run that ended well or not. A test binary that dies has no result line, and neither has one that
    /// hangs: then the status alone says that something failed. A run without any result has shown nothing.
    #[must_use]
    pub fn verdict(&self, ended_well: bool) -> Verdict {
        let shows_nothing = !ended_well || self.results == 0;
        let failed = if shows_nothing { self.failed.max(1) } else { self.failed };
        let line = format!(
            "{} passed, {failed} failed, {} skipped",
            self.passed.saturating_sub(self.skipped),
            self.ignored + self.skipped
        );
        Verdict { line, is_good: ended_well && failed == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(text: &str) -> Counts {
        let mut counts = Counts::default();
        text.lines().for_each(|l| counts.line(l));
        counts
    }

    const GOOD: &str = "\
running 3 tests
test a ... ok
skipped: b: there is no fio
test b ... ok
measured: c: 5 of 7 things
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s
     Running tests/suite/main.rs
test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s
stale: a/table: One is caught by seed 3
";

    #[test]
    fn results_are_added_and_skipped_tests_do_not_pass() {
        let counts = counted(GOOD);
        let good = Verdict { line: "12 passed, 0 failed, 2 skipped".into(), is_good: true };
        assert_eq!(counts.verdict(true), good);
        assert_eq!(counts.notes().len(), 3);
    }

    #[test]
    fn a_failed_test_is_no_good_whatever_the_status() {
        let text = "test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2s";
        let counts = counted(&format!("{GOOD}{text}"));
        for status in [true, false] {
            let v = counts.verdict(status);
            assert_eq!((v.line.as_str(), v.is_good), ("16 passed, 2 failed, 2 skipped", false));
        }
    }

    #[test]
    fn a_binary_that_dies_has_no_result_and_failed() {
        let v = counted(GOOD).verdict(false);
        assert_eq!((v.line.as_str(), v.is_good), ("12 passed, 1 failed, 2 skipped", false));
    }

    #[test]
    fn a_run_without_results_is_no_good() {
        for text in ["", "   Compiling x", "a test result: ok. 3 passed; 0 failed", "skipped: all: nothing here"] {
            assert!(!counted(text).verdict(true).is_good, "{text}");
        }
    }

    #[test]
    fn lines_count_only_from_their_start() {
        let inside = "  | test result: ok. 3 passed; 0 failed; 0 ignored\nit says skipped: no\n";
        assert_eq!(counted(inside), Counts::default());
    }
}
