//! Schedules of snapshots as people write them.

use freebs_control::{Group, Keep};

/// Milliseconds.
pub fn every(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is no time between snapshots; write 10m, 1h or 1day");
    let time = humantime::parse_duration(text).map_err(|_| wrong())?;
    u64::try_from(time.as_millis()).map_err(|_| wrong())
}

/// One rule.
pub fn keep(text: &str) -> Result<Keep, String> {
    let lettered = Group::ALL.into_iter().filter(|by| *by != Group::Each);
    let found = lettered.filter_map(|by| Some((text.strip_suffix(by.letter())?, by))).next();
    let (number, by) = found.unwrap_or((text, Group::Each));
    let count = number.parse().ok().filter(|n| *n > 0);
    let count = count.ok_or_else(|| format!("'{text}' is no rule; write 12, 24h, 7d or 4w"))?;
    Ok(Keep { by, count })
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::Schedule;

    #[test]
    fn rules_are_read_as_they_are_shown() {
        let rules = ["12", "24h", "7d", "4w"].map(|t| keep(t).unwrap());
        let schedule = Schedule { every_ms: every("90m").unwrap(), keep: rules.to_vec() };
        assert_eq!(schedule.to_string(), "a snapshot every 1h 30m, keeps 12,24h,7d,4w");
        for wrong in ["", "h", "0d", "-1", "7y", "7 d", "99999999999"] {
            assert!(keep(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "1", "soon"] {
            assert!(every(wrong).is_err(), "{wrong}");
        }
    }
}
