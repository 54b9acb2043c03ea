//! Style as a test: rules about this repository that the compiler does not enforce.
//!
//! Each check is a function over plain inputs, so that the tests below can show it failing on bad input.

mod arrows;
mod cycles;
mod lexer;
mod links;
mod pictures;
mod sources;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Return the files that git tracks or would track, relative to the root, with one of the given endings.
fn tracked(endings: &[&str]) -> Vec<PathBuf> {
    let out = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output()
        .expect("git lists the files of the checkout");
    assert!(out.status.success(), "git ls-files: {}", String::from_utf8_lossy(&out.stderr));
    let files: Vec<PathBuf> = String::from_utf8(out.stdout)
        .expect("paths are UTF-8")
        .split('\0')
        .filter(|p| endings.iter().any(|e| p.ends_with(e)))
        .map(PathBuf::from)
        .filter(|p| root().join(p).is_file())
        .collect();
    assert!(!files.is_empty(), "no {endings:?} file found: this check would prove nothing");
    files
}

fn report(problems: &[String]) {
    assert!(problems.is_empty(), "{} problem(s):\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn arrows_between_crates() {
    report(&arrows::violations(&arrows::workspace_edges(root())));
}

#[test]
fn arrows_check_fails_on_a_bad_edge() {
    let edge = |from: &str, to: &str| arrows::Edge { from: from.into(), to: to.into(), dev: false, features: vec![] };
    assert_eq!(arrows::violations(&[edge("kvtide", "kvtide-tiering")]).len(), 0);
    assert_eq!(arrows::violations(&[edge("kvtide-tiering", "kvtide-wire")]).len(), 1);
    assert_eq!(arrows::violations(&[edge("kvtide-client", "kvtide-tiering")]).len(), 1);
    assert_eq!(arrows::violations(&[edge("kvtide", "kvtide-sim")]).len(), 1);
    assert_eq!(arrows::violations(&[edge("kvtide-daemon", "kvtide-client")]).len(), 1);
    assert_eq!(arrows::violations(&[edge("kvtide", "kvtide-relay")]).len(), 1, "its tests alone may");
    let mut tests = edge("kvtide", "kvtide-relay");
    tests.dev = true;
    assert_eq!(arrows::violations(&[tests]).len(), 0);
    let mut mutants = edge("kvtide", "kvtide-tiering");
    mutants.features = vec!["mutants".into()];
    assert_eq!(arrows::violations(&[mutants]).len(), 1);
}

#[test]
fn pictures_show_what_is_there() {
    let path = root().join("docs/pictures/packages.svg");
    let (members, edges) = arrows::shipped(root());
    let drawn = pictures::packages(&members, &edges);
    if std::env::var_os("KVTIDE_BLESS").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap_or_default() == drawn,
        "{} is out of date: KVTIDE_BLESS=1 cargo test --test tidy writes it",
        path.display()
    );
    let svgs = tracked(&[".svg"]);
    assert!(svgs.len() > 2, "{svgs:?}");
    let missing = svgs.iter().flat_map(|path| {
        let missing = pictures::missing_folders(root(), &std::fs::read_to_string(root().join(path)).unwrap());
        missing.into_iter().map(|folder| format!("{}: {folder} does not exist", path.display())).collect::<Vec<_>>()
    });
    report(&missing.collect::<Vec<_>>());
    assert_eq!(pictures::missing_folders(root(), "<text>src/daemon, src/deamon.</text>"), ["src/deamon."]);
}

#[test]
fn modules_have_no_new_cycles() {
    let all = tracked(&[".rs"]);
    let mut problems = vec![];
    for (folder, known) in cycles::KNOWN {
        let inside = |path: &PathBuf| path.strip_prefix(folder).ok().map(|path| path.display().to_string());
        let text = |path: &PathBuf| std::fs::read_to_string(root().join(path)).expect("readable source");
        let files: Vec<_> = all.iter().filter_map(|path| Some((inside(path)?, text(path)))).collect();
        assert!(!files.is_empty(), "no source in {folder}: this check would prove nothing");
        if *folder == "tiering/src" {
            problems.extend(cycles::upward(&files));
        }
        let found = cycles::cycles(&files);
        if found != *known {
            problems.push(format!("{folder}: cycles between modules are {found:?}, known are {known:?}"));
        }
    }
    report(&problems);
}

#[test]
fn the_cycle_check_finds_a_cycle() {
    let found = |files: &[(&str, &str)]| {
        cycles::cycles(&files.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect::<Vec<_>>())
    };
    let (a, c) = (("a/mod.rs", "use crate::{b::{self, C}, d};\n"), ("c.rs", "fn f() { crate::a::g() }\n"));
    assert_eq!(found(&[a, ("b.rs", "//! crate::a\n"), c]).len(), 0, "a comment is no use");
    assert_eq!(found(&[a, ("b.rs", "use crate::c;\n"), c]), [["a", "b", "c"]]);
    assert_eq!(found(&[a, ("b/tests.rs", "use crate::c;\n"), c]).len(), 0, "tests may use each other");
    assert_eq!(found(&[a, ("b.rs", "#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n"), c]).len(), 0);
}

