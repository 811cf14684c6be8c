//! What a node and a gateway are told at their start, already checked.

use crate::cluster_file::{ClusterFile, ClusterNode, Kept};
use crate::files::{self, DirLock};
use freebs_control::rules::format_size;
use freebs_format::disk::SEGMENTS_MAX;
use freebs_types::{ClusterId, Error, Hash32, NodeId, Result, limits};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the CLI looks for a cluster, and where `freebs up` puts its first node.
pub const DEFAULT_CLUSTER: &str = "127.0.0.1:7400";
/// Where a gateway serves NBD.
pub const DEFAULT_NBD: &str = "127.0.0.1:10809";
pub const DEFAULT_DEVICE_BYTES: u64 = 20 << 30;
/// A device has at least so many segments for each worker: some to write, some to clean, a reserve.
pub const SEGMENTS_PER_WORKER_MIN: u64 = 8;
/// The smallest segment of a node: the largest frame fits one, with its index entry behind it and the live table before
/// it. (Smaller ones are for simulated devices, whose clients write less at once.)
pub const NODE_SEGMENT_BYTES_MIN: u64 = 8 << 20;
const _: () = assert!(
    (limits::FRAME_DATA_BYTES_MAX + 2 * limits::FRAME_HEAD_BYTES_MAX + SEGMENTS_MAX as usize / 8) as u64
        <= NODE_SEGMENT_BYTES_MIN / 4 * 3
);
/// A unix socket's address has 108 bytes, one of them zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// One node.
#[derive(Debug)]
pub struct NodeOptions {
    pub cluster: ClusterFile,
    /// Where that is kept, as it was before this start.
    pub kept: Kept,
    /// Which of the cluster's nodes this one is.
    pub node: NodeId,
    /// Its data directory; it exists and is this process's alone.
    pub data: PathBuf,
    pub _lock: DirLock,
    /// Where it listens for peers, drivers and the CLI.
    pub listen: SocketAddr,
    /// Where it serves NBD itself, if it does.
    pub nbd: Option<NbdAddress>,
    /// A client whose volume can't be used is told so after this time.
    pub attach_wait: Duration,
    /// Bytes of its device, all workers together.
    pub device_bytes: u64,
    pub segment_bytes: u64,
    pub workers: u16,
    /// How long its workers look for more before they sleep.
    pub busy_poll: Duration,
    /// Bytes a second that the scrub reads, all workers together; 0 for none.
    pub scrub_bytes: u64,
    /// Bytes of memory for its maps of what is where, all workers together.
    pub map_bytes: u64,
    /// As leader of the control plane it gives the places of a node that is away for so long to others.
    pub replace_after: Duration,
}

impl NodeOptions {
    /// Its entry in the cluster file.
    #[must_use]
    pub fn me(&self) -> &ClusterNode {
        self.cluster.node(self.node).expect("chosen from this file")
    }

    /// Keeps the address that this start listens at.
    pub fn keep_address(&self) -> Result<()> {
        self.kept.change(|file| file.nodes.clone_from(&self.cluster.nodes))
    }

    /// Whether it founds the cluster, if that was not done yet.
    #[must_use]
    pub fn is_founder(&self) -> bool {
        let is_to = self.cluster.authority.is_none() || self.cluster.founds;
        is_to && self.cluster.first().id == self.node
    }
}

/// One gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    pub name: String,
    /// Addresses of nodes; any that answers will do.
    pub cluster: Vec<String>,
    /// The cluster it belongs to, if it was told; another one is refused then.
    pub cluster_id: Option<ClusterId>,
    pub nbd: NbdAddress,
    /// A client whose volume can't be used is told so after this time.
    pub attach_wait: Duration,
    /// Its persistent identity as attachments know it: with the same one it takes its volumes up again.
    pub identity: Hash32,
    /// How long it looks for more before it sleeps.
    pub busy_poll: Duration,
}

/// Where NBD is served. Without TLS that is loopback or a unix socket only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl NbdAddress {
    /// `HOST:PORT` or `unix:PATH`.
    pub fn parse(text: &str) -> Result<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err(Error::invalid("the path of the socket is missing; write unix:/run/freebs/nbd.sock"));
            }
            let path = std::path::absolute(path).map_err(|e| files::os_error("use", Path::new(path), &e))?;
            if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "the socket path {} is longer than {SOCKET_PATH_BYTES_MAX} bytes; choose a shorter one",
                    path.display()
                )));
            }
            return Ok(Self::Unix(path));
        }
        let address = resolve(text)?;
        if !address.ip().is_loopback() {
            return Err(Error::invalid(format!(
                "NBD is not encrypted yet and is served on loopback only, and {text} is not; \
                 use 127.0.0.1:{} or unix:PATH",
                address.port()
            )));
        }
        Ok(Self::Tcp(address))
    }

    /// The URI that NBD clients open a volume with.
    #[must_use]
    pub fn uri(&self, volume: &str) -> String {
        match self {
            Self::Tcp(address) => format!("nbd://{address}/{volume}"),
            Self::Unix(path) => format!("nbd+unix:///{volume}?socket={}", percent(path)),
        }
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(a) => a.fmt(f),
            Self::Unix(p) => write!(f, "unix:{}", p.display()),
        }
    }
}

/// A path as part of a URI's query.
fn percent(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    let encode = |b: &u8| if plain(*b) { (*b as char).to_string() } else { format!("%{b:02X}") };
    path.as_os_str().as_bytes().iter().map(encode).collect()
}

/// The name of this host, for people.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".into() } else { name.trim().to_owned() }
}

