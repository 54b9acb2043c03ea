//! Tests of the screen as text.

use super::*;
use std::time::{Duration, Instant};

fn told(step: u64, uptime_s: f64) -> Snapshot {
    let hits = format!(
        r#"{{"asked_tokens": {}, "found_tokens": {}, "loaded_tokens": {{"tier0": 0, "host": {}, "nvme": {}}},
            "recompute_us": 9000000, "load_us": 1000000}}"#,
        step * 4000,
        step * 3000,
        step * 2000,
        step * 1000,
    );
    let json = format!(
        r#"{{"schema": 1, "stage": "serving", "build": {{"version": "0.1.0"}}, "pid": 7, "uptime_s": {uptime_s},
        "host": {{"capacity_bytes": 1073741824, "granted_bytes": 536870912}},
        "sessions": [{{"session": 4, "space": 1, "live": true, "pid": 4711, "uid": 1000, "shard": 2, "program": "vllm"}}],
        "hits": {hits},
        "disks": [{{"number": 0, "dir": "/d", "mode": "io_uring+direct+fixed", "capacity_bytes": 4294967296, "regions": 16,
            "depth": 32, "at_device": 3,
            "classes": [{{"queued": 5, "reads": {{"bytes": {}}}}}, {{}}, {{"writes": {{"bytes": {}}}}}]}}],
        "spaces": [{{"space": 1, "name": "llama-70b", "domain": "default", "sessions": 1, "hits": {hits},
            "occupancy": {{"tier0": {{"free": {{"bytes": 1048576}}, "clean": {{"bytes": 3145728}}}},
                "host": {{"free": {{"bytes": 268435456}}, "dirty": {{"bytes": 268435456}}}},
                "nvme_slots": 100, "nvme_slots_used": 50, "nvme_slot_bytes": 1048576}},
            "core": {{"found_tier0": {}, "found_host": {}, "found_nvme": {}, "faults": {},
                "host_to_tier0": {{"bytes": [{}, 0, 0, 0, 0, 0, 0, 0, 0, 0]}}, "nvme_to_host": {{"bytes": [0, {}, 0, 0, 0, 0, 0, 0, 0, 0]}}}},
            "request_times": {{"fault": {{"sum_us": {}}}}},
            "attached": [{{"session": 4, "hits": {hits}, "loaded_bytes": {}, "requests": {}, "faults": {}, "stalled_us": {},
                "requests_in_flight": 2, "jobs_in_flight": 9}}]}}]}}"#,
        step << 28,
        step << 20,
        step * 90,
        step * 8,
        step * 2,
        step * 4,
        step << 30,
        step << 28,
        step * 50_000,
        step << 30,
        step * 300,
        step * 4,
        step * 50_000,
    );
    serde_json::from_str(&json).unwrap()
}

fn screen(rates: &Rates, width: u16, height: u16) -> String {
    text(rates, View::default(), width, height)
}

fn two_looks() -> Rates {
    let (mut rates, began) = (Rates::default(), Instant::now());
    rates.take(told(1, 10.0), began);
    rates.take(told(3, 12.0), began + Duration::from_secs(2));
    rates
}

/// Return true if a line contains these words in this order.
fn has_line(screen: &str, words: &[&str]) -> bool {
    screen.lines().any(|line| {
        let mut rest = line;
        words.iter().all(|word| {
            let found = rest.find(word);
            rest = found.map_or("", |at| &rest[at + word.len()..]);
            found.is_some()
        })
    })
}

#[test]
fn health_and_hits_come_first_and_everything_fits() {
    for (width, height) in [(80, 24), (200, 60)] {
        let screen = screen(&two_looks(), width, height);
        println!("{screen}");
        let lines: Vec<&str> = screen.lines().collect();
        assert!(lines[0].starts_with("kvtided 0.1.0  pid 7  serving, up 12 s"), "{screen}");
        assert_eq!(lines[1], "healthy");
        assert_eq!(lines[2], "hits 75.0% now, 75.0% since start: 9000 of 12k tokens found");
        assert_eq!(lines[3], "loaded 3000 tokens/s, from tier 0 0.0%, host 66.7%, nvme 33.3%");
        for line in [
            &["s sort: number  d pages  q quit"][..],
            &["tier 0", "3.00 MiB", "4.00 MiB", "75.0%", "1.00 GiB/s"],
            &["host", "256 MiB", "512 MiB", "1.00 GiB", "25.0%", "256 MiB/s", "1.00 GiB/s"],
            &["nvme", "50.0 MiB", "100 MiB", "4.00 GiB", "1.2%", "-", "256 MiB/s"],
            &["0", "256 MiB/s", "1.00 MiB/s", "3/32", "5", "0", "ready"],
            &["1", "llama-70b", "default", "0", "75.0%", "3000", "256 MiB", "50.0 MiB"],
            &["4", "vllm", "4711", "1", "2", "75.0%", "3000", "1.00 GiB/s", "-", "4.0"],
        ] {
            assert!(has_line(&screen, line), "{line:?} is not in:\n{screen}");
        }
        assert!(
            lines.len() <= usize::from(height) && lines.iter().all(|line| line.chars().count() <= usize::from(width))
        );
    }
}

