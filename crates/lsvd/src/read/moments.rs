//! When what was ordered: the moments of a shard's past, which its map tells as zeroes behind the addresses of blocks.
//!
//! An entry *counts* if its version is behind the first one of the retention window, and behind that of the zero at `TIMES_LBA`.
//! All others are of an earlier round of the addresses, of before the window, or of a clock that is not believed.
//!
//! Invariants: a time is answered only if an entry that counts says that the window reaches back to it: a zero of this moment
//! or an earlier one, or a trim that ends there or earlier. The answer is the version in front of the first zero from there on
//! that counts; if a trim that counts lies in between, or the moment itself is trimmed, nothing is answered. So what has no
//! entry is a moment in which nothing was ordered.

use crate::engine::Engine;
use crate::engine::core::Core;
use crate::engine::maps::look::Which;
use crate::log::join::yield_now;
use crate::map::extents::ExtentMap;
use crate::shard::Shard;
use crate::{PastVersion, TimesAbove};
use freebs_format::ExtentKind;
use freebs_io::Device;
use freebs_types::limits::{MOMENTS_TOLD, SHARD_MOMENTS};
use freebs_types::{Error, Lba, Moment, Past, Result, ShardId, SnapshotId, TIMES_LBA, Version};

/// Addresses that one step looks through: more, where there is little.
const STEP: u64 = 1024;
const STEP_MAX: u64 = 256 * STEP;
/// A step that finds more entries than this is followed by a small one.
const FEW: usize = 64;

/// An entry that counts, as far as it lies in the stretch that is looked through.
#[derive(Clone, Copy, Debug)]
struct Told {
    moment: Moment,
    len: u64,
    is_zero: bool,
    version: Version,
}

/// The retention window of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    first: Version,
    last: Version,
    /// Versions from here on are all there.
    whole: Version,
}

impl<D: Device> Engine<D> {
    /// The version that a shard had at a place in its past, and the snapshot that pins it, if one does. `now` is the newest
    /// moment that counts, and `last` the newest version: what was ordered behind them was not there when it was asked for.
    /// The log has all up to that version, or answers for the one that it has. A version that this snapshot pins already is
    /// the answer for it. If another one pins the version that
    /// a time names, it is the one behind it, which changes no block. `NotFound` if there is no window, or the place lies
    /// outside of it, or nothing is known of that time; the text says what is there.
    pub async fn find_past(
        &self,
        shard: ShardId,
        past: Past,
        (now, last): (Moment, Version),
        snapshot: Option<SnapshotId>,
    ) -> Result<PastVersion> {
        if let Some(own) = self.pinned_by(shard, snapshot)? {
            return Ok(PastVersion { version: own, pinned: snapshot, next: None });
        }
        let mut reach = self.reach(shard)?;
        reach.last = reach.last.min(last);
        let (version, next) = match past {
            Past::Version(v) => (Some(v), None),
            Past::TimeMs(ms) if Moment::from_ms(ms) > now => {
                return Err(Error::not_found(format!(
                    "shard {shard}: {past} has not come yet; by the clock of its head it is {} ms",
                    now.ms()
                )));
            }
            Past::TimeMs(ms) => match self.at_moment(shard, reach, Moment::from_ms(ms), now).await? {
                Some((version, next)) => (Some(version), next),
                None => (None, None),
            },
        };
        // It may have moved meanwhile.
        let then = self.reach(shard)?;
        let first = then.first.max(then.whole);
        let Some(version) = version.filter(|v| (first..=then.last).contains(v)) else {
            let from = self.times_begin(shard, now).await?.map(|m| format!(", and knows times from {} ms on", m.ms()));
            let from = from.unwrap_or_else(|| ", and knows no times yet".into());
            return Err(Error::not_found(format!(
                "shard {shard} keeps versions {first} to {}{from}; {past} is outside of that",
                then.last
            )));
        };
        let core = self.inner.core.borrow();
        let s = core.shard(shard)?;
        let at = |version| PastVersion { version, pinned: s.pinned_for(version), next };
        let found = at(version);
        let is_of_another = snapshot.is_some() && found.pinned.is_some() && found.pinned != snapshot;
        // An update that follows in front of any other update is the zero of a moment, or says what is kept.
        let may_follow = matches!(past, Past::TimeMs(_)) && version < then.last;
        Ok(if is_of_another && may_follow { at(version.next()) } else { found })
    }

