//! A start of a node: its number, and what it says.

use super::{cluster, register};
use freebs_agent::{About, CameWith, highest_start};
use freebs_control::{Command, Mutant};
use freebs_format::disk::{DISK_VERSION, SUPERBLOCK_MAGIC, Superblock};
use freebs_types::{ErrorKind, HostPublic, NodeId, StartNumber, limits};

const NODE: NodeId = NodeId(2);

fn came_with(numbers: &[u64]) -> CameWith {
    CameWith::new(NODE, numbers.iter().map(|n| StartNumber(*n)).collect())
}

fn superblock(start: u64) -> Vec<u8> {
    let superblock = Superblock {
        magic: SUPERBLOCK_MAGIC,
        version: DISK_VERSION.into(),
        length: 256.into(),
        features: 0.into(),
        sector: 4096.into(),
        cluster: [7; 16],
        device: [8; 16],
        node: 2.into(),
        worker: 0.into(),
        workers: 1.into(),
        reserved0: 0.into(),
        segment_bytes: limits::SEGMENT_BYTES_MIN.into(),
        size_limit: (64 * limits::SEGMENT_BYTES_MIN).into(),
        revision: start.into(),
        start: start.into(),
        created: 0.into(),
        reserved: [0; 148],
        crc: 0.into(),
    };
    superblock.encode()
}

#[test]
fn the_highest_number_that_can_be_read_counts() {
    assert_eq!(highest_start(Vec::<Vec<u8>>::new()), StartNumber(0));
    let mut damaged = superblock(9);
    damaged[200] ^= 1;
    assert_eq!(highest_start([&damaged, &vec![0; 4096], &vec![]]), StartNumber(0));
    assert_eq!(highest_start([superblock(3), damaged, superblock(4), superblock(2)]), StartNumber(4));
}

#[test]
fn all_devices_of_a_start_get_one_number_and_the_node_says_it() {
    let mut state = cluster();
    register(&mut state, 2, 5);
    // One of the devices was written by a start that was not registered any more.
    let devices = came_with(&[5, 6]);
    devices.check(&state).unwrap();
    let numbered = devices.number(&state).unwrap();
    assert_eq!(numbered.start(), StartNumber(7));
    let begun = numbered.written();
    assert_eq!(begun.start(), StartNumber(7));
    let (name, address, workers) = ("node2".to_owned(), "127.0.0.1:7401".to_owned(), 2);
    let key = HostPublic([3; 32]);
    let about = About { name: name.clone(), address: address.clone(), workers, key: Some(key) };
    let mut said = Vec::new();
    let mut registration = begun.registration(about.clone());
    while let Some(command) = registration.question() {
        said.push(command.clone());
        registration.answer(state.apply(command)).unwrap();
    }
    let start = StartNumber(7);
    let register = Command::RegisterNode { node: NODE, name, address, workers, start };
    assert_eq!(said, [register.clone(), Command::NameHostKey { node: NODE, start, key }]);
    // Without a key there is nothing more to say.
    let mut alone = begun.registration(About { key: None, ..about });
    assert_eq!(alone.question(), Some(register.clone()));
    alone.answer(state.apply(register)).unwrap();
    assert_eq!(alone.question(), None);
}

/// Rule V8: nothing is written to a device that is an old image.
#[test]
fn an_old_image_gets_no_number() {
    let mut state = cluster();
    let old = state.clone();
    register(&mut state, 2, 5);
    for numbers in [&[4][..], &[5, 4], &[0]] {
        assert_eq!(came_with(numbers).number(&state).map(|n| n.start()).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
        assert_eq!(came_with(numbers).check(&state).map_err(|e| e.kind), Err(ErrorKind::Corrupt));
    }
    // The state that is known here may be too old to tell.
    came_with(&[4]).check(&old).unwrap();
    let without = came_with(&[4]).with_mutant(Some(Mutant::OldImagesRegister));
    assert_eq!(without.number(&state).unwrap().start(), StartNumber(5), "as if nothing were wrong");
}
