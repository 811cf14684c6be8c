//! Traces of an execution, so that inputs that show something new are kept.
//!
//! Not the edges of the code, which only an instrumented build knows (`fuzz/` has it), but what a target says of its
//! own: the texts of the errors, the kinds of what was decoded, how long its tables are. Decoders have an error text
//! for nearly each check, so this tells how far an input came.

use crate::rng::{hash, mix};
use freebs_types::Result;
use std::cell::RefCell;

thread_local! {
    static SEEN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// An execution begins.
pub fn clear() {
    SEEN.with_borrow_mut(Vec::clear);
}

/// The trace of the execution.
#[must_use]
pub fn take() -> Vec<u64> {
    SEEN.with_borrow_mut(std::mem::take)
}

/// Notes something that was seen: a place in the target, and a number whose magnitude counts.
pub fn saw(place: &'static str, number: u64) {
    let scale = if number < 8 { number } else { 8 + u64::from(number.ilog2()) };
    note(hash(place.as_bytes()) ^ mix(scale));
}

/// Notes something that was seen, every number by itself: for kinds.
pub fn kind(place: &'static str, number: u64) {
    note(hash(place.as_bytes()) ^ mix(number ^ 1 << 40));
}

/// Notes how something ended: the text of the error, without numbers, and without what it quotes of the input.
pub fn ended<T>(place: &'static str, result: &Result<T>) {
    match result {
        Ok(_) => saw(place, 0),
        Err(e) => {
            let is_quote = |c: char| matches!(c, '\'' | '"' | '`');
            let quoted = e.text.find(is_quote).zip(e.text.rfind(is_quote));
            let (before, behind) = quoted.map_or((&e.text[..], ""), |(a, b)| (&e.text[..a], &e.text[b..]));
            let text: Vec<u8> =
                before.bytes().chain(behind.bytes()).filter(u8::is_ascii_alphabetic).take(100).collect();
            note(hash(place.as_bytes()) ^ hash(&text));
        }
    }
}

fn note(what: u64) {
    SEEN.with_borrow_mut(|seen| {
        if seen.len() < 4096 {
            seen.push(what);
        }
    });
}
