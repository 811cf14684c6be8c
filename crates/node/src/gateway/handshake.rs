//! The handshake of one client, up to GO.
//!
//! Invariants: all that the client takes counts against `Times::handshake`, however it is spread; what its volume takes
//! does not, and has `Times::attach`; what was opened for a client that leaves is released.

use super::Workers;
use crate::places::Handshake;
use crate::runtime::{Command, Served};
use crate::timing;
use bytes::{Buf, BytesMut};
use freebs_agent::readable;
use freebs_control::{ControlPlane, Snapshot, State, Volume};
use freebs_format::Pin;
use freebs_io::linux::net::Stream;
use freebs_nbd::limits::{LIST_BYTES_MAX, LIST_EXPORTS_MAX};
use freebs_nbd::{Event, ExportInfo, Limits, Purpose, Refusal, RefusalReason, Session, Step, Wait, default_export};
use freebs_types::{Error, ErrorKind, Generation, Result, SnapshotId, VolumeId};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::Instant;

/// Bytes read at a time before GO.
const READ_BYTES: usize = 16 << 10;
/// Bytes of a name in a list of exports, beside the name.
const LIST_ENTRY_BYTES: usize = 24;

/// How long a handshake may take.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The client, all in all.
    pub handshake: Duration,
    /// Its volume, each time that it asks for one.
    pub attach: Duration,
}

/// A volume or snapshot that was opened for this connection, until it is handed on.
struct Opened {
    of: Served,
    worker: mpsc::UnboundedSender<Command>,
    handed_on: bool,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.handed_on {
            let _ = self.worker.send(Command::Release { of: self.of });
        }
    }
}

struct Shaking<'a, C> {
    stream: Stream,
    place: OwnedSemaphorePermit,
    session: Session,
    input: BytesMut,
    control: &'a C,
    workers: &'a Workers,
    opened: Option<Opened>,
    handshake: &'a Handshake,
    times: Times,
    /// The client has until then, and a little more for each question.
    until: Instant,
    /// Its time that was spent on names which nobody has heard of.
    waited_for_names: Duration,
}

/// Shakes hands until the connection is its worker's, or over.
pub async fn shake_hands<C: ControlPlane>(
    stream: Stream,
    place: OwnedSemaphorePermit,
    handshake: &Handshake,
    control: &C,
    workers: &Workers,
    times: Times,
) -> Result<()> {
    if let Stream::Tcp(s) = &stream {
        let _ = s.set_nodelay(true);
    }
    let shaking = Shaking {
        stream,
        place,
        session: Session::new(Limits::default()),
        input: BytesMut::new(),
        control,
        workers,
        opened: None,
        handshake,
        times,
        until: Instant::now() + times.handshake,
        waited_for_names: Duration::ZERO,
    };
    shaking.run().await
}

