//! `freebs up`: a whole cluster on one machine, each node and one gateway as a process of its own.
//!
//! Invariants: nothing it started outlives it (children ask the kernel for that, so also when it is killed); one
//! supervisor for a data directory; what dies comes back, unless it was stopped on purpose; and a child that can't
//! start is reported with its own words, never retried in silence.

mod child;
mod prepare;
mod ready;
pub mod socket;

use crate::cli::args::UpArgs;
use crate::cli::output::Output;
use crate::cli::signals::Stop;
use crate::files;
use crate::timing;
use child::{Child, Event, Spec};
use freebs_control::api::Status;
use freebs_types::{Error, ErrorKind, Result};
use prepare::Prepared;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Name of the gateway that runs beside the nodes.
const GATEWAY: &str = "gateway";
/// Less than this is not enough to begin with.
const NEARLY_FULL: u64 = 64 << 20;
/// Volumes whose URIs go on the `ready` line.
const URIS_MAX: usize = 8;

/// Runs until it is told to stop.
pub fn up(args: UpArgs, output: &Output) -> Result<ExitCode> {
    let prepared = match (prepare::prepare(&args, output), args.nodes) {
        (Err(e), Some(nodes)) if e.kind == ErrorKind::Busy => return grow(&args.data, nodes, e, output),
        (prepared, _) => prepared?,
    };
    crate::cli::block_on(async {
        let mut cluster = Cluster::start(prepared, &args, output)?;
        let result = cluster.run().await;
        cluster.shut_down().await;
        result
    })
}

/// Has the `freebs up` that runs on the data directory run so many nodes.
fn grow(data: &Path, nodes: u16, busy: Error, output: &Output) -> Result<ExitCode> {
    #[derive(Serialize)]
    struct Grown {
        nodes: u16,
    }
    socket::Supervisor::of_data(data).map_err(|_| busy)?.ask(&socket::Request::Grow { nodes })?;
    output.show(&Grown { nodes }, |g| {
        format!("the cluster in {} has {} nodes now; `freebs status` shows how they come up", data.display(), g.nodes)
    });
    Ok(ExitCode::SUCCESS)
}

struct Cluster<'a> {
    prepared: Prepared,
    restarts: bool,
    tell: mpsc::Sender<Event>,
    output: &'a Output,
    stop: Stop,
    nodes: Vec<Child>,
    gateway: Child,
    events: mpsc::Receiver<Event>,
    requests: mpsc::Receiver<socket::Asked>,
    ready: mpsc::Receiver<ready::News>,
    /// Children that failed again and again right after their start, before anything was ready.
    failing: BTreeSet<String>,
    is_ready: bool,
    begun: Instant,
}

impl<'a> Cluster<'a> {
    fn start(prepared: Prepared, args: &UpArgs, output: &'a Output) -> Result<Self> {
        let begun = Instant::now();
        let stop = Stop::new()?;
        let requests = socket::listen(&prepared.data, &prepared.addresses())?;
        let (tell, events) = mpsc::channel(64);
        let spawn = |spec: Spec| Child::start(spec, !args.no_restart, tell.clone());
        let nodes = prepared.node_specs()?.into_iter().map(spawn).collect();
        let gateway = spawn(prepared.gateway_spec()?);
        let ready = ready::wait(&prepared, args);
        Ok(Self {
            prepared,
            restarts: !args.no_restart,
            tell,
            output,
            stop,
            nodes,
            gateway,
            events,
            requests,
            ready,
            failing: BTreeSet::new(),
            is_ready: false,
            begun,
        })
    }

    async fn run(&mut self) -> Result<ExitCode> {
        let mut slow = tokio::time::interval_at(self.begun + timing::UP_FIRST_WORD, timing::UP_SLOW);
        let mut missing = String::from("the nodes do not answer");
        loop {
            tokio::select! {
                () = self.stop.wait() => return Ok(ExitCode::SUCCESS),
                Some(event) = self.events.recv() => self.on_event(event)?,
                Some(asked) = self.requests.recv() => self.on_request(asked),
                Some(news) = self.ready.recv(), if !self.is_ready => match news {
                    ready::News::Missing(what) => missing = what,
                    ready::News::Note(text) => self.output.note(&text),
                    ready::News::Failed(e) => return Err(e),
                    ready::News::Ready(status) => {
                        self.is_ready = true;
                        self.prepared.mark_set_up()?;
                        self.say_ready(&status);
                    }
                },
                _ = slow.tick(), if !self.is_ready => {
                    let logs = self.prepared.data.join("logs");
                    self.output.note(&format!("not ready yet: {missing} (logs: {})", logs.display()));
                }
            }
        }
    }

    fn on_event(&mut self, event: Event) -> Result<()> {
        self.output.note(&event.text);
        if !self.is_ready && event.keeps_failing {
            self.failing.insert(event.name.clone());
            // Without its first node a cluster is not founded.
            let founder = self.prepared.cluster.first();
            let is_founder = !self.prepared.cluster.set_up && event.name == founder.name;
            let nodes = self.failing.iter().filter(|n| *n != GATEWAY).count();
            let hopeless = event.name == GATEWAY || is_founder || nodes * 2 > self.nodes.len();
            if hopeless {
                // On a full disk its last words have found no room.
                let full = files::free_bytes(&self.prepared.data).is_some_and(|free| free < NEARLY_FULL);
                let hint = if full { "; the disk has no space left: free some, or choose another --data" } else { "" };
                return Err(Error::os(format!(
                    "{} can't run, so the cluster can't start; its log is {}{hint}",
                    event.name,
                    event.log.display()
                )));
            }
        }
        Ok(())
    }

