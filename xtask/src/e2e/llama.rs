//! llama.cpp. A crate carries its sources; it is fetched but not compiled. cmake builds the sources and the example that uses them.

use crate::python::{self, venv};
use crate::run::{Error, cargo, output, root, run, target};
use std::path::{Path, PathBuf};
use std::process::Command;

const TOOLS: &str = include_str!("llama.txt");
/// Package of examples/llama.cpp/source that carries the sources.
const CRATE: &str = "llama-cpp-sys-2";

/// Return the environment that builds llama.cpp and writes a model for it.
pub fn tools() -> Result<venv::Python, Error> {
    venv::environment("llama", TOOLS, "")
}

/// Build the example, write the demo's model as GGUF, and run conversations over a daemon of this build.
pub fn check() -> Result<(), Error> {
    let tools = tools()?;
    let build = build()?;
    let model = build.join("model.gguf");
    let example = root().join("examples/llama.cpp");
    run(Command::new(tools.program()).arg(example.join("gguf_model.py")).arg(super::model()).arg(&model))?;
    let mut talk = tools.module("e2e.llama");
    talk.arg("--kvtided").arg(python::daemon()?).arg("--program").arg(build.join("kvtide-llama"));
    run(talk.arg("--model").arg(&model).current_dir(python::package()))
}

/// Build the example with llama.cpp and return its folder.
pub fn build() -> Result<PathBuf, Error> {
    let example = root().join("examples/llama.cpp");
    let tools = tools()?;
    let build = absolute(&target().join("llama.cpp"))?;
    std::fs::create_dir_all(&build).map_err(|e| Error::Start(format!("make {}", build.display()), e))?;
    // One by one: a dependency of the tool would add symbols to the library.
    for package in ["kvtide-capi", "kvtide"] {
        run(cargo().args(["build", "--release", "--locked", "-p", package]))?;
    }
    let library = absolute(&target().join("release/libkvtide.so"))?;

    let mut configure = Command::new(tools.binary("cmake"));
    configure.args(["-G", "Ninja", "-S"]).arg(&example).arg("-B").arg(&build);
    // One test uses the library on a small model. Without optimization it builds in half the time, and for no particular processor.
    configure.args(["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O1", "-DCMAKE_CXX_FLAGS=-O0", "-DGGML_NATIVE=OFF"]);
    configure.args(["-DGGML_OPENMP=OFF", "-DGGML_LLAMAFILE=OFF", "-DGGML_CPU_REPACK=OFF", "-DGGML_CCACHE=OFF"]);
    configure.arg(define("CMAKE_MAKE_PROGRAM", &tools.binary("ninja")));
    configure.arg(define("LLAMA_CPP", &sources(&example)?));
    configure.arg(define("KVTIDE_INCLUDE", &root().join("ffi/include"))).arg(define("KVTIDE_LIBRARY", &library));
    output(&mut configure)?;
    run(Command::new(tools.binary("cmake")).arg("--build").arg(&build).args([
        "--target",
        "kvtide-llama",
        "--",
        "--quiet",
    ]))?;
    Ok(build)
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(|e| Error::Start(format!("find {}", path.display()), e))
}

fn define(name: &str, path: &Path) -> String {
    format!("-D{name}={}", path.display())
}

/// Return the folder where cargo has put llama.cpp's sources; fetch them if necessary.
fn sources(example: &Path) -> Result<PathBuf, Error> {
    let mut metadata = cargo();
    metadata.args(["metadata", "--locked", "--quiet", "--format-version", "1", "--manifest-path"]);
    let found = output(metadata.arg(example.join("source/Cargo.toml")))?;
    let found: serde_json::Value = serde_json::from_str(&found)
        .map_err(|e| Error::Check(format!("cargo metadata of {}: {e}", example.display())))?;
    let packages = found["packages"].as_array().into_iter().flatten();
    let manifest =
        packages.filter(|package| package["name"] == CRATE).find_map(|package| package["manifest_path"].as_str());
    let sources = manifest.and_then(|path| Some(Path::new(path).parent()?.join("llama.cpp")));
    sources.filter(|path| path.is_dir()).ok_or_else(|| Error::Check(format!("{CRATE} holds no llama.cpp")))
}
