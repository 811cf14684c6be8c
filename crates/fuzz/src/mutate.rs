//! Inputs made of others: flips, lengths, splices.

use crate::rng::Rng;

/// Values that decoders tend to stumble over; those of the formats are in each target's words.
const VALUES: [u64; 22] = [
    0,
    1,
    2,
    7,
    255,
    256,
    4095,
    4096,
    65_535,
    65_536,
    1 << 20,
    (1 << 28) - 1,
    1 << 28,
    1 << 30,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    (1 << 62) - 1,
    1 << 62,
    (1 << 63) - 1,
    u64::MAX - 1,
    u64::MAX,
];

/// A mutation of `base` of at most `most` bytes. `other` is another input, `words` are bytes that the target knows.
#[must_use]
pub fn mutate(rng: &mut Rng, base: &[u8], other: &[u8], words: &[&[u8]], most: usize) -> Vec<u8> {
    let mut out = base.to_vec();
    for _ in 0..1 << rng.below(4) {
        step(rng, &mut out, other, words);
    }
    out.truncate(most);
    out
}

fn step(rng: &mut Rng, out: &mut Vec<u8>, other: &[u8], words: &[&[u8]]) {
    if out.len() < 2 {
        out.extend((0..1 + rng.below(64)).map(|_| rng.draw() as u8));
        return;
    }
    let at = place(rng, out.len());
    match rng.below(12) {
        0 | 1 => out[at] ^= 1 << rng.below(8),
        2 => out[at] = rng.draw() as u8,
        3 => {
            let by = 1 + rng.below(16) as u8;
            out[at] = if rng.chance(50) { out[at].wrapping_add(by) } else { out[at].wrapping_sub(by) };
        }
        4..=6 => number(rng, out, at),
        7 => {
            let len = span(rng, out.len() - at);
            out.drain(at..at + len);
        }
        8 => {
            let len = span(rng, out.len() - at);
            let copy = out[at..at + len].to_vec();
            let to = place(rng, out.len());
            if rng.chance(50) {
                out.splice(to..to, copy);
            } else {
                let end = (to + len).min(out.len());
                out[to..end].copy_from_slice(&copy[..end - to]);
            }
        }
        9 if !other.is_empty() => {
            let from = rng.below(other.len());
            let len = span(rng, other.len() - from);
            let end = if rng.chance(50) { at } else { (at + len).min(out.len()) };
            out.splice(at..end, other[from..from + len].iter().copied());
        }
        10 if !words.is_empty() => {
            let word = words[rng.below(words.len())];
            let end = if rng.chance(50) { at } else { (at + word.len()).min(out.len()) };
            out.splice(at..end, word.iter().copied());
        }
        _ => out.truncate(at.max(2)),
    }
}

/// Somewhere in `len` bytes, more often near the start, where headers are.
fn place(rng: &mut Rng, len: usize) -> usize {
    if rng.chance(40) { rng.below(len.min(96)) } else { rng.below(len) }
}

/// A length of at most `left`, mostly short.
fn span(rng: &mut Rng, left: usize) -> usize {
    let most = if rng.chance(80) { left.min(24) } else { left };
    if most == 0 { 0 } else { 1 + rng.below(most) }
}

/// Sets a number of 2, 4 or 8 bytes, in either order: a value of interest, a small change, or what the length is.
fn number(rng: &mut Rng, out: &mut [u8], at: usize) {
    let size = [2, 4, 4, 8, 8][rng.below(5)].min(out.len() - at);
    // Fields mostly lie at multiples of their size (behind the two bytes of choices).
    let at = if rng.chance(70) && at >= 2 { (at - 2) / size * size + 2 } else { at };
    let Some(field) = out.get_mut(at..at + size) else { return };
    let mut bytes = [0; 8];
    bytes[..size].copy_from_slice(field);
    let big = rng.chance(25);
    if big {
        bytes[..size].reverse();
    }
    let old = u64::from_le_bytes(bytes);
    let value = match rng.below(6) {
        0 | 1 => VALUES[rng.below(VALUES.len())],
        2 => old.wrapping_add(1 + rng.below(8) as u64),
        3 => old.wrapping_sub(1 + rng.below(8) as u64),
        4 => VALUES[rng.below(VALUES.len())].wrapping_add(rng.below(5) as u64).wrapping_sub(2),
        _ => 1 << rng.below(8 * size),
    };
    let mut bytes = value.to_le_bytes();
    if big {
        bytes[..size].reverse();
    }
    field.copy_from_slice(&bytes[..size]);
}