impl<C: ControlPlane> Shaking<'_, C> {
    async fn run(mut self) -> Result<()> {
        loop {
            let step = self.session.receive(&mut self.input);
            let step = match step {
                Ok(s) => s,
                Err(e) => {
                    self.send().await?;
                    return Err(Error::corrupt(e.to_string()));
                }
            };
            match step {
                Step::Event(Event::Lookup { name, purpose }) => self.look_up(&name, purpose).await?,
                Step::Event(Event::List) => self.list(),
                Step::Event(Event::Go { name }) => return self.hand_over(&name).await,
                Step::Event(Event::Disconnect) => {
                    self.send().await?;
                    return Ok(());
                }
                Step::Event(Event::Request { .. }) => return Err(Error::bug("a request before GO")),
                Step::Wait(Wait::Bytes(n)) => {
                    self.send().await?;
                    self.read(n).await?;
                }
                // Nothing more is looked at until the replies so far are sent, and then it goes on.
                Step::Wait(Wait::Window) => self.send().await?,
                Step::Wait(Wait::Answer) => return Err(Error::bug("a question to the gateway was not answered")),
                Step::Wait(Wait::Closed) => {
                    self.send().await?;
                    return Ok(());
                }
            }
        }
    }

    /// The end of the client's time, as far as it has come.
    fn limit(&self) -> Instant {
        self.until + timing::HANDSHAKE_QUESTION * self.session.exports_asked()
    }

    async fn send(&mut self) -> Result<()> {
        let limit = self.limit();
        let output = self.session.output();
        while output.has_remaining() {
            let send = async {
                match &mut self.stream {
                    Stream::Tcp(s) => s.write_buf(output).await,
                    Stream::Unix(s) => s.write_buf(output).await,
                }
            };
            let sent = tokio::time::timeout_at(limit, send).await.map_err(|_| late())?;
            sent.map_err(|e| Error::retry(format!("the connection broke: {e}")))?;
        }
        Ok(())
    }

    async fn read(&mut self, wanted: usize) -> Result<()> {
        let limit = self.limit();
        self.input.reserve(wanted.max(READ_BYTES));
        let read = async {
            match &mut self.stream {
                Stream::Tcp(s) => s.read_buf(&mut self.input).await,
                Stream::Unix(s) => s.read_buf(&mut self.input).await,
            }
        };
        match tokio::time::timeout_at(limit, read).await {
            Ok(Ok(0)) => Err(Error::retry("the client closed the connection")),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(Error::retry(format!("the connection broke: {e}"))),
            Err(_) => Err(late()),
        }
    }

    fn list(&mut self) {
        let state = self.control.state();
        let snapshots = snapshot_names(&state);
        let names = state.volumes().map(|v| v.name.as_str()).chain(snapshots.iter().map(String::as_str));
        self.session.list(names.map(|name| (name, "")));
    }

    /// The control state, once it knows a name, or the newest one: what was made through a node a moment ago may not have been
    /// heard of here yet. A client waits [`timing::NAME_HEARD_OF_MAX`] for all the names together that nobody has heard of.
    async fn heard_of(&mut self, is_known: impl Fn(&State) -> bool) -> Result<Arc<State>> {
        let begun = Instant::now();
        let news = async {
            let mut state = self.control.state();
            while !is_known(&state) {
                state = self.control.changed(state.revision()).await;
            }
            state
        };
        let wait = timing::NAME_HEARD_OF_MAX.saturating_sub(self.waited_for_names);
        let heard = self.unless_gone(tokio::time::timeout(wait, news)).await?;
        self.waited_for_names += begun.elapsed();
        self.until += begun.elapsed();
        Ok(heard.unwrap_or_else(|_| self.control.state()))
    }

    async fn look_up(&mut self, name: &str, purpose: Purpose) -> Result<()> {
        let past = name.split_once('@');
        let state = match past {
            Some((volume, snapshot)) => self.heard_of(|state| find_past(state, volume, snapshot).is_ok()).await?,
            // The only volume there is, if there is only one.
            None if name.is_empty() => self.control.state(),
            None => self.heard_of(|state| find(state, name).is_some()).await?,
        };
        if let Some(past) = past {
            return self.look_up_past(&state, past, purpose).await;
        }
        let Some(volume) = find(&state, name) else {
            let text = if name.is_empty() {
                "name a volume: there is not exactly one; see `freebs volume list`".to_string()
            } else {
                format!("there is no volume {name}; see `freebs volume list`")
            };
            self.session.export(Err(Refusal::new(RefusalReason::Unknown, text)));
            return Ok(());
        };
        let info = ExportInfo {
            name: volume.name.clone(),
            description: String::new(),
            size: volume.size,
            read_only: false,
            multi_conn: true,
            changed_since: Vec::new(),
        };
        let is_of = |o: &Opened| matches!(o.of, Served::Volume { volume: open, .. } if open == volume.id);
        let is_open = self.opened.as_ref().is_some_and(is_of);
        if matches!(purpose, Purpose::Go | Purpose::ExportName) && !is_open {
            self.opened = None;
            let worker = self.workers.of(&volume).clone();
            let begun = Instant::now();
            self.handshake.set_attaching(true);
            let opened = self.unless_gone(open(&worker, volume.id, self.times.attach)).await?;
            self.handshake.set_attaching(false);
            self.until += begun.elapsed();
            match opened {
                Ok(generation) => {
                    let of = Served::Volume { volume: volume.id, generation };
                    self.opened = Some(Opened { of, worker, handed_on: false });
                }
                Err(e) => {
                    tracing::warn!("volume {}: not attached: {e}", volume.name);
                    // One that waits for something is "not available", one that somebody else has is not for this client.
                    let later = e.kind == ErrorKind::Retry;
                    let reason = if later { RefusalReason::Unknown } else { RefusalReason::Policy };
                    self.session.export(Err(Refusal::new(reason, e.text)));
                    return Ok(());
                }
            }
        }
        self.session.export(Ok(info));
        Ok(())
    }

    /// A snapshot of a volume. Nobody has to give it, so there is nothing to wait for but the worker.
    async fn look_up_past(&mut self, state: &State, (volume, name): (&str, &str), purpose: Purpose) -> Result<()> {
        let (volume, snapshot) = match find_past(state, volume, name) {
            Ok(found) => found,
            Err(e) => {
                self.session.export(Err(Refusal::new(RefusalReason::Unknown, e.text)));
                return Ok(());
            }
        };
        let is_of = |o: &Opened| matches!(o.of, Served::Snapshot { volume: v, snapshot: s, .. } if (v, s) == (volume.id, snapshot.id));
        let is_open = self.opened.as_ref().is_some_and(is_of);
        if matches!(purpose, Purpose::Go | Purpose::ExportName) && !is_open {
            self.opened = None;
            let worker = self.workers.of(volume).clone();
            match open_past(&worker, volume.id, snapshot.id).await {
                Ok(of) => self.opened = Some(Opened { of, worker, handed_on: false }),
                Err(e) => {
                    self.session.export(Err(Refusal::new(RefusalReason::Unknown, e.text)));
                    return Ok(());
                }
            }
        }
        let asks = purpose == Purpose::MetaContext;
        self.session.export(Ok(ExportInfo {
            name: format!("{}@{}", volume.name, snapshot.name),
            description: format!("snapshot {} of volume {}", snapshot.name, volume.name),
            size: snapshot.of(volume.id).map_or(0, |of| of.size),
            read_only: true,
            multi_conn: true,
            changed_since: if asks { earlier_than(state, volume, snapshot) } else { Vec::new() },
        }));
        Ok(())
    }

    /// The pins since which the client wants to be told what changed, if it does.
    fn since(&self, of: Served) -> Result<Option<Arc<[Pin]>>> {
        let (Served::Snapshot { volume, snapshot, .. }, Some(name)) = (of, self.session.changed_since()) else {
            return Ok(None);
        };
        let state = self.control.state();
        let both = state.snapshot(volume, name).zip(state.snapshot_record(snapshot));
        let versions = both.and_then(|(earlier, later)| freebs_agent::since(earlier, later, volume));
        let gone = || Error::not_found(format!("snapshot {name}, from which changes were asked for, is gone"));
        versions.map(Some).ok_or_else(gone)
    }

    /// Waits, as long as the client does. One that gave up must not hold a place until the volume can be attached:
    /// clients that try again and again would leave none for those of other volumes.
    async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                () = tokio::time::sleep(timing::CLIENT_GONE_LOOK) => {}
            }
            let ready = match &self.stream {
                Stream::Tcp(s) => tokio::time::timeout(Duration::ZERO, s.ready(Interest::READABLE)).await,
                Stream::Unix(s) => tokio::time::timeout(Duration::ZERO, s.ready(Interest::READABLE)).await,
            };
            if ready.is_ok_and(|r| r.is_ok_and(|r| r.is_read_closed())) {
                return Err(Error::retry("the client gave up before its volume was attached"));
            }
        }
    }

    /// Transmission begins: from here on the connection is its worker's.
    async fn hand_over(mut self, name: &str) -> Result<()> {
        let mut opened = self.opened.take().ok_or_else(|| Error::bug(format!("{name} was not attached before GO")))?;
        let since = self.since(opened.of)?;
        let stream = self.stream.loosen()?;
        let command = Command::Nbd {
            of: opened.of,
            since,
            place: self.place,
            stream,
            session: Box::new(self.session),
            input: self.input,
        };
        // The count that `opened` holds is the connection's from now on.
        opened.handed_on = true;
        opened.worker.send(command).map_err(|_| stopping())
    }
}

