//! `kvtide top`: live view of a daemon's tiers, disks, spaces and sessions.
//!
//! A separate thread sends the requests, so that a hanging daemon does not block the keyboard. [`rates`] computes rates from two
//! responses, [`screen`] draws them. The terminal is restored at the end, also after a panic.

mod rates;
mod screen;

use super::which::Which;
use clap::Args;
use crossbeam::channel::{Receiver, bounded};
use kvtide_daemon::error::Error;
use kvtide_daemon::output;
use kvtide_daemon::status::Snapshot;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rates::Rates;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Maximum delay until a key press is handled.
const GLANCE: Duration = Duration::from_millis(100);

/// Flags of `kvtide top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    which: Which,
    /// Refresh interval in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
}

/// Result of one status request.
struct Look {
    at: Instant,
    told: Result<Snapshot, Error>,
}

/// Show a daemon until `q` is pressed.
pub(super) fn run(args: &TopArgs) -> ExitCode {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        output::say(format_args!("kvtide: top needs a terminal; programs can use `kvtide status --json`"));
        return ExitCode::from(output::USAGE);
    }
    // Connection errors are printed before the screen changes.
    let first = match look(&args.which) {
        Look { told: Err(error), .. } => return output::failed(&error),
        look => look,
    };
    match show(args, first) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::say(format_args!("kvtide: cannot use the terminal: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn look(which: &Which) -> Look {
    let told = which.status().map(|(_, status, _)| status);
    Look { at: Instant::now(), told }
}

fn show(args: &TopArgs, first: Look) -> io::Result<()> {
    let looks = watch(args, first)?;
    // Its panic hook restores the terminal before the panic message is printed.
    let mut terminal = ratatui::try_init()?;
    let shown = (|| {
        let mut rates = Rates::default();
        loop {
            while let Ok(Look { at, told }) = looks.try_recv() {
                match told {
                    Ok(status) => rates.take(status, at),
                    Err(error) => rates.lose(error.to_string()),
                }
            }
            terminal.draw(|frame| screen::draw(frame, &rates))?;
            if event::poll(GLANCE)? && is_end(&event::read()?) {
                return Ok(());
            }
        }
    })();
    ratatui::try_restore()?;
    shown
}

/// Send requests repeatedly on a thread, which ends with the process or when the receiver is dropped.
fn watch(args: &TopArgs, first: Look) -> io::Result<Receiver<Look>> {
    let (looks, seen) = bounded(1);
    let (which, pause) = (args.which.clone(), Duration::from_secs(args.seconds));
    std::thread::Builder::new().name("kvtide-top".into()).spawn(move || {
        let mut next = first;
        loop {
            let due = next.at + pause;
            if looks.send(next).is_err() {
                return;
            }
            // PACE: the interval that the user asked for.
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            next = look(&which);
        }
    })?;
    Ok(seen)
}

/// Return true for a key that quits. In raw mode, Ctrl-C is a key event.
fn is_end(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return false };
    match code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_end_it_and_nothing_else() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        let none = KeyModifiers::NONE;
        for end in
            [key(KeyCode::Char('q'), none), key(KeyCode::Esc, none), key(KeyCode::Char('c'), KeyModifiers::CONTROL)]
        {
            assert!(is_end(&end), "{end:?}");
        }
        for other in [key(KeyCode::Char('c'), none), key(KeyCode::Char('x'), none), Event::Resize(80, 24)] {
            assert!(!is_end(&other), "{other:?}");
        }
    }
}
