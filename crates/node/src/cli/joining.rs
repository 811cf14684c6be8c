//! `freebs cluster init|token` and `freebs node join`: clusters of nodes that join one after the other.
//!
//! Invariant: a data directory gets its cluster file last, so one that has it has all that a start needs; until then the
//! same command goes on where it was.

use super::asked::{connect, unexpected};
use super::output::Output;
use super::values::{DEFAULT_DATA, address, size, workers};
use crate::admin::Client;
use crate::cluster_file::{self, ClusterFile, ClusterNode};
use crate::files::DirLock;
use crate::identity;
use crate::options::{DEFAULT_CLUSTER, DEFAULT_DEVICE_BYTES, check_device, check_joined_listen, default_workers};
use crate::timing;
use clap::{Args, Subcommand};
use freebs_control::api::{JoinRequest, Reply, Request, Secret};
use freebs_control::rules;
use freebs_format::keys::{JoinToken, KeyOf};
use freebs_types::{ClusterId, Error, NodeId, Result, limits};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

const CLUSTER_HELP: &str = "\
Examples:
  freebs cluster init --data /srv/a --name a              a cluster, and its first node
  freebs node --data /srv/a                               runs it
  freebs cluster token                                    for one more node, good for an hour
  freebs node join 127.0.0.1:7400 --token T --data /srv/b --name b --listen 127.0.0.1:7401
  freebs node --data /srv/b                               runs that one";

const JOIN_HELP: &str = "\
Example:
  FREEBS_TOKEN=$(freebs cluster token) freebs node join 127.0.0.1:7400 --data /srv/b --name b --listen 127.0.0.1:7401
  freebs node --data /srv/b

Other users of the machine can see what is on a command line: FREEBS_TOKEN keeps the token from them.";

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make a cluster that nodes can join, and the data directory of its first node
    #[command(after_help = CLUSTER_HELP)]
    Init(InitArgs),
    /// Print a token with which one node can join the cluster
    #[command(after_help = CLUSTER_HELP)]
    Token(TokenArgs),
}

/// The shape of a node whose data directory is made.
#[derive(Debug, Args)]
pub struct NewNodeArgs {
    /// Its data directory, which is made, or is empty
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA)]
    pub data: PathBuf,

    /// Where it listens, and is reached by the others
    #[arg(long, value_name = "HOST:PORT", value_parser = address, default_value = DEFAULT_CLUSTER)]
    pub listen: SocketAddr,

    /// Workers: 1, 2, 4 or 8; fixed from now on [default: one for each core, up to 8]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<u16>,

    /// Largest size of its device, which grows as needed [default: 20G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_size: Option<u64>,

    /// Size of the segments of its device [default: 16M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_size: Option<u64>,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Name of the first node
    #[arg(long, default_value = "node1")]
    pub name: String,

    #[command(flatten)]
    pub node: NewNodeArgs,
}

#[derive(Debug, Args)]
pub struct TokenArgs {
    /// It is good for this time, 1s to 30days
    #[arg(long, value_name = "TIME", value_parser = expires, default_value = "1h")]
    pub expires: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = JOIN_HELP)]
pub struct JoinArgs {
    /// A node of the cluster
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// The token that `freebs cluster token` has printed
    #[arg(long, env = "FREEBS_TOKEN", hide_env_values = true)]
    pub token: String,

    /// Its name, of no other node of the cluster [default: that of this host]
    #[arg(long)]
    pub name: Option<String>,

    #[command(flatten)]
    pub node: NewNodeArgs,
}

fn expires(text: &str) -> Result<Duration, String> {
    let most = Duration::from_millis(freebs_control::limits::TOKEN_MS_MAX);
    match humantime::parse_duration(text) {
        Ok(time) if (Duration::from_secs(1)..=most).contains(&time) => Ok(time),
        Ok(_) => Err("from 1s to 30days".into()),
        Err(e) => Err(format!("{e}; write 10min, 1h or 2days")),
    }
}

#[derive(Serialize)]
struct Made {
    cluster: ClusterId,
    node: String,
    id: NodeId,
    data: PathBuf,
    address: String,
}

fn show(output: &Output, file: &ClusterFile, what: &str) {
    let node = file.first();
    let (name, id, address) = (node.name.clone(), node.id, node.address.clone());
    let made = Made { cluster: file.cluster, node: name, id, data: node.data.clone(), address };
    output.show(&made, |m| format!("{what}\n`freebs node --data {}` runs it", m.data.display()));
}

pub async fn cluster(command: ClusterCommand, cluster: &str, output: &Output) -> Result<ExitCode> {
    match command {
        ClusterCommand::Init(args) => init(args, output),
        ClusterCommand::Token(args) => token(&args, cluster, output).await,
    }
}

