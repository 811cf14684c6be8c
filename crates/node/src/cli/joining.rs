//! `freebs cluster init` and `freebs node join`: clusters of nodes that join one after the other. And where the other commands
//! about clusters are brought to their rooms.
//!
//! Invariants: a data directory gets its cluster file last, so one that has it has all that a start needs; until then the
//! same command goes on where it was, also with another token: the cluster knows the key. A token is told only to a node
//! that the authority has certified which the token names.

use super::asked::unexpected;
use super::output::Output;
use super::rebalance::{self, RebalanceArgs};
use super::restart::{self, RestartArgs};
use super::tokens::{self, TokenArgs, ask_again, connect_to_join};
use super::values::{DEFAULT_DATA, address, size, workers};
use crate::admin::Client;
use crate::cluster_file::{self, ClusterFile, ClusterNode};
use crate::files::{self, DirLock};
use crate::identity;
use crate::options::{DEFAULT_CLUSTER, DEFAULT_DEVICE_BYTES, check_device, check_reachable, default_workers, resolve};
use clap::{Args, Subcommand};
use freebs_control::api::{JoinRequest, Joined, Reply, Request, Secret};
use freebs_control::rules;
use freebs_format::keys::{JoinToken, KeyOf};
use freebs_identity::{Caller, SigningKey, certify, check_own};
use freebs_types::{ClusterId, Error, NodeId, Result, limits};
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const CLUSTER_HELP: &str = "\
Examples:
  freebs cluster init --data /srv/a --name a              a cluster, and its first node
  freebs node --data /srv/a                               runs it
  (umask 077; freebs cluster token > t)                   for one more node, good for an hour; nobody else reads it
  freebs node join 127.0.0.1:7400 --token-file t --data /srv/b --name b --listen 127.0.0.1:7401
  freebs node --data /srv/b                               runs that one";

const JOIN_HELP: &str = "\
Example:
  FREEBS_TOKEN=$(freebs cluster token) freebs node join 127.0.0.1:7400 --data /srv/b --name b --listen 127.0.0.1:7401
  freebs node --data /srv/b

The token is in FREEBS_TOKEN, or in the file that --token-file names. Other users of the machine can see what is on a
command line, so it is never there.";

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Make a cluster that nodes can join, and the data directory of its first node
    #[command(after_help = CLUSTER_HELP)]
    Init(InitArgs),
    /// Print a token with which one node can join the cluster; list tokens, and revoke them
    #[command(after_help = tokens::TOKEN_HELP)]
    Token(TokenArgs),
    /// Start all nodes of a local cluster again, one after the other
    Restart(RestartArgs),
    /// Spread the heads of shards over the nodes
    Rebalance(RebalanceArgs),
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
#[command(after_help = JOIN_HELP)]
pub struct JoinArgs {
    /// A node of the cluster
    #[arg(value_name = "HOST:PORT")]
    pub address: String,

    /// File with the token that `freebs cluster token` has printed; `-` for standard input [default: FREEBS_TOKEN has it]
    #[arg(long, value_name = "FILE|-")]
    pub token_file: Option<PathBuf>,

    /// Its name, of no other node of the cluster [default: that of this host]
    #[arg(long)]
    pub name: Option<String>,