#[test]
fn a_narrow_screen_shows_whole_reasons_and_nothing_over_another() {
    let mut status = told(3, 12.0);
    status.pid = 4_194_303;
    status.uptime_s = 200_000.0;
    let reason = "disk 0 (/var/lib/kvtide/nvme0) is out of service since an error of the device (errno 5): replace it, or see \
                  the kernel's log; the other disks go on";
    status.degraded = serde_json::from_value(serde_json::json!([{ "reason": "other", "text": reason }])).unwrap();
    status.drained = true;
    status.hits.load_us = 10_000_000;
    let mut rates = Rates::default();
    rates.take(status, Instant::now());
    let shown = screen(&rates, 80, 24);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("kvtided 0.1.0  pid 4194303  drained, up "), "{shown}");
    let joined = lines.join(" ");
    assert!(joined.contains(&format!("degraded: {reason}")), "{shown}");
    assert!(joined.contains("SLOW: loading took 10.0 s; computing would take 9.0 s by eviction."), "{shown}");
    assert!(has_line(&shown, &["llama-70b"]) && has_line(&shown, &["vllm", "4711"]), "{shown}");
    // The hint about keys begins after the daemon's line.
    for width in 20..100 {
        let first = screen(&rates, width, 24).lines().next().unwrap().to_owned();
        let own = "kvtided 0.1.0  pid 4194303  drained, up 2 d 7 h";
        let rest = first.strip_prefix(own).unwrap_or_default();
        assert!(rest.is_empty() || rest.starts_with("  "), "{width}: {first}");
        assert!(usize::from(width) < own.len() || first.starts_with(own), "{width}: {first}");
    }
    assert_eq!(wrapped("a b", 1), ["a", "b"]);
    assert_eq!(wrapped("one two three four five", 5), ["one", "two", "three", "fou …"]);
}

#[test]
fn details_show_pages_and_faults() {
    let view = View { detail: true, ..View::default() };
    let screen = text(&two_looks(), view, 80, 24);
    assert!(
        has_line(&screen, &["1", "llama-70b", "90.0%", "8.0%", "2.0%", "1.00 GiB/s", "-", "4.0", "5.0%"]),
        "{screen}"
    );
    assert!(has_line(&screen, &["d hits"]), "{screen}");
}

#[test]
fn what_does_not_fit_is_counted_and_sorted() {
    let mut status = told(3, 12.0);
    for number in 2..40 {
        let mut more = status.spaces[0].clone();
        (more.space, more.name) = (number, format!("model-{number}"));
        more.hits.found_tokens = u64::from(number) * 100;
        status.spaces.push(more);
    }
    let mut rates = Rates::default();
    rates.take(status, Instant::now());
    let screen = |sort| text(&rates, View { sort, detail: false }, 80, 24);
    let shown = screen(Sort::Number);
    assert!(has_line(&shown, &["spaces (", " more)"]) && has_line(&shown, &["engines (", " more)"]), "{shown}");
    assert_eq!(shown.lines().count(), 24, "{shown}");
    assert!(has_line(&shown, &["1", "llama-70b"]) && !shown.contains("model-39"), "{shown}");
    let worst = screen(Sort::HitRate);
    assert!(worst.contains("model-2 ") && !worst.contains("llama-70b"), "the lowest hit rate is first:\n{worst}");
    let named = screen(Sort::Name);
    assert!(
        has_line(&named, &["llama-70b"]) && has_line(&named, &["model-10"]) && !named.contains("model-9 "),
        "{named}"
    );
}

#[test]
fn a_small_screen_shows_what_fits() {
    for (width, height) in [(40, 8), (10, 3), (1, 1)] {
        let screen = screen(&two_looks(), width, height);
        assert!(screen.lines().all(|line| line.chars().count() <= usize::from(width)), "{screen}");
    }
}

#[test]
fn a_lost_daemon_is_said_beside_what_it_told_last() {
    let mut rates = two_looks();
    rates.lose("no daemon answers on http://127.0.0.1:9417".into());
    let screen = screen(&rates, 120, 24);
    assert!(has_line(&screen, &["LOST: no daemon answers on http://127.0.0.1:9417"]), "{screen}");
    assert!(has_line(&screen, &["llama-70b", "75.0%"]), "{screen}");
}

#[test]
fn nothing_attached_is_said() {
    let mut rates = Rates::default();
    let empty = r#"{"schema": 1, "stage": "draining", "unhealthy": [{"reason": "other", "text": "a"}, {"reason": "other", "text": "b"}]}"#;
    rates.take(serde_json::from_str(empty).unwrap(), Instant::now());
    let screen = screen(&rates, 100, 20);
    assert!(has_line(&screen, &["no engine attached"]) && has_line(&screen, &["a (and 1 more)"]), "{screen}");
}
