//! Load on NBD servers from one thread: any number of connections, each with its own depth of random 4 KiB writes.
//!
//!     cargo run --release -p freebs-node --example nbd_load -- SECONDS DEPTH SOCKET EXPORT [EXPORT ...]
//!
//! An export may be named several times for several connections. Prints requests per second of all of them. What a
//! request costs here does not depend on the number of connections beyond one system call each way, so that many
//! shallow connections can be held against one deep one. OVERWRITES the exports.

#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a load generator is an edge")]

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const BLOCK: usize = 4096;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

/// Fixed newstyle, GO, simple replies; gives back the size of the export.
async fn open(socket: &str, export: &str) -> io::Result<(UnixStream, u64)> {
    let mut s = UnixStream::connect(socket).await?;
    if s.read_u64().await? != 0x4e42_444d_4147_4943 || s.read_u64().await? != 0x4948_4156_454f_5054 {
        return Err(wrong("this is no NBD server"));
    }
    s.read_u16().await?;
    let name = export.as_bytes();
    let mut hello = Vec::new();
    hello.extend_from_slice(&3u32.to_be_bytes());
    hello.extend_from_slice(&0x4948_4156_454f_5054u64.to_be_bytes());
    hello.extend_from_slice(&OPT_GO.to_be_bytes());
    hello.extend_from_slice(&(name.len() as u32 + 6).to_be_bytes());
    hello.extend_from_slice(&(name.len() as u32).to_be_bytes());
    hello.extend_from_slice(name);
    hello.extend_from_slice(&0u16.to_be_bytes());
    s.write_all(&hello).await?;
    let mut size = 0;
    loop {
        let (_magic, _option, kind, len) =
            (s.read_u64().await?, s.read_u32().await?, s.read_u32().await?, s.read_u32().await?);
        let mut body = vec![0; len.min(1 << 16) as usize];
        s.read_exact(&mut body).await?;
        match kind {
            REP_ACK => return Ok((s, size)),
            REP_INFO if body.len() >= 10 && body[..2] == [0, 0] => {
                size = u64::from_be_bytes(body[2..10].try_into().expect("eight bytes"));
            }
            REP_INFO => {}
            _ => return Err(wrong(format!("{export}: {}", String::from_utf8_lossy(&body)))),
        }
    }
}

struct Load {
    end: Instant,
    done: Rc<Cell<u64>>,
    random: u64,
    blocks: u64,
    payload: Vec<u8>,
}

impl Load {
    /// `count` requests, as the bytes of one message.
    fn requests(&mut self, count: usize, out: &mut Vec<u8>) {
        out.clear();
        for _ in 0..count {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            out.extend_from_slice(&REQUEST.to_be_bytes());
            out.extend_from_slice(&[0, 0, 0, 1]);
            out.extend_from_slice(&self.random.to_be_bytes());
            out.extend_from_slice(&(self.random % self.blocks * BLOCK as u64).to_be_bytes());
            out.extend_from_slice(&(BLOCK as u32).to_be_bytes());
            self.payload[..8].copy_from_slice(&self.random.to_be_bytes());
            out.extend_from_slice(&self.payload);
        }
    }

    async fn run(mut self, mut s: UnixStream, depth: usize) -> io::Result<()> {
        let (mut out, mut input) = (Vec::new(), vec![0; 64 << 10]);
        let mut have = 0;
        self.requests(depth, &mut out);
        s.write_all(&out).await?;
        let mut waiting = depth;
        while waiting > 0 {
            have += match s.read(&mut input[have..]).await? {
                0 => return Err(wrong("the server closed the connection")),
                n => n,
            };
            let whole = have / 16;
            for reply in input[..whole * 16].chunks_exact(16) {
                if reply[..4] != SIMPLE_REPLY.to_be_bytes() || reply[4..8] != [0; 4] {
                    return Err(wrong("a request failed"));
                }
            }
            input.copy_within(whole * 16..have, 0);
            have -= whole * 16;
            waiting -= whole;
            if Instant::now() < self.end {
                self.done.set(self.done.get() + whole as u64);
                self.requests(whole, &mut out);
                s.write_all(&out).await?;
                waiting += whole;
            }
        }
        Ok(())
    }
}

async fn all(seconds: f64, depth: usize, socket: &str, exports: &[String]) -> io::Result<f64> {
    let mut open_ones = Vec::new();
    for e in exports {
        open_ones.push(open(socket, e).await?);
    }
    let done = Rc::new(Cell::new(0));
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(seconds);
    let tasks = open_ones.into_iter().enumerate().map(|(i, (s, size))| {
        let random = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let payload = random.to_le_bytes().repeat(BLOCK / 8);
        let load = Load { end, done: done.clone(), random, blocks: size / BLOCK as u64, payload };
        tokio::task::spawn_local(load.run(s, depth))
    });
    for t in tasks.collect::<Vec<_>>() {
        t.await.map_err(io::Error::other)??;
    }
    Ok(done.get() as f64 / seconds)
}

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers = (args.first().and_then(|a| a.parse().ok()), args.get(1).and_then(|a| a.parse().ok()));
    let (Some(seconds), Some(depth)) = numbers else {
        return Err(wrong("usage: nbd_load SECONDS DEPTH SOCKET EXPORT [EXPORT ...]"));
    };
    if args.len() < 4 {
        return Err(wrong("name a socket and at least one export"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rate = tokio::task::LocalSet::new().block_on(&runtime, all(seconds, depth, &args[2], &args[3..]))?;
    println!("{rate:.0}");
    Ok(())
}
