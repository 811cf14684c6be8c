//! The targets, and what each is held to.

mod backup;
mod control;
mod device;
mod disk;
mod frames;
mod image;
mod nbd;
mod qcow2;
mod seats;
mod store;
mod wire;

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    /// The properties that it checks, in a line.
    pub about: &'static str,
    pub run: fn(&[u8]),
    /// Bytes that an execution may hold at a time, for so many bytes of input.
    pub bound: fn(usize) -> usize,
    /// Bytes that mean something to what is decoded.
    pub words: &'static [&'static [u8]],
    /// Bytes of an input, at most.
    pub input_bytes_max: usize,
    /// Executions in the normal suite.
    pub suite_runs: u64,
}

macro_rules! targets {
    ($($name:literal, $run:path, $bound:expr, $words:expr, $most:expr, $runs:expr, $about:literal;)*) => {
        /// All targets, in the order in which `all` runs them.
        pub const TARGETS: &[Target] = &[$(Target {
            name: $name,
            about: $about,
            run: $run,
            bound: $bound,
            words: $words,
            input_bytes_max: $most,
            suite_runs: $runs,
        },)*];
    };
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Structs in memory are a few times as large as their bytes; a target decodes, encodes and compares; beside it, texts
/// and book-keeping.
const fn few(input: usize) -> usize {
    24 * input + 16 * KIB
}

/// JSON: the shortest element of a list (`{}` and a comma, or a digit) is a struct of some hundred bytes in memory.
const fn json(input: usize) -> usize {
    320 * input + 64 * KIB
}

targets! {
    "nbd-handshake", nbd::handshake, |n| 24 * n + 512 * KIB, nbd::WORDS, 8 * KIB, 4000,
        "an NBD session from its first byte, whatever the options: any cutting gives the same, a failed session stays so";
    "nbd-transmission", nbd::transmission, |n| 24 * n + 512 * KIB, nbd::WORDS, 16 * KIB, 4000,
        "NBD requests in each form of reply: ranges within the export, one final reply each, the window holds";
    "wire", wire::wire, few, wire::WORDS, 32 * KIB, 8000,
        "one message between drivers and nodes: decoded lengths within the maxima, encoding again gives the same";
    "wire-stream", wire::stream, |n| 72 * n + 16 * KIB, wire::WORDS, 32 * KIB, 4000,
        "a stream of messages: any cutting gives the same messages and the same error";
    "greeting", wire::greeting, few, wire::WORDS, KIB, 4000,
        "the first message of a connection: short, and whole before it is taken";
    "frame", frames::frame, few, frames::WORDS, 32 * KIB, 8000,
        "a frame's head and its body: its bytes are kept, its updates fit its tables, bodies encode again";
    "bodies", frames::bodies, few, frames::WORDS, 16 * KIB, 8000,
        "bodies of view, attach, mark and carry frames, and the description of a volume, by themselves";
    "interval", frames::interval, few, frames::WORDS, 16 * KIB + 2, 8000,
        "the record of an interval: what it names lies in a volume, within the maxima, and encodes again";
    "superblock", disk::superblock, few, disk::WORDS, 8 * KIB, 8000,
        "a device's superblock: an allowed shape, and the bytes encode again";
    "append", disk::append, few, disk::WORDS, 32 * KIB, 6000,
        "an append: header, table of live segments, frame heads";
    "segment-index", disk::segment_index, |n| 320 * n + 64 * KIB, disk::WORDS, 32 * KIB, 6000,
        "a segment's footer and the index before it";
    "map-page", disk::map_page, |n| 64 * n + 64 * KIB, disk::WORDS, 4096 + 2, 8000,
        "a page of the map: entries in order, within a shard, the same after encoding";
    "checkpoint", disk::checkpoint, few, disk::WORDS, 4096 + 2, 8000,
        "a checkpoint's slot: places within the maximum, the bytes encode again";
    "openings", disk::openings, few, disk::WORDS, 4096 + 2, 8000,
        "a page of openings: as many segments as fit it, the bytes encode again";
    "manifest", disk::manifest, |n| 64 * n + 64 * KIB, disk::WORDS, 32 * KIB, 8000,
        "a checkpoint's manifest: no more items than bytes";
    "host-key", disk::host_key, few, disk::WORDS, 256, 8000,
        "the file host-key: of this node only, and the bytes encode again";
    "device", device::open, |n| 64 * n + 24 * MIB, device::WORDS, 2 * KIB, 120,
        "an engine's start on a device with forged structures: it opens or says why not, its state is in itself right, \
         what it serves has right CRCs, and a second start finds the same";
    "device-tools", device::tools, |n| 64 * n + 24 * MIB, device::WORDS, 2 * KIB, 60,
        "inspect, verify, survey and a dry rebuild on a device with forged structures: they agree, and write nothing";
    "qcow2", qcow2::image, |n| 64 * n + 24 * MIB, qcow2::WORDS, 16 * KIB, 3000,
        "a disk image: its disk is read in order to its end, or refused, and is the same after it was written";
    "backup", backup::object, |n| 64 * n + 4 * MIB, backup::WORDS, 16 * KIB, 6000,
        "an object of a backup target, of any kind: it has one form, and content only under its own name";
    "command", control::command, few, control::WORDS, 2 * KIB, 8000,
        "a command of the control plane, and what came of one: within the maximum, the bytes encode again";
    "commands", control::commands, |n| 64 * n + 8 * MIB, control::WORDS, 8 * KIB, 1500,
        "commands applied to a new state: the state's bytes decode again, twice the same";
    "state", control::state, |n| 4 * json(n) + 8 * MIB, control::WORDS, 16 * KIB, 2000,
        "the control state's durable form, and commands applied to what was decoded";
    "api", control::api, |n| 3 * json(n), control::WORDS, 8 * KIB, 4000,
        "requests to a node and their replies, as JSON: what is decoded encodes again";
    "cluster-file", control::cluster_file, |n| 3 * json(n), control::WORDS, 8 * KIB, 4000,
        "the cluster file: checked nodes, and what is decoded encodes again";
    "seat-message", seats::message, few, seats::WORDS, 16 * KIB, 8000,
        "a message between seats of the control plane: canonical, so that the bytes encode again";
    "seat-entry", seats::entry, few, seats::WORDS, 4 * KIB, 8000,
        "an entry of the control plane's log: canonical, so that the bytes encode again";
    "seat-note", seats::note, few, seats::WORDS, 256, 8000,
        "the note of a seat's store: of this node only, the next opening can be counted";
    "seat-machine", seats::machine, |n| 4 * json(n) + 8 * MIB, seats::WORDS, 16 * KIB, 2000,
        "a snapshot of the replicated state, and entries applied to it";
    "seat-store", store::open, |n| 64 * n + 24 * MIB, seats::WORDS, 2 * KIB, 400,
        "a seat's store on a file with forged pages: it opens or says why not, works, and a second start finds the same";
}

/// The target of a name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}

/// Seeds of the targets that have no golden bytes.
pub(crate) fn seeds(out: &mut crate::seeds::Seeds) {
    nbd::seeds(out);
    disk::seeds(out);
    device::seeds(out);
    qcow2::seeds(out);
    backup::seeds(out);
    control::seeds(out);
    seats::seeds(out);
    store::seeds(out);
}
