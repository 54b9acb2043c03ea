//! Virtual environments below target/tools. The system's Python is used only to create them.

use crate::run::{Error, output, root, run, target};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest supported Python, as a condition that its interpreter evaluates.
const NEW_ENOUGH: &str = "import sys; sys.exit(0 if sys.version_info >= (3, 10) else 'Python 3.10 or newer is needed, this is ' + sys.version)";

/// The installer of requirements.
const UV: &str = "uv==0.13.9";

/// Python of an environment.
pub struct Python {
    program: PathBuf,
}

impl Python {
    /// Return the interpreter.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Return the folder of its packages.
    fn packages(&self) -> Result<String, Error> {
        let mut asked = Command::new(&self.program);
        asked.args(["-s", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]);
        Ok(output(&mut asked)?.trim().to_owned())
    }

    /// Return the path of a program that one of its packages installed.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.program.with_file_name(name)
    }

    /// Return a command that runs it and ignores the user's own packages.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-s").env("PYTHONNOUSERSITE", "1").env_remove("PYTHONPATH").env_remove("VIRTUAL_ENV");
        command
    }

    /// Return a command that runs a module of it and ignores the user's own packages.
    pub fn module(&self, name: &str) -> Command {
        let mut command = self.command();
        command.args(["-m", name]);
        command
    }
}

/// Return the environment `name`; create it if it is missing or has other requirements. `overrides` replace requirements of
/// packages that contradict each other.
pub fn environment(name: &str, requirements: &str, overrides: &str) -> Result<Python, Error> {
    let identity = format!("{requirements}{overrides}{UV}\n");
    made(name, &identity, |python, wanted| {
        let replaced = wanted.with_file_name("overrides.txt");
        write(wanted, requirements)?;
        write(&replaced, overrides)?;
        // uv, because pip has no overrides and takes three times as long.
        run(python.module("pip").args(["install", "--quiet", "--no-cache-dir", "--only-binary", ":all:", UV]))?;
        let install = ["pip", "install", "--quiet", "--no-cache", "--only-binary", ":all:", "--python"];
        let mut uv = python.module("uv");
        run(uv.args(install).arg(python.program()).arg("--override").arg(&replaced).arg("-r").arg(wanted))?;
        write(wanted, &identity)
    })
}

/// Return the environment `name` on top of another one, whose packages it sees. The requirements are installed without
/// dependencies.
pub fn environment_over(name: &str, requirements: &str, below: &Python) -> Result<Python, Error> {
    let sees = below.packages()?;
    made(name, &format!("{requirements}over {sees}\n"), |python, wanted| {
        write(wanted, requirements)?;
        let path = Path::new(&python.packages()?).join("below.pth");
        write(&path, &format!("{sees}\n"))?;
        let install = ["install", "--quiet", "--no-cache-dir", "--only-binary", ":all:", "--no-deps", "-r"];
        run(python.module("pip").args(install).arg(wanted))?;
        write(wanted, &format!("{requirements}over {sees}\n"))
    })
}

/// Return the folder `name` with the source of a package that is not installed, without dependencies; download the package with `by`
/// if the folder is missing or has another version.
pub fn sources(name: &str, requirement: &str, by: &Python) -> Result<PathBuf, Error> {
    let folder = target().join("tools").join(name);
    let stamp = folder.join("requirements.txt");
    if !std::fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == requirement) {
        let wheel = folder.join("wheel");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|e| Error::Start(format!("remove {}", folder.display()), e))?;
        }
        std::fs::create_dir_all(&wheel).map_err(|e| Error::Start(format!("make {}", wheel.display()), e))?;
        let wanted = folder.join("wanted.txt");
        write(&wanted, requirement)?;
        let download = ["download", "--quiet", "--no-cache-dir", "--only-binary", ":all:", "--no-deps", "--dest"];
        run(by.module("pip").args(download).arg(&wheel).arg("-r").arg(&wanted))?;
        run(Command::new(&by.program).arg(root().join("xtask/src/python/unpack.py")).arg(&wheel).arg(&folder))?;
        // Written last, as in `made`.
        std::fs::rename(&wanted, &stamp).map_err(|e| Error::Start(format!("rename {}", wanted.display()), e))?;
    }
    std::path::absolute(&folder).map_err(|e| Error::Start(format!("find {}", folder.display()), e))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|e| Error::Start(format!("write {}", path.display()), e))
}

fn made(
    name: &str,
    identity: &str,
    install: impl FnOnce(&Python, &Path) -> Result<(), Error>,
) -> Result<Python, Error> {
    let folder = target().join("tools").join(name);
    let stamp = folder.join("requirements.txt");
    let python = Python { program: folder.join("bin/python") };
    if !std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == identity) {
        run(Command::new("python3").args(["-c", NEW_ENOUGH]))?;
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let wanted = folder.join("wanted.txt");
        write(&wanted, identity)?;
        install(&python, &wanted)?;
        // Written last, so that an interrupted installation is repeated.
        std::fs::rename(&wanted, &stamp).map_err(|e| Error::Start(format!("rename {}", wanted.display()), e))?;
    }
    let program = std::path::absolute(&python.program);
    let program = program.map_err(|e| Error::Start(format!("find {}", python.program.display()), e))?;
    Ok(Python { program })
}
