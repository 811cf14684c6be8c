//! The control state as earlier versions kept it, and as `freebs control rebuild` leaves it: on the first node of the
//! cluster, in two equal files. Read once, when a cluster that has them goes on with a replicated control plane, and then
//! put aside.

use crate::files;
use freebs_control::{State, limits};
use freebs_types::{ClusterId, Error, ErrorKind, Result};
use std::path::Path;

pub(super) const NAMES: [&str; 2] = ["control.state", "control.state.copy"];
/// What the files are called once their state was taken over.
const ASIDE: &str = "taken-over";
const FILE_BYTES_MAX: usize = limits::STATE_BYTES_MAX + freebs_control::STATE_HEADER_BYTES;

fn read_one(path: &Path) -> Result<Option<State>> {
    let Some(bytes) = files::read_limited(path, FILE_BYTES_MAX)? else { return Ok(None) };
    State::decode(&bytes).map(Some).map_err(|e| e.at(path.display()))
}

/// The newer state of the two files; `None` if there is neither. One that is damaged or missing does not matter, both
/// damaged is an error: an older state would give numbers of views out twice.
pub(super) fn read(data: &Path, cluster: ClusterId) -> Result<Option<State>> {
    let mut newest: Option<State> = None;
    let mut trouble = None;
    for name in NAMES {
        match read_one(&data.join(name)) {
            Ok(Some(state)) => {
                if newest.as_ref().is_none_or(|n| n.revision() < state.revision()) {
                    newest = Some(state);
                }
            }
            Ok(None) => {}
            Err(e) if e.kind == ErrorKind::Corrupt => trouble = Some(e),
            Err(e) => return Err(e),
        }
    }
    match (newest, trouble) {
        (Some(state), _) if state.cluster() != cluster => Err(Error::invalid(format!(
            "{} belongs to the cluster {}, and this node to {cluster}; put the right cluster file back, or choose \
             another data directory",
            data.join(NAMES[0]).display(),
            state.cluster()
        ))),
        (Some(state), _) => Ok(Some(state)),
        (None, None) => Ok(None),
        (None, Some(e)) => Err(Error::corrupt(format!(
            "{e}, and there is no good copy of it. Put {} or {} back from a backup; nothing was touched",
            NAMES[0], NAMES[1]
        ))),
    }
}

/// True if there is one, be it damaged.
pub(super) fn is_there(data: &Path) -> bool {
    NAMES.iter().any(|name| data.join(name).symlink_metadata().is_ok())
}

/// Once the state lives elsewhere, durably: so that nobody begins with the old one again.
pub(super) fn put_aside(data: &Path) -> Result<()> {
    let mut moved = false;
    for name in NAMES {
        let path = data.join(name);
        match std::fs::rename(&path, data.join(format!("{name}.{ASIDE}"))) {
            Ok(()) => moved = true,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(files::os_error("put aside", &path, &e)),
        }
    }
    if moved { files::sync_directory(data) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use freebs_control::Command;
    use freebs_types::{NodeId, StartNumber};

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

    #[test]
    fn the_newer_of_two_files_is_taken_and_damage_of_one_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        let at = |which: usize| dir.path().join(NAMES[which]);
        assert_eq!(read(dir.path(), CLUSTER).unwrap(), None);
        for newer in 0..2 {
            std::fs::write(at(newer), state(4).encode()).unwrap();
            std::fs::write(at(1 - newer), state(3).encode()).unwrap();
            assert_eq!(read(dir.path(), CLUSTER).unwrap().unwrap(), state(4));
            std::fs::write(at(1 - newer), b"garbage").unwrap();
            assert_eq!(read(dir.path(), CLUSTER).unwrap().unwrap(), state(4));
            std::fs::remove_file(at(1 - newer)).unwrap();
            assert_eq!(read(dir.path(), CLUSTER).unwrap().unwrap(), state(4));
        }
        let e = read(dir.path(), ClusterId([6; 16])).unwrap_err();
        assert!(e.text.contains("belongs to the cluster"), "{e}");
        std::fs::write(at(0), b"garbage").unwrap();
        std::fs::write(at(1), b"garbage").unwrap();
        let e = read(dir.path(), CLUSTER).unwrap_err();
        assert!(e.kind == ErrorKind::Corrupt && e.text.contains("backup"), "{e}");
        assert_eq!(std::fs::read(at(0)).unwrap(), b"garbage");
        std::fs::write(at(1), state(2).encode()).unwrap();
        put_aside(dir.path()).unwrap();
        assert_eq!(read(dir.path(), CLUSTER).unwrap(), None);
        assert!(dir.path().join("control.state.copy.taken-over").exists());
        put_aside(dir.path()).unwrap();
    }
}
