//! Build helpers: what the gate runs and a developer may want to run alone. `cargo xtask help` lists them.
//!
//! No product code lives here, and no product crate may use it.
#![forbid(unsafe_code)]

mod deny;
mod fuzz;
mod gpu_sim;
mod kernels;
mod loom;
mod python;
mod run;

use std::process::ExitCode;

const HELP: &str = "cargo xtask COMMAND

  deny              cargo-deny check bans licenses sources (installs cargo-deny below target/tools)
  kernels [--write] [--only NAME]
                    compile every CUDA kernel for every architecture, print what each takes, and compare (or write) the PTX
  gpu-sim [--env]   build the stand-in CUDA driver and print its path, or KVTIDE_LIBCUDA=PATH for `env $(cargo xtask gpu-sim --env)`
  loom              model-check the rings, the wake-up and the page-table protocol
  fuzz [SECONDS]    run every fuzz target for SECONDS each (default 15), on the stable toolchain
  python [--wheel]  test the Python package against a daemon of this build, or build its release wheel and print the path
  help              this text";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["deny"] => deny::check(),
        ["loom"] => loom::check(),
        ["fuzz"] => fuzz::all(fuzz::SECONDS_DEFAULT),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::all(seconds),
            Err(e) => Err(run::Error::Usage(format!("fuzz takes whole seconds, not {seconds:?}: {e}"))),
        },
        ["kernels", rest @ ..] => kernels::Options::parse(rest).and_then(|options| kernels::check(&options)),
        ["gpu-sim"] => gpu_sim::print(false),
        ["gpu-sim", "--env"] => gpu_sim::print(true),
        ["python"] => python::check(),
        ["python", "--wheel"] => python::wheel().map(|wheel| println!("{}", wheel.display())),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(run::Error::Usage(format!("no command {words:?}\n\n{HELP}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::from(if matches!(e, run::Error::Usage(_)) { 2 } else { 1 })
        }
    }
}
