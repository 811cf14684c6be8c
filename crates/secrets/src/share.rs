//! Shamir's secret sharing over bytes. Slice `i` is the polynomials' value at `i`, from 1 on.

use blahaj::{Share, Sharks};
use blake3::OutputReader;
use core::convert::Infallible;
use freebs_types::{Hash32, SLICE_BYTES, Slice, limits};
use rand_core::{TryCryptoRng, TryRng};
use zeroize::Zeroize;

/// The coefficients: as many bytes as are asked for, from one seed.
struct Stream(OutputReader);

impl TryRng for Stream {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut b = [0; 4];
        self.0.fill(&mut b);
        Ok(u32::from_le_bytes(b))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut b = [0; 8];
        self.0.fill(&mut b);
        Ok(u64::from_le_bytes(b))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(bytes);
        Ok(())
    }
}

impl TryCryptoRng for Stream {}

/// One slice for each of so many members; `threshold` of them are needed to join them. The seed must be as secret as
/// the secret, and used once. `None` if no view can have such numbers.
#[must_use]
pub fn split(secret: &Hash32, threshold: usize, members: usize, seed: &Hash32) -> Option<Vec<Slice>> {
    if threshold == 0 || threshold > members || members > limits::CHAIN_MEMBERS_MAX {
        return None;
    }
    let context = "freebs 2026 coefficients of slices";
    let mut stream = Stream(blake3::Hasher::new_derive_key(context).update(&seed.0).finalize_xof());
    let sharks = Sharks(u8::try_from(threshold).ok()?);
    let slices = sharks.dealer_rng(&secret.0, &mut stream).take(members).map(|share| {
        let mut bytes = Vec::from(&share);
        let slice = <[u8; SLICE_BYTES]>::try_from(&bytes[..]).ok().map(Slice);
        bytes.zeroize();
        slice
    });
    slices.collect()
}

/// Puts a secret together from at least `threshold` slices. `is_right` tells it by its public hash; slices that were
/// altered are left out if there are enough others. `None` if none of the secrets that they give is right.
#[must_use]
pub fn join(threshold: usize, slices: &[Slice], is_right: impl Fn(&Hash32) -> bool) -> Option<Hash32> {
    let mut all: Vec<&Slice> = Vec::new();
    for s in slices {
        // A slice with number 0 would be taken for the secret itself. Of a number that comes twice both are tried.
        let is_there = all.contains(&s);
        if s.number() > 0 && usize::from(s.number()) <= limits::CHAIN_MEMBERS_MAX && !is_there {
            all.push(s);
        }
    }
    all.truncate(2 * limits::CHAIN_MEMBERS_MAX);
    if threshold == 0 || threshold > all.len() {
        return None;
    }
    // Few enough to try them all: at most 14 over 7 ways, and the first one is right if nobody lies.
    let mut chosen: Vec<usize> = (0..threshold).collect();
    loop {
        let some: Vec<&Slice> = chosen.iter().map(|i| all[*i]).collect();
        if let Some(secret) = interpolate(&some).filter(&is_right) {
            return Some(secret);
        }
        let movable = (0..threshold).rev().find(|i| chosen[*i] < all.len() - threshold + i)?;
        chosen[movable] += 1;
        for i in movable + 1..threshold {
            chosen[i] = chosen[i - 1] + 1;
        }
    }
}

fn interpolate(slices: &[&Slice]) -> Option<Hash32> {
    let numbers: u32 = slices.iter().fold(0, |set, s| set | 1 << s.number());
    if numbers.count_ones() as usize != slices.len() {
        return None;
    }
    let shares: Vec<Share> = slices.iter().filter_map(|s| Share::try_from(&s.0[..]).ok()).collect();
    let mut bytes = Sharks(u8::try_from(slices.len()).ok()?).recover(&shares).ok()?;
    let secret = <[u8; 32]>::try_from(&bytes[..]).ok().map(Hash32);
    bytes.zeroize();
    secret
}
