//! Named maxima of the control plane's state, beside those in `freebs_types::limits`.

use freebs_types::limits as common;

/// Nodes that were removed of which a cluster knows: none of them is ever taken in again.
pub const REMOVED_MAX: usize = 4096;
/// Tokens that are kept: those that nobody used, and with the room that is left the last that were used.
pub const TOKENS_MAX: usize = 256;
/// Longest life of a token, milliseconds: 30 days.
pub const TOKEN_MS_MAX: u64 = 30 * 86_400_000;
/// Shortest retention window, milliseconds: what heads need to move it.
pub const RETAIN_MS_MIN: u64 = 1000;
/// Shards of all volumes together; keeps the state within `STATE_BYTES_MAX`.
pub const SHARDS_TOTAL_MAX: usize = 1 << 20;
/// Bytes of the encoded state.
pub const STATE_BYTES_MAX: usize = 512 << 20;
/// Bytes of a node's address (host name, colon, port).
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Smallest volume. Smaller ones are of no use, and refusing them catches a forgotten unit ("10" for "10G").
pub const VOLUME_BYTES_MIN: u64 = 1 << 20;
/// Below this size one shard is enough for a volume; from here on one more for each such piece.
pub const SHARD_SPLIT_BYTES: u64 = 64 << 30;
/// Shards that a volume gets by itself; more only when it is asked for, or the size needs them.
pub const DEFAULT_SHARDS_MAX: u32 = 16;
/// Stripe of a volume unless another is asked for.
pub const DEFAULT_STRIPE_BYTES: u64 = 1 << 20;
/// Smallest stripe: smaller ones cut the requests of clients into pieces.
pub const STRIPE_BYTES_MIN: u64 = 64 << 10;
/// Largest stripe.
pub const STRIPE_BYTES_MAX: u64 = 1 << 30;
/// Deleted volumes that are remembered one by one for watchers; older ones cost a list of those that live.
pub const TOMBSTONES_MAX: usize = 4096;
/// Weight (volumes and shards) of one page of changes, so that a page fits a control message.
pub const PAGE_WEIGHT_MAX: usize = 8192;
/// Items of one page of a node's shards.
pub const SHARD_STATUS_PAGE_MAX: usize = 8192;
/// Revisions, ids, views and generations from disk or network stay below this, so that counting on can't overflow.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Bytes of one encoded command: its texts (a name, an address), a few numbers, and as many cuts as one reports.
pub const COMMAND_BYTES_MAX: usize = 1024 + CUTS_OF_COMMAND_MAX * 36;
/// Bytes of a command's texts together.
pub const COMMAND_TEXT_BYTES_MAX: usize = 896;
/// Cuts of a snapshot that one command reports or confirms; a node with more sends several.
pub const CUTS_OF_COMMAND_MAX: usize = 256;
/// Snapshots of one volume.
pub const SNAPSHOTS_OF_VOLUME_MAX: usize = 1000;
/// Rules of a schedule.
pub const KEEP_RULES_MAX: usize = 8;
/// Snapshots of one volume that the rules of its schedule keep: some are left for people.
pub const KEPT_BY_SCHEDULE_MAX: u64 = 900;
/// Volumes of one snapshot.
pub const SNAPSHOT_VOLUMES_MAX: usize = 64;
/// Shards of one snapshot: all of one volume, or of some smaller ones.
pub const SNAPSHOT_SHARDS_MAX: usize = common::VOLUME_SHARDS_MAX as usize;
/// Snapshots of all volumes together: the numbers of all, which a watcher from far back is told, fit one message.
pub const SNAPSHOTS_TOTAL_MAX: usize = 1 << 17;
/// Shards of all snapshots together; keeps the state within `STATE_BYTES_MAX`.
pub const SNAPSHOT_CUTS_TOTAL_MAX: usize = 1 << 20;
/// Snapshots that have failed and are still listed for people.
pub const SNAPSHOTS_FAILED_MAX: usize = 64;
/// Bytes of the reason for which a snapshot has failed; a longer one is cut.
pub const SNAPSHOT_WHY_BYTES_MAX: usize = 256;
/// The weight of a node is at most this.
pub const WEIGHT_MAX: u16 = 1_000;
/// Nodes that one command declares failed.
pub const FAILED_NODES_MAX: usize = 56;
/// Shards of which members are joining at a time: what is learned loads those who tell it, too.
pub const JOINING_SHARDS_MAX: usize = 16;
/// Shards to which members that were away come back at a time: they lack what was written meanwhile only.
pub const RETURNING_SHARDS_MAX: usize = 64;
/// Shards that one command names whose chains are to become shorter.
pub const LEFT_SHARDS_MAX: usize = 256;
/// Bytes of an error's text in an encoded result.
pub const ERROR_TEXT_BYTES_MAX: usize = 512;
