//! The CUDA compilers: pinned wheels in a separate virtual environment.

use crate::run::{Error, run, target};
use std::path::PathBuf;
use std::process::Command;

/// Package versions; they also identify the environment.
const REQUIREMENTS: &str = include_str!("requirements.txt");

/// Return the version that writes the committed PTX, for its first line.
pub fn nvrtc_version() -> &'static str {
    let pin = REQUIREMENTS.lines().find_map(|line| line.strip_prefix("nvidia-cuda-nvrtc-cu12=="));
    pin.and_then(|rest| rest.split_whitespace().next()).unwrap_or("of unknown version")
}

/// Return the environment's site-packages; create the environment if it is missing or has other versions.
pub fn packages() -> Result<PathBuf, Error> {
    let folder = target().join("tools/cuda");
    let stamp = folder.join("requirements.txt");
    if !std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == REQUIREMENTS) {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|e| Error::Start(format!("remove {}", folder.display()), e))?;
        }
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
        let wanted = folder.join("wanted.txt");
        std::fs::write(&wanted, REQUIREMENTS).map_err(|e| Error::Start(format!("write {}", wanted.display()), e))?;
        // The list contains all dependencies, so nothing else may be installed.
        let install = ["-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--only-binary", ":all:"];
        run(Command::new(python()).args(install).args(["--require-hashes", "-r"]).arg(&wanted))?;
        // Written last, so that an interrupted installation is repeated.
        std::fs::rename(&wanted, &stamp).map_err(|e| Error::Start(format!("rename {}", wanted.display()), e))?;
    }
    let lib = folder.join("lib");
    let entries = std::fs::read_dir(&lib).map_err(|e| Error::Start(format!("list {}", lib.display()), e))?;
    let packages = entries.filter_map(|entry| Some(entry.ok()?.path().join("site-packages"))).find(|p| p.is_dir());
    packages.ok_or_else(|| Error::Check(format!("{} holds no site-packages", lib.display())))
}

/// Return the environment's Python.
pub fn python() -> PathBuf {
    target().join("tools/cuda/bin/python")
}
