//! Connections between nodes, and to them: TLS in a cluster with an authority, else plain.
//!
//! Invariant: who is on the other side of a connection is known before anything of it is kept or answered: a member of
//! the cluster by its certificate and the control state, somebody on this machine, or somebody who may only join.

use freebs_control::State;
use freebs_format::wire::{Hello, Role};
use freebs_identity::{Caller, SigningKey, Tls, key_of};
use freebs_io::linux::net::{LinkStream, Stream};
use freebs_types::{ClusterId, Error, HostPublic, NodeId, Result};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The first byte of a TLS handshake; no plain hello begins so.
const HANDSHAKE: u8 = 0x16;

/// The node that this process is, or speaks for.
#[derive(Clone, Debug)]
pub struct Identity {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub tls: Tls,
    /// Only where the cluster began.
    pub authority: Option<Arc<SigningKey>>,
}

/// A process is one node.
static IDENTITY: OnceLock<Identity> = OnceLock::new();

/// From now on this process speaks as that node, with all.
pub fn speak_as(identity: Identity) {
    // A second one would be of the same process.
    let _ = IDENTITY.set(identity);
}

pub fn identity() -> Option<&'static Identity> {
    IDENTITY.get()
}

/// The number that this process says in its hello to the control API.
pub fn own_number() -> NodeId {
    identity().map_or(NodeId(0), |i| i.node)
}

/// A connection.
#[derive(Debug)]
pub enum Conn {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What who came may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    All,
    /// It has no certificate yet.
    Join,
}

impl Conn {
    /// Connects, and shakes hands with a node of the cluster if this process is of one with an authority.
    pub async fn connect(address: &str) -> io::Result<Self> {
        match identity() {
            Some(me) => Self::connect_with(address, me.tls.caller()).await,
            None => {
                let stream = TcpStream::connect(address).await?;
                let _ = stream.set_nodelay(true);
                Ok(Self::Plain(stream))
            }
        }
    }

    /// The same as whoever that is.
    pub async fn connect_with(address: &str, caller: &Caller) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        let _ = stream.set_nodelay(true);
        let connector = TlsConnector::from(caller.config());
        let stream = connector.connect(caller.any_node(), stream).await?;
        Ok(Self::Tls(Box::new(TlsStream::Client(stream))))
    }

    /// Takes a connection: with TLS if it begins so and this process can.
    pub async fn accept(stream: TcpStream) -> io::Result<Self> {
        let _ = stream.set_nodelay(true);
        let Some(me) = identity() else { return Ok(Self::Plain(stream)) };
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 || first[0] != HANDSHAKE {
            return Ok(Self::Plain(stream));
        }
        let stream = TlsAcceptor::from(me.tls.server()).accept(stream).await?;
        Ok(Self::Tls(Box::new(TlsStream::Server(stream))))
    }

    /// Whether both ends are on this machine.
    fn is_local(&self) -> bool {
        let stream = match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        stream.peer_addr().is_ok_and(|a| match a.ip() {
            IpAddr::V4(ip) => ip.is_loopback(),
            IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
        })
    }

    /// The key on the other side, which has to be certified as that of this node. `None` if it has shown no certificate.
    pub fn key(&self, node: NodeId) -> Result<Option<HostPublic>> {
        let (Self::Tls(stream), Some(me)) = (self, identity()) else { return Ok(None) };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        certificates.first().map(|c| key_of(c, me.cluster, node)).transpose()
    }

    /// Who was dialled and says that it is this node: refused if it can't be.
    pub fn check_dialled(&self, node: NodeId, known: &State) -> Result<()> {
        check_key(node, self.key(node)?, known)
    }

    /// What who said this hello may do here.
    pub fn admit(&self, hello: &Hello, known: &State) -> Result<May> {
        if identity().is_none() {
            return Ok(May::All);
        }
        let is_client = matches!(hello.role, Role::Control | Role::Driver);
        match self {
            Self::Plain(_) if is_client && self.is_local() => Ok(May::All),
            Self::Plain(_) => Err(Error::invalid(
                "nodes of this cluster speak TLS; without it only commands and gateways on the same machine are \
                 answered, over loopback",
            )),
            Self::Tls(_) => match self.key(hello.node)? {
                Some(key) => is_member(hello.node, key, known, hello.role == Role::Seat).map(|()| May::All),
                None if hello.role == Role::Control => Ok(May::Join),
                None => Err(Error::invalid("without a certificate a node can only join")),
            },
        }
    }

    /// For a worker.
    pub fn into_link(self) -> LinkStream {
        match self {
            Self::Plain(stream) => Stream::Tcp(stream).into(),
            Self::Tls(stream) => match *stream {
                TlsStream::Client(s) => {
                    let (stream, tls) = s.into_inner();
                    LinkStream::encrypted(stream, tls.into())
                }
                TlsStream::Server(s) => {
                    let (stream, tls) = s.into_inner();
                    LinkStream::encrypted(stream, tls.into())
                }
            },
        }
    }
}

/// Whether a node that was dialled, and has shown this key, may be believed.
pub fn check_key(node: NodeId, key: Option<HostPublic>, known: &State) -> Result<()> {
    if identity().is_none() {
        return Ok(());
    }
    let key = key.ok_or_else(|| Error::invalid(format!("node {node} has shown no certificate")))?;
    is_member(node, key, known, true)
}

/// Whether the authority's word for this key still counts. A seat that is `new` here may be of a node that joined while
/// this one was away: from it, or to it, this node learns that.
fn is_member(node: NodeId, key: HostPublic, known: &State, new: bool) -> Result<()> {
    match known.node(node) {
        // Of a state that was made again the keys are not known; the authority has signed this one.
        Some(n) if n.identity.is_none_or(|k| k == key) => Ok(()),
        Some(n) => Err(Error::invalid(format!("the key is not that of {} any more", n.name))),
        None if new => Ok(()),
        None => Err(Error::retry(format!("node {node} is not known to be a member"))),
    }
}

impl AsyncRead for Conn {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
