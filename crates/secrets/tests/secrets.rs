//! Slices: enough of them are the secret, fewer are nothing, and what was altered is noticed.

use freebs_secrets::{HostKey, SliceName, join, open, share, split};
use freebs_types::{ClusterId, Hash32, HostPublic, NodeId, SealedSlice, ShardId, Slice, ViewNumber, limits};
use proptest::prelude::*;

const CLUSTER: ClusterId = ClusterId([7; 16]);
const SHARD: ShardId = ShardId::new(3, 1);
const VIEW: ViewNumber = ViewNumber(9);

fn hash() -> impl Strategy<Value = Hash32> {
    any::<[u8; 32]>().prop_map(Hash32)
}

/// A threshold and a number of members that a view can have.
fn numbers() -> impl Strategy<Value = (usize, usize)> {
    (1..=limits::CHAIN_MEMBERS_MAX).prop_flat_map(|n| (1..=n, Just(n)))
}

fn hosts(n: usize) -> Vec<HostKey> {
    (0..n).map(|i| HostKey::new(Hash32([i as u8 + 1; 32]))).collect()
}

fn named(hosts: &[HostKey]) -> Vec<(NodeId, HostPublic)> {
    hosts.iter().zip(1..).map(|(h, n)| (NodeId(n), h.public())).collect()
}

fn name(node: u64) -> SliceName {
    SliceName { cluster: CLUSTER, shard: SHARD, view: VIEW, node: NodeId(node) }
}

