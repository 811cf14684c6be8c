//! A named maximum for everything. What comes from disk or network is held against these before it is believed,
//! allocated or subtracted from.

/// Bytes of data in one update (DESIGN "update").
pub const UPDATE_DATA_BYTES_MAX: usize = 4 << 20;
/// Extents in one update.
pub const UPDATE_EXTENTS_MAX: usize = 1024;
/// Updates in one frame.
pub const FRAME_UPDATES_MAX: usize = 512;
/// Data bytes after which the head closes a frame; one larger update is a frame of its own.
pub const FRAME_DATA_BYTES_SOFT_MAX: usize = 256 << 10;
/// Data bytes in one frame, at the very most: one largest update, or a soft maximum plus one update.
pub const FRAME_DATA_BYTES_MAX: usize = UPDATE_DATA_BYTES_MAX + FRAME_DATA_BYTES_SOFT_MAX;
/// Bytes of a frame's head: header, update descriptions, extents, CRCs, body.
pub const FRAME_HEAD_BYTES_MAX: usize = 256 << 10;
/// Frames up to this many data bytes go from the head to every member at once.
pub const FAN_OUT_BYTES_MAX: usize = 32 << 10;
/// Members in a chain.
pub const CHAIN_MEMBERS_MAX: usize = 7;
/// Blocks in one shard: 1 TiB.
pub const SHARD_BLOCKS_MAX: u64 = 1 << 28;
/// Intervals over several shards that a shard has a place for at once: prepared, or decided and not over.
pub const SHARD_INTERVALS: u32 = 256;
/// Blocks that the record of an interval takes at most.
pub const INTERVAL_RECORD_BLOCKS_MAX: u32 = 4;
/// Blocks that a place has for data.
pub const INTERVAL_PLACE_BLOCKS: u32 = 1024;
/// Blocks of a shard that a volume can use: the last ones, about 1 GiB, are places of intervals, first those of all records, then
/// those of data.
pub const SHARD_VOLUME_BLOCKS_MAX: u64 =
    SHARD_BLOCKS_MAX - SHARD_INTERVALS as u64 * (INTERVAL_RECORD_BLOCKS_MAX + INTERVAL_PLACE_BLOCKS) as u64;
// A head reads all records at once.
const _: () = assert!(SHARD_INTERVALS * INTERVAL_RECORD_BLOCKS_MAX <= READ_BLOCKS_MAX);
/// Shards that one interval may change.
pub const INTERVAL_SHARDS_MAX: usize = 64;
/// Extents that an interval over several shards has in each: one of the update that commits it is the end of its place, another
/// one the record of the decision.
pub const INTERVAL_EXTENTS_MAX: usize = UPDATE_EXTENTS_MAX - 4;
/// Bytes of data that an interval over several shards has in each: its record lies beside them in one update.
pub const INTERVAL_DATA_BYTES_MAX: usize = UPDATE_DATA_BYTES_MAX - INTERVAL_RECORD_BLOCKS_MAX as usize * 4096;
/// Bytes of data of all prepared intervals of a shard: they are in its head's memory.
pub const SHARD_PREPARED_BYTES_MAX: usize = 16 << 20;
/// Moments that a shard's map tells apart, each with an address behind those of blocks: 77 days of tenths of a second.
pub const SHARD_MOMENTS: u64 = 1 << 26;
/// Addresses in one shard: those of blocks, which have data, those of moments, which have none, and `TIMES_LBA`.
pub const SHARD_ADDRESSES: u64 = SHARD_BLOCKS_MAX + SHARD_MOMENTS + 1;
/// Milliseconds that a moment lasts.
pub const MOMENT_MS: u64 = 100;
/// Longest retention window, milliseconds: 35 days.
pub const RETAIN_MS_MAX: u64 = 35 * 24 * 3600 * 1000;
/// Moments that a shard tells apart at a time: 70 days. Those that it told of before are told of no more when more would count.
pub const MOMENTS_TOLD: u64 = 70 * 24 * 3600 * 1000 / MOMENT_MS;
/// Shards in one volume.
pub const VOLUME_SHARDS_MAX: u32 = 1024;
/// Data blocks in one chunk: 16 MiB.
pub const CHUNK_BLOCKS_MAX: u32 = 4096;
/// Versions of a shard that can be pinned at once: 32 KiB in a mark.
pub const SHARD_PINS_MAX: usize = 2048;
/// Versions that clones read, and that a log knows to be lost: 8 KiB in a mark.
pub const LOST_VERSIONS_MAX: usize = 1024;
/// Closed views whose secrets a log keeps for the audit of frames that it still has: 12 KiB in a mark.
pub const CLOSED_VIEWS_MAX: usize = 256;
/// Blocks in one read request to a member.
pub const READ_BLOCKS_MAX: u32 = 1024;
/// Blocks in one question to a member for what is where: 64 MiB. Even if every block is of another kind than the one
/// before, the answer fits one message.
pub const STATUS_BLOCKS_MAX: u32 = 16_384;
/// Bytes of one message on the wire, header included.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Bytes of a control message's body (JSON).
pub const CONTROL_BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes in flight per driver.
pub const DRIVER_WINDOW_BYTES: usize = 32 << 20;
/// Bytes ordered but not yet durable per shard.
pub const SHARD_WINDOW_BYTES: usize = 16 << 20;
/// Bytes waiting to be sent to one peer.
pub const PEER_WINDOW_BYTES: usize = 64 << 20;
/// Unanswered requests of one driver to one shard.
pub const DRIVER_REQUESTS_MAX: usize = 1024;
/// Bytes of a volume's name.
pub const VOLUME_NAME_BYTES_MAX: usize = 128;
/// Nodes in a cluster.
pub const NODES_MAX: usize = 1024;
/// Volumes in a cluster.
pub const VOLUMES_MAX: usize = 100_000;
/// Bytes of a segment of a node's device.
pub const SEGMENT_BYTES: u64 = 16 << 20;
/// Bytes of the smallest segment that a device may be made with; tests ask for it.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// Workers (threads with a device log each) of a node.
pub const WORKERS_MAX: usize = 8;
