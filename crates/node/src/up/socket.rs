//! The supervisor's sockets: `freebs node start|stop` asks on one of them. One lies in the data directory, and each node's
//! address names one, so that a local cluster is found by the address of any of its nodes, running or not.

use crate::files;
use crate::host_socket::{self, Asked as AskedOf};
use crate::timing;
use freebs_types::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

const NAME: &str = "up.sock";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Start {
        node: String,
    },
    Stop {
        node: String,
    },
    /// From now on it runs so many nodes, at least as many as before.
    Grow {
        nodes: u16,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Of a process that runs.
    pub pid: Option<u32>,
    /// Where a node answers.
    pub address: Option<String>,
}

/// A request and where its answer goes.
pub type Asked = AskedOf<Request, Reply>;

/// A short name for a socket in a directory whose own name may be too long for a socket's address: through the open
/// directory.
struct Short {
    _dir: File,
    path: PathBuf,
}

impl Short {
    fn of(data: &Path) -> io::Result<Self> {
        let dir = File::open(data)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", dir.as_raw_fd()));
        Ok(Self { _dir: dir, path })
    }
}

/// The name of the supervisor of a node that listens there.
fn name_of(address: SocketAddr) -> String {
    format!("freebs-up-{address}")
}

/// True for an address of this host; false, too, if it can't be known. A bind says less: a host may allow that of any address
/// (`ip_nonlocal_bind`).
fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    ip.is_loopback() || ip.is_unspecified() || interfaces().is_ok_and(|all| all.contains(&ip))
}

/// The addresses of this host's interfaces.
fn interfaces() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the call makes a list, and writes where it begins.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut all, mut next) = (vec![], first);
    // SAFETY: each entry is there until the list is freed; the last one has no next.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: it is null, or an address of the family that it says.
        all.extend(unsafe { ip_of(entry.ifa_addr) });
        next = entry.ifa_next;
    }
    // SAFETY: it is the list from above, which nothing refers to any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(all)
}

