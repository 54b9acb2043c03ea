//! `release VERSION`: whether the tree says everywhere that it is this version.

use crate::run::{Error, root};
use std::fs;

/// A number of the code, which a reader of the changelog needs: its name there, its file, and the text before it.
const NUMBERS: [(&str, &str, &str); 3] = [
    ("Protocol", "ffi/wire/src/layout.rs", "pub const VERSION: u32 = "),
    ("C ABI", "ffi/capi/src/version.rs", "pub const KVT_ABI_VERSION: u32 = "),
    ("on-disk format", "tiering/format/src/superblock.rs", "const VERSION: u32 = "),
];

/// Return the number after a text in a file.
fn number(path: &str, before: &str) -> Result<Option<String>, Error> {
    let text = fs::read_to_string(root().join(path)).map_err(|e| Error::Start(format!("read {path}"), e))?;
    Ok(text.split(before).nth(1).and_then(|rest| Some(rest.split_once(';')?.0.to_owned())))
}

/// Return the number of the C ABI, which is also that of the library's soname.
pub fn abi() -> Result<String, Error> {
    let [_, (_, path, before), _] = NUMBERS;
    number(path, before)?.ok_or_else(|| Error::Check(format!("{path}: `{before}` is not there")))
}

/// Check versions, the changelog, and the numbers of protocol, ABI and format in it.
pub fn check(version: &str) -> Result<(), Error> {
    let read = |path: &str| fs::read_to_string(root().join(path)).map_err(|e| Error::Start(format!("read {path}"), e));
    let mut wrong = Vec::new();
    for path in ["Cargo.toml", "ffi/python/Cargo.toml"] {
        if !read(path)?.lines().any(|line| line == format!("version = \"{version}\"")) {
            wrong.push(format!("{path}: the version is not {version}"));
        }
    }
    let changelog = read("CHANGELOG.md")?;
    let mut sections = changelog.split("\n## ").skip(1);
    let section = sections.next().unwrap_or_default();
    let dated = section.strip_prefix(&format!("[{version}] - ")).and_then(|rest| rest.get(..10));
    let is_date = |text: &str| {
        text.bytes().enumerate().all(|(at, byte)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() })
    };
    if !dated.is_some_and(is_date) {
        wrong.push(format!("CHANGELOG.md: the first section is not `## [{version}] - YYYY-MM-DD`"));
    }
    for (name, path, before) in NUMBERS {
        let Some(number) = number(path, before)? else {
            wrong.push(format!("{path}: `{before}` is not there"));
            continue;
        };
        let named = format!("{name} {number}");
        if !section.split([',', '.', '\n']).any(|part| part.trim() == named) {
            wrong.push(format!("CHANGELOG.md: its first section does not say `{named}`, as {path} does"));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(Error::Check(wrong.join("\n"))) }
}