    /// If the history of all shards takes more memory than it should: those whose history is no less than most. It is to be no
    /// more than half of what the maps may have, besides that.
    pub fn past_over(&self) -> Vec<ShardId> {
        self.inner.core.borrow().past_over()
    }

    /// The times that are told if all versions up to one are let go of. `from` is the moment from which on they are told now.
    pub async fn times_above(
        &self,
        shard: ShardId,
        above: Version,
        (from, now): (Moment, Moment),
    ) -> Result<TimesAbove> {
        // The version counts that is the first of the window.
        if self.times_began(shard).await? >= above.next() {
            return Ok(TimesAbove::Same);
        }
        let mut found = TimesAbove::None;
        self.each(shard, from.max(now.less(MOMENTS_TOLD)), now.next(), |t| {
            let is_above = t.is_zero && t.version > above;
            if is_above {
                found = TimesAbove::From(t.moment);
            }
            !is_above
        })
        .await?;
        Ok(found)
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
        self.each(shard, from.max(upto.less(MOMENTS_TOLD)), upto.next(), |t| {
            if t.is_zero {
                out.extend((0..t.len).map(|n| (Moment(t.moment.0 + n), t.version)));
            }
            out.len() < most
        })
        .await?;
        out.truncate(most);
        Ok(out)
    }

    fn reach(&self, shard: ShardId) -> Result<Reach> {
        let core = self.inner.core.borrow();
        let s = core.shard(shard)?;
        let first = s.kept().retain.ok_or_else(|| {
            Error::not_found(format!(
                "shard {shard} keeps only its present and its snapshots: it has no retention window"
            ))
        })?;
        if s.missing().next().is_some() {
            return Err(Error::corrupt(format!("shard {shard} lacks frames, and others are asked for them")));
        }
        Ok(Reach { first, last: s.tip.version, whole: s.history.whole_from })
    }

    /// The version that a snapshot pins already. `NotFound` if that is not all there.
    fn pinned_by(&self, shard: ShardId, snapshot: Option<SnapshotId>) -> Result<Option<Version>> {
        let Some(id) = snapshot else { return Ok(None) };
        let core = self.inner.core.borrow();
        let s = core.shard(shard)?;
        let own = s.kept().pins.iter().find(|(_, of)| **of == id).map(|(v, _)| *v);
        if own.is_some_and(|v| v < s.history.whole_from) {
            return Err(Error::not_found(format!("shard {shard} has not all of what snapshot {id} is of any more")));
        }
        Ok(own)
    }

    /// The version at the beginning of a moment, and the first moment from there on in which anything was ordered; `None` if
    /// that is not known.
    async fn at_moment(
        &self,
        shard: ShardId,
        reach: Reach,
        at: Moment,
        now: Moment,
    ) -> Result<Option<(Version, Option<Moment>)>> {
        if at < now.less(MOMENTS_TOLD) {
            return Ok(None);
        }
        let from = self.counts_from(shard).await?;
        let mut next = None;
        self.each(shard, at, now.next(), |t| {
            next = Some(t);
            false
        })
        .await?;
        let is_told = match next {
            Some(t) if !t.is_zero => false,
            Some(t) if t.moment == at => true,
            _ => self.is_told_before(shard, at, now).await?,
        };
        if self.counts_from(shard).await? != from {
            return Err(Error::retry(format!("shard {shard}: the window moved while it was looked through")));
        }
        // Without a zero nothing was ordered from then on until it was asked for.
        let version = next.map_or(reach.last, |t| Version(t.version.0.saturating_sub(1)));
        Ok(is_told.then(|| (version.min(reach.last), next.map(|t| t.moment))))
    }

    /// True if an entry in front of a moment says that times are known.
    async fn is_told_before(&self, shard: ShardId, at: Moment, now: Moment) -> Result<bool> {
        let (mut end, mut len, oldest) = (at, STEP, now.less(MOMENTS_TOLD));
        while end > oldest {
            let begin = end.less(len).max(oldest);
            let mut found = false;
            self.each(shard, begin, end, |_| {
                found = true;
                false
            })
            .await?;
            if found {
                return Ok(true);
            }
            (end, len) = (begin, len * 4);
        }
        Ok(false)
    }

