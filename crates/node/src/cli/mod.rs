//! The command line: what can be said, and what it exits with (0 done, 1 failed, 2 not understood; `verify` and
//! `volume recover` have more).

pub mod args;
mod asked;
mod attachments;
mod backup;
mod clones;
pub mod cluster;
mod config;
mod control;
mod copies;
mod device;
mod diff;
mod drain;
mod events;
mod history;
mod image;
mod joining;
pub mod output;
mod place;
mod rebalance;
mod recover;
mod remove;
mod restart;
mod rollback;
mod run;
pub mod signals;
mod snapshot;
mod tokens;
mod values;
mod verify;
mod volume;

use crate::options::DEFAULT_CLUSTER;
use crate::{conn, identity};
use args::{Cli, Command, NodeArgs, NodeCommand, NodeRunArgs, UpArgs};
use clap::CommandFactory;
use freebs_types::{Error, Result};
use output::Output;
use std::io::Write as _;
use std::process::ExitCode;

/// Runs what the command line says.
pub fn main() -> ExitCode {
    let cli = match config::parse(std::env::args_os().collect()) {
        Ok(cli) => cli,
        Err(e) => {
            let _ = writeln!(std::io::stderr(), "freebs: {}", e.text);
            return ExitCode::from(2);
        }
    };
    let default_level = match &cli.command {
        // The consensus library tells of every step; what matters of it is told here.
        Command::Node(n) if n.command.is_none() => "info,openraft=off",
        Command::Gateway(_) => "info",
        _ => "warn",
    };
    if let Err(e) = start_log(default_level) {
        // Standard error may be a file on a full disk; the exit status says it all the same.
        let _ = writeln!(std::io::stderr(), "freebs: {e}");
        return ExitCode::from(2);
    }
    let output = Output { json: cli.json };
    match dispatch(cli, &output) {
        Ok(code) => code,
        Err(e) => {
            output.error(&e);
            ExitCode::from(1)
        }
    }
}

fn dispatch(cli: Cli, output: &Output) -> Result<ExitCode> {
    if let Some(data) = cli.as_node.as_ref().filter(|_| cli.command.asks_nodes()) {
        conn::speak_as(identity::of_directory(data)?)?;
    }
    let trusted_network = cli.trusted_network;
    if trusted_network {
        conn::trust_network();
    }
    let named = cli.cluster;
    let cluster = named.clone().unwrap_or_else(|| DEFAULT_CLUSTER.to_owned());
    match cli.command {
        Command::Up(args) => crate::up::up(UpArgs { trusted_network, ..args }, output),
        Command::Node(args) => {
            let NodeArgs { command, run: options } = *args;
            match command {
                None => run::node(NodeRunArgs { trusted_network, ..options }).map(|()| ExitCode::SUCCESS),
                Some(NodeCommand::Join(a)) => block_on(joining::join(a, output)),
                Some(NodeCommand::Drain(a)) => block_on(drain::run(a, &cluster, output)),
                Some(NodeCommand::Set(a)) => block_on(place::run(a, &cluster, output)),
                Some(NodeCommand::Remove(a)) => block_on(remove::remove(a, &cluster, output)),
                Some(NodeCommand::Replace(a)) => block_on(remove::replace(a, &cluster, output)),
                Some(NodeCommand::Start(a)) => cluster::node_switch(&a, named.as_deref(), true, output),
                Some(NodeCommand::Stop(a)) => cluster::node_switch(&a, named.as_deref(), false, output),
            }
        }
        Command::Cluster(c) => block_on(joining::cluster(c, named.as_deref(), output)),
        Command::Gateway(args) => run::gateway(args, &cluster).map(|()| ExitCode::SUCCESS),
        Command::Volume(v) => block_on(volume::run(v, &cluster, output)),
        Command::Backup(b) => block_on(backup::run(b, &cluster, output)),
        Command::Snapshot(s) => block_on(snapshot::run(s, &cluster, output)),
        Command::Verify(args) => block_on(verify::run(args, &cluster, output)),
        Command::Device(d) => device::run(d, output),
        Command::Control(c) => control::run(c, output),
        Command::Config(c) => config::run(&c, output),
        Command::Status => block_on(cluster::status(&cluster, output)),
        Command::Events(args) => block_on(events::run(args, &cluster, output)),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "freebs", &mut script);
            output.raw(&script);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// A small runtime for one command.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Error::os(format!("can't start: {e}")))?.block_on(work)
}

fn start_log(default_level: &str) -> Result<()> {
    use tracing_subscriber::prelude::*;
    let text = std::env::var("FREEBS_LOG").unwrap_or_default();
    let filter = log_filter(if text.is_empty() { default_level } else { &text })?;
    // A log that can't be written (its disk is full) must not end the process that has something to say.
    let lines =
        tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false).with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    Ok(())
}

/// A level (`info`), or levels of single parts (`freebs=debug,openraft=warn`).
fn log_filter(text: &str) -> Result<tracing_subscriber::filter::Targets> {
    text.parse().map_err(|e| {
        Error::invalid(format!("FREEBS_LOG is '{text}', which is no filter ({e}); write info, or freebs=debug"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn filters_of_the_log_are_levels_and_levels_of_parts() {
        use tracing::Level;
        let filter = log_filter("warn,freebs=debug").unwrap();
        assert!(filter.would_enable("freebs::runtime", &Level::DEBUG));
        assert!(!filter.would_enable("openraft", &Level::INFO) && filter.would_enable("openraft", &Level::WARN));
        let error = log_filter("freebs=loud").unwrap_err();
        assert!(error.to_string().contains("write info, or freebs=debug"), "{error}");
    }
}
