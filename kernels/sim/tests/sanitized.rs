//! The emulator itself under AddressSanitizer and UndefinedBehaviorSanitizer, with its sample kernels unchanged.
//!
//! Kernels in the stand-in are compiled with separate checks (build.rs): every access against the exact bounds of its allocation,
//! and undefined behaviour. Those checks do not cover the emulator; this test does.

use std::path::{Path, PathBuf};
use std::process::Command;

fn sources(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the folder of this crate");
    let files = entries.map(|entry| entry.expect("a readable folder").path());
    files.filter(|path| path.extension().is_some_and(|e| e == extension)).collect()
}

/// Run the compiler with the flags of this library.
fn compile(arguments: impl FnOnce(&mut Command)) {
    let mut command = Command::new(std::env::var("CXX").unwrap_or_else(|_| "g++".into()));
    command.args(["-std=c++17", "-O1", "-g1", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra"]);
    arguments(&mut command);
    let done = command.output().expect("a C++ compiler");
    assert!(done.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_emulator_is_clean() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut objects = vec![];
    for sample in sources(&here.join("samples"), "cu") {
        let object = out.join(sample.with_extension("o").file_name().expect("a file"));
        compile(|command| {
            command.args(["-x", "c++", "-DKVT_HOST", "-Wno-unknown-pragmas", "-Wno-infinite-recursion"]);
            command.args(["-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"]);
            command.arg("-I").arg(here.join("../cuda")).arg("-c").arg(&sample).arg("-o").arg(&object);
        });
        objects.push(object);
    }
    let program = out.join("sanitized");
    compile(|command| {
        command.args(["-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o"]).arg(&program);
        command.arg(here.join("tests/sanitized/main.cpp")).args(sources(&here.join("emu"), "cpp")).args(&objects);
    });
    // The emulator's own handler of SIGSEGV is part of the test.
    let ran = Command::new(&program).env("ASAN_OPTIONS", "handle_segv=0").output().expect("the program was just built");
    let (said, complained) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.ends_with("clean\n"), "{}\n{said}\n{complained}", ran.status);
}
