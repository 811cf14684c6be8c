//! The transport of one worker: links over sockets, and links from the worker to itself.
//!
//! What is sent during a turn of the loop is encoded at once and written at the turn's end, one system call for each
//! link. What arrives in one read is handed on as one batch. Messages between two ends in the same worker are
//! neither encoded nor written; they arrive in the next turn.
//!
//! Invariants:
//! - On one link messages arrive in the order in which they were sent, each once, none behind a gap: a link that
//!   loses something is closed.
//! - A link has at most `PEER_WINDOW_BYTES` waiting (plus one message), or what `set_window` allows it; one more,
//!   and it is closed.
//! - The handler is never called from inside `send`, `close` or any other call of a transport, so it may call all
//!   of them; nothing is borrowed while it runs.
//! - After `close(link)`, and after `on_closed(link)`, the handler hears no more of that link; its queue, buffers,
//!   tasks and socket are gone as soon as the loop has turned.

mod encoder;
mod link;
mod reader;
mod stream;
mod tls;

pub use encoder::Encoder;
pub use reader::READ_BUFFER_BYTES;
pub use stream::{
    Address, LinkStream, Listener, LooseLink, LooseStream, Stream, connect, mask_broken_pipes, notice_silence,
};

use super::turn::Turn;
use crate::{LinkId, Outbox};
use bytes::BytesMut;
use freebs_types::{Error, Result};
use link::{End, Flushed, Link};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use tokio::task::AbortHandle;

/// How messages look on the wire. A type of its own, so that neither the messages nor the transport need to know the
/// other.
pub trait Wire: 'static {
    /// A message in memory.
    type Message: 'static;

    /// Bytes that the message at the start of `bytes` has in all, or at least (its header) while that is not known.
    fn wanted(bytes: &[u8]) -> Result<usize>;

    /// Takes one whole message off the front of `buf`. It is called when `wanted` bytes are there, so `None` is an
    /// error by then.
    fn decode(buf: &mut BytesMut) -> Result<Option<Self::Message>>;

    /// Appends the message to a link's queue.
    fn encode(message: Self::Message, out: &mut Encoder);

    /// About how much memory a message holds, for links whose messages are not encoded.
    fn weight(message: &Self::Message) -> usize;
}

/// Who takes what arrives.
pub trait Handler<M> {
    /// All messages of a read, or of a turn, in order. What is left in `messages` is dropped.
    fn on_messages(&self, link: LinkId, messages: &mut Vec<M>);

    /// The link is gone, and nobody here asked for it: the other side closed, broke, sent garbage (`Corrupt`), or did
    /// not keep up. Not called for links that were closed with `close` or `finish`.
    fn on_closed(&self, link: LinkId, why: Error);
}

/// What a transport has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetCounts {
    /// Messages that were handed over to be sent on a link that was there.
    pub messages_sent: u64,
    /// Messages that were handed to the handler.
    pub messages_received: u64,
    /// Calls of the handler with messages.
    pub batches_received: u64,
    /// System calls that wrote something.
    pub writes: u64,
    /// Bytes that those system calls took.
    pub bytes_written: u64,
}

/// A link number that no other link of this process has.
#[must_use]
pub fn fresh_link() -> LinkId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    LinkId(NEXT.fetch_add(1, Ordering::Relaxed))
}

struct Shared<W: Wire> {
    links: RefCell<HashMap<LinkId, Rc<Link<W>>>>,
    handler: RefCell<Option<Rc<dyn Handler<W::Message>>>>,
    /// Socket links with something to write that was not tried yet.
    unwritten: RefCell<Vec<Rc<Link<W>>>>,
    /// Local links with messages to hand on.
    undelivered: RefCell<Vec<Rc<Link<W>>>>,
    /// Links that were closed from inside, whose handler has to be told.
    failed: RefCell<Vec<(LinkId, Error)>>,
    turn: Turn,
    task: RefCell<Option<AbortHandle>>,
    counts: Cell<NetCounts>,
}

