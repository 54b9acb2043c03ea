//! Checks that `include/kvtide.h` and `include/kvtide_wire.h` match the sources.
//!
//! The tests generate both with the cbindgen library and compare them with the committed files; `KVTIDE_BLESS=1` writes the files.

use std::fs;
use std::path::{Path, PathBuf};

/// Sources of the C API, in the order of the header.
const CAPI: [&str; 16] = [
    "version",
    "status",
    "error",
    "space",
    "client",
    "channel",
    "request",
    "pin",
    "blocks",
    "layout",
    "lane",
    "scores",
    "device",
    "batch",
    "attention",
    "kernels",
];
/// Sources of the memory layouts that two processes share.
const WIRE: [&str; 3] = ["status", "geometry", "entry"];

/// Types of the wire header and their C names. No structure uses the enums, because codes are transferred as integers.
const WIRE_NAMES: [(&str, &str); 12] = [
    ("Status", "kvt_wire_status"),
    ("Op", "kvt_wire_op"),
    ("Level", "kvt_wire_level"),
    ("Advice", "kvt_wire_advice"),
    ("Contract", "kvt_wire_contract"),
    ("JobKind", "kvt_wire_job_kind"),
    ("PlaneKind", "kvt_wire_plane_kind"),
    ("Submission", "kvt_wire_submission"),
    ("Completion", "kvt_wire_completion"),
    ("Job", "kvt_wire_job"),
    ("JobDone", "kvt_wire_job_done"),
    ("PlaneSpec", "kvt_wire_plane_spec"),
];

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn config() -> cbindgen::Config {
    cbindgen::Config::from_file(here().join("cbindgen.toml")).expect("cbindgen.toml is valid")
}

fn generate(config: cbindgen::Config, folder: &Path, sources: &[&str]) -> String {
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(folder.join(source).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources parse").write(&mut text);
    let text = String::from_utf8(text).expect("a header is UTF-8");
    // C has no links between items and no rustdoc heading for contracts.
    text.replace("[`", "`").replace("`]", "`").replace("/// # Safety\n/// ", "/// Pointers: ")
}

fn kvtide_h() -> String {
    let mut config = config();
    config.include_guard = Some("KVTIDE_H".to_owned());
    config.header = Some(read("src/head.h"));
    config.sys_includes = ["stdbool.h", "stddef.h", "stdint.h"].map(str::to_owned).to_vec();
    // No signature contains these types: they are passed as integers, so that a wrong value is an error and not undefined
    // behaviour.
    config.export.include.extend(
        [
            "kvt_plane_kind",
            "kvt_advice",
            "kvt_contract",
            "kvt_score_kind",
            "kvt_key_element",
            "kvt_op",
            "kvt_element",
            "kvt_codec",
            "kvt_gather_item",
            "kvt_quant_item",
            "kvt_digest_item",
        ]
        .map(str::to_owned),
    );
    let text = generate(config, &here().join("src"), &CAPI);
    let guard = "#endif  /* KVTIDE_H */\n";
    assert!(text.ends_with(guard), "cbindgen ends a header with its guard");
    text.replace(guard, &format!("{}\n{guard}", read("src/tail.h")))
}

fn kvtide_wire_h() -> String {
    let mut config = config();
    config.include_guard = Some("KVTIDE_WIRE_H".to_owned());
    config.header = Some(read("src/wire_head.h"));
    config.sys_includes = vec!["stdint.h".to_owned()];
    config.after_includes = Some("\n#define KVT_ALIGNED(bytes) __attribute__((aligned(bytes)))".to_owned());
    config.export.prefix = Some("KVT_WIRE_".to_owned());
    config.enumeration.rename_variants = cbindgen::RenameRule::QualifiedScreamingSnakeCase;
    for (rust, c) in WIRE_NAMES {
        config.export.include.push(rust.to_owned());
        config.export.rename.insert(rust.to_owned(), c.to_owned());
    }
    generate(config, &here().join("../wire/src"), &WIRE)
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
fn kvtide_h_is_current() {
    compare("kvtide.h", &kvtide_h());
}

#[test]
fn kvtide_wire_h_is_current() {
    compare("kvtide_wire.h", &kvtide_wire_h());
}

/// A source that is not in [`CAPI`] would be missing from the header without an error.
#[test]
fn every_exported_function_is_in_the_header() {
    let header = kvtide_h();
    let folder = here().join("src");
    let mut seen = 0;
    for entry in fs::read_dir(&folder).expect("src/capi is readable") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let source = fs::read_to_string(&path).expect("a source is readable");
        for line in source.lines() {
            let Some((_, rest)) = line.split_once("extern \"C\" fn ") else { continue };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(header.contains(&format!("{name}(")), "{name} of {} is not in kvtide.h", path.display());
            seen += 1;
        }
    }
    assert!(seen > 30, "only {seen} functions found: the scan is broken");
}
