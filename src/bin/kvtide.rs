//! The command-line tool `kvtide`.

use kvtide_wire::os::heap::Heap;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

/// Counts allocations for `kvtide bench core` and gives `kvtide replay` huge pages. `kvtided` uses the system allocator directly.
#[global_allocator]
static ALLOCATOR: Heap<&StatsAlloc<System>> = Heap(&INSTRUMENTED_SYSTEM);

fn main() -> ExitCode {
    kvtide_cli::kvtide()
}
