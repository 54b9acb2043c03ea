//! The kernels' tests under other interleavings.
//!
//! On the stand-in every load and store of a kernel is checked as it is made: bounds, alignment, shared memory for races and for bytes
//! that nobody wrote, undefined behaviour. What a run can see depends on the order in which threads, blocks and streams ran, which
//! is drawn from a seed.

use crate::run::{Error, cargo, run};

/// Interleavings where no number is given.
pub const ROUNDS_DEFAULT: u32 = 3;

/// Runs the tests of the kernels with so many seeds. The seeds are the same in every run; one that fails is in the command shown.
pub fn check(rounds: u32) -> Result<(), Error> {
    for seed in 1..=rounds {
        let mut command = cargo();
        command.args(["test", "--quiet", "--locked", "-p", "kvtide-kernels"]);
        run(command.env("KVTIDE_SIM_SEED", seed.to_string()))?;
    }
    println!("gpu-sanitize: the kernels' tests under {rounds} interleavings, no fault");
    Ok(())
}
