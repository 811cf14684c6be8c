//! The repository is tidy; and each check finds a planted case of its kind, and passes over a near miss.

mod house;
mod planted;
mod repository;
mod scanner;
