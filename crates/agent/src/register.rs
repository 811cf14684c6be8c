//! A node says that it is there.

use crate::timing;
use freebs_control::{Command, Done};
use freebs_types::{Error, ErrorKind, HostPublic, Nanos, NodeId, Result, StartNumber};
use std::collections::VecDeque;

/// All that a node has to say at a start (rules W2, V8), and how far it is.
#[derive(Debug)]
pub struct Registration {
    left: VecDeque<Command>,
}

/// The pause before something is said again that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// Why it was not taken.
    pub why: Error,
    /// The time until then.
    pub time: Nanos,
}

impl Registration {
    /// `node` is a [`Command::RegisterNode`]; `key` is what slices are to be sealed for.
    #[must_use]
    pub fn new(node: NodeId, start: StartNumber, register: Command, key: Option<HostPublic>) -> Self {
        let key = key.map(|key| Command::NameHostKey { node, start, key });
        Self { left: std::iter::once(register).chain(key).collect() }
    }

    /// The command that is to be said now; nothing once all were taken.
    #[must_use]
    pub fn question(&self) -> Option<Command> {
        self.left.front().cloned()
    }

    /// The answer to it. An error means that the node is not taken in.
    pub fn answer(&mut self, answer: Result<Done>) -> Result<Option<Pause>> {
        let time = match &answer {
            Ok(_) => {
                self.left.pop_front();
                return Ok(None);
            }
            Err(e) if e.kind == ErrorKind::Retry => timing::REGISTER_AGAIN,
            // The state could not be written: that may pass.
            Err(e) if matches!(e.kind, ErrorKind::Os | ErrorKind::NoSpace) => timing::REGISTER_UNWRITTEN_AGAIN,
            Err(e) => return Err(e.clone()),
        };
        Ok(answer.err().map(|why| Pause { why, time }))
    }
}
