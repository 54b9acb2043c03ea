//! `kvtide bench core` ends with the figures that it promises. How large they are is the bench's to say, not a test's: machines
//! differ. `kvtide bench ring` measures ten seconds of idleness and more, and runs in the gate.

use std::process::Command;

#[test]
fn the_core_bench_reports_its_figures() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["bench", "core", "--json"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys: Vec<&str> = figures.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["allocations", "metadata_bytes_per_page", "transitions_per_s"]);
    assert_eq!(figures["allocations"], 0, "the core allocates on its hot path");
    assert!(figures["metadata_bytes_per_page"].as_u64().unwrap() <= 96);
    assert!(figures["transitions_per_s"].as_u64().unwrap() > 0);
}

#[test]
fn a_bench_that_does_not_exist_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["bench", "rings"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("'rings'"), "{said}");
}
