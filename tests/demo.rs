//! `kvtide demo` from the command line, at a size that a debug build decodes in seconds.

#![allow(clippy::unwrap_used)] // allowed in test helpers as in tests

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// 17 blocks of 6 planes.
const PAGES: u64 = 102;
const PAGE_BYTES: u64 = 32 << 10;
const PREFILL: u64 = 1024;
const DECODE: u64 = 64;
/// Logits of a token.
const VOCABULARY: u64 = 257;

/// A directory of one test, removed at its end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("kvtide-demo-test-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }

    fn entries(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // The files of a failed test are kept for inspection.
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn command(dir: &Dir, prefill: u64, decode: u64, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    command.args(["demo", "--json", "--prefill", &prefill.to_string(), "--decode", &decode.to_string()]);
    command.arg("--dir").arg(&dir.0).args(flags).stdin(Stdio::null());
    if !flags.contains(&"--contract") {
        command.args(["--contract", "exact"]);
    }
    command
}

fn demo(name: &str, flags: &[&str]) -> (Output, Vec<PathBuf>) {
    let dir = Dir::new(name);
    let output = command(&dir, PREFILL, DECODE, flags).output().unwrap();
    (output, dir.entries())
}

fn object(output: &Output) -> Value {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stderr}", output.status);
    serde_json::from_str(stdout.lines().last().unwrap_or_default())
        .unwrap_or_else(|e| panic!("{e}: {stdout:?}\n{stderr}"))
}

fn number(object: &Value, path: &str) -> u64 {
    object.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {object}"))
}

/// Return the sum over all steps of the pages that a step needs.
fn pages_read() -> u64 {
    let chunks = (1..=PREFILL / 64).map(|blocks| blocks * 6);
    let steps = (PREFILL + 1..=PREFILL + DECODE).map(|tokens| tokens.div_ceil(64) * 6);
    chunks.chain(steps).sum()
}

/// Return the bytes that `frames` frames for streaming hold, over all steps. The optimum counts them as loaded, but what they hold when a
/// step begins may be what it needs.
fn held(frames: u64) -> u64 {
    (PREFILL / 64 + DECODE) * frames * PAGE_BYTES
}

