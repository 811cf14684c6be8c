//! The key of a target whose objects are sealed on the way there: names that tell nothing, and AES-256-GCM.
//!
//! Each object is sealed with a key of its own, which is the HMAC of its name; each manifest with the HMAC of its backup's
//! identity. Nonces are random. So a nonce would have to repeat among the few times that the same content is stored, and
//! the number of objects has no bound that matters.

use crate::format::{Id, Name};
use freebs_format::crc32c;
use freebs_io::Random;
use freebs_types::{Error, Result};
use ring::{aead, digest, hmac};
use zeroize::Zeroizing;

/// The first word of a key file.
const KEY_FILE_WORD: &str = "freebs-backup-key-1";
/// Bytes of a key file, at most.
pub const KEY_FILE_BYTES_MAX: usize = 256;

/// The SHA-256 of some parts, one after the other.
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = digest::Context::new(&digest::SHA256);
    parts.iter().for_each(|p| hash.update(p));
    let mut out = [0; 32];
    out.copy_from_slice(hash.finish().as_ref());
    out
}

fn mac(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = hmac::Context::with_key(key);
    parts.iter().for_each(|p| hash.update(p));
    let mut out = [0; 32];
    out.copy_from_slice(hash.sign().as_ref());
    out
}

/// All that follows from the key in a key file.
pub struct Keys {
    id: Id,
    names: hmac::Key,
    objects: hmac::Key,
    manifests: hmac::Key,
}

impl Keys {
    /// From the 32 bytes of the key.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Self {
        let root = hmac::Key::new(hmac::HMAC_SHA256, key);
        let derived = |word: &str| Zeroizing::new(mac(&root, &[word.as_bytes()]));
        let key_of = |word: &str| hmac::Key::new(hmac::HMAC_SHA256, derived(word).as_slice());
        let mut id = Id::NONE;
        id.0.copy_from_slice(&derived("freebs backup 1 identity")[..16]);
        Self {
            id,
            names: key_of("freebs backup 1 names"),
            objects: key_of("freebs backup 1 objects"),
            manifests: key_of("freebs backup 1 manifests"),
        }
    }

    /// The text of a new key file, with a random key.
    #[must_use]
    pub fn new_file(random: &mut dyn Random) -> Zeroizing<String> {
        let mut key = Zeroizing::new([0; 32]);
        random.fill(key.as_mut_slice());
        let shown = Zeroizing::new(Name(*key).to_string());
        Zeroizing::new(format!("{KEY_FILE_WORD} {} {:08x}\n", shown.as_str(), crc32c(key.as_slice())))
    }

    /// From the text of a key file.
    ///
    /// # Errors
    /// If it is none, or was altered.
    pub fn of_file(text: &str) -> Result<Self> {
        let wrong = |why: &str| Error::invalid(format!("this is no key file: {why}; `freebs backup key` makes one"));
        let mut words = text.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first != KEY_FILE_WORD {
            return Err(wrong(&format!("it does not begin with {KEY_FILE_WORD}")));
        }
        let (key, sum) = (words.next().and_then(Name::parse), words.next());
        let (Some(key), Some(sum), None) = (key, sum, words.next()) else {
            return Err(wrong("it has not a key of 64 hexadecimal digits and a checksum of 8"));
        };
        let key = Zeroizing::new(key.0);
        if sum != format!("{:08x}", crc32c(key.as_slice())) {
            return Err(wrong("its checksum is wrong, so it was altered"));
        }
        Ok(Self::new(&key))
    }

    /// Identity of the key, which tells nothing about it.
    #[must_use]
    pub fn id(&self) -> Id {
        self.id
    }

    /// The name of a content.
    pub(crate) fn name(&self, parts: &[&[u8]]) -> Name {
        Name(mac(&self.names, parts))
    }

    fn key_of(&self, from: &hmac::Key, what: &[u8]) -> Result<aead::LessSafeKey> {
        let key = Zeroizing::new(mac(from, &[what]));
        let key = aead::UnboundKey::new(&aead::AES_256_GCM, key.as_slice());
        key.map(aead::LessSafeKey::new).map_err(|_| Error::bug("a key of another length"))
    }

    fn seal(key: &aead::LessSafeKey, nonce: [u8; 12], with: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        let sealed = key.seal_in_place_append_tag(nonce, aead::Aad::from(with), bytes);
        sealed.map_err(|_| Error::bug("bytes that can't be sealed"))
    }

    fn open(key: &aead::LessSafeKey, nonce: [u8; 12], with: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = sealed.to_vec();
        let len =
            key.open_in_place(aead::Nonce::assume_unique_for_key(nonce), aead::Aad::from(with), &mut bytes).ok()?.len();
        bytes.truncate(len);
        Some(bytes)
    }

    /// Seals the packed content of an object; `header` is bound to it.
    pub(crate) fn seal_object(&self, name: Name, nonce: [u8; 12], header: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
        Self::seal(&self.key_of(&self.objects, &name.0)?, nonce, header, bytes)
    }

    pub(crate) fn open_object(&self, name: Name, nonce: [u8; 12], header: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        Self::open(&self.key_of(&self.objects, &name.0).ok()?, nonce, header, sealed)
    }

    /// Seals the body of a manifest.
    pub(crate) fn seal_manifest(&self, backup: Id, nonce: [u8; 12], header: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
        Self::seal(&self.key_of(&self.manifests, &backup.0)?, nonce, header, bytes)
    }

    pub(crate) fn open_manifest(&self, backup: Id, nonce: [u8; 12], header: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
        Self::open(&self.key_of(&self.manifests, &backup.0).ok()?, nonce, header, sealed)
    }
}

impl core::fmt::Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Keys({})", self.id)
    }
}
