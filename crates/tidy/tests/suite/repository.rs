//! The repository as it is: every check, without a finding.

use freebs_tidy::{Tree, check};
use std::path::Path;

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).expect("the repository can be read");
    assert!(tree.texts.len() > 300 && tree.crates().len() > 10, "the repository was not found at {}", root.display());
    let found = check(&tree);
    let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), lines.join("\n"));
}
