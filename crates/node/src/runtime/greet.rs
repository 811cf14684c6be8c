//! The first messages of a connection: hello and welcome.

use crate::timing;
use bytes::BytesMut;
use freebs_format::wire::{Hello, Message, Role, Welcome};
use freebs_io::linux::net::{Address, Stream, connect};
use freebs_types::{ClusterId, Error, Result};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A connection that has said hello.
pub struct Greeted {
    pub stream: Stream,
    pub hello: Hello,
    /// Read with the greeting, and part of what follows.
    pub leftover: BytesMut,
}

async fn read_one<S: AsyncRead + Unpin>(stream: &mut S, buf: &mut BytesMut) -> Result<Message> {
    loop {
        if let Some(m) = Message::decode_greeting(buf)? {
            return Ok(m);
        }
        let n = stream.read_buf(buf).await.map_err(|e| Error::retry(format!("the connection broke: {e}")))?;
        if n == 0 {
            return Err(Error::retry("the other side closed the connection"));
        }
    }
}

async fn write_one<S: AsyncWrite + Unpin>(stream: &mut S, message: &Message) -> Result<()> {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    stream.write_all(&out).await.map_err(|e| Error::retry(format!("the connection broke: {e}")))
}

macro_rules! on_stream {
    ($stream:expr, $s:ident => $body:expr) => {
        match $stream {
            Stream::Tcp($s) => $body,
            Stream::Unix($s) => $body,
        }
    };
}

async fn within<T>(limit: Duration, f: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(limit, f).await.unwrap_or_else(|_| Err(Error::retry("the other side said nothing")))
}

/// Hears the hello of who connected.
pub async fn greet(mut stream: Stream) -> Result<Greeted> {
    if let Stream::Tcp(s) = &stream {
        let _ = s.set_nodelay(true);
    }
    let mut leftover = BytesMut::with_capacity(Message::GREETING_BYTES_MAX);
    let first =
        within(timing::GREETING_LIMIT, async { on_stream!(&mut stream, s => read_one(s, &mut leftover).await) });
    match first.await? {
        Message::Hello(hello) => Ok(Greeted { stream, hello, leftover }),
        m => Err(Error::corrupt(format!("a connection began with {} instead of a hello", m.name()))),
    }
}

/// Answers a hello.
pub async fn welcome(stream: &mut Stream, welcome: Welcome) -> Result<()> {
    let message = Message::Welcome(welcome);
    within(timing::GREETING_LIMIT, async { on_stream!(stream, s => write_one(s, &message).await) }).await
}

/// Connects, says hello and hears the welcome.
pub async fn introduce(
    address: &Address,
    hello: Hello,
    cluster: ClusterId,
    limit: Duration,
) -> Result<(Stream, Welcome, BytesMut)> {
    let mut stream = connect(address, limit).await?;
    let mut leftover = BytesMut::with_capacity(Message::GREETING_BYTES_MAX);
    let answer = within(limit, async {
        on_stream!(&mut stream, s => {
            write_one(s, &Message::Hello(hello)).await?;
            read_one(s, &mut leftover).await
        })
    });
    match answer.await? {
        Message::Welcome(w) if w.cluster == cluster || hello.role == Role::Control => Ok((stream, w, leftover)),
        Message::Welcome(w) => {
            Err(Error::invalid(format!("{address} belongs to another cluster ({}); check the cluster file", w.cluster)))
        }
        m => Err(Error::corrupt(format!("{address} answered a hello with {}", m.name()))),
    }
}
