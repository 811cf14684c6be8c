//! `freebs control …`: the control state, when it can't be asked for any more.
//!
//! Invariants: nothing is written without `--write` or `--put-aside`. While the logs of a node are read its data
//! directory is taken, so the node can't start. A control state that is there is never overwritten, only put aside.

mod gather;
mod shown;

use super::args::{ControlCommand, ControlRebuildArgs, ControlSurveyArgs};
use super::output::Output;
use crate::cluster_file::{self, ClusterFile, ClusterNode};
use crate::{admin, events};
use freebs_control::rebuild::{self, NodeName, Rebuilt};
use freebs_types::{Error, Result};
use gather::{SURVEY_VERSION, SurveyFile};
use std::path::Path;
use std::process::ExitCode;

pub fn run(command: ControlCommand, output: &Output) -> Result<ExitCode> {
    super::device::local(async {
        match command {
            ControlCommand::Survey(args) => survey(&args, output).await,
            ControlCommand::Rebuild(args) => rebuild_all(&args, output).await,
        }
    })
}

fn cluster_file(path: &Path) -> Result<ClusterFile> {
    cluster_file::load(path)?.ok_or_else(|| {
        Error::not_found(format!(
            "there is no cluster file {}; --cluster-file FILE names it (`freebs up` keeps it in its data directory)",
            path.display()
        ))
    })
}

fn by_name<'a>(file: &'a ClusterFile, name: &str) -> Result<&'a ClusterNode> {
    file.nodes
        .iter()
        .find(|n| n.name == name)
        .ok_or_else(|| Error::not_found(format!("the cluster file has no node '{name}'; it has {}", file.names())))
}

async fn survey(args: &ControlSurveyArgs, output: &Output) -> Result<ExitCode> {
    let file = cluster_file(&args.cluster_file)?;
    let mut node = by_name(&file, &args.name)?.clone();
    if let Some(data) = &args.data {
        node.data.clone_from(data);
    }
    if !node.data.is_dir() {
        return Err(Error::not_found(format!(
            "the data directory {} of {} is not on this machine; --data DIR names another one",
            node.data.display(),
            node.name
        )));
    }
    let _lock = gather::take(&node)?;
    let survey = gather::read_node(&file, &node, output).await?;
    if args.put_aside {
        admin::seat_files::put_aside(&node.data)?;
    }
    let control_state = admin::seat_files::is_there(&node.data);
    let found = SurveyFile { version: SURVEY_VERSION, control_state, survey };
    output.line(&serde_json::to_string(&found).expect("plain values"));
    Ok(ExitCode::SUCCESS)
}

async fn rebuild_all(args: &ControlRebuildArgs, output: &Output) -> Result<ExitCode> {
    let file = cluster_file(&args.cluster_file)?;
    names_all_nodes(&file)?;
    let without = args.without.iter().map(|n| by_name(&file, n).map(|n| n.id)).collect::<Result<Vec<_>>>()?;
    let accepted = args.accept_loss.iter().map(|n| by_name(&file, n).map(|n| n.id)).collect::<Result<_>>()?;
    let gathered = gather::gather(&file, &args.surveys, &without, output).await?;
    if !args.put_aside {
        gathered.refuse_control_states()?;
    }
    let names: Vec<NodeName> = file
        .nodes
        .iter()
        .map(|n| NodeName { node: n.id, name: n.name.clone(), address: n.address.clone(), workers: n.workers })
        .collect();
    // Those who follow the cluster take what has a higher revision for newer. A state counts its changes; no cluster
    // has as many of them as milliseconds went by.
    let done = rebuild::rebuild_accepting(file.cluster, &names, &gathered.surveys, events::now_ms(), &accepted)?;
    if args.write {
        write(&file, &gathered, &done, args.put_aside)?;
    }
    let is_complete = done.left.is_empty();
    output.show(&shown::Rebuild::new(&file, &gathered, &done, args.write), shown::text);
    Ok(ExitCode::from(u8::from(!is_complete)))
}

/// Refuses a file that names fewer nodes than have joined, as far as their own files say: numbers would be given twice,
/// and a cluster would begin beside the one there is.
fn names_all_nodes(file: &ClusterFile) -> Result<()> {
    if let Some(peer) = file.peers.first() {
        return Err(Error::invalid(format!(
            "this is the cluster file of {} alone, and there are others, such as {}; it has to name all nodes with their \
             data directories, and the authority. docs/tools.md shows one: write it, and name it by --cluster-file",
            file.first().name,
            peer.name
        )));
    }
    for node in &file.nodes {
        let path = node.data.join("cluster.json");
        let Some(own) = cluster_file::load(&path)?.filter(|own| own.cluster == file.cluster) else { continue };
        if own.authority.is_some() && own.authority != file.authority {
            return Err(Error::invalid(format!(
                "{} has another authority than the cluster file; copy \"authority\" from there, or anybody could join",
                path.display()
            )));
        }
        if let Some(peer) = own.peers.iter().find(|p| file.node(p.id).is_none()) {
            return Err(Error::invalid(format!(
                "the cluster file does not name {} (node {}), which {} knows; it has to name all nodes of the cluster, \
                 also those that are lost (--without {})",
                peer.name,
                peer.id,
                path.display(),
                peer.name
            )));
        }
    }
    Ok(())
}

/// Puts what is left of the old state aside, then the new one where the founder of the cluster looks for one.
fn write(file: &ClusterFile, gathered: &gather::Gathered, done: &Rebuilt, put_aside: bool) -> Result<()> {
    let founder = file.first();
    if !gathered.is_local(founder.id) {
        return Err(Error::invalid(format!(
            "{} founds the cluster with the new state, and its data directory {} is not here; run this on its machine, \
             with --survey for nodes on others",
            founder.name,
            founder.data.display()
        )));
    }
    if put_aside {
        gathered.remote_control_states()?;
        for data in gathered.local_directories() {
            admin::seat_files::put_aside(data)?;
        }
    }
    admin::seat_files::write_state(&founder.data, &done.state)
}
