//! Benchmarks run and report their figures. Values are not tested, because machines differ. `kvtide bench ring` takes more than ten
//! seconds of idle time, so it runs in CI instead.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Return the names of the figures.
fn keys_of(figures: &serde_json::Value) -> Vec<&str> {
    assert_eq!(figures["version"], 1, "{figures}");
    figures
        .as_object()
        .into_iter()
        .flat_map(serde_json::Map::keys)
        .map(String::as_str)
        .filter(|key| *key != "version")
        .collect()
}

#[test]
fn the_blocks_bench_reports_its_figures() {
    let dir = Dir::new();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    bench.args(["bench", "blocks", "--json", "--blocks", "4096", "--mib", "4", "--nvme-mib", "768", "--dir"]);
    let output = bench.arg(dir.0.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = keys_of(&figures);
    let at_once = ["lookup_max_us", "lookup_p99_us", "machine_max_us", "machine_p99_us", "throughput_ratio"];
    let at_once = at_once.map(|key| format!("concurrent_{key}"));
    let mut expected: Vec<&str> = at_once.iter().map(String::as_str).collect();
    expected.extend(["lease_1024_p50_us", "load_nvme_ratio", "load_ratio_memcpy"]);
    expected.extend(["lookup_1024_p50_us", "lookup_1024_p99_us", "lookup_python_1024_p50_us", "store_ratio_memcpy"]);
    assert_eq!(keys, expected);
    // No interpreter was given.
    assert!(figures["lookup_python_1024_p50_us"].is_null(), "{figures}");
    let figure = |key: &&str| *key == "lookup_python_1024_p50_us" || figures[*key].as_f64().unwrap() > 0.0;
    assert!(keys.iter().all(figure), "{figures}");
    assert!(dir.is_empty(), "files were left");
}

#[test]
fn the_blocks_bench_says_what_an_interpreter_has_not() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    bench.args(["bench", "blocks", "--blocks", "2048", "--mib", "4", "--python", "/bin/false"]);
    let output = bench.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("from Python by /bin/false"), "{said}");
}

/// Functional, not speed: every model is served, on any machine.
#[test]
fn the_spaces_bench_reports_that_every_model_is_served() {
    let dir = Dir::new();
    for nvme in [false, true] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        bench.args(["bench", "spaces", "--json"]);
        if nvme {
            bench.arg("--dir").arg(dir.0.path());
        }
        let output = bench.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for key in ["second_found_gone", "second_found_idle"] {
            assert!(figures[key].as_f64().unwrap() >= 0.9, "nvme {nvme}: {figures}");
        }
        assert_eq!(figures["models_served"], 30, "nvme {nvme}: {figures}");
    }
    assert!(dir.is_empty(), "files were left");
}

/// Rates depend on the machine; stored blocks must be found on every machine.
#[test]
fn the_pressure_bench_reports_its_figures_and_finds_what_it_stored() {
    let dir = Dir::new();
    let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    bench.args([
        "bench",
        "pressure",
        "--json",
        "--host",
        "64MiB",
        "--blocks",
        "64KiB",
        "--times",
        "4",
        "--engines",
        "1",
    ]);
    let output = bench.arg("--dir").arg(dir.0.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = keys_of(&figures);
    assert_eq!(keys, ["64KiB_fresh_1", "64KiB_prepared_1", "host_filled"]);
    for row in &keys[..2] {
        let row = figures[row].as_object().unwrap();
        // Without fio, or with too few reads in a short run, these are null.
        for key in ["rate_ratio", "fio_mib_s", "demand_read_p99_us", "demand_read_ratio"] {
            assert!(row.contains_key(key), "{key}: {figures}");
        }
        let mut others = vec!["bytes_written_ratio", "dropped_unwritten", "found", "refused", "stored_mib_s"];
        others.extend(["metrics_p99_ms", "metrics_max_ms", "lookup_p99_us", "ping_p99_us"]);
        for key in others {
            assert!(row.get(key).is_some_and(serde_json::Value::is_number), "{key}: {figures}");
        }
        assert_eq!(row["found"], 1.0, "{figures}");
    }
    assert!(dir.is_empty(), "files were left");
}

#[test]
fn a_pressure_bench_that_cannot_be_run_says_why() {
    let dir = Dir::new();
    for (arguments, why) in [
        (&["--blocks", "1000"][..], "--blocks is 1000"),
        (&["--host", "1MiB"], "--host is 1048576"),
        (&["--state", "old"], "--state"),
        (&["--host", "4TiB", "--times", "4"], "--host × --times is"),
    ] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        let output = bench.args(["bench", "pressure", "--dir"]).arg(dir.0.path()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{why}: {said}");
        assert!(dir.is_empty(), "{why}");
    }
}

#[test]
fn the_attention_bench_reports_its_figures() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let output = bench.args(["bench", "attention", "--json", "--prefill", "128", "--decode", "16"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = keys_of(&figures);
    assert_eq!(keys, ["fits", "ns_2048", "ns_256", "ns_32768"]);
    for key in ["step_percent", "engine_percent"] {
        assert!(figures["fits"][key].is_number(), "{figures}");
    }
    for key in ["core_ns", "step_us"] {
        assert!(figures["fits"][key].as_f64().is_some_and(|figure| figure > 0.0), "{figures}");
    }
    for size in keys.into_iter().skip(1) {
        let figure =
            |key: &str| figures[size][key].as_f64().unwrap_or_else(|| panic!("{size} has no {key}: {figures}"));
        assert!(figure("all") > 0.0 && figure("loads") > 0.0, "{figures}");
    }
}

#[test]
fn the_codec_bench_reports_its_figures() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let output = bench.args(["bench", "codec", "--json", "--tokens", "256", "--seconds", "0.01"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = keys_of(&figures);
    let forms = ["bf16_64", "bf16_rows_256", "bf16_rows_64", "f32_64"];
    let others = ["encrypt_s_per_gb", "memcpy_s_per_gb"];
    let mut expected: Vec<&str> = forms.into_iter().chain(others).collect();
    expected.sort_unstable();
    assert_eq!(keys, expected);
    for form in forms {
        let figures = &figures[form];
        let number = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{form} has no {key}: {figures}"));
        for codec in ["lz4", "planes_zstd"] {
            assert!(number(&format!("{codec}_in_s_per_gb")) > 0.0 && number(&format!("{codec}_out_s_per_gb")) > 0.0);
            assert!(figures[format!("{codec}_read_break_even_bytes_per_s")].is_u64());
        }
        // Real KV: its exponents compress; without splitting into byte planes it does not.
        assert!(
            number("planes_zstd_ratio") > 1.1 && number("lz4_ratio") < number("planes_zstd_ratio"),
            "{form}: {figures}"
        );
    }
    for wrong in [["--tokens", "100"], ["--tokens", "8448"], ["--seconds", "0"]] {
        let refused = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["bench", "codec"]).args(wrong).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(2) && said.contains(wrong[0]), "{said}");
    }
}

#[test]
fn a_bench_that_does_not_exist_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_kvtide")).args(["bench", "rings"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("'rings'"), "{said}");
}

