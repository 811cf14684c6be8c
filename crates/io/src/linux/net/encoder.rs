//! What waits to be written on a link: small parts in one buffer, large ones by reference.
//!
//! Invariant: the bytes go out in the order in which they were put, whatever buffer they lie in.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Payload up to this many bytes is copied behind the headers: a copy is cheaper than one more piece of a write.
const COPY_MAX: usize = 512;

/// Bytes of headers in one piece above which the buffer is given back once all is written.
const HEAD_KEPT_MAX: usize = 256 << 10;

/// The queue of a link, and what messages encode themselves into.
#[derive(Default)]
pub struct Encoder {
    parts: VecDeque<Bytes>,
    parts_len: usize,
    /// The last bytes of the queue, still open for more.
    head: BytesMut,
    /// The longest piece that `head` has been since it was new.
    head_len_max: usize,
}

impl Encoder {
    /// The buffer for headers and other small parts. Only ever append to it: what lies in it may belong to earlier
    /// messages of the same turn.
    pub fn head(&mut self) -> &mut BytesMut {
        &mut self.head
    }

    /// Appends payload, without a copy unless it is small.
    pub fn put(&mut self, payload: Bytes) {
        if payload.len() <= COPY_MAX {
            self.head.extend_from_slice(&payload);
            return;
        }
        self.seal();
        self.parts_len += payload.len();
        self.parts.push_back(payload);
    }

    /// Bytes waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts_len + self.head.len()
    }

    /// True if nothing is left to be written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn seal(&mut self) {
        if !self.head.is_empty() {
            self.parts_len += self.head.len();
            self.head_len_max = self.head_len_max.max(self.head.len());
            self.parts.push_back(self.head.split().freeze());
        }
    }

    /// Fills `out` with the first parts; how many there are.
    pub(super) fn slices<'a>(&'a mut self, out: &mut [IoSlice<'a>]) -> usize {
        self.seal();
        let count = self.parts.len().min(out.len());
        for (slice, part) in out.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(part);
        }
        count
    }

    /// Drops `written` bytes off the front.
    pub(super) fn advance(&mut self, mut written: usize) {
        assert!(written <= self.parts_len, "{written} bytes written of {}", self.parts_len);
        self.parts_len -= written;
        while written > 0 {
            let part = self.parts.front_mut().expect("parts_len counts the parts");
            if part.len() > written {
                part.advance(written);
                return;
            }
            written -= part.len();
            self.parts.pop_front();
        }
        if self.is_empty() && self.head_len_max > HEAD_KEPT_MAX {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(encoder: &mut Encoder, step: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while !encoder.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3];
            let count = encoder.slices(&mut slices);
            let all: Vec<u8> = slices[..count].iter().flat_map(|s| s.iter().copied()).collect();
            let take = step.min(all.len());
            out.extend_from_slice(&all[..take]);
            encoder.advance(take);
        }
        out
    }

    #[test]
    fn small_parts_share_one_buffer_and_large_ones_are_not_copied() {
        let mut encoder = Encoder::default();
        for i in 0..10 {
            encoder.head().extend_from_slice(&[i; 16]);
            encoder.put(Bytes::from(vec![i; 100]));
        }
        let large = Bytes::from(vec![77; 4096]);
        encoder.put(large.clone());
        encoder.head().extend_from_slice(b"end");
        assert_eq!(encoder.len(), 10 * 116 + 4096 + 3);
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(encoder.slices(&mut slices), 3);
        assert_eq!((slices[0].len(), slices[1].as_ptr()), (1160, large.as_ptr()));
    }

    #[test]
    fn bytes_leave_in_order_however_little_is_taken() {
        for step in [1, 7, 500, 100_000] {
            let (mut encoder, mut expected) = (Encoder::default(), Vec::new());
            for i in 0..50_u8 {
                let payload = vec![i; usize::from(i) * 40];
                encoder.head().extend_from_slice(&[255, i]);
                encoder.put(Bytes::from(payload.clone()));
                expected.extend_from_slice(&[255, i]);
                expected.extend_from_slice(&payload);
            }
            assert!(drain(&mut encoder, step) == expected, "in steps of {step}");
        }
    }
}
