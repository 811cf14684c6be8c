//! The pages of the project say what the tree does: variables of the environment, and commands.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "it reads the tree")]

mod entry;
mod environment;
