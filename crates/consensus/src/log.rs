//! The library's storage traits over the store and the machine.

use crate::machine::Machine;
use crate::runtime::Sender;
use crate::store::{Kept, Store};
use crate::types::{Entry, LogId, Snapshot, SnapshotMeta, StoredMembership, Types, Vote, io_error};
use freebs_control::State;
use futures_util::{Stream, StreamExt};
use openraft::storage::{EntryResponder, IOFlushed, LogState, RaftLogStorage, RaftStateMachine};
use openraft::{OptionalSend, RaftLogReader, RaftSnapshotBuilder};
use openraft_rt::WatchSender;
use std::cell::RefCell;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::rc::Rc;
use std::sync::Arc;

/// Log and vote.
pub(crate) struct Log(pub Store);

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> io::Result<Vec<Entry>> {
        Ok(self.0.read(|c| c.entries.range(range).map(|(_, e)| e.clone()).collect()))
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.0.read(|c| c.vote))
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        Ok(self.0.read(|c| LogState { last_purged_log_id: c.purged, last_log_id: c.last() }))
    }

    async fn get_log_reader(&mut self) -> Self {
        Self(self.0.clone())
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        self.0.save_vote(*vote).await.map_err(io_error)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        if let Some(id) = committed {
            self.0.save_committed(id);
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.0.read(|c| c.committed))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        // The answer waits for stable media; the callback is called when it is there.
        self.0.append(entries.into_iter().collect()).await.map_err(io_error)?;
        callback.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> io::Result<()> {
        self.0.truncate_after(last_log_id).await.map_err(io_error)
    }

    async fn purge(&mut self, log_id: LogId) -> io::Result<()> {
        self.0.purge(log_id).await.map_err(io_error)
    }
}

/// Called for each entry applied, with the machine after it.
pub type Watcher = Rc<dyn Fn(&Entry, &Machine)>;

/// The applied state and its snapshots.
pub(crate) struct Applied {
    pub store: Store,
    pub machine: Rc<RefCell<Machine>>,
    pub published: Sender<Arc<State>>,
    pub watcher: Option<Watcher>,
}

impl RaftStateMachine<Types> for Applied {
    type SnapshotData = Rc<Vec<u8>>;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let m = self.machine.borrow();
        Ok((m.applied, m.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let (answer, state) = {
                let mut machine = self.machine.borrow_mut();
                let answer = machine.apply(&entry, self.store.mutant());
                if let Some(watcher) = &self.watcher {
                    watcher(&entry, &machine);
                }
                (answer, machine.state.clone())
            };
            self.published.send_if_modified(|old| {
                let newer = state.revision() != old.revision();
                if newer {
                    *old = state;
                }
                newer
            });
            if let Some(r) = responder {
                r.send(answer);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { store: self.store.clone(), machine: self.machine.borrow().clone() }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: Rc<Vec<u8>>) -> io::Result<()> {
        let installed = self.install(meta, snapshot).await;
        self.store.settle(meta.last_log_id);
        installed
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        Ok(self.store.read(|c| c.snapshot.clone()).map(|k| Snapshot { meta: k.meta, snapshot: k.bytes }))
    }
}

impl Applied {
    async fn install(&self, meta: &SnapshotMeta, snapshot: Rc<Vec<u8>>) -> io::Result<()> {
        let machine = Machine::decode(&snapshot, self.store.cluster()).map_err(io_error)?;
        if machine.applied != meta.last_log_id {
            return Err(io_error(freebs_types::Error::corrupt("a snapshot is not of the index that it came for")));
        }
        let kept = Kept { meta: meta.clone(), bytes: snapshot };
        self.store.save_snapshot(kept, true).await.map_err(io_error)?;
        self.published.replace(machine.state.clone());
        *self.machine.borrow_mut() = machine;
        Ok(())
    }
}

/// A machine at one index, to be made a snapshot.
pub(crate) struct Builder {
    store: Store,
    machine: Machine,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = Rc<Vec<u8>>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let meta = SnapshotMeta { last_log_id: self.machine.applied, last_membership: self.machine.membership.clone() };
        let kept = Kept { meta: meta.clone(), bytes: Rc::new(self.machine.encode()) };
        self.store.save_snapshot(kept.clone(), false).await.map_err(io_error)?;
        Ok(Snapshot { meta, snapshot: kept.bytes })
    }
}
