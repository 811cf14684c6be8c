//! `freebs.toml`: the options of `freebs node` and `freebs gateway` in a file.
//!
//! A key is an option's long name, and its value is read as the option's is: there is one list of them, the command line's, and
//! one reader. What is said on the command line, or in the environment, counts before the file.

use super::args::Cli;
use super::output::{Output, table};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Subcommand};
use freebs_types::{Error, Result};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Bytes of a configuration file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The commands that have a section of their own.
const SECTIONS: [&str; 2] = ["node", "gateway"];
/// Options that say nothing of how a process runs.
const NO_KEYS: [&str; 4] = ["config", "json", "help", "version"];

pub const HELP: &str = "\
Examples:
  freebs config example > /etc/freebs/freebs.toml    every key, with what it is and its default
  freebs config check /etc/freebs/freebs.toml
  freebs node --config /etc/freebs/freebs.toml

A section for each command, [node] and [gateway]; keys are the long names of their options. An option of the command line counts
before one of the environment, that before the file. A key that there is not, or twice, is refused.";

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Read a configuration file, and say what is wrong with it
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print a configuration file with all keys
    Example,
}

pub fn run(command: &ConfigCommand, output: &Output) -> Result<ExitCode> {
    match command {
        ConfigCommand::Check { file } => check(file, output),
        ConfigCommand::Example => {
            output.raw(example().as_bytes());
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The command line, with what its `--config` file says besides.
pub fn parse(args: Vec<OsString>) -> Result<Cli> {
    let matches = Cli::command().get_matches_from(&args);
    let matches = match of_file(&matches) {
        None => matches,
        Some((section, path)) => {
            let given = settings(&path)?;
            let more = lines(&path, section, &given, Some(&matches))?;
            let all: Vec<OsString> = args.into_iter().chain(more.into_iter().map(OsString::from)).collect();
            Cli::command().try_get_matches_from(all).map_err(|e| refused(&path, section, &e))?
        }
    };
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit()))
}

/// The file that is named, and the section of the command that names it.
fn of_file(matches: &ArgMatches) -> Option<(&'static str, PathBuf)> {
    let (name, of) = matches.subcommand()?;
    let section = SECTIONS.into_iter().find(|s| *s == name)?;
    let path = of.try_get_one::<PathBuf>("config").ok().flatten()?;
    Some((section, path.clone()))
}

/// A section with its keys and values, in the order of the keys.
type Settings = Vec<(String, Vec<(String, toml::Value)>)>;

fn settings(path: &Path) -> Result<Settings> {
    let shown = path.display();
    let size = std::fs::metadata(path).map_err(|e| crate::files::os_error("read", path, &e))?.len();
    if size > FILE_BYTES_MAX {
        return Err(Error::invalid(format!(
            "{shown} has {size} bytes; a configuration file has {FILE_BYTES_MAX} at most"
        )));
    }
    let text = std::fs::read_to_string(path).map_err(|e| crate::files::os_error("read", path, &e))?;
    let all: toml::Table =
        toml::from_str(&text).map_err(|e| Error::invalid(format!("{shown}: {}", e.to_string().trim_end())))?;
    let mut out = Vec::new();
    for (section, keys) in all {
        if !SECTIONS.contains(&section.as_str()) {
            let known = SECTIONS.map(|s| format!("[{s}]")).join(" and ");
            return Err(Error::invalid(format!("{shown} has [{section}], which there is not; sections are {known}")));
        }
        let toml::Value::Table(keys) = keys else {
            return Err(Error::invalid(format!("{shown}: {section} is to be a section, [{section}], with keys below")));
        };
        out.push((section, keys.into_iter().collect()));
    }
    Ok(out)
}

/// A command of which a section has the options.
fn command_of(section: &str) -> Command {
    let mut all = Cli::command();
    all.build();
    all.find_subcommand(section).expect("sections are commands").clone()
}

/// Options that are keys, in the order in which the help has them.
fn keys(of: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    of.get_arguments()
        .filter(|a| !a.is_hide_set())
        .filter_map(|a| Some((a.get_long()?, a)))
        .filter(|(k, _)| !NO_KEYS.contains(k))
}

fn is_given(given: &ArgMatches, id: &str) -> bool {
    matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// A section as options of the command line: those that are not given there, nor contradict one that is.
fn lines(path: &Path, section: &str, all: &Settings, given: Option<&ArgMatches>) -> Result<Vec<String>> {
    let command = command_of(section);
    let given = given.and_then(|m| m.subcommand_matches(section));
    let mut out = Vec::new();
    for (key, value) in all.iter().filter(|(s, _)| s == section).flat_map(|(_, keys)| keys) {
        let Some((_, arg)) = keys(&command).find(|(k, _)| k == key) else {
            let known: Vec<&str> = keys(&command).map(|(k, _)| k).collect();
            return Err(Error::invalid(format!(
                "{}: [{section}] has no key {key}; there are {}",
                path.display(),
                known.join(", ")
            )));
        };
        let text = text_of(value, arg)
            .map_err(|why| Error::invalid(format!("{}: {key} of [{section}] {why}", path.display())))?;
        // Either of two options may be the one that says that they don't go together.
        let against = |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|x| x.get_id() == b.get_id());
        let stands_for = |a: &Arg| a.get_id() == arg.get_id() || against(a, arg) || against(arg, a);
        let is_out = |m: &ArgMatches| keys(&command).any(|(_, a)| is_given(m, a.get_id().as_str()) && stands_for(a));
        if !given.is_some_and(is_out) {
            out.extend(text.map(|text| {
                if text.is_empty() && is_flag(arg) { format!("--{key}") } else { format!("--{key}={text}") }
            }));
        }
    }
    Ok(out)
}

fn is_flag(arg: &Arg) -> bool {
    !arg.get_action().takes_values()
}

/// A value as the command line has it; none for a flag that is not set.
fn text_of(value: &toml::Value, arg: &Arg) -> std::result::Result<Option<String>, &'static str> {
    match (value, is_flag(arg)) {
        (toml::Value::Boolean(set), true) => Ok(set.then(String::new)),
        (_, true) => Err("is to be true or false"),
        (toml::Value::String(text), false) => Ok(Some(text.clone())),
        (toml::Value::Integer(number), false) => Ok(Some(number.to_string())),
        (_, false) => Err("is to be a text or a whole number"),
    }
}

