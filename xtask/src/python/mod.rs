//! The Python package: its wheel, and its tests in a separate virtual environment against a daemon of this build.

pub mod venv;

use crate::run::{Error, cargo, root, run, target};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Packages to build the wheel and to test it.
const BUILD: &str = include_str!("build.txt");
const TEST: &str = include_str!("test.txt");

/// Return the folder of the package, which is a separate workspace.
pub fn package() -> PathBuf {
    root().join("ffi/python")
}

pub fn builds() -> PathBuf {
    target().join("python")
}

fn started(doing: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let doing = format!("{doing} {}", path.display());
    move |e| Error::Start(doing, e)
}

/// Return the environment that builds the wheel. Always the same one: with another interpreter cargo would rebuild the native half.
fn builder() -> Result<venv::Python, Error> {
    venv::environment("python-build", BUILD, "")
}

/// Return the environment that tests the wheel.
fn tester() -> Result<venv::Python, Error> {
    venv::environment("python", TEST, "")
}

/// Make both environments.
pub fn environments() -> Result<(), Error> {
    builder()?;
    tester().map(|_| ())
}

/// Build the release wheel, the only file in `target/python/wheels`, and return its path.
pub fn wheel() -> Result<PathBuf, Error> {
    let _locked = locked()?;
    build_wheel("release")
}

/// Build the wheel as it is shipped, with the profile of packages.
pub fn shipped_wheel() -> Result<PathBuf, Error> {
    let _locked = locked()?;
    build_wheel("dist")
}

/// Return the wheel that was built last, if there is one.
pub fn built_wheel() -> Result<Option<PathBuf>, Error> {
    let _locked = locked()?;
    let entries = std::fs::read_dir(builds().join("wheels")).into_iter().flatten();
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).next())
}

/// Wait for other processes that build or install wheels: the gate runs several of them at once.
fn locked() -> Result<File, Error> {
    let path = builds().join("wheels.lock");
    std::fs::create_dir_all(builds()).map_err(started("create", &builds()))?;
    let file = File::create(&path).map_err(started("create", &path))?;
    file.lock().map_err(started("lock", &path))?;
    Ok(file)
}

fn build_wheel(profile: &str) -> Result<PathBuf, Error> {
    let python = builder()?;
    let folder = builds().join(if profile == "release" { "wheels" } else { "wheels-shipped" });
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(started("remove", &folder))?;
    }
    let mut maturin = python.module("maturin");
    maturin.args(["build", "--profile", profile, "--locked", "--quiet", "--interpreter"]).arg(python.program());
    maturin.arg("--out").arg(&folder);
    // The same sources give the same bytes.
    maturin.current_dir(package()).env("CARGO_TARGET_DIR", builds()).env("SOURCE_DATE_EPOCH", "315532800");
    // In a wheel the module would keep its debug information.
    maturin.envs([("CARGO_PROFILE_DIST_DEBUG", "none"), ("CARGO_PROFILE_DIST_STRIP", "symbols")]);
    run(&mut maturin)?;
    let entries = std::fs::read_dir(&folder).map_err(started("list", &folder))?;
    let mut wheels: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    match (wheels.pop(), wheels.len()) {
        (Some(wheel), 0) => Ok(wheel),
        (_, others) => Err(Error::Check(format!("{} holds {others} other wheels", folder.display()))),
    }
}

/// Build the wheel and install it into an environment that already has its dependencies. Return its path. An environment that has this
/// wheel is left alone: an engine may run there.
pub fn install(python: &venv::Python) -> Result<PathBuf, Error> {
    let wheel = wheel()?;
    install_wheel(python, &wheel)?;
    Ok(wheel)
}

/// Install a wheel of the package into an environment that has its dependencies, unless it is this one.
pub fn install_wheel(python: &venv::Python, wheel: &Path) -> Result<(), Error> {
    let _locked = locked()?;
    let built = std::fs::read(wheel).map_err(started("read", wheel))?;
    let installed = python.binary("kvtide.whl");
    if std::fs::read(&installed).is_ok_and(|installed| installed == built) {
        return Ok(());
    }
    // Never there while another one may be installed.
    match std::fs::remove_file(&installed) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(started("remove", &installed)(error)),
        _ => {}
    }
    let install = ["install", "--quiet", "--no-deps", "--no-index", "--force-reinstall"];
    run(python.module("pip").args(install).arg(wheel))?;
    std::fs::write(&installed, built).map_err(started("write", &installed))
}

/// Return the release build of the daemon; build it, and the relay beside it, if necessary.
pub fn daemon() -> Result<PathBuf, Error> {
    run(cargo().args(["build", "--release", "--locked", "--bin", "kvtided"]))?;
    // On its own: a dependency of the relay turns features on that the daemon does not need.
    run(cargo().args(["build", "--release", "--locked", "-p", "kvtide-relay"]))?;
    let daemon = target().join("release/kvtided");
    daemon.canonicalize().map_err(started("find", &daemon))
}

/// Test the scripts of the GPU bundle, on a bundle of stand-ins for the binaries.
fn bundle_scripts(python: &venv::Python) -> Result<(), Error> {
    let mut tests = python.module("unittest");
    // Nothing is written beside the sources.
    tests.args(["discover", "--start-directory", "tests"]).env("PYTHONDONTWRITEBYTECODE", "1");
    run(tests.current_dir(root().join("kernels/gpu")))
}

/// Lint the native half, build the wheel, install it beside torch and transformers, check its types, and run its tests; the tests
/// of the CUDA half use the stand-in driver. Then test the scripts of the GPU bundle.
pub fn check() -> Result<(), Error> {
    let manifest = package().join("Cargo.toml");
    run(cargo().args(["fmt", "--check", "--manifest-path"]).arg(&manifest))?;
    let mut clippy = cargo();
    clippy.args(["clippy", "--locked", "--manifest-path"]).arg(&manifest).args(["--", "-D", "warnings"]);
    // A separate target folder from the wheel's build: pyo3 reads variables that maturin sets, and cargo would rebuild it after
    // each change of them.
    run(clippy.env("CARGO_TARGET_DIR", builds().join("lint")))?;
    let python = tester()?;
    let wheel = install(&python)?;
    let cache = builds().join("mypy");
    run(python.module("mypy").arg("--cache-dir").arg(&cache).current_dir(package()))?;
    run(python.module("mypy.stubtest").arg("kvtide._native").current_dir(package()))?;
    let daemon = daemon()?;
    // Not from the package's folder, so that the installed package is tested.
    let mut tests = python.module("pytest");
    tests
        .args(["-q", "-p", "no:cacheprovider", "-c"])
        .arg(package().join("pyproject.toml"))
        .arg(package().join("tests"));
    let standin = crate::gpu_sim::build()?;
    run(tests.env("KVTIDED", daemon).env("KVTIDE_LIBCUDA", standin).current_dir(builds()))?;
    bundle_scripts(&python)?;
    println!("python: {}", wheel.display());
    Ok(())
}
