//! Connections between nodes, and to them: TLS in a cluster with an authority, else plain.
//!
//! Invariant: who is on the other side of a connection is known before anything of it is kept or answered: a member of
//! the cluster by its certificate and the control state, somebody on this machine, or somebody who may only join.

use crate::timing;
use freebs_control::State;
use freebs_format::wire::{Hello, Role};
use freebs_identity::{Caller, Tls, key_of};
use freebs_io::linux::net::{LinkStream, Stream, notice_silence};
use freebs_types::{ClusterId, Error, HostPublic, NodeId, Result};
use std::cell::Cell;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::rustls;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The first byte of a TLS handshake; no plain hello begins so.
const HANDSHAKE: u8 = 0x16;

/// The node that this process is, or speaks for.
#[derive(Clone, Debug)]
pub struct Identity {
    pub cluster: ClusterId,
    pub node: NodeId,
    pub tls: Tls,
}

/// A process is one node.
static IDENTITY: OnceLock<Identity> = OnceLock::new();

/// The operator has said that the network may be trusted.
static TRUSTS_NETWORK: AtomicBool = AtomicBool::new(false);

/// From now on this process speaks plain with nodes on other machines, too, as long as it speaks as none.
pub fn trust_network() {
    TRUSTS_NETWORK.store(true, Ordering::Relaxed);
}

/// From now on this process speaks as that node, with all. `Invalid` if it speaks as another one already.
pub fn speak_as(identity: Identity) -> Result<()> {
    let (cluster, node) = (identity.cluster, identity.node);
    let first = IDENTITY.get_or_init(|| identity);
    if (first.cluster, first.node) == (cluster, node) {
        return Ok(());
    }
    Err(Error::invalid("this process speaks as another node already, and can't as two: use another process"))
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
pub enum NodeConn {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Rights of somebody who came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    All,
    /// It has no certificate yet.
    Join,
}

/// How somebody has come, as far as it decides what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Plain, from this machine or from another one.
    Plain { is_local: bool },
    /// With TLS, and the key of the node that it says it is, if it has shown a certificate.
    Tls(Option<HostPublic>),
}

impl NodeConn {
    /// Connects, and shakes hands with a node of the cluster if this process is of one with an authority.
    pub async fn connect(address: &str) -> io::Result<Self> {
        match identity() {
            Some(me) => Self::connect_with(address, me.tls.caller()).await,
            None => {
                let stream = open(address).await?;
                let is_trusted = TRUSTS_NETWORK.load(Ordering::Relaxed);
                check_plain(stream.local_addr()?.ip(), stream.peer_addr()?.ip(), is_trusted)?;
                Ok(Self::Plain(stream))
            }
        }
    }

    /// The same as whoever that is.
    pub async fn connect_with(address: &str, caller: &Caller) -> io::Result<Self> {
        let stream = open(address).await?;
        let connector = TlsConnector::from(caller.config());
        let stream = connector.connect(caller.any_node(), stream).await.map_err(in_words)?;
        Ok(Self::Tls(Box::new(TlsStream::Client(stream))))
    }

    /// Takes a connection: with TLS if it begins so and this process can.
    pub async fn accept(stream: TcpStream) -> io::Result<Self> {
        prepare(&stream);
        match identity() {
            Some(me) => Self::accept_as(stream, me).await,
            None => Ok(Self::Plain(stream)),
        }
    }

    async fn accept_as(stream: TcpStream, me: &Identity) -> io::Result<Self> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 || first[0] != HANDSHAKE {
            return Ok(Self::Plain(stream));
        }
        let stream = TlsAcceptor::from(me.tls.server()).accept(stream).await.map_err(in_words)?;
        Ok(Self::Tls(Box::new(TlsStream::Server(stream))))
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Where the other side is, for people.
    pub fn peer(&self) -> String {
        self.socket().peer_addr().map_or_else(|_| "somebody who has gone".into(), |a| a.to_string())
    }

    /// The key on the other side, which has to be certified as that of this node. `None` if it has shown no certificate.
    pub fn key(&self, node: NodeId) -> Result<Option<HostPublic>> {
        match identity() {
            Some(me) => self.key_in(me.cluster, node),
            None => Ok(None),
        }
    }

