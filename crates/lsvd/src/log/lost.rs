//! Appends that are lost, or may be: stretches of numbers that don't touch.

use freebs_format::disk::{LOST_STRETCHES_MAX, LostStretch};
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default)]
pub(crate) struct LostAppends(BTreeMap<u64, u64>);

impl LostAppends {
    /// Notes that appends from one up to another may be lost.
    pub fn add(&mut self, mut from: u64, mut to: u64) {
        if from > to {
            return;
        }
        while let Some((first, last)) = self.last_up_to(to.saturating_add(1)).filter(|s| s.1 >= from.saturating_sub(1))
        {
            self.0.remove(&first);
            (from, to) = (from.min(first), to.max(last));
        }
        self.0.insert(from, to);
    }

    /// True if one from an append up to another may be lost.
    pub fn has_any(&self, from: u64, to: u64) -> bool {
        from <= to && self.last_up_to(to).is_some_and(|(_, last)| last >= from)
    }

    /// True if all from an append up to another are among them.
    pub fn has_all(&self, from: u64, to: u64) -> bool {
        self.last_up_to(from).is_some_and(|(_, last)| last >= to)
    }

    /// The stretches as a footer names them: if they are too many, the last one is the last ones and what lies between them.
    pub fn in_footer(&self) -> [LostStretch; LOST_STRETCHES_MAX] {
        let mut out = [LostStretch::default(); LOST_STRETCHES_MAX];
        let mut all = self.0.iter().map(|(from, to)| (*from, *to));
        out.iter_mut().zip(&mut all).for_each(|(out, stretch)| *out = LostStretch::new(stretch));
        if let Some((_, to)) = all.next_back() {
            out[LOST_STRETCHES_MAX - 1].to = to.into();
        }
        out
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The highest one; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.0.last_key_value().map_or(0, |s| *s.1)
    }

    /// The last stretch that begins up to an append.
    fn last_up_to(&self, append: u64) -> Option<(u64, u64)> {
        self.0.range(..=append).next_back().map(|(first, last)| (*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_as_the_numbers_in_them() {
        for seed in 0..200u64 {
            let (mut all, mut plain, mut at) = (LostAppends::default(), [false; 64], seed);
            for _ in 0..seed % 9 {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (from, len) = (1 + (at >> 33) % 58, (at >> 40) % 5);
                all.add(from, from + len - 1);
                (from..from + len).for_each(|n| plain[n as usize] = true);
            }
            for from in 0..64 {
                for to in 0..64 {
                    let want = from <= to && plain[from..=to].contains(&true);
                    assert_eq!(all.has_any(from as u64, to as u64), want, "seed {seed}, {from} to {to}: {all:?}");
                    let want = from <= to && !plain[from..=to].contains(&false);
                    let has = from <= to && all.has_all(from as u64, to as u64);
                    assert_eq!(has, want, "seed {seed}, all of {from} to {to}: {all:?}");
                }
            }
            let stretches: Vec<_> = all.0.into_iter().collect();
            assert!(stretches.windows(2).all(|w| w[0].1 + 1 < w[1].0), "seed {seed}: {stretches:?}");
        }
        let mut all = LostAppends::default();
        all.add(7, u64::MAX);
        all.add(0, 3);
        assert!(all.has_any(u64::MAX, u64::MAX) && !all.has_any(4, 6) && all.last() == u64::MAX);
    }

    #[test]
    fn a_footer_names_as_many_as_it_can() {
        for count in 0..=2 * LOST_STRETCHES_MAX as u64 {
            let mut all = LostAppends::default();
            (0..count).for_each(|n| all.add(10 * n + 1, 10 * n + 3));
            let named: Vec<_> = all.in_footer().iter().filter_map(LostStretch::appends).collect();
            let mut want: Vec<_> = (0..count).map(|n| (10 * n + 1, 10 * n + 3)).collect();
            if let Some((_, to)) = want.get(LOST_STRETCHES_MAX..).and_then(|more| more.last()).copied() {
                want.truncate(LOST_STRETCHES_MAX);
                want[LOST_STRETCHES_MAX - 1].1 = to;
            }
            assert_eq!(named, want, "{count}");
        }
    }
}
