//! A machine for the documents that are about one: Debian with its real systemd, in a container, with this checkout and its release
//! build at /src/kvtide. It needs root, mmdebstrap and systemd-container.

pub mod deploy;
pub mod terminal;

use crate::run::{Error, output, root, run, target};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Packages of the machine. Another list makes another root.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,passwd,libgcc-s1,python3,rpm";
pub const RELEASE: &str = "bookworm";
/// Where the checkout is in the machine.
pub const CHECKOUT: &str = "/src/kvtide";
/// Size of the file system of its state, of which it takes what it writes.
const STATE_BYTES: u64 = 32 << 30;
/// Limits in which it starts and ends. One question about its state has a limit of its own, because systemd may not answer.
const BOOT: Duration = Duration::from_secs(120);
const ANSWER: &str = "30s";
const END: Duration = Duration::from_secs(40);
/// Pause between two looks at something that is awaited.
const PAUSE: Duration = Duration::from_millis(100);

/// A running machine. It is powered off and forgets everything when it is dropped.
pub struct Machine {
    nspawn: Child,
    /// Its process 1, as this system numbers it.
    init: u32,
    /// What is mounted at /var/lib/kvtide: O_DIRECT needs a real file system.
    state: PathBuf,
}

impl Machine {
    /// Boot it.
    pub fn boot() -> Result<Machine, Error> {
        let debian = debian()?;
        let state = target().join("machine-state");
        forget(&state); // of a run that was killed
        let failed = |e| Error::Start(format!("prepare {}", state.display()), e);
        fs::create_dir_all(&state).map_err(failed)?;
        // A file system of its own: sizes such as reserve_free = "20%" must not depend on how full this one is.
        let image = state.with_extension("img");
        File::create(&image).and_then(|file| file.set_len(STATE_BYTES)).map_err(failed)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&state))?;
        fs::remove_dir(state.join("lost+found")).map_err(failed)?; // the service's directory begins empty
        let log = File::create(target().join("machine.log")).map_err(failed)?;
        let version = Command::new("systemd-nspawn").arg("--version").stdout(Stdio::null()).status();
        version.map_err(|e| missing("systemd-nspawn", "systemd-container", e))?;
        // It powers the machine off on SIGTERM. So nothing stays if this process is killed.
        let mut nspawn = Command::new("setpriv");
        nspawn.args([
            "--pdeathsig=TERM",
            "systemd-nspawn",
            "--quiet",
            "--boot",
            "--register=no",
            "--keep-unit",
            "--volatile=overlay",
        ]);
        nspawn.args(["--private-network", "--machine=kvtide"]);
        // The container's own filter forbids io_uring; the unit's filter, which is tested, allows it. systemd needs bpf and cgroups of
        // version 2 to put IPAddressDeny= and DevicePolicy= into effect.
        nspawn.arg("--system-call-filter=io_uring_setup io_uring_enter io_uring_register bpf");
        nspawn.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1");
        nspawn.arg("--rlimit=RLIMIT_MEMLOCK=infinity").arg("--directory").arg(debian);
        nspawn.arg(format!("--bind-ro={}:{CHECKOUT}", root().display()));
        nspawn.arg(format!("--bind={}:/var/lib/kvtide", state.display()));
        nspawn.stdin(Stdio::null()).stdout(log.try_clone().map_err(failed)?).stderr(log);
        let nspawn = nspawn.spawn().map_err(|e| missing("setpriv", "util-linux", e))?;
        // From here on its end is awaited in every case.
        let mut machine = Machine { nspawn, init: 0, state };
        let deadline = Instant::now() + BOOT;
        loop {
            machine.init = machine.find_init().unwrap_or(0);
            let state = machine.answer(&["is-system-running", "--wait"]);
            if state == "running" {
                return Ok(machine);
            }
            let ended = machine.nspawn.try_wait().is_ok_and(|ended| ended.is_some());
            // Degraded: it has booted, but a unit has failed. Waiting would not help.
            if ended || state == "degraded" || Instant::now() > deadline {
                let failed = machine.answer(&["--failed", "--no-legend"]);
                let log = fs::read_to_string(target().join("machine.log")).unwrap_or_default();
                return Err(Error::Check(format!(
                    "the machine is not running after at most {} s, systemd's state is {state:?}:\n{failed}\n{log}",
                    BOOT.as_secs()
                )));
            }
            // PACE: of the looks at a machine that boots.
            std::thread::sleep(PAUSE);
        }
    }

    /// Return what `systemctl` prints; nothing if it cannot be run yet.
    fn answer(&self, words: &[&str]) -> String {
        if self.init == 0 {
            return String::new();
        }
        let asked = self.command("timeout").args([ANSWER, "systemctl"]).args(words).stderr(Stdio::null()).output();
        asked.map_or_else(|_| String::new(), |asked| String::from_utf8_lossy(&asked.stdout).trim().to_owned())
    }

    /// Return nspawn's child that is process 1 of a namespace. A child before it is still in this system's namespaces, where a command
    /// must never run.
    fn find_init(&self) -> Option<u32> {
        let pid = self.nspawn.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let is_init = |child: &u32| {
            let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1"))
        };
        children.split_whitespace().filter_map(|child| child.parse().ok()).find(is_init)
    }

    /// Return a command that runs as root in the machine, in the checkout.
    pub fn command(&self, program: &str) -> Command {
        // If this process is killed, nsenter must end too: it would be stopped with the machine's processes and keep the machine from
        // ending.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "nsenter", &format!("--target={}", self.init)]).args([
            "--all",
            &format!("--wdns={CHECKOUT}"),
            "--",
        ]);
        command.args(["env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]);
        command.arg(program);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.answer(&["poweroff", "--no-wall"]);
        let deadline = Instant::now() + END;
        while self.nspawn.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
            // PACE: of the looks at a machine that ends.
            std::thread::sleep(PAUSE);
        }
        // The end of nspawn alone would not end the machine; the end of its process 1 does. The number is valid while nspawn lives.
        if self.init != 0 && self.nspawn.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = Command::new("kill").args(["-KILL", &self.init.to_string()]).stderr(Stdio::null()).status();
        }
        let _ = self.nspawn.kill();
        let _ = self.nspawn.wait();
        forget(&self.state);
    }
}

