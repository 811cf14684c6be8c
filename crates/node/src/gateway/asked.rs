//! The socket on which commands of this host ask a gateway, or a node that serves NBD, to attach a volume or to give it
//! back. Its name begins with `PREFIX`, and all that are there are found by that.

use super::Workers;
use crate::host_socket::{self, Asked};
use crate::options::NbdAddress;
use crate::runtime::{Command, Held};
use crate::timing;
use freebs_control::{ControlPlane, Volume};
use freebs_io::{Random, linux::OsRandom};
use freebs_types::{ClusterId, Error, Generation, Result, VolumeId};
use serde::{Deserialize, Serialize};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

const PREFIX: &str = "freebs-nbd-";
/// Requests that wait to be looked at.
const REQUESTS_MAX: usize = 16;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Who,
    Attach { volume: VolumeId, force: bool },
    Detach { volume: VolumeId, force: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Me(Me),
    Attached {
        generation: Generation,
        /// The address under which NBD clients open it.
        uri: String,
        /// Name of the holder from whom it was taken.
        taken_from: Option<String>,
    },
    /// `None`: it was not attached here.
    Detached {
        generation: Option<Generation>,
    },
}

/// A gateway, or a node that serves NBD.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Me {
    pub cluster: ClusterId,
    pub name: String,
}

/// Answers for as long as the tasks of this thread run.
pub fn serve<C: ControlPlane>(me: Me, nbd: NbdAddress, control: Arc<C>, workers: Workers) {
    let name = format!("{PREFIX}{}-{:016x}", std::process::id(), OsRandom.next_u64());
    let listener = match host_socket::listen(&name) {
        Ok(listener) => listener,
        Err(e) => {
            let why = crate::files::plain(&e);
            return tracing::warn!("`freebs volume attach` and `detach` do not find this process: {why}");
        }
    };
    let (asked, requests) = mpsc::channel(REQUESTS_MAX);
    host_socket::serve(listener, true, asked);
    let serving = Rc::new(Serving { me, nbd, control, workers });
    tokio::task::spawn_local(serving.run(requests));
}

struct Serving<C> {
    me: Me,
    nbd: NbdAddress,
    control: Arc<C>,
    workers: Workers,
}

impl<C: ControlPlane> Serving<C> {
    async fn run(self: Rc<Self>, mut requests: mpsc::Receiver<Asked<Request, Reply>>) {
        while let Some(Asked { request, answer }) = requests.recv().await {
            let serving = self.clone();
            tokio::task::spawn_local(async move {
                let _ = answer.send(serving.answer(request).await);
            });
        }
    }

    async fn answer(&self, request: Request) -> Result<Reply> {
        match request {
            Request::Who => Ok(Reply::Me(self.me.clone())),
            Request::Attach { volume, force } => {
                let volume = self.known(volume).await?;
                let hold = |reply| Command::Hold { volume: volume.id, force, reply };
                let Held { generation, taken_from } = self.ask(&volume, hold).await?;
                Ok(Reply::Attached { generation, uri: self.nbd.uri(&volume.name), taken_from })
            }
            Request::Detach { volume, force } => {
                let volume = self.known(volume).await?;
                let let_go = |reply| Command::LetGo { volume: volume.id, force, reply };
                Ok(Reply::Detached { generation: self.ask(&volume, let_go).await? })
            }
        }
    }

    async fn ask<T>(&self, volume: &Volume, command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command) -> Result<T> {
        let stopping = || Error::retry("this process is stopping");
        let (reply, answer) = oneshot::channel();
        self.workers.of(volume).send(command(reply)).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// The volume, which a node knows already.
    async fn known(&self, id: VolumeId) -> Result<Arc<Volume>> {
        let late = || Error::retry(format!("{} does not hear from the cluster; see `freebs status`", self.me.name));
        super::heard_of(&*self.control, id).await.ok_or_else(late)
    }
}

/// One that is there, seen from a command.
#[derive(Clone, Debug)]
pub struct There {
    socket: String,
    pub me: Me,
}

impl There {
    /// All of a cluster on this host, by name; and why others could not be asked.
    pub fn all(cluster: ClusterId) -> (Vec<Self>, Vec<Error>) {
        let (mut there, mut errors) = (Vec::new(), Vec::new());
        for socket in host_socket::names(PREFIX) {
            let asked = host_socket::connect(&socket).and_then(|s| s.map(who).transpose());
            match asked {
                Ok(Some(me)) if me.cluster == cluster => there.push(Self { socket, me }),
                // One that has just ended.
                Ok(_) => {}
                Err(e) => errors.push(e),
            }
        }
        there.sort_by(|a, b| a.me.name.cmp(&b.me.name));
        (there, errors)
    }

    /// Asks it something. It may take as long as `timing::ATTACH_CALL_MAX`.
    pub fn ask(&self, request: &Request) -> Result<Reply> {
        let stream = host_socket::connect(&self.socket)?;
        let stream = stream.ok_or_else(|| Error::retry(format!("{} has just ended", self.me.name)))?;
        host_socket::ask(stream, request, timing::ATTACH_CALL_MAX, &self.me.name)
    }
}

fn who(stream: UnixStream) -> Result<Me> {
    match host_socket::ask(stream, &Request::Who, WHO_MAX, "a gateway of this host")? {
        Reply::Me(me) => Ok(me),
        _ => Err(Error::retry("a gateway of this host answered something else than was asked")),
    }
}

/// Longest that a gateway takes to say its name; one that stands still must not keep a command from the others.
const WHO_MAX: Duration = timing::NODE_ANSWER_MAX;
