//! A connection to a node's control API: many requests at a time, each answered under its number.

use super::server::{read_message, write_message};
use crate::conn::{self, NodeConn};
use crate::timing;
use bytes::{Bytes, BytesMut};
use freebs_control::Node;
use freebs_control::api::{Reply, Request};
use freebs_format::wire::{Hello, Message, Role, Welcome};
use freebs_identity::Caller;
use freebs_types::{ClusterId, Error, HostPublic, NodeId, Result, StartNumber, limits};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// Requests that wait to be written.
const QUEUE_MAX: usize = 64;

type Waiting = Mutex<Option<BTreeMap<u64, oneshot::Sender<Bytes>>>>;

/// A connection; clones share it, and it is closed with the last one.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    address: String,
    welcome: Welcome,
    key: Option<HostPublic>,
    requests: mpsc::Sender<(Bytes, oneshot::Sender<Bytes>)>,
    tasks: [AbortHandle; 2],
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Client {
    /// Connects to the first of the addresses that answers.
    pub async fn connect_any(addresses: &[String]) -> Result<Self> {
        let mut last = Error::invalid("no address to connect to");
        for address in addresses {
            match Self::connect(address).await {
                Ok(client) => return Ok(client),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Connects and says hello.
    pub async fn connect(address: &str) -> Result<Self> {
        Self::connect_by(address, NodeConn::connect(address), conn::own_number()).await
    }

    /// Connects to this member.
    pub async fn connect_to(node: &Node) -> Result<Self> {
        let client = Self::connect(&node.address).await?;
        client.check_member(node)?;
        Ok(client)
    }

    /// The same as a node that is no member yet.
    pub async fn connect_to_join(address: &str, caller: &Caller) -> Result<Self> {
        Self::connect_by(address, NodeConn::connect_with(address, caller), NodeId(0)).await
    }

    async fn connect_by(
        address: &str,
        connecting: impl Future<Output = std::io::Result<NodeConn>>,
        node: NodeId,
    ) -> Result<Self> {
        let connect = async {
            let mut stream = connecting.await.map_err(|e| unreachable(address, &e))?;
            let hello = Hello {
                cluster: ClusterId::default(),
                role: Role::Control,
                node,
                start: StartNumber(0),
                from_worker: 0,
                to_worker: 0,
            };
            write_message(&mut stream, &Message::Hello(hello)).await.map_err(|e| unreachable(address, &e))?;
            let mut buf = BytesMut::new();
            match read_message(&mut stream, &mut buf).await.map_err(|e| e.at(address))? {
                Some(Message::Welcome(welcome)) => {
                    let key = stream.key(welcome.node).map_err(|e| e.at(address))?;
                    Ok((stream, buf, welcome, key))
                }
                // It says why it has nothing to say yet.
                Some(Message::ControlReply { body, .. }) => match Reply::decode(&body) {
                    Err(e) => Err(e.at(address)),
                    Ok(_) => Err(Error::retry(format!("{address} answered before it was asked"))),
                },
                _ => Err(Error::retry(format!("{address} did not answer like a freebs node"))),
            }
        };
        let (stream, buf, welcome, key) = tokio::time::timeout(timing::CLIENT_CONNECT_MAX, connect)
            .await
            .map_err(|_| Error::retry(format!("{address} does not answer")))??;
        let (read, write) = tokio::io::split(stream);
        let (requests, queue) = mpsc::channel(QUEUE_MAX);
        let waiting: Arc<Waiting> = Arc::new(Mutex::new(Some(BTreeMap::new())));
        let reader = tokio::spawn(read_replies(read, buf, waiting.clone())).abort_handle();
        let writer = tokio::spawn(write_requests(write, queue, waiting)).abort_handle();
        Ok(Self(Arc::new(Inner { address: address.into(), welcome, key, requests, tasks: [reader, writer] })))
    }

    #[must_use]
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// Whether it is the same connection.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Who answered.
    #[must_use]
    pub fn welcome(&self) -> Welcome {
        self.0.welcome
    }

    /// Refused unless this member answered, with its key.
    fn check_member(&self, node: &Node) -> Result<()> {
        if conn::identity().is_none() {
            return Ok(());
        }
        let (there, key) = (self.0.welcome.node, self.0.key);
        if there == node.id && key.is_some() && node.identity.is_none_or(|k| Some(k) == key) {
            return Ok(());
        }
        let (name, address) = (&node.name, &self.0.address);
        Err(Error::invalid(format!("node {there} answers at {address}, and not {name} with the key that it has")))
    }

    /// Sends one request and waits for its reply. `Retry` if the connection broke or `max` passed: it is not known
    /// then whether the request was carried out.
    pub async fn call(&self, request: &Request, max: Duration) -> Result<Reply> {
        let body = Bytes::from(request.encode());
        if body.len() > limits::CONTROL_BODY_BYTES_MAX {
            return Err(Error::invalid("the request is too long"));
        }
        let lost = || Error::retry(format!("the connection to {} broke", self.0.address));
        let (answer, answered) = oneshot::channel();
        let reply = async {
            self.0.requests.send((body, answer)).await.map_err(|_| lost())?;
            answered.await.map_err(|_| lost())
        };
        match tokio::time::timeout(max, reply).await {
            Ok(body) => Reply::decode(&body?),
            Err(_) => Err(Error::retry(format!("{} did not answer in {} s", self.0.address, max.as_secs_f32()))),
        }
    }
}

fn unreachable(address: &str, e: &std::io::Error) -> Error {
    if conn::is_refusal(e) {
        return Error::invalid(format!("the node at {address}: {e}"));
    }
    Error::retry(format!("can't reach a freebs node at {address}: {}", crate::files::plain(e)))
}

fn lock(waiting: &Waiting) -> std::sync::MutexGuard<'_, Option<BTreeMap<u64, oneshot::Sender<Bytes>>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends with the connection; dropping the table tells everybody who waits.
async fn read_replies(mut read: ReadHalf<NodeConn>, mut buf: BytesMut, waiting: Arc<Waiting>) {
    loop {
        match read_message(&mut read, &mut buf).await {
            Ok(Some(Message::ControlReply { id, body })) => {
                let answer = lock(&waiting).as_mut().and_then(|w| w.remove(&id));
                if let Some(answer) = answer {
                    let _ = answer.send(body);
                }
            }
            Ok(Some(other)) => {
                tracing::debug!("a node sent {} on a control connection", other.name());
                break;
            }
            Ok(None) => break,
            Err(e) => {
                tracing::debug!("control connection: {e}");
                break;
            }
        }
    }
    *lock(&waiting) = None;
}

async fn write_requests(
    mut write: WriteHalf<NodeConn>,
    mut queue: mpsc::Receiver<(Bytes, oneshot::Sender<Bytes>)>,
    waiting: Arc<Waiting>,
) {
    let mut id = 0;
    while let Some((body, answer)) = queue.recv().await {
        id += 1;
        match lock(&waiting).as_mut() {
            Some(w) => {
                w.retain(|_, a| !a.is_closed());
                w.insert(id, answer);
            }
            None => break,
        }
        if write_message(&mut write, &Message::Control { id, body }).await.is_err() {
            break;
        }
    }
    *lock(&waiting) = None;
}