/// The first line of what the command line's reader says, of an option that stands in the file.
fn refused(path: &Path, section: &str, e: &clap::Error) -> Error {
    let text = e.to_string();
    let first = text.lines().next().unwrap_or_default();
    Error::invalid(format!("{}, [{section}]: {}", path.display(), first.trim_start_matches("error: ")))
}

#[derive(Serialize)]
struct Checked {
    file: String,
    /// Section, key and value.
    settings: Vec<(String, String, String)>,
}

fn check(path: &Path, output: &Output) -> Result<ExitCode> {
    let all = settings(path)?;
    let mut found = Vec::new();
    for section in SECTIONS {
        let more = lines(path, section, &all, None)?;
        let line = ["freebs".to_owned(), section.to_owned()].into_iter().chain(more);
        Cli::command().try_get_matches_from(line).map_err(|e| refused(path, section, &e))?;
    }
    for (section, keys) in &all {
        let text = |v: &toml::Value| match v {
            toml::Value::Boolean(set) => set.to_string(),
            toml::Value::Integer(number) => number.to_string(),
            other => other.as_str().unwrap_or_default().to_owned(),
        };
        found.extend(keys.iter().map(|(key, value)| (section.clone(), key.clone(), text(value))));
    }
    output.show(&Checked { file: path.display().to_string(), settings: found }, |c| {
        let rows = c.settings.iter().map(|(s, k, v)| vec![s.clone(), k.clone(), v.clone()]);
        format!("{}{} is in order\n", table(&["SECTION", "KEY", "VALUE"], &[], rows.collect()), c.file)
    });
    Ok(ExitCode::SUCCESS)
}

/// A file with every key, each with its help and its default, as a comment.
pub fn example() -> String {
    let mut out = String::from(
        "# Configuration of freebs. Keys are the long names of options; `freebs config check FILE` reads it.\n",
    );
    for section in SECTIONS {
        out.push_str(&format!("\n[{section}]\n"));
        let command = command_of(section);
        for (key, arg) in keys(&command) {
            let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
            out.push('\n');
            for line in textwrap(&help) {
                out.push_str(&format!("# {line}\n"));
            }
            let default = arg.get_default_values().first().map(|v| v.to_string_lossy().into_owned());
            let value = match (is_flag(arg), default) {
                (true, _) => "false".to_owned(),
                (false, Some(value)) => format!("\"{value}\""),
                (false, None) => "\"\"".to_owned(),
            };
            out.push_str(&format!("# {key} = {value}\n"));
        }
    }
    out
}

