//! Pages of runs that were read lately: a clock over a fixed number of places.
//!
//! Invariant: never more pages than `limit`. A page is immutable and its run's number is never used again, so nothing
//! here is ever out of date.

use bytes::Bytes;
use std::collections::BTreeMap;

pub(crate) type PageKey = (u64, u32);

#[derive(Debug)]
struct Place {
    key: PageKey,
    page: Bytes,
    used: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    limit: usize,
    at: BTreeMap<PageKey, usize>,
    places: Vec<Place>,
    hand: usize,
}

impl Cache {
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn get(&mut self, key: PageKey) -> Option<Bytes> {
        let p = &mut self.places[*self.at.get(&key)?];
        p.used = true;
        Some(p.page.clone())
    }

    pub fn put(&mut self, key: PageKey, page: Bytes) {
        if self.limit == 0 || self.at.contains_key(&key) {
            return;
        }
        let place = Place { key, page, used: false };
        if self.places.len() < self.limit {
            self.at.insert(key, self.places.len());
            self.places.push(place);
            return;
        }
        while std::mem::take(&mut self.places[self.hand].used) {
            self.hand = (self.hand + 1) % self.places.len();
        }
        self.at.remove(&self.places[self.hand].key);
        self.at.insert(key, self.hand);
        self.places[self.hand] = place;
        self.hand = (self.hand + 1) % self.places.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_there_is_never_too_much() {
        let mut c = Cache::new(4);
        for n in 0..100u32 {
            c.put((1, n), Bytes::copy_from_slice(&n.to_le_bytes()));
            assert!(c.at.contains_key(&(1, n)), "what was just read is there");
            c.get((1, 0));
            assert!(c.places.len() <= 4 && c.at.len() == c.places.len());
        }
        assert_eq!(c.get((1, 0)).unwrap(), 0u32.to_le_bytes()[..]);
        assert!(c.get((1, 50)).is_none());
        let mut none = Cache::new(0);
        none.put((1, 1), Bytes::new());
        assert!(none.get((1, 1)).is_none());
    }
}
