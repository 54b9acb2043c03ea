//! Health, metrics and status of an NVMe tier: after a restart, with a missing disk, after configuration changes and errors.

use crate::http::{get, metric};
use crate::nvme::{BLOCKS, Dir, Engine, NVME_BYTES, nvme_options};
use crate::{BOUND, until};
use kvtide_bench::private_daemon::{Options, PrivateDaemon};
use kvtide_wire::entry::Level;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

fn options(dir: &Dir, tier: &str, after: &str) -> Options {
    let options = nvme_options(dir, NVME_BYTES, tier, "");
    // The disk's table is the last one in the configuration.
    Options { http: Some("127.0.0.1:0".into()), config: options.config.map(|text| text + after), ..options }
}

fn start(options: &Options) -> (PrivateDaemon, SocketAddr) {
    let mut daemon = PrivateDaemon::start(options).unwrap();
    let address = daemon.status().unwrap()["http"].as_str().unwrap().parse().unwrap();
    (daemon, address)
}

fn verdict(address: SocketAddr, path: &str) -> (u16, Value) {
    let (code, _, body) = get(address, path);
    (code, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

/// Return the exit status and output of `kvtide status`.
fn status(address: SocketAddr) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtide"));
    let told = command.args(["status", "--http", &address.to_string()]).output().unwrap();
    (told.status.code(), String::from_utf8(told.stdout).unwrap())
}

#[test]
fn a_restarted_daemon_tells_what_it_found_and_what_came_back() {
    let dir = Dir::new();
    let (mut daemon, address) = start(&options(&dir, "", ""));
    let page = get(address, "/metrics").2;
    assert_eq!(metric(&page, "kvtide_disk_recovered_blocks", &[]), Some(0.0), "a new disk");
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(BLOCKS).unwrap();
    let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).collect();
    assert_eq!(engine.channel.publish(seq, 0, 0, &hashes, Level::Durable, BOUND).unwrap(), Level::Durable);
    let blocks = f64::from(BLOCKS);
    let page = get(address, "/metrics").2;
    for (name, least) in [
        ("kvtide_blocks_stored_total", blocks),
        ("kvtide_disk_log_flushes_total", 1.0),
        ("kvtide_disk_log_blocks", blocks),
    ] {
        assert!(metric(&page, name, &[]) >= Some(least), "{name} below {least} in:\n{page}");
    }
    assert_eq!(metric(&page, "kvtide_record_failures_total", &[]), Some(0.0));
    daemon.signal(Signal::KILL).unwrap();
    daemon.wait(BOUND).unwrap();
    drop(engine);

    let (daemon, address) = start(&options(&dir, "", ""));
    assert_eq!(verdict(address, "/readyz").0, 200);
    let page = get(address, "/metrics").2;
    assert_eq!(metric(&page, "kvtide_disk_recovered_blocks", &[]), Some(blocks), "{page}");
    assert!(metric(&page, "kvtide_disk_recovered_records", &[]) > Some(blocks), "slabs are recorded too");
    assert!(metric(&page, "kvtide_disk_recovery_seconds", &[]) > Some(0.0));
    assert!(metric(&page, "kvtide_disk_unclaimed_bytes", &[]) > Some(0.0), "its space has not attached");
    for finding in ["corrupt", "unreadable", "partial", "sealed"] {
        let label = format!("finding=\"{finding}\"");
        assert_eq!(metric(&page, "kvtide_disk_recovery_findings", &[&label]), Some(0.0), "{finding}");
    }
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.channel.create_seq().unwrap();
    assert_eq!(engine.channel.attach_prefix(seq, &hashes, BOUND).unwrap() as u32, BLOCKS);
    let page = get(address, "/metrics").2;
    assert_eq!(metric(&page, "kvtide_disk_unclaimed_bytes", &[]), Some(0.0));
    let (_, told) = verdict(address, "/v1/status");
    let core = |counter: &str| told["spaces"][0]["core"][counter].as_u64().unwrap();
    assert_eq!((core("restored"), core("restore_refused")), (BLOCKS.into(), 0));
    assert!(core("nvme_hits") >= BLOCKS.into(), "{told:#}");
    let (code, text) = status(address);
    assert_eq!(code, Some(0), "{text}");
    for line in [format!("recovered {BLOCKS} blocks"), format!("restored {BLOCKS} blocks, 0 not restored")] {
        assert!(text.contains(&line), "{line} is not in:\n{text}");
    }
}

