//! Content to object and back.
//!
//! Invariant: what [`unpack`] hands out has the name that was asked for.

use crate::format::{Id, Name, ObjectHeader, flags};
use crate::keys::{Keys, sha256};
use crate::limits::TAG_BYTES;
use freebs_io::Random;
use freebs_types::{Error, Result};
use std::borrow::Cow;

/// zstd's level: fast enough for a disk, and most of what higher ones gain.
const LEVEL: i32 = 3;

/// The name of a content.
#[must_use]
pub fn name_of(plain: &[u8], keys: Option<&Keys>) -> Name {
    keys.map_or_else(|| Name(sha256(&[plain])), |k| k.name(&[plain]))
}

/// The object of a content of 1 byte to 512 KiB.
///
/// # Errors
/// A bug of this program.
pub fn pack(plain: &[u8], name: Name, target: Id, keys: Option<&Keys>, random: &mut dyn Random) -> Result<Vec<u8>> {
    let smaller = zstd::bulk::compress(plain, LEVEL).ok().filter(|z| z.len() < plain.len());
    let mut flags = if smaller.is_some() { flags::ZSTD } else { 0 };
    let mut packed = smaller.unwrap_or_else(|| plain.to_vec());
    let Some(keys) = keys else {
        let header = ObjectHeader::new(target, flags, plain.len(), packed.len(), [0; 12]);
        return Ok(header.before(&packed));
    };
    flags |= flags::SEALED;
    let mut nonce = [0; 12];
    random.fill(&mut nonce);
    let header = ObjectHeader::new(target, flags, plain.len(), packed.len() + TAG_BYTES, nonce);
    keys.seal_object(name, nonce, header.bound(), &mut packed)?;
    Ok(header.before(&packed))
}

/// The content of an object of this name.
///
/// # Errors
/// `Corrupt` if it is damaged, or another one; `Invalid` if it is of another version of the format.
pub fn unpack(object: &[u8], name: Name, target: Id, keys: Option<&Keys>) -> Result<Vec<u8>> {
    let (header, packed) = ObjectHeader::decode(object, target)?;
    let plain_bytes = header.plain_bytes.get() as usize;
    let wrong = |why: &'static str| Error::corrupt(why);
    let packed = match (header.is_sealed(), keys) {
        (false, None) => Cow::Borrowed(packed),
        (true, Some(keys)) => {
            let opened = keys.open_object(name, header.nonce, header.bound(), packed);
            Cow::Owned(opened.ok_or_else(|| wrong("the object is damaged: it does not open"))?)
        }
        _ => return Err(wrong("the object is sealed where the target is not, or the reverse")),
    };
    let plain = if header.is_zstd() {
        let plain = zstd::bulk::decompress(&packed, plain_bytes);
        plain.map_err(|_| wrong("the object is damaged: it does not unpack"))?
    } else {
        packed.into_owned()
    };
    if plain.len() != plain_bytes || name_of(&plain, keys) != name {
        return Err(wrong("the object is damaged: its content has another hash than its name says"));
    }
    Ok(plain)
}
