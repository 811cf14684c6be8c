//! An image that is read: a file, a block device or standard input, raw or qcow2, piece by piece on a thread of its own.
//!
//! Invariants:
//! - The end of an image is said in so many words. A reader that breaks is never taken for one that is done.
//! - A file that became shorter, or was written to, while it was read is an error: its end looks like a hole, and what was
//!   read may be of two moments.

use super::args::{FormatArg, ImportArgs, is_standard};
use crate::files::{os_error, plain};
use freebs_image::{Body, Format, Piece, SNIFF_BYTES, Source, qcow2, sniff};
use freebs_types::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::mpsc;

/// Bytes of a piece of a raw image.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that are read ahead.
const AHEAD: usize = 8;

/// An image before it is read.
pub struct Incoming {
    kind: Kind,
    pub format: FormatArg,
    /// Bytes of the disk; `None` for standard input.
    pub size: Option<u64>,
    /// Something to know for whoever imports it.
    pub note: Option<String>,
    /// `None` for standard input.
    unchanged: Option<Unchanged>,
}

enum Kind {
    Raw(Image),
    Qcow2(Box<qcow2::Reader<Image>>),
    /// `true`: it is read as raw whatever it begins with.
    Standard(bool),
}

/// A part of the disk, or its end (`None`).
pub type Pieces = mpsc::Receiver<Result<Option<Piece>>>;

struct Image {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
    /// Last change of a file's content when it was opened; `None` of a block device.
    modified: Option<SystemTime>,
}

impl Source for Image {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, at).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => became_shorter(&self.path),
            _ => os_error("read", &self.path, &e),
        })
    }
}

fn became_shorter(path: &Path) -> Error {
    Error::corrupt(format!("{} became shorter while it was read", path.display()))
}

/// Length of a file or block device, which is where its end is.
fn length(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// The means to tell, at the end, whether an image is still the one that was opened.
struct Unchanged {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Unchanged {
    fn check(&self) -> Result<()> {
        let failed = |e: io::Error| os_error("read", &self.path, &e);
        if length(&self.file).map_err(failed)? < self.bytes {
            return Err(became_shorter(&self.path));
        }
        let now = self.file.metadata().map_err(failed)?.modified().ok();
        if self.modified.is_some_and(|then| now != Some(then)) {
            return Err(Error::corrupt(format!(
                "{} was written to while it was read: stop whatever uses it, and import it again",
                self.path.display()
            )));
        }
        Ok(())
    }
}

impl Image {
    fn open(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| os_error("read", path, &e);
        let file = File::open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        let kind = about.file_type();
        if kind.is_dir() {
            return Err(Error::invalid(format!("{} is a directory; name an image in it", path.display())));
        }
        // A pipe has no end.
        let bytes = length(&file).map_err(|_| {
            Error::invalid(format!("{} is neither a file nor a block device; - reads standard input", path.display()))
        })?;
        if bytes == 0 {
            return Err(Error::invalid(format!("{} is empty", path.display())));
        }
        let modified = about.modified().ok().filter(|_| kind.is_file());
        Ok(Self { file: Arc::new(file), path: path.to_owned(), bytes, modified })
    }

    fn unchanged(&self) -> Unchanged {
        Unchanged { file: self.file.clone(), path: self.path.clone(), bytes: self.bytes, modified: self.modified }
    }

    /// The first byte from `at` on that is data or a hole, as `whence` says; `None` if there is none, or the file system does
    /// not know.
    fn seek(&self, at: u64, whence: libc::c_int) -> Option<io::Result<u64>> {
        // SAFETY: it only moves the offset of an open descriptor, which nothing here relies on.
        let found = unsafe { libc::lseek(self.file.as_raw_fd(), i64::try_from(at).ok()?, whence) };
        Some(if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found as u64) })
    }

    /// The data that begin at `at` or behind it.
    fn next_data(&self, at: u64) -> (u64, u64) {
        let whole = (at, self.bytes);
        match self.seek(at, libc::SEEK_DATA) {
            Some(Ok(from)) if from < self.bytes => match self.seek(from, libc::SEEK_HOLE) {
                Some(Ok(to)) if to > from => (from, to.min(self.bytes)),
                _ => (from, self.bytes),
            },
            Some(Err(e)) if e.raw_os_error() == Some(libc::ENXIO) => (self.bytes, self.bytes),
            _ => whole,
        }
    }

    fn send_raw(&self, to: &mpsc::Sender<Result<Option<Piece>>>) -> Result<()> {
        let mut at = 0;
        while at < self.bytes {
            let (from, end) = self.next_data(at);
            if from > at && !send(to, Piece { at, body: Body::Zero(from - at) }) {
                return Ok(());
            }
            at = from;
            while at < end {
                let until = ((at / PIECE_BYTES + 1) * PIECE_BYTES).min(end);
                let mut data = vec![0; (until - at) as usize];
                self.read_at(at, &mut data)?;
                if !send(to, Piece { at, body: Body::Data(data) }) {
                    return Ok(());
                }
                at = until;
            }
        }
        Ok(())
    }
}

