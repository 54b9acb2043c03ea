//! `kvtide doctor`: checks a host for the daemon, and says with which commands to change what is wrong.
//!
//! Each check reads a few files below `/proc` and `/sys`, or asks the kernel for a limit. What the configuration makes of this machine
//! is the same check that `kvtide config check` does.

use clap::Args;
use kvtide_daemon::check::Report;
use kvtide_daemon::config::{self, Config, Machine, Overrides, Source};
use kvtide_daemon::output;
use kvtide_wire::os::memfd::Reserved;
use kvtide_wire::os::socket::Socket;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Open files that a daemon with many sessions needs: about one a channel.
const OPEN_FILES: u64 = 65_536;
/// A huge page of x86-64, and of AArch64 with base pages of 4 KiB.
const HUGE_PAGE: u64 = 2 << 20;
/// Sector of O_DIRECT transfers.
const SECTOR: u64 = 4096;
/// Places of the CUDA driver's library.
const LIBCUDA: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu", "/usr/local/cuda/compat"];

/// Flags of `kvtide doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0: nothing stops the daemon (there may be warnings); 1: something does.\n\n\
    Examples:\n  kvtide doctor\n  kvtide doctor --config /etc/kvtide/kvtided.toml --json")]
pub(super) struct DoctorArgs {
    /// Configuration file of the daemon [default: built-in settings]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of the NVMe tier, in addition to the configured disks
    #[arg(long, value_name = "DIR")]
    nvme_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    what: String,
    verdict: Verdict,
    /// What was found, and why it matters.
    found: String,
    /// Commands that change it.
    fix: Vec<String>,
}

impl Check {
    fn new(what: &str, verdict: Verdict, found: impl Into<String>, fix: &[&str]) -> Check {
        let fix = fix.iter().map(|line| (*line).to_owned()).collect();
        Check { what: what.to_owned(), verdict, found: found.into(), fix }
    }

    fn ok(what: &str, found: impl Into<String>) -> Check {
        Check::new(what, Verdict::Ok, found, &[])
    }
}

/// The machine below a root directory; tests have one of their own.
struct Host<'a> {
    root: &'a Path,
}

impl Host<'_> {
    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }
}

pub(super) fn run(args: &DoctorArgs) -> ExitCode {
    let host = Host { root: Path::new("/") };
    let mut checks = vec![
        kernel(&host, names_peers()),
        io_uring(&host),
        huge_pages(&host, why_small()),
        numa(&host),
        gpu(&host),
        open_files(),
    ];
    let overrides = Overrides { nvme_dir: args.nvme_dir.clone(), ..Overrides::default() };
    match Source::new(args.config.clone(), overrides) {
        Err(error) => checks.push(Check::new("memory", Verdict::Fail, error.to_string(), &[])),
        Ok(source) => {
            checks.push(cgroup(&source.machine));
            match source.parse() {
                Err(error) => checks.push(Check::new("configuration", Verdict::Fail, error.to_string(), &[])),
                Ok(config) => {
                    checks.push(memlock(&config));
                    checks.push(socket(&config));
                    checks.extend(disks(&host, &config));
                    checks.push(configuration(&source));
                }
            }
        }
    }
    let worst = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    let status = ExitCode::from(if worst == Verdict::Fail { output::FAILED } else { 0 });
    if args.json {
        return output::print_json(&serde_json::json!({ "verdict": worst, "checks": checks }), status);
    }
    output::print(&text(&checks), status)
}

fn text(checks: &[Check]) -> String {
    let mut text = String::new();
    for Check { what, verdict, found, fix } in checks {
        let mark = match verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        };
        text += &format!("{mark}  {what:<14}{found}\n");
        fix.iter().for_each(|line| text += &format!("{:20}{line}\n", ""));
    }
    let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
    text + &match (count(Verdict::Fail), count(Verdict::Warn)) {
        (0, 0) => "This host is ready for kvtided.\n".to_owned(),
        (0, warnings) => format!("kvtided runs here; {warnings} warnings.\n"),
        (failures, _) => {
            format!("{failures} checks failed: kvtided does not run here, or not with this configuration.\n")
        }
    }
}

/// Return whether the kernel tells the process behind a connection, which the daemon needs at each attach.
fn names_peers() -> bool {
    Socket::pair().and_then(|(socket, _peer)| socket.peer_pidfd()).is_ok()
}