/// Lines of 100 columns or less.
fn textwrap(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for paragraph in text.lines() {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && line.len() + word.len() > 96 {
                out.push(std::mem::take(&mut line));
            }
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
        out.push(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("freebs.toml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    fn parsed(text: &str, line: &str) -> Result<Cli> {
        let (_dir, path) = file(text);
        let line = line.replace("FILE", &path.display().to_string());
        parse(std::iter::once("freebs").chain(line.split_whitespace()).map(OsString::from).collect())
    }

    fn node(text: &str, line: &str) -> super::super::args::NodeRunArgs {
        match parsed(text, line).unwrap().command {
            super::super::args::Command::Node(n) => n.run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_said_on_the_command_line_counts_before_the_file() {
        let text =
            "[node]\nname = \"a\"\nworkers = 2\ndevice-size = \"10G\"\nscrub-rate = 0\n[gateway]\nname = \"g\"\n";
        let n = node(text, "node --config FILE --device-size 20G");
        assert_eq!(
            (n.name.as_deref(), n.workers, n.device_size, n.scrub_rate),
            (Some("a"), Some(2), Some(20 << 30), 0)
        );
        // The name in the file does not stand against the id that was given.
        let n = node(text, "node --config FILE --id 3");
        assert_eq!((n.name, n.id), (None, Some(3)));
        let cli = parsed("[node]\ntrusted-network = true\ncluster = \"h:1\"\n", "node --config FILE").unwrap();
        assert!(cli.trusted_network && cli.cluster.as_deref() == Some("h:1"));
        assert!(!parsed("[node]\ntrusted-network = false\n", "node --config FILE").unwrap().trusted_network);
    }

    #[test]
    fn what_there_is_not_is_refused_with_the_place() {
        for (text, words) in [
            ("[nodes]\n", vec!["[nodes]", "[node] and [gateway]"]),
            ("[node]\nsize = 3\n", vec!["no key size", "device-size"]),
            ("[node]\njson = true\n", vec!["no key json"]),
            ("[node]\nconfig = \"x\"\n", vec!["no key config"]),
            ("[node]\nworkers = 3\n", vec!["[node]", "workers", "3"]),
            ("[node]\nworkers = 2.5\n", vec!["workers", "whole number"]),
            ("[node]\ntrusted-network = \"yes\"\n", vec!["true or false"]),
            ("[node]\nname = \"a\"\nname = \"b\"\n", vec!["duplicate"]),
            ("[node\n", vec!["line 1"]),
            ("node = 3\n", vec!["a section"]),
            ("[gateway]\nworkers = 1\n", vec!["no key workers"]),
        ] {
            let (_dir, path) = file(text);
            let refused = check(&path, &Output { json: true }).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(words.iter().all(|w| refused.contains(w)), "{text:?}: {refused}");
        }
        let missing = parsed("", "node --config /nowhere/freebs.toml").unwrap_err();
        assert!(missing.text.contains("/nowhere/freebs.toml"), "{missing}");
    }

    /// The file that is shipped has all keys, and says of them what the help says.
    #[test]
    fn the_example_is_the_one_that_is_shipped() {
        let shipped = include_str!("../../../../dist/freebs.toml");
        if std::env::var_os("FREEBS_BLESS").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/freebs.toml"), example()).unwrap();
        } else {
            assert_eq!(example(), shipped, "FREEBS_BLESS=1 writes it");
        }
        for section in SECTIONS {
            let of = command_of(section);
            for (key, arg) in keys(&of) {
                assert!(arg.get_help().is_some(), "{key} of [{section}] has a word about it");
                assert!(shipped.contains(&format!("# {key} = ")), "{key}");
            }
        }
        let (_dir, path) = file(shipped);
        check(&path, &Output { json: true }).unwrap();
        // Each key with a default can be taken as it stands.
        let has_default = |l: &&str| l.contains(" = \"") && l.ends_with('"') && !l.ends_with("\"\"");
        let set: String =
            shipped.lines().map(|l| format!("{}\n", l.strip_prefix("# ").filter(has_default).unwrap_or(l))).collect();
        assert!(set.contains("\nscrub-rate = \""), "{set}");
        let (_dir, path) = file(&set);
        check(&path, &Output { json: true }).unwrap();
    }
}
