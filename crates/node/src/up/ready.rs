//! From the start of the processes to volumes that can be used.

use super::GATEWAY;
use super::prepare::Prepared;
use crate::admin::Client;
use crate::cli::args::UpArgs;
use crate::timing;
use freebs_control::CreateVolume;
use freebs_control::api::{MemberState, Reply, Request, Status, VolumeState};
use freebs_control::rules::format_size;
use freebs_types::{ClusterId, Error, ErrorKind, Result};
use tokio::sync::mpsc;
use tokio::time::Instant;

const DEFAULT_VOLUME: (&str, u64) = ("demo", 10 << 30);

pub enum News {
    Note(String),
    /// What it still waits for.
    Missing(String),
    Ready(Box<Status>),
    /// It can't become ready as it was asked for.
    Failed(Error),
}

struct Waiter {
    addresses: Vec<String>,
    cluster: ClusterId,
    volumes: Vec<(String, u64)>,
    copies: Option<u8>,
    tell: mpsc::Sender<News>,
}

/// Creates what was asked for and waits until all volumes can be used.
pub fn wait(prepared: &Prepared, args: &UpArgs) -> mpsc::Receiver<News> {
    let (tell, news) = mpsc::channel(16);
    let mut volumes = args.volumes.clone();
    if volumes.is_empty() && !prepared.cluster.set_up {
        volumes.push((DEFAULT_VOLUME.0.into(), DEFAULT_VOLUME.1));
    }
    let waiter = Waiter {
        addresses: prepared.cluster.nodes.iter().map(|n| n.address.clone()).collect(),
        cluster: prepared.cluster.cluster,
        volumes,
        copies: args.copies,
        tell,
    };
    tokio::spawn(async move {
        let result = waiter.run().await;
        let _ = waiter.tell.send(result.map_or_else(News::Failed, |s| News::Ready(Box::new(s)))).await;
    });
    news
}

impl Waiter {
    async fn run(&self) -> Result<Status> {
        for (name, size) in &self.volumes {
            while let Err(e) = self.create(name, *size).await {
                if matches!(e.kind, ErrorKind::Invalid | ErrorKind::NoSpace | ErrorKind::Corrupt) {
                    return Err(e.at(format!("volume {name}")));
                }
                self.missing(e.to_string()).await;
            }
        }
        let mut usable: Option<Instant> = None;
        loop {
            match self.call(&Request::Status).await {
                Ok(Reply::Status(status)) => match lacking(&status) {
                    None => {
                        let down = status.nodes.iter().find(|n| n.state != "up");
                        let since = *usable.get_or_insert_with(Instant::now);
                        let Some(down) = down.filter(|_| since.elapsed() < timing::ALL_UP_MAX) else {
                            return Ok(status);
                        };
                        self.missing(format!("{} is not up yet", down.name)).await;
                    }
                    Some(what) => self.missing(what).await,
                },
                Ok(_) => self.missing("a node answered something else than its status".into()).await,
                Err(e) => self.missing(e.to_string()).await,
            }
        }
    }

    async fn missing(&self, what: String) {
        let _ = self.tell.try_send(News::Missing(what));
        tokio::time::sleep(timing::UP_LOOK).await;
    }

    async fn call(&self, request: &Request) -> Result<Reply> {
        let client = Client::connect_any(&self.addresses).await?;
        if client.welcome().cluster != self.cluster {
            return Err(Error::retry(format!("at {} is a node of another cluster", client.address())));
        }
        client.call(request, timing::CALL_MAX).await
    }

    async fn create(&self, name: &str, size: u64) -> Result<()> {
        match self.call(&Request::VolumeShow { name: name.into() }).await {
            Ok(Reply::Volume { volume, .. }) if volume.size != size => {
                let text = format!(
                    "note: volume {name} is there already and has {}; `freebs volume resize` makes it larger",
                    format_size(volume.size)
                );
                let _ = self.tell.send(News::Note(text)).await;
                return Ok(());
            }
            Ok(_) => return Ok(()),
            Err(e) if e.kind == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        let new = CreateVolume { name: name.into(), size, copies: self.copies, ..CreateVolume::default() };
        if let Reply::Volume { notes, .. } = self.call(&Request::VolumeCreate(new)).await? {
            for note in notes {
                let _ = self.tell.send(News::Note(format!("volume {name}: {note}"))).await;
            }
        }
        Ok(())
    }
}

/// What a status lacks to be called ready.
fn lacking(status: &Status) -> Option<String> {
    if let Some(v) = status.volumes.iter().find(|v| v.state == VolumeState::Paused) {
        let members = v.shards.iter().flat_map(|s| &s.members).filter(|m| m.state != MemberState::Active);
        let mut what: Vec<String> = members.map(|m| format!("{} is {}", m.node, m.state.name())).collect();
        what.sort();
        what.dedup();
        return Some(format!("volume {} can't be used yet: {}", v.name, what.join(", ")));
    }
    if !status.gateways.iter().any(|g| g.name == GATEWAY) {
        return Some("the gateway does not serve yet".into());
    }
    None
}
