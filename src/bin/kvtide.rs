//! The tool `kvtide`.

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

/// Counts what `kvtide bench core` promises not to do. `kvtided` has the system's allocator as it is.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    kvtide_daemon::cli::kvtide()
}
