//! `freebs cluster token`: tokens that nodes join with are made, listed and revoked.

use super::asked::unexpected;
use super::output::{Output, table};
use crate::admin::Client;
use crate::conn;
use crate::timing;
use clap::Args;
use freebs_control::api::{Reply, Request, TokenStatus};
use freebs_control::rules;
use freebs_identity::Caller;
use freebs_types::{ClusterId, Error, ErrorKind, Result};
use serde::Serialize;
use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub const TOKEN_HELP: &str = "\
Examples:
  freebs cluster token                         for one more node, good for an hour
  freebs cluster token --expires 10min
  freebs cluster token --list                  those there are, and the nodes that came with them
  freebs cluster token --revoke 3f09bfde1643   ends one of them; `all` ends each that nobody used

A node that is being started is waited for, some seconds. Who has a token can join the cluster once.";

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// It is good for this time, 1s to 30days
    #[arg(long, value_name = "TIME", value_parser = expires, default_value = "1h")]
    pub expires: Duration,

    /// List tokens: those that are good, those that were used, and those that have ended
    #[arg(long, conflicts_with_all = ["expires", "revoke"])]
    pub list: bool,

    /// End the token whose number begins so, or all that nobody used
    #[arg(long, value_name = "PREFIX|all", conflicts_with = "expires")]
    pub revoke: Option<String>,
}

fn expires(text: &str) -> Result<Duration, String> {
    let most = Duration::from_millis(freebs_control::limits::TOKEN_MS_MAX);
    match humantime::parse_duration(text) {
        Ok(time) if (Duration::from_secs(1)..=most).contains(&time) => Ok(time),
        Ok(_) => Err("from 1s to 30days".into()),
        Err(e) => Err(format!("{e}; write 10min, 1h or 2days")),
    }
}

/// The addresses that a `HOST:PORT` stands for.
fn addresses(text: &str) -> Result<Vec<SocketAddr>> {
    let bad = || Error::invalid(format!("'{text}' is no address; write HOST:PORT, such as 127.0.0.1:7400"));
    let all: Vec<_> = text.to_socket_addrs().map_err(|_| bad())?.collect();
    if all.is_empty() { Err(bad()) } else { Ok(all) }
}

/// The same where all have to be of this machine: what is said there without TLS anybody on the way can read.
fn on_loopback(text: &str) -> Result<Vec<String>> {
    let all = addresses(text)?;
    match all.iter().find(|a| !a.ip().is_loopback()) {
        Some(far) => Err(Error::invalid(format!(
            "{far} is not on loopback, and this command speaks no TLS, so whoever is on the way could read the token; \
             name the data directory of a node on this machine with --as-node"
        ))),
        None => Ok(all.iter().map(ToString::to_string).collect()),
    }
}

/// A connection to the first of these nodes that answers: one that was just started does so after a while. Without TLS all
/// of them have to be on this machine.
async fn connect_here(cluster: &str, output: &Output) -> Result<Client> {
    let mut all = Vec::new();
    for text in cluster.split(',') {
        match conn::identity() {
            Some(_) => all.extend(addresses(text)?.iter().map(ToString::to_string)),
            None => all.extend(on_loopback(text)?),
        }
    }
    when_it_runs(cluster, output, async || Client::connect_any(&all).await).await
}

/// A connection to a node of the cluster whose authority the caller knows.
pub async fn connect_to_join(at: &str, caller: &Caller, cluster: ClusterId, output: &Output) -> Result<Client> {
    addresses(at)?;
    let is_none = |e: Error| match e.kind {
        ErrorKind::Invalid => {
            Error::invalid(format!("{e}; the token is of the cluster {cluster}: name a node of that cluster"))
        }
        _ => e,
    };
    when_it_runs(at, output, async || Client::connect_to_join(at, caller).await).await.map_err(is_none)
}

/// Connects to a node that may just be starting.
async fn when_it_runs(cluster: &str, output: &Output, connect: impl AsyncFn() -> Result<Client>) -> Result<Client> {
    let (begun, mut is_told) = (Instant::now(), false);
    loop {
        let e = match connect().await {
            Ok(client) => return Ok(client),
            Err(e) => e,
        };
        if e.kind == ErrorKind::Invalid {
            return Err(e);
        }
        if e.kind != ErrorKind::Retry || begun.elapsed() >= timing::NODE_BEGINS_MAX {
            return Err(Error {
                kind: e.kind,
                text: format!("{e}. Is the node running? `freebs node` runs it").into(),
            });
        }
        if !is_told {
            output.note(&format!("waiting for {cluster}: {e}"));
            is_told = true;
        }
        tokio::time::sleep(timing::NODE_BEGINS_LOOK).await;
    }
}

/// Asks a node of this cluster, as `ask_again`.
async fn ask(cluster: &str, request: &Request, output: &Output) -> Result<Reply> {
    ask_again(&connect_here(cluster, output).await?, request).await
}

