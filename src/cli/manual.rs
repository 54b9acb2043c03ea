//! Completions of shells and manual pages, from the definition of the commands and from the table of the configuration's keys.

use super::commands;
use clap::Args;
use clap_complete::Shell;
use kvtide_daemon::error::Error;
use kvtide_daemon::{command, config, output};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Sections of kvtided(8) that do not follow from its flags.
const DAEMON: &str = r".SH SIGNALS
.TP
SIGTERM, SIGINT
Accept nothing new, let requests end for daemon.drain_ms, tell engines, remove the socket, exit.
.TP
SIGHUP
Read the configuration again.
.TP
SIGUSR1
Write the status to status.json in daemon.dir.
.TP
SIGUSR2
Write flight recordings (space\-N.kvtrec in daemon.dir) if daemon.recorder is set.
.SH FILES
.TP
/run/kvtide/kvtide.sock
Socket of the engines.
.TP
/run/kvtide/kvtide.sock.http
Status, metrics and health over HTTP for tools on this machine.
.TP
/etc/kvtide/kvtided.toml
Configuration of the systemd unit.
.SH SEE ALSO
kvtide(1), kvtided.toml(5), kvtide\-relay(8)
";

/// Flags of `kvtide completions`.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Flags of `kvtide man`.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write a page for each command, kvtided(8) and kvtided.toml(5) into this directory, instead of kvtide(1) to stdout
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(super) fn completions(args: &CompletionsArgs) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut commands(), "kvtide", &mut text);
    output::print(&String::from_utf8_lossy(&text), ExitCode::SUCCESS)
}

pub(super) fn man(args: &ManArgs) -> ExitCode {
    let result = match &args.dir {
        None => page(commands(), "1"),
        Some(dir) => all().and_then(|pages| write(&pages, dir)),
    };
    match result {
        Ok(text) => output::print(&text, ExitCode::SUCCESS),
        Err(error) => output::failed(&error),
    }
}

/// A page: the name of its file, and its text.
type Page = (String, String);

/// Return all pages.
fn all() -> Result<Vec<Page>, Error> {
    let mut pages = Vec::new();
    commands_of(&commands(), "kvtide", &mut pages)?;
    pages.push(("kvtided.8".into(), page(command::definition(), "8")? + DAEMON));
    pages.push(("kvtided.toml.5".into(), config::manual()));
    Ok(pages)
}

/// Add the pages of a command and its subcommands. `words`: what a user types to call it.
fn commands_of(command: &clap::Command, words: &str, pages: &mut Vec<Page>) -> Result<(), Error> {
    let name = words.replace(' ', "-");
    // Without these the page names the last word alone.
    let own = command.clone().display_name(&name).bin_name(words);
    pages.push((format!("{name}.1"), page(own, "1")?));
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        commands_of(subcommand, &format!("{words} {}", subcommand.get_name()), pages)?;
    }
    Ok(())
}

fn page(command: clap::Command, section: &str) -> Result<String, Error> {
    let man = clap_mangen::Man::new(command.subcommand_value_name("COMMAND"))
        .section(section)
        .source(concat!("kvtide ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render(&mut text).map_err(|error| Error::system("render a manual page", error))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Write the pages, and say how many they are.
fn write(pages: &[Page], dir: &Path) -> Result<String, Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { action: "write the manual page", path, source }
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    for (name, text) in pages {
        let path = dir.join(name);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    Ok(format!("{} pages in {}\n", pages.len(), dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_name_what_a_user_types_and_every_key() {
        let pages = all().unwrap();
        let text = |name: &str| &pages.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("no {name}")).1;
        let line_after = |name: &str, head: &str| text(name).lines().skip_while(|line| *line != head).nth(1).unwrap();
        for (page, words) in [
            ("kvtide.1", "kvtide"),
            ("kvtide-status.1", "kvtide status"),
            ("kvtide-cache-pin.1", "kvtide cache pin"),
            ("kvtided.8", "kvtided"),
        ] {
            let synopsis = line_after(page, ".SH SYNOPSIS");
            assert!(synopsis.starts_with(&format!("\\fB{words}\\fR ")), "{page}: {synopsis}");
        }
        assert!(text("kvtided.8").contains(".TH kvtided 8"), "{}", text("kvtided.8"));
        assert!(line_after("kvtided.8", ".SH NAME").contains("engines"), "{}", text("kvtided.8"));
        for key in config::keys() {
            let last = key.name.rsplit('.').next().unwrap();
            assert!(text("kvtided.toml.5").contains(&format!("\\fB{last} = ")), "{}", key.name);
        }
    }
}
