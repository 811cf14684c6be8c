//! Tokens: asked for, listed and revoked, and never told to a stranger.

use super::{done, refused};
use crate::support::servers::Servers;
use crate::support::tools::{self, told};
use crate::support::{PATIENCE, Weight, turn};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// The page starts a node and asks it for a token on the next line.
#[test]
fn a_token_waits_for_the_node() {
    let _turn = turn(Weight::Light);
    let mut s = Servers::made(1);
    let mut cmd = s.freebs();
    cmd.args(["cluster", "token"]);
    let asked = std::thread::spawn(move || tools::output(&mut cmd, PATIENCE));
    std::thread::sleep(Duration::from_millis(1500));
    s.start("a");
    let out = asked.join().expect("asked");
    done(&out);
    assert!(told(&out).contains("waiting for"), "{}", told(&out));
}

/// A token went in clear to whoever listens at an address that was mistyped.
#[test]
fn no_token_is_told_to_a_stranger() {
    let _turn = turn(Weight::Light);
    let (s, other) = (Servers::begin(2), Servers::begin(1));
    let token = s.token("10min");
    let catcher = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = catcher.local_addr().expect("an address").to_string();
    let caught = std::thread::spawn(move || {
        let (mut stream, _) = catcher.accept().expect("somebody");
        let mut bytes = vec![0; 64 << 10];
        let n = stream.read(&mut bytes).expect("some words");
        stream.write_all(b"who is there?").expect("said");
        let mut rest = bytes.split_off(n);
        let _ = stream.read(&mut rest);
        [bytes, rest].concat()
    });
    refused(&s.join_at(&at, &token, "b", &[]), &["no TLS of a node", "name a node of that cluster"]);
    let caught = caught.join().expect("caught");
    let digits = token.as_bytes();
    assert!(caught[0] == 0x16 && !caught.windows(48).any(|w| w == &digits[112..160]), "a TLS handshake, and no token");
    // Another cluster's node is as much of a stranger.
    let words = ["its certificate is none of this cluster's authority", "name a node of that cluster"];
    refused(&s.join_at(&other.address("a"), &token, "b", &[]), &words);
    // Commands, which have no certificate, ask for tokens on this machine alone.
    refused(&s.cli(&["--cluster", "0.0.0.0:7400", "cluster", "token"]), &["loopback", "--as-node"]);
    let out = s.cli(&["--as-node", s.data("a").to_str().expect("a text"), "cluster", "token"]);
    done(&out);
    done(&s.join("a", &token, "b", &[]));
}

#[test]
fn tokens_are_listed_and_revoked() {
    let _turn = turn(Weight::Light);
    let s = Servers::begin(3);
    let (used, leaked, good) = (s.token("10min"), s.token("20min"), s.token("30min"));
    done(&s.join("a", &used, "b", &[]));
    let list = s.json(&["cluster", "token", "--list"]);
    let all = list["tokens"].as_array().expect("a list");
    let lives: Vec<_> =
        all.iter().map(|t| t["expires_ms"].as_u64().unwrap() - t["made_ms"].as_u64().unwrap()).collect();
    assert_eq!(lives, [600_000, 1_200_000, 1_800_000], "the oldest first");
    assert_eq!((all[0]["used_by"].as_str(), all[1].get("used_by")), (Some("b"), None));
    let text = told(&s.cli(&["cluster", "token", "--list"]));
    let prefix = all[1]["id"].as_str().expect("a text");
    assert!(text.contains(prefix) && text.contains("used by b") && !text.contains(&leaked[112..160]), "{text}");
    refused(&s.cli(&["cluster", "token", "--revoke", all[0]["id"].as_str().unwrap()]), &["was used by b"]);
    refused(&s.cli(&["cluster", "token", "--revoke", "xyz"]), &["--list"]);
    done(&s.cli(&["cluster", "token", "--revoke", &prefix[..6]]));
    refused(&s.join("a", &leaked, "c", &[]), &["does not know this token"]);
    let revoked = s.json(&["cluster", "token", "--revoke", "all"]);
    assert_eq!(revoked["revoked"].as_array().expect("a list").len(), 1, "the other one that nobody used");
    refused(&s.join("a", &good, "c", &[]), &["does not know this token"]);
    let events = told(&s.cli(&["events"]));
    for word in ["a token was made", "was revoked", "with the token"] {
        assert!(events.contains(word), "{word}: {events}");
    }
}

/// Other users of the machine could read the token off the command line.
#[test]
fn a_token_comes_in_a_file_and_never_on_the_command_line() {
    let _turn = turn(Weight::Light);
    let s = Servers::begin(3);
    let join = |name: &str, more: &[&str], from: Option<&Path>| {
        let (a, here) = (s.address("a"), s.address(name));
        let mut cmd = s.freebs();
        cmd.args(["node", "join", &a, "--name", name, "--listen", &here, "--data", name]).args(more);
        cmd.env_remove("FREEBS_TOKEN");
        // A shell gives it its standard input.
        if let Some(from) = from {
            cmd.stdin(File::open(from).expect("a file"));
        }
        let child = cmd.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        child.wait_with_output().expect("it ends")
    };
    let file = s.dir().join("t");
    std::fs::write(&file, format!("{}\n", s.token("10min"))).expect("written");
    let name = file.to_str().expect("a text");
    let on_line = join("b", &["--token", "00"], None);
    assert_eq!(on_line.status.code(), Some(2), "{}", told(&on_line));
    refused(&join("b", &[], None), &["FREEBS_TOKEN", "--token-file"]);
    refused(&join("b", &["--token-file", "nowhere"], None), &["nowhere"]);
    assert!(!s.data("b").exists(), "nothing was begun");
    done(&join("b", &["--token-file", name], None));
    refused(&join("c", &["--token-file", name], None), &["was used by b"]);
    std::fs::write(&file, format!("{}\n", s.token("10min"))).expect("written");
    done(&join("c", &["--token-file", "-"], Some(&file)));
}

/// The only copy of an authority's key was removed for the next cluster.
#[test]
fn keys_in_a_directory_are_not_removed() {
    let _turn = turn(Weight::Light);
    let s = Servers::begin(2);
    let saved = s.data("b");
    std::fs::create_dir(&saved).expect("a directory");
    for key in ["authority-key", "node-key"] {
        std::fs::copy(s.data("a").join(key), saved.join(key)).expect("copied");
    }
    let file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(s.data("a").join("cluster.json")).expect("a file")).expect("JSON");
    let cluster = file["cluster"].as_str().expect("a text");
    refused(&s.init("b"), &["authority-key", cluster, "--data", "keep them"]);
    refused(&s.join("a", &s.token("10min"), "b", &[]), &["authority-key", "--data"]);
    std::fs::remove_file(saved.join("authority-key")).expect("removed");
    refused(&s.init("b"), &["node-key", cluster, "--data"]);
    let other = Servers::begin(2);
    refused(
        &other.join("a", &other.token("10min"), "b", &["--data", saved.to_str().expect("a text")]),
        &["node-key", cluster, "--data"],
    );
    assert_eq!(
        std::fs::read(saved.join("node-key")).expect("there"),
        std::fs::read(s.data("a").join("node-key")).expect("there")
    );
    // A directory that is of use to nobody else is left as it was: `freebs up` would refuse it.
    let full = s.data("full");
    std::fs::create_dir(&full).expect("a directory");
    std::fs::write(full.join("letter"), "dear").expect("written");
    refused(&s.init("full"), &["letter"]);
    assert_eq!(std::fs::read_dir(&full).expect("a directory").count(), 1);
}
