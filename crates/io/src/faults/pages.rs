//! Bytes in pages that copies share until one of them writes there, so that a copy of a whole device costs little.
//!
//! Invariants: a page that is `None` is all zeroes; bytes beyond `len` are zeroes, so growing again shows zeroes.

use std::rc::Rc;

/// Bytes of a page: small against what a test writes at once, and few enough pages to copy their table in no time.
const PAGE: usize = 16 << 10;

#[derive(Clone, Default)]
pub(super) struct Pages {
    pages: Vec<Option<Rc<[u8]>>>,
    len: u64,
}

impl Pages {
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.zero(len, self.len - len);
        }
        self.pages.resize((len as usize).div_ceil(PAGE), None);
        self.len = len;
    }

    /// Calls `each` with page, place in it, and place and length in the range, for every page of a range.
    fn split(at: u64, len: usize, mut each: impl FnMut(usize, usize, usize, usize)) {
        let mut done = 0;
        while done < len {
            let byte = at as usize + done;
            let n = (PAGE - byte % PAGE).min(len - done);
            each(byte / PAGE, byte % PAGE, done, n);
            done += n;
        }
    }

    /// Copies a range that lies inside into `out`, which is all zeroes.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        Self::split(at, out.len(), |page, from, to, n| {
            if let Some(p) = &self.pages[page] {
                out[to..to + n].copy_from_slice(&p[from..from + n]);
            }
        });
    }

    /// Writes a range that lies inside.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        Self::split(at, bytes.len(), |page, to, from, n| {
            let slot = self.pages[page].get_or_insert_with(|| Rc::from(vec![0; PAGE]));
            Rc::make_mut(slot)[to..to + n].copy_from_slice(&bytes[from..from + n]);
        });
    }

    /// Zeroes a range that lies inside.
    pub fn zero(&mut self, at: u64, len: u64) {
        Self::split(at, len as usize, |page, to, _, n| {
            let slot = &mut self.pages[page];
            if n == PAGE {
                *slot = None;
            } else if let Some(p) = slot {
                Rc::make_mut(p)[to..to + n].fill(0);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(p: &Pages) -> Vec<u8> {
        let mut out = vec![0; p.len() as usize];
        p.read(0, &mut out);
        out
    }

    #[test]
    fn copies_are_apart_and_cut_bytes_do_not_come_back() {
        let mut a = Pages::default();
        a.set_len(5 * PAGE as u64);
        let mut flat = vec![0u8; 5 * PAGE];
        for i in 0..40u64 {
            let (at, len) = (i * 1717 % 60_000, (i * 911 % 20_000) as usize);
            a.write(at, &vec![i as u8 + 1; len]);
            flat[at as usize..at as usize + len].fill(i as u8 + 1);
        }
        assert_eq!(all(&a), flat);
        let before = a.clone();
        a.zero(10_000, 30_000);
        flat[10_000..40_000].fill(0);
        assert_eq!(all(&a), flat);
        assert_ne!(all(&before), flat, "a copy keeps what it had");
        a.set_len(20_000);
        a.set_len(5 * PAGE as u64);
        flat[20_000..].fill(0);
        assert_eq!(all(&a), flat);
    }
}
