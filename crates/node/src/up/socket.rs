//! The supervisor's socket in the data directory: `freebs node start|stop` asks through it. One line of JSON each way.

use crate::files;
use crate::timing;
use freebs_control::api::ApiError;
use freebs_types::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

const NAME: &str = "up.sock";
const LINE_BYTES_MAX: u64 = 4096;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Start { node: String },
    Stop { node: String },
}

impl Request {
    pub fn node(&self) -> &str {
        match self {
            Self::Start { node } | Self::Stop { node } => node,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// Of a process that runs.
    pub pid: Option<u32>,
    /// Where a node answers.
    pub address: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Ok(Reply),
    Error(ApiError),
}

/// A request and where its answer goes.
pub struct Asked {
    pub request: Request,
    pub answer: oneshot::Sender<Result<Reply>>,
}

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

/// Listens; the caller owns the data directory, so what is left of an earlier socket is nobody's.
pub fn listen(data: &Path) -> Result<mpsc::Receiver<Asked>> {
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
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(serve(stream, asked.clone()));
                }
                Err(e) => {
                    tracing::warn!("the supervisor's socket: {e}");
                    tokio::time::sleep(timing::UP_ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(requests)
}

pub fn remove(data: &Path) {
    let _ = std::fs::remove_file(data.join(NAME));
}

async fn serve(stream: UnixStream, asked: mpsc::Sender<Asked>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut lines = tokio::io::BufReader::new(read.take(LINE_BYTES_MAX));
    let Ok(Ok(_)) = tokio::time::timeout(timing::UP_ANSWER_MAX, lines.read_line(&mut line)).await else { return };
    let result = match serde_json::from_str::<Request>(&line) {
        Ok(request) => {
            let (answer, answered) = oneshot::channel();
            let _ = asked.send(Asked { request, answer }).await;
            answered.await.unwrap_or_else(|_| Err(Error::retry("freebs up is stopping")))
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

/// Asks the supervisor of a data directory.
pub fn ask(data: &Path, request: &Request) -> Result<Reply> {
    let stream = Short::of(data).and_then(|short| StdStream::connect(&short.path));
    let mut stream = stream.map_err(|e| {
        Error::not_found(format!(
            "no `freebs up` runs on {} ({}); --data names the directory of the one that does",
            data.display(),
            files::plain(&e)
        ))
    })?;
    let broken = |e: io::Error| Error {
        kind: ErrorKind::Retry,
        text: format!("freebs up did not answer: {}", files::plain(&e)).into(),
    };
    stream.set_read_timeout(Some(timing::UP_ANSWER_MAX)).map_err(broken)?;
    let mut bytes = serde_json::to_vec(request).expect("a request has only what JSON can say");
    bytes.push(b'\n');
    stream.write_all(&bytes).map_err(broken)?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line).map_err(broken)?;
    match serde_json::from_str(&line) {
        Ok(Line::Ok(reply)) => Ok(reply),
        Ok(Line::Error(e)) => Err(Error { kind: e.kind, text: e.text.into() }),
        Err(e) => Err(Error::retry(format!("freebs up gave no answer that can be understood: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_through_a_directory_with_a_long_name() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("x".repeat(120));
        std::fs::create_dir(&data).unwrap();
        let e = ask(&data, &Request::Stop { node: "a".into() }).unwrap_err();
        assert!(e.text.contains("--data"), "{e}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut requests = listen(&data).unwrap();
            let there = data.clone();
            let asking = std::thread::spawn(move || {
                let one = ask(&there, &Request::Start { node: "a".into() });
                (one, ask(&there, &Request::Stop { node: "b".into() }))
            });
            let first = requests.recv().await.unwrap();
            assert_eq!(first.request.node(), "a");
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
}
