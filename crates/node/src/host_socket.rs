//! Sockets on which the processes of one host ask each other: one line of JSON each way.
//!
//! Some lie in a directory, whose permissions say who may ask. Others have a name in the kernel's abstract namespace.
//! That belongs to the network, so a name reaches as far as loopback addresses do, and it goes with the process that
//! has it. Nothing protects it: anybody may take a name, or ask under it.
//!
//! Invariants: on a named socket root and the user of the process that listens are answered, and nobody else; and the
//! one who asks believes nobody else. A line has at most `LINE_BYTES_MAX` bytes.

use crate::files;
use crate::timing;
use freebs_control::api::ApiError;
use freebs_types::{Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

const LINE_BYTES_MAX: u64 = 4096;
/// Where the kernel lists the sockets of this network, one on a line.
const SOCKETS: &str = "/proc/net/unix";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line<A> {
    Ok(A),
    Error(ApiError),
}

/// A request and where its answer goes.
pub struct Asked<Q, A> {
    pub request: Q,
    pub answer: oneshot::Sender<Result<A>>,
}

fn is_mine_or_roots(uid: u32) -> bool {
    // SAFETY: it takes nothing and can't fail.
    uid == 0 || uid == unsafe { libc::geteuid() }
}

/// Listens under a name. Belongs into a runtime.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Takes connections for as long as the runtime lives; each may ask once. `named`: the socket has a name, and no
/// permissions.
pub fn serve<Q, A>(listener: UnixListener, named: bool, asked: mpsc::Sender<Asked<Q, A>>)
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if named && !stream.peer_cred().is_ok_and(|c| is_mine_or_roots(c.uid())) => {
                    tracing::warn!("another user asked something of this process, and got no answer");
                }
                Ok((stream, _)) => {
                    tokio::spawn(answer(stream, asked.clone()));
                }
                Err(e) => {
                    tracing::warn!("a socket of this host: {e}");
                    tokio::time::sleep(timing::HOST_ACCEPT_PAUSE).await;
                }
            }
        }
    });
}

async fn answer<Q: DeserializeOwned, A: Serialize>(stream: UnixStream, asked: mpsc::Sender<Asked<Q, A>>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut lines = tokio::io::BufReader::new(read.take(LINE_BYTES_MAX));
    let Ok(Ok(_)) = tokio::time::timeout(timing::HOST_LINE_MAX, lines.read_line(&mut line)).await else { return };
    let result = match serde_json::from_str::<Q>(&line) {
        Ok(request) => {
            let (answer, answered) = oneshot::channel();
            let _ = asked.send(Asked { request, answer }).await;
            answered.await.unwrap_or_else(|_| Err(Error::retry("that process is stopping")))
        }
        Err(e) => Err(Error::invalid(format!("the request can't be understood: {e}"))),
    };
    let line = match result {
        Ok(reply) => Line::Ok(reply),
        Err(e) => Line::Error(ApiError { kind: e.kind, text: e.text.into_owned() }),
    };
    let mut bytes = serde_json::to_vec(&line).expect("a reply has only what JSON can say");
    bytes.push(b'\n');
    let _ = write.write_all(&bytes).await;
}

/// Connects to the one that listens under a name; `None` if nobody does. `Invalid` if that is another user's process
/// and this one is not root's.
pub fn connect(name: &str) -> Result<Option<StdStream>> {
    let failed = |e: io::Error| Error::os(format!("can't ask on the socket {name}: {}", files::plain(&e)));
    let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
    let stream = match StdStream::connect_addr(&address) {
        Ok(stream) => stream,
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let uid = peer_uid(&stream).map_err(failed)?;
    // SAFETY: it takes nothing and can't fail.
    if is_mine_or_roots(uid) || unsafe { libc::geteuid() } == 0 {
        return Ok(Some(stream));
    }
    Err(Error::invalid(format!("it is run by another user (number {uid}); run this command as that user, or as root")))
}

/// The user whose process listens at the other end.
fn peer_uid(stream: &StdStream) -> io::Result<u32> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let to = (&raw mut who).cast();
    // SAFETY: the descriptor is open for the whole call, and the kernel writes at most `len` bytes, which `who` has.
    let done = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len) };
    if done == 0 { Ok(who.uid) } else { Err(io::Error::last_os_error()) }
}

