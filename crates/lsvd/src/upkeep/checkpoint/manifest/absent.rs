//! Frames that were never in a shard's log, in a manifest.

use super::{ABSENT, In, Out};
use crate::shard::Shard;
use freebs_types::Sequence;

impl Out {
    /// Frames that were never in the log.
    pub fn absent(&mut self, s: &Shard) {
        let Some((since, upto)) = s.absent else { return };
        let item = self.begin(ABSENT);
        self.u32(s.slot);
        self.u64(since.0);
        self.u64(upto.0);
        self.end(item);
    }
}

impl In<'_> {
    pub fn absent(&mut self) -> Option<(u32, (Sequence, Sequence))> {
        let (slot, since, upto) = (self.u32()?, Sequence(self.number()?), Sequence(self.number()?));
        (since < upto).then_some((slot, (since, upto)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Begun, Manifest};
    use super::*;
    use crate::log::place::NUMBER_MAX;
    use freebs_types::ShardId;

    #[test]
    fn frames_that_can_not_be_missing_are_refused() {
        let read = |since: u64, upto: u64| {
            let (mut out, mut s) = (Out::default(), Shard::new(ShardId::new(1, 0), 7));
            s.absent = Some((Sequence(since), Sequence(upto)));
            out.shard(&s, 1);
            out.absent(&s);
            out.finish(Begun { written: 1, opened: 1 }, 1, 1, 9);
            Manifest::decode(&out.bytes).map(|m| assert_eq!(m.absent, [(7, (Sequence(since), Sequence(upto)))])).is_ok()
        };
        assert!(read(0, 1) && read(7, NUMBER_MAX - 1));
        assert!(!read(7, 7) && !read(8, 7) && !read(7, NUMBER_MAX));
    }
}
