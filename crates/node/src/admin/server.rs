//! Control requests on a TCP connection: several at a time, each answered when it is done.

use super::plane::Plane;
use super::seat::Order;
use super::seat_links::{ADDRESS, MESSAGE};
use super::service::{Service, Session};
use crate::conn::{self, May, NodeConn};
use crate::timing;
use bytes::BytesMut;
use freebs_consensus::wire::{other_version, sender};
use freebs_control::ControlPlane;
use freebs_control::api::Reply;
use freebs_format::wire::{Hello, Message, Welcome};
use freebs_types::{Error, NodeId, Result};
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
#[cfg(test)]
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Requests of one connection that are being answered; beyond, its socket is not read.
const REQUESTS_MAX: usize = 64;
/// Bytes that somebody who may only join may say at a time: one such request, with names of any length that they may have.
const JOIN_BYTES_MAX: usize = 16 << 10;

/// The next message of a connection, `None` at its end. Never holds more than one largest message.
pub(super) async fn read_message(from: &mut (impl AsyncRead + Unpin), buf: &mut BytesMut) -> Result<Option<Message>> {
    read_shorter(from, buf, usize::MAX).await
}

/// The same of somebody who has nothing to say that is longer than `most` bytes.
async fn read_shorter(from: &mut (impl AsyncRead + Unpin), buf: &mut BytesMut, most: usize) -> Result<Option<Message>> {
    loop {
        if buf.len() > most {
            return Err(Error::invalid("more was said than a request to join can have"));
        }
        if let Some(message) = Message::decode(buf)? {
            return Ok(Some(message));
        }
        match from.read_buf(buf).await {
            Ok(0) if buf.is_empty() => return Ok(None),
            Ok(0) => return Err(Error::retry("the connection ended within a message")),
            Ok(_) => {}
            Err(e) if conn::is_refusal(&e) => return Err(Error::invalid(e.to_string())),
            Err(e) => return Err(Error::retry(format!("the connection broke: {}", crate::files::plain(&e)))),
        }
    }
}

pub(super) async fn write_message(to: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<()> {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    message.payload().iter().for_each(|part| out.extend_from_slice(part));
    to.write_all(&out).await?;
    to.flush().await
}

/// A connection of which nothing was read yet: hello, then as `serve`.
#[cfg(test)]
pub(super) async fn serve_hello(stream: TcpStream, service: Arc<Service>) -> Result<()> {
    let mut stream = NodeConn::Plain(stream);
    let mut buf = BytesMut::new();
    match read_message(&mut stream, &mut buf).await? {
        Some(Message::Hello(hello)) if hello.role == freebs_format::wire::Role::Seat => {
            let plane = service.plane.clone();
            hear_seat(stream, buf, hello, &plane).await
        }
        Some(Message::Hello(_)) => serve(stream, buf, (May::All, NodeId(0)), service).await,
        _ => Err(Error::invalid("no hello came")),
    }
}

/// A connection whose hello was read (`buf` holds what came behind it): welcomes and answers until it ends.
pub async fn serve(
    mut stream: NodeConn,
    mut buf: BytesMut,
    (may, node): (May, NodeId),
    service: Arc<Service>,
) -> Result<()> {
    let me = service.me();
    let welcome = Welcome { cluster: me.cluster, node: me.id, start: me.start, worker: 0, workers: me.workers };
    let broken = |e: io::Error| Error::retry(format!("the connection broke: {}", crate::files::plain(&e)));
    write_message(&mut stream, &Message::Welcome(welcome)).await.map_err(broken)?;
    let session = Arc::new(Session::new(service, may, node));
    let (mut read, mut write) = tokio::io::split(stream);
    let (answers, mut ready) = mpsc::channel::<Message>(REQUESTS_MAX);
    // All that works for this connection ends with it, also when this future is dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Some(message) = ready.recv().await {
            match tokio::time::timeout(timing::API_WRITE_MAX, write_message(&mut write, &message)).await {
                Ok(Ok(())) => {}
                _ => break,
            }
        }
    });
    let (at_once, most) = match may {
        May::All => (REQUESTS_MAX, usize::MAX),
        May::Join => (1, JOIN_BYTES_MAX),
    };
    let slots = Arc::new(Semaphore::new(at_once));
    loop {
        let slot = slots.clone().acquire_owned().await.expect("never closed");
        let message = tokio::select! {
            message = read_shorter(&mut read, &mut buf, most) => message,
            () = answers.closed() => return Ok(()),
        };
        let (id, body) = match message {
            Ok(Some(Message::Control { id, body })) => (id, body),
            Ok(Some(other)) => return Err(Error::invalid(format!("{} on a control connection", other.name()))),
            Ok(None) => return Ok(()),
            Err(e) => return Err(e),
        };
        while tasks.try_join_next().is_some() {}
        let (session, answers) = (session.clone(), answers.clone());
        tasks.spawn(async move {
            // A client that has gone needs no answer, and a long poll for it would only keep its session open.
            let reply = tokio::select! {
                reply = session.answer(&body) => reply,
                () = answers.closed() => return,
            };
            let _ = answers.send(Message::ControlReply { id, body: reply }).await;
            drop(slot);
        });
    }
}