    #[command(flatten)]
    pub node: NewNodeArgs,
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

pub async fn cluster(command: ClusterCommand, named: Option<&str>, output: &Output) -> Result<ExitCode> {
    let cluster = named.unwrap_or(DEFAULT_CLUSTER);
    match command {
        ClusterCommand::Restart(args) => restart::run(args, named, output).await,
        ClusterCommand::Rebalance(args) => rebalance::run(&args, cluster, output).await,
        ClusterCommand::Init(args) => init(args, output),
        ClusterCommand::Token(args) => tokens::run(&args, cluster, output).await,
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
    check_reachable(args.listen)?;
    Ok(ClusterNode { id, name, address: args.listen.to_string(), data: args.data.clone(), workers })
}

/// Bytes of a file with a token: there may be blanks around it.
const TOKEN_FILE_BYTES_MAX: usize = 4096;

/// The token that a node joins with, which is never on the command line.
fn token(file: Option<&Path>) -> Result<JoinToken> {
    let text = match file {
        None => std::env::var("FREEBS_TOKEN").ok().filter(|t| !t.is_empty()).ok_or_else(|| {
            Error::invalid(
                "there is no token to join with; put the one that `freebs cluster token` prints into FREEBS_TOKEN, or \
                 into a file, and name that with --token-file",
            )
        })?,
        Some(path) => {
            let is_standard = path == Path::new("-");
            let path = if is_standard { Path::new("/dev/stdin") } else { path };
            let bytes = files::read_limited(path, TOKEN_FILE_BYTES_MAX)?;
            let bytes = bytes.ok_or_else(|| Error::not_found(format!("there is no file {}", path.display())))?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
    };
    JoinToken::parse(text.trim())
}

/// Files that may lie in a directory before a node is made there: an attempt before this one may have been cut off.
const MADE_BEFORE: [&str; 8] = [
    "lock",
    "up.lock",
    "cluster.json.tmp",
    "lost+found",
    "node-key.tmp",
    "authority-key.tmp",
    "node-certificate.tmp",
    "node-certificate",
];
const KEY: [&str; 1] = ["node-key"];

/// Refuses a directory that is a node's already, or has anything else in it.
fn is_free(data: &Path, more: &[&str]) -> Result<()> {
    if let Some(file) = cluster_file::load(&data.join("cluster.json"))? {
        return Err(taken(data, &file));
    }
    let failed = |e: &std::io::Error| files::os_error("read", data, e);
    if !more.contains(&KEY[0]) {
        identity::refuse_for_a_beginning(data)?;
    }
    for entry in std::fs::read_dir(data).map_err(|e| failed(&e))? {
        let name = entry.map_err(|e| failed(&e))?.file_name();
        let name = name.to_string_lossy();
        if !MADE_BEFORE.iter().chain(more).any(|n| *n == name) {
            return Err(Error::invalid(format!(
                "{} has files in it (such as {name}) and no cluster.json; choose a new or empty directory with --data, or \
                 put cluster.json back",
                data.display()
            )));
        }
    }
    Ok(())
}

/// The directory of a node that is to be made, free and this process's alone: `freebs up` may be told to use it, too. In one
/// that is not free nothing is left.
fn hold(data: &Path, more: &[&str]) -> Result<[DirLock; 2]> {
    if data.is_dir() {
        is_free(data, more)?;
    }
    let locks = [DirLock::take(data, "lock")?, DirLock::take(data, "up.lock")?];
    is_free(data, more)?;
    Ok(locks)
}

fn init(args: InitArgs, output: &Output) -> Result<ExitCode> {
    let node = new_node(&args.node, NodeId(1), args.name)?;
    let data = &args.node.data;
    let _locks = hold(data, &[])?;
    let mut file = cluster_file::begin(vec![node]);
    file.founds = true;
    let authority = identity::load_or_make(data, KeyOf::Authority, file.cluster)?;
    file.authority = Some(authority.public());
    let key = identity::load_or_make(data, KeyOf::Node, file.cluster)?.public();
    identity::save_certificate(data, &certify(&authority, file.cluster, NodeId(1), &key)?)?;
    (file.device_size, file.segment_bytes) = (args.node.device_size, args.node.segment_size);
    cluster_file::save(&file, &data.join("cluster.json"))?;
    show(output, &file, &format!("the cluster {} begins with {}", file.cluster, file.first().name));
    Ok(ExitCode::SUCCESS)
}

/// Refuses a place to listen at that only this machine reaches, of a cluster on others: they would look for the node on themselves.
fn check_seen_from(cluster: &str, listen: SocketAddr) -> Result<()> {
    let there = resolve(cluster)?;
    if there.ip().is_loopback() || !listen.ip().is_loopback() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the cluster is at {there}, and its nodes could not reach this one at {listen}; --listen names an address of this \
         machine that they reach"
    )))
}

