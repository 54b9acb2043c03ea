//! What the binary says of a wrong configuration, and of a right one.

use std::process::{Command, Output};

fn check(name: &str, text: &str, flags: &[&str]) -> Output {
    let path = std::env::temp_dir().join(format!("kvtide-config-{}-{name}.toml", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_kvtided"))
        .args(["--check", "--config"])
        .arg(&path)
        .args(flags)
        .output()
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    output
}

fn refused(name: &str, text: &str, flags: &[&str]) -> String {
    let output = check(name, text, flags);
    assert_eq!(output.status.code(), Some(78), "EX_CONFIG");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn unknown_keys_name_file_line_key_and_what_is_allowed() {
    let error = refused("unknown", "[daemon]\nsockets = \"/tmp/s\"\n", &[]);
    for part in ["unknown.toml:2:1", "unknown field `sockets`", "`socket_mode`", "sockets = \"/tmp/s\""] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn contradictions_name_both_sides_and_where_they_stand() {
    let error = refused("both", "[tiers.host]\nslab = \"8MiB\"\n", &["--host-bytes", "4MiB"]);
    for part in ["tiers.host.slab = 8MiB (line 2)", "tiers.host.capacity = 4MiB (--host-bytes)", "must fit"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn a_file_that_is_not_there_and_flags_that_are_wrong() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtided")).args(["--config", "/nowhere/k.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("cannot read the configuration: /nowhere/k.toml"), "{error}");
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["daemon", "--host-bytes", "2GB"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("\"2GB\" is no size"), "{error}");
}

#[test]
fn a_right_file_says_what_would_hold() {
    let output = check("right", "[limits]\nlanes_max = 3\n", &["--slab-bytes", "2MiB"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("lanes_max: 3") && text.contains("slab_bytes: 2097152"), "{text}");
}
