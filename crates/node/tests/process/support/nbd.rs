//! An NBD client for tests: fixed newstyle, structured or simple replies, any number of requests in flight.
//!
//! It trusts the server's framing only as far as it can check it: a reply to an unknown cookie, a chunk out of range
//! or a read with a gap is a failure of the test.

use super::PATIENCE;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED: u32 = 8;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;

pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;

/// A server that takes nothing for so long fails the test.
const WRITE_MAX: Duration = Duration::from_secs(90);
/// Longest until a server takes a connection.
const CONNECT_MAX: Duration = PATIENCE;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Tcp(String),
    Unix(PathBuf),
}

impl Place {
    /// The URI of a volume there, for real clients.
    #[must_use]
    pub fn uri(&self, volume: &str) -> String {
        match self {
            Self::Tcp(address) => format!("nbd://{address}/{volume}"),
            Self::Unix(path) => format!("nbd+unix:///{volume}?socket={}", path.display()),
        }
    }
}

trait Stream: Read + Write + Send {
    fn close(&self);
    /// How long a read waits; `None` for ever.
    fn patience(&self, limit: Option<Duration>) -> io::Result<()>;
}
impl Stream for TcpStream {
    fn close(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
    fn patience(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(limit)
    }
}
impl Stream for UnixStream {
    fn close(&self) {
        let _ = self.shutdown(std::net::Shutdown::Both);
    }
    fn patience(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(limit)
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Read {
        at: u64,
        len: u32,
    },
    Write {
        at: u64,
        data: Vec<u8>,
        fua: bool,
    },
    Flush,
    Trim {
        at: u64,
        len: u32,
    },
    Zero {
        at: u64,
        len: u32,
        fua: bool,
    },
    /// A zero that must be fast or fail.
    FastZero {
        at: u64,
        len: u32,
    },
}

/// The answer to a request: the bytes of a read, nothing for others, or an NBD error number.
#[derive(Clone, Debug)]
pub struct Answer {
    pub cookie: u64,
    pub result: Result<Vec<u8>, u32>,
}

/// What has come of a reply. Errors and data may come in chunks, in any order.
#[derive(Default)]
struct Reply {
    at: u64,
    len: usize,
    data: Vec<u8>,
    filled: usize,
    error: Option<u32>,
}

type Open = Arc<Mutex<BTreeMap<u64, Reply>>>;

/// One connection to one export.
pub struct Client {
    out: Box<dyn Stream>,
    answers: Receiver<io::Result<Answer>>,
    open: Open,
    next: u64,
    /// Bytes of the export.
    pub size: u64,
    /// Transmission flags as the server gave them.
    pub flags: u16,
}

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn number<const N: usize>(from: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn u16_of(from: &mut dyn Read) -> io::Result<u16> {
    number(from).map(u16::from_be_bytes)
}
fn u32_of(from: &mut dyn Read) -> io::Result<u32> {
    number(from).map(u32::from_be_bytes)
}
fn u64_of(from: &mut dyn Read) -> io::Result<u64> {
    number(from).map(u64::from_be_bytes)
}

fn option(to: &mut dyn Stream, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    to.write_all(&bytes)
}

fn option_reply(from: &mut dyn Stream, kind: u32) -> io::Result<(u32, Vec<u8>)> {
    if u64_of(from)? != OPTION_REPLY || u32_of(from)? != kind {
        return Err(bad("no reply to the option"));
    }
    let (reply, len) = (u32_of(from)?, u32_of(from)?);
    if len > 1 << 20 {
        return Err(bad("an option's reply is too long"));
    }
    let mut data = vec![0; len as usize];
    from.read_exact(&mut data)?;
    Ok((reply, data))
}

/// The handshake: size and transmission flags of the export.
fn negotiate(s: &mut dyn Stream, export: &str, structured: bool) -> io::Result<(u64, u16)> {
    if u64_of(s)? != NBDMAGIC || u64_of(s)? != IHAVEOPT || u16_of(s)? & 3 != 3 {
        return Err(bad("the server does not speak fixed newstyle without zeroes"));
    }
    s.write_all(&3u32.to_be_bytes())?;
    if structured {
        option(s, OPT_STRUCTURED, &[])?;
        if option_reply(s, OPT_STRUCTURED)?.0 != REP_ACK {
            return Err(bad("structured replies are refused"));
        }
    }
    let mut go = (export.len() as u32).to_be_bytes().to_vec();
    go.extend(export.as_bytes());
    go.extend([0, 0]);
    option(s, OPT_GO, &go)?;
    let mut found = None;
    loop {
        let (reply, data) = option_reply(s, OPT_GO)?;
        match reply {
            REP_ACK => return found.ok_or_else(|| bad("GO without information on the export")),
            REP_INFO if data.len() == 12 && data[..2] == [0, 0] => {
                let size = u64::from_be_bytes(data[2..10].try_into().expect("eight bytes"));
                found = Some((size, u16::from_be_bytes(data[10..].try_into().expect("two bytes"))));
            }
            REP_INFO => {}
            _ => return Err(bad(format!("refused: {reply:#x} {}", String::from_utf8_lossy(&data)))),
        }
    }
}

impl Client {
    /// Connects and attaches `export`.
    pub fn connect(place: &Place, export: &str, structured: bool) -> io::Result<Self> {
        let (mut out, input): (Box<dyn Stream>, Box<dyn Stream>) = match place {
            Place::Tcp(address) => {
                let address = address.parse().map_err(|e| bad(format!("{address}: {e}")))?;
                let s = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
                s.set_nodelay(true)?;
                s.set_write_timeout(Some(WRITE_MAX))?;
                (Box::new(s.try_clone()?), Box::new(s))
            }
            Place::Unix(path) => {
                let s = UnixStream::connect(path)?;
                s.set_write_timeout(Some(WRITE_MAX))?;
                (Box::new(s.try_clone()?), Box::new(s))
            }
        };
        out.patience(Some(CONNECT_MAX))?;
        let (size, flags) = negotiate(&mut *out, export, structured)?;
        out.patience(None)?;
        let open = Open::default();
        let (to, answers) = mpsc::channel();
        let waiting = open.clone();
        std::thread::spawn(move || {
            let mut input = input;
            loop {
                let answer = next_answer(&mut *input, &waiting);
                let last = answer.is_err();
                if to.send(answer).is_err() || last {
                    return;
                }
            }
        });
        Ok(Self { out, answers, open, next: 0, size, flags })
    }

    /// Connects as soon as the server lets us.
    pub fn attach(place: &Place, export: &str) -> Self {
        let begun = std::time::Instant::now();
        loop {
            match Self::connect(place, export, true) {
                Ok(client) => return client,
                Err(e) => assert!(begun.elapsed() < PATIENCE, "{place:?} {export}: {e} for {PATIENCE:?}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a request; its cookie.
    pub fn send(&mut self, op: &Op) -> io::Result<u64> {
        let (flags, kind, at, len, data): (u16, u16, u64, u32, &[u8]) = match op {
            Op::Read { at, len } => (0, 0, *at, *len, &[]),
            Op::Write { at, data, fua } => (u16::from(*fua), 1, *at, data.len() as u32, data),
            Op::Flush => (0, 3, 0, 0, &[]),
            Op::Trim { at, len } => (0, 4, *at, *len, &[]),
            Op::Zero { at, len, fua } => (u16::from(*fua), 6, *at, *len, &[]),
            Op::FastZero { at, len } => (16, 6, *at, *len, &[]),
        };
        self.next += 1;
        let reply = Reply { at, len: if kind == 0 { len as usize } else { 0 }, ..Reply::default() };
        self.open.lock().expect("no panic under the lock").insert(self.next, reply);
        let mut bytes = Vec::with_capacity(28 + data.len());
        bytes.extend(REQUEST.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(self.next.to_be_bytes());
        bytes.extend(at.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        bytes.extend(data);
        self.out.write_all(&bytes)?;
        Ok(self.next)
    }

    /// The next answer; `None` if none came in time.
    pub fn answer(&mut self, limit: Duration) -> io::Result<Option<Answer>> {
        match self.answers.recv_timeout(limit) {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(e)) => Err(e),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// One request and its answer, with nothing else in flight.
    pub fn ask(&mut self, op: &Op) -> io::Result<Result<Vec<u8>, u32>> {
        let cookie = self.send(op)?;
        match self.answer(PATIENCE)? {
            Some(answer) if answer.cookie == cookie => Ok(answer.result),
            Some(_) => Err(bad("an answer to another request")),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Reads; fails the test on any error.
    pub fn read(&mut self, at: u64, len: u32) -> Vec<u8> {
        self.ask(&Op::Read { at, len }).expect("a connection").unwrap_or_else(|e| panic!("read at {at}: error {e}"))
    }

    /// Writes; fails the test on any error.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        let op = Op::Write { at, data: data.to_vec(), fua: false };
        self.ask(&op).expect("a connection").unwrap_or_else(|e| panic!("write at {at}: error {e}"));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.out.close();
    }
}

/// Reads until one reply is whole. Chunks of several replies may be mixed.
fn next_answer(from: &mut dyn Stream, open: &Open) -> io::Result<Answer> {
    loop {
        match u32_of(from)? {
            SIMPLE_REPLY => {
                let (code, cookie) = (u32_of(from)?, u64_of(from)?);
                let mut reply = take(open, cookie)?;
                if code != 0 {
                    return Ok(Answer { cookie, result: Err(code) });
                }
                reply.data.resize(reply.len, 0);
                from.read_exact(&mut reply.data)?;
                return Ok(Answer { cookie, result: Ok(reply.data) });
            }
            STRUCTURED_REPLY => {
                let (flags, kind) = (u16_of(from)?, u16_of(from)?);
                let (cookie, len) = (u64_of(from)?, u32_of(from)? as usize);
                if len > 64 << 20 {
                    return Err(bad("a chunk is too long"));
                }
                let mut body = vec![0; len];
                from.read_exact(&mut body)?;
                let mut reply = take(open, cookie)?;
                reply.chunk(kind, &body)?;
                if flags & 1 == 0 {
                    open.lock().expect("no panic under the lock").insert(cookie, reply);
                    continue;
                }
                return match reply.error {
                    Some(code) => Ok(Answer { cookie, result: Err(code) }),
                    None if reply.filled != reply.len => {
                        Err(bad(format!("a read of {} bytes answered with {}", reply.len, reply.filled)))
                    }
                    None => Ok(Answer { cookie, result: Ok(reply.data) }),
                };
            }
            other => return Err(bad(format!("no reply magic: {other:#x}"))),
        }
    }
}

fn take(open: &Open, cookie: u64) -> io::Result<Reply> {
    open.lock().expect("no panic under the lock").remove(&cookie).ok_or_else(|| bad("an answer to no request"))
}

impl Reply {
    fn chunk(&mut self, kind: u16, body: &[u8]) -> io::Result<()> {
        self.data.resize(self.len, 0xee);
        let place = |at: &[u8], len: usize| {
            let at = u64::from_be_bytes(at.try_into().expect("eight bytes")).checked_sub(self.at);
            let from = at.filter(|a| a + len as u64 <= self.len as u64).ok_or_else(|| bad("a chunk out of range"))?;
            Ok::<_, io::Error>(from as usize..from as usize + len)
        };
        match kind {
            0 if body.is_empty() => {}
            1 if body.len() > 8 => {
                let range = place(&body[..8], body.len() - 8)?;
                self.filled += range.len();
                self.data[range].copy_from_slice(&body[8..]);
            }
            2 if body.len() == 12 => {
                let hole = u32::from_be_bytes(body[8..].try_into().expect("four bytes")) as usize;
                let range = place(&body[..8], hole)?;
                self.filled += range.len();
                self.data[range].fill(0);
            }
            k if k & 0x8000 != 0 && body.len() >= 6 => {
                self.error = Some(u32::from_be_bytes(body[..4].try_into().expect("four bytes")));
            }
            k => return Err(bad(format!("a chunk of kind {k} and {} bytes", body.len()))),
        }
        Ok(())
    }
}
