//! Waiting: the thread that made a call sleeps until its answer is there.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

/// Wakes the thread that waits.
struct Sleeper(std::thread::Thread);

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The answer of work that other threads do.
pub(crate) fn wait<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let waker = Waker::from(Arc::new(Sleeper(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = work.as_mut().poll(&mut context) {
            return answer;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_another_thread_is_waited_for() {
        let mut polls = 0;
        let answer = wait(std::future::poll_fn(|context| {
            polls += 1;
            if polls == 3 {
                return Poll::Ready("it");
            }
            let waker = context.waker().clone();
            std::thread::spawn(move || waker.wake());
            Poll::Pending
        }));
        assert_eq!((answer, polls), ("it", 3));
    }
}
