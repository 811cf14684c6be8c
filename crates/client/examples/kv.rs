//! A key-value store in a volume that needs no log of its own: each change is an interval, which happens as a whole or not
//! at all, whatever is killed meanwhile.
//!
//!     kv 127.0.0.1:7400 store put apple red plum blue    # both or neither
//!     kv 127.0.0.1:7400 store get apple
//!     kv 127.0.0.1:7400 store del apple
//!     kv 127.0.0.1:7400 store list
//!     kv 127.0.0.1:7400 store check
//!
//! The first block counts the keys, and the buckets. Each other one is a bucket: a key lies in the bucket of its hash, as lengths (2 bytes
//! each), key and value, one behind the other, and zeroes behind the last. A put changes buckets and the count together, so
//! they agree after any crash, without a journal, a checksum or a repair at the start.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "a program of the edge")]

use freebs::{Cluster, Error, Interval, Result, Volume};
use std::io::Write as _;

const BLOCK: usize = 4096;
const MAGIC: &[u8; 8] = b"KVSTORE1";
/// Longest key and value together: several of them fit a bucket.
const ENTRY_BYTES_MAX: usize = 1000;

/// A key and its value, or the key alone to delete it.
type Change = (String, Option<String>);

struct Store {
    volume: Volume,
    buckets: u64,
}

impl Store {
    /// Opens the store of a volume; `begins`: begins one if nothing is in the volume's first MiB.
    async fn open(volume: Volume, begins: bool) -> Result<Self> {
        let first = volume.read(0, volume.size().min(1 << 20) as usize).await?;
        let number = |at: usize| u64::from_le_bytes(first[at..at + 8].try_into().expect("8 bytes"));
        let fits = volume.size() / BLOCK as u64 - 1;
        if first[..8] == MAGIC[..] && (1..=fits).contains(&number(16)) {
            return Ok(Self { volume, buckets: number(16) });
        }
        if first.iter().any(|b| *b != 0) {
            return Err(Error::invalid("the volume has something else in it than a store"));
        }
        if !begins {
            return Err(Error::not_found("there is no store in the volume; put begins one"));
        }
        // How many buckets there are is kept: where a key lies is to stay the same when the volume grows.
        volume.write(0, [&MAGIC[..], &[0; 8], &fits.to_le_bytes()].concat()).await?;
        Ok(Self { volume, buckets: fits })
    }

    fn place(&self, key: &str) -> u64 {
        // FNV-1a: the same in every version of this program.
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        (1 + hash % self.buckets) * BLOCK as u64
    }

    async fn get(&self, key: &str) -> Result<Option<String>> {
        let bucket = self.volume.read(self.place(key), BLOCK).await?;
        Ok(entries(&bucket)?.into_iter().find(|(k, _)| k == key).map(|(_, value)| value))
    }

    /// All of these, or none.
    async fn change(&self, changes: &[Change]) -> Result<()> {
        let mut interval = self.volume.interval()?;
        let mut count = count(&interval.read(0, 16).await?);
        for (key, value) in changes {
            count = count.wrapping_add_signed(self.change_one(&mut interval, key, value.as_deref()).await?);
        }
        interval.write(8, count.to_le_bytes().to_vec())?;
        interval.commit().await?.committed().map(|_| ())
    }

    /// Tells how many keys more there are. The interval sees what it has changed before.
    async fn change_one(&self, interval: &mut Interval, key: &str, value: Option<&str>) -> Result<i64> {
        if key.is_empty() || key.len() + value.map_or(0, str::len) > ENTRY_BYTES_MAX {
            return Err(Error::invalid("a key has a byte at least, and has 1,000 at most together with its value"));
        }
        let place = self.place(key);
        let mut all = entries(&interval.read(place, BLOCK).await?)?;
        let before = all.len();
        all.retain(|(k, _)| k != key);
        all.extend(value.map(|v| (key.to_owned(), v.to_owned())));
        let after = all.len();
        interval.write(place, bucket(&all)?)?;
        Ok(after as i64 - before as i64)
    }