fn find(state: &State, name: &str) -> Option<Arc<Volume>> {
    if name.is_empty() { default_export(state.volumes()).cloned() } else { state.volume_by_name(name).cloned() }
}

fn find_past<'a>(state: &'a State, volume: &str, name: &str) -> Result<(&'a Arc<Volume>, &'a Snapshot)> {
    let none = || Error::not_found(format!("there is no volume {volume}; see `freebs volume list`"));
    let volume = state.volume_by_name(volume).ok_or_else(none)?;
    Ok((volume, readable(state, volume, name)?))
}

/// Names of snapshots that can tell what changed from them to this one.
fn earlier_than(state: &State, volume: &Volume, snapshot: &Snapshot) -> Vec<String> {
    let earlier = |s: &&Arc<Snapshot>| s.id != snapshot.id && freebs_agent::since(s, snapshot, volume.id).is_some();
    state.snapshots_of(volume.id).filter(earlier).map(|s| s.name.clone()).collect()
}

/// Names of the snapshots that are listed beside all volumes: as many as a list has room for.
fn snapshot_names(state: &State) -> Vec<String> {
    let bytes = |name: &str| name.len() + LIST_ENTRY_BYTES;
    let volumes = state.volumes().map(|v| bytes(&v.name)).sum::<usize>();
    let (mut room, mut count) = (LIST_BYTES_MAX.saturating_sub(volumes), state.volumes().count());
    let of = |s: &Arc<Snapshot>| {
        let volumes = s.volumes.iter().filter_map(|v| state.volume(v.volume));
        volumes.map(|v| format!("{}@{}", v.name, s.name)).collect::<Vec<_>>()
    };
    let all = state.snapshots().filter(|s| s.is_complete()).flat_map(of);
    let fits = |name: &String| {
        let fits = count < LIST_EXPORTS_MAX && bytes(name) <= room;
        (count, room) = (count + 1, room.saturating_sub(bytes(name)));
        fits
    };
    all.take_while(fits).collect()
}

