//! The library's runtime: tokio's current thread, with a watch channel of our own.
//!
//! Tokio's watch channel wakes those that wait in an order that it draws from a generator that can't be seeded in a
//! stable build. It is the only chance in what the library uses of tokio that is not under our seed (the library's own
//! comes from `DeterministicRng`), so one that wakes in order of arrival takes its place.

use openraft::impls::TokioRuntime;
use openraft_rt::watch::{RecvError, SendError};
use openraft_rt::{AsyncRuntime, OptionalSend, Watch, WatchReceiver, WatchSender};
use std::cell::{Cell, Ref, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

struct Shared<T> {
    value: RefCell<T>,
    version: Cell<u64>,
    senders: Cell<usize>,
    receivers: Cell<usize>,
    changed: Notify,
}

/// Keeps a value that others watch.
pub struct Sender<T>(Rc<Shared<T>>);

/// Watches a value.
pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
    seen: u64,
}

/// A value to be watched, all in one thread; who waits is woken in order of arrival.
pub fn watched<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Shared {
        value: RefCell::new(value),
        version: Cell::new(0),
        senders: Cell::new(1),
        receivers: Cell::new(1),
        changed: Notify::new(),
    };
    let shared = Rc::new(shared);
    (Sender(shared.clone()), Receiver { shared, seen: 0 })
}

impl<T> Sender<T> {
    /// Puts a value in, whether somebody watches or not.
    pub fn replace(&self, value: T) {
        *self.0.value.borrow_mut() = value;
        self.tell();
    }

    fn tell(&self) {
        self.0.version.set(self.0.version.get() + 1);
        self.0.changed.notify_waiters();
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        Self(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.senders.set(self.0.senders.get() - 1);
        if self.0.senders.get() == 0 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Receiver<T> {
    /// The value as it is now.
    #[must_use]
    pub fn now(&self) -> Ref<'_, T> {
        self.shared.value.borrow()
    }

    /// Returns once the value was changed since this was last called; false if nobody can change it any more.
    pub async fn next(&mut self) -> bool {
        loop {
            let changed = self.shared.changed.notified();
            if self.shared.version.get() != self.seen {
                self.seen = self.shared.version.get();
                return true;
            }
            if self.shared.senders.get() == 0 {
                return false;
            }
            changed.await;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.set(self.shared.receivers.get() + 1);
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.set(self.shared.receivers.get() - 1);
    }
}

/// The watch channel as the library wants it.
pub struct InOrder;

impl Watch for InOrder {
    type Sender<T: OptionalSend> = Sender<T>;
    type Receiver<T: OptionalSend> = Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = Ref<'a, T>;

    fn channel<T: OptionalSend>(init: T) -> (Sender<T>, Receiver<T>) {
        watched(init)
    }
}

impl<T: OptionalSend> WatchSender<InOrder, T> for Sender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.get() == 0 {
            return Err(SendError(value));
        }
        self.replace(value);
        Ok(())
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        let modified = modify(&mut self.0.value.borrow_mut());
        if modified {
            self.tell();
        }
        modified
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.0.value.borrow()
    }

    fn subscribe(&self) -> Receiver<T> {
        self.0.receivers.set(self.0.receivers.get() + 1);
        Receiver { shared: self.0.clone(), seen: self.0.version.get() }
    }
}

impl<T: OptionalSend> WatchReceiver<InOrder, T> for Receiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        if self.next().await { Ok(()) } else { Err(RecvError(())) }
    }

    fn borrow_watched(&self) -> Ref<'_, T> {
        self.now()
    }

    fn borrow_and_update(&mut self) -> Ref<'_, T> {
        self.seen = self.shared.version.get();
        self.now()
    }
}

/// Tokio's current thread with that channel.
#[derive(Debug)]
pub struct OneThread(TokioRuntime);

impl AsyncRuntime for OneThread {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = InOrder;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.0.block_on(future)
    }
}