    fn key_in(&self, cluster: ClusterId, node: NodeId) -> Result<Option<HostPublic>> {
        let Self::Tls(stream) = self else { return Ok(None) };
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        certificates.first().map(|c| key_of(c, cluster, node)).transpose()
    }

    /// Refuses somebody who was dialled and says that it is this node, if it can't be.
    pub fn check_dialled(&self, node: NodeId, known: &State) -> Result<()> {
        match identity() {
            Some(_) => check_key(node, self.key(node)?, known),
            None => check_keyless(node, self.is_here(), known),
        }
    }

    /// True if the other side is a process of this machine.
    fn is_here(&self) -> bool {
        let socket = self.socket();
        socket.local_addr().is_ok_and(|l| socket.peer_addr().is_ok_and(|p| is_here(l.ip(), p.ip())))
    }

    /// Rights of somebody who said this hello here.
    pub fn admit(&self, hello: &Hello, known: &State) -> Result<May> {
        match identity() {
            Some(me) => self.admit_to(me.cluster, hello, known),
            None => Ok(May::All),
        }
    }

    fn admit_to(&self, cluster: ClusterId, hello: &Hello, known: &State) -> Result<May> {
        let came = match self {
            Self::Plain(stream) => Came::Plain { is_local: stream.peer_addr().is_ok_and(|a| is_loopback(a.ip())) },
            Self::Tls(_) => Came::Tls(self.key_in(cluster, hello.node)?),
        };
        admit(came, hello, known)
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

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// True if a connection between these addresses does not leave the machine.
fn is_here(local: IpAddr, peer: IpAddr) -> bool {
    is_loopback(peer) || local.to_canonical() == peer.to_canonical()
}

async fn open(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    prepare(&stream);
    Ok(stream)
}

/// A socket that refuses an option will tell so at its next use.
fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    notice_silence(stream);
}

/// Refuses to speak plain with another machine: anybody on the way could answer in its place, and would be believed.
fn check_plain(local: IpAddr, peer: IpAddr, is_trusted: bool) -> io::Result<()> {
    if is_trusted || is_here(local, peer) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!(
            "{peer} is another machine, and without TLS anybody on the way could answer in its place; name the data \
             directory of a node on this machine with --as-node, or add --trusted-network if nobody else can reach that \
             network"
        ),
    ))
}

/// Refuses, for who has no key to speak with, a node on another machine that has one: it speaks TLS alone, so who answered plain is
/// somebody else.
fn check_keyless(node: NodeId, is_here: bool, known: &State) -> Result<()> {
    match known.node(node).filter(|n| !is_here && n.identity.is_some()) {
        Some(n) => Err(Error::invalid(format!(
            "{} speaks TLS with other machines, and who answers in its place does not; name the data directory of a node on \
             this machine with --as-node",
            n.name
        ))),
        None => Ok(()),
    }
}

/// Rights of somebody who came so, in a cluster with an authority.
fn admit(came: Came, hello: &Hello, known: &State) -> Result<May> {
    // A number says that it is a node, or speaks for one.
    let is_client = matches!(hello.role, Role::Control | Role::Driver) && hello.node.0 == 0;
    match came {
        Came::Plain { is_local: true } if is_client => Ok(May::All),
        Came::Plain { .. } => Err(Error::invalid(
            "it speaks no TLS, and nodes of this cluster do; without it only commands and gateways on the same machine are \
             answered, over loopback (from elsewhere they need --as-node)",
        )),
        Came::Tls(Some(key)) => is_member(hello.node, key, known, hello.role == Role::Seat).map(|()| May::All),
        Came::Tls(None) if is_client && hello.role == Role::Control => Ok(May::Join),
        Came::Tls(None) => Err(Error::invalid("it has shown no certificate, and without one a node can only join")),
    }
}

/// Refuses a node that was dialled, and has shown this key, unless it may be believed.
fn check_key(node: NodeId, key: Option<HostPublic>, known: &State) -> Result<()> {
    let key = key.ok_or_else(|| Error::invalid(format!("node {node} has shown no certificate")))?;
    is_member(node, key, known, true)
}

/// Refuses a key for which the authority's word does not count any more. A seat that is `new` here may be of a node that joined while
/// this one was away: from it, or to it, this node learns that.
fn is_member(node: NodeId, key: HostPublic, known: &State, new: bool) -> Result<()> {
    known.check_removed(node)?;
    match known.node(node) {
        // Of a state that was made again the keys are not known; the authority has signed this one.
        Some(n) if n.identity.is_none_or(|k| k == key) => Ok(()),
        Some(n) => Err(Error::invalid(format!("its key is not the one that the cluster knows {} by", n.name))),
        None if new => Ok(()),
        None => Err(Error::retry(format!("node {node} is not known here to be a member"))),
    }
}

