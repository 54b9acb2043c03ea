//! Fuzzing on the stable toolchain: all parsers of external input.

use crate::run::{Error, cargo, root, run, target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Default seconds for each target.
pub const SECONDS_DEFAULT: u32 = 15;

/// Number of inputs that a replay runs on each target: the committed ones, then mutations of them.
const REPLAY_RUNS: u32 = 2000;

/// Seed of a replay's mutations. It is the same in every run, so that a failure is caused by the change.
const REPLAY_SEED: u32 = 1;

/// Megabytes of memory above which a run counts as a failure.
const MEMORY_MB_MAX: u32 = 2048;

/// Length of a run.
#[derive(Clone, Copy)]
pub enum Until {
    /// For this many seconds, from a random seed, on the corpus that earlier runs grew.
    Seconds(u32),
    /// For [`REPLAY_RUNS`] inputs from [`REPLAY_SEED`], on the committed corpus only.
    Replayed,
}

/// Build all targets with coverage instrumentation and address sanitizer, and run each in turn on its committed corpus.
pub fn all(until: Until) -> Result<(), Error> {
    let folder = root().join("tests/fuzz");
    let build = target().join("fuzz");
    let mut command = cargo();
    command.args(["build", "--release", "--locked", "--target", "x86_64-unknown-linux-gnu", "--manifest-path"]);
    run(command
        .arg(folder.join("Cargo.toml"))
        .env("RUSTC_BOOTSTRAP", "1") // sanitizers are unstable flags
        .env("RUSTFLAGS", FLAGS)
        .env("CARGO_TARGET_DIR", &build))?;
    let names = targets(&folder)?;
    for name in &names {
        let committed = folder.join("corpus").join(name);
        let grown = grown(&build, name, until)?;
        let mut fuzz = Command::new(build.join("x86_64-unknown-linux-gnu/release").join(name));
        fuzz.current_dir(&build).arg(&grown).arg(&committed).arg(format!("-rss_limit_mb={MEMORY_MB_MAX}"));
        match until {
            Until::Seconds(seconds) => fuzz.arg(format!("-max_total_time={seconds}")),
            Until::Replayed => fuzz.args([format!("-runs={REPLAY_RUNS}"), format!("-seed={REPLAY_SEED}")]),
        };
        run(fuzz.args(["-print_final_stats=1", "-print_funcs=0", "-verbosity=0"]))?;
    }
    let each = match until {
        Until::Seconds(seconds) => format!("{seconds} s"),
        Until::Replayed => format!("{REPLAY_RUNS} inputs from seed {REPLAY_SEED}"),
    };
    println!("fuzz: {} targets, {each} each, no crash", names.len());
    Ok(())
}

/// Return the folder to which libFuzzer adds new inputs. A replay begins with an empty one.
fn grown(build: &Path, name: &str, until: Until) -> Result<PathBuf, Error> {
    let folder = match until {
        Until::Seconds(_) => build.join("corpus").join(name),
        Until::Replayed => build.join("replayed").join(name),
    };
    if matches!(until, Until::Replayed) && folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| Error::Start(format!("remove {}", folder.display()), e))?;
    }
    std::fs::create_dir_all(&folder).map_err(|e| Error::Start(format!("create {}", folder.display()), e))?;
    Ok(folder)
}

/// Coverage counters for libFuzzer, and the address sanitizer.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Return the targets: one for each file in fuzz_targets/.
fn targets(folder: &Path) -> Result<Vec<String>, Error> {
    let list = folder.join("fuzz_targets");
    let mut names: Vec<String> = std::fs::read_dir(&list)
        .map_err(|e| Error::Start(format!("list {}", list.display()), e))?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".rs")?.to_string()))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(Error::Usage(format!("{} contains no fuzz target", list.display())));
    }
    Ok(names)
}
