//! The words of the command line. Values are checked here as far as they can be without a cluster.

use super::clones::{CLONE_HELP, CloneArgs, FLATTEN_HELP, FlattenArgs};
use super::copies::MoveCopyArgs;
use super::drain::DrainArgs;
use super::image::args::{EXPORT_HELP, ExportArgs, IMPORT_HELP, ImportArgs};
use super::joining::{ClusterCommand, JoinArgs};
use super::place::PlaceArgs;
use super::remove::{RemoveArgs, ReplaceArgs};
use super::rollback::args::{REWIND_HELP, ROLLBACK_HELP, RewindArgs, RollbackArgs};
use super::snapshot::args::SnapshotCommand;
pub use super::values::DEFAULT_DATA;
use super::values::{ShapeArgs, address, size, span_or_off, volume_name, volume_size, workers};
use crate::options::{DEFAULT_NBD, NbdAddress};
use clap::{Args, Parser, Subcommand};
use freebs_control::events::EVENTS_PAGE_MAX;
use freebs_control::rules;
use freebs_lsvd::Options;
use freebs_types::ShardId;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  freebs up                                three nodes, a gateway and the volume 'demo' on this machine
  freebs status                            nodes, gateways and volumes
  freebs events --follow                   what happens, and why
  freebs volume create data --size 100G    another volume
  freebs volume import web disk.qcow2      a volume of a disk image
  freebs backup create demo /srv/backups   what has changed since the last one, in a directory or S3
  freebs snapshot create demo --name before-upgrade
  freebs volume clone demo@before-upgrade try
  freebs volume verify demo                do all replicas agree?
  freebs verify demo                       is its history the one that was written?

Sizes are powers of 1,024: 512M, 10G, 1T. Exit status: 0 done, 1 failed, 2 not understood.
FREEBS_LOG sets what is logged on standard error: error, warn, info, debug, trace, or a filter.";

/// A replicated, log-structured block store.
#[derive(Debug, Parser)]
#[command(name = "freebs", version, about, after_help = EXAMPLES)]
pub struct Cli {
    /// Answer in JSON, for programs
    #[arg(long, global = true)]
    pub json: bool,

    /// Any node of the cluster (several: separated by commas) [default: 127.0.0.1:7400]
    #[arg(long, global = true, env = "FREEBS_CLUSTER", value_name = "HOST:PORT", value_parser = cluster)]
    pub cluster: Option<String>,

    /// Speak TLS with nodes, with the key and certificate in the data directory of one on this machine
    #[arg(long, global = true, env = "FREEBS_AS_NODE", value_name = "DIR")]
    pub as_node: Option<PathBuf>,

    /// Speak plain with nodes on other machines, and let those without certificates listen there: nobody else reaches that network
    #[arg(long, global = true, env = "FREEBS_TRUSTED_NETWORK", value_parser = clap::builder::FalseyValueParser::new())]
    pub trusted_network: bool,

    #[command(subcommand)]
    pub command: Command,
}

const HISTORY_HELP: &str = "\
Examples:
  freebs volume history data
  freebs volume history data --json

For each shard the time and the version from which on all is kept, the versions since, and how many there were in a second on
the average; and the volume's snapshots. Whatever lies in between can be had with `freebs volume clone data --at TIME`,
`freebs snapshot create data --at TIME` or `freebs volume rewind data --to TIME`.";

const RETAIN_HELP: &str = "\
Examples:
  freebs volume retain data 24h
  freebs volume retain data off
  freebs snapshot create data --at 10min --name before       as it was ten minutes ago

Within this time nothing is really gone: blocks that are written anew or trimmed stay on the devices, and a snapshot can be
made of any moment, to a tenth of a second, or to the single update. It begins now; what was overwritten before is not there.
It takes the room of all that is written in that time. Made shorter, or off, it gives room back at once.";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine: nodes, a gateway, and a volume to begin with
    Up(UpArgs),
    /// Make a cluster that nodes can join, and tokens for them
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Run one node, let it join a cluster, or start and stop nodes of a local cluster
    Node(Box<NodeArgs>),
    /// Run one gateway: serves volumes by NBD, holds no data
    Gateway(GatewayArgs),
    /// Create, show and check volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Back volumes up to a directory or S3, and restore them
    #[command(subcommand)]
    Backup(super::backup::args::BackupCommand),
    /// Keep volumes as they are at an instant: create, list, delete and lock snapshots
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Audit a volume's history on every member: its hash chains, from the secrets that closed views published
    Verify(super::verify::VerifyArgs),
    /// Look at the device of a stopped node, check it, make its soft state again
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Make the control state again from the nodes' logs, after all copies of it were lost
    #[command(subcommand)]
    Control(ControlCommand),
    /// Show nodes, gateways and volumes
    Status,
    /// Show what happened, and why
    Events(EventsArgs),
    /// Check a configuration file, or print one with all keys
    #[command(subcommand, after_help = super::config::HELP)]
    Config(super::config::ConfigCommand),
    /// Print a completion script for a shell
    Completion { shell: clap_complete::Shell },
}

