//! A cluster as a program sees it: a thread that follows its control state, and beside it the worker of its drivers.

use freebs_control::rules::check_name;
use freebs_io::{Random, linux::OsRandom};
use freebs_node::attached::{Asker, Opened, Session, SessionOptions};
use freebs_types::{Error, Hash32, Result, VolumeId};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Longest that `Cluster::connect` looks for a node that answers.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// A question to the cluster's own thread.
enum Job {
    Attach {
        name: String,
        reply: oneshot::Sender<Result<Found>>,
    },
    OpenSnapshot {
        volume: String,
        snapshot: String,
        reply: oneshot::Sender<Result<Found>>,
    },
    GiveBack {
        of: Opened,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Nobody waits for it.
    Release {
        of: Opened,
    },
    Stop {
        reply: oneshot::Sender<()>,
    },
}

/// A volume that was attached, or a snapshot that was opened.
pub(crate) struct Found {
    pub id: VolumeId,
    pub size: u64,
    pub opened: Opened,
    pub asker: Asker,
}

/// A cluster that this program speaks with. Clones are the same one.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    jobs: mpsc::UnboundedSender<Job>,
    /// Volumes that are attached here, with the attachment that a handle has. One that was fenced stays until its handle goes,
    /// or the volume is attached anew.
    attached: Mutex<BTreeMap<VolumeId, Opened>>,
    is_closed: AtomicBool,
}

fn ended() -> Error {
    Error::retry("the connection to the cluster has ended")
}

impl Cluster {
    /// Finds the cluster that has a node at one of these addresses (`HOST:PORT`).
    ///
    /// # Errors
    /// `Retry` if none of them answers within some seconds.
    pub async fn connect(addresses: &[&str]) -> Result<Self> {
        let mut identity = Hash32([0; 32]);
        OsRandom.fill(&mut identity.0);
        Self::connect_with(addresses, format!("program-{}", std::process::id()), identity).await
    }

    /// The same under a name of the program's own: when it was killed, and another process connects under that name, it
    /// gets its volumes at once, and whatever is left of the earlier one is refused from then on. No two processes that
    /// are to live at the same time may have one name.
    ///
    /// # Errors
    /// As those of `connect`; `Invalid` for a name that is not 1 to 128 of `A-Z a-z 0-9 . _ -`, or begins with `.` or `-`.
    pub async fn connect_as(addresses: &[&str], name: &str) -> Result<Self> {
        check_name("program's", name)?;
        let identity = Hash32(*blake3::hash(format!("program {name}").as_bytes()).as_bytes());
        Self::connect_with(addresses, name.to_owned(), identity).await
    }

    async fn connect_with(addresses: &[&str], name: String, identity: Hash32) -> Result<Self> {
        let addresses = addresses.iter().map(|a| (*a).to_owned()).collect();
        let options = SessionOptions { addresses, cluster: None, name, identity };
        let (jobs, work) = mpsc::unbounded_channel();
        let (begun, hear) = oneshot::channel();
        let thread = std::thread::Builder::new().name("freebs".into());
        thread.spawn(move || run(options, work, begun)).map_err(|e| Error::os(format!("no thread: {e}")))?;
        hear.await.map_err(|_| ended())??;
        Ok(Self(Arc::new(Inner { jobs, attached: Mutex::default(), is_closed: AtomicBool::new(false) })))
    }

