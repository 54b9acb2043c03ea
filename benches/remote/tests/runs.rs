//! The bench runs, with a private redis-server, and reports its figures. Rates are not tested, because machines differ.

use std::process::Command;

#[test]
fn it_reports_its_figures_and_no_wrong_byte() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide-bench-remote"));
    bench.args(["--json", "--mib", "32", "--rounds", "1", "--outage-s", "1"]);
    let output = bench.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("start redis-server") && std::env::var_os("KVTIDE_NO_SKIP").is_none() {
        return eprintln!("skipped: {said}");
    }
    assert!(output.status.success(), "{said}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for key in ["found", "loaded"] {
        assert_eq!(figures[key], 1024, "{figures}");
    }
    assert_eq!(figures["wrong"], 0, "{figures}");
    for key in
        ["write_ratio", "read_ratio", "lookup_ratio_copying", "load_ratio_hung", "presence_1024_ms", "recovery_s"]
    {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
}