const EVENTS_HELP: &str = "\
Examples:
  freebs events                          the newest ones
  freebs events --follow                 and then each as it happens
  freebs events --volume demo --since 1h
  freebs events --json | jq 'select(.kind == \"head_moved\")'

Each node keeps some thousand events, in its data directory, too. In JSON each is an object on a line of its own.";

#[derive(Debug, Args)]
#[command(after_help = EVENTS_HELP)]
pub struct EventsArgs {
    /// Only of this volume
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,

    /// Only of this node: told by it, or about it
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,

    /// Not older than this: 90s, 10m, 2h, 3days
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Duration>,

    /// At most so many, the newest ones
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = limit)]
    pub limit: usize,

    /// Go on, until Ctrl-C
    #[arg(long)]
    pub follow: bool,
}

fn since(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|e| format!("{e}; write 90s, 10m or 2h"))
}

fn limit(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=EVENTS_PAGE_MAX).contains(&n) => Ok(n),
        _ => Err(format!("a number from 1 to {EVENTS_PAGE_MAX}")),
    }
}

const UP_HELP: &str = "\
Examples:
  freebs up
  freebs up --nodes 5 --data /srv/freebs --volume data:100G --volume logs:20G
  freebs up --nbd unix:/run/freebs.sock --no-restart

It prints one line beginning with 'ready' when volumes can be used, and runs until Ctrl-C. Started again on the same
data, it goes on with it. Size of devices, workers and segments are fixed at the first start. Nodes can become more: with --nodes on
the data of a cluster that runs, they come to it while it is in use.";

#[derive(Debug, Args)]
#[command(after_help = UP_HELP)]
pub struct UpArgs {
    /// Nodes to run, as many as before or more [default: 3, or as before]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: Option<u16>,

    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DATA)]
    pub data: PathBuf,

    /// Largest size of each node's device, which grows as needed [default: 20G, or as before]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_size: Option<u64>,

    /// Where the first node listens; the others take the ports behind it [default: 127.0.0.1:7400, or as before]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,

    /// Where the gateway serves NBD: HOST:PORT on loopback, or unix:PATH
    #[arg(long, value_name = "ADDR", value_parser = nbd, default_value = DEFAULT_NBD)]
    pub nbd: NbdAddress,

    /// Volumes to create if they are not there [default at the first start: demo:10G]
    #[arg(long = "volume", value_name = "NAME:SIZE", value_parser = volume_spec)]
    pub volumes: Vec<(String, u64)>,

    /// Copies of volumes that are created [default: 3, or as many as there are nodes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=7))]
    pub copies: Option<u8>,

    /// Leave down what dies
    #[arg(long)]
    pub no_restart: bool,

    /// That of the whole command line.
    #[arg(skip)]
    pub trusted_network: bool,

    /// Workers of each node: 1, 2, 4 or 8 [default: 1, or as before]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<u16>,

    /// Size of the segments of devices [default: 16M, or as before]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_size: Option<u64>,

    /// Memory of each node for its maps of what is where, 16M to 1T; what does not fit lies on the device
    #[arg(long, value_name = "SIZE", env = "FREEBS_MAP_CACHE", value_parser = map_cache, default_value = MAP_CACHE)]
    pub map_cache: u64,

    /// A node that is away for so long is replaced: others take its places in chains, if there are any to spare, and
    /// learn what it had. The same for all nodes, 2s to 1000days
    #[arg(long, value_name = "TIME", env = "FREEBS_REPLACE_AFTER", value_parser = replace_after, default_value = REPLACE_AFTER)]
    pub replace_after: Duration,
}

const NODE_HELP: &str = "\
Examples:
  freebs node --data /srv/freebs                       a cluster of one node, or the one whose directory that is
  freebs node --cluster-file cluster.json --name b     one of several; the first one founds the cluster
  freebs node stop node2                               stops a node of the cluster that `freebs up` runs here
  freebs node stop node2 --cluster 127.0.0.1:9000      the same, of the one that has a node at this address

