//! Completions of shells and manual pages, from the definition of the commands.

use super::commands;
use clap::Args;
use clap_complete::Shell;
use kvtide_daemon::error::Error;
use kvtide_daemon::output;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Flags of `kvtide completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Flags of `kvtide man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write a page for each command into this directory, instead of kvtide(1) to stdout
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut commands(), "kvtide", &mut text);
    output::print(&String::from_utf8_lossy(&text), ExitCode::SUCCESS)
}

pub(super) fn man(args: &ManArgs) -> ExitCode {
    match &args.dir {
        None => match page(commands()) {
            Ok(page) => output::print(&page, ExitCode::SUCCESS),
            Err(error) => output::failed(&error),
        },
        Some(dir) => match pages(&commands(), "kvtide", dir) {
            Ok(count) => output::print(&format!("{count} pages in {}\n", dir.display()), ExitCode::SUCCESS),
            Err(error) => output::failed(&error),
        },
    }
}

fn page(command: clap::Command) -> Result<String, Error> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(|error| Error::system("render a manual page", error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Write the pages of a command and its subcommands; return their number.
fn pages(command: &clap::Command, name: &str, dir: &Path) -> Result<usize, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { action: "write the manual page", path, source }
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    let path = dir.join(format!("{name}.1"));
    let text = page(command.clone().display_name(name.to_owned()))?;
    fs::write(&path, text).map_err(failed(&path))?;
    let mut count = 1;
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        count += pages(subcommand, &format!("{name}-{}", subcommand.get_name()), dir)?;
    }
    Ok(count)
}
