//! libfreebs: volumes and intervals of the Rust library `freebs` for C. The contract is `include/freebs.h`; here are its
//! functions, and nothing else.
//!
//! Invariants: no panic leaves a function; pointers are checked for null, and lengths against the volume, before a buffer
//! is touched; things are handed to C as numbers that are looked up; every error sets `errno` and the thread's text.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this is an edge crate")]

mod waiting;

use freebs::{Cluster, Error, Interval, Outcome, Placed, REQUEST_BYTES_MAX, Result, Volume};
use freebs_capi::{Table, bytes, bytes_mut, error, guard, length, null, status, text};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use waiting::wait;

/// `FREEBS_ERROR`.
pub const ALL_ONES: u64 = u64::MAX;

/// A cluster, as C has it: only the address means something.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct freebs_cluster(());

/// A volume or snapshot, as C has it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct freebs_volume(());

/// An interval, as C has it.
#[allow(non_camel_case_types, reason = "the name in C")]
pub struct freebs_interval(());

/// The place of an interval in the log of a shard.
#[allow(non_camel_case_types, reason = "the name in C")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct freebs_place {
    /// Number of the volume.
    pub volume: u64,
    /// The view in which it was found durable on a quorum.
    pub view: u64,
    /// Its frame, counted in that view's log.
    pub sequence: u64,
    /// Shard of the volume, from 0.
    pub shard: u32,
    /// 0.
    pub reserved: u32,
}

/// An interval between calls, and its volume; nothing once it has come to its end.
type Begun = Arc<Mutex<Option<(Volume, Interval)>>>;

static CLUSTERS: Table<Cluster> = Table::new("cluster", "clusters");
static VOLUMES: Table<Volume> = Table::new("volume", "volumes");
static INTERVALS: Table<Begun> = Table::new("interval", "intervals");

/// # Safety
/// Null, or a string that ends with a zero byte.
unsafe fn name<'a>(noun: &str, at: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { text(noun, at) }?;
    std::str::from_utf8(bytes).map_err(|_| Error::invalid(format!("the {noun} is not UTF-8")))
}

/// A length that one request may have in this volume: a buffer of another length is not even looked at.
fn within(volume: &Volume, len: u64) -> Result<usize> {
    if len > REQUEST_BYTES_MAX {
        return Err(Error::invalid("a read or write has at most 64 MiB: make it several"));
    }
    if len > volume.size() {
        return Err(Error::invalid(format!("{len} bytes are more than the volume's {}", volume.size())));
    }
    length(len)
}

/// Something that was opened, as C has it.
fn opened<T: Clone, C>(table: &Table<T>, open: impl FnOnce() -> Result<T>) -> *mut C {
    let number = guard(|| {
        table.ready()?;
        Ok(table.put(open()?))
    });
    number.unwrap_or_else(|e| null(&e))
}

/// Runs a call on an interval, one at a time.
fn on_interval<T>(number: *const freebs_interval, call: impl FnOnce(&Volume, &mut Interval) -> Result<T>) -> Result<T> {
    let begun = INTERVALS.get(number)?;
    let mut begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
    let (volume, interval) = begun.as_mut().ok_or_else(over)?;
    call(volume, interval)
}

/// Takes an interval away from C.
fn taken(number: *const freebs_interval) -> Result<Interval> {
    let begun = INTERVALS.take(number)?;
    let begun = begun.lock().unwrap_or_else(PoisonError::into_inner).take();
    begun.map(|(_, interval)| interval).ok_or_else(over)
}

fn over() -> Error {
    Error::invalid("the interval has come to its end meanwhile")
}

