//! A table of things with keys that are never mistaken: a key of something that was removed finds nothing, even
//! when its slot is used again. Constant time, and in one order on every run.

/// Names one entry of one slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    index: u32,
    stamp: u32,
}

impl Key {
    /// Below every key.
    pub const MIN: Self = Self { index: 0, stamp: 0 };
}

struct Slot<T> {
    stamp: u32,
    value: Option<T>,
}

pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            assert!(slot.value.is_none(), "a free slot is empty");
            slot.value = Some(value);
            return Key { index, stamp: slot.stamp };
        }
        let index = u32::try_from(self.slots.len()).expect("windows keep tables far below 2^32 entries");
        self.slots.push(Slot { stamp: 1, value: Some(value) });
        Key { index, stamp: 1 }
    }

    pub fn get(&self, key: Key) -> Option<&T> {
        let slot = self.slots.get(key.index as usize)?;
        if slot.stamp == key.stamp { slot.value.as_ref() } else { None }
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.stamp == key.stamp { slot.value.as_mut() } else { None }
    }

    pub fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.stamp != key.stamp {
            return None;
        }
        let value = slot.value.take()?;
        slot.stamp = slot.stamp.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_the_past_finds_nothing() {
        let mut slab = Slab::new();
        let a = slab.insert('a');
        assert_eq!(slab.remove(a), Some('a'));
        let b = slab.insert('b');
        assert_ne!(a, b);
        assert!(slab.get(a).is_none() && slab.get_mut(a).is_none() && slab.remove(a).is_none());
        assert_eq!(slab.get(b), Some(&'b'));
    }
}
