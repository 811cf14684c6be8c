//! Before anything is started: the data directory, the cluster file, the ports.

use super::GATEWAY;
use super::child::Spec;
use crate::cli::args::{DEFAULT_DATA, UpArgs};
use crate::cli::output::Output;
use crate::cluster_file::{self, ClusterFile, ClusterNode};
use crate::files::{self, DirLock};
use crate::options::{
    DEFAULT_CLUSTER, DEFAULT_DEVICE_BYTES, NbdAddress, bind_error, check_device, check_listen, resolve,
};
use crate::timing;
use freebs_control::rules::format_size;
use freebs_types::{Error, NodeId, Result, limits};
use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DEFAULT_NODES: u16 = 3;
const DEFAULT_WORKERS: u16 = 1;
/// The file that says that a data directory is a cluster's.
const CLUSTER_FILE: &str = "cluster.json";

#[derive(Debug)]
pub struct Prepared {
    /// The data directory, as a full path.
    pub data: PathBuf,
    pub is_default_data: bool,
    pub cluster: ClusterFile,
    pub nbd: NbdAddress,
    trusted_network: bool,
    /// Bytes of memory for the maps of each node.
    map_cache: u64,
    replace_after: Duration,
    _lock: DirLock,
}

pub fn prepare(args: &UpArgs, output: &Output) -> Result<Prepared> {
    let data = std::path::absolute(&args.data).map_err(|e| files::os_error("use", &args.data, &e))?;
    let lock = DirLock::take(&data, "up.lock")?;
    let path = data.join(CLUSTER_FILE);
    let cluster = match cluster_file::load(&path)? {
        Some(file) if file.authority.is_some() => {
            return Err(Error::invalid(format!(
                "{} is the data directory of {}, a node of a cluster that nodes join one by one; `freebs node --data {}` \
                 runs it. Choose another directory with --data",
                data.display(),
                file.first().name,
                data.display()
            )));
        }
        Some(file) => again(file, args, &path)?,
        None => first(args, &data, &path)?,
    };
    let logs = data.join("logs");
    std::fs::create_dir_all(&logs).map_err(|e| files::os_error("create", &logs, &e))?;
    for node in &cluster.nodes {
        check_listen(resolve(&node.address)?, args.trusted_network)?;
    }
    let prepared = Prepared {
        is_default_data: args.data == Path::new(DEFAULT_DATA),
        cluster,
        nbd: args.nbd.clone(),
        trusted_network: args.trusted_network,
        map_cache: args.map_cache,
        replace_after: args.replace_after,
        _lock: lock,
        data,
    };
    prepared.probe_ports()?;
    prepared.note_space(output);
    Ok(prepared)
}

/// Addresses of `n` nodes from the first one's.
fn addresses(listen: SocketAddr, n: usize) -> Result<Vec<String>> {
    let port = |i: usize| u16::try_from(usize::from(listen.port()) + i).ok();
    let all = (0..n).map(|i| port(i).map(|p| SocketAddr::new(listen.ip(), p).to_string()));
    all.collect::<Option<Vec<_>>>().ok_or_else(|| {
        Error::invalid(format!("there are no {n} ports from {} on; choose a lower one with --listen", listen.port()))
    })
}

/// A new cluster in an empty directory.
fn first(args: &UpArgs, data: &Path, path: &Path) -> Result<ClusterFile> {
    let entries = std::fs::read_dir(data).map_err(|e| files::os_error("read", data, &e))?;
    for entry in entries {
        let name = entry.map_err(|e| files::os_error("read", data, &e))?.file_name();
        // A node that was refused there may have left its lock.
        if !["up.lock", "lock", "cluster.json.tmp", "lost+found"].contains(&name.to_string_lossy().as_ref()) {
            return Err(Error::invalid(format!(
                "{} has files in it (such as {}) and no {CLUSTER_FILE}, so it is no cluster's; \
                 choose a new or empty directory with --data, or put {CLUSTER_FILE} back",
                data.display(),
                name.to_string_lossy()
            )));
        }
    }
    let listen = match args.listen {
        Some(a) => a,
        None => resolve(DEFAULT_CLUSTER)?,
    };
    check_listen(listen, args.trusted_network)?;
    let n = usize::from(args.nodes.unwrap_or(DEFAULT_NODES));
    let workers = args.workers.unwrap_or(DEFAULT_WORKERS);
    let device = args.device_size.unwrap_or(DEFAULT_DEVICE_BYTES);
    let segment = args.segment_size.unwrap_or(limits::SEGMENT_BYTES);
    check_device(device, segment, workers)?;
    if let Some(copies) = args.copies.filter(|c| usize::from(*c) > n) {
        return Err(Error::invalid(format!(
            "--copies {copies} need as many nodes; use --nodes {copies} or fewer copies"
        )));
    }
    let node = |(i, address): (usize, String)| {
        let name = format!("node{}", i + 1);
        ClusterNode { id: NodeId(i as u64 + 1), data: data.join(&name), name, address, workers }
    };
    let mut file = cluster_file::begin(addresses(listen, n)?.into_iter().enumerate().map(node).collect());
    file.device_size = Some(device);
    file.segment_bytes = Some(segment);
    cluster_file::save(&file, path)?;
    Ok(file)
}

