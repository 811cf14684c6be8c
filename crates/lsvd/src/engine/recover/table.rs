//! A start that does not ask every segment: what the checkpoint covers is known from its manifest, what was opened since
//! from the pages of openings.
//!
//! Invariant: a segment is not read only if the manifest says that it was closed, whole and covered, and no later use of
//! it is known. Every use since the checkpoint is: else there is no table, and all segments are asked. What does not fit
//! together makes recovery go back to that, too.

use super::{Look, Recovery, Survey, survey};
use crate::log::join::join_all;
use freebs_io::Device;
use std::collections::{BTreeMap, BTreeSet};

/// The log as it was when a checkpoint was made.
pub(crate) struct TableOfSegments {
    /// Of the slot that names it.
    pub revision: u64,
    /// Number of the segment that was the newest when it was begun.
    pub opened: u64,
    /// Up to here everything of every shard is covered.
    pub covered: u64,
    pub segments: Vec<KnownSegment>,
}

/// A segment that counted.
pub(crate) struct KnownSegment {
    pub id: u32,
    pub seq: u64,
    /// First and last append of a closed one; else zeroes.
    pub appends: (u64, u64),
    pub evidence: bool,
}

/// Segments that are looked at at once.
const AT_ONCE: usize = 64;

impl<D: Device> Recovery<'_, D> {
    /// The segments that count, by their numbers; `None` if all segments must be asked.
    pub(super) async fn by_table(&mut self) -> Option<BTreeMap<u64, Survey>> {
        let table = self.io().table().await?;
        let core = self.core.get_mut();
        if !core.opened.reaches(table.opened) {
            return None;
        }
        let (opened, there) = (core.opened.since(table.opened)?, core.segs.len());
        let mut uses: BTreeMap<u32, u64> = table.segments.iter().map(|s| (s.id, s.seq)).collect();
        uses.extend(opened.iter().map(|(seq, id)| (*id, *seq)));
        let (mut out, covered) = (BTreeMap::new(), table.covered);
        let mut ask: Vec<u32> = opened.iter().filter(|(seq, id)| uses[id] == *seq).map(|o| o.1).collect();
        for s in table.segments.iter().filter(|s| s.seq > 0 && s.id < there && uses[&s.id] == s.seq) {
            let (first, last) = s.appends;
            if !s.evidence && (1..=covered).contains(&last) {
                out.insert(s.seq, Survey::covered(s.id, s.seq, first, last));
            } else {
                ask.push(s.id);
            }
        }
        ask.retain(|id| *id < there);
        for ids in ask.chunks(AT_ONCE) {
            let looks = ids.iter().map(|id| survey(self.device, self.geometry, *id, Look::LogOrMap)).collect();
            out.extend(join_all(looks).await.into_iter().flatten().map(|s| (s.seq, s)));
        }
        // No use of a segment is known twice, unless somebody forged it.
        let ids: BTreeSet<u32> = out.values().map(|s| s.id).collect();
        if ids.len() < out.len() || self.misses_openings(&out).await {
            return None;
        }
        self.table_of = table.revision;
        Some(out)
    }

    /// True if a segment was opened of which the pages do not know: the one that names it was lost, and more may be.
    async fn misses_openings(&self, found: &BTreeMap<u64, Survey>) -> bool {
        let (next, newest, there, is_closed) = {
            let core = self.core.borrow();
            let is_closed = |s: &Survey| s.covered > 0 || s.footer.is_some();
            let last = found.last_key_value().filter(|(_, s)| is_closed(s));
            let is_closed = last.is_some_and(|(seq, _)| core.opened.find(seq + 1).is_none());
            (core.opened.next(), core.opened.newest(), core.segs.len(), is_closed)
        };
        // The index that names it may be lost, too; then the page before does.
        match next.filter(|id| *id < there && !is_closed) {
            Some(id) => survey(self.device, self.geometry, id, Look::LogOrMap).await.is_some_and(|s| s.seq > newest),
            None => is_closed,
        }
    }

    /// True if a table was made that does not belong to the checkpoint that recovery begins with.
    pub(super) fn is_astray(&self) -> bool {
        self.table_of != 0 && self.table_of != self.report.checkpoint
    }

    /// Notes the segments that were opened last, as far as they are known, up to number `next` of the next one.
    pub(super) fn note_opened(&mut self, surveys: &BTreeMap<u64, Survey>, next: u64) {
        let opened = &mut self.core.get_mut().opened;
        let said = opened.all();
        let seen = surveys.values().map(|s| (s.seq, s.id));
        let all: BTreeMap<u64, u32> = said.into_iter().chain(seen).filter(|(seq, _)| (1..next).contains(seq)).collect();
        all.into_iter().for_each(|(seq, id)| opened.put(seq, id));
    }
}
