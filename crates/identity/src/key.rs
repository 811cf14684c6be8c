//! Key pairs for signatures: Ed25519, made of 32 random bytes.

use core::fmt;
use freebs_types::{Error, Hash32, HostPublic, Result};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

/// A key pair of a node or of an authority. The secret half that is kept here is wiped when this is dropped; copies that
/// were made on the way from and to its file are not.
pub struct SigningKey {
    seed: Zeroizing<[u8; 32]>,
    public: HostPublic,
}

impl SigningKey {
    /// The pair that belongs to 32 random bytes.
    pub fn new(seed: &Hash32) -> Result<Self> {
        let pair = pair(&seed.0)?;
        let public = <[u8; 32]>::try_from(pair.public_key().as_ref())
            .map_err(|_| Error::bug("a public key of another length"))?;
        Ok(Self { seed: Zeroizing::new(seed.0), public: HostPublic(public) })
    }

    /// The half that others know it by.
    #[must_use]
    pub fn public(&self) -> HostPublic {
        self.public
    }

    /// The secret half.
    pub(crate) fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// Its signature of these bytes.
    pub fn sign(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        Ok(pair(&self.seed)?.sign(bytes).as_ref().to_vec())
    }
}

fn pair(seed: &[u8; 32]) -> Result<Ed25519KeyPair> {
    Ed25519KeyPair::from_seed_unchecked(seed).map_err(|e| Error::bug(format!("no key comes of 32 random bytes: {e}")))
}

/// True if whoever has the secret half of this key has signed these bytes.
#[must_use]
pub fn is_signed(by: HostPublic, bytes: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, by.0).verify(bytes, signature).is_ok()
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
        let key = SigningKey::new(&Hash32(seed)).unwrap();
        assert_eq!(key.public(), HostPublic(public));
        // Its signature of nothing, from there as well.
        let signature = key.sign(b"").unwrap();
        assert_eq!(signature[..4], [0xe5, 0x56, 0x43, 0x00]);
        assert!(is_signed(key.public(), b"", &signature) && !is_signed(key.public(), b"x", &signature));
        assert!(!is_signed(HostPublic([1; 32]), b"", &signature) && !is_signed(key.public(), b"", &signature[1..]));
        assert!(!format!("{key:?}").contains("9d61"), "the secret half is not for logs");
    }
}