A cluster file: {\"version\": 1, \"cluster\": \"<32 hexadecimal digits>\", \"nodes\":
  [{\"id\": 1, \"name\": \"a\", \"address\": \"127.0.0.1:7400\", \"data\": \"/srv/a\", \"workers\": 1}, …]}";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = NODE_HELP)]
pub struct NodeArgs {
    #[command(subcommand)]
    pub command: Option<NodeCommand>,

    #[command(flatten)]
    pub run: NodeRunArgs,
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Make the data directory of a node that joins a cluster
    Join(JoinArgs),
    /// Have others take the places of a node, so that it can be taken away
    Drain(DrainArgs),
    /// Say in which zone a node is, and how much of its room counts
    Set(PlaceArgs),
    /// Take a node that was emptied out of the cluster for good
    Remove(RemoveArgs),
    /// Have one node take the places of another one, which is removed then
    Replace(ReplaceArgs),
    /// Start a node of a local cluster again
    Start(SwitchArgs),
    /// Stop a node of a local cluster, and leave it down; other nodes take over its heads first
    Stop(SwitchArgs),
}

impl Command {
    /// False for those that ask no node of a cluster as one of its own: a node speaks as itself, nodes of `freebs up` have no
    /// certificates, and who makes a data directory has none yet.
    #[must_use]
    pub fn asks_nodes(&self) -> bool {
        match self {
            Self::Up(_) | Self::Device(_) | Self::Config(_) | Self::Completion { .. } => false,
            Self::Node(n) => !matches!(n.command, None | Some(NodeCommand::Join(_))),
            Self::Cluster(c) => !matches!(c, ClusterCommand::Init(_)),
            _ => true,
        }
    }
}

#[derive(Debug, Args)]
pub struct SwitchArgs {
    /// Its name, as `freebs status` shows it
    pub name: String,

    /// The data directory of the `freebs up` that runs it [default: the one that runs a node at the --cluster address,
    /// else that of ./freebs-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct NodeRunArgs {
    /// A file with options, which count where they are not given here; see `freebs config --help`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Its name in the cluster file [default: node1 in a cluster of its own]
    #[arg(long)]
    pub name: Option<String>,

    /// Its id in the cluster file, in place of the name
    #[arg(long, conflicts_with = "name")]
    pub id: Option<u64>,

    /// Its data directory [default: as in the cluster file, else ./freebs-data]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// The cluster's members [default: cluster.json in the data directory, made if it is not there]
    #[arg(long, value_name = "FILE")]
    pub cluster_file: Option<PathBuf>,

    /// Where it listens [default: its address in the cluster file, else 127.0.0.1:7400]
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,

    /// Serve NBD, too, at this address: HOST:PORT on loopback, or unix:PATH
    #[arg(long, value_name = "ADDR", value_parser = nbd)]
    pub nbd: Option<NbdAddress>,

    /// A client that asks for a volume that can't be used now is told why after this time, 1s to 1000days. Clients that
    /// can't try again, of virtual machines that start with the cluster for one, want more
    #[arg(long, value_name = "TIME", env = "FREEBS_ATTACH_WAIT", value_parser = attach_wait, default_value = ATTACH_WAIT)]
    pub attach_wait: Duration,

    /// Largest size of its device, which grows as needed [default: as in the cluster file, else 20G]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub device_size: Option<u64>,

    /// Workers: 1, 2, 4 or 8; fixed when the device is made [default: one for each core, up to 8]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<u16>,

    /// Size of the segments of its device [default: as in the cluster file, else 16M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_size: Option<u64>,

    /// That of the whole command line.
    #[arg(skip)]
    pub trusted_network: bool,

    /// Microseconds that a worker with little to do looks for more before it sleeps: less delay for more processor
    /// time, at most 1000; 0 is never
    #[arg(long, value_name = "MICROSECONDS", env = "FREEBS_BUSY_POLL", value_parser = busy_poll, default_value = BUSY_POLL)]
    pub busy_poll: Duration,

    /// Bytes of its device a second that are read to look for damage, which is mended from other copies; 0 is never
    #[arg(long, value_name = "SIZE", env = "FREEBS_SCRUB_RATE", value_parser = scrub_rate, default_value = SCRUB_RATE)]
    pub scrub_rate: u64,

    /// Memory of this node for its maps of what is where, 16M to 1T; what does not fit lies on the device
    #[arg(long, value_name = "SIZE", env = "FREEBS_MAP_CACHE", value_parser = map_cache, default_value = MAP_CACHE)]
    pub map_cache: u64,

    /// A node that is away for so long is replaced: others take its places in chains, if there are any to spare, and
    /// learn what it had. The same for all nodes, 2s to 1000days
    #[arg(long, value_name = "TIME", env = "FREEBS_REPLACE_AFTER", value_parser = replace_after, default_value = REPLACE_AFTER)]
    pub replace_after: Duration,
}

const GATEWAY_HELP: &str = "\
Examples:
  freebs gateway
  freebs gateway --cluster 127.0.0.1:7400,127.0.0.1:7401 --nbd unix:/run/freebs.sock";

#[derive(Debug, Args)]
#[command(after_help = GATEWAY_HELP)]
pub struct GatewayArgs {
    /// A file with options, which count where they are not given here; see `freebs config --help`
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Its name in `freebs status`
    #[arg(long, default_value = "gateway", value_parser = gateway_name)]
    pub name: String,

    /// Where it serves NBD: HOST:PORT on loopback, or unix:PATH
    #[arg(long, value_name = "ADDR", value_parser = nbd, default_value = DEFAULT_NBD)]
    pub nbd: NbdAddress,

    /// A client that asks for a volume that can't be used now is told why after this time, 1s to 1000days. Clients that
    /// can't try again, of virtual machines that start with the cluster for one, want more
    #[arg(long, value_name = "TIME", env = "FREEBS_ATTACH_WAIT", value_parser = attach_wait, default_value = ATTACH_WAIT)]
    pub attach_wait: Duration,

    /// Under which it has volumes attached; the same one takes them up again [default: this machine's id and the name]
    #[arg(long, value_name = "TEXT")]
    pub identity: Option<String>,

    /// Microseconds that a worker with little to do looks for more before it sleeps: less delay for more processor
    /// time, at most 1000; 0 is never
    #[arg(long, value_name = "MICROSECONDS", env = "FREEBS_BUSY_POLL", value_parser = busy_poll, default_value = BUSY_POLL)]
    pub busy_poll: Duration,

    /// Refuse any cluster but this one
    #[arg(long, value_name = "ID", hide = true)]
    pub cluster_id: Option<freebs_types::ClusterId>,
}

const CREATE_HELP: &str = "\
Examples:
  freebs volume create data --size 100G
  freebs volume create scratch --size 20G --copies 1
  freebs volume create wide --size 1T --shards 8 --stripe 4M";

const ATTACH_HELP: &str = "\
Examples:
  freebs volume attach data                       this host's gateway has it, before a client connects
  freebs volume attach data --force               the same, although another host has it, which gets errors from then on
  freebs volume attach data --gateway gateway2    one of several on this host

A volume is attached when a client connects, and given back when the last one leaves. Attached by this command it stays
so until `freebs volume detach`, or until the gateway stops. With --force whoever had it can't answer its clients any more
once the command is done: all that it had answered is there, and what it had not may be there or not.";

const DETACH_HELP: &str = "\
Examples:
  freebs volume detach data            gives back what this host has
  freebs volume detach data --force    also while clients use it, and from any other host

A client that connects anew attaches the volume again, on whatever host. To have it on another host, attach it there.
From a host that has been gone for some seconds a volume can be detached without --force.";
const RECOVER_HELP: &str = "\
Examples:
  freebs volume recover data                 what is left, what may be lost, and what has to be back so that nothing is
  freebs volume recover data --accept-loss 5f3e01aa
                                             go on without what is lost, as it was shown under this word

A volume stands still when so many members of a shard are away that nobody can tell what was answered. As long as they
may come back, start them: nothing is lost then. If they are lost for good, stop them first, so that none of them goes on
answering somebody; then --accept-loss, with the word that names what was shown, goes on from the best copy that is left.
If anything of that is another by now (a member that was lost answers, or one that was there does not), nothing is decided,
and it is shown how it is. What only the lost members had is lost,
the volume is as it was at an earlier moment, and whoever has it attached gets errors and attaches anew. A lost member
that turns up later is a new one: copy its devices before it is started if what it has is wanted. Where all that was
answered is left, and only members are missing, nothing is lost, and others take the places of the lost. Shards that go
on by themselves are left alone.

Exit status: 0 the volume goes on; 1 it can't, or nothing needs recovery; 3 nothing was changed, and it can go on with
--accept-loss.";

#[derive(Debug, Args)]
pub struct RecoverArgs {
    pub name: String,

    /// The lost members are lost for good: go on without what only they had, as it was shown under this word
    #[arg(long, value_name = "WORD")]
    pub accept_loss: Option<String>,

    /// Return when it is decided, not when the volume can be used
    #[arg(long)]
    pub no_wait: bool,
}

#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume
    #[command(after_help = CREATE_HELP)]
    Create(CreateArgs),
    /// Make a volume of a snapshot: at once, and without copying
    #[command(after_help = CLONE_HELP)]
    Clone(CloneArgs),
    /// Give a volume back what it had in a snapshot
    #[command(after_help = ROLLBACK_HELP)]
    Rollback(RollbackArgs),
    /// Give a volume back what it had at a moment of the past that it keeps
    #[command(after_help = REWIND_HELP)]
    Rewind(RewindArgs),
    /// Let a clone have all that it reads from the volume that it was cloned from as its own
    #[command(after_help = FLATTEN_HELP)]
    Flatten(FlattenArgs),
    /// List all volumes
    List,
    /// Show one volume with its shards and replicas
    Show { name: String },
    /// Make a volume larger
    Resize {
        name: String,
        /// The new size
        #[arg(long, value_name = "SIZE", value_parser = volume_size)]
        size: u64,
    },
    /// Attach a volume to this host's gateway before a client connects, or take it from another host
    #[command(after_help = ATTACH_HELP)]
    Attach(AttachArgs),
    /// Give a volume back that this host has attached, or take it from another host that has it
    #[command(after_help = DETACH_HELP)]
    Detach(DetachArgs),
    /// Make another member the head of a volume's shards; clients go on meanwhile
    MoveHead {
        name: String,
        /// Name of the node
        node: String,
        /// Only this shard [default: all that the node has a replica of]
        #[arg(long, value_name = "N")]
        shard: Option<u32>,
    },
    /// Move a copy of a shard to another node; clients go on meanwhile
    MoveCopy(MoveCopyArgs),
    /// Make a volume of a disk image, or fill one with it
    #[command(after_help = IMPORT_HELP)]
    Import(ImportArgs),
    /// Write a volume into a file, as a disk image
    #[command(after_help = EXPORT_HELP)]
    Export(ExportArgs),
    /// Show how far a volume's past reaches back, and what marks it
    #[command(after_help = HISTORY_HELP)]
    History { name: String },
    /// Keep so much of a volume's past, version by version, or nothing of it
    #[command(after_help = RETAIN_HELP)]
    Retain {
        name: String,
        /// 1s to 35days, or off
        #[arg(value_name = "TIME|off", value_parser = span_or_off)]
        time: u64,
    },
    /// Give a volume another name; whoever uses it goes on
    Rename {
        name: String,
        /// The new name
        #[arg(value_parser = volume_name)]
        to: String,
    },
    /// Delete a volume with all its data
    Delete {
        name: String,
        /// Also while it is attached
        #[arg(long)]
        force: bool,
        /// Also if it has snapshots, which go with it
        #[arg(long)]
        with_snapshots: bool,
    },
    /// Read all replicas of a volume and compare them; exit status 1 if they do not agree
    Verify {
        name: String,
        /// How long to wait for replicas that are missing or being written, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        wait: u32,
    },
    /// Go on without members that are lost for good, from the best copy that is left
    #[command(after_help = RECOVER_HELP)]
    Recover(RecoverArgs),
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    pub name: String,

    /// Also if another host has it, and is there
    #[arg(long)]
    pub force: bool,

    /// The gateway of this host, or the node of this host that serves NBD [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub gateway: Option<String>,
}

