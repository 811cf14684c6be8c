//! A cluster whose nodes speak TLS: a program speaks as a node of its machine, and as no other.

use crate::support::{PATIENCE, program};
use crate::tools::{Python, run};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A cluster of one node.
struct One {
    node: Child,
    data: PathBuf,
    address: String,
}

impl One {
    fn begin(dir: &Path, name: &str) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = free.local_addr().expect("bound").to_string();
        drop(free);
        let data = dir.join(name);
        let mut init = Command::new(program("freebs"));
        init.args(["cluster", "init", "--name", name, "--listen", &address, "--data"]).arg(&data);
        run(&mut init);
        let mut node = Command::new(program("freebs"));
        node.args(["node", "--device-size", "1G", "--data"]).arg(&data);
        let log = std::fs::File::create(dir.join(format!("{name}.log"))).expect("a log file");
        let node = node.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("freebs starts");
        let one = Self { node, data, address };
        let begun = Instant::now();
        while !one.cli(&["volume", "create", name, "--size", "16M", "--copies", "1"]).output().unwrap().status.success()
        {
            assert!(begun.elapsed() < PATIENCE, "the node is not up");
            std::thread::sleep(Duration::from_millis(100));
        }
        one
    }

    fn cli(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program("freebs"));
        command.args(["--cluster", &self.address]).args(args);
        command
    }
}

impl Drop for One {
    fn drop(&mut self) {
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

#[test]
fn a_program_speaks_as_a_node() {
    let Some(python) = Python::get() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (One::begin(dir.path(), "a"), One::begin(dir.path(), "b"));
    let said = run(python.script("python/tests/secured.py").args([&a.address, &b.address]).args([&a.data, &b.data]));
    assert!(said.contains("all is well"), "{said}");
}
