//! TLS below a link: what the link writes is encrypted as its socket takes it, what is read is decrypted.
//!
//! Invariants: plaintext counts as written once it is encrypted, and at most `TAKEN_MAX` of it is encrypted and not yet
//! taken by the socket; nothing is read from the socket while decrypted bytes wait; records without a byte for the link
//! keep its thread no longer than `READS_MAX` reads.

use bytes::BytesMut;
use rustls::Connection;
use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, Write};
use std::rc::Rc;
use std::task::{Context, Poll};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Bytes that one write encrypts: four of the largest records.
const TAKEN_MAX: usize = 64 << 10;
/// Bytes that one read of the socket takes.
const RAW_BYTES: usize = 64 << 10;
/// Reads of the socket before the other tasks of the thread have their turn, while nothing comes of them.
const READS_MAX: usize = 16;

pub(super) type Shared = Rc<RefCell<Connection>>;

struct Socket<'a>(&'a OwnedWriteHalf);

impl Write for Socket<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(parts)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn refused(e: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

/// The reading side of a link with TLS.
pub(super) struct Reader {
    tls: Shared,
    /// Read from the socket; what lies before `given` is decrypted, or waits in `tls` for the rest of its record.
    raw: Box<[u8]>,
    given: usize,
    filled: usize,
    /// Told once what came before it was handed on.
    broken: Option<io::Error>,
}

impl Reader {
    pub(super) fn new(tls: Shared) -> Self {
        Self { tls, raw: vec![0; RAW_BYTES].into(), given: 0, filled: 0, broken: None }
    }

    /// Reads decrypted bytes into the spare capacity of `buf`: all that are there, as far as there is room, so that what
    /// was sent together is handed on together. 0 at the end of the stream.
    pub(super) fn poll_read(
        &mut self,
        half: &OwnedReadHalf,
        cx: &mut Context<'_>,
        buf: &mut BytesMut,
    ) -> Poll<io::Result<usize>> {
        if let Some(e) = self.broken.take() {
            return Poll::Ready(Err(e));
        }
        let (before, mut reads) = (buf.len(), 0);
        loop {
            let step = self.step(half, cx, buf);
            let taken = buf.len() - before;
            match step {
                Ok(Step::More) if buf.len() < buf.capacity() => {
                    reads += usize::from(self.given == self.filled);
                    if reads < READS_MAX {
                        continue;
                    }
                    if taken > 0 {
                        return Poll::Ready(Ok(taken));
                    }
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(Step::Dry) if taken == 0 => return Poll::Pending,
                Err(e) if taken == 0 => return Poll::Ready(Err(e)),
                Err(e) => {
                    self.broken = Some(e);
                    return Poll::Ready(Ok(taken));
                }
                Ok(_) => return Poll::Ready(Ok(taken)),
            }
        }
    }

    /// Takes what is decrypted; if that was all, decrypts more; if there is nothing to decrypt, reads. It asks for readiness
    /// before each read, which also ends the turn of a task that has read for long.
    fn step(&mut self, half: &OwnedReadHalf, cx: &mut Context<'_>, buf: &mut BytesMut) -> io::Result<Step> {
        let mut tls = self.tls.borrow_mut();
        if let Some(taken) = take(&mut tls, buf)? {
            return Ok(if taken == 0 { Step::End } else { Step::More });
        }
        if self.given == self.filled {
            match half.as_ref().poll_read_ready(cx) {
                Poll::Ready(ready) => ready?,
                Poll::Pending => return Ok(Step::Dry),
            }
            match half.try_read(&mut self.raw) {
                Ok(n) => (self.given, self.filled) = (0, n),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    return Ok(Step::More);
                }
                Err(e) => return Err(e),
            }
        }
        let mut rest = &self.raw[self.given..self.filled];
        self.given += tls.read_tls(&mut rest)?;
        tls.process_new_packets().map_err(refused)?;
        Ok(Step::More)
    }
}

/// How far a step came.
enum Step {
    /// There may be more.
    More,
    /// The socket has nothing, or it is the others' turn; the task is woken.
    Dry,
    End,
}

/// Takes what is decrypted already, as far as there is room. `None` if more has to be read first; 0 at the end.
fn take(tls: &mut Connection, buf: &mut BytesMut) -> io::Result<Option<usize>> {
    let room = buf.capacity() - buf.len();
    let mut taken = 0;
    while taken < room {
        let mut reader = tls.reader();
        let n = match reader.fill_buf() {
            Ok([]) => return Ok(Some(taken)),
            Ok(bytes) => {
                let n = bytes.len().min(room - taken);
                buf.extend_from_slice(&bytes[..n]);
                n
            }
            Err(_) if taken > 0 => break,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            // It went without a word, as a process that is killed does.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(Some(0)),
            Err(e) => return Err(e),
        };
        reader.consume(n);
        taken += n;
    }
    Ok((taken > 0).then_some(taken))
}

/// Writes what is encrypted already. `WouldBlock` if the socket does not take all of it.
fn flush(half: &OwnedWriteHalf, tls: &mut Connection) -> io::Result<()> {
    while tls.wants_write() {
        if tls.write_tls(&mut Socket(half))? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// Encrypts the first of these bytes, and writes what the socket takes; how many were encrypted, which is some unless
/// there are none. `WouldBlock` if the socket does not even take what was encrypted before.
pub(super) fn try_write(half: &OwnedWriteHalf, tls: &Shared, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut tls = tls.borrow_mut();
    flush(half, &mut tls)?;
    // Many small parts become few records. It takes no more than the buffer's limit, which is empty now.
    let taken = tls.writer().write_vectored(parts)?;
    match flush(half, &mut tls) {
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
        _ => Ok(taken),
    }
}

/// Halves that belong together share this.
pub(super) fn share(mut tls: Connection) -> Shared {
    tls.set_buffer_limit(Some(TAKEN_MAX));
    Rc::new(RefCell::new(tls))
}
