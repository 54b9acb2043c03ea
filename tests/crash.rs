//! `kvtide crash-test` from the command line: a few kills, all stored blocks recovered, no files left.

use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory of one test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("kvtide-crash-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a directory of our own");
        Dir(path)
    }

    fn run(&self, flags: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        command.args(["crash-test", "--json", "--seed", "1", "--dir"]).arg(&self.0).args(flags);
        command.output().expect("the tool runs")
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // The files of a failed test are kept for inspection.
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn kills(name: &str, flags: &[&str]) {
    let dir = Dir::new(name);
    let output = dir.run(flags);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout:?}\n{stderr}"));
    let number = |key: &str| report[key].as_u64().unwrap_or_else(|| panic!("no {key} in {report}"));
    assert_eq!((number("rounds"), number("wrong"), number("lost_stored")), (4, 0, 0), "{report}");
    assert!(number("stored") > 0 && number("recovered") == number("stored"), "{report}");
    assert_eq!(report["evicting"]["rounds"], 1, "{report}");
    assert!(std::fs::read_dir(&dir.0).expect("it is there").next().is_none(), "files were left behind");
}

#[test]
fn nothing_stored_is_lost_and_nothing_is_wrong() {
    kills("plain", &["--rounds", "4"]);
}

#[test]
fn nor_is_it_encrypted_and_coded() {
    kills("coded", &["--rounds", "4", "--codec", "lz4", "--encrypted"]);
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let dir = Dir::new("missing");
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide"))
        .args(["crash-test", "--dir"])
        .arg(dir.0.join("missing"))
        .output()
        .expect("the tool runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("missing") && stderr.contains("No such file"), "{stderr}");
}