/// False if nobody waits for it any more.
fn send(to: &mpsc::Sender<Result<Option<Piece>>>, piece: Piece) -> bool {
    to.blocking_send(Ok(Some(piece))).is_ok()
}

fn send_standard(to: &mpsc::Sender<Result<Option<Piece>>>, is_raw: bool) -> Result<()> {
    let mut input = io::stdin().lock();
    let mut at = 0;
    loop {
        let mut data = Vec::new();
        let read = input.by_ref().take(PIECE_BYTES).read_to_end(&mut data);
        read.map_err(|e| Error::os(format!("can't read standard input: {}", plain(&e))))?;
        if at == 0 && !is_raw && sniff(&data) != Format::Raw {
            return Err(Error::invalid(
                "standard input is not a raw image, as its first bytes say, and only these are read from there: write it \
                 to a file first, or take it as raw with --format raw",
            ));
        }
        let len = data.len() as u64;
        if len == 0 || !send(to, Piece { at, body: Body::Data(data) }) {
            return Ok(());
        }
        at += len;
    }
}

fn other(path: &Path, format: &str) -> Error {
    Error::invalid(format!(
        "{} is a {format} image, as its first bytes say, which is not read here: `qemu-img convert -O qcow2` makes one that \
         is. With --format raw it is taken as it is",
        path.display()
    ))
}

impl Incoming {
    /// Looks at an image. `Invalid` if it is none that can be imported, with the way out.
    pub fn open(args: &ImportArgs) -> Result<Self> {
        let ImportArgs { file, format, .. } = args;
        if is_standard(file) {
            if *format == Some(FormatArg::Qcow2) {
                return Err(Error::invalid(
                    "a qcow2 image is read here and there, which standard input can't: name a file",
                ));
            }
            let kind = Kind::Standard(format.is_some());
            return Ok(Self { kind, format: FormatArg::Raw, size: None, note: None, unchanged: None });
        }
        let image = Image::open(file)?;
        let mut first = [0; SNIFF_BYTES];
        let there = image.bytes.min(SNIFF_BYTES as u64) as usize;
        image.read_at(0, &mut first[..there])?;
        let unchanged = Some(image.unchanged());
        match (format, sniff(&first[..there])) {
            (None, Format::Other(name)) => Err(other(file, name)),
            (Some(FormatArg::Raw), _) | (None, Format::Raw) => {
                let size = Some(image.bytes);
                Ok(Self { kind: Kind::Raw(image), format: FormatArg::Raw, size, note: None, unchanged })
            }
            (Some(FormatArg::Qcow2), _) | (None, Format::Qcow2) => {
                let reader = qcow2::Reader::open(image).map_err(|e| e.at(file.display()))?;
                let header = reader.header();
                let note = (header.snapshots > 0).then(|| {
                    format!(
                        "{} has snapshots inside ({}), which are not imported: its present state is",
                        file.display(),
                        header.snapshots
                    )
                });
                let size = Some(header.size);
                Ok(Self { kind: Kind::Qcow2(Box::new(reader)), format: FormatArg::Qcow2, size, note, unchanged })
            }
        }
    }