/// Names that begin so and are listened under, in order.
pub fn names(prefix: &str) -> Vec<String> {
    let sockets = std::fs::read(SOCKETS).unwrap_or_default();
    names_in(&String::from_utf8_lossy(&sockets), prefix)
}

/// The same, of the kernel's list. An abstract name has an `@` before it there.
fn names_in(sockets: &str, prefix: &str) -> Vec<String> {
    let of = |line: &str| {
        let name = line.split_whitespace().nth(7)?.strip_prefix('@')?;
        name.starts_with(prefix).then(|| name.to_owned())
    };
    let mut names: Vec<String> = sockets.lines().filter_map(of).collect();
    names.sort();
    // A connection that was accepted has the name of its listener.
    names.dedup();
    names
}

/// Asks, and waits for the answer for at most `limit`. `process` names the other side for people.
pub fn ask<Q: Serialize, A: DeserializeOwned>(
    mut stream: StdStream,
    request: &Q,
    limit: Duration,
    process: &str,
) -> Result<A> {
    let broken = |e: io::Error| Error {
        kind: ErrorKind::Retry,
        text: format!("{process} did not answer: {}", files::plain(&e)).into(),
    };
    stream.set_read_timeout(Some(limit)).map_err(broken)?;
    let mut bytes = serde_json::to_vec(request).expect("a request has only what JSON can say");
    bytes.push(b'\n');
    stream.write_all(&bytes).map_err(broken)?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line).map_err(broken)?;
    match serde_json::from_str(&line) {
        Ok(Line::Ok(reply)) => Ok(reply),
        Ok(Line::Error(e)) => Err(Error { kind: e.kind, text: e.text.into() }),
        Err(e) => Err(Error::retry(format!("{process} gave no answer that can be understood: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(20);

    #[test]
    fn a_name_is_found_and_asked_and_goes_with_its_socket() {
        let name = format!("freebs-test-{}", std::process::id());
        assert!(connect(&name).unwrap().is_none() && names(&name).is_empty());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (asked, mut requests) = mpsc::channel::<Asked<u32, String>>(1);
            serve(listen(&name).unwrap(), true, asked);
            assert!(listen(&name).is_err(), "a name is one process's");
            let there = name.clone();
            let asking = tokio::task::spawn_blocking(move || {
                assert_eq!(names(&there), std::slice::from_ref(&there));
                let stream = || connect(&there).unwrap().expect("somebody listens");
                let one = ask::<u32, String>(stream(), &7, MAX, "it").unwrap();
                let refused = ask::<u32, String>(stream(), &8, MAX, "it").unwrap_err();
                let strange = ask::<&str, String>(stream(), &"eight", MAX, "it").unwrap_err();
                (one, refused, strange)
            });
            let first = requests.recv().await.unwrap();
            first.answer.send(Ok(format!("{} it is", first.request))).unwrap();
            requests.recv().await.unwrap().answer.send(Err(Error::busy("no more"))).unwrap();
            let (one, refused, strange) = asking.await.unwrap();
            assert_eq!((one.as_str(), refused), ("7 it is", Error::busy("no more")));
            assert_eq!(strange.kind, ErrorKind::Invalid);
        });
        drop(runtime);
        assert!(connect(&name).unwrap().is_none() && names(&name).is_empty());
    }

    #[test]
    fn names_are_read_from_the_list_of_the_kernel() {
        let list = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 11 @freebs-b\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 12 /run/freebs-c\n\
                    0000000000000000: 00000003 00000000 00000000 0001 03 13\n\
                    0000000000000000: 00000003 00000000 00000000 0001 03 14 @freebs-b\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 15 @other\n\
                    0000000000000000: 00000002 00000000 00010000 0001 01 16 @freebs-a\n";
        assert_eq!(names_in(list, "freebs-"), ["freebs-a", "freebs-b"]);
    }
}