fn kernel(host: &Host<'_>, names_peers: bool) -> Check {
    let release = host.read("proc/sys/kernel/osrelease").unwrap_or_default();
    if names_peers {
        return Check::ok("kernel", release);
    }
    let found = format!("{release}: it lacks SO_PEERPIDFD (Linux 6.5), so every attach would fail");
    let fix = "sudo apt install linux-image-generic-hwe-24.04   # or your distribution's newer kernel";
    Check::new("kernel", Verdict::Fail, found, &[fix])
}

fn io_uring(host: &Host<'_>) -> Check {
    let disabled = host.read("proc/sys/kernel/io_uring_disabled").unwrap_or_else(|| "0".into());
    let found = format!("kernel.io_uring_disabled = {disabled}");
    match &*disabled {
        "0" => Check::ok("io_uring", found),
        "1" => {
            let found = format!(
                "{found}: only root and kernel.io_uring_group may use it; the daemon falls back to threads, which are slower"
            );
            Check::new("io_uring", Verdict::Warn, found, &["sudo sysctl -w kernel.io_uring_disabled=0"])
        }
        _ => {
            let found = format!("{found}: the daemon falls back to threads, which are slower");
            Check::new("io_uring", Verdict::Warn, found, &["sudo sysctl -w kernel.io_uring_disabled=0"])
        }
    }
}