/// A connection whose hello was read, to a node that can't answer anything yet: it is told why, in place of a welcome.
pub async fn turn_away(mut stream: NodeConn, why: Error) -> Result<()> {
    let reply = Message::ControlReply { id: 0, body: Reply::encode(Err(why.clone())).into() };
    let _ = tokio::time::timeout(timing::API_WRITE_MAX, write_message(&mut stream, &reply)).await;
    Err(why)
}

/// A connection from another node's seat: welcomes it, and passes on what it says until it ends. While the seat here is
/// busy the socket is not read.
pub async fn hear_seat(mut stream: NodeConn, mut buf: BytesMut, hello: Hello, plane: &Plane) -> Result<()> {
    let port = plane.port().ok_or_else(|| Error::invalid("there is no seat here"))?;
    if hello.node.0 == 0 || hello.node == port.node {
        return Err(Error::invalid("a seat of this node, or of none"));
    }
    // A node that was removed stays so, and everybody who knows it may say it.
    if hello.cluster == port.cluster
        && let Err(why) = plane.state().check_removed(hello.node)
    {
        return turn_away(stream, why).await;
    }
    // Only who leads knows all members for certain.
    let stranger = plane.state().check_member(hello.node).err().filter(|_| plane.leads());
    let mut until = None;
    if let Some(why) = stranger.filter(|_| hello.cluster == port.cluster) {
        if !port.may_knock(hello.node) {
            return turn_away(stream, why).await;
        }
        until = Some(tokio::time::Instant::now() + timing::KNOCK_MAX);
    }
    let welcome =
        Welcome { cluster: port.cluster, node: port.node, start: freebs_types::StartNumber(0), worker: 0, workers: 0 };
    let broken = |e: io::Error| Error::retry(format!("the connection broke: {}", crate::files::plain(&e)));
    // Who comes from another cluster hears by this which one is here, and nothing else.
    write_message(&mut stream, &Message::Welcome(welcome)).await.map_err(broken)?;
    if hello.cluster != port.cluster {
        return Err(port.refuse(hello.node, hello.cluster));
    }
    loop {
        let next = read_message(&mut stream, &mut buf);
        let next = match until {
            Some(until) => tokio::time::timeout_at(until, next).await.unwrap_or(Ok(None)),
            None => next.await,
        };
        let next = next?;
        if plane.state().is_removed(hello.node) {
            // It comes again, and is told.
            return Err(Error::fenced("its node was removed from the cluster"));
        }
        match next {
            Some(Message::Control { id, body }) if body.len() <= freebs_consensus::limits::MESSAGE_BYTES_MAX => {
                let order = match id {
                    MESSAGE => {
                        if let Some(version) = other_version(&body) {
                            port.drop_other(hello.node, version).iter().for_each(|e| tracing::warn!("{e}"));
                            continue;
                        }
                        // One seat does not speak for another one.
                        if sender(&body).is_none_or(|from| from != hello.node) {
                            continue;
                        }
                        Order::Message(body.to_vec())
                    }
                    ADDRESS => {
                        let address = String::from_utf8(body.to_vec());
                        let address = address.map_err(|_| Error::corrupt("an address that is no text"))?;
                        freebs_control::rules::check_node("node", &address, 1)?;
                        Order::Address(hello.node, address)
                    }
                    _ => continue,
                };
                port.orders.send(order).await.map_err(|_| Error::retry("this node is stopping"))?;
            }
            Some(other) => return Err(Error::invalid(format!("{} on a seat's connection", other.name()))),
            None => return Ok(()),
        }
    }
}