/// The cluster file of a node that has joined and lost its certificate, which it can have again: it shows by its key who it is.
fn without_certificate(data: &Path, token: &JoinToken) -> Result<Option<ClusterFile>> {
    let file = cluster_file::load(&data.join("cluster.json"))?;
    let is_its_own = |f: &ClusterFile| (f.cluster, f.authority) == (token.cluster, Some(token.authority));
    Ok(file.filter(|f| is_its_own(f) && f.nodes.len() == 1 && !identity::has_certificate(data)))
}

/// Puts the certificate back that a member has lost. The token is spent.
async fn certify_again(address: &str, token: &JoinToken, file: &ClusterFile, output: &Output) -> Result<ExitCode> {
    let node = file.first();
    let _lock = DirLock::take(&node.data, "lock")?;
    let key = identity::node_key(&node.data, file.cluster)?;
    let joined = ask_to_join(&connect(address, token, output).await?, token, &key, node).await?;
    if joined.node != node.id {
        return Err(Error::invalid(format!(
            "the cluster knows the key as that of node {}, and {} is the directory of node {}",
            joined.node,
            node.data.display(),
            node.id
        )));
    }
    identity::save_certificate(&node.data, &identity::from_hex(&joined.certificate)?)?;
    show(output, file, &format!("{} has its certificate again", node.name));
    Ok(ExitCode::SUCCESS)
}

async fn connect(address: &str, token: &JoinToken, output: &Output) -> Result<Client> {
    let caller = Caller::to_join(token.cluster, &token.authority)?;
    connect_to_join(address, &caller, token.cluster, output).await
}

/// Asks a node of the cluster to take this one in, or to answer as it did before.
async fn ask_to_join(client: &Client, token: &JoinToken, key: &SigningKey, node: &ClusterNode) -> Result<Joined> {
    let mut request = JoinRequest {
        token: Secret(token.text()),
        identity: key.public(),
        name: node.name.clone(),
        address: node.address.clone(),
        workers: node.workers,
        member: Some(node.id).filter(|id| id.0 > 0),
        proof: Vec::new(),
    };
    request.proof = key.sign(&request.claim(token.hash()))?;
    let reply = ask_again(client, &Request::Join(request)).await?;
    let Reply::Joined(joined) = reply else { return Err(unexpected()) };
    let certificate = identity::from_hex(&joined.certificate)?;
    check_own(&certificate, token.cluster, &token.authority, joined.node, &key.public())
        .map_err(|e| e.at("the certificate that the cluster has answered"))?;
    Ok(joined)
}

pub async fn join(args: JoinArgs, output: &Output) -> Result<ExitCode> {
    let token = token(args.token_file.as_deref())?;
    if let Some(file) = without_certificate(&args.node.data, &token)? {
        return certify_again(&args.address, &token, &file, output).await;
    }
    let name = args.name.unwrap_or_else(crate::options::host_name);
    let mut node = new_node(&args.node, NodeId(0), name)?;
    check_seen_from(&args.address, args.node.listen)?;
    let data = &args.node.data;
    let _locks = hold(data, &KEY)?;
    let client = connect(&args.address, &token, output).await?;
    let key = identity::joining_key(data, token.cluster)?;
    let joined = ask_to_join(&client, &token, &key, &node).await?;
    node.id = joined.node;
    if joined.peers.iter().all(|p| p.id == node.id) {
        return Err(unexpected());
    }
    identity::save_certificate(data, &identity::from_hex(&joined.certificate)?)?;
    let mut file = ClusterFile::new(token.cluster, vec![node]);
    file.authority = Some(token.authority);
    file.peers = joined.peers;
    (file.device_size, file.segment_bytes) = (args.node.device_size, args.node.segment_size);
    cluster_file::save(&file, &data.join("cluster.json"))?;
    show(output, &file, &format!("{} has joined the cluster {}", file.first().name, file.cluster));
    Ok(ExitCode::SUCCESS)
}
