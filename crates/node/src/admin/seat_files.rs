//! The files of a control state in a data directory, as whoever repairs a cluster handles them while its nodes are down.

use super::earlier;
use crate::cluster_file::{self, ClusterFile};
use crate::files;
use freebs_control::State;
use freebs_types::{Error, Result};
use std::path::Path;

/// The store, and the note beside it.
pub const STORE_FILE: &str = "control.store";
pub const NOTE_FILE: &str = "control.note";
/// What those files are called when another state takes their place; a number follows if that is taken.
const ASIDE: &str = "before-rebuild";
/// Times that a state can be put aside before somebody has to tidy up.
const ASIDE_MAX: u32 = 1000;

fn names() -> impl Iterator<Item = &'static str> {
    [STORE_FILE, NOTE_FILE].into_iter().chain(earlier::NAMES)
}

/// Whether there is anything of a control state, whether it can be used or not.
pub fn is_there(data: &Path) -> bool {
    names().any(|n| data.join(n).symlink_metadata().is_ok())
}

/// Renames what there is, durably, so that the node knows no control state any more. Nothing is overwritten. The node has no
/// vote from then on, so its own cluster file does not say any more that nobody can go on without it.
pub fn put_aside(data: &Path) -> Result<()> {
    let own = data.join("cluster.json");
    if let Some(file) = cluster_file::load(&own)?.filter(|file| file.only_vote) {
        cluster_file::save(&ClusterFile { only_vote: false, ..file }, &own)?;
    }
    let free = |end: &String| names().all(|n| data.join(format!("{n}.{end}")).symlink_metadata().is_err());
    let ends = (1..=ASIDE_MAX).map(|i| if i == 1 { ASIDE.to_owned() } else { format!("{ASIDE}.{i}") });
    let Some(end) = ends.into_iter().find(free) else {
        return Err(Error::no_space(format!("too many files *.{ASIDE} in {}; remove old ones", data.display())));
    };
    // The store last: with its note gone it still tells that something was there.
    for name in names().collect::<Vec<_>>().into_iter().rev() {
        let path = data.join(name);
        match std::fs::rename(&path, data.join(format!("{name}.{end}"))) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(files::os_error("put aside", &path, &e)),
        }
    }
    files::sync_directory(data)
}

/// Leaves a state where the node looks for one that founds its cluster and has no store.
pub fn write_state(data: &Path, state: &State) -> Result<()> {
    if is_there(data) {
        return Err(Error::busy(format!("there still is a control state in {}", data.display())));
    }
    let bytes = state.encode();
    earlier::NAMES.iter().try_for_each(|name| files::write_durably(&data.join(name), &bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_types::{ClusterId, ErrorKind};

    #[test]
    fn what_is_put_aside_is_kept_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        put_aside(data).unwrap();
        assert!(!is_there(data));
        let state = State::new(ClusterId([7; 16]));
        for round in 1..=3u8 {
            std::fs::write(data.join(STORE_FILE), [round]).unwrap();
            std::fs::write(data.join(NOTE_FILE), [round]).unwrap();
            assert!(is_there(data));
            assert_eq!(write_state(data, &state).unwrap_err().kind, ErrorKind::Busy);
            put_aside(data).unwrap();
            assert!(!is_there(data));
        }
        for (end, round) in [("", 1), (".2", 2), (".3", 3)] {
            for name in [STORE_FILE, NOTE_FILE] {
                assert_eq!(std::fs::read(data.join(format!("{name}.{ASIDE}{end}"))).unwrap(), [round]);
            }
        }
        write_state(data, &state).unwrap();
        assert!(is_there(data));
        assert_eq!(earlier::read(data, ClusterId([7; 16])).unwrap(), Some(state));
        put_aside(data).unwrap();
        assert_eq!(earlier::read(data, ClusterId([7; 16])).unwrap(), None);
    }
}
