//! Rules for single source files.

use crate::lexer::code_only;
use std::path::Path;

/// Maximum lines of a file.
pub const LINES_MAX: usize = 800;

/// Folders where `unsafe` is allowed: code that shares memory with another process, runs in an engine, or does device I/O.
const UNSAFE_ALLOWED: &[&str] = &["ffi/", "kernels/", "src/nvme/"];

/// Maximum lines between a SAFETY comment and its `unsafe`.
const SAFETY_LINES: usize = 12;

/// Return the violations in one file, one line each.
pub fn violations(path: &Path, text: &str) -> Vec<String> {
    let name = path.display();
    let mut problems = vec![];
    let lines = text.lines().count();
    if lines > LINES_MAX && !generated(text) {
        problems.push(format!("{name}: {lines} lines, at most {LINES_MAX}"));
    }
    if path.extension().is_some_and(|e| e == "rs") {
        rust(path, text, &mut problems);
    }
    problems
}

fn generated(text: &str) -> bool {
    text.lines().take(10).any(|l| l.contains("enerated by"))
}

fn rust(path: &Path, text: &str, problems: &mut Vec<String>) {
    let name = path.display();
    if !text.lines().find(|l| !l.starts_with("#!")).is_some_and(|l| l.starts_with("//!")) {
        problems.push(format!("{name}: does not begin with a //! line that describes its content"));
    }
    let code = code_only(text);
    let original: Vec<&str> = text.lines().collect();
    for line in words(&code, "unsafe") {
        let in_test = path.components().any(|c| c.as_os_str() == "tests");
        let at = path.to_string_lossy();
        if !in_test && !UNSAFE_ALLOWED.iter().any(|p| at.starts_with(p)) {
            problems.push(format!("{name}:{line}: unsafe is allowed only in {UNSAFE_ALLOWED:?}"));
        }
        // The attribute `no_mangle` needs no comment: tests/capi.rs checks on the library itself that no other symbol has the name.
        let exported = original[line - 1].trim() == "#[unsafe(no_mangle)]";
        if !exported && !explained(&original, line) {
            problems.push(format!("{name}:{line}: unsafe without a SAFETY comment"));
        }
    }
    for marker in ["todo!", "unimplemented!"] {
        if code.contains(marker) {
            problems.push(format!("{name}: {marker} is not allowed"));
        }
    }
    if code.contains("#[ignore") {
        problems.push(format!("{name}: an ignored test proves nothing"));
    }
    for line in words(&code, "sleep").filter(|&l| code.lines().nth(l - 1).is_some_and(|c| c.contains("thread::sleep")))
    {
        if !original[line.saturating_sub(4)..line].iter().any(|l| l.contains("PACE:")) {
            problems.push(format!("{name}:{line}: a sleep needs a `// PACE:` comment that names its time limit"));
        }
    }
}

/// Return the lines (1-based) that contain a word. `unsafe_code` in an attribute and longer words that contain it do not count.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    code.lines().enumerate().filter_map(move |(i, line)| {
        let found = line
            .match_indices(word)
            .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word));
        found.then_some(i + 1)
    })
}

/// Return whether a SAFETY comment, or a `# Safety` section for a function that is unsafe to call, is above or on the line.
fn explained(lines: &[&str], line: usize) -> bool {
    lines[line.saturating_sub(SAFETY_LINES)..line].iter().any(|l| l.contains("SAFETY:") || l.contains("# Safety"))
}