/// The first address that a `HOST:PORT` stands for.
pub fn resolve(text: &str) -> Result<SocketAddr> {
    let bad = || Error::invalid(format!("'{text}' is no address; write HOST:PORT, such as 127.0.0.1:7400"));
    let mut found = text.to_socket_addrs().map_err(|_| bad())?;
    let address = found.next().ok_or_else(bad)?;
    if address.port() == 0 { Err(bad()) } else { Ok(address) }
}

/// Where nodes listen that speak plain: loopback; anything else only when the operator says in so many words that the
/// network is trusted.
pub fn check_listen(address: SocketAddr, trusted_network: bool) -> Result<SocketAddr> {
    let ip: IpAddr = address.ip();
    if ip.is_loopback() || trusted_network {
        return Ok(address);
    }
    Err(Error::invalid(format!(
        "nodes of a cluster without an authority do not encrypt what they say, so they listen on loopback only, and \
         {address} is not; make the cluster with `freebs cluster init`, or add --trusted-network if nobody else can reach \
         that network"
    )))
}

/// Where a node of a cluster with an authority is reached by the others.
pub fn check_reachable(address: SocketAddr) -> Result<()> {
    if address.port() != 0 && !address.ip().is_unspecified() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the others reach a node where it listens, and nobody reaches one at {address}; choose an address of this machine \
         and a port, such as 127.0.0.1:7400"
    )))
}

/// Whether a device can have this shape.
pub fn check_device(device_bytes: u64, segment_bytes: u64, workers: u16) -> Result<()> {
    if !segment_bytes.is_power_of_two() || !(NODE_SEGMENT_BYTES_MIN..=1 << 30).contains(&segment_bytes) {
        return Err(Error::invalid(format!(
            "a segment is a power of two from 8M to 1G, not {}",
            format_size(segment_bytes)
        )));
    }
    let segments = device_bytes / segment_bytes / u64::from(workers.max(1));
    if segments < SEGMENTS_PER_WORKER_MIN {
        let least = SEGMENTS_PER_WORKER_MIN * segment_bytes * u64::from(workers);
        return Err(Error::invalid(format!(
            "a device of {} is too small; with {workers} worker(s) and segments of {} it has at least {}",
            format_size(device_bytes),
            format_size(segment_bytes),
            format_size(least)
        )));
    }
    if segments > u64::from(SEGMENTS_MAX) {
        let most = u64::from(SEGMENTS_MAX) * segment_bytes;
        return Err(Error::invalid(format!(
            "a device of {} is too large; with segments of {} each worker has at most {}; use larger segments",
            format_size(device_bytes),
            format_size(segment_bytes),
            format_size(most)
        )));
    }
    Ok(())
}

/// Workers of a node that was not told: one for each core, up to 8, as a power of two.
#[must_use]
pub fn default_workers() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).min(limits::WORKERS_MAX);
    1 << cores.ilog2()
}

/// Why an address could not be listened on, and with which option another is chosen.
#[must_use]
pub fn bind_error(what: &str, address: &str, option: &str, e: &io::Error) -> Error {
    let text = match e.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{what}: {address} is taken by another program; choose another one with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{what}: no permission to listen on {address}; choose another one with {option}")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{what}: {address} is no address of this machine; choose another one with {option}")
        }
        _ => format!("{what}: can't listen on {address}: {}; choose another one with {option}", files::plain(e)),
    };
    Error::os(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nbd_is_served_on_loopback_or_a_socket() {
        for good in ["127.0.0.1:10809", "[::1]:5", "localhost:10809"] {
            assert!(NbdAddress::parse(good).is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:10809", "192.0.2.1:10809"] {
            assert!(NbdAddress::parse(bad).unwrap_err().text.contains("loopback only"), "{bad}");
        }
        for bad in ["", "10809", "x:y", "127.0.0.1:0", "unix:", "unix:/".to_string().repeat(40).as_str()] {
            assert!(NbdAddress::parse(bad).is_err(), "{bad}");
        }
        let uri = NbdAddress::parse("unix:/tmp/a b").unwrap().uri("demo");
        assert_eq!(uri, "nbd+unix:///demo?socket=/tmp/a%20b");
        assert_eq!(NbdAddress::parse(DEFAULT_NBD).unwrap().uri("demo"), "nbd://127.0.0.1:10809/demo");
    }

    #[test]
    fn devices_have_a_sensible_shape() {
        check_device(20 << 30, 16 << 20, 8).unwrap();
        check_device(64 << 20, 8 << 20, 1).unwrap();
        assert!(check_device(64 << 20, 8 << 20, 2).unwrap_err().text.contains("at least 128M"));
        assert!(check_device(1 << 30, 4 << 20, 1).unwrap_err().text.contains("8M to 1G"));
        assert!(check_device(1 << 30, 3 << 20, 1).unwrap_err().text.contains("power of two"));
        assert!(check_device(1 << 60, 8 << 20, 1).unwrap_err().text.contains("larger segments"));
        assert!(default_workers().is_power_of_two() && default_workers() <= 8);
    }

    #[test]
    fn nodes_listen_on_loopback_unless_the_network_is_trusted() {
        let far: SocketAddr = "0.0.0.0:7400".parse().unwrap();
        assert!(check_listen(far, false).unwrap_err().text.contains("--trusted-network"));
        assert!(check_listen(far, true).is_ok());
        assert!(check_listen("127.0.0.1:1".parse().unwrap(), false).is_ok());
        assert!(check_reachable("192.0.2.1:7400".parse().unwrap()).is_ok());
        for nowhere in ["0.0.0.0:7400", "[::]:7400", "127.0.0.1:0"] {
            assert!(
                check_reachable(nowhere.parse().unwrap()).unwrap_err().text.contains("nobody reaches"),
                "{nowhere}"
            );
        }
    }
}
