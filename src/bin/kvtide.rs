//! The tool `kvtide`.

use kvtide_wire::os::heap::Heap;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

/// Counts what `kvtide bench core` promises not to do, and gives `kvtide replay` huge pages. `kvtided` has the system's allocator as it is.
#[global_allocator]
static ALLOCATOR: Heap<&StatsAlloc<System>> = Heap(&INSTRUMENTED_SYSTEM);

fn main() -> ExitCode {
    kvtide_daemon::cli::kvtide()
}
