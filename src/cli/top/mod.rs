//! `kvtide top`: live view of a daemon: health, hits, tiers, disks, spaces and engines.
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
#[command(
    after_help = "Keys: s sorts by another column, d shows pages and faults instead of hits, q quits. NO_COLOR is respected.\n\n\
    Examples:\n  kvtide top --once\n  kvtide top --once --seconds 2"
)]
pub struct TopArgs {
    #[command(flatten)]
    which: Which,
    /// Refresh interval in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Print one screen as text, after one interval, and end; needs no terminal
    #[arg(long)]
    once: bool,
}

/// Size of a screen that is no terminal.
const SCREEN: (u16, u16) = (80, 24);

/// What the screen shows, chosen by keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct View {
    sort: Sort,
    /// Pages and faults instead of hits.
    detail: bool,
}

/// Order of spaces and engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    /// By number.
    #[default]
    Number,
    /// Most tokens loaded a second first.
    Loaded,
    /// Lowest hit rate first.
    HitRate,
    /// By name.
    Name,
}

impl Sort {
    fn next(self) -> Sort {
        match self {
            Sort::Number => Sort::Loaded,
            Sort::Loaded => Sort::HitRate,
            Sort::HitRate => Sort::Name,
            Sort::Name => Sort::Number,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Sort::Number => "number",
            Sort::Loaded => "tokens/s",
            Sort::HitRate => "hit rate",
            Sort::Name => "name",
        }
    }
}

impl View {
    /// Change what a key changes.
    fn handle(&mut self, event: &Event) {
        let Event::Key(KeyEvent { code: KeyCode::Char(key), kind: KeyEventKind::Press, .. }) = event else { return };
        match key {
            's' | 'S' => self.sort = self.sort.next(),
            'd' | 'D' => self.detail = !self.detail,
            _ => {}
        }
    }
}

/// Result of one status request.
struct Look {
    at: Instant,
    told: Result<Snapshot, Error>,
}

/// Show a daemon until `q` is pressed.
pub(super) fn run(args: &TopArgs) -> ExitCode {
    if args.once {
        return once(args);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        output::say(format_args!(
            "kvtide: top needs a terminal; --once prints one screen, and programs can use `kvtide status --json`"
        ));
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

/// Print one screen as text.
fn once(args: &TopArgs) -> ExitCode {
    let mut rates = Rates::default();
    for look_again in [true, false] {
        match look(&args.which) {
            Look { told: Err(error), .. } => return output::failed(&error),
            Look { at, told: Ok(status) } => rates.take(status, at),
        }
        if look_again {
            // PACE: the interval that the user asked for.
            std::thread::sleep(Duration::from_secs(args.seconds));
        }
    }
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let (width, height) = terminal_size().unwrap_or(SCREEN);
    let (width, height) = (number("COLUMNS").unwrap_or(width), number("LINES").unwrap_or(height));
    output::print(&screen::text(&rates, View::default(), width, height), ExitCode::SUCCESS)
}

/// Return columns and lines of the terminal, if stdout is one.
pub(super) fn terminal_size() -> Option<(u16, u16)> {
    if io::stdout().is_terminal() { ratatui::crossterm::terminal::size().ok() } else { None }
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
        let (mut rates, mut view) = (Rates::default(), View::default());
        loop {
            while let Ok(Look { at, told }) = looks.try_recv() {
                match told {
                    Ok(status) => rates.take(status, at),
                    Err(error) => rates.lose(error.to_string()),
                }
            }
            terminal.draw(|frame| screen::draw(frame, &rates, view))?;
            if event::poll(GLANCE)? {
                let event = event::read()?;
                if is_end(&event) {
                    return Ok(());
                }
                view.handle(&event);
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
    fn s_and_d_change_the_view() {
        let key = |c| Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
        let mut view = View::default();
        let mut orders = Vec::new();
        for _ in 0..4 {
            view.handle(&key('s'));
            orders.push(view.sort.name());
        }
        assert_eq!(orders, ["tokens/s", "hit rate", "name", "number"]);
        view.handle(&key('d'));
        assert!(view.detail && view.sort == Sort::Number);
        view.handle(&key('x'));
        view.handle(&key('d'));
        assert_eq!(view, View::default());
    }

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
