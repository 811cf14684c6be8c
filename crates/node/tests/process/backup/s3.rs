//! A bucket as a target, served by two programs that have nothing in common.

use super::*;
use crate::support::cluster::scratch;
use crate::support::tools::{KILLED_MAX, command, have, output, wait_at_most, wait_for};
use crate::support::{PATIENCE, Weight, shared, turn};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A server of S3: one that keeps all in memory, or one that keeps buckets as directories and asks for signatures.
pub struct Server {
    child: Child,
    address: String,
    buckets: Option<TempDir>,
}

impl Server {
    #[must_use]
    pub fn moto() -> Self {
        Self::start("moto_server", None, |cmd, port| {
            cmd.args(["-H", "127.0.0.1", "-p", port]);
        })
    }

    #[must_use]
    pub fn s3s() -> Self {
        let buckets = scratch();
        let root = buckets.path().to_owned();
        Self::start("s3s-fs", Some(buckets), move |cmd, port| {
            cmd.args(["--host", "127.0.0.1", "--port", port]);
            cmd.args(["--access-key", "test", "--secret-key", "test"]).arg(&root);
        })
    }

    fn start(program: &str, buckets: Option<TempDir>, with: impl Fn(&mut Command, &str)) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let mut cmd = command(program);
        with(&mut cmd, &port.to_string());
        cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = cmd.spawn().expect("it runs");
        let server = Self { child, address: format!("127.0.0.1:{port}"), buckets };
        wait_for(program, || TcpStream::connect(&server.address).ok());
        server
    }

    /// The variables with which a command reaches it.
    #[must_use]
    pub fn variables(&self) -> [(String, String); 4] {
        let endpoint = format!("http://{}", self.address);
        let plain = [("AWS_REGION", "us-east-1"), ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
        let [a, b, c] = plain.map(|(name, value)| (name.to_owned(), value.to_owned()));
        [("AWS_ENDPOINT_URL".into(), endpoint), a, b, c]
    }

    fn backup(&self, c: &Cluster, words: &[&str]) -> Output {
        let mut cmd = c.freebs();
        output(cmd.envs(self.variables()).arg("backup").args(words).arg("--json"), PATIENCE)
    }

    fn json(&self, c: &Cluster, words: &[&str]) -> Value {
        let out = self.backup(c, words);
        assert!(out.status.success(), "{words:?}: {}", told(&out));
        serde_json::from_slice(&out.stdout).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = wait_at_most(&mut self.child, KILLED_MAX);
    }
}

/// A bucket, made as a directory, or with a request that needs no signature.
pub fn make_bucket(server: &Server) {
    if let Some(dir) = &server.buckets {
        return std::fs::create_dir(dir.path().join("bucket")).expect("made");
    }
    let script = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method='PUT'))";
    let url = format!("http://{}/bucket", server.address);
    let out = output(command("python3").args(["-c", script, &url]), PATIENCE);
    assert!(out.status.success(), "{}", told(&out));
}

/// A volume of this name goes to a bucket of a server and comes back.
fn goes_and_comes(server: &Server, name: &str) {
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let dir = scratch();
    let file = dir.path().join("file");
    let (size, back) = (9 * MIB, format!("{name}-back"));
    std::fs::write(&file, noise(9, size as usize)).expect("room");
    c.json(&["volume", "import", name, text(&file)]);
    let target = "s3://bucket/some/prefix";
    refused(&server.backup(&c, &["list", "s3://no-such-bucket/x"]), &["no-such-bucket", "NoSuchBucket"]);
    make_bucket(server);
    let first = server.json(&c, &["create", name, target]);
    let second = server.json(&c, &["create", name, target]);
    assert_eq!((&first["new_blocks"], &second["new_blocks"]), (&Value::from(18), &Value::from(0)));
    assert_eq!(server.json(&c, &["verify", target])["damaged"], 0);
    server.json(&c, &["delete", target, word(&first, "backup")]);
    let pruned = server.json(&c, &["prune", target]);
    assert_eq!((&pruned["objects"], &pruned["kept"]), (&Value::from(0), &Value::from(19)));
    let list = server.json(&c, &["list", target]);
    assert_eq!(list["backups"].as_array().map(Vec::len), Some(1), "{list}");
    server.json(&c, &["restore", target, word(&second, "backup"), &back]);
    assert_eq!(first_difference(&file, &exported(&c, &back), size), None);
}

#[test]
fn a_volume_goes_to_a_bucket_and_comes_back() {
    if have(&["moto_server", "python3"]) {
        goes_and_comes(&Server::moto(), "bk-s3");
    }
}

#[test]
fn a_volume_goes_to_a_bucket_of_another_server_and_comes_back() {
    if have(&["s3s-fs"]) {
        goes_and_comes(&Server::s3s(), "bk-s3s");
    }
}
