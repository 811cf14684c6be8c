//! A call that runs beside another one, with what the processors have left.
//!
//! Invariant: a call that was begun is waited for, and its failure is the answer; one that was not begun is run then.

use crate::call::Call;
use crate::{Bad, Done, root};
use std::fs::File;
use std::process::{Child, Stdio};

/// A call that is begun at some time, and ended by [`Beside::end`].
pub struct Beside {
    call: Call,
    log: &'static str,
    child: Option<Child>,
}

impl Beside {
    /// A call that is not begun yet; its output goes to `log`, a path from the top of the tree.
    #[must_use]
    pub fn new(call: Call, log: &'static str) -> Self {
        Self { call, log, child: None }
    }

    /// Begins it, if it is not begun. If it can't be started now, [`Self::end`] runs it.
    pub fn begin(&mut self) {
        if self.child.is_some() {
            return;
        }
        let outputs = File::create(root().join(self.log)).and_then(|log| Ok((log.try_clone()?, log)));
        let Ok((out, err)) = outputs else { return };
        let mut command = self.call.gently().command();
        self.child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().ok();
    }

    /// True between its begin and its end.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.child.is_some()
    }

    /// Waits for its end, or runs it if it was not begun. The output of one that failed is printed.
    ///
    /// # Errors
    /// If it fails.
    pub fn end(&mut self) -> Done {
        let Some(mut child) = self.child.take() else { return self.call.run() };
        let how = match child.wait() {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => status.to_string(),
            Err(e) => e.to_string(),
        };
        match std::fs::read(root().join(self.log)) {
            Ok(output) => println!("{}", String::from_utf8_lossy(&output)),
            Err(e) => println!("{} can't be read: {e}", self.log),
        }
        self.call.failed(&how);
        Err(Bad::Failed)
    }
}
