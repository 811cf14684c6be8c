//! A bucket as a target, served by moto.

use super::*;
use crate::support::cluster::scratch;
use crate::support::tools::{KILLED_MAX, command, have, output, wait_at_most, wait_for};
use crate::support::{PATIENCE, Weight, shared, turn};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

/// A server of S3 in memory.
pub struct Moto {
    child: Child,
    address: String,
}

impl Moto {
    #[must_use]
    pub fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let mut cmd = command("moto_server");
        cmd.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        cmd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let moto = Self { child: cmd.spawn().expect("it runs"), address: format!("127.0.0.1:{port}") };
        wait_for("moto", || TcpStream::connect(&moto.address).ok());
        moto
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

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = wait_at_most(&mut self.child, KILLED_MAX);
    }
}

/// A bucket, made with a request that moto takes without a signature.
pub fn make_bucket(moto: &Moto) {
    let script = "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], method='PUT'))";
    let url = format!("http://{}/bucket", moto.address);
    let out = output(command("python3").args(["-c", script, &url]), PATIENCE);
    assert!(out.status.success(), "{}", told(&out));
}

#[test]
fn a_volume_goes_to_a_bucket_and_comes_back() {
    if !have(&["moto_server", "python3"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let c = shared::cluster();
    let dir = scratch();
    let moto = Moto::start();
    let file = dir.path().join("file");
    let size = 9 * MIB;
    std::fs::write(&file, noise(9, size as usize)).expect("room");
    c.json(&["volume", "import", "bk-s3", text(&file)]);
    let target = "s3://bucket/some/prefix";
    refused(&moto.backup(&c, &["list", "s3://no-such-bucket/x"]), &["no-such-bucket", "NoSuchBucket"]);
    make_bucket(&moto);
    let first = moto.json(&c, &["create", "bk-s3", target]);
    let second = moto.json(&c, &["create", "bk-s3", target]);
    assert_eq!((&first["new_blocks"], &second["new_blocks"]), (&Value::from(18), &Value::from(0)));
    assert_eq!(moto.json(&c, &["verify", target])["damaged"], 0);
    moto.json(&c, &["delete", target, word(&first, "backup")]);
    let pruned = moto.json(&c, &["prune", target]);
    assert_eq!((&pruned["objects"], &pruned["kept"]), (&Value::from(0), &Value::from(19)));
    let list = moto.json(&c, &["list", target]);
    assert_eq!(list["backups"].as_array().map(Vec::len), Some(1), "{list}");
    moto.json(&c, &["restore", target, word(&second, "backup"), "bk-s32"]);
    assert_eq!(first_difference(&file, &exported(&c, "bk-s32"), size), None);
}