#[test]
fn a_small_tier_0_changes_no_bit_and_moves_little_more_than_it_must() {
    for percent in ["30", "50", "80"] {
        let (output, left) = demo(percent, &["--two-tiers", "--tier0-percent", percent]);
        let object = object(&output);
        assert_eq!(object["bit_identical"], true, "{object}");
        assert_eq!(number(&object, "/logits_compared"), 2 * (PREFILL + DECODE) * VOCABULARY);
        let (moved, optimum) =
            (number(&object, "/bytes_moved/host_to_tier0"), number(&object, "/bytes_optimum/host_to_tier0"));
        assert!(moved + held(8) >= optimum, "{percent} %: fewer bytes moved than an exact read needs: {object}");
        assert!(moved * 10 <= optimum * 13, "{percent} %: {moved} bytes moved, the optimum is {optimum}: {object}");
        let stored = number(&object, "/bytes_moved/tier0_to_host");
        assert!(stored >= number(&object, "/bytes_optimum/tier0_to_host"), "{object}");
        assert!(stored <= PAGES * PAGE_BYTES, "{percent} %: a page was stored twice: {object}");
        let found = number(&object, "/pages_found/tier0") + number(&object, "/pages_found/host");
        assert_eq!(found, pages_read(), "every page of every step is found once: {object}");
        assert_eq!(number(&object, "/pages_found/nvme"), 0);
        assert!(object["stall_us_per_token"].as_f64().unwrap() >= 0.0);
        for rate in ["tokens_per_s", "tokens_per_s_resident", "tokens_per_s_plain"] {
            assert!(object[rate].as_f64().unwrap() > 0.0, "{rate} in {object}");
        }
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

#[test]
fn three_tiers_change_no_bit_and_read_little_more_from_nvme_than_they_must() {
    let flags = ["--tier0-percent", "30"];
    // A directory on a disk, or the system's temporary directory, and one in memory.
    for (name, more) in [("disk", &[][..]), ("memory", &["--nvme-dir", "/dev/shm"])] {
        let (output, left) = demo(name, &[&flags, more].concat());
        let object = object(&output);
        assert_eq!(object["bit_identical"], true, "{object}");
        assert_eq!(number(&object, "/logits_compared"), 2 * (PREFILL + DECODE) * VOCABULARY);
        for edge in ["nvme_to_host", "host_to_nvme"] {
            let moved = number(&object, &format!("/bytes_moved/{edge}"));
            let optimum = number(&object, &format!("/bytes_optimum/{edge}"));
            let possible = optimum.saturating_sub(held(8 + 12));
            assert!(optimum > 0 && moved >= possible, "{edge}: fewer bytes moved than necessary: {object}");
        }
        let read = number(&object, "/bytes_moved/nvme_to_host");
        let optimum = number(&object, "/bytes_optimum/nvme_to_host");
        assert!(read * 10 <= optimum * 13, "{read} bytes read from NVMe, the optimum is {optimum}: {object}");
        assert!(
            number(&object, "/bytes_moved/host_to_nvme") <= PAGES * PAGE_BYTES,
            "a page was written twice: {object}"
        );
        let found = ["tier0", "host", "nvme"].map(|tier| number(&object, &format!("/pages_found/{tier}")));
        assert_eq!(found.iter().sum::<u64>(), pages_read(), "every page of every step is found once: {object}");
        // On a busy machine, all missing pages may be those that the daemon had to load from NVMe.
        assert!(found[0] > 0 && found[2] > 0, "{object}");
        assert!(!object["nvme"]["io_mode"].as_str().unwrap().is_empty() && number(&object, "/nvme/bytes_read") >= read);
        assert_eq!(number(&object, "/nvme/checksum_failures"), 0);
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

#[test]
fn other_contracts_omit_what_they_say_and_no_more_than_they_may() {
    let flags = ["--two-tiers", "--tier0-percent", "40", "--contract", "approx:0.4,exact"];
    let (output, left) = demo("contracts", &flags);
    let object = object(&output);
    assert_eq!(object["bit_identical"], true, "other contracts do not change exact: {object}");
    let contracts = object["contracts"].as_array().unwrap();
    assert_eq!(contracts.iter().map(|c| c["contract"].as_str().unwrap()).collect::<Vec<_>>(), ["approx:0.4"]);
    let share = |contract: &Value, name: &str| contract[name].as_f64().unwrap();
    let needed: u64 = (PREFILL + 1..=PREFILL + DECODE).map(|tokens| tokens.div_ceil(64) * 6).sum();
    for contract in contracts {
        assert_eq!(number(contract, "/pages_needed"), needed);
        assert_eq!(number(contract, "/tokens"), DECODE);
        assert!(number(contract, "/pages_waived") <= number(contract, "/pages_omitted"), "{contract}");
        for name in ["used", "late", "wasted"] {
            let _ = number(contract, &format!("/prefetch/{name}"));
        }
    }
    let [approx] = &contracts[..] else { panic!("one") };
    // 60 % of the pages are not even selected. Their share of attention is smaller, and the estimate is near the measured share.
    assert!(number(approx, "/pages_omitted") * 10 >= needed * 5, "{approx}");
    let (told, truth) = (share(approx, "omitted_share_told"), share(approx, "omitted_share_true"));
    assert!(truth > 0.0 && truth < 0.3, "{approx}");
    assert!((told - truth).abs() <= 0.15 * truth + 0.02, "{approx}");
    let (told, truth) =
        (share(approx, "omitted_share_told_worst_head"), share(approx, "omitted_share_true_worst_head"));
    assert!((told - truth).abs() <= 0.2 * truth + 0.03, "{approx}");
    assert!(share(approx, "loss_added").is_finite() && share(approx, "kl_divergence") > 0.0, "{approx}");
    assert!(number(approx, "/same_choice") * 2 > DECODE, "{approx}");
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn a_tier_0_that_holds_everything_moves_nothing() {
    let (output, _) =
        demo("all", &["--two-tiers", "--tier0-percent", "150", "--contract", "exact,approx:0.25,approx:0.5"]);
    let object = object(&output);
    assert_eq!(object["bit_identical"], true, "{object}");
    for edge in ["host_to_tier0", "tier0_to_host", "nvme_to_host", "host_to_nvme"] {
        assert_eq!(number(&object, &format!("/bytes_moved/{edge}")), 0, "{object}");
        assert_eq!(number(&object, &format!("/bytes_optimum/{edge}")), 0, "{object}");
    }
    assert_eq!(number(&object, "/pages_found/tier0"), pages_read());
    // With all pages in tier 0, other contracts read everything too.
    let contracts = object["contracts"].as_array().unwrap();
    assert_eq!(contracts.len(), 2);
    for contract in contracts {
        assert_eq!((number(contract, "/pages_omitted"), number(contract, "/same_choice")), (0, DECODE), "{contract}");
        assert_eq!(contract["kl_divergence"].as_f64(), Some(0.0), "{contract}");
        for name in ["used", "late", "wasted"] {
            assert_eq!(number(contract, &format!("/prefetch/{name}")), 0, "{contract}");
        }
    }
}

/// On a device, if a driver or stand-in is given (`KVTIDE_LIBCUDA`): the kernels give the same bits for any content of tier 0, and
/// a result near the host's full precision.
#[test]
fn on_a_device_a_small_tier_0_changes_no_bit() {
    if std::env::var_os("KVTIDE_LIBCUDA").is_none() {
        eprintln!("KVTIDE_LIBCUDA is not set: skipped");
        return;
    }
    let dir = Dir::new("device");
    let flags = ["--device", "cuda:0", "--two-tiers", "--tier0-percent", "90", "--host-percent", "100"];
    let object = object(&command(&dir, 256, 4, &flags).output().unwrap());
    assert_eq!((&object["bit_identical"], &object["reference"]), (&true.into(), &"resident".into()), "{object}");
    assert_eq!(number(&object, "/logits_compared"), 260 * VOCABULARY);
    let distance = object["distance_from_plain"].as_f64().unwrap();
    assert!(distance > 0.0 && distance < 0.1, "half precision gives a different but near result: {object}");
    assert!(number(&object, "/bytes_moved/host_to_tier0") > 0, "pages had to be loaded again: {object}");
}

/// On a device, `approx` skips pages, and its estimate is near the measured share.
#[test]
fn on_a_device_approx_omits_about_what_it_says() {
    if std::env::var_os("KVTIDE_LIBCUDA").is_none() {
        eprintln!("KVTIDE_LIBCUDA is not set: skipped");
        return;
    }
    let dir = Dir::new("device-approx");
    let flags = ["--device", "cuda:0", "--two-tiers", "--tier0-percent", "60", "--host-percent", "100"];
    let flags = [&flags[..], &["--contract", "approx:0.5"]].concat();
    let object = object(&command(&dir, 512, 8, &flags).output().unwrap());
    let contracts = object["contracts"].as_array().unwrap();
    let [approx] = &contracts[..] else { panic!("one: {object}") };
    let share = |name: &str| approx[name].as_f64().unwrap();
    let (omitted, needed) = (number(approx, "/pages_omitted"), number(approx, "/pages_needed"));
    assert!(omitted * 3 >= needed && omitted < needed, "{approx}");
    let (told, truth) = (share("omitted_share_told"), share("omitted_share_true"));
    assert!(truth > 0.0 && truth < 0.3, "{approx}");
    // The estimate comes from sketches of the previous step, not from the head's own queries.
    assert!((told - truth).abs() <= 0.25 * truth + 0.04, "{approx}");
    assert!((0.0..0.02).contains(&share("kl_divergence")) && share("kl_divergence") > 0.0, "{approx}");
    assert!(number(approx, "/same_choice") * 2 > 8, "{approx}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    for (device, driver, said) in [
        ("gpu", None, "invalid device `gpu`"),
        ("cuda:0", Some("/nonexistent/libcuda.so.1"), "/nonexistent/libcuda.so.1"),
    ] {
        let dir = Dir::new("no-device");
        let mut command = command(&dir, 128, 2, &["--device", device, "--two-tiers", "--tier0-percent", "90"]);
        driver.map(|path| command.env("KVTIDE_LIBCUDA", path));
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
        assert!(dir.entries().is_empty());
    }
}

/// Run these parts at small sizes, as a user does.
fn shown(name: &str, parts: &str, flags: &[&str]) -> (Output, Vec<PathBuf>) {
    let dir = Dir::new(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    command.args(["demo", "--parts", parts, "--prefill", "512", "--decode", "16", "--tier0-percent", "50"]);
    command.args(["--document", "128", "--answer", "2"]).arg("--dir").arg(&dir.0).args(flags).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output, dir.entries())
}

/// Return the attributes and elements of a page that make a browser load or run something.
fn loads(page: &str) -> Vec<&'static str> {
    ["<script", "src=", "@import", "url(", "<link", "<iframe", "<object", "<embed", "onload=", "http-equiv", "xlink:"]
        .into_iter()
        .filter(|what| page.contains(what))
        .collect()
}

#[test]
fn the_summary_fits_a_screen_and_the_report_loads_nothing() {
    let report = std::env::temp_dir().join(format!("kvtide-demo-test-{}.html", std::process::id()));
    let (output, left) = shown("summary", "paged,chats", &["--report", report.to_str().unwrap()]);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.lines().count() <= 25, "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{stdout}");
    assert!(stderr.is_empty(), "{stderr}");
    for said in ["1. 8 chats", "2. Paged decode", "identical: yes", "All results are identical.", "quickstart/vllm.md"]
    {
        assert!(stdout.contains(said), "{said}: {stdout}");
    }
    assert_eq!(stdout.matches("identical: yes").count(), 2, "{stdout}");
    assert!(stdout.find("1. 8 chats") < stdout.find("2. Paged decode"), "{stdout}");
    let page = std::fs::read_to_string(&report).unwrap();
    std::fs::remove_file(&report).unwrap();
    assert_eq!(loads(&page), [""; 0], "{page}");
    assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
    assert!(page.matches("<svg").count() >= 4 && page.contains("quickstart/vllm.md"), "{page}");
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn what_a_page_loads_is_found() {
    assert_eq!(loads("<p>a</p><script>"), ["<script"]);
    assert_eq!(loads("<img src=\"a\"><style>@import url(b)</style>"), ["src=", "@import", "url("]);
}

#[test]
fn a_bit_that_flips_is_reported_and_fails() {
    let (output, _) = shown("flip", "chats", &["--flip-bit"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("identical: NO") && stdout.contains("NOT IDENTICAL"), "{stdout}");
}

#[test]
fn chats_lose_their_memory_and_find_it_again() {
    let (output, left) = shown("chats", "chats", &["--json"]);
    let object = object(&output);
    assert_eq!((&object["version"], &object["identical"]), (&1.into(), &true.into()), "{object}");
    let chats = &object["chats"];
    assert!(number(chats, "/kv_bytes") > number(chats, "/engine_bytes"), "{chats}");
    assert!(number(chats, "/preempted") >= 8, "the memory does not hold all chats: {chats}");
    assert_eq!(number(chats, "/not_stored"), 0, "{chats}");
    assert_eq!((number(chats, "/tokens"), number(chats, "/tokens_different")), (24 * 2, 0), "{chats}");
    assert_eq!(number(chats, "/logits/compared"), 24 * 2 * VOCABULARY);
    let sum = |asked: &Value, of: &str| asked.as_array().unwrap().iter().map(|a| number(a, of)).sum::<u64>();
    // The first question about each of three documents finds nothing; all later ones find the document at least.
    let found = |asked: &Value| sum(asked, "/host") + sum(asked, "/nvme");
    assert!(found(&chats["cached"]) >= 13 * 128, "{chats}");
    // A new daemon has nothing in host memory at first.
    assert!(found(&chats["restarted"]) >= 8 * 128 && sum(&chats["restarted"], "/nvme") >= 3 * 128, "{chats}");
    assert_eq!(found(&chats["without"]), 0, "{chats}");
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn sizes_of_one_part_skip_the_other_and_say_so() {
    let dir = Dir::new("skipped");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    command.args(["demo", "--prefill", "448", "--decode", "4", "--contract", "exact"]).arg("--dir").arg(&dir.0);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    assert!(stdout.contains("1. Chats: skipped because of --prefill; run `kvtide demo --parts chats`"), "{stdout}");
}

/// Run a demo that must fail with both of these texts in its error.
fn refused(name: &str, decode: u64, flags: &[&str], said: [&str; 2]) {
    let dir = Dir::new(name);
    let output = command(&dir, PREFILL, decode, flags).output().unwrap();
    let left = dir.entries();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(said.iter().all(|words| stderr.contains(words)), "{stderr}");
    assert!(output.stdout.is_empty(), "no object without results");
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn tiers_that_cannot_hold_the_kv_are_refused_in_words() {
    refused(
        "host",
        DECODE,
        &["--two-tiers", "--tier0-percent", "40", "--host-percent", "20"],
        ["the daemon ran out of memory after", "--host-percent"],
    );
    refused(
        "tier0",
        DECODE,
        &["--two-tiers", "--tier0-percent", "5"],
        ["the daemon ran out of memory after", "--tier0-percent"],
    );
    refused("tiny", DECODE, &["--tier0-percent", "5"], ["the daemon ran out of memory after", "--tier0-percent"]);
    refused(
        "sum",
        DECODE,
        &["--tier0-percent", "60", "--host-percent", "40"],
        ["tier 0 at 60 % and host at 40 % hold all of the KV", "--two-tiers"],
    );
    refused(
        "nowhere",
        DECODE,
        &["--tier0-percent", "30", "--nvme-dir", "/no/such/dir"],
        ["/no/such/dir", "No such file"],
    );
    refused("both", DECODE, &["--two-tiers", "--nvme-dir", "/tmp"], ["--two-tiers", "--nvme-dir"]);
    refused("long", 8000, &[], ["9024 tokens", "8192 positions"]);
    refused("text", DECODE, &["--text", "/no/such/text"], ["/no/such/text", "No such file"]);
}

/// Start a demo of full length, send `signal` to one of its processes once all run, and wait for its end. Return its exit code and
/// output. Check that no files or processes are left.
fn interrupted(
    name: &str,
    signal: Signal,
    whom: fn(demo: Pid, daemon: Pid, engine: Pid) -> Pid,
) -> (Option<i32>, String) {
    let dir = Dir::new(name);
    let mut command = command(&dir, 3584, 256, &[]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    let pids = loop {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "ended early: {said}");
        said += &line;
        if let Some(rest) = line.strip_prefix("pids    daemon ") {
            let pid = |text: &str| Pid::from_raw(text.trim().parse().unwrap()).unwrap();
            let (daemon, engine) = rest.split_once(", engine ").unwrap();
            break (Pid::from_child(&child), pid(daemon), pid(engine));
        }
    };
    kill_process(whom(pids.0, pids.1, pids.2), signal).unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let status = child.wait().unwrap();
    for pid in [pids.1, pids.2] {
        assert!(test_kill_process(pid).is_err(), "process {pid:?} outlived the demo: {said}");
    }
    assert!(dir.entries().is_empty(), "left behind: {:?}", dir.entries());
    (status.code(), said)
}

#[test]
fn a_process_that_dies_ends_the_demo_in_words_and_leaves_nothing() {
    let (code, said) = interrupted("daemon", Signal::KILL, |_, daemon, _| daemon);
    assert!(code == Some(2) && said.contains("the daemon died") && said.contains("signal: 9"), "{code:?}: {said}");
    let (code, said) = interrupted("engine", Signal::KILL, |_, _, engine| engine);
    assert!(code == Some(2) && said.contains("the engine died") && said.contains("signal: 9"), "{code:?}: {said}");
    let (code, said) = interrupted("demo", Signal::TERM, |demo, _, _| demo);
    assert!(code == Some(128 + 15) && said.contains("signal 15"), "{code:?}: {said}");
}
