//! Fuzzing on the stable toolchain: everything that comes from outside.

use crate::run::{Error, cargo, root, run, target};
use std::path::Path;
use std::process::Command;

/// Seconds for each target where none are given.
pub const SECONDS_DEFAULT: u32 = 15;

/// Megabytes of memory above which a run counts as a failure.
const MEMORY_MB_MAX: u32 = 2048;

/// Builds all targets with coverage instrumentation and address sanitizer, and runs each in turn on its committed corpus.
pub fn all(seconds: u32) -> Result<(), Error> {
    let folder = root().join("tests/fuzz");
    let build = target().join("fuzz");
    let mut command = cargo();
    command.args(["build", "--release", "--target", "x86_64-unknown-linux-gnu", "--manifest-path"]);
    run(command
        .arg(folder.join("Cargo.toml"))
        .env("RUSTC_BOOTSTRAP", "1") // sanitizers are unstable flags
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", &build))?;
    let names = targets(&folder)?;
    for name in &names {
        let work = build.join("corpus").join(name);
        std::fs::create_dir_all(&work).map_err(|e| Error::Start(format!("create {}", work.display()), e))?;
        let mut fuzz = Command::new(build.join("x86_64-unknown-linux-gnu/release").join(name));
        fuzz.current_dir(&build).arg(&work).arg(folder.join("corpus").join(name));
        fuzz.arg(format!("-max_total_time={seconds}")).arg(format!("-rss_limit_mb={MEMORY_MB_MAX}"));
        run(fuzz.args(["-print_final_stats=1", "-verbosity=0"]))?;
    }
    println!("fuzz: {} targets, {seconds} s each, no crash", names.len());
    Ok(())
}

/// Coverage counters for libFuzzer, and the address sanitizer.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// One target a file in fuzz_targets/.
fn targets(folder: &Path) -> Result<Vec<String>, Error> {
    let list = folder.join("fuzz_targets");
    let mut names: Vec<String> = std::fs::read_dir(&list)
        .map_err(|e| Error::Start(format!("list {}", list.display()), e))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_string()))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(Error::Usage(format!("{} holds no target: nothing would be fuzzed", list.display())));
    }
    Ok(names)
}
