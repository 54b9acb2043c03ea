//! Compile the emulator and every kernel of kernels/cuda for the host with g++, and name the library as a driver.
//!
//! Objects are kept between runs and rebuilt when one of their files has changed. Each kernel file becomes a separate unit: its
//! definitions are local, as in a module on a device, so two files may use one name for two things.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

const COMMON: &[&str] =
    &["-std=c++17", "-O2", "-g1", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-Wall", "-Wextra"];
/// The emulator provides the runtime of both sanitizers (emu/access.cpp, emu/fault.cpp).
const KERNEL: &[&str] = &[
    "-DKVT_HOST",
    "-Wno-unknown-pragmas",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-gnu-unique", // statics of inline functions must become local to their file too
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=thread",
    "--param=tsan-instrument-func-entry-exit=0",
    "-fsanitize=undefined",
    "-fno-sanitize-recover=all",
];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(emulator)");
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let kernels = here.parent().expect("a folder above").join("cuda");
    for watched in [&here.join("build.rs"), &here.join("emu"), &here.join("samples"), &kernels] {
        println!("cargo::rerun-if-changed={}", watched.display());
    }
    println!("cargo::rerun-if-env-changed=CXX");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    if !Command::new(&compiler).arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!(
            "cargo::warning={compiler} does not run: the stand-in CUDA driver is built without its kernels, and tests that need them fail (install g++ 11 or newer)"
        );
        return;
    }
    println!("cargo::rustc-cfg=emulator");
    let mut units: Vec<Unit> = files(&here.join("emu"), "cpp").into_iter().map(|f| Unit::emulator(&f, &out)).collect();
    let device: Vec<PathBuf> = files(&kernels, "cu").into_iter().chain(files(&here.join("samples"), "cu")).collect();
    units.extend(device.iter().map(|f| Unit::kernel(f, &kernels, &out)));
    let names: Vec<&str> = device.iter().map(|f| stem(f)).collect();
    units.push(Unit::list(&names, &out));
    let jobs = std::env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1).clamp(1, 16);
    let queue = std::sync::Mutex::new(units.iter());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(unit) = { queue.lock().expect("no compile panics with the lock").next() } {
                    unit.compile(&compiler, &kernels);
                }
            });
        }
    });
    let library = out.join("libkvt_emulator.a");
    let _ = fs::remove_file(&library); // `ar` would keep objects that no longer exist
    run(Command::new("ar").arg("crs").arg(&library).args(units.iter().map(|u| &u.object)));
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=kvt_emulator");
}

/// One object, from one source.
struct Unit {
    source: PathBuf,
    object: PathBuf,
    /// Name under which a kernel file is linked; all other symbols of it are hidden.
    kernel: Option<String>,
}

impl Unit {
    fn emulator(source: &Path, out: &Path) -> Self {
        Self { source: source.into(), object: out.join(format!("emu_{}.o", stem(source))), kernel: None }
    }

    fn kernel(source: &Path, root: &Path, out: &Path) -> Self {
        let name = stem(source);
        let wrapper = out.join(format!("unit_{name}.cpp"));
        let include = if source.starts_with(root) { source.strip_prefix(root).expect("checked") } else { source };
        write(
            &wrapper,
            &format!(
                "#include \"{}\"\nextern \"C\" __attribute__((visibility(\"default\"))) void kvt_emu_unit_{name}() {{}}\n",
                include.display()
            ),
        );
        Self {
            source: wrapper,
            object: out.join(format!("kernel_{name}.o")),
            kernel: Some(format!("kvt_emu_unit_{name}")),
        }
    }

    /// Return a unit with a function that calls one function of each kernel file, so that the linker includes all of them.
    fn list(names: &[&str], out: &Path) -> Self {
        let source = out.join("units.cpp");
        let declared: String = names.iter().map(|n| format!("extern \"C\" void kvt_emu_unit_{n}();\n")).collect();
        let called: String = names.iter().map(|n| format!("    kvt_emu_unit_{n}();\n")).collect();
        write(&source, &format!("{declared}extern \"C\" void kvt_emu_units() {{\n{called}}}\n"));
        Self { source, object: out.join("units.o"), kernel: None }
    }

    fn compile(&self, compiler: &str, kernels: &Path) {
        let depends = self.object.with_extension("d");
        if self.fresh(&depends) {
            return;
        }
        let raw = self.object.with_extension("raw.o");
        let made = if self.kernel.is_some() { &raw } else { &self.object };
        let mut command = Command::new(compiler);
        command.args(COMMON).arg("-MMD").arg("-MF").arg(&depends).arg("-I").arg(kernels);
        if self.kernel.is_some() {
            command.args(KERNEL);
        }
        run(command.arg("-c").arg(&self.source).arg("-o").arg(made));
        if let Some(name) = &self.kernel {
            // Inline functions and templates leave their groups, so that the linker does not replace one file's by another's.
            let merged = self.object.with_extension("merged.o");
            run(Command::new("ld").args(["-r", "--force-group-allocation", "-o"]).arg(&merged).arg(&raw));
            run(Command::new("objcopy").arg(format!("--keep-global-symbol={name}")).arg(&merged).arg(&self.object));
        }
    }

    /// Return whether the object is newer than this program and than all files that it depends on.
    fn fresh(&self, depends: &Path) -> bool {
        let Some(made) = modified(&self.object) else { return false };
        let Ok(list) = fs::read_to_string(depends) else { return false };
        let program = std::env::current_exe().ok().and_then(|p| modified(&p));
        let inputs = list.split_whitespace().filter(|w| *w != "\\" && !w.ends_with(':'));
        program.is_some_and(|p| p < made)
            && inputs.into_iter().all(|f| modified(Path::new(f)).is_some_and(|t| t < made))
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|m| m.modified()).ok()
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("list {}: {e}", folder.display()));
    let mut found: Vec<PathBuf> = entries
        .map(|e| e.expect("readable folder").path())
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    found
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|s| s.to_str()).expect("sources have plain names")
}

/// Write a file if its content differs, so that objects that depend on it stay fresh.
fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).is_ok_and(|t| t == text) {
        return;
    }
    fs::write(path, text).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("start {command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed ({})\n{text}", output.status);
}