/// So many nodes are in the file from now on; true if there were fewer. `Invalid` if there were more, unless 0 are asked for.
fn grow(file: &mut ClusterFile, nodes: usize, nbd: &NbdAddress) -> Result<bool> {
    let has = file.nodes.len();
    if nodes < has && nodes > 0 {
        return Err(Error::invalid(format!(
            "the cluster has {has} nodes, and nodes of a local cluster are not taken away; leave out --nodes {nodes}, or begin a \
             new cluster in another directory with --data"
        )));
    }
    let first = file.first();
    let (mut listen, workers) = (resolve(&first.address)?, first.workers);
    let parent = first.data.parent().unwrap_or(&first.data).to_owned();
    let ports = file.nodes.iter().filter_map(|n| resolve(&n.address).ok()).map(|a| a.port());
    let numbers = file.nodes.iter().map(|n| n.id.0);
    let (mut port, mut id) = (ports.max().unwrap_or_default(), numbers.max().unwrap_or_default());
    for _ in has..nodes {
        loop {
            port = port.checked_add(1).ok_or_else(|| Error::invalid(format!("there is no free port behind {port}")))?;
            listen.set_port(port);
            let is_meant = matches!(nbd, NbdAddress::Tcp(at) if at.port() == port);
            if !is_meant && probe(&listen.to_string(), Instant::now()).is_ok() {
                break;
            }
        }
        id += 1;
        let name = format!("node{id}");
        let data = parent.join(&name);
        file.came_later.push(NodeId(id));
        file.nodes.push(ClusterNode { id: NodeId(id), data, name, address: listen.to_string(), workers });
    }
    file.check()?;
    Ok(nodes > has)
}

/// A cluster that is there: what was fixed stays, and who asks for something else is told so.
fn again(mut file: ClusterFile, args: &UpArgs, path: &Path) -> Result<ClusterFile> {
    let fixed = |option: &str, asked: String, has: String| {
        Err(Error::invalid(format!(
            "the cluster in {} has {option} {has}, which is fixed since its first start; \
             leave out {option} {asked}, or begin a new cluster in another directory with --data",
            path.parent().unwrap_or(path).display()
        )))
    };
    if grow(&mut file, args.nodes.map_or(0, usize::from), &args.nbd)? {
        cluster_file::save(&file, path)?;
    }
    let device = file.device_size.unwrap_or(DEFAULT_DEVICE_BYTES);
    if let Some(asked) = args.device_size.filter(|d| *d != device) {
        return fixed("--device-size", format_size(asked), format_size(device));
    }
    let segment = file.segment_bytes.unwrap_or(limits::SEGMENT_BYTES);
    if let Some(asked) = args.segment_size.filter(|s| *s != segment) {
        return fixed("--segment-size", format_size(asked), format_size(segment));
    }
    let workers = file.first().workers;
    if let Some(asked) = args.workers.filter(|w| *w != workers) {
        return fixed("--workers", asked.to_string(), workers.to_string());
    }
    if let Some(listen) = args.listen {
        let wanted = addresses(check_listen(listen, args.trusted_network)?, file.nodes.len())?;
        if file.nodes.iter().map(|n| &n.address).ne(&wanted) {
            file.nodes.iter_mut().zip(wanted).for_each(|(n, a)| n.address = a);
            cluster_file::save(&file, path)?;
        }
    }
    Ok(file)
}

impl Prepared {
    /// From now on the control state is there at a start.
    pub fn mark_set_up(&mut self) -> Result<()> {
        if !self.cluster.set_up {
            self.cluster.set_up = true;
            cluster_file::save(&self.cluster, &self.data.join(CLUSTER_FILE))?;
        }
        Ok(())
    }

