//! Moving map entries down: memory tables into a young run, young runs into the old one.
//!
//! Invariants: a table that is being written is frozen and still looked at, until the run stands in its place; what
//! becomes of the tables and runs between two steps is seen whole or not at all. A step is at most a few hundred
//! entries; between steps others run.

use super::merge::Merge;
use super::write::RunWriter;
use super::{Io, pause};
use crate::EventKind;
use crate::engine::core::Core;
use crate::map::extents::{Extent, ExtentMap};
use crate::map::levels::YOUNG_RUNS;
use crate::map::run::Run;
use crate::shard::Shard;
use freebs_io::Device;
use freebs_types::{Error, ErrorKind, Result, Sequence, ShardId};
use std::rc::Rc;

/// Entries that are written or merged in one step.
const STEP_ENTRIES: usize = 256;
/// Entries of a map that are looked at in one step.
const STEP_LOOKS: usize = 1024;

/// What a flush writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The tables, which are empty then.
    Tables,
    /// Everything, to the old run: the maps become too large to stay in memory.
    Spill,
    /// The maps stay in memory. What changed since the last time goes to a young run.
    Changes,
    /// The maps stay in memory. Everything goes to the old run.
    Whole,
}

impl How {
    fn is_live(self) -> bool {
        matches!(self, Self::Changes | Self::Whole)
    }
    fn is_whole(self) -> bool {
        matches!(self, Self::Spill | Self::Whole)
    }
}

/// Of a shard's map: what is newer than `since`, and what lies in `dirty`.
struct Changes {
    shard: ShardId,
    slot: u32,
    since: Sequence,
    dirty: Vec<(u32, u32)>,
}

impl Changes {
    fn has(&self, start: u32, e: &Extent) -> bool {
        let i = self.dirty.partition_point(|d| d.1 <= start);
        e.sequence > self.since || self.dirty.get(i).is_some_and(|d| d.0 < start + e.len)
    }
}

impl Core {
    fn how_to_flush(&self) -> How {
        let m = &self.maps;
        match (m.resident, self.map_bytes() > m.table_limit() / 16 * 15) {
            (false, _) => How::Tables,
            (true, true) => How::Spill,
            (true, false) => {
                let young: u64 = m.young.iter().map(|r| r.entries).sum();
                let few = m.old.as_ref().is_some_and(|o| young * 2 < o.entries) && m.young.len() + 1 < YOUNG_RUNS;
                if few { How::Changes } else { How::Whole }
            }
        }
    }

    /// Bytes of the maps, or of their tables.
    fn map_bytes(&self) -> usize {
        self.shards.values().map(|s| s.map.bytes()).sum()
    }
}