/// Why a handshake was refused, or what is wrong with an encrypted stream, in words.
fn in_words(e: io::Error) -> io::Error {
    let Some(refused) = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) else { return e };
    let text = match refused {
        rustls::Error::InvalidCertificate(why) => {
            format!("its certificate is none of this cluster's authority ({why:?})")
        }
        rustls::Error::AlertReceived(why) => format!("it refuses this side's certificate ({why:?})"),
        other => format!("no TLS of a node: {other}"),
    };
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// True if an error says that the other side is not, or does not take this one for, a node of the cluster.
pub fn is_refusal(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::InvalidData
}

/// Tells of those who were refused, less and less often while they go on: anybody can knock.
#[derive(Debug, Default)]
pub struct Knocks(Cell<Option<Knocked>>);

#[derive(Clone, Copy, Debug)]
struct Knocked {
    /// The last time that it was told, and the time until the next.
    told: Instant,
    pause: Duration,
    last: Instant,
    untold: u64,
}

impl Knocks {
    /// The words to tell, if it is time for some.
    pub fn refused(&self, who: &str, why: &impl fmt::Display) -> Option<String> {
        self.refused_at(Instant::now(), who, why)
    }

    fn refused_at(&self, now: Instant, who: &str, why: &impl fmt::Display) -> Option<String> {
        let known = self.0.get();
        let is_quiet = known.is_none_or(|k| now.duration_since(k.last) >= timing::KNOCKS_QUIET);
        if let Some(k) = known.filter(|k| !is_quiet && now.duration_since(k.told) < k.pause) {
            self.0.set(Some(Knocked { last: now, untold: k.untold + 1, ..k }));
            return None;
        }
        let pause = match known {
            Some(k) if !is_quiet => (k.pause * 2).min(timing::KNOCKS_TOLD_LEAST_OFTEN),
            _ => timing::KNOCKS_TOLD_EVERY,
        };
        self.0.set(Some(Knocked { told: now, pause, last: now, untold: 0 }));
        let more = match known.map_or(0, |k| k.untold) {
            0 => String::new(),
            n => format!(" (and {n} more since the last that was told of)"),
        };
        Some(format!("{who} was refused: {why}{more}"))
    }
}

impl AsyncRead for NodeConn {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(s) => Pin::new(s).poll_read(cx, buf),
            // One that goes without a word, as a process that is killed does, has ended its stream: messages say themselves
            // where they end.
            Self::Tls(s) => match Pin::new(s).poll_read(cx, buf) {
                Poll::Ready(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                other => other.map_err(in_words),
            },
        }
    }
}

impl AsyncWrite for NodeConn {
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

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::Command;
    use freebs_types::{ErrorKind, StartNumber};

    const CLUSTER: ClusterId = ClusterId([7; 16]);
    const KEY: HostPublic = HostPublic([1; 32]);
    const ROLES: [Role; 4] = [Role::Node, Role::Driver, Role::Control, Role::Seat];

    /// Node 1 with the key, and node 2, whose key is not known: the state was made again.
    fn state() -> State {
        let mut state = State::new(CLUSTER);
        for node in [1, 2] {
            let (name, address) = (format!("n{node}"), format!("127.0.0.1:{}", 7400 + node));
            let register =
                Command::RegisterNode { node: NodeId(node), name, address, workers: 1, start: StartNumber(0) };
            state.apply(register).unwrap();
        }
        state.begin_authority(HostPublic([9; 32]), NodeId(1), KEY).unwrap();
        state
    }

    fn try_it(came: Came, role: Role, node: u64) -> Result<May> {
        let node = NodeId(node);
        let hello = Hello { cluster: CLUSTER, role, node, start: StartNumber(1), from_worker: 0, to_worker: 0 };
        admit(came, &hello, &state())
    }

