//! The hash chain: digests, access tokens and their public shadow (Lithium section 2.2).
//!
//! `id(n) = H(s ‖ id(n−1) ‖ digest(n))` with the view's secret `s`; the header of frame n holds `parent = id(n−1)`
//! in clear and `hid = H(id(n))`. Everyone can check `H(parent(n+1)) = hid(n)`; only who knows `id(n)` can go on.

use bytes::Bytes;
use freebs_types::Hash32;

const TOKEN_CONTEXT: &str = "freebs 2026 access token";
const HIDE_CONTEXT: &str = "freebs 2026 hidden access token";

/// Digest of a frame: the first 112 bytes of its header, its body, its data.
#[must_use]
pub fn frame_digest(header_prefix: &[u8], body: &[u8], data: &[Bytes]) -> Hash32 {
    let mut h = blake3::Hasher::new();
    h.update(header_prefix);
    h.update(body);
    for d in data {
        h.update(d);
    }
    Hash32(*h.finalize().as_bytes())
}

/// The access token of a frame, from the view's secret, the token before, and the frame's digest.
#[must_use]
pub fn token(secret: &Hash32, parent: &Hash32, digest: &Hash32) -> Hash32 {
    let mut h = blake3::Hasher::new_derive_key(TOKEN_CONTEXT);
    h.update(&secret.0);
    h.update(&parent.0);
    h.update(&digest.0);
    Hash32(*h.finalize().as_bytes())
}

/// The public shadow of a token (`hid`).
#[must_use]
pub fn hide(id: &Hash32) -> Hash32 {
    Hash32(*blake3::Hasher::new_derive_key(HIDE_CONTEXT).update(&id.0).finalize().as_bytes())
}
