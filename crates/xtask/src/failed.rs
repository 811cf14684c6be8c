//! Seeds that failed: made smaller, and written down in the form in which `crates/sim/seeds` keeps them once they pass.

use crate::call::Call;
use crate::root;
use std::path::PathBuf;

/// Where they are written, from the top of the tree.
pub const FOLDER: &str = "target/sim-failed";

/// Has the simulator make the run of a seed smaller, prints what it says, and writes the seed down.
///
/// # Errors
/// If the simulator can't be started, or the file can't be written.
pub fn keep(program: &str, seed: u64) -> std::io::Result<PathBuf> {
    let call = Call::new("timeout 1800").with([program.to_owned(), seed.to_string(), "--shrink".into()]);
    let output = call.command().output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    let folder = root().join(FOLDER);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{seed}.txt"));
    std::fs::write(&path, note(seed, &text))?;
    Ok(path)
}

/// The text of the file of a seed, from what the simulator said.
#[must_use]
pub fn note(seed: u64, said: &str) -> String {
    let smaller = said.lines().find_map(|l| l.trim_start().strip_prefix("shrunk in ")?.split_once(" runs to:"));
    let options = smaller.map(|(_, options)| options.trim()).filter(|o| !o.is_empty());
    let options = options.map_or(String::new(), |o| format!("options {o}\n"));
    format!("seed {seed}\n{options}\nNot mended yet. When it is, this becomes the story. It said:\n\n{said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_run_is_written_down() {
        let said =
            "seed 7 (kills) FAILED\n  at 1 s: x\n  shrunk in 41 runs to: --without rot --until 3.310s\n    at 1 s: x\n";
        assert!(note(7, said).starts_with("seed 7\noptions --without rot --until 3.310s\n\nNot mended"));
        assert!(note(7, "killed").starts_with("seed 7\n\nNot mended"));
        assert!(note(7, "  shrunk in 9 runs to: \n").starts_with("seed 7\n\nNot mended"));
    }
}
