//! The driver from outside: scripts of its rules, and worlds of members with faults.

mod past;
mod property;
mod rules;
