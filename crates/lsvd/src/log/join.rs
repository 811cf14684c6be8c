//! Several futures at once, a bounded number of them, and giving way to others; without an executor.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Device requests of one call in flight together.
const AT_ONCE: usize = 32;

/// Runs all futures, up to `AT_ONCE` at a time; results in their order.
pub(crate) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures = futures;
    if futures.len() == 1 {
        return vec![futures.pop().expect("there is one").await];
    }
    let mut waiting: Vec<Option<Pin<Box<F>>>> = futures.into_iter().map(|f| Some(Box::pin(f))).collect();
    let mut out: Vec<Option<F::Output>> = waiting.iter().map(|_| None).collect();
    let mut first = 0;
    poll_fn(|cx| {
        let mut running = 0;
        for (f, o) in waiting.iter_mut().zip(&mut out).skip(first) {
            let Some(future) = f else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(v) => (*f, *o) = (None, Some(v)),
                Poll::Pending => running += 1,
            }
            if running == AT_ONCE {
                break;
            }
        }
        while waiting.get(first).is_some_and(Option::is_none) {
            first += 1;
        }
        if running == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    out.into_iter().map(|o| o.expect("all are ready")).collect()
}

/// Lets everybody else have a turn.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_results_in_order() {
        let futures = (0..100u32).map(|i| async move {
            for _ in 0..(i * 7) % 5 {
                tokio::task::yield_now().await;
            }
            i
        });
        assert_eq!(join_all(futures.collect()).await, (0..100).collect::<Vec<_>>());
        assert!(join_all(Vec::<std::future::Ready<u32>>::new()).await.is_empty());
    }
}
