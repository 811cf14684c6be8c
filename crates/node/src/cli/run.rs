//! `freebs node` and `freebs gateway`: options made of arguments, cluster file and defaults.

use super::args::{DEFAULT_DATA, GatewayArgs, NodeRunArgs};
use crate::cluster_file::{self, ClusterFile, ClusterNode, Kept};
use crate::files::DirLock;
use crate::options::{
    DEFAULT_CLUSTER, DEFAULT_DEVICE_BYTES, GatewayOptions, NodeOptions, check_device, check_listen, check_reachable,
    default_workers, resolve,
};
use crate::{headroom, identity};
use freebs_control::rules;
use freebs_types::{Error, Hash32, NodeId, Result, limits};
use std::path::{Path, PathBuf};

pub fn node(args: NodeRunArgs) -> Result<()> {
    crate::runtime::run_node(node_options(args)?)
}

pub fn gateway(args: GatewayArgs, cluster: &str) -> Result<()> {
    crate::gateway::run_gateway(gateway_options(args, cluster)?)
}

/// All that a node needs, checked, with its data directory taken.
pub fn node_options(args: NodeRunArgs) -> Result<NodeOptions> {
    let (cluster, kept, node, lock) = match &args.cluster_file {
        Some(path) => {
            let file = cluster_file::load(path)?.ok_or_else(|| {
                Error::not_found(format!(
                    "there is no cluster file {}; `freebs node --help` shows what is in one",
                    path.display()
                ))
            })?;
            let node = choose(&file, &args)?;
            if file.authority.is_some() && file.nodes.len() > 1 {
                return Err(Error::invalid(format!(
                    "{} names all nodes of a cluster that nodes join: it is for `freebs control rebuild`, and no node keeps \
                     it up to date; start {} with `freebs node --data {}`, whose cluster.json is its own",
                    path.display(),
                    node.name,
                    node.data.display()
                )));
            }
            if file.founds {
                // A copy that says so for ever would found the cluster again.
                return Err(Error::invalid(format!(
                    "{} is to found its cluster; start it with `freebs node --data {}`",
                    node.name,
                    node.data.display()
                )));
            }
            let data = args.data.clone().unwrap_or_else(|| node.data.clone());
            let lock = lock(&data)?;
            (file.clone(), Kept::new(path.clone(), file, true), ClusterNode { data, ..node }, lock)
        }
        None => alone(&args)?,
    };
    if let Some(workers) = args.workers.filter(|w| *w != node.workers) {
        return Err(Error::invalid(format!(
            "{} has {} worker(s) by its cluster file, which is fixed; leave out --workers {workers}",
            node.name, node.workers
        )));
    }
    let listen = match args.listen {
        Some(a) => a,
        None => resolve(&node.address)?,
    };
    if cluster.authority.is_some() {
        check_reachable(resolve(&node.address)?)?;
    }
    let device_bytes = args.device_size.or(cluster.device_size).unwrap_or(DEFAULT_DEVICE_BYTES);
    let segment_bytes = args.segment_size.or(cluster.segment_bytes).unwrap_or(limits::SEGMENT_BYTES);
    check_device(device_bytes, segment_bytes, node.workers)?;
    Ok(NodeOptions {
        node: node.id,
        data: node.data,
        _lock: lock,
        listen: check_listen(listen, args.trusted_network || cluster.authority.is_some())?,
        nbd: args.nbd,
        attach_wait: args.attach_wait,
        device_bytes,
        segment_bytes,
        workers: node.workers,
        cluster,
        kept,
        busy_poll: args.busy_poll,
        scrub_bytes: args.scrub_rate,
        map_bytes: args.map_cache,
        replace_after: args.replace_after,
    })
}

/// The data directory, also where nothing is free but what the node keeps for itself.
fn lock(data: &Path) -> Result<DirLock> {
    headroom::with_room(&data.join("lock"), || DirLock::take(data, "lock"))
}

