//! Secrets of views: how one is made, cut into slices for the members, sealed under their host keys, and put together
//! again by a head that has gathered enough of them (DESIGN section 6, Lithium section 2.2).
//!
//! Pure functions: all chance comes in as a seed. Invariants: a slice is sealed for one member, one shard and one view,
//! and opens for no other; fewer slices than the threshold say nothing of the secret; a secret that was put together
//! is handed out only if its hash is the one that the view frame names.

mod host;
mod share;

pub use host::{HostKey, SliceName, open, seal};
pub use share::{join, split};

use freebs_types::{Hash32, HostPublic, NodeId, SealedSlice, ShardId, ViewNumber};
use x25519_dalek::{PublicKey, StaticSecret};

/// A new view's secret and what its frame says of it.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The secret itself: access tokens of the view's frames are made with it. The head alone keeps it.
    pub secret: Hash32,
    /// Public half of the key that all slices were sealed with. The other half is forgotten.
    pub point: HostPublic,
    /// In the order of the members.
    pub slices: Vec<SealedSlice>,
}

/// Makes the secret of a view from a random seed, and a slice for each member: `threshold` of them are needed.
/// `None` if the threshold or the number of members is none that a view can have.
#[must_use]
pub fn share(
    seed: &Hash32,
    cluster: freebs_types::ClusterId,
    (shard, view): (ShardId, ViewNumber),
    threshold: usize,
    members: &[(NodeId, HostPublic)],
) -> Option<Shared> {
    let derived = |context: &str| {
        let mut h = blake3::Hasher::new_derive_key(context);
        h.update(&seed.0);
        h.update(&shard.volume.0.to_le_bytes());
        h.update(&shard.index.to_le_bytes());
        h.update(&view.0.to_le_bytes());
        *h.finalize().as_bytes()
    };
    let secret = Hash32(derived("freebs 2026 secret of a view"));
    let slices = split(&secret, threshold, members.len(), &Hash32(derived("freebs 2026 slices of a secret")))?;
    let key = StaticSecret::from(derived("freebs 2026 key that seals slices"));
    let point = HostPublic(PublicKey::from(&key).to_bytes());
    let sealed = members.iter().zip(&slices).map(|((node, public), slice)| {
        let name = SliceName { cluster, shard, view, node: *node };
        seal(&key, &name, public, slice)
    });
    Some(Shared { secret, point, slices: sealed.collect::<Option<_>>()? })
}
