//! One NBD connection in transmission: requests go to the driver of its volume, replies back to the socket.
//!
//! Invariants: the session is borrowed only inside one call, never across an await; replies of a turn are written
//! together, one system call for each connection; a client that takes no replies is not read from either (the
//! session's window closes), and is let go after `timing::NBD_STUCK_LIMIT`.

use super::core::Core;
use super::drivers::{PastSlot, Slot};
use crate::timing;
use bytes::{Buf, BytesMut};
use freebs_control::ControlPlane;
use freebs_driver::{Op, Piece, Reply, StatusRun};
use freebs_format::Pin;
use freebs_io::linux::busy;
use freebs_io::linux::net::{LooseStream, Stream};
use freebs_nbd::{Event, Extent, NbdErrno, ReadPiece, Session, Step, Ticket, Wait};
use freebs_types::{BLOCK, Error, Generation, Result, SnapshotId, VolumeId};
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::{tcp, unix};
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// Bytes read from a client at a time.
const READ_BYTES: usize = 128 << 10;
/// Slices written at a time.
const SLICES: usize = 256;

/// What requests come from. It belongs to the reader alone, because only an exclusive reader learns from a short read
/// that the socket is empty; a shared one asks once more for every request.
enum Input {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

/// Where replies go.
enum Output {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

fn split(stream: Stream) -> (Input, Output) {
    match stream {
        Stream::Tcp(s) => {
            let (r, w) = s.into_split();
            (Input::Tcp(r), Output::Tcp(w))
        }
        Stream::Unix(s) => {
            let (r, w) = s.into_split();
            (Input::Unix(r), Output::Unix(w))
        }
    }
}

impl Input {
    async fn read(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.read_buf(buf).await,
            Self::Unix(s) => s.read_buf(buf).await,
        }
    }
}

/// A volume or snapshot that was opened for a connection, or for this process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A volume, as this attachment has it.
    Volume { volume: VolumeId, generation: Generation },
    /// A snapshot of a volume, by the reader with this number.
    Snapshot { volume: VolumeId, snapshot: SnapshotId, reader: u16 },
}

impl Served {
    pub fn volume(self) -> VolumeId {
        match self {
            Self::Volume { volume, .. } | Self::Snapshot { volume, .. } => volume,
        }
    }
}

/// The driver or reader that a connection speaks to. Not kept alive by it: a fenced attachment is gone, and so is the right to
/// use it.
pub enum Serves {
    Volume(Weak<Slot>),
    Snapshot {
        slot: Weak<PastSlot>,
        /// The pins since which the client wants to be told what changed.
        since: Option<Arc<[Pin]>>,
    },
}

/// A connection.
pub struct Conn {
    volume: VolumeId,
    output: Output,
    session: RefCell<Session>,
    /// Room in the window, or the end.
    room: Notify,
    dirty: Cell<bool>,
    closed: Cell<bool>,
    complained: Cell<bool>,
    /// Closed from here, while its reader may wait for the client.
    end: Notify,
    pub serves: Serves,
    flusher: Rc<Flusher>,
    /// Its place among the connections of the process, until the last request has its answer.
    _place: OwnedSemaphorePermit,
}

/// Writes the replies of a turn at its end.
#[derive(Default)]
pub struct Flusher {
    dirty: RefCell<Vec<Rc<Conn>>>,
    wake: Notify,
}

impl Flusher {
    /// Starts the task that writes.
    pub fn start(self: &Rc<Self>) {
        // It lives as long as its thread.
        let flusher = self.clone();
        tokio::task::spawn_local(async move {
            loop {
                flusher.wake.notified().await;
                for conn in flusher.dirty.take() {
                    conn.dirty.set(false);
                    conn.flush();
                }
            }
        });
    }
}