fn late() -> Error {
    Error::retry("the handshake took too long")
}

fn stopping() -> Error {
    Error::retry("this process is stopping")
}

/// Attaches a volume, or says after `wait` what keeps it from being attached. The worker goes on with it for a while,
/// so that a client that asks again finds it further on.
pub async fn open(worker: &mpsc::UnboundedSender<Command>, volume: VolumeId, wait: Duration) -> Result<Generation> {
    let until = Instant::now() + wait;
    loop {
        let (reply, answer) = oneshot::channel();
        worker.send(Command::Open { volume, reply }).map_err(|_| stopping())?;
        match tokio::time::timeout_at(until, answer).await {
            Ok(result) => match result.map_err(|_| stopping())? {
                // The worker gave up, and the client has not.
                Err(e) if e.kind == ErrorKind::Retry && Instant::now() + timing::ATTACH_ASK_AGAIN < until => {
                    tokio::time::sleep(timing::ATTACH_ASK_AGAIN).await;
                }
                result => return result,
            },
            Err(_) => return Err(why_not(worker, volume).await),
        }
    }
}

/// Opens a snapshot for one more user.
pub async fn open_past(
    worker: &mpsc::UnboundedSender<Command>,
    volume: VolumeId,
    snapshot: SnapshotId,
) -> Result<Served> {
    let (reply, answer) = oneshot::channel();
    worker.send(Command::OpenPast { volume, snapshot, reply }).map_err(|_| stopping())?;
    let reader = answer.await.map_err(|_| stopping())??;
    Ok(Served::Snapshot { volume, snapshot, reader })
}

/// The reason why a volume is not attached yet.
async fn why_not(worker: &mpsc::UnboundedSender<Command>, volume: VolumeId) -> Error {
    let (reply, answer) = oneshot::channel();
    if worker.send(Command::WaitsFor { volume, reply }).is_err() {
        return stopping();
    }
    match tokio::time::timeout(timing::WHY_NOT_MAX, answer).await {
        Ok(Ok(why)) => Error::retry(why),
        Ok(Err(_)) => stopping(),
        Err(_) => Error::retry("this process is too busy to attach the volume; see `freebs status`"),
    }
}
