//! A node says that it is there.

use crate::plane::Commands;
use crate::start::TakenIn;
use crate::timing;
use freebs_control::{Command, Done};
use freebs_types::{Error, ErrorKind, Nanos, Result};
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
    pub(crate) fn new(register: Command, key: Option<Command>) -> Self {
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

    /// Says all of it, each until it was taken. `pause` waits.
    pub async fn say(mut self, control: &impl Commands, pause: impl AsyncFn(Pause)) -> Result<TakenIn> {
        while let Some(command) = self.question() {
            let answer = control.submit(command).await;
            if let Some(again) = self.answer(answer)? {
                pause(again).await;
            }
        }
        Ok(TakenIn::new())
    }
}
