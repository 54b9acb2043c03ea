//! What one block of a launch writes, another reads only after fences and an atomic operation between them.

mod common;

use common::{Cuda, LAUNCH_FAILED, Sample};
use std::process::Command;

const CASE: &str = "KVTIDE_SIM_TEST_BUG";
const BLOCKS: u32 = 19;

/// Bug of `blocks.cu`, and part of the message; none if the kernel is right.
const CASES: &[(u32, &str)] = &[
    (0, ""),
    (1, "reads"),
    (2, "reads"),
    (3, "reads"),
    (4, "reads"),
    (5, ""),
    (6, "writes"),
    (7, ""),
    (8, "reads"),
    (9, ""),
    (10, ""),
    (11, ""),
    (12, ""),
    (13, ""),
    (14, ""),
];

/// Bugs that are caught at the first access of two, which may be a read or a write.
const EITHER: &[u32] = &[5, 7];

/// Run a case, in the child: a fault loses the device for its process.
#[test]
fn blocks_case() {
    let Ok(bug) = std::env::var(CASE) else { return };
    let cuda = Cuda::new(&["kvt_sim_blocks"]);
    let (out, word, stream) = (cuda.allocate(4096), cuda.allocate(8), cuda.stream());
    cuda.put(word, &[0_u64]);
    let params = Sample { input: 0, out, word, n: 0, bug: bug.parse().expect("a number") };
    cuda.launch("kvt_sim_blocks", BLOCKS, 128, 0, &params, stream);
    let code = cuda.finish(stream);
    if code == 0 && matches!(params.bug, 0 | 12) {
        assert_eq!(cuda.get::<u32>(out, BLOCKS as usize + 1)[BLOCKS as usize], (0..BLOCKS).sum::<u32>());
    }
    if params.bug == 14 {
        let met = cuda.get::<u32>(out, BLOCKS as usize);
        assert!(met.iter().any(|&others| others > 0), "no block met another");
    }
    eprintln!("ended in {code}");
}

#[test]
fn a_block_reads_only_what_others_made_visible() {
    kvtide_cuda_sim::install();
    let own = std::env::current_exe().expect("a test has an executable");
    let mut missed = vec![];
    for &(bug, says) in CASES {
        let wrong = !says.is_empty() || EITHER.contains(&bug);
        let (code, text) = if wrong { (LAUNCH_FAILED, "with no __threadfence and atomic operation") } else { (0, "") };
        for seed in 1..=5 {
            let child = Command::new(&own)
                .args(["--exact", "blocks_case", "--nocapture"])
                .env(CASE, bug.to_string())
                .env("KVTIDE_SIM_SEED", seed.to_string())
                .output()
                .expect("the child runs");
            let said = String::from_utf8_lossy(&child.stderr);
            if !said.contains(&format!("ended in {code}\n")) || !said.contains(says) || !said.contains(text) {
                missed.push(format!("bug {bug}, seed {seed}: {said}"));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