/// A directory that is removed on drop.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().expect("a new directory"))
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(self.0.path()).expect("the directory exists").next().is_none()
    }

    /// Return a `bench nvme` command in this directory, short and small unless the arguments say otherwise.
    fn nvme(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
        command.args(["bench", "nvme", "--json", "--dir"]).arg(self.0.path()).args(arguments);
        for usual in [["--seconds", "0.5"], ["--size", "16777216"]] {
            if !arguments.contains(&usual[0]) {
                command.args(usual);
            }
        }
        command
    }
}

#[test]
fn the_nvme_bench_reports_its_figures_and_leaves_nothing_behind() {
    let dir = Dir::new();
    let plain = [
        "checksum_cpu_s_per_gb",
        "cpu_s_per_gb_read",
        "cpu_s_per_gb_write",
        "io_mode",
        "read_bytes_per_s",
        "recorded_bytes_per_s",
        "write_amplification",
        "write_bytes_per_s",
    ];
    let encrypted = [
        "encrypted_cpu_s_per_gb_read",
        "encrypted_cpu_s_per_gb_write",
        "encrypted_read_bytes_per_s",
        "encrypted_write_bytes_per_s",
        "io_mode",
        "plain_cpu_s_per_gb_read",
        "plain_cpu_s_per_gb_write",
        "plain_read_bytes_per_s",
        "plain_write_bytes_per_s",
        "ratio_encrypted_read",
        "ratio_encrypted_write",
    ];
    let mixed = ["demand_bytes_per_s", "demand_p99_us", "io_mode", "writeback_bytes_per_s"];
    for (arguments, expected) in [
        (&["--page", "65536"][..], &plain[..]),
        (&["--mixed", "--page", "8192"], &mixed),
        (&["--encrypted"], &encrypted),
    ] {
        let output = dir.nvme(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let keys = keys_of(&figures);
        assert_eq!(keys, expected);
        let rate = figures.get("read_bytes_per_s").or(figures.get("demand_bytes_per_s"));
        let rate = rate.or(figures.get("encrypted_read_bytes_per_s")).unwrap();
        assert!(rate.as_u64().unwrap() > 0 && !figures["io_mode"].as_str().unwrap().is_empty());
        assert!(dir.is_empty());
    }
}

#[test]
fn an_nvme_bench_that_cannot_be_run_says_why() {
    let dir = Dir::new();
    let no_fio = |mut command: Command| {
        command.env("PATH", "/nonexistent");
        command
    };
    let missing = ["--dir", "/nonexistent/directory"];
    let cases = [
        (dir.nvme(&["--page", "1000"]), "--page is 1000"),
        (dir.nvme(&["--depth", "0"]), "--depth is 0"),
        (dir.nvme(&["--size", "1000000"]), "--size is 1000000"),
        (dir.nvme(&["--size", "1125899906842624"]), "reserve_free"),
        (no_fio(dir.nvme(&["--fio"])), "fio not found"),
        (Command::new(env!("CARGO_BIN_EXE_kvtide")), missing[1]),
    ];
    for (mut command, why) in cases {
        if why == missing[1] {
            command.args(["bench", "nvme"]).args(missing);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{why}: {said}");
        assert!(dir.is_empty(), "{why}");
    }
}

#[test]
fn an_nvme_bench_that_is_interrupted_removes_its_files() {
    let dir = Dir::new();
    let mut child = dir.nvme(&["--seconds", "600"]).stderr(Stdio::piped()).spawn().unwrap();
    // At the first progress line the files exist.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("kvtide bench: "));
    assert!(!dir.is_empty());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let rest: Vec<String> = lines.map(|line| line.unwrap()).collect();
    assert!(rest.iter().any(|line| line.contains("interrupted")), "{rest:?}");
    assert!(dir.is_empty());
}
