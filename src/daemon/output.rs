//! Output of commands: results go to stdout, everything else to stderr. This crate does not use `println!` and `eprintln!`: they
//! panic when a disk is full. Clippy enforces this.

use serde::Serialize;
use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// Exit status when the result could not be printed.
const UNPRINTED: u8 = 1;

/// Print a command's result and return its exit status: 1, with a line on stderr, if the result cannot be written.
#[must_use]
pub fn print(text: &str, status: ExitCode) -> ExitCode {
    ended(write(text), status)
}

/// Write `text` to stdout and flush it.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Print a command's result as one JSON object.
#[must_use]
pub fn print_json(value: &impl Serialize, status: ExitCode) -> ExitCode {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&(text + "\n"), status),
        Err(error) => {
            say(format_args!("kvtide: cannot write the result as JSON: {error}"));
            ExitCode::from(UNPRINTED)
        }
    }
}

/// Return the exit status of a command; its output was written with result `written`. A closed pipe (`| head`) is not an error.
#[must_use]
pub fn ended(written: io::Result<()>, status: ExitCode) -> ExitCode {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("kvtide: cannot write to stdout: {error}"));
            ExitCode::from(UNPRINTED)
        }
        _ => status,
    }
}

/// Print a line on stderr. Write errors are ignored: there is no other place to report them.
pub fn say(line: impl Display) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "{line}");
}

/// Print text on stderr that the next text overwrites.
pub fn say_over(text: impl Display) {
    let mut err = io::stderr().lock();
    let _ = write!(err, "\r{text}").and_then(|()| err.flush());
}
