//! A client that remembers every answer, and knows for each sector which values a read may give.
//!
//! Each written sector says which operation wrote it. Per sector the oracle keeps the operations that may be the last
//! one there. Time is counted in the client's own events (sends and answers), so "ended before began" is certain:
//!
//! - an answered operation drops every candidate that ended before it began (contract 1, 2, 4);
//! - a read drops every candidate that ended before the read began and is not what it gave, so a value once seen never
//!   goes back, also that of an operation which got no answer (contract 9);
//! - an operation seen in one sector of a 4 KiB block has happened to the whole block (contract 8).
//!
//! An operation without an answer (its connection ended, or its answer was an error) may have happened or not; it is
//! decided by the first read that begins afterwards.

use super::load::Answers;
use super::nbd::{Answer, Client, Op};
use super::rng::Rng;
use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

pub const SECTOR: u64 = 512;
const BLOCK_SECTORS: u64 = 8;
/// The aligned range that no crash tears once nothing is in flight.
const ATOM_SECTORS: u64 = 32;
const NEVER: u64 = u64::MAX;
const MAGIC: u64 = 0x4652_4545_4253_4f52;

/// An operation's number. The first one stands for what was there before: zeroes.
type Id = usize;
const ZEROES: Id = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    /// Trim or zero.
    Clear,
}

#[derive(Clone, Copy, Debug)]
struct Done {
    kind: Kind,
    first: u64,
    end: u64,
    began: u64,
    ended: u64,
}

impl Done {
    fn covers(&self, sector: u64) -> bool {
        (self.first..self.end).contains(&sector)
    }
}

#[derive(Clone, Debug, Default)]
struct Sector {
    /// Operations that may be the last one here.
    may: Vec<Id>,
    /// Operations that could not be the last one any more, and since when.
    not: Vec<(Id, u64)>,
}

enum Flight {
    Update(Id),
    Read { first: u64, end: u64, began: u64 },
    Flush,
}

/// What a run did and how long the client had to wait.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub writes: u64,
    pub reads: u64,
    pub errors: u64,
    /// NBD's number of the last error.
    pub last_error: u32,
    /// Requests whose connection ended before they were answered.
    pub lost: u64,
    /// Longest time in which no answer came though one was due.
    pub longest_gap: Duration,
}

pub struct Oracle {
    /// Where its region begins on the volume, in bytes.
    base: u64,
    sectors: Vec<Sector>,
    ops: Vec<Done>,
    now: u64,
    rng: Rng,
    flight: BTreeMap<u64, Flight>,
    pub tally: Tally,
    /// Requests that were answered without an error.
    pub answers: Answers,
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ (x >> 33)
}

