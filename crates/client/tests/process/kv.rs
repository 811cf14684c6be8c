//! The example `kv`, killed at random points.

use crate::store::survives_kills;
use crate::support::{Nodes, program};
use std::process::Command;

#[test]
fn a_store_without_a_log_survives_kills() {
    let nodes = Nodes::up();
    survives_kills(&nodes, &|args| {
        let mut command = Command::new(program("examples/kv"));
        command.arg(nodes.addresses().join(",")).arg("demo").args(args);
        command
    });
}