/// Remove the file system of a machine's state, if it is there.
fn forget(state: &Path) {
    let _ = Command::new("umount").arg("--lazy").arg(state).stderr(Stdio::null()).status();
    let _ = fs::remove_file(state.with_extension("img"));
    let _ = fs::remove_dir_all(state);
}

/// Return the path in the machine of a file of this checkout or its build.
pub fn inside(path: &Path) -> String {
    let path = path.strip_prefix(root()).unwrap_or(path);
    format!("{CHECKOUT}/{}", path.display())
}

/// Return the root of the machine; make it if it is missing.
pub fn debian() -> Result<PathBuf, Error> {
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        return Err(Error::Check("this case starts a machine with systemd-nspawn, and needs root".to_owned()));
    }
    let folder = target().join("tools/debian");
    let stamp = folder.join("etc/kvtide-packages");
    let identity = format!("{RELEASE} {PACKAGES}\n");
    if !fs::read_to_string(&stamp).is_ok_and(|made| made == identity) {
        let _ = fs::remove_dir_all(&folder);
        let failed = |e| Error::Start(format!("make {}", folder.display()), e);
        fs::create_dir_all(target().join("tools")).map_err(failed)?;
        let mut mmdebstrap = Command::new("mmdebstrap");
        mmdebstrap.args(["--quiet", "--variant=minbase", &format!("--include={PACKAGES}"), RELEASE]).arg(&folder);
        run(&mut mmdebstrap).map_err(|error| match error {
            Error::Start(_, e) => missing("mmdebstrap", "mmdebstrap", e),
            other => other,
        })?;
        // Written last, so that an interrupted installation is repeated.
        fs::write(&stamp, identity).map_err(failed)?;
    }
    Ok(folder)
}

fn missing(program: &str, package: &str, error: std::io::Error) -> Error {
    Error::Start(format!("{program} (of the Debian package {package}; install it)"), error)
}
