//! Kept inputs are replayed, each target is run for a while, and the runner finds what is planted.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "seeds and findings are files beside the test")]

use freebs_fuzz::execute::Wrong;
use freebs_fuzz::input::Input;
use freebs_fuzz::runner::{Length, once, run, shorten};
use freebs_fuzz::{TARGETS, Target, corpus, memory, seeds, signal};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Times as many executions in the long form.
const FULL: u64 = 50;
const SEED: u64 = 1;

#[test]
fn memory_is_counted() {
    assert!(memory::is_counted());
    let (_, peak) = memory::peak_of(|| {
        drop(vec![0u8; 1 << 20]);
        vec![0u8; 1 << 16]
    });
    assert!((1 << 20..(1 << 20) + 4096).contains(&peak), "{peak}");
}

#[test]
fn seeds_are_what_the_formats_say() {
    let bless = freebs_testing::bless();
    let mut wrong = Vec::new();
    for seed in seeds::all() {
        let target = freebs_fuzz::target(seed.target).expect("a seed's target");
        assert!(seed.data.len() <= target.input_bytes_max, "{} {}: {} bytes", seed.target, seed.name, seed.data.len());
        let path = corpus::folder(target).join(&seed.name);
        if bless {
            std::fs::create_dir_all(corpus::folder(target)).unwrap();
            std::fs::write(&path, &seed.data).unwrap();
        } else if std::fs::read(&path).ok().as_ref() != Some(&seed.data) {
            wrong.push(path);
        }
    }
    assert!(wrong.is_empty(), "not what a format says now (cargo xtask bless writes them anew): {wrong:?}");
}

#[test]
fn the_corpus_is_small() {
    let mut all = 0;
    for t in TARGETS {
        let kept = corpus::kept(t).unwrap();
        assert!(!kept.is_empty(), "{}: nothing is kept", t.name);
        for (path, data) in kept {
            assert!(data.len() <= corpus::FILE_BYTES_MAX, "{}", path.display());
            all += data.len();
        }
    }
    assert!(all <= corpus::CORPUS_BYTES_MAX, "{all} bytes");
}

/// Seeds that show nothing beyond what noise shows would be a target that tests nothing. The noise is short: of a device, more of
/// it changes every structure there is.
#[test]
fn seeds_reach_the_inside() {
    let noise: Vec<u8> = (0..100u64).map(|i| freebs_fuzz::rng::mix(i) as u8).collect();
    for t in TARGETS {
        let shown = |data: &[u8]| {
            once(t, data);
            signal::take()
        };
        let nothing: Vec<u64> = [shown(&[]), shown(&noise), shown(&[&[1, 0], &noise[..]].concat())].concat();
        let kept = corpus::kept(t).unwrap();
        let inside = kept.iter().filter(|(_, data)| shown(data).iter().any(|s| !nothing.contains(s))).count();
        assert!(4 * inside >= kept.len(), "{}: {inside} of {} inputs get inside", t.name, kept.len());
    }
}

fn wrong(t: &Target) -> Vec<String> {
    let mut out = Vec::new();
    let mut kept = Vec::new();
    // Memory that a target takes once is not an execution's memory.
    (t.run)(&[]);
    for (path, data) in corpus::kept(t).unwrap() {
        out.extend(once(t, &data).map(|w| format!("{}: {w}", path.display())));
        kept.push(data);
    }
    let full = freebs_testing::full();
    let runs = kept.len() as u64 + t.suite_runs * if full { FULL } else { 1 };
    let report = run(t, &kept, Length { runs, seconds: None }, SEED, |_| ());
    assert_eq!(report.executions, runs);
    for f in &report.findings {
        let short = shorten(t, f, 500);
        let path = corpus::keep_finding(t, &short).unwrap();
        out.push(format!(
            "{}\n  again: cargo run --profile fuzz -p freebs-fuzz -- {} {}",
            f.wrong,
            t.name,
            path.display()
        ));
    }
    println!("{:18} {} executions, {:.2} s, {} things seen", t.name, report.executions, report.seconds, report.seen);
    out
}

macro_rules! each {
    ($($test:ident: $($name:literal),+;)*) => {
        $(#[test]
        fn $test() {
            let wrong: Vec<String> =
                [$($name),+].iter().flat_map(|n| wrong(freebs_fuzz::target(n).expect("a target"))).collect();
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        })*

        #[test]
        fn every_target_is_run() {
            let run = [$($($name),+),*];
            assert!(TARGETS.iter().all(|t| run.contains(&t.name)) && run.len() == TARGETS.len());
        }
    };
}

each! {
    nbd: "nbd-handshake", "nbd-transmission";
    messages: "wire", "wire-stream", "greeting";
    frames: "frame", "bodies", "interval";
    structures_of_a_device: "superblock", "append", "openings", "segment-index", "map-page", "checkpoint", "manifest", "host-key";
    devices: "device";
    tools: "device-tools";
    images: "qcow2";
    backups: "backup";
    control: "command", "commands", "state", "api", "cluster-file";
    seats: "seat-message", "seat-entry", "seat-note", "seat-machine";
    stores: "seat-store";
}

/// A decoder of `FBCN`, a length (two bytes), and a body under a sum; wrong in three ways.
fn planted(data: &[u8]) {
    let input = Input::of(data);
    let Some(rest) = input.rest.strip_prefix(b"FBCN") else { return signal::saw("no magic", 0) };
    let [a, b, sum, body @ ..] = rest else { return signal::saw("short", 0) };
    let len = usize::from(u16::from_le_bytes([*a, *b]));
    if !input.mend && body.iter().fold(0u8, |s, x| s.wrapping_add(*x)) != *sum {
        return signal::saw("sum", 0);
    }
    signal::saw("length", len as u64);
    if len > 4000 {
        // The length is believed before it is held against the body.
        std::hint::black_box(vec![0u8; len * 4]);
    }
    if body.starts_with(&[0x80]) {
        signal::saw("deep", 0);
        // One past the end.
        assert!(len != body.len() + 1, "planted");
    }
}

fn canary() -> Target {
    Target {
        name: "canary",
        about: "a decoder with planted bugs",
        run: planted,
        bound: |n| 8 * n + 4096,
        words: &[],
        input_bytes_max: 256,
        suite_runs: 20_000,
    }
}

#[test]
fn planted_bugs_are_found() {
    let t = canary();
    let seed = Input::bytes(false, 0, 0, b"FBCN\x04\0\x06\0\x01\x02\x03");
    let length = Length { runs: t.suite_runs, seconds: None };
    let report = run(&t, std::slice::from_ref(&seed), length, SEED, |_| ());
    let found: Vec<&Wrong> = report.findings.iter().map(|f| &f.wrong).collect();
    assert!(found.iter().any(|w| matches!(w, Wrong::Panicked { message, .. } if message == "planted")), "{found:?}");
    assert!(found.iter().any(|w| matches!(w, Wrong::TooMuchMemory { .. })), "{found:?}");
    // The same seed finds the same, and what is found can be shown again, shorter.
    let again = run(&t, &[seed], length, SEED, |_| ());
    let inputs = |r: &freebs_fuzz::runner::Report| r.findings.iter().map(|f| f.data.clone()).collect::<Vec<_>>();
    assert_eq!(inputs(&again), inputs(&report));
    for f in &report.findings {
        let short = shorten(&t, f, 500);
        assert!(short.len() <= f.data.len());
        assert_eq!(once(&t, &short).expect("still wrong").name(), f.wrong.name());
    }
}