impl Conn {
    fn mark(self: &Rc<Self>) {
        if !self.dirty.replace(true) {
            self.flusher.dirty.borrow_mut().push(self.clone());
            self.flusher.wake.notify_one();
        }
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.output {
            Output::Tcp(s) => s.try_write_vectored(slices),
            Output::Unix(s) => s.try_write_vectored(slices),
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match &self.output {
            Output::Tcp(s) => s.writable().await,
            Output::Unix(s) => s.writable().await,
        }
    }

    /// Writes what is there; if the socket is full, a task waits for it.
    fn flush(self: &Rc<Self>) {
        loop {
            let mut session = self.session.borrow_mut();
            let output = session.output();
            if output.is_empty() || self.closed.get() {
                break;
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let n = output.chunks_vectored(&mut slices);
            match self.try_write(&slices[..n]) {
                Ok(written) => output.advance(written),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    drop(session);
                    self.wait_writable();
                    return;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    drop(session);
                    self.close();
                    break;
                }
            }
        }
        self.room.notify_one();
    }

    fn wait_writable(self: &Rc<Self>) {
        // While it waits the connection counts as dirty, so nobody else flushes it.
        self.dirty.set(true);
        let conn = self.clone();
        tokio::task::spawn_local(async move {
            let ready = tokio::time::timeout(timing::NBD_STUCK_LIMIT, conn.writable()).await;
            conn.dirty.set(false);
            match ready {
                Ok(Ok(())) => conn.flush(),
                _ => conn.close(),
            }
        });
    }

    fn close(&self) {
        self.closed.set(true);
        self.room.notify_one();
        self.end.notify_one();
    }

    /// One line for each connection: a client that tries again and again must not fill the log.
    fn complain(&self, ticket: &Ticket, e: &Error) {
        let (volume, at) = (self.volume, ticket.offset());
        if self.closed.get() || self.complained.replace(true) {
            tracing::debug!("volume {volume}: a request at {at} failed: {e}");
        } else {
            tracing::warn!("volume {volume}: a request at {at} failed: {e} (said once for each connection)");
        }
    }

    pub fn fail(self: &Rc<Self>, ticket: Ticket, error: &Error) {
        self.refuse(ticket, NbdErrno::from(error.kind));
    }

    pub fn refuse(self: &Rc<Self>, ticket: Ticket, errno: NbdErrno) {
        self.session.borrow_mut().reply_error(ticket, errno);
        self.mark();
    }

    /// Sends what the client takes of the replies that are there, and closes the connection.
    pub fn let_go(self: &Rc<Self>) {
        self.flush();
        self.close();
    }

    /// The driver's answer to a request of this connection.
    pub fn answer(self: &Rc<Self>, ticket: Ticket, result: Result<Reply>) {
        {
            let mut session = self.session.borrow_mut();
            match result {
                Ok(Reply::Done | Reply::Committed(_)) => session.reply_ok(ticket),
                Ok(Reply::Read(pieces)) => {
                    let mut pieces: Vec<ReadPiece> = pieces.into_iter().map(read_piece).collect();
                    session.reply_read(ticket, &mut pieces);
                }
                Ok(Reply::Status(runs)) => {
                    let extents: Vec<Extent> = runs.iter().map(extent).collect();
                    session.reply_block_status(ticket, &extents);
                }
                Err(e) => {
                    self.complain(&ticket, &e);
                    session.reply_error(ticket, NbdErrno::from(e.kind));
                }
            }
        }
        self.mark();
    }
}

fn extent(r: &StatusRun) -> Extent {
    Extent { len: r.bytes, hole: r.hole, zero: r.zero, changed: r.changed }
}

fn read_piece(p: Piece) -> ReadPiece {
    match p {
        Piece::Data(b) => ReadPiece::Data(b),
        Piece::Zero(n) => ReadPiece::Zero(n),
    }
}

/// Takes over a connection for which this was opened. `since`: of a snapshot, what its block status tells changes from.
pub fn serve<C: ControlPlane>(
    core: &Rc<Core<C>>,
    (of, since): (Served, Option<Arc<[Pin]>>),
    place: OwnedSemaphorePermit,
    stream: LooseStream,
    session: Session,
    input: BytesMut,
) {
    let stream = match stream.fasten() {
        Ok(s) => s,
        Err(e) => {
            tracing::warn!("an NBD connection was lost: {e}");
            core.drivers.release_served(core, of);
            return;
        }
    };
    let (requests, output) = split(stream);
    let conn = Rc::new(Conn {
        volume: of.volume(),
        output,
        session: RefCell::new(session),
        room: Notify::new(),
        dirty: Cell::new(false),
        closed: Cell::new(false),
        complained: Cell::new(false),
        end: Notify::new(),
        serves: core.drivers.serves(of, since),
        flusher: core.drivers.flusher.clone(),
        _place: place,
    });
    if let Serves::Volume(slot) = &conn.serves
        && let Some(slot) = slot.upgrade()
    {
        slot.join(&conn);
    }
    let core = core.clone();
    tokio::task::spawn_local(async move {
        if let Err(e) = read_requests(&core, &conn, requests, input).await {
            tracing::debug!("an NBD connection ended: {e}");
        }
        conn.closed.set(true);
        core.drivers.release_served(&core, of);
    });
}

async fn read_requests<C: ControlPlane>(
    core: &Rc<Core<C>>,
    conn: &Rc<Conn>,
    mut from: Input,
    mut input: BytesMut,
) -> Result<()> {
    conn.mark();
    loop {
        let wait = take_requests(core, conn, &mut input)?;
        if conn.closed.get() {
            return Ok(());
        }
        match wait {
            Wait::Bytes(n) => {
                if input.capacity() - input.len() < n.min(READ_BYTES / 2) || input.len() + n > input.capacity() {
                    input.reserve(n.max(READ_BYTES));
                }
                if read_some(conn, &mut from, &mut input).await? == 0 {
                    return Ok(());
                }
            }
            Wait::Window | Wait::Answer => conn.room.notified().await,
            Wait::Closed => {
                if conn.session.borrow().is_finished() {
                    return Ok(());
                }
                conn.room.notified().await;
            }
        }
    }
}

/// 0 at the end, also if the connection was closed from here.
async fn read_some(conn: &Conn, from: &mut Input, input: &mut BytesMut) -> Result<usize> {
    if conn.closed.get() {
        return Ok(0);
    }
    tokio::select! {
        read = from.read(input) => read.map_err(|e| Error::retry(format!("the connection broke: {e}"))),
        () = conn.end.notified() => Ok(0),
    }
}

/// Hands every whole request in `input` to the driver.
fn take_requests<C: ControlPlane>(core: &Rc<Core<C>>, conn: &Rc<Conn>, input: &mut BytesMut) -> Result<Wait> {
    if let (Serves::Volume(_), Some(volume)) = (&conn.serves, core.state.borrow().volume(conn.volume)) {
        // It may have grown since the client came.
        conn.session.borrow_mut().resize(volume.size);
    }
    loop {
        let step = conn.session.borrow_mut().receive(input);
        if matches!(step, Ok(Step::Event(_))) {
            busy::note(1);
        }
        match step {
            Ok(Step::Event(Event::Request { ticket, op })) if is_slow_zero(&op) => {
                conn.session.borrow_mut().reply_error(ticket, NbdErrno::NotSup);
                conn.mark();
            }
            Ok(Step::Event(Event::Request { ticket, op })) => match driver_op(op, &conn.serves) {
                Some(op) => core.drivers.request(core, conn, ticket, op),
                None => {
                    conn.session.borrow_mut().reply_ok(ticket);
                    conn.mark();
                }
            },
            Ok(Step::Event(_)) => {}
            Ok(Step::Wait(wait)) => {
                if !conn.session.borrow_mut().output().is_empty() {
                    conn.mark();
                }
                return Ok(wait);
            }
            Err(e) => {
                conn.mark();
                return Err(Error::corrupt(format!("the client does not speak NBD: {e}")));
            }
        }
    }
}

/// Whether a zero that has to be fast or fail has to fail: the blocks at its edges would be read and written.
fn is_slow_zero(op: &freebs_nbd::Op) -> bool {
    let whole = |bytes: u64| bytes.is_multiple_of(BLOCK as u64);
    matches!(op, freebs_nbd::Op::Zero { offset, len, fast: true, .. } if !whole(*offset) || !whole(*len))
}

/// The driver's word for a request; none for a hint that is ignored.
fn driver_op(op: freebs_nbd::Op, serves: &Serves) -> Option<Op> {
    Some(match op {
        freebs_nbd::Op::Read { offset, len, .. } => Op::Read { offset, len: u64::from(len) },
        freebs_nbd::Op::Write { offset, data, fua } => Op::Write { offset, data, fua },
        freebs_nbd::Op::Trim { offset, len, .. } => Op::Trim { offset, len },
        freebs_nbd::Op::Zero { offset, len, no_hole, .. } => Op::Zero { offset, len, may_trim: !no_hole },
        freebs_nbd::Op::Flush => Op::Flush,
        freebs_nbd::Op::BlockStatus { offset, len, .. } => match serves {
            Serves::Snapshot { since: Some(since), .. } => Op::Changes { offset, len, since: since.clone() },
            _ => Op::Status { offset, len },
        },
        freebs_nbd::Op::Cache { .. } => return None,
    })
}
