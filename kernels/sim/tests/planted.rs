//! The emulator catches bugs of kernels, each with its own message, and accepts a correct kernel.
//!
//! A fault loses the device for its process, so each case runs in its own child process.

mod common;

use common::{Cuda, LAUNCH_FAILED, Sample};
use std::process::Command;

const CASE: &str = "KVTIDE_SIM_TEST_BUG";
const SHARED: u32 = 512;

const ILLEGAL_ADDRESS: u32 = 700;
const MISALIGNED: u32 = 716;

/// Bug of `planted.cu`, result of the stream, and part of the message.
const CASES: &[(u32, u32, &str)] = &[
    (1, LAUNCH_FAILED, "reads shared byte"),
    (2, ILLEGAL_ADDRESS, "neither device memory nor registered host memory"),
    (3, LAUNCH_FAILED, "which was never written"),
    (4, LAUNCH_FAILED, "deadlock: 64 of 128 threads have returned; 64 wait at a barrier"),
    (5, LAUNCH_FAILED, "threads meet at different barriers"),
    (6, LAUNCH_FAILED, "while a cp.async to it is under way"),
    (7, LAUNCH_FAILED, "lanes of a warp diverge"),
    (8, MISALIGNED, "alignment 16"),
    (9, LAUNCH_FAILED, "the kernel trapped"),
    (10, ILLEGAL_ADDRESS, "outside of the 512 dynamic bytes"),
    (11, LAUNCH_FAILED, "with no barrier between"),
    (12, ILLEGAL_ADDRESS, ""),
    (13, LAUNCH_FAILED, "division by zero"),
    (14, LAUNCH_FAILED, "which is not in the mask"),
    (15, ILLEGAL_ADDRESS, "a thread's stack at its end"),
    (16, ILLEGAL_ADDRESS, "neither device memory nor registered host memory"),
    (17, LAUNCH_FAILED, "an index beyond its array"),
    (18, ILLEGAL_ADDRESS, "parameters or constants"),
    (19, LAUNCH_FAILED, "wrote with no barrier between"),
    (20, LAUNCH_FAILED, "read with no barrier between"),
];

fn planted(cuda: &Cuda, blocks: u32, bug: u32) -> (u32, Vec<u32>) {
    let n = blocks * 128;
    let words: Vec<u32> = (0..n).collect();
    let (input, out) = (cuda.allocate(words.len() * 4), cuda.allocate(blocks as usize * 4));
    cuda.put(input, &words);
    let stream = cuda.stream();
    cuda.launch("kvt_sim_planted", blocks, 128, SHARED, &Sample { input, out, word: 0, n, bug }, stream);
    let code = cuda.finish(stream);
    let sums = if code == 0 { cuda.get(out, blocks as usize) } else { vec![] };
    (code, sums)
}

#[test]
fn a_right_kernel_passes_with_every_order_of_its_threads() {
    let cuda = Cuda::new(&["kvt_sim_planted"]);
    for blocks in [1, 3, 257] {
        let (code, sums) = planted(&cuda, blocks, 0);
        assert_eq!(code, 0);
        for (block, sum) in sums.iter().enumerate() {
            // Each word counts once for its own thread and once for the neighbour's read of the copied data.
            let first = block as u32 * 128;
            assert_eq!(*sum, (first..first + 128).sum::<u32>() * 2, "block {block} of {blocks}");
        }
    }
}

/// Run a case, in the child.
#[test]
fn planted_case() {
    let Ok(bug) = std::env::var(CASE) else { return };
    let cuda = Cuda::new(&["kvt_sim_planted"]);
    let (code, _) = planted(&cuda, 2, bug.parse().expect("a number"));
    eprintln!("ended in {code}");
}

#[test]
fn every_planted_bug_is_caught_by_its_name() {
    kvtide_cuda_sim::install();
    let own = std::env::current_exe().expect("a test has an executable");
    let mut missed = vec![];
    for &(bug, code, says) in CASES {
        for seed in 1..=3 {
            let child = Command::new(&own)
                .args(["--exact", "planted_case", "--nocapture", "--test-threads=1"])
                .env(CASE, bug.to_string())
                .env("KVTIDE_SIM_SEED", seed.to_string())
                .output()
                .expect("the child runs");
            let text = String::from_utf8_lossy(&child.stderr).into_owned();
            let caught = child.status.success() && text.contains(&format!("ended in {code}\n")) && text.contains(says);
            if !caught || !text.contains("kvt_sim_planted: block (") {
                missed.push(format!("bug {bug}, seed {seed}, wanted {code} and {says:?}: {}\n{text}", child.status));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
