//! TLS below a link: what the link writes is encrypted as its socket takes it, what is read is decrypted.
//!
//! Invariants: plaintext counts as written once it is encrypted, and at most `TAKEN_MAX` of it is encrypted and not yet
//! taken by the socket; nothing is read from the socket while decrypted bytes wait.

use bytes::BytesMut;
use rustls::Connection;
use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// Bytes that one write encrypts.
const TAKEN_MAX: usize = 64 << 10;

pub(super) type Shared = Rc<RefCell<Connection>>;

struct Socket<'a, T>(&'a T);

impl Read for Socket<'_, OwnedReadHalf> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

impl Write for Socket<'_, OwnedWriteHalf> {
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

/// Reads decrypted bytes into the spare capacity of `buf`. 0 at the end of the stream.
pub(super) fn poll_read(
    half: &OwnedReadHalf,
    tls: &Shared,
    cx: &mut Context<'_>,
    buf: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    let mut tls = tls.borrow_mut();
    loop {
        let room = buf.capacity() - buf.len();
        let mut taken = 0;
        while taken < room {
            let mut reader = tls.reader();
            let n = match reader.fill_buf() {
                Ok([]) => return Poll::Ready(Ok(taken)),
                Ok(bytes) => {
                    let n = bytes.len().min(room - taken);
                    buf.extend_from_slice(&bytes[..n]);
                    n
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) if taken > 0 => break,
                // It went without a word, as a process that is killed does.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(0)),
                Err(e) => return Poll::Ready(Err(e)),
            };
            reader.consume(n);
            taken += n;
        }
        if taken > 0 {
            return Poll::Ready(Ok(taken));
        }
        match tls.read_tls(&mut Socket(half)) {
            Ok(_) => drop(tls.process_new_packets().map_err(refused)?),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => ready!(half.as_ref().poll_read_ready(cx))?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Poll::Ready(Err(e)),
        }
    }
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
    let mut taken = 0;
    for part in parts {
        let n = part.len().min(TAKEN_MAX - taken);
        tls.writer().write_all(&part[..n])?;
        taken += n;
        if taken == TAKEN_MAX {
            break;
        }
    }
    match flush(half, &mut tls) {
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
        _ => Ok(taken),
    }
}
