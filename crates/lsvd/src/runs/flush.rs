//! Moving map entries down: memory tables into a young run, young runs into the old one.
//!
//! Invariants: a table that is being written is frozen and still looked at, until the run stands in its place; what
//! becomes of the tables and runs between two steps is seen whole or not at all. A step is at most a few hundred
//! entries; between steps others run.

use super::merge::Merge;
use super::run::Run;
use super::write::RunWriter;
use super::{Io, YOUNG_RUNS, pause};
use crate::EventKind;
use crate::map::ExtentMap;
use crate::shard::Shard;
use freebs_io::Device;
use freebs_types::{Error, ErrorKind, Result};
use std::rc::Rc;

/// Entries that are written or merged in one step.
const STEP_ENTRIES: usize = 256;

impl<D: Device> Io<'_, D> {
    /// Writes the memory tables of all shards to a young run. `freeze` sees each shard when its table is frozen.
    /// Without room everything stays as it was.
    pub async fn flush(&self, freeze: impl FnMut(&Shard, u64)) -> Result<()> {
        let (device, number) = {
            let mut core = self.core.borrow_mut();
            core.maps.grown = 0;
            (core.geometry.device, core.maps.new_run())
        };
        let writer = RunWriter::new(device, number, true);
        match self.write_tables(writer, freeze).await {
            Ok(run) => {
                let tables = self.publish(run, number);
                self.drop_tables(tables).await;
                Ok(())
            }
            Err(e) => {
                self.thaw(number);
                Err(e)
            }
        }
    }

    async fn write_tables(&self, mut w: RunWriter, mut freeze: impl FnMut(&Shard, u64)) -> Result<Option<Run>> {
        let (mut slot, mut n) = (0, 0usize);
        loop {
            let next = {
                let mut core = self.core.borrow_mut();
                let Some((s, id)) = core.maps.slots.range(slot + 1..).next().map(|(s, id)| (*s, *id)) else { break };
                slot = s;
                let append = core.next_append - 1;
                let Some(shard) = core.shards.get_mut(&id) else { continue };
                let table = shard.freeze();
                freeze(shard, append);
                table
            };
            n += 1;
            for (a, e) in next.iter() {
                w.push(*self, slot, a, e).await?;
                n += 1;
                if n.is_multiple_of(STEP_ENTRIES) {
                    pause().await;
                }
            }
        }
        w.finish(*self).await
    }

    fn publish(&self, run: Option<Run>, number: u64) -> Vec<Rc<ExtentMap>> {
        let mut core = self.core.borrow_mut();
        core.maps.written(number);
        if let Some(run) = run {
            core.maps.young.push_front(Rc::new(run));
        }
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

    /// The run was not written: what was frozen is a table again.
    fn thaw(&self, number: u64) {
        let core = &mut *self.core.borrow_mut();
        core.maps.written(number);
        for s in core.shards.values_mut() {
            s.thaw(&mut core.segs);
        }
        core.sweep_map();
    }

    /// Whether the memory tables are at their limit.
    pub fn is_table_full(&self) -> bool {
        let mut core = self.core.borrow_mut();
        if core.maps.grown < core.maps.table_bytes {
            return false;
        }
        // The estimate counts rewrites of the same blocks twice.
        let bytes: usize = core.shards.values().map(|s| s.map.bytes()).sum();
        if bytes < core.maps.table_bytes * 7 / 8 {
            core.maps.grown = bytes;
            return false;
        }
        true
    }

    pub fn wants_merge(&self) -> bool {
        let core = self.core.borrow();
        core.maps.young.len() >= YOUNG_RUNS && !core.maps.damaged
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
            let table = m.table_bytes as u64 / super::ENTRY_BYTES as u64;
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
            let gone = |slot, e| {
                n += 1;
                self.core.borrow_mut().superseded(slot, &e);
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
