//! Addresses, listeners and connected streams, TCP and unix.

use super::tls;
use crate::timing;
use bytes::BytesMut;
use core::fmt;
use freebs_types::{Error, Result};
use std::future::Future;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::pin::pin;
use std::str::FromStr;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix};

/// Where to connect or listen: `host:port`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Address {
    /// Host (name or number) and port.
    Tcp(String),
    /// Path of a socket file.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err(Error::invalid("unix: needs the path of a socket behind it"))
            } else {
                Ok(Self::Unix(PathBuf::from(path)))
            };
        }
        let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        match port {
            Some(Ok(_)) => Ok(Self::Tcp(text.to_owned())),
            _ => Err(Error::invalid(format!("{text:?} is not an address; write HOST:PORT or unix:PATH"))),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connected stream of this thread's event loop.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP: without delay (`TCP_NODELAY`).
    Tcp(TcpStream),
    /// Over a socket file of this machine.
    Unix(UnixStream),
}

/// A connected stream on its way to another thread.
#[derive(Debug)]
pub enum LooseStream {
    /// Over TCP.
    Tcp(std::net::TcpStream),
    /// Over a socket file of this machine.
    Unix(std::os::unix::net::UnixStream),
}

impl Stream {
    /// Takes the stream off this thread's event loop, to hand it to another worker.
    pub fn loosen(self) -> Result<LooseStream> {
        match self {
            Self::Tcp(s) => s.into_std().map(LooseStream::Tcp),
            Self::Unix(s) => s.into_std().map(LooseStream::Unix),
        }
        .map_err(|e| Error::os(format!("a connection cannot be handed over: {e}")))
    }

    fn split(self) -> (ReadHalf, WriteHalf) {
        match self {
            Self::Tcp(s) => {
                // Without it small answers wait for the acknowledgement of earlier ones. A socket that refuses is
                // broken, which its next use will tell.
                let _ = s.set_nodelay(true);
                notice_silence(&s);
                let (r, w) = s.into_split();
                (ReadHalf::Tcp(r), WriteHalf::Tcp(w))
            }
            Self::Unix(s) => {
                let (r, w) = s.into_split();
                (ReadHalf::Unix(r), WriteHalf::Unix(w))
            }
        }
    }
}

/// A link whose other side takes nothing for `TCP_SILENCE_MAX` is broken. The system by itself would try on for a quarter
/// of an hour, at longer and longer intervals, and be silent for minutes after the network has come back; a new
/// connection is through at once. What the options can't do (a socket that refuses them) is no loss.
pub fn notice_silence(socket: &impl AsRawFd) {
    let seconds = timing::TCP_SILENCE_MAX.as_secs() as libc::c_int;
    let options = [
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1000 * seconds),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 1),
    ];
    for (level, name, value) in options {
        let size = size_of_val(&value) as libc::socklen_t;
        // SAFETY: the value outlives the call, which reads `size` bytes of it.
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    }
}

/// A connected stream that can become a link: as it is, or with TLS on it.
#[derive(Debug)]
pub struct LinkStream {
    stream: Stream,
    tls: Option<Box<rustls::Connection>>,
}

/// The same on its way to another thread.
#[derive(Debug)]
pub struct LooseLink {
    stream: LooseStream,
    tls: Option<Box<rustls::Connection>>,
}

impl From<Stream> for LinkStream {
    fn from(stream: Stream) -> Self {
        Self { stream, tls: None }
    }
}

impl LinkStream {
    /// A stream whose handshake is over.
    #[must_use]
    pub fn encrypted(stream: TcpStream, tls: rustls::Connection) -> Self {
        Self { stream: Stream::Tcp(stream), tls: Some(Box::new(tls)) }
    }

    /// See [`Stream::loosen`].
    pub fn loosen(self) -> Result<LooseLink> {
        Ok(LooseLink { stream: self.stream.loosen()?, tls: self.tls })
    }

    pub(super) fn split(self) -> (ReadHalf, WriteHalf) {
        match (self.stream.split(), self.tls) {
            ((ReadHalf::Tcp(r), WriteHalf::Tcp(w)), Some(tls)) => {
                let tls = tls::share(*tls);
                (ReadHalf::Tls(r, tls::Reader::new(tls.clone())), WriteHalf::Tls(w, tls))
            }
            (halves, _) => halves,
        }
    }
}

impl LooseLink {
    /// See [`LooseStream::fasten`].
    pub fn fasten(self) -> Result<LinkStream> {
        Ok(LinkStream { stream: self.stream.fasten()?, tls: self.tls })
    }
}

impl LooseStream {
    /// Puts the stream on this thread's event loop.
    pub fn fasten(self) -> Result<Stream> {
        match self {
            Self::Tcp(s) => TcpStream::from_std(s).map(Stream::Tcp),
            Self::Unix(s) => UnixStream::from_std(s).map(Stream::Unix),
        }
        .map_err(|e| Error::os(format!("a connection cannot be taken over: {e}")))
    }
}

