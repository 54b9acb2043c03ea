//! Output of the binaries for invalid and valid configurations.

use std::process::{Command, Output};

fn check(text: &str, flags: &[&str]) -> Output {
    let file = File::new(text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtided"));
    command.args(["--check", "--config", &file.path()]).args(flags).output().unwrap()
}

fn refused(text: &str, flags: &[&str]) -> String {
    let output = check(text, flags);
    assert_eq!(output.status.code(), Some(78), "EX_CONFIG");
    assert!(!String::from_utf8(output.stdout).unwrap().contains("host"), "no summary is printed");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn unknown_keys_name_file_line_key_and_what_is_allowed() {
    let error = refused("[daemon]\nsockets = \"/tmp/s\"\n", &[]);
    for part in ["k.toml:2:1", "unknown key `sockets`", "`socket_mode`", "sockets = \"/tmp/s\""] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn contradictions_name_both_sides_and_where_they_stand() {
    let error = refused("[tiers.host]\nslab = \"8MiB\"\n", &["--host-bytes", "4MiB"]);
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
    assert!(error.contains("invalid size \"2GB\""), "{error}");
}

#[test]
fn a_right_file_says_what_would_hold() {
    let output = check("[limits]\nlanes_max = 3\n", &["--slab-bytes", "2MiB"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("slabs of 2MiB, "), "{text}");
}

fn check_config(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["config", "check"]).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A configuration file in its own directory.
struct File(tempfile::TempDir);

impl File {
    fn new(text: &str) -> File {
        let file = File(tempfile::tempdir().unwrap());
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn path(&self) -> String {
        self.0.path().join("k.toml").display().to_string()
    }
}

#[test]
fn check_config_explains_warns_and_ends_as_its_findings_say() {
    let file = File::new("[tiers.host]\ncapacity = \"1GiB\"\nhigh_percent = 100\n");
    let (status, said, warned) = check_config(&[&file.path(), "--any-machine"]);
    assert_eq!(status, Some(0), "warnings are not errors");
    assert!(said.contains("Capacity: 1 GiB (1073741824 bytes)") && said.ends_with("k.toml: warnings\n"), "{said}");
    assert!(warned.contains("warning: tiers.host.high_percent: at 100 nothing is evicted"), "{warned}");
    assert_eq!(check_config(&[&file.path(), "--any-machine", "--strict"]).0, Some(1));
    let fine = File::new("[tiers.host]\ncapacity = \"6GiB\"\n");
    assert_eq!(check_config(&[&fine.path(), "--any-machine", "--strict"]).0, Some(0));
    let wrong = File::new("[tiers.host]\ncapacty = \"1GiB\"\n");
    let (status, said, error) = check_config(&[&wrong.path()]);
    assert_eq!(status, Some(1));
    assert!(
        error.contains("k.toml:2:1: unknown key `capacty`") && error.contains("did you mean `capacity`?"),
        "{error}"
    );
    assert!(said.ends_with("k.toml: errors\n"), "{said}");
    assert_eq!(check_config(&["/nowhere/k.toml"]).0, Some(1));
}

#[test]
fn check_config_says_what_this_machine_lacks_and_touches_nothing() {
    let dir = std::env::temp_dir().join(format!("kvtide-check-config-{}-nothing", std::process::id()));
    let text = format!(
        "[daemon]\ndir = \"{0}\"\n[tiers.host]\ncapacity = \"64TiB\"\n[[tiers.nvme.disks]]\ndir = \"{0}/disk\"\n\
         capacity = \"64TiB\"\n[[domains]]\nname = \"t\"\nuids = [1]\ntokens = [\"{0}/token\"]\n",
        dir.display()
    );
    let file = File::new(&text);
    let (status, said, _) = check_config(&[&file.path(), "--json"]);
    assert_eq!(status, Some(1));
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((report["verdict"].as_str(), report["error"].is_null()), (Some("errors"), true));
    let errors: Vec<_> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["severity"] == "error" && finding["this_machine"] == true)
        .map(|finding| finding["key"].as_str().unwrap())
        .collect();
    for key in ["tiers.host.capacity", "tiers.nvme.disks[0].capacity", "domains[t].tokens"] {
        assert!(errors.contains(&key), "{key} is not in {errors:?}");
    }
    assert_eq!(report["settings"]["tiers.nvme.disks[0].capacity"], "\"64TiB\"");
    assert_eq!(report["settings"]["domains[t].uids"], "[1]");
    assert!(!dir.exists(), "the check created the directory");
    let (status, said, _) = check_config(&[&file.path(), "--json", "--any-machine"]);
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (status, report["verdict"].as_str()),
        (Some(0), Some("warnings")),
        "the checks of this machine are skipped"
    );
}

#[test]
fn check_of_another_machines_file_takes_no_size_from_this_one() {
    let text = "[tiers.host]\ncapacity = \"25%\"\n[[tiers.nvme.disks]]\ndir = \"/nowhere/disk\"\nreserve_free = \"999999TiB\"\n\
                [[tiers.nvme.disks]]\ndir = \"/nowhere/half\"\ncapacity = \"50%\"\n";
    let file = File::new(text);
    let (status, said, error) = check_config(&[&file.path(), "--json", "--any-machine"]);
    assert_eq!(status, Some(0), "{said} {error}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["settings"]["tiers.host.capacity"], "\"256GiB\"");
    assert_eq!(report["settings"]["tiers.nvme.disks[1].capacity"], "\"512GiB\"");
    let (status, said, _) = check_config(&[&file.path(), "--json"]);
    assert_eq!(status, Some(1), "no disk has 1 EiB to keep free");
    assert!(said.contains("0 bytes are free beyond reserve_free = 999999TiB"), "{said}");
}

#[test]
fn more_host_memory_than_there_is_stops_the_start_with_the_files_name() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtided")).args(["--host-bytes", "64TiB"]).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("tiers.host.capacity = 64TiB exceeds"), "{error}");
    assert!(
        error.contains("/proc/meminfo") || error.contains("memory."),
        "the error must name the file that states the limit: {error}"
    );
}

#[test]
fn a_log_level_that_does_not_exist_stops_the_start() {
    let dir = File::new("[daemon]\nlog = \"warning\"\n");
    for arguments in [&["--check"][..], &[]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_kvtided")).args(["--config", &dir.path()]).args(arguments).output();
        let output = output.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(
            said.contains("daemon.log = \"warning\" (line 2)") && said.contains("did you mean \"warn\"?"),
            "{said}"
        );
    }
    let fine = File::new("[tiers.host]\ncapacity = \"64MiB\"\n");
    for value in ["verbose", "", "info,kvtide_daemon=debugging"] {
        for arguments in [&["--check"][..], &[]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_kvtided"));
            command.args(["--config", &fine.path()]).args(arguments).env("RUST_LOG", value);
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(78), "{said}");
            let start = format!("the environment variable RUST_LOG is {value:?}: expected a level");
            assert!(said.contains(&start), "{said}");
        }
    }
}
