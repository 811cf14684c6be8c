//! Key pairs for signatures: Ed25519, made of 32 random bytes.

use core::fmt;
use freebs_types::{Error, Hash32, HostPublic, Result};
use ring::signature::{Ed25519KeyPair, KeyPair};
use zeroize::Zeroizing;

/// A key pair of a node or of an authority. The secret half is wiped when it is dropped.
pub struct SigningKey {
    seed: Zeroizing<[u8; 32]>,
    public: HostPublic,
}

impl SigningKey {
    /// The pair that belongs to 32 random bytes.
    pub fn new(seed: Hash32) -> Result<Self> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed.0)
            .map_err(|e| Error::bug(format!("no key comes of 32 random bytes: {e}")))?;
        let public = <[u8; 32]>::try_from(pair.public_key().as_ref())
            .map_err(|_| Error::bug("a public key of another length"))?;
        Ok(Self { seed: Zeroizing::new(seed.0), public: HostPublic(public) })
    }

    /// The half that others know it by.
    #[must_use]
    pub fn public(&self) -> HostPublic {
        self.public
    }

    /// The 32 bytes that it was made of, for its file alone.
    #[must_use]
    pub fn seed(&self) -> Hash32 {
        Hash32(*self.seed)
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({:?})", self.public)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first key of RFC 8032, section 7.1.
    #[test]
    fn a_published_key() {
        let hex = |text: &str| {
            let byte = |i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap();
            core::array::from_fn::<u8, 32, _>(byte)
        };
        let seed = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        let key = SigningKey::new(Hash32(seed)).unwrap();
        assert_eq!((key.public(), key.seed()), (HostPublic(public), Hash32(seed)));
        assert!(!format!("{key:?}").contains("9d61"), "the secret half is not for logs");
    }
}