/// The address, if it is one of IP.
///
/// # Safety
///
/// It is null, or points to as many bytes as an address of its family has.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: every address begins with its family.
    let family = unsafe { address.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: such an address is of this family.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Listens in the data directory, and under the names of these addresses; the caller owns the directory, so what is left
/// of an earlier socket is nobody's.
pub fn listen(data: &Path, addresses: &[SocketAddr]) -> Result<mpsc::Receiver<Asked>> {
    let path = data.join(NAME);
    let listen = || -> io::Result<UnixListener> {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&Short::of(data)?.path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let listener = listen().map_err(|e| files::os_error("make the socket", &path, &e))?;
    let (asked, requests) = mpsc::channel(16);
    host_socket::serve(listener, false, asked.clone());
    for address in addresses {
        match host_socket::listen(&name_of(*address)) {
            Ok(listener) => host_socket::serve(listener, true, asked.clone()),
            Err(e) => {
                tracing::warn!("`freebs node stop` does not find this cluster by {address}: {}", files::plain(&e))
            }
        }
    }
    Ok(requests)
}

pub fn remove(data: &Path) {
    let _ = std::fs::remove_file(data.join(NAME));
}

/// A connection to a supervisor, for one question.
#[derive(Debug)]
pub struct Supervisor(StdStream);

impl Supervisor {
    /// That of a data directory; why there is none, if there is none.
    pub fn of_data(data: &Path) -> std::result::Result<Self, String> {
        let stream = Short::of(data).and_then(|short| StdStream::connect(&short.path));
        stream.map(Self).map_err(|e| format!("no `freebs up` runs on {} ({})", data.display(), files::plain(&e)))
    }

    /// That of the first of these addresses (`HOST:PORT`, separated by commas) at which a `freebs up` of this host runs a
    /// node. `None` if there is no such address.
    pub fn of_cluster(addresses: &str) -> Result<Option<Self>> {
        for address in addresses.split(',').flat_map(|a| a.to_socket_addrs().into_iter().flatten()) {
            let everywhere: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
            let listening = everywhere.map(|ip| SocketAddr::new(ip, address.port()));
            // A process that listens everywhere here is not meant by the address of another host.
            let may_listen = listening.into_iter().filter(|_| is_here(address.ip()));
            for at in std::iter::once(address).chain(may_listen) {
                let found = host_socket::connect(&name_of(at));
                if let Some(stream) = found.map_err(|e| e.at(format_args!("the `freebs up` at {at}")))? {
                    return Ok(Some(Self(stream)));
                }
            }
        }
        Ok(None)
    }

    pub fn ask(self, request: &Request) -> Result<Reply> {
        host_socket::ask(self.0, request, timing::UP_ANSWER_MAX, "freebs up")
    }
}

/// Asks the supervisor that is meant: that of the data directory if one is named, else that of the cluster if one is
/// named, else that of the usual directory or of the usual address.
pub fn ask(data: Option<&Path>, cluster: Option<&str>, usual: (&Path, &str), request: &Request) -> Result<Reply> {
    let (usual_data, usual_cluster) = usual;
    let way_out = "--data names the directory of the one that does";
    let found = match (data, cluster) {
        (Some(data), _) => Supervisor::of_data(data).map_err(|why| Error::not_found(format!("{why}; {way_out}")))?,
        (None, Some(cluster)) => Supervisor::of_cluster(cluster)?.ok_or_else(|| {
            Error::not_found(format!(
                "no `freebs up` of this machine runs a node at {cluster}; run the command on the machine whose \
                 `freebs up` does. A node without one is stopped by SIGTERM or Ctrl-C"
            ))
        })?,
        (None, None) => match Supervisor::of_data(usual_data) {
            Ok(found) => found,
            Err(why) => Supervisor::of_cluster(usual_cluster)?.ok_or_else(|| {
                Error::not_found(format!(
                    "{why}, and none runs a node at {usual_cluster}; {way_out}, and --cluster one of its nodes"
                ))
            })?,
        },
    };
    found.ask(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: (&str, &str) = ("/nowhere/at/all", "127.0.0.1:1");

    fn ask_of(data: Option<&Path>, cluster: Option<&str>, request: &Request) -> Result<Reply> {
        ask(data, cluster, (Path::new(NOWHERE.0), NOWHERE.1), request)
    }

    #[test]
    fn asks_through_a_directory_with_a_long_name() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("x".repeat(120));
        std::fs::create_dir(&data).unwrap();
        let e = ask_of(Some(&data), None, &Request::Stop { node: "a".into() }).unwrap_err();
        assert!(e.text.contains("--data"), "{e}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut requests = listen(&data, &[]).unwrap();
            let there = data.clone();
            let asking = std::thread::spawn(move || {
                let one = ask_of(Some(&there), Some(NOWHERE.1), &Request::Start { node: "a".into() });
                (one, ask_of(Some(&there), None, &Request::Stop { node: "b".into() }))
            });
            let first = requests.recv().await.unwrap();
            assert!(matches!(&first.request, Request::Start { node } if node == "a"));
            let reply = Reply { pid: Some(7), address: Some("127.0.0.1:1".into()) };
            first.answer.send(Ok(reply.clone())).unwrap();
            let second = requests.recv().await.unwrap();
            second.answer.send(Err(Error::not_found("no b"))).unwrap();
            let (one, two) = tokio::task::spawn_blocking(|| asking.join().unwrap()).await.unwrap();
            assert_eq!(one.unwrap(), reply);
            assert_eq!(two.unwrap_err(), Error::not_found("no b"));
            remove(&data);
            assert!(!data.join(NAME).exists());
        });
    }

    /// Where any address can be bound, one of another host was taken for this one's.
    #[test]
    fn addresses_of_interfaces_are_here_and_no_others() {
        let own = interfaces().unwrap();
        assert!(own.iter().all(|ip| is_here(*ip)), "{own:?}");
        for ip in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::ffff:127.0.0.1"] {
            assert!(is_here(ip.parse().unwrap()), "{ip}");
        }
        // Addresses for documentation (RFC 5737, RFC 3849), so of no host.
        for ip in ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert!(!is_here(ip.parse().unwrap()), "{ip}");
        }
        // A route's own address is that of an interface.
        let out = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        if out.connect("192.0.2.1:9").is_ok() {
            let ip = out.local_addr().unwrap().ip();
            assert!(own.contains(&ip), "{ip} of {own:?}");
        }
    }

    /// `FREEBS_CLUSTER` told every other command where the cluster is; this one said that no `freebs up` runs.
    #[test]
    fn a_local_cluster_is_found_by_the_address_of_any_of_its_nodes() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        // Ports of this process alone; nobody has to listen there.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let addresses: Vec<SocketAddr> =
            vec![format!("127.0.0.1:{port}").parse().unwrap(), format!("0.0.0.0:{}", port ^ 1).parse().unwrap()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut requests = listen(&data, &addresses).unwrap();
            let asking = std::thread::spawn(move || {
                let stop = Request::Stop { node: "a".into() };
                let e = ask_of(None, Some(NOWHERE.1), &stop).unwrap_err();
                assert!(e.text.contains(NOWHERE.1) && e.text.contains("SIGTERM"), "{e}");
                let e = ask_of(None, None, &stop).unwrap_err();
                let says = [NOWHERE.0, NOWHERE.1, "--data", "--cluster"];
                assert!(says.iter().all(|s| e.text.contains(s)), "{e}");
                let last = format!("{},127.0.0.1:{port}", NOWHERE.1);
                let by_address = ask_of(None, Some(&last), &stop).unwrap();
                let by_name = ask_of(None, Some(&format!("localhost:{port}")), &stop).unwrap();
                let anywhere = ask_of(None, Some(&format!("127.0.0.1:{}", port ^ 1)), &stop).unwrap();
                // An address that is for documentation (RFC 5737), so of no host.
                let e = ask_of(None, Some(&format!("192.0.2.1:{}", port ^ 1)), &stop).unwrap_err();
                assert!(e.text.contains("of this machine"), "{e}");
                let usual = ask(None, None, (Path::new(NOWHERE.0), &last), &stop).unwrap();
                let usual_data = ask(None, None, (&data, NOWHERE.1), &stop).unwrap();
                [by_address, by_name, anywhere, usual, usual_data].map(|r| r.pid)
            });
            for n in 1..=5 {
                let asked = requests.recv().await.unwrap();
                asked.answer.send(Ok(Reply { pid: Some(n), address: None })).unwrap();
            }
            let pids = tokio::task::spawn_blocking(|| asking.join().unwrap()).await.unwrap();
            assert_eq!(pids, [1, 2, 3, 4, 5].map(Some));
        });
    }
}
