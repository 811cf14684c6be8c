//! The control state on a disk: two equal files, each replaced whole.
//!
//! Invariants: each file holds, after a crash at any moment, the state before or after the last write; what was
//! answered is in both. So one damaged file is made good from the other, and a torn or half-renamed write never
//! matters. If a file had to be believed less than that, view numbers could be given out twice; both damaged is
//! therefore an error and never an empty state.

use crate::files;
use freebs_control::{State, limits};
use freebs_types::{ClusterId, Error, ErrorKind, Result};
use std::fs;
use std::path::{Path, PathBuf};

const NAMES: [&str; 2] = ["control.state", "control.state.copy"];
const FILE_BYTES_MAX: usize = limits::STATE_BYTES_MAX + freebs_control::STATE_HEADER_BYTES;

/// The files of one keeper. Blocks: belongs on a thread of its own.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    paths: [PathBuf; 2],
    /// A write failed at a point where it is not known what the disk has.
    poisoned: Option<Error>,
}

impl Store {
    /// Reads the state, or begins a new one if there is none and `may_create`.
    pub fn open(dir: &Path, cluster: ClusterId, may_create: bool) -> Result<(Self, State)> {
        let paths = NAMES.map(|n| dir.join(n));
        let mut store = Self { dir: dir.to_owned(), paths, poisoned: None };
        let found = [store.read(0), store.read(1)];
        if found.iter().all(|f| matches!(f, Ok(None))) {
            if !may_create {
                return Err(Error::not_found(format!(
                    "{} is gone, but this cluster was in use before; a new one would mix up its volumes. \
                     Put the file (or {}) back from a backup, or begin anew in another directory",
                    store.paths[0].display(),
                    NAMES[1]
                )));
            }
            let state = State::new(cluster);
            store.write(&state)?;
            return Ok((store, state));
        }
        let state = store.choose(found)?;
        if state.cluster() != cluster {
            return Err(Error::invalid(format!(
                "{} belongs to the cluster {}, and the cluster file names {cluster}; \
                 put the right cluster file back, or choose another data directory",
                store.paths[0].display(),
                state.cluster()
            )));
        }
        Ok((store, state))
    }

    fn read(&self, which: usize) -> Result<Option<State>> {
        let path = &self.paths[which];
        let Some(bytes) = files::read_limited(path, FILE_BYTES_MAX)? else { return Ok(None) };
        State::decode(&bytes).map(Some).map_err(|e| e.at(path.display()))
    }

    /// The newer of the two; a file that is damaged or missing is written anew from the other one.
    fn choose(&mut self, found: [Result<Option<State>>; 2]) -> Result<State> {
        let mut states = Vec::new();
        let mut trouble = None;
        for (f, path) in found.into_iter().zip(&self.paths) {
            match f {
                Ok(Some(s)) => states.push(s),
                Ok(None) => {
                    trouble.get_or_insert(Error::not_found(format!("{} is missing", path.display())));
                }
                // An error of the device or of permissions is not damage: nothing may be written over it.
                Err(e) if !matches!(e.kind, ErrorKind::Corrupt) => return Err(e),
                Err(e) => {
                    trouble = Some(e);
                }
            }
        }
        let newest = states.into_iter().max_by_key(State::revision);
        let Some(state) = newest else {
            let e = trouble.expect("neither file was good");
            return Err(Error::corrupt(format!(
                "{e}; its second copy {} is no good either. Put both back from a backup; nothing else was touched",
                NAMES[1]
            )));
        };
        if let Some(e) = trouble {
            tracing::warn!("{e}; made good from the other copy");
        }
        // Also after a crash between the two renames: both are the same again before anything is answered.
        self.write(&state)?;
        Ok(state)
    }

