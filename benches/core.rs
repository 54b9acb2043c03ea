//! `cargo bench -p kvtide-bench`: the core alone, on one thread with simulated devices: page transitions, allocations, index memory.
//! A program of its own, because it counts allocations.

use clap::Parser;
use kvtide_bench::bench::{self, Output};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Measure the core of kvtide.
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    output: Output,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let Args { output, bench: _ } = Args::parse();
    bench::print(bench::core(), output)
}
