//! Build helpers of the gate, which developers may also run directly. `cargo xtask help` lists them.
//!
//! This crate contains no product code, and no product crate may use it.
#![forbid(unsafe_code)]

mod deny;
mod e2e;
mod fuzz;
mod gpu_bundle;
mod gpu_sanitize;
mod gpu_sim;
mod kernels;
mod loom;
mod machine;
mod package;
mod python;
mod quickstart;
mod run;

use std::process::ExitCode;

const HELP: &str = "cargo xtask COMMAND

  deny              check bans, licences and sources with cargo-deny (installed below target/tools)
  kernels [--write] [--estimate] [--only NAME] [--arch NUMBER]
                    compile every CUDA kernel for every architecture (or for one: 80, 86, ...), print its resources, and
                    compare (or write) the PTX; --estimate: print what decode attention may reach, from its machine code
  gpu-bundle [--dry]
                    build a folder that runs all GPU tests and benches on a machine with a driver and a Python with torch (or one for a
                    dry run here, from binaries that are built already)
  gpu-sanitize [ROUNDS]
                    run the kernels' tests on the stand-in driver, which checks every access, under ROUNDS interleavings (default 3)
  gpu-sim [--env]   build the stand-in CUDA driver and print its path, or KVTIDE_LIBCUDA=PATH for `env $(cargo xtask gpu-sim --env)`
  loom              model-check the rings, the wake-up and the page-table protocol
  e2e vllm [--json] [--brief] [--case NAME]
                    test real vLLM processes with the connector and a daemon of this build; print a line for each case
  e2e vllm-paged [--json] [--brief] [--case NAME]
                    the same for vLLM decoding over kvtide's pages; --brief: some of the cases
  e2e llama [--build]
                    test examples/llama.cpp, built with llama.cpp, on a small model: a conversation continues without prefill
  e2e quickstart [--json] [--warm] [--case NAME]
                    run the commands of README and the quickstarts literally, in an empty environment; --warm: with this build and
                    the environment of the other cases
  e2e cli [--json]  run the tool against real daemons: the examples of every help, what operators do
  e2e web [--json] [--shots DIR] [--case NAME]
                    run the web page's cases in Chromium (Debian: chromium)
  e2e relay         two machines with relays and a Valkey: the commands of the quickstart, then the cases with vLLM
  e2e sglang        run the storage backend's tests against SGLang's own classes
  environments      create the Python environments of all commands in advance
  package [NAME]... build wheel, deb, rpm, image, debug and sbom (or those named) with the profile `dist` into target/dist; image: as
                    root, with mmdebstrap and buildah
  release VERSION   check that versions, changelog and the numbers of protocol, ABI and format agree
  e2e packages [--json] [--case NAME]
                    install the packages as users do: the wheel in an empty environment, .deb and .rpm in a machine with systemd, the
                    image in podman
  e2e upgrade [--json] [--case NAME]
                    clients and daemons of the release before with those of this one, and each store with both daemons
  e2e kubernetes    render configs/kubernetes, and check it against Kubernetes' schemas and the daemon
  fuzz [SECONDS]    run every fuzz target for SECONDS each (default 15) from a random seed, on the stable toolchain
  fuzz --replay     run every fuzz target on its committed corpus and a fixed number of mutations from a fixed seed
  python [--wheel]  test the Python package against a daemon of this build, or build its release wheel and print the path
  help              print this text";

fn main() -> ExitCode {
    if let Err(error) = run::without_own_variables() {
        eprintln!("xtask: cannot run again: {error}");
        return ExitCode::FAILURE;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["deny"] => deny::check(),
        ["e2e", "vllm", rest @ ..] => e2e::vllm(rest),
        ["e2e", "vllm-paged", rest @ ..] => e2e::vllm_paged(rest),
        ["e2e", "quickstart", rest @ ..] => quickstart::check(rest),
        ["e2e", "relay"] => quickstart::check(&["--warm", "--case", "two-machines"])
            .and_then(|()| e2e::vllm(&["--case", "relay", "--case", "relay-cut"])),
        ["e2e", "sglang"] => e2e::sglang(),
        ["e2e", "llama"] => e2e::llama(),
        ["e2e", "llama", "--build"] => e2e::llama_build().map(|_| ()),
        ["environments"] => environments(),
        ["loom"] => loom::check(),
        ["fuzz"] => fuzz::all(fuzz::Until::Seconds(fuzz::SECONDS_DEFAULT)),
        ["fuzz", "--replay"] => fuzz::all(fuzz::Until::Replayed),
        ["fuzz", seconds] => number("fuzz takes whole seconds or --replay", seconds)
            .and_then(|seconds| fuzz::all(fuzz::Until::Seconds(seconds))),
        ["kernels", rest @ ..] => kernels::Options::parse(rest).and_then(|options| kernels::check(&options)),
        ["e2e", "web", words @ ..] => e2e::web(words),
        ["e2e", "cli"] => e2e::cli(false),
        ["e2e", "cli", "--json"] => e2e::cli(true),
        ["gpu-bundle"] => gpu_bundle::make(),
        ["gpu-bundle", "--dry"] => gpu_bundle::make_dry(),
        ["gpu-sanitize"] => gpu_sanitize::check(gpu_sanitize::ROUNDS_DEFAULT),
        ["gpu-sanitize", rounds] => {
            number("gpu-sanitize takes a number of rounds", rounds).and_then(gpu_sanitize::check)
        }
        ["gpu-sim"] => gpu_sim::print(false),
        ["gpu-sim", "--env"] => gpu_sim::print(true),
        ["release", version] => package::release::check(version),
        ["package", names @ ..] => package::make(names),
        ["e2e", "packages", words @ ..] => {
            package::check::run_cases("packages", &package::check::CASES, || Ok(()), words)
        }
        ["e2e", "upgrade", words @ ..] => {
            package::check::run_cases("upgrade", &package::upgrade::CASES, package::upgrade::build, words)
        }
        ["e2e", "kubernetes"] => package::kubernetes::check(),
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

/// Create every Python environment that the other commands need: a minute of network and disk access, in advance.
fn environments() -> Result<(), run::Error> {
    kernels::environment()?;
    python::environments()?;
    package::kubernetes::environment()?;
    e2e::environments()
}

fn number(takes: &str, word: &str) -> Result<u32, run::Error> {
    word.parse().map_err(|e| run::Error::Usage(format!("{takes}, not {word:?}: {e}")))
}
