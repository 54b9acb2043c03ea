//! Whole replays of small traces.

use clap::Parser;
use kvtide_bench::replay::{Args, ReplayError, told};
use serde_json::Value;
use std::io::Write;
use tempfile::NamedTempFile;

#[path = "../replay/trace/fixture.rs"]
#[allow(dead_code)] // its sizes are for the tests of the reader
mod fixture;
#[path = "../../tests/frozen/mod.rs"]
mod frozen;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn scratch(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a writable folder");
    file.write_all(bytes).expect("a writable file");
    file
}

fn replay(which: &str, trace: &NamedTempFile, more: &[&str]) -> Result<String, ReplayError> {
    let path = trace.path().to_str().expect("UTF-8");
    let words = ["replay", which, path].into_iter().chain(more.iter().copied());
    let told = told(&Line::try_parse_from(words).expect("a line that parses").args)?;
    assert_eq!(told.failed, None);
    Ok(told.text)
}

fn json(which: &str, trace: &NamedTempFile, more: &[&str]) -> Value {
    let more: Vec<&str> = more.iter().copied().chain(["--json"]).collect();
    let text = replay(which, trace, &more).expect("the replay succeeds");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json.as_object_mut().and_then(|object| object.remove("version")), Some(1.into()));
    json
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no number {name} in {value}"))
}

/// Return conversations that continue, and requests that do not recur: 40 pairs of them.
fn requests() -> NamedTempFile {
    let mut lines = String::new();
    for turn in 0..40u64 {
        let (chat, length) = (turn % 8, 3 + turn / 8);
        let ids: Vec<u64> = (0..length).map(|i| 1000 * (chat + 1) + i).collect();
        let once: Vec<u64> = (0..6).map(|i| 100_000 + 100 * turn + i).collect();
        for ids in [ids, once] {
            lines += &format!(
                "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": 9, \"hash_ids\": {ids:?}}}\n",
                turn * 1000,
                512 * ids.len()
            );
        }
    }
    scratch(lines.as_bytes())
}

#[test]
fn with_room_for_all_every_block_is_found_again() {
    let trace = requests();
    let all = json("requests", &trace, &["--all", "--capacity-percent", "100"]);
    for policy in ["lru", "s3-fifo", "arc", "cost-aware", "auto"] {
        let figures = &all[policy];
        // 8 chats of 3 to 7 blocks, found except for the newest block of each: (3 + 4 + 5 + 6) × 8 of 200 + 240.
        assert!((number(figures, "hit_ratio") - 144.0 / 440.0).abs() < 1e-6, "{policy}: {figures}");
        assert!((number(figures, "belady") - 144.0 / 440.0).abs() < 1e-6);
        let tiers = &figures["hit_ratio_by_tier"];
        let sum: f64 = ["tier0", "host", "nvme"].iter().map(|tier| number(tiers, tier)).sum();
        assert!((sum - number(figures, "hit_ratio")).abs() < 1e-5, "{figures}");
        // Every distinct block is written once.
        assert_eq!(number(figures, "bytes_written"), 296.0 * 512.0 * 65536.0);
    }
}

#[test]
fn capacity_and_bandwidth_cost_what_they_cost() {
    let trace = requests();
    let at = |percent: &str| json("requests", &trace, &["--policy", "lru", "--capacity-percent", percent]);
    let (less, more) = (at("22"), at("100"));
    assert!(number(&less, "hit_ratio") <= number(&more, "hit_ratio"));
    assert!(number(&less, "hit_ratio") <= number(&less, "belady") + 0.2, "tier 0 and host memory add some capacity");
    let slow = json(
        "requests",
        &trace,
        &["--policy", "lru", "--capacity-percent", "100", "--host-gbps", "2.5", "--nvme-gbps", "0.6"],
    );
    let ratio = number(&slow, "load_us_per_request") / number(&more, "load_us_per_request");
    assert!((5.0..15.0).contains(&ratio), "a tenth of the bandwidths: {ratio}");
    let host = json("requests", &trace, &["--policy", "lru", "--capacity-percent", "100", "--host-percent", "100"]);
    assert_eq!((number(&host, "bytes_written"), number(&host, "nvme_blocks")), (0.0, 0.0));
    assert_eq!(number(&host, "hit_ratio"), number(&more, "hit_ratio"));
    let both = json("requests", &trace, &["--capacity-percent", "22,100", "--all"]);
    assert_eq!(both["lru"]["22"], less);
}

#[test]
fn the_rules_of_admission_are_compared() {
    let trace = requests();
    let rules = json("requests", &trace, &["--admissions", "--capacity-percent", "50", "--budget-percent", "25"]);
    let written = |rule: &str| number(&rules[rule], "bytes_written");
    assert!(written("second_touch_50") < written("all_50") && written("budget_25_50") < written("all_50"), "{rules}");
}

#[test]
fn a_broken_trace_is_named_with_its_place() {
    let trace = scratch(b"{\"timestamp\": 0, \"hash_ids\": [1]}\n{\"timestamp\": 0, \"has");
    let error = replay("requests", &trace, &[]).expect_err("cut off").to_string();
    assert!(error.contains(&format!("{}: line 2: ", trace.path().display())), "{error}");
    let whole = fixture::file(&[]);
    let trace = scratch(&whole[..whole.len() - 100]);
    let error = replay("attention", &trace, &[]).expect_err("cut off").to_string();
    assert!(error.contains(&format!("{}: byte {}: ", trace.path().display(), whole.len() - 100)), "{error}");
    let trace = scratch(&whole);
    let error = replay("attention", &trace, &["--capacity-percent", "5"]).expect_err("too narrow").to_string();
    assert!(error.contains("--capacity-percent"), "{error}");
}

