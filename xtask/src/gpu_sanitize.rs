//! Run the kernels' tests under other interleavings.
//!
//! The stand-in checks every load and store of a kernel when it is made: bounds, alignment, races and uninitialized bytes in shared
//! memory, undefined behaviour. A run can find only errors in the order in which its threads, blocks and streams ran, and that
//! order is drawn from a seed.

use crate::run::{Error, cargo, run};

/// Default number of interleavings.
pub const ROUNDS_DEFAULT: u32 = 3;

/// Run the tests of the kernels with `rounds` seeds. The seeds are the same in every run; the command shown after a failure
/// contains the seed.
pub fn check(rounds: u32) -> Result<(), Error> {
    for seed in 1..=rounds {
        let mut command = cargo();
        command.args(["test", "--quiet", "--locked", "-p", "kvtide-kernels"]);
        run(command.env("KVTIDE_SIM_SEED", seed.to_string()))?;
    }
    println!("gpu-sanitize: the kernels' tests under {rounds} interleavings, no fault");
    Ok(())
}