    /// Begins to read it.
    pub fn start(self) -> Result<Pieces> {
        let (to, pieces) = mpsc::channel(AHEAD);
        let read = move || {
            let end = match self.kind {
                Kind::Raw(image) => image.send_raw(&to),
                Kind::Standard(is_raw) => send_standard(&to, is_raw),
                Kind::Qcow2(mut reader) => loop {
                    match reader.next_piece() {
                        Ok(Some(piece)) => {
                            if !send(&to, piece) {
                                break Ok(());
                            }
                        }
                        Ok(None) => break Ok(()),
                        Err(e) => break Err(e),
                    }
                },
            };
            let end = end.and_then(|()| self.unchanged.map_or(Ok(()), |u| u.check()));
            // Whoever waits may have gone.
            let _ = to.blocking_send(end.map(|()| None));
        };
        let thread = std::thread::Builder::new().name("image".into()).spawn(read);
        thread.map(|_| pieces).map_err(|e| Error::os(format!("no thread to read the image: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn incoming(image: Image) -> Incoming {
        let unchanged = Some(image.unchanged());
        Incoming { size: None, format: FormatArg::Raw, note: None, kind: Kind::Raw(image), unchanged }
    }

    fn pieces(path: &Path) -> Result<Vec<Piece>> {
        let image = Image::open(path)?;
        let mut pieces = incoming(image).start()?;
        let mut all = Vec::new();
        while let Some(piece) = pieces.blocking_recv().expect("the end is said")? {
            all.push(piece);
        }
        Ok(all)
    }

    /// Any file system: holes are told if it knows them, and read as zeroes if it does not.
    #[test]
    fn a_sparse_file_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut file = File::create(&path).unwrap();
        file.set_len(40 << 20).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        file.write_all_at(&[8; 3000], (20 << 20) + 12_345).unwrap();
        let mut disk = Vec::new();
        for piece in pieces(&path).unwrap() {
            assert_eq!(piece.at, disk.len() as u64);
            match piece.body {
                Body::Zero(n) => disk.resize(disk.len() + n as usize, 0),
                Body::Data(bytes) => {
                    assert!(!bytes.is_empty() && bytes.len() as u64 <= PIECE_BYTES);
                    disk.extend(bytes);
                }
            }
        }
        assert!(disk == std::fs::read(&path).unwrap());
    }

    /// Bytes behind the new end of a file look like a hole.
    #[test]
    fn a_file_that_changes_while_it_is_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let open = || {
            let file = File::create(&path).unwrap();
            for at in 0..40 {
                file.write_all_at(&[at as u8 + 1; 1 << 20], at << 20).unwrap();
            }
            (file, Image::open(&path).unwrap())
        };
        let read = |image: Image, change: &dyn Fn()| {
            let mut pieces = incoming(image).start().unwrap();
            pieces.blocking_recv().unwrap().unwrap();
            change();
            loop {
                match pieces.blocking_recv().expect("the end is said") {
                    Ok(Some(_)) => {}
                    Ok(None) => break None,
                    Err(e) => break Some(e.text),
                }
            }
        };
        let (file, image) = open();
        assert_eq!(read(image, &|| ()), None);
        let image = Image::open(&path).unwrap();
        let text = read(image, &|| file.set_len(30 << 20).unwrap());
        assert!(text.as_ref().is_some_and(|t| t.contains("became shorter")), "{text:?}");
        let (file, image) = open();
        let text = read(image, &|| file.write_all_at(&[77], 35 << 20).unwrap());
        assert!(text.as_ref().is_some_and(|t| t.contains("written to")), "{text:?}");
    }

    #[test]
    fn a_file_that_is_no_image_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let error = |path: &Path| Image::open(path).err().expect("no image").text;
        assert!(error(dir.path()).contains("directory"));
        assert!(error(&dir.path().join("none")).contains("can't read"));
        let empty = dir.path().join("empty");
        File::create(&empty).unwrap();
        assert!(error(&empty).contains("is empty"));
    }
}
