//! SQLite, with a rollback journal and with a write-ahead log.

use super::*;
use crate::support::tools::{TOOL_TIME_MAX, can_mount, command, have, output, told};
use crate::support::{Weight, rounds, turn};

/// Two tables that each transaction writes, so that half of one is noticed.
const WRITE: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("pragma journal_mode=" + sys.argv[2])
# A deleted journal is a commit: `full` does not wait until the directory is durable.
db.execute("pragma synchronous=extra")
db.execute("create table t(n integer primary key, body blob)")
db.execute("create table twin(n integer primary key, body blob)")
n = 0
while True:
    n += 1
    body = (b"%09d" % n) * (1 + n % 700)
    db.execute("begin")
    db.execute("insert into t values(?, ?)", (n, body))
    db.execute("insert into twin values(?, ?)", (n, body))
    # Older rows change, too, so that pages in the middle of the file are written.
    db.execute("update t set body = body where n = ?", (n // 2,))
    db.execute("commit")
    print(n, flush=True)
"#;

const LOOK: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
rows = [db.execute("select n, body from %s order by n" % t).fetchall() for t in ("t", "twin")]
assert rows[0] == rows[1], "half of a transaction"
assert [r[0] for r in rows[0]] == list(range(1, len(rows[0]) + 1)), "a gap"
assert all(body == (b"%09d" % n) * (1 + n % 700) for n, body in rows[0]), "another body"
print(len(rows[0]))
"#;

fn each_clone_has_what_was_committed(journal: &str) {
    if !have(TOOLS) || !can_mount() {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let mut rig = Rig::new("db:128M", "128M");
    let file = "data.sqlite";
    let disk = rig.mounted(VOLUME);
    let mut cmd = command("python3");
    cmd.args(["-c", WRITE, text(&rig.open.path().join(VOLUME).join(file)), journal]);
    let mut writer = Writer::start(cmd);
    let committed = rig.snapshots(&mut writer, rounds(3, 50));
    let _ = writer.child.kill();
    let _ = wait_at_most(&mut writer.child, KILLED_MAX);
    // It may have been killed between a commit and its word.
    let written = writer.committed() + 1;
    drop(writer);
    drop(disk);
    rig.check(&committed, written, |name, at| {
        let out = output(command("python3").args(["-c", LOOK, text(&at.join(file))]), TOOL_TIME_MAX);
        assert!(out.status.success(), "{name}: {}", told(&out));
        String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
    });
    rig.cluster.stop();
}

#[test]
fn sqlite_with_a_rollback_journal_recovers_in_each_clone() {
    each_clone_has_what_was_committed("delete");
}

#[test]
fn sqlite_with_a_write_ahead_log_recovers_in_each_clone() {
    each_clone_has_what_was_committed("wal");
}
