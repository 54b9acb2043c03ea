//! `cargo xtask gpu-bundle`: create one folder that runs all GPU tests and GPU benches on a machine with a driver and a Python with
//! torch.
//!
//! Gathers the outputs of other crates: the release binaries, the test executables that can use a device, the Python wheel, the
//! stand-in driver (used to try the folder on a machine without a GPU), and `kernels/gpu`, which runs everything. It measures
//! nothing itself.
//!
//! With `--dry` it takes binaries that the gate has built anyway, and makes no archive: that is for trying the folder on the stand-in,
//! within seconds.

use crate::run::{Error, cargo, output, root, run, target};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maximum size of the folder, so that it can be copied to a machine with a GPU.
const BYTES_MAX: u64 = 50 << 20;

/// Packages whose tests can use a device, and the prefixes of the names of those test executables.
const TESTS: &[(&str, &[&str])] = &[("kvtide-kernels", &[""]), ("kvtide-client", &["cuda"])];

/// Test executables that read the sources, which are not in the folder, and use no device.
const TESTS_OF_SOURCES: &[&str] = &["params", "header"];

/// Test executables that launch kernels: they also run under compute-sanitizer.
const SANITIZED: &[&str] = &["attention", "copy", "pages"];

/// Archive with the compressed content, and the folders in it; `run.py` unpacks it beside itself.
/// With the symbol tables, gzip would not keep it below the maximum size.
const PAYLOAD: (&str, &[&str]) = ("payload.tar.xz", &["bin", "model", "sim", "tests", "wheel"]);

/// Examples of the Python package that the benches use.
const EXAMPLES: &[&str] = &["decode.py", "kernels_on_cpu.py", "paged_batch.py"];

/// Folder of the tests of the scripts, in `kernels/gpu`.
const SCRIPT_TESTS: &str = "tests";

/// A test executable.
#[derive(Clone)]
struct Test {
    /// The package as cargo identifies it, with its name behind a `#`.
    package: String,
    name: String,
    file: PathBuf,
}

impl Test {
    /// Return whether it is one of a package that can use a device.
    fn is_of(&self, package: &str, prefixes: &[&str]) -> bool {
        self.package.contains(&format!("#{package}@"))
            && prefixes.iter().any(|prefix| self.name.starts_with(prefix))
            && !TESTS_OF_SOURCES.contains(&self.name.as_str())
    }
}

/// Build everything, fill the folder and compress it.
pub fn make() -> Result<(), Error> {
    let folder = emptied("gpu-bundle")?;
    run(cargo().args(["build", "--release", "--locked", "-p", "kvtide", "-p", "kvtide-cuda-sim"]))?;
    // Release, because the references compute in f64 on one thread.
    let tests = TESTS.iter().map(|(package, _)| tests(&["--release", "-p", package])).collect::<Result<Vec<_>, _>>()?;
    fill(&folder, &target().join("release/libkvtide_cuda_sim.so"), tests.concat(), Some(crate::python::wheel()?))?;
    let (archive, packed) = PAYLOAD;
    // Python has the compressor; a machine that builds may lack the program xz.
    run(Command::new("python3").current_dir(&folder).args(["-m", "tarfile", "--create", archive]).args(packed))?;
    for name in packed {
        let part = folder.join(name);
        std::fs::remove_dir_all(&part).map_err(|e| Error::Start(format!("remove {}", part.display()), e))?;
    }
    let bytes = weigh(&folder)?;
    println!("gpu-bundle: {} ({:.1} MiB)", folder.display(), bytes as f64 / 1048576.0);
    if bytes > BYTES_MAX {
        return Err(Error::Check(format!("the bundle has {bytes} bytes, at most {BYTES_MAX}")));
    }
    Ok(())
}

/// Fill a folder with what `cargo build --release -p kvtide` and `cargo test --workspace --no-run` have made, and with the wheel if there is
/// one.
pub fn make_dry() -> Result<(), Error> {
    let folder = emptied("gpu-bundle-dry")?;
    // The same command as the gate's, so that nothing is compiled.
    let tests = tests(&["--workspace"])?;
    fill(&folder, &target().join("debug/libkvtide_cuda_sim.so"), tests, crate::python::built_wheel()?)?;
    println!("gpu-bundle: {}, for a dry run alone", folder.display());
    Ok(())
}

/// Return the path of an empty folder below the target folder.
fn emptied(name: &str) -> Result<PathBuf, Error> {
    let folder = target().join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| Error::Start(format!("remove {}", folder.display()), e))?;
    }
    Ok(folder)
}

