//! Tests of the screen as text.

use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::time::{Duration, Instant};

fn told(step: u64, uptime_s: f64) -> Snapshot {
    let json = format!(
        r#"{{"schema": 1, "stage": "serving", "build": {{"version": "0.1.0"}}, "pid": 7, "uptime_s": {uptime_s},
        "host": {{"capacity_bytes": 1073741824, "granted_bytes": 536870912}},
        "sessions": [{{"session": 4, "space": 1, "live": true, "pid": 4711, "uid": 1000, "shard": 2}}],
        "disks": [{{"number": 0, "dir": "/d", "mode": "io_uring+direct+fixed", "capacity_bytes": 4294967296, "regions": 16,
            "depth": 32, "at_device": 3,
            "classes": [{{"queued": 5, "reads": {{"bytes": {}}}}}, {{}}, {{"writes": {{"bytes": {}}}}}]}}],
        "spaces": [{{"space": 1, "name": "llama-70b", "domain": "default", "sessions": 1,
            "occupancy": {{"tier0": {{"free": {{"bytes": 1048576}}, "clean": {{"bytes": 3145728}}}},
                "host": {{"free": {{"bytes": 268435456}}, "dirty": {{"bytes": 268435456}}}},
                "nvme_slots": 100, "nvme_slots_used": 50, "nvme_slot_bytes": 1048576}},
            "core": {{"found_tier0": {}, "found_host": {}, "found_nvme": {}, "faults": {},
                "host_to_tier0": {{"bytes": [{}, 0, 0, 0, 0, 0, 0, 0, 0, 0]}}, "nvme_to_host": {{"bytes": [0, {}, 0, 0, 0, 0, 0, 0, 0, 0]}}}},
            "request_times": {{"fault": {{"sum_us": {}}}}},
            "attached": [{{"session": 4, "loaded_bytes": {}, "requests": {}, "faults": {}, "stalled_us": {},
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
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, rates)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect::<Vec<_>>().join("\n")
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
fn everything_fits_on_a_wide_screen() {
    let screen = screen(&two_looks(), 120, 24);
    println!("{screen}");
    for line in [
        &["kvtided 0.1.0  pid 7  serving, up 12 s", "q quits"][..],
        &["healthy"],
        &["tier 0", "3.00 MiB", "4.00 MiB", "75.0%", "90.0%", "1.00 GiB/s"],
        &["host", "256 MiB", "512 MiB", "1.00 GiB", "25.0%", "8.0%", "256 MiB/s", "1.00 GiB/s"],
        &["nvme", "50.0 MiB", "100 MiB", "4.00 GiB", "1.2%", "2.0%", "-", "256 MiB/s"],
        &["0", "256 MiB/s", "1.00 MiB/s", "3/32", "5", "0", "ready", "io_uring+direct+fixed"],
        &["1", "llama-70b", "90.0%", "8.0%", "2.0%", "1.00 GiB/s", "-", "256 MiB/s", "-", "4.0", "5.0%"],
        &["4", "1", "2", "4711", "1000", "1.00 GiB/s", "-", "300", "4.0", "5.0%", "2+9"],
    ] {
        assert!(has_line(&screen, line), "{line:?} is not in:\n{screen}");
    }
}

#[test]
fn a_small_screen_shows_what_fits() {
    for (width, height) in [(80, 24), (40, 8), (10, 3), (1, 1)] {
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
    assert!(has_line(&screen, &["llama-70b", "90.0%"]), "{screen}");
}

#[test]
fn nothing_attached_is_said() {
    let mut rates = Rates::default();
    let empty = r#"{"schema": 1, "stage": "draining", "unhealthy": [{"reason": "other", "text": "a"}, {"reason": "other", "text": "b"}]}"#;
    rates.take(serde_json::from_str(empty).unwrap(), Instant::now());
    let screen = screen(&rates, 100, 20);
    assert!(has_line(&screen, &["no engine attached"]) && has_line(&screen, &["a (and 1 more)"]), "{screen}");
}