#[derive(Debug, Args)]
pub struct DetachArgs {
    pub name: String,

    /// Also while clients use it, and if another host has it
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// 1 to 128 letters, digits, '.', '_', '-'
    #[arg(value_parser = volume_name)]
    pub name: String,

    /// Its size, a multiple of 512 bytes
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    pub size: u64,

    #[command(flatten)]
    pub shape: ShapeArgs,

    /// Return at once, not when the volume can be used
    #[arg(long)]
    pub no_wait: bool,
}

const INSPECT_HELP: &str = "\
Examples:
  freebs device inspect freebs-data/node1/log-0.freebs
  freebs device inspect /dev/sdb --segments
  freebs device inspect log-0.freebs --shard 1.0 --frames

Nothing is written, and no start is counted. It reads what a starting node reads; `verify` reads everything.";

const VERIFY_HELP: &str = "\
Examples:
  freebs device verify freebs-data/node1/log-0.freebs
  freebs device verify log-0.freebs --json | jq '.damage[] | select(.lost)'

Reads the whole device: both superblocks, every append, frame, hash and index, every block. Nothing is written.
Exit status 1 if anything is damaged.";

const REBUILD_HELP: &str = "\
Examples:
  freebs device rebuild freebs-data/node1/log-0.freebs           what would be done
  freebs device rebuild freebs-data/node1/log-0.freebs --write   do it