    /// Where its nodes listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.cluster.nodes.iter().filter_map(|n| resolve(&n.address).ok()).collect()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.data.join("logs").join(format!("{name}.log"))
    }

    pub fn node_specs(&self) -> Result<Vec<Spec>> {
        let spec = |node: &ClusterNode| {
            let mut args: Vec<OsString> = vec!["node".into(), "--cluster-file".into()];
            args.push(self.data.join(CLUSTER_FILE).into());
            args.extend(["--name".into(), OsString::from(&node.name)]);
            args.extend(["--map-cache".into(), OsString::from(self.map_cache.to_string())]);
            let replace_after = format!("{}ms", self.replace_after.as_millis());
            args.extend(["--replace-after".into(), OsString::from(replace_after)]);
            if self.trusted_network {
                args.push("--trusted-network".into());
            }
            Spec { name: node.name.clone(), args, address: Some(node.address.clone()), log: self.log(&node.name) }
        };
        Ok(self.cluster.nodes.iter().map(spec).collect())
    }

    /// Nodes that are to run beside those before, in the cluster file from now on.
    pub fn grow(&mut self, nodes: usize) -> Result<Vec<Spec>> {
        let (has, mut file) = (self.cluster.nodes.len(), self.cluster.clone());
        if !grow(&mut file, nodes, &self.nbd)? {
            return Ok(Vec::new());
        }
        cluster_file::save(&file, &self.data.join(CLUSTER_FILE))?;
        self.cluster = file;
        Ok(self.node_specs()?.split_off(has))
    }

    pub fn gateway_spec(&self) -> Result<Spec> {
        let addresses: Vec<&str> = self.cluster.nodes.iter().map(|n| n.address.as_str()).collect();
        let id = self.cluster.cluster.to_string();
        let mut args: Vec<OsString> = vec!["gateway".into(), "--name".into(), GATEWAY.into()];
        args.extend(["--cluster".into(), addresses.join(",").into()]);
        args.extend(["--nbd".into(), self.nbd.to_string().into()]);
        args.extend(["--identity".into(), format!("{id}/{GATEWAY}").into()]);
        args.extend(["--cluster-id".into(), id.into()]);
        if self.trusted_network {
            args.push("--trusted-network".into());
        }
        Ok(Spec { name: GATEWAY.into(), args, address: None, log: self.log(GATEWAY) })
    }

    /// Whether all ports are free, so that the answer is a sentence and not a child that fails.
    fn probe_ports(&self) -> Result<()> {
        let until = Instant::now() + timing::PORT_MAX;
        for node in &self.cluster.nodes {
            probe(&node.address, until).map_err(|e| bind_error(&node.name, &node.address, "--listen", &e))?;
        }
        match &self.nbd {
            NbdAddress::Tcp(address) => {
                let address = address.to_string();
                probe(&address, until).map_err(|e| bind_error("NBD", &address, "--nbd", &e))
            }
            NbdAddress::Unix(path) => {
                let parent = path.parent().unwrap_or(Path::new("/"));
                if !parent.is_dir() {
                    return Err(Error::not_found(format!(
                        "there is no directory {} for the socket; create it, or choose another place with --nbd",
                        parent.display()
                    )));
                }
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    let e = io::Error::from(io::ErrorKind::AddrInUse);
                    return Err(bind_error("NBD", &self.nbd.to_string(), "--nbd", &e));
                }
                Ok(())
            }
        }
    }

    fn note_space(&self, output: &Output) {
        let device = self.cluster.device_size.unwrap_or(DEFAULT_DEVICE_BYTES);
        let wanted = device.saturating_mul(self.cluster.nodes.len() as u64);
        let Some(free) = files::free_bytes(&self.data).filter(|f| *f < wanted && !self.cluster.set_up) else { return };
        output.note(&format!(
            "note: {} free at {}, less than {} devices of {} may come to need",
            format_size(free),
            self.data.display(),
            self.cluster.nodes.len(),
            format_size(device)
        ));
    }
}