impl<W: Wire> Shared<W> {
    fn count(&self, change: impl FnOnce(&mut NetCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    fn link(&self, id: LinkId) -> Option<Rc<Link<W>>> {
        self.links.borrow().get(&id).cloned()
    }

    /// Hands messages to the handler and empties the list.
    fn deliver(&self, link: LinkId, messages: &mut Vec<W::Message>) {
        let handler = self.handler.borrow().clone();
        if let Some(handler) = handler {
            self.count(|c| {
                c.messages_received += messages.len() as u64;
                c.batches_received += 1;
            });
            super::busy::note(messages.len());
            handler.on_messages(link, messages);
        }
        messages.clear();
    }

    /// Takes a link away. False if it was gone already.
    fn remove(&self, link: &Link<W>) -> bool {
        let was_there = self.links.borrow_mut().remove(&link.id).is_some();
        link.close();
        if let End::Local { peer, .. } = &link.end
            && let Some(peer) = self.link(*peer)
        {
            self.fail_later(&peer, Error::retry("the other end of this local link was closed"));
        }
        was_there
    }

    fn tell(&self, link: LinkId, why: Error) {
        let handler = self.handler.borrow().clone();
        if let Some(handler) = handler {
            handler.on_closed(link, why);
        }
    }

    /// Closes a link from the worker's own loop (not from inside a call) and says so.
    fn fail(&self, link: &Link<W>, why: Error) {
        if self.remove(link) && !link.finishing.get() {
            self.tell(link.id, why);
        }
    }

    /// Closes a link from inside a call; the handler hears of it at the end of the turn.
    fn fail_later(&self, link: &Link<W>, why: Error) {
        if self.remove(link) && !link.finishing.get() {
            self.failed.borrow_mut().push((link.id, why));
            self.turn.ask();
        }
    }

    fn send(&self, to: LinkId, message: W::Message) {
        let Some(link) = self.link(to) else { return };
        if link.finishing.get() {
            return;
        }
        self.count(|c| c.messages_sent += 1);
        match &link.end {
            End::Socket { queue, .. } => {
                let mut queue = queue.borrow_mut();
                W::encode(message, &mut queue);
                let waiting = queue.len();
                drop(queue);
                if waiting > link.window.get() {
                    return self.fail_later(&link, not_kept_up(waiting));
                }
                self.mark(&link, &self.unwritten);
            }
            End::Local { peer, .. } => {
                let Some(peer) = self.link(*peer) else { return };
                let End::Local { inbox, bytes, .. } = &peer.end else { unreachable!("both ends are local") };
                let waiting = bytes.get() + W::weight(&message);
                inbox.borrow_mut().push(message);
                bytes.set(waiting);
                if waiting > link.window.get() {
                    return self.fail_later(&link, not_kept_up(waiting));
                }
                self.mark(&peer, &self.undelivered);
            }
        }
    }

    fn mark(&self, link: &Rc<Link<W>>, list: &RefCell<Vec<Rc<Link<W>>>>) {
        if !link.marked.replace(true) {
            list.borrow_mut().push(Rc::clone(link));
        }
        // A link that waits for its socket is marked all the time, and needs no turn until the socket is ready.
        if !link.blocked.get() {
            self.turn.ask();
        }
    }

    /// Hands on what local links have, then writes what all of that led to.
    fn run(&self, cx: &mut Context<'_>, blocked: &mut Vec<Rc<Link<W>>>) {
        for link in self.undelivered.take() {
            link.marked.set(false);
            self.deliver_local(&link);
        }
        for link in self.unwritten.take() {
            self.write(cx, link, blocked);
        }
        for (link, why) in self.failed.take() {
            self.tell(link, why);
        }
    }

    fn deliver_local(&self, link: &Link<W>) {
        let End::Local { inbox, bytes, peer } = &link.end else { return };
        if link.paused.get() || link.closed.get() {
            return;
        }
        let mut messages = inbox.take();
        bytes.set(0);
        if !messages.is_empty() {
            self.deliver(link.id, &mut messages);
        }
        // Its capacity is used again, unless the handler has sent something meanwhile.
        if inbox.borrow().is_empty() && !link.closed.get() {
            inbox.replace(messages);
            if let Some(peer) = self.link(*peer).filter(|p| p.finishing.get()) {
                self.remove(&peer);
            }
        }
    }

    fn write(&self, cx: &mut Context<'_>, link: Rc<Link<W>>, blocked: &mut Vec<Rc<Link<W>>>) {
        link.blocked.set(false);
        let mut counts = self.counts.get();
        let flushed = link.flush(cx, &mut counts);
        self.counts.set(counts);
        match flushed {
            Flushed::All => {
                link.marked.set(false);
                if link.finishing.get() {
                    self.remove(&link);
                }
            }
            Flushed::Blocked => {
                link.blocked.set(true);
                blocked.push(link);
            }
            Flushed::Part => {
                self.unwritten.borrow_mut().push(link);
                self.turn.ask();
            }
            Flushed::Failed(why) => self.fail(&link, why),
        }
    }
}

fn not_kept_up(waiting: usize) -> Error {
    Error::retry(format!("the other side does not keep up: {waiting} bytes wait for it"))
}

impl<W: Wire> Drop for Shared<W> {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut().take() {
            task.abort();
        }
        for link in self.links.get_mut().values() {
            link.close();
        }
    }
}

/// The transport's own task: writes, local messages and news of failed links at the end of each turn.
async fn work<W: Wire>(shared: Weak<Shared<W>>) {
    // Links whose socket is full. This task alone waits for their writability.
    let mut blocked: Vec<Rc<Link<W>>> = Vec::new();
    poll_fn(|cx| {
        let Some(shared) = shared.upgrade() else { return Poll::Ready(()) };
        if !shared.turn.begin(cx) {
            return Poll::Pending;
        }
        for link in std::mem::take(&mut blocked) {
            if link.closed.get() {
                continue;
            }
            if link.poll_writable(cx) {
                shared.write(cx, link, &mut blocked);
            } else {
                blocked.push(link);
            }
        }
        shared.run(cx, &mut blocked);
        Poll::Pending
    })
    .await;
}

/// The transport of one worker. A handle: clones share the links. It ends with its last handle; a handler that holds
/// one itself is let go of by `shut_down`.
pub struct Transport<W: Wire>(Rc<Shared<W>>);

impl<W: Wire> Clone for Transport<W> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<W: Wire> Transport<W> {
    /// Starts a transport without links. Call it inside the worker's `LocalSet`.
    #[must_use]
    pub fn start() -> Self {
        let shared = Rc::new(Shared {
            links: RefCell::default(),
            handler: RefCell::new(None),
            unwritten: RefCell::default(),
            undelivered: RefCell::default(),
            failed: RefCell::default(),
            turn: Turn::default(),
            task: RefCell::new(None),
            counts: Cell::default(),
        });
        let task = tokio::task::spawn_local(work(Rc::downgrade(&shared)));
        *shared.task.borrow_mut() = Some(task.abort_handle());
        Self(shared)
    }