    #[test]
    fn without_tls_only_commands_and_gateways_of_this_machine_are_heard() {
        let (here, far) = (Came::Plain { is_local: true }, Came::Plain { is_local: false });
        for role in ROLES {
            let is_client = matches!(role, Role::Driver | Role::Control);
            assert_eq!(try_it(here, role, 0).ok(), is_client.then_some(May::All), "{role:?}");
            for (came, node) in [(here, 1), (here, 9), (far, 0), (far, 1)] {
                let e = try_it(came, role, node).unwrap_err();
                assert!(e.kind == ErrorKind::Invalid && e.text.contains("speaks no TLS"), "{role:?}: {e}");
            }
        }
        for here in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(is_loopback(here.parse().unwrap()), "{here}");
        }
        for far in ["0.0.0.0", "192.0.2.1", "::", "::ffff:192.0.2.1", "fe80::1"] {
            assert!(!is_loopback(far.parse().unwrap()), "{far}");
        }
    }

    #[test]
    fn a_certificate_counts_while_its_key_is_that_of_the_member() {
        let (right, other) = (Came::Tls(Some(KEY)), Came::Tls(Some(HostPublic([2; 32]))));
        for role in ROLES {
            assert_eq!(try_it(right, role, 1), Ok(May::All), "{role:?}");
            let e = try_it(other, role, 1).unwrap_err();
            assert!(e.kind == ErrorKind::Invalid && e.text.contains("knows n1 by"), "{role:?}: {e}");
            assert_eq!(try_it(other, role, 2), Ok(May::All), "the authority has signed it, and no other is known");
            // One that has joined since: its seat tells this node of it.
            let new = try_it(right, role, 3);
            match role {
                Role::Seat => assert_eq!(new, Ok(May::All)),
                _ => assert_eq!(new.unwrap_err().kind, ErrorKind::Retry, "{role:?}"),
            }
        }
    }

    #[test]
    fn without_a_certificate_a_node_can_only_join() {
        for role in ROLES {
            let may = try_it(Came::Tls(None), role, 0);
            match role {
                Role::Control => assert_eq!(may, Ok(May::Join)),
                _ => assert!(may.unwrap_err().text.contains("can only join"), "{role:?}"),
            }
            assert!(try_it(Came::Tls(None), role, 1).is_err(), "{role:?}");
        }
        assert!(check_key(NodeId(1), None, &state()).unwrap_err().text.contains("no certificate"));
        check_key(NodeId(1), Some(KEY), &state()).unwrap();
        check_key(NodeId(1), Some(HostPublic([2; 32])), &state()).unwrap_err();
    }

    #[test]
    fn plain_connections_stay_on_this_machine() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (local, peer) in [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("192.0.2.1", "192.0.2.1")] {
            check_plain(ip(local), ip(peer), false).unwrap();
            check_keyless(NodeId(1), is_here(ip(local), ip(peer)), &state()).unwrap();
        }
        for (local, peer) in
            [("192.0.2.1", "192.0.2.2"), ("fe80::1", "fe80::2"), ("::ffff:192.0.2.1", "::ffff:192.0.2.2")]
        {
            let e = check_plain(ip(local), ip(peer), false).unwrap_err();
            assert!(is_refusal(&e) && e.to_string().contains("--as-node"), "{e}");
            check_plain(ip(local), ip(peer), true).unwrap();
            // A trusted network does not make a node with a key speak plain; of node 2 none is known.
            let far = is_here(ip(local), ip(peer));
            assert!(check_keyless(NodeId(1), far, &state()).unwrap_err().text.contains("n1 speaks TLS"));
            check_keyless(NodeId(2), far, &state()).unwrap();
        }
    }

    #[test]
    fn who_knocks_again_and_again_is_told_of_less_and_less_often() {
        let (knocks, begin) = (Knocks::default(), Instant::now());
        let knock = |second: u64| knocks.refused_at(begin + Duration::from_secs(second), "192.0.2.1:5", &"why");
        assert_eq!(knock(0).unwrap(), "192.0.2.1:5 was refused: why");
        let told: Vec<u64> = (1..86_400).filter(|s| knock(*s).is_some()).collect();
        assert_eq!(told[..4], [10, 30, 70, 150]);
        assert!(told.len() < 40, "an event log has room for others: {}", told.len());
        let again = 86_400 + timing::KNOCKS_QUIET.as_secs();
        let more = knock(again).unwrap();
        assert!(more.contains("more since the last that was told of"), "{more}");
        assert!(knock(again + 9).is_none() && knock(again + 10).is_some());
    }
}
