//! The words of `freebs volume import` and `export`.

use super::super::values::{ShapeArgs, volume_name, volume_size};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

pub const IMPORT_HELP: &str = "\
Examples:
  freebs volume import data disk.qcow2                 a new volume of the image's size
  freebs volume import data disk.img --size 100G --copies 2
  freebs volume import data disk.img --force           in place of all that the volume 'data' has
  xz -dc disk.img.xz | freebs volume import data - --size 20G

Without --format a file that begins as a qcow2 image is read as one, and any other as raw. Compressed clusters are
unpacked; images that need another file (backing or data files), encrypted, dirty and corrupt ones are refused. Holes and
zeroes are not written, and read as zeroes.

While it is under way the volume is called NAME.importing, and NAME only when all of it is durable. An import that fails
or is stopped deletes a new volume again. One that is killed leaves NAME.importing; --force begins anew in that.

Exit status: 0 all of the image is durable in the volume NAME, 1 failed, 2 not understood.";

pub const EXPORT_HELP: &str = "\
Examples:
  freebs volume export data disk.qcow2
  freebs volume export data disk.img --force           in place of the file that is there
  freebs volume export data@monday disk.img            a snapshot, whoever uses the volume meanwhile
  freebs volume export data - | xz > disk.img.xz

Without --format a file whose name ends in .qcow2 is written as one, and any other as raw; both are sparse. The volume is
attached by the command, so that nobody changes it meanwhile: one that is in use is refused. A snapshot, VOLUME@NAME, never
changes, and is read while the volume is used. The file gets its name when all of it is on disk; an export that fails, or is
stopped or killed, leaves none.

Exit status: 0 the file is whole and on disk, 1 failed, 2 not understood.";

/// Standard input or output in place of a file.
pub const STANDARD: &str = "-";

/// A format that is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    Raw,
    Qcow2,
}

impl FormatArg {
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The volume: one that is to be made, or an empty one that is there
    #[arg(value_parser = volume_name)]
    pub name: String,

    /// The image: a file, a block device, or - for standard input (raw)
    pub file: PathBuf,

    /// Format of the image [default: as its first bytes say]
    #[arg(long, value_enum)]
    pub format: Option<FormatArg>,

    /// Size of a new volume, at least the image's [default: the image's; needed for standard input]
    #[arg(long, value_name = "SIZE", value_parser = volume_size)]
    pub size: Option<u64>,

    #[command(flatten)]
    pub shape: ShapeArgs,

    /// Also into a volume that is not empty, whose data are lost, or into what an interrupted import has left
    #[arg(long)]
    pub force: bool,

    /// Tell how far it is where standard error is no terminal, too; with --json as objects on standard output
    #[arg(long)]
    pub progress: bool,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The volume, or a snapshot of it: VOLUME@NAME
    pub name: String,

    /// The image to write: a file, or - for standard output (raw)
    pub file: PathBuf,

    /// Format of the image [default: qcow2 if the file's name ends in .qcow2, else raw]
    #[arg(long, value_enum)]
    pub format: Option<FormatArg>,

    /// In place of a file that is there
    #[arg(long)]
    pub force: bool,

    /// Tell how far it is where standard error is no terminal, too; with --json as objects on standard output
    #[arg(long)]
    pub progress: bool,
}

/// True for standard input or output in place of a file.
pub fn is_standard(file: &Path) -> bool {
    file.as_os_str() == STANDARD
}

#[cfg(test)]
mod tests {
    use super::super::super::args::{Cli, Command, VolumeCommand};
    use super::super::super::values::AckArg;
    use super::*;
    use clap::Parser;

    fn parse(line: &str) -> Result<VolumeCommand, String> {
        let cli = Cli::try_parse_from(std::iter::once("freebs").chain(line.split_whitespace()));
        match cli.map_err(|e| e.to_string())?.command {
            Command::Volume(command) => Ok(command),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_import_has_the_options_of_a_new_volume() {
        let line = "volume import a b.qcow2 --format qcow2 --size 10G --copies 2 --ack all --min-copies 1 --shards 3 \
                    --stripe 4M --force --progress --json";
        let Ok(VolumeCommand::Import(a)) = parse(line) else { panic!("import") };
        assert_eq!((a.name.as_str(), a.file, a.format), ("a", PathBuf::from("b.qcow2"), Some(FormatArg::Qcow2)));
        assert!(a.force && a.progress && a.size == Some(10 << 30));
        let shape = ShapeArgs {
            copies: Some(2),
            ack: Some(AckArg::All),
            min_copies: Some(1),
            retain: None,
            shards: Some(3),
            stripe: Some(4 << 20),
        };
        assert_eq!(a.shape, shape);
        let Ok(VolumeCommand::Import(a)) = parse("volume import a -") else { panic!("import") };
        assert!(is_standard(&a.file) && !a.force && a.size.is_none() && a.format.is_none());
        for (line, word) in [
            ("volume import a", "<FILE>"),
            ("volume import a/b c", "data-1"),
            ("volume import a b --format vmdk", "raw, qcow2"),
            ("volume import a b --size 10", "did you mean 10G"),
        ] {
            let said = parse(line).expect_err(line);
            assert!(said.contains(word), "{line}: {said}");
        }
    }

    #[test]
    fn an_export_names_a_volume_and_a_file() {
        let Ok(VolumeCommand::Export(a)) = parse("volume export a b.img --force --progress") else { panic!("export") };
        assert!(a.name == "a" && a.file == Path::new("b.img") && a.force && a.progress && a.format.is_none());
        assert!(parse("volume export a").expect_err("no file").contains("<FILE>"));
        assert!(parse("volume export a b --size 1G").is_err());
    }
}
