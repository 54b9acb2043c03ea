//! The processes of a demo: engines, daemons and signals, as events of one channel.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use std::{env, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::de::DeserializeOwned;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::DemoError;
use crate::private_daemon::PrivateDaemon;

/// Maximum time without a message of an engine. It sends one after every chunk and step, and its own waits end after 10 s.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// Time limit for the daemon's end to be detected after the engine saw it.
pub(super) const DAEMON_END: Duration = Duration::from_secs(5);

/// Events while an engine runs.
pub(super) enum Event {
    /// A line of the engine.
    Line(String),
    /// End of the engine's output.
    End,
    /// End of the daemon with this process id.
    DaemonEnd(u32),
    /// A signal to the demo.
    Signal(i32),
}

/// An engine process, killed and reaped on drop.
pub(super) struct Engine(pub(super) Child);

impl Engine {
    /// Return a command that runs `subcommand` of this program.
    pub(super) fn command(subcommand: &str) -> Result<Command, DemoError> {
        let mut command = Command::new(env::current_exe().map_err(process("find this program's own binary"))?);
        command.arg(subcommand);
        Ok(command)
    }

    /// Start the engine; its lines become events.
    pub(super) fn spawn(mut command: Command, events: &Sender<Event>) -> Result<Engine, DemoError> {
        // A process group of its own: Ctrl-C reaches only the demo, which then ends the engine.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut engine = Engine(command.spawn().map_err(process("start the engine"))?);
        let no_pipe = || process("read from the engine")(io::ErrorKind::NotFound.into());
        let stdout = engine.0.stdout.take().ok_or_else(no_pipe)?;
        let events = events.clone();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if events.send(Event::Line(line)).is_err() {
                    return;
                }
            }
            // Fails only after the demo has ended.
            let _ = events.send(Event::End);
        });
        Ok(engine)
    }

    /// Let the engine continue after a checkpoint. A broken pipe is ignored: the exit status shows that the engine has died.
    pub(super) fn go_on(&mut self, answer: &str) -> Result<(), DemoError> {
        match self.0.stdin.as_mut().map(|stdin| writeln!(stdin, "{answer}")) {
            Some(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(process("answer the engine")(error)),
            _ => Ok(()),
        }
    }

    /// Wait for the end of an engine that has closed its output.
    pub(super) fn ended(&mut self) -> Result<(), DemoError> {
        match self.0.wait().map_err(process("reap the engine"))? {
            status if status.success() => Ok(()),
            status => Err(DemoError::EngineDied(status)),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Run `work` with a channel of events; signals to the demo are among them.
pub(super) fn with_signals<T>(
    work: impl FnOnce(&Sender<Event>, &Receiver<Event>) -> Result<T, DemoError>,
) -> Result<T, DemoError> {
    let (sender, events) = channel();
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(process("watch for signals"))?;
    let stop = signals.handle();
    let on_signal = sender.clone();
    let watcher = thread::spawn(move || {
        for signal in signals.forever() {
            // Fails only after the demo has ended.
            let _ = on_signal.send(Event::Signal(signal));
        }
    });
    let result = work(&sender, &events);
    stop.close();
    // Ends because of the line above, and cannot panic.
    let _ = watcher.join();
    result
}

/// Report the daemon's end at once, on a thread that ends with the daemon.
pub(super) fn watch(daemon: &PrivateDaemon, events: &Sender<Event>) -> Result<(), DemoError> {
    let watching = process("watch the daemon");
    let number = daemon.pid();
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| watching(io::ErrorKind::InvalidInput.into()))?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| watching(errno.into()))?;
    let events = events.clone();
    thread::spawn(move || {
        while poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None) == Err(Errno::INTR) {}
        // Fails only after the demo has ended.
        let _ = events.send(Event::DaemonEnd(number));
    });
    Ok(())
}

/// Return the next message of an engine, or `None` at its end. `died` makes the error for a daemon that has ended.
pub(super) fn message<M: DeserializeOwned>(
    events: &Receiver<Event>,
    daemon: &mut PrivateDaemon,
    died: impl FnOnce(&mut PrivateDaemon) -> DemoError,
) -> Result<Option<M>, DemoError> {
    loop {
        let line = match events.recv_timeout(SILENCE) {
            Ok(Event::Line(line)) => line,
            Ok(Event::Signal(signal)) => return Err(DemoError::Signal(signal)),
            Ok(Event::DaemonEnd(pid)) if pid != daemon.pid() => continue,
            Ok(Event::DaemonEnd(_)) => return Err(died(daemon)),
            Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => return Err(DemoError::Silent),
        };
        return serde_json::from_str(&line).map(Some).map_err(|source| DemoError::Nonsense { line, source });
    }
}

/// Return how a daemon ended that has ended or closed its socket, and the end of its log.
pub(super) fn last_words(daemon: &mut PrivateDaemon) -> (String, String) {
    let ended = daemon.wait(DAEMON_END).map_or_else(|error| error.to_string(), |status| status.to_string());
    let log = match daemon.log() {
        log if log.is_empty() => log,
        log => format!("\nend of its log:\n{log}"),
    };
    (ended, log)
}

/// Return a function that adds the failed action to a system error.
pub(super) fn process(what: &'static str) -> impl Fn(io::Error) -> DemoError {
    move |source| DemoError::Process { what, source }
}
