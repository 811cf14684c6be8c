//! One gateway: follows the control plane, and announces itself.

use crate::admin::{FollowerOptions, Plane};
use crate::cli::signals::Stop;
use crate::options::GatewayOptions;
use freebs_control::api::GatewayInfo;
use freebs_types::{Error, Result};

/// Runs one gateway until it is told to stop.
pub fn run_gateway(options: GatewayOptions) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Error::os(format!("can't start: {e}")))?.block_on(run(options))
}

async fn run(options: GatewayOptions) -> Result<()> {
    let me =
        GatewayInfo { name: options.name.clone(), pid: std::process::id(), nbd: options.nbd.to_string() };
    let plane = Plane::follow(FollowerOptions {
        cluster: options.cluster_id,
        addresses: options.cluster,
        any_node: true,
        announce: Some(me),
    })?;
    let state = plane.ready().await;
    tracing::info!("gateway {} follows cluster {}", options.name, state.cluster());
    stop.wait().await;
    Ok(())
}
