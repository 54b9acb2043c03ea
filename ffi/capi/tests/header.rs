//! Checks that the headers in `include` match the sources, and that their functions have names and comments of one form.
//!
//! The tests generate the headers with the cbindgen library and compare them with the committed files; `KVTIDE_BLESS=1` writes
//! the files.

use std::fs;
use std::path::PathBuf;

/// A header of the C API.
struct Header {
    name: &'static str,
    guard: &'static str,
    /// Sources, in the order of the header.
    sources: &'static [&'static str],
    /// Headers that it includes.
    includes: &'static [&'static str],
    head: &'static str,
    /// C code at its end, if any.
    tail: Option<&'static str>,
    /// Types that no signature contains: they are passed as integers, so that a wrong value is an error and not undefined
    /// behaviour; or another header's structure points to them.
    types: &'static [&'static str],
    /// Declarations of types of other headers.
    declares: &'static str,
}

const CAPI: [Header; 3] = [
    Header {
        name: "kvtide.h",
        guard: "KVTIDE_H",
        sources: &["version", "status", "error", "space", "client", "channel", "blocks", "relay", "request", "submit"],
        includes: &[],
        head: "src/head.h",
        tail: None,
        types: &["kvt_plane_kind", "kvt_level", "kvt_question_kind", "kvt_request_kind"],
        declares: "\n/// Digests of keys: see `kvtide_paged.h`.\ntypedef struct kvt_digests kvt_digests;",
    },
    Header {
        name: "kvtide_paged.h",
        guard: "KVTIDE_PAGED_H",
        sources: &["sequences", "pin", "layout", "lane", "scores"],
        includes: &["kvtide.h"],
        head: "src/head_paged.h",
        tail: Some("src/tail_paged.h"),
        types: &["kvt_advice", "kvt_contract", "kvt_element", "kvt_digests"],
        declares: "",
    },
    Header {
        name: "kvtide_cuda.h",
        guard: "KVTIDE_CUDA_H",
        sources: &["device"],
        includes: &["kvtide_paged.h"],
        head: "src/head_cuda.h",
        tail: None,
        types: &[],
        declares: "",
    },
];

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn generate(config: cbindgen::Config, sources: &[&str]) -> String {
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(here().join("src").join(source).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources parse").write(&mut text);
    let text = String::from_utf8(text).expect("a header is UTF-8");
    // C has no links between items and no rustdoc heading for contracts.
    text.replace("[`", "`").replace("`]", "`").replace("/// # Safety\n/// ", "/// Pointers: ")
}

/// Generate a header of the C API.
fn capi(header: &Header) -> String {
    let mut config = cbindgen::Config::from_file(here().join("cbindgen.toml")).expect("cbindgen.toml is valid");
    config.include_guard = Some(header.guard.to_owned());
    config.header = Some(read(header.head));
    config.sys_includes = ["stdbool.h", "stddef.h", "stdint.h"].map(str::to_owned).to_vec();
    config.includes = header.includes.iter().map(|name| (*name).to_owned()).collect();
    config.after_includes = Some(header.declares.to_owned()).filter(|text| !text.is_empty());
    config.export.include.extend(header.types.iter().map(|name| (*name).to_owned()));
    let text = generate(config, header.sources);
    // All types have typedefs, and those of other headers are unknown here: write neither with its tag.
    let untagged = |line: &str| match line.starts_with("typedef ") {
        true => format!("{line}\n"),
        false => format!("{}\n", line.replace("struct kvt_", "kvt_").replace("union kvt_", "kvt_")),
    };
    let text: String = text.lines().map(untagged).collect();
    let guard = format!("#endif  /* {} */\n", header.guard);
    assert!(text.ends_with(&guard), "cbindgen ends a header with its guard");
    let Some(tail) = header.tail else { return text };
    text.replace(&guard, &format!("{}\n{guard}", read(tail)))
}

fn read(path: &str) -> String {
    fs::read_to_string(here().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn compare(name: &str, generated: &str) {
    let path = here().join("../include").join(name);
    if std::env::var_os("KVTIDE_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, generated).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    if committed == generated {
        return;
    }
    let line = committed.lines().zip(generated.lines()).take_while(|(old, new)| old == new).count();
    panic!(
        "ffi/include/{name} differs from the sources, from line {}:\n  committed: {}\n  generated: {}\n\
         regenerate it: KVTIDE_BLESS=1 cargo test -p kvtide-capi --test header",
        line + 1,
        committed.lines().nth(line).unwrap_or("(end of file)"),
        generated.lines().nth(line).unwrap_or("(end of file)"),
    );
}

#[test]
fn the_headers_are_current() {
    for header in &CAPI {
        compare(header.name, &capi(header));
    }
}

/// A source that is in no [`Header`] would be missing from the headers without an error.
#[test]
fn every_exported_function_is_in_one_header() {
    let headers: Vec<String> = CAPI.iter().map(capi).collect();
    let folder = here().join("src");
    let mut seen = 0;
    for entry in fs::read_dir(&folder).expect("src is readable") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = fs::read_to_string(&path).expect("a source is readable");
        for line in source.lines() {
            let Some((_, rest)) = line.split_once("extern \"C\" fn ") else { continue };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let declared = headers.iter().filter(|text| functions(text).iter().any(|f| f.name == name)).count();
            assert_eq!(declared, 1, "{name} of {} must be in one header", path.display());
            seen += 1;
        }
    }
    assert!(seen > 50, "only {seen} functions found: the scan is broken");
}

/// A declaration of a function, and the comment before it.
struct Function {
    name: String,
    comment: String,
    /// Type and name of each parameter.
    parameters: Vec<(String, String)>,
}

/// Return the functions that a header declares.
fn functions(header: &str) -> Vec<Function> {
    let (_, declarations) = header.split_once("extern \"C\" {").expect("a header declares functions for C++ as C");
    let mut found = Vec::new();
    let (mut comment, mut declaration) = (String::new(), String::new());
    for line in declarations.lines().take_while(|line| !line.starts_with('}')) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
            comment.push('\n');
        } else if line.starts_with('#') || line.is_empty() {
            comment.clear();
        } else {
            declaration.push_str(line);
            let Some(whole) = declaration.strip_suffix(");") else { continue };
            let (front, list) = whole.split_once('(').expect("a function has parameters");
            let split = |text: &str| {
                let at = text.rfind(['*', ' ']).map_or(0, |at| at + 1);
                (text[..at].trim().to_owned(), text[at..].to_owned())
            };
            let parameters =
                list.split(',').map(|text| split(text.trim())).filter(|(_, name)| name != "void").collect();
            found.push(Function { name: split(front).1, comment: std::mem::take(&mut comment), parameters });
            declaration.clear();
        }
    }
    found
}

