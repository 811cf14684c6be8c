//! The formats from outside: golden bytes, tables of the documents, every flipped bit, and what parsing may allocate.

mod common;
mod disk;
mod docs;
mod frames;
mod golden;
mod memory;
mod tables;
mod wire;