#[test]
fn attention_is_replayed_alike_twice_and_within_what_can_be() {
    let trace = scratch(&fixture::file(&[]));
    let run = || json("attention", &trace, &["--capacity-percent", "25"]);
    let figures = run();
    assert_eq!(figures, run(), "the same trace, the same figures");
    let planes = figures["planes"].as_array().expect("planes");
    assert_eq!(planes.len(), 3);
    for plane in planes {
        let oracle = number(plane, "mass_recall_oracle");
        assert!(number(plane, "mass_recall_last_step") <= oracle + 1e-6);
        assert!(number(plane, "mass_recall_true_query") <= oracle + 1e-6);
        assert!((0.0..=1.001).contains(&number(plane, "mass_recall")));
    }
    for name in ["coverage", "precision", "late"] {
        assert!((0.0..=1.0).contains(&number(&figures, name)), "{name}");
    }
    for name in ["missed_less_than_last_step", "missed_less_by_plane"] {
        assert!(number(&figures, name).is_finite());
    }
    assert!(number(&figures, "wasted_bytes") <= number(&figures, "prefetched_bytes"));
    // Three planes share 25 % of the pages.
    let pages: f64 = planes.iter().map(|plane| number(plane, "pages")).sum();
    assert!(pages <= 3.0 * 14.0, "{pages} pages");
    assert!(number(&figures, "digest_percent") <= 5.0);
}

/// A refactoring must not change any figure.
#[test]
fn figures_are_as_frozen() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/replay/frozen.json");
    let chats = scratch(include_bytes!("../../ffi/python/e2e/trace.jsonl"));
    let attention = scratch(&fixture::file(&[]));
    let now = serde_json::json!({
        "requests": json("requests", &chats, &["--all", "--capacity-percent", "5,20,50"]),
        "admissions": json("requests", &chats, &["--admissions", "--capacity-percent", "20"]),
        "attention": json("attention", &attention, &["--capacity-percent", "25"]),
    });
    let text = serde_json::to_string_pretty(&now).expect("JSON") + "\n";
    let before: Value = serde_json::from_str(&frozen::recorded(file, &text)).expect("JSON");
    let mut differ = Vec::new();
    compare(&before, &now, String::new(), &mut differ);
    assert!(differ.is_empty(), "other figures than {file}: {differ:#?}");
}

/// Names the figures that differ: whole numbers at all, others by more than machines round.
fn compare(before: &Value, now: &Value, path: String, differ: &mut Vec<String>) {
    match (before, now) {
        (Value::Object(a), Value::Object(b)) if a.len() == b.len() => {
            for (key, value) in a {
                compare(value, &b[key], format!("{path}/{key}"), differ);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, format!("{path}/{index}"), differ);
            }
        }
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
            if (a - b).abs() > 1e-9 * a.abs().max(1.0) {
                differ.push(format!("{path}: {a}, now {b}"));
            }
        }
        (a, b) if a == b => {}
        (a, b) => differ.push(format!("{path}: {a}, now {b}")),
    }
}

#[test]
fn where_everything_fits_nothing_is_moved_or_waited_for() {
    let trace = scratch(&fixture::file(&[]));
    let figures = json("attention", &trace, &["--capacity-percent", "100"]);
    assert!((number(&figures, "mass_recall") - 1.0).abs() < 0.01, "{figures}");
    assert_eq!((number(&figures, "prefetched_bytes"), number(&figures, "stall_us_per_token")), (0.0, 0.0), "{figures}");
}

/// In simulated time: bytes moved by the shipped core's plan, compared with the minimum of any plan for a scan.
#[test]
fn exact_moves_little_more_than_a_cyclic_scan_must() {
    let trace = scratch(&fixture::file(&[]));
    let exact = |more: &[&str]| json("attention", &trace, more)["exact"].clone();
    let mut before = f64::INFINITY;
    for percent in ["12.5", "25", "50"] {
        let figures = exact(&["--capacity-percent", percent]);
        let ratio = number(&figures, "ratio");
        assert!((0.98..=1.05).contains(&ratio), "{percent} %: {figures}");
        assert!(
            number(&figures, "bytes") < before && number(&figures, "stall_us_per_token") > 0.0,
            "{percent} %: {figures}"
        );
        assert_eq!(number(&figures, "nvme_read_bytes"), 0.0);
        before = number(&figures, "bytes");
    }
    let whole = exact(&["--capacity-percent", "100"]);
    assert_eq!((number(&whole, "bytes"), number(&whole, "stall_us_per_token")), (0.0, 0.0), "{whole}");
    let below = exact(&["--capacity-percent", "25", "--host-percent", "50"]);
    assert!(number(&below, "nvme_read_bytes") > 0.0 && number(&below, "ratio") <= 1.05, "{below}");
}

#[test]
fn charts_are_drawn() {
    let trace = requests();
    let chart = scratch(b"");
    let path = chart.path().to_str().expect("UTF-8");
    replay("requests", &trace, &["--all", "--capacity-percent", "22,50", "--chart", path])
        .expect("the replay succeeds");
    let svg = std::fs::read_to_string(path).expect("the chart was written");
    assert!(svg.starts_with("<svg") && svg.contains("Belady") && svg.contains("s3-fifo"), "{svg}");
}