Soft state is what the log says anyway: for now, the indexes of closed segments, without which a start is slow.
Damaged segments are left alone. Exit status 1 if something can't be rebuilt.";

const DEVICE_RECOVER_HELP: &str = "\
Examples:
  freebs device recover my.disk                  what is lost, or may be
  freebs device recover my.disk --accept-loss    go on without it

For a log that is the only copy, as that of a disk of the library. A node asks the other members for what its log has
lost, so there is nothing to be done there; a volume without others goes on with `freebs volume recover`.
Exit status 0: nothing is lost, or it was accepted. 3: nothing was changed, and it can go on with --accept-loss.";

#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Show whose it is, its shards, segments and frames, and how much is live
    #[command(after_help = INSPECT_HELP)]
    Inspect(InspectArgs),
    /// Hold everything against its checksums and hashes, and say what is lost
    #[command(after_help = VERIFY_HELP)]
    Verify {
        /// The device: a file, or a block device
        path: PathBuf,

        /// Show only what concerns this shard
        #[arg(long, value_name = "VOLUME.INDEX", value_parser = shard)]
        shard: Option<ShardId>,
    },
    /// Make soft state again from the log alone
    #[command(after_help = REBUILD_HELP)]
    Rebuild {
        /// The device: a file, or a block device
        path: PathBuf,

        /// Write it; without this, only say what would be done
        #[arg(long)]
        write: bool,
    },
    /// Say what damage has taken from the only copy of something, and go on without it
    #[command(after_help = DEVICE_RECOVER_HELP)]
    Recover {
        /// The device: a file, or a block device
        path: PathBuf,

        /// Take what is lost for lost, for good; without this, only say what it is
        #[arg(long)]
        accept_loss: bool,
    },
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The device: a file, or a block device
    pub path: PathBuf,

    /// List its segments
    #[arg(long)]
    pub segments: bool,

    /// Show only this shard, with its chunks
    #[arg(long, value_name = "VOLUME.INDEX", value_parser = shard)]
    pub shard: Option<ShardId>,

    /// List the frames in the log first; in JSON, one object on a line for each
    #[arg(long)]
    pub frames: bool,
}

