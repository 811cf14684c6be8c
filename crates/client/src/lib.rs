//! Volumes of a freebs cluster for programs: reads and writes without a file system or NBD between, and *intervals*,
//! changes that happen together or not at all.
//!
//! ```no_run
//! # use freebs::{Cluster, Result, Volume};
//! # async fn move_it() -> Result<()> {
//! let cluster = Cluster::connect(&["127.0.0.1:7400"]).await?;
//! let volume = Volume::attach(&cluster, "demo").await?;
//! let mut interval = volume.interval()?;
//! interval.write(0, "from here")?;
//! interval.write(40960, "to there")?;
//! interval.commit().await?.committed()?;
//! # Ok(())
//! # }
//! ```
//!
//! It is what a gateway has inside: the same driver on the same worker (`freebs_node::attached`), with the program in the
//! place of an NBD client.
//!
//! Invariants: what a volume has answered is durable on a quorum of its copies. An interval is nothing at all before it
//! is committed: it is in the program's memory only. Handles may go to any thread, and be used under any executor; what
//! has to stay on a thread stays on the cluster's own.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "this is an edge crate")]

mod cluster;
mod interval;
mod volume;

pub use cluster::Cluster;
pub use freebs_driver::{
    INTERVAL_BYTES_MAX, INTERVAL_CHANGES_MAX, INTERVAL_RUNS_MAX, INTERVAL_SHARDS_MAX, Placed, REQUEST_BYTES_MAX,
};
pub use freebs_types::{Error, ErrorKind, Result};
pub use interval::{INTERVAL_BUFFER_MAX, Interval, Outcome};
pub use volume::Volume;
