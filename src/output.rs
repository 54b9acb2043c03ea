//! Output of commands: results on stdout, all else on stderr. `println!` and `eprintln!` panic when a disk is full, so this crate
//! does not use them; clippy enforces that.

use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit status when the result could not be printed.
const UNPRINTED: u8 = 1;

/// Prints a command's result, and returns its exit status: 1, with a line on stderr, if the result cannot be written.
#[must_use]
pub(crate) fn print(text: &str, status: ExitCode) -> ExitCode {
    ended(write(text), status)
}

/// Writes a text to stdout and flushes it.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Prints a command's result as one JSON object.
#[must_use]
pub(crate) fn print_json(value: &impl Serialize, status: ExitCode) -> ExitCode {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&(text + "\n"), status),
        Err(error) => {
            say(format_args!("kvtide: cannot write the result as JSON: {error}"));
            ExitCode::from(UNPRINTED)
        }
    }
}

/// The exit status of a command, by whether its output could be written. A reader that has seen enough (`| head`) is no error.
#[must_use]
pub(crate) fn ended(written: io::Result<()>, status: ExitCode) -> ExitCode {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("kvtide: cannot write to stdout: {error}"));
            ExitCode::from(UNPRINTED)
        }
        _ => status,
    }
}

/// A line on stderr. One that cannot be written is lost: nothing is left to say it with.
pub(crate) fn say(line: impl Display) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "{line}");
}

/// Text on stderr that the next one writes over.
pub(crate) fn say_over(text: impl Display) {
    let mut err = io::stderr().lock();
    let _ = write!(err, "\r{text}").and_then(|()| err.flush());
}