    /// The first moment up to `now` that is told; `None` if none is. `NotFound` if there is no window, `Corrupt` if frames are
    /// missing.
    pub async fn times_begin(&self, shard: ShardId, now: Moment) -> Result<Option<Moment>> {
        let mut begins = None;
        self.each(shard, now.less(MOMENTS_TOLD), now.next(), |t| {
            begins = if t.is_zero { begins.or(Some(t.moment)) } else { Some(Moment(t.moment.0 + t.len)) };
            !t.is_zero
        })
        .await?;
        Ok(begins)
    }

    /// The version behind which times are believed.
    async fn times_began(&self, shard: ShardId) -> Result<Version> {
        let at = TIMES_LBA.0;
        let begin =
            |_: &Core, _: &Shard, view: &ExtentMap| Ok(view.range(at, at + 1).next().map(|(_, e, ..)| e.version));
        let begin = self.io().with_own_view(shard, (at, at + 1), Which::All, begin).await?;
        // No head has begun to tell times.
        Ok(begin.unwrap_or(Version(u64::MAX)))
    }

    /// The version behind which entries count. `NotFound` if there is no window.
    async fn counts_from(&self, shard: ShardId) -> Result<Version> {
        Ok(self.times_began(shard).await?.max(self.reach(shard)?.first))
    }

    /// Entries that count, from one moment up to, but without, another one, in order, until `found` says that it is enough.
    async fn each(&self, shard: ShardId, from: Moment, end: Moment, mut found: impl FnMut(Told) -> bool) -> Result<()> {
        let (counts, mut at, mut step) = (self.counts_from(shard).await?, from.0, STEP);
        while at < end.0 {
            // Up to the end of the addresses at most, then from their beginning on.
            let stop = end.0.min(at + (SHARD_MOMENTS - at % SHARD_MOMENTS));
            let next = self.io().next_own_entry(shard, Moment(at).lba().0).await?;
            let skipped = next.map_or(u64::MAX, |next| u64::from(next - Moment(at).lba().0));
            if skipped >= stop - at {
                at = stop;
                continue;
            }
            at += skipped;
            let upto = stop.min(at + step);
            let base = Moment(at).lba().0;
            let range = (base, base + (upto - at) as u32);
            let look = |_: &Core, _: &Shard, view: &ExtentMap| {
                let all = view.range(range.0, range.1).filter(|(_, e, ..)| e.version > counts);
                Ok(all.map(|(a, e, _, len)| (Lba(a), len, e.kind == ExtentKind::Zero, e.version)).collect::<Vec<_>>())
            };
            let list = self.io().with_own_view(shard, range, Which::All, look).await?;
            step = if list.len() > FEW { STEP } else { STEP_MAX.min(step * 2) };
            for (lba, len, is_zero, version) in list {
                let moment = Moment(at + u64::from(lba.0 - base));
                if !found(Told { moment, len: u64::from(len), is_zero, version }) {
                    return Ok(());
                }
            }
            at = upto;
            yield_now().await;
        }
        Ok(())
    }
}

impl Core {
    fn past_over(&self) -> Vec<ShardId> {
        // History that can be written out is no burden to memory. Behind a page that was lost nothing is written.
        if !(self.maps.past.is_stuck || self.maps.damaged)
            || self.shards.values().map(|s| s.history.memory.bytes()).sum::<usize>() <= self.maps.history_bytes
        {
            return Vec::new();
        }
        // Only windows can be made shorter.
        let windows = || self.shards.iter().filter(|(_, s)| s.history.pins.kept.retain.is_some());
        let each = || windows().map(|(id, s)| (*id, s.history.memory.bytes())).filter(|(_, bytes)| *bytes > 0);
        let (all, shards) = each().fold((0, 0), |(all, n), (_, bytes)| (all + bytes, n + 1));
        // All that is being let go of is still there.
        let is_pruned = |id: &ShardId| self.shards.get(id).is_some_and(|s| s.history.is_pruned());
        each().filter(|(id, bytes)| *bytes >= all / shards.max(1) && !is_pruned(id)).map(|(id, _)| id).collect()
    }
}
