//! The image that an export writes: a file that has no name before it is whole and on disk, or standard output.
//!
//! Invariants: nothing half-made is ever under the name that was asked for, and of an export that ends before its end no
//! file is left, however it ends (where the file system has files without names); a file that was there is replaced only
//! if that was asked for, and then in one step.

use super::args::{FormatArg, STANDARD, is_standard};
use crate::files::{os_error, parent, sync_directory};
use bytes::Bytes;
use freebs_driver::Piece;
use freebs_image::{Sink, qcow2, runs};
use freebs_types::{Error, Result};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tokio::sync::{mpsc, oneshot};

/// Orders that wait to be written.
const AHEAD: usize = 8;
/// Zeroes are written to a pipe so many at a time.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// An order to the writer.
enum Order {
    /// Data, behind all that were ordered before.
    Data(u64, Vec<Piece>),
    /// That was all: the file becomes whole, durable, and gets its name.
    End,
}

/// An image that is being written, on a thread of its own. Dropped without `finish` it leaves nothing.
pub struct Out {
    orders: mpsc::Sender<Order>,
    end: oneshot::Receiver<Result<u64>>,
}

impl Out {
    /// Begins an image of a disk of `size` bytes.
    pub fn start(file: &Path, format: FormatArg, force: bool, size: u64) -> Result<Self> {
        let mut image = Image::begin(file, format, force, size)?;
        let (orders, mut ordered) = mpsc::channel(AHEAD);
        let (tell, end) = oneshot::channel();
        let write = move || {
            let result = loop {
                match ordered.blocking_recv() {
                    Some(Order::Data(at, pieces)) => {
                        if let Err(e) = image.take(at, &pieces) {
                            break Err(e);
                        }
                    }
                    Some(Order::End) => break image.finish(),
                    None => return,
                }
            };
            // Whoever waits may have gone.
            let _ = tell.send(result);
        };
        let thread = std::thread::Builder::new().name("image".into()).spawn(write);
        thread.map(|_| Self { orders, end }).map_err(|e| Error::os(format!("no thread to write the image: {e}")))
    }

    /// Data of the disk, behind all that came before.
    pub async fn data(&mut self, at: u64, pieces: Vec<Piece>) -> Result<()> {
        match self.orders.send(Order::Data(at, pieces)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failed().await),
        }
    }

    async fn failed(&mut self) -> Error {
        let broken = Error::bug("the image's writer ended without a word");
        match (&mut self.end).await {
            Ok(Err(e)) => e,
            _ => broken,
        }
    }

    /// All came; the image is durable, and has its name, when this has returned. Bytes that were written.
    pub async fn finish(mut self) -> Result<u64> {
        if self.orders.send(Order::End).await.is_err() {
            return Err(self.failed().await);
        }
        self.end.await.unwrap_or_else(|_| Err(Error::bug("the image's writer ended without a word")))
    }
}

struct Image {
    kind: Kind,
    size: u64,
}

enum Kind {
    Raw {
        file: Unnamed,
        written: u64,
    },
    Qcow2(qcow2::Writer<Unnamed>),
    /// The next byte that the reader gets.
    Pipe(u64),
}

impl Image {
    fn begin(path: &Path, format: FormatArg, force: bool, size: u64) -> Result<Self> {
        let kind = match (is_standard(path), format) {
            (true, FormatArg::Raw) => Kind::Pipe(0),
            (true, FormatArg::Qcow2) => {
                return Err(Error::invalid(
                    "a qcow2 image is written here and there, which standard output can't: name a file",
                ));
            }
            (false, FormatArg::Raw) => Kind::Raw { file: Unnamed::create(path, force)?, written: 0 },
            (false, FormatArg::Qcow2) => Kind::Qcow2(qcow2::Writer::new(Unnamed::create(path, force)?, size)?),
        };
        Ok(Self { kind, size })
    }

    fn take(&mut self, mut at: u64, pieces: &[Piece]) -> Result<()> {
        for piece in pieces {
            match piece {
                Piece::Data(bytes) => {
                    self.data(at, bytes)?;
                    at += bytes.len() as u64;
                }
                Piece::Zero(n) => at += n,
            }
        }
        Ok(())
    }

