//! Slow readers: what they may read before they have to wait.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Bytes of one read of the scrub: small beside what others read meanwhile.
pub(crate) const READ_BYTES: usize = 256 << 10;

/// The bytes that may be read before the reader has to wait.
#[derive(Default)]
pub(crate) struct Gate {
    granted: Cell<i64>,
    read: Cell<u64>,
    waits: Cell<bool>,
}

impl Gate {
    /// Waits until something is granted. A read may be larger than that; it is taken off the next grants.
    pub async fn pass(&self, bytes: usize) {
        poll_fn(|_| {
            if self.granted.get() > 0 {
                return Poll::Ready(());
            }
            // The caller that grants more polls again.
            self.waits.set(true);
            Poll::Pending
        })
        .await;
        self.granted.set(self.granted.get() - bytes as i64);
        self.read.set(self.read.get() + bytes as u64);
    }

    /// Grants `bytes` bytes to work that reads through this gate, and polls it until it ends or waits for more. A read
    /// beyond the grant is taken off the next ones.
    pub async fn drive<T>(&self, bytes: u64, work: &mut Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
        self.granted.set(self.granted.get().min(0).saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX)));
        poll_fn(|cx| {
            self.waits.set(false);
            match work.as_mut().poll(cx) {
                Poll::Ready(end) => Poll::Ready(Some(end)),
                Poll::Pending if self.waits.get() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Bytes that were read since the last call.
    pub fn take_read(&self) -> u64 {
        self.read.take()
    }
}
