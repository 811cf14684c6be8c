//! The hash chain: digests, access tokens and their public shadow (Lithium section 2.2).
//!
//! `id(n) = H(s ‖ id(n−1) ‖ digest(n))` with the view's secret `s`; the header of frame n holds `parent = id(n−1)`
//! in clear and `hid = H(id(n))`. Everyone can check `H(parent(n+1)) = hid(n)`; only who knows `id(n)` can go on.

use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use bytes::Bytes;
use freebs_types::Hash32;
use std::sync::LazyLock;

const TOKEN_CONTEXT: &str = "freebs 2026 access token";
const HIDE_CONTEXT: &str = "freebs 2026 hidden access token";

/// Hashed once: a context costs as much as what is hashed under it.
static TOKEN_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context(TOKEN_CONTEXT));
static HIDE_KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context(HIDE_CONTEXT));

/// BLAKE3 hashes its chunks of 1 KiB side by side, but only those that it is given at once, beginning at a multiple of
/// their number. So many bytes fill the widest vectors.
const WINDOW: usize = 16 << 10;

/// Digest of a frame: the first 112 bytes of its header, its body, its data.
#[must_use]
pub fn frame_digest(header_prefix: &[u8], body: &[u8], data: &[Bytes]) -> Hash32 {
    let len = header_prefix.len() + body.len() + data.iter().map(Bytes::len).sum::<usize>();
    let mut d = FrameDigest::with_window(len.min(WINDOW));
    d.update(header_prefix);
    d.update(body);
    data.iter().for_each(|piece| d.update(piece));
    d.finish()
}

/// Digest of a frame that comes piece by piece: the first 112 bytes of its header, its body, its data.
#[derive(Debug)]
pub struct FrameDigest {
    hasher: Hasher,
    window: Vec<u8>,
}

impl FrameDigest {
    fn with_window(bytes: usize) -> Self {
        Self { hasher: Hasher::new(), window: Vec::with_capacity(bytes) }
    }

    /// One that has seen the head.
    #[must_use]
    pub fn new(header_prefix: &[u8], body: &[u8]) -> Self {
        let mut d = Self::with_window(WINDOW);
        d.update(header_prefix);
        d.update(body);
        d
    }

    /// Takes the next bytes.
    pub fn update(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            let (now, later) = part.split_at(part.len().min(WINDOW - self.window.len()));
            self.window.extend_from_slice(now);
            part = later;
            if self.window.len() == WINDOW {
                self.hasher.update(&self.window);
                self.window.clear();
            }
        }
    }

    /// The digest of all bytes so far.
    #[must_use]
    pub fn finish(mut self) -> Hash32 {
        Hash32(*self.hasher.update(&self.window).finalize().as_bytes())
    }
}

/// The access token of a frame, from the view's secret, the token before, and the frame's digest.
#[must_use]
pub fn token(secret: &Hash32, parent: &Hash32, digest: &Hash32) -> Hash32 {
    let mut h = Hasher::new_from_context_key(&TOKEN_KEY);
    h.update(&secret.0);
    h.update(&parent.0);
    h.update(&digest.0);
    Hash32(*h.finalize().as_bytes())
}

/// The public shadow of a token (`hid`).
#[must_use]
pub fn hide(id: &Hash32) -> Hash32 {
    Hash32(*Hasher::new_from_context_key(&HIDE_KEY).update(&id.0).finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However a frame is cut into pieces, and around the edges of the window.
        #[test]
        fn the_digest_is_that_of_the_bytes_in_a_row(
            prefix in prop::collection::vec(any::<u8>(), 0..200),
            body in prop::collection::vec(any::<u8>(), 0..2000),
            pieces in prop::collection::vec((0usize..3 * WINDOW, any::<u8>()), 0..6),
        ) {
            let data: Vec<Bytes> =
                pieces.iter().map(|(n, x)| (0..*n).map(|i| (i * 31) as u8 ^ x).collect::<Vec<_>>().into()).collect();
            let all: Vec<u8> = [&prefix[..], &body[..]].into_iter().chain(data.iter().map(|d| &**d)).flatten().copied().collect();
            prop_assert_eq!(frame_digest(&prefix, &body, &data).0, *blake3::hash(&all).as_bytes());
        }
    }

    #[test]
    fn contexts_hashed_ahead_give_the_same_keys() {
        let (secret, parent, digest) = (Hash32([1; 32]), Hash32([2; 32]), Hash32([3; 32]));
        let all = [secret.0, parent.0, digest.0].concat();
        assert_eq!(token(&secret, &parent, &digest).0, blake3::derive_key(TOKEN_CONTEXT, &all));
        assert_eq!(hide(&secret).0, blake3::derive_key(HIDE_CONTEXT, &secret.0));
    }
}
