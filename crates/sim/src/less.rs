//! Runs with parts left out: a failing seed gets smaller by leaving out faults, volumes and time.
//!
//! Invariant: what is left of a run is drawn as in the whole run, so that leaving out little changes little.

use crate::config::{Config, Odds};
use freebs_types::Nanos;
use std::collections::BTreeSet;
use std::fmt;

/// Faults of the network that have no moment of their own, and so no odds per second.
pub const LOST_MESSAGES: &str = "lost_messages";
pub const FLIPPED_BITS: &str = "flipped_bits";

/// The parts of the run of a seed that are left out. Written and read as the options of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Less {
    /// Names of faults.
    pub without: BTreeSet<&'static str>,
    /// Load and faults end this long after the run began to have them, if they do not end earlier.
    pub until: Option<Nanos>,
    /// Only the first volumes; at least 1.
    pub volumes: Option<usize>,
}

/// All names of faults, in a fixed order.
#[must_use]
pub fn fault_names() -> Vec<&'static str> {
    let odds = Odds::default().list();
    odds.iter().map(|(name, _)| *name).chain([LOST_MESSAGES, FLIPPED_BITS]).collect()
}

impl Less {
    /// Adds faults by name, or by the first word of several: `power` means `power_node` and `power_all`.
    ///
    /// # Errors
    /// If there is no such fault.
    pub fn leave_out(&mut self, name: &str) -> Result<(), String> {
        let names = fault_names();
        let word = format!("{name}_");
        let found: Vec<_> = names.iter().filter(|n| **n == name || n.starts_with(&word)).copied().collect();
        if found.is_empty() {
            return Err(format!("there is no fault {name}; there are {}", names.join(", ")));
        }
        self.without.extend(found);
        Ok(())
    }

    /// Reads options, as [`fmt::Display`] writes them.
    ///
    /// # Errors
    /// If they are not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut less = Self::default();
        let mut words = text.split_whitespace();
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} lacks its value"))?;
            match option {
                "--without" => value.split(',').try_for_each(|name| less.leave_out(name))?,
                "--until" => less.until = Some(parse_time(value)?),
                "--volumes" => less.volumes = Some(parse_volumes(value)?),
                other => return Err(format!("{other} is no option of a smaller run")),
            }
        }
        Ok(less)
    }

    /// The run of a seed, without what is left out.
    #[must_use]
    pub fn of(&self, mut config: Config) -> Config {
        config.until = self.until.unwrap_or(config.until).min(config.until);
        config.volumes.truncate(self.volumes.unwrap_or(usize::MAX).max(1));
        if self.without.contains(LOST_MESSAGES) {
            config.net.lost = 0.0;
        }
        if self.without.contains(FLIPPED_BITS) {
            config.net.flipped = 0.0;
        }
        config.less = self.clone();
        config
    }
}

impl fmt::Display for Less {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.without.is_empty() {
            let names: Vec<&str> = self.without.iter().copied().collect();
            parts.push(format!("--without {}", names.join(",")));
        }
        if let Some(until) = self.until {
            parts.push(format!("--until {}.{:03}s", until.millis() / 1000, until.millis() % 1000));
        }
        if let Some(volumes) = self.volumes {
            parts.push(format!("--volumes {volumes}"));
        }
        f.write_str(&parts.join(" "))
    }
}

/// Seconds with up to three decimals, such as `12.5s`.
///
/// # Errors
/// If the text is something else.
pub fn parse_time(text: &str) -> Result<Nanos, String> {
    let wrong = || format!("'{text}' is no time; write 12.5s");
    let number = text.strip_suffix('s').ok_or_else(wrong)?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if part.len() > 3 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let seconds: u64 = whole.parse().map_err(|_| wrong())?;
    let millis: u64 = format!("{part:0<3}").parse().map_err(|_| wrong())?;
    seconds.checked_mul(1000).filter(|ms| *ms < 1 << 40).map(|ms| Nanos::from_millis(ms + millis)).ok_or_else(wrong)
}

/// A number of volumes.
///
/// # Errors
/// If the text is no number from 1 on.
pub fn parse_volumes(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("'{text}' is no number of volumes; write 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_they_are_written() {
        for text in ["", "--without cut,rot", "--until 0.050s --volumes 1", "--without power_all --until 12.500s"] {
            assert_eq!(Less::parse(text).unwrap().to_string(), text);
        }
        let power = Less::parse("--without power,rot --until 12.5s").unwrap();
        assert_eq!(power.to_string(), "--without power_all,power_node,rot --until 12.500s");
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in ["--without", "--without pow", "--until 3", "--until 1.2345s", "--until s", "--until 1.-5s", "7 8"]
        {
            assert!(Less::parse(text).is_err(), "{text}");
        }
        assert!(Less::parse("--volumes 0").is_err());
        assert!(Less::parse("--until 99999999999999999s").is_err());
    }
}