#[test]
fn the_layer_check_finds_names_from_above() {
    let upward = |path: &str, text: &str| cycles::upward(&[(path.into(), text.into())]).len();
    assert_eq!(upward("host/a.rs", "use crate::disk::D;\nuse crate::api::A;\nuse crate::host::H;\n"), 0);
    assert_eq!(upward("host/a.rs", "fn f() { crate::paging::g() }\n"), 1);
    assert_eq!(upward("paging/a/b.rs", "use crate::{block_api::B, host::H};\n"), 1, "two ways in, beside each other");
    assert_eq!(upward("lib.rs", "use crate::core::C;\n"), 0);
}

#[test]
fn links_lead_somewhere() {
    let endings = [
        ".md", ".rs", ".py", ".pyi", ".toml", ".c", ".h", ".cu", ".html", ".js", ".json", ".yaml", ".yml", ".service",
        ".sh",
    ];
    report(&links::broken(root(), &tracked(&endings)));
}

#[test]
fn the_link_check_fails_on_bad_links() {
    let links = |text: &str| links::links(text).into_iter().map(|(_, target)| target).collect::<Vec<_>>();
    assert_eq!(links("[a](b.md) ![c](d.svg \"e\")\n[f]: g.md#h\n<img src=\"i\">\n"), ["b.md", "d.svg", "g.md#h", "i"]);
    assert!(links("`[a](b.md)`\n```sh\n[a](b.md)\n```\n").is_empty(), "code has no links");
    let anchors = links::anchors("# A `b_c`: d, 1 %\n## Twice\n## Twice\n```\n# no\n```\n### [Link](x.md) é\n");
    assert_eq!(anchors.iter().map(String::as_str).collect::<Vec<_>>(), ["a-b_c-d-1-", "link-é", "twice", "twice-1"]);
    assert_eq!(links::mentions(&"//! see do+cs/a.md#b. And (do+cs/c/d.md), x/do+cs/no.md\n".replace('+', "")).len(), 2);
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("a.md"), "# A\n[](#a) [](b.md) [](#c) [](a.md#a) [](https://x.y/z) [](../a.md)\n")
        .unwrap();
    let broken = links::broken(root.path(), &["a.md".into()]);
    assert_eq!(broken.len(), 3, "{broken:?}");
}

#[test]
fn sources_keep_the_rules() {
    let mut problems = vec![];
    for path in tracked(&[".rs", ".c", ".h", ".py", ".sh"]) {
        let text = std::fs::read_to_string(root().join(&path)).expect("readable source");
        problems.extend(sources::violations(&path, &text));
    }
    report(&problems);
}

#[test]
fn no_old_word_comes_back() {
    let mut problems = vec![];
    for path in tracked(&[".rs"]) {
        let text = std::fs::read_to_string(root().join(&path)).expect("readable source");
        problems.extend(words::violations(&path, &text));
    }
    report(&problems);
}

#[test]
fn the_word_check_finds_old_words_in_identifiers_alone() {
    let check = |text: &str| words::violations(Path::new("src/a.rs"), text).len();
    assert_eq!(check("struct SessionTally;\nfn say_goodbye() {}\n"), 2);
    assert_eq!(check("const LIMBO_MAX: u32 = 1;\n"), 1);
    assert_eq!(check("// a tally\nconst S: &str = \"tally\"; fn totally() {}\n"), 0);
}

#[test]
fn the_source_check_fails_on_bad_files() {
    let check = |path: &str, text: &str| sources::violations(Path::new(path), text).len();
    assert_eq!(check("ffi/src/a.rs", "//! A.\nfn f() {\n    // SAFETY: reason\n    unsafe { g() }\n}\n"), 0);
    assert_eq!(check("ffi/src/a.rs", "//! A.\nfn f() {\n    unsafe { g() }\n}\n"), 1);
    assert_eq!(check("ffi/src/a.rs", "//! A.\n/// # Safety\n/// p lives.\npub unsafe fn f() {}\n"), 0);
    assert_eq!(check("ffi/src/a.rs", "//! A.\npub unsafe fn f() {}\n"), 1);
    assert_eq!(check("src/a.rs", "//! A.\nfn f() {\n    // SAFETY: reason\n    unsafe { g() }\n}\n"), 1);
    assert_eq!(check("src/a.rs", "//! A.\nconst S: &str = \"unsafe\"; // unsafe { }\n"), 0);
    assert_eq!(check("src/a.rs", &format!("//! A.\n{}", "fn f() {}\n".repeat(800))), 1);
    assert_eq!(check("src/a.rs", "fn f() {}\n"), 1, "a file needs a //! line");
    assert_eq!(check("src/a.rs", "//! A.\nfn f() { todo!() }\n"), 1);
    assert_eq!(check("tests/a.rs", "//! A.\n#[ignore]\n#[test]\nfn f() {}\n"), 1);
    assert_eq!(check("tests/a.rs", "//! A.\nfn f() { std::thread::sleep(d) }\n"), 1);
    assert_eq!(
        check("tests/a.rs", "//! A.\nfn f() {\n    // PACE: polls with a bound\n    std::thread::sleep(d)\n}\n"),
        0
    );
}

#[test]
fn every_member_takes_the_workspace_lints_and_licence() {
    report(&arrows::manifest_violations(root()));
}
