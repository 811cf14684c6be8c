//! A seat's store on a file with forged pages and superblocks.

use super::device::is_worn;
use super::image::{EDIT_BYTES, local};
use super::seats::{CLUSTER, NODE};
use crate::cow::CowDevice;
use crate::input::{Choices, Input};
use crate::{seal, signal};
use core::mem::offset_of;
use freebs_consensus::machine::{Machine, Proposal};
use freebs_consensus::pages::{PAGE_BYTES, PageStamp, STAMP_BYTES, UNIT_BYTES};
use freebs_consensus::store::{Contents, Kept};
use freebs_consensus::superblock::SUPERBLOCK_BYTES;
use freebs_consensus::types::{Entry, Membership, SnapshotMeta, StoredMembership, Vote, log_id};
use freebs_consensus::{Options, Seat, Store, limits};
use freebs_control::{Command, State};
use freebs_io::{Device, Random};
use freebs_types::{Error, ErrorKind, StartNumber, VolumeId};
use openraft::EntryPayload;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::OnceLock;

const LIMIT: u64 = 8 << 20;
const EDITS_MAX: usize = 16;
/// The start that the image was written in.
const START: u64 = 3;

/// Numbers in a row.
struct Counting(u64);

impl Random for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            self.0 = crate::rng::mix(self.0);
            chunk.copy_from_slice(&self.0.to_le_bytes()[..chunk.len()]);
        }
    }
}

fn options(start: u64) -> Options {
    let (start, noted) = (StartNumber(start), StartNumber(1));
    Options { cluster: CLUSTER, node: NODE, start, noted, room: 16 << 10, mutant: None }
}

/// Of a start; areas of different starts never have the same number.
fn random(start: u64) -> Box<dyn Random> {
    Box::new(Counting(start << 32))
}

fn entry(index: u64) -> Entry {
    let payload = match index % 4 {
        0 => EntryPayload::Blank,
        1 => {
            let seats: BTreeMap<Seat, ()> =
                (1..4).map(|n| (Seat { node: freebs_types::NodeId(n), store: n * 77 }, ())).collect();
            let voters = vec![seats.keys().copied().collect()];
            EntryPayload::Membership(Membership::new(voters, seats).expect("three voters"))
        }
        2 => EntryPayload::Normal(Proposal::OpenSession),
        _ => {
            let command = Box::new(Command::ResizeVolume { volume: VolumeId(index), size: 1 << 30 });
            EntryPayload::Normal(Proposal::Command { session: 2, number: index, floor: 1, command })
        }
    };
    Entry { log_id: log_id(2, index), payload }
}

/// A store with a snapshot, a log behind it, a vote, and batches of each kind of record.
fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        local(async {
            let device = CowDevice::new(&[], 512, LIMIT);
            let store = Store::found(device.clone(), options(2), random(2), &State::new(CLUSTER)).await.expect("blank");
            let seat = store.seat();
            drop(store);
            let store = Store::open(device.clone(), options(START), random(START)).await.expect("just made");
            store.save_vote(Vote::new_committed(2, seat)).await.expect("written");
            store.append((1..9).map(entry).collect()).await.expect("written");
            let mut machine = Machine::new(CLUSTER);
            let first = Entry { log_id: log_id(0, 0), payload: EntryPayload::Blank };
            std::iter::once(first).chain((1..5).map(entry)).for_each(|e| {
                machine.apply(&e, None);
            });
            let meta = SnapshotMeta { last_log_id: machine.applied, last_membership: StoredMembership::default() };
            let kept = Kept { meta, bytes: Rc::new(machine.encode()) };
            store.save_snapshot(kept, false).await.expect("written");
            store.purge(log_id(2, 3)).await.expect("written");
            store.append((9..14).map(entry).collect()).await.expect("written");
            store.truncate_after(Some(log_id(2, 11))).await.expect("written");
            store.save_committed(log_id(2, 9));
            store.append((12..14).map(entry).collect()).await.expect("written");
            device.get(0, device.len() as usize)
        })
    })
}

