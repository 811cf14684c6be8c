//! What may be used by one thread at a time, and tasks without an event loop.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// A value with reference counts and cells that are not made for threads, kept whole behind one lock.
pub(crate) struct Confined<T>(pub T);

// SAFETY: the engine's `Rc`s and `RefCell`s form a closed world: every handle on them lies inside the one `Confined`
// (the engine, its writer, unfinished reads, the device, the listener), which is only ever reached through the lock
// around it, so no two threads touch them at once, and the lock orders what they do. What goes in (a task's captures)
// and what comes out (its outcome) is `Send` of its own, as `Inside::spawn` and `step` demand; so are `Work` and `Done`.
// None of it looks at thread-local state.
unsafe impl<T> Send for Confined<T> {}

/// Whether a task has something to do.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// A future that is polled by whoever has the lock, when it has something to do.
pub(crate) struct Task<T> {
    /// None once it has ended.
    future: Option<Pin<Box<dyn Future<Output = T>>>>,
    flag: Arc<Flag>,
    waker: Waker,
}

impl<T> Task<T> {
    pub fn new(future: impl Future<Output = T> + 'static) -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        Self { future: Some(Box::pin(future)), waker: flag.clone().into(), flag }
    }

    /// Whether it was woken since the last poll.
    pub fn is_woken(&self) -> bool {
        self.future.is_some() && self.flag.0.load(Ordering::Acquire)
    }

    /// Goes on, if it was woken.
    pub fn step(&mut self) -> Option<T> {
        if !self.flag.0.swap(false, Ordering::AcqRel) {
            return None;
        }
        match self.future.as_mut()?.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Ready(v) => {
                self.future = None;
                Some(v)
            }
            Poll::Pending => None,
        }
    }
}