fn taken(data: &Path, file: &ClusterFile) -> Error {
    let node = file.first();
    Error::invalid(format!(
        "{} is the data directory of {}, of the cluster {}; choose another one with --data",
        data.display(),
        node.name,
        file.cluster
    ))
}

/// A node as its data directory begins.
fn new_node(args: &NewNodeArgs, id: NodeId, name: String) -> Result<ClusterNode> {
    rules::check_name("node", &name)?;
    let workers = args.workers.unwrap_or_else(default_workers);
    let (device, segment) = (args.device_size, args.segment_size);
    check_device(device.unwrap_or(DEFAULT_DEVICE_BYTES), segment.unwrap_or(limits::SEGMENT_BYTES), workers)?;
    check_joined_listen(args.listen)?;
    Ok(ClusterNode { id, name, address: args.listen.to_string(), data: args.data.clone(), workers })
}

/// Refuses a directory that is a node's already, or has something of one.
fn is_free(data: &Path) -> Result<()> {
    if let Some(file) = cluster_file::load(&data.join("cluster.json"))? {
        return Err(taken(data, &file));
    }
    let device = data.join("log-0.freebs");
    if device.symlink_metadata().is_ok() || crate::admin::seat_files::is_there(data) {
        return Err(Error::invalid(format!(
            "{} has data of a node, and no cluster file; choose another directory with --data",
            data.display()
        )));
    }
    Ok(())
}

fn init(args: InitArgs, output: &Output) -> Result<ExitCode> {
    let node = new_node(&args.node, NodeId(1), args.name)?;
    let data = &args.node.data;
    let _lock = DirLock::take(data, "lock")?;
    is_free(data)?;
    let mut file = cluster_file::begin(vec![node]);
    // Keys of an attempt that did not come to its end are of another cluster.
    identity::forget(data)?;
    file.authority = Some(identity::load_or_make(data, KeyOf::Authority, file.cluster)?.public());
    identity::load_or_make(data, KeyOf::Node, file.cluster)?;
    (file.device_size, file.segment_bytes) = (args.node.device_size, args.node.segment_size);
    cluster_file::save(&file, &data.join("cluster.json"))?;
    show(output, &file, &format!("the cluster {} begins with {}", file.cluster, file.first().name));
    Ok(ExitCode::SUCCESS)
}

#[derive(Serialize)]
struct ShownToken<'a> {
    token: &'a str,
    expires_ms: u64,
}

async fn token(args: &TokenArgs, cluster: &str, output: &Output) -> Result<ExitCode> {
    let valid_ms = args.expires.as_millis() as u64;
    let reply = connect(cluster).await?.call(&Request::TokenCreate { valid_ms }, timing::CALL_MAX).await?;
    let Reply::Token { token, expires_ms } = reply else { return Err(unexpected()) };
    output.show(&ShownToken { token: &token.0, expires_ms }, |t| t.token.to_owned());
    if !output.json {
        output.note(&format!("good for one node, until {}", rules::format_date(expires_ms)));
    }
    Ok(ExitCode::SUCCESS)
}

pub async fn join(args: JoinArgs, output: &Output) -> Result<ExitCode> {
    let token = JoinToken::parse(&args.token)?;
    let name = args.name.unwrap_or_else(crate::options::host_name);
    let mut node = new_node(&args.node, NodeId(0), name)?;
    let data = &args.node.data;
    let _lock = DirLock::take(data, "lock")?;
    is_free(data)?;
    let key = match identity::load_or_make(data, KeyOf::Node, token.cluster) {
        Ok(key) => key,
        // It is of a cluster that was never joined.
        Err(_) => {
            identity::forget(data)?;
            identity::load_or_make(data, KeyOf::Node, token.cluster)?
        }
    };
    let client = Client::connect(&args.address).await?;
    let there = client.welcome().cluster;
    if there != token.cluster {
        return Err(Error::invalid(format!(
            "the token is of the cluster {}, and the node at {} of {there}; name a node of that cluster",
            token.cluster, args.address
        )));
    }
    let request = JoinRequest {
        token: Secret(token.text()),
        identity: key.public(),
        name: node.name.clone(),
        address: node.address.clone(),
        workers: node.workers,
    };
    let reply = client.call(&Request::Join(request), timing::CALL_MAX).await?;
    let Reply::Joined(joined) = reply else { return Err(unexpected()) };
    node.id = joined.node;
    let mut file = ClusterFile::new(token.cluster, vec![node]);
    file.authority = Some(token.authority);
    file.peers = joined.peers;
    (file.device_size, file.segment_bytes) = (args.node.device_size, args.node.segment_size);
    cluster_file::save(&file, &data.join("cluster.json"))?;
    show(output, &file, &format!("{} has joined the cluster {}", file.first().name, file.cluster));
    Ok(ExitCode::SUCCESS)
}
