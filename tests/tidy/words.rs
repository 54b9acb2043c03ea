//! Words that were this project's own, each with the ordinary one that replaced it (docs/glossary.md). They do not come back in identifiers.

use crate::lexer::code_only;
use std::path::Path;

/// Old words, and what is used instead. None has another use in the code of this project.
const OLD: &[(&str, &str)] = &[
    ("bet", "trial"),
    ("canary", "integrity sample"),
    ("care", "priority"),
    ("chill", "evict first"),
    ("cool", "drop block"),
    ("desk", "scratch or status"),
    ("door", "disk handle"),
    ("errand", "background task"),
    ("farewell", "shutdown"),
    ("fate", "outcome"),
    ("goodbye", "detach"),
    ("guest", "peer"),
    ("heat", "give block"),
    ("heed", "handle"),
    ("intent", "scheduled prefetch"),
    ("judge", "observe or score"),
    ("limbo", "awaiting erasure"),
    ("lingering", "waiting for exit"),
    ("newcomer", "attach request"),
    ("nudge", "waker"),
    ("outbox", "queue"),
    ("outdated", "stale"),
    ("price", "threshold"),
    ("pump", "issue"),
    ("reroot", "record again"),
    ("seat", "entry"),
    ("shed", "unmap"),
    ("soft", "predicted"),
    ("spill", "overflow"),
    ("squeeze", "reclaim"),
    ("starve", "shortage"),
    ("tally", "stats"),
    ("unconsumed", "read ahead"),
    ("unpublish", "remove"),
    ("unroot", "unrecord"),
    ("wear", "endurance or write budget"),
    ("wish", "scheduled prefetch"),
];

/// Return the old words in the identifiers of Rust source.
pub fn violations(path: &Path, text: &str) -> Vec<String> {
    let name = path.display().to_string();
    let mut found = vec![];
    for (at, line) in code_only(text).lines().enumerate() {
        for word in words(line) {
            if let Some((old, new)) = OLD.iter().find(|(old, _)| *old == word) {
                found.push(format!("{name}:{}: `{old}` is an old word; use {new}", at + 1));
            }
        }
    }
    found
}

/// Split a line into the words of its identifiers, in lower case: `CanaryTally` and `canary_tally` are both `canary`, `tally`.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        if !c.is_ascii_alphabetic() || c.is_ascii_uppercase() && was_lower {
            words.push(String::new());
        }
        if c.is_ascii_alphabetic() {
            words.last_mut().expect("never empty").push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_split() {
        assert_eq!(words("fn two_words(ThreeMore: u32) // and"), ["fn", "two", "words", "three", "more", "u", "and"]);
    }
}
