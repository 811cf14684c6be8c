//! Busy polling: a worker that has just done something, and expects more within the time that falling asleep and
//! being woken takes, looks again instead of sleeping.
//!
//! On a machine with idle processors a wake-up is most of what one more process on the way of a request costs. How
//! long to look is learned as the halt polling of KVM learns it (Linux, Documentation/virt/kvm/halt-polling): the
//! window grows while events come at most two windows apart, and falls to nothing after a longer wait, so a worker
//! without work sleeps. (Polling the first half of a wait still pays: a processor that has idled for a short time wakes
//! faster.)
//!
//! Invariants:
//! - Between two looks the processor is offered to others. If one of them took it, nothing is polled for a while:
//!   polling uses what nobody wants.
//! - A turn with more than `EVENTS_MAX` events ends polling: requests that come many at a time are better gathered.
//!
//! There is one worker a thread, so the state is the thread's own.

use crate::timing;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Events of one turn that still count as few.
const EVENTS_MAX: u32 = 4;
/// Waits that are not polled after another thread had the processor.
const HELD_OFF: u32 = 4;

thread_local! {
    static EVENTS: Cell<u32> = const { Cell::new(0) };
    static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
}

/// Something came: messages, completions, requests.
pub fn note(events: usize) {
    EVENTS.set(EVENTS.get().saturating_add(u32::try_from(events).unwrap_or(u32::MAX)));
    WAKER.with_borrow_mut(|w| w.take()).into_iter().for_each(Waker::wake);
}

/// How long to poll: the part that decides, with time given from outside.
#[derive(Debug)]
struct Window {
    max: Duration,
    now: Duration,
    held_off: u32,
}

impl Window {
    fn new(max: Duration) -> Self {
        Self { max: max.min(timing::POLL_WINDOW_MAX), now: Duration::ZERO, held_off: 0 }
    }

    /// An event that was not polled for came `quiet` after the one before. Returns how long to poll from here.
    fn woken(&mut self, quiet: Duration) -> Duration {
        if self.held_off > 0 {
            self.held_off -= 1;
            return Duration::ZERO;
        }
        self.now = match quiet < 2 * self.max {
            true => (self.now * 2).max(timing::POLL_WINDOW_MIN).min(self.max),
            false => Duration::ZERO,
        };
        self.now
    }

    /// Somebody else wanted the processor.
    fn taken(&mut self) {
        self.now = Duration::ZERO;
        self.held_off = HELD_OFF;
    }
}

/// Polls for the worker of this thread, for at most `max` after each event, and never longer than 1 ms
/// (`POLL_WINDOW_MAX`). Does not end.
/// Run it as a task of the worker's event loop.
pub async fn poll(max: Duration) {
    let mut window = Window::new(max);
    let mut event = Instant::now();
    loop {
        next_event().await;
        let woken = Instant::now();
        let length = window.woken(woken - event);
        event = look(&mut window, woken, length).await;
        EVENTS.set(0);
    }
}

/// Looks for events until none has come for `length` since the last, and gives the time of that one.
async fn look(window: &mut Window, mut event: Instant, length: Duration) -> Instant {
    let mut last = event;
    while last - event < length {
        EVENTS.set(0);
        // SAFETY: no memory is involved.
        unsafe { libc::sched_yield() };
        // The tasks that are ready run first, then the event loop looks once without waiting.
        tokio::task::yield_now().await;
        let now = Instant::now();
        match EVENTS.get() {
            0 if now - last > timing::LOOK_TAKEN => {
                window.taken();
                return event;
            }
            0 => {}
            1..=EVENTS_MAX => event = now,
            _ => return now,
        }
        last = now;
    }
    event
}

async fn next_event() {
    poll_fn(|cx| {
        if EVENTS.get() > 0 {
            return Poll::Ready(());
        }
        WAKER.set(Some(cx.waker().clone()));
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_micros(200);

    #[test]
    fn short_sleeps_open_the_window_and_a_long_one_closes_it() {
        let mut w = Window::new(MAX);
        let short = Duration::from_micros(50);
        let grown: Vec<_> = (0..5).map(|_| w.woken(short).as_micros()).collect();
        assert_eq!(grown, [25, 50, 100, 200, 200]);
        assert_eq!(w.woken(2 * MAX), Duration::ZERO);
        assert_eq!(w.woken(short), timing::POLL_WINDOW_MIN);
    }

    #[test]
    fn nothing_is_polled_for_a_while_where_others_want_the_processor() {
        let mut w = Window::new(MAX);
        w.woken(Duration::ZERO);
        w.taken();
        assert!((0..HELD_OFF).all(|_| w.woken(Duration::ZERO).is_zero()));
        assert_eq!(w.woken(Duration::ZERO), timing::POLL_WINDOW_MIN);
    }

    #[test]
    fn no_window_at_all_polls_never_and_none_is_longer_than_the_longest() {
        let mut w = Window::new(Duration::ZERO);
        assert!((0..9).all(|_| w.woken(Duration::ZERO).is_zero()));
        let mut w = Window::new(Duration::from_secs(9));
        (0..20).for_each(|_| assert!(w.woken(Duration::ZERO) > Duration::ZERO));
        assert_eq!(w.now, timing::POLL_WINDOW_MAX);
    }

    /// An event that comes within the window is seen without a sleep of the thread, and polling ends by itself.
    #[test]
    fn a_worker_without_events_sleeps() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let task = tokio::task::spawn_local(poll(timing::POLL_WINDOW_MAX));
            for _ in 0..200 {
                note(1);
                tokio::task::yield_now().await;
            }
            let mut before = 0;
            // A task that polls is woken in each turn: after the window it is not, so its waker lies there.
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                before += u32::from(WAKER.with_borrow(Option::is_some));
            }
            assert!(before > 150, "{before} of 200 times asleep");
            task.abort();
        });
    }
}