    /// Names the handler. Before that there may be no links.
    pub fn set_handler(&self, handler: Rc<dyn Handler<W::Message>>) {
        let old = self.0.handler.replace(Some(handler));
        drop(old);
    }

    /// Takes over a connected stream as link `link` (see [`fresh_link`]). `leftover` is what was read from it before
    /// and belongs to the messages that follow.
    pub fn adopt(&self, stream: impl Into<LinkStream>, link: LinkId, leftover: BytesMut) {
        assert!(self.0.handler.borrow().is_some(), "a transport needs a handler before its first link");
        let (read, write) = stream.into().split();
        let new = Rc::new(Link::socket(link, write));
        let task = tokio::task::spawn_local(reader::read(Rc::downgrade(&self.0), Rc::clone(&new), read, leftover));
        new.set_reader(task.abort_handle());
        let old = self.0.links.borrow_mut().insert(link, new);
        assert!(old.is_none(), "{link} is used twice");
    }

    /// Two links that are each other's other end: what is sent on one arrives from the other, here.
    #[must_use]
    pub fn local_pair(&self) -> (LinkId, LinkId) {
        assert!(self.0.handler.borrow().is_some(), "a transport needs a handler before its first link");
        let (a, b) = (fresh_link(), fresh_link());
        let mut links = self.0.links.borrow_mut();
        links.insert(a, Rc::new(Link::local(a, b)));
        links.insert(b, Rc::new(Link::local(b, a)));
        (a, b)
    }