impl<D: Device> Io<'_, D> {
    /// Writes what the memory of all shards has beyond the runs to a run. `note` sees each shard when what is written
    /// of it is settled. Without room everything stays as it was.
    pub async fn flush(&self, note: impl FnMut(&Shard, u64)) -> Result<()> {
        let (device, number, how) = {
            let mut core = self.core.borrow_mut();
            let how = core.how_to_flush();
            if !how.is_live() {
                core.maps.grown = 0;
            }
            (core.geometry.device, core.maps.new_run(), how)
        };
        let writer = RunWriter::new(device, number, how == How::Tables);
        let mut changes = Vec::new();
        match self.write_tables(writer, how, &mut changes, note).await {
            Ok(run) => {
                let tables = self.publish(run, number, how);
                self.drop_tables(tables).await;
                Ok(())
            }
            Err(e) => {
                self.thaw(number, changes);
                Err(e)
            }
        }
    }

    async fn write_tables(
        &self,
        mut w: RunWriter,
        how: How,
        changes: &mut Vec<Changes>,
        mut note: impl FnMut(&Shard, u64),
    ) -> Result<Option<Run>> {
        let (mut slot, mut n) = (0, 0usize);
        loop {
            let table = {
                let mut core = self.core.borrow_mut();
                let Some((s, id)) = core.maps.slots.range(slot + 1..).next().map(|(s, id)| (*s, *id)) else { break };
                slot = s;
                let append = core.next_append - 1;
                let Some(shard) = core.shards.get_mut(&id) else { continue };
                note(shard, append);
                if how.is_live() {
                    changes.push(Changes { shard: id, slot, since: shard.flushed, dirty: shard.take_dirty() });
                    None
                } else {
                    Some(shard.freeze())
                }
            };
            match table {
                None => self.write_live(&mut w, how, changes.last().expect("just put there")).await?,
                Some(table) => {
                    for (a, e) in table.iter() {
                        w.push(*self, slot, a, e).await?;
                        n += 1;
                        if n.is_multiple_of(STEP_ENTRIES) {
                            pause().await;
                        }
                    }
                }
            }
            n += 1;
        }
        w.finish(*self).await
    }

    /// Writes of a map that goes on changing. What is newer than what the checkpoint covers is said again by frames
    /// behind that, and doing that again gives the same.
    async fn write_live(&self, w: &mut RunWriter, how: How, c: &Changes) -> Result<()> {
        let (mut at, mut list) = (0, Vec::with_capacity(STEP_ENTRIES));
        loop {
            let mut looks = 0;
            {
                let core = self.core.borrow();
                let Some(s) = core.shards.get(&c.shard).filter(|s| s.slot == c.slot) else { return Ok(()) };
                for (a, e, skip, len) in s.map.range(at, u32::MAX) {
                    (looks, at) = (looks + 1, a + len);
                    if how.is_whole() || c.has(a, e) {
                        list.push((a, e.piece(skip, len)));
                    }
                    if looks == STEP_LOOKS || list.len() == STEP_ENTRIES {
                        break;
                    }
                }
            }
            if looks == 0 {
                return Ok(());
            }
            for (a, e) in list.drain(..) {
                w.push(*self, c.slot, a, &e).await?;
            }
            pause().await;
        }
    }

    fn publish(&self, run: Option<Run>, number: u64, how: How) -> Vec<Rc<ExtentMap>> {
        let mut core = self.core.borrow_mut();
        core.maps.written(number);
        let run = run.map(Rc::new);
        if how.is_whole() {
            core.maps.young.clear();
            core.maps.old = run;
        } else if let Some(run) = run {
            core.maps.young.push_front(run);
        }
        if how == How::Spill {
            core.maps.resident = false;
            core.shards.values_mut().for_each(|s| (s.flushed, s.dirty) = (Sequence(0), Vec::new()));
        }
        core.sweep_map();
        core.shards.values_mut().filter_map(|s| s.frozen.take()).collect()
    }

    /// Freeing a large map at once would be a pause.
    async fn drop_tables(&self, tables: Vec<Rc<ExtentMap>>) {
        for table in tables {
            let Ok(mut table) = Rc::try_unwrap(table) else { continue };
            while table.drop_some(STEP_ENTRIES) {
                pause().await;
            }
        }
    }

    /// The run was not written: what was frozen is a table again, and what has changed is still to be written.
    fn thaw(&self, number: u64, changes: Vec<Changes>) {
        let core = &mut *self.core.borrow_mut();
        core.maps.written(number);
        for s in core.shards.values_mut() {
            s.thaw(&mut core.segs);
        }
        for mut c in changes {
            if let Some(s) = core.shards.get_mut(&c.shard).filter(|s| s.slot == c.slot) {
                s.flushed = s.flushed.min(c.since);
                s.dirty.append(&mut c.dirty);
            }
        }
        core.sweep_map();
    }

    /// Whether the memory tables, or maps that were to stay in memory, are at their limit.
    pub fn is_table_full(&self) -> bool {
        let mut core = self.core.borrow_mut();
        let limit = core.maps.table_limit();
        if core.maps.grown < limit {
            return false;
        }
        // The estimate counts rewrites of the same blocks twice.
        let bytes = core.map_bytes();
        if bytes <= limit / 16 * 15 {
            core.maps.grown = bytes;
            return false;
        }
        true
    }

    pub fn wants_merge(&self) -> bool {
        let core = self.core.borrow();
        core.maps.young.len() >= YOUNG_RUNS && !core.maps.damaged && !core.maps.resident
    }

    /// Merges all levels, so that everything that was superseded is known to be: while room is wanted, what nobody
    /// knows to be dead is what keeps segments.
    async fn squeeze(&self) -> Result<()> {
        self.flush(|_, _| ()).await?;
        self.merge_all().await?;
        Ok(())
    }

    /// Merges the young runs: with the old one, unless that is much larger than all of them.
    pub async fn merge(&self) -> Result<()> {
        self.merge_levels(false).await
    }

    /// Merges everything into the old run.
    async fn merge_all(&self) -> Result<()> {
        self.merge_levels(true).await
    }

    async fn merge_levels(&self, all: bool) -> Result<()> {
        let (device, number, inputs, with_old) = {
            let mut core = self.core.borrow_mut();
            let m = &mut core.maps;
            let young: u64 = m.young.iter().map(|r| r.entries).sum();
            let table = m.table_bytes as u64 / crate::map::extents::ENTRY_BYTES as u64;
            let with_old = all || m.old.as_ref().is_none_or(|o| young * 8 >= o.entries || young >= table * 6);
            let mut inputs: Vec<Rc<Run>> = m.young.iter().cloned().collect();
            inputs.extend(m.old.iter().filter(|_| with_old).cloned());
            let number = m.new_run();
            (core.geometry.device, number, inputs, with_old)
        };
        let writer = RunWriter::new(device, number, !with_old);
        let run = match self.merge_into(writer, &inputs).await {
            Ok(run) => run,
            Err(e) => {
                let mut core = self.core.borrow_mut();
                core.maps.written(number);
                core.sweep_map();
                return Err(e);
            }
        };
        let mut core = self.core.borrow_mut();
        let m = &mut core.maps;
        m.written(number);
        m.young.retain(|r| inputs.iter().all(|i| i.number != r.number));
        match run.map(Rc::new) {
            run if with_old => m.old = run,
            Some(run) => m.young.push_back(run),
            None => {}
        }
        core.sweep_map();
        Ok(())
    }

    async fn merge_into(&self, mut w: RunWriter, inputs: &[Rc<Run>]) -> Result<Option<Run>> {
        let mut merge = Merge::new(inputs.iter().cloned());
        let (mut n, mut slot, mut alive) = (0usize, 0, false);
        loop {
            let gone = |slot, at, e, by| {
                n += 1;
                self.core.borrow_mut().superseded(slot, at, &e, by);
            };
            let Some((s, a, e)) = merge.next(*self, gone).await? else { break };
            if s != slot || n == 0 {
                (slot, alive) = (s, self.core.borrow().maps.slots.contains_key(&s));
            }
            if alive {
                w.push(*self, s, a, &e).await?;
            }
            n += 1;
            if n >= STEP_ENTRIES {
                n = 0;
                pause().await;
                if self.is_table_full() {
                    self.flush(|_, _| ()).await?;
                }
                // Entries that are found here to be superseded may be history.
                self.flush_past_if_full().await?;
            }
        }
        w.finish(*self).await
    }

    /// Does what is due. An error of the device ends the log; without room, or with a damaged page, it goes on as it
    /// is.
    pub async fn upkeep(&self) -> Result<()> {
        if self.is_table_full() {
            self.bear(self.flush(|_, _| ()).await)?;
        }
        if self.wants_merge() {
            self.bear(self.merge().await)?;
        }
        if !self.alone && self.core.borrow().wants_squeeze() {
            let done = self.squeeze().await;
            {
                let core = &mut *self.core.borrow_mut();
                core.segs.changes += 1;
                core.maps.no_squeeze = done.is_err().then_some(core.segs.changes);
                core.cleaning.wake.notify_one();
            }
            self.bear(done)?;
        }
        while !self.alone && self.core.borrow_mut().prune_some() {
            pause().await;
        }
        self.keep_past().await?;
        let due = {
            let m = &self.core.borrow().maps;
            m.wanted || (m.since >= m.checkpoint_bytes && !m.damaged)
        };
        if due && !self.alone {
            let done = self.checkpoint().await;
            {
                let mut core = self.core.borrow_mut();
                core.maps.wanted = false;
                core.maps.outcome = done.clone();
                core.maps.made.notify_waiters();
            }
            self.bear(done)?;
        }
        if self.core.borrow().maps.damaged {
            self.forget_checkpoints().await?;
        }
        Ok(())
    }

    /// Which errors the map can live with.
    pub fn bear(&self, done: Result<()>) -> Result<()> {
        let Err(e) = done else { return Ok(()) };
        let mut core = self.core.borrow_mut();
        match e.kind {
            ErrorKind::NoSpace => {
                core.event(EventKind::Space, format!("the map stays in memory: {e}"));
                Ok(())
            }
            ErrorKind::DeviceFailed => Err(e),
            _ => {
                core.maps.damaged = true;
                core.event(EventKind::Damage, format!("the map can't be merged until the next start: {e}"));
                Ok(())
            }
        }
    }
}

/// What a lookup says when a page of the map can't be read.
pub(crate) fn page_lost(e: &Error, what: &str) -> Error {
    match e.kind {
        ErrorKind::DeviceFailed => e.clone(),
        _ => Error::corrupt(format!("{what}: {e}")),
    }
}
