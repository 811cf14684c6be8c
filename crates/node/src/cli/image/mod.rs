//! `freebs volume import` and `freebs volume export`: disk images in and out.
//!
//! The command attaches the volume itself (`crate::attached`), so no gateway is needed and nobody else uses it meanwhile.
//! The folder: `args` (its words), `input` (an image that is read), `target` (the volume that it goes to, under a name that says that it is not
//! whole yet), `import`, `export`, `out` (a file that has no name before it is whole), `progress`, `writes` (many at a time).

pub mod args;
mod export;
mod import;
mod input;
mod out;
pub mod progress;
pub mod target;
pub mod writes;

use super::output::Output;
use crate::admin::Client;
use args::{ExportArgs, ImportArgs};
use freebs_types::Result;
use std::process::ExitCode;

pub async fn import(client: &Client, cluster: &str, args: ImportArgs, output: &Output) -> Result<ExitCode> {
    on_this_thread(import::run(client, &addresses(cluster), args, output)).await
}

pub async fn export(client: &Client, cluster: &str, args: ExportArgs, output: &Output) -> Result<ExitCode> {
    on_this_thread(export::run(client, &addresses(cluster), args, output)).await
}

/// Tasks of the driver's edge stay on their thread.
pub async fn on_this_thread<T>(work: impl Future<Output = T>) -> T {
    tokio::task::LocalSet::new().run_until(work).await
}

/// The addresses of an option.
pub fn addresses(cluster: &str) -> Vec<String> {
    cluster.split(',').map(str::to_owned).collect()
}
