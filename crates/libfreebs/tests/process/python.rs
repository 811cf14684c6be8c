//! The Python package, installed from its wheel.

use crate::store::{said, survives_kills};
use crate::support::{Nodes, program};
use crate::tools::{Python, run};
use std::process::Command;

#[test]
fn the_package_does_what_it_says() {
    let Some(python) = Python::get() else { return };
    let nodes = Nodes::up();
    nodes.cli(&["snapshot", "create", "demo", "--name", "then"]);
    let said = run(python.script("python/tests/tour.py").arg(nodes.addresses().join(",")).args(["demo", "then"]));
    assert!(said.contains("all is well"), "{said}");
}

#[test]
fn a_store_in_python_survives_kills_and_is_that_of_its_twin() {
    let Some(python) = Python::get() else { return };
    let nodes = Nodes::up();
    let on_demo = |mut command: Command, args: &[&str]| {
        command.arg(nodes.addresses().join(",")).arg("demo").args(args);
        command
    };
    let kv = |args: &[&str]| on_demo(python.script("python/examples/kv.py"), args);
    let twin = |args: &[&str]| on_demo(Command::new(program("examples/kv")), args);
    survives_kills(&nodes, &kv);
    // Each reads and changes what the other one has written.
    let run = |mut command: Command| said(&command.output().expect("it runs"));
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(run(kv(&["list"]))), sorted(run(twin(&["list"]))));
    run(twin(&["put", "pear", "grün", "apple", ""]));
    assert_eq!(run(kv(&["get", "pear"])), "grün\n");
    assert_eq!(run(kv(&["get", "apple"])), "\n");
    run(kv(&["del", "pear"]));
    assert_eq!(twin(&["get", "pear"]).output().expect("it runs").status.code(), Some(1));
    assert_eq!(run(kv(&["check"])), run(twin(&["check"])));
}