    fn data(&mut self, at: u64, bytes: &Bytes) -> Result<()> {
        for run in runs(bytes) {
            let (at, data) = (at + run.from as u64, &bytes[run.from..run.to]);
            match &mut self.kind {
                Kind::Raw { file, written } => {
                    file.write_at(at, data)?;
                    *written += data.len() as u64;
                }
                Kind::Qcow2(writer) => writer.data(at, data)?,
                Kind::Pipe(next) => {
                    zeroes(at - *next)?;
                    say(data)?;
                    *next = at + data.len() as u64;
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<u64> {
        match self.kind {
            Kind::Raw { file, written } => {
                file.file.set_len(self.size).map_err(|e| file.failed(&e))?;
                file.put_in_place().map(|()| written)
            }
            Kind::Qcow2(writer) => {
                let (file, bytes) = writer.finish()?;
                file.put_in_place().map(|()| bytes)
            }
            Kind::Pipe(next) => {
                zeroes(self.size - next)?;
                io::stdout().lock().flush().map_err(|e| gone(&e))?;
                Ok(self.size)
            }
        }
    }
}

fn gone(e: &io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::BrokenPipe => Error::os("whoever reads standard output has gone, before the end of the volume"),
        _ => os_error("write", Path::new(STANDARD), e),
    }
}

fn say(bytes: &[u8]) -> Result<()> {
    io::stdout().lock().write_all(bytes).map_err(|e| gone(&e))
}

fn zeroes(mut n: u64) -> Result<()> {
    while n > 0 {
        let now = n.min(ZEROES.len() as u64);
        say(&ZEROES[..now as usize])?;
        n -= now;
    }
    Ok(())
}

/// A file that has no name yet.
struct Unnamed {
    file: File,
    /// The name that it gets.
    path: PathBuf,
    /// The name that it has where the file system knows no files without one.
    beside: Option<PathBuf>,
    force: bool,
}

fn is_there(path: &Path) -> Error {
    Error::invalid(format!("{} is there already; --force replaces it, or choose another name", path.display()))
}

impl Unnamed {
    fn create(path: &Path, force: bool) -> Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(m) if !m.is_file() => {
                return Err(Error::invalid(format!(
                    "{} is there, and is no file; choose another name, or - for standard output",
                    path.display()
                )));
            }
            Ok(_) if !force => return Err(is_there(path)),
            _ => {}
        }
        let directory = parent(path);
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        match options.clone().custom_flags(libc::O_TMPFILE).open(directory) {
            Ok(file) => Ok(Self { file, path: path.to_owned(), beside: None, force }),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                let beside = other_name(path, "part");
                let file = options.create_new(true).open(&beside).map_err(|e| os_error("write", &beside, &e))?;
                Ok(Self { file, path: path.to_owned(), beside: Some(beside), force })
            }
            Err(e) => Err(os_error("write into", directory, &e)),
        }
    }

    fn failed(&self, e: &io::Error) -> Error {
        let error = os_error("write", &self.path, e);
        match e.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error { text: format!("{error}; free some there, or choose another place").into(), ..error }
            }
            _ => error,
        }
    }

    /// Makes it durable, then gives it its name.
    fn put_in_place(mut self) -> Result<()> {
        self.file.sync_all().map_err(|e| self.failed(&e))?;
        if self.force {
            // A rename replaces what is there in one step; only what has a name can be renamed.
            let new = match self.beside.take() {
                Some(beside) => beside,
                None => {
                    let new = other_name(&self.path, "new");
                    self.link(&new)?;
                    new
                }
            };
            if let Err(e) = fs::rename(&new, &self.path) {
                let _ = fs::remove_file(&new);
                return Err(os_error("rename", &new, &e));
            }
        } else {
            self.link(&self.path)?;
            // It may have a second name, which goes with this value.
        }
        sync_directory(parent(&self.path))
    }

    /// Gives it a name that nothing has.
    fn link(&self, to: &Path) -> Result<()> {
        let linked = match &self.beside {
            Some(beside) => fs::hard_link(beside, to),
            None => link_descriptor(&self.file, to),
        };
        linked.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => is_there(to),
            _ => os_error("name", to, &e),
        })
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

impl Sink for Unnamed {
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, at).map_err(|e| self.failed(&e))
    }
}

/// A name beside a file that only this process uses.
fn other_name(path: &Path, what: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.{what}", std::process::id()));
    path.with_file_name(name)
}

fn link_descriptor(file: &File, to: &Path) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let from = text(format!("/proc/self/fd/{}", file.as_raw_fd()).as_bytes())?;
    let to = text(to.as_os_str().as_bytes())?;
    // SAFETY: both strings live until it returns, and the descriptor is open.
    let done =
        unsafe { libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// A file in either way that a file system has.
    fn unnamed(path: &Path, force: bool, without_name: bool) -> Result<Unnamed> {
        let mut file = Unnamed::create(path, force)?;
        if !without_name && file.beside.is_none() {
            let beside = other_name(path, "part");
            file.link(&beside)?;
            file.beside = Some(beside);
        }
        Ok(file)
    }

    #[test]
    fn a_file_gets_its_name_when_it_is_whole_and_leaves_none_before() {
        for without_name in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("image");
            let mut file = unnamed(&path, false, without_name).unwrap();
            file.write_at(0, b"half").unwrap();
            assert!(!path.exists());
            drop(file);
            assert_eq!(names(dir.path()), Vec::<String>::new());
            let mut file = unnamed(&path, false, without_name).unwrap();
            file.write_at(3, b"whole").unwrap();
            file.put_in_place().unwrap();
            assert_eq!((names(dir.path()), fs::read(&path).unwrap()), (vec!["image".into()], b"\0\0\0whole".to_vec()));
        }
    }

    #[test]
    fn a_file_that_is_there_is_replaced_only_by_force() {
        for without_name in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("image");
            // It comes while the other one is being written.
            let late = unnamed(&path, false, without_name).unwrap();
            fs::write(&path, b"mine").unwrap();
            assert!(late.put_in_place().unwrap_err().text.contains("--force"));
            assert!(Unnamed::create(&path, false).err().unwrap().text.contains("--force"));
            assert_eq!((names(dir.path()), fs::read(&path).unwrap()), (vec!["image".into()], b"mine".to_vec()));
            let mut file = unnamed(&path, true, without_name).unwrap();
            file.write_at(0, b"new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"mine");
            file.put_in_place().unwrap();
            assert_eq!((names(dir.path()), fs::read(&path).unwrap()), (vec!["image".into()], b"new".to_vec()));
            assert!(Unnamed::create(dir.path(), true).err().unwrap().text.contains("is no file"));
        }
    }
}