fn probe(address: &str, until: Instant) -> io::Result<()> {
    loop {
        match TcpListener::bind(address) {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(timing::PORT_LOOK);
            }
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU16, Ordering};

    fn args(data: &Path, port: u16) -> UpArgs {
        UpArgs {
            nodes: None,
            data: data.into(),
            device_size: None,
            listen: Some(SocketAddr::from(([127, 0, 0, 1], port))),
            nbd: NbdAddress::Unix(data.join("s")),
            volumes: Vec::new(),
            copies: None,
            no_restart: false,
            workers: None,
            segment_size: None,
            trusted_network: false,
            map_cache: 64 << 20,
            replace_after: Duration::from_secs(600),
        }
    }

    const QUIET: Output = Output { json: true };

    /// A port from which on some are free, as far as one can know.
    fn free_port() -> u16 {
        // Below those that the system gives to connections, and each test has its own.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let spread = (std::process::id() % 250) as u16 * 8;
        for _ in 0..250 {
            let port = 30_000 + (spread + NEXT.fetch_add(8, Ordering::Relaxed)) % 2_000;
            if (0..4).all(|i| TcpListener::bind(("127.0.0.1", port + i)).is_ok()) {
                return port;
            }
        }
        panic!("no free ports in a row");
    }

    #[test]
    fn a_cluster_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let (data, port) = (dir.path().join("d"), free_port());
        let one = prepare(&args(&data, port), &QUIET).unwrap();
        assert_eq!((one.cluster.nodes.len(), one.cluster.names().as_str()), (3, "node1, node2, node3"));
        assert_eq!(one.cluster.nodes[2].address, format!("127.0.0.1:{}", port + 2));
        for spec in one.node_specs().unwrap() {
            let told = spec.args.windows(2).any(|w| w == ["--map-cache", "67108864"]);
            assert!(told, "what it is told of the map cache goes on to {}: {:?}", spec.name, spec.args);
        }
        let e = prepare(&args(&data, port), &QUIET).unwrap_err();
        assert!(e.text.contains("in use by another freebs"), "{e}");
        let id = one.cluster.cluster;
        drop(one);
        let two = prepare(&UpArgs { listen: None, ..args(&data, port) }, &QUIET).unwrap();
        assert_eq!((two.cluster.cluster, &two.cluster.nodes[0].data), (id, &data.join("node1")));
    }

    #[test]
    fn what_is_fixed_can_not_be_asked_for_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let data = dir.path().join("d");
        drop(prepare(&args(&data, port), &QUIET).unwrap());
        let refused = |a: UpArgs| prepare(&a, &QUIET).unwrap_err().to_string();
        assert!(refused(UpArgs { nodes: Some(2), ..args(&data, port) }).contains("leave out --nodes 2"));
        assert!(
            refused(UpArgs { device_size: Some(1 << 30), ..args(&data, port) }).contains("leave out --device-size 1G")
        );
        assert!(refused(UpArgs { workers: Some(2), ..args(&data, port) }).contains("--workers 1"));
        assert!(refused(UpArgs { segment_size: Some(1 << 20), ..args(&data, port) }).contains("16M"));
        assert!(prepare(&UpArgs { nodes: Some(3), device_size: Some(20 << 30), ..args(&data, port) }, &QUIET).is_ok());
    }

    #[test]
    fn the_directory_of_a_node_that_others_join_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let node = ClusterNode {
            id: NodeId(1),
            name: "a".into(),
            address: "127.0.0.1:7400".into(),
            data: dir.path().into(),
            workers: 1,
        };
        let mut file = cluster_file::begin(vec![node]);
        file.authority = Some(freebs_types::HostPublic([1; 32]));
        cluster_file::save(&file, &dir.path().join(CLUSTER_FILE)).unwrap();
        let e = prepare(&UpArgs { listen: None, ..args(dir.path(), 0) }, &QUIET).unwrap_err();
        assert!(e.text.contains("freebs node --data"), "{e}");
    }

    #[test]
    fn foreign_directories_and_taken_ports_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("thesis.tex"), b"").unwrap();
        let e = prepare(&args(dir.path(), free_port()), &QUIET).unwrap_err();
        assert!(e.text.contains("thesis.tex") && e.text.contains("--data"), "{e}");
        let port = free_port();
        let _taken = TcpListener::bind(("127.0.0.1", port + 1)).unwrap();
        let e = prepare(&args(&dir.path().join("d"), port), &QUIET).unwrap_err();
        assert!(e.text.contains("node2") && e.text.contains("taken") && e.text.contains("--listen"), "{e}");
        let nowhere = NbdAddress::Unix(dir.path().join("no/s"));
        let e = prepare(&UpArgs { nbd: nowhere, ..args(&dir.path().join("e"), free_port()) }, &QUIET).unwrap_err();
        assert!(e.text.contains("--nbd"), "{e}");
        let high = UpArgs { nodes: Some(3), ..args(&dir.path().join("f"), 65_534) };
        assert!(prepare(&high, &QUIET).unwrap_err().text.contains("lower one"));
        let copies = UpArgs { copies: Some(4), ..args(&dir.path().join("g"), free_port()) };
        assert!(prepare(&copies, &QUIET).unwrap_err().text.contains("--nodes 4"));
    }
}
