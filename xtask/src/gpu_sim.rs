//! Build the stand-in for the CUDA driver and print its path.

use crate::run::{Error, cargo, run, target};
use std::path::PathBuf;

/// Build the stand-in and return the path of its library.
pub fn build() -> Result<PathBuf, Error> {
    run(cargo().args(["build", "--locked", "--package", "kvtide-cuda-sim", "--lib"]))?;
    let library = target().join("debug/libkvtide_cuda_sim.so");
    // Absolute, because processes in other folders use it.
    library.canonicalize().map_err(|e| Error::Start(format!("find {}, which was just built", library.display()), e))
}

/// Build it and print its path, or with `env` the environment variable that makes kvtide use it.
pub fn print(env: bool) -> Result<(), Error> {
    let library = build()?;
    println!("{}{}", if env { "KVTIDE_LIBCUDA=" } else { "" }, library.display());
    Ok(())
}
