//! The systemd unit file, and the daemon's messages to its service manager.

use crate::BOUND;
use crate::http::{get, metric};
use crate::raw::{Raw, sub};
use crate::threads::Stopped;
use kvtide_wire::entry::Op;
use kvtide_wire::status::Status;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// Maximum exposure level of `systemd-analyze security`, times ten.
const EXPOSURE_MAX: &str = "20";
/// The same for the relay, which has the network.
const RELAY_EXPOSURE_MAX: &str = "21";

fn analyze(args: &[&str], unit: &Path) -> Option<Output> {
    let output = Command::new("systemd-analyze").args(args).arg(unit).output();
    match output {
        Ok(output) => Some(output),
        Err(error) if std::env::var_os("KVTIDE_NO_SKIP").is_some() => panic!("systemd-analyze cannot be run: {error}"),
        Err(error) => {
            eprintln!("skipped: systemd-analyze cannot be run: {error}");
            None
        }
    }
}

/// Write the unit file of a program with the path of a binary that exists, because the program may not be installed.
fn unit(dir: &Path, program: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("configs/systemd/{program}.service"));
    let text = std::fs::read_to_string(source).unwrap();
    assert!(text.contains(&format!("ExecStart=/usr/bin/{program} --config")), "{text}");
    let path = dir.join(format!("{program}.service"));
    std::fs::write(&path, text.replace(&format!("/usr/bin/{program}"), env!("CARGO_BIN_EXE_kvtided"))).unwrap();
    path
}

#[test]
fn the_units_are_clean_and_little_exposed() {
    let dir = tempfile::tempdir().unwrap();
    for (program, exposure) in [("kvtided", EXPOSURE_MAX), ("kvtide-relay", RELAY_EXPOSURE_MAX)] {
        let unit = unit(dir.path(), program);
        let Some(verified) = analyze(&["verify"], &unit) else { continue };
        let said =
            format!("{}{}", String::from_utf8_lossy(&verified.stdout), String::from_utf8_lossy(&verified.stderr));
        assert!(verified.status.success() && said.is_empty(), "{said}");
        let threshold = ["security", "--offline=true", "--no-pager", "--threshold", exposure];
        let secured = analyze(&threshold, &unit).unwrap();
        assert!(secured.status.success(), "{}", String::from_utf8_lossy(&secured.stdout));
    }
}

#[test]
fn the_unit_keeps_what_attach_and_metrics_and_io_need() {
    let text = include_str!("../../configs/systemd/kvtided.service");
    let set = |key: &str| text.lines().any(|line| line.split_once('=').is_some_and(|(name, _)| name == key));
    for key in ["PrivateUsers", "PrivateNetwork", "PrivateDevices", "ProcSubset"] {
        assert!(!set(key), "{key} breaks the daemon");
    }
    for unit in [text, include_str!("../../configs/systemd/kvtide-relay.service")] {
        let has = |line: &str| unit.lines().any(|own| own == line);
        assert!(
            has("StartLimitIntervalSec=0") && has("Restart=on-failure"),
            "a unit that failed often is started again"
        );
    }
    for line in
        ["Type=notify", "LimitMEMLOCK=infinity", "LimitCORE=0", "MemorySwapMax=0", "OOMScoreAdjust=-900", "User=kvtide"]
    {
        assert!(text.lines().any(|own| own == line), "{line} is missing");
    }
}

/// System calls of the disks' threads besides io_uring: for the index log, files, raw devices and keys.
const CALLS: [&str; 11] = [
    "pread64",
    "pwrite64",
    "preadv",
    "pwritev",
    "fdatasync",
    "fallocate",
    "flock",
    "ioctl",
    "statx",
    "getrandom",
    "madvise",
];

/// Those of io_uring.
const IO_URING: [&str; 3] = ["io_uring_setup", "io_uring_enter", "io_uring_register"];

