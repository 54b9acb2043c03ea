//! Functions by which tests find the stand-in.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
    sync::Once,
};

/// Environment variable with the driver that `kvtide-kernels` loads.
const LIBRARY: &str = "KVTIDE_LIBCUDA";

/// Environment variable; `real`: tests run on a GPU.
const TESTS: &str = "KVTIDE_GPU_TESTS";

/// Return whether tests run on the stand-in: not if a GPU was requested.
#[must_use]
pub fn standing_in() -> bool {
    std::env::var(TESTS).as_deref() != Ok("real")
}

/// Make this process, and those that it starts, use the stand-in as their driver: the one that was built with the test, or the one
/// that `KVTIDE_LIBCUDA` already names. If a GPU was requested, do nothing and print a note.
///
/// # Panics
/// The library was not built: it must be beside the test that uses it.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if !standing_in() {
            eprintln!("tests run on the machine's own CUDA driver ({TESTS}=real)");
            return;
        }
        if std::env::var_os(LIBRARY).is_some_and(|path| !path.is_empty()) {
            return;
        }
        let library = built();
        assert!(
            library.is_file(),
            "the stand-in driver is not at {}: cargo xtask gpu-sim builds it",
            library.display()
        );
        // SAFETY: tests call this before they start threads that read the environment by other means than Rust's.
        unsafe { std::env::set_var(LIBRARY, library) };
    });
}

/// Return the path where cargo builds it: beside the test executables, or in the folder above.
fn built() -> PathBuf {
    let name = "libkvtide_cuda_sim.so";
    let executable = std::env::current_exe().expect("a test has an executable");
    let folder = executable.parent().unwrap_or(Path::new("/"));
    let candidates = [folder.join(name), folder.join("deps").join(name), folder.join("..").join(name)];
    candidates.iter().find(|path| path.is_file()).unwrap_or(&candidates[0]).clone()
}

/// Make a copy of the stand-in that lacks functions, as an old driver does, and return its path. The caller removes it.
///
/// # Panics
/// It was not built, cannot be copied, or never had one of them.
#[must_use]
pub fn without(functions: &[&str]) -> PathBuf {
    let library = std::env::var_os(LIBRARY).map_or_else(built, PathBuf::from);
    let mut bytes = std::fs::read(&library).unwrap_or_else(|e| panic!("read {}: {e}", library.display()));
    for function in functions {
        let wanted = format!("\0{function}\0").into_bytes();
        let at = bytes.windows(wanted.len()).position(|window| window == wanted);
        // A symbol is looked up by its hash and then by its name: with a changed name it is not found.
        let at = at.unwrap_or_else(|| panic!("{} has no {function}", library.display()));
        bytes[at + 1] = b'-';
    }
    let named = std::thread::current().name().unwrap_or("test").replace("::", "-");
    let path = std::env::temp_dir().join(format!("kvtide-stand-in-{}-{named}.so", std::process::id()));
    std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
    path
}

/// Return a function of the driver, loaded or not.
///
/// # Panics
/// There is no such driver or function.
///
/// # Safety
/// The function has the type, which is a function pointer.
#[must_use]
pub unsafe fn driver_function<F: Copy>(name: &str) -> F {
    let path = std::env::var(LIBRARY).ok().filter(|path| !path.is_empty());
    let text = |text: &str| CString::new(text).expect("no zero byte");
    let (path, name) = (text(path.as_deref().unwrap_or("libcuda.so.1")), text(name));
    assert_eq!(size_of::<F>(), size_of::<*mut libc::c_void>(), "a function pointer");
    // SAFETY: a driver, which stays loaded; two strings; the caller guarantees the type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null(), "no driver at {path:?}");
        let function = libc::dlsym(library, name.as_ptr());
        assert!(!function.is_null(), "{path:?} has no {name:?}");
        std::mem::transmute_copy(&function)
    }
}
