//! Snapshots that are made by themselves, and which of them stay.
//!
//! Times are cut into slots of `every_ms`, counted from 1970; each slot has one snapshot, which is named by its beginning.
//! So a leader that knows nothing of another one's last minute makes none twice.

use crate::limits;
use freebs_types::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Before the time in the names of those that a schedule makes.
const PREFIX: &str = "auto-";
/// Seconds since 1970 as `PREFIX` has them behind it.
const SHAPE: &str = "1970-01-01-000000";

/// How snapshots are grouped before the newest of each group stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Each by itself.
    Each,
    /// Those of one hour.
    Hour,
    /// Those of one day, in UTC.
    Day,
    /// Those of seven days.
    Week,
}

impl Group {
    /// All groups by their bytes in a command.
    pub const ALL: [Self; 4] = [Self::Each, Self::Hour, Self::Day, Self::Week];

    /// The letter behind a number of groups; none for one snapshot by itself.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Self::Each => "",
            Self::Hour => "h",
            Self::Day => "d",
            Self::Week => "w",
        }
    }

    /// Milliseconds that a group spans; 1 for one snapshot by itself.
    #[must_use]
    pub fn span_ms(self) -> u64 {
        match self {
            Self::Each => 1,
            Self::Hour => HOUR_MS,
            Self::Day => DAY_MS,
            Self::Week => 7 * DAY_MS,
        }
    }
}

/// The newest snapshot of each of the last `count` groups that have one stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    /// How they are grouped.
    pub by: Group,
    /// Groups, at least one.
    pub count: u32,
}

/// When snapshots of a volume are made by themselves, and which of these stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Milliseconds between two: whole minutes, at most a year.
    pub every_ms: u64,
    /// Each rule keeps its own ones; what none keeps is deleted. 1 to `KEEP_RULES_MAX`.
    pub keep: Vec<Keep>,
}

/// The name of the snapshot for the slot that begins at this time, milliseconds since 1970.
fn name_of(slot_ms: u64) -> String {
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(slot_ms)).to_string();
    format!("{PREFIX}{}", time.replace(':', "").replace('T', "-").trim_end_matches('Z'))
}

/// The beginning of its slot if a schedule gave this name, milliseconds since 1970.
fn slot_of(name: &str) -> Option<u64> {
    let text = name.strip_prefix(PREFIX).filter(|t| t.len() == SHAPE.len() && t.is_ascii())?;
    let (day, time) = text.split_at(10);
    let time = time.strip_prefix('-').filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?;
    let text = format!("{day}T{}:{}:{}Z", &time[..2], &time[2..4], &time[4..]);
    let since = humantime::parse_rfc3339(&text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    let ms = u64::try_from(since.as_millis()).ok()?;
    (name_of(ms) == name).then_some(ms)
}

impl Schedule {
    /// True for the names that schedules give: nobody else may.
    #[must_use]
    pub fn names(name: &str) -> bool {
        slot_of(name).is_some()
    }

    /// `Invalid`, with the way out, if it can't be kept.
    pub fn check(&self) -> Result<()> {
        let year = 366 * DAY_MS;
        if self.every_ms < MINUTE_MS || self.every_ms > year || !self.every_ms.is_multiple_of(MINUTE_MS) {
            return Err(Error::invalid("a schedule makes a snapshot every 1 to 527040 minutes, such as 1h"));
        }
        if self.keep.is_empty() || self.keep.len() > limits::KEEP_RULES_MAX {
            return Err(Error::invalid(format!(
                "a schedule has 1 to {} rules of what stays, such as 24h,7d,4w",
                limits::KEEP_RULES_MAX
            )));
        }
        let kept: u64 = self.keep.iter().map(|k| u64::from(k.count)).sum();
        if self.keep.iter().any(|k| k.count == 0) || kept > limits::KEPT_BY_SCHEDULE_MAX {
            return Err(Error::invalid(format!(
                "the rules of a schedule keep at least one snapshot each, and {} together at most",
                limits::KEPT_BY_SCHEDULE_MAX
            )));
        }
        Ok(())
    }

    /// The name of the snapshot that is to be made now, if there is none for this slot nor for the next one: a leader whose
    /// clock is a little ahead may have made that. What lies further ahead is of a clock that was wrong, and is not
    /// waited for. `names` are those of all that the volume has, `now_ms` is milliseconds since 1970.
    #[must_use]
    pub fn due<'a>(&self, names: impl IntoIterator<Item = &'a str>, now_ms: u64) -> Option<String> {
        let every = self.every_ms.max(1);
        let slot = now_ms / every * every;
        let is_there = names.into_iter().filter_map(slot_of).any(|n| n == slot || n == slot.saturating_add(every));
        (!is_there).then(|| name_of(slot))
    }

    /// Which of these names, of complete snapshots, no rule keeps. Those that people have made are not among them.
    #[must_use]
    pub fn expired<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let mut all: Vec<(u64, &str)> = names.into_iter().filter_map(|n| slot_of(n).map(|ms| (ms, n))).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        let mut stay = BTreeSet::new();
        for rule in &self.keep {
            let mut last = None;
            let mut left = rule.count;
            for (ms, name) in &all {
                let group = ms / rule.by.span_ms();
                if left > 0 && last != Some(group) {
                    (last, left) = (Some(group), left - 1);
                    stay.insert(*name);
                }
            }
        }
        all.into_iter().map(|(_, name)| name).filter(|name| !stay.contains(name)).collect()
    }
}