    /// Closes a link at once; what waits on it is dropped. Closing one that is gone does nothing.
    pub fn close(&self, link: LinkId) {
        if let Some(link) = self.0.link(link) {
            self.0.remove(&link);
        }
    }

    /// Closes a link once what waits on it was written (or handed on, if it is local); more can't be sent, and nothing
    /// more is read.
    pub fn finish(&self, link: LinkId) {
        let Some(link) = self.0.link(link) else { return };
        if self.queued(link.id) == 0 {
            self.0.remove(&link);
            return;
        }
        link.finishing.set(true);
        link.stop_reading();
    }

    /// Lets so many bytes wait on a link in place of `PEER_WINDOW_BYTES`: for one whose users hold what they send in
    /// windows of their own, and may all have to send it at once. Nothing happens if the link is gone.
    pub fn set_window(&self, link: LinkId, bytes: usize) {
        if let Some(link) = self.0.link(link) {
            link.window.set(bytes);
        }
    }

    /// Bytes that wait to be written on a link, or to be handed on by its local other end. 0 if it is gone.
    #[must_use]
    pub fn queued(&self, link: LinkId) -> usize {
        let Some(link) = self.0.link(link) else { return 0 };
        match &link.end {
            End::Socket { queue, .. } => queue.borrow().len() + usize::from(link.holds_back()),
            End::Local { peer, .. } => match self.0.link(*peer).as_deref() {
                Some(Link { end: End::Local { bytes, .. }, .. }) => bytes.get(),
                _ => 0,
            },
        }
    }

    /// Stops reading: the other side gets stuck once the socket's buffers are full. Messages of a batch that the
    /// handler has in hand are not taken back.
    pub fn pause(&self, link: LinkId) {
        if let Some(link) = self.0.link(link) {
            link.paused.set(true);
        }
    }

    /// Reads on.
    pub fn resume(&self, link: LinkId) {
        let Some(link) = self.0.link(link) else { return };
        link.paused.set(false);
        match &link.end {
            End::Socket { .. } => link.wake_reader(),
            End::Local { inbox, .. } if !inbox.borrow().is_empty() => self.0.mark(&link, &self.0.undelivered),
            End::Local { .. } => {}
        }
    }

    /// Links that are open.
    #[must_use]
    pub fn links(&self) -> usize {
        self.0.links.borrow().len()
    }

    /// The counts so far. They are never set back.
    #[must_use]
    pub fn counts(&self) -> NetCounts {
        self.0.counts.get()
    }

    /// Closes all links and lets go of the handler.
    pub fn shut_down(&self) {
        let links = self.0.links.take();
        links.values().for_each(|link| link.close());
        self.0.failed.take();
        let handler = self.0.handler.take();
        drop(handler);
    }
}

impl<W: Wire> Outbox<W::Message> for Transport<W> {
    fn send(&self, to: LinkId, message: W::Message) {
        self.0.send(to, message);
    }
}

#[cfg(test)]
mod tests;