const SURVEY_HELP: &str = "\
Examples:
  freebs control survey --cluster-file cluster.json --name c > c.json

It prints JSON for `freebs control rebuild --survey`. Nothing is written but what --put-aside renames.";

const CONTROL_REBUILD_HELP: &str = "\
Examples:
  freebs control rebuild                                     what would come back of the `freebs up` in this directory
  freebs control rebuild --write                             bring it back
  freebs control rebuild --cluster-file cluster.json --survey b.json --without c --write

Which nodes and volumes there are is replicated in up to five nodes. If all of these, or most of them, have lost it,
the nodes' logs still know it. Stop all nodes; what is on other machines comes from `freebs control survey` there.
Volumes come back with their data; attachments don't, clients attach anew. A volume of which the logs that were looked
at do not say for certain what its newest data are is left out, and said; its data stay where they are. Where only
certain nodes can have later data, these are named: add their logs. If what they have is lost for good, --accept-loss
NODE, once for each, brings the volume back as of before. Don't start such a node with its old devices then.
Exit status 1 if a volume is left out.";

/// Where `freebs up` keeps its cluster file unless told otherwise.
const DEFAULT_CLUSTER_FILE: &str = "./freebs-data/cluster.json";

#[derive(Debug, Subcommand)]
pub enum ControlCommand {
    /// Print what the logs of a stopped node know
    #[command(after_help = SURVEY_HELP)]
    Survey(ControlSurveyArgs),
    /// Make the control state again; without --write, say what would come back
    #[command(after_help = CONTROL_REBUILD_HELP)]
    Rebuild(ControlRebuildArgs),
}

#[derive(Debug, Args)]
pub struct ControlSurveyArgs {
    /// The cluster's members
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CLUSTER_FILE)]
    pub cluster_file: PathBuf,

    /// The node's name in the cluster file
    #[arg(long)]
    pub name: String,

    /// Its data directory [default: as in the cluster file]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,

    /// Rename what it has of a control state, so that it begins with what is made again
    #[arg(long)]
    pub put_aside: bool,
}

#[derive(Debug, Args)]
pub struct ControlRebuildArgs {
    /// The cluster's members
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CLUSTER_FILE)]
    pub cluster_file: PathBuf,

    /// What `freebs control survey` printed on another machine, once for each of its nodes
    #[arg(long = "survey", value_name = "FILE")]
    pub surveys: Vec<PathBuf>,

    /// A node that is lost, by its name
    #[arg(long, value_name = "NODE")]
    pub without: Vec<String>,

    /// Go on although this node may have later data than all that is seen, which are lost then
    #[arg(long, value_name = "NODE")]
    pub accept_loss: Vec<String>,

    /// The control states that nodes still have are of no use: rename them
    #[arg(long)]
    pub put_aside: bool,

    /// Write it; without this, only say what would come back
    #[arg(long)]
    pub write: bool,
}

fn gateway_name(text: &str) -> Result<String, String> {
    rules::check_name("gateway", text).map(|()| text.to_owned()).map_err(|e| e.to_string())
}

/// Addresses of nodes, separated by commas.
fn cluster(text: &str) -> Result<String, String> {
    let addresses = text.split(',').map(str::trim).filter(|a| !a.is_empty());
    let checked = addresses.map(|a| rules::check_node("x", a, 1).map(|()| a)).collect::<Result<Vec<_>, _>>();
    match checked {
        Ok(all) if all.is_empty() => Err("it names no node; write HOST:PORT".into()),
        Ok(all) => Ok(all.join(",")),
        Err(e) => Err(e.to_string()),
    }
}

fn nbd(text: &str) -> Result<NbdAddress, String> {
    NbdAddress::parse(text).map_err(|e| e.to_string())
}

/// The window of busy polling that is used if nothing is said, in microseconds.
const BUSY_POLL: &str = "200";

fn busy_poll(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(n) if n <= 1000 => Ok(Duration::from_micros(n)),
        _ => Err(format!("'{text}' is no number of microseconds from 0 to 1000")),
    }
}

/// What the scrub reads a second if nothing is said: 20 GiB in three quarters of an hour.
const SCRUB_RATE: &str = "8M";

fn scrub_rate(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { size(text) }
}

/// What a node has for its maps if nothing is said; see `freebs_lsvd::Options::NODE_MAP_BYTES`.
const MAP_CACHE: &str = "256M";

fn map_cache(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    Options::check_map_bytes(bytes).map(|()| bytes).map_err(|e| e.to_string())
}

/// How long a node may be away if nothing is said: a restart, or a repair on the spot, costs nobody a copy of all that
/// it has (END section 3.4).
const REPLACE_AFTER: &str = "10m";

