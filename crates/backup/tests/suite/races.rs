//! Creates, deletes and prunes of several hosts in any order of their requests, some of which stand still for long or end:
//! no backup that is listed ever lacks an object, and at the end nothing is left that none needs.

use crate::world::*;
use freebs_backup::{Created, Id, Mutant, Pruned, Pruning, Target, Unwatched, create, delete, prune};
use freebs_types::Result;
use std::collections::BTreeMap;

enum Done {
    Created(usize, Result<Created>),
    Pruned(Result<Pruned>),
    Deleted(Id, Result<()>),
}

struct World<'a> {
    store: std::sync::Arc<Memory>,
    target: &'a Target,
    rng: Rng,
    tasks: Vec<Task<'a, Done>>,
    /// The disk of each create.
    disks: &'a [Disk],
    begun: usize,
    made: BTreeMap<Id, usize>,
    mutant: Option<Mutant>,
    given_up: u64,
}

/// A grace that some creates outlive, by the clock of the store.
const GRACE_MS: u64 = 12;

impl<'a> World<'a> {
    /// Begins something.
    fn begin(&mut self) {
        let target = self.target;
        let what = self.rng.below(10);
        if what < 5 && self.begun < self.disks.len() {
            let nth = self.begun;
            self.begun += 1;
            let disk = &self.disks[nth];
            let volume = 1 + nth as u64 % 2;
            self.tasks.push(Box::pin(async move {
                Done::Created(nth, create(target, disk, &order(volume, 100 + nth as u64), &Lively).await)
            }));
        } else if what < 7 && !self.made.is_empty() {
            let nth = self.rng.below(self.made.len() as u64) as usize;
            let id = *self.made.keys().nth(nth).expect("there are so many");
            self.made.remove(&id);
            self.tasks.push(Box::pin(async move { Done::Deleted(id, delete(target, id, 0, false).await) }));
        } else {
            let how = Pruning { grace_ms: GRACE_MS, is_dry: false, mutant: self.mutant };
            self.tasks.push(Box::pin(async move { Done::Pruned(prune(target, &how).await) }));
        }
    }

