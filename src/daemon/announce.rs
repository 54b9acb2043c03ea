//! Lines on stdout for the process that started the daemon.

use std::io::{self, Write};
use std::path::Path;

/// Prefix of the line on stdout, followed by the socket's path, that reports that engines can attach. A parent process can wait for
/// it.
pub const READY: &str = "kvtided is ready on ";
/// Prefix of the line on stdout, followed by the path, that reports a written status dump.
pub const DUMPED: &str = "kvtided wrote ";

/// Prefix of the line on stdout, followed by their directory, that reports written flight recordings.
pub const RECORDED: &str = "kvtided recorded into ";

/// Prefix of the line on stdout that reports the end of a configuration reload: its file, and whether it is in effect. The log says
/// the changes, or the error.
pub const RELOADED: &str = "kvtided reload: ";

/// Print one line on stdout for the process that started the daemon.
pub(crate) fn say(what: &str, path: &Path) {
    let mut stdout = io::stdout().lock();
    if let Err(error) = writeln!(stdout, "{what}{}", path.display()).and_then(|()| stdout.flush()) {
        tracing::warn!("cannot write to stdout: {what}{}: {error}", path.display());
    }
}
