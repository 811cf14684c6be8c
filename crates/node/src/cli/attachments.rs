//! `freebs volume attach` and `freebs volume detach`: which process has a volume, before clients come and after they went.

use super::args::{AttachArgs, DetachArgs};
use super::asked::{held_by, show, unexpected};
use super::output::Output;
use crate::admin::Client;
use crate::gateway::asked::{Reply as Answer, Request as Asked, There};
use crate::options::host_name;
use crate::timing;
use freebs_control::api::{Reply, Request};
use freebs_types::{Error, ErrorKind, Generation, Result};
use serde::Serialize;
use std::process::ExitCode;

#[derive(Serialize)]
struct Attached {
    volume: String,
    gateway: String,
    host: String,
    generation: Generation,
    uri: String,
    taken_from: Option<String>,
}

pub async fn attach(client: &Client, args: AttachArgs, output: &Output) -> Result<ExitCode> {
    let AttachArgs { name, force, gateway } = args;
    let volume = show(client, &name).await?;
    let there = one_of(here(client).await?, gateway.as_deref())?;
    let gateway = there.me.name.clone();
    match ask(there, Asked::Attach { volume: volume.id, force }).await {
        Ok(Answer::Attached { generation, uri, taken_from }) => {
            let shown = Attached { volume: name, gateway, host: host_name(), generation, uri, taken_from };
            output.show(&shown, attached);
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => Err(unexpected()),
        Err(e) if e.kind == ErrorKind::Busy => Err(explain(client, &name, e).await),
        Err(e) => Err(e.at(gateway)),
    }
}

fn attached(a: &Attached) -> String {
    let Attached { volume, gateway, host, generation, uri, taken_from } = a;
    let mut text = format!("{volume} is attached by {gateway} on {host} (generation {generation}): {uri}\n");
    if let Some(old) = taken_from {
        text.push_str(&format!("it was taken from {old}, whose clients get errors until they connect anew\n"));
    }
    text
}

#[derive(Serialize)]
struct Detached {
    volume: String,
    /// `None` if nobody had it.
    detached_from: Option<String>,
    generation: Generation,
}

pub async fn detach(client: &Client, args: DetachArgs, output: &Output) -> Result<ExitCode> {
    let DetachArgs { name, force } = args;
    let volume = show(client, &name).await?;
    for there in here(client).await?.0 {
        let gateway = there.me.name.clone();
        match ask(there, Asked::Detach { volume: volume.id, force }).await {
            Ok(Answer::Detached { generation: Some(generation) }) => {
                return Ok(told(Detached { volume: name, detached_from: Some(gateway), generation }, output));
            }
            Ok(Answer::Detached { generation: None }) => {}
            Ok(_) => return Err(unexpected()),
            Err(e) => return Err(e.at(gateway)),
        }
    }
    let request = Request::VolumeDetach { name: name.clone(), force };
    match client.call(&request, timing::ATTACH_CALL_MAX).await {
        Ok(Reply::Detached { from, generation }) => {
            Ok(told(Detached { volume: name, detached_from: from, generation }, output))
        }
        Ok(_) => Err(unexpected()),
        Err(e) if e.kind == ErrorKind::Busy => Err(explain(client, &name, e).await),
        Err(e) => Err(e),
    }
}

fn told(shown: Detached, output: &Output) -> ExitCode {
    output.show(&shown, |d| match &d.detached_from {
        Some(from) => format!("{} is detached from {from}", d.volume),
        None => format!("{} is not attached", d.volume),
    });
    ExitCode::SUCCESS
}

/// Processes of this host that serve NBD for the cluster, and why others could not be asked.
async fn here(client: &Client) -> Result<(Vec<There>, Vec<Error>)> {
    let cluster = client.welcome().cluster;
    let found = tokio::task::spawn_blocking(move || There::all(cluster)).await;
    found.map_err(|e| Error::bug(format!("looking for gateways failed: {e}")))
}

async fn ask(there: There, request: Asked) -> Result<Answer> {
    let asked = tokio::task::spawn_blocking(move || there.ask(&request)).await;
    asked.map_err(|e| Error::bug(format!("asking a gateway failed: {e}")))?
}

/// The one that is meant: the one of that name, or the only one.
fn one_of((mut there, errors): (Vec<There>, Vec<Error>), name: Option<&str>) -> Result<There> {
    let names: Vec<String> = there.iter().map(|t| t.me.name.clone()).collect();
    if let Some(name) = name {
        there.retain(|t| t.me.name == name);
    }
    match (there.len(), name) {
        (1, _) => Ok(there.remove(0)),
        (0, Some(name)) if !names.is_empty() => Err(Error::not_found(format!(
            "nothing on this host that serves NBD for this cluster is called {name}; there is {}",
            names.join(", ")
        ))),
        (0, _) => {
            let why: String = errors.iter().map(|e| format!(" (one could not be asked: {e})")).collect();
            Err(Error::not_found(format!(
                "nothing on this host serves NBD for this cluster{why}; start `freebs gateway` here, or run this command \
                 on the host of the clients"
            )))
        }
        (_, None) => Err(Error::invalid(format!(
            "several processes on this host serve NBD for this cluster; say with --gateway which one is meant: {}",
            names.join(", ")
        ))),
        (_, Some(name)) => Err(Error::invalid(format!(
            "several processes on this host are called {name}; start them with another --name each"
        ))),
    }
}

/// The refusal in other words, with all that is known of the one who has the volume.
async fn explain(client: &Client, name: &str, e: Error) -> Error {
    match held_by(client, name).await {
        Some(held) => {
            Error::busy(format!("{held}; disconnect its clients there, or ask again with --force if that host is gone"))
        }
        None => e,
    }
}
