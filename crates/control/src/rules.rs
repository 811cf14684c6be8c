//! What names, sizes and numbers may be, in one place for the CLI and the state. Errors say the way out.

use crate::limits;
use crate::state::blocks_per_shard;
use freebs_types::{Error, Result, SECTOR, limits as common};
use std::time::{Duration, UNIX_EPOCH};

/// A name of a volume, node or gateway: 1 to 128 of `A-Z a-z 0-9 . _ -`, not starting with `.` or `-`.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let why = if name.is_empty() {
        "is empty"
    } else if name.len() > common::VOLUME_NAME_BYTES_MAX {
        "is longer than 128 characters"
    } else if name.starts_with(['.', '-']) {
        "starts with '.' or '-'"
    } else if !name.bytes().all(allowed) {
        "has other characters than letters, digits, '.', '_' and '-'"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().take(40).map(|c| if c.is_control() { '?' } else { c }).collect();
    Err(Error::invalid(format!("the {what} name '{shown}' {why}; choose one such as 'data-1'")))
}

/// What a node says of itself.
pub fn check_node(name: &str, address: &str, workers: u16) -> Result<()> {
    check_name("node", name)?;
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    if address.len() > limits::ADDRESS_BYTES_MAX || port.is_none_or(|p| p.parse::<u16>().is_err()) {
        return Err(Error::invalid(format!("'{address}' is no address; write HOST:PORT, such as 127.0.0.1:7400")));
    }
    check_workers(workers)
}

/// Says that a node can't join with a token.
#[must_use]
pub fn unknown_token() -> Error {
    Error::not_found("the cluster does not know this token (any more); `freebs cluster token` makes another one")
}

/// Workers of a device: 1, 2, 4 or 8.
pub fn check_workers(workers: u16) -> Result<()> {
    if workers.is_power_of_two() && workers as usize <= common::WORKERS_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!("{workers} workers are not possible; choose 1, 2, 4 or 8")))
}

/// A size of a volume, as such; whether it fits its shards is `check_shards`' question.
pub fn check_size(size: u64) -> Result<()> {
    if size < limits::VOLUME_BYTES_MIN {
        let hint = if size < 4096 { format!("; did you mean {size}G?") } else { String::new() };
        return Err(Error::invalid(format!("a volume has at least 1M, not {size} bytes{hint}")));
    }
    if !size.is_multiple_of(SECTOR as u64) {
        let (below, above) = (size / 512 * 512, (size / 512).saturating_add(1).saturating_mul(512));
        return Err(Error::invalid(format!(
            "a size is a multiple of 512 bytes, and {size} is not; the nearest are {below} and {above}"
        )));
    }
    Ok(())
}

pub(crate) fn stripe_is_valid(stripe: u64) -> bool {
    stripe.is_power_of_two() && (limits::STRIPE_BYTES_MIN..=limits::STRIPE_BYTES_MAX).contains(&stripe)
}

/// `Invalid` unless `stripe`, in bytes, is a power of two from `STRIPE_BYTES_MIN` to `STRIPE_BYTES_MAX`.
pub fn check_stripe(stripe: u64) -> Result<()> {
    if stripe_is_valid(stripe) {
        return Ok(());
    }
    Err(Error::invalid(format!("a stripe is a power of two from 64K to 1G, not {}", format_size(stripe))))
}

/// Shards that a volume of this size gets by itself.
#[must_use]
pub fn default_shards(size: u64) -> u32 {
    let wished = size.div_ceil(limits::SHARD_SPLIT_BYTES).clamp(1, u64::from(limits::DEFAULT_SHARDS_MAX));
    // A size that sixteen shards can't address gets as many as it needs, with room for the last row of stripes.
    let needed = size.div_ceil((common::SHARD_VOLUME_BLOCKS_MAX << 12) - limits::DEFAULT_STRIPE_BYTES);
    u32::try_from(wished.max(needed)).unwrap_or(u32::MAX)
}

/// `Invalid` unless `shards` shards can address `size` bytes.
pub fn check_shards(size: u64, stripe: u64, shards: u32) -> Result<()> {
    if !(1..=common::VOLUME_SHARDS_MAX).contains(&shards) {
        return Err(Error::invalid(format!(
            "a volume has 1 to {} shards, not {shards}; a shard holds 1022G",
            common::VOLUME_SHARDS_MAX
        )));
    }
    if blocks_per_shard(size, stripe, u64::from(shards)) > common::SHARD_VOLUME_BLOCKS_MAX {
        return Err(Error::invalid(format!(
            "{} do not fit: a shard holds 1022G; create the volume with more --shards",
            format_size(size)
        )));
    }
    Ok(())
}

/// `Invalid` unless so many milliseconds of a volume's past can be kept.
pub fn check_retain(retain_ms: u64) -> Result<()> {
    let most = common::RETAIN_MS_MAX;
    if retain_ms == 0 || (limits::RETAIN_MS_MIN..=most).contains(&retain_ms) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "a volume keeps {} second to {} days of its past, or none; further back is what snapshots are for",
        limits::RETAIN_MS_MIN / 1000,
        most / 86_400_000
    )))
}

/// A length of time for people: `24h`, `1day 2h`.
#[must_use]
pub fn format_span(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// A date for people, to the second, in UTC: `2026-11-21T10:31:07Z`.
#[must_use]
pub fn format_date(ms: u64) -> String {
    // The end of the year 9999, which is the last one that can be written so.
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs((ms / 1000).min(LAST));
    humantime::format_rfc3339_seconds(time).to_string()
}

const UNITS: [(char, u32); 5] = [('P', 50), ('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// `10G`, `512M`, `1T`, `4096`: powers of 1,024; `GiB` is the same as `G`.
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = || Error::invalid(format!("'{text}' is no size; write 512M, 10G, 1T, or a number of bytes"));
    let upper = text.trim().to_ascii_uppercase();
    let short = upper.strip_suffix("IB").filter(|s| s.ends_with(|c: char| c.is_ascii_alphabetic())).unwrap_or(&upper);
    let unit = UNITS.iter().find(|(c, _)| short.ends_with(*c));
    let (digits, shift) = unit.map_or((short, 0), |(_, shift)| (&short[..short.len() - 1], *shift));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(|| Error::invalid(format!("'{text}' is too large")))
}

/// A size for people, exact where one unit is: `10G`, `1.5G`, `4100`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    for (unit, shift) in UNITS {
        let one = 1u64 << shift;
        if bytes >= one {
            if bytes.is_multiple_of(one) {
                return format!("{}{unit}", bytes / one);
            }
            let tenths = bytes / (one / 10).max(1);
            return format!("{}.{}{unit}", tenths / 10, tenths % 10);
        }
    }
    bytes.to_string()
}
