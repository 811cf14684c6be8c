//! Prints the numbers of [`freebs_tidy::house`] for each crate: of this repository, or of the one at the path given first.
//! With the name of a crate behind the path: its circle, and the imports that keep it together.

use freebs_tidy::imports::Imports;
use freebs_tidy::{Tree, house};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let root = std::env::args_os().nth(1).map_or_else(here, PathBuf::from);
    let tree = Tree::read(&root)?;
    let Some(name) = std::env::args().nth(2) else {
        for name in tree.crates() {
            println!("{name} {}", house::measure(&tree, name));
        }
        return Ok(());
    };
    let imports = Imports::of(&tree, &name);
    let circle = imports.circle();
    for (from, to) in imports.arrows().iter().filter(|(from, _)| circle.contains(*from)) {
        println!("{from}");
        to.iter().filter(|to| circle.contains(*to)).for_each(|to| println!("    {to}"));
    }
    Ok(())
}