#[test]
fn a_disk_that_is_not_there_degrades_and_leaves_it_healthy_and_ready() {
    let dir = Dir::new();
    let gone = "[[tiers.nvme.disks]]\ndevice = \"/dev/kvtide-is-not-there\"\ncapacity = \"16MiB\"\n";
    let (daemon, address) = start(&options(&dir, "", gone));
    let (code, health) = verdict(address, "/healthz");
    assert_eq!((code, &health["healthy"]), (200, &true.into()), "{health:#}");
    let reason = &health["degraded"][0];
    assert_eq!((&reason["reason"], &reason["disk"]), (&"disk_out_of_service".into(), &1.into()), "{health:#}");
    let words = reason["text"].as_str().unwrap();
    assert!(words.contains("/dev/kvtide-is-not-there") && words.contains("No such file"), "{words}");
    // The other disk serves once its first region is written.
    until(|| format!("never ready: {}", daemon.log()), || verdict(address, "/readyz").0 == 200);
    let page = get(address, "/metrics").2;
    assert_eq!((metric(&page, "kvtide_healthy", &[]), metric(&page, "kvtide_degraded", &[])), (Some(1.0), Some(1.0)));
    let out = |disk| metric(&page, "kvtide_disk_out_of_service", &[&format!("disk=\"{disk}\"")]);
    assert_eq!((out(0), out(1)), (Some(0.0), Some(1.0)));
    let (code, text) = status(address);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.lines().nth(1).unwrap().starts_with("DEGRADED   disk 1 (/dev/kvtide-is-not-there)"), "{text}");
    // It serves with the other disk.
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(2).unwrap();
    assert_eq!(engine.channel.publish(seq, 0, 0, &[1, 2], Level::Stored, BOUND).unwrap(), Level::Stored);
}

/// A small `bytes_per_day` shows in health, status and metrics, not only as misses.
#[test]
fn a_short_write_budget_degrades_with_its_figures_until_it_is_raised() {
    let dir = Dir::new();
    let (mut daemon, address) = start(&options(&dir, "", "bytes_per_day = \"1MiB\"\n"));
    let (_, health) = verdict(address, "/healthz");
    assert_eq!(health["degraded"], serde_json::json!([]), "no writes were requested yet");
    let mut engine = Engine::attach(daemon.socket(), 1);
    // Several times the capacity of tier 0 and host memory.
    for run in 1..=16u128 {
        let seq = engine.write(BLOCKS).unwrap();
        let hashes: Vec<u128> = (1..=u128::from(BLOCKS)).map(|block| run << 64 | block).collect();
        engine.channel.publish(seq, 0, 0, &hashes, Level::Published, BOUND).unwrap();
        engine.channel.drop_seq(seq).unwrap();
    }
    let (code, health) = verdict(address, "/healthz");
    assert_eq!((code, &health["healthy"]), (200, &true.into()), "{health:#}");
    let reason = &health["degraded"][0];
    assert_eq!(
        (&reason["reason"], &reason["bytes_per_day"]),
        (&"write_budget_short".into(), &(1 << 20).into()),
        "{health:#}"
    );
    let blocks = reason["blocks"].as_u64().unwrap();
    assert!(blocks > u64::from(BLOCKS), "{health:#}");
    let words = reason["text"].as_str().unwrap();
    for part in [
        &*format!("NVMe write budget: {blocks} blocks ("),
        "bytes_per_day allows 1 MiB",
        "raise tiers.nvme.disks[].bytes_per_day",
    ] {
        assert!(words.contains(part), "{part} is not in {words}");
    }
    assert_eq!(verdict(address, "/readyz").0, 200);
    let page = get(address, "/metrics").2;
    let figure = |page: &str, name| metric(page, name, &[]).unwrap();
    assert_eq!((figure(&page, "kvtide_degraded"), figure(&page, "kvtide_write_budget_short")), (1.0, 1.0));
    assert_eq!(figure(&page, "kvtide_over_budget_drops_total"), blocks as f64);
    let (code, text) = status(address);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.lines().nth(1).unwrap().starts_with(&format!("DEGRADED   NVMe write budget: {blocks} blocks")),
        "{text}"
    );
    assert!(text.contains("budget     1.00 MiB a day; ") && text.contains(&format!("; {blocks} blocks (")), "{text}");

    // With a larger budget it is healthy again.
    daemon.reload(options(&dir, "", "bytes_per_day = \"1TiB\"\n").config.as_deref().unwrap()).unwrap();
    let (_, health) = verdict(address, "/healthz");
    assert_eq!(health["degraded"], serde_json::json!([]));
    let page = get(address, "/metrics").2;
    assert_eq!((figure(&page, "kvtide_degraded"), figure(&page, "kvtide_write_budget_short")), (0.0, 0.0));
    assert_eq!(status(address).1.matches("DEGRADED").count(), 0);
}

