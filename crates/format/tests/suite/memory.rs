//! Parsing never allocates much more than the bytes it was given, whatever their counts say.

use crate::common::any::{frame, message};
use crate::common::*;
use bytes::BytesMut;
use freebs_format::disk::{INDEX_ENTRY_FIXED, IndexEntry};
use freebs_format::wire::Message;
use freebs_format::*;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, with the bytes counted that each thread asks for.
struct Counting;

// SAFETY: every call is passed on unchanged; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|a| a.set(a.get() + layout.size()));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that `f` allocates, freed or not.
fn allocated<T>(f: impl FnOnce() -> T) -> usize {
    let before = ALLOCATED.get();
    let result = f();
    let after = ALLOCATED.get();
    drop(result);
    after - before
}

/// A struct in memory is at most so much larger than on the wire; beside it, error texts and book-keeping.
fn allowed(input: usize) -> usize {
    3 * input + 1024
}

#[test]
fn counts_that_lie_allocate_nothing() {
    let m = Message::Frames { forward: Vec::new(), frames: vec![data_frame()] };
    let all = all_messages().into_iter().chain([m]);
    for m in all {
        let (head, payload) = wire_bytes(&m);
        for at in (16..head.len() - 3).step_by(4) {
            for value in [1 << 16, 1 << 24, u32::MAX] {
                let mut bad = head.clone();
                bad[at..at + 4].copy_from_slice(&value.to_le_bytes());
                bad.extend_from_slice(&payload);
                reseal_message(&mut bad);
                let mut buf = BytesMut::from(&bad[..]);
                let used = allocated(|| Message::decode(&mut buf));
                assert!(used <= allowed(bad.len()), "{}, byte {at} = {value}: {used} bytes", m.name());
            }
        }
    }
}

#[test]
fn bodies_that_lie_allocate_nothing() {
    let data = [block(1)];
    for body in [view_body().encode(), attach_body().encode(), mark_body().encode(), carry_body(&data).encode()] {
        for at in (0..body.len() - 3).step_by(2) {
            let mut bad = body.clone();
            bad[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            let most = allowed(bad.len());
            assert!(allocated(|| ViewBody::decode(&bad)) <= most);
            assert!(allocated(|| MarkBody::decode(&bad)) <= most);
            assert!(allocated(|| CarryBody::decode(&bad, 1)) <= most);
        }
    }
}

#[test]
fn a_head_is_parsed_without_a_copy() {
    let mut bytes = data_frame().head.bytes().clone();
    assert_eq!(allocated(|| FrameHead::parse(&mut bytes)), 0);
}

proptest! {
    #[test]
    fn hostile_bytes_allocate_what_they_are(
        m in message(), f in frame(), edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = whole_message(&m);
        let mut index = BytesMut::new();
        let mut head = f.head.bytes().to_vec();
        IndexEntry { head_at: 0, data_at: 0, append: 1, flags: 0, head: f.head }.encode(&mut index);
        for (at, value) in edits {
            let i = 16 + at.index(bytes.len() - 16);
            bytes[i] = value;
            let i = 4 + at.index(head.len() - 4);
            head[i] = value;
        }
        reseal_message(&mut bytes);
        reseal_frame(&mut head);
        index.truncate(INDEX_ENTRY_FIXED);
        pack(&head, &mut index);
        let mut buf = BytesMut::from(&bytes[..]);
        prop_assert!(allocated(|| Message::decode(&mut buf)) <= allowed(bytes.len()));
        let (index, unpacked) = (index.freeze(), INDEX_ENTRY_FIXED + head.len());
        let used = allocated(|| {
            let entries = IndexEntry::decode_all(index.clone(), 1, unpacked);
            for e in entries.iter().flatten() {
                let _ = MarkBody::decode(e.head.body());
                let _ = CarryBody::decode(e.head.body(), e.head.header().data_blocks());
            }
        });
        prop_assert!(used <= 2 * allowed(unpacked));
    }
}