/// A node without a cluster file: the one in its data directory says what it is, or it is a new cluster of one. Nothing is
/// written before it has its address.
fn alone(args: &NodeRunArgs) -> Result<(ClusterFile, Kept, ClusterNode, DirLock)> {
    let data = args.data.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DATA));
    let lock = lock(&data)?;
    let path = data.join("cluster.json");
    let (mut file, kept) = match cluster_file::load(&path)? {
        Some(file) => (file.clone(), Kept::new(path.clone(), file, true)),
        None => {
            identity::refuse_keys(&data)?;
            let file = first(args, &data)?;
            (file.clone(), Kept::new(path.clone(), file, false))
        }
    };
    // A node with a cluster file of its own moves to wherever it is told to listen.
    if let ([only], Some(listen)) = (&mut file.nodes[..], args.listen) {
        only.address = listen.to_string();
        file.check()?;
    }
    let node = choose(&file, args)?;
    if !same_directory(&node.data, &data) {
        return Err(Error::invalid(format!(
            "{} is the cluster file of several nodes, and {} has its data in {}; \
             start the node with --cluster-file {}",
            path.display(),
            node.name,
            node.data.display(),
            path.display()
        )));
    }
    Ok((file, kept, node, lock))
}

fn same_directory(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

fn first(args: &NodeRunArgs, data: &Path) -> Result<ClusterFile> {
    let name = args.name.clone().unwrap_or_else(|| "node1".into());
    rules::check_name("node", &name)?;
    let address = args.listen.map_or_else(|| DEFAULT_CLUSTER.to_owned(), |a| a.to_string());
    let workers = args.workers.unwrap_or_else(default_workers);
    let id = NodeId(args.id.unwrap_or(1).max(1));
    let node = ClusterNode { id, name, address, data: data.to_owned(), workers };
    let mut file = cluster_file::begin(vec![node]);
    file.device_size = args.device_size;
    file.segment_bytes = args.segment_size;
    let device = args.device_size.unwrap_or(DEFAULT_DEVICE_BYTES);
    check_device(device, args.segment_size.unwrap_or(limits::SEGMENT_BYTES), workers)?;
    Ok(file)
}

fn choose(file: &ClusterFile, args: &NodeRunArgs) -> Result<ClusterNode> {
    let found = match (&args.name, args.id) {
        (Some(name), _) => file.nodes.iter().find(|n| n.name == *name),
        (None, Some(id)) => file.node(NodeId(id)),
        (None, None) if file.nodes.len() == 1 => file.nodes.first(),
        (None, None) => {
            return Err(Error::invalid(format!(
                "the cluster file names several nodes; say which one this is with --name (one of {})",
                file.names()
            )));
        }
    };
    found
        .cloned()
        .ok_or_else(|| Error::not_found(format!("the cluster file does not name this node; it has {}", file.names())))
}

/// All that a gateway needs, checked.
pub fn gateway_options(args: GatewayArgs, cluster: &str) -> Result<GatewayOptions> {
    let addresses = cluster.split(',').map(str::to_owned).collect();
    let identity = match args.identity {
        Some(text) => text,
        None => {
            let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
            format!("{}/{}", machine.trim(), args.name)
        }
    };
    Ok(GatewayOptions {
        name: args.name,
        cluster: addresses,
        cluster_id: args.cluster_id,
        nbd: args.nbd,
        attach_wait: args.attach_wait,
        identity: Hash32(*blake3::hash(identity.as_bytes()).as_bytes()),
        busy_poll: args.busy_poll,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_lsvd::Options;
    use std::time::Duration;

    /// The options, and the file kept as a start does that has its address.
    fn begun(args: NodeRunArgs) -> NodeOptions {
        let options = node_options(args).unwrap();
        options.keep_address().unwrap();
        options
    }

    fn args(data: &Path) -> NodeRunArgs {
        NodeRunArgs {
            config: None,
            name: None,
            id: None,
            data: Some(data.into()),
            cluster_file: None,
            listen: None,
            nbd: None,
            attach_wait: Duration::from_secs(5),
            device_size: None,
            workers: Some(2),
            segment_size: None,
            trusted_network: false,
            busy_poll: Duration::ZERO,
            scrub_rate: 0,
            map_cache: Options::NODE_MAP_BYTES_MIN,
            replace_after: Duration::from_secs(600),
        }
    }

    #[test]
    fn a_node_alone_makes_its_cluster_file_and_finds_it_again() {
        let dir = tempfile::tempdir().unwrap();
        drop(node_options(args(dir.path())).unwrap());
        assert!(!dir.path().join("cluster.json").exists(), "nothing is written before the node has its address");
        let first = begun(args(dir.path()));
        assert!(first.is_founder() && first.workers == 2 && first.me().name == "node1");
        assert_eq!(node_options(args(dir.path())).unwrap_err().kind, freebs_types::ErrorKind::Busy);
        let id = first.cluster.cluster;
        drop(first);
        let again = node_options(NodeRunArgs { workers: None, ..args(dir.path()) }).unwrap();
        assert_eq!((again.cluster.cluster, again.workers), (id, 2));
        drop(again);
        let elsewhere = NodeRunArgs { listen: Some("127.0.0.1:7999".parse().unwrap()), ..args(dir.path()) };
        assert_eq!(begun(elsewhere).me().address, "127.0.0.1:7999");
        assert_eq!(node_options(args(dir.path())).unwrap().listen.port(), 7999);
        let e = node_options(NodeRunArgs { workers: Some(4), ..args(dir.path()) }).unwrap_err();
        assert!(e.text.contains("leave out --workers"), "{e}");
        let e = node_options(NodeRunArgs { name: Some("other".into()), ..args(dir.path()) }).unwrap_err();
        assert!(e.text.contains("node1"), "{e}");
    }

    #[test]
    fn a_copy_of_the_file_founds_no_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copy.json");
        let node = ClusterNode {
            id: NodeId(1),
            name: "a".into(),
            address: "127.0.0.1:7400".into(),
            data: dir.path().into(),
            workers: 1,
        };
        let mut file = cluster_file::begin(vec![node]);
        (file.authority, file.founds) = (Some(freebs_types::HostPublic([1; 32])), true);
        cluster_file::save(&file, &path).unwrap();
        let copy = NodeRunArgs { cluster_file: Some(path), workers: None, ..args(dir.path()) };
        assert!(node_options(copy).unwrap_err().text.contains("freebs node --data"));
        cluster_file::save(&file, &dir.path().join("cluster.json")).unwrap();
        let mine = node_options(NodeRunArgs { workers: None, ..args(dir.path()) }).unwrap();
        assert!(mine.is_founder());
        mine.kept.change(|f| f.founds = false).unwrap();
        drop(mine);
        let again = node_options(NodeRunArgs { workers: None, ..args(dir.path()) }).unwrap();
        assert!(!again.is_founder(), "it was told so once");
    }

    #[test]
    fn one_of_several_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let node = |id: u64| ClusterNode {
            id: NodeId(id),
            name: format!("n{id}"),
            address: format!("127.0.0.1:{}", 7000 + id),
            data: dir.path().join(format!("n{id}")),
            workers: 1,
        };
        let path = dir.path().join("c.json");
        cluster_file::save(&cluster_file::begin(vec![node(1), node(2)]), &path).unwrap();
        let file = |name: Option<&str>| NodeRunArgs {
            cluster_file: Some(path.clone()),
            name: name.map(Into::into),
            data: None,
            workers: None,
            ..args(dir.path())
        };
        assert!(node_options(file(None)).unwrap_err().text.contains("n1, n2"));
        let two = node_options(file(Some("n2"))).unwrap();
        assert!(!two.is_founder() && two.data == dir.path().join("n2") && two.listen.port() == 7002);
        drop(two);
        // Each node of it took itself for the only one that knows the control state.
        let mut all = cluster_file::begin(vec![node(1), node(2)]);
        all.authority = Some(freebs_types::HostPublic([1; 32]));
        cluster_file::save(&all, &path).unwrap();
        let e = node_options(file(Some("n2"))).unwrap_err();
        assert!(e.text.contains("freebs node --data"), "{e}");
        let missing = NodeRunArgs { cluster_file: Some(dir.path().join("no")), ..args(dir.path()) };
        assert!(node_options(missing).unwrap_err().text.contains("--help"));
    }

    #[test]
    fn gateways_have_a_persistent_identity() {
        let args = |name: &str, identity: Option<&str>| GatewayArgs {
            config: None,
            name: name.into(),
            nbd: crate::options::NbdAddress::parse("127.0.0.1:10809").unwrap(),
            attach_wait: Duration::from_secs(5),
            identity: identity.map(Into::into),
            cluster_id: None,
            busy_poll: Duration::ZERO,
        };
        let identity = |a| gateway_options(a, "127.0.0.1:1,127.0.0.1:2").unwrap().identity;
        assert_eq!(identity(args("a", None)), identity(args("a", None)));
        assert_ne!(identity(args("a", None)), identity(args("b", None)));
        assert_eq!(identity(args("a", Some("x"))), identity(args("b", Some("x"))));
    }
}
