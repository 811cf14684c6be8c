//! Programs that these tests call: compilers, and a Python that can build and use the wheel.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// The folder of this crate.
pub const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// The Python that `.ci/run` installs what is needed for.
const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/python/bin/python");

/// Says that a test can't be done here. In CI, where all is installed, it fails.
fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("?").to_owned();
    assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "{test}: {why}; .ci/run installs what is needed");
    // Past the capture of the test runner, so that it is counted.
    let line = format!("\nskipped: {test}: {why}\n");
    std::io::stderr().lock().write_all(line.as_bytes()).expect("standard error");
}

fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|o| o.status.success())
}

/// True if these programs are there; else it is said which one lacks.
pub fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|p| !works(Command::new(p).arg("--version")));
    if let Some(missing) = missing {
        skip(&format!("there is no {missing}"));
    }
    missing.is_none()
}

/// The output of a program that has to succeed, both streams of it.
pub fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{text}", out.status);
    text
}

/// The folder of the libraries: beside this test, which cargo has linked with one of them. Nothing is built again.
pub fn built() -> PathBuf {
    let me = std::env::current_exe().expect("this test is a file");
    me.parent().expect("it lies in a folder").to_owned()
}

/// A Python with the package installed from its wheel.
pub struct Python {
    program: PathBuf,
    dir: TempDir,
}

impl Python {
    /// The one of this run, made when it is asked for first; nothing, and the reason is said, if it can't be made here.
    pub fn get() -> Option<&'static Self> {
        static MADE: OnceLock<Result<Python, String>> = OnceLock::new();
        MADE.get_or_init(Self::make).as_ref().map_err(|why| skip(why)).ok()
    }

    fn make() -> Result<Self, String> {
        let needs = "from setuptools.command import bdist_wheel; import pip, cffi";
        let can = |p: &&PathBuf| works(Command::new(p).args(["-c", needs]));
        let program = [PathBuf::from(PYTHON), PathBuf::from("python3")].iter().find(can).cloned();
        let program = program.ok_or("there is no python3 with pip, cffi and setuptools of 70.1 or newer")?;
        let dir = tempfile::tempdir().expect("a directory");
        let made = Self { program, dir };
        let wheels = made.dir.path().join("wheels");
        let mut wheel = Command::new(format!("{HERE}/wheel"));
        run(wheel.arg(&wheels).env("BUILT", built()).env("PYTHON", &made.program).env("OFFLINE", "1"));
        let found: Vec<PathBuf> = std::fs::read_dir(&wheels).unwrap().map(|e| e.unwrap().path()).collect();
        let name = found.first().and_then(|w| w.file_name()).expect("one wheel").to_string_lossy();
        assert!(found.len() == 1 && name.contains("-py3-none-linux_"), "{found:?}");
        let mut pip = Command::new(&made.program);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]);
        run(pip.arg("--target").arg(made.packages()).arg(&found[0]));
        Ok(made)
    }

    /// The interpreter itself.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder that the package lies in.
    fn packages(&self) -> PathBuf {
        self.dir.path().join("packages")
    }

    /// Runs a script of the tree with the package.
    pub fn script(&self, path: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(format!("{HERE}/{path}")).env("PYTHONPATH", self.packages());
        // The tree stays as it is.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}
