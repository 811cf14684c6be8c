//! Bytes on their way to the client: headers gathered in one small buffer, payloads passed on as they are.
//!
//! Invariants: `len` is the sum of the pieces and of the tail; `tail` comes after all `pieces`; no piece is empty.
//! Small replies that follow each other lie side by side in the tail, so a hundred write answers are one slice.

use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;

/// First size of the buffer for headers: about a hundred read replies, or 250 write answers.
const TAIL_BYTES: usize = 4096;
/// Zeroes sent in place of holes come from here, slice by slice.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Output not sent yet. It is a [`Buf`]: fill slices with `chunks_vectored`, write them, `advance` by what was written.
#[derive(Debug)]
pub struct Output {
    pieces: VecDeque<Bytes>,
    tail: BytesMut,
    len: usize,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { pieces: VecDeque::new(), tail: BytesMut::with_capacity(TAIL_BYTES), len: 0 }
    }

    /// Bytes not sent yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if everything was sent, or taken out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes everything out as pieces in order. The session then no longer counts them; whoever holds them has to stop
    /// receiving while the client does not take them.
    #[must_use]
    pub fn take_pieces(&mut self) -> VecDeque<Bytes> {
        self.close_tail();
        self.len = 0;
        core::mem::take(&mut self.pieces)
    }

    /// Small bytes: copied.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// A payload: not copied.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.close_tail();
        self.len += bytes.len();
        self.pieces.push_back(bytes);
    }

    pub(crate) fn push_zeroes(&mut self, mut count: u64) {
        while count > 0 {
            let step = count.min(ZEROES.len() as u64);
            self.push(Bytes::from_static(&ZEROES[..step as usize]));
            count -= step;
        }
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.pieces.push_back(self.tail.split().freeze());
        }
    }
}

impl Buf for Output {
    fn remaining(&self) -> usize {
        self.len
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.front().map_or(&self.tail[..], |piece| &piece[..])
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        let tail = (!self.tail.is_empty()).then_some(&self.tail[..]);
        let slices = self.pieces.iter().map(|piece| &piece[..]).chain(tail);
        let mut used = 0;
        for (place, slice) in to.iter_mut().zip(slices) {
            *place = IoSlice::new(slice);
            used += 1;
        }
        used
    }

    fn advance(&mut self, mut count: usize) {
        assert!(count <= self.len, "more bytes were sent than there are");
        self.len -= count;
        while let Some(piece) = self.pieces.front_mut() {
            if count < piece.len() {
                piece.advance(count);
                return;
            }
            count -= piece.len();
            self.pieces.pop_front();
        }
        self.tail.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_bytes_join_and_payloads_keep_their_memory() {
        let mut out = Output::new();
        let payload = Bytes::from(vec![7; 100]);
        let place = payload.as_ptr();
        out.put(b"ab");
        out.put(b"cd");
        out.push(payload);
        out.push(Bytes::new());
        out.put(b"ef");
        assert_eq!(out.len(), 106);
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(out.chunks_vectored(&mut slices), 3);
        assert_eq!(&slices[0][..], b"abcd");
        assert_eq!(slices[1].as_ptr(), place);
        assert_eq!(&slices[2][..], b"ef");
        assert_eq!(out.chunks_vectored(&mut [IoSlice::new(&[]); 2]), 2);
    }

    #[test]
    fn it_is_sent_in_steps_of_any_size() {
        for step in 1..12 {
            let mut out = Output::new();
            out.put(b"head");
            out.push(Bytes::from_static(b"payload"));
            out.push_zeroes(3);
            out.put(b"tail");
            let mut seen = Vec::new();
            while out.has_remaining() {
                let n = step.min(out.chunk().len());
                seen.extend_from_slice(&out.chunk()[..n]);
                out.advance(n);
            }
            assert_eq!(seen, b"headpayload\0\0\0tail");
            assert!(out.is_empty());
        }
    }

    #[test]
    fn an_advance_may_span_pieces() {
        let mut out = Output::new();
        out.put(b"head");
        out.push(Bytes::from_static(b"payload"));
        out.put(b"tail");
        out.advance(12);
        assert_eq!(out.chunk(), b"ail");
        out.put(b"more");
        assert_eq!(out.take_pieces().into_iter().flatten().collect::<Vec<u8>>(), b"ailmore");
        assert_eq!(out.len(), 0);
    }

    #[test]
    fn long_zeroes_need_no_memory() {
        let mut out = Output::new();
        out.push_zeroes(1 << 20);
        assert_eq!(out.len(), 1 << 20);
        assert!(out.take_pieces().iter().all(|piece| piece.as_ptr() == ZEROES.as_ptr()));
    }
}
