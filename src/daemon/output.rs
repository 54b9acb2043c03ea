//! Output of commands: results go to stdout, everything else to stderr. This crate does not use `println!` and `eprintln!`: they
//! panic when a disk is full. Clippy enforces this.

use crate::error::Error;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Exit status of a command that failed, or whose result could not be printed. 0 is success, clap exits with 2 on wrong usage.
pub const FAILED: u8 = 1;
/// Exit status of wrong usage.
pub const USAGE: u8 = 2;
/// Exit status when no daemon answers.
pub const UNREACHABLE: u8 = 3;
/// Version of all JSON that commands print. It is raised when a field is removed or changes its meaning, not when one is added.
const VERSION: u32 = 1;

/// A result with the version of its form.
#[derive(Debug, Serialize)]
pub(crate) struct Versioned<'a, T> {
    version: u32,
    #[serde(flatten)]
    result: &'a T,
}

impl<'a, T> Versioned<'a, T> {
    /// Add the version to an object.
    pub fn new(result: &'a T) -> Versioned<'a, T> {
        Versioned { version: VERSION, result }
    }
}

/// Print a command's result and return its exit status: 1, with a line on stderr, if the result cannot be written.
#[must_use]
pub fn print(text: &str, status: ExitCode) -> ExitCode {
    ended(write(text), status)
}

/// Write `text` to stdout and flush it.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(harmless(text).as_bytes()).and_then(|()| out.flush())
}

/// Replace what would act on a terminal, except ends of lines and tabs: names of models, programs and files come from engines.
fn harmless(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        reorders || c.is_control() && !matches!(c, '\n' | '\t')
    };
    match text.contains(acts) {
        true => text.replace(acts, "\u{fffd}").into(),
        false => text.into(),
    }
}

/// Print a command's result as one JSON object, with the version of its form first. The result must be an object.
#[must_use]
pub fn print_json(value: &impl Serialize, status: ExitCode) -> ExitCode {
    match serde_json::to_string_pretty(&Versioned::new(value)) {
        Ok(text) => print(&(text + "\n"), status),
        Err(error) => {
            say(format_args!("kvtide: cannot write the result as JSON: {error}"));
            ExitCode::from(FAILED)
        }
    }
}

/// Return a command's result as one line of JSON, with the version of its form first. The result must be an object.
///
/// # Panics
/// The result cannot be written as JSON: it has keys that are no texts.
#[must_use]
pub fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(&Versioned::new(value)).expect("an object of numbers and texts") + "\n"
}

/// Serialize a path as text. What is not UTF-8 in it is replaced: JSON has no form for it.
///
/// # Errors
/// Those of the serializer.
pub fn path_as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// Return a message about something, named once: in front, unless the message names it itself.
#[must_use]
pub fn about<'a>(name: &str, message: &'a str) -> Cow<'a, str> {
    if message.contains(name) { message.into() } else { format!("{name}: {message}").into() }
}

/// Return the exit status of a command; its output was written with result `written`. A closed pipe (`| head`) is not an error.
#[must_use]
pub fn ended(written: io::Result<()>, status: ExitCode) -> ExitCode {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            say(format_args!("kvtide: cannot write to stdout: {error}"));
            ExitCode::from(FAILED)
        }
        _ => status,
    }
}

/// Print a line on stderr. Write errors are ignored: there is no other place to report them.
pub fn say(line: impl Display) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "{}", harmless(&line.to_string()));
}

/// Print text on stderr that the next text overwrites.
pub fn say_over(text: impl Display) {
    let mut err = io::stderr().lock();
    let _ = write!(err, "\r{}", harmless(&text.to_string())).and_then(|()| err.flush());
}

/// Report an error of a command on stderr. Return the exit status for it.
#[must_use]
pub fn failed(error: &Error) -> ExitCode {
    say(format_args!("kvtide: {error}"));
    ExitCode::from(if matches!(error, Error::NoDaemon { .. }) { UNREACHABLE } else { FAILED })
}

#[cfg(test)]
mod tests {
    use super::{about, harmless};

    #[test]
    fn a_message_names_its_object_once() {
        assert_eq!(about("/d", "it is in use"), "/d: it is in use");
        assert_eq!(
            about("/d", "cannot open /d/kvtide.store: Permission denied"),
            "cannot open /d/kvtide.store: Permission denied"
        );
    }

    #[test]
    fn names_cannot_act_on_the_terminal() {
        for quiet in ["", "space 1 llama\n\tß 中\n", "[2J"] {
            assert_eq!(harmless(quiet), quiet);
        }
        assert_eq!(
            harmless("a\u{1b}[2Jb\rc\u{7}\u{9b}\u{202e}\u{7f}d\n"),
            "a\u{fffd}[2Jb\u{fffd}c\u{fffd}\u{fffd}\u{fffd}\u{fffd}d\n"
        );
    }
}
