//! What all nodes' logs know: read here, or from the files of `freebs control survey` on other machines.

use super::super::device;
use super::super::output::Output;
use crate::admin::seat_files;
use crate::cluster_file::{ClusterFile, ClusterNode};
use crate::files::{self, DirLock};
use crate::timing;
use freebs_agent::{add_device, survey_of};
use freebs_control::rebuild::NodeSurvey;
use freebs_lsvd::tool;
use freebs_types::{Error, ErrorKind, NodeId, Result};
use serde::{Deserialize, Serialize};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub const SURVEY_VERSION: u32 = 1;
/// Bytes of a survey's file.
const SURVEY_BYTES_MAX: usize = 256 << 20;

/// What `freebs control survey` prints.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SurveyFile {
    pub version: u32,
    /// The node still has files of a control state.
    pub control_state: bool,
    pub survey: NodeSurvey,
}

/// All surveys, and which nodes have their data here.
pub struct Gathered {
    pub surveys: Vec<NodeSurvey>,
    /// Nodes whose data directories are here, with these.
    local: Vec<(ClusterNode, Option<DirLock>)>,
    /// Names of nodes elsewhere that still have a control state.
    remote_states: Vec<String>,
}

/// Takes a node's data directory: it can't start meanwhile.
pub fn take(node: &ClusterNode) -> Result<DirLock> {
    DirLock::take(&node.data, "lock").map_err(|e| {
        let text = format!("{} has to be stopped, with all other nodes of the cluster: {}", node.name, e.text);
        Error { kind: e.kind, text: text.into() }
    })
}

/// Reads what is to be read. Every node of the cluster file is read here, given as a file, or left out on purpose.
pub async fn gather(file: &ClusterFile, paths: &[PathBuf], without: &[NodeId], output: &Output) -> Result<Gathered> {
    let mut all = Gathered { surveys: vec![], local: vec![], remote_states: vec![] };
    for path in paths {
        let given = read_file(path)?;
        let node = given.survey.node;
        if without.contains(&node) || all.surveys.iter().any(|s| s.node == node) {
            return Err(Error::invalid(format!("{}: node {node} was named before, too", path.display())));
        }
        if given.control_state {
            all.remote_states.push(file.node(node).map_or_else(|| node.to_string(), |n| n.name.clone()));
        }
        all.surveys.push(given.survey);
    }
    for node in &file.nodes {
        let is_given = all.surveys.iter().any(|s| s.node == node.id) || without.contains(&node.id);
        if node.data.is_dir() {
            all.local.push((node.clone(), Some(take(node)?)));
        } else if !is_given {
            return Err(Error::not_found(format!(
                "the data directory {} of {} is not on this machine; run `freebs control survey --name {}` where it \
                 is, and give what that prints by --survey FILE; or --without {} if it is lost",
                node.data.display(),
                node.name,
                node.name,
                node.name
            )));
        }
        if !is_given {
            let survey = read_node(file, node, output).await?;
            all.surveys.push(survey);
        }
    }
    Ok(all)
}

impl Gathered {
    pub fn is_local(&self, node: NodeId) -> bool {
        self.local.iter().any(|(n, _)| n.id == node)
    }

    pub fn local_directories(&self) -> impl Iterator<Item = &Path> {
        self.local.iter().map(|(n, _)| n.data.as_path())
    }

    /// An error if any node still has a control state.
    pub fn refuse_control_states(&self) -> Result<()> {
        let here = self.local.iter().filter(|(n, _)| seat_files::is_there(&n.data)).map(|(n, _)| n.name.clone());
        let mut names: Vec<String> = here.collect();
        names.extend(self.remote_states.iter().cloned());
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} may still know the control state, which is worth more than what the logs know: start as many nodes as \
             you can, and see whether `freebs status` answers. If it is lost for good, say --put-aside",
            names.join(", ")
        )))
    }

    /// An error if a node elsewhere still has one.
    pub fn remote_control_states(&self) -> Result<()> {
        if self.remote_states.is_empty() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} still had a control state when its logs were read; run `freebs control survey --put-aside` there, and \
             give what that prints",
            self.remote_states.join(", ")
        )))
    }
}

fn read_file(path: &Path) -> Result<SurveyFile> {
    let Some(bytes) = files::read_limited(path, SURVEY_BYTES_MAX)? else {
        return Err(Error::not_found(format!("there is no file {}", path.display())));
    };
    let given: SurveyFile = serde_json::from_slice(&bytes)
        .map_err(|e| Error::invalid(format!("{} is not what `freebs control survey` prints: {e}", path.display())))?;
    if given.version != SURVEY_VERSION {
        return Err(Error::invalid(format!(
            "{} is of version {}, this freebs knows {SURVEY_VERSION}",
            path.display(),
            given.version
        )));
    }
    Ok(given)
}

/// What the devices of a node know. One that is lost, damaged or not to be understood makes it less than whole; if all
/// are, that is an error.
pub async fn read_node(file: &ClusterFile, node: &ClusterNode, output: &Output) -> Result<NodeSurvey> {
    let (cluster, id) = (file.cluster, node.id);
    let mut all = survey_of(cluster, id);
    let mut trouble = Vec::new();
    for worker in 0..node.workers {
        let path = node.data.join(format!("log-{worker}.freebs"));
        progress(&node.name, &path);
        match read_device(&path).await {
            Ok(found) => {
                let d = &found.device;
                if !d.guessed && (d.cluster, d.node, d.worker) != (cluster, id, worker) {
                    return Err(Error::invalid(format!(
                        "{} is worker {} of node {} of the cluster {}, not worker {worker} of {}; put the right \
                         device back, or say --without {}",
                        path.display(),
                        d.worker,
                        d.node,
                        d.cluster,
                        node.name,
                        node.name
                    )));
                }
                add_device(&mut all, found);
            }
            Err(e) if e.kind == ErrorKind::Busy => return Err(e),
            Err(e) => trouble.push(e),
        }
    }
    progress_end();
    if trouble.len() == usize::from(node.workers) {
        let why = trouble.first().map(|e| e.text.to_string()).unwrap_or_default();
        return Err(Error::not_found(format!("{} can't be read: {why}; if it is lost, say --without {0}", node.name)));
    }
    for e in trouble {
        all.whole = false;
        output.note(&format!("{} goes on without one of its devices: {e}", node.name));
    }
    Ok(all)
}

async fn read_device(path: &Path) -> Result<tool::Survey> {
    let begun = Instant::now();
    let device = loop {
        match device::open(path, true).await {
            Err(e) if e.kind == ErrorKind::Busy && begun.elapsed() < timing::BUSY_MAX => {
                tokio::time::sleep(timing::BUSY_LOOK).await;
            }
            other => break other?,
        }
    };
    tool::survey(&device, &mut ()).await.map_err(|e| e.at(path.display()))
}

fn progress(node: &str, path: &Path) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K{node}: reading {}", path.display());
    }
}

fn progress_end() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}
