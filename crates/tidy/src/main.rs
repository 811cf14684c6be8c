//! Prints the numbers of [`freebs_tidy::house`] for each crate: of this repository, or of the one at the path given.

use freebs_tidy::{Tree, house};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = std::env::args_os().nth(1).map_or_else(here, PathBuf::from);
    let tree = Tree::read(&root)?;
    for name in tree.crates() {
        println!("{name} {}", house::measure(&tree, name));
    }
    Ok(())
}
