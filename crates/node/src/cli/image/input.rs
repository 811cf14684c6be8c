//! An image that is read: a file, a block device or standard input, raw or qcow2, piece by piece on a thread of its own.
//!
//! Invariant: the end of an image is said in so many words. A reader that breaks is never taken for one that is done.

use super::args::{FormatArg, ImportArgs, is_standard};
use crate::files::{os_error, plain};
use freebs_image::{Body, Format, Piece, SNIFF_BYTES, Source, qcow2, sniff};
use freebs_types::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Source for Image {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, at).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                Error::corrupt(format!("{} became shorter while it was read", self.path.display()))
            }
            _ => os_error("read", &self.path, &e),
        })
    }
}

impl Image {
    fn open(path: &Path) -> Result<Self> {
        let failed = |e: io::Error| os_error("read", path, &e);
        let mut file = File::open(path).map_err(failed)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if kind.is_dir() {
            return Err(Error::invalid(format!("{} is a directory; name an image in it", path.display())));
        }
        // A block device's length is where its end is; a pipe has none.
        let bytes = file.seek(SeekFrom::End(0)).map_err(|_| {
            Error::invalid(format!("{} is neither a file nor a block device; - reads standard input", path.display()))
        })?;
        if bytes == 0 {
            return Err(Error::invalid(format!("{} is empty", path.display())));
        }
        Ok(Self { file, path: path.to_owned(), bytes })
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
            return Ok(Self { kind, format: FormatArg::Raw, size: None, note: None });
        }
        let image = Image::open(file)?;
        let mut first = [0; SNIFF_BYTES];
        let there = image.bytes.min(SNIFF_BYTES as u64) as usize;
        image.read_at(0, &mut first[..there])?;
        match (format, sniff(&first[..there])) {
            (None, Format::Other(name)) => Err(other(file, name)),
            (Some(FormatArg::Raw), _) | (None, Format::Raw) => {
                let size = Some(image.bytes);
                Ok(Self { kind: Kind::Raw(image), format: FormatArg::Raw, size, note: None })
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
                Ok(Self { kind: Kind::Qcow2(Box::new(reader)), format: FormatArg::Qcow2, size, note })
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

    fn pieces(path: &Path) -> Result<Vec<Piece>> {
        let image = Image::open(path)?;
        let input = Incoming { size: None, format: FormatArg::Raw, note: None, kind: Kind::Raw(image) };
        let (mut pieces, mut all) = (input.start()?, Vec::new());
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