/// `a snapshot every 1h, keeps 24h,7d,4w`.
impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let every = humantime::format_duration(Duration::from_millis(self.every_ms));
        let rules: Vec<String> = self.keep.iter().map(|k| format!("{}{}", k.count, k.by.letter())).collect();
        write!(f, "a snapshot every {every}, keeps {}", rules.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_764_180_000_000; // 2025-11-26T18:00:00Z

    fn schedule(every_ms: u64, keep: &[(Group, u32)]) -> Schedule {
        Schedule { every_ms, keep: keep.iter().map(|(by, count)| Keep { by: *by, count: *count }).collect() }
    }

    #[test]
    fn names_say_their_slots() {
        assert_eq!(name_of(T), "auto-2025-11-26-180000");
        assert_eq!(slot_of(&name_of(T)), Some(T));
        for other in [
            "auto-",
            "auto-x",
            "auto-2025-11-26-18000",
            "auto-2025-13-26-180000",
            "2025-11-26-180000",
            "auto-2025-11-26-18000é",
        ] {
            assert!(!Schedule::names(other), "{other}");
        }
    }

    #[test]
    fn each_slot_has_one() {
        let hourly = schedule(HOUR_MS, &[(Group::Each, 3)]);
        let first = hourly.due(["monday"], T + 5).expect("none yet");
        assert_eq!(first, name_of(T));
        assert_eq!(hourly.due([first.as_str(), "monday"], T + HOUR_MS - 1), None);
        assert_eq!(hourly.due([first.as_str()], T + HOUR_MS), Some(name_of(T + HOUR_MS)));
        // A clock that went back by little makes none in the past.
        assert_eq!(hourly.due([first.as_str()], T - HOUR_MS), None);
        // One that was a day ahead has made one of tomorrow: the hours until then get theirs.
        let tomorrow = name_of(T + DAY_MS);
        assert_eq!(hourly.due([tomorrow.as_str()], T + HOUR_MS), Some(name_of(T + HOUR_MS)));
        assert_eq!(hourly.due([tomorrow.as_str()], T + DAY_MS - HOUR_MS), None);
        // After days away one is made, not one for each slot.
        assert_eq!(hourly.due([first.as_str()], T + 5 * DAY_MS + 1), Some(name_of(T + 5 * DAY_MS)));
    }

    #[test]
    fn each_rule_keeps_the_newest_of_its_groups() {
        let rules = schedule(HOUR_MS, &[(Group::Hour, 24), (Group::Day, 7), (Group::Week, 4)]);
        // Forty days, each hour one, as it goes.
        let mut there: Vec<String> = vec!["by-hand".into()];
        for hour in 0..40 * 24 {
            there.extend(rules.due(there.iter().map(String::as_str), T + hour * HOUR_MS));
            let gone: Vec<String> =
                rules.expired(there.iter().map(String::as_str)).into_iter().map(str::to_owned).collect();
            there.retain(|n| !gone.contains(n));
        }
        let last = T + (40 * 24 - 1) * HOUR_MS;
        assert!(there.contains(&"by-hand".to_owned()));
        let mut slots: Vec<u64> = there.iter().filter_map(|n| slot_of(n)).collect();
        slots.sort_unstable_by(|a, b| b.cmp(a));
        let hours: Vec<u64> = (0..24).map(|h| last - h * HOUR_MS).collect();
        assert_eq!(slots[..24], hours);
        // The newest of each of seven days, the two of the last 24 hours among them, and of each of four weeks.
        let count = |span: u64, of: &[u64]| of.iter().map(|s| s / span).collect::<BTreeSet<_>>().len();
        assert!(count(DAY_MS, &slots) >= 7 && count(7 * DAY_MS, &slots) == 4, "{slots:?}");
        assert!((24 + 5..=24 + 5 + 4).contains(&slots.len()), "{}", slots.len());
        assert!(last - slots.last().expect("some") >= 14 * DAY_MS);
    }

    #[test]
    fn a_time_without_snapshots_costs_none_of_those_that_are_there() {
        let rules = schedule(HOUR_MS, &[(Group::Day, 3)]);
        let names: Vec<String> = [0, 1, 2].iter().map(|d| name_of(T + d * DAY_MS)).collect();
        assert!(rules.expired(names.iter().map(String::as_str)).is_empty());
        // Two of a day: the newer one stays.
        let two = [name_of(T), name_of(T + HOUR_MS)];
        assert_eq!(rules.expired(two.iter().map(String::as_str)), [two[0].as_str()]);
    }

    #[test]
    fn what_can_not_be_kept_is_refused() {
        assert!(schedule(HOUR_MS, &[(Group::Hour, 24), (Group::Day, 7)]).check().is_ok());
        for (every, keep) in [
            (0, &[(Group::Each, 1)][..]),
            (MINUTE_MS + 1, &[(Group::Each, 1)]),
            (400 * DAY_MS, &[(Group::Each, 1)]),
            (HOUR_MS, &[]),
            (HOUR_MS, &[(Group::Each, 0)]),
            (HOUR_MS, &[(Group::Each, u32::MAX), (Group::Day, u32::MAX)]),
            (HOUR_MS, &[(Group::Each, 1); limits::KEEP_RULES_MAX + 1]),
        ] {
            assert!(schedule(every, keep).check().is_err(), "{every} {keep:?}");
        }
    }
}
