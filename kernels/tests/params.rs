//! Check that `kernels/cuda/params.h` matches `kernels/src/params`. `KVTIDE_BLESS=1` writes it.

use kvtide_kernels::params::SIZES;
use std::fs;
use std::path::PathBuf;

/// Kernels include no header of C or of CUDA, so the prelude's names are used.
const TYPES: [(&str, &str); 6] = [
    ("uint8_t", "u8"),
    ("uint16_t", "u16"),
    ("uint32_t", "u32"),
    ("uint64_t", "u64"),
    ("int32_t", "i32"),
    ("float ", "f32 "),
];

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<PathBuf> {
    let mut sources: Vec<PathBuf> = fs::read_dir(here().join("src/params"))
        .expect("src/params is readable")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs") && path.file_stem().is_some_and(|s| s != "mod"))
        .collect();
    sources.sort();
    assert!(!sources.is_empty());
    sources
}

fn generated() -> String {
    let mut config = cbindgen::Config::from_file(here().join("cbindgen.toml")).expect("cbindgen.toml is valid");
    // No function signature contains these types.
    config.export.include = SIZES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources() {
        builder = builder.with_src(source);
    }
    let mut text = Vec::new();
    builder.generate().expect("the sources parse").write(&mut text);
    let mut text = String::from_utf8(text).expect("a header is UTF-8").replace("[`", "`").replace("`]", "`");
    for (c, ours) in TYPES {
        text = text.replace(c, ours);
    }
    text.push('\n');
    for (name, bytes) in SIZES {
        assert!(
            text.contains(&format!("struct {name} {{")) || text.contains(&format!(") {name} {{")),
            "{name} is missing"
        );
        text.push_str(&format!(
            "static_assert(sizeof({name}) == {bytes}, \"{name} is padded otherwise than in Rust\");\n"
        ));
    }
    text
}

#[test]
fn params_h_is_current() {
    let (path, generated) = (here().join("cuda/params.h"), generated());
    if std::env::var_os("KVTIDE_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, generated).unwrap_or_else(|error| panic!("writing {}: {error}", path.display()));
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let line = committed.lines().zip(generated.lines()).take_while(|(old, new)| old == new).count();
    assert!(
        committed == generated,
        "kernels/cuda/params.h is not what the sources say, from line {}:\n  committed: {}\n  generated: {}\n\
         write it anew with: KVTIDE_BLESS=1 cargo test -p kvtide-kernels --test params",
        line + 1,
        committed.lines().nth(line).unwrap_or("(end of file)"),
        generated.lines().nth(line).unwrap_or("(end of file)"),
    );
}

/// A struct missing from the list would be passed to kernels without a check of its size.
#[test]
fn every_struct_is_listed() {
    for path in sources() {
        let source = fs::read_to_string(&path).expect("a source is readable");
        for line in source.lines() {
            let Some(rest) = line.strip_prefix("pub struct ") else { continue };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            let listed = SIZES.iter().any(|(known, _)| *known == name);
            assert!(listed, "{name} of {} is not in kernel_params! of src/params/mod.rs", path.display());
        }
    }
}