proptest! {
    #[test]
    fn any_slices_that_are_enough_give_the_secret(
        secret in hash(),
        seed in hash(),
        (threshold, members) in numbers(),
        order in Just((0..limits::CHAIN_MEMBERS_MAX).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let slices = split(&secret, threshold, members, &seed).unwrap();
        prop_assert_eq!(slices.len(), members);
        let some: Vec<Slice> = order.iter().filter(|i| **i < members).map(|i| slices[*i]).take(threshold).collect();
        prop_assert_eq!(join(threshold, &some, |s| *s == secret), Some(secret));
        prop_assert_eq!(join(threshold, &slices, |s| *s == secret), Some(secret));
    }

    /// With one slice fewer every secret is as possible as the true one: for any other secret there is a slice that
    /// would have made it of the same ones.
    #[test]
    fn fewer_slices_say_nothing(secret in hash(), other in hash(), seed in hash(), (threshold, members) in numbers()) {
        prop_assume!(secret != other);
        let slices = split(&secret, threshold, members, &seed).unwrap();
        let few = &slices[..threshold - 1];
        prop_assert_eq!(join(threshold, few, |_| true), None, "fewer than the threshold are not even joined");
        if threshold > 1 {
            // What they give when they are taken for enough is not the secret.
            prop_assert_ne!(join(threshold - 1, few, |_| true), Some(secret));
            // Addition in the field is XOR, and the last slice's share in the sum is a multiple of it by a number that
            // depends on the slices' numbers only; so a last slice for the other secret is found byte by byte.
            let mut forged = slices[threshold - 1];
            for i in 0..32 {
                let fits = |b: u8| {
                    let mut f = forged;
                    f.0[i + 1] = b;
                    let all = [few, &[f]].concat();
                    join(threshold, &all, |_| true).is_some_and(|s| s.0[i] == other.0[i])
                };
                forged.0[i + 1] = (0..=255).find(|b| fits(*b)).expect("every value of a byte is possible");
            }
            prop_assert_eq!(join(threshold, &[few, &[forged]].concat(), |_| true), Some(other));
        }
    }

    /// A member that lies is noticed, and does no harm while there are enough others.
    #[test]
    fn an_altered_slice_is_noticed(
        secret in hash(),
        seed in hash(),
        (threshold, members) in numbers(),
        which in any::<prop::sample::Index>(),
        at in 0usize..33,
        flip in 1u8..,
    ) {
        let mut slices = split(&secret, threshold, members, &seed).unwrap();
        slices[which.index(members)].0[at] ^= flip;
        let joined = join(threshold, &slices, |s| *s == secret);
        // Where one slice is enough it is the secret, whichever number it carries.
        let number = usize::from(slices[which.index(members)].number());
        let says_nothing = threshold == 1 && at == 0 && (1..=limits::CHAIN_MEMBERS_MAX).contains(&number);
        if threshold < members || says_nothing {
            prop_assert_eq!(joined, Some(secret));
        } else {
            prop_assert_eq!(joined, None);
        }
    }

    #[test]
    fn whatever_is_joined_never_panics(
        bytes in prop::collection::vec(prop::array::uniform32(any::<u8>()), 0..9),
        numbers in prop::collection::vec(any::<u8>(), 9),
        threshold in 0usize..12,
    ) {
        let slice = |(b, n): (&[u8; 32], &u8)| {
            let mut s = Slice([0; 33]);
            s.0[0] = *n % 9;
            s.0[1..].copy_from_slice(b);
            s
        };
        let slices: Vec<Slice> = bytes.iter().zip(&numbers).map(slice).collect();
        prop_assert_eq!(join(threshold, &slices, |_| false), None);
    }

    #[test]
    fn a_sealed_slice_opens_for_its_member_only(seed in hash(), (threshold, members) in numbers()) {
        let hosts = hosts(members);
        let shared = share(&seed, CLUSTER, (SHARD, VIEW), threshold, &named(&hosts)).unwrap();
        let mut slices = Vec::new();
        for (i, (host, sealed)) in hosts.iter().zip(&shared.slices).enumerate() {
            let node = i as u64 + 1;
            let slice = open(host, &name(node), &shared.point, sealed).unwrap();
            prop_assert_eq!(usize::from(slice.number()), i + 1);
            slices.push(slice);
            for other in hosts.iter().filter(|h| h.public() != host.public()) {
                prop_assert_eq!(open(other, &name(node), &shared.point, sealed), None);
            }
            for wrong in [
                SliceName { cluster: ClusterId([8; 16]), ..name(node) },
                SliceName { shard: ShardId::new(3, 2), ..name(node) },
                SliceName { shard: ShardId::new(4, 1), ..name(node) },
                SliceName { view: ViewNumber(10), ..name(node) },
                name(node + 1),
            ] {
                prop_assert_eq!(open(host, &wrong, &shared.point, sealed), None);
            }
        }
        prop_assert_eq!(join(threshold, &slices[members - threshold..], |s| *s == shared.secret), Some(shared.secret));
    }

    #[test]
    fn an_altered_sealed_slice_does_not_open(seed in hash(), at in 0usize..49, flip in 1u8.., point in any::<bool>()) {
        let hosts = hosts(3);
        let mut shared = share(&seed, CLUSTER, (SHARD, VIEW), 2, &named(&hosts)).unwrap();
        let mut sealed = shared.slices[1];
        // Bit 255 of a point has no meaning in X25519, but it has one here.
        if point { shared.point.0[at % 32] ^= flip } else { sealed.0[at] ^= flip }
        prop_assert_eq!(open(&hosts[1], &name(2), &shared.point, &sealed), None);
    }
}

#[test]
fn secrets_differ_by_seed_shard_and_view() {
    let hosts = hosts(3);
    let make = |seed: u8, shard, view| share(&Hash32([seed; 32]), CLUSTER, (shard, view), 2, &named(&hosts)).unwrap();
    let first = make(1, SHARD, VIEW);
    for other in [make(2, SHARD, VIEW), make(1, ShardId::new(3, 2), VIEW), make(1, SHARD, ViewNumber(10))] {
        assert_ne!(first.secret, other.secret);
        assert_ne!(first.point, other.point);
        assert_ne!(first.slices, other.slices);
    }
    let again = make(1, SHARD, VIEW);
    assert_eq!((first.secret, first.point, first.slices), (again.secret, again.point, again.slices));
}

#[test]
fn what_no_view_can_have_is_refused() {
    let (secret, seed) = (Hash32([1; 32]), Hash32([2; 32]));
    for (threshold, members) in [(0, 3), (4, 3), (1, 0), (1, limits::CHAIN_MEMBERS_MAX + 1)] {
        assert!(split(&secret, threshold, members, &seed).is_none(), "{threshold} of {members}");
    }
    // A point of low order would give every sealer the same key.
    let members = [(NodeId(1), HostPublic([0; 32]))];
    assert!(share(&seed, CLUSTER, (SHARD, VIEW), 1, &members).is_none());
    assert_eq!(open(&hosts(1)[0], &name(1), &HostPublic([0; 32]), &SealedSlice::default()), None);
}

/// What is printed of keys and slices ends up in logs.
#[test]
fn nothing_secret_is_printed() {
    let host = HostKey::new(Hash32([0xab; 32]));
    assert!(!format!("{host:?}").contains("abab"));
    assert_eq!(format!("{:?}", Slice([0xcd; 33])), "Slice(205, …)");
}

/// Bytes of slices lie in logs: how they are made must not change unnoticed.
#[test]
fn slices_are_made_as_they_always_were() {
    let shared = share(&Hash32([5; 32]), CLUSTER, (SHARD, VIEW), 2, &named(&hosts(3))).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    assert_eq!(hex(&shared.slices[2].0), GOLDEN_SEALED);
    assert_eq!(hex(&shared.point.0), GOLDEN_POINT);
    assert_eq!(hex(&HostKey::new(Hash32([3; 32])).public().0), GOLDEN_HOST);
    let point = HostPublic(core::array::from_fn(|i| u8::from_str_radix(&GOLDEN_POINT[2 * i..2 * i + 2], 16).unwrap()));
    let sealed =
        SealedSlice(core::array::from_fn(|i| u8::from_str_radix(&GOLDEN_SEALED[2 * i..2 * i + 2], 16).unwrap()));
    assert_eq!(open(&hosts(3)[2], &name(3), &point, &sealed).map(|s| s.number()), Some(3));
}

const GOLDEN_SEALED: &str =
    "fda4bac4ce1832a2d3c7bd915d2005cbf30b11df58433fd3d417ecaf0435bd7677954105ffc61a645bfee97538e5aa8003";
const GOLDEN_POINT: &str = "79aab6d68bef25d0aa7a0c053529c72ca527e0713e095ca678efe565a06a444c";
const GOLDEN_HOST: &str = "5dfedd3b6bd47f6fa28ee15d969d5bb0ea53774d488bdaf9df1c6e0124b3ef22";
