//! What happened on this node, and what it saw the control plane decide: the newest events in memory, and as lines of
//! JSON in its data directory, so that a restart does not forget what led to it.
//!
//! Invariants: events are for people; nothing is decided by them, and a file that can't be written or read costs the
//! node nothing but its memory of them. Memory and files are bounded. Nobody waits for the disk: a thread writes.

use crate::timing;
use freebs_chain::{Note, NoteKind};
use freebs_control::State;
use freebs_control::api::EventsOf;
use freebs_control::events::{EVENTS_PAGE_MAX, Event, EventKind, Told};
use freebs_types::{Error, Result};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The newest events, and those before them.
const FILE: &str = "events.jsonl";
const OLDER: &str = "events.older.jsonl";
/// Bytes of a file before it becomes the older one.
const FILE_BYTES_MAX: u64 = 2 << 20;
/// Bytes of one line; longer ones are not ours.
const LINE_BYTES_MAX: usize = 4096;
/// Events in memory.
const EVENTS_MAX: usize = 8192;
/// Lines that wait to be written; beyond, they stay in memory only.
const LINES_MAX: usize = 1024;

struct Known {
    events: VecDeque<Event>,
    /// Highest revision of the control state that something was told of.
    revision: u64,
}

/// The events of one node.
pub struct EventLog {
    node: String,
    known: Mutex<Known>,
    lines: Option<SyncSender<Vec<u8>>>,
    /// There were events before this start.
    goes_on: bool,
}

/// The wall clock, milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

impl std::fmt::Debug for EventLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "events of {}", self.node)
    }
}

impl EventLog {
    /// Goes on with what is in the data directory.
    pub fn open(data: &Path, node: &str) -> Arc<Self> {
        let mut events = VecDeque::new();
        let (older, newer) = (read(&data.join(OLDER)), read(&data.join(FILE)));
        let goes_on = newer.is_some();
        for e in older.into_iter().chain(newer).flatten() {
            if events.len() == EVENTS_MAX {
                events.pop_front();
            }
            events.push_back(e);
        }
        let revision = events.iter().filter_map(|e: &Event| e.told.revision).max().unwrap_or(0);
        let lines = match writer(data) {
            Ok(lines) => Some(lines),
            Err(e) => {
                tracing::warn!("events are kept in memory only: {e}");
                None
            }
        };
        Arc::new(Self { node: node.to_owned(), known: Mutex::new(Known { events, revision }), lines, goes_on })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, known: &mut Known, told: Told) {
        let of = [&told.volume, &told.shard, &told.about].into_iter().flatten();
        let of: String = of.map(|name| format!(" {name}")).collect();
        tracing::info!("{}{of}: {}", told.kind.name(), told.text);
        let event = Event { time_ms: now_ms(), node: self.node.clone(), told };
        if let Some(lines) = &self.lines {
            let mut line = serde_json::to_vec(&event).expect("events have only what JSON can say");
            line.push(b'\n');
            // A disk that does not keep up costs events on it, not the node its time.
            let _ = lines.try_send(line);
        }
        if known.events.len() == EVENTS_MAX {
            known.events.pop_front();
        }
        known.events.push_back(event);
    }

    /// Something that this node noticed. What was just told is not told again.
    pub fn tell(&self, told: Told) {
        let mut known = self.known();
        let since = now_ms().saturating_sub(timing::REPEATS_AFTER.as_millis() as u64);
        let recent = known.events.iter().rev().take_while(|e| e.time_ms >= since);
        if recent.into_iter().any(|e| e.told == told && e.node == self.node) {
            return;
        }
        self.put(&mut known, told);
    }

    /// What the control plane decided. `old` is what was decided before this start, and comes again as the store is
    /// read: told only if this log does not know it yet, and went on until then.
    pub fn decided(&self, told: Vec<Told>, old: bool) {
        let mut known = self.known();
        let until = known.revision;
        for t in told {
            let revision = t.revision.unwrap_or(0);
            if revision <= until {
                continue;
            }
            known.revision = known.revision.max(revision);
            if !old || self.goes_on {
                self.put(&mut known, t);
            }
        }
    }