/// Changes the device: a raw value, a superblock, a page's stamp or records, a page in another's place.
fn edit(device: &CowDevice, bytes: &[u8]) {
    let mut c = Choices(bytes);
    let (what, len) = (c.number(1) as u8, 1 + c.number(1) as usize % 8);
    let (which, field, value) = (c.number(2) as usize, c.number(4) as usize, c.number(8).to_le_bytes());
    let used: Vec<u64> = (0..image().len() as u64 / PAGE_BYTES as u64)
        .filter(|p| image()[*p as usize * PAGE_BYTES + 4..].starts_with(&freebs_consensus::pages::PAGE_MAGIC))
        .collect();
    let page_of = |n: usize| used[n % used.len()];
    let put = |bytes: &mut [u8], from: usize, room: usize| {
        let at = from + field % room.saturating_sub(len).max(1);
        bytes[at..at + len].copy_from_slice(&value[..len]);
    };
    match what % 8 {
        0 => device.put(field as u64 % image().len() as u64, &value[..len]),
        1 | 2 => {
            for copy in 0..2u64 {
                if what % 8 == 2 && copy != which as u64 % 2 {
                    continue;
                }
                let at = copy * UNIT_BYTES as u64;
                let mut sb = device.get(at, SUPERBLOCK_BYTES);
                put(&mut sb, 8, 68);
                seal::fixed(&mut sb, SUPERBLOCK_BYTES);
                device.put(at, &sb);
            }
        }
        n @ 3..=6 => {
            let at = page_of(which) * PAGE_BYTES as u64;
            let mut page = device.get(at, PAGE_BYTES);
            let used = usize::from(u16::from_le_bytes([
                page[offset_of!(PageStamp, used)],
                page[offset_of!(PageStamp, used) + 1],
            ]));
            let room =
                if n == 3 { (8, STAMP_BYTES - 8) } else { (STAMP_BYTES, used.clamp(8, PAGE_BYTES - STAMP_BYTES)) };
            put(&mut page, room.0, room.1);
            seal::store_page(&mut page);
            device.put(at, &page);
        }
        _ => {
            let (from, to) = (page_of(which), page_of(field));
            let mut page = device.get(from * PAGE_BYTES as u64, PAGE_BYTES);
            let at = offset_of!(PageStamp, page);
            page[at..at + 4].copy_from_slice(&(to as u32).to_le_bytes());
            seal::store_page(&mut page);
            device.put(to * PAGE_BYTES as u64, &page);
        }
    }
}

fn fine(e: &Error) {
    assert!(!matches!(e.kind, ErrorKind::Bug), "damage is no bug of the program: {e:?}");
}

/// Statements of a store about itself.
fn told(c: &Contents) -> String {
    let snapshot = c.snapshot.as_ref().map(|s| (s.meta.clone(), crate::rng::hash(&s.bytes)));
    let entries: Vec<_> = c.entries.values().collect();
    format!("{:?} {:?} {:?} {entries:?} {snapshot:?}", c.vote, c.committed, c.purged)
}

/// Opens, works a little, and opens again.
pub fn open(data: &[u8]) {
    let input = Input::of(data);
    let device = CowDevice::new(image(), 512, LIMIT);
    for bytes in input.rest.chunks_exact(EDIT_BYTES).take(EDITS_MAX) {
        edit(&device, bytes);
    }
    local(async {
        let store = Store::open(device.clone(), options(START + 1), random(START + 1)).await;
        signal::ended("store", &store.as_ref().map(|_| ()).map_err(Clone::clone));
        let store = match store {
            Ok(store) => store,
            Err(e) => return fine(&e),
        };
        let found = store.read(told);
        store.read(look);
        drop(store);
        let store = match Store::open(device.clone(), options(START + 2), random(START + 2)).await {
            Err(e) if is_worn(&e) => return,
            second => second.expect("what opened opens again"),
        };
        assert_eq!(store.read(told), found, "a second start finds the same");
        // A seat votes and appends.
        let next = store.read(|c| c.last().map_or(0, |l| l.index() + 1));
        store.save_vote(Vote::new(7, store.seat())).await.expect("written");
        store.append(vec![Entry { log_id: log_id(7, next), payload: EntryPayload::Blank }]).await.expect("written");
        let written = store.read(told);
        drop(store);
        let store = match Store::open(device, options(START + 3), random(START + 3)).await {
            Err(e) if is_worn(&e) => return,
            third => third.expect("what was written to opens again"),
        };
        assert_eq!(store.read(told), written);
    });
}

/// The log has no hole, and the snapshot either decodes or is refused.
fn look(c: &Contents) {
    let indexes: Vec<u64> = c.entries.keys().copied().collect();
    assert!(indexes.windows(2).all(|w| w[0] + 1 == w[1]), "a log without a hole");
    signal::saw("entries", indexes.len() as u64);
    let Some(kept) = &c.snapshot else { return };
    assert!(kept.bytes.len() <= limits::SNAPSHOT_BYTES_MAX);
    let machine = Machine::decode(&kept.bytes, CLUSTER);
    signal::ended("snapshot", &machine);
    let Ok(mut machine) = machine else { return };
    // As a start does it: what follows the snapshot is applied.
    while let Some(e) = c.entries.get(&machine.applied.map_or(0, |a| a.index() + 1)) {
        machine.apply(e, None);
    }
}

pub fn seeds(out: &mut crate::seeds::Seeds) {
    use super::image::edit as bytes;
    out.add("seat-store", "whole", Input::bytes(false, 0, 0, &[]));
    for what in 0..8 {
        let edits: Vec<u8> = (0..2).flat_map(|i| bytes(what, 7, 3 + i * 5, 8 + u32::from(i) * 8, 5)).collect();
        out.add("seat-store", format!("edit-{what}"), Input::bytes(false, 0, 0, &edits));
    }
}
