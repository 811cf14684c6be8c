//! The repository as the checks see it: the paths that are there, and the texts of the files that have one.
//!
//! Invariants: paths are relative to the root and use `/`; build results and hidden folders are left out, `.ci` is not.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// The folders of the root that are read.
const FOLDERS: [&str; 6] = [".ci", "bench", "crates", "dist", "docs", "fuzz"];

/// Endings of files that are bytes, or texts that programs wrote.
const NOT_TEXT: [&str; 5] = [".bin", ".hex", ".proptest-regressions", ".txt", ".lock"];

/// Folders whose files are bytes, whatever their names.
const BYTES: [&str; 2] = ["crates/fuzz/corpus/", "crates/fuzz/findings/"];

/// The repository, or a planted one.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Texts by path.
    pub texts: BTreeMap<String, String>,
    /// Every file and folder.
    pub paths: BTreeSet<String>,
    /// Files and folders that programs make, by the lines of `.gitignore` that begin with a slash. Pages may name them.
    pub made: BTreeSet<String>,
}

impl Tree {
    /// A tree of these files, and of the folders that they lie in.
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            tree.add(path, Some((*text).to_owned()));
        }
        tree
    }

    /// The tree below `root`: the files in it, and those of its known folders.
    ///
    /// # Errors
    /// If a folder or a text can't be read; a text that is not UTF-8 is an error, too.
    pub fn read(root: &Path) -> io::Result<Tree> {
        let mut tree = Tree::default();
        let ignored = std::fs::read_to_string(root.join(".gitignore"))?;
        tree.made = ignored.lines().filter_map(|l| l.strip_prefix('/')).map(str::to_owned).collect();
        for entry in std::fs::read_dir(root)? {
            let entry = entry?;
            let name = name_of(&entry)?;
            if entry.file_type()?.is_file() && !name.starts_with('.') {
                tree.read_file(&entry.path(), &name)?;
            }
        }
        for folder in FOLDERS {
            if root.join(folder).is_dir() {
                tree.read_folder(&root.join(folder), folder)?;
            }
        }
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, path: &str) -> io::Result<()> {
        self.paths.insert(path.to_owned());
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = name_of(&entry)?;
            let path = format!("{path}/{name}");
            if name.starts_with('.') || name == "target" || name == "__pycache__" || self.is_made(&path) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                self.read_folder(&entry.path(), &path)?;
            } else {
                self.read_file(&entry.path(), &path)?;
            }
        }
        Ok(())
    }

    fn read_file(&mut self, file: &Path, path: &str) -> io::Result<()> {
        let is_bytes =
            NOT_TEXT.iter().any(|end| path.ends_with(end)) || BYTES.iter().any(|folder| path.starts_with(folder));
        if is_bytes && path != crate::words::RECORD && path != crate::house::RECORD {
            self.add(path, None);
            return Ok(());
        }
        let text = std::fs::read_to_string(file).map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?;
        self.add(path, Some(text));
        Ok(())
    }

    fn add(&mut self, path: &str, text: Option<String>) {
        if let Some(text) = text {
            self.texts.insert(path.to_owned(), text);
        }
        let mut path = path;
        while self.paths.insert(path.to_owned()) {
            match path.rsplit_once('/') {
                Some((folder, _)) => path = folder,
                None => break,
            }
        }
    }

    /// True for a path that programs make, or that lies in such a folder.
    pub fn is_made(&self, path: &str) -> bool {
        self.made
            .iter()
            .any(|made| path.strip_prefix(made.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('/')))
    }

    /// The text of a file, empty if there is none.
    pub fn text(&self, path: &str) -> &str {
        self.texts.get(path).map_or("", String::as_str)
    }

    /// Texts with this ending.
    pub fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts.iter().filter(move |(path, _)| path.ends_with(end)).map(|(p, t)| (p.as_str(), t.as_str()))
    }

    /// Names of the folders in `crates/`.
    pub fn crates(&self) -> BTreeSet<&str> {
        let below = self.paths.iter().filter_map(|p| p.strip_prefix("crates/"));
        below.filter(|p| !p.contains('/') && self.paths.contains(&format!("crates/{p}/Cargo.toml"))).collect()
    }
}

fn name_of(entry: &std::fs::DirEntry) -> io::Result<String> {
    let name = entry.file_name();
    name.into_string().map_err(|n| io::Error::new(io::ErrorKind::InvalidData, format!("{}: not UTF-8", n.display())))
}

/// The kinds of text that the checks tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sources of Rust.
    Rust,
    /// C sources and headers.
    C,
    /// Python, by its ending or its first line.
    Python,
    /// Shell, and other programs that name an interpreter in their first line.
    Shell,
    /// Pages.
    Markdown,
    /// Manifests, licences, and all that has no rules here.
    Other,
}

/// The kind of a file, by the end of its name, or by its first line if the name has no ending.
pub fn kind(path: &str, text: &str) -> Kind {
    let name = path.rsplit('/').next().unwrap_or_default();
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("rs") => Kind::Rust,
        Some("c" | "h") => Kind::C,
        Some("py") => Kind::Python,
        Some("sh") => Kind::Shell,
        Some("md") => Kind::Markdown,
        Some(_) => Kind::Other,
        None => match text.lines().next().unwrap_or_default() {
            first if !first.starts_with("#!") => Kind::Other,
            first if first.contains("python") => Kind::Python,
            _ => Kind::Shell,
        },
    }
}
