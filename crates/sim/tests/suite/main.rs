//! The simulator: good code passes every seed, and no rule can be left out unnoticed.

mod commit;
mod mutants;
mod raft;
mod readme;
mod seeds;
