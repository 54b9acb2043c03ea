//! Blocks of a launch interleave. What one of them writes, another reads only after fences and an atomic operation between them.

mod common;

use common::{Cuda, LAUNCH_FAILED, Sample};
use std::process::Command;

const CASE: &str = "KVTIDE_SIM_TEST_BUG";
const BLOCKS: u32 = 19;

/// Bugs of `blocks.cu` that are caught, and those kernels that are right.
const WRONG: std::ops::RangeInclusive<u32> = 1..=8;
const RIGHT: [u32; 7] = [0, 9, 10, 11, 12, 13, MEETS_ANOTHER];
const MEETS_ANOTHER: u32 = 14;

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
    if params.bug == MEETS_ANOTHER {
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
    for bug in WRONG.chain(RIGHT) {
        let wrong = WRONG.contains(&bug);
        let (code, says) = if wrong { (LAUNCH_FAILED, "with no __threadfence and atomic operation") } else { (0, "") };
        for seed in 1..=5 {
            let child = Command::new(&own)
                .args(["--exact", "blocks_case", "--nocapture"])
                .env(CASE, bug.to_string())
                .env("KVTIDE_SIM_SEED", seed.to_string())
                .output()
                .expect("the child runs");
            let said = String::from_utf8_lossy(&child.stderr);
            if !said.contains(&format!("ended in {code}\n")) || !said.contains(says) {
                missed.push(format!("bug {bug}, seed {seed}: {said}"));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