/// What operation `id` puts into a sector.
fn content(id: Id, sector: u64, out: &mut [u8]) {
    let key = mix(id as u64 ^ mix(sector));
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        let value = match i {
            0 => MAGIC,
            1 => id as u64,
            2 => sector,
            _ => mix(key.wrapping_add(i as u64)),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

impl Oracle {
    /// Remembers a region of zeroes that begins at byte `base` and has `bytes` bytes.
    #[must_use]
    pub fn new(base: u64, bytes: u64, rng: Rng) -> Self {
        let atom = ATOM_SECTORS * SECTOR;
        assert!(base.is_multiple_of(atom) && bytes.is_multiple_of(atom) && bytes >= 64 * atom, "whole atoms");
        let zero = Done { kind: Kind::Clear, first: 0, end: bytes / SECTOR, began: 0, ended: 0 };
        Self {
            base,
            sectors: vec![Sector { may: vec![ZEROES], not: vec![] }; (bytes / SECTOR) as usize],
            ops: vec![zero],
            now: 1,
            rng,
            flight: BTreeMap::new(),
            tally: Tally::default(),
            answers: Answers::default(),
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A range: mostly one block, sometimes sectors, sometimes many blocks; a third of all on one hot megabyte.
    fn range(&mut self, whole_blocks: bool) -> (u64, u64) {
        let all = self.sectors.len() as u64;
        let within = if self.rng.one_in(3) { all.min(2048) } else { all };
        if !whole_blocks && self.rng.one_in(4) {
            let len = 1 + self.rng.below(20);
            let first = self.rng.below(within - len);
            return (first, first + len);
        }
        let blocks = if self.rng.one_in(8) { 1 + self.rng.below(32) } else { 1 };
        let blocks = blocks.min(within / BLOCK_SECTORS);
        let first = self.rng.below(within / BLOCK_SECTORS - blocks + 1) * BLOCK_SECTORS;
        (first, first + blocks * BLOCK_SECTORS)
    }

    /// Sends one random request.
    fn send(&mut self, client: &mut Client) -> io::Result<()> {
        let dice = self.rng.below(100);
        if dice < 2 {
            let cookie = client.send(&Op::Flush)?;
            self.flight.insert(cookie, Flight::Flush);
            return Ok(());
        }
        let (first, end) = self.range((60..75).contains(&dice));
        let (at, len) = (self.base + first * SECTOR, ((end - first) * SECTOR) as u32);
        let began = self.tick();
        if dice < 35 {
            let cookie = client.send(&Op::Read { at, len })?;
            self.flight.insert(cookie, Flight::Read { first, end, began });
            return Ok(());
        }
        let id = self.ops.len();
        let (kind, op) = match dice {
            60..67 => (Kind::Clear, Op::Trim { at, len }),
            67..75 => (Kind::Clear, Op::Zero { at, len, fua: dice == 70 }),
            _ => {
                let mut data = vec![0; len as usize];
                for (i, sector) in data.chunks_exact_mut(SECTOR as usize).enumerate() {
                    content(id, first + i as u64, sector);
                }
                (Kind::Write, Op::Write { at, data, fua: dice == 80 })
            }
        };
        self.ops.push(Done { kind, first, end, began, ended: NEVER });
        for sector in first..end {
            self.sectors[sector as usize].may.push(id);
        }
        // Remembered before it is sent: a connection that ends half way may have carried it all the same.
        match client.send(&op) {
            Ok(cookie) => self.flight.insert(cookie, Flight::Update(id)),
            Err(e) => {
                self.ended(id, false);
                return Err(e);
            }
        };
        Ok(())
    }

    fn ended(&mut self, id: Id, answered: bool) {
        let at = self.tick();
        self.ops[id].ended = at;
        let op = self.ops[id];
        if answered {
            for sector in op.first..op.end {
                self.happened(id, sector, at);
            }
        }
    }

    /// Operation `id` is known to have happened: whatever ended before it began is no more.
    fn happened(&mut self, id: Id, sector: u64, at: u64) {
        let began = self.ops[id].began;
        self.drop_where(sector, at, |ops, other| other != id && ops[other].ended < began);
    }

    fn drop_where(&mut self, sector: u64, at: u64, gone: impl Fn(&[Done], Id) -> bool) {
        let oldest =
            self.flight.values().filter_map(|f| if let Flight::Read { began, .. } = f { Some(*began) } else { None });
        let oldest = oldest.min().unwrap_or(NEVER);
        let Sector { may, not } = &mut self.sectors[sector as usize];
        not.retain(|(_, since)| *since > oldest);
        may.retain(|&other| {
            let gone = gone(&self.ops, other);
            if gone {
                not.push((other, at));
            }
            !gone
        });
    }

    /// Takes an answer.
    fn take(&mut self, answer: Answer) -> Result<(), String> {
        let flight = self.flight.remove(&answer.cookie).ok_or("an answer to no request")?;
        if answer.result.is_ok() {
            self.answers.add();
        }
        match (flight, answer.result) {
            (Flight::Update(id), Ok(_)) => {
                self.tally.writes += 1;
                self.ended(id, true);
            }
            (Flight::Update(id), Err(code)) => {
                (self.tally.errors, self.tally.last_error) = (self.tally.errors + 1, code);
                self.ended(id, false);
            }
            (Flight::Read { first, end, began }, Ok(data)) => {
                self.tally.reads += 1;
                return self.check(first, end, began, &data);
            }
            (Flight::Read { .. } | Flight::Flush, Err(code)) => {
                (self.tally.errors, self.tally.last_error) = (self.tally.errors + 1, code);
            }
            (Flight::Flush, Ok(_)) => {}
        }
        Ok(())
    }

    /// Which operation a sector's bytes are of; `None` for zeroes.
    fn read_as(&self, sector: u64, bytes: &[u8]) -> Result<Option<Id>, String> {
        if bytes.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
        let id = word(1) as Id;
        let mut want = [0; SECTOR as usize];
        content(id, sector, &mut want);
        if word(0) != MAGIC || want != *bytes || id >= self.ops.len() {
            let (magic, id, of) = (word(0), word(1), word(2));
            return Err(format!(
                "sector {sector}: bytes nobody wrote (magic {magic:#x}, operation {id}, of sector {of})"
            ));
        }
        Ok(Some(id))
    }

    fn check(&mut self, first: u64, end: u64, began: u64, data: &[u8]) -> Result<(), String> {
        let at = self.tick();
        let mut seen = Vec::with_capacity((end - first) as usize);
        for (i, bytes) in data.chunks_exact(SECTOR as usize).enumerate() {
            let sector = first + i as u64;
            let found = self.read_as(sector, bytes)?;
            let fits = |id: Id| match found {
                Some(f) => id == f,
                None => self.ops[id].kind == Kind::Clear,
            };
            let state = &self.sectors[sector as usize];
            let now = state.may.iter().any(|&id| fits(id));
            if !now && !state.not.iter().any(|&(id, since)| since > began && fits(id)) {
                return Err(self.wrong(sector, found, began));
            }
            seen.push((sector, found, now));
        }
        for &(sector, found, now) in &seen {
            if now {
                self.drop_where(sector, at, |ops, id| {
                    let it = found.map_or(ops[id].kind == Kind::Clear, |f| id == f);
                    !it && ops[id].ended < began
                });
            }
        }
        self.whole_blocks(&seen, at)
    }

    /// Whoever is seen in one sector of a block has happened to all of it.
    fn whole_blocks(&mut self, seen: &[(u64, Option<Id>, bool)], at: u64) -> Result<(), String> {
        for block in seen.chunk_by(|a, b| a.0 / BLOCK_SECTORS == b.0 / BLOCK_SECTORS) {
            self.torn(block)?;
            for id in block.iter().filter(|s| s.2).filter_map(|s| s.1) {
                let first = block[0].0 / BLOCK_SECTORS * BLOCK_SECTORS;
                for sector in first..first + BLOCK_SECTORS {
                    if self.ops[id].covers(sector) {
                        self.happened(id, sector, at);
                    }
                }
            }
        }
        Ok(())
    }

    /// No sector shows what ended before an operation began that its neighbour shows and that covers both. Beyond a
    /// block that is promised of operations only that cover the whole aligned range.
    fn torn(&self, group: &[(u64, Option<Id>, bool)]) -> Result<(), String> {
        let (Some(from), Some(to)) = (group.first(), group.last()) else { return Ok(()) };
        let one_block = from.0 / BLOCK_SECTORS == to.0 / BLOCK_SECTORS;
        for &(a, new, _) in group {
            let Some(new) = new else { continue };
            let op = &self.ops[new];
            let promised = one_block || op.covers(from.0) && op.covers(to.0);
            if !promised {
                continue;
            }
            for &(b, old, _) in group {
                let Some(old) = old else { continue };
                if old != new && op.covers(b) && self.ops[old].ended < op.began {
                    return Err(format!(
                        "torn: sector {a} shows operation {new} {:?}, sector {b} still {old} {:?}",
                        self.ops[new], self.ops[old]
                    ));
                }
            }
        }
        Ok(())
    }

    fn wrong(&self, sector: u64, found: Option<Id>, began: u64) -> String {
        let name = |id: Id| format!("{id} {:?}", self.ops[id]);
        let state = &self.sectors[sector as usize];
        let may: Vec<_> = state.may.iter().map(|&id| name(id)).collect();
        let not: Vec<_> = state.not.iter().map(|&(id, since)| format!("{} since {since}", name(id))).collect();
        format!(
            "sector {sector} (byte {}): a read begun at {began} gave {}\n  it may be {may:#?}\n  and not any more {not:#?}",
            self.base + sector * SECTOR,
            found.map_or("zeroes".to_owned(), name),
        )
    }

    /// Keeps up to `depth` requests in flight until `stop` says so, then takes the answers that are out.
    ///
    /// An error is a broken promise of the volume; a connection that ends is `Ok(false)`.
    pub fn run(&mut self, client: &mut Client, depth: usize, mut stop: impl FnMut() -> bool) -> Result<bool, String> {
        let mut last = Instant::now();
        let mut stopping = false;
        loop {
            stopping |= stop();
            while !stopping && self.flight.len() < depth {
                if self.flight.is_empty() {
                    last = Instant::now();
                }
                if self.send(client).is_err() {
                    self.tally.lost += 1;
                    return self.lost();
                }
            }
            if self.flight.is_empty() {
                return Ok(true);
            }
            match client.answer(Duration::from_millis(20)) {
                Ok(Some(answer)) => {
                    self.tally.longest_gap = self.tally.longest_gap.max(last.elapsed());
                    last = Instant::now();
                    self.take(answer)?;
                }
                Ok(None) if last.elapsed() > Duration::from_secs(90) => {
                    return Err(format!("no answer for 90 s with {} requests open", self.flight.len()));
                }
                Ok(None) => {}
                Err(_) => return self.lost(),
            }
        }
    }

    fn lost(&mut self) -> Result<bool, String> {
        for flight in std::mem::take(&mut self.flight).into_values() {
            self.tally.lost += 1;
            if let Flight::Update(id) = flight {
                self.ended(id, false);
            }
        }
        Ok(false)
    }

    /// Reads the whole region, with nothing in flight, and checks each sector and that no atom is torn.
    pub fn read_all(&mut self, client: &mut Client) -> Result<(), String> {
        assert!(self.flight.is_empty(), "nothing is in flight");
        let all = self.sectors.len() as u64;
        let step = ATOM_SECTORS * 16;
        for first in (0..all).step_by(step as usize) {
            let end = (first + step).min(all);
            let began = self.tick();
            let op = Op::Read { at: self.base + first * SECTOR, len: ((end - first) * SECTOR) as u32 };
            let data = client.ask(&op).map_err(|e| format!("connection: {e}"))?;
            let data = data.map_err(|code| format!("read of sector {first}: error {code}"))?;
            self.check(first, end, began, &data)?;
            for (i, atom) in data.chunks_exact((ATOM_SECTORS * SECTOR) as usize).enumerate() {
                let at = first + i as u64 * ATOM_SECTORS;
                let seen: Result<Vec<_>, String> = atom
                    .chunks_exact(SECTOR as usize)
                    .zip(at..)
                    .map(|(bytes, sector)| Ok((sector, self.read_as(sector, bytes)?, true)))
                    .collect();
                self.torn(&seen?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oracle() -> Oracle {
        Oracle::new(0, 1 << 20, Rng::new(1))
    }

    fn write(o: &mut Oracle, first: u64, end: u64) -> Id {
        let began = o.tick();
        o.ops.push(Done { kind: Kind::Write, first, end, began, ended: NEVER });
        let id = o.ops.len() - 1;
        (first..end).for_each(|s| o.sectors[s as usize].may.push(id));
        id
    }

    /// A read of sectors from 0 on that gives these operations.
    fn read(o: &mut Oracle, ids: &[Id]) -> Result<(), String> {
        let mut data = vec![0; ids.len() * SECTOR as usize];
        for (i, (&id, out)) in ids.iter().zip(data.chunks_exact_mut(SECTOR as usize)).enumerate() {
            if id != ZEROES {
                content(id, i as u64, out);
            }
        }
        let began = o.tick();
        o.check(0, ids.len() as u64, began, &data)
    }

    #[test]
    fn oracle_lets_through_what_is_promised() {
        let mut o = oracle();
        let a = write(&mut o, 0, 1);
        read(&mut o, &[ZEROES]).unwrap();
        read(&mut o, &[a]).unwrap();
        o.ended(a, true);
        read(&mut o, &[a]).unwrap();
        let (b, c) = (write(&mut o, 0, 1), write(&mut o, 0, 1));
        o.ended(c, true);
        o.ended(b, true);
        read(&mut o, &[b]).unwrap();
    }

    #[test]
    fn oracle_sees_an_answered_write_that_is_gone() {
        let mut o = oracle();
        let a = write(&mut o, 0, 8);
        o.ended(a, true);
        assert!(read(&mut o, &[ZEROES; 8]).is_err());
        let b = write(&mut o, 0, 8);
        o.ended(b, true);
        assert!(read(&mut o, &[a; 8]).is_err());
    }

    #[test]
    fn oracle_sees_a_value_that_flips() {
        let mut o = oracle();
        let a = write(&mut o, 0, 1);
        o.ended(a, false);
        read(&mut o, &[a]).unwrap();
        assert!(read(&mut o, &[ZEROES]).is_err());
        let b = write(&mut o, 0, 1);
        o.ended(b, false);
        read(&mut o, &[a]).unwrap();
        assert!(read(&mut o, &[b]).is_err());
    }

    #[test]
    fn oracle_sees_a_torn_block() {
        let mut o = oracle();
        let a = write(&mut o, 0, 8);
        o.ended(a, true);
        let b = write(&mut o, 0, 8);
        o.ended(b, false);
        assert!(read(&mut o, &[a, a, a, a, b, b, b, b]).unwrap_err().contains("torn"));
    }

    #[test]
    fn oracle_sees_foreign_bytes() {
        let mut o = oracle();
        let a = write(&mut o, 0, 2);
        let mut data = vec![0; 1024];
        content(a, 1, &mut data[..512]);
        content(a, 1, &mut data[512..]);
        let began = o.tick();
        assert!(o.check(0, 2, began, &data).unwrap_err().contains("nobody wrote"));
    }
}
