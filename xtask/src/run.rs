//! Run a command and report exactly what failed.

use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Reason why a helper failed.
#[derive(Debug)]
pub enum Error {
    /// Wrong arguments.
    Usage(String),
    /// A command could not be started.
    Start(String, std::io::Error),
    /// A command ended with a status other than 0.
    Failed(String, std::process::ExitStatus),
    /// A check failed; one line for each finding.
    Check(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) | Error::Check(text) => f.write_str(text),
            Error::Start(command, e) => write!(f, "could not start `{command}`: {e}"),
            Error::Failed(command, status) => write!(f, "`{command}` ended with {status}"),
        }
    }
}

/// Return the root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Return the target folder: `CARGO_TARGET_DIR`, or `target` below the root.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Return the cargo that runs this helper.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Run this program again without the variables that `cargo run` sets for its package. Build scripts below depend on them (that of ring
/// does): whenever they differ from those of the last build, cargo would compile ring and all that uses it again.
pub fn without_own_variables() -> std::io::Result<()> {
    let is_own = |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.starts_with(start));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let own: Vec<String> = names.filter(|name| is_own(name)).collect();
    if own.is_empty() {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1));
    own.iter().for_each(|name| {
        again.env_remove(name);
    });
    Err(again.exec())
}

/// Run a command with this process's standard streams. A status other than 0 is an error that shows the command.
pub fn run(command: &mut Command) -> Result<(), Error> {
    let shown = show(command);
    eprintln!("xtask: {shown}");
    let status = command.status().map_err(|e| Error::Start(shown.clone(), e))?;
    if status.success() { Ok(()) } else { Err(Error::Failed(shown, status)) }
}

/// Run a command silently and return its output, stderr first. A status other than 0 is an error that shows the output too.
pub fn output(command: &mut Command) -> Result<String, Error> {
    let shown = show(command);
    let output = command.output().map_err(|e| Error::Start(shown.clone(), e))?;
    let text = [output.stderr, output.stdout].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.success() {
        Ok(text)
    } else {
        Err(Error::Check(format!("{text}`{shown}` ended with {}", output.status)))
    }
}

fn show(command: &Command) -> String {
    let envs = command.get_envs().filter_map(|(k, v)| Some(format!("{}={:?} ", k.display(), v?)));
    let args = command.get_args().map(|a| format!(" {}", a.display()));
    envs.chain([command.get_program().display().to_string()]).chain(args).collect()
}