    fn done(&mut self, done: Done) -> Result<(), String> {
        match done {
            Done::Created(nth, Ok(created)) => {
                self.made.insert(created.manifest.id, nth);
            }
            // It was given up, or another process finished it.
            Done::Created(_, Err(e)) if e.text.contains("given up") || e.text.contains("another process") => {}
            Done::Created(_, Err(e)) => return Err(format!("a create: {e}")),
            Done::Pruned(Ok(pruned)) => self.given_up += pruned.given_up.len() as u64,
            // One prune meets another one's work.
            Done::Pruned(Err(e)) if e.text.contains("another prune") => {}
            Done::Pruned(Err(e)) => return Err(format!("a prune: {e}")),
            Done::Deleted(id, Err(e)) => return Err(format!("a delete of {id}: {e}")),
            Done::Deleted(_, Ok(())) => {}
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        let mut asleep: BTreeMap<u64, Vec<Task<'a, Done>>> = BTreeMap::new();
        for round in 0..400u64 {
            if self.tasks.len() < 4 && self.rng.below(6) == 0 {
                self.begin();
            }
            let woken: Vec<u64> = asleep.range(..=round).map(|(r, _)| *r).collect();
            woken.iter().for_each(|r| self.tasks.extend(asleep.remove(r).unwrap_or_default()));
            if self.tasks.is_empty() {
                continue;
            }
            let nth = self.rng.below(self.tasks.len() as u64) as usize;
            match self.rng.below(60) {
                // It ends here: killed.
                0 => drop(self.tasks.swap_remove(nth)),
                // It stands still, perhaps for longer than anybody waits.
                1 => {
                    let until = round + 1 + self.rng.below(150);
                    asleep.entry(until).or_default().push(self.tasks.swap_remove(nth));
                }
                _ => {
                    if let Some(done) = poll(&mut self.tasks[nth]) {
                        drop(self.tasks.swap_remove(nth));
                        self.done(done)?;
                    }
                }
            }
        }
        self.tasks.extend(asleep.into_values().flatten());
        while !self.tasks.is_empty() {
            let nth = self.rng.below(self.tasks.len() as u64) as usize;
            if let Some(done) = poll(&mut self.tasks[nth]) {
                drop(self.tasks.swap_remove(nth));
                self.done(done)?;
            }
        }
        self.check()
    }

    /// All that is listed is whole; and after a last prune nothing is left that none needs.
    fn check(&mut self) -> Result<(), String> {
        self.whole()?;
        self.store.wait(10 * GRACE_MS);
        let last = Pruning { grace_ms: GRACE_MS, is_dry: false, mutant: None };
        let pruned = finish(prune(self.target, &last)).map_err(|e| format!("the last prune: {e}"))?;
        if pruned.waiting > 0 || !pruned.under_way.is_empty() {
            return Err(format!("nothing is under way, and yet {pruned:?}"));
        }
        self.whole()?;
        let again = finish(prune(self.target, &last)).map_err(|e| format!("one more: {e}"))?;
        if again.objects > 0 {
            return Err(format!("{} objects were left", again.objects));
        }
        let left = self.store.keys();
        match left
            .iter()
            .find(|k| ["creates/", "alive/", "deleted/"].iter().any(|f| k.starts_with(f)) || k.contains("clock"))
        {
            Some(key) => Err(format!("{key} is left")),
            None => Ok(()),
        }
    }

    fn whole(&self) -> Result<(), String> {
        let listed = finish(freebs_backup::list(self.target)).map_err(|e| e.to_string())?.backups;
        if let Some(damaged) = listed.iter().find_map(|b| b.details.as_ref().err()) {
            return Err(damaged.to_string());
        }
        for id in self.made.keys() {
            if listed.iter().all(|b| b.id != *id) {
                return Err(format!("backup {id} is in no list"));
            }
        }
        for b in &listed {
            let manifest = finish(freebs_backup::open(self.target, b.id)).map_err(|e| e.to_string())?;
            // One that was killed behind its manifest is of its own time, as those that ended are.
            let nth = (manifest.details.time_ms - 100) as usize;
            let disk = &self.disks[nth];
            let to = Written::new(disk.size);
            finish(freebs_backup::restore(self.target, &manifest, &to, &Unwatched)).map_err(|e| e.to_string())?;
            to.check(disk);
        }
        Ok(())
    }
}

fn disks(rng: &mut Rng) -> Vec<Disk> {
    (0..8)
        .map(|_| {
            let blocks: Vec<(u64, u64)> = (0..3).map(|b| (b, 2 + 2 * rng.below(4))).collect();
            Disk::new(3 * BLOCK, &blocks)
        })
        .collect()
}

/// One drawn course of things; the creates that were given up, or what went wrong.
fn course(seed: u64, mutant: Option<Mutant>) -> Result<u64, String> {
    let mut rng = Rng(seed);
    let disks = disks(&mut rng);
    let store = Memory::new();
    let target = target(&store, seed);
    store.plan(None);
    let mut world = World {
        store,
        target: &target,
        rng,
        tasks: Vec::new(),
        disks: &disks,
        begun: 0,
        made: BTreeMap::new(),
        mutant,
        given_up: 0,
    };
    world.run().map(|()| world.given_up)
}

#[test]
fn no_order_of_requests_takes_what_a_backup_needs() {
    let mut given_up = 0;
    for seed in freebs_testing::seeds(150, 20_000) {
        given_up += course(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", freebs_testing::again(seed)));
    }
    println!("{given_up} creates were given up");
    assert!(given_up > 20 || freebs_testing::seeds(150, 20_000).count() < 100, "some are: {given_up}");
}

/// Seeds that a mutant is hunted in, at most.
const HUNT: u64 = 4000;

/// `first`: a seed that notices it; another one is hunted if it does not any more.
fn caught(mutant: Mutant, first: u64) {
    let found =
        std::iter::once(first).chain(0..HUNT).find_map(|seed| course(seed, Some(mutant)).err().map(|why| (seed, why)));
    let (seed, why) = found.unwrap_or_else(|| panic!("{mutant:?} was not noticed in {HUNT} seeds"));
    if seed != first {
        println!("stale: {mutant:?} is noticed by seed {seed}: {why}");
    }
}

#[test]
fn a_prune_that_ignores_creates_is_noticed() {
    caught(Mutant::IgnoresCreates, 6);
}

#[test]
fn a_prune_that_does_not_tell_the_dead_is_noticed() {
    caught(Mutant::LeavesDeadCreates, 36);
}

#[test]
fn a_prune_that_does_not_ask_for_owners_is_noticed() {
    caught(Mutant::OwnersNotAsked, 0);
}

#[test]
fn a_prune_that_looks_at_creates_first_is_noticed() {
    caught(Mutant::CreatesFirst, 163);
}
