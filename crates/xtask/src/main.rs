//! The program behind `cargo xtask`.

use freebs_xtask::{Bad, commands};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match commands::run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Bad::Failed) => ExitCode::from(1),
        Err(Bad::NotUnderstood(why)) => {
            eprintln!("{why}\n`cargo xtask --help` lists the commands");
            ExitCode::from(2)
        }
    }
}