/// Connects within `limit`. `Retry` if nobody answers: the other side may come up later.
pub async fn connect(address: &Address, limit: Duration) -> Result<Stream> {
    let attempt = async {
        match address {
            Address::Tcp(to) => {
                let stream = TcpStream::connect(to.as_str()).await?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
        }
    };
    match tokio::time::timeout(limit, attempt).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(e)) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::EACCES)) => {
            Err(Error::os(format!("{address} cannot be reached: {e}")))
        }
        Ok(Err(e)) => Err(Error::retry(format!("{address} cannot be reached: {e}; is it running?"))),
        Err(_) => Err(Error::retry(format!("{address} did not answer within {} ms", limit.as_millis()))),
    }
}

/// Where connections come in.
#[derive(Debug)]
pub enum Listener {
    /// A host and a port.
    Tcp(TcpListener),
    /// The path is removed when the listener goes.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// `Busy` if somebody else listens there. A socket file that nobody listens on any more is replaced.
    pub async fn bind(address: &Address) -> Result<Self> {
        let refused = |e: io::Error| match e.kind() {
            io::ErrorKind::AddrInUse => {
                Error::busy(format!("{address} is taken by another process; stop that one, or choose another address"))
            }
            io::ErrorKind::AddrNotAvailable => Error::invalid(format!("{address} is not an address of this machine")),
            io::ErrorKind::PermissionDenied => Error::os(format!("this user may not listen on {address}")),
            _ => Error::os(format!("cannot listen on {address}: {e}")),
        };
        match address {
            Address::Tcp(at) => TcpListener::bind(at.as_str()).await.map(Self::Tcp).map_err(refused),
            Address::Unix(path) => {
                let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
                // Only a refusal says that nobody listens: one with a full queue of clients has another error.
                let refuses = |e: io::Error| e.kind() == io::ErrorKind::ConnectionRefused;
                if is_socket && UnixStream::connect(path).await.is_err_and(refuses) {
                    std::fs::remove_file(path).map_err(refused)?;
                }
                UnixListener::bind(path).map(|l| Self::Unix(l, path.clone())).map_err(refused)
            }
        }
    }

    /// The address with the port that was chosen, if it was left open (port 0).
    pub fn address(&self) -> Result<Address> {
        match self {
            Self::Tcp(l) => l
                .local_addr()
                .map(|a| Address::Tcp(a.to_string()))
                .map_err(|e| Error::os(format!("a listener does not know its address: {e}"))),
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    /// The next connection. An error (too many open files, for one) may pass; wait a little before the next call.
    pub async fn accept(&self) -> Result<Stream> {
        loop {
            let accepted = match self {
                Self::Tcp(l) => l.accept().await.map(|(s, _)| Stream::Tcp(s)),
                Self::Unix(l, _) => l.accept().await.map(|(s, _)| Stream::Unix(s)),
            };
            match accepted {
                Ok(stream) => return Ok(stream),
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(Error::os(format!("a connection could not be accepted: {e}"))),
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // If it is gone already, all the better.
            let _ = std::fs::remove_file(path);
        }
    }
}

pub(super) enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
    Tls(tcp::OwnedReadHalf, tls::Reader),
}

impl ReadHalf {
    /// Reads into the spare capacity of `buf`, which must have some. 0 at the end of the stream.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut BytesMut) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(half) => pin!(half.read_buf(buf)).poll(cx),
            Self::Unix(half) => pin!(half.read_buf(buf)).poll(cx),
            Self::Tls(half, tls) => tls.poll_read(half, cx, buf),
        }
    }
}

pub(super) enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    Tls(tcp::OwnedWriteHalf, tls::Shared),
}

impl WriteHalf {
    pub(super) fn try_write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write_vectored(parts),
            Self::Unix(half) => half.try_write_vectored(parts),
            Self::Tls(half, tls) => tls::try_write(half, tls, parts),
        }
    }

    /// True if something was taken, and not written yet.
    pub(super) fn holds_back(&self) -> bool {
        matches!(self, Self::Tls(_, tls) if tls.borrow().wants_write())
    }

    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(half) | Self::Tls(half, _) => half.as_ref().poll_write_ready(cx),
            Self::Unix(half) => half.as_ref().poll_write_ready(cx),
        }
    }

    /// Whether the other side has hung up. Such a socket counts as ready for ever, so who waits for readiness after
    /// a refused write would spin.
    pub(super) fn is_closed(&self, cx: &mut Context<'_>) -> bool {
        let ready = match self {
            Self::Tcp(half) | Self::Tls(half, _) => pin!(half.as_ref().ready(Interest::WRITABLE)).poll(cx),
            Self::Unix(half) => pin!(half.as_ref().ready(Interest::WRITABLE)).poll(cx),
        };
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_write_closed())
    }
}

/// From now on this thread, and those that it starts, get an error and no signal where the other end of a socket is gone. Programs of
/// Rust ignore that signal (SIGPIPE); a program in C that has this library in it would be ended by it.
pub fn mask_broken_pipes() -> Result<()> {
    // SAFETY: the set is made empty before anything reads it, and the mask of this thread alone is changed.
    let failed = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut())
    };
    match failed {
        0 => Ok(()),
        e => Err(Error::os(format!("signals of broken connections: {}", io::Error::from_raw_os_error(e)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["127.0.0.1:7400", "[::1]:80", "a.example:1", "unix:/run/f.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "host", ":80", "host:", "host:99999", "unix:"] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }
}
