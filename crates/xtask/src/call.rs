//! A program that is called: its words, so that it can be printed as well as run.

use crate::{Bad, Done, root};
use std::fmt;
use std::process::Command;

/// Variables that `cargo run` sets for this program, and that say nothing about the programs it calls.
const OF_THIS_PROGRAM: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];

/// A call of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    env: Vec<(&'static str, &'static str)>,
    words: Vec<String>,
    is_here: bool,
}

impl Call {
    /// A call of the words of `text`, at the top of the tree.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { words: text.split_whitespace().map(str::to_owned).collect(), ..Self::default() }
    }

    /// More words, as they are.
    #[must_use]
    pub fn with<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.words.extend(words.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable for the program.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.push((name, value));
        self
    }

    /// As it is, but behind everything else that wants a processor.
    #[must_use]
    pub fn gently(&self) -> Self {
        let words = ["nice", "-n", "19"].into_iter().map(str::to_owned);
        Self { words: words.chain(self.words.iter().cloned()).collect(), ..self.clone() }
    }

    /// In the folder where the user is, not at the top of the tree.
    #[must_use]
    pub fn here(mut self) -> Self {
        self.is_here = true;
        self
    }

    /// As a program to be started.
    #[must_use]
    pub fn command(&self) -> Command {
        let (program, rest) = self.words.split_first().map_or(("true", &[][..]), |(p, rest)| (p.as_str(), rest));
        let mut command = Command::new(program);
        command.args(rest).envs(self.env.iter().copied());
        if !self.is_here {
            command.current_dir(root());
        }
        for (name, _) in std::env::vars_os() {
            if OF_THIS_PROGRAM.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
    }

    /// Runs it, and says what repeats it if it fails.
    ///
    /// # Errors
    /// If it can't be started, or does not end with status 0.
    pub fn run(&self) -> Done {
        let how = match self.command().status() {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        self.failed(&how);
        Err(Bad::Failed)
    }

    /// As [`Self::run`], for a program that says itself what it did not understand (status 2).
    ///
    /// # Errors
    /// As those of `run`.
    pub fn run_with_usage(&self) -> Done {
        match self.command().status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) if status.code() == Some(2) => Err(Bad::NotUnderstood(format!("not understood by: {self}"))),
            Ok(status) => {
                self.failed(&status.to_string());
                Err(Bad::Failed)
            }
            Err(e) => {
                self.failed(&e.to_string());
                Err(Bad::Failed)
            }
        }
    }

    /// Says that it failed, and what repeats it.
    pub fn failed(&self, how: &str) {
        eprintln!("failed ({how}); repeat with:\n    {self}");
    }
}

impl fmt::Display for Call {
    /// As a line for a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain =
            |w: &str| !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:,+@".contains(&b));
        let quoted = |w: &str| if plain(w) { w.to_owned() } else { format!("'{}'", w.replace('\'', r"'\''")) };
        let env = self.env.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        let words: Vec<String> = env.chain(self.words.iter().map(|w| quoted(w))).collect();
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_printed_as_a_shell_takes_it() {
        let call = Call::new("cargo test").with(["--", "it's", "", "a b"]).env("FREEBS_FULL", "1").env("X", "-D w");
        assert_eq!(call.to_string(), r"FREEBS_FULL=1 X='-D w' cargo test -- 'it'\''s' '' 'a b'");
    }

    #[test]
    fn a_call_says_how_it_ended() {
        assert_eq!(Call::new("true").run(), Ok(()));
        assert_eq!(Call::new("false").run(), Err(Bad::Failed));
        assert_eq!(Call::new("no-such-program-at-all").run(), Err(Bad::Failed));
        assert_eq!(Call::new("sh -c").with(["exit 3"]).run_with_usage(), Err(Bad::Failed));
        assert!(matches!(Call::new("sh -c").with(["exit 2"]).run_with_usage(), Err(Bad::NotUnderstood(_))));
    }
}
