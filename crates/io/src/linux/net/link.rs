//! One link: its queue, its end, and how the queue gets written.
//!
//! Invariant: a closed link holds nothing: no queue, no socket half, no reader task.

use super::stream::WriteHalf;
use super::{Encoder, NetCounts, Wire};
use crate::LinkId;
use freebs_types::{Error, limits};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::task::{Context, Poll, Waker};
use tokio::task::AbortHandle;

/// Pieces of one write. Far below the system's limit (1,024); more of them fill no socket buffer faster.
const WRITE_PIECES_MAX: usize = 128;
/// Bytes that one link writes before the others have their turn.
const WRITE_BYTES_PER_TURN_MAX: usize = 1 << 20;

pub(super) struct Link<W: Wire> {
    pub id: LinkId,
    pub closed: Cell<bool>,
    /// In one of the transport's lists of links with something to do.
    pub marked: Cell<bool>,
    /// Waiting for its socket to take more.
    pub blocked: Cell<bool>,
    pub paused: Cell<bool>,
    /// Bytes that may wait; one more, and it is closed.
    pub window: Cell<usize>,
    /// Closes when its queue is empty.
    pub finishing: Cell<bool>,
    /// The reader, asleep while the link is paused.
    pub resumed: RefCell<Option<Waker>>,
    pub end: End<W>,
}

pub(super) enum End<W: Wire> {
    Socket { queue: RefCell<Encoder>, write: RefCell<Option<WriteHalf>>, reader: RefCell<Option<AbortHandle>> },
    Local { peer: LinkId, inbox: RefCell<Vec<W::Message>>, bytes: Cell<usize> },
}

/// How far a flush got.
pub(super) enum Flushed {
    All,
    /// The socket is full.
    Blocked,
    /// It was the others' turn.
    Part,
    Failed(Error),
}

impl<W: Wire> Link<W> {
    fn new(id: LinkId, end: End<W>) -> Self {
        Self {
            id,
            closed: Cell::new(false),
            marked: Cell::new(false),
            blocked: Cell::new(false),
            paused: Cell::new(false),
            window: Cell::new(limits::PEER_WINDOW_BYTES),
            finishing: Cell::new(false),
            resumed: RefCell::new(None),
            end,
        }
    }

    pub(super) fn socket(id: LinkId, write: WriteHalf) -> Self {
        let (queue, reader) = (RefCell::default(), RefCell::new(None));
        Self::new(id, End::Socket { queue, write: RefCell::new(Some(write)), reader })
    }

    pub(super) fn local(id: LinkId, peer: LinkId) -> Self {
        Self::new(id, End::Local { peer, inbox: RefCell::default(), bytes: Cell::new(0) })
    }

    pub(super) fn set_reader(&self, task: AbortHandle) {
        if let End::Socket { reader, .. } = &self.end {
            *reader.borrow_mut() = Some(task);
        }
    }

    pub(super) fn wake_reader(&self) {
        let waker = self.resumed.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn stop_reading(&self) {
        if let End::Socket { reader, .. } = &self.end
            && let Some(task) = reader.borrow_mut().take()
        {
            task.abort();
        }
    }

    /// Lets go of everything.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.stop_reading();
        match &self.end {
            End::Socket { queue, write, .. } => {
                queue.take();
                write.take();
            }
            End::Local { inbox, bytes, .. } => {
                drop(inbox.take());
                bytes.set(0);
            }
        }
    }

    /// True if something that left the queue has not left this process.
    pub(super) fn holds_back(&self) -> bool {
        match &self.end {
            End::Socket { write, .. } => write.borrow().as_ref().is_some_and(WriteHalf::holds_back),
            End::Local { .. } => false,
        }
    }

    /// Whether it is worth trying to write; if not, the context's task is woken when it is.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> bool {
        match &self.end {
            End::Socket { write, .. } => write.borrow().as_ref().is_none_or(|write| write.poll_ready(cx).is_ready()),
            End::Local { .. } => false,
        }
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&self, cx: &mut Context<'_>, counts: &mut NetCounts) -> Flushed {
        let End::Socket { queue, write, .. } = &self.end else { return Flushed::All };
        let (mut queue, write) = (queue.borrow_mut(), write.borrow());
        let Some(write) = &*write else { return Flushed::All };
        let mut written = 0;
        // A socket that is ready again right after it was full is asked once more, not for ever.
        let mut refused = false;
        while !queue.is_empty() || write.holds_back() {
            if written >= WRITE_BYTES_PER_TURN_MAX {
                return Flushed::Part;
            }
            match write_once(&mut queue, write) {
                Ok(n) => {
                    written += n;
                    counts.writes += 1;
                    counts.bytes_written += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => match write.poll_ready(cx) {
                    Poll::Pending => return Flushed::Blocked,
                    Poll::Ready(Err(e)) => return Flushed::Failed(broke(&e)),
                    Poll::Ready(Ok(())) if write.is_closed(cx) => {
                        return Flushed::Failed(Error::retry("the other side hung up"));
                    }
                    Poll::Ready(Ok(())) if std::mem::replace(&mut refused, true) => return Flushed::Part,
                    Poll::Ready(Ok(())) => {}
                },
                Err(e) => return Flushed::Failed(broke(&e)),
            }
        }
        Flushed::All
    }
}

fn broke(e: &io::Error) -> Error {
    Error::retry(format!("the connection broke: {e}"))
}

fn write_once(queue: &mut Encoder, write: &WriteHalf) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); WRITE_PIECES_MAX];
    let count = queue.slices(&mut slices);
    let written = write.try_write(&slices[..count])?;
    if written == 0 && count > 0 {
        return Err(io::Error::from(io::ErrorKind::WriteZero));
    }
    queue.advance(written);
    Ok(written)
}
