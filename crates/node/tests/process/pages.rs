//! The lines of the pages on snapshots and backups, and of the README's tour, run as they stand there on a real cluster:
//! whoever copies them gets what is shown.
//!
//! Invariant: lines are taken out of the page itself. Each indented line is a command; a block marked `text` behind it is
//! what it prints, or, if that begins with `freebs: `, the error that it ends with.

use crate::backup::s3::{Server, make_bucket};
use crate::support::cluster::{Cluster, Setup};
use crate::support::tools::{command, find, have, output, told};
use crate::support::{PATIENCE, Weight, turn};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Where the pages have their gateway.
const GATEWAY: &str = "nbd://127.0.0.1:10809/";
/// Stands in the pages for the first digits of a target's first backup.
const DIGITS: &str = "3f09";
const TOOLS: &[&str] = &["nbdinfo", "nbdcopy"];

#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// Of the page, from 1 on.
    pub number: usize,
    pub command: String,
    /// The page says that it prints this.
    pub shown: Option<String>,
}

pub fn lines(page: &str) -> Vec<Line> {
    let (mut found, mut block): (Vec<Line>, Option<String>) = (Vec::new(), None);
    for (i, line) in page.lines().enumerate() {
        match (&mut block, line) {
            (Some(_), "```") => {
                let last = found.last_mut().expect("a command comes before what it prints");
                assert_eq!(last.shown, None, "line {}: a command prints one thing", i + 1);
                last.shown = block.take();
            }
            (Some(text), line) => *text += &format!("{line}\n"),
            (None, "```text") => block = Some(String::new()),
            (None, line) => {
                assert!(!line.starts_with("```"), "line {}: blocks are marked text, commands are indented", i + 1);
                let indented = line.strip_prefix("    ").map(str::to_owned);
                found.extend(indented.map(|command| Line { number: i + 1, command, shown: None }));
            }
        }
    }
    assert_eq!(block, None, "the last block has an end");
    found
}

/// The text with `0` for each number and its unit, `#` for each identity, and one space between words.
pub fn kind(text: &str) -> String {
    let is_identity = |w: &str| w.len() >= 12 && w.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let word = |w: &str| if is_identity(w) { "#".to_owned() } else { numbers(w) };
    let line = |l: &str| l.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    text.trim().lines().map(|l| line(l) + "\n").collect()
}

fn numbers(word: &str) -> String {
    let (mut out, mut rest) = (String::new(), word);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        out += &rest[..at];
        let number = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        out += "0";
        rest = number.strip_prefix(['K', 'M', 'G', 'T']).unwrap_or(number);
    }
    out + rest
}

/// A cluster as the pages have it, and what stands in it for names that a page can't know.
struct Tour {
    cluster: Cluster,
    programs: PathBuf,
    moto: Option<Server>,
    variables: BTreeMap<String, String>,
}

impl Tour {
    fn begin() -> Self {
        let cluster = Cluster::up(Setup { volume: Some("demo:10G"), ..Setup::default() });
        let programs = cluster.dir().join("programs");
        std::fs::create_dir(&programs).expect("a directory");
        let freebs = std::fs::canonicalize(cluster.freebs().get_program()).expect("the program under test");
        let others = TOOLS.iter().map(|t| (*t, find(t).expect("it was looked for")));
        for (name, at) in others.chain([("freebs", freebs)]) {
            std::os::unix::fs::symlink(at, programs.join(name)).expect("a link");
        }
        Self { cluster, programs, moto: None, variables: BTreeMap::new() }
    }