    /// Gives back all volumes that are still attached here, and ends. Without it, they are free when their leases have ended.
    /// Requests that are under way end with `Retry`: a change among them may still happen.
    pub async fn close(self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
        let (reply, stopped) = oneshot::channel();
        if self.0.jobs.send(Job::Stop { reply }).is_ok() {
            let _ = stopped.await;
        }
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T>>) -> Job) -> Result<T> {
        self.check_open()?;
        let (reply, answer) = oneshot::channel();
        self.0.jobs.send(job(reply)).map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }

    pub(crate) async fn attach(&self, name: &str) -> Result<Found> {
        let found = self.ask(|reply| Job::Attach { name: name.to_owned(), reply }).await?;
        // Another attachment than the recorded one: that was fenced, and its handle does not keep the volume from this program.
        if self.attached().insert(found.id, found.opened) != Some(found.opened) {
            return Ok(found);
        }
        let _ = self.0.jobs.send(Job::Release { of: found.opened });
        Err(Error::busy(format!("{name} is attached by this program already; clone that handle")))
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Opened>> {
        self.0.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing of it is asked any more.
    ///
    /// # Errors
    /// `Fenced` once it was closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.0.is_closed.load(Ordering::Relaxed) {
            return Err(Error::fenced("the cluster was closed here: connect and attach again"));
        }
        Ok(())
    }

    pub(crate) async fn open_snapshot(&self, volume: &str, snapshot: &str) -> Result<Found> {
        let (volume, snapshot) = (volume.to_owned(), snapshot.to_owned());
        self.ask(|reply| Job::OpenSnapshot { volume, snapshot, reply }).await
    }

    /// Gives back what was opened; `id` is of a volume that is attached, `None` of a snapshot.
    pub(crate) async fn give_back(&self, id: Option<VolumeId>, of: Opened) -> Result<()> {
        let _forget = Forget(self, id, of);
        if self.check_open().is_err() {
            // It was given back with the cluster.
            return Ok(());
        }
        self.ask(|reply| Job::GiveBack { of, reply }).await
    }

    /// The same, and nobody waits for it.
    pub(crate) fn let_go(&self, id: Option<VolumeId>, of: Opened) {
        let _forget = Forget(self, id, of);
        let _ = self.0.jobs.send(Job::Release { of });
    }
}

/// From its end on, also if nobody waits for the answer any more, the volume may be attached here again.
struct Forget<'a>(&'a Cluster, Option<VolumeId>, Opened);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut attached = self.0.attached();
        // A later attachment of the volume is not this one's to forget.
        if let Some(id) = self.1.filter(|id| attached.get(id) == Some(&self.2)) {
            attached.remove(&id);
        }
    }
}

fn run(options: SessionOptions, work: mpsc::UnboundedReceiver<Job>, begun: oneshot::Sender<Result<()>>) {
    if let Err(e) = freebs_io::linux::net::mask_broken_pipes() {
        return drop(begun.send(Err(e)));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return drop(begun.send(Err(Error::os(format!("no event loop: {e}"))))),
    };
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let names = options.addresses.join(", ");
        let session = match tokio::time::timeout(CONNECT_MAX, Session::start(options)).await {
            Ok(Ok(session)) => session,
            Ok(Err(e)) => return drop(begun.send(Err(e))),
            Err(_) => return drop(begun.send(Err(Error::retry(format!("no node of a cluster answers at {names}"))))),
        };
        let _ = begun.send(Ok(()));
        serve(session, work).await;
    });
}

/// Takes jobs until it is told to stop, or nobody has the cluster any more.
async fn serve(session: Session, mut work: mpsc::UnboundedReceiver<Job>) {
    let session = Rc::new(session);
    let mut told = None;
    while let Some(job) = work.recv().await {
        let session = session.clone();
        match job {
            Job::Stop { reply } => {
                told = Some(reply);
                break;
            }
            Job::Attach { name, reply } => drop(tokio::task::spawn_local(async move {
                answer(&session, reply, attach(&session, &name).await);
            })),
            Job::OpenSnapshot { volume, snapshot, reply } => drop(tokio::task::spawn_local(async move {
                answer(&session, reply, open_snapshot(&session, &volume, &snapshot).await);
            })),
            Job::GiveBack { of, reply } => drop(tokio::task::spawn_local(async move {
                let _ = reply.send(session.give_back(of).await);
            })),
            Job::Release { of } => session.release(of),
        }
    }
    session.stop().await;
    told.map(|reply| reply.send(()));
}

async fn attach(session: &Session, name: &str) -> Result<Found> {
    let volume = session.volume(name).await?;
    let opened = session.attach(volume.id).await?;
    Ok(Found { id: volume.id, size: volume.size, opened, asker: session.asker(opened) })
}

async fn open_snapshot(session: &Session, name: &str, snapshot: &str) -> Result<Found> {
    let volume = session.volume(name).await?;
    let (opened, size) = session.open_past(volume.id, snapshot).await?;
    Ok(Found { id: volume.id, size, opened, asker: session.asker(opened) })
}

/// Tells whoever asked, who may not wait any more.
fn answer(session: &Session, reply: oneshot::Sender<Result<Found>>, found: Result<Found>) {
    if let Err(Ok(found)) = reply.send(found) {
        session.release(found.opened);
    }
}
