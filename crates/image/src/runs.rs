//! The parts of some bytes that are not zero.

/// Zeroes that are fewer than this between bytes that are not are left where they are: a request more costs more than
/// to carry them along, and blocks of zeroes are not stored anyway.
const GAP_BYTES_MIN: usize = 16 << 10;
/// The unit in which zeroes are looked for, bytes.
const UNIT: usize = 4096;

/// Some of the bytes that were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub from: usize,
    /// The byte behind the last one.
    pub to: usize,
}

fn is_zero(bytes: &[u8]) -> bool {
    // Sixteen at a time: the compiler makes vectors of it.
    let (chunks, rest) = bytes.as_chunks::<16>();
    chunks.iter().all(|c| u128::from_ne_bytes(*c) == 0) && rest.iter().all(|b| *b == 0)
}

/// The runs of `bytes` that hold all that is not zero, in order: they begin at multiples of 4 KiB, end at such or at the
/// end, and at least 16 KiB of zeroes lie between two of them.
#[must_use]
pub fn runs(bytes: &[u8]) -> Vec<Run> {
    let mut found: Vec<Run> = Vec::new();
    for (i, unit) in bytes.chunks(UNIT).enumerate().filter(|(_, unit)| !is_zero(unit)) {
        let (from, to) = (i * UNIT, i * UNIT + unit.len());
        match found.last_mut() {
            Some(last) if from - last.to < GAP_BYTES_MIN => last.to = to,
            _ => found.push(Run { from, to }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_all_that_is_not_zero_and_leave_out_long_zeroes() {
        assert!(runs(&[]).is_empty() && runs(&[0; 100_000]).is_empty());
        let mut bytes = vec![0; 200_001];
        bytes[5000] = 1;
        assert_eq!(runs(&bytes), [Run { from: 4096, to: 8192 }]);
        // 12 KiB of zeroes are carried along, 16 KiB are not.
        bytes[20_480] = 1;
        assert_eq!(runs(&bytes), [Run { from: 4096, to: 24_576 }]);
        bytes[40_960] = 1;
        bytes[200_000] = 1;
        let all =
            [Run { from: 4096, to: 24_576 }, Run { from: 40_960, to: 45_056 }, Run { from: 196_608, to: 200_001 }];
        assert_eq!(runs(&bytes), all);
    }
}