    /// The page's line as it is called here.
    fn here(&self, line: &str) -> String {
        let place = |name: &str| self.cluster.dir().join(name).display().to_string();
        let here = line.replace(GATEWAY, &self.cluster.place.uri("")).replace("/srv/", &place(""));
        let words: Vec<&str> = here.split_whitespace().collect();
        let Some(at) = words.iter().position(|w| *w == DIGITS) else { return here };
        let list = output(&mut self.shell(&format!("freebs backup list {} --json", words[at - 1])), PATIENCE);
        let list: Value = serde_json::from_slice(&list.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(&list)));
        let id = list["backups"][0]["backup"].as_str().expect("a backup");
        here.replace(DIGITS, &id[..8])
    }

    fn shell(&self, line: &str) -> Command {
        let freebs = self.cluster.freebs();
        let mut cmd = command("sh");
        cmd.args(["-c", line]).current_dir(self.cluster.dir());
        cmd.envs(freebs.get_envs().filter_map(|(name, value)| Some((name, value?))));
        cmd.envs(&self.variables);
        let path = std::env::var("PATH").unwrap_or_default();
        cmd.env("PATH", format!("{}:{path}", self.programs.display()));
        cmd
    }

    /// `export A=… B=…`: values that the user has, here those of the bucket's server.
    fn export(&mut self, names: &str) {
        let moto = self.moto.get_or_insert_with(|| {
            let moto = Server::moto();
            make_bucket(&moto);
            moto
        });
        let known: BTreeMap<String, String> = moto.variables().into_iter().collect();
        self.variables.insert("AWS_ENDPOINT_URL".into(), known["AWS_ENDPOINT_URL"].clone());
        for name in names.split_whitespace().map(|w| w.split('=').next().expect("a name")) {
            let value = known.get(name).unwrap_or_else(|| panic!("no value for {name}"));
            self.variables.insert(name.into(), value.clone());
        }
    }

    fn run(&mut self, line: &Line) {
        if let Some(names) = line.command.strip_prefix("export ") {
            return self.export(names);
        }
        let here = self.here(&line.command);
        let out = output(&mut self.shell(&here), PATIENCE);
        let all = || format!("line {}: {here}\n{}\n{}", line.number, told(&out), self.cluster.log());
        let is_refused = line.shown.as_ref().is_some_and(|s| s.starts_with("freebs: "));
        assert_eq!(out.status.code(), Some(i32::from(is_refused)), "{}", all());
        let printed = if is_refused { &out.stderr } else { &out.stdout };
        if let Some(shown) = &line.shown {
            assert_eq!(kind(&String::from_utf8_lossy(printed)), kind(shown), "{}", all());
        }
    }
}

fn run_all(lines: &[Line], at_least: usize, prepared: &[&str]) {
    assert!(lines.len() >= at_least, "{} lines", lines.len());
    let mut tour = Tour::begin();
    for command in prepared {
        tour.run(&Line { number: 0, command: (*command).to_owned(), shown: None });
    }
    lines.iter().for_each(|l| tour.run(l));
}

#[test]
fn the_page_on_snapshots_does_what_it_says() {
    if !have(TOOLS) {
        return;
    }
    let _turn = turn(Weight::Light);
    run_all(&lines(include_str!("../../../../docs/snapshots.md")), 25, &[]);
}

#[test]
fn the_page_on_backups_does_what_it_says() {
    if !have(TOOLS) || !have(&["moto_server", "python3"]) {
        return;
    }
    let _turn = turn(Weight::Light);
    let image = format!("head -c 4M /dev/urandom > one.img && nbdcopy one.img {GATEWAY}demo");
    let prepared = [image.as_str(), "freebs snapshot create demo --name monday"];
    run_all(&lines(include_str!("../../../../docs/backup.md")), 15, &prepared);
}

#[test]
fn the_readme_goes_from_a_first_snapshot_to_a_restored_backup() {
    if !have(TOOLS) {
        return;
    }
    let _turn = turn(Weight::Light);
    let mut lines = lines(include_str!("../../../../README.md"));
    lines.retain(|l| ["freebs snapshot ", "freebs backup ", "@"].iter().any(|w| l.command.contains(w)));
    let image = format!("head -c 4M /dev/urandom > one.img && nbdcopy one.img {GATEWAY}demo");
    run_all(&lines, 10, &[&image]);
    assert!(lines.last().is_some_and(|l| l.command.starts_with("freebs backup restore ")), "{lines:?}");
}

#[test]
fn lines_are_taken_out_of_a_page() {
    let page = "A page\n\n    freebs one\n    two && three\n\n```text\nprinted 1\n  more\n```\n\nwords `not run`\n";
    let line = |number, command: &str, shown: Option<&str>| Line {
        number,
        command: command.into(),
        shown: shown.map(str::to_owned),
    };
    assert_eq!(lines(page), [line(3, "freebs one", None), line(4, "two && three", Some("printed 1\n  more\n"))]);
}

#[test]
fn outputs_of_one_kind_differ_in_numbers_alone() {
    for (shown, printed, is_same) in [
        ("made a@b in 6.2 ms", "made a@b in 11 ms", true),
        ("made a@b in 6.2 ms", "made a@c in 6.2 ms", false),
        ("SIZE  10G", "SIZE 256M\n", true),
        ("1 range", "2 ranges", false),
        ("one\ntwo", "one", false),
        ("3f09bfde1643 is", "f4612bfde164 is", true),
        ("until 2026-11-21T10:31:07Z", "until 2027-01-01T00:00:00Z", true),
        ("until 2026-11-21T10:31:07Z", "until -", false),
    ] {
        assert_eq!(kind(shown) == kind(printed), is_same, "{shown:?} and {printed:?}");
    }
}
