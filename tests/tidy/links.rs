//! Links of the documentation: each file that a link names exists, and so does each heading, under the anchor that GitHub gives it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// Return the links and mentions in `files` (paths relative to `root`) whose file or heading does not exist.
pub fn broken(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut anchors = BTreeMap::new();
    let mut problems = vec![];
    for path in files {
        let text = std::fs::read_to_string(root.join(path)).expect("readable document");
        let folder = path.parent().expect("a file is in a folder");
        let links: Vec<(usize, String, &Path)> = if path.extension().is_some_and(|e| e == "md") {
            links(&text).into_iter().map(|(line, target)| (line, target, folder)).collect()
        } else {
            mentions(&text).into_iter().map(|(line, target)| (line, target, Path::new(""))).collect()
        };
        for (line, target, folder) in links {
            if let Some(problem) = problem(root, path, folder, &target, &mut anchors) {
                problems.push(format!("{}:{line}: link to {target}: {problem}", path.display()));
            }
        }
    }
    problems
}

type Anchors = BTreeMap<PathBuf, BTreeSet<String>>;

fn problem(root: &Path, from: &Path, folder: &Path, target: &str, known: &mut Anchors) -> Option<String> {
    // A scheme, as in https: and mailto:, is outside of this repository.
    if target.split(['/', '#', '?']).next().is_some_and(|start| start.contains(':')) {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { Some(from.to_owned()) } else { normal(&folder.join(file)) };
    let Some(path) = path else { return Some("is outside of the repository".into()) };
    if !root.join(&path).exists() {
        return Some(format!("{} does not exist", path.display()));
    }
    let anchor = anchor?;
    if path.extension().is_none_or(|e| e != "md") {
        return Some("only documents have anchors".into());
    }
    let anchors = known
        .entry(path)
        .or_insert_with_key(|path| anchors(&std::fs::read_to_string(root.join(path)).expect("readable document")));
    (!anchors.contains(anchor)).then(|| "no such heading".into())
}

/// Resolve `..` without the file system. Return `None` for a path outside of the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => normal.pop().then_some(())?,
            _ => {}
        }
    }
    Some(normal)
}

/// Return the lines of a document that are not in a code block, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut fence: Option<&str> = None;
    let mut lines = vec![];
    for (at, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, None) => lines.push((at + 1, line)),
            (None, mark) => fence = mark,
            (Some(open), Some(mark)) if open == mark => fence = None,
            _ => {}
        }
    }
    lines
}

/// Return a line without its code spans.
fn without_code(line: &str) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    // An odd number of marks: the last one opens nothing.
    let open = parts.len() - usize::from(parts.len().is_multiple_of(2));
    let kept = parts.iter().enumerate().filter(|(at, _)| at % 2 == 0 || *at >= open);
    kept.map(|(_, part)| *part).collect::<Vec<_>>().join("``")
}

/// Return the targets of all links and images of a document, with the numbers of their lines.
pub fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = vec![];
    let lines = prose(text);
    for (at, (number, line)) in lines.iter().enumerate() {
        let line = without_code(line);
        for (mark, end) in [("](", &[')', ' '][..]), ("href=\"", &['"'][..]), ("src=\"", &['"'][..])] {
            for rest in line.split(mark).skip(1) {
                found.push((*number, rest.split(end).next().unwrap_or_default().to_owned()));
            }
        }
        // A definition: `[name]: target`.
        if let Some((_, target)) = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            found.extend(target.split_whitespace().next().map(|target| (*number, target.to_owned())));
        }
        // GitHub makes no link of these two.
        if line.ends_with(']') && lines.get(at + 1).is_some_and(|(_, next)| next.trim_start().starts_with('(')) {
            found.push((*number, "a link over two lines".into()));
        }
    }
    found
}

/// Return the documents that a source file names, with the numbers of the lines.
pub fn mentions(text: &str) -> Vec<(usize, String)> {
    let mut found = vec![];
    for (at, line) in text.lines().enumerate() {
        for (start, _) in line.match_indices("docs/") {
            let before = line[..start].chars().next_back();
            if before.is_some_and(|c| c.is_ascii_alphanumeric() || "/_-.".contains(c)) {
                continue;
            }
            let rest = &line[start..];
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "/_-.#".contains(c))).unwrap_or(rest.len());
            let name = rest[..end].trim_end_matches(['.', '#']);
            let file = name.split('#').next().unwrap_or_default();
            if file.ends_with(".md") {
                found.push((at + 1, name.to_owned()));
            }
        }
    }
    found
}

/// Return the anchors of a document: those that GitHub makes of its headings, and those written as HTML.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        let level = line.chars().take_while(|c| *c == '#').count();
        if let Some(heading) = line[level..].strip_prefix(' ').filter(|_| (1..=6).contains(&level)) {
            let slug = slug(heading);
            let mut name = slug.clone();
            // Equal headings are numbered.
            for number in 1.. {
                if found.insert(name) {
                    break;
                }
                name = format!("{slug}-{number}");
            }
        }
        for mark in ["id=\"", "name=\""] {
            found.extend(line.split(mark).skip(1).filter_map(|rest| rest.split('"').next()).map(String::from));
        }
    }
    found
}

/// Return GitHub's anchor of a heading: small letters, digits, `-` and `_` stay, spaces become `-`, the rest goes.
fn slug(heading: &str) -> String {
    let mut text = String::new();
    let mut rest = heading.trim().trim_end_matches('#').trim_end();
    // Of a link its text stays.
    while let Some((before, after)) = rest.split_once("](") {
        text += before;
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let kept = text.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