    /// A note of a worker, if people are to be told of it.
    pub fn note(&self, note: &Note, state: &State) {
        let kind = match note.kind {
            NoteKind::Trace => return tracing::info!("{}", note.text),
            NoteKind::Log(freebs_lsvd::EventKind::Damage | freebs_lsvd::EventKind::CrcError) => EventKind::Damage,
            NoteKind::Log(freebs_lsvd::EventKind::Refused) => EventKind::Refused,
            NoteKind::Log(freebs_lsvd::EventKind::Space) => EventKind::Space,
            NoteKind::Mended => EventKind::Mended,
            NoteKind::Past => EventKind::Space,
            NoteKind::Waits => EventKind::Waits,
            NoteKind::Ended => EventKind::Fault,
        };
        let volume = note.shard.and_then(|s| state.volume(s.volume)).map(|v| v.name.clone());
        let shard = note.shard.map(|s| s.to_string());
        let told = Told { volume, shard, ..Told::new(kind, note.text.clone()) };
        self.tell(told.about(self.node.clone()));
    }

    /// The newest events that are asked for, oldest first.
    pub fn find(&self, of: &EventsOf) -> Vec<Event> {
        let known = self.known();
        let found = known.events.iter().rev().filter(|e| of.takes(e)).take(of.limit.min(EVENTS_PAGE_MAX));
        let mut found: Vec<Event> = found.cloned().collect();
        found.reverse();
        found
    }
}

/// The events of several nodes as one list, oldest first, at most `limit`. What the control plane decided was told by
/// each of them: the first one's word is taken.
pub fn merge(all: Vec<Event>, limit: usize) -> Vec<Event> {
    let mut all = all;
    all.sort_by(|a, b| (a.time_ms, a.told.revision, &a.node).cmp(&(b.time_ms, b.told.revision, &b.node)));
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|e| match e.told.revision {
        Some(revision) => seen.insert((revision, e.told.kind, e.told.shard.clone())),
        None => true,
    });
    all.split_off(all.len().saturating_sub(limit))
}

/// What can be read of a file of events; `None` if there is none. Lines that are none of ours are left out.
fn read(path: &Path) -> Option<Vec<Event>> {
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    // Should it be larger than it can be, its end is what matters.
    file.seek(SeekFrom::Start(len.saturating_sub(2 * FILE_BYTES_MAX))).ok()?;
    let mut reader = BufReader::new(file.take(2 * FILE_BYTES_MAX));
    let mut events = Vec::new();
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return Some(events),
            Ok(_) => events.extend(serde_json::from_slice::<Event>(&line).ok()),
        }
    }
}

/// Starts the thread that writes.
fn writer(data: &Path) -> Result<SyncSender<Vec<u8>>> {
    let (path, older) = (data.join(FILE), data.join(OLDER));
    let mut file = open(&path)?;
    let mut bytes = file.metadata().map_or(0, |m| m.len());
    end_torn_line(&path, bytes, &mut file);
    let (lines, queue): (_, Receiver<Vec<u8>>) = sync_channel(LINES_MAX);
    let run = move || {
        while let Ok(line) = queue.recv() {
            if bytes + line.len() as u64 > FILE_BYTES_MAX
                && fs::rename(&path, &older).is_ok()
                && let Ok(new) = open(&path)
            {
                (file, bytes) = (new, 0);
            }
            // What can't be written is in memory, and in the log of the process.
            if file.write_all(&line).is_ok() {
                bytes += line.len() as u64;
            }
        }
    };
    let thread = std::thread::Builder::new().name("events".into()).spawn(run);
    thread.map(|_| lines).map_err(|e| Error::os(format!("no thread to write events: {e}")))
}

/// A line that a kill cut short must not take the next one with it.
fn end_torn_line(path: &Path, bytes: u64, file: &mut File) {
    let mut last = [0];
    let ends = |f: &mut File, last: &mut [u8]| f.seek(SeekFrom::End(-1)).and_then(|_| f.read_exact(last)).is_ok();
    if bytes > 0 && File::open(path).is_ok_and(|mut f| ends(&mut f, &mut last)) && last != *b"\n" {
        let _ = file.write_all(b"\n");
    }
}

fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
    file.map_err(|e| crate::files::os_error("open", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn decided(revision: u64, text: &str) -> Told {
        Told { revision: Some(revision), ..Told::new(EventKind::VolumeCreated, text) }
    }

    fn all() -> EventsOf {
        EventsOf { limit: 100, ..EventsOf::default() }
    }

    fn texts(events: &[Event]) -> Vec<&str> {
        events.iter().map(|e| e.told.text.as_str()).collect()
    }

    /// The file is written by another thread.
    fn wait_for_lines(data: &Path, n: usize) {
        let begun = std::time::Instant::now();
        while fs::read(data.join(FILE)).map_or(0, |b| b.iter().filter(|c| **c == b'\n').count()) < n {
            assert!(begun.elapsed() < Duration::from_secs(20), "the lines were not written");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_restart_goes_on_and_tells_nothing_twice() {
        let dir = tempfile::tempdir().unwrap();
        let log = EventLog::open(dir.path(), "node1");
        log.decided(vec![decided(1, "old")], true);
        assert!(log.find(&all()).is_empty(), "what came before the first event has no time that is known");
        log.decided(vec![decided(2, "two")], false);
        log.tell(Told::new(EventKind::Damage, "a sector"));
        log.tell(Told::new(EventKind::Damage, "a sector"));
        assert_eq!(texts(&log.find(&all())), ["two", "a sector"], "the same at once is told once");
        wait_for_lines(dir.path(), 2);
        drop(log);
        // A kill in the middle of a line.
        let mut file = OpenOptions::new().append(true).open(dir.path().join(FILE)).unwrap();
        file.write_all(br#"{"time_ms":1,"no"#).unwrap();
        let log = EventLog::open(dir.path(), "node1");
        log.decided(vec![decided(2, "two")], true);
        log.decided(vec![decided(3, "three")], true);
        wait_for_lines(dir.path(), 4);
        drop(log);
        let log = EventLog::open(dir.path(), "node1");
        assert_eq!(texts(&log.find(&all())), ["two", "a sector", "three"]);
    }

    #[test]
    fn files_are_bounded_and_what_is_in_them_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let mut junk = vec![b'x'; 3 * FILE_BYTES_MAX as usize];
        junk.extend(b"\n{\"time_ms\":\"now\"}\n");
        fs::write(dir.path().join(FILE), &junk).unwrap();
        let log = EventLog::open(dir.path(), "node1");
        log.tell(Told::new(EventKind::Space, "full"));
        let begun = std::time::Instant::now();
        while !dir.path().join(OLDER).exists() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the file was not put aside");
            std::thread::sleep(Duration::from_millis(1));
        }
        wait_for_lines(dir.path(), 1);
        drop(log);
        assert_eq!(texts(&EventLog::open(dir.path(), "node1").find(&all())), ["full"]);
    }

    #[test]
    fn what_each_node_tells_of_a_decision_is_one_event() {
        let event = |time_ms, node: &str, told: Told| Event { time_ms, node: node.into(), told };
        let shard = |s: &str| Told { shard: Some(s.into()), ..decided(5, s) };
        let list = vec![
            event(30, "a", decided(7, "later")),
            event(12, "b", shard("1.0")),
            event(10, "a", shard("1.0")),
            event(11, "a", shard("1.1")),
            event(11, "b", Told::new(EventKind::Damage, "mine")),
        ];
        let merged = merge(list, 3);
        assert_eq!(texts(&merged), ["mine", "1.1", "later"]);
    }

    #[test]
    fn events_are_found_by_volume_node_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let log = EventLog::open(dir.path(), "node1");
        log.tell(Told { volume: Some("a".into()), ..Told::new(EventKind::Mended, "1") });
        log.tell(Told::new(EventKind::NodeFailed, "2").about("node2"));
        let of = |volume: Option<&str>, node: Option<&str>, since_ms: u64| {
            let of = EventsOf { volume: volume.map(Into::into), node: node.map(Into::into), since_ms, ..all() };
            log.find(&of).len()
        };
        assert_eq!((of(Some("a"), None, 0), of(Some("b"), None, 0)), (1, 0));
        assert_eq!((of(None, Some("node2"), 0), of(None, Some("node1"), 0), of(None, Some("node3"), 0)), (1, 2, 0));
        assert_eq!(of(None, None, now_ms() + 60_000), 0);
        assert_eq!(log.find(&EventsOf { limit: 1, ..all() })[0].told.text, "2", "the newest");
    }
}
