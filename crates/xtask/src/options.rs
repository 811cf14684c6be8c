//! Options of a command: `--name`, or `--name VALUE`; the words that are neither.

use crate::Bad;
use std::str::FromStr;

/// The words behind a command.
#[derive(Clone, Debug, Default)]
pub struct Options {
    words: Vec<String>,
}

impl Options {
    /// The words behind the name of the command.
    #[must_use]
    pub fn new(words: &[String]) -> Self {
        Self { words: words.to_vec() }
    }

    /// Takes out `--name`; whether it was there.
    pub fn flag(&mut self, name: &str) -> bool {
        let before = self.words.len();
        self.words.retain(|w| w != name);
        self.words.len() < before
    }

    /// Takes out `--name VALUE` or `--name=VALUE`, the first there is.
    ///
    /// # Errors
    /// If the value lacks, or is none of its type.
    pub fn value<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, Bad> {
        let inline = format!("{name}=");
        let Some(at) = self.words.iter().position(|w| w == name || w.starts_with(&inline)) else { return Ok(None) };
        let word = self.words.remove(at);
        let text = match word.strip_prefix(&inline) {
            Some(text) => text.to_owned(),
            None if at < self.words.len() => self.words.remove(at),
            None => return Err(Bad::NotUnderstood(format!("{name} lacks its value"))),
        };
        let wrong = |_| Bad::NotUnderstood(format!("'{text}' is no value of {name}"));
        text.parse().map(Some).map_err(wrong)
    }

    /// Takes out all `--name VALUE`.
    ///
    /// # Errors
    /// If a value lacks.
    pub fn values(&mut self, name: &str) -> Result<Vec<String>, Bad> {
        let mut all = Vec::new();
        while let Some(value) = self.value(name)? {
            all.push(value);
        }
        Ok(all)
    }

    /// Takes out the first word, which is no option.
    pub fn word(&mut self) -> Option<String> {
        let is_word = self.words.first().is_some_and(|w| !w.starts_with('-'));
        is_word.then(|| self.words.remove(0))
    }

    /// The words that were not taken out, for a program that knows it.
    #[must_use]
    pub fn rest(self) -> Vec<String> {
        self.words
    }

    /// # Errors
    /// If something was not taken out.
    pub fn end(self) -> Result<(), Bad> {
        match self.words.first() {
            None => Ok(()),
            Some(word) => Err(Bad::NotUnderstood(format!("'{word}' is not known here"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Options {
        Options::new(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_taken_out_and_what_is_left_is_refused() {
        let mut o = options("name --full --step a --step=b --minutes 5");
        assert_eq!(o.word().as_deref(), Some("name"));
        assert!(o.flag("--full") && !o.flag("--full"));
        assert_eq!(o.values("--step").unwrap(), ["a", "b"]);
        assert_eq!(o.value::<u64>("--minutes").unwrap(), Some(5));
        assert_eq!(o.word(), None);
        assert!(o.end().is_ok());
        assert!(options("--what").end().is_err());
        assert!(options("--minutes").value::<u64>("--minutes").is_err());
        assert!(options("--minutes x").value::<u64>("--minutes").is_err());
    }
}