/// A function has the name of the handle that it takes first, so that a reader finds what a handle can do.
#[test]
fn functions_have_the_name_of_their_handle() {
    const HANDLES: [&str; 3] = ["client", "channel", "lane"];
    /// They open and close sessions.
    const OTHERS: [&str; 3] = ["kvt_attach", "kvt_reattach", "kvt_detach"];
    for header in &CAPI {
        for function in functions(&capi(header)) {
            let name = &function.name;
            let takes = |handle: &&&str| {
                function
                    .parameters
                    .first()
                    .is_some_and(|(kind, _)| kind.trim_start_matches("const ") == format!("kvt_{handle} *"))
            };
            let first = HANDLES.iter().find(takes);
            let named = HANDLES.iter().find(|handle| name.starts_with(&format!("kvt_{handle}_")));
            let opens = name.ends_with("_open") && first == Some(&"client");
            assert!(
                OTHERS.contains(&name.as_str()) || opens || first == named,
                "{name} of {} takes {first:?} first",
                header.name
            );
        }
    }
}

/// The comments have one form: effect, parameters, errors, threads, example.
#[test]
fn every_function_is_described() {
    for header in &CAPI {
        for Function { name, comment, parameters } in functions(&capi(header)) {
            let where_ = format!("{name} in {}", header.name);
            for (_, parameter) in parameters {
                assert!(comment.contains(&format!("\n @param {parameter}  ")), "{where_}: no `@param {parameter}`");
            }
            assert_eq!(comment.matches("\n @return ").count(), 1, "{where_}: one `@return`");
            assert_eq!(comment.matches("\n Thread safety: ").count(), 1, "{where_}: one `Thread safety:`");
            assert!(comment.contains("\n Example: "), "{where_}: no `Example:`");
            let order = ["@param ", "@return ", "Thread safety: ", "Example: ", "Pointers: "];
            let places: Vec<usize> = order.iter().filter_map(|tag| comment.find(&format!("\n {tag}"))).collect();
            assert!(places.is_sorted(), "{where_}: the order is {order:?}");
        }
    }
}