/// # Safety
/// See `freebs.h`.
unsafe fn addresses<'a>(at: *const c_char) -> Result<Vec<&'a str>> {
    // SAFETY: passed on.
    let addresses: Vec<&str> = unsafe { name("list of addresses", at) }?.split(',').map(str::trim).collect();
    match addresses.iter().any(|a| a.is_empty()) {
        true => Err(Error::invalid("an address is empty; say HOST:PORT, several with commas between them")),
        false => Ok(addresses),
    }
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_speak_as_node(data: *const c_char) -> c_int {
    status(guard(|| {
        // SAFETY: passed on.
        let data = OsStr::from_bytes(unsafe { text("data directory", data) }?);
        freebs::speak_as_node(Path::new(data))
    }))
}

/// From now on nodes on other machines are spoken with in plain, too.
#[unsafe(no_mangle)]
pub extern "C" fn freebs_trust_network() {
    freebs::trust_network();
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_connect(list: *const c_char) -> *mut freebs_cluster {
    // SAFETY: passed on.
    opened(&CLUSTERS, || wait(Cluster::connect(&unsafe { addresses(list) }?)))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_connect_as(list: *const c_char, as_name: *const c_char) -> *mut freebs_cluster {
    opened(&CLUSTERS, || {
        // SAFETY: passed on.
        let (addresses, name) = unsafe { (addresses(list)?, name("name", as_name)?) };
        wait(Cluster::connect_as(&addresses, name))
    })
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_close(cluster: *mut freebs_cluster) -> c_int {
    if cluster.is_null() {
        return 0;
    }
    status(guard(|| {
        wait(CLUSTERS.take(cluster)?.close());
        Ok(())
    }))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_attach(cluster: *mut freebs_cluster, volume: *const c_char) -> *mut freebs_volume {
    opened(&VOLUMES, || {
        let cluster = CLUSTERS.get(cluster)?;
        // SAFETY: passed on.
        wait(Volume::attach(&cluster, unsafe { name("volume's name", volume) }?))
    })
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_open_snapshot(
    cluster: *mut freebs_cluster,
    volume: *const c_char,
    snapshot: *const c_char,
) -> *mut freebs_volume {
    opened(&VOLUMES, || {
        let cluster = CLUSTERS.get(cluster)?;
        // SAFETY: passed on.
        let (volume, snapshot) = unsafe { (name("volume's name", volume)?, name("snapshot's name", snapshot)?) };
        wait(Volume::open_snapshot(&cluster, volume, snapshot))
    })
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_detach(volume: *mut freebs_volume) -> c_int {
    if volume.is_null() {
        return 0;
    }
    status(guard(|| wait(VOLUMES.take(volume)?.detach())))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_size(volume: *mut freebs_volume) -> u64 {
    guard(|| Ok(VOLUMES.get(volume)?.size())).unwrap_or_else(|e| {
        error(&e);
        ALL_ONES
    })
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_read(volume: *mut freebs_volume, buf: *mut c_void, len: u64, offset: u64) -> c_int {
    status(guard(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: by the contract as long and nobody else's; it is only written to.
        let buf = unsafe { bytes_mut(buf.cast(), within(&volume, len)?) }?;
        buf.copy_from_slice(&wait(volume.read(offset, buf.len()))?);
        Ok(())
    }))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_write(volume: *mut freebs_volume, buf: *const c_void, len: u64, offset: u64) -> c_int {
    status(guard(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: passed on.
        let data = unsafe { bytes(buf.cast(), within(&volume, len)?) }?.to_vec();
        wait(volume.write(offset, data))
    }))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_trim(volume: *mut freebs_volume, len: u64, offset: u64) -> c_int {
    status(guard(|| wait(VOLUMES.get(volume)?.trim(offset, len))))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_flush(volume: *mut freebs_volume) -> c_int {
    status(guard(|| wait(VOLUMES.get(volume)?.flush())))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_begin(volume: *mut freebs_volume) -> *mut freebs_interval {
    opened(&INTERVALS, || {
        let volume = VOLUMES.get(volume)?;
        let interval = volume.interval()?;
        Ok(Arc::new(Mutex::new(Some((volume, interval)))))
    })
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_interval_read(
    interval: *mut freebs_interval,
    buf: *mut c_void,
    len: u64,
    offset: u64,
) -> c_int {
    status(guard(|| {
        on_interval(interval, |volume, interval| {
            // SAFETY: by the contract as long and nobody else's; it is only written to.
            let buf = unsafe { bytes_mut(buf.cast(), within(volume, len)?) }?;
            buf.copy_from_slice(&wait(interval.read(offset, buf.len()))?);
            Ok(())
        })
    }))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_interval_write(
    interval: *mut freebs_interval,
    buf: *const c_void,
    len: u64,
    offset: u64,
) -> c_int {
    status(guard(|| {
        on_interval(interval, |volume, interval| {
            // SAFETY: passed on.
            let data = unsafe { bytes(buf.cast(), within(volume, len)?) }?.to_vec();
            interval.write(offset, data)
        })
    }))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_interval_trim(interval: *mut freebs_interval, len: u64, offset: u64) -> c_int {
    status(guard(|| on_interval(interval, |_, interval| interval.trim(offset, len))))
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_commit(
    interval: *mut freebs_interval,
    places: *mut freebs_place,
    count: *mut usize,
) -> c_int {
    let outcome = guard(|| {
        if count.is_null() && !places.is_null() {
            return Err(Error::invalid("the places have no count of their room"));
        }
        wait(taken(interval)?.commit())
    });
    match outcome {
        Ok(Outcome::Committed { places: all }) => {
            // SAFETY: passed on; places without a count were refused above.
            unsafe { give(&all, places, count) };
            0
        }
        Ok(Outcome::Aborted { why }) => {
            // The reason stays in `errno`.
            error(&why);
            -libc::ECANCELED
        }
        Err(e) => error(&e),
    }
}

/// Puts as many places as there is room for, and says how many there are.
///
/// # Safety
/// `count` is null, or has the number of places that `places` has room for, if that is not null.
unsafe fn give(all: &[Placed], places: *mut freebs_place, count: *mut usize) {
    if count.is_null() {
        return;
    }
    // SAFETY: not null; the caller's promise.
    let room = if places.is_null() { 0 } else { unsafe { count.read() } };
    for (i, placed) in all.iter().take(room).enumerate() {
        let place = freebs_place {
            volume: placed.shard.volume.0,
            view: placed.view.0,
            sequence: placed.sequence.0,
            shard: placed.shard.index,
            reserved: 0,
        };
        // SAFETY: within the room that the caller has promised.
        unsafe { places.add(i).write(place) };
    }
    // SAFETY: not null; the caller's promise.
    unsafe { count.write(all.len()) };
}

/// # Safety
/// See `freebs.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freebs_abort(interval: *mut freebs_interval) -> c_int {
    if interval.is_null() {
        return 0;
    }
    status(guard(|| {
        taken(interval)?.abort();
        Ok(())
    }))
}

/// The text of the thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn freebs_error() -> *const c_char {
    freebs_capi::last_text()
}

/// Major and minor number.
#[unsafe(no_mangle)]
pub extern "C" fn freebs_library_version() -> u32 {
    1
}
