//! Keeping the state: commands in order, applied, durable, then shown and answered. On a thread of its own, because
//! every write waits for the disk.
//!
//! Invariant: nothing is answered or shown before both files have it (L5's "only what is decided" for one keeper).
//! All commands that wait are one write.

use super::plane::{JOBS_MAX, Job, KeeperOptions};
use super::store::Store;
use freebs_control::{Command, Done, State};
use freebs_types::{Error, Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

struct Keeper {
    store: Store,
    state: Arc<State>,
    shown: watch::Sender<Arc<State>>,
    /// Nodes of the cluster file: no other may register.
    members: BTreeSet<u64>,
}

type Answers = Vec<(oneshot::Sender<Result<Done>>, Result<Done>)>;

pub(super) fn start(options: KeeperOptions, work: mpsc::Receiver<Job>) -> Result<watch::Receiver<Arc<State>>> {
    let (store, state) = Store::open(&options.data, options.cluster, options.may_create)?;
    let state = Arc::new(state);
    let (shown, seen) = watch::channel(state.clone());
    let mut keeper = Keeper { store, state, shown, members: BTreeSet::new() };
    keeper.seed(options.members)?;
    let thread = std::thread::Builder::new().name("control".into());
    thread
        .spawn(move || keeper.run(work))
        .map_err(|e| Error::os(format!("can't start a thread for the control state: {e}")))?;
    Ok(seen)
}

impl Keeper {
    /// The members of the cluster file that the state does not know yet.
    fn seed(&mut self, members: Vec<Command>) -> Result<()> {
        let mut next = State::clone(&self.state);
        for command in members {
            let Command::RegisterNode { node, name, .. } = &command else { continue };
            self.members.insert(node.0);
            match next.node(*node) {
                None => {
                    next.apply(command)?;
                }
                Some(known) if known.name != *name => {
                    return Err(Error::invalid(format!(
                        "the cluster file calls node {node} {name}, and the control state {}; put the name back",
                        known.name
                    )));
                }
                Some(_) => {}
            }
        }
        if let Some(gone) = next.nodes().find(|n| !self.members.contains(&n.id.0)) {
            return Err(Error::invalid(format!(
                "node {} ({}) is missing in the cluster file; members can't be taken out yet, so put it back",
                gone.name, gone.id
            )));
        }
        self.commit(next)
    }

    fn commit(&mut self, next: State) -> Result<()> {
        if next.revision() != self.state.revision() {
            self.store.write(&next)?;
            self.state = Arc::new(next);
        }
        self.shown.send_replace(self.state.clone());
        Ok(())
    }

    fn run(mut self, mut work: mpsc::Receiver<Job>) {
        while let Some(first) = work.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < JOBS_MAX
                && let Ok(job) = work.try_recv()
            {
                batch.push(job);
            }
            for (answer, result) in self.turn(batch) {
                // Who asked may have gone; the command stands.
                let _ = answer.send(result);
            }
        }
    }

    fn turn(&mut self, batch: Vec<Job>) -> Answers {
        let mut next = State::clone(&self.state);
        let mut answers: Answers = Vec::with_capacity(batch.len());
        for job in batch {
            let result = self.allowed(&job.command).and_then(|()| next.apply(job.command));
            answers.push((job.answer, result));
        }
        if let Err(e) = self.commit(next) {
            tracing::error!("the control state could not be written: {e}");
            for (_, result) in answers.iter_mut().filter(|(_, r)| r.is_ok()) {
                *result = Err(e.clone().at("the control state could not be written"));
            }
        }
        answers
    }

    fn allowed(&self, command: &Command) -> Result<()> {
        match command {
            Command::RegisterNode { node, .. } if !self.members.contains(&node.0) => Err(Error::invalid(format!(
                "node {node} is not in the cluster file of the keeper; add it there and start the keeper again"
            ))),
            _ => Ok(()),
        }
    }
}
