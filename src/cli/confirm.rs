//! The question before something is deleted.

use clap::Args;
use kvtide_daemon::output;
use std::io::{self, BufRead, IsTerminal, Write};
use std::process::ExitCode;

/// Flags of commands that delete.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Confirm {
    /// Print what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
}

impl Confirm {
    /// Ask whether to do `what`, a phrase such as "evict 12 blocks". An error is the exit status to end with: of a dry run, of a no, of
    /// no terminal to ask at.
    pub fn ask(self, what: &str) -> Result<(), ExitCode> {
        if self.dry_run {
            return Err(output::print(&format!("would {what}\n"), ExitCode::SUCCESS));
        }
        if self.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            output::say(format_args!(
                "kvtide: would {what}; there is no terminal to ask at: give --yes to do it, --dry-run to see it"
            ));
            return Err(ExitCode::from(output::USAGE));
        }
        let mut err = io::stderr().lock();
        let asked = write!(err, "{}? [y/N] ", capitalized(what)).and_then(|()| err.flush());
        let mut line = String::new();
        match asked.and_then(|()| io::stdin().lock().read_line(&mut line)) {
            Ok(_) if ["y", "yes"].contains(&line.trim().to_lowercase().as_str()) => Ok(()),
            _ => {
                output::say("nothing was done");
                Err(ExitCode::from(output::FAILED))
            }
        }
    }
}

fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}
