//! A store in memory with planned faults, disks that are backed up, and disks that are restored to.

use async_trait::async_trait;
use bytes::Bytes;
use freebs_backup::limits::BLOCK_BYTES;
use freebs_backup::{Created, Id, Keys, Moment, Order, Sink, Source, Store, Target, Unwatched, create, open, restore};
use freebs_io::Random;
use freebs_types::{ClusterId, Error, Result, VolumeId};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

pub const BLOCK: u64 = BLOCK_BYTES as u64;

/// Something that goes wrong at a put or a listing, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The put fails and nothing is stored.
    FailPut(u64),
    /// The put is done, and the answer lost; a repetition of a conditional one meets its own object.
    LoseAnswer(u64),
    /// The client ends before the put.
    KillBefore(u64),
    /// The client ends behind it.
    KillBehind(u64),
    /// The listing ends with an error in its middle.
    CutListing(u64),
    /// A conditional put meets another request for the same key: nothing is stored, and S3 says 409.
    Conflict(u64),
    /// So does each one from this put on.
    Conflicts(u64),
}

#[derive(Debug, Default)]
struct State {
    tick: u64,
    times: BTreeMap<String, u64>,
    fault: Option<Fault>,
    puts: u64,
    gets: u64,
    listings: u64,
    /// Keys that are listed and can't be found.
    hidden: Vec<String>,
    /// Bytes that were put.
    sent: u64,
    is_dead: bool,
}

