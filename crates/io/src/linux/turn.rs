//! The end of a turn: how a task that gathers work runs once, after the tasks that are ready now.
//!
//! Invariant: between `ask` and the next `begin` that answers true the task is scheduled, so nothing that was
//! gathered is forgotten.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

/// The state of a task that runs at the end of turns.
#[derive(Default)]
pub(super) struct Turn {
    waker: RefCell<Option<Waker>>,
    /// Asked since the last run.
    asked: Cell<bool>,
    /// Woken by that, and gone to the end of the queue of ready tasks.
    deferred: Cell<bool>,
}

impl Turn {
    /// Wants a run at the end of this turn. Cheap when it was asked for before.
    pub(super) fn ask(&self) {
        if !self.asked.replace(true)
            && let Some(waker) = &*self.waker.borrow()
        {
            waker.wake_by_ref();
        }
    }

    /// Called at the start of each poll of the task. False means: the task has gone behind the tasks that are ready
    /// and is polled again, so gathering goes on.
    pub(super) fn begin(&self, cx: &Context<'_>) -> bool {
        match &mut *self.waker.borrow_mut() {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        if self.asked.get() && !self.deferred.get() {
            self.deferred.set(true);
            cx.waker().wake_by_ref();
            return false;
        }
        self.deferred.set(false);
        self.asked.set(false);
        true
    }
}