    /// Makes a state durable in both files. An error before anything was replaced leaves the old state valid and
    /// the store usable; later ones poison it, because nobody knows then which state a restart will find.
    pub fn write(&mut self, state: &State) -> Result<()> {
        if let Some(e) = &self.poisoned {
            return Err(e.clone());
        }
        let bytes = state.encode();
        for path in &self.paths {
            files::write_beside(path, &bytes)?;
        }
        let replace = || -> Result<()> {
            for path in &self.paths {
                fs::rename(files::beside(path), path).map_err(|e| files::os_error("rename", path, &e))?;
            }
            files::sync_directory(&self.dir)
        };
        replace().map_err(|e| {
            let e = Error::device_failed(format!("{e}; the control state is not written any more until a restart"));
            self.poisoned = Some(e.clone());
            e
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::Command;
    use freebs_types::{NodeId, StartNumber};
    use tempfile::TempDir;

    const CLUSTER: ClusterId = ClusterId([5; 16]);

    fn state(starts: u64) -> State {
        let mut s = State::new(CLUSTER);
        for start in 1..=starts {
            let node = Command::RegisterNode {
                node: NodeId(1),
                name: "node1".into(),
                address: "127.0.0.1:7400".into(),
                workers: 1,
                start: StartNumber(start),
            };
            s.apply(node).unwrap();
        }
        s
    }

    fn with(s: &State) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(dir.path(), CLUSTER, true).unwrap();
        store.write(s).unwrap();
        dir
    }

    fn reopen(dir: &TempDir) -> Result<State> {
        Store::open(dir.path(), CLUSTER, false).map(|(_, s)| s)
    }

    #[test]
    fn what_was_written_is_there_again() {
        let dir = with(&state(3));
        assert_eq!(reopen(&dir).unwrap(), state(3));
        let e = Store::open(dir.path(), ClusterId([6; 16]), true).unwrap_err();
        assert!(e.text.contains("belongs to the cluster"), "{e}");
    }

    /// Every place a crash can leave: a temporary file half written or whole, one of the two renames done.
    #[test]
    fn a_crash_at_any_step_leaves_the_old_or_the_new_state() {
        let (old, new) = (state(3).encode(), state(4).encode());
        for cut in [0, 1, 63, 64, new.len() - 1, new.len()] {
            for renamed in 0..3 {
                let dir = with(&state(3));
                for (i, name) in NAMES.iter().enumerate() {
                    let path = dir.path().join(name);
                    fs::write(files::beside(&path), &new[..cut]).unwrap();
                    if i < renamed && cut == new.len() {
                        fs::rename(files::beside(&path), &path).unwrap();
                    }
                }
                let expected = if renamed > 0 && cut == new.len() { &new } else { &old };
                assert_eq!(&reopen(&dir).unwrap().encode(), expected, "cut {cut}, renamed {renamed}");
                for name in NAMES {
                    assert_eq!(&fs::read(dir.path().join(name)).unwrap(), expected);
                }
            }
        }
    }

    #[test]
    fn one_damaged_or_missing_copy_is_made_good() {
        let good = state(3).encode();
        for name in NAMES {
            for at in (0..good.len()).step_by(7) {
                let dir = with(&state(3));
                let mut bad = good.clone();
                bad[at] ^= 4;
                fs::write(dir.path().join(name), &bad).unwrap();
                assert_eq!(reopen(&dir).unwrap(), state(3));
                assert_eq!(fs::read(dir.path().join(name)).unwrap(), good);
            }
            for cut in [0, 10, 64, good.len() - 1] {
                let dir = with(&state(3));
                fs::write(dir.path().join(name), &good[..cut]).unwrap();
                assert_eq!(reopen(&dir).unwrap(), state(3));
            }
            let dir = with(&state(3));
            fs::remove_file(dir.path().join(name)).unwrap();
            assert_eq!(reopen(&dir).unwrap(), state(3));
        }
    }

    #[test]
    fn both_damaged_is_an_error_and_nothing_is_overwritten() {
        let dir = with(&state(3));
        for name in NAMES {
            fs::write(dir.path().join(name), b"garbage").unwrap();
        }
        let e = Store::open(dir.path(), CLUSTER, true).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Corrupt);
        assert!(e.text.contains("control.state") && e.text.contains("backup"), "{e}");
        assert_eq!(fs::read(dir.path().join(NAMES[0])).unwrap(), b"garbage");
    }

    #[test]
    fn a_state_that_is_gone_is_not_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let e = Store::open(dir.path(), CLUSTER, false).unwrap_err();
        assert!(e.kind == ErrorKind::NotFound && e.text.contains("backup"), "{e}");
        Store::open(dir.path(), CLUSTER, true).unwrap();
        assert_eq!(reopen(&dir).unwrap().revision(), 0);
    }

    /// The write fails before anything is replaced: the store goes on with the old state, and later works again.
    #[test]
    fn a_failed_write_loses_nothing() {
        let dir = with(&state(3));
        let (mut store, _) = Store::open(dir.path(), CLUSTER, false).unwrap();
        let blocker = files::beside(&dir.path().join(NAMES[1]));
        fs::create_dir(&blocker).unwrap();
        assert!(store.write(&state(4)).is_err());
        fs::remove_dir(&blocker).unwrap();
        assert_eq!(reopen(&dir).unwrap(), state(3));
        store.write(&state(4)).unwrap();
        assert_eq!(reopen(&dir).unwrap(), state(4));
    }
}
