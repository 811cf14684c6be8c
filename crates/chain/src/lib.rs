//! The chain: a shard's replicas as sans-I/O state machines, and the worker that runs them.
//!
//! `Host` holds all replicas of one worker and turns events (messages, links, durable appends, news from the
//! control plane, ticks) into actions. It never waits and never does I/O, so a whole cluster of hosts runs in one
//! thread under one seed. `Worker` is the async glue that carries the actions out: on a device through the log
//! engine, and on links through an outbox. Rules named W, R and V in comments are those of `docs/architecture.md`.

mod branch;
mod coming;
#[cfg(test)]
mod copies;
mod cuts;
mod event;
mod flatten;
mod forks;
mod guard;
mod head;
mod host;
mod intervals;
mod learn;
mod lease;
mod member;
mod mend;
mod open;
#[cfg(test)]
mod orders;
mod out;
mod parts;
mod past;
mod peers;
mod places;
mod regain;
mod relearn;
mod repair;
mod replica;
mod scrub;
mod secret;
mod sync;
#[cfg(test)]
mod testing;
mod timing;
mod unread;
mod waits;
mod window;
mod worker;

pub use event::{
    Action, Begins, Branch, ControlPort, CutWord, Event, Forced, Found, FoundInterval, HostConfig, IntervalAsk,
    IntervalWord, LogStatus, MapPiece, MapSource, MemberStatus, Mutant, Note, NoteKind, Opened, PastAsk, PastStatus,
    ShardInfo, ShardSnapshots, ShardStatus, SyncSource, UnderWay, Who,
};
pub use host::Host;
pub use repair::Hole;
pub use worker::{Worker, WorkerConfig};