#[test]
fn the_filters_of_system_calls_let_disks_work() {
    let listed = Command::new("systemd-analyze").args(["syscall-filter", "--no-pager"]).output();
    let listed = match listed {
        Ok(output) if output.status.success() => String::from_utf8(output.stdout).unwrap(),
        other if std::env::var_os("KVTIDE_NO_SKIP").is_some() => panic!("systemd-analyze lists no filters: {other:?}"),
        other => return eprintln!("skipped: systemd-analyze tells no filters: {other:?}"),
    };
    let mut sets = std::collections::BTreeMap::<&str, Vec<&str>>::new();
    let mut set = "";
    for line in listed.lines() {
        match line.strip_prefix('@') {
            Some(_) => set = line,
            None if line.starts_with("    ") && !line.trim().starts_with('#') => {
                sets.entry(set).or_default().push(line.trim());
            }
            None => {}
        }
    }
    fn members<'a>(sets: &std::collections::BTreeMap<&'a str, Vec<&'a str>>, set: &str, into: &mut Vec<&'a str>) {
        for member in sets.get(set).into_iter().flatten() {
            into.push(member);
            if member.starts_with('@') {
                members(sets, member, into);
            }
        }
    }
    let (mut allowed, mut refused) = (Vec::new(), Vec::new());
    members(&sets, "@system-service", &mut allowed);
    members(&sets, "@privileged", &mut refused);
    let unit = include_str!("../../configs/systemd/kvtided.service");
    assert!(unit.contains("SystemCallFilter=@system-service io_uring_setup io_uring_enter io_uring_register"));
    assert!(unit.contains("SystemCallFilter=~@privileged"), "this test reads the same sets as the unit");
    for call in CALLS {
        assert!(allowed.contains(&call) && !refused.contains(&call), "{call} is not allowed");
    }
    assert!(!allowed.contains(&"reboot") && refused.contains(&"chroot"), "the sets were not read");
    // The profile of containers allows nothing more.
    let profile: Value = serde_json::from_str(include_str!("../../configs/kubernetes/prepare/seccomp.json")).unwrap();
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rules = profile["syscalls"].as_array().unwrap().iter();
    let named: Vec<&str> =
        rules.flat_map(|rule| rule["names"].as_array().unwrap()).map(|n| n.as_str().unwrap()).collect();
    for call in &named {
        let in_unit = allowed.contains(call) && !refused.contains(call) || IO_URING.contains(call);
        assert!(in_unit, "{call} is in the profile and not in the unit's filter");
    }
    for call in CALLS.iter().chain(&IO_URING).chain(&["mbind", "get_mempolicy"]) {
        assert!(named.contains(call), "{call} is not in the profile");
    }
}

/// A service manager that receives notifications, and the daemon that it started.
struct Manager {
    notify: UnixDatagram,
    dir: TempDir,
    daemon: Child,
    /// HTTP address of the daemon.
    http: SocketAddr,
    /// Messages before readiness.
    before: Vec<String>,
}