    async fn all(&self) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        let end = (1 + self.buckets) * BLOCK as u64;
        let mut at = BLOCK as u64;
        while at < end {
            let bytes = self.volume.read(at, (end - at).min(1 << 20) as usize).await?;
            for bucket in bytes.chunks(BLOCK) {
                found.extend(entries(bucket)?);
            }
            at += bytes.len() as u64;
        }
        Ok(found)
    }

    /// Compares the count with the keys. They were changed together.
    async fn check(&self) -> Result<usize> {
        let (counted, there) = (count(&self.volume.read(0, 16).await?), self.all().await?.len());
        if counted == there as u64 {
            return Ok(there);
        }
        Err(Error::corrupt(format!("the store counts {counted} keys and has {there}")))
    }
}

fn count(head: &[u8]) -> u64 {
    u64::from_le_bytes(head[8..16].try_into().expect("8 bytes"))
}

fn entries(bucket: &[u8]) -> Result<Vec<(String, String)>> {
    let (mut found, mut rest) = (Vec::new(), bucket);
    let damaged = || Error::corrupt("a bucket is damaged");
    while let Some((lengths, more)) = rest.split_first_chunk::<4>() {
        let [key, value] = [0, 2].map(|i| usize::from(u16::from_le_bytes([lengths[i], lengths[i + 1]])));
        if key == 0 {
            break;
        }
        let (pair, behind) = more.split_at_checked(key + value).ok_or_else(damaged)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| damaged());
        found.push((text(&pair[..key])?, text(&pair[key..])?));
        rest = behind;
    }
    Ok(found)
}

fn bucket(entries: &[(String, String)]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(BLOCK);
    for (key, value) in entries {
        bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u16).to_le_bytes());
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(value.as_bytes());
    }
    if bytes.len() > BLOCK {
        return Err(Error::no_space("a bucket is full: begin a store in a larger volume"));
    }
    bytes.resize(BLOCK, 0);
    Ok(bytes)
}

/// Puts pairs of keys, both or neither, and prints the number of each pair that is there. Until it is killed.
async fn load(store: &Store) -> Result<()> {
    let begin: u64 = store.get("begin").await?.and_then(|n| n.parse().ok()).unwrap_or(0);
    for n in begin.. {
        let put = |key: String| (key, Some(format!("{n}")));
        let changes = [put(format!("left-{}", n % 500)), put(format!("right-{}", n % 500)), put("begin".into())];
        store.change(&changes).await?;
        // Standard output is a pipe: its reader may have gone.
        let _ = writeln!(std::io::stdout(), "{n}");
    }
    Ok(())
}

async fn run(store: &Store, args: &[&str]) -> Result<()> {
    match args {
        ["put", pairs @ ..] if !pairs.is_empty() && pairs.len().is_multiple_of(2) => {
            let changes: Vec<Change> = pairs.chunks(2).map(|p| (p[0].into(), Some(p[1].into()))).collect();
            store.change(&changes).await
        }
        ["get", key] => {
            let value = store.get(key).await?.ok_or_else(|| Error::not_found(format!("there is no {key}")))?;
            println!("{value}");
            Ok(())
        }
        ["del", keys @ ..] if !keys.is_empty() => {
            store.change(&keys.iter().map(|k| ((*k).into(), None)).collect::<Vec<_>>()).await
        }
        ["list"] => {
            store.all().await?.iter().for_each(|(key, value)| println!("{key} {value}"));
            Ok(())
        }
        ["check"] => {
            println!("{} keys", store.check().await?);
            Ok(())
        }
        ["load"] => load(store).await,
        _ => Err(Error::invalid("say put KEY VALUE ..., get KEY, del KEY ..., list, check or load")),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = async {
        let [addresses, volume, rest @ ..] = &args[..] else {
            return Err(Error::invalid("say kv ADDRESSES VOLUME and what to do"));
        };
        let addresses: Vec<&str> = addresses.split(',').collect();
        // The name makes the next process the owner of what one has left that was killed.
        let cluster = Cluster::connect_as(&addresses, "kv-example").await?;
        let volume = Volume::attach(&cluster, volume).await?;
        let begins = matches!(rest.first(), Some(&("put" | "load")));
        let done = run(&Store::open(volume, begins).await?, rest).await;
        cluster.close().await;
        done
    };
    if let Err(e) = done.await {
        eprintln!("kv: {e}");
        std::process::exit(1);
    }
}
