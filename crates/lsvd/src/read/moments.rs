//! When what was ordered: the moments of a shard's past, which its map tells as zeroes behind the addresses of blocks.
//!
//! Invariants: what is told lies in the retention window. A moment whose address is trimmed lies in front of it, and one whose
//! address has no entry is one in which nothing was ordered.

use crate::PastVersion;
use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::maps::look::Which;
use crate::log::join::yield_now;
use crate::map::extents::ExtentMap;
use crate::shard::Shard;
use freebs_format::ExtentKind;
use freebs_io::Device;
use freebs_types::{Error, Lba, Moment, Past, Result, ShardId, SnapshotId, Version, limits};

/// What was ordered from a moment on.
enum Behind {
    /// This was the first of it.
    First(Version),
    Nothing,
    /// It is not known any more.
    Forgotten,
}

/// Addresses that one step looks through.
const STEP: u64 = 1024;

impl<D: Device> Engine<D> {
    /// The version that a shard had at a place in its past, and the snapshot that pins it, if one does. `now` is the newest
    /// moment that counts. If another snapshot than this one pins the version that a time names, it is the one behind it, which
    /// changes no block. `NotFound` if there is no window, or the place lies outside of it; the text says what is there.
    pub async fn find_past(
        &self,
        shard: ShardId,
        past: Past,
        now: Moment,
        snapshot: Option<SnapshotId>,
    ) -> Result<PastVersion> {
        let (first, last) = self.window(shard)?;
        let version = match past {
            Past::Version(v) => v,
            Past::TimeMs(ms) if Moment::from_ms(ms) > now => {
                return Err(Error::not_found("that time has not come yet, by the clock of the shard's head"));
            }
            Past::TimeMs(ms) => match self.first_behind(shard, Moment::from_ms(ms), now).await? {
                Behind::First(v) => Version(v.0 - 1),
                Behind::Nothing => last,
                Behind::Forgotten => Version(0),
            },
        };
        // It may have moved meanwhile.
        let (first, last) = self.window(shard).map(|(f, l)| (f.max(first), l.max(last)))?;
        if !(first..=last).contains(&version) {
            let from = self.moments(shard, Moment(0), now, 1).await?.first().map(|(m, _)| m.ms());
            let from = from.map_or(String::new(), |ms| format!(", which is from {ms} ms since 1970 on"));
            return Err(Error::not_found(format!(
                "shard {shard} keeps versions {first} to {last}{from}, and {past} is outside of that"
            )));
        }
        let core = self.inner.core.borrow();
        let s = core.shard(shard)?;
        let at = |version| PastVersion { version, pinned: s.pinned_for(version) };
        let found = at(version);
        let is_of_another = found.pinned.is_some() && found.pinned != snapshot;
        // What follows in front of any other update is the zero of a moment, or says what is kept.
        let may_follow = matches!(past, Past::TimeMs(_)) && version < last;
        Ok(if is_of_another && may_follow { at(version.next()) } else { found })
    }

    /// The first version of the retention window and the last version. `NotFound` if there is no window.
    fn window(&self, shard: ShardId) -> Result<(Version, Version)> {
        let core = self.inner.core.borrow();
        let s = core.shard(shard)?;
        let first = s.kept().retain.ok_or_else(|| {
            Error::not_found(format!(
                "shard {shard} keeps only its present and its snapshots: it has no retention window"
            ))
        })?;
        if !s.holes.is_empty() {
            return Err(Error::corrupt(format!("shard {shard} lacks frames, and others are asked for them")));
        }
        Ok((first.max(s.history.whole_from), s.tip.version))
    }

    /// What was ordered first from a moment on.
    async fn first_behind(&self, shard: ShardId, from: Moment, now: Moment) -> Result<Behind> {
        if from < now.oldest() || self.is_trimmed(shard, from).await? {
            return Ok(Behind::Forgotten);
        }
        let mut lowest: Option<Version> = None;
        self.each_moment(shard, from, now, |_, v| {
            lowest = Some(lowest.map_or(v, |l| l.min(v)));
            true
        })
        .await?;
        Ok(lowest.map_or(Behind::Nothing, Behind::First))
    }

    async fn is_trimmed(&self, shard: ShardId, moment: Moment) -> Result<bool> {
        let at = moment.lba().0;
        let is_trim = |_: &Core, _: &Shard, view: &ExtentMap| {
            Ok(view.range(at, at + 1).any(|(_, e, ..)| e.kind == ExtentKind::Trim))
        };
        self.io().with_own_view(shard, (at, at + 1), Which::All, is_trim).await
    }

    /// Moments from `from` to `upto` in which anything was ordered within the window, with the first version of each, oldest
    /// first; at most so many.
    pub async fn moments(
        &self,
        shard: ShardId,
        from: Moment,
        upto: Moment,
        most: usize,
    ) -> Result<Vec<(Moment, Version)>> {
        let mut out = Vec::new();
        let first = self.window(shard)?.0;
        self.each_moment(shard, from, upto, |m, v| {
            out.extend(Some((m, v)).filter(|_| v >= first));
            out.len() < most
        })
        .await?;
        Ok(out)
    }

    async fn each_moment(
        &self,
        shard: ShardId,
        from: Moment,
        upto: Moment,
        mut found: impl FnMut(Moment, Version) -> bool,
    ) -> Result<()> {
        let from = from.max(upto.oldest());
        let mut at = from.0;
        while at <= upto.0 {
            // Up to the end of the addresses at most, then from their beginning on.
            let left = limits::SHARD_ADDRESSES - u64::from(Moment(at).lba().0);
            let end = upto.0.saturating_add(1).min(at + left);
            let Some(next) = self.io().next_own_entry(shard, Moment(at).lba().0).await? else {
                at = end;
                continue;
            };
            at += u64::from(next - Moment(at).lba().0);
            if at >= end {
                at = end;
                continue;
            }
            let upto = end.min(at + STEP);
            let range = (Moment(at).lba().0, Moment(at).lba().0 + (upto - at) as u32);
            let step = |_: &Core, _: &Shard, view: &ExtentMap| {
                let zeroes = view.range(range.0, range.1).filter(|(_, e, ..)| e.kind == ExtentKind::Zero);
                let each = zeroes.flat_map(|(a, e, _, len)| (a..a + len).map(move |lba| (Lba(lba), e.version)));
                Ok(each.collect::<Vec<_>>())
            };
            for (lba, version) in self.io().with_own_view(shard, range, Which::All, step).await? {
                if !found(Moment(at + u64::from(lba.0 - range.0)), version) {
                    return Ok(());
                }
            }
            at = upto;
            yield_now().await;
        }
        Ok(())
    }
}