/// Asks, and once more for each time that the node says it is not so far yet: another one is just beginning to lead.
pub async fn ask_again(client: &Client, request: &Request) -> Result<Reply> {
    let begun = Instant::now();
    loop {
        match client.call(request, timing::CALL_MAX).await {
            Err(e) if e.kind == ErrorKind::Retry && begun.elapsed() < timing::NODE_BEGINS_MAX => {
                tokio::time::sleep(timing::NODE_BEGINS_LOOK).await;
            }
            other => return other,
        }
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    token: &'a str,
    expires_ms: u64,
}

pub async fn run(args: &TokenArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    match &args.revoke {
        Some(of) => return revoke(of, cluster, output).await,
        None if args.list => list(cluster, output).await?,
        None => make(args, cluster, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn make(args: &TokenArgs, cluster: &str, output: &Output) -> Result<()> {
    let valid_ms = args.expires.as_millis() as u64;
    let reply = ask(cluster, &Request::TokenCreate { valid_ms }, output).await?;
    let Reply::Token { token, expires_ms } = reply else { return Err(unexpected()) };
    output.show(&Shown { token: &token.0, expires_ms }, |t| t.token.to_owned());
    if !output.json {
        output.note(&format!("good for one node, until {}", rules::format_date(expires_ms)));
    }
    Ok(())
}

async fn list(cluster: &str, output: &Output) -> Result<()> {
    #[derive(Serialize)]
    struct List {
        tokens: Vec<TokenStatus>,
    }
    let reply = ask(cluster, &Request::TokenList, output).await?;
    let Reply::Tokens { tokens } = reply else { return Err(unexpected()) };
    output.show(&List { tokens }, |l| text(&l.tokens, crate::events::now_ms()));
    Ok(())
}

fn text(tokens: &[TokenStatus], now_ms: u64) -> String {
    let rows = tokens.iter().map(|t| {
        let state = match &t.used_by {
            Some(node) => format!("used by {node}"),
            None if t.expires_ms <= now_ms => "ended".into(),
            None => "good".into(),
        };
        vec![t.id.clone(), rules::format_date(t.made_ms), rules::format_date(t.expires_ms), state]
    });
    match tokens.is_empty() {
        true => "no tokens".into(),
        false => table(&["TOKEN", "MADE", "ENDS", "STATE"], &[], rows.collect()),
    }
}

#[derive(Serialize)]
struct Revoked {
    revoked: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    used: Vec<TokenStatus>,
}

impl Revoked {
    fn text(&self) -> String {
        let mut lines = Vec::new();
        if !self.revoked.is_empty() {
            lines.push(format!("revoked {}", self.revoked.join(", ")));
        }
        for t in &self.used {
            let by = t.used_by.as_deref().unwrap_or("a node");
            lines.push(format!("{} was not revoked: {by} used it just now, and is a member of the cluster", t.id));
        }
        if lines.is_empty() { "there was no token that nobody used".into() } else { lines.join("\n") }
    }
}

async fn revoke(of: &str, cluster: &str, output: &Output) -> Result<ExitCode> {
    let reply = ask(cluster, &Request::TokenRevoke { of: of.to_owned() }, output).await?;
    let Reply::Revoked { tokens, used } = reply else { return Err(unexpected()) };
    let told = Revoked { revoked: tokens, used };
    output.show(&told, Revoked::text);
    Ok(if told.used.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_told_on_this_machine_alone() {
        for here in ["127.0.0.1:7400", "[::1]:5", "localhost:7400"] {
            assert!(on_loopback(here).is_ok_and(|all| !all.is_empty()), "{here}");
        }
        for far in ["0.0.0.0:7400", "192.0.2.1:7400", "[2001:db8::1]:7400"] {
            assert!(on_loopback(far).unwrap_err().text.contains("loopback"), "{far}");
        }
        assert!(on_loopback("here").unwrap_err().text.contains("HOST:PORT"));
    }

    fn token(id: &str, expires_ms: u64, used_by: Option<&str>) -> TokenStatus {
        TokenStatus { id: id.into(), made_ms: 0, expires_ms, used_by: used_by.map(Into::into) }
    }

    /// It said "revoked" of one that somebody had joined with meanwhile.
    #[test]
    fn what_was_not_revoked_is_said() {
        let revoked = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        let text = |ids: &[&str], used| Revoked { revoked: revoked(ids), used }.text();
        assert_eq!(text(&["aa", "bb"], vec![]), "revoked aa, bb");
        assert_eq!(text(&[], vec![]), "there was no token that nobody used");
        let both = text(&["aa"], vec![token("bb", 1, Some("stranger"))]);
        assert!(both.starts_with("revoked aa\nbb was not revoked: stranger used it"), "{both}");
        assert!(!text(&[], vec![token("bb", 1, Some("x"))]).starts_with("revoked"));
    }

    #[test]
    fn a_list_says_how_each_token_stands() {
        let all = [token("aa", 1000, None), token("bb", 3000, None), token("cc", 1000, Some("b"))];
        let told: Vec<String> =
            text(&all, 2000).lines().skip(1).map(|l| l.split_whitespace().last().unwrap().into()).collect();
        assert_eq!(told, ["ended", "good", "b"]);
        assert_eq!(text(&[], 0), "no tokens");
    }
}
