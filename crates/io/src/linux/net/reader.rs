//! The reading side of a link: one task, one buffer, all complete messages of a read handed on together.
//!
//! Invariants: a message's length is held against `MESSAGE_BYTES_MAX` before memory is taken for it; the buffer is
//! back at its usual size once a large message has passed; nothing is read while the link is paused.

use super::stream::ReadHalf;
use super::{Link, Shared, Wire};
use bytes::BytesMut;
use freebs_types::{Error, Result, limits};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::task::Poll;

/// Bytes of a reader's buffer, unless a message needs more.
pub const READ_BUFFER_BYTES: usize = 256 << 10;
/// A read with less room than this is not worth its system call.
const SPARE_MIN: usize = 32 << 10;
/// Places of the list of messages that are kept from one read to the next.
const BATCH_KEPT: usize = 4096;

pub(super) async fn read<W: Wire>(shared: Weak<Shared<W>>, link: Rc<Link<W>>, mut half: ReadHalf, mut buf: BytesMut) {
    let mut batch = Vec::new();
    let error = loop {
        let wanted = decode::<W>(&mut buf, &mut batch);
        let Some(shared) = shared.upgrade() else { return };
        if !batch.is_empty() {
            shared.deliver(link.id, &mut batch);
            batch.shrink_to(BATCH_KEPT);
        }
        drop(shared);
        if link.closed.get() {
            return;
        }
        match wanted {
            Ok(wanted) => make_room(&mut buf, wanted),
            Err(e) => break e,
        }
        match fill(&link, &mut half, &mut buf).await {
            Ok(0) if buf.is_empty() => break Error::retry("the other side closed the connection"),
            Ok(0) => break Error::retry("the other side closed the connection in the middle of a message"),
            Ok(_) => {}
            Err(e) => break Error::retry(format!("the connection broke: {e}")),
        }
        if buf.len() == buf.capacity() {
            // There is probably more; the other links have their turn first.
            requeue().await;
        }
    };
    if let Some(shared) = shared.upgrade() {
        shared.fail(&link, error);
    }
}

/// Takes all complete messages off `buf`; the bytes that the next one needs.
fn decode<W: Wire>(buf: &mut BytesMut, batch: &mut Vec<W::Message>) -> Result<usize> {
    loop {
        let wanted = W::wanted(buf)?;
        if wanted > limits::MESSAGE_BYTES_MAX {
            return Err(Error::corrupt(format!("a message of {wanted} bytes is larger than any may be")));
        }
        if buf.len() < wanted {
            return Ok(wanted);
        }
        match W::decode(buf)? {
            Some(message) => batch.push(message),
            // It has all it wanted; asking the network for more would not end.
            None => return Err(Error::corrupt("a message does not end where it says")),
        }
        if buf.is_empty() {
            return Ok(0);
        }
    }
}

/// Makes room for the message at hand and for a decent read; gives a buffer that a large message left behind back.
fn make_room(buf: &mut BytesMut, wanted: usize) {
    let spare = wanted.saturating_sub(buf.len()).max(SPARE_MIN);
    let usual = wanted.max(READ_BUFFER_BYTES);
    let fits = buf.capacity() - buf.len() >= spare || buf.try_reclaim(spare);
    if fits && buf.capacity() <= 2 * usual {
        return;
    }
    let mut new = BytesMut::with_capacity(usual.max(buf.len() + spare));
    new.extend_from_slice(buf);
    *buf = new;
}

async fn fill<W: Wire>(link: &Link<W>, half: &mut ReadHalf, buf: &mut BytesMut) -> io::Result<usize> {
    poll_fn(|cx| {
        if link.paused.get() {
            *link.resumed.borrow_mut() = Some(cx.waker().clone());
            return Poll::Pending;
        }
        half.poll_read(cx, buf)
    })
    .await
}

/// Goes behind the tasks that are ready.
async fn requeue() {
    let mut gone = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut gone, true) {
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

    #[test]
    fn the_buffer_grows_for_a_large_message_and_shrinks_again() {
        let mut buf = BytesMut::new();
        make_room(&mut buf, 0);
        assert_eq!(buf.capacity(), READ_BUFFER_BYTES);
        buf.extend_from_slice(&[7; 100]);
        make_room(&mut buf, 4 << 20);
        assert!(buf.capacity() >= 4 << 20 && buf[..] == [7; 100]);
        buf.resize(4 << 20, 0);
        drop(buf.split_to((4 << 20) - 10));
        make_room(&mut buf, 64);
        assert!(buf.capacity() <= 2 * READ_BUFFER_BYTES && buf.len() == 10, "{}", buf.capacity());
    }

    #[test]
    fn room_is_reused_when_nobody_holds_the_messages() {
        let mut buf = BytesMut::new();
        for _ in 0..100 {
            make_room(&mut buf, 4096);
            buf.resize(200 << 10, 1);
            drop(buf.split_to(200 << 10));
            assert!(buf.capacity() <= READ_BUFFER_BYTES);
        }
        make_room(&mut buf, 4096);
        buf.resize(buf.capacity() - 10, 1);
        let held = buf.split_to(buf.len() - 5).freeze();
        make_room(&mut buf, 4096);
        assert!(buf.capacity() >= SPARE_MIN && buf[..] == [1; 5] && held[0] == 1);
    }
}
