//! Model checking: loom explores the interleavings of the lock-free parts.

use crate::run::{Error, cargo, root, run, target};

/// Run every `loom_*` test of the crates that have any. Their builds differ by a cfg, so they use a separate target folder.
pub fn check() -> Result<(), Error> {
    let mut command = cargo();
    command.args(["test", "--profile", "loom", "--locked"]);
    for (package, folder) in [("kvtide-wire", "ffi/wire/tests"), ("kvtide-client", "ffi/client/tests")] {
        let mut tests: Vec<String> = std::fs::read_dir(root().join(folder))
            .map_err(|e| Error::Start(format!("list {folder}"), e))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|name| Some(name.strip_suffix(".rs")?.to_string()))
            .filter(|name| name.starts_with("loom_"))
            .collect();
        tests.sort();
        if tests.is_empty() {
            return Err(Error::Usage(format!("{folder} contains no loom_* test")));
        }
        command.args(["-p", package]);
        for test in &tests {
            command.args(["--test", test]);
        }
    }
    // No model runs a kernel. With a failing C++ compiler the stand-in driver, a dependency of other tests, is built without
    // kernels.
    run(command.env("CXX", "false").env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target().join("loom")))
}
