//! The target that `FREEBS_FUZZ` names, under libFuzzer.
#![no_main]

use freebs_fuzz::{Target, memory, target};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("FREEBS_FUZZ").expect("FREEBS_FUZZ names the target");
        let found = target(&name).unwrap_or_else(|| panic!("there is no target '{name}'"));
        // What a target makes once is not its memory.
        (found.run)(&[]);
        let _ = TARGET.set(found);
    },
    |data: &[u8]| {
        let target = TARGET.get().expect("set at the start");
        freebs_fuzz::signal::clear();
        let ((), peak) = memory::peak_of(|| (target.run)(data));
        let bound = (target.bound)(data.len());
        assert!(peak <= bound, "{peak} bytes held at a time, the bound is {bound}");
    }
);
