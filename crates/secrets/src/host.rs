//! Host keys, and slices sealed under them: X25519 with a key of the view's own, BLAKE3 to derive, ChaCha20-Poly1305.
//!
//! The sealing key is made for one view and forgotten, so who gets hold of one node's disk can open that node's slices
//! and no others.

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce, Tag};
use core::fmt;
use freebs_types::{ClusterId, HostPublic, NodeId, SEALED_SLICE_BYTES, SLICE_BYTES, SealedSlice, ShardId, Slice};
use freebs_types::{Hash32, ViewNumber};
use x25519_dalek::{PublicKey, StaticSecret};

/// A node's key pair. The secret half is wiped when it is dropped.
#[derive(Clone)]
pub struct HostKey {
    secret: StaticSecret,
    public: HostPublic,
}

impl HostKey {
    /// The pair that belongs to 32 random bytes.
    #[must_use]
    pub fn new(secret: Hash32) -> Self {
        let secret = StaticSecret::from(secret.0);
        let public = HostPublic(PublicKey::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// The half that others seal slices with; the control state names it for every node.
    #[must_use]
    pub fn public(&self) -> HostPublic {
        self.public
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKey({:?})", self.public)
    }
}

/// What a sealed slice is a slice of, and for whom. It opens under no other name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceName {
    /// The cluster of the shard.
    pub cluster: ClusterId,
    /// The shard whose head made the secret.
    pub shard: ShardId,
    /// The view that the secret belongs to.
    pub view: ViewNumber,
    /// The member that the slice is for.
    pub node: NodeId,
}

/// The cipher for one slice. Its key is used for nothing else, so the nonce is always the same.
/// `None` if the other side's point is one that gives the same key with every secret.
fn cipher(own: &StaticSecret, point: &HostPublic, host: &HostPublic, name: &SliceName) -> Option<ChaCha20Poly1305> {
    let public = HostPublic(PublicKey::from(own).to_bytes());
    let other = if public == *host { point } else { host };
    let common = own.diffie_hellman(&PublicKey::from(other.0));
    if !common.was_contributory() {
        return None;
    }
    let mut h = blake3::Hasher::new_derive_key("freebs 2026 key of a sealed slice");
    h.update(common.as_bytes());
    h.update(&point.0);
    h.update(&host.0);
    h.update(&name.cluster.0);
    h.update(&name.shard.volume.0.to_le_bytes());
    h.update(&name.shard.index.to_le_bytes());
    h.update(&name.view.0.to_le_bytes());
    h.update(&name.node.0.to_le_bytes());
    Some(ChaCha20Poly1305::new(&Key::from(*h.finalize().as_bytes())))
}

/// Seals a slice for the member with this host key, by a key of the view's own.
#[must_use]
pub fn seal(key: &StaticSecret, name: &SliceName, host: &HostPublic, slice: &Slice) -> Option<SealedSlice> {
    let point = HostPublic(PublicKey::from(key).to_bytes());
    let cipher = cipher(key, &point, host, name)?;
    let mut sealed = SealedSlice::default();
    let (body, end) = sealed.0.split_at_mut(SLICE_BYTES);
    body.copy_from_slice(&slice.0);
    let tag = cipher.encrypt_inout_detached(&Nonce::default(), b"", body.into()).ok()?;
    end.copy_from_slice(&tag);
    Some(sealed)
}

/// Opens what was sealed for this host under this name; `point` is the public half of the view's own key.
/// `None` if it was not, or was altered.
#[must_use]
pub fn open(host: &HostKey, name: &SliceName, point: &HostPublic, sealed: &SealedSlice) -> Option<Slice> {
    let cipher = cipher(&host.secret, point, &host.public, name)?;
    let mut slice = Slice([0; SLICE_BYTES]);
    slice.0.copy_from_slice(&sealed.0[..SLICE_BYTES]);
    let tag = <[u8; SEALED_SLICE_BYTES - SLICE_BYTES]>::try_from(&sealed.0[SLICE_BYTES..]).ok()?;
    cipher.decrypt_inout_detached(&Nonce::default(), b"", slice.0.as_mut_slice().into(), &Tag::from(tag)).ok()?;
    Some(slice)
}