/// The store.
#[derive(Debug, Default)]
pub struct Memory {
    inner: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

fn broken(why: &'static str) -> object_store::Error {
    object_store::Error::Generic { store: "memory", source: why.into() }
}

/// Lets others run: each request of a client is a step.
async fn step() {
    let mut is_second = false;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_second, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Memory {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn store(self: &Arc<Self>) -> Store {
        Store::new(self.clone(), "memory")
    }

    pub fn plan(&self, fault: Option<Fault>) {
        let mut state = self.state.lock().expect("one thread");
        let (tick, times) = (state.tick, std::mem::take(&mut state.times));
        *state = State { tick, times, fault, ..State::default() };
    }

    pub fn puts(&self) -> u64 {
        self.state.lock().expect("one thread").puts
    }

    pub fn gets(&self) -> u64 {
        self.state.lock().expect("one thread").gets
    }

    /// From now on these keys are listed and can't be found.
    pub fn hide(&self, keys: &[String]) {
        self.state.lock().expect("one thread").hidden = keys.to_vec();
    }

    pub fn sent(&self) -> u64 {
        self.state.lock().expect("one thread").sent
    }

    /// Time passes.
    pub fn wait(&self, ms: u64) {
        self.state.lock().expect("one thread").tick += ms;
    }

    pub fn keys(&self) -> Vec<String> {
        let all: Vec<ObjectMeta> = finish(self.inner.list(None).try_collect()).expect("memory");
        let mut keys: Vec<String> = all.into_iter().map(|m| m.location.to_string()).collect();
        keys.sort();
        keys
    }

    pub fn read(&self, key: &str) -> Vec<u8> {
        let got = finish(self.inner.get(&Path::from(key))).expect("it is there");
        finish(got.bytes()).expect("memory").to_vec()
    }

    pub fn write(&self, key: &str, bytes: Vec<u8>) {
        finish(self.inner.put(&Path::from(key), bytes.into())).expect("memory");
    }

    pub fn remove(&self, key: &str) {
        finish(self.inner.delete(&Path::from(key))).expect("memory");
    }

    fn alive(&self) -> object_store::Result<()> {
        if self.state.lock().expect("one thread").is_dead { Err(broken("the client has ended")) } else { Ok(()) }
    }

    fn dated(state: &Mutex<State>, mut meta: ObjectMeta) -> ObjectMeta {
        let state = state.lock().expect("one thread");
        let time = state.times.get(meta.location.as_ref()).copied().unwrap_or(0);
        meta.last_modified = (std::time::UNIX_EPOCH + std::time::Duration::from_millis(time)).into();
        meta
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("memory")
    }
}

#[async_trait]
impl ObjectStore for Memory {
    async fn put_opts(&self, at: &Path, payload: PutPayload, opts: PutOptions) -> object_store::Result<PutResult> {
        step().await;
        self.alive()?;
        let (fault, nth) = {
            let mut state = self.state.lock().expect("one thread");
            state.puts += 1;
            state.tick += 1;
            state.sent += payload.content_length() as u64;
            (state.fault, state.puts)
        };
        if fault == Some(Fault::FailPut(nth)) {
            return Err(broken("the disk is on fire"));
        }
        if fault == Some(Fault::KillBefore(nth)) {
            self.state.lock().expect("one thread").is_dead = true;
            return Err(broken("killed"));
        }
        let is_create = opts.mode == PutMode::Create;
        let meets = matches!(fault, Some(Fault::Conflict(n)) if n == nth)
            || matches!(fault, Some(Fault::Conflicts(n)) if n <= nth);
        if meets && is_create {
            return Err(object_store::Error::AlreadyExists { path: at.to_string(), source: "try again".into() });
        }
        let put = self.inner.put_opts(at, payload, opts).await?;
        {
            let mut state = self.state.lock().expect("one thread");
            let tick = state.tick;
            state.times.insert(at.to_string(), tick);
            state.is_dead |= fault == Some(Fault::KillBehind(nth));
        }
        match fault {
            Some(Fault::KillBehind(n)) if n == nth => Err(broken("killed")),
            Some(Fault::LoseAnswer(n)) if n == nth && is_create => {
                Err(object_store::Error::AlreadyExists { path: at.to_string(), source: "it is there".into() })
            }
            Some(Fault::LoseAnswer(n)) if n == nth => Err(broken("no answer came")),
            _ => Ok(put),
        }
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        Err(broken("no object is so large"))
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        step().await;
        self.alive()?;
        {
            let mut state = self.state.lock().expect("one thread");
            state.gets += u64::from(!options.head);
            if state.hidden.iter().any(|key| key == at.as_ref()) {
                return Err(object_store::Error::NotFound { path: at.to_string(), source: "it is hidden".into() });
            }
        }
        let mut got = self.inner.get_opts(at, options).await?;
        got.meta = Self::dated(&self.state, got.meta);
        Ok(got)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        let (inner, state) = (self.inner.clone(), self.state.clone());
        paths
            .then(move |path| {
                let (inner, state) = (inner.clone(), state.clone());
                async move {
                    step().await;
                    if state.lock().expect("one thread").is_dead {
                        return Err(broken("the client has ended"));
                    }
                    let path = path?;
                    inner.delete(&path).await?;
                    Ok(path)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        let dead = self.alive();
        let state = self.state.clone();
        let cut = {
            let mut state = state.lock().expect("one thread");
            state.listings += 1;
            state.fault == Some(Fault::CutListing(state.listings))
        };
        let inner = self.inner.clone();
        let prefix = prefix.cloned();
        // The listing is of the moment in which it is first asked for. What is written again meanwhile is not in it: a rename
        // over a file takes its old entry away, and the new one may be where nobody looks any more.
        let listed = async move {
            step().await;
            dead?;
            let mut all: Vec<ObjectMeta> = inner.list(prefix.as_ref()).try_collect().await?;
            let then = state.lock().expect("one thread").tick;
            step().await;
            {
                let state = state.lock().expect("one thread");
                all.retain(|m| state.times.get(m.location.as_ref()).is_none_or(|at| *at <= then));
            }
            let mut all: Vec<_> = all.into_iter().map(|m| Ok(Self::dated(&state, m))).collect();
            if cut {
                all.truncate(all.len() / 2);
                all.push(Err(broken("the connection was lost")));
            }
            Ok::<_, object_store::Error>(futures_util::stream::iter(all))
        };
        futures_util::stream::once(listed).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        step().await;
        self.alive()?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store::Result<()> {
        Err(broken("nothing is copied"))
    }
}

/// Somebody by whose clock a sign of life is always due.
pub struct Lively;

impl freebs_backup::Watch for Lively {
    fn is_due(&self) -> bool {
        true
    }
}

/// Numbers from a seed (splitmix64).
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

impl Random for Rng {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.chunks_mut(8).for_each(|c| c.copy_from_slice(&self.next().to_le_bytes()[..c.len()]));
    }
}

/// Runs something that waits for nobody else.
pub fn finish<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

/// Something that is under way.
pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A part of it; `None` if it goes on.
pub fn poll<T>(task: &mut Task<'_, T>) -> Option<T> {
    match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// A disk whose blocks are drawn from seeds; those that are not there are zeroes.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    pub size: u64,
    pub blocks: BTreeMap<u64, u64>,
    /// Its blocks at some moments.
    pub moments: BTreeMap<u8, BTreeMap<u64, u64>>,
    pub now: u8,
    /// It finds that it can't tell what changed when it is asked.
    pub has_lost_track: bool,
    /// Bytes that were read.
    pub read: Cell<u64>,
}

/// The content of a block of this seed: even ones can be compressed, odd ones can't.
pub fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        let word = if seed.is_multiple_of(2) { seed | 1 << 63 } else { rng.next() };
        bytes.extend(word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl Disk {
    pub fn new(size: u64, blocks: &[(u64, u64)]) -> Self {
        Self { size, blocks: blocks.iter().copied().collect(), ..Self::default() }
    }

    fn block_len(&self, block: u64) -> usize {
        (self.size - block * BLOCK).min(BLOCK) as usize
    }
}

fn moment(n: u8) -> Moment {
    let mut moment = Moment::default();
    moment.0[0] = n;
    moment
}

impl Source for Disk {
    fn size(&self) -> u64 {
        self.size
    }

    fn moment(&self) -> Moment {
        moment(self.now)
    }

    fn can_tell_since(&self, since: &Moment) -> bool {
        self.moments.contains_key(&since.0[0])
    }

    async fn extents(&self, range: Range<u64>, since: Option<&Moment>, each: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        let nothing = BTreeMap::new();
        let then = since.map_or(&nothing, |m| &self.moments[&m.0[0]]);
        let all = self.blocks.keys().chain(then.keys());
        for (n, block) in
            all.filter(|b| range.contains(&(**b * BLOCK)) && self.blocks.get(b) != then.get(b)).enumerate()
        {
            if n > 0 && since.is_some() && self.has_lost_track {
                return Err(Error::not_found("that moment is gone"));
            }
            // Not the whole block: what is asked for is the caller's choice.
            each(block * BLOCK + 5..block * BLOCK + 6);
        }
        Ok(())
    }

    async fn read(&self, range: Range<u64>) -> Result<Vec<Bytes>> {
        step().await;
        let (block, len) = (range.start / BLOCK, (range.end - range.start) as usize);
        assert!(range.start.is_multiple_of(BLOCK) && len == self.block_len(block), "whole blocks are read");
        self.read.set(self.read.get() + len as u64);
        let bytes = self.blocks.get(&block).map_or_else(|| vec![0; len], |seed| content(*seed, len));
        let (a, b) = bytes.split_at(len / 3);
        Ok(vec![Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)])
    }
}

/// A disk that is restored to, by blocks.
#[derive(Default)]
pub struct Written {
    pub size: u64,
    pub is_blank: bool,
    pub blocks: RefCell<BTreeMap<u64, Vec<u8>>>,
    pub flushed: Cell<bool>,
}

impl Written {
    pub fn new(size: u64) -> Self {
        Self { size, is_blank: true, ..Self::default() }
    }

    /// It is the same disk.
    pub fn check(&self, disk: &Disk) {
        assert!(self.flushed.get(), "all of it is durable");
        let blocks = self.blocks.borrow();
        let is: Vec<u64> = blocks.iter().filter(|(_, bytes)| bytes.iter().any(|b| *b != 0)).map(|(b, _)| *b).collect();
        assert_eq!(is, disk.blocks.keys().copied().collect::<Vec<_>>());
        for (block, seed) in &disk.blocks {
            let len = disk.block_len(*block);
            assert!(blocks[block][..len] == content(*seed, len)[..], "block {block}");
        }
    }
}

impl Sink for Written {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_blank(&self) -> bool {
        self.is_blank
    }

    async fn write(&self, at: u64, bytes: Bytes) -> Result<()> {
        assert!(at + bytes.len() as u64 <= self.size, "within the disk");
        self.flushed.set(false);
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks.entry(at / BLOCK).or_insert_with(|| vec![0; BLOCK as usize]);
        let from = (at % BLOCK) as usize;
        block[from..from + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }

    async fn zero(&self, range: Range<u64>) -> Result<()> {
        self.blocks.borrow_mut().retain(|b, _| !range.contains(&(b * BLOCK)));
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        self.flushed.set(true);
        Ok(())
    }
}

pub fn order(volume: u64, now_ms: u64) -> Order {
    Order {
        cluster: ClusterId([7; 16]),
        volume: VolumeId(volume),
        name: format!("vol{volume}"),
        now_ms,
        locked_until_ms: 0,
        full: false,
    }
}

pub fn target(store: &Arc<Memory>, seed: u64) -> Target {
    finish(Target::open(store.store(), None, Box::new(Rng(seed)), true)).expect("a target")
}

pub fn sealed(store: &Arc<Memory>, key: u8, seed: u64) -> Result<Target> {
    finish(Target::open(store.store(), Some(Keys::new(&[key; 32])), Box::new(Rng(seed)), true))
}

pub fn backup(target: &Target, disk: &Disk, volume: u64, now_ms: u64) -> Result<Created> {
    finish(create(target, disk, &order(volume, now_ms), &Unwatched))
}

/// The backups that a list shows as whole.
pub fn ids(target: &Target) -> Vec<Id> {
    let listed = finish(freebs_backup::list(target)).expect("a list").backups;
    listed.into_iter().filter(|b| b.details.is_ok()).map(|b| b.id).collect()
}

/// The backup restores to this disk.
pub fn check(target: &Target, id: Id, disk: &Disk) {
    let manifest = finish(open(target, id)).expect("a manifest");
    let to = Written::new(disk.size);
    finish(restore(target, &manifest, &to, &Unwatched)).unwrap_or_else(|e| panic!("{id}: {e}"));
    to.check(disk);
}