/// Allocate a huge page as the daemon allocates its host tier. Return why the system gave none.
fn why_small() -> Option<String> {
    match Reserved::take("kvtide-doctor", HUGE_PAGE, None) {
        Ok(page) => page.why_small().map(|errno| errno.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// Say whether the daemon gets huge pages. It collapses pages itself (MADV_COLLAPSE), so the system's mode decides only if it is `deny`.
fn huge_pages(host: &Host<'_>, why_small: Option<String>) -> Check {
    const FILE: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let modes = host.read(FILE).unwrap_or_default();
    // The chosen mode is in brackets.
    let chosen = modes.split('[').nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("unknown");
    match why_small {
        None => Check::ok("huge pages", format!("the daemon gets them (mode of shared memory: {chosen})")),
        Some(why) => {
            let found = format!(
                "the system gives none (MADV_COLLAPSE: {why}; mode of shared memory: {chosen}): host memory in small pages costs \
                 time in page-table walks"
            );
            let fix = format!("echo advise | sudo tee /{FILE}");
            Check::new("huge pages", Verdict::Warn, found, &[&fix])
        }
    }
}

fn numa(host: &Host<'_>) -> Check {
    let nodes = fs::read_dir(host.root.join("sys/devices/system/node")).into_iter().flatten().filter_map(Result::ok);
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    let nodes = nodes.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count();
    match nodes {
        0 | 1 => Check::ok("NUMA", "one node"),
        nodes => {
            let found = format!(
                "{nodes} nodes, the host tier is divided among them: restrict the daemon to the node of the GPUs and the NVMe drives if \
                 all are on one"
            );
            Check::new(
                "NUMA",
                Verdict::Warn,
                found,
                &[
                    "cat /sys/class/nvme/nvme*/numa_node; nvidia-smi topo -m",
                    "sudo systemctl edit kvtided   # [Service] AllowedMemoryNodes=0",
                ],
            )
        }
    }
}

fn gpu(host: &Host<'_>) -> Check {
    let library = LIBCUDA.iter().any(|dir| host.root.join(dir.trim_start_matches('/')).join("libcuda.so.1").exists());
    match (host.read("proc/driver/nvidia/version"), library) {
        (Some(version), true) => Check::ok("GPU driver", version.lines().next().unwrap_or_default()),
        (Some(_), false) => Check::new(
            "GPU driver",
            Verdict::Warn,
            "the kernel module is loaded, but libcuda.so.1 was not found: engines cannot use tier 0 on the GPU",
            &["sudo apt install libcuda1   # of the driver's version; in containers: --gpus all"],
        ),
        (None, _) => Check::ok("GPU driver", "no NVIDIA GPU: tier 0 is plain memory"),
    }
}

fn open_files() -> Check {
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < OPEN_FILES => {
            let found = format!("at most {limit}: a session needs about one a channel");
            Check::new(
                "open files",
                Verdict::Warn,
                found,
                &["sudo systemctl edit kvtided   # [Service] LimitNOFILE=1048576"],
            )
        }
        limit => Check::ok("open files", limit.map_or("no limit".into(), |limit| format!("at most {limit}"))),
    }
}

fn cgroup(machine: &Machine) -> Check {
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let memory = format!("{} of {} available", gib(machine.available_bytes), gib(machine.total_bytes));
    match &machine.cgroup {
        Some(limit) => {
            Check::ok("memory", format!("{memory}; cgroup limit {} ({})", gib(limit.bytes), limit.file.display()))
        }
        None => Check::ok("memory", format!("{memory}; no cgroup limit")),
    }
}

fn memlock(config: &Config) -> Check {
    let needed = config.tiers.host.capacity_bytes;
    match getrlimit(Resource::Memlock).current {
        Some(limit) if limit < needed && !rustix::process::geteuid().is_root() => {
            let found = format!(
                "{limit} bytes (ulimit -l), host memory is {needed}: the kernel pins pages anew for each transfer"
            );
            Check::new(
                "locked memory",
                Verdict::Warn,
                found,
                &["sudo systemctl edit kvtided   # [Service] LimitMEMLOCK=infinity"],
            )
        }
        limit => Check::ok("locked memory", limit.map_or("no limit".into(), |limit| format!("{limit} bytes"))),
    }
}

fn socket(config: &Config) -> Check {
    let socket = &config.daemon.socket;
    let dir = socket.parent().unwrap_or(Path::new("/"));
    let shown = dir.display();
    let Ok(found) = fs::metadata(dir) else {
        let found = format!("{shown} does not exist: under systemd the unit makes it (RuntimeDirectory=); by hand:");
        let fix = format!("sudo install -d -m 0755 -o $USER {shown}");
        return Check::new("socket", Verdict::Warn, found, &[&fix]);
    };
    let us = rustix::process::geteuid().as_raw();
    if let Some(why) = config::why_open(dir, &found) {
        return Check::new("socket", Verdict::Fail, format!("{shown} is {why}"), &[]);
    }
    match fs::metadata(socket) {
        Ok(found) if !found.file_type().is_socket() => {
            let fix = format!("sudo rm {}", socket.display());
            Check::new("socket", Verdict::Fail, format!("{} is no socket", socket.display()), &[&fix])
        }
        Ok(found) => {
            let mode = found.mode() & 0o777;
            let ours = us == 0 || found.uid() == us || mode & 0o006 == 0o006;
            let found = format!("{} (mode {mode:04o}, uid {}, gid {})", socket.display(), found.uid(), found.gid());
            match ours {
                true => Check::ok("socket", found),
                false => {
                    let fix =
                        format!("sudo usermod -aG $(stat -c %G {}) $USER   # then log in again", socket.display());
                    Check::new("socket", Verdict::Warn, format!("{found}: you need its group to attach"), &[&fix])
                }
            }
        }
        Err(_) if us == 0 || found.uid() == us => Check::ok("socket", format!("the daemon makes {}", socket.display())),
        Err(_) => {
            let found =
                format!("{shown} belongs to uid {}: a daemon of yours cannot make its socket there", found.uid());
            Check::new("socket", Verdict::Warn, found, &["kvtided --dir /tmp/kvtide   # for a trial, as yourself"])
        }
    }
}

/// Check the disks of the configuration: their class, sectors, file system.
fn disks(host: &Host<'_>, config: &Config) -> Vec<Check> {
    let Some(nvme) = config.nvme() else {
        return vec![Check::new(
            "NVMe tier",
            Verdict::Warn,
            "no disk is configured: the cache is as large as host memory and does not survive restarts",
            &["kvtided --nvme-dir /var/lib/kvtide/nvme0   # or [[tiers.nvme.disks]] in the configuration"],
        )];
    };
    nvme.disks.iter().map(|disk| self::disk(host, disk.place().path())).collect()
}

fn disk(host: &Host<'_>, path: &Path) -> Check {
    let what = "disk";
    // The directory itself may still have to be made.
    let Some((place, found)) = path.ancestors().find_map(|place| Some((place, fs::metadata(place).ok()?))) else {
        return Check::new(what, Verdict::Fail, format!("{}: no such path", path.display()), &[]);
    };
    let device = if found.file_type().is_block_device() { found.rdev() } else { found.dev() };
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let at = format!("sys/dev/block/{major}:{minor}");
    // A partition's queue is that of its disk.
    let queue =
        |name: &str| host.read(&format!("{at}/queue/{name}")).or_else(|| host.read(&format!("{at}/../queue/{name}")));
    let shown = path.display();
    let fix = format!("findmnt -T {}   # choose a directory on a local NVMe drive", place.display());
    let Some(rotational) = queue("rotational") else {
        let found = format!(
            "{shown}: not on a local block device (tmpfs, overlay or network); reads and writes will be slow or not survive"
        );
        return Check::new(what, Verdict::Warn, found, &[&fix]);
    };
    let sector: u64 = queue("logical_block_size").and_then(|size| size.parse().ok()).unwrap_or(512);
    if rotational != "0" {
        return Check::new(what, Verdict::Warn, format!("{shown}: device {major}:{minor} is a rotating disk"), &[&fix]);
    }
    if sector > SECTOR {
        let found = format!("{shown}: sectors of {sector} bytes; kvtide transfers multiples of {SECTOR}");
        return Check::new(what, Verdict::Fail, found, &[&fix]);
    }
    match direct(place) {
        Some(false) => {
            let found = format!("{shown}: its file system has no direct I/O; bytes pass through the page cache");
            Check::new(what, Verdict::Warn, found, &[&fix])
        }
        _ => Check::ok(what, format!("{shown}: device {major}:{minor}, sectors of {sector} bytes, not rotating")),
    }
}

/// Return whether the file system of a directory has direct I/O; `None` if that cannot be tried here.
fn direct(dir: &Path) -> Option<bool> {
    let path = dir.join(format!(".kvtide-doctor-{}", std::process::id()));
    File::create_new(&path).ok()?;
    let opened = File::options().read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed()).open(&path);
    let _ = fs::remove_file(&path);
    Some(opened.is_ok())
}

fn configuration(source: &Source) -> Check {
    let report = Report::of(source);
    let name = source.name();
    let findings = report.findings();
    let file = source.file.as_ref().map_or(String::new(), |file| format!(" {}", file.display()));
    let fix = format!("kvtide config check{file}");
    match (report.starts(), findings) {
        (false, _) => Check::new("configuration", Verdict::Fail, format!("{name}: it has errors"), &[&fix]),
        (true, 0) => Check::ok("configuration", name),
        (true, warnings) => Check::new("configuration", Verdict::Warn, format!("{name}: {warnings} warnings"), &[&fix]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Return the root directory of a machine with these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn what_is_wrong_is_said_with_a_command() {
        let good = machine(&[
            ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size [advise] never deny force\n"),
            ("sys/devices/system/node/node0/cpulist", "0-1\n"),
            ("proc/driver/nvidia/version", "NVRM version: 570\n"),
            ("usr/lib64/libcuda.so.1", ""),
        ]);
        let bad = machine(&[
            ("proc/sys/kernel/osrelease", "5.15.0\n"),
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force\n"),
            ("sys/devices/system/node/node0/cpulist", "0\n"),
            ("sys/devices/system/node/node1/cpulist", "1\n"),
            ("proc/driver/nvidia/version", "NVRM version: 570\n"),
        ]);
        let (good, bad) = (Host { root: good.path() }, Host { root: bad.path() });
        type Look = fn(&Host<'_>) -> Check;
        let checks: [(Look, Verdict); 3] = [(io_uring, Verdict::Warn), (numa, Verdict::Warn), (gpu, Verdict::Warn)];
        for (check, verdict) in checks {
            let (here, there) = (check(&good), check(&bad));
            assert_eq!(here.verdict, Verdict::Ok, "{here:?}");
            assert!(there.verdict == verdict && !there.fix.is_empty(), "{there:?}");
        }
        // The mode "never" concerns other programs: the daemon collapses its pages itself.
        let collapsed = huge_pages(&bad, None);
        assert!(collapsed.verdict == Verdict::Ok && collapsed.found.contains("never"), "{collapsed:?}");
        let small = huge_pages(&good, Some("Invalid argument".to_owned()));
        assert!(small.verdict == Verdict::Warn && small.found.contains("MADV_COLLAPSE: Invalid argument"), "{small:?}");
        let said = text(&[kernel(&good, true), kernel(&bad, false)]);
        assert!(
            said.contains(
                "ok    kernel        6.8.0-45-generic\nFAIL  kernel        5.15.0: it lacks SO_PEERPIDFD (Linux 6.5)"
            ),
            "{said}"
        );
        assert!(
            said.ends_with("1 checks failed: kvtided does not run here, or not with this configuration.\n"),
            "{said}"
        );
    }
}