/// Copy everything into the folder and write its list.
fn fill(folder: &Path, sim: &Path, tests: Vec<Test>, wheel: Option<PathBuf>) -> Result<(), Error> {
    for name in ["kvtide", "kvtided"] {
        carry(&target().join("release").join(name), &folder.join("bin").join(name))?;
    }
    carry(sim, &folder.join("sim/libcuda.so.1"))?;

    let mut listed = vec![];
    for &(package, prefixes) in TESTS {
        for test in tests.iter().filter(|test| test.is_of(package, prefixes)) {
            let file = format!("tests/{}-{}", package.trim_start_matches("kvtide-"), test.name);
            carry(&test.file, &folder.join(&file))?;
            listed
                .push(json!({ "name": test.name, "file": file, "sanitize": SANITIZED.contains(&test.name.as_str()) }));
        }
    }
    if listed.is_empty() {
        return Err(Error::Check("no test executable was found".to_string()));
    }
    if let Some(wheel) = wheel {
        copy(&wheel, &folder.join("wheel").join(wheel.file_name().unwrap_or_default()))?;
    }
    tree(&root().join("kernels/gpu"), folder)?;
    for name in EXAMPLES {
        copy(&root().join("ffi/python/examples").join(name), &folder.join("benches").join(name))?;
    }
    for name in ["config.json", "model.safetensors"] {
        copy(&root().join("benches/demo/assets").join(name), &folder.join("model").join(name))?;
    }
    let manifest = json!({ "commit": commit()?, "built": now()?, "tests": listed });
    println!("gpu-bundle: {} test executables", listed.len());
    write(&folder.join("manifest.json"), &format!("{manifest:#}\n"))
}

/// Build test executables and return them in the order of their names.
fn tests(which: &[&str]) -> Result<Vec<Test>, Error> {
    let mut command = cargo();
    command.args(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"]).args(which);
    let said = output(&mut command)?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut found: Vec<Test> = messages
        .filter(|m| m["reason"] == "compiler-artifact" && m["profile"]["test"] == true)
        .filter_map(|m| {
            let (package, name) = (m["package_id"].as_str()?.to_string(), m["target"]["name"].as_str()?.to_string());
            Some(Test { package, name, file: PathBuf::from(m["executable"].as_str()?) })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Copy a binary with its symbol table, which names the functions of a backtrace, but without debug information.
fn carry(from: &Path, to: &Path) -> Result<(), Error> {
    copy(from, to)?;
    run(Command::new("strip").arg("--strip-debug").arg(to))
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    make_room(to)?;
    let tried = || format!("copy {} to {}", from.display(), to.display());
    std::fs::copy(from, to).map(|_| ()).map_err(|e| Error::Start(tried(), e))
}

fn write(to: &Path, text: &str) -> Result<(), Error> {
    make_room(to)?;
    std::fs::write(to, text).map_err(|e| Error::Start(format!("write {}", to.display()), e))
}

fn make_room(to: &Path) -> Result<(), Error> {
    let folder = to.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|e| Error::Start(format!("create {}", folder.display()), e))
}

/// Copy a folder's files and folders, except the tests of its scripts and the files that Python writes beside its sources.
fn tree(from: &Path, to: &Path) -> Result<(), Error> {
    for path in children(from)? {
        let name = path.file_name().unwrap_or_default();
        if path.is_file() {
            copy(&path, &to.join(name))?;
        } else if name != "__pycache__" && name != SCRIPT_TESTS {
            tree(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn weigh(path: &Path) -> Result<u64, Error> {
    if path.is_file() {
        return path.metadata().map(|m| m.len()).map_err(|e| Error::Start(format!("weigh {}", path.display()), e));
    }
    children(path)?.iter().map(|child| weigh(child)).sum()
}

fn children(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::Start(format!("list {}", folder.display()), e))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

/// Return the commit that was built, with a mark if the tree has uncommitted changes.
fn commit() -> Result<String, Error> {
    let git = |words: &[&str]| output(Command::new("git").current_dir(root()).args(words));
    let clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Ok(format!("{}{}", git(&["rev-parse", "HEAD"])?.trim(), if clean { "" } else { "+changes" }))
}

fn now() -> Result<String, Error> {
    Ok(output(Command::new("date").args(["-u", "+%FT%TZ"]))?.trim().to_string())
}