    /// `freebs node start|stop`; answered when it is done, which others do not wait for.
    fn on_request(&mut self, asked: socket::Asked) {
        let name = match &asked.request {
            socket::Request::Start { node } | socket::Request::Stop { node } => node,
            socket::Request::Grow { nodes } => {
                let grown = self.grow(usize::from(*nodes));
                let _ = asked.answer.send(grown.map(|()| socket::Reply { pid: None, address: None }));
                return;
            }
        };
        let found = self.nodes.iter().chain(std::iter::once(&self.gateway)).find(|c| c.name() == name);
        let Some(child) = found.map(Child::handle) else {
            let names: Vec<&str> = self.nodes.iter().map(Child::name).collect();
            let text = format!("nothing here is called {name}; there are {} and {GATEWAY}", names.join(", "));
            let _ = asked.answer.send(Err(Error::not_found(text)));
            return;
        };
        tokio::spawn(async move {
            let result = match asked.request {
                socket::Request::Start { .. } => child.start().await.map(Some),
                // It hands its heads over itself.
                _ => child.stop().await.map(|()| None),
            };
            let reply = result.map(|pid| socket::Reply { pid, address: child.address.clone() });
            let _ = asked.answer.send(reply);
        });
    }

    fn grow(&mut self, nodes: usize) -> Result<()> {
        for spec in self.prepared.grow(nodes)? {
            self.output.note(&format!("{} comes to the cluster", spec.name));
            self.nodes.push(Child::start(spec, self.restarts, self.tell.clone()));
        }
        Ok(())
    }

    fn say_ready(&self, status: &Status) {
        #[derive(Serialize)]
        struct Volume {
            name: String,
            uri: String,
        }
        #[derive(Serialize)]
        struct Ready {
            seconds: f64,
            cluster: String,
            nbd: String,
            volumes: Vec<Volume>,
        }
        #[derive(Serialize)]
        struct Shown {
            ready: Ready,
        }
        let nbd = &self.prepared.nbd;
        let volume = |name: &String| Volume { name: name.clone(), uri: nbd.uri(name) };
        let shown = Shown {
            ready: Ready {
                seconds: (self.begun.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
                cluster: self.prepared.cluster.first().address.clone(),
                nbd: nbd.to_string(),
                volumes: status.volumes.iter().map(|v| volume(&v.name)).collect(),
            },
        };
        self.output.show(&shown, |s| {
            let r = &s.ready;
            let mut uris: Vec<String> = r.volumes.iter().take(URIS_MAX).map(|v| v.uri.clone()).collect();
            if r.volumes.len() > URIS_MAX {
                uris.push(format!("and {} more volumes", r.volumes.len() - URIS_MAX));
            }
            if uris.is_empty() {
                uris.push("no volume yet".into());
            }
            let mut text = format!("ready in {:.1} s: {}\n", r.seconds, uris.join(" "));
            text.push_str(&self.what_to_try(r.volumes.first().map(|v| v.uri.as_str())));
            text
        });
    }

    fn what_to_try(&self, uri: Option<&str>) -> String {
        let first = &self.prepared.cluster.first().address;
        let cluster =
            if first == crate::options::DEFAULT_CLUSTER { String::new() } else { format!(" --cluster {first}") };
        let data = if self.prepared.is_default_data {
            String::new()
        } else {
            format!(" --data {}", self.prepared.data.display())
        };
        let mut lines = vec![String::from("Try:")];
        if let Some(uri) = uri {
            // A URI with a socket has a question mark, which a shell would take for a pattern.
            let uri = if uri.contains('?') { format!("'{uri}'") } else { uri.to_owned() };
            lines.push(format!("  nbdinfo {uri}"));
            lines.push(format!("  nbdcopy image.raw {uri}"));
            lines.push(format!("  qemu-img convert -n -f qcow2 -O raw image.qcow2 {uri}"));
        }
        lines.push(format!("  freebs{cluster} status"));
        lines.push(format!("  freebs{cluster} volume create data --size 100G"));
        if let Some(last) = self.nodes.last().filter(|_| self.nodes.len() > 1) {
            lines.push(format!("  freebs node stop {}{data}", last.name()));
        }
        lines.push("Ctrl-C stops everything; the same command goes on with the data.".into());
        lines.join("\n") + "\n"
    }

    /// The gateway first, so that its clients' last writes still find the nodes; then the nodes together.
    async fn shut_down(&mut self) {
        let stop_all = async {
            self.gateway.shut_down().await;
            let mut closing = tokio::task::JoinSet::new();
            for node in &self.nodes {
                let handle = node.handle();
                closing.spawn(async move { handle.shut_down().await });
            }
            while closing.join_next().await.is_some() {}
        };
        tokio::select! {
            () = stop_all => {}
            () = self.stop.wait() => {
                self.output.note("told to stop again: killing what still runs");
                for child in self.nodes.iter().chain(std::iter::once(&self.gateway)) {
                    child.kill();
                }
            }
        }
        socket::remove(&self.prepared.data);
    }
}
