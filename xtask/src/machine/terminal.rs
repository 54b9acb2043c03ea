//! One bash that runs commands in turn, as a user's terminal does. What they start in the background goes on until the shell ends.

use crate::run::Error;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Begin of the line that ends a command's output.
const END: &str = "=== status";
/// Time for what runs in the background to end by itself, after the shell's end.
const GRACE: Duration = Duration::from_secs(15);

/// What a command did.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Exit status.
    pub status: i32,
    /// What it printed, on both streams.
    pub output: String,
}

/// A running terminal.
pub struct Terminal {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Terminal {
    /// Start `bash`, a command that ends in the shell's own arguments if it has any.
    pub fn start(mut bash: Command) -> Result<Terminal, Error> {
        // A process group of its own, so that everything can be ended.
        let piped = |e| Error::Start("make a pipe".to_owned(), e);
        let (reader, writer) = std::io::pipe().map_err(piped)?;
        bash.stdin(Stdio::piped()).stdout(writer.try_clone().map_err(piped)?).stderr(writer).process_group(0);
        let mut child = bash.spawn().map_err(|e| Error::Start(format!("{bash:?}"), e))?;
        drop(bash);
        let stdin = child.stdin.take().ok_or_else(|| Error::Check("the shell has no stdin".to_owned()))?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Terminal { child, stdin, lines })
    }

    /// Run a command and wait for its end, at most for `limit`.
    pub fn run(&mut self, command: &str, limit: Duration) -> Result<Ran, Error> {
        let script = format!("{{ {command}\n}} </dev/null\nprintf '\\n{END} %d\\n' $?\n");
        let written = self.stdin.write_all(script.as_bytes()).and_then(|()| self.stdin.flush());
        written.map_err(|e| Error::Start(command.to_owned(), e))?;
        let (deadline, mut output) = (Instant::now() + limit, Vec::new());
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix(END) {
                    Some(status) => {
                        let status = status.trim().parse().unwrap_or(-1);
                        return Ok(Ran { status, output: output.join("\n").trim_end().to_owned() });
                    }
                    None => output.push(line),
                },
                Err(error) => {
                    let what = match error {
                        RecvTimeoutError::Timeout => format!("did not end within {} s", limit.as_secs()),
                        RecvTimeoutError::Disconnected => "ended the shell".to_owned(),
                    };
                    return Err(Error::Check(format!("`{command}` {what}. It printed:\n{}", output.join("\n"))));
                }
            }
        }
    }

    fn signal(&self, name: &str) {
        let group = format!("-{}", self.child.id());
        // Fails if the whole group has ended.
        let _ = Command::new("kill").args([name, "--", &group]).stderr(Stdio::null()).status();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.signal("-TERM");
        let deadline = Instant::now() + GRACE;
        // The pipe is closed when the last process has ended.
        while let Ok(_line) = self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {}
        self.signal("-KILL");
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn state_goes_on_from_command_to_command_and_a_failure_is_seen() {
        let mut terminal = Terminal::start(Command::new("bash")).unwrap();
        let mut ran = |text: &str| terminal.run(text, LIMIT).map(|Ran { status, output }| (status, output)).unwrap();
        assert_eq!(ran("cd / && A=7; echo one; echo two >&2"), (0, "one\ntwo".to_owned()));
        assert_eq!(ran("echo $A $PWD; false"), (1, "7 /".to_owned()));
        assert_eq!(ran("cat <<E\nhere\nE"), (0, "here".to_owned()));
        assert_eq!(ran("sleep 60 > /dev/null 2>&1 &"), (0, String::new()));
        assert_eq!(ran("kill $!; wait $!"), (143, String::new()));
        assert_eq!(ran("cat").0, 0, "its stdin is empty");
    }

    #[test]
    fn a_command_that_does_not_end_is_an_error_and_so_is_one_that_ends_bash() {
        let mut terminal = Terminal::start(Command::new("bash")).unwrap();
        let error = terminal.run("echo before; sleep 60", Duration::from_millis(300)).unwrap_err().to_string();
        assert!(error.contains("did not end within") && error.contains("before"), "{error}");
        let mut terminal = Terminal::start(Command::new("bash")).unwrap();
        let error = terminal.run("exit 3", LIMIT).unwrap_err().to_string();
        assert!(error.contains("ended the shell"), "{error}");
    }
}
