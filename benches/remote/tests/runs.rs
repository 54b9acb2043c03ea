//! The bench runs and reports its figures, with a directory and with a private redis-server. Rates are not tested, because machines differ;
//! no byte may be wrong on any.

use std::process::Command;

fn bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kvtide-bench-remote"))
}

#[test]
fn it_reports_its_figures_and_no_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    for url in [Some(format!("file://{}", dir.path().display())), None] {
        let mut bench = bench();
        bench.args(["--json", "--mib", "32", "--rounds", "1", "--outage-s", "0"]);
        url.iter().for_each(|url| _ = bench.args(["--url", url]));
        let output = bench.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("start redis-server") && std::env::var_os("KVTIDE_NO_SKIP").is_none() {
            eprintln!("skipped: {said}");
            continue;
        }
        assert!(output.status.success(), "{said}");
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut expected = vec!["found", "loaded", "presence_1024_ms", "recovery_s", "version", "wrong"];
        expected.extend(["read_ratio", "read_ratio_encrypted", "write_ratio", "write_ratio_encrypted"]);
        expected.extend(["load_p99_ratio_copying", "load_p99_ratio_hung", "load_ratio_copying", "load_ratio_hung"]);
        expected.extend(["lookup_p99_ratio_copying", "lookup_p99_ratio_hung"]);
        expected.extend(["lookup_ratio_copying", "lookup_ratio_hung"]);
        expected.sort_unstable();
        let mut keys: Vec<&str> = figures.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, expected);
        // Only servers get a proxy.
        assert_eq!(figures["recovery_s"].is_null(), url.is_some(), "{figures}");
        for key in ["found", "loaded"] {
            assert_eq!(figures[key], 1024, "{figures}");
        }
        assert_eq!(figures["wrong"], 0, "{figures}");
        assert!(figures["write_ratio"].as_f64().unwrap() > 0.0 && figures["read_ratio"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_bench_that_cannot_be_run_says_why() {
    for (arguments, why) in [
        (&["--url", "http://host/"][..], &["--url http://host/", "redis://"][..]),
        (&["--url", "file:///nonexistent/kvtide"], &["file:///nonexistent/kvtide"]),
        (&["--url", "redis://127.0.0.1:1/"], &["redis://127.0.0.1:1/", "check the URL"]),
        (&["--outage-s", "4000"], &["--outage-s"]),
        (&["--url", "s3://bucket", "--option", "aws_region"], &["KEY=VALUE"]),
        (&[], &["redis-server", "PATH", "--url"]),
    ] {
        let output = bench().args(arguments).env("PATH", "/nonexistent").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && why.iter().all(|part| said.contains(part)), "{why:?}: {said}");
    }
}