#[test]
fn a_reload_says_what_of_the_tier_needs_a_restart() {
    let dir = Dir::new();
    let before = options(&dir, "", "bytes_per_day = \"1GiB\"\n");
    let (mut daemon, address) = start(&before);
    let _engine = Engine::attach(daemon.socket(), 1);
    let tier = "admission = \"second-touch\"\ncodec = \"lz4\"\ndepth = 3\n";
    let sample = "[integrity_sample]\none_in = 1\n";
    let after = options(&dir, tier, &format!("bytes_per_day = \"2GiB\"\nendurance = \"1PiB\"\n{sample}"));
    daemon.reload(after.config.as_deref().unwrap()).unwrap();
    let log = daemon.log();
    for line in [
        "tiers.nvme.admission changed from \"all\" to \"second-touch\": in effect now",
        "tiers.nvme.codec changed from \"none\" to \"lz4\": needs a restart",
        "tiers.nvme.depth changed from 32 to 3: needs a restart",
        "tiers.nvme.disks[0].bytes_per_day changed from \"1GiB\" to \"2GiB\": in effect now",
        "tiers.nvme.disks[0].endurance changed from \"0B\" to \"1PiB\": in effect now",
        "integrity_sample.one_in changed from 256 to 1: applies to new spaces",
        "6 values changed, 2 of them need a restart",
    ] {
        assert!(log.contains(line), "{line} is not in: {log}");
    }
    let page = get(address, "/metrics").2;
    assert_eq!(metric(&page, "kvtide_disk_day_limit_bytes", &[]), Some((2u64 << 30) as f64));
    assert_eq!(metric(&page, "kvtide_disk_endurance_bytes", &[]), Some((1u64 << 50) as f64));
}

#[test]
fn a_key_that_is_no_key_or_another_one_is_refused_and_nothing_is_touched() {
    let dir = Dir::new();
    let path = |name: &str| dir.path().join(name);
    let key = |name: &str, text: &str, mode| {
        fs::write(path(name), text).unwrap();
        fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
    };
    let with = |name: &str| {
        let file = path(name);
        options(&dir, "", &format!("[tiers.nvme.encryption]\nkey = \"file\"\npath = \"{}\"\n", file.display()))
    };
    let refused = |name: &str| match PrivateDaemon::start(&with(name)) {
        Ok(_) => panic!("it starts with {name}"),
        Err(error) => error.to_string(),
    };
    let hex = |from: u8| (from..from + 32).map(|byte| format!("{byte:02x}")).collect::<String>();
    key("open", &hex(0), 0o644);
    key("short", "abab", 0o600);
    for (name, why) in [("none", "No such file"), ("open", "0644"), ("short", "expected 32 bytes")] {
        let error = refused(name);
        assert!(error.contains(&*path(name).to_string_lossy()) && error.contains(why), "{name}: {error}");
        assert!(error.contains("exit status: 78"), "retries do not help: {error}");
        assert!(!path("disk").join("kvtide.store").exists(), "{name}: a file was created");
    }
    key("own", &hex(0), 0o600);
    key("other", &hex(32), 0o600);
    let (mut daemon, _) = start(&with("own"));
    let mut engine = Engine::attach(daemon.socket(), 1);
    let seq = engine.write(2).unwrap();
    assert_eq!(engine.channel.publish(seq, 0, 0, &[1, 2], Level::Stored, BOUND).unwrap(), Level::Stored);
    assert!(daemon.stop().unwrap().success());
    let before = fs::read(path("disk").join("kvtide.store")).unwrap();
    let error = refused("other");
    assert!(error.contains("wrapped with master key") && error.contains("exit status: 78"), "{error}");
    assert!(before == fs::read(path("disk").join("kvtide.store")).unwrap(), "the store was touched");
}
