//! The stand-in for the CUDA driver: builds it and says where it is.

use crate::run::{Error, cargo, run, target};
use std::path::PathBuf;

/// Builds the stand-in and returns the path of its library.
pub fn build() -> Result<PathBuf, Error> {
    run(cargo().args(["build", "--locked", "--package", "kvtide-cuda-sim", "--lib"]))?;
    let library = target().join("debug/libkvtide_cuda_sim.so");
    // Absolute, as it is handed to processes that run elsewhere.
    library.canonicalize().map_err(|e| Error::Start(format!("find {}, which was just built", library.display()), e))
}

/// Builds it and prints its path, or with `env` the variable that has everything of ours use it.
pub fn print(env: bool) -> Result<(), Error> {
    let library = build()?;
    println!("{}{}", if env { "KVTIDE_LIBCUDA=" } else { "" }, library.display());
    Ok(())
}
