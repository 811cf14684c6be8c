//! Backups: a disk's blocks in an object store, named by their content, and a manifest for each backup.
//!
//! Bytes of callers in, objects out: no clock, thread or socket but those of the `object_store` that is given. Callers have
//! the clock, the source and the sink.
//!
//! Invariants:
//! - A backup is in a list only when all that it names is stored and durable.
//! - What no backup names, and no create that is under way may come to name, is what [`prune`] takes away; nothing else is.
//! - Whatever a target holds, reading it neither panics nor takes more memory than the maxima of [`limits`] say; and bytes
//!   whose hash is not the one of their name are never handed out.
//!
//! The folder: `format` (the bytes), `keys` and `pack` (content to object and back), `store` (an object store, narrowed),
//! `directory` (what a directory has to tell), `place` (a directory, or S3), `target` (names of objects in a store), `seam` (the traits of callers), `create`,
//! `catalog` (list, find, delete), `verify`, `restore`, `prune`.

pub mod format;
pub mod keys;
pub mod limits;

mod catalog;
mod create;
mod directory;
mod pack;
mod place;
mod prune;
mod restore;
mod seam;
mod store;
mod target;
mod verify;

pub use catalog::{Catalog, Listed, delete, list, open, resolve};
pub use create::{Created, Order, create};
pub use format::{Details, Id, Manifest, Moment, Name};
pub use keys::Keys;
pub use pack::{name_of, pack, unpack};
pub use place::Place;
pub use prune::{Mutant, Pruned, Pruning, prune};
pub use restore::{Restored, restore};
pub use seam::{Sink, Source, Unwatched, Watch};
pub use store::Store;
pub use target::{MARKER, Target, object_key};
pub use verify::{Verified, Verifying, Wrong, verify};
