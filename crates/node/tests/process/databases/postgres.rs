//! PostgreSQL. It does not run as root: its server is the unprivileged user's.

use super::*;
use crate::support::tools::{TOOL_TIME_MAX, can_mount, command, find, have, output, told};
use crate::support::{PATIENCE, Weight, rounds, turn};
use std::io::Write;

/// The user that may do nothing, and his group.
const USER: (&str, &str) = ("nobody", "nogroup");

/// One transaction; the word that it is committed is printed when the server has said so.
fn transaction(n: u64) -> String {
    format!(
        "begin;\ninsert into t values ({n}, repeat('{n:09}', 1 + {n} % 700));\n\
         insert into twin values ({n}, repeat('{n:09}', 1 + {n} % 700));\n\
         update t set body = body where n = {n} / 2;\ncommit;\n\\echo {n}\n"
    )
}

const TABLES: &str =
    "create table t(n bigint primary key, body text); create table twin(n bigint primary key, body text)";

/// Rows, the highest number, and whether each is what it was, with its twin.
const LOOK: &str = "select count(*), coalesce(max(t.n), 0), coalesce(min(t.n), 1), count(twin.n), \
    coalesce(bool_and(t.body = twin.body and t.body = repeat(lpad(t.n::text, 9, '0'), (1 + t.n % 700)::int)), true) \
    from t full join twin using (n)";

/// A command that runs as the unprivileged user.
fn as_user(program: &str) -> Command {
    let mut cmd = command("setpriv");
    cmd.args(["--reuid", USER.0, "--regid", USER.1, "--clear-groups"]).arg(find(program).expect("it was looked for"));
    cmd.env("LC_ALL", "C").env("HOME", "/nonexistent").current_dir("/");
    cmd
}

/// A server that runs, for as long as this value lives.
struct Server {
    child: Child,
    socket: std::path::PathBuf,
}

impl Server {
    /// Starts it on a directory of data, and waits until it has recovered.
    fn start(data: &Path) -> Self {
        let log = std::fs::File::create(data.with_extension("log")).expect("a log");
        let mut cmd = as_user("postgres");
        cmd.arg("-D").arg(data).arg("-k").arg(data);
        cmd.args(["-c", "listen_addresses=", "-c", "shared_buffers=16MB", "-c", "max_connections=10"]);
        cmd.args(["-c", "checkpoint_timeout=30s", "-c", "max_wal_size=32MB"]);
        cmd.stdin(Stdio::null()).stdout(log.try_clone().expect("one more descriptor")).stderr(log);
        let child = cmd.spawn().unwrap_or_else(|e| panic!("{cmd:?}: {e}"));
        let mut this = Self { child, socket: data.to_owned() };
        wait_for("the server", || {
            let said = || std::fs::read_to_string(data.with_extension("log")).unwrap_or_default();
            let ended = this.child.try_wait().expect("our own child");
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", said());
            let out = output(this.psql().args(["-c", "select 1"]), PATIENCE);
            out.status.success().then_some(())
        });
        this
    }

    fn psql(&self) -> Command {
        let mut cmd = as_user("psql");
        cmd.arg("-h").arg(&self.socket).args(["-U", USER.0, "-d", "postgres", "-X", "-q", "-A", "-t"]);
        cmd.args(["-v", "ON_ERROR_STOP=1"]);
        cmd
    }

    fn ask(&self, sql: &str) -> String {
        let out = output(self.psql().args(["-c", sql]), TOOL_TIME_MAX);
        assert!(out.status.success(), "{}", told(&out));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: it takes two numbers; the process is our own child, and was not waited for.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        if wait_at_most(&mut self.child, KILLED_MAX).is_none() {
            let _ = self.child.kill();
            let _ = wait_at_most(&mut self.child, KILLED_MAX);
        }
    }
}

/// Transactions without an end, each sent as the one before it is taken.
fn writer(server: &Server) -> Writer {
    let mut cmd = server.psql();
    cmd.stdin(Stdio::piped());
    let mut writer = Writer::start(cmd);
    let mut to = writer.child.stdin.take().expect("a pipe");
    // It ends with its reader.
    std::thread::spawn(move || (1..).try_for_each(|n| to.write_all(transaction(n).as_bytes())));
    writer
}

#[test]
fn postgresql_recovers_in_each_clone() {
    if !have(TOOLS) || !have(&["initdb", "postgres", "psql", "setpriv"]) || !can_mount() {
        return;
    }
    let _turn = turn(Weight::Loaded);
    let mut rig = Rig::new("db:256M", "256M");
    let disk = rig.mounted(VOLUME);
    let at = rig.open.path().join(VOLUME);
    run("chown", [&format!("{}:{}", USER.0, USER.1), text(&at)]);
    let data = at.join("data");
    let made = output(
        as_user("initdb").args(["-A", "trust", "-U", USER.0, "-E", "UTF8", "--wal-segsize=1", "-D"]).arg(&data),
        TOOL_TIME_MAX,
    );
    assert!(made.status.success(), "{}", told(&made));
    let server = Server::start(&data);
    server.ask(TABLES);
    let mut writer = writer(&server);
    let committed = rig.snapshots(&mut writer, rounds(2, 10));
    let _ = writer.child.kill();
    let _ = wait_at_most(&mut writer.child, KILLED_MAX);
    let written: u64 = server.ask("select max(n) from t").parse().expect("a number");
    drop((writer, server, disk));
    rig.check(&committed, written, |name, at| {
        let data = at.join("data");
        // The server that had it when the snapshot was made is a process of this machine, too.
        std::fs::remove_file(data.join("postmaster.pid")).expect("it was at work");
        let server = Server::start(&data);
        let found = server.ask(LOOK);
        let rows: Vec<_> = found.split('|').collect();
        let [count, last, first, twins, same] = rows[..] else { panic!("{name}: {found}") };
        assert!(count == last && first == "1" && twins == count && same == "t", "{name}: {found}");
        count.parse().expect("a number")
    });
    rig.cluster.stop();
}
