//! How a target's bytes are read: two bytes of choices, then what it is about.
//!
//! Byte 0, bit 0: checksums are made right before the bytes are decoded, so that mutations get past them. Its other
//! bits are the seed of the places at which a stream is cut. Byte 1 chooses among what the target decodes.

use crate::rng::Rng;

/// A target's input, taken apart.
pub struct Input<'a> {
    /// Checksums are made right.
    pub mend: bool,
    /// Seed of the cuts; 0: no cuts.
    pub cuts: u8,
    pub choice: u8,
    pub rest: &'a [u8],
}

impl<'a> Input<'a> {
    #[must_use]
    pub fn of(data: &'a [u8]) -> Self {
        match data {
            [how, choice, rest @ ..] => Self { mend: how & 1 == 1, cuts: how >> 1, choice: *choice, rest },
            _ => Self { mend: false, cuts: 0, choice: 0, rest: &[] },
        }
    }

    /// The bytes of an input.
    #[must_use]
    pub fn bytes(mend: bool, cuts: u8, choice: u8, rest: &[u8]) -> Vec<u8> {
        let mut out = vec![u8::from(mend) | cuts << 1, choice];
        out.extend_from_slice(rest);
        out
    }

    /// `bytes` in pieces: in one, each byte by itself, or of lengths that follow from the seed.
    pub fn pieces<'b>(&self, bytes: &'b [u8]) -> Vec<&'b [u8]> {
        let mut rng = Rng::new(u64::from(self.cuts));
        let most = match self.cuts {
            0 => return vec![bytes],
            1 => 1,
            n => 2 << (n % 12),
        };
        let (mut rest, mut out) = (bytes, Vec::new());
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(1 + rng.below(most)));
            out.push(now);
            rest = later;
        }
        out
    }
}

/// Reads fields off the front of an input; what is missing is zero.
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }

    pub fn number(&mut self, bytes: usize) -> u64 {
        let mut n = [0; 8];
        let taken = self.take(bytes);
        n[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(n)
    }

    /// A piece with its length (two bytes) before it.
    pub fn piece(&mut self) -> &'a [u8] {
        let len = self.number(2) as usize;
        self.take(len)
    }
}
