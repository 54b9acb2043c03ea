//! The command-line tool `kvtide`.

use kvtide_wire::os::heap::Heap;
use std::alloc::System;
use std::process::ExitCode;

/// Gives `kvtide replay` huge pages. `kvtided` uses the system allocator directly.
#[global_allocator]
static ALLOCATOR: Heap<System> = Heap(System);

fn main() -> ExitCode {
    kvtide_cli::kvtide()
}
