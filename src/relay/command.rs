//! The command line of `kvtide-relay`, and its manual pages: from the definition of the flags, and from configs/relay.toml.

use crate::error::Error;
use clap::{CommandFactory, Parser};
use std::fs;
use std::path::{Path, PathBuf};

/// Copy a kvtide daemon's blocks to S3, GCS, Azure, Valkey, Redis or a directory, and back
#[derive(Debug, Parser)]
#[command(
    name = "kvtide-relay",
    version,
    after_help = "Exit status: 0: ended; 1: failed; 2: wrong usage.\n\n\
        Examples:\n  kvtide-relay --config /etc/kvtide/relay.toml\n  kvtide-relay --config /etc/kvtide/relay.toml --check"
)]
pub struct Arguments {
    /// Configuration file
    #[arg(long, value_name = "PATH", default_value = "/etc/kvtide/relay.toml")]
    pub config: PathBuf,
    /// Check the configuration, the shared keys and the store's URL and options, and end
    #[arg(long)]
    pub check: bool,
    /// Write the manual pages kvtide-relay(8) and relay.toml(5) into this directory, and end
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    pub man: Option<PathBuf>,
}

/// The file with all keys.
const KEYS: &str = include_str!("../../configs/relay.toml");

/// Sections of kvtide-relay(8) that do not follow from its flags.
const RELAY: &str = r".SH SIGNALS
.TP
SIGTERM, SIGINT
End the sessions with the daemon and exit. Requests to the store that are in flight are dropped.
.PP
There is no reload: to change the configuration, a token or a key, restart the relay.
.SH ENVIRONMENT
.TP
KVTIDE_LOG
Directives of the log, such as debug or info,kvtide_relay=debug. The default is info.
.SH FILES
.TP
/etc/kvtide/relay.toml
Configuration.
.TP
/run/kvtide\-relay/relay.sock
Socket where engines ask for prefixes, if domains.adapters is configured.
.SH SEE ALSO
relay.toml(5), kvtide(1), kvtided(8)
";

/// Write the manual pages into a directory, which is made if necessary.
///
/// # Errors
/// The directory or a file cannot be written.
pub fn write_manual(dir: &Path) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { action: "write the manual pages to", path, source }
    };
    let man =
        clap_mangen::Man::new(Arguments::command()).section("8").source(concat!("kvtide ", env!("CARGO_PKG_VERSION")));
    let mut relay = Vec::new();
    man.render(&mut relay).map_err(failed(dir))?;
    relay.extend_from_slice(RELAY.as_bytes());
    fs::create_dir_all(dir).map_err(failed(dir))?;
    for (name, text) in [("kvtide-relay.8", relay), ("relay.toml.5", keys().into_bytes())] {
        let path = dir.join(name);
        fs::write(&path, text).map_err(failed(&path))?;
    }
    Ok(())
}

/// Return the manual page relay.toml(5). A comment of the file describes the table or the keys that follow it.
fn keys() -> String {
    let (mut text, mut docs, mut names) = (String::new(), Vec::new(), Vec::new());
    let mut lines = KEYS.lines();
    let head: Vec<&str> = lines.by_ref().map(uncommented).take_while(|line| !line.is_empty()).collect();
    let version = env!("CARGO_PKG_VERSION");
    text += &format!(
        ".TH relay.toml 5 \"\" \"kvtide {version}\"\n.SH NAME\nrelay.toml \\- configuration of kvtide\\-relay(8)\n"
    );
    text += &format!(".SH DESCRIPTION\n{}", roff(&head));
    for line in lines.chain([""]).map(uncommented) {
        let is_table = line.starts_with('[') && line.ends_with(']');
        let key = line.split_once(" = ").map(|(key, _)| key);
        let is_key = key.is_some_and(|key| key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        if is_key {
            names.push(line);
            continue;
        }
        if !names.is_empty() {
            text += &entry(&names, &docs);
            names.clear();
            docs.clear();
        }
        if is_table {
            text += &format!(".SH \"{}\"\n{}", escaped(line), roff(&docs));
            docs.clear();
        } else if !line.is_empty() {
            docs.push(line);
        }
    }
    text + ".SH FILES\n/etc/kvtide/relay.toml\n.SH SEE ALSO\nkvtide\\-relay(8), kvtided.toml(5)\n"
}

/// Return a line of the file without the marks of a comment.
fn uncommented(line: &str) -> &str {
    line.trim_start_matches('#').trim()
}

/// Return keys and what describes them; nothing, if the comment of their table does.
fn entry(names: &[&str], docs: &[&str]) -> String {
    let (first, next) = if docs.is_empty() { (".PP\n", ".br\n") } else { (".TP\n", ".TQ\n") };
    let names: Vec<String> = names.iter().map(|name| format!("\\fB{}\\fR\n", escaped(name))).collect();
    format!("{first}{}{}", names.join(next), roff(docs))
}

fn roff(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("{}\n", escaped(line))).collect()
}

fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    // A line that begins with one of these is a request.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_all_flags_and_all_keys() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("man");
        write_manual(&there).unwrap();
        let page = |name: &str| fs::read_to_string(there.join(name)).unwrap();
        let relay = page("kvtide-relay.8");
        for part in [".TH kvtide-relay 8 ", "\\fB\\-\\-config\\fR", "\\fB\\-\\-check\\fR", "SIGTERM", "Exit status: 0"]
        {
            assert!(relay.contains(part), "{part} is not in: {relay}");
        }
        let toml = page("relay.toml.5");
        // Each line of the file is in the page: tables and keys by their marks, comments as text.
        for line in KEYS.lines().map(uncommented).filter(|line| !line.is_empty()) {
            assert!(toml.contains(&escaped(line)), "{line} is not in: {toml}");
        }
        for table in
            ["daemon", "[domains]", "domains.adapters", "domains.events", "store", "store.options", "copy_out", "http"]
        {
            assert!(toml.contains(&format!(".SH \"[{table}]\"\n")), "{table}: {toml}");
        }
        for (key, text) in [
            (".TP\n\\fBencrypt = true\\fR\n", "Encrypt blocks in the store"),
            (".TQ\n\\fBrequests_per_day = 1_000_000\\fR\n", "Maximum bytes and requests in a day"),
            (".br\n\\fBuids = [1000]\\fR\n", ".br\n\\fBtokens = "),
        ] {
            assert!(toml.contains(&format!("{key}{text}")), "{key}{text} is not in: {toml}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = write_manual(&file.join("man")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot write the manual pages to {}", file.display())), "{error}");
    }
}
