//! A client that writes 4 KiB durably, one write after the other, and knows how long each took. In the long form, whose
//! figures count, it makes no pause; in the short one it leaves something of the machine to other tests.

use crate::support::full;
use crate::support::load::Answers;
use crate::support::nbd::{Client, Op, Place};
use crate::support::tools::say;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
/// Blocks that it writes in turn.
const BLOCKS: u64 = 256;
const PAUSE: Duration = Duration::from_millis(3);

/// What a block holds after its write of this number.
fn block(number: u64) -> Vec<u8> {
    let word = |i: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i).to_le_bytes();
    (0..BLOCK / 8).flat_map(word).collect()
}

/// The time from one moment to another that lies within these spans.
fn within(from: Instant, to: Instant, spans: &[(Instant, Instant)]) -> Duration {
    spans.iter().map(|span| to.min(span.1).saturating_duration_since(from.max(span.0))).sum()
}

/// Whether these bytes are of that write, or zeroes if there was none; else whose they are, if anybody's up to `newest`.
fn holds(number: u64, newest: u64, bytes: &[u8]) -> Result<(), Option<u64>> {
    let is_right = match number {
        0 => bytes.len() as u64 == BLOCK && bytes.iter().all(|b| *b == 0),
        _ => bytes == block(number),
    };
    if is_right { Ok(()) } else { Err((1..=newest).rev().find(|n| bytes == block(*n))) }
}

pub struct Prober {
    place: Place,
    volume: String,
    client: Client,
    /// Where its region begins on the volume, in bytes.
    base: u64,
    /// The number of each block's last write that was answered; 0 if there was none.
    holds: Vec<u64>,
    /// Of the last write that was sent.
    number: u64,
    /// When each write since `forget` was sent, and how long its answer took.
    took: Vec<(Instant, Duration)>,
    /// Writes that were answered.
    pub answers: Answers,
    pub errors: u64,
    /// Answers that never came.
    pub lost: u64,
}

impl Prober {
    #[must_use]
    pub fn connect(place: &Place, volume: &str, base: u64) -> Self {
        let client = Client::attach(place, volume);
        Self {
            place: place.clone(),
            volume: volume.into(),
            client,
            base,
            holds: vec![0; BLOCKS as usize],
            number: 0,
            took: vec![],
            answers: Answers::default(),
            errors: 0,
            lost: 0,
        }
    }

    fn at(&self, slot: u64) -> u64 {
        self.base + slot * BLOCK
    }

    /// Writes until it is told to stop.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.write();
        }
    }

    fn write(&mut self) {
        self.number += 1;
        let slot = self.number % BLOCKS;
        let op = Op::Write { at: self.at(slot), data: block(self.number), fua: true };
        let sent = Instant::now();
        match self.client.ask(&op) {
            Ok(Ok(_)) => {
                self.holds[slot as usize] = self.number;
                self.answers.add();
            }
            Ok(Err(code)) => {
                say(&format!("write {} of the prober failed after {:?}: error {code}", self.number, sent.elapsed()));
                self.errors += 1;
            }
            Err(e) => {
                say(&format!("write {} of the prober has no answer after {:?}: {e}", self.number, sent.elapsed()));
                self.lost += 1;
                self.client = Client::attach(&self.place, &self.volume);
            }
        }
        self.took.push((sent, sent.elapsed()));
        if !full() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Begins a new list of what writes took.
    pub fn forget(&mut self) {
        self.took.clear();
    }

    /// The longest write that was under way between these moments.
    #[must_use]
    pub fn longest(&self, from: Instant, to: Instant) -> Duration {
        let under_way = self.took.iter().filter(|(sent, took)| *sent < to && *sent + *took > from);
        under_way.map(|(_, took)| *took).max().unwrap_or_default()
    }

    /// The longest part of a write's time within these spans, all together, which do not overlap.
    #[must_use]
    pub fn longest_within(&self, spans: &[(Instant, Instant)]) -> Duration {
        self.took.iter().map(|(sent, took)| within(*sent, *sent + *took, spans)).max().unwrap_or_default()
    }

    /// When the first answer came from this moment on.
    #[must_use]
    pub fn first_answer(&self, from: Instant) -> Instant {
        let answers = self.took.iter().map(|(sent, took)| *sent + *took);
        answers.filter(|at| *at >= from).min().expect("it went on")
    }

    /// The longest write that had ended before this moment.
    #[must_use]
    pub fn longest_before(&self, to: Instant) -> Duration {
        let ended = self.took.iter().filter(|(sent, took)| *sent + *took <= to);
        ended.map(|(_, took)| *took).max().unwrap_or_default()
    }

    /// Goes on at another gateway.
    pub fn move_to(&mut self, place: &Place) {
        self.place = place.clone();
        self.client = Client::attach(place, &self.volume);
    }

    /// Each block must hold its last write. Only while no write failed: what one left behind may be there or not.
    pub fn check(&mut self) {
        assert_eq!((self.errors, self.lost), (0, 0), "writes failed, or their answers were lost");
        for slot in 0..BLOCKS {
            let number = self.holds[slot as usize];
            let got = self.client.read(self.at(slot), BLOCK as u32);
            if let Err(found) = holds(number, self.number, &got) {
                panic!("block {slot} was last written by {number}, and holds {found:?}: an answered write is lost");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, block, holds, within};
    use std::time::{Duration, Instant};

    /// A volume that stood still through all of them was late by the longest of them alone.
    #[test]
    fn a_wait_through_several_spans_counts_for_all_of_them() {
        let zero = Instant::now();
        let at = |s: u64| zero + Duration::from_secs(s);
        let spans = [(at(2), at(4)), (at(5), at(9)), (at(20), at(30))];
        for (from, to, seconds) in [(0, 40, 16), (3, 6, 2), (10, 19, 0), (6, 22, 5), (7, 8, 1)] {
            assert_eq!(within(at(from), at(to), &spans), Duration::from_secs(seconds), "{from} to {to}");
        }
    }

    #[test]
    fn prober_sees_that_an_older_write_or_nothing_is_there() {
        let zeroes = vec![0; BLOCK as usize];
        assert_eq!(holds(5, 9, &block(5)), Ok(()));
        assert_eq!(holds(0, 9, &zeroes), Ok(()));
        assert_eq!(holds(5, 9, &block(4)), Err(Some(4)));
        assert_eq!(holds(5, 9, &zeroes), Err(None));
        assert_eq!(holds(0, 9, &block(7)), Err(Some(7)));
        let mut torn = block(5);
        torn[2048..].copy_from_slice(&block(4)[2048..]);
        assert_eq!(holds(5, 9, &torn), Err(None));
    }
}
