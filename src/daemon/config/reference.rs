//! The reference of all keys, as a file with every key (`configs/kvtided.toml`) and as a page (docs/reference/configuration.md).

use super::section::{Effect, Section, Shown, Table};
use super::table::Config;

const HEAD: &str = "\
# Configuration reference of kvtided. Every key is optional, and this file as it is equals the defaults.
# `kvtide config keys` prints it.
#
# Marks at the beginning of a line:
#   \"#= \"  the default value of a key
#   \"#: \"  an example of a key with a default that depends on other keys or on the machine
#   \"#| \"  an alternative to the key above it
# In brackets: the allowed values, and when a changed value takes effect (a reload, on SIGHUP, reads the file again).
#
# Unknown keys are errors. A size is a whole number of bytes (\"4096\"), or a whole number and a unit: KiB, MiB, GiB, TiB or PiB
# (\"64MiB\"). Validate a file with `kvtide config check FILE`.
";

/// Say when a changed value takes effect.
pub(super) fn when(effect: Effect) -> String {
    match effect {
        Effect::Now => "applies at a reload".to_owned(),
        other => other.to_string(),
    }
}

/// Return all tables, in the order of the file.
pub(super) fn tables() -> Vec<Table> {
    let mut tables = Vec::new();
    <Config as Section>::document("", false, &[], &mut tables);
    tables
}

/// Return a file with every key, commented out, and its documentation.
#[must_use]
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for table in tables() {
        let Table { path, is_list, docs, rows } = table;
        if rows.is_empty() && docs.is_empty() {
            continue;
        }
        text.push('\n');
        if is_list {
            docs.iter().for_each(|line| text.push_str(&format!("#{line}\n")));
            text.push_str(&format!("#: [[{path}]]\n"));
        } else {
            text.push_str(&format!("[{path}]\n"));
            docs.iter().for_each(|line| text.push_str(&format!("#{line}\n")));
            if !docs.is_empty() {
                text.push_str("#\n");
            }
        }
        for row in rows {
            row.docs.iter().for_each(|line| text.push_str(&format!("#{line}\n")));
            let allowed = row.allowed.map(|allowed| format!("{allowed}; ")).unwrap_or_default();
            text.push_str(&format!("# [{allowed}{}]\n", when(row.effect)));
            let default = row.default.unwrap_or_default();
            let (mark, value) = match row.shown {
                Shown::Default if is_list => (':', default.as_str()),
                Shown::Default => ('=', default.as_str()),
                Shown::Example(example) => (':', example),
                Shown::Alternative(example) => ('|', example),
            };
            text.push_str(&format!("#{mark} {} = {value}\n", row.key));
        }
    }
    text
}

/// Return the manual page kvtided.toml(5): every key, by the same table.
#[must_use]
pub fn manual() -> String {
    let mut text = format!(
        ".TH kvtided.toml 5 \"\" \"kvtide {}\"\n.SH NAME\nkvtided.toml \\- configuration of kvtided(8)\n.SH DESCRIPTION\n\
         All settings of the daemon are in one TOML file, by default none: kvtided(8) reads the file of \\-\\-config. Every key is optional. \
         Unknown keys are errors. A size is a number of bytes, or a number and a unit: KiB, MiB, GiB, TiB or PiB. A changed file is read \
         on SIGHUP; each key says when a changed value takes effect.\n.PP\n\
         \\(lqkvtide config check FILE\\(rq validates a file, \\(lqkvtide config keys\\(rq prints one with every key.\n",
        env!("CARGO_PKG_VERSION")
    );
    for Table { path, is_list, docs, rows } in tables() {
        if rows.is_empty() && docs.is_empty() {
            continue;
        }
        let name = if is_list { format!("[[{path}]]") } else { format!("[{path}]") };
        text += &format!(".SH \"{name}\"\n{}", roff(docs));
        for row in rows {
            let value = match row.shown {
                Shown::Default => row.default.unwrap_or_default(),
                Shown::Example(example) | Shown::Alternative(example) => format!("{example}    (an example)"),
            };
            let allowed = row.allowed.map(|allowed| format!("{allowed}; ")).unwrap_or_default();
            let end = format!(" [{allowed}{}]", when(row.effect));
            let key = format!("{} = {value}", row.key);
            text += &format!(".TP\n\\fB{}\\fR\n{}.br\n{}", escaped(&key), roff(row.docs), roff(&[&end]));
        }
    }
    text + ".SH FILES\n/etc/kvtide/kvtided.toml\n.SH SEE ALSO\nkvtided(8), kvtide(1), kvtide\\-config(1)\n"
}

/// Return lines of documentation as text of a manual page. Lines of a list, which are indented, stand apart.
fn roff(docs: &[&str]) -> String {
    let (mut text, mut was_apart) = (String::new(), false);
    for line in docs {
        let apart = line.starts_with("   ");
        if apart || was_apart {
            text += ".br\n";
        }
        text += &format!("{}\n", escaped(line.trim()));
        was_apart = apart;
    }
    text
}

fn escaped(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    // A line that begins with one of these is a request.
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// A key, for `kvtide config keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its full name.
    pub name: String,
    /// The default in the syntax of the file, or an example if the default depends on other keys or on the machine.
    pub default: String,
    /// Its documentation, with the allowed values and when a change takes effect.
    pub documentation: String,
}

/// Return all keys, in the order of the file.
#[must_use]
pub fn keys() -> Vec<Key> {
    let key = |path: &str, row: super::section::Row| {
        let allowed = row.allowed.map(|allowed| format!("{allowed}; ")).unwrap_or_default();
        let lines = row.docs.iter().map(|line| line.trim_start().to_owned());
        let documentation: Vec<String> = lines.chain([format!("[{allowed}{}]", when(row.effect))]).collect();
        let default = match row.shown {
            Shown::Default => row.default.unwrap_or_default(),
            Shown::Example(example) | Shown::Alternative(example) => example.to_owned(),
        };
        Key { name: super::section::join(path, row.key), default, documentation: documentation.join("\n") }
    };
    tables()
        .into_iter()
        .flat_map(|table| table.rows.into_iter().map(move |row| key(&table.path, row)).collect::<Vec<_>>())
        .collect()
}
