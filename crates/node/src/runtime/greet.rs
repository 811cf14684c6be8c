//! The first messages of a connection: hello and welcome.
//!
//! Invariant: connections that say nothing do not keep out new ones.

use crate::conn::{self, NodeConn};
use crate::places::Places;
use crate::timing;
use bytes::BytesMut;
use freebs_format::wire::{Hello, Message, Role, Welcome};
use freebs_types::{ClusterId, Error, Result};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A connection that has said hello.
pub struct Greeted {
    pub stream: NodeConn,
    pub hello: Hello,
    /// Read with the greeting, and part of what follows.
    pub leftover: BytesMut,
}

/// Somebody whose handshake failed.
pub struct Refused {
    pub who: String,
    pub why: String,
}

async fn read_one<S: AsyncRead + Unpin>(stream: &mut S, buf: &mut BytesMut) -> Result<Message> {
    loop {
        if let Some(m) = Message::decode_greeting(buf)? {
            return Ok(m);
        }
        let n = stream.read_buf(buf).await.map_err(|e| match conn::is_refusal(&e) {
            true => Error::invalid(e.to_string()),
            false => Error::retry(format!("the connection broke: {e}")),
        })?;
        if n == 0 {
            return Err(Error::retry("the other side closed the connection"));
        }
    }
}

async fn write_one<S: AsyncWrite + Unpin>(stream: &mut S, message: &Message) -> Result<()> {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    let write = async {
        stream.write_all(&out).await?;
        stream.flush().await
    };
    write.await.map_err(|e| Error::retry(format!("the connection broke: {e}")))
}

async fn within<T>(limit: Duration, f: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(limit, f).await.unwrap_or_else(|_| Err(Error::retry("the other side said nothing")))
}

/// Takes connections, and hands on each that has said hello, or who comes from where and whose handshake was refused,
/// until the task is dropped.
pub async fn accept<F>(
    listener: TcpListener,
    greetings: Rc<Places>,
    go_on: impl Fn(Result<Greeted, Refused>) -> F + Clone + 'static,
) where
    F: Future<Output = Result<()>> + 'static,
{
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(e) => {
                tracing::warn!("a connection could not be accepted: {e}");
                tokio::time::sleep(timing::ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Only greetings are counted there; connections are counted by what they are for.
        let Some((_, greeting)) = greetings.take().await else { continue };
        let go_on = go_on.clone();
        tokio::task::spawn_local(async move {
            let greeted = tokio::select! {
                biased;
                () = greeting.gives_way() => Err(Error::retry("it said nothing, and gave way to a new one")),
                greeted = greet(stream) => greeted,
            };
            drop(greeting);
            let end = match greeted {
                Ok(greeted) => go_on(greeted).await,
                Err(e) => Err(e),
            };
            if let Err(e) = end {
                tracing::debug!("a connection ended: {e}");
            }
        });
    }
}

/// Hears the hello of who connected.
async fn greet(stream: TcpStream) -> Result<Result<Greeted, Refused>> {
    let who = stream.peer_addr();
    let mut leftover = BytesMut::with_capacity(Message::GREETING_BYTES_MAX);
    let first = within(timing::GREETING_LIMIT, async {
        let mut stream = match NodeConn::accept(stream).await {
            Ok(stream) => stream,
            Err(why) if conn::is_refusal(&why) => return Ok(Err(why)),
            Err(e) => return Err(Error::retry(format!("no handshake: {e}"))),
        };
        let message = read_one(&mut stream, &mut leftover).await?;
        Ok(Ok((stream, message)))
    });
    match first.await? {
        Ok((stream, Message::Hello(hello))) => Ok(Ok(Greeted { stream, hello, leftover })),
        Ok((_, m)) => Err(Error::corrupt(format!("a connection began with {} instead of a hello", m.name()))),
        Err(why) => {
            let who = who.map_or_else(|_| "somebody".into(), |a| a.to_string());
            Ok(Err(Refused { who, why: why.to_string() }))
        }
    }
}

/// Connects, and says hello and hears the welcome: each within the limit.
pub async fn introduce(
    address: &str,
    hello: Hello,
    cluster: ClusterId,
    limit: Duration,
) -> Result<(NodeConn, Welcome, BytesMut)> {
    let mut leftover = BytesMut::with_capacity(Message::GREETING_BYTES_MAX);
    let connecting = within(limit, async {
        let failed = |e: std::io::Error| match conn::is_refusal(&e) {
            true => Error::invalid(format!("{address}: {e}")),
            false => Error::retry(format!("{address} cannot be reached: {e}; is it running?")),
        };
        NodeConn::connect(address).await.map_err(failed)
    });
    let mut stream = connecting.await?;
    let answer = within(limit, async {
        write_one(&mut stream, &Message::Hello(hello)).await?;
        let message = read_one(&mut stream, &mut leftover).await?;
        Ok(message)
    });
    match answer.await? {
        Message::Welcome(w) if w.cluster == cluster || hello.role == Role::Control => Ok((stream, w, leftover)),
        Message::Welcome(w) => {
            Err(Error::invalid(format!("{address} belongs to another cluster ({}); check the cluster file", w.cluster)))
        }
        m => Err(Error::corrupt(format!("{address} answered a hello with {}", m.name()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::{NodeId, StartNumber};
    use tokio::net::TcpStream;
    use tokio::sync::mpsc;

    /// 256 connections that said nothing kept everybody out for 5 s, other nodes and their seats among them.
    #[tokio::test]
    async fn silent_connections_do_not_keep_nodes_out() {
        const GREETINGS: usize = 4;
        let test = async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let (came, mut greeted) = mpsc::unbounded_channel();
            let places = Places::new(GREETINGS, tokio::sync::Semaphore::MAX_PERMITS);
            tokio::task::spawn_local(accept(listener, places, move |greeted| {
                let _ = came.send(greeted.map_or(NodeId(0), |g: Greeted| g.hello.node));
                std::future::ready(Ok(()))
            }));
            let mut silent = Vec::new();
            for _ in 0..2 * GREETINGS {
                silent.push(TcpStream::connect(at).await.unwrap());
            }
            let mut node = NodeConn::Plain(TcpStream::connect(at).await.unwrap());
            let hello = Hello {
                cluster: ClusterId([1; 16]),
                role: Role::Node,
                node: NodeId(3),
                start: StartNumber(1),
                from_worker: 0,
                to_worker: 0,
            };
            write_one(&mut node, &Message::Hello(hello)).await.unwrap();
            let came = tokio::time::timeout(Duration::from_secs(3), greeted.recv()).await;
            assert_eq!(came.expect("it is heard within 3 s"), Some(NodeId(3)));
            let end = tokio::time::timeout(Duration::from_secs(1), silent[0].read(&mut [0])).await;
            assert_eq!(end.expect("the oldest was let go").unwrap_or(0), 0);
        };
        tokio::task::LocalSet::new().run_until(test).await;
    }
}