fn replace_after(text: &str) -> Result<Duration, String> {
    let time = since(text)?;
    let range = Duration::from_secs(2)..=Duration::from_secs(1000 * 86_400);
    if range.contains(&time) { Ok(time) } else { Err("a time from 2s to 1000days".into()) }
}

/// How long a client waits for its volume if nothing is said: longer than a head is replaced, or the lease of a host
/// that is gone ends; short for somebody who sits before it.
const ATTACH_WAIT: &str = "5s";

fn attach_wait(text: &str) -> Result<Duration, String> {
    let time = since(text)?;
    let range = Duration::from_secs(1)..=Duration::from_secs(1000 * 86_400);
    if range.contains(&time) { Ok(time) } else { Err("a time from 1s to 1000days".into()) }
}

/// A shard as `freebs volume show` and `freebs device inspect` write it.
fn shard(text: &str) -> Result<ShardId, String> {
    let parsed = text.split_once('.').and_then(|(v, i)| Some(ShardId::new(v.parse().ok()?, i.parse().ok()?)));
    parsed.ok_or_else(|| format!("'{text}' is no shard; write VOLUME.INDEX, such as 1.0"))
}

fn volume_spec(text: &str) -> Result<(String, u64), String> {
    let (name, bytes) = text.split_once(':').ok_or("write NAME:SIZE, such as demo:10G")?;
    rules::check_name("volume", name).map_err(|e| e.to_string())?;
    Ok((name.into(), volume_size(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::{Past, Version};

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("freebs").chain(line.split_whitespace()))
    }

    fn refused(line: &str) -> String {
        let e = parse(line).unwrap_err();
        assert_eq!(e.exit_code(), 2, "{line}");
        e.to_string()
    }

    #[test]
    fn up_with_everything_and_nothing() {
        let Command::Up(a) = parse("up").unwrap().command else { panic!("up") };
        assert_eq!((a.nodes, a.device_size, a.listen, a.workers), (None, None, None, None));
        assert_eq!(a.data, PathBuf::from("./freebs-data"));
        assert_eq!(a.nbd.to_string(), "127.0.0.1:10809");
        let line = "up --nodes 5 --data /d --device-size 2G --listen 127.0.0.1:9000 --nbd unix:/tmp/s \
                    --volume a:1G --volume b:512M --copies 2 --no-restart --workers 2 --segment-size 1M --json";
        let cli = parse(line).unwrap();
        assert!(cli.json);
        let Command::Up(a) = cli.command else { panic!("up") };
        assert_eq!(a.volumes, [("a".to_string(), 1 << 30), ("b".to_string(), 512 << 20)]);
        assert_eq!((a.nodes, a.device_size, a.copies, a.no_restart), (Some(5), Some(2 << 30), Some(2), true));
        assert_eq!(a.nbd, NbdAddress::Unix("/tmp/s".into()));
    }

    #[test]
    fn bad_values_are_usage_errors_that_say_the_way_out() {
        assert!(refused("up --volume demo").contains("NAME:SIZE"));
        assert!(refused("up --volume=-x:1G").contains("data-1"));
        assert!(refused("up --nbd 0.0.0.0:10809").contains("loopback"));
        assert!(refused("up --workers 3").contains("1, 2, 4 or 8"));
        assert!(refused("up --listen nowhere").contains("HOST:PORT"));
        assert!(refused("volume create x --size 10GB").contains("512M, 10G, 1T"));
        assert!(refused("volume create x").contains("--size"));
        assert!(refused("volume create x --size 1G --ack some").contains("majority"));
        assert!(refused("volume create x --size 1G --copies 8").contains("1..=7"));
        assert!(refused("volume create a/b --size 1G").contains("data-1"));
        assert!(refused("volume create a --size 10").contains("did you mean 10G"));
        assert!(refused("volume resize a --size 2000000").contains("nearest"));
        assert!(refused("status --cluster here").contains("HOST:PORT"));
        assert!(refused("status --cluster ,").contains("HOST:PORT"));
        assert!(refused("gateway --name a/b").contains("gateway name"));
        assert!(refused("device verify log --shard 1").contains("VOLUME.INDEX"));
        assert!(refused("device inspect").contains("PATH"));
        assert!(refused("nonsense").contains("nonsense"));
    }

    #[test]
    fn the_map_cache_has_a_default_and_limits() {
        let Command::Node(n) = parse("node").unwrap().command else { panic!("node") };
        assert_eq!(n.run.map_cache, Options::NODE_MAP_BYTES);
        let Command::Node(n) = parse("node --map-cache 16M").unwrap().command else { panic!("node") };
        assert_eq!(n.run.map_cache, 16 << 20);
        let Command::Up(a) = parse("up --map-cache 1T").unwrap().command else { panic!("up") };
        assert_eq!(a.map_cache, 1 << 40);
        for line in ["node --map-cache 15M", "node --map-cache 0", "up --map-cache 2T"] {
            assert!(refused(line).contains("16M to 1T"), "{line}");
        }
        assert!(refused("up --map-cache much").contains("512M, 10G, 1T"));
    }

    #[test]
    fn clients_wait_for_their_volumes_as_long_as_is_said() {
        let wait = |line: &str| match parse(line).unwrap().command {
            Command::Gateway(g) => g.attach_wait,
            Command::Node(n) => n.run.attach_wait,
            other => panic!("{other:?}"),
        };
        assert_eq!([wait("gateway"), wait("node")], [Duration::from_secs(5); 2]);
        assert_eq!(wait("gateway --attach-wait 10m"), Duration::from_secs(600));
        assert_eq!(wait("node --nbd unix:/tmp/s --attach-wait 1s"), Duration::from_secs(1));
        assert!(refused("gateway --attach-wait 0s").contains("1s to 1000days"));
        assert!(refused("gateway --attach-wait long").contains("write 90s"));
    }

    #[test]
    fn node_runs_or_switches() {
        let Command::Node(n) = parse("node --data /d --name a --workers 4").unwrap().command else { panic!("node") };
        assert!(n.command.is_none() && n.run.workers == Some(4));
        let Command::Node(n) = parse("node stop node2 --data /d").unwrap().command else { panic!("node") };
        let Some(NodeCommand::Stop(s)) = n.command else { panic!("stop") };
        assert_eq!((s.name.as_str(), s.data), ("node2", Some(PathBuf::from("/d"))));
        assert!(parse("node --id 1 --name a").is_err());
        assert!(parse("node --name a stop b").is_err());
    }

    #[test]
    fn options_for_all_commands() {
        for line in ["status --json", "--json status", "volume list --json --cluster 127.0.0.1:9", "volume verify a"] {
            assert!(parse(line).is_ok(), "{line}");
        }
        assert_eq!(parse("volume --cluster 127.0.0.1:9 list").unwrap().cluster.as_deref(), Some("127.0.0.1:9"));
        assert!(parse("completion bash").is_ok());
        assert!(parse("device inspect log --segments --shard 1.0 --frames --json").is_ok());
        assert!(parse("device verify log --shard 3.17").is_ok());
        let Command::Device(DeviceCommand::Rebuild { write, .. }) = parse("device rebuild log").unwrap().command else {
            panic!("rebuild")
        };
        assert!(!write, "a dry run unless asked for");
        assert!(parse("gateway --name g --nbd 127.0.0.1:1").is_ok());
        assert!(
            parse("volume attach a --force --gateway g --json").is_ok() && parse("volume detach a --force").is_ok()
        );
    }

    #[test]
    fn clones_are_made_of_snapshots() {
        let line = "volume clone data@monday web --no-wait";
        let Command::Volume(VolumeCommand::Clone(a)) = parse(line).unwrap().command else { panic!("clone") };
        assert_eq!((a.of, a.name.as_str(), a.no_wait), (("data".into(), Some("monday".into())), "web", true));
        let line = "volume clone data --at 10min web";
        let Command::Volume(VolumeCommand::Clone(a)) = parse(line).unwrap().command else { panic!("clone") };
        assert!(a.of == ("data".into(), None) && a.past.at.is_some() && a.past.version.is_none());
        assert!(parse("volume clone data web --at 10min --version 3").is_err());
        assert!(parse("volume retain data 24h").is_ok() && parse("volume retain data off").is_ok());
        let line = "volume rewind data --to 10min --discard-present";
        let Command::Volume(VolumeCommand::Rewind(r)) = parse(line).unwrap().command else { panic!("rewind") };
        assert!(r.name == "data" && matches!(r.place(), Past::TimeMs(_)) && r.how.discard_present);
        let Command::Volume(VolumeCommand::Rewind(r)) = parse("volume rewind data --version 7").unwrap().command else {
            panic!("rewind")
        };
        assert_eq!(r.place(), Past::Version(Version(7)));
        assert!(parse("volume rewind data").is_err() && parse("volume rewind data --to 1s --version 3").is_err());
        assert!(parse("volume history data").is_ok());
        assert!(parse("volume rollback data@a --progress").is_ok() && parse("volume rollback data").is_err());
        let Command::Volume(VolumeCommand::Flatten(f)) = parse("volume flatten web").unwrap().command else {
            panic!("flatten")
        };
        assert_eq!((f.name.as_str(), f.no_wait), ("web", false));
        let wrong = [
            ("volume clone data@monday", "<NAME>"),
            ("volume clone data@monday a/b", "data-1"),
            ("volume clone a@b web --size 1G", "--size"),
            ("volume flatten", "<NAME>"),
        ];
        for (line, word) in wrong {
            assert!(refused(line).contains(word), "{line}: {}", refused(line));
        }
        for name in ["clone", "flatten"] {
            let help = parse(&format!("volume {name} --help")).unwrap_err().to_string();
            assert!(help.contains("Examples:") && help.contains("Exit status: 0"), "{help}");
        }
    }
}
