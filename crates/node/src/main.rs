//! The binary `freebs`.

/// Requests are many small allocations of many sizes, freed in another order than they came.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    freebs_node::main()
}
