//! Virtual environments below target/tools; the system's Python only makes them.

use crate::run::{Error, run, target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest Python that the package runs on, as a condition that its interpreter evaluates.
const NEW_ENOUGH: &str = "import sys; sys.exit(0 if sys.version_info >= (3, 10) else 'Python 3.10 or newer is needed, this is ' + sys.version)";

/// An environment's Python.
pub struct Python {
    program: PathBuf,
}

impl Python {
    /// Its interpreter.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs a module of it; nothing is read from the user's own packages.
    pub fn module(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["-s", "-m", name])
            .env("PYTHONNOUSERSITE", "1")
            .env_remove("PYTHONPATH")
            .env_remove("VIRTUAL_ENV");
        command
    }
}

/// The environment `name`, made if it does not stand yet, or stands for other requirements.
pub fn environment(name: &str, requirements: &str) -> Result<Python, Error> {
    let folder = target().join("tools").join(name);
    let stamp = folder.join("requirements.txt");
    let python = Python { program: folder.join("bin/python") };
    if !std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == requirements) {
        run(Command::new("python3").args(["-c", NEW_ENOUGH]))?;
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let wanted = folder.join("wanted.txt");
        std::fs::write(&wanted, requirements).map_err(|e| Error::Start(format!("write {}", wanted.display()), e))?;
        let install = ["install", "--quiet", "--no-cache-dir", "--only-binary", ":all:", "-r"];
        run(python.module("pip").args(install).arg(&wanted))?;
        // Last, so that an installation that broke off is begun again.
        std::fs::rename(&wanted, &stamp).map_err(|e| Error::Start(format!("rename {}", wanted.display()), e))?;
    }
    let program = std::path::absolute(&python.program);
    let program = program.map_err(|e| Error::Start(format!("find {}", python.program.display()), e))?;
    Ok(Python { program })
}
