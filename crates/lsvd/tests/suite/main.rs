//! The log engine from outside: one binary, because the engine is made anew in each.
//!
//! `sweeps` is the slow part: `cargo test -p freebs-lsvd --test suite sweeps` runs it alone, `-- --skip sweeps` leaves
//! it out.

mod common;
mod crash_device;
mod memory;

mod answers;
mod audit;
mod check;
mod cleaning;
mod closing;
mod copies;
mod crash;
mod damage;
mod damage_twice;
mod early;
mod ends;
mod engine;
mod forks;
mod forks_known;
mod forks_line;
mod forks_lost;
mod full;
mod history;
mod maps;
mod mended;
mod moments;
mod moved;
mod past_runs;
mod pipelined;
mod quiet;
mod repeats;
mod rules;
mod scrub;
mod shards;
mod spilled;
mod start;
mod survey;
mod sweeps;
mod tool;
mod tool_crash;
mod tool_fuzz;
mod unread;
mod waiting;

#[global_allocator]
static MEMORY: memory::Keeping = memory::Keeping;
