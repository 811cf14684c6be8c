//! The content of a segment: of each shard the frames of the sequence, lowest and highest.
//!
//! Invariant: shards are in order, each once. While a segment is filled they are in a tree; when it is closed they are
//! packed, a few bytes each: of many shards most segments have frames of all.

use crate::log::place::NUMBER_MAX;
use freebs_types::{Sequence, ShardId};
use std::collections::BTreeMap;

/// Frames of the sequence of one shard, lowest and highest; both 0 if there are only local ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub min: Sequence,
    pub max: Sequence,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    filling: BTreeMap<ShardId, Content>,
    /// Per shard the change of its volume, its index, the lowest sequence, and how far the highest lies above it, as
    /// varints. The others are in `filling`.
    packed: Box<[u8]>,
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Entries of packed bytes; ends where they make no sense.
struct Packed<'a> {
    bytes: &'a [u8],
    volume: u64,
}

impl Packed<'_> {
    fn number(&mut self) -> Option<u64> {
        let (mut n, mut shift) = (0, 0);
        loop {
            let (byte, rest) = self.bytes.split_first().filter(|_| shift < u64::BITS)?;
            self.bytes = rest;
            n |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
    }
}

impl Iterator for Packed<'_> {
    type Item = (ShardId, Content);

    fn next(&mut self) -> Option<Self::Item> {
        self.volume = self.volume.wrapping_add(self.number()?);
        let index = u32::try_from(self.number()?).ok()?;
        let min = self.number()?;
        let max = self.number()?.checked_add(min).filter(|max| *max < NUMBER_MAX)?;
        Some((ShardId::new(self.volume, index), Content { min: Sequence(min), max: Sequence(max) }))
    }
}

/// Packed bytes without the entry of a shard; `None` if there is none.
fn without(packed: &[u8], shard: ShardId) -> Option<Vec<u8>> {
    let mut entries = Packed { bytes: packed, volume: 0 };
    loop {
        let (from, before) = (packed.len() - entries.bytes.len(), entries.volume);
        let (id, _) = entries.next().filter(|(id, _)| *id <= shard)?;
        if id == shard {
            let mut out = packed[..from].to_vec();
            if let Some(change) = entries.number() {
                put(&mut out, entries.volume.wrapping_add(change).wrapping_sub(before));
                out.extend_from_slice(entries.bytes);
            }
            return Some(out);
        }
    }
}

impl Contents {
    fn packed(&self) -> Packed<'_> {
        Packed { bytes: &self.packed, volume: 0 }
    }

    /// All shards: in order, once the segment is packed.
    pub fn iter(&self) -> impl Iterator<Item = (ShardId, Content)> {
        self.packed().chain(self.filling.iter().map(|(id, c)| (*id, *c)))
    }

    pub fn get(&self, shard: ShardId) -> Option<Content> {
        let found = self.filling.get(&shard).copied();
        found.or_else(|| self.packed().take_while(|(id, _)| *id <= shard).find(|(id, _)| *id == shard).map(|(_, c)| c))
    }

    pub fn is_empty(&self) -> bool {
        self.filling.is_empty() && self.packed.is_empty()
    }

    pub fn has(&self, shard: ShardId) -> bool {
        self.get(shard).is_some()
    }

    /// A frame of the shard lies there; `sequence` unless it is a local one.
    pub fn note(&mut self, shard: ShardId, sequence: Option<Sequence>) {
        self.unpack();
        let c = self.filling.entry(shard).or_default();
        if let Some(s) = sequence {
            c.min = if c.max.0 == 0 { s } else { c.min.min(s) };
            c.max = c.max.max(s);
            assert!(c.min <= s && s <= c.max, "the frames of a segment lie between its lowest and its highest");
        }
    }

    /// Of many shards in many segments one goes at a time, so what is packed stays so.
    pub fn remove(&mut self, shard: ShardId) {
        self.filling.remove(&shard);
        if let Some(rest) = without(&self.packed, shard) {
            self.packed = rest.into();
        }
    }

    fn unpack(&mut self) {
        if !self.packed.is_empty() {
            let packed = std::mem::take(&mut self.packed);
            self.filling.extend(Packed { bytes: &packed, volume: 0 });
        }
    }

    /// Nothing comes to it any more, or not for now.
    pub fn pack(&mut self) {
        if !self.filling.is_empty() {
            self.unpack();
            self.packed = self.to_bytes().into();
            self.filling.clear();
        }
    }

    /// The packed form, as it goes into a manifest.
    pub fn to_bytes(&self) -> Vec<u8> {
        if self.filling.is_empty() {
            return self.packed.to_vec();
        }
        let (mut out, mut volume) = (Vec::new(), 0u64);
        for (id, c) in &self.filling {
            put(&mut out, id.volume.0.wrapping_sub(volume));
            put(&mut out, u64::from(id.index));
            put(&mut out, c.min.0);
            put(&mut out, c.max.0 - c.min.0);
            volume = id.volume.0;
        }
        out
    }

    /// From bytes of a manifest; `None` if they make no sense.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut entries = Packed { bytes, volume: 0 };
        let in_order = entries.by_ref().map(|(id, _)| id).is_sorted_by(|a, b| a < b);
        (entries.bytes.is_empty() && in_order).then(|| Self { filling: BTreeMap::new(), packed: bytes.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_or_not_it_says_the_same() {
        let id = |n: u64| ShardId::new(n / 3 * (1 << 60), (n % 3 * 1000) as u32);
        let mut c = Contents::default();
        for n in 0..40u64 {
            c.note(id(n % 20), (n % 3 > 0).then_some(Sequence(1 + n * n * 1_000_003)));
        }
        let list: Vec<_> = c.iter().collect();
        c.pack();
        assert_eq!(c.iter().collect::<Vec<_>>(), list);
        let bytes = c.to_bytes();
        assert_eq!(Contents::from_bytes(&bytes).unwrap().iter().collect::<Vec<_>>(), list);
        assert!(
            (1..bytes.len()).all(|n| Contents::from_bytes(&bytes[..n]).is_none_or(|c| c.iter().count() < list.len()))
        );
        assert!(c.filling.is_empty() && c.packed.len() < 20 * 12, "{}", c.packed.len());
        for (id, content) in &list {
            assert_eq!(c.get(*id), Some(*content));
        }
        assert!(!c.has(id(21)) && !c.has(ShardId::new(0, 1)) && !c.has(ShardId::new(u64::MAX, 0)));
        for gone in &list {
            let mut some = c.clone();
            some.remove(gone.0);
            some.remove(gone.0);
            let left: Vec<_> = list.iter().filter(|e| e.0 != gone.0).copied().collect();
            assert_eq!((some.iter().collect::<Vec<_>>(), some.filling.len()), (left, 0));
        }
        c.remove(list[3].0);
        assert!(!c.packed.is_empty() && !c.has(list[3].0) && c.iter().count() == list.len() - 1);
        c.note(list[3].0, Some(Sequence(9)));
        assert_eq!(c.get(list[3].0), Some(Content { min: Sequence(9), max: Sequence(9) }));
        assert_eq!(c.iter().count(), list.len());
    }
}
