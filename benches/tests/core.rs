//! Figures of the core's bench that no machine changes.

use kvtide_bench::bench;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

#[path = "../../tests/frozen/mod.rs"]
mod frozen;

/// One test: allocations are counted in the whole process.
#[test]
fn the_core_acts_as_frozen_allocates_nothing_once_it_runs_and_its_tables_are_small() {
    frozen::compare(concat!(env!("CARGO_MANIFEST_DIR"), "/bench/core/frozen.txt"), &bench::core_counts().unwrap());
    let figures: serde_json::Value = serde_json::from_str(&bench::core().unwrap().json()).unwrap();
    assert_eq!(figures["allocations"], 0, "the core allocates on its hot path");
    assert!(figures["transitions_per_s"].as_u64().unwrap() > 0, "{figures}");
    for (figure, most) in
        [("bytes_per_cold_content", 68.0), ("metadata_bytes_per_page", 96.0), ("index_bytes_per_block", 96.0)]
    {
        assert!(figures[figure].as_f64().unwrap() <= most, "{figure} in {figures}");
    }
}