impl Manager {
    /// Start a daemon with a watchdog timeout of `watchdog_us` microseconds, and wait until it is ready.
    fn start(watchdog_us: &str) -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(BOUND)).unwrap();
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        // Like systemd, set WATCHDOG_PID to the daemon's pid; `exec` keeps the pid.
        let mut command = Command::new("sh");
        command.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_kvtided")]);
        command.env("NOTIFY_SOCKET", dir.path().join("notify")).env("WATCHDOG_USEC", watchdog_us);
        command
            .args(["--http", "127.0.0.1:0", "--host-bytes", "64MiB", "--slab-bytes", "1MiB", "--dir"])
            .arg(dir.path());
        let daemon = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut manager = Manager { notify, dir, daemon, http: ([0, 0, 0, 0], 0).into(), before: Vec::new() };
        manager.before = manager.hear_until("READY=1");
        let log = manager.log();
        let (_, rest) = log.split_once("on http://").unwrap();
        manager.http = rest.split_whitespace().next().unwrap().parse().unwrap();
        manager
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("kvtide.sock")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn hear(&self) -> String {
        let mut message = [0; 4096];
        loop {
            match self.notify.recv(&mut message) {
                Ok(len) => return String::from_utf8(message[..len].to_vec()).unwrap(),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => panic!("silence: {error}\n{}", self.log()),
            }
        }
    }

    /// Return all messages up to and including one that contains `wanted`.
    fn hear_until(&self, wanted: &str) -> Vec<String> {
        let deadline = Instant::now() + BOUND;
        let mut heard = Vec::new();
        loop {
            heard.push(self.hear());
            if heard[heard.len() - 1].contains(wanted) {
                return heard;
            }
            assert!(Instant::now() < deadline, "{wanted} did not arrive: {heard:?}\n{}", self.log());
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.daemon), signal).unwrap();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn the_service_manager_hears_of_readiness_life_and_end() {
    let mut manager = Manager::start("300000");
    let ready = manager.before.last().unwrap();
    assert!(ready.contains(&format!("STATUS=serving {}", manager.socket().display())), "{ready}");
    let (code, _, status) = get(manager.http, "/v1/status");
    assert!(code == 200 && status.contains("serving"), "{code}: {status}");
    manager.hear_until("WATCHDOG=1");
    manager.hear_until("WATCHDOG=1");
    manager.signal(Signal::HUP);
    let reloading = manager.hear_until("RELOADING=1");
    assert!(reloading.last().unwrap().contains("MONOTONIC_USEC="), "{reloading:?}");
    manager.hear_until("READY=1");
    manager.signal(Signal::TERM);
    manager.hear_until("STOPPING=1");
    assert!(manager.daemon.wait().unwrap().success());
}

#[test]
fn a_core_thread_that_hangs_is_visible_and_starves_the_watchdog() {
    let manager = Manager::start("300000");
    let http = manager.http;
    let mut raw = Raw::attach(&manager.socket());
    assert_eq!(raw.status(sub(Op::Nop)), Status::Ok);
    assert_eq!(get(http, "/healthz").0, 200);
    let page = get(http, "/metrics").2;
    assert!(page.contains("kvtide_asked_tokens_total{space=\"1\""), "{page}");
    let stopped = Stopped::new(manager.daemon.id(), "kvtide-space-1");
    // A scrape succeeds while one core's thread hangs: it has the thread's last figures and their age.
    let deadline = Instant::now() + BOUND;
    let page = loop {
        let page = get(http, "/metrics").2;
        assert!(page.contains("kvtide_asked_tokens_total{space=\"1\""), "{page}");
        if metric(&page, "kvtide_thread_silence_seconds", &["thread=\"space-1\""]) > Some(0.0) {
            break page;
        }
        assert!(Instant::now() < deadline, "the hanging thread was not detected: {page}");
    };
    assert!(metric(&page, "kvtide_snapshot_age_seconds", &["thread=\"space-1\""]) > Some(0.0), "{page}");
    assert_eq!(metric(&page, "kvtide_snapshot_age_seconds", &["thread=\"host\""]), Some(0.0), "{page}");
    manager.hear_until("STATUS=unhealthy: thread space-1");
    let (code, _, body) = get(http, "/healthz");
    assert_eq!(code, 503, "{body}");
    let verdict: serde_json::Value = serde_json::from_str(&body).unwrap();
    let reason = &verdict["reasons"][0];
    assert_eq!((&reason["reason"], &reason["thread"]), (&"thread_silent".into(), &"space-1".into()), "{body}");
    assert_eq!(get(http, "/readyz").0, 503);
    // Several status messages without a watchdog ping.
    for _ in 0..3 {
        let heard = manager.hear();
        assert!(heard.contains("STATUS=unhealthy") && !heard.contains("WATCHDOG=1"), "{heard}");
    }
    stopped.go_on();
    manager.hear_until("WATCHDOG=1");
    assert_eq!(get(http, "/healthz").0, 200);
    let log = manager.log();
    assert!(log.contains("unhealthy: thread space-1") && log.contains("healthy again"), "{log}");
    assert_eq!(raw.status(sub(Op::Nop)), Status::Ok);
}
