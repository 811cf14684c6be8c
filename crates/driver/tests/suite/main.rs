//! The driver from outside: scripts of its rules, and worlds of members with faults.

mod property;
mod rules;
